"""Job records: the only Python that writes slots of :data:`~jitgemm.kernels.job.JOB` by name.

A plan has parts of it (``planner.records``), whose fields are slots.  A call adds addresses and its
data.  Arrays may be a job or a view of one inside a larger record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from jitgemm.kernels.job import DATA, JOB, POINTERS, TABLES
from jitgemm.planner.problem import Operand
from jitgemm.planner.records import ByteOrder, Panels, Part, Sizes, Strides
from jitgemm.planner.route import GemmPlan
from jitgemm.runtime.engine import record_array

__all__ = [
    "ADDRESSES", "Span", "address_in", "job_in", "packing", "place_workspace", "set_addresses",
    "set_data", "set_operands", "template",
]  # fmt: skip

ADDRESSES = {name: JOB.slot(name) for name in (*POINTERS, *TABLES, "constants", "rounding")}
"""Slots that hold addresses, by name: operands are ``a``, ``b`` or ``packed``, ``c``, ``d`` and
``bias``, in the plan's orientation."""

_DATA = slice(JOB.slot(DATA[0]), JOB.slot(DATA[0]) + len(DATA))


@dataclass(frozen=True, slots=True)
class Span:
    """An operand in memory: its address, and the bytes before and after it that belong to it."""

    address: int
    low: int
    high: int

    @staticmethod
    def of(where: int, shape: tuple[int, int], strides: tuple[int, int], size: int) -> Span:
        """The span of a matrix with any strides."""
        if 0 in shape:
            return Span(where, 0, 0)
        down, across = (shape[0] - 1) * strides[0], (shape[1] - 1) * strides[1]
        return Span(where, min(0, down) + min(0, across), max(0, down) + max(0, across) + size)


def _job(parts: Iterable[Part]) -> np.ndarray:
    """A job of some parts; the other slots are zero."""
    job = record_array(JOB.slots)
    for part in parts:
        for name, value in part.slots.items():
            job[JOB.slot(name)] = value
    return job


def template(plan: GemmPlan) -> np.ndarray:
    """The job of a plan, without addresses and data: int64, ``JOB.slots`` long."""
    return _job(plan.records)


def packing(b: Operand, k: int, panel_stride: int) -> np.ndarray:
    """The job that packs a B of ``k`` rows, without its address.

    Args:
        b: its strides in bytes.
        k: its depth, in numbers.
        panel_stride: bytes from one micropanel to the next.
    """
    strides, order = Strides(b_row=b.row, b_col=b.col), ByteOrder(swap_b=b.swapped)
    return _job((Sizes(k_numbers=k), strides, order, Panels(panel_stride)))


def set_operands(job: np.ndarray, spans: Mapping[str, Span]) -> None:
    """Point a job at its operands, by name (:data:`ADDRESSES`)."""
    for name, span in spans.items():
        job[ADDRESSES[name]] = span.address


def set_addresses(job: np.ndarray, addresses: Mapping[str, int]) -> None:
    """Put addresses into a job, by name (:data:`ADDRESSES`)."""
    for name, address in addresses.items():
        job[ADDRESSES[name]] = address


def place_workspace(job: np.ndarray, plan: GemmPlan, scratch: int) -> None:
    """Point a job at its scratch: packed B first, then that of each thread."""
    if plan.workspace_b:
        job[ADDRESSES["packed"]] = scratch
    job[ADDRESSES["workspace_a"]] = scratch + plan.workspace_b


def set_data(job: np.ndarray, record: bytes) -> None:
    """Put the data of a call, all slots of ``DATA`` side by side, into a job."""
    job[_DATA] = np.frombuffer(record, np.int64)


def address_in(job: np.ndarray, name: str) -> int:
    """An address that a job holds, by name (:data:`ADDRESSES`)."""
    return int(job[ADDRESSES[name]])


def job_in(record: np.ndarray, start: int) -> np.ndarray:
    """The job that begins at a slot of a larger record (a view)."""
    return record[start : start + JOB.slots]
