"""What the operating system must be asked before a matrix unit may be used."""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache

__all__ = ["linux_tile_data"]

# x86-64 system call number, its request, and the number of the processor's state component.
_ARCH_PRCTL, _ASK, _TILE_DATA = 158, 0x1023, 18


@cache
def linux_tile_data() -> bool:
    """Ask Linux to let this process use AMX's tile registers; whether it does.

    Linux wants to be asked, because signal frames grow by 8 KiB, and refuses if a thread has set up
    too small a stack for signals (``ARCH_REQ_XCOMP_PERM``, Documentation/arch/x86/xstate.rst).
    Threads and forked processes have the permission of their process.  Other systems, and other
    machines, on which the number is another call's, are not asked.
    """
    wide = sys.maxsize > 1 << 32
    if not (sys.platform.startswith("linux") and platform.machine() == "x86_64" and wide):
        return False
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return bool(call(*(ctypes.c_long(x) for x in (_ARCH_PRCTL, _ASK, _TILE_DATA))) == 0)
