"""Element types as NumPy names them, and the type a product of two of them has."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgemm.errors import message
from jitgemm.isa.conversions import conversion, dtype_of
from jitgemm.isa.formats import Format
from jitgemm.isa.types import (
    BOOL,
    BY_NAME,
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
    "NUMPY", "Number", "as_type", "dequantised_type", "forget_stored", "lasting", "number_of",
    "result_type", "types_text", "without_loop", "write_narrow", "written_wide",
]  # fmt: skip

Number = tuple[ElementType, int]
"""An element type as the planner knows it: the type of its reals, and how many there are."""

NUMPY = object()
"""Wanted result type of ``matmul``: what NumPy says, integers modulo ``2**bits``."""

_NUMBERS: dict[np.dtype, Number] = {
    np.dtype(np.float32): (F32, 1),
    np.dtype(np.float64): (F64, 1),
    np.dtype(np.complex64): (F32, 2),
    np.dtype(np.complex128): (F64, 2),
    np.dtype(np.bool_): (BOOL, 1),
    np.dtype(np.int8): (I8, 1), np.dtype(np.uint8): (U8, 1),
    np.dtype(np.int16): (I16, 1), np.dtype(np.uint16): (U16, 1),
    np.dtype(np.int32): (I32, 1), np.dtype(np.uint32): (U32, 1),
    np.dtype(np.int64): (I64, 1), np.dtype(np.uint64): (U64, 1),
}  # fmt: skip
_SUMS = np.dtype(np.float32)
"""Of products of storage types."""

_results: dict[tuple[Any, ...], np.dtype] = {}


def types_text() -> str:
    """The types that operands may have, in words."""
    stored = ", ".join(x.format.name for x in list(BY_NAME.values()) if x.format)
    return f"elements of a boolean, integer, float (and {stored}) or complex type"


def number_of(dtype: np.dtype) -> Number | None:
    """The planner's name of a NumPy type in either byte order; ``None`` if not supported.

    A storage type is known by its name: what it comes from need not be imported to look for it.
    """
    known = _NUMBERS.get(dtype)
    if known is None:
        for x in list(BY_NAME.values()):
            if x.format and x.format.name == dtype.name and x.bytes == dtype.itemsize:
                known = _NUMBERS[lasting(dtype)] = (x, 1)
    if known is None and not dtype.isnative:
        return _NUMBERS.get(dtype.newbyteorder("="))
    return known


def forget_stored(element: ElementType) -> None:
    """Look for a storage type anew from here on."""
    for dtype in [x for x, number in list(_NUMBERS.items()) if number[0] is element]:
        del _NUMBERS[dtype]
    _results.clear()
    conversion.cache_clear()


def _format(dtype: np.dtype) -> Format | None:
    """The row of a storage type; ``None`` for any other."""
    number = number_of(dtype)
    return None if number is None else number[0].format


def without_loop(dtype: np.dtype) -> bool:
    """Whether NumPy's products have no loop for a type that is supported here."""
    return _format(dtype) is not None and np.dtype(dtype.type).isbuiltin != 1


def _bits_of(dtype: np.dtype) -> np.dtype:
    """Unsigned integers in the place of a storage type's numbers."""
    bits = np.dtype(f"u{dtype.itemsize}")
    return bits if dtype.isnative else bits.newbyteorder()


def written_wide(x: np.ndarray, kind: np.dtype) -> np.ndarray:
    """An array of another type than the sums' as one of theirs."""
    number = number_of(x.dtype)
    if number is None or number[0].format is None:
        return x.astype(kind)
    values = x.view(_bits_of(x.dtype)).astype(dtype_of(number[0]))
    for op, _ in conversion(number[0], F32, half=True):
        values = op.meaning(values)
    return values.astype(kind)


def write_narrow(target: np.ndarray, values: np.ndarray) -> None:
    """Store sums in an array of another type, each rounded once."""
    number = number_of(target.dtype)
    if number is None or number[0].format is None:
        target[...] = values
        return
    for op, _ in conversion(F32, number[0], half=True):
        values = op.meaning(values)
    target.view(_bits_of(target.dtype))[...] = values


def _numpy_result(a: np.dtype, b: np.dtype) -> np.dtype:
    """As NumPy's for ``float16``, whatever the storage type; integers of 8 bits promote it not."""
    for x, other in ((a, b), (b, a)):
        row = _format(x)
        if row is not None and (other == x or (other.kind in "iub" and other.itemsize == 1)):
            return row.product or x
    wide = [_SUMS if _format(x) is not None else x for x in (a, b)]
    return np.result_type(*wide, *([] if wide == [a, b] else [_SUMS]))


def _own_result(a: np.dtype, b: np.dtype) -> np.dtype:
    """As NumPy's, but products of 8-bit integers have 32 bits."""
    if a.kind in "iub" and b.kind in "iub" and a.itemsize == b.itemsize == 1:
        return np.dtype(np.int32)
    return _numpy_result(a, b)


def _holds(wanted: np.dtype, own: np.dtype) -> bool:
    """Whether a result of another type than its own loses nothing; complex ones keep theirs."""
    if own.kind == "c" or own == wanted or _format(wanted) is not None:
        return own == wanted
    if _format(own) is not None:
        return wanted.kind == "f"
    return wanted.kind == own.kind and np.can_cast(own, wanted, "safe")


def _stored_as(a: np.dtype, b: np.dtype) -> tuple[np.dtype, ...]:
    """What products of two numbers of a storage type may be narrowed to."""
    row = _format(a) if a == b else None
    return () if row is None else row.results


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
    if number is None or number[1] != 1 or not (number[0] is F32 or number[0].format):
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

    Entries know types by identity; of those that NumPy lacks ``newbyteorder`` makes new objects.
    """
    return np.dtype(x.type)


def _decide(a: np.dtype, b: np.dtype, wanted: Any) -> np.dtype:
    for x in (a, b):
        if number_of(x) is None:
            raise TypeError(message("a", types_text(), x))
    if wanted is NUMPY:
        return _numpy_result(a, b)
    own = _own_result(a, b)
    if wanted is None:
        return own
    others = _stored_as(a, b)
    if number_of(wanted) is None or not (_holds(wanted, own) or _native(wanted) in others):
        wider = "" if own.kind == "c" else " or a wider type like it"
        stored = "".join(f", or {x}" for x in others)
        raise TypeError(message("out_dtype", f"{own}{wider}{stored}", wanted))
    return _native(wanted)
