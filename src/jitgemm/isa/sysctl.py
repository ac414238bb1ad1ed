"""What macOS says of the machine: one number per name.

Written from Apple's documentation and never run: no machine with macOS was at hand.
"""

from __future__ import annotations

import ctypes

__all__ = ["number"]


def number(name: str) -> int | None:
    """The integer that ``sysctlbyname`` has under ``name``; ``None`` where there is none.

    Systems that have no such function have none of the names.
    """
    ask = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    if ask is None:
        return None
    # Names are of 4 or of 8 bytes; either way the low ones come first and the others stay zero.
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    ask.restype = ctypes.c_int
    ask.argtypes = [
        ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
    ]  # fmt: skip
    if ask(name.encode(), ctypes.addressof(value), ctypes.addressof(size), None, 0) != 0:
        return None
    return value.value
