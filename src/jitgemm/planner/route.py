"""Routes: which kernel, which orientation, what to pack.

``make_plan`` is the planner's one door.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitgemm.kernels.spec import BSource, GemmSpec
from jitgemm.planner.blocking import Blocking, Limits, derive
from jitgemm.planner.choices import (
    Context,
    PackA,
    b_source,
    goes_apart,
    is_direct,
    is_dot,
    orientation,
    packs_a,
    reads_bias_in_place,
    spec_for,
    splits,
    sweeps,
    threads_for,
)
from jitgemm.planner.problem import Problem
from jitgemm.planner.splitting import Split, split_bounds

__all__ = ["Context", "GemmPlan", "PackA", "make_plan"]

_ALIGN = 64
# Fetching the rows of A of the chunk to come costs more per row than per line.  Tall products (f32,
# one thread) with it and without: depth 9, 9 columns from memory 12.1 and 9.7 ms, from L3 240 and
# 200 us; depth 32, 256 columns from memory 14.9 and 15.9 ms (Zen 5, medians of interleaved calls,
# 2026-11-30).
_SHORT_ROW = 128
# No machine addresses more than 2**47 bytes of its own.
_MAX_BYTES = 1 << 47


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """A finished plan: the kernel, the loop bounds, and the scratch they need."""

    problem: Problem
    """As the kernel sees it: normalised and perhaps transposed."""
    spec: GemmSpec
    blocking: Blocking
    threads: int
    direct: bool
    """Sums may rest in D; C and bias are read where they are."""
    pack_a: PackA
    pack_a_width: int
    a_row: int
    a_col: int
    sweep: bool
    """Few rows run along the rows of B."""
    apart: bool
    """Columns of B turned in registers lag behind each other."""
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
    split: Split | None = None
    """The depth is shared among threads."""
    dot: bool = False
    """One row times one column, summed in lanes."""
    wide_at: int = 0
    """Where a micropanel is widened, within a thread's scratch."""

    @property
    def swapped(self) -> bool:
        """The kernel computes ``D^T = B^T A^T``."""
        return self.problem.exchanged

    @property
    def uniform(self) -> bool:
        """All microtiles are of one depth block and read and write operands where they are."""
        p, b = self.problem, self.blocking
        inplace = self.spec.b is BSource.INPLACE and self.pack_a is PackA.INPLACE
        single = b.row_chunks * b.col_chunks == 1 and p.k <= p.element.depth_block
        plain = self.direct and not self.dot and not self.sweep and self.split is None
        columns = b.group == 1 or p.n * p.parts <= self.spec.nr
        return inplace and single and plain and columns and reads_bias_in_place(p)

    @property
    def workspace_bytes(self) -> int:
        """All scratch of one call: ``workspace_b + threads * workspace_a_stride``."""
        return self.workspace_b + self.threads * self.workspace_a_stride


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _check(problem: Problem, spec: GemmSpec, needed: int) -> None:
    # Judged by the size of one micropanel even where nothing is packed: operands that only strides
    # of zero make so deep would otherwise be multiplied for days.
    needed = max(needed, spec.panel_row * problem.k)
    if needed > _MAX_BYTES:
        raise MemoryError(
            f"jitgemm: workspace: m={problem.m}, n={problem.n}, k={problem.k} would need "
            f"{needed} bytes of scratch"
        )


def _deep(problem: Problem, spec: GemmSpec, context: Context, reasons: list[str]) -> GemmPlan:
    """The plan of a small result with a deep sum."""
    block = spec.element.depth_block
    threads = threads_for(problem.operations, context)
    bounds = split_bounds(spec, problem, context.machine, threads)
    # Within a depth block everything is as in a product that is no deeper.
    limits = Limits(1, spec.tile.mr, whole_depth=True)
    blocking = derive(spec, replace(problem, k=block), context.machine, limits)
    rows = -(-problem.m // threads)
    blocking = replace(blocking, rows_per_chunk=rows, row_chunks=-(-problem.m // rows))
    panel = spec.panel_row * block
    if spec.b is not BSource.PACKED:
        assert problem.b is not None
        panel = spec.nr // spec.parts * problem.b.col
    reasons.append(
        f"depth: {problem.m} x {problem.n} sums of {bounds.round_blocks} blocks at a time,"
        f" in {bounds.ranges} ranges, then added in ascending order"
    )
    # Block sums take the place of packed rows of A, which is read in place.
    per_thread = _aligned(-(-bounds.sums_bytes // threads))
    _check(problem, spec, threads * (per_thread + bounds.workspace_b_stride))
    return GemmPlan(
        problem=problem,
        spec=spec,
        blocking=blocking,
        threads=threads,
        direct=True,
        pack_a=PackA.INPLACE,
        pack_a_width=0,
        a_row=problem.a.row,
        a_col=problem.a.col,
        sweep=False,
        apart=False,
        rows_ahead=0,
        a_tile=blocking.tile_rows * problem.a.row,
        panel_stride=panel,
        slice_stride=0,
        workspace_a_stride=per_thread,
        workspace_b=_aligned(threads * bounds.workspace_b_stride),
        reasons=tuple(reasons),
        split=bounds,
    )


@dataclass(frozen=True, slots=True)
class _Walk:
    """How the microkernel walks A: strides in bytes, and what a copy of it takes per thread."""

    row: int
    col: int
    tile: int
    """From one microtile to the next."""
    width: int = 0
    workspace: int = 0


def _walk(problem: Problem, spec: GemmSpec, pack_a: PackA, blocking: Blocking) -> _Walk:
    unit, kc, rows = spec.unit, blocking.depth_per_slice, blocking.tile_rows
    if pack_a is PackA.PANELS:
        workspace = _aligned(blocking.rows_per_chunk * kc * unit)
        return _Walk(unit, rows * unit, rows * kc * unit, rows * spec.parts, workspace)
    if pack_a is PackA.ROWS:
        # An odd number of lines from row to row spreads the rows over all sets.
        words = kc + int(spec.sums_columns)  # a row's sum lies behind it
        row = (-(-words * unit // _ALIGN) | 1) * _ALIGN
        width = row // spec.element.bytes
        col = problem.a.col if spec.arithmetic is None else unit
        return _Walk(row, col, rows * row, width, blocking.rows_per_chunk * row)
    # In place: numbers of a word are side by side.
    col = problem.a.col if spec.arithmetic is None else unit
    return _Walk(problem.a.row, col, rows * problem.a.row)


def make_plan(problem: Problem, context: Context) -> GemmPlan:
    """Plan a product.

    Raises:
        MemoryError: the scratch of this shape is beyond any address space.
    """
    oriented, why = orientation(problem.normalized())
    reasons = [why]
    deep, element = splits(oriented, context), oriented.element
    # By ranges of depth B comes one depth block at a time.
    depth = min(oriented.k, element.depth_block) if deep else oriented.k
    source, why = b_source(replace(oriented, k=depth), context)
    reasons.append(why)
    spec = spec_for(oriented, source, context)
    if spec.arithmetic is not None:
        reasons.append(str(spec.arithmetic))
    if deep:
        return _deep(oriented, spec, context, reasons)
    dot = is_dot(oriented)
    threads = 1 if dot else threads_for(oriented.operations, context)
    if spec.arithmetic is not None:
        oriented = replace(oriented, k=-(-oriented.k // spec.arithmetic.group), depth=oriented.k)
    direct, through = is_direct(oriented)
    pack_a, most_rows, why = packs_a(oriented, spec, context)
    reasons.append(why)
    # Columns turned in registers are walked from end to end.
    whole = source is BSource.COLUMNS or not direct or spec.rests_apart
    limits = Limits(
        threads, most_rows, whole_depth=whole, one_slice=spec.arithmetic is not None,
        copies_a=pack_a is not PackA.INPLACE, gathers_a=pack_a is PackA.PANELS,
    )  # fmt: skip
    sweep = source is BSource.INPLACE and direct and sweeps(oriented, context)
    if sweep:
        reasons.append(f"rows: {oriented.m} sweep along the rows of B, which is larger than L2")
    apart = source is BSource.COLUMNS and goes_apart(oriented, context)
    if apart:
        reasons.append("columns: lag behind each other, as B is larger than half of L3")
    blocking = derive(spec, oriented, context.machine, limits)
    if not direct:
        reasons.append(through)
    kc = blocking.depth_per_slice
    per_call = source is BSource.PACKED and oriented.b is not None
    # Packed, the next micropanel lies a whole depth further; in place it is the next columns.
    # A handle without depth still has the sums of its columns.
    panel = spec.panel_bytes(kc if per_call else max(oriented.k, int(not spec.sums_columns)))
    if source is not BSource.PACKED:
        assert oriented.b is not None
        panel = spec.nr // spec.parts * oriented.b.col
    packed_b = panel * -(-blocking.cols_per_block // spec.nr) if per_call else 0
    walk = _walk(oriented, spec, pack_a, blocking)
    # With one chunk per range of rows, a thread's next ticket is about `threads` further on.
    rows_ahead = blocking.rows_per_chunk * threads if blocking.col_chunks == 1 else 0
    if oriented.k * spec.unit < _SHORT_ROW:
        rows_ahead = 0
    wide = _aligned(blocking.depth_step * spec.panel_row) if spec.widens_panels else 0
    _check(oriented, spec, packed_b + threads * (walk.workspace + wide))
    return GemmPlan(
        problem=oriented,
        spec=spec,
        blocking=blocking,
        threads=threads,
        direct=direct,
        pack_a=pack_a,
        pack_a_width=walk.width,
        sweep=sweep,
        apart=apart,
        a_row=walk.row,
        a_col=walk.col,
        rows_ahead=rows_ahead,
        a_tile=walk.tile,
        panel_stride=panel,
        slice_stride=0 if per_call else spec.in_memory.panel_row,
        workspace_a_stride=walk.workspace + wide,
        workspace_b=_aligned(packed_b),
        reasons=tuple(reasons),
        dot=dot,
        wide_at=walk.workspace,
    )
