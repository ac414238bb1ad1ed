"""Folding: the fewest and largest matrix products that a stack of products is.

A stack is described by axes: the rows and the columns of its matrices, and the batch axes.  An axis
has a length and, for each operand, the bytes from one index to the next: 0 where the operand does
not vary, so that B is broadcast along the rows, A along the columns, and either along the batch
axes it is broadcast over.

Two axes of which one continues the other, in every operand, are one axis.  Applied to two batch
axes this makes their loop one loop.  Applied to a batch axis and the rows it makes one taller
product of many: ``(10000, 9, 9) @ (9, 9)`` is ``(90000, 9) @ (9, 9)``.  The rows of a product of
one row have no stride to continue, so any batch axis along which B is broadcast may become them:
``(64, 16, 1, 128) @ (16, 128, 128)`` is 16 products of 64 x 128 x 128.  The same holds for columns,
along which A is broadcast.

Folding does not change a bit: the order of an element's sum depends on ``k`` alone (contract 1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitgemm.kernels.job import OPERANDS, TABLES

__all__ = ["FIELDS", "Axis", "Stack", "fold"]

FIELDS = (*OPERANDS, *TABLES)
"""What a product reads and writes, as the job record names it."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its length, and its stride in bytes in each operand (0: it does not vary)."""

    count: int
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    bias: int = 0
    zero_a: int = 0
    zero_b: int = 0
    scales: int = 0
    operand_0: int = 0
    operand_1: int = 0
    operand_2: int = 0
    operand_3: int = 0

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides in the order of :data:`FIELDS`."""
        return tuple(getattr(self, field) for field in FIELDS)

    @property
    def transposed(self) -> Axis:
        """The same axis where A and B have changed places."""
        return replace(self, a=self.b, b=self.a, zero_a=self.zero_b, zero_b=self.zero_a)

    def continued_by(self, outer: Axis) -> bool:
        """Whether ``outer``, with this axis inside it, is one longer axis."""
        return outer.strides == tuple(self.count * s for s in self.strides)


@dataclass(frozen=True, slots=True)
class Stack:
    """Products of ``rows`` x k by k x ``cols`` matrices, one for each index of ``axes``."""

    rows: Axis
    cols: Axis
    axes: tuple[Axis, ...] = ()
    """Batch axes, outermost first."""
    packed: str = ""
    """The operand (``a`` or ``b``) that is prepacked, which fixes its rows or columns."""
    notes: tuple[str, ...] = ()
    """What folding did, in words."""
    unfolded: str = ""
    """``r``, ``c``: batch axes may not become rows, or columns."""

    @property
    def items(self) -> int:
        """Number of matrix products."""
        total = 1
        for axis in self.axes:
            total *= axis.count
        return total


def _joined(x: Axis, y: Axis) -> Axis | None:
    """The one axis that two are, if they are."""
    for outer, inner in ((x, y), (y, x)):
        if inner.continued_by(outer):
            return replace(inner, count=outer.count * inner.count)
    return None


def _merged(axes: list[Axis]) -> list[Axis]:
    """Batch axes, each pair that is one axis made one."""
    for i, x in enumerate(axes):
        for j, y in enumerate(axes[i + 1 :], i + 1):
            one = _joined(x, y)
            if one is not None:
                # The order of batch axes means nothing: keep the inner one's place.
                return _merged([*axes[:i], *axes[i + 1 : j], one, *axes[j + 1 :]])
    return axes


def _grown(side: Axis, axes: list[Axis], same: str) -> tuple[Axis, list[Axis]]:
    """Rows or columns with all batch axes that continue them and along which ``same`` is broadcast.

    The longest first, because it decides what can follow.
    """
    for axis in sorted(axes, key=lambda x: -x.count):
        if getattr(axis, same) != 0:
            continue
        one = axis if side.count == 1 else _joined(axis, side)
        if one is not None:
            return _grown(one, [x for x in axes if x is not axis], same)
    return side, axes


def fold(stack: Stack) -> Stack:
    """The same products as fewer, larger ones over fewer batch axes."""
    # Strides of axes of length 1 mean nothing.
    rows, cols = (x if x.count > 1 else Axis(x.count) for x in (stack.rows, stack.cols))
    axes = _merged([x for x in stack.axes if x.count != 1])
    notes = []
    before = rows.count
    if stack.packed != "a" and "r" not in stack.unfolded:
        rows, axes = _grown(rows, axes, "b")
    if rows.count != before:
        notes.append(f"B does not vary: {rows.count // before} batch items become rows")
    before = cols.count
    if stack.packed != "b" and "c" not in stack.unfolded:
        cols, axes = _grown(cols, axes, "a")
    if cols.count != before:
        notes.append(f"A does not vary: {cols.count // before} batch items become columns")
    left = " x ".join(str(x.count) for x in axes)
    notes.append(f"batch axes {left} remain" if axes else "no batch axis remains")
    return Stack(rows, cols, tuple(axes), stack.packed, tuple(notes), stack.unfolded)
