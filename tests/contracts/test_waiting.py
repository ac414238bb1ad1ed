"""How threads wait: they hold no ticket, give way, sleep, and leave the caller's core.

What a wait costs is measured (benchmarks/after_idle.py); here is what makes it harmless.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm.isa.tables import PORTABLE
from jitgemm.jit import compiler
from jitgemm.kernels.job import COUNTERS
from jitgemm.kernels.tickets import drain, report
from jitgemm.lang.core import Int, Kernel, Ptr, parameters
from jitgemm.runtime.engine import record_array, system_unit
from jitgemm.runtime.memory import address
from jitgemm.runtime.system import NativeFunction, SystemKernel
from oracle import equal, exact_gemm, integers, run_python

linux = pytest.mark.skipif(sys.platform != "linux", reason="processors are asked for on Linux")
_LONG = 60.0
"""Seconds after which a wait has failed."""


def _compiled(name: str, params: str, body: Callable[..., None], returns: str = "void") -> Any:
    """A function of the runtime's vocabulary, callable from here without the interpreter lock."""
    function = NativeFunction(name, parameters(params), body, returns=returns)
    unit = compiler.Unit(f"test_{name}", PORTABLE, lambda: [function], SystemKernel)
    kinds = [ctypes.c_void_p if p.endswith("*") else ctypes.c_int64 for p in params.split()]
    result = ctypes.c_int64 if returns == "int" else None
    code = compiler.get(unit)
    return ctypes.CFUNCTYPE(result, *kinds)(code.addresses[name]), code


def _at(record: np.ndarray, slot: int = 0) -> int:
    return address(record.view(np.uint8)) + 8 * slot


class _Tickets:
    """Six tickets in two phases of three; each that is worked off is counted in ``worked``."""

    def __init__(self) -> None:
        self.worked, self.counters = record_array(8), record_array(COUNTERS.slots)
        worked = _at(self.worked)

        def body(k: Kernel, counters: Ptr, worked_at: Ptr) -> None:
            def ready(ticket: Int) -> Int:
                return k.select(ticket < 3, k.const(0), k.const(3))

            def work(ticket: Int) -> None:
                k.fetch_add(worked_at + ticket * 8, 1)

            drain(k, counters, k.const(6), ready, work)

        run, self._code = _compiled("tickets", "counters* worked*", body)
        self._report, self._more = _compiled("reports", "counter*", report)
        self.run = lambda: run(_at(self.counters), worked)

    def counter(self, name: str) -> int:
        return int(self.counters[COUNTERS.slot(name)])

    def set(self, name: str, value: int) -> None:
        self.counters[COUNTERS.slot(name)] = value

    def report(self) -> None:
        self._report(_at(self.counters, COUNTERS.slot("done")))


def test_tickets_are_worked_off_once_by_any_number_of_threads() -> None:
    for threads in (1, 2, 3, 8):
        tickets = _Tickets()
        running = [threading.Thread(target=tickets.run) for _ in range(threads)]
        for t in running:
            t.start()
        for t in running:
            t.join(_LONG)
        assert tickets.worked[:6].tolist() == [1] * 6
        assert (tickets.counter("cursor"), tickets.counter("done")) == (6, 6)


def test_a_thread_that_waits_holds_no_ticket_and_sleeps() -> None:
    """Others work off what it waits to begin, so nobody waits for what nobody has begun."""
    tickets = _Tickets()
    tickets.set("cursor", 3)  # another thread has begun the first phase and finished none of it
    waiting = threading.Thread(target=tickets.run, daemon=True)
    waiting.start()
    end = time.monotonic() + _LONG
    while not tickets.counter("sleepers"):
        assert time.monotonic() < end, "it never slept"
        time.sleep(0.001)
    assert tickets.counter("cursor") == 3, "it drew a ticket that may not start"
    for _ in range(2):
        tickets.report()
    time.sleep(0.01)
    assert waiting.is_alive()
    assert tickets.counter("cursor") == 3
    # Meanwhile somebody else works off the second phase as well.
    tickets.set("cursor", 6)
    tickets.report()
    waiting.join(_LONG)
    assert not waiting.is_alive(), "nobody woke it"
    assert not tickets.worked.any()
    assert tickets.counter("sleepers") == 0


def test_no_wait_spins_without_end(eager_threads: None) -> None:
    """Whatever pauses or gives its core away in a loop sleeps in the end."""
    a = np.ones((300, 300), np.float32)
    names = set()
    for text in (jitgemm.plan(a, a, threads=2).ir(), compiler.text(system_unit())):
        for function in text.split("define ")[1:]:
            body = function.split("\n}")[0]
            if "sse2.pause" in body or "@sched_yield" in body:
                names.add(body.split("@")[1].split("(")[0])
                sleeps = "@syscall" in body or "@usleep" in body
                assert ("@sched_yield" in body and sleeps) or "@jitgemm_wait(" in body
    assert names >= {"jitgemm_wait", "jitgemm_worker"}


@linux
def test_a_thread_leaves_a_processor_and_may_come_back() -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("one processor")

    def body(k: SystemKernel, threads: Int) -> None:
        here = k.processor()
        k.leave_processor(here, threads)
        k.ret(here * 65536 + k.processor())

    move, _code = _compiled("moves", "threads", body, returns="int")

    def from_to(threads: int) -> tuple[int, int]:
        here, there = divmod(move(threads), 65536)
        return here, there

    results: list[tuple[int, int]] = []

    def run() -> None:
        for _ in range(20):
            results.append(from_to(2))
            assert os.sched_getaffinity(0) == allowed
        # More threads than processors: some must share, and it stays.
        os.sched_setaffinity(0, {min(allowed)})
        results.append(from_to(2))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(_LONG)
    assert len(results) == 21
    assert all(here != there and {here, there} <= allowed for here, there in results[:20])
    assert results[20] == (min(allowed), min(allowed))
    assert os.sched_getaffinity(0) == allowed


@linux
@pytest.mark.parametrize("moves", [0, 1])
def test_workers_may_run_where_they_might_before(moves: int) -> None:
    """Whatever they did to get off the caller's core, or were told not to do."""
    run_python(
        """
import os
import numpy as np, jitgemm
before = set(os.listdir("/proc/self/task"))
allowed = os.sched_getaffinity(0)
a = np.ones((200, 300), np.float32); b = np.ones((300, 250), np.float32)
assert (jitgemm.matmul(a, b, threads=3) == 300).all()
workers = [int(t) for t in set(os.listdir("/proc/self/task")) - before]
assert len(workers) == 2
for core in sorted(allowed) * 20:
    os.sched_setaffinity(0, {core})  # this thread only
    assert (jitgemm.matmul(a, b, threads=3) == 300).all()
for worker in workers:
    assert os.sched_getaffinity(worker) == allowed
""",
        JITGEMM_PARALLEL_FLOPS="1",
        JITGEMM_SPIN_US="0",
        JITGEMM_MOVE_WORKERS=str(moves),
    )


def _work(rng: np.random.Generator) -> list[Callable[[int], None]]:
    """Products of every kind of sharing: phases, splits, stacks, lists."""
    x, y = integers(rng, (70, 900), np.float32), integers(rng, (900, 130), np.float32)
    deep = integers(rng, (5, 70_000), np.float32, 2)
    stack, other = integers(rng, (12, 9, 40), np.float32), integers(rng, (12, 40, 17), np.float32)
    xy, dd = exact_gemm(x, y), exact_gemm(deep, deep.T)
    ss = np.stack([exact_gemm(p, q) for p, q in zip(stack, other, strict=True)])

    def lists(threads: int) -> None:
        for got, want in zip(
            jitgemm.gemm_batched(list(stack), list(other), threads=threads), ss, strict=True
        ):
            equal(got, want)

    return [
        lambda threads: equal(jitgemm.matmul(x, y, threads=threads), xy),
        lambda threads: equal(jitgemm.gemm(x.T.copy().T, y, threads=threads), xy),
        lambda threads: equal(jitgemm.matmul(deep, deep.T, threads=threads), dd),
        lambda threads: equal(jitgemm.matmul(stack, other, threads=threads), ss),
        lists,
    ]


@pytest.mark.parametrize("callers", [1, 3])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_more_threads_than_cores_beside_threads_that_spin(
    threads: int, callers: int, rng: np.random.Generator, eager_threads: None
) -> None:
    work, failures = _work(rng), []
    stop, spin = np.zeros(8, np.int64), _spinner()
    neighbours = [threading.Thread(target=spin, args=(_at(stop),)) for _ in range(2)]

    def call() -> None:
        try:
            for _ in range(3):
                for product in work:
                    product(threads)
                time.sleep(0.002)
        except BaseException as e:
            failures.append(e)

    running = [threading.Thread(target=call) for _ in range(callers)]
    for t in [*neighbours, *running]:
        t.start()
    try:
        for t in running:
            t.join(_LONG)
            assert not t.is_alive()
    finally:
        stop[0] = 1
        for t in neighbours:
            t.join(_LONG)
    assert not failures


def _spinner() -> Any:
    """Spin on a word as a pool of OpenMP does, without giving way, until it is not 0."""

    def body(k: SystemKernel, word: Ptr) -> None:
        for _ in k.repeat_while(lambda: k.load_shared(word).equals(0)):
            k.pause()

    spin, code = _compiled("spins", "word*", body)
    spin.code = code
    return spin
