"""Parts of a job record that a plan fills.

A part's fields are slots of :data:`~jitgemm.kernels.job.JOB`; no slot is in two parts.  Blocking
(``planner.blocking``) and the bounds of a split (``planner.splitting``) are parts too.  What a
route leaves out is zero.  All strides and offsets are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

from jitgemm.planner.problem import Operand, Problem

__all__ = ["ByteOrder", "Modes", "PackA", "Panels", "Part", "Sizes", "Strides", "WalkA"]

_NONE = Operand(0, 0)


class PackA(IntEnum):
    """How rows of A reach the microkernel."""

    INPLACE = 0
    PANELS = 1
    """Packed as micropanels."""
    ROWS = 2
    """Copied side by side."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some slots of a job record: the fields of a subclass."""

    @property
    def slots(self) -> dict[str, int]:
        """What they hold, by name."""
        return {x.name: int(getattr(self, x.name)) for x in fields(self)}


@dataclass(frozen=True, slots=True)
class Sizes(Part):
    """Of the product, in the kernel's orientation."""

    m: int = 0
    n: int = 0
    """Columns in reals: twice as many if complex."""
    k_groups: int = 0
    """Depth in packed k-groups."""
    k_numbers: int = 0
    """Depth in numbers."""


@dataclass(frozen=True, slots=True)
class Strides(Part):
    """Of the operands in memory; 0 where there is none."""

    source_row: int = 0
    source_col: int = 0
    b_row: int = 0
    b_col: int = 0
    c_row: int = 0
    c_col: int = 0
    d_row: int = 0
    d_col: int = 0
    bias_row: int = 0
    bias_col: int = 0

    @staticmethod
    def of(p: Problem) -> Strides:
        """Those of a problem."""
        b, c, bias = p.b or _NONE, p.c or _NONE, p.bias or _NONE
        return Strides(
            p.a.row, p.a.col, b.row, b.col, c.row, c.col, p.d.row, p.d.col, bias.row, bias.col
        )


@dataclass(frozen=True, slots=True)
class ByteOrder(Part):
    """Operands that are byte-swapped."""

    swap_a: bool = False
    swap_b: bool = False
    swap_c: bool = False
    swap_d: bool = False
    swap_bias: bool = False

    @staticmethod
    def of(p: Problem) -> ByteOrder:
        """That of a problem."""
        operands = (p.a, p.b, p.c, p.d, p.bias)
        return ByteOrder(*(x is not None and x.swapped for x in operands))


@dataclass(frozen=True, slots=True)
class WalkA(Part):
    """How the microkernel walks A: in place, or a copy of some rows in a thread's scratch."""

    a_row: int
    a_col: int
    a_tile: int
    """From one microtile to the next."""
    pack_a: PackA = PackA.INPLACE
    pack_a_width: int = 0
    copied_row: int = 0
    """From row to row of what is copied before it is packed as micropanels."""
    upconverted_at: int = 0
    """Where a micropanel of B is upconverted, behind the copied rows."""
    rows_ahead: int = 0
    """From a chunk's rows to those the thread will probably draw next; 0: fetch none."""
    workspace_a_stride: int = 0
    """Scratch per thread."""

    @staticmethod
    def in_place(problem: Problem, tile_rows: int, workspace_a_stride: int = 0) -> WalkA:
        """Along A's own strides."""
        a = problem.a
        return WalkA(a.row, a.col, tile_rows * a.row, workspace_a_stride=workspace_a_stride)


@dataclass(frozen=True, slots=True)
class Panels(Part):
    """Where micropanels of B are, packed or not."""

    panel_stride: int
    slice_stride: int = 0
    """From one depth slice of packed B to the next; 0: every slice starts over."""


@dataclass(frozen=True, slots=True)
class Modes(Part):
    """Run-time modes of the nest."""

    direct: bool
    """Partial sums may spill to D; C and bias are read where they are."""
    row_streaming: bool = False
    staggered: bool = False
