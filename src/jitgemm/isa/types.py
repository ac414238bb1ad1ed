"""Element types: width, LLVM spelling, and the block length that fixes the order of a sum."""

from __future__ import annotations

from dataclasses import dataclass

from jitgemm.isa.formats import BF16_FORMAT, F16_FORMAT, Format

__all__ = [
    "BF16", "BOOL", "BY_NAME", "F16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32",
    "U64", "ElementType", "register", "storage", "unregister",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class ElementType:
    """One scalar type an operand may hold.

    ``depth_block`` is the length of the blocks into which the sum over ``k`` is cut: inside a
    block an element is one ascending chain of multiply-adds from zero, and block sums are added
    in ascending order.  It is a property of the type, never of the machine, so no blocking, tile
    or thread count can show in the bits of a result.
    """

    name: str
    bytes: int
    llvm: str
    suffix: str
    """How LLVM's overloaded intrinsics spell it: ``llvm.fma.v16f32``."""
    depth_block: int
    integral: bool = False
    """Arithmetic is that of integers modulo ``2**bits``."""
    signed: bool = True
    """Widening repeats the sign bit, or treats it as a sign."""
    format: Format | None = None
    """Of a number that is stored and converted only, as bits: no arithmetic."""

    @property
    def bits(self) -> int:
        """Width in bits."""
        return self.bytes * 8

    @property
    def moved(self) -> ElementType:
        """A type as wide that has operations on bytes: itself, but for a format of bits."""
        return self if self.format is None else _SIGNED[self.bits]

    def __str__(self) -> str:
        return self.name


# depth_block = 512: 256 is 2 % slower in f32 and 4-5 % in f64 at 512 to 2048 squared, because sums
# pass through D twice as often (`benchmarks/depth_block.py`, Zen 5, 2026-11-30; table in
# benchmarks/RESULTS.md, decision in docs/adr/0003-accumulation-order.md).
F32 = ElementType("f32", 4, "float", "f32", depth_block=512)
F64 = ElementType("f64", 8, "double", "f64", depth_block=512)


_INTEGER_ROW = 4096


def _integer(bits: int, *, signed: bool) -> ElementType:
    # Sums of integers are exact in any order: blocks only keep a walk within 4 KiB of a row of A,
    # which is a property of the type like any block, on machines of every page size.
    block, llvm = max(512, _INTEGER_ROW * 8 // bits), f"i{bits}"
    name = f"{'i' if signed else 'u'}{bits}"
    return ElementType(name, bits // 8, llvm, llvm, block, integral=True, signed=signed)


I8, I16, I32, I64 = (_integer(bits, signed=True) for bits in (8, 16, 32, 64))
U8, U16, U32, U64 = (_integer(bits, signed=False) for bits in (8, 16, 32, 64))
# A byte that is 0 or 1.  Sums are those of numbers; a result is whether one differs from 0.
BOOL = ElementType("bool", 1, "i8", "i8", _INTEGER_ROW, integral=True, signed=False)
_SIGNED = {x.bits: x for x in (I8, I16, I32, I64)}


def storage(name: str, bits: int, row: Format) -> ElementType:
    """A type that is stored and converted only; sums are ``f32``, and in blocks of that type."""
    llvm = _SIGNED[bits].llvm
    return ElementType(name, bits // 8, llvm, llvm, F32.depth_block, format=row)


BF16 = storage("bf16", 16, BF16_FORMAT)
F16 = storage("f16", 16, F16_FORMAT)

BY_NAME = {t.name: t for t in (F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, BOOL, BF16, F16)}


def register(element: ElementType) -> None:
    """Make an element type known by name.

    Raises:
        ValueError: the name is another one's.
    """
    if BY_NAME.setdefault(element.name, element) is not element:
        raise ValueError(element.name)


def unregister(name: str) -> None:
    """Forget the element type of that name."""
    del BY_NAME[name]
