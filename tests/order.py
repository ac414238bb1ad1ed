"""The documented order of a sum (contract 1), in NumPy: the one model of it.

Pairs are matrices of reals, several to be summed alike at once: the four products of the parts of
complex numbers.  ``madd(x, y, z)`` is ``x * y + z`` as the instruction set rounds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitgemm.isa import exact

__all__ = ["ascending", "chain_sums", "combined", "lane_sums", "multiply_add"]

Array = NDArray[Any]


def multiply_add(fused: bool) -> Callable[[Array, Array, Array], Array]:  # noqa: FBT001
    """One rounding, or two."""
    if not fused:
        return lambda x, y, z: np.asarray(np.add(np.multiply(x, y), z))

    def madd(x: Array, y: Array, z: Array) -> Array:
        x, y = np.broadcast_arrays(x, y)
        return exact.fma(x, y, z)

    return madd


def chain_sums(pairs: list[tuple[Array, Array]], step: int, madd: Any) -> Array:
    """Ascending chains from zero over blocks of ``step``: ``(pairs, blocks, m, n)``."""
    (m, k), n = pairs[0][0].shape, pairs[0][1].shape[1]
    blocks = max(1, -(-k // step))
    sums = np.zeros((len(pairs), blocks, m, n), pairs[0][0].dtype)
    for p in range(min(step, k)):
        # All blocks that are so long take their step at once.
        at = np.arange(p, k, step)
        left = np.stack([x[:, at].T[:, :, None] for x, _ in pairs])
        right = np.stack([y[at, None, :] for _, y in pairs])
        sums[:, : len(at)] = madd(left, right, sums[:, : len(at)])
    return sums


def lane_sums(pairs: list[tuple[Array, Array]], lanes: int, step: int, madd: Any) -> Array:
    """The order of one row times one column: lanes, added in halves at the end of each block."""
    depth = pairs[0][0].shape[1]
    missing = -depth % lanes
    spread = []
    for x, y in pairs:
        left, right = (np.pad(z.ravel(), (0, missing)).reshape(-1, lanes) for z in (x, y))
        spread.append((left, right))
    blocks = -(-spread[0][0].shape[0] // step)
    sums = np.zeros((len(pairs), blocks, lanes), pairs[0][0].dtype)
    for p in range(min(step, spread[0][0].shape[0])):
        left, right = (np.stack([s[side][p::step] for s in spread]) for side in (0, 1))
        count = left.shape[1]
        sums[:, :count] = madd(left, right, sums[:, :count])
    while sums.shape[-1] > 1:
        half = sums.shape[-1] // 2
        sums = sums[..., :half] + sums[..., half:]
    return sums[..., None]


def ascending(blocks: Array) -> Array:
    """Sums of blocks, the second axis, added from the first on."""
    total = blocks[:, 0]
    for i in range(1, blocks.shape[1]):
        total = total + blocks[:, i]
    return total


def combined(sums: Array, signs: tuple[int, int]) -> Array:
    """The parts of complex sums from ``rr, ii, ri, ir``."""
    if len(sums) == 1:
        return sums
    (rr, ii, ri, ir), (sign_a, sign_b) = sums, signs
    return np.stack([rr - sign_a * sign_b * ii, sign_b * ri + sign_a * ir])
