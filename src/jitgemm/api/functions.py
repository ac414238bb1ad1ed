"""The fused product: ``gemm``."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from jitgemm.api.call import Call
from jitgemm.api.config import resolve_threads
from jitgemm.api.entries import options_last, remember
from jitgemm.api.forms import by_form
from jitgemm.api.keywords import GemmKeywords, Options
from jitgemm.api.operands import Array, in_place, is_weak, plain
from jitgemm.api.smallentry import SmallTable
from jitgemm.api.stubs import public, with_keywords
from jitgemm.runtime.packed import Packed
from jitgemm.runtime.signature_code import KEYWORDS

__all__ = ["NAMED", "NUMBER", "gemm"]

_SMALL = SmallTable((2, 2), (2, 2))
NUMBER = 1
"""Of ``gemm`` among functions: lists of its products are known by it too."""
# The most frequent first: they are searched in this order.
NAMED = (
    "out", "bias", "activation", "threads", "alpha", "beta", "c", "workspace", *KEYWORDS[1:],
)  # fmt: skip


def _missed(signature: bytes | None, a: Any, b: Any, **keywords: Any) -> Any:
    """A product that no earlier call has left an entry for, in full."""
    options = Options.of("gemm", keywords)
    if signature is None:
        converted = _converted(a, b, options)
        if converted is not None:
            # As arrays they may be known.
            left, right, others = converted
            result = gemm(left, right, **{**keywords, **others})
            return result if options.out is None else options.out
    elif not keywords and _SMALL.learn(a, b):
        return gemm(a, b)
    count = resolve_threads(options.threads)
    lasting = options_last(options)
    if signature is not None and not lasting:
        return by_form(a, b, options, count)
    call = Call(a, b, options)
    result = call.run(count)
    remember(signature, call, (a, b), options, count)
    return result


def _converted(a: Any, b: Any, options: Options) -> tuple[Any, Any, dict[str, Any]] | None:
    """Operands as plain arrays; ``None`` if they all are, but for numbers of Python."""
    given = {"a": a, "b": b, "c": options.c, "bias": options.bias, "out": options.out}
    found = {}
    for name, x in given.items():
        if x is None and name not in "ab":
            continue
        if type(x) is np.ndarray or isinstance(x, Packed):
            continue
        if name == "out":
            found[name] = in_place(name, x)
        elif name in "ab" or not is_weak(x):
            found[name] = plain(name, x)
    if not found:
        return None
    return found.pop("a", a), found.pop("b", b), found


@public(_missed, NUMBER, ("a", "b"), NAMED, _SMALL)
@with_keywords(GemmKeywords)
def gemm(a: object, b: object, **keywords: Unpack[GemmKeywords]) -> Array:
    """``f(alpha * a @ b + beta * c + bias)`` for matrices or stacks of them, in one pass.

    Operands are plain memory, used where it is: arrays, memory maps, subclasses without arithmetic
    of their own, buffers, and what speaks DLPack on the CPU, ``__array_interface__`` or
    ``__array__``, such as tensors.  Numbers and lists become arrays.  What means more than its
    numbers is refused, with what to pass instead: masked arrays, ``numpy.matrix``, sparse matrices,
    tables with labels, quantities with units, tensors with a gradient or on another device.

    Args:
        a: ``(..., m, k)`` of any boolean, integer, float (float16 and ``ml_dtypes.bfloat16`` too)
            or complex type, or one that :func:`register_storage_type` has made known; any strides
            and byte order; or a handle from :func:`prepack_lhs`.
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
            ``"silu"``, ``"hardswish"``, :func:`leaky_relu`, :func:`clip`, or one that
            :func:`register_activation` has made known.  Of integers: ``"relu"`` and :func:`clip`
            of int32 and int64 results, and of sums that are requantised.
        epilogue: a function ``f(v, row, col)`` of an element and its indices, written with
            operators and :mod:`jitgemm.math`; applied after the activation.
        post_ops: what is done after that, in order: a list of activations and of pairs ``(name,
            operand)``, of which the name is ``"add"``, ``"sub"``, ``"mul"``, ``"div"``,
            ``"minimum"`` or ``"maximum"`` and the operand real numbers of a shape that broadcasts
            to the result's.  Operands are converted to the type of the sums (float32 or float64).
        a_scale: what a sum is multiplied by before ``alpha``: a number, or ``(m,)`` or ``(m, 1)``
            of them, one per row; for stacks anything that broadcasts to ``(..., m, 1)``.  Products
            of 8-bit integers become floats by it: the sum is rounded to float32, then multiplied
            by ``a_scale`` and by ``b_scale``, each product rounded.  With both at most four
            operands.
        b_scale: likewise: a number, ``(n,)`` or ``(1, n)``, one per column.
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
            results keep theirs; for two operands of a storage type also what that says.  Of 8-bit
            integers with scales float32, float16 or bfloat16.
        allow_bf16_dot: let bfloat16 be multiplied by the processor's instruction for it, where
            there is one: up to twice as fast, but it treats subnormal numbers as zeros.

    Returns:
        ``out`` itself, or a new C-contiguous array: int32 for booleans and 8-bit integers (float32
        with scales), else of the type that NumPy gives two such operands.  Integers are exact
        modulo ``2**bits`` of that type.

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
    return _missed(None, a, b, **keywords)  # type: ignore[no-any-return]
