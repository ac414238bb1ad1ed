"""Calls that look like an earlier one stay in generated code, and mean what they say each time.

What a call looks like is told by generated code alone (``runtime.signature_code``).  These tests
watch from outside: no Python function of the package runs, and results are right whatever else
changes between the calls.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import jitgemm
import outside
from jitgemm.runtime.engine import engine
from oracle import equal, exact_gemm, forget_plans, integers, run_python, same_bits

pytestmark = pytest.mark.skipif(not engine().native, reason="no generated code takes calls here")

F32, F64, C64, I8 = np.float32, np.float64, np.complex64, np.int8
BF16 = ml_dtypes.bfloat16


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    forget_plans()
    yield
    forget_plans()


def python_calls(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """The result of a call, and the Python functions that ran meanwhile."""
    seen: list[str] = []

    def watch(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_qualname)

    sys.setprofile(watch)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    return result, [x for x in seen if x != call.__qualname__]


def stays(call: Callable[[], Any], want: Any, times: int = 3) -> None:
    """The call has this result each time, and soon without Python: the first may meet a type."""
    for i in range(times + 2):
        got, seen = python_calls(call)
        equal(np.asarray(got), np.asarray(want))
        assert i < 2 or not seen, (i, seen)


def _some(rng: np.random.Generator, dtype: Any, *shape: int) -> Any:
    return integers(rng, shape, dtype)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "rows": np.ascontiguousarray,
    "columns": lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "wide": lambda x: np.concatenate([x, x], axis=-1)[..., : x.shape[-1]],
    "every other": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards": lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
}
SHAPES = [
    ((8, 8), (8, 8)), ((3, 70), (70, 90)), ((100, 100), (100, 100)), ((1, 300), (300, 5)),
    ((64,), (64,)), ((500,), (500,)), ((7,), (7, 9)), ((9, 7), (7,)), ((130, 70), (70,)),
    ((4, 8, 8), (4, 8, 8)), ((4, 8, 8), (8, 8)), ((8, 8), (3, 8, 4)), ((2, 3, 5, 6), (3, 6, 4)),
    ((5, 1, 4), (4, 3)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, F64, C64, I8, np.float16, np.int64, BF16])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_matmul_of_any_shape_and_type(shapes: Any, dtype: Any, rng: np.random.Generator) -> None:
    a, b = (_some(rng, dtype, *s) for s in shapes)
    wide = np.complex128 if dtype is C64 else np.int64
    want = np.matmul(a.astype(wide), b.astype(wide))
    usual = jitgemm.matmul(a, b)
    want = np.asarray(want).astype(usual.dtype)
    stays(lambda: jitgemm.matmul(a, b), want)
    out = np.zeros_like(want)
    if out.ndim:
        stays(lambda: jitgemm.matmul(a, b, out), want)
        stays(lambda: jitgemm.matmul(a, b, out=out), want)


@pytest.mark.parametrize("second", LAYOUTS)
@pytest.mark.parametrize("first", LAYOUTS)
def test_matmul_of_any_layout(first: str, second: str, rng: np.random.Generator) -> None:
    for m, k, n in ((8, 8, 8), (33, 70, 40)):
        a, b = _some(rng, F32, m, k), _some(rng, F32, k, n)
        x, y = LAYOUTS[first](a), LAYOUTS[second](b)
        want = exact_gemm(a, b)
        stays(lambda x=x, y=y: jitgemm.matmul(x, y), want)  # type: ignore[misc]
        turned = np.zeros((n, m), F32).T
        stays(lambda x=x, y=y, d=turned: jitgemm.matmul(x, y, d), want)  # type: ignore[misc]


def test_the_functions_of_vectors(rng: np.random.Generator) -> None:
    a, x, y = _some(rng, F32, 6, 5), _some(rng, F32, 5), _some(rng, F32, 6)
    many = _some(rng, F32, 3, 5)
    stays(lambda: jitgemm.matvec(a, x), a @ x)
    stays(lambda: jitgemm.matvec(a[np.newaxis], many), (a @ many.T).T)
    stays(lambda: jitgemm.vecmat(y, a), y @ a)
    stays(lambda: jitgemm.vecdot(x, x), np.dot(x, x))
    stays(lambda: jitgemm.vecdot(many, many), (many * many).sum(1))
    stays(lambda: jitgemm.vecdot(many[:, ::2], many[:, ::2]), (many * many)[:, ::2].sum(1))
    z = _some(rng, C64, 5)
    stays(lambda: jitgemm.vecdot(z, z), np.vdot(z, z))


OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "alpha": {"alpha": 2.0},
    "alpha int": {"alpha": 3},
    "alpha f32": {"alpha": np.float32(2)},
    "alpha f64": {"alpha": np.float64(-2)},
    "no alpha": {"alpha": 0.0},
    "beta": {"beta": 2.0, "c": "c"},
    "beta f": {"beta": 1, "alpha": 2, "c": "c turned"},
    "beta 0": {"beta": 0.0, "c": "c"},
    "bias": {"bias": "column"},
    "bias row": {"bias": "row"},
    "bias full": {"bias": "full"},
    "bias one": {"bias": "one"},
    "relu": {"activation": "relu", "bias": "column"},
    "clip": {"activation": jitgemm.clip(-3, 11)},
    "leaky": {"activation": jitgemm.leaky_relu(0.5), "alpha": 2},
    "strict": {"reproducible": "strict"},
    "default": {"reproducible": "default", "backend": "jit", "out_dtype": None, "bias": None},
    "threads": {"threads": 1},
    "two threads": {"threads": 2},
    "type": {"out_dtype": F32},
    "named type": {"out_dtype": "float32"},
    "all": {"alpha": 2.0, "beta": -1.0, "c": "c", "bias": "column", "activation": "relu"},
}


@pytest.mark.parametrize("out", ["new", "given", "turned"])
@pytest.mark.parametrize("how", ["arrays", "right", "left", "stack"])
@pytest.mark.parametrize("name", OPTIONS)
def test_gemm_with_any_options(name: str, how: str, out: str, rng: np.random.Generator) -> None:
    m, k, n = 6, 9, 11
    a, b = _some(rng, F32, m, k), _some(rng, F32, k, n)
    c, full = _some(rng, F32, m, n), _some(rng, F32, m, n)
    named = {
        "c": c, "c turned": np.asfortranarray(c), "full": full, "column": full[0],
        "one": full[:1, :1], "row": full[:, :1],
    }  # fmt: skip
    options = {
        key: named[x] if isinstance(x, str) and x in named else x
        for key, x in OPTIONS[name].items()
    }
    known = {
        key: x for key, x in options.items()
        if key not in ("threads", "reproducible", "backend", "out_dtype")
    }  # fmt: skip
    known = {key: float(x) if key in ("alpha", "beta") else x for key, x in known.items()}
    want = exact_gemm(a, b, **known)
    left: Any = a if how != "left" else jitgemm.prepack_lhs(a)
    right: Any = b if how != "right" else jitgemm.prepack_rhs(b)
    if how == "stack":
        left, want = np.stack([a, a]), np.stack([want, want])
    if out != "new":
        d = np.zeros(want.shape, F32)
        options["out"] = (
            d if out == "given" else np.zeros((*want.shape[:-2], n, m), F32).swapaxes(-1, -2)
        )
    stays(lambda: jitgemm.gemm(left, right, **options), want)


@pytest.mark.parametrize("dtype", [C64, np.complex128])
@pytest.mark.parametrize("turned", [False, True])
def test_complex_factors_and_conjugation(
    dtype: Any,
    turned: bool,  # noqa: FBT001
    rng: np.random.Generator,
) -> None:
    a, b, c = _some(rng, dtype, 5, 6), _some(rng, dtype, 6, 7), _some(rng, dtype, 5, 7)
    out = np.zeros((7, 5), dtype).T if turned else np.zeros((5, 7), dtype)
    for conj_a in (False, True):
        for conj_b in (False, True):
            for alpha in (1, 2.0, 1 + 2j, 3j, 0):
                for beta in (0, 1, 2 - 1j):
                    options = {
                        "alpha": alpha, "beta": beta, "c": c, "conj_a": conj_a, "conj_b": conj_b,
                    }  # fmt: skip
                    want = exact_gemm(a, b, **options)
                    for _ in range(3):
                        equal(jitgemm.gemm(a, b, out=out, **options), want)
    options = {"alpha": 1 + 2j, "beta": 2 - 1j, "c": c, "conj_b": True}
    stays(lambda: jitgemm.gemm(a, b, out=out, **options), exact_gemm(a, b, **options))


def test_factors_are_not_part_of_what_a_call_looks_like(rng: np.random.Generator) -> None:
    a, b, c = (_some(rng, F64, 5, 5) for _ in range(3))
    for alpha in (2.0, -3, np.float32(4), 1, 0, -0.0, 5.0, 10**15, np.float64(7)):
        for beta in (1.0, 0, 2, -1.0):
            got = jitgemm.gemm(a, b, alpha=alpha, beta=beta, c=c)
            equal(got, exact_gemm(a, b, alpha=float(alpha), beta=float(beta), c=c))
    known = len(engine().calls or ())
    for alpha in range(2, 50):
        equal(jitgemm.gemm(a, b, alpha=float(alpha)), exact_gemm(a, b, alpha=float(alpha)))
    assert len(engine().calls or ()) <= known + 1


def test_factors_beyond_their_type_are_as_in_python(rng: np.random.Generator) -> None:
    a = np.eye(4, dtype=F32)
    forget_plans()
    for alpha in (1e300, 1e-300, float("inf"), 2**200, -(2**300)):
        want = jitgemm.plan(a, a, alpha=alpha)(a, a)
        for _ in range(3):
            same_bits(jitgemm.gemm(a, a, alpha=alpha), want)
    x = _some(rng, np.int32, 4, 4)
    for factor in (2**31, -(2**40) + 3, 2**62, 2**63, 2**70 + 1):
        want = (x.astype(object) @ x.astype(object) * factor % 2**32).astype(np.uint32)
        for _ in range(3):
            same_bits(jitgemm.gemm(x, x, alpha=factor), want.view(np.int32))


def test_what_is_wrong_is_refused_each_time_and_before_anything_is_written() -> None:
    a, b, out = np.ones((4, 4), F32), np.ones((4, 4), F32), np.full((4, 4), 7, F32)
    for _ in range(3):
        jitgemm.gemm(a, b, out=out, bias=a[0], alpha=2.0, threads=1)
    out[...] = 7
    frozen = out.view()
    frozen.flags.writeable = False
    wrong: list[dict[str, Any]] = [
        {"out": frozen}, {"conj_a": None}, {"conj_a": 1}, {"alpha": "2"}, {"beta": None},
        {"threads": 0}, {"threads": 2000}, {"threads": 1.0}, {"threads": True},
        {"workspace": 3}, {"activation": "rel"}, {"reproducible": None},
        {"backend": "blas", "reproducible": "strict"},
        {"nothing": 1}, {"bias": np.ones(5, F32)}, {"beta": 1.0}, {"allow_bf16_dot": None},
        {"alpha": 1j},
    ]  # fmt: skip
    for options in wrong:
        for _ in range(3):
            with pytest.raises((TypeError, ValueError)):
                jitgemm.gemm(a, b, **{"out": out, **options})
    assert (out == 7).all()
    for call in (
        lambda: jitgemm.gemm(a), lambda: jitgemm.gemm(*[]), lambda: jitgemm.gemm(a, b, out),
        lambda: jitgemm.gemm(a, a=a), lambda: jitgemm.gemm(a, b, b=b), lambda: jitgemm.matmul(a),
        lambda: jitgemm.matmul(a, b, out, out), lambda: jitgemm.matmul(a, b, out, out=out),
        lambda: jitgemm.matmul(a, b, nothing=1), lambda: jitgemm.gemm(a, None),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            call()
    assert (out == 7).all()


def test_results_that_share_memory_with_an_operand(rng: np.random.Generator) -> None:
    whole = _some(rng, F32, 6, 6)
    other = _some(rng, F32, 6, 6)
    for _ in range(4):
        a = whole.copy()
        want = exact_gemm(a.copy(), other)
        equal(jitgemm.gemm(a, other, out=a), want)
        a = whole.copy()
        want = exact_gemm(a, other, beta=1.0, c=a.copy())
        equal(jitgemm.gemm(whole, other, beta=1.0, c=a, out=a), want)
        a = np.concatenate([whole, whole])
        want = exact_gemm(whole, other, bias=a[2].copy())
        equal(jitgemm.gemm(whole, other, bias=a[2], out=a[:6]), want)


def test_shapes_may_change_in_place(rng: np.random.Generator) -> None:
    a, b = _some(rng, F32, 4, 6), _some(rng, F32, 6, 4)
    for _ in range(3):
        equal(jitgemm.gemm(a, b), exact_gemm(a, b))
    a.shape = (6, 4)
    b.shape = (4, 6)
    for _ in range(3):
        equal(jitgemm.gemm(a, b), exact_gemm(a, b))


def test_threads_of_a_context(rng: np.random.Generator) -> None:
    a, b = _some(rng, F32, 9, 9), _some(rng, F32, 9, 9)
    want = exact_gemm(a, b)
    for count in (1, 2, 3, 300, 1):
        with jitgemm.threads(count):
            stays(lambda: jitgemm.gemm(a, b, alpha=1), want)
        jitgemm.set_num_threads(count)
        stays(lambda: jitgemm.gemm(a, b, alpha=1), want)
    jitgemm.set_num_threads(os.cpu_count() or 1)


def test_a_workspace_is_the_fast_way(rng: np.random.Generator) -> None:
    """Contract: from the second call of a size on nothing is allocated."""
    work = jitgemm.Workspace()
    for m, k, n in ((8, 8, 8), (70, 300, 90)):
        for turned in (False, True):
            a = _some(rng, F32, m, k)
            b = np.asfortranarray(_some(rng, F32, k, n)) if turned else _some(rng, F32, k, n)
            out, want = np.zeros((m, n), F32), exact_gemm(a, b)
            calls: list[Callable[[], Any]] = [
                lambda a=a, b=b, out=out: jitgemm.gemm(a, b, out=out, workspace=work),  # type: ignore[misc]
                lambda a=a, b=b: jitgemm.gemm(np.stack([a, a]), b, workspace=work)[0],  # type: ignore[misc]
            ]
            for call in calls:
                for _ in range(3):
                    equal(call(), want)
            held = work.nbytes
            stays(calls[0], want)
            assert work.nbytes == held
    planned = jitgemm.plan(a, b, workspace=work)
    equal(planned(a, b), want)


def test_a_workspace_in_use_is_left_alone(rng: np.random.Generator) -> None:
    a, b = _some(rng, F32, 70, 300), np.asfortranarray(_some(rng, F32, 300, 90))
    want, work = exact_gemm(a, b), jitgemm.Workspace(1 << 20)
    for _ in range(3):
        equal(jitgemm.gemm(a, b, workspace=work), want)
    with work.lend(1000) as at:
        for _ in range(3):
            equal(jitgemm.gemm(a, b, workspace=work), want)
        assert at
    stays(lambda: jitgemm.gemm(a, b, workspace=work), want)


def test_half_made_handles_and_workspaces_are_refused() -> None:
    a = np.ones((4, 4), F32)
    handle, work = (object.__new__(x) for x in (jitgemm.PackedRhs, jitgemm.Workspace))
    big = np.ones((300, 300), F32)
    with pytest.raises((AttributeError, TypeError, ValueError)):
        jitgemm.gemm(a, handle)
    with pytest.raises((AttributeError, TypeError, ValueError)):
        jitgemm.gemm(big, big.T, workspace=work)


def test_handles_of_equal_layout_share_an_entry(rng: np.random.Generator) -> None:
    a = _some(rng, F32, 4, 6)
    first = jitgemm.prepack_rhs(_some(rng, F32, 6, 8))
    for _ in range(3):
        jitgemm.gemm(a, first)
    known = len(engine().calls or ())
    for _ in range(20):
        b = _some(rng, F32, 6, 8)
        equal(jitgemm.gemm(a, jitgemm.prepack_rhs(b)), exact_gemm(a, b))
    assert len(engine().calls or ()) == known


def test_stacks_of_handles_and_two_handles(rng: np.random.Generator) -> None:
    a, b = _some(rng, F32, 3, 5, 6), _some(rng, F32, 3, 6, 7)
    want = np.stack([exact_gemm(x, y) for x, y in zip(a, b, strict=True)])
    right, left = jitgemm.prepack_rhs(b), jitgemm.prepack_lhs(a)
    stays(lambda: jitgemm.gemm(a, right), want)
    stays(lambda: jitgemm.matmul(left, b), want)
    stays(lambda: jitgemm.matmul(a[0], right), np.stack([exact_gemm(a[0], y) for y in b]))
    one = right[1]
    stays(lambda: jitgemm.gemm(a[1], one), want[1])
    for _ in range(3):
        equal(jitgemm.matmul(left, right), want)
        equal(jitgemm.matmul(left[2], right), np.stack([exact_gemm(a[2], y) for y in b]))
        equal(left @ right, want)
    p = jitgemm.plan(a, right)
    stays(lambda: p(a, right), want)
    equal(jitgemm.gemm_batched(list(a), list(right))[1], want[1])
    wide = jitgemm.prepack_rhs(b[:, np.newaxis])
    equal(jitgemm.matmul(a, wide), np.matmul(a, b[:, np.newaxis]))


# -- lists ----------------------------------------------------------------------------------------


def _lists(rng: np.random.Generator, count: int = 12) -> tuple[list[Any], list[Any], list[Any]]:
    sizes = [(i % 5 + 1, i % 7 + 1, i % 4 + 2) for i in range(count)]
    a = [_some(rng, F32, m, k) for m, k, _ in sizes]
    b = [_some(rng, F32, k, n) for _, k, n in sizes]
    return a, b, [exact_gemm(x, y) for x, y in zip(a, b, strict=True)]


def _all_equal(got: Any, want: Any) -> None:
    assert len(got) == len(want)
    for x, y in zip(got, want, strict=True):
        equal(x, y)


@pytest.mark.parametrize("threads", [1, 2])
def test_lists_stay_in_generated_code(
    threads: int, rng: np.random.Generator, eager_threads: None
) -> None:
    a, b, want = _lists(rng)
    outs = [np.zeros_like(x) for x in want]
    some = [x if i % 2 else None for i, x in enumerate(outs)]
    bias = [_some(rng, F32, x.shape[1]) for x in want]
    biased = [exact_gemm(x, y, bias=z, alpha=2.0) for x, y, z in zip(a, b, bias, strict=True)]
    calls: dict[str, tuple[Callable[[], Any], Any]] = {
        "plain": (lambda: jitgemm.gemm_batched(a, b, threads=threads), want),
        "tuples": (lambda: jitgemm.gemm_batched(tuple(a), tuple(b), threads=threads), want),
        "out": (lambda: jitgemm.gemm_batched(a, b, out=outs, threads=threads), want),
        "some out": (lambda: jitgemm.gemm_batched(a, b, out=some, threads=threads), want),
        "bias": (
            lambda: jitgemm.gemm_batched(a, b, bias=bias, alpha=2.0, threads=threads), biased,
        ),
    }  # fmt: skip
    for name, (call, right) in calls.items():
        for i in range(4):
            got, seen = python_calls(call)
            _all_equal(got, right)
            assert i < 2 or not seen or name == "plain", (name, i, seen)


def test_lists_give_the_arrays_of_out_back(rng: np.random.Generator) -> None:
    a, b, want = _lists(rng)
    outs = [np.zeros_like(x) for x in want]
    for _ in range(4):
        got = jitgemm.gemm_batched(a, b, out=outs, threads=1)
        assert all(x is y for x, y in zip(got, outs, strict=True))
        counts = [sys.getrefcount(x) for x in outs]
        del got
        assert [x - 1 for x in counts] == [sys.getrefcount(x) for x in outs]


def test_one_operand_for_all(rng: np.random.Generator) -> None:
    a, shared = [_some(rng, F32, m, 6) for m in (1, 4, 4, 9)], _some(rng, F32, 6, 5)
    want = [exact_gemm(x, shared) for x in a]
    handle = jitgemm.prepack_rhs(shared)
    for _ in range(4):
        _all_equal(jitgemm.gemm_batched(a, shared, threads=1), want)
        _all_equal(jitgemm.gemm_batched(a, handle, threads=1), want)


def test_lists_whose_results_meet(rng: np.random.Generator) -> None:
    a, b, _ = _lists(rng, 3)
    whole = np.zeros(100, F32)
    shapes = [(x.shape[0], y.shape[1]) for x, y in zip(a, b, strict=True)]
    apart, at = [], 0
    for m, n in shapes:
        apart.append(whole[at : at + m * n].reshape(m, n))
        at += m * n
    want = [exact_gemm(x, y) for x, y in zip(a, b, strict=True)]
    for _ in range(4):
        _all_equal(jitgemm.gemm_batched(a, b, out=apart, threads=1), want)
    whole[...] = 7
    meets = [*apart[:2], whole[: shapes[2][0] * shapes[2][1]].reshape(shapes[2])]
    for _ in range(2):
        with pytest.raises(ValueError, match="share memory"):
            jitgemm.gemm_batched(a, b, out=meets, threads=1)
    assert (whole == 7).all()
    # One that is what another product reads: computed aside.
    x, y = _some(rng, F32, 4, 4), _some(rng, F32, 4, 4)
    for _ in range(4):
        first, second = x.copy(), y.copy()
        want = [exact_gemm(x, y), exact_gemm(y, x)]
        _all_equal(
            jitgemm.gemm_batched([first, second], [second, first], out=[first, second]), want
        )


# -- what is kept ---------------------------------------------------------------------------------


def test_operands_and_workspaces_are_not_kept(rng: np.random.Generator) -> None:
    class Array(np.ndarray):
        pass

    out, c, bias = (_some(rng, F32, 5, 5).view(Array) for _ in range(3))
    work = jitgemm.Workspace()
    gone = [weakref.ref(x) for x in (out, c, bias, work)]
    for _ in range(4):
        plain = {name: x.view(np.ndarray) for name, x in (("out", out), ("c", c), ("bias", bias))}
        jitgemm.gemm(plain["out"] + 1, plain["c"] + 1, beta=1.0, workspace=work, **plain)
    del out, c, bias, work, plain
    gc.collect()
    assert not [x() for x in gone if x() is not None]


def test_requantisations_are_kept_from_the_second_time_on(rng: np.random.Generator) -> None:
    a, b = _some(rng, I8, 4, 5), _some(rng, I8, 5, 6)
    often = jitgemm.Requantize(0.5, bias=np.arange(6))
    want = jitgemm.gemm(a, b, requantize=often)
    stays(lambda: jitgemm.gemm(a, b, requantize=often), want, times=4)
    known = len(engine().calls or ())
    for _ in range(10):
        equal(jitgemm.gemm(a, b, requantize=jitgemm.Requantize(0.5, bias=np.arange(6))), want)
    assert len(engine().calls or ()) == known
    for point in (3, -7, 0, 3, -7):
        want = exact_gemm(a, b, a_zero_point=point)
        for _ in range(3):
            equal(jitgemm.gemm(a, b, a_zero_point=point), want)


def test_entries_are_bounded_and_the_latest_stay() -> None:
    code = """
        import numpy as np
        import jitgemm
        from jitgemm.runtime.engine import engine

        a = np.ones((200, 3), "f4")
        b = np.ones((3, 4), "f4")
        for turn in range(3):
            for m in range(1, 150):
                x = a[: m + 64].T.copy().T
                assert (jitgemm.gemm(x, b) == 3).all()
        print(len(engine().calls))
    """
    assert int(run_python(code, JITGEMM_CALL_ENTRIES="8").stdout) <= 8


def test_public_functions_look_like_functions() -> None:
    import inspect

    for name in ("gemm", "gemm_batched", "matmul", "matvec", "vecmat", "vecdot"):
        function = getattr(jitgemm, name)
        assert pickle.loads(pickle.dumps(function)) is function
        assert function.__name__ == name
        assert function.__module__ == "jitgemm"
        assert function.__doc__
        parameters = inspect.signature(function).parameters
        assert "threads" in parameters, name
    said = inspect.signature(jitgemm.gemm)
    assert list(said.parameters)[:2] == ["a", "b"]
    assert said.parameters["alpha"].default == 1
    assert said.parameters["reproducible"].default == "default"
    assert said == inspect.signature(jitgemm.plan) or set(said.parameters) == set(
        inspect.signature(jitgemm.plan).parameters
    )


def test_threads_call_and_forget_at_once(rng: np.random.Generator) -> None:
    a = _some(rng, F32, 40, 40)
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            own = np.random.default_rng(seed)
            for _ in range(300):
                m, n = (int(x) for x in own.integers(1, 40, 2))
                equal(jitgemm.gemm(a[:m].T, a[:m, :n]), exact_gemm(a[:m].T, a[:m, :n]))
                if own.random() < 0.02:
                    calls = engine().calls
                    assert calls is not None
                    calls.clear()
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


def test_equal_activations_are_one_object() -> None:
    assert jitgemm.clip(0, 6) is jitgemm.clip(0, 6)
    assert jitgemm.clip(0.0, 6.0) is jitgemm.clip(0.0, 6.0)
    assert np.signbit(jitgemm.clip(-0.0, 6.0).lo)
    assert not np.signbit(jitgemm.clip(0.0, 6.0).lo)
    assert jitgemm.leaky_relu(0.1) is jitgemm.leaky_relu(0.1)
    assert jitgemm.leaky_relu(0.1) is not jitgemm.leaky_relu(0.2)
    assert jitgemm.leaky_relu(np.float32(0.5)) == jitgemm.leaky_relu(0.5)
    assert jitgemm.clip(1, 2) == jitgemm.clip(1.0, 2.0)


def test_rows_from_outside_stay_too(rng: np.random.Generator) -> None:
    a, b = _some(rng, F32, 6, 9), _some(rng, F32, 9, 11)
    with outside.activation() as make, outside.activation("short", cheap=True):
        want = outside.bent(exact_gemm(a, b), F32(0.5), F32(6))
        bent = make(0.5, 6)
        stays(lambda: jitgemm.gemm(a, b, activation=bent), want)
        short = jitgemm.activation("short", 0.5, most=6)
        stays(lambda: jitgemm.gemm(a, b, activation=short, bias=None), want)
    with outside.storage_type():
        x, y = a.astype(outside.F8), b.astype(outside.F8)
        packed = jitgemm.prepack_rhs(y)
        stays(lambda: jitgemm.gemm(x, y), exact_gemm(a, b))
        stays(lambda: jitgemm.gemm(x, packed), exact_gemm(a, b))
        narrow = np.dtype(outside.F8.type)
        stays(
            lambda: jitgemm.gemm(x, packed, out_dtype=narrow).astype(F32),
            exact_gemm(a, b).astype(outside.F8).astype(F32),
        )
    whole = a.astype(I8)
    for mine in ("relu", jitgemm.clip(-3, 11)):
        want = exact_gemm(whole, whole.T, activation=mine)
        stays(lambda mine=mine: jitgemm.gemm(whole, whole.T, activation=mine), want)  # type: ignore[misc]


def test_products_that_come_alone_stay_too(rng: np.random.Generator) -> None:
    jitgemm.set_num_threads(2)
    try:
        for sizes in ([256] * 3, [256, 8, 8], [300, 200, 100, 50, 10, 4], [500]):
            a, b = ([_some(rng, F32, n, n) for n in sizes] for _ in range(2))
            want = [exact_gemm(x, y) for x, y in zip(a, b, strict=True)]
            outs = [np.zeros_like(x) for x in want]
            for i in range(4):
                for own in ({}, {"out": outs}):
                    got, seen = python_calls(lambda own=own: jitgemm.gemm_batched(a, b, **own))  # type: ignore[misc]
                    _all_equal(got, want)
                    assert i < 2 or not seen, (i, seen)
                # C is the result: once more would show.
                for x in outs:
                    x[...] = 1
                got = jitgemm.gemm_batched(a, b, c=outs, out=outs, beta=2.0)
                _all_equal(got, [x + 2 for x in want])
    finally:
        jitgemm.set_num_threads(os.cpu_count() or 1)


def test_calls_whose_options_only_python_can_tell(rng: np.random.Generator) -> None:
    """They have entries too, one for each form, and their numbers are theirs."""
    a, b = _some(rng, F32, 5, 6), _some(rng, F32, 6, 7)
    x, y = _some(rng, I8, 5, 6), _some(rng, I8, 6, 7)

    def scaled(by: float) -> Callable[..., Any]:
        return lambda v, row, col: v * by + row

    want = exact_gemm(a, b)
    rows = np.arange(5, dtype=F32)[:, np.newaxis]
    known = 0
    for i in range(1, 9):
        for turned in (False, True):
            out = np.zeros((7, 5), F32).T if turned else np.zeros((5, 7), F32)
            got = jitgemm.gemm(a, b, epilogue=scaled(float(i)), alpha=2.0, out=out)
            equal(got, want * 2 * i + rows)
            stacked = jitgemm.gemm(np.stack([a, a]), b, epilogue=scaled(float(i)))
            equal(stacked[1], want * i + rows)
        points = _some(rng, I8, 7)
        equal(jitgemm.gemm(x, y, b_zero_point=points), exact_gemm(x, y, b_zero_point=points))
        rule = jitgemm.Requantize(0.25 * i, bias=np.arange(7))
        equal(jitgemm.gemm(x, y, requantize=rule), exact_gemm(x, y, requantize=rule))
        if i == 2:
            known = len(engine().calls or ())
    assert len(engine().calls or ()) == known
    with pytest.raises(TypeError):
        jitgemm.gemm(a, b, form=object())  # type: ignore[call-arg]
