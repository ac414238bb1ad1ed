"""Prepacked operands."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from jitgemm.errors import message
from jitgemm.isa.conversions import dtype_of
from jitgemm.isa.types import BY_NAME, ElementType
from jitgemm.kernels.spec import GemmSpec
from jitgemm.runtime.memory import address, aligned_buffer

__all__ = [
    "FORMAT",
    "Layout",
    "Packed",
    "PackedLhs",
    "PackedRhs",
    "element_dtype",
    "layout_for",
    "plain_layout",
]

FORMAT = 3
"""Version of the packed layout; stored in pickles and checked when they are loaded."""


def element_dtype(element: ElementType, parts: int = 1) -> np.dtype:
    """The NumPy type of an element type, or of the complex type made of it."""
    return np.dtype(f"c{2 * element.bytes}") if parts == 2 else dtype_of(element)


@dataclass(frozen=True, slots=True)
class Layout:
    """Micropanels ``nr`` reals wide; each holds all ``k`` depth steps, padded on the right.

    Because a panel spans the whole depth, the layout does not depend on how depth or columns are
    blocked when it is read: ``nr`` is all there is to record, and what a word of depth is.
    """

    stored: ElementType
    """The operand's own type."""
    k: int
    n: int
    nr: int
    parts: int = 1
    packed: ElementType | None = None
    """The type of numbers in micropanels, if it is another."""
    group: int = 1
    """Steps of depth side by side."""
    sums: int = 0
    """Bytes behind each micropanel: sums of its columns."""

    def __hash__(self) -> int:
        # Part of every key of a call with a handle: types are left to the comparison.
        return hash((self.k, self.n, self.nr, self.parts, self.group, self.sums))

    @property
    def numbers(self) -> ElementType:
        """The type of numbers in micropanels."""
        return self.packed or self.stored

    @property
    def words(self) -> int:
        """Depth in words."""
        return -(-self.k // self.group)

    @property
    def panels(self) -> int:
        """Number of micropanels."""
        return -(-self.n * self.parts // self.nr)

    @property
    def panel_bytes(self) -> int:
        """Bytes of one micropanel."""
        return self.words * self.group * self.nr * self.numbers.bytes + self.sums

    @property
    def nbytes(self) -> int:
        """Bytes of the packed form."""
        return self.panels * self.panel_bytes

    def serves(self, wanted: Layout) -> bool:
        """Whether a kernel that reads ``wanted`` reads this one, of whatever size."""
        x, y = self.numbers, wanted.numbers
        alike = x is y or (x.integral and y.integral and x.bits == y.bits)
        mine = self.nr, self.parts, self.group, self.sums
        return alike and mine == (wanted.nr, wanted.parts, wanted.group, wanted.sums)

    def matrix(self, storage: NDArray[np.uint8], dtype: np.dtype) -> NDArray[np.generic]:
        """The operand in ``storage``, of type ``dtype``; no copy if there is one plain panel."""
        if 0 in (self.k, self.n):
            return np.empty((self.k, self.n), dtype)
        width, numbers = self.nr // self.parts, element_dtype(self.numbers, self.parts)
        flat = storage[: self.nbytes].reshape(self.panels, self.panel_bytes)
        flat = flat[:, : self.panel_bytes - self.sums]
        words = flat.reshape(self.panels, self.words, width, -1).view(numbers)
        wide = words.transpose(1, 3, 0, 2).reshape(-1, self.panels * width)[: self.k, : self.n]
        same = numbers.itemsize == dtype.itemsize
        return wide.view(dtype) if same else wide.astype(dtype)


_numbers = {}


def layout_number(layout, kind):
    return _numbers.setdefault((layout, kind), len(_numbers) + 1)


class Packed:
    """What prepacked operands have in common.

    A snapshot: later writes to the source do not show.  It is read-only, so threads share it
    without locks, and it is always read back with the tiling it was packed with.
    """

    __slots__ = ("__weakref__", "_buffer", "_dtype", "_layout", "conj", "isa", "words")

    # Arrays leave ``@`` to the handle.
    __array_ufunc__ = None
    product: ClassVar[Callable[[Any, Any], Any]]
    """:func:`jitgemm.matmul`, put here by its module, of which this layer knows nothing."""

    def __init__(self, layout: Layout, isa: str, dtype: np.dtype, *, conj: bool = False) -> None:
        self._layout, self.isa, self.conj = layout, isa, conj
        self._dtype = dtype
        self._buffer = aligned_buffer(max(layout.nbytes, 64))
        self._buffer.flags.writeable = False
        self.words = self._words()

    def _words(self):
        n = layout_number(self._layout, type(self))
        w = np.array([self.address, self._layout.nbytes, 1, n, int(self.conj), 2, *self.shape, *[0]*6], np.int64)
        w.flags.writeable = False
        return w

    @staticmethod
    def example():
        from jitgemm.isa.types import F32
        return PackedRhs(Layout(F32, 1, 1, 1), "none", np.dtype(np.float32))

    def fill(self, packed: bytes) -> None:
        """Put packed bytes in; only for a handle nobody has seen yet."""
        self._buffer.flags.writeable = True
        self._buffer[: len(packed)] = np.frombuffer(packed, np.uint8)
        self._buffer.flags.writeable = False

    def conjugated(self) -> Self:
        """The same storage as the conjugate operand."""
        twin = copy(self)
        twin.conj = not self.conj
        twin.words = twin._words()
        return twin

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        for name in ("_buffer", "_dtype", "_layout", "conj", "isa", "words"):
            setattr(twin, name, getattr(self, name))
        return twin

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the operand."""
        return self._layout.k, self._layout.n

    @property
    def ndim(self) -> int:
        """Always 2."""
        return 2

    @property
    def dtype(self) -> np.dtype:
        """Element type."""
        return self._dtype

    @property
    def layout(self) -> Layout:
        """How it is stored."""
        return self._layout

    @property
    def nbytes(self) -> int:
        """Bytes of packed storage."""
        return self._layout.nbytes

    @property
    def nr(self) -> int:
        """Reals per depth step of a micropanel."""
        return self._layout.nr

    @property
    def storage(self) -> NDArray[np.uint8]:
        """The packed bytes, read-only."""
        return self._buffer

    @property
    def address(self) -> int:
        """Where the first micropanel begins."""
        return address(self._buffer)

    def stored(self) -> NDArray[np.generic]:
        """The operand without its conjugation: read-only, no copy if there is one micropanel."""
        return self._layout.matrix(self._buffer, self._dtype)

    def unpack(self, dtype: DTypeLike | None = None) -> NDArray[np.generic]:
        """The operand as an ordinary array (a copy)."""
        matrix = self.stored()
        return np.array(matrix.conj() if self.conj else matrix, dtype or self._dtype, order="C")

    def __matmul__(self, other: object) -> Any:
        return Packed.product(self, other)

    def __rmatmul__(self, other: object) -> Any:
        return Packed.product(other, self)

    def __repr__(self) -> str:
        conj = ", conj=True" if self.conj else ""
        return (
            f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype}, nr={self.nr}, "
            f"isa={self.isa!r}{conj})"
        )

    def __reduce__(self) -> tuple[Callable[..., Packed], tuple[object, ...]]:
        packed = self._buffer[: self.nbytes].tobytes()
        how = type(self), self._dtype, self.conj
        return _load, ((FORMAT, self.isa), self._layout, packed, how)


class PackedRhs(Packed):
    """A right operand packed once, for many products.  Made by :func:`jitgemm.prepack_rhs`."""

    __slots__ = ()


class PackedLhs(Packed):
    """A left operand packed once, for many products.  Made by :func:`jitgemm.prepack_lhs`.

    It is stored as its transpose would be on the right, and multiplied as ``D^T = B^T A^T``.
    """

    __slots__ = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the operand."""
        return self._layout.n, self._layout.k

    def stored(self) -> NDArray[np.generic]:
        """The operand without its conjugation, as for a right one."""
        return super().stored().T


def _load(
    header: tuple[int, str],
    layout: Layout,
    packed: bytes,
    how: tuple[type[Packed], np.dtype, bool],
) -> Packed:
    """Rebuild a pickled handle.

    Raises:
        ValueError: written in another format of packed operands or for another instruction set
            than this process uses, or cut short.
    """
    # Imported here: only loading needs to know what this process uses.
    from jitgemm.runtime.engine import packed_for

    (version, isa), (kind, dtype, conj) = header, how
    if version != FORMAT:
        raise ValueError(message("pickle", f"packed format {FORMAT}", version))
    if isa != packed_for():
        raise ValueError(message("pickle", f"an operand packed for {packed_for()}", isa))
    if len(packed) != layout.nbytes:
        raise ValueError(message("pickle", f"{layout.nbytes} packed bytes", len(packed)))
    # Element types are compared by identity: the pickle brought a copy.
    inner = None if layout.packed is None else BY_NAME[layout.packed.name]
    layout = replace(layout, stored=BY_NAME[layout.stored.name], packed=inner)
    handle = kind(layout, isa, dtype, conj=conj)
    handle.fill(packed)
    return handle


def layout_for(spec: GemmSpec, k: int, n: int) -> Layout:
    """How a ``(k, n)`` operand is packed for ``spec``."""
    how = spec.arithmetic
    if how is None:
        return Layout(spec.element, k, n, spec.nr, spec.parts)
    sums, kept = spec.panel_bytes(0), how.kept or how.packed
    packed = None if kept is how.types.b else kept
    return Layout(how.types.b, k, n, spec.nr, 1, packed, how.group, sums)


def plain_layout(element: ElementType, k: int, n: int, parts: int) -> Layout:
    """One micropanel as wide as the operand, which is the operand row by row: for a BLAS."""
    return Layout(element, k, n, max(1, n * parts), parts)
