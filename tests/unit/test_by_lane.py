"""Plans where multiply-adds take one lane of a vector: when rows of A are read by vectors."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from test_planner import context, problem

from jitgemm.errors import LanguageError
from jitgemm.isa.tables import AVX512, NEON, Isa, sve
from jitgemm.isa.types import BF16, F32, F64, I8, I32, I64, ElementType
from jitgemm.kernels.arithmetic import OperandTypes, arithmetic_for
from jitgemm.kernels.registry import tile_for
from jitgemm.kernels.spec import BSource, Epilogue, GemmSpec
from jitgemm.planner.route import Blocked, GemmPlan, PackA, make_plan

LANES = [NEON, sve(128)]


def _plan(isa: Isa, *shape: int, threads: int = 1, **fields: Any) -> GemmPlan:
    return make_plan(problem(*shape, **fields), context(threads, isa))


def _packs(plan: GemmPlan) -> PackA:
    assert isinstance(plan.route, Blocked)
    return plan.route.a.pack_a


@pytest.mark.parametrize("isa", LANES, ids=lambda i: f"{i.name}-{i.vector_bits}")
@pytest.mark.parametrize(
    "element, components", [(F32, 1), (F64, 1), (I32, 1), (F32, 2), (F64, 2)], ids=str
)
@pytest.mark.parametrize("b", "CFP")
def test_rows_that_many_micropanels_meet_are_packed_side_by_side(
    isa: Isa, element: ElementType, components: int, b: str
) -> None:
    plan = _plan(isa, 200, 300, 100, element=element, components=components, orders=f"C{b}C")
    assert _packs(plan) is PackA.PANELS
    assert plan.spec.a_vectors
    assert plan.route.a.a_row == plan.spec.unit
    assert plan.route.a.a_col == plan.blocking.tile_rows * plan.spec.unit
    assert any("lane by lane" in x for x in plan.reasons)


def test_few_micropanels_do_not_repay_packing() -> None:
    width = tile_for(F32, NEON).nr_regs * NEON.lanes(F32)
    few, many = (_plan(NEON, 200, n * width, 100) for n in (7, 8))
    assert (_packs(few), few.spec.a_vectors) == (PackA.INPLACE, False)
    assert (_packs(many), many.spec.a_vectors) == (PackA.PANELS, True)
    # Nor do rows that are one tile.
    low = _plan(NEON, 7, 800, 100)
    assert (_packs(low), low.spec.a_vectors) == (PackA.INPLACE, False)


@pytest.mark.parametrize("b", "CP")
def test_rows_that_lie_side_by_side_are_read_in_place(b: str) -> None:
    """Those of a column-major A, however few micropanels there are."""
    for n in (30, 400):
        plan = _plan(NEON, 150, n, 100, orders=f"F{b}C")
        if not plan.exchanged:
            assert _packs(plan) is PackA.INPLACE
            assert plan.spec.a_vectors
            assert plan.route.a.a_row == plan.spec.unit
    assert not _plan(NEON, 150, 400, 100, orders=f"F{b}C").exchanged


def test_a_is_read_by_vectors_exactly_where_its_rows_lie_side_by_side() -> None:
    """By every order, size and number of threads; the promise of the kernel holds."""
    met = set()
    for isa, orders, element, components in product(
        LANES, ("CCC", "FCC", "CFC", "FFC", "CPC", "FPC"), (F32, F64), (1, 2)
    ):
        for (m, n, k), threads in product(
            [(1, 50, 9), (3, 400, 90), (8, 12, 40), (50, 7, 30), (200, 400, 700), (9, 500, 1)],
            (1, 3),
        ):
            plan = _plan(isa, m, n, k, threads=threads, orders=orders, element=element,
                         components=components)  # fmt: skip
            if isinstance(plan.route, Blocked):
                fills = m * components >= plan.spec.lanes and not plan.exchanged
                fills |= n * components >= plan.spec.lanes and plan.exchanged
                side_by_side = plan.route.a.a_row == plan.spec.unit
                assert plan.spec.a_vectors == (fills and side_by_side)
                met.add((plan.spec.a_vectors, plan.route.a.pack_a))
            else:
                assert not plan.spec.a_vectors
    assert met >= {(True, PackA.PANELS), (True, PackA.INPLACE), (False, PackA.INPLACE)}


@pytest.mark.parametrize("isa", [AVX512, sve(256)], ids=lambda i: i.name)
@pytest.mark.parametrize("orders", ["CCC", "FCC", "CPC"])
def test_other_sets_broadcast(isa: Isa, orders: str) -> None:
    assert not _plan(isa, 200, 300, 100, orders=orders).spec.a_vectors


def test_what_no_lane_multiplies_is_broadcast() -> None:
    assert not _plan(NEON, 200, 300, 100, element=I64).spec.a_vectors
    words = OperandTypes(I8, I8, I32, I32, I32)
    halves = OperandTypes(*[BF16] * 5)
    for types, element in ((words, I32), (halves, F32)):
        plain = problem(200, 300, 100, element=element)
        narrow = replace(plain, types=types)
        plan = make_plan(narrow, context(1, NEON))
        assert not plan.spec.arithmetic.plain
        assert not plan.spec.a_vectors


def test_a_kernel_that_cannot_is_refused() -> None:
    tile, how = tile_for(I32, NEON), arithmetic_for(OperandTypes(I8, I8, I32, I32, I32), I32, NEON)
    with pytest.raises(LanguageError, match="vectors of A's rows that are numbers as they are"):
        GemmSpec(I32, NEON, tile, BSource.PACKED, Epilogue(), 1, how, a_vectors=True)
    with pytest.raises(LanguageError, match="vectors of A's rows"):
        GemmSpec(F32, NEON, tile_for(F32, NEON), BSource.COLUMNS, Epilogue(), a_vectors=True)
