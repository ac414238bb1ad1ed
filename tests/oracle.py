"""The one oracle: what a product must be, operands of every layout, and guarded memory.

Integer fills are the main tool: small integers in floating point make every product, partial sum
and epilogue exact, so a result is compared bit by bit with one computed in float64.  For random
reals there are two answers: :func:`documented`, a NumPy model of the documented order of the sum
(contract 1), again bit by bit, and :func:`error_bound`, the bound every order obeys.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitgemm.api import batched, dispatch, product, ragged
from jitgemm.isa import exact
from jitgemm.isa.types import BY_NAME
from jitgemm.planner.machine import Cache, Machine
from jitgemm.runtime import engine as engines

Array = NDArray[Any]

DTYPES = (np.float32, np.float64)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


# -- fills ----------------------------------------------------------------------------------------


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, limit: int = 4) -> Array:
    """Integers of magnitude up to ``limit``, about as many zeros as anything else."""
    return rng.integers(-limit, limit + 1, shape).astype(dtype)


def reals(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Reals of both signs over several binades, so that the order of a sum shows in its bits."""
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape)).astype(dtype)


# -- answers --------------------------------------------------------------------------------------


def exact_gemm(
    a: Array,
    b: Array,
    *,
    alpha: float = 1,
    beta: float = 0,
    c: Array | None = None,
    bias: Array | None = None,
    activation: str | None = None,
) -> Array:
    """The answer for integer-valued operands: every step is exact, in float64 and in the type."""
    result = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    result = alpha * result + 0.0
    if beta:
        assert c is not None
        result = result + beta * np.asarray(c, np.float64)
    if bias is not None:
        result = result + np.asarray(bias, np.float64)
    if activation == "relu":
        result = np.maximum(result, 0)
    narrow = result.astype(a.dtype.newbyteorder("="))
    assert np.array_equal(narrow, result), "the fill is too large for exact results"
    return narrow


def documented(
    a: Array,
    b: Array,
    *,
    fused: bool,
    alpha: float = 1,
    beta: float = 0,
    c: Array | None = None,
    bias: Array | None = None,
    activation: str | None = None,
) -> Array:
    """``gemm`` in the documented order of operations, each rounded once.

    ``k`` is cut into blocks; within a block an element is one ascending chain of multiply-adds from
    zero; block sums are added in ascending order; then alpha, ``beta * C`` (one multiply-add),
    bias, activation.
    """
    a, b = (np.asarray(x, x.dtype.newbyteorder("=")) for x in (a, b))
    dtype = a.dtype

    def madd(x: Array, y: Array, z: Array) -> Array:
        return exact.fma(x, y, z) if fused else np.add(np.multiply(x, y), z)

    m, k = a.shape
    n = b.shape[1]
    step = BY_NAME[f"f{dtype.itemsize * 8}"].depth_block
    total = np.zeros((m, n), dtype)
    with np.errstate(all="ignore"):
        for start in range(0, k, step):
            chain = np.zeros((m, n), dtype)
            for p in range(start, min(start + step, k)):
                left, right = np.broadcast_arrays(a[:, p : p + 1], b[p : p + 1, :])
                chain = madd(left, right, chain)
            total = total + chain if start else chain
        # Without alpha the sum is not formed at all (contract 2).
        total = dtype.type(alpha) * total if alpha else np.zeros((m, n), dtype)
        if beta:
            assert c is not None
            total = madd(np.full((m, n), beta, dtype), np.asarray(c, dtype), total)
        if bias is not None:
            total = total + bias
        if activation == "relu":
            total = np.where(0 > total, dtype.type(0), total)
    return np.asarray(total, dtype)


def error_bound(a: Array, b: Array) -> Array:
    """``gamma_k |A| |B|``: what rounding can cost in any order of the sum (Higham, 2002, 3.1)."""
    k, u = a.shape[-1], np.finfo(a.dtype).eps / 2
    gamma = k * u / (1 - k * u)
    return np.asarray(gamma * (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))))


# -- comparisons ----------------------------------------------------------------------------------


def bits(x: Array) -> Array:
    """The bits of an array, in this machine's byte order."""
    native = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("="))
    return native.view(f"u{native.dtype.itemsize}")


def same_bits(got: Any, want: Array, why: object = "") -> None:
    """Assert that two arrays have one shape, one type and the same bits."""
    got = np.asarray(got)
    assert got.shape == want.shape, f"{why}: shape {got.shape} instead of {want.shape}"
    assert got.dtype.newbyteorder("=") == want.dtype.newbyteorder("="), f"{why}: {got.dtype}"
    differs = bits(got) != bits(want)
    if differs.any():
        at = tuple(int(i) for i in np.argwhere(differs)[0])
        raise AssertionError(
            f"{why}: {int(differs.sum())} of {got.size} elements differ, first at {at}: "
            f"{got[at]!r} instead of {want[at]!r}"
        )


def equal(got: Any, want: Array, why: object = "") -> None:
    """Assert equality element by element, whatever the sign of zero; NaN equals NaN."""
    got = np.asarray(got)
    assert got.dtype.newbyteorder("=") == want.dtype.newbyteorder("="), f"{why}: {got.dtype}"
    np.testing.assert_array_equal(got, want, str(why))


# -- layouts --------------------------------------------------------------------------------------


def unaligned(x: Array, shift: int = 1) -> Array:
    """``x`` at an address that is not a multiple of its item size."""
    raw = np.zeros(x.nbytes + shift, np.uint8)
    y = np.ndarray(x.shape, x.dtype, buffer=raw, offset=shift)
    y[...] = x
    return y


def strided(x: Array, gap: int) -> Array:
    """``x`` with ``gap`` bytes after every element, a multiple of the item size or not."""
    step = x.itemsize + gap
    raw = np.full(max(1, x.size * step), 0xA5, np.uint8)
    strides = tuple(int(np.prod(x.shape[i + 1 :])) * step for i in range(x.ndim))
    y = np.ndarray(x.shape, x.dtype, buffer=raw, strides=strides)
    y[...] = x
    return y


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
    "within a wider matrix": lambda x: np.pad(x, ((1, 2), (3, 5)), constant_values=np.nan)[
        1:-2, 3:-5
    ],
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


def forget_plans() -> None:
    """Plan everything anew from here on."""
    engines.knob.cache_clear()
    dispatch.entries.clear()
    product._cache.clear()
    batched._cache.clear()
    ragged._ready.clear()


# -- processes ------------------------------------------------------------------------------------


def run_python(
    code: str, *args: str, timeout: float = 120, **variables: str | None
) -> subprocess.CompletedProcess[str]:
    """Run a snippet in a fresh interpreter with extra environment variables (``None``: unset).

    Raises:
        AssertionError: it failed; with its output.
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
    if done.returncode:
        raise AssertionError(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done
