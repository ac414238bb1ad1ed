"""Rows of a B of halves, streamed: upconverted on the way, sums of a window beside a narrow D."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import CLIPPED, MAPPED, PLACED, PLAIN, compiles
from typed import TypedCase

from jitgemm.isa.types import BF16, F16, F32, F64, I8, I32, I64, ElementType
from jitgemm.jit.target import available
from jitgemm.kernels.arithmetic import OperandTypes
from jitgemm.kernels.nest import nest
from jitgemm.kernels.spec import Bias, BSource, Epilogue, GemmSpec
from jitgemm.kernels.streaming import STREAMED_ROWS, window
from rows import distinct_sets, typed_spec

FLOATS = [i for i in distinct_sets() if available(i)]
FULL = Epilogue(beta=True, bias=Bias.FULL)
KINDS: tuple[tuple[ElementType, ElementType, ElementType, Epilogue], ...] = (
    (F16, F16, F16, PLAIN), (BF16, BF16, BF16, CLIPPED), (F32, BF16, F32, PLACED),
    (F16, F16, BF16, MAPPED), (F64, F16, F64, PLAIN), (F32, F32, F16, FULL), (I8, I64, I64, FULL),
    (I32, I32, I8, PLAIN),
)  # fmt: skip


def _specs() -> list[GemmSpec]:
    found = {}
    for isa in FLOATS:
        for a, b, out, epilogue in KINDS:
            spec = typed_spec(
                isa, OperandTypes(a, b, out, out, out), epilogue, source=BSource.INPLACE
            )
            found[spec.symbol] = spec
    return list(found.values())


SPECS = [pytest.param(s, id=s.symbol) for s in _specs()]


@pytest.mark.parametrize("spec", SPECS)
def test_sweeps(spec: GemmSpec) -> None:
    """One vector and less, several and a part; depths that are no whole number of streams."""
    for m in range(1, STREAMED_ROWS + 1):
        for n, depth in ((1, 3), (spec.lanes, 9), (5 * spec.lanes - 1, 10)):
            TypedCase(spec, m, n, depth, sweep=True).check(nest(spec))
    TypedCase(spec, 1, spec.lanes + 1, 9, sweep=True, layout_a="both").check(nest(spec))


@pytest.mark.parametrize("spec", [p for p in SPECS if compiles(p.values[0])])
def test_windows_and_depth_blocks(spec: GemmSpec) -> None:
    """Sums of earlier depth blocks rest where each window begins anew."""
    block = spec.element.depth_block
    for m in range(1, STREAMED_ROWS + 1):
        wide = window(spec, m) + spec.lanes + 1
        case = TypedCase(spec, m, wide, block + 3, sweep=True)
        case.check(nest(spec), machine_only=True)
        replace(case, n=3, depth=3 * block, swap="a").check(nest(spec), machine_only=True)


def test_every_kind_is_met() -> None:
    specs = [p.values[0] for p in SPECS]
    assert {s.spills_to_buffer for s in specs} == {True, False}
    assert {s.panel_element for s in specs} >= {F16, BF16, F32}
