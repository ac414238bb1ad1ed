"""What depends on the size of a page, and what on the sets of L1: machines of other sizes."""

from __future__ import annotations

import mmap
from dataclasses import replace
from itertools import product

import pytest
from test_planner import SERVER, context, problem

from jitgemm.isa.types import F32, F64
from jitgemm.planner.machine import Cache, detect
from jitgemm.planner.records import PackA
from jitgemm.planner.route import Blocked, make_plan
from jitgemm.runtime import memory

PAGES = (4096, 16384, 65536)
KNOB = 64


def _reads_a(m: int, k: int, page: int, n: int = 1024, **knobs: int) -> tuple[PackA, str]:
    """How a column-major A is read, and why."""
    machine = replace(SERVER, page=page)
    plan = make_plan(problem(m, n, k, orders="FPC"), context(machine=machine, **knobs))
    assert isinstance(plan.route, Blocked)
    return plan.route.a.pack_a, next(r for r in plan.reasons if r.startswith("A:"))


def test_the_page_is_the_systems() -> None:
    assert detect().page == mmap.PAGESIZE == SERVER.page


def test_ways_and_sets() -> None:
    for size, ways, way in ((32, 8, 4096), (48, 12, 4096), (64, 4, 16384), (128, 8, 16384)):
        l1 = Cache(size << 10, 64, ways)
        assert l1.way == way
        for stride in (4, 64, 96, 100, 4096, 5000, 12288, 16384, 1 << 20):
            # Lines as far apart fill the sets that are met in one round and no other ones.
            met = {i * stride % way // 64 for i in range(way)}
            assert l1.sets(stride) in (len(met), len(met) + 1), (stride, way)


@pytest.mark.parametrize("page", PAGES)
def test_a_walk_that_the_tlb_holds_is_not_packed(page: int) -> None:
    """Stride, span and reuse: pages are counted one by one here."""
    decided = set()
    for m, k in product((600, 1000, 3000, 5000, 30000), (16, 24, 48, 63, 65, 100, 300, 2000)):
        steps, col = min(k, F32.depth_block), 4 * m
        pages = len({i * col // page for i in range(steps)})
        if abs(pages - KNOB) <= 1:
            continue
        pack, why = _reads_a(m, k, page)
        wasted = pages > KNOB
        assert (pack is PackA.PANELS) == wasted, (m, k, why)
        assert ("wastes TLB entries" in why) == wasted
        decided.add(wasted)
        # A step that is short, or a row of A that meets few micropanels, never is.
        assert _reads_a(m, k, page, lhs_pack_stride=col + 1)[0] is PackA.INPLACE
        assert _reads_a(m, k, page, n=64)[0] is PackA.INPLACE
        # As many entries as there are pages are enough.
        assert "TLB" not in _reads_a(m, k, page, lhs_pack_pages=pages + 2)[1]
    assert decided == {False, True}


def test_steps_in_one_set_of_l1_are_packed_whatever_a_page_is() -> None:
    for page, (k, packed) in product(PAGES, ((16, False), (18, False), (19, True), (40, True))):
        pack, why = _reads_a(4096, k, page)
        assert (pack is PackA.PANELS) == packed, (k, why)
        assert ("collide in L1" in why) == packed
    # Half as many lines as there are places in two sets.
    assert "collide" not in _reads_a(4096 + 512, 36, 4096)[1]


def test_rows_of_b_collide_in_sets_not_in_pages() -> None:
    def why(row: int, way: int, page: int) -> str:
        machine = replace(SERVER, l2=Cache(1 << 20), l1=Cache(8 * way, 64, 8), page=page)
        some = problem(40, row // 4, 500)
        return next(r for r in make_plan(some, context(machine=machine)).reasons if "B:" in r)

    for page in PAGES:
        assert "rows a multiple of 4096 bytes apart" in why(4096, 4096, page)
        assert "rows a multiple" not in why(4096, 16384, page)
        assert "rows a multiple of 16384 bytes apart" in why(16384, 16384, page)


def test_blocking_does_not_depend_on_the_page() -> None:
    for element, orders, m in product((F32, F64), ("CCC", "CFC", "CPC"), (1, 8, 100, 3000)):
        plans = [
            make_plan(
                problem(m, 3000, 5000, element=element, orders=orders),
                context(2, machine=replace(SERVER, page=page)),
            )
            for page in PAGES
        ]
        assert plans[0] == plans[1] == plans[2]


def test_a_huge_page_is_what_a_page_of_a_page_table_maps() -> None:
    assert mmap.PAGESIZE * (mmap.PAGESIZE // 8) == memory._HUGE
    for page, huge in ((4096, 2 << 20), (16384, 32 << 20), (65536, 512 << 20)):
        assert page * (page // 8) == huge
