"""What happens to the sums of a microtile before they are stored.

Order of operations, each rounded once: ``v = scaling(sum)``; ``v = alpha * v``;
``v = beta * C + v`` (one ``madd``); ``v = v + bias``; ``v = program(v)``.  Multiplying by
``alpha == 1`` is exact, so it is not a case of its own; ``beta == 0`` is one, because C must then
not be read.

Sums of integers whose result is a float become f32 first, rounded once.

A complex sum comes as two vectors of reals, the products with the real and with the imaginary parts
of A: ``(rr, ri)`` and ``(ir, ii)`` pairwise.  The sum is ``(rr - ii, ri + ir)``; conjugation only
changes signs.  Each of the four is a chain of its own, so ``A @ A^H`` is exactly Hermitian.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jitgemm.isa.types import F32, I32, ElementType
from jitgemm.kernels.expression import Program, emit
from jitgemm.kernels.job import EPILOGUE_OPERANDS, JOB, TILE
from jitgemm.kernels.quantised import correct, requantised
from jitgemm.kernels.spec import Bias, GemmSpec, Scale
from jitgemm.lang.core import Function, Int, Kernel, Mask, Ptr, Var, Vec, parameters
from jitgemm.lang.record import View

__all__ = ["Combination", "Masks", "conclude", "finish", "masks_of"]

# A map of more than a few instructions is not repeated in the code of every register tile: the tile
# is stored first and mapped by one loop while it is in L1.
# Functions are chains of dependent operations: vectors side by side hide their latency (fused gelu,
# 512x768x3072 f32: one at a time 25 % over plain, two 16 %, four 26 %, with many subnormal results,
# which cost less since; Zen 5, 2026-11-30).
_TOGETHER = 2
_ROWS_PER_POINTER = 3

Sums = dict[tuple[int, int], Var[Vec]]
Masks = dict[int, Mask | None]


def masks_of(k: Kernel, spec: GemmSpec, columns: Iterable[int], cols: Int | None) -> Masks:
    """For each vector of columns the mask of those that exist; without ``cols`` all do."""
    if cols is None:
        return dict.fromkeys(columns)
    return {j: k.mask(cols - j * spec.lanes, spec.element, spec.lanes) for j in columns}


def _pair(k: Kernel, spec: GemmSpec, at: Ptr, lanes: int = 0) -> Vec:
    """Two reals at ``at``, again and again, in as many lanes as a vector has or as asked for."""
    two = k.load(at, spec.element, 2)
    return k.shuffle(two, two, [0, 1] * ((lanes or spec.lanes) // 2))


def _exchanged(k: Kernel, x: Vec) -> Vec:
    """Real and imaginary parts exchanged."""
    return k.shuffle(x, x, [i ^ 1 for i in range(x.lanes)])


class Combination:
    """Complex sums from those of the real and the imaginary row of A."""

    def __init__(self, k: Kernel, spec: GemmSpec, job: View, lanes: int = 0) -> None:
        self.k = k
        self.real_signs, self.imaginary_signs = (
            _pair(k, spec, job.at(name), lanes) for name in ("sign_real", "sign_imag")
        )

    def of(self, real: Vec, imaginary: Vec) -> Vec:
        """``(rr, ri)`` and ``(ir, ii)`` combined."""
        # Products with signs are exact: the multiply-add is one rounded addition.
        kept = self.k.op("mul", self.real_signs, real)
        return self.k.op("madd", self.imaginary_signs, _exchanged(self.k, imaginary), kept)


def _combine(k: Kernel, spec: GemmSpec, job: View, sums: Sums) -> Sums:
    """Sums of numbers: those of rows of reals in pairs, in the cells of the first of each."""
    if spec.components == 1:
        return sums
    combination, result = Combination(k, spec, job), {}
    for (i, j), cell in sums.items():
        if i % 2 == 0:
            cell.value = combination.of(cell.value, sums[i + 1, j].value)
            result[i // 2, j] = cell
    return result


class _Scalar:
    """A factor, real or complex."""

    def __init__(self, k: Kernel, spec: GemmSpec, job: View, name: str) -> None:
        self.k, self.spec, self.job, self.name = k, spec, job, name
        if spec.components == 1:
            self.straight = k.splat(job.scalar(name, spec.epilogue_type), spec.lanes)
        else:
            self.straight = _pair(k, spec, job.at(name))

    def add_imaginary(self, cells: list[tuple[Var[Vec], Vec]]) -> None:
        """Add the products of the imaginary part, if there is one: 0 times infinity is NaN."""
        if self.spec.components == 1:
            return
        for _ in self.k.when(self.job.int(f"complex_{self.name}").equals(1)):
            factor = _pair(self.k, self.spec, self.job.at(f"{self.name}_imag"))
            for cell, x in cells:
                cell.value = self.k.op("madd", factor, _exchanged(self.k, x), cell.value)


def finish(
    k: Kernel,
    spec: GemmSpec,
    records: tuple[View, View],
    sums: Sums,
    cols: Int | None,
    masks: Masks | None = None,
) -> None:
    """Add earlier blocks, apply the epilogue at the last one, store.

    ``cols`` is ``None`` for a full tile; else columns from ``cols`` on are not touched.  ``masks``
    are those of ``cols``, for a caller that has them.
    """
    conclude(k, spec, records, _combine(k, spec, records[0], sums), cols, masks)


def conclude(
    k: Kernel,
    spec: GemmSpec,
    records: tuple[View, View],
    sums: Sums,
    cols: Int | None,
    masks: Masks | None = None,
) -> None:
    """:func:`finish` for sums that are complex already, or real."""
    _, tile = records
    element, lanes, program = spec.element, spec.lanes, spec.epilogue.program
    columns = sorted({j for _, j in sums})
    rows = sorted({i for i, _ in sums})
    masks = masks or masks_of(k, spec, columns, cols)

    def store(where: str, values: Iterable[tuple[tuple[int, int], Vec]]) -> None:
        places = _row_pointers(tile, where, len(rows))
        for (i, j), value in values:
            k.store(places[i] + j * lanes * value.element.bytes, value, masks[j])

    for _ in k.when(tile.int("first").equals(0)):
        earlier = _row_pointers(tile, "partial", len(rows))
        for (i, j), cell in sums.items():
            block = k.load(earlier[i] + j * lanes * element.bytes, element, lanes, masks[j])
            cell.value = k.op("add", block, cell.value)

    width = k.const(len(columns) * lanes) if cols is None else cols
    mapped = program is not None and not program.cheap
    if not spec.spills_to_buffer:
        for _ in k.when(tile.int("last").equals(1)):
            _apply(k, spec, records, sums, masks)
        # Of floats that were integers the cells hold the bits.
        store("target", ((at, cell.value) for at, cell in sums.items()))
        if program is not None and mapped:
            for _ in k.when(tile.int("last").equals(1)):
                k.call(_map(spec, program), records[0].ptr, tile.ptr, len(rows), width)
        return
    for last in k.branches(tile.int("last").equals(1)):
        if last:
            done = _apply(k, spec, records, sums, masks)
            if program is None or not mapped:
                store("target", _narrowed(k, spec, records, done, masks))
                continue
        store("partial", ((at, cell.value) for at, cell in sums.items()))
        if last and program is not None:
            k.call(_map(spec, program), records[0].ptr, tile.ptr, len(rows), width)


def _row_pointers(tile: View, name: str, rows: int) -> list[Ptr]:
    # Three rows share a pointer, as those of A do: sums of a shallow depth end so often that
    # adding up addresses shows (9 x 9 x 9 f32: 18.6 to 17.9 ns; Zen 5, medians of five
    # interleaved runs, 2026-11-30).
    stride, pointers = tile.int(f"{name}_row"), [tile.pointer(name)]
    for i in range(1, rows):
        group, within = divmod(i, _ROWS_PER_POINTER)
        start = pointers[(group if within else group - 1) * _ROWS_PER_POINTER]
        pointers.append(start + stride * (within or _ROWS_PER_POINTER))
    return pointers


def _apply(
    k: Kernel, spec: GemmSpec, records: tuple[View, View], sums: Sums,
    masks: Masks,
) -> Sums:  # fmt: skip
    """The epilogue on finished sums, but for what is done over a stored tile.

    The same cells, as numbers of the type that the epilogue computes in.
    """
    (job, tile), lanes, epilogue = records, spec.lanes, spec.epilogue
    if spec.element.integral:
        correct(k, spec, records, sums, masks)
    if spec.dequantises:
        sums = {at: _as_float(k, cell) for at, cell in sums.items()}
    if epilogue.scaling is not None:
        _each(k, spec, records, (epilogue.scaling, sums), masks)
    if spec.epilogue_type.integral:
        # Multiplications of integers are slow enough to go round those by 1.
        for _ in k.when(job.int("alpha").differs(1)):
            _multiply(k, spec, job, sums)
    else:
        _multiply(k, spec, job, sums)
    if epilogue.beta:
        beta, kind = _Scalar(k, spec, job, "beta"), spec.types.c
        source, read = _row_pointers(tile, "c", len({i for i, _ in sums})), []
        for (i, j), cell in sums.items():
            c = _read(k, spec, source[i] + j * lanes * kind.bytes, kind, masks[j])
            cell.value = k.op("madd", beta.straight, c, cell.value)
            read.append((cell, c))
        beta.add_imaginary(read)
    _add_bias(k, spec, tile, sums, masks)
    if epilogue.program is not None and epilogue.program.cheap:
        _each(k, spec, records, (epilogue.program, sums), masks)
    return sums


def _as_float(k: Kernel, cell: Var[Vec]) -> Var[Vec]:
    """A cell of integers that holds f32 from here on, as bits: no register more is needed."""
    cell.value = k.bits(k.convert(cell.value, F32), I32)

    def write(value: Vec) -> None:
        cell.value = k.bits(value, I32)

    return Var(lambda: k.bits(cell.value, F32), write)


def _each(
    k: Kernel, spec: GemmSpec, records: tuple[View, View], what: tuple[Program, Sums], masks: Masks
) -> None:
    """Apply a program to every vector of sums."""
    program, sums = what
    for (i, j), cell in sums.items():
        where = k.const(i), j * spec.lanes, masks[j]
        cell.value = _run(k, spec, records, (program, cell.value), where)


def _multiply(k: Kernel, spec: GemmSpec, job: View, sums: Sums) -> None:
    alpha = _Scalar(k, spec, job, "alpha")
    before = [(cell, cell.value) for cell in sums.values()]
    for cell in sums.values():
        cell.value = k.op("mul", alpha.straight, cell.value)
    alpha.add_imaginary(before)


def _read(k: Kernel, spec: GemmSpec, at: Ptr, kind: ElementType, mask: Mask | None) -> Vec:
    """A vector of numbers of another operand as numbers of the sums' type."""
    return k.convert(k.load(at, kind, spec.lanes, mask), spec.epilogue_type)


def _narrowed(
    k: Kernel,
    spec: GemmSpec,
    records: tuple[View, View],
    sums: Sums,
    masks: Masks,
) -> Iterator[tuple[tuple[int, int], Vec]]:
    """Finished sums as numbers of the result's type."""
    if spec.epilogue.scale is not Scale.NONE:
        yield from requantised(k, spec, records, sums, masks)
        return
    for at, cell in sums.items():
        yield at, k.convert(cell.value, spec.types.out)


def _add_bias(k: Kernel, spec: GemmSpec, tile: View, sums: Sums, masks: Masks) -> None:
    kind, element, lanes = spec.epilogue.bias, spec.types.bias, spec.lanes
    if kind is Bias.NONE:
        return
    at, size = tile.pointer("bias"), element.bytes
    if kind is Bias.COLUMN:
        row = {j: _read(k, spec, at + j * lanes * size, element, masks[j]) for j in masks}
    # A bias per column has no such stride, and nobody sets one.
    stride = None if kind is Bias.COLUMN else tile.int("bias_row")
    for i in sorted({i for i, _ in sums}):
        if kind is Bias.ROW:
            if spec.components == 2:
                one = _pair(k, spec, at)
            else:
                one = k.splat(k.convert(k.load(at, element), spec.epilogue_type), lanes)
        for j, mask in masks.items():
            if kind is Bias.COLUMN:
                bias = row[j]
            elif kind is Bias.ROW:
                bias = one
            else:
                bias = _read(k, spec, at + j * lanes * size, element, mask)
            cell = sums[i, j]
            cell.value = k.op("add", cell.value, bias)
        if stride is not None and (i + 1, min(masks)) in sums:
            at = at + stride


def _run(
    k: Kernel,
    spec: GemmSpec,
    records: tuple[View, View],
    what: tuple[Program, Vec],
    where: tuple[Int, Int | int, Mask | None],
) -> Vec:
    """A program on a vector.

    Args:
        k: the backend.
        spec: the kernel.
        records: the job's and the tile's.
        what: the program and the vector.
        where: row and column of the tile where it begins, and which lanes exist.
    """
    (job, tile), (program, v), (row, col, mask) = records, what, where
    kind, lanes = spec.epilogue_type, v.lanes

    def inputs(name: str, index: int) -> Vec:
        match name:
            case "v":
                return v
            case "const":
                at = job.pointer("constants") + index * kind.bytes
                return k.splat(k.load(at, kind), lanes)
            case "operand":
                return _operand(k, spec, records, index, (row, col, lanes, mask))
            case "row":
                return k.splat(k.number(tile.int("row") + row, kind), lanes)
            case _:
                first = k.splat(k.number(tile.int("col") + col, kind), lanes)
                return k.op("add", first, k.steps(kind, lanes))

    return emit(program, k, inputs)


def _operand(
    k: Kernel, spec: GemmSpec, records: tuple[View, View], index: int,
    where: tuple[Int, Int | int, int, Mask | None],
) -> Vec:  # fmt: skip
    """Numbers of an operand of a program, for as many lanes from a row and column of the tile."""
    (job, tile), name, (row, col, lanes, mask) = records, EPILOGUE_OPERANDS[index], where
    axes, kind, at = spec.epilogue.operands[index], spec.epilogue_type, tile.pointer(name)
    if axes.by_row:
        at = at + row * job.int(f"{name}_row")
    if not axes.by_column:
        return k.splat(k.load(at, kind), lanes)
    at = at + col * kind.bytes
    if mask is None:
        return k.load(at, kind, lanes)
    # Lanes without a column repeat the first: they raise no flag of their own.
    return k.load(at, kind, lanes, mask, k.splat(k.load(tile.pointer(name), kind), lanes))


def _map(spec: GemmSpec, program: Program) -> Function:
    """Map the first rows and columns of a stored tile, several vectors at once while there are.

    From where the sums rest to the result, which is the same place unless the result is narrower.
    """
    element, out, lanes = spec.epilogue_type, spec.types.out, spec.lanes
    size, wide = element.bytes, _TOGETHER * lanes
    name = "partial" if spec.spills_to_buffer else "target"

    def body(k: Kernel, job_at: Ptr, tile_at: Ptr, rows: Int, cols: Int) -> None:
        records = JOB.view(k, job_at), TILE.view(k, tile_at)
        tile = records[1]
        source, stride = tile.pointer(name), tile.int(f"{name}_row")
        target, target_stride = tile.pointer("target"), tile.int("target_row")
        whole = cols // lanes * lanes
        mask = k.mask(cols - whole, element, lanes)
        for i in k.range(0, rows):
            row, to = source + i * stride, target + i * target_stride

            def step(j: Int, v: Vec, mask: Mask | None = None, i: Int = i, to: Ptr = to) -> None:
                value = k.convert(_run(k, spec, records, (program, v), (i, j, mask)), out)
                k.store(to + j * out.bytes, value, mask)

            most = whole // wide * wide
            for j in k.range(0, most, wide):
                step(j, k.load(row + j * size, element, wide))
            for j in k.range(most, whole, lanes):
                step(j, k.load(row + j * size, element, lanes))
            for _ in k.when(whole < cols):
                at = row + whole * size
                # Lanes without a column repeat the first: they raise no flag of their own.
                first = k.splat(k.load(at, element), lanes)
                step(whole, k.load(at, element, lanes, mask, first), mask)

    params = parameters("job* tile* rows cols")
    return Function(f"{spec.symbol}_map_{program.name}", params, body)
