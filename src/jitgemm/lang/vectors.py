"""The words about vectors and masks, and those that are made of them for both backends.

Here is what a reduction's order is: halves of a vector are combined, lane ``i`` with lane
``i + lanes / 2``, until as many lanes are left as are wanted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from jitgemm.errors import LanguageError
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import BOOL, I32, I64, ElementType
from jitgemm.lang.values import Cond, Int, IntLike, Mask, Number, Vec

__all__ = ["VectorWords"]


def _range(element: ElementType) -> tuple[int, int]:
    """The least and the greatest integer of a type."""
    if element is BOOL:
        return 0, 1
    half = 1 << (element.bits - 1)
    return (-half, half - 1) if element.signed else (0, 2 * half - 1)


class VectorWords(ABC):
    """Part of the vocabulary (:class:`~jitgemm.lang.core.Kernel`)."""

    isa: Isa

    # -- making and changing vectors ------------------------------------------------------------
    @abstractmethod
    def zero(self, element: ElementType, lanes: int) -> Vec:
        """All lanes +0."""

    @abstractmethod
    def splat(self, scalar: Vec, lanes: int) -> Vec:
        """One element in every lane."""

    @abstractmethod
    def op(self, name: str, *args: Vec) -> Vec:
        """An operation of the instruction set's table, lane by lane."""

    @abstractmethod
    def convert(self, x: Vec, element: ElementType) -> Vec:
        """The same numbers as another type (:mod:`jitgemm.isa.conversions`)."""

    @abstractmethod
    def bits(self, x: Vec, element: ElementType) -> Vec:
        """The same bytes as elements of another type, of which more or fewer fill them."""

    @abstractmethod
    def shuffle(self, a: Vec, b: Vec, lanes: Sequence[int]) -> Vec:
        """Lanes of ``a`` (from 0) and ``b`` (from ``a.lanes``) in any order, fixed when generated.

        The result has ``len(lanes)`` lanes.
        """

    @abstractmethod
    def extract(self, x: Vec, lane: int) -> Vec:
        """One lane, as a scalar."""

    @abstractmethod
    def insert(self, x: Vec, lane: int, scalar: Vec) -> Vec:
        """``x`` with another element in one lane."""

    @abstractmethod
    def number(self, value: Int, element: ElementType) -> Vec:
        """An integer as one element: rounded to nearest even, or modulo ``2**bits``."""

    @abstractmethod
    def integer(self, scalar: Vec) -> Int:
        """One element of an integer type as an integer (of ``u64`` one below ``2**63``)."""

    @abstractmethod
    def steps(self, element: ElementType, lanes: int) -> Vec:
        """The numbers 0, 1, 2, ... in the lanes."""

    @abstractmethod
    def literal(self, value: float, element: ElementType, lanes: int) -> Vec:
        """A number known when generating, rounded to the element type, in every lane."""

    # -- masks ----------------------------------------------------------------------------------
    @abstractmethod
    def mask(self, count: IntLike, element: ElementType, lanes: int) -> Mask:
        """The first ``count`` lanes (none below 0, all above ``lanes``).

        ``element``: what it will mask, as far as is known; a mask fits any type.
        """

    @abstractmethod
    def compare_lanes(self, predicate: str, a: Vec, b: Vec) -> Mask:
        """Where ``lt le eq ne gt ge`` holds (:mod:`jitgemm.isa.comparisons`)."""

    @abstractmethod
    def mask_op(self, op: str, a: Mask, b: Mask) -> Mask:
        """``and or xor`` of two masks, lane by lane."""

    @abstractmethod
    def mask_not(self, a: Mask) -> Mask:
        """The other lanes."""

    @abstractmethod
    def choose(self, mask: Mask, yes: Vec, no: Vec) -> Vec:
        """``yes`` in the lanes of the mask, ``no`` in the others."""

    @abstractmethod
    def lane(self, mask: Mask, lane: int) -> Cond:
        """Whether one lane is set."""

    @abstractmethod
    def any(self, mask: Mask) -> Cond:
        """Whether a lane is set."""

    @abstractmethod
    def all(self, mask: Mask) -> Cond:
        """Whether all lanes are set."""

    @abstractmethod
    def count(self, mask: Mask) -> Int:
        """How many lanes are set."""

    # -- what both backends refuse --------------------------------------------------------------
    def check_same(self, what: str, a: Vec, b: Vec) -> None:
        """Operands of one shape, whose elements are numbers and not bits of a format."""
        if (a.element, a.lanes) != (b.element, b.lanes) or a.element.format:
            shapes = " and ".join(f"{x.element}x{x.lanes}" for x in (a, b))
            raise LanguageError(f"{what}: operands {shapes}")

    def check_mask(self, mask: Mask, lanes: int) -> None:
        """A mask of as many lanes as what it masks."""
        if mask.lanes != lanes:
            raise LanguageError(f"mask of {mask.lanes} lanes on {lanes}")

    def check_condition(self, cond: Cond) -> None:
        """A condition: a mask is none."""
        if not isinstance(cond, Cond):
            raise LanguageError(f"a {type(cond).__name__} is no condition: see k.any and k.all")

    def check_lane(self, lanes: int, lane: int) -> None:
        """A lane that there is."""
        if not 0 <= lane < lanes:
            raise LanguageError(f"no lane {lane} of {lanes}")

    def check_scalar(self, scalar: Vec, element: ElementType) -> None:
        """A single element of a type."""
        if (scalar.element, scalar.lanes) != (element, 1):
            raise LanguageError(f"{scalar.element}x{scalar.lanes} is no scalar of {element}")

    def check_integer(self, scalar: Vec) -> None:
        """A single integer."""
        if not scalar.element.integral or scalar.lanes != 1:
            raise LanguageError(f"{scalar.element}x{scalar.lanes} is no integer")

    def check_gather(
        self, offsets: Vec, element: ElementType, mask: Mask | None, other: Vec | None
    ) -> None:
        """Offsets in lanes that addresses are made of; a mask and other elements of that shape."""
        if offsets.element not in (I32, I64):
            raise LanguageError(f"gather: offsets of {offsets.element}")
        if mask is not None:
            self.check_mask(mask, offsets.lanes)
        if other is not None and (other.element, other.lanes) != (element, offsets.lanes):
            raise LanguageError(f"gather: {other.element}x{other.lanes} in lanes that are not read")

    # -- made of other words --------------------------------------------------------------------
    def alike(self, a: Vec, b: Number) -> tuple[Vec, Vec]:
        """Two operands of one shape: a number takes ``a``'s type, a scalar the other's lanes."""
        if isinstance(b, Int):
            b = self.number(b, a.element)
        elif not isinstance(b, Vec):
            b = self.literal(b, a.element, a.lanes)
        lanes = max(a.lanes, b.lanes)
        x, y = (self.splat(v, lanes) if v.lanes == 1 else v for v in (a, b))
        return x, y

    def reduce(self, name: str, x: Vec, lanes: int = 1) -> Vec:
        """Combine the lanes of a vector by an operation of two operands, in a fixed order.

        Halves are combined, lane ``i`` with lane ``i + lanes / 2``, until ``lanes`` are left.
        """
        while x.lanes > lanes:
            half, odd = divmod(x.lanes, 2)
            if odd:
                raise LanguageError(f"{x.lanes} lanes have no halves")
            if half == 1:
                return self.op(name, self.extract(x, 0), self.extract(x, 1))
            low, high = range(half), range(half, x.lanes)
            x = self.op(name, self.shuffle(x, x, low), self.shuffle(x, x, high))
        if x.lanes != lanes:
            raise LanguageError(f"{x.lanes} lanes are left, not {lanes}")
        return x

    def reduce_groups(
        self, name: str, x: Vec, group: int, element: ElementType | None = None
    ) -> Vec:
        """Combine each ``group`` neighbouring lanes, a power of two, into one.

        Neighbours are combined, lane ``2 i`` with lane ``2 i + 1``, until one of each group is
        left.  With ``element`` lanes are converted to that, wider type first.
        """
        x = x if element is None else self.convert(x, element)
        if group & (group - 1) or x.lanes % group:
            raise LanguageError(f"{x.lanes} lanes are no groups of {group}")
        for _ in range(group.bit_length() - 1):
            if x.lanes == 2:
                return self.op(name, self.extract(x, 0), self.extract(x, 1))
            even, odd = range(0, x.lanes, 2), range(1, x.lanes, 2)
            x = self.op(name, self.shuffle(x, x, even), self.shuffle(x, x, odd))
        return x

    def narrow(self, x: Vec, element: ElementType) -> Vec:
        """Integers as another integer type; those beyond its range become its nearest number."""
        if not (x.element.integral and element.integral):
            raise LanguageError(f"narrow: {x.element} to {element}, which are not both integers")
        (least, most), (low, high) = _range(x.element), _range(element)
        if low > least:
            x = self.op("maximum", x, self.literal(low, x.element, x.lanes))
        if high < most:
            x = self.op("minimum", x, self.literal(high, x.element, x.lanes))
        return self.convert(x, element)
