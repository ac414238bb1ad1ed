"""The fused product: ``gemm``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from jitgemm.api.batched import stacked
from jitgemm.api.config import resolve_threads
from jitgemm.api.dispatch import entries, key_of, remember
from jitgemm.api.operands import Array, plain_or_packed
from jitgemm.api.product import Options, Product
from jitgemm.api.quantise import Requantize, with_bias
from jitgemm.api.request import Request, data_of, told
from jitgemm.runtime.memory import Workspace
from jitgemm.runtime.packed import PackedLhs, PackedRhs

__all__ = ["gemm"]

_ARRAY = np.ndarray
_USUAL_DATA = None, None


def gemm(
    a: object,
    b: object,
    *,
    alpha: object = 1,
    beta: object = 0,
    c: object = None,
    out: Any = None,
    bias: object = None,
    activation: object = None,
    epilogue: Callable[[Any, Any, Any], Any] | None = None,
    conj_a: bool = False,
    conj_b: bool = False,
    threads: int | None = None,
    workspace: Workspace | None = None,
    reproducible: str = "default",
    backend: str = "jit",
    a_zero_point: object = None,
    b_zero_point: object = None,
    requantize: Requantize | None = None,
    out_dtype: DTypeLike | None = None,
    allow_bf16_dot: bool = False,
) -> Array:
    """``f(alpha * a @ b + beta * c + bias)`` for matrices or stacks of them, in one pass.

    Operands are plain memory, used where it is: arrays, memory maps, subclasses without arithmetic
    of their own, buffers, and what speaks DLPack on the CPU, ``__array_interface__`` or
    ``__array__``, such as tensors.  Numbers and lists become arrays.  What means more than its
    numbers is refused, with what to pass instead: masked arrays, ``numpy.matrix``, sparse matrices,
    tables with labels, quantities with units, tensors with a gradient or on another device.

    Args:
        a: ``(..., m, k)`` of any boolean, integer, float (float16 and ``ml_dtypes.bfloat16`` too)
            or complex type, any strides and byte order; or a handle from :func:`prepack_lhs`.
        b: ``(..., k, n)``, of the same type if that is complex, or a handle from
            :func:`prepack_rhs`.
        alpha: a number, real unless the type is complex, whole if it is one of integers.  With
            ``alpha == 0`` neither A nor B is read.
        beta: likewise.  With ``beta == 0`` C is never read.
        c: ``(..., m, n)`` of the result's type or that of its sums (float32 for 16-bit floats,
            int32 for 8-bit integers), or for stacks what broadcasts to it; needed if
            ``beta != 0``.  Python's own numbers, in lists, take the type of the sums.
        out: array for the result, or other memory that can be written where it is; may be ``c``
            itself.  If it shares memory with another operand the result is computed aside and
            copied.
        bias: ``()``, ``(n,)`` (one number per column), ``(m, 1)`` (one per row) or ``(m, n)``; for
            stacks anything that broadcasts to ``(..., m, n)``.  Types as for ``c``; a number of
            Python, or a list of them, takes the type of the sums.
        activation: ``None``, ``"relu"``, ``"sigmoid"``, ``"tanh"``, ``"gelu"``, ``"gelu_tanh"``,
            ``"silu"``, ``"hardswish"``, :func:`leaky_relu` or :func:`clip`.
        epilogue: a function ``f(v, row, col)`` of an element and its indices, written with
            operators and :mod:`jitgemm.math`; applied after the activation.
        conj_a: use the complex conjugate of ``a``.
        conj_b: use the complex conjugate of ``b``.
        threads: at most this many threads; default :func:`get_num_threads`.
        workspace: scratch to reuse between calls.
        reproducible: ``"default"``: the same bits for any threads, layouts and packing;
            ``"strict"``: also for a row whatever ``m`` is, at some cost for dot products.
        backend: ``"jit"``, or ``"blas"`` for SciPy's or NumPy's BLAS, on threads of its own number
            and with bits of its own.
        a_zero_point: for 8-bit integers: what stands for zero in ``a``; an integer, or ``(m,)`` or
            ``(m, 1)`` of them, one per row; for stacks anything that broadcasts to ``(..., m, 1)``.
        b_zero_point: likewise for ``b``: an integer, ``(n,)`` or ``(1, n)``, one per column; for
            stacks anything that broadcasts to ``(..., 1, n)``.
        requantize: for 8-bit integers: make the result 8-bit again.
        out_dtype: a type that holds the result's own, such as float32 for 16-bit floats; complex
            results keep theirs.
        allow_bf16_dot: let bfloat16 be multiplied by the processor's instruction for it, where
            there is one: up to twice as fast, but it treats subnormal numbers as zeros.

    Returns:
        ``out`` itself, or a new C-contiguous array: int32 for booleans and 8-bit integers, else of
        the type that NumPy gives two such operands.  Integers are exact modulo ``2**bits`` of that
        type.

    Raises:
        TypeError: an element type that is not supported, or types that differ; an argument of
            another kind than named above, or one that means more than its numbers; a function
            that cannot be traced.
        ValueError: shapes that do not fit, numbers beyond their type, a read-only or
            self-overlapping ``out``, ``beta`` without ``c``, an unknown ``activation``, ``threads``
            not between 1 and 1024, a handle packed for another instruction set, ``"strict"`` where
            a BLAS computes the product.
        MemoryError: scratch beyond the address space.
        IsaError: ``JITGEMM_ISA`` names a set that is unknown or that this machine lacks.
    """
    options = (
        alpha, beta, activation, conj_a, conj_b, epilogue, workspace, reproducible, backend,
        a_zero_point, b_zero_point, requantize, out_dtype, allow_bf16_dot,
    )  # fmt: skip
    return _gemm(a, b, out, (c, bias), options, resolve_threads(threads))


def _gemm(
    a: Any, b: Any, out: Any, others: tuple[Any, Any], options: tuple[Any, ...], count: int
) -> Array:
    """A product through the entry an earlier call like it has left, or in full."""
    call = None
    if type(a) is _ARRAY and (type(b) is _ARRAY or type(b) is PackedRhs) and a.ndim == b.ndim == 2:
        call = told(options, a, b)
    else:
        a = a if type(a) is _ARRAY else plain_or_packed("a", a)
        b = b if type(b) is _ARRAY else plain_or_packed("b", b)
        # A prepacked left operand has an entry among those of stacks.
        if a.ndim > 2 or b.ndim > 2 or (type(a) is PackedLhs and type(b) is _ARRAY):
            return stacked(a, b, out, others, options, count)
    (c, bias), key, known, request = others, (), None, None
    if call is not None:
        form, given, dtype = call
        if type(given) is Request:
            request, bias = given, with_bias(bias, given.requantize)
        try:
            target = np.empty((a.shape[0], b.shape[1]), dtype) if out is None else out
            key = key_of(a, b, target, c, bias, form, count)
            known = entries.get(key)
        except (TypeError, ValueError, MemoryError):
            # No arrays, or nothing that could be a result: the long way words the error.
            key = ()
        if known is not None:
            right = b.storage if type(b) is PackedRhs else b
            # What the data refer to lives until here.
            data, _tables = _USUAL_DATA if given is None else data_of(known.data, given)
            result = known.entry(a, right, target, bias, c, data)
            if result is not NotImplemented:
                return result  # type: ignore[no-any-return]
    asked = Options(*options)
    asked.c, asked.bias = others
    product = Product(a, b, out, asked, request)
    if key and known is None:
        remember(key, product, count)
    return product.run(count)
