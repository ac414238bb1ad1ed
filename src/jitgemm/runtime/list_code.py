"""Generated code for lists of products: ``gemm_batched(a, b, ...)``.

Each product is told by the signature of a single call on one thread, so lists and single calls
share their entries.  A list whose products are all known, and each worth one thread, is prepared
and run here; Python takes every other one.

Scratch has, one after the other: a task, a job and the objects that are held per product; the
ranges of results that the caller gave; scratch for each worker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jitgemm.kernels.job import COUNTERS, JOB
from jitgemm.lang.core import Cond, Function, Int, Ptr, Var, parameters
from jitgemm.lang.record import Record, View
from jitgemm.runtime.batch_code import LIST, TASK, list_worker
from jitgemm.runtime.call_code import Call
from jitgemm.runtime.entry_code import (
    ENTRY,
    SERVED,
    SINGLE,
    claimed,
    scratch_of,
)
from jitgemm.runtime.numpy_abi import ITEMS, OFFSETS, SIZE
from jitgemm.runtime.pool_code import run
from jitgemm.runtime.signature_code import (
    ARGUMENTS,
    OPERANDS,
    SIGNATURE,
    ArrayAt,
    number_of_threads,
)
from jitgemm.runtime.system import NativeFunction, SystemKernel

__all__ = ["call_list", "list_scratch"]

_INPUTS = ("a", "b", "c", "bias")
# Objects that are held while other threads run Python: inputs, and owners of entries.
HELD = Record("held", *_INPUTS, "owner", "alone")
# Where the bytes of a result begin and end.
_RANGE = 16


def list_scratch(products: int, workers: int) -> int:
    """Bytes of scratch of a list, of which ``workers`` are for kernels."""
    return products * (TASK.size + JOB.size + HELD.size + _RANGE) + workers


@dataclass(frozen=True, slots=True)
class _Items:
    """A list's items, or one object that stands for as many."""

    first: Var[Ptr]
    step: Var[Int]

    def at(self, k: SystemKernel, i: Int) -> Ptr:
        """The object of a product; null for None and for nothing."""
        return k.load_ptr(self.first.value + i * self.step.value)


def _by_low() -> NativeFunction:
    """Order of ranges, for ``qsort``."""

    def body(k: SystemKernel, x: Ptr, y: Ptr) -> None:
        a, b = k.load_int(x), k.load_int(y)
        less = k.select(a < b, k.const(-1), k.const(0))
        k.ret(k.select(a > b, k.const(1), less))

    return NativeFunction("jitgemm_by_low", parameters("x* y*"), body, returns="int")


def _by_work() -> NativeFunction:
    """Order of tasks, for ``qsort``: the largest first."""
    at = TASK.offset("operations")

    def body(k: SystemKernel, x: Ptr, y: Ptr) -> None:
        a, b = k.load_int(x + at), k.load_int(y + at)
        less = k.select(a > b, k.const(-1), k.const(0))
        k.ret(k.select(a < b, k.const(1), less))

    return NativeFunction("jitgemm_by_work", parameters("x* y*"), body, returns="int")


def _meets() -> NativeFunction:
    """``meets(ranges, count, low, high)``: whether some bytes meet one of ordered, apart ranges."""

    def body(k: SystemKernel, ranges: Ptr, count: Int, low: Int, high: Int) -> None:
        # The first range that ends after `low`.
        first, end = k.var(k.const(0)), k.var(count)
        for _ in k.repeat_while(lambda: first.value < end.value):
            middle = (first.value + end.value) // 2
            for after in k.branches(k.load_int(ranges + (middle * _RANGE + 8)) > low):
                if after:
                    end.value = middle
                else:
                    first.value = middle + 1
        for _ in k.when(first.value < count):
            for _ in k.when(k.load_int(ranges + first.value * _RANGE) < high):
                k.ret(k.const(1))
        k.ret(k.const(0))

    params = parameters("ranges* count low high")
    return NativeFunction("jitgemm_meets", params, body, returns="int")


class _List:
    """A list while :func:`call_list` is generated."""

    def __init__(self, it: Call) -> None:
        self.k, self.it, self.calls = it.k, it, it.calls
        k = self.k
        self.threads = k.integer_from(number_of_threads(), it.calls.ptr, it.args.pointer("threads"))
        it.leave(self.threads.equals(0))
        self.none = k.scratch(8)
        k.store_ptr(self.none, k.null())
        self.count: Var[Int] = k.var(k.const(-1))
        for name in ("a", "b"):
            self._items(name, it.pass_on)
        # One of them must be a list.
        it.leave(self.count.value <= 0)
        self.results = k.external("PyList_New", "ptr", self.count.value)
        k.leave_when(k.is_null(self.results), k.null)
        # Only now: a new list may be what sets the garbage collector off, and finalisers may change
        # the lists.  From here on no Python runs before the products do.
        self.items = {name: self._items(name, self._drop) for name in OPERANDS}
        # Arguments of one product: its operands, one thread, options like all.
        self.one = ARGUMENTS.view(k, k.scratch(ARGUMENTS.size))
        k.copy(self.one.ptr, it.args.ptr, ARGUMENTS.size)
        self.one.set("threads", self.calls.pointer("one"))
        self.given = ~k.is_null(it.args.pointer("out"))
        self._lay_out()

    def _items(self, name: str, leave: Callable[[], None]) -> _Items:
        """An argument's items, of which there are as many as of any other list."""
        k, it = self.k, self.it
        x = it.args.pointer(name)
        first, step = k.var(self.none), k.var(k.const(0))
        for _ in k.when(~k.is_null(x)):
            kind = k.load_ptr(x + OFFSETS["type"])
            a_list = k.same(kind, self.calls.pointer("list_type"))
            a_tuple = k.same(kind, self.calls.pointer("tuple_type"))
            for listed in k.branches(a_list | a_tuple):
                if listed:
                    known, mine = self.count.value, k.load_int(x + SIZE)
                    for _ in k.when((known >= 0) & known.differs(mine)):
                        leave()
                    self.count.value = mine
                    inline = x + ITEMS
                    first.value = k.select(a_tuple, inline, k.load_ptr(inline))
                    step.value = k.const(8)
                elif name in "ab":
                    first.value = it.args.at(name)
                else:
                    leave()
        return _Items(first, step)

    def _lay_out(self) -> None:
        """Take scratch, and see what is where in it."""
        k, count = self.k, self.count.value
        self.scratch = scratch_of(k, self.calls, self.it.args)
        fixed = count * (TASK.size + JOB.size + HELD.size + _RANGE)
        for _ in k.when(~claimed(k, self.scratch, fixed)):
            self._drop()
        self.tasks = self.scratch.pointer("address")
        self.jobs = self.tasks + count * TASK.size
        self.held = self.jobs + count * JOB.size
        self.ranges = self.held + count * HELD.size
        self.workers = self.ranges + count * _RANGE
        self.fixed = fixed

    def release(self) -> None:
        """Give the scratch back."""
        self.k.exchange(self.scratch.at("busy"), 0)

    def leave(self, cond: Cond) -> None:
        """Leave the call to Python, with nothing written."""
        for _ in self.k.when(cond):
            self.release()
            self._drop()

    def _drop(self) -> None:
        """Leave the call to Python before there is scratch."""
        self.k.external("Py_DecRef", "void", self.results)
        self.it.pass_on()

    def take_operands(self, i: Int) -> None:
        """The operands of a product into the arguments of one."""
        k, none = self.k, self.calls.pointer("none")
        for name in OPERANDS:
            x = self.items[name].at(k, i)
            self.one.set(name, k.select(k.same(x, none), k.null(), x))
        self.leave(k.is_null(self.one.pointer("a")) | k.is_null(self.one.pointer("b")))

    def find(self, words: Ptr) -> View:
        """The entry of a product."""
        k, it = self.k, self.it
        number = it.function.int("number")
        calls = self.calls
        end = k.invoke(
            calls.pointer("signature_code"), "ptr",
            calls.ptr, self.one.ptr, words, number, it.named.value,
        )  # fmt: skip
        self.leave(k.is_null(end))
        at = k.invoke(calls.pointer("find_code"), "ptr", calls.ptr, words, end)
        self.leave(k.is_null(at))
        entry = ENTRY.view(k, at)
        self.leave(entry.int("kind").differs(SINGLE))
        return entry

    def describe(self, task: View, entry: View) -> None:
        """Fill in what of a task its entry says."""
        k = self.k
        places = entry.int("scratch_a") > 0
        task.set("nest", entry.pointer("nest"))
        task.set("scratch_a", entry.int("scratch_a"))
        task.set("places_b", k.select(places, k.const(1), k.const(0)))
        for name in ("operations", "threads"):
            task.set(name, entry.int(name))

    def add(self, i: Int, entry: View) -> None:
        """Make a product a task."""
        k = self.k
        job, cell = self.jobs + i * JOB.size, k.scratch(8)
        begin = self.calls.pointer("prepare_code")
        answer = k.invoke(begin, "int", self.calls.ptr, entry.ptr, self.one.ptr, job, cell)
        self.leave(answer.differs(SERVED))
        result = k.load_ptr(cell)
        for _ in k.when(k.is_null(result)):
            self.release()
            k.external("Py_DecRef", "void", self.results)
            k.ret(k.null())
        k.external("PyList_SetItem", "i32", self.results, i, result)
        task = self.task(i)
        task.set("job", job)
        task.set("index", i)
        self.describe(task, entry)
        self.leave(entry.int("threads") > 1)
        held = HELD.view(k, self.held + i * HELD.size)
        for name in _INPUTS:
            held.set(name, self.one.pointer(name))
        held.set("owner", entry.pointer("owner"))
        held.set("alone", k.null())
        for _ in k.when(self.given):
            d = ArrayAt(k, result).pointer("data")
            low = k.address(d) + entry.int("d_low")
            k.store_int(self.ranges + i * _RANGE, low)
            k.store_int(self.ranges + (i * _RANGE + 8), k.address(d) + entry.int("d_high"))

    def check_apart(self) -> None:
        """Whether no given result shares memory with another one, or with what any product reads.

        What is new lies apart from everything: its range is as good as any.
        """
        k, count = self.k, self.count.value
        meets = _meets()
        for _ in k.when(self.given):
            compare = k.pointer_to(_by_low())
            k.external("qsort", "void", self.ranges, count, _RANGE, compare)
            for i in k.range(1, count):
                mine = self.ranges + i * _RANGE
                # The one before must have ended.
                self.leave(k.load_int(mine + (8 - _RANGE)) > k.load_int(mine))
            for i in k.range(0, count):
                held = HELD.view(k, self.held + i * HELD.size)
                # The entry is the data of its owner, an array.
                owner = ArrayAt(k, held.pointer("owner")).pointer("data")
                entry = ENTRY.view(k, owner)
                for name in _INPUTS:
                    x = held.pointer(name)
                    reads = entry.int(f"{name}_high").differs(0)
                    if name == "c":
                        reads = reads & entry.int("in_place").equals(0)
                    for _ in k.when(reads & ~k.is_null(x)):
                        at = k.address(ArrayAt(k, x).pointer("data"))
                        low, high = (at + entry.int(f"{name}_{y}") for y in ("low", "high"))
                        found = k.integer_from(meets, self.ranges, count, low, high)
                        self.leave(found.differs(0))

    def hold(self, change: str) -> None:
        """Count references to what the products need: other threads may drop theirs."""
        k = self.k
        for i in k.range(0, self.count.value):
            held = HELD.view(k, self.held + i * HELD.size)
            for name in HELD.fields:
                # Both do nothing for null.
                k.external(change, "void", held.pointer(name))

    def sort(self, total: Int, largest: Int) -> None:
        """Order the tasks, the largest first; equal ones stay as they are."""
        k, count = self.k, self.count.value
        for _ in k.when((self.threads > 1) & (largest * count).differs(total)):
            k.external("qsort", "void", self.tasks, count, TASK.size, k.pointer_to(_by_work()))

    def task(self, i: Int) -> View:
        """A task."""
        return TASK.view(self.k, self.tasks + i * TASK.size)

    def take_alone(self, words: Ptr, total: Var[Int]) -> tuple[Int, Int]:
        """Prepare products that are to have all threads; how many, and the most scratch of one.

        It is those that ``planner.batching.alone_in_list`` says, with a job for all threads in
        place of that for one.
        """
        k, calls = self.k, self.calls
        first, most = k.var(k.const(0)), k.var(k.const(0))

        def alone() -> Cond:
            # Behind the last task there is a job.
            work = self.task(first.value).int("operations")
            several = (work // calls.int("parallel_flops") > 1) & (self.threads > 1)
            unfair = (work * 2 * self.threads > total.value) | (work > calls.int("split_flops"))
            return (first.value < self.count.value) & several & unfair

        results = k.load_ptr(self.results + ITEMS)
        for _ in k.repeat_while(alone):
            task = self.task(first.value)
            index = task.int("index")
            self.take_operands(index)
            self.one.set("out", k.load_ptr(results + index * 8))
            self.one.set("threads", self.it.args.pointer("threads"))
            entry = self.find(words)
            cell = k.scratch(8)
            answer = k.invoke(
                calls.pointer("prepare_code"), "int",
                calls.ptr, entry.ptr, self.one.ptr, task.pointer("job"), cell,
            )  # fmt: skip
            self.leave(answer.differs(SERVED))
            k.external("Py_DecRef", "void", k.load_ptr(cell))
            self.describe(task, entry)
            # Both entries are in use.
            held = HELD.view(k, self.held + index * HELD.size)
            held.set("alone", entry.pointer("owner"))
            wanted = entry.int("scratch_bytes")
            most.value = k.select(wanted > most.value, wanted, most.value)
            total.value = total.value - task.int("operations")
            first.value = first.value + 1
        return first.value, most.value

    def run_alone(self, pool: Ptr, count: Int) -> None:
        """Run the first tasks, each by all threads."""
        k, single = self.k, run()
        counters = COUNTERS.view(k, k.scratch(COUNTERS.size))
        for i in k.range(0, count):
            task = self.task(i)
            job = JOB.view(k, task.pointer("job"))
            for _ in k.when(task.int("places_b").differs(0)):
                job.set("packed", self.workers)
            job.set("workspace_a", self.workers + task.int("scratch_a"))
            job.set("counters", counters.ptr)
            for field in ("cursor", "done", "sleepers"):
                counters.set(field, 0)
            k.call(single, pool, task.pointer("nest"), job.ptr, task.int("threads"))

    def run(self, most: Int, whole: Int, words: Ptr) -> None:
        """Run the tasks: some alone, then the others as they are drawn."""
        k, calls, total = self.k, self.calls, self.k.var(whole)
        first, alone_bytes = self.take_alone(words, total)
        count = self.count.value - first
        worth = total.value // calls.int("parallel_flops")
        workers = k.min(k.min(self.threads, count), k.select(worth > 1, worth, k.const(1)))
        pool = k.load_ptr(calls.pointer("pool_cell"))
        self.leave(((workers > 1) | (first > 0)) & k.is_null(pool))
        wanted = workers * most
        wanted = k.select(alone_bytes > wanted, alone_bytes, wanted)
        self.leave(self.scratch.int("size") < self.fixed + wanted)
        tasks = LIST.view(k, k.scratch(LIST.size))
        values: dict[str, Int | Ptr | int] = {
            "cursor": 0, "tasks": self.tasks + first * TASK.size, "count": count,
            "scratch": self.workers, "scratch_stride": most,
        }  # fmt: skip
        for name, value in values.items():
            tasks.set(name, value)
        worker, single = k.pointer_to(list_worker()), run()
        long = (workers > 1) | (first > 0) | (whole >= calls.int("release_flops"))
        for release in k.branches(long):
            if release:
                self.hold("Py_IncRef")
                state = k.external("PyEval_SaveThread", "ptr")
                self.run_alone(pool, first)
                k.call(single, pool, worker, tasks.ptr, workers)
                k.external("PyEval_RestoreThread", "void", state)
                self.hold("Py_DecRef")
            else:
                k.call(single, pool, worker, tasks.ptr, 1)
        self.release()
        k.ret(self.results)


def call_list() -> Function:
    """``gemm_batched(a, b, ...)``: products of lists, all of them known."""

    def body(k: SystemKernel, owner: Ptr, args: Ptr, count: Int, names: Ptr) -> None:
        it = Call(k, owner, args, count, names)
        it.take_arguments()
        it.check_arguments()
        products, words = _List(it), k.scratch(SIGNATURE)
        most, total, largest = (k.var(k.const(0)) for _ in range(3))
        for i in k.range(0, products.count.value):
            products.take_operands(i)
            entry = products.find(words)
            products.add(i, entry)
            wanted, work = (entry.int("scratch_bytes") + 63) // 64 * 64, entry.int("operations")
            most.value = k.select(wanted > most.value, wanted, most.value)
            largest.value = k.select(work > largest.value, work, largest.value)
            total.value = total.value + work
        products.check_apart()
        products.sort(total.value, largest.value)
        products.run(most.value, total.value, words)

    params = parameters("owner* args* count names*")
    return NativeFunction("jitgemm_call_list", params, body, returns="ptr")
