"""Depth blocks of 256 and 512: speed, and the error of a long sum.

python benchmarks/depth_block.py
"""

from __future__ import annotations

import dataclasses

import numpy as np
from direct import Setting, gflops, medians, runner

from jitgemm.isa import exact
from jitgemm.isa.types import F32, F64


def error(block: int, terms: int = 1_000_000) -> float:
    """Relative error of a float32 sum of 0.1s in this order."""
    x = np.float32(0.1)
    full = np.zeros(1, np.float32)
    for _ in range(block):
        full = exact.fma(np.full(1, x), np.ones(1, np.float32), full)
    total = np.float32(0)
    for _ in range(terms // block):
        total += full[0]
    rest = np.float32(0)
    for _ in range(terms % block):
        rest += x
    return abs(float(total + rest) / (terms * float(x)) - 1)


def main() -> None:
    print("| product | 256 GFLOP/s | 512 GFLOP/s | 512 over 256 |\n|---|---|---|---|")
    for element in (F32, F64):
        for n in (512, 1024, 2048):
            settings = {
                block: Setting(
                    dataclasses.replace(element, depth_block=block), (n, n, n), prepacked=True
                )
                for block in (256, 512)
            }
            times = medians({str(b): runner(s) for b, s in settings.items()})
            speeds = [gflops(s, times[str(b)]) for b, s in settings.items()]
            print(f"| {element} {n} | {speeds[0]:.1f} | {speeds[1]:.1f} "
                  f"| {speeds[1] / speeds[0]:.3f} |", flush=True)  # fmt: skip
    for block in (256, 512):
        print(f"relative error of a million float32 0.1s, block {block}: {error(block):.1e}")


if __name__ == "__main__":
    main()
