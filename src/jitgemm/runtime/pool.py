"""The thread pool's Python half: starting workers, fork, exit.

Workers are Python threads that sit in generated code without the interpreter lock.  They are
started when a call first wants them, never for small work.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Callable

import numpy as np

from jitgemm import tuning
from jitgemm.runtime.memory import address, aligned_buffer
from jitgemm.runtime.pool_code import POOL

__all__ = ["Pool"]

# One PAUSE is taken to last 40 ns; it differs between cores (roughly 10 to 50 ns).
_PAUSES_PER_US = 25


class Pool:
    """Workers and the control block they watch."""

    def __init__(self, worker: int, wake: Callable[[int], None]) -> None:
        self._main = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(worker)
        self._wake = wake
        self._lock = threading.Lock()
        # One word whose address generated code keeps: the control block, or null before there is
        # one (and in a child after fork).
        self._cell = aligned_buffer(64)
        self._cell[:] = 0
        self.words = self._cell[:8].view(np.int64)
        self._block: np.ndarray | None = None
        self._threads: list[threading.Thread] = []
        atexit.register(self.stop)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    @property
    def cell(self) -> int:
        """Address of the word that holds the control block's address."""
        return address(self._cell)

    @property
    def workers(self) -> int:
        """Threads started so far, besides the callers."""
        return len(self._threads)

    def ensure(self, threads: int) -> None:
        """Have at least ``threads - 1`` workers."""
        if len(self._threads) >= threads - 1:
            return
        with self._lock:
            if self._block is None:
                block = aligned_buffer(POOL.size)
                block[:] = 0
                words = block.view(np.int64)
                words[POOL.slot("spins")] = tuning.environment("spin_us") * _PAUSES_PER_US
                self._block = block
                self.words[0] = address(block)
            while len(self._threads) < threads - 1:
                # Only integers and the function cross into the thread: it must not keep the pool.
                thread = threading.Thread(
                    target=self._main,
                    args=(address(self._block),),
                    name=f"jitgemm-{len(self._threads) + 1}",
                    daemon=True,
                )
                thread.start()
                self._threads.append(thread)

    def stop(self) -> None:
        """Let every worker finish; called at exit."""
        with self._lock:
            if self._block is None:
                return
            words = self._block.view(np.int64)
            words[POOL.slot("stop")] = 1
            self.words[0] = 0
            self._wake(address(self._block))
            for thread in self._threads:
                thread.join(timeout=1.0)
            if not any(t.is_alive() for t in self._threads):
                self._block = None
            self._threads = []

    def _forked(self) -> None:
        # The workers did not come along, and the block may say "busy": start afresh.
        self._lock = threading.Lock()
        self._threads = []
        self._block = None
        self.words[0] = 0
