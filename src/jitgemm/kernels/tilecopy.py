"""stub"""

from __future__ import annotations

from jitgemm.isa.types import ElementType
from jitgemm.lang.core import Int, Kernel, Ptr

__all__ = ["copy_tile"]


def copy_tile(
    k: Kernel, element: ElementType, source: tuple[Ptr, Int, Int], target: tuple[Ptr, Int, Int],
    shape: tuple[Int, Int], unit: int = 1, swap: Int | None = None,
) -> None:  # fmt: skip
    """Copy a tile element by element between any strides."""
    (src, src_row, src_col), (dst, dst_row, dst_col) = source, target
    for i in k.range(0, shape[0]):
        for j in k.range(0, shape[1]):
            x = k.load(src + i * src_row + j * src_col, element, unit)
            k.store(dst + i * dst_row + j * dst_col, x)
