"""A loop of multiply-adds and nothing else: what a core can do when nothing has to be fetched.

A multiply-add is the one of the element type (``madd``), or one that folds a word of several
narrower numbers into a sum (``dot4`` and its like, ``bf16_dot``), or one on tiles of a matrix unit.

It is the yardstick benchmarks divide by.  A clock rate times a width would not do: neither the
clock under wide vectors nor the number of multiply-adds per cycle can be asked for portably.
"""

from __future__ import annotations

from jitgemm.isa.integers import FOLDS as INTEGER_FOLDS
from jitgemm.isa.matrix import MatrixUnit, TileProduct
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import ElementType
from jitgemm.kernels.squares import largest
from jitgemm.lang.core import Function, Int, Kernel, Ptr, parameters

__all__ = ["FOLDS", "chains", "io_bytes", "operations_per_round", "peak_function"]

FOLDS = {"madd": 2, "bf16_dot": 4, **{x.name: 2 * x.group for x in INTEGER_FOLDS if x.bits == 8}}
"""Operations per lane: a multiplication and an addition for each number in a word."""

# Latency 4 at two per cycle asks for 8 chains, with separate multiply and add 12 to 16; more change
# nothing, so 20 of 32 registers leave room for machines with more pipes.
_MOST_CHAINS = 20
# The factor, a temporary where multiply and add are separate, and two to spare.
_OTHER_REGISTERS = 4


def chains(isa: Isa) -> int:
    """How many independent sums the loop keeps in registers."""
    return max(1, min(_MOST_CHAINS, isa.vector_registers - _OTHER_REGISTERS))


def _on_unit(isa: Isa, fold: str) -> tuple[MatrixUnit, TileProduct] | None:
    """The matrix unit and its product of this name, if ``fold`` is one."""
    product = None if isa.unit is None else isa.unit.product(fold)
    return (isa.unit, product) if isinstance(isa.unit, MatrixUnit) and product else None


def operations_per_round(element: ElementType, isa: Isa, fold: str = "madd") -> int:
    """Operations of one round of the loop (a multiply-add of two numbers is two)."""
    found = _on_unit(isa, fold)
    if found is not None:
        unit, product = found
        square = largest(unit)
        each = 2 * unit.rows * unit.words * unit.words * product.group
        return square.halves * square.columns * each
    return FOLDS[fold] * isa.lanes(element) * chains(isa)


def io_bytes(element: ElementType, isa: Isa, fold: str = "madd") -> int:
    """Bytes the loop takes its operands from."""
    found = _on_unit(isa, fold)
    if found is not None:
        return 2 * found[0].tile_bytes
    return (1 + chains(isa)) * isa.lanes(element) * element.bytes


def peak_function(element: ElementType, isa: Isa, fold: str = "madd") -> Function:
    """``peak(reps, io)``: ``reps`` rounds of a multiply-add on every chain.

    ``io`` holds ``1 + chains(isa)`` vectors: ``x``, then where each chain starts.  The total of all
    chains is stored over ``x``.  Everything comes from memory and goes back to it, so nothing
    can be folded.  A round is ``sum = x . x + sum``, one instruction, which adds to the register it
    writes.  Where a ``madd`` is two instructions it is ``sum = sum * x + x``: because each product
    needs the sum before it, no multiplication can leave the loop.
    """
    found = _on_unit(isa, fold)
    if found is not None:
        return _tile_peak_function(isa, *found)
    lanes = isa.lanes(element)
    step = lanes * element.bytes
    one = fold != "madd" or (isa.fused and not element.integral)

    def body(k: Kernel, reps: Int, io: Ptr) -> None:
        x = k.load(io, element, lanes)
        sums = [k.var(k.load(io + step * (1 + i), element, lanes)) for i in range(chains(isa))]
        for _ in k.range(0, reps):
            for cell in sums:
                total = cell.value
                cell.value = k.op(fold, *((x, x, total) if one else (total, x, x)))
        total = sums[0].value
        for cell in sums[1:]:
            total = k.op("add", total, cell.value)
        k.store(io, total)

    kind = "" if fold == "madd" else f"_{fold}"
    return Function(f"{element}{kind}_peak__{isa.name}", parameters("reps io*"), body)


def _tile_peak_function(isa: Isa, unit: MatrixUnit, product: TileProduct) -> Function:
    """:func:`peak_function` of a matrix unit: its largest square of sums.

    ``io`` holds a tile that stands for A and B, then one that every sum starts from; one sum is
    stored over it.
    """
    square = largest(unit)

    def body(k: Kernel, reps: Int, io: Ptr) -> None:
        row, state = k.const(unit.row_bytes), k.scratch(unit.state) if unit.state else io
        k.configure_tiles(state, square.heights(unit.rows, unit.rows))
        for tile in range(unit.registers):
            of_sums = tile < square.a(0)
            k.load_tile(state, tile, io + (unit.tile_bytes if of_sums else 0), row)
        for _ in k.range(0, reps):
            for half in range(square.halves):
                for column in range(square.columns):
                    sums = square.sums(half, column)
                    k.fold_tiles(state, product.name, sums, square.a(half), square.b(column))
        k.store_tile(state, 0, io + unit.tile_bytes, row)
        k.release_tiles(state)

    name = f"{product.sums}_{product.name}_peak__{isa.name}"
    return Function(name, parameters("reps io*"), body)
