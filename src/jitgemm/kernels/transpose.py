"""Transposing a block of vectors in registers."""

from __future__ import annotations

from jitgemm.lang.core import Kernel, Vec

__all__ = ["transpose"]


def transpose(k: Kernel, rows: list[Vec], unit: int = 1) -> list[Vec]:
    lanes = rows[0].lanes
    count = lanes // unit
    out = list(rows)
    d = count // 2
    while d:
        for i in range(count):
            if i & d:
                continue
            a, b = out[i], out[i | d]
            low = [l if not (l // unit) & d else lanes + l - d * unit for l in range(lanes)]
            high = [l + d * unit if not (l // unit) & d else lanes + l for l in range(lanes)]
            out[i], out[i | d] = k.shuffle(a, b, low), k.shuffle(a, b, high)
        d //= 2
    return out
