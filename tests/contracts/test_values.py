"""Contract, "Values": sentences 1 to 4 and 8 to 11, for reals and complex numbers."""

# ruff: noqa: FBT001  # parameters of a test are named by its decorator

from __future__ import annotations

import gc
import itertools
import json
import os
import pickle
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest

import jitgemm
from fenv import FENV, control, controlled, libm
from jitgemm.isa.outer import OuterUnit
from jitgemm.isa.tables import BY_NAME
from jitgemm.jit.target import available
from jitgemm.kernels.spec import BSource
from jitgemm.planner import batching
from jitgemm.planner import route as planner
from jitgemm.planner.route import (
    Blocked,
    Columns,
    GemmPlan,
    PackA,
    SplitDepth,
    make_plan,
)
from jitgemm.runtime.engine import engine
from oracle import (
    KINDS,
    LAYOUTS,
    MANY_PIECES,
    NESTED,
    TINY,
    Guarded,
    another_machine,
    bits,
    documented,
    equal,
    error_bound,
    exact_gemm,
    integers,
    is_complex,
    mapped,
    native,
    reals,
    run_python,
    same_bits,
    unaligned,
)

Array = np.ndarray[Any, Any]
Route = Callable[[Array, Array], Array]

BLOCK = 512
DEPTHS = (1, 2, 63, 511, 512, 513, 1025)


ACTIVATIONS: dict[str, dict[str, Any]] = {
    **{name: {"activation": name}
       for name in ("relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu", "hardswish")},
    "leaky_relu": {"activation": jitgemm.leaky_relu(0.3)},
    "clip": {"activation": jitgemm.clip(-0.5, 0.75)},
    "function": {"epilogue": lambda v, row, col: v * (row + 1) - 0.5 * col},
    "both": {"activation": "silu",
             "epilogue": lambda v, row, col: jitgemm.math.where(row < col, v, v * v)},
}  # fmt: skip

# Each with each type of float; on the sets besides the best one with one of the two.
MAPS = pytest.mark.parametrize(
    "name, dtype",
    [pytest.param(name, t, id=f"{name}-{np.dtype(t)}") for i, name in enumerate(ACTIVATIONS)
     for j, t in enumerate((np.float32, np.float64)) if NESTED not in os.environ or i % 2 == j],
)  # fmt: skip

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
    wide = np.full((a.shape[0], 32_768 // a.itemsize), np.nan, a.dtype)
    wide[:, : a.shape[1]] = a
    return wide[:, : a.shape[1]]


def _rows_on_pages(b: Array) -> Array:
    """A row-major copy that is packed per call from 33 rows of A on."""
    pages = -(-b.shape[1] * b.itemsize // 4096)
    wide = np.full((b.shape[0], pages * 4096 // b.itemsize), np.nan, b.dtype)
    wide[:, : b.shape[1]] = b
    return wide[:, : b.shape[1]]


def _columns_on_pages(b: Array) -> Array:
    """A column-major copy whose columns collide in L1: deep ones are walked with a lag."""
    return _rows_on_pages(b.T).T


def _split(a: Array, b: Array, **options: Any) -> Array:
    """By ranges of depth, where the result is small enough."""
    with another_machine(split_depth=1):
        return jitgemm.gemm(a, b, **options)


def _foreign(x: Array) -> Array:
    return x.astype(x.dtype.newbyteorder("S"))


def _foreign_out(a: Array, b: Array, **options: Any) -> Array:
    out = np.full((a.shape[0], b.shape[1]), np.nan, a.dtype.newbyteorder("S"))
    return native(_into(out)(a, b, **options))


ROUTES: dict[str, Callable[..., Array]] = {
    "gemm": jitgemm.gemm,
    "rows of b on pages": lambda a, b, **o: jitgemm.gemm(a, _rows_on_pages(b), **o),
    "column-major b": lambda a, b, **o: jitgemm.gemm(a, np.asfortranarray(b), **o),
    "column-major a": lambda a, b, **o: jitgemm.gemm(np.asfortranarray(a), b, **o),
    "columns of b on pages": lambda a, b, **o: jitgemm.gemm(a, _columns_on_pages(b), **o),
    "depth split": _split,
    "depth split, columns of b": lambda a, b, **o: _split(a, np.asfortranarray(b), **o),
    "depth split, two threads": lambda a, b, **o: _split(a, b, **{**o, "threads": 2}),
    "prepacked": lambda a, b, **o: jitgemm.gemm(a, jitgemm.prepack_rhs(b), **o),
    "prepacked a": lambda a, b, **o: jitgemm.gemm(jitgemm.prepack_lhs(a), b, **o),
    "strided out": _strided_out,
    "column-major out": _column_major_out,
    "long steps of a": lambda a, b, **o: jitgemm.gemm(_wide_steps_of_a(a), b, **o),
    "colliding rows of a": lambda a, b, **o: jitgemm.gemm(_colliding_rows(a), b, **o),
    "everything unaligned": lambda a, b, **o: jitgemm.gemm(unaligned(a), unaligned(b, 3), **o),
    "foreign byte order": lambda a, b, **o: jitgemm.gemm(_foreign(a), _foreign(b), **o),
    "foreign columns of b": lambda a, b, **o: jitgemm.gemm(a, np.asfortranarray(_foreign(b)), **o),
    "foreign out": _foreign_out,
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
# One number, one row, one column, few rows, a full and an edge tile of every set, more than are
# read in place; narrow results, tails of every vector, and enough columns for packing A to pay.
SIZES = ((1, 1), (1, 5), (1, 33), (21, 1), (2, 70), (3, 9), (5, 7), (14, 32), (29, 19), (37, 149))


def _plain(pick: tuple[str, ...] = ()) -> Any:
    names = pick or tuple(PLAIN_ROUTES)
    return pytest.mark.parametrize("route", [pytest.param(PLAIN_ROUTES[n], id=n) for n in names])


# -- 1: one documented order ----------------------------------------------------------------------


Answers = dict[Any, tuple[Array, Array, Array]]


@pytest.fixture(scope="module")
def answers() -> Answers:
    return {}


def _answer(answers: Answers, shape: tuple[int, int, int], kind: Any) -> tuple[Array, Array, Array]:
    """Operands and the product in the documented order, which a large complex one shares with
    parts of it: a sum depends on its row and column only.  On other sets than the best every one.
    """
    key = (*shape, kind)
    if key not in answers:
        (m, n, k), fused = shape, engine().isa.fused
        rng = np.random.default_rng(shape)
        a, b = reals(rng, (m, k), kind), reals(rng, (k, n), kind)
        if m * n < 80 or not (is_complex(kind) or NESTED in os.environ):
            want = documented(a, b, fused=fused)
        else:
            want = jitgemm.gemm(a, b)
            i, j = sorted({0, m // 2, m - 1}), sorted({0, 1, n // 2, n - 2, n - 1})
            same_bits(want[np.ix_(i, j)], documented(a[i], b[:, j], fused=fused), shape)
        answers[key] = a, b, want
    return answers[key]


@_plain()
@pytest.mark.usefixtures("pieces")
def test_c01_one_documented_order_of_the_sum(route: Route, kind: Any, answers: Answers) -> None:
    # Sizes and depths like the fields of a chessboard: routes take one colour and then the other,
    # on other sets than the best half of one.  Every size and every depth is on each.
    colours = 4 if NESTED in os.environ else 2
    turn = list(PLAIN_ROUTES.values()).index(route) % colours
    for (m, n), k in list(itertools.product(SIZES, DEPTHS))[turn::colours]:
        a, b, want = _answer(answers, (m, n, k), kind)
        same_bits(route(a, b), want, f"m={m} n={n} k={k}")


@pytest.mark.parametrize("k", [16_384, 17_000, 40_000])
def test_c01_deep_sums_of_small_results(k: int, kind: Any, fused: bool) -> None:
    for m, n in ((1, 1), (2, 3), (1, 9), (8, 1)):
        rng = np.random.default_rng([m, n, k])
        a, b = reals(rng, (m, k), kind), reals(rng, (k, n), kind)
        want = documented(a, b, fused=fused)
        for threads in (1, 2, 3):
            for left, right in itertools.product((a, np.asfortranarray(a), jitgemm.prepack_lhs(a)),
                                                 (b, np.asfortranarray(b))):  # fmt: skip
                same_bits(jitgemm.gemm(left, right, threads=threads), want, (m, n, threads))


@pytest.mark.usefixtures("pieces")
def test_c01_vectors_either_way(kind: Any, rng: np.random.Generator) -> None:
    for length, k in itertools.product((1, 2, 7, 33, 70), (1, 9, 513, 1025)):
        x, w = reals(rng, (1, k), kind), reals(rng, (k, length), kind)
        want = jitgemm.gemm(x, w)
        for place in (np.ascontiguousarray, np.asfortranarray, _rows_on_pages, _columns_on_pages,
                      _foreign, lambda y: y[::-1].copy()[::-1]):  # fmt: skip
            y = place(w)
            for threads in (1, 2):
                same_bits(jitgemm.gemm(x, y, threads=threads), want, (length, k))
                same_bits(jitgemm.gemm(y.T, x.T, threads=threads), want.T, (length, k))
        same_bits(jitgemm.gemm(w.T, x.T, out=np.empty_like(want).T), want.T, (length, k))
        same_bits(jitgemm.gemm(jitgemm.prepack_lhs(w.T), x.T), want.T, (length, k))
        same_bits(jitgemm.gemm(x, jitgemm.prepack_rhs(w)), want, (length, k))
        same_bits(jitgemm.matmul(x[0], w), want[0], (length, k))
        same_bits(jitgemm.matmul(w.T, x[0]), want[0], (length, k))


@pytest.mark.parametrize("kind", (np.float32, np.complex128)[: 1 if NESTED in os.environ else 2])
def test_c01_the_routes_are_all_there_are(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of this file mean something only while their products take every route."""
    plans: list[GemmPlan] = []

    def recording(problem: Any, context: Any) -> GemmPlan:
        plans.append(make_plan(problem, context))
        return plans[-1]

    monkeypatch.setattr(batching, "make_plan", recording)
    for machine, values, threads in ((None, {}, 1), (TINY, MANY_PIECES, 2)):
        with another_machine(machine, **values), jitgemm.threads(threads):
            for route, (m, n), k in itertools.product(PLAIN_ROUTES.values(), SIZES, DEPTHS):
                route(np.ones((m, k), kind), np.ones((k, n), kind))
    # Whoever takes several rows of A at once has them from micropanels: none are copied.
    isa = engine().isa
    panels = isa.by_lane or (isinstance(isa.unit, OuterUnit) and not is_complex(kind))
    ways = set(PackA) - ({PackA.ROWS} if panels else set())
    assert {p.route.a.pack_a for p in plans} == ways
    assert {(p.spec.b, p.problem.b is None) for p in plans} == {
        (BSource.INPLACE, False), (BSource.COLUMNS, False), (BSource.PACKED, False),
        (BSource.PACKED, True),
    }  # fmt: skip
    assert {type(p.route) for p in plans} == set(get_args(planner.Route))
    assert {p.exchanged for p in plans} == {False, True}
    for taken, feature in ((Blocked, "direct"), (Columns, "direct"), (Columns, "staggered")):
        found = {getattr(p.route, feature) for p in plans if isinstance(p.route, taken)}
        assert found == {False, True}, (taken, feature)
    for bound in ("row_chunks", "col_chunks", "slices", "blocks", "pack_chunks", "group"):
        assert len({getattr(p.blocking, bound) for p in plans}) > 1, bound
    assert any(p.blocking.depth_step < p.blocking.depth_per_slice for p in plans)
    assert {p.threads for p in plans} >= {1, 2}
    split = [(p.spec.b, p.route.bounds) for p in plans if isinstance(p.route, SplitDepth)]
    assert {source for source, _ in split} == set(BSource)
    assert len({bounds.ranges for _, bounds in split}) > 1
    # More rows than one tile has: whole ones and a lower one, on every route
    # (columns turned in registers are met by no more than one).
    for source in (BSource.INPLACE, BSource.PACKED):
        tiles = {divmod(p.problem.m, p.blocking.tile_rows) for p in plans if p.spec.b is source}
        assert any(whole > 1 for whole, _ in tiles), source


def test_c01_the_model_tells_orders_apart(kind: Any, rng: np.random.Generator) -> None:
    a, b = reals(rng, (9, 1025), kind), reals(rng, (1025, 11), kind)
    fused, unfused = (documented(a, b, fused=f) for f in (True, False))
    backwards = documented(a[:, ::-1], b[::-1], fused=True)
    assert (bits(fused) != bits(unfused)).any()
    assert (bits(fused) != bits(backwards)).any()
    # Without blocks: the same chain in one piece.
    first = documented(a[:, :BLOCK], b[:BLOCK], fused=True)
    rest = documented(a[:, BLOCK:], b[BLOCK:], fused=True)
    assert (bits(first + rest) != bits(fused)).any()
    # One row times one column has an order of its own, unless it must not.
    strict = [
        documented(a[:1], b[:, :1], fused=True, reproducible=r) for r in ("default", "strict")
    ]
    same_bits(strict[1], fused[:1, :1])
    assert (bits(strict[0]) != bits(strict[1])).any()
    if is_complex(kind):
        conjugated = documented(a, b, fused=True, conj_b=True)
        assert (bits(conjugated) != bits(documented(a, b.conj() * (1 + 2**-20), fused=True))).any()


def test_c01_every_order_obeys_the_bound(kind: Any, rng: np.random.Generator) -> None:
    for m, n, k in ((1, 40, 3000), (33, 65, 129), (70, 3, 1500), (1, 1, 5000)):
        a, b = reals(rng, (m, k), kind), reals(rng, (k, n), kind)
        true = a.astype(np.clongdouble) @ b.astype(np.clongdouble)
        assert (np.abs(jitgemm.gemm(a, b) - true) <= error_bound(a, b)).all()


def _biases(rng: np.random.Generator, m: int, n: int, kind: Any) -> dict[str, Array]:
    """Every kind there is, by name."""
    shapes: dict[str, tuple[int, ...]] = {"number": (), "one": (1,), "row": (n,), "wide": (1, n),
                                          "column": (m, 1), "matrix": (m, n)}  # fmt: skip
    return {name: reals(rng, shape, kind) for name, shape in shapes.items()}


@pytest.mark.parametrize("beta, in_place", [(0.0, False), (0.0, True), (1.0, True), (-0.7, False)])
@pytest.mark.usefixtures("low", "pieces")
def test_c01_the_epilogue_applies_once_in_its_order(
    beta: float, in_place: bool, kind: Any, fused: bool, rng: np.random.Generator
) -> None:
    for (m, n), k in itertools.product(((1, 1), (1, 33), (8, 1), (5, 7), (37, 20)), (0, 3, 1025)):
        if is_complex(kind) and m * n > 40 and k > 512:
            continue  # the oracle takes seconds
        a, b, c = (reals(rng, s, kind) for s in ((m, k), (k, n), (m, n)))
        options: dict[str, Any] = {"alpha": 1.1, "beta": beta, "bias": reals(rng, (n,), kind)}
        if is_complex(kind):
            options |= {"alpha": 1.1 - 0.3j, "beta": beta * (1 + 0.25j), "conj_a": True}
        else:
            options["activation"] = "relu"
        want = documented(a, b, c=c, fused=fused, **options)
        lefts: list[Any] = [a, a, a, jitgemm.prepack_lhs(a)]
        rights: list[Any] = [b, jitgemm.prepack_rhs(b), _columns_on_pages(b), b]
        for left, right in zip(lefts, rights, strict=True):
            mine = c.copy()
            got = jitgemm.gemm(left, right, c=mine, out=mine if in_place else None, **options)
            same_bits(got, want, f"m={m} n={n} k={k} {type(left)} {type(right)}")
        if not in_place:
            same_bits(_split(a, b, c=c, **options), want, f"m={m} n={n} k={k}, split")


@pytest.mark.usefixtures("low", "pieces")
def test_c01_every_bias(kind: Any, fused: bool, rng: np.random.Generator) -> None:
    for m, n, k in ((1, 1, 9), (1, 33, 20), (9, 1, 20), (5, 7, 513), (31, 18, 3)):
        a, b = reals(rng, (m, k), kind), reals(rng, (k, n), kind)
        plain = documented(a, b, fused=fused)
        for name, bias in _biases(rng, m, n, kind).items():
            want = plain + bias
            lefts: list[Any] = [a, a, a, jitgemm.prepack_lhs(a), a]
            rights: list[Any] = [b, np.asfortranarray(b), jitgemm.prepack_rhs(b), b, _foreign(b)]
            for left, right in zip(lefts, rights, strict=True):
                for stored in (bias, _foreign(bias), bias[..., None][..., 0]):
                    got = jitgemm.gemm(left, right, bias=stored)
                    same_bits(got, want, (name, m, n, k))
            same_bits(_split(a, b, bias=bias), want, (name, m, n, k))
            turned = np.broadcast_to(bias, (m, n)).T
            same_bits(jitgemm.gemm(b.T, a.T, bias=turned), want.T, (name, m, n, k))


ALPHAS = (0.3, -1, 2j, 0.25 - 0.75j)
BETAS = (0, 1, 1j, -0.7 + 0.2j)
CONJUGATIONS = tuple(itertools.product((False, True), repeat=2))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("beta", BETAS)
def test_c01_complex_factors(
    alpha: complex, beta: complex, fused: bool, rng: np.random.Generator
) -> None:
    # The oracle of a deep sum is slow: each factor meets each conjugation there once.
    turn = (ALPHAS.index(alpha) + BETAS.index(beta)) % 4
    for kind, (m, n, k) in itertools.product(KINDS[2:], ((1, 1, 70), (3, 9, 5), (3, 5, 515))):
        a, b, c = (reals(rng, s, kind) for s in ((m, k), (k, n), (m, n)))
        for conj_a, conj_b in CONJUGATIONS if k < BLOCK else CONJUGATIONS[turn : turn + 1]:
            options: dict[str, Any] = {"alpha": alpha, "beta": beta, "c": c, "conj_a": conj_a,
                                       "conj_b": conj_b}  # fmt: skip
            want = documented(a, b, fused=fused, **options)
            same_bits(jitgemm.gemm(a, b, **options), want, (kind, m, n, k, conj_a, conj_b))
            options["conj_b"] = False
            right = jitgemm.prepack_rhs(b, conj=conj_b)
            same_bits(jitgemm.gemm(a, right, **options), want, (kind, m, n, k, conj_a, conj_b))
            options |= {"conj_a": False, "conj_b": conj_b}
            left = jitgemm.prepack_lhs(a, conj=conj_a)
            same_bits(jitgemm.gemm(left, b, **options), want, (kind, m, n, k, conj_a, conj_b))


def test_c01_a_million_tenths() -> None:
    tenth, one = np.float32(0.1), np.float32(1)
    a, b = np.full((1, 10**6), tenth), np.full((10**6, 1), one)
    dots = [
        jitgemm.gemm(a, b),
        jitgemm.gemm(b.T, a.T),
        jitgemm.gemm(a, b, threads=1),
        jitgemm.matmul(a, b),
        jitgemm.gemm(_foreign(a), np.repeat(b, 2, axis=1)[:, :1]),
        jitgemm.gemm(a, jitgemm.prepack_rhs(b)),
        jitgemm.gemm(jitgemm.prepack_lhs(a), b),
        jitgemm.matmul(a[0], b[:, 0])[None, None],
        jitgemm.gemm(np.broadcast_to(tenth, (1, 10**6)), b),
    ]
    wide, long = np.broadcast_to(one, (10**6, 40)), np.broadcast_to(tenth, (3, 10**6))
    chains = [
        jitgemm.gemm(a, b, reproducible="strict"),
        jitgemm.gemm(a, jitgemm.prepack_rhs(b), reproducible="strict"),
        jitgemm.gemm(a, b, reproducible="strict", threads=1),
        jitgemm.gemm(long, b)[:1],
        jitgemm.gemm(a, wide)[:, 7:8],
        jitgemm.gemm(wide.T, a.T)[39:],
        jitgemm.gemm(np.ascontiguousarray(long), wide)[1:2, :1],
    ]
    for results in (dots, chains):
        for result in results:
            assert abs(result.item() / 100_000 - 1) < 1e-4
            assert result.item() == results[0].item()


# -- 2: branches, not multiplications by zero -----------------------------------------------------


@_plain()
@pytest.mark.usefixtures("pieces")
def test_c02_an_uninitialised_result_does_not_matter(
    route: Route, kind: Any, rng: np.random.Generator
) -> None:
    # The routes that bring a result of their own fill it with NaN.
    for m, n, k in ((1, 1, 9), (3, 7, 3), (37, 40, 520)):
        a, b = integers(rng, (m, k), kind), integers(rng, (k, n), kind)
        same_bits(route(a, b) + 0.0, exact_gemm(a, b), f"m={m} n={n} k={k}")


def _stored(a: Array, b: Array) -> list[tuple[Any, Any]]:
    """The operands as every route takes them."""
    return [(a, b), (a, np.asfortranarray(b)), (a, _columns_on_pages(b)), (a, _foreign(b)),
            (a, jitgemm.prepack_rhs(b)), (jitgemm.prepack_lhs(a), b)]  # fmt: skip


SHAPES = ((1, 1), (1, 9), (9, 1), (3, 7), (31, 40))


@pytest.mark.parametrize("k", [0, 3, 1025])
@pytest.mark.usefixtures("low", "pieces")
def test_c02_beta_0_never_reads_c(k: int, kind: Any, rng: np.random.Generator) -> None:
    guarded = Guarded(40 * 40 * 16)
    for m, n in SHAPES:
        a, b = integers(rng, (m, k), kind), integers(rng, (k, n), kind)
        nan = np.full((m, n), np.nan, kind)
        want = exact_gemm(a, b)
        c = guarded.place(np.zeros((m, n), kind), "end")
        for left, right in _stored(a, b):
            for unread in (None, nan, np.broadcast_to(kind(np.nan), (m, n))):
                equal(jitgemm.gemm(left, right, c=unread), want)
                equal(jitgemm.gemm(left, right, c=unread, beta=-0.0), want)
            mine = nan.copy()
            equal(jitgemm.gemm(left, right, c=mine, out=mine, beta=0), want)
            with guarded.locked():
                equal(jitgemm.gemm(left, right, c=c, beta=0), want)


def test_c02_the_table_of_right_answers() -> None:
    a, b = np.ones((5, 3), np.float32), np.ones((3, 7), np.float32)
    c = np.full((5, 7), np.nan, np.float32)
    equal(jitgemm.gemm(a, b, c=c, beta=0), np.full((5, 7), 3, np.float32))
    equal(jitgemm.gemm(a, b, c=c, beta=0, out=c), np.full((5, 7), 3, np.float32))


@pytest.mark.usefixtures("low", "pieces")
def test_c02_alpha_0_never_reads_a_or_b(kind: Any, rng: np.random.Generator) -> None:
    memory = [Guarded(40 * 600 * 16) for _ in range(2)]
    for (m, n), k in (*zip(SHAPES, (5, 5, 700, 3, 600), strict=True), ((3, 5), 0)):
        a, b = np.full((m, k), np.nan, kind), np.full((k, n), np.inf, kind)
        c, bias = integers(rng, (m, n), kind), integers(rng, (n,), kind)
        zero = np.zeros((m, n), kind)
        options: dict[str, Any] = {"beta": -2, "bias": bias}
        if not is_complex(kind):
            options["activation"] = "relu"
        want = exact_gemm(a[:, :0], b[:0], c=c, **options)
        for left, right in _stored(a, b):
            equal(jitgemm.gemm(left, right, alpha=0), zero)
            equal(jitgemm.gemm(left, right, alpha=-0.0), zero)
            equal(jitgemm.gemm(left, right, alpha=0, beta=3, c=c), 3 * c)
            equal(jitgemm.gemm(left, right, alpha=0, c=c, **options), want)
        x, y = (g.place(z, "start") for g, z in zip(memory, (a, b), strict=True))
        pairs = [(x, y), (jitgemm.prepack_lhs(x), y), (x, jitgemm.prepack_rhs(y))]
        with memory[0].locked(), memory[1].locked():
            for left, right in pairs:
                equal(jitgemm.gemm(left, right, alpha=0, c=c, **options), want)
                mine = c.copy()
                equal(jitgemm.gemm(left, right, alpha=0, c=mine, out=mine, **options), want)
            if is_complex(kind):
                equal(jitgemm.gemm(x, y, alpha=0j, beta=1j, c=c, conj_a=True), 1j * c)


def test_c02_beta_without_c_is_an_error(dtype: Any) -> None:
    a, out = np.ones((2, 2), dtype), np.full((2, 2), 7, dtype)
    with pytest.raises(ValueError, match=r"^jitgemm: c: .*beta"):
        jitgemm.gemm(a, a, beta=0.5, out=out)
    assert (out == 7).all()


# -- 3: nothing to sum, nothing to do -------------------------------------------------------------


@pytest.mark.parametrize("route", [pytest.param(r, id=n) for n, r in ROUTES.items()])
@pytest.mark.usefixtures("low", "pieces")
def test_c03_a_sum_of_nothing_is_0_and_the_epilogue_applies(
    route: Callable[..., Array], kind: Any, rng: np.random.Generator
) -> None:
    for m, n in ((1, 1), (1, 40), (7, 1), (5, 7), (37, 40)):
        a, b = np.ones((m, 0), kind), np.ones((0, n), kind)
        c = integers(rng, (m, n), kind)
        equal(route(a, b), np.zeros((m, n), kind))
        equal(route(a, b, beta=2, c=c), 2 * c)
        for bias in _biases(rng, m, n, kind).values():
            equal(route(a, b, bias=bias), np.zeros((m, n), kind) + bias)
        if not is_complex(kind):
            bias = integers(rng, (n,), kind)
            want = np.maximum(bias - c, 0)
            equal(route(a, b, beta=-1, c=c, bias=bias, activation="relu"), want)


@MAPS
@pytest.mark.usefixtures("low")
def test_c03_every_activation_of_a_sum_of_nothing(
    name: str, dtype: Any, rng: np.random.Generator
) -> None:
    activation, turn = ACTIVATIONS[name], list(ACTIVATIONS).index(name) % 3
    for m, n in ((1, 1), (1, 40), (5, 7)):
        a, b = np.ones((m, 0), dtype), np.ones((0, n), dtype)
        c = reals(rng, (m, n), dtype)
        want = mapped(c, **activation)
        # Stored in turn: the test before takes every route, and each is a kernel.
        stored = (a, b), (a, jitgemm.prepack_rhs(b)), (jitgemm.prepack_lhs(a), b)
        left, right = stored[turn]
        got = jitgemm.gemm(left, right, beta=1, c=c, **activation)
        # How near a function comes is a matter of its own; in double its oracle is no nearer.
        rtol = 1e-6 if dtype == np.float32 else 1e-12
        np.testing.assert_allclose(got, want, rtol, rtol * np.finfo(dtype).tiny)


def test_c03_the_table_of_right_answers(dtype: Any) -> None:
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


def _specials(kind: Any) -> tuple[Any, ...]:
    found = (np.nan, np.inf, -np.inf)
    if not is_complex(kind):
        return found
    return (*found, complex(0, np.inf), complex(2, np.nan), complex(-np.inf, 1))


def _by_parts(a: Array, b: Array) -> Array:
    """Sums of integers with specials are the same in any order: part by part, as defined here."""
    if not is_complex(a.dtype):
        return np.asarray(np.einsum("ip,pj->ij", a, b))
    result = np.empty((a.shape[0], b.shape[1]), a.dtype)
    result.real = _by_parts(a.real, b.real) - _by_parts(a.imag, b.imag)
    result.imag = _by_parts(a.real, b.imag) + _by_parts(a.imag, b.real)
    return result


@_plain()
@pytest.mark.usefixtures("pieces")
def test_c04_nan_and_infinity_reach_exactly_what_ieee_says(
    route: Route, kind: Any, rng: np.random.Generator
) -> None:
    for m, n, k in ((1, 1, 70), (1, 9, 5), (3, 7, 33), (15, 33, 20), (37, 40, 513)):
        a, b = integers(rng, (m, k), kind), integers(rng, (k, n), kind)
        specials = _specials(kind) if m * n < 400 else _specials(kind)[-1:]
        for special in specials:
            for i, p, j in ((0, 0, 0), (m - 1, k - 1, n - 1), (m // 2, k // 2, n // 2)):
                x, y = a.copy(), b.copy()
                x[i, p] = special
                y[k - 1 - p, j] = special
                with np.errstate(invalid="ignore"):
                    want = _by_parts(x, y)
                equal(route(x, y), want, f"m={m} n={n} k={k} {special} at {i, p, j}")
        # Nothing is left over from those calls.
        equal(route(a, b), exact_gemm(a, b))


def test_c04_zeros_are_not_skipped(kind: Any) -> None:
    inf, one, zero = (
        np.array([[np.inf, 1]], kind),
        np.array([[0], [1]], kind),
        np.zeros((1, 1), kind),
    )
    for f in (jitgemm.gemm, jitgemm.matmul):
        assert np.isnan(f(inf, one)).all()
        assert np.isnan(f(zero, zero + kind(np.nan))).all()
        assert np.isnan(f(zero + kind(np.inf), zero)).all()


@pytest.mark.usefixtures("low", "pieces")
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


@pytest.mark.parametrize("name", ["relu", "clip", "leaky_relu", "hardswish", "tanh", "silu"])
@pytest.mark.usefixtures("low", "pieces")
def test_c04_activations_propagate_nan(name: str, dtype: Any) -> None:
    a = np.array([[np.nan], [-np.inf], [np.inf], [-1], [-0.0], [0], [2]], dtype)
    given = ACTIVATIONS[name]
    for n in (1, 3, 17, 33):
        b = np.ones((1, n), dtype)
        want = np.repeat(mapped(a, **given), n, axis=1)
        if name == "relu":
            equal(want, np.repeat(np.maximum(a, 0), n, axis=1))
        # One that is written out and one by a polynomial on every route; others on the first.
        for left, right in _stored(a, b)[: None if name in ("relu", "silu") else 1]:
            got = jitgemm.gemm(left, right, **given)
            assert np.array_equal(np.isnan(got), np.isnan(np.repeat(a, n, axis=1)))
            np.testing.assert_allclose(got, want, 1e-6)
        # From the bias, and from C.
        nothing = np.zeros((7, 1), dtype)
        got = jitgemm.gemm(nothing, b, bias=a, **given)
        assert np.array_equal(np.isnan(got[:, 0]), np.isnan(a[:, 0]))
        got = jitgemm.gemm(nothing, b, beta=1, c=np.repeat(a, n, axis=1), **given)
        assert np.array_equal(np.isnan(got[:, 0]), np.isnan(a[:, 0]))


def test_c04_infinity_times_a_real_factor_stays_in_its_part() -> None:
    for kind in KINDS[2:]:
        a, b = np.array([[complex(np.inf, 1)]], kind), np.ones((1, 5), kind)
        got = jitgemm.gemm(a, b.real.astype(kind), alpha=2)
        # (inf + i)(1 + 0i): the imaginary part is inf * 0 + 1, which is NaN.
        assert np.isposinf(got.real).all()
        assert np.isnan(got.imag).all()
        c = np.full((1, 5), complex(np.inf, 3), kind)
        got = jitgemm.gemm(a, b, alpha=0, beta=2, c=c)
        same_bits(got, np.full((1, 5), complex(np.inf, 6), kind))


# -- 8: complex numbers ---------------------------------------------------------------------------

complex_kinds = pytest.mark.parametrize("kind", KINDS[2:], ids=["c64", "c128"])


@complex_kinds
@pytest.mark.usefixtures("pieces")
def test_c08_four_multiplications(kind: Any, fused: bool) -> None:
    # A scheme of three multiplies sums of parts: here such a sum overflows, or loses a part.
    big, small = np.finfo(kind).max / 4, np.finfo(kind).eps / 8
    for m, n, k in ((1, 1, 2), (1, 9, 1), (3, 7, 1), (30, 33, 1)):
        a, b = np.zeros((m, k), kind), np.zeros((k, n), kind)
        a[:, 0], b[0] = complex(big, big), complex(0.5, 0.25)
        for left, right in _stored(a, b):
            got = jitgemm.gemm(left, right)
            same_bits(got, np.full((m, n), complex(big / 4, big * 0.75), kind))
        a[:, 0], b[0] = complex(1, small), complex(1, -small)
        want = documented(a, b, fused=fused)
        for left, right in _stored(a, b):
            same_bits(jitgemm.gemm(left, right) + 0.0, want)


@complex_kinds
def test_c08_conjugation_by_flag(kind: Any, rng: np.random.Generator) -> None:
    for m, n, k in ((1, 1, 40), (1, 33, 9), (21, 1, 9), (3, 7, 530), (30, 40, 20)):
        a, b = reals(rng, (m, k), kind), reals(rng, (k, n), kind)
        for conj_a, conj_b in itertools.product((False, True), repeat=2):
            want = jitgemm.gemm(a.conj() if conj_a else a, b.conj() if conj_b else b)
            for x, y in _stored(a, b):
                got = jitgemm.gemm(x, y, conj_a=conj_a, conj_b=conj_b)
                same_bits(got, want, (m, n, k, conj_a, conj_b))
            same_bits(_split(a, b, conj_a=conj_a, conj_b=conj_b), want)
            left, right = jitgemm.prepack_lhs(a, conj=conj_a), jitgemm.prepack_rhs(b, conj=conj_b)
            same_bits(jitgemm.gemm(left, b, conj_b=conj_b), want)
            same_bits(jitgemm.gemm(a, right, conj_a=conj_a), want)
            # Twice is not at all.
            same_bits(jitgemm.gemm(a, right, conj_a=conj_a, conj_b=True),
                      jitgemm.gemm(a, b, conj_a=conj_a, conj_b=not conj_b))  # fmt: skip
            same_bits(jitgemm.prepack_rhs(right, conj=True).unpack(), b if conj_b else b.conj())
            p = jitgemm.plan(a, b, conj_a=conj_a, conj_b=conj_b)
            same_bits(p(a, b), want)
            same_bits(p(np.asfortranarray(a), b), want)


def test_c08_conjugation_of_reals_is_nothing(dtype: Any, rng: np.random.Generator) -> None:
    a, b = reals(rng, (5, 40), dtype), reals(rng, (40, 7), dtype)
    same_bits(jitgemm.gemm(a, b, conj_a=True, conj_b=True), jitgemm.gemm(a, b))
    same_bits(jitgemm.gemm(a, jitgemm.prepack_rhs(b, conj=True)), jitgemm.gemm(a, b))


@complex_kinds
@pytest.mark.usefixtures("pieces")
def test_c08_a_matrix_times_its_conjugate_transpose_is_hermitian(
    kind: Any, rng: np.random.Generator
) -> None:
    for n, k in ((1, 1), (1, 700), (2, 1025), (7, 513), (9, 3), (40, 1025), (70, 33)):
        a = reals(rng, (n, k), kind)
        for stored in (a, np.asfortranarray(a), _rows_on_pages(a), _foreign(a), a[:, ::-1]):
            products = {
                "by flag": jitgemm.gemm(stored, stored.T, conj_b=True),
                "by array": jitgemm.gemm(stored, stored.conj().T),
                "by handle": jitgemm.gemm(stored, jitgemm.prepack_rhs(stored.T, conj=True)),
                "from the left": jitgemm.gemm(jitgemm.prepack_lhs(stored), stored.T, conj_b=True),
                "shared depth": _split(stored, stored.T, conj_b=True),
                "two threads": jitgemm.gemm(stored, stored.T, conj_b=True, threads=2),
                "other side": jitgemm.gemm(stored.conj(), stored.T).conj(),
                "strict": jitgemm.gemm(stored, stored.T, conj_b=True, reproducible="strict"),
            }
            for name, d in products.items():
                assert not d.imag[np.diag_indices(n)].any(), (name, n, k)
                # Bit for bit but for the sign of zero, which conjugation turns.
                equal(d, d.conj().T, (name, n, k))
            assert (products["by flag"].real.diagonal() > 0).all()


def test_c08_the_table_of_right_answers() -> None:
    t = np.array([[1, 2 + 3j], [2 + 3j, 1j]])
    want = np.array([[14, 5 - 5j], [5 + 5j, 14]])
    for kind in KINDS[2:]:
        x, y = t.astype(kind), want.astype(kind)
        equal(jitgemm.gemm(x, np.conj(x.T)), y)
        equal(jitgemm.matmul(x, np.conj(x.T)), y)
        equal(jitgemm.gemm(x, x.T, conj_b=True), y)
        equal(jitgemm.gemm(x, jitgemm.prepack_rhs(x.T, conj=True)), y)
        equal(jitgemm.gemm(jitgemm.prepack_lhs(x), x.T, conj_b=True), y)


# -- 9: the floating-point environment ------------------------------------------------------------

flags = pytest.mark.skipif(FENV is None, reason="this machine's flags are not known")


@_plain()
@pytest.mark.usefixtures("pieces")
def test_c09_subnormals_survive(route: Route, kind: Any, rng: np.random.Generator) -> None:
    tiny = np.finfo(kind).smallest_subnormal
    for m, n, k in ((1, 1, 70), (1, 7, 3), (3, 7, 70), (30, 40, 21)):
        a, b = integers(rng, (m, k), kind), integers(rng, (k, n), kind)
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


def _flags_of(call: Callable[[], object]) -> int:
    assert FENV is not None
    library = libm()
    call()  # plan and compile first
    # A collection in between may call what others have registered, which may compute.
    gc.disable()
    try:
        library.feclearexcept(FENV.every)
        call()
        return int(library.fetestexcept(FENV.every))
    finally:
        gc.enable()


@flags
@pytest.mark.parametrize("arithmetic", ["as found", "flushed", "down", "to zero"])
def test_c09_the_control_word_is_never_changed(arithmetic: str, kind: Any) -> None:
    a = np.ones((70, 700), kind)
    calls = [
        lambda: jitgemm.gemm(a, a.T),
        lambda: jitgemm.matmul(a[:3, :3], a[:3, :3]),
        lambda: jitgemm.gemm(a, a.T, threads=2),
        lambda: jitgemm.prepack_rhs(a),
        lambda: jitgemm.prepack_lhs(a),
        lambda: jitgemm.gemm(a[:1], a[:1].T),
        lambda: jitgemm.gemm(a[:2], _columns_on_pages(a.T)),
        lambda: _split(a[:2], a[:3].T),
    ]
    if not is_complex(kind):
        calls.append(lambda: jitgemm.gemm(a, a.T, activation="gelu"))
    for call in calls:
        with controlled(arithmetic) as wanted:
            call()
            assert control() == wanted


_WORKERS = """
    import time
    import numpy as np
    from fenv import control
    from oracle import another_machine
    import jitgemm
    from jitgemm.runtime import pool

    real, started = pool._serve, []

    def serve(main, block, alive):
        def served(block):
            before = control()
            main(block)
            started.append((before, control()))

        real(served, block, alive)

    pool._serve = serve
    a = np.ones((300, 700), np.float32)
    for kind in "fdFD":
        x = a.astype(kind)
        for _ in range(3):
            assert (jitgemm.gemm(x, x.T, threads=3) == 700).all()
        with another_machine(split_depth=1, parallel_flops=1):
            assert (jitgemm.gemm(x[:3], x[:2].T, threads=3) == 700).all()
    with another_machine(parallel_flops=1):
        jitgemm.gemm(a, a.T, threads=3, activation="tanh")
    workers = jitgemm.runtime.engine.engine().pool
    workers.stop()
    while workers.workers:
        time.sleep(0.01)
    assert len(started) >= 2, started
    assert len(set(started)) == 1 and started[0][0] == started[0][1] == control(), started
"""


@flags
def test_c09_the_control_word_of_workers_is_never_changed() -> None:
    run_python(_WORKERS)


def _flag_calls(a: Array, b: Array, out: Array | None = None) -> dict[str, Callable[[], object]]:
    """A product on every route, prepared so that nothing but the product may raise a flag."""
    (m, _), n, kind = a.shape, b.shape[1], a.dtype.type
    one, wide, columns = np.ones((m, n), kind), _rows_on_pages(b), np.asfortranarray(b)
    x, y, stored = a.copy(), b.copy(), _stored(a, b)
    calls: dict[str, Callable[[], object]] = {
        f"stored {i}": lambda pair=pair: jitgemm.gemm(*pair, out=out)
        for i, pair in enumerate(stored)
    }
    return calls | {
        "pages": lambda: jitgemm.gemm(a, wide, out=out),
        "split": lambda: _split(a, b, out=out),
        "split columns": lambda: _split(a, columns, out=out),
        "strict": lambda: jitgemm.gemm(a, b, reproducible="strict"),
        "beta": lambda: jitgemm.gemm(a, b, beta=1, c=one, out=out),
        "bias": lambda: jitgemm.gemm(a, b, bias=one[0], out=out),
        "matmul": lambda: jitgemm.matmul(x, y),
    }


@flags
@pytest.mark.usefixtures("pieces")
def test_c09_exact_products_raise_no_flag(kind: Any) -> None:
    sizes = ((1, 1, 1), (1, 1, 700), (1, 5, 1030), (2, 9, 1027), (5, 7, 3), (15, 33, 20),
             (30, 41, 513))  # fmt: skip
    for m, n, k in sizes:
        # Outside the operands: what must not be touched would raise flags.
        wide_a = np.full((m + 2, k + 40), np.nan, kind)
        wide_b = np.full((k + 2, n + 40), np.finfo(kind).max, kind)
        wide_d = np.full((m, n + 40), np.inf, kind)
        wide_a[1:-1, :k], wide_b[1:-1, :n] = 1, 2
        a, b, out = wide_a[1:-1, :k], wide_b[1:-1, :n], wide_d[:, :n]
        calls = _flag_calls(a, b, out)
        found = {name: _flags_of(call) for name, call in calls.items()}
        assert not any(found.values()), (m, n, k, found)


@flags
@pytest.mark.usefixtures("pieces")
def test_c09_unused_lanes_raise_no_flag(kind: Any) -> None:
    # Infinity times one is exact and raises nothing; infinity times a padding zero would.  Complex:
    # twice the greatest number would overflow where lanes were added that do not belong together.
    value = np.finfo(kind).max if is_complex(kind) else np.inf
    for m, n, k in ((1, 1, 1), (1, 1, 300), (1, 5, 300), (2, 33, 70), (3, 9, 550), (31, 41, 20)):
        a, b = np.full((m, k), value, kind), np.ones((k, n), kind)
        if is_complex(kind):
            a[:, 1:] = 0
        found = {name: _flags_of(call) for name, call in _flag_calls(a, b).items()}
        if is_complex(kind):  # the greatest number plus one is inexact
            found = {x: f for x, f in found.items() if x not in ("beta", "bias")}
        assert not any(found.values()), (m, n, k, found)


@flags
@MAPS
@pytest.mark.usefixtures("low")
def test_c09_the_tail_of_a_map_raises_no_flag(name: str, dtype: Any) -> None:
    """What an activation raises for a full vector, it raises for any number of columns, no more."""
    given = ACTIVATIONS[name]
    for value in (0.0, 1.0, -1.0):
        a = np.full((3, 1), value, dtype)
        flags = {}
        for n in (1, 2, 3, 5, 7, 15, 17, 31, 33, 64):
            b = np.ones((1, n), dtype)
            # In memory beyond the columns: what no function takes without a flag.
            out = np.full((3, n + 70), np.finfo(dtype).max, dtype)[:, :n]
            flags[n] = _flags_of(lambda b=b, out=out: jitgemm.gemm(a, b, out=out, **given))
        assert all(f & ~flags[64] == 0 for f in flags.values()), (value, flags)
        assert not flags[64] & (FENV.invalid | FENV.divide | FENV.overflow), (value, flags)


def test_c09_calls_work_where_numpy_raises_errors(dtype: Any, rng: np.random.Generator) -> None:
    a, b = reals(rng, (5, 7), dtype), reals(rng, (7, 9), dtype)
    huge = np.full((2, 2), np.finfo(dtype).max)
    with np.errstate(all="raise"):
        jitgemm.gemm(a, b, alpha=0.3, beta=0.7, c=np.ones((5, 9), dtype))
        assert np.isinf(jitgemm.matmul(huge, huge)).all()
        # What NumPy does next is not blamed for the flags of the product.
        assert np.add(dtype(1), dtype(2)) == 3


# -- 10 and 11: what must not show in the bits ----------------------------------------------------

REALS = ((1, 1, 1025), (1, 40, 700), (3, 5, 513), (20, 33, 1025), (61, 129, 80))


def _options(rng: np.random.Generator, m: int, n: int, kind: Any) -> dict[str, Any]:
    """All terms at once."""
    options = {"alpha": 0.3, "beta": -1.7, "c": reals(rng, (m, n), kind),
               "bias": reals(rng, (n,), kind)}  # fmt: skip
    if is_complex(kind):
        return options | {"alpha": 0.3 - 0.1j, "conj_a": True}
    return options | {"activation": "relu"}


@pytest.mark.parametrize("m, n, k", REALS)
@pytest.mark.usefixtures("pieces")
def test_c10_prepacked_equals_plain(
    m: int, n: int, k: int, kind: Any, rng: np.random.Generator
) -> None:
    a, b = reals(rng, (m, k), kind), reals(rng, (k, n), kind)
    options, plain = _options(rng, m, n, kind), jitgemm.gemm(a, b)
    full = jitgemm.gemm(a, b, **options)
    for left, right in ((a, jitgemm.prepack_rhs(b)), (jitgemm.prepack_lhs(a), b)):
        for threads in (1, 2):
            same_bits(jitgemm.gemm(left, right, threads=threads), plain)
            same_bits(jitgemm.gemm(left, right, threads=threads, **options), full)
        out = np.empty((m, n), kind)
        same_bits(jitgemm.plan(left, right)(left, right, out), plain)
        again = [pickle.loads(pickle.dumps(x)) for x in (left, right)]
        same_bits(jitgemm.gemm(*again, **options), full)
        # The orientation of a prepacked product is tied: everything else may be transposed.
        turned = {**options, "c": np.asfortranarray(options["c"]), "out": np.empty((n, m), kind).T}
        same_bits(jitgemm.gemm(left, right, **turned), full)


@pytest.mark.parametrize("m, n, k", REALS)
@pytest.mark.usefixtures("pieces", "eager_threads")
def test_c10_one_thread_equals_many(
    m: int, n: int, k: int, kind: Any, rng: np.random.Generator
) -> None:
    a, b = reals(rng, (m, k), kind), reals(rng, (k, n), kind)
    options = _options(rng, m, n, kind)
    for left, right in [*_stored(a, b), (a, _rows_on_pages(b))]:
        alone = jitgemm.gemm(left, right, threads=1, **options)
        for threads in (2, 3, 8):
            for _ in range(2):
                same_bits(jitgemm.gemm(left, right, threads=threads, **options), alone, threads)
    alone = _split(a, b, threads=1, **options)
    for threads in (2, 3, 8):
        same_bits(_split(a, b, threads=threads, **options), alone, threads)


def test_c10_the_same_call_twice(kind: Any, rng: np.random.Generator) -> None:
    for m, n, k in REALS:
        a, b = reals(rng, (m, k), kind), reals(rng, (k, n), kind)
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
    layout: str, kind: Any, rng: np.random.Generator
) -> None:
    for m, n, k in ((1, 1, 600), (1, 9, 600), (9, 1, 600), (3, 40, 33), (35, 70, 520)):
        a, b = reals(rng, (m, k), kind), reals(rng, (k, n), kind)
        want = jitgemm.gemm(a, b)
        place = LAYOUTS[layout]
        same_bits(jitgemm.gemm(place(a), b), want, f"a, m={m} n={n} k={k}")
        same_bits(jitgemm.gemm(a, place(b)), want, f"b, m={m} n={n} k={k}")
        same_bits(jitgemm.gemm(place(a), place(b)), want, f"a and b, m={m} n={n} k={k}")
        out = place(np.full((m, n), 77, kind))
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
@pytest.mark.usefixtures("low", "pieces")
def test_c10_fused_equals_unfused(
    m: int, n: int, k: int, kind: Any, rng: np.random.Generator
) -> None:
    a, b, c = (reals(rng, s, kind) for s in ((m, k), (k, n), (m, n)))
    product = jitgemm.gemm(a, b)
    same_bits(jitgemm.gemm(a, b, alpha=0.3), _real_times(0.3, product))
    for left, right in _stored(a, b):
        for name, bias in _biases(rng, m, n, kind).items():
            same_bits(jitgemm.gemm(left, right, bias=bias), product + bias, name)
        # beta = 1 adds C itself: a multiply-add by one rounds once, as the sum does.
        bias = reals(rng, (n,), kind)
        same_bits(jitgemm.gemm(left, right, beta=1, c=c, bias=bias), (product + c) + bias)
    if not is_complex(kind):
        biased, zero = product + bias, kind(0)
        for x, y in ((product, {}), (biased, {"bias": bias})):
            want = np.where(0 > x, zero, x)
            same_bits(jitgemm.gemm(a, b, activation="relu", **y), want)


def _real_times(factor: float, x: Array) -> Array:
    if not is_complex(x.dtype):
        return np.asarray(x.dtype.type(factor) * x)
    components = x.view(x.real.dtype)
    return np.asarray((components.dtype.type(factor) * components).view(x.dtype))


@MAPS
@pytest.mark.usefixtures("low", "pieces")
def test_c10_fused_activations_equal_separate_ones(
    name: str, dtype: Any, rng: np.random.Generator
) -> None:
    given = ACTIVATIONS[name]
    sizes = ((1, 37, 20), (3, 9, 513), (31, 45, 20))
    if name in ("relu", "silu"):
        # Kernels of their own, for one that is written out and for one by a polynomial.
        sizes = (*sizes, (1, 1, 700), (9, 1, 20))
    for m, n, k in sizes:
        a, b = reals(rng, (m, k), dtype), reals(rng, (k, n), dtype)
        bias = reals(rng, (n,), dtype)
        v = jitgemm.gemm(a, b, alpha=0.1, bias=bias)
        # The same map of the finished matrix, on another route: by itself, and of a product by 1.
        want = jitgemm.gemm(np.empty((m, 0), dtype), np.empty((0, n), dtype), bias=v, **given)
        if "epilogue" not in given:
            one = np.ones((1, 1), dtype)
            same_bits(jitgemm.gemm(v.reshape(-1, 1), one, **given).reshape(m, n), want)
        if name in ("relu", "clip", "leaky_relu", "function"):
            same_bits(want, mapped(v, **given), (name, m, n, k))
        for left, right in _stored(a, b):
            got = jitgemm.gemm(left, right, alpha=0.1, bias=bias, threads=2, **given)
            same_bits(got, want, (name, m, n, k))
        out = np.empty((n, m), dtype).T
        same_bits(jitgemm.gemm(a, b, alpha=0.1, bias=bias, out=out, **given), want)
        same_bits(_split(a, b, alpha=0.1, bias=bias, **given), want, (name, m, n, k))


_HASHES = """
    import hashlib, json, os
    import numpy as np
    from oracle import KINDS, is_complex, reals
    import jitgemm
    found = {}
    for kind in KINDS:
        for m, n, k in ((1, 1, 700), (1, 33, 700), (3, 5, 513), (20, 33, 1025), (61, 129, 80)):
            rng = np.random.default_rng([m, n, k])
            a, b, c = (reals(rng, s, kind) for s in ((m, k), (k, n), (m, n)))
            options = {"alpha": 0.3, "beta": -1.7, "c": c, "bias": reals(rng, (n,), kind)}
            options |= {"conj_b": True} if is_complex(kind) else {"activation": "relu"}
            results = [
                jitgemm.gemm(a, np.asfortranarray(b)), jitgemm.gemm(a, b, **options),
                jitgemm.gemm(jitgemm.prepack_lhs(a), b), jitgemm.gemm(a[:2], b),
                jitgemm.gemm(a[:, :9].copy(), b[:9].copy()), jitgemm.matmul(a[:, :9].copy(), b[:9]),
            ]
            if not is_complex(kind):
                results += [jitgemm.gemm(a, b, alpha=1e-2, activation="gelu")]
            for strict in ("default", "strict"):
                more = [jitgemm.gemm(a, b, reproducible=strict),
                        jitgemm.gemm(a, jitgemm.prepack_rhs(b), reproducible=strict, **options)]
                data = b"".join(np.ascontiguousarray(r).tobytes() for r in results + more)
                found[f"{np.dtype(kind)} {m} {n} {k} {strict}"] = hashlib.sha256(data).hexdigest()
    assert jitgemm.show_config()["isa"] == os.environ["JITGEMM_ISA"]
    print(json.dumps(found))
"""


@pytest.mark.skipif(NESTED in os.environ, reason="the session on the best set compares them all")
def test_c11_every_set_with_fused_multiply_add_gives_the_same_bits() -> None:
    names = [i.name for i in BY_NAME.values() if i.fused and not i.interpreted and available(i)]
    if len(names) < 2:
        pytest.skip("this machine has one such set")
    found = [json.loads(run_python(_HASHES, JITGEMM_ISA=name).stdout) for name in names]
    assert len(found[0]) == 40
    for name, other in zip(names[1:], found[1:], strict=True):
        differing = [case for case in found[0] if found[0][case] != other[case]]
        assert not differing, f"{name} differs from {names[0]}"


@pytest.mark.usefixtures("pieces", "eager_threads")
def test_c11_a_row_of_the_result_does_not_depend_on_the_others(
    kind: Any, rng: np.random.Generator
) -> None:
    for k, n in ((600, 37), (600, 1), (1025, 5)):
        a, b = reals(rng, (40, k), kind), reals(rng, (k, n), kind)
        packed, strict = jitgemm.prepack_rhs(b), {"reproducible": "strict"}
        whole = jitgemm.gemm(a, b, reproducible="strict")
        # Only one row times one column has another order, and only if it may.
        same_bits(jitgemm.gemm(a, b), whole)
        columns = _columns_on_pages(b)
        for m in (*range(1, 17), 31, 33):
            for right in (b, packed, columns):
                got = jitgemm.gemm(a[:m], right, threads=1 + m % 2, **strict)
                same_bits(got, whole[:m], (m, n, k))
            same_bits(jitgemm.gemm(jitgemm.prepack_lhs(a[-m:]), b, **strict), whole[-m:], m)
            same_bits(_split(a[:m], b, **strict), whole[:m], m)
        for j in (1, 2, 7, 16, 31, 33):
            same_bits(jitgemm.gemm(a, b[:, :j], **strict), whole[:, :j], j)
        same_bits(jitgemm.gemm(a[:1], b[:, :1], **strict), whole[:1, :1])
        same_bits(jitgemm.plan(a[:1], b[:, :1], **strict)(a[:1], b[:, :1]), whole[:1, :1])
