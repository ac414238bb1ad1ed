"""B with contiguous columns, transposed in registers: walked in step, and staggered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from cases import PLAIN, TURNED_ALPHA, TURNED_BETA, compiles, rich, specs
from products import Case

from jitgemm.kernels.nest import nest, serial
from jitgemm.kernels.spec import Bias, BSource, GemmSpec
from jitgemm.planner.route import PackA

SPECS = specs([BSource.COLUMNS])
RICH = rich(SPECS)
COMPILED = [p for p in SPECS if compiles(p.values[0])]


def _widths(spec: GemmSpec) -> list[int]:
    """Columns: one, fewer than a vector holds, one vector, one more, all but one, all."""
    per, width = spec.lanes // spec.components, spec.nr // spec.components
    return sorted({1, max(1, per - 1), per, min(per + 1, width), max(1, width - 1), width})


both_ways = pytest.mark.parametrize("staggered", [False, True], ids=["in step", "staggered"])


@both_ways
@pytest.mark.parametrize("spec", SPECS)
def test_depths_and_columns(spec: GemmSpec, *, staggered: bool) -> None:
    """Depths below, at and above a block of the transpose; columns that do not exist."""
    per, mr = spec.lanes // spec.components, spec.tile.mr
    depths = sorted({1, per - 1, per, per + 1, 2 * per + per // 2} - {0})
    # Like the fields of a chessboard, plain specs of one colour and those with an epilogue of the
    # other: widths and depths are met apart by every spec, and together by every row.
    colour = spec.epilogue == PLAIN
    for (i, cols), (j, depth) in product(enumerate(_widths(spec)), enumerate(depths)):
        if (i + j) % 2 == colour:
            rows = 1 + (i + depth) % mr
            Case(spec, rows, cols, depth, rows, staggered=staggered).check(nest(spec))
    for rows in range(1, mr + 1):
        Case(spec, rows, per, per + 1, rows, staggered=staggered).check(nest(spec))
    Case(spec, 1, 2, 3, 1, zeros=True, staggered=staggered).check(nest(spec))


def _cases(spec: GemmSpec) -> Iterator[Case]:
    mr, width, per = spec.tile.mr, spec.nr // spec.components, spec.lanes // spec.components
    edge = Case(spec, mr + 1, width + 1, per + 1, mr)
    yield replace(edge, layout_a="both")
    yield replace(edge, m=1, tile_rows=1, n=3 * width - 1, k=2, panels=1)
    yield replace(edge, pack_a=PackA.PANELS, layout_a="cols", n=2)
    yield replace(edge, pack_a=PackA.ROWS, m=mr, n=1)
    yield replace(edge, pack_a=PackA.PANELS, swap="a")
    foreign = "cd" + ("v" if spec.epilogue.bias is Bias.FULL else "")
    yield replace(edge, direct=False, swap=foreign, layout_d="cols", layout_bias="both")
    yield replace(edge, direct=False, layout_d="reversed", in_place=True)
    if spec.components == 2:
        yield replace(edge, alpha=TURNED_ALPHA, beta=TURNED_BETA, conj="ab", n=1)


@pytest.mark.parametrize("spec", SPECS)
def test_nest(spec: GemmSpec) -> None:
    """Chunks, edges and layouts around the walk."""
    for number, case in enumerate(_cases(spec)):
        replace(case, staggered=bool(number % 2)).check(nest(spec))
    Case(spec, 1, 3, 5, 1).check(serial(spec))


@both_ways
@pytest.mark.parametrize("spec", RICH)
def test_several_short_depth_blocks(spec: GemmSpec, *, staggered: bool) -> None:
    """Chains end where a depth block does, between blocks of the transpose and amid them."""
    block, width = spec.element.depth_block, spec.nr // spec.components
    for depth in (block - 1, block, block + 1, 2 * block, 3 * block + 5):
        Case(spec, 1, max(1, width - 1), depth, 1, staggered=staggered).check(nest(spec))


@both_ways
@pytest.mark.parametrize("spec", COMPILED)
def test_depth_blocks_of_the_element_type(spec: GemmSpec, *, staggered: bool) -> None:
    """The block that is released, long enough for every group to be under way at once."""
    block, mr = spec.element.depth_block, spec.tile.mr
    case = Case(spec, mr, spec.nr // spec.components, 0, mr, staggered=staggered)
    for depth in (block, block + 1, 2 * block + 3, 5 * block - 1):
        replace(case, k=depth).check(nest(spec), machine_only=True)


@both_ways
@pytest.mark.parametrize("spec", COMPILED)
def test_two_threads(spec: GemmSpec, *, staggered: bool) -> None:
    width = spec.nr // spec.components
    case = Case(spec, 1, 7 * width + 1, 70, 1, panels=1, threads=2, staggered=staggered)
    case.check_threads(nest(spec))
