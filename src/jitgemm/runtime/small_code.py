"""Generated code for small products: NumPy's functions of vectors and matrices, without a plan."""

from __future__ import annotations

from collections.abc import Callable

from jitgemm.kernels.job import JOB
from jitgemm.lang.core import Cond, Int, Ptr, parameters
from jitgemm.lang.record import Record, View
from jitgemm.runtime.numpy_abi import C_CONTIGUOUS, OFFSETS, WRITEABLE
from jitgemm.runtime.signature_code import ArrayAt
from jitgemm.runtime.system import NativeFunction, SystemKernel

__all__ = ["SMALL", "small"]

Leave = Callable[[Cond], None]

# Small products: any shape up to a limit, rows contiguous, two element types.
SMALL = Record(
    "small",
    "array_type", "new_from_descr", "new_scalar",
    "limit", "depth_limit",
    "dot_limit",  # elements of all rows times columns
    "a_least", "a_most", "b_least", "b_most",  # dimensions of the operands
    "dots",  # 1: matrices are rows of vectors, each multiplied with its like
    "mr",
    *(f"{field}_{i}" for i in range(2) for field in (
        "descr", "size", "one", "panel", "nest", "dot",
        "column_nest",  # of matrices times one column; 0: not compiled yet
        "column_nr",
    )),
    *(f"group_{i}" for i in range(33)),  # micropanels covered at once, by rows of a tile
)  # fmt: skip


def _all(*conditions: Cond) -> Cond:
    result = conditions[0]
    for c in conditions[1:]:
        result = result & c
    return result


def _are_arrays(k: SystemKernel, objects: list[Ptr], array_type: Ptr) -> Cond:
    return _all(*(k.same(k.load_ptr(x + OFFSETS["type"]), array_type) for x in objects))


class _Small:
    """A small product while :func:`small` is generated: its operands, sizes and result."""

    def __init__(
        self, k: SystemKernel, table: View, objects: tuple[Ptr, Ptr], leave: Leave
    ) -> None:
        self.k, self.table, self.leave = k, table, leave
        self.a, self.b = ArrayAt(k, objects[0]), ArrayAt(k, objects[1])
        self._check_dimensions()
        self._check_types()
        self._check_sizes()
        self.at_a, self.at_b = self.a.pointer("data"), self.b.pointer("data")

    def field(self, name: str) -> Int:
        """A number in the table that belongs to the element type."""
        return self.k.select(self.second, self.table.int(f"{name}_1"), self.table.int(f"{name}_0"))

    def address(self, name: str) -> Ptr:
        """An address in the table that belongs to the element type."""
        return self.k.select(
            self.second, self.table.pointer(f"{name}_1"), self.table.pointer(f"{name}_0")
        )

    def _check_dimensions(self) -> None:
        table = self.table
        a_nd, b_nd = self.a.small("nd"), self.b.small("nd")
        self.leave(
            ~_all(
                a_nd >= table.int("a_least"), a_nd <= table.int("a_most"),
                b_nd >= table.int("b_least"), b_nd <= table.int("b_most"),
            )
        )  # fmt: skip
        self.a_vector, self.b_vector = a_nd.equals(1), b_nd.equals(1)
        self.dots = table.int("dots").differs(0)
        vectors = self.k.select(self.dots, self.k.select(a_nd > b_nd, b_nd, a_nd), self.k.const(1))
        self.nd = a_nd + b_nd - 1 - vectors
        """Dimensions of the result."""

    def _check_types(self) -> None:
        k, table = self.k, self.table
        self.descr = self.a.pointer("descr")
        self.second = k.same(self.descr, table.pointer("descr_1"))
        known = k.same(self.descr, table.pointer("descr_0")) | self.second
        flags = self.a.small("flags") & self.b.small("flags")
        dense = (flags & C_CONTIGUOUS).differs(0)
        self.leave(~_all(known, dense, k.same(self.b.pointer("descr"), self.descr)))
        self.size = self.field("size")

    def _check_sizes(self) -> None:
        k, table, one = self.k, self.table, self.k.const(1)
        # Dimensions and strides are one block of memory: a vector has a second number too.
        (a_0, a_1), (b_0, b_1) = self.a.pair("dims"), self.b.pair("dims")
        self.m = k.select(self.dots | self.a_vector, one, a_0)
        self.n = k.select(self.dots | self.b_vector, one, b_1)
        self.depth = k.select(self.a_vector, a_0, a_1)
        depth_b = k.select(self.dots & ~self.b_vector, b_1, b_0)
        rows_b = k.select(self.dots & ~self.b_vector, b_0, one)
        rows_a = k.select(self.dots & ~self.a_vector, a_0, one)
        self.count = k.select(self.a_vector, rows_b, rows_a)
        """Products of rows of vectors."""
        alike = self.a_vector | self.b_vector | rows_a.equals(rows_b)
        # A dot product has an order and a kernel of its own.
        self.dot = (self.m * self.n).equals(1) & (self.depth > 1)
        limit = table.int("limit")
        short = self.dot & (self.count * self.depth <= table.int("dot_limit"))
        small = ~self.dot & _all(
            self.m <= limit, self.n <= limit, self.count <= limit,
            self.depth <= table.int("depth_limit"),
        )  # fmt: skip
        self.leave(
            ~_all(
                self.depth.equals(depth_b), alike, short | small,
                self.m > 0, self.n > 0, self.depth > 0, self.count > 0,
            )
        )  # fmt: skip
        # One column: computed as ``D^T = B^T A^T``, along A's rows.
        self.column = self.n.equals(1) & (self.m > 1) & (self.depth > 1)
        lacking = k.is_null(self.address("column_nest"))
        self.leave(self.column & lacking)

    @property
    def dims(self) -> tuple[Int, Int]:
        """The result's dimensions, of which it has ``nd``."""
        k = self.k
        rest = k.select(self.a_vector, self.n, self.m)
        return k.select(self.dots, self.count, rest), self.n

    def new_array(self) -> Ptr:
        """A new result; null if there is no memory."""
        k, table = self.k, self.table
        dims = k.scratch(16)
        for i, n in enumerate(self.dims):
            k.store_int(dims + 8 * i, n)
        k.external("Py_IncRef", "void", self.descr)
        null = k.null()
        return k.invoke(
            table.pointer("new_from_descr"), "ptr",
            table.pointer("array_type"), self.descr, self.nd, dims, null, null, 0, null,
        )  # fmt: skip

    def check_given(self, d_at: Ptr) -> None:
        """Whether the result may be written to the array at ``d_at``."""
        k, size = self.k, self.size
        self.leave(~_are_arrays(k, [d_at], self.table.pointer("array_type")))
        d = ArrayAt(k, d_at)
        self.leave(d.small("nd").differs(self.nd))
        for _ in k.when(self.nd > 0):
            rows, cols = d.pair("dims")
            first, second = self.dims
            self.leave(~(rows.equals(first) & (cols.equals(second) | self.nd.equals(1))))
        wanted = C_CONTIGUOUS | WRITEABLE
        start = k.address(d.pointer("data"))
        stop = start + self.count * self.m * self.n * size

        def apart(p: Ptr, elements: Int) -> Cond:
            low = k.address(p)
            return (low + elements * size <= start) | (stop <= low)

        self.leave(
            ~_all(
                k.same(d.pointer("descr"), self.descr),
                (d.small("flags") & wanted).equals(wanted),
                # Bounds: one vector that meets many is shorter.
                apart(self.at_a, self.count * self.m * self.depth),
                apart(self.at_b, self.count * self.depth * self.n),
            )
        )

    def job(self) -> View:
        """The job record without the result's address."""
        k, size, one = self.k, self.size, self.k.const(1)
        job = JOB.view(k, k.scratch(JOB.size))
        row = self.depth * size
        common: dict[str, Int | int] = {
            "k_groups": self.depth, "depth_step": self.depth, "a_row": row, "a_col": size,
            "d_col": size, "alpha": self.field("one"), "direct": 1, "source_row": 0,
            "source_col": 0,
            **dict.fromkeys(
                ("pack_a", "rows_ahead", "row_streaming", "staggered",
                 "swap_a", "swap_b", "swap_d"), 0
            ),
        }  # fmt: skip
        for name, value in common.items():
            job.set(name, value)
        for column in k.branches(self.column):
            if column:
                tile_rows = group = one
                fields: dict[str, Int | Ptr] = {
                    "a": self.at_b, "b": self.at_a, "m": one, "n": self.m,
                    "b_row": size, "b_col": row, "d_row": self.m * size,
                    "panel_stride": self.field("column_nr") * row,
                }  # fmt: skip
            else:
                tiles = k.ceil_div(self.m, self.table.int("mr"))
                tile_rows = k.ceil_div(self.m, tiles)
                group = k.load_int(self.table.at("group_0") + tile_rows * 8)
                wide = self.n * size
                fields = {
                    "a": self.at_a, "b": self.at_b, "m": self.m, "n": self.n,
                    "b_row": wide, "b_col": size, "d_row": wide,
                    "panel_stride": self.field("panel"),
                }  # fmt: skip
            fields |= {"tile_rows": tile_rows, "a_tile": tile_rows * row, "group": group}
            for name, field in fields.items():
                job.set(name, field)
        return job

    def run(self, target: Ptr) -> None:
        """The product, or that of each row of vectors."""
        k, job = self.k, self.job()
        nest = k.select(self.column, self.address("column_nest"), self.address("nest"))
        nest = k.select(self.dot, self.address("dot"), nest)
        job.set("d", target)
        k.invoke(nest, "void", job.ptr, 0)
        row, none = self.depth * self.size, k.const(0)
        a_step, b_step = k.select(self.a_vector, none, row), k.select(self.b_vector, none, row)
        for i in k.range(1, self.count):
            job.set("a", self.at_a + i * a_step)
            job.set("b", self.at_b + i * b_step)
            job.set("d", target + i * self.size)
            k.invoke(nest, "void", job.ptr, 0)


def small() -> NativeFunction:
    """``small(table, a, b, out, result)``: a small product of contiguous operands of one type.

    ``out`` is null for a new result.  ``result`` gets a new reference, or null with an exception
    set.  The answer is 0, or 1 if this is no such product.

    The product is :func:`jitgemm.matmul`, ``matvec``, ``vecmat`` or ``vecdot``, as the table says.
    """

    def body(k: SystemKernel, table_at: Ptr, a_at: Ptr, b_at: Ptr, d_at: Ptr, end: Ptr) -> None:
        table = SMALL.view(k, table_at)

        def leave(cond: Cond) -> None:
            k.leave_when(cond, lambda: k.const(1))

        def done(result: Ptr) -> None:
            k.store_ptr(end, result)
            k.ret(k.const(0))

        leave(~_are_arrays(k, [a_at, b_at], table.pointer("array_type")))
        it = _Small(k, table, (a_at, b_at), leave)
        number = k.scratch(8)
        result, target = k.var(d_at), k.var(number)
        scalar = k.is_null(d_at) & it.nd.equals(0)
        for _ in k.when(~scalar):
            for fresh in k.branches(k.is_null(d_at)):
                if fresh:
                    result.value = it.new_array()
                    for _ in k.when(k.is_null(result.value)):
                        done(k.null())
                else:
                    it.check_given(d_at)
                    k.external("Py_IncRef", "void", d_at)
            target.value = ArrayAt(k, result.value).pointer("data")
        it.run(target.value)
        for _ in k.when(scalar):
            made = k.invoke(table.pointer("new_scalar"), "ptr", number, it.descr, k.null())
            done(made)
        done(result.value)

    params = parameters("table* a* b* out* result*")
    return NativeFunction("jitgemm_small", params, body, returns="int")
