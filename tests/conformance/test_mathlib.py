"""Functions of the kernel language: the same bits everywhere, and how near they are to the truth.

Errors are in units in the last place of the true value, of subnormal numbers in the smallest one.
The bounds are those listed in `jitgemm.math`.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from language import assert_same, execute

from jitgemm import math as listed
from jitgemm.isa import tables
from jitgemm.isa.tables import INTERPRETER, PORTABLE, Isa
from jitgemm.isa.types import F32, F64, ElementType
from jitgemm.jit import compiler
from jitgemm.jit.target import available
from jitgemm.kernels import mathlib
from jitgemm.kernels.expression import ACTIVATIONS, Program, emit
from jitgemm.kernels.operations import OPERATIONS
from jitgemm.lang.core import Function, Kernel, Ptr, Vec, parameters
from jitgemm.lang.interp import Memory, dtype_of, run
from rows import distinct_sets

Array = np.ndarray[Any, np.dtype[Any]]

mp.mp.prec = 160  # the tail of gelu in f64 squares numbers near 40


@pytest.fixture(autouse=True, scope="module")
def _no_disk_cache() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JITGEMM_CACHE", "0")
        yield


ISAS = [
    pytest.param(
        isa,
        id=isa.name,
        marks=pytest.mark.skipif(not available(isa), reason=f"machine without {isa.name}"),
    )
    for isa in distinct_sets()
    if not isa.interpreted
]
every_isa = pytest.mark.parametrize("isa", ISAS)
every_element = pytest.mark.parametrize("element", [F32, F64], ids=str)

# Parameters of activations that have some, applied after the element.
CONSTANTS = {"leaky_relu": (0.1,), "clip": (-0.75, 2.5)}
UNARY = [n for n, o in OPERATIONS.items() if n in ACTIVATIONS or not o.cheap]
BOUNDS = {
    line[0]: [float(x.strip("()")) for x in line[1:]]
    for line in map(str.split, (listed.__doc__ or "").splitlines())
    if line and line[0] in OPERATIONS
}
"""For each function: f32, f32 on the portable set, f64, f64 portable."""


# -- running ---------------------------------------------------------------------------------------


def program_of(name: str) -> tuple[Program, tuple[float, ...]]:
    constants = CONSTANTS.get(name, ())
    inputs = [("v", ()), *(("const", (i,)) for i in range(len(constants)))]
    return Program((*inputs, (name, tuple(range(len(inputs)))))), constants


def kernel(name: str, element: ElementType, lanes: int) -> Function:
    """``out[i] = name(x[i])`` for whole vectors."""
    program, constants = program_of(name)

    def body(k: Kernel, out: Ptr, x: Ptr, count: Any) -> None:
        for i in k.range(0, count, lanes):
            v = k.load(x + i * element.bytes, element, lanes)

            def given(what: str, index: int, v: Vec = v) -> Vec:
                return v if what == "v" else k.literal(constants[index], element, lanes)

            k.store(out + i * element.bytes, emit(program, k, given))

    return Function(f"math_{name}_{element}x{lanes}", parameters("out* x* count"), body)


def machine(name: str, isa: Isa, x: Array, lanes: int = 0) -> Array:
    """Machine code of one instruction set, on whole registers or on ``lanes`` elements."""
    element = F32 if x.dtype == np.float32 else F64
    lanes = lanes or isa.lanes(element)
    f = kernel(name, element, lanes)
    code = compiler.get(compiler.Unit(f"{f.name}__{isa.name}", isa, lambda: [f]))
    padded = np.resize(x, -(-x.size // lanes) * lanes)
    out = np.zeros_like(padded)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    call(code.addresses[f.name])(out.ctypes.data, padded.ctypes.data, padded.size)
    return out[: x.size]


def interpreted(name: str, isa: Isa, x: Array) -> Array:
    """The definition: one vector of as many lanes as there are numbers."""
    element = F32 if x.dtype == np.float32 else F64
    memory, out = Memory(), np.zeros_like(x)
    addresses = [
        memory.add("out", out, writable=True, initialised=False),
        memory.add("x", x, writable=False),
    ]
    run(kernel(name, element, x.size), memory, isa, *addresses, x.size)
    return out


# -- values ----------------------------------------------------------------------------------------


def values(element: ElementType) -> Array:
    """Every magnitude of both signs, the neighbourhood of joins and ends, special values."""
    dtype = dtype_of(element)
    bits, kind = element.bits, f"u{element.bytes}"
    rng = np.random.default_rng(element.bits)
    anything = rng.integers(0, 1 << bits, 1500, dtype=kind).view(dtype)
    ends = np.array([0.5, 1, 3, 4, 6, 9, 10, 11, 14.75, 20, 38.9, 88.8, 104, 110, 709.8, 746, 754])
    near = np.concatenate([ends * (1 + s * 2.0**-e) for s in (-1, 0, 1) for e in (5, 20, 23, 45)])
    special = np.array(
        [0, 1e-45, 5e-324, np.finfo(dtype).tiny, np.finfo(dtype).max, np.inf, np.nan]
    )
    with np.errstate(all="ignore"):
        rest = np.concatenate([near, special, rng.uniform(0, 16, 700)]).astype(dtype)
    return np.concatenate([anything, rest, -rest])


def dense(name: str) -> Array:
    """For f32: a sample of all bit patterns, and a finer one of the interesting range."""
    every = np.arange(0, 1 << 32, 4099, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ranges = [np.linspace(-w, w, 100_001, dtype=np.float32) for w in (16, 112)]
    x = np.concatenate([every, *ranges])
    return x[np.isfinite(x) & ((x > 0) | (name != "log"))]


def sparse(name: str) -> Array:
    """For f64."""
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(-w, w, 400) for w in (2, 8, 40, 760)])
    tiny = rng.standard_normal(100) * 2.0 ** rng.integers(-1070, 0, 100)
    x = np.concatenate([x, tiny])
    if name == "log":
        wide = 2 ** rng.uniform(-1074, 1023, 400)
        x = np.concatenate([np.abs(x), rng.uniform(0.5, 2, 400), wide])
        x = x[x > 0]
    return x


# -- truth -----------------------------------------------------------------------------------------


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def _each(f: Callable[[float], float]) -> Callable[[Array], Array]:
    return lambda x: np.fromiter(map(f, x.tolist()), np.float64, x.size)


# In double precision, good to 2**-40 relative even in the tails.
TRUE_32: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": _each(math.erf),
    "sigmoid": _sigmoid,
    "gelu": lambda v: v * _each(math.erfc)(-v / math.sqrt(2)) / 2,
    "gelu_tanh": lambda v: v * _sigmoid(math.sqrt(8 / math.pi) * (v + 0.044715 * v**3)),
    "silu": lambda v: v * _sigmoid(v),
    "hardswish": lambda v: v * (np.clip(v + 3, 0, 6) / 6),
}


def _mp_sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


TRUE_64: dict[str, Callable[[Any], Any]] = {
    "exp": mp.exp,
    "log": mp.log,
    "tanh": mp.tanh,
    "erf": mp.erf,
    "sigmoid": _mp_sigmoid,
    "gelu": lambda v: v * mp.erfc(-v / mp.sqrt(2)) / 2,
    "gelu_tanh": lambda v: v * _mp_sigmoid(mp.sqrt(8 / mp.pi) * (v + mp.mpf("0.044715") * v**3)),
    "silu": lambda v: v * _mp_sigmoid(v),
    "hardswish": lambda v: v * min(max(v + 3, 0), 6) / 6,
}


def errors_32(got: Array, want: Array) -> Array:
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.floor(np.log2(np.abs(want))), -126)
        error = np.abs(got - want) / 2 ** (exponent - 23)
        # From half a unit beyond the greatest number on, infinity is right and nothing else.
        beyond = np.abs(want) >= 2.0**128 - 2.0**103
        return np.where(beyond, np.where(got == np.copysign(np.inf, want), 0, np.inf), error)


def error_64(got: float, want: Any) -> float:
    if abs(want) >= mp.mpf(2) ** 1024 - mp.mpf(2) ** 970:
        return 0.0 if got == math.copysign(math.inf, want) else math.inf
    exponent = max(int(mp.floor(mp.log(abs(want), 2))), -1022) if want else -1022
    return float(abs(mp.mpf(got) - want) / mp.mpf(2) ** (exponent - 52))


# -- tests -----------------------------------------------------------------------------------------


@every_element
@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "portable"])
def test_machine_code_computes_the_definition(
    name: str,
    fused: bool,  # noqa: FBT001
    element: ElementType,
) -> None:
    """Bit for bit on every set, and so the same bits on all sets that round alike."""
    x = values(element)
    want = interpreted(name, INTERPRETER if fused else PORTABLE, x)
    kind, number = f"u{element.bytes}", ~np.isnan(want)
    for isa in tables.BY_NAME.values():
        if not isa.interpreted and isa.fused == fused and available(isa):
            got = machine(name, isa, x)
            np.testing.assert_array_equal(np.isnan(got), ~number, err_msg=isa.name)
            np.testing.assert_array_equal(got[number].view(kind), want[number].view(kind), isa.name)


@every_element
@every_isa
def test_vectors_of_any_length(isa: Isa, element: ElementType) -> None:
    """A scalar and several registers give the bits that one register does."""
    x = np.nan_to_num(values(element)[:512], nan=1.0)
    want = machine("gelu", isa, x)
    for lanes in (1, 3 * isa.lanes(element)):
        np.testing.assert_array_equal(machine("gelu", isa, x, lanes), want)


@pytest.mark.parametrize("name", TRUE_32)
@every_isa
def test_accuracy_f32(isa: Isa, name: str) -> None:
    x = dense(name)
    with np.errstate(all="ignore"):
        want = TRUE_32[name](x.astype(np.float64))
    error = errors_32(machine(name, isa, x).astype(np.float64), want)
    worst = int(np.argmax(error))
    bound = BOUNDS[name][0 if isa.fused else 1]
    assert bound <= 2
    assert error[worst] <= bound, f"{name}({x[worst]!r}): {error[worst]:.3f} ulp"


@pytest.mark.parametrize("name", TRUE_64)
def test_accuracy_f64(name: str) -> None:
    x = sparse(name)
    want = [TRUE_64[name](mp.mpf(float(v))) for v in x]
    done = set()
    for isa in tables.BY_NAME.values():
        # Sets that round alike give the same bits: one of them is enough.
        if isa.interpreted or isa.fused in done or not available(isa):
            continue
        done.add(isa.fused)
        error = [error_64(float(g), w) for g, w in zip(machine(name, isa, x), want, strict=True)]
        worst = int(np.argmax(error))
        assert error[worst] <= BOUNDS[name][2 if isa.fused else 3], f"{isa.name} {x[worst]!r}"


INF, NAN, BIG, TINY = math.inf, math.nan, 3e38, 1e-45
# Arguments and results; both zeros are among the arguments.
_ODD = [(0.0, 0.0), (-0.0, -0.0), (TINY, TINY), (-TINY, -TINY)]
_TO_ONE = [*_ODD, (INF, 1), (-INF, -1), (BIG, 1), (-BIG, -1)]
_GATED = [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -0.0), (BIG, BIG), (-BIG, -0.0)]
EDGES: dict[str, list[tuple[float, float]]] = {
    "exp": [(0.0, 1), (-0.0, 1), (TINY, 1), (INF, INF), (-INF, 0.0), (-BIG, 0.0), (710, INF)],
    "log": [(0.0, -INF), (-0.0, -INF), (1, 0.0), (INF, INF), (-INF, NAN), (-1, NAN), (-TINY, NAN)],
    "tanh": _TO_ONE,
    "erf": _TO_ONE,
    "sigmoid": [(0.0, 0.5), (-0.0, 0.5), (INF, 1), (-INF, 0.0), (BIG, 1), (-BIG, 0.0)],
    "gelu": _GATED,
    "gelu_tanh": _GATED,
    "silu": _GATED,
    "hardswish": [*_GATED, (3, 3), (-3, -0.0)],
    "relu": [(0.0, 0.0), (-0.0, -0.0), (TINY, TINY), (-TINY, 0.0), (INF, INF), (-INF, 0.0)],
    "leaky_relu": [(0.0, 0.0), (-0.0, -0.0), (TINY, TINY), (INF, INF), (-INF, -INF)],
    "clip": [*_ODD, (INF, 2.5), (-INF, -0.75), (BIG, 2.5), (-BIG, -0.75)],
}


@pytest.mark.parametrize("name", EDGES)
@every_element
@every_isa
def test_edges(isa: Isa, element: ElementType, name: str) -> None:
    """Limits, signs of zero, NaN."""
    with np.errstate(all="ignore"):
        x, want = np.array([*EDGES[name], (NAN, NAN)], dtype_of(element)).T.copy()
    if element is F64:
        # Here too the least number: erf(x) = 1.128 x is x.
        least = np.finfo(np.float64).smallest_subnormal
        x, want = (np.where(np.abs(a) == TINY, np.copysign(least, a), a) for a in (x, want))
    got = machine(name, isa, x)
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


def test_every_function_is_tested_and_listed() -> None:
    functions = {n for n, o in OPERATIONS.items() if not o.cheap}
    assert set(UNARY) == functions | set(ACTIVATIONS)
    assert set(TRUE_32) == set(TRUE_64) == set(BOUNDS) == functions | {"hardswish"}
    assert set(EDGES) == set(UNARY)
    assert all(re.fullmatch(r"\w+", n) and len(b) == 4 for n, b in BOUNDS.items())


@every_element
@every_isa
def test_exp_of_what_is_not_positive(isa: Isa, element: ElementType) -> None:
    """The bits of ``exp``; only a subnormal result may be zero."""
    lanes, dtype = isa.lanes(element), dtype_of(element)

    def body(k: Kernel, out: Ptr, x: Ptr, count: Any) -> None:
        for i in k.range(0, count, lanes):
            v = k.load(x + i * element.bytes, element, lanes)
            k.store(out + i * element.bytes, mathlib.exp_nonpositive(k, v))

    f = Function(f"exp_nonpositive_{element}", parameters("out* x* count"), body)
    x = values(element)
    edges = -np.linspace(0, 120 if element is F32 else 760, 20_000).astype(dtype)
    x = np.concatenate([x[~(x > 0)], edges])
    x = np.resize(x, x.size // lanes * lanes)
    got = execute(f, isa, {"out": np.zeros_like(x), "x": x}, x.size)["out"]
    want = machine("exp", isa, x)
    gone = (got == 0) & (want < np.finfo(dtype).tiny)
    assert_same(got[~gone], want[~gone], "exp")
    assert 0 < gone.sum() < x.size
    assert np.isnan(got).any()
