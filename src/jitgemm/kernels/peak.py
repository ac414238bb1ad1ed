"""A loop of multiply-adds and nothing else: what a core can do when nothing has to be fetched.

A multiply-add is the one of the element type (``madd``), or one that folds a word of several
narrower numbers into a sum (``dot4``, ``bf16_dot``).

It is the yardstick benchmarks divide by.  A clock rate times a width would not do: neither the
clock under wide vectors nor the number of multiply-adds per cycle can be asked for portably.
"""

from __future__ import annotations

from jitgemm.isa.tables import Isa
from jitgemm.isa.types import ElementType
from jitgemm.lang.core import Function, Int, Kernel, Ptr, parameters

__all__ = ["FOLDS", "chains", "operations_per_round", "peak_function"]

FOLDS = {"madd": 2, "bf16_dot": 4, "dot4": 8}
"""Operations per lane: a multiplication and an addition for each number in a word."""

# Latency 4 at two per cycle asks for 8 chains, with separate multiply and add 12 to 16; more change
# nothing, so 20 of 32 registers leave room for machines with more pipes.
_MOST_CHAINS = 20
# The factor, a temporary where multiply and add are separate, and two to spare.
_OTHER_REGISTERS = 4


def chains(isa: Isa) -> int:
    """How many independent sums the loop keeps in registers."""
    return min(_MOST_CHAINS, isa.vector_registers - _OTHER_REGISTERS)


def operations_per_round(element: ElementType, isa: Isa, fold: str = "madd") -> int:
    """Operations of one round of the loop (a multiply-add of two numbers is two)."""
    return FOLDS[fold] * isa.lanes(element) * chains(isa)


def peak_function(element: ElementType, isa: Isa, fold: str = "madd") -> Function:
    """``peak(reps, io)``: ``reps`` rounds of a multiply-add on every chain.

    ``io`` holds ``1 + chains(isa)`` vectors: ``x``, then where each chain starts.  The total of all
    chains is stored over ``x``.  Everything comes from memory and goes back to it, so nothing
    can be folded.  With ``madd`` a round is ``sum = sum * x + x``: because each product needs the
    sum before it, no multiplication can leave the loop even where multiply and add are separate
    instructions.  Any other is one instruction, which adds to the register it writes, and a round
    is ``sum = x . x + sum``.
    """
    lanes = isa.lanes(element)
    step = lanes * element.bytes

    def body(k: Kernel, reps: Int, io: Ptr) -> None:
        x = k.load(io, element, lanes)
        sums = [k.var(k.load(io + step * (1 + i), element, lanes)) for i in range(chains(isa))]
        for _ in k.range(0, reps):
            for cell in sums:
                total = cell.value
                cell.value = k.op(fold, *((total, x, x) if fold == "madd" else (x, x, total)))
        total = sums[0].value
        for cell in sums[1:]:
            total = k.op("add", total, cell.value)
        k.store(io, total)

    kind = "" if fold == "madd" else f"_{fold}"
    return Function(f"{element}{kind}_peak__{isa.name}", parameters("reps io*"), body)
