"""Specs: frozen descriptions of a kernel.  A spec is the cache key and names the symbol.

Everything that changes the generated code is a field here; ``m n k``, strides and addresses are
run-time arguments, so the number of kernels is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from jitgemm.isa.tables import Isa
from jitgemm.isa.types import ElementType

__all__ = ["Activation", "BSource", "Epilogue", "GemmSpec", "Tile"]


class BSource(Enum):
    """Where a microkernel finds B."""

    PACKED = "packed"
    """Micropanels ``nr`` wide, each spanning a whole depth slice."""
    INPLACE = "inplace"
    """The operand itself, rows contiguous, any row stride."""


class Activation(Enum):
    """The map applied last."""

    NONE = "none"
    RELU = "relu"


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What happens to a finished sum: ``act(alpha * sum [+ beta * C] [+ bias])``."""

    beta: bool = False
    bias: bool = False
    activation: Activation = Activation.NONE

    def __str__(self) -> str:
        parts = ["beta" if self.beta else "beta0"]
        if self.bias:
            parts.append("bias")
        if self.activation is not Activation.NONE:
            parts.append(self.activation.value)
        return "_".join(parts)


@dataclass(frozen=True, slots=True)
class Tile:
    """Register tile: up to ``mr`` rows by ``nr_regs`` vectors for one micropanel of B.

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

    def check(self, registers: int) -> None:
        """Refuse a tile whose sums, B vectors and broadcast do not fit the register file."""
        for panels, rows in self.groups:
            columns = panels * self.nr_regs
            if rows * columns + min(columns, self.nr_regs) + 1 > registers:
                raise ValueError(
                    f"tile of {rows} rows by {columns} vectors needs more than "
                    f"{registers} registers"
                )


@dataclass(frozen=True, slots=True)
class GemmSpec:
    """One nest with all its microkernels."""

    element: ElementType
    isa: Isa
    tile: Tile
    b: BSource
    epilogue: Epilogue

    @property
    def lanes(self) -> int:
        """Elements per vector."""
        return self.isa.lanes(self.element)

    @property
    def nr(self) -> int:
        """Columns in one micropanel of B."""
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
        return self.b is BSource.PACKED or self.isa.mask_registers

    @property
    def symbol(self) -> str:
        """Type, operation, specialisations, tile, ``__``, instruction set."""
        return (
            f"{self.element}_gemm_{self.b.value}_{self.epilogue}_{self.tile.mr}x{self.nr}"
            f"__{self.isa.name}"
        )
