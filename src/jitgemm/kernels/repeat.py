"""Many small products of one shape: what varies from one to the next is only where they are.

Most of what a small product costs is finding out what it is: which rows and columns, which block of
the depth, first or last.  In a stack the answers are the same for all its products, so they are
found once, and a microkernel runs down the stack.
"""

from __future__ import annotations

from jitgemm.kernels.job import AHEAD, JOB, STEPS, TILE
from jitgemm.kernels.micro import microkernel
from jitgemm.kernels.spec import Bias, GemmSpec
from jitgemm.lang.core import Function, Int, Kernel, Ptr, parameters

__all__ = ["TOGETHER", "repeat"]

TOGETHER = 8
"""Products whose microtiles take turns: all of them stay in L1 meanwhile."""
# 9 x 9 f32, one tile each, N at a time: 1 21.5 ns, 2 19.3, 4 18.0, 8 17.5, 16 18.0; 16 x 16 fetched
# early from beyond L3: 89, 85, 81, 71, 81 (one thread, Zen 5, lowest of 80 runs, 2026-11-30).
_LINE = 64


def repeat(spec: GemmSpec) -> Function:
    """``count`` small products of one shape, ``steps`` apart; the job describes the first.

    For those whose depth is one block, whose operands are all read and written where they are, and
    whose columns are one micropanel or go one micropanel at a time.
    """
    bias, beta = spec.epilogue.bias, spec.epilogue.beta
    heights = [r for panels, r in spec.tile.variants() if panels == 1]

    def body(k: Kernel, job_at: Ptr, steps_at: Ptr, count: Int) -> None:
        job, steps = JOB.view(k, job_at), STEPS.view(k, steps_at)
        tile = TILE.view(k, k.scratch(TILE.size))
        m, n, depth, tile_rows = (job.int(x) for x in ("m", "n", "k_groups", "tile_rows"))
        tile.set("first", 1)
        tile.set("last", 1)
        tile.set("next_row", 0)
        fields = ["a", "b", "d", *["c"] * beta, *["bias"] * (bias is not Bias.NONE)]
        for field in fields:
            tile.set(f"next_{field}", steps.int(field))
        for field in fields[2:]:
            tile.set("target_row" if field == "d" else f"{field}_row", job.int(f"{field}_row"))

        def place(field: str, first: Int, i: Int, j: Int) -> Ptr:
            """Where row ``i`` and column ``j`` of an operand of product ``first`` are."""
            start = job.pointer(field) + first * steps.int(field)
            if field == "bias" and bias is Bias.COLUMN:
                return start + j // spec.parts * job.int("bias_col")
            start = start + i * job.int(f"{field}_row")
            return start + j // spec.parts * job.int(f"{field}_col")

        for first in k.range(0, count, TOGETHER):
            some = k.min(TOGETHER, count - first)
            tile.set("count", some)
            for field in AHEAD:
                size = steps.int(f"ahead_{field}") * some
                coming = job.pointer(field) + (first + TOGETHER) * steps.int(field)
                for line in k.range(0, size, _LINE):
                    k.prefetch(coming + line, write=field == "d")
            for j in k.range(0, n, spec.nr):
                b = place("b", first, k.const(0), j)
                tile.set("cols", k.min(spec.nr, n - j))
                for i in k.range(0, m, tile_rows):
                    tile.set("target", place("d", first, i, j))
                    if beta:
                        tile.set("c", place("c", first, i, j))
                    if bias is not Bias.NONE:
                        tile.set("bias", place("bias", first, i, j))
                    a = place("a", first, i, k.const(0))
                    for rows in k.cases(k.min(tile_rows, m - i), heights):
                        # The microkernel moves the row on; it starts anew here.
                        if spec.epilogue.program is not None:
                            tile.set("row", i)
                            tile.set("col", j)
                        k.call(microkernel(spec, 1, rows), job_at, tile.ptr, a, b, depth)

    return Function(f"{spec.symbol}_repeat", parameters("job* steps* count"), body)
