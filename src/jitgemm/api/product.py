"""One validated product of two matrices: planned, run, and its result put where it belongs."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgemm.api.operands import (
    Array,
    activation_of,
    check_output,
    describe,
    element_of,
    matrix,
    native,
    new_result,
    scalar,
)
from jitgemm.errors import message
from jitgemm.isa.types import ElementType
from jitgemm.kernels.spec import Epilogue
from jitgemm.planner.problem import Operand, Problem
from jitgemm.planner.route import make_plan
from jitgemm.runtime.driver import Executable, Span
from jitgemm.runtime.engine import engine
from jitgemm.runtime.memory import Workspace
from jitgemm.runtime.packed import PackedRhs

__all__ = ["Options", "Product", "executable_for"]

_KEPT = 512
_cache: OrderedDict[tuple[Any, ...], Executable] = OrderedDict()


@dataclass(slots=True, eq=False)
class Options:
    """Keyword arguments of :func:`jitgemm.gemm`, as given."""

    alpha: object = 1
    beta: object = 0
    c: object = None
    bias: object = None
    activation: object = None
    workspace: Workspace | None = None

    @property
    def plain(self) -> bool:
        """Whether they ask for nothing but the product."""
        others = (self.c, self.bias, self.activation, self.workspace)
        scalars = (scalar("alpha", self.alpha), scalar("beta", self.beta))
        return all(x is None for x in others) and scalars == (1.0, 0.0)


def _address(x: Array) -> int:
    return int(x.__array_interface__["data"][0])


def _operand(x: Array) -> Operand:
    return Operand(x.strides[0], x.strides[1])


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
    """``act(alpha * a @ b + beta * c + bias)`` for matrices, with every argument checked.

    ``converted`` tells whether some operand is a copy instead of the caller's own memory.
    """

    __slots__ = ("a", "alpha", "b", "beta", "bias", "c", "converted", "element", "epilogue", "k",
                 "m", "n", "out", "workspace")  # fmt: skip

    def __init__(self, a: object, b: object, out: object, options: Options) -> None:
        left = matrix("a", a)
        element = element_of(left.dtype)
        assert element is not None
        self.element: ElementType = element
        self.converted = False
        self.a = self._native(left)
        self.b: Array | PackedRhs = b if isinstance(b, PackedRhs) else matrix("b", b)
        if element_of(self.b.dtype) is not element:
            raise TypeError(message("b", f"{self.a.dtype} elements like a", self.b.dtype))
        (self.m, self.k), (depth, self.n) = self.a.shape, self.b.shape
        if depth != self.k:
            raise ValueError(
                message("b", f"{self.k} rows, because a has shape {self.a.shape}",
                        describe(self.b))
            )  # fmt: skip
        if isinstance(self.b, np.ndarray):
            self.b = self._native(self.b)
        elif self.b.isa != engine().isa.name:
            raise ValueError(
                message("b", f"an operand packed for {engine().isa.name}", f"one for {self.b.isa}")
            )
        # Adding 0 turns -0 into +0: no product has no sign.
        self.alpha, self.beta = (
            scalar(name, getattr(options, name)) + 0.0 for name in ("alpha", "beta")
        )
        self.c = self._c(options.c)
        self.bias = self._bias(options.bias)
        activation = activation_of(options.activation)
        if options.workspace is not None and not isinstance(options.workspace, Workspace):
            raise TypeError(message("workspace", "a Workspace", type(options.workspace).__name__))
        self.workspace = options.workspace
        self.epilogue = Epilogue(self.c is not None, self.bias is not None, activation)
        self.out = None
        if out is not None:
            self.out = check_output("out", out, (self.m, self.n), self.a.dtype)

    def _native(self, x: Array) -> Array:
        result = native(x)
        # The caller's later writes will not show in a copy.
        self.converted |= result is not x
        return result

    def _c(self, c: object) -> Array | None:
        if c is None:
            if self.beta != 0:
                raise ValueError(message("c", "a matrix, because beta is not 0", "None"))
            return None
        array = matrix("c", c)
        if element_of(array.dtype) is not self.element:
            raise TypeError(message("c", f"{self.a.dtype} elements like a", array.dtype))
        if array.shape != (self.m, self.n):
            raise ValueError(message("c", f"shape {(self.m, self.n)}", f"shape {array.shape}"))
        return self._native(array) if self.beta != 0 else None

    def _bias(self, bias: object) -> Array | None:
        if bias is None:
            return None
        array = np.asarray(bias)
        if element_of(array.dtype) is not self.element:
            raise TypeError(message("bias", f"{self.a.dtype} elements like a", array.dtype))
        if array.shape not in ((self.n,), (1, self.n)):
            raise ValueError(
                message("bias", f"shape ({self.n},), one per column", f"shape {array.shape}")
            )
        row = np.ascontiguousarray(self._native(array).reshape(self.n))
        self.converted |= not np.may_share_memory(row, array)
        return row

    def target(self) -> tuple[Array, bool]:
        """Where the kernel writes, and whether that must be copied to ``out`` afterwards."""
        shape, dtype = (self.m, self.n), self.a.dtype
        out = self.out
        if out is None:
            return new_result(shape, dtype), False
        plain = out.view(np.ndarray)
        inputs = [x for x in (self.a, self.b, self.bias) if isinstance(x, np.ndarray)]
        if self.c is not None and not self._in_place(plain):
            inputs.append(self.c)
        clash = any(np.may_share_memory(plain, x) for x in inputs)
        if clash or not out.dtype.isnative:
            return new_result(shape, dtype), True
        return plain, False

    def _in_place(self, target: Array) -> bool:
        c = self.c
        return c is not None and c.strides == target.strides and _address(c) == _address(target)

    def problem(self, target: Array) -> Problem:
        """The product without its addresses."""
        depth = self.k if self.alpha != 0 else 0
        b, c = self.b, self.c
        return Problem(
            element=self.element,
            m=self.m,
            n=self.n,
            k=depth,
            a=_operand(self.a),
            b=_operand(b) if isinstance(b, np.ndarray) else None,
            d=_operand(target),
            c=None if c is None else _operand(c),
            epilogue=self.epilogue,
            in_place=self._in_place(target),
        )

    def spans(self, target: Array, executable: Executable) -> dict[str, Span]:
        """Addresses by job field, in the plan's orientation."""
        size = self.element.bytes

        def span(x: Array) -> Span:
            shape, strides = x.shape, x.strides
            return Span.of(_address(x), (shape[0], shape[1]), (strides[0], strides[1]), size)

        a, b = ("b", "a") if executable.plan.swapped else ("a", "b")
        spans = {a: span(self.a), "d": span(target)}
        if isinstance(self.b, np.ndarray):
            spans[b] = span(self.b)
        else:
            spans["packed"] = Span(self.b.address, 0, self.b.nbytes)
        if self.c is not None:
            spans["c"] = span(self.c)
        if self.bias is not None:
            spans["bias"] = Span(_address(self.bias), 0, self.bias.nbytes)
        return spans

    def run(self, threads: int) -> Array:
        """Do it; the result (``out`` itself if there is one)."""
        target, copy = self.target()
        if self.m and self.n:
            executable = executable_for(self.problem(target), threads)
            spans = self.spans(target, executable)
            executable.run(spans, (self.alpha, self.beta), self.workspace)
        if copy:
            assert self.out is not None
            self.out[...] = target
        return target if self.out is None else self.out
