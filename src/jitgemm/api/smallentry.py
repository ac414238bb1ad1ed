"""The generated entries of small products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jitgemm.api.gufuncs import Gufunc
from jitgemm.api.operands import Array
from jitgemm.isa.types import F32, F64, ElementType
from jitgemm.jit import compiler
from jitgemm.kernels.registry import columns_tile, tile_for
from jitgemm.kernels.spec import BSource, Epilogue, GemmSpec
from jitgemm.runtime import numpy_abi
from jitgemm.runtime.driver import scalar_slot
from jitgemm.runtime.engine import engine, record_array, usable
from jitgemm.runtime.packed import element_dtype
from jitgemm.runtime.small_code import SMALL

__all__ = ["SmallEntry"]

# Up to this size a product needs no plan: one chunk, both operands read in place.  At 64^3 the work
# (2 us) begins to pay for planning.
_SMALL_LIMIT = 64
# Elements of all rows of a small dot product: far fewer operations than those for which others
# release the interpreter lock.
_DOT_LIMIT = 1 << 14
_TYPES: tuple[ElementType, ...] = (F32, F64)


class SmallEntry:
    """The entry of one function, made at the first call; what it does not expect goes to ``slow``.

    ``slow`` must live as long as the entry: its address is in the table.
    """

    def __init__(self, function: Gufunc, slow: Callable[..., Any]) -> None:
        self._function, self._slow = function, slow
        self._table: Any = None
        self._code: list[compiler.Compiled] = []  # keeps the pages of what the table names
        self.call: Callable[[Any, Any, Any, Any], Any] = self._first

    def _first(self, x1: Any, x2: Any, out: Any, threads: Any) -> Any:
        self.call = self._build() if usable() and engine().native else self._slow
        return self.call(x1, x2, out, threads)

    def _build(self) -> Callable[[Any, Any, Any, Any], Any]:
        e = engine()
        table = record_array(SMALL.slots)
        tile = tile_for(F32, e.isa)
        dots = self._function.cores[2] == 0
        values: dict[str, int] = {
            "array_type": id(np.ndarray),
            "slow": id(self._slow),
            "none": id(None),
            "new_from_descr": numpy_abi.new_from_descr(),
            "new_scalar": numpy_abi.new_scalar(),
            "limit": _SMALL_LIMIT,
            "depth_limit": _SMALL_LIMIT,
            "dot_limit": _DOT_LIMIT,
            "dots": int(dots),
            "mr": tile.mr,
        }
        for name, core in zip("ab", self._function.cores, strict=False):
            # ``matmul`` takes vectors too, and ``vecdot`` rows of them.
            values[f"{name}_least"] = 1 if self._function.name == "matmul" else core
            values[f"{name}_most"] = 2 if dots else core
        for i, element in enumerate(_TYPES):
            spec = GemmSpec(element, e.isa, tile_for(element, e.isa), BSource.INPLACE, Epilogue())
            values[f"descr_{i}"] = id(element_dtype(element))
            values[f"size_{i}"] = element.bytes
            values[f"panel_{i}"] = spec.panel_row
            values[f"one_{i}"] = scalar_slot(1.0, element.bytes)
            compiled = compiler.get(compiler.gemm_unit(spec))
            self._code.append(compiled)
            values[f"nest_{i}"] = compiled.addresses[f"{spec.symbol}_serial"]
            values[f"dot_{i}"] = compiled.addresses[f"{spec.symbol}_dot"]
        for rows in range(1, tile.mr + 1):
            values[f"group_{rows}"] = tile.group_for(rows)
        for name, value in values.items():
            table[SMALL.slot(name)] = value
        self._table = table
        return e.builtin("jitgemm_call_small", table)

    def learn_columns(self, left: Array, right: Array) -> None:
        """Let small matrices times one column enter, after the first that came this way.

        That one has compiled the kernel.
        """
        column = right.shape in ((left.shape[-1],), (left.shape[-1], 1))
        if self._table is None or left.ndim != 2 or not column:
            return
        dense = left.flags.c_contiguous and right.flags.c_contiguous
        if not dense or min(left.shape) < 2 or max(left.shape) > _SMALL_LIMIT:
            return
        isa = engine().isa
        for i, element in enumerate(_TYPES):
            nest = SMALL.slot(f"column_nest_{i}")
            if element_dtype(element) != left.dtype or self._table[nest]:
                continue
            tile = columns_tile(tile_for(element, isa), isa, 1)
            spec = GemmSpec(element, isa, tile, BSource.COLUMNS, Epilogue())
            compiled = compiler.get(compiler.gemm_unit(spec))
            self._code.append(compiled)
            self._table[SMALL.slot(f"column_nr_{i}")] = spec.nr
            # Last: from here on it is used.
            self._table[nest] = compiled.addresses[f"{spec.symbol}_serial"]
