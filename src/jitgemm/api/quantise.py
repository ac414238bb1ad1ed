"""Zero points of integer operands, and requantisation of their products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from jitgemm.errors import message
from jitgemm.kernels.spec import Scale

__all__ = ["BOUNDS", "NARROW", "Requantize", "with_bias", "zero_points"]

BOUNDS = {np.dtype(np.int8): (-128, 127), np.dtype(np.uint8): (0, 255)}
"""The least and the greatest number of the types that have zero points."""
NARROW = tuple(BOUNDS)


@dataclass(frozen=True, eq=False)
class Requantize:
    """How a 32-bit product becomes an 8-bit one.

    ``saturate(round_half_even(scale * (product + bias)) + zero_point)``: the product by the scale
    is rounded once, to float64.

    Args:
        scale: positive and finite: a scalar; ``(n,)`` or ``(1, n)``, one per column; or ``(m, 1)``,
            one per row.
        zero_point: an integer of the result's type.
        dtype: ``numpy.int8`` or ``numpy.uint8``.
        bias: int32, a scalar, ``(n,)``, ``(m, 1)`` or ``(m, n)``; added before scaling.

    Raises:
        TypeError: another ``dtype``, numbers of another kind.
        ValueError: a scale that is not positive and finite, a shape that is none of the above, a
            zero point beyond the type.
    """

    scale: ArrayLike
    zero_point: int = 0
    dtype: DTypeLike = np.int8
    bias: ArrayLike | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _narrow_type(self.dtype))
        object.__setattr__(self, "scale", _scales(self.scale))
        object.__setattr__(self, "zero_point", _zero("zero_point", self.zero_point, self.type))
        if self.bias is not None:
            bias = np.asarray(self.bias)
            if bias.dtype.kind not in "iu":
                raise TypeError(message("bias", "int32 elements", bias.dtype))
            object.__setattr__(self, "bias", _as_int32("bias", bias))

    def __reduce__(self) -> tuple[type[Requantize], tuple[object, ...]]:
        # Through the constructor: copies and pickles are checked and read-only too.
        return Requantize, (self.scale, self.zero_point, self.dtype, self.bias)

    @property
    def type(self) -> np.dtype:
        """The result's type."""
        return np.dtype(self.dtype)

    def along(self, m: int, n: int) -> tuple[NDArray[np.float64], Scale]:
        """Scales side by side, and along which axis of an ``(m, n)`` product they vary.

        Raises:
            ValueError: there are more or fewer of them.
        """
        scales = np.asarray(self.scale)
        if scales.size == 1:
            return scales.reshape(1), Scale.ROW
        if scales.shape in ((n,), (1, n)):
            return scales.reshape(n), Scale.COLUMN
        if scales.shape == (m, 1):
            return scales.reshape(m), Scale.ROW
        expected = f"a scalar, shape ({n},), (1, {n}) or ({m}, 1)"
        raise ValueError(message("requantize.scale", expected, f"shape {scales.shape}"))


def with_bias(bias: object, requantize: object) -> object:
    """The bias of a product: its own, or the one of its requantisation.

    Raises:
        TypeError: both have one.
    """
    if not isinstance(requantize, Requantize) or requantize.bias is None:
        return bias
    if bias is not None and bias is not requantize.bias:
        raise TypeError(message("bias", "None, because requantize has one", "another"))
    return requantize.bias


def _narrow_type(dtype: DTypeLike) -> np.dtype:
    try:
        result = np.dtype(dtype)
    except TypeError:
        raise TypeError(message("dtype", "numpy.int8 or numpy.uint8", repr(dtype))) from None
    if result not in NARROW:
        raise TypeError(message("dtype", "numpy.int8 or numpy.uint8", result))
    return result


def _scales(scale: ArrayLike) -> NDArray[np.float64]:
    given = np.asarray(scale)
    if given.dtype.kind not in "fiu":
        raise TypeError(message("scale", "real numbers", given.dtype))
    if given.ndim > 2:
        raise ValueError(message("scale", "at most 2 dimensions", f"{given.ndim} dimensions"))
    scales = np.array(given, np.float64, order="C")
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise ValueError(message("scale", "positive finite numbers", "others"))
    scales.flags.writeable = False
    return scales


def _as_int32(name: str, x: NDArray[Any]) -> NDArray[np.int32]:
    info = np.iinfo(np.int32)
    if x.size and (int(x.min()) < info.min or int(x.max()) > info.max):
        raise ValueError(message(name, "numbers of 32 bits", "larger ones"))
    result = np.array(x, np.int32)
    result.flags.writeable = False
    return result


def _zero(name: str, x: object, dtype: np.dtype) -> int:
    array = np.asarray(x)
    if array.dtype.kind not in "iu" or array.size != 1:
        raise TypeError(message(name, "an integer", type(x).__name__))
    value, (low, high) = int(array.reshape(())), BOUNDS[dtype]
    if not low <= value <= high:
        raise ValueError(message(name, f"a number of {dtype}", value))
    return value


def zero_points(
    name: str, x: object, dtype: np.dtype, shapes: tuple[tuple[int, ...], ...]
) -> NDArray[np.int32] | None:
    """Zero points side by side: one for all, or one per row or column; ``None`` if all are 0.

    Args:
        name: of the argument.
        x: what was passed for it.
        dtype: the operand's type, whose numbers they are.
        shapes: what a vector of them may look like.

    Raises:
        TypeError: no integers, or an operand that has no zero points.
        ValueError: another shape, or numbers beyond the operand's type.
    """
    if x is None or (type(x) is int and x == 0):
        return None
    array = np.asarray(x)
    if array.dtype.kind not in "iu":
        raise TypeError(message(name, "integers", array.dtype))
    if dtype not in NARROW:
        raise TypeError(message(name, f"None, because the operand is {dtype}", "zero points"))
    low, high = BOUNDS[dtype]
    if type(x) is int and low <= x <= high:
        return np.array((x,), np.int32)
    if array.size != 1 and array.shape not in shapes:
        known = " or ".join(map(str, shapes))
        raise ValueError(message(name, f"a scalar or shape {known}", f"shape {array.shape}"))
    if array.size and (int(array.min()) < low or int(array.max()) > high):
        raise ValueError(message(name, f"numbers of {dtype}", "others"))
    points = array.reshape(-1).astype(np.int32)
    return points if points.any() else None
