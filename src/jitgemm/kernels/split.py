"""A small result with a deep sum: the depth is shared among threads.

``X.T @ X`` with a million rows has no more than a few tiles of result to hand out, and walking one
tile at a time down all of ``k`` reads X from memory once per tile.  Here a ticket is a range of
depth: for every depth block the sums of the whole result are stored, and tickets of a second
kind add them, block after block in ascending order.  So the bits are those of every other route.
Rounds bound the memory block sums take.

Of numbers that are no words of sums yet, each thread packs B and copies rows of A a depth block at
a time.  Zero points come off the sums of each block, by the sums of its own rows and columns.
"""

from __future__ import annotations

from dataclasses import replace

from jitgemm.kernels.cursor import TileCursor
from jitgemm.kernels.epilogue import conclude, masks_of
from jitgemm.kernels.job import JOB, TILE
from jitgemm.kernels.macro import call_block, macrokernel
from jitgemm.kernels.operands import pack_a, pack_b
from jitgemm.kernels.quantised import correct, sums_at
from jitgemm.kernels.spec import BSource, GemmSpec
from jitgemm.kernels.tickets import drain, span
from jitgemm.lang.core import Cond, Function, Int, IntLike, Kernel, Ptr, parameters
from jitgemm.lang.record import View

__all__ = ["split"]

_WORD = 8
# More depth than any product has, though its panel still has an address: the block at hand is never
# the last one, so nothing is finished.
_ENDLESS = 1 << 50


class _DepthBlocks:
    """Forms the sums of one depth block after the other, on one thread."""

    def __init__(self, k: Kernel, spec: GemmSpec, job: View, thread: Int) -> None:
        self.k, self.spec, self.job = k, spec, job
        self.own = JOB.view(k, k.scratch(JOB.size))
        for at in k.range(0, JOB.size, _WORD):
            k.store_int(self.own.ptr + at, k.load_int(job.ptr + at))
        fields: dict[str, IntLike] = {
            "d_row": job.int("sums_row"), "d_col": spec.unit, "direct": 1, "pack_a": 0,
            "rows_ahead": 0, "depth_step": spec.element.depth_block, "k_groups": _ENDLESS,
        }  # fmt: skip
        for name, value in fields.items():
            self.own.set(name, value)
        self.packed = job.pointer("packed") + thread * job.int("workspace_b_stride")
        self.copied = self.packed
        if spec.b is BSource.PACKED:
            panels = k.ceil_div(job.int("n"), spec.nr)
            self.copied = self.packed + panels * job.int("panel_stride")

    def form(self, groups: tuple[Int, Int], target: Ptr) -> None:
        """The sums over k-groups ``p0 .. p1``."""
        k, spec, job, (p0, p1) = self.k, self.spec, self.job, groups
        group, zero = spec.arithmetic.group, k.const(0)
        first = p0 * group
        self.own.set("d", target)
        self.own.set("k_numbers", k.min(p1 * group, job.int("k_numbers")) - first)
        b = job.pointer("b") + first * job.int("b_row")
        if spec.b is BSource.PACKED:
            k.call(pack_b(spec), job.ptr, self.packed, zero, job.int("n"), p0, p1)
            b = self.packed
        rows, depth = (zero, job.int("m")), p1 - p0
        if spec.arithmetic.plain:
            self._rows(rows, job.pointer("a") + p0 * job.int("a_col"), b, depth)
            return
        at_once = job.int("copied_rows")
        for copies in k.branches(at_once > 0):
            if not copies:
                self._rows(rows, job.pointer("a") + p0 * job.int("a_col"), b, depth)
                continue
            for i0 in k.range(0, job.int("m"), at_once):
                i1 = k.min(i0 + at_once, job.int("m"))
                a = job.pointer("a") + i0 * job.int("source_row") + first * job.int("source_col")
                k.call(pack_a(spec), self.own.ptr, a, self.copied, i1 - i0, depth)
                self._rows((i0, i1), self.copied, b, depth)

    def _rows(self, rows: tuple[Int, Int], a: Ptr, b: Ptr, depth: Int) -> None:
        """Those of some rows; ``a`` is the first one's."""
        k, spec, zero = self.k, self.spec, self.k.const(0)
        bounds = *rows, zero, self.job.int("n"), zero, depth
        call_block(k, macrokernel(spec), self.own, (a, b), bounds)
        if spec.epilogue.zero_a or spec.epilogue.zero_b:
            k.call(_correction(spec), self.own.ptr, *rows, a, b, depth)


def _sums(spec: GemmSpec) -> Function:
    """The sums of the depth blocks ``first .. last``, each where it belongs."""
    block = spec.element.depth_block

    def body(k: Kernel, job_at: Ptr, thread: Int, first: Int, last: Int, target: Ptr) -> None:
        job = JOB.view(k, job_at)
        blocks = _DepthBlocks(k, spec, job, thread)
        for q in k.range(first, last):
            p0 = q * block
            p1 = k.min(p0 + block, job.int("k_groups"))
            blocks.form((p0, p1), target + (q - first) * job.int("sums_stride"))

    params = parameters("job* thread first last target*")
    return Function(f"{spec.symbol}_split_sums", params, body)


def _correction(spec: GemmSpec) -> Function:
    """Take the zero points off the sums of a depth block, in rows ``i0 .. i1``.

    It has sums of rows and columns of its own, behind its rows of A and its micropanels of B.
    """

    def body(k: Kernel, job_at: Ptr, i0: Int, i1: Int, a: Ptr, b: Ptr, depth: Int) -> None:
        job, tile = JOB.view(k, job_at), TILE.view(k, k.scratch(TILE.size))
        cursor = TileCursor(k, spec, (job, tile))
        element, lanes, n = spec.element, spec.lanes, job.int("n")
        row_sums = a + depth * job.int("a_col")

        def vector(i: Int, j: Int, cols: Int | None) -> None:
            cursor.to(i, j)
            panel = b + j // spec.nr * job.int("panel_stride")
            tile.set("col_sums", sums_at(spec, panel, depth) + j % spec.nr * element.bytes)
            tile.set("row_sums", row_sums + (i - i0) * job.int("a_row"))
            masks = masks_of(k, spec, [0], cols)
            at = job.pointer("d") + i * job.int("d_row") + j * element.bytes
            cell = k.var(k.load(at, element, lanes, masks[0]))
            correct(k, spec, (job, tile), {(0, 0): cell}, masks)
            k.store(at, cell.value, masks[0])

        whole = n // lanes * lanes
        for i in k.range(i0, i1):
            for j in k.range(0, whole, lanes):
                vector(i, j, None)
            for _ in k.when(whole < n):
                vector(i, whole, n - whole)

    return Function(f"{spec.symbol}_split_correct", parameters("job* i0 i1 a* b* depth"), body)


class _BlockSums:
    """Adds the block sums of a round to those before, vector by vector; finishes at the end."""

    def __init__(
        self, k: Kernel, spec: GemmSpec, job: View, ends: tuple[Cond, Cond], count: Int
    ) -> None:
        """Know a round.

        Args:
            k: the backend.
            spec: the kernel.
            job: the job's record.
            ends: whether it is the first round, and whether it is the last.
            count: depth blocks of the round.
        """
        # Zero points are off already.
        ends_with = replace(spec.epilogue, zero_a=False, zero_b=False)
        self.k, self.spec, self.count = k, replace(spec, epilogue=ends_with), count
        self.first, self.last = ends
        self.job, self.tile = job, TILE.view(k, k.scratch(TILE.size))
        self.stride, self.row = job.int("sums_stride"), job.int("sums_row")
        self.blocks = job.pointer("workspace_a")
        self.earlier = self.blocks + job.int("round_blocks") * self.stride
        self.cursor = TileCursor(k, self.spec, (job, self.tile))
        self.cursor.set_strides()
        self.space = k.scratch(spec.lanes * spec.element.bytes)
        """Finished sums that wait for a function, where the result is narrower."""
        self.tile.set("first", 1)
        self.tile.set("last", 1)

    def add(self, i: Int, j: Int, cols: Int | None) -> None:
        """One vector of the result, of which ``cols`` columns exist (``None``: all)."""
        k, element, lanes = self.k, self.spec.element, self.spec.lanes
        mask = None if cols is None else k.mask(cols, element, lanes)
        at = i * self.row + j * element.bytes
        start = k.select(self.first, self.blocks, self.earlier) + at
        total = k.var(k.load(start, element, lanes, mask))
        for s in k.range(k.select(self.first, k.const(1), k.const(0)), self.count):
            block = k.load(self.blocks + s * self.stride + at, element, lanes, mask)
            total.value = k.op("add", total.value, block)
        for ends in k.branches(self.last):
            if not ends:
                k.store(self.earlier + at, total.value, mask)
                continue
            self.cursor.to(i, j)
            if self.spec.spills_to_buffer:
                self.tile.set("partial", self.space)
            conclude(k, self.spec, (self.job, self.tile), {(0, 0): total}, cols)


def _add(spec: GemmSpec) -> Function:
    """Add the block sums of a round to those before, in rows ``i0 .. i1``; finish at the end."""

    def body(k: Kernel, job_at: Ptr, i0: Int, i1: Int, count: Int, first: Int, last: Int) -> None:
        job, lanes = JOB.view(k, job_at), spec.lanes
        sums = _BlockSums(k, spec, job, (first.differs(0), last.differs(0)), count)
        n = job.int("n")
        whole = n // lanes * lanes
        for i in k.range(i0, i1):
            for j in k.range(0, whole, lanes):
                sums.add(i, j, None)
            for _ in k.when(whole < n):
                sums.add(i, whole, n - whole)

    params = parameters("job* i0 i1 count first last")
    return Function(f"{spec.symbol}_split_add", params, body)


def split(spec: GemmSpec) -> Function:
    """The whole product by ranges of depth: same arguments as the nest."""
    sums, add = _sums(spec), _add(spec)
    block = spec.element.depth_block

    def body(k: Kernel, job_at: Ptr, thread: Int) -> None:
        job = JOB.view(k, job_at)
        blocks = k.ceil_div(job.int("k_groups"), block)
        per_round, ranges = job.int("round_blocks"), job.int("ranges")
        tickets = ranges + job.int("row_chunks")
        rounds = k.ceil_div(blocks, per_round)

        def ready(t: Int) -> Int:
            within = t % tickets
            return t - within + k.select(within < ranges, k.const(0), ranges)

        def work(t: Int) -> None:
            index, within = t // tickets, t % tickets
            low, high = span(k, index, per_round, blocks)
            for summing in k.branches(within < ranges):
                if summing:
                    first = low + within * job.int("range_blocks")
                    last = k.min(first + job.int("range_blocks"), high)
                    stride = job.int("sums_stride")
                    target = job.pointer("workspace_a") + (first - low) * stride
                    k.call(sums, job_at, thread, first, last, target)
                else:
                    i0, i1 = span(k, within - ranges, job.int("rows_per_chunk"), job.int("m"))
                    ends = k.select((index + 1).equals(rounds), k.const(1), k.const(0))
                    begins = k.select(index.equals(0), k.const(1), k.const(0))
                    k.call(add, job_at, i0, i1, high - low, begins, ends)

        total = tickets * rounds
        drain(k, job.pointer("counters"), total, ready, work)

    return Function(f"{spec.symbol}_split", parameters("job* thread"), body)
