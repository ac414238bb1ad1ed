"""Where the operands of a microtile are.

A microkernel knows a tile by its record (``TILE``): pointers to the first number of each operand
that its epilogue reads or writes.  Which operands there are, and how each follows the rows and the
columns of the result, is one table; whoever walks tiles moves a :class:`TileCursor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jitgemm.isa.types import F64, I32, ElementType
from jitgemm.kernels.job import EPILOGUE_OPERANDS, OPERANDS
from jitgemm.kernels.spec import Bias, GemmSpec, Scale
from jitgemm.lang.core import Int, Kernel, Ptr
from jitgemm.lang.record import View

__all__ = ["RowWalk", "TileCursor", "TileMoves", "TileOperand", "tile_operands"]


@dataclass(frozen=True, slots=True)
class TileOperand:
    """An operand that a tile's record points to."""

    name: str
    """The job's pointer to it."""
    element: ElementType
    fields: tuple[str, ...]
    """The tile's pointers to it.  A tile's own row stride is the first one's name and ``_row``."""
    row: str = ""
    """The job's slot of bytes from row to row; empty: it does not vary along rows."""
    col: str = ""
    """Likewise from column to column, of numbers."""
    dense: bool = False
    """It varies along columns, and has its numbers side by side."""
    strided: bool = True
    """The tile has its row stride, which may be another one than the job's."""

    @property
    def varies_along_columns(self) -> bool:
        """Whether it has a number for each column."""
        return bool(self.col) or self.dense


def tile_operands(spec: GemmSpec) -> tuple[TileOperand, ...]:
    """The operands of a kernel's tiles: D first, then what its epilogue reads."""
    types, epilogue = spec.types, spec.epilogue
    found = [TileOperand("d", types.out, ("target", "partial"), "d_row", "d_col")]
    if epilogue.beta:
        found.append(TileOperand("c", types.c, ("c",), "c_row", "c_col"))
    if epilogue.bias is not Bias.NONE:
        row = "" if epilogue.bias is Bias.COLUMN else "bias_row"
        col = "" if epilogue.bias is Bias.ROW else "bias_col"
        found.append(TileOperand("bias", types.bias, ("bias",), row, col, strided=bool(row)))
    if epilogue.zero_a:
        found.append(TileOperand("zero_a", I32, ("zero_a",), "zero_a_row", strided=False))
    if epilogue.zero_b:
        found.append(TileOperand("zero_b", I32, ("zero_b",), dense=True, strided=False))
    if epilogue.scale is Scale.ROW:
        found.append(TileOperand("scales", F64, ("scales",), "scale_row", strided=False))
    if epilogue.scale is Scale.COLUMN:
        found.append(TileOperand("scales", F64, ("scales",), dense=True, strided=False))
    for name, axes in zip(EPILOGUE_OPERANDS, epilogue.operands, strict=False):
        row = f"{name}_row" if axes.by_row else ""
        kind = spec.epilogue_type
        found.append(TileOperand(name, kind, (name,), row, dense=axes.by_column, strided=False))
    return tuple(found)


class TileMoves:
    """Moves a tile's record from where it points."""

    def __init__(self, spec: GemmSpec, tile: View, skip: tuple[str, ...] = ()) -> None:
        """Know the operands to move.

        Args:
            spec: the kernel.
            tile: the tile's record.
            skip: operands that the caller moves itself.
        """
        self.spec, self.tile = spec, tile
        every = tile_operands(spec)
        self.operands = [x for x in every if x.name not in skip]
        # Those that have a step from one to the next of several tiles.
        self.followers = [x for x in every if x.name in (*OPERANDS, *EPILOGUE_OPERANDS)]
        self.indexed = any(x.uses("row") or x.uses("col") for x in spec.epilogue.programs)

    def right(self, columns: int) -> None:
        """Go on by some columns, whose numbers lie side by side in every operand."""
        for x in self.operands:
            for field in x.fields if x.varies_along_columns else ():
                self.tile.set(field, self.tile.pointer(field) + columns * x.element.bytes)
        if self.indexed:
            self.tile.set("col", self.tile.int("col") + columns)

    def next(self) -> None:
        """Go on to the next of several tiles (:meth:`TileCursor.set_next`)."""
        for x in self.followers:
            field = x.fields[0]
            self.tile.set(field, self.tile.pointer(field) + self.tile.int(f"next_{x.name}"))
        if self.indexed:
            self.tile.set("row", self.tile.int("row") + self.tile.int("next_row"))

    def rows(self, job: View) -> RowWalk:
        """A walk along the tile's rows, from the first one."""
        return RowWalk(self, job)


class TileCursor(TileMoves):
    """Points a tile's record at places of the result.

    Columns are counted in real components.
    """

    def __init__(
        self, k: Kernel, spec: GemmSpec, records: tuple[View, View], skip: tuple[str, ...] = ()
    ) -> None:
        """Read once what does not change from tile to tile.

        Args:
            k: the backend.
            spec: the kernel.
            records: the job's, and the tile's to be moved.
            skip: operands that the caller places itself.
        """
        super().__init__(spec, records[1], skip)
        self.k, self.job = k, records[0]
        self._base = {x.name: self.job.pointer(x.name) for x in self.operands}
        self._strides = {
            name: self.job.int(name) for x in self.operands for name in (x.row, x.col) if name
        }

    def set_strides(self) -> None:
        """Give the tile the row strides of the operands in memory."""
        for x in self.operands:
            for field in x.fields if x.strided else ():
                self.tile.set(f"{field}_row", self._strides[x.row])

    def to(self, i: Int, j: Int, moved: Mapping[str, Int] | None = None) -> None:
        """Point the tile at row ``i`` and column ``j``.

        Args:
            i: a row.
            j: a column.
            moved: bytes to add to operands' addresses, by name.
        """
        for x in self.operands:
            at = self._place(x, i, j)
            if moved is not None:
                at = at + moved[x.name]
            for field in x.fields:
                self.tile.set(field, at)
        if self.indexed:
            self.tile.set("row", i)
            self.tile.set("col", j)

    def _place(self, x: TileOperand, i: Int, j: Int) -> Ptr:
        """Where an operand's number of row ``i`` and column ``j`` is."""
        at = self._base[x.name]
        if x.row:
            at = at + i * self._strides[x.row]
        if x.col:
            at = at + j // self.spec.components * self._strides[x.col]
        return at + j * x.element.bytes if x.dense else at

    def set_next(self, rows: Int, a: Int) -> None:
        """The next of several tiles is ``rows`` rows further down, and ``a`` bytes further in A."""
        for x in self.followers:
            self.tile.set(f"next_{x.name}", rows * self._strides[x.row] if x.row else 0)
        for name, by in {"a": a, "b": self.k.const(0), "row": rows}.items():
            self.tile.set(f"next_{name}", by)


class RowWalk:
    """A tile's record moved down its rows, and back."""

    def __init__(self, moves: TileMoves, job: View) -> None:
        tile = moves.tile
        self._tile = tile
        self._starts = {
            field: (tile.pointer(field), tile.int(f"{field}_row") if x.strided else job.int(x.row))
            for x in moves.operands
            for field in (x.fields if x.row else ())
        }
        if moves.spec.epilogue.zero_b:
            self._starts["row_sums"] = tile.pointer("row_sums"), job.int("a_row")
        self._row = tile.int("row") if moves.indexed else None

    def to(self, i: Int) -> None:
        """Point the tile at its row ``i``."""
        for field, (start, step) in self._starts.items():
            self._tile.set(field, start + i * step)
        if self._row is not None:
            self._tile.set("row", self._row + i)

    def back(self) -> None:
        """Point it at the first one again."""
        for field, (start, _) in self._starts.items():
            self._tile.set(field, start)
        if self._row is not None:
            self._tile.set("row", self._row)
