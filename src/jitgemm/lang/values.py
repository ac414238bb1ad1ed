"""The values of the kernel language: what exists when generated code runs, and functions of it.

Operators of a value say a word of its :class:`~jitgemm.lang.core.Kernel`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from jitgemm.errors import LanguageError
from jitgemm.isa.types import BY_NAME, ElementType

if TYPE_CHECKING:
    from jitgemm.lang.core import Kernel

__all__ = [
    "Cond",
    "Function",
    "Int",
    "IntLike",
    "Mask",
    "Number",
    "Ptr",
    "Value",
    "Var",
    "Vec",
    "kind_of",
    "parameters",
]

T = TypeVar("T", "Int", "Ptr", "Vec")


@dataclass(frozen=True, slots=True)
class Int:
    """A 64-bit integer that exists at run time; constants fold while generating."""

    k: Kernel
    handle: Any
    const: int | None = None

    def _with(self, op: str, other: IntLike, *, swap: bool = False) -> Int:
        if isinstance(other, Vec | float):
            return NotImplemented  # type: ignore[no-any-return]  # a vector knows what to do
        rhs = self.k.const(other)
        return self.k.int_op(op, rhs, self) if swap else self.k.int_op(op, self, rhs)

    def __add__(self, other: IntLike) -> Int:
        return self._with("add", other)

    def __radd__(self, other: IntLike) -> Int:
        return self._with("add", other, swap=True)

    def __sub__(self, other: IntLike) -> Int:
        return self._with("sub", other)

    def __rsub__(self, other: IntLike) -> Int:
        return self._with("sub", other, swap=True)

    def __mul__(self, other: IntLike) -> Int:
        return self._with("mul", other)

    __rmul__ = __mul__

    def __floordiv__(self, other: IntLike) -> Int:
        """Quotient of two non-negative integers."""
        return self._with("udiv", other)

    def __mod__(self, other: IntLike) -> Int:
        return self._with("urem", other)

    def __and__(self, other: IntLike) -> Int:
        return self._with("and", other)

    def __or__(self, other: IntLike) -> Int:
        return self._with("or", other)

    def __xor__(self, other: IntLike) -> Int:
        return self._with("xor", other)

    def __lshift__(self, other: IntLike) -> Int:
        """Times a power of two; as for a product, what overflows is an error."""
        return self._with("shl", other)

    def __rshift__(self, other: IntLike) -> Int:
        """The quotient by a power of two, rounded down, of either sign."""
        return self._with("ashr", other)

    def __lt__(self, other: IntLike) -> Cond:
        return self.k.compare("slt", self, self.k.const(other))

    def __le__(self, other: IntLike) -> Cond:
        return self.k.compare("sle", self, self.k.const(other))

    def __gt__(self, other: IntLike) -> Cond:
        return self.k.compare("sgt", self, self.k.const(other))

    def __ge__(self, other: IntLike) -> Cond:
        return self.k.compare("sge", self, self.k.const(other))

    def equals(self, other: IntLike) -> Cond:
        """Whether both are the same number (``==`` keeps Python's meaning)."""
        return self.k.compare("eq", self, self.k.const(other))

    def differs(self, other: IntLike) -> Cond:
        """Whether the two are different numbers."""
        return self.k.compare("ne", self, self.k.const(other))


IntLike = Int | int


@dataclass(frozen=True, slots=True)
class Cond:
    """A truth value that exists at run time."""

    k: Kernel
    handle: Any

    def __and__(self, other: Cond) -> Cond:
        return self.k.cond_op("and", self, other)

    def __or__(self, other: Cond) -> Cond:
        return self.k.cond_op("or", self, other)

    def __invert__(self) -> Cond:
        return self.k.cond_not(self)

    def __bool__(self) -> bool:
        raise LanguageError("a run-time condition has no truth value yet: use k.when or k.branches")


@dataclass(frozen=True, slots=True)
class Ptr:
    """A byte-addressed pointer; adding an integer moves it by that many bytes."""

    k: Kernel
    handle: Any

    def __add__(self, offset: IntLike) -> Ptr:
        if isinstance(offset, int) and offset == 0:
            return self
        return self.k.offset(self, self.k.const(offset))


@dataclass(frozen=True, slots=True)
class Vec:
    """``lanes`` elements in a register; one lane is a scalar.

    Operators work lane by lane: one of two operands may be a number, an :class:`Int` or a scalar,
    which stands in every lane.  Comparisons give a :class:`Mask`.
    """

    k: Kernel
    handle: Any
    element: ElementType
    lanes: int

    def _with(self, op: str, other: Number, *, swap: bool = False) -> Vec:
        mine, others = self.k.alike(self, other)
        return self.k.op(op, others, mine) if swap else self.k.op(op, mine, others)

    def _compared(self, predicate: str, other: Number) -> Mask:
        return self.k.compare_lanes(predicate, *self.k.alike(self, other))

    def __add__(self, other: Number) -> Vec:
        return self._with("add", other)

    def __radd__(self, other: Number) -> Vec:
        return self._with("add", other, swap=True)

    def __sub__(self, other: Number) -> Vec:
        return self._with("sub", other)

    def __rsub__(self, other: Number) -> Vec:
        return self._with("sub", other, swap=True)

    def __mul__(self, other: Number) -> Vec:
        return self._with("mul", other)

    def __rmul__(self, other: Number) -> Vec:
        return self._with("mul", other, swap=True)

    def __truediv__(self, other: Number) -> Vec:
        return self._with("div", other)

    def __rtruediv__(self, other: Number) -> Vec:
        return self._with("div", other, swap=True)

    def __neg__(self) -> Vec:
        return self.k.op("neg", self)

    def __and__(self, other: Number) -> Vec:
        return self._with("and", other)

    def __or__(self, other: Number) -> Vec:
        return self._with("or", other)

    def __xor__(self, other: Number) -> Vec:
        return self._with("xor", other)

    def __lshift__(self, other: Number) -> Vec:
        return self._with("shl", other)

    def __rshift__(self, other: Number) -> Vec:
        """Signed numbers keep their sign; others, and ``lshr`` always, move zeros in."""
        return self._with("ashr" if self.element.signed else "lshr", other)

    def __lt__(self, other: Number) -> Mask:
        return self._compared("lt", other)

    def __le__(self, other: Number) -> Mask:
        return self._compared("le", other)

    def __gt__(self, other: Number) -> Mask:
        return self._compared("gt", other)

    def __ge__(self, other: Number) -> Mask:
        return self._compared("ge", other)

    def equals(self, other: Number) -> Mask:
        """Where both are the same number (``==`` keeps Python's meaning)."""
        return self._compared("eq", other)

    def differs(self, other: Number) -> Mask:
        """Where the two are different numbers, or one is NaN."""
        return self._compared("ne", other)


Number = Vec | Int | float
"""A vector, or what stands in every lane of one: an integer, or a number known when generating."""


@dataclass(frozen=True, slots=True)
class Mask:
    """A truth value for each of ``lanes`` lanes."""

    k: Kernel
    handle: Any
    lanes: int

    def __and__(self, other: Mask) -> Mask:
        return self.k.mask_op("and", self, other)

    def __or__(self, other: Mask) -> Mask:
        return self.k.mask_op("or", self, other)

    def __xor__(self, other: Mask) -> Mask:
        return self.k.mask_op("xor", self, other)

    def __invert__(self) -> Mask:
        return self.k.mask_not(self)

    def __bool__(self) -> bool:
        raise LanguageError("a mask has no truth value: use k.any or k.all, and k.when")


class Var(Generic[T]):
    """A value that may be rebound inside loops and branches."""

    __slots__ = ("_read", "_write")

    def __init__(self, read: Callable[[], T], write: Callable[[T], None]) -> None:
        self._read: Callable[[], T] = read
        self._write: Callable[[T], None] = write

    @property
    def value(self) -> T:
        """What it holds at this point of the program."""
        return self._read()

    @value.setter
    def value(self, new: T) -> None:
        self._write(new)


Value = Int | Ptr | Vec
"""What a function takes and returns; a vector is of one lane."""


def parameters(text: str) -> tuple[tuple[str, str], ...]:
    """Parameters from a declaration such as ``"job* thread alpha:f32"``.

    A star marks a pointer, a colon a scalar of an element type; others are integers.

    Raises:
        LanguageError: there is no such element type.
    """
    found = []
    for word in text.split():
        name, _, kind = word.partition(":")
        if kind and kind not in BY_NAME:
            raise LanguageError(f"{name}: no element type {kind!r}")
        found.append((name.rstrip("*"), kind or ("ptr" if name.endswith("*") else "int")))
    return tuple(found)


def kind_of(value: Value) -> str:
    """What a parameter that takes this value is declared as: ``int``, ``ptr`` or an element type.

    Raises:
        LanguageError: a vector of several lanes, which no function takes or returns.
    """
    if isinstance(value, Vec):
        if value.lanes != 1:
            raise LanguageError(f"{value.element}x{value.lanes} is no scalar")
        return value.element.name
    return "int" if isinstance(value, Int) else "ptr"


@dataclass(frozen=True, slots=True)
class Function:
    """A named piece of generated code: parameters and the Python function that writes its body.

    With a ``result`` (``int``, ``ptr``, or the name of an element type) its value is what ``body``
    returns, at its end and not inside a loop or branch; without one that is dropped.
    """

    name: str
    params: tuple[tuple[str, str], ...]
    body: Callable[..., Value | None]
    result: str = "void"
