"""Few rows times a B whose columns are contiguous and collide in the cache: a skewed walk.

Turning B in registers (``kernels.turned``) reads a line of every column at a time.  Where columns
lie a multiple of a page apart all those lines belong to one set of L1, and all columns come to the
end of a page at once.  Here columns lag behind each other, in as many groups as half a vector holds
columns, so the lines of a moment lie in different sets and pages end one after the other.  Lanes
then need different elements of A at a time; a copy of A in which those of successive steps lie side
by side provides them by one load of half a vector.

All groups together are two KiB apart: a step is that divided by their number.  The chains are those
of every other route: a group that reaches the end of a depth block adds its chains to its totals.
"""

from __future__ import annotations

from dataclasses import dataclass

from jitgemm.kernels.epilogue import Combination, conclude
from jitgemm.kernels.job import JOB, TILE
from jitgemm.kernels.spec import GemmSpec
from jitgemm.kernels.transpose import transpose
from jitgemm.lang.core import Cond, Function, Int, Kernel, Mask, Ptr, Var, Vec, parameters
from jitgemm.lang.record import View

__all__ = ["Skew", "lag_rows", "skewed_tile"]

_WORD = 8
# From the first group to where one more would be.  4096 x 4096 floats, 32 columns at a time: lags
# of a line between 16 groups (1 KiB) read 33 GB/s, of two lines 37, of 256 bytes between 8 groups
# 37, between 4 groups 31 (Zen 5, 2026-11-30).
_SPREAD_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Skew:
    """Sizes of the walk for a kernel."""

    spec: GemmSpec

    @property
    def columns(self) -> int:
        """Columns in a vector, and depth steps in a block turned at once."""
        return self.spec.lanes // self.spec.parts

    @property
    def groups(self) -> int:
        """Groups of columns: column ``c`` belongs to group ``c % groups``."""
        return max(1, self.columns // 2)

    @property
    def lag(self) -> int:
        """Steps by which the last group is ahead of the first."""
        return self.groups - 1

    @property
    def depth_per_step(self) -> int:
        """Depth steps of B per step of the walk; divides the depth block."""
        return self.step_bytes // self.spec.unit

    @property
    def step_bytes(self) -> int:
        """Bytes of a column per step."""
        return _SPREAD_BYTES // self.groups

    def mirrored(self, k: Kernel, step: Int, steps: Int) -> Int:
        """The step a lane is at, ``step`` itself unless it has not begun or is done.

        Meanwhile it walks backwards, towards its first step or away from its last: over its own
        elements, which are wanted soon or were just now, and still a step behind its neighbour.
        What it computes from them is undone.
        """
        late = k.select(step < 0, 0 - step, step)
        return k.select(late < steps, late, steps * 2 - 2 - late)

    def row_bytes(self, depth: int) -> int:
        """Bytes of one real row of A in the lagging copy."""
        width = (depth // self.depth_per_step + 2 * self.lag) * self.spec.unit
        return self.depth_per_step * width


def _steps(skew: Skew, depth: Int) -> tuple[Int, Int]:
    """Whole steps in a depth, and bytes of one line of the lagging copy."""
    steps = depth // skew.depth_per_step
    return steps, (steps + 2 * skew.lag) * skew.spec.unit


def lag_rows(spec: GemmSpec) -> Function:
    """Copy rows of A so that element ``s`` of all steps lies side by side.

    Every real is repeated ``parts`` times.  Before the first step and after the last one the steps
    come mirrored, for lanes that have not begun or are done.
    """
    skew, element = Skew(spec), spec.element
    size = element.bytes

    def body(k: Kernel, job_at: Ptr, source: Ptr, target: Ptr, rows: Int, depth: Int) -> None:
        job = JOB.view(k, job_at)
        row, col = job.int("source_row"), job.int("source_col")
        steps, line = _steps(skew, depth)
        for i in k.range(0, rows):
            for part in range(spec.parts):
                real = target + (i * spec.parts + part) * (line * skew.depth_per_step)
                for s in k.range(0, skew.depth_per_step):
                    to = real + s * line
                    at = source + i * row + s * col + part * size
                    for q in k.range(0, steps + 2 * skew.lag):
                        step = skew.mirrored(k, q - skew.lag, steps)
                        x = k.load(at + step * (col * skew.depth_per_step), element)
                        for twin in range(spec.parts):
                            k.store(to + (q * spec.parts + twin) * size, x)

    params = parameters("job* source* target* rows depth")
    return Function(f"{spec.symbol}_lag_rows", params, body)


class _Walk:
    """A panel of columns on its way down the depth."""

    def __init__(self, k: Kernel, spec: GemmSpec, records: tuple[View, View], rows: int) -> None:
        self.k, self.spec, self.skew, self.rows = k, spec, Skew(spec), rows
        self.job, self.tile = records
        self.vectors = range(spec.tile.nr_regs)
        self.reals = range(rows * spec.parts)
        zero = k.zero(spec.element, spec.lanes)
        self.sums = {(i, j): k.var(zero) for i in self.reals for j in self.vectors}
        self.width = spec.lanes * spec.element.bytes
        self.totals = k.scratch(rows * len(self.vectors) * self.width)
        # The number of its group in every lane.
        lanes = k.steps(spec.element, spec.lanes)
        groups = [lane // spec.parts % self.skew.groups for lane in range(spec.lanes)]
        self.numbers = k.shuffle(lanes, lanes, groups)

    def _offsets(self, *, apart: bool) -> Ptr:
        """Where each column is when the walk begins, or without it; missing ones repeat one."""
        k, columns = self.k, self.skew.columns
        table = k.scratch(len(self.vectors) * columns * _WORD)
        stride, count = self.job.int("b_col"), self.tile.int("cols")
        for c in range(len(self.vectors) * columns):
            exists = k.const(c * self.spec.parts) < count
            late = self.skew.lag - c % columns % self.skew.groups
            lead = late * self.skew.step_bytes if apart else 0
            k.store_int(table + c * _WORD, k.select(exists, stride * c, k.const(0)) + lead)
        return table

    def _total(self, i: int, j: int) -> Ptr:
        return self.totals + (i * len(self.vectors) + j) * self.width

    def begin(self) -> None:
        """Totals start at -0, to which a first block sum adds without a trace."""
        k, spec = self.k, self.spec
        self.offsets = self._offsets(apart=True)
        none = k.literal(-0.0, spec.element, spec.lanes)
        for i in range(self.rows):
            for j in self.vectors:
                k.store(self._total(i, j), none)

    def _chains(self) -> dict[tuple[int, int], Vec]:
        """The chains as they are, combined if complex, by row and vector."""
        if self.spec.parts == 1:
            return {key: cell.value for key, cell in self.sums.items()}
        combination = Combination(self.k, self.spec, self.job)
        return {
            (i, j): combination.of(self.sums[2 * i, j].value, self.sums[2 * i + 1, j].value)
            for i in range(self.rows)
            for j in self.vectors
        }

    def turn_back(self, first: Int, last: Int) -> None:
        """Groups ``first .. last`` go a step back when all columns move on by one."""
        k, skew = self.k, self.skew
        for g in k.range(first, last):
            for c in range(0, len(self.vectors) * skew.columns, skew.groups):
                at = self.offsets + (g + c) * _WORD
                k.store_int(at, k.load_int(at) - 2 * skew.step_bytes)

    def block(self, at: Ptr, j: int, mask: Mask | None) -> list[Vec]:
        """A block of vector ``j``, turned: a vector per depth step."""
        k, spec, columns = self.k, self.spec, self.skew.columns
        loaded = []
        for c in range(columns):
            p = at + k.load_int(self.offsets + (j * columns + c) * _WORD)
            loaded.append(k.load(p, spec.element, spec.lanes, mask))
        return transpose(k, loaded, spec.parts)

    def _everywhere(self, few: Vec) -> Vec:
        """As many lanes as groups have, again and again."""
        lanes = self.spec.lanes
        if few.lanes == 1:
            return self.k.splat(few, lanes)
        return self.k.shuffle(few, few, [lane % few.lanes for lane in range(lanes)])

    def step(self, at: Ptr, lagging: tuple[Ptr, Int, Int]) -> None:
        """One step of every column; ``lagging`` is A's copy at this step, line and row strides."""
        k, spec, skew = self.k, self.spec, self.skew
        x, line, row = lagging
        half = skew.groups * spec.parts
        window = k.var(x)
        for byte in k.range(0, skew.step_bytes, self.width):
            begin = window.value
            for j in self.vectors:
                here = begin
                for vector in self.block(at + byte, j, None):
                    for i in self.reals:
                        a = self._everywhere(k.load(here + row * i, spec.element, half))
                        cell = self.sums[i, j]
                        cell.value = k.op("madd", a, vector, cell.value)
                    here = k.opaque(here + line)
            window.value = here

    def flush(self, group: Int) -> None:
        """The chains of one group end: add them to their totals."""
        k, spec = self.k, self.spec
        lane = k.splat(k.number(group, spec.element), spec.lanes)
        zero = k.zero(spec.element, spec.lanes)
        none = k.literal(-0.0, spec.element, spec.lanes)
        for (i, j), chain in self._chains().items():
            ended = k.op("select_eq", self.numbers, lane, chain, none)
            total = k.load(self._total(i, j), spec.element, spec.lanes)
            k.store(self._total(i, j), k.op("add", total, ended))
        for cell in self.sums.values():
            cell.value = k.op("select_eq", self.numbers, lane, zero, cell.value)

    def rest(self, at: Ptr, a: tuple[Ptr, Int, Int], rest: Int) -> None:
        """The last depth steps, fewer than a step of the walk; no lane lags any more."""
        k, spec, skew = self.k, self.spec, self.skew
        at_a, row, col = a
        size = spec.element.bytes
        self.offsets = self._offsets(apart=False)
        buffer = k.scratch(skew.columns * self.width)
        for start in k.range(0, rest, skew.columns):
            count = k.min(rest - start, skew.columns)
            mask = k.mask(count * spec.parts, spec.element, spec.lanes)
            for j in self.vectors:
                turned = self.block(at + start * spec.unit, j, mask)
                for p, vector in enumerate(turned):
                    k.store(buffer + p * self.width, vector)
                for q in k.range(0, count):
                    vector = k.load(buffer + q * self.width, spec.element, spec.lanes)
                    x = at_a + (start + q) * col
                    for i in self.reals:
                        one = k.load(x + row * (i // spec.parts) + i % spec.parts * size,
                                     spec.element)  # fmt: skip
                        cell = self.sums[i, j]
                        cell.value = k.op("madd", k.splat(one, spec.lanes), vector, cell.value)

    def finish(self, *, add: Cond) -> None:
        """Chains still open are added (if ``add``), and the tile is finished."""
        k, spec = self.k, self.spec
        for _ in k.when(add):
            for (i, j), chain in self._chains().items():
                at = self._total(i, j)
                k.store(at, k.op("add", k.load(at, spec.element, spec.lanes), chain))
        records, cols = (self.job, self.tile), self.tile.int("cols")
        for full in k.branches(cols.equals(len(self.vectors) * spec.lanes)):
            sums = {
                (i, j): k.var(k.load(self._total(i, j), spec.element, spec.lanes))
                for i in range(self.rows)
                for j in self.vectors
            }
            conclude(k, spec, records, sums, None if full else cols)


def skewed_tile(spec: GemmSpec, rows: int) -> Function:
    """``rows`` rows of A times a panel of columns over the whole depth, more steps than the lag.

    ``lagging`` is what :func:`lag_rows` wrote, ``a`` the rows themselves.
    """
    skew = Skew(spec)
    steps_per_block = spec.element.depth_block // skew.depth_per_step

    def body(
        k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, lagging: Ptr, b: Ptr, depth: Int
    ) -> None:
        records = JOB.view(k, job_at), TILE.view(k, tile_at)
        walk = _Walk(k, spec, records, rows)
        walk.begin()
        steps, line = _steps(skew, depth)
        row = line * skew.depth_per_step
        for t in k.range(0, steps + skew.lag):
            # Groups below `idle` have not begun; groups from `done` on are at their end.
            idle = k.select(t < skew.lag, skew.lag - t, k.const(0))
            over = t - steps + 1
            done = k.select(over > 0, skew.groups - over, k.const(skew.groups))
            saved = {key: k.var(cell.value) for key, cell in walk.sums.items()}
            walk.step(b + t * skew.step_bytes, (lagging + t * spec.unit, line, row))
            for _ in k.when((idle > 0) | (done < skew.groups)):
                _restore(k, walk, saved, (idle, done))
            walk.turn_back(k.const(0), idle)
            for _ in k.when(over >= 0):
                walk.turn_back(skew.lag - over, k.const(skew.groups))
            # The group, if any, that has just gone through a whole depth block.
            g = (t + 1) % steps_per_block
            for _ in k.when((g < skew.groups) & (t + 1 >= steps_per_block) & (t - g < steps)):
                walk.flush(skew.lag - g)
        done_depth = steps * skew.depth_per_step
        a_row, a_col = records[0].int("source_row"), records[0].int("source_col")
        rest = a + done_depth * a_col, a_row, a_col
        walk.rest(b + steps * skew.step_bytes, rest, depth - done_depth)
        walk.finish(add=(depth % spec.element.depth_block).differs(0))

    params = parameters("job* tile* a* lagging* b* depth")
    return Function(f"{spec.symbol}_skewed_{rows}", params, body)


def _restore(
    k: Kernel, walk: _Walk, saved: dict[tuple[int, int], Var[Vec]], lanes: tuple[Int, Int]
) -> None:
    """Undo a step in the groups below the first of ``lanes``, and from the second on."""
    spec = walk.spec
    first, last = (k.splat(k.number(x, spec.element), spec.lanes) for x in lanes)
    for key, cell in walk.sums.items():
        new = k.op("select_lt", walk.numbers, first, saved[key].value, cell.value)
        cell.value = k.op("select_le", last, walk.numbers, saved[key].value, new)
