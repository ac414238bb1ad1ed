"""Calls that look like an earlier one go straight into generated code.

A call of :func:`gemm` or :func:`matmul` is reduced to a key (shapes, strides, types, scalars,
threads).  The first call with a key is planned and leaves an entry behind: a builtin that checks
its arguments against the plan and runs it.  An entry that meets anything unexpected answers
``NotImplemented``, and the call is validated and planned in full.  So a stale or colliding key can
cost time but never a wrong result.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgemm.api.product import Product
from jitgemm.kernels.job import JOB
from jitgemm.planner.route import make_plan
from jitgemm.runtime.driver import Executable, Span
from jitgemm.runtime.engine import engine, knob, record_array
from jitgemm.runtime.entry_code import B_BUFFER, B_HANDLE, B_MATRIX, PLAN
from jitgemm.runtime.packed import PackedLhs, PackedRhs

__all__ = [
    "Entry", "Table", "bind", "enters", "entries", "keep_entry", "key_of", "kinds_of",
    "not_implemented", "planned", "remember",
]  # fmt: skip

Entry = Callable[..., Any]
_KEPT = 512
# Defaults of ``alpha`` and ``beta``; small integers are one object each.
_ONE, _ZERO = 1, 0

entries: dict[tuple[Any, ...], Entry] = {}
# Reading needs no lock; two threads forgetting the oldest at once do.
_remembering = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_remembering.acquire,
        after_in_parent=_remembering.release,
        after_in_child=_remembering.release,
    )


def not_implemented(*_: object) -> Any:
    """What an entry answers to arguments it does not know."""
    return NotImplemented


def kinds_of(options: tuple[Any, ...]) -> tuple[type, ...]:
    """Types of the numbers among the options of a call, threads first.

    A Fraction equals a float but is no factor, as ``True`` and 1.0 are no zero points.  The usual
    numbers are known by identity, which is quicker.
    """
    alpha, beta = options[1], options[2]
    if alpha is _ONE and beta is _ZERO and options[10] is options[11] is None:
        return ()
    return type(alpha), type(beta), type(options[10]), type(options[11])


def key_of(
    a: Any, b: Any, out: Any, others: tuple[Any, Any], options: tuple[Any, ...]
) -> tuple[Any, ...]:
    """What decides the plan of a call.  Raises ``AttributeError`` for things without a shape."""
    # A handle carries its own conjugation.
    second = (b.isa, b.conj) if type(b) is PackedRhs else b.strides
    c, bias = others
    return (
        a.shape, a.strides, a.dtype, b.shape, second, b.dtype, out.shape, out.strides,
        None if c is None else (c.shape, c.strides, c.dtype, c is out),
        None if bias is None else (bias.shape, bias.dtype),
        kinds_of(options), options,
    )  # fmt: skip


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
    keep_entry(key, bind(product, target, executable, not_implemented, bound=False))


def keep_entry(key: tuple[Any, ...], entry: Entry) -> None:
    """Leave an entry, and forget the oldest if there are too many."""
    with _remembering:
        while len(entries) >= _KEPT:
            entries.pop(next(iter(entries)), None)
        entries[key] = entry


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
            Otherwise it takes ``(a, b or packed storage, out, bias or None, C or None)``.
    """
    e, gp = engine(), executable.plan
    table = record_array(PLAN.slots).view(Table)
    packed = isinstance(product.b, PackedRhs)
    values = {
        "array_type": id(np.ndarray),
        "bias_descr": 0 if product.bias is None else id(_instance(product.bias)),
        "slow": id(slow),
        "none": id(None),
        "arguments": 3 if bound else 5,
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
    tables = product.factors(executable).write(job, gp.spec)
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
