"""Contract 20, for what a call brings besides its operands: scalars are data, and nothing is kept.

What decides a plan is known by its exact meaning, never by what equals it; what is data may differ
in every call of one plan; and no cache keeps anything of the caller's alive.
"""

from __future__ import annotations

import gc
import itertools
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm.api.activations import Activation
from jitgemm.kernels import job
from jitgemm.kernels.operations import OPERATIONS
from jitgemm.runtime import batches, data, executables, keeping
from oracle import exact_gemm, forget_plans, integers, run_python, same_bits

Array = np.ndarray[Any, Any]
M, N, K = 5, 7, 6


def _others(c: Array, options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "c": c} if "beta" in options else options


def _gemm(a: Array, b: Array, c: Array, **options: Any) -> Array:
    return jitgemm.gemm(a, b, **_others(c, options))


def _stack(a: Array, b: Array, c: Array, **options: Any) -> Array:
    out = jitgemm.gemm(np.stack([a, a]), b, **_others(np.stack([c, c]), options))
    same_bits(out[0], out[1])
    return np.asarray(out[1])


def _list(a: Array, b: Array, c: Array, **options: Any) -> Array:
    given = _others(c, options)
    if "beta" in options:
        given["c"] = [c, c]
    return jitgemm.gemm_batched([a, a], b, **given)[1]


def _packed(a: Array, b: Array, c: Array, **options: Any) -> Array:
    return jitgemm.gemm(a, jitgemm.prepack_rhs(b), **_others(c, options))


def _packed_left(a: Array, b: Array, c: Array, **options: Any) -> Array:
    return jitgemm.gemm(jitgemm.prepack_lhs(a), b, **_others(c, options))


def _planned(a: Array, b: Array, c: Array, **options: Any) -> Array:
    return np.asarray(jitgemm.plan(a, b, **_others(c, options))(a, b))


KINDS = {"gemm": _gemm, "stack": _stack, "list": _list, "packed": _packed, "left": _packed_left}
# Of few rows: what is tested here does not depend on the tile.
pytestmark = pytest.mark.usefixtures("low")


def _changing_function(i: int) -> dict[str, Any]:
    return {"epilogue": lambda v, row, col: v * (i + 1) + i}


# name: (element type, options of the call number i)
DATA: dict[str, tuple[Any, Callable[[int], dict[str, Any]]]] = {
    "alpha": ("f4", lambda i: {"alpha": [2, 0.5, -1.0, np.float32(3), np.array(4.0)][i]}),
    "alpha and beta": ("f4", lambda i: {"alpha": 1 + i, "beta": 2.0 - 3 * i}),
    "beta": ("f8", lambda i: {"beta": [1, True, -2.0, np.float64(0.5), 3][i]}),
    "complex alpha": ("c8", lambda i: {"alpha": complex(i, 1 - i), "conj_b": True}),
    "complex beta": ("c16", lambda i: {"beta": [1, 2j, -1.5, 1 + 1j, np.complex64(2)][i]}),
    "whole alpha": ("i1", lambda i: {"alpha": [2, -3, 4.0, np.int8(5), 1][i], "beta": i - 7}),
    "leaky_relu": ("f4", lambda i: {"activation": jitgemm.leaky_relu(0.5 * i)}),
    "clip": ("f4", lambda i: {"activation": jitgemm.clip(-i, 2 * i)}),
    "constants of a function": ("f4", _changing_function),
    "zero points": ("i1", lambda i: {"a_zero_point": i + 1, "b_zero_point": -i - 1}),
    "zero points per row": ("i1", lambda i: {"a_zero_point": np.arange(1, M + 1) * (i + 1)}),
    "zero points per column": ("i1", lambda i: {"b_zero_point": np.arange(1, N + 1) - i}),
    "requantize": ("i1", lambda i: {"requantize": jitgemm.Requantize(0.25 + i, i)}),
    "requantize per column": (
        "i1", lambda i: {"requantize": jitgemm.Requantize(np.arange(1.0, N + 1) / (i + 2), -i)}),
    "requantize per row": (
        "i1", lambda i: {"requantize": jitgemm.Requantize(np.arange(1.0, M + 1)[:, None] / 8, i)}),
    "requantize with a bias": (
        "i1",
        lambda i: {"requantize": jitgemm.Requantize(0.5, bias=np.arange(N, dtype=np.int32) * i)}),
}  # fmt: skip
_CALLS = 5


def _operands(rng: np.random.Generator, dtype: Any) -> tuple[Array, Array, Array]:
    kept = np.int32 if np.dtype(dtype).kind == "i" else dtype
    shapes = ((M, K), dtype), ((K, N), dtype), ((M, N), kept)
    a, b, c = (integers(rng, shape, kind) for shape, kind in shapes)
    return a, b, c


def _want(a: Array, b: Array, c: Array, options: dict[str, Any]) -> Array:
    known = {k: v for k, v in options.items() if k not in ("threads", "reproducible", "backend")}
    if a.dtype.kind == "i":
        known |= {k: int(v) for k, v in known.items() if k in ("alpha", "beta")}
    return exact_gemm(a, b, **_others(c, known))


def _same(got: Array, want: Array, why: object = "") -> None:
    # A zero times a negative factor has a sign.
    same_bits(got + got.dtype.type(0), want + want.dtype.type(0), why)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is planned or made from here on."""
    found: list[str] = []
    for module, name in (
        (executables, "plan_call"), (batches, "Executable"), (executables, "Executable"),
    ):  # fmt: skip
        real = getattr(module, name)

        def counting(*args: Any, real: Any = real, name: str = name, **kwargs: Any) -> Any:
            found.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, counting)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DATA)
def test_c20_scalars_are_no_part_of_a_plan(
    rng: np.random.Generator, counted: list[str], kind: str, name: str
) -> None:
    dtype, options = DATA[name]
    call = KINDS[kind]
    a, b, c = _operands(rng, dtype)
    forget_plans()
    for i in range(_CALLS):
        del counted[:]
        got = call(a, b, c, **options(i))
        assert i < 1 or not counted, (i, counted)
        _same(got, _want(a, b, c, options(i)), (i, options(i)))


def test_c20_matmul_plans_once_beside_calls_with_scalars(
    rng: np.random.Generator, counted: list[str]
) -> None:
    a, b = integers(rng, (70, 80), np.float32), integers(rng, (80, 90), np.float32)
    forget_plans()
    jitgemm.matmul(a, b)
    for i in range(1, _CALLS):
        jitgemm.gemm(a, b, alpha=0.5 * i)
        if i > 1:
            assert not counted
        del counted[:]
        same_bits(jitgemm.matmul(a, b), exact_gemm(a, b))
        assert not counted


def test_the_records_of_all_types_are_the_slots_of_a_job() -> None:
    slots = [job.JOB.slot(name) for name in job.DATA]
    assert slots == list(range(slots[0], slots[0] + len(slots)))
    for layouts in data._STRUCTS.values():
        assert [x.size for x in layouts] == [8 * len(slots)] * 2


# -- one option at a time -------------------------------------------------------------------------

# Options of which each alone makes another product of the same operands.
FLOATS: list[dict[str, Any]] = [
    {}, {"alpha": 2}, {"alpha": 0}, {"beta": 1}, {"alpha": 0.0, "beta": -1.0}, {"beta": 3.0},
    {"activation": "relu"}, {"activation": jitgemm.leaky_relu(2)},
    {"activation": jitgemm.leaky_relu(-1)}, {"activation": jitgemm.clip(-2, 3)},
    {"epilogue": lambda v, row, col: v * 2}, {"epilogue": lambda v, row, col: v * 3},
    {"epilogue": lambda v, row, col: v + row}, {"epilogue": lambda v, row, col: v + col},
    {"reproducible": "strict"}, {"out_dtype": np.float64}, {"threads": 2}, {"alpha": 1.0},
]  # fmt: skip
INTEGERS: list[dict[str, Any]] = [
    {}, {"alpha": 2}, {"alpha": 0}, {"beta": 1}, {"a_zero_point": 3}, {"a_zero_point": 2},
    {"b_zero_point": 3}, {"b_zero_point": np.arange(N)}, {"a_zero_point": np.arange(M)},
    {"a_zero_point": np.zeros(M, int)}, {"requantize": jitgemm.Requantize(0.5)},
    {"requantize": jitgemm.Requantize(0.25)}, {"requantize": jitgemm.Requantize(0.5, 3)},
    {"requantize": jitgemm.Requantize(0.5, dtype=np.uint8)},
    {"requantize": jitgemm.Requantize(np.arange(1.0, N + 1))},
    {"requantize": jitgemm.Requantize(np.arange(1.0, M + 1)[:, None])},
    {"requantize": jitgemm.Requantize(0.5, bias=np.int32(9))}, {"out_dtype": np.int64},
]  # fmt: skip
COMPLEX: list[dict[str, Any]] = [
    {}, {"conj_a": True}, {"conj_b": True}, {"conj_a": True, "conj_b": True}, {"alpha": 1j},
    {"alpha": 2}, {"beta": 1j}, {"beta": 2, "conj_a": True}, {"alpha": 0},
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "cases"), [("f4", FLOATS), ("i1", INTEGERS), ("c8", COMPLEX)])
def test_c10_calls_do_not_depend_on_those_before(
    rng: np.random.Generator, kind: str, dtype: str, cases: list[dict[str, Any]]
) -> None:
    a, b, c = _operands(rng, dtype)
    call = KINDS[kind]
    if kind in ("packed", "left"):  # which is for sums of one type
        cases = [x for x in cases if "out_dtype" not in x]
    want = [_want(a, b, c, options) for options in cases]
    forget_plans()
    # Each after each other one, and twice in a row.
    for i, j in itertools.product(range(len(cases)), repeat=2):
        _same(call(a, b, c, **cases[i]), want[i], cases[i])
        _same(call(a, b, c, **cases[j]), want[j], (cases[i], cases[j]))


# -- numbers of a stack's products -----------------------------------------------------------------

BATCH = (2, 3)
# Leading axes of zero points and scales: along all, the first, the last; of one; for all products.
LEADS = {"all": (2, 3), "first": (2, 1), "last": (3,), "one": (1, 1), "none": ()}
ITEMS = {"a_zero_point": (M, 1), "b_zero_point": (1, N), "rows": (M, 1), "columns": (1, N)}


def _numbers(which: str, lead: tuple[int, ...], i: int) -> dict[str, Any]:
    """Numbers of a stack in the call number ``i``."""
    shape = (*lead, *ITEMS[which])
    numbers = (np.arange(np.prod(shape)).reshape(shape) * 5 + 3 * i) % 17 + 1
    if which in ("rows", "columns"):
        return {"requantize": jitgemm.Requantize(numbers / 64, i)}
    return {which: numbers}


def _stacked_operands(rng: np.random.Generator) -> tuple[Array, Array]:
    return integers(rng, (*BATCH, M, K), np.int8), integers(rng, (3, K, N), np.int8)


def _want_stack(a: Array, b: Array, options: dict[str, Any]) -> Array:
    def own(x: Any, item: tuple[int, int], index: tuple[int, ...]) -> Array:
        return np.broadcast_to(x, (*BATCH, *item))[index]

    results = []
    for index in np.ndindex(*BATCH):
        given = dict(options)
        for name in ("a_zero_point", "b_zero_point"):
            if name in given:
                given[name] = own(given[name], ITEMS[name], index).reshape(-1)
        if "requantize" in given:
            rule = given["requantize"]
            scale = own(rule.scale, np.shape(rule.scale)[-2:], index)
            given["requantize"] = jitgemm.Requantize(scale, rule.zero_point)
        results.append(exact_gemm(a[index], b[index[1:]], **given))
    return np.reshape(results, (*BATCH, M, N))


@pytest.mark.parametrize("which", ITEMS)
@pytest.mark.parametrize("lead", LEADS)
def test_c20_numbers_of_products_are_no_part_of_a_plan(
    rng: np.random.Generator, counted: list[str], which: str, lead: str
) -> None:
    a, b = _stacked_operands(rng)
    # Rows and columns of the kernel are those of the result, or exchanged.
    outs = np.empty((*BATCH, M, N)), np.empty((*BATCH, N, M)).swapaxes(-1, -2)
    for like in outs:
        forget_plans()
        for i in range(_CALLS):
            options = _numbers(which, LEADS[lead], i)
            out = np.zeros_like(like, np.int8 if "requantize" in options else np.int32)
            del counted[:]
            jitgemm.gemm(a, b, out=out, **options)
            assert i < 1 or not counted, (i, counted)
            same_bits(out, _want_stack(a, b, options), i)


def test_c10_stacks_do_not_depend_on_the_numbers_before(rng: np.random.Generator) -> None:
    a, b = _stacked_operands(rng)
    cases = [_numbers(which, lead, 1) for which in ITEMS for lead in LEADS.values()]
    cases += [{}, {"a_zero_point": 3}, {**cases[0], **cases[6]}, {**cases[1], **cases[7]}]
    want = [_want_stack(a, b, options) for options in cases]
    forget_plans()
    for i, j in itertools.product(range(len(cases)), repeat=2):
        for at in (i, j):
            same_bits(jitgemm.gemm(a, b, **cases[at]), want[at], (i, j, at))


def test_c23_numbers_that_fit_no_stack_are_refused_after_some_that_do(
    rng: np.random.Generator,
) -> None:
    a, b = _stacked_operands(rng)
    for which, item in ITEMS.items():
        for lead in LEADS.values():
            jitgemm.gemm(a, b, **_numbers(which, lead, 0))
            for wrong in ((3, 2), (2,), (1, 2, 3), (2, 2)):
                with pytest.raises(ValueError, match="broadcasts to"):
                    jitgemm.gemm(a, b, **_numbers(which, wrong, 0))
            with pytest.raises(ValueError, match="jitgemm: "):
                jitgemm.gemm(a[0, 0], b[0], **_numbers(which, (3,), 0))
            for x in (np.full((3, *item), 0.5), np.full((3, *item), 300)):
                if which in ("a_zero_point", "b_zero_point"):
                    with pytest.raises((TypeError, ValueError), match="jitgemm: "):
                        jitgemm.gemm(a, b, **{which: x})


def test_c20_numbers_of_products_are_not_kept(rng: np.random.Generator) -> None:
    a, b = _stacked_operands(rng)
    forget_plans()

    def use() -> list[weakref.ref[Any]]:
        rule = jitgemm.Requantize(np.full((2, 1, M, 1), 0.5))
        points = np.ones((*BATCH, M, 1), np.int32), np.ones((3, 1, N), np.int32)
        for _ in range(2):
            jitgemm.gemm(a, b, a_zero_point=points[0], b_zero_point=points[1], requantize=rule)
        return [weakref.ref(x) for x in (rule, rule.scale, *points)]

    references = use()
    gc.collect()
    assert not [x() for x in references if x() is not None]


@pytest.mark.parametrize("kind", KINDS)
def test_c23_a_bias_is_what_it_is_whatever_was_before(rng: np.random.Generator, kind: str) -> None:
    a, b, c = _operands(rng, "f4")
    call = KINDS[kind]
    numbers = list(range(N))
    taken = [2, 2.0, numbers, [float(x) for x in numbers], np.arange(N, dtype="f4")]
    refused = [True, [True] * N, np.arange(N), np.arange(N) > 0, 2j, np.int64(2), Fraction(2)]
    forget_plans()
    for good, bad in itertools.product(taken, refused):
        for _ in range(2):
            bias = [good, good] if kind == "list" else good
            same_bits(call(a, b, c, bias=bias), exact_gemm(a, b, bias=np.float32(good)))
            with pytest.raises((TypeError, ValueError), match="jitgemm: "):
                call(a, b, c, bias=[bad, bad] if kind == "list" else bad)


# -- refusals -------------------------------------------------------------------------------------


class _Like:
    """Something else, which says it is what it is compared with."""

    def __init__(self, what: Any) -> None:
        self.what = what

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(self.what)


class _Noisy(str):
    """A text that must not be asked."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    def __hash__(self) -> int:
        raise AssertionError("hashed")


_RULE = jitgemm.Requantize(0.5)
_SPACE = jitgemm.Workspace()


def _double(v: Any, row: Any, col: Any) -> Any:
    return v * 2


# (element type, option, what is taken, what is refused although it may equal that)
REFUSED: list[tuple[str, str, Any, list[Any]]] = [
    ("f4", "alpha", 1, [Fraction(1), 1 + 0j, np.True_, "1", _Like(1)]),
    ("f4", "alpha", 0.5, [Fraction(1, 2), 0.5 + 0j, _Like(0.5)]),
    ("c8", "alpha", 1, [Fraction(1), np.True_, _Like(1)]),
    ("i1", "alpha", 1, [Fraction(1), 1.5, 1 + 0j, np.True_, _Like(1)]),
    ("f4", "beta", 0, [Fraction(0), 0j, np.False_, _Like(0)]),
    ("f4", "beta", 2, [Fraction(2), 2 + 0j, _Like(2)]),
    ("f4", "activation", None, [False, 0, _Like(None)]),
    ("f4", "activation", "relu", [b"relu", _Like("relu"), np.array("relu")]),
    ("f4", "activation", jitgemm.leaky_relu(0.5), [_Like(jitgemm.leaky_relu(0.5)), 0.5]),
    *((kind, name, value, [int(value), float(value), Fraction(value), _Like(value)])
      for kind in ("f4", "c8") for name in ("conj_a", "conj_b") for value in (True, False)),
    ("f4", "epilogue", None, [False, 0, (), _Like(None)]),
    ("f4", "epilogue", _double, [_Like(_double)]),
    ("f4", "workspace", None, [False, 0, (), _Like(None)]),
    ("f4", "workspace", _SPACE, [_Like(_SPACE)]),
    ("f4", "reproducible", "default", [b"default", _Like("default"), None]),
    ("f4", "reproducible", "strict", [b"strict", _Like("strict"), True]),
    ("f4", "backend", "jit", [b"jit", _Like("jit"), None]),
    ("i1", "a_zero_point", 0, [False, 0.0, Fraction(0), _Like(0), np.False_]),
    ("i1", "a_zero_point", 1, [True, 1.0, Fraction(1), _Like(1), np.True_]),
    ("i1", "b_zero_point", 0, [False, 0.0, Fraction(0), _Like(0), np.False_]),
    ("i1", "b_zero_point", 1, [True, 1.0, Fraction(1), _Like(1), np.True_]),
    ("i1", "b_zero_point", np.arange(N), [np.arange(float(N)), np.arange(N) > 0]),
    ("i1", "requantize", None, [False, 0, (), _Like(None)]),
    ("i1", "requantize", _RULE, [_Like(_RULE), 0.5]),
    ("f4", "out_dtype", np.float64, [_Like(np.float64), b"f8 ", 8]),
    ("f4", "out_dtype", None, [False, 0, (), _Like(None)]),
    ("f4", "allow_bf16_dot", True, [1, 1.0, Fraction(1), _Like(True)]),
    ("f4", "allow_bf16_dot", False, [0, 0.0, Fraction(0), _Like(False), None]),
    ("f4", "threads", 1, [True, 1.0, Fraction(1), _Like(1), np.True_]),
]  # fmt: skip


@pytest.mark.parametrize("kind", [*KINDS, "plan"])
def test_c23_what_equals_something_valid_is_refused_all_the_same(
    rng: np.random.Generator, kind: str
) -> None:
    call = {**KINDS, "plan": _planned}[kind]
    operands = {dtype: _operands(rng, dtype) for dtype in ("f4", "c8", "i1")}
    forget_plans()
    for dtype, option, taken, refused in REFUSED:
        if kind in ("packed", "left") and taken is np.float64:
            continue  # a handle is for sums of one type
        x = operands[dtype]
        for _ in range(2):
            want = call(*x, **{option: taken})
            for bad in refused:
                with pytest.raises((TypeError, ValueError), match="jitgemm: "):
                    call(*x, **{option: bad})
            same_bits(call(*x, **{option: taken}), want)


@pytest.mark.parametrize("kind", [*KINDS, "plan"])
def test_texts_of_a_class_of_ones_own_are_taken_as_they_are(
    rng: np.random.Generator, kind: str
) -> None:
    call, x = {**KINDS, "plan": _planned}[kind], _operands(rng, "f4")
    for option, text in (("activation", "relu"), ("reproducible", "strict"), ("backend", "jit")):
        for value in (text, _Noisy(text), np.str_(text)):
            _same(call(*x, **{option: value}), _want(*x, {option: text}))


class _Falsy:
    """A function that is an empty container."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __len__(self) -> int:
        return 0

    def __call__(self, v: Any, row: Any, col: Any) -> Any:  # noqa: ARG002
        return v * self.factor


@pytest.mark.parametrize("kind", [*KINDS, "plan"])
def test_functions_that_are_falsy_are_functions(rng: np.random.Generator, kind: str) -> None:
    call, x = {**KINDS, "plan": _planned}[kind], _operands(rng, "f4")
    for factor in (None, 2.0, 40.0, None, -1.0):
        options = {} if factor is None else {"epilogue": _Falsy(factor)}
        _same(call(*x, **options), _want(*x, {}) * np.float32(factor or 1))


def test_c23_handles_packed_for_other_kernels_are_refused_after_equal_ones(
    rng: np.random.Generator,
) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a, b = (integers(rng, s, "f4").astype(ml_dtypes.bfloat16) for s in ((M, 8), (8, 16)))
    handles = [jitgemm.prepack_rhs(b, allow_bf16_dot=x) for x in (False, True)]

    def outcome(i: int, j: int, *, many: bool) -> Any:
        try:
            if many:
                return jitgemm.gemm_batched([a], [handles[i]], allow_bf16_dot=j == 1)[0]
            return jitgemm.gemm(a, handles[i], allow_bf16_dot=j == 1)
        except TypeError:
            return None

    cases = list(itertools.product((0, 1), (0, 1), (False, True)))
    want = []
    for i, j, many in cases:
        forget_plans()
        want.append(outcome(i, j, many=many))
    for x, y in itertools.product(range(len(cases)), repeat=2):
        for at in (x, y):
            i, j, many = cases[at]
            got = outcome(i, j, many=many)
            assert (got is None) == (want[at] is None), (cases[x], cases[y])
            if got is not None:
                same_bits(got, want[at])


# -- what is kept ---------------------------------------------------------------------------------


class _Text(str):  # noqa: SLOT000  # can be watched because it has none
    """A text that can be watched."""


class _Real(float):
    """A number that can be watched."""


class _Leaky(Activation):
    """An activation that can be watched."""


def _watched(rng: np.random.Generator, dtype: str) -> tuple[list[Any], dict[str, Any]]:
    """Objects of every kind that a call takes, and the call's arguments made of them."""
    a, b, c = _operands(rng, dtype)
    note, closure, factor, beta = _Text("note"), _Real(3.0), _Real(2.0), _Real(1.0)
    given: dict[str, Any] = {"a": a, "b": b, "c": c, "alpha": factor, "beta": beta}
    given["reproducible"] = _Text("default")
    objects = [note, *given.values()]
    if dtype == "f4":
        noted = np.dtype("f4", metadata={"note": note})
        leaky = _Leaky(OPERATIONS["leaky_relu"], (0.5,))
        given |= {"epilogue": lambda v, row, col: v * closure, "activation": leaky}
        given |= {"a": np.ndarray(a.shape, noted, a.tobytes()), "out_dtype": noted}
        return [closure, given["a"], given["epilogue"], given["activation"], *objects], given
    if dtype == "i1":
        rule = jitgemm.Requantize(np.full(N, 0.5), 1, bias=np.arange(N, dtype=np.int32))
        given |= {"requantize": rule, "a_zero_point": np.arange(M), "b_zero_point": np.arange(N)}
        points = given["a_zero_point"], given["b_zero_point"]
        return [rule, rule.scale, rule.bias, *points, *objects], given
    return objects, given


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["f4", "c8", "i1"])
def test_c20_nothing_of_the_callers_is_kept(
    rng: np.random.Generator, kind: str, dtype: str
) -> None:
    forget_plans()

    def use() -> list[weakref.ref[Any]]:
        objects, given = _watched(rng, dtype)
        for _ in range(2):
            KINDS[kind](**given)
        return [weakref.ref(x) for x in objects]

    references = use()
    gc.collect()
    assert not [x() for x in references if x() is not None]


@pytest.mark.parametrize("activation", [None, "relu"])
def test_c20_biases_outs_and_scratch_are_not_kept(
    rng: np.random.Generator, activation: str | None
) -> None:
    forget_plans()
    a, b, c = _operands(rng, "f4")

    def use(call: Callable[..., Any], *, many: bool) -> list[weakref.ref[Any]]:
        left, bias, space = a.copy(), c[0].copy(), jitgemm.Workspace()
        out = np.empty((2, M, N), "f4") if call is _stack_of else c.copy()
        given = [left], [out], [bias]
        x, o, y = given if many else (z[0] for z in given)
        for _ in range(2):
            call(x, b, out=o, bias=y, activation=activation)
            call(x, b, out=o, bias=y, activation=activation, workspace=space)
        return [weakref.ref(z) for z in (left, out, bias, space)]

    def _stack_of(x: Array, y: Array, **options: Any) -> Array:
        return jitgemm.gemm(np.broadcast_to(x, (2, M, K)), y, **options)

    references = use(jitgemm.gemm, many=False) + use(_stack_of, many=False)
    references += use(jitgemm.gemm_batched, many=True)
    gc.collect()
    assert not [x() for x in references if x() is not None]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_c20_rules_of_many_calls_take_no_memory() -> None:
    code = """
        import gc
        import numpy as np
        import jitgemm

        def rss():
            gc.collect()
            return int(open("/proc/self/statm").read().split()[1]) * 4096

        a, b = np.ones((2, 4), np.int8), np.ones((4, 32_000), np.int8)
        out = np.empty((2, 32_000), np.int8)

        def call(i):
            jitgemm.gemm(a, b, out=out, requantize=jitgemm.Requantize(np.full(32_000, 1.0 + i)))

        for i in range(40):
            call(i)
        before = rss()
        for i in range(600):
            call(i)
        print(rss() - before)
    """
    assert int(run_python(code).stdout) < 8 << 20


# -- without a lock -------------------------------------------------------------------------------


def test_keeping_is_safe_whoever_keeps_at_once() -> None:
    cache: dict[Any, int] = {}
    failed: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for turn in range(20_000):
                keeping.keep(cache, (i, turn), turn, 3)
        except BaseException as e:
            failed.append(e)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failed
    assert len(cache) <= 3 + 6


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="has no timers")
def test_c22_handlers_of_signals_may_multiply() -> None:
    code = """
        import signal
        import numpy as np
        import jitgemm
        turn, seen = [0], [0]

        def work(x):
            x[0] += 1
            a, b = np.ones((x[0] % 7 + 1, 3), "f4"), np.ones((3, x[0] % 5 + 1), "f4")
            assert (jitgemm.gemm(a, b, alpha=x[0]) == 3 * x[0]).all()
            assert (jitgemm.gemm(a[None], b, alpha=x[0]) == 3 * x[0]).all()
            assert (jitgemm.gemm_batched([a], [b], alpha=x[0])[0] == 3 * x[0]).all()

        work(turn)

        def handle(*_):
            work(seen)
            signal.setitimer(signal.ITIMER_REAL, 0.0005)

        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        while seen[0] < 100:
            work(turn)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(seen[0])
    """
    few = {"JITGEMM_NUM_THREADS": "1", "JITGEMM_CALL_ENTRIES": "2"}
    assert int(run_python(code, **few).stdout) >= 100
