"""Programs that turn each element of a product into another: activations and traced functions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from jitgemm.errors import LanguageError
from jitgemm.kernels import mathlib
from jitgemm.lang.core import Kernel, Vec

__all__ = [
    "ACTIVATIONS",
    "BINARY",
    "INPUTS",
    "OPERATIONS",
    "Operation",
    "Program",
    "binary",
    "emit",
]

Step = tuple[str, tuple[int, ...]]

INPUTS = ("v", "row", "col")
"""The element, and its indices in the result as numbers of its type."""

# With more, a program is no longer worth repeating in every register tile's code.
_FEW = 8


@dataclass(frozen=True, slots=True)
class Operation:
    """What a step may do: some operations of the instruction set's table, and functions."""

    arity: int
    emit: Callable[..., Vec]
    """``emit(k, *operands)`` writes it."""
    cheap: bool = True
    """A handful of instructions: no polynomial."""


def _table(name: str) -> Callable[..., Vec]:
    return lambda k, *operands: k.op(name, *operands)


_ARITIES = {
    "neg": 1, "abs": 1, "sqrt": 1, "relu": 1,
    "add": 2, "sub": 2, "mul": 2, "div": 2, "minimum": 2, "maximum": 2,
    "select_lt": 4, "select_le": 4, "select_eq": 4,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Vec]] = {
    "exp": mathlib.exp,
    "log": mathlib.log,
    "tanh": mathlib.tanh,
    "erf": mathlib.erf,
    "sigmoid": mathlib.sigmoid,
    "gelu": mathlib.gelu,
    "gelu_tanh": mathlib.gelu_tanh,
    "silu": mathlib.silu,
}

OPERATIONS: dict[str, Operation] = {
    **{name: Operation(arity, _table(name)) for name, arity in _ARITIES.items()},
    **{name: Operation(1, function, cheap=False) for name, function in _FUNCTIONS.items()},
    "hardswish": Operation(1, mathlib.hardswish),
    "leaky_relu": Operation(2, mathlib.leaky_relu),
    "clip": Operation(3, mathlib.clip),
}


@dataclass(frozen=True, slots=True)
class Program:
    """Steps in order; the last one is the result.

    A step is an input (:data:`INPUTS`), ``("const", (i,))`` for entry ``i`` of a table that exists
    at run time, ``("operand", (i,))`` for the number of operand ``i`` that belongs to the element,
    or an operation and the indices of earlier steps.
    """

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        for index, (what, operands) in enumerate(self.steps):
            known = OPERATIONS.get(what)
            arity = known.arity if known else {"const": 1, "operand": 1}.get(what, 0)
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
        digest = hashlib.sha1(repr(self.steps).encode(), usedforsecurity=False)
        return _NAMES.get(self) or "f" + digest.hexdigest()[:10]

    @property
    def cheap(self) -> bool:
        """Whether it is short enough to be written out for every vector of a register tile."""
        operations = [OPERATIONS[what] for what, _ in self.steps if what in OPERATIONS]
        return len(operations) <= _FEW and all(o.cheap for o in operations)

    def uses(self, what: str) -> bool:
        """Whether an input, ``const`` or an operation occurs."""
        return any(step[0] == what for step in self.steps)

    def then(self, following: Program) -> Program:
        """This program, and another one of its result; the other's constants come after its own."""
        shift, first, steps = self.constants, len(self.steps), list(self.steps)
        # Where each step of the following program is found.
        at: list[int] = []
        for what, operands in following.steps:
            if what == "v":
                at.append(first - 1)
                continue
            known = OPERATIONS.get(what)
            moved = operands
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
        return Program(tuple((other.get(what, what), operands) for what, operands in self.steps))


BINARY = ("add", "sub", "mul", "div", "minimum", "maximum")
"""Operations of an element and its number of an operand."""


def binary(name: str, operand: int) -> Program:
    """An operation applied to the element and its number of an operand."""
    return Program((("v", ()), ("operand", (operand,)), (name, (0, 1))))


def _named(name: str, constants: int = 0) -> Program:
    """An operation applied to the element, then to the constants."""
    inputs: list[Step] = [("v", ()), *(("const", (i,)) for i in range(constants))]
    return Program((*inputs, (name, tuple(range(len(inputs))))))


ACTIVATIONS: dict[str, Program] = {
    name: _named(name)
    for name in ("relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu", "hardswish")
} | {"leaky_relu": _named("leaky_relu", 1), "clip": _named("clip", 2)}
"""Activations by name.  The slope of leaky_relu and the bounds of clip are run-time constants."""

_NAMES = {program: name for name, program in ACTIVATIONS.items()}


def emit(program: Program, k: Kernel, inputs: Callable[[str, int], Vec]) -> Vec:
    """Write a program.

    ``inputs("v" | "row" | "col", 0)`` and ``inputs("const" | "operand", i)`` give vectors.

    Inputs that are not used are not asked for, others once per step.
    """
    values: list[Vec] = []
    for what, operands in program.steps:
        known = OPERATIONS.get(what)
        if known is None:
            values.append(inputs(what, operands[0] if operands else 0))
        else:
            values.append(known.emit(k, *(values[i] for i in operands)))
    return values[-1]
