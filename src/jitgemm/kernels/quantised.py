"""What integer sums are corrected by, and how they become narrow numbers again.

With zero points ``za`` (per row of A) and ``zb`` (per column of B) over a depth ``k``::

    sum((a - za) * (b - zb)) = sum(a * b) - za * sum(b) - zb * (sum(a) - k * za)

modulo ``2**32``.  Sums of B's columns lie behind its micropanels, sums of A's rows behind its
copied rows; padding is zero and adds to neither.

Requantisation is ``saturate(round_half_even(scale * sum) + zero_point)`` in float64: the product
is rounded once, as NumPy would.  Only scales near 1 and above can lead beyond 32 bits; then the
product is first bounded by the result's range less the zero point, which are whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from jitgemm.isa.types import F64, I32
from jitgemm.kernels.spec import GemmSpec, Scale
from jitgemm.lang.core import Int, Kernel, Mask, Ptr, Var, Vec
from jitgemm.lang.record import View

__all__ = ["ROUNDING", "correct", "requantised", "sums_at"]

# 1.5 * 2**52: added to a number of less than 51 bits it leaves a whole one in the last bits.
_SHIFT = 1.5 * 2.0**52
ROUNDING = 3
"""Numbers in the table ``job.rounding``: zero point, least and greatest result without it."""

Sums = dict[tuple[int, int], Var[Vec]]
Masks = dict[int, Mask | None]


def sums_at(spec: GemmSpec, panel: Ptr, depth: Int) -> Ptr:
    """Where the sums of a micropanel's columns are."""
    return panel + depth * spec.panel_row


def correct(
    k: Kernel, spec: GemmSpec, records: tuple[View, View], sums: Sums, masks: Masks
) -> None:
    """Take the zero points off the sums."""
    (job, tile), epilogue = records, spec.epilogue
    rows = sorted({i for i, _ in sums})
    points: dict[int, Vec] = {}
    if epilogue.zero_a:
        stride = job.int("zero_a_row")
        points = {i: k.load(tile.pointer("zero_a") + stride * i, I32) for i in rows}
        for j in masks:
            panel, within = divmod(j, spec.tile.nr_regs)
            at = tile.pointer("col_sums") + job.int("panel_stride") * panel
            # Panels are padded, and so are their sums.
            columns = k.load(at + within * spec.lanes * I32.bytes, I32, spec.lanes)
            for i in rows:
                product = k.op("mul", k.splat(points[i], spec.lanes), columns)
                sums[i, j].value = k.op("sub", sums[i, j].value, product)
    if not epilogue.zero_b:
        return
    terms = []
    depth = k.number(job.int("k_numbers"), I32)
    for i in rows:
        term = k.load(tile.pointer("row_sums") + job.int("a_row") * i, I32)
        if epilogue.zero_a:
            term = k.op("sub", term, k.op("mul", depth, points[i]))
        terms.append(term)
    for j, mask in masks.items():
        at = tile.pointer("zero_b") + j * spec.lanes * I32.bytes
        zeros = k.load(at, I32, spec.lanes, mask)
        for i, term in zip(rows, terms, strict=True):
            product = k.op("mul", k.splat(term, spec.lanes), zeros)
            sums[i, j].value = k.op("sub", sums[i, j].value, product)


def requantised(
    k: Kernel, spec: GemmSpec, records: tuple[View, View], sums: Sums, masks: Masks
) -> Iterator[tuple[tuple[int, int], Vec]]:
    """The sums as numbers of the result's type, one vector after the other."""
    for wide in k.branches(records[0].int("wide_scales").equals(1)):
        yield from _requantised(k, spec, records, sums, masks, wide=wide)


def _requantised(
    k: Kernel, spec: GemmSpec, records: tuple[View, View], sums: Sums, masks: Masks, *, wide: bool
) -> Iterator[tuple[tuple[int, int], Vec]]:
    """See :func:`requantised`; ``wide``: products may be beyond 32 bits, and are bounded first."""
    (job, tile), lanes, out = records, spec.lanes, spec.types.out
    table = job.pointer("rounding")
    zero, low, high = (k.load(table + i * F64.bytes, F64) for i in range(ROUNDING))
    point = k.splat(k.convert(zero, I32), lanes)
    least, most = -(1 << (out.bits - 1)) * out.signed, (1 << (out.bits - out.signed)) - 1
    bounds = k.literal(least, I32, lanes), k.literal(most, I32, lanes)
    shift = k.literal(_SHIFT, F64, lanes)
    scales, per_row = tile.pointer("scales"), spec.epilogue.scale is Scale.ROW
    for i in sorted({i for i, _ in sums}):
        if per_row:
            of_row = k.splat(k.load(scales + job.int("scale_row") * i, F64), lanes)
        for j, mask in masks.items():
            at = scales + j * lanes * F64.bytes
            scale = of_row if per_row else k.load(at, F64, lanes, mask)
            x = k.op("mul", k.convert(sums[i, j].value, F64), scale)
            if wide:
                bottom, top = k.splat(low, lanes), k.splat(high, lanes)
                x = k.op("select_lt", x, bottom, bottom, x)
                x = k.op("select_lt", top, x, top, x)
            # The last bits of the sum are the whole number nearest to x, to even between two.
            words = k.bits(k.op("add", x, shift), I32)
            whole = k.shuffle(words, words, range(0, 2 * lanes, 2))
            v = k.op("add", whole, point)
            v = k.op("minimum", k.op("maximum", v, bounds[0]), bounds[1])
            yield (i, j), k.convert(v, out)
