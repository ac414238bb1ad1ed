"""Products of integers: sizes around the edges of tiles and words, stacks, lists, handles."""

from __future__ import annotations

import itertools
import os
import pickle
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm import Requantize
from oracle import INTEGERS, NARROW, NESTED, anything, exact_gemm, same_bits

Array = np.ndarray[Any, Any]
EIGHT = list(itertools.product(NARROW, NARROW))
# One pair for each arithmetic, in the order of the types' lengths.
LONGER = [(np.dtype(x), np.dtype(y)) for x, y in (
    ("?", "?"), ("i2", "i2"), ("i2", "u1"), ("u2", "u2"), ("i4", "i4"), ("u2", "i4"), ("i8", "i8"),
    ("u4", "i1"), ("u8", "u8"),
)]  # fmt: skip


def _pair(rng: np.random.Generator, pair: Any, m: int, n: int, k: int) -> tuple[Array, Array]:
    return anything(rng, (m, k), pair[0]), anything(rng, (k, n), pair[1])


@pytest.mark.parametrize("pair", [*EIGHT, *LONGER], ids=lambda p: f"{p[0]}@{p[1]}")
def test_every_small_size(pair: Any, rng: np.random.Generator) -> None:
    rows, columns, depths = (1, 2, 7, 14, 15), (1, 2, 15, 16, 17, 33, 65), (1, 2, 3, 4, 5, 8, 9, 33)
    for m, n, k in itertools.product(rows, columns, depths):
        a, b = _pair(rng, pair, m, n, k)
        same_bits(jitgemm.gemm(a, b), exact_gemm(a, b), (m, n, k))


@pytest.mark.parametrize("pair", [*EIGHT, *LONGER], ids=lambda p: f"{p[0]}@{p[1]}")
def test_larger_sizes(pair: Any, rng: np.random.Generator) -> None:
    for _ in range(8):
        m, n, k = (int(2 ** rng.uniform(0, top)) for top in (7, 8, 11))
        a, b = _pair(rng, pair, m, n, k)
        want = exact_gemm(a, b)
        for x, y in itertools.product((a, np.asfortranarray(a)), (b, np.asfortranarray(b))):
            same_bits(jitgemm.gemm(x, y, threads=2), want, (m, n, k))
        if pair[0] == pair[1] or pair in EIGHT:  # other partners may need other handles
            same_bits(jitgemm.gemm(a, jitgemm.prepack_rhs(b)), want, (m, n, k))
            same_bits(jitgemm.gemm(jitgemm.prepack_lhs(a), b), want, (m, n, k))


def _epilogues(rng: np.random.Generator, pair: Any, m: int, n: int) -> dict[str, dict[str, Any]]:
    per_row, per_column = (anything(rng, (s,), t) for s, t in zip((m, n), pair, strict=True))
    bias = rng.integers(-9999, 9999, n).astype(np.int32)
    c = rng.integers(-9999, 9999, (m, n)).astype(np.int32)
    narrow = rng.integers(-99, 99, (m, n)).astype(np.int8)
    row, column = rng.random((m, 1)) / 99, rng.random((1, n)) / 99
    return {
        "points": {"a_zero_point": int(per_row[0]), "b_zero_point": int(per_column[0])},
        "points of a": {"a_zero_point": per_row},
        "points of b": {"b_zero_point": per_column.reshape(1, n)},
        "all points": {"a_zero_point": per_row.reshape(m, 1), "b_zero_point": per_column},
        "factors": {"alpha": -3, "beta": 2, "c": c, "bias": bias, "a_zero_point": per_row},
        "bias per row": {"bias": c[:, :1], "b_zero_point": 1},
        "requantised": {"requantize": Requantize(0.003, -5)},
        "per row": {"requantize": Requantize(row, 3, np.uint8, bias), "a_zero_point": per_row},
        "per column": {"requantize": Requantize(column, 3, np.int8), "b_zero_point": per_column,
                       "bias": c[:, :1]},
        "with c": {"requantize": Requantize(column[0], 200, np.uint8, c[:, :1]), "alpha": 2,
                   "beta": -1, "c": c},
        "with narrow c": {"requantize": Requantize(row), "beta": 300, "c": narrow, "bias": c},
    }  # fmt: skip


def _half(pair: Any, epilogues: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Half of the epilogues for each pair: both halves meet both signs on either side."""
    return list(epilogues.items())[EIGHT.index(pair) in (1, 2) :: 2]


@pytest.mark.parametrize("pair", EIGHT, ids=lambda p: f"{p[0]}@{p[1]}")
@pytest.mark.usefixtures("low")
def test_every_epilogue_on_every_operand(pair: Any, rng: np.random.Generator) -> None:
    # Two sizes for all, one deep and wide: kernels do not depend on them.
    for m, n, k in ((5, 33, 7), (17, 65, 520)):
        a, b = _pair(rng, pair, m, n, k)
        left, right = jitgemm.prepack_lhs(a), jitgemm.prepack_rhs(b)
        epilogues = _epilogues(rng, pair, m, n)
        for name, given in _half(pair, epilogues) if NESTED in os.environ else epilogues.items():
            want = exact_gemm(a, b, **given)
            why = (name, m, n, k)
            same_bits(jitgemm.gemm(a, b, **given), want, why)
            same_bits(jitgemm.gemm(a, right, **given), want, why)
            same_bits(jitgemm.gemm(left, b, **given), want, why)
            same_bits(jitgemm.gemm(a, b, out=np.zeros_like(want, order="F"), **given), want, why)
            same_bits(jitgemm.plan(a, b, **given)(a, b), want, why)
            p = jitgemm.plan(left, b, **given)
            same_bits(p(left, b), want, why)
            same_bits(p(left, b, np.zeros_like(want)), want, why)


@pytest.mark.parametrize("pair", EIGHT, ids=lambda p: f"{p[0]}@{p[1]}")
@pytest.mark.usefixtures("low")
def test_stacks_and_lists_with_epilogues(pair: Any, rng: np.random.Generator) -> None:
    m, n, k = 5, 33, 9
    a, b = anything(rng, (2, 3, m, k), pair[0]), anything(rng, (3, k, n), pair[1])
    for name, given in _half(pair, _epilogues(rng, pair, m, n)):
        want = np.array([[exact_gemm(a[i, j], b[j], **given) for j in range(3)] for i in range(2)])
        for _ in range(2):
            same_bits(jitgemm.gemm(a, b, **given), want, name)
        same_bits(jitgemm.plan(a, b, **given)(a, b), want, name)
        one = np.array([[exact_gemm(x, b[0], **given) for x in y] for y in a])
        same_bits(jitgemm.gemm(a, b[0], **given), one, name)
        same_bits(jitgemm.gemm(a, jitgemm.prepack_rhs(b[0]), **given), one, name)
        other = np.array([exact_gemm(a[0, 0], x, **given) for x in b])
        same_bits(jitgemm.gemm(a[0, 0], b, **given), other, name)
        same_bits(jitgemm.gemm(jitgemm.prepack_lhs(a[0, 0]), b, **given), other, name)
        lists = {x: [given[x]] * 3 for x in ("c", "bias") if x in given}
        for _ in range(2):
            got = jitgemm.gemm_batched(list(a[1]), list(b), **{**given, **lists})
            for x, y in zip(got, want[1], strict=True):
                same_bits(x, y, name)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_handles_are_pickled_and_unpacked(dtype: np.dtype, rng: np.random.Generator) -> None:
    for m, n, k in ((1, 1, 1), (5, 33, 7), (3, 5, 0), (2, 70, 130)):
        a, b = _pair(rng, (dtype, dtype), m, n, k)
        want = exact_gemm(a, b)
        for x, handle in ((a, jitgemm.prepack_lhs(a)), (b, jitgemm.prepack_rhs(b))):
            again = pickle.loads(pickle.dumps(handle))
            for h in (handle, again):
                assert (h.shape, h.dtype) == (x.shape, dtype)
                same_bits(h.unpack(), x)
                got = jitgemm.gemm(h, b) if x is a else jitgemm.gemm(a, h)
                same_bits(got, want, (m, n, k))


def test_lists_of_many_types(rng: np.random.Generator) -> None:
    pairs = [*EIGHT, *LONGER]
    operands = [_pair(rng, p, 3 + i, 20 - i, 5 * i) for i, p in enumerate(pairs)]
    for _ in range(2):
        got = jitgemm.gemm_batched(*map(list, zip(*operands, strict=True)))
        for x, (a, b) in zip(got, operands, strict=True):
            same_bits(x, exact_gemm(a, b))


def test_the_oracle_counts_like_python(rng: np.random.Generator) -> None:
    for pair in (*EIGHT, *LONGER):
        a, b = _pair(rng, pair, 3, 4, 5)
        want = exact_gemm(a, b)
        bits = 8 * want.itemsize
        for i, j in np.ndindex(3, 4):
            total = sum(int(x) * int(y) for x, y in zip(a[i], b[:, j], strict=True))
            assert (int(want[i, j]) - total) % 2**bits == 0
