"""A small result with a deep sum: the depth is shared among threads.

``X.T @ X`` with a million rows has no more than a few tiles of result to hand out, and walking one
tile at a time down all of ``k`` reads X from memory once per tile.  Here a ticket is a range of
depth: for every depth block the sums of the whole result are stored apart, and tickets of a second
kind add them, block after block in ascending order.  So the bits are those of every other route.
Rounds bound the memory block sums take.
"""

from __future__ import annotations

from jitgemm.kernels.cursor import TileCursor
from jitgemm.kernels.epilogue import conclude
from jitgemm.kernels.job import JOB, TILE
from jitgemm.kernels.macro import call_block, macrokernel
from jitgemm.kernels.operands import pack_b
from jitgemm.kernels.spec import BSource, GemmSpec
from jitgemm.kernels.tickets import drain, span
from jitgemm.lang.core import Cond, Function, Int, IntLike, Kernel, Ptr, parameters
from jitgemm.lang.record import View

__all__ = ["split"]

_WORD = 8
# More depth than any product has: the block at hand is never the last one, so nothing is finished.
_ENDLESS = 1 << 60


def _sums(spec: GemmSpec) -> Function:
    """The sums of the depth blocks ``first .. last``, each where it belongs."""
    run_block, packer = macrokernel(spec), pack_b(spec)
    block = spec.element.depth_block

    def body(k: Kernel, job_at: Ptr, thread: Int, first: Int, last: Int, target: Ptr) -> None:
        job = JOB.view(k, job_at)
        own = JOB.view(k, k.scratch(JOB.size))
        for at in k.range(0, JOB.size, _WORD):
            k.store_int(own.ptr + at, k.load_int(job_at + at))
        fields: dict[str, IntLike] = {
            "d_row": job.int("sums_row"), "d_col": spec.unit, "direct": 1, "pack_a": 0,
            "rows_ahead": 0, "depth_step": block, "k_groups": _ENDLESS,
        }  # fmt: skip
        for name, value in fields.items():
            own.set(name, value)
        m, n, depth, zero = job.int("m"), job.int("n"), job.int("k_groups"), k.const(0)
        a_col, b_row = job.int("a_col"), job.int("b_row")
        packed = job.pointer("packed") + thread * job.int("workspace_b_stride")
        for q in k.range(first, last):
            p0 = q * block
            p1 = k.min(p0 + block, depth)
            own.set("d", target + (q - first) * job.int("sums_stride"))
            b = job.pointer("b") + p0 * b_row
            if spec.b is BSource.PACKED:
                k.call(packer, job_at, packed, zero, n, p0, p1)
                b = packed
            a = job.pointer("a") + p0 * a_col
            call_block(k, run_block, own, (a, b), (zero, m, zero, n, zero, p1 - p0))

    params = parameters("job* thread first last target*")
    return Function(f"{spec.symbol}_split_sums", params, body)


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
        self.k, self.spec, self.count = k, spec, count
        self.first, self.last = ends
        self.job, self.tile = job, TILE.view(k, k.scratch(TILE.size))
        self.stride, self.row = job.int("sums_stride"), job.int("sums_row")
        self.blocks = job.pointer("workspace_a")
        self.earlier = self.blocks + job.int("round_blocks") * self.stride
        self.cursor = TileCursor(k, spec, (job, self.tile))
        self.cursor.set_strides()
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
