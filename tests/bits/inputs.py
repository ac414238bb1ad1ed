"""Numbers that are the same on every machine: integers of splitmix64, times powers of two.

NumPy's generators may change between versions, and functions such as ``sin`` between platforms.
Here are only shifts, multiplications modulo ``2**64`` and powers of two, which are exact.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from oracle import BF16, Array, is_complex

__all__ = ["numbers", "words"]

# Bits of a significand, the implicit one included.
_SIGNIFICAND = {np.dtype(np.float16): 11, BF16: 8, np.dtype(np.float32): 24,
                np.dtype(np.float64): 53}  # fmt: skip


def words(name: str, count: int) -> NDArray[np.uint64]:
    """``count`` words of 64 bits, as splitmix64 makes them from a seed that the name decides."""
    steps = np.arange(1, count + 1, dtype=np.uint64)
    z = np.uint64(zlib.crc32(name.encode())) + steps * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def numbers(name: str, shape: tuple[int, ...], dtype: object) -> Array:
    """Numbers of a type: integers over its whole range, or floats of both signs below 8.

    Floats fill their significand and lie in several binades, so that the order and the rounding of
    a sum show in its bits.
    """
    dtype, count = np.dtype(dtype), int(np.prod(shape, dtype=np.int64))
    if is_complex(dtype):
        part = np.dtype(f"f{dtype.itemsize // 2}")
        both = [numbers(f"{name} {x}", shape, part) for x in ("real", "imaginary")]
        return np.stack(both, axis=-1).view(dtype)[..., 0]
    z = words(name, count).reshape(shape)
    if dtype.kind in "iu":
        return (z >> np.uint64(64 - 8 * dtype.itemsize)).astype(f"u{dtype.itemsize}").view(dtype)
    digits = _SIGNIFICAND[dtype]
    whole = (z >> np.uint64(64 - digits)).astype(np.int64) - (1 << (digits - 1))
    binade = (z & np.uint64(7)).astype(np.int32) - 4
    return np.ldexp(whole.astype(np.float64), binade - (digits - 1)).astype(dtype)
