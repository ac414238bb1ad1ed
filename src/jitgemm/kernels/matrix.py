"""Microtiles on a matrix unit: sixteen rows by sixteen words of columns per register of sums.

A is read where it lies, sixteen words of sixteen rows at a time, whatever the row stride; B comes
from the micropanels of the vector kernels.  What the depth leaves of a last tile is copied and
padded with zeros, so that nothing beyond the operands is read.

Sums end in memory.  Where nothing is to be done to them that is the result itself, else a buffer,
from which one row after the other goes through the epilogue of the vector kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from jitgemm.isa.matrix import TILE_BYTES, TILE_ROWS, TILE_WORDS
from jitgemm.kernels.cursor import TileMoves
from jitgemm.kernels.epilogue import conclude, masks_of
from jitgemm.kernels.job import JOB, TILE
from jitgemm.kernels.spec import Bias, GemmSpec, Scale
from jitgemm.lang.core import Cond, Function, Int, IntLike, Kernel, Ptr, parameters
from jitgemm.lang.record import View

__all__ = ["matrix_microkernel", "shape_tiles"]

_PALETTE = 64
_TOGETHER = 4
"""Rows that go through the epilogue at once: they share pointers and what varies by column.

An estimate: eight vectors of sums, or sixteen, beside what an epilogue needs.
"""
_WIDTHS = sum(TILE_BYTES << (16 * i) for i in range(4))
# The bits of 1.0 in the four bytes a factor takes.
_ONE_F32 = 0x3F800000


def _every(registers: tuple[int, ...]) -> int:
    """A byte of 1 for each register: times a number of rows, their part of a palette."""
    return sum(1 << (8 * r) for r in registers)


@dataclass(frozen=True, slots=True)
class _Square:
    """Which registers hold what: four of sums, by one or two of A and the rest of B."""

    halves: int
    """Tiles of A, one below the other."""
    columns: int
    """Tiles of B, side by side."""

    def sums(self, half: int, column: int) -> int:
        return 2 * half + column

    def a(self, half: int) -> int:
        return 4 + half

    def b(self, column: int) -> int:
        free = 4 - self.halves
        return 4 + self.halves + column % free

    def heights(self, upper: Int, lower: Int) -> Int:
        """Rows of all eight registers, a byte each."""
        whole = TILE_ROWS * _every(tuple(range(4 + self.halves, 8)))
        if self.halves == 1:
            return upper * _every((0, 1, 2, 3, 4)) + whole
        return upper * _every((0, 1, 4)) + lower * _every((2, 3, 5)) + whole


def shape_tiles(k: Kernel, heights: IntLike) -> None:
    """Give all eight registers whole rows, as many as the bytes of ``heights`` say."""
    palette = k.scratch(_PALETTE)
    for i, word in enumerate((1, 0, _WIDTHS, _WIDTHS, 0, 0, heights, 0)):
        k.store_int(palette + 8 * i, word)
    k.configure_tiles(palette)


def _configure(k: Kernel, tile: View, heights: Int) -> None:
    """Shape the registers, unless they have this shape already: it takes as long as four tiles."""
    for _ in k.when(tile.int("shape").differs(heights)):
        shape_tiles(k, heights)
        tile.set("shape", heights)


@dataclass(frozen=True, slots=True)
class _Operands:
    """Where tiles of A and micropanels of B begin, and how far their rows are apart."""

    a: tuple[Ptr, ...]
    a_row: Int
    b: tuple[Ptr, ...]


def _step(k: Kernel, spec: GemmSpec, square: _Square, at: _Operands) -> None:
    """Sixteen words of depth."""
    per_panel, b_row = spec.nr // TILE_WORDS, k.const(spec.panel_row)
    name, element = spec.arithmetic.fold, spec.element
    for column in range(square.columns):
        panel, within = divmod(column, per_panel)
        k.load_tile(square.b(column), at.b[panel] + within * TILE_BYTES, b_row)
        for half in range(square.halves):
            if column == 0:
                k.load_tile(square.a(half), at.a[half], at.a_row)
            sums = square.sums(half, column)
            k.fold_tiles(name, element, sums, square.a(half), square.b(column))


def _multiply(
    k: Kernel, spec: GemmSpec, square: _Square, at: _Operands, sizes: tuple[Int, Int]
) -> None:
    """Sums of the whole depth, from zero."""
    rows, depth = sizes
    for half in range(square.halves):
        for column in range(square.columns):
            k.zero_tile(square.sums(half, column))
    whole = depth // TILE_WORDS * TILE_WORDS
    cells = [k.var(p) for p in (*at.a, *at.b)]
    split = len(at.a)

    def here() -> _Operands:
        places = tuple(cell.value for cell in cells)
        return _Operands(places[:split], at.a_row, places[split:])

    for _ in k.range(0, whole, TILE_WORDS):
        _step(k, spec, square, here())
        for i, cell in enumerate(cells):
            cell.value = cell.value + (TILE_BYTES if i < split else TILE_WORDS * spec.panel_row)
    for _ in k.when(whole < depth):
        _step(k, spec, square, _padded(k, spec, square, here(), (rows, depth - whole)))


def _padded(
    k: Kernel, spec: GemmSpec, square: _Square, at: _Operands, sizes: tuple[Int, Int]
) -> _Operands:
    """The last words of each row of A and column of B, and zeros up to a whole tile."""
    (rows, left), element, lanes = sizes, spec.element, spec.lanes
    mask = k.mask(left, element, TILE_WORDS)
    a = k.scratch(square.halves * TILE_ROWS * TILE_BYTES)
    for i in k.range(0, rows):
        words = k.load(at.a[0] + i * at.a_row, element, TILE_WORDS, mask)
        k.store(a + i * TILE_BYTES, words)
    panels = []
    for source in at.b:
        target = k.scratch(TILE_WORDS * spec.panel_row)
        for start in range(0, spec.nr, lanes):
            offset = start * element.bytes
            for w in k.range(0, left):
                x = k.load(source + w * spec.panel_row + offset, element, lanes)
                k.store(target + w * spec.panel_row + offset, x)
            for w in k.range(left, TILE_WORDS):
                k.store(target + w * spec.panel_row + offset, k.zero(element, lanes))
        panels.append(target)
    tiles = tuple(a + half * TILE_ROWS * TILE_BYTES for half in range(square.halves))
    return _Operands(tiles, k.const(TILE_BYTES), tuple(panels))


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


def _store(k: Kernel, square: _Square, target: Ptr, row: Int) -> None:
    for half in range(square.halves):
        for column in range(square.columns):
            at = target + row * (half * TILE_ROWS) + column * TILE_BYTES
            k.store_tile(square.sums(half, column), at, row)


def _rows(spec: GemmSpec, panels: int) -> Function:
    """The epilogue, some rows at a time: ``rows`` of sums in ``buffer``, as wide as ``panels``."""
    lanes, columns = spec.lanes, range(panels * spec.tile.nr_regs)
    element, width, size = spec.element, len(columns) * lanes, spec.element.bytes

    def body(k: Kernel, job_at: Ptr, tile_at: Ptr, buffer: Ptr, rows: Int) -> None:
        job, tile = JOB.view(k, job_at), TILE.view(k, tile_at)
        walk = TileMoves(spec, tile).rows(job)
        for full in k.branches(tile.int("cols").equals(width)):
            cols = None if full else tile.int("cols")
            masks = masks_of(k, spec, columns, cols) if spec.isa.mask_registers else None
            whole = rows // _TOGETHER * _TOGETHER
            for first, stop, count in ((k.const(0), whole, _TOGETHER), (whole, rows, 1)):
                for i in k.range(first, stop, count):
                    walk.to(i)
                    at = buffer + i * (width * size)
                    sums = {
                        (r, j): k.var(k.load(at + (r * width + j * lanes) * size, element, lanes))
                        for r in range(count)
                        for j in columns
                    }
                    conclude(k, spec, (job, tile), sums, cols, masks)
        # The next depth block starts from the first row again.
        walk.back()

    params = parameters("job* tile* buffer* rows")
    return Function(f"{spec.symbol}_rows_{width}", params, body)


def matrix_microkernel(spec: GemmSpec, panels: int) -> Function:
    """The function that adds one depth block to ``rows`` rows by ``panels`` micropanels.

    Up to 32 rows by one micropanel, up to 16 by two.  Integers are exact; for bfloat16 see
    :data:`jitgemm.isa.matrix.AMX`, whose sums over sixteen words are added up in ascending order.
    """
    columns = panels * spec.nr // TILE_WORDS
    finish, width = _rows(spec, panels), panels * spec.nr
    squares = (_Square(2, columns), _Square(1, columns)) if panels == 1 else (_Square(1, columns),)

    def run(
        k: Kernel, records: tuple[View, View], square: _Square, at: _Operands,
        sizes: tuple[Int, Int],
    ) -> None:  # fmt: skip
        (job, tile), (rows, _) = records, sizes
        upper = k.min(rows, TILE_ROWS)
        _configure(k, tile, square.heights(upper, rows - upper))
        _multiply(k, spec, square, at, sizes)

        def through_buffer() -> None:
            row = width * spec.element.bytes
            buffer = k.scratch(square.halves * TILE_ROWS * row)
            _store(k, square, buffer, k.const(row))
            k.call(finish, job.ptr, tile.ptr, buffer, rows)

        if not _untouched(spec):
            through_buffer()
            return
        for plain in k.branches(_as_they_are(spec, job, tile, width)):
            if plain:
                _store(k, square, tile.pointer("target"), tile.int("target_row"))
            else:
                through_buffer()

    def body(k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, b: Ptr, rows: Int, depth: Int) -> None:
        job, tile = JOB.view(k, job_at), TILE.view(k, tile_at)
        a_row = job.int("a_row")
        across = tuple(b + job.int("panel_stride") * i for i in range(panels))
        for lower in k.branches(rows > TILE_ROWS):
            if lower and panels > 1:
                continue  # no such tile
            square = squares[0 if lower or panels > 1 else 1]
            down = tuple(a + a_row * (half * TILE_ROWS) for half in range(square.halves))
            operands = _Operands(down, a_row, across)
            run(k, (job, tile), square, operands, (rows, depth))

    params = parameters("job* tile* a* b* rows depth")
    return Function(f"{spec.symbol}_tiles_{width}", params, body)
