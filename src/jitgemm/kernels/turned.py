"""Few rows times a B whose columns are contiguous: B is turned in registers while it is read.

A column of such a B runs along the depth.  A block of as many depth steps as columns fit a vector
is loaded a column at a time, every cache line once and whole, and transposed in registers; then its
depth steps are ordinary vectors of B.  So a matrix times a vector, ``x @ w.T`` for few rows and the
like read their operand once, in place, and each element is still one ascending chain per depth
block: the bits are those of every other route.
"""

from __future__ import annotations

from collections.abc import Callable

from jitgemm.kernels.spec import GemmSpec
from jitgemm.kernels.transpose import transpose
from jitgemm.lang.core import Int, Kernel, Mask, Ptr, Var, Vec

__all__ = ["BlocksOfB"]

_WORD = 8


class BlocksOfB:
    """Walks ``vectors`` times a vector's worth of columns along the depth, block by block."""

    def __init__(
        self, k: Kernel, spec: GemmSpec, at: Ptr, stride: Int, cols: tuple[Int, range]
    ) -> None:
        count, self.vectors = cols
        self.stride = stride
        self.k, self.spec = k, spec
        self.per = spec.lanes // spec.parts
        self.at = k.var(at)
        # Columns that do not exist repeat the first: they raise no flag of their own.  A table of
        # offsets serves whole and partial tiles alike and needs no register per column.
        self.offsets = k.scratch(len(self.vectors) * self.per * _WORD)
        for c in range(len(self.vectors) * self.per):
            exists = k.const(c * spec.parts) < count
            k.store_int(self.offsets + c * _WORD, k.select(exists, stride * c, k.const(0)))

    def _block(self, j: int, mask: Mask | None) -> list[Vec]:
        """A depth step per vector."""
        k, spec = self.k, self.spec
        loaded = []
        for c in range(self.per):
            p = self.at.value + k.load_int(self.offsets + (j * self.per + c) * _WORD)
            loaded.append(k.load(p, spec.element, spec.lanes, mask))
        return transpose(k, loaded, spec.parts)

    def multiply(
        self,
        a: tuple[Var[Ptr], Int, Int],
        depth: Int,
        sums: dict[tuple[int, int], Var[Vec]],
    ) -> None:
        """Add ``depth`` steps to the sums; ``a`` is where A begins, its row and depth strides."""
        k, spec = self.k, self.spec
        at_a, row, col = a
        reals = sorted({i for i, _ in sums})

        def add(at: Ptr, vector: Vec, j: int) -> None:
            for i in reals:
                p = at + row * (i // spec.parts) + i % spec.parts * spec.element.bytes
                splat = k.splat(k.load(p, spec.element), spec.lanes)
                cell = sums[i, j]
                cell.value = k.op("madd", splat, vector, cell.value)

        # No vector from here on lies in two lines, if all columns agree: a line that is met twice
        # may have been pushed out in between (colliding columns: 34 GB/s without, 60 with it from
        # L2, Zen 5, 2026-11-30).
        size = spec.lanes * spec.element.bytes
        over = k.misalignment(self.at.value, size)
        first = (size - over) % size // spec.unit
        agree = (self.stride % size).equals(0) & (over % spec.unit).equals(0)
        peel = k.min(k.select(agree, first, k.const(0)), depth)
        self._rest(at_a.value, col, peel, add)
        at_a.value = at_a.value + peel * col
        self.at.value = self.at.value + peel * spec.unit
        whole = (depth - peel) // self.per * self.per
        for _ in k.range(0, whole, self.per):
            end = at_a.value
            for j in self.vectors:
                end = at_a.value
                for vector in self._block(j, None):
                    add(end, vector, j)
                    end = k.opaque(end + col)
            at_a.value = end
            self.at.value = self.at.value + self.per * spec.unit
        self._rest(at_a.value, col, depth - peel - whole, add)

    def _rest(self, at_a: Ptr, col: Int, rest: Int, add: Callable[[Ptr, Vec, int], None]) -> None:
        """The last depth steps, fewer than a block."""
        k, spec = self.k, self.spec
        width = spec.lanes * spec.element.bytes
        for _ in k.when(rest > 0):
            mask = k.mask(rest * spec.parts, spec.element, spec.lanes)
            buffer = k.scratch(self.per * width)
            for j in self.vectors:
                for p, vector in enumerate(self._block(j, mask)):
                    k.store(buffer + p * width, vector)
                for q in k.range(0, rest):
                    add(at_a + q * col, k.load(buffer + q * width, spec.element, spec.lanes), j)
