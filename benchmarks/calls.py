"""What a call costs besides its work: small operands, so that little else is left.

python benchmarks/calls.py [--rounds 9] [--only TEXT]

Nanoseconds per call, one thread, the lowest of the rounds, beside NumPy where it has the same call.
"""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np

import jitgemm as jg
from jitgemm.cli import numpy_side

Call = Callable[[], Any]
_LISTED = 20
"""Products of a list."""


def cases() -> dict[str, tuple[Call, Call | None, int]]:
    """By name: the call, NumPy's, and how many products it is."""
    rng = np.random.default_rng(0)

    def some(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    a, b, c, out = some(8, 8), some(8, 8), some(8, 8), np.empty((8, 8), np.float32)
    x, y, bias, stack = some(64), some(64), some(8), some(4, 8, 8)
    w, work, i8 = jg.prepack_rhs(b), jg.Workspace(1 << 20), (a * 3).astype(np.int8)
    rule, planned = jg.Requantize(0.5), jg.plan(a, w, out=out)
    full = {"bias": bias, "activation": "relu", "out": out}
    many, outs = [a] * _LISTED, [np.empty((8, 8), np.float32) for _ in range(_LISTED)]
    return {
        "matmul(a, b)": (lambda: jg.matmul(a, b), lambda: np.matmul(a, b), 1),
        "matmul(a, b, out)": (lambda: jg.matmul(a, b, out), lambda: np.matmul(a, b, out=out), 1),
        "matmul(a.T, b, out)": (
            lambda at=a.T: jg.matmul(at, b, out), lambda at=a.T: np.matmul(at, b, out=out), 1,
        ),
        "matmul(a, b.T)": (lambda bt=b.T: jg.matmul(a, bt), lambda bt=b.T: np.matmul(a, bt), 1),
        "matmul of vectors of 64": (lambda: jg.matmul(x, y), lambda: np.matmul(x, y), 1),
        "matmul of (4, 8, 8)": (lambda: jg.matmul(stack, stack), lambda: stack @ stack, 4),
        "matmul of int8": (lambda: jg.matmul(i8, i8), lambda: np.matmul(i8, i8), 1),
        "matmul(a, packed)": (lambda: jg.matmul(a, w), None, 1),
        "gemm(a, b)": (lambda: jg.gemm(a, b), None, 1),
        "gemm, bias, activation, out": (lambda: jg.gemm(a, b, **full), None, 1),
        "the same, packed": (lambda: jg.gemm(a, w, **full), None, 1),
        "gemm, alpha, beta, c": (lambda: jg.gemm(a, b, alpha=0.5, beta=2.0, c=c), None, 1),
        "gemm, workspace": (lambda: jg.gemm(a, b, workspace=work), None, 1),
        "gemm, clip made anew": (lambda: jg.gemm(a, b, activation=jg.clip(0, 6)), None, 1),
        "gemm of int8, zero point": (lambda: jg.gemm(i8, i8, a_zero_point=3), None, 1),
        "gemm of int8, requantize": (lambda: jg.gemm(i8, i8, requantize=rule), None, 1),
        "plan(a, packed, out)": (lambda: planned(a, w, out), None, 1),
        "gemm_batched, each": (lambda: jg.gemm_batched(many, many), None, _LISTED),
        "gemm_batched, out, each": (lambda: jg.gemm_batched(many, many, out=outs), None, _LISTED),
        "gemm, a function": (lambda: jg.gemm(a, b, epilogue=lambda v, row, col: v * 2), None, 1),
    }  # fmt: skip


def lowest(call: Call, rounds: int) -> float:
    """Nanoseconds per call."""
    for _ in range(3):
        call()
    number = max(1, int(0.01 / (timeit.timeit(call, number=20) / 20)))
    return min(timeit.repeat(call, number=number, repeat=rounds)) / number * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    numpy_side.restart(1, own_process=True)
    jg.set_num_threads(1)
    print("| call | jitgemm, ns | NumPy, ns |\n|---|---|---|")
    for name, (ours, theirs, products) in cases().items():
        if args.only not in name:
            continue
        mine = lowest(ours, args.rounds) / products
        other = "" if theirs is None else f"{lowest(theirs, args.rounds) / products:.0f}"
        print(f"| {name} | {mine:.0f} | {other} |")


if __name__ == "__main__":
    main()
