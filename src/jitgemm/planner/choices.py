"""Choices, each with its gate and its reason: orientation, how B is read, the kernel, the route."""

from __future__ import annotations

from dataclasses import replace

from jitgemm.isa.outer import OuterUnit
from jitgemm.kernels.arithmetic import Arithmetic, arithmetic_for, shares_panels
from jitgemm.kernels.registry import columns_tile, matrix_tile, slim_tile, tile_for
from jitgemm.kernels.spec import Bias, BSource, GemmSpec, Tile
from jitgemm.kernels.streaming import STREAMED_ROWS
from jitgemm.planner.context import Context, threads_for
from jitgemm.planner.problem import Operand, Problem

__all__ = [
    "Context", "b_source", "is_direct", "is_dot", "orientation", "reads_bias_in_place", "spec_for",
    "splits", "staggers", "streams_rows", "threads_for",
]  # fmt: skip

# Microtiles down the rows from which upconverting a micropanel first pays: an estimate, from about
# four cycles per depth step against two lost in each microtile; 5 of them gained a tenth.
_TILES_TO_UPCONVERT = 4
# How often columns of narrow numbers are walked, for as many rows each time as a tile has, before
# packing them pays: it takes several times as long as packing floats.  us with 4 walks of 4 rows
# and packed, 16 rows times 512^2, 1024^2, 4096^2: f16 67 and 115, 264 and 499, 4900 and 8500; bf16
# 57 and 116, 234 and 489, 4600 and 8400; i8 14 and 14, 58 and 61, 1220 and 1330; i16 24 and 24, 86
# and 108, 2850 and 2890; with 3 walks, 12 rows: i8 11 and 12, 45 and 52, 860 and 1170; i16 16 and
# 20, 67 and 91, 2350 and 2540.  More than 4 walks are more than one chunk of rows (AVX-512, one
# thread, lowest of 15 calls, busy Zen 5 VM, 2026-12-01).
_WALKS_OF_HALVES, _WALKS_OF_K_GROUPS = 4, 3
# What an element of D that is scattered costs, in multiply-adds of a vector, and an element of B
# that is transposed while it is packed.  Where A is column-major, time as given over time exchanged
# (in brackets what `_gain_exchanged` says before the first of these is taken off): f32
# 3552 x 16 x 3 2.6 (4.3), 16 x 574 x 4 3.7 (150), 25 x 251 x 2 3.6 (100), 540 x 592 x 3 4.9 (160),
# 1000 x 300 x 8 1.9 (19), 500 x 100 x 20 1.45 (3.6), 3000 x 3 x 4 1.0 (0.6), 64 x 3 x 3 0.7 (0.8),
# 1000 x 50 x 24 1.15 (1.0), 100 x 20 x 500 0.7 (-0.3); f64 122 x 74 x 21 1.35 (4.3),
# 300 x 300 x 24 1.3 (12), 15 x 80 x 18 1.5 (7), 748 x 16 x 15 0.8 (0.1), 39 x 64 x 174 0.8 (-1.7)
# (AVX-512, one thread, lowest of interleaved runs, Zen 4 VM, 2026-12-01).
_SCATTER, _TRANSPOSE = 1.5, 0.3
# Rows up to which a product with one column is computed as given: one sum after the other waits for
# its multiply-adds either way, and nothing is transposed.  us along A's rows and as given, f32:
# 2 x 2522 5.4, 2.9; 3 x 1000 2.2, 1.3; 4 x 1000 2.2, 1.4; 4 x 70 0.32, 0.23; 8 x 1000 2.2, 2.4
# (AVX-512, one thread, lowest of interleaved runs, Zen 4 VM, 2026-12-01).
_ROWS_BESIDE_A_COLUMN = 4


def orientation(problem: Problem, context: Context) -> tuple[Problem, str]:
    """The problem as the kernel sees it: as given, or with the operands exchanged."""
    if problem.b is None:
        return problem, "a prepacked operand ties the orientation"
    unit, d = problem.components * problem.types.out.bytes, problem.d
    if problem.n == 1 and problem.m > _ROWS_BESIDE_A_COLUMN:
        return problem.transposed(), "D is one column: computed as D^T = B^T A^T, along A's rows"
    if problem.m > 1 and d.col != unit and d.row == unit:
        return problem.transposed(), "D is column-major: computed as D^T = B^T A^T"
    if problem.m > 1 and _gain_exchanged(problem, context) > 0:
        why = "A is column-major and fills vectors better than B: computed as D^T = B^T A^T"
        return problem.transposed(), why
    return problem, "D is row-major: computed as given"


def _gain_exchanged(problem: Problem, context: Context) -> float:
    """What exchanging A and B saves per element of D, in multiply-adds of a vector.

    Rows of A^T, contiguous, take the place of those of B; but the elements of D are scattered then.
    """
    p, lanes = problem, context.isa.lanes(problem.element) // problem.components
    if not p.plain or p.b is None or p.a.row != p.unit:
        return -_SCATTER
    tile = tile_for(p.element, context.isa, p.components)
    large = p.m * p.k * p.unit > context.machine.l3.size // 2
    if large or p.k >= context.knob("split_depth"):
        # All of A would be packed, or walked in place, a short visit to each of its pages: f64
        # 2000 x 2000 x 20 and 3368 x 634 x 13 on two threads took 2.8 times as long.  Or its depth
        # is split, which takes a D that is read in place.
        return -_SCATTER
    nr = tile.nr_regs * lanes

    def filled(columns: int) -> float:
        """The share of vectors' lanes that columns fill."""
        width = lanes if columns <= lanes else nr
        return columns / (-(-columns // width) * width)

    saved = p.k / lanes * (1 / filled(p.n) - 1 / filled(p.m))
    packed = _TRANSPOSE * p.k / p.m if p.b.col != p.unit else 0
    return saved + packed - _SCATTER


def b_source(problem: Problem, context: Context) -> tuple[BSource, str]:
    """How B is read."""
    if problem.b is None:
        return BSource.PACKED, "B: prepacked micropanels"
    if is_dot(problem):
        return BSource.INPLACE, "one row and one column: a sum in lanes, added in halves"
    if problem.b.swapped:
        return BSource.PACKED, "B: packed per call, which puts its bytes in order"
    return _by_layout(problem, problem.b, context)


def _by_layout(problem: Problem, b: Operand, context: Context) -> tuple[BSource, str]:
    how = arithmetic_for(problem.types, problem.element, context.isa)
    # One column is contiguous either way; for k-groups it is the way that saves packing.
    several = b.col != problem.unit_b or (problem.n == 1 and how.group > 1)
    if b.row == problem.unit_b and several and how.reads_columns:
        tile = tile_for(problem.element, context.isa, problem.components)
        most = columns_tile(tile, context.isa, problem.components).mr
        limit = min(most, context.knob("rhs_transpose_rows"))
        if problem.types.b.bytes < problem.element.bytes:
            limit *= _WALKS_OF_HALVES if how.group == 1 else _WALKS_OF_K_GROUPS
        if problem.m <= limit and problem.k > 0:
            read = "transposed in registers" if how.group == 1 else "multiplied in lanes"
            return BSource.COLUMNS, f"B: its columns are contiguous, {read} up to {limit} rows"
    if not how.reads_b:
        return BSource.PACKED, "B: packed per call, for numbers of another type than the sums'"
    if b.col != problem.unit_b:
        return BSource.PACKED, "B: packed per call, because its rows are not contiguous"
    limit, where = _rows_in_place(problem, context)
    if problem.m <= limit:
        return BSource.INPLACE, f"B: read in place, {where}; packing pays from {limit + 1} rows"
    return BSource.PACKED, f"B: packed per call, {where}; in place pays up to {limit} rows"


def is_dot(problem: Problem) -> bool:
    """Whether a sum in lanes is wanted: the only route with an order of its own.

    A rule about shapes and types alone, so that strides, threads and packing do not show in the
    bits.
    """
    one = problem.m == 1 and problem.n == 1 and problem.types.sum_in_lanes(problem.element)
    return one and problem.k > 1 and not problem.strict


def spec_for(problem: Problem, source: BSource, context: Context) -> GemmSpec:
    """The kernel for a source of B."""
    isa, packed = context.isa, source is BSource.PACKED
    tile = whole = tile_for(problem.element, isa, problem.components)
    if source is BSource.COLUMNS:
        tile = columns_tile(tile, isa, problem.components)
    elif problem.b is not None and problem.n * problem.components <= isa.lanes(problem.element):
        tile = slim_tile(tile)
    # A unit that rounds has an order of its own, which must not depend on how many rows there are.
    many = problem.m >= context.knob("matrix_rows") and not splits(problem, context)
    rounds = problem.types.bf16_dot
    outer = isinstance(isa.unit, OuterUnit) and source is BSource.INPLACE
    unit = (packed or outer) and problem.components == 1 and (many or rounds)
    rows = packed and problem.m >= _TILES_TO_UPCONVERT * tile.mr
    how = arithmetic_for(problem.types, problem.element, isa, unit=unit, rows=rows)
    if how.tiles and problem.b is None and not shares_panels(how, problem.element, isa):
        how = arithmetic_for(problem.types, problem.element, isa, rows=rows)
    if how.tiles:
        tile, isa = matrix_tile(problem.element, whole, isa), isa.inside or isa
        if problem.b is not None:
            # Halves of B become floats while they are packed, or read in place.
            how = replace(how, stored=None) if packed else how.for_few_rows
        elif how.stored is not None:
            tile = tile.one_panel
    elif how.stored is not None:
        how, tile = _upconverting(problem, how, tile)
    # A number flipped is one with another zero point.
    epilogue = replace(problem.epilogue, zero_a=problem.epilogue.zero_a or how.flip)
    return GemmSpec(problem.element, isa, tile, source, epilogue, problem.components, how)


def _upconverting(problem: Problem, how: Arithmetic, tile: Tile) -> tuple[Arithmetic, Tile]:
    """Halves of B upconverted once for all rows: while they are packed, or panel by panel.

    Upconverting in the microkernel takes the ports of multiply-adds: 2 conversions beside 28.
    GFLOP/s of f16, prepacked, before and now: 64 x 768 x 768 135, 149; 128 x 768 x 768 134, 160;
    512 x 768 x 3072 133, 154 (Emerald Rapids, one thread, best of 9, 2026-11-30).
    """
    if problem.b is not None:
        return replace(how, stored=None), tile
    # The scratch is that of copied rows.
    return (how, tile.one_panel) if how.copies_a else (how.for_few_rows, tile)


def _rows_in_place(problem: Problem, context: Context) -> tuple[int, str]:
    """Up to how many rows of A a row-major B is better read in place, and why.

    Measured by `benchmarks/knobs.py` (Zen 5, 32 MiB of L3, 2026-11-30; RESULTS-zen5.md): up to
    4 MiB in place wins to 512 rows and beyond; beyond half of L3 it loses as soon as a second tile
    rereads B; rows a multiple of L1's way apart collide in every cache.
    """
    assert problem.b is not None
    rows, l3 = context.knob("rhs_pack_rows"), context.machine.l3.size
    size = problem.k * problem.n * problem.unit_b
    if context.machine.far_l3:
        return _rows_before_far_l3(size, rows, context.machine.l2.size)
    if size > l3 // 2:
        tile = tile_for(problem.element, context.isa, problem.components)
        return tile.mr, "larger than half of L3"
    way = context.machine.l1.way
    if problem.b.row % way == 0:
        return rows, f"rows a multiple of {way} bytes apart, L1's way"
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


def is_direct(problem: Problem, k_groups: int) -> tuple[bool, str]:
    """Whether partial sums may spill to D, and C and bias be read where they are.

    Args:
        problem: in the kernel's orientation.
        k_groups: its depth, as depth blocks count it.
    """
    d, c, bias, types, components = (
        problem.d,
        problem.c,
        problem.bias,
        problem.types,
        problem.components,
    )
    if d.col != components * types.out.bytes or (
        c is not None and c.col != components * types.c.bytes
    ):
        return False, "D: through a tile buffer, D or C has no unit stride"
    full = bias if problem.epilogue.bias is Bias.FULL else None
    if full is not None and full.col != components * types.bias.bytes:
        return False, "D: through a tile buffer, the bias has no unit stride"
    if any(x is not None and x.swapped for x in (d, c, full)):
        return False, "D: through a tile buffer, an operand is byte-swapped"
    if k_groups > problem.element.depth_block and problem.in_place and c is not None:
        return False, "D: through a tile buffer, because C is D"
    return True, ""


def streams_rows(problem: Problem, context: Context) -> bool:
    """Whether few rows should stream the rows of a B read in place, not walk down its columns."""
    size = problem.k * problem.n * problem.unit_b
    long_rows = problem.n * problem.unit_b >= context.knob("streaming_row_bytes")
    # They are streamed together, so they must not be shared out among tiles and threads.
    rows = min(STREAMED_ROWS, tile_for(problem.element, context.isa, problem.components).mr)
    enough = problem.m <= rows and long_rows and size > context.machine.l2.size
    return 0 < problem.k and enough and reads_bias_in_place(problem)


def reads_bias_in_place(problem: Problem) -> bool:
    """Whether the bias is read along with the columns of D, without a copy side by side.

    A number for all elements may come as one per column, all of them the same one in memory.
    """
    bias, per_row = problem.bias, problem.epilogue.bias is Bias.ROW
    unit = problem.components * problem.types.bias.bytes
    return bias is None or (not bias.swapped and (per_row or bias.col == unit))


def staggers(problem: Problem, context: Context) -> bool:
    """Whether columns transposed in registers should be staggered, coming from memory."""
    if arithmetic_for(problem.types, problem.element, context.isa).group > 1:
        # Few columns at a time, each read a line at a time.
        return False
    size = problem.k * problem.n * problem.unit_b
    # Columns are 4 KiB behind each other: of a walk of a few times that it would be most.
    long = problem.k * problem.unit_b >= context.knob("stagger_column_bytes")
    return long and size > context.machine.l3.size // 2


def splits(problem: Problem, context: Context) -> bool:
    """Whether the depth should be shared among threads, a small result being too few tiles."""
    m, n = problem.m, problem.n
    how = arithmetic_for(problem.types, problem.element, context.isa)
    # Only rows that are copied can be put in order.
    foreign = problem.a.swapped and how.plain
    if problem.b is None or is_dot(problem) or foreign or problem.types.bf16_dot:
        return False
    if problem.k < context.knob("split_depth"):
        return False
    if not is_direct(problem, 1)[0]:
        return False
    # Block sums are written and read once per block: little beside the block's arithmetic while
    # those of a block stay in L2.
    few = m * n * problem.unit <= context.machine.l2.size // 2
    return few and reads_bias_in_place(problem)
