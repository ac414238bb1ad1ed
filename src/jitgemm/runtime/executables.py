"""Executables by the spec of their call: those used last are kept."""

from __future__ import annotations

from jitgemm.planner.batching import BatchPlan, plan_call
from jitgemm.planner.callspec import CallSpec
from jitgemm.runtime.batches import BatchExecutable
from jitgemm.runtime.driver import Executable
from jitgemm.runtime.engine import engine
from jitgemm.runtime.keeping import BoundedCache

__all__ = ["executable_for", "forget"]

_KEPT = 512
_known: BoundedCache[CallSpec, Executable | BatchExecutable] = BoundedCache(_KEPT)


def executable_for(spec: CallSpec) -> Executable | BatchExecutable:
    """The plan of a call with its machine code.

    Raises:
        MemoryError: scratch beyond any address space.
    """
    found = _known.get(spec)
    if found is None:
        plan = plan_call(spec, engine().context(spec.threads))
        found = BatchExecutable(plan) if isinstance(plan, BatchPlan) else Executable(plan)
        _known.put(spec, found)
    return found


def forget() -> None:
    """Plan everything anew."""
    _known.clear()
