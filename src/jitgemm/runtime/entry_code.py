"""Generated code that runs a planned call: operands and factors into its job, then the kernels.

An *entry* is what an earlier call like it has left behind: its signature, a work record that lacks
nothing but addresses and factors, and what the result is.  Whatever may differ from call to call
and is not part of a signature is checked here, before anything is written: that the result may be
written, that it lies apart from what is read, that there is scratch.  An entry that cannot serve
says so, and Python takes the call.
"""

from __future__ import annotations

from jitgemm.isa.types import F32, F64
from jitgemm.kernels.job import COUNTERS, DATA, JOB
from jitgemm.lang.core import Cond, Int, Ptr, parameters
from jitgemm.lang.record import Record, View
from jitgemm.runtime.batch_code import BATCH
from jitgemm.runtime.memory import SCRATCH
from jitgemm.runtime.numpy_abi import BYTES, WRITEABLE
from jitgemm.runtime.pool_code import run
from jitgemm.runtime.signature_code import (
    ARGUMENTS,
    CALLS,
    DIMENSIONS,
    HANDLE,
    OPERANDS,
    ArrayAt,
    packed_words,
)
from jitgemm.runtime.system import NativeFunction, SystemKernel

__all__ = [
    "ABSENT", "AS_PLANNED", "BATCHED", "BOUND", "DECLINED", "ENTRY", "FACTOR_KINDS", "GIVEN",
    "INPUTS", "PACKED", "PROBES", "SERVED", "SINGLE", "claimed", "find", "prepare", "same_words",
    "scratch_of", "serve",
]  # fmt: skip

INPUTS = OPERANDS[:-1]
"""Operands that are read."""
# Where an operand comes from: nowhere, an array or a handle of the call, or the entry itself.
ABSENT, GIVEN, PACKED, BOUND = range(4)
# What `work` is the beginning of: the job of one product, or a batch.
SINGLE, BATCHED = range(2)
# How factors are written: by whether they are integers, bytes of an element, reals per number.
FACTOR_KINDS = {
    (False, 4, 1): 0, (False, 8, 1): 1, (True, 4, 1): 2, (True, 8, 1): 2, (False, 4, 2): 3,
    (False, 8, 2): 4,
}  # fmt: skip
AS_PLANNED = 5
"""They are in the work record: those of a plan."""
# What `serve` answers: done, or that Python must take the call.
SERVED, DECLINED = range(2)

INPUT = Record(
    "input",
    "mode",
    "place",  # offset in the work record of the pointer
    "low", "high",  # bytes that belong to it, before and after the data pointer
)  # fmt: skip
"""An operand that is read; an entry has one after the other, without padding."""
INPUT_SIZE = 8 * len(INPUT.fields)

ENTRY = Record(
    "entry",
    "length", "signature",  # its bytes, and where they are
    "owner",  # the Python object that keeps all this
    "used",  # when, by the clock of all calls
    "kind",
    *(f"{name}_{part}" for name in INPUTS for part in INPUT.fields),
    "d_place", "d_low", "d_high",
    "fresh",  # 1: a new result is what was planned
    "scalar",  # 1: it is a number
    "d_descr", "d_nd", *(f"d_dim_{i}" for i in range(DIMENSIONS)),
    "in_place",  # C must be the result's own memory; else apart from it
    "factors",  # one of FACTOR_KINDS, or AS_PLANNED
    "mask",  # of integers: the bits of an element
    "nest",
    "run_batch",  # runs a batch
    "threads", "operations",
    "release",  # 1: it takes long enough to let other threads run Python
    "scratch_bytes",  # what is needed of scratch
    "scratch_a",  # of one product: where packed A begins, after packed B
    *(f"work_{i}" for i in range(BATCH.slots)),
)  # fmt: skip
"""One planned call.  Its work record is copied for each call."""


_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)  # 2**64 over the golden ratio, odd

PROBES = 16
"""Slots of the table that are looked at."""


class _Preparing:
    """A call while :func:`prepare` is generated: its entry, its arguments, its work record."""

    def __init__(self, k: SystemKernel, records: tuple[Ptr, Ptr, Ptr], work: Ptr) -> None:
        self.k, self.work = k, work
        calls_at, entry_at, args_at = records
        self.calls, self.entry = CALLS.view(k, calls_at), ENTRY.view(k, entry_at)
        self.args = ARGUMENTS.view(k, args_at)
        # A batch begins with a job.
        for batch in k.branches(self.entry.int("kind").equals(BATCHED)):
            k.copy(work, self.entry.at("work_0"), BATCH.size if batch else JOB.size)
        self.out = self.args.pointer("out")
        self.fresh = k.is_null(self.out)

    def leave(self, cond: Cond) -> None:
        """Leave the call to Python."""
        self.k.leave_when(cond, lambda: self.k.const(DECLINED))

    def check_result(self) -> None:
        """Whether the result may be written where it is to be."""
        for fresh in self.k.branches(self.fresh):
            if fresh:
                self.leave(self.entry.int("fresh").equals(0))
            else:
                flags = ArrayAt(self.k, self.out).small("flags")
                self.leave((flags & WRITEABLE).equals(0))

    def take_inputs(self) -> None:
        """Put the addresses of what is read into the work record, if the result lies apart."""
        k, entry = self.k, self.entry
        for i in k.range(0, len(INPUTS)):
            view = INPUT.view(k, entry.at("a_mode") + i * INPUT_SIZE)
            mode = view.int("mode")
            for _ in k.when(mode.differs(ABSENT)):
                x = k.load_ptr(self.args.at(INPUTS[0]) + i * 8)
                self._take(view, mode, x, is_c=i.equals(INPUTS.index("c")))

    def _take(self, view: View, mode: Int, x: Ptr, *, is_c: Cond) -> None:
        k, place = self.k, self.work + view.int("place")
        for given in k.branches(mode.equals(GIVEN)):
            if given:
                k.store_ptr(place, ArrayAt(k, x).pointer("data"))
                continue
            for _ in k.when(mode.equals(PACKED)):
                handle = HANDLE.view(k, packed_words(k, self.calls, x))
                k.store_ptr(place, handle.pointer("address"))
        # Nobody can write to a handle's memory.
        for _ in k.when(~(self.fresh | mode.equals(PACKED))):
            at, d = k.load_ptr(place), ArrayAt(k, self.out).pointer("data")
            there = is_c & self.entry.int("in_place").differs(0)
            apart = self._apart(view, k.address(at), k.address(d))
            self.leave(~((there & k.same(at, d)) | (~there & apart)))

    def _apart(self, view: View, at: Int, out: Int) -> Cond:
        """Whether the bytes of an operand do not meet those of the result."""
        entry = self.entry
        return (at + view.int("high") <= out + entry.int("d_low")) | (
            out + entry.int("d_high") <= at + view.int("low")
        )

    def take_factors(self) -> None:
        """Alpha and beta, as the kernels read them."""
        k, args, job = self.k, self.args, JOB.view(self.k, self.work)
        names = ("alpha", "beta")
        kinds = [*sorted(set(FACTOR_KINDS.values())), AS_PLANNED]
        for kind in k.cases(self.entry.int("factors"), kinds):
            if kind == AS_PLANNED:
                continue
            if kind == 2:
                for name in names:
                    job.set(name, args.int(f"{name}_integer") & self.entry.int("mask"))
                continue
            element = F32 if kind in (0, 3) else F64
            for name in names:
                real = k.convert(args.scalar(f"{name}_real", F64), element)
                k.store(job.at(name), real)
                if kind < 2:
                    continue
                # Reals twice, then minus the imaginary part, and that part.
                k.store(job.at(name) + element.bytes, real)
                imag = k.convert(args.scalar(f"{name}_imag", F64), element)
                turn = job.at(f"{name}_imag")
                k.store(turn, k.op("sub", k.zero(element, 1), imag))
                k.store(turn + element.bytes, imag)
                # No zero has a sign here.
                there = args.int(f"{name}_imag").differs(0)
                job.set(f"complex_{name}", k.select(there, k.const(1), k.const(0)))

    def new_result(self) -> Ptr:
        """A new array of the planned shape; null with an exception set."""
        k, entry, null = self.k, self.entry, self.k.null()
        descr = entry.pointer("d_descr")
        k.external("Py_IncRef", "void", descr)
        return k.invoke(
            self.calls.pointer("new_from_descr"), "ptr",
            self.calls.pointer("array_type"), descr, entry.int("d_nd"), entry.at("d_dim_0"),
            null, null, 0, null,
        )  # fmt: skip


def prepare() -> NativeFunction:
    """``prepare(calls, planned, arguments, work, result)``: all but scratch, or decline.

    ``work`` is filled.  ``result`` gets a new reference to the array the result is written to; null
    with an exception set if there is no memory for it.  If the result is a number ``result`` is
    left as it is, and the number goes there.
    """

    def body(
        k: SystemKernel, calls_at: Ptr, entry_at: Ptr, args_at: Ptr, work: Ptr, result_at: Ptr
    ) -> None:
        it = _Preparing(k, (calls_at, entry_at, args_at), work)
        entry = it.entry
        it.check_result()
        it.take_inputs()
        it.take_factors()
        place = work + entry.int("d_place")
        for given in k.branches(~it.fresh):
            if given:
                k.external("Py_IncRef", "void", it.out)
                k.store_ptr(result_at, it.out)
                k.store_ptr(place, ArrayAt(k, it.out).pointer("data"))
                continue
            for array in k.branches(entry.int("scalar").equals(0)):
                if not array:
                    k.store_ptr(place, result_at)
                    continue
                made = it.new_result()
                k.store_ptr(result_at, made)
                for _ in k.when(~k.is_null(made)):
                    k.store_ptr(place, ArrayAt(k, made).pointer("data"))
        k.ret(k.const(SERVED))

    params = parameters("calls* planned* arguments* work* result*")
    return NativeFunction("jitgemm_prepare", params, body, returns="int")


def scratch_of(k: SystemKernel, calls: View, args: View) -> View:
    """The record of the scratch a call uses: its workspace's, or that which all share."""
    where, given = k.var(calls.pointer("scratch")), args.pointer("workspace")
    for _ in k.when(~k.is_null(given)):
        record = k.load_ptr(given + calls.int("workspace_record"))
        where.value = ArrayAt(k, record).pointer("data")
    return SCRATCH.view(k, where.value)


def claimed(k: SystemKernel, scratch: View, wanted: Int) -> Cond:
    """Take some scratch, if it is free and large enough; whether that was so."""
    enough = (scratch.int("size") >= wanted) & scratch.int("claimed").equals(0)
    taken = k.var(k.const(0))
    for _ in k.when(enough):
        taken.value = k.const(1) - k.exchange(scratch.at("busy"), 1)
    return taken.value.equals(1)


def _place(k: SystemKernel, entry: View, work: Ptr, base: Ptr) -> None:
    """Tell a work record where its scratch is."""
    for batch in k.branches(entry.int("kind").equals(BATCHED)):
        if batch:
            BATCH.view(k, work).set("scratch", base)
            continue
        job = JOB.view(k, work)
        for _ in k.when(entry.int("scratch_a") > 0):
            job.set("packed", base)
        job.set("workspace_a", base + entry.int("scratch_a"))


def _run(k: SystemKernel, calls: View, entry: View, work: Ptr) -> None:
    """Run the kernels, without the interpreter lock where that pays."""
    pool = k.load_ptr(calls.pointer("pool_cell"))
    single, batch = run(), entry.pointer("run_batch")
    counters_at = k.scratch(COUNTERS.size)

    def start() -> None:
        for many in k.branches(entry.int("kind").equals(BATCHED)):
            if many:
                k.invoke(batch, "void", pool, work)
                continue
            threads, nest = entry.int("threads"), entry.pointer("nest")
            JOB.view(k, work).set("counters", counters_at)
            counters = COUNTERS.view(k, counters_at)
            for field in ("cursor", "done", "sleepers"):
                counters.set(field, 0)
            for alone in k.branches(threads <= 1):
                if alone:
                    k.invoke(nest, "void", work, 0)
                else:
                    k.call(single, pool, nest, work, threads)

    for release in k.branches(entry.int("release").differs(0)):
        if release:
            # It may be forgotten meanwhile, and its code with it.
            owner = entry.pointer("owner")
            k.external("Py_IncRef", "void", owner)
            state = k.external("PyEval_SaveThread", "ptr")
            start()
            k.external("PyEval_RestoreThread", "void", state)
            k.external("Py_DecRef", "void", owner)
        else:
            start()


def serve() -> NativeFunction:
    """``serve(calls, planned, arguments, result)``: run a planned call, or decline.

    ``result`` gets a new reference to what is returned to the caller; null with an exception set
    if there is no memory for it.
    """
    begin = prepare()

    def body(k: SystemKernel, calls_at: Ptr, entry_at: Ptr, args_at: Ptr, result_at: Ptr) -> None:
        calls, entry, args = (
            CALLS.view(k, calls_at), ENTRY.view(k, entry_at), ARGUMENTS.view(k, args_at)
        )  # fmt: skip
        # No pool yet, or no more after a fork: Python starts one.
        pool = k.load_ptr(calls.pointer("pool_cell"))
        declined = k.const(DECLINED)
        k.leave_when((entry.int("threads") > 1) & k.is_null(pool), lambda: declined)
        work, number = k.scratch(BATCH.size), k.scratch(16)
        scalar = entry.int("scalar").differs(0) & k.is_null(args.pointer("out"))
        where = k.select(scalar, number, result_at)
        answer = k.integer_from(begin, calls_at, entry_at, args_at, work, where)
        k.leave_when(answer.differs(SERVED), lambda: declined)
        given = args.pointer("data")
        for _ in k.when(~k.is_null(given)):
            k.copy(work + JOB.offset(DATA[0]), given + BYTES, 8 * len(DATA))
        no_memory = ~scalar & k.is_null(k.load_ptr(where))
        k.leave_when(no_memory, lambda: k.const(SERVED))
        wanted, scratch = entry.int("scratch_bytes"), scratch_of(k, calls, args)
        for _ in k.when(wanted > 0):
            for _ in k.when(~claimed(k, scratch, wanted)):
                for _ in k.when(~scalar):
                    k.external("Py_DecRef", "void", k.load_ptr(where))
                k.ret(declined)
            _place(k, entry, work, scratch.pointer("address"))
        # The entry may be gone when the kernels are done.
        descr = entry.pointer("d_descr")
        for _ in k.when(scalar):
            k.external("Py_IncRef", "void", descr)
        _run(k, calls, entry, work)
        for _ in k.when(wanted > 0):
            k.exchange(scratch.at("busy"), 0)
        for _ in k.when(scalar):
            made = k.invoke(calls.pointer("new_scalar"), "ptr", number, descr, k.null())
            k.store_ptr(result_at, made)
            k.external("Py_DecRef", "void", descr)
        k.ret(k.const(SERVED))

    params = parameters("calls* planned* arguments* result*")
    return NativeFunction("jitgemm_serve", params, body, returns="int")


def same_words(k: SystemKernel, x: Ptr, y: Ptr, size: Int) -> Cond:
    """Whether two rows of words, of so many bytes, are equal."""
    differs = k.var(k.const(0))
    for at in k.range(0, size, 8):
        words = k.load_int(x + at), k.load_int(y + at)
        differs.value = differs.value | k.difference(*words)
    return differs.value.equals(0)


def find() -> NativeFunction:
    """``find(calls, words, end)``: the entry of a signature, whose hash is filled in; or null."""

    def body(k: SystemKernel, calls_at: Ptr, words: Ptr, end: Ptr) -> None:
        calls = CALLS.view(k, calls_at)
        size = k.address(end) - k.address(words)
        hash_ = k.var(size)
        # There may be one word too few for the last pair.
        k.store_int(end, 0)
        for at in k.range(8, size, 16):
            pair = k.load_int(words + at), k.load_int(words + (at + 8))
            hash_.value = k.mix(hash_.value, pair, _MULTIPLIER)
        k.store_int(words, hash_.value)
        slot = calls.pointer("slots") + k.shift_right(hash_.value, calls.int("shift")) * 16
        for i in k.range(0, PROBES):
            entry_at = k.load_ptr(slot + (i * 16 + 8))
            k.leave_when(k.is_null(entry_at), k.null)
            for _ in k.when(k.load_int(slot + i * 16).equals(hash_.value)):
                entry = ENTRY.view(k, entry_at)
                for _ in k.when(entry.int("length").equals(size)):
                    known = entry.pointer("signature")
                    for _ in k.when(same_words(k, known, words, size)):
                        clock = calls.int("clock") + 1
                        calls.set("clock", clock)
                        entry.set("used", clock)
                        k.ret(entry_at)
        k.ret(k.null())

    params = parameters("calls* words* end*")
    return NativeFunction("jitgemm_find", params, body, returns="ptr")
