"""Packing operands ahead of their products."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from jitgemm.api.kinds import Number, number_of, result_type
from jitgemm.api.operands import Array, flag, operand
from jitgemm.errors import message
from jitgemm.kernels.arithmetic import Types, arithmetic_for, sum_type
from jitgemm.kernels.registry import tile_for
from jitgemm.kernels.spec import BSource, Epilogue, GemmSpec
from jitgemm.planner.problem import Operand
from jitgemm.runtime.driver import Span, run_pack
from jitgemm.runtime.engine import engine, packed_for, usable
from jitgemm.runtime.packed import Packed, PackedLhs, PackedRhs, layout_for, plain_layout

__all__ = ["prepack_lhs", "prepack_rhs"]

T = TypeVar("T", bound=Packed)


def prepack_rhs(b: object, *, conj: bool = False, allow_bf16_dot: bool = False) -> PackedRhs:
    """Pack a right operand once, for many products.

    Args:
        b: ``(k, n)``, any type and kind of memory that :func:`gemm` takes, any strides.
        conj: pack the complex conjugate.
        allow_bf16_dot: pack bfloat16 for products that allow it too.

    Returns:
        A read-only snapshot to pass as ``b``; results equal those of the plain call bit for bit.

    Raises:
        TypeError, ValueError: ``b`` is not such a matrix.
        MemoryError: there is no room for the packed form.
        IsaError: as :func:`gemm`.
    """
    return _packed(PackedRhs, "b", b, conj, allow_bf16_dot)


def prepack_lhs(a: object, *, conj: bool = False, allow_bf16_dot: bool = False) -> PackedLhs:
    """Pack a left operand once, for many products.

    Args:
        a: ``(m, k)``, any type and kind of memory that :func:`gemm` takes, any strides.
        conj: pack the complex conjugate.
        allow_bf16_dot: pack bfloat16 for products that allow it too.

    Returns:
        A read-only snapshot to pass as ``a``; results equal those of the plain call bit for bit.

    Raises:
        TypeError, ValueError: ``a`` is not such a matrix.
        MemoryError: there is no room for the packed form.
        IsaError: as :func:`gemm`.
    """
    return _packed(PackedLhs, "a", a, conj, allow_bf16_dot)


def _packed(kind: type[T], name: str, x: object, conj: object, bf16_dot: object) -> T:
    conjugated, fast = flag("conj", conj), flag("allow_bf16_dot", bf16_dot)
    if type(x) is kind:
        return x.conjugated() if conjugated else x
    source = operand(name, x)
    if source.ndim != 2:
        raise ValueError(message(name, "a matrix (2 dimensions)", f"{source.ndim} dimensions"))
    right: Array = source.T if kind is PackedLhs else source
    number = number_of(right.dtype)
    assert number is not None
    (element, parts), (k, n) = number, right.shape
    dtype = right.dtype.newbyteorder("=")
    if not usable():
        layout = plain_layout(element, k, n, parts)
        handle = kind(layout, packed_for(), dtype, conj=conjugated)
        handle.fill(right.astype(dtype).tobytes())
        return handle
    spec = _spec(number, dtype, bf16_dot=fast)
    layout = layout_for(spec, k, n)
    handle = kind(layout, spec.isa.name, dtype, conj=conjugated)
    if k and n:
        strides = (right.strides[0], right.strides[1])
        at = int(right.__array_interface__["data"][0])
        span = Span.of(at, (k, n), strides, right.itemsize)
        target = Span(handle.address, 0, layout.nbytes)
        b = Operand(*strides, not right.dtype.isnative)
        run_pack(spec, b, span, target, (k, n, layout.panel_bytes))
    elif layout.sums:
        # Columns without numbers add up to 0.
        handle.fill(bytes(layout.nbytes))
    return handle


def _spec(number: Number, dtype: np.dtype, *, bf16_dot: bool) -> GemmSpec:
    """The kernel of a product with a left operand of the same type, whose packing serves others."""
    (stored, parts), isa = number, engine().isa
    out = number_of(result_type(dtype, dtype, None))
    assert out is not None
    types = Types(stored, stored, out[0], out[0], out[0], bf16_dot)
    element = sum_type(types)
    how = None if types.plain(element) else arithmetic_for(types, element, isa)
    tile = tile_for(element, isa, parts)
    return GemmSpec(element, isa, tile, BSource.PACKED, Epilogue(), parts, how)
