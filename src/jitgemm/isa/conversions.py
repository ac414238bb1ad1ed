"""Conversions between element types: how LLVM spells each one, and what it means lane by lane.

Integers widen by their sign and narrow modulo ``2**bits``; integers and floats convert to floats
rounded to nearest even.  A half-precision format is bits until it is converted: ``f16`` by the
machine's instructions where it has them, else in integer arithmetic, and ``bf16``, the upper half
of an ``f32``, always so, because the instructions for it treat subnormal numbers as zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from jitgemm.isa.ops import Op
from jitgemm.isa.types import BF16, BOOL, F16, F32, ElementType

__all__ = ["conversion", "dtype_of", "format_bits"]


def dtype_of(element: ElementType) -> np.dtype[Any]:
    """Name the NumPy type that holds elements of this type; formats of bits are unsigned."""
    if element.format or element is BOOL:
        return np.dtype(f"u{element.bytes}")
    if element.integral:
        return np.dtype(f"{'i' if element.signed else 'u'}{element.bytes}")
    return np.dtype(f"f{element.bytes}")


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


def _cast(target: ElementType) -> Callable[[Any], Any]:
    def meaning(a: Any) -> Any:
        return a.astype(dtype_of(target))

    return meaning


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
_TO_BOOL = Op(
    "to_bool",
    1,
    ("{t} = icmp ne {v} {a}, zeroinitializer", "{r} = zext {m} {t} to {w}"),
    lambda a: (a != 0).astype(np.uint8),
)


def format_bits(value: float, element: ElementType) -> int:
    """A number in a format of bits, rounded to nearest even."""
    ((row, _),) = conversion(F32, element, half=True)
    with np.errstate(all="ignore"):
        return int(row.meaning(np.array([value], np.float32))[0])


def _plain(source: ElementType, target: ElementType) -> Op:
    """A conversion that is one LLVM instruction."""
    if source.integral and target.integral:
        word = "trunc" if target.bits < source.bits else "sext" if source.signed else "zext"
    elif source.integral:
        word = "sitofp" if source.signed else "uitofp"
    elif target.integral:
        # The caller keeps the number within the range.
        word = "fptosi" if target.signed else "fptoui"
    else:
        word = "fpext" if target.bits > source.bits else "fptrunc"
    text = f"{{r}} = {word} {{v}} {{a}} to {{w}}"
    return Op(f"{source}_{target}", 1, (text,), _cast(target))


@cache
def conversion(
    source: ElementType, target: ElementType, *, half: bool
) -> tuple[tuple[Op, ElementType], ...]:
    """The steps from one type to another, each with what it makes.

    There are none where the bits stay as they are.

    Args:
        source: the type converted from.
        target: the type converted to.
        half: whether the machine has instructions for ``f16``.
    """
    if source is target or (
        source.integral and target.integral and source.bits == target.bits and target is not BOOL
    ):
        return ()
    if source is BF16 or source is F16:
        first = _FROM_BF16 if source is BF16 else _FROM_F16 if half else _FROM_F16_BITS
        return ((first, F32), *conversion(F32, target, half=half))
    if target is BF16 or target is F16:
        last = _TO_BF16 if target is BF16 else _TO_F16 if half else _TO_F16_BITS
        return (*conversion(source, F32, half=half), (last, target))
    if target is BOOL:
        return ((_TO_BOOL, target),)
    return ((_plain(source, target), target),)
