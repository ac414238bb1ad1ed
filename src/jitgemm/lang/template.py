"""Filling the holes in the text of an operation; :mod:`jitgemm.isa.ops` says what they are."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable
from functools import cache

from jitgemm.errors import LanguageError
from jitgemm.isa import bits
from jitgemm.isa.conversions import format_bits
from jitgemm.isa.types import ElementType

__all__ = ["Holes", "conversion_holes", "float_text", "number_text", "shape_holes"]


class Holes(dict[str, str]):
    """What fills the holes of an operation's text; the result and temporaries get new names."""

    def __init__(
        self, name: Callable[[], str], shape: dict[str, str], operands: Iterable[tuple[str, str]]
    ) -> None:
        super().__init__(operands)
        self._fresh, self._shape = name, shape

    def __missing__(self, hole: str) -> str:
        known = self._shape.get(hole)
        if known is not None:
            return known
        if hole != "r" and not hole.startswith("t"):
            raise LanguageError(f"no such hole in an operation's text: {{{hole}}}")
        self[hole] = self._fresh()
        return self[hole]


@cache
def shape_holes(element: ElementType, lanes: int) -> dict[str, str]:
    """The holes that depend on the operands' shape only: types, suffixes, constants."""
    integer, wide = f"i{element.bits}", f"<{lanes} x "
    one = lanes == 1

    def every(kind: str, text: str) -> str:
        return text if one else f"<{', '.join([f'{kind} {text}'] * lanes)}>"

    signs = {"SIGN": every(integer, str(1 << (element.bits - 1)))}
    if element.integral:
        numbers = signs | {"HALF": every(integer, str(element.bits // 2))}
        numbers["sign"] = "s" if element.signed else "u"
    else:
        row = bits.FORMATS[element.bits]
        # Exact in every format: the digits of a double are those LLVM wants.
        numbers = {name: every(element.llvm, float_text(x)) for name, x in row.floats.items()}
        numbers |= {name: every(integer, str(x)) for name, x in row.ints.items()}
    return {
        "v": element.llvm if one else f"{wide}{element.llvm}>",
        "iv": integer if one else f"{wide}{integer}>",
        "m": "i1" if one else f"{wide}i1>",
        "s": element.suffix if one else f"v{lanes}{element.suffix}",
        "is": integer if one else f"v{lanes}{integer}",
        **numbers,
    }


class _Kind(str):
    """A type in the text of a conversion; ``{i32:7}`` is the constant 7 of it in every lane."""

    __slots__ = ()

    def __format__(self, constant: str) -> str:
        if not constant or not self.startswith("<"):
            return constant or str(self)
        lanes, _, scalar = self.strip("<>").split()
        return f"<{', '.join([f'{scalar} {constant}'] * int(lanes))}>"


@cache
def conversion_holes(source: ElementType, target: ElementType, lanes: int) -> dict[str, str]:
    """The types a conversion's text may name."""
    names = {"v": source.llvm, "w": target.llvm, "m": "i1", "half": "half"}
    names |= {f"i{bits}": f"i{bits}" for bits in (8, 16, 32, 64)}
    return {
        name: _Kind(scalar if lanes == 1 else f"<{lanes} x {scalar}>")
        for name, scalar in names.items()
    }


def float_text(value: float) -> str:
    """A number as hexadecimal digits of a double; for f32 it must be representable there."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def number_text(value: float, element: ElementType) -> str:
    """A constant as LLVM spells it, rounded to the element type."""
    if element.integral:
        return str(int(value))
    if element.format:
        return str(format_bits(value, element))
    if element.bytes == 4:
        value = struct.unpack("f", bytes(ctypes.c_float(value)))[0]
    return float_text(value)
