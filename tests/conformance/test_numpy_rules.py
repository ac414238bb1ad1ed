"""``jitgemm.matmul`` next to ``numpy.matmul``: type, shape, kind of error, and equal values.

Every case asks both and compares what came: integers of small magnitude, so that every value is
exact in every type.  Keywords are in ``test_numpy_keywords.py``.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgemm
from oracle import KERNELS, integers

Array = np.ndarray[Any, Any]

TYPES = "?bBhHiIlLqQefdgFDGO"
SHAPES = [
    (), (0,), (1,), (3,), (0, 0), (1, 1), (3, 0), (0, 3), (2, 3), (3, 2), (1, 3), (3, 1),
    (0, 2, 3), (1, 3, 2), (2, 3, 0), (5, 2, 3), (5, 3, 2), (4, 1, 2, 3), (4, 5, 3, 2), (1, 0, 3, 3),
]  # fmt: skip

# Errors come in subclasses of these; which one is the library's own business.
_ERRORS = (TypeError, ValueError, NotImplementedError)


def _outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What came of a call: the result, or the kind of its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PendingDeprecationWarning)
            return function(*args, **kwargs)
    except _ERRORS as e:
        return next(kind for kind in _ERRORS if isinstance(e, kind))


def _same(x1: Any, x2: Any, what: str = "") -> Any:
    """Assert that both libraries make the same of a pair; return it."""
    want, got = _outcome(np.matmul, x1, x2), _outcome(jitgemm.matmul, x1, x2)
    if isinstance(want, type) or isinstance(got, type):
        assert got is want, what
        return want
    assert type(got) is type(want), what
    if hasattr(want, "dtype"):
        assert got.dtype == want.dtype, what
        assert got.shape == want.shape, what
    np.testing.assert_array_equal(got, want, what)
    return want


def _operand(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    x = integers(rng, shape, np.int8, limit=3)
    return np.asarray(abs(x) if kind in "BHILQ" else x).astype(kind)


@pytest.mark.parametrize("left", TYPES)
@pytest.mark.usefixtures("low")
def test_types(left: str, rng: np.random.Generator) -> None:
    full = (((2, 3), (3, 4)), ((3,), (3,)), ((3,), (2, 3, 4)), ((2, 0), (0, 2)), ((0,), (0,)))
    # Nothing is compiled for these: every pair of types meets them.
    bare = (((0, 3), (3, 4)), ((2, 3), (3, 0)), ((2, 3), (2, 3)), ((), (3,)))
    numbers = {np.dtype(x) for pair in KERNELS for x in pair}
    for right in TYPES:
        pair = np.dtype(left), np.dtype(right)
        few = numbers.issuperset(pair) and pair not in KERNELS
        for s1, s2 in bare if few else (*bare, *full):
            _same(_operand(rng, s1, left), _operand(rng, s2, right), f"{left} @ {right}")


@pytest.mark.parametrize("kind", ["f", "d", ">f", "i"])
def test_shapes(kind: str, rng: np.random.Generator) -> None:
    fits = 0
    for shapes in itertools.product(SHAPES, SHAPES):
        x, y = (_operand(rng, shape, "b").astype(kind) for shape in shapes)
        fits += not isinstance(_same(x, y), type)
    assert fits > len(SHAPES)


@pytest.mark.parametrize("kind", ["M8[s]", "m8[s]", "S3", "U3", "V4", "i4,f4"])
def test_types_without_a_product(kind: str) -> None:
    x, y = np.zeros((2, 2), kind), np.ones((2, 2), np.float32)
    for pair in ((x, x), (x, y), (y, x)):
        _same(*pair)


# -- out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", [((2, 3), (3, 4)), ((3,), (3, 4)), ((2, 3), (3,)),
                                    ((5, 2, 3), (3, 4)), ((2, 3), (0, 3, 4)), ((70, 66), (66, 65)),
                                    ((3,), (3,))])  # fmt: skip
def test_out(shapes: Any, dtype: Any, rng: np.random.Generator) -> None:
    a, b = (integers(rng, s, dtype) for s in shapes)
    want = np.matmul(a, b)
    shape = np.shape(want)

    def holds() -> dict[str, Array]:
        wide = (*shape[:-1], 2 * shape[-1]) if shape else ()
        swapped = np.full(shape[::-1], 7, dtype).T
        return {
            "contiguous": np.full(shape, 7, dtype),
            "every second": np.full(wide, 7, dtype)[..., ::2] if shape else np.full((), 7, dtype),
            "transposed": swapped,
            "backwards": np.full(shape, 7, dtype)[(..., *(slice(None, None, -1) for _ in shape))],
            "foreign byte order": np.full(shape, 7, np.dtype(dtype).newbyteorder("S")),
        }

    for name, out in holds().items():
        assert _outcome(np.matmul, a, b, out=out) is out, name
        out[...] = 7
        assert jitgemm.matmul(a, b, out=out) is out, name
        np.testing.assert_array_equal(out, want, name)


@pytest.mark.parametrize("shapes", [((2, 3), (3, 4)), ((3,), (3, 4)), ((5, 2, 3), (3, 4)),
                                    ((70, 66), (66, 65))])  # fmt: skip
def test_out_that_neither_takes(shapes: Any, dtype: Any, rng: np.random.Generator) -> None:
    a, b = (integers(rng, s, dtype) for s in shapes)
    shape = np.matmul(a, b).shape
    locked = np.full(shape, 7, dtype)
    locked.flags.writeable = False
    for out in (
        np.full((*shape[:-1], shape[-1] + 1), 7, dtype),
        np.full((*shape[:-1], shape[-1] - 1), 7, dtype),
        np.full(shape[1:], 7, dtype),
        np.full(shape, 7, np.int32),
        np.full(shape, True),
        np.broadcast_to(np.full(shape[-1:], 7, dtype), shape) if len(shape) > 1 else locked,
        locked,
    ):
        before = out.copy()
        want = _outcome(np.matmul, a, b, out=out)
        assert isinstance(want, type), f"NumPy takes {out.dtype} {out.shape}"
        assert _outcome(jitgemm.matmul, a, b, out=out) is want
        assert np.array_equal(out, before)
    for nothing in ([[0.0]], 1.0, "out", object(), np.float64(0), range(3)):
        assert _outcome(np.matmul, a, b, out=nothing) is TypeError
        assert _outcome(jitgemm.matmul, a, b, out=nothing) is TypeError


def test_out_of_another_type_or_with_more_leading_axes(
    dtype: Any, rng: np.random.Generator
) -> None:
    a, b = integers(rng, (2, 3), dtype), integers(rng, (3, 4), dtype)
    want = np.matmul(a, b)
    other = np.float64 if dtype == np.float32 else np.float32
    for kind in (other, np.complex64, np.longdouble, object):
        out = np.full((2, 4), 7, kind)
        assert jitgemm.matmul(a, b, out=out) is out
        assert (out == want).all()
    out = np.full((5, 2, 4), 7, dtype)
    assert jitgemm.matmul(a, b, out=out) is out
    assert (out == want).all()
    assert jitgemm.matmul(a, b, (out,)) is out


# -- array-likes ----------------------------------------------------------------------------------


class _Subclass(np.ndarray[Any, Any]):
    """An array with no rules of its own."""


class _Opaque(np.ndarray[Any, Any]):
    """An array that takes no part in ufuncs."""

    __array_ufunc__ = None


class _Answers(np.ndarray[Any, Any]):
    """An array that answers for itself."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return ("answer", ufunc, method, len(inputs), sorted(kwargs))


class _Converts:
    """What ``__array__`` makes of it."""

    def __init__(self, x: Array) -> None:
        self.x = x

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return self.x if dtype is None else self.x.astype(dtype)


class _Wraps(_Converts):
    """Wants its results back in a wrapper."""

    __array_priority__ = 1.0

    def __array_wrap__(self, x: Array, context: Any = None, return_scalar: bool = False) -> Any:  # noqa: FBT001, FBT002
        return (type(self), x.shape, float(x.sum()))


class _Duck(_Converts):
    """No array, but answers for itself; its conversion is nobody's business."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        raise AssertionError("converted before it was asked")

    __array_ufunc__ = _Answers.__array_ufunc__


class _Interface:
    """``__array_interface__`` alone."""

    def __init__(self, x: Array) -> None:
        self.x = x
        self.__array_interface__ = x.__array_interface__


LIKES: dict[str, Callable[[Array], Any]] = {
    "list": lambda x: x.tolist(),
    "tuple": lambda x: tuple(x.tolist()),
    "list of arrays": list,
    "memoryview": memoryview,
    "interface": _Interface,
    "converts": _Converts,
    "wraps": _Wraps,
    "duck": _Duck,
    "subclass": lambda x: x.view(_Subclass),
    "opaque": lambda x: x.view(_Opaque),
    "answers": lambda x: x.view(_Answers),
    "matrix": np.asmatrix,
    "masked": lambda x: np.ma.array(x, mask=x > 2),
    "recarray": lambda x: x.view(np.recarray),
    "read-only": lambda x: np.broadcast_to(x, x.shape),
}


def _alike(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, (tuple, type)):
        assert got == want
        return
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert np.array_equal(np.ma.getmaskarray(got), np.ma.getmaskarray(want))
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("like", LIKES)
def test_array_likes(like: str, dtype: Any, rng: np.random.Generator) -> None:
    make = LIKES[like]
    square, stack, row = (integers(rng, s, dtype) for s in ((3, 3), (2, 3, 3), (3,)))
    odd = integers(rng, (4, 2), dtype)
    for x, y in itertools.product((square, row, odd), (square, stack, row)):
        for pair in ((make(x), y), (y, make(x)), (make(x), make(x))):
            _alike(_outcome(jitgemm.matmul, *pair), _outcome(np.matmul, *pair))


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("like", ["subclass", "opaque", "answers", "matrix", "recarray", "duck"])
def test_array_likes_as_out(like: str, dtype: Any, rng: np.random.Generator) -> None:
    a, b = integers(rng, (3, 3), dtype), integers(rng, (3, 3), dtype)
    mine, theirs = (LIKES[like](np.zeros((3, 3), dtype)) for _ in range(2))
    got = _outcome(jitgemm.matmul, a, b, out=mine)
    want = _outcome(np.matmul, a, b, out=theirs)
    assert (got is mine) == (want is theirs)
    _alike(got, want)


def test_memory_maps_are_multiplied_here(
    tmp_path: Any, dtype: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = integers(rng, (5, 5), dtype)
    mapped = np.memmap(tmp_path / "x", dtype, "w+", shape=x.shape)
    mapped[...] = x
    want = np.matmul(mapped, mapped)
    out = np.memmap(tmp_path / "out", dtype, "w+", shape=x.shape)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("passed on")

    monkeypatch.setattr(np, "matmul", refuse)
    got = jitgemm.matmul(mapped, mapped)
    assert type(got) is type(want) is np.ndarray
    assert np.array_equal(got, want)
    assert jitgemm.matmul(x, mapped, out=out) is out
    assert np.array_equal(out, want)
