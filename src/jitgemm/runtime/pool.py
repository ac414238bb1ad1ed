"""The thread pool's Python half: starting workers, fork, exit.

Workers are threads that sit in generated code without the interpreter lock.  They are started when
a call first wants them, never for small work.  No lock is held here, so whatever Python runs in the
middle (signal handlers, finalisers, trace functions) may multiply.
"""

from __future__ import annotations

import ctypes
import time
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable

import numpy as np

from jitgemm import tuning
from jitgemm.runtime.memory import address, aligned_buffer
from jitgemm.runtime.pool_code import POOL

__all__ = ["Pool"]

# One PAUSE is taken to last 40 ns; it differs between cores (roughly 10 to 50 ns).
_PAUSES_PER_US = 25
# A worker in the middle of a daemon thread's product need not be waited for.
_PATIENCE_S = 0.2


def _serve(main: Callable[[int], None], block: int, alive: LockType) -> None:
    """A worker's life."""
    try:
        main(block)
    finally:
        alive.release()


class Pool:
    """Workers and the control block they watch."""

    def __init__(self, worker: int, wake: Callable[[int], None]) -> None:
        self._main = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(worker)
        self._wake = wake
        # One word whose address generated code keeps: the control block, or null while there are
        # no workers (also in a child after fork, and after the pool has been stopped).
        self._cell = aligned_buffer(64)
        self._cell[:] = 0
        self.words = self._cell[:8].view(np.int64)
        # It stays where it is: a call may be about to use it, or be inside.
        self._block = aligned_buffer(POOL.size)
        self._initialise()
        # A lock per worker, which it releases when it ends.
        self._workers: list[LockType] = []
        self._closed = False

    def _initialise(self) -> None:
        self._block[:] = 0
        words = self._block.view(np.int64)
        words[POOL.slot("spins")] = tuning.environment("spin_us") * _PAUSES_PER_US
        words[POOL.slot("moves")] = int(tuning.environment("move_workers") > 0)

    @property
    def cell(self) -> int:
        """Address of the word that holds the control block's address."""
        return address(self._cell)

    @property
    def workers(self) -> int:
        """Threads that serve, besides the callers."""
        return sum(alive.locked() for alive in self._workers)

    def ensure(self, threads: int) -> None:
        """Have at least ``threads - 1`` workers, if the system gives as many and no exit began."""
        while len(self._workers) < threads - 1 and not self._closed:
            if not self._start(threads - 1):
                return

    def _start(self, most: int) -> bool:
        """Start a worker unless others are about to start the last of ``most``; if it can be."""
        # A thread of the threading module would have its starter wait for it, which never ends in
        # a child forked by a signal handler at that moment.
        alive, workers, done = allocate_lock(), self._workers, False
        alive.acquire()
        try:
            # Who appends first is counted first, whoever comes in between.
            workers.append(alive)
            if workers.index(alive) >= most:
                return True
            start_new_thread(_serve, (self._main, address(self._block), alive))
            done = True
        except RuntimeError:
            return False
        finally:
            if not done and alive in workers:
                workers.remove(alive)
        if not self._closed:
            self.words[0] = address(self._block)
        return True

    def stop(self) -> None:
        """Let every worker finish, at exit.  From here on callers work alone."""
        self._closed = True
        self.words[0] = 0
        self._block.view(np.int64)[POOL.slot("stop")] = 1
        self._wake(address(self._block))
        end = time.monotonic() + _PATIENCE_S
        for alive in self._workers:
            if alive.acquire(timeout=max(0.0, end - time.monotonic())):
                alive.release()

    def forked(self) -> None:
        """In a child: the workers did not come along, and the block may say "busy"."""
        self._workers = []
        self._initialise()
        self.words[0] = 0
