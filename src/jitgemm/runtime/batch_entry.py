"""The generated entry of a prepared stack of products: ``batch(a, b, out, bias, c, data)``.

Like the entries of :mod:`jitgemm.runtime.entry_code`, for operands of any number of dimensions:
shapes and strides are compared in a loop with those in the entry's table, and where each data
pointer belongs in the job is in the table too.
"""

from __future__ import annotations

from collections.abc import Callable

from jitgemm.lang.core import Cond, Function, Int, Ptr, parameters
from jitgemm.lang.record import Record, View
from jitgemm.runtime import numpy_abi
from jitgemm.runtime.batch_code import BATCH, run_batch
from jitgemm.runtime.entry_code import SCRATCH, ArrayAt, call_slow, take_data
from jitgemm.runtime.system import NativeFunction, SystemKernel

__all__ = ["CALL", "DIMENSIONS", "OPERANDS", "call_batch"]

_AT = numpy_abi.OFFSETS
DIMENSIONS = 8
"""Operands of more dimensions have no entry."""

# In the order of the arguments.
OPERANDS = ("a", "b", "d", "bias", "c")
_INPUTS = ("a", "b", "bias", "c")


def _expected(name: str) -> list[str]:
    return [
        f"{name}_present",
        f"{name}_descr",
        f"{name}_field",  # offset in the batch record of the pointer it sets
        f"{name}_low",  # bytes touched around the data pointer
        f"{name}_high",
        f"{name}_nd",
        *(f"{name}_dim_{i}" for i in range(DIMENSIONS)),
        *(f"{name}_stride_{i}" for i in range(DIMENSIONS)),
    ]


CALL = Record(
    "batch_call",
    "array_type", "slow", "none", "new_from_descr", "bytes_type",
    "needs_data",  # 1: the data of a call must be given; 0: None stands for those in `batch_...`
    *(field for name in OPERANDS for field in _expected(name)),
    "fresh",  # 1: a new result, C-contiguous, is what was planned
    "in_place",  # C must be the result's own memory; else apart from it
    "pool_cell", "release",
    "shared",  # the shared scratch
    "scratch_bytes",  # what is needed of it
    *(f"batch_{i}" for i in range(BATCH.slots)),
)  # fmt: skip


def _is_planned() -> NativeFunction:
    """1 if an object is an array of the planned type, shape and strides, else 0.

    ``plan`` is the operand's group of fields, which all operands have in the same order.
    """
    start = CALL.offset("a_present")

    def body(k: SystemKernel, call_at: Ptr, plan: Ptr, array_at: Ptr) -> None:
        def field(name: str) -> Ptr:
            return plan + (CALL.offset(f"a_{name}") - start)

        def unless(ok: Cond) -> None:
            k.leave_when(~ok, lambda: k.const(0))

        kind = CALL.view(k, call_at).pointer("array_type")
        unless(k.same(k.load_ptr(array_at + _AT["type"]), kind))
        array, nd = ArrayAt(k, array_at), k.load_int(field("nd"))
        same_type = k.same(array.pointer("descr"), k.load_ptr(field("descr")))
        unless(array.small("nd").equals(nd) & same_type)
        dims, strides = array.pointer("dims"), array.pointer("strides")
        for i in k.range(0, nd):
            at = i * 8
            dim, stride = k.load_int(field("dim_0") + at), k.load_int(field("stride_0") + at)
            unless(k.load_int(dims + at).equals(dim) & k.load_int(strides + at).equals(stride))
        k.ret(k.const(1))

    params = parameters("call* plan* array*")
    return NativeFunction("jitgemm_is_planned", params, body, returns="int")


def _apart(k: SystemKernel, call: View, name: str, x: Ptr, d: Ptr) -> Cond:
    """Whether the bytes of operand ``name`` at ``x`` do not meet those of the result."""
    at, out = k.address(x), k.address(d)
    return (at + call.int(f"{name}_high") <= out + call.int("d_low")) | (
        out + call.int("d_high") <= at + call.int(f"{name}_low")
    )


def _new_result(k: SystemKernel, call: View) -> Ptr:
    """A new array of the planned shape; null with an exception set."""
    descr, null = call.pointer("d_descr"), k.null()
    k.external("Py_IncRef", "void", descr)
    made = k.invoke(
        call.pointer("new_from_descr"), "ptr",
        call.pointer("array_type"), descr, call.int("d_nd"), call.at("d_dim_0"),
        null, null, 0, null,
    )  # fmt: skip
    assert isinstance(made, Ptr)
    return made


def _run(k: SystemKernel, call: View, batch_at: Ptr, runner: Function) -> None:
    """Run the batch, without the interpreter lock where that pays."""
    pool = k.load_ptr(call.pointer("pool_cell"))
    for release in k.branches(call.int("release").differs(0)):
        if release:
            state = k.external("PyEval_SaveThread", "ptr")
            k.call(runner, pool, batch_at)
            k.external("PyEval_RestoreThread", "void", state)
        else:
            k.call(runner, pool, batch_at)


def _take_inputs(
    k: SystemKernel,
    call: View,
    batch_at: Ptr,
    objects: dict[str, Ptr],
    target: tuple[Ptr, Cond],
    judges: tuple[Callable[[str, Ptr], None], Callable[[Cond], None]],
) -> None:
    """Check what is read, put its addresses into the batch, and look that it lies apart.

    ``target`` is the result and whether it is a new one, which lies apart from everything.
    """
    (result, fresh), (check, leave) = target, judges
    for name, x in objects.items():
        for _ in k.when(call.int(f"{name}_present").differs(0)):
            check(name, x)
            at = ArrayAt(k, x).pointer("data")
            k.store_ptr(batch_at + call.int(f"{name}_field"), at)
            for _ in k.when(~fresh):
                d = ArrayAt(k, result).pointer("data")
                apart = _apart(k, call, name, at, d)
                if name == "c":
                    there = call.int("in_place").differs(0)
                    apart = (there & k.same(at, d)) | (~there & apart)
                leave(~apart)


def call_batch() -> Function:
    """``batch(a, b, out, bias, c, data)``, the last four or ``None``, for what is in the table."""
    runner, is_planned = run_batch(), _is_planned()

    def body(k: SystemKernel, owner: Ptr, args: Ptr, count: Int, names: Ptr) -> None:
        call = CALL.view(k, k.load_ptr(owner + _AT["data"]))

        def leave(cond: Cond) -> None:
            k.leave_when(cond, lambda: call_slow(k, call, args, count, names))

        def check(name: str, x: Ptr) -> None:
            planned = k.result_of(is_planned, call.ptr, call.at(f"{name}_present"), x)
            assert isinstance(planned, Int)
            leave(planned.equals(0))

        leave(count.differs(len(OPERANDS) + 1) | ~k.is_null(names))
        objects = {name: k.load_ptr(args + 8 * i) for i, name in enumerate(OPERANDS)}
        # No pool yet, or no more after a fork: the slow path starts one.
        batch_at = k.scratch(BATCH.size)
        k.copy(batch_at, call.at("batch_0"), BATCH.size)
        batch = BATCH.view(k, batch_at)
        job_at = batch.at("job_0")
        take_data(k, call, k.load_ptr(args + 8 * len(OPERANDS)), job_at, leave)
        leave((batch.int("threads") > 1) & k.is_null(k.load_ptr(call.pointer("pool_cell"))))

        result, none = k.var(objects["d"]), call.pointer("none")
        fresh = k.same(result.value, none)
        for given in k.branches(~fresh):
            if given:
                check("d", result.value)
                writeable = ArrayAt(k, result.value).small("flags") & numpy_abi.WRITEABLE
                leave(writeable.equals(0))
            else:
                leave(call.int("fresh").equals(0))
        target = (result.value, fresh)
        _take_inputs(k, call, batch_at, {n: objects[n] for n in _INPUTS}, target, (check, leave))

        wanted, shared = call.int("scratch_bytes"), SCRATCH.view(k, call.pointer("shared"))
        for _ in k.when(wanted > 0):
            leave(shared.int("size") < wanted)
            leave(k.exchange(shared.at("busy"), 1).differs(0))
            # Nobody resizes it while it is busy.
            batch.set("scratch", shared.pointer("address"))
        for new in k.branches(fresh):
            if new:
                result.value = _new_result(k, call)
            else:
                k.external("Py_IncRef", "void", result.value)
        for made in k.branches(~k.is_null(result.value)):
            if made:
                d = ArrayAt(k, result.value).pointer("data")
                k.store_ptr(batch_at + call.int("d_field"), d)
                _run(k, call, batch_at, runner)
        for _ in k.when(wanted > 0):
            k.exchange(shared.at("busy"), 0)
        k.ret(result.value)

    params = parameters("owner* args* count names*")
    return NativeFunction("jitgemm_call_batch", params, body, returns="ptr")
