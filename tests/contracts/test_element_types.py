"""Contract sentences 2 to 7, 9, 10, 12 to 14 and 23 for integers, 16-bit floats and mixed types."""

# parameters of a test are named by its decorator

from __future__ import annotations

import ctypes
import ctypes.util
import itertools
import pickle
import platform
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm import Requantize
from oracle import (
    BF16,
    HALVES,
    LAYOUTS,
    MANY_PIECES,
    NARROW,
    TINY,
    Guarded,
    another_machine,
    anything,
    equal,
    exact_gemm,
    product_type,
    same_bits,
    strided,
    sum_type,
    unaligned,
)  # fmt: skip

Array = np.ndarray[Any, Any]
posix = pytest.mark.skipif(sys.platform == "win32", reason="uses mprotect")
x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the MXCSR register")

# One pair for each way in which numbers become words, and each pair of 8-bit ones.
PAIRS = [
    (np.dtype(x), np.dtype(y))
    for x, y in (
        ("i1", "i1"), ("i1", "u1"), ("u1", "i1"), ("u1", "u1"), ("?", "i1"), ("i2", "i2"),
        ("u2", "u1"), ("i2", "i4"), ("u4", "u4"), ("i8", "i8"), ("u8", "i1"), ("f2", "f2"),
        (BF16, BF16), (BF16, "f2"), ("u1", BF16), ("f4", "f2"), ("i4", "f4"), ("f8", "f4"),
    )
]  # fmt: skip
EIGHT = [p for p in PAIRS if p[0] in NARROW and p[1] in NARROW]


def _name(pair: tuple[np.dtype, np.dtype]) -> str:
    return f"{pair[0]}@{pair[1]}"


@pytest.fixture(params=PAIRS, ids=_name)
def pair(request: pytest.FixtureRequest) -> tuple[np.dtype, np.dtype]:
    """Types of A and B."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=EIGHT, ids=_name)
def eight(request: pytest.FixtureRequest) -> tuple[np.dtype, np.dtype]:
    """8-bit types of A and B."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _tiles(request: pytest.FixtureRequest) -> None:
    """The tiles that are released for values over the whole range, else low ones.

    Every pair of types with every epilogue is a kernel, and most of the time is theirs.  Released
    tiles of words are held to their edges by the conformance tests, on the interpreter too.
    """
    if not request.node.name.startswith("test_c06_exact"):
        request.getfixturevalue("low")


def _operands(
    rng: np.random.Generator, pair: tuple[np.dtype, np.dtype], m: int, n: int, k: int
) -> tuple[Array, Array]:
    """A and B over their whole ranges if their product is one of integers, else small."""
    fill = anything if product_type(*pair).kind in "iub" else _small
    return fill(rng, (m, k), pair[0]), fill(rng, (k, n), pair[1])


def _small(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    x = rng.integers(0 if dtype.kind in "ub" else -3, 2 if dtype.kind == "b" else 4, shape)
    return x.astype(dtype)


def _points(rng: np.random.Generator, count: int, dtype: np.dtype) -> Array:
    return anything(rng, (count,), dtype)


# -- routes ---------------------------------------------------------------------------------------


def _result(a: Array, b: Array, options: dict[str, Any]) -> np.dtype:
    if "requantize" in options:
        return options["requantize"].type  # type: ignore[no-any-return]
    return np.dtype(options.get("out_dtype") or product_type(a.dtype, b.dtype))


def _strided_out(a: Array, b: Array, **options: Any) -> Array:
    out = strided(np.zeros((a.shape[0], b.shape[1]), _result(a, b, options)), 5)
    assert jitgemm.gemm(a, b, out=out, **options) is out
    return out


def _f_out(a: Array, b: Array, **options: Any) -> Array:
    out = np.zeros((a.shape[0], b.shape[1]), _result(a, b, options), order="F")
    assert jitgemm.gemm(a, b, out=out, **options) is out
    return out


def _twice(a: Array, b: Array, **options: Any) -> Array:
    first, second = (jitgemm.gemm(a, b, **options) for _ in range(2))
    same_bits(second, first)
    return first


def _tiny(a: Array, b: Array, **options: Any) -> Array:
    with another_machine(TINY, **MANY_PIECES):
        return jitgemm.gemm(a, b, threads=2, **options)


def _stack(a: Array, b: Array, **options: Any) -> Array:
    both = jitgemm.gemm(np.stack([a, a]), np.stack([b, b]), **options)
    same_bits(both[1], both[0])
    return both[1]


def _list(a: Array, b: Array, **options: Any) -> Array:
    lists = {x: [options.pop(x)] * 2 for x in ("c", "bias") if x in options}
    first, second = jitgemm.gemm_batched([a, a], [b, b], **lists, **options)
    same_bits(second, first)
    return second


ROUTES: dict[str, Callable[..., Array]] = {
    "repeated": _twice,
    "columns": lambda a, b, **o: jitgemm.gemm(a, np.asfortranarray(b), **o),
    "columns of a": lambda a, b, **o: jitgemm.gemm(np.asfortranarray(a), b, **o),
    "packed": lambda a, b, **o: jitgemm.gemm(a, jitgemm.prepack_rhs(b), **o),
    "packed left": lambda a, b, **o: jitgemm.gemm(jitgemm.prepack_lhs(a), b, **o),
    "out strided": _strided_out,
    "out column-major": _f_out,
    "pieces": _tiny,
    "stack": _stack,
    "list": _list,
    "plan": lambda a, b, **o: jitgemm.plan(a, b, **o)(a, b),
    "strict": lambda a, b, **o: jitgemm.gemm(a, b, reproducible="strict", **o),
    "blas": lambda a, b, **o: jitgemm.gemm(a, b, backend="blas", **o),
}


def _packs_alike(route: str, pair: tuple[np.dtype, np.dtype]) -> bool:
    """Whether a handle made without a partner serves this one, as it must for one type."""
    return not route.startswith("packed") or pair[0] == pair[1] or pair in EIGHT


# -- 2 and 3: what is not read, sums of nothing ---------------------------------------------------


def test_c02_beta_0_never_reads_c_and_alpha_0_neither_a_nor_b(
    pair: tuple[np.dtype, np.dtype], rng: np.random.Generator
) -> None:
    a, b = _operands(rng, pair, 5, 9, 7)
    result = product_type(*pair)
    bias = _small(rng, (9,), result)
    memory = Guarded(4096)
    c = memory.place(np.zeros((5, 9), result), "start")
    with memory.locked():
        same_bits(jitgemm.gemm(a, b, c=c, bias=bias), exact_gemm(a, b, bias=bias))
    kept = _small(rng, (5, 9), result)
    left, right = Guarded(4096), Guarded(4096)
    x, y = left.place(a, "start"), right.place(b, "end")
    want = exact_gemm(a, b, alpha=0, beta=2, c=kept, bias=bias)
    with left.locked(), right.locked():
        same_bits(jitgemm.gemm(x, y, alpha=0, beta=2, c=kept, bias=bias), want)


def test_c02_alpha_0_leaves_no_zero_point_behind(rng: np.random.Generator) -> None:
    a, b = _operands(rng, (NARROW[0], NARROW[0]), 5, 9, 7)
    both = {"a_zero_point": np.arange(5), "b_zero_point": -9}
    for given in ({"a_zero_point": 3}, {"b_zero_point": np.arange(9)}, both):
        for left, right in ((a, b), (a, jitgemm.prepack_rhs(b)), (jitgemm.prepack_lhs(a), b)):
            got = jitgemm.gemm(left, right, alpha=0, **given)
            same_bits(got, np.zeros((5, 9), np.int32))


def test_c02_the_table_of_right_answers() -> None:
    ones = np.ones((64, 1024), BF16)
    same_bits(jitgemm.gemm(ones, ones.T), np.full((64, 64), 1024, BF16))
    c = np.full((5, 7), np.nan, BF16)
    a, b = np.ones((5, 3), BF16), np.ones((3, 7), BF16)
    same_bits(jitgemm.gemm(a, b, c=c, beta=0), np.full((5, 7), 3, BF16))


def test_c03_a_sum_of_nothing_is_0_and_the_epilogue_applies(
    pair: tuple[np.dtype, np.dtype], rng: np.random.Generator
) -> None:
    a, b = _operands(rng, pair, 5, 9, 0)
    result = product_type(*pair)
    bias, c = _small(rng, (9,), result), _small(rng, (5, 9), result)
    same_bits(jitgemm.gemm(a, b), np.zeros((5, 9), result))
    want = exact_gemm(a, b, beta=3, c=c, bias=bias)
    for name, route in ROUTES.items():
        if _packs_alike(name, pair):
            same_bits(route(a, b, beta=3, c=c, bias=bias), want, name)
    for shape in ((0, 9), (5, 0), (0, 0)):
        got = jitgemm.gemm(np.ones((shape[0], 4), pair[0]), np.ones((4, shape[1]), pair[1]))
        assert (got.shape, got.dtype) == (shape, result)


def test_c03_zero_points_and_scales_of_nothing(eight: tuple[np.dtype, np.dtype]) -> None:
    a, b = np.ones((5, 0), eight[0]), np.ones((0, 3), eight[1])
    given = {"a_zero_point": np.arange(5), "b_zero_point": 7}
    same_bits(jitgemm.gemm(a, b, **given), np.zeros((5, 3), np.int32))
    rule = Requantize(0.5, 1, np.uint8, bias=[1, 3, -3])
    same_bits(jitgemm.gemm(a, b, **given, requantize=rule), np.full((5, 3), [1, 3, 0], np.uint8))
    for m, n in ((0, 3), (4, 0), (0, 0)):
        got = jitgemm.gemm(
            np.ones((m, 2), eight[0]), np.ones((2, n), eight[1]),
            a_zero_point=np.zeros(m, int), b_zero_point=np.zeros(n, int),
            requantize=Requantize(np.ones((1, n)), 1),
        )  # fmt: skip
        assert (got.shape, got.dtype) == ((m, n), np.dtype(np.int8))


# -- 4 and 5: halves ------------------------------------------------------------------------------


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("route", ROUTES)
def test_c04_nan_and_infinity_reach_exactly_what_ieee_says(half: np.dtype, route: str) -> None:
    a, b = np.ones((3, 5), half), np.zeros((5, 40), half)
    a[1, 2] = np.inf
    b[4, 33] = np.nan
    a[2, 0], b[0, 0] = -np.inf, 1
    with np.errstate(all="ignore"):
        want = (a.astype(np.float32) @ b.astype(np.float32)).astype(half)
        equal(ROUTES[route](a, b).astype(np.float32), want.astype(np.float32))
        got = ROUTES[route](a, b, activation="relu").astype(np.float32)
    equal(got, np.maximum(want.astype(np.float32), 0))


@pytest.mark.parametrize("route", ROUTES)
def test_c05_halves_add_up_in_single_precision(route: str) -> None:
    call = ROUTES[route]
    for m, n in ((1, 1), (3, 40)):
        ones = np.ones((m, 257), BF16), np.ones((257, n), BF16)
        # Neither 257 nor a sum that passes 256 one by one is a bfloat16.
        bias = np.ones(n, BF16)
        same_bits(call(*ones, bias=bias), np.full((m, n), 258, BF16))
        same_bits(call(*ones), np.full((m, n), 256, BF16))
        half = np.ones((m, 2049), np.float16), np.ones((2049, n), np.float16)
        same_bits(call(*half, bias=np.ones(n, np.float16)), np.full((m, n), 2050, np.float16))
        same_bits(call(*half, out_dtype=np.float32), np.full((m, n), 2049, np.float32))


@pytest.mark.parametrize("route", ROUTES)
def test_c05_overflow_of_the_result_only(route: str) -> None:
    call = ROUTES[route]
    a = np.array([[6e4, 6e4, -6e4, -6e4]], np.float16)
    same_bits(call(a, np.ones((4, 1), np.float16)), np.zeros((1, 1), np.float16))
    a = np.full((3, 2), 4e4, np.float16)
    with np.errstate(all="ignore"):
        for n in (1, 40):
            b = np.ones((2, n), np.float16)
            same_bits(call(a, b), np.full((3, n), np.inf, np.float16))
            same_bits(call(-a, b), np.full((3, n), -np.inf, np.float16))
            big = np.full((3, 1), 3e38, BF16)
            got = call(big, np.full((1, n), 2, BF16))
            same_bits(got, np.full((3, n), np.inf, BF16))


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_c05_ties_go_to_even(half: np.dtype) -> None:
    # Every sum lies between two neighbours of 16 bits: halfway, and a little to either side.
    digits = 8 if half == BF16 else 11
    whole = np.arange(2 ** (digits - 1), 2 ** (digits - 1) + 64, dtype=np.float32)
    for shift in (0.5, 0.5 - 2.0**-10, 0.5 + 2.0**-10):
        a = np.stack([whole.astype(half).astype(np.float32), np.ones(64, np.float32)], 1)
        b = np.array([[1], [shift]], np.float32).repeat(40, 1)
        want = np.broadcast_to((whole + np.float32(shift)).astype(half)[:, None], (64, 40))
        out = jitgemm.gemm(a.astype(half), np.ones((2, 40), half), bias=b[1] - 1)
        same_bits(out, want.copy())


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "tanh", "silu"])
def test_c05_rounded_once_after_bias_and_activation(
    half: np.dtype, activation: str | None, rng: np.random.Generator
) -> None:
    for m, n, k in ((1, 40, 9), (5, 33, 520), (30, 17, 40)):
        a, b = (rng.standard_normal(s).astype(half) for s in ((m, k), (k, n)))
        bias, c = (rng.standard_normal(s).astype(np.float32) for s in ((n,), (m, n)))
        given: dict[str, Any] = {"bias": bias, "beta": 0.5, "c": c, "activation": activation}
        single = jitgemm.gemm(a, b, out_dtype=np.float32, **given)
        same_bits(jitgemm.gemm(a, b, **given), single.astype(half))
        same_bits(jitgemm.gemm(a, jitgemm.prepack_rhs(b), **given), single.astype(half))
        # The product of the same numbers as floats: every 16-bit number is one.
        floats = jitgemm.gemm(a.astype(np.float32), b.astype(np.float32), **given)
        if (m, n) != (1, 1):
            same_bits(single, floats)


# -- 6: integers ----------------------------------------------------------------------------------

EXTREMES = [
    ("i1", -128, "i1", -128), ("u1", 255, "i1", 127), ("u1", 255, "i1", -128),
    ("i1", -128, "u1", 255), ("u1", 255, "u1", 255), ("i1", 100, "i1", 100), ("u1", 200, "i1", 90),
    ("i2", -(2**15), "i2", -(2**15)), ("u2", 2**16 - 1, "u2", 2**16 - 1),
    ("i4", -(2**31), "i4", -(2**31)), ("u4", 2**32 - 1, "u4", 2**32 - 1),
    ("i4", 46341, "i4", 46341),
    ("i8", 2**53 + 1, "i8", 3), ("i8", -(2**63), "i8", -1), ("u8", 2**64 - 1, "u8", 2**64 - 1),
    ("i8", 2**31 + 1, "i4", 2**31 - 1), ("?", 1, "?", 1), ("i2", -(2**15), "u1", 255),
]  # fmt: skip


@pytest.mark.parametrize("case", EXTREMES, ids=lambda c: f"{c[0]}:{c[1]}@{c[2]}:{c[3]}")
def test_c06_the_ends_of_the_ranges_never_saturate(case: tuple[str, int, str, int]) -> None:
    left, x, right, y = case
    pair = np.dtype(left), np.dtype(right)
    for m, n, k in ((1, 1, 1), (1, 16, 2), (3, 40, 17), (15, 33, 66), (16, 16, 1030)):
        a, b = np.full((m, k), x, pair[0]), np.full((k, n), y, pair[1])
        # Python's own integers: no oracle but arithmetic.
        result = product_type(*pair)
        whole = k * x * y % 2 ** (8 * result.itemsize)
        want = np.full((m, n), np.array(whole, f"u{result.itemsize}")).astype(result)
        for name, route in ROUTES.items():
            if _packs_alike(name, pair):
                same_bits(route(a, b), want, (name, m, n, k))


def test_c06_the_table_of_right_answers() -> None:
    u1, i1 = np.uint8, np.int8
    assert jitgemm.gemm(np.array([[255, 255]], u1), np.array([[127], [127]], i1)) == 64770
    x = np.full((1, 16), -128, i1)
    assert jitgemm.gemm(x, x.T) == 262144
    got = jitgemm.gemm(
        np.full((2, 33), 200, u1), np.full((33, 15), -3, i1), a_zero_point=128, b_zero_point=7
    )
    same_bits(got, np.full((2, 15), -23760, np.int32))


@pytest.mark.parametrize("route", ROUTES)
def test_c06_exact_over_the_whole_range(
    route: str, pair: tuple[np.dtype, np.dtype], rng: np.random.Generator
) -> None:
    if not _packs_alike(route, pair):
        pytest.skip("a handle of another partner")
    for m, n, k in ((1, 1, 5), (1, 33, 70), (5, 7, 3), (15, 65, 33), (31, 16, 517)):
        a, b = _operands(rng, pair, m, n, k)
        same_bits(ROUTES[route](a, b), exact_gemm(a, b), (m, n, k))


@pytest.mark.parametrize("alpha, beta", [(-1, 0), (3, -2), (2**31, 2**40 + 1), (-(2**70) - 1, 1)])
def test_c06_factors_are_whole_numbers_of_any_size(
    alpha: int, beta: int, rng: np.random.Generator
) -> None:
    for pair in PAIRS:
        result = product_type(*pair)
        if result.kind not in "iub":
            continue
        a, b = _operands(rng, pair, 5, 9, 7)
        for kind in {result, sum_type(result)}:
            c, bias = anything(rng, (5, 9), kind), anything(rng, (9,), kind)
            want = exact_gemm(a, b, alpha=alpha, beta=beta, c=c, bias=bias)
            same_bits(jitgemm.gemm(a, b, alpha=alpha, beta=beta, c=c, bias=bias), want, _name(pair))


# -- 7: requantisation ----------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
def test_c07_every_shape_of_scales_and_zero_points(
    route: str, eight: tuple[np.dtype, np.dtype], rng: np.random.Generator
) -> None:
    # The same kernels serve more sizes, but each type of result takes its time to compile.
    narrow = eight[1]
    for m, n, k in ((1, 1, 3), (5, 33, 7), (16, 40, 65)):
        a, b = _operands(rng, eight, m, n, k)
        points = _points(rng, m, eight[0]), _points(rng, n, eight[1])
        scales = 2.0 ** rng.integers(-14, -6, n), rng.random((m, 1)) / 512 + 1e-6, 0.0123
        biases = rng.integers(-9999, 9999, n), rng.integers(-9999, 9999, (m, 1)), 77
        for i, scale in enumerate(scales):
            rule = Requantize(scale, 3, narrow, bias=biases[i])
            zeros = {"a_zero_point": points[0] if i else int(points[0][0]),
                     "b_zero_point": points[1] if i < 2 else int(points[1][0])}  # fmt: skip
            want = exact_gemm(a, b, requantize=rule, **zeros)
            same_bits(ROUTES[route](a, b, requantize=rule, **zeros), want, (m, n, k, i))


@pytest.mark.parametrize("route", ROUTES)
def test_c07_ties_go_to_even_before_the_zero_point(route: str) -> None:
    sums = np.array([[1, 3, 5, -1, -3, -5]], np.int8)
    one = np.ones((1, 1), np.int8)
    got = ROUTES[route](one, sums, requantize=Requantize(0.5))
    same_bits(got, np.array([[0, 2, 2, 0, -2, -2]], np.int8))
    got = ROUTES[route](one, sums, requantize=Requantize(0.5, 1))
    same_bits(got, np.array([[1, 3, 3, 1, -1, -1]], np.int8))


def test_c07_rounding_and_saturation_at_every_edge() -> None:
    # Sums are put in as a bias: any 32-bit number.
    ends = [0, 1, -1, 2**31 - 1, -(2**31), 2**30, 255, 256, -128, -129, 127, 128]
    near = [x + d for x in (127, 128, 255, 256, -128, -129) for d in (-1, 0, 1)]
    sums = np.array([*ends, *near, *range(-600, 600, 7)], np.int32)
    tiny = np.finfo(float).tiny
    scales = (0.5, 0.25, 1.0, 1 / 3, 0.1, 1.5, 1e-12, tiny, 5e-324, 1e300, np.finfo(float).max,
              np.nextafter(0.5, 1), np.nextafter(0.5, 0))  # fmt: skip
    zero = np.zeros((2, 1), np.int8)
    for scale, narrow in itertools.product(scales, NARROW):
        info = np.iinfo(narrow)
        for point in {info.min, 0, 3, info.max}:
            rule = Requantize(scale, point, narrow, bias=sums)
            with np.errstate(over="ignore", under="ignore"):
                want = exact_gemm(zero, np.zeros((1, len(sums)), np.int8), requantize=rule)
                got = jitgemm.gemm(zero, np.zeros((1, len(sums)), np.int8), requantize=rule)
            same_bits(got, want, (scale, narrow, point))


def test_c07_sums_wrap_before_they_are_scaled() -> None:
    a = np.full((1, 4), -128, np.int8)
    rule = Requantize(2.0**-24, 0, np.int8, bias=2**31 - 1)
    got = jitgemm.gemm(a, a.T, requantize=rule)
    same_bits(got, exact_gemm(a, a.T, requantize=rule))
    assert got == -128


# -- 9: subnormals and flags ----------------------------------------------------------------------


class _Environment(ctypes.Structure):
    _fields_ = [("x87", ctypes.c_uint32 * 7), ("mxcsr", ctypes.c_uint32)]


@pytest.mark.parametrize("route", ROUTES)
def test_c09_subnormals_survive(route: str) -> None:
    for half in HALVES:
        smallest = np.array(1, np.uint16).view(half)
        for n in (1, 40):
            a, b = np.full((3, 1), smallest, half), np.full((1, n), 3, half)
            want = np.full((3, n), 3, np.uint16).view(half)
            same_bits(ROUTES[route](a, b), want, half)
            single = np.full((3, n), np.float32(smallest) * np.float32(3))
            same_bits(ROUTES[route](a, b, out_dtype=np.float32), single, half)
            same_bits(ROUTES[route](a, -b, bias=b[0] * smallest), np.zeros((3, n), half), half)


@x86
def test_c09_exact_products_raise_no_flag_and_change_no_control_word() -> None:
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    environment = _Environment()

    def control() -> int:
        assert libm.fegetenv(ctypes.byref(environment)) == 0
        return int(environment.mxcsr) & ~0x3F

    before = control()
    for (left, right), (m, n, k) in itertools.product(
        PAIRS, ((1, 1, 1), (2, 33, 70), (15, 41, 5), (16, 7, 130))
    ):
        # Around the operands: what must not be touched would raise flags.
        wide = [np.full((s[0] + 2, s[1] + 40), 1 if t.kind in "iub" else np.nan, t)
                for s, t in (((m, k), left), ((k, n), right))]  # fmt: skip
        a, b = wide[0][1:-1, :k], wide[1][1:-1, :n]
        a[...], b[...] = 1, 1
        columns, packed = np.asfortranarray(b), jitgemm.prepack_rhs(b)
        calls = [lambda a=a, b=b: jitgemm.gemm(a, b),
                 lambda a=a, b=columns: jitgemm.gemm(a, b),
                 lambda b=b: jitgemm.prepack_rhs(b), lambda a=a: jitgemm.prepack_lhs(a),
                 lambda a=a, b=b: _f_out(a, b)]  # fmt: skip
        if _packs_alike("packed", (left, right)):
            calls.append(lambda a=a, b=packed: jitgemm.gemm(a, b))
        for i, call in enumerate(calls):
            call()
            libm.feclearexcept(0x3F)
            call()
            assert libm.fetestexcept(0x3F) == 0, (left, right, m, n, k, i)
    assert control() == before


@x86
@pytest.mark.parametrize("half", HALVES, ids=str)
def test_c09_unused_lanes_raise_no_flag(half: np.dtype) -> None:
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    for m, n, k in ((1, 1, 3), (2, 33, 70), (15, 41, 5)):
        # Infinity times one raises nothing; times a padding zero it would.
        a, b = np.full((m, k), np.inf, half), np.ones((k, n), half)
        for x, y in ((a, b), (b.T.copy(), a.T.copy()), (a, jitgemm.prepack_rhs(b)),
                     (a, np.asfortranarray(b))):  # fmt: skip
            jitgemm.gemm(x, y)
            libm.feclearexcept(0x3F)
            jitgemm.gemm(x, y)
            assert libm.fetestexcept(0x3F) == 0, (m, n, k)


# -- 10: the same bits ----------------------------------------------------------------------------


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_c10_every_route_has_the_same_bits(half: np.dtype, rng: np.random.Generator) -> None:
    for m, n, k in ((3, 40, 17), (20, 33, 1030)):
        a, b = (rng.standard_normal(s).astype(half) for s in ((m, k), (k, n)))
        given = {"bias": rng.standard_normal(n).astype(half), "alpha": 0.3}
        want = jitgemm.gemm(a, b, **given)
        for name, route in ROUTES.items():
            if name != "blas":
                same_bits(route(a, b, **given), want, (name, m, n, k))
        many = [jitgemm.gemm_batched([a] * 3, b, bias=[given["bias"]] * 3, alpha=0.3, threads=t)
                for t in (1, 2)]  # fmt: skip
        for got in itertools.chain(*many):
            same_bits(got, want)


@pytest.mark.usefixtures("eager_threads")
def test_c10_one_thread_equals_many(
    pair: tuple[np.dtype, np.dtype], rng: np.random.Generator
) -> None:
    a, b = _operands(rng, pair, 70, 90, 600)
    if product_type(*pair).kind == "f":
        a = (a.astype(np.float32) / 7).astype(pair[0]) if pair[0].kind not in "iub" else a
    want = jitgemm.gemm(a, b, threads=1)
    for threads in (2, 3):
        same_bits(jitgemm.gemm(a, b, threads=threads), want)
        same_bits(jitgemm.gemm(a[:2], b, threads=threads), jitgemm.gemm(a[:2], b, threads=1))


# -- 12: any strides ------------------------------------------------------------------------------


def _can_be(layout: str, dtype: np.dtype) -> bool:
    # NumPy has no bfloat16 in foreign byte order.
    return not (layout.startswith("foreign") and dtype == BF16)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_c12_any_layout_of_any_operand(
    layout: str, pair: tuple[np.dtype, np.dtype], rng: np.random.Generator
) -> None:
    place, result = LAYOUTS[layout], product_type(*pair)
    for m, n, k in ((1, 40, 9), (5, 7, 3), (35, 17, 70)):
        x = dict(zip("ab", _operands(rng, pair, m, n, k), strict=True))
        x["c"], x["bias"] = _small(rng, (m, n), result), _small(rng, (1, n), sum_type(result))
        want = exact_gemm(x["a"], x["b"], beta=2, c=x["c"], bias=x["bias"])
        for name in ("a", "b", "c", "bias", "out"):
            y = {**x, "out": np.zeros((m, n), result)}
            if not _can_be(layout, y[name].dtype) or (name == "out" and layout.startswith("odd")):
                continue
            y[name] = place(y[name])
            a, b = y.pop("a"), y.pop("b")
            assert jitgemm.gemm(a, b, beta=2, **y) is y["out"]
            equal(y["out"], want, (name, m, n, k))
    right = place(x["b"]) if _can_be(layout, pair[1]) else x["b"]
    assert (jitgemm.prepack_rhs(right).unpack() == x["b"]).all()
    left = place(x["a"]) if _can_be(layout, pair[0]) else x["a"]
    assert (jitgemm.prepack_lhs(left).unpack() == x["a"]).all()
    same_bits(jitgemm.gemm(left, right), exact_gemm(x["a"], x["b"]))


def test_c12_broadcast_read_only_and_vectors(
    pair: tuple[np.dtype, np.dtype], rng: np.random.Generator
) -> None:
    a, b = _operands(rng, pair, 1, 1, 33)
    for m, n in ((1, 40), (20, 1), (20, 40)):
        x, y = np.broadcast_to(a, (m, 33)), np.broadcast_to(b, (33, n))
        one = np.broadcast_to(a[:, :1], (m, 33)), np.broadcast_to(b[:1], (33, n))
        for left, right in ((x, y), one, (x, one[1]), (one[0], y)):
            same_bits(jitgemm.gemm(left, right), exact_gemm(left.copy(), right.copy()))


# -- 13: nothing outside an operand ---------------------------------------------------------------


@posix
@pytest.mark.parametrize("where", ["start", "end"])
def test_c13_every_tail_between_forbidden_pages(
    where: str, pair: tuple[np.dtype, np.dtype], rng: np.random.Generator
) -> None:
    memory = {name: Guarded(64 * 70 * 8) for name in ("a", "b", "c", "bias", "out")}
    result = product_type(*pair)
    sizes = [*itertools.product((1, 5, 15), (1, 3, 16, 31, 33), (1, 2, 3, 4, 5, 7, 33)),
             *((m, n, 66) for m in (2, 14) for n in (17, 64))]  # fmt: skip
    for i, (m, n, k) in enumerate(sizes):
        a, b = _operands(rng, pair, m, n, k)
        order = (np.ascontiguousarray, np.asfortranarray)
        # By turns: every order of every operand meets every tail of depth and columns.
        a, b = order[i // 2 % 2](a), order[i % 2](b)
        x = {"a": a, "b": b, "c": _small(rng, (m, n), result), "bias": _small(rng, (n,), result),
             "out": order[i // 4 % 2](np.zeros((m, n), result))}  # fmt: skip
        y = {name: memory[name].place(z, where) for name, z in x.items()}
        left, right = y.pop("a"), y.pop("b")
        want = exact_gemm(a, b)
        assert jitgemm.gemm(left, right, out=y["out"]) is y["out"]
        same_bits(y["out"], want, (m, n, k))
        if i % 3 == 0:
            jitgemm.gemm(left, right, beta=1, **y)
            same_bits(y["out"], exact_gemm(a, b, beta=1, c=x["c"], bias=x["bias"]), (m, n, k))
        if i % 3 == 1:
            assert (jitgemm.prepack_rhs(right).unpack() == b).all()
            assert (jitgemm.prepack_lhs(left).unpack() == a).all()
        for name, placed in {"a": left, "b": right, **y}.items():
            assert memory[name].intact(placed), f"written outside {name}: {(m, n, k)}"


@posix
@pytest.mark.parametrize("where", ["start", "end"])
def test_c13_quantised_products_between_forbidden_pages(
    where: str, eight: tuple[np.dtype, np.dtype], rng: np.random.Generator
) -> None:
    memory = {name: Guarded(64 * 70 * 8) for name in ("a", "b", "out", "bias")}
    for m, n, k in itertools.product((1, 5, 15), (1, 3, 16, 33), (1, 3, 4, 7, 66)):
        a, b = _operands(rng, eight, m, n, k)
        bias = rng.integers(-999, 999, n).astype(np.int32)
        zeros = {
            "a_zero_point": _points(rng, m, eight[0]),
            "b_zero_point": _points(rng, n, eight[1]),
        }
        x = {"a": a, "b": b, "bias": bias, "out": np.zeros((m, n), np.int8)}
        y = {name: memory[name].place(z, where) for name, z in x.items()}
        rule = Requantize(np.full((1, n), 0.001), 3)
        jitgemm.gemm(y["a"], y["b"], bias=y["bias"], out=y["out"], requantize=rule, **zeros)
        same_bits(y["out"], exact_gemm(a, b, bias=bias, requantize=rule, **zeros), (m, n, k))
        for name, z in y.items():
            assert memory[name].intact(z), f"written outside {name}: {(m, n, k)}"


def test_c13_canaries_around_rows_of_out(
    pair: tuple[np.dtype, np.dtype], rng: np.random.Generator
) -> None:
    result = product_type(*pair)
    for m, n, k in ((3, 1, 5), (7, 33, 9), (16, 65, 40)):
        a, b = _operands(rng, pair, m, n, k)
        for shape, turned in (((m, n + 7), False), ((n, m + 7), True)):
            whole = np.full(shape, 1, result)
            before = whole.copy()
            out = whole[:, 3:-4].T if turned else whole[:, 3:-4]
            jitgemm.gemm(a, b, out=out)
            same_bits(out, exact_gemm(a, b))
            out[...] = 1
            same_bits(whole, before)


# -- 14: out --------------------------------------------------------------------------------------


def test_c14_out_over_an_input(pair: tuple[np.dtype, np.dtype], rng: np.random.Generator) -> None:
    result = product_type(*pair)
    for n in (3, 40):
        for side in (0, 1):
            # Results are wider than operands: other types' views of the same bytes.
            raw = np.zeros(n * n * 16 + 64, np.uint8)
            x = list(_operands(rng, pair, n, n, n))
            size = pair[side].itemsize
            mine = np.ndarray((n, n), pair[side], raw, 16, (n * size, size))
            mine[...] = x[side]
            want = exact_gemm(*x)
            x[side] = mine
            for start in (16, 24):
                mine[...] = x[side].copy()
                kept = mine.copy()
                out = np.ndarray((n, n), result, raw, start)
                assert jitgemm.gemm(*x, out=out) is out
                same_bits(out, want, (n, side, start))
                mine[...] = kept


def test_c14_out_over_c_and_bias(pair: tuple[np.dtype, np.dtype], rng: np.random.Generator) -> None:
    result = product_type(*pair)
    a, b = _operands(rng, pair, 9, 20, 600)
    for case in ("same", "shifted", "bias"):
        buffer = _small(rng, (12, 20), result)
        out = buffer[:9]
        given: dict[str, Any] = {"same": {"beta": 1, "c": out}, "bias": {"bias": buffer[3]},
                                 "shifted": {"beta": 1, "c": buffer[1:10]}}[case]  # fmt: skip
        want = exact_gemm(a, b, **pickle.loads(pickle.dumps(given)))
        assert jitgemm.gemm(a, b, out=out, **given) is out
        same_bits(out, want, case)
    # C of the sums' type in the result's own bytes is no C in place.
    wide = sum_type(result)
    if wide != result:
        buffer = _small(rng, (9, 20), wide)
        out = np.ndarray((9, 20), result, buffer)
        want = exact_gemm(a, b, beta=1, c=buffer.copy())
        jitgemm.gemm(a, b, beta=1, c=buffer, out=out)
        same_bits(out, want)


def test_c14_what_cannot_hold_the_result_is_refused_untouched(
    pair: tuple[np.dtype, np.dtype], rng: np.random.Generator
) -> None:
    a, b = _operands(rng, pair, 5, 9, 7)
    result = product_type(*pair)
    frozen = np.full((5, 9), 1, result)
    frozen.flags.writeable = False
    wrong = [(np.full((5, 9), 1, t), TypeError) for t in ("i1", "u4", "i8", "f2", BF16, "f8", "c8")
             if np.dtype(t) != result]  # fmt: skip
    cases = [*wrong, (frozen, ValueError), (np.full((9, 5), 1, result), ValueError),
             (np.broadcast_to(np.ones(9, result), (5, 9)), ValueError)]  # fmt: skip
    for out, error in cases:
        before = out.tobytes()
        for call in (jitgemm.gemm, lambda a, b, out: jitgemm.plan(a, b, alpha=2)(a, b, out)):
            with pytest.raises(error, match=r"^jitgemm: out: expected .*, got "):
                call(a, b, out=out)
        assert out.tobytes() == before
    out = np.zeros((5, 9), result)
    assert jitgemm.gemm(a, b, out=out) is out
    same_bits(out, exact_gemm(a, b))


# -- 23: errors -----------------------------------------------------------------------------------

A8, B8 = np.ones((3, 4), np.int8), np.ones((4, 5), np.uint8)
F4 = A8.astype(np.float32), B8.astype(np.float32)
RULE = Requantize(0.5)
TYPED: dict[str, tuple[type[Exception], str, tuple[str, ...], dict[str, Any]]] = {
    **{
        f"{side}_zero_point {name}": (error, f"{side}_zero_point", words, {f"{side}_zero_point": x})
        for side, name, error, words, x in (
            ("a", "of a float", TypeError, ("integers", "float64"), 1.0),
            ("a", "of truth", TypeError, ("integers", "bool"), True),
            ("a", "of text", TypeError, ("integers", "<U1"), "1"),
            ("a", "too great", ValueError, ("numbers of int8",), 128),
            ("a", "too small", ValueError, ("numbers of int8",), [0, 0, -129]),
            ("a", "too many", ValueError, ("(3,) or (3, 1)", "shape (4,)"), [1, 2, 3, 4]),
            ("a", "per column", ValueError, ("(3,) or (3, 1)", "(1, 3)"), [[1, 2, 3]]),
            ("a", "of other stacks", ValueError, ("(3,) or (3, 1)", "(4, 3, 1)"),
             np.ones((4, 3, 1), int)),
            ("a", "beyond all types", ValueError, ("numbers of int8",), [0, 0, 2**70]),
            ("b", "of a float", TypeError, ("integers", "float64"), [1.0]),
            ("b", "negative", ValueError, ("numbers of uint8",), -1),
            ("b", "too few", ValueError, ("(5,) or (1, 5)", "(4,)"), [1, 2, 3, 4]),
            ("b", "per row", ValueError, ("(5,) or (1, 5)", "(4, 1)"), np.ones((4, 1), int)),
        )
    },
    "a_zero_point of floats": (
        TypeError, "a_zero_point", ("None", "float32"), {"a": F4[0], "a_zero_point": 1}),
    "b_zero_point of longer integers": (
        TypeError, "b_zero_point", ("None", "int16"),
        {"b": B8.astype(np.int16), "b_zero_point": 1}),
    "a_zero_point beside longer integers": (
        TypeError, "a_zero_point", ("None", "both 8-bit"),
        {"b": B8.astype(np.int16), "a_zero_point": 1}),
    "requantize a number": (TypeError, "requantize", ("Requantize", "float"), {"requantize": 0.5}),
    "requantize of floats": (
        TypeError, "requantize", ("None", "8-bit"), {"a": F4[0], "requantize": RULE}),
    "requantize of longer integers": (
        TypeError, "requantize", ("None", "8-bit"),
        {"a": A8.astype(np.int16), "requantize": RULE}),
    "scales of another shape": (
        ValueError, "requantize.scale", ("(5,), (1, 5) or (3, 1)", "shape (3,)"),
        {"requantize": Requantize([1, 2, 3])}),
    "scales of other stacks": (
        ValueError, "requantize.scale", ("(5,), (1, 5) or (3, 1)", "shape (4, 3, 1)"),
        {"requantize": Requantize(np.ones((4, 3, 1)))}),
    "bias twice": (
        TypeError, "bias", ("None, because requantize has one",),
        {"requantize": Requantize(1, bias=np.arange(5)), "bias": np.arange(5, dtype=np.int32)}),
    "bias of a requantisation too long": (
        ValueError, "bias", ("(5,)", "(6,)"), {"requantize": Requantize(1, bias=np.arange(6))}),
    "bias of floats": (TypeError, "bias", ("int32", "float32"), {"bias": F4[1][0]}),
    "c of floats": (TypeError, "c", ("int32", "float32"), {"beta": 1, "c": np.ones((3, 5), "f4")}),
    "out_dtype no type": (
        TypeError, "out_dtype", ("a NumPy type", "'wide'"), {"out_dtype": "wide"}),
    "out_dtype no name": (TypeError, "out_dtype", ("a NumPy type", "list"), {"out_dtype": [1]}),
    "out_dtype numpy": (
        TypeError, "out_dtype", ("a NumPy type", "'numpy'"), {"out_dtype": "numpy"}),
    "out_dtype narrower": (TypeError, "out_dtype", ("int32", "int16"), {"out_dtype": np.int16}),
    "out_dtype of floats": (TypeError, "out_dtype", ("int32", "float64"), {"out_dtype": float}),
    "out_dtype unsigned": (TypeError, "out_dtype", ("int32", "uint64"), {"out_dtype": np.uint64}),
    "out_dtype of halves": (
        TypeError, "out_dtype", ("bfloat16", "float16"),
        {"a": A8.astype(BF16), "b": B8.astype(BF16), "out_dtype": np.float16}),
    "out_dtype of complex": (
        TypeError, "out_dtype", ("complex64", "complex128"),
        {"a": A8.astype("c8"), "b": B8.astype("c8"), "out_dtype": "c16"}),
    "out_dtype beside requantize": (
        TypeError, "out_dtype", ("int8", "uint8"), {"requantize": RULE, "out_dtype": np.uint8}),
    "alpha a fraction": (TypeError, "alpha", ("an integer", "0.5"), {"alpha": 0.5}),
    "beta a fraction": (
        TypeError, "beta", ("an integer", "0.5"), {"beta": 0.5, "c": np.ones((3, 5), np.int32)}),
    "activation of integers": (
        TypeError, "activation", ("relu, clip", "integers", "gelu"), {"activation": "gelu"}),
    "activation beside requantize": (
        TypeError, "activation", ("integers", "leaky_relu"),
        {"activation": jitgemm.leaky_relu(2), "requantize": RULE}),
    "activation of narrower sums": (
        TypeError, "activation", ("int32 nor int64", "relu"),
        {"a": A8.astype(np.int16), "b": B8.astype(np.int16), "activation": "relu"}),
    "activation of unsigned sums": (
        TypeError, "activation", ("int32 nor int64", "clip"),
        {"a": A8.astype(np.uint32), "b": B8.astype(np.uint32), "activation": jitgemm.clip(0, 9)}),
    "activation of fractions": (
        TypeError, "activation", ("whole numbers for clip", "0.5"),
        {"activation": jitgemm.clip(0.5, 9)}),
    "epilogue of integers": (
        TypeError, "epilogue", ("integers",), {"epilogue": lambda v, row, col: v}),
    "epilogue after an activation of integers": (
        TypeError, "epilogue", ("integers",),
        {"activation": "relu", "epilogue": lambda v, row, col: v}),
    "b complex": (
        TypeError, "b", ("int8 elements like a", "complex64"), {"alpha": 2, "b": B8.astype("c8")}),
    "a complex": (
        TypeError, "b", ("complex64 elements like a", "uint8"), {"alpha": 2, "a": A8.astype("c8")}),
    "a packed for other sums": (
        TypeError, "a", ("packed for sums with int16", "prepacked int8"),
        {"a": jitgemm.prepack_lhs(A8), "b": B8.astype(np.int16)}),
    "b packed for other sums": (
        TypeError, "b", ("packed for sums with int64", "prepacked uint8"),
        {"a": A8.astype(np.int64), "b": jitgemm.prepack_rhs(B8)}),
    "out narrower": (TypeError, "out", ("int32", "int8"), {"out": np.full((3, 5), 7, np.int8)}),
    "out wider than asked for": (
        TypeError, "out", ("int8", "int32"),
        {"requantize": RULE, "out": np.full((3, 5), 7, np.int32)}),
}  # fmt: skip


@pytest.mark.parametrize("case", TYPED)
@pytest.mark.parametrize("way", ["gemm", "plan", "stack", "list"])
def test_c23_arguments_of_types(case: str, way: str) -> None:
    error, operand, words, given = TYPED[case]
    options = {"a": A8, "b": B8, "out": np.full((3, 5), 7, np.int32), **given}
    a, b = options.pop("a"), options.pop("b")
    if "requantize" in options and "out" not in given:
        options["out"] = np.full((3, 5), 7, np.int8)
    if operand != "out":
        options.pop("out")
    before = pickle.dumps(options.get("out"))
    if way == "stack":
        if isinstance(a, jitgemm.PackedLhs) or isinstance(b, jitgemm.PackedRhs):
            pytest.skip("a handle")
        a = np.stack([a, a])
        if operand == "out":
            options["out"] = np.stack([options["out"]] * 2)
            before = pickle.dumps(options["out"])
        if case == "bias of a requantisation too long":
            words = ("(2, 3, 5)", "(6,)")
    if way == "list":
        a, b = [a], [b]
        options |= {x: [options[x]] for x in ("c", "bias", "out") if x in options}
    call: Callable[..., Any] = {"plan": jitgemm.plan, "list": jitgemm.gemm_batched}.get(
        way, jitgemm.gemm
    )
    # Twice, and after a good call with the same shapes.
    for good in ({}, {"a_zero_point": 1, "b_zero_point": 1}):
        jitgemm.gemm(A8, B8, **good)
        with pytest.raises(error) as raised:
            call(a, b, **options)
        text = str(raised.value)
        assert re.match(rf"^jitgemm: {re.escape(operand)}: expected .+, got .+", text), text
        for word in words:
            assert word in text, text
    out = options.get("out")
    assert pickle.dumps(out[0] if way == "list" and out else out) == before


RULES: dict[str, tuple[type[Exception], str, tuple[str, ...], dict[str, Any]]] = {
    **{
        f"scale {x}": (ValueError, "scale", ("positive finite",), {"scale": x})
        for x in (0, 0.0, -0.0, -1, np.nan, np.inf, -np.inf, [1, 0], [[1.0, np.nan]])
    },
    "scale text": (TypeError, "scale", ("real numbers", "<U1"), {"scale": "1"}),
    "scale None": (TypeError, "scale", ("real numbers", "object"), {"scale": None}),
    "scale complex": (TypeError, "scale", ("real numbers", "complex"), {"scale": 1j}),
    "scale truth": (TypeError, "scale", ("real numbers", "bool"), {"scale": True}),
    "zero_point too great": (ValueError, "zero_point", ("int8", "128"), {"zero_point": 128}),
    "zero_point negative": (
        ValueError, "zero_point", ("uint8", "-1"), {"zero_point": -1, "dtype": np.uint8}),
    "zero_point a float": (TypeError, "zero_point", ("an integer", "float"), {"zero_point": 1.0}),
    "zero_point truth": (TypeError, "zero_point", ("an integer", "bool"), {"zero_point": True}),
    "zero_point None": (TypeError, "zero_point", ("an integer",), {"zero_point": None}),
    "zero_points": (TypeError, "zero_point", ("an integer", "list"), {"zero_point": [1, 2]}),
    "dtype long": (TypeError, "dtype", ("int8 or numpy.uint8", "int16"), {"dtype": np.int16}),
    "dtype of floats": (TypeError, "dtype", ("uint8", "float64"), {"dtype": float}),
    "dtype no type": (TypeError, "dtype", ("uint8", "'narrow'"), {"dtype": "narrow"}),
    "bias of floats": (TypeError, "bias", ("int32", "float64"), {"bias": [1.5]}),
    "bias of truth": (TypeError, "bias", ("int32", "bool"), {"bias": True}),
    "bias too great": (ValueError, "bias", ("int32",), {"bias": 2**31}),
    "bias of longer numbers": (ValueError, "bias", ("int32",), {"bias": np.array([2**31])}),
    "zero_point beyond all types": (
        ValueError, "zero_point", ("int8", str(2**70)), {"zero_point": 2**70}),
}  # fmt: skip


@pytest.mark.parametrize("case", RULES)
def test_c23_requantisations(case: str) -> None:
    error, operand, words, given = RULES[case]
    with pytest.raises(error) as raised:
        Requantize(**{"scale": 1.0, **given})
    text = str(raised.value)
    assert re.match(rf"^jitgemm: {operand}: expected .+, got .+", text), text
    for word in words:
        assert word in text, text


def test_c23_zero_points_of_refused_kinds_are_refused_every_time() -> None:
    for name, good, bad in (("a_zero_point", 1, True), ("b_zero_point", 1, 1.0)):
        for left in (A8, np.stack([A8, A8]), jitgemm.prepack_lhs(A8)):
            for _ in range(2):
                jitgemm.gemm(left, B8, **{name: good})  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=f"^jitgemm: {name}: "):
                jitgemm.gemm(left, B8, **{name: bad})  # type: ignore[arg-type]
        jitgemm.gemm_batched([A8], [B8], **{name: good})
        with pytest.raises(TypeError, match=f"^jitgemm: {name}: "):
            jitgemm.gemm_batched([A8], [B8], **{name: bad})


def test_c23_unaligned_scales_and_points_are_taken(rng: np.random.Generator) -> None:
    scale, zero = unaligned(rng.random((1, 5))), unaligned(np.arange(5).reshape(1, 5))
    rule = Requantize(scale)
    got = jitgemm.gemm(A8, B8, b_zero_point=zero, requantize=rule)
    same_bits(got, exact_gemm(A8, B8, b_zero_point=zero, requantize=rule))
    foreign = Requantize(scale.astype(">f8"), bias=np.arange(5).astype(">i8"))
    got = jitgemm.gemm(A8, B8, b_zero_point=zero.astype(">i2"), requantize=foreign)
    same_bits(got, exact_gemm(A8, B8, b_zero_point=zero, requantize=foreign))
