"""A problem: everything about a product except the addresses."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jitgemm.isa.types import ElementType
from jitgemm.kernels.arithmetic import OperandTypes
from jitgemm.kernels.spec import Bias, Epilogue

__all__ = ["Operand", "Problem"]


@dataclass(frozen=True, slots=True)
class Operand:
    """Strides of a matrix in bytes."""

    row: int
    col: int
    swapped: bool = False
    """Its bytes are in the other order than this machine's: read and written byte-swapped."""

    @property
    def transposed(self) -> Operand:
        """The same matrix with its axes exchanged."""
        return replace(self, row=self.col, col=self.row)

    def normalized(self, rows: int, cols: int, unit: int) -> Operand:
        """The same matrix with dense strides along axes of length 1, whose strides mean nothing."""
        col = unit if cols == 1 else self.col
        return replace(self, row=cols * unit if rows == 1 else self.row, col=col)


@dataclass(frozen=True, slots=True)
class Problem:
    """``d[m, n] = act(alpha * a[m, k] @ b[k, n] + beta * c[m, n] + bias)``.

    ``m``, ``n`` and ``k`` count numbers, whatever their types: how many of them a kernel takes at a
    time along ``k`` is the plan's affair (``GemmPlan.k_groups``).
    """

    element: ElementType
    """The type of the sums, of their real components if complex."""
    m: int
    n: int
    k: int
    a: Operand
    b: Operand | None
    """``None``: prepacked."""
    d: Operand
    c: Operand | None = None
    bias: Operand | None = None
    epilogue: Epilogue = field(default=Epilogue())
    in_place: bool = False
    """C and D are the same memory."""
    components: int = 1
    """Real components per number: 2 for complex."""
    exchanged: bool = False
    """A and B are the caller's B and A, both transposed."""
    strict: bool = False
    """No route may have an order of its own."""
    types: OperandTypes = None  # type: ignore[assignment]  # never None: see __post_init__
    """Operand dtypes (of their real components, if complex); not given: all are ``element``."""

    def __post_init__(self) -> None:
        if self.types is None:
            object.__setattr__(self, "types", OperandTypes.of(self.element))

    @property
    def unit(self) -> int:
        """Bytes of one number of the sums' type."""
        return self.components * self.element.bytes

    @property
    def unit_b(self) -> int:
        """Bytes of one number of B."""
        return self.components * self.types.b.bytes

    @property
    def plain(self) -> bool:
        """Whether all operands hold numbers of the sums' type."""
        return self.types.plain(self.element)

    @property
    def operations(self) -> int:
        """Arithmetic operations: a multiply and an add per (i, j, p), four of each if complex."""
        return 2 * self.m * self.n * self.k * self.components**2

    def normalized(self) -> Problem:
        """The same problem with dense strides along axes of length 1."""
        types, m, n, k = self.types, self.m, self.n, self.k

        def dense(x: Operand, shape: tuple[int, int], element: ElementType) -> Operand:
            return x.normalized(*shape, self.components * element.bytes)

        return replace(
            self,
            a=dense(self.a, (m, k), types.a),
            b=None if self.b is None else dense(self.b, (k, n), types.b),
            c=None if self.c is None else dense(self.c, (m, n), types.c),
            d=dense(self.d, (m, n), types.out),
        )

    def transposed(self) -> Problem:
        """The problem ``D^T = B^T A^T``, which has the same sums in the same order."""
        if self.b is None:
            raise ValueError("a prepacked operand ties the orientation")
        epilogue = self.epilogue.transposed
        if self.bias is not None and self.bias.swapped and epilogue.bias is Bias.ROW:
            # Numbers per row are read as they are; those per element are put in order first.
            epilogue = replace(epilogue, bias=Bias.FULL)
        return replace(
            self,
            m=self.n,
            n=self.m,
            a=self.b.transposed,
            b=self.a.transposed,
            c=None if self.c is None else self.c.transposed,
            bias=None if self.bias is None else self.bias.transposed,
            d=self.d.transposed,
            epilogue=epilogue,
            types=self.types.transposed,
            exchanged=not self.exchanged,
        ).normalized()
