"""Launches: records of kernels of one's own, their machine code, and threads that draw items."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitgemm.isa.types import BY_NAME
from jitgemm.jit import compiler
from jitgemm.kernels.job import COUNTERS
from jitgemm.kernels.launch import ArrayType, LaunchSpec, launch_functions, launch_record
from jitgemm.runtime.driver import scalar_slot
from jitgemm.runtime.engine import engine, record_array
from jitgemm.runtime.keeping import BoundedCache
from jitgemm.runtime.memory import address
from jitgemm.runtime.numpy_abi import data_address

__all__ = ["Launcher", "Operand", "launcher_for"]

Operand = NDArray[Any] | float
"""An array, or a scalar: an integer of up to 64 bits or a float."""

_KEPT = 256
# Tickets per thread: a thread that is late leaves a share of this to the others.
_TICKETS = 8


class Launcher:
    """A kernel for operands of certain types, with its machine code."""

    def __init__(self, spec: LaunchSpec) -> None:
        self.spec, self.record = spec, launch_record(spec)
        (self.function,) = launch_functions(spec)
        self.unit = compiler.Unit(spec.symbol, spec.isa, lambda: launch_functions(spec))
        self._code: compiler.Compiled | None = None

    def run(
        self,
        values: Mapping[str, Operand],
        grid: tuple[int, ...],
        grain: int | None,
        threads: int,
        *,
        checked: bool,
    ) -> None:
        """Do all items of a grid.

        Args:
            values: operands by name, of the types that the spec says.
            grid: items along each axis; there is at least one.
            grain: items per ticket; ``None``: as many as share the work evenly.
            threads: how many may work.
            checked: in the checking interpreter, on this thread.

        Raises:
            LanguageError: the kernel broke a rule of the language.
            JitUnavailableError: no code can be generated in this process.
        """
        items = math.prod(grid)
        grain = min(grain or -(-items // (_TICKETS * threads if threads > 1 else 1)), items)
        tickets = -(-items // grain)
        counters = record_array(COUNTERS.slots)
        job = record_array(self.record.slots)
        where = address(counters.view(np.uint8))
        slots = [where, tickets, grain, items, *grid]
        for name, kind in self.spec.operands:
            slots += _slots(values[name], kind)
        job[: len(slots)] = slots
        at = address(job.view(np.uint8))
        if checked:
            self._interpret(job, counters, values, at)
            return
        if self._code is None:
            self._code = compiler.get(self.unit)
        e, threads = engine(), min(threads, tickets)
        if threads > 1:
            e.pool.ensure(threads)
        e.run(int(e.pool.words[0]), self._code.addresses[self.function.name], at, threads)

    def _interpret(
        self,
        job: NDArray[np.int64],
        counters: NDArray[np.int64],
        values: Mapping[str, Operand],
        at: int,
    ) -> None:
        # Imported here: only a pinned interpreter, or who asks for it, needs it.
        from jitgemm.lang.interp import Memory, run

        memory = Memory()
        memory.add("the record", job, writable=False)
        memory.add("the counters", counters, writable=True)
        for name, kind in self.spec.operands:
            value = values[name]
            if isinstance(kind, ArrayType) and isinstance(value, np.ndarray):
                memory.add(name, value, writable=kind.writable)
        run(self.function, memory, self.spec.isa, at, 0, spills=True)


def _slots(value: Operand, kind: ArrayType | str) -> list[int]:
    """An operand in the record."""
    if isinstance(value, np.ndarray):
        return [data_address(value), *value.shape, *value.strides]
    if kind == "int" or isinstance(kind, ArrayType):
        return [int(value)]
    return [scalar_slot(value, BY_NAME[kind].bytes)]


_known: BoundedCache[LaunchSpec, Launcher] = BoundedCache(_KEPT)


def launcher_for(spec: LaunchSpec) -> Launcher:
    """What launches a spec; those used last are kept."""
    found = _known.get(spec)
    if found is None:
        found = Launcher(spec)
        _known.put(spec, found)
    return found
