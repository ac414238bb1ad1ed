"""Job records: what a plan puts into its slots, and what a call adds."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from test_planner import context, problem

from jitgemm.isa.tables import AVX512_BF16
from jitgemm.isa.types import I8, I32, U8
from jitgemm.kernels.arithmetic import OperandTypes
from jitgemm.kernels.job import DATA, JOB, POINTERS
from jitgemm.kernels.spec import Bias, BSource, Epilogue
from jitgemm.planner.problem import Operand, Problem
from jitgemm.planner.route import GemmPlan, PackA, make_plan
from jitgemm.runtime import jobs
from jitgemm.runtime.jobs import Span


def _slots(job: np.ndarray) -> dict[str, int]:
    assert (job.dtype, job.shape) == (np.dtype(np.int64), (JOB.slots,))
    assert not job[len(JOB.fields) :].any()
    return dict(zip(JOB.fields, map(int, job), strict=False))


def _typed() -> GemmPlan:
    types = replace(OperandTypes.of(I32), a=I8, b=U8)
    operands = Operand(-70, 1), Operand(1, 80, swapped=True), Operand(256, 4)
    p = Problem(I32, 33, 40, 66, *operands, c=Operand(400, 4), types=types,
                bias=Operand(0, 4), epilogue=Epilogue(True, Bias.COLUMN))  # fmt: skip
    return make_plan(p, context(isa=AVX512_BF16))


PLANS = {
    "blocked": make_plan(problem(900, 800, 1100, orders="FCC"), context(4)),
    "row streaming": make_plan(problem(1, 4000, 4000), context()),
    "columns": make_plan(problem(2, 100, 5000, orders="CFC", components=2), context()),
    "dot": make_plan(problem(1, 1, 500), context()),
    "split": make_plan(problem(8, 10, 100_000), context(4)),
    "typed": _typed(),
    "prepacked": make_plan(problem(9, 60, 70, orders="CPC"), context()),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_template_is_the_parts_of_its_plan_and_nothing_else(plan: GemmPlan) -> None:
    found = _slots(jobs.template(plan))
    want = dict.fromkeys(JOB.fields, 0)
    for part in plan.records:
        want |= {x.name: int(getattr(part, x.name)) for x in fields(part)}
    assert found == want
    p = plan.problem
    assert (found["m"], found["n"]) == (p.m, p.n * p.components)
    assert (found["d_row"], found["source_col"]) == (p.d.row, p.a.col)
    assert not any(found[name] for name in (*POINTERS, *DATA))


def test_a_template_in_numbers() -> None:
    found = _slots(jobs.template(PLANS["typed"]))
    want: dict[str, Any] = {
        "m": 33, "n": 40, "k_groups": 17, "k_numbers": 66, "source_row": -70, "source_col": 1,
        "b_row": 1, "b_col": 80, "c_row": 400, "c_col": 4, "d_row": 256, "d_col": 4,
        "bias_row": 0, "bias_col": 4, "swap_a": 0, "swap_b": 1, "swap_c": 0, "swap_d": 0,
        "swap_bias": 0, "pack_a": PackA.ROWS, "a_col": 4, "row_streaming": 0, "staggered": 0,
        "direct": 1, "slices": 1, "depth_per_slice": 17, "slice_stride": 0, "round_blocks": 0,
    }  # fmt: skip
    assert {name: found[name] for name in want} == want
    modes = {name: (x["direct"], x["row_streaming"], x["staggered"]) for name, x in
             ((name, _slots(jobs.template(plan))) for name, plan in PLANS.items())}  # fmt: skip
    assert modes["blocked"] == modes["split"] == modes["columns"] == (1, 0, 0)
    assert modes["row streaming"] == (1, 1, 0)


def test_operands_are_placed_by_name() -> None:
    job = jobs.template(PLANS["blocked"])
    before = _slots(job)
    names = ("a", "b", "packed", "c", "d", "bias")
    jobs.set_operands(job, {name: Span(1000 + i, -8, 64) for i, name in enumerate(names)})
    jobs.set_addresses(job, {"counters": 77, "scales": 78})
    want = {name: 1000 + i for i, name in enumerate(names)} | {"counters": 77, "scales": 78}
    assert _slots(job) == before | want
    assert {name: jobs.address_in(job, name) for name in want} == want
    # What is no address cannot be overwritten by one.
    for wrong in ("m", "out", "a_row"):
        with pytest.raises(KeyError):
            jobs.set_operands(job, {wrong: Span(1, 0, 0)})
        with pytest.raises(KeyError):
            jobs.set_addresses(job, {wrong: 1})


@pytest.mark.parametrize("name", ["blocked", "prepacked", "typed"])
def test_scratch_begins_with_packed_b(name: str) -> None:
    plan = PLANS[name]
    job = jobs.template(plan)
    jobs.set_operands(job, {"packed": Span(64, 0, 0)})
    jobs.place_workspace(job, plan, 4096)
    per_call = plan.spec.b is BSource.PACKED and plan.problem.b is not None
    assert per_call == (name != "prepacked")
    # A handle stays where it is.
    assert jobs.address_in(job, "packed") == (4096 if per_call else 64)
    assert jobs.address_in(job, "workspace_a") == 4096 + plan.workspace_b


def test_the_data_of_a_call_are_its_slots_and_no_others() -> None:
    record = np.arange(1, len(DATA) + 1, dtype=np.int64)
    wide = np.full(JOB.slots + 20, -1, np.int64)
    job = jobs.job_in(wide, 7)
    jobs.set_data(job, record.tobytes())
    found = dict(zip(JOB.fields, map(int, job), strict=False))
    assert [found[name] for name in DATA] == list(record)
    assert (wide != -1).sum() == len(DATA)
    with pytest.raises(ValueError, match="broadcast"):
        jobs.set_data(job, record[1:].tobytes())


def test_a_job_that_packs() -> None:
    found = _slots(jobs.packing(Operand(-24, 8, swapped=True), 50, 4096))
    want = {"b_row": -24, "b_col": 8, "swap_b": 1, "k_numbers": 50, "panel_stride": 4096}
    assert found == dict.fromkeys(JOB.fields, 0) | want
