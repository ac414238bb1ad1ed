"""The words about vectors and masks, as the LLVM backend writes them."""

from __future__ import annotations

from collections.abc import Sequence

from jitgemm.errors import LanguageError
from jitgemm.isa.comparisons import COMPARISONS
from jitgemm.isa.conversions import conversion
from jitgemm.isa.types import ElementType
from jitgemm.lang.core import Cond, Int, IntLike, Mask, Vec
from jitgemm.lang.lines import Lines
from jitgemm.lang.template import Holes, conversion_holes, number_text, shape_holes

__all__ = ["VectorText"]

_WORD = 64


class VectorText(Lines):
    """Part of the LLVM backend."""

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

    def extract(self, x: Vec, lane: int) -> Vec:
        self.check_lane(x.lanes, lane)
        if x.lanes == 1:
            return x
        handle = self._let(f"extractelement {self._type_of(x)} {x.handle}, i64 {lane}")
        return Vec(self, handle, x.element, 1)

    def insert(self, x: Vec, lane: int, scalar: Vec) -> Vec:
        self.check_lane(x.lanes, lane)
        self.check_scalar(scalar, x.element)
        if x.lanes == 1:
            return scalar
        one = f"{self._type_of(scalar)} {scalar.handle}"
        handle = self._let(f"insertelement {self._type_of(x)} {x.handle}, {one}, i64 {lane}")
        return Vec(self, handle, x.element, x.lanes)

    def integer(self, scalar: Vec) -> Int:
        element = scalar.element
        self.check_integer(scalar)
        if element.bits == _WORD:
            return Int(self, scalar.handle)
        word = "sext" if element.signed else "zext"
        return Int(self, self._let(f"{word} {element.llvm} {scalar.handle} to i64"))

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

    # -- masks ----------------------------------------------------------------------------------
    @staticmethod
    def _mask_type(lanes: int) -> str:
        return "i1" if lanes == 1 else f"<{lanes} x i1>"

    def compare_lanes(self, predicate: str, a: Vec, b: Vec) -> Mask:
        self.check_same(predicate, a, b)
        what = COMPARISONS[predicate].text(a.element)
        return Mask(self, self._let(f"{what} {self._type_of(a)} {a.handle}, {b.handle}"), a.lanes)

    def mask_op(self, op: str, a: Mask, b: Mask) -> Mask:
        self.check_mask(b, a.lanes)
        kind = self._mask_type(a.lanes)
        return Mask(self, self._let(f"{op} {kind} {a.handle}, {b.handle}"), a.lanes)

    def mask_not(self, a: Mask) -> Mask:
        every = "true" if a.lanes == 1 else f"<{', '.join(['i1 true'] * a.lanes)}>"
        return Mask(self, self._let(f"xor {self._mask_type(a.lanes)} {a.handle}, {every}"), a.lanes)

    def choose(self, mask: Mask, yes: Vec, no: Vec) -> Vec:
        self.check_same("choose", yes, no)
        self.check_mask(mask, yes.lanes)
        v, m = self._type_of(yes), self._mask_type(mask.lanes)
        handle = self._let(f"select {m} {mask.handle}, {v} {yes.handle}, {v} {no.handle}")
        return Vec(self, handle, yes.element, yes.lanes)

    def lane(self, mask: Mask, lane: int) -> Cond:
        self.check_lane(mask.lanes, lane)
        if mask.lanes == 1:
            return Cond(self, mask.handle)
        kind = self._mask_type(mask.lanes)
        return Cond(self, self._let(f"extractelement {kind} {mask.handle}, i64 {lane}"))

    def _bits_of(self, mask: Mask) -> tuple[str, str]:
        """A mask as a number of as many bits: its type and value."""
        kind = f"i{mask.lanes}"
        if mask.lanes == 1:
            return kind, mask.handle
        return kind, self._let(f"bitcast {self._mask_type(mask.lanes)} {mask.handle} to {kind}")

    def any(self, mask: Mask) -> Cond:
        kind, bits = self._bits_of(mask)
        return Cond(self, self._let(f"icmp ne {kind} {bits}, 0"))

    def all(self, mask: Mask) -> Cond:
        kind, bits = self._bits_of(mask)
        return Cond(self, self._let(f"icmp eq {kind} {bits}, -1"))

    def count(self, mask: Mask) -> Int:
        kind, bits = self._bits_of(mask)
        wide = f"i{max(_WORD, mask.lanes)}"
        if kind != wide:
            bits = self._let(f"zext {kind} {bits} to {wide}")
        self.module.declare(f"declare {wide} @llvm.ctpop.{wide}({wide})")
        found = self._let(f"call {wide} @llvm.ctpop.{wide}({wide} {bits})")
        if mask.lanes > _WORD:
            found = self._let(f"trunc {wide} {found} to i64")
        return Int(self, found)
