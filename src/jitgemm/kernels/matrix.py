"""Microtiles on a matrix unit, of whatever geometry its record says.

A is read where it lies, a tile of its rows at a time, whatever the row stride; B comes from the
micropanels of the vector kernels.  What the depth leaves of a last tile is copied and padded with
zeros, so that nothing beyond the operands is read.  Micropanels that are wider than there are
registers for sums are multiplied in several passes.

Sums end in memory.  Where nothing is to be done to them that is the result itself, else a buffer,
from which one row after the other goes through the epilogue of the vector kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from jitgemm.isa.matrix import MatrixUnit
from jitgemm.kernels.cursor import TileMoves
from jitgemm.kernels.epilogue import conclude, masks_of
from jitgemm.kernels.job import JOB, TILE
from jitgemm.kernels.spec import Bias, GemmSpec, Scale
from jitgemm.kernels.squares import Square, flat, tall
from jitgemm.lang.core import Cond, Function, Int, Kernel, Ptr, Vec, parameters
from jitgemm.lang.record import View

__all__ = ["finish_rows", "matrix_microkernel", "record_bytes", "unit_state"]

_LINE = 64
_MOST_TOGETHER = 4
"""Rows that go through the epilogue at once: they share pointers and what varies by column."""
# The bits of 1.0 in the four bytes a factor takes.
_ONE_F32 = 0x3F800000


def _unit(spec: GemmSpec) -> MatrixUnit:
    assert isinstance(spec.isa.unit, MatrixUnit)
    return spec.isa.unit


def record_bytes(spec: GemmSpec) -> int:
    """Bytes of a tile record, and of the state of the unit behind it."""
    if not spec.tiles or spec.outer is not None or not _unit(spec).state:
        return TILE.size
    return _state_at() + _unit(spec).state


def _state_at() -> int:
    return -(-TILE.size // _LINE) * _LINE


def unit_state(spec: GemmSpec, tile: View) -> Ptr:
    """Where the unit has its state: behind the tile record."""
    return tile.ptr + (_state_at() if _unit(spec).state else 0)


@dataclass(frozen=True, slots=True)
class _Pass:
    """Columns that are multiplied at once: a square, and where it begins."""

    square: Square
    first: int
    """Its first tile of B, counted across all micropanels."""
    state: Ptr

    def panels(self, per_panel: int) -> range:
        """The micropanels it reads."""
        return range(self.first // per_panel, (self.last - 1) // per_panel + 1)

    @property
    def last(self) -> int:
        return self.first + self.square.columns


def _passes(square: Square, columns: int, state: Ptr) -> list[_Pass]:
    step = square.columns
    return [
        _Pass(replace(square, columns=min(step, columns - first)), first, state)
        for first in range(0, columns, step)
    ]


@dataclass(frozen=True, slots=True)
class _Operands:
    """Where tiles of A and micropanels of B begin, and how far their rows are apart."""

    a: tuple[Ptr, ...]
    a_row: Int
    b: tuple[Ptr, ...]


def _configure(k: Kernel, state: Ptr, tile: View, heights: Int) -> None:
    """Shape the registers, unless they have this shape already: it takes as long as four tiles."""
    for _ in k.when(tile.int("shape").differs(heights)):
        k.configure_tiles(state, heights)
        tile.set("shape", heights)


def _per_panel(spec: GemmSpec) -> int:
    """Tiles of B side by side in a micropanel."""
    return spec.nr // _unit(spec).words


def _step(k: Kernel, spec: GemmSpec, part: _Pass, at: _Operands) -> None:
    """As many words of depth as a tile has."""
    square, b_row = part.square, k.const(spec.panel_row)
    for column in range(square.columns):
        panel, within = divmod(part.first + column, _per_panel(spec))
        b = at.b[panel] + within * _unit(spec).row_bytes
        k.load_tile(part.state, square.b(column), b, b_row)
        for half in range(square.halves):
            if column == 0:
                k.load_tile(part.state, square.a(half), at.a[half], at.a_row)
            sums = square.sums(half, column)
            name = spec.arithmetic.accumulate
            k.fold_tiles(part.state, name, sums, square.a(half), square.b(column))


def _multiply(
    k: Kernel, spec: GemmSpec, part: _Pass, at: _Operands, sizes: tuple[Int, Int]
) -> None:
    """Sums of the whole depth, from zero."""
    (rows, depth), square, unit = sizes, part.square, _unit(spec)
    for half in range(square.halves):
        for column in range(square.columns):
            k.zero_tile(part.state, square.sums(half, column))
    whole = depth // unit.words * unit.words
    cells = [k.var(p) for p in (*at.a, *at.b)]
    split = len(at.a)

    def here() -> _Operands:
        places = tuple(cell.value for cell in cells)
        return _Operands(places[:split], at.a_row, places[split:])

    for _ in k.range(0, whole, unit.words):
        _step(k, spec, part, here())
        for i, cell in enumerate(cells):
            step = unit.row_bytes if i < split else unit.words * spec.panel_row
            cell.value = cell.value + step
    for _ in k.when(whole < depth):
        _step(k, spec, part, _padded(k, spec, part, here(), (rows, depth - whole)))


def _padded(
    k: Kernel, spec: GemmSpec, part: _Pass, at: _Operands, sizes: tuple[Int, Int]
) -> _Operands:
    """The last words of each row of A and column of B, and zeros up to a whole tile."""
    (rows, left), element, lanes = sizes, spec.element, spec.lanes
    unit, halves = _unit(spec), part.square.halves
    mask = k.mask(left, element, unit.words)
    a = k.scratch(halves * unit.tile_bytes)
    for i in k.range(0, rows):
        words = k.load(at.a[0] + i * at.a_row, element, unit.words, mask)
        k.store(a + i * unit.row_bytes, words)
    panels = list(at.b)
    for panel in part.panels(_per_panel(spec)):
        source, target = at.b[panel], k.scratch(unit.words * spec.panel_row)
        for start in range(0, spec.nr, lanes):
            offset = start * element.bytes
            for w in k.range(0, left):
                x = k.load(source + w * spec.panel_row + offset, element, lanes)
                k.store(target + w * spec.panel_row + offset, x)
            for w in k.range(left, unit.words):
                k.store(target + w * spec.panel_row + offset, k.zero(element, lanes))
        panels[panel] = target
    tiles = tuple(a + half * unit.tile_bytes for half in range(halves))
    return _Operands(tiles, k.const(unit.row_bytes), tuple(panels))


# -- sums ----------------------------------------------------------------------------------------


def _untouched(spec: GemmSpec) -> bool:
    """Whether an epilogue does nothing but multiply by alpha."""
    e = spec.epilogue
    changes = e.beta or e.zero_a or e.zero_b or bool(e.programs) or e.bias is not Bias.NONE
    narrowed = spec.spills_to_buffer or spec.dequantises or e.scale is not Scale.NONE
    return not (changes or narrowed)


def _as_they_are(spec: GemmSpec, job: View, tile: View, width: int) -> Cond:
    """Whether sums are the result, or what rests in it until the next depth block."""
    if spec.element.integral:
        one = job.int("alpha").equals(1)
    else:
        one = (job.int("alpha") & 0xFFFFFFFF).equals(_ONE_F32)
    alone = tile.int("first").equals(1) & tile.int("cols").equals(width)
    return alone & (one | tile.int("last").equals(0))


def _store(k: Kernel, part: _Pass, target: Ptr, row: Int) -> None:
    square, unit = part.square, part.square.unit
    for half in range(square.halves):
        for column in range(square.columns):
            across = (part.first + column) * unit.row_bytes
            at = target + row * (half * unit.rows) + across
            k.store_tile(part.state, square.sums(half, column), at, row)


def _together(spec: GemmSpec, vectors: int) -> int:
    """How many rows of so many vectors go through the epilogue at once.

    An estimate: half of the registers hold sums, the others what an epilogue needs.
    """
    return max(1, min(_MOST_TOGETHER, spec.isa.vector_registers // 2 // vectors))


def finish_rows(
    k: Kernel, spec: GemmSpec, records: tuple[View, View], vectors: int,
    parts: list[tuple[Int, Callable[[Int, int, int], Vec]]],
) -> None:  # fmt: skip
    """Take rows of sums through the epilogue, some at a time.

    Args:
        k: the backend.
        spec: the kernel.
        records: the job's, and the tile's, which is moved down its rows and back.
        vectors: how wide a row is.
        parts: ranges of rows, one behind the other: how many there are, and what reads them, from
            a row of the range, how many rows further down, and a vector's number.
    """
    (job, tile), columns = records, range(vectors)
    together = _together(spec, vectors)
    walk, width = TileMoves(spec, tile).rows(job), vectors * spec.lanes
    for full in k.branches(tile.int("cols").equals(width)):
        cols = None if full else tile.int("cols")
        masks = masks_of(k, spec, columns, cols) if spec.isa.mask_registers else None
        above = k.const(0)
        for rows, read in parts:
            whole = rows // together * together
            for first, stop, count in ((k.const(0), whole, together), (whole, rows, 1)):
                for i in k.range(first, stop, count):
                    walk.to(above + i)
                    sums = {(r, j): k.var(read(i, r, j)) for r in range(count) for j in columns}
                    conclude(k, spec, records, sums, cols, masks)
            above = above + rows
    # The next depth block starts from the first row again.
    walk.back()


def _rows(spec: GemmSpec, panels: int) -> Function:
    """The epilogue, some rows at a time: ``rows`` of sums in ``buffer``, as wide as ``panels``."""
    vectors = panels * spec.tile.nr_regs
    lanes, element, size = spec.lanes, spec.element, spec.element.bytes
    width = vectors * lanes

    def body(k: Kernel, job_at: Ptr, tile_at: Ptr, buffer: Ptr, rows: Int) -> None:
        def read(i: Int, below: int, j: int) -> Vec:
            at = buffer + i * (width * size)
            return k.load(at + (below * width + j * lanes) * size, element, lanes)

        records = JOB.view(k, job_at), TILE.view(k, tile_at)
        finish_rows(k, spec, records, vectors, [(rows, read)])

    params = parameters("job* tile* buffer* rows")
    return Function(f"{spec.symbol}_rows_{width}", params, body)


def matrix_microkernel(spec: GemmSpec, panels: int) -> Function:
    """The function that adds one depth block to ``rows`` rows by ``panels`` micropanels.

    Up to two tiles of rows by one micropanel, one tile by more.  Integers are exact; products that
    round (:attr:`jitgemm.isa.matrix.TileProduct.order`) are added up in ascending order.
    """
    unit = _unit(spec)
    columns = panels * _per_panel(spec)
    finish, width = _rows(spec, panels), panels * spec.nr
    low, high = flat(unit, columns), tall(unit, columns) if panels == 1 else None

    def run(
        k: Kernel, records: tuple[View, View], square: Square, at: _Operands,
        sizes: tuple[Int, Int],
    ) -> None:  # fmt: skip
        (job, tile), (rows, _) = records, sizes
        state, upper = unit_state(spec, tile), k.min(rows, unit.rows)
        _configure(k, state, tile, k.const(square.heights(upper, rows - upper)))
        buffers: list[Ptr] = []

        def through_buffer(part: _Pass) -> None:
            row = width * spec.element.bytes
            if not buffers:
                buffers.append(k.scratch(square.halves * unit.rows * row))
            _store(k, part, buffers[0], k.const(row))
            if part.last == columns:
                k.call(finish, job.ptr, tile.ptr, buffers[0], rows)

        for part in _passes(square, columns, state):
            _multiply(k, spec, part, at, sizes)
            if not _untouched(spec):
                through_buffer(part)
                continue
            for plain in k.branches(_as_they_are(spec, job, tile, width)):
                if plain:
                    _store(k, part, tile.pointer("target"), tile.int("target_row"))
                else:
                    through_buffer(part)

    def body(k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, b: Ptr, rows: Int, depth: Int) -> None:
        job, tile = JOB.view(k, job_at), TILE.view(k, tile_at)
        a_row = job.int("a_row")
        across = tuple(b + job.int("panel_stride") * i for i in range(panels))
        for lower in k.branches(rows > unit.rows):
            square = high if lower else low
            if square is None:
                continue  # no such tile
            down = tuple(a + a_row * (half * unit.rows) for half in range(square.halves))
            operands = _Operands(down, a_row, across)
            run(k, (job, tile), square, operands, (rows, depth))

    params = parameters("job* tile* a* b* rows depth")
    return Function(f"{spec.symbol}_tiles_{width}", params, body)
