"""Where a product is too deep to be begun, and how much memory block sums take."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from test_planner import SERVER, TINY, context, problem

from jitgemm.isa.tables import AVX2, AVX512, PORTABLE, Isa
from jitgemm.isa.types import F32, F64, ElementType
from jitgemm.planner.machine import Cache
from jitgemm.planner.route import SplitDepth, make_plan

LIMIT = 1 << 47
"""Bytes of one micropanel of B over all of k, packed or not."""


@pytest.mark.parametrize("isa", [PORTABLE, AVX2, AVX512], ids=lambda x: x.name)
@pytest.mark.parametrize("element", [F32, F64], ids=lambda x: x.name)
@pytest.mark.parametrize("route", ["CCC", "CPC", "FCF"])
@pytest.mark.parametrize("m, n", [(3, 3), (40, 3), (1, 3), (3, 1)])
def test_the_depth_limit_is_that_of_a_micropanel(
    m: int, n: int, route: str, element: ElementType, isa: Isa
) -> None:
    """On every route, those that pack nothing and those that share the depth among threads too."""
    for threads in (1, 2):
        # Deep enough to be oriented like the deepest.
        deep = problem(m, n, 1 << 16, element=element, orders=route)
        made = make_plan(deep, context(threads, isa))
        deepest = LIMIT // made.spec.panel_row
        fits = problem(m, n, deepest, element=element, orders=route)
        assert make_plan(fits, context(threads, isa)).spec.panel_row == made.spec.panel_row
        with pytest.raises(MemoryError, match=rf"^jitgemm: workspace: .*k={deepest + 1} would"):
            make_plan(
                problem(m, n, deepest + 1, element=element, orders=route), context(threads, isa)
            )


@pytest.mark.parametrize("l2", [1 << 10, 16 << 10, 1 << 20])
@pytest.mark.parametrize("element", [F32, F64], ids=lambda x: x.name)
def test_block_sums_of_a_round_stay_in_half_of_l2(element: ElementType, l2: int) -> None:
    """But there are at least four blocks per thread; the rounds together are all of the depth."""
    machine = replace(TINY, l2=Cache(l2, 64, 4))
    rounds = set()
    for (m, n), blocks, threads in itertools.product(
        ((2, 3), (3, 40)), (1, 7, 40, 1000, 20_000), (1, 2, 3)
    ):
        if m * n * element.bytes > l2 // 2:
            continue
        k = blocks * element.depth_block
        made = make_plan(
            problem(m, n, k, element=element, orders="FCC"),
            context(threads, machine=machine, split_depth=1, parallel_flops=1),
        )
        assert isinstance(made.route, SplitDepth)
        split = made.route.bounds
        least = 4 * threads * split.sums_stride
        assert split.round_blocks * split.sums_stride <= max(threads * l2 // 2, least)
        assert split.round_blocks <= blocks
        # Memory does not grow with the depth.
        assert made.workspace_bytes - made.workspace_b <= (
            max(threads * l2 // 2, least) + split.sums_stride + 64 * threads
        )
        # Half of L2 is used, if there is as much.
        assert min(blocks, threads * l2 // 2 // split.sums_stride) <= split.round_blocks
        rounds.add(-(-blocks // split.round_blocks))
    assert min(rounds) == 1
    assert max(rounds) > 4 or l2 == 1 << 20


def test_limits_are_the_same_on_every_machine() -> None:
    """They are of address space, not of caches."""
    for machine in (SERVER, TINY):
        made = make_plan(problem(3, 3, 600), context(machine=machine))
        deepest = LIMIT // made.spec.panel_row
        make_plan(problem(3, 3, deepest), context(machine=machine))
        with pytest.raises(MemoryError):
            make_plan(problem(3, 3, deepest + 1), context(machine=machine))
