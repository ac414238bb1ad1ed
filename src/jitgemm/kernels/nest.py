"""The loop nest: five loops around the microkernel, compiled as one function per spec.

    for jc in blocks of columns            (what is packed at a time)
      for pc in slices of depth
        [pack B]                           tickets of the packing phase
        for ic, jr-range in chunks         tickets of the product phase
          [pack rows of A]
          for jr in micropanels
            for ir in microtiles
              for each depth block: microkernel

Threads share it by tickets (``kernels.tickets``).
"""

from __future__ import annotations

from jitgemm.isa.types import F64, I32, ElementType
from jitgemm.kernels.job import JOB, TILE
from jitgemm.kernels.matrix import matrix_microkernel, record_bytes, unit_state
from jitgemm.kernels.micro import microkernel
from jitgemm.kernels.operands import pack_a, pack_b
from jitgemm.kernels.quantised import sums_at
from jitgemm.kernels.spec import MOST_ROWS, Bias, BSource, GemmSpec, Scale
from jitgemm.kernels.sweep import SWEEP_ROWS, sweep_function, window
from jitgemm.kernels.tickets import drain, span
from jitgemm.kernels.tilecopy import copy_tile
from jitgemm.kernels.turned import turned_tile
from jitgemm.kernels.words import widen_panel
from jitgemm.lang.core import Function, Int, Kernel, Ptr, parameters
from jitgemm.lang.record import View

__all__ = ["chunk", "nest", "serial"]

_LINE = 64
_ROWS_BITS = MOST_ROWS + 1  # variant number = panels * 64 + rows


def _tile(spec: GemmSpec) -> Function:
    """One microtile over the depth ``p0 .. p1``, block by block.

    An output without unit column stride, and one that is also the C of ``beta * C``, cannot hold
    sums between blocks: they rest in a small tile buffer instead.
    """
    variants = spec.tile.variants()
    widest = max(panels * spec.tile_row for panels, _ in variants)
    tile_bytes = widest * spec.tile.mr
    types = spec.types

    def body(
        k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, b: Ptr, variant: Int, p0: Int, p1: Int
    ) -> None:
        if spec.b is not BSource.COLUMNS:
            by_blocks(k, job_at, tile_at, a, b, variant, p0, p1)
            return
        # The panel's walk knows of depth blocks itself, and takes the whole depth.
        job, tile = JOB.view(k, job_at), TILE.view(k, tile_at)
        tile.set("first", 1)
        tile.set("last", k.select(p1 >= job.int("k_groups"), k.const(1), k.const(0)))
        for number in k.cases(variant, [g * _ROWS_BITS + r for g, r in variants]):
            for apart in k.branches(job.int("staggered").equals(1)):
                walk = turned_tile(spec, number % _ROWS_BITS, apart=apart)
                k.call(walk, job_at, tile_at, a, b, p1 - p0)

    def by_blocks(
        k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, b: Ptr, variant: Int, p0: Int, p1: Int
    ) -> None:
        records = JOB.view(k, job_at), TILE.view(k, tile_at)
        block = spec.element.depth_block
        b_row = k.const(spec.panel_row) if spec.b is BSource.PACKED else records[0].int("b_row")
        a_col = records[0].int("a_col")
        for p in k.range(p0, k.select(p1 > p0, p1, p0 + 1), block):
            at = a + (p - p0) * a_col, b + (p - p0) * b_row
            one_block(k, records, at, variant, (p, k.min(p + block, p1)))

    def one_block(
        k: Kernel, records: tuple[View, View], at: tuple[Ptr, Ptr], variant: Int,
        depth: tuple[Int, Int],
    ) -> None:  # fmt: skip
        """Add one depth block to the tile."""
        (job, tile), (p, end) = records, depth
        tile.set("first", k.select(p.equals(0), k.const(1), k.const(0)))
        tile.set("last", k.select(end >= job.int("k_groups"), k.const(1), k.const(0)))
        if spec.tiles:
            for panels in k.cases(variant // _ROWS_BITS, [p for p, _ in spec.tile.groups]):
                micro = matrix_microkernel(spec, panels)
                height = variant % _ROWS_BITS
                k.call(micro, job.ptr, tile.ptr, *at, height, end - p)
            return
        for number in k.cases(variant, [g * _ROWS_BITS + r for g, r in variants]):
            panels, rows = divmod(number, _ROWS_BITS)
            k.call(microkernel(spec, panels, rows), job.ptr, tile.ptr, *at, end - p)

    def buffered(
        k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, b: Ptr, variant: Int, p0: Int, p1: Int
    ) -> None:
        job, tile = JOB.view(k, job_at), TILE.view(k, tile_at)
        buffer = k.scratch(tile_bytes)
        row_stride = k.const(widest)
        shape = (variant % _ROWS_BITS, tile.int("cols") // spec.parts)
        out = (tile.pointer("target"), job.int("d_row"), job.int("d_col"))
        tile.set("partial", buffer)
        tile.set("partial_row", row_stride)
        tile.set("target", buffer)
        tile.set("target_row", row_stride)

        def bring(name: str, kind: ElementType) -> None:
            space = k.scratch(tile_bytes)
            source = (tile.pointer(name), job.int(f"{name}_row"), job.int(f"{name}_col"))
            swap = job.int(f"swap_{name}").differs(0)
            unit = k.const(spec.parts * kind.bytes)
            copy_tile(k, kind, source, (space, row_stride, unit), shape, spec.parts, swap)
            tile.set(name, space)
            tile.set(f"{name}_row", row_stride)

        if spec.epilogue.beta:
            bring("c", types.c)
        if spec.epilogue.bias is Bias.FULL:
            bring("bias", types.bias)
        k.call(direct, job_at, tile_at, a, b, variant, p0, p1)
        swap, unit = job.int("swap_d").differs(0), k.const(spec.parts * types.out.bytes)
        copy_tile(k, types.out, (buffer, row_stride, unit), out, shape, spec.parts, swap)

    def resting(
        k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, b: Ptr, variant: Int, p0: Int, p1: Int
    ) -> None:
        tile = TILE.view(k, tile_at)
        tile.set("partial", k.scratch(tile_bytes))
        tile.set("partial_row", widest)
        by_blocks(k, job_at, tile_at, a, b, variant, p0, p1)

    params = parameters("job* tile* a* b* variant p0 p1")
    direct = Function(f"{spec.symbol}_tile", params, resting if spec.rests_apart else body)
    through = Function(f"{spec.symbol}_tile_buffered", params, buffered)

    def choose(
        k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, b: Ptr, variant: Int, p0: Int, p1: Int
    ) -> None:
        job, tile = JOB.view(k, job_at), TILE.view(k, tile_at)
        for plain in k.branches(job.int("direct").equals(1)):
            if not plain:
                k.call(through, job_at, tile_at, a, b, variant, p0, p1)
                continue
            if spec.b is BSource.COLUMNS or spec.rests_apart:
                k.call(direct, job_at, tile_at, a, b, variant, p0, p1)
                continue
            # Most tiles of small products are one depth block: one call less counts there.
            for single in k.branches(p1 - p0 <= spec.element.depth_block):
                if single:
                    one_block(k, (job, tile), (a, b), variant, (p0, p1))
                else:
                    k.call(direct, job_at, tile_at, a, b, variant, p0, p1)

    return Function(f"{spec.symbol}_tile_any", params, choose)


class _ComingRows:
    """Fetches the rows of A of the chunk to come into L2, a share per micropanel.

    Without it the first micropanel of a chunk waits for memory at every line of A: 2-3 % of a
    1024 x 1024 product (Zen 5, f32).
    """

    def __init__(
        self, k: Kernel, spec: GemmSpec, job: View, span: tuple[Int, Int, Int, Int]
    ) -> None:
        i0, i1, p0, p1 = span
        size = spec.unit
        stored = spec.types.a.bytes * spec.parts
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


def _sweep(spec: GemmSpec) -> Function:
    """All rows of a product with few, columns ``j0 .. j1``: windows of columns, block by block."""

    def body(
        k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, b: Ptr, j0: Int, j1: Int, p0: Int, p1: Int
    ) -> None:
        job, tile = JOB.view(k, job_at), TILE.view(k, tile_at)
        size, block = spec.element.bytes, spec.element.depth_block
        depth, b_row, a_col, d_row = (job.int(x) for x in ("k_groups", "b_row", "a_col", "d_row"))
        for rows in k.cases(job.int("m"), list(range(1, SWEEP_ROWS + 1))):
            width = window(spec, rows)
            for j in k.range(j0, j1, width):
                tile.set("cols", k.min(width, j1 - j))
                for p in k.range(p0, p1, block):
                    end = k.min(p + block, p1)
                    target = job.pointer("d") + j * size
                    for name in ("partial", "target"):
                        tile.set(name, target)
                        tile.set(f"{name}_row", d_row)
                    if spec.epilogue.beta:
                        tile.set("c", job.pointer("c") + j * size)
                        tile.set("c_row", job.int("c_row"))
                    if spec.epilogue.bias is not Bias.NONE:
                        along = 0 if spec.epilogue.bias is Bias.ROW else j * size
                        tile.set("bias", job.pointer("bias") + along)
                        tile.set("bias_row", job.int("bias_row"))
                    if spec.epilogue.program is not None:
                        tile.set("row", 0)
                        tile.set("col", j)
                    tile.set("first", k.select(p.equals(0), k.const(1), k.const(0)))
                    tile.set("last", k.select(end >= depth, k.const(1), k.const(0)))
                    at_b = b + (j - j0) * size + (p - p0) * b_row
                    at_a = a + (p - p0) * a_col
                    k.call(sweep_function(spec, rows), job_at, tile_at, at_a, at_b, end - p)

    params = parameters("job* tile* a* b* j0 j1 p0 p1")
    return Function(f"{spec.symbol}_sweep", params, body)


def chunk(spec: GemmSpec) -> Function:
    """Rows ``i0 .. i1`` by columns ``j0 .. j1`` over the depth ``p0 .. p1``: the macrokernel."""
    run_tile, along = _tile(spec), _sweep(spec)
    bias_kind = spec.epilogue.bias
    widest = max(panels * spec.tile_row for panels, _ in spec.tile.groups)
    number = spec.types.bias
    unit = spec.parts * number.bytes

    def bias_of_columns(k: Kernel, job: View, j: Int, cols: Int, buffer: Ptr) -> Ptr:
        """One number per column from ``j`` on, side by side."""
        stride, swap = job.int("bias_col"), job.int("swap_bias").differs(0)
        at = k.var(job.pointer("bias") + j // spec.parts * stride)
        for _ in k.when(stride.differs(unit) | swap):
            none, shape = k.const(0), (k.const(1), cols // spec.parts)
            source, target = (at.value, none, stride), (buffer, none, k.const(unit))
            copy_tile(k, number, source, target, shape, spec.parts, swap)
            at.value = buffer
        return at.value

    def bias_of_rows(k: Kernel, job: View, tile: View, rows: Int, buffer: Ptr) -> None:
        """Numbers of the tile's rows in this machine's byte order: each is broadcast as it is."""
        swap, none = job.int("swap_bias").differs(0), k.const(0)
        for _ in k.when(swap):
            source = tile.pointer("bias"), job.int("bias_row"), none
            target = buffer, k.const(unit), none
            copy_tile(k, number, source, target, (rows, k.const(1)), spec.parts, swap)
            tile.set("bias", buffer)
            tile.set("bias_row", unit)

    def body(
        k: Kernel, job_at: Ptr, a: Ptr, b: Ptr, i0: Int, i1: Int, j0: Int, j1: Int, p0: Int, p1: Int
    ) -> None:
        job = JOB.view(k, job_at)
        tile_at = k.scratch(record_bytes(spec))
        tile = TILE.view(k, tile_at)
        buffer = k.scratch(max(widest, spec.tile.mr * unit))
        tile_rows, group = job.int("tile_rows"), job.int("group")
        d_row, d_col = job.int("d_row"), job.int("d_col")
        a_tile = job.int("a_tile")
        b_panel, step = job.int("panel_stride"), job.int("depth_step")
        b_row = k.const(spec.panel_row) if spec.b is BSource.PACKED else job.int("b_row")
        a_col = job.int("a_col")
        kept_row = spec.in_memory.panel_row if spec.b is BSource.PACKED else b_row
        # What to fetch early: the part of this panel below, or the same part of the next panel.
        ahead = k.select(p1 - p0 > step, step * kept_row, b_panel)
        d = job.pointer("d")
        c_name = "c" if spec.epilogue.beta else "d"
        c, c_row, c_col = job.pointer(c_name), job.int(f"{c_name}_row"), job.int(f"{c_name}_col")
        # Whole groups of micropanels first, then one by one.
        cols = j1 - j0
        panels = k.ceil_div(cols, spec.nr) if spec.partial_groups else cols // spec.nr
        grouped = k.min(panels // group * group * spec.nr, j1 - j0)

        coming = _ComingRows(k, spec, job, (i0, i1, p0, p1))
        count, together = k.var(k.const(1)), k.var(tile_rows)
        if spec.b is BSource.INPLACE:
            # Down the rows, tiles of one depth block differ in nothing but their place.
            whole_depth = p0.equals(0) & p1.equals(job.int("k_groups")) & (p1 - p0 <= step)
            alike = job.int("direct").equals(1) & (p1 <= spec.element.depth_block) & whole_depth
            if bias_kind is Bias.ROW:
                alike = alike & job.int("swap_bias").equals(0)
            for _ in k.when(alike & (i1 - i0 >= 2 * tile_rows)):
                count.value = (i1 - i0) // tile_rows
                together.value = count.value * tile_rows
                down = {"a": a_tile, "c": tile_rows * c_row, "d": tile_rows * d_row}
                if bias_kind is not Bias.NONE:
                    stays = bias_kind is Bias.COLUMN
                    down["bias"] = k.const(0) if stays else tile_rows * job.int("bias_row")
                for name, by in {**down, "b": k.const(0), "row": tile_rows}.items():
                    tile.set(f"next_{name}", by)

        def numbers_of(operands: tuple[Ptr, Ptr], where: tuple[Int, Int, Int]) -> None:
            """Zero points, sums and scales of a tile of integers at ``(row, column, depth)``."""
            (panel, row), (i, j, p) = operands, where
            epilogue, words = spec.epilogue, job.int("k_groups")
            if epilogue.zero_a:
                tile.set("zero_a", job.pointer("zero_a") + i * job.int("zero_a_row"))
                tile.set("col_sums", sums_at(spec, panel, words))
            if epilogue.zero_b:
                tile.set("zero_b", job.pointer("zero_b") + j * I32.bytes)
                tile.set("row_sums", row + (words - p) * a_col)
            if epilogue.scale is Scale.ROW:
                tile.set("scales", job.pointer("scales") + i * job.int("scale_row"))
            elif epilogue.scale is Scale.COLUMN:
                tile.set("scales", job.pointer("scales") + j * F64.bytes)

        def over(start: Int, stop: Int, width: Int, panels_at_once: Int) -> None:
            for j in k.range(start, stop, width):
                panel = b + (j - j0) // spec.nr * b_panel
                coming.fetch(j - j0, width, j1 - j0)
                tile.set("cols", k.min(width, j1 - j))
                if bias_kind is Bias.COLUMN:
                    tile.set("bias", bias_of_columns(k, job, j, tile.int("cols"), buffer))
                # At least one round: without depth there still is an epilogue.
                for p in k.range(p0, k.select(p1 > p0, p1, p0 + 1), step):
                    end = k.min(p + step, p1)
                    kept, at_a = panel + (p - p0) * kept_row, a + (p - p0) * a_col
                    at_b = kept
                    if spec.widens_panels:
                        at_b = a + job.int("upconverted_at")
                        k.call(widen_panel(spec), kept, at_b, end - p)
                    rows_of_a, odd = k.var(at_a), k.var(k.const(0))
                    for i in k.range(i0, i1, together.value):
                        if spec.b is BSource.INPLACE:
                            run = k.select(i + together.value <= i1, count.value, k.const(1))
                            tile.set("count", run)
                        target = d + i * d_row + j // spec.parts * d_col
                        tile.set("partial", target)
                        tile.set("partial_row", d_row)
                        tile.set("target", target)
                        tile.set("target_row", d_row)
                        if spec.epilogue.beta:
                            tile.set("c", c + i * c_row + j // spec.parts * c_col)
                            tile.set("c_row", c_row)
                        if bias_kind in (Bias.ROW, Bias.FULL):
                            row = job.pointer("bias") + i * job.int("bias_row")
                            tile.set("bias", row + j // spec.parts * job.int("bias_col"))
                            tile.set("bias_row", job.int("bias_row"))
                        if spec.epilogue.program is not None:
                            tile.set("row", i)
                            tile.set("col", j)
                        if spec.element.integral:
                            numbers_of((panel, rows_of_a.value), (i, j, p))
                        rows = k.min(tile_rows, i1 - i)
                        if bias_kind is Bias.ROW:
                            bias_of_rows(k, job, tile, rows, buffer)
                        half = odd.value * ((end - p) * spec.in_memory.panel_row // 2)
                        tile.set("ahead", kept + ahead + half)
                        variant = panels_at_once * _ROWS_BITS + rows
                        k.call(run_tile, job_at, tile_at, rows_of_a.value, at_b, variant, p, end)
                        rows_of_a.value = rows_of_a.value + count.value * a_tile
                        odd.value = 1 - odd.value

        def tiles() -> None:
            if spec.tiles:
                tile.set("shape", 0)
            over(j0, j0 + grouped, group * spec.nr, group)
            over(j0 + grouped, j1, k.const(spec.nr), k.const(1))
            if spec.tiles:
                k.release_tiles(unit_state(spec, tile))

        if spec.b is not BSource.INPLACE:
            tiles()
            return
        for sweeps in k.branches(job.int("row_streaming").equals(1)):
            if sweeps:
                k.call(along, job_at, tile_at, a, b, j0, j1, p0, p1)
            else:
                tiles()

    params = parameters("job* a* b* i0 i1 j0 j1 p0 p1")
    return Function(f"{spec.symbol}_chunk", params, body)


def nest(spec: GemmSpec) -> Function:
    """The whole product, drained by any number of threads: ``nest(job, thread)``."""
    run_chunk, packer, packer_a = chunk(spec), pack_b(spec), pack_a(spec)

    def product(k: Kernel, job: View, thread: Int, ticket: Int, block: tuple[Int, ...]) -> None:
        jc0, jc1, p0, p1, slice_at = block
        row_chunk, col_chunk = ticket // job.int("col_chunks"), ticket % job.int("col_chunks")
        i0, i1 = span(k, row_chunk, job.int("rows_per_chunk"), job.int("m"))
        j0 = jc0 + col_chunk * job.int("cols_per_chunk")
        j1 = k.min(j0 + job.int("cols_per_chunk"), jc1)
        own = job.pointer("a") + i0 * job.int("source_row") + p0 * job.int("source_col")
        if spec.b is BSource.PACKED:
            base = job.pointer("packed") + slice_at
            b = base + (j0 - k.select(job.int("pack_chunks") > 0, jc0, k.const(0))) \
                // spec.nr * job.int("panel_stride")  # fmt: skip
        else:
            b = job.pointer("b") + j0 // spec.parts * job.int("b_col") + p0 * job.int("b_row")
        for _ in k.when((i0 < i1) & (j0 < j1)):
            a = k.var(own)
            for _ in k.when(job.int("pack_a") > 0):
                a.value = job.pointer("workspace_a") + thread * job.int("workspace_a_stride")
                k.call(packer_a, job.ptr, own, a.value, i1 - i0, p1 - p0)
            k.call(run_chunk, job.ptr, a.value, b, i0, i1, j0, j1, p0, p1)

    def body(k: Kernel, job_at: Ptr, thread: Int) -> None:
        job = JOB.view(k, job_at)
        slices, pack_chunks = job.int("slices"), job.int("pack_chunks")
        per_slice = pack_chunks + job.int("row_chunks") * job.int("col_chunks")

        def ready(t: Int) -> Int:
            within = t % per_slice
            return t - within + k.select(within < pack_chunks, k.const(0), pack_chunks)

        def work(t: Int) -> None:
            index, within = t // per_slice, t % per_slice
            jc0, jc1 = span(k, index // slices, job.int("cols_per_block"), job.int("n"))
            p0, p1 = span(k, index % slices, job.int("depth_per_slice"), job.int("k_groups"))
            slice_at = p0 * job.int("slice_stride")
            if spec.b is not BSource.PACKED:
                product(k, job, thread, within, (jc0, jc1, p0, p1, slice_at))
                return
            for pack in k.branches(within < pack_chunks):
                if pack:
                    j0 = jc0 + within * job.int("pack_cols")
                    j1 = k.min(j0 + job.int("pack_cols"), jc1)
                    target = job.pointer("packed") + slice_at \
                        + (j0 - jc0) // spec.nr * job.int("panel_stride")  # fmt: skip
                    for _ in k.when(j0 < j1):
                        k.call(packer, job_at, target, j0, j1, p0, p1)
                else:
                    product(k, job, thread, within - pack_chunks, (jc0, jc1, p0, p1, slice_at))

        drain(k, job, per_slice * slices * job.int("blocks"), ready, work)

    params = parameters("job* thread")
    return Function(spec.symbol, params, body)


def serial(spec: GemmSpec) -> Function:
    """The whole product as one chunk, for small products: same arguments as the nest."""
    run_chunk = chunk(spec)

    def body(k: Kernel, job_at: Ptr, thread: Int) -> None:  # noqa: ARG001  # nest's ABI
        job = JOB.view(k, job_at)
        m, n, depth, zero = job.int("m"), job.int("n"), job.int("k_groups"), k.const(0)
        b = job.pointer("packed" if spec.b is BSource.PACKED else "b")
        k.call(run_chunk, job_at, job.pointer("a"), b, zero, m, zero, n, zero, depth)

    return Function(f"{spec.symbol}_serial", parameters("job* thread"), body)
