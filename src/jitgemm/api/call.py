"""One call, with every argument checked: what it is, and its memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jitgemm.api import blas
from jitgemm.api.keywords import Options
from jitgemm.api.kinds import Number, number_of
from jitgemm.api.operands import (
    Array,
    check_output,
    misplaced,
    native,
    new_result,
    operand,
    same_place,
    shares,
    stack_shape,
    weakly,
)
from jitgemm.api.quantise import with_bias
from jitgemm.api.request import Request, request_of
from jitgemm.errors import message
from jitgemm.kernels.arithmetic import OperandTypes, arithmetic_for, sum_type
from jitgemm.kernels.registry import tile_for
from jitgemm.kernels.spec import BSource, Epilogue, GemmSpec
from jitgemm.planner.callspec import CallSpec, OperandSpec
from jitgemm.runtime.engine import engine, unavailable
from jitgemm.runtime.executables import executable_for
from jitgemm.runtime.operands import Operands
from jitgemm.runtime.packed import (
    Layout,
    Packed,
    PackedLhs,
    PackedRhs,
    element_dtype,
    layout_for,
)

__all__ = ["Call"]

_OWN = ("a", "b")


class Call:
    """``act(alpha * a @ b + beta * c + bias)`` for matrices, stacks or vectors.

    Vectors are matrices of one row or one column whose axis the result lacks.
    """

    __slots__ = ("a", "b", "bias", "blas", "c", "components", "dtype", "full", "index", "out",
                 "request", "returned", "shape", "sum_dtype", "sums", "unpacked")  # fmt: skip

    def __init__(
        self,
        a: Array | Packed,
        b: Array | Packed,
        options: Options,
        names: tuple[str, str] = _OWN,
        *,
        vectors: bool = False,
        request: Request | None = None,
    ) -> None:
        """Check every argument.

        Args:
            a: an array of a type that may be unsupported, or a handle.
            b: likewise.
            options: the other arguments, as given.
            names: of A and B in messages.
            vectors: whether an operand that is one may meet a matrix or another vector.
            request: what the options ask for, if that is known.
        """
        vectors = vectors or a.ndim > 2 or b.ndim > 2
        for name, x, kind in zip(names, (a, b), (PackedLhs, PackedRhs), strict=True):
            if isinstance(x, Packed) and not isinstance(x, kind):
                raise TypeError(misplaced(name, x, side=True))
            if not isinstance(x, Packed) and (not vectors or number_of(x.dtype) is None):
                operand(name, x)
        self.request = request = request or request_of(options, a, b)
        self.dtype = request.dtype
        self.sums, self.components = _sums_of(a.dtype, b.dtype, request.dtype)
        # Scaled sums of integers are floats, and so is what is added to them.
        single = self.sums.integral and not _number(request.dtype)[0].integral
        self.sum_dtype = (
            np.dtype(np.float32) if single else element_dtype(self.sums, self.components)
        )
        self.shape = stack_shape(a, b, names)
        # A kernel reads one prepacked operand.
        self.unpacked = isinstance(a, PackedLhs) and isinstance(b, PackedRhs)
        if self.unpacked and isinstance(a, PackedLhs):
            # Its conjugation is among the request's flags.
            a = a.stored()
        self._take_matrices(a, b)
        self.c = self._c(options.c)
        self.bias = self._bias(with_bias(options.bias, request.requantize))
        # Why a BLAS computes the product; empty: generated code does.
        self.blas = "asked for by name" if request.blas else unavailable()
        if self.blas and request.strict:
            got = "'default', because a BLAS computes this product"
            raise ValueError(message("reproducible", got, "'strict'"))
        self._check_packed(names)
        out = options.out
        self.out = None if out is None else check_output("out", out, self.shape, self.dtype)
        # What the caller gets back: the very object, if the result goes into its memory.
        self.returned: Any = out

    def _take_matrices(self, a: Array | Packed, b: Array | Packed) -> None:
        """Operands with the axes that vectors lack, and the shape that the result has then."""
        index: tuple[Any, ...] = (...,)
        index += (np.newaxis,) if a.ndim == 1 else (slice(None),)
        index += (np.newaxis,) if b.ndim == 1 else (slice(None),)
        self.index = index
        self.a = a[np.newaxis, :] if isinstance(a, np.ndarray) and a.ndim == 1 else a
        self.b = b[:, np.newaxis] if isinstance(b, np.ndarray) and b.ndim == 1 else b
        batch: tuple[int, ...] = ()
        if self.a.ndim > 2 or self.b.ndim > 2:
            batch = np.broadcast_shapes(self.a.shape[:-2], self.b.shape[:-2])
        self.full = (*batch, self.a.shape[-2], self.b.shape[-1])

    def _types(self, c: Array | None, bias: Array | None) -> OperandTypes:
        """Types of the operands' numbers."""

        def element(x: Array | Packed | None) -> Any:
            number = None if x is None else number_of(x.dtype)
            return self.sums if number is None else number[0]

        out = number_of(self.dtype)
        assert out is not None
        return OperandTypes(
            element(self.a), element(self.b), element(c), element(bias), out[0],
            self.request.bf16_dot,
        )  # fmt: skip

    def _check_packed(self, names: tuple[str, str]) -> None:
        """Whether kernels read a prepacked operand as it is; a BLAS reads any."""
        for name, x, other in ((names[0], self.a, self.b), (names[1], self.b, self.a)):
            if not isinstance(x, Packed) or self.blas:
                continue
            types = self._types(self.c, self.bias)
            types = types.transposed if isinstance(x, PackedLhs) else types
            wanted = _packed_layout(types, self.sums, self.components)
            if not x.layout.serves(wanted):
                raise TypeError(x.unfit(name, wanted, other.dtype))

    def _check_other(self, name: str, dtype: np.dtype) -> None:
        """C and the bias are of the result's type or of the sums'."""
        if number_of(dtype) in (number_of(self.sum_dtype), number_of(self.dtype)):
            return
        kinds = f"{self.dtype} elements, like the result's"
        if self.dtype != self.sum_dtype:
            kinds = (
                f"{self.dtype} or {self.sum_dtype} elements, like those of the result or its sums"
            )
        raise TypeError(message(name, kinds, dtype))

    def _c(self, c: object) -> Array | None:
        if c is None:
            if self.request.scalars.beta != 0:
                raise ValueError(message("c", "a matrix, because beta is not 0", "None"))
            return None
        array = operand("c", c, self.sum_dtype, self.dtype)
        self._check_other("c", array.dtype)
        full = self.full
        try:
            wide = np.broadcast_to(array, full)
        except ValueError:
            wide = None
        if wide is None or (len(full) == 2 and array.shape != full):
            expected = f"shape {full}" if len(full) == 2 else f"a shape that broadcasts to {full}"
            raise ValueError(message("c", expected, f"shape {array.shape}"))
        return wide if self.request.scalars.beta != 0 else None

    def _bias(self, bias: object) -> Array | None:
        """The bias as an array of the result's shape."""
        if bias is None:
            return None
        array = weakly("bias", bias, self.sum_dtype, self.dtype)
        self._check_other("bias", array.dtype)
        full, expected = self.full, f"a shape that broadcasts to {self.full}"
        m, n = full[-2:]
        if len(full) == 2:
            expected = f"shape () or ({n},), one per column, ({m}, 1), one per row, or ({m}, {n})"
        try:
            wide = np.broadcast_to(array, full)
        except ValueError:
            raise ValueError(message("bias", expected, f"shape {array.shape}")) from None
        if not array.dtype.isnative and (0 in wide.strides or 1 in full[-2:]):
            # Only a number per element is put in order on the way.
            wide = np.broadcast_to(native(array), full)
        return wide

    # -- where the result goes --------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute."""
        return 0 in self.full

    @property
    def operations(self) -> int:
        """Arithmetic operations; 0 if there are none."""
        k, components = int(self.a.shape[-1]), int(self.components)
        return int(2 * math.prod(self.full) * max(k, 1) * components**2)

    def target(self) -> tuple[Array, bool]:
        """Where the result is computed, and whether it must be copied to ``out`` afterwards."""
        out = self.out
        if out is None:
            return new_result(self.shape, self.dtype), False
        inputs = [x for x in (self.a, self.b, self.bias) if isinstance(x, np.ndarray)]
        if self.c is not None and not same_place(self.c, out):
            inputs.append(self.c)
        if any(shares(out, x) for x in inputs):
            return new_result(self.shape, self.dtype), True
        return out, False

    def _matrices(self, target: Array) -> Array:
        """A result with the axes that it lacks where an operand is a vector."""
        return target[self.index] if self.shape != self.full else target

    # -- what is planned, and what is run ---------------------------------------------------------

    def spec(self, target: Array, threads: int) -> CallSpec:
        """The call without its memory."""
        request, d = self.request, self._matrices(target)
        return CallSpec(
            a=_operand_spec(self.a),
            b=_operand_spec(self.b),
            d=_operand_spec(d),
            sums=self.sums,
            threads=threads,
            c=None if self.c is None else _operand_spec(self.c),
            bias=None if self.bias is None else _operand_spec(self.bias),
            components=self.components,
            in_place=self.c is not None and same_place(self.c, d),
            options=request.decided(len(self.full) - 2, beta=self.c is not None),
        )

    def operands(self, target: Array) -> Operands:
        """Its memory."""
        d = self._matrices(target)
        request = self.request
        return Operands(self.a, self.b, d, self.c, self.bias, request.scalars, request.workspace)

    def compute(self, target: Array, threads: int) -> None:
        """Compute the product into memory that lies apart from what is read."""
        if self.empty:
            return
        spec, operands = self.spec(target, threads), self.operands(target)
        if self.blas:
            blas.run(spec, operands)
        else:
            executable_for(spec).run(operands)

    def run(self, threads: int) -> Array:
        """Do it; the result (``out`` itself if there is one)."""
        target, copied = self.target()
        self.compute(target, threads)
        if copied:
            assert self.out is not None
            self.out[...] = target
        result: Array = target if self.out is None else self.returned
        return result


def _sums_of(a: np.dtype, b: np.dtype, result: np.dtype) -> Number:
    """What the sums of a product are formed in, of types that :func:`number_of` knows."""
    (x, _), (y, _), (out, components) = (_number(t) for t in (a, b, result))
    return sum_type(OperandTypes(x, y, out, out, out)), components


def _number(dtype: np.dtype) -> Number:
    number = number_of(dtype)
    assert number is not None
    return number


def _operand_spec(x: Array | Packed) -> OperandSpec:
    element, _ = _number(x.dtype)
    if isinstance(x, Packed):
        steps = np.empty(x.batch, np.uint8).strides
        strides = (*(s * x.item_bytes for s in steps), 0, 0)
        return OperandSpec(element, tuple(x.shape), strides, packed=True)
    return OperandSpec(element, x.shape, x.strides, not x.dtype.isnative)


def _packed_layout(types: OperandTypes, element: Any, components: int) -> Layout:
    """How a prepacked right operand must be stored, whatever its size."""
    isa = engine().isa
    how = arithmetic_for(types, element, isa)
    tile = tile_for(element, isa, components)
    return layout_for(
        GemmSpec(element, isa, tile, BSource.PACKED, Epilogue(), components, how), 0, 0
    )
