"""The microkernel: one body for every element type, instruction set, tile and source of B.

B is read by vector, A by broadcast.  A broadcast needs no particular layout, so A is read in
place with any strides at full speed; a packed A is the same kernel with other strides.

Reading A in place invites LLVM's loop strength reduction to keep one induction variable per row;
14 of them do not fit next to the rest and spill.  Three rows therefore share one pointer, with the
row stride and its double as index, all hidden behind :meth:`Kernel.opaque` (measured: a spilled
bf16 12x32 ran at 50-99 GFLOP/s, 160 without).
"""

from __future__ import annotations

from jitgemm.kernels.epilogue import finish
from jitgemm.kernels.job import JOB, TILE
from jitgemm.kernels.spec import BSource, GemmSpec
from jitgemm.lang.core import Function, Int, Kernel, Mask, Ptr, Var, Vec, parameters
from jitgemm.lang.record import View

__all__ = ["fold", "microkernel"]

_ROWS_PER_POINTER = 3
_LINE = 64
_LONG = 64

Sums = dict[tuple[int, int], Var[Vec]]


def fold(k: Kernel, spec: GemmSpec, a: Vec, b: Vec, total: Vec) -> Vec:
    """``total`` and the product of a word of A and one of B in each lane."""
    how = spec.arithmetic
    if how is None:
        return k.op("madd", a, b, total)
    return k.op(how.fold, *((b, a) if how.exchanged else (a, b)), total)


class _RowsOfA:
    """Walks ``rows`` rows of A along the depth and broadcasts their elements."""

    def __init__(
        self, k: Kernel, spec: GemmSpec, base: Ptr, strides: tuple[Int, Int], rows: int
    ) -> None:
        self.k, self.spec = k, spec
        self.row, self.col = strides
        self.base: list[Var[Ptr]] = []
        p = base
        for i in range(0, rows, _ROWS_PER_POINTER):
            self.base.append(k.var(p))
            if i + _ROWS_PER_POINTER < rows:
                p = p + self.row * _ROWS_PER_POINTER

    def step(self) -> None:
        """Start a depth step."""
        self.row = self.k.opaque(self.row)

    def splat(self, i: int) -> Vec:
        """Real ``i`` of this depth, in every lane; they come in ascending order."""
        row, part = divmod(i, self.spec.parts)
        group, within = divmod(row, _ROWS_PER_POINTER)
        if within == 0 and part == 0:
            cell = self.base[group]
            self.pinned = self.k.opaque(cell.value)
            cell.value = self.pinned + self.col
        p = self.pinned + self.row * within + part * self.spec.element.bytes
        return self.k.splat(self.k.load(p, self.spec.element), self.spec.lanes)


class _PanelsOfB:
    """Walks ``panels`` micropanels of B along the depth and loads their vectors."""

    def __init__(
        self, k: Kernel, spec: GemmSpec, base: Ptr, strides: tuple[Int, Int], panels: int
    ) -> None:
        self.k, self.spec = k, spec
        self.depth = strides[0]
        self.masks: dict[int, Mask] = {}
        # In place, adjacent micropanels are adjacent columns: one pointer reaches them all.
        self.starts = [0] if spec.b is BSource.INPLACE else list(range(panels))
        self.base = [k.var(base + strides[1] * s) for s in self.starts]

    def step(self) -> None:
        """Pin the pointers for this depth step; then move them on."""
        self.pinned = [cell.value for cell in self.base]
        for cell, p in zip(self.base, self.pinned, strict=True):
            cell.value = p + self.depth
        if self.masks:
            # Lanes without a column repeat the first one: they raise no flag of their own.
            first = self.k.load(self.pinned[0], self.spec.element)
            self.rest = self.k.splat(first, self.spec.lanes)

    def only(self, cols: Int, columns: range) -> None:
        """Touch no column from ``cols`` on."""
        spec = self.spec
        for j in columns:
            self.masks[j] = self.k.mask(cols - j * spec.lanes, spec.element, spec.lanes)

    def load(self, j: int) -> Vec:
        """Vector ``j`` of this depth step."""
        spec = self.spec
        panel, within = divmod(j, spec.tile.nr_regs)
        if spec.b is BSource.INPLACE:
            panel, within = 0, j
        p = self.pinned[panel] + within * (spec.panel_row // spec.tile.nr_regs)
        if spec.packed.format:
            return self.k.convert(self.k.load(p, spec.packed, spec.lanes), spec.element)
        if j not in self.masks:
            return self.k.load(p, spec.element, spec.lanes)
        return self.k.load(p, spec.element, spec.lanes, self.masks[j], self.rest)


def microkernel(spec: GemmSpec, panels: int, rows: int) -> Function:
    """The function that adds one depth block to a ``rows`` x ``panels * nr`` tile.

    Rounding contract: each element is one chain of ``madd`` over ascending depth from zero; the
    sum of the earlier blocks is added to it; at the last block the epilogue applies once.
    """
    name = f"{spec.symbol}_micro_{rows}x{panels * spec.nr}"
    columns = range(panels * spec.tile.nr_regs)

    # A panel met by many rows is worth fetching early; with few rows the sum itself is the stream.
    fetches = spec.b is BSource.PACKED and panels == 1

    def multiply(
        k: Kernel, records: tuple[View, View], where: tuple[Ptr, Ptr, Int], cols: Int | None
    ) -> Sums:
        (job, tile), (a, b, depth) = records, where
        zero = k.zero(spec.element, spec.lanes)
        reals = range(rows * spec.parts)
        sums = {(i, j): k.var(zero) for i in reals for j in columns}
        b_depth = k.const(spec.panel_row) if spec.b is BSource.PACKED else job.int("b_row")
        rows_of_a = _RowsOfA(k, spec, a, (job.int("a_row"), job.int("a_col")), rows)
        panels_of_b = _PanelsOfB(k, spec, b, (b_depth, job.int("panel_stride")), panels)
        if cols is not None:
            panels_of_b.only(cols, columns)
        coming = k.var(tile.pointer("ahead"))
        for _ in k.range(0, depth):
            rows_of_a.step()
            panels_of_b.step()
            if fetches:
                k.prefetch(coming.value, near=False)
                coming.value = coming.value + _LINE
            # Hold the shorter side in registers and stream the longer one past it.
            if len(reals) < len(columns):
                splats = [rows_of_a.splat(i) for i in reals]
                for j in columns:
                    vector = panels_of_b.load(j)
                    for i in reals:
                        cell = sums[i, j]
                        cell.value = fold(k, spec, splats[i], vector, cell.value)
            else:
                vectors = [panels_of_b.load(j) for j in columns]
                for i in reals:
                    splat = rows_of_a.splat(i)
                    for j in columns:
                        cell = sums[i, j]
                        cell.value = fold(k, spec, splat, vectors[j], cell.value)
        return sums

    def body(k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, b: Ptr, depth: Int) -> None:
        job, tile = JOB.view(k, job_at), TILE.view(k, tile_at)
        cols = tile.int("cols")
        records = job, tile
        for _ in k.when(depth >= _LONG):
            target, stride = tile.pointer("target"), tile.int("target_row")
            for i in range(rows):
                for line in range(0, panels * spec.nr * spec.types.out.bytes, _LINE):
                    k.prefetch(target + line, write=True)
                if i + 1 < rows:
                    target = target + stride
        width = len(columns) * spec.lanes
        if spec.b is BSource.PACKED:
            # Panels are padded: the product needs no masks, only the store does.
            sums = multiply(k, records, (a, b, depth), None)
            for full in k.branches(cols.equals(width)):
                finish(k, spec, records, sums, None if full else cols)
        else:
            for full in k.branches(cols.equals(width)):
                if not full and panels > 1 and not spec.partial_groups:
                    continue  # the nest never asks for it
                masked = None if full else cols
                finish(k, spec, records, multiply(k, records, (a, b, depth), masked), masked)

    params = parameters("job* tile* a* b* depth")
    return Function(name, params, body)
