"""Products of 16-bit floats: sizes, stacks, lists, plans, handles, against exact answers."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest

import jitgemm
from oracle import BF16, HALVES, exact_gemm, integers, same_bits

Array = np.ndarray[Any, Any]
PAIRS = [*itertools.product(HALVES, HALVES), (BF16, np.dtype("f4")), (np.dtype("f4"), HALVES[0])]


def _pair(rng: np.random.Generator, pair: Any, m: int, n: int, k: int) -> tuple[Array, Array]:
    return integers(rng, (m, k), pair[0]), integers(rng, (k, n), pair[1])


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: f"{p[0]}@{p[1]}")
def test_every_small_size(pair: Any, rng: np.random.Generator) -> None:
    rows, columns = (1, 2, 7, 14, 15), (1, 2, 15, 16, 17, 33, 65)
    for m, n, k in itertools.product(rows, columns, (1, 2, 3, 8, 33)):
        a, b = _pair(rng, pair, m, n, k)
        same_bits(jitgemm.gemm(a, b), exact_gemm(a, b), (m, n, k))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: f"{p[0]}@{p[1]}")
def test_larger_sizes_round_what_is_too_long(pair: Any, rng: np.random.Generator) -> None:
    rounded = 0
    for _ in range(8):
        m, n, k = (int(2 ** rng.uniform(0, top)) for top in (7, 8, 11))
        a, b = _pair(rng, pair, m, n, k)
        want = exact_gemm(a, b)
        rounded += (want.astype(float) != a.astype(float) @ b.astype(float)).sum()
        for x, y in itertools.product((a, np.asfortranarray(a)), (b, np.asfortranarray(b))):
            same_bits(jitgemm.gemm(x, y, threads=2), want, (m, n, k))
        if pair[0] == pair[1]:
            same_bits(jitgemm.gemm(a, jitgemm.prepack_rhs(b)), want, (m, n, k))
            same_bits(jitgemm.gemm(jitgemm.prepack_lhs(a), b), want, (m, n, k))
            same_bits(jitgemm.gemm(a, b, out_dtype="f4"), exact_gemm(a, b, out_dtype="f4"))
    assert rounded or pair != (BF16, BF16), "no result was long enough to be rounded"


def _epilogues(rng: np.random.Generator, half: np.dtype, m: int, n: int) -> list[dict[str, Any]]:
    bias, c = integers(rng, (n,), half), integers(rng, (m, n), half)
    single = {"bias": bias.astype(np.float32), "c": c.astype(np.float32), "beta": -3}
    return [
        {"alpha": 2, "beta": -3, "c": c, "bias": bias, "activation": "relu"},
        {**single, "activation": jitgemm.clip(-9, 20)},
        {"bias": c[:, :1], "epilogue": lambda v, row, col: v + 2 * row - col},
        {**single, "out_dtype": np.float32},
    ]


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.usefixtures("low")
def test_every_epilogue_on_every_operand(half: np.dtype, rng: np.random.Generator) -> None:
    for m, n, k in ((5, 33, 7), (17, 65, 520)):
        a, b = _pair(rng, (half, half), m, n, k)
        left, right = jitgemm.prepack_lhs(a), jitgemm.prepack_rhs(b)
        for i, given in enumerate(_epilogues(rng, half, m, n)):
            want, why = exact_gemm(a, b, **given), (i, m, n, k)
            same_bits(jitgemm.gemm(a, b, **given), want, why)
            same_bits(jitgemm.gemm(a, right, **given), want, why)
            same_bits(jitgemm.gemm(left, b, **given), want, why)
            same_bits(jitgemm.gemm(a, b, out=np.zeros_like(want, order="F"), **given), want, why)
            same_bits(jitgemm.plan(a, right, **given)(a, right), want, why)
            p = jitgemm.plan(a, b, **given)
            same_bits(p(a, b, np.zeros_like(want)), want, why)


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.usefixtures("low")
def test_stacks_and_lists(half: np.dtype, rng: np.random.Generator) -> None:
    m, n, k = 5, 33, 9
    a, b = integers(rng, (2, 3, m, k), half), integers(rng, (3, k, n), half)
    for given in _epilogues(rng, half, m, n):
        want = np.array([[exact_gemm(a[i, j], b[j], **given) for j in range(3)] for i in range(2)])
        for _ in range(2):
            same_bits(jitgemm.gemm(a, b, **given), want)
        same_bits(jitgemm.plan(a, b, **given)(a, b), want)
        lists = {x: [given[x]] * 3 for x in ("c", "bias") if x in given}
        for _ in range(2):
            got = jitgemm.gemm_batched(list(a[1]), list(b), **{**given, **lists})
            for x, y in zip(got, want[1], strict=True):
                same_bits(x, y)


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_handles_are_pickled_and_unpacked(half: np.dtype, rng: np.random.Generator) -> None:
    for m, n, k in ((1, 1, 1), (5, 33, 7), (3, 5, 0), (2, 70, 130)):
        a, b = _pair(rng, (half, half), m, n, k)
        want = exact_gemm(a, b)
        for x, handle in ((a, jitgemm.prepack_lhs(a)), (b, jitgemm.prepack_rhs(b))):
            for h in (handle, pickle.loads(pickle.dumps(handle))):
                assert (h.shape, h.dtype) == (x.shape, half)
                same_bits(h.unpack(), x)
                got = jitgemm.gemm(h, b) if x is a else jitgemm.gemm(a, h)
                same_bits(got, want, (m, n, k))


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_every_pattern_of_bits_is_kept(half: np.dtype) -> None:
    # One times every number of 16 bits: subnormals, infinities and all; NaN stays NaN.
    every = np.arange(2**16, dtype=np.uint16).view(half).reshape(256, 256)
    with np.errstate(all="ignore"):
        single = every.astype(np.float32)
        number = ~np.isnan(single)
        one = np.eye(1, dtype=half)
        for row in (0, 1, 127, 128, 255):
            got = jitgemm.gemm(one, every[row : row + 1])
            want = every[row : row + 1]
            plain = number[row : row + 1]
            # The sum begins at +0, so that -0 becomes +0.
            same_bits(got[plain], (single[row : row + 1][plain] + np.float32(0)).astype(half))
            assert np.isnan(got[~plain].astype(np.float32)).all()
            wide = jitgemm.gemm(one, want, out_dtype=np.float32)
            same_bits(wide[plain], single[row : row + 1][plain] + np.float32(0))


def test_new_results_are_of_the_type_as_numpy_names_it(rng: np.random.Generator) -> None:
    """Calls like an earlier one know types by identity, whatever object the operands came with."""
    a, b = _pair(rng, (BF16, BF16), 3, 4, 5)
    odd = BF16.newbyteorder("=")
    for x, y in itertools.product((a, a.view(odd)), (b, b.view(odd))):
        assert jitgemm.gemm(x, y).dtype is np.dtype(BF16.type)
        assert jitgemm.gemm(x, y, out_dtype=odd).dtype is np.dtype(BF16.type)
