"""Times the register-only loop of ``kernels.peak``."""

from __future__ import annotations

import ctypes
from time import perf_counter

import numpy as np

from jitgemm.errors import IsaError, message
from jitgemm.isa.types import ElementType
from jitgemm.jit import compiler
from jitgemm.kernels.peak import io_bytes, operations_per_round, peak_function
from jitgemm.runtime.engine import engine
from jitgemm.runtime.memory import address, aligned_buffer
from jitgemm.runtime.packed import element_dtype

__all__ = ["measure_peak", "peak_unit"]

# 10 ms are long enough for the clock to settle, and five tries for one without interruption.
_SECONDS = 0.01
_TRIES = 5
_FIRST_REPS = 10_000


def peak_unit(element: ElementType, fold: str = "madd") -> compiler.Unit:
    """The loop of this process's instruction set, as a unit to compile."""
    isa = engine().isa
    function = peak_function(element, isa, fold)
    return compiler.Unit(function.name, isa, lambda: [function])


def measure_peak(element: ElementType, fold: str = "madd") -> float:
    """Operations per second of one thread that only multiplies and adds: the best of a few tries.

    Takes about 60 ms, and the time to compile at the first use.

    Args:
        element: the type of the sums.
        fold: what multiplies and adds: ``"madd"``; for sums of ``i32`` ``"dot4"``, four products of
            8-bit integers (or ``"dot4_signed"``, ``"dot4_unsigned"``); for sums of ``f32``
            ``"bf16_dot"``, two of bfloat16; or an operation of the matrix unit, as ``"tile_us"`` or
            ``"tile_bf16"``.

    Raises:
        IsaError: the instruction set in use is interpreted and has no speed, or has no such
            operation.
    """
    isa = engine().isa
    if isa.interpreted:
        raise IsaError(message("isa", "one that runs as machine code", repr(isa.name)))
    product = None if isa.unit is None else isa.unit.product(fold)
    if fold not in isa.table(element) and (product is None or product.sums is not element):
        raise IsaError(message("isa", f"one with {fold} on {element}", repr(isa.name)))
    unit = peak_unit(element, fold)
    run = compiler.get(unit).function(unit.name, ctypes.c_int64, ctypes.c_void_p)
    io = aligned_buffer(io_bytes(element, isa, fold))
    values = io.view(element_dtype(element))

    def seconds(reps: int) -> float:
        if element.integral:
            io[:] = np.arange(1, io.size + 1)
        else:
            # Sums settle at x / (1 - x) = 1, or where x * x = 0.25 is less than their last bit: no
            # overflow, and no subnormal number, slows the loop down.
            values[:] = np.linspace(0.5, 1.5, values.size)
            values[: isa.lanes(element)] = 0.5
        start = perf_counter()
        run(reps, address(io))
        return perf_counter() - start

    seconds(_FIRST_REPS)
    reps = max(_FIRST_REPS, int(_FIRST_REPS * _SECONDS / seconds(_FIRST_REPS)))
    best = min(seconds(reps) for _ in range(_TRIES))
    return operations_per_round(element, isa, fold) * reps / best
