"""The route that shares the depth among threads (``kernels.split``)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitgemm.kernels.spec import BSource, GemmSpec
from jitgemm.kernels.split import split
from jitgemm.lang.core import Function
from jitgemm.planner.blocking import Blocking, Limits, derive
from jitgemm.planner.context import Draft, aligned, ceil_div
from jitgemm.planner.lhs import ReadA, copied_row, read_a
from jitgemm.planner.records import Modes, PackA, Panels, Part, WalkA

__all__ = ["Split", "SplitDepth", "split_bounds"]

# Ranges of depth per thread and round: enough to even out disturbances.
_RANGES_PER_THREAD = 4


@dataclass(frozen=True, slots=True)
class Split(Part):
    """Rounds of depth blocks: a part of a job record."""

    round_blocks: int
    ranges: int
    range_blocks: int
    sums_row: int
    sums_stride: int
    workspace_b_stride: int
    copied_rows: int = 0

    @property
    def sums_bytes(self) -> int:
        """Memory for the block sums of a round and the sum of the rounds before."""
        return (self.round_blocks + 1) * self.sums_stride


def split_bounds(draft: Draft, row_bytes: int, tile_rows: int) -> Split:
    """Choose them: the block sums of a round stay in the threads' L2 caches, at most half of each.

    Args:
        draft: the problem, its kernel, how many threads share the work.
        row_bytes: of a copied row of A over a depth block; 0: A is read in place.
        tile_rows: of a microtile.
    """
    spec, problem, threads = draft.spec, draft.problem, draft.threads
    block = spec.element.depth_block
    blocks = max(1, ceil_div(draft.k_groups, block))
    row = problem.n * problem.unit
    stride = aligned(problem.m * row)
    fit = threads * draft.context.machine.l2.size // 2 // stride
    per_round = min(blocks, max(fit, _RANGES_PER_THREAD * threads))
    range_blocks = ceil_div(per_round, 1 if threads == 1 else _RANGES_PER_THREAD * threads)
    packed = 0
    if spec.b is BSource.PACKED:
        packed = ceil_div(problem.n * problem.components, spec.nr) * spec.panel_bytes(block)
    copied = 0
    if row_bytes:
        # As in other products, rows that all columns meet stay in L2.
        fit = draft.context.machine.l2.size // 4 // row_bytes // tile_rows
        copied = min(max(1, fit) * tile_rows, problem.m)
    return Split(
        round_blocks=per_round,
        ranges=ceil_div(per_round, range_blocks),
        range_blocks=range_blocks,
        sums_row=row,
        sums_stride=stride,
        workspace_b_stride=aligned(packed) + copied * row_bytes,
        copied_rows=copied,
    )


def _read(draft: Draft) -> ReadA:
    """How A is read: words of sums are in place, whatever their strides."""
    if draft.spec.arithmetic.plain:
        return ReadA(PackA.INPLACE, draft.spec.tile.mr, "A: read in place by broadcast")
    return read_a(draft)


@dataclass(frozen=True, slots=True)
class SplitDepth:
    """A small result with a deep sum: block sums by ranges of depth, then added in order."""

    bounds: Split
    blocking: Blocking
    """Within a depth block; chunks of rows are those of adding block sums."""
    a: WalkA
    """Block sums take the place of packed rows of A; copied rows are behind packed B."""
    b: Panels
    workspace_b: int
    """Bytes of packed B and copied rows: each thread has those of a depth block for itself."""
    reasons: tuple[str, ...]

    @classmethod
    def plan(cls, draft: Draft) -> SplitDepth:
        """Plan the product so."""
        problem, spec, threads = draft.problem, draft.spec, draft.threads
        block, read = spec.element.depth_block, _read(draft)
        # Within a depth block everything is as in a product that is no deeper.
        blocking = derive(draft, Limits(block, 1, read.tile_rows, whole_depth=True))
        row = copied_row(spec, block) if read.pack is PackA.ROWS else 0
        bounds = split_bounds(draft, row, blocking.tile_rows)
        rows = ceil_div(problem.m, threads)
        blocking = replace(blocking, rows_per_chunk=rows, row_chunks=ceil_div(problem.m, rows))
        panel = spec.panel_bytes(block)
        if spec.b is not BSource.PACKED:
            assert problem.b is not None
            panel = spec.nr // spec.components * problem.b.col
        per_thread = aligned(ceil_div(bounds.sums_bytes, threads))
        why = (
            f"depth: {problem.m} x {problem.n} sums of {bounds.round_blocks} blocks at a time,"
            f" in {bounds.ranges} ranges, then added in ascending order"
        )
        a = WalkA.in_place(problem, blocking.tile_rows, per_thread)
        if not spec.arithmetic.plain:
            step = row or problem.a.row
            a = replace(a, a_row=step, a_col=spec.unit, a_tile=blocking.tile_rows * step)
        return cls(
            bounds=bounds,
            blocking=blocking,
            a=a,
            b=Panels(panel),
            workspace_b=aligned(threads * bounds.workspace_b_stride),
            reasons=(why,) if spec.arithmetic.plain else (read.why, why),
        )

    @property
    def workspace_a_stride(self) -> int:
        """Bytes of scratch per thread."""
        return self.a.workspace_a_stride

    @property
    def records(self) -> tuple[Part, ...]:
        """The route's part of a job record."""
        return self.blocking, self.bounds, self.a, self.b, Modes(direct=True)

    def kernel(self, spec: GemmSpec, threads: int) -> Function:  # noqa: ARG002  # as other routes
        """What does the whole product."""
        return split(spec)
