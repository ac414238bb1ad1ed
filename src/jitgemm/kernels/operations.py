"""Steps of programs: one row each, with all that anybody needs to know of it.

What may be asked for by name, with which parameters, the generated code, the interpreter's and the
BLAS route's results, messages and documentation follow from the row.  Rows from outside join with
:func:`register`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from jitgemm.isa import functions
from jitgemm.isa.integers import GENERIC_INTEGERS
from jitgemm.isa.ops import FUSED_OPS
from jitgemm.kernels import mathlib
from jitgemm.lang.core import Vec

__all__ = ["INPUTS", "OPERATIONS", "Operation", "Parameter", "register", "row_of", "unregister"]

INPUTS = ("v", "row", "col")
"""The element, and its indices in the result as numbers of its type."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A real number of an activation, which each product brings along.

    Args:
        name: by which it may be passed.
        default: its value if it is not passed; ``None``: it must be.
        finite: whether infinities are refused, as NaN always is.
    """

    name: str
    default: float | None = None
    finite: bool = False


# Rows are compared by identity: one that is registered anew is another one to every cache.
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Operation:
    """What a step may do."""

    name: str
    arity: int
    emit: Callable[..., Vec]
    """``emit(k, *operands)`` writes it in the kernel language."""
    meaning: Callable[..., Any]
    """``meaning(*operands)`` on NumPy arrays."""
    double: bool = False
    """The meaning is that of doubles, rounded to the type of the operands once."""
    cheap: bool = True
    """A handful of instructions: no polynomial."""
    integers: bool = False
    """It is also one of integers."""
    activation: bool = False
    """It may be asked for by its name; operands after the first are parameters."""
    post_op: bool = False
    """It may be asked for by its name with an operand: the second of two."""
    parameters: tuple[Parameter, ...] = ()
    ascending: bool = False
    """No parameter may be less than the one before."""
    doc: str = ""
    """What it is, in a phrase."""
    builtin: bool = True

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def step(self) -> str | Operation:
        """What stands for it in programs: a name, or the row itself, which may be gone one day."""
        return self.name if self.builtin else self

    def like(self, other: Operation) -> bool:
        """Whether another row says the same."""
        return all(getattr(self, x.name) == getattr(other, x.name) for x in fields(self))


def _plain(name: str, arity: int, **more: Any) -> Operation:
    """A row of the instruction sets' tables."""

    def meaning(*operands: Any) -> Any:
        table = GENERIC_INTEGERS if operands[0].dtype.kind in "iu" else FUSED_OPS
        return table[name].meaning(*operands)

    return Operation(name, arity, lambda k, *x: k.op(name, *x), meaning, **more)


def _function(name: str, doc: str = "") -> Operation:
    """A row with a polynomial, which is an activation if it says what it is as one."""
    return Operation(
        name, 1, getattr(mathlib, name), getattr(functions, name), double=True, cheap=False,
        activation=bool(doc), doc=doc,
    )  # fmt: skip


_ROWS = (
    _plain("neg", 1),
    _plain("abs", 1),
    _plain("sqrt", 1),
    _plain("relu", 1, activation=True, integers=True, doc="``max(v, 0)``; NaN and -0 stay"),
    *(_plain(name, 2, post_op=True) for name in ("add", "sub", "mul", "div", "minimum", "maximum")),
    *(_plain(name, 4) for name in ("select_lt", "select_le", "select_eq")),
    *(_function(name) for name in ("exp", "log", "erf")),
    _function("sigmoid", "``1 / (1 + exp(-v))``"),
    _function("tanh", "the hyperbolic tangent"),
    _function("gelu", "``v * (1 + erf(v / sqrt(2))) / 2``"),
    _function("gelu_tanh", "``v * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 * v**3))) / 2``"),
    _function("silu", "``v * sigmoid(v)``"),
    Operation(
        "hardswish", 1, mathlib.hardswish, functions.hardswish, double=True, activation=True,
        doc="``v * min(max(v + 3, 0), 6) / 6``",
    ),
    Operation(
        "leaky_relu", 2, mathlib.leaky_relu, functions.leaky_relu, activation=True,
        parameters=(Parameter("slope", 0.01),),
        doc="``v if v >= 0 else slope * v``; NaN and -0 stay",
    ),
    Operation(
        "clip", 3, mathlib.clip, functions.clip, activation=True, integers=True, ascending=True,
        parameters=(Parameter("lo"), Parameter("hi")),
        doc="``min(max(v, lo), hi)``; NaN stays, bounds may be infinite",
    ),
)  # fmt: skip

OPERATIONS = {row.name: row for row in _ROWS}
"""Every row by its name."""


def row_of(what: str | Operation) -> Operation | None:
    """The row of a step; ``None``: it is an input or a constant."""
    return what if isinstance(what, Operation) else OPERATIONS.get(what)


def register(row: Operation) -> Operation:
    """Make a row known by its name; it, or the equal one that is known.

    Raises:
        ValueError: the name is another one's.
    """
    if row.name in (*INPUTS, "const", "operand"):
        raise ValueError(row.name)
    known = OPERATIONS.setdefault(row.name, row)
    if not known.like(row):
        raise ValueError(row.name)
    return known


def unregister(name: str) -> None:
    """Forget the row of that name; programs that have it go on."""
    del OPERATIONS[name]
