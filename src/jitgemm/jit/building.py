"""One thread at a time builds code, and the process may fork or end whatever it is doing.

LLVM is not thread-safe, and its static objects are destroyed when a process exits, also while a
daemon thread is still compiling with them.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading

from jitgemm.errors import JitUnavailableError

__all__ = ["building"]

# Where destructors cannot be skipped a process waits this long for a thread that compiles.
_PATIENCE_S = 10.0


def _skip_destructors() -> bool:
    """Let this process exit without running destructors of libraries; whether that is possible.

    Exit handlers run last in, first out.  Buffers are flushed, handlers registered later have run,
    and the exit status stays what it was.
    """
    libc = ctypes.CDLL(None)
    register = getattr(libc, "on_exit", None)  # glibc
    if register is None:
        return False
    register.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    for name in ("_exit", "fcloseall"):
        register(ctypes.cast(getattr(libc, name), ctypes.c_void_p), None)
    return True


class Building:
    """The lock under which LLVM is used and the engine is built: ``with building: ...``.

    It is the only lock that is waited for.  Its owner may take it again: signal handlers,
    finalisers and trace functions may multiply while their thread builds.

    Raises:
        JitUnavailableError: the interpreter is being finalised, and a thread that no longer gets
            to run owns it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._held: list[bool] = []
        self._ended_by: int | None = None

    def _acquire(self) -> bool:
        # Threads do not run any more while the interpreter is finalised: who waits, waits for ever.
        return self._lock.acquire(blocking=not sys.is_finalizing())

    def __enter__(self) -> None:
        if not self._acquire():
            raise JitUnavailableError("a thread was compiling when the interpreter ended")
        if self._ended_by not in (None, threading.get_ident()):
            _skip_destructors()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def end(self) -> None:
        """The process exits: make sure that no thread needs LLVM after its destructors ran."""
        if os.name != "posix":
            return  # other threads are ended before any destructor runs
        self._ended_by = threading.get_ident()
        if self._lock.acquire(blocking=False) or (
            not _skip_destructors() and self._lock.acquire(timeout=_PATIENCE_S)
        ):
            self._lock.release()

    def before_fork(self) -> None:
        """Nobody forks while another thread builds, so a child inherits consistent state."""
        self._held.append(self._acquire())

    def after_fork(self) -> None:
        """In parent and child."""
        if self._held.pop():
            self._lock.release()


building = Building()
atexit.register(building.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=building.before_fork,
        after_in_parent=building.after_fork,
        after_in_child=building.after_fork,
    )
