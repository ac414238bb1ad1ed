"""Generated ``METH_FASTCALL | METH_KEYWORDS`` functions.

How a call from Python reaches a kernel in tens of nanoseconds.

Both functions take a table (a NumPy integer array, as the builtin's ``self``) that holds what they
compare with.  They look at types before anything else; whatever they do not expect goes to the slow
Python function with the same arguments, which words the errors.  No reference is created before
that decision, so leaving is free.
"""

from __future__ import annotations

from collections.abc import Callable

from jitgemm.kernels.job import COUNTERS, DATA, JOB
from jitgemm.lang.core import Cond, Function, Int, Ptr, parameters
from jitgemm.lang.record import Record, View
from jitgemm.runtime import numpy_abi
from jitgemm.runtime.pool_code import run
from jitgemm.runtime.system import NativeFunction, SystemKernel

__all__ = [
    "B_BUFFER",
    "B_HANDLE",
    "B_MATRIX",
    "PLAN",
    "SCRATCH",
    "ArrayAt",
    "call_plan",
    "call_slow",
    "take_data",
]

_AT, _BYTES = numpy_abi.OFFSETS, numpy_abi.BYTES
Leave = Callable[[Cond], None]
_MATRICES = ("a", "b", "c", "d")

# What the second argument of a plan must be.
B_MATRIX, B_HANDLE, B_BUFFER = 0, 1, 2


def _expected(name: str) -> list[str]:
    # Type, shape and strides in Python's own orientation; bytes touched around the data pointer.
    return [f"{name}_{part}" for part in ("descr", "rows", "cols", "row", "col", "low", "high")]


PLAN = Record(
    "plan",
    "array_type", "slow", "none", "bias_descr", "bytes_type",
    "needs_data",  # 1: the data of a call must be given; 0: None stands for those in `job_...`
    *(field for name in _MATRICES for field in _expected(name)),
    "arguments",  # 3: a, b, out; 6: also a bias, a C and the data of this call, or None
    "b_kind",
    "handle",  # B_HANDLE: the very object that must be passed as b
    "buffer_bytes",  # B_BUFFER: the size of the packed storage that must be passed as b
    "has_bias", "has_c", "bias_low", "bias_high",
    "in_place",  # C must be the result's own memory; else apart from it
    "swapped", "nest", "threads", "pool_cell", "release",
    "scratch",  # the shared scratch
    "scratch_bytes",  # what is needed of it
    "scratch_a",  # where packed A begins
    *(f"job_{i}" for i in range(JOB.slots)),
)  # fmt: skip

# Scratch that all plans share; a call that finds it busy or too small takes the slow path, which
# brings its own (and lets this one grow).
SCRATCH = Record("scratch", "busy", "address", "size")


class ArrayAt:
    """Fields of an object already known to be a plain ndarray."""

    def __init__(self, k: SystemKernel, at: Ptr) -> None:
        self.k, self.at = k, at

    def pointer(self, name: str) -> Ptr:
        """A field that is a pointer."""
        return self.k.load_ptr(self.at + _AT[name])

    def small(self, name: str) -> Int:
        """A 32-bit field."""
        return self.k.load_i32(self.at + _AT[name])

    def pair(self, name: str) -> tuple[Int, Int]:
        """The first two numbers a field points to."""
        p = self.pointer(name)
        return self.k.load_int(p), self.k.load_int(p + 8)


def _all(*conditions: Cond) -> Cond:
    result = conditions[0]
    for c in conditions[1:]:
        result = result & c
    return result


def call_slow(k: SystemKernel, view: View, args: Ptr, count: Int, names: Ptr) -> Ptr:
    """Pass the call on to the Python function in the table."""
    target = view.pointer("slow")
    result = k.external("PyObject_Vectorcall", "ptr", target, args, count, names)
    assert isinstance(result, Ptr)
    return result


def _matches(k: SystemKernel, plan: View, array: ArrayAt, name: str) -> Cond:
    rows, cols = array.pair("dims")
    row, col = array.pair("strides")
    parts = zip(("rows", "cols", "row", "col"), (rows, cols, row, col), strict=True)
    return _all(
        k.same(array.pointer("descr"), plan.pointer(f"{name}_descr")),
        *(plan.int(f"{name}_{part}").equals(value) for part, value in parts),
    )


def _apart(k: SystemKernel, plan: View, x: tuple[str, Ptr], y: tuple[str, Ptr]) -> Cond:
    """Whether the byte ranges of two operands do not meet."""
    (nx, px), (ny, py) = x, y
    ax, ay = k.address(px), k.address(py)
    return (ax + plan.int(f"{nx}_high") <= ay + plan.int(f"{ny}_low")) | (
        ay + plan.int(f"{ny}_high") <= ax + plan.int(f"{nx}_low")
    )


def _is_matrix(k: SystemKernel, objects: list[Ptr], array_type: Ptr) -> Cond:
    return _all(*(k.same(k.load_ptr(x + _AT["type"]), array_type) for x in objects))


def _given_bias(k: SystemKernel, plan: View, args: Ptr, leave: Leave) -> Ptr:
    """The fourth argument: contiguous, one element per column."""
    bias_at = k.load_ptr(args + 24)
    leave(~k.same(k.load_ptr(bias_at + _AT["type"]), plan.pointer("array_type")))
    bias = ArrayAt(k, bias_at)
    leave(bias.small("nd").differs(1))
    leave(
        ~_all(
            k.same(bias.pointer("descr"), plan.pointer("bias_descr")),
            k.load_int(bias.pointer("dims")).equals(plan.int("d_cols")),
            (bias.small("flags") & numpy_abi.C_CONTIGUOUS).differs(0),
        )
    )
    return bias.pointer("data")


def _given_c(k: SystemKernel, plan: View, args: Ptr, leave: Leave) -> Ptr:
    """The fifth argument: the C of ``beta * C``."""
    c_at = k.load_ptr(args + 32)
    leave(~k.same(k.load_ptr(c_at + _AT["type"]), plan.pointer("array_type")))
    c = ArrayAt(k, c_at)
    leave(c.small("nd").differs(2))
    leave(~_matches(k, plan, c, "c"))
    return c.pointer("data")


def _take_others(
    k: SystemKernel, plan: View, job: View, args: Ptr, leave: Leave, at_d: Ptr
) -> None:
    """Bias and C: bound to the plan (their addresses are in its job) or given in this call."""
    given = plan.int("arguments") > 3
    for _ in k.when(plan.int("has_bias").differs(0)):
        for _ in k.when(given):
            job.set("bias", _given_bias(k, plan, args, leave))
        leave(~_apart(k, plan, ("bias", job.pointer("bias")), ("d", at_d)))
    for _ in k.when(plan.int("has_c").differs(0)):
        for _ in k.when(given):
            job.set("c", _given_c(k, plan, args, leave))
        c = job.pointer("c")
        inside = plan.int("in_place").differs(0) & k.same(c, at_d)
        outside = plan.int("in_place").equals(0) & _apart(k, plan, ("c", c), ("d", at_d))
        leave(~(inside | outside))


def _take_b(
    k: SystemKernel, plan: View, job: View, objects: tuple[Ptr, Ptr, Ptr], leave: Leave
) -> None:
    """The second argument: a matrix, a prepacked handle, or the storage of one."""
    b_at, at_a, at_d = objects
    for kind in k.cases(plan.int("b_kind"), [B_MATRIX, B_HANDLE, B_BUFFER]):
        if kind == B_HANDLE:
            leave(~k.same(b_at, plan.pointer("handle")))
            job.set("a", at_a)
            continue
        leave(~k.same(k.load_ptr(b_at + _AT["type"]), plan.pointer("array_type")))
        b = ArrayAt(k, b_at)
        if kind == B_BUFFER:
            leave(b.small("nd").differs(1))
            leave(k.load_int(b.pointer("dims")).differs(plan.int("buffer_bytes")))
            job.set("a", at_a)
            job.set("packed", b.pointer("data"))
            continue
        leave(b.small("nd").differs(2))
        leave(~_matches(k, plan, b, "b"))
        at_b = b.pointer("data")
        leave(~_apart(k, plan, ("b", at_b), ("d", at_d)))
        swapped = plan.int("swapped").differs(0)
        job.set("a", k.select(swapped, at_b, at_a))
        job.set("b", k.select(swapped, at_a, at_b))


def take_data(k: SystemKernel, table: View, given: Ptr, job_at: Ptr, leave: Leave) -> None:
    """Copy the data of a call into its job: a record of bytes, or ``None`` for what is there."""
    for brought in k.branches(~k.same(given, table.pointer("none"))):
        if not brought:
            leave(table.int("needs_data").differs(0))
            continue
        leave(~k.same(k.load_ptr(given + _BYTES["type"]), table.pointer("bytes_type")))
        size = 8 * len(DATA)
        leave(k.load_int(given + _BYTES["size"]).differs(size))
        k.copy(job_at + JOB.offset(DATA[0]), given + _BYTES["data"], size)


def call_plan() -> Function:
    """``plan(a, b, out[, bias, c, data])`` for what the plan's table describes."""
    runner = run()

    def body(k: SystemKernel, owner: Ptr, args: Ptr, count: Int, names: Ptr) -> None:
        plan = PLAN.view(k, k.load_ptr(owner + _AT["data"]))

        def leave(cond: Cond) -> None:
            k.leave_when(cond, lambda: call_slow(k, plan, args, count, names))

        leave(count.differs(plan.int("arguments")) | ~k.is_null(names))
        a_at, b_at, d_at = (k.load_ptr(args + 8 * i) for i in range(3))
        leave(~_is_matrix(k, [a_at, d_at], plan.pointer("array_type")))
        a, d = ArrayAt(k, a_at), ArrayAt(k, d_at)
        two = a.small("nd").equals(2) & d.small("nd").equals(2)
        leave(~(two & (d.small("flags") & numpy_abi.WRITEABLE).differs(0)))
        leave(~(_matches(k, plan, a, "a") & _matches(k, plan, d, "d")))
        at_a, at_d = a.pointer("data"), d.pointer("data")
        leave(~_apart(k, plan, ("a", at_a), ("d", at_d)))

        job_at = k.scratch(JOB.size + COUNTERS.size)
        k.copy(job_at, plan.at("job_0"), JOB.size)
        job = JOB.view(k, job_at)
        _take_b(k, plan, job, (b_at, at_a, at_d), leave)
        _take_others(k, plan, job, args, leave, at_d)
        for _ in k.when(plan.int("arguments") > 3):
            take_data(k, plan, k.load_ptr(args + 40), job_at, leave)
        job.set("d", at_d)
        counters_at = job_at + JOB.size
        job.set("counters", counters_at)
        counters = COUNTERS.view(k, counters_at)
        for field in ("cursor", "done", "sleepers"):
            counters.set(field, 0)
        nest, threads = plan.pointer("nest"), plan.int("threads")
        pool = k.load_ptr(plan.pointer("pool_cell"))
        # No pool yet, or no more after a fork: the slow path starts one.
        leave((threads > 1) & k.is_null(pool))
        wanted, scratch = plan.int("scratch_bytes"), SCRATCH.view(k, plan.pointer("scratch"))
        for _ in k.when(wanted > 0):
            leave(scratch.int("size") < wanted)
            leave(k.exchange(scratch.at("busy"), 1).differs(0))
            # Nobody resizes it while it is busy, and the lock is held: the size still stands.
            base = scratch.pointer("address")
            for _ in k.when(plan.int("scratch_a") > 0):
                job.set("packed", base)
            job.set("workspace_a", base + plan.int("scratch_a"))
        for release in k.branches(plan.int("release").differs(0)):
            if release:
                state = k.external("PyEval_SaveThread", "ptr")
                k.call(runner, pool, nest, job_at, threads)
                k.external("PyEval_RestoreThread", "void", state)
            else:
                k.invoke(nest, "void", job_at, 0)
        for _ in k.when(wanted > 0):
            k.exchange(scratch.at("busy"), 0)
        k.external("Py_IncRef", "void", d_at)
        k.ret(d_at)

    params = parameters("owner* args* count names*")
    return NativeFunction("jitgemm_call_plan", params, body, returns="ptr")
