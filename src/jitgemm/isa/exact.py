"""Exactly rounded fused multiply-add on NumPy lanes, by error-free transformations.

No platform's ``long double`` and no C library ``fma`` is involved, so the interpreter means the
same thing everywhere.

Sources: Dekker (1971) and Knuth's TwoSum for the error-free transformations; Boldo and Melquiond,
"Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd", IEEE
Trans. Computers 57(4), 2008, for the algorithm.  Lanes whose exponents leave the range in which
those proofs hold are done with exact rational arithmetic instead.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["fma", "to_odd", "two_sum"]

_SPLIT = 134217729.0  # 2**27 + 1, Veltkamp's constant for 53-bit significands
# Products and sums of magnitudes in [2**-400, 2**400] neither overflow nor lose bits to underflow.
_SAFE_LOW, _SAFE_HIGH = 2.0**-400, 2.0**400


def two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """The rounded sum of two float64, and its exact error."""
    s = a + b
    bb = s - a
    return s, (a - (s - bb)) + (b - bb)


def _split(a: Any) -> tuple[Any, Any]:
    t = _SPLIT * a
    high = t - (t - a)
    return high, a - high


def _two_product(a: Any, b: Any) -> tuple[Any, Any]:
    p = a * b
    ah, al = _split(a)
    bh, bl = _split(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def to_odd(s: Any, err: Any) -> Any:
    """Round ``s + err`` (``s`` its nearest double) to odd: if inexact, the last bit becomes 1."""
    bits = s.view(np.int64)
    even = (bits & 1) == 0
    # Towards err: one step in magnitude up if err and s have the same sign, else down.
    step = np.where((err > 0) == (s > 0), 1, -1)
    return np.where((err != 0) & even, bits + step, bits).view(np.float64)


def _fma64(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
    uh, ul = _two_product(a, b)
    th, tl = two_sum(c, ul)
    vh, vl = two_sum(uh, th)
    s, err = two_sum(tl, vl)
    return np.asarray(vh + to_odd(s, err))


def _fraction_fma(a: float, b: float, c: float, bits: int) -> float:
    """One lane in rational arithmetic, rounded once by :func:`_round`."""
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        with np.errstate(all="ignore"):
            product = np.float64(a) * np.float64(b)
            # An infinite or NaN operand decides the result; a finite product that overflows a
            # double must not turn into one.
            finite = math.isfinite(a) and math.isfinite(b)
            return float(c if finite else product + np.float64(c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        # Signs of zero follow IEEE 754: the sum of zeros of one sign keeps it, else +0.
        sign_p = math.copysign(1.0, a) * math.copysign(1.0, b)
        if Fraction(a) * Fraction(b) == 0 and sign_p < 0 and math.copysign(1.0, c) < 0:
            return -0.0
        return 0.0
    return _round(exact, bits)


def _round(x: Fraction, bits: int) -> float:
    """Round a non-zero rational to binary32 or binary64, to nearest even, subnormals included."""
    precision, lowest, highest = (24, -149, 128) if bits == 32 else (53, -1074, 1024)
    sign, x = (-1.0, -x) if x < 0 else (1.0, x)
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    if Fraction(2) ** exponent > x:
        exponent -= 1
    ulp = max(exponent - precision + 1, lowest)
    scaled = x / Fraction(2) ** ulp
    whole = round(scaled)  # Fraction.__round__ is half to even
    if Fraction(whole) * Fraction(2) ** ulp >= Fraction(2) ** highest:
        return sign * math.inf
    return sign * math.ldexp(float(whole), ulp)


def fma(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
    """Return ``a * b + c`` rounded once to the type of the operands (float32 or float64)."""
    dtype = a.dtype
    with np.errstate(all="ignore"):
        wide = [np.atleast_1d(np.asarray(x, np.float64)) for x in (a, b, c)]
        wa, wb, wc = (np.array(x, copy=True) for x in np.broadcast_arrays(*wide))
        magnitudes = [np.abs(x) for x in (wa, wb, wc)]
        ok = np.ones(wa.shape, bool)
        for mag in magnitudes:
            ok &= ((mag >= _SAFE_LOW) & (mag <= _SAFE_HIGH)) | (mag == 0)
        if dtype == np.float32:
            # The product of two float32 is exact in float64; rounding the sum to odd makes the
            # final rounding to float32 the only one (53 >= 24 + 2), subnormals included.
            s, err = two_sum(wa * wb, wc)
            out = to_odd(s, err).astype(np.float32)
        else:
            out = _fma64(wa, wb, wc)
            # Cancellation below the safe range would lose bits to underflow.
            ok &= (np.abs(out) >= _SAFE_LOW) & np.isfinite(out)
        ok &= out != 0  # signs of zero
        for lane in np.flatnonzero(~ok):
            out.flat[lane] = _fraction_fma(
                float(wa.flat[lane]), float(wb.flat[lane]), float(wc.flat[lane]), dtype.itemsize * 8
            )
    return np.asarray(out, dtype).reshape(np.broadcast_shapes(a.shape, b.shape, c.shape))
