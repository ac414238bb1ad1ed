"""Copying a tile between a register tile's buffer and an operand of any strides.

Three paths by where the elements are contiguous: along rows on both sides (vectors), along rows on
one and along columns on the other (blocks transposed in registers), anything else (one by one).
"""

from __future__ import annotations

from jitgemm.isa.types import ElementType
from jitgemm.kernels.transpose import POINTER, transposed_copy
from jitgemm.lang.core import Cond, Int, Kernel, Ptr

__all__ = ["copy_tile"]

Place = tuple[Ptr, Int, Int]
"""Address, row stride and column stride."""


def copy_tile(
    k: Kernel,
    element: ElementType,
    source: Place,
    target: Place,
    shape: tuple[Int, Int],
    unit: int = 1,
    swap: Cond | None = None,
) -> None:
    """Copy ``shape`` units of ``unit`` elements; strides in bytes from one unit to the next.

    Source and target do not overlap.  ``swap``: the bytes of each element are reversed.
    """
    element = element.moved
    if swap is None or element.bytes == 1:
        _plain(k, element, source, target, shape, unit)
        return
    for swapped in k.branches(swap):
        if swapped:
            _one_by_one(k, element, source, target, shape, unit, swap=True)
        else:
            _plain(k, element, source, target, shape, unit)


def _plain(
    k: Kernel,
    element: ElementType,
    source: Place,
    target: Place,
    shape: tuple[Int, Int],
    unit: int,
) -> None:
    size = unit * element.bytes
    # Half a vector: register tiles are lower than a vector of floats is long (14 of 16, 6 of 8).
    lanes = max(k.isa.lanes(element) // 2, 16 // element.bytes)
    n = lanes // unit
    (src, src_row, src_col), (dst, dst_row, dst_col) = source, target
    rows, cols = shape
    by_rows = src_col.equals(size) & dst_col.equals(size)
    for along in k.branches(by_rows):
        if along:
            _along(k, element, source, target, (rows, cols * unit))
            continue
        if n == 1:
            _one_by_one(k, element, source, target, shape, unit)
            continue
        transposed_in = src_row.equals(size) & dst_col.equals(size)
        transposed_out = src_col.equals(size) & dst_row.equals(size)
        enough = (rows >= n) & (cols >= n)
        for blocks in k.branches((transposed_in | transposed_out) & enough):
            if blocks:
                # Lines are the source's contiguous ones; step leads to the target's.
                count = k.select(transposed_out, rows, cols)
                depth = k.select(transposed_out, cols, rows)
                line = k.select(transposed_out, src_row, src_col)
                step = k.select(transposed_out, dst_col, dst_row)
                _across(k, element, (src, line), (dst, step), (count, depth), (lanes, unit))
            else:
                _one_by_one(k, element, source, target, shape, unit)


def _along(
    k: Kernel, element: ElementType, source: Place, target: Place, shape: tuple[Int, Int]
) -> None:
    """Rows of contiguous elements on both sides."""
    (src, src_row, _), (dst, dst_row, _) = source, target
    rows, cols = shape
    lanes, size = k.isa.lanes(element), element.bytes
    whole = cols // lanes * lanes
    mask = k.mask(cols - whole, element, lanes)
    for i in k.range(0, rows):
        at, to = src + i * src_row, dst + i * dst_row
        for j in k.range(0, whole, lanes):
            k.store(to + j * size, k.load(at + j * size, element, lanes))
        for _ in k.when(whole < cols):
            k.store(to + whole * size, k.load(at + whole * size, element, lanes, mask), mask)


def _across(
    k: Kernel,
    element: ElementType,
    source: tuple[Ptr, Int],
    target: tuple[Ptr, Int],
    shape: tuple[Int, Int],
    block: tuple[int, int],
) -> None:
    """``shape = (lines, units per line)``, both at least a block; edges by overlapping blocks."""
    (src, line), (dst, step), (count, depth), (lanes, unit) = source, target, shape, block
    n, size = lanes // unit, unit * element.bytes
    table = k.scratch(n * POINTER)
    for first in k.range(0, count, n):
        i = k.min(first, count - n)
        for t in range(n):
            k.store_ptr(table + t * POINTER, src + (i + t) * line)
        function = transposed_copy(element, lanes, unit)
        k.call(function, table, 0, depth, dst + i * size, step)


def _one_by_one(
    k: Kernel,
    element: ElementType,
    source: Place,
    target: Place,
    shape: tuple[Int, Int],
    unit: int,
    *,
    swap: bool = False,
) -> None:
    (src, src_row, src_col), (dst, dst_row, dst_col) = source, target
    for i in k.range(0, shape[0]):
        for j in k.range(0, shape[1]):
            x = k.load(src + i * src_row + j * src_col, element, unit)
            k.store(dst + i * dst_row + j * dst_col, k.op("bswap", x) if swap else x)
