"""What plans depend on besides the problem, and what is settled before a route plans itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jitgemm.isa.tables import Isa
from jitgemm.kernels.spec import BSource, GemmSpec
from jitgemm.planner.machine import Machine
from jitgemm.planner.problem import Problem

__all__ = ["Context", "Draft", "aligned", "ceil_div", "k_groups", "threads_for"]

_LINE = 64


@dataclass(frozen=True, slots=True)
class Context:
    """What a plan depends on besides the problem."""

    isa: Isa
    machine: Machine
    threads: int
    knob: Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan without its route."""

    problem: Problem
    """Normalised, in the kernel's orientation."""
    spec: GemmSpec
    context: Context
    threads: int

    @property
    def k_groups(self) -> int:
        """Depth in packed k-groups, as the kernel counts it."""
        return k_groups(self.problem.k, self.spec)

    @property
    def packs_b(self) -> bool:
        """Whether B is packed by the call itself."""
        return self.spec.b is BSource.PACKED and self.problem.b is not None


def ceil_div(a: int, b: int) -> int:
    """``a / b``, rounded up."""
    return -(-a // b)


def aligned(nbytes: int) -> int:
    """Whole cache lines."""
    return ceil_div(nbytes, _LINE) * _LINE


def k_groups(k: int, spec: GemmSpec) -> int:
    """A depth of ``k`` numbers in packed k-groups, as one instruction multiplies and adds them."""
    return ceil_div(k, spec.arithmetic.group)


def threads_for(operations: int, context: Context) -> int:
    """Workers worth waking for this much arithmetic (at most what was asked for)."""
    per_thread = max(1, context.knob("parallel_flops"))
    return max(1, min(context.threads, operations // per_thread))
