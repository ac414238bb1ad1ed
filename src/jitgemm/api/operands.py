"""Validation: from what the user passed to matrices the planner understands, or a clear error."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitgemm.api.kinds import TYPES, Number, number_of
from jitgemm.errors import message
from jitgemm.runtime.packed import Packed, PackedRhs

__all__ = [
    "Array", "Number", "check_output", "check_type", "describe", "factor", "flag",
    "misplaced", "native", "new_result", "number_of", "operand", "overlaps_itself", "scalar",
]  # fmt: skip

Array = NDArray[Any]


def describe(x: Array | Packed) -> str:
    """Shape and type, for messages."""
    return f"shape {tuple(x.shape)} {x.dtype}"


def misplaced(name: str, handle: Packed, *, side: bool) -> str:
    """Word an error about a handle on the wrong side, or (``side=False``) where none can be."""
    mine, other = ("right", "lhs") if isinstance(handle, PackedRhs) else ("left", "rhs")
    wanted = f"an array or a handle from prepack_{other}" if side else "an array"
    return message(name, wanted, f"a {type(handle).__name__}, which is a {mine} operand")


def operand(name: str, x: object) -> Array:
    """``x`` as an array of a supported type (no copy of an array).

    Raises:
        TypeError: another element type, or a handle that belongs elsewhere.
        ValueError: fewer than two dimensions.
    """
    if isinstance(x, Packed):
        raise TypeError(misplaced(name, x, side=name in ("a", "b")))
    array = np.asarray(x)
    if number_of(array.dtype) is None:
        raise TypeError(message(name, TYPES, array.dtype))
    if array.ndim < 2:
        raise ValueError(
            message(name, "a matrix (2 or more dimensions)", f"{array.ndim} dimensions")
        )
    return array


def check_type(name: str, dtype: np.dtype, like: np.dtype) -> None:
    """Make sure an operand has the element type of ``a``.

    Raises:
        TypeError: it has another.
    """
    if number_of(dtype) != number_of(like):
        raise TypeError(message(name, f"{like} elements like a", dtype))


def native(x: Array) -> Array:
    """``x`` in this machine's byte order; what is broadcast stays broadcast (contract 15)."""
    if x.dtype.isnative:
        return x
    once = x[tuple(slice(0, 1) if s == 0 else slice(None) for s in x.strides)]
    return np.broadcast_to(once.astype(x.dtype.newbyteorder("=")), x.shape)


def scalar(name: str, value: object) -> float:
    """A real number.

    Raises:
        TypeError: anything else.
        ValueError: an integer beyond every double.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, (int, float, np.integer, np.floating)):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(message(name, "a number a double can hold", "a larger one")) from None
    raise TypeError(message(name, "a real number", type(value).__name__))


def factor(name: str, value: object, parts: int, *, integral: bool = False) -> complex:
    """A factor of a product: real, complex or an integer, if the product is.

    Raises:
        TypeError, ValueError: as :func:`scalar`; a fraction where the product is of integers.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if integral:
        if isinstance(value, (int, np.integer)):
            return int(value)
        if isinstance(value, (float, np.floating)) and float(value).is_integer():
            return int(value)
        raise TypeError(message(name, "an integer, because elements are", repr(value)))
    # Adding 0 turns -0 into +0: no product has no sign.
    if parts == 2 and isinstance(value, (complex, np.complexfloating)):
        return complex(value.real + 0.0, value.imag + 0.0)
    return complex(scalar(name, value) + 0.0)


def flag(name: str, value: object) -> bool:
    """A truth value.

    Raises:
        TypeError: anything else.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(message(name, "True or False", type(value).__name__))
    return bool(value)


def overlaps_itself(x: Array) -> bool:
    """Whether two elements of ``x`` share a byte."""
    axes = sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1)
    if 0 in x.shape:
        return False
    reach = x.itemsize
    for stride, n in axes:
        if stride < reach:
            break
        reach += stride * (n - 1)
    else:
        return False
    if axes[0][0] < x.itemsize:
        return True
    # Interleaved strides: rare enough to look at every offset.
    offsets = np.zeros((), np.int64)
    for stride, n in axes:
        offsets = np.add.outer(offsets, np.arange(n, dtype=np.int64) * stride)
    return bool(np.diff(np.sort(offsets, axis=None)).min() < x.itemsize)


def new_result(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """An uninitialised array.

    Raises:
        MemoryError: there is not that much memory, or address space.
    """
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as e:
        raise MemoryError(
            message("out", "a result that fits in memory", f"shape {shape} {dtype}")
        ) from e


def check_output(name: str, out: object, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Make sure a result of ``shape`` and ``dtype`` can be written to ``out``.

    Raises:
        TypeError: not an array, or another element type.
        ValueError: wrong shape, read-only, or overlapping itself.
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(message(name, "a numpy array", type(out).__name__))
    if number_of(out.dtype) != number_of(dtype):
        raise TypeError(message(name, f"{dtype} elements", out.dtype))
    if out.shape != shape:
        raise ValueError(message(name, f"shape {shape}", f"shape {out.shape}"))
    if not out.flags.writeable:
        raise ValueError(message(name, "a writable array", "a read-only one"))
    if overlaps_itself(out):
        raise ValueError(message(name, "elements of its own memory", "elements that overlap"))
    return out
