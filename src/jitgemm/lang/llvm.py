"""LLVM backend: writes the text of an LLVM module from kernel sources.

The text is written directly rather than through ``llvmlite.ir``: it is five to ten times faster to
build, and a first product with an empty cache pays for every instruction (docs/adr/0002).
Variables become ``alloca`` slots that LLVM's SROA turns back into registers; a codegen test
checks that none survives in a hot loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jitgemm.errors import LanguageError
from jitgemm.isa.conversions import conversion
from jitgemm.isa.matrix import Text, Word
from jitgemm.isa.types import ElementType
from jitgemm.lang.core import Cond, Function, Int, IntLike, Mask, Ptr, T, Var, Vec
from jitgemm.lang.module import LlvmModule
from jitgemm.lang.template import Holes, conversion_holes, number_text, shape_holes
from jitgemm.lang.threads import ThreadWords
from jitgemm.lang.tiles import matrix_unit, product_of

__all__ = ["LlvmKernel"]

_WORD = 8
_TYPES = {"int": "i64", "ptr": "ptr"}
_FOLD: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "udiv": lambda a, b: a // b,
    "urem": lambda a, b: a % b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
}


class LlvmKernel(ThreadWords):
    """Writes one function."""

    def __init__(self, module: LlvmModule, function: Function) -> None:
        self.module, self.isa, self.function = module, module.isa, function
        self._lines: list[str] = []
        self._allocas: list[str] = []
        self._count = 0
        self._block = "entry"

    # -- text -----------------------------------------------------------------------------------
    def define(self, *, external: bool) -> str:
        """The function's text."""
        args: list[Int | Ptr] = []
        for name, kind in self.function.params:
            args.append(Ptr(self, f"%{name}") if kind == "ptr" else Int(self, f"%{name}"))
        self.function.body(self, *args)
        self._finish()
        params = ", ".join(f"{_TYPES[kind]} %{name}" for name, kind in self.function.params)
        head = self.header(params, external=external)
        return "\n".join([head, "entry:", *self._allocas, *self._lines, "}"])

    def header(self, params: str, *, external: bool) -> str:
        """The ``define`` line."""
        linkage = "" if external else "internal "
        return f"define {linkage}void @{self.function.name}({params}) noinline #0 {{"

    def _finish(self) -> None:
        self._emit("ret void")

    def _emit(self, line: str) -> int:
        self._lines.append("  " + line)
        return len(self._lines) - 1

    def _name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def _let(self, text: str) -> str:
        name = self._name()
        self._emit(f"{name} = {text}")
        return name

    def _label(self) -> str:
        self._count += 1
        return f"b{self._count}"

    def _start(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._block = label

    # -- types ----------------------------------------------------------------------------------
    @staticmethod
    def vector_type(element: ElementType, lanes: int) -> str:
        """LLVM's spelling of ``lanes`` elements."""
        return element.llvm if lanes == 1 else f"<{lanes} x {element.llvm}>"

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

    def _type_of(self, x: Int | Ptr | Vec) -> str:
        if isinstance(x, Vec):
            return self.vector_type(x.element, x.lanes)
        return "i64" if isinstance(x, Int) else "ptr"

    def _like(self, x: T, handle: str) -> T:
        if isinstance(x, Vec):
            return Vec(self, handle, x.element, x.lanes)
        return Int(self, handle) if isinstance(x, Int) else Ptr(self, handle)

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

    def prefetch(self, p: Ptr, *, write: bool = False, near: bool = True) -> None:
        self.module.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        how = f"i32 {int(write)}, i32 {3 if near else 2}, i32 1"
        self._emit(f"call void @llvm.prefetch.p0(ptr {p.handle}, {how})")

    def scratch(self, size: int) -> Ptr:
        name = self._name()
        self._allocas.append(f"  {name} = alloca [{size} x i8], align 64")
        return Ptr(self, name)

    # -- vectors --------------------------------------------------------------------------------
    def zero(self, element: ElementType, lanes: int) -> Vec:
        text = "zeroinitializer" if lanes > 1 else "0" if element.llvm[0] == "i" else "0.0"
        return Vec(self, text, element, lanes)

    def splat(self, scalar: Vec, lanes: int) -> Vec:
        if lanes == 1:
            return scalar
        v, e = self.vector_type(scalar.element, lanes), scalar.element.llvm
        first = self._let(f"insertelement {v} poison, {e} {scalar.handle}, i64 0")
        handle = self._let(
            f"shufflevector {v} {first}, {v} poison, <{lanes} x i32> zeroinitializer"
        )
        return Vec(self, handle, scalar.element, lanes)

    def op(self, name: str, *args: Vec) -> Vec:
        shape = args[0]
        row = self.isa.table(shape.element).get(name)
        if row is None or not row.text or shape.element.format:
            raise LanguageError(f"{self.isa.name} has no operation {name!r} on {shape.element}")
        if len(args) != row.arity:
            raise LanguageError(f"{name} takes {row.arity} operands, not {len(args)}")
        if any((x.element, x.lanes) != (shape.element, shape.lanes) for x in args):
            raise LanguageError(f"{name}: operands of different shapes")
        operands = zip("abcd", (x.handle for x in args), strict=False)
        holes = Holes(self._name, shape_holes(shape.element, shape.lanes), operands)
        for line in row.text:
            text = line.format_map(holes)
            one = self.zero(shape.element, 1).handle
            self._emit(text.replace("zeroinitializer", one) if shape.lanes == 1 else text)
        for line in row.declares.splitlines():
            self.module.declare(line.format_map(holes))
        return Vec(self, holes["r"], shape.element, shape.lanes)

    def convert(self, x: Vec, element: ElementType) -> Vec:
        for row, target in conversion(x.element, element, half=self.isa.half):
            shape = conversion_holes(x.element, target, x.lanes)
            holes = Holes(self._name, shape, [("a", x.handle)])
            for line in row.text:
                text = line.format_map(holes)
                self._emit(text.replace("zeroinitializer", "0") if x.lanes == 1 else text)
            x = Vec(self, holes["r"], target, x.lanes)
        return Vec(self, x.handle, element, x.lanes)

    def bits(self, x: Vec, element: ElementType) -> Vec:
        lanes = x.lanes * x.element.bytes // element.bytes
        source, target = (self.vector_type(*t) for t in ((x.element, x.lanes), (element, lanes)))
        if lanes * element.bytes != x.lanes * x.element.bytes:
            raise LanguageError(f"bits: {source} is no whole number of {element}")
        if source == target:
            return Vec(self, x.handle, element, lanes)
        return Vec(self, self._let(f"bitcast {source} {x.handle} to {target}"), element, lanes)

    def shuffle(self, a: Vec, b: Vec, lanes: Sequence[int]) -> Vec:
        if (a.element, a.lanes) != (b.element, b.lanes) or a.lanes == 1 or len(lanes) == 1:
            raise LanguageError("shuffle: operands of different shapes, or a scalar")
        v = self.vector_type(a.element, a.lanes)
        order = ", ".join(f"i32 {i}" for i in lanes)
        handle = self._let(
            f"shufflevector {v} {a.handle}, {v} {b.handle}, <{len(lanes)} x i32> <{order}>"
        )
        return Vec(self, handle, a.element, len(lanes))

    def number(self, value: Int, element: ElementType) -> Vec:
        if not element.integral:
            return Vec(self, self._let(f"sitofp i64 {value.handle} to {element.llvm}"), element, 1)
        if element.bits == 64:
            return Vec(self, value.handle, element, 1)
        return Vec(self, self._let(f"trunc i64 {value.handle} to {element.llvm}"), element, 1)

    def steps(self, element: ElementType, lanes: int) -> Vec:
        return self._constants([float(i) for i in range(lanes)], element)

    def literal(self, value: float, element: ElementType, lanes: int) -> Vec:
        return self._constants([value] * lanes, element)

    def _constants(self, values: Sequence[float], element: ElementType) -> Vec:
        texts = [number_text(value, element) for value in values]
        every = ", ".join(f"{element.llvm} {text}" for text in texts)
        return Vec(self, texts[0] if len(texts) == 1 else f"<{every}>", element, len(texts))

    def mask(self, count: IntLike, element: ElementType, lanes: int) -> Mask:
        c = self.const(count)
        if lanes == 1:
            return Mask(self, self._let(f"icmp sgt i64 {c.handle}, 0"), 1)
        # Clamp first: the comparison is made in elements-wide integers.
        clamped = self.select(c < lanes, c, self.const(lanes))
        n = self.select(clamped > 0, clamped, self.const(0))
        wide = f"<{lanes} x i{element.bits}>"
        narrow = n.handle
        if element.bits < 64:
            narrow = self._let(f"trunc i64 {n.handle} to i{element.bits}")
        first = self._let(f"insertelement {wide} poison, i{element.bits} {narrow}, i64 0")
        every = self._let(
            f"shufflevector {wide} {first}, {wide} poison, <{lanes} x i32> zeroinitializer"
        )
        steps = ", ".join(f"i{element.bits} {i}" for i in range(lanes))
        return Mask(self, self._let(f"icmp ult {wide} <{steps}>, {every}"), lanes)

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
        named = {k: str(x) if isinstance(x, int) else x.handle for k, x in every.items()}
        holes = Holes(self._name, {}, named.items())
        for line in word.declares.splitlines():
            self.module.declare(line)
        for line in word.lines:
            self._emit(line.format_map(holes))

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
        yield Int(self, counter)
        following = self._let(f"add nuw nsw i64 {counter}, {by.handle}")
        again = self._let(f"icmp slt i64 {following}, {last.handle}")
        self._lines[phi] = (
            f"  {counter} = phi i64 [ {first.handle}, %{before} ], [ {following}, %{self._block} ]"
        )
        self._emit(f"br i1 {again}, label %{body}, label %{done}")
        self._start(done)

    def branches(self, cond: Cond) -> Iterator[bool]:
        yes, no, done = self._label(), self._label(), self._label()
        self._emit(f"br i1 {cond.handle}, label %{yes}, label %{no}")
        for label, taken in ((yes, True), (no, False)):
            self._start(label)
            yield taken
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
            yield number
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
        yield
        self._emit(f"br label %{head}")
        self._start(done)

    def call(self, function: Function, *args: IntLike | Ptr) -> None:
        symbol = self.module.need(function)
        self._emit(f"call void @{symbol}({self._arguments(function, args)})")

    def _arguments(self, function: Function, args: tuple[Any, ...]) -> str:
        if len(args) != len(function.params):
            raise LanguageError(f"{function.name} takes {len(function.params)} arguments")
        texts = []
        for (name, kind), arg in zip(function.params, args, strict=True):
            value = arg if isinstance(arg, Ptr) else self.const(arg)
            if (kind == "ptr") != isinstance(value, Ptr):
                raise LanguageError(f"{function.name}: {name} must be {kind}")
            texts.append(f"{_TYPES[kind]} {value.handle}")
        return ", ".join(texts)
