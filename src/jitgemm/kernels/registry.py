"""The registry: which register tile each (element type, instruction set) uses.

Dispatch, conformance tests, code-generation tests, benches and docs iterate over it.  Tiles were
chosen by `benchmarks/tiles.py`; failed alternatives are recorded beside the rows.
"""

from __future__ import annotations

from jitgemm.isa.tables import AVX2, AVX512, INTERPRETER, PORTABLE, Isa
from jitgemm.isa.types import F32, F64, ElementType
from jitgemm.kernels.spec import Tile

__all__ = ["register", "rows", "tile_for"]

# 14 rows by two vectors: 28 sums, two vectors of B, one broadcast; 14 cycles of two FMAs per depth
# step against 16 loads.  8x3 and 6x4 reach the same share of the register-only loop but balance
# worse at small m; 12x2 leaves 1/7 of the independent chains idle.
_WIDE = Tile(mr=14, nr_regs=2, groups=((1, 14), (2, 6), (4, 3)))
# 16 registers: 6x2 is the classic; 4x3 loads as often but wastes panels of odd width.
_NARROW = Tile(mr=6, nr_regs=2, groups=((1, 6), (2, 2), (4, 1)))
# Separate multiply and add need a temporary register each.
_PLAIN = Tile(mr=4, nr_regs=2, groups=((1, 4), (2, 2), (4, 1)))

_ROWS: dict[tuple[str, str], tuple[ElementType, Isa, Tile]] = {}


def register(element: ElementType, isa: Isa, tile: Tile) -> None:
    """Add a row; the tile must fit the instruction set's registers."""
    tile.check(isa.vector_registers)
    _ROWS[element.name, isa.name] = (element, isa, tile)


def rows() -> list[tuple[ElementType, Isa, Tile]]:
    """Every registered row."""
    return list(_ROWS.values())


def tile_for(element: ElementType, isa: Isa) -> Tile:
    """The register tile of this element type on this instruction set."""
    return _ROWS[element.name, isa.name][2]


for _element in (F32, F64):
    register(_element, AVX512, _WIDE)
    register(_element, AVX2, _NARROW)
    register(_element, PORTABLE, _PLAIN)
    register(_element, INTERPRETER, _NARROW)
