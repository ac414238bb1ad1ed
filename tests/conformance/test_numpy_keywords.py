"""``matmul``, ``matvec``, ``vecmat`` and ``vecdot`` next to NumPy's, with all their keywords.

Every case asks both libraries.  Operands are small integers, so that every value is exact.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm.api import ufuncs
from oracle import integers, reals, same_bits

Array = np.ndarray[Any, Any]

CORES = {"matmul": (2, 2), "matvec": (2, 1), "vecmat": (1, 2), "vecdot": (1, 1)}
NAMES = tuple(CORES)
newest = pytest.mark.skipif(not hasattr(np, "matvec"), reason="NumPy has no such function yet")

# Errors come in subclasses of these; the first that fits is compared.
_ERRORS = (np.exceptions.AxisError, TypeError, ValueError, NotImplementedError)


def _outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What came of a call: the result, or the kind of its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*args, **kwargs)
    except _ERRORS as e:
        return next(kind for kind in _ERRORS if isinstance(e, kind))


def _alike(got: Any, want: Any, what: object, *, strides: bool = False) -> None:
    if isinstance(want, type) or isinstance(got, type):
        assert got is want, what
        return
    assert type(got) is type(want), what
    assert np.shape(got) == np.shape(want), what
    assert getattr(got, "dtype", None) == getattr(want, "dtype", None), what
    assert np.array_equal(got, want), what
    if strides and isinstance(want, np.ndarray):
        assert got.strides == want.strides, what


def _same(name: str, args: tuple[Any, ...], keywords: dict[str, Any], out: Any = None) -> Any:
    """Assert that both libraries make the same of a call; return it."""
    mine = theirs = keywords
    if out is not None:
        mine, theirs = {**keywords, "out": out.copy()}, {**keywords, "out": out.copy()}
    want = _outcome(getattr(np, name), *args, **theirs)
    got = _outcome(getattr(jitgemm, name), *args, **mine)
    shapes = [getattr(x, "shape", x) for x in (*args, out)]
    what = f"{name} {shapes} {[getattr(x, 'dtype', None) for x in (*args, out)]} {keywords}"
    _alike(got, want, what, strides="order" in keywords and out is None)
    if out is not None:
        assert (got is mine["out"]) == (want is theirs["out"]), what
        # After an error nothing has been written.
        assert np.array_equal(mine["out"], theirs["out"] if got is mine["out"] else out), what
    return want


def _fill(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    return np.asarray(integers(rng, shape, np.int8, limit=2)).astype(kind)


def _rolled(x: Array) -> Array:
    """The first axis innermost in memory."""
    return np.moveaxis(np.moveaxis(x, 0, -1).copy(), -1, 0)


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "c": np.ascontiguousarray,
    "f": np.asfortranarray,
    "backwards": lambda x: x[(slice(None, None, -1),) * x.ndim].copy()[
        (slice(None, None, -1),) * x.ndim
    ],
    "rolled": _rolled,
    "wide": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
}

SHAPES = [(3,), (1,), (3, 3), (2, 3), (3, 2), (2, 3, 3), (1, 3, 3), (4, 1, 3, 3), (0, 3), (2, 0, 3)]

KEYWORDS: list[dict[str, Any]] = [
    *({"order": order} for order in ("K", "A", "C", "F", None)),
    {}, {"dtype": "f"}, {"dtype": "d"}, {"dtype": ">d"}, {"dtype": "F"}, {"dtype": int},
    {"dtype": int, "casting": "unsafe"}, {"dtype": None}, {"casting": "no"}, {"casting": "safe"},
    {"sig": "ff->f"}, {"signature": "dd->d", "order": "F"}, {"signature": (None, None, "d")},
    {"axes": [(0, 1), (0, 1), (0, 1)]}, {"axes": [(-1, -2), (-2, -1), (1, 0)]},
    {"axes": [(0, 2), (0, 1), (0, 1)], "order": "A"}, {"axes": [0, 0]}, {"axes": [0, 0, ()]},
    {"axes": [(0, 1), 0, 0]}, {"axes": [0, (1, 0), 0]}, {"axes": [0, (1, 0), -1], "order": "F"},
    {"axis": 0}, {"axis": -2}, {"axis": 0, "keepdims": True}, {"keepdims": True, "order": "F"},
    {"keepdims": False}, {"keepdims": True, "axes": [0, 0]}, {"keepdims": True, "axes": [0, 0, 0]},
    {"subok": False}, {"out": (None,)}, {"where": True},
]  # fmt: skip

PAIRS = ["ff", "dd", ">ff", "fd", "FF", "ii"]


def _pairs() -> Iterator[tuple[str, str]]:
    """Types in turn: each case meets two."""
    types = [np.dtype(p[:-1]).str + " " + np.dtype(p[-1]).str for p in PAIRS]
    for pair in itertools.cycle(types):
        left, right = pair.split()
        yield left, right


@newest
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("low")
def test_keywords(name: str, layout: str, rng: np.random.Generator) -> None:
    pairs, computed = _pairs(), 0
    make = LAYOUTS[layout]
    for s1, s2 in itertools.product(SHAPES, SHAPES):
        if min(len(s1), CORES[name][0]) + min(len(s2), CORES[name][1]) < 2:
            continue
        for keywords in KEYWORDS:
            left, right = next(pairs)
            args = make(_fill(rng, s1, left)), make(_fill(rng, s2, right))
            computed += not isinstance(_same(name, args, keywords), type)
    assert computed > 300


OUTS = [(), (3,), (3, 3), (2, 3), (5, 2, 3), (2, 3, 3), (1, 3), (2, 3, 1), (4, 2, 3, 3), (0, 3)]


@newest
# Into objects NumPy's own vecmat writes numbers that are not there (2.4).
@pytest.mark.parametrize("kind", ["f", "d", "i", ">f", "F", "g"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("low")
def test_out(name: str, kind: str, rng: np.random.Generator) -> None:
    pairs, written = _pairs(), 0
    for s1, s2, shape in itertools.product(SHAPES, SHAPES, OUTS):
        left, right = next(pairs)
        args = _fill(rng, s1, left), _fill(rng, s2, right)
        for keywords in ({}, {"casting": "unsafe"}, {"order": "F"}):
            out = np.full(shape, 7, kind)
            written += not isinstance(_same(name, args, keywords, out), type)
    assert written > 50


@newest
@pytest.mark.parametrize("name", NAMES)
def test_out_along_other_axes(name: str, rng: np.random.Generator) -> None:
    first, second = CORES[name]
    for keywords in KEYWORDS:
        if not keywords.keys() & {"axes", "axis", "keepdims"}:
            continue
        for s1, s2, shape in itertools.product(
            [(2, 3, 3), (3, 3), (3,)][: 4 - first], [(3, 3), (2, 3, 3), (3,)][: 4 - second], OUTS
        ):
            if len(shape) < first + second - 2:
                continue  # two faults, or what matmul makes of a result that lacks axes
            args = _fill(rng, s1, "f"), _fill(rng, s2, "f")
            for kind in "fd":
                _same(name, args, keywords, np.full(shape, 7, kind))


M, V, T = np.ones((3, 3), np.float32), np.ones(3, np.float32), np.ones((2, 3, 3))
frozen = np.ones((3, 3), np.float32)
frozen.flags.writeable = False

BAD: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *((name, (M, M), keywords) for name in NAMES for keywords in (
        {"casting": "bogus"}, {"casting": None}, {"order": "bogus"}, {"order": 1}, {"subok": 1},
        {"subok": "no"}, {"dtype": "bogus"}, {"dtype": int}, {"sig": "d"},
        {"sig": "d", "dtype": "d"}, {"sig": "d", "signature": "d"}, {"sig": None, "dtype": None},
        {"signature": "ff->d"},
        {"sig": ("f", "d")}, {"sig": ["f", "f", "f"]}, {"sig": ("d", None, None)},
        {"where": True}, {"bogus": 1}, {"out": ()}, {"out": (None, None)}, {"out": [M]},
        {"out": 1.0}, {"out": "out"}, {"axes": 1}, {"axes": None}, {"axes": []},
        {"axes": (0, 0, 0)},
        {"axes": [None, None, None]}, {"axes": [0.0, 0.0, 0.0]}, {"axes": [[0, 1]] * 3},
        {"axes": [(0, 1)]}, {"axes": [(0, 1, 2)] * 3}, {"axes": [0, 0, 0], "axis": 0},
        {"axis": None}, {"axis": (0,)}, {"axis": 5}, {"axis": -3}, {"keepdims": 1},
        {"keepdims": None}, {"keepdims": "yes"}, {"casting": "no", "dtype": "d"},
        {"casting": "equiv", "dtype": "d"}, {"out": np.zeros((3, 3), "i")},
        {"out": np.zeros((2, 3, 2), "f")}, {"out": np.zeros((3, 3), "?")},
    )),
    *((name, args, {}) for name in NAMES for args in (
        (M,), (), (M, M, M.copy(), M.copy()), (M, 1.0), (1.0, M), (V, 1.0), (M, None), (M, "x"),
        (M, M[:2, :2]), (V, V[:2]), (M, V[:2]), (V[:2], M), (T, np.ones((3, 3, 3))), (M, {}),
    )),
    ("matmul", (M, M), {"axes": [(0, 1), (0, 1), (0, 5)]}),
    ("matmul", (M, M), {"axes": [(0, 1), (0, 1), (0, 0)]}),
    ("matmul", (M, M), {"axes": [(0, 1), (0, 1), 0]}),
    ("matmul", (M, M), {"axes": [(0, 1), (0, 1)]}),
    ("matmul", (V, V), {"axes": [0, 0]}),
    ("matmul", (M, M), {"out": frozen}),
    ("matvec", (M, V), {"axes": [(0, 1), 0]}),
    ("matvec", (V, V), {}),
    ("vecmat", (V, V), {}),
    ("vecmat", (V, M), {"axes": [0, (0, 0), 0]}),
    ("vecdot", (M, M), {"axes": [0, 0, 0]}),
    ("vecdot", (M, M), {"axes": [0, 7]}),
]  # fmt: skip


@newest
@pytest.mark.parametrize("name", NAMES)
def test_bad_calls_are_refused_with_the_same_kind_of_error(name: str) -> None:
    refused = 0
    for function, args, keywords in BAD:
        if function == name:
            out = keywords.get("out")
            before = out.copy() if isinstance(out, np.ndarray) else None
            refused += isinstance(_same(name, args, keywords), type)
            assert before is None or np.array_equal(out, before)
    assert refused > 40


def test_casts_are_refused_with_numpys_own_errors() -> None:
    for keywords in ({"dtype": "d", "casting": "no"}, {"out": np.zeros((3, 3), "i")}):
        for name in NAMES:
            with pytest.raises(TypeError) as mine:
                getattr(jitgemm, name)(M, M, **keywords)
            with pytest.raises(TypeError) as theirs:
                np.matmul(M, M, **keywords)
            assert type(mine.value) is type(theirs.value)


# -- the same bits --------------------------------------------------------------------------------

LENGTHS = (1, 2, 3, 8, 31, 64, 65, 130, 700)


def test_vectors_are_matrices_of_one_row_or_column(dtype: Any, rng: np.random.Generator) -> None:
    for m, k in itertools.product((1, 2, 7, 64, 65), LENGTHS):
        a, x = reals(rng, (m, k), dtype), reals(rng, (k,), dtype)
        for _ in range(2):  # the second call enters generated code
            column = jitgemm.gemm(a, x[:, None])[:, 0]
            row = jitgemm.gemm(x[None], np.asfortranarray(a).T)[0]
            same_bits(jitgemm.matvec(a, x), column, (m, k))
            same_bits(jitgemm.matmul(a, x), column, (m, k))
            same_bits(jitgemm.matmul(a, x[:, None]), column[:, None], (m, k))
            same_bits(jitgemm.matvec(np.asfortranarray(a), x), column, (m, k))
            same_bits(jitgemm.vecmat(x, a.T), row, (m, k))
            same_bits(jitgemm.vecmat(x, a.T.copy()), row, (m, k))
            same_bits(jitgemm.matmul(x, a.T.copy()), row, (m, k))


def test_vecdot_is_one_row_times_one_column(dtype: Any, rng: np.random.Generator) -> None:
    for m, k in itertools.product((1, 5), LENGTHS):
        a, b = reals(rng, (m, k), dtype), reals(rng, (m, k), dtype)
        wide = np.repeat(b, 2, axis=1)[:, ::2]
        for y in (b, b[0]):
            rows = np.broadcast_to(y, a.shape)
            want = np.array([jitgemm.gemm(u[None], v[:, None])[0, 0]
                             for u, v in zip(a, rows, strict=True)])  # fmt: skip
            same_bits(jitgemm.vecdot(a, y), want, (m, k))
            same_bits(jitgemm.vecdot(y, a), jitgemm.vecdot(rows.copy(), a), (m, k))
            same_bits(jitgemm.vecdot(a[0], y if y.ndim == 1 else y[0]), want[0], (m, k))
        same_bits(jitgemm.vecdot(a, wide), jitgemm.vecdot(a, b), (m, k))
        same_bits(jitgemm.vecdot(a.T, b.T, axis=0), jitgemm.vecdot(a, b), (m, k))


def test_first_operands_are_conjugated(rng: np.random.Generator) -> None:
    a = reals(rng, (6, 9), np.complex64)
    x = reals(rng, (9,), np.complex64)
    same_bits(jitgemm.vecmat(x, a.T), jitgemm.gemm(x[None], a.T, conj_a=True)[0])
    same_bits(jitgemm.vecdot(x, a[0]), jitgemm.gemm(x[None], a[:1].T, conj_a=True)[0, 0])
    same_bits(jitgemm.matvec(a, x), jitgemm.gemm(a, x[:, None])[:, 0])
    assert (jitgemm.vecdot(a, a).imag == 0).all()


# -- generated code -------------------------------------------------------------------------------


def _small(rng: np.random.Generator, dtype: Any) -> dict[str, tuple[str, tuple[Array, ...]]]:
    """Calls that never leave generated code, but for the first."""
    a, b = integers(rng, (64, 60), dtype), integers(rng, (60, 33), dtype)
    x, y = integers(rng, (60,), dtype), integers(rng, (64,), dtype)
    long = integers(rng, (5000,), dtype)
    return {
        "matrices": ("matmul", (a, b)),
        "one column": ("matmul", (a, b[:, :1].copy())),
        "one row": ("matmul", (a[:1], b)),
        "one row and one column": ("matmul", (a[:1], b[:, :1].copy())),
        "matrix and vector": ("matmul", (a, x)),
        "vector and matrix": ("matmul", (y, a)),
        "vectors": ("matmul", (x, x)),
        "long vectors": ("matmul", (long, long)),
        "matvec": ("matvec", (a, x)),
        "vecmat": ("vecmat", (y, a)),
        "vecdot": ("vecdot", (x, x)),
        "vecdot of rows": ("vecdot", (a, a)),
        "vecdot of rows and a vector": ("vecdot", (a, x)),
        "vecdot of a vector and rows": ("vecdot", (x, a)),
        "depth 1": ("matmul", (a[:, :1].copy(), b[:1])),
        "a matrix of one column and a vector": ("matvec", (a[:, :1].copy(), x[:1].copy())),
        "single numbers": ("vecdot", (x[:1].copy(), x[:1].copy())),
    }


def test_small_calls_stay_in_generated_code(
    dtype: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not jitgemm.show_config()["native_entry"]:
        pytest.skip("no generated entries here")
    calls = _small(rng, dtype)
    for name, args in calls.values():
        getattr(jitgemm, name)(*args)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("left generated code")

    monkeypatch.setattr(ufuncs, "Call", refuse)
    for what, (name, args) in calls.items():
        want = np.matmul(*args) if name != "vecdot" else np.einsum("...i,...i", *args)
        got = getattr(jitgemm, name)(*args)
        assert np.array_equal(got, want), what
        assert np.shape(got) == np.shape(want), what
        assert isinstance(got, np.ndarray) == bool(np.ndim(want)), what
        assert got.dtype == dtype, what
        out = np.full(np.shape(want), 7, dtype)
        assert getattr(jitgemm, name)(*args, out=out) is out, what
        assert np.array_equal(out, want), what
    with pytest.raises(AssertionError, match="left generated code"):
        jitgemm.matmul(calls["matrices"][1][0].T, calls["vecmat"][1][1])


def test_results_over_operands(dtype: Any, rng: np.random.Generator) -> None:
    for n in (3, 20):
        a, x = integers(rng, (n, n), dtype), integers(rng, (n,), dtype)
        for name, args, at in (("matvec", (a, x), 1), ("vecmat", (x, a), 0), ("vecdot", (a, x), 1),
                               ("matmul", (a, x), 1), ("matmul", (x, a), 0)):  # fmt: skip
            want = getattr(jitgemm, name)(*args)
            mine = [y.copy() for y in args]
            assert getattr(jitgemm, name)(*mine, out=mine[at]) is mine[at]
            assert np.array_equal(mine[at], want)
            mine = [y.copy() for y in args]
            rows = next(y for y in mine if y.ndim == 2)[0]
            getattr(jitgemm, name)(*mine, rows)
            assert np.array_equal(rows, want)


# -- handles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["f", "b", "F"])
def test_handles_multiply_as_what_they_hold(kind: str, rng: np.random.Generator) -> None:
    a, b = (integers(rng, s, np.dtype(kind), limit=4) for s in ((5, 4), (4, 6)))
    left, right = jitgemm.prepack_lhs(a), jitgemm.prepack_rhs(b)
    rows, stack = np.stack([a, a[::-1]]), np.stack([b, b[::-1]])
    cases: list[tuple[str, Callable[[], Any], Array]] = [
        ("matmul", lambda: jitgemm.matmul(a, right), np.matmul(a, b)),
        ("matmul from the left", lambda: jitgemm.matmul(left, b), np.matmul(a, b)),
        ("operator", lambda: a @ right, a @ b),
        ("operator from the left", lambda: left @ b, a @ b),
        ("vector", lambda: a[0] @ right, a[0] @ b),
        ("vector on the right", lambda: left @ b[:, 0], a @ b[:, 0]),
        ("stack", lambda: rows @ right, rows @ b),
        ("stack on the right", lambda: left @ stack, a @ stack),
        ("vecmat", lambda: jitgemm.vecmat(a, right), np.matmul(a.conj(), b)),
        ("matvec", lambda: jitgemm.matvec(left, b.T), np.matmul(a, b).T),
        ("out", lambda: jitgemm.matmul(a, right, out=np.zeros((5, 6), kind)), a @ b),
    ]  # fmt: skip
    for what, call, want in cases:
        got = call()
        assert got.dtype == want.dtype, what
        assert np.array_equal(got, want), what
    with pytest.raises(TypeError, match="PackedRhs"):
        np.matmul(a, right)


# -- without NumPy's functions --------------------------------------------------------------------


@newest
@pytest.mark.usefixtures("low")
def test_a_numpy_that_lacks_them(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {name: getattr(np, name) for name in NAMES[1:]}
    for name in theirs:
        monkeypatch.delattr(np, name)
    for name, function in theirs.items():
        first, second = CORES[name]
        for kind, keywords in itertools.product(("f", "g", "F", "O", "i"), KEYWORDS):
            args = _fill(rng, (2, 3, 3)[3 - first - 1 :], kind), _fill(rng, (2, 3, 3), kind)
            what = f"{name} {kind} {keywords}"
            got = _outcome(getattr(jitgemm, name), *args, **keywords)
            _alike(got, _outcome(function, *args, **keywords), what, strides="order" in keywords)
            out = np.zeros((2, 3, 3), kind)[(0,) * (2 - max(1, 3 - second))]
            got = _outcome(getattr(jitgemm, name), *args, out=out)
            _alike(got, _outcome(function, *args, out=out.copy()), what)
        masked = np.ma.array(np.ones((3, 3)), mask=np.eye(3))
        assert isinstance(getattr(jitgemm, name)(masked, masked), np.ma.MaskedArray)
