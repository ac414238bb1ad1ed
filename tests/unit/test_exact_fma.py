"""``exact.fma`` is the definition of a fused multiply-add: held here to rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jitgemm.isa.exact import fma

F32, F64 = np.float32, np.float64
TYPES = pytest.mark.parametrize("dtype", [F32, F64], ids=["f32", "f64"])
EXPONENTS = {F32: (-149, 128), F64: (-1074, 1024)}


def rounded(x: Fraction, dtype: Any) -> float:
    """The nearest number of the type, ties to even, found by comparing the neighbours."""
    info, sign = np.finfo(dtype), -1 if x < 0 else 1
    top = Fraction(float(info.max))
    half_step = (top - Fraction(float(np.nextafter(info.max, dtype(0))))) / 2
    if abs(x) >= top + half_step:  # the tie goes to the even number, which would be 2**emax
        return math.copysign(math.inf, sign)
    with np.errstate(over="ignore"):
        guess = dtype(max(-top, min(top, x)))
        near = [guess, *(np.nextafter(guess, dtype(s * math.inf)) for s in (-1, 1))]
    kind = f"u{guess.itemsize}"
    finite = [n for n in near if np.isfinite(n)]
    best = min(finite, key=lambda n: (abs(Fraction(float(n)) - x), int(n.view(kind)) & 1))
    return math.copysign(float(best), sign)


def expected(a: float, b: float, c: float, dtype: Any) -> float:
    """IEEE 754 fusedMultiplyAdd."""
    with np.errstate(all="ignore"):
        if not (math.isfinite(a) and math.isfinite(b)):
            return float(F64(a) * F64(b) + F64(c))
        if not math.isfinite(c):
            return c
        product = Fraction(a) * Fraction(b)
        exact = product + Fraction(c)
        if exact:
            return rounded(exact, dtype)
        # Zeros add like zeros; what cancels is +0.
        return float(F64(a) * F64(b) + F64(c)) if product == 0 else 0.0


def check(a: Any, b: Any, c: Any, dtype: Any) -> None:
    """All lanes against the oracle, bit for bit; NaN is NaN."""
    lanes = [np.atleast_1d(np.asarray(x, dtype)) for x in (a, b, c)]
    got = fma(*lanes)
    assert got.dtype == dtype
    for x, y, z, r in zip(*lanes, got, strict=True):
        want = expected(float(x), float(y), float(z), dtype)
        same = math.isnan(want) if math.isnan(r) else r.tobytes() == dtype(want).tobytes()
        text = " ".join(f"{float(v).hex()}" for v in (x, y, z))
        assert same, f"fma {text} = {float(want).hex()}, got {float(r).hex()}"


def test_the_oracle_rounds() -> None:
    """The oracle agrees with Python's own correctly rounded division where that exists."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        x = Fraction(int(rng.integers(1, 1 << 62)), int(rng.integers(1, 1 << 62)))
        x *= Fraction(2) ** int(rng.integers(-1100, 1000))
        assert rounded(x, F64) == x.numerator / x.denominator
    assert rounded(Fraction(2) ** -150, F32) == 0.0
    assert rounded(Fraction(3) * Fraction(2) ** -150, F32) == 2.0**-148
    assert rounded(Fraction(2) ** 128 - Fraction(2) ** 103, F32) == math.inf


# -- edges -------------------------------------------------------------------------------------


@TYPES
def test_specials(dtype: Any) -> None:
    """Every triple of zeros, subnormals, ones, extremes, infinities and NaN."""
    info = np.finfo(dtype)
    tiny, low, top = (float(x) for x in (info.smallest_subnormal, info.smallest_normal, info.max))
    positive = [0.0, tiny, low - tiny, low, 1.0, 1.0 + float(info.eps), top, math.inf]
    values = [*positive, *(-x for x in positive), math.nan]
    triples = np.array([(a, b, c) for a in values for b in values for c in values], dtype)
    check(*triples.T, dtype)


def test_double_rounding_f32() -> None:
    """A tie in float32 that only an addend far below float64's precision breaks."""
    a = 1 + 2.0**-12  # a * a = 1 + 2**-11 + 2**-24, half way between two float32
    for tail in (2.0**-60, 2.0**-80, 2.0**-149):
        check([a] * 4, [a, a, -a, -a], [tail, -tail, tail, -tail], F32)
    up = fma(F32([a]), F32([a]), F32([2.0**-80]))[0]
    down = fma(F32([a]), F32([a]), F32([-(2.0**-80)]))[0]
    assert up != down
    # The same with the tie in the addend and the product far below.
    check([2.0**-40] * 2, [2.0**-60, -(2.0**-60)], [1 + 2.0**-23] * 2, F32)


def test_double_rounding_f64() -> None:
    """A tie in float64 broken by an addend of any smallness."""
    a, b = 1 + 2.0**-26, 1 + 2.0**-27  # product 1 + 2**-26 + 2**-27 + 2**-53: half way
    for tail in (2.0**-100, 2.0**-399, 2.0**-401, 2.0**-1074):
        check([a] * 4, [b, b, -b, -b], [tail, -tail, tail, -tail], F64)
    assert fma(F64([a]), F64([b]), F64([1e-60]))[0] != fma(F64([a]), F64([b]), F64([-1e-60]))[0]


@TYPES
def test_cancellation(dtype: Any) -> None:
    """The addend cancels the rounded product: the exact rounding error is left."""
    rng = np.random.default_rng(1)
    a, b = rng.uniform(1, 2, (2, 500)).astype(dtype)
    product = a * b
    for ulps in range(-2, 3):
        check(a, b, -(product + ulps * np.spacing(product)).astype(dtype), dtype)
    left = fma(a, b, -product)
    assert (left != 0).mean() > 0.5
    assert fma(dtype([3.0]), dtype([5.0]), dtype([-15.0])).tobytes() == dtype([0.0]).tobytes()


@TYPES
def test_subnormal_results(dtype: Any) -> None:
    """Results below the normal range are rounded once, at the subnormal's own last bit."""
    rng, (lowest, _) = np.random.default_rng(2), EXPONENTS[dtype]
    a = rng.uniform(1, 2, 400).astype(dtype)
    b = np.ldexp(rng.uniform(1, 2, 400), lowest + rng.integers(-3, 12, 400)).astype(dtype)
    c = np.ldexp(rng.uniform(-1, 1, 400), lowest + rng.integers(0, 20, 400)).astype(dtype)
    check(a, b, c, dtype)
    # Half of the smallest number, and just above it.
    half = dtype(2.0 ** (lowest // 2)), dtype(2.0 ** (lowest - lowest // 2 - 1))
    check([half[0]] * 2, [half[1], np.nextafter(half[1], dtype(1))], [0.0, 0.0], dtype)
    check(a, np.full_like(a, float(np.finfo(dtype).smallest_subnormal) * 3), -c, dtype)


@TYPES
def test_overflow(dtype: Any) -> None:
    """Finite operands: a product that overflows may still have a finite sum; ties at the top."""
    info, (_, highest) = np.finfo(dtype), EXPONENTS[dtype]
    top, root = float(info.max), 2.0 ** (highest // 2)
    step = top - float(np.nextafter(info.max, dtype(0)))
    check([root] * 3, [root] * 3, [-top, -top / 2, 0.0], dtype)
    check([1.0] * 5, [top] * 5, [step / 2, step / 2 * 0.999, step / 4, -step, -math.inf], dtype)
    check([root, root], [-root, root], [math.inf, -math.inf], dtype)
    check([top, -top], [top, top], [top, -top], dtype)


def test_shapes() -> None:
    """Operands broadcast; a single element works; the operands are not changed."""
    a = np.arange(6, dtype=F32).reshape(2, 3)[:, ::-1]
    before = a.copy()
    got = fma(a, F32([[2], [3]]), F32(1))
    np.testing.assert_array_equal(got, a * F32([[2], [3]]) + 1)
    np.testing.assert_array_equal(a, before)
    assert fma(F64(2), F64(3), F64(4)).shape == ()
    assert fma(F64(2), F64(3), F64(4)) == 10
    assert fma(*[np.empty((0, 3), F32)] * 3).shape == (0, 3)


def test_lanes_are_independent() -> None:
    """A lane done in rational arithmetic does not disturb its neighbours."""
    rng = np.random.default_rng(3)
    a, b, c = rng.standard_normal((3, 64))
    alone = fma(a, b, c)
    for lane, value in ((0, math.nan), (13, 1e300), (63, 5e-324)):
        a[lane] = value
        alone[lane] = expected(a[lane], b[lane], c[lane], F64)
    np.testing.assert_array_equal(fma(a, b, c), alone)


# -- random --------------------------------------------------------------------------------------


@TYPES
@pytest.mark.parametrize("spread", [3, 30, 120, 1000])
def test_random(dtype: Any, spread: int) -> None:
    """Significands of full length, exponents near and far apart."""
    rng, (lowest, highest) = np.random.default_rng(spread), EXPONENTS[dtype]
    mantissa = rng.uniform(-2, 2, (3, 1000))
    exponent = np.clip(rng.integers(-spread, spread + 1, (3, 1000)), lowest, highest - 2)
    check(*np.ldexp(mantissa, exponent).astype(dtype), dtype)


def _floats(dtype: Any) -> st.SearchStrategy[float]:
    """Any float, and floats at the limits of the range in which no shortcut is needed."""
    width = 8 * dtype().itemsize
    lowest, highest = EXPONENTS[dtype]
    limits = [e for e in (-540, -400, -200, 0, 200, 400, 500) if lowest < e < highest - 2]
    exponents = st.sampled_from(limits).flatmap(lambda e: st.integers(e - 2, e + 1))
    significands = st.integers(1 << 22, 1 << 24) if dtype is F32 else st.integers(1 << 51, 1 << 53)
    bits = 23 if dtype is F32 else 52
    scaled = st.builds(lambda m, e, s: s * math.ldexp(m, e - bits), significands, exponents,
                       st.sampled_from([-1.0, 1.0]))  # fmt: skip
    return st.one_of(st.floats(width=width), scaled)  # type: ignore[arg-type]


@settings(max_examples=400, deadline=None)
@given(_floats(F32), _floats(F32), _floats(F32))
@example(math.inf, 0.0, 1.0)
@example(-0.0, 1.0, -0.0)
@example(-0.0, 1.0, 0.0)
def test_any_f32(a: float, b: float, c: float) -> None:
    check(a, b, c, F32)
    check(a, b, -F32(a) * F32(b) if np.isfinite(a) and np.isfinite(b) and abs(a) < 1 else c, F32)


@settings(max_examples=400, deadline=None)
@given(_floats(F64), _floats(F64), _floats(F64))
@example(2.0**-400, 2.0**-400, 2.0**-400)
@example(2.0**400, 2.0**400, -(2.0**400))
@example(2.0**-400 * (1 + 2.0**-52), 1.0, -(2.0**-400))
def test_any_f64(a: float, b: float, c: float) -> None:
    check(a, b, c, F64)


@settings(max_examples=300, deadline=None)
@given(_floats(F64), _floats(F64), st.integers(-3, 3))
def test_any_f64_cancelling(a: float, b: float, ulps: int) -> None:
    """The addend is the rounded product, or a few steps beside it."""
    with np.errstate(all="ignore"):
        product = F64(a) * F64(b)
        check(a, b, -(product + ulps * np.spacing(product)), F64)
