"""Operands of an epilogue: scales per row and column, post-ops, and floats made of integer sums."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import jitgemm
from jitgemm.planner.route import Dot, RowStreaming, SplitDepth
from oracle import (
    BF16,
    HALVES,
    NARROW,
    TINY,
    another_machine,
    integers,
    pairwise,
    same_bits,
    strided,
)
from outside import emit_gate, gated, post_op

Array = np.ndarray
FLOATS = (np.dtype(np.float32), np.dtype(np.float64), *HALVES)
OUTS = (np.dtype(np.float32), *HALVES)
SHAPES = ((1, 33, 7), (3, 17, 40), (31, 50, 66), (70, 40, 130), (5, 9, 3000))


def _sums(a: Array, b: Array) -> Array:
    return (a.astype(np.int64) @ b.astype(np.int64)).astype(np.float32)


def _quantised(rng: np.random.Generator, shape: tuple[int, int], dtype: np.dtype) -> Array:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def _scales(rng: np.random.Generator, *shape: int) -> Array:
    return (rng.random(shape) + 0.5).astype(np.float32) / 1000


def _handles(a: Array, b: Array, packed: str) -> tuple[Any, Any]:
    left = jitgemm.prepack_lhs(a) if packed == "a" else a
    return left, jitgemm.prepack_rhs(b) if packed == "b" else b


@pytest.mark.parametrize(
    ("shape", "packed", "types", "out"),
    pairwise(SHAPES, ("", "a", "b"), tuple(itertools.product(NARROW, NARROW)), OUTS),
)
def test_scaled_integers_are_rounded_once_per_step(
    shape: tuple[int, int, int], packed: str, types: Any, out: np.dtype, rng: np.random.Generator
) -> None:
    m, n, k = shape
    a, b = _quantised(rng, (m, k), types[0]), _quantised(rng, (k, n), types[1])
    rows, columns, bias = _scales(rng, m, 1), _scales(rng, n), _scales(rng, n)
    left, right = _handles(a, b, packed)
    given: dict[str, Any] = {"bias": bias, "activation": "relu", "out_dtype": out}
    # The second call is of the same form, with other numbers.
    for x, y in ((rows, columns), (rows[::-1], columns * 2)):
        want = np.maximum(_sums(a, b) * x * y + bias, 0)
        got = jitgemm.gemm(left, right, a_scale=x, b_scale=y, **given)
        same_bits(got, want.astype(out))
    one = jitgemm.gemm(left, right, b_scale=0.0025, out_dtype=out)
    same_bits(one, (_sums(a, b) * np.float32(0.0025)).astype(out))


@pytest.mark.parametrize("layout", ["rows", "columns", "apart"])
def test_scaled_integers_with_every_other_term(layout: str, rng: np.random.Generator) -> None:
    m, n, k = 37, 41, 29
    a, b = _quantised(rng, (m, k), NARROW[0]), _quantised(rng, (k, n), NARROW[1])
    c, bias = integers(rng, (m, n), np.float32), integers(rng, (m, 1), np.float32)
    points = rng.integers(-9, 9, m), rng.integers(0, 9, n)
    wide = (a.astype(np.int64) - points[0][:, np.newaxis]) @ (b.astype(np.int64) - points[1])
    rows = np.float32(2.0) ** rng.integers(-3, 3, m).astype(np.float32)
    want = wide.astype(np.float32) * rows[:, np.newaxis] * np.float32(0.5)
    want = 4 * want - 2 * c + bias
    out = {"rows": np.zeros((m, n), np.float32), "columns": np.zeros((n, m), np.float32).T,
           "apart": np.zeros((m, 2 * n), np.float32)[:, ::2]}[layout]  # fmt: skip
    got = jitgemm.gemm(
        a, b, a_scale=rows, b_scale=0.5, alpha=4, beta=-2, c=c, bias=bias, out=out,
        a_zero_point=points[0], b_zero_point=points[1],
    )  # fmt: skip
    assert got is out
    same_bits(np.ascontiguousarray(out), want)
    got = jitgemm.gemm(a, b, a_scale=rows, alpha=0, beta=1, c=c)
    same_bits(got, c + np.float32(0))


def _operand(rng: np.random.Generator, kind: str, shape: tuple[int, int], dtype: Any) -> Any:
    m, n = shape
    shapes = {"one": (), "column": (n,), "one row": (1, n), "row": (m, 1), "full": (m, n)}
    return integers(rng, shapes[kind], dtype)


@pytest.mark.parametrize(
    ("dtype", "shape", "kind", "layout", "packed"),
    pairwise(
        FLOATS, ((1, 1, 5), (1, 40, 9), (3, 17, 12), (33, 70, 20), (4, 4, 900)),
        ("one", "column", "one row", "row", "full"), ("rows", "columns", "strided"),
        ("", "a", "b", "b columns"),
    ),
)  # fmt: skip
def test_post_ops_apply_in_order(
    dtype: np.dtype, shape: tuple[int, int, int], kind: str, layout: str, packed: str,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    m, n, k = shape
    a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
    if packed == "b columns":
        b = np.asfortranarray(b)
    left, right = _handles(a, b, packed)
    x, y = _operand(rng, kind, (m, n), dtype), _operand(rng, "column", (m, n), dtype)
    wide = np.float64
    sums = a.astype(wide) @ b.astype(wide)
    want = np.maximum(sums * np.asarray(x, wide), 0) - np.asarray(y, wide)
    ops = [("mul", x), "relu", ("sub", y)]
    out = {"rows": np.zeros((m, n), dtype), "columns": np.zeros((n, m), dtype).T,
           "strided": strided(np.zeros((m, n), dtype), 2)}[layout]  # fmt: skip
    jitgemm.gemm(left, right, post_ops=ops, out=out)
    same_bits(np.ascontiguousarray(out) + dtype.type(0), want.astype(dtype) + dtype.type(0))
    # Another call of the same form, with another operand.
    jitgemm.gemm(left, right, post_ops=[("mul", x + x), "relu", ("sub", y)], out=out)
    want = np.maximum(sums * 2 * np.asarray(x, wide), 0) - np.asarray(y, wide)
    same_bits(np.ascontiguousarray(out) + dtype.type(0), want.astype(dtype) + dtype.type(0))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "minimum", "maximum"])
def test_every_operation_with_an_operand(name: str, rng: np.random.Generator) -> None:
    a, b = integers(rng, (9, 5), np.float32), integers(rng, (5, 21), np.float32)
    x = np.exp2(rng.integers(-2, 3, (9, 21))).astype(np.float32)
    numpy = getattr(np, {"sub": "subtract", "mul": "multiply", "div": "divide"}.get(name, name))
    for backend in ("jit", "blas"):
        got = jitgemm.gemm(a, b, post_ops=[(name, x)], backend=backend)
        same_bits(got + np.float32(0), numpy(a @ b, x) + np.float32(0))


@pytest.mark.parametrize("route", [Dot, RowStreaming, SplitDepth])
def test_every_route_reads_operands(route: type, rng: np.random.Generator) -> None:
    m, n, k = {Dot: (1, 1, 300), RowStreaming: (2, 500, 40), SplitDepth: (5, 7, 2000)}[route]
    a, b = integers(rng, (m, k), np.float32), integers(rng, (k, n), np.float32)
    full, rows = integers(rng, (m, n), np.float32), integers(rng, (m, 1), np.float32)
    with another_machine(TINY, streaming_row_bytes=64, split_depth=1000):
        options: dict[str, Any] = {"post_ops": [("add", full), ("mul", rows)], "a_scale": rows}
        plan = jitgemm.plan(a, b, **options)
        assert isinstance(plan.executable.plan.route, route)  # type: ignore[union-attr]
        want = ((a @ b) * rows + full) * rows
        same_bits(plan(a, b) + np.float32(0), want + np.float32(0))
        same_bits(jitgemm.gemm(a, b, **options) + np.float32(0), want + np.float32(0))


@pytest.mark.parametrize(
    ("activation", "dtype"), [("gelu", np.float32), ("silu", np.float64), ("tanh", BF16)]
)
def test_operands_after_a_function(activation: str, dtype: Any, rng: np.random.Generator) -> None:
    """A function is mapped over a stored tile, and so is what follows it."""
    a, b = integers(rng, (19, 8), dtype), integers(rng, (8, 37), dtype)
    y = np.exp2(rng.integers(-3, 3, (19, 37))).astype(np.float32)
    got = jitgemm.gemm(a, b, activation=activation, post_ops=[("mul", y)])
    want = jitgemm.gemm(a, b, activation=activation) * y.astype(dtype)
    same_bits(got + got.dtype.type(0), want.astype(got.dtype) + got.dtype.type(0))
    # The other way round, powers of two make no difference to one side of it.
    got = jitgemm.gemm(a, b, post_ops=[("mul", np.float32(1)), activation, ("mul", y)])
    same_bits(got + got.dtype.type(0), want.astype(got.dtype) + got.dtype.type(0))


def test_operands_of_stacks_broadcast(rng: np.random.Generator) -> None:
    a, b = integers(rng, (3, 2, 6, 5), np.float32), integers(rng, (2, 5, 7), np.float32)
    sums = a @ b
    for shape in ((), (7,), (6, 1), (2, 6, 7), (3, 1, 1, 7), (3, 2, 6, 7), (3, 1, 6, 1)):
        x = integers(rng, shape, np.float32)
        for threads in (1, 2):
            got = jitgemm.gemm(a, b, post_ops=[("mul", x), ("add", x)], threads=threads)
            same_bits(got + np.float32(0), sums * x + x + np.float32(0), shape)
    rows, columns = integers(rng, (3, 1, 6, 1), np.float32), integers(rng, (2, 1, 7), np.float32)
    out = np.zeros((3, 2, 7, 6), np.float32).swapaxes(-1, -2)
    jitgemm.gemm(a, b, a_scale=rows, b_scale=columns, post_ops=[("add", sums)], out=out)
    same_bits(
        np.ascontiguousarray(out) + np.float32(0), sums * rows * columns + sums + np.float32(0)
    )


def test_lists_and_plans_take_them(rng: np.random.Generator) -> None:
    a, b = _quantised(rng, (9, 8), NARROW[0]), _quantised(rng, (8, 6), NARROW[0])
    scale, y = _scales(rng, 6), _scales(rng, 9, 6)
    want = _sums(a, b) * scale * y
    options: dict[str, Any] = {"b_scale": scale, "post_ops": [("mul", y)]}
    for _ in range(2):
        for got in jitgemm.gemm_batched([a, a], [b, b], **options):
            same_bits(got, want)
    plan = jitgemm.plan(a, b, **options)
    same_bits(plan(a, b), want)
    # A plan keeps what it was given.
    scale[:] = 0
    y[:] = 0
    same_bits(plan(a, b), want)


def test_an_operand_may_be_the_memory_of_the_result(rng: np.random.Generator) -> None:
    a, b = integers(rng, (40, 30), np.float32), integers(rng, (30, 50), np.float32)
    for out in (integers(rng, (40, 50), np.float32), integers(rng, (50, 40), np.float32).T):
        for _ in range(2):
            want = (a @ b) * out
            jitgemm.gemm(a, b, post_ops=[("mul", out)], out=out)
            same_bits(np.ascontiguousarray(out) + np.float32(0), want + np.float32(0))
            out[...] = np.sign(out)


@pytest.mark.parametrize("backend", ["jit", "blas"])
@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"a_scale": np.ones(5)}, ValueError, r"a_scale: .*\(4, 1\)"),
        ({"b_scale": np.ones((4, 1))}, ValueError, r"b_scale: .*\(1, 6\)"),
        ({"a_scale": 1j}, TypeError, "a_scale"),
        ({"a_scale": np.ones(4, complex)}, TypeError, "a_scale: .*real numbers"),
        ({"a_scale": "x"}, TypeError, "a_scale"),
        ({"post_ops": "relu"}, TypeError, "post_ops: .*list"),
        ({"post_ops": ["nothing"]}, ValueError, "activation"),
        ({"post_ops": [None]}, ValueError, r"post_ops\[0\]"),
        ({"post_ops": [("mul", 1), ("what", 2)]}, ValueError, r"post_ops\[1\]: .*add, sub"),
        ({"post_ops": [("mul", 1, 2)]}, TypeError, r"post_ops\[0\]: .*pair"),
        ({"post_ops": [("mul", np.ones((4, 5)))]}, ValueError, r"post_ops\[0\]: .*\(4, 6\)"),
        ({"post_ops": [("mul", 1)] * 5}, ValueError, "post_ops: .*at most 4"),
        ({"post_ops": [("mul", 1)] * 3, "a_scale": 1, "b_scale": 1}, ValueError, "at most 4"),
    ],
)
def test_what_is_no_operand_is_refused(
    options: dict[str, Any], error: type[Exception], why: str, backend: str
) -> None:
    a, b = np.ones((4, 3), np.float32), np.ones((3, 6), np.float32)
    for _ in range(2):
        with pytest.raises(error, match=why):
            jitgemm.gemm(a, b, backend=backend, **options)


@pytest.mark.parametrize("backend", ["jit", "blas"])
@pytest.mark.parametrize("cheap", [False, True])
def test_one_from_outside(backend: str, cheap: bool, rng: np.random.Generator) -> None:  # noqa: FBT001
    with post_op(cheap=cheap):
        for dtype, (m, n, k) in itertools.product((np.float32, np.float64), SHAPES[:3]):
            a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
            for x in (integers(rng, s, dtype) for s in ((m, n), (n,), (m, 1))):
                options: dict[str, Any] = {"post_ops": ["relu", ("gate", x)], "backend": backend}
                want = gated(np.maximum(a @ b, 0), x)
                same_bits(jitgemm.gemm(a, b, **options) + dtype(0), want + dtype(0))
                out = np.zeros((n, m), dtype).T
                jitgemm.gemm(a, jitgemm.prepack_rhs(b), out=out, **options)
                same_bits(np.ascontiguousarray(out) + dtype(0), want + dtype(0))
        # Of integers, with a scale of their own before.
        q = _quantised(rng, (5, 9), NARROW[0])
        x = integers(rng, (5, 5), np.float32)
        got = jitgemm.gemm(q, q.T, b_scale=0.5, post_ops=[("gate", x)], backend=backend)
        want = gated(_sums(q, q.T) * np.float32(0.5), x)
        same_bits(got + np.float32(0), want + np.float32(0))
        plan = jitgemm.plan(q, q.T, b_scale=0.5, post_ops=[("gate", x)], backend=backend)
    if backend == "jit":
        same_bits(plan(q, q.T) + np.float32(0), want + np.float32(0))
    with pytest.raises(ValueError, match="one of add"):
        jitgemm.gemm(q, q.T, b_scale=0.5, post_ops=[("gate", x)], backend=backend)


def test_what_may_not_be_registered() -> None:
    good = {"emit": emit_gate, "meaning": gated}
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"name": "mul"}, ValueError, r"name: .*not known"),
        ({"name": "v"}, ValueError, r"name: .*not known"),
        ({"name": "a b"}, TypeError, r"name: .*identifier"),
        ({"emit": 3}, TypeError, r"emit: .*function"),
        ({"meaning": lambda v, x: v + x}, ValueError, r"meaning: "),
        ({"emit": lambda k, v: v}, ValueError, r"emit: "),
    ]
    for change, error, why in wrong:
        with pytest.raises(error, match=why):
            jitgemm.register_post_op(**{"name": "other", **good, **change})
    for name in ("mul", "relu", "nothing"):
        with pytest.raises(ValueError, match=r"name: .*registered"):
            jitgemm.unregister_post_op(name)
    with post_op(), pytest.raises(ValueError, match="activation"):
        jitgemm.gemm(np.ones((2, 2)), np.ones((2, 2)), activation="gate")


def test_integers_without_scales_stay_integers() -> None:
    a = np.ones((3, 3), np.int8)
    for options in ({"post_ops": [("mul", 2)]}, {"post_ops": ["relu"]}):
        with pytest.raises(TypeError, match=r"post_ops: .*integers"):
            jitgemm.gemm(a, a, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a_scale: .*integers"):
        jitgemm.gemm(a.astype(np.int32), a.astype(np.int32), a_scale=2.0)
    with pytest.raises(TypeError, match=r"a_scale: .*complex"):
        jitgemm.gemm(a.astype(np.complex64), a.astype(np.complex64), a_scale=2.0)
    with pytest.raises(TypeError, match=r"out_dtype: .*float32, float16 or bfloat16"):
        jitgemm.gemm(a, a, a_scale=2.0, out_dtype=np.float64)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        got = jitgemm.gemm(a, a, a_scale=2.0, out_dtype=dtype)
        same_bits(got, np.full((3, 3), 6, dtype))


def test_explain_names_scales_and_operands() -> None:
    a, b = np.ones((4, 3), np.int8), np.ones((3, 6), np.int8)
    text = jitgemm.plan(a, b, a_scale=np.ones(4), b_scale=np.ones(6)).explain()
    assert "epilogue" in text
    assert "row_col" in text
    text = jitgemm.plan(a, b, a_scale=2.0, backend="blas").explain()
    assert "scaled" in text
