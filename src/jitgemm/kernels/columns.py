"""Few rows times a B whose columns are contiguous: B is transposed in registers.

A column of such a B runs along the depth.  A block of as many depth steps as a group has columns is
loaded a column at a time and transposed in registers; then its depth steps are ordinary vectors of
B.  So a matrix times a vector, ``x @ w.T`` for few rows and the like read their operand once, in
place, and each element is still one ascending chain per depth block: the bits are those of every
other route.

Numbers narrower than their sums are loaded and transposed as *units*, as many consecutive ones as
fill a lane (two halves to an f32), and upconverted when they are vectors of columns.  So a line is
used up at once, and half the shuffles do.

No vector lies in two lines, if all columns agree on where lines begin: a line that is met twice may
have been pushed out in between.

An operand beyond the caches is walked *staggered*: in groups of columns that lag behind each
other, together once through the sets of L1.  Columns a multiple of that apart share one set (and,
on pages of that size, end their pages together); with a lag the lines of a moment lie in different
sets, so that lines can be fetched into L1 ahead of their use.  (4096 x 4096 floats, one thread,
Zen 5, 2026-11-30: 30 GB/s in step, 25 staggered without fetching ahead, 42 with it.  1024 x 1024,
from L3: 62 in step, 53 staggered.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jitgemm.isa.types import I32, I64, ElementType
from jitgemm.kernels.epilogue import Combination, conclude
from jitgemm.kernels.job import JOB, TILE
from jitgemm.kernels.spec import GemmSpec
from jitgemm.kernels.transpose import transpose
from jitgemm.lang.core import Function, Int, Kernel, Mask, Ptr, Vec, parameters
from jitgemm.lang.record import View

__all__ = ["column_tile"]

_WORD = 8
# Bytes after which addresses share a set of L1: 32 KiB by 8 ways, 48 KiB by 12 or 64 KiB by 16.  A
# kernel is compiled for no size of cache: elsewhere the lag is as good as any.
_SET_PERIOD = 4096
# Bytes of the narrowest vector register there is.
_NARROWEST = 16
# Groups of a staggered panel: few enough columns each (8 floats, 4 doubles with 512 bits) for one
# set of L1.  4096 x 4096 doubles with two groups of eight: 34 GB/s, with four of four 35 to 37.
_GROUPS = 4
# How far ahead staggered groups fetch: 256 and 512 measured alike, 1024 a quarter slower.
_AHEAD = 512


@dataclass(frozen=True, slots=True)
class _Sizes:
    """A panel in groups: a vector of columns each, or what may be staggered."""

    spec: GemmSpec
    staggered: bool

    @property
    def lanes(self) -> int:
        """Reals in a vector of a group."""
        spec, lanes = self.spec, self.spec.lanes
        # Narrower vectors would be filled up with lanes whose contents, and flags, are anybody's.
        least = max(2 * spec.components, _NARROWEST // spec.element.bytes)
        while self.staggered and spec.nr // lanes < _GROUPS and lanes > least:
            lanes //= 2
        return lanes

    @property
    def unit(self) -> ElementType:
        """What is loaded and transposed: lanes of sums, or as many bits of narrower numbers."""
        element = self.spec.element
        return element if self.numbers == 1 else {4: I32, 8: I64}[element.bytes]

    @property
    def numbers(self) -> int:
        """Numbers, and so depth steps, in a unit."""
        return self.spec.element.bytes // self.spec.panel_element.bytes

    @property
    def columns(self) -> int:
        """Columns of a group, and units of depth of a block."""
        return self.lanes // self.spec.components

    @property
    def groups(self) -> int:
        """Groups of a panel."""
        return self.spec.nr // self.lanes

    @property
    def block_bytes(self) -> int:
        """Bytes of a column per block."""
        return self.lanes * self.spec.element.bytes

    def lag(self, group: int) -> int:
        """Blocks by which a group is behind the first one."""
        return group * (_SET_PERIOD // self.groups // self.block_bytes) if self.staggered else 0


class _Panel:
    """A panel of columns, its groups somewhere on their way along the depth."""

    def __init__(self, k: Kernel, sizes: _Sizes, records: tuple[View, View], rows: int) -> None:
        spec = sizes.spec
        self.k, self.spec, self.sizes, self.rows = k, spec, sizes, rows
        self.job, self.tile = records
        self.reals = range(rows * spec.components)
        self.groups = range(self.sizes.groups)
        zero = k.zero(spec.element, self.sizes.lanes)
        self.sums = {(i, g): k.var(zero) for i in self.reals for g in self.groups}
        self.a_row, self.a_col = self.job.int("a_row"), self.job.int("a_col")
        # Chains that are finished are added up in memory; to -0 the first adds without a trace.
        self.totals = k.scratch(rows * spec.tile_row)
        none = k.literal(-0.0, spec.element, self.sizes.lanes)
        for i in range(rows):
            for g in self.groups:
                k.store(self._total(i, g), none)
        # Columns that do not exist repeat the first: they raise no flag of their own.  A table of
        # offsets serves whole and partial panels alike and needs no register per column.
        count, stride = self.tile.int("cols"), self.job.int("b_col")
        columns = spec.nr // spec.components
        self.offsets = k.scratch(columns * _WORD)
        for c in range(columns):
            exists = k.const(c * spec.components) < count
            k.store_int(self.offsets + c * _WORD, k.select(exists, stride * c, k.const(0)))
        self.buffer = k.scratch(self.sizes.columns * self.sizes.block_bytes)
        self.step = self.a_col * self.sizes.numbers

    def _total(self, i: int, group: int) -> Ptr:
        return self.totals + i * self.spec.tile_row + group * self.sizes.block_bytes

    def _block(self, at: Ptr, group: int, mask: Mask | None) -> list[Vec]:
        """A block of a group, a vector of units per unit of depth."""
        k, spec, sizes = self.k, self.spec, self.sizes
        loaded = []
        for c in range(sizes.columns):
            offset = k.load_int(self.offsets + (group * sizes.columns + c) * _WORD)
            if sizes.staggered and mask is None:
                k.prefetch(at + offset + _AHEAD)
            loaded.append(k.load(at + offset, sizes.unit, sizes.lanes, mask))
        return transpose(k, loaded, spec.components)

    def _numbers(self, units: Vec) -> Iterator[Vec]:
        """A vector of columns per depth step of a vector of units."""
        k, spec, numbers = self.k, self.spec, self.sizes.numbers
        if numbers == 1:
            yield units
            return
        stored = k.bits(units, spec.panel_element)
        for first in range(numbers):
            every = range(first, stored.lanes, numbers)
            yield k.convert(k.shuffle(stored, stored, every), spec.element)

    def _add(self, a: Ptr, vector: Vec, group: int) -> None:
        """Add a depth step; ``a`` is where A is at it."""
        k, spec = self.k, self.spec
        for i in self.reals:
            at = a + self.a_row * (i // spec.components) + i % spec.components * spec.element.bytes
            splat = k.splat(k.load(at, spec.element), self.sizes.lanes)
            cell = self.sums[i, group]
            cell.value = k.op("madd", splat, vector, cell.value)

    def _end_chains(self, group: int) -> None:
        """The chains of a group end with a depth block: add them to their totals."""
        k, spec, lanes = self.k, self.spec, self.sizes.lanes
        zero = k.zero(spec.element, lanes)
        cells = [self.sums[i, group] for i in self.reals]
        chains = [cell.value for cell in cells]
        if spec.components == 2:
            combination = Combination(k, spec, self.job, lanes)
            pairs = zip(chains[::2], chains[1::2], strict=True)
            chains = [combination.of(real, imaginary) for real, imaginary in pairs]
        for i, chain in enumerate(chains):
            at = self._total(i, group)
            k.store(at, k.op("add", k.load(at, spec.element, lanes), chain))
        for cell in cells:
            cell.value = zero

    def whole(self, a: Ptr, b: Ptr, group: int) -> None:
        """A block of a group within one depth block; ``a`` and ``b`` are where it begins."""
        for units in self._block(b, group, None):
            for vector in self._numbers(units):
                self._add(a, vector, group)
                a = self.k.opaque(a + self.a_col)

    def part(self, where: tuple[Ptr, Ptr, Int], count: Int, group: int) -> None:
        """``count`` units of depth, a block at most, in which a depth block may end.

        ``where`` is where A and B are, and the depth in units.
        """
        k, spec, sizes = self.k, self.spec, self.sizes
        a, b, depth = where
        mask = k.mask(count * spec.components, sizes.unit, sizes.lanes)
        for step, units in enumerate(self._block(b, group, mask)):
            k.store(self.buffer + step * sizes.block_bytes, units)
        for q in k.range(0, count):
            self._end_before(depth + q, group)
            units = k.load(self.buffer + q * sizes.block_bytes, sizes.unit, sizes.lanes)
            at = a + q * self.step
            for step, vector in enumerate(self._numbers(units)):
                self._add(at + self.a_col * step, vector, group)

    def _end_before(self, depth: Int, group: int) -> None:
        """The chains of a group end if a depth block ends at ``depth``, in units."""
        k = self.k
        block = self.spec.element.depth_block // self.sizes.numbers
        for _ in k.when((depth > 0) & (depth % block).equals(0)):
            self._end_chains(group)

    def rest(self, where: tuple[Ptr, Ptr, Int], count: Int, group: int) -> None:
        """``count`` numbers that are no whole unit, one by one: nothing beyond them is read.

        ``where``: as for :meth:`part`.
        """
        k, spec, sizes = self.k, self.spec, self.sizes
        a, b, depth = where
        self._end_before(depth, group)
        stored, row = spec.panel_element, sizes.columns * spec.panel_element.bytes
        for c in k.range(0, sizes.columns):
            at = b + k.load_int(self.offsets + (c + group * sizes.columns) * _WORD)
            for q in k.range(0, count):
                one = k.load(at + q * stored.bytes, stored)
                k.store(self.buffer + q * row + c * stored.bytes, one)
        for q in k.range(0, count):
            vector = k.load(self.buffer + q * row, stored, sizes.columns)
            self._add(a + q * self.a_col, k.convert(vector, spec.element), group)

    def finish(self) -> None:
        """The last chains end; the tile is finished."""
        k, spec = self.k, self.spec
        for group in self.groups:
            self._end_chains(group)
        cols, vectors = self.tile.int("cols"), range(spec.tile.nr_regs)
        width = spec.lanes * spec.element.bytes
        for full in k.branches(cols.equals(spec.nr)):
            sums = {
                (i, j): k.var(
                    k.load(self.totals + i * spec.tile_row + j * width, spec.element, spec.lanes)
                )
                for i in range(self.rows)
                for j in vectors
            }
            conclude(k, spec, (self.job, self.tile), sums, None if full else cols)


def column_tile(spec: GemmSpec, rows: int, *, staggered: bool) -> Function:
    """``rows`` rows of A times a panel of columns, from the first to the last depth step.

    There is at least one.  Rounding contract: as that of ``kernels.micro``.
    """
    sizes = _Sizes(spec, staggered)
    per, block = sizes.columns, spec.element.depth_block // sizes.numbers

    def body(k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, b: Ptr, depth: Int) -> None:
        panel = _Panel(k, sizes, (JOB.view(k, job_at), TILE.view(k, tile_at)), rows)
        units = depth // sizes.numbers

        def at(d: Int) -> tuple[Ptr, Ptr, Int]:
            return a + d * panel.step, b + d * spec.unit, d

        size = sizes.block_bytes
        over = k.misalignment(b, size)
        agree = (panel.job.int("b_col") % size).equals(0) & (over % spec.unit).equals(0)
        first = k.select(agree, (size - over) % size // spec.unit, k.const(0))
        first = k.min(first, units)
        blocks = (units - first) // per
        last = first + blocks * per
        for group in panel.groups:
            for _ in k.when(first > 0):
                panel.part(at(k.const(0)), first, group)
        for t in k.range(0, blocks + sizes.lag(sizes.groups - 1)):
            for group in panel.groups:
                n = t - sizes.lag(group)
                for _ in k.when((n >= 0) & (n < blocks)):
                    where = at(first + n * per)
                    within = where[2] % block
                    # The first block of a depth block ends the chains of the one before.
                    inside = (within > 0) & (within <= block - per)
                    for usual in k.branches(inside | where[2].equals(0)):
                        if usual:
                            panel.whole(where[0], where[1], group)
                        else:
                            panel.part(where, k.const(per), group)
        for group in panel.groups:
            for _ in k.when(last < units):
                panel.part(at(last), units - last, group)
            if sizes.numbers > 1:
                for _ in k.when(units * sizes.numbers < depth):
                    panel.rest(at(units), depth - units * sizes.numbers, group)
        panel.finish()

    name = f"{spec.symbol}_columns_{'staggered_' * staggered}{rows}"
    return Function(name, parameters("job* tile* a* b* depth"), body)
