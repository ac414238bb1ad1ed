"""Extra words for the runtime's own generated code: returns, C calls, affinity, CPUID.

Kernels never use them, so kernels stay executable by the interpreter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, overload

from jitgemm.lang.core import Cond, Function, Int, IntLike, Ptr
from jitgemm.lang.llvm import LlvmKernel
from jitgemm.lang.values import Value

__all__ = ["NativeFunction", "SystemKernel", "has_affinity"]

Returns = Literal["void", "int", "i32", "ptr"]
_Number = Literal["void", "int", "i32"]
_LLVM = {"void": "void", "int": "i64", "i32": "i32", "ptr": "ptr"}

_CPU_SET = 128
"""Bytes of the C library's ``cpu_set_t``: 1024 processors."""


def has_affinity() -> bool:
    """Whether a thread can say on which processors it may run."""
    return sys.platform == "linux"


@dataclass(frozen=True, slots=True)
class NativeFunction(Function):
    """A generated function with a result."""

    returns: Returns = "void"


class SystemKernel(LlvmKernel):
    """The LLVM backend with the runtime's words."""

    def header(self, symbol: str, params: str, *, external: bool) -> str:
        linkage = "" if external else "internal "
        returns = getattr(self.function, "returns", "void")
        return f"define {linkage}{_LLVM[returns]} @{symbol}({params}) #0 {{"

    def _finish(self, value: Value | None) -> None:  # noqa: ARG002  # see ret
        returns = getattr(self.function, "returns", "void")
        self._emit("ret void" if returns == "void" else "unreachable")

    def ret(self, value: Int | Ptr) -> None:
        """Return now; what follows in this block is unreachable."""
        self._emit(f"ret {self._type_of(value)} {value.handle}")
        self._start(self._label())

    def leave_when(self, cond: Cond, value: Callable[[], Int | Ptr]) -> None:
        """Return ``value()`` if ``cond`` holds."""
        for _ in self.when(cond):
            self.ret(value())

    def null(self) -> Ptr:
        """The null pointer."""
        return Ptr(self, "null")

    def is_null(self, p: Ptr) -> Cond:
        """Whether ``p`` is null."""
        return Cond(self, self._let(f"icmp eq ptr {p.handle}, null"))

    def same(self, p: Ptr, q: Ptr) -> Cond:
        """Whether two pointers are equal."""
        return Cond(self, self._let(f"icmp eq ptr {p.handle}, {q.handle}"))

    def address(self, p: Ptr) -> Int:
        """A pointer as a number, for range checks."""
        return Int(self, self._let(f"ptrtoint ptr {p.handle} to i64"))

    def load_i32(self, p: Ptr) -> Int:
        """A 32-bit integer, sign-extended."""
        narrow = self._let(f"load i32, ptr {p.handle}, align 4")
        return Int(self, self._let(f"sext i32 {narrow} to i64"))

    def copy(self, target: Ptr, source: Ptr, size: int) -> None:
        """Copy a fixed number of bytes (both 8-byte aligned)."""
        self.module.declare("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        self._emit(
            f"call void @llvm.memcpy.p0.p0.i64(ptr align 8 {target.handle}, "
            f"ptr align 8 {source.handle}, i64 {size}, i1 false)"
        )

    def mix(self, hash_: Int, words: tuple[Int, Int], multiplier: int) -> Int:
        """The next state of a multiplicative hash of pairs of words, modulo ``2**64``."""
        first, second = words
        # The state waits for one multiplication only.
        beside = self._let(f"mul i64 {second.handle}, {multiplier}")
        pair = self._let(f"add i64 {first.handle}, {beside}")
        mixed = self._let(f"xor i64 {hash_.handle}, {pair}")
        return Int(self, self._let(f"mul i64 {mixed}, {multiplier}"))

    def difference(self, x: Int, y: Int) -> Int:
        """The bits in which two words differ."""
        return Int(self, self._let(f"xor i64 {x.handle}, {y.handle}"))

    def shift_right(self, x: Int, bits: IntLike) -> Int:
        """The high bits of an unsigned number."""
        return Int(self, self._let(f"lshr i64 {x.handle}, {self.const(bits).handle}"))

    def exchange(self, p: Ptr, value: IntLike) -> Int:
        """Write atomically; what was there before."""
        v = self.const(value).handle
        return Int(self, self._let(f"atomicrmw xchg ptr {p.handle}, i64 {v} seq_cst"))

    @overload
    def external(self, name: str, returns: Literal["ptr"], *args: IntLike | Ptr) -> Ptr: ...
    @overload
    def external(self, name: str, returns: _Number, *args: IntLike | Ptr) -> Int: ...

    def external(self, name: str, returns: Returns, *args: IntLike | Ptr) -> Int | Ptr:
        """Call a C function of this process by name."""
        values = [a if isinstance(a, Ptr) else self.const(a) for a in args]
        types = ", ".join(self._type_of(v) for v in values)
        self.module.declare(f"declare {_LLVM[returns]} @{name}({types})")
        return self._finish_call(f"@{name}", returns, values)

    @overload
    def invoke(self, target: Ptr, returns: Literal["ptr"], *args: IntLike | Ptr) -> Ptr: ...
    @overload
    def invoke(self, target: Ptr, returns: _Number, *args: IntLike | Ptr) -> Int: ...

    def invoke(self, target: Ptr, returns: Returns, *args: IntLike | Ptr) -> Int | Ptr:
        """Call through a pointer."""
        values = [a if isinstance(a, Ptr) else self.const(a) for a in args]
        return self._finish_call(target.handle, returns, values)

    def integer_from(self, function: NativeFunction, *args: IntLike | Ptr) -> Int:
        """Call another generated function and take the integer it returns."""
        found = self._result(function, args)
        assert isinstance(found, Int), function.name
        return found

    def pointer_from(self, function: NativeFunction, *args: IntLike | Ptr) -> Ptr:
        """Call another generated function and take the pointer it returns."""
        found = self._result(function, args)
        assert isinstance(found, Ptr), function.name
        return found

    def _result(self, function: NativeFunction, args: tuple[IntLike | Ptr, ...]) -> Int | Ptr:
        symbol = self.module.need(function)
        values = [a if isinstance(a, Ptr) else self.const(a) for a in args]
        return self._finish_call(f"@{symbol}", function.returns, values)

    def pointer_to(self, function: Function) -> Ptr:
        """The address of another generated function."""
        return Ptr(self, f"@{self.module.need(function)}")

    def _finish_call(self, target: str, returns: Returns, values: list[Int | Ptr]) -> Int | Ptr:
        args = ", ".join(f"{self._type_of(v)} {v.handle}" for v in values)
        text = f"call {_LLVM[returns]} {target}({args})"
        if returns == "void":
            self._emit(text)
            return self.const(0)
        handle = self._let(text)
        if returns == "i32":
            handle = self._let(f"sext i32 {handle} to i64")
        return Ptr(self, handle) if returns == "ptr" else Int(self, handle)

    def forever(self) -> Iterator[None]:
        """A loop left only by a return."""
        return self.repeat_while(lambda: Cond(self, "true"))

    # -- processors -----------------------------------------------------------------------------
    def processor(self) -> Int:
        """The number of the processor this thread runs on now; negative where that is unknown."""
        if not has_affinity():
            return self.const(-1)
        return self.external("sched_getcpu", "i32")

    def leave_processor(self, number: Int, threads: Int) -> None:
        """Move this thread to another processor, if it may run on ``threads`` or more of them.

        The set of those it may run on is afterwards what it was.
        """
        if not has_affinity():
            return
        others, allowed = self.scratch(_CPU_SET), self.scratch(_CPU_SET)
        failed = self.external("sched_getaffinity", "i32", self.null(), _CPU_SET, allowed)
        for _ in self.when(failed.equals(0)):
            self.copy(others, allowed, _CPU_SET)
            count = self.const(0)
            for at in range(0, _CPU_SET, 8):
                count = count + self._bits_set(self.load_int(allowed + at))
            self._clear_bit(others, number)
            for _ in self.when(count >= threads):
                self.external("sched_setaffinity", "i32", self.null(), _CPU_SET, others)
                self.external("sched_setaffinity", "i32", self.null(), _CPU_SET, allowed)

    def _bits_set(self, x: Int) -> Int:
        self.module.declare("declare i64 @llvm.ctpop.i64(i64)")
        return Int(self, self._let(f"call i64 @llvm.ctpop.i64(i64 {x.handle})"))

    def _clear_bit(self, p: Ptr, index: Int) -> None:
        word = p + index // 64 * 8
        bit = self._let(f"shl i64 1, {(index % 64).handle}")
        keep = self._let(f"xor i64 {bit}, -1")
        self.store_int(word, Int(self, self._let(f"and i64 {self.load_int(word).handle}, {keep}")))

    def cpuid(self, leaf: Int, subleaf: Int, target: Ptr) -> None:
        """Store eax, ebx, ecx, edx of CPUID as four 64-bit integers."""
        a, c = (self._let(f"trunc i64 {x.handle} to i32") for x in (leaf, subleaf))
        four = "{ i32, i32, i32, i32 }"
        result = self._let(
            f'call {four} asm sideeffect "cpuid", "={{ax}},={{bx}},={{cx}},={{dx}},{{ax}},{{cx}}"'
            f"(i32 {a}, i32 {c})"
        )
        for i in range(4):
            part = self._let(f"extractvalue {four} {result}, {i}")
            wide = self._let(f"zext i32 {part} to i64")
            self.store_int(target + 8 * i, Int(self, wide))
