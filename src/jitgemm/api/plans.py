"""Prepared plans: a product planned once and called many times."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack

from jitgemm.api import blas
from jitgemm.api.call import Call
from jitgemm.api.config import resolve_threads
from jitgemm.api.entries import bound_plan
from jitgemm.api.gufuncs import covers
from jitgemm.api.keywords import GemmKeywords, Options
from jitgemm.api.kinds import number_of
from jitgemm.api.operands import Array, plain_or_packed
from jitgemm.api.postops import snapshot
from jitgemm.api.recipes import Recipe
from jitgemm.api.stubs import with_keywords
from jitgemm.api.ufuncs import matmul
from jitgemm.errors import message
from jitgemm.jit import compiler
from jitgemm.runtime.driver import Executable
from jitgemm.runtime.executables import executable_for
from jitgemm.runtime.packed import Packed

__all__ = ["Plan", "plan"]


class _Bound:
    """What a plan is bound to: checks a call that its entry did not take, and runs it."""

    def __init__(self, a: Any, b: Any, options: Options, threads: int) -> None:
        self.options, self.threads = replace(options), threads
        self.like = {"a": (a.shape, a.dtype), "b": (b.shape, b.dtype)}
        self.vectors = min(a.ndim, b.ndim) < 2
        self.keep = [x for x in (a, b) if isinstance(x, Packed)]

    def __call__(self, a: Any, b: Any, out: Any = None) -> Any:
        a, b = plain_or_packed("a", a), plain_or_packed("b", b)
        for name, x in (("a", a), ("b", b)):
            shape, dtype = self.like[name]
            if x.shape != shape:
                raise ValueError(message(name, f"shape {shape}, as planned", f"shape {x.shape}"))
            if number_of(x.dtype) != number_of(dtype):
                raise TypeError(message(name, f"{dtype} elements, as planned", x.dtype))
        options = replace(self.options, out=out)
        result = Call(a, b, options, vectors=self.vectors).run(self.threads)
        return result if out is not None or result.ndim else result[()]


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
        return self.note

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


@with_keywords(GemmKeywords)
def plan(a: object, b: object, **keywords: Unpack[GemmKeywords]) -> Plan:
    """Plan a product for operands like these, to be called as ``p(a, b, out)``.

    Args:
        a: an array, or other memory that :func:`gemm` takes, with the shape, strides and type to
            come.
        b: likewise; may be a handle from :func:`prepack_rhs`, which the plan is then bound to.
        **keywords: those of :func:`gemm`.  C and the bias are bound: each call reads them.  Scales
            and operands of post-ops are copied.  A function is traced once.  ``out`` is like the
            results to come; without it they are new arrays, or like those.

    Raises:
        TypeError, ValueError, MemoryError, IsaError: as :func:`gemm`.
    """
    options = snapshot(Options.of("plan", keywords))
    left, right = plain_or_packed("a", a), plain_or_packed("b", b)
    made = _made(left, right, options, resolve_threads(options.threads))
    made.recipe = Recipe.of(left, right, options)
    return made


def _again(recipe: Recipe) -> Plan:
    operands, arguments = recipe.arguments()
    return plan(*operands, **arguments)


def _made(a: Any, b: Any, options: Options, count: int) -> Plan:
    handles = isinstance(a, Packed) or isinstance(b, Packed)
    if options.plain and not handles and not covers(a, b):
        note = f"delegated to numpy.matmul: {a.dtype} @ {b.dtype} has no kernel"
        return _without_kernel(functools.partial(_delegate, count), note)
    vectors = options.plain and min(a.ndim, b.ndim) < 2
    call = Call(a, b, options, vectors=vectors)
    bound = _Bound(a, b, options, count)
    if call.empty:
        return _without_kernel(bound, "an empty result: nothing is computed")
    target, _ = call.target()
    spec = call.spec(target, count)
    if call.blas:
        return _without_kernel(bound, blas.explain(spec, call.operands(target), call.blas))
    made = Plan(bound_plan(call, (a, b), options, bound, count) or bound)
    code = executable_for(spec)
    made.executable, made.note = code.one, code.explain()
    return made


def _delegate(threads: int, a: object, b: object, out: Array | None = None) -> Any:
    return matmul(a, b, out, threads=threads)


def _without_kernel(function: Any, note: str) -> Plan:
    made = Plan(function)
    made.executable, made.note = None, note
    return made
