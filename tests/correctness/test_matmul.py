"""``matmul`` means what NumPy's means: vectors, stacks, ``out``, scalars, and other types."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import jitgemm
from oracle import equal, error_bound, integers, reals, same_bits

Array = np.ndarray[Any, Any]

SHAPES = [
    # vectors
    ((4,), (4,)), ((1,), (1,)), ((0,), (0,)), ((700,), (700,)),
    ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,)), ((0,), (0, 3)),
    ((3, 0), (0,)), ((4,), (4, 0)), ((70,), (70, 90)), ((90, 70), (70,)),
    # matrices
    ((3, 4), (4, 5)), ((1, 1), (1, 1)), ((0, 4), (4, 5)), ((3, 0), (0, 5)), ((3, 4), (4, 0)),
    ((64, 64), (64, 64)), ((65, 64), (64, 64)), ((64, 65), (65, 64)), ((64, 64), (64, 65)),
    ((100, 70), (70, 130)),
    # stacks
    ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 3, 4), (2, 4, 5)), ((1, 3, 4), (6, 4, 5)),
    ((6, 3, 4), (1, 4, 5)), ((2, 1, 3, 4), (5, 4, 6)), ((2, 1, 3, 4), (1, 5, 4, 6)),
    ((0, 3, 4), (4, 5)), ((0, 3, 4), (0, 4, 5)), ((2, 0, 4), (4, 5)), ((2, 3, 0), (0, 5)),
    ((1, 0, 3, 4), (7, 1, 4, 5)), ((2, 2, 2, 2, 2), (2, 2)), ((3, 40, 50), (3, 50, 60)),
]  # fmt: skip


def _ids(shapes: Any) -> str:
    return " @ ".join(str(s).replace(" ", "") for s in shapes)


@pytest.mark.parametrize("shapes", SHAPES, ids=_ids)
@pytest.mark.parametrize("threads", [None, 2])
def test_shapes(shapes: Any, threads: int | None, dtype: Any, rng: np.random.Generator) -> None:
    a, b = (integers(rng, s, dtype) for s in shapes)
    want = np.matmul(a, b)
    got = jitgemm.matmul(a, b, threads=threads)
    assert type(got) is type(want)
    equal(got, want)
    if isinstance(want, np.ndarray):
        out = np.full(want.shape, np.nan, dtype)
        assert jitgemm.matmul(a, b, out, threads=threads) is out
        equal(out, want)
        assert jitgemm.matmul(a, b, out=out) is out


@pytest.mark.parametrize("shapes", SHAPES, ids=_ids)
def test_any_strides_in_stacks(shapes: Any, dtype: Any, rng: np.random.Generator) -> None:
    a, b = (integers(rng, s, dtype) for s in shapes)
    want = np.matmul(a, b)
    backwards = [x[(slice(None, None, -1),) * x.ndim].copy()[(slice(None, None, -1),) * x.ndim]
                 for x in (a, b)]  # fmt: skip
    fortran = [np.asfortranarray(x) for x in (a, b)]
    foreign = [x.astype(x.dtype.newbyteorder("S")) for x in (a, b)]
    wide = [np.repeat(x, 2, axis=-1)[..., ::2] for x in (a, b)]
    for x, y in (backwards, fortran, foreign, wide, (fortran[0], foreign[1])):
        equal(jitgemm.matmul(x, y), want)
    if isinstance(want, np.ndarray) and want.ndim:
        out = np.full((*want.shape[:-1], 2 * want.shape[-1]), np.nan, dtype)[..., ::2]
        assert jitgemm.matmul(a, b, out) is out
        equal(out, want)
        foreign_out = np.zeros(want.shape, np.dtype(dtype).newbyteorder("S"))
        assert jitgemm.matmul(a, b, foreign_out) is foreign_out
        equal(foreign_out, want)


def test_broadcast_stacks_of_reals(dtype: Any, rng: np.random.Generator) -> None:
    a, b = reals(rng, (3, 1, 5, 40), dtype), reals(rng, (2, 40, 7), dtype)
    got = jitgemm.matmul(a, b)
    assert got.shape == (3, 2, 5, 7)
    for i in range(3):
        for j in range(2):
            same_bits(got[i, j], jitgemm.gemm(a[i, 0], b[j]))
            wide = np.longdouble if dtype == np.float64 else np.float64
            true = a[i, 0].astype(wide) @ b[j].astype(wide)
            assert (np.abs(got[i, j] - true) <= error_bound(a[i, 0], b[j])).all()


def test_stacks_over_their_own_result(dtype: Any, rng: np.random.Generator) -> None:
    a = integers(rng, (4, 6, 6), dtype)
    want = np.matmul(a, a[::-1])
    assert jitgemm.matmul(a, a[::-1], a) is a
    equal(a, want)
    x = integers(rng, (6,), dtype)
    want = np.matmul(a[0], x)
    assert jitgemm.matmul(a[0], x, x) is x
    equal(x, want)


def test_results_are_fresh_and_contiguous(dtype: Any, rng: np.random.Generator) -> None:
    for shapes in (((3, 4), (4, 5)), ((70, 70), (70, 70)), ((2, 3, 4), (4, 5)), ((4,), (4, 5))):
        a, b = (np.asfortranarray(integers(rng, s, dtype)) for s in shapes)
        got = jitgemm.matmul(a, b)
        assert got.flags.c_contiguous
        assert got.flags.writeable
        assert got.flags.aligned
        assert got.dtype == dtype
        assert not np.may_share_memory(got, a)
        assert jitgemm.matmul(a, b) is not got


@pytest.mark.parametrize("unit", [np.asarray, np.float32, lambda x: x])
def test_scalars_are_refused_as_by_numpy(unit: Any) -> None:
    for args in ((unit(1.0), np.ones(1)), (np.ones(1), unit(1.0)), (unit(1.0), unit(1.0))):
        with pytest.raises(ValueError):  # noqa: PT011 - either library words it
            jitgemm.matmul(*args)
        with pytest.raises(ValueError):  # noqa: PT011
            np.matmul(*args)


OTHERS = ("i1", "u1", "i2", "i4", "u4", "i8", "u8", "?", "f2", "c8", "c16", "g", "O")


@pytest.mark.parametrize("left, right", [*((t, t) for t in OTHERS), ("f4", "f8"), ("f8", "f4"),
                                         ("f4", "c8"), ("i4", "f4"), ("f4", "f2"), ("u1", "i1"),
                                         ("f8", "O"), ("?", "f8")])  # fmt: skip
def test_other_types_are_as_numpys(left: str, right: str, rng: np.random.Generator) -> None:
    for shapes in (((3, 4), (4, 5)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((70, 70), (70, 70))):
        a, b = (rng.integers(0, 3, s).astype(t) for s, t in zip(shapes, (left, right), strict=True))
        want, got = np.matmul(a, b), jitgemm.matmul(a, b)
        assert type(got) is type(want)
        assert np.asarray(got).dtype == np.asarray(want).dtype
        assert np.array_equal(got, want)
        if isinstance(want, np.ndarray):
            out = np.zeros_like(want)
            assert jitgemm.matmul(a, b, out) is out
            assert np.array_equal(out, want)


def test_other_types_wrap_and_raise_as_numpys() -> None:
    a = np.full((2, 40), 127, np.int8)
    assert np.array_equal(jitgemm.matmul(a, a.T), np.matmul(a, a.T))
    fractions = np.array([[Fraction(1, 3), Fraction(1, 7)]])
    assert jitgemm.matmul(fractions, fractions.T)[0, 0] == Fraction(1, 9) + Fraction(1, 49)
    with pytest.raises(ValueError, match=r"^jitgemm: x2: expected 3 rows"):
        jitgemm.matmul(np.ones((2, 3), int), np.ones((2, 3), int))
    with pytest.raises(TypeError):
        jitgemm.matmul(np.array([["a"]]), np.array([["b"]]))
    for nothing in (None, {}, object()):
        with pytest.raises((TypeError, ValueError)) as theirs:
            np.matmul(nothing, nothing)
        with pytest.raises(theirs.type):
            jitgemm.matmul(nothing, nothing)


def test_lists_are_doubles() -> None:
    equal(jitgemm.matmul([1.0, 2.0], [[1.0], [3.0]]), np.array([7.0]))
    got = jitgemm.matmul([[1, 2]], [[3], [4]])
    assert got.dtype == np.matmul([[1, 2]], [[3], [4]]).dtype
    assert got.item() == 11


def test_arguments_are_positional_like_numpys() -> None:
    a = np.ones((2, 2))
    with pytest.raises(TypeError):
        jitgemm.matmul(x1=a, x2=a)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        jitgemm.matmul(a)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        jitgemm.matmul(a, a, a, 2)  # type: ignore[misc]


def test_types_with_metadata_are_the_same_types(rng: np.random.Generator) -> None:
    # Equal types that are not NumPy's own instance, as pickles and structured views bring them.
    a, b = integers(rng, (5, 6), np.float32), integers(rng, (6, 7), np.float32)
    named = np.dtype(np.float32, metadata={"unit": "m"})
    for x, y in ((a.astype(named), b), (a, b.astype(named)), (a.astype(named), b.astype(named))):
        for _ in range(2):
            equal(jitgemm.matmul(x, y), np.matmul(a, b))
            equal(jitgemm.gemm(x, y), np.matmul(a, b))
            equal(jitgemm.gemm(x, jitgemm.prepack_rhs(y)), np.matmul(a, b))
            equal(jitgemm.matmul(x, y, np.empty((5, 7), np.float32)), np.matmul(a, b))


@pytest.mark.parametrize("size", [1, 63, 64, 65])
def test_both_sides_of_the_limit_of_small_products(
    size: int, dtype: Any, rng: np.random.Generator
) -> None:
    for m, n, k in ((size, 3, 3), (3, size, 3), (3, 3, size), (size, size, size)):
        a, b = reals(rng, (m, k), dtype), reals(rng, (k, n), dtype)
        same_bits(jitgemm.matmul(a, b), jitgemm.gemm(a, b))
        same_bits(jitgemm.matmul(a, b), jitgemm.gemm(np.asfortranarray(a), b))
