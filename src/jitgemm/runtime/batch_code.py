"""Generated code that runs many products in one call: stacks of one shape, and lists of any.

A worker copies the job record to memory of its own once and, per product, sets only the pointers
and its own two counters.  It then runs the product's nest as if it were alone in the world: as
thread 0, with scratch of its own.  So nothing is shared between workers but the cursor they draw
from.
"""

from __future__ import annotations

from collections.abc import Callable

from jitgemm.kernels.job import AHEAD, COUNTERS, JOB, OPERANDS, STEPS, TABLES
from jitgemm.lang.core import Function, Int, Ptr, Var, parameters
from jitgemm.lang.record import Record, View
from jitgemm.planner.batching import AXES
from jitgemm.planner.folding import FIELDS
from jitgemm.runtime.pool_code import run
from jitgemm.runtime.system import NativeFunction, SystemKernel

__all__ = ["BATCH", "LIST", "TASK", "batch_worker", "list_worker", "run_batch"]

_PAD = [f"_p{i}" for i in range(7)]
_LAST = AXES - 1
_LINE = 64

BATCH = Record(
    "batch",
    # First: a record of one product and one of many begin alike.
    *(f"job_{i}" for i in range(JOB.slots)),
    "cursor", *_PAD,  # next product to hand out; a cache line of its own
    "nest",
    "repeat",  # runs many products at a time; 0: each is too large for that
    "worker",  # `jitgemm_batch`, which the pool runs if products are taken whole
    "whole", "threads", "items", "per_ticket",
    "scratch", "scratch_stride",  # of all workers, and from one to the next
    "scratch_a",  # where packed A begins in a worker's
    "places_b",  # 1: B is packed into scratch
    "b_packed",  # 1: B is prepacked, each product's its own or all the same
    "keeps",  # packing tickets to leave out where B is the one packed before; 0: pack always
    *(f"ahead_{field}" for field in AHEAD),  # bytes of a product to fetch early; 0: none
    "tables",  # 1: products have numbers per row or column of their own
    *(f"count_{i}" for i in range(AXES)),  # outermost first
    *(f"{field}_{i}" for field in FIELDS for i in range(AXES)),  # strides in bytes
)  # fmt: skip

LIST = Record("list", "cursor", *_PAD, "tasks", "count", "scratch", "scratch_stride")

# One product of a list.
TASK = Record(
    "task",
    "nest", "job", "scratch_a", "places_b",
    "operations", "index",  # place in the list
    "threads",  # of a product that comes alone
)  # fmt: skip


class _Own:
    """A worker's own job record and counters."""

    def __init__(self, k: SystemKernel) -> None:
        self.k = k
        at = k.scratch(JOB.size + COUNTERS.size)
        self.job = JOB.view(k, at)
        self.counters = COUNTERS.view(k, at + JOB.size)

    def take(self, template: Ptr, places: Int, scratch: Ptr, scratch_a: Int) -> None:
        """Copy a job and give it scratch."""
        self.k.copy(self.job.ptr, template, JOB.size)
        self.job.set("counters", self.counters.ptr)
        for _ in self.k.when(places.differs(0)):
            self.job.set("packed", scratch)
        self.job.set("workspace_a", scratch + scratch_a)

    def begin(self, done: Int) -> None:
        """Count ``done`` tickets as drawn and finished."""
        self.counters.set("cursor", done)
        self.counters.set("done", done)
        self.counters.set("sleepers", 0)


class _Products:
    """The products of a batch, as one worker runs them."""

    def __init__(self, k: SystemKernel, batch: View, own: _Own) -> None:
        self.k, self.batch, self.own = k, batch, own
        # Where the packed B in scratch was packed from: nowhere yet.
        self.packed: Var[Int] = k.var(k.const(0))
        # How far the next product along the last axis is.
        self.steps = STEPS.view(k, k.scratch(STEPS.size))
        for field in OPERANDS:
            self.steps.set(field, batch.int(f"{field}_{_LAST}"))
        for field in AHEAD:
            self.steps.set(f"ahead_{field}", batch.int(f"ahead_{field}"))

    def _place(self, item: Int) -> tuple[dict[str, Var[Ptr]], Int]:
        """The pointers of a product, and its index along the last axis."""
        k, batch = self.k, self.batch
        index, rest = [k.const(0)] * AXES, item
        for i in range(_LAST, 0, -1):
            count = batch.int(f"count_{i}")
            index[i], rest = rest % count, rest // count
        index[0] = rest
        template = JOB.view(k, batch.at("job_0"))
        pointers = {}
        for field in FIELDS:
            at = template.pointer(field)
            for i in range(AXES):
                at = at + index[i] * batch.int(f"{field}_{i}")
            pointers[field] = k.var(at)
        return pointers, index[_LAST]

    def run(self, first: Int, stop: Int, start: Callable[[], None]) -> None:
        """Run the products ``first .. stop``, each by ``start`` or many at a time."""
        k, batch, job = self.k, self.batch, self.own.job
        at = k.var(first)
        for _ in k.repeat_while(lambda: at.value < stop):
            pointers, along = self._place(at.value)
            count = k.min(stop - at.value, batch.int(f"count_{_LAST}") - along)
            for many in k.branches(batch.int("repeat").differs(0)):
                if many:
                    for field in OPERANDS:
                        job.set(field, pointers[field].value)
                    repeat = batch.pointer("repeat")
                    k.invoke(repeat, "void", job.ptr, self.steps.ptr, count)
                else:
                    self._one_by_one(pointers, count, start)
            at.value = at.value + count

    def _take(self, field: str, pointer: Var[Ptr], step: Int) -> None:
        """Give the job what is next of a field."""
        self.own.job.set(field, pointer.value)
        pointer.value = pointer.value + step

    def _one_by_one(
        self, pointers: dict[str, Var[Ptr]], count: Int, start: Callable[[], None]
    ) -> None:
        """Run ``count`` products along the last axis."""
        k, own = self.k, self.own
        keeps = self.batch.int("keeps")
        for _ in k.range(0, count):
            for field in OPERANDS:
                self._take(field, pointers[field], self.steps.int(field))
            for _ in k.when(self.batch.int("b_packed").differs(0)):
                own.job.set("packed", own.job.pointer("b"))
            for _ in k.when(self.batch.int("tables").differs(0)):
                for field in TABLES:
                    self._take(field, pointers[field], self.batch.int(f"{field}_{_LAST}"))
            b = k.address(own.job.pointer("b"))
            own.begin(k.select(b.equals(self.packed.value), keeps, k.const(0)))
            self.packed.value = b
            for field in AHEAD:
                coming = pointers[field].value + self.steps.int(field)
                for line in k.range(0, self.steps.int(f"ahead_{field}"), _LINE):
                    k.prefetch(coming + line, write=field == "d")
            start()


def batch_worker() -> Function:
    """``jitgemm_batch(batch, thread)``: draw ranges of whole products and run them alone."""

    def body(k: SystemKernel, batch_at: Ptr, thread: Int) -> None:
        batch, own = BATCH.view(k, batch_at), _Own(k)
        scratch = batch.pointer("scratch") + thread * batch.int("scratch_stride")
        own.take(batch.at("job_0"), batch.int("places_b"), scratch, batch.int("scratch_a"))
        products, nest = _Products(k, batch, own), batch.pointer("nest")
        items, step = batch.int("items"), batch.int("per_ticket")
        first = k.var(k.fetch_add(batch.at("cursor"), step))

        def start() -> None:
            k.invoke(nest, "void", own.job.ptr, 0)

        for _ in k.repeat_while(lambda: first.value < items):
            products.run(first.value, k.min(first.value + step, items), start)
            first.value = k.fetch_add(batch.at("cursor"), step)

    return NativeFunction("jitgemm_batch", parameters("batch* thread"), body)


def run_batch() -> Function:
    """``jitgemm_run_batch(pool, batch)``: the whole batch, as its record says."""
    runner = run()

    def body(k: SystemKernel, pool: Ptr, batch_at: Ptr) -> None:
        batch = BATCH.view(k, batch_at)
        threads = batch.int("threads")
        for whole in k.branches(batch.int("whole").differs(0)):
            if whole:
                k.call(runner, pool, batch.pointer("worker"), batch_at, threads)
                continue
            own = _Own(k)
            scratch, inner = batch.pointer("scratch"), batch.int("scratch_a")
            own.take(batch.at("job_0"), batch.int("places_b"), scratch, inner)
            nest = batch.pointer("nest")
            _Products(k, batch, own).run(
                k.const(0),
                batch.int("items"),
                lambda: k.call(runner, pool, nest, own.job.ptr, threads),
            )

    return NativeFunction("jitgemm_run_batch", parameters("pool* batch*"), body)


def list_worker() -> Function:
    """``jitgemm_list(list, thread)``: draw products of a list one by one and run them alone."""

    def body(k: SystemKernel, list_at: Ptr, thread: Int) -> None:
        tasks, own = LIST.view(k, list_at), _Own(k)
        scratch = tasks.pointer("scratch") + thread * tasks.int("scratch_stride")
        count = tasks.int("count")
        ticket = k.var(k.fetch_add(tasks.at("cursor"), 1))
        for _ in k.repeat_while(lambda: ticket.value < count):
            task = TASK.view(k, tasks.pointer("tasks") + ticket.value * TASK.size)
            own.take(task.pointer("job"), task.int("places_b"), scratch, task.int("scratch_a"))
            own.begin(k.const(0))
            k.invoke(task.pointer("nest"), "void", own.job.ptr, 0)
            ticket.value = k.fetch_add(tasks.at("cursor"), 1)

    return NativeFunction("jitgemm_list", parameters("list* thread"), body)
