"""Routes through the loop nest (``kernels.nest``): blocked, row streaming, columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jitgemm.kernels.nest import nest, serial
from jitgemm.kernels.spec import BSource, GemmSpec
from jitgemm.lang.core import Function
from jitgemm.planner.blocking import Blocking, Limits, derive
from jitgemm.planner.choices import is_direct, reads_bias_in_place, staggers
from jitgemm.planner.context import Draft, aligned, ceil_div
from jitgemm.planner.lhs import ReadA, read_a, walk_a
from jitgemm.planner.problem import Problem
from jitgemm.planner.records import Modes, PackA, Panels, Part, WalkA

__all__ = ["Blocked", "Columns", "Loops", "RowStreaming"]


@dataclass(frozen=True, slots=True)
class Loops:
    """What the routes through the nest share: its loops, and what they read."""

    blocking: Blocking
    a: WalkA
    b: Panels
    workspace_b: int
    """Bytes of packed B, shared."""

    @classmethod
    def plan(cls, draft: Draft, read: ReadA, *, whole_depth: bool) -> Loops:
        """Choose the loop bounds, and place what is packed.

        Args:
            draft: what is settled.
            read: how A is read.
            whole_depth: a microtile goes down the whole depth at once.
        """
        spec, groups = draft.spec, draft.k_groups
        limits = Limits(
            groups, draft.threads, read.tile_rows,
            whole_depth=whole_depth, one_slice=not spec.arithmetic.plain,
            copies_a=read.pack is not PackA.INPLACE,
            gathers_a=read.pack is PackA.PANELS and spec.outer is None,
            row_step=1 if spec.outer is None else spec.lanes,
        )  # fmt: skip
        blocking = derive(draft, limits)
        panels, packed = _panels(draft, blocking), 0
        if draft.packs_b:
            packed = panels.panel_stride * ceil_div(blocking.cols_per_block, spec.nr)
        return cls(blocking, walk_a(draft, read.pack, blocking), panels, aligned(packed))

    @property
    def in_one_chunk(self) -> bool:
        """Whether there is one chunk, for which nothing is packed."""
        b = self.blocking
        chunks = b.row_chunks * b.col_chunks * b.slices * b.blocks
        return chunks == 1 and not b.pack_chunks and self.a.pack_a is PackA.INPLACE


def _panels(draft: Draft, blocking: Blocking) -> Panels:
    spec, b = draft.spec, draft.problem.b
    if spec.b is not BSource.PACKED:
        # The next micropanel is the next columns.
        assert b is not None
        return Panels(spec.nr // spec.components * b.col, spec.in_memory.panel_row)
    if draft.packs_b:
        return Panels(spec.panel_bytes(blocking.depth_per_slice))
    # A handle without depth still has the sums of its columns.
    depth = max(draft.k_groups, int(not spec.sums_columns))
    return Panels(spec.panel_bytes(depth), spec.in_memory.panel_row)


@dataclass(frozen=True, slots=True)
class _Nest(ABC):
    """A route through the nest."""

    loops: Loops
    reasons: tuple[str, ...]

    @property
    def blocking(self) -> Blocking:
        """Loop bounds."""
        return self.loops.blocking

    @property
    def a(self) -> WalkA:
        """How the microkernel walks A."""
        return self.loops.a

    @property
    def b(self) -> Panels:
        """Where micropanels of B are."""
        return self.loops.b

    @property
    def workspace_a_stride(self) -> int:
        """Bytes of scratch per thread."""
        return self.loops.a.workspace_a_stride

    @property
    def workspace_b(self) -> int:
        """Bytes of packed B, shared."""
        return self.loops.workspace_b

    @property
    @abstractmethod
    def modes(self) -> Modes:
        """Run-time modes of the nest."""

    @property
    def records(self) -> tuple[Part, ...]:
        """The route's part of a job record."""
        return self.blocking, self.a, self.b, self.modes

    def kernel(self, spec: GemmSpec, threads: int) -> Function:
        """What does the whole product."""
        return serial(spec) if threads == 1 and self.loops.in_one_chunk else nest(spec)


@dataclass(frozen=True, slots=True)
class Blocked(_Nest):
    """Blocks of rows, columns and depth, down the columns of micropanels of B."""

    direct: bool
    """Partial sums may spill to D; C and bias are read where they are."""

    @classmethod
    def plan(cls, draft: Draft) -> Blocked:
        """Plan the product so."""
        direct, through = is_direct(draft.problem, draft.k_groups)
        read = read_a(draft)
        loops = Loops.plan(draft, read, whole_depth=not direct or draft.spec.spills_to_buffer)
        reasons = (read.why,) if direct else (read.why, through)
        return cls(loops, reasons, direct)

    @property
    def modes(self) -> Modes:
        """Run-time modes of the nest."""
        return Modes(self.direct)

    def uniform(self, problem: Problem, spec: GemmSpec) -> bool:
        """Whether all microtiles are of one depth block and read and write operands in place."""
        b = self.blocking
        inplace = spec.b is BSource.INPLACE and self.a.pack_a is PackA.INPLACE and not spec.tiles
        single = b.row_chunks * b.col_chunks == 1 and problem.k <= problem.element.depth_block
        columns = b.group == 1 or problem.n * problem.components <= spec.nr
        shared = reads_bias_in_place(problem) and not spec.epilogue.operands
        return inplace and single and self.direct and columns and shared


@dataclass(frozen=True, slots=True)
class RowStreaming(_Nest):
    """One or two rows of A stream the rows of a large B (``kernels.streaming``)."""

    @classmethod
    def plan(cls, draft: Draft) -> RowStreaming:
        """Plan the product so."""
        read = read_a(draft)
        loops = Loops.plan(draft, read, whole_depth=False)
        why = f"rows: {draft.problem.m} stream the rows of B, which is larger than L2"
        return cls(loops, (read.why, why))

    @property
    def modes(self) -> Modes:
        """Run-time modes of the nest."""
        return Modes(direct=True, row_streaming=True)


@dataclass(frozen=True, slots=True)
class Columns(_Nest):
    """Few rows of A down the columns of B, transposed in registers (``kernels.columns``)."""

    direct: bool
    staggered: bool
    """Columns are walked some way behind each other."""

    @classmethod
    def plan(cls, draft: Draft) -> Columns:
        """Plan the product so."""
        direct, through = is_direct(draft.problem, draft.k_groups)
        read, staggered = read_a(draft), staggers(draft.problem, draft.context)
        reasons = [read.why]
        if staggered:
            reasons.append("columns: staggered, as B is larger than half of L3")
        if not direct:
            reasons.append(through)
        # They are walked from end to end.
        loops = Loops.plan(draft, read, whole_depth=True)
        return cls(loops, tuple(reasons), direct, staggered)

    @property
    def modes(self) -> Modes:
        """Run-time modes of the nest."""
        return Modes(self.direct, staggered=self.staggered)
