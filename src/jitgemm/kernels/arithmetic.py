"""How numbers of the operands' types are multiplied: what the microkernel reads and accumulates.

A microkernel broadcasts *k-groups* of A and loads vectors of k-groups of B.  Where operands are
numbers of the sums' own type a k-group is a number.  For narrower ones it holds what one
dot-accumulate instruction takes: four 8-bit numbers (``dot4`` and its like) or two 16-bit ones
(``dot2``), one step of depth each.  What is no k-group yet becomes one while it is packed: A chunk
by chunk, B panel by panel.

Three levels, the first that is exact: the operands' own numbers; numbers widened to a type that
holds them; floats.  Never a type narrower than the result's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from jitgemm.isa.integers import fold_of
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import BF16, F32, F64, I16, I32, I64, ElementType

__all__ = [
    "CANDIDATES",
    "Arithmetic",
    "OperandTypes",
    "Wanted",
    "arithmetic_for",
    "shares_panels",
    "sum_type",
    "tiled",
]


@dataclass(frozen=True, slots=True)
class OperandTypes:
    """Element types of the operands in memory."""

    a: ElementType
    b: ElementType
    c: ElementType
    bias: ElementType
    out: ElementType
    bf16_dot: bool = False
    """bfloat16 may be multiplied by the instruction that treats subnormal numbers as zeros."""

    @staticmethod
    def of(element: ElementType) -> OperandTypes:
        """One type for all."""
        return OperandTypes(element, element, element, element, element)

    @property
    def transposed(self) -> OperandTypes:
        """Those of the product with A and B exchanged."""
        return replace(self, a=self.b, b=self.a)

    def sum_in_lanes(self, element: ElementType) -> bool:
        """Whether one row times one column is summed in lanes (``kernels.dot``).

        A and B are numbers of the sums' type or halves, whose sums are rounded all the same.
        """
        if self.bf16_dot or (element.integral and not self.plain(element)):
            return False
        return all(_same(x, element) or bool(x.format) for x in (self.a, self.b))

    def plain(self, element: ElementType) -> bool:
        """Whether every operand holds numbers of ``element``, up to signs."""
        every = (self.a, self.b, self.c, self.bias, self.out)
        return all(_same(x, element) for x in every)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """K-groups, and how two of them are multiplied into a sum."""

    types: OperandTypes
    a_element: ElementType
    """A number in a k-group of A."""
    b_element: ElementType
    """A number in a micropanel of B: one of a k-group, or what becomes one while it is read."""
    group: int = 1
    """Steps of depth per k-group."""
    accumulate: str = "madd"
    exchanged: bool = False
    """``accumulate`` takes B's k-group first, as folds of two signednesses do (``dot4``)."""
    flip: bool = False
    """A's numbers are moved by half their range, to the other signedness."""
    stored: ElementType | None = None
    """A number in a micropanel in memory, if it is upconverted before many rows meet it."""
    tiles: bool = False
    """``accumulate`` is an operation of a matrix unit, on tiles of k-groups."""

    @property
    def group_bytes(self) -> int:
        """Bytes of a k-group of A."""
        return self.a_element.bytes * self.group

    @staticmethod
    def plain_of(element: ElementType) -> Arithmetic:
        """That of operands which all hold numbers of the sums' type."""
        return Arithmetic(OperandTypes.of(element), element, element)

    @property
    def plain(self) -> bool:
        """Whether A and B hold numbers of the sums' type, and one multiply-add takes one of each.

        Such operands are read in place or packed as they are.
        """
        one = self.group == 1 and self.stored is None and not self.flip
        same = _same(self.types.a, self.a_element) and _same(self.types.b, self.b_element)
        return one and same and self.a_element is self.b_element

    @property
    def copies_a(self) -> bool:
        """Whether A in memory is not yet made of k-groups."""
        return self.flip or not _same(self.types.a, self.a_element)

    @property
    def reads_b(self) -> bool:
        """Whether B in memory is what micropanels are made of, but for its layout."""
        return self.group == 1 and _same(self.types.b, self.b_element)

    @property
    def reads_columns(self) -> bool:
        """Whether a contiguous column of B in memory can be read where it is.

        It is one of k-groups, or of numbers that are upconverted once they are read.
        """
        # Sums of k-groups of floats depend on their order: they stay with one kernel.
        exact = self.group == 1 or self.a_element.integral
        return (
            exact and not self.tiles and self.stored is None and _same(self.types.b, self.b_element)
        )

    @property
    def for_many_rows(self) -> Arithmetic:
        """The same with halves of B upconverted once per micropanel, not once per microtile."""
        if self.group > 1 or not self.b_element.format:
            return self
        return replace(self, b_element=self.a_element, stored=self.b_element)

    @property
    def for_few_rows(self) -> Arithmetic:
        """The same with halves of B upconverted while they are read."""
        return self if self.stored is None else replace(self, b_element=self.stored, stored=None)

    def __str__(self) -> str:
        """How the operands' numbers become k-groups, for :meth:`jitgemm.Plan.explain`."""
        kinds = {x.name: x for x in (self.types.a, self.types.b)}
        changed = [name for name, x in kinds.items() if not _same(x, self.a_element)]
        numbers = (
            f"{' and '.join(changed)} as {self.a_element}" if changed else "numbers as they are"
        )
        words = f", {self.group} to a word" if self.group > 1 else ""
        flipped = ", those of A with the other signedness" if self.flip else ""
        wide = ", B's once for all rows" if self.stored is not None else ""
        return f"types: {numbers}{words}{flipped}{wide}; {self.accumulate}"

    @property
    def spills_to_buffer(self) -> bool:
        """Whether sums cannot rest in the result between depth blocks."""
        return self.types.out.bits < 8 * self.group_bytes or bool(self.types.out.format)


def _same(x: ElementType, y: ElementType) -> bool:
    """Whether numbers of two types are the same bits, and multiply alike modulo ``2**bits``."""
    return x is y or (x.integral and y.integral and x.bits == y.bits)


def sum_type(types: OperandTypes) -> ElementType:
    """The type of the sums.

    Integers add up in 32 bits, or in 64 if the result has more than 32; halves in f32.  8-bit
    integers whose result is a float add up in 32 bits.
    """
    bytes_ = types.a.bits == types.b.bits == 8 and types.a.integral and types.b.integral
    if bytes_ and not types.out.integral:
        return I32
    if types.out.integral:
        return I64 if types.out.bits == 64 else I32
    return F64 if types.out is F64 else F32


def _fits(x: ElementType, y: ElementType) -> bool:
    """Whether ``y`` holds every number of ``x``, both integers."""
    if x.signed == y.signed:
        return x.bits <= y.bits
    return y.signed and x.bits < y.bits


def tiled(types: OperandTypes, isa: Isa) -> Arithmetic | None:
    """The arithmetic on a matrix unit, for those types that the set's one multiplies.

    It reads the micropanels of :func:`arithmetic_for`; numbers of either sign are multiplied as
    they are.
    """
    a, b = types.a, types.b
    product = None if isa.unit is None else isa.unit.product_of(a, b, sum_type(types))
    # One that rounds has an order of its own, which callers must allow.
    if product is None or (product.order and not types.bf16_dot):
        return None if sum_type(types).integral else _tiled_upconverted(types, isa)
    return Arithmetic(types, a, b, product.group, product.name, tiles=True)


def _tiled_upconverted(types: OperandTypes, isa: Isa) -> Arithmetic | None:
    """Numbers that become floats of the sums' type, multiplied in these by a matrix unit."""
    element = sum_type(types)
    product = None if isa.unit is None else isa.unit.product_of(element, element, element)
    if product is None:
        return None
    # Micropanels are those of vectors, which few rows meet.
    stored = types.b if types.b.format else None
    return Arithmetic(types, element, element, accumulate=product.name, stored=stored, tiles=True)


def shares_panels(tiles: Arithmetic, element: ElementType, isa: Isa) -> bool:
    """Whether vectors read the micropanels that a matrix unit reads, as those of a handle must."""
    vectors = arithmetic_for(tiles.types, element, isa)
    mine, others = (x.for_few_rows for x in (tiles, vectors))
    return (mine.group, mine.b_element) == (others.group, others.b_element)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a product wants of its arithmetic."""

    types: OperandTypes
    element: ElementType
    """The type of the sums."""
    isa: Isa
    unit: bool = False
    """There are enough rows for a matrix unit."""
    rows: bool = False
    """There are enough rows for upconverting numbers of B once for all of them."""


def _as_they_are(w: Wanted) -> Arithmetic | None:
    plain = _same(w.types.a, w.element) and _same(w.types.b, w.element)
    return Arithmetic(w.types, w.element, w.element) if plain else None


def _on_a_unit(w: Wanted) -> Arithmetic | None:
    return tiled(w.types, w.isa) if w.unit else None


def _bf16_dot(w: Wanted) -> Arithmetic | None:
    t = w.types
    halves = t.bf16_dot and t.a is t.b is BF16 and w.element is F32
    return Arithmetic(t, BF16, BF16, 2, "bf16_dot") if halves and "bf16_dot" in w.isa.ops else None


def _upconverted(w: Wanted) -> Arithmetic | None:
    """Numbers of A while rows are copied, those of B while they are read, or once for all rows."""
    if w.element.integral:
        return None
    # Halves stay as they are in micropanels: half the memory to read where rows are few.
    how = Arithmetic(w.types, w.element, w.types.b if w.types.b.format else w.element)
    return how.for_many_rows if w.rows else how


def _dot4(w: Wanted) -> Arithmetic | None:
    a, b = w.types.a, w.types.b
    if not (w.element is I32 and a.bits == b.bits == 8):
        return None
    for flip in (False, True):
        found = fold_of(w.isa.integers, 8, (a.signed != flip, b.signed))
        if found is not None:
            fold, exchanged = found
            return Arithmetic(w.types, a, b, 4, fold.name, exchanged=exchanged, flip=flip)
    return None


def _dot2(w: Wanted) -> Arithmetic | None:
    a, b = w.types.a, w.types.b
    # Of the products of longer numbers only the last bits are right, which may be all there is.
    last = w.types.out.bits <= 16 and a.bits <= 16 and b.bits <= 16
    exact = _fits(a, I16) and _fits(b, I16)
    return (
        Arithmetic(w.types, I16, I16, 2, "dot2") if w.element is I32 and (exact or last) else None
    )


def _widened(w: Wanted) -> Arithmetic | None:
    return Arithmetic(w.types, w.element, w.element)


CANDIDATES: tuple[Callable[[Wanted], Arithmetic | None], ...] = (
    _on_a_unit, _as_they_are, _bf16_dot, _upconverted, _dot4, _dot2, _widened,
)  # fmt: skip
"""Ways to multiply, each with its gate, best first: the first that applies is taken."""


def arithmetic_for(
    types: OperandTypes, element: ElementType, isa: Isa, *, unit: bool = False, rows: bool = False
) -> Arithmetic:
    """The arithmetic of sums of type ``element``.

    Args:
        types: of the operands.
        element: of the sums.
        isa: the instruction set.
        unit: whether there are enough rows for a matrix unit.
        rows: whether there are enough for upconverting B once for all of them.
    """
    wanted = Wanted(types, element, isa, unit, rows)
    return next(how for candidate in CANDIDATES if (how := candidate(wanted)) is not None)
