"""The call cache, Python's side: entries that generated code finds by the signature of a call.

One table for the process, which generated code reads and Python writes, both while they hold the
interpreter lock.  What an entry refers to lives as long as the entry, and as the calls that are
inside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgemm import tuning
from jitgemm.isa.types import F32
from jitgemm.jit import compiler
from jitgemm.jit.target import NO_ISA
from jitgemm.runtime import numpy_abi
from jitgemm.runtime.call_code import PLAN
from jitgemm.runtime.entry_code import ENTRY, PROBES
from jitgemm.runtime.memory import Workspace, address, aligned_buffer
from jitgemm.runtime.packed import PackedLhs, PackedRhs, plain_layout
from jitgemm.runtime.signature_code import CALLS

__all__ = ["Calls", "EntryTable", "record_array"]

_SLOTS = 1 << 13
_SHIFT = 64 - 13


def record_array(slots: int) -> np.ndarray:
    """A zeroed, 64-byte aligned array of 8-byte slots."""
    array = aligned_buffer(slots * 8).view(np.int64)
    array[:] = 0
    return array


class EntryTable(np.ndarray):
    """The record of an entry, with the objects its addresses belong to."""

    keep: tuple[Any, ...]
    layout: Any
    """How its job takes the data of a call: a ``DataLayout``."""

    @staticmethod
    def new(signature: bytes, values: dict[str, int], work: np.ndarray, keep: Any) -> EntryTable:
        """An entry.

        Args:
            signature: of the calls it serves.
            values: its fields, but for these.
            work: the work record of a call, without addresses and factors.
            keep: what it refers to.
        """
        table = record_array(ENTRY.slots).view(EntryTable)
        words = np.frombuffer(signature, np.int64)
        values |= {"length": len(signature), "signature": address(words.view(np.uint8))}
        values |= {"owner": id(table)}
        for name, value in values.items():
            table[ENTRY.slot(name)] = value
        start = ENTRY.slot("work_0")
        table[start : start + len(work)] = work
        table.keep = (words, keep)
        return table

    @property
    def where(self) -> int:
        """Address of the record."""
        return address(self.view(np.ndarray).view(np.uint8))

    @property
    def hash(self) -> int:
        """That of its signature, as a signed number."""
        return int(self.keep[0][0])


class Calls:
    """The table of entries and what all calls need."""

    def __init__(self, pool_cell: int, scratch: int, context: object) -> None:
        self.record = record_array(CALLS.slots)
        self._slots = record_array(2 * (_SLOTS + PROBES)).reshape(-1, 2)
        self._kept: dict[int, EntryTable] = {}
        self._serial = itertools.count()
        self._most = tuning.environment("call_entries")
        layout = plain_layout(F32, 1, 1, 1)
        handle = PackedRhs(layout, NO_ISA, np.dtype(np.float32))
        workspace = Workspace()
        values = {
            "array_type": id(np.ndarray), "list_type": id(list), "tuple_type": id(tuple),
            "none": id(None), "true": id(True), "false": id(False), "one": id(1),
            "float_type": id(float), "float64_type": id(np.float64),
            "float32_type": id(np.float32), "int_type": id(int), "complex_type": id(complex),
            "rhs_type": id(PackedRhs), "lhs_type": id(PackedLhs),
            "packed_words": numpy_abi.slot_offset(handle, "words"),
            "workspace_type": id(Workspace),
            "workspace_record": numpy_abi.slot_offset(workspace, "_record"),
            "new_from_descr": numpy_abi.new_from_descr(),
            "new_scalar": numpy_abi.new_scalar(),
            "context": id(context),
            "scratch": scratch,
            "pool_cell": pool_cell,
            "slots": address(self._slots.reshape(-1).view(np.uint8)),
            "shift": _SHIFT,
        }  # fmt: skip
        for name, value in values.items():
            self.record[CALLS.slot(name)] = value
        self._context = context
        compiler.when_full(self._forget)

    @property
    def where(self) -> int:
        """Address of the record."""
        return address(self.record.view(np.uint8))

    def __len__(self) -> int:
        return len(self._kept)

    def set_threads(self, count: int, *, scoped: bool = False) -> None:
        """Say how many threads calls use that do not say, and that a context may say otherwise."""
        self.record[CALLS.slot("threads")] = count
        if scoped:
            self.record[CALLS.slot("scoped")] = 1

    def set_code(self, address_of: Callable[[str], int]) -> None:
        """Say where the functions are that other parts of the runtime's code call."""
        for name in ("signature", "find", "prepare"):
            self.record[CALLS.slot(f"{name}_code")] = address_of(f"jitgemm_{name}")

    def set_knobs(self, knob: Callable[[str], int]) -> None:
        """Take over the knobs that generated code reads."""
        names = {"parallel": "parallel_flops", "split": "batch_split_flops", "release": "gil_flops"}
        for name, of in names.items():
            self.record[CALLS.slot(f"{name}_flops")] = max(1, knob(of))

    def add(self, entry: EntryTable) -> None:
        """Leave an entry for calls of its signature."""
        entry[ENTRY.slot("used")] = self.record[CALLS.slot("clock")]
        # Kept before it can be found.
        self._kept[next(self._serial)] = entry
        if len(self._kept) > self._most or not self._put(self._slots, entry):
            self._forget()

    def clear(self) -> None:
        """Forget all."""
        known = list(self._kept)
        self._slots[:] = 0
        self._drop(known)

    @staticmethod
    def _put(slots: np.ndarray, entry: EntryTable) -> bool:
        """Find a slot for an entry; whether there was one."""
        hash_ = entry.hash
        first = (hash_ % (1 << 64)) >> _SHIFT
        for at in range(first, first + PROBES):
            if not slots[at, 1]:
                slots[at] = hash_, entry.where
                return True
        return False

    def _forget(self) -> bool:
        """Keep three quarters of the entries, those used last; whether any is forgotten.

        The table is made anew.

        Other threads may find and leave entries between any two steps of this.  Each entry has a
        key of its own, and is let go only when no slot has its address any more.
        """
        known = sorted(self._kept.items(), key=lambda x: -int(x[1][ENTRY.slot("used")]))
        slots, most = np.zeros_like(self._slots), 3 * min(len(known), self._most) // 4
        gone = [serial for serial, _ in known[most:]]
        gone += [serial for serial, entry in known[:most] if not self._put(slots, entry)]
        self._slots[:] = slots
        self._drop(gone)
        return bool(gone)

    def _drop(self, serials: list[int]) -> None:
        for serial in serials:
            self._kept.pop(serial, None)


def plan_record(calls: Calls, python: object, entry: EntryTable, d_words: bytes) -> np.ndarray:
    """The record of a plan, whose only entry this is."""
    table = record_array(PLAN.slots).view(EntryTable)
    words = np.frombuffer(d_words, np.int64)
    values = {
        "calls": calls.where, "python": id(python), "entry": entry.where,
        "d_words": address(words.view(np.uint8)),
    }  # fmt: skip
    for name, value in values.items():
        table[PLAN.slot(name)] = value
    table.keep = (python, entry, words)
    return table
