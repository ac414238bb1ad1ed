"""Kernels of one's own: right on machine code and interpreter, whatever memory they are given.

The kernels of ``docs/KERNELS.md`` are run as they stand there.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import jitgemm
from jitgemm import math as jm
from jitgemm.errors import JitUnavailableError
from jitgemm.isa.types import F32, F64, I32
from jitgemm.jit import compiler
from jitgemm.runtime import launch as launches
from jitgemm.runtime.engine import engine
from oracle import LAYOUTS, ROOT, Guarded, run_python, same_bits, strided, unaligned

Array = np.ndarray[Any, Any]
PAGE = Path(ROOT, "docs", "KERNELS.md").read_text()
NATIVE = {n: f for n, f in LAYOUTS.items() if "foreign" not in n}
both = pytest.mark.parametrize("check", [False, True], ids=["launched", "checked"])


def examples() -> dict[str, Any]:
    """What the page's code leaves behind."""
    found: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code, "KERNELS.md", "exec"), found)  # noqa: S102
    return found


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    return examples()


def soft(x: Array) -> Array:
    z = x.astype(np.float64)
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def interpreted() -> bool:
    return engine().isa.interpreted


# -- softmax ---------------------------------------------------------------------------------------


def test_the_page_is_right(page: dict[str, Any]) -> None:
    np.testing.assert_allclose(page["out"], soft(page["x"]), rtol=1e-5)
    same_bits(page["rows"], page["x"][page["index"]])
    assert page["seen"].tolist() == page["index"].tolist()
    source = PAGE[PAGE.index("@jitgemm.kernel") : PAGE.index("x = np.random")]
    assert len(source.splitlines()) <= 40


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("layout", NATIVE)
def test_softmax(page: dict[str, Any], layout: str, dtype: Any, rng: np.random.Generator) -> None:
    """Any layout of input and output, the same bits; as exact as its functions."""
    softmax = page["softmax"]
    x = (rng.standard_normal((5, 37)) * 6).astype(dtype)
    plain = np.empty_like(x)
    softmax(grid=5, x=x, out=plain)
    bound = {4: 1e-6, 8: 1e-14}.get(x.itemsize, 1e-3 if dtype == "f2" else 1e-2)
    np.testing.assert_allclose(plain.astype(float), soft(x), rtol=bound, atol=1e-7)
    for check in (False, True):
        out = NATIVE[layout](np.zeros_like(x))
        softmax(grid=5, x=NATIVE[layout](x), out=out, check=check)
        same_bits(out, plain)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_softmax_of_any_length(page: dict[str, Any], dtype: str, rng: np.random.Generator) -> None:
    """Every length up to some vectors, great numbers, in place, and with nothing to do."""
    softmax = page["softmax"]
    lanes = engine().isa.lanes(F32)
    for n in [*range(2 * lanes + 2), 9 * lanes - 1, 500]:
        x = (rng.standard_normal((3, n)) * 1e4).astype(dtype)
        out = np.full_like(x, 7)
        softmax(grid=3, x=x, out=out)
        if n:
            np.testing.assert_allclose(out, soft(x), rtol=1e-6, atol=1e-30)
        checked = np.full_like(x, 7)
        softmax(grid=3, x=x, out=checked, check=True)
        same_bits(checked, out)
        softmax(grid=3, x=x, out=x)
        same_bits(x, out)
    untouched = np.full((3, 5), 7, dtype)
    softmax(grid=0, x=untouched.copy(), out=untouched)
    assert (untouched == 7).all()


def test_softmax_beside_memory_that_must_not_be_touched(
    page: dict[str, Any], rng: np.random.Generator
) -> None:
    sides = [Guarded(1 << 12) for _ in range(2)]
    for n, where in ((1, "start"), (7, "end"), (16, "end"), (33, "start"), (61, "end")):
        x = rng.standard_normal((4, n)).astype(np.float32)
        source, out = sides[0].place(x, where), sides[1].place(np.zeros_like(x), where)
        page["softmax"](grid=4, x=source, out=out)
        np.testing.assert_allclose(out, soft(x), rtol=1e-5)
        assert sides[0].intact(source)
        assert sides[1].intact(out)


def test_softmax_of_numbers_that_are_none(page: dict[str, Any]) -> None:
    """A NaN or an infinity makes a row of NaN, as in NumPy; -inf counts nothing."""
    x = np.zeros((4, 41), np.float32)
    x[0, 7], x[1, 40], x[2, 3], x[3, 5:30] = np.nan, np.nan, np.inf, -np.inf
    out = np.empty_like(x)
    page["softmax"](x, out, grid=4)
    assert np.isnan(out[:3]).all()
    np.testing.assert_allclose(out[3], np.where(np.isinf(x[3]), 0, 1 / 16), rtol=1e-6)


# -- other kernels ---------------------------------------------------------------------------------


@jitgemm.kernel
def axpy(k: Any, x: Any, out: Any, alpha: Any, row: Any) -> None:
    x, out = x[row], out[row]
    for i, mask, _ in out.strips(chains=2):
        out.store(i, out.load(i, mask) + x.load(i, mask) * alpha, mask)


@jitgemm.kernel(writes=("y", "mean", "spread"))
def layer_norm(
    k: Any, x: Any, weight: Any, bias: Any, y: Any, mean: Any, spread: Any, eps: Any, row: Any
) -> None:
    x, y = x[row], y[row]

    def total(value: Callable[[Any, Any], Any]) -> Any:
        sums = [k.var(k.zero(x.number, x.lanes)) for _ in range(4)]
        for i, mask, chain in x.strips(chains=4):
            sums[chain].value = sums[chain].value + value(i, mask)
        first, *others = (s.value for s in sums)
        for other in others:
            first = first + other
        return k.reduce("add", first)

    middle = total(x.load) / x.shape[0]

    def square(i: Any, mask: Any) -> Any:
        # Lanes that do not exist are as the mean, and add nothing.
        d = x.load(i, mask, other=middle) - middle
        return d * d

    scale = 1 / jm.sqrt(total(square) / x.shape[0] + eps)
    for i, mask, _ in x.strips():
        v = (x.load(i, mask) - middle) * scale
        y.store(i, v * weight.load(i, mask) + bias.load(i, mask), mask)
    mean.put(middle, row)
    spread.put(scale, row)


@jitgemm.kernel
def scramble(k: Any, x: Any, out: Any, rounds: Any, row: Any) -> None:
    """A generator of random numbers: shifts and xor modulo 2**32."""
    for i, mask, _ in x[row].strips():
        state = k.var(x[row].load(i, mask))
        for _ in k.range(0, rounds):
            s = state.value
            s = s ^ (s << 13)
            s = s ^ (s >> 17)
            state.value = s ^ (s << 5)
        out[row].store(i, state.value, mask)


@jitgemm.kernel
def take(k: Any, x: Any, index: Any, out: Any, row: Any) -> None:
    """Elements of a row by their number; others than there are become -1."""
    x, index, out = x[row], index[row], out[row]
    for i, mask, _ in out.strips():
        at = index.load(i, mask, other=-1, lanes=out.lanes)
        known = (at >= 0) & (at < k.number(x.shape[0], at.element))
        by = at * k.number(x.strides[0], at.element)
        rest = k.literal(-1, out.number, out.lanes)
        out.store(i, k.gather(x.base, by, x.element, known, rest), mask)


@both
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_axpy(check: bool, dtype: str, rng: np.random.Generator) -> None:  # noqa: FBT001
    """A float beside arrays of float32 is one; in place."""
    x, y = (rng.standard_normal((3, 75)).astype(dtype) for _ in range(2))
    want = y + x * x.dtype.type(0.1)
    out = y.copy()
    axpy(grid=3, x=x, out=out, alpha=0.1, check=check)
    same_bits(out, want)
    # A row of zero stride; by place.
    out = y.copy()
    jitgemm.launch(axpy, x, out, 0.1, grid=3, check=check)
    same_bits(out, want)
    out = y.copy()
    axpy(grid=3, x=np.broadcast_to(x[1], x.shape), out=out, alpha=0.1, check=check)
    same_bits(out, y + x[1] * x.dtype.type(0.1))


@both
def test_layer_norm(check: bool, rng: np.random.Generator) -> None:  # noqa: FBT001
    x = rng.standard_normal((6, 203)) * 3 + 10
    weight, bias = rng.standard_normal((2, 203))
    y, (mean, spread) = np.empty_like(x), np.empty((2, 6))
    layer_norm(grid=6, x=x, weight=weight, bias=bias[::-1], y=y, mean=mean, spread=spread,
               eps=1e-5, check=check)  # fmt: skip
    np.testing.assert_allclose(mean, x.mean(1), rtol=1e-13)
    np.testing.assert_allclose(spread, 1 / np.sqrt(x.var(1) + 1e-5), rtol=1e-13)
    want = (x - mean[:, None]) * spread[:, None] * weight + bias[::-1]
    np.testing.assert_allclose(y, want, rtol=1e-11, atol=1e-11)


@both
def test_integers_and_shifts(check: bool, rng: np.random.Generator) -> None:  # noqa: FBT001
    x = rng.integers(0, 1 << 32, (3, 41), np.uint32)
    for rounds in (0, 1, 7):
        want = x.copy()
        for _ in range(rounds):
            want ^= want << np.uint32(13)
            want ^= want >> np.uint32(17)
            want ^= want << np.uint32(5)
        out = np.zeros_like(x)
        scramble(grid=3, x=x, out=out, rounds=rounds, check=check)
        same_bits(out, want)


@both
@pytest.mark.parametrize("kind", ["i4", "i8"])
def test_gather(check: bool, kind: str, rng: np.random.Generator) -> None:  # noqa: FBT001
    """Numbers outside of the row are not looked up: the interpreter would refuse it."""
    x = rng.standard_normal((4, 50)).astype(np.float32)
    index = rng.integers(-5, 55, (4, 67)).astype(kind)
    want = np.where((index >= 0) & (index < 50),
                    np.take_along_axis(x, index.clip(0, 49), 1), np.float32(-1))  # fmt: skip
    for source in (x, x[:, ::-1].copy()[:, ::-1], np.asfortranarray(x)):
        out = np.zeros(index.shape, np.float32)
        take(grid=4, x=source, index=index, out=out, check=check)
        same_bits(out, want)


@both
def test_math_on_vectors(check: bool, rng: np.random.Generator) -> None:  # noqa: FBT001
    """``jitgemm.math`` means in a kernel what it means on arrays."""

    @jitgemm.kernel
    def each(k: Any, x: Any, out: Any, s: Any, row: Any) -> None:
        for i, mask, _ in x.strips():
            v = x.load(i, mask, other=1)
            values = [
                jm.exp(v), jm.log(v), jm.sqrt(v), jm.tanh(v), jm.erf(v), jm.sigmoid(v),
                jm.abs(-v), jm.minimum(v, 1.5), jm.maximum(1.5, v), jm.maximum(s, v),
                jm.where(v < 1, v, 2.5), jm.where(v < 1, 2.5, v), jm.where(v < s, s, v),
            ]  # fmt: skip
            for j, value in enumerate(values):
                out[j].store(i, value, mask)

    for dtype in ("f4", "f8"):
        x = rng.uniform(0.1, 3, 39).astype(dtype)
        s = x.dtype.type(0.7)
        out = np.empty((13, 39), dtype)
        each(grid=1, x=x, out=out, s=float(s), check=check)
        want = [
            jm.exp(x), jm.log(x), jm.sqrt(x), jm.tanh(x), jm.erf(x), jm.sigmoid(x), x,
            jm.minimum(x, 1.5), jm.maximum(1.5, x), jm.maximum(s, x),
            jm.where(x < 1, x, 2.5), jm.where(x < 1, 2.5, x), jm.where(x < s, s, x),
        ]  # fmt: skip
        np.testing.assert_allclose(out, want, rtol=4 * np.finfo(dtype).eps)
        same_bits(out[7:], np.array(want[7:], dtype))


# -- grids, threads, constants ---------------------------------------------------------------------


@jitgemm.kernel
def place(k: Any, out: Any, i: Any, j: Any, l: Any) -> None:
    out.put(i * 100 + j * 10 + l + out.get(i, j, l), i, j, l)


@both
def test_grids_of_several_axes(check: bool) -> None:  # noqa: FBT001
    """Every item once, whatever the tickets are."""
    want = np.add.outer(np.arange(3) * 100, np.add.outer(np.arange(4) * 10, np.arange(5)))
    for grain in (None, 1, 7, 60, 1000):
        for threads in (None, 1, 2, 5):
            out = np.zeros((3, 4, 5), np.int32)
            place(grid=(3, 4, 5), out=out, grain=grain, threads=threads, check=check)
            assert out.tolist() == want.tolist()
    out = np.zeros((3, 4, 5), np.int32)
    place(grid=(np.int64(3), 0, 5), out=out)
    assert not out.any()


def test_threads_work_at_the_same_time_without_the_interpreter_lock() -> None:
    """Items wait for each other, and for this thread of Python."""
    if interpreted():
        pytest.skip("one thread")

    @jitgemm.kernel
    def meet(k: Any, out: Any, item: Any) -> None:
        k.fetch_add(out.base, 1)
        for _ in k.repeat_while(lambda: k.load_shared(out.base) < 3):
            k.yield_core()

    out = np.zeros(8, np.int64)
    running = threading.Thread(target=lambda: meet(grid=2, out=out, threads=2), daemon=True)
    running.start()
    deadline = threading.Event()
    while out[0] < 2:
        assert not deadline.wait(0.001)
    assert running.is_alive()
    out[0] += 1
    running.join(60)
    assert not running.is_alive()
    assert out[0] == 3


def test_results_do_not_depend_on_threads(page: dict[str, Any], rng: np.random.Generator) -> None:
    x = rng.standard_normal((301, 53)).astype(np.float32)
    want = np.empty_like(x)
    page["softmax"](grid=301, x=x, out=want, threads=1)
    for threads, grain in ((2, None), (3, 1), (8, 50)):
        out = np.empty_like(x)
        page["softmax"](grid=301, x=x, out=out, threads=threads, grain=grain)
        same_bits(out, want)


@both
def test_scalars(check: bool) -> None:  # noqa: FBT001
    """Integers have 64 bits; floats take the arrays' type, those of NumPy keep their own."""
    seen: dict[str, Any] = {}

    @jitgemm.kernel
    def tell(k: Any, x: Any, a: Any, out: Any, item: Any) -> None:
        seen["kind"] = getattr(a, "element", "int")
        value = k.number(a, F64) if seen["kind"] == "int" else k.convert(a, F64)
        out.put(value, item)

    narrow, wide, whole = (np.zeros(1, d) for d in ("f2", "f8", "i4"))
    out = np.zeros(1, np.float64)
    cases = [
        (narrow, -7, "int"), (narrow, np.int8(-7), "int"), (narrow, np.uint64(1 << 62), "int"),
        (wide, 0.1, F64), (whole, 0.1, F64), (narrow, np.float32(0.1), F32),
        (narrow, np.float64(0.1), F64), (narrow, math.inf, F64), (narrow, math.nan, F64),
    ]  # fmt: skip
    for x, a, kind in cases:
        tell(grid=1, x=x, a=a, out=out, check=check)
        assert seen.pop("kind", kind) == kind
        np.testing.assert_array_equal(out[0], float(a))
    small = np.zeros(1, np.float32)

    @jitgemm.kernel
    def tell_narrow(k: Any, a: Any, out: Any, item: Any) -> None:
        assert a.element is F32
        out.put(a, item)

    for a in (0.1, 1e300, -math.inf):
        tell_narrow(grid=1, a=a, out=small, check=check)
        with np.errstate(over="ignore"):
            same_bits(small, np.array([a], np.float64).astype(np.float32))


@both
def test_constants_are_known_while_writing(check: bool) -> None:  # noqa: FBT001
    """What tells two constants apart tells two codes apart."""

    @jitgemm.kernel
    def write(k: Any, out: Any, item: Any, *, c: Any = 3, how: str = "as it is") -> None:
        value = (10 if c else 20) if isinstance(c, bool) else c
        out.put(-value if how == "negated" else value, item)

    def got(**constants: Any) -> float:
        out = np.zeros(1)
        write(grid=1, out=out, check=check, **constants)
        return float(out[0])

    assert [got(), got(c=4), got(c=4, how="negated"), got(c=1), got(c=True), got(c=1.0)] == [
        3, 4, -4, 1, 10, 1,
    ]  # fmt: skip
    assert math.copysign(1, got(c=0.0)) == 1
    assert math.copysign(1, got(c=-0.0)) == -1
    assert math.isnan(got(c=math.nan))


# -- code ------------------------------------------------------------------------------------------


def test_code_is_made_once_per_signature() -> None:
    """Shapes, strides and values make no code; types, axes and contiguity do."""
    if interpreted():
        pytest.skip("no code is made")
    written: list[int] = []

    @jitgemm.kernel
    def double(k: Any, x: Any, out: Any, s: Any, row: Any) -> None:
        written.append(1)
        for i, mask, _ in x[row].strips():
            out[row].store(i, x[row].load(i, mask) * s, mask)

    def run(x: Array, s: Any = 2.0) -> int:
        written.clear()
        out = np.empty_like(x)
        double(grid=len(x), x=x, out=out, s=s)
        same_bits(out, x * x.dtype.type(s))
        return len(written)

    x = np.ones((3, 8), np.float32)
    assert run(x) > 0
    for other in (x, x[:2], np.ones((1, 100), np.float32), x[::-1], np.ones((9, 9), "f4")[:, 2:5]):
        assert run(other, 0.5) == 0
    assert run(x.astype(np.float64)) > 0
    assert run(np.asfortranarray(x)) > 0
    assert run(x) == 0


def test_kernels_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as are kept, and no more; one that was forgotten is made again."""
    monkeypatch.setattr(launches._known, "most", 3)

    def make(number: int) -> Any:
        return jitgemm.kernel(lambda k, out, item: out.put(number, item))

    kernels = [make(n) for n in range(6)]
    for _ in range(2):
        for number, one in enumerate(kernels):
            out = np.zeros(1)
            one(grid=1, out=out)
            assert out[0] == number
            assert len(launches._known) <= 3


def test_equal_code_is_shared_and_named() -> None:
    if interpreted():
        pytest.skip("no code is made")
    out = np.zeros(1)
    for _ in range(2):

        @jitgemm.kernel
        def shared_one(k: Any, out: Any, item: Any) -> None:
            out.put(1, item)

        shared_one(grid=1, out=out)
    assert [u.name for u in compiler.compiled()].count("launch_shared_one") == 1


def test_code_can_be_read(page: dict[str, Any]) -> None:
    softmax, x, out = page["softmax"], np.ones((2, 3)), np.zeros((2, 3))
    assert "define void @launch_softmax(ptr %job, i64 %thread)" in softmax.ir(x, out, grid=2)
    if interpreted():
        with pytest.raises(ValueError, match="JITGEMM_ISA: expected a set with machine code"):
            softmax.asm(x, out=out, grid=2)
    else:
        assert "launch_softmax_items" in softmax.asm(x, out=out, grid=2)
    assert not out.any()
    with pytest.raises(TypeError, match="jitgemm: out: expected"):
        softmax.ir(x, grid=2)


# -- errors ----------------------------------------------------------------------------------------

X = np.ones((2, 3), np.float32)


def out_of(x: Array = X) -> Array:
    return np.full_like(x, 7)


_SHARED = np.full((3, 8), 7, np.float32)
_FROZEN = out_of()
_FROZEN.flags.writeable = False

# name: (error, operand, words, changes to the keyword arguments of a good launch)
BAD: dict[str, tuple[type[Exception], str, tuple[str, ...], dict[str, Any]]] = {
    "x by place and name": (TypeError, "x", ("one operand", "two"), {"args": (X,)}),
    "too many by place": (TypeError, "launch", ("at most 4", "5"), {
        "args": (X, X, 1, 1, 1), "x": ..., "out": ..., "alpha": ...}),
    "x is missing": (TypeError, "x", ("an array or a number", "gives row", "nothing"), {"x": ...}),
    "an unknown operand": (TypeError, "z", ("(x, out, alpha)", "this name"), {"z": X}),
    "an index is given": (TypeError, "row", ("(x, out, alpha)",), {"row": 1}),
    "too many axes": (ValueError, "grid", ("at most 4 axes", "axpy"), {"grid": (1,) * 5}),
    "two axes": (TypeError, "alpha", ("(x, out)", "this name"), {"grid": (2, 3)}),
    "x of complex numbers": (TypeError, "x", ("float (and bfloat16", "complex64"), {"x": X * 1j}),
    "x of objects": (TypeError, "x", ("object",), {"x": X.astype(object)}),
    "x is None": (TypeError, "x", ("object",), {"x": None}),
    "x of another byte order": (TypeError, "x", ("byte order", ">f4"), {"x": X.astype(">f4")}),
    "out of another byte order": (TypeError, "out", ("byte order",), {"out": X.astype(">f4")}),
    "x is masked": (TypeError, "x", (), {"x": np.ma.array(X)}),
    "out is a list": (TypeError, "out", ("written", "list"), {"out": [[0.0] * 3] * 2}),
    "out is a number": (TypeError, "out", (), {"out": 1.5}),
    "out is read-only": (ValueError, "out", ("writable", "read-only"), {"out": _FROZEN}),
    "out overlaps itself": (ValueError, "out", ("of its own memory", "overlap"),
                            {"out": np.lib.stride_tricks.as_strided(out_of(), (2, 3), (0, 4))}),
    "out shares memory": (ValueError, "out", ("of its own", "with x"),
                          {"x": _SHARED[:, :3], "out": _SHARED[:, 1:4]}),
    "out is x backwards": (ValueError, "out", ("with x",), {"x": _SHARED, "out": _SHARED[::-1]}),
    "alpha is a truth value": (TypeError, "alpha", ("an array or a number", "True"),
                               {"alpha": True}),
    "alpha is complex": (TypeError, "alpha", ("a float",), {"alpha": np.complex64(1)}),
    "alpha is a half": (TypeError, "alpha", ("a float", "float16"), {"alpha": np.float16(1)}),
    "alpha is huge": (ValueError, "alpha", ("64 bits",), {"alpha": 1 << 63}),
    "alpha is text": (TypeError, "alpha", (), {"alpha": "1"}),
    "grid is a float": (TypeError, "grid", ("an int", "float"), {"grid": 2.0}),
    "grid is a truth value": (TypeError, "grid", ("an int", "bool"), {"grid": True}),
    "grid is negative": (ValueError, "grid", ("at least 0", "-1"), {"grid": -1}),
    "grid is empty": (ValueError, "grid", ("tuple",), {"grid": ()}),
    "grid is endless": (ValueError, "grid", ("2**60",), {"grid": 1 << 60}),
    "grain is zero": (ValueError, "grain", ("at least 1", "0"), {"grain": 0}),
    "grain is a float": (TypeError, "grain", ("an int",), {"grain": 1.5}),
    "threads is zero": (ValueError, "threads", ("between 1",), {"threads": 0}),
    "check is a number": (TypeError, "check", ("True or False", "int"), {"check": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_c23_bad_launches_are_refused(name: str) -> None:
    """The error names the operand, what was expected and what came; nothing is written."""
    error, operand, words, changes = BAD[name]
    good: dict[str, Any] = {"x": X, "out": out_of(), "alpha": 0.5, "grid": 2}
    given = {n: x for n, x in (good | changes).items() if x is not ...}
    with pytest.raises(error) as caught:
        axpy(*given.pop("args", ()), **given)
    text = str(caught.value)
    assert text.startswith(f"jitgemm: {operand}: expected "), text
    for word in words:
        assert word in text, text
    for out in (good["out"], _SHARED, _FROZEN):
        assert (out == 7).all()


def test_c23_bad_kernels_are_refused() -> None:
    def starred(k: Any, *x: Any) -> None: ...
    def option(k: Any, grid: Any) -> None: ...
    def fine(k: Any, x: Any, row: Any, *, c: Any) -> None: ...

    for bad, operand in ((starred, "kernel"), (option, "grid"), (3, "kernel")):
        with pytest.raises(TypeError, match=f"jitgemm: {operand}: expected"):
            jitgemm.kernel(bad)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"jitgemm: writes: expected names among .*'y'"):
        jitgemm.kernel(writes=("y",))(fine)
    with pytest.raises(TypeError, match="jitgemm: kernel: expected a kernel"):
        jitgemm.launch(fine, grid=1, x=X)  # type: ignore[arg-type]
    one = jitgemm.kernel(fine)
    assert one.__name__ == "fine"
    assert "fine" in repr(one)
    with pytest.raises(TypeError, match="jitgemm: c: expected a constant, got nothing"):
        one(grid=1, x=X)
    with pytest.raises(TypeError, match=r"jitgemm: c: expected an int, a float, .*ndarray"):
        one(grid=1, x=X, c=X)


def test_two_outputs_may_not_share_memory() -> None:
    """Not even the very same: nobody could say which is written last."""

    @jitgemm.kernel(writes=("y", "z"))
    def fill(k: Any, y: Any, z: Any, row: Any) -> None:
        y.put(1, row)

    y = np.zeros(4)
    with pytest.raises(ValueError, match=r"jitgemm: y: expected memory of its own.*with z"):
        fill(grid=4, y=y, z=y)
    fill(grid=2, y=y[::2], z=y[1::2])  # interleaved, and apart
    assert y.tolist() == [1, 0, 1, 0]


# -- checking --------------------------------------------------------------------------------------

STRAY: dict[str, tuple[str, Callable[..., None]]] = {
    "behind": ("load of 4 bytes.*'x'", lambda k, x, out, row: x.get(row + 2, 0)),
    "before": ("load of 4 bytes.*'x'", lambda k, x, out, row: x.get(row - 1, 0)),
    "a vector too long": ("load of .*'x'", lambda k, x, out, row: x.load((1, 0), lanes=4)),
    "between elements": ("between the elem", lambda k, x, out, row: k.load(x.at(0, 0) + 4, F32)),
    "an input": ("read-only region 'x'", lambda k, x, out, row: k.store(x.base, k.zero(F32, 1))),
    "a shift": ("shift", lambda k, x, out, row: k.literal(1, I32, 1) << 32),
    "an overflow": ("overflows", lambda k, x, out, row: k.const((1 << 63) - 1) + (row + 1)),
    "an endless loop": ("did not end", lambda k, x, out, row: [
        None for _ in k.repeat_while(lambda: row >= 0)]),
}  # fmt: skip


@pytest.mark.parametrize("name", STRAY)
def test_checked_launches_stay_inside_their_operands(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jitgemm.lang.interp import InterpKernel

    monkeypatch.setattr(InterpKernel, "max_rounds", 1000)
    words, body = STRAY[name]
    x = strided(X, 4)
    out = out_of()
    with pytest.raises(jitgemm.LanguageError, match=words) as caught:
        jitgemm.kernel(body)(grid=1, x=x, out=out, check=True)
    assert any("in kernel <lambda>" in note for note in caught.value.__notes__)
    assert (out == 7).all()
    assert (x == 1).all()


@both
def test_writing_an_input_is_refused_while_writing_code(check: bool) -> None:  # noqa: FBT001
    for body in (
        lambda k, x, out, row: x[row].put(1, 0),
        lambda k, x, out, row: x.store((row, 0), k.zero(F32, 2)),
    ):
        with pytest.raises(jitgemm.LanguageError, match="x: written, but it is no output"):
            jitgemm.kernel(body)(grid=2, x=X, out=out_of(), check=check)


@both
def test_parts_and_indices_of_arrays(check: bool) -> None:  # noqa: FBT001
    """Views know their axes; what cannot be an index is refused."""
    seen: list[Any] = []

    @jitgemm.kernel
    def look(k: Any, x: Any, out: Any, row: Any) -> None:
        seen.append((x.ndim, x[row].ndim, x[row, 0].ndim, x.dense, x[row].dense, x[row, 0].dense))
        out.put(x[row][1].get() + x.get(row, 2) + x[row, 0].get(), row)
        for bad in (
            lambda: x.at(0, 0, 0), lambda: x.get(0), lambda: x[0.5], lambda: x.load(0),
            lambda: out.put(k.zero(F64, 2), 0), lambda: list(k.when(x.get(0, 0) > 0)),
        ):  # fmt: skip
            with pytest.raises(jitgemm.LanguageError):
                bad()

    x = np.arange(6.0).reshape(2, 3)
    out = np.zeros(2)
    look(grid=2, x=x, out=out, check=check)
    assert out.tolist() == [3, 12]
    assert set(seen) == {(2, 1, 0, True, True, False)}


@both
def test_more_variables_than_registers(check: bool) -> None:  # noqa: FBT001
    """They are kept in memory: slower, and right."""

    @jitgemm.kernel
    def many(k: Any, x: Any, out: Any, row: Any) -> None:
        sums = [k.var(k.zero(x.number, x.lanes)) for _ in range(50)]
        for i in k.range(0, x.shape[1]):
            for j, total in enumerate(sums):
                total.value = total.value + x.get(row, i) * j
        for j, total in enumerate(sums):
            out.put(k.extract(total.value, 0), row, j)

    x, out = np.arange(6.0).reshape(2, 3), np.zeros((2, 50))
    many(x, out, grid=2, check=check)
    same_bits(out, np.outer(x.sum(1), np.arange(50.0)))


@both
def test_unaligned_and_narrow_elements(check: bool, rng: np.random.Generator) -> None:  # noqa: FBT001
    """Bytes, truth values and 16-bit floats, at odd addresses, through any stride."""

    @jitgemm.kernel
    def add(k: Any, x: Any, y: Any, out: Any, row: Any) -> None:
        for i, mask, _ in out[row].strips():
            a = k.convert(x[row].load(i, mask, lanes=out.lanes), out.number)
            out[row].store(i, a + y[row].load(i, mask), mask)

    shape = (3, 45)
    kinds = ("i1", "u1", "?", "i2", "f2", "f4", "i8", ml_dtypes.bfloat16)
    for kind in kinds:
        x = rng.integers(0, 2, shape).astype(kind)
        y = rng.integers(-100, 100, shape).astype(np.float64)
        for wrap in (unaligned, lambda v: strided(v, 5), lambda v: v[:, ::-1]):
            out = wrap(np.zeros_like(y))
            add(grid=3, x=wrap(x), y=wrap(y), out=out, check=check)
            same_bits(out, wrap(x).astype(np.float64) + wrap(y))


# -- processes -------------------------------------------------------------------------------------

_SNIPPET = """
    import numpy as np, jitgemm
    @jitgemm.kernel
    def double(k, x, out, row):
        for i, mask, _ in x.strips():
            out.store(i, x.load(i, mask) * 2, mask)
    @jitgemm.kernel
    def stray(k, x, out, row):
        out.put(x.get(row + 100), row)
    x, out = np.arange(33.0), np.zeros(33)
"""


def test_a_pinned_interpreter_checks_every_launch() -> None:
    code = (
        _SNIPPET
        + """
    double(grid=1, x=x, out=out, threads=2)
    assert (out == x * 2).all()
    try:
        stray(grid=1, x=x, out=out)
    except jitgemm.LanguageError as e:
        print(e)
    """
    )
    said = run_python(code, JITGEMM_ISA="interpreter").stdout
    assert re.match(r"load of 8 bytes at 0x\w+: in no region", said)


def test_without_generated_code_a_launch_says_so() -> None:
    """No BLAS knows one's own kernels."""
    code = (
        _SNIPPET
        + """
    try:
        double(grid=1, x=x, out=out)
    except RuntimeError as e:
        print(type(e).__name__, e)
    assert not out.any()
    """
    )
    said = run_python(code, JITGEMM_ISA="none").stdout
    assert said.startswith(f"{JitUnavailableError.__name__} jitgemm: no code can be generated")


def test_launches_work_in_a_forked_child() -> None:
    code = (
        _SNIPPET
        + """
    import os, sys
    big = np.ones((64, 4096))
    @jitgemm.kernel
    def rows(k, x, out, row):
        for i, mask, _ in x[row].strips():
            out[row].store(i, x[row].load(i, mask) * 3, mask)
    def check():
        out = np.zeros_like(big)
        rows(grid=64, x=big, out=out, threads=2)
        assert (out == 3).all()
    check()
    child = os.fork()
    check()
    if not child:
        os._exit(0)
    print(os.waitpid(child, 0)[1])
    """
    )
    assert run_python(code).stdout == "0\n"
