"""Stacks of matrices: validated, folded, planned, run; and the entries of repeated calls."""

from __future__ import annotations

from dataclasses import replace
from operator import mul
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from jitgemm.api import blas
from jitgemm.api.dispatch import (
    Known,
    Table,
    entries,
    keep_entry,
    key_of,
    not_implemented,
    table_scalars,
)
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
from jitgemm.api.product import Options, Product, sums_of
from jitgemm.api.quantise import with_bias
from jitgemm.api.request import Request, data_of, request_of, told
from jitgemm.errors import message
from jitgemm.planner.batching import make_batch_plan
from jitgemm.planner.folding import Axis, Stack, fold
from jitgemm.runtime import numpy_abi
from jitgemm.runtime.batch_code import BATCH
from jitgemm.runtime.batch_entry import CALL, DIMENSIONS, OPERANDS
from jitgemm.runtime.batches import BatchExecutable, job_slot
from jitgemm.runtime.data import Scalars
from jitgemm.runtime.driver import Executable
from jitgemm.runtime.engine import engine, knob, record_array
from jitgemm.runtime.packed import Packed, PackedLhs, PackedRhs, element_dtype

__all__ = ["StackedProduct", "shares", "stacked"]

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


# -- entries --------------------------------------------------------------------------------------


def _arrays(product: StackedProduct) -> dict[str, Array] | None:
    """What an entry will be given, by job field; ``None`` if it cannot take that."""
    found: dict[str, Any] = {k: v for k, v in product.given.items() if v is not None}
    found["d"] = product.target
    for name, x in found.items():
        if isinstance(x, Packed):
            found[name] = x.storage
        elif type(x) is not np.ndarray or not x.dtype.isnative or x.ndim > DIMENSIONS:
            return None
    return found


def _remember(key: Any, product: StackedProduct, threads: int) -> None:
    """Leave an entry for calls like this one, if generated code can take them."""
    arrays = _arrays(product)
    if product.item.blas or product.empty or product.copied or arrays is None:
        return
    e = engine()
    if not e.native:
        return
    executable = product.executable(threads)
    plan = executable.plan
    if plan.outer:
        return
    item = executable.item
    table = record_array(CALL.slots).view(Table)
    scalars, needs_data = table_scalars(product.item.scalars)
    values: dict[str, int] = {
        "array_type": id(np.ndarray),
        "bytes_type": id(bytes),
        "needs_data": needs_data,
        "slow": id(not_implemented),
        "none": id(None),
        "new_from_descr": numpy_abi.new_from_descr(),
        "fresh": int(product.out is None),
        "in_place": int(item.plan.problem.in_place),
        "pool_cell": e.pool.cell,
        "release": int(plan.threads > 1 or plan.operations >= knob("gil_flops")),
        "shared": e.scratch.where,
        "scratch_bytes": plan.workspace_bytes,
    }
    bytes_of_handle = np.dtype(np.uint8)
    for name in OPERANDS:
        if name in arrays:
            x, given = arrays[name], product.given.get(name)
            descr = bytes_of_handle if isinstance(given, Packed) else np.dtype(x.dtype.type)
            values |= _expected(name, x, descr)
            values[f"{name}_field"] = 8 * job_slot(_field(name, given, item))
    for name, value in values.items():
        table[CALL.slot(name)] = value
    start = CALL.slot("batch_0")
    record, tables = executable.record(scalars)
    table[start : start + BATCH.slots] = record
    e.scratch.reserve(plan.workspace_bytes)
    table.keep = (executable, bytes_of_handle, tables)
    keep_entry(key, Known(e.builtin("jitgemm_call_batch", table), item.data))


def _field(name: str, given: object, item: Executable) -> str:
    """The job field that an operand's address belongs in."""
    if isinstance(given, Packed):
        return "packed"
    if item.plan.swapped and name in ("a", "b"):
        return "b" if name == "a" else "a"
    return name


def _expected(name: str, x: Array, descr: np.dtype) -> dict[str, int]:
    reach = [(n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)]
    return {
        f"{name}_present": 1,
        f"{name}_descr": id(descr),
        f"{name}_low": sum(min(0, r) for r in reach),
        f"{name}_high": sum(max(0, r) for r in reach) + x.itemsize,
        f"{name}_nd": x.ndim,
        **{f"{name}_dim_{i}": n for i, n in enumerate(x.shape)},
        **{f"{name}_stride_{i}": s for i, s in enumerate(x.strides)},
    }


def stacked(
    a: Any,
    b: Any,
    out: Any,
    others: tuple[Any, Any],
    options: tuple[Any, ...],
    threads: int,
    names: tuple[str, str] = ("a", "b"),
) -> Array:
    """A product of stacks (or vectors) through the entry an earlier call left, or in full.

    Args:
        a: an array of one or more dimensions, or a handle.
        b: likewise.
        out: as for :func:`jitgemm.gemm`.
        others: C and bias.
        options: the other arguments of :class:`Options`, in its order.
        threads: at most this many.
        names: of A and B in messages.
    """
    (c, bias), key, known, request = others, (), None, None
    call = told(options, a, b)
    if call is not None:
        form, given, _ = call
        if type(given) is Request:
            request, bias = given, with_bias(bias, given.requantize)
        try:
            key = key_of(a, b, out, c, bias, form, threads)
            known = entries.get(key)
        except TypeError:  # no arrays
            key = ()
        if known is not None:
            left = a.storage if isinstance(a, Packed) else a
            right = b.storage if isinstance(b, Packed) else b
            # What the data refer to lives until here.
            data, _tables = data_of(known.data, given)
            result = known.entry(left, right, out, bias, c, data)
            if result is not NotImplemented:
                return result  # type: ignore[no-any-return]
    asked = Options(*options)
    asked.c, asked.bias = others
    product = StackedProduct(a, b, out, asked, names, request)
    if key and known is None:
        _remember(key, product, threads)
    return product.run(threads)
