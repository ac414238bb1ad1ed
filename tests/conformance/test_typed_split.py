"""Deep sums of numbers narrower than their sums: packed and copied a depth block at a time."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from cases import CLIPPED, MAPPED, PLAIN, compiles
from typed import TypedCase

from jitgemm.isa import tables
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import BF16, F16, F32, F64, I8, I16, I32, I64, U8, ElementType
from jitgemm.jit.target import available
from jitgemm.kernels.arithmetic import OperandTypes
from jitgemm.kernels.spec import Bias, BSource, Epilogue, GemmSpec, Scale
from jitgemm.kernels.split import split
from rows import distinct_sets, typed_spec

FLOATS = [i for i in distinct_sets() if available(i)]
SETS = [i for i in tables.BY_NAME.values() if available(i)]
FULL = Epilogue(beta=True, bias=Bias.FULL)
EXACT = (
    PLAIN,
    Epilogue(zero_a=True, zero_b=True, beta=True, bias=Bias.COLUMN),
    Epilogue(zero_b=True, scale=Scale.COLUMN, bias=Bias.ROW),
    Epilogue(zero_a=True, scale=Scale.ROW),
)


def _spec(
    isa: Isa, types: tuple[ElementType, ElementType, ElementType], epilogue: Epilogue,
    source: BSource,
) -> GemmSpec:  # fmt: skip
    a, b, out = types
    given = OperandTypes(a, b, out, out, out)
    if epilogue.scale is not Scale.NONE:
        given = replace(given, c=I32, bias=I32)
    return typed_spec(isa, given, epilogue, vectors=True, source=source)


def _params(sets: list[Isa], *rows: tuple[Any, ...]) -> list[Any]:
    found = {}
    for isa, (a, b, out, epilogue, source) in product(sets, rows):
        spec = _spec(isa, (a, b, out), epilogue, source)
        found[spec.symbol] = spec
    return [pytest.param(s, id=name) for name, s in found.items()]


HALVES = _params(
    FLOATS, (F16, F16, F16, MAPPED, BSource.PACKED), (BF16, BF16, F32, CLIPPED, BSource.INPLACE),
    (F16, F16, BF16, FULL, BSource.COLUMNS), (F32, F16, F16, MAPPED, BSource.INPLACE),
    (F32, I16, F32, PLAIN, BSource.PACKED), (F16, F16, F64, PLAIN, BSource.PACKED),
)  # fmt: skip
INTEGERS = _params(
    SETS,
    *((a, b, I32, EXACT[i % 2], BSource.PACKED) for i, (a, b) in
      enumerate(product((I8, U8), repeat=2))),
    (U8, I8, I8, EXACT[2], BSource.PACKED), (U8, U8, U8, EXACT[3], BSource.PACKED),
    (I16, I16, I16, FULL, BSource.COLUMNS), (I16, U8, I64, PLAIN, BSource.PACKED),
)  # fmt: skip
SPECS = [p for p in (*HALVES, *INTEGERS) if compiles(p.values[0])]


def _case(spec: GemmSpec, blocks: int, rest: int) -> TypedCase:
    depth = blocks * spec.element.depth_block * spec.arithmetic.group + rest
    layout = "cols" if spec.b is BSource.COLUMNS else "rows"
    return TypedCase(spec, 2, 3, depth, layout_b=layout, round_blocks=blocks + (rest > 0))


@pytest.mark.parametrize("spec", SPECS)
def test_blocks_and_rounds(spec: GemmSpec) -> None:
    """One block and several; a last one that ends amid a k-group; rows in chunks of their own."""
    wide, tall = spec.nr + 1, spec.tile.mr + 1
    for case in (
        _case(spec, 1, 0),
        replace(_case(spec, 2, 1), range_blocks=3, m=tall, one_zero=True),
        replace(_case(spec, 3, 5), round_blocks=2, range_blocks=2, layout_a="cols", n=1),
        replace(_case(spec, 2, 3), round_blocks=1, m=tall, n=wide, adding_rows=2, swap="a"),
        replace(_case(spec, 2, 0), m=1, n=spec.lanes, in_place=True, adding_rows=4),
    ):
        case.check(split(spec), machine_only=True)


@pytest.mark.parametrize("spec", [p for p in SPECS if not p.values[0].arithmetic.copies_a])
def test_rows_in_place(spec: GemmSpec) -> None:
    """Whole k-groups that need no copy; the interpreter refuses what lies outside of them."""
    case = replace(_case(spec, 1, spec.arithmetic.group), m=1, n=1, in_place=True)
    case.check(split(spec), machine_only=spec.arithmetic.group > 2)


@pytest.mark.parametrize("spec", [*HALVES[:4], *INTEGERS[-8:]])
def test_nothing_outside_is_touched(spec: GemmSpec) -> None:
    """In the checking interpreter, more than one block deep."""
    replace(_case(spec, 1, 3), m=1, n=2).check(split(spec))


@pytest.mark.parametrize("spec", SPECS)
def test_two_threads(spec: GemmSpec) -> None:
    """Each packs and copies for itself."""
    case = replace(_case(spec, 4, 5), threads=2, m=spec.tile.mr + 2, n=spec.nr + 1)
    for per_round, per_range in ((5, 1), (2, 1)):
        replace(case, round_blocks=per_round, range_blocks=per_range).check_threads(split(spec))


def test_every_kind_is_met() -> None:
    specs = [p.values[0] for p in (*HALVES, *INTEGERS)]
    assert {s.b for s in specs} == set(BSource)
    assert {(s.epilogue.zero_a, s.epilogue.zero_b) for s in specs} == set(
        product((True, False), repeat=2)
    )
    assert {s.spills_to_buffer for s in specs} == {True, False}
    assert {s.arithmetic.copies_a for s in specs} == {True, False}
