"""Prepacked right operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from jitgemm.errors import message
from jitgemm.isa.types import BY_NAME, ElementType
from jitgemm.kernels.spec import GemmSpec
from jitgemm.runtime.memory import address, aligned_buffer

__all__ = ["FORMAT", "PackedRhs", "element_dtype"]

FORMAT = 1
"""Version of the packed layout; stored in pickles and checked when they are loaded."""


def element_dtype(element: ElementType) -> np.dtype:
    """The NumPy type of an element type."""
    return np.dtype(f"f{element.bytes}")


@dataclass(frozen=True, slots=True)
class Layout:
    """Micropanels ``nr`` columns wide; each holds all ``k`` depth steps, padded on the right.

    Because a panel spans the whole depth, the layout does not depend on how depth or columns are
    blocked when it is read: ``nr`` is all there is to record.
    """

    element: ElementType
    k: int
    n: int
    nr: int

    @property
    def panels(self) -> int:
        """Number of micropanels."""
        return -(-self.n // self.nr)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed form."""
        return self.panels * self.k * self.nr * self.element.bytes


class PackedRhs:
    """A right operand packed once and used in many products.  Made by :func:`jitgemm.prepack_rhs`.

    It is a snapshot: later writes to the source do not show.  It is read-only, so threads share it
    without locks, and it is always read back with the tiling it was packed with.
    """

    __slots__ = ("__weakref__", "_buffer", "_dtype", "_layout", "isa")

    def __init__(self, layout: Layout, buffer: NDArray[np.uint8], isa: str) -> None:
        self._layout, self._buffer, self.isa = layout, buffer, isa
        self._dtype = element_dtype(layout.element)
        buffer.flags.writeable = False

    def fill(self, packed: bytes) -> None:
        """Put packed bytes in; only for a handle nobody has seen yet."""
        self._buffer.flags.writeable = True
        self._buffer[: len(packed)] = np.frombuffer(packed, np.uint8)
        self._buffer.flags.writeable = False

    @classmethod
    def allocate(cls, layout: Layout, isa: str) -> tuple[PackedRhs, int]:
        """An empty handle and the address to fill."""
        buffer = aligned_buffer(max(layout.nbytes, 64))
        where = address(buffer)
        return cls(layout, buffer, isa), where

    @property
    def shape(self) -> tuple[int, int]:
        """``(k, n)`` of the operand."""
        return self._layout.k, self._layout.n

    @property
    def dtype(self) -> np.dtype:
        """Element type."""
        return self._dtype

    @property
    def nbytes(self) -> int:
        """Bytes of packed storage."""
        return self._layout.nbytes

    @property
    def nr(self) -> int:
        """Columns per micropanel."""
        return self._layout.nr

    @property
    def element(self) -> ElementType:
        """Element type, as the planner names it."""
        return self._layout.element

    @property
    def storage(self) -> NDArray[np.uint8]:
        """The packed bytes, read-only."""
        return self._buffer

    @property
    def address(self) -> int:
        """Where the first micropanel begins."""
        return address(self._buffer)

    def unpack(self, dtype: DTypeLike | None = None) -> NDArray[np.generic]:
        """The operand as an ordinary ``(k, n)`` array (a copy)."""
        layout = self._layout
        flat = self._buffer[: layout.nbytes].view(self._dtype)
        panels = flat.reshape(layout.panels, layout.k, layout.nr)
        wide = panels.transpose(1, 0, 2).reshape(layout.k, layout.panels * layout.nr)
        return np.array(wide[:, : layout.n], dtype=dtype or self._dtype, order="C")

    def __repr__(self) -> str:
        k, n = self.shape
        return f"PackedRhs(shape=({k}, {n}), dtype={self.dtype}, nr={self.nr}, isa={self.isa!r})"

    def __reduce__(self) -> tuple[Callable[..., PackedRhs], tuple[object, ...]]:
        return _load, (FORMAT, self.isa, self._layout, self._buffer[: self.nbytes].tobytes())


def _load(version: int, isa: str, layout: Layout, packed: bytes) -> PackedRhs:
    """Rebuild a pickled handle.

    Raises:
        ValueError: written in another format of packed operands, or cut short.
    """
    if version != FORMAT:
        raise ValueError(message("pickle", f"packed format {FORMAT}", version))
    if len(packed) != layout.nbytes:
        raise ValueError(message("pickle", f"{layout.nbytes} packed bytes", len(packed)))
    handle, _ = PackedRhs.allocate(layout, isa)
    handle.fill(packed)
    return handle


def layout_for(spec: GemmSpec, k: int, n: int) -> Layout:
    """How a ``(k, n)`` operand is packed for ``spec``."""
    return Layout(BY_NAME[spec.element.name], k, n, spec.nr)
