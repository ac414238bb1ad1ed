"""Fixed-layout records shared by generated code and the Python that fills them."""

from __future__ import annotations

from jitgemm.isa.types import ElementType
from jitgemm.lang.core import Int, IntLike, Kernel, Ptr, Vec

__all__ = ["Record", "View"]


class Record:
    """Names for the 8-byte slots of a record."""

    def __init__(self, name: str, *fields: str) -> None:
        if len(set(fields)) != len(fields):
            raise ValueError(f"{name}: a field is named twice")
        self.name, self.fields = name, fields
        self._slots = {f: i for i, f in enumerate(fields)}

    @property
    def size(self) -> int:
        """Bytes, a multiple of 64 so that records never share a cache line."""
        return -(-len(self.fields) * 8 // 64) * 64

    @property
    def slots(self) -> int:
        """Size in 8-byte slots."""
        return self.size // 8

    def slot(self, field: str) -> int:
        """Index of ``field`` in units of 8 bytes."""
        return self._slots[field]

    def offset(self, field: str) -> int:
        """Byte offset of ``field``."""
        return self._slots[field] * 8

    def view(self, k: Kernel, p: Ptr) -> View:
        """Fields of the record at ``p`` as run-time values."""
        return View(self, k, p)


class View:
    """Reads and writes the fields of one record at run time."""

    __slots__ = ("k", "ptr", "record")

    def __init__(self, record: Record, k: Kernel, ptr: Ptr) -> None:
        self.record, self.k, self.ptr = record, k, ptr

    def at(self, field: str) -> Ptr:
        """The address of a field."""
        return self.ptr + self.record.offset(field)

    def int(self, field: str) -> Int:
        """A field as an integer."""
        return self.k.load_int(self.at(field))

    def pointer(self, field: str) -> Ptr:
        """A field as a pointer."""
        return self.k.load_ptr(self.at(field))

    def scalar(self, field: str, element: ElementType) -> Vec:
        """A field as one element (in its first bytes)."""
        return self.k.load(self.at(field), element)

    def set(self, field: str, value: IntLike | Ptr) -> None:
        """Write a field."""
        if isinstance(value, Ptr):
            self.k.store_ptr(self.at(field), value)
        else:
            self.k.store_int(self.at(field), value)
