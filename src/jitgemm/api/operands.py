"""Validation: from what the user passed to matrices the planner understands, or a clear error."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitgemm.errors import message
from jitgemm.isa.types import F32, F64, ElementType
from jitgemm.kernels.spec import Activation
from jitgemm.runtime.packed import PackedRhs

__all__ = [
    "Array", "activation_of", "check_output", "element_of", "matrix", "native", "new_result",
    "overlaps_itself", "scalar",
]  # fmt: skip

Array = NDArray[Any]

_ELEMENTS: dict[np.dtype, ElementType] = {np.dtype(np.float32): F32, np.dtype(np.float64): F64}


def element_of(dtype: np.dtype) -> ElementType | None:
    """The element type of a NumPy type in either byte order; ``None`` if not supported."""
    known = _ELEMENTS.get(dtype)
    if known is None and not dtype.isnative:
        return _ELEMENTS.get(dtype.newbyteorder("="))
    return known


def describe(x: Array | PackedRhs) -> str:
    """Shape and type, for messages."""
    return f"shape {tuple(x.shape)} {x.dtype}"


def matrix(operand: str, x: object) -> Array:
    """``x`` as a two-dimensional float32 or float64 array (no copy of an array).

    Raises:
        TypeError: another element type.  ValueError: not two-dimensional.
    """
    array = np.asarray(x)
    if element_of(array.dtype) is None:
        raise TypeError(message(operand, "float32 or float64 elements", array.dtype))
    if array.ndim != 2:
        raise ValueError(message(operand, "a matrix (2 dimensions)", f"{array.ndim} dimensions"))
    return array


def native(x: Array) -> Array:
    """``x`` in this machine's byte order; what is broadcast stays broadcast (contract 15)."""
    if x.dtype.isnative:
        return x
    once = x[tuple(slice(0, 1) if s == 0 else slice(None) for s in x.strides)]
    return np.broadcast_to(once.astype(x.dtype.newbyteorder("=")), x.shape)


def scalar(operand: str, value: object) -> float:
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
            raise ValueError(
                message(operand, "a number a double can hold", "a larger one")
            ) from None
    raise TypeError(message(operand, "a real number", type(value).__name__))


def activation_of(name: object) -> Activation:
    """The activation called ``name`` (``None``: none).

    Raises:
        ValueError: no such activation.
    """
    if name is None:
        return Activation.NONE
    known = [a.value for a in Activation if a is not Activation.NONE]
    if name not in known:
        raise ValueError(message("activation", f"None or one of {', '.join(known)}", repr(name)))
    return Activation(name)


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


def check_output(operand: str, out: object, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Make sure a result of ``shape`` and ``dtype`` can be written to ``out``.

    Raises:
        TypeError: not an array, or another element type.
        ValueError: wrong shape, read-only, or overlapping itself.
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(message(operand, "a numpy array", type(out).__name__))
    if element_of(out.dtype) is not element_of(dtype):
        raise TypeError(message(operand, f"{dtype} elements", out.dtype))
    if out.shape != shape:
        raise ValueError(message(operand, f"shape {shape}", f"shape {out.shape}"))
    if not out.flags.writeable:
        raise ValueError(message(operand, "a writable array", "a read-only one"))
    if overlaps_itself(out):
        raise ValueError(message(operand, "elements of its own memory", "elements that overlap"))
    return out
