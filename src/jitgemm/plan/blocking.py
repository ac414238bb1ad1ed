"""Block sizes, derived from the caches.

Notation: element size ``e``, register tile ``mr x nr``, depth slice ``kc``, ``mc`` rows of A, ``nc`` columns
of B.

* ``kc``: one depth block of the element type when B is packed per call, so that the packed slice of
  B and the rows of A stay small; the whole of ``k`` when B is prepacked and few rows reuse it, so
  that D is written once.  Blocks, not slices, decide the order of the sum, so this is free.
* Per microtile the kernel reads ``mr * kc`` of A (stays in L1 for the next micropanel only by luck) and
  ``kc * nr`` of B.  Per depth step that is ``nr * e`` bytes, two cache lines, in ``mr`` cycles, which
  the L2 cache of every supported core delivers several times over.  So B micropanels live in L2.
* ``mc``: the rows of A that all micropanels sweep must stay in L2 beside two micropanels (the one in
  use, the one arriving) and the tiles of D passing through: ``mc * kc * e <= L2 / 4``.  A half was
  1-2 % slower at 2048 (f32, Zen 5, 1 MiB of L2, 2026-11-30), an eighth no better than a quarter.
* ``nc``: a packed slice ``kc * nc * e`` is read by every chunk of rows; it must stay in the shared
  cache: at most half of L3, at least one micropanel.
* Threads: chunks are drawn on demand.  Four per thread bound the idle tail to about an eighth of a
  thread's share while a chunk stays far longer than the two atomic additions that draw it.
"""

from __future__ import annotations

from dataclasses import dataclass

from jitgemm.kernels.spec import BSource, GemmSpec
from jitgemm.plan.machine import Machine
from jitgemm.plan.problem import Problem

__all__ = ["Blocking", "derive"]

_CHUNKS_PER_THREAD = 4


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True, slots=True)
class Blocking:
    """Loop bounds of the nest; the names are those of the job record."""

    tile_rows: int
    group: int
    rows_per_chunk: int
    row_chunks: int
    cols_per_chunk: int
    col_chunks: int
    depth_per_slice: int
    slices: int
    cols_per_block: int
    blocks: int
    pack_chunks: int
    pack_cols: int


def _rows(spec: GemmSpec, problem: Problem) -> int:
    """Rows of a full microtile: as few tiles as possible, all of about the same height."""
    tiles = max(1, _ceil(problem.m, spec.tile.mr))
    return max(1, _ceil(problem.m, tiles))


def derive(
    spec: GemmSpec, problem: Problem, machine: Machine, threads: int, *, whole_depth: bool
) -> Blocking:
    """Choose the loop bounds.

    Args:
        spec: the kernel.
        problem: the normalised problem, in the kernel's orientation.
        machine: cache sizes.
        threads: how many will work on it.
        whole_depth: one depth slice, because sums may not rest in the result between slices.
    """
    size, m, n, k = spec.element.bytes, problem.m, problem.n, problem.k
    tile_rows = _rows(spec, problem)
    block = spec.element.depth_block
    per_call = spec.b is BSource.PACKED and problem.b is not None
    few_rows = m <= 4 * spec.tile.mr
    kc = max(1, k if whole_depth or not per_call and few_rows else min(k, block))

    mc = max(1, machine.l2.size // 4 // (kc * size) // tile_rows) * tile_rows
    nc = n
    if per_call:
        budget = max(1, machine.l3.size // 2 // (kc * size) // spec.nr) * spec.nr
        blocks = _ceil(n, min(budget, max(n, 1)))
        nc = _ceil(_ceil(n, blocks), spec.nr) * spec.nr
    blocks = max(1, _ceil(n, nc))

    group = spec.tile.group_for(tile_rows)
    width = spec.nr * group
    tiles = max(1, _ceil(m, tile_rows))
    cols_per_chunk, rows_per_chunk = max(nc, 1), mc
    if threads > 1:
        want = _CHUNKS_PER_THREAD * threads
        rows_per_chunk = min(mc, _ceil(tiles, want) * tile_rows)
        row_chunks = _ceil(m, rows_per_chunk)
        if row_chunks < want:
            cols_per_chunk = _ceil(_ceil(nc, width), _ceil(want, row_chunks)) * width
    rows_per_chunk = min(rows_per_chunk, tiles * tile_rows)

    pack_chunks, pack_cols = 0, spec.nr
    if per_call:
        panels = _ceil(nc, spec.nr)
        pack_cols = _ceil(panels, 1 if threads == 1 else _CHUNKS_PER_THREAD * threads) * spec.nr
        pack_chunks = _ceil(nc, pack_cols)
    return Blocking(
        tile_rows=tile_rows,
        group=group,
        rows_per_chunk=rows_per_chunk,
        row_chunks=_ceil(m, rows_per_chunk),
        cols_per_chunk=cols_per_chunk,
        col_chunks=_ceil(nc, cols_per_chunk),
        depth_per_slice=kc,
        slices=max(1, _ceil(k, kc)),
        cols_per_block=nc,
        blocks=blocks,
        pack_chunks=pack_chunks,
        pack_cols=pack_cols,
    )
