"""Few rows times a B whose columns are contiguous k-groups of integers: dot products in lanes.

Sums of integers are exact in any order, so nothing has to be transposed: a vector of k-groups of a
row of A times one of a column of B adds to a vector of sums, whose lanes are added up when the
column ends.  Some columns are walked side by side, so that each vector of A serves all of them.

Sums of B's columns, which correct for zero points of A, are formed on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jitgemm.kernels.epilogue import conclude
from jitgemm.kernels.groups import add_up
from jitgemm.kernels.job import JOB, TILE
from jitgemm.kernels.micro import accumulate
from jitgemm.kernels.spec import GemmSpec
from jitgemm.kernels.transpose import transpose
from jitgemm.lang.core import Function, Int, IntLike, Kernel, Ptr, Var, Vec, parameters

__all__ = ["column_dots"]

_MOST_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Columns side by side, and vectors of sums for each."""

    spec: GemmSpec
    rows: int

    @property
    def sums(self) -> int:
        """Vectors of sums per column: one per row, and one of the column itself if it is needed."""
        return self.rows + int(self.spec.epilogue.zero_a)

    @property
    def columns(self) -> int:
        """Columns side by side: a power of two, so that they divide a vector."""
        # Two fifths of the registers are left for A, B and what is constant.
        most, columns = self.spec.isa.vector_registers * 3 // 5, 1
        while columns < _MOST_COLUMNS and 2 * columns * self.sums <= most:
            columns *= 2
        return min(columns, self.spec.nr)


class _Columns:
    """Some columns side by side, and the sums of the panel they belong to."""

    def __init__(self, k: Kernel, sizes: _Sizes, a: tuple[Ptr, Int], b: tuple[Ptr, Int]) -> None:
        self.k, self.sizes, self.spec = k, sizes, sizes.spec
        self.a, self.a_row = a
        self.b, self.b_col = b
        self.lanes, self.group = self.spec.lanes, self.spec.arithmetic.group
        self.size = self.spec.element.bytes
        self.width = self.lanes * self.size
        self.numbers = k.scratch(self.width)
        """Numbers of a column that are no whole k-group, and zeros."""
        self.space = k.scratch(sizes.sums * self.spec.nr * self.width)
        """A vector for each sum and column of the panel."""

    def vectors_of(self, i: int, first: IntLike) -> Ptr:
        """Where the vectors of sum ``i`` are, from a column on."""
        return self.space + (i * self.spec.nr + first) * self.width

    def walk(self, first: Int, live: Int, depth: tuple[Int, Int]) -> None:
        """Form the sums of the columns from ``first`` on, of which ``live`` exist in the panel.

        ``depth``: whole k-groups, and numbers beyond them.
        """
        k, lanes, (groups, rest) = self.k, self.lanes, depth
        # Columns that do not exist are the panel's first one again.
        columns = [
            self.b + k.select(first + c < live, first + c, k.const(0)) * self.b_col
            for c in range(self.sizes.columns)
        ]
        zero = k.zero(self.spec.element, lanes)
        cells = [[k.var(zero) for _ in columns] for _ in range(self.sizes.sums)]
        whole = groups // lanes * lanes

        def vectors(p: Int, live: Int | None) -> Iterator[Vec]:
            for at in columns:
                mask = None if live is None else k.mask(live, self.spec.element, lanes)
                yield k.load(at + p * self.size, self.spec.element, lanes, mask)

        for p in k.range(0, whole, lanes):
            self._add(cells, p, None, vectors(p, None))
        for _ in k.when(whole < groups):
            left = groups - whole
            self._add(cells, whole, left, vectors(whole, left))
        for _ in k.when(rest > 0):
            last = (self._rest(at + groups * self.size, rest) for at in columns)
            self._add(cells, groups, k.const(1), last)
        for i, row in enumerate(cells):
            for c, cell in enumerate(row):
                k.store(self.vectors_of(i, first + c), cell.value)

    def _add(
        self, cells: list[list[Var[Vec]]], p: Int, live: Int | None, columns: Iterator[Vec]
    ) -> None:
        """Add a vector of k-groups from ``p`` on, of which ``live`` exist (``None``: all)."""
        k, spec, rows = self.k, self.spec, self.sizes.rows
        mask = None if live is None else k.mask(live, spec.element, self.lanes)
        own = [
            k.load(self.a + self.a_row * i + p * self.size, spec.element, self.lanes, mask)
            for i in range(rows)
        ]
        for c, b in enumerate(columns):
            for i, a in enumerate(own):
                cells[i][c].value = accumulate(k, spec, a, b, cells[i][c].value)
            if self.sizes.sums > rows:
                cell, signed = cells[rows][c], spec.types.b.signed
                cell.value = add_up(k, spec.arithmetic, b, cell.value, signed=signed)

    def _rest(self, at: Ptr, count: Int) -> Vec:
        """``count`` numbers and zeros: nothing beyond them is read."""
        k, stored = self.k, self.spec.panel_element
        k.store(self.numbers, k.zero(self.spec.element, self.lanes))
        for q in k.range(0, count):
            k.store(self.numbers + q * stored.bytes, k.load(at + q * stored.bytes, stored))
        return k.load(self.numbers, self.spec.element, self.lanes)

    def clear(self, first: Int) -> None:
        """Columns from ``first`` on do not exist: their sums are zero."""
        zero = self.k.zero(self.spec.element, self.lanes)
        for i in range(self.sizes.sums):
            for c in range(self.sizes.columns):
                self.k.store(self.vectors_of(i, first + c), zero)

    def total(self, i: int, first: int) -> Vec:
        """Sum ``i`` of as many columns as a vector has lanes."""
        k = self.k
        at = self.vectors_of(i, first)
        vectors = [k.load(at + c * self.width, self.spec.element, self.lanes)
                   for c in range(self.lanes)]  # fmt: skip
        vectors = transpose(k, vectors)
        while len(vectors) > 1:
            half = len(vectors) // 2
            vectors = [
                k.op("add", x, y) for x, y in zip(vectors[:half], vectors[half:], strict=True)
            ]
        return vectors[0]


def column_dots(spec: GemmSpec, rows: int) -> Function:
    """``rows`` rows of A times a panel of columns, from the first to the last k-group.

    There is at least one.  The job says how many numbers of the last one exist.
    """
    sizes = _Sizes(spec, rows)

    def body(k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, b: Ptr, depth: Int) -> None:
        job, tile = JOB.view(k, job_at), TILE.view(k, tile_at)
        numbers, cols = job.int("k_numbers"), tile.int("cols")
        whole = numbers // spec.arithmetic.group
        left = numbers - whole * spec.arithmetic.group
        del depth  # as many k-groups
        panel = _Columns(k, sizes, (a, job.int("a_row")), (b, job.int("b_col")))
        for first in k.range(0, spec.nr, sizes.columns):
            for exists in k.branches(first < cols):
                if exists:
                    panel.walk(first, cols, (whole, left))
                else:
                    panel.clear(first)
        vectors = range(spec.tile.nr_regs)
        if sizes.sums > rows:
            sums = k.scratch(spec.tile_row)
            for j in vectors:
                k.store(sums + j * panel.width, panel.total(rows, j * spec.lanes))
            tile.set("col_sums", sums)
        for full in k.branches(cols.equals(spec.nr)):
            found = {
                (i, j): k.var(panel.total(i, j * spec.lanes)) for i in range(rows) for j in vectors
            }
            conclude(k, spec, (job, tile), found, None if full else cols)

    return Function(f"{spec.symbol}_dots_{rows}", parameters("job* tile* a* b* depth"), body)
