"""Packing: one routine for both operands.

A packed operand is a row of micropanels; in each, every depth step holds ``width`` leading elements
side by side.  For B the leading axis is columns, for A rows; only the strides differ.  At the tail,
what does not exist repeats the first element, so that the product needs no masks and its unused
lanes raise no floating-point flag that a used one does not (zeros would: infinity times zero).

What is moved are units: one element of a real matrix, two (``re``, ``im``) of a complex one.

Four paths write the same bytes:

* leading axis contiguous: whole vectors are copied;
* a short step along the leading axis (backwards, every second, always the same): by shuffles;
* depth contiguous: square blocks are transposed in registers;
* any other stride, or another byte order: a unit at a time, in strips of depth, so that a cache
  line of the source is used up while it is still near.
"""

from __future__ import annotations

from dataclasses import dataclass

from jitgemm.isa.types import ElementType
from jitgemm.kernels.transpose import POINTER, transposed_copy
from jitgemm.lang.core import Cond, Int, IntLike, Kernel, Mask, Ptr, Vec

__all__ = ["Source", "pack_panels"]

# Bytes of depth per strip of the path that moves units: a cache line.
_STRIP_BYTES = 64
# Bytes of depth per strip of the path that moves blocks: how far a vector's worth of lines is read
# before the next ones.  With a cache line (32 lines at a time for 16 floats) strides of 4 KiB and
# more lose a third to a half; 256 to 2048 are equal within noise (Zen 5, 2026-11-30).
_BLOCK_STRIP_BYTES = 512
# Rows of the source per sweep of the copying path: 8 streams to read.  4 to 16 are equal within
# noise; the whole depth at once takes 22 % longer at 4096 x 4096 (Zen 5, 2026-11-30).
_STRIP_ROWS = 8
# Lines read at once by the block path where the width is known at run time only.  It is the height
# of a register tile; wider panels (rows of A copied side by side) have their own contiguous path.
_MOST_LINES = 64


# Steps along the leading axis, in units, that shuffles can follow: backwards, every second one
# either way, and the same one again and again.
_STEPS = (-1, 2, -2, 0)


def _stepping(per: int, step: int, unit: int) -> list[int]:
    """Where units ``step`` apart are in two vectors of ``per`` units that overlap by one."""
    places = []
    for j in range(per):
        i = j * step if step > 0 else (per - 1 - j) * -step
        places.append(i if i < per else i + 1)
    return [i * unit + part for i in places for part in range(unit)]


@dataclass(frozen=True, slots=True)
class Source:
    """A two-dimensional operand seen as leading axis by depth.

    Counts are in units of ``unit`` elements, strides in bytes from one unit to the next.
    """

    at: Ptr
    lead_stride: Int
    depth_stride: Int
    lead: Int
    depth: Int
    unit: int = 1
    swap: Cond | None = None
    """Whether the bytes of each element are in the other order; nothing: they never are."""


def pack_panels(
    k: Kernel,
    element: ElementType,
    source: Source,
    target: tuple[Ptr, IntLike],
    width: IntLike,
) -> None:
    """Pack ``source`` into micropanels of ``width`` elements at ``target = (at, panel stride)``."""
    packing = _Packing(k, element, source, target, width)
    if source.swap is None:
        packing.write()
        return
    for swapped in k.branches(source.swap):
        packing.swaps = swapped
        packing.write()


class _Packing:
    """One operand on its way into micropanels."""

    def __init__(
        self,
        k: Kernel,
        element: ElementType,
        source: Source,
        target: tuple[Ptr, IntLike],
        width: IntLike,
    ) -> None:
        self.k, self.element, self.source = k, element, source
        self.swaps = False
        """Whether the code being written reverses the bytes of each element."""
        self.base, self.panel_stride = target
        self.width = width
        self.lanes, self.size = k.isa.lanes(element), element.bytes
        self.unit_bytes = source.unit * self.size
        self.row_bytes = k.const(width) * self.size
        # Units, where the rest of this class counts elements.
        self.items = width if source.unit == 1 else width // source.unit

    def write(self) -> None:
        """Code for every step along the leading axis."""
        self._by_step([1, *(_STEPS if self._whole_vectors else ())])

    def _by_step(self, steps: list[int]) -> None:
        if not steps:
            self.across()
            return
        step, *rest = steps
        for fits in self.k.branches(self.source.lead_stride.equals(step * self.unit_bytes)):
            if not fits:
                self._by_step(rest)
            elif step == 1:
                self.along()
            else:
                self.steps(step)

    # -- leading axis contiguous ------------------------------------------------------------------
    def along(self) -> None:
        """Sweep a strip of depth over all panels, a row of the strip at a time.

        Sweeping panel by panel instead reads a few lines per row of the source, which defeats its
        prefetching.
        """
        k, source, width, size = self.k, self.source, self.width, self.size
        lead = source.lead * source.unit
        whole = lead // width * width
        for p0 in k.range(0, source.depth, _STRIP_ROWS):
            p1 = k.min(p0 + _STRIP_ROWS, source.depth)
            for start in k.range(0, whole, width):
                dst = self.base + start // width * self.panel_stride
                src = source.at + start * size
                if self._whole_vectors or source.unit == self.lanes:
                    self._exact_rows(src, dst, p0, p1)
                else:
                    self._rows_into_each_other(src, dst, (p0, p1), lead - start)
            for _ in k.when(whole < lead):
                dst = self.base + whole // width * self.panel_stride
                for p in k.range(p0, p1):
                    line = source.at + whole * size + p * source.depth_stride
                    self._part_of_row(line, dst + p * self.row_bytes, lead - whole)

    def _exact_rows(self, src: Ptr, dst: Ptr, p0: Int, p1: Int) -> None:
        """Rows ``p0 .. p1`` of a panel, and not a byte more."""
        for p in self.k.range(p0, p1):
            self._whole_row(src + p * self.source.depth_stride, dst + p * self.row_bytes)

    def _rows_into_each_other(self, src: Ptr, dst: Ptr, depth: tuple[Int, Int], left: Int) -> None:
        """Rows of a panel that is no whole number of vectors wide, by whole vectors all the same.

        What sticks out of a row is overwritten with the rows that follow, but for the last ones,
        which are stored exactly; and so are all where the source ends (``left`` elements from
        ``src`` on) before the vectors do.  Masked stores take a dozen cycles each on some cores.
        """
        k, source, lanes, (p0, p1) = self.k, self.source, self.lanes, depth
        reach = k.ceil_div(self.width, lanes) * lanes
        inside = source.depth - k.ceil_div(reach - self.width, self.width)
        stop = k.select(inside < p0, p0, k.min(p1, inside))
        middle = k.select(reach <= left, stop, p0)
        for p in k.range(p0, middle):
            line, target = src + p * source.depth_stride, dst + p * self.row_bytes
            for j in k.range(0, reach, lanes):
                at = j * self.size
                self._store(target + at, k.load(line + at, self.element, lanes))
        self._exact_rows(src, dst, middle, p1)

    @property
    def _whole_vectors(self) -> bool:
        """Whether a row of a panel is known to be some whole vectors of some units each."""
        many = self.lanes // self.source.unit > 1
        return many and isinstance(self.width, int) and self.width % self.lanes == 0

    # -- a short step along the leading axis ------------------------------------------------------
    def steps(self, step: int) -> None:
        """Whole vectors by shuffles, swept like :meth:`along`; the last panel by units."""
        k, source, items = self.k, self.source, self.items
        whole = source.lead // items * items
        for p0 in k.range(0, source.depth, _STRIP_ROWS):
            p1 = k.min(p0 + _STRIP_ROWS, source.depth)
            for start in k.range(0, whole, items):
                src = source.at + start * source.lead_stride
                dst = self.base + start // items * self.panel_stride
                for p in k.range(p0, p1):
                    line = src + p * source.depth_stride
                    self._stepping_row(line, dst + p * self.row_bytes, step)
        for _ in k.when(whole < source.lead):
            src = source.at + whole * source.lead_stride
            dst = self.base + whole // items * self.panel_stride
            self._units(src, dst, source.lead - whole, k.const(0))

    def _stepping_row(self, src: Ptr, dst: Ptr, step: int) -> None:
        """A row of the panel from units ``step`` apart.

        What lies between them is read along, nothing before the first or after the last.
        """
        k, unit = self.k, self.source.unit
        per = self.lanes // unit
        assert isinstance(self.width, int)
        for v in range(self.width // self.lanes):
            at = src + v * per * step * self.unit_bytes
            if step == 0:
                x = self._everywhere(k.load(at, self.element, unit))
            else:
                low = at + min(0, (per - 1) * step) * self.unit_bytes
                first = k.load(low, self.element, self.lanes)
                # One unit of the first again: the second ends with the last one wanted.
                more = low + (per - 1) * (abs(step) - 1) * self.unit_bytes
                second = k.load(more, self.element, self.lanes) if abs(step) > 1 else first
                x = k.shuffle(first, second, _stepping(per, step, unit))
            self._store(dst + v * self.lanes * self.size, x)

    def _whole_row(self, src: Ptr, dst: Ptr) -> None:
        """``width`` elements; whole vectors if the width is known and a multiple of them."""
        k, lanes, size = self.k, self.lanes, self.size
        if isinstance(self.width, int) and self.width % lanes == 0:
            for at in range(0, self.width, lanes):
                self._store(dst + at * size, k.load(src + at * size, self.element, lanes))
        else:
            self._part_of_row(src, dst, k.const(self.width))

    def _part_of_row(self, src: Ptr, dst: Ptr, live: Int) -> None:
        """``live`` elements (at least one unit), the first unit again up to ``width``."""
        k, element, lanes, size = self.k, self.element, self.lanes, self.size
        whole = live // lanes * lanes
        for j in k.range(0, whole, lanes):
            self._store(dst + j * size, k.load(src + j * size, element, lanes))
        first = self._everywhere(k.load(src, element, self.source.unit))
        for j in k.range(whole, self.width, lanes):
            wanted = k.mask(k.const(self.width) - j, element, lanes)
            v = k.load(src + j * size, element, lanes, k.mask(live - j, element, lanes), first)
            self._store(dst + j * size, v, wanted)

    def _store(self, at: Ptr, x: Vec, mask: Mask | None = None) -> None:
        self.k.store(at, self.k.op("bswap", x) if self.swaps else x, mask)

    def _everywhere(self, unit: Vec) -> Vec:
        """A unit in every place of a vector."""
        if unit.lanes == 1:
            return self.k.splat(unit, self.lanes)
        return self.k.shuffle(unit, unit, [i % unit.lanes for i in range(self.lanes)])

    # -- any other axis ---------------------------------------------------------------------------
    def across(self) -> None:
        """Panel by panel: blocks transposed in registers as far as they go, then unit by unit."""
        k, source, items = self.k, self.source, self.items
        n = self.lanes // source.unit
        blocks = None if self.swaps or n == 1 else _Blocks(self, n)
        for start in k.range(0, source.lead, items):
            live = k.min(items, source.lead - start)
            src = source.at + start * source.lead_stride
            dst = self.base + start // items * self.panel_stride
            if blocks is not None:
                blocks.panel(src, dst, live)
            self._units(src, dst, live, k.const(0) if blocks is None else blocks.rows)

    def _units(self, src: Ptr, dst: Ptr, live: Int, first: Int) -> None:
        """Depth from ``first``: strips of it, a leading unit at a time."""
        k, source, element = self.k, self.source, self.element

        def column(line: Ptr, target: Ptr, p0: Int, p1: Int) -> None:
            for p in k.range(p0, p1):
                x = k.load(line + p * source.depth_stride, element, source.unit)
                self._store(target + p * self.row_bytes, x)

        strip = _STRIP_BYTES // self.unit_bytes
        for p0 in k.range(first, source.depth, strip):
            p1 = k.min(p0 + strip, source.depth)
            for i in k.range(0, live):
                column(src + i * source.lead_stride, dst + i * self.unit_bytes, p0, p1)
            for i in k.range(live, self.items):
                column(src, dst + i * self.unit_bytes, p0, p1)


class _Blocks:
    """Blocks of ``n`` by ``n`` units, read along a contiguous depth.

    Lines that do not exist are the first one's, once more.  Blocks are stored whole: where they are
    wider than the panel, what sticks out of a row is overwritten with the rows that follow.  So the
    rightmost block of a row goes first, and the last rows are left to the path that moves units.
    Masked stores would do without this order (and be as fast on Zen 5), but become a branch per
    lane where there are none.
    """

    def __init__(self, packing: _Packing, n: int) -> None:
        k, source, items = packing.k, packing.source, packing.items
        self.k, self.packing, self.n = k, packing, n
        self.across: Int = k.ceil_div(items, n)
        fits: Cond = source.depth_stride.equals(packing.unit_bytes)
        if isinstance(items, int):
            most = -(-items // n) * n
        else:
            most = _MOST_LINES
            fits &= self.across * n <= most
        sticks_out = self.across * n - items
        rows = source.depth - k.ceil_div(sticks_out, items)
        self.table = k.scratch(most * POINTER)
        self.rows: Int = k.select(fits & (rows >= n), rows, k.const(0))
        """How many depth steps are done in blocks."""

    def panel(self, src: Ptr, dst: Ptr, live: Int) -> None:
        """One panel, of which ``live`` lines exist."""
        k, n, packing = self.k, self.n, self.packing
        unit_bytes, stride = packing.unit_bytes, packing.source.lead_stride
        block = transposed_copy(packing.element, packing.lanes, packing.source.unit)
        strip = _BLOCK_STRIP_BYTES // unit_bytes
        for _ in k.when(self.rows > 0):
            for i in k.range(0, self.across * n):
                k.store_ptr(
                    self.table + i * POINTER, src + k.select(i < live, i, k.const(0)) * stride
                )
        for p in k.range(0, self.rows, strip):
            end = k.min(p + strip, self.rows)
            for g in k.range(0, self.across):
                at = (self.across - 1 - g) * n
                lines, target = self.table + at * POINTER, dst + at * unit_bytes
                k.call(block, lines, p, end, target, packing.row_bytes)
