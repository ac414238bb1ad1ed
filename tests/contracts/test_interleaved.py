"""What a call leaves behind for later ones must not hide how they differ (contracts 10 and 14).

Calls are recognised by what decides their plan.  Each call here differs from a plain one in exactly
one thing.  They follow each other in random orders, and each result has the bits of the same call
where nothing was called before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import jitgemm
from oracle import (
    another_machine,
    anything,
    equal,
    exact_gemm,
    forget_plans,
    integers,
    low_tiles,
    same_bits,
)

Array = np.ndarray[Any, Any]
Options = dict[str, Any]

M, K, N = 5, 520, 7
"""More than one tile of few rows, and two blocks of depth: sums rest in the result between them."""

ROUNDS = 8

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True, scope="module")
def _few_rows() -> Iterator[None]:
    """All the threads that are asked for, however small the product."""
    with low_tiles(), another_machine(None, parallel_flops=1):
        yield


# -- ways to store a matrix or a stack of them ----------------------------------------------------


def _f(x: Array) -> Array:
    return x.swapaxes(-1, -2).copy().swapaxes(-1, -2)


def _backwards(x: Array) -> Array:
    return x[..., ::-1, ::-1].copy()[..., ::-1, ::-1]


def _gaps(x: Array) -> Array:
    return np.repeat(x, 2, axis=-1)[..., ::2]


def _wider(x: Array) -> Array:
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 3)])[..., :-3]


def _foreign(x: Array) -> Array:
    return x.astype(x.dtype.newbyteorder("S"))


def _same_row(x: Array) -> Array:
    return np.broadcast_to(x[..., :1, :], x.shape)


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "f": _f, "backwards": _backwards, "gaps": _gaps, "wider": _wider, "foreign": _foreign,
    "same row": _same_row,
}  # fmt: skip
OUTS = {name: LAYOUTS[name] for name in ("f", "backwards", "gaps", "wider", "foreign")}


# -- calls ----------------------------------------------------------------------------------------


def _operands(rng: np.random.Generator, kind: str, lead: tuple[int, ...]) -> Options:
    if kind == "integers":
        a, b = anything(rng, (*lead, M, K), np.int8), anything(rng, (*lead, K, N), np.int8)
        return {"a": a, "b": b}
    dtype = np.complex64 if kind == "complex" else np.float32
    return {"a": integers(rng, (*lead, M, K), dtype), "b": integers(rng, (*lead, K, N), dtype)}


def _layouts(base: Options) -> dict[str, Options]:
    found = {}
    for side, (name, layout) in itertools.product("ab", LAYOUTS.items()):
        found[f"{side} {name}"] = {side: layout(base[side])}
    return found


def _real(rng: np.random.Generator, base: Options, lead: tuple[int, ...]) -> dict[str, Options]:
    bias, full = integers(rng, (N,), np.float32), integers(rng, (*lead, M, N), np.float32)
    column = integers(rng, (M, 1), np.float32)
    return {
        "bias": {"bias": bias}, "other numbers": {"bias": bias + 1},
        "bias wide": {"bias": bias[None]}, "bias gaps": {"bias": _gaps(bias)},
        "bias backwards": {"bias": bias[::-1]},
        "bias foreign": {"bias": _foreign(bias)}, "bias one": {"bias": np.float32(3)},
        "bias the same": {"bias": np.broadcast_to(bias[:1], (N,))},
        "bias per row": {"bias": column}, "bias full": {"bias": full},
        "bias full f": {"bias": _f(full)}, "bias full the same": {"bias": _same_row(full)},
        "relu": {"activation": "relu"}, "leaky": {"activation": jitgemm.leaky_relu(0.5)},
        "leakier": {"activation": jitgemm.leaky_relu(2)},
        "function": {"epilogue": lambda v, row, col: v + 2 * row - col},
        "other function": {"epilogue": lambda v, row, col: v - row},
        "c": {"c": full, "beta": 2}, "c f": {"c": _f(full), "beta": 2},
        "c never read": {"c": full, "beta": 0}, "c foreign": {"c": _foreign(full), "beta": 2},
        "c is out": {"c": "out", "beta": 2}, "c is out's memory": {"c": "view", "beta": 2},
        "c beside out": {"c": "apart", "beta": 2},
        "c over out": {"c": "turned", "beta": 2},
        "strict": {"reproducible": "strict"},
        "other type": {x: base[x].astype(np.float64) for x in "ab"},
    }  # fmt: skip


def _complex(rng: np.random.Generator, base: Options, lead: tuple[int, ...]) -> dict[str, Options]:
    found: dict[str, Options] = {
        f"conj{' a' * left}{' b' * right}": {"conj_a": left, "conj_b": right}
        for left, right in itertools.product((False, True), repeat=2)
    }
    for (side, pack), packed, asked in itertools.product(
        (("a", jitgemm.prepack_lhs), ("b", jitgemm.prepack_rhs)), (False, True), (False, True)
    ):
        one = base[side][0] if lead else base[side]
        name = f"{side} packed{' conjugated' * packed}{' and asked' * asked}"
        found[name] = {side: pack(one, conj=packed), f"conj_{side}": asked}
        twice = pack(pack(one, conj=packed), conj=True)
        found[f"{name}, twice"] = {side: twice, f"conj_{side}": asked}
    return found


def _integral(rng: np.random.Generator, base: Options, lead: tuple[int, ...]) -> dict[str, Options]:
    scale = jitgemm.Requantize
    each = np.linspace(0.001, 0.002, N)
    bias = rng.integers(-99, 99, N).astype(np.int32)
    return {
        "zero a": {"a_zero_point": 3}, "other zero a": {"a_zero_point": -4},
        "zero a each": {"a_zero_point": np.arange(M, dtype=np.int8)},
        "zero b": {"b_zero_point": 3},
        "zero b each": {"b_zero_point": np.arange(N, dtype=np.int8)},
        "both zeros": {"a_zero_point": 3, "b_zero_point": 3},
        "requantized": {"requantize": scale(0.002)},
        "requantized otherwise": {"requantize": scale(0.001)},
        "requantized each": {"requantize": scale(each)},
        "requantized each row": {"requantize": scale(np.linspace(0.001, 0.002, M)[:, None])},
        "requantized wide": {"requantize": scale(each * 4000)},
        "requantized to unsigned": {"requantize": scale(0.002, 5, np.uint8)},
        "requantized with bias": {"requantize": scale(0.002, bias=bias)},
        "bias": {"bias": bias}, "long": {"out_dtype": np.int64},
        "unsigned a": {"a": base["a"].view(np.uint8)},
        "unsigned b": {"b": base["b"].view(np.uint8)},
        "long a": {"a": base["a"].astype(np.int32)},
        "b packed": {"b": jitgemm.prepack_rhs(base["b"][0] if lead else base["b"])},
    }  # fmt: skip


SETS = {"real": _real, "complex": _complex, "integers": _integral}


def _variants(rng: np.random.Generator, kind: str, lead: tuple[int, ...]) -> dict[str, Options]:
    """Arguments of calls by name; the first is the plain one, the others differ in one thing."""
    base = _operands(rng, kind, lead)
    found: dict[str, Options] = {"plain": {}, **SETS[kind](rng, base, lead)}
    found |= {
        "one thread": {"threads": 1}, "two threads": {"threads": 2},
        "workspace": {"workspace": jitgemm.Workspace()},
    }  # fmt: skip
    if kind == "real":
        found |= _layouts(base)
        found |= {f"out {name}": {"out": layout} for name, layout in OUTS.items()}
        for side, pack in (("a", jitgemm.prepack_lhs), ("b", jitgemm.prepack_rhs)):
            found[f"{side} packed"] = {side: pack(base[side][0] if lead else base[side])}
        found["blas"] = {"backend": "blas"}
    found["out"] = {"out": np.ascontiguousarray}
    return {name: {**base, **options} for name, options in found.items()}


def _result(options: Options, lead: tuple[int, ...]) -> Array:
    """An array like the result, in which C is if the two share memory."""
    quantised = options.get("requantize")
    dtype = np.dtype(options.get("out_dtype", np.int32))
    if quantised is not None:
        dtype = np.dtype(quantised.dtype)
    elif options["b"].dtype.kind in "fc":
        dtype = np.result_type(options["a"].dtype, options["b"].dtype)
    return (np.arange(np.prod([*lead, M, N])) % 9 - 4).reshape(*lead, M, N).astype(dtype)


def _placed(options: Options, lead: tuple[int, ...]) -> Options:
    """The arguments of a call, with a result of its own and C where it is wanted."""
    given = dict(options)
    layout, c = given.pop("out", None), given.get("c")
    if isinstance(c, str):
        buffer = np.zeros((2, *lead, M, N), np.float32)
        buffer[0] = _result(options, lead)
        out = given["out"] = buffer[0]
        given["c"] = {"out": out, "view": out[...], "turned": out[..., ::-1, :]}.get(c, buffer[1])
        if c == "apart":
            given["c"][...] = out
    elif layout is not None:
        given["out"] = layout(_result(options, lead))
    return given


def _gemm(options: Options) -> list[Array]:
    given = _placed(options, ())
    return [jitgemm.gemm(given.pop("a"), given.pop("b"), **given)]


def _stack(options: Options) -> list[Array]:
    given = _placed(options, (3,))
    return [jitgemm.gemm(given.pop("a"), given.pop("b"), **given)]


def _plan(options: Options) -> list[Array]:
    given = _placed(options, ())
    p = jitgemm.plan(**given)
    return [p(given["a"], given["b"], given.get("out"))]


def _stack_plan(options: Options) -> list[Array]:
    given = _placed(options, (3,))
    p = jitgemm.plan(**given)
    return [p(given["a"], given["b"], given.get("out"))]


def _list(options: Options) -> list[Array]:
    first, second = _placed(options, ()), _placed(options, ())
    given = dict(first)
    for name in ("c", "bias", "out"):
        if first.get(name) is not None:
            given[name] = [first[name], second[name]]
    a, b = given.pop("a"), given.pop("b")
    return jitgemm.gemm_batched([a, a], [b, b], **given)


FORMS: dict[str, tuple[Callable[[Options], list[Array]], tuple[int, ...]]] = {
    "gemm": (_gemm, ()), "stack": (_stack, (3,)), "list": (_list, ()), "plan": (_plan, ()),
    "plan of a stack": (_stack_plan, (3,)),
}  # fmt: skip


def _results(call: Callable[[Options], list[Array]], options: Options) -> list[Array]:
    return [np.array(x) for x in call(options)]


def _fresh(
    call: Callable[[Options], list[Array]], variants: dict[str, Options]
) -> dict[str, list[Array]]:
    found = {}
    for name, options in variants.items():
        forget_plans()
        found[name] = _results(call, options)
    return found


def _agree(got: list[Array], want: list[Array], why: str) -> None:
    for x, y in zip(got, want, strict=True):
        same_bits(x, y, why)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SETS)
def test_c10_calls_that_differ_in_one_thing_follow_each_other(
    kind: str, form: str, rng: np.random.Generator
) -> None:
    call, lead = FORMS[form]
    variants = _variants(rng, kind, lead)
    wants, names = _fresh(call, variants), list(variants)
    for _ in range(ROUNDS):
        # What is remembered first decides: every two meet either way round in one round or another.
        forget_plans()
        done: list[str] = []
        for i in [*rng.permutation(len(names)), *rng.permutation(len(names))]:
            got = _results(call, variants[names[i]])
            _agree(got, wants[names[i]], f"{names[i]!r} after {done}")
            done.append(names[i])


@pytest.mark.parametrize("form", FORMS)
def test_c10_variants_differ(form: str, rng: np.random.Generator) -> None:
    """The test above could not fail if the results of its calls were all the same."""
    call, lead = FORMS[form]
    for kind in SETS:
        forget_plans()
        variants = _variants(rng, kind, lead)
        found = {tuple(y.tobytes() for y in _results(call, x)) for x in variants.values()}
        assert len(found) >= {"real": 20, "complex": 4, "integers": 12}[kind], kind


@pytest.mark.parametrize("name", ["a", "b", "c", "bias", "out"])
def test_c10_lists_of_other_strides_follow_each_other(name: str, rng: np.random.Generator) -> None:
    """Each operand in turn contiguous, with gaps, backwards; equal shapes and types throughout."""
    shapes = {"a": (5, 7), "b": (7, 9), "c": (5, 9), "out": (5, 9), "bias": (5, 9)}
    given = {key: integers(rng, shape, np.float32) for key, shape in shapes.items()}
    want = exact_gemm(given["a"], given["b"], beta=1, c=given["c"], bias=given["bias"])
    wide = np.zeros((20, 18, 2), np.float32)
    rows, cols = shapes[name]
    layouts = [
        np.zeros((rows, cols), np.float32),
        wide[:rows, :cols, 1],
        wide[: 2 * rows : 2, :cols, 0],
        wide[:rows, :cols, 0][::-1, ::-1],
        np.zeros((cols, rows), np.float32).T,
    ]
    for layout in layouts * 2:
        layout[...] = given[name]
        lists = {key: [x] * 6 for key, x in (given | {name: layout}).items()}
        lists["out"] = [layout.copy("K") if name == "out" else want.copy() for _ in range(6)]
        if name == "out":
            lists["out"][0] = layout
        got = jitgemm.gemm_batched(lists.pop("a"), lists.pop("b"), beta=1, **lists)
        for x in got:
            equal(x, want, layout.strides)
