"""What ``docs/NUMPY.md`` says is so: its examples are run, and what has none is tried here."""

from __future__ import annotations

import doctest
import os
import pathlib
import re
import warnings
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm.runtime.engine import unavailable
from oracle import BF16, NESTED, ROOT

Array = np.ndarray[Any, Any]

PAGE_NAME = "docs/NUMPY.md"
PAGE = pathlib.Path(ROOT, PAGE_NAME).read_text()
TITLES = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)

pytestmark = [
    pytest.mark.skipif(NESTED in os.environ, reason="the same on all instruction sets"),
    pytest.mark.skipif(bool(unavailable()), reason="the bits of a BLAS are its own"),
]


def _section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _examples(text: str) -> str:
    return "\n".join(re.findall(r"^```pycon\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("title", TITLES)
def test_its_examples(title: str) -> None:
    code = _examples(PAGE.partition("\n## ")[0]) + _examples(_section(title))
    x, y = np.random.default_rng(1).standard_normal((2, 300, 300)).astype(np.float32)
    test = doctest.DocTestParser().get_doctest(code, {"x": x, "y": y}, title, PAGE_NAME, 0)
    assert len(test.examples) > 3, "the section has no example"
    said: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)


# -- Values ---------------------------------------------------------------------------------------


def _pairs(x: Array, y: Array) -> list[tuple[Array, Array]]:
    """Two matrices in every shape that has a route of its own."""
    return [
        (x, y),
        (x[:1], y),
        (x, y[:, :1]),
        (x[0], y),
        (x, y[:, 0]),
        (x[None], y),
        (x[0], y[:, 0]),
    ]


@pytest.mark.parametrize("state", ["raise", "warn", "print", "log", "call"])
def test_floating_point_error_states_have_no_effect(
    state: Any, dtype: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    big, tiny = np.finfo(dtype).max, np.finfo(dtype).tiny
    called: list[Any] = []
    for left, right in ((big, big), (tiny, tiny), (np.inf, 0), (0.1, 0.1)):
        for x, y in _pairs(np.full((3, 3), left, dtype), np.full((3, 3), right, dtype)):
            # What logs is called as well.
            calls = Logger(called) if state == "log" else lambda *x: called.append(x)
            with warnings.catch_warnings(), np.errstate(all=state, call=calls):
                warnings.simplefilter("error")
                got = jitgemm.matmul(x, y)
            with np.errstate(all="ignore"):
                np.testing.assert_allclose(got, np.matmul(x, y), rtol=1e-6)
    assert not called
    assert capfd.readouterr() == ("", "")


class Logger:
    """What ``np.errstate`` writes to."""

    def __init__(self, lines: list[Any]) -> None:
        self.write = lines.append


@pytest.mark.parametrize("k", [1, 3, 600])
def test_signs_of_zero(k: int, dtype: Any, fused: bool) -> None:  # noqa: FBT001
    zero, tiny = np.full((5, k), -0.0, dtype), np.full((5, k), -np.finfo(dtype).tiny, dtype)
    for x, y in _pairs(zero, -tiny.T):
        assert not np.signbit(jitgemm.matmul(x, y)).any()
    for x, y in _pairs(tiny, -tiny.T):
        got = jitgemm.matmul(x, y)
        assert (got == 0).all()
        # One row times one column may give either.
        assert got.ndim == 0 or (np.signbit(got) == fused).all()


# -- Types ----------------------------------------------------------------------------------------


def test_types_of_products_with_bfloat16() -> None:
    one = np.ones((2, 2))[:0]  # nothing is compiled for an empty result
    b = one.astype(BF16)
    for kind in (*"?bBhHiIlLefd", BF16):
        other = one.astype(kind)
        eight = kind is BF16 or other.dtype.itemsize == 1
        want = BF16 if eight else np.matmul(b, other.T).dtype
        for x, y in ((b, other.T), (other, b.T)):
            assert jitgemm.matmul(x, y).dtype == want, kind
            assert jitgemm.gemm(x, y).dtype == want, kind


@pytest.mark.parametrize("kind", ["g", "O"])
def test_types_without_a_kernel(kind: str) -> None:
    x = np.ones((2, 2), kind)
    assert jitgemm.matmul(x, x).dtype == kind
    with pytest.raises(TypeError, match=r"^jitgemm: a: expected"):
        jitgemm.gemm(x, x)


def test_what_a_type_carries_is_dropped() -> None:
    kind = np.dtype(np.float64, metadata={"unit": "m"})
    x = np.ones((2, 2), kind)
    assert jitgemm.matmul(x, x).dtype.metadata is None
    foreign = x.astype(x.dtype.newbyteorder("S"))
    assert jitgemm.matmul(foreign, foreign).dtype.isnative
    assert np.matmul(foreign, foreign).dtype.isnative


# -- Operands, results, functions -----------------------------------------------------------------


class _Function:
    """Takes part in functions, but not in ufuncs."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return np.ones((2, 2))

    def __array_function__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("numpy.matmul is a ufunc")


def test_array_function_plays_no_part() -> None:
    assert (jitgemm.matmul(_Function(), np.ones((2, 2))) == np.full((2, 2), 2)).all()
    assert (np.matmul(_Function(), np.ones((2, 2))) == np.full((2, 2), 2)).all()


def test_a_ufunc_sees_numpys() -> None:
    class Sees:
        def __array_ufunc__(self, ufunc: Any, *args: Any, **kwargs: Any) -> Any:
            return ufunc

    assert jitgemm.matmul(Sees(), np.ones((2, 2))) is np.matmul


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 1, 3, 2), (3, 2, 1, 0)])
def test_a_new_result_is_contiguous(order: tuple[int, ...], dtype: Any) -> None:
    s = np.ones((3, 3, 3, 3), dtype).transpose(order)
    assert jitgemm.matmul(s, s).flags.c_contiguous
    assert jitgemm.matmul(s[0, 0], s[0, 0].T).flags.c_contiguous


def test_numpys_own_matmul_is_left_alone() -> None:
    ufunc = np.matmul
    jitgemm.matmul(np.ones((2, 2)), np.ones((2, 2)))
    assert np.matmul is ufunc
    assert not isinstance(jitgemm.matmul, np.ufunc)
    for name in ("reduce", "outer", "at", "types", "resolve_dtypes"):
        assert not hasattr(jitgemm.matmul, name)
