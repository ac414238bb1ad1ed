"""Memory exchanged through DLPack in storage types that NumPy's own reader does not know."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from jitgemm.isa.conversions import dtype_of
from jitgemm.isa.formats import Format
from jitgemm.isa.types import BY_NAME

__all__ = ["stored_bits"]

_CPU = 1
_VERSION = (1, 0)
_READ_ONLY = 1
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
    )  # fmt: skip


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


class _Owner:
    """Keeps the capsule, which keeps the memory."""

    def __init__(self, capsule: object, interface: dict[str, Any]) -> None:
        self.capsule, self.__array_interface__ = capsule, interface


def _described(capsule: object) -> tuple[_Tensor, bool] | None:
    """What a capsule holds, and whether it may be written; ``None`` if it is another version."""
    valid, get = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
    valid.argtypes, valid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
    get.argtypes, get.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    if valid(capsule, _VERSIONED):
        whole = _Versioned.from_address(get(capsule, _VERSIONED))
        if whole.major != _VERSION[0]:
            return None
        return whole.tensor, not whole.flags & _READ_ONLY
    if valid(capsule, _PLAIN):
        # Such a capsule does not say whether it may be written.
        return _Tensor.from_address(get(capsule, _PLAIN)), False
    return None


def stored_bits(x: Any) -> tuple[np.ndarray, Format] | None:
    """The memory of a tensor of a storage type on the CPU, as unsigned integers, and which it is.

    ``None`` if it is none.
    """
    try:
        capsule = x.__dlpack__(max_version=_VERSION)
    except TypeError:
        capsule = x.__dlpack__()
    found = _described(capsule)
    if found is None:
        return None
    tensor, writable = found
    kind = (x for x in BY_NAME.values() if x.format and x.format.dlpack == tensor.code)
    element = next((x for x in kind if x.bits == tensor.bits), None)
    if element is None or element.format is None or (tensor.device, tensor.lanes) != (_CPU, 1):
        return None
    dtype = dtype_of(element)
    shape, strides = tuple(tensor.shape[: tensor.ndim]), None
    if 0 in shape:
        return np.empty(shape, dtype), element.format
    if tensor.strides:
        strides = tuple(dtype.itemsize * s for s in tensor.strides[: tensor.ndim])
    interface = {
        "version": 3, "typestr": dtype.str, "shape": shape, "strides": strides,
        "data": (tensor.data + tensor.offset, not writable),
    }  # fmt: skip
    return np.asarray(_Owner(capsule, interface)), element.format
