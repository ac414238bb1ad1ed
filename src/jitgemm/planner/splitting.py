"""Loop bounds of a product whose depth is shared among threads (``kernels.split``)."""

from __future__ import annotations

from dataclasses import dataclass

from jitgemm.kernels.spec import BSource, GemmSpec
from jitgemm.planner.machine import Machine
from jitgemm.planner.problem import Problem

__all__ = ["Split", "split_bounds"]

_LINE = 64
# Ranges of depth per thread and round: enough to even out disturbances.
_RANGES_PER_THREAD = 4


@dataclass(frozen=True, slots=True)
class Split:
    """Rounds of depth blocks; the names are those of the job record."""

    round_blocks: int
    ranges: int
    range_blocks: int
    sums_row: int
    sums_stride: int
    workspace_b_stride: int

    @property
    def sums_bytes(self) -> int:
        """Memory for the block sums of a round and the sum of the rounds before."""
        return (self.round_blocks + 1) * self.sums_stride


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def split_bounds(spec: GemmSpec, problem: Problem, machine: Machine, threads: int) -> Split:
    """Choose them: the block sums of a round stay in the threads' L2 caches, at most half of each.

    Args:
        spec: the kernel.
        problem: the problem in the kernel's orientation.
        machine: cache sizes.
        threads: how many share the work.
    """
    block = spec.element.depth_block
    blocks = max(1, _ceil(problem.k, block))
    row = problem.n * problem.unit
    stride = _ceil(problem.m * row, _LINE) * _LINE
    fit = threads * machine.l2.size // 2 // stride
    per_round = min(blocks, max(fit, _RANGES_PER_THREAD * threads))
    range_blocks = _ceil(per_round, 1 if threads == 1 else _RANGES_PER_THREAD * threads)
    packed = 0
    if spec.b is BSource.PACKED:
        packed = _ceil(problem.n * problem.parts, spec.nr) * spec.panel_row * block
    return Split(
        round_blocks=per_round,
        ranges=_ceil(per_round, range_blocks),
        range_blocks=range_blocks,
        sums_row=row,
        sums_stride=stride,
        workspace_b_stride=packed,
    )
