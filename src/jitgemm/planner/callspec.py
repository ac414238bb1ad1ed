"""A call without its memory: what is planned, and what plans are found by."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from jitgemm.isa.types import ElementType
from jitgemm.kernels.arithmetic import OperandTypes
from jitgemm.kernels.expression import Program
from jitgemm.kernels.spec import Axes, Bias, Epilogue, Scale
from jitgemm.planner.folding import Axis, Stack, fold
from jitgemm.planner.problem import Operand, Problem

__all__ = ["CallOptions", "CallSpec", "OperandSpec"]


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """A matrix or a stack of them: type, shape, and bytes from one index to the next."""

    element: ElementType
    """Of its numbers; of their parts, if they are complex."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Of a prepacked operand: along its batch axes; the last two mean nothing."""
    swapped: bool = False
    """Its bytes are in the other order than this machine's."""
    packed: bool = False

    def along(self, batch: tuple[int, ...]) -> tuple[int, ...]:
        """Bytes along each axis of a stack it broadcasts to: 0 where it does not vary."""
        own = tuple(
            s if n > 1 else 0 for n, s in zip(self.shape[:-2], self.strides[:-2], strict=True)
        )
        return (0,) * (len(batch) - len(own)) + own

    def item(self, row: int, col: int) -> Operand:
        """One matrix after folding, with these strides."""
        return Operand(row, col, self.swapped)


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What of the options of a call decides its plan; factors and the like are data."""

    alpha: bool = True
    """Alpha is not 0."""
    beta: bool = False
    """Beta is not 0: C is read."""
    program: Program | None = None
    """Activation and traced function as one."""
    zero_a: bool = False
    zero_b: bool = False
    """A, or B, has zero points."""
    scale: Scale = Scale.NONE
    tables: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Zero points and scales that differ along batch axes: by job field, bytes along each."""
    many: bool = False
    """There are zero points or scales per row, column or product."""
    strict: bool = False
    bf16_dot: bool = False
    scaling: Program | None = None
    """What is done to sums before all else."""
    operands: tuple[Axes, ...] = ()
    """Those of both programs."""


@dataclass(frozen=True, slots=True)
class CallSpec:
    """``d = act(alpha * a @ b + beta * c + bias)``, for stacks whose leading axes broadcast."""

    a: OperandSpec
    b: OperandSpec
    d: OperandSpec
    sums: ElementType
    """What sums are formed in (their parts, if they are complex)."""
    threads: int
    c: OperandSpec | None = None
    bias: OperandSpec | None = None
    components: int = 1
    """Reals per number: 2 for complex."""
    in_place: bool = False
    """C and D are the same memory."""
    options: CallOptions = field(default=CallOptions())

    @property
    def batch(self) -> tuple[int, ...]:
        """Lengths of the leading axes of the result."""
        return self.d.shape[:-2]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """``m``, ``n``, ``k`` of one product."""
        return self.d.shape[-2], self.d.shape[-1], self.a.shape[-1]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute."""
        return 0 in self.d.shape

    @property
    def operations(self) -> int:
        """Arithmetic operations of all products."""
        m, n, k = self.sizes
        return 2 * math.prod(self.batch) * m * n * max(k, 1) * self.components**2

    @property
    def types(self) -> OperandTypes:
        """Types of the operands' numbers."""
        c, bias = (self.sums if x is None else x.element for x in (self.c, self.bias))
        return OperandTypes(
            self.a.element, self.b.element, c, bias, self.d.element, self.options.bf16_dot
        )

    @property
    def plain(self) -> bool:
        """Whether all operands hold numbers of the sums' type."""
        return self.types.plain(self.sums)

    def _unfolded(self) -> str:
        """What may not be folded into rows and columns: ``r``, ``c``, both or neither.

        A traced function sees indices within its own product, and a dot product has an order of
        its own.
        """
        options, (m, n, _) = self.options, self.sizes
        if options.many or (m == n == 1 and not options.strict):
            # Zero points and scales are numbers of each product's own rows or columns.
            return "rc"
        if options.program is None:
            return ""
        return "r" * options.program.uses("row") + "c" * options.program.uses("col")

    def folded(self) -> tuple[Problem, Stack]:
        """One of the products that are left after folding, and how they lie."""
        (m, n, _), batch = self.sizes, self.batch
        operands = {"a": self.a, "b": self.b, "c": self.c, "d": self.d, "bias": self.bias}
        known = {name: x for name, x in operands.items() if x is not None}
        along = {name: x.along(batch) for name, x in known.items()} | dict(self.options.tables)
        axes = tuple(
            Axis(count, **{name: s[i] for name, s in along.items()})
            for i, count in enumerate(batch)
        )
        plain = {name: x for name, x in known.items() if not x.packed}
        sides = [
            Axis(count, **{name: self._step(x, at) for name, x in plain.items() if name != still})
            for count, at, still in ((m, -2, "b"), (n, -1, "a"))
        ]
        packed = next((name for name, x in known.items() if x.packed), "")
        stack = fold(Stack(sides[0], sides[1], axes, packed, unfolded=self._unfolded()))
        return self._item(stack), stack

    @staticmethod
    def _step(x: OperandSpec, at: int) -> int:
        """Bytes along the rows or columns: 0 where a single one is broadcast."""
        return x.strides[at] if x.shape[at] > 1 else 0

    def _item(self, stack: Stack) -> Problem:
        """One product of a folded stack."""
        rows, cols, options = stack.rows, stack.cols, self.options
        bias, where = self._bias(rows, cols)
        epilogue = Epilogue(
            self.c is not None, where, options.program,
            zero_a=options.zero_a, zero_b=options.zero_b, scale=options.scale,
            scaling=options.scaling, operands=options.operands,
        )  # fmt: skip
        problem = Problem(
            element=self.sums,
            m=rows.count,
            n=cols.count,
            k=self.a.shape[-1] if options.alpha else 0,
            a=Operand(0, 0) if self.a.packed else self.a.item(rows.a, self.a.strides[-1]),
            b=None if self.b.packed else self.b.item(self.b.strides[-2], cols.b),
            d=self.d.item(rows.d, cols.d),
            c=None if self.c is None else self.c.item(rows.c, cols.c),
            bias=bias,
            epilogue=epilogue,
            in_place=self.in_place,
            components=self.components,
            types=self.types,
            strict=options.strict,
        )
        return replace(problem.transposed(), b=None) if self.a.packed else problem

    def _bias(self, rows: Axis, cols: Axis) -> tuple[Operand | None, Bias]:
        """The bias of one product, and along which axes it varies."""
        if self.bias is None:
            return None, Bias.NONE
        down, across = rows.bias != 0 and rows.count > 1, cols.bias != 0
        if down and across and cols.count > 1:
            return self.bias.item(rows.bias, cols.bias), Bias.FULL
        if across and not down:
            return self.bias.item(0, cols.bias), Bias.COLUMN
        return self.bias.item(rows.bias, 0), Bias.ROW
