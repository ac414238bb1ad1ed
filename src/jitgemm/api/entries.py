"""What a call leaves behind for calls like it: the entries that generated code runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgemm.api.activations import Activation
from jitgemm.api.call import Call
from jitgemm.api.keywords import Options
from jitgemm.api.kinds import NUMPY
from jitgemm.api.operands import Array
from jitgemm.api.quantise import Requantize
from jitgemm.runtime.batches import BatchExecutable
from jitgemm.runtime.calls import EntryTable, plan_record
from jitgemm.runtime.data import Tables
from jitgemm.runtime.driver import Executable
from jitgemm.runtime.engine import engine, knob
from jitgemm.runtime.entry_code import (
    AS_PLANNED,
    BATCHED,
    BOUND,
    FACTOR_KINDS,
    GIVEN,
    PACKED,
    SINGLE,
)
from jitgemm.runtime.executables import executable_for
from jitgemm.runtime.jobs import ADDRESSES
from jitgemm.runtime.operands import address_of
from jitgemm.runtime.packed import Packed
from jitgemm.runtime.signature_code import DIMENSIONS, KEYWORDS

__all__ = ["bound_plan", "options_last", "remember", "remember_form"]

_TYPES = frozenset((bool, int, float, complex))


@dataclass(frozen=True, slots=True)
class _Planned:
    """A call, planned."""

    call: Call
    target: Array
    """Where this call's result is computed."""
    code: Executable | BatchExecutable

    @property
    def given(self) -> dict[str, Any]:
        """Operands that are read, by name."""
        call = self.call
        return {"a": call.a, "b": call.b, "c": call.c, "bias": call.bias}


def _planned(call: Call, threads: int) -> _Planned | None:
    """A call as entries know it; ``None`` if none can run it."""
    if call.blas or call.empty:
        return None
    target, copied = call.target()
    if copied:
        return None
    code = executable_for(call.spec(target, threads))
    if isinstance(code, BatchExecutable) and code.plan.outer:
        return None
    return _Planned(call, target, code)


def _reach(x: Array) -> tuple[int, int]:
    """Bytes before and after its data pointer that belong to an array."""
    steps = [(n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)]
    return sum(min(0, s) for s in steps), sum(max(0, s) for s in steps) + x.itemsize


def _place(planned: _Planned, name: str) -> int:
    """Where the address of an operand belongs in the work record."""
    if isinstance(planned.given.get(name), Packed):
        # In a stack its place follows that of B.
        name = "packed" if isinstance(planned.code, Executable) else "b"
    elif planned.code.one.plan.exchanged and name in ("a", "b"):
        name = "b" if name == "a" else "a"
    return 8 * ADDRESSES[name]


def _entry(
    signature: bytes,
    planned: _Planned,
    bound: Mapping[str, Array | Packed],
    shape: tuple[int, ...],
    keep: Any,
    *,
    plan: bool = False,
    data: bool = False,
) -> EntryTable:
    """The entry of a planned product.

    Args:
        signature: of the calls it serves.
        planned: the product.
        bound: operands that are not given in each call.
        shape: of the result.
        keep: what must live as long.
        plan: whether the factors are bound too.
        data: whether each call brings its data along.
    """
    code, scalars = planned.code, None if data else planned.call.request.scalars
    tables: Tables = {}
    if isinstance(code, BatchExecutable):
        work, tables = code.record(scalars)
    else:
        work = code.template.copy()
        if scalars is not None:
            tables = code.data.write(work, scalars)
    # The type's own object: NumPy knows types by it.
    descr = np.dtype(planned.target.dtype.type)
    values = _result_fields(planned, descr, shape) | _run_fields(planned)
    for name, x in planned.given.items():
        if x is None:
            continue
        place = _place(planned, name)
        values |= {f"{name}_mode": GIVEN, f"{name}_place": place}
        if name in bound:
            values[f"{name}_mode"] = BOUND
            work[place // 8] = address_of(x)
        elif isinstance(x, Packed):
            values[f"{name}_mode"] = PACKED
        if isinstance(x, np.ndarray):
            values[f"{name}_low"], values[f"{name}_high"] = _reach(x)
    if plan or data:
        values["factors"] = AS_PLANNED
    engine().scratch.reserve(values["scratch_bytes"])
    entry = EntryTable.new(signature, values, work, (code, tables, descr, bound, keep))
    entry.layout = code.one.data
    return entry


def _result_fields(planned: _Planned, descr: np.dtype, shape: tuple[int, ...]) -> dict[str, int]:
    """What an entry says of the result."""
    low, high = _reach(planned.target)
    return {
        "d_place": _place(planned, "d"), "d_low": low, "d_high": high,
        "fresh": int(planned.call.out is None), "scalar": int(not shape),
        "d_descr": id(descr), "d_nd": len(shape),
        **{f"d_dim_{i}": n for i, n in enumerate(shape)},
        "in_place": int(planned.code.one.plan.problem.in_place),
    }  # fmt: skip


def _run_fields(planned: _Planned) -> dict[str, int]:
    """What an entry says of factors, code and scratch."""
    code, one = planned.code, planned.code.one
    element, plan = one.plan.spec.epilogue_type, code.plan
    return {
        "kind": SINGLE if code is one else BATCHED,
        "factors": FACTOR_KINDS[element.integral, element.bytes, planned.call.components],
        "mask": -1 if element.bits >= 64 else (1 << element.bits) - 1,
        "nest": one.address,
        "run_batch": code.runner if isinstance(code, BatchExecutable) else 0,
        "threads": plan.threads,
        "operations": plan.operations,
        "release": int(plan.threads > 1 or plan.operations >= knob("gil_flops")),
        "scratch_bytes": plan.workspace_bytes,
        "scratch_a": one.plan.workspace_b,
    }


def _lasts(x: object) -> bool:
    """Whether an option may be kept: it is a value, and the same object the next time."""
    kind: Any = type(x)
    if x is None or x is NUMPY or kind is bool or kind is int:
        return True
    if kind is str and isinstance(x, str):
        return sys.intern(x) is x
    if isinstance(x, type):
        return x in _TYPES or issubclass(x, np.generic)
    if isinstance(x, np.dtype):
        return x is np.dtype(x.type)
    if kind is Requantize and isinstance(x, Requantize):
        return x.seen_before()
    return kind is Activation


def _is_told(x: object) -> bool:
    """Whether signatures tell an operand apart from others, now and later."""
    if type(x) is np.ndarray:
        # Types of the caller's are others each time, and may hold on to things.
        return x.dtype is np.dtype(x.dtype.type) and x.ndim <= DIMENSIONS
    return x is None or isinstance(x, Packed)


def options_last(options: Options) -> bool:
    """Whether signatures tell the options of a call, for as long as they are kept."""
    points = options.a_zero_point, options.b_zero_point
    operands = options.a_scale, options.b_scale, options.post_ops
    return (
        options.epilogue is None
        and all(x is None for x in operands)
        and all(x is None or type(x) is int for x in points)
        and all(map(_lasts, _kept(options)))
    )


def _operands_last(operands: tuple[Any, ...], call: Call) -> bool:
    """Whether signatures tell the operands, as the call has them."""
    return not call.unpacked and all(map(_is_told, operands))


def _kept(options: Options) -> list[Any]:
    """Options that signatures know by identity."""
    return [getattr(options, name) for name in KEYWORDS]


def remember(
    signature: bytes | None,
    call: Call,
    operands: tuple[Any, Any],
    options: Options,
    threads: int,
    shape: tuple[int, ...] | None = None,
) -> None:
    """Leave an entry for calls like this one, if generated code can take them.

    Args:
        signature: what it said of the call; ``None``: it cannot say.
        call: the call, validated.
        operands: A and B as the caller passed them.
        options: the other arguments, likewise; they last.
        threads: how many it may use.
        shape: of the caller's result, if it is not that of the product.
    """
    whole = type(options.alpha) is type(options.beta) is int or not call.sums.integral
    if signature is None or not whole:
        return
    if not _operands_last((*operands, options.out, options.c, options.bias), call):
        return
    bound = {}
    if options.bias is None and call.bias is not None:
        # That of a requantisation.
        bound["bias"] = call.bias
    keep = (_kept(options), [x.dtype for x in operands])
    _add(signature, call, bound, call.shape if shape is None else shape, keep, threads)


def remember_form(
    signature: bytes,
    call: Call,
    operands: tuple[Any, Any],
    others: tuple[Any, Any, Any],
    form: object,
    threads: int,
) -> None:
    """Leave an entry for calls of this form, which bring their data along.

    Args:
        signature: of the call.
        call: the call, validated.
        operands: A and B as the caller passed them.
        others: ``out``, C and the bias, likewise.
        form: what stands for the options in the signature.
        threads: how many it may use.
    """
    if _operands_last((*operands, *others), call):
        keep = (form, [x.dtype for x in operands])
        _add(signature, call, {}, call.shape, keep, threads, data=True)


def _add(
    signature: bytes,
    call: Call,
    bound: dict[str, Array],
    shape: tuple[int, ...],
    keep: Any,
    threads: int,
    *,
    data: bool = False,
) -> None:
    calls, planned = engine().calls, _planned(call, threads)
    if calls is not None and planned is not None:
        calls.add(_entry(signature, planned, bound, shape, keep, data=data))


def bound_plan(
    call: Call,
    operands: tuple[Any, Any],
    options: Options,
    slow: Callable[..., Any],
    threads: int,
) -> Any:
    """A builtin for calls ``(a, b)`` or ``(a, b, out)`` of operands like these.

    C and the bias are bound.  It passes anything else on to ``slow``.  ``None``: generated code
    cannot take such operands.
    """
    e = engine()
    if e.calls is None or call.request.workspace is not None:
        return None
    planned = _planned(call, threads)
    if planned is None:
        return None
    # What has been put in this machine's byte order is not the caller's memory any more.
    given = (*operands, options.c, options.bias, planned.target)
    if not all(x.dtype.isnative for x in given if isinstance(x, np.ndarray)):
        return None
    words, d_words = e.words(*operands), e.words(planned.target)
    if words is None or d_words is None:
        return None
    bound = {name: x for name, x in (("c", call.c), ("bias", call.bias)) if x is not None}
    entry = _entry(words, planned, bound, call.shape, operands, plan=True)
    return e.plan(plan_record(e.calls, slow, entry, d_words))
