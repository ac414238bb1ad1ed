"""Special routes and layouts on this machine: what they cost beside the plain product or NumPy.

python benchmarks/routes.py

Ratios are medians over interleaved turns in this process; NumPy's threads are limited to as many
as jitgemm's by threadpoolctl.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import threadpoolctl

import jitgemm

Call = Callable[[], object]
ROUNDS = 15


def rounds(calls: dict[str, Call], count: int = ROUNDS) -> dict[str, list[float]]:
    """Seconds of every call in each of several interleaved rounds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    repeats = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, int(3e-4 / max(1e-9, time.perf_counter() - start)))
    for _ in range(count):
        for name, call in calls.items():
            # NumPy's threads spin for a while after a product.
            time.sleep(0.003)
            call()
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - start) / repeats[name])
    return times


def turns(calls: dict[str, Call], count: int = ROUNDS) -> dict[str, float]:
    """Median seconds of every call, in interleaved rounds."""
    return {name: statistics.median(t) for name, t in rounds(calls, count).items()}


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    rng = np.random.default_rng(sum(shape))
    return (rng.random(shape) - 0.5).astype(dtype)


def bandwidth() -> None:
    """How fast one thread reads memory: a dot product of arrays beyond every cache."""
    print("\n### Reading memory, one thread\n")
    x = numbers(1 << 26)
    row, col = x[None, : 1 << 25], x[1 << 25 :, None]
    plan = jitgemm.plan(row, col, out=np.empty((1, 1), np.float32), threads=1)
    out = np.empty((1, 1), np.float32)
    t = turns(
        {"sum": x.sum, "dot": lambda: plan(row, col, out), "np.dot": lambda: np.dot(row, col)}
    )
    for name, seconds in t.items():
        print(f"* {name} of {x.nbytes >> 20} MiB: {x.nbytes / seconds / 1e9:.1f} GB/s")


def vectors(dtype: Any) -> None:
    print(f"\n### Matrix times vector, {np.dtype(dtype).name}, one thread, GB/s\n")
    print("| n x n | A @ x | NumPy | x @ A | NumPy | x @ A.T | NumPy | A packed @ x |")
    print("|---" * 8 + "|")
    for n in (64, 256, 1000, 1024, 2048, 4000, 4096):
        a, x, y = numbers(n, n, dtype=dtype), numbers(n, 1, dtype=dtype), numbers(1, n, dtype=dtype)
        col, row = np.empty((n, 1), dtype), np.empty((1, n), dtype)
        w = jitgemm.prepack_lhs(a)
        plans = [
            jitgemm.plan(*z, out=o, threads=1)
            for z, o in (((a, x), col), ((y, a), row), ((y, a.T), row), ((w, x), col))
        ]
        t = turns(
            {
                "1": lambda: plans[0](a, x, col),
                "2": lambda: np.matmul(a, x, out=col),
                "3": lambda: plans[1](y, a, row),
                "4": lambda: np.matmul(y, a, out=row),
                "5": lambda: plans[2](y, a.T, row),
                "6": lambda: np.matmul(y, a.T, out=row),
                "7": lambda: plans[3](w, x, col),
            }
        )
        print(f"| {n} | " + " | ".join(f"{a.nbytes / s / 1e9:.1f}" for s in t.values()) + " |")


def dots() -> None:
    print("\n### Dot products, float32, one thread, microseconds\n")
    print("| elements | jitgemm | strict | np.dot |\n|---|---|---|---|")
    for k in (10, 100, 1000, 10_000, 100_000, 1_000_000):
        a, b, out = numbers(1, k), numbers(k, 1), np.empty((1, 1), np.float32)
        plain = jitgemm.plan(a, b, out=out, threads=1)
        strict = jitgemm.plan(a, b, out=out, threads=1, reproducible="strict")
        u, v = a[0], b[:, 0]
        t = turns(
            {
                "plain": lambda: plain(a, b, out),
                "strict": lambda: strict(a, b, out),
                "np.dot": lambda: np.dot(u, v),
            }
        )
        print(f"| {k} | " + " | ".join(f"{1e6 * s:.2f}" for s in t.values()) + " |")


def tall() -> None:
    print("\n### X.T @ X, a million rows, float32, milliseconds\n")
    print("| columns | 1 thread | NumPy | 2 threads | NumPy |\n|---|---|---|---|---|")
    for n in (4, 8, 16, 64, 128):
        x, out = numbers(1_000_000, n), np.empty((n, n), np.float32)
        cells = []
        for threads in (1, 2):
            plan = jitgemm.plan(x.T, x, out=out, threads=threads)
            with threadpoolctl.threadpool_limits(threads):
                t = turns(
                    {
                        "jitgemm": lambda: plan(x.T, x, out),
                        "NumPy": lambda: np.matmul(x.T, x, out=out),
                    },
                    count=7,
                )
            cells += [f"{1e3 * s:.1f}" for s in t.values()]
        print(f"| {n} | " + " | ".join(cells) + " |")


def stacks() -> None:
    print("\n### Stacks of products, float32, microseconds\n")
    print(
        "| product | jitgemm, 1 thread | 2 threads | NumPy | NumPy / best |\n|---|---|---|---|---|"
    )
    shapes = (
        ((10_000, 9, 9), (9, 9)),
        ((10_000, 9, 9), (10_000, 9, 9)),
        ((64, 16, 1, 128), (16, 128, 128)),
        ((100, 4, 4), (100, 4, 4)),
        ((4, 8, 8), (8, 8)),
        ((64, 64, 64), (64, 64, 64)),
        ((16, 256, 256), (16, 256, 256)),
    )
    for left, right in shapes:
        a, b = numbers(*left), numbers(*right)
        out = np.matmul(a, b)
        t = turns(
            {
                "1": lambda: jitgemm.matmul(a, b, out=out, threads=1),
                "2": lambda: jitgemm.matmul(a, b, out=out, threads=2),
                "NumPy": lambda: np.matmul(a, b, out=out),
            }
        )
        cells = " | ".join(f"{1e6 * s:.1f}" for s in t.values())
        print(f"| {left} @ {right} | {cells} | {t['NumPy'] / min(t['1'], t['2']):.1f} |")


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "reversed rows": lambda x: x[::-1].copy()[::-1],
    "reversed columns": lambda x: x[:, ::-1].copy()[:, ::-1],
    "every second row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "every second column": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "transposed": np.asfortranarray,
    "broadcast row": lambda x: np.broadcast_to(x[:1], x.shape),
    "broadcast column": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "foreign byte order": lambda x: x.astype(x.dtype.newbyteorder("S")),
}


def layouts() -> None:
    print("\n### Layouts: time over that of dense operands, float32, one thread\n")
    shapes = ((128, 768, 768), (512, 512, 512), (1000, 1000, 1000))
    print("| operand | layout | " + " | ".join("x".join(map(str, s)) for s in shapes) + " |")
    print("|---" * (2 + len(shapes)) + "|")
    for which in ("A", "B", "out"):
        for name, layout in LAYOUTS.items():
            if which == "out" and name.startswith("broadcast"):
                continue
            cells = []
            for m, k, n in shapes:
                a, b, out = numbers(m, k), numbers(k, n), np.empty((m, n), np.float32)
                x, y, z = (
                    layout(operand) if name_of == which else operand
                    for name_of, operand in (("A", a), ("B", b), ("out", out))
                )
                dense = jitgemm.plan(a, b, out=out, threads=1)
                plan = jitgemm.plan(x, y, out=z, threads=1)
                t = turns({"dense": lambda: dense(a, b, out), "other": lambda: plan(x, y, z)}, 9)
                cells.append(f"{t['other'] / t['dense']:.2f}")
            print(f"| {which} | {name} | " + " | ".join(cells) + " |")


def epilogues() -> None:
    print("\n### Epilogues: time over the plain product, float32, one thread\n")
    print("| epilogue | 512x768x3072 packed | 512x768x3072 | 2048x64x2048 |\n|---|---|---|---|")
    math = jitgemm.math
    kinds: dict[str, dict[str, Any]] = {
        "bias per column": {"bias": 0},
        "bias per row": {"bias": 1},
        "bias of every element": {"bias": 2},
        **{
            name: {"activation": name}
            for name in ("relu", "hardswish", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh")
        },
        "leaky_relu": {"activation": jitgemm.leaky_relu(0.1)},
        "f: v / (1 + |v|)": {"epilogue": lambda v, row, col: v / (1 + abs(v))},
        "f: causal mask": {"epilogue": lambda v, row, col: math.where(col > row, -1e9, v)},
        "f: log(1 + exp(v))": {"epilogue": lambda v, row, col: math.log(1 + math.exp(v))},
    }
    for name, options in kinds.items():
        cells = []
        for (m, k, n), packed in (
            ((512, 768, 3072), True),
            ((512, 768, 3072), False),
            ((2048, 64, 2048), False),
        ):
            a, b, out = numbers(m, k), numbers(k, n), np.empty((m, n), np.float32)
            given = dict(options)
            if "bias" in given:
                given["bias"] = (numbers(n), numbers(m, 1), numbers(m, n))[given["bias"]]
            w = jitgemm.prepack_rhs(b) if packed else b
            plain = jitgemm.plan(a, w, out=out, threads=1)
            fused = jitgemm.plan(a, w, out=out, threads=1, **given)
            t = turns({"plain": lambda: plain(a, w, out), "fused": lambda: fused(a, w, out)}, 15)
            cells.append(f"{t['fused'] / t['plain']:.3f}")
        print(f"| {name} | " + " | ".join(cells) + " |")


def main() -> None:
    bandwidth()
    with threadpoolctl.threadpool_limits(1):
        vectors(np.float32)
        vectors(np.float64)
        dots()
    tall()
    stacks()
    with threadpoolctl.threadpool_limits(1):
        layouts()
        epilogues()


if __name__ == "__main__":
    main()
