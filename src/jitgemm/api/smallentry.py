"""Small products, which need no plan: their tables, filled as types are met."""

from __future__ import annotations

import numpy as np

from jitgemm.api.operands import Array
from jitgemm.isa.types import F32, F64, ElementType
from jitgemm.jit import compiler
from jitgemm.kernels.registry import columns_tile, tile_for
from jitgemm.kernels.spec import BSource, Epilogue, GemmSpec
from jitgemm.runtime import numpy_abi
from jitgemm.runtime.driver import scalar_slot
from jitgemm.runtime.engine import engine, record_array
from jitgemm.runtime.memory import address
from jitgemm.runtime.packed import element_dtype
from jitgemm.runtime.small_code import SMALL

__all__ = ["SmallTable"]

# Up to this size a product needs no plan: one chunk, both operands read in place.  At 64^3 the work
# (2 us) begins to pay for planning.
_SMALL_LIMIT = 64
# Elements of all rows of a small dot product: far fewer operations than those for which others
# release the interpreter lock.
_DOT_LIMIT = 1 << 14
_TYPES: tuple[ElementType, ...] = (F32, F64)


class SmallTable:
    """What one function computes without a plan: operands of few dimensions, of known types.

    Args:
        least: dimensions of A and B, at least.
        most: at most.
        dots: whether matrices are rows of vectors, each multiplied with its like.
    """

    def __init__(
        self, least: tuple[int, int], most: tuple[int, int], *, dots: bool = False
    ) -> None:
        self._table = record_array(SMALL.slots)
        self._least, self._most, self._dots = least, most, dots
        self._code: list[compiler.Compiled] = []  # keeps the pages of what the table names

    @property
    def where(self) -> int:
        """Address of the table."""
        return address(self._table.view(np.uint8))

    def begin(self) -> None:
        """Fill in what does not depend on types."""
        tile = tile_for(F32, engine().isa)
        values = {
            "array_type": id(np.ndarray),
            "new_from_descr": numpy_abi.new_from_descr(),
            "new_scalar": numpy_abi.new_scalar(),
            "limit": _SMALL_LIMIT,
            "depth_limit": _SMALL_LIMIT,
            "dot_limit": _DOT_LIMIT,
            "dots": int(self._dots),
            "mr": tile.mr,
        }
        for name, least, most in zip("ab", self._least, self._most, strict=True):
            values |= {f"{name}_least": least, f"{name}_most": most}
        values |= {f"group_{rows}": tile.group_for(rows) for rows in range(1, tile.mr + 1)}
        self._set(values)

    def forget(self) -> None:
        """Know no types any more."""
        self._set({f"{x}_{i}": 0 for x in ("descr", "column_nest") for i in range(len(_TYPES))})

    def _set(self, values: dict[str, int]) -> None:
        for name, value in values.items():
            self._table[SMALL.slot(name)] = value

    def learn(self, left: Array, right: Array) -> bool:
        """Compile what operands like these need; whether that was anything new."""
        if type(left) is not np.ndarray or type(right) is not np.ndarray:
            return False
        if left.dtype is not right.dtype or not self._is_small(left, right):
            return False
        for i, element in enumerate(_TYPES):
            if element_dtype(element) is left.dtype:
                column = self._is_column(left, right)
                new = not self._table[SMALL.slot(f"descr_{i}")]
                if new:
                    self._learn_type(i, element)
                if column and not self._table[SMALL.slot(f"column_nest_{i}")]:
                    self._learn_columns(i, element)
                    new = True
                return bool(new)
        return False

    def _is_small(self, left: Array, right: Array) -> bool:
        dense = left.flags.c_contiguous and right.flags.c_contiguous
        if not dense or not left.size or not right.size:
            return False
        sizes = zip(self._least, (left.ndim, right.ndim), self._most, strict=True)
        if not all(least <= n <= most for least, n, most in sizes):
            return False
        most = _DOT_LIMIT if left.ndim == 1 or self._dots else _SMALL_LIMIT
        return bool(max(*left.shape, *right.shape) <= most)

    @staticmethod
    def _is_column(left: Array, right: Array) -> bool:
        return left.ndim == 2 and min(left.shape) > 1 and right.size == left.shape[-1]

    def _learn_type(self, i: int, element: ElementType) -> None:
        isa = engine().isa
        spec = GemmSpec(element, isa, tile_for(element, isa), BSource.INPLACE, Epilogue())
        compiled = compiler.get(compiler.gemm_unit(spec))
        self._code.append(compiled)
        self._set(
            {
                f"size_{i}": element.bytes,
                f"panel_{i}": spec.panel_row,
                f"one_{i}": scalar_slot(1.0, element.bytes),
                f"nest_{i}": compiled.addresses[f"{spec.symbol}_serial"],
                f"dot_{i}": compiled.addresses[f"{spec.symbol}_dot"],
            }
        )
        # Last: from here on it is used.
        self._set({f"descr_{i}": id(element_dtype(element))})

    def _learn_columns(self, i: int, element: ElementType) -> None:
        isa = engine().isa
        tile = columns_tile(tile_for(element, isa), isa, 1)
        spec = GemmSpec(element, isa, tile, BSource.COLUMNS, Epilogue())
        compiled = compiler.get(compiler.gemm_unit(spec))
        self._code.append(compiled)
        self._set({f"column_nr_{i}": spec.nr})
        self._set({f"column_nest_{i}": compiled.addresses[f"{spec.symbol}_serial"]})
