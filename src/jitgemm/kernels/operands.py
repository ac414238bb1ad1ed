"""Packing the operands of a job: A and B differ only in which axis leads."""

from __future__ import annotations

from jitgemm.kernels.groups import copy_rows, pack_group_panels, pack_groups
from jitgemm.kernels.job import JOB
from jitgemm.kernels.pack import Source, pack_panels
from jitgemm.kernels.spec import GemmSpec
from jitgemm.lang.core import Function, Int, Kernel, Ptr, parameters

__all__ = ["pack_a", "pack_b"]


def pack_b(spec: GemmSpec) -> Function:
    """Pack columns ``j0 .. j1`` and depth ``p0 .. p1`` of the job's B."""
    if not spec.arithmetic.plain:
        return pack_groups(spec)

    def body(k: Kernel, job_at: Ptr, target: Ptr, j0: Int, j1: Int, p0: Int, p1: Int) -> None:
        job = JOB.view(k, job_at)
        rs, cs = job.int("b_row"), job.int("b_col")
        at = job.pointer("b") + j0 // spec.components * cs + p0 * rs
        columns = (j1 - j0) // spec.components
        source = Source(at, cs, rs, columns, p1 - p0, spec.components, job.int("swap_b").differs(0))
        pack_panels(k, spec.element, source, (target, job.int("panel_stride")), spec.nr)

    params = parameters("job* target* j0 j1 p0 p1")
    return Function(f"{spec.symbol}_pack_b", params, body)


def pack_a(spec: GemmSpec) -> Function:
    """Pack ``rows`` x ``depth`` of A at ``source`` into this thread's region.

    As micropanels where rows lead.  Where rows are contiguous, a plain copy that puts them side by
    side does: it is the same routine with the axes exchanged, one panel as wide as the depth.
    """
    if not spec.arithmetic.plain:
        return copy_rows(spec) if spec.outer is None else pack_group_panels(spec)

    def body(k: Kernel, job_at: Ptr, source: Ptr, target: Ptr, rows: Int, depth: Int) -> None:
        job = JOB.view(k, job_at)
        row, col = job.int("source_row"), job.int("source_col")
        panels = job.int("pack_a").equals(1)
        lead, deep = k.select(panels, row, col), k.select(panels, col, row)
        width, swap = job.int("pack_a_width"), job.int("swap_a").differs(0)
        sizes = k.select(panels, rows, depth), k.select(panels, depth, rows)
        matrix = Source(source, lead, deep, *sizes, spec.components, swap)
        pack_panels(k, spec.element, matrix, (target, job.int("a_tile")), width)

    params = parameters("job* source* target* rows depth")
    return Function(f"{spec.symbol}_pack_a", params, body)
