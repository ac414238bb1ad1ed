"""Transposing blocks compiles to the cheap shuffles it is written for, all of it in registers."""

from __future__ import annotations

import re

import pytest

from jitgemm.isa.tables import AVX2, AVX512, PORTABLE, Isa
from jitgemm.isa.types import F32, F64, ElementType
from jitgemm.jit import compiler
from jitgemm.jit.target import available, host
from jitgemm.kernels.transpose import transposed_copy

_CHEAP = r"v?(unpck[lh]p[sd]|mov(lh|hl)ps|shuf[fi](32x4|64x2)|insertf128|perm2f128)"
_OTHER = r"v?(perm|shuf|blend|insert|extract|broadcast|gather)\w+"

pytestmark = pytest.mark.skipif(host().arch != "x86_64", reason="reads x86 assembly")


@pytest.mark.parametrize("unit", [1, 2])
@pytest.mark.parametrize("element", [F32, F64], ids=str)
@pytest.mark.parametrize("isa", [AVX512, AVX2, PORTABLE], ids=lambda isa: isa.name)
def test_a_transpose_is_cheap_shuffles_in_registers(
    isa: Isa, element: ElementType, unit: int
) -> None:
    lanes = isa.lanes(element)
    count = lanes // unit
    if not available(isa) or count < 2:
        pytest.skip("not on this machine, or nothing to transpose")
    code = compiler.Unit("transpose", isa, lambda: [transposed_copy(element, lanes, unit)])
    lines = [line.strip() for line in compiler.assembly(code).splitlines()]
    cheap = [line for line in lines if re.match(_CHEAP, line)]
    assert len(cheap) == count * (count.bit_length() - 1)
    assert not [line for line in lines if re.match(_OTHER, line) and line not in cheap]
    assert not [line for line in lines if re.search(r"mm\d+", line) and "(%rsp" in line]
