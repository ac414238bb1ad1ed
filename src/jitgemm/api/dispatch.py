"""Calls that look like an earlier one go straight into generated code.

A call of :func:`gemm` or :func:`matmul` is reduced to a key (:func:`key_of`): shapes, strides and
types of operands, the form of the options, threads.  The first call with a key is planned and
leaves an entry behind: a builtin that checks its arguments against the plan and runs it with the
data of each call.  An entry that meets anything unexpected answers ``NotImplemented``, and the call
is validated and planned in full.  So a stale or colliding key can cost time but never a wrong
result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jitgemm.api.keeping import keep
from jitgemm.api.kinds import lasting
from jitgemm.api.product import Product
from jitgemm.api.request import Form
from jitgemm.kernels.job import JOB
from jitgemm.planner.route import make_plan
from jitgemm.runtime.data import DataLayout, Scalars
from jitgemm.runtime.driver import Executable, Span
from jitgemm.runtime.engine import engine, knob, record_array
from jitgemm.runtime.entry_code import B_BUFFER, B_HANDLE, B_MATRIX, PLAN
from jitgemm.runtime.packed import Packed, PackedLhs, PackedRhs

__all__ = [
    "Entry", "Known", "Table", "bind", "enters", "entries", "keep_entry", "key_of", "lasting_key",
    "not_implemented", "planned", "remember", "table_scalars"
]  # fmt: skip

Entry = Callable[..., Any]
_KEPT = 512
_ARRAY = np.ndarray


@dataclass(frozen=True, slots=True)
class Known:
    """What an earlier call has left behind."""

    entry: Entry
    """Takes A, B, the result, the bias and C, or ``None``, and the data of a call; storage in place
    of handles."""
    data: DataLayout
    """How it takes those."""


entries: dict[tuple[Any, ...], Known] = {}


def not_implemented(*_: object) -> Any:
    """What an entry answers to arguments it does not know."""
    return NotImplemented


def _described(x: Any) -> tuple[Any, ...] | None:
    """What of an operand decides a plan.

    Raises:
        TypeError: it is neither an array, of no class derived from it, nor a handle.
    """
    if type(x) is _ARRAY:
        return x.shape, x.strides, x.dtype
    if x is None:
        return None
    if isinstance(x, Packed):
        # A handle carries its own conjugation.
        return type(x), x.layout, x.isa, x.conj
    raise TypeError(type(x))


def key_of(
    a: Any, b: Any, out: Any, c: Any, bias: Any, form: Form, threads: int
) -> tuple[Any, ...]:
    """What decides the plan of a call: whether it is the same as another.

    Raises:
        TypeError: an operand is no plain array.
    """
    if c is bias is None and type(a) is type(b) is _ARRAY and (out is None or type(out) is _ARRAY):
        # The usual call, in half the time; keys of other lengths are other keys.
        first = a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype, form, threads
        return first if out is None else (first, out.shape, out.strides, out.dtype)
    return (
        (a.shape, a.strides, a.dtype) if type(a) is _ARRAY else _described(a),
        (b.shape, b.strides, b.dtype) if type(b) is _ARRAY else _described(b),
        (out.shape, out.strides, out.dtype) if type(out) is _ARRAY else _described(out),
        None if c is None else (_described(c), c is out),
        (bias.shape, bias.strides, bias.dtype) if type(bias) is _ARRAY else _described(bias),
        form, threads,
    )  # fmt: skip


def lasting_key(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """An equal key that may be kept: types of the caller's may hold on to other things."""
    return tuple(
        lasting_key(x) if type(x) is tuple else lasting(x) if isinstance(x, np.dtype) else x
        for x in key
    )


def planned(product: Product, target: np.ndarray, threads: int) -> Executable:
    """Plan a validated product."""
    return Executable(make_plan(product.problem(target), engine().context(threads)))


def enters(product: Product) -> bool:
    """Whether generated entries can take operands like these."""
    return product.usual and engine().native and not isinstance(product.a, PackedLhs)


def remember(key: tuple[Any, ...], product: Product, threads: int) -> None:
    """Leave an entry for calls like this one, if generated code can take them."""
    target, copied = product.target()
    if copied or not (enters(product) and product.m and product.n):
        return
    executable = planned(product, target, threads)
    entry = bind(product, target, executable, not_implemented, bound=False)
    keep_entry(key, Known(entry, executable.data))


def keep_entry(key: tuple[Any, ...], known: Known) -> None:
    """Leave an entry, and forget the oldest if there are too many."""
    keep(entries, lasting_key(key), known, _KEPT)


def table_scalars(scalars: Scalars) -> tuple[Scalars | None, int]:
    """The data in an entry's table, which ``None`` stands for, and whether there can be none."""
    return (None, 1) if scalars.tabled else (replace(scalars, alpha=1.0, beta=0.0), 0)


class Table(np.ndarray):
    """A plan's table, with the objects its addresses belong to."""

    keep: tuple[Any, ...]


def _instance(x: np.ndarray) -> np.dtype:
    """NumPy's own instance for a type, which never dies; other instances take the long way."""
    return np.dtype(x.dtype.type)


def bind(
    product: Product, target: np.ndarray, executable: Executable, slow: Entry, *, bound: bool
) -> Entry:
    """The generated entry of an executable.

    Args:
        product: the product that was planned.
        target: the array it was planned for.
        executable: its plan and code.
        slow: called with the same arguments when they are not what was planned.
        bound: the entry is for this very bias, C and prepacked handle, and takes ``(a, b, out)``.
            Otherwise it takes ``(a, b or packed storage, out, bias or None, C or None, data)``.
    """
    e, gp = engine(), executable.plan
    table = record_array(PLAN.slots).view(Table)
    packed = isinstance(product.b, PackedRhs)
    scalars, needs_data = (product.scalars, 0) if bound else table_scalars(product.scalars)
    values = {
        "array_type": id(np.ndarray),
        "bytes_type": id(bytes),
        "needs_data": needs_data,
        "bias_descr": 0 if product.bias is None else id(_instance(product.bias)),
        "slow": id(slow),
        "none": id(None),
        "arguments": 3 if bound else 6,
        "b_kind": (B_HANDLE if bound else B_BUFFER) if packed else B_MATRIX,
        "handle": id(product.b) if packed and bound else 0,
        "has_bias": int(product.bias is not None),
        "bias_high": 0 if product.bias is None else product.n * product.bias.itemsize,
        "has_c": int(product.c is not None),
        "in_place": int(gp.problem.in_place),
        "swapped": int(gp.swapped),
        "nest": executable.address,
        "threads": gp.threads,
        "pool_cell": e.pool.cell,
        "release": int(gp.threads > 1 or gp.problem.operations >= knob("gil_flops")),
        "scratch": e.scratch.where,
        "scratch_bytes": gp.workspace_bytes,
        "scratch_a": gp.workspace_b,
    }
    assert isinstance(product.a, np.ndarray)
    matrices = {"a": product.a, "d": target}
    if isinstance(product.b, PackedRhs):
        values["buffer_bytes"] = product.b.storage.nbytes
    else:
        matrices["b"] = product.b
    if product.c is not None:
        matrices["c"] = product.c
    for name, x in matrices.items():
        span = Span.of(0, (x.shape[0], x.shape[1]), (x.strides[0], x.strides[1]), x.itemsize)
        parts = (id(_instance(x)), *x.shape, *x.strides, span.low, span.high)
        fields = ("descr", "rows", "cols", "row", "col", "low", "high")
        for part, value in zip(fields, parts, strict=True):
            values[f"{name}_{part}"] = value
    for name, value in values.items():
        table[PLAN.slot(name)] = value
    job = executable.template.copy()
    if bound:
        for name, span in product.spans(target, executable).items():
            if name in ("packed", "c", "bias"):
                job[JOB.slot(name)] = span.address
    tables = {} if scalars is None else executable.data.write(job, scalars)
    start = PLAN.slot("job_0")
    table[start : start + JOB.slots] = job
    e.scratch.reserve(gp.workspace_bytes)
    # The builtin owns the table, and the table everything its addresses point to.
    table.keep = (
        slow,
        executable,
        tables,
        *((product.b, product.bias, product.c) if bound else ()),
    )
    return e.builtin("jitgemm_call_plan", table)
