"""Functions for epilogues and kernels; on NumPy arrays and numbers they are NumPy's.

In a product's epilogue, and on vectors of a kernel, they become generated code, with these greatest
errors in units in the last place (fused multiply-add sets; the portable one in parentheses),
results in the subnormal range included:

==========  ===========  ===========
function    float32      float64
==========  ===========  ===========
exp         1.1 (1.1)    1.0 (1.0)
log         1.0 (1.1)    1.1 (1.1)
tanh        1.5 (1.7)    1.5 (1.7)
erf         1.2 (1.4)    1.2 (1.4)
sigmoid     1.1 (1.1)    1.1 (1.1)
gelu        1.7 (1.8)    1.8 (2.2)
gelu_tanh   1.2 (1.2)    1.1 (1.2)
silu        1.1 (1.1)    1.1 (1.2)
hardswish   1.2 (1.8)    1.2 (1.8)
==========  ===========  ===========

Arithmetic and ``sqrt`` are correctly rounded; the sum of a product is rounded twice, as in NumPy.
NaN gives NaN.  Infinities, zeros and overflow give the limit of the function: ``tanh(-inf) == -1``,
``log(0) == -inf``, and ``gelu``, ``gelu_tanh``, ``silu`` and ``hardswish`` of -inf are -0, where
their formulas would give NaN.  ``minimum`` and ``maximum`` are NaN if one operand is; of two equal
operands (zeros of two signs) they give the second.

On arrays :func:`erf` takes real numbers of up to 64 bits and :func:`sigmoid` complex ones and long
doubles too; results are of their argument's type, float64 for integers.  They and :func:`where`
refuse with a ``TypeError`` what means more than its numbers (masked arrays, labels, units); the
others do with it what NumPy's functions do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jitgemm.api.meaning import check_plain
from jitgemm.api.reference import erf_array, sigmoid_array
from jitgemm.api.tracing import Condition, Value, apply, where_traced
from jitgemm.errors import message
from jitgemm.kernels.operations import OPERATIONS
from jitgemm.lang.core import Mask, Vec

__all__ = [
    "abs", "erf", "exp", "log", "maximum", "minimum", "sigmoid", "sqrt", "tanh", "where",
]  # fmt: skip


_TRACED = (Value, Condition)
_PROTOCOL = "__array_function__"


def _unary(name: str, x: Any, on_arrays: Callable[[Any], Any]) -> Any:
    if isinstance(x, Vec):
        return OPERATIONS[name].emit(x.k, x)
    return apply(name, x) if isinstance(x, _TRACED) else on_arrays(x)


def _binary(name: str, a: Any, b: Any, on_arrays: Callable[[Any, Any], Any]) -> Any:
    for x, other, order in ((a, b, 1), (b, a, -1)):
        if isinstance(x, Vec):
            return OPERATIONS[name].emit(x.k, *x.k.alike(x, other)[::order])
    traced = isinstance(a, _TRACED) or isinstance(b, _TRACED)
    return apply(name, a, b) if traced else on_arrays(a, b)


def _chosen(mask: Mask, x: Any, y: Any) -> Vec:
    if isinstance(x, Vec):
        x, y = mask.k.alike(x, y)
    elif isinstance(y, Vec):
        y, x = mask.k.alike(y, x)
    else:
        raise TypeError(message("x, y", "a vector among them", type(x).__name__))
    x, y = (mask.k.splat(v, mask.lanes) if v.lanes == 1 else v for v in (x, y))
    return mask.k.choose(mask, x, y)


def exp(x: Any) -> Any:
    """``e**x``."""
    return _unary("exp", x, np.exp)


def log(x: Any) -> Any:
    """The natural logarithm."""
    return _unary("log", x, np.log)


def sqrt(x: Any) -> Any:
    """The square root."""
    return _unary("sqrt", x, np.sqrt)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return _unary("tanh", x, np.tanh)


def erf(x: Any) -> Any:
    """The error function of real numbers."""
    return _unary("erf", x, erf_array)


def sigmoid(x: Any) -> Any:
    """The logistic function ``1 / (1 + exp(-x))``."""
    return _unary("sigmoid", x, sigmoid_array)


def abs(x: Any) -> Any:
    """The absolute value."""
    return _unary("abs", x, np.abs)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two; NaN if one is."""
    return _binary("minimum", a, b, np.minimum)


def maximum(a: Any, b: Any) -> Any:
    """The greater of two; NaN if one is."""
    return _binary("maximum", a, b, np.maximum)


def where(condition: Any, x: Any, y: Any) -> Any:
    """``x`` where the condition holds, else ``y``."""
    if isinstance(condition, Mask):
        return _chosen(condition, x, y)
    if any(isinstance(a, _TRACED) for a in (condition, x, y)):
        return where_traced(condition, x, y)
    for name, a in (("condition", condition), ("x", x), ("y", y)):
        # NumPy's function drops masks and labels, unless their class has one of its own.
        if getattr(type(a), _PROTOCOL, None) in (None, np.ndarray.__array_function__):
            check_plain(name, a)
    return np.where(condition, x, y)
