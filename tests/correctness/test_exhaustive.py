"""Every size from 1 to 70 in each dimension, and larger ones, exact on integer fills.

One dimension runs through all its values while the others take a few that matter: one, a tail, one
vector, a full tile and its neighbours on every instruction set.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import jitgemm
from oracle import equal, exact_gemm, integers

Array = np.ndarray[Any, Any]
Call = Callable[[Array, Array], Array]

ALL = range(1, 71)
M = (1, 5, 14, 31)
N = (1, 7, 16, 33, 66)
K = (1, 6, 65)


def _columns_first(a: Array, b: Array) -> Array:
    out = np.full((b.shape[1], a.shape[0]), np.nan, a.dtype).T
    assert jitgemm.gemm(a, b, out=out) is out
    return out


def _everything(a: Array, b: Array) -> Array:
    """All terms at once, in place: the product is recovered exactly."""
    c = np.ones((a.shape[0], b.shape[1]), a.dtype)
    bias = np.full(b.shape[1], 2000, a.dtype)
    got = jitgemm.gemm(a, b, alpha=2, beta=-3, c=c, bias=bias, activation="relu", out=c)
    return (got - 1997) / 2


CALLS: dict[str, Call] = {
    "matmul": jitgemm.matmul,
    "gemm": jitgemm.gemm,
    "prepacked": lambda a, b: jitgemm.gemm(a, jitgemm.prepack_rhs(b)),
    "column-major a": lambda a, b: jitgemm.gemm(np.asfortranarray(a), b),
    "column-major b": lambda a, b: jitgemm.gemm(a, np.asfortranarray(b)),
    "column-major out": _columns_first,
    "every term": _everything,
}


def _sizes() -> Iterator[tuple[int, int, int]]:
    yield from itertools.product(ALL, N, K)
    yield from itertools.product(M, ALL, K)
    yield from itertools.product(M, N, ALL)


@pytest.fixture(scope="module")
def fills() -> dict[Any, Array]:
    rng = np.random.default_rng(5)
    return {(t, s): integers(rng, (70, 70), t, 3) for t in (np.float32, np.float64) for s in "ab"}


@pytest.mark.parametrize("call", [pytest.param(c, id=n) for n, c in CALLS.items()])
def test_every_size(call: Call, dtype: Any, fills: dict[Any, Array]) -> None:
    for m, n, k in _sizes():
        a, b = fills[dtype, "a"][:m, :k].copy(), fills[dtype, "b"][:k, :n].copy()
        equal(call(a, b), exact_gemm(a, b), f"m={m} n={n} k={k}")


# Around the depth blocks, the slices made of them, and sizes that take several chunks.
LARGE = (
    (1, 700, 1537), (3, 130, 2049), (29, 97, 511), (29, 97, 512), (29, 97, 513), (57, 64, 1023),
    (57, 33, 1024), (57, 33, 1025), (128, 128, 128), (129, 257, 65), (300, 40, 520), (33, 1100, 70),
    (211, 223, 227), (1000, 3, 40), (2, 5000, 3), (90, 1, 3000), (1, 1, 10_000),
)  # fmt: skip


@pytest.mark.parametrize("m, n, k", LARGE)
@pytest.mark.parametrize("threads", [1, 2])
def test_large_sizes(
    m: int, n: int, k: int, threads: int, dtype: Any, rng: np.random.Generator, eager_threads: None
) -> None:
    a, b, c = (integers(rng, s, dtype) for s in ((m, k), (k, n), (m, n)))
    bias = integers(rng, (n,), dtype)
    want = exact_gemm(a, b)
    full = exact_gemm(a, b, alpha=-1, beta=2, c=c, bias=bias, activation="relu")
    a_f, b_f = np.asfortranarray(a), np.asfortranarray(b)
    for left, right in itertools.product((a, a_f), (b, b_f, jitgemm.prepack_rhs(b))):
        equal(jitgemm.gemm(left, right, threads=threads), want)
        mine = c.copy()
        got = jitgemm.gemm(left, right, alpha=-1, beta=2, c=mine, bias=bias, activation="relu",
                           out=mine, threads=threads)  # fmt: skip
        equal(got, full)
    out = np.full((n, m), np.nan, dtype).T
    equal(jitgemm.gemm(a, b, out=out, threads=threads), want)
    strided = np.full((m, 2 * n), np.nan, dtype)[:, 1::2]
    equal(jitgemm.gemm(a, b, out=strided, threads=threads), want)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_number_of_chunks(threads: int, dtype: Any, eager_threads: None) -> None:
    # Rows and columns in which chunks end everywhere relative to tiles.
    rng = np.random.default_rng(threads)
    a, b = integers(rng, (160, 9), dtype), integers(rng, (9, 150), dtype)
    whole, b_f = exact_gemm(a, b), np.asfortranarray(b)
    for m, n in itertools.product((*range(1, 160, 9), 160), (1, 31, 64, 65, 97, 149)):
        for right in (b[:, :n], b_f[:, :n]):
            equal(jitgemm.gemm(a[:m], right, threads=threads), whole[:m, :n], (m, n))
