"""Zero points of integer operands, and requantisation of their products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from jitgemm.api.operands import plain, weakly
from jitgemm.errors import message
from jitgemm.kernels.spec import Scale

__all__ = ["BOUNDS", "NARROW", "Requantize", "with_bias", "zero_points"]

BOUNDS = {np.dtype(np.int8): (-128, 127), np.dtype(np.uint8): (0, 255)}
"""The least and the greatest number of the types that have zero points."""
NARROW = tuple(BOUNDS)
_INT32 = np.dtype(np.int32)


@dataclass(frozen=True, eq=False)
class Requantize:
    """How a 32-bit product becomes an 8-bit one.

    ``saturate(round_half_even(scale * (product + bias)) + zero_point)``: the product by the scale
    is rounded once, to float64.

    Args:
        scale: positive and finite: a scalar; ``(n,)`` or ``(1, n)``, one per column; or ``(m, 1)``,
            one per row; for stacks anything that broadcasts to ``(..., 1, n)`` or ``(..., m, 1)``.
        zero_point: an integer of the result's type.
        dtype: ``numpy.int8`` or ``numpy.uint8``.
        bias: int32, a scalar, ``(n,)``, ``(m, 1)`` or ``(m, n)``, for stacks anything that
            broadcasts; added before scaling.

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
            bias = weakly("bias", self.bias, _INT32)
            if bias.dtype.kind not in "iu":
                raise TypeError(message("bias", "int32 elements", bias.dtype))
            object.__setattr__(self, "bias", _as_int32("bias", bias))

    def __reduce__(self) -> tuple[type[Requantize], tuple[object, ...]]:
        # Through the constructor: copies and pickles are checked and read-only too.
        return Requantize, (self.scale, self.zero_point, self.dtype, self.bias)

    def seen_before(self) -> bool:
        """Whether this has been asked before: one made for a single call need not be kept."""
        seen = "seen" in self.__dict__
        self.__dict__["seen"] = True
        return seen

    @property
    def type(self) -> np.dtype:
        """The result's type."""
        return np.dtype(self.dtype)

    def along(
        self, m: int, n: int, batch: tuple[int, ...] = ()
    ) -> tuple[NDArray[np.float64], Scale]:
        """Scales side by side, and along which axis of ``(..., m, n)`` products they vary.

        Those that differ between the products of a stack have batch axes before that one.

        Raises:
            ValueError: there are more or fewer of them.
        """
        scales = np.asarray(self.scale)
        if scales.size == 1:
            return scales.reshape(1), Scale.ROW
        for item, kind in (((m, 1), Scale.ROW), ((1, n), Scale.COLUMN)):
            # One axis is that of the columns.
            if scales.ndim > 1 or kind is Scale.COLUMN:
                found = _side_by_side(scales, item, batch)
                if found is not None:
                    return found, kind
        expected = f"a scalar, shape ({n},), (1, {n}) or ({m}, 1)"
        if batch:
            expected += f", or one that broadcasts to {(*batch, m, 1)} or {(*batch, 1, n)}"
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
    given = plain("scale", scale)
    if given.dtype.kind not in "fiu":
        raise TypeError(message("scale", "real numbers", given.dtype))
    scales = np.array(given, np.float64, order="C")
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise ValueError(message("scale", "positive finite numbers", "others"))
    scales.flags.writeable = False
    return scales


def _as_int32(name: str, x: NDArray[Any]) -> NDArray[np.int32]:
    info = np.iinfo(np.int32)
    if x.size and (int(x.min()) < info.min or int(x.max()) > info.max):
        raise ValueError(message(name, "numbers of int32", "larger ones"))
    result = np.array(x, np.int32)
    result.flags.writeable = False
    return result


def _zero(name: str, x: object, dtype: np.dtype) -> int:
    array = np.zeros(1, int) if type(x) is int else plain(name, x)
    if array.dtype.kind not in "iu" or array.size != 1:
        raise TypeError(message(name, "an integer", type(x).__name__))
    value, (low, high) = x if type(x) is int else int(array.reshape(())), BOUNDS[dtype]
    if not low <= value <= high:
        raise ValueError(message(name, f"a number of {dtype}", value))
    return value


def zero_points(
    name: str,
    x: object,
    dtype: np.dtype,
    item: tuple[int, int],
    batch: tuple[int, ...] = (),
) -> NDArray[np.int32] | None:
    """Zero points side by side: one for all, or one per row or column; ``None`` if all are 0.

    Those that differ between the products of a stack have batch axes before that of their own.

    Args:
        name: of the argument.
        x: what was passed for it.
        dtype: the operand's type, whose numbers they are.
        item: ``(m, 1)`` for A, ``(1, n)`` for B.
        batch: leading axes of a stack's result.

    Raises:
        TypeError: no integers, or an operand that has no zero points.
        ValueError: another shape, or numbers beyond the operand's type.
    """
    if x is None or (type(x) is int and x == 0):
        return None
    low, high = BOUNDS.get(dtype, (0, 0))
    if type(x) is int and low <= x <= high:
        return np.array((x,), np.int32)
    array = plain(name, x)
    if array.dtype.kind not in "iu":
        # An integer of Python may be beyond every integer type of NumPy.
        if array.dtype == object and all(type(y) is int for y in array.flat):
            raise ValueError(message(name, f"numbers of {dtype}", "others"))
        raise TypeError(message(name, "integers", array.dtype))
    if dtype not in NARROW:
        raise TypeError(message(name, f"None, because the operand is {dtype}", "zero points"))
    points = _side_by_side(array, item, batch)
    if points is None:
        known = f"({item[0] * item[1]},) or {item}"
        if batch:
            known += f" or one that broadcasts to {(*batch, *item)}"
        raise ValueError(message(name, f"a scalar or shape {known}", f"shape {array.shape}"))
    if array.size and (int(array.min()) < low or int(array.max()) > high):
        raise ValueError(message(name, f"numbers of {dtype}", "others"))
    return points.astype(np.int32, order="C") if array.any() else None


def _side_by_side(
    x: NDArray[Any], item: tuple[int, int], batch: tuple[int, ...]
) -> NDArray[Any] | None:
    """One number for all, one per row or column, or ``(..., m)`` or ``(..., n)`` of them.

    They have batch axes from the first on along which they differ.

    Args:
        x: the numbers as given.
        item: ``(m, 1)`` or ``(1, n)``.
        batch: leading axes of a stack's result.

    Returns:
        ``None`` for another shape; else an array in one piece.
    """
    count = item[0] * item[1]
    if x.size == 1:
        return x.reshape(1)
    if x.shape in ((count,), item):
        return x.reshape(count)
    if x.ndim < 3 or not _broadcasts(x.shape, (*batch, *item)):
        return None
    lead = x.shape[:-2]
    first = next((i for i, n in enumerate(lead) if n != 1), len(lead))
    wide = np.broadcast_to(x, (*lead, *item))
    return np.ascontiguousarray(wide.reshape(*lead[first:], count))


def _broadcasts(shape: tuple[int, ...], wide: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, wide) == wide
    except ValueError:
        return False
