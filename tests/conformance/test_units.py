"""Matrix units of any geometry, added from outside: both backends against exact integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from cases import CLIPPED, MAPPED, PLACED, PLAIN
from typed import TypedCase, WholeCase

from jitgemm.errors import LanguageError
from jitgemm.isa import tables
from jitgemm.isa.matrix import AMX, MatrixUnit, TileProduct
from jitgemm.isa.tables import AVX512_AMX, Isa
from jitgemm.isa.types import BF16, BOOL, F32, I8, I16, I32, I64, U8, ElementType
from jitgemm.jit import compiler
from jitgemm.kernels import registry
from jitgemm.kernels.arithmetic import OperandTypes, tiled
from jitgemm.kernels.nest import nest
from jitgemm.kernels.peak import io_bytes, operations_per_round, peak_function
from jitgemm.kernels.spec import Bias, Epilogue, GemmSpec, Scale, Tile
from jitgemm.kernels.squares import flat, largest, tall
from jitgemm.lang.core import Function, Int, IntLike, Kernel, Ptr
from jitgemm.lang.interp import InterpKernel, Memory, run
from jitgemm.planner.explain import explain
from jitgemm.planner.machine import Cache, Machine
from jitgemm.planner.problem import Operand, Problem
from jitgemm.planner.route import Context, make_plan
from jitgemm.tuning import KNOBS
from oracle import run_python
from outsider import add_unit, emulated, unit_set, zeroed_by_text
from rows import typed_spec

# Registers, rows, bytes per row; vectors of a micropanel.  Square and tall tiles; micropanels as
# wide as a tile, narrower and wider than all sums; with and without room for two tiles of A.
GEOMETRIES = {
    "6x8x32": (6, 8, 32, 3), "3x4x16": (3, 4, 16, 1), "5x8x16": (5, 8, 16, 2),
    "8x8x32": (8, 8, 32, 1), "7x4x16": (7, 4, 16, 3), "4x8x32": (4, 8, 32, 2),
}  # fmt: skip

EPILOGUES = (
    PLAIN,
    Epilogue(beta=True, bias=Bias.FULL),
    Epilogue(bias=Bias.ROW),
    Epilogue(beta=True, bias=Bias.COLUMN),
    Epilogue(zero_a=True),
    Epilogue(zero_b=True, bias=Bias.ROW),
    Epilogue(zero_a=True, zero_b=True, beta=True, bias=Bias.COLUMN),
    Epilogue(scale=Scale.ROW, bias=Bias.COLUMN),
    Epilogue(zero_a=True, zero_b=True, scale=Scale.ROW),
    Epilogue(zero_a=True, zero_b=True, scale=Scale.COLUMN, bias=Bias.FULL),
)


@pytest.fixture
def registered() -> Iterator[None]:
    """What a test registers is gone afterwards."""
    sets, rows = dict(tables.BY_NAME), dict(registry._ROWS)
    yield
    tables.BY_NAME.clear()
    tables.BY_NAME.update(sets)
    registry._ROWS.clear()
    registry._ROWS.update(rows)


def _added(geometry: str, **fields: Any) -> Isa:
    *shape, vectors = GEOMETRIES[geometry]
    isa = unit_set(f"toy_{geometry}", emulated(*shape, **fields))
    add_unit(isa, vectors)
    return isa


def _shapes(spec: GemmSpec, case: TypedCase) -> Iterator[TypedCase]:
    """Rows, columns and depths on both sides of every edge there is, and all kinds of layouts."""
    unit, how, mr = spec.isa.unit, spec.arithmetic, spec.tile.mr
    assert unit is not None
    assert how is not None
    tile = unit.words * how.group
    yield replace(case, m=mr, n=spec.nr, depth=2 * tile, in_place=True)
    yield replace(case, m=mr + 1, n=2 * spec.nr + 1, depth=tile + 1, row_tiles=2)
    yield replace(case, m=unit.rows, n=3 * spec.nr - 1, depth=tile - 1, layout_a="cols", panels=1)
    yield replace(case, m=unit.rows + 1, n=1, depth=1, layout_b="cols", one_zero=True)
    many = spec.tile.groups[-1][0]
    yield replace(case, m=min(3, mr), n=(many + 1) * spec.nr, depth=3 * tile + how.group + 1,
                  layout_a="reversed", layout_b="reversed", one_scale=True)  # fmt: skip
    yield replace(case, m=2, n=spec.nr + 3, depth=tile, direct=False, layout_a="both",
                  layout_b="both", layout_d="cols", swap="abcdv")  # fmt: skip
    yield replace(case, m=2, n=3, depth=0)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_integers_of_both_signs_with_every_epilogue(geometry: str, registered: None) -> None:
    isa = _added(geometry)
    pairs = list(product((I8, U8), repeat=2))
    for number, epilogue in enumerate(EPILOGUES):
        # Every sign with every epilogue is met on one of the geometries.
        a, b = pairs[(number + list(GEOMETRIES).index(geometry)) % 4]
        out = I32 if epilogue.scale is Scale.NONE else (I8, U8)[number % 2]
        spec = typed_spec(isa, OperandTypes(a, b, I32, I32, out), epilogue)
        assert spec.tiles
        cases = list(_shapes(spec, TypedCase(spec, 1, 1, 1)))
        for case in cases if number == 0 else cases[number % 2 :: 2]:
            case.check(nest(spec))


@pytest.mark.parametrize("geometry", ["6x8x32", "7x4x16"])
@pytest.mark.parametrize("epilogue", [PLAIN, CLIPPED, PLACED, MAPPED], ids=str)
def test_bfloat16_with_every_program(geometry: str, epilogue: Epilogue, registered: None) -> None:
    isa = _added(geometry)
    for out in (F32, BF16):
        spec = typed_spec(isa, OperandTypes(BF16, BF16, out, out, out, bf16_dot=True), epilogue)
        assert spec.tiles
        for case in list(_shapes(spec, WholeCase(spec, 1, 1, 1)))[:: 1 if out is F32 else 3]:
            replace(case, swap="").check(nest(spec))


def test_numbers_of_two_bytes_are_a_row_too(registered: None) -> None:
    isa = _added("6x8x32")
    for out in (I32, I16):
        spec = typed_spec(isa, OperandTypes(I16, I16, out, out, out), Epilogue(beta=True))
        assert spec.tiles
        assert spec.arithmetic is not None
        assert spec.arithmetic.group == 2
        for case in _shapes(spec, TypedCase(spec, 1, 1, 1)):
            case.check(nest(spec))


def test_several_depth_blocks(registered: None) -> None:
    isa = _added("5x8x16")
    for types in (OperandTypes(I8, U8, I32, I32, I32), OperandTypes(I8, I8, I32, I32, I16)):
        spec = typed_spec(isa, types, Epilogue(bias=Bias.COLUMN))
        spec = replace(spec, element=replace(spec.element, depth_block=12))
        TypedCase(spec, 9, spec.nr + 1, 30 * 4 + 3).check(nest(spec))


# -- what emulates a unit -------------------------------------------------------------------------


class _Emulating(InterpKernel):
    """Executes what emulates the unit, not what it means."""

    def _tell(self, word: Any, *operands: Any) -> None:
        word(self, *operands)

    def configure_tiles(self, state: Ptr, heights: IntLike) -> None:
        self._tell(self._unit.configure, state, self.const(heights))

    def release_tiles(self, state: Ptr) -> None:
        self._tell(self._unit.release, state)

    def zero_tile(self, state: Ptr, tile: int) -> None:
        self._tell(self._unit.zero, state, tile)

    def load_tile(self, state: Ptr, tile: int, p: Ptr, stride: Int) -> None:
        self._tell(self._unit.load, state, tile, p, stride)

    def store_tile(self, state: Ptr, tile: int, p: Ptr, stride: Int) -> None:
        self._tell(self._unit.store, state, tile, p, stride)

    def fold_tiles(self, state: Ptr, name: str, total: int, a: int, b: int) -> None:
        found = self._unit.product(name)
        assert found is not None
        self._tell(found.word, state, total, a, b)

    @property
    def _unit(self) -> MatrixUnit:
        assert self.isa.unit is not None
        return self.isa.unit


@pytest.mark.parametrize("geometry", ["6x8x32", "3x4x16"])
def test_emulated_words_stay_within_their_state(geometry: str, registered: None) -> None:
    """Every access of them is checked, and they do what the products mean."""
    isa = _added(geometry)
    spec = typed_spec(isa, OperandTypes(I8, U8, I32, I32, I32), Epilogue(bias=Bias.ROW))
    for case in _shapes(spec, TypedCase(spec, 1, 1, 1)):
        x, job, d, want = case.build()
        k = _Emulating(isa, x.memory)
        k.call(nest(spec), Ptr(k, job), 0)
        np.testing.assert_array_equal(d, want)


def test_a_word_may_be_text_with_a_state(registered: None) -> None:
    """One word of LLVM's among functions: it has the state's address, and temporaries."""
    isa = _added("6x8x32", zero=zeroed_by_text(8, 32))
    spec = typed_spec(isa, OperandTypes(U8, I8, I32, I32, I32))
    assert "llvm.memset" in compiler.text(compiler.gemm_unit(spec))
    for case in list(_shapes(spec, TypedCase(spec, 1, 1, 1)))[::2]:
        case.check(nest(spec))


def test_code_of_an_emulated_unit_is_known_by_its_text() -> None:
    """Another version of a word is another unit of code, on disk too; text tells of itself."""
    one = unit_set("toy", emulated(6, 8, 32))
    other = unit_set("toy", emulated(6, 8, 32, release=lambda k, state: k.store_int(state, 1)))
    tile = Tile(16, 3, ((1, 16),))
    keys = []
    for isa in (one, other, one):
        how = tiled(OperandTypes(I8, I8, I32, I32, I32), isa)
        spec = replace(typed_spec(AVX512_AMX, OperandTypes(I8, I8, I32, I32, I32)),
                       isa=isa, arithmetic=how, tile=tile)  # fmt: skip
        keys.append(compiler.gemm_unit(spec).key)
    assert keys[0] == keys[2] != keys[1]
    amx = typed_spec(AVX512_AMX, OperandTypes(I8, I8, I32, I32, I32))
    changed = replace(AVX512_AMX, unit=replace(AMX, zero=AMX.release))
    found = {compiler.gemm_unit(s).key for s in (amx, replace(amx, isa=changed))}
    assert len(found) == 2


# -- geometry -------------------------------------------------------------------------------------


@pytest.mark.parametrize("registers", range(3, 9))
def test_registers_are_shared_out_without_overlap(registers: int) -> None:
    unit = emulated(registers, 8, 16)
    squares = [flat(unit, n) for n in range(1, 9)]
    squares += [s for s in (tall(unit, n) for n in range(1, 9)) if s is not None]
    assert (largest(unit).halves == 2) == (registers > 4)
    for square in squares:
        sums = [square.sums(h, c) for h in range(square.halves) for c in range(square.columns)]
        a = [square.a(h) for h in range(square.halves)]
        b = {square.b(c) for c in range(square.columns)}
        used = [*sums, *a, *b]
        assert sorted(used) == sorted(set(used))
        assert set(used) <= set(range(registers))
        heights = square.heights(8, 5)
        assert isinstance(heights, int)
        rows = list(heights.to_bytes(8, "little"))
        assert not any(rows[registers:])
        assert all(1 <= r <= 8 for r in rows[:registers])
        for h in range(square.halves):
            high = 8 if h == 0 else 5
            mine = [square.sums(h, c) for c in range(square.columns)]
            assert {rows[r] for r in (square.a(h), *mine)} == {high}
        assert {rows[r] for r in b} == {unit.words}


def test_tiles_of_the_unit_that_is_there() -> None:
    tile = registry.tile_for(I32, AVX512_AMX)
    assert registry.matrix_tile(I32, tile, AVX512_AMX).groups == ((1, 32), (2, 16))
    for registers, rows, row_bytes, vectors, groups in (
        (6, 8, 32, 3, ((1, 16),)), (8, 8, 32, 1, ((1, 16), (4, 8))), (3, 4, 16, 1, ((1, 4),)),
        (8, 100, 32, 1, ((1, 200), (4, 100))), (8, 40, 32, 2, ((1, 80), (2, 40))),
    ):  # fmt: skip
        isa = unit_set("toy", emulated(registers, rows, row_bytes))
        plain = Tile(2, vectors, ((1, 2),))
        assert registry.matrix_tile(I32, plain, isa).groups == groups


def test_a_plan_says_in_which_order_the_units_products_add(registered: None) -> None:
    types = OperandTypes(BF16, BF16, F32, F32, F32, bf16_dot=True)
    row, out = Operand(200, 2), Operand(400, 4)
    some = Problem(F32, 9, 100, 3000, Operand(6000, 2), row, out, types=types)
    machine = Machine(Cache(32 << 10), Cache(1 << 20), Cache(32 << 20), "test")
    for isa, words in (
        (AVX512_AMX, "at most 32 tiles of 16 k-groups, each an even and an odd chain"),
        (_added("6x8x32"), "at most 64 tiles of 8 k-groups, each two chains of nobody's business"),
        (tables.AVX512_BF16, "at most 512 k-groups of 2 over k"),
    ):
        plan = make_plan(some, Context(isa, machine, 1, lambda name: KNOBS[name].default))
        assert words in explain(plan, machine)
        assert plan.spec.tiles == (isa.unit is not None)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_the_register_loop_counts_the_units_products(geometry: str, registered: None) -> None:
    isa = _added(geometry)
    unit = isa.unit
    assert unit is not None
    io = np.ones((2, unit.rows, unit.row_bytes), np.uint8)
    io[1] = 0
    memory, name = Memory(), "toy_i8_u8"
    run(peak_function(I32, isa, name), memory, isa, 3, memory.add("io", io, writable=True))
    numbers = unit.words * 4
    assert (io[1].view(np.int32) == 3 * numbers).all()
    assert io.nbytes == io_bytes(I32, isa, name)
    square = largest(unit)
    each = 2 * unit.rows * unit.words * numbers
    assert operations_per_round(I32, isa, name) == square.halves * square.columns * each


# -- what is found, and what is refused -----------------------------------------------------------


def test_products_are_found_by_their_types() -> None:
    """A bool is a byte; numbers of other widths, and rounding nobody allowed, are not taken."""

    def found(a: ElementType, b: ElementType, out: ElementType, *, dot: bool = False) -> str | None:
        how = tiled(OperandTypes(a, b, out, out, out, dot), AVX512_AMX)
        return None if how is None else f"{how.accumulate} {how.group}"

    assert found(I8, U8, I32) == "tile_su 4"
    assert found(BOOL, I8, I16) == "tile_us 4"
    assert found(BOOL, BOOL, BOOL) == "tile_uu 4"
    assert found(BF16, BF16, F32, dot=True) == found(BF16, BF16, BF16, dot=True) == "tile_bf16 2"
    for a, b, out in ((BF16, BF16, F32), (I8, I16, I32), (I16, I16, I32), (F32, F32, F32)):
        assert found(a, b, out) is None
    assert found(I8, I8, I64) is None
    assert found(BF16, F32, F32, dot=True) is None
    assert tiled(OperandTypes(I8, I8, I32, I32, I32), tables.AVX512) is None


@pytest.mark.parametrize(
    "change, why",
    [({"registers": 2}, "toy.registers: expected 3 to 8, got 2"),
     ({"registers": 9}, "toy.registers"), ({"rows": 0}, "toy.rows"), ({"rows": 128}, "toy.rows"),
     ({"row_bytes": 30}, "toy.row_bytes"), ({"row_bytes": 64}, "toy.row_bytes"),
     ({"products": ()}, "toy.products"), ({"products": AMX.products * 2}, "toy.products"),
     ({"state": -1}, "toy.state")],
)  # fmt: skip
def test_units_no_kernel_can_use_are_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replace(emulated(6, 8, 32), **change)


def test_products_no_kernel_can_use_are_refused() -> None:
    unit = emulated(6, 8, 32)
    first: TileProduct = unit.products[0]
    for change in ({"sums": I64}, {"a": I16}, {"a": I32, "b": I32}, {"b": BF16}):
        with pytest.raises(ValueError, match=r"toy\.products\['toy_i8_i8'\]"):
            replace(unit, products=(unit.products[1], replace(first, **change)))


def test_tiles_and_vectors_that_do_not_suit_the_unit_are_refused(registered: None) -> None:
    isa = unit_set("toy", emulated(6, 16, 64))
    before = registry.rows()
    with pytest.raises(ValueError, match="jitgemm: tile: expected micropanels of whole tiles"):
        registry.register(I32, isa, Tile(2, 3, ((1, 2),)))  # 24 columns, tiles of 16
    lacking = unit_set("toy", emulated(6, 8, 32), integers=tables.PORTABLE.integers)
    with pytest.raises(ValueError, match=r"toy_i8_i8: expected vectors that fold words of 4 i8"):
        registry.register(I32, lacking, Tile(2, 3, ((1, 2),)))
    lacking = unit_set("toy", emulated(6, 8, 32), ops=tables.PORTABLE.ops)
    with pytest.raises(ValueError, match="toy_bf16_bf16: expected vectors that fold words of 2"):
        registry.register(F32, lacking, Tile(2, 3, ((1, 2),)))
    named = replace(emulated(6, 8, 32).products[0], name="dot4")
    with pytest.raises(
        ValueError, match="isa, with toy: expected a product with a name of its own"
    ):
        registry.register(I32, unit_set("toy", emulated(6, 8, 32, products=(named,))),
                          Tile(2, 3, ((1, 2),)))  # fmt: skip
    assert registry.rows() == before


def test_a_meaning_must_keep_the_shape_of_the_sums() -> None:
    wrong = replace(emulated(6, 8, 32).products[0], meaning=lambda sums, a, b: sums[:1])
    isa = unit_set("toy", emulated(6, 8, 32, products=(wrong,)))

    def body(k: Kernel, there: Ptr) -> None:
        k.configure_tiles(there, largest(emulated(6, 8, 32)).heights(8, 8))
        for tile in range(6):
            k.zero_tile(there, tile)
        k.fold_tiles(there, "toy_i8_i8", 0, 2, 4)

    memory = Memory()
    at = memory.add("there", np.zeros(8, np.uint8), writable=True)
    with pytest.raises(LanguageError, match="its meaning changes"):
        run(Function("wrong", (("there", "ptr"),), body), memory, isa, at)


# -- through the front door -----------------------------------------------------------------------

PROGRAM = """
    import sys
    import numpy as np
    import jitgemm
    from outsider import add_unit, emulated, unit_set
    name, interpreted = sys.argv[1], sys.argv[1].endswith("checked")
    add_unit(unit_set(name, emulated(6, 8, 32), interpreted=interpreted), 3)
    rng = np.random.default_rng(1)
    shapes = [(1, 1, 1), (3, 7, 9), (4, 24, 40), (17, 50, 33)]
    for m, n, k in shapes if interpreted else [*shapes, (65, 130, 4100)]:
        for ta, tb in ((np.int8, np.int8), (np.uint8, np.int8), (np.int8, np.uint8)):
            a = rng.integers(np.iinfo(ta).min, np.iinfo(ta).max, (m, k), ta, endpoint=True)
            b = rng.integers(np.iinfo(tb).min, np.iinfo(tb).max, (k, n), tb, endpoint=True)
            exact = a.astype(np.int64) @ b.astype(np.int64)
            packed = jitgemm.prepack_rhs(b)
            for right in (b, np.asfortranarray(b), packed):
                assert (jitgemm.gemm(a, right) == exact.astype(np.int32)).all()
                backwards = jitgemm.gemm(a[::-1], right, threads=2)
                assert (backwards == exact[::-1].astype(np.int32)).all()
            shifted = (a.astype(np.int64) - 3) @ (b.astype(np.int64) - 5)
            got = jitgemm.gemm(a, b, a_zero_point=3, b_zero_point=5)
            assert (got == shifted.astype(np.int32)).all()
            how = jitgemm.Requantize(scale=0.001, zero_point=-5, dtype=np.int8)
            want = np.clip(np.rint(exact.astype(np.int32) * 0.001) - 5, -128, 127)
            assert (jitgemm.gemm(a, packed, requantize=how) == want).all()
            said = jitgemm.plan(a, packed).explain()
            assert (f"; toy_{a.dtype.kind}8_{b.dtype.kind}8" in said) == (m >= 4), said
            assert f"__{name}" in said
    x = rng.integers(-4, 5, (2, 9, 30)).astype(np.float32)
    y = rng.integers(-4, 5, (2, 30, 25)).astype(np.float32)
    assert (jitgemm.gemm(x, y) == x @ y).all()
    print(jitgemm.show_config()["isa"])
"""


@pytest.mark.parametrize("name", ["toy_unit", "toy_unit_checked"])
def test_a_process_that_adds_a_unit_and_pins_it(name: str) -> None:
    """Generated code, and every access checked: whole products from Python."""
    assert run_python(PROGRAM, name, JITGEMM_ISA=name).stdout.split() == [name]


_SCALED = """
import itertools
from dataclasses import replace
import ml_dtypes
import numpy as np
from jitgemm.isa.tables import AVX512_AMX, register
from jitgemm.isa.types import F32, F64, I32, I64
from jitgemm.kernels import registry
mine = replace(AVX512_AMX, name="checked_amx", interpreted=True, requires=frozenset(),
               unit=replace(AVX512_AMX.unit, permit=None))
register(mine)
for element in (F32, F64, I32, I64):
    registry.register(element, mine, registry.tile_for(element, AVX512_AMX))
import jitgemm
rng, (m, k, n) = np.random.default_rng(0), (18, 70, 40)
for left, right in itertools.product((np.int8, np.uint8), repeat=2):
    a, b = (rng.integers(np.iinfo(t).min, np.iinfo(t).max + 1, shape).astype(t)
            for t, shape in ((left, (m, k)), (right, (k, n))))
    rows, columns, y = (rng.random(shape, np.float32) for shape in ((m, 1), (n,), (m, n)))
    packed = jitgemm.prepack_rhs(b)
    sums = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.float32)
    for out in (np.float32, ml_dtypes.bfloat16):
        options = dict(a_scale=rows, b_scale=columns, bias=columns, activation="relu",
                       post_ops=[("mul", y)], out_dtype=out)
        got = jitgemm.gemm(a, packed, **options)
        want = (np.maximum(sums * rows * columns + columns, 0) * y).astype(out)
        assert got.dtype == want.dtype and got.tobytes() == want.tobytes(), (left, right, out)
        assert jitgemm.plan(a, packed, **options).executable.plan.spec.tiles
print("equal")
"""


def test_sums_of_a_unit_are_scaled_to_floats() -> None:
    """As those of vectors: the unit's sums go through the same epilogue, every access checked."""
    done = run_python(_SCALED, JITGEMM_ISA="checked_amx")
    assert done.stdout.split() == ["equal"], done.stderr
