"""The words about threads, as the LLVM backend writes them: shared counters, waiting, sleeping."""

from __future__ import annotations

import platform
import sys

from jitgemm.lang.core import Cond, Int, IntLike, Ptr
from jitgemm.lang.lines import Lines

__all__ = ["ThreadWords", "has_futex"]

# System call numbers of futex(2) by machine; its operations, private to this process.
_FUTEX = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = 128, 129
_NAP_US = 300
"""Of a sleep that nobody can end."""


def has_futex() -> bool:
    """Whether threads can sleep on a word of memory here."""
    return sys.platform == "linux" and platform.machine() in _FUTEX


class ThreadWords(Lines):
    """Part of the LLVM backend."""

    def fetch_add(self, p: Ptr, by: IntLike) -> Int:
        value = self.const(by).handle
        return Int(self, self._let(f"atomicrmw add ptr {p.handle}, i64 {value} seq_cst"))

    def compare_exchange(self, p: Ptr, expected: Int, new: Int) -> Cond:
        both = self._let(
            f"cmpxchg ptr {p.handle}, i64 {expected.handle}, i64 {new.handle} seq_cst seq_cst"
        )
        return Cond(self, self._let(f"extractvalue {{ i64, i1 }} {both}, 1"))

    def load_shared(self, p: Ptr) -> Int:
        return Int(self, self._let(f"load atomic i64, ptr {p.handle} seq_cst, align 8"))

    def pause(self) -> None:
        # The instruction is x86's; elsewhere waiting loops simply spin.
        if self.isa.arch == "x86_64":
            self.module.declare("declare void @llvm.x86.sse2.pause()")
            self._emit("call void @llvm.x86.sse2.pause()")

    def yield_core(self) -> None:
        self.module.declare("declare i32 @sched_yield()")
        self._emit("call i32 @sched_yield()")

    def sleep_while(self, p: Ptr, value: Int) -> None:
        if has_futex():
            self._futex(p, _FUTEX_WAIT_PRIVATE, value)
        else:
            self.module.declare("declare i32 @usleep(i32)")
            self._emit(f"call i32 @usleep(i32 {_NAP_US})")

    def wake(self, p: Ptr, count: IntLike) -> None:
        if has_futex():
            self._futex(p, _FUTEX_WAKE_PRIVATE, self.const(count))

    def _futex(self, p: Ptr, operation: int, value: Int) -> None:
        self.module.declare("declare i64 @syscall(i64, ...)")
        number, narrow = _FUTEX[platform.machine()], self._let(f"trunc i64 {value.handle} to i32")
        self._emit(
            f"call i64 (i64, ...) @syscall(i64 {number}, ptr {p.handle}, "
            f"i32 {operation}, i32 {narrow}, ptr null, ptr null, i32 0)"
        )
