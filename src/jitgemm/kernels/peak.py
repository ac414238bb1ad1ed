"""A loop of multiply-adds and nothing else: what a core can do when nothing has to be fetched.

A multiply-add is the one of the element type (``madd``), or one that folds a word of several
narrower numbers into a sum (``dot4``, ``bf16_dot``), or one on tiles of a matrix unit.

It is the yardstick benchmarks divide by.  A clock rate times a width would not do: neither the
clock under wide vectors nor the number of multiply-adds per cycle can be asked for portably.
"""

from __future__ import annotations

from jitgemm.isa.matrix import TILE_BYTES, TILE_ROWS, TILE_WORDS, TILES
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import BF16, ElementType
from jitgemm.kernels.matrix import shape_tiles
from jitgemm.lang.core import Function, Int, Kernel, Ptr, parameters

__all__ = ["FOLDS", "chains", "io_bytes", "operations_per_round", "peak_function"]

FOLDS = {"madd": 2, "bf16_dot": 4, "dot4": 8}
"""Operations per lane: a multiplication and an addition for each number in a word."""

# Latency 4 at two per cycle asks for 8 chains, with separate multiply and add 12 to 16; more change
# nothing, so 20 of 32 registers leave room for machines with more pipes.
_MOST_CHAINS = 20
# The factor, a temporary where multiply and add are separate, and two to spare.
_OTHER_REGISTERS = 4
_TILE, _TILE_SUMS = TILE_ROWS * TILE_BYTES, 4


def chains(isa: Isa) -> int:
    """How many independent sums the loop keeps in registers."""
    return min(_MOST_CHAINS, isa.vector_registers - _OTHER_REGISTERS)


def operations_per_round(element: ElementType, isa: Isa, fold: str = "madd") -> int:
    """Operations of one round of the loop (a multiply-add of two numbers is two)."""
    if fold in isa.tiles:
        # A byte of a row of A meets one of each column of B, or two bytes do.
        width = BF16.bytes if fold == "tile_bf16" else 1
        return _TILE_SUMS * 2 * TILE_ROWS * TILE_WORDS * (TILE_BYTES // width)
    return FOLDS[fold] * isa.lanes(element) * chains(isa)


def io_bytes(element: ElementType, isa: Isa, fold: str = "madd") -> int:
    """Bytes the loop takes its operands from."""
    if fold in isa.tiles:
        return 2 * _TILE
    return (1 + chains(isa)) * isa.lanes(element) * element.bytes


def peak_function(element: ElementType, isa: Isa, fold: str = "madd") -> Function:
    """``peak(reps, io)``: ``reps`` rounds of a multiply-add on every chain.

    ``io`` holds ``1 + chains(isa)`` vectors: ``x``, then where each chain starts.  The total of all
    chains is stored over ``x``.  Everything comes from memory and goes back to it, so nothing
    can be folded.  With ``madd`` a round is ``sum = sum * x + x``: because each product needs the
    sum before it, no multiplication can leave the loop even where multiply and add are separate
    instructions.  Any other is one instruction, which adds to the register it writes, and a round
    is ``sum = x . x + sum``.
    """
    if fold in isa.tiles:
        return _tile_peak_function(element, isa, fold)
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


def _tile_peak_function(element: ElementType, isa: Isa, fold: str) -> Function:
    """:func:`peak_function` of a matrix unit: four registers of sums, two of A, two of B.

    ``io`` holds a tile that stands for A and B, then one that every sum starts from; one sum is
    stored over it.
    """

    def body(k: Kernel, reps: Int, io: Ptr) -> None:
        row = k.const(TILE_BYTES)
        shape_tiles(k, sum(TILE_ROWS << (8 * i) for i in range(TILES)))
        for tile in range(TILES):
            k.load_tile(tile, io + (_TILE if tile < _TILE_SUMS else 0), row)
        for _ in k.range(0, reps):
            for i in range(_TILE_SUMS):
                k.fold_tiles(fold, element, i, 4 + i // 2, 6 + i % 2)
        k.store_tile(0, io + _TILE, row)
        k.release_tiles()

    return Function(f"{element}_{fold}_peak__{isa.name}", parameters("reps io*"), body)
