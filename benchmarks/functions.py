"""Cycles per vector register of the functions in `jitgemm.kernels.mathlib`, data in the L1 cache.

python benchmarks/functions.py

Several registers at once hide latency: `x2` is code for vectors of two registers.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgemm.isa import tables
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import F32, F64, ElementType
from jitgemm.jit import compiler
from jitgemm.jit.target import available
from jitgemm.kernels.operations import OPERATIONS
from jitgemm.lang.core import Function, Int, Kernel, Ptr, parameters

NAMES = ("gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "erf", "exp", "log", "hardswish")
BYTES = 12 << 10
ROUNDS = 30


def compiled(function: Function, isa: Isa) -> Callable[..., None]:
    code = compiler.get(compiler.Unit(f"{function.name}__{isa.name}", isa, lambda: [function]))
    kinds = [ctypes.c_void_p if k == "ptr" else ctypes.c_int64 for _, k in function.params]
    call = ctypes.CFUNCTYPE(None, *kinds)(code.addresses[function.name])
    return lambda *args: code and call(*args)


def fastest(f: Callable[[], Any]) -> float:
    times = []
    for _ in range(50):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return min(times)


def hertz(isa: Isa) -> float:
    """The clock, by a chain of additions of one cycle each."""

    def body(k: Kernel, out: Ptr, count: Int) -> None:
        x = k.var(k.const(0))
        for _ in k.range(0, count):
            for _ in range(64):
                x.value = k.opaque(x.value + 1)
        k.store_int(out, x.value)

    chain, out = compiled(Function("chain", parameters("out* count"), body), isa), np.zeros(1)
    return 64 * 20_000 / fastest(lambda: chain(out.ctypes.data, 20_000))


def seconds(name: str, isa: Isa, element: ElementType, registers: int) -> float:
    lanes = registers * isa.lanes(element)

    def body(k: Kernel, out: Ptr, x: Ptr, count: Int, rounds: Int) -> None:
        for _ in k.range(0, rounds):
            for i in k.range(0, count, lanes):
                v = k.load(x + i * element.bytes, element, lanes)
                k.store(out + i * element.bytes, OPERATIONS[name].emit(k, v))

    f = Function(f"{name}_{element}x{lanes}", parameters("out* x* count rounds"), body)
    dtype = np.float32 if element is F32 else np.float64
    count = BYTES // element.bytes // lanes * lanes
    x = np.abs(np.random.default_rng(0).normal(0, 3, count)).astype(dtype)
    out, call = np.empty_like(x), compiled(f, isa)
    once = fastest(lambda: call(out.ctypes.data, x.ctypes.data, count, ROUNDS))
    return once / ROUNDS / (count / isa.lanes(element))


def main() -> None:
    sets = [i for i in tables.BY_NAME.values() if not i.interpreted and available(i)]
    clock = max(hertz(i) for i in sets)
    print(f"{clock / 1e9:.2f} GHz\n")
    columns = [(i, r) for i in sets for r in (1, 2, 4)]
    print("| function | " + " | ".join(f"{i.name} x{r}" for i, r in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for element in (F32, F64):
        for name in NAMES:
            cells = (f"{seconds(name, i, element, r) * clock:.1f}" for i, r in columns)
            print(f"| {element} {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
