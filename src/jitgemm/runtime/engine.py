"""The process-wide engine: instruction set, caches, generated entries, pool.

Built at first use.
"""

from __future__ import annotations

import atexit
import contextvars
import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from jitgemm import tuning
from jitgemm.errors import IsaError, JitUnavailableError, message, warn
from jitgemm.isa.tables import PORTABLE, Isa
from jitgemm.jit import compiler
from jitgemm.jit.building import building
from jitgemm.jit.target import NO_ISA, choose_isa, host
from jitgemm.lang.core import Function, Int, Ptr, parameters
from jitgemm.planner import machine as machines
from jitgemm.planner.route import Context
from jitgemm.runtime import (
    batch_code,
    call_code,
    entry_code,
    list_code,
    numpy_abi,
    pool_code,
    signature_code,
)
from jitgemm.runtime.call_code import PLAN
from jitgemm.runtime.calls import Calls, record_array
from jitgemm.runtime.memory import Workspace, address
from jitgemm.runtime.pool import Pool
from jitgemm.runtime.pool_code import POOL
from jitgemm.runtime.signature_code import SIGNATURE
from jitgemm.runtime.system import NativeFunction, SystemKernel

__all__ = [
    "FASTCALL", "THREADS", "Engine", "MethodDef", "builtin", "engine", "knob", "packed_for",
    "record_array", "started", "unavailable", "usable",
]  # fmt: skip

FASTCALL = 0x0080 | 0x0002  # METH_FASTCALL | METH_KEYWORDS, methodobject.h

THREADS: contextvars.ContextVar[int | None] = contextvars.ContextVar(
    "jitgemm_threads", default=None
)
"""How many threads calls use, where a context says so."""


class MethodDef(ctypes.Structure):
    """``PyMethodDef``."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("method", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


def builtin(definition: MethodDef, owner: object, module: str | None) -> Callable[..., Any]:
    """A CPython builtin; the definition must outlive it."""
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
    if module is None:
        new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return new(ctypes.addressof(definition), owner, module)  # type: ignore[no-any-return]


def _cpuid_function() -> Function:
    def body(k: SystemKernel, leaf: Int, subleaf: Int, target: Ptr) -> None:
        k.cpuid(leaf, subleaf, target)

    params = parameters("leaf subleaf target*")
    return NativeFunction("jitgemm_cpuid", params, body)


def _wake_function() -> Function:
    def body(k: SystemKernel, pool_at: Ptr) -> None:
        pool = POOL.view(k, pool_at)
        k.fetch_add(pool.at("sequence"), 1)
        k.wake(pool.at("sequence"), 1 << 30)

    return NativeFunction("jitgemm_wake", parameters("pool*"), body)


def _system() -> list[Function]:
    """What every process needs that can generate code."""
    functions = [
        pool_code.run(), pool_code.worker(), _wake_function(),
        call_code.call(), call_code.call_plan(), call_code.described(),
        signature_code.signature(), entry_code.find(), entry_code.prepare(),
    ]  # fmt: skip
    return [*functions, _cpuid_function()] if host().arch == "x86_64" else functions


# The runtime's own code, by parts that are compiled when they are first needed.
_PARTS: dict[str, Callable[[], list[Function]]] = {
    "system": _system,
    "batches": lambda: [batch_code.batch_worker(), batch_code.run_batch()],
    "lists": lambda: [list_code.call_list(), batch_code.list_worker()],
}
_PART_OF = {
    "jitgemm_batch": "batches", "jitgemm_run_batch": "batches",
    "jitgemm_call_list": "lists", "jitgemm_list": "lists",
}  # fmt: skip


def system_unit(part: str = "system") -> compiler.Unit:
    """A part of the runtime's own generated code."""
    arch = host().arch
    # Baseline code of this architecture: nothing here is worth a vector.
    isa = replace(PORTABLE, name="system", arch=arch)
    name = f"jitgemm_{part}__{arch}"
    return compiler.Unit(name, isa, _PARTS[part], SystemKernel, identity=name)


class Engine:
    """What every call needs and no call changes."""

    def __init__(self) -> None:
        self.isa: Isa = choose_isa()
        system = compiler.get(system_unit())
        # Keeps their pages.
        self._parts = {"system": system}
        void, pointer, integer = None, ctypes.c_void_p, ctypes.c_int64
        self.run: Callable[..., None] = ctypes.CFUNCTYPE(void, pointer, pointer, pointer, integer)(
            system.addresses["jitgemm_run"]
        )
        wake = ctypes.CFUNCTYPE(void, pointer)(system.addresses["jitgemm_wake"])
        self.pool = Pool(system.addresses["jitgemm_worker"], wake)
        # Of calls that stay inside generated code and bring none.
        self.scratch = Workspace()
        self.machine = machines.detect(self._cpuid())
        self.native = numpy_abi.verified() and not self.isa.interpreted
        self._plan = MethodDef(b"plan", system.addresses["jitgemm_call_plan"], FASTCALL, None)
        self._described = MethodDef(
            b"described", system.addresses["jitgemm_described"], FASTCALL, None
        )
        self.calls = Calls(self.pool.cell, self.scratch.where, THREADS) if self.native else None
        if self.calls is not None:
            self.calls.set_code(self.address_of)

    def _cpuid(self) -> machines.Cpuid | None:
        found = self._parts["system"].addresses.get("jitgemm_cpuid")
        if found is None:
            return None
        call = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(found)
        buffer = record_array(8)

        def cpuid(leaf: int, subleaf: int) -> tuple[int, int, int, int]:
            call(leaf, subleaf, address(buffer.view(np.uint8)))
            eax, ebx, ecx, edx = (int(x) for x in buffer[:4])
            return eax, ebx, ecx, edx

        return cpuid

    def address_of(self, name: str) -> int:
        """Where a function of the runtime's own code begins."""
        part = _PART_OF.get(name, "system")
        if part not in self._parts:
            self._parts[part] = compiler.get(system_unit(part))
        return self._parts[part].addresses[name]

    def context(self, threads: int) -> Context:
        """What the planner needs."""
        return Context(self.isa, self.machine, threads, knob)

    def plan(self, record: np.ndarray) -> Callable[..., Any]:
        """A builtin that runs the entry of a plan, whose record it keeps."""
        return builtin(self._plan, record, None)

    def words(self, *operands: object) -> bytes | None:
        """What of operands decides a plan, as generated code sees it.

        Behind the words there is room for as many as there can be: others are compared with them.
        ``None``: generated code cannot take such operands.
        """
        assert self.calls is not None
        record = record_array(PLAN.slots)
        record[PLAN.slot("calls")] = self.calls.where
        said = builtin(self._described, record, None)(*operands)
        return None if said is None else said + bytes(SIGNATURE)


@cache
def knob(name: str) -> int:
    """A knob's value in this process."""
    return tuning.environment(name)


_engine: Engine | None = None
_ended = False
_usable: bool | None = None
_reason = ""
# Taking the one element is atomic: of threads that find out at once, one warns.
_untold = ["warning"]


def engine() -> Engine:
    """The engine, built once.

    Raises:
        IsaError: ``JITGEMM_ISA`` names a set that is unknown, or that cannot be used here.
        JitUnavailableError: no set is named, and no code can be generated in this process.
    """
    global _engine
    if _engine is None:
        with building:
            if _engine is None:
                made = _build()
                if _ended:
                    made.pool.stop()
                # Its tables must outlive whatever still calls, or is inside, generated code when
                # modules are torn down.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
                # A call in the middle of building, as a signal handler's, may have been first.
                _engine = _engine or made
    return _engine


def started() -> Engine | None:
    """The engine, if there is one already."""
    return _engine


def _exit() -> None:
    global _ended
    _ended = True
    if _engine is not None:
        _engine.pool.stop()


def _forked() -> None:
    if _engine is not None:
        _engine.pool.forked()


atexit.register(_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _build() -> Engine:
    global _reason
    if _reason:
        raise JitUnavailableError(_reason)
    try:
        return Engine()
    except IsaError:
        raise
    except (RuntimeError, OSError) as e:
        why = e.reason if isinstance(e, JitUnavailableError) else str(e) or type(e).__name__
        pinned = tuning.text("isa")
        if pinned is not None and pinned.lower() != NO_ISA:
            # Whoever pins a set gets it or an error.
            raise IsaError(
                message("JITGEMM_ISA", f"a process that can generate code for {pinned!r}", why)
            ) from e
        _reason = why
        raise JitUnavailableError(_reason) from e


def usable() -> bool:
    """Whether products can run in generated code; warns once in a process where they cannot.

    Raises:
        IsaError: as :func:`engine`.
    """
    global _usable
    if _usable is None:
        try:
            engine()
        except JitUnavailableError as e:
            _usable = False
            with suppress(IndexError):
                _untold.pop()
                what = "products go through a BLAS, slower for small sizes and with other bits"
                warn(f"{e.reason}; {what}")
        else:
            _usable = True
    return _usable


def unavailable() -> str:
    """Why no code can be generated; empty if it can."""
    return "" if usable() else _reason


def packed_for() -> str:
    """The instruction set operands are packed for in this process."""
    return engine().isa.name if usable() else NO_ISA
