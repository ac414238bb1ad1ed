"""How A is read: in place by broadcast, or a copy of a chunk's rows."""

from __future__ import annotations

from dataclasses import dataclass

from jitgemm.kernels.arithmetic import Arithmetic
from jitgemm.kernels.spec import GemmSpec
from jitgemm.planner.blocking import Blocking
from jitgemm.planner.context import Context, Draft, aligned, ceil_div
from jitgemm.planner.problem import Problem
from jitgemm.planner.records import PackA, WalkA

__all__ = ["ReadA", "copied_row", "read_a", "reads_vectors", "walk_a"]

# Micropanels of B from which packing an A pays whose lines would fill L1.  Time in place over
# time packed, AVX2 (6 rows a tile), f32, k = 2048, columns of A 240 to 2000 bytes: 4 micropanels
# 0.5 to 0.7, 32 of them 1.03 to 1.6, 39 of them 1.3; f64 with 64 of them 1.06 to 1.12
# (benchmarks/knobs.py, Zen 3 VM, 2026-12-01).
_PANELS_TO_GATHER = 32
# Micropanels of B from which packing an A pays that vectors of its rows are read from then.  An
# estimate from counts of instructions: transposing costs about one per number, and each micropanel
# saves a quarter of one (5 loads instead of 11 for 24 multiply-adds of 8 rows).
_PANELS_FOR_LANES = 8
# Two multiply-adds per cycle, four cycles of latency each, and half as many to spare.
_SUMS_TO_HIDE_LATENCY = 12
# Fetching the rows of A of the chunk to come costs more per row than per line.  Tall products (f32,
# one thread) with it and without: depth 9, 9 columns from memory 12.1 and 9.7 ms, from L3 240 and
# 200 us; depth 32, 256 columns from memory 14.9 and 15.9 ms (Zen 5, medians of interleaved calls,
# 2026-11-30).
_SHORT_ROW = 128
# How many times the ways of a set the lines of a walk must be before packing them pays: between 16
# and 24 lines for 12 ways (see `_steps_collide`).
_WAYS_OVERRUN = 1.5
_LINE = 64


@dataclass(frozen=True, slots=True)
class ReadA:
    """How A is read, and why."""

    pack: PackA
    tile_rows: int
    """Most rows of a microtile then."""
    why: str


def read_a(draft: Draft) -> ReadA:
    """Choose how A is read."""
    problem, spec, context = draft.problem, draft.spec, draft.context
    mr, how = spec.tile.mr, spec.arithmetic
    if spec.outer is not None:
        return _by_columns(problem, spec)
    if not how.plain:
        return _k_groups(problem, spec, how, context)
    if problem.a.swapped:
        return ReadA(PackA.PANELS, mr, "A: packed per chunk, which puts its bytes in order")
    reuse = -(-problem.n * problem.components // spec.nr)
    stride, enough = context.knob("lhs_pack_stride"), context.knob("lhs_pack_reuse")
    row, col = abs(problem.a.row), abs(problem.a.col)
    found = ReadA(PackA.INPLACE, mr, "A: read in place by broadcast")
    if problem.m < mr or reuse < enough or problem.k < spec.lanes:
        found = ReadA(PackA.INPLACE, mr, f"A: read in place ({reuse} micropanels reuse it)")
    elif col >= stride and _pages_met(problem, context) >= context.knob("lhs_pack_pages"):
        why = f"A: packed per chunk, a depth step of {col} bytes wastes TLB entries"
        found = ReadA(PackA.PANELS, mr, why)
    elif col >= stride and _steps_collide(problem, context):
        why = f"A: packed per chunk, its depth steps of {col} bytes collide in L1"
        found = ReadA(PackA.PANELS, mr, why)
    elif reuse >= _PANELS_TO_GATHER and _lines_wasted(problem, mr, context) * 4 >= 1:
        why = f"A: packed per chunk, in place its lines would take L1 from B ({reuse} micropanels)"
        found = ReadA(PackA.PANELS, mr, why)
    elif row != problem.unit and reuse >= _PANELS_FOR_LANES and _by_lane(problem, spec):
        why = f"A: packed per chunk, for vectors of its rows ({reuse} micropanels)"
        found = ReadA(PackA.PANELS, mr, why)
    elif problem.a.col == problem.unit and row:
        found = _colliding_rows(problem, spec, context)
    return found


def _by_columns(problem: Problem, spec: GemmSpec) -> ReadA:
    """How A is read by a unit of outer products, which takes neighbouring rows together."""
    mr, plain = spec.tile.mr, spec.arithmetic.plain
    if plain and problem.a.row == problem.unit and not problem.a.swapped:
        return ReadA(PackA.INPLACE, mr, "A: read in place, its columns are contiguous")
    kind = "" if plain else f" of k-groups of {spec.arithmetic.group} {spec.arithmetic.a_element}"
    return ReadA(PackA.PANELS, mr, f"A: packed per chunk, as micropanels{kind}")


def _by_lane(problem: Problem, spec: GemmSpec) -> bool:
    """Whether multiply-adds of these numbers take a lane of a vector for all of them."""
    # No set multiplies 64-bit integers so.
    return spec.isa.by_lane and not (problem.element.integral and problem.element.bits == 64)


def reads_vectors(problem: Problem, spec: GemmSpec, walk: WalkA) -> bool:
    """Whether a microtile's rows lie side by side where that is of use, packed or in place."""
    fill = problem.m * spec.components >= spec.lanes
    side_by_side = spec.arithmetic.plain and walk.a_row == spec.unit
    return fill and side_by_side and _by_lane(problem, spec)


def _steps(problem: Problem) -> int:
    """Depth steps of a microtile's walk of A, before the next one walks the same pages."""
    return min(problem.k, problem.element.depth_block)


def _pages_met(problem: Problem, context: Context) -> int:
    """Pages that a microtile's walk of A touches in a depth block: its span.

    As many as fit the TLB are met again by the next microtile, and by the next micropanel: however
    long a step is, nothing is wasted then.
    """
    steps = _steps(problem)
    return min(steps, -(-steps * abs(problem.a.col) // context.machine.page))


def _steps_collide(problem: Problem, context: Context) -> bool:
    """Whether the lines of a microtile's walk push each other out of L1, sharing too few sets.

    Time in place over time packed, f32, A column-major with steps of 16384 bytes, all in one set
    of 12 ways, prepacked B of 1024 columns: 16 steps 0.92, 24 1.09, 32 1.07, 48 1.06 (Zen 5 VM, one
    thread, lowest of 30 interleaved rounds, 2026-12-01).
    """
    l1 = context.machine.l1
    return _steps(problem) > _WAYS_OVERRUN * l1.ways * l1.sets(abs(problem.a.col))


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


def _k_groups(problem: Problem, spec: GemmSpec, how: Arithmetic, context: Context) -> ReadA:
    """How an A of other numbers than the sums' is read: in place where it has k-groups."""
    mr, a = spec.tile.mr, problem.a
    whole = a.col == how.types.a.bytes and problem.k % how.group == 0
    if how.copies_a or not whole or a.swapped:
        why = f"A: rows copied per chunk, as {how.a_element}"
        if how.group > 1:
            why = f"A: rows copied per chunk, as k-groups of {how.group} {how.a_element}"
        return ReadA(PackA.ROWS, mr, why)
    if spec.epilogue.zero_b:
        why = "A: rows copied per chunk, with their sums, for B's zero points"
        return ReadA(PackA.ROWS, mr, why)
    if a.row and not how.tiles:
        return _colliding_rows(problem, spec, context)
    return ReadA(PackA.INPLACE, mr, "A: read in place by broadcast")


def _colliding_rows(problem: Problem, spec: GemmSpec, context: Context) -> ReadA:
    """How an A with contiguous rows is read, which may collide in L1."""
    mr, l1, row = spec.tile.mr, context.machine.l1, abs(problem.a.row)
    # Rows whose distance is a multiple of the way size share sets: met at every depth step,
    # they must leave room for B and D.  Lower tiles cost less than a copy while enough sums
    # remain to hide the latency of a multiply-add (f32 at 1024, 12 ways: 8 and 10 rows in place
    # 97 %, rows copied 94 %; f64 at 2048: 8 rows 98 %, 10 rows 96 %; Zen 5, 2026-11-30).
    fit = (l1.ways - 4) * l1.sets(row)
    # Where L3 is far the copy is worth its cost, as it also brings the rows into L2.  GFLOP/s in
    # place, copied, PyTorch's: f32 1024 152, 157, 158; 2048 141, 152, 158; f64 1024 67, 73, 79;
    # 2048 57, 74, 78 (Emerald Rapids, one thread, best of 15, 2026-11-30).
    enough = fit * problem.components * spec.tile.nr_regs >= _SUMS_TO_HIDE_LATENCY
    if fit < mr and enough and not context.machine.far_l3:
        return ReadA(PackA.INPLACE, fit, f"A: read in place, {fit} rows at a time share L1 sets")
    if fit < mr:
        why = f"A: rows copied per chunk, their distance {row} collides in L1"
        return ReadA(PackA.ROWS, mr, why)
    return ReadA(PackA.INPLACE, mr, "A: read in place by broadcast")


def copied_row(spec: GemmSpec, depth: int) -> int:
    """Bytes from one copied row of ``depth`` k-groups to the next."""
    steps = depth + int(spec.sums_columns)  # a row's sum lies behind it
    # An odd number of lines from row to row spreads the rows over all sets.
    return aligned(steps * spec.unit) | _LINE


def walk_a(draft: Draft, pack: PackA, blocking: Blocking) -> WalkA:
    """How the microkernel walks what :func:`read_a` chose, and the scratch of a thread."""
    problem, spec = draft.problem, draft.spec
    unit, kc, rows = spec.unit, blocking.depth_per_slice, blocking.tile_rows
    # Numbers of a k-group are side by side.
    col = problem.a.col if spec.arithmetic.plain else unit
    row, tile, width, copied = problem.a.row, rows * problem.a.row, 0, 0
    first = 0  # bytes of a row that is copied before it is packed
    if pack is PackA.PANELS:
        steps = kc + int(spec.sums_columns)
        row, col, tile, width = unit, rows * unit, rows * steps * unit, rows * spec.components
        copied = aligned(ceil_div(blocking.rows_per_chunk, rows) * tile)
        if not spec.arithmetic.plain:
            first = copied_row(spec, kc)
            copied += rows * first
    elif pack is PackA.ROWS:
        row = copied_row(spec, kc)
        tile, width, copied = rows * row, row // spec.element.bytes, blocking.rows_per_chunk * row
    upconverted = aligned(blocking.depth_step * spec.panel_row) if spec.upconverts_panels else 0
    return WalkA(
        a_row=row,
        a_col=col,
        a_tile=tile,
        pack_a=pack,
        pack_a_width=width,
        copied_row=first,
        upconverted_at=copied,
        rows_ahead=_rows_ahead(draft, blocking),
        workspace_a_stride=copied + upconverted,
    )


def _rows_ahead(draft: Draft, blocking: Blocking) -> int:
    """With one chunk per range of rows, a thread's next ticket is about ``threads`` further on."""
    short = draft.k_groups * draft.spec.unit < _SHORT_ROW
    return 0 if short or blocking.col_chunks > 1 else blocking.rows_per_chunk * draft.threads
