"""Tile registers in the checking interpreter, and how kernels find what a set's unit has."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgemm.errors import LanguageError
from jitgemm.isa.conversions import dtype_of
from jitgemm.isa.matrix import MatrixUnit, TileProduct
from jitgemm.isa.outer import OuterUnit
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import ElementType
from jitgemm.lang.memory import Memory

__all__ = ["OuterSums", "TileRegisters", "matrix_unit", "outer_unit", "product_of"]


def matrix_unit(isa: Isa) -> MatrixUnit:
    """The set's matrix unit.

    Raises:
        LanguageError: it has none.
    """
    if not isinstance(isa.unit, MatrixUnit):
        raise LanguageError(f"{isa.name} has no matrix unit of tiles")
    return isa.unit


def outer_unit(isa: Isa) -> OuterUnit:
    """The set's unit of outer products.

    Raises:
        LanguageError: it has none.
    """
    if not isinstance(isa.unit, OuterUnit):
        raise LanguageError(f"{isa.name} has no unit of outer products")
    return isa.unit


def product_of(isa: Isa, name: str) -> TileProduct:
    """The product ``name`` of the set's matrix unit.

    Raises:
        LanguageError: it has none of this name.
    """
    if isa.unit is None:
        raise LanguageError(f"{isa.name} has no matrix unit")
    found = isa.unit.product(name)
    if found is None:
        raise LanguageError(f"the matrix unit of {isa.name} has no product {name!r}")
    return found


class TileRegisters:
    """What tiles hold, and how many rows they have been given."""

    def __init__(self, isa: Isa, memory: Memory) -> None:
        self.isa, self.memory = isa, memory
        self.heights: list[int] = []
        self.held: dict[int, Any] = {}

    def configure(self, heights: int) -> None:
        """Take rows of each register from the bytes of an integer."""
        unit = matrix_unit(self.isa)
        self.heights = [heights >> (8 * i) & 255 for i in range(unit.registers)]
        if not all(1 <= rows <= unit.rows for rows in self.heights):
            expected = f"1 to {unit.rows} of each register"
            raise LanguageError(f"{unit.name}: rows of {self.heights}, expected {expected}")
        if heights % (1 << 64) >> (8 * unit.registers):
            raise LanguageError(f"{unit.name} has {unit.registers} registers: {heights:#x}")
        self.held = {}

    def release(self) -> None:
        """Forget heights and contents."""
        self.heights, self.held = [], {}

    def _shape(self, tile: int) -> tuple[int, int]:
        """Rows, and bytes of each."""
        if not 0 <= tile < len(self.heights):
            raise LanguageError(f"tile {tile} has no shape")
        return self.heights[tile], matrix_unit(self.isa).row_bytes

    def zero(self, tile: int) -> None:
        """All bytes zero."""
        self.held[tile] = np.zeros(self._shape(tile), np.uint8)

    def load(self, tile: int, at: int, stride: int) -> None:
        """Rows ``stride`` bytes apart."""
        rows, width = self._shape(tile)
        self.held[tile] = np.array([self.memory.read(at + i * stride, width) for i in range(rows)])

    def _value(self, tile: int) -> Any:
        self._shape(tile)
        if tile not in self.held:
            raise LanguageError(f"tile {tile} is read before anything is put into it")
        return self.held[tile]

    def store(self, tile: int, at: int, stride: int) -> None:
        """Rows ``stride`` bytes apart."""
        for i, row in enumerate(self._value(tile)):
            self.memory.write(at + i * stride, row)

    def fold(self, product: TileProduct, tiles: tuple[int, int, int]) -> None:
        """``product`` on the tiles of sums, A and B."""
        kind = dtype_of(product.sums)
        total, a, b = (self._value(t).view(kind) for t in tiles)
        if (a.shape[0], b.shape[1], a.shape[1]) != (*total.shape, b.shape[0]):
            raise LanguageError(f"tiles of shapes {total.shape}, {a.shape}, {b.shape}")
        with np.errstate(all="ignore"):
            words = product.meaning(total, a, b)
        if (words.dtype, words.shape) != (kind, total.shape):
            raise LanguageError(f"{product.name}: its meaning changes {product.sums}{total.shape}")
        self.held[tiles[0]] = np.ascontiguousarray(words).view(np.uint8)


class OuterSums:
    """Tiles of sums of a unit of outer products: one array, seen in elements of any width."""

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        self.entered = False
        self._held: dict[tuple[int, int], Any] = {}

    def enter(self) -> None:
        """The array can be used from now on; it holds nothing."""
        if self.entered:
            raise LanguageError("the mode of the matrix unit is entered twice")
        self.entered, self._held = True, {}

    def leave(self) -> None:
        """It is gone."""
        self.entered, self._held = False, {}

    def _checked(self, tile: int, element: ElementType) -> OuterUnit:
        unit = outer_unit(self.isa)
        if not self.entered:
            raise LanguageError(f"tile {tile} is used outside the mode of {unit.name}")
        if not 0 <= tile < unit.accumulators(element):
            raise LanguageError(f"{unit.name} has no tile {tile} of {element}")
        # Tiles of other widths are the same bytes.
        self._held = {k: v for k, v in self._held.items() if k[1] == element.bytes}
        return unit

    def zero(self, tile: int, element: ElementType) -> None:
        """Clear a tile."""
        side = self._checked(tile, element).words(element)
        self._held[tile, element.bytes] = np.zeros((side, side), dtype_of(element))

    def _value(self, tile: int, element: ElementType) -> Any:
        self._checked(tile, element)
        if (tile, element.bytes) not in self._held:
            raise LanguageError(f"tile {tile} is read before anything is put into it")
        return self._held[tile, element.bytes].view(dtype_of(element))

    def fold(self, product: TileProduct, total: int, a: Any, b: Any) -> None:
        """``product`` of two vectors of k-groups, added to a tile."""
        sums = self._value(total, product.sums)
        if a.shape != b.shape or a.shape != sums.shape[:1]:
            raise LanguageError(f"{product.name}: vectors of {a.size} and {b.size} k-groups")
        with np.errstate(all="ignore"):
            found = product.meaning(sums, a[:, None], b[None, :])
        if (found.dtype, found.shape) != (sums.dtype, sums.shape):
            raise LanguageError(f"{product.name}: its meaning changes {product.sums}{sums.shape}")
        self._held[total, product.sums.bytes] = found

    def row(self, tile: int, index: int, element: ElementType) -> Any:
        """A row of a tile."""
        held = self._value(tile, element)
        if not 0 <= index < len(held):
            raise LanguageError(f"tile {tile} has no row {index}")
        return held[index].copy()
