"""Few rows times a large row-major B: sweep along the rows of B instead of down its columns.

Walking down a micropanel of an unpacked B touches a few lines per row and then jumps by a row; no
prefetcher follows, and each page is left after a few lines.  A sweep takes eight rows of B side
by side and runs along them, so memory sees eight long streams.  The sums of a window of columns
rest in a buffer that stays in L1.  Each element is still one ascending chain per depth block, so
the bits are those of every other route.
"""

from __future__ import annotations

from jitgemm.kernels.cursor import TileCursor, TileMoves
from jitgemm.kernels.epilogue import finish
from jitgemm.kernels.job import BLOCK, JOB, TILE
from jitgemm.kernels.spec import GemmSpec
from jitgemm.lang.core import Function, Int, IntLike, Kernel, Ptr, Var, Vec, parameters
from jitgemm.lang.record import View

__all__ = ["STREAMED_ROWS", "row_streaming", "window"]

STREAMED_ROWS = 2
"""Most rows of A: with three, tiles that share each load of B among rows are as fast."""
# Rows of B side by side: 2 to 8 streams measured alike, 16 slower (Zen 5, 2026-11-30).
_MOST_STREAMS = 8
# Each has a splat per row of A: a quarter of the registers with one row, all of them with four.
_REGISTERS_PER_STREAM = 4
# Lines taken from a stream at a time: caches fetch pairs of them.  Software prefetches gain
# nothing (4096 x 4096 f32, Zen 5, 2026-11-30: 20-22 GFLOP/s with and without; tiles 10-13).
_VECTORS = 2
_WINDOW_BYTES = 16 << 10


def window(spec: GemmSpec, rows: int) -> int:
    """Columns whose sums rest in L1 at a time, in reals."""
    return _WINDOW_BYTES // (rows * spec.unit) // spec.nr * spec.nr


def _streams(spec: GemmSpec, rows: int) -> int:
    registers = spec.isa.vector_registers
    most = max(1, min(_MOST_STREAMS, registers // _REGISTERS_PER_STREAM))
    while most > 1 and rows * spec.components * (most + 1) + 1 > registers:
        most //= 2
    return most


class _Window:
    """The sums of a window of columns, and the walk over it."""

    def __init__(self, k: Kernel, spec: GemmSpec, rows: int, cols: Int) -> None:
        self.k, self.spec, self.cols = k, spec, cols
        self.reals = rows * spec.components
        self.stride = window(spec, rows) * spec.element.bytes
        self.sums = k.scratch(self.reals * self.stride)
        self.whole = cols // spec.lanes * spec.lanes

    def clear(self) -> None:
        spec = self.spec
        zero = self.k.zero(spec.element, spec.lanes)
        for j in self.k.range(0, self.cols, spec.lanes):
            for i in range(self.reals):
                self.k.store(self.sums + i * self.stride + j * spec.element.bytes, zero)

    def add(self, a: tuple[Ptr, Int, Int], b: tuple[Ptr, Int], streams: int) -> None:
        """Add ``streams`` depth steps to every sum."""
        k, spec = self.k, self.spec
        (at_a, a_row, a_col), (at_b, b_row) = a, b
        # Numbers of B are upconverted as they come.
        size, stored = spec.element.bytes, spec.panel_element
        splats = [
            [
                k.splat(
                    k.load(
                        at_a
                        + i // spec.components * a_row
                        + q * a_col
                        + i % spec.components * size,
                        spec.element,
                    ),
                    spec.lanes,
                )
                for i in range(self.reals)
            ]
            for q in range(streams)
        ]
        lines = [at_b + q * b_row for q in range(streams)]

        def vectors(j: Int, count: int, cols: Int | None) -> None:
            width = spec.lanes * size
            cells = [
                [self.sums + i * self.stride + j * size + v * width for i in range(self.reals)]
                for v in range(count)
            ]
            sums = [[k.load(c, spec.element, spec.lanes) for c in row] for row in cells]
            for q in range(streams):
                line = lines[q] + j * stored.bytes
                for v in range(count):
                    if cols is None:
                        b = k.load(line + v * spec.lanes * stored.bytes, stored, spec.lanes)
                    else:
                        # Lanes without a column repeat the last: they raise no flag of their own.
                        last = k.splat(
                            k.load(lines[q] + (self.cols - 1) * stored.bytes, stored), spec.lanes
                        )
                        mask = k.mask(cols, stored, spec.lanes)
                        b = k.load(line, stored, spec.lanes, mask, last)
                    b = k.convert(b, spec.element)
                    for i in range(self.reals):
                        sums[v][i] = k.op("madd", splats[q][i], b, sums[v][i])
            for row, values in zip(cells, sums, strict=True):
                for cell, value in zip(row, values, strict=True):
                    k.store(cell, value)

        step = _VECTORS * spec.lanes
        wide = self.cols // step * step
        for j in k.range(0, wide, step):
            vectors(j, _VECTORS, None)
        for j in k.range(wide, self.whole, spec.lanes):
            vectors(j, 1, None)
        for _ in k.when(self.whole < self.cols):
            vectors(self.whole, 1, self.cols - self.whole)

    def finish(self, job: View, tile: View) -> None:
        """Hand the sums to the epilogue, a vector of columns at a time."""
        k, spec = self.k, self.spec
        rest = tile.pointer("partial")
        size, moves = spec.element.bytes, TileMoves(spec, tile)

        def vector(j: Int, cols: Int | None) -> None:
            sums: dict[tuple[int, int], Var[Vec]] = {
                (i, 0): k.var(
                    k.load(self.sums + i * self.stride + j * size, spec.element, spec.lanes)
                )
                for i in range(self.reals)
            }
            if spec.spills_to_buffer:
                # Sums that wait for later depth blocks are wider than the result.
                tile.set("partial", rest + j * size)
            finish(k, spec, (job, tile), sums, cols)
            moves.right(spec.lanes)

        for j in k.range(0, self.whole, spec.lanes):
            vector(j, None)
        for _ in k.when(self.whole < self.cols):
            vector(self.whole, self.cols - self.whole)


def row_streaming(spec: GemmSpec) -> Function:
    """All rows of a product with few over one block: windows of columns, depth block by block."""

    def body(k: Kernel, job_at: Ptr, tile_at: Ptr, block_at: Ptr) -> None:
        job, tile, block = JOB.view(k, job_at), TILE.view(k, tile_at), BLOCK.view(k, block_at)
        j0, j1, p0, p1 = (block.int(x) for x in ("j0", "j1", "p0", "p1"))
        a, b = block.pointer("a"), block.pointer("b")
        depth, b_row, a_col = (job.int(x) for x in ("k_groups", "b_row", "a_col"))
        cursor, length = TileCursor(k, spec, (job, tile)), spec.element.depth_block
        cursor.set_strides()
        waiting = k.scratch(_WINDOW_BYTES) if spec.spills_to_buffer else None
        for rows in k.cases(job.int("m"), list(range(1, STREAMED_ROWS + 1))):
            width = window(spec, rows)
            for j in k.range(j0, j1, width):
                tile.set("cols", k.min(width, j1 - j))
                for p in k.range(p0, p1, length):
                    end = k.min(p + length, p1)
                    cursor.to(k.const(0), j)
                    tile.set("first", k.select(p.equals(0), k.const(1), k.const(0)))
                    tile.set("last", k.select(end >= depth, k.const(1), k.const(0)))
                    if waiting is not None:
                        tile.set("partial", waiting)
                        tile.set("partial_row", width * spec.element.bytes)
                    at_b = b + (j - j0) * spec.panel_element.bytes + (p - p0) * b_row
                    at_a = a + (p - p0) * a_col
                    k.call(_depth_block(spec, rows), job_at, tile_at, at_a, at_b, end - p)

    return Function(f"{spec.symbol}_streaming", parameters("job* tile* block*"), body)


def _depth_block(spec: GemmSpec, rows: int) -> Function:
    """The function that adds one depth block to ``rows`` rows of the tile's columns."""

    def body(k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, b: Ptr, depth: Int) -> None:
        job, tile = JOB.view(k, job_at), TILE.view(k, tile_at)
        view = _Window(k, spec, rows, tile.int("cols"))
        a_row, a_col, b_row = job.int("a_row"), job.int("a_col"), job.int("b_row")
        streams = _streams(spec, rows)
        whole = depth // streams * streams
        view.clear()

        def steps(start: IntLike, stop: IntLike, streams: int) -> None:
            for p in k.range(start, stop, streams):
                view.add((a + p * a_col, a_row, a_col), (b + p * b_row, b_row), streams)

        steps(0, whole, streams)
        steps(whole, depth, 1)
        view.finish(job, tile)

    return Function(f"{spec.symbol}_streaming_{rows}", parameters("job* tile* a* b* depth"), body)
