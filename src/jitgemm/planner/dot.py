"""The route of one row times one column (``kernels.dot``)."""

from __future__ import annotations

from dataclasses import dataclass

from jitgemm.kernels.dot import dot
from jitgemm.kernels.spec import GemmSpec
from jitgemm.lang.core import Function
from jitgemm.planner.blocking import Blocking
from jitgemm.planner.context import Draft
from jitgemm.planner.records import Part, WalkA

__all__ = ["Dot"]


@dataclass(frozen=True, slots=True)
class Dot:
    """A sum in lanes, on one thread and without scratch."""

    a: WalkA
    blocking: Blocking
    """One chunk: its loop has bounds of its own, and no part of the job says them."""
    reasons: tuple[str, ...] = ("A: read in place, whatever its strides and byte order",)
    workspace_a_stride: int = 0
    workspace_b: int = 0

    @classmethod
    def plan(cls, draft: Draft) -> Dot:
        """Plan the product so."""
        k, nr = draft.k_groups, draft.spec.nr
        chunk = Blocking(
            tile_rows=1, group=1, rows_per_chunk=1, row_chunks=1, cols_per_chunk=nr, col_chunks=1,
            depth_per_slice=k, slices=1, depth_step=k, cols_per_block=nr, blocks=1, pack_chunks=0,
            pack_cols=nr,
        )  # fmt: skip
        return cls(WalkA.in_place(draft.problem, 1), chunk)

    @property
    def records(self) -> tuple[Part, ...]:
        """The route's part of a job record."""
        return (self.a,)

    def kernel(self, spec: GemmSpec, threads: int) -> Function:  # noqa: ARG002  # as other routes
        """What does the whole product."""
        return dot(spec)
