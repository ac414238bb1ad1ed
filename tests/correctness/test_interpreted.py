"""Tiny products with every feature, on any instruction set.

With ``JITGEMM_ISA=interpreter`` every load and store of these calls is checked against the operands
they may touch, and every read against what was written: undefined behaviour is an error here.
"""

# ruff: noqa: FBT001  # parameters of a test are named by its decorator

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import jitgemm
import outside
from jitgemm.runtime.engine import engine
from oracle import (
    TINY,
    another_machine,
    anything,
    documented,
    equal,
    exact_gemm,
    integers,
    is_complex,
    reals,
    same_bits,
)

SIZES = ((1, 1, 1), (1, 9, 2), (3, 5, 4), (7, 2, 3))


@pytest.mark.parametrize("m, n, k", [*SIZES, (7, 17, 2), (2, 3, 0)])
@pytest.mark.parametrize("packed", [False, True])
def test_every_term(
    m: int, n: int, k: int, packed: bool, dtype: Any, rng: np.random.Generator
) -> None:
    a, b, c = (integers(rng, s, dtype) for s in ((m, k), (k, n), (m, n)))
    bias = integers(rng, (n,), dtype)
    right = jitgemm.prepack_rhs(b) if packed else b
    for beta, biased, activation in itertools.product((0, -2), (False, True), (None, "relu")):
        options: dict[str, Any] = {"alpha": 3, "beta": beta, "c": c, "activation": activation,
                                   "bias": bias if biased else None}  # fmt: skip
        want = exact_gemm(a, b, **options)
        equal(jitgemm.gemm(a, right, **options), want)
        out = np.full((m, n), np.nan, dtype)
        assert jitgemm.gemm(a, right, out=out, **options) is out
        equal(out, want)


@pytest.mark.parametrize("m, n, k", SIZES)
def test_every_layout(m: int, n: int, k: int, dtype: Any, rng: np.random.Generator) -> None:
    a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
    want = exact_gemm(a, b)
    places = [np.asarray, np.asfortranarray, lambda x: np.repeat(x, 2, axis=1)[:, ::2],
              lambda x: x[::-1, ::-1].copy()[::-1, ::-1]]  # fmt: skip
    for left, right in itertools.product(places, places):
        equal(jitgemm.gemm(left(a), right(b)), want)
    for place in places:
        out = place(np.full((m, n), 77, dtype))
        jitgemm.gemm(a, b, out=out)
        equal(out, want)
        equal(jitgemm.matmul(a, b, out), want)


def test_c_in_place_and_apart(dtype: Any, rng: np.random.Generator) -> None:
    a, b, c = (integers(rng, s, dtype) for s in ((3, 2), (2, 9), (3, 9)))
    want = exact_gemm(a, b, beta=2, c=c)
    for place in (np.asarray, np.asfortranarray):
        mine = place(c.copy())
        assert jitgemm.gemm(a, b, beta=2, c=mine, out=mine) is mine
        equal(mine, want)
        equal(jitgemm.gemm(a, b, beta=2, c=place(c)), want)


def test_more_than_one_block_of_the_sum(dtype: Any, rng: np.random.Generator) -> None:
    a, b, c = (reals(rng, s, dtype) for s in ((2, 514), (514, 3), (2, 3)))
    fused = engine().isa.fused
    same_bits(jitgemm.gemm(a, b), documented(a, b, fused=fused))
    same_bits(jitgemm.gemm(a, np.asfortranarray(b)), documented(a, b, fused=fused))
    want = documented(a, b, fused=fused, alpha=0.3, beta=-0.7, c=c)
    same_bits(jitgemm.gemm(a, b, alpha=0.3, beta=-0.7, c=c, out=c), want)


@pytest.mark.parametrize("order", ["C", "F"])
def test_threads(order: str, dtype: Any, rng: np.random.Generator, eager_threads: None) -> None:
    a = integers(rng, (9, 4), dtype)
    b = np.asarray(integers(rng, (4, 19), dtype), order=order)
    want = exact_gemm(a, b)
    equal(jitgemm.gemm(a, b, threads=2), want)
    equal(jitgemm.gemm(a, jitgemm.prepack_rhs(b), threads=2), want)
    with jitgemm.threads(2):
        equal(jitgemm.matmul(a, b), want)


def test_packed_rows_of_a(dtype: Any, rng: np.random.Generator, knobs: Any) -> None:
    knobs(lhs_pack_stride=8, lhs_pack_pages=1, lhs_pack_reuse=1)
    m = 2 * engine().isa.vector_registers  # at least as many rows as any tile
    a, b = integers(rng, (m, 17), dtype), integers(rng, (17, 5), dtype)
    for left in (np.asfortranarray(a), a[:, ::-1]):
        equal(jitgemm.gemm(left, b), exact_gemm(left, b))


def test_packed_operands_hold_their_source(dtype: Any, rng: np.random.Generator) -> None:
    for k, n in ((1, 1), (3, 9), (4, 17), (0, 3), (3, 0)):
        b = reals(rng, (k, n), dtype)
        for source in (b, np.asfortranarray(b), b.astype(b.dtype.newbyteorder("S"))):
            packed = jitgemm.prepack_rhs(source)
            assert packed.shape == (k, n)
            same_bits(packed.unpack(), b)


def test_matmul_and_plans(dtype: Any, rng: np.random.Generator) -> None:
    a, b = integers(rng, (2, 3, 4), dtype), integers(rng, (4, 5), dtype)
    equal(jitgemm.matmul(a, b), np.matmul(a, b))
    equal(jitgemm.matmul(a[0, 0], b), np.matmul(a[0, 0], b))
    p, out = jitgemm.plan(a[0], b, bias=b[0], activation="relu"), np.empty((3, 5), dtype)
    for _ in range(2):
        assert p(a[0], b, out) is out
        equal(out, exact_gemm(a[0], b, bias=b[0], activation="relu"))


def test_scratch_of_the_callers_own(dtype: Any, rng: np.random.Generator) -> None:
    a, b = integers(rng, (3, 4), dtype), integers(rng, (4, 10), dtype)[:, ::2]
    space = jitgemm.Workspace()
    for _ in range(2):
        equal(jitgemm.gemm(a, b, workspace=space), exact_gemm(a, b))
    assert space.nbytes


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((3, 4), (2, 4, 5)),
        ((3, 2, 1, 4), (2, 4, 5)),
        ((2, 1, 2, 1, 2, 2, 3), (2, 1, 2, 1, 3, 4)),
    ],
)
def test_stacks(shapes: Any, dtype: Any, rng: np.random.Generator) -> None:
    a, b = (integers(rng, s, dtype) for s in shapes)
    want = np.matmul(a, b)
    c, bias = integers(rng, want.shape, dtype), integers(rng, want.shape, dtype)
    equal(jitgemm.matmul(a, b, threads=2), want)
    full = np.asarray(np.maximum(want + 2 * c + bias, 0), dtype)
    assert jitgemm.gemm(a, b, beta=2, c=c, bias=bias, out=c, activation="relu") is c
    equal(c, full)
    one = b[(0,) * (b.ndim - 2)]
    equal(jitgemm.gemm(a, jitgemm.prepack_rhs(one), activation="relu"),
          np.maximum(np.matmul(a, one), 0))  # fmt: skip


def test_lists(dtype: Any, rng: np.random.Generator) -> None:
    a = [integers(rng, (m, k), dtype) for m, n, k in SIZES]
    b = [integers(rng, (k, n), dtype) for m, n, k in SIZES]
    for _again in (0, 1):
        for x, y, z in zip(a, b, jitgemm.gemm_batched(a, b, threads=2), strict=True):
            equal(z, np.matmul(x, y))


def _colliding(b: Any) -> Any:
    """A copy whose columns are a multiple of a page apart."""
    wide = np.zeros((b.shape[1], 4096 // b.itemsize), b.dtype)
    wide[:, : b.shape[0]] = b.T
    return wide[:, : b.shape[0]].T


def _foreign(x: Any) -> Any:
    return x.astype(x.dtype.newbyteorder("S"))


ROUTES: dict[str, tuple[Any, Any, dict[str, int]]] = {
    "columns of b": (np.asarray, np.asfortranarray, {"rhs_transpose_rows": 9}),
    "columns apart": (np.asarray, _colliding, {"rhs_transpose_rows": 9, "stagger_column_bytes": 1}),
    "shared depth": (np.asarray, np.asarray, {"split_depth": 1}),
    "shared depth, packed": (
        np.asarray,
        np.asfortranarray,
        {"split_depth": 1, "rhs_transpose_rows": 0},
    ),
    "prepacked a": (jitgemm.prepack_lhs, np.asarray, {}),
    "prepacked b": (np.asarray, jitgemm.prepack_rhs, {}),
    "foreign": (_foreign, _foreign, {}),
}


@pytest.mark.parametrize("route", ROUTES)
def test_every_route(route: str, kind: Any, rng: np.random.Generator) -> None:
    left, right, knobs = ROUTES[route]
    # Columns go apart only where B is large beside the caches.
    machine = TINY if route == "columns apart" else None
    with another_machine(machine, **knobs):
        for m, n, k in ((1, 1, 3), (1, 1, 70), (1, 9, 35), (3, 17, 34), (4, 1, 3), (1, 33, 70)):
            a, b = integers(rng, (m, k), kind), integers(rng, (k, n), kind)
            x, y, bias = left(a), right(b), integers(rng, (n,), kind)
            flags = {"conj_a": True, "alpha": 2j} if is_complex(kind) else {"activation": "relu"}
            equal(jitgemm.gemm(x, y), exact_gemm(a, b), (m, n, k))
            want = exact_gemm(a, b, bias=bias, **flags)
            equal(jitgemm.gemm(x, y, bias=bias, **flags), want, (m, n, k))


def test_every_bias(kind: Any, rng: np.random.Generator) -> None:
    for m, n, k in SIZES:
        a, b = integers(rng, (m, k), kind), integers(rng, (k, n), kind)
        for shape in ((), (n,), (m, 1), (m, n)):
            bias = integers(rng, shape, kind)
            want = exact_gemm(a, b, bias=bias)
            for stored in (bias, _foreign(bias)):
                equal(jitgemm.gemm(a, b, bias=stored), want, (m, n, k, shape))
                out = np.empty((n, m), kind).T
                equal(jitgemm.gemm(a, b, bias=stored, out=out), want, (m, n, k, shape))


def test_every_activation(dtype: Any, rng: np.random.Generator) -> None:
    a, b = integers(rng, (3, 2), dtype), integers(rng, (2, 19), dtype)
    for activation in ("sigmoid", "tanh", "gelu", "gelu_tanh", "silu", "hardswish",
                       jitgemm.leaky_relu(0.5), jitgemm.clip(-1, 2)):  # fmt: skip
        got = jitgemm.gemm(a, b, activation=activation)
        np.testing.assert_allclose(got, exact_gemm(a, b, activation=activation), 1e-6, 1e-30)
    got = jitgemm.gemm(a, b, epilogue=lambda v, row, col: v * row - col)
    equal(got, exact_gemm(a, b, epilogue=lambda v, row, col: v * row - col))


def test_zero_points_and_scales_of_each_product(rng: np.random.Generator) -> None:
    a, b = anything(rng, (2, 1, 2, 3), np.int8), anything(rng, (2, 3, 5), np.uint8)
    points = anything(rng, (2, 1, 2, 1), np.int8), anything(rng, (2, 1, 5), np.uint8)
    scales = rng.random((2, 1, 1, 1)) / 9 + 1e-4
    rule = jitgemm.Requantize(scales, 3)
    got = jitgemm.gemm(a, b, a_zero_point=points[0], b_zero_point=points[1], requantize=rule)
    for i, j in np.ndindex(2, 2):
        own = jitgemm.Requantize(scales[i, 0], 3)
        zeros = {"a_zero_point": points[0][i, 0, :, 0], "b_zero_point": points[1][j]}
        same_bits(got[i, j], exact_gemm(a[i, 0], b[j], requantize=own, **zeros))


def test_a_storage_type_from_outside(rng: np.random.Generator) -> None:
    with outside.storage_type():
        for m, n, k in (*SIZES, (7, 17, 2), (2, 3, 0)):
            a, b = integers(rng, (m, k), outside.F8), integers(rng, (k, n), outside.F8)
            bias = integers(rng, (n,), outside.F8)
            wide = [x.astype(np.float32) for x in (a, b, bias)]
            want = exact_gemm(*wide[:2], bias=wide[2])
            for out_dtype in (outside.F8, np.float32):
                mine = bias.astype(out_dtype)
                for x in (a, np.asfortranarray(a), jitgemm.prepack_lhs(a)):
                    got = jitgemm.gemm(x, b, bias=mine, out_dtype=out_dtype)
                    same_bits(got, want.astype(out_dtype))
                for y in (np.asfortranarray(b), jitgemm.prepack_rhs(b)):
                    got = jitgemm.gemm(a, y, bias=mine, out_dtype=out_dtype)
                    same_bits(got, want.astype(out_dtype))


def test_an_activation_from_outside(dtype: Any, rng: np.random.Generator) -> None:
    with outside.activation() as make, outside.activation("short", cheap=True) as short:
        for m, n, k in (*SIZES, (7, 17, 2), (2, 3, 0)):
            a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
            want = outside.bent(exact_gemm(a, b), dtype(0.5), dtype(6)).astype(dtype)
            for mine in (make(0.5, 6), short(0.5, 6)):
                same_bits(jitgemm.gemm(a, b, activation=mine), want)


@pytest.mark.parametrize("kind", ["i1", "i4", "i8"])
def test_activations_of_integers(kind: str, rng: np.random.Generator) -> None:
    for m, n, k in (*SIZES, (7, 17, 2), (2, 3, 0)):
        a, b = anything(rng, (m, k), kind), anything(rng, (k, n), kind)
        for mine in ("relu", jitgemm.clip(-9, 20)):
            same_bits(jitgemm.gemm(a, b, activation=mine), exact_gemm(a, b, activation=mine))
            if kind == "i1":
                rule = jitgemm.Requantize(0.01, 3)
                want = exact_gemm(a, b, activation=mine, requantize=rule)
                same_bits(jitgemm.gemm(a, b, activation=mine, requantize=rule), want)
