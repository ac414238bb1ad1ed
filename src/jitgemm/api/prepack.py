"""Packing operands ahead of their products."""

from __future__ import annotations

from math import prod
from typing import TypeVar

import numpy as np

from jitgemm.api.kinds import Number, number_of, result_type
from jitgemm.api.operands import Array, flag, operand
from jitgemm.errors import message
from jitgemm.kernels.arithmetic import OperandTypes, arithmetic_for, sum_type
from jitgemm.kernels.registry import tile_for
from jitgemm.kernels.spec import BSource, Epilogue, GemmSpec
from jitgemm.planner.problem import Operand
from jitgemm.runtime.driver import Span, run_pack
from jitgemm.runtime.engine import engine, packed_for, usable
from jitgemm.runtime.numpy_abi import data_address
from jitgemm.runtime.packed import (
    MOST_DIMENSIONS,
    Packed,
    PackedLhs,
    PackedRhs,
    layout_for,
    plain_layout,
)

__all__ = ["prepack_lhs", "prepack_rhs"]

T = TypeVar("T", bound=Packed)


def prepack_rhs(b: object, *, conj: bool = False, allow_bf16_dot: bool = False) -> PackedRhs:
    """Pack a right operand once, for many products.

    Args:
        b: ``(..., k, n)``, any type and kind of memory that :func:`gemm` takes, any strides.
            Each matrix of a stack is packed by itself; ``handle[i]`` is a handle on one of them,
            or on a stack with an axis less, that shares the storage.
        conj: pack the complex conjugate.
        allow_bf16_dot: pack bfloat16 for products that allow it too.

    Returns:
        A read-only snapshot to pass as ``b``; results equal those of the plain call bit for bit.
        It can be pickled, and used in every process whose kernels read its layout.

    Raises:
        TypeError, ValueError: ``b`` is no such matrix or stack, or has more than 8 dimensions.
        MemoryError: there is no room for the packed form.
        IsaError: as :func:`gemm`.
    """
    return _packed(PackedRhs, "b", b, conj, allow_bf16_dot)


def prepack_lhs(a: object, *, conj: bool = False, allow_bf16_dot: bool = False) -> PackedLhs:
    """Pack a left operand once, for many products.

    Args:
        a: ``(..., m, k)``, any type and kind of memory that :func:`gemm` takes, any strides.
            Each matrix of a stack is packed by itself; ``handle[i]`` is a handle on one of them,
            or on a stack with an axis less, that shares the storage.
        conj: pack the complex conjugate.
        allow_bf16_dot: pack bfloat16 for products that allow it too.

    Returns:
        A read-only snapshot to pass as ``a``; results equal those of the plain call bit for bit.
        It can be pickled, and used in every process whose kernels read its layout.

    Raises:
        TypeError, ValueError: ``a`` is no such matrix or stack, or has more than 8 dimensions.
        MemoryError: there is no room for the packed form.
        IsaError: as :func:`gemm`.
    """
    return _packed(PackedLhs, "a", a, conj, allow_bf16_dot)


def _packed(kind: type[T], name: str, x: object, conj: object, bf16_dot: object) -> T:
    conjugated, fast = flag("conj", conj), flag("allow_bf16_dot", bf16_dot)
    if type(x) is kind:
        return x.conjugated() if conjugated else x
    source = operand(name, x)
    if source.ndim > MOST_DIMENSIONS:
        raise ValueError(message(name, f"at most {MOST_DIMENSIONS} dimensions", source.ndim))
    right: Array = source.swapaxes(-1, -2) if kind is PackedLhs else source
    number = number_of(right.dtype)
    assert number is not None
    (element, components), (k, n), batch = number, right.shape[-2:], right.shape[:-2]
    dtype = right.dtype.newbyteorder("=")
    if not usable():
        layout = plain_layout(element, k, n, components)
        handle = kind(layout, packed_for(), dtype, batch=batch, conj=conjugated)
        handle.fill(right.astype(dtype).tobytes())
        return handle
    spec = _spec(number, dtype, bf16_dot=fast)
    handle = kind(layout_for(spec, k, n), spec.isa.name, dtype, batch=batch, conj=conjugated)
    if k and n:
        _pack(spec, right, handle)
    else:
        # Columns without numbers add up to 0.
        handle.fill(bytes(handle.layout.nbytes * prod(batch)))
    return handle


def _pack(spec: GemmSpec, right: Array, handle: Packed) -> None:
    """Pack each matrix of a stack of right operands where it belongs in a new handle."""
    layout, to = handle.layout, handle.address
    (k, n), (row, col) = right.shape[-2:], right.strides[-2:]
    like = Operand(row, col, not right.dtype.isnative)
    for place in np.ndindex(handle.batch):
        source = Span.of(data_address(right[place]), (k, n), (row, col), right.itemsize)
        target = Span(to, 0, layout.nbytes)
        run_pack(spec, like, source, target, (k, n, layout.panel_bytes))
        to += layout.item_bytes


def _spec(number: Number, dtype: np.dtype, *, bf16_dot: bool) -> GemmSpec:
    """The kernel of a product with a left operand of the same type, whose packing serves others."""
    (stored, components), isa = number, engine().isa
    out = number_of(result_type(dtype, dtype, None))
    assert out is not None
    types = OperandTypes(stored, stored, out[0], out[0], out[0], bf16_dot)
    element = sum_type(types)
    how = arithmetic_for(types, element, isa)
    tile = tile_for(element, isa, components)
    return GemmSpec(element, isa, tile, BSource.PACKED, Epilogue(), components, how)
