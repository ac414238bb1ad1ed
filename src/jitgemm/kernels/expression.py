"""Programs that turn each element of a product into another: activations and traced functions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from jitgemm.errors import LanguageError
from jitgemm.kernels.operations import INPUTS, OPERATIONS, Operation, row_of
from jitgemm.lang.core import Kernel, Vec

__all__ = ["ACTIVATIONS", "Program", "Step", "binary", "emit", "program_of"]

Step = tuple[str | Operation, tuple[int, ...]]

# With more, a program is no longer worth repeating in every register tile's code.
_FEW = 8


@dataclass(frozen=True, slots=True)
class Program:
    """Steps in order; the last one is the result.

    A step is an input (:data:`~jitgemm.kernels.operations.INPUTS`), ``("const", (i,))`` for entry
    ``i`` of a table that exists at run time, ``("operand", (i,))`` for the number of operand ``i``
    that belongs to the element, or an operation and the indices of earlier steps: the name of a
    built-in row, or the row itself.
    """

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        for index, (what, operands) in enumerate(self.steps):
            known = row_of(what)
            arity = known.arity if known else int(what in ("const", "operand"))
            top = index if known else 1 << 31
            if not known and what not in (*INPUTS, "const", "operand"):
                raise LanguageError(f"step {index}: no operation {what!r}")
            if len(operands) != arity or not all(0 <= i < top for i in operands):
                raise LanguageError(f"step {index}: {what} of {operands}")
        if not self.steps:
            raise LanguageError("a program without steps")

    @property
    def constants(self) -> int:
        """Entries of the table of constants."""
        return max((operands[0] + 1 for what, operands in self.steps if what == "const"), default=0)

    @property
    def operands(self) -> tuple[int, ...]:
        """The operands that are read, by number."""
        return tuple(i for what, steps in self.steps if what == "operand" for i in steps)

    @property
    def name(self) -> str:
        """Short, for symbols and listings: the activation's, or ``f`` and a digest."""
        row = row_of(self.steps[-1][0])
        if row is not None and row.activation and self.steps == _steps(row):
            return row.name
        digest = hashlib.sha1(repr(self.steps).encode(), usedforsecurity=False)
        return "f" + digest.hexdigest()[:10]

    @property
    def rows(self) -> list[Operation]:
        """The rows of its operations."""
        return [row for what, _ in self.steps if (row := row_of(what)) is not None]

    @property
    def cheap(self) -> bool:
        """Whether it is short enough to be written out for every vector of a register tile."""
        return len(self.rows) <= _FEW and all(row.cheap for row in self.rows)

    @property
    def builtin(self) -> bool:
        """Whether its text is part of the package."""
        return all(row.builtin for row in self.rows)

    def uses(self, what: str) -> bool:
        """Whether an input, ``const`` or an operation occurs."""
        return any(step[0] == what for step in self.steps)

    def then(self, following: Program) -> Program:
        """This program, and another one of its result; the other's constants come after its own."""
        return _joined(self, following)

    def joined_to(self, following: Program) -> Program:
        """As :meth:`then`, made anew."""
        shift, first, steps = self.constants, len(self.steps), list(self.steps)
        # Where each step of the following program is found.
        at: list[int] = []
        for what, operands in following.steps:
            if what == "v":
                at.append(first - 1)
                continue
            known, moved = row_of(what), operands
            if known or what == "const":
                moved = tuple(at[i] if known else i + shift for i in operands)
            steps.append((what, moved))
            at.append(len(steps) - 1)
        if at[-1] != len(steps) - 1:
            # The last step must be the result: here it is this program's own.
            return self
        return Program(tuple(steps))

    def transposed(self) -> Program:
        """The same program for the transposed result: row and column exchanged."""
        other = {"row": "col", "col": "row"}
        return Program(
            tuple((other.get(str(what), what), operands) for what, operands in self.steps)
        )


# Kept, because calls with operands ask for them each time.
@lru_cache(256)
def _joined(first: Program, following: Program) -> Program:
    return first.joined_to(following)


@lru_cache(256)
def binary(row: Operation, operand: int) -> Program:
    """An operation applied to the element and its number of an operand."""
    return Program((("v", ()), ("operand", (operand,)), (row.step, (0, 1))))


def _steps(row: Operation) -> tuple[Step, ...]:
    """An operation applied to the element, then to constants."""
    inputs: list[Step] = [("v", ()), *(("const", (i,)) for i in range(row.arity - 1))]
    return (*inputs, (row.step, tuple(range(len(inputs)))))


@lru_cache(maxsize=64)
def program_of(row: Operation) -> Program:
    """An activation; its parameters are run-time constants."""
    return Program(_steps(row))


ACTIVATIONS = {row.name: program_of(row) for row in OPERATIONS.values() if row.activation}
"""Built-in activations by name."""


def emit(program: Program, k: Kernel, inputs: Callable[[str, int], Vec]) -> Vec:
    """Write a program.

    ``inputs("v" | "row" | "col", 0)`` and ``inputs("const" | "operand", i)`` give vectors.

    Inputs that are not used are not asked for, others once per step.
    """
    values: list[Vec] = []
    for what, operands in program.steps:
        known = row_of(what)
        if known is None:
            values.append(inputs(str(what), operands[0] if operands else 0))
        else:
            values.append(known.emit(k, *(values[i] for i in operands)))
    return values[-1]
