"""LLVM backend: writes the text of an LLVM module from kernel sources.

The text is written directly rather than through ``llvmlite.ir``: it is five to ten times faster to
build, and a first product with an empty cache pays for every instruction (docs/adr/0002).
Variables become ``alloca`` slots that LLVM's SROA turns back into registers; a codegen test
checks that none survives in a hot loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from jitgemm.errors import LanguageError
from jitgemm.isa.matrix import Text, Word
from jitgemm.isa.outer import OuterUnit
from jitgemm.isa.types import BY_NAME, ElementType
from jitgemm.lang.core import Cond, Function, Int, IntLike, Mask, Ptr, Var, Vec
from jitgemm.lang.llvm_vectors import VectorText
from jitgemm.lang.module import RunsIn
from jitgemm.lang.template import Holes
from jitgemm.lang.threads import ThreadWords
from jitgemm.lang.tiles import matrix_unit, outer_unit, product_of
from jitgemm.lang.values import T, Value

__all__ = ["LlvmKernel"]

_WORD = 8
_TYPES = {"void": "void", "int": "i64", "ptr": "ptr"} | {n: e.llvm for n, e in BY_NAME.items()}
_FOLD: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "udiv": lambda a, b: a // b,
    "urem": lambda a, b: a % b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "ashr": lambda a, b: a >> b,
}


class LlvmKernel(VectorText, ThreadWords):
    """Writes one function."""

    # -- text -----------------------------------------------------------------------------------
    def define(self, symbol: str, mode: RunsIn, *, external: bool) -> str:
        """The function's text."""
        self.mode = mode
        args = [self._parameter(f"%{name}", kind) for name, kind in self.function.params]
        params = [f"{_TYPES[kind]} %{name}" for name, kind in self.function.params]
        if mode is RunsIn.ENTERED:
            params.append("ptr %kept")
            words = outer_unit(self.isa).mode
            self._write(words.arrive, {"kept": "%kept"})
            value = self.function.body(self, *args)
            self._write(words.depart, {"kept": "%kept"})
        else:
            value = self.function.body(self, *args)
        self._finish(value)
        head = self.header(symbol, ", ".join(params), external=external)
        return "\n".join([head, "entry:", *self._allocas, *self._lines, "}"])

    def header(self, symbol: str, params: str, *, external: bool) -> str:
        """The ``define`` line."""
        linkage = "" if external else "internal "
        result = _TYPES[self.function.result]
        return f"define {linkage}{result} @{symbol}({params}) noinline #{self.mode.value} {{"

    def _parameter(self, handle: str, kind: str) -> Value:
        element = BY_NAME.get(kind)
        if element is not None:
            return Vec(self, handle, element, 1)
        return Ptr(self, handle) if kind == "ptr" else Int(self, handle)

    def _finish(self, value: Value | None) -> None:
        if self._open:
            raise LanguageError(f"{self.function.name} returns inside a loop or branch")
        value = self.returned(self.function, value)
        kind = _TYPES[self.function.result]
        self._emit("ret void" if value is None else f"ret {kind} {value.handle}")

    # -- integers, conditions, pointers ---------------------------------------------------------
    def const(self, value: IntLike) -> Int:
        return value if isinstance(value, Int) else Int(self, str(value), value)

    def int_op(self, op: str, a: Int, b: Int) -> Int:
        if a.const is not None and b.const is not None:
            return self.const(_FOLD[op](a.const, b.const))
        if op in ("add", "mul") and a.const is not None:
            a, b = b, a
        if (op in ("add", "sub") and b.const == 0) or (op in ("mul", "udiv") and b.const == 1):
            return a
        if op == "mul" and b.const == 0:
            return self.const(0)
        flags = " nsw" if op in ("add", "sub", "mul") else ""
        return Int(self, self._let(f"{op}{flags} i64 {a.handle}, {b.handle}"))

    def compare(self, predicate: str, a: Int, b: Int) -> Cond:
        return Cond(self, self._let(f"icmp {predicate} i64 {a.handle}, {b.handle}"))

    def cond_op(self, op: str, a: Cond, b: Cond) -> Cond:
        return Cond(self, self._let(f"{op} i1 {a.handle}, {b.handle}"))

    def cond_not(self, a: Cond) -> Cond:
        return Cond(self, self._let(f"xor i1 {a.handle}, true"))

    def select(self, cond: Cond, yes: T, no: T) -> T:
        ty = self._type_of(yes)
        return self._like(
            yes, self._let(f"select i1 {cond.handle}, {ty} {yes.handle}, {ty} {no.handle}")
        )

    def offset(self, p: Ptr, by: Int) -> Ptr:
        if by.const == 0:
            return p
        return Ptr(self, self._let(f"getelementptr i8, ptr {p.handle}, i64 {by.handle}"))

    def misalignment(self, p: Ptr, size: int) -> Int:
        number = self._let(f"ptrtoint ptr {p.handle} to i64")
        return Int(self, self._let(f"and i64 {number}, {size - 1}"))

    def opaque(self, x: T) -> T:
        ty = self._type_of(x)
        return self._like(x, self._let(f'call {ty} asm sideeffect "", "=r,0"({ty} {x.handle})'))

    # -- memory ---------------------------------------------------------------------------------
    def load_int(self, p: Ptr) -> Int:
        return Int(self, self._let(f"load i64, ptr {p.handle}, align 8"))

    def store_int(self, p: Ptr, value: IntLike) -> None:
        self._emit(f"store i64 {self.const(value).handle}, ptr {p.handle}, align 8")

    def load_ptr(self, p: Ptr) -> Ptr:
        return Ptr(self, self._let(f"load ptr, ptr {p.handle}, align 8"))

    def store_ptr(self, p: Ptr, value: Ptr) -> None:
        self._emit(f"store ptr {value.handle}, ptr {p.handle}, align 8")

    def load(
        self,
        p: Ptr,
        element: ElementType,
        lanes: int = 1,
        mask: Mask | None = None,
        other: Vec | None = None,
    ) -> Vec:
        v = self.vector_type(element, lanes)
        if mask is None:
            return Vec(self, self._let(f"load {v}, ptr {p.handle}, align 1"), element, lanes)
        self.check_mask(mask, lanes)
        wide, m, suffix, bits = self._masked(element, mask)
        name = f"llvm.masked.load.{suffix}.p0"
        self.module.declare(f"declare {wide} @{name}(ptr, i32 immarg, {m}, {wide})")
        rest = "zeroinitializer" if other is None else self._widen(other)
        handle = self._let(f"call {wide} @{name}(ptr {p.handle}, i32 1, {m} {bits}, {wide} {rest})")
        if lanes == 1:
            handle = self._let(f"extractelement {wide} {handle}, i64 0")
        return Vec(self, handle, element, lanes)

    def _widen(self, value: Vec) -> str:
        """A scalar as a vector of one, for intrinsics that know no scalars."""
        if value.lanes > 1:
            return str(value.handle)
        wide, v = f"<1 x {value.element.llvm}>", value.element.llvm
        return self._let(f"insertelement {wide} poison, {v} {value.handle}, i64 0")

    def store(self, p: Ptr, value: Vec, mask: Mask | None = None) -> None:
        v = self.vector_type(value.element, value.lanes)
        if mask is None:
            self._emit(f"store {v} {value.handle}, ptr {p.handle}, align 1")
            return
        self.check_mask(mask, value.lanes)
        wide, m, suffix, bits = self._masked(value.element, mask)
        name = f"llvm.masked.store.{suffix}.p0"
        self.module.declare(f"declare void @{name}({wide}, ptr, i32 immarg, {m})")
        handle = self._widen(value)
        self._emit(f"call void @{name}({wide} {handle}, ptr {p.handle}, i32 1, {m} {bits})")

    def _masked(self, element: ElementType, mask: Mask) -> tuple[str, str, str, str]:
        """Vector type, mask type, suffix and mask value; the intrinsics know no scalars."""
        lanes, bits = mask.lanes, mask.handle
        if lanes == 1:
            bits = self._let(f"insertelement <1 x i1> poison, i1 {bits}, i64 0")
        return f"<{lanes} x {element.llvm}>", f"<{lanes} x i1>", f"v{lanes}{element.suffix}", bits

    def gather(
        self,
        p: Ptr,
        offsets: Vec,
        element: ElementType,
        mask: Mask | None = None,
        other: Vec | None = None,
    ) -> Vec:
        self.check_gather(offsets, element, mask, other)
        lanes = offsets.lanes
        # Instructions gather words of 32 and 64 bits.
        if lanes == 1 or not self.isa.gathers or element.bytes < 4:
            return self._gather_by_lane(p, offsets, element, mask, other)
        wide, m = self.vector_type(element, lanes), f"<{lanes} x i1>"
        places, name = f"<{lanes} x ptr>", f"llvm.masked.gather.v{lanes}{element.suffix}.v{lanes}p0"
        self.module.declare(f"declare {wide} @{name}({places}, i32 immarg, {m}, {wide})")
        by = f"{self._type_of(offsets)} {offsets.handle}"
        at = self._let(f"getelementptr i8, ptr {p.handle}, {by}")
        live = f"<{', '.join(['i1 true'] * lanes)}>" if mask is None else mask.handle
        rest = "zeroinitializer" if other is None else other.handle
        handle = self._let(f"call {wide} @{name}({places} {at}, i32 1, {m} {live}, {wide} {rest})")
        return Vec(self, handle, element, lanes)

    def _gather_by_lane(
        self, p: Ptr, offsets: Vec, element: ElementType, mask: Mask | None, other: Vec | None
    ) -> Vec:
        found = self.var(self.zero(element, offsets.lanes) if other is None else other)
        for lane in range(offsets.lanes):
            at = p + self.integer(self.extract(offsets, lane))
            if mask is None:
                found.value = self.insert(found.value, lane, self.load(at, element))
                continue
            for _ in self.when(self.lane(mask, lane)):
                found.value = self.insert(found.value, lane, self.load(at, element))
        return found.value

    def prefetch(self, p: Ptr, *, write: bool = False, near: bool = True) -> None:
        self.module.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        how = f"i32 {int(write)}, i32 {3 if near else 2}, i32 1"
        self._emit(f"call void @llvm.prefetch.p0(ptr {p.handle}, {how})")

    def scratch(self, size: int) -> Ptr:
        name = self._name()
        self._allocas.append(f"  {name} = alloca [{size} x i8], align 64")
        return Ptr(self, name)

    def var(self, initial: T) -> Var[T]:
        ty, name = self._type_of(initial), self._name()
        self._allocas.append(f"  {name} = alloca {ty}")

        def read() -> T:
            return self._like(initial, self._let(f"load {ty}, ptr {name}"))

        def write(new: T) -> None:
            self._emit(f"store {ty} {new.handle}, ptr {name}")

        write(initial)
        return Var(read, write)

    # -- tiles of a matrix unit -----------------------------------------------------------------
    def _tell(self, word: Word, state: Ptr, **operands: int | Ptr | Int) -> None:
        """Tell the matrix unit one thing, as it is spelled: in text, or by what emulates it."""
        if not isinstance(word, Text):
            word(self, state, *operands.values())
            return
        every: dict[str, int | Ptr | Int] = {"state": state, **operands}
        self._write(word, {k: str(x) if isinstance(x, int) else x.handle for k, x in every.items()})

    def _write(self, word: Text, operands: dict[str, str]) -> Holes:
        """Write the lines of a word; the names of its result and temporaries."""
        holes = Holes(self._name, {}, operands.items())
        for line in word.declares.splitlines():
            self.module.declare(line)
        for line in word.lines:
            self._emit(line.format_map(holes))
        return holes

    def configure_tiles(self, state: Ptr, heights: IntLike) -> None:
        unit = matrix_unit(self.isa)
        if not unit.palette:
            self._tell(unit.configure, state, heights=self.const(heights))
            return
        palette = self.scratch(_WORD * len(unit.palette))
        for i, word in enumerate(unit.palette):
            self.store_int(palette + _WORD * i, heights if word is None else word)
        self._tell(unit.configure, state, p=palette)

    def release_tiles(self, state: Ptr) -> None:
        self._tell(matrix_unit(self.isa).release, state)

    def zero_tile(self, state: Ptr, tile: int) -> None:
        self._tell(matrix_unit(self.isa).zero, state, tile=tile)

    def load_tile(self, state: Ptr, tile: int, p: Ptr, stride: Int) -> None:
        self._tell(matrix_unit(self.isa).load, state, tile=tile, p=p, stride=stride)

    def store_tile(self, state: Ptr, tile: int, p: Ptr, stride: Int) -> None:
        self._tell(matrix_unit(self.isa).store, state, tile=tile, p=p, stride=stride)

    def fold_tiles(self, state: Ptr, name: str, total: int, a: int, b: int) -> None:
        self._tell(product_of(self.isa, name).word, state, total=total, a=a, b=b)

    # -- outer products -------------------------------------------------------------------------
    def call_inside(self, function: Function, *args: IntLike | Ptr) -> None:
        mode, kept = outer_unit(self.isa).mode, self.scratch(_WORD)
        symbol = self.module.need(function, RunsIn.ENTERED)
        values = [*self.arguments(function, args), kept]
        texts = ", ".join(f"{self._type_of(value)} {value.handle}" for value in values)
        self._write(mode.enter, {"kept": kept.handle})
        self._emit(f"call void @{symbol}({texts})")
        self._write(mode.leave, {"kept": kept.handle})

    def zero_sums(self, tile: int, element: ElementType) -> None:
        unit = outer_unit(self.isa)
        self._write(unit.zero, {"bits": str(unit.bytes_of(tile, element))})

    def fold_outer(self, name: str, total: int, a: Vec, b: Vec) -> None:
        word = product_of(self.isa, name).word
        assert isinstance(word, Text)
        self._write(word, {"total": str(total), "a": a.handle, "b": b.handle})

    def load_adjacent(self, p: Ptr, element: ElementType, count: int) -> list[Vec]:
        words = outer_unit(self.isa).several if isinstance(self.isa.unit, OuterUnit) else {}
        lanes, found = self.isa.lanes(element), list[Vec]()
        while len(found) < count:
            at = p + len(found) * lanes * element.bytes
            size = next(
                (n for n in (4, 2) if len(found) + n <= count and f"{element}x{n}" in words), 1
            )
            if size == 1:
                found.append(self.load(at, element, lanes))
                continue
            holes = self._write(words[f"{element}x{size}"], {"p": at.handle})
            found += [Vec(self, holes[f"tr{i}"], element, lanes) for i in range(size)]
        return found

    def row_of_sums(self, tile: int, index: Int, element: ElementType) -> Vec:
        unit = outer_unit(self.isa)
        holes = self._write(unit.row[element.name], {"tile": str(tile), "index": index.handle})
        return Vec(self, holes["r"], element, unit.words(element))

    # -- control --------------------------------------------------------------------------------
    def range(self, start: IntLike, stop: IntLike, step: IntLike = 1) -> Iterator[Int]:
        first, last, by = self.const(start), self.const(stop), self.const(step)
        body, done = self._label(), self._label()
        enter = self.compare("slt", first, last)
        self._emit(f"br i1 {enter.handle}, label %{body}, label %{done}")
        before = self._block
        self._start(body)
        counter = self._name()
        phi = self._emit("")
        self._open += 1
        yield Int(self, counter)
        self._open -= 1
        following = self._let(f"add nuw nsw i64 {counter}, {by.handle}")
        again = self._let(f"icmp slt i64 {following}, {last.handle}")
        self._lines[phi] = (
            f"  {counter} = phi i64 [ {first.handle}, %{before} ], [ {following}, %{self._block} ]"
        )
        self._emit(f"br i1 {again}, label %{body}, label %{done}")
        self._start(done)

    def branches(self, cond: Cond) -> Iterator[bool]:
        self.check_condition(cond)
        yes, no, done = self._label(), self._label(), self._label()
        self._emit(f"br i1 {cond.handle}, label %{yes}, label %{no}")
        for label, taken in ((yes, True), (no, False)):
            self._start(label)
            self._open += 1
            yield taken
            self._open -= 1
            self._emit(f"br label %{done}")
        self._start(done)

    def cases(self, value: Int, labels: Iterator[int] | list[int]) -> Iterator[int]:
        numbers = list(labels)
        blocks = [self._label() for _ in numbers]
        never, done = self._label(), self._label()
        table = " ".join(f"i64 {n}, label %{b}" for n, b in zip(numbers, blocks, strict=True))
        self._emit(f"switch i64 {value.handle}, label %{never} [ {table} ]")
        for number, block in zip(numbers, blocks, strict=True):
            self._start(block)
            self._open += 1
            yield number
            self._open -= 1
            self._emit(f"br label %{done}")
        self._start(never)
        self._emit("unreachable")
        self._start(done)

    def repeat_while(self, cond: Callable[[], Cond]) -> Iterator[None]:
        head, body, done = self._label(), self._label(), self._label()
        self._emit(f"br label %{head}")
        self._start(head)
        test = cond()
        self._emit(f"br i1 {test.handle}, label %{body}, label %{done}")
        self._start(body)
        self._open += 1
        yield
        self._open -= 1
        self._emit(f"br label %{head}")
        self._start(done)

    def call(self, function: Function, *args: IntLike | Ptr | Vec | float) -> Any:
        inside = self.mode is not RunsIn.NORMAL
        symbol = self.module.need(function, RunsIn.INSIDE if inside else RunsIn.NORMAL)
        values = self.arguments(function, args)
        texts = ", ".join(f"{self._type_of(value)} {value.handle}" for value in values)
        text = f"call {_TYPES[function.result]} @{symbol}({texts})"
        if function.result == "void":
            self._emit(text)
            return None
        return self._parameter(self._let(text), function.result)
