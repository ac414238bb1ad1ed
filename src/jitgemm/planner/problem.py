"""A problem: everything about a product except the addresses."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jitgemm.isa.types import ElementType
from jitgemm.kernels.spec import Epilogue

__all__ = ["Operand", "Problem"]


@dataclass(frozen=True, slots=True)
class Operand:
    """Strides of a matrix in bytes."""

    row: int
    col: int

    @property
    def transposed(self) -> Operand:
        """The same matrix with its axes exchanged."""
        return Operand(self.col, self.row)


@dataclass(frozen=True, slots=True)
class Problem:
    """``d[m, n] = act(alpha * a[m, k] @ b[k, n] + beta * c[m, n] + bias[n])``."""

    element: ElementType
    m: int
    n: int
    k: int
    a: Operand
    b: Operand | None
    """``None``: prepacked."""
    d: Operand
    c: Operand | None = None
    epilogue: Epilogue = field(default=Epilogue())
    in_place: bool = False
    """C and D are the same memory."""

    @property
    def operations(self) -> int:
        """Arithmetic operations: a multiply and an add per (i, j, p)."""
        return 2 * self.m * self.n * self.k

    def normalized(self) -> Problem:
        """The same problem with unit strides along axes of length 1, whose strides mean nothing."""
        size, m, n, k = self.element.bytes, self.m, self.n, self.k

        def fix(x: Operand, rows: int, cols: int) -> Operand:
            col = size if cols == 1 else x.col
            row = cols * size if rows == 1 else x.row
            return Operand(row, col)

        return replace(
            self,
            a=fix(self.a, m, k),
            b=None if self.b is None else fix(self.b, k, n),
            c=None if self.c is None else fix(self.c, m, n),
            d=fix(self.d, m, n),
        )

    def transposed(self) -> Problem:
        """The problem ``D^T = B^T A^T``, which has the same sums in the same order."""
        if self.b is None or self.epilogue.bias:
            raise ValueError("a prepacked operand or a bias per column ties the orientation")
        return replace(
            self,
            m=self.n,
            n=self.m,
            a=self.b.transposed,
            b=self.a.transposed,
            c=None if self.c is None else self.c.transposed,
            d=self.d.transposed,
        ).normalized()
