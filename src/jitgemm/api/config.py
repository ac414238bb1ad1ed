"""Threads and configuration."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jitgemm import tuning
from jitgemm.api import blas
from jitgemm.errors import JitUnavailableError, message
from jitgemm.jit import cache, compiler
from jitgemm.jit.target import Host, host
from jitgemm.planner.machine import detect, usable_cpus
from jitgemm.runtime.engine import THREADS, engine, knob, packed_for, started, unavailable

__all__ = [
    "get_num_threads", "publish", "resolve_threads", "set_num_threads", "show_config", "threads",
]  # fmt: skip

_MOST = 1024
_default: int | None = None
# Where the default comes from; what ``show_config`` says of it.
_source = ""
# Whether a context has ever said so: generated code looks only then.
_scoped = False


def _checked(count: object, operand: str) -> int:
    if isinstance(count, bool) or not hasattr(count, "__index__"):
        raise TypeError(message(operand, "an int", type(count).__name__))
    number = count.__index__()
    if not 1 <= number <= _MOST:
        raise ValueError(message(operand, f"between 1 and {_MOST}", number))
    return int(number)


def resolve_threads(count: object = None) -> int:
    """The thread count of a call.

    In this order: its argument, the context, the setter, the environment, the machine.  The
    environment is read once, when it is first needed.

    Raises:
        TypeError, ValueError: ``count`` is not an int between 1 and 1024.
    """
    if count is not None:
        return _checked(count, "threads")
    inner = THREADS.get()
    if inner is not None:
        return inner
    global _default, _source
    if _default is None:
        found = (min(usable_cpus(), _MOST), "usable processors")
        asked = tuning.threads_asked(_MOST)
        _default, _source = found if asked is None or asked[0] >= found[0] else asked
        publish()
    return _default


def publish() -> None:
    """Tell generated code how many threads calls use that do not say."""
    e = started()
    if e is not None and e.calls is not None:
        e.calls.set_threads(_default or 0, scoped=_scoped)


def _threads_source() -> str:
    """What decides about the number of threads here and now."""
    resolve_threads()
    return _source if THREADS.get() is None else "threads()"


def set_num_threads(count: int) -> None:
    """Set the number of threads products use from now on in this process.

    Args:
        count: at most this many threads per product, the caller's included.

    Raises:
        TypeError, ValueError: not an int between 1 and 1024.
    """
    global _default, _source
    _default, _source = _checked(count, "count"), "set_num_threads()"
    publish()


def get_num_threads() -> int:
    """How many threads a product may use here and now.

    By default the processors in this process's affinity mask, no more than the control group's
    quota and than ``JITGEMM_NUM_THREADS``.  Where that is not set ``OMP_NUM_THREADS`` (the first
    number, if it is a list) and ``OMP_THREAD_LIMIT`` count.
    """
    return resolve_threads()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Use ``count`` threads inside a ``with`` block (in this context only).

    Args:
        count: at most this many threads per product, the caller's included.

    Raises:
        TypeError, ValueError: not an int between 1 and 1024.
    """
    global _scoped
    number = _checked(count, "count")
    if not _scoped:
        _scoped = True
        publish()
    token = THREADS.set(number)
    try:
        yield
    finally:
        THREADS.reset(token)


def _host() -> Host:
    """The machine as LLVM sees it, else as Python does."""
    try:
        return host()
    except JitUnavailableError:
        machine = platform.machine() or "unknown"
        return Host(machine, platform.processor() or machine, frozenset(), "none")


def show_config() -> dict[str, Any]:
    """What jitgemm found and chose.

    CPU, instruction set, caches (sizes in bytes), threads and what decided about their number,
    folders, kernels, knobs.  Where no code
    can be generated the set is ``none`` and ``jit_unavailable`` says why; ``blas`` is the library
    used instead.

    Raises:
        IsaError: ``JITGEMM_ISA`` names a set that is unknown or that this machine lacks.
    """
    reason = unavailable()
    e = None if reason else engine()
    machine = detect() if e is None else e.machine
    found = _host()
    folder = cache.directory()
    return {
        "cpu": found.cpu,
        "triple": found.triple,
        "llvm": found.llvm,
        "isa": packed_for(),
        "jit_unavailable": reason or None,
        "blas": blas.name(),
        "caches": {
            "l1d": machine.l1.size,
            "l2": machine.l2.size,
            "l3": machine.l3.size,
            "source": machine.source,
        },
        "threads": get_num_threads(),
        "threads_source": _threads_source(),
        "native_entry": e is not None and e.native,
        "cache_dir": None if folder is None else str(folder),
        "kernels": [(u.name, u.source) for u in compiler.compiled()],
        "knobs": {name: knob(name) for name in tuning.KNOBS},
    }
