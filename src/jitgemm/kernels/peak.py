"""A loop of multiply-adds and nothing else: what a core can do when nothing has to be fetched.

It is the yardstick benchmarks divide by.  A clock rate times a width would not do: neither the
clock under wide vectors nor the number of multiply-adds per cycle can be asked for portably.
"""

from __future__ import annotations

from jitgemm.isa.tables import Isa
from jitgemm.isa.types import ElementType
from jitgemm.lang.core import Function, Int, Kernel, Ptr, parameters

__all__ = ["chains", "operations_per_round", "peak_function"]

# Latency 4 at two per cycle asks for 8 chains, with separate multiply and add 12 to 16; more change
# nothing, so 20 of 32 registers leave room for machines with more pipes.
_MOST_CHAINS = 20
# The factor, a temporary where multiply and add are separate, and two to spare.
_OTHER_REGISTERS = 4


def chains(isa: Isa) -> int:
    """How many independent sums the loop keeps in registers."""
    return min(_MOST_CHAINS, isa.vector_registers - _OTHER_REGISTERS)


def operations_per_round(element: ElementType, isa: Isa) -> int:
    """Floating-point operations of one round of the loop (a multiply-add is two)."""
    return 2 * isa.lanes(element) * chains(isa)


def peak_function(element: ElementType, isa: Isa) -> Function:
    """``peak(reps, io)``: ``reps`` rounds of ``sum = sum * x + x`` on every chain.

    ``io`` holds ``1 + chains(isa)`` vectors: ``x``, then where each chain starts.  The total of all
    chains is stored over ``x``.  Everything comes from memory and goes back to it, so nothing
    can be folded; and because each product needs the sum before it, no multiplication can leave
    the loop even where multiply and add are separate instructions.
    """
    lanes = isa.lanes(element)
    step = lanes * element.bytes

    def body(k: Kernel, reps: Int, io: Ptr) -> None:
        x = k.load(io, element, lanes)
        sums = [k.var(k.load(io + step * (1 + i), element, lanes)) for i in range(chains(isa))]
        for _ in k.range(0, reps):
            for cell in sums:
                cell.value = k.op("madd", cell.value, x, x)
        total = sums[0].value
        for cell in sums[1:]:
            total = k.op("add", total, cell.value)
        k.store(io, total)

    return Function(f"{element}_peak__{isa.name}", parameters("reps io*"), body)
