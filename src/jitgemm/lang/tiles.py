"""Tile registers in the checking interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgemm.errors import LanguageError
from jitgemm.isa.matrix import TILE_BYTES, TILE_ROWS, TILES, MatrixOp
from jitgemm.lang.memory import Memory

__all__ = ["TileRegisters"]

_PALETTE = 64
_WORD = 4
_WIDTHS, _HEIGHTS = 16, 48  # where a palette has them


class TileRegisters:
    """What tiles hold, and the shapes they have been given."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.shapes: list[tuple[int, int]] = []
        self.held: dict[int, Any] = {}

    def configure(self, at: int) -> None:
        """Take shapes from a palette: byte 0 is 1, then bytes per row and rows of each tile."""
        palette = self.memory.read(at, _PALETTE)
        widths = palette[_WIDTHS : _WIDTHS + 2 * TILES].view(np.uint16)
        heights = palette[_HEIGHTS : _HEIGHTS + TILES]
        self.shapes = [(int(r), int(w)) for r, w in zip(heights, widths, strict=True)]
        for rows, width in self.shapes:
            fits = 0 < rows <= TILE_ROWS and 0 < width <= TILE_BYTES and width % _WORD == 0
            # A tile without rows has no width either: it may not be used.
            if palette[0] != 1 or not (fits or rows == width == 0):
                raise LanguageError(f"no palette: {palette[0]}, {rows} rows of {width} bytes")
        self.held = {}

    def release(self) -> None:
        """Forget shapes and contents."""
        self.shapes, self.held = [], {}

    def _shape(self, tile: int) -> tuple[int, int]:
        if not 0 <= tile < TILES or not self.shapes or not self.shapes[tile][0]:
            raise LanguageError(f"tile {tile} has no shape")
        return self.shapes[tile]

    def zero(self, tile: int) -> None:
        """All bytes zero."""
        rows, width = self._shape(tile)
        self.held[tile] = np.zeros((rows, width), np.uint8)

    def load(self, tile: int, at: int, stride: int) -> None:
        """Rows ``stride`` bytes apart."""
        rows, width = self._shape(tile)
        self.held[tile] = np.array([self.memory.read(at + i * stride, width) for i in range(rows)])

    def _value(self, tile: int) -> Any:
        self._shape(tile)
        if tile not in self.held:
            raise LanguageError(f"tile {tile} is read before anything is put into it")
        return self.held[tile]

    def store(self, tile: int, at: int, stride: int) -> None:
        """Rows ``stride`` bytes apart."""
        for i, row in enumerate(self._value(tile)):
            self.memory.write(at + i * stride, row)

    def fold(self, op: MatrixOp, kind: np.dtype[Any], tiles: tuple[int, int, int]) -> None:
        """``op`` on the tiles of sums, A and B."""
        total, a, b = (self._value(t) for t in tiles)
        if (a.shape[0], b.shape[1], a.shape[1] // _WORD) != (*total.shape, b.shape[0]):
            raise LanguageError(f"tiles of shapes {total.shape}, {a.shape}, {b.shape}")
        with np.errstate(all="ignore"):
            words = op.meaning(total.view(kind), a.view(kind), b.view(kind))
        self.held[tiles[0]] = np.ascontiguousarray(words, kind).view(np.uint8)
