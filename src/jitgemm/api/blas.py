"""Products through a BLAS: SciPy's where it is installed, else the one inside NumPy.

The route of ``backend="blas"``, and of every product in a process that cannot generate code.  It
takes the products the kernels take, validated alike, and keeps the same contract but for the bits:
the order of a sum, and the number of threads, are the library's own.

SciPy's routines take row-major matrices as transposed ones, so ``D^T = B^T A^T`` is computed in
place in a row-major ``D``; transposition and conjugation are flags, and only operands without a
contiguous axis order are copied.

Operands of other types than the sums are converted first; sums of integers are NumPy's, modulo
``2**bits``.
"""

from __future__ import annotations

import importlib
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitgemm.api.kinds import write_narrow, written_wide
from jitgemm.api.reference import reference
from jitgemm.errors import message
from jitgemm.isa.types import ElementType
from jitgemm.jit.target import NO_ISA
from jitgemm.kernels.expression import Program
from jitgemm.kernels.spec import Axes, Scale
from jitgemm.planner.callspec import CallSpec
from jitgemm.runtime.data import Scalars
from jitgemm.runtime.operands import Operands
from jitgemm.runtime.packed import Packed, element_dtype

__all__ = ["explain", "library", "name", "run"]

Array = NDArray[Any]
_Matrix = tuple[Array, bool]
"""A matrix as it is stored, and whether it is to be conjugated."""

# SciPy's BLAS counts in 32 bits.
_LONGEST = 2**31 - 1
_LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}


@cache
def library() -> Any:
    """``scipy.linalg.blas``, or ``None`` where SciPy is not installed."""
    # Imported when first needed: SciPy is optional and takes a tenth of a second.
    try:
        return importlib.import_module("scipy.linalg.blas")
    except ImportError:
        return None


def _scipy_takes(*sizes: int) -> bool:
    return library() is not None and max(sizes) <= _LONGEST


def name() -> str:
    """Whose BLAS is used."""
    return "numpy" if library() is None else "scipy"


def explain(spec: CallSpec, operands: Operands, why: str) -> str:
    """What a plan for a product says of itself.

    Args:
        spec: of the call.
        operands: its memory.
        why: a BLAS computes it.
    """
    product = _Product.of(spec, operands)
    (m, n, k), dtype = (product.m, product.n, product.k), product.d.dtype
    kind = "gemv" if _is_vector(product) else "gemm"
    routine = "NumPy's matmul"
    if not product.sums.integral and _scipy_takes(m, n, k):
        routine = f"SciPy's {_LETTERS[product.sum_dtype.char]}{kind}"
    # What is packed in a process without kernels is the matrix itself.
    packed = any(isinstance(x, Packed) and x.isa != NO_ISA for x in (product.a, product.b))
    program = spec.options.program
    steps = [
        "after unpacking" if packed else "",
        "" if spec.plain else f"in {product.sum_dtype}",
        "" if _scales(product) else "alpha and C in NumPy",
        "then bias" if product.bias is not None else "",
        "scaled" if product.scaling is not None else "",
        f"then {program.name}" if program is not None else "",
        "then requantised" if product.scalars.scales is not None else "",
    ]
    what = ", ".join([routine, *filter(None, steps)])
    return f"backend blas ({why}): {what}; {dtype} {m} x {k} @ {k} x {n}, its own threads"


@dataclass(slots=True, eq=False)
class _Product:
    """One product of two matrices."""

    a: Any
    b: Any
    c: Array | None
    bias: Array | None
    d: Array
    sums: ElementType
    components: int
    sum_dtype: np.dtype
    scalars: Scalars
    program: Program | None
    scale: Scale
    scaling: Program | None
    axes: tuple[Axes, ...]

    @property
    def epilogue_operands(self) -> tuple[Array, ...]:
        """Operands of the programs, each of a shape that broadcasts to the result's."""
        found = []
        for x, axes in zip(self.scalars.operands, self.axes, strict=True):
            rows, cols = (self.m if axes.by_row else 1), (self.n if axes.by_column else 1)
            found.append(x.reshape(rows, cols))
        return tuple(found)

    @staticmethod
    def of(spec: CallSpec, operands: Operands, index: tuple[int, ...] | None = None) -> _Product:
        """A product of a stack, the first if it is not said which."""
        batch, scalars, options = spec.batch, operands.scalars, spec.options
        at = (0,) * len(batch) if index is None else index

        def item(x: Any) -> Any:
            if x is None or (isinstance(x, Packed) and not x.batch):
                return x
            if isinstance(x, Packed):
                own = at[len(batch) - len(x.batch) :]
                return x[tuple(i if n > 1 else 0 for i, n in zip(own, x.batch, strict=True))]
            return np.broadcast_to(x, (*batch, *x.shape[-2:]))[at]

        if options.tables:
            steps = {name: sum(map(mul, at, strides)) for name, strides in options.tables}
            scalars = scalars.of_item(steps)
        return _Product(
            item(operands.a), item(operands.b), item(operands.c), item(operands.bias),
            operands.d[at], spec.sums, spec.components,
            element_dtype(spec.sums, spec.components), scalars, options.program, options.scale,
            options.scaling, options.operands,
        )  # fmt: skip

    @property
    def m(self) -> int:
        """Rows."""
        return int(self.d.shape[0])

    @property
    def n(self) -> int:
        """Columns."""
        return int(self.d.shape[1])

    @property
    def k(self) -> int:
        """Depth."""
        return int(self.a.shape[1])


def run(spec: CallSpec, operands: Operands) -> None:
    """Compute a call, each product of a stack by itself."""
    for index in np.ndindex(*spec.batch):
        product = _Product.of(spec, operands, index)
        with np.errstate(all="ignore"):
            _compute(product, upconvert=not spec.plain)


def _compute(product: _Product, *, upconvert: bool) -> None:
    """Compute one product into its D."""
    target = product.d
    if product.sums.integral and target.dtype.kind in "iub":
        target[...] = _integers(product)
        return
    if product.scaling is not None:
        target[...] = _scaled(product)
        return
    if upconvert:
        wide = _widened(product)
        _compute(wide, upconvert=False)
        write_narrow(target, wide.d)
        return
    values = _sum(product, target)
    _finish(values, product)
    if values is not target:
        target[...] = values


def _scaled(product: _Product) -> Array:
    """A product whose sums are scaled first, in the type that its epilogue computes in."""
    bare = copy(product)
    kind = np.dtype(np.float32) if product.sums.integral else product.sum_dtype
    bare.scalars = replace(product.scalars, alpha=float(product.scalars.alpha != 0), beta=0.0)
    bare.c = bare.bias = bare.program = bare.scaling = None
    if product.sums.integral:
        values = _integer_sums(bare).astype(kind)
    else:
        bare.d = np.empty(product.d.shape, kind)
        _compute(bare, upconvert=True)
        values = bare.d
    assert product.scaling is not None
    values = _mapped(product.scaling, values, product)
    values *= kind.type(product.scalars.alpha.real)
    if product.c is not None:
        values += kind.type(product.scalars.beta.real) * product.c.astype(kind)
    _finish(values, product)
    return values


def _widened(product: _Product) -> _Product:
    """The product of its operands in the type of its sums; what is not read is not converted."""
    result, kind = copy(product), product.sum_dtype
    result.d = np.empty(product.d.shape, kind)
    if product.scalars.alpha != 0 and product.k:
        result.a, result.b = (written_wide(_plain(x), kind) for x in (product.a, product.b))
    for name in ("c", "bias"):
        x = getattr(product, name)
        if x is not None:
            setattr(result, name, written_wide(x, kind))
    return result


def _integers(product: _Product) -> Array:
    """A product of integers, as numbers of the result's type."""
    sums = _integer_sums(product)
    if product.program is not None:
        sums[...] = _mapped(product.program, sums, product)
    if product.scalars.scales is None:
        return np.asarray(sums, product.d.dtype)
    return _requantised(product, sums)


def _integer_sums(product: _Product) -> Array:
    """``alpha * a @ b + beta * c + bias`` of integers, modulo ``2**bits`` of the sums' type."""
    scalars, bits = product.scalars, product.sums.bits
    kind = np.dtype(f"u{bits // 8}").type

    def plain(x: Any) -> Array:
        return np.asarray(x).astype(kind)

    def factor(x: complex) -> Any:
        return kind(int(x.real) % (1 << bits))

    values = np.zeros((product.m, product.n), kind)
    if scalars.alpha != 0 and product.k:
        left, right = plain(_plain(product.a)), plain(_plain(product.b))
        if scalars.zero_a is not None:
            left -= plain(scalars.zero_a.reshape(-1, 1))
        if scalars.zero_b is not None:
            right -= plain(scalars.zero_b)
        values = np.matmul(left, right) * factor(scalars.alpha)
    if product.c is not None:
        values += plain(product.c) * factor(scalars.beta)
    if product.bias is not None:
        values += plain(product.bias)
    return values.view(np.dtype(f"i{bits // 8}"))


def _requantised(product: _Product, sums: Array) -> Array:
    """Sums of integers as the narrow numbers of a result."""
    scalars = product.scalars
    assert scalars.scales is not None
    zero, low, high = scalars.rounding
    by_row = product.scale is Scale.ROW
    scaled = sums * (scalars.scales[:, np.newaxis] if by_row else scalars.scales)
    return np.asarray(np.rint(np.clip(scaled, low, high)) + zero, product.d.dtype)


def _finish(values: Array, product: _Product) -> None:
    """Add the bias and apply what follows it, in place."""
    if product.bias is not None:
        values += product.bias.astype(values.dtype, copy=False)
    if product.program is not None:
        values[...] = _mapped(product.program, values, product)


def _mapped(program: Program, values: Array, product: _Product) -> Array:
    """A program on every element."""
    row, col = np.ogrid[: product.m, : product.n]
    kind = values.dtype.type
    indices, operands = (row.astype(kind), col.astype(kind)), product.epilogue_operands
    result: Array = reference(program, product.scalars.constants, values, *indices, operands)
    return result


def _sum(product: _Product, target: Array) -> Array:
    """``alpha * a @ b + beta * c``, in ``target`` itself where a BLAS can write there."""
    alpha, beta, c = product.scalars.alpha, product.scalars.beta, product.c
    direct = target.flags.c_contiguous and target.flags.aligned and target.dtype.isnative
    values = target if direct else np.empty(target.shape, product.sum_dtype)
    if alpha == 0 or not product.k:
        # Contract 2 and 3: neither operand is read.
        if c is None:
            values[...] = 0
        else:
            np.copyto(values, c)
            _scale(values, beta)
        return values
    a, b = _operands(product)
    if _scales(product):
        if c is not None:
            np.copyto(values, c)
        _call(a, b, (alpha.real, beta.real), values)
        return values
    if c is not None:
        # ``values`` may be C's own memory: what is to be added must survive the product.
        c = np.array(c, product.sum_dtype, order="C")
        _scale(c, beta)
    _multiply(a, b, values)
    _scale(values, alpha)
    if c is not None:
        values += c
    return values


def _scales(product: _Product) -> bool:
    """Whether alpha and beta may be left to the BLAS.

    A complex routine multiplies by ``alpha + 0i`` even if it is 1, which turns an infinite part
    into NaN in the other; and a factor that is 0 only once it is rounded to the element type must
    multiply, where a BLAS would not read (contract 2).
    """
    x, single = product.scalars, product.sum_dtype.type
    reals = product.components == 1 and not product.sums.integral
    if not (reals and _scipy_takes(product.m, product.n, product.k)):
        return False
    with np.errstate(all="ignore"):
        factors = [y.real for y in (x.alpha, x.beta) if y != 0]
        return all(single(y) != 0 for y in factors)


def _operands(product: _Product) -> tuple[_Matrix, _Matrix]:
    # A handle's own conjugation is among the product's flags already.
    a, b = _plain(product.a), _plain(product.b)
    return (a, product.scalars.conj_a), (b, product.scalars.conj_b)


def _plain(x: Array | Packed) -> Array:
    return x.stored() if isinstance(x, Packed) else x


def _multiply(a: _Matrix, b: _Matrix, into: Array) -> None:
    """``into <- a @ b``."""
    if _scipy_takes(*a[0].shape, *b[0].shape):
        _call(a, b, (1, 0), into)
    else:
        left, right = (_contiguous(x.conj() if conj else x) for x, conj in (a, b))
        np.matmul(left, right, out=into)
    if into.dtype.kind == "c" and not np.isfinite(into).all():
        # The routine's own alpha of 1 + 0i has spoilt the infinite ones (see _scales).
        (ar, ai), (br, bi) = _parts(a), _parts(b)
        into.real = ar @ br - ai @ bi
        into.imag = ar @ bi + ai @ br


def _is_vector(product: _Product) -> bool:
    return 1 in (product.m, product.n)


def _call(a: _Matrix, b: _Matrix, factors: tuple[float, float], into: Array) -> None:
    """``into <- alpha a @ b + beta into`` for a C-contiguous ``into``, by gemv or gemm."""
    letter, (alpha, beta), blas = _LETTERS[into.dtype.char], factors, library()
    if 1 in into.shape:
        # D^T = B^T A^T again for a single row: the matrix is on the left.
        (x, conj), (y, conj_y) = (a, b) if into.shape[1] == 1 else ((b[0].T, b[1]), (a[0].T, a[1]))
        matrix, flag = _flagged(x, conj=conj)
        vector = np.array(y[:, 0].conj() if conj_y else y[:, 0], into.dtype)
        # Without a vector to add to, none is given: not every gemv leaves it unread.
        given = {"beta": beta, "y": into.ravel()} if beta else {}
        result = getattr(blas, f"{letter}gemv")(alpha, matrix, vector, trans=flag, **given)
        into[...] = result.reshape(into.shape)
        return
    (left, flag_left), (right, flag_right) = (_flagged(x.T, conj=conj) for x, conj in (b, a))
    result = getattr(blas, f"{letter}gemm")(
        alpha, left, right, beta=beta, c=into.T, trans_a=flag_left, trans_b=flag_right,
        overwrite_c=1,
    )  # fmt: skip
    assert np.may_share_memory(result, into), "the BLAS wrapper has copied C"


def _flagged(x: Array, *, conj: bool) -> tuple[Array, int]:
    """A column-major matrix that is ``x``, or its conjugate, under the flag returned.

    0: as it is, 1: transposed, 2: transposed and conjugated.
    """
    x = _contiguous(x)
    if x.flags.c_contiguous:
        return x.T, 2 if conj else 1
    return (x.conj() if conj else x), 0


def _contiguous(x: Array) -> Array:
    """``x``, copied unless a BLAS can read it: native, aligned, one axis after the other.

    Raises:
        MemoryError: there is no room for the copy.
    """
    whole = x.flags.c_contiguous or x.flags.f_contiguous
    if whole and x.flags.aligned and x.dtype.isnative:
        return x
    try:
        return np.array(x, x.dtype.newbyteorder("="), order="C")
    except (MemoryError, ValueError) as e:
        raise MemoryError(
            message("workspace", "a copy that fits in memory", f"shape {x.shape} {x.dtype}")
        ) from e


def _reals(x: Array) -> Array:
    """A C-contiguous array as its real numbers."""
    return x.view(x.real.dtype)


def _parts(x: _Matrix) -> tuple[Array, Array]:
    matrix, conj = np.array(x[0], x[0].dtype.newbyteorder("=")), x[1]
    imaginary = matrix.imag.copy()
    return matrix.real.copy(), -imaginary if conj else imaginary


def _scale(x: Array, factor: complex) -> None:
    """Multiply in place; a real factor scales the parts of complex numbers."""
    if factor == 1:
        return
    # Rounded to the type first: beyond it a factor is infinite, as in a kernel.
    part = _reals(x) if factor.imag == 0 else x
    part *= part.dtype.type(factor if part.dtype.kind == "c" else factor.real)
