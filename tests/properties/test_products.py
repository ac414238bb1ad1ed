"""Any shape, stride, type and option: exact on integers, whatever Hypothesis comes up with."""

# ruff: noqa: FBT001  # parameters of a test are named by its decorator

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jitgemm
from jitgemm.planner.machine import Machine
from jitgemm.runtime import engine as engines
from oracle import (
    KINDS,
    LAYOUTS,
    MANY_PIECES,
    NARROW,
    TINY,
    another_machine,
    anything,
    documented,
    equal,
    exact_gemm,
    examples,
    integers,
    is_complex,
    low_tiles,
    reals,
    same_bits,
)

Array = np.ndarray[Any, Any]

# No files in the working copy; a failure prints how to reproduce it.
# On the sets of a machine besides the best one the kernels differ, not the rest of the library.
EXAMPLES = examples(150)
relaxed = settings(deadline=None, max_examples=EXAMPLES, database=None, print_blob=True)


@pytest.fixture(autouse=True, scope="module")
def _low() -> Iterator[None]:
    """Every combination of options is a kernel to compile; low tiles take a third of the time."""
    with low_tiles():
        yield


dims = st.one_of(st.integers(0, 40), st.sampled_from([1, 2, 3, 6, 14, 15, 16, 17, 31, 32, 33]))
depths = st.one_of(dims, st.sampled_from([511, 512, 513, 600]))
dtypes = st.sampled_from(KINDS)
layouts = st.sampled_from(sorted(LAYOUTS))
# An operand that says the same thing in every row, column, or both, without memory for it.
broadcasts = st.sampled_from(["no", "no", "no", "rows", "columns", "both"])
scalars = st.sampled_from([0, 1, -1, 2, -3])
complex_scalars = st.sampled_from([0, 1, -1, 2, -3, 1j, 2 - 1j])
# What keeps small integers exact; mostly nothing, as each combination is a kernel to compile.
activations = st.sampled_from(
    [None, None, None, "relu", "relu", jitgemm.clip(-9, 20), jitgemm.leaky_relu(-2)]
)
functions = st.sampled_from([*[None] * 7, lambda v, row, col: v + 2 * row - col])
counts = st.sampled_from([1, 1, 2, 3])


def _with_zero_strides(x: Array, how: str) -> Array:
    rows = x[:1] if how in ("rows", "both") else x
    part = rows[:, :1] if how in ("columns", "both") else rows
    return np.broadcast_to(part, x.shape) if part.size else x


@st.composite
def operands(draw: st.DrawFn, rows: int, cols: int, dtype: Any, rng: np.random.Generator) -> Array:
    """A matrix of integers in some layout."""
    x = integers(rng, (rows, cols), dtype)
    how = draw(broadcasts)
    return LAYOUTS[draw(layouts)](x) if how == "no" else _with_zero_strides(x, how)


@st.composite
def calls(draw: st.DrawFn) -> tuple[Array, Array, dict[str, Any]]:
    """A product with all its options."""
    m, n, k, dtype = draw(dims), draw(dims), draw(depths), draw(dtypes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    a, b = draw(operands(m, k, dtype, rng)), draw(operands(k, n, dtype, rng))
    wide = is_complex(dtype)
    factors = complex_scalars if wide else scalars
    options: dict[str, Any] = {
        "alpha": draw(factors), "beta": draw(factors), "c": draw(operands(m, n, dtype, rng)),
        "conj_a": draw(st.booleans()), "conj_b": draw(st.booleans()), "bias": None,
    }  # fmt: skip
    if not wide:
        options |= {"activation": draw(activations), "epilogue": draw(functions)}
    kind = draw(st.sampled_from(["none", "number", "columns", "row", "rows", "matrix"]))
    if kind != "none":
        shape = {"rows": (m, 1), "matrix": (m, n), "number": (1, 1)}.get(kind, (1, n))
        bias = draw(operands(*shape, dtype, rng))
        options["bias"] = bias[0, 0] if kind == "number" else bias[0] if kind == "columns" else bias
    if options["beta"] == 0 and draw(st.booleans()):
        options["c"] = draw(st.sampled_from([None, np.full((m, n), np.nan, dtype)]))
    return a, b, options


packings = st.sampled_from(["no", "no", "right", "left"])


def _stored(a: Array, b: Array, packed: str) -> tuple[Any, Any]:
    left = jitgemm.prepack_lhs(a) if packed == "left" else a
    return left, jitgemm.prepack_rhs(b) if packed == "right" else b


@relaxed
@given(calls(), counts, packings, st.data())
def test_gemm_is_exact(
    call: tuple[Array, Array, dict[str, Any]], threads: int, packed: str, data: st.DataObject
) -> None:
    a, b, options = call
    want = exact_gemm(a, b, **options)
    left, right = _stored(a, b, packed)
    options["reproducible"] = data.draw(st.sampled_from(["default", "strict"]))
    equal(jitgemm.gemm(left, right, threads=threads, **options), want)
    writable = data.draw(st.sampled_from([x for x in sorted(LAYOUTS) if not x.startswith("odd")]))
    out = LAYOUTS[writable](np.full(want.shape, 77, want.dtype))
    for _ in range(2):
        out[...] = 77
        assert jitgemm.gemm(left, right, threads=threads, out=out, **options) is out
        equal(out, want, f"out: {writable}")


@relaxed
@given(calls(), counts, packings)
def test_plans_are_exact(
    call: tuple[Array, Array, dict[str, Any]], threads: int, packed: str
) -> None:
    a, b, options = call
    want = exact_gemm(a, b, **options)
    left, right = _stored(a, b, packed)
    p = jitgemm.plan(left, right, threads=threads, **options)
    out = np.full(want.shape, 77, want.dtype)
    equal(p(left, right, out), want)
    equal(p(left, right), want)
    assert p.explain()


@relaxed
@given(st.data())
def test_out_over_any_part_of_the_operands(data: st.DataObject) -> None:
    m, n, k = (data.draw(st.integers(1, 20)) for _ in range(3))
    dtype = data.draw(dtypes)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    memory = integers(rng, (60, 60), dtype)

    def window(rows: int, cols: int) -> Array:
        i, j = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))
        rs, cs = data.draw(st.sampled_from([1, 2, -1])), data.draw(st.sampled_from([1, 2, -1]))
        part = memory[i : i + rows * abs(rs), j : j + cols * abs(cs)][::rs, ::cs]
        if rows == cols and data.draw(st.booleans()):
            part = part.T
        return part

    a, b, c, out = window(m, k), window(k, n), window(m, n), window(m, n)
    bias = window(*data.draw(st.sampled_from([(1, n), (m, 1), (m, n)])))
    options: dict[str, Any] = {"beta": data.draw(scalars), "bias": bias}
    want = exact_gemm(a.copy(), b.copy(), c=c.copy(), beta=options["beta"], bias=bias.copy())
    expected = memory.copy()
    at = out.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    np.ndarray(out.shape, dtype, expected, at, out.strides)[...] = want
    if data.draw(st.booleans()):
        got = jitgemm.gemm(a, b, c=c, out=out, **options)
    else:
        got = jitgemm.plan(a, b, c=c, **options)(a, b, out)
    assert got is out
    equal(memory, expected)


@relaxed
@given(st.data())
def test_matmul_is_numpys(data: st.DataObject) -> None:
    dtype = data.draw(dtypes)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    batch = data.draw(st.lists(st.integers(0, 3), max_size=2))
    m, n, k = (data.draw(st.integers(0, 9)) for _ in range(3))

    def shape(core: tuple[int, ...]) -> tuple[int, ...]:
        kept = batch[data.draw(st.integers(0, len(batch))) :]
        return (*(1 if data.draw(st.booleans()) else s for s in kept), *core)

    left = (k,) if data.draw(st.integers(0, 4)) == 0 else shape((m, k))
    right = (k,) if data.draw(st.integers(0, 4)) == 0 else shape((k, n))
    a, b = integers(rng, left, dtype), integers(rng, right, dtype)
    want = np.matmul(a, b)
    got = jitgemm.matmul(a, b, threads=data.draw(counts))
    assert type(got) is type(want)
    equal(got, want)
    if isinstance(want, np.ndarray):
        out = np.full(want.shape, np.nan, dtype)
        assert jitgemm.matmul(a, b, out) is out
        equal(out, want)


@settings(relaxed, max_examples=EXAMPLES * 2 // 5)
@given(calls(), counts)
def test_reals_follow_the_documented_order(
    call: tuple[Array, Array, dict[str, Any]], threads: int
) -> None:
    shaped_a, shaped_b, options = call
    rng = np.random.default_rng(shaped_a.size + 7 * shaped_b.size)
    a = reals(rng, shaped_a.shape, shaped_a.dtype.newbyteorder("="))
    b = reals(rng, shaped_b.shape, a.dtype)
    options["c"] = None if options["c"] is None else reals(rng, options["c"].shape, a.dtype)
    if options["bias"] is not None:
        options["bias"] = reals(rng, options["bias"].shape, a.dtype)
    # Functions and slopes may be rounded otherwise in their last steps.
    options["epilogue"] = None
    want = documented(a, b, fused=engines.engine().isa.fused, **options)
    same_bits(jitgemm.gemm(a, b, threads=threads, **options), want)
    same_bits(
        jitgemm.gemm(np.asfortranarray(a), np.asfortranarray(b), threads=threads, **options), want
    )


KNOBS = (
    "parallel_flops",
    "gil_flops",
    "rhs_pack_rows",
    "rhs_transpose_rows",
    "split_depth",
    "stagger_column_bytes",
    "lhs_pack_stride",
    "lhs_pack_pages",
    "lhs_pack_reuse",
    "streaming_row_bytes",
)


@relaxed
@given(calls(), counts, st.lists(st.sampled_from([1, 2, 9, 10**9]), min_size=10, max_size=10),
       st.sampled_from([None, TINY, TINY]))  # fmt: skip
def test_knobs_and_caches_change_no_result(
    call: tuple[Array, Array, dict[str, Any]], threads: int, values: list[int],
    machine: Machine | None,
) -> None:  # fmt: skip
    """Every route is right wherever it is taken, so thresholds and cache sizes may be anything."""
    a, b, options = call
    want = exact_gemm(a, b, **options)
    with another_machine(machine, **dict(zip(KNOBS, values, strict=True))):
        equal(jitgemm.gemm(a, b, threads=threads, **options), want)
        equal(jitgemm.gemm(a, jitgemm.prepack_rhs(b), threads=threads, **options), want)
        equal(jitgemm.gemm(jitgemm.prepack_lhs(a), b, threads=threads, **options), want)
        mine = np.full(want.shape, 77, want.dtype) if options["c"] is None else options["c"].copy()
        options["c"] = None if options["c"] is None else mine
        equal(jitgemm.gemm(a, b, threads=threads, out=mine, **options), want)


@settings(relaxed, max_examples=EXAMPLES * 2 // 3)
@given(
    st.one_of(st.integers(1, 3), st.integers(1, 300)), st.integers(1, 700), st.integers(1, 1600),
    dtypes, counts, st.sampled_from(["CC", "CF", "FC", "FF", "CP", "PC", "PF"]), st.booleans(),
    st.integers(0, 2**32),
)  # fmt: skip
def test_larger_products_in_many_pieces(
    m: int, n: int, k: int, dtype: Any, threads: int, orders: str, in_place: bool, seed: int
) -> None:
    if m * n * k > 20_000_000:
        n = 1 + n % 40
    rng = np.random.default_rng(seed)
    a, b, c = (integers(rng, s, dtype) for s in ((m, k), (k, n), (m, n)))
    want = exact_gemm(a, b, beta=-1, c=c)
    left = jitgemm.prepack_lhs(a) if orders[0] == "P" else np.asarray(a, order=orders[0])
    right = jitgemm.prepack_rhs(b) if orders[1] == "P" else np.asarray(b, order=orders[1])
    with another_machine(TINY, **MANY_PIECES):
        got = jitgemm.gemm(left, right, beta=-1, c=c, out=c if in_place else None, threads=threads)
        equal(got, want)


@st.composite
def quantised(draw: st.DrawFn) -> tuple[Array, Array, dict[str, Any]]:
    """A product of 8-bit integers with zero points, and perhaps a requantisation."""
    m, n, k = draw(dims), draw(dims), draw(depths)
    pair = draw(st.sampled_from(NARROW)), draw(st.sampled_from(NARROW))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    a, b = anything(rng, (m, k), pair[0]), anything(rng, (k, n), pair[1])
    how = [draw(broadcasts), draw(broadcasts)]
    a, b = (
        LAYOUTS[draw(layouts)](x) if h == "no" else _with_zero_strides(x, h)
        for x, h in zip((a, b), how, strict=True)
    )
    options: dict[str, Any] = {}
    for name, count, kind in (("a_zero_point", m, pair[0]), ("b_zero_point", n, pair[1])):
        points = anything(rng, (count,), kind)
        some = draw(st.sampled_from([None, "one", "each"]))
        options[name] = None if some is None or not count else points
        if some == "one" and count:
            options[name] = int(points[0])
    if draw(st.booleans()):
        shape = draw(st.sampled_from([(), (n,), (1, n), (m, 1)]))
        options["requantize"] = jitgemm.Requantize(
            rng.random(shape) / 512 + 1e-5, draw(st.integers(0, 127)),
            draw(st.sampled_from(NARROW)),
            draw(st.sampled_from([None, rng.integers(-999, 999, n)])),
        )  # fmt: skip
    return a, b, options


@relaxed
@given(quantised(), counts, packings, st.booleans())
def test_quantised_products_are_exact(
    call: tuple[Array, Array, dict[str, Any]], threads: int, packed: str, small: bool
) -> None:
    a, b, options = call
    want = exact_gemm(a, b, **options)
    with another_machine(TINY, **MANY_PIECES) if small else nullcontext():
        left, right = _stored(a, b, packed)
        for order in ("C", "F"):
            out = np.full(want.shape, 77, want.dtype, order=order)
            assert jitgemm.gemm(left, right, threads=threads, out=out, **options) is out
            same_bits(out, want)
        same_bits(jitgemm.gemm(left, right, threads=threads, **options), want)
