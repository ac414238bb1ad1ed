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
    "SMALL",
    "ArrayAt",
    "call_plan",
    "call_slow",
    "call_small",
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

# Small products: any shape up to a limit, rows contiguous, two element types.
SMALL = Record(
    "small",
    "array_type", "slow", "none", "new_from_descr", "limit", "depth_limit",
    "descr_0", "descr_1", "nest_0", "nest_1", "size_0", "size_1", "one_0", "one_1",
    "panel_0", "panel_1",
    "mr",
    *(f"group_{i}" for i in range(33)),  # micropanels covered at once, by rows of a tile
)  # fmt: skip


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


def call_small() -> Function:
    """``matmul(x1, x2, out, threads)`` for small contiguous matrices of one native type."""

    def body(k: SystemKernel, owner: Ptr, args: Ptr, count: Int, names: Ptr) -> None:
        table = SMALL.view(k, k.load_ptr(owner + _AT["data"]))

        def leave(cond: Cond) -> None:
            k.leave_when(cond, lambda: call_slow(k, table, args, count, names))

        leave(count.differs(4) | ~k.is_null(names))
        a_at, b_at, d_at, threads = (k.load_ptr(args + 8 * i) for i in range(4))
        array_type, none = table.pointer("array_type"), table.pointer("none")
        leave(~(_is_matrix(k, [a_at, b_at], array_type) & k.same(threads, none)))
        a, b = ArrayAt(k, a_at), ArrayAt(k, b_at)
        leave(~(a.small("nd").equals(2) & b.small("nd").equals(2)))
        descr = a.pointer("descr")
        second = k.same(descr, table.pointer("descr_1"))
        known = k.same(descr, table.pointer("descr_0")) | second
        dense = (a.small("flags") & b.small("flags") & numpy_abi.C_CONTIGUOUS).differs(0)
        m, depth = a.pair("dims")
        depth_b, n = b.pair("dims")
        limit = table.int("limit")
        leave(
            ~_all(
                known, dense, k.same(b.pointer("descr"), descr), depth.equals(depth_b),
                m <= limit, n <= limit, depth <= table.int("depth_limit"),
                m > 0, n > 0, depth > 0,
                # A dot product has an order and a kernel of its own.
                (m * n > 1) | depth.equals(1),
            )
        )  # fmt: skip
        size = k.select(second, table.int("size_1"), table.int("size_0"))
        at_a, at_b = a.pointer("data"), b.pointer("data")
        result = k.var(d_at)
        for fresh in k.branches(k.same(d_at, none)):
            if fresh:
                dims = k.scratch(16)
                k.store_int(dims, m)
                k.store_int(dims + 8, n)
                k.external("Py_IncRef", "void", descr)
                null = k.null()
                made = k.invoke(
                    table.pointer("new_from_descr"), "ptr",
                    array_type, descr, 2, dims, null, null, 0, null,
                )  # fmt: skip
                assert isinstance(made, Ptr)
                k.leave_when(k.is_null(made), k.null)
                result.value = made
            else:
                leave(~_is_matrix(k, [d_at], array_type))
                d = ArrayAt(k, d_at)
                leave(d.small("nd").differs(2))
                rows, cols = d.pair("dims")
                wanted = numpy_abi.C_CONTIGUOUS | numpy_abi.WRITEABLE
                start = k.address(d.pointer("data"))
                stop = start + m * n * size

                def apart(p: Ptr, length: Int, start: Int = start, stop: Int = stop) -> Cond:
                    low = k.address(p)
                    return (low + length <= start) | (stop <= low)

                leave(
                    ~_all(
                        k.same(d.pointer("descr"), descr), rows.equals(m), cols.equals(n),
                        (d.small("flags") & wanted).equals(wanted),
                        apart(at_a, m * depth * size), apart(at_b, depth * n * size),
                    )
                )  # fmt: skip
                k.external("Py_IncRef", "void", d_at)
        out = ArrayAt(k, result.value).pointer("data")
        job = JOB.view(k, k.scratch(JOB.size))
        tiles = k.ceil_div(m, table.int("mr"))
        tile_rows = k.ceil_div(m, tiles)
        b_row = n * size
        fields: dict[str, Int | Ptr | int] = {
            "a": at_a, "b": at_b, "d": out, "m": m, "n": n, "k": depth,
            "a_row": depth * size, "a_col": size, "b_row": b_row, "b_col": size,
            "d_row": b_row, "d_col": size, "pack_a": 0, "direct": 1,
            "panel_stride": k.select(second, table.int("panel_1"), table.int("panel_0")),
            "alpha": k.select(second, table.int("one_1"), table.int("one_0")),
            "depth_step": depth, "rows_ahead": 0, "sweep": 0, "source_row": 0, "source_col": 0,
            "tile_rows": tile_rows, "a_tile": tile_rows * depth * size,
            "group": k.load_int(table.at("group_0") + tile_rows * 8),
        }  # fmt: skip
        for name, value in fields.items():
            job.set(name, value)
        nest = k.select(second, table.pointer("nest_1"), table.pointer("nest_0"))
        k.invoke(nest, "void", job.ptr, 0)
        k.ret(result.value)

    params = parameters("owner* args* count names*")
    return NativeFunction("jitgemm_call_small", params, body, returns="ptr")
