"""Conversions between element types: how LLVM spells each one, and what it means lane by lane.

Integers widen by their sign and narrow modulo ``2**bits``; integers and floats convert to floats
rounded to nearest even.  A storage type is bits until it is converted, by way of ``f32``, as its
row says (:mod:`jitgemm.isa.formats`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from jitgemm.isa.ops import Op
from jitgemm.isa.types import BOOL, F32, ElementType

__all__ = ["conversion", "dtype_of", "format_bits"]


def dtype_of(element: ElementType) -> np.dtype[Any]:
    """Name the NumPy type that holds elements of this type; formats of bits are unsigned."""
    if element.format or element is BOOL:
        return np.dtype(f"u{element.bytes}")
    if element.integral:
        return np.dtype(f"{'i' if element.signed else 'u'}{element.bytes}")
    return np.dtype(f"f{element.bytes}")


def _cast(target: ElementType) -> Callable[[Any], Any]:
    def meaning(a: Any) -> Any:
        return a.astype(dtype_of(target))

    return meaning


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
    if source.format is not None:
        widen, _ = source.format.spelled(half=half)
        return ((widen, F32), *conversion(F32, target, half=half))
    if target.format is not None:
        _, narrow = target.format.spelled(half=half)
        return (*conversion(source, F32, half=half), (narrow, target))
    if target is BOOL:
        return ((_TO_BOOL, target),)
    return ((_plain(source, target), target),)
