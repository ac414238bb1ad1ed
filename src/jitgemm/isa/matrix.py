"""Operations of a matrix unit: what LLVM calls each one, and what it means.

A tile register holds up to :data:`TILE_ROWS` rows of :data:`TILE_BYTES` bytes, words of four bytes.
One operation adds the product of a tile of A and a tile of B to a tile of sums: row ``i``, column
``j`` gains the product of A's words of row ``i`` and B's words of column ``j``.  A word holds four
8-bit integers or two bfloat16, steps of depth in ascending order, as those of ``dot4`` and
``bf16_dot`` do; so both kinds of kernel read the same micropanels.

Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2 (TDPBSSD and its
kin, TDPBF16PS); volume 1, chapter 18 (tile configuration).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgemm.isa import exact
from jitgemm.isa.ops import flushed
from jitgemm.isa.types import BF16, ElementType

__all__ = ["AMX", "TILES", "TILE_BYTES", "TILE_ROWS", "TILE_WORDS", "MatrixOp", "product_name"]

TILES = 8
TILE_ROWS = 16
TILE_BYTES = 64
TILE_WORDS = TILE_BYTES // 4


@dataclass(frozen=True, slots=True)
class MatrixOp:
    """One operation on three tiles: sums, A, B."""

    intrinsic: str
    """Of LLVM, on numbers of tile registers."""
    meaning: Callable[[Any, Any, Any], Any]
    """The new sums from arrays of words: sums ``(r, c)``, A ``(r, w)``, B ``(w, c)``."""


def product_name(a: ElementType, b: ElementType) -> str:
    """The operation that multiplies numbers of these types: all of 8 bits, or both bfloat16."""
    if a is BF16:
        return "tile_bf16"
    return f"tile_{'us'[a.signed]}{'us'[b.signed]}"


def _integers(a_type: type, b_type: type) -> Callable[[Any, Any, Any], Any]:
    def meaning(sums: Any, a: Any, b: Any) -> Any:
        x = a.view(a_type).reshape(a.shape[0], -1).astype(np.int64)
        y = b.T.copy().view(b_type).reshape(b.shape[1], -1).astype(np.int64)
        total = sums.astype(np.int64) + x @ y.T
        return total.astype(np.uint64).astype(np.uint32).view(np.int32)

    return meaning


def _bf16(sums: Any, a: Any, b: Any) -> Any:
    """Even and odd steps of depth in a chain each, from zero; their sum is added to the sums.

    Subnormal numbers count as zeros, all is rounded to nearest even, and no flag is raised.
    """

    def numbers(words: Any, part: int) -> Any:
        halves = words.view(np.uint16).reshape(*words.shape, 2)[..., part].astype(np.uint32)
        return flushed((halves << np.uint32(16)).view(np.float32))

    total = np.zeros((2, *sums.shape), np.float32)
    for part in range(2):
        x, y = numbers(a, part), numbers(b, part)
        for w in range(x.shape[1]):
            left, right = np.broadcast_arrays(x[:, w : w + 1], y[w : w + 1])
            total[part] = flushed(exact.fma(left.copy(), right.copy(), total[part]))
    return flushed(np.add(flushed(np.add(total[0], total[1])), flushed(sums)))


AMX: Mapping[str, MatrixOp] = {
    "tile_ss": MatrixOp("llvm.x86.tdpbssd", _integers(np.int8, np.int8)),
    "tile_su": MatrixOp("llvm.x86.tdpbsud", _integers(np.int8, np.uint8)),
    "tile_us": MatrixOp("llvm.x86.tdpbusd", _integers(np.uint8, np.int8)),
    "tile_uu": MatrixOp("llvm.x86.tdpbuud", _integers(np.uint8, np.uint8)),
    "tile_bf16": MatrixOp("llvm.x86.tdpbf16ps", _bf16),
}
