"""The words about vectors and masks, as the interpreter does them: on NumPy arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgemm.errors import LanguageError
from jitgemm.isa.comparisons import COMPARISONS
from jitgemm.isa.conversions import conversion, dtype_of, format_bits
from jitgemm.isa.types import ElementType
from jitgemm.lang.core import Cond, Int, IntLike, Kernel, Mask, Vec

__all__ = ["VectorValues"]

_MASK_OPS: dict[str, Callable[[Any, Any], Any]] = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}


class VectorValues(Kernel):
    """Part of the interpreter."""

    # -- vectors --------------------------------------------------------------------------------
    def zero(self, element: ElementType, lanes: int) -> Vec:
        return Vec(self, np.zeros(lanes, dtype_of(element)), element, lanes)

    def splat(self, scalar: Vec, lanes: int) -> Vec:
        if scalar.lanes != 1:
            raise LanguageError(f"splat of {scalar.lanes} lanes")
        return Vec(self, np.repeat(scalar.handle, lanes), scalar.element, lanes)

    def op(self, name: str, *args: Vec) -> Vec:
        shape = args[0]
        row = self.isa.table(shape.element).get(name)
        if row is None or len(args) != row.arity or shape.element.format:
            raise LanguageError(f"{self.isa.name}: no {name!r} of {len(args)} operands")
        if any((x.element, x.lanes) != (shape.element, shape.lanes) for x in args):
            raise LanguageError(f"{name}: operands of different shapes")
        with np.errstate(all="ignore"):
            result = row.meaning(*(x.handle for x in args))
        if (result.dtype, result.shape) != (shape.handle.dtype, shape.handle.shape):
            raise LanguageError(f"{name}: its meaning changes {shape.element}x{shape.lanes}")
        return Vec(self, result, shape.element, shape.lanes)

    def convert(self, x: Vec, element: ElementType) -> Vec:
        values = x.handle
        for row, _ in conversion(x.element, element, half=self.isa.half):
            with np.errstate(all="ignore"):
                values = row.meaning(values)
        # Where no step is needed the bits are the same, their type may not be.
        return Vec(self, values.view(dtype_of(element)), element, x.lanes)

    def bits(self, x: Vec, element: ElementType) -> Vec:
        if x.handle.nbytes % element.bytes:
            raise LanguageError(f"bits: {x.element}x{x.lanes} is no whole number of {element}")
        values = x.handle.view(dtype_of(element))
        return Vec(self, values, element, values.size)

    def shuffle(self, a: Vec, b: Vec, lanes: Sequence[int]) -> Vec:
        if (a.element, a.lanes) != (b.element, b.lanes) or a.lanes == 1 or len(lanes) == 1:
            raise LanguageError("shuffle: operands of different shapes, or a scalar")
        both = np.concatenate([a.handle, b.handle])
        if not all(0 <= i < both.size for i in lanes):
            raise LanguageError(f"shuffle: no such lanes among {both.size}: {tuple(lanes)}")
        return Vec(self, both[list(lanes)], a.element, len(lanes))

    def extract(self, x: Vec, lane: int) -> Vec:
        self.check_lane(x.lanes, lane)
        return Vec(self, x.handle[lane : lane + 1], x.element, 1)

    def insert(self, x: Vec, lane: int, scalar: Vec) -> Vec:
        self.check_lane(x.lanes, lane)
        self.check_scalar(scalar, x.element)
        values = x.handle.copy()
        values[lane] = scalar.handle[0]
        return Vec(self, values, x.element, x.lanes)

    def integer(self, scalar: Vec) -> Int:
        self.check_integer(scalar)
        return self.const(int(scalar.handle[0]))

    def number(self, value: Int, element: ElementType) -> Vec:
        return Vec(self, np.array([value.handle]).astype(dtype_of(element)), element, 1)

    def steps(self, element: ElementType, lanes: int) -> Vec:
        return Vec(self, np.arange(lanes).astype(dtype_of(element)), element, lanes)

    def literal(self, value: float, element: ElementType, lanes: int) -> Vec:
        exact: float = int(value) if element.integral else value
        if element.format:
            exact = format_bits(value, element)
        with np.errstate(all="ignore"):
            return Vec(self, np.full(lanes, exact, dtype_of(element)), element, lanes)

    def mask(self, count: IntLike, element: ElementType, lanes: int) -> Mask:  # noqa: ARG002
        # The usual mask is a number; any other one is an array of truth values.
        return Mask(self, max(0, min(self.const(count).handle, lanes)), lanes)

    @staticmethod
    def _truths(mask: Mask) -> Any:
        if isinstance(mask.handle, int):
            return np.arange(mask.lanes) < mask.handle
        return mask.handle

    def compare_lanes(self, predicate: str, a: Vec, b: Vec) -> Mask:
        self.check_same(predicate, a, b)
        return Mask(self, COMPARISONS[predicate].meaning(a.handle, b.handle), a.lanes)

    def mask_op(self, op: str, a: Mask, b: Mask) -> Mask:
        self.check_mask(b, a.lanes)
        return Mask(self, _MASK_OPS[op](self._truths(a), self._truths(b)), a.lanes)

    def mask_not(self, a: Mask) -> Mask:
        return Mask(self, ~self._truths(a), a.lanes)

    def choose(self, mask: Mask, yes: Vec, no: Vec) -> Vec:
        self.check_same("choose", yes, no)
        self.check_mask(mask, yes.lanes)
        values = np.where(self._truths(mask), yes.handle, no.handle)
        return Vec(self, values, yes.element, yes.lanes)

    def lane(self, mask: Mask, lane: int) -> Cond:
        self.check_lane(mask.lanes, lane)
        return Cond(self, bool(self._truths(mask)[lane]))

    def any(self, mask: Mask) -> Cond:
        return Cond(self, bool(self._truths(mask).any()))

    def all(self, mask: Mask) -> Cond:
        return Cond(self, bool(self._truths(mask).all()))

    def count(self, mask: Mask) -> Int:
        return Int(self, int(self._truths(mask).sum()))
