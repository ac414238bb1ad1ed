"""``jitgemm.math`` on arrays: every function, every kind of argument."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest

from jitgemm import math as jm

Array = np.ndarray[Any, Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
UNARY = ("abs", "erf", "exp", "log", "sigmoid", "sqrt", "tanh")
BINARY = ("minimum", "maximum")
OWN = ("erf", "sigmoid")
INTEGERS = [np.dtype(x) for x in ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")]
REALS = [np.dtype(x) for x in ("f2", BF16, "f4", "f8")]
COMPLEX = [np.dtype(x) for x in ("c8", "c16", np.clongdouble)]
LONG = np.dtype(np.longdouble)
# No numbers, or none that are known.
OTHERS = [np.dtype(x) for x in ("O", "U3", "S3", "M8[s]", "m8[s]", ml_dtypes.float8_e4m3fn)]
POINTS = [0, -0.0, 0.25, 1, -1, 3, -3.5, 20, -20, np.inf, -np.inf, np.nan]


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


def _exact(function: Callable[[Any], Any], x: Any) -> Any:
    """By mpmath, with digits to spare."""
    with mpmath.workdps(40):
        if x.dtype.kind == "c":
            return complex(function(mpmath.mpc(complex(x))))
        return float(function(mpmath.mpf(float(x))))


@pytest.mark.parametrize("dtype", [*INTEGERS, *REALS], ids=str)
@pytest.mark.parametrize("name", OWN)
def test_own_functions_of_real_numbers(name: str, dtype: np.dtype) -> None:
    known = {"erf": mpmath.erf, "sigmoid": _sigmoid}[name]
    whole = dtype.kind in "biu"
    x = np.array([0, 1, 3, 20] if whole else POINTS).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = getattr(jm, name)(x)
    kind = np.dtype(np.float64) if whole else dtype
    assert (got.dtype, got.shape) == (kind, x.shape)
    special = {np.inf: 1.0, -np.inf: 0.0 if name == "sigmoid" else -1.0}
    for y, g in zip(x, got, strict=True):
        if np.isnan(float(y)):
            assert np.isnan(float(g))
            continue
        want = special[float(y)] if np.isinf(float(y)) else _exact(known, y)
        # Rounded once from double precision.
        info = ml_dtypes.finfo(kind)
        bound = 2 * float(info.eps) * abs(want) + float(info.smallest_subnormal)
        assert abs(float(g) - want) <= bound, (y, g, want)
    if dtype.isnative and dtype not in (BF16, *INTEGERS):
        foreign = getattr(jm, name)(x.astype(dtype.newbyteorder("S")))
        assert foreign.dtype == dtype
        np.testing.assert_array_equal(foreign, got)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_sigmoid_of_complex_numbers(dtype: np.dtype) -> None:
    components = [0, 0.5, -0.5, 3, -3, 50, -50, 800, -800]
    z = np.array([x + 1j * y for x in components for y in (0, 1, -1, 2.5, 100)]).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = jm.sigmoid(z)
    assert got.dtype == dtype
    eps = float(np.finfo(dtype).eps)
    for x, g in zip(z, got, strict=True):
        want = _exact(_sigmoid, x)
        # Near its poles it is as sensitive as exp(-z) is close to -1.
        bound = 8 * max(eps, 2.3e-16) * abs(want) * max(1, abs(x) * abs(1 - want))
        tiny = float(np.finfo(dtype).tiny)
        assert abs(complex(g) - want) <= bound + tiny, (x, g, want)
    real = np.array(components).astype(dtype)
    np.testing.assert_allclose(jm.sigmoid(real).real, jm.sigmoid(real.real), rtol=4 * eps)
    assert np.isnan(jm.sigmoid(np.array([np.nan + 1j], dtype))).all()


def test_sigmoid_of_long_doubles() -> None:
    x = np.array([0, 1, -1, -700, -5000], LONG)
    got = jm.sigmoid(x)
    assert got.dtype == LONG
    np.testing.assert_allclose(got, np.exp(x) / (1 + np.exp(x)), rtol=8 * np.finfo(LONG).eps)
    if LONG.itemsize > 8:
        assert got[-1] > 0, "there are smaller numbers than doubles"


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("dtype", OTHERS, ids=str)
def test_own_functions_refuse_what_is_no_number(name: str, dtype: np.dtype) -> None:
    x = np.array([0, 1]).astype(dtype)
    for y in (x, x[0] if dtype.kind != "O" else x, x.reshape(1, 2)):
        with pytest.raises(TypeError, match=r"^jitgemm: x: expected real .*numbers.*, got "):
            getattr(jm, name)(y)


def test_erf_refuses_what_it_cannot_compute() -> None:
    bad = [np.array([1j]).astype(t) for t in COMPLEX] + [np.array([0.5], LONG), 1j, [0.5, 1j]]
    for x in bad if LONG != np.float64 else bad[:-3]:
        with pytest.raises(TypeError, match=r"^jitgemm: x: expected .*(real|float64)"):
            jm.erf(x)


@pytest.mark.parametrize("name", OWN)
def test_own_functions_of_objects(name: str) -> None:
    function = getattr(jm, name)
    x = np.array([0.5, -2])
    masked, matrix = np.ma.array(x, mask=[0, 1]), x.view(np.matrix)
    for bad in (masked, matrix, None, "1.5", Fraction(1, 2), Decimal(1), {}, [masked]):
        with pytest.raises(TypeError, match=r"^jitgemm: x: expected "):
            function(bad)
    want = function(x)
    for same in (x.tolist(), tuple(x), memoryview(x), [np.float64(0.5), -2.0]):
        np.testing.assert_array_equal(function(same), want)
    assert type(function(0.5)) is np.float64
    assert function(0.5) == want[0]
    assert type(function(np.float32(0.5))) is np.float32
    assert function(10**30) == 1
    assert function(True) == function(1)
    with pytest.raises(ValueError, match=r"^jitgemm: x: expected numbers a double can hold"):
        function(10**400)
    assert function(np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert math.isnan(function(math.nan))


@pytest.mark.parametrize("dtype", [*INTEGERS, *REALS, LONG, *COMPLEX, *OTHERS[:5]], ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_other_functions_are_those_of_numpy(dtype: np.dtype) -> None:
    x = np.array([0, 1, 3, 2]).astype(dtype)
    y = x[::-1]

    def outcome(function: Callable[..., Any], *operands: Any) -> Any:
        try:
            return function(*operands)
        except TypeError as e:
            return type(e)

    def same(got: Any, want: Any) -> None:
        if isinstance(want, type):
            assert got is want
            return
        assert type(got) is type(want)
        assert got.dtype == want.dtype
        assert str(got) == str(want)

    forms: list[Callable[[Array], Any]] = [lambda v: v, lambda v: v[0]]
    if dtype in REALS and dtype != BF16:
        forms += [lambda v: np.ma.array(v, mask=[0, 1, 0, 0])]
        forms += [lambda v: v.view(np.matrix)]
    for form in forms:
        for name in UNARY:
            if name not in OWN:
                same(outcome(getattr(jm, name), form(x)), outcome(getattr(np, name), form(x)))
        for name in BINARY:
            pair = form(x), form(y)
            same(outcome(getattr(jm, name), *pair), outcome(getattr(np, name), *pair))
    condition = np.array([True, False, True, False])
    same(jm.where(condition, x, y), np.where(condition, x, y))


def test_where_refuses_what_numpy_would_take_for_its_numbers() -> None:
    class Labelled:
        iloc = None

        def __array__(self, *_: Any, **__: Any) -> Array:
            return np.ones(2)

    class Asked:
        def __array_function__(self, function: Any, *_: Any) -> Any:
            return "answer", function

    for bad in (np.ma.array([1.0, 2], mask=[0, 1]), np.ones((1, 2)).view(np.matrix), Labelled()):
        for i, name in enumerate(("condition", "x", "y")):
            arguments: list[Any] = [[True, False], 1.0, np.zeros(2)]
            arguments[i] = bad
            with pytest.raises(TypeError, match=rf"^jitgemm: {name}: expected plain numbers"):
                jm.where(*arguments)
    assert jm.where(True, Asked(), 1.0) == ("answer", np.where)
    assert jm.where(True, 1, 2) == 1
