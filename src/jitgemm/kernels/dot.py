"""One row times one column of floats: a sum in lanes.

A chain of multiply-adds takes four cycles per element whatever the machine; a dot product would
wait for nothing else.  So this route has an order of its own, fixed as the others are: element
``p`` belongs to virtual lane ``p mod lanes``, of which there are as many as fill 256 bytes (128 of
each product if complex); a lane is one ascending chain over a block of 512 elements per lane; at
the end of a block lanes are added in halves (``i`` and ``i + lanes / 2``, and so on), blocks in
ascending order.  Elements beyond the last count as products of zeros.  Halves are upconverted as
they are loaded, and summed as what they become.
"""

from __future__ import annotations

from jitgemm.isa.types import ElementType
from jitgemm.kernels.epilogue import finish
from jitgemm.kernels.job import EPILOGUE_OPERANDS, JOB, TILE
from jitgemm.kernels.spec import Bias, BSource, GemmSpec
from jitgemm.kernels.tilecopy import copy_tile
from jitgemm.lang.core import Cond, Function, Int, Kernel, Ptr, Var, Vec, parameters
from jitgemm.lang.record import View

__all__ = ["dot", "lane_count"]

# Four sums of 512 bits, or eight of 256, hide the latency of a multiply-add; a power of two, so
# that halves are equal.
_BYTES = 256
_WORD = 4


def lane_count(spec: GemmSpec) -> int:
    """Virtual lanes: numbers whose products are added side by side."""
    return _BYTES // spec.components // spec.unit


class _Lanes:
    """The virtual lanes, in vectors of the instruction set."""

    def __init__(self, k: Kernel, spec: GemmSpec) -> None:
        self.k, self.spec = k, spec
        self.reals = _BYTES // spec.components // spec.element.bytes
        self.depth = lane_count(spec)
        """Elements of depth per round of the lanes."""
        zero = k.zero(spec.element, spec.lanes)
        count = self.reals // spec.lanes
        self.sums = [[k.var(zero) for _ in range(count)] for _ in range(spec.components)]
        """Products element by element; if complex, also those with the other part of B."""

    def clear(self) -> None:
        zero = self.k.zero(self.spec.element, self.spec.lanes)
        for cell in (c for cells in self.sums for c in cells):
            cell.value = zero

    def add(self, a: Ptr, b: Ptr, count: Int | None) -> None:
        """A round of elements, of which ``count`` exist (``None``: all)."""
        k, spec = self.k, self.spec
        sides = (a, spec.types.a), (b, stored_b(spec))
        lanes = spec.lanes
        exchanged = [i ^ 1 for i in range(lanes)]
        for v in range(len(self.sums[0])):
            x, y = (self._load(p, stored, v, count) for p, stored in sides)
            for part, cells in enumerate(self.sums):
                other = k.shuffle(y, y, exchanged) if part else y
                cells[v].value = k.op("madd", x, other, cells[v].value)

    def _load(self, at: Ptr, stored: ElementType, v: int, count: Int | None) -> Vec:
        """Vector ``v`` of a round."""
        k, spec, lanes = self.k, self.spec, self.spec.lanes
        mask = None
        if count is not None:
            mask = k.mask(count * spec.components - v * lanes, stored, lanes)
        x = k.load(at + v * lanes * stored.bytes, stored, lanes, mask)
        return k.convert(x, spec.element)

    def total(self) -> list[Vec]:
        """Two lanes per kind of product: equal ones, or even and odd ones if complex.

        One lane where vectors have no more.
        """
        k, result = self.k, []
        for cells in self.sums:
            vectors = [c.value for c in cells]
            while len(vectors) > 1:
                half = len(vectors) // 2
                vectors = [k.op("add", x, y) for x, y in zip(vectors[:half], vectors[half:],
                                                              strict=True)]  # fmt: skip
            x = k.reduce("add", vectors[0], min(self.spec.lanes, 2))
            if self.spec.components == 1 and x.lanes == 2:
                x = k.op("add", x, k.shuffle(x, x, [1, 0]))
            result.append(x)
        return result


def stored_b(spec: GemmSpec) -> ElementType:
    """The type of B's numbers in memory."""
    return spec.in_memory.panel_element if spec.b is BSource.PACKED else spec.types.b


def dot(spec: GemmSpec) -> Function:
    """The whole product of a row and a column: same arguments as the nest."""
    element, stored = spec.element, (spec.types.a, stored_b(spec))
    units = [spec.components * x.bytes for x in stored]

    def body(k: Kernel, job_at: Ptr, thread: Int) -> None:  # noqa: ARG001  # nest's ABI
        job = JOB.view(k, job_at)
        sums = _Lanes(k, spec)
        none = k.literal(-0.0, element, min(spec.lanes, 2))
        # To -0 the first block adds without a trace.  In memory, because the lanes alone may take
        # all registers (16 of 128 bits).
        width = none.lanes * element.bytes
        space = k.scratch(spec.components * width)
        totals = [space + i * width for i in range(spec.components)]
        for at in totals:
            k.store(at, none)
        block = element.depth_block * sums.depth
        depth, a_col = job.int("k_groups"), job.int("a_col")
        b, b_row = job.pointer("b"), job.int("b_row")
        if spec.b is BSource.PACKED:
            b, b_row = job.pointer("packed"), k.const(spec.in_memory.panel_row)
        a = job.pointer("a")
        swapped = job.int("swap_a").differs(0), job.int("swap_b").differs(0)
        dense = a_col.equals(units[0]) & b_row.equals(units[1]) & ~(swapped[0] | swapped[1])
        spaces = k.scratch(_BYTES), k.scratch(_BYTES)
        # Where masks of narrow numbers are a branch per lane, the last ones are put before zeros.
        masked = spec.isa.mask_registers or all(x.bytes >= _WORD for x in stored)

        def gather(first: Int, count: Int) -> None:
            sides = zip(stored, (a, b), (a_col, b_row), swapped, spaces, strict=True)
            for kind, at, stride, swap, space in sides:
                _gather(k, spec, kind, (at + first * stride, stride, swap), (space, count))

        for p0 in k.range(0, depth, block):
            p1 = k.min(p0 + block, depth)
            whole = p0 + (p1 - p0) // sums.depth * sums.depth
            for contiguous in k.branches(dense):
                for p in k.range(p0, whole, sums.depth):
                    if contiguous:
                        sums.add(a + p * a_col, b + p * b_row, None)
                        continue
                    gather(p, k.const(sums.depth))
                    sums.add(*spaces, None)
                for _ in k.when(whole < p1):
                    if contiguous and masked:
                        sums.add(a + whole * a_col, b + whole * b_row, p1 - whole)
                        continue
                    if not masked:
                        for kind, space in zip(stored, spaces, strict=True):
                            _clear(k, kind, space, sums.depth)
                    gather(whole, p1 - whole)
                    sums.add(*spaces, p1 - whole if masked else None)
            for at, value in zip(totals, sums.total(), strict=True):
                k.store(at, k.op("add", k.load(at, element, none.lanes), value))
            sums.clear()
        del sums  # their registers are free again
        _finish(k, spec, job, [k.load(at, element, none.lanes) for at in totals])

    return Function(f"{spec.symbol}_dot", parameters("job* thread"), body)


def _gather(
    k: Kernel, spec: GemmSpec, kind: ElementType, source: tuple[Ptr, Int, Cond],
    target: tuple[Ptr, Int],
) -> None:  # fmt: skip
    """Numbers side by side: ``source`` is where, how far apart and whether byte-swapped."""
    (at, stride, swap), (space, count), none = source, target, k.const(0)
    unit = k.const(spec.components * kind.bytes)
    sides = (at, none, stride), (space, none, unit)
    copy_tile(k, kind, *sides, (k.const(1), count), spec.components, swap)


def _clear(k: Kernel, kind: ElementType, at: Ptr, count: int) -> None:
    lanes = max(1, k.isa.lanes(kind))
    for i in range(0, count, lanes):
        k.store(at + i * kind.bytes, k.zero(kind, lanes))


def _finish(k: Kernel, spec: GemmSpec, job: View, totals: list[Vec]) -> None:
    tile = TILE.view(k, k.scratch(TILE.size))
    for name in ("first", "last"):
        tile.set(name, 1)
    for name in ("target_row", "partial_row", "c_row", "bias_row", "row", "col"):
        tile.set(name, 0)

    types = spec.types

    def one(source: Ptr, target: Ptr, name: str, kind: ElementType) -> None:
        """Copy the one element of an operand, whose bytes may be byte-swapped."""
        step, single = k.const(spec.components * kind.bytes), k.const(1)
        sides = (source, step, step), (target, step, step)
        swap = job.int(f"swap_{name}").differs(0)
        copy_tile(k, kind, *sides, (single, single), spec.components, swap)

    def bring(name: str, kind: ElementType) -> None:
        space = k.scratch(spec.components * kind.bytes)
        one(job.pointer(name), space, name, kind)
        tile.set(name, space)

    result = k.scratch(spec.components * types.out.bytes)
    tile.set("target", result)
    # Sums that wait for a function may be wider than the result.
    tile.set("partial", k.scratch(spec.unit) if spec.spills_to_buffer else result)
    if spec.epilogue.beta:
        bring("c", types.c)
    if spec.epilogue.bias is not Bias.NONE:
        bring("bias", types.bias)
    for operand, _ in zip(EPILOGUE_OPERANDS, spec.epilogue.operands, strict=False):
        tile.set(operand, job.pointer(operand))

    def wide(x: Vec, y: Vec, order: list[int]) -> Var[Vec]:
        if spec.lanes == 1:
            return k.var(x)
        return k.var(k.shuffle(x, y, order * (spec.lanes // len(order))))

    if spec.components == 1:
        # Both lanes are the sum, which LLVM must not know: of what is equal in all lanes it
        # computes one, beside whatever else is in the vector, which may raise a flag.
        sums = {(0, 0): wide(totals[0], totals[0], [0, 1])}
    else:
        # From (rr, ii) and (ri, ir) to what rows of real and imaginary parts would hold.
        straight, crossed = totals
        sums = {(0, 0): wide(straight, crossed, [0, 2]), (1, 0): wide(straight, crossed, [3, 1])}
    # All lanes hold the sum.  Were it known that one counts, LLVM would compute on whatever is in
    # the others, and raise their flags.
    finish(k, spec, (job, tile), sums, job.int("n"))
    one(result, job.pointer("d"), "d", types.out)
