"""Lists of products of any shapes, run whole by workers that draw them one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jitgemm.kernels.job import JOB
from jitgemm.planner.callspec import CallSpec
from jitgemm.planner.context import aligned
from jitgemm.planner.route import GemmPlan
from jitgemm.runtime.batch_code import LIST, TASK
from jitgemm.runtime.data import Tables
from jitgemm.runtime.driver import Executable
from jitgemm.runtime.engine import engine, record_array
from jitgemm.runtime.executables import executable_for
from jitgemm.runtime.jobs import set_operands
from jitgemm.runtime.memory import Workspace, address
from jitgemm.runtime.operands import Operands

__all__ = ["Listed", "listed", "run_list"]


@dataclass(frozen=True, slots=True)
class Listed:
    """One product of a list: planned for one thread, its job complete but for scratch."""

    plan: GemmPlan
    nest: int
    job: np.ndarray
    tables: Tables
    """What the job refers to besides operands."""
    code: object
    """Keeps the pages of ``nest``."""


def listed(spec: CallSpec, operands: Operands) -> Listed:
    """A product of matrices, planned for one thread, as one of a list."""
    executable = executable_for(spec)
    assert isinstance(executable, Executable)
    job = executable.template.copy()
    set_operands(job, operands.spans(executable.plan.problem))
    tables = executable.data.write(job, operands.scalars)
    return Listed(executable.plan, executable.address, job, tables, executable)


def run_list(products: list[Listed], threads: int, workspace: Workspace | None) -> None:
    """Run products in the order given, each whole on one of up to ``threads`` threads.

    Scratch: ``threads`` times the most that one of them needs.
    """
    e = engine()
    jobs = record_array(len(products) * JOB.slots).reshape(len(products), JOB.slots)
    tasks = record_array(len(products) * TASK.slots).reshape(len(products), TASK.slots)
    jobs[:] = [x.job for x in products]
    tasks[:, TASK.slot("nest")] = [x.nest for x in products]
    tasks[:, TASK.slot("scratch_a")] = [x.plan.workspace_b for x in products]
    tasks[:, TASK.slot("places_b")] = [int(x.plan.workspace_b > 0) for x in products]
    first = address(jobs.view(np.uint8))
    tasks[:, TASK.slot("job")] = first + JOB.size * np.arange(len(products))
    record = record_array(LIST.slots)
    stride = aligned(max(x.plan.workspace_bytes for x in products))
    record[LIST.slot("tasks")] = address(tasks.view(np.uint8))
    record[LIST.slot("count")] = len(products)
    record[LIST.slot("scratch_stride")] = stride
    if threads > 1:
        e.pool.ensure(threads)
    worker, where = e.address_of("jitgemm_list"), address(record.view(np.uint8))
    with (workspace or engine().scratch).lend(threads * stride) as scratch:
        record[LIST.slot("scratch")] = scratch
        e.run(int(e.pool.words[0]), worker, where, threads)
