"""Formats of floating-point numbers that are stored and converted only: one row each.

A row is all there is to a storage type: how its bits become an ``f32`` and come from one, what
NumPy calls it, and of which types products of it are.  A conversion is an operation as in
:mod:`jitgemm.isa.ops`, whose text may name ``{v}`` and ``{w}``, the types of what it takes and
makes, ``{m}`` for masks, ``{half}`` and ``{i8}`` to ``{i64}`` for others of that shape, and as
``{i32:7}`` a constant in every lane.

``f16`` is converted by the machine's instructions where it has them, else in integer arithmetic,
and ``bf16``, the upper half of an ``f32``, always so, because the instructions for it treat
subnormal numbers as zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgemm.isa.ops import Op

__all__ = ["BF16_FORMAT", "F16_FORMAT", "Format"]


# Rows are compared by identity: a type that is registered anew is another one to all caches.
@dataclass(frozen=True, eq=False, slots=True)
class Format:
    """How numbers of a storage type are converted, and which types their products have."""

    name: str
    """What NumPy calls the type."""
    find: Callable[[], np.dtype[Any]]
    """Gives NumPy's type; what it is from is imported when it is first needed."""
    widen: Op
    """From the bits, as an unsigned integer, to an ``f32``, exactly."""
    narrow: Op
    """From an ``f32`` to the bits."""
    half: tuple[Op, Op] | None = None
    """Both on sets that have instructions for ``f16``."""
    product: np.dtype[Any] | None = None
    """Of two such numbers, or one and an 8-bit integer; ``None``: the type itself."""
    results: tuple[np.dtype[Any], ...] = ()
    """What else a product of two may be stored as, besides wider floats."""
    dlpack: int | None = None
    """DLPack's code of the type."""
    builtin: bool = True
    """Its text is part of the package."""

    def spelled(self, *, half: bool) -> tuple[Op, Op]:
        """Both conversions, as a set with or without instructions for ``f16`` spells them."""
        return self.half if half and self.half is not None else (self.widen, self.narrow)

    @property
    def text(self) -> tuple[str, ...]:
        """All that generated code depends on."""
        spellings = (self.widen, self.narrow), self.half or ()
        return tuple(f"{op.name}={op.text}" for ops in spellings for op in ops)


def _to_bf16(a: Any) -> Any:
    bits = a.view(np.uint32)
    even = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    quiet = bits | np.uint32(0x400000)
    return (np.where(np.isnan(a), quiet, even) >> np.uint32(16)).astype(np.uint16)


def _from_bf16(a: Any) -> Any:
    return (a.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _from_f16(a: Any) -> Any:
    return a.view(np.float16).astype(np.float32)


def _to_f16(a: Any) -> Any:
    with np.errstate(all="ignore"):
        return a.astype(np.float16).view(np.uint16)


_TO_BF16 = Op(
    "to_bf16",
    1,
    (
        "{t} = bitcast {v} {a} to {i32}",
        "{t1} = lshr {i32} {t}, {i32:16}",
        "{t2} = and {i32} {t1}, {i32:1}",
        "{t3} = add {i32} {t}, {i32:32767}",
        "{t4} = add {i32} {t3}, {t2}",
        "{t5} = or {i32} {t}, {i32:4194304}",
        "{t6} = fcmp uno {v} {a}, {a}",
        "{t7} = select {m} {t6}, {i32} {t5}, {i32} {t4}",
        "{t8} = lshr {i32} {t7}, {i32:16}",
        "{r} = trunc {i32} {t8} to {i16}",
    ),
    _to_bf16,
)
_FROM_BF16 = Op(
    "from_bf16",
    1,
    (
        "{t} = zext {v} {a} to {i32}",
        "{t1} = shl {i32} {t}, {i32:16}",
        "{r} = bitcast {i32} {t1} to {w}",
    ),
    _from_bf16,
)
_TO_F16 = Op(
    "to_f16",
    1,
    ("{t} = fptrunc {v} {a} to {half}", "{r} = bitcast {half} {t} to {i16}"),
    _to_f16,
)
_FROM_F16 = Op(
    "from_f16",
    1,
    ("{t} = bitcast {v} {a} to {half}", "{r} = fpext {half} {t} to {w}"),
    _from_f16,
)
# Without the instructions LLVM would call a library.  Exponent and significand of an f16 as those
# of an f32 are that number times 2**-112 exactly, subnormal numbers included.
_FROM_F16_BITS = Op(
    "from_f16",
    1,
    (
        "{t} = zext {v} {a} to {i32}",
        "{t1} = and {i32} {t}, {i32:32767}",
        "{t2} = shl {i32} {t1}, {i32:13}",
        "{t3} = bitcast {i32} {t2} to {w}",
        "{t4} = fmul {w} {t3}, {w:0x46F0000000000000}",
        "{t5} = bitcast {w} {t4} to {i32}",
        # Infinities, and NaNs, which become quiet ones.
        "{t6} = icmp ugt {i32} {t1}, {i32:31743}",
        "{t7} = or {i32} {t2}, {i32:2139095040}",
        "{ta} = icmp ugt {i32} {t1}, {i32:31744}",
        "{tb} = or {i32} {t7}, {i32:4194304}",
        "{tc} = select {m} {ta}, {i32} {tb}, {i32} {t7}",
        "{t8} = select {m} {t6}, {i32} {tc}, {i32} {t5}",
        "{t9} = and {i32} {t}, {i32:32768}",
        "{td} = shl {i32} {t9}, {i32:16}",
        "{te} = or {i32} {t8}, {td}",
        "{r} = bitcast {i32} {te} to {w}",
    ),
    _from_f16,
)
# Normal results by integer rounding of the significand, subnormal ones by adding 0.5, whose last
# bit is worth 2**-24, the least f16.
_TO_F16_BITS = Op(
    "to_f16",
    1,
    (
        "{t} = bitcast {v} {a} to {i32}",
        "{t1} = and {i32} {t}, {i32:2147483647}",
        "{t2} = bitcast {i32} {t1} to {v}",
        "{t3} = fcmp olt {v} {t2}, {v:0x3F10000000000000}",
        "{t4} = select {m} {t3}, {v} {t2}, {v} {v:0x0000000000000000}",
        "{t5} = fadd {v} {t4}, {v:0x3FE0000000000000}",
        "{t6} = bitcast {v} {t5} to {i32}",
        "{t7} = sub {i32} {t6}, {i32:1056964608}",
        "{t8} = lshr {i32} {t1}, {i32:13}",
        "{t9} = and {i32} {t8}, {i32:1}",
        "{ta} = sub {i32} {t1}, {i32:939520001}",
        "{tb} = add {i32} {ta}, {t9}",
        "{tc} = lshr {i32} {tb}, {i32:13}",
        "{td} = icmp ult {i32} {t1}, {i32:1199570944}",
        "{te} = select {m} {td}, {i32} {tc}, {i32} {i32:31744}",
        "{tf} = fcmp uno {v} {a}, {a}",
        "{tg} = lshr {i32} {t1}, {i32:13}",
        "{th} = and {i32} {tg}, {i32:1023}",
        "{ti} = or {i32} {th}, {i32:32256}",
        "{tj} = select {m} {tf}, {i32} {ti}, {i32} {te}",
        "{tk} = select {m} {t3}, {i32} {t7}, {i32} {tj}",
        "{tl} = lshr {i32} {t}, {i32:16}",
        "{tm} = and {i32} {tl}, {i32:32768}",
        "{tn} = or {i32} {tk}, {tm}",
        "{r} = trunc {i32} {tn} to {i16}",
    ),
    _to_f16,
)


def _bfloat16() -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)  # type: ignore[no-any-return]


F16_FORMAT = Format(
    "float16",
    lambda: np.dtype(np.float16),
    _FROM_F16_BITS,
    _TO_F16_BITS,
    half=(_FROM_F16, _TO_F16),
)
# kDLBfloat is 4; of float16 NumPy knows the code itself.
BF16_FORMAT = Format("bfloat16", _bfloat16, _FROM_BF16, _TO_BF16, dlpack=4)
