"""The macrokernel: the two inner loops around the microkernel, over a block of the product.

    for jr in micropanels of B            (loop 2; a micropanel stays in L1 or L2)
      for each depth step                 (what the rows of the block share of a micropanel)
        for ir in microtiles of A         (loop 1)
          microtile

Loops 5 to 3 are in ``kernels.nest``.
"""

from __future__ import annotations

from jitgemm.kernels.cursor import TileCursor
from jitgemm.kernels.groups import upconvert_panel
from jitgemm.kernels.job import BLOCK, JOB, TILE
from jitgemm.kernels.matrix import record_bytes, unit_state
from jitgemm.kernels.microtile import PANELS, microtile, widest_row
from jitgemm.kernels.quantised import sums_at
from jitgemm.kernels.spec import Bias, BSource, GemmSpec
from jitgemm.kernels.streaming import row_streaming
from jitgemm.kernels.tilecopy import copy_tile
from jitgemm.lang.core import Function, Int, Kernel, Ptr, parameters
from jitgemm.lang.record import View

__all__ = ["call_block", "macrokernel"]

_LINE = 64


def call_block(
    k: Kernel, function: Function, job: View, at: tuple[Ptr, Ptr], bounds: tuple[Int, ...]
) -> None:
    """Call a macrokernel on rows ``i0 .. i1``, columns ``j0 .. j1`` and depth ``p0 .. p1``.

    Args:
        k: the backend.
        function: the macrokernel.
        job: the job's record.
        at: where the block's rows of A and its columns of B begin, at ``p0``.
        bounds: ``i0, i1, j0, j1, p0, p1``.
    """
    block = BLOCK.view(k, k.scratch(BLOCK.size))
    for name, place in zip(BLOCK.fields, at, strict=False):
        block.set(name, place)
    for name, bound in zip(BLOCK.fields[len(at) :], bounds, strict=True):
        block.set(name, bound)
    k.call(function, job.ptr, block.ptr)


def macrokernel(spec: GemmSpec) -> Function:
    """One block of the product: ``macrokernel(job, block)``."""
    streaming = row_streaming(spec)

    def body(k: Kernel, job_at: Ptr, block_at: Ptr) -> None:
        job, block = JOB.view(k, job_at), BLOCK.view(k, block_at)
        tile = TILE.view(k, k.scratch(record_bytes(spec)))
        if spec.b is not BSource.INPLACE or spec.tiles:
            _Loops(k, spec, (job, tile), block).run()
            return
        for streams in k.branches(job.int("row_streaming").equals(1)):
            if streams:
                k.call(streaming, job_at, tile.ptr, block_at)
            else:
                _Loops(k, spec, (job, tile), block).run()

    whole = Function(f"{spec.symbol}_macro", parameters("job* block*"), body)
    return whole if spec.outer is None else _entering(spec, whole)


def _entering(spec: GemmSpec, block: Function) -> Function:
    """A block in the mode of its unit: the mode is entered once for all its microtiles."""

    def body(k: Kernel, job_at: Ptr, block_at: Ptr) -> None:
        k.call_inside(block, job_at, block_at)

    return Function(f"{spec.symbol}_block", block.params, body)


class _Loops:
    """Loops 2 and 1 of one block."""

    def __init__(self, k: Kernel, spec: GemmSpec, records: tuple[View, View], block: View) -> None:
        self.k, self.spec = k, spec
        self.job, self.tile = records
        job = self.job
        self.i0, self.i1, self.j0, self.j1, self.p0, self.p1 = (
            block.int(x) for x in ("i0", "i1", "j0", "j1", "p0", "p1")
        )
        self.a, self.b = block.pointer("a"), block.pointer("b")
        self.run_tile = microtile(spec)
        self.tile_rows, self.group = job.int("tile_rows"), job.int("group")
        self.a_tile, self.a_col = job.int("a_tile"), job.int("a_col")
        self.panel_stride, self.step = job.int("panel_stride"), job.int("depth_step")
        self.b_row = job.int("b_row")
        if spec.b is BSource.PACKED:
            self.b_row = k.const(spec.in_memory.panel_row)
        # A bias per column is placed with its columns, side by side.
        self.per_column = spec.epilogue.bias is Bias.COLUMN
        self.cursor = TileCursor(k, spec, records, skip=("bias",) if self.per_column else ())
        self.bias = _BiasBuffer(k, spec, records)
        self.coming = _ComingRows(k, spec, job, (self.i0, self.i1, self.p0, self.p1))
        self._run_together()

    def _run_together(self) -> None:
        """How many microtiles one call of the microkernel does, down the rows.

        Of a B read in place, tiles of one depth block differ in nothing but their place.
        """
        k, spec, job = self.k, self.spec, self.job
        self.count, self.together = k.var(k.const(1)), k.var(self.tile_rows)
        if spec.b is not BSource.INPLACE or spec.tiles:
            return
        whole_depth = self.p0.equals(0) & self.p1.equals(job.int("k_groups"))
        shallow = (self.p1 <= spec.element.depth_block) & (self.p1 - self.p0 <= self.step)
        alike = job.int("direct").equals(1) & whole_depth & shallow
        if spec.epilogue.bias is Bias.ROW:
            alike = alike & job.int("swap_bias").equals(0)
        rows = self.i1 - self.i0
        for _ in k.when(alike & (rows >= 2 * self.tile_rows)):
            self.count.value = rows // self.tile_rows
            self.together.value = self.count.value * self.tile_rows
            self.cursor.set_next(self.tile_rows, self.a_tile)

    def run(self) -> None:
        """Whole groups of micropanels first, then one by one."""
        k, spec, cols = self.k, self.spec, self.j1 - self.j0
        panels = k.ceil_div(cols, spec.nr) if spec.partial_groups else cols // spec.nr
        grouped = self.j0 + k.min(panels // self.group * self.group * spec.nr, cols)
        configured = spec.tiles and spec.outer is None
        if configured:
            self.tile.set("shape", 0)
        self._micropanels(self.j0, grouped, self.group)
        self._micropanels(grouped, self.j1, k.const(1))
        if configured:
            k.release_tiles(unit_state(spec, self.tile))

    def _micropanels(self, start: Int, stop: Int, panels: Int) -> None:
        """Loop 2: columns ``start .. stop``, as many micropanels at a time."""
        k, width = self.k, panels * self.spec.nr
        for j in k.range(start, stop, width):
            done = j - self.j0
            self.coming.fetch(done, width, self.j1 - self.j0)
            self.tile.set("cols", k.min(width, self.j1 - j))
            if self.per_column:
                self.bias.of_columns(j)
            panel = self.b + done // self.spec.nr * self.panel_stride
            # At least one round: without depth there still is an epilogue.
            last = k.select(self.p1 > self.p0, self.p1, self.p0 + 1)
            for p in k.range(self.p0, last, self.step):
                self._microtiles((j, panels), panel, (p, k.min(p + self.step, self.p1)))

    def _microtiles(self, columns: tuple[Int, Int], panel: Ptr, depth: tuple[Int, Int]) -> None:
        """Loop 1: all rows of the block by some columns, over a step of depth."""
        k, (j, panels), (p, end) = self.k, columns, depth
        stored = panel + (p - self.p0) * self.b_row
        at_b = self._upconverted(stored, end - p)
        at_a, odd = k.var(self.a + (p - self.p0) * self.a_col), k.var(k.const(0))
        ahead = self._early(stored)
        for i in k.range(self.i0, self.i1, self.together.value):
            rows = k.min(self.tile_rows, self.i1 - i)
            self._place((i, j, p), panel, at_a.value)
            if self.spec.epilogue.bias is Bias.ROW:
                self.bias.of_rows(rows)
            half = odd.value * ((end - p) * self.spec.in_memory.panel_row // 2)
            self.tile.set("ahead", ahead + half)
            at, variant = (self.job.ptr, self.tile.ptr, at_a.value, at_b), panels * PANELS + rows
            k.call(self.run_tile, *at, variant, p, end)
            at_a.value = at_a.value + self.count.value * self.a_tile
            odd.value = 1 - odd.value

    def _place(self, where: tuple[Int, Int, Int], panel: Ptr, at_a: Ptr) -> None:
        """Describe the microtile at ``(row, column, depth)``."""
        k, spec, tile, (i, j, p) = self.k, self.spec, self.tile, where
        if spec.b is BSource.INPLACE:
            whole = i + self.together.value <= self.i1
            tile.set("count", k.select(whole, self.count.value, k.const(1)))
        self.cursor.set_strides()
        self.cursor.to(i, j)
        groups = self.job.int("k_groups")
        if spec.epilogue.zero_a and spec.b is BSource.PACKED:
            tile.set("col_sums", sums_at(spec, panel, groups))
        if spec.epilogue.zero_b:
            tile.set("row_sums", at_a + (groups - p) * self.a_col)

    def _upconverted(self, stored: Ptr, depth: Int) -> Ptr:
        """A step of a micropanel as the microkernel reads it, in scratch if not where it is."""
        if not self.spec.upconverts_panels:
            return stored
        at = self.a + self.job.int("upconverted_at")
        self.k.call(upconvert_panel(self.spec), stored, at, depth)
        return at

    def _early(self, stored: Ptr) -> Ptr:
        """What to fetch early: this panel's next depth step, or the next panel's first one."""
        further = self.p1 - self.p0 > self.step
        return stored + self.k.select(further, self.step * self.b_row, self.panel_stride)


class _BiasBuffer:
    """Numbers of a bias as microtiles read them, copied where they do not lie so."""

    def __init__(self, k: Kernel, spec: GemmSpec, records: tuple[View, View]) -> None:
        self.k, self.spec = k, spec
        self.job, self.tile = records
        self.element = spec.types.bias
        self.unit = spec.components * self.element.bytes
        if spec.epilogue.bias in (Bias.COLUMN, Bias.ROW):
            self.space = k.scratch(max(widest_row(spec), spec.tile.mr * self.unit))

    def of_columns(self, j: Int) -> None:
        """One number per column of the tile, from ``j`` on, side by side."""
        k, stride, swap = self.k, self.job.int("bias_col"), self.job.int("swap_bias").differs(0)
        components, none = self.spec.components, k.const(0)
        at = k.var(self.job.pointer("bias") + j // components * stride)
        for _ in k.when(stride.differs(self.unit) | swap):
            shape = k.const(1), self.tile.int("cols") // components
            source, target = (at.value, none, stride), (self.space, none, k.const(self.unit))
            copy_tile(k, self.element, source, target, shape, components, swap)
            at.value = self.space
        self.tile.set("bias", at.value)

    def of_rows(self, rows: Int) -> None:
        """Numbers of the tile's rows in this machine's byte order: each is broadcast as it is."""
        k, swap, none = self.k, self.job.int("swap_bias").differs(0), self.k.const(0)
        for _ in k.when(swap):
            source = self.tile.pointer("bias"), self.job.int("bias_row"), none
            target, shape = (self.space, k.const(self.unit), none), (rows, k.const(1))
            copy_tile(k, self.element, source, target, shape, self.spec.components, swap)
            self.tile.set("bias", self.space)
            self.tile.set("bias_row", self.unit)


class _ComingRows:
    """Fetches the rows of A of the block to come into L2, a share per micropanel.

    Without it the first micropanel of a block waits for memory at every line of A: 2-3 % of a
    1024 x 1024 product (Zen 5, f32).
    """

    def __init__(
        self, k: Kernel, spec: GemmSpec, job: View, span: tuple[Int, Int, Int, Int]
    ) -> None:
        i0, i1, p0, p1 = span
        size = spec.unit
        stored = spec.types.a.bytes * spec.components
        self.k, self.row = k, job.int("source_row")
        ahead = job.int("rows_ahead")
        first = i0 + ahead
        last = k.min(first + (i1 - i0), job.int("m"))
        # Only rows that are contiguous have lines worth fetching whole.
        wanted = (ahead > 0) & (first < last) & job.int("source_col").equals(stored)
        self.rows = k.select(wanted, last - first, k.const(0))
        self.at = job.pointer("a") + first * self.row + p0 * size
        self.bytes = (p1 - p0) * size

    def fetch(self, done: Int, step: Int, total: Int) -> None:
        """The share that belongs to columns ``done .. done + step`` of ``total``."""
        k = self.k
        stop = k.min(done + step, total)
        for r in k.range(self.rows * done // total, self.rows * stop // total):
            for line in k.range(0, self.bytes, _LINE):
                k.prefetch(self.at + r * self.row + line, near=False)
