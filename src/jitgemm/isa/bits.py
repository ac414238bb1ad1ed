"""Bit patterns of the floating-point formats, and operations on them in NumPy.

The constants fill the holes in capitals of :mod:`jitgemm.isa.ops`; the functions are meanings of
operations there, written with the same constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["FORMATS", "Format", "exponent", "head", "mantissa", "pow2", "scale"]


@dataclass(frozen=True, slots=True)
class Format:
    """Constants of one binary format, by the number of its bits."""

    floats: Mapping[str, float]
    ints: Mapping[str, int]
    """Bit patterns and shift counts, as non-negative integers of the format's width."""


def _format(bits: int, p: int, root: int) -> Format:
    """``p`` bits of significand are stored; ``root`` is the bit pattern of 1/sqrt(2)."""
    bias = (1 << (bits - p - 2)) - 1
    one = bias << p
    every = (1 << bits) - 1
    # 1.5 * 2**p: adding an integer to it, of either sign, leaves that integer in the last bits.
    shift_bits = ((bias + p) << p) | 1 << (p - 1)
    # A biased exponent in the last bits of SHIFT is a number this much above the exponent.
    offset = 1.5 * 2.0**p + bias
    return Format(
        floats={
            "SHIFT": 1.5 * 2.0**p,
            "WHOLE": 2.0**p,
            "TINY": 2.0 ** (1 - bias),
            "GROW": 2.0**p,
            "OFFSET": offset,
            "OFFSET_TINY": offset + p,
        },
        ints={
            "P": p,
            "I1": 1,
            "ONE": one,
            "SHIFT_BITS": shift_bits,
            # Carries into the exponent from 1/sqrt(2) on, so that mantissas surround 1.
            "BIAS": one - root,
            "EXPONENT": every ^ ((1 << p) - 1),
            # Half the significand, the bit that is not stored included.
            "HEAD": every ^ ((1 << (p // 2 + 1)) - 1),
        },
    )


FORMATS = {32: _format(32, 23, 0x3F3504F3), 64: _format(64, 52, 0x3FE6A09E667F3BCD)}


def _constants(a: Any) -> tuple[dict[str, Any], Any]:
    """All constants as scalars of ``a``'s type and of the unsigned one, and that type."""
    unsigned = np.dtype(f"u{a.dtype.itemsize}").type
    row = FORMATS[a.dtype.itemsize * 8]
    floats = {name: a.dtype.type(x) for name, x in row.floats.items()}
    return floats | {name: unsigned(x) for name, x in row.ints.items()}, unsigned


def head(a: Any) -> Any:
    """The upper half of the significand, cut."""
    c, unsigned = _constants(a)
    return (a.view(unsigned) & c["HEAD"]).view(a.dtype)


def pow2(a: Any) -> Any:
    """``2**a`` for integral ``a``."""
    c, unsigned = _constants(a)
    return (((a + c["SHIFT"]).view(unsigned) << c["P"]) + c["ONE"]).view(a.dtype)


def scale(a: Any, b: Any) -> Any:
    """``a * 2**b`` for integral ``b``, by two products."""
    c, unsigned = _constants(a)
    n = (b + c["SHIFT"]).view(unsigned)
    half = n >> c["I1"]
    for part in (half, n - half):
        a = a * ((part << c["P"]) + c["ONE"]).view(a.dtype)
    return a


def _normalised(a: Any) -> tuple[Any, Any]:
    c, _ = _constants(a)
    tiny = a < c["TINY"]
    return np.where(tiny, a * c["GROW"], a), tiny


def exponent(a: Any) -> Any:
    """The exponent of a positive finite number, its mantissa taken from [1/sqrt(2), sqrt(2))."""
    c, unsigned = _constants(a)
    x, tiny = _normalised(a)
    biased = (x.view(unsigned) + c["BIAS"]) >> c["P"]
    shifted = (biased + c["SHIFT_BITS"]).view(a.dtype)
    return shifted - np.where(tiny, c["OFFSET_TINY"], c["OFFSET"])


def mantissa(a: Any) -> Any:
    """``a`` divided by two to its :func:`exponent`."""
    c, unsigned = _constants(a)
    i = _normalised(a)[0].view(unsigned)
    return (i - ((i + c["BIAS"]) & c["EXPONENT"]) + c["ONE"]).view(a.dtype)
