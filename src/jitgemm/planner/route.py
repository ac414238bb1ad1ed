"""Routes: which kernel, which orientation, what to pack.

``make_plan`` is the planner's one door.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from jitgemm.isa.tables import Isa
from jitgemm.kernels.registry import tile_for
from jitgemm.kernels.spec import BSource, GemmSpec
from jitgemm.kernels.sweep import SWEEP_ROWS
from jitgemm.planner.blocking import Blocking, Limits, derive
from jitgemm.planner.machine import Machine
from jitgemm.planner.problem import Problem

__all__ = ["Context", "GemmPlan", "PackA", "make_plan", "threads_for"]

_ALIGN = 64
_PAGE = 4096
# No machine addresses more than 2**47 bytes of its own.
_MAX_BYTES = 1 << 47
# Two multiply-adds per cycle, four cycles of latency each, and half as many to spare.
_SUMS_TO_HIDE_LATENCY = 12


@dataclass(frozen=True, slots=True)
class Context:
    """What a plan depends on besides the problem."""

    isa: Isa
    machine: Machine
    threads: int
    knob: Callable[[str], int]


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """A finished plan: the kernel, the loop bounds, and the scratch they need."""

    problem: Problem
    """As the kernel sees it: normalised and perhaps transposed."""
    spec: GemmSpec
    blocking: Blocking
    threads: int
    swapped: bool
    """The kernel computes ``D^T = B^T A^T``."""
    direct: bool
    """Sums may rest in D, which has unit column stride."""
    pack_a: PackA
    pack_a_width: int
    a_row: int
    a_col: int
    sweep: bool
    """Few rows run along the rows of B."""
    rows_ahead: int
    a_tile: int
    """Strides by which the microkernel walks A, and from one microtile to the next."""
    panel_stride: int
    slice_stride: int
    workspace_a_stride: int
    """Bytes of packed A per thread."""
    workspace_b: int
    """Bytes of packed B, shared."""
    reasons: tuple[str, ...]

    @property
    def workspace_bytes(self) -> int:
        """All scratch of one call: ``workspace_b + threads * workspace_a_stride``."""
        return self.workspace_b + self.threads * self.workspace_a_stride


def threads_for(operations: int, context: Context) -> int:
    """Workers worth waking for this much arithmetic (at most what was asked for)."""
    per_thread = max(1, context.knob("parallel_flops"))
    return max(1, min(context.threads, operations // per_thread))


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _orientation(problem: Problem) -> tuple[Problem, bool, str]:
    size = problem.element.bytes
    if problem.b is None:
        return problem, False, "a prepacked operand ties the orientation"
    if problem.epilogue.bias:
        return problem, False, "a bias per column ties the orientation"
    if problem.d.col != size and problem.d.row == size:
        return problem.transposed(), True, "D is column-major: computed as D^T = B^T A^T"
    if problem.m == 1 and problem.b.col != size and problem.b.row == size:
        return problem.transposed(), True, "one row and a column-major B: B is read in place as A"
    return problem, False, "D is row-major: computed as given"


def _b_source(problem: Problem, context: Context) -> tuple[BSource, str]:
    if problem.b is None:
        return BSource.PACKED, "B: prepacked micropanels"
    if problem.b.col != problem.element.bytes:
        return BSource.PACKED, "B: packed per call, because its rows are not contiguous"
    limit, where = _rows_in_place(problem, context)
    if problem.m <= limit:
        return BSource.INPLACE, f"B: read in place, {where}; packing pays from {limit + 1} rows"
    return BSource.PACKED, f"B: packed per call, {where}; in place pays up to {limit} rows"


def _rows_in_place(problem: Problem, context: Context) -> tuple[int, str]:
    """Up to how many rows of A a row-major B is better read in place, and why.

    Measured by `benchmarks/knobs.py` (Zen 5, 32 MiB of L3, 2026-11-30; table in RESULTS.md): up to
    4 MiB in place wins to 512 rows and beyond; beyond half of L3 it loses as soon as a second tile
    rereads B; rows a multiple of a page apart collide in every cache.
    """
    assert problem.b is not None
    rows, l3 = context.knob("rhs_pack_rows"), context.machine.l3.size
    size = problem.k * problem.n * problem.element.bytes
    if size > l3 // 2:
        return tile_for(problem.element, context.isa).mr, "larger than half of L3"
    if problem.b.row % _PAGE == 0:
        return rows, "rows a multiple of a page apart"
    if size <= l3 // 8:
        return 16 * rows, "small beside L3"
    return 2 * rows, "large beside L3"


def _sweeps(problem: Problem, context: Context) -> bool:
    """Whether few rows should run along the rows of an unpacked B instead of down its columns."""
    size = problem.k * problem.n * problem.element.bytes
    long_rows = problem.n * problem.element.bytes >= context.knob("sweep_row_bytes")
    return (
        0 < problem.k and problem.m <= SWEEP_ROWS and long_rows and size > context.machine.l2.size
    )


class PackA(Enum):
    """How rows of A reach the microkernel; the numbers are those of the job record."""

    INPLACE = 0
    PANELS = 1
    ROWS = 2


def _packs_a(problem: Problem, spec: GemmSpec, context: Context) -> tuple[PackA, int, str]:
    """How A is read, the most rows of a microtile then, and why."""
    mr = spec.tile.mr
    reuse = -(-problem.n // spec.nr)
    stride, enough = context.knob("lhs_pack_stride"), context.knob("lhs_pack_reuse")
    row, col = abs(problem.a.row), abs(problem.a.col)
    if problem.m < mr or reuse < enough or problem.k < spec.lanes:
        return PackA.INPLACE, mr, f"A: read in place ({reuse} micropanels reuse it)"
    if col >= stride:
        why = f"A: packed per chunk, a depth step of {col} bytes wastes TLB entries"
        return PackA.PANELS, mr, why
    if problem.a.col == spec.element.bytes and row:
        l1 = context.machine.l1
        way = max(l1.line, l1.size // l1.ways)
        # Rows whose distance is a multiple of the way size share sets: met at every depth step,
        # they must leave room for B and D.  Lower tiles cost less than a copy while enough sums
        # remain to hide the latency of a multiply-add (f32 at 1024, 12 ways: 8 and 10 rows in place
        # 97 %, rows copied 94 %; f64 at 2048: 8 rows 98 %, 10 rows 96 %; Zen 5, 2026-11-30).
        sets = max(1, way // math.gcd(row, way))
        fit = (l1.ways - 4) * sets
        if fit < mr and fit * spec.tile.nr_regs >= _SUMS_TO_HIDE_LATENCY:
            return PackA.INPLACE, fit, f"A: read in place, {fit} rows at a time share L1 sets"
        if fit < mr:
            return PackA.ROWS, mr, f"A: rows copied per chunk, their distance {row} collides in L1"
    return PackA.INPLACE, mr, "A: read in place by broadcast"


def make_plan(problem: Problem, context: Context) -> GemmPlan:
    """Plan a product.

    Raises:
        MemoryError: the scratch of this shape is beyond any address space.
    """
    oriented, swapped, why = _orientation(problem.normalized())
    reasons = [why]
    element, size = oriented.element, oriented.element.bytes
    source, why = _b_source(oriented, context)
    reasons.append(why)
    spec = GemmSpec(element, context.isa, tile_for(element, context.isa), source, oriented.epilogue)
    threads = threads_for(oriented.operations, context)
    unit = oriented.d.col == size and (oriented.c is None or oriented.c.col == size)
    resting = oriented.k <= element.depth_block or not (oriented.in_place and oriented.c)
    direct = unit and resting
    pack_a, most_rows, why = _packs_a(oriented, spec, context)
    reasons.append(why)
    limits = Limits(threads, most_rows, whole_depth=not direct)
    sweep = source is BSource.INPLACE and direct and _sweeps(oriented, context)
    if sweep:
        reasons.append(f"rows: {oriented.m} sweep along the rows of B, which is larger than L2")
    blocking = derive(spec, oriented, context.machine, limits)
    if not direct:
        reasons.append(
            "D: through a tile buffer, " + ("because C is D" if unit else "it has no unit stride")
        )
    kc = blocking.depth_per_slice
    per_call = source is BSource.PACKED and oriented.b is not None
    # In place, the next micropanel is the next columns; packed, it lies a whole depth further.
    span = 1 if source is BSource.INPLACE else kc if per_call else max(oriented.k, 1)
    panel = spec.panel_row * span
    packed_b = panel * -(-blocking.cols_per_block // spec.nr) if per_call else 0
    a_row, a_col, width, packed_a = oriented.a.row, oriented.a.col, 0, 0
    if pack_a is PackA.PANELS:
        width, a_row = blocking.tile_rows, size
        a_col = width * size
        packed_a = _aligned(blocking.rows_per_chunk * kc * size)
    elif pack_a is PackA.ROWS:
        # An odd number of lines from row to row spreads the rows over all sets.
        a_row = (-(-kc * size // _ALIGN) | 1) * _ALIGN
        width = a_row // size
        packed_a = blocking.rows_per_chunk * a_row
    in_panels = pack_a is PackA.PANELS
    a_tile = blocking.tile_rows * (kc * size if in_panels else a_row)
    # Judged by the size of one micropanel even where nothing is packed: operands that only strides
    # of zero make so deep would otherwise be multiplied for days.
    needed = max(packed_b + threads * packed_a, spec.panel_row * oriented.k)
    if needed > _MAX_BYTES:
        raise MemoryError(
            f"jitgemm: workspace: m={problem.m}, n={problem.n}, k={problem.k} would need "
            f"{needed} bytes of scratch"
        )
    return GemmPlan(
        problem=oriented,
        spec=spec,
        blocking=blocking,
        threads=threads,
        swapped=swapped,
        direct=direct,
        pack_a=pack_a,
        pack_a_width=width,
        sweep=sweep,
        a_row=a_row,
        a_col=a_col,
        # With one chunk per range of rows, a thread's next ticket is about `threads` further on.
        rows_ahead=blocking.rows_per_chunk * threads if blocking.col_chunks == 1 else 0,
        a_tile=a_tile,
        panel_stride=panel,
        slice_stride=0 if per_call else spec.panel_row,
        workspace_a_stride=packed_a,
        workspace_b=_aligned(packed_b),
        reasons=tuple(reasons),
    )
