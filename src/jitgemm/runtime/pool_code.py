"""The thread pool's generated half: publishing a job, and the loop idle workers sit in.

One job at a time.  ``run`` publishes (function, record, slots), bumps the sequence number, works
itself, takes back the slots nobody claimed and waits for those who did.  A caller who finds the
pool busy works alone; results do not depend on it.  Late workers find no slot and go back to
waiting, so a thread the system schedules late never holds a call up.

A worker that wakes up on the caller's processor would take turns with it, while another may be
free: it moves before it claims a slot, so that nobody waits for the move.
"""

from __future__ import annotations

from jitgemm.kernels.tickets import PAUSES, report, wait
from jitgemm.lang.core import Cond, Function, Int, Ptr, parameters
from jitgemm.lang.record import Record, View
from jitgemm.runtime.system import NativeFunction, SystemKernel

__all__ = ["POOL", "run", "worker"]

_PAD = [f"_p{i}" for i in range(19)]
# What an idle worker takes an offer of its core for, in pauses (10 to 60 ns and 0.3 to 1 us).
_PAUSES_PER_YIELD = 16

# Each group of words that different threads write has a cache line of its own.
POOL = Record(
    "pool",
    "sequence", *_PAD[0:7],  # bumped once per job; sleepers wait on its low half
    "sleepers", *_PAD[7:14],
    "busy", "function", "job", "threads", "stop", "spins",
    "processor",  # the caller's
    "moves",  # 1: workers leave it
    "slots", *_PAD[14:19], "_q0", "_q1",  # claims left; negative once overdrawn
    "finished", "waiting",  # claims worked off, and callers that sleep until there are more
)  # fmt: skip


def run() -> Function:
    """``run(pool, function, job, threads)``: do a job with up to ``threads`` threads."""

    def body(k: SystemKernel, pool_at: Ptr, function: Ptr, job: Ptr, threads: Int) -> None:
        for alone in k.branches(k.is_null(pool_at) | (threads <= 1)):
            if alone:
                k.invoke(function, "void", job, 0)
                continue
            pool = POOL.view(k, pool_at)
            for taken in k.branches(k.exchange(pool.at("busy"), 1).differs(0)):
                if taken:
                    # Another caller's job is under way (and stays marked as busy).
                    k.invoke(function, "void", job, 0)
                    continue
                helpers = threads - 1
                pool.set("function", function)
                pool.set("job", job)
                pool.set("threads", threads)
                pool.set("processor", k.processor())
                k.exchange(pool.at("finished"), 0)
                k.exchange(pool.at("slots"), helpers)
                k.fetch_add(pool.at("sequence"), 1)
                for _ in k.when(k.load_shared(pool.at("sleepers")) > 0):
                    k.wake(pool.at("sequence"), helpers)
                    # One of them may be on this core, which it has to run on before it can move.
                    k.yield_core()
                k.invoke(function, "void", job, 0)
                left = k.exchange(pool.at("slots"), 0)
                claimed = helpers - k.select(left > 0, left, k.const(0))
                for _ in k.when(k.load_shared(pool.at("finished")) < claimed):
                    k.call(wait(), pool.at("finished"), claimed)
                k.exchange(pool.at("busy"), 0)

    params = parameters("pool* function* job* threads")
    return NativeFunction("jitgemm_run", params, body)


def _idle(k: SystemKernel, pool: View, seen: Int) -> None:
    """Wait for another job than ``seen``: a while awake, then asleep until woken."""
    spent, spins = k.var(k.const(0)), pool.int("spins")

    def none_yet() -> Cond:
        return k.load_shared(pool.at("sequence")).equals(seen)

    for _ in k.repeat_while(lambda: none_yet() & (spent.value < spins)):
        for near in k.branches(spent.value < PAUSES):
            if near:
                spent.value = spent.value + 1
                k.pause()
            else:
                spent.value = spent.value + _PAUSES_PER_YIELD
                k.yield_core()
    for _ in k.when(none_yet()):
        k.fetch_add(pool.at("sleepers"), 1)
        k.sleep_while(pool.at("sequence"), seen)
        k.fetch_add(pool.at("sleepers"), -1)


def worker() -> Function:
    """``worker(pool)``: serve jobs until told to stop."""

    def body(k: SystemKernel, pool_at: Ptr) -> None:
        pool = POOL.view(k, pool_at)
        seen = k.var(k.const(0))
        for _ in k.repeat_while(lambda: k.load_shared(pool.at("stop")).equals(0)):
            _idle(k, pool, seen.value)
            current = k.load_shared(pool.at("sequence"))
            for _ in k.when(current.differs(seen.value)):
                seen.value = current
                for _ in k.when(pool.int("moves").equals(1)):
                    here = k.processor()
                    for _ in k.when((here >= 0) & here.equals(pool.int("processor"))):
                        k.leave_processor(here, pool.int("threads"))
                slot = k.fetch_add(pool.at("slots"), -1)
                for _ in k.when(slot > 0):
                    # The fields were written before the slots: a claim makes them visible.
                    k.invoke(pool.pointer("function"), "void", pool.pointer("job"), slot)
                    report(k, pool.at("finished"))

    return NativeFunction("jitgemm_worker", parameters("pool*"), body)
