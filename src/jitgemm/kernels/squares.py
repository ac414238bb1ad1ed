"""Which registers of a matrix unit hold what, derived from how many there are.

Sums come first, then one or two tiles of A, one below the other; tiles of B take turns in the rest.
Two of A by as many of B as leave one register for them is the best use of loads; up to as many rows
as a tile has, the same sums lie side by side beside one tile of A.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jitgemm.isa.matrix import MatrixUnit
from jitgemm.lang.core import IntLike

__all__ = ["Square", "flat", "largest", "tall"]


def _across(unit: MatrixUnit) -> int:
    """Tiles side by side beside two of A: two sums for each, and one register of B."""
    return (unit.registers - 3) // 2


def _sums(unit: MatrixUnit) -> int:
    """Registers of sums: an even number, or beside one tile of A whatever leaves one for B."""
    return 2 * _across(unit) or unit.registers - 2


def _every(registers: Iterable[int]) -> int:
    """A byte of 1 for each register: times a number of rows, their part of all heights."""
    return sum(1 << (8 * r) for r in registers)


@dataclass(frozen=True, slots=True)
class Square:
    """Tiles of sums that are multiplied into together."""

    unit: MatrixUnit
    halves: int
    """Tiles of A, one below the other: 1 or 2."""
    columns: int
    """Tiles of B, side by side."""

    def sums(self, half: int, column: int) -> int:
        """The register of these sums."""
        return _across(self.unit) * half + column

    def a(self, half: int) -> int:
        """The register of A."""
        return _sums(self.unit) + half

    def b(self, column: int) -> int:
        """The register of B."""
        first = _sums(self.unit) + self.halves
        return first + column % (self.unit.registers - first)

    def heights(self, upper: IntLike, lower: IntLike) -> IntLike:
        """Rows of all registers, a byte each, for so many rows in either tile of A."""
        unit, sums = self.unit, _sums(self.unit)
        # A tile of B has a row for each word in a row of A.
        whole = unit.words * _every(range(sums + self.halves, unit.registers))
        if self.halves == 1:
            return upper * _every(range(sums + 1)) + whole
        across = _across(unit)
        here, below = (*range(across), sums), (*range(across, sums), sums + 1)
        return upper * _every(here) + lower * _every(below) + whole


def tall(unit: MatrixUnit, columns: int) -> Square | None:
    """Two tiles of A by at most so many of B, if there are registers for that."""
    across = _across(unit)
    return Square(unit, 2, min(across, columns)) if across else None


def flat(unit: MatrixUnit, columns: int) -> Square:
    """One tile of A by at most so many of B."""
    return Square(unit, 1, min(_sums(unit), columns))


def largest(unit: MatrixUnit) -> Square:
    """The square that loads least for what it multiplies."""
    return tall(unit, unit.registers) or flat(unit, unit.registers)
