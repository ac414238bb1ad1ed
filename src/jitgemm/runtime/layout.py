"""How a prepacked operand lies in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from jitgemm.errors import message
from jitgemm.isa.conversions import dtype_of
from jitgemm.isa.types import BY_NAME, ElementType
from jitgemm.kernels.spec import GemmSpec

__all__ = ["ALIGN", "Layout", "element_dtype", "layout_for", "plain_layout"]

ALIGN = 64
"""Every packed matrix begins at a multiple of these bytes: with a cache line."""


def element_dtype(element: ElementType, components: int = 1) -> np.dtype:
    """The NumPy type of an element type, or of the complex type made of it."""
    return np.dtype(f"c{2 * element.bytes}") if components == 2 else dtype_of(element)


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
    components: int = 1
    packed: ElementType | None = None
    """The type of numbers in micropanels, if it is another."""
    group: int = 1
    """Steps of depth side by side."""
    sums: int = 0
    """Bytes behind each micropanel: sums of its columns."""

    def __hash__(self) -> int:
        # Part of every key of a call with a handle: types are left to the comparison.
        return hash((self.k, self.n, self.nr, self.components, self.group, self.sums))

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
        return -(-self.n * self.components // self.nr)

    @property
    def panel_bytes(self) -> int:
        """Bytes of one micropanel."""
        return self.words * self.group * self.nr * self.numbers.bytes + self.sums

    @property
    def nbytes(self) -> int:
        """Bytes of the packed form."""
        return self.panels * self.panel_bytes

    @property
    def item_bytes(self) -> int:
        """Bytes from one packed matrix of a stack to the next: each begins a cache line."""
        return -(-self.nbytes // ALIGN) * ALIGN

    def serves(self, wanted: Layout) -> bool:
        """Whether a kernel that reads ``wanted`` reads this one, of whatever size.

        It says nothing of instruction sets: those that pack alike share operands.
        """
        x, y = self.numbers, wanted.numbers
        alike = x is y or (x.integral and y.integral and x.bits == y.bits)
        mine = self.nr, self.components, self.group, self.sums
        return alike and mine == (wanted.nr, wanted.components, wanted.group, wanted.sums)

    def matrices(self, rows: NDArray[np.uint8], dtype: np.dtype) -> NDArray[np.generic]:
        """The operands packed in ``rows``, one each: ``(rows, k, n)`` of type ``dtype``.

        No copy if each is one plain panel.
        """
        items = len(rows)
        if 0 in (items, self.k, self.n):
            return np.empty((items, self.k, self.n), dtype)
        width, numbers = self.nr // self.components, element_dtype(self.numbers, self.components)
        flat = rows[:, : self.nbytes].reshape(items, self.panels, self.panel_bytes)
        flat = flat[..., : self.panel_bytes - self.sums]
        words = flat.reshape(items, self.panels, self.words, width, -1).view(numbers)
        wide = words.transpose(0, 2, 4, 1, 3).reshape(items, -1, self.panels * width)
        wide = wide[:, : self.k, : self.n]
        same = numbers.itemsize == dtype.itemsize
        return wide.view(dtype) if same else wide.astype(dtype)

    def __str__(self) -> str:
        """In plain words, without the operand's size."""
        numbers = element_dtype(self.numbers, self.components)
        group = f", {self.group} steps of depth side by side" if self.group > 1 else ""
        sums = ", sums behind each" if self.sums else ""
        return f"micropanels {self.nr // self.components} {numbers} wide{group}{sums}"

    def __reduce__(self) -> tuple[Callable[..., Layout], tuple[object, ...]]:
        values = [getattr(self, field.name) for field in fields(self)]
        return _layout, tuple(x.name if isinstance(x, ElementType) else x for x in values)


def _layout(stored: str, k: int, n: int, nr: int, components: int, packed: str | None,
            group: int, sums: int) -> Layout:  # fmt: skip
    """Rebuild a pickled layout; element types are compared by identity."""
    for name in (stored, packed):
        if name is not None and name not in BY_NAME:
            raise ValueError(message("pickle", "a known element type", name))
    inner = None if packed is None else BY_NAME[packed]
    return Layout(BY_NAME[stored], k, n, nr, components, inner, group, sums)


def layout_for(spec: GemmSpec, k: int, n: int) -> Layout:
    """How a ``(k, n)`` operand is packed for ``spec``."""
    how = spec.arithmetic
    if how.plain:
        return Layout(spec.element, k, n, spec.nr, spec.components)
    sums, kept = spec.panel_bytes(0), how.stored or how.b_element
    packed = None if kept is how.types.b else kept
    return Layout(how.types.b, k, n, spec.nr, 1, packed, how.group, sums)


def plain_layout(element: ElementType, k: int, n: int, components: int) -> Layout:
    """One micropanel as wide as the operand, which is the operand row by row.

    So operands are stored where no kernel packs them.  A BLAS reads it as it is; kernels do not,
    unless it is as wide as their own micropanels.
    """
    return Layout(element, k, n, max(1, n * components), components)
