"""Stacks of matrices: validated, folded, planned, run."""

from __future__ import annotations

from dataclasses import replace
from operator import mul
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from jitgemm.api import blas
from jitgemm.api.keeping import keep
from jitgemm.api.kinds import number_of
from jitgemm.api.operands import (
    Array,
    check_output,
    native,
    new_result,
    operand,
    plain_or_packed,
    stack_shape,
    weakly,
)
from jitgemm.api.keywords import Options
from jitgemm.api.product import Product, sums_of
from jitgemm.api.quantise import with_bias
from jitgemm.api.request import Request, request_of
from jitgemm.errors import message
from jitgemm.planner.batching import make_batch_plan
from jitgemm.planner.folding import Axis, Stack, fold
from jitgemm.runtime.batches import BatchExecutable
from jitgemm.runtime.data import Scalars
from jitgemm.runtime.engine import engine
from jitgemm.runtime.packed import Packed, PackedLhs, PackedRhs, element_dtype

__all__ = ["StackedProduct", "product_of", "shares"]

_KEPT = 512
_cache: dict[tuple[Any, ...], BatchExecutable] = {}
_WORK_ON_OVERLAP = 100


def shares(x: Array, y: Array) -> bool:
    """Whether two arrays may share memory; exact for interleaved ones where that is cheap."""
    if not np.may_share_memory(x, y):
        return False
    try:
        return np.shares_memory(x, y, max_work=_WORK_ON_OVERLAP)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _same_place(x: Array, y: Array) -> bool:
    """Whether two arrays of one shape are the same elements at the same addresses."""
    if x.dtype != y.dtype:
        return False
    if x.__array_interface__["data"][0] != y.__array_interface__["data"][0]:
        return False
    return all(n == 1 or s == t for n, s, t in zip(x.shape, x.strides, y.strides, strict=True))


class StackedProduct:
    """``act(alpha * a @ b + beta * c + bias)`` for stacks, with every argument checked.

    Vectors are matrices of one row or one column whose axis the result lacks.
    """

    __slots__ = ("copied", "dtype", "first", "full", "given", "item", "out", "request",
                 "returned", "shape", "stack", "sum_dtype", "target", "wide")  # fmt: skip

    def __init__(
        self,
        a: object,
        b: object,
        out: object,
        options: Options,
        names: tuple[str, str] = ("a", "b"),
        request: Request | None = None,
    ) -> None:
        left, right = plain_or_packed(names[0], a), plain_or_packed(names[1], b)
        for name, x, kind in (("a", left, PackedLhs), ("b", right, PackedRhs)):
            if isinstance(x, Packed) and not isinstance(x, kind):
                raise TypeError(message(name, f"an array or a {kind.__name__}", type(x).__name__))
            if not isinstance(x, Packed) and number_of(x.dtype) is None:
                operand(name, x)
        # With it of the options only C and the bias are read.
        if request is None:
            request = request_of(options, left, right)
        self.request, self.dtype = request, request.dtype
        self.sum_dtype = element_dtype(*sums_of(left.dtype, right.dtype, self.dtype))
        self.shape = stack_shape(left, right, names)
        # The user's own operands, as an entry will see them.
        self.given: dict[str, Any] = {"a": a, "b": b, "c": None}
        bias = self.given["bias"] = with_bias(options.bias, request.requantize)
        index: tuple[Any, ...] = (...,)
        index += (np.newaxis,) if left.ndim == 1 else (slice(None),)
        index += (np.newaxis,) if right.ndim == 1 else (slice(None),)
        if isinstance(left, np.ndarray) and left.ndim == 1:
            left = left[np.newaxis, :]
        if isinstance(right, np.ndarray) and right.ndim == 1:
            right = right[:, np.newaxis]
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        self.full = (*batch, left.shape[-2], right.shape[-1])
        c, wide = self._c(options.c), self._bias(bias)
        self.out = None if out is None else check_output("out", out, self.shape, self.dtype)
        # What the caller gets back: the very object, if the result goes into its memory.
        self.returned: Any = out
        self.copied, self.target = self._target([left, right, wide], c)
        target = self.target[index] if self.shape != self.full else self.target
        self._fold({"a": left, "b": right, "c": c, "d": target, "bias": wide})

    def _apart(self, m: int, n: int) -> str:
        """What may not be folded into rows and columns: ``r``, ``c``, both or neither.

        A traced function sees indices within its own product, and a dot product has an order of
        its own.
        """
        request = self.request
        if m == n == 1 and not request.strict:
            return "rc"
        if request.many:
            # They are numbers of each product's own rows or columns.
            return "rc"
        if request.program is None:
            return ""
        return "r" * request.program.uses("row") + "c" * request.program.uses("col")

    def _c(self, c: object) -> Array | None:
        if c is None:
            return None  # Product refuses this if beta is not 0
        array = operand("c", c, self.sum_dtype, self.dtype)
        try:
            wide = np.broadcast_to(array, self.full)
        except ValueError:
            expected = f"a shape that broadcasts to {self.full}"
            raise ValueError(message("c", expected, f"shape {array.shape}")) from None
        if self.request.scalars.beta == 0:
            return None
        self.given["c"] = c
        return wide

    def _bias(self, bias: object) -> Array | None:
        if bias is None:
            return None
        array = weakly("bias", bias, self.sum_dtype, self.dtype)
        try:
            return np.broadcast_to(native(array), self.full)
        except ValueError:
            expected = f"a shape that broadcasts to {self.full}"
            raise ValueError(message("bias", expected, f"shape {array.shape}")) from None

    def _target(self, inputs: list[Any], c: Array | None) -> tuple[bool, Array]:
        """Whether the result must be copied to ``out`` afterwards, and where it is computed."""
        if self.out is None:
            return False, new_result(self.shape, self.dtype)
        out = self.out
        arrays = [x for x in inputs if isinstance(x, np.ndarray)]
        if c is not None and not (c.shape == out.shape and _same_place(c, out)):
            arrays.append(c)
        if any(shares(out, x) for x in arrays):
            return True, new_result(self.shape, self.dtype)
        return False, out

    def _fold(self, operands: dict[str, Any]) -> None:
        """Describe the stack by its axes, fold it, and make the product that is left."""
        batch, (m, n) = self.full[:-2], self.full[-2:]
        wide: dict[str, Array] = {
            name: np.broadcast_to(x, (*batch, *x.shape[-2:]))
            for name, x in operands.items()
            if isinstance(x, np.ndarray)
        }
        # Of the result as it is: a broadcast view may not be written.
        self.wide = {**operands, **wide, "d": operands["d"]}
        strides = {name: x.strides for name, x in wide.items()}
        along = strides | self.request.scalars.strides(len(batch))
        axes = tuple(
            Axis(count, **{name: s[i] for name, s in along.items()})
            for i, count in enumerate(batch)
        )
        rows = Axis(m, **{name: s[-2] for name, s in strides.items() if name != "b"})
        cols = Axis(n, **{name: s[-1] for name, s in strides.items() if name != "a"})
        packed = next((name for name in "ab" if isinstance(operands[name], Packed)), "")
        self.stack = stack = fold(Stack(rows, cols, axes, packed, apart=self._apart(m, n)))
        items: dict[str, Any] = dict.fromkeys(operands)
        items.update({name: operands[name] for name in ("a", "b")})
        k = operands["a"].shape[-1]
        m, n = stack.rows.count, stack.cols.count
        for name, x in wide.items():
            down, across = getattr(stack.rows, name), getattr(stack.cols, name)
            shape, steps = (m, n), (down, across)
            if name == "a":
                shape, steps = (m, k), (down, x.strides[-1])
            elif name == "b":
                shape, steps = (k, n), (x.strides[-2], across)
            items[name] = as_strided(x, shape, steps)
        self.first = as_strided(self.target, (m, n), (stack.rows.d, stack.cols.d))
        self.item = self._product(items, self.request.scalars)

    def _product(self, operands: dict[str, Any], scalars: Scalars) -> Product:
        """One of the products, whose bias has become its own."""
        given = Options(c=operands["c"], bias=operands["bias"])
        request = replace(self.request, scalars=scalars, requantize=None)
        return Product(operands["a"], operands["b"], None, given, request)

    def _by_blas(self) -> None:
        """Each product by itself, as it was before folding."""
        scalars, batch = self.request.scalars, self.full[:-2]
        tables = scalars.strides(len(batch))
        for index in np.ndindex(*batch):
            parts = {
                name: x[index] if isinstance(x, np.ndarray) else x for name, x in self.wide.items()
            }
            at = {name: sum(map(mul, index, strides)) for name, strides in tables.items()}
            blas.run(self._product(parts, scalars.of_item(at)), parts["d"])

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute."""
        return 0 in self.full

    def executable(self, threads: int) -> BatchExecutable:
        """The stack's plan and code; the latest are kept."""
        problem = self.item.problem(self.first)
        key = (problem, self.stack, threads)
        found = _cache.get(key)
        if found is None:
            plan = make_batch_plan(problem, self.stack, engine().context(threads))
            found = BatchExecutable(plan)
            keep(_cache, key, found, _KEPT)
        return found

    def run(self, threads: int) -> Array:
        """Do it; the result (``out`` itself if there is one)."""
        if self.item.blas:
            self._by_blas()
        elif not self.empty:
            executable = self.executable(threads)
            item = self.item
            spans = item.spans(self.first, executable.item)
            executable.run(spans, item.scalars, item.workspace)
        if self.copied:
            assert self.out is not None
            self.out[...] = self.target
        result: Array = self.target if self.out is None else self.returned
        return result


def product_of(
    a: Array | Packed,
    b: Array | Packed,
    options: Options,
    names: tuple[str, str] = ("a", "b"),
    *,
    vectors: bool = False,
) -> Product | StackedProduct:
    """A validated product: of two matrices, or of stacks or vectors.

    Args:
        a: an array of a type that may be unsupported, or a handle.
        b: likewise.
        options: the other arguments.
        names: of A and B in messages.
        vectors: whether an operand that is one may meet a matrix or another vector.
    """
    if a.ndim > 2 or b.ndim > 2 or (vectors and min(a.ndim, b.ndim) < 2):
        return StackedProduct(a, b, options.out, options, names)
    return Product(a, b, options.out, options)
