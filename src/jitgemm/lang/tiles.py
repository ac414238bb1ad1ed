"""Tile registers in the checking interpreter, and how kernels find what a set's unit has."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgemm.errors import LanguageError
from jitgemm.isa.conversions import dtype_of
from jitgemm.isa.matrix import MatrixUnit, TileProduct
from jitgemm.isa.tables import Isa
from jitgemm.lang.memory import Memory

__all__ = ["TileRegisters", "matrix_unit", "product_of"]


def matrix_unit(isa: Isa) -> MatrixUnit:
    """The set's matrix unit.

    Raises:
        LanguageError: it has none.
    """
    if isa.unit is None:
        raise LanguageError(f"{isa.name} has no matrix unit")
    return isa.unit


def product_of(isa: Isa, name: str) -> TileProduct:
    """The product ``name`` of the set's matrix unit.

    Raises:
        LanguageError: it has none of this name.
    """
    found = matrix_unit(isa).product(name)
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
