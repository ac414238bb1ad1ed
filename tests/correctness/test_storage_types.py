"""A storage type added from outside, fp8 e4m3: every route and operand, against exact answers."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import jitgemm
import outside
from oracle import BF16, LAYOUTS, exact_gemm, integers, native, same_bits
from outside import F8, storage_type

Array = np.ndarray[Any, Any]
SINGLE = np.dtype(np.float32)
SIZES = ((1, 1, 1), (1, 33, 9), (2, 17, 520), (5, 64, 8), (16, 33, 7), (70, 65, 33), (3, 1, 40))


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    with storage_type():
        yield


def _wide(x: Any) -> Any:
    return native(x).astype(SINGLE) if isinstance(x, np.ndarray) and x.dtype == F8 else x


def _exact(a: Array, b: Array, **given: Any) -> Array:
    """Exact in f32, then rounded once to what is asked for."""
    wanted = np.dtype(given.pop("out_dtype", SINGLE))
    wide = exact_gemm(_wide(a), _wide(b), **{name: _wide(x) for name, x in given.items()})
    return wide.astype(wanted)


def _pair(rng: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    return integers(rng, (m, k), F8), integers(rng, (k, n), F8)


@pytest.mark.parametrize("out_dtype", [None, F8, BF16, np.float64], ids=str)
def test_every_operand(out_dtype: Any, rng: np.random.Generator) -> None:
    given = {} if out_dtype is None else {"out_dtype": out_dtype}
    for m, n, k in SIZES:
        a, b = _pair(rng, m, n, k)
        want = _exact(a, b, **given)
        # Handles are packed for sums in f32.
        left, right = jitgemm.prepack_lhs(a), jitgemm.prepack_rhs(b)
        if out_dtype is np.float64:
            left, right = a, b
        for x in (a, np.asfortranarray(a), a[::-1].copy()[::-1], left):
            for y in (b, np.asfortranarray(b), np.repeat(b, 2, axis=1)[:, ::2], right):
                if not (x is left and y is right):
                    same_bits(jitgemm.gemm(x, y, **given), want, (m, n, k))
        out = np.zeros_like(want, order="F")
        assert jitgemm.gemm(a, b, out=out, **given) is out
        same_bits(out, want, (m, n, k))
        p = jitgemm.plan(a, right, threads=2, **given)
        same_bits(p(a, right), want, (m, n, k))
        same_bits(jitgemm.gemm(a, b, backend="blas", **given), want, (m, n, k))
        same_bits(jitgemm.gemm(a, right, backend="blas", **given), want, (m, n, k))
    assert "float8_e4m3fn" in p.explain()


def test_results_beyond_the_type_are_rounded(rng: np.random.Generator) -> None:
    a, b = _pair(rng, 9, 40, 33)
    want = _exact(a, b)
    assert (want.astype(F8).astype(SINGLE) != want).any()
    same_bits(jitgemm.gemm(a, b, out_dtype=F8), want.astype(F8))


@pytest.mark.parametrize("backend", ["jit", "blas"])
def test_epilogues(backend: str, rng: np.random.Generator) -> None:
    m, n, k = 6, 37, 9
    a, b = _pair(rng, m, n, k)
    c, bias = integers(rng, (m, n), F8), integers(rng, (n,), F8)
    for out_dtype, x, y in itertools.product((F8, SINGLE), (c, _wide(c)), (bias, _wide(bias))):
        if out_dtype == SINGLE and F8 in (x.dtype, y.dtype):
            continue
        given = {"beta": -2, "c": x, "bias": y, "activation": "relu", "out_dtype": out_dtype}
        same_bits(jitgemm.gemm(a, b, backend=backend, **given), _exact(a, b, **given))
        given = {"bias": y, "activation": jitgemm.clip(-9, 8), "out_dtype": out_dtype}
        same_bits(jitgemm.gemm(a, b, backend=backend, **given), _exact(a, b, **given))


def test_stacks_lists_and_matmul(rng: np.random.Generator) -> None:
    a, b = integers(rng, (2, 3, 5, 9), F8), integers(rng, (3, 9, 20), F8)
    want = np.array([[_exact(a[i, j], b[j]) for j in range(3)] for i in range(2)])
    for _ in range(2):
        same_bits(jitgemm.gemm(a, b), want)
        same_bits(jitgemm.matmul(a, b), want)
        for x, y in zip(jitgemm.gemm_batched(list(a[1]), list(b)), want[1], strict=True):
            same_bits(x, y)
    same_bits(jitgemm.matvec(a[0], b[:, :, 0]), want[0, :, :, 0])
    same_bits(jitgemm.matmul(a, b, dtype=np.float64), want.astype(np.float64))


@pytest.mark.parametrize("other", ["?", "i1", "u1", "i2", "f2", BF16, "f4", "f8"], ids=str)
def test_products_with_other_types(other: Any, rng: np.random.Generator) -> None:
    other = np.dtype(other)
    a, b = integers(rng, (5, 9), F8), np.abs(integers(rng, (9, 20), np.float32)).astype(other)
    kind = np.dtype(np.float64 if other.itemsize == 8 else np.float32)
    want = (a.astype(np.float64) @ b.astype(np.float64)).astype(kind)
    for backend in ("jit", "blas"):
        same_bits(jitgemm.gemm(a, b, backend=backend), want, other)
        same_bits(jitgemm.gemm(b.T, a.T, backend=backend), np.ascontiguousarray(want.T), other)


@pytest.mark.parametrize("layout", [x for x in LAYOUTS if x != "within a wider matrix"])
def test_layouts(layout: str, rng: np.random.Generator) -> None:
    a, b = _pair(rng, 7, 35, 10)
    want = _exact(a, b, out_dtype=F8)
    make = LAYOUTS[layout]
    out = make(np.zeros_like(want))
    assert jitgemm.gemm(make(a), make(b), out=out, out_dtype=F8) is out
    same_bits(out, want)


@pytest.mark.parametrize("backend", ["jit", "blas"])
def test_every_code_is_read_and_written(backend: str) -> None:
    """Subnormal numbers, NaN and all: times 1 every number is itself; -0 becomes +0 in a sum."""
    codes = np.arange(256, dtype=np.uint8)
    every, one = codes.view(F8), np.eye(1, dtype=F8)
    values = every.astype(SINGLE)
    nan = np.isnan(values)
    assert nan.sum() == 2
    for rows, shape in ((every[np.newaxis], (1, 256)), (every[:, np.newaxis], (256, 1))):
        pair = (one, rows) if shape[0] == 1 else (rows, one)
        wide = jitgemm.gemm(*pair, backend=backend).ravel()
        same_bits(wide[~nan], values[~nan] + SINGLE.type(0))
        assert np.isnan(wide[nan]).all()
        back = jitgemm.gemm(*pair, out_dtype=F8, backend=backend).ravel()
        same_bits(back[~nan].astype(SINGLE), values[~nan] + SINGLE.type(0))
        assert np.isnan(back[nan].astype(SINGLE)).all()


@pytest.mark.parametrize("backend", ["jit", "blas"])
def test_rounding_to_the_type(backend: str, rng: np.random.Generator) -> None:
    """To nearest, ties to even, on both sides of every number and every middle of two."""
    finite = np.arange(127, dtype=np.uint8).view(F8).astype(SINGLE)
    middles = np.append((finite[1:] + finite[:-1]) / 2, SINGLE.type(464))
    near = [np.nextafter(x, SINGLE.type(to)) for x in (finite, middles) for to in (-1, 1e9)]
    rest = rng.integers(0, 1 << 32, 4000, dtype=np.uint32).view(SINGLE)
    extremes = np.array([1e-45, 1e-38, 465, 480, 1e30, np.inf, np.nan], SINGLE)
    x = np.concatenate([finite, middles, *near, rest, extremes])
    x = np.concatenate([x, -x])
    with np.errstate(all="ignore"):
        want = (x + SINGLE.type(0)).astype(F8)
    nan = np.isnan(want.astype(SINGLE))
    # Sums of nothing, and a bias: what is rounded is exactly x.
    a, b = np.zeros((1, 0), F8), np.zeros((0, x.size), F8)
    got = jitgemm.gemm(a, b, bias=x, out_dtype=F8, backend=backend)[0]
    same_bits(got[~nan], want[~nan])
    assert np.isnan(got[nan].astype(SINGLE)).all()


def test_handles_are_pickled_and_unpacked(rng: np.random.Generator) -> None:
    a, b = _pair(rng, 5, 33, 7)
    want = _exact(a, b)
    for x, handle in ((a, jitgemm.prepack_lhs(a)), (b, jitgemm.prepack_rhs(b))):
        for h in (handle, pickle.loads(pickle.dumps(handle))):
            same_bits(h.unpack(), x)
            same_bits(jitgemm.gemm(h, b) if x is a else jitgemm.gemm(a, h), want)
    assert handle.nbytes < 33 * 7 * 4


def test_it_is_gone_afterwards_and_may_be_another(rng: np.random.Generator) -> None:
    a, b = _pair(rng, 5, 33, 7)
    handle, want = jitgemm.prepack_rhs(b), _exact(a, b)
    for _ in range(2):
        same_bits(jitgemm.gemm(a, b), want)
    jitgemm.unregister_storage_type(F8)
    try:
        with pytest.raises(TypeError, match=r"^jitgemm: a: expected elements of .*got float8"):
            jitgemm.gemm(a, b)
        with pytest.raises(ValueError, match="known element type, got float8_e4m3fn"):
            pickle.loads(pickle.dumps(handle))
        # Numbers twice as great: other code, in memory and on disk.
        text = outside.WIDEN.replace("0x4770000000000000", "0x4780000000000000")
        double = text, lambda x: outside.widened(x) * SINGLE.type(2)
        half = outside.NARROW, lambda x: outside.narrowed(x / SINGLE.type(2))
        with storage_type(widen=double, narrow=half):
            for _ in range(2):
                same_bits(jitgemm.gemm(a, b), 4 * want)
                same_bits(jitgemm.gemm(a, b, backend="blas"), 4 * want)
            with pytest.raises(TypeError, match=r"^jitgemm: b: expected an array, or an operand"):
                jitgemm.gemm(a, handle)
    finally:
        jitgemm.register_storage_type(F8, **outside.ROW)
    same_bits(jitgemm.gemm(a, b), want)


def test_the_same_row_again_is_no_error() -> None:
    jitgemm.register_storage_type(F8, **outside.ROW)
    with pytest.raises(ValueError, match=r"^jitgemm: dtype: expected a type that is not known"):
        jitgemm.register_storage_type(F8, **{**outside.ROW, "product": ml_dtypes.bfloat16})


def _refused(error: type[Exception], words: str, dtype: Any = F8, **other: Any) -> None:
    with pytest.raises(error, match=words):
        jitgemm.register_storage_type(dtype, **{**outside.ROW, **other})


def test_bad_rows_are_refused() -> None:
    jitgemm.unregister_storage_type(F8)
    for dtype in ("i1", "f2", ml_dtypes.bfloat16, "?"):
        _refused(ValueError, "^jitgemm: dtype: .*not known yet", dtype)
    for dtype in ("f4", "V1", "S2", object, "M8[s]", [("x", "i1")], "no type", 3.5):
        _refused(TypeError, "^jitgemm: dtype: ", dtype)
    _refused(TypeError, "^jitgemm: widen: expected a pair of LLVM text", widen=outside.WIDEN)
    _refused(TypeError, "^jitgemm: narrow: expected a pair", narrow=(outside.NARROW, None))
    _refused(TypeError, "^jitgemm: half: ", half=outside.WIDEN)
    _refused(TypeError, "^jitgemm: product: .*int32", product=np.int32)
    _refused(TypeError, "^jitgemm: out_dtypes: .*complex64", out_dtypes=[np.complex64])
    meaning = outside.widened
    _refused(ValueError, "^jitgemm: widen: .*{q}", widen=("{r} = {q} {a}", meaning))
    _refused(ValueError, "^jitgemm: widen: .*makes {r}", widen=("{t} = bitcast {v} {a}", meaning))
    _refused(ValueError, "^jitgemm: widen: .*float32", widen=(outside.WIDEN, lambda x: x))
    nothing = outside.NARROW, lambda x: np.zeros(x.shape, np.uint8)
    _refused(ValueError, r"^jitgemm: narrow: .*code 0x1", narrow=nothing)
    with pytest.raises(ValueError, match=r"^jitgemm: dtype: .*registered"):
        jitgemm.unregister_storage_type(F8)
    with pytest.raises(ValueError, match=r"^jitgemm: dtype: .*registered"):
        jitgemm.unregister_storage_type(ml_dtypes.bfloat16)
    jitgemm.register_storage_type(F8, **outside.ROW)
