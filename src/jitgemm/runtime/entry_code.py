"""Generated ``METH_FASTCALL`` functions: how a call from Python reaches a kernel in tens of
nanoseconds.

Both functions take a table (a NumPy integer array, as the builtin's ``self``) that holds what they
compare with.  They look at types before anything else; whatever they do not expect goes to the slow
Python function with the same arguments, which words the errors.  No reference is created before
that decision, so leaving is free.
"""

from __future__ import annotations

from jitgemm.kernels.job import COUNTERS, JOB
from jitgemm.lang.core import Cond, Function, Int, Ptr
from jitgemm.lang.record import Record, View
from jitgemm.runtime import numpy_abi
from jitgemm.runtime.pool_code import run
from jitgemm.runtime.system import NativeFunction, SystemKernel

__all__ = ["MATRICES", "PLAN", "SMALL", "call_plan", "call_small"]

_AT = numpy_abi.OFFSETS
MATRICES = ("a", "b", "d")


def _expected(name: str) -> list[str]:
    # Shape and strides in Python's own orientation, and the bytes touched around the data pointer.
    return [f"{name}_{part}" for part in ("rows", "cols", "row", "col", "low", "high")]


PLAN = Record(
    "plan",
    "array_type", "descr", "slow", "none",
    *(field for name in MATRICES for field in _expected(name)),
    "packed_handle",  # the very object that must be passed as b; null: an array is expected
    "swapped", "nest", "threads", "pool_cell", "release", "busy", "uses_workspace",
    *(f"job_{i}" for i in range(JOB.slots)),
)  # fmt: skip

# Small products: any shape up to a limit, rows contiguous, two element types.
SMALL = Record(
    "small",
    "array_type", "slow", "none", "new_from_descr", "limit", "depth_limit",
    "descr_0", "descr_1", "nest_0", "nest_1", "size_0", "size_1", "one_0", "one_1",
    "panel_0", "panel_1",
    "mr",
    *(f"group_{i}" for i in range(33)),  # micropanels covered at once, by rows of a tile
)  # fmt: skip


class _Array:
    """Fields of an object already known to be a plain ndarray."""

    def __init__(self, k: SystemKernel, at: Ptr) -> None:
        self.k, self.at = k, at

    def pointer(self, name: str) -> Ptr:
        return self.k.load_ptr(self.at + _AT[name])

    def small(self, name: str) -> Int:
        return self.k.load_i32(self.at + _AT[name])

    def pair(self, name: str) -> tuple[Int, Int]:
        p = self.pointer(name)
        return self.k.load_int(p), self.k.load_int(p + 8)


def _all(*conditions: Cond) -> Cond:
    result = conditions[0]
    for c in conditions[1:]:
        result = result & c
    return result


def _slow(k: SystemKernel, view: View, args: Ptr, count: Int) -> Ptr:
    target = view.pointer("slow")
    result = k.external("PyObject_Vectorcall", "ptr", target, args, count, k.null())
    assert isinstance(result, Ptr)
    return result


def _matches(k: SystemKernel, plan: View, array: _Array, name: str) -> Cond:
    rows, cols = array.pair("dims")
    row, col = array.pair("strides")
    parts = zip(("rows", "cols", "row", "col"), (rows, cols, row, col), strict=True)
    return _all(
        k.same(array.pointer("descr"), plan.pointer("descr")),
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


def call_plan(arch: str) -> Function:
    """``plan(a, b, out)`` for the shapes, strides and threads in the plan's table."""
    runner = run(arch)

    def body(k: SystemKernel, owner: Ptr, args: Ptr, count: Int) -> None:
        plan = PLAN.view(k, k.load_ptr(owner + _AT["data"]))

        def leave(cond: Cond) -> None:
            k.leave_when(cond, lambda: _slow(k, plan, args, count))

        leave(count.differs(3))
        a_at, b_at, d_at = (k.load_ptr(args + 8 * i) for i in range(3))
        array_type, handle = plan.pointer("array_type"), plan.pointer("packed_handle")
        leave(~_is_matrix(k, [a_at, d_at], array_type))
        a, b, d = _Array(k, a_at), _Array(k, b_at), _Array(k, d_at)
        two = a.small("nd").equals(2) & d.small("nd").equals(2)
        writable = (d.small("flags") & numpy_abi.WRITEABLE).differs(0)
        leave(~(two & writable))
        leave(~(_matches(k, plan, a, "a") & _matches(k, plan, d, "d")))
        at_a, at_d = a.pointer("data"), d.pointer("data")
        leave(~_apart(k, plan, ("a", at_a), ("d", at_d)))

        job_at = k.scratch(JOB.size + COUNTERS.size)
        k.copy(job_at, plan.at("job_0"), JOB.size)
        job = JOB.view(k, job_at)
        for prepacked in k.branches(~k.is_null(handle)):
            if prepacked:
                leave(~k.same(b_at, handle))
                job.set("a", at_a)
            else:
                leave(~_is_matrix(k, [b_at], array_type))
                leave(b.small("nd").differs(2))
                leave(~_matches(k, plan, b, "b"))
                at_b = b.pointer("data")
                leave(~_apart(k, plan, ("b", at_b), ("d", at_d)))
                swapped = plan.int("swapped").differs(0)
                job.set("a", k.select(swapped, at_b, at_a))
                job.set("b", k.select(swapped, at_a, at_b))
        job.set("d", at_d)
        counters_at = job_at + JOB.size
        job.set("counters", counters_at)
        counters = COUNTERS.view(k, counters_at)
        counters.set("cursor", 0)
        counters.set("done", 0)
        nest, threads = plan.pointer("nest"), plan.int("threads")
        pool = k.load_ptr(plan.pointer("pool_cell"))
        # No pool yet, or no more after a fork: the slow path starts one.
        leave((threads > 1) & k.is_null(pool))
        for _ in k.when(plan.int("uses_workspace").differs(0)):
            # Somebody else is inside this plan: the slow path brings its own workspace.
            leave(k.exchange(plan.at("busy"), 1).differs(0))
        for release in k.branches(plan.int("release").differs(0)):
            if release:
                state = k.external("PyEval_SaveThread", "ptr")
                k.call(runner, pool, nest, job_at, threads)
                k.external("PyEval_RestoreThread", "void", state)
            else:
                k.invoke(nest, "void", job_at, 0)
        for _ in k.when(plan.int("uses_workspace").differs(0)):
            k.exchange(plan.at("busy"), 0)
        k.external("Py_IncRef", "void", d_at)
        k.ret(d_at)

    params = (("owner", "ptr"), ("args", "ptr"), ("count", "int"))
    return NativeFunction("jitgemm_call_plan", params, body, returns="ptr")


def call_small(arch: str) -> Function:
    """``matmul(x1, x2, out, threads)`` for small contiguous matrices of one native type."""

    def body(k: SystemKernel, owner: Ptr, args: Ptr, count: Int) -> None:
        table = SMALL.view(k, k.load_ptr(owner + _AT["data"]))

        def leave(cond: Cond) -> None:
            k.leave_when(cond, lambda: _slow(k, table, args, count))

        leave(count.differs(4))
        a_at, b_at, d_at, threads = (k.load_ptr(args + 8 * i) for i in range(4))
        array_type, none = table.pointer("array_type"), table.pointer("none")
        leave(~(_is_matrix(k, [a_at, b_at], array_type) & k.same(threads, none)))
        a, b = _Array(k, a_at), _Array(k, b_at)
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
                d = _Array(k, d_at)
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
        out = _Array(k, result.value).pointer("data")
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
            "tile_rows": tile_rows,
            "group": k.load_int(table.at("group_0") + tile_rows * 8),
        }  # fmt: skip
        for name, value in fields.items():
            job.set(name, value)
        nest = k.select(second, table.pointer("nest_1"), table.pointer("nest_0"))
        k.invoke(nest, "void", job.ptr, 0)
        k.ret(result.value)

    params = (("owner", "ptr"), ("args", "ptr"), ("count", "int"))
    return NativeFunction("jitgemm_call_small", params, body, returns="ptr")
