"""NumPy's products: ``matmul``, ``matvec``, ``vecmat`` and ``vecdot``, with NumPy's rules.

A call is a builtin's (:mod:`jitgemm.api.stubs`), which stays in generated code for what it knows.
What it has not seen before, and every call with NumPy's keywords, is settled here in full: what
NumPy's rules say of types it is asked on stand-ins of one element, so that its errors are its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import DTypeLike

from jitgemm.api.call import Call
from jitgemm.api.config import resolve_threads
from jitgemm.api.entries import remember
from jitgemm.api.gufuncs import (
    NAMES,
    PLACES,
    Gufunc,
    Loop,
    Places,
    cast,
    check_target,
    covers,
    has_say,
    new_result,
)  # fmt: skip
from jitgemm.api.keywords import Options
from jitgemm.api.kinds import NUMPY, number_of, result_type, types_text
from jitgemm.api.operands import Array, check_output, misplaced, plain_or_packed
from jitgemm.api.smallentry import SmallTable
from jitgemm.api.stubs import public
from jitgemm.errors import message
from jitgemm.runtime.packed import Packed, PackedLhs, PackedRhs

__all__ = ["NumpyKeywords", "matmul", "matvec", "vecdot", "vecmat"]

_ARRAY = np.ndarray
_MATMUL_NUMBER = 2
_MATRICES = (2, 2, 2)
"""Axes of operands and result of ``matmul``, of which no other function has as many."""


class NumpyKeywords(TypedDict, total=False):
    """Keyword arguments that NumPy's products have besides ``out``, with NumPy's meaning."""

    axes: list[Any]
    axis: int
    keepdims: bool
    casting: Literal["no", "equiv", "safe", "same_kind", "unsafe"]
    order: Literal["K", "A", "C", "F"]
    dtype: DTypeLike
    subok: bool
    signature: str | tuple[Any, ...]
    sig: str | tuple[Any, ...]


def _only(out: object) -> Any:
    """``out`` itself, if it is a tuple of one.

    Raises:
        ValueError: a tuple of another length.
    """
    if not isinstance(out, tuple):
        return out
    if len(out) != 1:
        raise ValueError(message("out", "an array or a tuple of one", f"one of {len(out)}"))
    return out[0]


def _itself(signature: bytes, *_: object, **__: object) -> bytes:
    return signature


def _nothing(*_: object, **__: object) -> None:
    return None


_NAMED = ("out", "threads")
_PLACES = ("a", "b", "out")
_matmul = public(_itself, _MATMUL_NUMBER, _PLACES, _NAMED)(_nothing)


def _ask(left: Any, right: Any, out: Any, threads: int) -> Any:
    """``matmul`` as generated code knows it: the result, else the signature or ``None``."""
    operands = (left, right) if out is None else (left, right, out)
    return _matmul(*operands, threads=threads)


class _Function(Gufunc):
    """One of the four: what its operands are, and what it does for calls that nobody knows yet."""

    def __init__(self, name: str, cores: tuple[int, int, int], *, conj: bool = False) -> None:
        super().__init__(name, cores, conj=conj)
        first, second, result = cores
        # ``matmul`` takes vectors too, and ``vecdot`` rows of them.
        least = (1, 1) if name == "matmul" else (first, second)
        most = (first, second) if result else (2, 2)
        self.small = SmallTable(least, most, dots=not result)

    # -- calls without keywords -------------------------------------------------------------------

    def missed(
        self, signature: bytes | None, x1: Any, x2: Any, out: Any = None, threads: Any = None
    ) -> Any:
        """Everything that generated code has not seen before: planning, delegation."""
        if signature is not None and threads is None and self.small.learn(x1, x2):
            return FUNCTIONS[self.name](*((x1, x2) if out is None else (x1, x2, out)))
        left, right = x1, x2
        if not (type(x1) is type(x2) is _ARRAY and (out is None or type(out) is _ARRAY)):
            if isinstance(x1, Packed) or isinstance(x2, Packed):
                return self._prepacked(signature, x1, x2, _only(out), threads)
            if isinstance(out, tuple) or out is ... or has_say(x1) or has_say(x2) or has_say(out):
                return self.in_full(x1, x2, out, threads, {})
            left, right = np.asarray(x1), np.asarray(x2)
        if not covers(left, right):
            return self.in_full(x1, x2, out, threads, {})
        count, matmul_itself = resolve_threads(threads), self.cores == _MATRICES
        if matmul_itself or (left.ndim >= self.cores[0] and right.ndim >= self.cores[1]):
            try:
                return self._product(left, right, out, count, signature=signature)
            except (IndexError, TypeError, ValueError):
                pass  # NumPy may take an ``out`` that is refused; if not, it is said why below.
        return self.in_full(left, right, out, threads, {})

    def _product(
        self,
        left: Any,
        right: Any,
        out: Any,
        count: int,
        *,
        ours: bool = True,
        signature: bytes | None = None,
    ) -> Any:
        """The product of operands whose axes are in their places, by our kernels or NumPy's."""
        given = left, right, out
        left, right, place = self.as_matrices(left, right)
        target = out
        if out is not None and place:
            if not isinstance(out, np.ndarray):
                raise TypeError(message("out", "a numpy array", type(out).__name__))
            target = out[place]
        call = None
        if ours:
            conj = self.conj and left.dtype.kind == "c"
            known = None if signature is not None or conj else _ask(left, right, target, count)
            if known is None or type(known) is bytes:
                options = Options(out=target, conj_a=conj, out_dtype=NUMPY)
                call = Call(left, right, options, NAMES, vectors=True)
                result = call.run(count)
                if known is not None:
                    remember(known, call, (left, right), Options(out=target), count)
            else:
                result = known
        else:
            left = np.conjugate(left) if self.conj and left.dtype.kind in "cO" else left
            result = np.matmul(left, right, out=target)
        if place:
            result = result[tuple(0 if x is np.newaxis else x for x in place)]
        if call is not None and signature is not None:
            remember(signature, call, given[:2], Options(out=given[2]), count, result.shape)
        if out is not None:
            return out
        return result if getattr(result, "ndim", 0) else result[()]

    def _prepacked(
        self, signature: bytes | None, x1: Any, x2: Any, out: Any, threads: object
    ) -> Any:
        """A product with a handle: on its own side, and where this function takes a matrix."""
        left, right = map(plain_or_packed, NAMES, (x1, x2))
        sides = zip(NAMES, (left, right), (PackedLhs, PackedRhs), self.cores, strict=False)
        for name, x, kind, core in sides:
            if isinstance(x, Packed) and (core == 1 or not isinstance(x, kind)):
                raise TypeError(misplaced(name, x, side=core == 2))
            if not isinstance(x, Packed) and number_of(x.dtype) is None:
                raise TypeError(message(name, types_text(), x.dtype))
        self.check_dimensions(left, right)
        shape = self.check_shapes(left, right)
        if out is not None:
            check_output("out", out, shape, result_type(left.dtype, right.dtype, NUMPY))
        count = resolve_threads(threads)
        return self._product(left, right, out, count, signature=signature)

    # -- calls with keywords ----------------------------------------------------------------------

    def in_full(self, x1: Any, x2: Any, out: Any, threads: object, keywords: dict[str, Any]) -> Any:
        """A call with any of NumPy's keywords, and any ``out`` that NumPy takes."""
        out = _only(out)
        for name in keywords:
            if name not in self.keywords:
                raise TypeError(message(name, f"no such argument of {self.name}", "one"))
        for name, x in zip(NAMES, (x1, x2), strict=True):
            if isinstance(x, Packed) and keywords:
                expected = f"an array, because of the argument {next(iter(keywords))}"
                raise TypeError(message(name, expected, f"a {type(x).__name__}"))
        if isinstance(x1, Packed) or isinstance(x2, Packed):
            return self._prepacked(None, x1, x2, out, threads)
        ufunc = getattr(np, self.name, None)
        asked = any(map(has_say, (x1, x2, out)))
        if asked and ufunc is not None:
            return ufunc(x1, x2, out=out, **keywords)
        convert = np.asanyarray if asked else np.asarray
        left, right = convert(x1), convert(x2)
        # With ``...`` NumPy's results are arrays, never scalars.
        array, out = out is ..., None if out is ... else out
        if out is not None and not isinstance(out, np.ndarray):
            raise TypeError(message("out", "a numpy array", type(out).__name__))
        loop = self.loop(left, right, out, keywords)
        if asked or not loop.ours:
            if ufunc is not None:
                result = ufunc(x1, x2, out=out, **keywords)
                return np.asanyarray(result) if array else result
            loop = replace(loop, ours=False)
        result = self._settled((left, right), out, loop, keywords, resolve_threads(threads))
        return np.asanyarray(result) if array else result

    def _settled(
        self,
        operands: tuple[Array, Array],
        out: Array | None,
        loop: Loop,
        keywords: dict[str, Any],
        count: int,
    ) -> Any:
        """A call whose types are settled: axes into their places, the result out of its own."""
        cores = self.count_axes(operands, keywords)
        places = Places(cores, keywords, omitted=self.cores[2] == 0)
        left, right = (x.transpose(places.order(i, x.ndim)) for i, x in enumerate(operands))
        shape = self.check_shapes(left, right)
        if not loop.natural:
            left, right = cast(left, loop.dtype), cast(right, loop.dtype)
        if out is None and not keywords.keys() & {"order", *PLACES}:
            return self._product(left, right, None, count, ours=loop.ours)
        keeps = bool(keywords.get("keepdims", False))
        full = (*shape, 1) if keeps else shape
        result = out
        if result is None:
            order = keywords.get("order") or "K"
            result = new_result(operands, places, full, loop.dtype, order)
        target = result
        if result.ndim >= cores[2]:
            target = result.transpose(places.order(2, result.ndim))
        elif self.name == "matmul" and "axes" not in keywords:
            # The rows of such a result are those of a stack, of which there may be one.
            target = result[(np.newaxis,) * (cores[2] - result.ndim)]
        check_target(target, full, cores[2])
        self._write((left, right), target[..., 0] if keeps else target, loop, count)
        return result if out is not None or result.ndim else result[()]

    def _write(self, operands: tuple[Array, Array], target: Array, loop: Loop, count: int) -> None:
        """Compute and put it where it belongs, in the type it has there."""
        plain = loop.ours and number_of(target.dtype) == number_of(loop.dtype)
        left, right = operands
        if plain and target.shape == self.check_shapes(left, right):
            self._product(left, right, target, count)
            return
        result = np.asarray(self._product(left, right, None, count, ours=loop.ours))
        if result.dtype.kind == "c" and target.dtype.kind in "iuf":
            result = result.real
        np.copyto(target, result, casting="unsafe")


_MATMUL = _Function("matmul", (2, 2, 2))
_MATVEC = _Function("matvec", (2, 1, 1))
_VECMAT = _Function("vecmat", (1, 2, 1), conj=True)
_VECDOT = _Function("vecdot", (1, 1, 0), conj=True)


@public(_MATMUL.missed, _MATMUL_NUMBER, _PLACES, _NAMED, _MATMUL.small)
def matmul(
    x1: object,
    x2: object,
    /,
    out: Any = None,
    *,
    threads: int | None = None,
    **numpy_keywords: Unpack[NumpyKeywords],
) -> Any:
    """``x1 @ x2`` with NumPy's rules: vectors, matrices, stacks that broadcast.

    Boolean, integer and float types run here in every pair, and two operands of one complex type;
    others are passed on to :func:`numpy.matmul`, and so are operands that have a say in the result:
    subclasses of arrays (but not :class:`numpy.memmap`), objects with ``__array_ufunc__`` or
    ``__array_wrap__``.  Integers wrap as NumPy's do.

    Args:
        x1: ``(..., m, k)`` or ``(k,)``, an array of one or more dimensions; or a handle from
            :func:`prepack_lhs`.
        x2: ``(..., k, n)`` or ``(k,)``, an array of one or more dimensions; or a handle from
            :func:`prepack_rhs`.
        out: array for the result, or a tuple of one: of its shape or one that has more leading
            axes, of its type or one that ``casting`` allows.  If it shares memory with an operand
            the result is computed aside and copied.
        threads: at most this many threads.
        **numpy_keywords: those of :func:`numpy.matmul`, with its meaning: ``casting``, ``order``,
            ``dtype``, ``subok``, ``axes``, ``signature`` (or ``sig``).  Not for handles.

    Returns:
        ``out``, a new array (C-contiguous if no ``order`` is given), or a scalar for two vectors.

    Raises:
        ValueError: shapes that do not fit, or an ``out`` that cannot hold the result.
        TypeError: an ``out`` of a type that the result is not cast to; types, or a handle, for
            which there is no product; what NumPy refuses of its keywords.
        AxisError: ``axes`` that are not there.
        MemoryError, IsaError: as :func:`gemm`.
    """
    if numpy_keywords:
        return _MATMUL.in_full(x1, x2, out, threads, {**numpy_keywords})
    return _MATMUL.missed(None, x1, x2, out, threads)


@public(_MATVEC.missed, 3, _PLACES, _NAMED, _MATVEC.small)
def matvec(
    x1: object,
    x2: object,
    /,
    out: Any = None,
    *,
    threads: int | None = None,
    **numpy_keywords: Unpack[NumpyKeywords],
) -> Any:
    """Matrices times vectors, as :func:`numpy.matvec` of NumPy 2.2; with any NumPy.

    The same bits as :func:`matmul` with each vector as a matrix of one column.

    Args:
        x1: ``(..., m, n)``; or a handle from :func:`prepack_lhs`.
        x2: ``(..., n)``; leading axes broadcast.
        out: as for :func:`matmul`.
        threads: at most this many threads.
        **numpy_keywords: as for :func:`matmul`.

    Returns:
        ``out``, or a new array ``(..., m)``.

    Raises:
        ValueError, TypeError, AxisError, MemoryError, IsaError: as :func:`matmul`.
    """
    if numpy_keywords:
        return _MATVEC.in_full(x1, x2, out, threads, {**numpy_keywords})
    return _MATVEC.missed(None, x1, x2, out, threads)


@public(_VECMAT.missed, 4, _PLACES, _NAMED, _VECMAT.small)
def vecmat(
    x1: object,
    x2: object,
    /,
    out: Any = None,
    *,
    threads: int | None = None,
    **numpy_keywords: Unpack[NumpyKeywords],
) -> Any:
    """Conjugates of vectors times matrices, as :func:`numpy.vecmat` of NumPy 2.2; with any NumPy.

    The same bits as :func:`matmul` with the conjugate of each vector as a matrix of one row.

    Args:
        x1: ``(..., n)``.
        x2: ``(..., n, m)``; leading axes broadcast; or a handle from :func:`prepack_rhs`.
        out: as for :func:`matmul`.
        threads: at most this many threads.
        **numpy_keywords: as for :func:`matmul`.

    Returns:
        ``out``, or a new array ``(..., m)``.

    Raises:
        ValueError, TypeError, AxisError, MemoryError, IsaError: as :func:`matmul`.
    """
    if numpy_keywords:
        return _VECMAT.in_full(x1, x2, out, threads, {**numpy_keywords})
    return _VECMAT.missed(None, x1, x2, out, threads)


@public(_VECDOT.missed, 5, _PLACES, _NAMED, _VECDOT.small)
def vecdot(
    x1: object,
    x2: object,
    /,
    out: Any = None,
    *,
    threads: int | None = None,
    **numpy_keywords: Unpack[NumpyKeywords],
) -> Any:
    """Conjugates of vectors times vectors, as :func:`numpy.vecdot` of NumPy 2; with any NumPy.

    The same bits as :func:`matmul` of one row and one column, whatever the layout.

    Args:
        x1: ``(..., n)``.
        x2: ``(..., n)``; leading axes broadcast.
        out: as for :func:`matmul`.
        threads: at most this many threads.
        **numpy_keywords: as for :func:`matmul`, and ``axis`` and ``keepdims``.

    Returns:
        ``out``, a new array ``(...)``, or a scalar for two vectors.

    Raises:
        ValueError, TypeError, AxisError, MemoryError, IsaError: as :func:`matmul`.
    """
    if numpy_keywords:
        return _VECDOT.in_full(x1, x2, out, threads, {**numpy_keywords})
    return _VECDOT.missed(None, x1, x2, out, threads)


FUNCTIONS = {"matmul": matmul, "matvec": matvec, "vecmat": vecmat, "vecdot": vecdot}

# Operators of handles: ``x @ packed`` and ``packed @ x``.
Packed.product = staticmethod(matmul)
