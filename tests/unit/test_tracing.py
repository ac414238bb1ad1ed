"""Traced epilogues: what becomes a program, which one, and what is refused in which words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm import math as jm
from jitgemm.api.activations import resolve_activation
from jitgemm.api.reference import reference
from jitgemm.api.tracing import trace
from jitgemm.errors import LanguageError
from jitgemm.kernels.expression import ACTIVATIONS, Program
from jitgemm.kernels.operations import OPERATIONS

Function = Callable[[Any, Any, Any], Any]

V, ROW, COL = ("v", ()), ("row", ()), ("col", ())


def const(i: int) -> tuple[str, tuple[int]]:
    return ("const", (i,))


def array(dtype: Any = np.float32) -> Any:
    """Ordinary and special values."""
    rng = np.random.default_rng(5)
    v = rng.standard_normal((6, 7)).astype(dtype) * 3
    v.flat[:7] = [0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, 1e-42]
    return v


def indices(v: Any) -> tuple[Any, Any]:
    return np.arange(v.shape[0], dtype=v.dtype)[:, None], np.arange(v.shape[1], dtype=v.dtype)


# -- what becomes of a function --------------------------------------------------------------------


def test_steps_are_those_of_the_function() -> None:
    program, constants = trace(lambda v, row, col: (v + 2) * row - col)
    assert program.steps == (
        V, ROW, COL, const(0), ("add", (0, 3)), ("mul", (4, 1)), ("sub", (5, 2)),
    )  # fmt: skip
    assert constants == (2.0,)
    assert program.constants == 1


def test_common_subexpressions_and_equal_constants_are_shared() -> None:
    program, constants = trace(lambda v, row, col: (v * 2 + 1) * (v * 2.0 + np.float32(1)))
    assert program.steps == (
        V, const(0), ("mul", (0, 1)), const(1), ("add", (2, 3)), ("mul", (4, 4)),
    )  # fmt: skip
    assert constants == (2.0, 1.0)


def test_constants_are_equal_by_their_bits() -> None:
    _, constants = trace(lambda v, row, col: (v + 0.0) * (v + -0.0) + math.nan * v * math.nan)
    assert [math.copysign(1, c) for c in constants[:2]] == [1, -1]
    assert len(constants) == 3


def test_a_program_depends_on_structure_only() -> None:
    one, first = trace(lambda v, row, col: v * 2 + 3)
    other, second = trace(lambda x, i, j: x * 5.5 + np.float64(-1))
    assert one == other
    assert hash(one) == hash(other)
    assert one.name == other.name
    assert first != second


def test_what_does_not_reach_the_result_is_left_out() -> None:
    def f(v: Any, row: Any, col: Any) -> Any:
        jm.exp(v * 77 + row)
        return v + 1

    program, constants = trace(f)
    assert program.steps == (V, const(0), ("add", (0, 1)))
    assert constants == (1.0,)
    assert not program.uses("row")
    assert not program.uses("exp")


@pytest.mark.parametrize(
    "f, steps, constants",
    [
        (lambda v, row, col: v, (V,), ()),
        (lambda v, row, col: col, (COL,), ()),
        (lambda v, row, col: 3, (const(0),), (3.0,)),
        (lambda v, row, col: np.float32(0.5), (const(0),), (0.5,)),
        (lambda v, row, col: v**0, (const(0),), (1.0,)),
        (lambda v, row, col: +v, (V,), ()),
        (lambda v, row, col: v**1, (V,), ()),
        (lambda v, row, col: v**0.5, (V, ("sqrt", (0,))), ()),
        (lambda v, row, col: v**3, (V, ("mul", (0, 0)), ("mul", (0, 1))), ()),
        (lambda v, row, col: v**4, (V, ("mul", (0, 0)), ("mul", (1, 1))), ()),
    ],
)
def test_small_programs(f: Function, steps: Any, constants: Any) -> None:
    program, got = trace(f)
    assert (program.steps, got) == (steps, constants)


def test_transposed() -> None:
    program, _ = trace(lambda v, row, col: jm.where(row <= col, v, 0))
    other = program.transposed()
    assert program.uses("row")
    assert other != program
    assert other.transposed() == program
    assert other.steps == (V, ("col", ()), ("row", ()), const(0), ("select_le", (1, 2, 0, 3)))
    no_indices, _ = trace(lambda v, row, col: v * v)
    assert no_indices.transposed() == no_indices


def test_names() -> None:
    for name, program in ACTIVATIONS.items():
        assert program.name == name
    program, _ = trace(lambda v, row, col: v + 1)
    assert program.name.isidentifier()
    assert len(program.name) < 16
    relu, _ = trace(lambda v, row, col: jm.maximum(v, 0))
    assert relu.name != "relu"


def test_cheap_programs() -> None:
    cheap = {name for name, program in ACTIVATIONS.items() if program.cheap}
    assert cheap == {"relu", "leaky_relu", "clip", "hardswish"}
    assert trace(lambda v, row, col: jm.where(v > row, v, 0.1 * v))[0].cheap
    assert not trace(lambda v, row, col: jm.exp(v))[0].cheap
    assert not trace(lambda v, row, col: sum((v + i for i in range(20)), v))[0].cheap


@pytest.mark.parametrize(
    "steps",
    [(), (("add", (0, 1)),), (V, ("add", (0,))), (V, ("abs", (1,))), (V, ("sin", (0,))),
     (("v", (0,)),), (("const", ()),)],
)  # fmt: skip
def test_programs_are_checked(steps: Any) -> None:
    with pytest.raises(LanguageError):
        Program(steps)


# -- functions are their own reference -------------------------------------------------------------

# One or two roundings of a function do not show at this scale.
FUNCTIONS: list[Function] = [
    lambda v, row, col: v * 2 - 1 / (v + 3),
    lambda v, row, col: np.float32(3) - v,
    lambda v, row, col: np.float32(3) / v + np.float32(0.25) * v,
    lambda v, row, col: -abs(v) + v**2 + v**5,
    lambda v, row, col: jm.where(v > 0, v, 0.25 * v),
    lambda v, row, col: jm.where((v > -1) & (v < 1), v, row),
    lambda v, row, col: jm.where((v < -1) | (v >= 1), v, col),
    lambda v, row, col: jm.where(~((v < -1) | (v > 1) & (row != col)), v, -v),
    lambda v, row, col: jm.where(v == v, v, 0),  # noqa: PLR0124
    lambda v, row, col: jm.where(v != v, 7.0, v),  # noqa: PLR0124
    lambda v, row, col: jm.where(~(v >= 0), 1, 2) + 0 * v,
    lambda v, row, col: jm.where(np.float32(1) < v, 1, 2) + 0 * v,
    lambda v, row, col: jm.where(row >= col, v, -math.inf),
    lambda v, row, col: jm.minimum(jm.maximum(v, -1), 1.5),
    lambda v, row, col: jm.exp(v) + jm.tanh(v) * jm.sigmoid(v),
    lambda v, row, col: jm.log(jm.abs(v)) * jm.sqrt(jm.abs(v)),
    lambda v, row, col: 0.5 * v * (1 + jm.erf(v / 2**0.5)),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("f", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_function_on_arrays_is_its_own_reference(f: Function, dtype: Any) -> None:
    v = array(dtype)
    row, col = indices(v)
    program, constants = trace(f)
    got, want = reference(program, constants, v, row, col), f(v, row, col)
    assert got.shape == v.shape
    assert got.dtype == v.dtype
    few = 20 * np.finfo(dtype).eps
    np.testing.assert_allclose(got, np.broadcast_to(want, v.shape), rtol=few, atol=few)


def test_functions_on_numbers_and_arrays() -> None:
    assert jm.exp(0.0) == 1
    assert jm.erf(1) == math.erf(1)
    assert jm.sigmoid(-1000.0) == 0
    assert math.isnan(jm.sigmoid(math.nan))
    assert jm.where(True, 1, 2) == 1
    v = array()
    for name in ("exp", "sqrt", "tanh", "erf", "sigmoid", "abs", "log"):
        with np.errstate(all="ignore"):
            got = getattr(jm, name)(v)
        assert (got.dtype, got.shape) == (v.dtype, v.shape), name


# -- what is refused -------------------------------------------------------------------------------


def branch(v: Any, row: Any, col: Any) -> Any:
    return max(0, v)


def chained(v: Any, row: Any, col: Any) -> Any:
    return jm.where(-1 < v < 1, v, 0)


def stored(v: Any, row: Any, col: Any) -> Any:
    v[0] = 1
    return v


REFUSED: list[tuple[Function, str]] = [
    (branch, "an if"),
    (chained, "chained comparison"),
    (stored, "assignment"),
    (lambda v, row, col: v and 1, "an if"),
    (lambda v, row, col: max(v, 0), "max"),
    (lambda v, row, col: float(v), r"float\(\)"),
    (lambda v, row, col: int(v), r"int\(\)"),
    (lambda v, row, col: math.exp(v), "math module"),
    (lambda v, row, col: math.floor(v), "floor"),
    (lambda v, row, col: round(v), "round"),
    (lambda v, row, col: range(10)[v], "index"),
    (lambda v, row, col: np.sin(v), r"numpy\.sin"),
    (lambda v, row, col: np.sum(v), r"numpy\.sum"),
    (lambda v, row, col: np.where(v > 0, v, 0), r"array|numpy\.where"),
    (lambda v, row, col: np.asarray(v), "array"),
    (lambda v, row, col: v * np.ones(3), r"ndarray of shape \(3,\)"),
    (lambda v, row, col: np.ones(3) * v, r"ndarray of shape \(3,\)"),
    (lambda v, row, col: v * 1j, "complex"),
    (lambda v, row, col: v + "x", "str"),
    (lambda v, row, col: v * 10**400, "an integer beyond"),
    (lambda v, row, col: v[0], "indexing"),
    (lambda v, row, col: list(v), "iteration"),
    (lambda v, row, col: len(v), "len"),
    (lambda v, row, col: v.real, r"\.real"),
    (lambda v, row, col: v % 2, "%"),
    (lambda v, row, col: v // 2, "//"),
    (lambda v, row, col: 2**v, "exponent"),
    (lambda v, row, col: v**row, "exponent"),
    (lambda v, row, col: v**17, "17"),
    (lambda v, row, col: v**-1, "-1"),
    (lambda v, row, col: v**1.5, "1.5"),
    (lambda v, row, col: v > 0, "a condition"),
    (lambda v, row, col: (v > 0) * v, "a condition"),
    (lambda v, row, col: np.float64(2) * (v > 0), "a condition"),
    (lambda v, row, col: (v > 0) & True, "a bool"),
    (lambda v, row, col: jm.exp(v > 0), "a condition"),
    (lambda v, row, col: jm.where(v, 1, 2), "where on a Value"),
    (lambda v, row, col: jm.where(True, v, 2), "constant condition"),
    (lambda v, row, col: None, "returns nothing"),
    (lambda v, row, col: (v, v), "several values"),
    (lambda v, row, col: np.ones((2, 2)), r"ndarray of shape \(2, 2\)"),
    (lambda v, row, col: "v", "str"),
]


@pytest.mark.parametrize("f, what", REFUSED)
def test_what_is_refused(f: Function, what: str) -> None:
    with pytest.raises(TypeError, match=rf"^jitgemm: epilogue: expected .* got .*({what})"):
        trace(f)


def test_only_functions_are_traced() -> None:
    with pytest.raises(TypeError, match=r"^jitgemm: epilogue: .* a int instead of a function"):
        trace(3)


def test_values_do_not_survive_their_trace() -> None:
    kept = []
    trace(lambda v, row, col: kept.append(v) or v)
    with pytest.raises(TypeError, match=r"^jitgemm: epilogue: .* another epilogue"):
        trace(lambda v, row, col: v + kept[0])


def test_errors_of_the_function_are_its_own() -> None:
    with pytest.raises(ZeroDivisionError):
        trace(lambda v, row, col: v + 1 / 0)


# -- activations -----------------------------------------------------------------------------------


def test_activations_resolve() -> None:
    assert resolve_activation(None) == (None, ())
    for name, program in ACTIVATIONS.items():
        if name not in ("leaky_relu", "clip"):
            assert resolve_activation(name) == (program, ())
            assert program.constants == 0
    assert resolve_activation(jitgemm.leaky_relu(0.2)) == (ACTIVATIONS["leaky_relu"], (0.2,))
    assert resolve_activation(jitgemm.clip(-1, np.float32(6))) == (ACTIVATIONS["clip"], (-1.0, 6.0))
    assert resolve_activation(jitgemm.clip(-math.inf, math.inf))[1] == (-math.inf, math.inf)
    assert jitgemm.clip(0, 6) == jitgemm.clip(0.0, 6.0)
    assert set(OPERATIONS) >= set(ACTIVATIONS)


@pytest.mark.parametrize("bad", ["swish", "clip", "leaky_relu", "", 3, np.tanh, ("relu",)])
def test_other_activations_are_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"^jitgemm: activation: expected None, one of relu"):
        resolve_activation(bad)


@pytest.mark.parametrize(
    "make, error, what",
    [
        (lambda: jitgemm.clip(2, 1), ValueError, "lo: expected at most hi"),
        (lambda: jitgemm.clip(math.nan, 1), ValueError, "lo: .* NaN"),
        (lambda: jitgemm.clip(0, math.nan), ValueError, "hi: .* NaN"),
        (lambda: jitgemm.clip("0", 1), TypeError, "lo: .* str"),
        (lambda: jitgemm.clip(0, None), TypeError, "hi: .* NoneType"),
        (lambda: jitgemm.leaky_relu(math.nan), ValueError, "slope: .* NaN"),
        (lambda: jitgemm.leaky_relu(1j), TypeError, "slope: .* complex"),
        (lambda: jitgemm.leaky_relu(True), TypeError, "slope: .* bool"),
        (lambda: jitgemm.leaky_relu(10**400), ValueError, "slope: "),
    ],
)
def test_parameters_are_checked(make: Any, error: Any, what: str) -> None:
    with pytest.raises(error, match=f"^jitgemm: {what}"):
        make()
