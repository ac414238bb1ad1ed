"""What programs mean, on NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgemm.api.kinds import number_of
from jitgemm.api.operands import is_weak, plain, weakly
from jitgemm.errors import message
from jitgemm.isa.ops import FUSED_OPS
from jitgemm.kernels.expression import OPERATIONS, Program

__all__ = ["erf_array", "reference", "sigmoid_array"]

_REALS = "real numbers of up to 64 bits"
_OTHERS = "gFDG"
"""Type codes of long doubles and complex numbers, for functions that NumPy's arithmetic gives."""


def _argument(x: Any, expected: str, others: str) -> Any:
    """What a function is applied to, as an array; integers and booleans become float64.

    Raises:
        TypeError: it is neither real numbers of a known type nor of ``others``, or means more than
            its numbers.
    """
    if is_weak(x):
        complex_ = bool(others) and np.iscomplexobj(x)
        return weakly("x", x, np.dtype(np.complex128 if complex_ else np.float64))
    a = plain("x", x)
    number = number_of(a.dtype)
    if a.dtype.char not in others and (number is None or number[1] == 2):
        raise TypeError(message("x", expected, a.dtype))
    if a.dtype.kind in "biu":
        return a.astype(np.float64)
    return a if a.dtype.isnative else a.astype(a.dtype.newbyteorder("="))


def _result(x: Any, like: Any) -> Any:
    """In the type of ``like``; a number for a number."""
    out = np.asarray(x).astype(like.dtype)
    return out[()] if out.ndim == 0 else out


def erf_array(x: Any) -> Any:
    """The error function of an array of real numbers, in its type.

    Raises:
        TypeError: other elements.
    """
    a = _argument(x, _REALS, "")
    return _result(_FUNCTIONS["erf"](a.astype(np.float64)), a)


def sigmoid_array(x: Any) -> Any:
    """The logistic function of an array of real or complex numbers, in its type.

    Raises:
        TypeError: other elements.
    """
    a = _argument(x, "real or complex numbers", _OTHERS)
    if a.dtype.kind == "c":
        return _result(_complex_sigmoid(a if a.dtype.char == "G" else a.astype(np.complex128)), a)
    return _result(_sigmoid(a if a.dtype.char == "g" else a.astype(np.float64)), a)


def _sigmoid(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1.0 + e)


def _complex_sigmoid(x: Any) -> Any:
    """Without overflow on either side, as for reals."""
    left = x.real < 0
    with np.errstate(invalid="ignore"):  # of NaN, which gives NaN
        e = np.exp(np.where(left, x, -x))
        return np.where(left, e, 1.0) / (1.0 + e)


def _erfc(x: Any) -> Any:
    return np.vectorize(math.erfc, otypes=[np.float64])(x)


def _gated(v: Any, sigmoidal: Any) -> Any:
    """``v * s(v)``, and its limit where that is infinity times zero."""
    return np.where(v == -np.inf, -0.0, v * sigmoidal)


def _gelu_tanh(v: Any) -> Any:
    return _gated(v, _sigmoid(2 * math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))


# In double precision, whatever the type of the result.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "sigmoid": _sigmoid,
    "gelu": lambda v: _gated(v, _erfc(-v / math.sqrt(2)) / 2),
    "gelu_tanh": _gelu_tanh,
    "silu": lambda v: _gated(v, _sigmoid(v)),
    "hardswish": lambda v: _gated(v, np.clip(v + 3, 0, 6) / 6),
}


def _leaky_relu(v: Any, slope: Any) -> Any:
    return np.where(v < 0, slope * v, v)


def _clip(v: Any, low: Any, high: Any) -> Any:
    above = np.where(v < low, low, v)
    return np.where(high < above, high, above)


def reference(
    program: Program,
    constants: tuple[float, ...],
    v: Any,
    row: Any,
    col: Any,
    operands: tuple[Any, ...] = (),
) -> Any:
    """The result of a program on an array ``v``, indices and operands that broadcast with it.

    Basic operations as generated code does them, bit for bit; functions to double precision, then
    rounded to the type of ``v``.
    """
    array = np.asarray(v)
    kind = array.dtype
    inputs = {name: np.asarray(x, kind) for name, x in (("v", v), ("row", row), ("col", col))}
    values: list[Any] = []
    with np.errstate(all="ignore"):
        for what, indices in program.steps:
            if what == "const":
                values.append(np.asarray(constants[indices[0]], kind))
            elif what == "operand":
                values.append(np.asarray(operands[indices[0]], kind))
            elif what not in OPERATIONS:
                values.append(inputs[what])
            else:
                values.append(_step(what, [values[i] for i in indices]))
    return np.array(np.broadcast_to(values[-1], array.shape))


def _step(what: str, operands: list[Any]) -> Any:
    kind = operands[0].dtype
    if what in _FUNCTIONS:
        out = _FUNCTIONS[what](*(x.astype(np.float64) for x in operands))
    elif what in ("leaky_relu", "clip"):
        out = (_leaky_relu if what == "leaky_relu" else _clip)(*operands)
    else:
        out = FUSED_OPS[what].meaning(*operands)
    return np.asarray(out, kind)
