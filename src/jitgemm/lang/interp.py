"""The checking interpreter: the second backend of the kernel language, and its definition.

A kernel source runs here directly, one Python call per instruction, on the real memory of NumPy
arrays.  Every access is resolved to a registered region, so what would be undefined behaviour in
machine code is an error with a name: an access outside the memory a kernel was given, a read of
bytes nobody wrote, a write to an operand, an integer that overflows, a tile beyond the register
file.  Conformance tests run the same sources on both backends and compare the bytes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

import numpy as np

from jitgemm.errors import LanguageError
from jitgemm.isa.conversions import dtype_of
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import BY_NAME, ElementType
from jitgemm.lang.core import Cond, Function, Int, IntLike, Mask, Ptr, Var, Vec
from jitgemm.lang.interp_vectors import VectorValues
from jitgemm.lang.memory import Memory
from jitgemm.lang.tiles import OuterSums, TileRegisters, product_of
from jitgemm.lang.values import T

__all__ = ["InterpKernel", "Memory", "dtype_of", "run"]

_WORD = 8
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1

_INT_OPS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "udiv": operator.floordiv,
    "urem": operator.mod,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "shl": operator.lshift,
    "ashr": operator.rshift,
}
_PREDICATES: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "slt": operator.lt,
    "sle": operator.le,
    "sgt": operator.gt,
    "sge": operator.ge,
}


class _Cell:
    """What a :class:`Var` holds; dies with it, which is how live registers are counted."""

    __slots__ = ("__weakref__", "registers", "value")

    def __init__(self, value: Any, registers: int) -> None:
        self.value, self.registers = value, registers


class _Frame:
    """One activation of a function: its scratch memory and its live vector variables."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.scratch: list[int] = []
        self.cells: WeakSet[_Cell] = WeakSet()


def _shape(x: Int | Ptr | Vec) -> tuple[Any, ...]:
    return (Vec, x.element, x.lanes) if isinstance(x, Vec) else (type(x),)


class InterpKernel(VectorValues):
    """Runs kernel sources on a :class:`Memory`."""

    max_rounds = 10**7
    """Rounds after which a ``repeat_while`` counts as endless: one thread waits for nobody."""

    def __init__(self, isa: Isa, memory: Memory, *, spills: bool = False) -> None:
        self.isa, self.memory = isa, memory
        self._spills = spills
        self._frame = _Frame("top")
        self._tiles = TileRegisters(isa, memory)
        self._sums = OuterSums(isa)

    # -- integers, conditions, pointers ---------------------------------------------------------
    def const(self, value: IntLike) -> Int:
        return value if isinstance(value, Int) else self._int(value)

    def _int(self, value: int) -> Int:
        if not _INT_MIN <= value <= _INT_MAX:
            raise LanguageError(f"{value} overflows a 64-bit integer")
        return Int(self, value)

    def int_op(self, op: str, a: Int, b: Int) -> Int:
        if op in ("udiv", "urem") and (a.handle < 0 or b.handle <= 0):
            raise LanguageError(f"{op} of {a.handle} by {b.handle}")
        if op in ("shl", "ashr") and not 0 <= b.handle < _WORD * 8:
            raise LanguageError(f"{op} by {b.handle}")
        return self._int(_INT_OPS[op](a.handle, b.handle))

    def compare(self, predicate: str, a: Int, b: Int) -> Cond:
        return Cond(self, _PREDICATES[predicate](a.handle, b.handle))

    def cond_op(self, op: str, a: Cond, b: Cond) -> Cond:
        return Cond(self, (a.handle and b.handle) if op == "and" else (a.handle or b.handle))

    def cond_not(self, a: Cond) -> Cond:
        return Cond(self, not a.handle)

    def select(self, cond: Cond, yes: T, no: T) -> T:
        return yes if cond.handle else no

    def offset(self, p: Ptr, by: Int) -> Ptr:
        return Ptr(self, p.handle + by.handle)

    def misalignment(self, p: Ptr, size: int) -> Int:
        return self._int(p.handle % size)

    def opaque(self, x: T) -> T:
        return x

    # -- memory ---------------------------------------------------------------------------------
    def _word(self, p: Ptr) -> int:
        # Generated code promises LLVM this alignment.
        if p.handle % _WORD:
            raise LanguageError(f"{p.handle:#x} is no multiple of {_WORD}")
        return int(p.handle)

    def load_int(self, p: Ptr) -> Int:
        return Int(self, int(self.memory.read(self._word(p), _WORD).view(np.int64)[0]))

    def store_int(self, p: Ptr, value: IntLike) -> None:
        data = np.array([self.const(value).handle], np.int64)
        self.memory.write(self._word(p), data.view(np.uint8))

    def load_ptr(self, p: Ptr) -> Ptr:
        return Ptr(self, int(self.memory.read(self._word(p), _WORD).view(np.uint64)[0]))

    def store_ptr(self, p: Ptr, value: Ptr) -> None:
        data = np.array([value.handle], np.uint64)
        self.memory.write(self._word(p), data.view(np.uint8))

    def _runs(self, lanes: int, mask: Mask | None) -> list[tuple[int, int]]:
        """Start and end of each run of lanes that are touched."""
        if mask is None:
            return [(0, lanes)]
        if mask.lanes != lanes:
            self.check_mask(mask, lanes)
        if isinstance(mask.handle, int):
            return [(0, mask.handle)] if mask.handle else []
        edges = np.flatnonzero(np.diff(mask.handle, prepend=False, append=False))
        return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]

    def load(
        self,
        p: Ptr,
        element: ElementType,
        lanes: int = 1,
        mask: Mask | None = None,
        other: Vec | None = None,
    ) -> Vec:
        values = np.zeros(lanes, dtype_of(element))
        if other is not None:
            values[:] = other.handle
        size, into = element.bytes, values.view(np.uint8)
        for first, end in self._runs(lanes, mask):
            where = p.handle + first * size
            into[first * size : end * size] = self.memory.read(where, (end - first) * size)
        return Vec(self, values, element, lanes)

    def store(self, p: Ptr, value: Vec, mask: Mask | None = None) -> None:
        size = value.element.bytes
        for first, end in self._runs(value.lanes, mask):
            self.memory.write(p.handle + first * size, value.handle[first:end].view(np.uint8))

    def gather(
        self,
        p: Ptr,
        offsets: Vec,
        element: ElementType,
        mask: Mask | None = None,
        other: Vec | None = None,
    ) -> Vec:
        self.check_gather(offsets, element, mask, other)
        values = np.zeros(offsets.lanes, dtype_of(element))
        if other is not None:
            values[:] = other.handle
        for first, end in self._runs(offsets.lanes, mask):
            for lane in range(first, end):
                where = p.handle + int(offsets.handle[lane])
                values[lane] = self.memory.read(where, element.bytes).view(values.dtype)[0]
        return Vec(self, values, element, offsets.lanes)

    def prefetch(self, p: Ptr, *, write: bool = False, near: bool = True) -> None:
        pass

    def scratch(self, size: int) -> Ptr:
        address = self.memory.scratch(size, f"scratch of {self._frame.name}")
        self._frame.scratch.append(address)
        return Ptr(self, address)

    def var(self, initial: T) -> Var[T]:
        bits = initial.lanes * initial.element.bits if isinstance(initial, Vec) else 0
        cell = _Cell(initial, registers=-(-bits // self.isa.vector_bits))
        if bits and not self._spills:
            # Generated code would spill in silence.  Only live ones count: a loop makes new ones.
            self._frame.cells.add(cell)
            used = sum(c.registers for c in self._frame.cells)
            if used > self.isa.vector_registers:
                most = f"{self.isa.name} has {self.isa.vector_registers} registers"
                raise LanguageError(f"out-of-budget tile: {used} vector variables, {most}")
        shape = _shape(initial)

        def read() -> T:
            value: T = cell.value
            return value

        def write(new: T) -> None:
            if _shape(new) != shape:
                raise LanguageError(f"variable of {shape} rebound to {_shape(new)}")
            cell.value = new

        return Var(read, write)

    # -- tiles of a matrix unit -----------------------------------------------------------------
    # By what products mean: how a unit is told is no concern of a definition.
    def configure_tiles(self, state: Ptr, heights: IntLike) -> None:  # noqa: ARG002
        self._tiles.configure(self.const(heights).handle)

    def release_tiles(self, state: Ptr) -> None:  # noqa: ARG002
        self._tiles.release()

    def zero_tile(self, state: Ptr, tile: int) -> None:  # noqa: ARG002
        self._tiles.zero(tile)

    def load_tile(self, state: Ptr, tile: int, p: Ptr, stride: Int) -> None:  # noqa: ARG002
        self._tiles.load(tile, p.handle, stride.handle)

    def store_tile(self, state: Ptr, tile: int, p: Ptr, stride: Int) -> None:  # noqa: ARG002
        self._tiles.store(tile, p.handle, stride.handle)

    def fold_tiles(self, state: Ptr, name: str, total: int, a: int, b: int) -> None:  # noqa: ARG002
        self._tiles.fold(product_of(self.isa, name), (total, a, b))

    # -- outer products -------------------------------------------------------------------------
    def call_inside(self, function: Function, *args: IntLike | Ptr) -> None:
        self._sums.enter()
        self.call(function, *args)
        self._sums.leave()

    def zero_sums(self, tile: int, element: ElementType) -> None:
        self._sums.zero(tile, element)

    def fold_outer(self, name: str, total: int, a: Vec, b: Vec) -> None:
        self._sums.fold(product_of(self.isa, name), total, a.handle, b.handle)

    def row_of_sums(self, tile: int, index: Int, element: ElementType) -> Vec:
        row = self._sums.row(tile, index.handle, element)
        return Vec(self, row, element, row.size)

    # -- control --------------------------------------------------------------------------------
    def range(self, start: IntLike, stop: IntLike, step: IntLike = 1) -> Iterator[Int]:
        first, last, by = (self.const(x).handle for x in (start, stop, step))
        # Generated loops count without unsigned wrap: a counter may not pass from -1 to 0.
        if by <= 0 or (first < 0 and first < last):
            raise LanguageError(f"loop from {first} to {last} by {by}")
        for i in range(first, last, by):
            yield Int(self, i)

    def branches(self, cond: Cond) -> Iterator[bool]:
        self.check_condition(cond)
        yield bool(cond.handle)

    def cases(self, value: Int, labels: Iterator[int] | list[int]) -> Iterator[int]:
        numbers = list(labels)
        if numbers.count(value.handle) != 1:
            raise LanguageError(f"{value.handle} is no case of {numbers}")
        yield int(value.handle)

    def repeat_while(self, cond: Callable[[], Cond]) -> Iterator[None]:
        rounds = 0
        while cond().handle:
            rounds += 1
            if rounds > self.max_rounds:
                raise LanguageError("a loop did not end")
            yield

    def call(self, function: Function, *args: IntLike | Ptr | Vec | float) -> Any:
        values = self.arguments(function, args)
        caller, self._frame = self._frame, _Frame(function.name)
        try:
            return self.returned(function, function.body(self, *values))
        except LanguageError as error:
            error.add_note(f"in {function.name}")
            raise
        finally:
            for address in self._frame.scratch:
                self.memory.release(address)
            self._frame = caller

    def finish(self) -> None:
        """Check what must hold when control goes back to the caller of generated code."""
        if self._tiles.heights:
            raise LanguageError("tile registers are left in use")

    # -- threads --------------------------------------------------------------------------------
    def fetch_add(self, p: Ptr, by: IntLike) -> Int:
        before = self.load_int(p)
        self.store_int(p, before + by)
        return before

    def compare_exchange(self, p: Ptr, expected: Int, new: Int) -> Cond:
        same = self.load_int(p).equals(expected)
        for _ in self.when(same):
            self.store_int(p, new)
        return same

    def load_shared(self, p: Ptr) -> Int:
        return self.load_int(p)

    def pause(self) -> None:
        pass

    def yield_core(self) -> None:
        pass

    def sleep_while(self, p: Ptr, value: Int) -> None:
        if self.load_int(p).equals(value).handle:
            raise LanguageError("sleeps, and there is no other thread to wake it")

    def wake(self, p: Ptr, count: IntLike) -> None:
        pass


def _argument(k: InterpKernel, x: Any, kind: str) -> IntLike | Ptr | Vec:
    if kind in BY_NAME:
        return Vec(k, np.array([x], dtype_of(BY_NAME[kind])), BY_NAME[kind], 1)
    return Ptr(k, x) if kind == "ptr" else int(x)


def run(
    function: Function, memory: Memory, isa: Isa, *args: float, spills: bool = False
) -> float | None:
    """Run a function with plain numbers as arguments: real addresses, and formats as their bits.

    What it returns is a number too.  With ``spills`` there may be more vector variables than
    registers, which machine code keeps in memory.

    Raises:
        LanguageError: the source broke a rule of the language.
    """
    k = InterpKernel(isa, memory, spills=spills)
    pairs = zip(args, function.params, strict=True)
    found = k.call(function, *(_argument(k, x, kind) for x, (_, kind) in pairs))
    k.finish()
    if found is None:
        return None
    return found.handle[0].item() if isinstance(found, Vec) else found.handle  # type: ignore[no-any-return]
