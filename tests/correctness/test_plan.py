"""Plans and packed operands as objects: what they take, say, hold and let go."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import weakref
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm.jit import compiler
from jitgemm.runtime import packed as packed_module
from jitgemm.runtime.engine import engine
from oracle import equal, exact_gemm, integers, reals, same_bits

Array = np.ndarray[Any, Any]
interpreted = pytest.mark.skipif("engine().isa.interpreted", reason="no machine code to show")


@pytest.fixture(params=["plain", "transposed b", "prepacked"])
def second(request: pytest.FixtureRequest) -> Any:
    """How the right operand is stored."""
    return {"plain": np.ascontiguousarray, "transposed b": np.asfortranarray,
            "prepacked": jitgemm.prepack_rhs}[request.param]  # fmt: skip


# -- plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("m, n, k", [(1, 40, 9), (5, 7, 3), (40, 70, 600), (100, 90, 80)])
def test_a_plan_multiplies_what_it_is_given(
    m: int, n: int, k: int, second: Any, dtype: Any, rng: np.random.Generator
) -> None:
    b = integers(rng, (k, n), dtype)
    right = second(b)
    p = jitgemm.plan(np.zeros((m, k), dtype), right, threads=2)
    for _ in range(3):
        a, out = integers(rng, (m, k), dtype), np.full((m, n), np.nan, dtype)
        assert p(a, right, out) is out
        equal(out, exact_gemm(a, b))
        fresh = p(a, right)
        assert fresh is not out
        equal(fresh, exact_gemm(a, b))


def test_other_strides_are_planned_anew(dtype: Any, rng: np.random.Generator) -> None:
    a, b = integers(rng, (31, 20), dtype), integers(rng, (20, 33), dtype)
    p, want = jitgemm.plan(a, b), exact_gemm(a, b)
    places = [np.asfortranarray, lambda x: x[::-1].copy()[::-1],
              lambda x: np.repeat(x, 2, 1)[:, ::2],
              lambda x: x.astype(x.dtype.newbyteorder("S")), np.ndarray.tolist,
              lambda x: np.repeat(x, 3, 0)[::3]]  # fmt: skip
    for place in places:
        lists = place is np.ndarray.tolist
        if lists and dtype == np.float32:
            continue  # lists are doubles
        equal(p(place(a), b), want)
        equal(p(a, place(b)), want)
        if not lists:
            out = place(np.zeros((31, 33), dtype))
            assert p(a, b, out) is out
            equal(out, want)
    equal(p(a, jitgemm.prepack_rhs(b)), want)
    equal(p(a, b), want)


def test_c_and_bias_are_read_at_each_call(dtype: Any, rng: np.random.Generator) -> None:
    a, b = integers(rng, (5, 20), dtype), integers(rng, (20, 9), dtype)
    stores: dict[str, Any] = {
        "contiguous": lambda x: x.copy(),
        "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
        "backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
        "foreign": lambda x: x.astype(x.dtype.newbyteorder("S")),
    }
    for name, store in stores.items():
        c, bias = store(integers(rng, (5, 9), dtype)), store(integers(rng, (9,), dtype))
        p, out = (
            jitgemm.plan(a, b, beta=2, c=c, bias=bias, activation="relu"),
            np.empty((5, 9), dtype),
        )
        for _ in range(3):
            want = exact_gemm(a, b, beta=2, c=c, bias=bias, activation="relu")
            equal(p(a, b, out), want, name)
            equal(p(a, b), want, name)
            c[...] = integers(rng, (5, 9), dtype)
            bias[...] = integers(rng, (9,), dtype)


def test_a_plan_in_place(dtype: Any, rng: np.random.Generator) -> None:
    for k in (3, 600):
        a, b = integers(rng, (9, k), dtype), integers(rng, (k, 20), dtype)
        c = integers(rng, (9, 20), dtype)
        p = jitgemm.plan(a, b, beta=1, c=c, out=c)
        want = c.copy()
        for _ in range(3):
            want = exact_gemm(a, b, beta=1, c=want)
            assert p(a, b, c) is c
            equal(c, want)
        other = np.empty((9, 20), dtype)
        equal(p(a, b, other), exact_gemm(a, b, beta=1, c=c))


def test_a_plan_with_scratch_of_the_callers_own(dtype: Any, rng: np.random.Generator) -> None:
    a, b = integers(rng, (40, 70), dtype), integers(rng, (90, 70), dtype).T
    space = jitgemm.Workspace()
    p = jitgemm.plan(a, b, workspace=space)
    for _ in range(2):
        equal(p(a, b), exact_gemm(a, b))
    assert space.nbytes >= p.executable.plan.workspace_bytes > 0  # type: ignore[union-attr]
    assert repr(space) == f"Workspace(nbytes={space.nbytes})"


def test_explain_says_what_is_done_and_why(eager_threads: None) -> None:
    a, b = np.ones((100, 600), np.float32), np.ones((600, 80), np.float32)
    p = jitgemm.plan(a, b, threads=2, bias=b[0].copy(), activation="relu")
    text = p.explain()
    plan = p.executable.plan  # type: ignore[union-attr]
    heads = {line.split()[0] for line in text.splitlines()}
    assert {"product", "kernel", "tile", "blocking", "sum", "because", "threads", "scratch",
            "bound"} <= heads  # fmt: skip
    for part in ("f32 100 x 600 @ 600 x 80", "epilogue beta0_bias_relu", plan.spec.symbol,
                 "threads   2", "at most 512", *plan.reasons):  # fmt: skip
        assert part in text
    assert f"{plan.blocking.tile_rows} x " in text
    for other, word in (
        (jitgemm.plan(a, jitgemm.prepack_rhs(b)), "prepacked"),
        (jitgemm.plan(a, np.asfortranarray(b)), "not contiguous"),
        (jitgemm.plan(a, b, out=np.empty((80, 100), np.float32).T), "operands exchanged"),
        (jitgemm.plan(a, b, out=np.empty((100, 160), np.float32)[:, ::2]), "no unit stride"),
        (jitgemm.plan(a[:1], b), "in place"),
    ):
        assert word in other.explain()
    assert repr(p) == f"<jitgemm.Plan {plan.spec.symbol} m=100 n=80 k=600>"


@interpreted
def test_ir_and_assembly_are_of_the_kernel(dtype: Any) -> None:
    a = np.ones((4, 4), dtype)
    p = jitgemm.plan(a, a)
    symbol = p.executable.plan.spec.symbol  # type: ignore[union-attr]
    assert f"define void @{symbol}(" in p.ir()
    assert f"{symbol}:" in p.asm()
    assert p.ir() == p.ir()


@pytest.mark.parametrize(
    "dtypes", [("f4", "c8"), ("c8", "f4"), ("c16", "i4"), ("G", "G"), ("O", "O")]
)
def test_delegated_plans_say_so(dtypes: tuple[str, str]) -> None:
    a, b = np.ones((3, 4), dtypes[0]), np.ones((4, 5), dtypes[1])
    p = jitgemm.plan(a, b)
    assert "delegated to numpy.matmul" in p.explain()
    assert "delegated" in repr(p)
    assert p.executable is None
    got, out = p(a, b), np.empty((3, 5), np.result_type(a, b))
    assert np.array_equal(got, np.matmul(a, b))
    assert p(a, b, out) is out
    for call in (p.ir, p.asm):
        with pytest.raises(ValueError, match=r"^jitgemm: plan: "):
            call()


def test_plans_of_vectors_and_stacks(dtype: Any, rng: np.random.Generator) -> None:
    for shapes in (((4,), (4,)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (6, 4, 5))):
        a, b = (integers(rng, s, dtype) for s in shapes)
        p = jitgemm.plan(a, b, threads=2)
        assert ("batch " in p.explain()) == (max(a.ndim, b.ndim) > 2)
        equal(p(a, b), np.matmul(a, b))


def test_plans_are_dropped_with_what_they_hold(second: Any, dtype: Any) -> None:
    class Bias(np.ndarray):  # type: ignore[type-arg]
        """Arrays take no weak references; subclasses do."""

    a, right = np.ones((5, 6), dtype), second(np.ones((6, 7), dtype))
    bias = np.ones(7, dtype).view(Bias)
    p = jitgemm.plan(a, right, bias=bias)
    p(a, right, np.empty((5, 7), dtype))
    executable = weakref.ref(p)
    held = weakref.ref(bias)
    del bias
    gc.collect()
    equal(p(a, right), np.full((5, 7), 7, dtype))
    del p
    gc.collect()
    assert executable() is None
    assert held() is None


def test_calls_and_plans_leak_no_references(second: Any, dtype: Any) -> None:
    a, b = np.ones((5, 6), dtype), np.ones((6, 7), dtype)
    c, bias, out = np.ones((5, 7), dtype), np.ones(7, dtype), np.empty((5, 7), dtype)
    right = second(b)
    things = (a, b, c, bias, out, right, a.dtype)

    def turn() -> None:
        jitgemm.gemm(a, right, beta=1, c=c, bias=bias, out=out)
        jitgemm.gemm(a, right)
        jitgemm.matmul(a, b, out)
        jitgemm.matmul(a, b)
        p = jitgemm.plan(a, right, beta=1, c=c, bias=bias)
        p(a, right, out)
        p(a, right)
        for bad in (a, right, None):
            with pytest.raises((TypeError, ValueError)):
                p(a, right, bad if bad is not None else c.T)

    for _ in range(3):
        turn()
    gc.collect()
    before = [sys.getrefcount(x) for x in things]
    for _ in range(20):
        turn()
    gc.collect()
    after = [sys.getrefcount(x) for x in things]
    # Counts of a shared type wander with unrelated arrays; a leak would add 20 at least.
    assert all(late - early < 15 for early, late in zip(before, after, strict=True)), (
        before,
        after,
    )


def test_a_plan_outlives_its_operands(dtype: Any, rng: np.random.Generator) -> None:
    b = integers(rng, (600, 40), dtype)
    a = integers(rng, (9, 600), dtype)
    handle, bias, c = (
        jitgemm.prepack_rhs(b),
        integers(rng, (40,), dtype),
        integers(rng, (9, 40), dtype),
    )
    want = exact_gemm(a, b, beta=1, c=c, bias=bias)
    p = jitgemm.plan(a, handle, beta=1, c=c.copy(), bias=bias.copy())
    alive = weakref.ref(handle)
    storage = handle
    del handle
    # Something else takes the memory a careless plan would still point to.
    rubbish = [np.full(600 * 48, np.nan, dtype) for _ in range(20)]
    out = np.empty((9, 40), dtype)
    equal(p(a, storage, out), want)
    del storage
    gc.collect()
    assert alive() is not None, "the plan is bound to the handle"
    equal(p(a, alive(), out), want)
    del p, rubbish
    gc.collect()
    assert alive() is None


# -- packed operands ------------------------------------------------------------------------------


@pytest.mark.parametrize("k, n", [(1, 1), (3, 5), (7, 32), (20, 33), (600, 70), (0, 4), (4, 0)])
def test_packed_operands_describe_themselves(
    k: int, n: int, dtype: Any, rng: np.random.Generator
) -> None:
    b = reals(rng, (k, n), dtype)
    packed = jitgemm.prepack_rhs(b)
    assert packed.shape == (k, n)
    assert packed.dtype == b.dtype
    assert packed.isa == engine().isa.name
    panels = -(-n // packed.nr)
    assert packed.nbytes == panels * packed.nr * k * b.itemsize
    same_bits(packed.unpack(), b)
    other = np.float64 if dtype == np.float32 else np.float32
    same_bits(packed.unpack(other), b.astype(other))
    assert packed.unpack().flags.writeable
    for part in (f"({k}, {n})", str(b.dtype), packed.isa, str(packed.nr)):
        assert part in repr(packed)
    assert jitgemm.prepack_rhs(packed) is packed


def test_packed_operands_are_read_only_snapshots(dtype: Any, rng: np.random.Generator) -> None:
    a, b = integers(rng, (5, 20), dtype), integers(rng, (20, 9), dtype)
    want = exact_gemm(a, b)
    packed = jitgemm.prepack_rhs(b)
    b[...] = np.nan
    equal(jitgemm.gemm(a, packed), want)
    packed.unpack()[...] = np.nan
    equal(jitgemm.gemm(a, packed), want)
    with pytest.raises(ValueError, match="read-only"):
        packed.storage[0] = 0
    for name in ("shape", "dtype", "nbytes"):
        with pytest.raises(AttributeError):
            setattr(packed, name, None)


@pytest.mark.parametrize("k, n", [(1, 1), (20, 33), (0, 4), (4, 0), (300, 1200)])
def test_packed_operands_travel(k: int, n: int, dtype: Any, rng: np.random.Generator) -> None:
    a, b = integers(rng, (5, k), dtype), integers(rng, (k, n), dtype)
    packed = jitgemm.prepack_rhs(b)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(packed, protocol))
        assert (again.shape, again.dtype, again.nbytes) == (
            packed.shape,
            packed.dtype,
            packed.nbytes,
        )
        same_bits(again.unpack(), b)
        equal(jitgemm.gemm(a, again), exact_gemm(a, b))
        with pytest.raises(ValueError, match="read-only"):
            again.storage[...] = 0
    for again in (copy.copy(packed), copy.deepcopy(packed)):
        equal(jitgemm.gemm(a, again), exact_gemm(a, b))


def test_pickles_of_another_format_are_refused(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pickle.dumps(jitgemm.prepack_rhs(np.ones((3, 4), np.float32)))
    monkeypatch.setattr(packed_module, "FORMAT", packed_module.FORMAT + 1)
    with pytest.raises(ValueError, match=r"^jitgemm: pickle: expected packed format"):
        pickle.loads(data)


def test_pickles_cut_short_are_refused() -> None:
    for prepack in (jitgemm.prepack_rhs, jitgemm.prepack_lhs):
        rebuild, (header, layout, data, how) = prepack(np.ones((3, 4), np.float32)).__reduce__()
        assert rebuild(header, layout, data, how).shape == (3, 4)
        for cut in (data[:-4], data + b"1234", b""):
            with pytest.raises(ValueError, match=r"^jitgemm: pickle: expected .* packed bytes"):
                rebuild(header, layout, cut, how)


def test_scratch_travels_empty() -> None:
    space = pickle.loads(pickle.dumps(jitgemm.Workspace(4096)))
    assert space.nbytes == 4096


def test_dropped_packed_operands_are_freed(dtype: Any) -> None:
    a, b = np.ones((5, 20), dtype), np.ones((20, 9), dtype)
    packed = jitgemm.prepack_rhs(b)
    for _ in range(3):
        jitgemm.gemm(a, packed)
        jitgemm.matmul(a, packed)
    gone = weakref.ref(packed)
    del packed
    gc.collect()
    assert gone() is None, "a remembered call keeps the operand"


def test_packed_operands_share_what_earlier_ones_left(dtype: Any, rng: np.random.Generator) -> None:
    a = integers(rng, (5, 20), dtype)
    for n in (9, 10, 11):  # the same storage size, other shapes
        for _ in range(3):
            b = integers(rng, (20, n), dtype)
            equal(jitgemm.gemm(a, jitgemm.prepack_rhs(b)), exact_gemm(a, b))


@interpreted
def test_planning_compiles_nothing_new_for_new_shapes(dtype: Any) -> None:
    jitgemm.plan(np.ones((3, 4), dtype), np.ones((4, 5), dtype))
    before = {u.name for u in compiler.compiled()}
    for m in range(1, 14):
        jitgemm.plan(np.ones((m, 4), dtype), np.ones((4, 5), dtype))
    assert {u.name for u in compiler.compiled()} == before
