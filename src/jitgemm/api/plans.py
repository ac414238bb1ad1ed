"""Prepared plans: a product planned once and called many times."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from jitgemm.api import blas
from jitgemm.api.batched import stacked
from jitgemm.api.config import resolve_threads
from jitgemm.api.dispatch import bind, enters, planned
from jitgemm.api.gufuncs import covers
from jitgemm.api.kinds import number_of
from jitgemm.api.operands import Array, plain_or_packed
from jitgemm.api.product import Options, Product
from jitgemm.api.quantise import Requantize
from jitgemm.api.recipes import Recipe
from jitgemm.api.stackplan import BoundStack, is_stack
from jitgemm.api.ufuncs import matmul
from jitgemm.errors import message
from jitgemm.jit import compiler
from jitgemm.planner.explain import explain
from jitgemm.runtime.driver import Executable
from jitgemm.runtime.engine import engine
from jitgemm.runtime.memory import Workspace
from jitgemm.runtime.packed import Packed, PackedLhs

__all__ = ["Plan", "plan"]


class _Bound:
    """What a plan is bound to: checks a call the generated entry did not take, and runs it."""

    def __init__(self, product: Product, options: Options, threads: int) -> None:
        self.options, self.threads = options, threads
        self.shapes = {"a": product.a.shape, "b": product.b.shape}
        self.dtypes = {"a": product.a.dtype, "b": product.b.dtype}
        o = options
        self.values = (
            o.alpha, o.beta, o.activation, o.conj_a, o.conj_b, o.epilogue, o.workspace,
            o.reproducible, o.backend, o.a_zero_point, o.b_zero_point, o.requantize, o.out_dtype,
            o.allow_bf16_dot,
        )  # fmt: skip
        self.keep: list[Any] = [product.a, product.b, product.c, product.bias]

    def __call__(self, a: Any, b: Any, out: Array | None = None) -> Array:
        if a is self.keep[0] and isinstance(a, PackedLhs) and type(b) is np.ndarray:
            same = b.shape == self.shapes["b"] and b.dtype == self.dtypes["b"]
            if same and self.options.epilogue is None:
                # Calls like this one have left an entry.
                o = self.options
                return stacked(a, b, out, (o.c, o.bias), self.values, self.threads)
        a, b = plain_or_packed("a", a), plain_or_packed("b", b)
        for name, x in (("a", a), ("b", b)):
            if x.shape != self.shapes[name]:
                raise ValueError(
                    message(name, f"shape {self.shapes[name]}, as planned", f"shape {x.shape}")
                )
            if number_of(x.dtype) != number_of(self.dtypes[name]):
                raise TypeError(message(name, f"{self.dtypes[name]} elements, as planned", x.dtype))
        return Product(a, b, out, self.options).run(self.threads)


class Plan(functools.partial):  # type: ignore[type-arg]
    """A prepared product: ``p(a, b, out)``.  Made by :func:`jitgemm.plan`.

    For arrays of the planned shapes, strides and types the call goes straight into generated code.
    Other strides are planned anew; other shapes and types are errors.

    A copy is the plan itself; a deep copy is planned anew for deep copies of what is bound (C, the
    bias, a prepacked operand).  A pickle holds those, shapes, strides, types and options, and is
    planned anew where it is loaded; its epilogue must be a function that can be pickled.
    """

    # A ``partial`` of the generated builtin: calling an instance stays inside C.
    executable: Executable | None
    note: str
    recipe: Recipe

    def explain(self) -> str:
        """Route, instruction set, tile, blocking, packing, threads and bound, in words."""
        if self.note or self.executable is None:
            return self.note
        return explain(self.executable.plan, engine().machine)

    def _unit(self) -> compiler.Unit:
        if self.executable is None:
            raise ValueError(message("plan", "one with a kernel", self.note))
        return self.executable.unit

    def ir(self) -> str:
        """The kernel's LLVM IR, as generated.

        Raises:
            ValueError: the plan has no kernel of its own.
        """
        return compiler.text(self._unit())

    def asm(self) -> str:
        """The kernel's assembly for this machine.

        Raises:
            ValueError: the plan has no kernel of its own.
        """
        return compiler.assembly(self._unit())

    def __copy__(self) -> Plan:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return _again(copy.deepcopy(self.recipe, memo))

    def __reduce__(self) -> tuple[Callable[[Recipe], Plan], tuple[Recipe]]:
        self.recipe.check()
        return _again, (self.recipe,)

    def __repr__(self) -> str:
        if self.executable is None:
            return f"<jitgemm.Plan: {self.note}>"
        p = self.executable.plan
        return f"<jitgemm.Plan {p.spec.symbol} m={p.problem.m} n={p.problem.n} k={p.problem.k}>"


def plan(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    alpha: object = 1,
    beta: object = 0,
    c: object = None,
    bias: object = None,
    activation: object = None,
    epilogue: Callable[[Any, Any, Any], Any] | None = None,
    conj_a: bool = False,
    conj_b: bool = False,
    threads: int | None = None,
    workspace: Workspace | None = None,
    reproducible: str = "default",
    backend: str = "jit",
    a_zero_point: object = None,
    b_zero_point: object = None,
    requantize: Requantize | None = None,
    out_dtype: DTypeLike | None = None,
    allow_bf16_dot: bool = False,
) -> Plan:
    """Plan a product for operands like these, to be called as ``p(a, b, out)``.

    Args:
        a: an array, or other memory that :func:`gemm` takes, with the shape, strides and type to
            come.
        b: likewise; may be a handle from :func:`prepack_rhs`, which the plan is then bound to.
        out: likewise; ``None``: as the new array of a call without one.
        alpha: as for :func:`gemm`.
        beta: as for :func:`gemm`.
        c: as for :func:`gemm`, and bound: each call reads it.
        bias: as for :func:`gemm`, and bound: each call reads it.
        activation: as for :func:`gemm`.
        epilogue: as for :func:`gemm`; traced once.
        conj_a: as for :func:`gemm`.
        conj_b: as for :func:`gemm`.
        threads: as for :func:`gemm`.
        workspace: as for :func:`gemm`.
        reproducible: as for :func:`gemm`.
        backend: as for :func:`gemm`.
        a_zero_point: as for :func:`gemm`.
        b_zero_point: as for :func:`gemm`.
        requantize: as for :func:`gemm`.
        out_dtype: as for :func:`gemm`.
        allow_bf16_dot: as for :func:`gemm`.

    Raises:
        TypeError, ValueError, MemoryError, IsaError: as :func:`gemm`.
    """
    options = Options(
        alpha, beta, activation, conj_a, conj_b, epilogue, workspace, reproducible, backend,
        a_zero_point, b_zero_point, requantize, out_dtype, allow_bf16_dot, c, bias,
    )  # fmt: skip
    a, b = plain_or_packed("a", a), plain_or_packed("b", b)
    made = _made(a, b, out, options, resolve_threads(threads))
    made.recipe = Recipe.of(a, b, out, options, threads)
    return made


def _again(recipe: Recipe) -> Plan:
    operands, arguments = recipe.arguments()
    return plan(*operands, **arguments)


def _made(a: Any, b: Any, out: Any, options: Options, count: int) -> Plan:
    handles = isinstance(a, Packed) or isinstance(b, Packed)
    if options.plain and not handles and not covers(a, b):
        note = f"delegated to numpy.matmul: {a.dtype} @ {b.dtype} has no kernel"
        return _without_kernel(functools.partial(_delegate, count), note)
    if is_stack(a, b, plain=options.plain):
        stack = BoundStack(a, b, out, options, count)
        made = Plan(stack)
        made.executable, made.note = stack.executable, stack.note
        return made
    product = Product(a, b, out, options)
    target, copied = product.target()
    bound = _Bound(product, options, count)
    if not (product.m and product.n):
        return _without_kernel(bound, "an empty result: nothing is computed")
    if product.blas:
        return _without_kernel(bound, blas.explain(product))
    executable = planned(product, target, count)
    if copied or not enters(product) or options.workspace is not None:
        made = Plan(bound)
    else:
        made = Plan(bind(product, target, executable, bound, bound=True))
    made.executable, made.note = executable, ""
    return made


def _delegate(threads: int, a: object, b: object, out: Array | None = None) -> Any:
    return matmul(a, b, out, threads=threads)


def _without_kernel(function: Any, note: str) -> Plan:
    made = Plan(function)
    made.executable, made.note = None, note
    return made
