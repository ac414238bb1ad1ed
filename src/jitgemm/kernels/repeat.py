"""Many small products of one shape: what varies from one to the next is only where they are.

Most of what a small product costs is finding out what it is: which rows and columns, which block of
the depth, first or last.  In a stack the answers are the same for all its products, so they are
found once, and a microkernel runs down the stack.
"""

from __future__ import annotations

from jitgemm.kernels.cursor import TileCursor
from jitgemm.kernels.job import AHEAD, JOB, STEPS, TILE
from jitgemm.kernels.micro import microkernel
from jitgemm.kernels.spec import GemmSpec
from jitgemm.lang.core import Function, Int, Kernel, Ptr, parameters
from jitgemm.lang.record import View

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
    heights = [r for panels, r in spec.tile.variants() if panels == 1]

    def body(k: Kernel, job_at: Ptr, steps_at: Ptr, count: Int) -> None:
        job, steps = JOB.view(k, job_at), STEPS.view(k, steps_at)
        tile = TILE.view(k, k.scratch(TILE.size))
        m, n, depth, tile_rows = (job.int(x) for x in ("m", "n", "k_groups", "tile_rows"))
        a_row, b_col = job.int("a_row"), job.int("b_col")
        cursor = TileCursor(k, spec, (job, tile))
        cursor.set_strides()
        for name in ("first", "last"):
            tile.set(name, 1)
        for name in ("a", "b", *(x.name for x in cursor.followers)):
            tile.set(f"next_{name}", steps.int(name))
        tile.set("next_row", 0)
        for first in k.range(0, count, TOGETHER):
            some = k.min(TOGETHER, count - first)
            tile.set("count", some)
            _fetch(k, job, steps, (first, some))
            moved = {x.name: first * steps.int(x.name) for x in cursor.followers}
            own_a, own_b = (job.pointer(x) + first * steps.int(x) for x in ("a", "b"))
            for j in k.range(0, n, spec.nr):
                b = own_b + j // spec.components * b_col
                tile.set("cols", k.min(spec.nr, n - j))
                for i in k.range(0, m, tile_rows):
                    a = own_a + i * a_row
                    for rows in k.cases(k.min(tile_rows, m - i), heights):
                        cursor.to(i, j, moved)
                        k.call(microkernel(spec, 1, rows), job_at, tile.ptr, a, b, depth)

    return Function(f"{spec.symbol}_repeat", parameters("job* steps* count"), body)


def _fetch(k: Kernel, job: View, steps: View, products: tuple[Int, Int]) -> None:
    """Fetch operands of the products after some, ``(first, count)``, early."""
    first, count = products
    for field in AHEAD:
        size = steps.int(f"ahead_{field}") * count
        coming = job.pointer(field) + (first + TOGETHER) * steps.int(field)
        for line in k.range(0, size, _LINE):
            k.prefetch(coming + line, write=field == "d")
