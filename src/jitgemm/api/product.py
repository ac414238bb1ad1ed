"""One validated product of two matrices: planned, run, and its result put where it belongs."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jitgemm.api import blas
from jitgemm.api.activations import resolve_activation
from jitgemm.api.operands import (
    Array,
    Number,
    check_output,
    check_type,
    describe,
    factor,
    flag,
    native,
    new_result,
    number_of,
    operand,
)
from jitgemm.api.tracing import trace
from jitgemm.errors import message
from jitgemm.kernels.expression import Program
from jitgemm.kernels.spec import Bias, Epilogue
from jitgemm.planner.problem import Operand, Problem
from jitgemm.planner.route import make_plan
from jitgemm.runtime.driver import Executable, Scalars, Span
from jitgemm.runtime.engine import engine, packed_for, unavailable
from jitgemm.runtime.memory import Workspace
from jitgemm.runtime.packed import Packed, PackedLhs, PackedRhs

__all__ = ["Options", "Product", "executable_for"]

_KEPT = 512
_cache: OrderedDict[tuple[Any, ...], Executable] = OrderedDict()


@dataclass(slots=True, eq=False)
class Options:
    """Keyword arguments of :func:`jitgemm.gemm`, as given."""

    alpha: object = 1
    beta: object = 0
    activation: object = None
    conj_a: object = False
    conj_b: object = False
    epilogue: object = None
    workspace: object = None
    reproducible: object = "default"
    backend: object = "jit"
    c: object = None
    bias: object = None

    @property
    def plain(self) -> bool:
        """Whether they ask for nothing but the product."""
        others = (self.c, self.bias, self.activation, self.epilogue, self.workspace)
        same = (self.reproducible, self.backend) == ("default", "jit")
        scalars = type(self.alpha) is int and type(self.beta) is int
        numbers = scalars and (self.alpha, self.beta) == (1, 0)
        flags = self.conj_a is False and self.conj_b is False
        return numbers and flags and same and all(x is None for x in others)


def _address(x: Array) -> int:
    return int(x.__array_interface__["data"][0])


def _operand(x: Array) -> Operand:
    return Operand(x.strides[0], x.strides[1], not x.dtype.isnative)


def executable_for(problem: Problem, threads: int) -> Executable:
    """The executable of a problem; the most recently used ones are kept."""
    key = (problem, threads)
    found = _cache.get(key)
    if found is None:
        found = Executable(make_plan(problem, engine().context(threads)))
        _cache[key] = found
        while len(_cache) > _KEPT:
            _cache.popitem(last=False)
    return found


class Product:
    """``act(alpha * a @ b + beta * c + bias)`` for matrices, with every argument checked."""

    __slots__ = ("a", "b", "bias", "blas", "c", "dtype", "epilogue", "k", "m", "n", "number", "out",
                 "scalars", "strict", "workspace")  # fmt: skip

    def __init__(self, a: object, b: object, out: object, options: Options) -> None:
        self.a: Array | PackedLhs = a if isinstance(a, PackedLhs) else _matrix("a", a)
        self.b: Array | PackedRhs = b if isinstance(b, PackedRhs) else _matrix("b", b)
        self.dtype = self.a.dtype.newbyteorder("=")
        number = number_of(self.dtype)
        assert number is not None
        self.number: Number = number
        check_type("b", self.b.dtype, self.dtype)
        (self.m, self.k), (depth, self.n) = self.a.shape, self.b.shape
        if depth != self.k:
            raise ValueError(
                message("b", f"{self.k} rows, because a has shape {self.a.shape}",
                        describe(self.b))
            )  # fmt: skip
        self._check_packed()
        alpha, beta = (factor(x, getattr(options, x), number[1]) for x in ("alpha", "beta"))
        conj_a, conj_b = flag("conj_a", options.conj_a), flag("conj_b", options.conj_b)
        if isinstance(self.a, PackedLhs):
            conj_a ^= self.a.conj
        if isinstance(self.b, PackedRhs):
            conj_b ^= self.b.conj
        program, constants = self._program(options)
        self.scalars = Scalars(alpha, beta, conj_a, conj_b, constants)
        self.c = self._c(options.c)
        self.bias, kind = self._bias(options.bias)
        if options.workspace is not None and not isinstance(options.workspace, Workspace):
            raise TypeError(message("workspace", "a Workspace", type(options.workspace).__name__))
        self.workspace = options.workspace
        self.strict = _choice("reproducible", options.reproducible, ("default", "strict")) == 1
        named = _choice("backend", options.backend, ("jit", "blas")) == 1
        # Why a BLAS computes the product; empty: generated code does.
        self.blas = "asked for by name" if named else unavailable()
        if self.blas and self.strict:
            raise ValueError(
                message(
                    "reproducible", "'default', because a BLAS computes this product", "'strict'"
                )
            )
        self.epilogue = Epilogue(self.c is not None, kind, program)
        self.out = None
        if out is not None:
            self.out = check_output("out", out, (self.m, self.n), self.dtype)

    def _check_packed(self) -> None:
        packed = [(n, x) for n, x in (("a", self.a), ("b", self.b)) if isinstance(x, Packed)]
        if len(packed) > 1:
            raise TypeError(message("b", "an array, because a is prepacked", "a prepacked operand"))
        for name, x in packed:
            isa = packed_for()
            if x.isa != isa:
                raise ValueError(message(name, f"an operand packed for {isa}", f"one for {x.isa}"))

    def _program(self, options: Options) -> tuple[Program | None, tuple[float, ...]]:
        """Activation and traced function as one program, and its constants."""
        program, constants = resolve_activation(options.activation)
        if options.epilogue is not None:
            traced, more = trace(options.epilogue)
            program = traced if program is None else program.then(traced)
            constants += more
        if program is not None and self.number[1] == 2:
            name = "epilogue" if options.activation is None else "activation"
            raise TypeError(message(name, "None, because elements are complex", "one for reals"))
        return program, constants[: 0 if program is None else program.constants]

    def _c(self, c: object) -> Array | None:
        if c is None:
            if self.scalars.beta != 0:
                raise ValueError(message("c", "a matrix, because beta is not 0", "None"))
            return None
        array = _matrix("c", c)
        check_type("c", array.dtype, self.dtype)
        if array.shape != (self.m, self.n):
            raise ValueError(message("c", f"shape {(self.m, self.n)}", f"shape {array.shape}"))
        return array if self.scalars.beta != 0 else None

    def _bias(self, bias: object) -> tuple[Array | None, Bias]:
        """The bias as a matrix that broadcasts, and along which axes it varies."""
        if bias is None:
            return None, Bias.NONE
        array = np.asarray(bias)
        check_type("bias", array.dtype, self.dtype)
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
    def usual(self) -> bool:
        """Whether generated entries know operands like these."""
        if self.blas:
            return False
        operands = (self.a, self.b, self.c, self.bias, self.out)
        arrays = [x for x in operands if isinstance(x, np.ndarray)]
        plain = self.bias is None or (
            self.epilogue.bias is Bias.COLUMN and self.bias.strides[1] == self.dtype.itemsize
        )
        return plain and all(x.dtype.isnative for x in arrays)

    def target(self) -> tuple[Array, bool]:
        """Where the kernel writes, and whether that must be copied to ``out`` afterwards."""
        shape, out = (self.m, self.n), self.out
        if out is None:
            return new_result(shape, self.dtype), False
        plain = out.view(np.ndarray)
        inputs = [x for x in (self.a, self.b, self.bias) if isinstance(x, np.ndarray)]
        if self.c is not None and not self._in_place(plain):
            inputs.append(self.c)
        if any(np.may_share_memory(plain, x) for x in inputs):
            return new_result(shape, self.dtype), True
        return plain, False

    def _in_place(self, target: Array) -> bool:
        c = self.c
        if c is None or c.dtype != target.dtype:
            return False
        return c.strides == target.strides and _address(c) == _address(target)

    def problem(self, target: Array) -> Problem:
        """The product without its addresses."""
        nothing = Operand(0, 0)
        problem = Problem(
            element=self.number[0],
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
            parts=self.number[1],
            strict=self.strict,
        )
        if isinstance(self.a, PackedLhs):
            problem = replace(problem.transposed(), b=None)
        return problem

    def factors(self, executable: Executable) -> Scalars:
        """Factors and conjugation in the plan's orientation."""
        x = self.scalars
        if executable.plan.swapped:
            return replace(x, conj_a=x.conj_b, conj_b=x.conj_a)
        return x

    def spans(self, target: Array, executable: Executable) -> dict[str, Span]:
        """Addresses by job field, in the plan's orientation."""
        unit = self.dtype.itemsize

        def span(x: Array) -> Span:
            shape, strides = x.shape, x.strides
            return Span.of(_address(x), (shape[0], shape[1]), (strides[0], strides[1]), unit)

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
            executable.run(spans, self.factors(executable), self.workspace)
        if copy:
            assert self.out is not None
            self.out[...] = target
        return target if self.out is None else self.out


def _choice(name: str, value: object, known: tuple[str, ...]) -> int:
    if not isinstance(value, str):
        raise TypeError(message(name, " or ".join(map(repr, known)), type(value).__name__))
    if value not in known:
        raise ValueError(message(name, " or ".join(map(repr, known)), repr(value)))
    return known.index(value)


def _matrix(name: str, x: object) -> Array:
    array = operand(name, x)
    if array.ndim != 2:
        raise ValueError(message(name, "a matrix (2 dimensions)", f"{array.ndim} dimensions"))
    return array
