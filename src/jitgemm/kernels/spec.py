"""Specs: frozen descriptions of a kernel.  A spec is the compiler's key and names the symbol.

Everything that changes the generated code is a field here; ``m n k``, strides and addresses are
run-time arguments, so the number of kernels is bounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import lru_cache

from jitgemm.errors import LanguageError, message
from jitgemm.isa.outer import OuterUnit
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import F32, ElementType
from jitgemm.kernels.arithmetic import Arithmetic, OperandTypes
from jitgemm.kernels.expression import Program

__all__ = ["MOST_ROWS", "Axes", "BSource", "Bias", "Epilogue", "GemmSpec", "Scale", "Tile"]

MOST_ROWS = 255
"""Of a microtile: a variant of the microkernel is a number of panels times 256 and its rows."""


class BSource(Enum):
    """Where a microkernel finds B."""

    PACKED = "packed"
    """Micropanels ``nr`` wide, each spanning a whole depth slice."""
    INPLACE = "inplace"
    """The operand itself, rows contiguous, any row stride."""
    COLUMNS = "columns"
    """The operand itself, columns contiguous: for few rows of A."""


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


class Scale(Enum):
    """Along which axis of the result the scale of a requantisation varies."""

    NONE = ""
    """No requantisation."""
    COLUMN = "requant"
    ROW = "rowrequant"
    """One per row (one for all is one with stride 0)."""

    @property
    def transposed(self) -> Scale:
        """The kind for the result with its axes exchanged."""
        return {Scale.COLUMN: Scale.ROW, Scale.ROW: Scale.COLUMN}.get(self, self)


class Axes(Enum):
    """Along which axes of the result an operand of an epilogue's program varies."""

    ONE = "one"
    ROW = "row"
    COLUMN = "col"
    FULL = "full"

    @property
    def transposed(self) -> Axes:
        """Those of the result with its axes exchanged."""
        return {Axes.ROW: Axes.COLUMN, Axes.COLUMN: Axes.ROW}.get(self, self)

    @property
    def by_row(self) -> bool:
        """Whether there is a number for each row."""
        return self in (Axes.ROW, Axes.FULL)

    @property
    def by_column(self) -> bool:
        """Whether there is a number for each column."""
        return self in (Axes.COLUMN, Axes.FULL)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What happens to a sum: ``program(alpha * scaling(sum) [+ beta * C] [+ bias])``.

    For integers the zero points of A and B are taken off the sum first, and the result may be
    scaled to a narrower type last.
    """

    beta: bool = False
    bias: Bias = Bias.NONE
    program: Program | None = None
    zero_a: bool = False
    """A has a zero point, per row or one for all."""
    zero_b: bool = False
    """B has a zero point, per column or one for all."""
    scale: Scale = Scale.NONE
    scaling: Program | None = None
    """What is done to a sum before all else, as a number of the type that the epilogue computes
    in: :attr:`GemmSpec.epilogue_type`."""
    operands: tuple[Axes, ...] = ()
    """Those that both programs read."""

    @property
    def programs(self) -> tuple[Program, ...]:
        """Both, of those that there are."""
        return tuple(x for x in (self.scaling, self.program) if x is not None)

    @property
    def transposed(self) -> Epilogue:
        """The same map of the result with its axes exchanged."""
        program, scaling = (
            None if x is None else x.transposed() for x in (self.program, self.scaling)
        )
        return replace(
            self, bias=self.bias.transposed, program=program, zero_a=self.zero_b,
            zero_b=self.zero_a, scale=self.scale.transposed, scaling=scaling,
            operands=tuple(x.transposed for x in self.operands),
        )  # fmt: skip

    def __str__(self) -> str:
        zeros = [name for name in ("zero_a", "zero_b") if getattr(self, name)]
        names = [z.replace("_", "") for z in zeros]
        if self.scaling is not None:
            names.append(self.scaling.name)
        names.append("beta" if self.beta else "beta0")
        if self.bias is not Bias.NONE:
            names.append(self.bias.value)
        if self.program is not None:
            names.append(self.program.name)
        if self.scale is not Scale.NONE:
            names.append(self.scale.value)
        return "_".join([*names, *(x.value for x in self.operands)])


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

    @property
    def one_panel(self) -> Tile:
        """The same for one micropanel at a time, as those are which are upconverted first."""
        return Tile(self.mr, self.nr_regs, ((1, self.mr),))

    def variants(self) -> tuple[tuple[int, int], ...]:
        """Every ``(panels, rows)`` for which a microkernel exists."""
        return tuple((panels, r) for panels, rows in self.groups for r in range(1, rows + 1))

    def group_for(self, rows: int) -> int:
        """The most micropanels a tile of ``rows`` rows may cover."""
        return max(panels for panels, most in self.groups if rows <= most)

    def check(self, registers: int, components: int) -> None:
        """Refuse a tile whose sums, B vectors and broadcast do not fit the register file.

        A row of a complex A counts twice: its real and its imaginary parts have their own sums.

        Raises:
            ValueError: they do not, or the tile is none that a nest can walk.
        """
        if not (0 < self.mr <= MOST_ROWS and self.nr_regs > 0 and (1, self.mr) in self.groups):
            expected = f"1 to {MOST_ROWS} rows, vectors, and a group of one micropanel by all rows"
            raise ValueError(message("tile", expected, self))
        for panels, rows in self.groups:
            columns = panels * self.nr_regs
            reals = rows * components
            # The shorter side is held, the longer one streams past it.
            needed = reals * columns + min(columns, reals) + 1
            if not (panels > 0 and 0 < rows <= self.mr and needed <= registers):
                got = f"{rows} rows by {columns} vectors, which need {needed}"
                raise ValueError(message("tile", f"one that fits {registers} registers", got))


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
    components: int = 1
    """Reals per number: 2 for complex."""
    arithmetic: Arithmetic = None  # type: ignore[assignment]  # never None: see __post_init__
    """Not given: every operand holds numbers of ``element``, which is also the type of the sums."""
    a_vectors: bool = False
    """Rows of A lie side by side (``a_row`` is :attr:`unit`): a vector brings a number of several
    of them, which multiply-adds take by lane."""

    def __post_init__(self) -> None:
        if self.arithmetic is None:
            object.__setattr__(self, "arithmetic", Arithmetic.plain_of(self.element))
        self._check()

    def _check(self) -> None:
        """Refuse what no kernel exists for.

        Raises:
            LanguageError: the fields contradict each other.
        """
        how, epilogue = self.arithmetic, self.epilogue
        corrected = epilogue.zero_a or epilogue.zero_b or epilogue.scale is not Scale.NONE
        rules = {
            "one or two reals per number": self.components in (1, 2),
            "complex numbers are floats": self.components == 1 or not self.element.integral,
            "complex numbers as they are": self.components == 1 or how.plain,
            "zero points and requantisation of 32-bit sums": (
                not corrected or (self.element.integral and self.element.bits == 32)
            ),
            "a B read in place whose numbers can be": (
                self.b is not BSource.INPLACE or how.reads_b
            ),
            "columns whose numbers can be read in place": (
                self.b is not BSource.COLUMNS or how.reads_columns
            ),
            "a float result of 32-bit sums": (
                not self.dequantises or self.element.bits == self.epilogue_type.bits
            ),
            "an epilogue that reads the operands it has": all(
                0 <= i < len(epilogue.operands) for x in epilogue.programs for i in x.operands
            ),
            "tiles are loaded from micropanels": (
                not how.tiles or self.b is BSource.PACKED or self.outer is not None
            ),
            "outer products take rows of B": (self.outer is None or self.b is not BSource.COLUMNS),
            "vectors of A's rows that are numbers as they are": (
                not self.a_vectors or (how.plain and self.b is not BSource.COLUMNS)
            ),
            "micropanels upconverted one by one": (
                how.stored is None or [panels for panels, _ in self.tile.groups] == [1]
            ),
            "vectors of at least one number": self.isa.lanes(self.element) > 0,
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise LanguageError(f"no such kernel: {'; '.join(broken)}")

    @property
    def unit(self) -> int:
        """Bytes of one number, as the microkernel reads A."""
        return self.components * self.element.bytes

    @property
    def types(self) -> OperandTypes:
        """Of the operands in memory."""
        return self.arithmetic.types

    @property
    def type_name(self) -> str:
        """``f32``, ``f64``, ``c64``, ``c128``; or the types of A, B and D, and others' if read."""
        if self.arithmetic.plain:
            return f"c{2 * self.element.bits}" if self.components == 2 else str(self.element)
        types = self.types
        names = [str(types.a), str(types.b), str(types.out)]
        if self.epilogue.beta:
            names.append(str(types.c))
        if self.epilogue.bias is not Bias.NONE:
            names.append(str(types.bias))
        if types.bf16_dot and self.arithmetic.group > 1:
            names.append("dot")
        if self.arithmetic.stored is not None:
            names.append("wide")
        elif types.b.format and not self.panel_element.format:
            names.append("upconverted")
        return "_".join(names)

    @property
    def dequantises(self) -> bool:
        """Whether sums of integers become floats."""
        return self.element.integral and not self.types.out.integral

    @property
    def epilogue_type(self) -> ElementType:
        """What the epilogue computes in: the type of the sums, or f32 where integers become floats.

        Both have as many bits, so a partial sum may rest where a finished number goes.
        """
        return F32 if self.dequantises else self.element

    @property
    def lanes(self) -> int:
        """Elements per vector."""
        return self.isa.lanes(self.element)

    @property
    def nr(self) -> int:
        """Columns in one micropanel of B, in reals."""
        return self.tile.nr_regs * self.lanes

    @property
    def panel_element(self) -> ElementType:
        """The type of B's numbers in micropanels."""
        return self.arithmetic.b_element

    @property
    def panel_row(self) -> int:
        """Bytes of one depth step (of k-groups) of a micropanel."""
        return self.nr * self.panel_element.bytes * self.arithmetic.group

    @property
    def tile_row(self) -> int:
        """Bytes of one row of sums as wide as a micropanel."""
        return self.nr * self.element.bytes

    @property
    def tiles(self) -> bool:
        """Whether a matrix unit multiplies tiles of k-groups."""
        return self.arithmetic.tiles

    @property
    def outer(self) -> OuterUnit | None:
        """The unit that adds outer products to tiles of sums, if one multiplies."""
        unit = self.isa.unit
        return unit if self.tiles and isinstance(unit, OuterUnit) else None

    @property
    def upconverts_b(self) -> bool:
        """Whether B's numbers become k-groups while the microkernel reads them."""
        how = self.arithmetic
        return how.group == 1 and bool(how.b_element.format)

    @property
    def spills_to_buffer(self) -> bool:
        """Whether sums wait for later depth blocks in a buffer, the result being narrower."""
        return self.arithmetic.spills_to_buffer

    @property
    def sums_columns(self) -> bool:
        """Whether a packed micropanel ends with the sums of its columns."""
        # Zero points are those of 8-bit numbers.
        narrow = self.types.a.bits == self.types.b.bits == 8
        return narrow and self.arithmetic.group > 1

    @property
    def upconverts_panels(self) -> bool:
        """Whether micropanels are upconverted into scratch before microtiles meet them."""
        return self.arithmetic.stored is not None

    @property
    def in_memory(self) -> GemmSpec:
        """The kernel that reads micropanels as they lie in memory."""
        how = self.arithmetic
        if how.stored is None:
            return self
        return replace(self, arithmetic=how.for_few_rows)

    def panel_bytes(self, depth: int) -> int:
        """Bytes of a micropanel of ``depth`` steps (of k-groups), in memory."""
        row = self.in_memory.panel_row
        return depth * row + (self.tile_row if self.sums_columns else 0)

    @property
    def partial_groups(self) -> bool:
        """Whether the last of several micropanels covered at once may be partial.

        In place that takes a mask per vector in the loop, which must not cost vector registers.
        """
        return self.b is not BSource.INPLACE or self.isa.mask_registers

    @property
    def digest(self) -> str:
        """Of all that decides the code, the instruction set's operations included."""
        return _digest(self)

    @property
    def symbol(self) -> str:
        """What a reader wants to know of it, and enough of its digest to be told from others.

        Type, operation, specialisations, tile, ``__``, instruction set.
        """
        lanes = "_lanes" if self.a_vectors else ""
        return (
            f"{self.type_name}_gemm_{self.b.value}{lanes}_{self.epilogue}_{self.tile.mr}x{self.nr}"
            f"__{self.isa.name}_{self.digest[:8]}"
        )


# Traced functions make specs without end.
@lru_cache(512)
def _digest(spec: GemmSpec) -> str:
    text = "\0".join([*(_text(getattr(spec, x.name)) for x in fields(spec) if x.name != "isa"),
                      _isa_digest(spec.isa)])  # fmt: skip
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(64)
def _isa_digest(isa: Isa) -> str:
    return hashlib.sha256(_text(isa).encode()).hexdigest()


def _text(x: object) -> str:
    """A value's fields and their values, down to plain ones; meanings are no part of code."""
    if isinstance(x, Enum):
        return x.name
    if is_dataclass(x):
        return f"{type(x).__name__}({','.join(_text(getattr(x, f.name)) for f in fields(x))})"
    if isinstance(x, Mapping):
        return f"{{{','.join(f'{key}={_text(value)}' for key, value in sorted(x.items()))}}}"
    if isinstance(x, frozenset):
        return _text(tuple(sorted(x)))
    if isinstance(x, tuple):
        return f"({','.join(map(_text, x))})"
    return "" if callable(x) else repr(x)
