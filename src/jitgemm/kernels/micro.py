"""The microkernel: one body for every element type, instruction set, tile and source of B.

B is read by vector, A by broadcast.  A broadcast needs no particular layout, so A is read in
place with any strides at full speed; a packed A is the same kernel with other strides.  Where rows
of A lie side by side, and multiply-adds take one lane of a vector for all, a vector of A brings the
numbers of several rows (``GemmSpec.a_vectors``): the same products in the same order.

Reading A in place invites LLVM's loop strength reduction to keep one induction variable per row;
14 of them do not fit next to the rest and spill.  Three rows therefore share one pointer, with the
row stride and its double as index, all hidden behind :meth:`Kernel.opaque` (measured: a spilled
bf16 12x32 ran at 50-99 GFLOP/s, 160 without).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jitgemm.kernels.cursor import TileMoves
from jitgemm.kernels.epilogue import Masks, finish, masks_of
from jitgemm.kernels.job import JOB, TILE
from jitgemm.kernels.spec import BSource, GemmSpec
from jitgemm.lang.core import Function, Int, Kernel, Ptr, Var, Vec, parameters
from jitgemm.lang.record import View

__all__ = ["accumulate", "microkernel"]

_ROWS_PER_POINTER = 3
_LINE = 64
_LONG = 64
# Rows of a B read in place that are fetched ahead: short pieces of long rows, which no hardware
# foresees.  Few, because rows a page apart share one set of L1.  GFLOP/s of f32 without, with 4, 6,
# 8, 10 (Emerald Rapids, 2026-11-30): 14 x 512 x 512 146, 165, 166, 158, 171; 28 x 1000 x 4000 74,
# 123, 94, 89, 136; 8 x 1024 x 4096 50, 89, 56, 57, 105 (the high ones where pages were large).
_ROWS_AHEAD = 8

Sums = dict[tuple[int, int], Var[Vec]]


def accumulate(k: Kernel, spec: GemmSpec, a: Vec, b: Vec, total: Vec) -> Vec:
    """``total`` and the product of a k-group of A and one of B in each lane."""
    how = spec.arithmetic
    return k.op(how.accumulate, *((b, a) if how.exchanged else (a, b)), total)


class _VectorsOfA:
    """Walks rows of A that lie side by side, and takes their elements from vectors by lane."""

    def __init__(self, k: Kernel, spec: GemmSpec, base: Ptr, col: Int, reals: int) -> None:
        self.k, self.spec, self.col = k, spec, col
        self.base = k.var(base)
        # The last vector ends with the last row: nothing beyond it is read.
        self.starts = [min(i, reals - spec.lanes) for i in range(0, reals, spec.lanes)]

    def step(self) -> None:
        """Start a depth step."""
        self.pinned = self.k.opaque(self.base.value)
        self.base.value = self.pinned + self.col
        self.loaded = -1

    def splat(self, i: int) -> Vec:
        """Real ``i`` of this depth, in every lane; they come in ascending order."""
        k, spec, number = self.k, self.spec, i // self.spec.lanes
        if number != self.loaded:
            self.loaded = number
            at = self.pinned + self.starts[number] * spec.element.bytes
            self.vector = k.load(at, spec.element, spec.lanes)
        return k.splat(k.extract(self.vector, i - self.starts[number]), spec.lanes)


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
        row, part = divmod(i, self.spec.components)
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
        self, k: Kernel, spec: GemmSpec, base: Ptr, strides: tuple[Int, Int], masks: Masks
    ) -> None:
        self.k, self.spec = k, spec
        self.depth = strides[0]
        self.masks = masks
        panels = len(masks) // spec.tile.nr_regs
        self.fetched = panels * spec.panel_row
        # In place, adjacent micropanels are adjacent columns: one pointer reaches them all.
        self.starts = [0] if spec.b is BSource.INPLACE else list(range(panels))
        self.base = [k.var(base + strides[1] * s) for s in self.starts]

    def step(self) -> None:
        """Pin the pointers for this depth step; then move them on."""
        self.pinned = [cell.value for cell in self.base]
        for cell, p in zip(self.base, self.pinned, strict=True):
            cell.value = p + self.depth
        if self.masks[0] is not None:
            # Lanes without a column repeat the first one: they raise no flag of their own.
            first = self.k.load(self.pinned[0], self.spec.panel_element)
            self.rest = self.k.splat(first, self.spec.lanes)

    def fetch(self) -> None:
        """Fetch the rows of steps to come."""
        ahead = self.pinned[0] + self.depth * _ROWS_AHEAD
        for line in range(0, self.fetched, _LINE):
            self.k.prefetch(ahead + line)

    def load(self, j: int) -> Vec:
        """Vector ``j`` of this depth step."""
        spec = self.spec
        panel, within = divmod(j, spec.tile.nr_regs)
        if spec.b is BSource.INPLACE:
            panel, within = 0, j
        p = self.pinned[panel] + within * (spec.panel_row // spec.tile.nr_regs)
        # K-groups of several numbers are loaded as what they are added up in.
        kind = spec.panel_element if spec.upconverts_b else spec.element
        if self.masks[j] is None:
            x = self.k.load(p, kind, spec.lanes)
        else:
            x = self.k.load(p, kind, spec.lanes, self.masks[j], self.rest)
        return self.k.convert(x, spec.element)


@dataclass(frozen=True, slots=True)
class _Shape:
    """A register tile of ``rows`` rows by ``panels`` micropanels."""

    spec: GemmSpec
    panels: int
    rows: int

    @property
    def columns(self) -> range:
        """Vectors of columns."""
        return range(self.panels * self.spec.tile.nr_regs)

    @property
    def reals(self) -> range:
        """Rows of real components."""
        return range(self.rows * self.spec.components)

    @property
    def width(self) -> int:
        """Columns, in reals."""
        return len(self.columns) * self.spec.lanes

    @property
    def fetches_panel(self) -> bool:
        """Whether the micropanel to come is fetched early."""
        # One met by many rows is worth it; with few rows the sum itself is the stream.
        return self.spec.b is BSource.PACKED and self.panels == 1

    @property
    def fetches_rows(self) -> bool:
        """Whether rows of a B read in place are fetched early."""
        # Where loads and fetches take no longer than multiply-adds.
        vectors, reals = len(self.columns), len(self.reals)
        lines = self.panels * self.spec.panel_row // _LINE
        inplace = self.spec.b is BSource.INPLACE
        return inplace and reals * vectors >= reals + vectors + lines

    def walk_of_a(self, k: Kernel, base: Ptr, strides: tuple[Int, Int]) -> _RowsOfA | _VectorsOfA:
        """Rows of A from ``base`` on."""
        # Rows that fill no vector are met one by one.
        if self.spec.a_vectors and len(self.reals) >= self.spec.lanes > 1:
            return _VectorsOfA(k, self.spec, base, strides[1], len(self.reals))
        return _RowsOfA(k, self.spec, base, strides, self.rows)

    def strides(self, k: Kernel, job: View) -> tuple[tuple[Int, Int], tuple[Int, Int]]:
        """Bytes along rows and depth of A; along the depth of B and from panel to panel."""
        packed, inplace = self.spec.b is BSource.PACKED, self.spec.b is BSource.INPLACE
        depth = k.const(self.spec.panel_row) if packed else job.int("b_row")
        side_by_side = self.panels == 1 or inplace
        panel = k.const(0) if side_by_side else job.int("panel_stride")
        return (job.int("a_row"), job.int("a_col")), (depth, panel)


def _multiply(
    k: Kernel, shape: _Shape, records: tuple[View, View], where: tuple[Ptr, Ptr, Int], masks: Masks
) -> Sums:
    """The sums of ``depth`` steps, from zero; ``where`` is A, B and the depth."""
    (job, tile), (a, b, depth), spec = records, where, shape.spec
    strides = shape.strides(k, job)
    zero = k.zero(spec.element, spec.lanes)
    sums = {(i, j): k.var(zero) for i in shape.reals for j in shape.columns}
    rows_of_a = shape.walk_of_a(k, a, strides[0])
    panels_of_b = _PanelsOfB(k, spec, b, strides[1], masks)
    coming = k.var(tile.pointer("ahead")) if shape.fetches_panel else None
    for _ in k.range(0, depth):
        rows_of_a.step()
        panels_of_b.step()
        if shape.fetches_rows:
            panels_of_b.fetch()
        if coming is not None:
            k.prefetch(coming.value, near=False)
            coming.value = coming.value + _LINE
        _depth_step(k, shape, (rows_of_a, panels_of_b), sums)
    return sums


def _depth_step(
    k: Kernel, shape: _Shape, operands: tuple[_RowsOfA | _VectorsOfA, _PanelsOfB], sums: Sums
) -> None:
    """One step: the shorter side is held in registers, and the longer one streams past it."""
    (rows_of_a, panels_of_b), spec = operands, shape.spec
    if len(shape.reals) < len(shape.columns):
        splats = [rows_of_a.splat(i) for i in shape.reals]
        for j in shape.columns:
            vector = panels_of_b.load(j)
            for i in shape.reals:
                cell = sums[i, j]
                cell.value = accumulate(k, spec, splats[i], vector, cell.value)
        return
    vectors = [panels_of_b.load(j) for j in shape.columns]
    for i in shape.reals:
        splat = rows_of_a.splat(i)
        for j in shape.columns:
            cell = sums[i, j]
            cell.value = accumulate(k, spec, splat, vectors[j], cell.value)


def _each_tile(k: Kernel, spec: GemmSpec, tile: View, a: Ptr, b: Ptr) -> Iterator[tuple[Ptr, Ptr]]:
    """A and B of each of several microtiles; the record is moved to the one at hand."""
    if spec.b is not BSource.INPLACE:
        yield a, b
        return
    moves, at_a, at_b = TileMoves(spec, tile), k.var(a), k.var(b)
    left = k.var(tile.int("count"))
    for _ in k.repeat_while(lambda: left.value > 0):
        yield at_a.value, at_b.value
        left.value = left.value - 1
        # Most often there is but one.
        for _ in k.when(left.value > 0):
            at_a.value = at_a.value + tile.int("next_a")
            at_b.value = at_b.value + tile.int("next_b")
            moves.next()


def _fetch_target(k: Kernel, shape: _Shape, tile: View, depth: Int) -> None:
    """Fetch the lines of D early if the sums take long enough for that to help."""
    for _ in k.when(depth >= _LONG):
        target, stride = tile.pointer("target"), tile.int("target_row")
        for i in range(shape.rows):
            for line in range(0, shape.panels * shape.spec.nr * shape.spec.types.out.bytes, _LINE):
                k.prefetch(target + line, write=True)
            if i + 1 < shape.rows:
                target = target + stride


def microkernel(spec: GemmSpec, panels: int, rows: int) -> Function:
    """The function that adds one depth block to a ``rows`` x ``panels * nr`` tile.

    Rounding contract: each element is one chain of ``madd`` over ascending depth from zero; the
    sum of the earlier blocks is added to it; at the last block the epilogue applies once.
    """
    shape = _Shape(spec, panels, rows)

    def body(k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, b: Ptr, depth: Int) -> None:
        records = JOB.view(k, job_at), TILE.view(k, tile_at)
        tile = records[1]
        if spec.b is BSource.PACKED:
            _fetch_target(k, shape, tile, depth)
            # Panels are padded: the product needs no masks, only the store does.
            unmasked = dict.fromkeys(shape.columns)
            sums = _multiply(k, shape, records, (a, b, depth), unmasked)
            cols = tile.int("cols")
            for full in k.branches(cols.equals(shape.width)):
                finish(k, spec, records, sums, None if full else cols)
            return
        cols = tile.int("cols")
        for full in k.branches(cols.equals(shape.width)):
            if not full and panels > 1 and not spec.partial_groups:
                continue  # the nest never asks for it
            masked = None if full else cols
            # Masks that take vector registers are made anew where they are used: held from one use
            # to the next they would displace sums.
            kept = masks_of(k, spec, shape.columns, masked) if spec.isa.mask_registers else None
            for at_a, at_b in _each_tile(k, spec, tile, a, b):
                _fetch_target(k, shape, tile, depth)
                # Nothing may keep the sums of one tile while those of the next are formed.
                where, masks = (at_a, at_b, depth), kept or masks_of(k, spec, shape.columns, masked)
                finish(k, spec, records, _multiply(k, shape, records, where, masks), masked, kept)

    name = f"{spec.symbol}_micro_{rows}x{shape.width}"
    return Function(name, parameters("job* tile* a* b* depth"), body)
