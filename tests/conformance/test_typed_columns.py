"""Columns of B read in place where numbers are narrower than sums: floats transposed, k-groups not.

Depths end amid k-groups, lanes and depth blocks; zero points take the sums of columns with them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from cases import CLIPPED, MAPPED, PLACED, PLAIN, compiles
from typed import TypedCase

from jitgemm.isa import tables
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import BF16, F16, F32, F64, I8, I16, I32, I64, U8, ElementType
from jitgemm.jit.target import available
from jitgemm.kernels.arithmetic import OperandTypes
from jitgemm.kernels.nest import nest
from jitgemm.kernels.spec import Bias, BSource, Epilogue, GemmSpec, Scale
from rows import distinct_sets, typed_spec

FLOATS = [i for i in distinct_sets() if available(i)]
SETS = [i for i in tables.BY_NAME.values() if available(i)]
FULL = Epilogue(beta=True, bias=Bias.FULL)
EXACT = (
    PLAIN,
    Epilogue(zero_a=True, zero_b=True, beta=True, bias=Bias.COLUMN),
    Epilogue(zero_b=True, scale=Scale.COLUMN, bias=Bias.ROW),
)


def _spec(
    isa: Isa, types: tuple[ElementType, ElementType, ElementType], epilogue: Epilogue
) -> GemmSpec | None:
    """The kernel, if columns of such a B are read where they are on this set."""
    a, b, out = types
    given = OperandTypes(a, b, out, out, out)
    if epilogue.scale is not Scale.NONE:
        given = replace(given, c=I32, bias=I32)
    if not typed_spec(isa, given, epilogue, vectors=True).arithmetic.reads_columns:
        return None
    return typed_spec(isa, given, epilogue, source=BSource.COLUMNS)


def _params(sets: list[Isa], *rows: tuple[Any, ...]) -> list[Any]:
    found = {}
    for isa, (a, b, out, epilogue) in product(sets, rows):
        spec = _spec(isa, (a, b, out), epilogue)
        if spec is not None:
            found[spec.symbol] = spec
    return [pytest.param(s, id=name) for name, s in found.items()]


HALVES = _params(
    FLOATS, (F16, F16, F16, PLAIN), (BF16, BF16, F32, CLIPPED), (F32, F16, F32, PLACED),
    (BF16, BF16, BF16, MAPPED), (F16, F32, F32, FULL), (F64, F16, F64, PLAIN),
)  # fmt: skip
INTEGERS = _params(
    SETS,
    *((a, b, I32, EXACT[(i + 1) % 2]) for i, (a, b) in enumerate(product((I8, U8), repeat=2))),
    (I8, I8, I8, EXACT[2]), (U8, U8, U8, EXACT[2]), (I16, I16, I32, PLAIN), (I16, I16, I16, FULL),
    (I8, I64, I64, PLAIN),
)  # fmt: skip
apart = pytest.mark.parametrize("staggered", [False, True], ids=["in step", "staggered"])


def _numbers(spec: GemmSpec) -> int:
    """Numbers in a lane of sums."""
    return spec.element.bytes // spec.panel_element.bytes


@pytest.mark.parametrize("spec", [*HALVES, *INTEGERS])
def test_depths_and_columns(spec: GemmSpec) -> None:
    """Depths below, at and above a lane and a vector; columns that do not exist."""
    mr, lanes, per = spec.tile.mr, spec.lanes, _numbers(spec)
    depths = sorted({1, per - 1, per, per + 1, lanes * per - 1, lanes * per, 2 * lanes * per + 1})
    widths = [spec.nr, 1, lanes - 1, lanes + 1, spec.nr - 1, 2]
    for i, depth in enumerate(d for d in depths if d > 0):
        rows, cols = 1 + i % mr, max(1, widths[i % len(widths)])
        case = TypedCase(spec, rows, cols, depth, layout_b="cols", staggered=bool(i % 2))
        case.check(nest(spec))
    for rows in range(1, mr + 1):
        TypedCase(spec, rows, 3, lanes * per + 1, layout_b="cols").check(nest(spec))


@pytest.mark.parametrize("spec", [*HALVES, *INTEGERS])
def test_nest(spec: GemmSpec) -> None:
    """Chunks, edges and layouts around the walk."""
    mr, nr, group = spec.tile.mr, spec.nr, spec.arithmetic.group
    edge = TypedCase(spec, mr + 1, nr + 1, 2 * group + 1, layout_b="cols")
    for number, case in enumerate((
        replace(edge, panels=1, layout_a="cols"),
        replace(edge, m=1, n=2 * nr - 1, depth=4 * group, in_place=True, one_zero=True),
        replace(edge, m=2, n=2, layout_a="both", swap="a", row_tiles=2),
        replace(edge, m=2, n=3, direct=False, layout_d="cols", swap="acdv"),
    )):  # fmt: skip
        replace(case, staggered=bool(number % 2)).check(nest(spec))


@apart
@pytest.mark.parametrize("spec", [p for p in HALVES if compiles(p.values[0])])
def test_depth_blocks(spec: GemmSpec, *, staggered: bool) -> None:
    """Chains end where a depth block does, in a vector, between two, and amid what is left."""
    block, per = spec.element.depth_block, _numbers(spec)
    for depth in (block - 1, block, block + 1, 2 * block + per + 1, 9 * block - 1):
        case = TypedCase(
            spec, 1 + depth % 2, spec.nr - 1, depth, layout_b="cols", staggered=staggered
        )
        case.check(nest(spec), machine_only=True)


@pytest.mark.parametrize("spec", [p for p in INTEGERS if compiles(p.values[0])])
def test_long_sums_of_integers(spec: GemmSpec) -> None:
    block = spec.element.depth_block * spec.arithmetic.group
    for depth in (block, 2 * block + 3):
        case = TypedCase(spec, spec.tile.mr, spec.nr + 1, depth, layout_b="cols")
        case.check(nest(spec), machine_only=True)


def test_every_kind_is_met() -> None:
    """Halves of both formats, k-groups of two and of four, sums of columns."""
    halves = {p.values[0].types.b for p in HALVES}
    assert halves >= {F16, BF16, F32}
    groups = {p.values[0].arithmetic.group for p in INTEGERS}
    assert groups >= ({1, 2, 4} if any("dot4" in i.integers for i in SETS) else {1, 2})
    assert {p.values[0].epilogue.zero_a for p in INTEGERS} == {True, False}
