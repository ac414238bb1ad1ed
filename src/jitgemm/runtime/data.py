"""The data of a call: numbers that kernels read from a job record and that are part of no plan.

Factors, conjugation, constants of an epilogue, zero points and scales may differ in each call of
one plan.  They fill the slots :data:`~jitgemm.kernels.job.DATA` of its job, as a record of bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jitgemm.isa.types import F64
from jitgemm.kernels.job import DATA, EPILOGUE_OPERANDS, TABLES
from jitgemm.kernels.spec import Axes, Scale
from jitgemm.planner.route import GemmPlan
from jitgemm.runtime.jobs import set_data
from jitgemm.runtime.numpy_abi import data_address

__all__ = ["DataLayout", "Factors", "Scalars", "Tables"]

_NARROW_SCALE = 1 - 2.0**-20

Tables = dict[str, np.ndarray]
"""Arrays a job record refers to, by its field: they must live as long as it is used."""

Factors = tuple[complex, complex, bool, bool]
"""Alpha, beta, and whether A and B are conjugated."""


# Not frozen: made in every call, and that would take twice as long.
@dataclass(slots=True, eq=False)
class Scalars:
    """Factors of a product, conjugation, and numbers per row or column, in its own orientation.

    A complex ``alpha`` or ``beta`` is a ``complex``; that of integers is an ``int``.  Numbers that
    differ between the products of a stack have batch axes before the last one: of length 1 where
    they do not vary, none before the first along which they do.
    """

    alpha: complex = 1.0
    beta: complex = 0.0
    conj_a: bool = False
    conj_b: bool = False
    constants: tuple[float, ...] = ()
    """Of the epilogue's program; those of integers are integers."""
    zero_a: np.ndarray | None = None
    """Zero points of A, int32: one, or one per row."""
    zero_b: np.ndarray | None = None
    """Zero points of B, int32: one, or one per column."""
    scales: np.ndarray | None = None
    """Of a requantisation, float64: one, or one per row or column."""
    rounding: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Of a requantisation: zero point, least and greatest result without it."""
    operands: tuple[np.ndarray, ...] = ()
    """Of the epilogue's programs, of the type it computes in: one number, or one per row, per
    column or per element, those of a row side by side."""

    def table(self, name: str) -> np.ndarray | None:
        """The numbers that a job's field points to."""
        if name in EPILOGUE_OPERANDS:
            index = EPILOGUE_OPERANDS.index(name)
            return self.operands[index] if index < len(self.operands) else None
        found: np.ndarray | None = getattr(self, name)
        return found

    @property
    def exchanged(self) -> Scalars:
        """Those of the product with A and B exchanged."""
        return replace(
            self, conj_a=self.conj_b, conj_b=self.conj_a, zero_a=self.zero_b, zero_b=self.zero_a
        )

    @property
    def factors(self) -> Factors:
        """All there is, if there are no numbers per row, column or program."""
        return self.alpha, self.beta, self.conj_a, self.conj_b

    @property
    def tabled(self) -> bool:
        """Whether there is more than factors."""
        return bool(self.constants) or any(self.table(x) is not None for x in TABLES)

    def strides(self, axes: int) -> dict[str, tuple[int, ...]]:
        """Bytes from one product's numbers to the next's, where they differ.

        By job field, along each of so many batch axes.
        """
        found: dict[str, tuple[int, ...]] = {}
        for name in TABLES if axes else ():
            table = self.table(name)
            if table is not None and table.ndim > 1:
                lead = zip(table.shape[:-1], table.strides[:-1], strict=True)
                still = (0,) * (axes - table.ndim + 1)
                found[name] = still + tuple(s if n > 1 else 0 for n, s in lead)
        return found

    def of_item(self, offsets: dict[str, int]) -> Scalars:
        """Those of one product of a stack, whose tables lie so many bytes after the first's."""
        own: dict[str, Any] = {}
        operands = list(self.operands)
        for name, offset in offsets.items():
            table = self.table(name)
            if table is None or table.ndim == 1:
                continue
            start = offset // table.itemsize
            item = table.reshape(-1)[start : start + table.shape[-1]]
            if name in EPILOGUE_OPERANDS:
                operands[EPILOGUE_OPERANDS.index(name)] = item
            else:
                own[name] = item
        return replace(self, operands=tuple(operands), **own)


# Slots of a record, in the native format, in which numbers beyond a float become infinite, as they
# should: factors and conjugation, others, and whether factors have imaginary parts.  By whether
# the epilogue computes in integers, by their size, and by the parts of a number.
_OTHERS = DATA[12:-2]
_FACTORS = {
    (True, 4, 1): "Q24xQ56x",
    (True, 8, 1): "Q24xQ56x",
    (False, 4, 1): "f28xf60x",
    (False, 8, 1): "d24xd56x",
    (False, 4, 2): "2f8x" * 6,
    (False, 8, 2): "12d",
}
_STRUCTS = {
    key: tuple(
        struct.Struct(text + others + ("2q" if key[2] == 2 else "16x"))
        for others in (f"{8 * len(_OTHERS)}x", f"{len(_OTHERS)}q")
    )
    for key, text in _FACTORS.items()
}


class DataLayout:
    """How the data of calls are laid out for one plan."""

    __slots__ = ("_exchanged", "_rows", "_shape", "_spec", "_tabled", "factors")

    factors: Callable[[Factors], bytes]
    """``factors(x)``: the record of a call that has no more, in the caller's orientation."""

    def __init__(self, plan: GemmPlan) -> None:
        self._spec = spec = plan.spec
        self._exchanged = plan.exchanged
        self._shape = plan.problem.m, plan.problem.n * plan.problem.components
        element = spec.epilogue_type
        bare, self._tabled = _STRUCTS[element.integral, element.bytes, spec.components]
        self.factors = self._packing(bare.pack)
        # Numbers from row to row of the operands of programs that have them.
        self._rows = tuple(
            (f"{name}_row", self._shape[1] if axes.by_column else 1)
            for name, axes in zip(EPILOGUE_OPERANDS, spec.epilogue.operands, strict=False)
            if axes.by_row
        )

    def record(self, scalars: Scalars) -> tuple[bytes, Tables]:
        """The record of a call, and the arrays it refers to.

        Args:
            scalars: in the caller's orientation.
        """
        mine = scalars.exchanged if self._exchanged else scalars
        tables = self._tables(mine)
        if not tables:
            return self.factors(scalars.factors), tables
        values = dict.fromkeys(_OTHERS, 0)
        for name, table in tables.items():
            values[name] = data_address(table)
        if mine.scales is not None:
            # Below, a scaled sum and a zero point together stay within 32 bits.
            values["wide_scales"] = int(mine.scales.max() > _NARROW_SCALE)
        for name, field in (("zero_a", "zero_a_row"), ("scales", "scale_row")):
            if name in tables and tables[name].size > 1:
                values[field] = tables[name].itemsize
        for field, count in self._rows:
            values[field] = count * self._spec.epilogue_type.bytes
        pack, others = self._tabled.pack, tuple(values.values())
        return self._packing(pack, others)(scalars.factors), tables

    def write(self, job: np.ndarray, scalars: Scalars) -> Tables:
        """Put the data of a call into its job, which refers to the arrays that are returned."""
        record, tables = self.record(scalars)
        set_data(job, record)
        return tables

    def _packing(
        self, pack: Callable[..., bytes], others: tuple[int, ...] = ()
    ) -> Callable[[Factors], bytes]:
        if self._spec.components == 2:
            exchanged = self._exchanged
            return lambda x: _pack_complex(pack, x, exchanged=exchanged)
        if self._spec.epilogue_type.integral:
            # Modulo 2**bits, and the whole slot, which generated code compares with 1.
            most = (1 << self._spec.epilogue_type.bits) - 1
            return lambda x: pack(int(x[0].real) & most, int(x[1].real) & most, *others)
        return lambda x: pack(x[0].real, x[1].real, *others)

    def _tables(self, scalars: Scalars) -> Tables:
        """Numbers per row, column and program, in the plan's orientation."""
        epilogue, how, columns = self._spec.epilogue, self._spec.arithmetic, self._shape[1]
        tables: Tables = {}
        if scalars.constants:
            element = self._spec.epilogue_type
            kind = ("iq" if element.integral else "fd")[element.bytes == F64.bytes]
            constants = struct.pack(f"{len(scalars.constants)}{kind}", *scalars.constants)
            tables["constants"] = np.frombuffer(constants, kind)
        if epilogue.zero_a:
            points = np.zeros(1, np.int32) if scalars.zero_a is None else scalars.zero_a
            if how.flip:
                points = points + np.int32(128 if how.types.a.signed else -128)
            tables["zero_a"] = points
        if epilogue.zero_b:
            assert scalars.zero_b is not None
            tables["zero_b"] = _spread(scalars.zero_b, columns)
        if epilogue.scale is not Scale.NONE:
            assert scalars.scales is not None
            scales, tables["rounding"] = scalars.scales, np.array(scalars.rounding)
            if epilogue.scale is Scale.COLUMN:
                # One for all is one per column where rows and columns have changed places.
                scales = _spread(scales, columns)
            tables["scales"] = scales
        for name, axes, x in zip(
            EPILOGUE_OPERANDS, epilogue.operands, scalars.operands, strict=False
        ):
            tables[name] = self._operand(axes, x)
        return tables

    def _operand(self, axes: Axes, x: np.ndarray) -> np.ndarray:
        """An operand of the epilogue's programs in the plan's orientation."""
        if axes is Axes.FULL and self._exchanged:
            m, n = self._shape
            turned = x.reshape(*x.shape[:-1], n, m).swapaxes(-1, -2)
            return np.ascontiguousarray(turned).reshape(x.shape)
        return x


def _pack_complex(pack: Callable[..., bytes], factors: Factors, *, exchanged: bool) -> bytes:
    alpha, beta, conj_a, conj_b = factors
    ar, ai, br, bi = alpha.real, alpha.imag, beta.real, beta.imag
    sign_a, sign_b = -1 if conj_a else 1, -1 if conj_b else 1
    if exchanged:
        sign_a, sign_b = sign_b, sign_a
    # (ar + sa ai i)(br + sb bi i) = (ar br - sa sb ai bi) + (sb ar bi + sa ai br) i
    signs = 1, sign_b, -sign_a * sign_b, sign_a
    return pack(ar, ar, -ai, ai, br, br, -bi, bi, *signs, ai != 0, bi != 0)


def _spread(x: np.ndarray, count: int) -> np.ndarray:
    """One number per column, side by side; those of a stack's products are so already."""
    return x if x.ndim > 1 or x.size == count else np.full(count, x[0], x.dtype)
