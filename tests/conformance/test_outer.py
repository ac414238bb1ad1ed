"""Units of outer products: the machine against the meaning of their words, and what is refused.

The machine decides how long vectors are.  Elsewhere every length is interpreted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from cases import CLIPPED, MAPPED, PLACED, PLAIN, as_long_here, native
from typed import TypedCase, WholeCase

from jitgemm.errors import LanguageError
from jitgemm.isa.lengths import streaming_bits, sve_bits
from jitgemm.isa.matrix import TileProduct
from jitgemm.isa.outer import OuterUnit, sme
from jitgemm.isa.tables import AVX512, AVX512_AMX, SME_SETS, Isa, of_lengths
from jitgemm.isa.types import BF16, F16, F32, F64, I8, I16, I32, I64, U8, ElementType
from jitgemm.jit import compiler
from jitgemm.jit.target import available
from jitgemm.kernels.arithmetic import OperandTypes, tiled
from jitgemm.kernels.nest import nest
from jitgemm.kernels.registry import columns_tile, matrix_tile, slim_tile, tile_for
from jitgemm.kernels.spec import MOST_ROWS, Bias, BSource, Epilogue, GemmSpec, Scale
from jitgemm.lang.core import Function, Kernel, Ptr, Vec, parameters
from jitgemm.lang.interp import Memory, run
from jitgemm.lang.llvm import LlvmKernel
from jitgemm.lang.module import LlvmModule
from oracle import run_python
from rows import typed_spec

# Bits of vectors outside and inside the mode: micropanels of one tile and of two, of vectors that
# are shorter than a row of a tile, as long, and longer.
_WIDE = [x.name for x in SME_SETS if not x.name.endswith("sme")]
_ELSEWHERE = (("sme_wide", 128, 128), ("sme2", 128, 512), ("sme_wide", 128, 2048),
              ("sve_sme_wide", 256, 256), ("sve_sme2", 512, 128))  # fmt: skip


def _sets() -> list[Any]:
    here = streaming_bits()
    lengths = [(n, sve_bits() or 128, here) for n in _WIDE] if here else _ELSEWHERE
    return [pytest.param(of_lengths(*x), id=f"{x[0]}-{x[1]}-{x[2]}") for x in lengths]


SETS = _sets()
every_set = pytest.mark.parametrize("isa", SETS)
PRODUCTS = [p.name for p in sme(128, wide=True).products]
STEPS = 5


def _unit(isa: Isa) -> OuterUnit:
    assert isinstance(isa.unit, OuterUnit)
    return isa.unit


def _product(isa: Isa, name: str) -> TileProduct:
    found = _unit(isa).product(name)
    assert found is not None
    return found


# -- tiles -----------------------------------------------------------------------------------------


def _sums(isa: Isa, name: str) -> Function:
    """All tiles of sums of a product: each of ``STEPS`` outer products, of vectors of its own."""
    unit, sums = _unit(isa), _product(isa, name).sums
    words, tiles = unit.words(sums), range(unit.accumulators(sums))

    def inside(k: Kernel, total: Ptr, a: Ptr, b: Ptr) -> None:
        for t in tiles:
            k.zero_sums(t, sums)
        for step in k.range(0, STEPS):
            for t in tiles:
                at = (step * len(tiles) + t) * unit.row_bytes
                k.fold_outer(name, t, k.load(a + at, sums, words), k.load(b + at, sums, words))
        for t in tiles:
            for i in k.range(0, words):
                row = k.row_of_sums(t, i, sums)
                k.store(total + (i + t * words) * unit.row_bytes, row)

    params = parameters("total* a* b*")

    def body(k: Kernel, total: Ptr, a: Ptr, b: Ptr) -> None:
        k.call_inside(Function(f"sums_{name}_inside", params, inside), total, a, b)

    return Function(f"sums_{name}", params, body)


def _vectors(isa: Isa, name: str) -> tuple[np.ndarray, np.ndarray]:
    """K-groups of A and of B, as words of 16 bits: ``[step, tile, words]``."""
    unit, sums = _unit(isa), _product(isa, name).sums
    rng = np.random.default_rng(7)
    shape = STEPS, unit.accumulators(sums), unit.row_bytes // 2
    a, b = (rng.integers(0, 1 << 16, shape, np.uint16) for _ in range(2))
    if name == "mopa_bf16":
        # Close exponents, so that rounding shows; subnormal, infinite and other numbers in places.
        for x in (a, b):
            x[...] = x & np.uint16(0x83FF) | np.uint16(0x3C00)
        a[1, 0, 0], a[2, 1, 1], b[0, 0, 2], b[3, 1, 3] = 0x0001, 0x7F80, 0x8001, 0x7FC1
        return a, b
    kind = {"mopa_f32": np.float32, "mopa_f64": np.float64}.get(name)
    if kind is None:
        return a, b
    numbers = []
    for x in (a, b):
        y = rng.uniform(-1, 1, x.view(kind).shape) * 2.0 ** rng.integers(-3, 4, x.view(kind).shape)
        numbers.append(y.astype(kind))
    tiny, (left, right) = np.finfo(kind).smallest_subnormal, numbers
    left[1, 0, 0], right[1, 0, 1], right[2, 1, 0] = tiny, -tiny * 3, np.inf
    left[3, 1, 1], right[0, 1, 1] = np.finfo(kind).max, -np.finfo(kind).max
    left[2, 2, 0] = np.nan
    return left.view(np.uint16), right.view(np.uint16)


def _same_numbers(first: np.ndarray, second: np.ndarray) -> None:
    """The same bits, but for which NaN it is."""
    unknown = np.isnan(first)
    np.testing.assert_array_equal(unknown, np.isnan(second))
    assert (np.where(unknown, 0, first).tobytes()) == (np.where(unknown, 0, second).tobytes())


@every_set
@pytest.mark.parametrize("name", PRODUCTS)
def test_every_tile_is_added_to_as_its_meaning_says(name: str, isa: Isa) -> None:
    function, inside, sums = _sums(isa, name), isa.inside, _product(isa, name).sums
    assert inside is not None
    a, b = _vectors(isa, name)
    words, tiles = _unit(isa).words(sums), _unit(isa).accumulators(sums)
    kind = {F32: np.float32, F64: np.float64, I32: np.int32, I64: np.int64}[sums]
    results = []
    for compiled in (False, True):
        total = np.full((tiles, words, words), 77, kind)
        if compiled and not (available(inside) and as_long_here(inside)):
            continue
        if compiled:
            unit = compiler.Unit(function.name, inside, lambda: [function])
            native(None, function, unit)(*(x.ctypes.data for x in (total, a, b)))  # type: ignore[arg-type]
        else:
            memory = Memory()
            at = memory.add("total", total, writable=True, initialised=False)
            vectors = (memory.add(n, x, writable=False) for n, x in (("a", a), ("b", b)))
            run(function, memory, inside, at, *vectors)
        results.append(total)
    first = results[0]
    if not sums.integral:
        for other in results[1:]:
            _same_numbers(first, other)
        return
    assert len({r.tobytes() for r in results}) == 1
    np.testing.assert_array_equal(first, _exact(isa, name, a, b))


def _exact(isa: Isa, name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Sums of whole numbers, modulo two to their width."""
    found = _product(isa, name)
    kinds = {I8: np.int8, U8: np.uint8, I16: np.int16}
    x, y = (v.view(kinds[e]) for v, e in ((a, found.a), (b, found.b)))
    words = _unit(isa).words(found.sums)
    x, y = (v.reshape(STEPS, -1, words, found.group).astype(np.int64) for v in (x, y))
    exact = np.einsum("stig,stjg->tij", x, y)
    return exact.astype(np.int32 if found.sums is I32 else np.int64)


@every_set
def test_floats_add_up_step_by_step(isa: Isa) -> None:
    """Sums of which one order only gives this result."""
    for name, kind, big in (("mopa_f32", np.float32, 2.0**25), ("mopa_f64", np.float64, 2.0**54)):
        found = _product(isa, name)
        sums = np.zeros((1, 1), kind)
        for x in (1, big, 1, -big, 1):
            sums = found.meaning(sums, np.full((1, 1), x, kind), np.ones((1, 1), kind))
        assert sums[0, 0] == 1  # 1 + big is big; big + 1 as well
        # One rounding: the product's last bit survives.
        x = np.full((1, 1), 1 + np.finfo(kind).eps, kind)
        assert found.meaning(-(x * x), x, x)[0, 0] != 0


@every_set
def test_tiles_share_their_bytes_as_the_machines_do(isa: Isa) -> None:
    """Clearing a tile clears the eighths it has; all tiles of a width are all of the array."""
    unit = _unit(isa)
    for sums in (F32, F64, I32, I64):
        parts = [unit.bytes_of(t, sums) for t in range(unit.accumulators(sums))]
        assert sum(parts) == 255
        assert all(x & y == 0 for x, y in product(parts, repeat=2) if x is not y)
        assert unit.accumulators(sums) * unit.words(sums) ** 2 * sums.bytes == unit.row_bytes**2


# -- whole products --------------------------------------------------------------------------------

EPILOGUES = (
    PLAIN,
    Epilogue(beta=True, bias=Bias.FULL),
    Epilogue(bias=Bias.ROW),
    CLIPPED,
)
FLOATS = (*EPILOGUES, PLACED, MAPPED)
BYTES = (
    *EPILOGUES,
    Epilogue(zero_a=True),
    Epilogue(zero_b=True, bias=Bias.ROW),
    Epilogue(zero_a=True, zero_b=True, beta=True, bias=Bias.COLUMN),
    Epilogue(scale=Scale.ROW, bias=Bias.COLUMN),
    Epilogue(zero_a=True, zero_b=True, scale=Scale.ROW),
    Epilogue(zero_a=True, zero_b=True, scale=Scale.COLUMN, bias=Bias.FULL),
)
# Depth blocks in which a sum of several is a matter of some steps.
_BLOCK = 8


def _spec(
    isa: Isa, types: OperandTypes, epilogue: Epilogue, source: BSource = BSource.PACKED
) -> GemmSpec:
    spec = typed_spec(isa, types, epilogue, source=source)
    assert spec.outer is not None
    assert spec.isa is isa.inside
    corrected = epilogue.zero_a or epilogue.zero_b or epilogue.scale is not Scale.NONE
    if corrected or types.a.format:
        return spec  # there are such sums of one type only
    # Operands of the sums' type are so still: nothing is to be converted.
    short, how = replace(spec.element, depth_block=_BLOCK), spec.arithmetic
    a, b, c, bias, out, a_element, b_element = (
        short if x is spec.element else x
        for x in (types.a, types.b, types.c, types.bias, types.out, how.a_element, how.b_element)
    )
    mine = OperandTypes(a, b, c, bias, out, types.bf16_dot)
    how = replace(how, types=mine, a_element=a_element, b_element=b_element)
    return replace(spec, element=short, arithmetic=how)


def _shapes(spec: GemmSpec) -> Iterator[dict[str, Any]]:
    """Rows, columns and depths on both sides of every edge there is, and all kinds of layouts."""
    lanes, mr, nr, group = spec.lanes, spec.tile.mr, spec.nr, spec.arithmetic.group
    widest, low = spec.tile.groups[-1]
    packed = spec.b is BSource.PACKED
    block = _BLOCK * group
    yield {"m": min(mr, lanes), "n": nr, "depth": block}
    yield {"m": lanes + 1, "n": nr + 1, "depth": 2 * block + 1, "row_tiles": 2}
    yield {"m": low, "n": widest * nr + 1, "depth": group + 1, "layout_a": "reversed",
           "one_scale": True}  # fmt: skip
    yield {"m": low - 1, "n": 2 * widest * nr - 1, "depth": 3, "panels": 1, "one_zero": True}
    yield {"m": 2, "n": lanes + 1 if lanes > 2 else 3, "depth": 2 * block, "direct": False,
           "layout_a": "both", "layout_d": "cols",
           **({"layout_b": "both", "swap": "abcdv"} if packed else {"swap": "acdv"})}  # fmt: skip
    column = {"layout_b": "cols"} if packed else {}
    yield {"m": 1, "n": 1, "depth": 1, "layout_a": "cols", **column}
    yield {"m": 3, "n": 2, "depth": 0}
    if spec.arithmetic.plain:
        for m, n, depth in ((mr, nr, _BLOCK + 3), (mr + 1, nr - 1, 3), (lanes - 1, 2, 9)):
            yield {"m": max(1, m), "n": n, "depth": depth, "layout_a": "cols", "strided": True}


def _check(spec: GemmSpec, kind: type[TypedCase] = TypedCase, turn: int | None = None) -> None:
    """Run products on both backends: all shapes, or every third of them from ``turn`` on."""
    cases = list(_shapes(spec))
    if turn is None and spec.isa.vector_bits > 512:
        turn = 1  # tiles are squares
    for case in cases if turn is None else cases[turn % 3 :: 3]:
        kind(spec, **case).check(nest(spec))


@every_set
@pytest.mark.parametrize("source", [BSource.PACKED, BSource.INPLACE], ids=str)
@pytest.mark.parametrize("element", [F32, F64], ids=str)
def test_floats_with_every_epilogue(element: ElementType, source: BSource, isa: Isa) -> None:
    """Bit for bit in the documented order."""
    for number, epilogue in enumerate(FLOATS):
        spec = _spec(isa, OperandTypes.of(element), epilogue, source)
        _check(spec, turn=number or None)


@every_set
def test_bytes_of_all_signs_with_every_epilogue(isa: Isa) -> None:
    pairs = list(product((I8, U8), repeat=2))
    for number, epilogue in enumerate(BYTES):
        a, b = pairs[number % 4]
        out = I32 if epilogue.scale is Scale.NONE else (I8, U8)[number % 2]
        _check(_spec(isa, OperandTypes(a, b, I32, I32, out), epilogue), turn=number or None)
    for a, b in pairs:
        _check(_spec(isa, OperandTypes(a, b, I32, I32, I32), BYTES[6]), turn=0)


@every_set
def test_zero_points_of_a_deep_product(isa: Isa) -> None:
    """Several depth blocks: sums rest, and are corrected once."""
    epilogue = Epilogue(zero_a=True, zero_b=True, beta=True, bias=Bias.ROW)
    spec = _spec(isa, OperandTypes(I8, U8, I32, I32, I32), epilogue)
    depth = spec.element.depth_block * spec.arithmetic.group + 5
    TypedCase(spec, 3, spec.nr + 1, depth).check(nest(spec))


@every_set
def test_halves_of_a_deep_product(isa: Isa) -> None:
    """Sums of several depth blocks, which rest in a buffer where the result is narrow."""
    for half, out, dot in ((F16, F16, False), (BF16, F32, False), (BF16, BF16, True)):
        spec = _spec(isa, OperandTypes(half, half, out, out, out, dot), Epilogue(bias=Bias.ROW))
        depth = spec.element.depth_block * spec.arithmetic.group + 3
        (WholeCase if dot else TypedCase)(spec, 5, spec.nr + 1, depth).check(nest(spec))


@every_set
def test_shorts_in_sums_of_64_bits(isa: Isa) -> None:
    for number, epilogue in enumerate(EPILOGUES):
        spec = _spec(isa, OperandTypes(I16, I16, I64, I64, I64), epilogue)
        assert (spec.element.bits, spec.arithmetic.group) == (64, 4)
        _check(spec, turn=number or None)


@every_set
@pytest.mark.parametrize("half", [F16, BF16], ids=str)
def test_halves_are_multiplied_as_f32(half: ElementType, isa: Isa) -> None:
    """In the order of f32, whether their sums are narrowed or not."""
    for number, epilogue in enumerate((PLAIN, Epilogue(beta=True, bias=Bias.FULL), MAPPED)):
        for out, source in product((half, F32), (BSource.PACKED, BSource.INPLACE)):
            spec = _spec(isa, OperandTypes(half, half, out, out, out), epilogue, source)
            assert spec.arithmetic.accumulate == "mopa_f32"
            _check(spec, turn=number)


@every_set
def test_bfloat16_by_its_own_product(isa: Isa) -> None:
    """Whole numbers come out exactly."""
    for number, (epilogue, out) in enumerate(product((PLAIN, CLIPPED, MAPPED), (BF16, F32))):
        types = OperandTypes(BF16, BF16, out, out, out, bf16_dot=True)
        spec = _spec(isa, types, epilogue)
        assert (spec.arithmetic.accumulate, spec.arithmetic.group) == ("mopa_bf16", 2)
        _check(spec, WholeCase, turn=number)


@every_set
def test_threads_share_a_product(isa: Isa) -> None:
    if isa.inside is None or not (available(isa) and as_long_here(isa.inside)):
        pytest.skip("this machine has no such unit")
    for types in (OperandTypes.of(F32), OperandTypes(I8, U8, I32, I32, I32)):
        spec = _spec(isa, types, Epilogue(bias=Bias.COLUMN))
        case = TypedCase(spec, 5 * spec.tile.mr + 1, 3 * spec.nr - 1, 70, threads=3, panels=1)
        case.check_threads(nest(spec))


# -- what products there are -----------------------------------------------------------------------


def test_products_are_found_by_their_types() -> None:
    def found(name: str, *types: Any, dot: bool = False) -> str | None:
        a, b, out = types
        how = tiled(OperandTypes(a, b, out, out, out, dot), of_lengths(name, 128, 512))
        return None if how is None else f"{how.accumulate} {how.group}"

    for name in (x.name for x in SME_SETS):
        wide = name in _WIDE
        assert found(name, F32, F32, F32) == "mopa_f32 1"
        assert found(name, F64, F64, F64) == ("mopa_f64 1" if wide else None)
        assert found(name, I16, I16, I64) == ("mopa_i16 4" if wide else None)
        assert found(name, I8, U8, I32) == "mopa_su 4"
        assert found(name, BF16, BF16, F32, dot=True) == "mopa_bf16 2"
        assert found(name, BF16, BF16, F32) == "mopa_f32 1"
        assert found(name, F16, F16, F16) == "mopa_f32 1"
        assert found(name, I16, I16, I32) is None
        assert found(name, I8, I8, I64) is None


def test_products_no_kernel_can_use_are_refused() -> None:
    unit = _unit(of_lengths("sme", 128, 256))
    first = unit.products[0]
    for change in ({"a": I8}, {"b": F64}, {"sums": I16}):
        with pytest.raises(ValueError, match=r"sme\.products\['mopa_f32'\]"):
            replace(unit, products=(replace(first, **change),))
    with pytest.raises(ValueError, match="whole k-groups"):
        replace(unit, row_bytes=30)


def test_columns_in_place_are_refused() -> None:
    spec = _spec(of_lengths("sme", 128, 256), OperandTypes.of(F32), PLAIN)
    with pytest.raises(LanguageError, match="outer products take rows of B"):
        replace(spec, b=BSource.COLUMNS)


@pytest.mark.parametrize("name", [x.name for x in SME_SETS])
def test_tiles_fit_vectors_of_every_length(name: str) -> None:
    """Those of the unit and of the vectors beside it, which share micropanels."""
    lengths = [128 << i for i in range(5)]
    for bits, inside, element in product(lengths, lengths, (F32, F64, I32, I64)):
        isa = of_lengths(name, bits, inside)
        tile = tile_for(element, isa)
        for fits in (tile, columns_tile(tile, isa, 1), slim_tile(tile)):
            fits.check(isa.vector_registers, 1)
        if not any(p.sums is element for p in _unit(isa).products):
            continue
        square, words = matrix_tile(element, tile, isa), _unit(isa).words(element)
        assert square.nr_regs * words * element.bits == tile.nr_regs * isa.vector_bits
        for panels, rows in square.groups:
            assert rows % words == 0 or words > MOST_ROWS
            assert 0 < rows // words * panels * square.nr_regs <= _unit(isa).accumulators(element)


# -- what the interpreter refuses ------------------------------------------------------------------

SMALL = of_lengths("sme_wide", 128, 128).inside
assert SMALL is not None
_LANES = _unit(SMALL).words(F32)


def _ones(k: Kernel, lanes: int = _LANES) -> Vec:
    return k.literal(0x3F800000, F32, lanes)


def _nothing_in_it(k: Kernel, there: Ptr) -> None:
    k.row_of_sums(0, k.const(0), F32)


def _folded_into_nothing(k: Kernel, there: Ptr) -> None:
    k.fold_outer("mopa_f32", 0, _ones(k), _ones(k))


def _another_tile(k: Kernel, there: Ptr) -> None:
    k.zero_sums(0, F32)
    k.row_of_sums(1, k.const(0), F32)


def _overlapping(k: Kernel, there: Ptr) -> None:
    k.zero_sums(0, F32)
    k.zero_sums(0, F64)
    k.row_of_sums(0, k.const(0), F32)


def _no_such_tile(k: Kernel, there: Ptr) -> None:
    k.zero_sums(4, F32)


def _no_such_row(k: Kernel, there: Ptr) -> None:
    k.zero_sums(0, F32)
    k.row_of_sums(0, k.const(_LANES), F32)


def _before_the_first_row(k: Kernel, there: Ptr) -> None:
    k.zero_sums(0, F32)
    k.row_of_sums(0, k.const(0) - 1, F32)


def _short_vectors(k: Kernel, there: Ptr) -> None:
    k.zero_sums(0, F32)
    k.fold_outer("mopa_f32", 0, _ones(k), _ones(k, _LANES // 2))


def _long_vectors(k: Kernel, there: Ptr) -> None:
    k.zero_sums(0, F32)
    k.fold_outer("mopa_f32", 0, _ones(k, 2 * _LANES), _ones(k, 2 * _LANES))


def _unknown(k: Kernel, there: Ptr) -> None:
    k.zero_sums(0, F32)
    k.fold_outer("mopa_f8", 0, _ones(k), _ones(k))


def _twice(k: Kernel, there: Ptr) -> None:
    k.call_inside(Function("inner", parameters("there*"), _no_such_tile), there)


def _tile_registers(k: Kernel, there: Ptr) -> None:
    k.configure_tiles(there, 1)


REFUSED = (
    (_nothing_in_it, "before anything"), (_folded_into_nothing, "before anything"),
    (_another_tile, "tile 1 is read before anything"), (_overlapping, "before anything"),
    (_no_such_tile, "no tile 4 of f32"), (_no_such_row, "tile 0 has no row 4"),
    (_before_the_first_row, "tile 0 has no row -1"), (_short_vectors, "vectors of 4 and 2"),
    (_long_vectors, "vectors of 8 and 8"), (_unknown, "no product 'mopa_f8'"),
    (_twice, "entered twice"), (_tile_registers, "no matrix unit of tiles"),
)  # fmt: skip


def _run(body: Callable[..., None], isa: Isa | None = SMALL, *, inside: bool = True) -> None:
    function = Function("wrong", parameters("there*"), body)

    def enter(k: Kernel, there: Ptr) -> None:
        k.call_inside(function, there)

    memory = Memory()
    at = memory.add("there", np.zeros(8, np.uint8), writable=True)
    assert isa is not None
    run(Function("enter", function.params, enter) if inside else function, memory, isa, at)


@pytest.mark.parametrize("body, why", REFUSED)
def test_what_would_go_wrong_is_an_error(body: Callable[..., None], why: str) -> None:
    with pytest.raises(LanguageError, match=why):
        _run(body)


@pytest.mark.parametrize("body", [_no_such_row, _folded_into_nothing, _nothing_in_it])
def test_tiles_exist_in_their_mode_only(body: Callable[..., None]) -> None:
    with pytest.raises(LanguageError, match="tile 0 is used outside the mode of sme"):
        _run(body, inside=False)


def test_tiles_do_not_outlive_their_mode() -> None:
    def body(k: Kernel, there: Ptr) -> None:
        for inner in (lambda k, p: k.zero_sums(0, F32), _nothing_in_it):
            k.call_inside(Function(f"f{id(inner)}", parameters("there*"), inner), there)

    with pytest.raises(LanguageError, match="tile 0 is read before anything"):
        _run(body, inside=False)


@pytest.mark.parametrize("isa", [AVX512, AVX512_AMX], ids=lambda x: x.name)
def test_sets_without_such_a_unit_know_no_such_words(isa: Isa) -> None:
    with pytest.raises(LanguageError, match=f"{isa.name} has no unit of outer products"):
        _run(lambda k, there: k.zero_sums(0, F32), isa)


def test_a_meaning_must_keep_the_shape_of_the_sums() -> None:
    assert SMALL is not None
    unit = _unit(SMALL)
    first = replace(unit.products[0], meaning=lambda sums, a, b: sums[:1])

    def body(k: Kernel, there: Ptr) -> None:
        k.zero_sums(0, F32)
        k.fold_outer("mopa_f32", 0, _ones(k), _ones(k))

    with pytest.raises(LanguageError, match="its meaning changes"):
        _run(body, replace(SMALL, unit=replace(unit, products=(first,))))


def test_a_function_is_written_for_every_mode_it_runs_in() -> None:
    """One text has the attributes of one mode."""
    assert SMALL is not None

    def nothing(k: Kernel, there: Ptr) -> None:
        pass

    shared = Function("shared", parameters("there*"), nothing)

    def calls(k: Kernel, there: Ptr) -> None:
        k.call(shared, there)

    def body(k: Kernel, there: Ptr) -> None:
        k.call_inside(Function("between", shared.params, calls), there)
        k.call_inside(shared, there)
        k.call(shared, there)
        k.call(Function("other", shared.params, calls), there)

    text = LlvmModule("m", SMALL, LlvmKernel).emit([Function("every", shared.params, body)])
    defined = re.findall(r"define (?:internal )?void @(\w+)\(.*(#\d)", text)
    assert dict(defined) == {
        "every": "#0", "other": "#0", "between": "#1", "shared": "#1", "shared_normal": "#0",
        "shared_inside": "#2",
    }  # fmt: skip
    callers = dict(re.findall(r"define [^@]*@(\w+)[^{]*\{[^}]*?call void @(shared\w*)", text))
    assert (callers["between"], callers["other"]) == ("shared_inside", "shared_normal")


# -- through the front door ------------------------------------------------------------------------

PROGRAM = """
    import sys
    from dataclasses import replace
    import ml_dtypes
    import numpy as np
    from jitgemm.isa.tables import of_lengths, register
    from jitgemm.isa.types import F32, F64, I32, I64
    from jitgemm.kernels import registry

    known = of_lengths("sme2", 128, int(sys.argv[1]))
    mine = replace(known, name="checked_sme", interpreted=True, requires=frozenset(),
                   inside=replace(known.inside, interpreted=True))
    register(mine)
    for element in (F32, F64, I32, I64):
        registry.register(element, mine, registry.tile_for(element, known))
    for element in (F32, F64):
        registry.register(element, mine, registry.tile_for(element, known, 2), 2)
    import jitgemm

    rng, lanes, met = np.random.default_rng(0), int(sys.argv[1]) // 32, set()
    few = lanes > 16  # the interpreter takes a minute for each of the others

    def numbers(shape, kind, low=-4, high=4):
        x = rng.integers(low, high, shape, endpoint=True).astype(np.float64)
        if np.dtype(kind).kind == "c":
            x = x + 1j * rng.integers(low, high, shape, endpoint=True)
        return x.astype(kind)

    def equal(got, want, *why):
        assert got.dtype == want.dtype, (got.dtype, want.dtype, why)
        assert got.shape == want.shape and (got == want).all(), why  # zeros of either sign

    def product(x, y):
        wide = np.complex128 if x.dtype.kind == "c" else np.float64
        return x.astype(wide) @ y.astype(wide)

    def plan(*operands, **options):
        said = jitgemm.plan(*operands, **options).explain()
        met.update(w.split("_")[0] + "_" + w.split("_")[1] for w in said.replace(";", " ").split()
                   if w.startswith("mopa_"))
        return "__streaming2_" in said

    shapes = [(4, 3, 5), (lanes + 1, 2 * lanes + 1, 9), (9, 6, 530), (1, 7, 8), (5, 1, 3)]
    for (m, n, k), kind in [(s, t) for s in shapes for t in ("f" if few else "fdFD")]:
        a, b, c = (numbers(s, kind) for s in ((m, k), (k, n), (m, n)))
        exact = product(a, b)
        want = exact.astype(kind)
        if m >= 4 and n > 1 and kind in "fd":
            assert plan(a, b), (m, n, k, kind)
        lefts = (a, np.asfortranarray(a), a[::-1][::-1], jitgemm.prepack_lhs(a))
        rights = (b, np.asfortranarray(b), jitgemm.prepack_rhs(b), b)
        for left, right in zip(lefts, rights):
            equal(jitgemm.gemm(left, right), want, m, n, k, kind)
        equal(jitgemm.matmul(np.asfortranarray(a), b), want)
        equal(jitgemm.gemm(np.asfortranarray(a), jitgemm.prepack_rhs(b), threads=2), want)
        out = np.zeros((n, m), kind).T
        jitgemm.gemm(a, b, out=out)
        assert (out == want).all()
        full = (2 * exact - c.astype(exact.dtype) + c[0]).astype(kind)
        equal(jitgemm.gemm(a, b, alpha=2, beta=-1, c=c, bias=c[0]), full)
        if kind in "fd":
            options = dict(bias=c[:, :1], activation="relu")
            kept = np.maximum(exact + c[:, :1], 0).astype(kind)
            equal(jitgemm.gemm(a, jitgemm.prepack_rhs(b), **options), kept)

    a, b = numbers((3, lanes + 2, 7), "f"), numbers((3, 7, lanes + 3), "f")
    equal(jitgemm.matmul(a, b), product(a, b).astype("f"))
    equal(jitgemm.matmul(a, b[0]), product(a, b[0]).astype("f"))

    for ta in (np.int8, np.uint8):
        for tb in (np.int8, np.uint8):
            m, n, k = lanes + 1, 2 * lanes + 3, 41
            a, b = (rng.integers(np.iinfo(t).min, np.iinfo(t).max, s, t, endpoint=True)
                    for t, s in ((ta, (m, k)), (tb, (k, n))))
            for left, right in ((a, b), (np.asfortranarray(a), jitgemm.prepack_rhs(b)),
                                (jitgemm.prepack_lhs(a), np.asfortranarray(b)))[: 1 if few else 3]:
                exact = a.astype(np.int64) @ b.astype(np.int64)
                equal(jitgemm.gemm(left, right), exact.astype(np.int32))
                moved = (a.astype(np.int64) - 3) @ (b.astype(np.int64) - 5)
                got = jitgemm.gemm(left, right, a_zero_point=3, b_zero_point=5)
                equal(got, moved.astype(np.int32))
                how = jitgemm.Requantize(scale=0.001, zero_point=-5, dtype=np.int8)
                want = np.clip(np.rint(exact.astype(np.int32) * 0.001) - 5, -128, 127)
                equal(jitgemm.gemm(left, right, requantize=how), want.astype(np.int8))
            assert plan(a, b) and plan(a, jitgemm.prepack_rhs(b))
            scaled = jitgemm.gemm(a, b, a_scale=np.float32(0.5), b_scale=np.float32(0.25))
            equal(scaled, (exact * 0.125).astype(np.float32))

    for kind in (np.float16, ml_dtypes.bfloat16)[few:]:
        a, b = numbers((lanes + 3, 33), kind), numbers((33, lanes + 1), kind)
        exact = product(a, b)
        for out in (kind, np.float32):
            for dot in (False, True):
                options = dict(out_dtype=out, allow_bf16_dot=dot)
                assert plan(a, b, **options)
                packed = jitgemm.prepack_rhs(b, allow_bf16_dot=dot)
                pairs = ((a, b), (a, packed), (a, np.asfortranarray(b)), (np.asfortranarray(a), b),
                         (jitgemm.prepack_lhs(a, allow_bf16_dot=dot), b))
                for left, right in pairs[few :: 1 + few]:
                    equal(jitgemm.gemm(left, right, **options), exact.astype(out))
                low = jitgemm.gemm(a[:2], b, **options)
                equal(low, exact[:2].astype(out))

    a = rng.integers(-(1 << 15), (1 << 15) - 1, (lanes + 1, 70), np.int16, endpoint=True)
    b = rng.integers(-(1 << 15), (1 << 15) - 1, (70, lanes + 2), np.int16, endpoint=True)
    exact = a.astype(np.int64) @ b.astype(np.int64)
    for left, right in ((a, b), (np.asfortranarray(a), b), (a, np.asfortranarray(b))):
        equal(jitgemm.gemm(left, right, out_dtype=np.int64), exact)
    assert plan(a, b, out_dtype=np.int64)
    print(*sorted(met))
"""


@pytest.mark.parametrize("bits", [128, 512])
def test_public_functions_with_every_access_checked(bits: int) -> None:
    """Products of every kind, exact ones, by the interpreter: also of vectors of other lengths."""
    done = run_python(PROGRAM, str(bits), JITGEMM_ISA="checked_sme", timeout=500)
    found = set(done.stdout.split())
    assert found >= {"mopa_ss", "mopa_su", "mopa_us", "mopa_uu", "mopa_bf16", "mopa_i16"}, found
