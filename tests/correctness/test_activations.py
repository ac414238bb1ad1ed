"""Activations added from outside, on every route; and those of integers."""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle
import re
from typing import Any

import numpy as np
import pytest

import jitgemm
import outside
from jitgemm.kernels import mathlib
from jitgemm.kernels.operations import OPERATIONS
from oracle import ROOT, anything, exact_gemm, integers, run_python, same_bits
from outside import activation, bent

Array = np.ndarray[Any, Any]
BACKENDS = ("jit", "blas")
SIZES = ((1, 1, 1), (1, 33, 9), (2, 17, 520), (16, 33, 7), (40, 65, 33))


def _exact(a: Array, b: Array, slope: float, most: float = np.inf, **given: Any) -> Array:
    sums = exact_gemm(a, b, **given)
    kind = sums.dtype.type
    return bent(sums, kind(slope), kind(most)).astype(sums.dtype)


@pytest.mark.usefixtures("low")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cheap", [False, True])
def test_one_from_outside(backend: str, cheap: bool, dtype: Any, rng: Any) -> None:  # noqa: FBT001
    with activation(cheap=cheap) as make:
        for m, n, k in SIZES:
            a, b, c = (integers(rng, s, dtype) for s in ((m, k), (k, n), (m, n)))
            given: dict[str, Any] = {"beta": -2, "c": c, "bias": c[0].copy()}
            mine = jitgemm.activation("bent", slope=0.5, most=7)
            want = _exact(a, b, 0.5, 7, **given)
            given |= {"activation": mine, "backend": backend}
            for _ in range(2):
                same_bits(jitgemm.gemm(a, b, **given), want, (m, n, k))
            same_bits(jitgemm.gemm(a, np.asfortranarray(b), threads=2, **given), want)
            same_bits(jitgemm.gemm(a, jitgemm.prepack_rhs(b), **given), want)
            p = jitgemm.plan(a, b, **given)
            same_bits(p(a, b), want)
            assert "bent" in p.explain()
            # Other parameters, other numbers; the same code.
            for slope in (0.25, -1, 2):
                more = {**given, "activation": make(slope)}
                same_bits(jitgemm.gemm(a, b, **more), _exact(a, b, slope, beta=-2, c=c, bias=c[0]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_lists_stacks_and_epilogues(backend: str, rng: np.random.Generator) -> None:
    a, b = integers(rng, (3, 5, 9), np.float32), integers(rng, (9, 20), np.float32)
    with activation(name="bent_more"):
        mine = jitgemm.activation("bent_more", 0.5, most=6)
        want = np.stack([_exact(x, b, 0.5, 6) for x in a])
        given = {"activation": mine, "backend": backend}
        same_bits(jitgemm.gemm(a, b, **given), want)
        for x, y in zip(jitgemm.gemm_batched(list(a), b, **given), want, strict=True):
            same_bits(x, y)
        got = jitgemm.gemm(a, b, epilogue=lambda v, row, col: v * row - col, **given)
        same_bits(got, want * np.arange(5.0, dtype="f4")[:, None] - np.arange(20.0, dtype="f4"))
        # Within a function, and of an array.
        got = jitgemm.gemm(a, b, epilogue=lambda v, row, col: mine(v) + 1, backend=backend)
        same_bits(got, want + np.float32(1))
        same_bits(mine(np.stack([exact_gemm(x, b) for x in a])), want)


def test_a_function_of_the_library_and_no_parameters(rng: np.random.Generator) -> None:
    def emit(k: Any, v: Any) -> Any:
        return k.op("mul", mathlib.tanh(k, v), v)

    with activation("tanh_gate", emit=emit, meaning=lambda v: np.tanh(v) * v, parameters=()):
        a, b = (rng.standard_normal(s).astype(np.float32) for s in ((7, 9), (9, 40)))
        want = np.tanh(a @ b) * (a @ b)
        for given in ({}, {"backend": "blas"}, {"threads": 2}):
            got = jitgemm.gemm(a, b, activation="tanh_gate", **given)
            np.testing.assert_allclose(got, want, 1e-4, 1e-5)
        same_bits(jitgemm.gemm(a, b, activation=jitgemm.activation("tanh_gate")),
                  jitgemm.gemm(a, b, activation="tanh_gate"))  # fmt: skip


def test_a_name_that_is_registered_anew_is_other_code(rng: np.random.Generator) -> None:
    """In calls that are known, in memory and on disk."""
    a, b = integers(rng, (5, 9), np.float32), integers(rng, (9, 20), np.float32)
    sums = exact_gemm(a, b)

    def times(factor: float) -> dict[str, Any]:
        return {
            "emit": lambda k, v: k.op("mul", v, k.literal(factor, v.element, v.lanes)),
            "meaning": lambda v: v * v.dtype.type(factor), "parameters": (),
        }  # fmt: skip

    plans = {}
    for factor in (2, 3, 2, 5):
        with activation("times", cheap=True, **times(factor)):
            old = jitgemm.activation("times")
            plans[factor] = jitgemm.plan(a, b, activation=old)
            for given, _ in itertools.product(("times", old), range(3)):
                same_bits(jitgemm.gemm(a, b, activation=given), sums * np.float32(factor))
        for gone in ("times", old):
            with pytest.raises(ValueError, match=r"^jitgemm: activation: "):
                jitgemm.gemm(a, b, activation=gone)
    for factor, p in plans.items():
        same_bits(p(a, b), sums * np.float32(factor))
        assert p.explain()
        assert "times" in p.ir()


def test_one_on_disk_is_not_another(tmp_path: Any) -> None:
    """Processes that register different functions under a name share a cache folder."""
    code = """
        import sys, numpy as np, jitgemm
        from jitgemm.jit import compiler
        factor = float(sys.argv[1])
        jitgemm.register_activation(
            "times", lambda k, v: k.op("mul", v, k.literal(factor, v.element, v.lanes)),
            lambda v: v * v.dtype.type(factor))
        a = np.ones((3, 3), np.float32)
        assert (jitgemm.gemm(a, a, activation="times", out=np.empty_like(a)) == 3 * factor).all()
        units = [x for x in compiler.compiled() if "times" in x.name]
        print([x.source for x in units])
    """
    folder = {"JITGEMM_CACHE_DIR": str(tmp_path), "JITGEMM_CACHE": "on"}
    found = [run_python(code, x, **folder).stdout.strip() for x in ("2", "3", "2", "3")]
    if found[0] != "[]":  # an interpreter compiles nothing
        assert found == ["['compiled']"] * 2 + ["['disk cache']"] * 2


def test_objects(dtype: Any) -> None:
    with activation() as make:
        one = make(0.5)
        assert (one.slope, one.most) == (0.5, np.inf)
        assert repr(one) == "jitgemm.activation('bent', slope=0.5, most=inf)"
        assert one is make(slope=0.5, most=np.inf) is jitgemm.activation("bent", 0.5)
        assert one != make(0.25)
        assert {one, make(0.5)} == {one}
        for again in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
            assert again == one
        with pytest.raises(AttributeError):
            _ = one.other
        with pytest.raises(TypeError, match=r"^jitgemm: slope: expected a number, for bent"):
            type(one)(one.row, ())
        text = pickle.dumps(one)
        assert str(inspect.signature(make)) == "(slope: 'float', most: 'float' = inf)"
        assert "bent at zero" in make.__doc__
        x = np.array([-2, 3, 90], dtype)
        same_bits(make(0.5, 10)(x), np.array([-1, 3, 10], dtype))
        assert make(0.5, 10)(-2) == -1.0
    with pytest.raises(ValueError, match=r"^jitgemm: activation: expected one of relu, .*'bent'"):
        pickle.loads(text)
    assert jitgemm.activation("leaky_relu") == jitgemm.leaky_relu()
    assert jitgemm.activation("clip", hi=3, lo=1) is jitgemm.clip(1, 3)


def test_the_same_row_again_is_no_error() -> None:
    with activation():
        jitgemm.register_activation("bent", **outside.BENT)
        with pytest.raises(ValueError, match=r"^jitgemm: name: expected a name that is not known"):
            jitgemm.register_activation("bent", **{**outside.BENT, "cheap": True})


REFUSED: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "name of a built-in": (ValueError, "name: .*'relu'", {"name": "relu"}),
    "name of an operation": (ValueError, "name: .*'add'", {"name": "add"}),
    "name of an input": (ValueError, "name: .*'row'", {"name": "row"}),
    "no identifier": (TypeError, "name: .*'a b'", {"name": "a b"}),
    "no text": (TypeError, "name: .*3", {"name": 3}),
    "a parameter like an attribute": (
        TypeError, "parameters: .*values", {"parameters": ("values",)}),
    "parameters alike": (TypeError, "parameters: ", {"parameters": ("slope", "slope")}),
    "no parameter": (TypeError, "parameters: ", {"parameters": (1, 2)}),
    "a default that is NaN": (
        ValueError, "default of most: .*NaN",
        {"parameters": ("slope", jitgemm.Parameter("most", np.nan))}),
    "emit no function": (TypeError, "emit: ", {"emit": "relu"}),
    "meaning no function": (TypeError, "meaning: ", {"meaning": None}),
    "integers and not cheap": (ValueError, "cheap: ", {"integers": True}),
    "emit of another arity": (ValueError, "emit: .*TypeError", {"parameters": ("slope",)}),
    "emit without a result": (ValueError, "emit: expected a vector", {"emit": lambda k, *x: None}),
    "an unknown operation": (
        ValueError, "emit: .*no 'cosine'", {"emit": lambda k, v, *x: k.op("cosine", v)}),
    "another meaning": (ValueError, "meaning: ", {"meaning": lambda v, *x: v}),
    "a meaning of another shape": (ValueError, "meaning: ", {"meaning": lambda v, *x: v.sum()}),
    "a meaning of another arity": (ValueError, "meaning: .*TypeError", {"meaning": abs}),
    "no operation of integers": (
        ValueError, "emit: .*no 'select_lt'", {"integers": True, "cheap": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    error, words, other = REFUSED[case]
    before = dict(OPERATIONS)
    with pytest.raises(error, match=f"^jitgemm: {words}"):
        jitgemm.register_activation(**{"name": "refused", **outside.BENT, **other})
    assert before == OPERATIONS


def test_parameters_are_checked() -> None:
    finite = jitgemm.Parameter("lo", finite=True), jitgemm.Parameter("hi", 9)
    row = {"emit": mathlib.clip, "meaning": np.clip, "parameters": finite, "ascending": True}
    with activation("bounded", **row) as make:
        assert make(2).values == (2, 9)
        for bad, error, words in (
            ((10,), ValueError, "lo: expected at most hi, 9.0, got 10.0"),
            ((-np.inf,), ValueError, "lo: expected a finite number"),
            ((np.nan,), ValueError, "lo: expected a number, got NaN"),
            (("1",), TypeError, "lo: expected a real number, got str"),
            ((True,), TypeError, "lo: expected a real number, got bool"),
            ((10**400,), ValueError, "lo: expected a number a float can hold"),
            ((), TypeError, "lo: expected a number, for bounded, got none"),
            ((1, 2, 3), TypeError, "bounded: expected lo, hi, got 3 numbers"),
        ):
            with pytest.raises(error, match=f"^jitgemm: {words}"):
                make(*bad)
        with pytest.raises(TypeError, match=r"^jitgemm: bounded: expected lo, hi, got another low"):
            make(low=3)
        with pytest.raises(TypeError, match=r"^jitgemm: bounded: expected lo, hi, got another lo"):
            make(3, lo=3)
    for bad in ("bounded", "relu", 3):
        with pytest.raises(ValueError, match=r"^jitgemm: name: .*has been registered"):
            jitgemm.unregister_activation(bad)  # type: ignore[arg-type]
    for bad in ("add", "bounded", 3, None):
        with pytest.raises(ValueError, match=r"^jitgemm: activation: expected one of relu"):
            jitgemm.activation(bad)  # type: ignore[arg-type]


def test_documentation_names_every_row() -> None:
    names = [row.name for row in OPERATIONS.values() if row.activation]
    said = jitgemm.gemm.__doc__
    assert all(re.search(rf"\b{name}\b", said) for name in names)
    assert all(row.doc for row in OPERATIONS.values() if row.activation)
    with open(f"{ROOT}/README.md") as file:
        readme = file.read().replace(" ", "_")
    assert all(re.search(name, readme) or name == "gelu_tanh" for name in names)


# -- of integers -----------------------------------------------------------------------------------

BOUNDED = ("relu", jitgemm.clip(-9, 20), jitgemm.clip(-np.inf, 5), jitgemm.clip(3, 2**70))
PAIRS = (("i1", "i1"), ("u1", "i1"), ("u1", "u1"), ("i4", "i4"), ("i4", "i2"), ("i8", "i8"))


@pytest.mark.usefixtures("low")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pair", PAIRS, ids="@".join)
def test_activations_of_integers(pair: Any, backend: str, rng: np.random.Generator) -> None:
    for m, n, k in SIZES:
        a, b = anything(rng, (m, k), pair[0]), anything(rng, (k, n), pair[1])
        kind = exact_gemm(a, b).dtype
        bias, c = anything(rng, (n,), kind), anything(rng, (m, n), kind)
        full = {"alpha": -3, "beta": 2, "c": c, "bias": bias}
        for mine, others in zip(BOUNDED, ({}, full, {}, full), strict=True):
            given: dict[str, Any] = {**others, "activation": mine}
            want, given["backend"] = exact_gemm(a, b, **given), backend
            for _ in range(2):
                same_bits(jitgemm.gemm(a, b, **given), want, (m, n, k, mine))
            if a.itemsize == b.itemsize:
                got = jitgemm.gemm(a, jitgemm.prepack_rhs(b), **given)
                same_bits(got, want, (m, n, k, mine))
            got = jitgemm.gemm(np.asfortranarray(a), b, threads=2, **given)
            same_bits(got, want, (m, n, k, mine))
            if others is not full:
                for x in jitgemm.gemm_batched([a, a], b, **given):
                    same_bits(x, want, (m, n, k, mine))


@pytest.mark.usefixtures("low")
@pytest.mark.parametrize("backend", BACKENDS)
def test_before_requantisation(backend: str, rng: np.random.Generator) -> None:
    for (m, n, k), dtype in itertools.product(((5, 33, 7), (17, 65, 520)), ("i1", "u1")):
        a, b = anything(rng, (m, k), "u1"), anything(rng, (k, n), "i1")
        for scale in (0.001, rng.uniform(0.001, 0.01, (m, 1)), 2.0):
            rule = jitgemm.Requantize(scale, 5, dtype, bias=np.int32(1000))
            for mine in BOUNDED:
                given = {"a_zero_point": 3, "b_zero_point": -4, "requantize": rule}
                want = exact_gemm(a, b, activation=mine, **given)
                for _ in range(2):
                    got = jitgemm.gemm(a, b, activation=mine, backend=backend, **given)
                    same_bits(got, want, (m, n, k, mine))


def test_bounds_of_integers_are_exact(rng: np.random.Generator) -> None:
    low, high = -(2**62) - 1, 2**62 + 1
    a, b = anything(rng, (5, 3), np.int64), anything(rng, (3, 40), np.int64)
    want = np.clip(exact_gemm(a, b), low, high)
    assert (want == low).any()
    assert (want == high).any()
    for backend in BACKENDS:
        same_bits(jitgemm.gemm(a, b, activation=jitgemm.clip(low, high), backend=backend), want)


def test_one_of_integers_from_outside(rng: np.random.Generator) -> None:
    def emit(k: Any, v: Any, shift: Any) -> Any:
        return k.op("maximum", k.op("sub", v, shift), k.literal(0, v.element, v.lanes))

    row = {"emit": emit, "meaning": lambda v, shift: np.maximum(v - shift, 0)}
    with activation("soft", parameters=("shift",), integers=True, cheap=True, **row) as make:
        for kind, backend in itertools.product(("i1", "i4", "i8", "f4", "f8"), BACKENDS):
            a, b = integers(rng, (5, 9), kind), integers(rng, (9, 40), kind)
            sums = exact_gemm(a, b)
            want = np.maximum(sums - sums.dtype.type(3), 0)
            same_bits(jitgemm.gemm(a, b, activation=make(3), backend=backend), want, kind)
