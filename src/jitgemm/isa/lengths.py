"""Vector lengths that the machine decides about: those of SVE and of streaming SVE.

Sources: Linux, Documentation/arch/arm64/sve.rst and sme.rst (``PR_SVE_GET_VL``,
``PR_SME_GET_VL``); macOS, ``sysctl hw.optional.arm.sme_max_svl_b``.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable
from functools import cache

from jitgemm.isa import sysctl

__all__ = ["SMALLEST", "darwin_bits", "linux_bits", "on_arm", "streaming_bits", "sve_bits"]

SMALLEST = 128
"""Bits of the shortest vector; all are a power of two times it, to 2048 bits."""

_LENGTHS = frozenset(SMALLEST << n for n in range(5))
_SVE_GET, _SME_GET, _LENGTH = 51, 64, 0xFFFF


def _bits(nbytes: int) -> int:
    """Bits of a vector of so many bytes; 0 if none has so many, or the system refused to say."""
    return 8 * nbytes if 8 * nbytes in _LENGTHS else 0


def linux_bits(ask: Callable[[int], int]) -> tuple[int, int]:
    """Bits of a vector and of a streaming vector; 0 of what is not there.

    Args:
        ask: ``prctl`` with one argument; negative where it refuses.
    """

    def bits(option: int) -> int:
        answer = ask(option)
        return 0 if answer < 0 else _bits(answer & _LENGTH)

    return bits(_SVE_GET), bits(_SME_GET)


def darwin_bits(ask: Callable[[str], int | None]) -> tuple[int, int]:
    """The same on macOS, whose processors have streaming vectors only.  Never run on a Mac.

    Args:
        ask: a number by its name, ``None`` where there is none (:func:`jitgemm.isa.sysctl.number`).
    """
    return 0, _bits(ask("hw.optional.arm.sme_max_svl_b") or 0)


def on_arm() -> bool:
    """Whether this is a process of AArch64: elsewhere the same questions mean something else."""
    # A process of 64 bits with the personality of 32 ones is told "armv8l".
    return platform.machine().lower().startswith(("aarch64", "arm")) and sys.maxsize > 1 << 32


def _prctl(option: int) -> int:
    call = ctypes.CDLL(None).prctl
    call.restype = ctypes.c_int
    return int(call(ctypes.c_int(option), *(ctypes.c_ulong(0) for _ in range(4))))


@cache
def _here() -> tuple[int, int]:
    # An attribute of threads, which new ones inherit: a fork keeps it, a program that is executed
    # may have another.  So nothing may keep it longer than a process lasts.
    if on_arm() and sys.platform == "darwin":
        return darwin_bits(sysctl.number)
    if on_arm() and sys.platform.startswith("linux"):
        return linux_bits(_prctl)
    return 0, 0


def sve_bits() -> int:
    """Bits of a vector of SVE in this process; 0 where there is no SVE."""
    return _here()[0]


def streaming_bits() -> int:
    """Bits of a vector in streaming mode in this process; 0 where there is no SME."""
    return _here()[1]
