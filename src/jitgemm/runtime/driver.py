"""From a plan to a running product: executables, and the one way a job is started."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

import numpy as np

from jitgemm.isa.tables import Isa
from jitgemm.jit import compiler
from jitgemm.kernels.job import COUNTERS, JOB
from jitgemm.kernels.operands import pack_b
from jitgemm.kernels.spec import GemmSpec
from jitgemm.lang.core import Function
from jitgemm.planner.context import k_groups
from jitgemm.planner.explain import explain
from jitgemm.planner.problem import Operand
from jitgemm.planner.route import GemmPlan
from jitgemm.runtime import jobs
from jitgemm.runtime.data import DataLayout, Scalars, Tables
from jitgemm.runtime.engine import Engine, engine
from jitgemm.runtime.jobs import Span
from jitgemm.runtime.memory import Workspace, address
from jitgemm.runtime.numpy_abi import data_address
from jitgemm.runtime.operands import Operands

__all__ = ["Executable", "Span", "interpret", "run_pack", "scalar_slot"]


def scalar_slot(value: float, size: int) -> int:
    """A float of ``size`` bytes as the contents of an 8-byte slot."""
    if size == 4:
        # A C conversion: beyond the type it gives infinity or zero, without a warning.
        return int.from_bytes(bytes(ctypes.c_float(value)), "little")
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


class Executable:
    """A plan with its machine code and job template: callable with addresses."""

    def __init__(self, plan: GemmPlan) -> None:
        self.plan = plan
        self.engine: Engine = engine()
        self.template = jobs.template(plan)
        self.data = DataLayout(plan)
        self.function = plan.kernel
        self.address = 0
        self.unit = compiler.gemm_unit(plan.spec)
        if not plan.spec.isa.interpreted:
            self.code = compiler.get(self.unit)  # keeps its pages
            self.address = self.code.addresses[self.function.name]
        if plan.threads > 1:
            self.engine.pool.ensure(plan.threads)

    @property
    def one(self) -> Executable:
        """What runs one product: itself."""
        return self

    def explain(self) -> str:
        """What it does and why, in words."""
        return explain(self.plan, self.engine.machine)

    def address_of(self, function: Callable[[GemmSpec], Function]) -> int:
        """Where another function of the plan's unit begins; 0 if it is interpreted."""
        if self.plan.spec.isa.interpreted:
            return 0
        return self.code.addresses[function(self.plan.spec).name]

    def run(self, operands: Operands) -> None:
        """Do the product."""
        self.start(operands.spans(self.plan.problem), operands.scalars, operands.workspace)

    def start(self, spans: dict[str, Span], scalars: Scalars, workspace: Workspace | None) -> None:
        """Do a product whose operands are told by their addresses.

        Args:
            spans: operands by name (:data:`~jitgemm.runtime.jobs.ADDRESSES`).
            scalars: the data of this call, in the caller's orientation.
            workspace: scratch to use; ``None``: that which all calls share.
        """
        plan = self.plan
        job = self.template.copy()
        # With room to begin with a cache line of its own.
        counters = np.zeros(COUNTERS.slots + 8, np.int64)
        at = data_address(counters)
        jobs.set_operands(job, spans)
        tables = self.data.write(job, scalars)
        jobs.set_addresses(job, {"counters": at + -at % 64})
        if not plan.workspace_bytes:
            self._start(job, spans, None, tables)
            return
        with (workspace or engine().scratch).lend(plan.workspace_bytes) as scratch:
            jobs.place_workspace(job, plan, scratch)
            self._start(job, spans, Span(scratch, 0, plan.workspace_bytes), tables)

    def _start(
        self, job: np.ndarray, spans: dict[str, Span], scratch: Span | None, tables: Tables
    ) -> None:
        where = address(job.view(np.uint8))
        plan = self.plan
        if plan.spec.isa.interpreted:
            counters = Span(jobs.address_in(job, "counters"), 0, COUNTERS.size)
            known = {**spans, "job": Span(where, 0, JOB.size), "counters": counters}
            for name, table in tables.items():
                known[name] = Span(jobs.address_in(job, name), 0, table.nbytes)
            if scratch is not None:
                known["workspace"] = scratch
            writable = {"d", "job", "counters", "workspace"}
            interpret(self.function, plan.spec.isa, (where, 0), known, writable)
            return
        pool = self.engine.pool
        if plan.threads > 1:
            pool.ensure(plan.threads)
        self.engine.run(int(pool.words[0]), self.address, where, plan.threads)


def interpret(
    function: Function,
    isa: Isa,
    args: tuple[int, ...],
    spans: dict[str, Span],
    writable: set[str],
) -> None:
    """Run generated code in the checking interpreter, which may touch ``spans`` only."""
    # Imported here: only a pinned interpreter needs it.
    from jitgemm.lang.interp import Memory, run

    memory = Memory()
    for name, span in spans.items():
        length = span.high - span.low
        if length > 0:
            raw = (ctypes.c_uint8 * length).from_address(span.address + span.low)
            array = np.ctypeslib.as_array(raw)
            memory.add(name, array, writable=name in writable, initialised=name != "workspace")
    run(function, memory, isa, *args)


def run_pack(
    spec: GemmSpec, b: Operand, source: Span, target: Span, sizes: tuple[int, int, int]
) -> None:
    """Pack a whole right operand.

    Args:
        spec: the kernel that will read it.
        b: its strides in bytes.
        source: where it is.
        target: where its micropanels go.
        sizes: its depth and columns in numbers, and the bytes from one micropanel to the next.
    """
    k, n, panel_stride = sizes
    job = jobs.packing(b, k, panel_stride)
    jobs.set_operands(job, {"b": source})
    where, function = address(job.view(np.uint8)), pack_b(spec)
    args = (where, target.address, 0, n * spec.components, 0, k_groups(k, spec))
    if spec.isa.interpreted:
        known = {"job": Span(where, 0, JOB.size), "b": source, "packed": target}
        interpret(function, spec.isa, args, known, {"packed"})
        return
    code = compiler.get(compiler.gemm_unit(spec))
    code.function(function.name, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 4)(*args)
