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
    spec_for,
    splits,
    sweeps,
    threads_for,
)
from jitgemm.planner.problem import Problem
from jitgemm.planner.splitting import Split, split_bounds

__all__ = ["Context", "GemmPlan", "PackA", "make_plan"]

_ALIGN = 64
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

    @property
    def swapped(self) -> bool:
        """The kernel computes ``D^T = B^T A^T``."""
        return self.problem.exchanged

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
    spec = spec_for(oriented, source, context.isa)
    unit = spec.unit
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
    limits = Limits(threads, most_rows, whole_depth=whole, one_slice=spec.arithmetic is not None)
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
    panel = spec.panel_bytes(kc if per_call else max(oriented.k, 1))
    if source is not BSource.PACKED:
        assert oriented.b is not None
        panel = spec.nr // spec.parts * oriented.b.col
    packed_b = panel * -(-blocking.cols_per_block // spec.nr) if per_call else 0
    a_row, width, packed_a = oriented.a.row, 0, 0
    a_col = oriented.a.col if spec.arithmetic is None else unit
    if pack_a is PackA.PANELS:
        width, a_row = blocking.tile_rows * spec.parts, unit
        a_col = blocking.tile_rows * unit
        packed_a = _aligned(blocking.rows_per_chunk * kc * unit)
    elif pack_a is PackA.ROWS:
        # An odd number of lines from row to row spreads the rows over all sets.
        words = kc + int(spec.sums_columns)  # a row's sum lies behind it
        a_row = (-(-words * unit // _ALIGN) | 1) * _ALIGN
        a_col = unit
        width = a_row // spec.element.bytes
        packed_a = blocking.rows_per_chunk * a_row
    in_panels = pack_a is PackA.PANELS
    a_tile = blocking.tile_rows * (kc * unit if in_panels else a_row)
    _check(oriented, spec, packed_b + threads * packed_a)
    return GemmPlan(
        problem=oriented,
        spec=spec,
        blocking=blocking,
        threads=threads,
        direct=direct,
        pack_a=pack_a,
        pack_a_width=width,
        sweep=sweep,
        apart=apart,
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
        dot=dot,
    )
