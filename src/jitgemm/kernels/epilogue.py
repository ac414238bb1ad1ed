"""What happens to the sums of a microtile before they are stored.

Order of operations, each rounded once: ``v = alpha * sum``; ``v = beta * C + v`` (one ``madd``);
``v = v + bias``; ``v = act(v)``.  Multiplying by ``alpha == 1`` is exact, so it is not a case of
its own; ``beta == 0`` is one, because C must then not be read.

A complex sum comes as two vectors of reals, the products with the real and with the imaginary parts
of A: ``(rr, ri)`` and ``(ir, ii)`` pairwise.  The sum is ``(rr - ii, ri + ir)``; conjugation only
changes signs.  Each of the four is a chain of its own, so ``A @ A^H`` is exactly Hermitian.
"""

from __future__ import annotations

from jitgemm.kernels.spec import Activation, Bias, GemmSpec
from jitgemm.lang.core import Int, Kernel, Mask, Ptr, Var, Vec
from jitgemm.lang.record import View

__all__ = ["finish"]

Sums = dict[tuple[int, int], Var[Vec]]


def _pair(k: Kernel, spec: GemmSpec, at: Ptr) -> Vec:
    """Two reals at ``at``, again and again."""
    two = k.load(at, spec.element, 2)
    return k.shuffle(two, two, [0, 1] * (spec.lanes // 2))


def _turned(k: Kernel, x: Vec) -> Vec:
    """Real and imaginary parts exchanged."""
    return k.shuffle(x, x, [i ^ 1 for i in range(x.lanes)])


def _combine(k: Kernel, spec: GemmSpec, job: View, sums: Sums) -> Sums:
    """Complex sums from those of the real and the imaginary rows of A, in the former's cells."""
    if spec.parts == 1:
        return sums
    keep, turn = _pair(k, spec, job.at("keep")), _pair(k, spec, job.at("turn"))
    result: Sums = {}
    for (i, j), cell in sums.items():
        if i % 2 == 0:
            # Products with signs are exact: the multiply-add is one rounded addition.
            kept = k.op("mul", keep, cell.value)
            cell.value = k.op("madd", turn, _turned(k, sums[i + 1, j].value), kept)
            result[i // 2, j] = cell
    return result


class _Scalar:
    """A factor, real or complex."""

    def __init__(self, k: Kernel, spec: GemmSpec, job: View, name: str) -> None:
        self.k, self.spec, self.job, self.name = k, spec, job, name
        if spec.parts == 1:
            self.straight = k.splat(job.scalar(name, spec.element), spec.lanes)
        else:
            self.straight = _pair(k, spec, job.at(name))

    def turn(self, cells: list[tuple[Var[Vec], Vec]]) -> None:
        """Add the products of the imaginary part, if there is one: 0 times infinity is NaN."""
        if self.spec.parts == 1:
            return
        for _ in self.k.when(self.job.int(f"complex_{self.name}").equals(1)):
            turn = _pair(self.k, self.spec, self.job.at(f"{self.name}_turn"))
            for cell, x in cells:
                cell.value = self.k.op("madd", turn, _turned(self.k, x), cell.value)


def finish(
    k: Kernel,
    spec: GemmSpec,
    records: tuple[View, View],
    sums: Sums,
    cols: Int | None,
) -> None:
    """Add earlier blocks, apply the epilogue at the last one, store.

    ``cols`` is ``None`` for a full tile; else columns from ``cols`` on are not touched.
    """
    job, tile = records
    sums = _combine(k, spec, job, sums)
    element, lanes = spec.element, spec.lanes
    columns = sorted({j for _, j in sums})
    rows = sorted({i for i, _ in sums})
    masks: dict[int, Mask | None] = dict.fromkeys(columns)
    if cols is not None:
        masks = {j: k.mask(cols - j * lanes, element, lanes) for j in columns}

    def at(base: Ptr, j: int) -> Ptr:
        return base + j * lanes * element.bytes

    def row_pointers(name: str) -> list[Ptr]:
        stride, p = tile.int(f"{name}_row"), tile.pointer(name)
        pointers = [p]
        for _ in rows[1:]:
            p = p + stride
            pointers.append(p)
        return pointers

    for _ in k.when(tile.int("first").equals(0)):
        earlier = row_pointers("partial")
        for (i, j), cell in sums.items():
            block = k.load(at(earlier[i], j), element, lanes, masks[j])
            cell.value = k.op("add", block, cell.value)

    for _ in k.when(tile.int("last").equals(1)):
        alpha = _Scalar(k, spec, job, "alpha")
        before = [(cell, cell.value) for cell in sums.values()]
        for cell in sums.values():
            cell.value = k.op("mul", alpha.straight, cell.value)
        alpha.turn(before)
        if spec.epilogue.beta:
            beta = _Scalar(k, spec, job, "beta")
            source, read = row_pointers("c"), []
            for (i, j), cell in sums.items():
                c = k.load(at(source[i], j), element, lanes, masks[j])
                cell.value = k.op("madd", beta.straight, c, cell.value)
                read.append((cell, c))
            beta.turn(read)
        _add_bias(k, spec, tile, sums, masks)
        if spec.epilogue.activation is not Activation.NONE:
            for cell in sums.values():
                cell.value = k.op(spec.epilogue.activation.value, cell.value)

    target = row_pointers("target")
    for (i, j), cell in sums.items():
        k.store(at(target[i], j), cell.value, masks[j])


def _add_bias(
    k: Kernel, spec: GemmSpec, tile: View, sums: Sums, masks: dict[int, Mask | None]
) -> None:
    kind, element, lanes = spec.epilogue.bias, spec.element, spec.lanes
    if kind is Bias.NONE:
        return
    at = tile.pointer("bias")
    if kind is Bias.COLUMN:
        row = {j: k.load(at + j * lanes * element.bytes, element, lanes, masks[j]) for j in masks}
    stride = tile.int("bias_row")
    for i in sorted({i for i, _ in sums}):
        if kind is Bias.ROW:
            one = _pair(k, spec, at) if spec.parts == 2 else k.splat(k.load(at, element), lanes)
        for j, mask in masks.items():
            if kind is Bias.COLUMN:
                bias = row[j]
            elif kind is Bias.ROW:
                bias = one
            else:
                bias = k.load(at + j * lanes * element.bytes, element, lanes, mask)
            cell = sums[i, j]
            cell.value = k.op("add", cell.value, bias)
        if kind is not Bias.COLUMN and (i + 1, min(masks)) in sums:
            at = at + stride
