"""Few rows times a B whose columns are contiguous and collide in the cache: a skewed walk.

Turning B in registers (``kernels.turned``) reads a line of every column at a time.  Where columns
lie a multiple of a page apart all those lines belong to one set of L1, and push each other out
before prefetched neighbours are used.  Here every column lags one step behind the next, so the
lines of a moment lie in different sets.  Lanes then need different elements of A at a time; a copy
of A in which those of successive steps lie side by side provides them by one unaligned load.

A step is ``depth_per_step`` elements of depth: two cache lines of each column.  The chains are
those of every other route: a lane that reaches the end of a depth block adds its chain (if complex,
what its four chains make) to its total, lane by lane.
"""

from __future__ import annotations

from dataclasses import dataclass

from jitgemm.kernels.epilogue import combined, conclude
from jitgemm.kernels.job import JOB, TILE
from jitgemm.kernels.spec import GemmSpec
from jitgemm.kernels.transpose import transpose
from jitgemm.lang.core import Cond, Function, Int, Kernel, Mask, Ptr, Var, Vec, parameters
from jitgemm.lang.record import View

__all__ = ["Skew", "lag_rows", "skewed_tile"]

_WORD, _LINE = 8, 64
_STEP_BYTES = 128
# Two lines ahead into L2: the step after the next.  Further ahead is no faster.
_AHEAD = _STEP_BYTES


@dataclass(frozen=True, slots=True)
class Skew:
    """Sizes of the walk for a kernel."""

    spec: GemmSpec

    @property
    def columns(self) -> int:
        """Columns in a vector, and depth steps in a block turned at once."""
        return self.spec.lanes // self.spec.parts

    @property
    def lag(self) -> int:
        """Steps by which the last lane is ahead of the first."""
        return self.columns - 1

    @property
    def blocks(self) -> int:
        """Blocks turned per step."""
        return max(1, _STEP_BYTES // (self.columns * self.spec.unit))

    @property
    def depth_per_step(self) -> int:
        """Depth steps of B per step of the walk; divides the depth block."""
        return self.blocks * self.columns

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

    Every real is repeated ``parts`` times.  Before the first step and after the last one come
    copies of them, for lanes that have not begun or are done: what such a lane computes is what it
    will compute, or has, so it raises no flag of its own.
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
                        late = k.select(q > skew.lag, q - skew.lag, k.const(0))
                        step = k.min(late, steps - 1)
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
        self.totals = k.scratch(len(self.sums) * self.width)
        # The number of its column in every lane.
        lanes = k.steps(spec.element, spec.lanes)
        numbers = [lane // spec.parts for lane in range(spec.lanes)]
        self.numbers = k.shuffle(lanes, lanes, numbers) if spec.parts > 1 else lanes
        self.offsets = self._offsets()

    def _offsets(self) -> Ptr:
        """Where each column is when the first one begins; columns that are missing repeat one."""
        k, columns = self.k, self.skew.columns
        table = k.scratch(len(self.vectors) * columns * _WORD)
        stride, count = self.job.int("b_col"), self.tile.int("cols")
        for c in range(len(self.vectors) * columns):
            exists = k.const(c * self.spec.parts) < count
            k.store_int(table + c * _WORD, k.select(exists, stride * c, k.const(0)))
        return table

    def _total(self, i: int, j: int) -> Ptr:
        return self.totals + (i * len(self.vectors) + j) * self.width

    def begin(self) -> None:
        """Totals start at -0, to which a first block sum adds without a trace, or at D."""
        k, spec = self.k, self.spec
        none = k.literal(-0.0, spec.element, spec.lanes)
        for i in range(self.rows):
            for j in self.vectors:
                k.store(self._total(i, j), none)

    def hold(self, first: Int, last: Int, step: int) -> None:
        """Columns ``first .. last`` of each vector stay where they are when all move on."""
        k, columns = self.k, self.skew.columns
        for c in k.range(first, last):
            for j in self.vectors:
                at = self.offsets + (c + j * columns) * _WORD
                k.store_int(at, k.load_int(at) - step)

    def block(self, at: Ptr, j: int, mask: Mask | None, ahead: int) -> list[Vec]:
        """A block of vector ``j``, turned: a vector per depth step."""
        k, spec, columns = self.k, self.spec, self.skew.columns
        loaded = []
        for c in range(columns):
            p = at + k.load_int(self.offsets + (j * columns + c) * _WORD)
            if ahead:
                k.prefetch(p + ahead, near=False)
            loaded.append(k.load(p, spec.element, spec.lanes, mask))
        return transpose(k, loaded, spec.parts)

    def step(self, at: Ptr, lagging: tuple[Ptr, Int, Int]) -> None:
        """One step of every column; ``lagging`` is A's copy at this step, line and row strides."""
        k, spec, skew = self.k, self.spec, self.skew
        x, line, row = lagging
        for b in range(skew.blocks):
            for j in self.vectors:
                here = at + b * self.width
                ahead = _AHEAD if b * self.width % _LINE == 0 else 0
                vectors = self.block(here, j, None, ahead)
                window = k.opaque(x + line * (b * skew.columns))
                for vector in vectors:
                    for i in self.reals:
                        a = k.load(window + row * i, spec.element, spec.lanes)
                        cell = self.sums[i, j]
                        cell.value = k.op("madd", a, vector, cell.value)
                    window = k.opaque(window + line)

    def flush(self, column: Int) -> None:
        """The chain of one column of each vector ends: add it to its total."""
        k, spec = self.k, self.spec
        lane = k.splat(k.number(column, spec.element), spec.lanes)
        zero = k.zero(spec.element, spec.lanes)
        none = k.literal(-0.0, spec.element, spec.lanes)
        # Other lanes, still under way, must not be added to each other: they would raise flags.
        ended = {
            key: k.op("select_eq", self.numbers, lane, cell.value, zero)
            for key, cell in self.sums.items()
        }
        for (i, j), block in combined(k, spec, self.job, ended).items():
            total = k.load(self._total(i, j), spec.element, spec.lanes)
            mine = k.op("select_eq", self.numbers, lane, block, none)
            k.store(self._total(i, j), k.op("add", total, mine))
        for cell in self.sums.values():
            cell.value = k.op("select_eq", self.numbers, lane, zero, cell.value)

    def rest(self, at: Ptr, a: tuple[Ptr, Int, Int], rest: Int) -> None:
        """The last depth steps, fewer than a step of the walk; no lane lags any more."""
        k, spec, skew = self.k, self.spec, self.skew
        at_a, row, col = a
        size = spec.element.bytes
        buffer = k.scratch(skew.columns * self.width)
        for start in k.range(0, rest, skew.columns):
            count = k.min(rest - start, skew.columns)
            mask = k.mask(count * spec.parts, spec.element, spec.lanes)
            for j in self.vectors:
                turned = self.block(at + start * spec.unit, j, mask, 0)
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
        results = {(i, j): self.sums[i * spec.parts, j] for i in range(self.rows)
                   for j in self.vectors}  # fmt: skip
        for opened in k.branches(add):
            blocks: dict[tuple[int, int], Vec] = {}
            if opened:
                chains = {key: cell.value for key, cell in self.sums.items()}
                blocks = combined(k, spec, self.job, chains)
            for (i, j), cell in results.items():
                total = k.load(self._total(i, j), spec.element, spec.lanes)
                cell.value = k.op("add", total, blocks[i, j]) if opened else total
        cols = self.tile.int("cols")
        for full in k.branches(cols.equals(len(self.vectors) * spec.lanes)):
            conclude(k, spec, (self.job, self.tile), results, None if full else cols)


def skewed_tile(spec: GemmSpec, rows: int) -> Function:
    """``rows`` rows of A times a panel of columns over the whole depth.

    ``lagging`` is what :func:`lag_rows` wrote, ``a`` the rows themselves.
    """
    skew = Skew(spec)
    bytes_per_step = skew.depth_per_step * spec.unit
    steps_per_block = spec.element.depth_block // skew.depth_per_step

    def body(
        k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, lagging: Ptr, b: Ptr, depth: Int
    ) -> None:
        records = JOB.view(k, job_at), TILE.view(k, tile_at)
        walk = _Walk(k, spec, records, rows)
        walk.begin()
        steps, line = _steps(skew, depth)
        row = line * skew.depth_per_step
        rounds = k.select(steps > 0, steps + skew.lag, k.const(0))
        for t in k.range(0, rounds):
            # Lanes below `idle` have not begun; lanes from `done` on are at their end.
            idle = k.select(t < skew.lag, skew.lag - t, k.const(0))
            over = t - steps + 1
            done = k.select(over > 0, skew.columns - over, k.const(skew.columns))
            saved = {key: k.var(cell.value) for key, cell in walk.sums.items()}
            walk.step(b + t * bytes_per_step, (lagging + t * spec.unit, line, row))
            for _ in k.when((idle > 0) | (done < skew.columns)):
                _restore(k, walk, saved, (idle, done))
            walk.hold(k.const(0), idle, bytes_per_step)
            for _ in k.when(over >= 0):
                walk.hold(skew.lag - over, k.const(skew.columns), bytes_per_step)
            # The lane, if any, that has just gone through a whole depth block.
            g = (t + 1) % steps_per_block
            for _ in k.when((g < skew.columns) & (t + 1 >= steps_per_block) & (t - g < steps)):
                walk.flush(skew.lag - g)
        # Columns have been held at their last step.
        end = b + k.select(steps > 0, rounds + 1, k.const(0)) * bytes_per_step
        done_depth = steps * skew.depth_per_step
        a_row, a_col = records[0].int("source_row"), records[0].int("source_col")
        walk.rest(end, (a + done_depth * a_col, a_row, a_col), depth - done_depth)
        walk.finish(add=(depth % spec.element.depth_block).differs(0))

    params = parameters("job* tile* a* lagging* b* depth")
    return Function(f"{spec.symbol}_skewed_{rows}", params, body)


def _restore(
    k: Kernel, walk: _Walk, saved: dict[tuple[int, int], Var[Vec]], lanes: tuple[Int, Int]
) -> None:
    """Undo a step in the lanes below the first of ``lanes``, and from the second on."""
    spec = walk.spec
    first, last = (k.splat(k.number(x, spec.element), spec.lanes) for x in lanes)
    for key, cell in walk.sums.items():
        new = k.op("select_lt", walk.numbers, first, saved[key].value, cell.value)
        cell.value = k.op("select_le", last, walk.numbers, saved[key].value, new)
