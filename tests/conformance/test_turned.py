"""B with contiguous columns, turned in registers: walked straight, and with a lag."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from cases import PLAIN, TURNED_ALPHA, TURNED_BETA, compiles, rich, short_block, specs
from products import Case
from test_micro import MicroCase

from jitgemm.kernels.nest import nest, serial
from jitgemm.kernels.skewed import Skew
from jitgemm.kernels.spec import Bias, BSource, GemmSpec
from jitgemm.planner.route import PackA

SPECS = specs([BSource.COLUMNS])
RICH = rich(SPECS)
COMPILED = [p for p in SPECS if compiles(p.values[0])]


def _widths(spec: GemmSpec) -> list[int]:
    """Columns: one, fewer than a vector holds, one vector, one more, all but one, all."""
    per, width = spec.lanes // spec.parts, spec.nr // spec.parts
    return sorted({1, max(1, per - 1), per, min(per + 1, width), max(1, width - 1), width})


# -- straight -------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS)
def test_microkernels(spec: GemmSpec) -> None:
    """Depths below, at and above a block of the transpose; columns that do not exist."""
    per, mr = spec.lanes // spec.parts, spec.tile.mr
    for number, cols in enumerate(_widths(spec)):
        depths = {1, per - 1, per, per + 1, 2 * per + per // 2}
        for depth in depths if spec.epilogue != PLAIN else {1, per + 1}:
            rows = 1 + (number + depth) % mr
            first, last = [(1, 1), (0, 0), (0, 1), (1, 0)][(number + depth) % 4]
            MicroCase(spec, 1, rows, cols, first, last, depth).check()
    for rows in range(1, mr + 1):
        MicroCase(spec, 1, rows, per, depth=per + 1).check()
        MicroCase(spec, 1, rows, 1, depth=0).check()


def _cases(spec: GemmSpec) -> Iterator[Case]:
    mr, width, per = spec.tile.mr, spec.nr // spec.parts, spec.lanes // spec.parts
    edge = Case(spec, mr + 1, width + 1, per + 1, mr)
    yield replace(edge, layout_a="both")
    yield replace(edge, m=1, tile_rows=1, n=3 * width - 1, k=2, panels=1)
    yield replace(edge, k=0)
    yield replace(edge, pack_a=PackA.PANELS, layout_a="cols", n=2)
    yield replace(edge, pack_a=PackA.ROWS, m=mr, n=1)
    yield replace(edge, pack_a=PackA.PANELS, swap="a")
    foreign = "cd" + ("v" if spec.epilogue.bias is Bias.FULL else "")
    yield replace(edge, direct=False, swap=foreign, layout_d="cols", layout_bias="both")
    yield replace(edge, direct=False, layout_d="reversed", in_place=True)


@pytest.mark.parametrize("spec", SPECS)
def test_nest(spec: GemmSpec) -> None:
    """Chunks, edges and layouts around the microkernel."""
    for case in _cases(spec):
        case.check(nest(spec))
    Case(spec, 1, 3, 5, 1).check(serial(spec))
    Case(spec, 1, 2, 3, 1, zeros=True).check(nest(spec))


@pytest.mark.parametrize("spec", COMPILED)
def test_several_depth_blocks(spec: GemmSpec) -> None:
    """Sums rest in D between blocks, and between slices."""
    block = spec.element.depth_block
    deep = Case(spec, 2, 3, block + 1, min(2, spec.tile.mr))
    for depth in (block, block + 1, 2 * block + 3):
        replace(deep, k=depth).check(nest(spec), machine_only=True)
    replace(deep, slice_depth=block).check(nest(spec), machine_only=True)


# -- with a lag -----------------------------------------------------------------------------------


def _lagging(spec: GemmSpec, rows: int, cols: int, depth: int) -> Case:
    return Case(spec, rows, cols, depth, rows, pack_a=PackA.LAGGED)


def test_a_column_at_a_time_reaches_the_end_of_a_block() -> None:
    """What the walk needs of every registered row: at least as many steps per block as columns."""
    for spec in (p.values[0] for p in SPECS):
        skew = Skew(spec)
        steps, rest = divmod(spec.element.depth_block, skew.depth_per_step)
        assert (rest, steps >= skew.columns) == (0, True), spec.symbol


@pytest.mark.parametrize("spec", SPECS)
def test_skewed_depths(spec: GemmSpec) -> None:
    """Below, at and above a step of the walk; fewer steps than columns lag."""
    step, width = Skew(spec).depth_per_step, spec.nr // spec.parts
    for depth in (1, step - 1, step, step + 1, 3 * step - 1):
        _lagging(spec, 1, width, depth).check(nest(spec))
    replace(_lagging(spec, 1, 1, step), zeros=True).check(nest(spec))


@pytest.mark.parametrize("spec", RICH)
def test_skewed_tiles(spec: GemmSpec) -> None:
    """Every number of rows, columns that are missing, layouts of A, several panels, a buffer."""
    step, mr, widths = Skew(spec).depth_per_step, spec.tile.mr, _widths(spec)
    for number, cols in enumerate(widths[:-1]):
        rows = 1 + number % mr
        layout = ("rows", "cols", "both", "reversed")[number % 4]
        replace(_lagging(spec, rows, cols, step + 3), layout_a=layout).check(nest(spec))
    case = _lagging(spec, mr, widths[-1] + 1, step)
    # Rows of several tiles, in one chunk: each has its own part of the copy, and rows of its own.
    tiles = {"m": 2 * mr + 1, "tile_rows": mr, "row_tiles": 3, "n": 2}
    replace(case, k=2 * step + 1, **tiles).check(nest(spec))
    replace(case, k=1, **tiles).check(nest(spec))
    for rows in range(1, mr + 1):
        replace(case, m=rows, tile_rows=rows, n=2).check(nest(spec))
    replace(case, direct=False, layout_d="cols", layout_c="cols", layout_bias="cols", panels=1,
            ).check(nest(spec))  # fmt: skip
    if spec.parts == 2:
        turned = replace(case, alpha=TURNED_ALPHA, beta=TURNED_BETA, conj="ab", n=1)
        turned.check(nest(spec))


@pytest.mark.parametrize("spec", RICH)
def test_skewed_blocks(spec: GemmSpec) -> None:
    """Each column ends its blocks at steps of its own; the interpreter follows the shortest."""
    block, step = spec.element.depth_block, Skew(spec).depth_per_step
    few = block <= 64
    for depth in (block - 1, block, block + 1, block + step, 2 * block, 3 * block + step + 1):
        case = _lagging(spec, 1, spec.nr // spec.parts - 1 or 1, depth)
        case.check(nest(spec), machine_only=not few)


@pytest.mark.parametrize("spec", [p for p in COMPILED if p.values[0].epilogue == PLAIN])
def test_skewed_blocks_of_the_element_type(spec: GemmSpec) -> None:
    """The block that is released, and depths at which lanes end blocks and the sum at once."""
    block, step, mr = spec.element.depth_block, Skew(spec).depth_per_step, spec.tile.mr
    for depth in (block, block + 1, 2 * block - 1, 2 * block + 3 * step, 3 * block):
        case = _lagging(spec, mr, spec.nr // spec.parts, depth)
        case.check(nest(spec), machine_only=True)


@pytest.mark.parametrize("spec", COMPILED)
def test_two_threads(spec: GemmSpec) -> None:
    """Each thread has a lagging copy of its own."""
    width = spec.nr // spec.parts
    case = Case(spec, 1, 7 * width + 1, 70, 1, panels=1, threads=2)
    case.check_threads(nest(spec))
    replace(case, pack_a=PackA.LAGGED).check_threads(nest(spec))


def test_short_blocks_are_as_short_as_the_walk_allows() -> None:
    for spec in (p.values[0] for p in RICH):
        assert short_block(spec) == spec
        assert spec.element.depth_block // Skew(spec).depth_per_step == Skew(spec).columns
