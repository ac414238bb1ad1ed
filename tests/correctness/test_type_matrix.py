"""The matrix of types: every pair of real types, result types, types of C and bias."""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import numpy as np
import pytest

import jitgemm
from oracle import (
    BF16,
    HALVES,
    INTEGERS,
    KERNELS,
    NARROW,
    REALS,
    anything,
    exact_gemm,
    product_type,
    same_bits,
    sum_type,
)  # fmt: skip

Array = np.ndarray[Any, Any]
COMPLEX = (np.dtype(np.complex64), np.dtype(np.complex128))

pytestmark = pytest.mark.usefixtures("low")


def _holds(result: np.dtype, own: np.dtype) -> bool:
    """Whether a result may be asked for in another type than its own: nothing is lost."""
    if own == result:
        return True
    if own == BF16:
        return result in (np.float32, np.float64)
    return result != BF16 and result.kind == own.kind and np.can_cast(own, result, "safe")


def _operand(shape: tuple[int, ...], dtype: np.dtype, *, whole: bool) -> Array:
    rng = np.random.default_rng(zlib.crc32(f"{shape} {dtype}".encode()))
    if whole:
        return anything(rng, shape, dtype)
    low, high = (0 if dtype.kind in "ub" else -2), (2 if dtype.kind == "b" else 3)
    return rng.integers(low, high, shape).astype(dtype)


def _pair(a: np.dtype, b: np.dtype, m: int = 5, n: int = 18, k: int = 7) -> tuple[Array, Array]:
    whole = product_type(a, b).kind in "iub"
    return _operand((m, k), a, whole=whole), _operand((k, n), b, whole=whole)


# Types are compared for all pairs, on operands without rows: nothing is compiled.
pairs = pytest.mark.parametrize("pair", KERNELS, ids=lambda p: f"{p[0]}@{p[1]}")


@pytest.mark.parametrize("left", REALS, ids=str)
def test_every_pair_has_its_type(left: np.dtype) -> None:
    for right in REALS:
        a, b = np.ones((0, 3), left), np.ones((3, 4), right)
        got = jitgemm.gemm(a, b)
        assert (got.shape, got.dtype) == ((0, 4), product_type(left, right))
        for wanted in (*REALS, *COMPLEX):
            if _holds(wanted, got.dtype):
                assert jitgemm.gemm(a, b, out_dtype=wanted).dtype == wanted
                assert jitgemm.gemm(a, b, out_dtype=wanted, out=np.ones((0, 4), wanted)).size == 0
                continue
            for call in (jitgemm.gemm, jitgemm.plan):
                with pytest.raises(TypeError, match=r"^jitgemm: out_dtype: expected .*, got "):
                    call(a, b, out_dtype=wanted)


@pytest.mark.parametrize("left", REALS, ids=str)
def test_every_type_of_c_and_bias_is_taken_or_refused(left: np.dtype) -> None:
    for right, kind in itertools.product(REALS, (*REALS, *COMPLEX)):
        a, b = np.ones((0, 3), left), np.ones((3, 4), right)
        own = product_type(left, right)
        for name, given in (("c", {"c": np.ones((0, 4), kind), "beta": 1}),
                            ("bias", {"bias": np.ones(4, kind)})):  # fmt: skip
            if kind in (own, sum_type(own)):
                assert jitgemm.gemm(a, b, **given).dtype == own
                continue
            with pytest.raises(TypeError, match=rf"^jitgemm: {name}: expected .*, got {kind}"):
                jitgemm.gemm(a, b, **given)


@pairs
def test_values(pair: tuple[np.dtype, np.dtype]) -> None:
    a, b = _pair(*pair)
    same_bits(jitgemm.gemm(a, b), exact_gemm(a, b))


@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_values_of_every_result_type_c_and_bias(dtype: np.dtype) -> None:
    a, b = _pair(dtype, dtype)
    own = product_type(dtype, dtype)
    for wanted in REALS:
        if _holds(wanted, own):
            want = exact_gemm(a, b, out_dtype=wanted)
            same_bits(jitgemm.gemm(a, b, out_dtype=wanted), want, wanted)
    for kind in {own, sum_type(own)}:
        c, bias = np.ones((5, 18), kind), np.ones(18, kind)
        want = exact_gemm(a, b, beta=1, c=c, bias=bias)
        same_bits(jitgemm.gemm(a, b, beta=1, c=c, bias=bias), want, kind)


@pytest.mark.parametrize("kind", COMPLEX, ids=str)
def test_complex_numbers_meet_their_own_type_only(kind: np.dtype) -> None:
    x = np.ones((3, 3), kind)
    for other in (*REALS, *(y for y in COMPLEX if y != kind)):
        y = np.ones((3, 3), other)
        for a, b in ((x, y), (y, x)):
            with pytest.raises(TypeError, match=r"^jitgemm: b: expected .* like a, got "):
                jitgemm.gemm(a, b)
            if other != BF16:  # which NumPy does not multiply
                got, want = jitgemm.matmul(a, b), np.matmul(a, b)
                same_bits(got, want)


def _numpys(a: Array, b: Array) -> Array | None:
    """What NumPy's matmul makes of two operands, if it has a loop for them."""
    try:
        return np.asarray(np.matmul(a, b))
    except TypeError:
        return None


@pytest.mark.parametrize("left", REALS, ids=str)
def test_matmul_has_numpys_types(left: np.dtype) -> None:
    for right in REALS:
        a, b = np.ones((0, 3), left), np.ones((3, 4), right)
        want = _numpys(a, b)
        if BF16 in (left, right):
            # What NumPy does with bfloat16, if anything, is up to its package.
            assert jitgemm.matmul(a, b).dtype == product_type(left, right)
        elif want is not None:
            assert jitgemm.matmul(a, b).dtype == want.dtype
            assert jitgemm.matmul(a, b, np.zeros_like(want)).dtype == want.dtype


@pairs
def test_matmul_has_numpys_values(pair: tuple[np.dtype, np.dtype]) -> None:
    left, right = pair
    whole = BF16 not in pair and np.result_type(left, right).kind in "iub"
    a, b = _operand((5, 7), left, whole=whole), _operand((7, 18), right, whole=whole)
    if BF16 in pair:
        same_bits(jitgemm.matmul(a, b), exact_gemm(a, b))
        return
    want = _numpys(a, b)
    if want is None:
        pytest.skip("NumPy has no loop for them")
    same_bits(jitgemm.matmul(a, b), want)
    if left == right:
        same_bits(jitgemm.matmul(a, np.asfortranarray(b)), want)
        same_bits(jitgemm.matmul(np.stack([a, a]), np.stack([b, b]))[1], want)
        vector = jitgemm.matmul(a[0], b[:, 0])
        assert type(vector) is type(np.matmul(a[0], b[:, 0]))
        assert vector == want[0, 0]


@pairs
def test_handles_serve_the_partners_they_fit(pair: tuple[np.dtype, np.dtype]) -> None:
    a, b = _pair(*pair)
    want = exact_gemm(a, b)
    for left, right in ((a, jitgemm.prepack_rhs(b)), (jitgemm.prepack_lhs(a), b)):
        try:
            got = jitgemm.gemm(left, right)
        except TypeError as e:
            # For sums of another length numbers are stored otherwise.
            assert pair[0] != pair[1], pair
            assert "packed for sums with" in str(e)  # noqa: PT017
            continue
        same_bits(got, want, pair)


def test_the_types_are_all_there_are() -> None:
    assert len(set(REALS)) == len(INTEGERS) + len(HALVES) + 2
    assert set(NARROW) <= set(INTEGERS)
    for letter in np.typecodes["All"]:
        kind = np.dtype(letter)
        if kind in REALS or kind in COMPLEX or kind.kind in "SUVmMO":
            continue
        with pytest.raises(TypeError, match=r"^jitgemm: a: "):
            jitgemm.gemm(np.ones((2, 2), kind), np.ones((2, 2)))
