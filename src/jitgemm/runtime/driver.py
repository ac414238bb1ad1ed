"""From a plan to a running product: executables, and the one way a job is started."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from jitgemm.isa.tables import Isa
from jitgemm.jit import compiler
from jitgemm.kernels.dot import dot
from jitgemm.kernels.job import COUNTERS, JOB
from jitgemm.kernels.nest import nest, serial
from jitgemm.kernels.operands import pack_b
from jitgemm.kernels.spec import GemmSpec
from jitgemm.kernels.split import split
from jitgemm.lang.core import Function
from jitgemm.planner.problem import Operand
from jitgemm.planner.route import GemmPlan, PackA
from jitgemm.runtime.data import DataLayout, Scalars, Tables
from jitgemm.runtime.engine import Engine, engine, record_array
from jitgemm.runtime.memory import Workspace, address, thread_workspace

__all__ = ["Executable", "Span", "interpret", "run_pack", "scalar_slot"]


@dataclass(frozen=True, slots=True)
class Span:
    """An operand in memory: its address, and the bytes before and after it that belong to it."""

    address: int
    low: int
    high: int

    @staticmethod
    def of(where: int, shape: tuple[int, int], strides: tuple[int, int], size: int) -> Span:
        """The span of a matrix with any strides."""
        if 0 in shape:
            return Span(where, 0, 0)
        steps = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
        low = sum(min(0, s) for s in steps)
        return Span(where, low, sum(max(0, s) for s in steps) + size)


def scalar_slot(value: float, size: int) -> int:
    """A float of ``size`` bytes as the contents of an 8-byte slot."""
    if size == 4:
        # A C conversion: beyond the type it gives infinity or zero, without a warning.
        return int.from_bytes(bytes(ctypes.c_float(value)), "little")
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _template(plan: GemmPlan) -> np.ndarray:
    """The job record of a plan, without addresses."""
    job = record_array(JOB.slots)
    problem, blocking = plan.problem, plan.blocking
    none = Operand(0, 0)
    b, c, bias = problem.b or none, problem.c or none, problem.bias or none
    values = {
        "m": problem.m, "n": problem.n * problem.parts, "k": problem.k, "depth": problem.depth,
        "bias_row": bias.row, "bias_col": bias.col,
        "swap_a": problem.a.foreign, "swap_b": b.foreign, "swap_c": c.foreign,
        "swap_d": problem.d.foreign, "swap_bias": bias.foreign,
        "a_row": plan.a_row, "a_col": plan.a_col, "a_tile": plan.a_tile,
        "rows_ahead": plan.rows_ahead, "wide_at": plan.wide_at,
        "source_row": problem.a.row, "source_col": problem.a.col,
        "b_row": b.row, "b_col": b.col,
        "c_row": c.row, "c_col": c.col, "d_row": problem.d.row, "d_col": problem.d.col,
        "panel_stride": plan.panel_stride, "slice_stride": plan.slice_stride,
        "tile_rows": blocking.tile_rows, "group": blocking.group,
        "rows_per_chunk": blocking.rows_per_chunk, "row_chunks": blocking.row_chunks,
        "cols_per_chunk": blocking.cols_per_chunk, "col_chunks": blocking.col_chunks,
        "depth_per_slice": blocking.depth_per_slice, "slices": blocking.slices,
        "depth_step": blocking.depth_step,
        "cols_per_block": blocking.cols_per_block, "blocks": blocking.blocks,
        "pack_chunks": blocking.pack_chunks, "pack_cols": blocking.pack_cols,
        "pack_a": plan.pack_a.value, "pack_a_width": plan.pack_a_width,
        "workspace_a_stride": plan.workspace_a_stride,
        "sweep": plan.sweep, "direct": plan.direct, "apart": plan.apart,
    }  # fmt: skip
    if plan.split is not None:
        values |= asdict(plan.split)
    for name, value in values.items():
        job[JOB.slot(name)] = int(value)
    return job


def _function(plan: GemmPlan) -> Function:
    """What does the whole product."""
    if plan.split is not None:
        return split(plan.spec)
    if plan.dot:
        return dot(plan.spec)
    b = plan.blocking
    single = b.row_chunks * b.col_chunks * b.slices * b.blocks == 1 and plan.threads == 1
    if single and not b.pack_chunks and plan.pack_a is PackA.INPLACE:
        return serial(plan.spec)
    return nest(plan.spec)


class Executable:
    """A plan with its machine code and job template: callable with addresses."""

    def __init__(self, plan: GemmPlan) -> None:
        self.plan = plan
        self.engine: Engine = engine()
        self.template = _template(plan)
        self.data = DataLayout(plan)
        self.function = _function(plan)
        self.address = 0
        self.unit = compiler.gemm_unit(plan.spec)
        if not plan.spec.isa.interpreted:
            self.code = compiler.get(self.unit)  # keeps its pages
            self.address = self.code.addresses[self.function.name]
        if plan.threads > 1:
            self.engine.pool.ensure(plan.threads)

    def address_of(self, function: Callable[[GemmSpec], Function]) -> int:
        """Where another function of the plan's unit begins; 0 if it is interpreted."""
        if self.plan.spec.isa.interpreted:
            return 0
        return self.code.addresses[function(self.plan.spec).name]

    def run(self, spans: dict[str, Span], scalars: Scalars, workspace: Workspace | None) -> None:
        """Do the product.

        Args:
            spans: operands by job field (``a``, ``b`` or ``packed``, ``c``, ``d``, ``bias``), in
                the plan's orientation.
            scalars: the data of this call, in the caller's orientation.
            workspace: scratch to use; ``None``: the thread's own.
        """
        plan = self.plan
        job = self.template.copy()
        counters = record_array(COUNTERS.slots)
        for name, span in spans.items():
            job[JOB.slot(name)] = span.address
        tables = self.data.write(job, scalars)
        job[JOB.slot("counters")] = address(counters.view(np.uint8))
        if not plan.workspace_bytes:
            self._start(job, spans, None, tables)
            return
        with (workspace or thread_workspace()).lend(plan.workspace_bytes) as scratch:
            self.place_workspace(job, scratch)
            self._start(job, spans, Span(scratch, 0, plan.workspace_bytes), tables)

    def place_workspace(self, job: np.ndarray, scratch: int) -> None:
        """Point a job at its scratch: packed B first, then packed A of each thread."""
        if self.plan.workspace_b:
            job[JOB.slot("packed")] = scratch
        job[JOB.slot("workspace_a")] = scratch + self.plan.workspace_b

    def _start(
        self, job: np.ndarray, spans: dict[str, Span], scratch: Span | None, tables: Tables
    ) -> None:
        where = address(job.view(np.uint8))
        plan = self.plan
        if plan.spec.isa.interpreted:
            counters = Span(int(job[JOB.slot("counters")]), 0, COUNTERS.size)
            known = {**spans, "job": Span(where, 0, JOB.size), "counters": counters}
            for name, table in tables.items():
                known[name] = Span(int(job[JOB.slot(name)]), 0, table.nbytes)
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
    spec: GemmSpec, job: np.ndarray, target: Span, source: Span, sizes: tuple[int, int]
) -> None:
    """Pack a whole operand ``(k, n) = sizes`` into ``target``."""
    where = address(job.view(np.uint8))
    k, n = sizes
    args = (where, target.address, 0, n, 0, k)
    function = pack_b(spec)
    if spec.isa.interpreted:
        known = {"job": Span(where, 0, JOB.size), "b": source, "packed": target}
        interpret(function, spec.isa, args, known, {"packed"})
        return
    code = compiler.get(compiler.gemm_unit(spec))
    code.function(function.name, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 4)(*args)
