"""Stacks of products with their machine code: callable with addresses."""

from __future__ import annotations

import ctypes

import numpy as np

from jitgemm.kernels.job import TABLES
from jitgemm.kernels.repeat import repeat
from jitgemm.planner.batching import AXES, BatchPlan, explain_batch
from jitgemm.planner.folding import FIELDS
from jitgemm.runtime import jobs
from jitgemm.runtime.batch_code import BATCH
from jitgemm.runtime.data import Scalars, Tables
from jitgemm.runtime.driver import Executable
from jitgemm.runtime.engine import engine, record_array
from jitgemm.runtime.jobs import ADDRESSES, Span
from jitgemm.runtime.memory import Workspace, address
from jitgemm.runtime.operands import Operands

__all__ = ["BatchExecutable", "job_slot"]


_JOB = BATCH.slot("job_0")


def job_slot(name: str) -> int:
    """The slot in a batch record of an address of its job."""
    return _JOB + ADDRESSES[name]


def _moved(span: Span, by: int) -> Span:
    return Span(span.address + by, span.low, span.high)


class BatchExecutable:
    """A plan of a stack with its machine code and a record to run from."""

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan
        self.engine = engine()
        self.item = Executable(plan.item)
        if plan.threads > 1:
            self.engine.pool.ensure(plan.threads)
        self.runner = self.engine.address_of("jitgemm_run_batch")
        """Address of what runs a record."""
        pointer = ctypes.c_void_p
        self._run = ctypes.CFUNCTYPE(None, pointer, pointer)(self.runner)
        self.template = self._template()

    @property
    def one(self) -> Executable:
        """What runs one product."""
        return self.item

    def explain(self) -> str:
        """What it does and why, in words."""
        return explain_batch(self.plan, self.engine.machine)

    def _template(self) -> np.ndarray:
        plan, item = self.plan, self.plan.item
        batch = record_array(BATCH.slots)
        values = {
            "nest": self.item.address,
            "repeat": self.item.address_of(repeat) if plan.repeats else 0,
            "worker": self.engine.address_of("jitgemm_batch"),
            "whole": int(plan.whole),
            "threads": plan.threads,
            "items": plan.items,
            "per_ticket": plan.per_ticket,
            "scratch_stride": plan.scratch_stride,
            "scratch_a": item.workspace_b,
            "places_b": int(item.workspace_b > 0),
            "tables": int(plan.tables),
            "b_packed": int(item.problem.b is None),
            "keeps": item.blocking.pack_chunks if plan.keeps else 0,
            **{f"count_{i}": 1 for i in range(AXES)},
            **{f"ahead_{field}": size for field, size in plan.ahead},
        }
        for i, axis in enumerate(plan.axes, AXES - len(plan.axes)):
            values[f"count_{i}"] = axis.count
            for field, stride in zip(FIELDS, axis.strides, strict=True):
                values[f"{field}_{i}"] = stride
        for name, value in values.items():
            batch[BATCH.slot(name)] = value
        jobs.job_in(batch, _JOB)[:] = self.item.template
        return batch

    def record(self, scalars: Scalars | None) -> tuple[np.ndarray, Tables]:
        """A record with the data of a call but no operands, and the arrays it refers to.

        Args:
            scalars: in the caller's orientation; ``None``: leave them out.
        """
        batch = self.template.copy()
        if scalars is None:
            return batch, {}
        return batch, self.item.data.write(jobs.job_in(batch, _JOB), scalars)

    def run(self, operands: Operands) -> None:
        """Do all products."""
        plan, scalars, workspace = self.plan, operands.scalars, operands.workspace
        spans = operands.spans(plan.item.problem)
        if "packed" in spans:
            # The place of a packed B follows that of B.
            spans["b"] = spans["packed"]
        if plan.item.spec.isa.interpreted:
            self._one_by_one(spans, scalars, workspace)
            return
        record, tables = self.record(scalars)
        if plan.workspace_bytes:
            with (workspace or engine().scratch).lend(plan.workspace_bytes) as scratch:
                record[BATCH.slot("scratch")] = scratch
                self._start(record, spans)
        else:
            self._start(record, spans)
        del tables  # alive until here

    def _start(self, record: np.ndarray, spans: dict[str, Span]) -> None:
        pool, threads = self.engine.pool, self.plan.threads
        if threads > 1:
            pool.ensure(threads)
        job = jobs.job_in(record, _JOB)
        first = {name: span.address for name, span in spans.items()}
        first |= {name: jobs.address_in(job, name) for name in TABLES}
        for offsets in self.plan.offsets():
            record[BATCH.slot("cursor")] = 0
            moved = {name: at + offsets.get(name, 0) for name, at in first.items()}
            jobs.set_addresses(job, moved)
            self._run(int(pool.words[0]), address(record.view(np.uint8)))

    def _one_by_one(
        self, spans: dict[str, Span], scalars: Scalars, workspace: Workspace | None
    ) -> None:
        """As the checking interpreter does it, which must know each product's own memory."""
        counts, exchanged = tuple(x.count for x in self.plan.axes), self.plan.item.exchanged
        mine = scalars.exchanged if exchanged else scalars
        for offsets in self.plan.offsets():
            for index in np.ndindex(*counts):
                steps = dict(offsets)
                for i, axis in zip(index, self.plan.axes, strict=True):
                    for field, stride in zip(FIELDS, axis.strides, strict=True):
                        steps[field] += i * stride
                steps["packed"] = steps["b"]
                moved = {name: _moved(s, steps[name]) for name, s in spans.items()}
                own = mine.of_item({name: steps[name] for name in TABLES})
                self.item.start(moved, own.exchanged if exchanged else own, workspace)
