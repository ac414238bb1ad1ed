"""Element types: width, LLVM spelling, and the block length that fixes the order of a sum."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BY_NAME", "F32", "F64", "ElementType"]


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

    @property
    def bits(self) -> int:
        """Width in bits."""
        return self.bytes * 8

    def __str__(self) -> str:
        return self.name


# depth_block = 512: 256 is 2 % slower in f32 and 4-5 % in f64 at 512 to 2048 squared, because sums
# pass through D twice as often (`benchmarks/depth_block.py`, Zen 5, 2026-11-30; table in
# benchmarks/RESULTS.md, decision in docs/adr/0003-accumulation-order.md).
F32 = ElementType("f32", 4, "float", "f32", depth_block=512)
F64 = ElementType("f64", 8, "double", "f64", depth_block=512)

BY_NAME = {t.name: t for t in (F32, F64)}
