"""Products of operands of every layout, by every route: knobs and caches that a machine may have.

A random walk over what a caller may combine.  The answers are integers, so every one is exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgemm
from oracle import LAYOUTS, TINY, Array, another_machine, equal

TYPES = (np.float32, np.float64, np.complex64, np.complex128)
SIZES = (1, 1, 2, 3, 5, 9, 17, 33)
DEPTHS = (0, 1, 2, 7, 33, 64, 513, 1030)


def _integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    x = rng.integers(-3, 4, shape).astype(dtype)
    if x.dtype.kind == "c":
        x.imag = rng.integers(-3, 4, shape)
    return x


def _knobs(rng: np.random.Generator) -> dict[str, int]:
    choices = {
        "parallel_flops": (1,), "streaming_row_bytes": (1, 2048), "rhs_pack_rows": (1, 32),
        "rhs_transpose_rows": (0, 4, 100), "split_depth": (1, 1 << 30),
        "stagger_column_bytes": (1, 1 << 30),
        "lhs_pack_stride": (4, 2048), "lhs_pack_pages": (1, 64), "lhs_pack_reuse": (1,),
    }  # fmt: skip
    return {name: int(rng.choice(values)) for name, values in choices.items()}


def _one(rng: np.random.Generator) -> None:
    dtype = TYPES[rng.integers(len(TYPES))]
    (m, n), k = (int(rng.choice(SIZES)) for _ in range(2)), int(rng.choice(DEPTHS))
    turned = np.issubdtype(dtype, np.complexfloating)

    def stored(x: Array) -> Array:
        return list(LAYOUTS.values())[rng.integers(len(LAYOUTS))](x)

    def factor(*values: int) -> complex:
        return complex(rng.choice(values), rng.integers(-2, 3)) if turned else rng.choice(values)

    a, b, options = _integers(rng, (m, k), dtype), _integers(rng, (k, n), dtype), {}
    options["alpha"] = factor(1, 2, -1, 0)
    conj = [bool(turned and rng.integers(2)) for _ in range(2)]
    left, right = (x.conj() if c else x for x, c in zip((a, b), conj, strict=True))
    want = options["alpha"] * (left.astype(np.complex128 if turned else np.float64) @ right)
    if rng.integers(2):
        c = _integers(rng, (m, n), dtype)
        options |= {"beta": factor(1, -2), "c": stored(c)}
        want = want + options["beta"] * c
    if rng.integers(2):
        shapes = ((n,), (m, 1), (m, n), (), (1, n))
        bias = _integers(rng, shapes[rng.integers(len(shapes))], dtype)
        want = want + bias
        options["bias"] = stored(bias) if bias.ndim == 2 else bias.astype(bias.dtype.newbyteorder())
    if not turned and rng.integers(2):
        options["activation"], want = "relu", np.maximum(want, 0)
    if rng.integers(2):
        options["out"] = stored(np.zeros((m, n), dtype))
    x, y = stored(a), stored(b)
    kind = rng.integers(6)
    if kind == 0:
        y = jitgemm.prepack_rhs(y)
    elif kind == 1:
        x = jitgemm.prepack_lhs(x)
    options |= {"conj_a": conj[0], "conj_b": conj[1], "threads": int(rng.integers(1, 3))}
    options["reproducible"] = ("default", "strict")[rng.integers(2)]
    knobs = _knobs(rng)
    with another_machine(TINY if rng.integers(2) else None, **knobs):
        got = jitgemm.gemm(x, y, **options)
    equal(got, want.astype(dtype), (m, n, k, knobs, options))


@pytest.mark.parametrize("seed", range(4))
def test_operands_of_every_layout_by_every_route(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(60):
        _one(rng)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("k", [1024, 1027])
def test_columns_a_page_apart(dtype: Any, k: int, rng: np.random.Generator) -> None:
    """Up to as many rows as are turned in registers: one tile or several."""
    b = _integers(rng, (70, 16384 // np.dtype(dtype).itemsize), dtype)[:, : min(k, 1027)].T
    for m in (1, 2, 3, 4):
        a = _integers(rng, (m, b.shape[0]), dtype)
        equal(jitgemm.gemm(a, b), a @ b, m)


def test_a_bias_in_foreign_order_with_a_column_major_result(rng: np.random.Generator) -> None:
    for dtype in TYPES:
        a, b = _integers(rng, (5, 3), dtype), _integers(rng, (3, 4), dtype)
        bias = _integers(rng, (4,), dtype)
        out = np.zeros((5, 4), dtype, order="F")
        jitgemm.gemm(a, b, out=out, bias=bias.astype(bias.dtype.newbyteorder()))
        equal(out, a @ b + bias)


def test_a_number_added_to_all_of_a_deep_column_major_result(rng: np.random.Generator) -> None:
    """It is one number in memory: what lies behind it is nobody's."""
    a, b = _integers(rng, (3, 40_000), np.float64), _integers(rng, (40_000, 5), np.float64)
    out = np.zeros((3, 5), order="F")
    jitgemm.gemm(a, b, out=out, bias=np.float64(7))
    equal(out, a @ b + 7)
