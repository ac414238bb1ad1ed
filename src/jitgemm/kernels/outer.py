"""Microtiles on a unit of outer products: a vector of A times a vector of B into a tile of sums.

B comes from the micropanels of the vector kernels.  A is read by columns: vectors of k-groups of
neighbouring rows, from micropanels of A or from an operand whose columns are contiguous.  A tile
whose last vector is not full reads it under a mask; one that is full has none.

Per depth step a tile of ``r`` by ``c`` accumulators loads ``r + c`` vectors for ``r * c`` outer
products.  Each element is one chain of multiply-adds over ascending depth from zero, as in the
vector kernels, wherever the unit's product rounds as one multiply-add does.
"""

from __future__ import annotations

from collections.abc import Callable

from jitgemm.kernels.epilogue import Masks, masks_of
from jitgemm.kernels.job import JOB, TILE
from jitgemm.kernels.matrix import finish_rows
from jitgemm.kernels.spec import BSource, GemmSpec
from jitgemm.lang.core import Function, Int, Kernel, Mask, Ptr, Vec, parameters
from jitgemm.lang.record import View

__all__ = ["outer_microkernel"]


class _Square:
    """``rows`` by ``columns`` accumulators, in rows of numbers in ascending order."""

    def __init__(self, k: Kernel, spec: GemmSpec, rows: int, masks: Masks) -> None:
        self.k, self.spec, self.rows, self.masks = k, spec, rows, masks
        self.columns = len(masks)

    def tile(self, row: int, column: int) -> int:
        """The number of an accumulator."""
        return row * self.columns + column

    def multiply(self, job: View, at: tuple[Ptr, list[Ptr]], depth: Int, last: Mask | None) -> None:
        """The sums of ``depth`` steps, from zero; ``last`` masks the last vector of A."""
        k, spec = self.k, self.spec
        for t in range(self.rows * self.columns):
            k.zero_sums(t, spec.element)
        a, panels = k.var(at[0]), [k.var(p) for p in at[1]]
        a_col, b_row = job.int("a_col"), k.const(spec.panel_row)
        if spec.b is BSource.INPLACE:
            b_row = job.int("b_row")
        together = self._together()
        whole = depth // together * together

        def walk(first: Int | int, stop: Int, steps: int) -> None:
            for _ in k.range(first, stop, steps):
                self._steps(a.value, [p.value for p in panels], (a_col, last), steps)
                a.value = a.value + a_col * steps
                for p in panels:
                    p.value = p.value + b_row * steps

        walk(0, whole, together)
        if together > 1:
            walk(whole, depth, 1)

    def _together(self) -> int:
        """Depth steps whose vectors of B lie side by side, where one load brings several."""
        spec = self.spec
        side_by_side = spec.b is BSource.PACKED and self.columns == spec.tile.nr_regs
        loads = (
            spec.outer is not None and f"{spec.element}x{2 * self.columns}" in spec.outer.several
        )
        return 2 if side_by_side and loads else 1

    def _steps(
        self, a: Ptr, panels: list[Ptr], walk: tuple[Int, Mask | None], steps: int
    ) -> None:  # fmt: skip
        """Some depth steps: their vectors of A, one step behind the other, times those of B."""
        k, spec, (a_col, last) = self.k, self.spec, walk
        columns = self.columns
        if steps > 1:
            right = k.load_adjacent(panels[0], spec.element, steps * columns)
        else:
            right = [x for n, p in enumerate(panels) for x in self._of_b(p, n)]
        for step in range(steps):
            for i, x in enumerate(self._of_a(a + a_col * step, last)):
                for j, y in enumerate(right[step * columns : (step + 1) * columns]):
                    k.fold_outer(spec.arithmetic.accumulate, self.tile(i, j), x, y)

    def _of_a(self, at: Ptr, last: Mask | None) -> list[Vec]:
        k, element, lanes = self.k, self.spec.element, self.spec.lanes
        if last is None:
            return k.load_adjacent(at, element, self.rows)
        above, step = self.rows - 1, lanes * element.bytes
        whole = k.load_adjacent(at, element, above)
        return [*whole, k.load(at + above * step, element, lanes, last)]

    def _of_b(self, at: Ptr, panel: int) -> list[Vec]:
        k, spec, vectors = self.k, self.spec, self.spec.tile.nr_regs
        # K-groups of several numbers are loaded as what they are added up in.
        kind = spec.panel_element if spec.upconverts_b else spec.element
        step, masks = (
            spec.panel_row // vectors,
            [self.masks[panel * vectors + j] for j in range(vectors)],
        )
        if kind is spec.element and all(m is None for m in masks):
            return k.load_adjacent(at, kind, vectors)
        found = [k.load(at + j * step, kind, spec.lanes, mask) for j, mask in enumerate(masks)]
        return [k.convert(x, spec.element) for x in found]

    def finish(self, records: tuple[View, View], height: Int) -> None:
        """Take the rows of all accumulators through the epilogue."""
        k, element, lanes = self.k, self.spec.element, self.spec.lanes

        def reader(row: int) -> Callable[[Int, int, int], Vec]:
            def read(i: Int, below: int, j: int) -> Vec:
                return k.row_of_sums(self.tile(row, j), i + below, element)

            return read

        parts = [(k.const(lanes), reader(row)) for row in range(self.rows - 1)]
        rest = height - (self.rows - 1) * lanes
        finish_rows(k, self.spec, records, self.columns, [*parts, (rest, reader(self.rows - 1))])


def _rows_at_most(spec: GemmSpec, panels: int) -> int:
    """Accumulators below each other, for so many micropanels."""
    return dict(spec.tile.groups)[panels] // spec.lanes


def outer_microkernel(spec: GemmSpec, panels: int) -> Function:
    """The function that adds one depth block to ``rows`` rows by ``panels`` micropanels.

    As many accumulators below each other as the rows fill.  Rows that fill them to the last need no
    mask, nor do micropanels, which are padded; of a B read in place lanes beyond its columns are
    zero.
    """
    columns, lanes = panels * spec.tile.nr_regs, spec.lanes

    def body(k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, b: Ptr, rows: Int, depth: Int) -> None:
        records = JOB.view(k, job_at), TILE.view(k, tile_at)
        job = records[0]
        across = [b + job.int("panel_stride") * i for i in range(panels)]
        heights = list(range(1, _rows_at_most(spec, panels) + 1))
        cols = records[1].int("cols")
        for height in k.cases(k.ceil_div(rows, lanes), heights):
            full = rows.equals(height * lanes)
            if spec.b is BSource.INPLACE:
                full = full & cols.equals(columns * lanes)
            for plain in k.branches(full):
                last = None if plain else k.mask(rows - (height - 1) * lanes, spec.element, lanes)
                some = cols if spec.b is BSource.INPLACE and not plain else None
                masks = masks_of(k, spec, range(columns), some)
                square = _Square(k, spec, height, masks)
                square.multiply(job, (a, across), depth, last)
            square.finish(records, rows)

    params = parameters("job* tile* a* b* rows depth")
    return Function(f"{spec.symbol}_outer_{columns * lanes}", params, body)
