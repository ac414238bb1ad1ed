"""The public products: ``gemm`` and ``matmul``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from jitgemm.api.batched import stacked
from jitgemm.api.config import resolve_threads
from jitgemm.api.dispatch import entries, key_of, remember
from jitgemm.api.kinds import number_of
from jitgemm.api.operands import Array, plain, plain_or_packed, stack_shape
from jitgemm.api.product import Options, Product
from jitgemm.api.quantise import Requantize, with_bias
from jitgemm.api.request import PLAIN as _PLAIN
from jitgemm.api.request import Request, data_of, told
from jitgemm.isa.types import F32, F64, ElementType
from jitgemm.jit import compiler
from jitgemm.kernels.registry import tile_for
from jitgemm.kernels.spec import BSource, Epilogue, GemmSpec
from jitgemm.runtime import numpy_abi
from jitgemm.runtime.driver import scalar_slot
from jitgemm.runtime.engine import engine, record_array, usable
from jitgemm.runtime.entry_code import SMALL
from jitgemm.runtime.memory import Workspace
from jitgemm.runtime.packed import PackedLhs, PackedRhs, element_dtype

__all__ = ["covers", "gemm", "matmul"]

_ARRAY = np.ndarray
_USUAL_DATA = None, None
# Up to this size a product needs no plan: one chunk, both operands read in place.  At 64^3 the work
# (2 us) begins to pay for planning.
_SMALL_LIMIT = 64
# Multiplications of integers up to which NumPy's matmul ends before an entry is found (0.75 us at
# 4^3, 1 to 4 us at 8^3 by type, 8 us at 16^3, against 2.3 us; Zen 5, 2026-11-30).
_FEW = 512


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


def covers(x1: Array, x2: Array) -> bool:
    """Whether :func:`matmul` does this product itself."""
    left, right = number_of(x1.dtype), number_of(x2.dtype)
    if left is None or right is None:
        return False
    if 2 in (left[1], right[1]):
        return left == right
    return True


def _has_say(x: object) -> bool:
    """Whether NumPy asks ``x`` what becomes of a product: a subclass, or a type with a protocol."""
    kind = type(x)
    if kind is np.ndarray or x is None or kind is np.memmap or issubclass(kind, np.generic):
        return False
    return hasattr(kind, "__array_ufunc__") or hasattr(kind, "__array_wrap__")


def _matmul_slow(x1: Any, x2: Any, out: Any = None, threads: object = None) -> Any:
    """Everything the generated entry does not do: planning, batches, vectors, delegation."""
    if isinstance(x2, PackedRhs):
        return gemm(plain("x1", x1), x2, out=out, threads=threads)  # type: ignore[arg-type]
    if _has_say(x1) or _has_say(x2) or _has_say(out):
        return np.matmul(x1, x2, out=out)
    left, right = np.asarray(x1), np.asarray(x2)
    if not covers(left, right):
        return np.matmul(x1, x2, out=out)
    count = resolve_threads(threads)
    names = ("x1", "x2")
    if left.ndim == 2 and right.ndim == 2:
        if left.shape[1] != right.shape[0]:
            stack_shape(left, right, names)
        whole = left.dtype.kind in "iub" and right.dtype.kind in "iub"
        if whole and left.size * right.shape[1] <= _FEW and out is None:
            # Integers have one result: where NumPy's loops end sooner they may compute it.
            return np.matmul(left, right)
        return _gemm(left, right, out, (None, None), _PLAIN, count)
    result = stacked(left, right, out, (None, None), _PLAIN, count, names)
    return result if out is not None or result.ndim else result[()]


class _Entry:
    """The generated entry for small products, made at the first call."""

    def __init__(self) -> None:
        self.call: Callable[[Any, Any, Any, Any], Any] = self._first

    def _first(self, x1: Any, x2: Any, out: Any, threads: Any) -> Any:
        self.call = self._build() if usable() and engine().native else _matmul_slow
        return self.call(x1, x2, out, threads)

    @staticmethod
    def _build() -> Callable[[Any, Any, Any, Any], Any]:
        e = engine()
        table = record_array(SMALL.slots)
        tile = tile_for(F32, e.isa)
        values: dict[str, int] = {
            "array_type": id(np.ndarray),
            "slow": id(_matmul_slow),
            "none": id(None),
            "new_from_descr": numpy_abi.new_from_descr(),
            "limit": _SMALL_LIMIT,
            "depth_limit": _SMALL_LIMIT,
            "mr": tile.mr,
        }
        elements: tuple[ElementType, ...] = (F32, F64)
        for i, element in enumerate(elements):
            spec = GemmSpec(element, e.isa, tile_for(element, e.isa), BSource.INPLACE, Epilogue())
            values[f"descr_{i}"] = id(element_dtype(element))
            values[f"size_{i}"] = element.bytes
            values[f"panel_{i}"] = spec.panel_row
            values[f"one_{i}"] = scalar_slot(1.0, element.bytes)
            compiled = compiler.get(compiler.gemm_unit(spec))
            values[f"nest_{i}"] = compiled.addresses[f"{spec.symbol}_serial"]
        for rows in range(1, tile.mr + 1):
            values[f"group_{rows}"] = tile.group_for(rows)
        for name, value in values.items():
            table[SMALL.slot(name)] = value
        return e.builtin("jitgemm_call_small", table)


_entry = _Entry()


def matmul(
    x1: object, x2: object, /, out: Array | None = None, *, threads: int | None = None
) -> Any:
    """``x1 @ x2`` with NumPy's rules: vectors, matrices, stacks that broadcast.

    Boolean, integer and float types run here in every pair, and two operands of one complex type;
    others are passed on to :func:`numpy.matmul`, and so are operands that have a say in the result:
    subclasses of arrays (but not :class:`numpy.memmap`), objects with ``__array_ufunc__`` or
    ``__array_wrap__``.  Integers wrap as NumPy's do.

    Args:
        x1: ``(..., m, k)`` or ``(k,)``, an array of one or more dimensions.
        x2: ``(..., k, n)`` or ``(k,)``, an array of one or more dimensions.
        out: array for the result, exactly its shape and type.
        threads: at most this many threads.

    Returns:
        ``out``, a new array, or a scalar for two vectors.

    Raises:
        ValueError: shapes that do not fit, or an ``out`` that cannot hold the result.
        TypeError: an ``out`` of another type.
        MemoryError, IsaError: as :func:`gemm`.
    """
    return _entry.call(x1, x2, out, threads)
