"""Integers and small types beside NumPy, which has no BLAS for them, and what requantising costs.

python benchmarks/integers.py

Medians over interleaved turns in this process, ratios medians of the ratios within a round.
NumPy multiplies these types with one thread, whatever it is told.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from routes import rounds

import jitgemm

Call = Callable[[], object]
FLOORS = {"int64": 15, "int32": 30, "int8": 100}
QUANTISED = ((8, 768, 3072), (128, 768, 768), (512, 768, 3072), (512, 256, 512))


def random(dtype: Any, *shape: int) -> Any:
    """Numbers of the whole range of a type, or between -0.5 and 0.5."""
    rng, dtype = np.random.default_rng(sum(shape)), np.dtype(dtype)
    if dtype.kind == "f":
        return (rng.random(shape) - 0.5).astype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def ratio(over: list[float], under: list[float]) -> float:
    """The median of the ratios within a round."""
    return median(x / y for x, y in zip(over, under, strict=True))


def beside_numpy() -> None:
    print("\n### matmul of integers, 512x512x512\n")
    print("Of booleans NumPy looks at no more products than one that is true.\n")
    print(
        "| type | NumPy | jitgemm, 1 thread | NumPy / jitgemm | 2 threads | NumPy / jitgemm "
        "| floor |"
    )
    print("|---" * 7 + "|")
    for name in ("int8", "uint8", "int16", "int32", "int64", "bool"):
        a, b = random(name, 512, 512), random(name, 512, 512)
        out = np.empty((512, 512), name)
        calls: dict[str, Call] = {
            f"{t}": partial(jitgemm.matmul, a, b, out=out, threads=t) for t in (1, 2)
        }
        times = rounds({**calls, "NumPy": partial(np.matmul, a, b, out=out)}, 5)
        cells = [f"{1e3 * median(times['NumPy']):.1f} ms"]
        for t in calls:
            cells.append(f"{1e3 * median(times[t]):.2f} ms")
            cells.append(f"{ratio(times['NumPy'], times[t]):.0f}x")
        floor = f"{FLOORS[name]}x" if name in FLOORS else ""
        print(f"| {name} | " + " | ".join([*cells, floor]) + " |")


def requantised() -> None:
    print("\n### Requantising to 8 bits: time over the plain int32 product, B prepacked\n")
    print("uint8 @ int8 to int8, one thread; at most 1.05.\n")
    print("| m x k x n | plain | per tensor | over plain | per column | over plain |")
    print("|---" * 6 + "|")
    for m, k, n in QUANTISED:
        a, w = random("uint8", m, k), jitgemm.prepack_rhs(random("int8", k, n))
        sums, narrow = np.empty((m, n), np.int32), np.empty((m, n), np.int8)
        plain = jitgemm.plan(a, w, out=sums, threads=1)
        calls: dict[str, Call] = {"plain": partial(plain, a, w, sums)}
        for name, scale in (("tensor", 1e-4), ("column", np.linspace(1e-4, 2e-4, n))):
            kind = jitgemm.Requantize(scale=scale, zero_point=3, dtype=np.int8)
            plan = jitgemm.plan(a, w, out=narrow, threads=1, requantize=kind)
            calls[name] = partial(plan, a, w, narrow)
        times = rounds(calls)
        cells = [f"{1e6 * median(times['plain']):.1f} us"]
        for name in ("tensor", "column"):
            cells.append(f"{1e6 * median(times[name]):.1f} us")
            cells.append(f"{ratio(times[name], times['plain']):.3f}")
        print(f"| {m}x{k}x{n} | " + " | ".join(cells) + " |")


def small() -> None:
    print("\n### Small products from Python, n x n, one thread, microseconds\n")
    types, sizes = ("int8", "int32", "float16"), (4, 8, 16, 32)
    print("| n |" + "".join(f" {t}: jitgemm.matmul | np.matmul |" for t in types))
    print("|---" * (1 + 2 * len(types)) + "|")
    with jitgemm.threads(1):
        for n in sizes:
            cells = []
            for name in types:
                a, b = random(name, n, n), random(name, n, n)
                times = rounds(
                    {
                        "jitgemm": partial(jitgemm.matmul, a, b),
                        "NumPy": partial(np.matmul, a, b),
                    }
                )
                cells += [f"{1e6 * median(t):.2f}" for t in times.values()]
            print(f"| {n} | " + " | ".join(cells) + " |")


def main() -> None:
    beside_numpy()
    requantised()
    small()


if __name__ == "__main__":
    main()
