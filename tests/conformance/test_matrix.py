"""Tiles of a matrix unit: the machine against the meaning of its operations, and what is refused.

The operations' meanings are themselves checked against exact integers, and for bfloat16 against
sums whose every step is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import MAPPED, PLAIN, native
from typed import TypedCase, WholeCase

from jitgemm.errors import LanguageError
from jitgemm.isa.matrix import AMX
from jitgemm.isa.tables import AVX512, AVX512_AMX
from jitgemm.isa.types import BF16, F32, I8, I32, ElementType
from jitgemm.jit import compiler
from jitgemm.jit.target import available
from jitgemm.kernels.arithmetic import OperandTypes
from jitgemm.kernels.expression import ACTIVATIONS
from jitgemm.kernels.nest import nest
from jitgemm.kernels.peak import io_bytes, operations_per_round, peak_function
from jitgemm.kernels.spec import Bias, Epilogue, GemmSpec, Scale
from jitgemm.lang.core import Function, Kernel, Ptr, parameters
from jitgemm.lang.interp import Memory, run
from rows import typed_spec

KINDS = {"tile_ss": (np.int8, np.int8), "tile_su": (np.int8, np.uint8),
         "tile_us": (np.uint8, np.int8), "tile_uu": (np.uint8, np.uint8)}  # fmt: skip
TILE_ROWS, TILE_WORDS, WIDTH = AMX.rows, AMX.words, AMX.row_bytes
NAMES = [p.name for p in AMX.products]


def _element(name: str) -> ElementType:
    return F32 if name == "tile_bf16" else I32


def _fold(name: str, rows: int) -> Function:
    """``total += a @ b`` on one tile each, of dense rows."""

    def body(k: Kernel, total: Ptr, a: Ptr, b: Ptr) -> None:
        row, state = k.const(WIDTH), total  # the unit has none
        k.configure_tiles(state, _heights(rows))
        for tile, at in ((0, total), (4, a), (6, b)):
            k.load_tile(state, tile, at, row)
        k.fold_tiles(state, name, 0, 4, 6)
        k.store_tile(state, 0, total, row)
        k.release_tiles(state)

    return Function(f"fold_{name}_{rows}", parameters("total* a* b*"), body)


def _heights(rows: int) -> int:
    return int.from_bytes([rows, rows, rows, rows, rows, rows, TILE_ROWS, TILE_ROWS], "little")


def _words(rng: np.random.Generator, name: str, rows: int) -> list[np.ndarray]:
    """Tiles of sums, of A and of B, as 32-bit words."""
    total, a, b = (rng.integers(0, 1 << 32, (r, TILE_WORDS), np.uint32)
                   for r in (rows, rows, TILE_ROWS))  # fmt: skip
    if name == "tile_bf16":
        # Close exponents, so that rounding shows; subnormal, infinite and other numbers in places.
        for x in (total, a, b):
            x[...] = x & np.uint32(0x83FF83FF) | np.uint32(0x3C003C00)
        a[0, 3], a[-1, 0], b[1, 1], b[2, 2] = 0x00017F80, 0x80000001, 0xFF803C00, 0x7FC13C00
        total[0, 5], total[-1, 7] = 0x00012345, 0x7F800000
    return [total, a, b]


@pytest.mark.parametrize("rows", [1, 5, TILE_ROWS])
@pytest.mark.parametrize("name", NAMES)
def test_a_tile_is_folded_as_its_meaning_says(
    name: str, rows: int, rng: np.random.Generator
) -> None:
    function, results = _fold(name, rows), []
    for compiled in (False, True):
        if compiled and not available(AVX512_AMX):
            continue
        given = _words(np.random.default_rng(rows), name, rows)
        arrays = given
        if compiled:
            unit = compiler.Unit(function.name, AVX512_AMX, lambda: [function])
            call = native(None, function, unit)  # type: ignore[arg-type]
            call(*(x.ctypes.data for x in arrays))
        else:
            memory = Memory()
            names = ("total", "a", "b")
            where = [memory.add(n, x, writable=n == "total")
                     for n, x in zip(names, arrays, strict=True)]  # fmt: skip
            run(function, memory, AVX512_AMX, *where)
        results.append(given[0])
    first = results[0]
    if name == "tile_bf16":
        numbers = [np.where(np.isnan(x), np.float32(0), x) for x in
                   (r.view(np.float32) for r in results)]  # fmt: skip
        assert len({x.tobytes() for x in numbers}) == 1
        assert len({np.isnan(r.view(np.float32)).tobytes() for r in results}) == 1
        return
    assert len({r.tobytes() for r in results}) == 1
    total, a, b = _words(np.random.default_rng(rows), name, rows)
    left, right = KINDS[name]
    x = a.view(left).reshape(rows, -1).astype(np.int64)
    y = b.view(right).reshape(TILE_ROWS, TILE_WORDS, 4).transpose(0, 2, 1)
    exact = total.view(np.int32) + x @ y.reshape(-1, TILE_WORDS).astype(np.int64)
    np.testing.assert_array_equal(first.view(np.int32), exact.astype(np.int32))


def test_bfloat16_adds_even_and_odd_steps_apart() -> None:
    """Sums of which each step is exact, so that only the order can be wrong."""
    a, b = np.zeros((1, 32), np.float32), np.ones((32, 1), np.float32)
    # Odd steps cancel among themselves before they meet what they would swallow.
    a[0, :6] = [1, 2.0**30, 2, -(2.0**30), 4, 8]
    words = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, b)]
    total = AMX.products[-1].meaning(
        np.full((1, 1), 16, np.float32), words[0].view(np.float32),
        words[1].reshape(TILE_ROWS, 2).copy().view(np.float32),
    )  # fmt: skip
    assert total[0, 0] == 1 + 2 + 4 + 8 + 16


@pytest.mark.parametrize("out", [BF16, F32], ids=str)
@pytest.mark.parametrize("epilogue", [PLAIN, Epilogue(beta=True, bias=Bias.FULL), MAPPED], ids=str)
def test_products_of_bfloat16(out: ElementType, epilogue: Epilogue) -> None:
    """Both backends write the same bytes; whole numbers come out exactly."""
    spec = typed_spec(AVX512_AMX, OperandTypes(BF16, BF16, out, out, out, bf16_dot=True), epilogue)
    assert spec.tiles
    start = WholeCase(spec, 3, spec.lanes + 1, 2 * TILE_WORDS + 7, row_tiles=2)
    for case in (
        start,
        replace(start, m=2 * TILE_ROWS + 1, n=spec.nr + 1, depth=1, in_place=True),
        replace(start, m=TILE_ROWS + 1, n=3 * spec.nr - 1, depth=64, in_place=True, panels=1),
        replace(start, m=TILE_ROWS, n=2 * spec.nr, depth=30, in_place=True),
        replace(start, m=2, n=2, direct=False, layout_a="both", layout_b="both", layout_d="cols"),
        replace(start, m=2, n=3, depth=0),
    ):
        case.check(nest(spec))


@pytest.mark.parametrize("name", ["relu", "clip"])
@pytest.mark.parametrize("out", [I8, I32], ids=str)
def test_activations_of_bytes(name: str, out: ElementType) -> None:
    """Between the zero points and a requantisation."""
    scale = Scale.ROW if out is I8 else Scale.NONE
    epilogue = Epilogue(
        beta=out is I32, bias=Bias.COLUMN, program=ACTIVATIONS[name], zero_a=True, scale=scale
    )
    spec = typed_spec(AVX512_AMX, OperandTypes(I8, I8, I32, I32, out), epilogue)
    assert spec.tiles
    start = TypedCase(spec, 3, spec.lanes + 1, 2 * TILE_WORDS + 7, row_tiles=2)
    for case in (start, replace(start, m=2 * TILE_ROWS + 1, n=spec.nr + 1, depth=64, panels=1)):
        case.check(nest(spec))


# -- what the interpreter refuses ------------------------------------------------------------------


def _unconfigured(k: Kernel, there: Ptr) -> None:
    k.zero_tile(there, 0)


def _empty(k: Kernel, there: Ptr) -> None:
    k.configure_tiles(there, _heights(5))
    k.store_tile(there, 0, there, k.const(WIDTH))


def _kept(k: Kernel, there: Ptr) -> None:
    k.configure_tiles(there, _heights(5))


def _mismatched(k: Kernel, there: Ptr) -> None:
    k.configure_tiles(there, _heights(5))
    for tile in (0, 4, 5):
        k.zero_tile(there, tile)
    k.fold_tiles(there, "tile_ss", 0, 4, 5)


def _beyond(k: Kernel, there: Ptr) -> None:
    k.configure_tiles(there, _heights(5))
    k.load_tile(there, 0, there, k.const(WIDTH + 4))


def _no_such_register(k: Kernel, there: Ptr) -> None:
    k.configure_tiles(there, _heights(5))
    k.zero_tile(there, AMX.registers)


def _unknown(k: Kernel, there: Ptr) -> None:
    k.configure_tiles(there, _heights(5))
    k.fold_tiles(there, "tile_f8", 0, 4, 6)


@pytest.mark.parametrize(
    "body, why",
    [(_unconfigured, "no shape"), (_empty, "before anything"), (_kept, "left in use"),
     (_mismatched, "tiles of shapes"), (_beyond, "bounds of region"),
     (_no_such_register, "no shape"), (_unknown, "no product 'tile_f8'")],
)  # fmt: skip
def test_what_would_crash_or_leak_is_an_error(body: Callable[..., None], why: str) -> None:
    function = Function("wrong", parameters("there*"), body)
    there, memory = np.zeros((5, WIDTH), np.uint8), Memory()
    at = memory.add("there", there, writable=True)
    with pytest.raises(LanguageError, match=why):
        run(function, memory, AVX512_AMX, at)


@pytest.mark.parametrize("place, value", [(0, 17), (0, 0), (7, 255)])
def test_impossible_heights_are_refused(place: int, value: int) -> None:
    rows = bytearray(_heights(5).to_bytes(8, "little"))
    rows[place] = value
    heights = int.from_bytes(rows, "little", signed=True)

    def body(k: Kernel, there: Ptr) -> None:
        k.configure_tiles(there, heights)

    memory = Memory()
    at = memory.add("there", np.zeros(1, np.uint8), writable=True)
    with pytest.raises(LanguageError, match="1 to 16 of each register"):
        run(Function("wrong", parameters("there*"), body), memory, AVX512_AMX, at)


def test_a_set_without_a_unit_knows_no_tiles() -> None:
    memory = Memory()
    at = memory.add("there", np.zeros(1, np.uint8), writable=True)
    with pytest.raises(LanguageError, match="avx512 has no matrix unit"):
        run(Function("wrong", parameters("there*"), _kept), memory, AVX512, at)


def test_the_palette_is_the_one_the_machine_wants() -> None:
    """Byte 0 is the palette's number, then bytes per row and rows of each register."""
    words = [_heights(5) if w is None else w for w in AMX.palette]
    palette = np.array(words, np.uint64).view(np.uint8)
    assert (palette.size, palette[0], palette[1:16].any()) == (64, 1, False)
    assert (palette[16:32].view(np.uint16) == WIDTH).all()
    assert palette[48:56].tolist() == [5, 5, 5, 5, 5, 5, 16, 16]
    assert not palette[32:48].any()
    assert not palette[56:].any()


def test_the_same_micropanels_serve_both_kinds_of_kernel() -> None:
    for types in (OperandTypes(BF16, BF16, BF16, BF16, BF16, bf16_dot=True), _bytes_of(I32)):
        tiles, vectors = (typed_spec(AVX512_AMX, types, vectors=v) for v in (False, True))
        assert (tiles.tiles, vectors.tiles) == (True, False)
        shared: list[Callable[[GemmSpec], Any]] = [
            lambda s: s.nr, lambda s: s.panel_row, lambda s: s.panel_element,
            lambda s: s.panel_bytes(5),
        ]  # fmt: skip
        for of in shared:
            assert of(tiles) == of(vectors)


def _bytes_of(out: ElementType) -> OperandTypes:
    return OperandTypes(I8, I8, out, out, out)


@pytest.mark.parametrize("name", NAMES)
def test_the_register_loop_adds_as_often_as_it_says(name: str) -> None:
    """Ones in the tile of A and B: every round adds the numbers of a row to every sum."""
    element = _element(name)
    one = 0x3F803F80 if element is F32 else 0x01010101
    io = np.full((2, TILE_ROWS, TILE_WORDS), one, np.uint32)
    io[1] = 0
    memory, rounds = Memory(), 3
    run(peak_function(element, AVX512_AMX, name), memory, AVX512_AMX, rounds,
        memory.add("io", io, writable=True))  # fmt: skip
    numbers = TILE_WORDS * (2 if element is F32 else 4)
    sums = io[1].view(np.float32 if element is F32 else np.int32)
    assert (sums == rounds * numbers).all()
    assert io.nbytes == io_bytes(element, AVX512_AMX, name)
    each = 2 * TILE_ROWS * TILE_WORDS * numbers
    assert operations_per_round(element, AVX512_AMX, name) == 4 * each
