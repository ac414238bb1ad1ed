"""Elementary functions and activations, written once over vectors of f32 or f64.

None has branches or tables in memory.  Every operation is one of the instruction set's table, so
results agree bit for bit among all sets with FMA, the interpreter included.  Where a rounding
error would show, a number is carried as an unevaluated sum ``high + low``.

Error bounds and special values are listed in :mod:`jitgemm.api.math`; conformance tests hold them.

Sources: Cody and Waite, "Software Manual for the Elementary Functions" (1980), for the reduction
of arguments; Dekker (1971) and Knuth's TwoSum for exact sums and products.  Coefficients are our
own (``benchmarks/fit_math.py``).
"""

from __future__ import annotations

import math

from jitgemm.isa.types import ElementType
from jitgemm.kernels.mathdata import COEFFICIENTS
from jitgemm.lang.core import Kernel, Vec

__all__ = [
    "clip",
    "erf",
    "exp",
    "exp_nonpositive",
    "gelu",
    "gelu_tanh",
    "hardswish",
    "leaky_relu",
    "log",
    "sigmoid",
    "silu",
    "tanh",
]

Pair = tuple[Vec, Vec]
"""``high + low``, not evaluated."""

# Arguments beyond these give the limit of the function, rounded.
_EXP_RANGE = {"f32": (-104.0, 89.0), "f64": (-746.0, 710.0)}
# From here on 2**n of the result is one order below the least normal number, which pow2 takes as 0.
_EXP_GONE = {"f32": -88.0, "f64": -709.3}
_TANH_END = {"f32": 10.0, "f64": 20.0}
_ERF_END = {"f32": 4.0, "f64": 6.0}
_ERF_JOIN = 1.0
# Where v * sigmoid(w(v)) has vanished on the left: w = v, v**2/2 and Mills' ratio, 2u.
_SILU_END = {"f32": 110.0, "f64": 754.0}
_GELU_END = {"f32": 14.75, "f64": 38.875}
_GELU_TANH_END = {"f32": 11.0, "f64": 21.875}
# The scale in which Mills' ratio is a polynomial (benchmarks/fit_math.py).
_MILLS_K = {"f32": 1.5, "f64": 2.0}
# Left tails are computed this many binary orders too great, so that only the last step can round
# to a subnormal number.
_LIFT = {"f32": 100.0, "f64": 600.0}


def _data(element: ElementType, name: str) -> tuple[float, ...]:
    return COEFFICIENTS[element.name][name]


def _all(like: Vec, value: float) -> Vec:
    return like.k.literal(value, like.element, like.lanes)


def _polynomial(k: Kernel, x: Vec, name: str, first: int = 0) -> Vec:
    """A table's polynomial, or what is left of it over ``x**first``.

    Even and odd powers apart: latency, not the number of instructions, limits these functions.
    """
    square = k.op("mul", x, x)

    def horner(coefficients: tuple[float, ...]) -> Vec:
        *rest, last = coefficients
        total = _all(x, last)
        for c in reversed(rest):
            total = k.op("madd", total, square, _all(x, c))
        return total

    coefficients = _data(x.element, name)[first:]
    return k.op("madd", horner(coefficients[1::2]), x, horner(coefficients[::2]))


def _at_most(k: Kernel, x: Vec, bound: float) -> Vec:
    """The smaller one; NaN stays."""
    end = _all(x, bound)
    return k.op("select_lt", end, x, end, x)


def _at_least(k: Kernel, x: Vec, bound: float) -> Vec:
    """The greater one; NaN stays."""
    end = _all(x, bound)
    return k.op("select_lt", x, end, end, x)


# -- numbers in two parts --------------------------------------------------------------------------


def _fast_sum(k: Kernel, a: Vec, b: Vec) -> Pair:
    """``a + b`` for ``abs(a) >= abs(b)``, or an ``a`` that ends before the last bit of the sum."""
    s = k.op("add", a, b)
    return s, k.op("sub", b, k.op("sub", s, a))


def _product(k: Kernel, a: Vec, b: Vec) -> Pair:
    p = k.op("mul", a, b)
    if k.isa.fused:
        return p, k.op("madd", a, b, k.op("neg", p))
    ah, bh = k.op("head", a), k.op("head", b)
    al, bl = k.op("sub", a, ah), k.op("sub", b, bh)
    low = k.op("sub", k.op("mul", ah, bh), p)
    for x, y in ((ah, bl), (al, bh), (al, bl)):
        low = k.op("add", low, k.op("mul", x, y))
    return p, low


def _quotient(k: Kernel, a: Pair, b: Pair, reciprocal: Vec) -> Vec:
    """``a / b`` with little more than its last rounding; ``reciprocal`` is that of ``b[0]``."""
    q = k.op("mul", a[0], reciprocal)
    low = k.op("nmadd", q, b[1], a[1])
    if k.isa.fused:
        rest = k.op("nmadd", q, b[0], a[0])
    else:
        p, p_low = _product(k, q, b[0])
        rest = k.op("sub", k.op("sub", a[0], p), p_low)
    return k.op("madd", k.op("add", rest, low), reciprocal, q)


# -- exponential and logarithm ---------------------------------------------------------------------


def _reduced_exp(k: Kernel, x: Vec, low: Vec | None = None) -> tuple[Vec, Vec]:
    """``y, n`` with ``e**(x + low) = (1 + y) * 2**n``, ``x`` within the range of the type."""
    c1, c2 = (_all(x, c) for c in _data(x.element, "LN2"))
    n = k.op("rint", k.op("mul", x, _all(x, _data(x.element, "LOG2E")[0])))
    r = k.op("nmadd", n, c1, x)  # exact
    r = k.op("nmadd", n, c2, r) if low is None else k.op("add", r, k.op("nmadd", n, c2, low))
    return k.op("madd", k.op("mul", r, r), _polynomial(k, r, "EXP"), r), n


def exp(k: Kernel, x: Vec) -> Vec:
    """``e**x``, results in the subnormal range included."""
    low, high = _EXP_RANGE[x.element.name]
    y, n = _reduced_exp(k, _at_most(k, _at_least(k, x, low), high))
    return k.op("scale", k.op("add", y, _all(x, 1.0)), n)


def exp_nonpositive(k: Kernel, x: Vec) -> Vec:
    """``e**x`` for ``x <= 0``, in two thirds of the instructions: as sums of a softmax want it.

    The bits are those of :func:`exp`, but subnormal results may be 0.
    """
    y, n = _reduced_exp(k, _at_least(k, x, _EXP_GONE[x.element.name]))
    return k.op("mul", k.op("add", y, _all(x, 1.0)), k.op("pow2", n))


def log(k: Kernel, x: Vec) -> Vec:
    """Natural logarithm; -inf at either zero, NaN below."""
    c1, c2 = (_all(x, c) for c in _data(x.element, "LN2"))
    n = k.op("exponent", x)
    f = k.op("sub", k.op("mantissa", x), _all(x, 1.0))
    curve = k.op("mul", k.op("mul", f, f), _polynomial(k, f, "LOG"))
    small = k.op("add", f, k.op("madd", n, c2, curve))
    result = k.op("madd", n, c1, small)
    zero, infinity = _all(x, 0.0), _all(x, math.inf)
    outside = k.op("select_eq", x, zero, _all(x, -math.inf), _all(x, math.nan))
    return k.op("select_lt", zero, x, k.op("select_lt", x, infinity, result, x), outside)


# -- sigmoidal functions ---------------------------------------------------------------------------


def tanh(k: Kernel, x: Vec) -> Vec:
    """Hyperbolic tangent: ``d / (2 - d)`` with ``d = 1 - e**(-2|x|)``."""
    t = _at_most(k, k.op("abs", x), _TANH_END[x.element.name])
    y, n = _reduced_exp(k, k.op("mul", t, _all(x, -2.0)))
    unit = k.op("pow2", n)
    one = _all(x, 1.0)
    d, d_low = _fast_sum(k, k.op("sub", one, unit), k.op("neg", k.op("mul", unit, y)))
    below, below_low = _fast_sum(k, _all(x, 2.0), k.op("neg", d))
    below_low = k.op("sub", below_low, d_low)
    q = _quotient(k, (d, d_low), (below, below_low), k.op("div", one, below))
    return k.op("copysign", q, x)


def erf(k: Kernel, x: Vec) -> Vec:
    """Error function: an odd polynomial up to 1, then ``1 - e**-p(|x|)``."""
    t = _at_most(k, k.op("abs", x), _ERF_END[x.element.name])
    small = k.op("madd", _polynomial(k, k.op("mul", t, t), "ERF_SMALL"), t, t)
    y, n = _reduced_exp(k, k.op("neg", _polynomial(k, t, "ERF_TAIL")))
    unit = k.op("pow2", n)
    rest = k.op("sub", _all(x, 1.0), k.op("madd", unit, y, unit))
    return k.op("copysign", k.op("select_lt", t, _all(x, _ERF_JOIN), small, rest), x)


def _lifted_exp(k: Kernel, x: Vec, low: Vec | None) -> Pair:
    """``e**(x + low)`` over :func:`_drop`."""
    y, n = _reduced_exp(k, x, low)
    unit = k.op("pow2", k.op("add", n, _all(x, _LIFT[x.element.name])))
    return _fast_sum(k, unit, k.op("mul", unit, y))


def _drop(like: Vec) -> Vec:
    """What takes :func:`_lifted_exp` back."""
    return _all(like, 2.0 ** -_LIFT[like.element.name])


def _drop_until(k: Kernel, t: Vec, end: float) -> Vec:
    """:func:`_drop` below ``end``, and from there on, where results round to zero, zero itself.

    A product that underflows takes a hundred cycles and more (Zen 5); one with zero does not.
    """
    return k.op("select_lt", t, _all(t, end), _drop(t), _all(t, 0.0))


def _left(k: Kernel, factor: Vec | None, w: tuple[Vec, Vec | None], last: Vec) -> Vec:
    """``factor * e**w / (1 + e**w)`` for ``w <= 0`` in two parts, a factor that is not negative.

    ``last`` is :func:`_drop_until`.
    """
    one, down = _all(w[0], 1.0), _drop(w[0])
    e = _lifted_exp(k, *w)
    below = _fast_sum(k, one, k.op("mul", e[0], down))
    below = below[0], k.op("madd", e[1], down, below[1])
    above = e
    if factor is not None:
        p, low = _product(k, factor, e[0])
        above = p, k.op("madd", factor, e[1], low)
    return k.op("mul", _quotient(k, above, below, k.op("div", one, below[0])), last)


def sigmoid(k: Kernel, x: Vec) -> Vec:
    """``1 / (1 + e**-x)``, exact to the last subnormal on the left."""
    end = -_EXP_RANGE[x.element.name][0]
    t = _at_most(k, k.op("abs", x), end)
    left = _left(k, None, (k.op("neg", t), None), _drop_until(k, t, end))
    right = k.op("sub", _all(x, 1.0), left)
    return k.op("select_lt", x, _all(x, 0.0), left, right)


def _gated(k: Kernel, v: Vec, left: Vec) -> Vec:
    """``v * s(v)`` for a sigmoidal ``s`` from its left half: ``left = |v| * s(-|v|)``.

    Of both infinities and NaN too: ``v - left`` on the right, ``-left``, which ends in -0, else.
    """
    return k.op("sub", k.op("select_lt", v, _all(v, 0.0), _all(v, -0.0), v), left)


def silu(k: Kernel, v: Vec) -> Vec:
    """``v * sigmoid(v)``."""
    end = _SILU_END[v.element.name]
    t = _at_most(k, k.op("abs", v), end)
    return _gated(k, v, _left(k, t, (k.op("neg", t), None), _drop_until(k, t, end)))


def gelu_tanh(k: Kernel, v: Vec) -> Vec:
    """``v * (1 + tanh(u)) / 2 = v * sigmoid(2u)``, ``u = sqrt(2/pi) * (v + 0.044715 * v**3)``."""
    a, a_low = (_all(v, c) for c in _data(v.element, "GELU_A"))
    b, b_low = (_all(v, c) for c in _data(v.element, "GELU_B"))
    end = _GELU_TANH_END[v.element.name]
    t = _at_most(k, k.op("abs", v), end)
    # An exponent near -100 must be right to a hundredth of its last bit.
    square, square_low = _product(k, t, t)
    cubic, cubic_low = _product(k, b, square)
    cubic_low = k.op("madd", b, square_low, k.op("madd", b_low, square, cubic_low))
    slope, slope_low = _fast_sum(k, a, cubic)
    slope_low = k.op("add", slope_low, k.op("add", cubic_low, a_low))
    back = k.op("neg", t)
    w, w_low = _product(k, back, slope)
    w_low = k.op("madd", back, slope_low, w_low)
    return _gated(k, v, _left(k, t, (w, w_low), _drop_until(k, t, end)))


def gelu(k: Kernel, v: Vec) -> Vec:
    """``v * Phi(v) = v * (1 + erf(v / sqrt(2))) / 2``, exact to the last subnormal on the left.

    ``Phi(-t) = e**(-t**2/2) * s / (t + k)`` with ``s`` a polynomial in ``1 - 2k / (t + k)``.
    """
    shift = _MILLS_K[v.element.name]
    one, half = _all(v, 1.0), _all(v, -0.5)
    end = _GELU_END[v.element.name]
    t = _at_most(k, k.op("abs", v), end)
    below = _fast_sum(k, _all(v, shift), t)
    reciprocal = k.op("div", one, below[0])
    q = k.op("nmadd", reciprocal, _all(v, 2 * shift), one)
    e = _lifted_exp(k, *_product(k, t, k.op("mul", t, half)))
    middle = _all(v, _data(v.element, "MILLS")[0])
    s, s_low = _fast_sum(k, middle, k.op("mul", q, _polynomial(k, q, "MILLS", 1)))
    p, p_low = _product(k, s, e[0])
    p_low = k.op("madd", s_low, e[0], k.op("madd", s, e[1], p_low))
    above, above_low = _product(k, t, p)
    above_low = k.op("madd", t, p_low, above_low)
    left = _quotient(k, (above, above_low), below, reciprocal)
    return _gated(k, v, k.op("mul", left, _drop_until(k, t, end)))


# -- piecewise linear activations ------------------------------------------------------------------


def leaky_relu(k: Kernel, v: Vec, slope: Vec) -> Vec:
    """``slope * v`` below zero, else ``v``; NaN and -0 stay."""
    return k.op("select_lt", v, _all(v, 0.0), k.op("mul", slope, v), v)


def clip(k: Kernel, v: Vec, low: Vec, high: Vec) -> Vec:
    """``v`` between two bounds; NaN stays, and so does a zero that equals a bound."""
    if v.element.integral:
        return k.op("minimum", k.op("maximum", v, low), high)
    above = k.op("select_lt", v, low, low, v)
    return k.op("select_lt", high, above, high, above)


def hardswish(k: Kernel, v: Vec) -> Vec:
    """``v * clip(v + 3, 0, 6) / 6``; -0 from -3 on, ``v`` from 3 on."""
    sixth = _all(v, 1 / 6)
    factor = _at_least(k, v, -3.0)
    t = _at_most(k, factor, 3.0)
    gate, gate_low = _fast_sum(k, _all(v, 3.0), t)
    # The gate is rounded once by the division; what its sum lost comes back with the product.
    lost = k.op("mul", t, k.op("mul", gate_low, sixth))
    result = k.op("madd", factor, k.op("div", gate, _all(v, 6.0)), lost)
    return k.op("copysign", result, factor)  # of -0 the sum is +0
