"""Contract, "Values": sentences 1 to 4 and 9 to 11, for float32 and float64."""

# ruff: noqa: FBT001  # parameters of a test are named by its decorator

from __future__ import annotations

import ctypes
import ctypes.util
import itertools
import json
import platform
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm.api import dispatch, product
from jitgemm.isa.tables import BY_NAME
from jitgemm.jit.target import available
from jitgemm.kernels.spec import BSource
from jitgemm.planner.route import GemmPlan, PackA, make_plan
from oracle import (
    LAYOUTS,
    TINY,
    Guarded,
    another_machine,
    bits,
    documented,
    equal,
    error_bound,
    exact_gemm,
    integers,
    reals,
    run_python,
    same_bits,
    unaligned,
)

Array = np.ndarray[Any, Any]
Route = Callable[[Array, Array], Array]

BLOCK = 512
DEPTHS = (1, 2, 63, 511, 512, 513, 1025)


# -- routes: every way a product can take ---------------------------------------------------------


def _into(out: Array) -> Callable[..., Array]:
    def call(a: Array, b: Array, **options: Any) -> Array:
        result = jitgemm.gemm(a, b, out=out, **options)
        assert result is out
        return result

    return call


def _strided_out(a: Array, b: Array, **options: Any) -> Array:
    out = np.full((a.shape[0], 2 * b.shape[1]), np.nan, a.dtype)[:, ::2]
    return _into(out)(a, b, **options)


def _column_major_out(a: Array, b: Array, **options: Any) -> Array:
    return _into(np.full((b.shape[1], a.shape[0]), np.nan, a.dtype).T)(a, b, **options)


def _wide_steps_of_a(a: Array) -> Array:
    """A copy whose depth step is so long that packing A is considered."""
    wide = np.full((a.shape[1], max(a.shape[0], 4096 // a.itemsize)), np.nan, a.dtype)
    wide[:, : a.shape[0]] = a.T
    return wide[:, : a.shape[0]].T


def _colliding_rows(a: Array) -> Array:
    """A copy whose rows are a large power of two apart."""
    wide = np.full((a.shape[0], 8192 // a.itemsize * 2), np.nan, a.dtype)
    wide[:, : a.shape[1]] = a
    return wide[:, : a.shape[1]]


def _rows_on_pages(b: Array) -> Array:
    """A row-major copy that is packed per call from 33 rows of A on."""
    pages = -(-b.shape[1] * b.itemsize // 4096)
    wide = np.full((b.shape[0], pages * 4096 // b.itemsize), np.nan, b.dtype)
    wide[:, : b.shape[1]] = b
    return wide[:, : b.shape[1]]


ROUTES: dict[str, Callable[..., Array]] = {
    "gemm": jitgemm.gemm,
    "rows of b on pages": lambda a, b, **o: jitgemm.gemm(a, _rows_on_pages(b), **o),
    "column-major b": lambda a, b, **o: jitgemm.gemm(a, np.asfortranarray(b), **o),
    "column-major a": lambda a, b, **o: jitgemm.gemm(np.asfortranarray(a), b, **o),
    "prepacked": lambda a, b, **o: jitgemm.gemm(a, jitgemm.prepack_rhs(b), **o),
    "strided out": _strided_out,
    "column-major out": _column_major_out,
    "long steps of a": lambda a, b, **o: jitgemm.gemm(_wide_steps_of_a(a), b, **o),
    "colliding rows of a": lambda a, b, **o: jitgemm.gemm(_colliding_rows(a), b, **o),
    "everything unaligned": lambda a, b, **o: jitgemm.gemm(unaligned(a), unaligned(b, 3), **o),
    "foreign byte order": lambda a, b, **o: jitgemm.gemm(
        a.astype(a.dtype.newbyteorder("S")), b.astype(b.dtype.newbyteorder("S")), **o
    ),
    "two threads": lambda a, b, **o: jitgemm.gemm(a, b, **{**o, "threads": 2}),
    "two threads, prepacked": lambda a, b, **o: jitgemm.gemm(
        a, jitgemm.prepack_rhs(b), **{**o, "threads": 2}
    ),
}
PLAIN_ROUTES: dict[str, Route] = {
    **ROUTES,
    "matmul": jitgemm.matmul,
    "matmul out": lambda a, b: jitgemm.matmul(
        a, b, np.full((a.shape[0], b.shape[1]), np.nan, a.dtype)
    ),
    "plan": lambda a, b: jitgemm.plan(a, b)(a, b, np.empty((a.shape[0], b.shape[1]), a.dtype)),
    "plan, no out": lambda a, b: jitgemm.plan(a, b)(a, b),
    "workspace": lambda a, b: jitgemm.gemm(a, b, workspace=jitgemm.Workspace()),
    "batch": lambda a, b: jitgemm.matmul(np.stack([a, -a]), b)[0],
}
# One row, few rows, a full and an edge tile of every set, more than are read in place; narrow
# results, tails of every vector length, and enough columns for packing A to pay.
SIZES = ((1, 5), (1, 33), (2, 70), (5, 7), (14, 32), (29, 19), (37, 149))


def _plain(pick: tuple[str, ...] = ()) -> Any:
    names = pick or tuple(PLAIN_ROUTES)
    return pytest.mark.parametrize("route", [pytest.param(PLAIN_ROUTES[n], id=n) for n in names])


# -- 1: one documented order ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def answers() -> dict[Any, tuple[Array, Array, Array]]:
    return {}


@pytest.mark.parametrize("route", [pytest.param(r, id=n) for n, r in PLAIN_ROUTES.items()])
@pytest.mark.usefixtures("pieces")
def test_c01_one_documented_order_of_the_sum(
    route: Route, dtype: Any, fused: bool, answers: dict[Any, Any]
) -> None:
    for (m, n), k in itertools.product(SIZES, DEPTHS):
        key = (m, n, k, dtype)
        if key not in answers:
            rng = np.random.default_rng([m, n, k])
            a, b = reals(rng, (m, k), dtype), reals(rng, (k, n), dtype)
            answers[key] = a, b, documented(a, b, fused=fused)
        a, b, want = answers[key]
        same_bits(route(a, b), want, f"m={m} n={n} k={k}")


def test_c01_the_routes_are_all_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of this file mean something only while their products take every route."""
    plans: list[GemmPlan] = []

    def recording(problem: Any, context: Any) -> GemmPlan:
        plans.append(make_plan(problem, context))
        return plans[-1]

    monkeypatch.setattr(dispatch, "make_plan", recording)
    monkeypatch.setattr(product, "make_plan", recording)
    knobs = {"parallel_flops": 1, "sweep_row_bytes": 1, "rhs_pack_rows": 1}
    for machine, values, threads in ((None, {}, 1), (TINY, knobs, 2)):
        with another_machine(machine, **values), jitgemm.threads(threads):
            for route, (m, n), k in itertools.product(PLAIN_ROUTES.values(), SIZES, DEPTHS):
                route(np.ones((m, k), np.float32), np.ones((k, n), np.float32))
    assert {p.pack_a for p in plans} == set(PackA)
    assert {(p.spec.b, p.problem.b is None) for p in plans} == {
        (BSource.INPLACE, False), (BSource.PACKED, False), (BSource.PACKED, True),
    }  # fmt: skip
    for feature in ("swapped", "direct", "sweep"):
        assert {getattr(p, feature) for p in plans} == {False, True}, feature
    for bound in ("row_chunks", "col_chunks", "slices", "blocks", "pack_chunks", "group"):
        assert len({getattr(p.blocking, bound) for p in plans}) > 1, bound
    assert any(p.blocking.depth_step < p.blocking.depth_per_slice for p in plans)
    assert {p.threads for p in plans} >= {1, 2}


def test_c01_the_model_tells_orders_apart(dtype: Any, rng: np.random.Generator) -> None:
    a, b = reals(rng, (9, 1025), dtype), reals(rng, (1025, 11), dtype)
    fused, unfused = (documented(a, b, fused=f) for f in (True, False))
    backwards = documented(a[:, ::-1], b[::-1], fused=True)
    assert (bits(fused) != bits(unfused)).any()
    assert (bits(fused) != bits(backwards)).any()
    # Without blocks: the same chain in one piece.
    first = documented(a[:, :BLOCK], b[:BLOCK], fused=True)
    rest = documented(a[:, BLOCK:], b[BLOCK:], fused=True)
    assert (bits(first + rest) != bits(fused)).any()


def test_c01_every_order_obeys_the_bound(dtype: Any, rng: np.random.Generator) -> None:
    for m, n, k in ((1, 40, 3000), (33, 65, 129), (70, 3, 1500)):
        a, b = reals(rng, (m, k), dtype), reals(rng, (k, n), dtype)
        wide = np.longdouble if dtype == np.float64 else np.float64
        true = a.astype(wide) @ b.astype(wide)
        assert (np.abs(jitgemm.gemm(a, b) - true) <= error_bound(a, b)).all()


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.7])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.usefixtures("pieces")
def test_c01_the_epilogue_applies_once_in_its_order(
    beta: float, in_place: bool, dtype: Any, fused: bool, rng: np.random.Generator
) -> None:
    for (m, n), k in itertools.product(((1, 33), (5, 7), (37, 40)), (0, 3, 512, 1025)):
        a, b, c = (reals(rng, s, dtype) for s in ((m, k), (k, n), (m, n)))
        bias = reals(rng, (n,), dtype)
        options: dict[str, Any] = {"alpha": 1.1, "beta": beta, "bias": bias, "activation": "relu"}
        want = documented(a, b, c=c, fused=fused, **options)
        for packed in (False, True):
            mine = c.copy()
            right = jitgemm.prepack_rhs(b) if packed else b
            out = mine if in_place else None
            got = jitgemm.gemm(a, right, c=mine, out=out, **options)
            same_bits(got, want, f"m={m} n={n} k={k} packed={packed}")


def test_c01_a_million_tenths(fused: bool) -> None:
    tenth, one = np.float32(0.1), np.float32(1)
    a, b = np.full((1, 10**6), tenth), np.full((10**6, 1), one)
    whole = [
        jitgemm.gemm(a, b),
        jitgemm.gemm(b.T, a.T),
        jitgemm.matmul(a, b),
        jitgemm.gemm(a, jitgemm.prepack_rhs(b)),
        jitgemm.gemm(np.broadcast_to(tenth, (3, 10**6)), b)[:1],
        jitgemm.matmul(a[0], b[:, 0])[None, None],
    ]
    for result in whole:
        assert abs(result.item() / 100_000 - 1) < 1e-4
        assert result.item() == whole[0].item()


# -- 2: branches, not multiplications by zero -----------------------------------------------------


@_plain()
@pytest.mark.usefixtures("pieces")
def test_c02_an_uninitialised_result_does_not_matter(
    route: Route, dtype: Any, rng: np.random.Generator
) -> None:
    # The routes that bring a result of their own fill it with NaN.
    for m, n, k in ((5, 7, 3), (37, 40, 520)):
        a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
        same_bits(route(a, b) + 0.0, exact_gemm(a, b), f"m={m} n={n} k={k}")


@pytest.mark.parametrize("k", [0, 3, 1025])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.usefixtures("pieces")
def test_c02_beta_0_never_reads_c(
    k: int, packed: bool, dtype: Any, rng: np.random.Generator
) -> None:
    guarded = Guarded(40 * 40 * 8)
    for m, n in ((5, 7), (31, 40)):
        a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
        right = jitgemm.prepack_rhs(b) if packed else b
        nan = np.full((m, n), np.nan, dtype)
        want = exact_gemm(a, b)
        for c in (None, nan, np.broadcast_to(dtype(np.nan), (m, n))):
            equal(jitgemm.gemm(a, right, c=c), want)
            equal(jitgemm.gemm(a, right, c=c, beta=-0.0), want)
        equal(jitgemm.gemm(a, right, c=nan, out=nan, beta=0), want)
        c = guarded.place(np.zeros((m, n), dtype), "end")
        with guarded.locked():
            equal(jitgemm.gemm(a, right, c=c, beta=0), want)


def test_c02_the_table_of_rightanswers() -> None:
    a, b = np.ones((5, 3), np.float32), np.ones((3, 7), np.float32)
    c = np.full((5, 7), np.nan, np.float32)
    equal(jitgemm.gemm(a, b, c=c, beta=0), np.full((5, 7), 3, np.float32))
    equal(jitgemm.gemm(a, b, c=c, beta=0, out=c), np.full((5, 7), 3, np.float32))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.usefixtures("pieces")
def test_c02_alpha_0_never_reads_a_or_b(packed: bool, dtype: Any, rng: np.random.Generator) -> None:
    memory = [Guarded(40 * 600 * 8) for _ in range(2)]
    for m, n, k in ((5, 7, 3), (1, 40, 5), (31, 40, 600), (3, 5, 0)):
        a, b = np.full((m, k), np.nan, dtype), np.full((k, n), np.inf, dtype)
        c, bias = integers(rng, (m, n), dtype), integers(rng, (n,), dtype)
        right = jitgemm.prepack_rhs(b) if packed else b
        zero = np.zeros((m, n), dtype)
        equal(jitgemm.gemm(a, right, alpha=0), zero)
        equal(jitgemm.gemm(a, right, alpha=-0.0), zero)
        equal(jitgemm.gemm(a, right, alpha=0, beta=3, c=c), 3 * c)
        want = np.maximum(bias - 2 * c, 0)
        options: dict[str, Any] = {"beta": -2, "bias": bias, "activation": "relu"}
        equal(jitgemm.gemm(a, right, alpha=0, c=c, **options), want)
        x, y = (g.place(z, "start") for g, z in zip(memory, (a, b), strict=True))
        with memory[0].locked(), memory[1].locked():
            right = right if packed else y
            equal(jitgemm.gemm(x, right, alpha=0, c=c, **options), want)
            equal(jitgemm.gemm(x, right, alpha=0, c=c, out=c, **options), want)


def test_c02_beta_without_c_is_an_error(dtype: Any) -> None:
    a, out = np.ones((2, 2), dtype), np.full((2, 2), 7, dtype)
    with pytest.raises(ValueError, match=r"^jitgemm: c: .*beta"):
        jitgemm.gemm(a, a, beta=0.5, out=out)
    assert (out == 7).all()


# -- 3: nothing to sum, nothing to do -------------------------------------------------------------


@pytest.mark.parametrize("route", [pytest.param(r, id=n) for n, r in ROUTES.items()])
@pytest.mark.usefixtures("pieces")
def test_c03_a_sum_of_nothing_is_0_and_the_epilogue_applies(
    route: Callable[..., Array], dtype: Any, rng: np.random.Generator
) -> None:
    for m, n in ((1, 1), (1, 40), (5, 7), (37, 40)):
        a, b = np.ones((m, 0), dtype), np.ones((0, n), dtype)
        c, bias = integers(rng, (m, n), dtype), integers(rng, (n,), dtype)
        equal(route(a, b), np.zeros((m, n), dtype))
        equal(route(a, b, beta=2, c=c), 2 * c)
        equal(route(a, b, bias=bias), np.broadcast_to(bias, (m, n)))
        want = np.maximum(bias - c, 0)
        equal(route(a, b, beta=-1, c=c, bias=bias, activation="relu"), want)


def test_c03_the_table_of_rightanswers(dtype: Any) -> None:
    bias = np.array([1, -2, 3], dtype)
    got = jitgemm.gemm(np.ones((2, 0), dtype), np.ones((0, 3), dtype), bias=bias, activation="relu")
    equal(got, np.array([[1, 0, 3]] * 2, dtype))


@pytest.mark.parametrize("m, k, n", [(0, 3, 4), (3, 4, 0), (0, 0, 0), (0, 3, 0), (0, 10**6, 1)])
def test_c03_empty_results_have_the_right_shape(m: int, k: int, n: int, dtype: Any) -> None:
    a = np.broadcast_to(dtype(np.nan), (m, k))
    b = np.broadcast_to(dtype(np.nan), (k, n))
    c, bias = np.empty((m, n), dtype), np.empty(n, dtype)
    out = np.empty((m, n), dtype)
    results = [
        jitgemm.gemm(a, b),
        jitgemm.gemm(a, b, beta=1, c=c, bias=bias, activation="relu", threads=2),
        jitgemm.matmul(a, b),
        jitgemm.gemm(a, jitgemm.prepack_rhs(b)),
    ]
    for result in results:
        assert result.shape == (m, n)
        assert result.dtype == dtype
    assert jitgemm.gemm(a, b, out=out) is out
    assert jitgemm.matmul(a, b, out) is out
    assert jitgemm.matmul(np.empty((0, m, k), dtype), b).shape == (0, m, n)


@pytest.mark.parametrize("m, k, n", [(0, 3, 4), (3, 4, 0), (0, 0, 0), (40, 3, 0)])
@pytest.mark.parametrize("place", [np.asarray, np.asfortranarray])
def test_c03_empty_results_can_be_planned(m: int, k: int, n: int, place: Any, dtype: Any) -> None:
    a, b, out = np.empty((m, k), dtype), place(np.empty((k, n), dtype)), np.empty((m, n), dtype)
    for right in (b, jitgemm.prepack_rhs(b)):
        p = jitgemm.plan(a, right, bias=np.empty(n, dtype))
        assert p(a, right).shape == (m, n)
        assert p(a, right, out) is out


# -- 4: NaN and infinity --------------------------------------------------------------------------


@_plain()
@pytest.mark.usefixtures("pieces")
def test_c04_nan_and_infinity_reach_exactly_what_ieee_says(
    route: Route, dtype: Any, rng: np.random.Generator
) -> None:
    for m, n, k in ((1, 9, 5), (5, 7, 3), (15, 33, 20), (37, 40, 513)):
        a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
        for special in (np.nan, np.inf, -np.inf):
            for i, p, j in ((0, 0, 0), (m - 1, k - 1, n - 1), (m // 2, k // 2, n // 2)):
                x, y = a.copy(), b.copy()
                x[i, p] = special
                y[k - 1 - p, j] = special
                with np.errstate(invalid="ignore"):
                    # Sums of integers with specials are the same in any order.
                    want = np.einsum("ip,pj->ij", x, y)
                equal(route(x, y), want, f"m={m} n={n} k={k} {special} at {i, p, j}")
        # Nothing is left over from those calls.
        equal(route(a, b), exact_gemm(a, b))


def test_c04_zeros_are_not_skipped(dtype: Any) -> None:
    inf, one, zero = (
        np.array([[np.inf, 1]], dtype),
        np.array([[0], [1]], dtype),
        np.zeros((1, 1), dtype),
    )
    for f in (jitgemm.gemm, jitgemm.matmul):
        assert np.isnan(f(inf, one)).all()
        assert np.isnan(f(zero, zero + dtype(np.nan))).all()
        assert np.isnan(f(zero + dtype(np.inf), zero)).all()


@pytest.mark.usefixtures("pieces")
def test_c04_nan_reaches_results_through_every_term(dtype: Any) -> None:
    a = np.ones((3, 4), dtype)
    for n in (1, 5, 40):
        b, zero = np.ones((4, n), dtype), np.zeros((3, n), dtype)
        bad = zero.copy()
        bad[1, n // 2] = np.nan
        got = jitgemm.gemm(a, b, beta=1, c=bad, activation="relu")
        assert np.array_equal(np.isnan(got), np.isnan(bad))
        got = jitgemm.gemm(a, b, bias=bad[1], activation="relu")
        assert np.array_equal(np.isnan(got), np.isnan(np.tile(bad[1], (3, 1))))
        assert np.isnan(jitgemm.gemm(a, b, alpha=np.nan)).all()
        assert np.isnan(jitgemm.gemm(a, b, beta=np.nan, c=zero)).all()
        assert np.isnan(jitgemm.gemm(a, b, beta=np.inf, c=zero)).all()


@pytest.mark.usefixtures("pieces")
def test_c04_relu_propagates_nan(dtype: Any) -> None:
    a = np.array([[np.nan], [-np.inf], [np.inf], [-1], [-0.0], [0], [2]], dtype)
    for n in (1, 3, 17, 33):
        b = np.ones((1, n), dtype)
        for right in (b, jitgemm.prepack_rhs(b)):
            got = jitgemm.gemm(a, right, activation="relu")
            equal(got, np.repeat(np.maximum(a, 0), n, axis=1))


# -- 9: the floating-point environment ------------------------------------------------------------

_INVALID, _DIVIDE, _OVERFLOW, _UNDERFLOW, _INEXACT = 1, 4, 8, 16, 32
x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the MXCSR register")


@_plain()
@pytest.mark.usefixtures("pieces")
def test_c09_subnormals_survive(route: Route, dtype: Any, rng: np.random.Generator) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    for m, n, k in ((1, 7, 3), (5, 7, 3), (30, 40, 21)):
        a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
        want = exact_gemm(a, b)
        for x, y in ((a * tiny, b), (a, b * tiny)):
            same_bits(route(x, y) + 0.0, want * tiny)  # -0 of a rounded chain is 0 all the same


def test_c09_subnormals_survive_the_epilogue(dtype: Any) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    one = np.ones((3, 2), dtype)
    b = np.full((2, 33), 3 * tiny)
    got = jitgemm.gemm(one, b, alpha=2, beta=1, c=np.full((3, 33), tiny), bias=b[0],
                       activation="relu")  # fmt: skip
    same_bits(got, np.full((3, 33), 16 * tiny, dtype))


class _Environment(ctypes.Structure):
    """``fenv_t`` of the C library on x86-64: the x87 state, then MXCSR."""

    _fields_ = [("x87", ctypes.c_uint32 * 7), ("mxcsr", ctypes.c_uint32)]


def _libm() -> ctypes.CDLL:
    return ctypes.CDLL(ctypes.util.find_library("m"))


def _mxcsr() -> int:
    environment = _Environment()
    assert _libm().fegetenv(ctypes.byref(environment)) == 0
    return int(environment.mxcsr)


def _flags_of(call: Callable[[], object]) -> int:
    libm = _libm()
    call()  # plan and compile first
    libm.feclearexcept(0x3F)
    call()
    return int(libm.fetestexcept(0x3F))


@x86
@pytest.mark.parametrize("bits_set", [0x0000, 0x8040, 0x2000, 0x6000])
def test_c09_the_control_word_is_never_changed(bits_set: int, dtype: Any) -> None:
    # As found, then with flush-to-zero and denormals-are-zero, rounding down, rounding to zero.
    libm, environment = _libm(), _Environment()
    libm.fegetenv(ctypes.byref(environment))
    before = environment.mxcsr
    a = np.ones((70, 70), dtype)
    calls = [
        lambda: jitgemm.gemm(a, a),
        lambda: jitgemm.matmul(a[:3, :3], a[:3, :3]),
        lambda: jitgemm.gemm(a, a, threads=2),
        lambda: jitgemm.prepack_rhs(a),
    ]
    for call in calls:
        environment.mxcsr = (before & ~0xE040) | bits_set
        libm.fesetenv(ctypes.byref(environment))
        try:
            call()
            after = _mxcsr()
        finally:
            environment.mxcsr = before
            libm.fesetenv(ctypes.byref(environment))
        assert after & ~0x3F == (before & ~0xE07F) | bits_set | (before & 0x1F80 & ~0x3F)


@x86
@pytest.mark.usefixtures("pieces")
def test_c09_exact_products_raise_no_flag(dtype: Any, rng: np.random.Generator) -> None:
    for m, n, k in ((1, 1, 1), (5, 7, 3), (15, 33, 20), (30, 41, 513)):
        # Outside the operands: what must not be touched would raise flags.
        wide_a = np.full((m + 2, k + 40), np.nan, dtype)
        wide_b = np.full((k + 2, n + 40), np.finfo(dtype).max, dtype)
        wide_d = np.full((m, n + 40), np.inf, dtype)
        wide_a[1:-1, :k], wide_b[1:-1, :n] = 1, 2
        a, b, out = wide_a[1:-1, :k], wide_b[1:-1, :n], wide_d[:, :n]
        bias = np.ones(n, dtype)
        c = np.ones((m, n), dtype)
        for right in (b, jitgemm.prepack_rhs(b), np.asfortranarray(b)):
            assert _flags_of(lambda: jitgemm.gemm(a, right, out=out)) == 0
            assert _flags_of(lambda: jitgemm.gemm(a, right, bias=bias, activation="relu")) == 0
            assert _flags_of(lambda: jitgemm.gemm(a, right, c=c, beta=1)) == 0
        x, y = a.copy(), b.copy()
        assert _flags_of(lambda: jitgemm.matmul(x, y)) == 0


@x86
@pytest.mark.usefixtures("pieces")
def test_c09_unused_lanes_raise_no_flag(dtype: Any) -> None:
    # Infinity times one is exact and raises nothing; infinity times a padding zero would.
    for m, n, k in ((1, 1, 1), (1, 5, 300), (2, 33, 70), (5, 3, 2), (31, 41, 20)):
        a, b = np.full((m, k), np.inf, dtype), np.ones((k, n), dtype)
        packed, wide = jitgemm.prepack_rhs(b), _rows_on_pages(b)
        calls = [
            lambda: jitgemm.matmul(a, b),
            lambda: jitgemm.gemm(a, b),
            lambda: jitgemm.gemm(a, wide),
            lambda: jitgemm.gemm(a, np.asfortranarray(b)),
            lambda: jitgemm.gemm(a, packed),
            lambda: jitgemm.gemm(a, packed, bias=b[0], activation="relu"),
            lambda: jitgemm.gemm(a, b, beta=1, c=np.ones((m, n), dtype)),
        ]
        assert [_flags_of(call) for call in calls] == [0] * len(calls), (m, n, k)


def test_c09_calls_work_where_numpy_raises_errors(dtype: Any, rng: np.random.Generator) -> None:
    a, b = reals(rng, (5, 7), dtype), reals(rng, (7, 9), dtype)
    huge = np.full((2, 2), np.finfo(dtype).max)
    with np.errstate(all="raise"):
        jitgemm.gemm(a, b, alpha=0.3, beta=0.7, c=np.ones((5, 9), dtype))
        assert np.isinf(jitgemm.matmul(huge, huge)).all()
        # What NumPy does next is not blamed for the flags of the product.
        assert np.add(dtype(1), dtype(2)) == 3


# -- 10 and 11: what must not show in the bits ----------------------------------------------------

REALS = ((1, 40, 700), (3, 5, 513), (20, 33, 1025), (40, 70, 600), (61, 129, 80))


@pytest.mark.parametrize("m, n, k", REALS)
@pytest.mark.usefixtures("pieces")
def test_c10_prepacked_equals_plain(
    m: int, n: int, k: int, dtype: Any, rng: np.random.Generator
) -> None:
    a, b, c = (reals(rng, s, dtype) for s in ((m, k), (k, n), (m, n)))
    bias, right = reals(rng, (n,), dtype), jitgemm.prepack_rhs(b)
    same_bits(jitgemm.gemm(a, right), jitgemm.gemm(a, b))
    options: dict[str, Any] = {"alpha": 0.3, "beta": -1.7, "c": c, "bias": bias}
    same_bits(jitgemm.gemm(a, right, **options), jitgemm.gemm(a, b, **options))
    out = np.empty((m, n), dtype)
    same_bits(jitgemm.plan(a, right)(a, right, out), jitgemm.gemm(a, b))


@pytest.mark.parametrize("m, n, k", REALS)
@pytest.mark.usefixtures("pieces", "eager_threads")
def test_c10_one_thread_equals_many(
    m: int, n: int, k: int, dtype: Any, rng: np.random.Generator
) -> None:
    a, b, c = (reals(rng, s, dtype) for s in ((m, k), (k, n), (m, n)))
    options: dict[str, Any] = {"alpha": 0.3, "beta": -1.7, "c": c, "activation": "relu"}
    rights = (b, np.asfortranarray(b), _rows_on_pages(b), jitgemm.prepack_rhs(b))
    for right in rights:
        alone = jitgemm.gemm(a, right, threads=1, **options)
        for threads in (2, 3, 8):
            for _ in range(3):
                same_bits(jitgemm.gemm(a, right, threads=threads, **options), alone, threads)


def test_c10_the_same_call_twice(dtype: Any, rng: np.random.Generator) -> None:
    for m, n, k in REALS:
        a, b = reals(rng, (m, k), dtype), reals(rng, (k, n), dtype)
        first = jitgemm.gemm(a, b)
        for _ in range(4):
            same_bits(jitgemm.gemm(a, b), first)


def test_c10_the_same_call_twice_whatever_came_between() -> None:
    a = np.ones((3, 21), np.float32)
    first = jitgemm.gemm(a, a.T, alpha=0.0)
    other = jitgemm.gemm(a.T, a, alpha=-0.0)
    same_bits(jitgemm.gemm(a, a.T, alpha=0.0), first)
    same_bits(jitgemm.gemm(a.T, a, alpha=0.0), np.zeros((21, 21), np.float32))
    same_bits(jitgemm.gemm(a.T, a, alpha=-0.0), other)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("pieces")
def test_c10_strides_and_addresses_do_not_show(
    layout: str, dtype: Any, rng: np.random.Generator
) -> None:
    for m, n, k in ((1, 9, 600), (7, 40, 33), (35, 70, 520)):
        a, b = reals(rng, (m, k), dtype), reals(rng, (k, n), dtype)
        want = jitgemm.gemm(a, b)
        place = LAYOUTS[layout]
        same_bits(jitgemm.gemm(place(a), b), want, f"a, m={m} n={n} k={k}")
        same_bits(jitgemm.gemm(a, place(b)), want, f"b, m={m} n={n} k={k}")
        out = place(np.full((m, n), 77, dtype))
        if layout != "odd strides of single axes":
            assert jitgemm.gemm(a, b, out=out) is out
            same_bits(out, want, f"out, m={m} n={n} k={k}")


def test_c10_aligned_and_unaligned_addresses_agree(dtype: Any, rng: np.random.Generator) -> None:
    a, b = reals(rng, (9, 70), dtype), reals(rng, (70, 37), dtype)
    want = jitgemm.gemm(a, b)
    for shift in (1, 2, 4, 8, 16, 20, 33, 63):
        out = unaligned(np.zeros((9, 37), dtype), shift)
        same_bits(jitgemm.gemm(unaligned(a, shift), unaligned(b, 64 - shift), out=out), want, shift)


@pytest.mark.parametrize("m, n, k", REALS)
@pytest.mark.usefixtures("pieces")
def test_c10_fused_equals_unfused(
    m: int, n: int, k: int, dtype: Any, rng: np.random.Generator
) -> None:
    a, b, c = (reals(rng, s, dtype) for s in ((m, k), (k, n), (m, n)))
    bias = reals(rng, (n,), dtype)
    product = jitgemm.gemm(a, b)
    biased = product + bias
    same_bits(jitgemm.gemm(a, b, bias=bias), biased)
    zero = dtype(0)
    same_bits(jitgemm.gemm(a, b, activation="relu"), np.where(0 > product, zero, product))
    same_bits(jitgemm.gemm(a, b, bias=bias, activation="relu"), np.where(0 > biased, zero, biased))
    same_bits(jitgemm.gemm(a, b, alpha=0.3), dtype(0.3) * product)
    # beta = 1 adds C itself: a multiply-add by one rounds once, as the sum does.
    same_bits(jitgemm.gemm(a, b, beta=1, c=c, bias=bias), (product + c) + bias)


_HASHES = """
    import hashlib, json, os
    import numpy as np
    from oracle import reals
    import jitgemm
    found = {}
    for dtype in (np.float32, np.float64):
        for m, n, k in ((1, 33, 700), (3, 5, 513), (20, 33, 1025), (40, 70, 600), (61, 129, 80)):
            rng = np.random.default_rng([m, n, k])
            a, b, c = (reals(rng, s, dtype) for s in ((m, k), (k, n), (m, n)))
            bias = reals(rng, (n,), dtype)
            options = {"alpha": 0.3, "beta": -1.7, "c": c, "bias": bias, "activation": "relu"}
            results = [
                jitgemm.gemm(a, b), jitgemm.gemm(a, np.asfortranarray(b)),
                jitgemm.gemm(a, jitgemm.prepack_rhs(b), **options), jitgemm.gemm(a, b, **options),
                jitgemm.gemm(a[:, :9].copy(), b[:9].copy()), jitgemm.matmul(a[:, :9].copy(), b[:9]),
            ]
            data = b"".join(np.ascontiguousarray(r).tobytes() for r in results)
            found[f"{np.dtype(dtype)} {m} {n} {k}"] = hashlib.sha256(data).hexdigest()
    assert jitgemm.show_config()["isa"] == os.environ["JITGEMM_ISA"]
    print(json.dumps(found))
"""


def test_c10_every_set_with_fused_multiply_add_gives_the_same_bits() -> None:
    names = [i.name for i in BY_NAME.values() if i.fused and not i.interpreted and available(i)]
    if len(names) < 2:
        pytest.skip("this machine has one such set")
    found = [json.loads(run_python(_HASHES, JITGEMM_ISA=name).stdout) for name in names]
    assert len(found[0]) == 10
    for name, other in zip(names[1:], found[1:], strict=True):
        assert other == found[0], f"{name} differs from {names[0]}"


@pytest.mark.usefixtures("pieces", "eager_threads")
def test_c11_a_row_of_the_result_does_not_depend_on_the_others(
    dtype: Any, rng: np.random.Generator
) -> None:
    k, n = 600, 70
    a, b = reals(rng, (64, k), dtype), reals(rng, (k, n), dtype)
    packed = jitgemm.prepack_rhs(b)
    whole = jitgemm.gemm(a, b)
    for m in (*range(1, 33), 47, 63):
        same_bits(jitgemm.gemm(a[:m], b), whole[:m], m)
        same_bits(jitgemm.gemm(a[-m:], packed, threads=2), whole[-m:], m)
    for columns in (1, 2, 7, 16, 31, 33, 69):
        same_bits(jitgemm.gemm(a, b[:, :columns]), whole[:, :columns], columns)
