"""The registry: which register tile each (element type, instruction set) uses.

Dispatch, conformance tests, code-generation tests, benches and docs iterate over it.  Tiles were
chosen by `benchmarks/tiles.py`; failed alternatives are recorded beside the rows.
"""

from __future__ import annotations

from jitgemm.errors import IsaError, message
from jitgemm.isa.matrix import MatrixUnit
from jitgemm.isa.outer import OuterUnit
from jitgemm.isa.tables import (
    AVX2,
    AVX2_VNNI,
    AVX512,
    AVX512_AMX,
    AVX512_BF16,
    AVX512_VNNI,
    INTERPRETER,
    NEON,
    NEON_BF16,
    NEON_DOT,
    PORTABLE,
    SME_SETS,
    SVE,
    SVE2_BF16,
    SVE_BF16,
    Isa,
)  # fmt: skip
from jitgemm.isa.types import F32, F64, I32, I64, ElementType
from jitgemm.kernels.arithmetic import OperandTypes, arithmetic_for
from jitgemm.kernels.spec import MOST_ROWS, Tile
from jitgemm.kernels.squares import flat, largest

__all__ = ["columns_tile", "matrix_tile", "register", "rows", "slim_tile", "tile_for"]

# 14 rows by two vectors: 28 sums, two vectors of B, one broadcast; 14 cycles of two FMAs per depth
# step against 16 loads.  8x3 and 6x4 reach the same share of the register-only loop but balance
# worse at small m; 12x2 leaves 1/7 of the independent chains idle.
_WIDE = Tile(mr=14, nr_regs=2, groups=((1, 14), (2, 6), (4, 3)))
# 16 registers: 6x2 is the classic; 4x3 loads as often but wastes panels of odd width.
_NARROW = Tile(mr=6, nr_regs=2, groups=((1, 6), (2, 2), (4, 1)))
# Products of 64 bits need a register of their own, and some compilers' schedules more than one
# (LLVM 22 for Emerald Rapids keeps two vectors of the 14th row on the stack).
_LONG = Tile(mr=12, nr_regs=2, groups=((1, 12), (2, 6), (4, 3)))
# A multiply-add by lane takes A from two vectors of four rows (f32): five loads for 24 of them.
_BY_LANE = Tile(mr=8, nr_regs=3, groups=((1, 8), (2, 4), (4, 1)))
# Scalable vectors: A by broadcast, as multiply-adds by lane are two instructions on many cores.
# BLIS takes ten rows by two vectors; with twelve a load serves 1.7 of them instead of 1.67.
_SCALABLE = Tile(mr=12, nr_regs=2, groups=((1, 12), (2, 6), (4, 3)))
# Words of four numbers, broadcast: ten loads for 24 dot products, where eight rows by three vectors
# take eleven.
_WORDS = Tile(mr=6, nr_regs=4, groups=((1, 6), (2, 2), (4, 1)))
# Words of two numbers are taken apart, B's into two vectors each: 4.1 instructions per word where
# nothing is spilled; 5 rows by 4, 6 by 3, 8 by 2 and 8 by 3 spill, and take 5.1 to 6.1 (LLVM 22).
_APART = Tile(mr=4, nr_regs=4, groups=((1, 4), (2, 2), (4, 1)))
# Separate multiply and add need a temporary register each.
_PLAIN = Tile(mr=4, nr_regs=2, groups=((1, 4), (2, 2), (4, 1)))
# Products of 64-bit integers by SSE2 are three multiplications of halves, and their sums.
_LOW = Tile(mr=2, nr_regs=2, groups=((1, 2), (2, 1)))
# The same tiles for complex: a row of A is two rows of reals.
_BY_LANE_COMPLEX = Tile(mr=4, nr_regs=3, groups=((1, 4), (2, 2)))
_SCALABLE_COMPLEX = Tile(mr=6, nr_regs=2, groups=((1, 6), (2, 3), (4, 1)))
_WIDE_COMPLEX = Tile(mr=7, nr_regs=2, groups=((1, 7), (2, 3), (4, 1)))
_NARROW_COMPLEX = Tile(mr=3, nr_regs=2, groups=((1, 3), (2, 1)))
_PLAIN_COMPLEX = Tile(mr=2, nr_regs=2, groups=((1, 2), (2, 1)))

_MOST_COLUMNS = 4
"""Vectors of B side by side that are transposed in registers."""

Row = tuple[ElementType, Isa, int, Tile]
_ROWS: dict[tuple[str, str, int], Row] = {}


def register(element: ElementType, isa: Isa, tile: Tile, components: int = 1) -> None:
    """Add a row, or exchange the tile of one, before the first product of the process.

    Args:
        element: the type of sums: ``F32``, ``F64``, ``I32``, ``I64``.  A set can multiply what it
            has rows for.
        isa: the instruction set.
        tile: the register tile of sums of this type.
        components: 2 for complex sums, of floats.

    Raises:
        ValueError: the tile does not fit the registers of the set, or its micropanels those of
            the set's matrix unit; or rows of another set of this name are there.
    """
    tile.check(isa.vector_registers, components)
    for _, known, _, _ in _ROWS.values():
        if known.name == isa.name:
            isa.refuse_another(known)
    if components == 1 and isa.unit is not None:
        _check_unit(element, isa, isa.unit, tile)
    _ROWS[element.name, isa.name, components] = (element, isa, components, tile)


def _check_unit(element: ElementType, isa: Isa, unit: MatrixUnit | OuterUnit, tile: Tile) -> None:
    """Refuse micropanels that the vector kernels and the matrix unit cannot share.

    Few rows are multiplied by vectors, and a handle serves both.
    """
    for product in unit.products:
        if product.sums is not element:
            continue
        if product.name in isa.table(element):
            expected = "a product with a name of its own"
            raise ValueError(message(f"isa, with {unit.name}", expected, repr(product.name)))
        width = tile.nr_regs * isa.lanes(element)
        words = unit.words(element) if isinstance(unit, OuterUnit) else unit.words
        if width % words:
            expected = f"micropanels of whole tiles of {unit.name}, {words} columns wide"
            raise ValueError(message("tile", expected, f"{width} columns"))
        if isinstance(unit, OuterUnit):
            continue  # others than those it shares are packed by each call
        types = OperandTypes(product.a, product.b, element, element, element, bool(product.order))
        vectors = arithmetic_for(types, element, isa)
        if (vectors.group, vectors.b_element) != (product.group, product.b):
            expected = f"vectors that fold words of {product.group} {product.a} and {product.b}"
            numbers = f"{vectors.group} {vectors.a_element} and {vectors.b_element}"
            got = f"{vectors.accumulate} of {numbers}"
            raise ValueError(message(f"isa, with {unit.name}.{product.name}", expected, got))


def rows() -> list[Row]:
    """Every registered row: element type, instruction set, reals per number, tile."""
    return list(_ROWS.values())


def tile_for(element: ElementType, isa: Isa, components: int = 1) -> Tile:
    """The register tile of this type on this instruction set (``components`` 2: complex).

    Raises:
        IsaError: there is none.
    """
    try:
        _, known, _, tile = _ROWS[element.name, isa.name, components]
    except KeyError:
        kind = "complex sums" if components == 2 else "sums"
        expected = f"one with a register tile for {kind} of {element}"
        raise IsaError(message("isa", expected, repr(isa.name))) from None
    if components == 1 and isinstance(isa.unit, OuterUnit) and isa.unit != known.unit:
        # The set as a machine has it whose streaming vectors are of another length.
        return _long_beside(isa) if element is I64 else _beside(isa)
    return tile


def columns_tile(tile: Tile, isa: Isa, components: int) -> Tile:
    """The tile for a B transposed in registers: a block of B and the sums must fit together."""
    # A block of f32 is as many registers as a vector has lanes: half of the file, at most.
    rows = min(tile.mr, max(1, isa.vector_registers // (8 * components)))
    # Micropanels beside a unit of outer products may be wider than the sums of some rows can be.
    columns = min(tile.nr_regs, _MOST_COLUMNS)
    return Tile(mr=rows, nr_regs=columns, groups=((1, rows),))


def _outer_tile(element: ElementType, tile: Tile, isa: Isa, unit: OuterUnit) -> Tile:
    """All accumulators, in a rectangle as wide as one or more micropanels of ``tile``."""
    words, most = unit.words(element), unit.accumulators(element)
    per_panel = tile.nr_regs * isa.lanes(element) // words
    groups = tuple(
        (panels, min(most // (panels * per_panel) * words, MOST_ROWS // words * words))
        for panels in (1, 2, 4)
        if panels * per_panel <= most
    )
    return Tile(mr=groups[0][1], nr_regs=per_panel, groups=groups)


def matrix_tile(element: ElementType, tile: Tile, isa: Isa) -> Tile:
    """The tile for the set's matrix unit, on the micropanels of ``tile``.

    With eight registers four of sums in a square need two of A and two of B, which is as many bytes
    to load as there are cycles to multiply; up to as many rows as a tile has, four side by side
    take one of A (:mod:`jitgemm.kernels.squares`).
    """
    unit = isa.unit
    assert unit is not None
    if isinstance(unit, OuterUnit):
        return _outer_tile(element, tile, isa, unit)
    per_panel = tile.nr_regs * isa.vector_bits // (8 * unit.row_bytes)
    rows = min(largest(unit).halves * unit.rows, MOST_ROWS)
    # A row of them must go through the epilogue in vectors.
    at_once = min(
        flat(unit, unit.registers).columns // per_panel, isa.vector_registers // 2 // tile.nr_regs
    )
    more = ((at_once, min(unit.rows, MOST_ROWS)),) if at_once > 1 else ()
    return Tile(mr=rows, nr_regs=tile.nr_regs, groups=((1, rows), *more))


def slim_tile(tile: Tile) -> Tile:
    """The tile for a B no wider than one vector: twice the rows on half the vectors."""
    rows = min(tile.mr * tile.nr_regs, MOST_ROWS)
    return Tile(mr=rows, nr_regs=1, groups=((1, rows),))


def _beside(isa: Isa) -> Tile:
    """The vector tile beside a unit of outer products: micropanels two of its tiles wide.

    One where two are more vectors than there are registers for; more where a vector is wider.
    """
    assert isinstance(isa.unit, OuterUnit)
    columns = max(1, 2 * 8 * isa.unit.row_bytes // isa.vector_bits)
    columns //= 1 + (columns > isa.vector_registers // 2)
    budget = isa.vector_registers - 2
    rows = max(r for r in range(1, 13) if r * columns + min(r, columns) <= budget)
    return Tile(mr=rows, nr_regs=columns, groups=((1, rows),))


def _long_beside(isa: Isa) -> Tile:
    """The same for sums of 64 bits: NEON multiplies them one by one, which takes registers."""
    tile = _beside(isa)
    if isa.scalable:
        return tile
    assert isinstance(isa.unit, OuterUnit)
    columns = min(tile.nr_regs, 8 * isa.unit.row_bytes // isa.vector_bits)
    rows = min(2, tile.mr)
    return Tile(mr=rows, nr_regs=columns, groups=((1, rows),))


def _floats(isa: Isa) -> tuple[Tile, Tile]:
    """The tiles of a set of scalable vectors, of real and of complex floats."""
    return (_BY_LANE, _BY_LANE_COMPLEX) if isa.by_lane else (_SCALABLE, _SCALABLE_COMPLEX)


def _integers(isa: Isa) -> tuple[Tile, Tile]:
    """The tiles of a set of scalable vectors, of sums of 32 and 64 bits."""
    return (_WORDS, _PLAIN) if isa.by_lane else (_SCALABLE, _SCALABLE)


for _element in (F32, F64):
    for _isa, _tile, _complex in (
        *((x, _beside(x), _floats(x)[1]) for x in SME_SETS),
        (AVX512_AMX, _WIDE, _WIDE_COMPLEX),
        (AVX512_BF16, _WIDE, _WIDE_COMPLEX),
        (AVX512_VNNI, _WIDE, _WIDE_COMPLEX),
        (AVX512, _WIDE, _WIDE_COMPLEX),
        (AVX2_VNNI, _NARROW, _NARROW_COMPLEX),
        (AVX2, _NARROW, _NARROW_COMPLEX),
        *((x, *_floats(x)) for x in (SVE2_BF16, SVE_BF16, SVE)),
        (NEON_BF16, _BY_LANE, _BY_LANE_COMPLEX),
        (NEON_DOT, _BY_LANE, _BY_LANE_COMPLEX),
        (NEON, _BY_LANE, _BY_LANE_COMPLEX),
        (PORTABLE, _PLAIN, _PLAIN_COMPLEX),
        (INTERPRETER, _NARROW, _NARROW_COMPLEX),
    ):
        register(_element, _isa, _tile)
        register(_element, _isa, _complex, 2)
# 32-bit sums are also those of words of narrower numbers.  A product that is no single instruction
# needs registers of its own: four for 64 bits of AVX2, which multiplies halves.
for _isa, _tile, _long in (
    *((x, _beside(x), _long_beside(x)) for x in SME_SETS),
    (AVX512_AMX, _WIDE, _LONG),
    (AVX512_BF16, _WIDE, _LONG),
    (AVX512_VNNI, _WIDE, _LONG),
    (AVX512, _WIDE, _LONG),
    (AVX2_VNNI, _NARROW, _PLAIN),
    (AVX2, _NARROW, _PLAIN),
    *((x, *_integers(x)) for x in (SVE2_BF16, SVE_BF16, SVE)),
    (NEON_BF16, _WORDS, _PLAIN),
    (NEON_DOT, _WORDS, _PLAIN),
    (NEON, _APART, _PLAIN),
    (PORTABLE, _PLAIN, _LOW),
    (INTERPRETER, _NARROW, _PLAIN),
):
    register(I32, _isa, _tile)
    register(I64, _isa, _long)
