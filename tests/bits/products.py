"""Products whose bits are the same on every set with fused multiply-add, by groups.

A product has one name however it is computed: by any layout, packing, threads and slicing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from inputs import numbers

import jitgemm as jg
from oracle import BF16, LAYOUTS, MANY_PIECES, TINY, Array, another_machine, is_complex, low_tiles

__all__ = ["GROUPS", "Result"]


@dataclass(frozen=True)
class Result:
    """A product that was computed."""

    name: str
    """Which product it is."""
    how: str
    """How it was computed."""
    value: Array


# One number; one row, one column, few of either; tails of the tiles and vectors of every set; one
# step of depth, the ends of a depth block of 512, several of them.
SHAPES = (
    (1, 1, 1), (1, 513, 1), (1, 70, 40), (2, 31, 3), (3, 2, 33), (5, 600, 9), (6, 9, 16),
    (7, 64, 17), (13, 40, 31), (14, 1025, 15), (16, 16, 64), (29, 530, 37), (33, 1, 65),
    (40, 1537, 5), (70, 64, 1), (37, 511, 2), (50, 512, 129),
)  # fmt: skip
LAID_OUT = (11, 530, 19)
SLICED = ((14, 1025, 15), (29, 530, 37), (3, 600, 70), (40, 9, 1))


def _operands(name: str, shape: tuple[int, int, int], a: Any, b: Any) -> tuple[Array, Array]:
    (m, k, n) = shape
    return numbers(f"{name} a", (m, k), a), numbers(f"{name} b", (k, n), b)


def _named(kind: Any, shape: tuple[int, int, int]) -> tuple[str, Array, Array]:
    name = f"{np.dtype(kind).name} {shape[0]}x{shape[1]}x{shape[2]}"
    return name, *_operands(name, shape, kind, kind)


def _shapes(kind: Any) -> Iterator[Result]:
    for shape in SHAPES:
        name, a, b = _named(kind, shape)
        yield Result(name, "gemm", jg.gemm(a, b))
        yield Result(name, "columns", jg.gemm(a, np.asfortranarray(b)))
        yield Result(name, "prepacked", jg.gemm(a, jg.prepack_rhs(b)))
        strict = f"{name} strict" if shape[0] == shape[2] == 1 else name
        yield Result(strict, "strict", jg.gemm(a, b, reproducible="strict"))
    with another_machine(TINY, **MANY_PIECES):
        for shape in SLICED:
            name, a, b = _named(kind, shape)
            for threads in (1, 2):
                how = f"in pieces, {threads} threads"
                yield Result(name, how, jg.gemm(a, b, threads=threads))
                yield Result(name, f"{how}, columns", jg.gemm(a, np.asfortranarray(b)))


def _layouts(kind: Any) -> Iterator[Result]:
    name, a, b = _named(kind, LAID_OUT)
    for how, lay in LAYOUTS.items():
        yield Result(name, f"a {how}", jg.gemm(lay(a), b))
        yield Result(name, f"b {how}", jg.gemm(a, lay(b)))
        out = lay(np.zeros((LAID_OUT[0], LAID_OUT[2]), kind))
        jg.gemm(a, b, out=out)
        yield Result(name, f"out {how}", out.astype(out.dtype.newbyteorder("=")))
    yield Result(name, "transposed", jg.gemm(b.T, a.T).T)
    yield Result(name, "a prepacked", jg.gemm(jg.prepack_lhs(a), b))
    yield Result(f"{name} conj", "conj_b", jg.gemm(a, b, conj_b=True))
    yield Result(f"{name} conj", "b.conj()", jg.gemm(a, b.conj()))


def _vectors(kind: Any) -> Iterator[Result]:
    name, a, b = _named(kind, (9, 700, 12))
    yield Result(f"{name} matvec", "matvec", jg.matvec(a, b[:, 0]))
    yield Result(f"{name} vecmat", "vecmat", jg.vecmat(a[0], b))
    yield Result(f"{name} vecdot", "vecdot", jg.vecdot(a[:, :300], a[::-1, 300:600]))


def _stacks(kind: Any) -> Iterator[Result]:
    name = f"{np.dtype(kind).name} stack 3x4 of 5x40x7"
    a, b = numbers(f"{name} a", (3, 4, 5, 40), kind), numbers(f"{name} b", (3, 1, 40, 7), kind)
    yield Result(name, "matmul", jg.matmul(a, b))
    yield Result(name, "prepacked", jg.matmul(a, jg.prepack_rhs(b)))
    one = [[jg.matmul(a[i, j], b[i, 0]) for j in range(4)] for i in range(3)]
    yield Result(name, "one by one", np.array(one))
    lists = jg.gemm_batched([a[i, j] for i in range(3) for j in range(4)], b[0, 0])
    yield Result(f"{name} with one", "gemm_batched", np.array(lists))
    yield Result(f"{name} with one", "matmul", jg.matmul(a, b[0, 0]).reshape(12, 5, 7))


def _plain(kind: Any) -> Callable[[], list[Result]]:
    parts = (_shapes, _layouts, _vectors, _stacks)
    return lambda: [result for part in parts for result in part(kind)]


# -- epilogues ------------------------------------------------------------------------------------

ACTIVATIONS: dict[str, Any] = {
    **{x: x for x in ("relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu", "hardswish")},
    "leaky_relu": jg.leaky_relu(0.3), "clip": jg.clip(-0.5, 0.75),
}  # fmt: skip


def _function(v: Any, row: Any, col: Any) -> Any:
    """All of ``jitgemm.math``, each where it is well away from its bounds."""
    f = jg.math
    smooth = f.exp(-f.abs(v)) + f.log(f.abs(v) + 1) * f.sqrt(f.abs(v)) + f.erf(v) * f.tanh(v)
    bounded = f.maximum(f.minimum(smooth, 40 + row), -col) / (1.5 + row)
    return f.where(col > row, bounded, f.sigmoid(v) - bounded * v)


EPILOGUES: dict[str, dict[str, Any]] = {
    **{name: {"activation": f, "bias": "columns"} for name, f in ACTIVATIONS.items()},
    "function": {"epilogue": _function},
    "post_ops": {"post_ops": ["silu", ("mul", "full"), ("div", "rows"), ("maximum", "columns")]},
}
# Each is code of its own: every bias of one width, the polynomials of the other.
BIASES = ((9, 21), (), (21,), (9, 1))
OF_DOUBLES = ("gelu", "gelu_tanh", "tanh", "function")


def _scaled(kind: Any) -> Iterator[Result]:
    """Factors, C and a bias; for complex numbers factors with both parts."""
    shape = (9, 600, 21)
    name, a, b = _named(kind, shape)
    c = numbers(f"{name} c", (9, 21), kind)
    alpha, beta = (0.3 - 0.7j, -1.1 + 0.2j) if is_complex(kind) else (0.3, -1.1)
    single = np.dtype(kind).name in ("float32", "complex64")
    for bias in BIASES if single else BIASES[:1]:
        given = numbers(f"{name} bias", bias, kind)
        options = {"alpha": alpha, "beta": beta, "c": c, "bias": given}
        now = f"{name} alpha beta c bias{list(bias)}"
        packed = jg.prepack_rhs(b)
        yield Result(now, "prepacked", jg.gemm(a, packed, **options))
        apart = np.empty((9, 2 * 21), kind)[:, ::2]
        yield Result(now, "strided out", jg.gemm(a, packed, out=apart, **options))
        if bias == (21,):
            yield Result(now, "gemm", jg.gemm(a, b, **options))


def _activated(kind: Any) -> Iterator[Result]:
    shape = (17, 40, 33)
    name, a, b = _named(kind, shape)
    given = {
        "columns": numbers(f"{name} columns", (33,), kind),
        "rows": numbers(f"{name} rows", (17, 1), kind) + 9,
        "full": numbers(f"{name} full", (17, 33), kind),
    }
    for what in EPILOGUES if kind == np.float32 else OF_DOUBLES:
        now = dict(EPILOGUES[what])
        if "bias" in now:
            now["bias"] = given["columns"]
        if "post_ops" in now:
            steps = now["post_ops"]
            now["post_ops"] = [x if isinstance(x, str) else (x[0], given[x[1]]) for x in steps]
        yield Result(f"{name} {what}", "gemm", jg.gemm(a, jg.prepack_rhs(b), alpha=0.125, **now))


def _epilogues(kind: Any) -> Callable[[], list[Result]]:
    parts = (_scaled,) if is_complex(kind) else (_scaled, _activated)

    def make() -> list[Result]:
        with low_tiles():
            return [result for part in parts for result in part(kind)]

    return make


# -- other types ----------------------------------------------------------------------------------


def _special() -> list[Result]:
    """Infinities, NaNs, zeros of both signs and subnormal numbers, in operands and results."""
    found = []
    for kind in (np.float32, np.float64, np.float16, BF16, np.complex64):
        name, a, b = _named(kind, (9, 70, 21))
        real = np.zeros(0, kind).real.dtype
        tiny = np.ldexp(1.0, -133 if real == BF16 else int(np.log2(float(np.finfo(real).tiny))) - 7)
        a, b = a.copy(), b.copy()
        a[1], a[2] = a[1] * tiny, 0.0
        a[3, 5], b[7, 3], a[5, 6], b[9, 4], b[:, 7] = np.inf, -np.inf, np.nan, np.nan, -0.0
        b[:, 8] = 0
        found.append(Result(f"{name} special", "gemm", jg.gemm(a, b)))
        if kind in (np.float32, np.float64):
            value = jg.gemm(a, jg.prepack_rhs(b), activation="relu", alpha=-1.0)
            found.append(Result(f"{name} special relu", "prepacked", value))
    return found


def _typed(x: Any, y: Any, shapes: tuple[tuple[int, int, int], ...]) -> Iterator[Result]:
    for shape in shapes:
        name = f"{np.dtype(x).name} {np.dtype(y).name} {'x'.join(map(str, shape))}"
        a, b = _operands(name, shape, x, y)
        yield Result(name, "prepacked", jg.gemm(a, jg.prepack_rhs(b)))
        if x in (np.float16, np.int8):
            yield Result(name, "gemm", jg.gemm(a, b))
            yield Result(name, "columns", jg.gemm(a, np.asfortranarray(b)))


TYPED_SHAPES = ((9, 600, 21), (40, 33, 70), (1, 530, 1), (2, 70, 33))
HALVES = ((np.float16, np.float16), (BF16, BF16), (np.float16, np.float32), (np.float32, BF16))
INTEGERS = ((np.int8, np.int8), (np.uint8, np.int8), (np.int16, np.int16), (np.int32, np.int32),
            (np.int64, np.int64))  # fmt: skip


def _halves() -> list[Result]:
    found = [result for x, y in HALVES for result in _typed(x, y, TYPED_SHAPES)]
    a, b = _operands("halves gelu", (9, 600, 21), np.float16, np.float16)
    found.append(Result("float16 gelu", "gemm", jg.gemm(a, b, activation="gelu", alpha=0.01)))
    found.append(Result("float16 out float32", "gemm", jg.gemm(a, b, out_dtype=np.float32)))
    return found


def _integers() -> list[Result]:
    with low_tiles():
        return [result for x, y in INTEGERS for result in _typed(x, y, TYPED_SHAPES[:3])]


def _quantised() -> list[Result]:
    """What leaves sums of 8-bit integers as floats, or by a float: each is rounded."""
    name, found = "uint8 int8 17x300x33", []
    a, b = _operands(name, (17, 300, 33), np.uint8, np.int8)
    scale = np.abs(numbers(f"{name} scale", (33,), np.float64)) * 1e-5 + 1e-6
    bias = numbers(f"{name} bias", (33,), np.int16).astype(np.int32)
    back = jg.Requantize(scale=scale, zero_point=-5, dtype=np.int8, bias=bias)
    rows = numbers(f"{name} rows", (17, 1), np.float32)
    columns = numbers(f"{name} columns", (33,), np.float32)
    for how, right in (("gemm", b), ("prepacked", jg.prepack_rhs(b))):
        value = jg.gemm(a, right, a_zero_point=101, b_zero_point=3, requantize=back)
        found.append(Result(f"{name} requantised", how, value))
        scaled = {"a_scale": rows, "b_scale": columns, "a_zero_point": 7}
        found.append(Result(f"{name} scaled", how, jg.gemm(a, right, **scaled)))
        value = jg.gemm(a, right, **scaled, out_dtype=BF16, activation="silu")
        found.append(Result(f"{name} scaled silu bfloat16", how, value))
    return found


_KINDS = (np.float32, np.float64, np.complex64, np.complex128)
GROUPS: dict[str, Callable[[], list[Result]]] = {
    **{np.dtype(kind).name: _plain(kind) for kind in _KINDS},
    **{f"{np.dtype(kind).name} epilogues": _epilogues(kind) for kind in _KINDS},
    "special values": _special,
    "halves": _halves,
    "integers": _integers,
    "quantised": _quantised,
}
"""Each computes its products on the set in use."""
