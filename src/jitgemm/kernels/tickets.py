"""How threads share a job: tickets drawn from one cursor, in phases that wait for each other.

A ticket belongs to a phase; it may start once every ticket of the phases before it is finished,
which a second counter tells.  So a phase needs no barrier among a fixed set of threads: whoever is
there does the work, a late thread finds none left, and one thread alone never waits.

A thread waits only for tickets that others have begun.  One of them may sit on the waiting thread's
own core, and run on only when that is free: so nobody keeps a core for longer than a few
microseconds to wait.
"""

from __future__ import annotations

from collections.abc import Callable

from jitgemm.kernels.job import COUNTERS
from jitgemm.lang.core import Function, Int, Kernel, Ptr, parameters

__all__ = ["PAUSES", "drain", "report", "span", "wait"]

PAUSES = 64
"""Pauses (10 to 60 ns each, by core) before a waiting thread offers its core to others."""

_YIELDS = 128
"""Offers (0.3 to 1 us each) before it sleeps: then its core is idle, and takes the thread that is
waited for if that is stuck behind others on another."""

_ALL = 1 << 30


def wait() -> Function:
    """``wait(counter, least)``: return once other threads have counted up to ``least``.

    Behind the counter is the number of those who sleep until it grows.
    """

    def body(k: Kernel, counter: Ptr, least: Int) -> None:
        rounds, sleepers = k.var(k.const(0)), counter + 8
        for _ in k.repeat_while(lambda: k.load_shared(counter) < least):
            rounds.value = rounds.value + 1
            for near in k.branches(rounds.value <= PAUSES):
                if near:
                    k.pause()
                    continue
                for awake in k.branches(rounds.value <= PAUSES + _YIELDS):
                    if awake:
                        k.yield_core()
                        continue
                    k.fetch_add(sleepers, 1)
                    # Read after that: whoever counts from here on sees a sleeper.
                    seen = k.load_shared(counter)
                    for _ in k.when(seen < least):
                        k.sleep_while(counter, seen)
                    k.fetch_add(sleepers, -1)

    return Function("jitgemm_wait", parameters("counter* least"), body)


def report(k: Kernel, counter: Ptr) -> None:
    """Count one more, and wake those who sleep until then."""
    k.fetch_add(counter, 1)
    for _ in k.when(k.load_shared(counter + 8) > 0):
        k.wake(counter, _ALL)


def span(k: Kernel, index: Int, length: Int, total: Int) -> tuple[Int, Int]:
    """Start and end of part ``index`` of ``total``, in parts of ``length``."""
    start = index * length
    return start, k.min(start + length, total)


def drain(
    k: Kernel,
    shared: Ptr,
    total: Int,
    ready: Callable[[Int], Int] | None,
    work: Callable[[Int], None],
) -> None:
    """Draw tickets until there are no more.

    A ticket is drawn only once it may start: a thread that waits holds none, so the others do not
    depend on when it goes on.

    Args:
        k: the backend.
        shared: the counters that all threads draw from (:data:`~jitgemm.kernels.job.COUNTERS`).
        total: number of tickets.
        ready: how many tickets must be finished before a given one may start; ``None``: none.
        work: does a ticket.
    """
    counters = COUNTERS.view(k, shared)
    cursor, done = counters.at("cursor"), counters.at("done")
    next_one = k.var(k.load_shared(cursor))
    for _ in k.repeat_while(lambda: next_one.value < total):
        ticket = next_one.value
        if ready is not None:
            wanted = ready(ticket)
            for _ in k.when(k.load_shared(done) < wanted):
                k.call(wait(), done, wanted)
        for _ in k.when(k.compare_exchange(cursor, ticket, ticket + 1)):
            work(ticket)
            report(k, done)
        next_one.value = k.load_shared(cursor)
