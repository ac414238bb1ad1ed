"""Products of integers and 16-bit floats where a BLAS computes: by NumPy, from converted copies.

Sums of 8-bit products are exact in float64, so those go through its BLAS; longer integers through
NumPy's own loops in 64 bits, exact modulo ``2**bits`` as everywhere.  Floats are converted to the
type of the sums.  Each operand is copied whole: this is the route of machines without kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jitgemm.api.reference import reference
from jitgemm.kernels.spec import Scale
from jitgemm.runtime.packed import Packed

if TYPE_CHECKING:  # product.py imports the module that imports this one
    from jitgemm.api.product import Product

__all__ = ["converts", "explain", "run"]

Array = NDArray[Any]


def converts(product: Product) -> bool:
    """Whether no BLAS has a routine for the product's types."""
    return product.mixed is not None or product.element.integral


def explain(product: Product) -> str:
    """What a plan says of the route."""
    return f"NumPy's matmul, operands converted to {_type(product)}"


def _type(product: Product) -> np.dtype:
    """What operands are converted to."""
    if not product.element.integral:
        return product.sum_dtype
    narrow = product.a.dtype.itemsize == product.b.dtype.itemsize == 1
    return np.dtype(np.float64 if narrow else np.int64)


def run(product: Product, target: Array) -> None:
    """Compute a product of two matrices into ``target``."""
    with np.errstate(all="ignore"):
        values = _sums(product)
        x = product.scalars
        factor: Any = int if product.element.integral else values.dtype.type
        if x.alpha != 1:
            values *= factor(x.alpha.real)
        if product.c is not None:
            values += factor(x.beta.real) * product.c.astype(values.dtype)
        if product.bias is not None:
            values += product.bias.astype(values.dtype)
        target[...] = _finished(product, values)


def _sums(product: Product) -> Array:
    """``a @ b``, its zero points taken off, in the type of the sums or in 64 bits."""
    integral, kind = product.element.integral, _type(product)
    wide = np.dtype(np.int64) if integral else kind
    if product.scalars.alpha == 0 or not product.k:
        return np.zeros((product.m, product.n), wide)
    a, b = (_matrix(x).astype(kind) for x in (product.a, product.b))
    zero_a, zero_b = product.scalars.zero_a, product.scalars.zero_b
    if zero_a is not None:
        a -= zero_a[:, np.newaxis]
    if zero_b is not None:
        b -= zero_b
    found: Array = np.matmul(a, b)
    return found.astype(wide)


def _matrix(x: Array | Packed) -> Array:
    return x.unpack() if isinstance(x, Packed) else x


def _finished(product: Product, values: Array) -> Array:
    """The last steps: activation, or requantisation, or a result that is true or false."""
    program, scale = product.epilogue.program, product.epilogue.scale
    if program is not None:
        row, col = np.ogrid[: product.m, : product.n]
        kind = values.dtype.type
        mapped: Array = reference(
            program, product.scalars.constants, values, row.astype(kind), col.astype(kind)
        )
        return mapped.astype(product.dtype)
    if not product.element.integral:
        return values.astype(product.dtype)
    if product.dtype == np.bool_:
        return np.asarray(values != 0)
    values = values.astype(product.sum_dtype)
    if scale is Scale.NONE:
        return values.astype(product.dtype)
    scales, (zero, low, high) = product.scalars.scales, product.scalars.rounding
    assert scales is not None
    along = scales if scale is Scale.COLUMN else scales[:, np.newaxis]
    scaled = np.rint(np.clip(values.astype(np.float64) * along, low, high))
    return np.asarray((scaled + zero).astype(product.dtype))
