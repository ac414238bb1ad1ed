"""How numbers of the operands' types are multiplied: what the microkernel reads, folds and adds.

A microkernel broadcasts *words* of A and loads vectors of words of B.  Where operands are numbers
of the sums' own type a word is a number.  For narrower ones a word holds what one instruction
folds: four 8-bit numbers (``dot4``) or two 16-bit ones (``dot2``), one step of depth each.  What
is no word yet becomes one while it is packed: A chunk by chunk, B panel by panel.

Three levels, the first that is exact: the operands' own numbers; numbers widened to a type that
holds them; floats.  Never a type narrower than the result's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitgemm.isa.matrix import product_name
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import BF16, F32, F64, I16, I32, I64, ElementType

__all__ = ["Arithmetic", "Types", "arithmetic_for", "sum_type", "tiled"]


@dataclass(frozen=True, slots=True)
class Types:
    """Element types of the operands in memory."""

    a: ElementType
    b: ElementType
    c: ElementType
    bias: ElementType
    out: ElementType
    bf16_dot: bool = False
    """bfloat16 may be multiplied by the instruction that treats subnormal numbers as zeros."""

    @staticmethod
    def of(element: ElementType) -> Types:
        """One type for all."""
        return Types(element, element, element, element, element)

    @property
    def transposed(self) -> Types:
        """Those of the product with A and B exchanged."""
        return replace(self, a=self.b, b=self.a)

    def plain(self, element: ElementType) -> bool:
        """Whether every operand holds numbers of ``element``, up to signs."""
        every = (self.a, self.b, self.c, self.bias, self.out)
        return all(_same(x, element) for x in every)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Words, and how two of them are multiplied into a sum."""

    types: Types
    piece: ElementType
    """A number in a word of A."""
    packed: ElementType
    """A number in a micropanel of B: a piece, or what becomes one while it is read."""
    group: int = 1
    """Steps of depth per word."""
    fold: str = "madd"
    exchanged: bool = False
    """``fold`` takes B's word first: of a ``dot4`` the unsigned operand."""
    flip: bool = False
    """A's numbers are moved by half their range, to the other signedness."""
    kept: ElementType | None = None
    """A number in a micropanel in memory, if a micropanel is widened before many rows meet it."""
    tiles: bool = False
    """``fold`` is an operation of a matrix unit, on tiles of words."""

    @property
    def word_bytes(self) -> int:
        """Bytes of a word of A."""
        return self.piece.bytes * self.group

    @property
    def copies_a(self) -> bool:
        """Whether A in memory is not yet made of words."""
        return self.flip or not _same(self.types.a, self.piece)

    @property
    def reads_b(self) -> bool:
        """Whether B in memory is what micropanels are made of, but for its layout."""
        return self.group == 1 and _same(self.types.b, self.packed)

    @property
    def for_many_rows(self) -> Arithmetic:
        """The same with halves of B widened once per micropanel, not once per microtile."""
        if self.group > 1 or not self.packed.format:
            return self
        return replace(self, packed=self.piece, kept=self.packed)

    def __str__(self) -> str:
        """How the operands' numbers become words, for :meth:`jitgemm.Plan.explain`."""
        kinds = {x.name: x for x in (self.types.a, self.types.b)}
        changed = [name for name, x in kinds.items() if not _same(x, self.piece)]
        numbers = f"{' and '.join(changed)} as {self.piece}" if changed else "numbers as they are"
        words = f", {self.group} to a word" if self.group > 1 else ""
        flipped = ", those of A with the other signedness" if self.flip else ""
        wide = ", B's once for all rows" if self.kept is not None else ""
        return f"types: {numbers}{words}{flipped}{wide}; {self.fold}"

    @property
    def rests_apart(self) -> bool:
        """Whether sums cannot rest in the result between depth blocks."""
        return self.types.out.bits < 8 * self.word_bytes or bool(self.types.out.format)


def _same(x: ElementType, y: ElementType) -> bool:
    """Whether numbers of two types are the same bits, and multiply alike modulo ``2**bits``."""
    return x is y or (x.integral and y.integral and x.bits == y.bits)


def sum_type(types: Types) -> ElementType:
    """The type of the sums.

    Integers add up in 32 bits, or in 64 if the result has more than 32; halves in f32.
    """
    if types.out.integral:
        return I64 if types.out.bits == 64 else I32
    return F64 if types.out is F64 else F32


def _fits(x: ElementType, y: ElementType) -> bool:
    """Whether ``y`` holds every number of ``x``, both integers."""
    if x.signed == y.signed:
        return x.bits <= y.bits
    return y.signed and x.bits < y.bits


def tiled(types: Types, isa: Isa) -> Arithmetic | None:
    """The arithmetic on a matrix unit, for those types that the machine's one multiplies.

    It reads the micropanels of :func:`arithmetic_for`; 8-bit numbers of either sign are multiplied
    as they are.
    """
    a, b = types.a, types.b
    narrow = a.integral and a.bits == b.bits == 8 and sum_type(types) is I32
    halves = types.bf16_dot and a is b is BF16 and sum_type(types) is F32
    if not isa.tiles or not (narrow or halves):
        return None
    return Arithmetic(types, a, b, 2 if halves else 4, product_name(a, b), tiles=True)


def arithmetic_for(types: Types, element: ElementType, isa: Isa) -> Arithmetic:
    """The arithmetic of sums of type ``element``, in vectors."""
    a, b = types.a, types.b
    if not element.integral:
        if types.bf16_dot and a is b is BF16 and element is F32 and "bf16_dot" in isa.ops:
            return Arithmetic(types, BF16, BF16, 2, "bf16_dot")
        # Halves stay as they are in micropanels: half the memory to read where rows are few.
        packed = b if b.format else element
        return Arithmetic(types, element, packed)
    if element is I32:
        if a.bits == b.bits == 8 and "dot4" in isa.integers:
            flip = a.signed == b.signed
            return Arithmetic(types, a, b, 4, "dot4", exchanged=not b.signed, flip=flip)
        # Of the products of longer numbers only the last bits are right, which may be all there is.
        exact = _fits(a, I16) and _fits(b, I16)
        if exact or (types.out.bits <= 16 and a.bits <= 16 and b.bits <= 16):
            return Arithmetic(types, I16, I16, 2, "dot2")
        return Arithmetic(types, I32, I32)
    return Arithmetic(types, I64, I64)
