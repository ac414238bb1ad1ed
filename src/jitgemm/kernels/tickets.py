"""How threads share a job: tickets drawn from one cursor, in phases that wait for each other.

A ticket belongs to a phase; it may start once every ticket of the phases before it is finished,
which a second counter tells.  So a phase needs no barrier among a fixed set of threads: whoever is
there does the work, a late thread finds none left, and one thread alone never waits.
"""

from __future__ import annotations

from collections.abc import Callable

from jitgemm.kernels.job import COUNTERS
from jitgemm.lang.core import Int, Kernel
from jitgemm.lang.record import View

__all__ = ["drain", "span"]


def span(k: Kernel, index: Int, length: Int, total: Int) -> tuple[Int, Int]:
    """Start and end of part ``index`` of ``total``, in parts of ``length``."""
    start = index * length
    return start, k.min(start + length, total)


def drain(
    k: Kernel, job: View, total: Int, ready: Callable[[Int], Int], work: Callable[[Int], None]
) -> None:
    """Draw tickets until there are no more.

    Args:
        k: the backend.
        job: the job record.
        total: number of tickets.
        ready: how many tickets must be finished before a given one may start.
        work: does a ticket.
    """
    counters = COUNTERS.view(k, job.pointer("counters"))
    ticket = k.var(k.fetch_add(counters.at("cursor"), 1))
    for _ in k.repeat_while(lambda: ticket.value < total):
        t = ticket.value
        wanted = ready(t)
        for _ in k.repeat_while(lambda: k.load_shared(counters.at("done")) < wanted):
            k.pause()
        work(t)
        k.fetch_add(counters.at("done"), 1)
        ticket.value = k.fetch_add(counters.at("cursor"), 1)
