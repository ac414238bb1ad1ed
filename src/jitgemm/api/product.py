"""One validated product of two matrices: planned, run, and its result put where it belongs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from jitgemm.api import blas
from jitgemm.api.keeping import keep
from jitgemm.api.kinds import Number, number_of
from jitgemm.api.operands import (
    Array,
    check_output,
    check_type,
    describe,
    native,
    new_result,
    operand,
    weakly,
)
from jitgemm.api.quantise import with_bias
from jitgemm.api.keywords import Options
from jitgemm.api.request import Request, request_of
from jitgemm.errors import message
from jitgemm.isa.types import ElementType
from jitgemm.kernels.arithmetic import Types, arithmetic_for, sum_type
from jitgemm.kernels.registry import tile_for
from jitgemm.kernels.spec import Bias, BSource, Epilogue, GemmSpec
from jitgemm.planner.problem import Operand, Problem
from jitgemm.planner.route import make_plan
from jitgemm.runtime.driver import Executable, Span
from jitgemm.runtime.engine import engine, unavailable
from jitgemm.runtime.packed import (
    Layout,
    Packed,
    PackedLhs,
    PackedRhs,
    element_dtype,
    layout_for,
)

__all__ = ["Product", "executable_for", "sums_of"]

_KEPT = 512
_cache: dict[tuple[Any, ...], Executable] = {}


def _address(x: Array) -> int:
    return int(x.__array_interface__["data"][0])


def _operand(x: Array) -> Operand:
    return Operand(x.strides[0], x.strides[1], not x.dtype.isnative)


def executable_for(problem: Problem, threads: int) -> Executable:
    """The executable of a problem; the latest are kept."""
    key = (problem, threads)
    found = _cache.get(key)
    if found is None:
        found = Executable(make_plan(problem, engine().context(threads)))
        keep(_cache, key, found, _KEPT)
    return found


def sums_of(a: np.dtype, b: np.dtype, result: np.dtype) -> Number:
    """What the sums of a product are formed in, of types that :func:`number_of` knows."""
    (x, _), (y, _), (out, parts) = (_number(t) for t in (a, b, result))
    return sum_type(Types(x, y, out, out, out)), parts


def _number(dtype: np.dtype) -> Number:
    number = number_of(dtype)
    assert number is not None
    return number


class Product:
    """``act(alpha * a @ b + beta * c + bias)`` for matrices, with every argument checked."""

    __slots__ = ("a", "b", "bias", "blas", "c", "dtype", "element", "epilogue", "k", "m", "mixed",
                 "n", "out", "parts", "returned", "scalars", "strict",
                 "sum_dtype", "workspace")  # fmt: skip

    def __init__(
        self,
        a: object,
        b: object,
        out: object,
        options: Options,
        request: Request | None = None,
    ) -> None:
        """Check every argument.

        Args:
            a: as for :func:`jitgemm.gemm`.
            b: likewise.
            out: likewise.
            options: the others.
            request: what those ask for, if that is known; then only their C and bias are read.
        """
        self.a: Array | PackedLhs = a if isinstance(a, PackedLhs) else _matrix("a", a)
        self.b: Array | PackedRhs = b if isinstance(b, PackedRhs) else _matrix("b", b)
        if request is None:
            request = request_of(options, self.a, self.b)
        self._take_types(request)
        (self.m, self.k), (depth, self.n) = self.a.shape, self.b.shape
        if depth != self.k:
            raise ValueError(
                message("b", f"{self.k} rows, because a has shape {self.a.shape}",
                        describe(self.b))
            )  # fmt: skip
        self.scalars, self.workspace, self.strict = (
            request.scalars, request.workspace, request.strict
        )  # fmt: skip
        self.c = self._c(options.c)
        self.bias, kind = self._bias(with_bias(options.bias, request.requantize))
        # Why a BLAS computes the product; empty: generated code does.
        self.blas = "asked for by name" if request.blas else unavailable()
        if self.blas and self.strict:
            raise ValueError(
                message(
                    "reproducible", "'default', because a BLAS computes this product", "'strict'"
                )
            )
        zero_a, zero_b = (x is not None for x in (self.scalars.zero_a, self.scalars.zero_b))
        self.epilogue = Epilogue(
            self.c is not None, kind, request.program,
            zero_a=zero_a, zero_b=zero_b, scale=request.scale,
        )  # fmt: skip
        # Last: everything about the epilogue is known.
        self._settle_types(bf16_dot=request.bf16_dot)
        self._check_packed()
        self.out: Array | None = None
        # What the caller gets back: the very object, if the result goes into its memory.
        self.returned: Any = out
        if out is not None:
            self.out = check_output("out", out, (self.m, self.n), self.dtype)

    def _take_types(self, request: Request) -> None:
        """Types of the result and of the sums."""
        self.dtype = request.dtype
        self.element, self.parts = sums_of(self.a.dtype, self.b.dtype, request.dtype)
        self.sum_dtype = element_dtype(self.element, self.parts)

    def _settle_types(self, *, bf16_dot: bool) -> None:
        """The types of all operands, if they are not all that of the sums."""

        def element(x: Array | Packed | None) -> ElementType:
            number = None if x is None else number_of(x.dtype)
            return self.element if number is None else number[0]

        out = number_of(self.dtype)
        assert out is not None
        types = Types(
            element(self.a), element(self.b), element(self.c), element(self.bias), out[0], bf16_dot
        )
        self.mixed = None if types.plain(self.element) else types

    def _check_packed(self) -> None:
        packed = [(n, x) for n, x in (("a", self.a), ("b", self.b)) if isinstance(x, Packed)]
        if len(packed) > 1:
            raise TypeError(message("b", "an array, because a is prepacked", "a prepacked operand"))
        for name, x in packed:
            if self.blas:
                continue
            types = self.mixed or Types.of(self.element)
            types = types.transposed if name == "a" else types
            wanted = _packed_layout(types, self.element, self.parts)
            if not x.layout.serves(wanted):
                raise TypeError(x.unfit(name, wanted, (self.b if name == "a" else self.a).dtype))

    def _c(self, c: object) -> Array | None:
        if c is None:
            if self.scalars.beta != 0:
                raise ValueError(message("c", "a matrix, because beta is not 0", "None"))
            return None
        array = _matrix("c", c, self.sum_dtype, self.dtype)
        self._check_other("c", array.dtype)
        if array.shape != (self.m, self.n):
            raise ValueError(message("c", f"shape {(self.m, self.n)}", f"shape {array.shape}"))
        return array if self.scalars.beta != 0 else None

    def _check_other(self, name: str, dtype: np.dtype) -> None:
        """C and the bias are of the result's type or of the sums'."""
        if dtype.newbyteorder("=") != self.sum_dtype:
            check_type(name, dtype, self.dtype)

    def _bias(self, bias: object) -> tuple[Array | None, Bias]:
        """The bias as a matrix that broadcasts, and along which axes it varies."""
        if bias is None:
            return None, Bias.NONE
        array = weakly("bias", bias, self.sum_dtype, self.dtype)
        self._check_other("bias", array.dtype)
        m, n = self.m, self.n
        shapes = f"() or ({n},), one per column, ({m}, 1), one per row, or ({m}, {n})"
        if array.ndim > 2:
            raise ValueError(message("bias", f"shape {shapes}", f"shape {array.shape}"))
        try:
            wide = np.broadcast_to(array, (m, n))
        except ValueError:
            raise ValueError(message("bias", f"shape {shapes}", f"shape {array.shape}")) from None
        down, across = wide.strides[0] != 0 and m > 1, wide.strides[1] != 0
        if down and across and n > 1:
            return wide, Bias.FULL
        if across and not down:
            return np.broadcast_to(wide[:1], (m, n)), Bias.COLUMN
        # A row's number is broadcast as it is: it must be in this machine's byte order.
        return np.broadcast_to(native(wide[:, :1]), (m, n)), Bias.ROW

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute."""
        return not (self.m and self.n)

    def target(self) -> tuple[Array, bool]:
        """Where the kernel writes, and whether that must be copied to ``out`` afterwards."""
        shape, out = (self.m, self.n), self.out
        if out is None:
            return new_result(shape, self.dtype), False
        inputs = [x for x in (self.a, self.b, self.bias) if isinstance(x, np.ndarray)]
        if self.c is not None and not self._in_place(out):
            inputs.append(self.c)
        if any(np.may_share_memory(out, x) for x in inputs):
            return new_result(shape, self.dtype), True
        return out, False

    def _in_place(self, target: Array) -> bool:
        c = self.c
        if c is None or c.dtype != target.dtype:
            return False
        return c.strides == target.strides and _address(c) == _address(target)

    def problem(self, target: Array) -> Problem:
        """The product without its addresses."""
        nothing = Operand(0, 0)
        problem = Problem(
            element=self.element,
            m=self.m,
            n=self.n,
            k=self.k if self.scalars.alpha != 0 else 0,
            a=_operand(self.a) if isinstance(self.a, np.ndarray) else nothing,
            b=_operand(self.b) if isinstance(self.b, np.ndarray) else None,
            d=_operand(target),
            c=None if self.c is None else _operand(self.c),
            bias=None if self.bias is None else _operand(self.bias),
            epilogue=self.epilogue,
            in_place=self._in_place(target),
            parts=self.parts,
            mixed=self.mixed,
            strict=self.strict,
        )
        if isinstance(self.a, PackedLhs):
            problem = replace(problem.transposed(), b=None)
        return problem

    def spans(self, target: Array, executable: Executable) -> dict[str, Span]:
        """Addresses by job field, in the plan's orientation."""

        def span(x: Array) -> Span:
            (m, n), (row, col) = x.shape, x.strides
            return Span.of(_address(x), (m, n), (row, col), x.itemsize)

        a, b = ("b", "a") if executable.plan.swapped else ("a", "b")
        spans = {"d": span(target)}
        for name, x in ((a, self.a), (b, self.b)):
            if isinstance(x, np.ndarray):
                spans[name] = span(x)
            else:
                spans["packed"] = Span(x.address, 0, x.nbytes)
        if self.c is not None:
            spans["c"] = span(self.c)
        if self.bias is not None:
            spans["bias"] = span(self.bias)
        return spans

    def run(self, threads: int) -> Array:
        """Do it; the result (``out`` itself if there is one)."""
        target, copy = self.target()
        if self.blas:
            blas.run(self, target)
        elif self.m and self.n:
            executable = executable_for(self.problem(target), threads)
            spans = self.spans(target, executable)
            executable.run(spans, self.scalars, self.workspace)
        if copy:
            assert self.out is not None
            self.out[...] = target
        result: Array = target if self.out is None else self.returned
        return result


def _packed_layout(types: Types, element: ElementType, parts: int) -> Layout:
    """How a prepacked right operand must be stored, whatever its size."""
    isa = engine().isa
    how = None if types.plain(element) else arithmetic_for(types, element, isa)
    tile = tile_for(element, isa, parts)
    return layout_for(GemmSpec(element, isa, tile, BSource.PACKED, Epilogue(), parts, how), 0, 0)


def _matrix(name: str, x: object, *types: np.dtype) -> Array:
    array = operand(name, x, *types)
    if array.ndim != 2:
        raise ValueError(message(name, "a matrix (2 dimensions)", f"{array.ndim} dimensions"))
    return array
