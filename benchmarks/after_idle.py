"""What a server sees: products on several threads after a pause, alone or beside busy neighbours.

python benchmarks/after_idle.py [--threads 2] [--rounds 3]

A 224 x 2371 @ 2371 x 623 product (float32, A transposed): a pause, four products, thirty times.
Each side runs in a process of its own, by turns; figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

_SIDES = ("jitgemm", "numpy")
_PAUSES = (0.0, 0.01, 0.1)
_TURNS, _CALLS = 30, 4
_BURN = "while True: pass"
_TUNED_DOWN = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")

Figures = dict[str, float]


def product(side: str, threads: int) -> Callable[[], object]:
    """The product as one side computes it."""
    rng = np.random.default_rng(0)
    a = rng.random((2371, 224), np.float32).T
    b, out = rng.random((2371, 623), np.float32), np.empty((224, 623), np.float32)
    if side == "jitgemm":
        import jitgemm

        return lambda: jitgemm.matmul(a, b, out, threads=threads)
    from threadpoolctl import threadpool_limits

    threadpool_limits(threads)
    return lambda: np.matmul(a, b, out=out)


def measure(side: str, threads: int, pause: float) -> Figures:
    """Milliseconds of the call after a pause and of those that follow it at once."""
    run = product(side, threads)
    run()
    first, others = [], []
    for _ in range(_TURNS):
        time.sleep(pause)
        for call in range(_CALLS):
            start = time.perf_counter()
            run()
            (others if call else first).append((time.perf_counter() - start) * 1e3)
    return {
        "first": statistics.median(first), "first 90 %": float(np.percentile(first, 90)),
        "others": statistics.median(others), "others 90 %": float(np.percentile(others, 90)),
    }  # fmt: skip


@contextmanager
def neighbour(*, busy: bool) -> Iterator[None]:
    """Keep one core busy, or not."""
    other = subprocess.Popen([sys.executable, "-c", _BURN]) if busy else None
    try:
        yield
    finally:
        if other is not None:
            other.kill()
            other.wait()


def in_process(side: str, threads: int, pause: float) -> Figures:
    """The figures of one side from a process of its own."""
    command = [sys.executable, __file__, "--side", side, "--threads", str(threads)]
    environment = {k: v for k, v in os.environ.items() if k not in _TUNED_DOWN}
    done = subprocess.run(
        [*command, "--pause", str(pause)], env=environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def table(threads: int, rounds: int) -> None:
    """Print every case."""
    names = ("first", "first 90 %", "others", "others 90 %")
    print(f"{threads} threads, milliseconds\n")
    print("| neighbours | pause | side | " + " | ".join(names) + " |")
    print("|---" * (3 + len(names)) + "|")
    for busy in (False, True):
        with neighbour(busy=busy):
            for pause in _PAUSES:
                found: dict[str, list[Figures]] = {side: [] for side in _SIDES}
                for _ in range(rounds):
                    for side in _SIDES:
                        found[side].append(in_process(side, threads, pause))
                for side, runs in found.items():
                    cells = [f"{statistics.median(x[name] for x in runs):.2f}" for name in names]
                    where = "one core busy" if busy else "quiet"
                    row = (where, f"{pause * 1e3:g} ms", side, *cells)
                    print("| " + " | ".join(row) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=_SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--pause", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(measure(args.side, args.threads, args.pause)))
    else:
        table(args.threads, args.rounds)


if __name__ == "__main__":
    main()
