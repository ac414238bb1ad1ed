"""Python's objects and NumPy's arrays as C structures: offsets, verified at first use.

The public part of ``PyArrayObject`` has not changed since NumPy 1.7 (`numpy/ndarraytypes.h`,
``tagPyArrayObject_fields``).  :func:`verified` compares what generated code would read with what
Python says of arrays, tuples, lists and numbers made for that; if anything differs, generated code
takes no calls at all.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from functools import cache

import numpy as np

__all__ = [
    "BYTES",
    "C_CONTIGUOUS",
    "FLOAT",
    "ITEMS",
    "OFFSETS",
    "SIZE",
    "WRITEABLE",
    "data_address",
    "new_from_descr",
    "new_scalar",
    "slot_offset",
    "verified",
]

# 64-bit layout with the ordinary object header: reference count, type.
OFFSETS = {"type": 8, "data": 16, "nd": 24, "dims": 32, "strides": 40, "descr": 56, "flags": 64}
# Of tuples and lists: the number of items; a tuple's items come next, a list has their address.
SIZE, ITEMS = 16, 24
# Of bytes: the data, after their number and hash.
BYTES = 32
# Of floats, NumPy's floats and complex numbers: the value.
FLOAT = 16
C_CONTIGUOUS, WRITEABLE = 0x1, 0x400
_NEW_FROM_DESCR, _SCALAR, _ARRAY_TYPE = 94, 60, 2


def _api() -> int:
    umath = sys.modules.get("numpy._core._multiarray_umath") or sys.modules.get(
        "numpy.core._multiarray_umath"
    )
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = umath._ARRAY_API  # type: ignore[union-attr]  # noqa: SLF001  # the C API's one name
    return int(pointer(capsule, None) or 0)


def _entry(index: int) -> int:
    return int(ctypes.c_void_p.from_address(_api() + 8 * index).value or 0)


@cache
def new_from_descr() -> int:
    """Address of ``PyArray_NewFromDescr``."""
    return _entry(_NEW_FROM_DESCR)


@cache
def new_scalar() -> int:
    """Address of ``PyArray_Scalar``."""
    return _entry(_SCALAR)


def _agrees(array: np.ndarray) -> bool:
    base = id(array)

    def read(name: str) -> int:
        return int(ctypes.c_int64.from_address(base + OFFSETS[name]).value)

    def read32(name: str) -> int:
        return int(ctypes.c_int32.from_address(base + OFFSETS[name]).value)

    def vector(name: str) -> tuple[int, ...]:
        return tuple((ctypes.c_int64 * array.ndim).from_address(read(name)))

    flags = read32("flags")
    return (
        read("type") == id(type(array))
        and read("data") == array.__array_interface__["data"][0]
        and read32("nd") == array.ndim
        and vector("dims") == array.shape
        and vector("strides") == array.strides
        and read("descr") == id(array.dtype)
        and bool(flags & C_CONTIGUOUS) == array.flags.c_contiguous
        and bool(flags & WRITEABLE) == array.flags.writeable
    )


def _word(x: object, at: int) -> int:
    return int(ctypes.c_int64.from_address(id(x) + at).value)


def _bits(x: float) -> int:
    return int(struct.unpack("q", struct.pack("d", x))[0])


def _others_agree() -> bool:
    """Whether tuples, lists and numbers are where generated code looks for them."""
    items, text = (object(), object(), object()), bytes(range(176))
    rows = list(items)
    first = int(ctypes.c_int64.from_address(_word(rows, ITEMS)).value)
    number, double, single = complex(7.5, 1), (1.25, np.float64(-3.5)), np.float32(2.5)
    return (
        _word(items, SIZE) == _word(rows, SIZE) == len(items)
        and _word(items, ITEMS + 8) == id(items[1])
        and first == id(items[0])
        and ctypes.string_at(id(text) + BYTES, len(text)) == text
        and all(_word(x, FLOAT) == _bits(float(x)) for x in double)
        and ctypes.c_float.from_address(id(single) + FLOAT).value == single
        and (_word(number, FLOAT), _word(number, FLOAT + 8)) == (_bits(7.5), _bits(1.0))
    )


def slot_offset(instance: object, name: str) -> int:
    """Where an object keeps one of its slots: the word that points to what is in it.

    Raises:
        ValueError: there is no such word, or more than one.
    """
    wanted, size = id(getattr(instance, name)), type(instance).__basicsize__
    found = [at for at in range(16, size, 8) if _word(instance, at) == wanted]
    (at,) = found
    return at


@cache
def verified() -> bool:
    """Whether arrays and other objects look as generated code assumes."""
    if struct.calcsize("P") != 8 or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    try:
        plain = np.arange(15, dtype=np.float32).reshape(3, 5)
        frozen = np.arange(24, dtype=np.float64).reshape(4, 6)[::2, ::-1]
        frozen.flags.writeable = False
        arrays = _entry(_ARRAY_TYPE) == id(np.ndarray) and _agrees(plain) and _agrees(frozen)
        return arrays and _others_agree()
    except (AttributeError, ValueError, OSError):
        return False


def data_address(x: np.ndarray) -> int:
    """Where the first element is; for plain arrays in a fifth of the array interface's time."""
    if type(x) is np.ndarray and verified():
        return int(ctypes.c_int64.from_address(id(x) + OFFSETS["data"]).value)
    return int(x.__array_interface__["data"][0])
