"""Kernels of one's own: a source, the types of its operands, and the record they come in.

A launch is a grid of items, drawn by threads in tickets of several.  The source is written for one
item; what surrounds it, here, unpacks the record and draws tickets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jitgemm.errors import LanguageError
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import BY_NAME, ElementType
from jitgemm.kernels.arrays import ArrayView
from jitgemm.kernels.tickets import drain, span
from jitgemm.lang.core import Function, Int, Kernel, Ptr, Vec, parameters
from jitgemm.lang.record import Record, View

__all__ = ["ArrayType", "Constant", "LaunchSpec", "launch_functions", "launch_record"]


@dataclass(frozen=True, slots=True)
class ArrayType:
    """What the code of a kernel depends on in an array."""

    element: ElementType
    ndim: int
    dense: bool
    """Elements of the last axis are side by side."""
    writable: bool


@dataclass(frozen=True, slots=True)
class Constant:
    """What a kernel knows while it is generated; equal ones are written alike."""

    name: str
    text: str
    """Tells -0.0 from 0.0, 1 from True, and not a NaN from itself."""
    value: Any = field(compare=False)

    @staticmethod
    def of(name: str, value: object) -> Constant:
        """A constant of a built-in type."""
        return Constant(name, f"{type(value).__name__} {value!r}", value)


@dataclass(frozen=True)
class LaunchSpec:
    """What the code of a kernel depends on."""

    name: str
    source: Callable[..., None] = field(repr=False)
    """``source(k, *operands, *indices, **constants)`` writes what is done for one item."""
    operands: tuple[tuple[str, ArrayType | str], ...]
    """Names in order, with the type of an array, or the kind of a scalar: ``int`` or an element
    type's name."""
    axes: int
    """Axes of the grid."""
    constants: tuple[Constant, ...]
    isa: Isa

    @cached_property
    def symbol(self) -> str:
        """Name of the generated function."""
        return "launch_" + re.sub(r"\W", "_", self.name, flags=re.ASCII)


def launch_record(spec: LaunchSpec) -> Record:
    """The record of a launch: the grid, then each operand.

    An array has its address, shape and strides in bytes, a scalar itself in the first bytes of its
    slot.
    """
    fields = ["counters", "tickets", "grain", "items", *(f"axis_{i}" for i in range(spec.axes))]
    for name, kind in spec.operands:
        fields.append(f"of_{name}")
        if isinstance(kind, ArrayType):
            fields += [f"of_{name}_{what}_{i}" for what in ("n", "by") for i in range(kind.ndim)]
    return Record(spec.symbol, *fields)


def _operand(job: View, name: str, kind: ArrayType | str) -> ArrayView | Int | Vec:
    """An operand as the source sees it."""
    at = f"of_{name}"
    if isinstance(kind, ArrayType):
        shape = tuple(job.int(f"{at}_n_{i}") for i in range(kind.ndim))
        strides = tuple(job.int(f"{at}_by_{i}") for i in range(kind.ndim))
        dense = kind.dense and kind.ndim > 0
        return ArrayView(
            name, job.pointer(at), kind.element, shape, strides, dense=dense, writable=kind.writable
        )
    return job.int(at) if kind == "int" else job.scalar(at, BY_NAME[kind])


def _items(spec: LaunchSpec, record: Record) -> Function:
    """``items(record, start, stop)``: items of the grid in C order."""

    def body(k: Kernel, job_at: Ptr, start: Int, stop: Int) -> None:
        job = record.view(k, job_at)
        operands = [_operand(job, name, kind) for name, kind in spec.operands]
        constants = {c.name: c.value for c in spec.constants}
        lengths = [job.int(f"axis_{i}") for i in range(1, spec.axes)]
        for item in k.range(start, stop):
            indices, rest = [], item
            for length in reversed(lengths):
                indices.append(rest % length)
                rest = rest // length
            try:
                spec.source(k, *operands, rest, *reversed(indices), **constants)
            except LanguageError as error:
                error.add_note(f"in kernel {spec.name}")
                raise

    return Function(f"{spec.symbol}_items", parameters("job* start stop"), body)


def launch_functions(spec: LaunchSpec) -> list[Function]:
    """``launch(record, thread)``: draw tickets of ``grain`` items until there are no more."""
    record = launch_record(spec)
    items = _items(spec, record)

    def body(k: Kernel, job_at: Ptr, thread: Int) -> None:  # noqa: ARG001  # a job's ABI
        job = record.view(k, job_at)
        grain, total = job.int("grain"), job.int("items")

        def work(ticket: Int) -> None:
            k.call(items, job_at, *span(k, ticket, grain, total))

        drain(k, job.pointer("counters"), job.int("tickets"), None, work)

    return [Function(spec.symbol, parameters("job* thread"), body)]
