"""The thread pool's generated half: publishing a job, and the loop idle workers sit in.

One job at a time.  ``run`` publishes (function, record, slots), bumps the sequence number, works
itself, takes back the slots nobody claimed and waits for those who did.  A caller who finds the
pool busy works alone; results do not depend on it.  Late workers find no slot and go back to
waiting, so a thread the system schedules late never holds a call up.
"""

from __future__ import annotations

from jitgemm.lang.core import Function, Int, Ptr, parameters
from jitgemm.lang.record import Record
from jitgemm.runtime.system import NativeFunction, SystemKernel

__all__ = ["POOL", "run", "worker"]

_PAD = [f"_p{i}" for i in range(21)]

# Each group of words that different threads write has a cache line of its own.
POOL = Record(
    "pool",
    "sequence", *_PAD[0:7],  # bumped once per job; sleepers wait on its low half
    "sleepers", *_PAD[7:14],
    "busy", "function", "job", "threads", "stop", "spins", *_PAD[14:16],
    "slots", *_PAD[16:21], "_q0", "_q1",  # claims left; negative once overdrawn
    "finished",
)  # fmt: skip


def run(arch: str) -> Function:
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
                k.exchange(pool.at("finished"), 0)
                k.exchange(pool.at("slots"), helpers)
                k.fetch_add(pool.at("sequence"), 1)
                for _ in k.when(k.load_shared(pool.at("sleepers")) > 0):
                    k.wake(arch, pool.at("sequence"), helpers)
                k.invoke(function, "void", job, 0)
                left = k.exchange(pool.at("slots"), 0)
                claimed = helpers - k.select(left > 0, left, k.const(0))
                for _ in k.repeat_while(lambda: k.load_shared(pool.at("finished")) < claimed):
                    k.pause()
                k.exchange(pool.at("busy"), 0)

    params = parameters("pool* function* job* threads")
    return NativeFunction("jitgemm_run", params, body)


def worker(arch: str) -> Function:
    """``worker(pool)``: serve jobs until told to stop."""

    def body(k: SystemKernel, pool_at: Ptr) -> None:
        pool = POOL.view(k, pool_at)
        seen = k.var(k.const(0))
        for _ in k.repeat_while(lambda: k.load_shared(pool.at("stop")).equals(0)):
            idle = k.var(k.const(0))
            spins = pool.int("spins")
            for _ in k.repeat_while(
                lambda: k.load_shared(pool.at("sequence")).equals(seen.value) & (idle.value < spins)
            ):
                idle.value = idle.value + 1
                k.pause()
            for _ in k.when(k.load_shared(pool.at("sequence")).equals(seen.value)):
                k.fetch_add(pool.at("sleepers"), 1)
                k.sleep_while(arch, pool.at("sequence"), seen.value)
                k.fetch_add(pool.at("sleepers"), -1)
            current = k.load_shared(pool.at("sequence"))
            for _ in k.when(current.differs(seen.value)):
                seen.value = current
                slot = k.fetch_add(pool.at("slots"), -1)
                for _ in k.when(slot > 0):
                    # The fields were written before the slots: a claim makes them visible.
                    k.invoke(pool.pointer("function"), "void", pool.pointer("job"), slot)
                    k.fetch_add(pool.at("finished"), 1)

    return NativeFunction("jitgemm_worker", parameters("pool*"), body)
