"""Comparisons lane by lane: how LLVM spells each one, and what it means."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jitgemm.isa.types import ElementType

__all__ = ["COMPARISONS", "Comparison"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two elements.

    A NaN compares with nothing, so that all are false but "different".
    """

    floats: str
    """LLVM's predicate of floats."""
    integers: str
    """That of integers, after the letter of their signedness if it matters."""
    meaning: Callable[[Any, Any], Any]

    def text(self, element: ElementType) -> str:
        """The instruction and its predicate for numbers of this type."""
        if not element.integral:
            return f"fcmp {self.floats}"
        sign = "" if self.integers in ("eq", "ne") else "s" if element.signed else "u"
        return f"icmp {sign}{self.integers}"


COMPARISONS = {
    "lt": Comparison("olt", "lt", operator.lt),
    "le": Comparison("ole", "le", operator.le),
    "eq": Comparison("oeq", "eq", operator.eq),
    "ne": Comparison("une", "ne", operator.ne),
    "gt": Comparison("ogt", "gt", operator.gt),
    "ge": Comparison("oge", "ge", operator.ge),
}
