"""Prepared plans of stacks of products."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from jitgemm.api import blas
from jitgemm.api.batched import StackedProduct, stacked
from jitgemm.api.kinds import number_of
from jitgemm.api.operands import Array, plain_or_packed
from jitgemm.api.product import Options
from jitgemm.errors import message
from jitgemm.planner.batching import explain_batch
from jitgemm.runtime.driver import Executable
from jitgemm.runtime.engine import engine
from jitgemm.runtime.packed import Packed

__all__ = ["BoundStack", "is_stack"]


def is_stack(a: Array | Packed, b: Array | Packed, *, plain: bool) -> bool:
    """Whether a product is one of stacks, or of vectors in a plain product."""
    dims = a.ndim, b.ndim
    return max(dims) > 2 or (plain and min(dims) == 1)


class BoundStack:
    """A stack planned once: ``p(a, b, out)``, for operands of the planned shapes and types."""

    def __init__(self, a: Any, b: Any, out: Any, options: Options, threads: int) -> None:
        product = StackedProduct(a, b, out, options)
        self.threads = threads
        self.dtypes = {"a": a.dtype, "b": b.dtype}
        self.shapes = {"a": a.shape, "b": b.shape}
        self.others = options.c, options.bias
        # All but C and the bias, which come last.
        self.options = tuple(getattr(options, x.name) for x in fields(options))[:-2]
        self.executable: Executable | None = None
        self.note = "an empty result: nothing is computed"
        if product.item.blas and not product.empty:
            self.note = blas.explain(product.item)
        elif not product.empty:
            batch = product.executable(threads)
            self.executable = batch.item
            self.note = explain_batch(batch.plan, engine().machine)

    def __call__(self, a: Any, b: Any, out: Array | None = None) -> Any:
        """Do it."""
        a, b = plain_or_packed("a", a), plain_or_packed("b", b)
        for name, x in (("a", a), ("b", b)):
            shape, dtype = x.shape, x.dtype
            if shape != self.shapes[name]:
                expected = f"shape {self.shapes[name]}, as planned"
                raise ValueError(message(name, expected, f"shape {shape}"))
            if number_of(dtype) != number_of(self.dtypes[name]):
                raise TypeError(message(name, f"{self.dtypes[name]} elements, as planned", dtype))
        result = stacked(a, b, out, self.others, self.options, self.threads)
        return result if out is not None or result.ndim else result[()]
