"""Folds of AArch64: which one a product takes, what they mean, and products on the interpreter.

Machines without these sets run every kernel of them in the checking interpreter.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from cases import PLAIN
from typed import TypedCase, WholeCase

from jitgemm.isa import tables
from jitgemm.isa.arm import NEON_BF16_DOT
from jitgemm.isa.tables import NEON, NEON_BF16, NEON_DOT, Isa, sve, sve2_bf16, sve_bf16
from jitgemm.isa.types import BF16, F32, I8, I16, I32, U8, U16, ElementType
from jitgemm.kernels import registry
from jitgemm.kernels.arithmetic import OperandTypes, arithmetic_for
from jitgemm.kernels.nest import nest
from jitgemm.kernels.spec import Bias, BSource, Epilogue, GemmSpec, Scale, Tile
from rows import typed_spec

ARM = [NEON, NEON_DOT, NEON_BF16, *(f(b) for f in (sve, sve_bf16, sve2_bf16) for b in (128, 512))]
CHECKED = [pytest.param(replace(i, interpreted=True), id=f"{i.name}-{i.vector_bits}") for i in ARM]
ZEROS = Epilogue(zero_a=True, zero_b=True, bias=Bias.ROW)
REQUANTISED = Epilogue(zero_a=True, zero_b=True, scale=Scale.COLUMN)


def _types(a: ElementType, b: ElementType) -> OperandTypes:
    return OperandTypes(a, b, I32, I32, I32)


def _low(spec: GemmSpec) -> GemmSpec:
    """The same with a tile of few rows."""
    rows = min(2, spec.tile.mr)
    more = () if spec.b is BSource.COLUMNS else ((2, 1),)
    return replace(spec, tile=Tile(rows, spec.tile.nr_regs, ((1, rows), *more)))


# -- which fold ------------------------------------------------------------------------------------

SIGNED, UNSIGNED = (I8, I8), (U8, U8)
MIXED, TURNED = (U8, I8), (I8, U8)


def _choice(isa: Isa, a: ElementType, b: ElementType) -> tuple[str, bool, bool]:
    how = arithmetic_for(_types(a, b), I32, isa)
    return how.accumulate, how.exchanged, how.flip


@pytest.mark.parametrize("isa", [NEON_DOT, sve(256)], ids=lambda i: i.name)
def test_folds_of_one_signedness_flip_a_to_that_of_b(isa: Isa) -> None:
    assert _choice(isa, *SIGNED) == ("dot4_signed", False, False)
    assert _choice(isa, *UNSIGNED) == ("dot4_unsigned", False, False)
    assert _choice(isa, *MIXED) == ("dot4_signed", False, True)
    assert _choice(isa, *TURNED) == ("dot4_unsigned", False, True)


@pytest.mark.parametrize("isa", [NEON_BF16, sve_bf16(256), sve2_bf16(256)], ids=lambda i: i.name)
def test_nothing_is_flipped_where_every_pair_has_a_fold(isa: Isa) -> None:
    assert _choice(isa, *SIGNED) == ("dot4_signed", False, False)
    assert _choice(isa, *UNSIGNED) == ("dot4_unsigned", False, False)
    assert _choice(isa, *MIXED) == ("dot4", False, False)
    assert _choice(isa, *TURNED) == ("dot4", True, False)


def test_one_fold_of_two_signednesses_serves_every_pair() -> None:
    """As on x86: A is flipped where both are alike."""
    isa = tables.AVX512_VNNI
    assert _choice(isa, *SIGNED) == ("dot4", False, True)
    assert _choice(isa, *UNSIGNED) == ("dot4", True, True)
    assert _choice(isa, *MIXED) == ("dot4", False, False)
    assert _choice(isa, *TURNED) == ("dot4", True, False)


def test_without_folds_of_four_bytes_are_words_of_two() -> None:
    for a, b in product((I8, U8), repeat=2):
        how = arithmetic_for(_types(a, b), I32, NEON)
        assert (how.accumulate, how.a_element, how.b_element) == ("dot2", I16, I16)


def test_sets_are_in_order_of_preference() -> None:
    order = ["sve2_bf16", "sve_bf16", "sve", "neon_bf16", "neon_dot", "neon"]
    assert [n for n in tables.BY_NAME if n in order] == order


# -- meanings --------------------------------------------------------------------------------------


def _odd(x: Fraction) -> Fraction:
    """Rounded to 24 bits and to odd; numbers below the least normal one are zero."""
    if abs(x) < Fraction(2) ** -126:
        return Fraction(0)
    exponent = abs(x).numerator.bit_length() - x.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > abs(x)
    ulp = Fraction(2) ** (exponent - 23)
    whole = abs(x) // ulp
    if whole * ulp != abs(x):
        whole |= 1
    return (whole if x > 0 else -whole) * ulp


def _exact_dot(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], c: float) -> Fraction:
    """Two bfloat16 of each operand, and the sum, by the manual's definition."""

    def number(bits: int) -> Fraction:
        value = float(np.array([bits << 16], np.uint32).view(np.float32)[0])
        return Fraction(value) if abs(value) >= 2.0**-126 else Fraction(0)

    first, second = (_odd(number(int(x)) * number(int(y))) for x, y in zip(a, b, strict=True))
    start = Fraction(c) if abs(c) >= 2.0**-126 else Fraction(0)
    return _odd(start + _odd(first + second))


def test_the_meaning_of_a_dot_product_of_bfloat16() -> None:
    """Products, their sum and the total are rounded to odd, by exact arithmetic."""
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 16, (2, 6000, 2), np.uint16)
    # Close exponents, so that rounding shows; small ones, so that something is flushed.
    bits[:, :3000] = bits[:, :3000] & np.uint16(0x81FF) | np.uint16(0x3E00)
    bits[:, 3000:4500] = bits[:, 3000:4500] & np.uint16(0x80FF) | np.uint16(0x1F00)
    bits[:, 4500:] &= np.uint16(0xBFFF)
    c = rng.standard_normal(6000).astype(np.float32)
    c[3000:] *= np.float32(2.0) ** rng.integers(-149, -100, 3000).astype(np.float32)
    a, b = (np.ascontiguousarray(x).view(np.float32)[:, 0] for x in bits)
    with np.errstate(all="ignore"):
        got = NEON_BF16_DOT.meaning(a, b, c)
    met = 0
    for x, y, start, total in zip(*bits, c, got, strict=True):
        want = _exact_dot(x, y, float(start))
        if abs(want) < Fraction(2) ** 128:
            assert Fraction(float(total)) == want
            met += want == 0
        else:
            assert np.isinf(total)
    assert 100 < met < 3000


def test_special_values_of_a_dot_product_of_bfloat16() -> None:
    """Infinities, zeros of both signs and NaN."""
    values = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0**-130], np.float32)
    half = (values.view(np.uint32) >> 16).astype(np.uint16)
    table = np.array(list(itertools.product(range(8), repeat=5)))
    a, b = (np.ascontiguousarray(half[table[:, i : i + 2]]).view(np.float32)[:, 0] for i in (0, 2))
    with np.errstate(all="ignore"):
        got = NEON_BF16_DOT.meaning(a, b, values[table[:, 4]])
        v = np.where(np.abs(values) < 2.0**-126, np.copysign(0, values), values)
        x = v[table].astype(np.float64)
        want = x[:, 4] + (x[:, 0] * x[:, 2] + x[:, 1] * x[:, 3])
    np.testing.assert_array_equal(got, want)
    known = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(want[known]))


# -- products --------------------------------------------------------------------------------------


@pytest.mark.parametrize("epilogue", [PLAIN, ZEROS, REQUANTISED], ids=str)
@pytest.mark.parametrize("a, b", list(product((I8, U8), repeat=2)), ids=str)
@pytest.mark.parametrize("isa", CHECKED)
def test_bytes(isa: Isa, a: ElementType, b: ElementType, epilogue: Epilogue) -> None:
    """Both signs of both operands, packed and in columns."""
    out = I32 if epilogue.scale is Scale.NONE else U8
    types = OperandTypes(a, b, I32, I32, out)
    spec = _low(typed_spec(isa, types, epilogue))
    case = TypedCase(spec, 2, spec.lanes + 1, 9, row_tiles=1)
    case.check(nest(spec))
    replace(case, layout_a="cols", layout_b="cols", depth=3).check(nest(spec))
    how = arithmetic_for(types, I32, isa)
    if how.reads_columns:
        columns = typed_spec(isa, types, epilogue, source=BSource.COLUMNS)
        TypedCase(columns, 1, 3, 4 * spec.lanes + 5, layout_b="cols").check(nest(columns))


@pytest.mark.parametrize(
    "types", [_types(I16, I16), _types(U8, I16), OperandTypes(*[U16] * 5)],
    ids=lambda t: f"{t.a}-{t.b}",
)  # fmt: skip
@pytest.mark.parametrize("isa", CHECKED)
def test_words_of_two(isa: Isa, types: OperandTypes) -> None:
    spec = _low(typed_spec(isa, types))
    assert spec.arithmetic.accumulate == "dot2"
    TypedCase(spec, 2, spec.lanes + 1, 5).check(nest(spec))


@pytest.mark.parametrize("isa", [p for p in CHECKED if "bf16_dot" in p.values[0].ops])
def test_bfloat16(isa: Isa) -> None:
    """Whole numbers, of which every order and rounding gives the same sum."""
    spec = _low(typed_spec(isa, OperandTypes(BF16, BF16, F32, F32, F32, bf16_dot=True)))
    assert spec.arithmetic.accumulate == "bf16_dot"
    WholeCase(spec, 2, spec.lanes + 1, 7).check(nest(spec))


def test_every_set_has_tiles() -> None:
    for name in ("neon", "neon_dot", "neon_bf16", "sve", "sve_bf16", "sve2_bf16"):
        isa = tables.BY_NAME[name]
        rows = [r for r in registry.rows() if r[1].name == name]
        assert len(rows) == 6
        for _, _, components, tile in rows:
            tile.check(isa.vector_registers, components)
