"""Specs: frozen descriptions of a kernel.  A spec is the cache key and names the symbol.

Everything that changes the generated code is a field here; ``m n k``, strides and addresses are
run-time arguments, so the number of kernels is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from jitgemm.isa.tables import Isa
from jitgemm.isa.types import ElementType
from jitgemm.kernels.expression import Program

__all__ = ["BSource", "Bias", "Epilogue", "GemmSpec", "Tile"]


class BSource(Enum):
    """Where a microkernel finds B."""

    PACKED = "packed"
    """Micropanels ``nr`` wide, each spanning a whole depth slice."""
    INPLACE = "inplace"
    """The operand itself, rows contiguous, any row stride."""
    COLUMNS = "columns"
    """The operand itself, columns contiguous: turned in registers, for few rows of A."""


class Bias(Enum):
    """Along which axes of the result a bias varies."""

    NONE = ""
    COLUMN = "bias"
    """One number per column."""
    ROW = "rowbias"
    """One number per row (a scalar is one with stride 0)."""
    FULL = "fullbias"
    """One number per element."""

    @property
    def transposed(self) -> Bias:
        """The kind for the result with its axes exchanged."""
        return {Bias.COLUMN: Bias.ROW, Bias.ROW: Bias.COLUMN}.get(self, self)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What happens to a finished sum: ``program(alpha * sum [+ beta * C] [+ bias])``."""

    beta: bool = False
    bias: Bias = Bias.NONE
    program: Program | None = None

    @property
    def transposed(self) -> Epilogue:
        """The same map of the result with its axes exchanged."""
        program = None if self.program is None else self.program.transposed()
        return replace(self, bias=self.bias.transposed, program=program)

    def __str__(self) -> str:
        parts = ["beta" if self.beta else "beta0"]
        if self.bias is not Bias.NONE:
            parts.append(self.bias.value)
        if self.program is not None:
            parts.append(self.program.name)
        return "_".join(parts)


@dataclass(frozen=True, slots=True)
class Tile:
    """Register tile: up to ``mr`` rows of A by ``nr_regs`` vectors for one micropanel of B.

    ``groups`` lists ``(panels, rows)``: how many adjacent micropanels a tile of at most that many
    rows covers at once, so that few rows still keep enough independent sums and several streams
    of B under way.
    """

    mr: int
    nr_regs: int
    groups: tuple[tuple[int, int], ...]

    def variants(self) -> tuple[tuple[int, int], ...]:
        """Every ``(panels, rows)`` for which a microkernel exists."""
        return tuple((panels, r) for panels, rows in self.groups for r in range(1, rows + 1))

    def group_for(self, rows: int) -> int:
        """The most micropanels a tile of ``rows`` rows may cover."""
        return max(panels for panels, most in self.groups if rows <= most)

    def check(self, registers: int, parts: int) -> None:
        """Refuse a tile whose sums, B vectors and broadcast do not fit the register file.

        A row of a complex A counts twice: its real and its imaginary parts have their own sums.
        """
        for panels, rows in self.groups:
            columns = panels * self.nr_regs
            if rows * parts * columns + min(columns, self.nr_regs) + 1 > registers:
                raise ValueError(
                    f"tile of {rows} rows by {columns} vectors needs more than "
                    f"{registers} registers"
                )


@dataclass(frozen=True, slots=True)
class GemmSpec:
    """One nest with all its microkernels.

    A complex product is a real one: each row of A is two rows of reals, its real and its imaginary
    parts, and B, C and D are matrices of twice as many columns.  So columns, ``nr`` and vectors
    count reals throughout, rows and depth count numbers of either kind; only where sums are
    finished are the two rows combined.
    """

    element: ElementType
    isa: Isa
    tile: Tile
    b: BSource
    epilogue: Epilogue
    parts: int = 1
    """Reals per number: 2 for complex."""

    @property
    def unit(self) -> int:
        """Bytes of one number."""
        return self.parts * self.element.bytes

    @property
    def type_name(self) -> str:
        """``f32``, ``f64``, ``c64``, ``c128``."""
        return f"c{2 * self.element.bits}" if self.parts == 2 else str(self.element)

    @property
    def lanes(self) -> int:
        """Elements per vector."""
        return self.isa.lanes(self.element)

    @property
    def nr(self) -> int:
        """Columns in one micropanel of B, in reals."""
        return self.tile.nr_regs * self.lanes

    @property
    def panel_row(self) -> int:
        """Bytes of one depth step of a micropanel."""
        return self.nr * self.element.bytes

    @property
    def partial_groups(self) -> bool:
        """Whether the last of several micropanels covered at once may be partial.

        In place that takes a mask per vector in the loop, which must not cost vector registers.
        """
        return self.b is not BSource.INPLACE or self.isa.mask_registers

    @property
    def symbol(self) -> str:
        """Type, operation, specialisations, tile, ``__``, instruction set."""
        return (
            f"{self.type_name}_gemm_{self.b.value}_{self.epilogue}_{self.tile.mr}x{self.nr}"
            f"__{self.isa.name}"
        )
