"""Integers and formats of bits: every operation, every conversion, and bits seen as other numbers.

Machine code and interpreter are held to what NumPy (and ml_dtypes) make of the same numbers, on
vectors and on single lanes.  Numbers of 8 and 16 bits are met all, wider ones at their edges.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from language import (
    Array,
    assert_same,
    converted,
    execute,
    function,
    numbers_of,
    op_function,
)

from jitgemm.errors import LanguageError
from jitgemm.isa import tables, types
from jitgemm.isa.conversions import conversion, dtype_of
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import BF16, BOOL, F32, F64, I8, I16, I32, ElementType
from jitgemm.jit.target import available
from jitgemm.lang.core import Int, Kernel, Ptr
from jitgemm.lang.interp import InterpKernel, Memory
from jitgemm.lang.llvm import LlvmKernel
from jitgemm.lang.module import LlvmModule
from rows import DOTS, FLOATS, INTEGERS, distinct_sets


@pytest.fixture(autouse=True, scope="module")
def _no_disk_cache() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JITGEMM_CACHE", "0")
        yield


def _params(sets: list[Isa]) -> list[Any]:
    return [pytest.param(i, id=i.name) for i in sets if available(i) and not i.interpreted]


every_set = pytest.mark.parametrize("isa", _params(list(tables.BY_NAME.values())))
distinct = pytest.mark.parametrize("isa", _params(distinct_sets()))
every_type = pytest.mark.parametrize("element", types.BY_NAME.values(), ids=str)

OPERATIONS = sorted(tables.AVX512_VNNI.integers.keys() - set(DOTS))
PIECES = {
    "dot2": (np.int16, np.int16), "dot4": (np.uint8, np.int8), "dot4_signed": (np.int8, np.int8),
    "dot4_unsigned": (np.uint8, np.uint8),
}  # fmt: skip
"""What the numbers of both words are."""
SHIFTS = ("shl", "lshr", "ashr")


# -- values ----------------------------------------------------------------------------------------


def integers(element: ElementType) -> Array:
    """All numbers of 8 and 16 bits; of wider ones the edges of every width, and random ones."""
    dtype = dtype_of(element)
    if element is BOOL:
        return np.arange(2, dtype=dtype)
    if element.bits <= 16:
        return np.arange(1 << element.bits).astype(f"u{element.bytes}").view(dtype)
    near = [
        (1 << p) + d for p in (7, 8, 15, 16, 23, 24, 31, 32, 52, 53, 62, 63) for d in (-1, 0, 1)
    ]
    # Halfway between two floats, to even and to odd, and a bit to either side.
    ties = [(1 << p) + (d << (p - 25)) + e for p in (30, 62) for d in (1, 2, 3) for e in (-1, 0, 1)]
    whole = [0, 1, 2, 3, *near, *ties]
    edges = np.array([x % (1 << element.bits) for y in whole for x in (y, -y)], np.uint64)
    rng = np.random.default_rng(element.bits)
    random = rng.integers(0, 1 << 63, 2000, np.uint64) * np.uint64(3)
    return np.concatenate([edges, random]).astype(f"u{element.bytes}").view(dtype)


def floats(element: ElementType) -> Array:
    """Numbers around every f16 and bf16, ties between them and beyond them among them."""
    with np.errstate(all="ignore"):
        half = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
        short = np.arange(1 << 16, dtype=np.uint32)[::3] << np.uint32(16)
        bits = [half.view(np.uint32)]
        bits += [short + np.uint32(d) for d in (0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
        # Halfway from each f16 to the next, and an f32 to either side.
        middle = half + np.float32(0.5) * np.spacing(half.astype(np.float16)).astype(np.float32)
        bits += [middle.view(np.uint32) + np.uint32(d) for d in (0, 1, 0xFFFFFFFF)]
        bits.append(np.array([65519.996, 65520, 3.4e38, 2**-25, 2**-24], np.float32).view("u4"))
        x = np.concatenate(bits).view(np.float32)
        if element is F32:
            return x
        close = x.astype(np.float64)
        return np.concatenate([close, close[::5] * (1 + 2.0**-40), np.array([1e300, 5e-324])])


def values(element: ElementType) -> Array:
    """Numbers of a type, as they are stored."""
    if element.format:
        return np.arange(1 << 16, dtype=np.uint16)
    return integers(element) if element.integral else floats(element)


def whole(x: Array, lanes: int) -> Array:
    """As many as some vectors hold, repeated to one at least."""
    return np.resize(x, -(-x.size // lanes) * lanes)


# -- operations on integers ------------------------------------------------------------------------


def wanted(name: str, element: ElementType, columns: list[Array]) -> Array:
    """What an operation must give: exact integers, of which the last bits count."""
    if name == "bswap":
        return columns[0].byteswap()
    bits, dtype = element.bits, dtype_of(element)
    if name in DOTS:
        x, y = (c.view(t).reshape(c.size, -1) for c, t in zip(columns, PIECES[name], strict=False))
        total = (x.astype(np.int64) * y).sum(axis=1) + columns[2]
        return np.asarray(total & 0xFFFFFFFF).astype(np.uint32).view(dtype)
    a, b, c = (x.astype(object) for x in (*columns, *columns[:1] * 2)[:3])
    half = 1 << (bits - 1)
    exact: dict[str, Any] = {
        "add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b,
        "madd": lambda: a * b + c, "relu": lambda: np.where(columns[0] > 0, a, 0),
        "flip": lambda: a + (1 << (bits - 1)),
        "minimum": lambda: np.where(a < b, a, b), "maximum": lambda: np.where(a < b, b, a),
        "and": lambda: a & b, "or": lambda: a | b, "xor": lambda: a ^ b, "neg": lambda: -a,
        "shl": lambda: a << b, "lshr": lambda: (a & ((1 << bits) - 1)) >> b,
        # The highest bit moves in, whether it is a sign or not.
        "ashr": lambda: np.where(a >> (bits - 1) & 1, (a & (half - 1)) - half, a) >> b,
    }  # fmt: skip
    last = [int(x) % (1 << bits) for x in exact[name]()]
    return np.array(last, f"u{element.bytes}").view(dtype)


def columns_for(name: str, element: ElementType) -> list[Array]:
    """Operands: every number of 16 bits and less, and pairs of edges."""
    arity = 3 if name in DOTS else tables.AVX512_VNNI.integers[name].arity
    x = integers(element)
    rng = np.random.default_rng(arity)
    if name in DOTS:
        # Pieces at both ends of their ranges, alike and in every mixture, and random ones.
        ends = np.array([0, 1, 0x7F, 0x80, 0xFF], np.uint8)
        pieces = rng.choice(ends, (3, 4000, 4))
        x = np.concatenate([pieces, rng.integers(0, 256, (3, 4000, 4), np.uint8)], axis=1)
        same = np.array([[-1 << 31, -(1 << 15) - 1, 0x7FFF7FFF, -0x7FFF8000, 0x7F7F7F7F]], np.int32)
        grid = list(itertools.product(same[0], repeat=3))
        return [np.concatenate([c, g]) for c, g in
                zip(x.view(np.int32)[..., 0], np.array(grid, np.int32).T, strict=True)]  # fmt: skip
    if arity == 1 or element.bits > 16:
        some = x[:80] if arity > 1 else x
        pairs = np.array(list(itertools.product(some, repeat=min(arity, 2))), x.dtype)
        random = rng.permutation(np.resize(x, (3, 4000)), axis=1).T
        first = np.concatenate([pairs, random[:, : pairs.shape[1]]])
        table = list(first.T)
    elif element.bits == 8:
        table = list(np.array(list(itertools.product(x, repeat=2)), x.dtype).T)
    else:
        edges = x[[0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x1234]]
        table = [np.tile(x, edges.size), np.repeat(edges, x.size)]
    while len(table) < arity:
        table.append(rng.permutation(table[0]))
    if name in SHIFTS:
        # Others have no meaning.
        table[1] = (table[1].view(f"u{element.bytes}") % element.bits).view(x.dtype)
    return [np.ascontiguousarray(c) for c in table]


def _has(element: ElementType, name: str) -> bool:
    """A byte has no order."""
    return name != "bswap" or element.bytes > 1


@pytest.mark.parametrize("scalar", [False, True], ids=["vector", "scalar"])
@pytest.mark.parametrize(
    "element, name",
    [pytest.param(e, n, id=f"{e}-{n}") for e in map(types.BY_NAME.__getitem__, INTEGERS)
     for n in OPERATIONS if _has(e, n)],
)  # fmt: skip
@distinct
def test_operation(isa: Isa, element: ElementType, name: str, scalar: bool) -> None:  # noqa: FBT001
    """An operation is what integers say, modulo a power of two."""
    _check(isa, element, name, 1 if scalar else isa.lanes(element), cut=37 if scalar else 1)


@pytest.mark.parametrize("name", DOTS)
@every_set
def test_dot_product(isa: Isa, name: str) -> None:
    """Words are folded without saturation, on each set that can."""
    if name in isa.integers and isa.integers[name].text:
        _check(isa, I32, name, isa.lanes(I32), cut=1)
    else:
        assert name != "dot2"
        assert name != "dot4" or "vnni" not in isa.name


@every_set
def test_dot_product_of_bfloat16(isa: Isa) -> None:
    """Two products and two sums in an order of its own, to which subnormal numbers are zeros."""
    if "bf16_dot" not in isa.ops:
        assert not isa.interpreted
        assert "bf16" not in isa.name
        return
    lanes, rng = isa.lanes(F32), np.random.default_rng(5)
    bits = rng.integers(0, 1 << 32, (3, 4096), np.uint32)
    # Close exponents, so that rounding shows, and subnormal numbers, products and sums.
    bits[:, :2048] = bits[:, :2048] & np.uint32(0x83FF83FF) | np.uint32(0x3C003C00)
    bits[:, 2048:2560] &= np.uint32(0x8FFF8FFF)
    columns = list(bits.view(np.float32))
    arrays = {"out": np.zeros(4096, np.float32)} | {f"x{i}": c for i, c in enumerate(columns)}
    f = op_function("bf16_dot", 3, F32, lanes)
    out = execute(f, isa, arrays, 4096)["out"]
    with np.errstate(all="ignore"):
        x, y = (c.view(np.uint16).astype(np.uint32) << np.uint32(16) for c in columns[:2])
        normal = [np.where((p & 0x7F800000) == 0, p & 0x80000000, p) for p in (x, y)]
        x, y = (p.astype(np.uint32).view(np.float32).astype(np.float64) for p in normal)
        c = columns[2].astype(np.float64)
        c = np.where(np.abs(c) < 2.0**-126, np.copysign(0, c), c)
        # Where the sum of both is a float32 anyway, one rounding is as good as two.
        exact = x[::2] * y[::2] + x[1::2] * y[1::2] + c
        sure = (exact == exact.astype(np.float32)) & (np.abs(exact) >= 2.0**-126)
        partial = x[1::2] * y[1::2] + c
        for first in (partial, x[::2] * y[::2] + x[1::2] * y[1::2]):
            sure &= (first == first.astype(np.float32)) & (np.abs(first) >= 2.0**-126)
        # Close enough for sums in float64 to be exact, whichever comes first.
        terms = x[::2] * y[::2], x[1::2] * y[1::2], c
        for first, other in itertools.combinations(terms, 2):
            sure &= np.abs(np.log2(np.abs(first)) - np.log2(np.abs(other))) < 20
    assert sure.sum() > 3
    np.testing.assert_array_equal(out[sure], exact[sure].astype(np.float32))


def _check(isa: Isa, element: ElementType, name: str, lanes: int, cut: int) -> None:
    columns = [whole(c[::cut], lanes) for c in columns_for(name, element)]
    want = wanted(name, element, columns)
    row = isa.table(element)[name]
    assert row.arity == len(columns)
    assert_same(np.asarray(row.meaning(*columns)), want, f"the meaning of {name}")
    # The interpreter goes vector by vector: a part is enough for it.
    columns, want = ([np.resize(c, 4096) for c in columns], np.resize(want, 4096))
    arrays = {"out": np.zeros_like(columns[0])} | {f"x{i}": c for i, c in enumerate(columns)}
    f = op_function(name, row.arity, element, lanes)
    assert_same(execute(f, isa, arrays, 4096)["out"], want, name)


def test_every_operation_is_tested() -> None:
    """No table holds more than the tests know of."""
    known = {*tables.AVX512_VNNI.integers, *DOTS}
    assert set(DOTS) == set(PIECES)
    for isa in tables.BY_NAME.values():
        assert set(isa.integers) <= known
        assert set(isa.ops) - {"bf16_dot"} == set(tables.AVX512.ops)
    assert {*FLOATS, *INTEGERS, "bool", "bf16", "f16"} == set(types.BY_NAME)


# -- conversions -----------------------------------------------------------------------------------


def targets(source: ElementType) -> list[ElementType]:
    """What numbers of a type may become; of floats no integers but those kept within a range."""
    every = list(types.BY_NAME.values())
    if source.integral:
        return [t for t in every if t is not source]
    return [t for t in every if not t.integral and t is not source] + [I32] * (source is F64)


def assert_numbers(element: ElementType, got: Array, want: Array, why: str) -> None:
    """Bit for bit, NaN for NaN."""
    x, y = numbers_of(element, got), numbers_of(element, want)
    nan = np.isnan(y.astype(np.float32)) if not element.integral else np.zeros(y.shape, bool)
    if not element.integral:
        np.testing.assert_array_equal(np.isnan(x.astype(np.float32)), nan, err_msg=why)
    assert got.dtype == want.dtype, why
    kind = f"u{element.bytes}"
    np.testing.assert_array_equal(got[~nan].view(kind), want[~nan].view(kind), err_msg=why)


def convert_function(source: ElementType, target: ElementType, lanes: int) -> Any:
    def body(k: Kernel, out: Ptr, x: Ptr, count: Int) -> None:
        for i in k.range(0, count, lanes):
            v = k.load(x + i * source.bytes, source, lanes)
            k.store(out + i * target.bytes, k.convert(v, target))

    return function(f"convert_{source}_{target}_x{lanes}", "out* x* count", body)


@every_type
@distinct
def test_conversions(isa: Isa, element: ElementType) -> None:
    """Every number of this type as each other one: whole vectors of either, and one lane."""
    for target in targets(element):
        x = values(element)
        if element is F64 and target is I32:
            x = np.linspace(-(2.0**31), 2.0**31 - 1, 5001)
        wide = max(isa.lanes(element), isa.lanes(target))
        for lanes in sorted({1, isa.lanes(I32), min(isa.lanes(element), isa.lanes(target)), wide}):
            some = whole(x if lanes > 1 else x[:: x.size // 3000 + 1], lanes)
            want, why = converted(element, target, some), f"{element} to {target}, {lanes} lanes"
            with np.errstate(all="ignore"):
                meant = some
                for op, _ in conversion(element, target, half=isa.half):
                    meant = op.meaning(meant)
            assert_numbers(target, meant.view(dtype_of(target)), want, f"the meaning of {why}")
            f = convert_function(element, target, lanes)
            # Vector by vector on the interpreter: a part of them.
            part = some[~np.isnan(some)] if target.format and not element.integral else some
            few = min(part.size, max(64 * lanes, 512)) // lanes * lanes
            execute(f, isa, {"out": np.zeros_like(want[:few]), "x": part[:few]}, few)
            got = execute(f, isa, {"out": np.zeros_like(want), "x": some}, some.size,
                          interpreted=False)["out"]  # fmt: skip
            assert_numbers(target, got, want, why)


def test_values_meet_what_is_hard_to_round() -> None:
    """Ties, subnormal results, overflow and NaN are among the floats; all integers among others."""
    x = floats(F32)
    with np.errstate(all="ignore"):
        narrow = x.astype(np.float16)
        apart = np.abs(x.astype(np.float64) - narrow.astype(np.float64))
        ulp = np.spacing(np.abs(narrow)).astype(np.float64)
    fine = np.isfinite(narrow)
    assert (apart[fine] == ulp[fine] / 2).sum() > 10_000, "ties"
    tiny = (narrow != 0) & (np.abs(narrow) < 2.0**-14)
    assert (tiny & (apart > 0)).sum() > 1000, "subnormal numbers that round"
    assert (np.isinf(narrow) & np.isfinite(x)).any(), "overflow"
    assert np.isnan(x).any()
    low = x[np.isfinite(x)].view(np.uint32) & 0xFFFF
    assert (low == 0x8000).sum() > 10_000, "ties of bf16"
    assert ((np.abs(x) < 2.0**-126) & (x != 0)).any(), "subnormal f32"
    assert np.unique(integers(types.I16)).size == 65536


# -- bits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [I8, I16, I32, types.U64, F32, BF16], ids=str)
@every_type
@distinct
def test_bits(isa: Isa, element: ElementType, other: ElementType) -> None:
    """The same bytes as numbers of another width, and back: what is done to them shows there."""
    lanes = isa.lanes(element)

    def body(k: Kernel, out: Ptr, x: Ptr) -> None:
        v = k.bits(k.load(x, element, lanes), other)
        assert (v.element, v.lanes) == (other, lanes * element.bytes // other.bytes)
        k.store(out, v)
        if other.integral:
            v = k.op("flip", v)
        k.store(out + lanes * element.bytes, k.bits(v, element))

    x = np.random.default_rng(5).integers(0, 256, lanes * element.bytes, np.uint8)
    out = np.zeros(2 * x.size, np.uint8)
    f = function(f"bits_{element}_{other}", "out* x*", body)
    got = execute(f, isa, {"out": out, "x": x})["out"]
    flipped = x.copy()
    if other.integral:
        flipped[other.bytes - 1 :: other.bytes] ^= 0x80
    np.testing.assert_array_equal(got, np.concatenate([x, flipped]))


def test_bits_that_are_no_whole_number_are_refused() -> None:
    def body(k: Kernel) -> None:
        k.bits(k.zero(I8, 2), I32)

    f = function("broken_bits", "", body)
    with pytest.raises(LanguageError, match="no whole number"):
        f.body(InterpKernel(tables.AVX2, Memory()))
    with pytest.raises(LanguageError, match="no whole number"):
        LlvmModule("broken", tables.AVX2, LlvmKernel).emit([f])
