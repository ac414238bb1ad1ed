"""Vector lengths that the machine decides about: those of SVE and of streaming SVE.

Sources: Linux, Documentation/arch/arm64/sve.rst and sme.rst (``PR_SVE_GET_VL``,
``PR_SME_GET_VL``); macOS, ``sysctl hw.optional.arm.sme_max_svl_b``.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache

__all__ = ["SMALLEST", "streaming_bits", "sve_bits"]

SMALLEST = 128
"""Bits of the shortest vector; all are a power of two times it, to 2048 bits."""

_SVE_GET, _SME_GET, _LENGTH = 51, 64, 0xFFFF


def _linux(request: int) -> int:
    """Bits of a vector in this process; 0 where there are none."""
    if not (sys.platform.startswith("linux") and platform.machine() == "aarch64"):
        return 0
    found = ctypes.CDLL(None, use_errno=True).prctl(request, 0, 0, 0, 0)
    return 0 if found < 0 else (int(found) & _LENGTH) * 8


def _darwin(name: bytes) -> int:
    """A number of ``sysctl``; 0 where there is none.  Written from its manual, never run."""
    if not (sys.platform == "darwin" and platform.machine() == "arm64"):
        return 0
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    call = ctypes.CDLL(None).sysctlbyname
    failed = call(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return 0 if failed else int(value.value)


@cache
def sve_bits() -> int:
    """Bits of a vector of SVE in this process; 0 where there is no SVE."""
    return _linux(_SVE_GET)


@cache
def streaming_bits() -> int:
    """Bits of a vector in streaming mode in this process; 0 where there is no SME."""
    return _linux(_SME_GET) or 8 * _darwin(b"hw.optional.arm.sme_max_svl_b")
