"""The floating-point environment as the C library has it: what controls rounding, and the flags."""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["FENV", "Fenv", "control", "controlled", "libm"]


@dataclass(frozen=True)
class Fenv:
    """``fenv_t`` and the bits in it."""

    words: int
    """Of 32 bits."""
    register: int
    """The word that holds what controls rounding."""
    controls: dict[str, int]
    """Its bits for certain kinds of arithmetic."""
    flags: int
    """Flags in the same word."""
    invalid: int
    """The flags as ``fetestexcept`` has them: from here on."""
    divide: int
    overflow: int
    every: int

    @property
    def mask(self) -> int:
        """All bits that a kind of arithmetic sets."""
        mask = 0
        for bits in self.controls.values():
            mask |= bits
        return mask


FENV = {
    # The x87 state, then MXCSR; flushed are results and operands.
    "x86_64": Fenv(
        8, 7, {"as found": 0, "flushed": 0x8040, "down": 0x2000, "to zero": 0x6000},
        flags=0x3F, invalid=1, divide=4, overflow=8, every=0x3F,
    ),
    # FPCR, then FPSR.
    "aarch64": Fenv(
        2, 0, {"as found": 0, "flushed": 1 << 24, "down": 2 << 22, "to zero": 3 << 22},
        flags=0, invalid=1, divide=2, overflow=4, every=0x1F,
    ),
}.get(platform.machine())  # fmt: skip
"""This machine's; ``None``: not known."""


def libm() -> ctypes.CDLL:
    """The library that has the functions."""
    return ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")


def _found(fenv: Fenv) -> ctypes.Array[ctypes.c_uint32]:
    environment = (ctypes.c_uint32 * fenv.words)()
    assert libm().fegetenv(environment) == 0
    return environment


def control() -> int:
    """What controls this thread's arithmetic, without flags."""
    assert FENV is not None
    return _found(FENV)[FENV.register] & ~FENV.flags


@contextmanager
def controlled(kind: str) -> Iterator[int]:
    """Arithmetic of a kind; gives what :func:`control` must say of it."""
    assert FENV is not None
    environment = _found(FENV)
    before = environment[FENV.register]
    environment[FENV.register] = wanted = (before & ~FENV.mask) | FENV.controls[kind]
    try:
        libm().fesetenv(environment)
        yield wanted & ~FENV.flags
    finally:
        environment[FENV.register] = before
        libm().fesetenv(environment)
