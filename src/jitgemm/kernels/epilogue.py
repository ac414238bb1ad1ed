"""What happens to the sums of a microtile before they are stored.

Order of operations, each rounded once: ``v = alpha * sum``; ``v = beta * C + v`` (one ``madd``);
``v = v + bias``; ``v = act(v)``.  Multiplying by ``alpha == 1`` is exact, so it is not a case of
its own; ``beta == 0`` is one, because C must then not be read.
"""

from __future__ import annotations

from jitgemm.kernels.spec import Activation, GemmSpec
from jitgemm.lang.core import Int, Kernel, Mask, Ptr, Var, Vec
from jitgemm.lang.record import View

__all__ = ["finish"]


def finish(
    k: Kernel,
    spec: GemmSpec,
    records: tuple[View, View],
    sums: dict[tuple[int, int], Var[Vec]],
    cols: Int | None,
) -> None:
    """Add earlier blocks, apply the epilogue at the last one, store.

    ``cols`` is ``None`` for a full tile; else columns from ``cols`` on are not touched.
    """
    job, tile = records
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
        alpha = k.splat(job.scalar("alpha", element), lanes)
        for cell in sums.values():
            cell.value = k.op("mul", alpha, cell.value)
        if spec.epilogue.beta:
            beta = k.splat(job.scalar("beta", element), lanes)
            source = row_pointers("c")
            for (i, j), cell in sums.items():
                c = k.load(at(source[i], j), element, lanes, masks[j])
                cell.value = k.op("madd", beta, c, cell.value)
        if spec.epilogue.bias:
            base = tile.pointer("bias")
            for j in columns:
                bias = k.load(at(base, j), element, lanes, masks[j])
                for i in rows:
                    cell = sums[i, j]
                    cell.value = k.op("add", cell.value, bias)
        if spec.epilogue.activation is not Activation.NONE:
            for cell in sums.values():
                cell.value = k.op(spec.epilogue.activation.value, cell.value)

    target = row_pointers("target")
    for (i, j), cell in sums.items():
        k.store(at(target[i], j), cell.value, masks[j])
