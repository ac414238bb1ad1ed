"""The vocabulary of the kernel language.

A kernel is an ordinary Python function of a :class:`Kernel` ``k`` and run-time values.  Plain
Python runs while generating; what comes from ``k`` exists at run time.  ``for i in range(4)``
unrolls, ``for p in k.range(0, depth)`` is a loop, ``for _ in k.when(cond)`` an ``if``.

The two backends drive the same source differently.  LLVM's yields each body once and closes the
loop around what the body emitted; the interpreter yields as often as the loop runs.  State that
outlives a body lives in a :class:`Var`, which LLVM turns back into registers.

Values (:mod:`jitgemm.lang.values`) are 64-bit integers, conditions, byte-addressed pointers,
vectors of one element type (a scalar is a vector of one lane), and masks.  The words about vectors
are in :mod:`jitgemm.lang.vectors`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from jitgemm.errors import LanguageError
from jitgemm.isa.types import BY_NAME, ElementType
from jitgemm.lang.values import (
    Cond,
    Function,
    Int,
    IntLike,
    Mask,
    Ptr,
    T,
    Value,
    Var,
    Vec,
    kind_of,
    parameters,
)
from jitgemm.lang.vectors import VectorWords

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


class Kernel(VectorWords):
    """What a kernel source may say.  Both backends implement exactly this."""

    # -- integers, conditions, pointers ---------------------------------------------------------
    @abstractmethod
    def const(self, value: IntLike) -> Int:
        """A constant as a run-time integer (an :class:`Int` is returned unchanged)."""

    @abstractmethod
    def int_op(self, op: str, a: Int, b: Int) -> Int:
        """``add sub mul udiv urem and or xor shl ashr`` on two integers.

        A shift is by 0 to 63.
        """

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
    def gather(
        self,
        p: Ptr,
        offsets: Vec,
        element: ElementType,
        mask: Mask | None = None,
        other: Vec | None = None,
    ) -> Vec:
        """An element from each of several places; lanes outside the mask are not touched.

        They are those of ``other``, or zero.  ``offsets`` are bytes from ``p``, in lanes of
        ``i32`` or ``i64``.
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

    # -- outer products (isa.outer) ---------------------------------------------------------------
    @abstractmethod
    def call_inside(self, function: Function, *args: IntLike | Ptr) -> None:
        """Call a function into the mode of the set's unit of outer products.

        It returns nothing, and the mode ends with it.  What the tiles hold at first is undefined.
        """

    @abstractmethod
    def zero_sums(self, tile: int, element: ElementType) -> None:
        """Clear a tile of sums."""

    @abstractmethod
    def fold_outer(self, name: str, total: int, a: Vec, b: Vec) -> None:
        """Add the outer product of two vectors of k-groups to a tile: the unit's ``name``."""

    @abstractmethod
    def row_of_sums(self, tile: int, index: Int, element: ElementType) -> Vec:
        """A row of a tile of sums, as a vector."""

    def load_adjacent(self, p: Ptr, element: ElementType, count: int) -> list[Vec]:
        """Whole vectors that lie side by side, by as few instructions as the set has for it."""
        lanes = self.isa.lanes(element)
        step = lanes * element.bytes
        return [self.load(p + i * step, element, lanes) for i in range(count)]

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

    def strips(
        self, count: IntLike, element: ElementType, lanes: int, chains: int = 1
    ) -> Iterator[tuple[Int, Mask | None, int]]:
        """Cut ``count`` elements into vectors: a body for each ``start, mask, chain``.

        Whole vectors have no mask, the last one that of the elements left.  With several
        ``chains``, 0, 1, ... take turns, so that sums and the like may be kept apart: a chain of
        operations that wait for each other is the slowest way to work.
        """
        total = self.const(count)
        together = lanes * chains
        rounds = total // together * together
        if chains > 1:
            for start in self.range(0, rounds, together):
                for chain in range(chains):
                    yield start + chain * lanes, None, chain
        whole = total // lanes * lanes
        for start in self.range(rounds if chains > 1 else 0, whole, lanes):
            yield start, None, 0
        for _ in self.when(whole < total):
            yield whole, self.mask(total - whole, element, lanes), 0

    @abstractmethod
    def call(self, function: Function, *args: IntLike | Ptr | Vec | float) -> Any:
        """Call another piece of generated code; what it returns, if anything.

        A number may stand for a scalar of an element type.
        """

    def arguments(self, function: Function, args: tuple[Any, ...]) -> list[Value]:
        """The arguments of a call as values of the types that are declared."""
        if len(args) != len(function.params):
            raise LanguageError(f"{function.name} takes {len(function.params)} arguments")
        values: list[Value] = []
        for (name, kind), arg in zip(function.params, args, strict=True):
            element = BY_NAME.get(kind)
            if isinstance(arg, int | float) and element is not None:
                values.append(self.literal(arg, element, 1))
            else:
                values.append(arg if isinstance(arg, Ptr | Vec) else self.const(arg))
            if kind_of(values[-1]) != kind:
                raise LanguageError(f"{function.name}: {name} must be {kind}")
        return values

    def returned(self, function: Function, value: Value | None) -> Value | None:
        """What a function's body has returned, which must be what it declares."""
        if function.result == "void":
            return None
        kind = "nothing" if value is None else kind_of(value)
        if kind != function.result:
            raise LanguageError(f"{function.name} returns {kind}, not {function.result}")
        return value

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
