"""Narrow types by every route, and int8 products that leave as floats: microseconds per product.

    python benchmarks/narrow_routes.py [--package FOLDER]

Least of 25 calls.  ``--package`` measures another build, whose folder holds ``jitgemm``; what that
build does not know is left out.  To compare two builds, run them in turns.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import ml_dtypes
import numpy as np

_CALLS = 25
_TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "i8": np.int8}
_QUANTISED = ((1, 4096, 4096), (8, 768, 3072), (128, 768, 768), (512, 768, 3072))


def least(run: Callable[[], object]) -> float:
    """Microseconds of the fastest of some calls."""
    for _ in range(3):
        run()
    best = float("inf")
    for _ in range(_CALLS):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best * 1e6


def routes(jg: object) -> None:
    """Few rows by columns and by rows, deep sums, and one row times one column."""
    rng, gemm = np.random.default_rng(0), jg.gemm  # type: ignore[attr-defined]
    for name, dtype in _TYPES.items():

        def some(*shape: int, dtype: type = dtype) -> np.ndarray:
            return rng.integers(-3, 4, shape).astype(dtype)

        pairs = {
            "1 x 4096 x 4096, B transposed": (some(1, 4096), some(4096, 4096).T),
            "1 x 4096 x 4096": (some(1, 4096), some(4096, 4096)),
            "8 x 65536 x 8": (some(8, 65536), some(65536, 8)),
            "1 x 100000 x 1": (some(1, 100000), some(100000, 1)),
        }
        for shape, (a, b) in pairs.items():
            one, two = (
                least(lambda a=a, b=b, n=n: gemm(a, b, threads=n)) for n in (1, 2)
            )  # fmt: skip
            print(f"| {name} {shape} | {one:.0f} | {two:.0f} |")


def scaled(jg: object) -> None:
    """Products of 8-bit integers: int32, and float32 by scales per row and column."""
    rng = np.random.default_rng(0)
    for m, k, n in _QUANTISED:
        a = rng.integers(0, 256, (m, k)).astype(np.uint8)
        b = jg.prepack_rhs(rng.integers(-128, 128, (k, n)).astype(np.int8))  # type: ignore[attr-defined]
        rows, columns = rng.random((m, 1), np.float32), rng.random(n, np.float32)
        whole = rng.integers(0, 9, n).astype(np.int32)
        options = {"a_scale": rows, "b_scale": columns, "bias": columns}
        plain = jg.plan(a, b, bias=whole, threads=1)  # type: ignore[attr-defined]
        try:
            floats = jg.plan(a, b, threads=1, **options)  # type: ignore[attr-defined]
        except TypeError:
            return
        figures = least(lambda p=plain: p(a, b)), least(lambda p=floats: p(a, b))
        print(f"| {m} x {k} x {n} | {figures[0]:.0f} | {figures[1]:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", default="")
    options = parser.parse_args()
    if options.package:
        sys.path.insert(0, options.package)
    import jitgemm

    print("| us | 1 thread | 2 threads |\n|---|---|---|")
    routes(jitgemm)
    print("\n| us, u8 x i8, B prepacked, with bias | int32 | float32, scaled |\n|---|---|---|")
    scaled(jitgemm)


if __name__ == "__main__":
    main()
