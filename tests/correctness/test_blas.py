"""``backend="blas"``: the products of the kernels, through SciPy's BLAS and through NumPy's."""

from __future__ import annotations

from itertools import product as combinations
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm.api import blas
from oracle import KINDS, LAYOUTS, equal, exact_gemm, integers, run_python, same_bits, unaligned

Array = np.ndarray[Any, Any]
# One row, one column, one number; squares; nothing to sum; more than a block of a kernel's depth.
SIZES = ((1, 1, 1), (1, 7, 5), (6, 1, 5), (1, 1, 9), (3, 5, 0), (4, 6, 5), (33, 17, 520))


@pytest.fixture(params=["scipy", "numpy"], autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "numpy":
        monkeypatch.setattr(blas, "library", lambda: None)
    else:
        pytest.importorskip("scipy")
    return request.param


def gemm(a: Any, b: Any, **options: Any) -> Any:
    return jitgemm.gemm(a, b, backend="blas", **options)


# -- the product ----------------------------------------------------------------------------------


def test_every_layout_of_both_operands(kind: Any, rng: np.random.Generator) -> None:
    for m, n, k in SIZES:
        a, b = integers(rng, (m, k), kind), integers(rng, (k, n), kind)
        for conj_a, conj_b in combinations((False, True), repeat=2):
            if a.dtype.kind == "f" and conj_a != conj_b:
                continue
            flags = {"conj_a": conj_a, "conj_b": conj_b}
            want = exact_gemm(a, b, **flags)
            for (one, left), (two, right) in combinations(LAYOUTS.items(), repeat=2):
                x, y = left(a), right(b)
                equal(gemm(x, y, **flags), want, (m, n, k, one, two, flags))
                equal(x, a)
                equal(y, b)


def test_a_broadcast_operand(kind: Any, rng: np.random.Generator) -> None:
    a, b = integers(rng, (1, 5), kind), integers(rng, (5, 1), kind)
    wide, long = np.broadcast_to(a, (4, 5)), np.broadcast_to(b, (5, 6))
    equal(gemm(wide, long), exact_gemm(wide, long))


def test_factors_c_and_out(kind: Any, rng: np.random.Generator) -> None:
    factors: tuple[Any, ...] = (0, 1, -2, 3.0)
    if np.dtype(kind).kind == "c":
        factors = (*factors, 2 - 1j)
    for m, n, k in SIZES:
        a, b, c = (integers(rng, s, kind) for s in ((m, k), (k, n), (m, n)))
        for alpha, beta in combinations(factors, repeat=2):
            options = {"alpha": alpha, "beta": beta}
            want = exact_gemm(a, b, c=c, **options)
            for name, layout in LAYOUTS.items():
                why = (m, n, k, alpha, beta, name)
                stored = layout(c.copy())
                equal(gemm(a, b, c=stored, **options), want, why)
                equal(stored, c, why)
                out = layout(np.full((m, n), 7, kind))
                assert gemm(a, b, c=stored, out=out, **options) is out
                equal(out, want, why)
                place = layout(c.copy())
                assert gemm(a, b, c=place, out=place, **options) is place
                equal(place, want, why)


def activations(kind: Any) -> tuple[Any, ...]:
    """Those that keep integers integers; none of complex numbers."""
    return (None,) if np.dtype(kind).kind == "c" else (None, "relu", jitgemm.clip(-3, 5))


def test_bias_and_activation(kind: Any, rng: np.random.Generator) -> None:
    for m, n, k in SIZES:
        a, b, c = (integers(rng, s, kind) for s in ((m, k), (k, n), (m, n)))
        for shape in ((), (n,), (m, 1), (m, n), (1, n), (1, 1)):
            bias = integers(rng, shape, kind)
            for stored in (bias, bias.astype(bias.dtype.newbyteorder("S")), unaligned(bias)):
                for activation in activations(kind):
                    options = {"bias": stored, "activation": activation, "beta": 2, "c": c}
                    equal(gemm(a, b, **options), exact_gemm(a, b, **options), (m, n, k, shape))


def test_there_is_no_activation_of_complex_numbers(kind: Any, rng: np.random.Generator) -> None:
    if np.dtype(kind).kind == "f":
        return
    a, b, out = integers(rng, (3, 4), kind), integers(rng, (4, 5), kind), np.full((3, 5), 7, kind)
    for name, given in (("activation", "relu"), ("activation", "tanh"),
                        ("epilogue", lambda v, row, col: v + row)):  # fmt: skip
        words = f"^jitgemm: {name}: expected None, because elements are complex, got one for reals"
        for call in (gemm, jitgemm.gemm):
            with pytest.raises(TypeError, match=words):
                call(a, b, out=out, **{name: given})
    equal(out, np.full((3, 5), 7, kind))


def test_prepacked_operands(kind: Any, rng: np.random.Generator) -> None:
    for m, n, k in SIZES:
        a, b, bias = (
            integers(rng, (m, k), kind),
            integers(rng, (k, n), kind),
            integers(rng, (n,), kind),
        )
        for conj, again in combinations((False, True), repeat=2):
            want = exact_gemm(a, b, conj_b=conj ^ again, bias=bias)
            right = jitgemm.prepack_rhs(b, conj=conj)
            equal(gemm(a, right, conj_b=again, bias=bias), want)
            equal(right.unpack(), b.conj() if conj else b)
            left = jitgemm.prepack_lhs(a, conj=conj)
            equal(gemm(left, b, conj_a=again), exact_gemm(a, b, conj_a=conj ^ again))
            equal(left.unpack(), a.conj() if conj else a)


def test_the_result_is_new_and_row_major(kind: Any, rng: np.random.Generator) -> None:
    a, b = integers(rng, (6, 5), kind), integers(rng, (5, 4), kind)
    result = gemm(a.T.copy().T, b)
    assert (result.dtype, result.flags.c_contiguous, result.flags.owndata) == (kind, True, True)


def test_out_may_overlap_the_operands(kind: Any, rng: np.random.Generator) -> None:
    for place in (lambda x: x, lambda x: x[::-1], lambda x: x.T):
        a, b = integers(rng, (5, 5), kind), integers(rng, (5, 5), kind)
        want = exact_gemm(a, b)
        store = a.copy()
        equal(gemm(store, b, out=place(store)), want)
        store = b.copy()
        equal(gemm(a, store, out=place(store)), want)
    w = np.arange(12).reshape(3, 4).astype(kind)
    jitgemm.gemm(w[:, :3], w[:, :3], out=w[:, 1:], backend="blas")
    equal(w, np.array([[0, 20, 23, 26], [4, 68, 83, 98], [8, 116, 143, 170]], kind))


def test_agrees_with_the_kernels_on_reals(kind: Any, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal(s).astype(kind) for s in ((30, 200), (200, 40)))
    got, want = gemm(a, b, alpha=0.3), jitgemm.gemm(a, b, alpha=0.3)
    np.testing.assert_allclose(got, want, rtol=0, atol=200 * np.finfo(kind).eps * 10)


# -- what is not read, and what must arrive -------------------------------------------------------


def test_what_is_multiplied_by_zero_is_not_read(kind: Any, rng: np.random.Generator) -> None:
    for m, n, k in SIZES:
        a, b, c = (integers(rng, s, kind) for s in ((m, k), (k, n), (m, n)))
        bad = [np.full_like(x, np.nan) for x in (a, b, c)]
        equal(gemm(a, b, beta=0, c=bad[2]), exact_gemm(a, b))
        equal(gemm(a, b, out=bad[2].copy()), exact_gemm(a, b))
        equal(gemm(bad[0], bad[1], alpha=0, beta=3, c=c), exact_gemm(a, b, alpha=0, beta=3, c=c))
        equal(gemm(bad[0], bad[1], alpha=0, bias=c[0]), exact_gemm(a, b, alpha=0, bias=c[0]))


def test_nan_and_infinity_arrive(kind: Any, rng: np.random.Generator) -> None:
    components = [kind(1)] if np.dtype(kind).kind == "f" else [kind(1), kind(1j), kind(1 - 1j)]
    for (m, n, k), value, part in combinations(SIZES[:-1], (np.nan, np.inf, -np.inf), components):
        if not k:
            continue
        a, b, c = (integers(rng, s, kind) for s in ((m, k), (k, n), (m, n)))
        with np.errstate(all="ignore"):
            # Component by component: infinity times 1j has no real part here.
            bad = kind(value * part.real) if part.imag == 0 else kind(complex(
                value * part.real if part.real else 2, value * part.imag))  # fmt: skip
        a[0, k // 2], c[-1, -1] = bad, bad
        cases: list[dict[str, Any]] = [{}, {"alpha": -2}, {"beta": 2, "c": c}]
        for options in (*cases, {"activation": activations(kind)[-1]}):
            want = jitgemm.gemm(a, b, **options)
            equal(gemm(a, b, **options), want, (m, n, k, bad, options))


def test_a_factor_too_small_for_the_type_still_multiplies(kind: Any) -> None:
    if np.finfo(kind).bits == 64:
        pytest.skip("every double is one")
    a, c = np.full((3, 3), np.nan, kind), np.full((3, 3), np.nan, kind)
    assert np.isnan(gemm(a, a, alpha=1e-60).real).all()
    assert np.isnan(gemm(a * 0, a, alpha=0, beta=1e-60, c=c).real).all()
    one = np.ones((3, 3), kind)
    assert np.isinf(gemm(one, one, alpha=1e60).real).all()


def test_impossible_copies_raise_before_anything_is_written() -> None:
    for k in (2**50, 2**56):
        a, b = np.broadcast_to(np.float32(1), (3, k)), np.broadcast_to(np.float32(1), (k, 2))
        out = np.full((3, 2), 7, np.float32)
        with pytest.raises(MemoryError, match=r"^jitgemm: workspace: "):
            gemm(a, b, out=out)
        equal(out, np.full((3, 2), 7, np.float32))


def test_empty_results(kind: Any) -> None:
    for m, n, k in ((0, 3, 2), (3, 0, 2), (0, 0, 0)):
        assert gemm(np.ones((m, k), kind), np.ones((k, n), kind)).shape == (m, n)


# -- choosing it ----------------------------------------------------------------------------------


def test_a_plan_says_what_it_is(kind: Any, rng: np.random.Generator, library: str) -> None:
    a, b, bias = integers(rng, (4, 5), kind), integers(rng, (5, 6), kind), integers(rng, (6,), kind)
    activation = activations(kind)[:2][-1]
    p = jitgemm.plan(a, b, bias=bias, activation=activation, backend="blas")
    want = exact_gemm(a, b, bias=bias, activation=activation)
    out = np.empty((4, 6), kind)
    assert p(a, b, out) is out
    equal(out, want)
    equal(p(np.asfortranarray(a), b), want)
    text = p.explain()
    assert text in repr(p)
    routine = {"numpy": "NumPy's matmul", "scipy": "SciPy's " + "sdcz"[KINDS.index(kind)] + "gemm"}
    steps = "then bias" if activation is None else f"then bias, then {activation}"
    for words in ("backend blas", "asked for by name", routine[library], steps):
        assert words in text
    with pytest.raises(ValueError, match="jitgemm: plan: expected one with a kernel"):
        p.ir()
    with pytest.raises(ValueError, match="jitgemm: plan: expected one with a kernel"):
        p.asm()
    with pytest.raises(ValueError, match="jitgemm: b: expected shape"):
        p(a, b[:, :3])
    if library == "scipy":
        assert "gemv" in jitgemm.plan(a, b[:, :1], backend="blas").explain()


@pytest.mark.parametrize("call", [jitgemm.gemm, jitgemm.plan])
def test_other_backends_are_refused(call: Any) -> None:
    a, out = np.ones((3, 3)), np.full((3, 3), 7.0)
    for backend, error in (("BLAS", ValueError), ("", ValueError), (None, TypeError),
                           (True, TypeError), ([], TypeError)):  # fmt: skip
        with pytest.raises(error, match="jitgemm: backend: expected 'jit' or 'blas', got"):
            call(a, a, out=out, backend=backend)
    with pytest.raises(ValueError, match="jitgemm: reproducible: expected 'default'"):
        call(a, a, out=out, backend="blas", reproducible="strict")
    equal(out, np.full((3, 3), 7.0))


def test_the_backends_do_not_share_entries(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((30, 600)), rng.standard_normal((600, 40))
    plain = jitgemm.gemm(a, b)
    with np.errstate(all="ignore"):
        other = gemm(a, b)
    for _ in range(3):
        same_bits(jitgemm.gemm(a, b), plain)
        same_bits(gemm(a, b), other)


def test_without_scipy(library: str) -> None:
    if library == "scipy":
        return
    run_python("""
        import sys
        sys.modules["scipy"] = sys.modules["scipy.linalg"] = None
        import numpy as np
        import jitgemm
        a = np.ones((3, 4))
        assert (jitgemm.gemm(a, a.T, backend="blas") == 4).all()
        assert "NumPy's matmul" in jitgemm.plan(a, a.T, backend="blas").explain()
        assert jitgemm.show_config()["blas"] == "numpy"
    """)


def test_a_blas_is_imported_only_when_asked_for() -> None:
    run_python("""
        import sys
        import numpy as np
        import jitgemm
        a = np.ones((3, 4))
        jitgemm.gemm(a, a.T)
        assert "scipy" not in sys.modules
    """)
