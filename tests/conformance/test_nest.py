"""The loop nest, its form for small products, packing and sweeps, against the written contract."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import (
    PLAIN,
    TURNED_ALPHA,
    TURNED_BETA,
    Array,
    Operands,
    backends,
    bits,
    by_lane,
    compiles,
    execute,
    pack,
    rich,
    same_bytes,
    specs,
)
from products import Case

from jitgemm.kernels import nest as nest_module
from jitgemm.kernels.job import JOB
from jitgemm.kernels.nest import nest, serial
from jitgemm.kernels.operands import pack_b
from jitgemm.kernels.spec import Bias, BSource, GemmSpec
from jitgemm.kernels.streaming import STREAMED_ROWS
from jitgemm.planner.route import PackA
from oracle import same_bits

STRAIGHT = [BSource.PACKED, BSource.INPLACE]
SPECS = specs(STRAIGHT)
RICH = rich(SPECS)
BARE = [p for p in SPECS if p.values[0].epilogue == PLAIN]
PACKED = [p for p in BARE if p.values[0].b is BSource.PACKED]
COMPILED = [p for p in SPECS if compiles(p.values[0])]


# -- packing --------------------------------------------------------------------------------------


def _pack_b(spec: GemmSpec, layout: str, span: tuple[int, int, int, int], swap: int) -> Array:
    """Pack part of a B that has this layout, on both backends; the bytes they agree on."""
    j0, j1, p0, p1 = span
    function, components = pack_b(spec), spec.components
    sides = []
    for compiled in backends(spec):
        x = Operands(spec, seed=7)
        b = x.matrix(p1 + 2, j1 + 1)
        if layout != "rows" or swap:
            moved = x.matrix(*b.shape, layout, swap=bool(swap))
            moved[...] = b
            b = moved
        inside = b[p0:p1, j0:j1]
        # Vectors from which shuffles pick hold what lies between elements, never beyond them.
        reach = [(n - 1) * step for n, step in zip(inside.shape, inside.strides, strict=True)]
        low = int(inside.__array_interface__["data"][0]) + sum(min(0, r) for r in reach)
        size = sum(map(abs, reach)) + inside.itemsize
        whole = (ctypes.c_uint8 * size).from_address(low)
        x.memory.add("b", np.frombuffer(whole, np.uint8), writable=False)
        depth, width = (
            p1 - p0 + 1,
            spec.nr // components,
        )  # one step more: the stride is not the size
        packed = np.empty((-(-(j1 - j0) // width), depth, width), x.number)
        packed.view(np.uint8)[...] = 0xA5
        job: dict[str, Any] = {
            "b": int(b.__array_interface__["data"][0]), "b_row": b.strides[0],
            "b_col": b.strides[1], "panel_stride": packed.strides[0], "swap_b": swap,
        }  # fmt: skip
        at = x.add("packed", packed[:, : p1 - p0], out=True, initialised=False)
        arguments = [x.record(JOB, job), at, j0 * components, j1 * components, p0, p1]
        execute(spec, function, x, arguments, compiled=compiled)
        same_bits(packed[:, : p1 - p0], pack(spec, inside), f"{layout} {span} {swap=}")
        assert (bits(packed[:, p1 - p0 :]) == 0xA5).all()
        sides.append(x)
    same_bytes(sides, f"pack_b of {layout} {span}")
    return bits(sides[0].written["packed"])


@pytest.mark.parametrize("spec", PACKED)
def test_pack_b(spec: GemmSpec) -> None:
    """Contiguous, strided and foreign sources give the same bytes; tails repeat their first one."""
    strip, width = 64 // spec.unit, spec.nr // spec.components
    for span in ((0, 2 * width, 0, 3), (width, 2 * width + 1, 1, strip + 2), (3, 2 + width, 0, 1)):
        layouts = (("rows", 0), ("cols", 0), ("both", 0), ("reversed", 0), ("rows", 1), ("cols", 1))
        results = [_pack_b(spec, layout, span, swap) for layout, swap in layouts]
        for other in results[1:]:
            np.testing.assert_array_equal(results[0], other)


# -- nests ----------------------------------------------------------------------------------------


def _edge(spec: GemmSpec) -> Case:
    mr, width = spec.tile.mr, spec.nr // spec.components
    return Case(spec, mr + 1, width + 1, 2, (mr + 2) // 2)


def _cases(spec: GemmSpec) -> Iterator[Case]:
    """Small products with several tiles, edges, chunks, blocks of columns and layouts."""
    width, edge = spec.nr // spec.components, _edge(spec)
    # Numbers per row and per column are read wherever they are, a matrix if its rows are dense.
    apart: dict[str, Any] = {"layout_bias": "both", "swap": "v"}
    if spec.epilogue.bias is Bias.FULL:
        apart = {}
    yield replace(edge, n=2 * width + 1, layout_a="cols", row_tiles=2, panels=1)
    # Tiles down the rows, which are alike, and a lower one.
    rows = min(2, spec.tile.mr)
    yield Case(spec, 3 * rows + (rows > 1), width + 1, 2, rows, row_tiles=4)
    # Few rows: groups of micropanels, whole and broken ones; fewer columns than a vector has lanes.
    panels, rows = spec.tile.groups[-1]
    yield Case(spec, rows, (panels + 1) * width + 1, 2, rows, layout_a="both")
    yield Case(spec, 1, 2 * panels * width - 1, 3, 1, **apart)
    yield Case(spec, 2, 1, 1, min(2, spec.tile.mr), **apart)
    yield replace(edge, pack_a=PackA.PANELS, layout_a="both", row_tiles=2, n=3)
    yield replace(edge, pack_a=PackA.PANELS, layout_a="cols", k=9, n=width - 1)
    yield replace(edge, pack_a=PackA.ROWS, k=spec.lanes + 3, row_tiles=2, n=1)
    yield replace(edge, pack_a=PackA.ROWS, layout_a="both", n=2)
    if spec.b is BSource.PACKED:
        yield replace(edge, prepacked=True, panels=2)
        yield replace(edge, layout_b="cols", block_panels=2, pack_panels=2)
        yield replace(edge, layout_b="reversed", block_panels=1, n=2 * width - 1, m=2)


# How B is read matters to the microkernel only, which is tested by itself.
BY_LANE = [p for p in by_lane(RICH) if p.values[0].b is BSource.PACKED]


@pytest.mark.parametrize("spec", BY_LANE)
def test_rows_of_a_by_vectors(spec: GemmSpec) -> None:
    """From micropanels, the last of them partial, and from an A whose rows lie side by side."""
    mr, lanes, width = spec.tile.mr, spec.lanes // spec.components, spec.nr // spec.components
    least = max(1, lanes)
    packed = Case(spec, 2 * mr + 1, width + 1, 3, mr, pack_a=PackA.PANELS, row_tiles=2)
    packed.check(nest(spec))
    # Micropanels as high as tiles, with fewer rows in the last one.
    replace(packed, m=2 * least + 1, tile_rows=least, layout_a="both").check(nest(spec))
    in_place = Case(spec, mr + lanes + 1, width - 1, 5, mr, layout_a="cols")
    in_place.check(nest(spec))
    replace(in_place, m=mr, k=spec.element.depth_block + 1, n=2).check(nest(spec))
    replace(in_place, m=mr, k=0).check(nest(spec))


def _through_a_buffer(spec: GemmSpec) -> Iterator[Case]:
    """Results, C and biases without unit stride or in foreign order, C that is D."""
    width, edge = spec.nr // spec.components, _edge(spec)
    foreign = "cd" + ("v" if spec.epilogue.bias is Bias.FULL else "")
    yield replace(edge, direct=False, layout_d="cols", layout_c="cols", layout_bias="cols")
    yield replace(edge, direct=False, layout_d="reversed", layout_bias="both", in_place=True,
                  panels=1)  # fmt: skip
    yield replace(edge, direct=False, layout_c="both", n=width - 1)
    yield replace(edge, direct=False, swap=foreign, n=width)
    yield replace(edge, direct=False, swap=foreign, layout_d="cols", layout_bias="both", n=3)
    yield replace(edge, in_place=True)
    if spec.epilogue.bias is not Bias.FULL:
        yield replace(edge, swap="v", layout_bias="both")
    # A in foreign order is put in order while it is packed.
    yield replace(edge, pack_a=PackA.PANELS, swap="a", layout_a="cols")
    yield replace(edge, pack_a=PackA.ROWS, swap="a", m=2)
    if spec.b is BSource.PACKED:
        yield replace(edge, swap="b", layout_b="cols", m=1, tile_rows=1)


@pytest.mark.parametrize("spec", SPECS)
def test_nest(spec: GemmSpec) -> None:
    """The five loops, with every way to read and pack."""
    cases = list(_cases(spec))
    for case in cases if spec.epilogue != PLAIN else cases[::2]:
        case.check(nest(spec))
    replace(_edge(spec), k=0).check(nest(spec))
    replace(_edge(spec), m=2, n=2, zeros=True).check(nest(spec))


@pytest.mark.parametrize("spec", RICH)
def test_layouts_of_results(spec: GemmSpec) -> None:
    """Every way to read C and bias, and to write D."""
    for case in _through_a_buffer(spec):
        case.check(nest(spec))


@pytest.mark.parametrize("spec", RICH)
def test_several_depth_blocks(spec: GemmSpec) -> None:
    """Sums rest in D, or in a buffer, between blocks; between slices; between steps of a chunk."""
    block = spec.element.depth_block
    deep = Case(spec, 2, spec.lanes // spec.components + 1, block + 1, min(2, spec.tile.mr))
    for depth in (block, 2 * block):
        replace(deep, k=depth, m=1, tile_rows=1).check(nest(spec))
    replace(deep, slice_depth=block, pack_a=PackA.PANELS).check(nest(spec))
    replace(deep, depth_step=block, layout_a="cols", n=1).check(nest(spec))
    replace(deep, direct=False, layout_d="cols", in_place=True, n=3).check(nest(spec))
    if spec.b is BSource.PACKED:
        replace(deep, prepacked=True, slice_depth=block, n=3).check(nest(spec))


@pytest.mark.parametrize("spec", BARE)
def test_the_depth_block_of_the_element_type(spec: GemmSpec) -> None:
    """The block that is released, on this machine's code."""
    block = spec.element.depth_block
    case = Case(spec, 2, 5, block + 3, min(2, spec.tile.mr))
    for depth in (block - 1, block, block + 1, 2 * block + 1):
        replace(case, k=depth, slice_depth=block).check(nest(spec), machine_only=True)


@pytest.mark.parametrize("spec", [p for p in SPECS if p.values[0].components == 2])
def test_complex_scalars_and_conjugation(spec: GemmSpec) -> None:
    """Every sign, and factors with and without an imaginary part."""
    edge = replace(_edge(spec), m=min(2, spec.tile.mr), k=3)
    for alpha, beta, conj in (
        (TURNED_ALPHA, TURNED_BETA, ""), (1, TURNED_BETA, "a"), (1j, 1, "b"), (-1, -1j, "ab"),
        (0.0 + 0.3j, 1, ""),
    ):  # fmt: skip
        replace(edge, alpha=alpha, beta=beta, conj=conj).check(nest(spec))
    replace(edge, k=0, conj="ab", alpha=TURNED_ALPHA).check(nest(spec))


@pytest.mark.parametrize("spec", SPECS)
def test_serial(spec: GemmSpec) -> None:
    """The form for small products equals the nest: it is held to the same contract."""
    mr, width = spec.tile.mr, spec.nr // spec.components
    ready = spec.b is BSource.PACKED
    for m, n, depth in ((mr + 1, width + 1, 2), (1, 1, 1), (1, 3, 0)):
        Case(spec, m, n, depth, min(m, mr), prepacked=ready).check(serial(spec))


@pytest.mark.parametrize("spec", [p for p in SPECS if p.values[0].b is BSource.INPLACE])
def test_sweeps(spec: GemmSpec) -> None:
    """Few rows sweep along the rows of B: the same sums, whatever the number of columns."""
    lanes, bias = (
        spec.lanes // spec.components,
        "cols" if spec.epilogue.bias is Bias.ROW else "rows",
    )
    for m in range(1, STREAMED_ROWS + 1):
        for n, depth in ((1, 3), (lanes, 9), (5 * lanes - 1, 10)):
            case = Case(spec, m, n, depth, min(m, spec.tile.mr), sweep=True, layout_bias=bias)
            case.check(nest(spec))
    replace(case, m=1, n=2, k=3, tile_rows=1, zeros=True).check(nest(spec))
    if spec.epilogue != PLAIN:
        replace(case, n=3, k=spec.element.depth_block + 9).check(nest(spec))


def _packed_rows(case: Case, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the nest packs rows of A for a case, which it also does right."""
    calls, function = [], nest_module.pack_a(case.spec)

    def body(k: Any, *args: Any) -> None:
        calls.append(1)
        function.body(k, *args)

    counted = replace(function, body=body)
    with monkeypatch.context() as patch:
        patch.setattr(nest_module, "pack_a", lambda _: counted)
        x, job, d, want = case.build()
        execute(case.spec, nest(case.spec), x, [job, 0], compiled=False)
    same_bits(d, want, str(case))
    return len(calls)


@pytest.mark.parametrize("spec", [p for p in RICH if p.values[0].isa.interpreted])
def test_rows_are_packed_once_for_all_columns(
    spec: GemmSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread knows what its region holds: chunks of columns follow each other."""
    mr, width, block = spec.tile.mr, spec.nr // spec.components, spec.element.depth_block
    case = Case(spec, 2 * mr + 1, 2 * width + 1, block + 2, mr, panels=1, pack_a=PackA.PANELS)
    assert _packed_rows(case, monkeypatch) == 3
    assert _packed_rows(replace(case, slice_depth=block), monkeypatch) == 6
    # Other rows or another depth in between: blocks of columns come after all of them.
    if spec.b is BSource.PACKED:
        assert _packed_rows(replace(case, block_panels=2), monkeypatch) == 6
        one = replace(case, m=mr, block_panels=1)
        assert _packed_rows(one, monkeypatch) == 1
        assert _packed_rows(replace(one, slice_depth=block), monkeypatch) == 6


@pytest.mark.parametrize("spec", COMPILED)
def test_two_threads(spec: GemmSpec) -> None:
    """Tickets drawn by two threads cover the product once, whoever draws which."""
    mr, width = spec.tile.mr, spec.nr // spec.components
    case = Case(spec, 5 * mr, 5 * width + 1, 7, mr, panels=1, block_panels=3, threads=2)
    case.check_threads(nest(spec))
    replace(case, pack_a=PackA.PANELS).check_threads(nest(spec))
    replace(case, pack_a=PackA.ROWS, panels=0).check_threads(nest(spec))
