"""The one oracle: what a product must be, operands of every layout, and guarded memory.

Integer fills are the main tool: small integers in floating point make every product, partial sum
and epilogue exact, so a result is compared bit by bit with one computed in float64.  For random
reals there are two answers: :func:`documented`, a NumPy model of the documented order of the sum
(contract 1), again bit by bit, and :func:`error_bound`, the bound every order obeys.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from jitgemm.api import stubs
from jitgemm.api.activations import resolve_activation
from jitgemm.api.reference import reference
from jitgemm.api.tracing import trace
from jitgemm.isa.types import BY_NAME
from jitgemm.kernels import registry
from jitgemm.kernels.spec import Tile
from jitgemm.planner.machine import Cache, Machine
from jitgemm.runtime import engine as engines
from jitgemm.runtime import executables
from order import ascending, chain_sums, combined, lane_sums, multiply_add

Array = NDArray[Any]

NESTED = "JITGEMM_TEST_NESTED"
"""Set in sessions that test one of this machine's other instruction sets, or an emulated machine:
how many cases of each test they run.  The session on the best set runs all of them, and
``JITGEMM_ISA`` runs all of them on any.
"""
MACHINE = "QEMU_CPU"
"""Set in sessions on an emulated machine: which one."""


def examples(usual: int) -> int:
    """Hypothesis' examples of a property in this session; ``usual`` on the best set."""
    if MACHINE in os.environ:
        return usual // 25
    return usual // 3 if NESTED in os.environ else usual


KINDS = (np.float32, np.float64, np.complex64, np.complex128)
BF16 = np.dtype(ml_dtypes.bfloat16)
HALVES = (np.dtype(np.float16), BF16)
INTEGERS = tuple(np.dtype(x) for x in ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"))
REALS = (*INTEGERS, *HALVES, np.dtype(np.float32), np.dtype(np.float64))
"""Every type of a real number; any two of them may be multiplied."""
KERNELS = [(x, y) for i, x in enumerate(REALS) for j, y in enumerate(REALS)
           if i == j or (2 * i + j) % 3 == 0]  # fmt: skip
"""Pairs whose values are compared.  Each pair is a kernel of its own, so every third is enough:
each type is on each side of each arithmetic.
"""
NARROW = (np.dtype(np.int8), np.dtype(np.uint8))
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


# -- fills ----------------------------------------------------------------------------------------


def _both_parts(part: Callable[[], Array], dtype: Any) -> Array:
    """Reals, or complex numbers with two of them."""
    x = np.asarray(part())
    if not is_complex(dtype):
        return x.astype(dtype)
    return np.asarray(x + 1j * part()).astype(dtype)


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, limit: int = 4) -> Array:
    """Integers of magnitude up to ``limit``, about as many zeros as anything else."""
    return _both_parts(lambda: rng.integers(-limit, limit + 1, shape).astype(np.float64), dtype)


def anything(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Integers over the whole range of an integer type; small ones of any other."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind not in "iu":
        return integers(rng, shape, dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def reals(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Numbers of both signs over several binades, so that the order of a sum shows in its bits."""
    return _both_parts(
        lambda: rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape), dtype
    )


# -- designs --------------------------------------------------------------------------------------


def pairwise(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Few combinations in which every two values of two axes meet, instead of all there are.

    For properties that could fail through one choice, or through two together.  The same axes give
    the same list: each row begins with a pair that is still missing, and takes of every other axis
    what meets most of the others.
    """
    values = [list(axis) for axis in axes]
    spans = list(itertools.combinations(range(len(values)), 2))
    missing = {
        (i, x, j, y): None
        for i, j in spans
        for x in range(len(values[i]))
        for y in range(len(values[j]))
    }

    def gain(row: dict[int, int], axis: int, value: int) -> int:
        sides = (((i, x), (axis, value)) for i, x in row.items())
        return sum((*min(s), *max(s)) in missing for s in sides)

    used = [[0] * len(v) for v in values]
    rows = []
    while missing:
        i, x, j, y = next(iter(missing))
        row = {i: x, j: y}
        for axis in range(len(values)):
            if axis not in row:
                # Of equals the one that is met least so far.
                row[axis] = max(
                    range(len(values[axis])), key=lambda v: (gain(row, axis, v), -used[axis][v])
                )
        for i, j in spans:
            missing.pop((i, row[i], j, row[j]), None)
        for axis, value in row.items():
            used[axis][value] += 1
        rows.append(tuple(values[axis][row[axis]] for axis in range(len(values))))
    return rows


# -- answers --------------------------------------------------------------------------------------


def native(x: Any) -> Array:
    """An array in this machine's byte order."""
    x = np.asarray(x)
    return np.asarray(x, x.dtype.newbyteorder("="))


def mapped(v: Array, activation: object = None, epilogue: Any = None) -> Array:
    """What an activation and then a traced function make of a finished matrix.

    Basic operations are exact to the bit, functions are rounded from double precision.
    """
    program, constants = resolve_activation(activation)
    row, col = (x.astype(v.dtype) for x in np.ogrid[: v.shape[0], : v.shape[1]])
    if program is not None:
        v = reference(program, constants, v, row, col)
    if epilogue is not None:
        v = reference(*trace(epilogue), v, row, col)
    return v


def product_type(a: np.dtype, b: np.dtype) -> np.dtype:
    """The type of ``gemm``'s result: 32 bits for numbers of 8, else what NumPy says of the two.

    NumPy says nothing of bfloat16, which is like float16 but for longer integers and floats.
    """
    if a.kind in "iub" and b.kind in "iub" and a.itemsize == b.itemsize == 1:
        return np.dtype(np.int32)
    if BF16 not in (a, b):
        return np.result_type(a, b)
    other = b if a == BF16 else a
    short = other.kind in "iub" and other.itemsize == 1
    return BF16 if short or other == BF16 else np.result_type(other, np.float32)


def sum_type(result: np.dtype) -> np.dtype:
    """The type that sums are formed in: at least 32 bits."""
    if result.kind in "iub":
        return np.dtype(np.int64 if result.itemsize == 8 else np.int32)
    return result if result.itemsize > 2 else np.dtype(np.float32)


def _exact_integers(
    a: Array,
    b: Array,
    dtype: np.dtype,
    *,
    alpha: int = 1,
    beta: int = 0,
    c: Array | None = None,
    bias: Array | None = None,
    a_zero_point: Any = None,
    b_zero_point: Any = None,
    requantize: Any = None,
    activation: Any = None,
) -> Array:
    """Modulo ``2**64``, and so modulo every shorter length; requantised from the last 32 bits.

    An activation is one of sums as long as that, in Python's integers.
    """

    def wide(x: Any) -> Array:
        return np.asarray(x).astype(np.uint64)

    left, right = wide(a), wide(b)
    if a_zero_point is not None:
        points = wide(a_zero_point)
        left = left - (points.reshape(-1, 1) if points.size > 1 else points)
    if b_zero_point is not None:
        right = right - wide(b_zero_point)
    total = wide(alpha % 2**64) * np.matmul(left, right)
    if beta:
        assert c is not None
        total = total + wide(beta % 2**64) * wide(c)
    if requantize is not None and requantize.bias is not None:
        bias = requantize.bias
    if bias is not None:
        total = total + wide(bias)
    sums = total.astype(sum_type(dtype) if requantize is None else np.int32)
    if activation is not None:
        low, high = (0, math.inf) if activation == "relu" else activation.values
        exact_sums = [max(low, min(high, x)) for x in sums.ravel().tolist()]
        sums = np.array(exact_sums, sums.dtype).reshape(sums.shape)
    if requantize is None:
        return sums.astype(dtype)
    scaled = sums.astype(np.float64) * np.asarray(requantize.scale)
    info = np.iinfo(dtype)
    return np.clip(np.rint(scaled) + requantize.zero_point, info.min, info.max).astype(dtype)


def exact_gemm(
    a: Array,
    b: Array,
    *,
    alpha: complex = 1,
    beta: complex = 0,
    c: Array | None = None,
    bias: Array | None = None,
    activation: object = None,
    epilogue: Any = None,
    conj_a: bool = False,
    conj_b: bool = False,
    out_dtype: Any = None,
    **integral: Any,
) -> Array:
    """The answer for integer-valued operands: every step is exact, in double and in the type.

    Integers may have any size, and zero points and a requantisation (``integral``).
    """
    a, b = native(a), native(b)
    dtype = np.dtype(out_dtype) if out_dtype is not None else product_type(a.dtype, b.dtype)
    if dtype.kind in "iub":
        assert epilogue is None
        if integral.get("requantize") is not None:
            dtype = integral["requantize"].type
        options = {"alpha": alpha, "beta": beta, "c": c, "bias": bias, "activation": activation}
        return _exact_integers(a, b, dtype, **options, **integral)
    assert not integral
    wide = np.complex128 if is_complex(dtype) else np.float64
    left, right = (
        (x.conj() if conj else x)
        for x, conj in ((np.asarray(a, wide), conj_a), (np.asarray(b, wide), conj_b))
    )
    result = alpha * (left @ right) + 0.0
    if beta:
        assert c is not None
        result = result + beta * np.asarray(c, wide)
    if bias is not None:
        result = result + np.asarray(bias, wide)
    narrow = result.astype(sum_type(dtype))
    assert np.array_equal(narrow, result), "the fill is too large for exact results"
    # 16-bit results are rounded here, once.
    return mapped(narrow, activation, epilogue).astype(dtype)


def documented(
    a: Array,
    b: Array,
    *,
    fused: bool,
    reproducible: str = "default",
    alpha: complex = 1,
    beta: complex = 0,
    c: Array | None = None,
    bias: Array | None = None,
    activation: object = None,
    epilogue: Any = None,
    conj_a: bool = False,
    conj_b: bool = False,
) -> Array:
    """``gemm`` in the documented order of operations (:mod:`order`), each rounded once.

    ``k`` is cut into blocks; within a block an element is one ascending chain of multiply-adds from
    zero, or four of them if it is complex, of which its parts are a difference and a sum; block
    sums are added in ascending order; then alpha, ``beta * C`` (one multiply-add per part of beta),
    bias, activation and function.  One row times one column is summed in lanes (``kernels.dot``).
    """
    a, b = native(a), native(b)
    dtype, madd = a.dtype, multiply_add(fused)
    m, k = a.shape
    n = b.shape[1]
    components, unit = (2 if dtype.kind == "c" else 1), a.real.dtype.itemsize
    step = BY_NAME[f"f{unit * 8}"].depth_block
    if not alpha:
        # Without alpha the sum is not formed at all (contract 2).
        a, b, k = a[:, :0], b[:0], 0
    with np.errstate(all="ignore"):
        pairs = [(a, b)]
        if components == 2:
            pairs = [(a.real, b.real), (a.imag, b.imag), (a.real, b.imag), (a.imag, b.real)]
        signs = -1 if conj_a else 1, -1 if conj_b else 1
        if (m, n) == (1, 1) and k > 1 and reproducible == "default":
            blocks = lane_sums(pairs, 256 // unit // components**2, step, madd)
            total = combined(ascending(blocks), signs)
        else:
            total = ascending(combined(chain_sums(pairs, step, madd), signs))
        total = _scaled(None, alpha, total, madd)
        if beta:
            assert c is not None
            total = _scaled(total, beta, _planes(native(c)), madd)
        if bias is not None:
            total = total + _planes(np.broadcast_to(native(bias), (m, n)))
    if components == 1:
        return mapped(np.asarray(total[0], dtype), activation, epilogue)
    result = np.empty((m, n), dtype)
    result.real, result.imag = total
    return result


def _planes(x: Array) -> Array:
    return np.stack([x.real, x.imag]) if x.dtype.kind == "c" else x[None]


def _scaled(total: Array | None, factor: complex, x: Array, madd: Any) -> Array:
    """``factor * x``, plus ``total``: the real part of the factor first, the imaginary if any."""
    kind = x.dtype.type
    real, imag = kind(factor.real), kind(complex(factor).imag)
    result = real * x if total is None else madd(np.full_like(x, real), x, total)
    if imag:
        turn = np.stack([np.full_like(x[0], -imag), np.full_like(x[0], imag)])
        result = madd(turn, x[::-1], result)
    return np.asarray(result)


def error_bound(a: Array, b: Array) -> Array:
    """``gamma_k |A| |B|``: what rounding can cost in any order of the sum (Higham, 2002, 3.1)."""
    k, u = a.shape[-1], np.finfo(a.dtype).eps / 2
    if a.dtype.kind == "c":
        # A part is a real sum twice as long, of parts that are no greater than the numbers.
        k = 2 * k
    gamma = k * u / (1 - k * u)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    return np.asarray(
        gamma
        * (np.abs(a.astype(wide)) @ np.abs(b.astype(wide)))
        * (np.sqrt(2) if a.dtype.kind == "c" else 1)
    )


# -- comparisons ----------------------------------------------------------------------------------


def bits(x: Array) -> Array:
    """The bits of an array, in this machine's byte order."""
    x = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("="))
    if x.dtype.kind == "c":
        x = x.view(x.real.dtype).reshape(*x.shape, 2)
    return x.view(f"u{x.dtype.itemsize}")


def same_bits(got: Any, want: Array, why: object = "") -> None:
    """Assert that two arrays have one shape, one type and the same bits."""
    got = np.asarray(got)
    assert got.shape == want.shape, f"{why}: shape {got.shape} instead of {want.shape}"
    assert got.dtype.newbyteorder("=") == want.dtype.newbyteorder("="), f"{why}: {got.dtype}"
    differs = bits(got) != bits(want)
    if differs.any():
        at = tuple(int(i) for i in np.argwhere(differs)[0])[: got.ndim]
        raise AssertionError(
            f"{why}: {int(differs.sum())} of {got.size} elements differ, first at {at}: "
            f"{got[at]!r} instead of {want[at]!r}"
        )


def equal(got: Any, want: Array, why: object = "") -> None:
    """Assert equality element by element, whatever the sign of zero; NaN equals NaN."""
    got = np.asarray(got)
    assert got.dtype.newbyteorder("=") == want.dtype.newbyteorder("="), f"{why}: {got.dtype}"
    # NumPy's own assertion words the failure, but takes ten times as long to find none.
    if got.shape != want.shape or not (got == want).all():
        np.testing.assert_array_equal(got, want, str(why), strict=got.dtype.isnative)


# -- layouts --------------------------------------------------------------------------------------


def strided(x: Array, gap: int, shift: int = 0) -> Array:
    """``x`` with ``gap`` bytes after every element, a multiple of the item size or not."""
    step = x.itemsize + gap
    raw = np.full(x.size * step + shift + 1, 0xA5, np.uint8)
    strides = tuple(int(np.prod(x.shape[i + 1 :])) * step for i in range(x.ndim))
    y = np.ndarray(x.shape, x.dtype, buffer=raw, offset=shift, strides=strides)
    y[...] = x
    return y


def unaligned(x: Array, shift: int = 1) -> Array:
    """``x`` at an address that is not a multiple of its item size."""
    return strided(x, 0, shift)


def _odd_ones(x: Array) -> Array:
    # Strides of axes of length 1 (and of empty arrays) mean nothing and may be anything.
    strides = [s if n > 1 else 12_345_677 for n, s in zip(x.shape, x.strides, strict=True)]
    return np.lib.stride_tricks.as_strided(x.copy(), x.shape, strides)


LAYOUTS = {
    "c": np.ascontiguousarray,
    "f": np.asfortranarray,
    "rows backwards": lambda x: x[::-1].copy()[::-1],
    "all backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "every second row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "every third column": lambda x: np.repeat(x, 3, axis=1)[:, ::3],
    "within a wider matrix": lambda x: np.pad(
        x, ((1, 2), (3, 5)), constant_values=1 if x.dtype.kind in "iub" else np.nan
    )[1:-2, 3:-5],
    "within a taller f matrix": lambda x: np.asfortranarray(np.pad(x, 1))[1:-1, 1:-1],
    "transposed step": lambda x: np.repeat(x.T.copy(), 2, axis=1)[:, ::2].T,
    "gap of 3 bytes": lambda x: strided(x, 3),
    "unaligned": unaligned,
    "foreign byte order": lambda x: x.astype(x.dtype.newbyteorder("S")),
    "foreign and backwards": lambda x: x[:, ::-1].astype(x.dtype.newbyteorder("S"))[:, ::-1],
    "odd strides of single axes": _odd_ones,
}
"""Ways to store a matrix; each takes a C-contiguous one and returns an equal one."""


# -- guarded memory (POSIX) -----------------------------------------------------------------------

_NONE, _READ, _READ_WRITE = 0, 1, 3
_CANARY = 0xA5


class Guarded:
    """Memory between two pages that must not be touched: an access to them ends the process."""

    def __init__(self, nbytes: int) -> None:
        page = mmap.PAGESIZE
        self.size = -(-nbytes // page) * page
        self._map = mmap.mmap(-1, self.size + 2 * page, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._raw = np.frombuffer(self._map, np.uint8)
        self.start = self._raw.__array_interface__["data"][0] + page
        self._page = page
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.bytes = self._raw[page : page + self.size]
        self._protect(self.start - page, page, _NONE)
        self._protect(self.start + self.size, page, _NONE)

    def _protect(self, address: int, size: int, how: int) -> None:
        if self._libc.mprotect(address, size, how):
            raise OSError(ctypes.get_errno(), "mprotect")

    def place(self, x: Array, where: str) -> Array:
        """A copy of ``x`` (its strides' order kept) at the very ``start`` or ``end``."""
        if not x.size:
            return x
        span = sum((n - 1) * abs(s) for n, s in zip(x.shape, x.strides, strict=True)) + x.itemsize
        self.bytes[:] = _CANARY
        offset = 0 if where == "start" else self.size - span
        first = offset - sum(min(0, (n - 1) * s) for n, s in zip(x.shape, x.strides, strict=True))
        y = np.ndarray(x.shape, x.dtype, buffer=self.bytes, offset=first, strides=x.strides)
        y[...] = x
        return y

    def intact(self, x: Array) -> bool:
        """Whether all bytes besides the elements of ``x`` hold what :meth:`place` put there."""
        if not x.size:
            return True
        mine = np.zeros(self.size, bool)
        first = x.__array_interface__["data"][0] - self.start
        view = np.lib.stride_tricks.as_strided(
            mine[first:], (*x.shape, x.itemsize), (*x.strides, 1)
        )
        view[...] = True
        return bool((self.bytes[~mine] == _CANARY).all())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nothing may even be read."""
        self._protect(self.start, self.size, _NONE)
        try:
            yield
        finally:
            self._protect(self.start, self.size, _READ_WRITE)


# -- other machines -------------------------------------------------------------------------------

TINY = Machine(Cache(512, 64, 2), Cache(1 << 10, 64, 4), Cache(16 << 10, 64, 8), "test")
"""Caches so small that tiny products take the routes of large ones, in many pieces."""

MANY_PIECES = {
    "parallel_flops": 1, "streaming_row_bytes": 1, "rhs_pack_rows": 1, "rhs_transpose_rows": 9,
    "stagger_column_bytes": 1,
}  # fmt: skip
"""Thresholds so low as well."""


def is_complex(kind: Any) -> bool:
    """Whether a type is one of complex numbers."""
    return np.dtype(kind).kind == "c"


@contextmanager
def another_machine(machine: Machine | None = None, **knobs: int) -> Iterator[None]:
    """Plan for other caches (``None``: this machine's) and other knobs."""
    real = engines.Engine.context

    def context(self: engines.Engine, threads: int) -> Any:
        found = real(self, threads)
        return replace(
            found,
            machine=machine or found.machine,
            knob=lambda name: knobs[name] if name in knobs else found.knob(name),
        )

    forget_plans()
    engines.Engine.context = context  # type: ignore[method-assign]
    try:
        yield
    finally:
        engines.Engine.context = real  # type: ignore[method-assign]
        forget_plans()


@contextmanager
def low_tiles() -> Iterator[None]:
    """Tiles of few rows on the set in use: kernels compile in a third of the time.

    For tests of what does not depend on the tile, such as conversions of numbers and epilogues.
    """
    isa = engines.engine().isa
    mine = [row for row in registry.rows() if row[1] == isa]
    forget_plans()
    try:
        for element, _, components, tile in mine:
            rows = min(3, tile.mr)
            low = Tile(rows, tile.nr_regs, ((1, rows), (2, 1)))
            registry.register(element, isa, low, components)
        yield
    finally:
        for element, _, components, tile in mine:
            registry.register(element, isa, tile, components)
        forget_plans()


def forget_plans() -> None:
    """Plan everything anew from here on."""
    engines.knob.cache_clear()
    stubs.forget()
    executables.forget()


# -- processes ------------------------------------------------------------------------------------


def run_python(
    code: str, *args: str, timeout: float = 120, status: int = 0, **variables: str | None
) -> subprocess.CompletedProcess[str]:
    """Run a snippet in a fresh interpreter with extra environment variables (``None``: unset).

    Raises:
        AssertionError: its exit status is another than ``status``; with its output.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH")))),
        # NumPy's own threads hang in a child forked while they work.
        "OPENBLAS_NUM_THREADS": "1",
    }
    for name, value in variables.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        capture_output=True, text=True, env=environment, timeout=timeout, cwd=ROOT,
    )  # fmt: skip
    if done.returncode != status:
        raise AssertionError(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done
