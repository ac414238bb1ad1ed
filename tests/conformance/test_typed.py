"""Nests of operands of several types, against exact integers and the rounding contract."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from cases import CLIPPED, MAPPED, PLACED, PLAIN
from typed import TypedCase, pairs_of_types

from jitgemm.isa import tables
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import BF16, F16, F32, I8, I16, I32, U8, ElementType
from jitgemm.jit.target import available
from jitgemm.kernels.arithmetic import OperandTypes
from jitgemm.kernels.expression import ACTIVATIONS
from jitgemm.kernels.nest import nest
from jitgemm.kernels.spec import Bias, Epilogue, GemmSpec, Scale, Tile
from rows import distinct_sets, typed_spec

SETS = [i for i in tables.BY_NAME.values() if available(i)]

BETA = Epilogue(beta=True, bias=Bias.COLUMN)
ROW = Epilogue(bias=Bias.ROW)
FULL = Epilogue(beta=True, bias=Bias.FULL)
# With zero points of one operand, of the other and of both, and every way to scale.
ZEROS = (
    Epilogue(zero_a=True),
    Epilogue(zero_b=True, bias=Bias.ROW),
    Epilogue(zero_a=True, zero_b=True, beta=True, bias=Bias.COLUMN, program=ACTIVATIONS["clip"]),
)
REQUANTISED = (
    Epilogue(scale=Scale.ROW, bias=Bias.COLUMN),
    Epilogue(zero_a=True, zero_b=True, scale=Scale.ROW, program=ACTIVATIONS["relu"]),
    Epilogue(zero_a=True, zero_b=True, scale=Scale.COLUMN, bias=Bias.FULL),
)


def _narrow(types: OperandTypes) -> bool:
    return types.a in (I8, U8) and types.b in (I8, U8)


def _low(spec: GemmSpec) -> GemmSpec:
    """The same with a tile of few rows, which compiles in a third of the time.

    What is converted, and when, does not depend on the tile.
    """
    if spec.tiles:
        return spec  # all heights are the same code
    tile = spec.tile
    return replace(spec, tile=Tile(min(3, tile.mr), tile.nr_regs, ((1, min(3, tile.mr)), (2, 1))))


def _specs() -> list[Any]:
    """A spec of each pair of types, of all sets in turn."""
    found = {}
    for number, types in enumerate(pairs_of_types()):
        epilogues = (PLAIN, BETA, ROW, FULL)
        isa = SETS[number % len(SETS)]
        spec = _low(typed_spec(isa, types, epilogues[number // len(SETS) % 4]))
        found[spec.symbol] = spec
    return [pytest.param(s, id=name) for name, s in found.items()]


def _of(
    a: ElementType, b: ElementType, out: ElementType, *epilogues: Epilogue, sets: list[Isa] = SETS
) -> list[Any]:
    types = OperandTypes(a, b, out, out, out)
    specs = [_low(typed_spec(isa, types, e)) for isa in sets for e in epilogues]
    return [pytest.param(s, id=s.symbol) for s in specs]


def _bytes() -> Iterator[Any]:
    """Both signs of both operands on every set, each with three of the epilogues in turn.

    Every set and sign meets the tile that is released once.
    """
    epilogues = (PLAIN, FULL, *ZEROS, *REQUANTISED)
    for number, (a, b) in enumerate(product((I8, U8), repeat=2)):
        for place, isa in enumerate(SETS):
            for turn in (0, 3, 6):
                e = epilogues[(number + 3 * place + turn) % len(epilogues)]
                out = I32 if e.scale is Scale.NONE else (I8, U8)[(place + turn) % 2]
                spec = typed_spec(isa, OperandTypes(a, b, I32, I32, out), e)
                spec = _low(spec) if turn else spec
                yield pytest.param(spec, id=f"{spec.symbol}-{number}{place}{turn}")


BYTES = list(_bytes())
# Halves are widened to floats: sets that make the same code of floats are alike.
FLOATS = [i for i in distinct_sets() if available(i)]
HALVES = [
    *_of(BF16, BF16, BF16, PLAIN, CLIPPED, MAPPED, sets=FLOATS),
    *_of(F16, F16, F16, PLACED, FULL, sets=FLOATS), *_of(BF16, BF16, F32, ROW, sets=FLOATS),
    *_of(F32, F16, F32, MAPPED, sets=FLOATS), *_of(F16, F32, F32, BETA, sets=FLOATS),
]  # fmt: skip
SHORT = _of(I16, I16, I16, FULL) + _of(I16, U8, I16, ROW) + _of(I16, I16, I32, BETA)


def _for_many_rows(spec: GemmSpec) -> GemmSpec:
    """The same with micropanels widened before microtiles meet them, one at a time."""
    how, tile = spec.arithmetic, spec.tile
    one = Tile(tile.mr, tile.nr_regs, ((1, tile.mr),))
    return replace(spec, arithmetic=how.for_many_rows, tile=one)


def _cases(case: TypedCase, group: int) -> Iterator[TypedCase]:
    """Edges of tiles, panels and words, chunks, layouts, foreign bytes, results out of place."""
    mr, nr = case.spec.tile.mr, case.spec.nr
    yield case
    yield replace(case, depth=2 * group, in_place=True, m=1, one_zero=True, one_scale=True)
    yield replace(case, m=mr + 1, n=nr + 1, depth=group + 1, layout_a="cols", layout_b="cols",
                  panels=1)  # fmt: skip
    yield replace(case, m=1, n=3 * nr - 1, depth=1, layout_a="reversed", layout_b="reversed",
                  block_panels=2)  # fmt: skip
    yield replace(case, m=2, n=2, depth=2 * group - 1, layout_a="both", layout_b="both",
                  layout_d="cols", direct=False)  # fmt: skip
    yield replace(case, m=2, n=3, depth=3, layout_b="cols reversed", swap="abcdv", direct=False)
    yield replace(case, m=mr, n=nr, depth=0, one_zero=True)


@pytest.mark.parametrize("spec", [*BYTES, *HALVES, *SHORT])
def test_nest(spec: GemmSpec) -> None:
    """Packing into words, folding, correcting and narrowing, by every layout."""
    how = spec.arithmetic
    start = TypedCase(spec, min(3, spec.tile.mr), spec.lanes + 1, 4 * how.group + 1, row_tiles=2)
    for case in _cases(start, how.group):
        case.check(nest(spec))


@pytest.mark.parametrize("epilogue", [PLAIN, FULL, MAPPED], ids=str)
@pytest.mark.parametrize("half", [BF16, F16], ids=str)
@pytest.mark.parametrize("isa", FLOATS, ids=lambda i: i.name)
def test_panels_widened_for_many_rows(isa: Isa, half: ElementType, epilogue: Epilogue) -> None:
    """Several tiles and chunks of rows, panels and depth blocks."""
    spec = typed_spec(isa, OperandTypes(*[half] * 5), epilogue, vectors=True)
    spec = _for_many_rows(_low(spec))
    assert spec.upconverts_panels
    assert spec.panel_row == 2 * spec.in_memory.panel_row
    start = TypedCase(spec, 2 * spec.tile.mr + 1, spec.nr + 1, 5, row_tiles=2)
    for case in (
        start,
        replace(start, n=3 * spec.nr - 1, depth=1, panels=1, layout_a="cols", layout_b="both"),
        replace(start, m=1, n=2, depth=0),
        replace(start, m=2, n=3, direct=False, layout_d="cols", swap="abcdv"),
    ):
        case.check(nest(spec))
    deep = replace(start, depth=spec.element.depth_block + 3, n=2)
    deep.check(nest(spec), machine_only=not isa.interpreted)


@pytest.mark.parametrize("spec", _specs())
def test_every_pair_of_types(spec: GemmSpec) -> None:
    """Each product that needs words or conversions, on one set after the other."""
    case = TypedCase(spec, 2, spec.lanes + 1, 7)
    case.check(nest(spec))
    replace(case, m=1, n=1, layout_a="cols", layout_b="cols", swap="abcdv", direct=False,
            depth=5).check(nest(spec))  # fmt: skip


@pytest.mark.parametrize(
    "spec", [p for p in (*BYTES[1::4], *HALVES, *SHORT) if not p.values[0].isa.interpreted]
)
def test_several_depth_blocks(spec: GemmSpec) -> None:
    """Sums rest apart, or in the result, between blocks; corrections come once, at the end."""
    how = spec.arithmetic
    block = spec.element.depth_block * how.group
    case = TypedCase(spec, 2, 3, block + how.group + 1)
    for other in (case, replace(case, depth=2 * block, direct=False, layout_d="cols")):
        other.check(nest(spec), machine_only=True)
    replace(case, m=1, n=1).check(nest(spec))


def test_every_pair_is_met() -> None:
    """Both signs of 8 bits, every width, halves, and floats with integers."""
    types = pairs_of_types()
    assert len(types) > 100
    assert {t.a for t in types} == {t.b for t in types} >= {I8, U8, I16, BF16, F16, F32}
    assert any(_narrow(t) and t.out is I32 for t in types)
    assert any(_narrow(t) and t.out is not I32 for t in types)
    met = {p.values[0].epilogue for p in BYTES}
    assert {e.scale for e in met} == set(Scale)
    assert {(e.zero_a, e.zero_b) for e in met} == set(product((True, False), repeat=2))
    assert {(p.values[0].types.a, p.values[0].types.b) for p in BYTES} == set(
        product((I8, U8), repeat=2)
    )
