"""Element types as NumPy names them, and the type a product of two of them has."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgemm.errors import message
from jitgemm.isa.types import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    ElementType,
)  # fmt: skip

__all__ = [
    "NUMPY",
    "TYPES",
    "Number",
    "as_type",
    "dequantised_type",
    "lasting",
    "number_of",
    "result_type",
]

Number = tuple[ElementType, int]
"""An element type as the planner knows it: the type of its reals, and how many there are."""

NUMPY = object()
"""Wanted result type of ``matmul``: what NumPy says, integers modulo ``2**bits``."""

TYPES = "elements of a boolean, integer, float (16 bits too, bfloat16 as well) or complex type"

_NUMBERS: dict[np.dtype, Number] = {
    np.dtype(np.float32): (F32, 1),
    np.dtype(np.float64): (F64, 1),
    np.dtype(np.complex64): (F32, 2),
    np.dtype(np.complex128): (F64, 2),
    np.dtype(np.float16): (F16, 1),
    np.dtype(np.bool_): (BOOL, 1),
    np.dtype(np.int8): (I8, 1), np.dtype(np.uint8): (U8, 1),
    np.dtype(np.int16): (I16, 1), np.dtype(np.uint16): (U16, 1),
    np.dtype(np.int32): (I32, 1), np.dtype(np.uint32): (U32, 1),
    np.dtype(np.int64): (I64, 1), np.dtype(np.uint64): (U64, 1),
}  # fmt: skip
_BFLOAT16 = "bfloat16"

_results: dict[tuple[Any, ...], np.dtype] = {}


def number_of(dtype: np.dtype) -> Number | None:
    """The planner's name of a NumPy type in either byte order; ``None`` if not supported.

    ``bfloat16`` is the type of that name which the package ``ml_dtypes`` brings.
    """
    known = _NUMBERS.get(dtype)
    if known is None and dtype.name == _BFLOAT16 and dtype.itemsize == 2:
        known = _NUMBERS[lasting(dtype)] = (BF16, 1)
    if known is None and not dtype.isnative:
        return _NUMBERS.get(dtype.newbyteorder("="))
    return known


def _numpy_result(a: np.dtype, b: np.dtype) -> np.dtype:
    halves = [x for x in (a, b) if x.name == _BFLOAT16]
    if not halves:
        return np.result_type(a, b)
    if len(halves) == 2:
        return a
    other = b if a.name == _BFLOAT16 else a
    if other.kind in "iub" and other.itemsize == 1:
        return halves[0]
    return np.result_type(other, np.float32)


def _own_result(a: np.dtype, b: np.dtype) -> np.dtype:
    """As NumPy's, but products of 8-bit integers have 32 bits."""
    if a.kind in "iub" and b.kind in "iub" and a.itemsize == b.itemsize == 1:
        return np.dtype(np.int32)
    return _numpy_result(a, b)


def _holds(wanted: np.dtype, own: np.dtype) -> bool:
    """Whether a result of another type than its own loses nothing; complex ones keep theirs."""
    if own.kind == "c":
        return own == wanted
    if _BFLOAT16 in (own.name, wanted.name):
        return own == wanted or (
            own.name == _BFLOAT16 and wanted.kind == "f" and wanted.itemsize > 2
        )
    return wanted.kind == own.kind and np.can_cast(own, wanted, "safe")


def result_type(a: np.dtype, b: np.dtype, wanted: object) -> np.dtype:
    """The type of a product.

    Args:
        a: type of the left operand, one that :func:`number_of` knows.
        b: of the right one.
        wanted: a NumPy type, ``None`` for the usual one, or :data:`NUMPY`.

    Raises:
        TypeError: ``wanted`` is no type, or does not hold the product.
    """
    usual = wanted is None or wanted is NUMPY
    known: Any = wanted if usual else as_type(wanted)
    # Types that are equal may differ in name, as int64 and longlong do, which results keep.
    found = _results.get((a, a.num, b, b.num, known))
    if found is None:
        found = _decide(_native(a), _native(b), known)
        kept = known if usual else lasting(known)
        _results[lasting(a), a.num, lasting(b), b.num, kept] = found
    return found


def dequantised_type(wanted: object) -> np.dtype:
    """The type of a product of 8-bit integers with scales.

    Args:
        wanted: a NumPy type, or ``None`` or :data:`NUMPY` for float32.

    Raises:
        TypeError: it is no float of at most 32 bits.
    """
    if wanted is None or wanted is NUMPY:
        return np.dtype(np.float32)
    dtype = as_type(wanted)
    number = number_of(dtype)
    if number is None or number[0] not in (F32, F16, BF16) or number[1] != 1:
        raise TypeError(message("out_dtype", "float32, float16 or bfloat16", dtype))
    return _native(dtype)


def as_type(wanted: object) -> np.dtype:
    """The type that an argument names.

    Raises:
        TypeError: it names none.
    """
    try:
        return np.dtype(wanted)  # type: ignore[call-overload,no-any-return]
    except (TypeError, ValueError, SyntaxError):
        got = repr(wanted) if isinstance(wanted, str) else type(wanted).__name__
        raise TypeError(message("out_dtype", "a NumPy type", got)) from None


def lasting(x: np.dtype) -> np.dtype:
    """NumPy's own object for a type, which may be kept: the caller's may hold on to others."""
    own = np.dtype(x.type)
    return own if x.isnative else own.newbyteorder()


def _native(x: np.dtype) -> np.dtype:
    """NumPy's own object for the type in this machine's byte order.

    Entries know types by identity; of bfloat16 ``newbyteorder`` makes a new object.
    """
    return np.dtype(x.type)


def _decide(a: np.dtype, b: np.dtype, wanted: Any) -> np.dtype:
    for x in (a, b):
        if number_of(x) is None:
            raise TypeError(message("a", TYPES, x))
    if wanted is NUMPY:
        return _numpy_result(a, b)
    own = _own_result(a, b)
    if wanted is None:
        return own
    if number_of(wanted) is None or not _holds(wanted, own):
        wider = "" if own.kind == "c" else " or a wider type like it"
        raise TypeError(message("out_dtype", f"{own}{wider}", wanted))
    return _native(wanted)
