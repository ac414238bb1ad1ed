"""Block sizes, derived from the caches.

Notation: element size ``e``, register tile ``mr x nr``, depth slice ``kc``, ``mc`` rows of A,
``nc`` columns of B.

* ``kc``: the depth blocks that make a row of A 4 KiB long (1024 floats, 512 doubles), so that the
  sums pass through D once per 4 KiB.  Blocks, not slices, decide the order of the sum, so this is
  free.  One block (512 floats) costs 2 % more at 1024 (D is read and written twice), two blocks of
  doubles 5-10 % more at 2048 (Zen 5, 1 MiB of L2, 2026-11-30).  What bounds it is L2, where
  micropanels of ``kc`` lie, not the TLB: a machine of larger pages wants it no longer.
* Per microtile the kernel reads ``mr * kc`` of A (stays in L1 for the next micropanel only by luck)
  and ``kc * nr`` of B.  Per depth step that is ``nr * e`` bytes, two cache lines, in ``mr`` cycles,
  which the L2 cache of every supported core delivers several times over.  So B micropanels live in
  L2.
* ``mc``: the rows of A that all micropanels meet must stay in L2 beside two micropanels (the one
  in use, the one arriving) and the tiles of D passing through: ``mc * kc * e <= L2 / 4``.  A half
  was 1-2 % slower at 2048 (f32, Zen 5, 1 MiB of L2, 2026-11-30), an eighth no better than a
  quarter.
* ``nc``: a packed slice ``kc * nc * e`` is read by every chunk of rows; it must stay in the shared
  cache: at most half of L3, at least one micropanel.  Of an L3 of hundreds of MiB a process has a
  share only: at most 32 MiB, which also bounds the scratch of a call.
  Where all rows of A stay in L2 the columns may come in blocks of ``L2 / 8`` that do so too: B is
  then read once from where it lies, and its micropanels from L2 (1024 x 4096 f32, Emerald Rapids,
  2 MiB of L2, GFLOP/s with 14, 32, 64, 128 rows: the whole B at a time 36, 63, 85, 99; blocks of
  L2 / 2 44, 76, 102, 114; of L2 / 8 48, 91, 101, 117; 2026-11-30).  Copied rows of A are copied for
  every block, which must be wide enough for that not to show.
* Threads: chunks are drawn on demand from a grid of row ranges by column ranges.  Its cells should
  be alike and as many as fill whole rounds of the threads, or some thread waits for the last one;
  small enough to even out disturbances, large enough that fetching rows and panels does not show.
  :func:`_grid` weighs these with a closed estimate of the time of the slowest thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from jitgemm.kernels.spec import GemmSpec
from jitgemm.planner.context import Draft, ceil_div
from jitgemm.planner.machine import Machine
from jitgemm.planner.records import Part

__all__ = ["Blocking", "Limits", "derive"]

_CHUNKS_PER_THREAD = 4
# What a chunk costs besides its arithmetic, in the same unit (rows times columns): fetching its
# rows of A as eight more columns would (4 bytes against 32 multiply-adds per cycle), the first
# lines of its panels as one and a half more rows, and being drawn as a small tile.
_FETCH_COLS, _FETCH_ROWS, _DRAW = 8.0, 1.5, 64.0
# What gathering rows of A from columns costs, in micropanels that use them: 224 x 2371 @ 2371 x
# 623, f32, one thread, 1.2 ms of 9 (AVX2, Zen 3 VM, 2026-12-01).
_GATHER_PANELS = 4.0
_ROW_BYTES = 4096
"""Of A in a depth slice: see ``kc`` above."""
_PANELS_TO_SPLIT = 4
# Estimate: twice what half of a cluster's L3 allows.
_MOST_PACKED = 32 << 20
# A block of columns is at least this wide: a row of it should be some lines long; a copied element
# of A should meet enough columns.  Estimates: two panels were as good on the machine above, and a
# copy that takes two cycles per number is 4 % of 512 columns.
_PANELS_PER_BLOCK = 4
_PANELS_PER_COPY = 16


@dataclass(frozen=True, slots=True)
class Blocking(Part):
    """Loop bounds of the nest: a part of a job record.  Depth is in packed k-groups."""

    tile_rows: int
    group: int
    rows_per_chunk: int
    row_chunks: int
    cols_per_chunk: int
    col_chunks: int
    depth_per_slice: int
    slices: int
    depth_step: int
    cols_per_block: int
    blocks: int
    pack_chunks: int
    pack_cols: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What a route demands of the blocking."""

    depth: int
    """In packed k-groups."""
    threads: int
    tile_rows: int
    """Most rows of a microtile."""
    whole_depth: bool
    """Every tile goes down the whole depth, because partial sums may not spill to D."""
    one_slice: bool = False
    """B is packed over its whole depth."""
    copies_a: bool = False
    """Rows of A are copied for each block of columns."""
    row_step: int = 1
    """A microtile has a whole number of so many rows, but for the last."""
    gathers_a: bool = False
    """They are also gathered from columns, which costs as much as some micropanels of product."""


def _rows(most: int, m: int, step: int) -> int:
    """Rows of a full microtile: as few tiles as possible, all of about the same height."""
    tiles = max(1, ceil_div(m, most))
    return max(1, ceil_div(ceil_div(m, tiles), step)) * step


def _depth(spec: GemmSpec, k: int) -> int:
    """Depth of a slice: the blocks that make a row of A about as long as it was measured best."""
    block = spec.element.depth_block
    return min(k, max(1, _ROW_BYTES // spec.unit // block) * block)


def _slowest(
    shape: tuple[int, int], cell: tuple[int, int], threads: int, fetch_cols: float
) -> float:
    """Estimated work of the slowest thread if chunks of ``cell`` are drawn row by row."""
    (m, n), (rows, cols) = shape, cell
    down, across = ceil_div(m, rows), ceil_div(n, cols)
    rounds, last = divmod(down * across, threads)

    def cost(height: int) -> float:
        return (height + _FETCH_ROWS) * (cols + fetch_cols) + _DRAW

    if last == 0:
        rounds, last = rounds - 1, threads
    # The chunks of the last row range, which may be lower, come last.
    low = m - (down - 1) * rows if last <= across else rows
    return rounds * cost(rows) + cost(low)


def _grid(
    shape: tuple[int, int], tile: tuple[int, int], most: int, limits: Limits
) -> tuple[int, int]:
    """Microtiles per chunk, down (at most ``most``) and across, for several threads."""
    threads = limits.threads
    (m, n), (height, width) = shape, tile
    tiles, panels = max(1, ceil_div(m, height)), max(1, ceil_div(n, width))
    shares = range(1, _CHUNKS_PER_THREAD * threads + 1)
    down = {ceil_div(tiles, p) for p in shares if ceil_div(tiles, p) <= most} | {min(tiles, most)}
    # Neighbouring tickets share their rows of A, which then come from memory once: worth 3-9 % at
    # 1024 and 2048 on two threads (Zen 5, 2026-11-30), where it leaves enough columns to each.
    split = threads if panels >= _PANELS_TO_SPLIT * threads and not limits.gathers_a else 1
    fetch = _GATHER_PANELS * width if limits.gathers_a else _FETCH_COLS
    across = {ceil_div(panels, p) for p in shares if p >= split}
    return min(
        ((d, a) for d in down for a in across),
        key=lambda c: (
            _slowest(shape, (c[0] * height, c[1] * width), threads, fetch),
            -c[0] * c[1],
        ),
    )


def _columns_per_block(draft: Draft, limits: Limits, kc: int, mc: int) -> int:
    """Columns, in reals, of a B that is packed by the call: those packed at a time."""
    spec, machine = draft.spec, draft.context.machine
    n, threads = draft.problem.n * spec.components, limits.threads
    row = kc * spec.in_memory.panel_row // spec.nr  # bytes of a packed column
    shared = min(machine.l3.size // 2, _MOST_PACKED)
    budget = max(1, shared // row // spec.nr) * spec.nr
    if draft.problem.m <= mc:
        few = machine.l2.size // 8 * threads // row // spec.nr
        least = _PANELS_PER_COPY if limits.copies_a else _PANELS_PER_BLOCK
        budget = min(budget, max(few, least * threads) * spec.nr)
    blocks = ceil_div(n, min(budget, max(n, 1)))
    return ceil_div(ceil_div(n, blocks), spec.nr) * spec.nr


def _rows_in_l2(spec: GemmSpec, machine: Machine, tile_rows: int, kc: int) -> int:
    """Rows of A that stay in L2, as whole microtiles."""
    return max(1, machine.l2.size // 4 // (kc * spec.unit) // tile_rows) * tile_rows


def derive(draft: Draft, limits: Limits) -> Blocking:
    """Choose the loop bounds.

    Args:
        draft: the problem, its kernel, cache sizes.
        limits: what the route demands.
    """
    spec, m, k, threads = draft.spec, draft.problem.m, limits.depth, limits.threads
    n = draft.problem.n * spec.components  # columns are counted in reals
    tile_rows = _rows(limits.tile_rows, m, limits.row_step)
    tiles = max(1, ceil_div(m, tile_rows))
    per_call = draft.packs_b
    # Few rows meet B once: a chunk takes the whole depth and all rows, in steps that keep the part
    # of a panel its rows share in L2.
    at_once = m <= 4 * spec.tile.mr and not per_call
    step = max(1, k if limits.whole_depth else _depth(spec, k))
    kc = max(1, k) if at_once or limits.one_slice else step
    mc = tiles * tile_rows
    if not at_once:
        mc = _rows_in_l2(spec, draft.context.machine, tile_rows, kc)
    nc = _columns_per_block(draft, limits, kc, mc) if per_call else n

    group = spec.tile.group_for(tile_rows)
    cols_per_chunk, rows_per_chunk = max(nc, 1), mc
    if threads > 1:
        tile = tile_rows, spec.nr * group
        tall, wide = _grid((m, nc), tile, mc // tile_rows, limits)
        rows_per_chunk, cols_per_chunk = tall * tile[0], wide * tile[1]
    rows_per_chunk = min(rows_per_chunk, tiles * tile_rows)

    pack_chunks, pack_cols = 0, spec.nr
    if per_call:
        tickets = 1 if threads == 1 else _CHUNKS_PER_THREAD * threads
        pack_cols = ceil_div(ceil_div(nc, spec.nr), tickets) * spec.nr
        pack_chunks = ceil_div(nc, pack_cols)
    return Blocking(
        tile_rows=tile_rows,
        group=group,
        rows_per_chunk=rows_per_chunk,
        row_chunks=ceil_div(m, rows_per_chunk),
        cols_per_chunk=cols_per_chunk,
        col_chunks=ceil_div(nc, cols_per_chunk),
        depth_per_slice=kc,
        slices=max(1, ceil_div(k, kc)),
        depth_step=step,
        cols_per_block=nc,
        blocks=max(1, ceil_div(n, nc)),
        pack_chunks=pack_chunks,
        pack_cols=pack_cols,
    )
