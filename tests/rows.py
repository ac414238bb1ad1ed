"""Which rows of the registry have code of their own.

Sets that differ in dot products only (with and without VNNI) make the same code of
everything else.  One of such rows is tested: for floats the first set this machine has, for
integers the last, so that each set is met.  What is made of words differs, and is tested on every
set.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from jitgemm.isa import tables
from jitgemm.isa.integers import FOLDS as INTEGER_FOLDS
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import ElementType
from jitgemm.jit.target import available
from jitgemm.kernels import registry
from jitgemm.kernels.arithmetic import OperandTypes, arithmetic_for, sum_type, tiled
from jitgemm.kernels.registry import Row
from jitgemm.kernels.spec import BSource, Epilogue, GemmSpec

__all__ = [
    "DOTS", "FLOATS", "FOLDS", "INTEGERS", "distinct_rows", "distinct_sets", "floats_of",
    "integers_of", "typed_spec",
]  # fmt: skip

DOTS = tuple(x.name for x in INTEGER_FOLDS)
"""Folds of integers."""

FOLDS = (*DOTS, "bf16_dot")
"""What sets that are alike may differ in."""

FLOATS = ("f32", "f64")
INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")

_PLAIN = Epilogue()

T = TypeVar("T")


def _code_of(isa: Isa, *, integral: bool) -> Hashable:
    """All that the code of kernels without words depends on, as far as the tables tell."""
    table = isa.integers if integral else isa.ops
    return (
        frozenset(op for name, op in table.items() if name not in FOLDS),
        isa.vector_bits, isa.vector_registers, isa.fused, isa.half, isa.mask_registers,
        isa.gathers, isa.interpreted, isa.arch, isa.cpu,
    )  # fmt: skip


def floats_of(isa: Isa) -> Hashable:
    """What is equal for sets that make the same code of floats."""
    return _code_of(isa, integral=False)


def integers_of(isa: Isa) -> Hashable:
    """What is equal for sets that make the same code of integers without words."""
    return _code_of(isa, integral=True)


def _one_of_each(
    things: Iterable[T], code: Callable[[T], Any], isa: Callable[[T], Isa], *, last: bool
) -> list[T]:
    groups: dict[Any, list[T]] = {}
    for thing in things:
        groups.setdefault(code(thing), []).append(thing)
    found = []
    for alike in groups.values():
        here = [x for x in alike if available(isa(x))] or alike
        found.append(here[-1 if last else 0])
    return found


def distinct_sets(*, integral: bool = False) -> list[Isa]:
    """One of each instruction sets that make the same code of floats, or of integers."""
    return _one_of_each(
        tables.BY_NAME.values(), lambda i: _code_of(i, integral=integral), lambda i: i,
        last=integral,
    )  # fmt: skip


def distinct_rows() -> list[Row]:
    """One of each rows whose kernels are the same code."""

    def code(row: Row) -> tuple[ElementType, int, Any, Hashable]:
        element, isa, components, tile = row
        return element, components, tile, _code_of(isa, integral=element.integral)

    found = []
    for integral in (False, True):
        rows = [r for r in registry.rows() if r[0].integral == integral]
        found += _one_of_each(rows, code, lambda r: r[1], last=integral)
    return found


def typed_spec(
    isa: Isa, types: OperandTypes, epilogue: Epilogue = _PLAIN, *, vectors: bool = False,
    source: BSource = BSource.PACKED,
) -> GemmSpec:  # fmt: skip
    """The kernel of a product of these types, as the planner would ask for it.

    ``vectors``: for few rows, which no matrix unit multiplies.
    """
    element = sum_type(types)
    units = tiled(types, isa) if source is BSource.PACKED else None
    if units is not None and not vectors:
        tile = registry.matrix_tile(element, registry.tile_for(element, isa), isa)
        tile = tile if units.stored is None else tile.one_panel
        return GemmSpec(element, isa.inside or isa, tile, BSource.PACKED, epilogue, 1, units)
    how = arithmetic_for(types, element, isa)
    # A number flipped is one with another zero point.
    epilogue = replace(epilogue, zero_a=epilogue.zero_a or how.flip)
    tile = registry.tile_for(element, isa)
    if source is BSource.COLUMNS:
        tile = registry.columns_tile(tile, isa, 1)
    return GemmSpec(element, isa, tile, source, epilogue, 1, how)
