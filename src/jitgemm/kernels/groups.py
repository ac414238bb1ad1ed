"""Packing numbers into k-groups: operands whose numbers are not yet what a microkernel reads.

B becomes micropanels as in :mod:`jitgemm.kernels.pack`, but a depth step is a k-group of ``group``
numbers; what lies beyond the depth is zero, what lies beyond the columns repeats the first one.
A is copied row by row, each row some k-groups long.  Numbers are converted on the way, and flipped
to the other signedness where the dot-accumulate wants that.

Integers of 8 bits leave their sums behind: each micropanel of B those of its columns, each row of
A its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from jitgemm.isa.integers import fold_of_ones
from jitgemm.isa.types import ElementType
from jitgemm.kernels.arithmetic import Arithmetic
from jitgemm.kernels.job import JOB
from jitgemm.kernels.pack import Source, pack_panels
from jitgemm.kernels.quantised import sums_at
from jitgemm.kernels.spec import GemmSpec
from jitgemm.lang.core import Function, Int, Kernel, Ptr, Vec, parameters

__all__ = ["add_up", "copy_rows", "pack_groups", "upconvert_panel"]

# K-groups of depth per strip of the path that moves numbers one by one: down a column only as far
# as the lines of its neighbours stay near.  8 and 16 are equal within noise, 64 takes twice as long
# for reversed columns of f16 (4096 x 4096, prepacked, medians of four; Zen 5, 2026-11-30).
_STRIP = 16
# K-groups of depth per sweep over all panels: two sets of four rows of 8-bit numbers.  4096 x 4096
# in ms with 1, 2, 4, 8: i8 2.3, 2.3, 2.5, 3.3; f16 5.8, 5.2, 4.5, 4.0 (the same run).
_SWEEP = 2


@dataclass(frozen=True, slots=True)
class _Numbers:
    """How numbers of an operand become elements of k-groups."""

    k: Kernel
    stored: ElementType
    kind: ElementType
    flip: bool

    def some(self, at: Ptr, lanes: int, count: Int, first: Ptr | None) -> Vec:
        """Elements from consecutive numbers, of which ``count`` exist.

        Others are the one at ``first``, or zero.
        """
        k = self.k
        mask, rest = k.mask(count, self.stored, lanes), None
        if first is not None:
            rest = k.splat(k.load(first, self.stored), lanes)
        return self._element(k.load(at, self.stored, lanes, mask, rest), swap=False)

    def load(self, at: Ptr, lanes: int, *, swap: bool = False) -> Vec:
        """Elements from consecutive numbers."""
        return self._element(self.k.load(at, self.stored, lanes), swap=swap)

    def _element(self, x: Vec, *, swap: bool) -> Vec:
        k = self.k
        if swap and self.stored.bytes > 1:
            x = k.bits(k.op("bswap", k.bits(x, self.stored.moved)), self.stored)
        x = k.convert(x, self.kind)
        return k.op("flip", x) if self.flip else x


# -- B -----------------------------------------------------------------------------------------


class _Panels:
    """Columns of B on their way into micropanels of k-groups."""

    def __init__(self, k: Kernel, spec: GemmSpec, source: Source, target: tuple[Ptr, Int]) -> None:
        how = spec.arithmetic
        self.k, self.spec, self.source, self.how = k, spec, source, how
        self.base, self.stride = target
        self.size, self.group = how.b_element.bytes, how.group
        self.numbers = _Numbers(k, how.types.b, how.b_element, flip=False)
        self.groups = k.ceil_div(source.depth, how.group)

    def write(self) -> None:
        """All panels, then their sums."""
        k, source = self.k, self.source
        assert source.swap is not None
        along = source.lead_stride.equals(self.how.types.b.bytes) & ~source.swap
        for rows in k.branches(along):
            if rows:
                self._by_rows()
            else:
                self._by_columns()
        if self.spec.sums_columns:
            self._sums()

    def _panel(self, start: Int) -> Ptr:
        return self.base + start // self.spec.nr * self.stride

    # -- rows contiguous --------------------------------------------------------------------------
    def _by_rows(self) -> None:
        """``group`` rows at a time, interleaved: all panels for a few k-groups of them.

        Sweeping panel by panel would read a few lines per row, which defeats prefetching.
        """
        k, source, nr = self.k, self.source, self.spec.nr
        whole, full = source.lead // nr * nr, source.depth // self.group
        for w0 in k.range(0, self.groups, _SWEEP):
            w1 = k.min(w0 + _SWEEP, self.groups)
            inside = k.min(w1, full)
            for start in k.range(0, whole, nr):
                for w in k.range(w0, inside):
                    self._group_row(start, w, None, None)
                for _ in k.when(w1 > inside):
                    self._group_row(start, full, None, source.depth - full * self.group)
            for _ in k.when(whole < source.lead):
                for w in k.range(w0, w1):
                    live = k.min(source.depth - w * self.group, self.group)
                    self._group_row(whole, w, source.lead - whole, live)

    def _group_row(self, start: Int, word: Int, cols: Int | None, depth: Int | None) -> None:
        """One k-group of each of ``nr`` columns; ``cols`` of them and ``depth`` numbers exist."""
        k, spec, source, group = self.k, self.spec, self.source, self.group
        stored = self.how.types.b.bytes
        line = source.at + start * stored + word * group * source.depth_stride
        dst = self._panel(start) + word * spec.panel_row
        for v in range(spec.tile.nr_regs):
            elements = []
            for g in range(group):
                # Rows that do not exist are not read: a mask of no lanes.
                at = line + source.depth_stride * g + v * spec.lanes * stored
                count = cols
                if depth is not None:
                    every = k.const(spec.nr) if cols is None else cols
                    count = k.select(depth > g, every, k.const(0))
                if count is None:
                    elements.append(self.numbers.load(at, spec.lanes))
                    continue
                # Infinity times zero would raise a flag; dot-accumulates raise none.
                first = None if group > 1 else line
                elements.append(self.numbers.some(at, spec.lanes, count - v * spec.lanes, first))
            k.store(dst + v * spec.lanes * self.size * group, _interleaved(k, elements))

    # -- any other strides ------------------------------------------------------------------------
    def _by_columns(self) -> None:
        """Panel by panel: k-groups as they lie in columns, where they do; else number by number."""
        k, source, nr = self.k, self.source, self.spec.nr
        assert source.swap is not None
        native = self.how.types.b.bits == self.how.b_element.bits
        for start in k.range(0, source.lead, nr):
            live = k.min(nr, source.lead - start)
            src = source.at + start * source.lead_stride
            dst = self._panel(start)
            done = k.var(k.const(0))
            if native and self.group > 1:
                whole = source.depth // self.group
                dense = source.depth_stride.equals(self.size) & ~source.swap
                for _ in k.when(dense & (whole > 0)):
                    word = k.const(self.spec.element.bytes)
                    columns = Source(src, source.lead_stride, word, live, whole)
                    # Columns of k-groups are those of any matrix of elements this wide.
                    panels = dst, self.stride
                    pack_panels(k, self.spec.element, columns, panels, nr)
                    done.value = whole * self.group
            for swapped in k.branches(source.swap):
                self._numbers_of(src, dst, live, done.value, swap=swapped)

    def _numbers_of(self, src: Ptr, dst: Ptr, live: Int, first: Int, *, swap: bool) -> None:
        """The depth from ``first`` on, and zeros up to a whole k-group; columns beyond repeat."""
        k, source, spec, group = self.k, self.source, self.spec, self.group
        end = self.groups * group
        for p0 in k.range(first, end, _STRIP * group):
            p1 = k.min(p0 + _STRIP * group, end)
            stop = k.min(p1, source.depth)
            for i in k.range(0, spec.nr):
                column = src + k.select(i < live, i, k.const(0)) * source.lead_stride
                to = dst + i * (self.size * group)
                for p in k.range(p0, stop):
                    at = to + p // group * spec.panel_row + p % group * self.size
                    x = self.numbers.load(column + p * source.depth_stride, 1, swap=swap)
                    k.store(at, x)
                for p in k.range(k.select(stop > p0, stop, p0), p1):
                    at = to + p // group * spec.panel_row + p % group * self.size
                    k.store(at, k.zero(self.how.b_element, 1))

    def _sums(self) -> None:
        """Add up the columns of each panel, behind it."""
        k, spec = self.k, self.spec
        signed = self.how.types.b.signed
        for start in k.range(0, self.source.lead, spec.nr):
            panel = self._panel(start)
            zero = k.zero(spec.element, spec.lanes)
            sums = [k.var(zero) for _ in range(spec.tile.nr_regs)]
            width = spec.lanes * spec.element.bytes
            for w in k.range(0, self.groups):
                for v, cell in enumerate(sums):
                    at = panel + w * spec.panel_row + v * width
                    groups = k.load(at, spec.element, spec.lanes)
                    cell.value = add_up(k, self.how, groups, cell.value, signed=signed)
            at = sums_at(spec, panel, self.groups)
            for v, cell in enumerate(sums):
                k.store(at + v * width, cell.value)


def add_up(k: Kernel, how: Arithmetic, groups: Vec, total: Vec, *, signed: bool) -> Vec:
    """``total`` and the numbers of each k-group, by vectors whatever multiplies k-groups."""
    bits = 8 * groups.element.bytes // how.group
    one = sum(1 << (bits * g) for g in range(how.group))
    ones = k.literal(one, groups.element, groups.lanes)
    fold, ones_last = fold_of_ones(k.isa.integers, bits, signed=signed)
    return k.op(fold.name, *((groups, ones) if ones_last else (ones, groups)), total)


def _interleaved(k: Kernel, rows: list[Vec]) -> Vec:
    """One number of each row in turn."""
    while len(rows) > 1:
        half = len(rows) // 2
        rows = [_pairs(k, x, y) for x, y in zip(rows[:half], rows[half:], strict=True)]
    return rows[0]


def _pairs(k: Kernel, x: Vec, y: Vec) -> Vec:
    order = [i for lane in range(x.lanes) for i in (lane, x.lanes + lane)]
    return k.shuffle(x, y, order)


def pack_groups(spec: GemmSpec) -> Function:
    """Pack columns ``j0 .. j1`` and depth ``p0 .. p1`` of the job's B, in k-groups."""
    spec = spec.in_memory

    def body(k: Kernel, job_at: Ptr, target: Ptr, j0: Int, j1: Int, p0: Int, p1: Int) -> None:
        job = JOB.view(k, job_at)
        rs, cs = job.int("b_row"), job.int("b_col")
        group, swap = spec.arithmetic.group, job.int("swap_b").differs(0)
        first, last = p0 * group, k.min(p1 * group, job.int("k_numbers"))
        at = job.pointer("b") + j0 * cs + first * rs
        source = Source(at, cs, rs, j1 - j0, last - first, swap=swap)
        _Panels(k, spec, source, (target, job.int("panel_stride"))).write()

    params = parameters("job* target* j0 j1 p0 p1")
    return Function(f"{spec.symbol}_pack_b", params, body)


def upconvert_panel(spec: GemmSpec) -> Function:
    """Numbers of a micropanel as the microkernel reads them, ``depth`` steps of it."""
    how = spec.arithmetic
    assert how.stored is not None
    kept, lanes = how.stored, spec.lanes

    def body(k: Kernel, source: Ptr, target: Ptr, depth: Int) -> None:
        for p in k.range(0, depth):
            line, to = source + p * spec.in_memory.panel_row, target + p * spec.panel_row
            for v in range(spec.tile.nr_regs):
                x = k.load(line + v * lanes * kept.bytes, kept, lanes)
                k.store(to + v * lanes * how.b_element.bytes, k.convert(x, how.b_element))

    return Function(f"{spec.symbol}_upconvert", parameters("source* target* depth"), body)


# -- A -----------------------------------------------------------------------------------------


def copy_rows(spec: GemmSpec) -> Function:
    """Copy ``rows`` of A as k-groups into this thread's region, each row with its sum behind it."""
    copy = _copy(spec)

    def body(k: Kernel, job_at: Ptr, source: Ptr, target: Ptr, rows: Int, depth: Int) -> None:
        k.call(copy, job_at, source, target, JOB.view(k, job_at).int("a_row"), rows, depth)

    params = parameters("job* source* target* rows depth")
    return Function(f"{spec.symbol}_pack_a", params, body)


def pack_group_panels(spec: GemmSpec) -> Function:
    """Pack ``rows`` of A as k-groups, in micropanels as high as a tile of the product.

    The rows of a micropanel are copied first.  The sums of rows are one more step of depth.
    """
    copy, word, more = _copy(spec), spec.element, int(spec.sums_columns)

    def body(k: Kernel, job_at: Ptr, source: Ptr, target: Ptr, rows: Int, depth: Int) -> None:
        job = JOB.view(k, job_at)
        height, row = job.int("pack_a_width"), job.int("copied_row")
        # Behind all micropanels of this thread.
        space = target + (job.int("upconverted_at") - height * row)
        for i in k.range(0, rows, height):
            some = k.min(height, rows - i)
            k.call(copy, job_at, source + i * job.int("source_row"), space, row, some, depth)
            matrix = Source(space, row, k.const(word.bytes), some, depth + more)
            panel = target + i // height * job.int("a_tile"), job.int("a_tile")
            pack_panels(k, word, matrix, panel, height)

    params = parameters("job* source* target* rows depth")
    return Function(f"{spec.symbol}_pack_a", params, body)


def _copy(spec: GemmSpec) -> Function:
    """Copy ``rows`` of A as k-groups, ``row`` bytes apart, each with its sum behind it."""
    how = spec.arithmetic

    def body(
        k: Kernel, job_at: Ptr, source: Ptr, target: Ptr, row: Int, rows: Int, depth: Int
    ) -> None:
        job = JOB.view(k, job_at)
        groups, depth = depth, job.int("k_numbers")
        stride, swap = job.int("source_col"), job.int("swap_a").differs(0)
        size = how.a_element.bytes
        numbers = _Numbers(k, how.types.a, how.a_element, how.flip)
        lanes = max(1, k.isa.lanes(how.a_element))
        dense = stride.equals(how.types.a.bytes) & ~swap
        for i in k.range(0, rows):
            line = source + i * job.int("source_row")
            to = target + i * row
            for along in k.branches(dense):
                if along:
                    _row(k, numbers, (line, to), (depth, groups * how.group), lanes)
                    continue
                for swapped in k.branches(swap):
                    for p in k.range(0, depth):
                        x = numbers.load(line + p * stride, 1, swap=swapped)
                        k.store(to + p * size, x)
                for p in k.range(depth, groups * how.group):
                    k.store(to + p * size, k.zero(how.a_element, 1))
            if spec.sums_columns:
                _sum(k, spec, how, to, groups)

    params = parameters("job* source* target* row rows depth")
    return Function(f"{spec.symbol}_copy_a", params, body)


def _row(
    k: Kernel, numbers: _Numbers, where: tuple[Ptr, Ptr], count: tuple[Int, Int], lanes: int
) -> None:
    """Contiguous numbers as elements, then zeros up to a whole k-group."""
    (line, to), (live, end) = where, count
    stored, size = numbers.stored.bytes, numbers.kind.bytes
    whole = live // lanes * lanes
    for p in k.range(0, whole, lanes):
        k.store(to + p * size, numbers.load(line + p * stored, lanes))
    if k.isa.mask_registers:
        for _ in k.when(whole < live):
            mask = k.mask(live - whole, numbers.kind, lanes)
            x = numbers.some(line + whole * stored, lanes, live - whole, None)
            k.store(to + whole * size, x, mask)
    else:
        # A branch per lane otherwise, and lanes are many.
        for p in k.range(whole, live):
            k.store(to + p * size, numbers.load(line + p * stored, 1))
    for p in k.range(live, end):
        k.store(to + p * size, k.zero(numbers.kind, 1))


def _sum(k: Kernel, spec: GemmSpec, how: Arithmetic, row: Ptr, groups: Int) -> None:
    """The sum of a row of k-groups, behind it."""
    element, lanes = spec.element, spec.lanes
    signed = how.types.a.signed != how.flip
    total = k.var(k.zero(element, lanes))
    whole = groups // lanes * lanes

    def add(at: Ptr, mask_of: Int | None) -> None:
        mask = None if mask_of is None else k.mask(mask_of, element, lanes)
        x = k.load(at, element, lanes, mask)
        total.value = add_up(k, how, x, total.value, signed=signed)

    for w in k.range(0, whole, lanes):
        add(row + w * how.group_bytes, None)
    for _ in k.when(whole < groups):
        add(row + whole * how.group_bytes, groups - whole)
    x = k.reduce("add", total.value, min(lanes, 2))
    if x.lanes == 2:
        x = k.op("add", x, k.shuffle(x, x, [1, 0]))
    # Of the two equal lanes one is wanted.
    k.store(row + groups * how.group_bytes, x, k.mask(1, element, x.lanes))
