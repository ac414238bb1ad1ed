"""What one route or one form of an argument alone decides, each met from several sides.

Depth limits, rounds of block sums, scales of a requantisation, conjugation asked for twice, and the
indices a traced function sees where rows or columns are walked another way.
"""

# ruff: noqa: FBT001  # parameters of a test are named by its decorator

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm.kernels.spec import BSource
from jitgemm.planner.machine import Cache
from jitgemm.planner.route import Columns, Dot, RowStreaming, SplitDepth
from oracle import (
    BF16,
    MANY_PIECES,
    TINY,
    Guarded,
    another_machine,
    documented,
    equal,
    exact_gemm,
    integers,
    low_tiles,
    product_type,
    reals,
    same_bits,
)

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.timeout(200)


@pytest.fixture(autouse=True, scope="module")
def _few_rows() -> Iterator[None]:
    with low_tiles():
        yield


# -- 16: how deep a product may be ----------------------------------------------------------------


def _endless(rows: int, cols: int) -> Array:
    return np.broadcast_to(np.float32(1), (rows, cols))


def _too_deep(m: int, n: int, **options: Any) -> int:
    """The least depth that is refused: plans are made, nothing is multiplied."""
    p = jitgemm.plan(_endless(m, 600), _endless(600, n), **options)
    assert p.executable is not None
    return (1 << 47) // p.executable.plan.spec.panel_row + 1


@pytest.mark.parametrize("m, n", [(3, 3), (40, 3), (1, 3), (3, 1)])
def test_c16_sums_that_would_take_days_are_refused(m: int, n: int) -> None:
    """Strides of zero make operands of four bytes so deep: no memory is short, but the limit is."""
    k = _too_deep(m, n)
    for depth, threads in itertools.product((k, k + 1, 2 * k, 2**46), (1, 2)):
        a, b = _endless(m, depth), _endless(depth, n)
        out = np.full((m, n), 7, np.float32)
        # A plan first: a product that were begun would not end.
        with pytest.raises(MemoryError, match=r"^jitgemm: workspace: "):
            jitgemm.plan(a, b, threads=threads)
        for call in (
            lambda: jitgemm.gemm(a, b, out=out, threads=threads),
            lambda: jitgemm.matmul(a, b, out, threads=threads),
            lambda: jitgemm.gemm_batched([a], [b], out=[out], threads=threads),
            lambda: jitgemm.gemm(a[None], b[None], out=out[None], threads=threads),
        ):
            with pytest.raises(MemoryError, match=r"^jitgemm: workspace: "):
                call()
        assert (out == 7).all()
    assert jitgemm.plan(_endless(m, k - 1), _endless(k - 1, n)).executable is not None


# -- 1: rounds of block sums ----------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [4, 17])
def test_c01_rounds_of_block_sums_do_not_show(
    blocks: int, fused: bool, rng: np.random.Generator
) -> None:
    rounds, k = set(), 512 * blocks + 5
    for m, n in ((1, 7), (3, 3)):
        a, b, bias = reals(rng, (m, k), "f4"), reals(rng, (k, n), "f4"), reals(rng, (n,), "f4")
        want = documented(a, b, fused=fused, bias=bias)
        for l2, threads, order in itertools.product((1 << 8, 1 << 10), (1, 2), "CF"):
            machine = replace(TINY, l2=Cache(l2, 64, 4))
            with another_machine(machine, **MANY_PIECES, split_depth=1024):
                left, right = np.asarray(a, order=order), np.asarray(b, order=order)
                p = jitgemm.plan(left, right, bias=bias, threads=threads)
                assert p.executable is not None
                route = p.executable.plan.route
                if isinstance(route, SplitDepth):
                    split = route.bounds
                    rounds.add(-(-(blocks + 1) // split.round_blocks))
                    most = max(threads * l2 // 2, 4 * threads * split.sums_stride)
                    assert split.round_blocks * split.sums_stride <= most
                same_bits(jitgemm.gemm(left, right, bias=bias, threads=threads), want)
                same_bits(p(left, right), want)
    assert max(rounds) >= {4: 2, 17: 5}[blocks]
    assert len(rounds) > 1


# -- 1 and 13: every route of numbers narrower than their sums ------------------------------------

NARROW_PAIRS = [
    (np.dtype(a), np.dtype(b))
    for a, b in (
        ("f2", "f2"), (BF16, BF16), ("f4", BF16), ("f2", "f4"), ("i1", "i1"), ("u1", "i1"),
        ("i2", "i2"), ("i2", "u1"),
    )
]  # fmt: skip
SHAPES = {
    # rows, columns, depth, order of B
    Columns: [(1, 37, 1027, "F"), (2, 5, 66, "F"), (4, 70, 131, "F"), (3, 2, 519, "F")],
    RowStreaming: [(1, 901, 23, "C"), (2, 301, 530, "C")],
    SplitDepth: [(3, 5, 9001, "C"), (5, 3, 2050, "F"), (1, 40, 4097, "C"), (2, 9, 8192, "F")],
    Dot: [(1, 1, 3, "C"), (1, 1, 1003, "C")],
}


def _narrow(rng: np.random.Generator, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """Numbers over the whole range, or reals whose sums round."""
    return (
        integers(rng, shape, dtype) if dtype.kind in "iu" else reals(rng, shape, "f4").astype(dtype)
    )


@pytest.mark.skipif(sys.platform == "win32", reason="uses mprotect")
@pytest.mark.parametrize("pair", NARROW_PAIRS, ids=lambda p: f"{p[0]}@{p[1]}")
def test_c01_narrow_numbers_by_every_route_between_forbidden_pages(
    pair: tuple[np.dtype[Any], np.dtype[Any]], fused: bool, rng: np.random.Generator
) -> None:
    """The bits are those of the wide product in the documented order, rounded once."""
    memory = {x: Guarded(1 << 21) for x in "ab"}
    met = set()
    for (route, shapes), where in itertools.product(SHAPES.items(), ("start", "end")):
        for m, n, k, order in shapes:
            a, b = _narrow(rng, (m, k), pair[0]), _narrow(rng, (k, n), pair[1])
            b = np.asarray(b, order=order)
            if a.dtype.kind in "iu":
                want = exact_gemm(a, b)
            else:
                wide = documented(a.astype("f4"), b.astype("f4"), fused=fused)
                with np.errstate(over="ignore"):
                    want = wide.astype(product_type(*pair))
            x, y = memory["a"].place(a, where), memory["b"].place(b, where)
            with another_machine(TINY, **MANY_PIECES, split_depth=2048):
                for threads in (1, 2):
                    p = jitgemm.plan(x, y, threads=threads)
                    assert p.executable is not None
                    taken = p.executable.plan.route
                    met.add(route if isinstance(taken, route) else None)
                    same_bits(p(x, y), want, (route, m, n, k))
                    same_bits(jitgemm.gemm(x, y, threads=threads), want, (route, m, n, k))
            same_bits(jitgemm.gemm(x, y), want, (route, m, n, k))
            if pair[0] == pair[1]:
                same_bits(jitgemm.gemm(x, jitgemm.prepack_rhs(y)), want, (route, m, n, k))
    floats = pair[0].kind not in "iu"
    assert SplitDepth in met
    assert {RowStreaming, Dot, Columns} <= met or not floats


# -- 7: a vector of scales ------------------------------------------------------------------------


def _ways(a: Array, b: Array, **options: Any) -> dict[str, Array]:
    """One product by every door."""
    found = {
        "gemm": jitgemm.gemm(a, b, **options),
        "again": jitgemm.gemm(a, b, **options),
        "threads": jitgemm.gemm(a, b, threads=2, **options),
        "left": jitgemm.gemm(jitgemm.prepack_lhs(a), b, **options),
        "right": jitgemm.gemm(a, jitgemm.prepack_rhs(b), **options),
        "list": jitgemm.gemm_batched([a, a], [b, b], **options)[1],
        "plan": jitgemm.plan(a, b, **options)(a, b),
        "stack": jitgemm.gemm(np.stack([a, a]), b, **options)[1],
    }
    out = np.zeros(found["gemm"].shape, found["gemm"].dtype, order="F")
    return found | {"out": jitgemm.gemm(a, b, out=out, **options)}


@pytest.mark.parametrize("scales", [*itertools.permutations([0.5, 4.0, 3.0]), (0.5, 0.25, 1.5),
                                    (1.5, 0.5, 0.25), (0.25, 1.5, 0.5)])  # fmt: skip
@pytest.mark.parametrize("down", [False, True], ids=["per column", "per row"])
def test_c07_the_largest_scale_of_all_decides(
    scales: tuple[float, ...], down: bool, rng: np.random.Generator
) -> None:
    """Times 4 a sum is beyond 32 bits: what bounds it must not ask the first scale only."""
    a, b = integers(rng, (3, 9), np.int8), integers(rng, (9, 3), np.int8)
    scale = np.array(scales)[:, None] if down else np.array(scales)
    for sums, dtype in itertools.product((2**30, -(2**30), 2**31 - 5000), (np.int8, np.uint8)):
        bias = np.full(3, sums, np.int32) + np.arange(3, dtype=np.int32) * 7
        q = jitgemm.Requantize(scale, 5, dtype, bias)
        want = exact_gemm(a, b, requantize=q)
        for name, got in _ways(a, b, requantize=q).items():
            same_bits(got, want, name)


@pytest.mark.parametrize("place", range(4))
def test_c07_one_large_scale_among_many(place: int, rng: np.random.Generator) -> None:
    """Wherever it is: more columns than a tile has, and more rows."""
    n = 40
    at = [0, 1, n // 2, n - 1][place]
    scales = np.full(n, 1e-9)
    scales[at] = 3.5
    a, b = integers(rng, (n, 5), np.int8), integers(rng, (5, n), np.int8)
    bias = np.full((n, n), 2**30, np.int32)
    for scale in (scales, scales[:, None], scales[None]):
        q = jitgemm.Requantize(scale, 0, np.int8)
        want = exact_gemm(a, b, bias=bias, requantize=q)
        assert (want == 127).any()
        same_bits(jitgemm.gemm(a, b, bias=bias, requantize=q), want)
        same_bits(jitgemm.gemm(a, b, bias=bias, requantize=q, threads=2), want)


# -- 8: conjugation asked for twice ---------------------------------------------------------------


Pack = Callable[..., Any]
PACKS: dict[str, Pack] = {"a": jitgemm.prepack_lhs, "b": jitgemm.prepack_rhs}


@pytest.mark.parametrize("kind", [np.complex64, np.complex128])
@pytest.mark.parametrize("side", "ab")
def test_c08_conjugation_twice_is_none(side: str, kind: Any, rng: np.random.Generator) -> None:
    """By the handle, by the handle of a handle, and by the flag; from either side."""
    other = "b" if side == "a" else "a"
    for (m, n), k in itertools.product(((1, 1), (1, 9), (7, 1), (5, 20)), (1, 40)):
        x = {"a": integers(rng, (m, k), kind), "b": integers(rng, (k, n), kind)}
        for first, second, flag, beside in itertools.product((False, True), repeat=4):
            handle = PACKS[side](PACKS[side](x[side], conj=first), conj=second)
            flags = {f"conj_{side}": flag, f"conj_{other}": beside}
            # What is asked for an odd number of times is done.
            wants = {f"conj_{side}": first ^ second ^ flag, f"conj_{other}": beside}
            want = exact_gemm(x["a"], x["b"], **wants)
            given = {**x, side: handle}
            equal(jitgemm.gemm(given["a"], given["b"], **flags), want, (m, n, k, flags))
            equal(jitgemm.plan(given["a"], given["b"], **flags)(given["a"], given["b"]), want)
            equal(handle.unpack(), x[side].conj() if first ^ second else x[side])


@pytest.mark.parametrize("side", "ab")
def test_c08_conjugation_twice_in_stacks_and_lists(side: str, rng: np.random.Generator) -> None:
    kind, (m, n, k) = np.complex64, (4, 6, 5)
    a, b = integers(rng, (3, m, k), kind), integers(rng, (3, k, n), kind)
    for packed, flag in itertools.product((False, True), repeat=2):
        handle = PACKS[side]((a if side == "a" else b)[0], conj=packed)
        left = a[:1] if side == "a" else a
        right = b[:1] if side == "b" else b
        conj = packed ^ flag
        want = exact_gemm(left, right, **{f"conj_{side}": conj})
        x, y = (handle, b) if side == "a" else (a, handle)
        flags = {f"conj_{side}": flag}
        for _ in range(2):
            equal(jitgemm.gemm(x, y, **flags), want)
            equal(jitgemm.gemm(x, y, **flags, threads=2), want)
            lists = (handle, list(b)) if side == "a" else (list(a), handle)
            equal(np.array(jitgemm.gemm_batched(*lists, **flags)), want)


# -- 1: the indices a function sees ---------------------------------------------------------------


FUNCTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "col": lambda v, row, col: v + 2 * col,
    "row": lambda v, row, col: v - 3 * row,
    "indices alone": lambda v, row, col: 64 * row + col,
}


@contextmanager
def _route(name: str) -> Iterator[None]:
    if name == "in place":
        # Beside large caches: tiles of one depth block differ in nothing but their place.
        with another_machine(None, parallel_flops=1):
            yield
        return
    knobs = {**MANY_PIECES, "streaming_row_bytes": 1 if name == "sweep" else 10**9}
    with another_machine(TINY, **knobs):
        yield


def _taken(p: Any, route: str) -> bool:
    plan = p.executable.plan
    if route == "sweep":
        return isinstance(plan.route, RowStreaming)
    source = {"turned": BSource.COLUMNS, "packed": BSource.PACKED, "in place": BSource.INPLACE}
    return plan.spec.b is source[route] and not isinstance(plan.route, RowStreaming)


def _cases(route: str) -> list[tuple[int, int, int]]:
    """Few rows, for those that are for few rows; more columns than a chunk has, and a rest."""
    rows = {"sweep": (1, 2), "turned": (1, 3, 4), "packed": (7,), "in place": (7, 20)}[route]
    return [(m, n, 40) for m in rows for n in (33, 700, 2003)]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("route", ["sweep", "turned", "packed", "in place"])
def test_c01_indices_do_not_depend_on_the_route(
    route: str, function: str, rng: np.random.Generator
) -> None:
    """Columns in a sweep along rows, rows in columns turned in registers; from any chunk on."""
    taken, chunks = False, set()
    for (m, n, k), threads in itertools.product(_cases(route), (1, 2)):
        a, b = integers(rng, (m, k), np.float32), integers(rng, (k, n), np.float32)
        bias = integers(rng, (n,), np.float32)
        right = np.asfortranarray(b) if route == "turned" else b
        options: dict[str, Any] = {"bias": bias, "epilogue": FUNCTIONS[function]}
        want = exact_gemm(a, b, **options)
        with _route(route):
            p = jitgemm.plan(a, right, threads=threads, **options)
            assert p.executable is not None
            taken |= _taken(p, route)
            chunks.add(p.executable.plan.blocking.col_chunks)
            equal(p(a, right), want, (m, n, threads))
            equal(jitgemm.gemm(a, right, threads=threads, **options), want, (m, n, threads))
    assert taken
    # Others are met in one chunk: there it is the microtiles that must know their place.
    assert len(chunks) > 1 or route in ("packed", "in place")


@pytest.mark.parametrize("route", ["sweep", "turned", "packed", "in place"])
def test_c01_indices_of_the_other_orientation(route: str, rng: np.random.Generator) -> None:
    """A column-major result is the product turned: its rows are columns, its columns rows."""
    function = FUNCTIONS["indices alone"]
    taken = False
    for (n, m, k), threads in itertools.product(_cases(route), (1, 2)):
        a, b = integers(rng, (m, k), np.float32), integers(rng, (k, n), np.float32)
        a = np.asfortranarray(a) if route != "turned" else a
        want = exact_gemm(a, b, epilogue=function)
        out = np.zeros((m, n), np.float32, order="F")
        with _route(route):
            p = jitgemm.plan(a, b, out=out, threads=threads, epilogue=function)
            assert p.executable is not None
            taken |= p.executable.plan.exchanged and (route == "packed" or _taken(p, route))
            equal(p(a, b, out), want, (m, n, threads))
            if route == "packed":
                left = jitgemm.prepack_lhs(a)
                equal(jitgemm.gemm(left, b, threads=threads, epilogue=function), want)
    assert taken


def test_c01_indices_of_a_sweep_below_other_rows(rng: np.random.Generator) -> None:
    """Stacks of two rows: a function sees the rows of its own product."""
    a, b = integers(rng, (4, 2, 30), np.float32), integers(rng, (30, 501), np.float32)
    bias = integers(rng, (501,), np.float32)
    for function, threads in itertools.product(FUNCTIONS.values(), (1, 2)):
        want = np.stack([exact_gemm(x, b, bias=bias, epilogue=function) for x in a])
        with _route("sweep"):
            equal(jitgemm.gemm(a, b, bias=bias, epilogue=function, threads=threads), want)
            got = jitgemm.gemm_batched(list(a), b, bias=[bias] * 4, epilogue=function,
                                       threads=threads)  # fmt: skip
            equal(np.array(got), want)
