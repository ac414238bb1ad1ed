"""ONNX's own tests of MatMulInteger and QLinearMatMul, by thin adapters on top of ``gemm``."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import jitgemm
from oracle import NARROW, anything, same_bits

Array = np.ndarray[Any, Any]
OPERATORS = ("MatMulInteger", "QLinearMatMul")


def _shipped() -> list[Any]:
    """The node tests of both operators: importing their modules lists them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case import node
        from onnx.backend.test.case.node import matmulinteger, qlinearmatmul  # noqa: F401

    return [x for x in node._NodeTestCases if x.model.graph.node[0].op_type in OPERATORS]


SHIPPED = _shipped()


def _along(x: Any, axis: int) -> Any:
    """One number, or one per row (axis -2) or column (axis -1), as ``gemm`` takes them."""
    x = np.asarray(x)
    if x.size == 1:
        return x.reshape(())[()]
    return x.reshape(-1, 1) if axis == -2 else x.reshape(1, -1)


def matmul_integer(a: Array, b: Array, a_zero: Any = 0, b_zero: Any = 0) -> Array:
    points = {"a_zero_point": _along(a_zero, -2), "b_zero_point": _along(b_zero, -1)}
    return jitgemm.gemm(a, b, **points)


def qlinear_matmul(
    a: Array, a_scale: Any, a_zero: Any, b: Array, b_scale: Any, b_zero: Any, y_scale: Any,
    y_zero: Any,
) -> Array:  # fmt: skip
    left, right = (_along(np.float64(x), i) for x, i in ((a_scale, -2), (b_scale, -1)))
    y_zero = np.asarray(y_zero)
    rule = jitgemm.Requantize(
        left * right / np.float64(_along(y_scale, -1)), int(_along(y_zero, -1)), y_zero.dtype
    )
    points = {"a_zero_point": _along(a_zero, -2), "b_zero_point": _along(b_zero, -1)}
    return jitgemm.gemm(a, b, requantize=rule, **points)


ADAPTERS = {"MatMulInteger": matmul_integer, "QLinearMatMul": qlinear_matmul}


def test_there_are_tests_of_both() -> None:
    assert {x.model.graph.node[0].op_type for x in SHIPPED} == set(OPERATORS)
    assert len(SHIPPED) >= 9


@pytest.mark.parametrize("case", SHIPPED, ids=lambda c: c.name)
def test_shipped(case: Any) -> None:
    for inputs, outputs in case.data_sets:
        got = ADAPTERS[case.model.graph.node[0].op_type](*inputs)
        same_bits(got, outputs[0])


def _reference(*given: Any) -> Array:
    """The operator's definition: real numbers, quantised again."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = given
    sums = (a.astype(np.int64) - a_zero) @ (b.astype(np.int64) - b_zero)
    info = np.iinfo(y_zero.dtype)
    y = np.rint(sums * (np.float64(a_scale) * b_scale / y_scale)) + y_zero
    return np.clip(y, info.min, info.max).astype(y_zero.dtype)


SHAPES = [
    ((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (3, 4, 5)),
]  # fmt: skip


@pytest.mark.parametrize("types", [(x, y) for x in NARROW for y in NARROW], ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_shapes_scales_and_zero_points(types: Any, shapes: Any, rng: np.random.Generator) -> None:
    a, b = (anything(rng, s, t) for s, t in zip(shapes, types, strict=True))
    # Powers of two, so that every order of multiplying them is exact.
    scales = {"one": 2.0**-7, "rows": 2.0 ** -rng.integers(5, 9, (3, 1)),
              "columns": 2.0 ** -rng.integers(5, 9, (1, 5))}  # fmt: skip
    for left, right in (("one", "one"), ("rows", "one"), ("one", "columns")):
        y_zero = np.array(3, types[0])
        rows, columns = anything(rng, (3, 1), types[0]), anything(rng, (1, 5), types[1])
        for a_zero, b_zero in ((rows, columns), (rows[0, 0], columns[0, 0])):
            integer = matmul_integer(a, b, a_zero, b_zero)
            wide = [x.astype(np.int64) for x in (a_zero, b_zero)]
            want = (a.astype(np.int64) - wide[0]) @ (b.astype(np.int64) - wide[1])
            same_bits(integer, want.astype(np.int32))
            given = (scales[left], a_zero), (scales[right], b_zero)
            got = qlinear_matmul(a, *given[0], b, *given[1], 0.5, y_zero)
            want = _reference(a, scales[left], wide[0], b, scales[right], wide[1], 0.5, y_zero)
            same_bits(got, want)
