"""What NumPy's products are: the axes they need, the types they compute in, where results lie."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgemm.api.kinds import NUMPY, number_of, result_type, without_loop
from jitgemm.api.operands import Array, describe, overlaps_itself, stack_shape
from jitgemm.errors import message

__all__ = [
    "NAMES", "PLACES", "Gufunc", "Loop", "Places", "cast", "check_target", "covers", "has_say",
    "new_result",
]  # fmt: skip

NAMES = ("x1", "x2")
"""Of operands, in messages."""

PLACES = ("axes", "axis", "keepdims")
"""Keywords that say where axes are."""
_TYPES = ("dtype", "signature", "sig")
_RULES = ("casting", "order", "subok", *_TYPES)
"""What NumPy is asked about."""


def covers(x1: Array, x2: Array) -> bool:
    """Whether there is a kernel for this product."""
    left, right = number_of(x1.dtype), number_of(x2.dtype)
    if left is None or right is None:
        return False
    if 2 in (left[1], right[1]):
        return left == right
    return True


def has_say(x: object) -> bool:
    """Whether NumPy asks ``x`` what becomes of a product: a subclass, or a type with a protocol."""
    kind = type(x)
    if kind is np.ndarray or x is None or kind is np.memmap or issubclass(kind, np.generic):
        return False
    return hasattr(kind, "__array_ufunc__") or hasattr(kind, "__array_wrap__")


def cast(x: Array, dtype: np.dtype) -> Array:
    """``x`` in another type, quietly; what is broadcast stays broadcast (contract 15)."""
    if x.dtype == dtype:
        return x
    if x.dtype.kind == "c" and dtype.kind in "iuf":
        # NumPy has warned of this when it was asked.
        x = x.real
    once = x[tuple(slice(0, 1) if s == 0 else slice(None) for s in x.strides)]
    return np.broadcast_to(once.astype(dtype), x.shape)


@dataclass(frozen=True, slots=True)
class Loop:
    """In what a product is computed."""

    dtype: np.dtype
    """The result's type, before it is cast to that of ``out``."""
    natural: bool
    """The operands' own types decide; otherwise operands are cast to ``dtype``."""
    ours: bool
    """There is a kernel."""


class Places:
    """Where the axes of each operand are: those of the stack, and those of one product."""

    def __init__(
        self, cores: tuple[int, int, int], keywords: dict[str, Any], *, omitted: bool
    ) -> None:
        self.cores = cores
        self._items: list[Any] = []
        self._argument = "axes"
        if "axis" in keywords:
            self._items = self._of_axis(keywords)
        elif "axes" in keywords:
            self._items = self._of_axes(keywords["axes"], omitted=omitted)

    def _of_axis(self, keywords: dict[str, Any]) -> list[Any]:
        self._argument = "axis"
        if "axes" in keywords:
            raise TypeError(message("axis", "no such argument beside axes", "both"))
        axis = (operator.index(keywords["axis"]),)
        return [axis, axis, axis[: self.cores[2]]]

    @staticmethod
    def _of_axes(axes: object, *, omitted: bool) -> list[Any]:
        if not isinstance(axes, list):
            raise TypeError(message("axes", "a list", type(axes).__name__))
        if len(axes) == 2 and omitted:
            return axes
        if len(axes) != 3:
            raise ValueError(message("axes", "an entry for x1, x2 and the result", len(axes)))
        return axes

    def of(self, operand: int, ndim: int) -> tuple[int, ...]:
        """The axes of one product in an operand (2: the result) of ``ndim`` dimensions.

        Raises:
            TypeError, ValueError, AxisError: as NumPy.
        """
        core = self.cores[operand]
        named = operand < len(self._items)
        item: Any = self._items[operand] if named else range(-core, 0)
        whose = (*NAMES, "the result")[operand]
        if not isinstance(item, (tuple, range)):
            if core != 1:
                operator.index(item)
                raise np.exceptions.AxisError(
                    message(self._argument, f"a tuple of {core} axes of {whose}", repr(item))
                )
            item = (item,)
        if len(item) != core:
            expected = f"{core} axes of {whose}"
            raise np.exceptions.AxisError(message(self._argument, expected, repr(item)))
        found = []
        for x in map(operator.index, item):
            if not -ndim <= x < ndim:
                raise np.exceptions.AxisError(x, ndim, f"jitgemm: {self._argument}: {whose}")
            found.append(x % ndim)
        if len(set(found)) < core:
            expected = f"different axes of {whose}"
            raise ValueError(message(self._argument, expected, repr(tuple(item))))
        return tuple(found)

    def order(self, operand: int, ndim: int) -> list[int]:
        """All axes of an operand, those of one product last."""
        core = self.of(operand, ndim)
        return [i for i in range(ndim) if i not in core] + list(core)


class Gufunc:
    """One of NumPy's products, which is a function of vectors or matrices, for stacks of them."""

    def __init__(self, name: str, cores: tuple[int, int, int], *, conj: bool = False) -> None:
        self.name = name
        self.cores = cores
        """Axes of one product in the operands and the result; of ``matmul`` the most."""
        self.conj = conj
        """The first operand is conjugated."""
        # ``axis`` and ``keepdims`` are for products of vectors.
        self.keywords = ("axes", *_RULES) if cores[2] else (*PLACES, *_RULES)

    def count_axes(
        self, operands: tuple[Array, Array], keywords: dict[str, Any]
    ) -> tuple[int, int, int]:
        """How many axes of one product the operands and the result have.

        Raises:
            TypeError: ``keepdims`` is no truth value.
            ValueError: an operand lacks axes.
        """
        keeps = keywords.get("keepdims", False)
        if not isinstance(keeps, bool):
            raise TypeError(message("keepdims", "True or False", type(keeps).__name__))
        self.check_dimensions(*operands)
        first, second, result = self.cores
        if self.name == "matmul":
            first, second = (min(2, x.ndim) for x in operands)
            result = first + second - 2
        return first, second, result + keeps

    def check_dimensions(self, left: Any, right: Any) -> None:
        """Refuse operands that lack axes of one product.

        Raises:
            ValueError: one does.
        """
        for name, x, core in zip(NAMES, (left, right), self.cores, strict=False):
            least = 1 if self.name == "matmul" else core
            if x.ndim < least:
                expected = f"at least {least} dimension{'s' * (least > 1)}"
                got = f"shape {tuple(x.shape)}" if x.ndim else "a scalar"
                raise ValueError(message(name, expected, got))

    def check_shapes(self, left: Any, right: Any) -> tuple[int, ...]:
        """The shape of the result of operands whose axes are in their places.

        Raises:
            ValueError: they do not fit.
        """
        if self.name == "matmul":
            return stack_shape(left, right, NAMES)
        first, second = self.cores[:2]
        k, depth = left.shape[-1], right.shape[-second]
        if k != depth:
            what = "rows" if second == 2 else "numbers"
            expected = f"{k} {what}, because x1 has shape {tuple(left.shape)}"
            raise ValueError(message("x2", expected, describe(right)))
        try:
            batch = np.broadcast_shapes(left.shape[:-first], right.shape[:-second])
        except ValueError:
            expected = f"leading axes that broadcast with {tuple(left.shape)}"
            raise ValueError(message("x2", expected, f"shape {tuple(right.shape)}")) from None
        rows = left.shape[-2:-1] if first == 2 else ()
        cols = right.shape[-1:] if second == 2 else ()
        return (*batch, *rows, *cols)

    def loop(self, left: Array, right: Array, out: Any, keywords: dict[str, Any]) -> Loop:
        """The type that NumPy computes in.

        Raises:
            TypeError, ValueError: NumPy's own, about types, casting, order and the like.
        """
        natural = all(keywords.get(x) is None for x in _TYPES)
        ufunc: Any = getattr(np, self.name, np.matmul)
        # Without a ufunc of that name its rules are those of ``matmul``.
        cores = (2, 2, 2) if ufunc is np.matmul else self.cores
        rules = {x: keywords[x] for x in _RULES if x in keywords}
        lacking = [without_loop(x.dtype) for x in (left, right)]
        narrow, pairs = any(lacking), zip((left, right), lacking, strict=True)
        types = [np.dtype(np.float32) if lacks else x.dtype for x, lacks in pairs]
        # Of a stack: the result is never a scalar, which may have no dtype.
        stand_ins = [np.zeros((1,) * (n + 1), x) for n, x in zip(cores, types, strict=False)]
        dtype: np.dtype = ufunc(*stand_ins, **rules).dtype
        ours = number_of(dtype) is not None
        if natural:
            ours = covers(left, right)
            dtype = result_type(left.dtype, right.dtype, NUMPY) if ours else dtype
        if out is not None and natural and narrow:
            casting = keywords.get("casting", "same_kind")
            same = number_of(out.dtype) == number_of(dtype)
            if not (same or np.can_cast(dtype, out.dtype, casting)):
                raise TypeError(message("out", f"a type that {dtype} is cast to", out.dtype))
        elif out is not None:
            ufunc(*stand_ins, out=np.zeros((1,) * (cores[2] + 1), out.dtype), **rules)
        return Loop(dtype, natural, ours)

    def as_matrices(self, left: Any, right: Any) -> tuple[Any, Any, tuple[Any, ...]]:
        """Operands of vectors as those of ``matmul``, and what its result has more than ours.

        Returns:
            The operands, and an index that gives ``out`` the axes of matmul's result.
        """
        rows: tuple[Any, ...] = ()
        cols: tuple[Any, ...] = ()
        if self.cores[0] == 1 and left.ndim > 1:
            left, rows = left[..., np.newaxis, :], (np.newaxis,)
        if self.cores[1] == 1 and right.ndim > 1:
            right, cols = right[..., np.newaxis], (np.newaxis,)
        elif rows and self.cores[1] == 2:
            cols = (slice(None),)
        return left, right, (..., *rows, *cols) if rows or cols else ()


def check_target(target: Array, shape: tuple[int, ...], core: int) -> None:
    """Whether a result of ``shape`` can be written, broadcast along leading axes.

    Raises:
        ValueError: it cannot.
    """
    stack, own = shape[: len(shape) - core], target.shape[: max(0, target.ndim - core)]
    while len(stack) > len(own) and stack[0] == 1:
        stack = stack[1:]
    try:
        fits = target.ndim >= core and np.broadcast_shapes(stack, own) == own
    except ValueError:
        fits = False
    if not fits or target.shape[len(own) :] != shape[len(shape) - core :]:
        expected = f"shape {shape}, or one to which it is broadcast along leading axes"
        raise ValueError(message("out", expected, f"the non-broadcastable {target.shape}"))
    if not target.flags.writeable:
        raise ValueError(message("out", "a writable array", "a read-only one"))
    if overlaps_itself(target):
        raise ValueError(message("out", "elements of its own memory", "elements that overlap"))


def new_result(
    operands: tuple[Array, Array],
    places: Places,
    shape: tuple[int, ...],
    dtype: np.dtype,
    order: Any,
) -> Array:
    """A new result whose axes lie in memory as those of NumPy's would.

    NumPy's iterator decides: it walks the axes of the stack, then those of one product, which the
    operands do not have.
    """
    core = places.cores[2]
    stack = len(shape) - core
    axes = []
    for i, x in enumerate(operands):
        own = places.order(i, x.ndim)[: x.ndim - places.cores[i]]
        axes.append([-1] * (stack - len(own)) + own + [-1] * core)
    axes.append(places.order(2, len(shape)))
    iterator: Any = np.nditer(
        [*operands, None],
        flags=["zerosize_ok", "refs_ok"],
        op_flags=[["readonly"], ["readonly"], ["writeonly", "allocate"]],
        op_dtypes=[None, None, dtype],
        order=order,
        casting="unsafe",
        op_axes=axes,
        itershape=shape,
    )
    result: Array = iterator.operands[2]
    return result
