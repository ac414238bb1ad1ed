"""What one translation unit of a product exports."""

from __future__ import annotations

from jitgemm.kernels.dot import dot
from jitgemm.kernels.nest import nest, serial
from jitgemm.kernels.operands import pack_b
from jitgemm.kernels.repeat import repeat
from jitgemm.kernels.spec import BSource, GemmSpec
from jitgemm.kernels.split import split
from jitgemm.lang.core import Function

__all__ = ["gemm_functions"]


def gemm_functions(spec: GemmSpec) -> list[Function]:
    """The nest and its forms for small, deep, 1 x 1 and many small products, and B's packing."""
    functions = [nest(spec), serial(spec)]
    if not spec.tiles:  # tiles would be too few
        functions.append(split(spec))
    if spec.types.sum_in_lanes(spec.element) and not spec.tiles:
        functions.append(dot(spec))
    if spec.b is BSource.PACKED:
        functions.append(pack_b(spec))
    if spec.b is BSource.INPLACE and not spec.epilogue.operands and not spec.tiles:
        functions.append(repeat(spec))
    return functions
