"""The vocabulary of the kernel language.

A kernel is an ordinary Python function of a :class:`Kernel` ``k`` and run-time values.  Plain
Python runs while generating; what comes from ``k`` exists at run time.  ``for i in range(4)``
unrolls, ``for p in k.range(0, depth)`` is a loop, ``for _ in k.when(cond)`` an ``if``.

The two backends drive the same source differently.  LLVM's yields each body once and closes the
loop around what the body emitted; the interpreter yields as often as the loop runs.  State that
outlives a body lives in a :class:`Var`, which LLVM turns back into registers.

Values are 64-bit integers (:class:`Int`), conditions, byte-addressed pointers, and vectors of one
element type (a scalar is a vector of one lane).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from jitgemm.errors import LanguageError
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import ElementType

__all__ = [
    "Cond",
    "Function",
    "Int",
    "IntLike",
    "Kernel",
    "Mask",
    "Ptr",
    "Var",
    "Vec",
    "parameters",
]

ParamType = Literal["int", "ptr"]
T = TypeVar("T", "Int", "Ptr", "Vec")


@dataclass(frozen=True, slots=True)
class Int:
    """A 64-bit integer that exists at run time; constants fold while generating."""

    k: Kernel
    handle: Any
    const: int | None = None

    def _with(self, op: str, other: IntLike, *, swap: bool = False) -> Int:
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
    """``lanes`` elements in a register; one lane is a scalar."""

    k: Kernel
    handle: Any
    element: ElementType
    lanes: int


@dataclass(frozen=True, slots=True)
class Mask:
    """The first ``count`` of ``lanes`` lanes."""

    k: Kernel
    handle: Any
    lanes: int


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


def parameters(text: str) -> tuple[tuple[str, ParamType], ...]:
    """Parameters from a declaration such as ``"job* thread"``: a star marks a pointer."""
    return tuple(
        (word.rstrip("*"), "ptr" if word.endswith("*") else "int") for word in text.split()
    )


@dataclass(frozen=True, slots=True)
class Function:
    """A named piece of generated code: parameters and the Python function that writes its body."""

    name: str
    params: tuple[tuple[str, ParamType], ...]
    body: Callable[..., None]


class Kernel(ABC):
    """What a kernel source may say.  Both backends implement exactly this."""

    isa: Isa

    # -- integers, conditions, pointers ---------------------------------------------------------
    @abstractmethod
    def const(self, value: IntLike) -> Int:
        """A constant as a run-time integer (an :class:`Int` is returned unchanged)."""

    @abstractmethod
    def int_op(self, op: str, a: Int, b: Int) -> Int:
        """``add sub mul udiv urem and or`` on two integers."""

    @abstractmethod
    def compare(self, predicate: str, a: Int, b: Int) -> Cond:
        """``eq ne slt sle sgt sge`` on two integers."""

    @abstractmethod
    def cond_op(self, op: str, a: Cond, b: Cond) -> Cond:
        """``and or`` on two conditions; both are evaluated."""

    @abstractmethod
    def cond_not(self, a: Cond) -> Cond:
        """The opposite condition."""

    @abstractmethod
    def select(self, cond: Cond, yes: T, no: T) -> T:
        """One of two integers or pointers, without a branch."""

    @abstractmethod
    def offset(self, p: Ptr, by: Int) -> Ptr:
        """``p`` moved by bytes."""

    @abstractmethod
    def misalignment(self, p: Ptr, size: int) -> Int:
        """Bytes by which ``p`` lies beyond a multiple of ``size``, a power of two."""

    @abstractmethod
    def opaque(self, x: T) -> T:
        """``x``, kept in one register: the compiler may not split, fold or duplicate it.

        Row pointers of an operand read in place need this; see ``kernels.micro``.
        """

    def min(self, a: IntLike, b: IntLike) -> Int:
        """The smaller of two integers."""
        x, y = self.const(a), self.const(b)
        return self.select(x < y, x, y)

    def ceil_div(self, a: IntLike, b: IntLike) -> Int:
        """How many ``b`` cover ``a`` (both non-negative)."""
        return (self.const(a) + (self.const(b) - 1)) // b

    # -- memory ---------------------------------------------------------------------------------
    @abstractmethod
    def load_int(self, p: Ptr) -> Int:
        """The 64-bit integer at ``p``."""

    @abstractmethod
    def store_int(self, p: Ptr, value: IntLike) -> None:
        """Write a 64-bit integer at ``p``."""

    @abstractmethod
    def load_ptr(self, p: Ptr) -> Ptr:
        """The pointer stored at ``p``."""

    @abstractmethod
    def store_ptr(self, p: Ptr, value: Ptr) -> None:
        """Write a pointer at ``p``."""

    @abstractmethod
    def load(
        self,
        p: Ptr,
        element: ElementType,
        lanes: int = 1,
        mask: Mask | None = None,
        other: Vec | None = None,
    ) -> Vec:
        """``lanes`` consecutive elements; lanes outside the mask are not touched.

        They are those of ``other``, or zero.
        """

    @abstractmethod
    def store(self, p: Ptr, value: Vec, mask: Mask | None = None) -> None:
        """Write consecutive elements; memory outside the mask is not touched."""

    @abstractmethod
    def prefetch(self, p: Ptr, *, write: bool = False, near: bool = True) -> None:
        """Hint that ``p`` will be read or written; any address is allowed.

        ``near``: into the first-level cache; else into the second.
        """

    @abstractmethod
    def scratch(self, size: int) -> Ptr:
        """``size`` bytes of uninitialised memory, 64-byte aligned, gone when the function ends."""

    # -- vectors --------------------------------------------------------------------------------
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
    def number(self, value: Int, element: ElementType) -> Vec:
        """An integer as one element: rounded to nearest even, or modulo ``2**bits``."""

    @abstractmethod
    def steps(self, element: ElementType, lanes: int) -> Vec:
        """The numbers 0, 1, 2, ... in the lanes."""

    @abstractmethod
    def literal(self, value: float, element: ElementType, lanes: int) -> Vec:
        """A number known when generating, rounded to the element type, in every lane."""

    @abstractmethod
    def mask(self, count: IntLike, element: ElementType, lanes: int) -> Mask:
        """The first ``count`` lanes (none below 0, all above ``lanes``)."""

    @abstractmethod
    def var(self, initial: T) -> Var[T]:
        """A cell that loops and branches may rebind."""

    # -- tiles of a matrix unit -----------------------------------------------------------------
    # Registers are numbered, and keep what they hold from one function to the next.  ``state`` is
    # the unit's own memory, as much as `MatrixUnit.state` says: the same from one configuration to
    # the release, any pointer if the unit has none.
    @abstractmethod
    def configure_tiles(self, state: Ptr, heights: IntLike) -> None:
        """Give tile registers their rows, a byte each from the lowest; they lose their contents."""

    @abstractmethod
    def release_tiles(self, state: Ptr) -> None:
        """Tile registers have no shape any more: a thread must not keep them beyond a call."""

    @abstractmethod
    def zero_tile(self, state: Ptr, tile: int) -> None:
        """All words of a tile zero."""

    @abstractmethod
    def load_tile(self, state: Ptr, tile: int, p: Ptr, stride: Int) -> None:
        """A tile from rows ``stride`` bytes apart."""

    @abstractmethod
    def store_tile(self, state: Ptr, tile: int, p: Ptr, stride: Int) -> None:
        """Write the rows of a tile, ``stride`` bytes apart."""

    @abstractmethod
    def fold_tiles(self, state: Ptr, name: str, total: int, a: int, b: int) -> None:
        """Add the product of tiles ``a`` and ``b`` to ``total``: the unit's product ``name``."""

    # -- control --------------------------------------------------------------------------------
    @abstractmethod
    def range(self, start: IntLike, stop: IntLike, step: IntLike = 1) -> Iterator[Int]:
        """A run-time loop; ``start`` is not negative, ``step`` is positive."""

    @abstractmethod
    def branches(self, cond: Cond) -> Iterator[bool]:
        """Both arms of an if: the body is written for ``True`` and for ``False``."""

    @abstractmethod
    def cases(self, value: Int, labels: Iterator[int] | list[int]) -> Iterator[int]:
        """A switch: the body is written once per label; ``value`` must be one of them."""

    @abstractmethod
    def repeat_while(self, cond: Callable[[], Cond]) -> Iterator[None]:
        """A loop that evaluates ``cond`` before each round."""

    def when(self, cond: Cond) -> Iterator[None]:
        """The body runs only if ``cond`` holds."""
        for taken in self.branches(cond):
            if taken:
                yield

    @abstractmethod
    def call(self, function: Function, *args: IntLike | Ptr) -> None:
        """Call another piece of generated code."""

    # -- threads --------------------------------------------------------------------------------
    @abstractmethod
    def fetch_add(self, p: Ptr, by: IntLike) -> Int:
        """Add to the 64-bit integer at ``p`` atomically; what was there before."""

    @abstractmethod
    def compare_exchange(self, p: Ptr, expected: Int, new: Int) -> Cond:
        """Write ``new`` at ``p`` if ``expected`` is there, atomically; whether it was."""

    @abstractmethod
    def load_shared(self, p: Ptr) -> Int:
        """Read a 64-bit integer that other threads write; what they wrote before is visible."""

    @abstractmethod
    def pause(self) -> None:
        """Tell the core that this thread is waiting in a loop, for some nanoseconds."""

    @abstractmethod
    def yield_core(self) -> None:
        """Let another thread that is ready run on this thread's core."""

    @abstractmethod
    def sleep_while(self, p: Ptr, value: Int) -> None:
        """Sleep until woken, unless the low half of the word at ``p`` no longer is ``value``.

        It may wake early; where threads cannot be woken it sleeps a fraction of a millisecond.
        """

    @abstractmethod
    def wake(self, p: Ptr, count: IntLike) -> None:
        """Wake up to ``count`` threads that sleep on the word at ``p``."""
