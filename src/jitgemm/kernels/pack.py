"""Packing: one routine for both operands.

A packed operand is a row of micropanels; in each, every depth step holds ``width`` leading elements
side by side.  For B the leading axis is columns, for A rows; only the strides differ.  At the tail,
what does not exist repeats the first element, so that the product needs no masks and its unused
lanes raise no floating-point flag that a used one does not (zeros would: infinity times zero).

Two paths write the same bytes: leading axis contiguous (whole vectors are copied), and any other
stride (a transpose in strips of depth, so that a cache line of the source is used up while it is
still near).
"""

from __future__ import annotations

from dataclasses import dataclass

from jitgemm.isa.types import ElementType
from jitgemm.lang.core import Int, IntLike, Kernel, Ptr

__all__ = ["Source", "pack_panels"]

# Depth steps per strip of the transposing path: 16 floats or 8 doubles fill a cache line.
_STRIP_BYTES = 64
# Rows of the source per sweep of the copying path: 8 streams to read.  4 to 16 are equal within
# noise; the whole depth at once takes 22 % longer at 4096 x 4096 (Zen 5, 2026-11-30).
_STRIP_ROWS = 8


@dataclass(frozen=True, slots=True)
class Source:
    """A two-dimensional operand seen as leading axis by depth; strides in bytes."""

    at: Ptr
    lead_stride: Int
    depth_stride: Int
    lead: Int
    depth: Int
    unit: int = 1
    swap: Int | None = None


def pack_panels(
    k: Kernel,
    element: ElementType,
    source: Source,
    target: tuple[Ptr, IntLike],
    width: IntLike,
) -> None:
    """Pack ``source`` into micropanels of ``width`` at ``target = (address, panel stride)``."""
    for contiguous in k.branches(source.lead_stride.equals(element.bytes * source.unit)):
        if contiguous:
            _copy(k, element, source, target, width)
        else:
            _transpose(k, element, source, target, width)


def _copy(
    k: Kernel, element: ElementType, source: Source, target: tuple[Ptr, IntLike], width: IntLike
) -> None:
    """Leading axis contiguous.

    Sweep a strip of depth over all panels, a row of the strip at a time.

    Sweeping panel by panel instead reads a few lines per row of the source, which defeats its
    prefetching.
    """
    base, panel_stride = target
    size = element.bytes
    step = k.const(width) * size
    source = Source(
        source.at, source.lead_stride, source.depth_stride, source.lead * source.unit, source.depth
    )
    whole = source.lead // width * width
    for p0 in k.range(0, source.depth, _STRIP_ROWS):
        p1 = k.min(p0 + _STRIP_ROWS, source.depth)
        for start in k.range(0, whole, width):
            dst = base + start // width * panel_stride
            for p in k.range(p0, p1):
                line = source.at + start * size + p * source.depth_stride
                _copy_whole(k, element, (line, dst + p * step), width)
        for _ in k.when(whole < source.lead):
            dst = base + whole // width * panel_stride
            for p in k.range(p0, p1):
                line = source.at + whole * size + p * source.depth_stride
                _copy_part(k, element, (line, dst + p * step), source.lead - whole, width)


def _copy_whole(k: Kernel, element: ElementType, where: tuple[Ptr, Ptr], width: IntLike) -> None:
    """``width`` elements; whole vectors if the width is known and a multiple of them."""
    src, dst = where
    lanes, size = k.isa.lanes(element), element.bytes
    if isinstance(width, int) and width % lanes == 0:
        for at in range(0, width, lanes):
            k.store(dst + at * size, k.load(src + at * size, element, lanes))
    else:
        _copy_part(k, element, where, k.const(width), width)


def _copy_part(
    k: Kernel, element: ElementType, where: tuple[Ptr, Ptr], live: Int, width: IntLike
) -> None:
    """``live`` elements (at least one), the first one again up to ``width``."""
    src, dst = where
    lanes, size = k.isa.lanes(element), element.bytes
    whole = live // lanes * lanes
    for j in k.range(0, whole, lanes):
        k.store(dst + j * size, k.load(src + j * size, element, lanes))
    first = k.splat(k.load(src, element), lanes)
    for j in k.range(whole, width, lanes):
        wanted = k.mask(k.const(width) - j, element, lanes)
        v = k.load(src + j * size, element, lanes, k.mask(live - j, element, lanes), first)
        k.store(dst + j * size, v, wanted)


def _transpose(
    k: Kernel, element: ElementType, source: Source, target: tuple[Ptr, IntLike], width: IntLike
) -> None:
    base, panel_stride = target
    size = element.bytes
    step = k.const(width) * size
    unit = source.unit
    strip = _STRIP_BYTES // size
    w = k.const(width) // unit
    for start in k.range(0, source.lead, w):
        live = k.min(w, source.lead - start)
        src = source.at + start * source.lead_stride
        dst = base + start // w * panel_stride
        for p0 in k.range(0, source.depth, strip):
            p1 = k.min(p0 + strip, source.depth)
            for i in k.range(0, live):
                line = src + i * source.lead_stride
                column = dst + i * (size * unit)
                for p in k.range(p0, p1):
                    k.store(
                        column + p * step, k.load(line + p * source.depth_stride, element, unit)
                    )
            for i in k.range(live, w):
                column = dst + i * (size * unit)
                for p in k.range(p0, p1):
                    k.store(column + p * step, k.load(src + p * source.depth_stride, element, unit))
