"""What programs mean, on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgemm.api.kinds import number_of
from jitgemm.api.operands import is_weak, plain, weakly
from jitgemm.errors import message
from jitgemm.isa import functions
from jitgemm.kernels.expression import Program, program_of
from jitgemm.kernels.operations import Operation, row_of

__all__ = ["erf_array", "map_array", "reference", "sigmoid_array"]

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
    return _result(functions.erf(a.astype(np.float64)), a)


def sigmoid_array(x: Any) -> Any:
    """The logistic function of an array of real or complex numbers, in its type.

    Raises:
        TypeError: other elements.
    """
    a = _argument(x, "real or complex numbers", _OTHERS)
    if a.dtype.kind == "c":
        wide = a if a.dtype.char == "G" else a.astype(np.complex128)
        return _result(functions.complex_sigmoid(wide), a)
    return _result(functions.sigmoid(a if a.dtype.char == "g" else a.astype(np.float64)), a)


def map_array(row: Operation, parameters: tuple[float, ...], x: Any) -> Any:
    """An activation of an array of real numbers, in its type; integers become float64.

    Raises:
        TypeError: other elements.
    """
    a = _argument(x, _REALS, "")
    wide = a.astype(np.float32) if a.dtype.itemsize < np.float32().itemsize else a
    return _result(reference(program_of(row), parameters, wide, 0, 0), a)


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
            elif (row := row_of(what)) is None:
                values.append(inputs[str(what)])
            else:
                values.append(_step(row, [values[i] for i in indices]))
    return np.array(np.broadcast_to(values[-1], array.shape))


def _step(row: Operation, operands: list[Any]) -> Any:
    kind = operands[0].dtype
    given = (x.astype(np.float64) for x in operands) if row.double else operands
    return np.asarray(row.meaning(*given), kind)
