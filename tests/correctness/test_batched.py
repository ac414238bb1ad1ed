"""Stacks and lists of products: exact comparisons over broadcast patterns, layouts and options."""

# ruff: noqa: FBT001  # parameters of a test are named by its decorator

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm.api.call import Call
from jitgemm.api.keywords import Options
from oracle import Guarded, equal, forget_plans, pairwise, reals, same_bits

Array = np.ndarray[Any, Any]
TYPES = [np.float32, np.float64, np.complex64, np.complex128]
POWERS = ["f32", "f64", "c64", "c128"]

SHAPES = [
    ((5, 3, 4), (4, 6)), ((3, 4), (5, 4, 6)), ((5, 3, 4), (5, 4, 6)), ((1, 3, 4), (6, 4, 5)),
    ((40, 9, 9), (9, 9)), ((40, 9, 9), (40, 9, 9)), ((6, 4, 1, 12), (4, 12, 12)),
    ((6, 4, 12, 12), (4, 12, 1)), ((12, 12), (6, 12, 1)), ((6, 1, 12), (6, 12, 1)),
    ((2, 1, 3, 1, 5, 3, 4), (7, 1, 2, 1, 4, 2)),
    ((2, 2, 2, 2, 2, 2, 3, 2), (2, 1, 2, 1, 2, 1, 2, 3)),
    ((3, 20, 30), (30, 40)), ((3, 1, 20, 30), (2, 30, 40)),
    ((0, 3, 4), (4, 5)), ((2, 0, 4), (4, 5)),
    ((2, 3, 0), (0, 5)), ((3, 0, 3, 4), (4, 0)), ((4, 30, 40), (4, 40, 70)),
    ((2, 9, 600), (600, 20)),
    ((3, 40, 1100), (3, 1100, 20)),
]  # fmt: skip


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, limit: int = 3) -> Array:
    """Small integers, complex ones for complex types."""
    x = rng.integers(-limit, limit + 1, shape).astype(dtype)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.integers(-limit, limit + 1, shape).astype(dtype)
    return np.asarray(x, dtype)


def _ids(shapes: Any) -> str:
    return " @ ".join(str(s).replace(" ", "") for s in shapes)


@pytest.fixture(params=TYPES, ids=POWERS)
def number(request: pytest.FixtureRequest) -> Any:
    return request.param


def _backwards(x: Array) -> Array:
    flip = (slice(None, None, -1),) * x.ndim
    return x[flip].copy()[flip]


LAYOUTS = {
    "c": np.ascontiguousarray,
    "f": np.asfortranarray,
    "backwards": _backwards,
    "steps": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "matrices transposed": lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "batch innermost": lambda x: np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -1)), -1, 0),
    "foreign": lambda x: x.astype(x.dtype.newbyteorder("S")),
}


@pytest.mark.parametrize("shapes", SHAPES, ids=_ids)
@pytest.mark.usefixtures("pieces")
def test_broadcast_patterns(shapes: Any, number: Any, rng: np.random.Generator) -> None:
    a, b = (numbers(rng, s, number) for s in shapes)
    want = np.matmul(a, b)
    for threads, _again in itertools.product((1, 2), (0, 1)):
        for call in (jitgemm.matmul, jitgemm.gemm):
            equal(call(a, b, threads=threads), want)
            out = np.full(want.shape, 77, number)
            assert call(a, b, out=out, threads=threads) is out
            equal(out, want)


LAYOUT_SHAPES = [((6, 5, 7), (6, 7, 4)), ((6, 5, 7), (7, 4)), ((5, 7), (6, 7, 1)),
                 ((6, 1, 7), (7, 5)), ((6, 33, 35), (6, 35, 40))]  # fmt: skip


@pytest.mark.parametrize(
    "layout, operand, shapes, number",
    pairwise(LAYOUTS, ["a", "b", "c", "bias", "out"], LAYOUT_SHAPES, TYPES),
    ids=lambda x: _ids(x) if isinstance(x, tuple) else getattr(x, "__name__", x),
)
@pytest.mark.usefixtures("low", "pieces")
def test_layouts(
    layout: str, operand: str, shapes: Any, number: Any, rng: np.random.Generator
) -> None:
    a, b = (numbers(rng, s, number) for s in shapes)
    shape = np.matmul(a, b).shape
    x = {"a": a, "b": b, "c": numbers(rng, shape, number), "bias": numbers(rng, shape, number)}
    want = np.asarray(np.matmul(a, b) * 2 - 3 * x["c"] + x["bias"], number)
    x["out"] = np.full(shape, 77, number)
    x[operand] = LAYOUTS[layout](x[operand])
    a, b = x.pop("a"), x.pop("b")
    for _again in (0, 1):
        assert jitgemm.gemm(a, b, alpha=2, beta=-3, **x, threads=2) is x["out"]
        equal(x["out"], want)
        x["out"][...] = 77


@pytest.mark.parametrize("which", ["a", "b"])
def test_operands_broadcast_by_hand(which: str, number: Any, rng: np.random.Generator) -> None:
    small = {"a": numbers(rng, (1, 1, 5), number), "b": numbers(rng, (1, 5, 1), number)}
    wide = {"a": (4, 3, 5), "b": (4, 5, 6)}
    given = {n: numbers(rng, s, number) for n, s in wide.items()}
    given[which] = np.broadcast_to(small[which], wide[which])
    want = np.matmul(given["a"], given["b"])
    for _again in (0, 1):
        equal(jitgemm.matmul(given["a"], given["b"]), want)


BIASES = [(), (7,), (1,), (5, 1), (5, 7), (6, 5, 7), (6, 1, 7), (6, 5, 1), (6, 1, 1), (2, 6, 5, 7),
          (2, 1, 1, 7), (2, 1, 5, 7)]  # fmt: skip


BIASED = [((2, 6, 5, 4), (4, 7)), ((2, 6, 5, 4), (6, 4, 7)), ((5, 4), (2, 6, 4, 7))]


@pytest.mark.parametrize(
    "bias, shapes, number",
    pairwise(BIASES, BIASED, TYPES),
    ids=lambda x: getattr(x, "__name__", str(x).replace(" ", "")),
)
@pytest.mark.usefixtures("low")
def test_biases(bias: Any, shapes: Any, number: Any, rng: np.random.Generator) -> None:
    a, b = (numbers(rng, s, number) for s in shapes)
    x = numbers(rng, bias, number)
    for _again in (0, 1):
        equal(jitgemm.gemm(a, b, bias=x, threads=2), np.asarray(np.matmul(a, b) + x, number))


@pytest.mark.parametrize("bias", BIASES[3:8], ids=str)
@pytest.mark.usefixtures("low")
def test_biases_of_one_row_or_column(bias: Any, number: Any, rng: np.random.Generator) -> None:
    for m, n in ((1, 7), (5, 1), (1, 1)):
        shape = tuple({5: m, 7: n}.get(x, x) for x in bias)
        x = numbers(rng, shape, number)
        for sa, sb in (((6, m, 4), (4, n)), ((m, 4), (6, 4, n)), ((6, m, 4), (6, 4, n))):
            a, b = numbers(rng, sa, number), numbers(rng, sb, number)
            equal(jitgemm.gemm(a, b, bias=x), np.asarray(np.matmul(a, b) + x, number))


@pytest.mark.parametrize("c", [(6, 5, 7), (5, 7), (1, 7), (5, 1), (6, 1, 1), (2, 6, 5, 7)], ids=str)
@pytest.mark.usefixtures("low")
def test_c_broadcasts(c: Any, number: Any, rng: np.random.Generator) -> None:
    a, b, x = (numbers(rng, s, number) for s in ((2, 6, 5, 4), (6, 4, 7), c))
    want = np.asarray(2 * np.matmul(a, b) - x, number)
    for _again in (0, 1):
        equal(jitgemm.gemm(a, b, alpha=2, beta=-1, c=x, threads=2), want)
    nan = np.full_like(x, np.nan)
    equal(jitgemm.gemm(a, b, c=nan), np.matmul(a, b))


@pytest.mark.parametrize("k", [4, 1100])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.usefixtures("low")
def test_c_in_place(k: int, shared: bool, number: Any, rng: np.random.Generator) -> None:
    a, b = numbers(rng, (6, 5, k), number), numbers(rng, (k, 7) if shared else (6, k, 7), number)
    c = numbers(rng, (6, 5, 7), number)
    for threads in (1, 2, 1, 2):
        x = c.copy()
        assert jitgemm.gemm(a, b, beta=2, c=x, out=x, threads=threads) is x
        equal(x, np.asarray(np.matmul(a, b) + 2 * c, number))


def test_alpha_zero_reads_nothing(number: Any, rng: np.random.Generator) -> None:
    a, b = np.full((6, 5, 4), np.nan, number), np.full((6, 4, 7), np.nan, number)
    bias = numbers(rng, (6, 5, 7), number)
    equal(jitgemm.gemm(a, b, alpha=0, bias=bias), bias)


def test_conjugates(rng: np.random.Generator) -> None:
    for shapes in (((6, 5, 4), (4, 7)), ((5, 4), (6, 4, 1)), ((6, 5, 4), (6, 4, 7))):
        a, b = (numbers(rng, s, np.complex64) for s in shapes)
        for left, right in itertools.product((False, True), repeat=2):
            want = np.matmul(a.conj() if left else a, b.conj() if right else b)
            for _again in (0, 1):
                equal(jitgemm.gemm(a, b, conj_a=left, conj_b=right, alpha=1j),
                      np.asarray(want * 1j, np.complex64))  # fmt: skip


def test_packed_operands(number: Any, rng: np.random.Generator) -> None:
    for batch in ((6,), (2, 3), (1, 1), (0,)):
        for m, k, n in ((5, 4, 7), (1, 40, 1), (30, 40, 50), (3, 700, 2)):
            a, b = numbers(rng, (*batch, m, k), number), numbers(rng, (k, n), number)
            left, right = numbers(rng, (m, k), number), numbers(rng, (*batch, k, n), number)
            for threads in (1, 2, 2):
                packed = jitgemm.prepack_rhs(b)
                equal(jitgemm.gemm(a, packed, threads=threads), np.matmul(a, b))
                equal(jitgemm.matmul(a, packed, threads=threads), np.matmul(a, b))
                handle = jitgemm.prepack_lhs(left)
                equal(jitgemm.gemm(handle, right, threads=threads), np.matmul(left, right))


def test_activation_and_scalars(rng: np.random.Generator) -> None:
    a, b = numbers(rng, (6, 5, 4), np.float32), numbers(rng, (6, 4, 7), np.float32)
    got = jitgemm.gemm(a, b, alpha=-2, activation="relu", bias=np.float32(1))
    equal(got, np.maximum(-2 * np.matmul(a, b) + 1, 0))


def test_overlap_with_an_input(number: Any, rng: np.random.Generator) -> None:
    raw = numbers(rng, (6, 5, 10), number)
    b = numbers(rng, (5, 5), number)
    for left, right in ((0, 5), (2, 0), (0, 0)):
        x = raw.copy()
        a, out = x[..., left : left + 5], x[..., right : right + 5]
        want = np.matmul(a.copy(), b)
        assert jitgemm.matmul(a, b, out) is out
        equal(out, want)
    # One stack is the other, moved on by a matrix.
    x = numbers(rng, (7, 5, 5), number)
    want = np.matmul(x[:-1].copy(), b)
    equal(jitgemm.matmul(x[:-1], b, x[1:]), want)


def test_out_beside_its_input_is_no_overlap(rng: np.random.Generator) -> None:
    raw, b = numbers(rng, (6, 5, 10), np.float32), numbers(rng, (5, 5), np.float32)
    call = Call(raw[..., :5], b, Options(out=raw[..., 5:]))
    assert not call.target()[1]


@pytest.mark.parametrize("shapes", SHAPES[:9], ids=_ids)
def test_bits_are_those_of_single_products(
    shapes: Any, dtype: Any, rng: np.random.Generator
) -> None:
    a, b = (reals(rng, s, dtype) for s in shapes)
    got = jitgemm.gemm(a, b, threads=2, activation="relu")
    batch = got.shape[:-2]
    wide = [np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b)]
    for index in np.ndindex(batch):
        single = jitgemm.gemm(wide[0][index], wide[1][index], activation="relu")
        same_bits(got[index], single, index)


@pytest.mark.parametrize("size", [(9, 9, 9), (4, 4, 4), (1, 3, 17), (30, 5, 2), (20, 40, 3)])
def test_small_products_are_run_many_at_a_time(
    size: tuple[int, int, int], dtype: Any, rng: np.random.Generator, knobs: Any
) -> None:
    knobs(parallel_flops=5000)
    m, n, k = size
    # Every other matrix, and a B shared along an axis: nothing folds.
    a = reals(rng, (5, 14, m, k), dtype)[:, ::2]
    b = reals(rng, (7, k, n), dtype)
    p = jitgemm.plan(a, b, bias=dtype(0.5), activation="relu", threads=2)
    assert m != n or "one for many products" in p.explain()
    for threads in (1, 2):
        got = jitgemm.gemm(a, b, bias=dtype(0.5), activation="relu", threads=threads)
        for i, j in np.ndindex(5, 7):
            single = jitgemm.gemm(a[i, j], b[j], bias=dtype(0.5), activation="relu")
            same_bits(got[i, j], single, (i, j))


def test_schedules_agree(rng: np.random.Generator, knobs: Any) -> None:
    a, b = reals(rng, (6, 40, 700), np.float32), reals(rng, (6, 700, 50), np.float32)
    got = []
    for limit in (0, 1 << 40):
        knobs(parallel_flops=1, batch_split_flops=limit)
        p = jitgemm.plan(a, b, threads=2)
        assert ("by all threads" in p.explain()) == (limit == 0)
        got += [jitgemm.matmul(a, b, threads=2), jitgemm.matmul(a, b, threads=2)]
    for x in got[1:]:
        same_bits(x, got[0])


def test_b_is_packed_once_per_worker(rng: np.random.Generator, knobs: Any) -> None:
    knobs(rhs_transpose_rows=0)
    a = numbers(rng, (3, 8, 5, 40), np.float32)
    b = np.asfortranarray(numbers(rng, (40, 30), np.float32))
    b = np.stack([b, b + 1, b - 1]).swapaxes(1, 2).copy().swapaxes(1, 2)[:, None]
    # Rows that do not continue from one matrix to the next.
    a = np.repeat(a, 2, axis=2)[:, :, :5]
    p = jitgemm.plan(a, b)
    assert "packed once per worker" in p.explain()
    for threads in (1, 2):
        equal(jitgemm.matmul(a, b, threads=threads), np.matmul(a, b))


def test_plans_of_stacks_say_what_they_do(rng: np.random.Generator) -> None:
    a, b = numbers(rng, (64, 16, 1, 32), np.float32), numbers(rng, (16, 32, 32), np.float32)
    p = jitgemm.plan(a, b, bias=np.float32(1), threads=2)
    text = p.explain()
    for words in ("batch ", "64 batch items become rows", "16 product(s)", "schedule", "kernel"):
        assert words in text
    assert p.ir()
    for out in (None, np.empty((64, 16, 1, 32), np.float32)):
        equal(p(a, b, out), np.matmul(a, b) + np.float32(1))
    with pytest.raises(ValueError, match="as planned"):
        p(a[:5], b)
    with pytest.raises(TypeError, match="as planned"):
        p(a.astype("f8"), b)


WRONG: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "batch axes": (ValueError, "b", {"b": np.ones((4, 4, 7), "f4")}),
    "depth": (ValueError, "b", {"b": np.ones((6, 5, 7), "f4")}),
    "type": (TypeError, "b", {"b": np.ones((6, 4, 7), complex)}),
    "c": (ValueError, "c", {"beta": 1, "c": np.ones((5, 5, 7), "f4")}),
    "no c": (ValueError, "c", {"beta": 1}),
    "c too deep": (ValueError, "c", {"c": np.ones((2, 6, 5, 7), "f4")}),
    "bias": (ValueError, "bias", {"bias": np.ones((6, 5), "f4")}),
    "out": (ValueError, "out", {"out": np.ones((5, 7), "f4")}),
    "out of broadcast": (ValueError, "out", {"out": np.broadcast_to(np.float32(1), (6, 5, 7))}),
    "activation": (ValueError, "activation", {"activation": "no"}),
    "alpha": (TypeError, "alpha", {"alpha": "1"}),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors(case: str) -> None:
    error, name, given = WRONG[case]
    options = {"a": np.ones((6, 5, 4), "f4"), "b": np.ones((6, 4, 7), "f4"), **given}
    out = options.setdefault("out", np.full((6, 5, 7), 7, "f4"))
    with pytest.raises(error, match=rf"^jitgemm: {name}: expected"):
        jitgemm.gemm(options.pop("a"), options.pop("b"), **options)
    assert out.flat[0] in (1, 7)


def test_canaries_around_out(number: Any, rng: np.random.Generator) -> None:
    memory = Guarded(1 << 16)
    for shapes in (((6, 5, 7), (6, 7, 9)), ((6, 5, 7), (7, 9)), ((6, 1, 7), (6, 7, 1))):
        a, b = (numbers(rng, s, number) for s in shapes)
        want = np.matmul(a, b)
        for where, gap in itertools.product(("start", "end"), (1, 2)):
            shape = (*want.shape[:-1], want.shape[-1] * gap)
            like = np.empty(shape, number)[..., ::gap]
            out = memory.place(
                np.lib.stride_tricks.as_strided(like, want.shape, like.strides), where
            )
            for threads in (1, 2):
                jitgemm.gemm(a, b, out=out, threads=threads)
                equal(out, want)
                assert memory.intact(out)


# -- lists ----------------------------------------------------------------------------------------

SIZES = [(3, 4, 5), (1, 1, 1), (40, 300, 50), (5, 0, 4), (0, 3, 4), (17, 33, 9), (1, 70, 1),
         (64, 64, 64), (200, 200, 200)]  # fmt: skip


def _list(rng: np.random.Generator, types: list[Any]) -> tuple[list[Array], list[Array]]:
    kinds = [types[i % len(types)] for i in range(len(SIZES))]
    a = [numbers(rng, (m, k), t) for (m, k, _), t in zip(SIZES, kinds, strict=True)]
    b = [numbers(rng, (k, n), t) for (_, k, n), t in zip(SIZES, kinds, strict=True)]
    return a, b


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("pieces")
def test_lists_of_any_shapes_and_types(threads: int, rng: np.random.Generator) -> None:
    a, b = _list(rng, TYPES)
    bias = [None if i % 2 else numbers(rng, (x.shape[1],), x.dtype) for i, x in enumerate(b)]
    want = [np.matmul(x, y) for x, y in zip(a, b, strict=True)]
    out: list[Any] = [None if i % 3 == 0 else np.empty_like(x) for i, x in enumerate(want)]
    for _again in (0, 1, 2):
        got = jitgemm.gemm_batched(a, b, bias=bias, out=out, threads=threads)
        for i, (x, y) in enumerate(zip(got, want, strict=True)):
            assert out[i] is None or x is out[i]
            equal(x, y if bias[i] is None else np.asarray(y + bias[i], y.dtype), i)


def test_lists_with_one_operand_for_all(number: Any, rng: np.random.Generator) -> None:
    b = numbers(rng, (40, 30), number)
    a = [numbers(rng, (m, 40), number) for m in (1, 5, 30, 0, 7)]
    for right in (b, jitgemm.prepack_rhs(b), np.asfortranarray(b)):
        for _again in (0, 1):
            for x, y in zip(a, jitgemm.gemm_batched(a, right, threads=2), strict=True):
                equal(y, np.matmul(x, b))
    left = numbers(rng, (9, 40), number)
    for handle in (left, jitgemm.prepack_lhs(left)):
        got = jitgemm.gemm_batched(handle, [x.T for x in a], threads=2)
        for x, y in zip(a, got, strict=True):
            equal(y, np.matmul(left, x.T))
    assert jitgemm.gemm_batched([], []) == []


def test_lists_with_c_in_place(number: Any, rng: np.random.Generator) -> None:
    a, b = _list(rng, [number])
    c = [numbers(rng, (x.shape[0], y.shape[1]), number) for x, y in zip(a, b, strict=True)]
    for _again in (0, 1):
        mine = [x.copy() for x in c]
        got = jitgemm.gemm_batched(a, b, alpha=2, beta=-1, c=mine, out=mine, threads=2)
        for g, m, x, y, z in zip(got, mine, a, b, c, strict=True):
            assert g is m
            equal(g, np.asarray(2 * np.matmul(x, y) - z, number))


def test_bits_of_lists_are_those_of_single_calls(dtype: Any, rng: np.random.Generator) -> None:
    a = [reals(rng, (m, k), dtype) for m, k, _ in SIZES]
    b = [reals(rng, (k, n), dtype) for _, k, n in SIZES]
    for threads in (1, 2):
        got = jitgemm.gemm_batched(a, b, threads=threads)
        for x, y, z in zip(a, b, got, strict=True):
            same_bits(z, jitgemm.gemm(x, y))


def test_results_of_a_list_must_lie_apart(rng: np.random.Generator) -> None:
    a, b = [np.ones((3, 4), "f4")] * 2, [np.ones((4, 5), "f4")] * 2
    raw = np.full((5, 10), 7, "f4")
    for pair in ((raw[:3, :5], raw[2:, :5]), (raw[:3, :5], raw[:3, :5])):
        for _again in (0, 1):
            with pytest.raises(ValueError, match=r"^jitgemm: out: .*out\[0\] and out\[1\]"):
                jitgemm.gemm_batched(a, b, out=list(pair))
            assert (raw == 7).all()
    # Side by side is apart.
    jitgemm.gemm_batched(a, b, out=[raw[:3, :5], raw[:3, 5:]])
    assert (raw[:3] == 4).all()
    assert (raw[3:] == 7).all()


def test_results_of_a_list_over_its_operands(rng: np.random.Generator) -> None:
    x = [numbers(rng, (5, 5), np.float32) for _ in range(4)]
    want = [np.matmul(p, q) for p, q in zip(x, reversed(x), strict=True)]
    for _again in (0, 1):
        mine = [p.copy() for p in x]
        got = jitgemm.gemm_batched(mine, mine[::-1], out=mine, threads=2)
        for g, m, w in zip(got, mine, want, strict=True):
            assert g is m
            equal(g, w)


def test_errors_of_lists_come_before_anything_is_written() -> None:
    a, b = [np.ones((3, 4), "f4")] * 3, [np.ones((4, 5), "f4")] * 3
    out = [np.full((3, 5), 7, "f4") for _ in range(3)]
    wrong: list[tuple[str, dict[str, Any], type[Exception]]] = [
        ("b", {"b": [b[0], b[1], np.ones((5, 5), "f4")]}, ValueError),
        ("b", {"b": b[:2]}, ValueError),
        ("b", {"b": [b[0], b[1], np.ones((4, 5), complex)]}, TypeError),
        ("out", {"out": [out[0], out[1], np.ones((3, 6), "f4")]}, ValueError),
        ("out", {"out": out[0]}, TypeError),
        ("c", {"beta": 1}, ValueError),
        ("c", {"c": [None]}, ValueError),
        ("bias", {"bias": np.ones(5, "f4")}, TypeError),
        ("a", {"a": a[0], "b": b[0]}, TypeError),
        ("alpha", {"alpha": []}, TypeError),
    ]
    for good in (False, True):
        if good:
            jitgemm.gemm_batched(a, b, out=[x.copy() for x in out])
        for name, given, error in wrong:
            options = {"a": a, "b": b, "out": out, **given}
            with pytest.raises(error, match=rf"^jitgemm: {name}: expected"):
                jitgemm.gemm_batched(options.pop("a"), options.pop("b"), **options)
            assert all((x == 7).all() for x in out)
    frozen = [x.copy() for x in out]
    frozen[1].flags.writeable = False
    with pytest.raises(ValueError, match=r"^jitgemm: out: .*writable"):
        jitgemm.gemm_batched(a, b, out=frozen)
    forget_plans()
