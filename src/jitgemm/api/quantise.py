"""Zero points of integer operands, and requantisation of their products."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from jitgemm.api.operands import plain, weakly
from jitgemm.errors import message
from jitgemm.kernels.spec import Scale

__all__ = [
    "NARROW", "Numbers", "PerItem", "Requantize", "differ", "per_item", "table_strides",
    "with_bias", "zero_points",
]  # fmt: skip

NARROW = (np.dtype(np.int8), np.dtype(np.uint8))
_INT32 = np.dtype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class PerItem:
    """Numbers that differ between the products of a stack, checked.

    ``table`` is ``(..., m)`` or ``(..., n)``, in one piece: batch axes along which it does not vary
    have length 1.
    """

    table: NDArray[Any]

    def strides(self, axes: int) -> tuple[int, ...]:
        """Bytes from one product to the next, along each of so many batch axes."""
        lead = zip(self.table.shape[:-1], self.table.strides[:-1], strict=True)
        found = tuple(s if n > 1 else 0 for n, s in lead)
        return (0,) * (axes - len(found)) + found

    def at(self, index: tuple[int, ...]) -> NDArray[Any]:
        """Those of one product."""
        lead = self.table.shape[:-1]
        own = index[len(index) - len(lead) :]
        return np.asarray(
            self.table[tuple(i if n > 1 else 0 for i, n in zip(own, lead, strict=True))]
        )


Numbers = tuple[object, object, object]
"""Zero points of A and of B, and the rule of requantisation, or ``None`` for each."""


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
    # The scales of a stack's products, and along which axis of each they vary.
    _tables: tuple[NDArray[np.float64], Scale] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _narrow_type(self.dtype))
        object.__setattr__(self, "scale", _scales(self.scale))
        object.__setattr__(self, "zero_point", _zero("zero_point", self.zero_point, self.type))
        if self.bias is not None:
            bias = weakly("bias", self.bias, _INT32)
            if bias.dtype.kind not in "iu":
                raise TypeError(message("bias", "int32 elements", bias.dtype))
            object.__setattr__(self, "bias", _as_int32("bias", bias))

    @property
    def type(self) -> np.dtype:
        """The result's type."""
        return np.dtype(self.dtype)

    @property
    def scales(self) -> NDArray[np.float64]:
        """The scale as an array."""
        return np.asarray(self.scale)

    @property
    def tables(self) -> PerItem | None:
        """Scales that differ between the products of a stack."""
        return None if self._tables is None else PerItem(self._tables[0])

    def at(self, index: tuple[int, ...]) -> Requantize:
        """The rule of one product of a stack."""
        if self._tables is None:
            return self
        scales, kind = self._tables
        return self.per_item((PerItem(scales).at(index), kind))

    def per_item(self, tables: tuple[NDArray[np.float64], Scale]) -> Requantize:
        """The same rule with scales that differ between the products of a stack."""
        result = replace(self)
        object.__setattr__(result, "_tables", tables)
        return result

    def along(self, m: int, n: int) -> tuple[NDArray[np.float64], Scale]:
        """Scales side by side, and along which axis of an ``(m, n)`` product they vary.

        Raises:
            ValueError: there are more or fewer of them.
        """
        if self._tables is not None:
            return self._tables
        scales = self.scales
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
    value = x if type(x) is int else int(array.reshape(()))
    info = np.iinfo(dtype)
    if not info.min <= value <= info.max:
        raise ValueError(message(name, f"a number of {dtype}", value))
    return value


def zero_points(
    name: str,
    x: object,
    dtype: np.dtype,
    shapes: tuple[tuple[int, ...], ...],
    wide: tuple[int, ...] = (),
) -> NDArray[Any] | None:
    """Zero points side by side: one for all, or one per row or column; ``None`` if all are 0.

    Args:
        name: of the argument.
        x: what was passed for it.
        dtype: the operand's type, whose numbers they are.
        shapes: what a vector of them may look like.
        wide: of a stack: what others must broadcast to.

    Returns:
        Int32 of one dimension; of as many as ``x`` has where they differ between a stack's
        products.

    Raises:
        TypeError: no integers, or an operand that has no zero points.
        ValueError: another shape, or numbers beyond the operand's type.
    """
    if isinstance(x, PerItem):
        return x.table
    if x is None or (type(x) is int and x == 0):
        return None
    array = plain(name, x)
    if array.dtype.kind not in "iu":
        # An integer of Python may be beyond every integer type of NumPy.
        if array.dtype == object and all(type(y) is int for y in array.flat):
            raise ValueError(message(name, f"numbers of {dtype}", "others"))
        raise TypeError(message(name, "integers", array.dtype))
    if dtype not in NARROW:
        raise TypeError(message(name, f"None, because the operand is {dtype}", "zero points"))
    side_by_side = array.size == 1 or array.shape in shapes
    if not side_by_side and not _broadcasts(array.shape, wide):
        known = " or ".join(map(str, shapes)) + (
            f" or one that broadcasts to {wide}" if wide else ""
        )
        raise ValueError(message(name, f"a scalar or shape {known}", f"shape {array.shape}"))
    info = np.iinfo(dtype)
    if array.size and (int(array.min()) < info.min or int(array.max()) > info.max):
        raise ValueError(message(name, f"numbers of {dtype}", "others"))
    points = array.astype(np.int32)
    if side_by_side:
        points = points.reshape(-1)
    return points if points.any() else None


def _broadcasts(shape: tuple[int, ...], wide: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, wide) == wide
    except ValueError:
        return False


def _table(x: NDArray[Any], item: tuple[int, int]) -> NDArray[Any]:
    """What broadcasts to ``(..., 1, n)`` or ``(..., m, 1)`` as ``(..., n)`` or ``(..., m)``."""
    lead = x.shape[:-2]
    return np.ascontiguousarray(
        np.broadcast_to(x, (*lead, *item)).reshape(*lead, item[0] * item[1])
    )


def _zero_tables(
    name: str, x: object, dtype: np.dtype, batch: tuple[int, ...], item: tuple[int, int]
) -> NDArray[Any] | PerItem | None:
    """Zero points of a stack as its products take them: side by side, or :class:`PerItem`.

    Args:
        name: of the argument.
        x: what was passed for it.
        dtype: the operand's type.
        batch: leading axes of the result.
        item: ``(m, 1)`` for A, ``(1, n)`` for B.

    Raises:
        TypeError, ValueError: as :func:`zero_points`.
    """
    shapes = ((item[0] * item[1],), item)
    points = zero_points(name, x, dtype, shapes, (*batch, *item))
    if points is None or points.ndim < 3:
        return points
    return PerItem(_table(points, item))


def _scale_tables(rule: Requantize, batch: tuple[int, ...], m: int, n: int) -> Requantize:
    scales = rule.scales
    if scales.size == 1 or scales.shape in ((n,), (1, n), (m, 1)):
        return rule
    for item, kind in (((m, 1), Scale.ROW), ((1, n), Scale.COLUMN)):
        if scales.ndim > 2 and _broadcasts(scales.shape, (*batch, *item)):
            return rule.per_item((_table(scales, item), kind))
    expected = f"a scalar, shape ({n},), (1, {n}) or ({m}, 1), or one that broadcasts to "
    expected += f"{(*batch, m, 1)} or {(*batch, 1, n)}"
    raise ValueError(message("requantize.scale", expected, f"shape {scales.shape}"))


def per_item(numbers: Numbers, a: np.dtype, b: np.dtype, full: tuple[int, ...]) -> Numbers:
    """Zero points and rule of a stack as one of its products takes them.

    The rule is without its bias, which is the stack's.

    Args:
        numbers: what was passed for them.
        a: type of A.
        b: type of B.
        full: ``(..., m, n)`` of the result.

    Raises:
        TypeError, ValueError: as :func:`zero_points`; scales that do not fit.
    """
    (zero_a, zero_b, rule), (*lead, m, n) = numbers, full
    batch = tuple(lead)
    if isinstance(rule, Requantize):
        rule = _scale_tables(replace(rule, bias=None), batch, m, n)
    return (
        _zero_tables("a_zero_point", zero_a, a, batch, (m, 1)),
        _zero_tables("b_zero_point", zero_b, b, batch, (1, n)),
        rule,
    )


def _tables(numbers: Numbers) -> dict[str, Any]:
    zero_a, zero_b, rule = numbers
    scale = (rule.tables or rule.scale) if isinstance(rule, Requantize) else None
    return {"zero_a": zero_a, "zero_b": zero_b, "scales": scale}


def differ(numbers: Numbers) -> bool:
    """Whether numbers that :func:`per_item` has seen belong to rows, columns or products."""
    return any(isinstance(x, PerItem) or np.size(x) > 1 for x in _tables(numbers).values())


def table_strides(numbers: Numbers, axes: int) -> dict[str, tuple[int, ...]]:
    """Bytes from one product's to the next's, by job field and batch axis, where they differ."""
    return {name: x.strides(axes) for name, x in _tables(numbers).items() if isinstance(x, PerItem)}
