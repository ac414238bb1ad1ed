"""Choices of a route, each with its gate and its reason: orientation, how A and B are read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from jitgemm.isa.tables import Isa
from jitgemm.kernels.arithmetic import Arithmetic, Types, arithmetic_for, tiled
from jitgemm.kernels.registry import columns_tile, matrix_tile, slim_tile, tile_for
from jitgemm.kernels.spec import Bias, BSource, GemmSpec, Tile
from jitgemm.kernels.sweep import SWEEP_ROWS
from jitgemm.planner.machine import Machine
from jitgemm.planner.problem import Operand, Problem

__all__ = [
    "Context", "PackA", "b_source", "goes_apart", "is_direct", "is_dot", "orientation", "packs_a",
    "spec_for", "splits", "sweeps", "threads_for",
]  # fmt: skip

_PAGE = 4096
# Microtiles down the rows from which widening a micropanel beforehand pays: an estimate, from about
# four cycles per depth step against two lost in each microtile; 5 of them gained a tenth.
_TILES_TO_WIDEN = 4
# Micropanels of B from which that pays.  Time in place over time packed, AVX2 (6 rows a tile), f32,
# k = 2048, columns of A 240 to 2000 bytes: 4 micropanels 0.5 to 0.7, 32 of them 1.03 to 1.6, 39 of
# them 1.3; f64 with 64 of them 1.06 to 1.12 (benchmarks/knobs.py, Zen 3 VM, 2026-12-01).
_PANELS_TO_GATHER = 32
# Two multiply-adds per cycle, four cycles of latency each, and half as many to spare.
_SUMS_TO_HIDE_LATENCY = 12


@dataclass(frozen=True, slots=True)
class Context:
    """What a plan depends on besides the problem."""

    isa: Isa
    machine: Machine
    threads: int
    knob: Callable[[str], int]


def threads_for(operations: int, context: Context) -> int:
    """Workers worth waking for this much arithmetic (at most what was asked for)."""
    per_thread = max(1, context.knob("parallel_flops"))
    return max(1, min(context.threads, operations // per_thread))


def orientation(problem: Problem) -> tuple[Problem, str]:
    """The problem as the kernel sees it: as given, or with the operands exchanged."""
    if problem.b is None:
        return problem, "a prepacked operand ties the orientation"
    unit, d = problem.parts * problem.types.out.bytes, problem.d
    if problem.n == 1 and problem.m > 1:
        return problem.transposed(), "D is one column: computed as D^T = B^T A^T, along A's rows"
    if problem.m > 1 and d.col != unit and d.row == unit:
        return problem.transposed(), "D is column-major: computed as D^T = B^T A^T"
    return problem, "D is row-major: computed as given"


def b_source(problem: Problem, context: Context) -> tuple[BSource, str]:
    """How B is read."""
    if problem.b is None:
        return BSource.PACKED, "B: prepacked micropanels"
    if problem.mixed is not None:
        return _by_types(problem, problem.mixed, problem.b, context)
    if is_dot(problem):
        return BSource.INPLACE, "one row and one column: a sum in lanes, added in halves"
    if problem.b.foreign:
        return BSource.PACKED, "B: packed per call, which puts its bytes in order"
    return _by_layout(problem, problem.b, context)


def _by_types(problem: Problem, types: Types, b: Operand, context: Context) -> tuple[BSource, str]:
    """How a B of other numbers than the sums' is read: in place if it only widens on the way."""
    how = arithmetic_for(types, problem.element, context.isa)
    if how.reads_b and not b.foreign and b.col == types.b.bytes:
        limit, where = _rows_in_place(problem, context)
        if problem.m <= limit:
            return BSource.INPLACE, f"B: read in place, {where}; packing pays from {limit + 1} rows"
    return BSource.PACKED, "B: packed per call into words"


def _by_layout(problem: Problem, b: Operand, context: Context) -> tuple[BSource, str]:
    if b.row == problem.unit and b.col != problem.unit:
        tile = tile_for(problem.element, context.isa, problem.parts)
        most = columns_tile(tile, context.isa, problem.parts).mr
        limit = min(most, context.knob("rhs_turn_rows"))
        if problem.m <= limit and problem.k > 0:
            why = f"B: its columns are contiguous and turned in registers up to {limit} rows"
            return BSource.COLUMNS, why
    if b.col != problem.unit:
        return BSource.PACKED, "B: packed per call, because its rows are not contiguous"
    limit, where = _rows_in_place(problem, context)
    if problem.m <= limit:
        return BSource.INPLACE, f"B: read in place, {where}; packing pays from {limit + 1} rows"
    return BSource.PACKED, f"B: packed per call, {where}; in place pays up to {limit} rows"


def is_dot(problem: Problem) -> bool:
    """Whether a sum in lanes is wanted: the only route with an order of its own.

    A rule about shapes alone, so that strides, threads and packing do not show in the bits.
    """
    one = problem.m == 1 and problem.n == 1 and problem.mixed is None
    return one and problem.k > 1 and not problem.strict


def spec_for(problem: Problem, source: BSource, context: Context) -> GemmSpec:
    """The kernel for a source of B."""
    isa = context.isa
    tile, units = tile_for(problem.element, isa, problem.parts), _matrix_unit(problem, context)
    if units is not None and source is BSource.PACKED:
        tile = matrix_tile(tile)
        return GemmSpec(problem.element, isa, tile, source, problem.epilogue, 1, units)
    if source is BSource.COLUMNS:
        tile = columns_tile(tile, isa, problem.parts)
    elif problem.b is not None and problem.n * problem.parts <= isa.lanes(problem.element):
        tile = slim_tile(tile)
    how, epilogue = None, problem.epilogue
    if problem.mixed is not None:
        how = arithmetic_for(problem.mixed, problem.element, isa)
        if source is BSource.PACKED and problem.m >= _TILES_TO_WIDEN * tile.mr:
            how, tile = _for_many_rows(problem, how, tile)
        # A number flipped is one with another zero point.
        epilogue = replace(epilogue, zero_a=epilogue.zero_a or how.flip)
    return GemmSpec(problem.element, isa, tile, source, epilogue, problem.parts, how)


def _for_many_rows(problem: Problem, how: Arithmetic, tile: Tile) -> tuple[Arithmetic, Tile]:
    """Halves of B widened once for all rows: while they are packed, or panel by panel.

    Widening in the microkernel takes the ports of multiply-adds: 2 conversions beside 28 of them.
    GFLOP/s of f16, prepacked, before and now: 64 x 768 x 768 135, 149; 128 x 768 x 768 134, 160;
    512 x 768 x 3072 133, 154 (Emerald Rapids, one thread, best of 9, 2026-11-30).
    """
    wide = how.for_many_rows
    if wide is how:
        return how, tile
    if problem.b is not None:
        return replace(wide, kept=None), tile
    # The scratch is that of copied rows.
    one = Tile(tile.mr, tile.nr_regs, ((1, tile.mr),))
    return (wide, one) if how.copies_a else (how, tile)


def _matrix_unit(problem: Problem, context: Context) -> Arithmetic | None:
    """How a matrix unit multiplies, if there is one for these types and enough rows for it."""
    if problem.mixed is None:
        return None
    # A unit that rounds has an order of its own, which must not depend on how many rows there are.
    enough = problem.m >= context.knob("matrix_rows") or not problem.element.integral
    return tiled(problem.mixed, context.isa) if enough else None


def _rows_in_place(problem: Problem, context: Context) -> tuple[int, str]:
    """Up to how many rows of A a row-major B is better read in place, and why.

    Measured by `benchmarks/knobs.py` (Zen 5, 32 MiB of L3, 2026-11-30; RESULTS-zen5.md): up to
    4 MiB in place wins to 512 rows and beyond; beyond half of L3 it loses as soon as a second tile
    rereads B; rows a multiple of a page apart collide in every cache.
    """
    assert problem.b is not None
    rows, l3 = context.knob("rhs_pack_rows"), context.machine.l3.size
    size = problem.k * problem.n * problem.parts * problem.types.b.bytes
    if context.machine.far_l3:
        return _rows_before_far_l3(size, rows, context.machine.l2.size)
    if size > l3 // 2:
        tile = tile_for(problem.element, context.isa, problem.parts)
        return tile.mr, "larger than half of L3"
    if problem.b.row % _PAGE == 0:
        return rows, "rows a multiple of a page apart"
    if size <= l3 // 8:
        return 16 * rows, "small beside L3"
    return 2 * rows, "large beside L3"


def _rows_before_far_l3(size: int, rows: int, l2: int) -> tuple[int, str]:
    """:func:`_rows_in_place` where only L2 is near: B is packed by blocks that stay there.

    Rows of A from which packing is faster, f32, Emerald Rapids with 2 MiB of L2, 2026-11-30: B of
    0.25 MiB 96, of 1 MiB 64, of 4 to 16 MiB 8 to 11, of 64 MiB 6.
    """
    if size <= l2 // 2:
        return 2 * rows, "small beside L2"
    if size <= 16 * l2:
        return rows // 3, "beyond L2"
    return rows // 6, "far beyond L2"


def is_direct(problem: Problem) -> tuple[bool, str]:
    """Whether sums may rest in D between depth blocks, and C and bias be read where they are."""
    d, c, bias, types, parts = problem.d, problem.c, problem.bias, problem.types, problem.parts
    if d.col != parts * types.out.bytes or (c is not None and c.col != parts * types.c.bytes):
        return False, "D: through a tile buffer, D or C has no unit stride"
    full = bias if problem.epilogue.bias is Bias.FULL else None
    if full is not None and full.col != parts * types.bias.bytes:
        return False, "D: through a tile buffer, the bias has no unit stride"
    if any(x is not None and x.foreign for x in (d, c, full)):
        return False, "D: through a tile buffer, bytes are in foreign order"
    if problem.k > problem.element.depth_block and problem.in_place and c is not None:
        return False, "D: through a tile buffer, because C is D"
    return True, ""


def sweeps(problem: Problem, context: Context) -> bool:
    """Whether few rows should run along the rows of an unpacked B instead of down its columns."""
    if problem.mixed is not None:
        return False
    size = problem.k * problem.n * problem.unit
    long_rows = problem.n * problem.unit >= context.knob("sweep_row_bytes")
    enough = problem.m <= SWEEP_ROWS and long_rows and size > context.machine.l2.size
    return 0 < problem.k and enough and reads_bias_in_place(problem)


def reads_bias_in_place(problem: Problem) -> bool:
    """Whether the bias is read along with the columns of D, without a copy side by side.

    A number for all elements may come as one per column, all of them the same one in memory.
    """
    bias, per_row = problem.bias, problem.epilogue.bias is Bias.ROW
    return bias is None or (not bias.foreign and (per_row or bias.col == problem.unit))


def goes_apart(problem: Problem, context: Context) -> bool:
    """Whether columns turned in registers should lag: they come from beyond the caches."""
    size = problem.k * problem.n * problem.unit
    # The lag is a page: a walk of a few pages would be mostly lag.
    long = problem.k * problem.unit >= context.knob("apart_column_bytes")
    return long and size > context.machine.l3.size // 2


def splits(problem: Problem, context: Context) -> bool:
    """Whether the depth should be shared among threads, a small result being too few tiles."""
    m, n = problem.m, problem.n
    if (
        problem.b is None
        or problem.mixed is not None
        or is_dot(problem)
        or problem.a.foreign
        or problem.k < context.knob("split_depth")
    ):
        return False
    if not is_direct(replace(problem, k=1))[0]:
        return False
    # Block sums are written and read once per block: little beside the block's arithmetic while
    # those of a block stay in L2.
    few = m * n * problem.unit <= context.machine.l2.size // 2
    return few and reads_bias_in_place(problem)


class PackA(Enum):
    """How rows of A reach the microkernel; the numbers are those of the job record."""

    INPLACE = 0
    PANELS = 1
    ROWS = 2


def packs_a(problem: Problem, spec: GemmSpec, context: Context) -> tuple[PackA, int, str]:
    """How A is read, the most rows of a microtile then, and why."""
    mr, how = spec.tile.mr, spec.arithmetic
    if how is not None:
        return _words(problem, spec, how, context)
    if is_dot(problem):
        return PackA.INPLACE, mr, "A: read in place, whatever its strides and byte order"
    if problem.a.foreign:
        return PackA.PANELS, mr, "A: packed per chunk, which puts its bytes in order"
    reuse = -(-problem.n * problem.parts // spec.nr)
    stride, enough = context.knob("lhs_pack_stride"), context.knob("lhs_pack_reuse")
    row, col = abs(problem.a.row), abs(problem.a.col)
    found = PackA.INPLACE, mr, "A: read in place by broadcast"
    if problem.m < mr or reuse < enough or problem.k < spec.lanes:
        found = PackA.INPLACE, mr, f"A: read in place ({reuse} micropanels reuse it)"
    elif col >= stride:
        why = f"A: packed per chunk, a depth step of {col} bytes wastes TLB entries"
        found = PackA.PANELS, mr, why
    elif reuse >= _PANELS_TO_GATHER and _lines_wasted(problem, mr, context) * 4 >= 1:
        why = f"A: packed per chunk, in place its lines would take L1 from B ({reuse} micropanels)"
        found = PackA.PANELS, mr, why
    elif problem.a.col == problem.unit and row:
        found = _rows_apart(problem, spec, context)
    return found


def _lines_wasted(problem: Problem, mr: int, context: Context) -> float:
    """Share of L1 that a microtile's lines of A take in vain, if depth steps share no line.

    They are met again by each micropanel of B, until the depth block ends.
    """
    l1, row = context.machine.l1, abs(problem.a.row)
    if abs(problem.a.col) < l1.line:
        return 0.0
    per_line = max(1, l1.line // max(row, problem.unit))
    waste = -(-mr // per_line) * l1.line - mr * problem.unit
    return waste * min(problem.k, problem.element.depth_block) / l1.size


def _words(
    problem: Problem, spec: GemmSpec, how: Arithmetic, context: Context
) -> tuple[PackA, int, str]:
    """How an A of other numbers than the sums' is read: by words where it is made of them."""
    mr, a = spec.tile.mr, problem.a
    whole = a.col == how.types.a.bytes and problem.depth % how.group == 0
    if how.copies_a or not whole or a.foreign:
        return PackA.ROWS, mr, f"A: rows copied per chunk, as words of {how.group} {how.piece}"
    if spec.epilogue.zero_b:
        return PackA.ROWS, mr, "A: rows copied per chunk, with their sums, for B's zero points"
    if a.row and not how.tiles:
        return _rows_apart(problem, spec, context)
    return PackA.INPLACE, mr, "A: read in place by broadcast"


def _rows_apart(problem: Problem, spec: GemmSpec, context: Context) -> tuple[PackA, int, str]:
    """How an A with contiguous rows is read."""
    mr, l1, row = spec.tile.mr, context.machine.l1, abs(problem.a.row)
    way = max(l1.line, l1.size // l1.ways)
    # Rows whose distance is a multiple of the way size share sets: met at every depth step,
    # they must leave room for B and D.  Lower tiles cost less than a copy while enough sums
    # remain to hide the latency of a multiply-add (f32 at 1024, 12 ways: 8 and 10 rows in place
    # 97 %, rows copied 94 %; f64 at 2048: 8 rows 98 %, 10 rows 96 %; Zen 5, 2026-11-30).
    sets = max(1, way // math.gcd(row, way))
    fit = (l1.ways - 4) * sets
    # Where L3 is far the copy is worth its cost, as it also brings the rows into L2.  GFLOP/s in
    # place, copied, PyTorch's: f32 1024 152, 157, 158; 2048 141, 152, 158; f64 1024 67, 73, 79;
    # 2048 57, 74, 78 (Emerald Rapids, one thread, best of 15, 2026-11-30).
    enough = fit * problem.parts * spec.tile.nr_regs >= _SUMS_TO_HIDE_LATENCY
    if fit < mr and enough and not context.machine.far_l3:
        return PackA.INPLACE, fit, f"A: read in place, {fit} rows at a time share L1 sets"
    if fit < mr:
        return PackA.ROWS, mr, f"A: rows copied per chunk, their distance {row} collides in L1"
    return PackA.INPLACE, mr, "A: read in place by broadcast"
