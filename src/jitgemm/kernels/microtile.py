"""One microtile down the depth: block by block, to D itself or through a buffer.

A D without unit column stride, and one that is also the C of ``beta * C``, cannot hold partial sums
between depth blocks: they spill to a small buffer on the stack.  So do sums that D is too narrow
for.
"""

from __future__ import annotations

from jitgemm.isa.types import ElementType
from jitgemm.kernels.columndots import column_dots
from jitgemm.kernels.columns import column_tile
from jitgemm.kernels.job import JOB, TILE
from jitgemm.kernels.matrix import matrix_microkernel
from jitgemm.kernels.micro import microkernel
from jitgemm.kernels.outer import outer_microkernel
from jitgemm.kernels.spec import MOST_ROWS, Bias, BSource, GemmSpec
from jitgemm.kernels.tilecopy import Place, copy_tile
from jitgemm.lang.core import Cond, Function, Int, Kernel, Ptr, parameters
from jitgemm.lang.record import View

__all__ = ["PANELS", "microtile", "widest_row"]

PANELS = MOST_ROWS + 1
"""A variant of the microkernel is a number: micropanels times this, plus rows."""

_PARAMETERS = parameters("job* tile* a* b* variant p0 p1")


def widest_row(spec: GemmSpec) -> int:
    """Bytes of a row of sums of the widest register tile."""
    return max(panels for panels, _ in spec.tile.groups) * spec.tile_row


def _buffer_bytes(spec: GemmSpec) -> int:
    return widest_row(spec) * spec.tile.mr


def microtile(spec: GemmSpec) -> Function:
    """One microtile over the depth ``p0 .. p1``: rows of A times micropanels of B."""
    direct, through = _direct(spec), _through_buffer(spec)
    # Most tiles of small products are one depth block: one call less counts there.
    short = spec.b is not BSource.COLUMNS and not spec.spills_to_buffer

    def body(
        k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, b: Ptr, variant: Int, p0: Int, p1: Int
    ) -> None:
        job, tile = JOB.view(k, job_at), TILE.view(k, tile_at)
        for plain in k.branches(job.int("direct").equals(1)):
            if not plain:
                k.call(through, job_at, tile_at, a, b, variant, p0, p1)
                continue
            if not short:
                k.call(direct, job_at, tile_at, a, b, variant, p0, p1)
                continue
            for single in k.branches(p1 - p0 <= spec.element.depth_block):
                if single:
                    _one_block(k, spec, (job, tile), (a, b, variant), (p0, p1))
                else:
                    k.call(direct, job_at, tile_at, a, b, variant, p0, p1)

    return Function(f"{spec.symbol}_tile_any", _PARAMETERS, body)


def _direct(spec: GemmSpec) -> Function:
    """Partial sums are where the tile's record says, or in a buffer if D is too narrow."""

    def body(
        k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, b: Ptr, variant: Int, p0: Int, p1: Int
    ) -> None:
        records = JOB.view(k, job_at), TILE.view(k, tile_at)
        if spec.spills_to_buffer:
            space = k.scratch(_buffer_bytes(spec))
            # Block sums of a split have a place of their own.
            for _ in k.when(records[0].int("round_blocks").equals(0)):
                records[1].set("partial", space)
                records[1].set("partial_row", widest_row(spec))
        run = _down_columns if spec.b is BSource.COLUMNS else _by_blocks
        run(k, spec, records, (a, b, variant), (p0, p1))

    return Function(f"{spec.symbol}_tile", _PARAMETERS, body)


def _by_blocks(
    k: Kernel, spec: GemmSpec, records: tuple[View, View], what: tuple[Ptr, Ptr, Int],
    depth: tuple[Int, Int],
) -> None:  # fmt: skip
    """Each depth block is one call of the microkernel; without depth there still is an epilogue."""
    (job, _), (a, b, variant), (p0, p1) = records, what, depth
    block = spec.element.depth_block
    b_row = k.const(spec.panel_row) if spec.b is BSource.PACKED else job.int("b_row")
    a_col = job.int("a_col")
    for p in k.range(p0, k.select(p1 > p0, p1, p0 + 1), block):
        at = a + (p - p0) * a_col, b + (p - p0) * b_row, variant
        _one_block(k, spec, records, at, (p, k.min(p + block, p1)))


def _one_block(
    k: Kernel, spec: GemmSpec, records: tuple[View, View], what: tuple[Ptr, Ptr, Int],
    depth: tuple[Int, Int],
) -> None:  # fmt: skip
    """Add one depth block to the tile."""
    (job, tile), (a, b, variant), (p, end) = records, what, depth
    _set_ends(k, records, p.equals(0), end)
    if spec.tiles:
        kernel = matrix_microkernel if spec.outer is None else outer_microkernel
        for panels in k.cases(variant // PANELS, [p for p, _ in spec.tile.groups]):
            micro, height = kernel(spec, panels), variant % PANELS
            k.call(micro, job.ptr, tile.ptr, a, b, height, end - p)
        return
    for number in k.cases(variant, [g * PANELS + r for g, r in spec.tile.variants()]):
        panels, rows = divmod(number, PANELS)
        k.call(microkernel(spec, panels, rows), job.ptr, tile.ptr, a, b, end - p)


def _set_ends(k: Kernel, records: tuple[View, View], first: Cond, end: Int) -> None:
    """Tell the tile whether these are its first and its last steps of depth."""
    job, tile = records
    tile.set("first", k.select(first, k.const(1), k.const(0)))
    tile.set("last", k.select(end >= job.int("k_groups"), k.const(1), k.const(0)))


def _down_columns(
    k: Kernel, spec: GemmSpec, records: tuple[View, View], what: tuple[Ptr, Ptr, Int],
    depth: tuple[Int, Int],
) -> None:  # fmt: skip
    """The walk along columns of B knows of depth blocks itself, and takes the whole depth."""
    (job, tile), (a, b, variant), (p0, p1) = records, what, depth
    _set_ends(k, records, p0.equals(0), p1)
    dots = spec.arithmetic.group > 1
    for number in k.cases(variant, [g * PANELS + r for g, r in spec.tile.variants()]):
        if dots:
            walk = column_dots(spec, number % PANELS)
            k.call(walk, job.ptr, tile.ptr, a, b, p1 - p0)
            continue
        for staggered in k.branches(job.int("staggered").equals(1)):
            walk = column_tile(spec, number % PANELS, staggered=staggered)
            k.call(walk, job.ptr, tile.ptr, a, b, p1 - p0)


def _through_buffer(spec: GemmSpec) -> Function:
    """The tile in a buffer with dense rows, C and a bias per element likewise; then copied to D."""
    direct, types = _direct(spec), spec.types

    def body(
        k: Kernel, job_at: Ptr, tile_at: Ptr, a: Ptr, b: Ptr, variant: Int, p0: Int, p1: Int
    ) -> None:
        job, tile = JOB.view(k, job_at), TILE.view(k, tile_at)
        row, shape = (
            k.const(widest_row(spec)),
            (variant % PANELS, tile.int("cols") // spec.components),
        )

        def copy(name: str, kind: ElementType, source: Place, target: Place) -> None:
            swap = job.int(f"swap_{name}").differs(0)
            copy_tile(k, kind, source, target, shape, spec.components, swap)

        def dense(at: Ptr, kind: ElementType) -> Place:
            return at, row, k.const(spec.components * kind.bytes)

        def in_memory(at: Ptr, name: str) -> Place:
            return at, job.int(f"{name}_row"), job.int(f"{name}_col")

        def bring(name: str, kind: ElementType) -> None:
            space = k.scratch(_buffer_bytes(spec))
            copy(name, kind, in_memory(tile.pointer(name), name), dense(space, kind))
            tile.set(name, space)
            tile.set(f"{name}_row", row)

        buffer, target = k.scratch(_buffer_bytes(spec)), tile.pointer("target")
        for field in ("partial", "target"):
            tile.set(field, buffer)
            tile.set(f"{field}_row", row)
        if spec.epilogue.beta:
            bring("c", types.c)
        if spec.epilogue.bias is Bias.FULL:
            bring("bias", types.bias)
        k.call(direct, job_at, tile_at, a, b, variant, p0, p1)
        copy("d", types.out, dense(buffer, types.out), in_memory(target, "d"))

    return Function(f"{spec.symbol}_tile_buffered", _PARAMETERS, body)
