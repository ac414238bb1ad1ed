"""Interleaved timing: contestants take turns, so a slow spell of the machine hits them all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import repeat
from statistics import median
from time import perf_counter, sleep

from jitgemm.planner.machine import usable_cpus

__all__ = ["busy", "ratio", "take_turns"]

# A turn's number of calls is extrapolated from a trial of at least this share of a turn.
_TRIAL = 0.25
# Load beyond the processors left over; ten seconds of two threads, just ended, count for 0.3.
_TOLERATED_LOAD = 0.5

# Threads of a BLAS keep spinning for some milliseconds after a product (OpenBLAS: 2**26 cycles) and
# would take a processor from the contestant that comes next.
_SETTLE = 0.03

Call = Callable[[], object]
Times = dict[str, list[float]]


def _per_call(call: Call, calls: int) -> float:
    start = perf_counter()
    for _ in repeat(None, calls):
        call()
    return (perf_counter() - start) / calls


def _calls_per_turn(call: Call, seconds: float) -> int:
    call()  # what the first call compiles or allocates is not what is measured
    calls = 1
    while True:
        each = _per_call(call, calls)
        if each * calls >= _TRIAL * seconds:
            return max(1, round(seconds / each))
        calls *= 2


def take_turns(
    contestants: Mapping[str, Call], rounds: int, seconds: float, advance: Callable[[], None]
) -> Times:
    """Time each contestant once per round, in an order reversed every other round.

    Args:
        contestants: by name, what to call.
        rounds: turns of each contestant.
        seconds: about how long a turn lasts; a turn is at least one call.
        advance: called after each turn.

    Returns:
        By name, the seconds per call of each round.
    """
    calls = {name: _calls_per_turn(call, seconds) for name, call in contestants.items()}
    times: Times = {name: [] for name in contestants}
    names = list(contestants)
    for number in range(rounds):
        for name in reversed(names) if number % 2 else names:
            sleep(_SETTLE)
            times[name].append(_per_call(contestants[name], calls[name]))
            advance()
    return times


def busy(threads: int) -> str:
    """A warning if other processes seem to need the processors ``threads`` threads run on, or "".

    Libraries whose threads wait for each other lose far more than their share on a busy machine, so
    such times flatter whoever waits least.
    """
    if not hasattr(os, "getloadavg"):
        return ""
    load, processors = os.getloadavg()[0], usable_cpus()
    if load <= max(0, processors - threads) + _TOLERATED_LOAD:
        return ""
    return (
        f" Note: the load average was {load:.1f} on {processors} processor(s) before {threads} "
        "thread(s) started here; other work distorts these times."
    )


def ratio(slow: list[float], fast: list[float]) -> float:
    """How many times faster ``fast`` is: the median of the rounds' ratios."""
    return median(a / b for a, b in zip(slow, fast, strict=True))
