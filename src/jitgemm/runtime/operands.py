"""The memory of a call: what its spec does not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitgemm.planner.problem import Problem
from jitgemm.runtime.data import Scalars
from jitgemm.runtime.jobs import Span
from jitgemm.runtime.memory import Workspace
from jitgemm.runtime.numpy_abi import data_address
from jitgemm.runtime.packed import Packed

__all__ = ["Operands", "address_of"]

Array = NDArray[Any]


def address_of(x: Array | Packed) -> int:
    """Where an operand begins."""
    return int(x.address) if isinstance(x, Packed) else data_address(x)


@dataclass(slots=True, eq=False)
class Operands:
    """Arrays and handles of a call, which own the memory, and the numbers it brings along.

    ``a`` is ``(..., m, k)``, ``b`` ``(..., k, n)``, ``d`` ``(..., m, n)``; C and the bias broadcast
    to that.
    """

    a: Array | Packed
    b: Array | Packed
    d: Array
    c: Array | None
    bias: Array | None
    scalars: Scalars
    workspace: Workspace | None = None

    def spans(self, problem: Problem) -> dict[str, Span]:
        """Addresses of one product, by job field, in the plan's orientation.

        Args:
            problem: the first product, as the kernel sees it.
        """
        a, b = (self.b, self.a) if problem.exchanged else (self.a, self.b)
        p, types = problem, problem.types
        given = {
            "a": (a, p.a, (p.m, p.k), types.a),
            "b": (b, p.b, (p.k, p.n), types.b),
            "c": (self.c, p.c, (p.m, p.n), types.c),
            "d": (self.d, p.d, (p.m, p.n), types.out),
            "bias": (self.bias, p.bias, (p.m, p.n), types.bias),
        }
        spans = {}
        for name, (x, like, shape, element) in given.items():
            if isinstance(x, Packed):
                spans["packed"] = Span(x.address, 0, x.nbytes)
            elif isinstance(x, np.ndarray) and like is not None:
                size = p.components * element.bytes
                spans[name] = Span.of(data_address(x), shape, (like.row, like.col), size)
        return spans
