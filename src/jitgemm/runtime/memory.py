"""Scratch and packed storage: aligned buffers and workspaces."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from jitgemm.errors import message
from jitgemm.lang.record import Record

__all__ = ["SCRATCH", "Workspace", "address", "aligned_buffer", "thread_workspace"]

SCRATCH = Record("scratch", "busy", "claimed", "address", "size")
"""Scratch as generated code sees it: whether that is using it, whether Python wants it, and where.

Both sides hold the interpreter lock while they look at the other's word and write their own.
"""
_BUSY, _CLAIMED = SCRATCH.slot("busy"), SCRATCH.slot("claimed")

_ALIGN = 64
# As much as the entries of one page of a page table map: 2 MiB of pages of 4096 bytes.
_HUGE = mmap.PAGESIZE * (mmap.PAGESIZE // 8)
# A huge page that a buffer fills to a part only is taken if what is wasted is at most this share of
# the buffer: handles must not take much more memory than their ``nbytes``.
_WASTE = 64


def huge_pages(nbytes: int) -> int:
    """How many huge pages a buffer of ``nbytes`` asks for, from its beginning on.

    A prepacked operand is walked in several streams a panel apart, and small pages cost a TLB miss
    per stream and page.  The rest of the buffer, less than one huge page, does without.
    """
    whole, rest = divmod(nbytes, _HUGE)
    return whole + (rest > 0 and (_HUGE - rest) * _WASTE <= nbytes)


def _huge_buffer(nbytes: int, pages: int) -> NDArray[np.uint8] | None:
    """Anonymous memory aligned to a huge page that begins with ``pages`` transparent huge pages."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        # Private: the default is shared, and a child would scribble over its parent's scratch.
        # What alignment skips, and what lies behind the buffer, is never touched.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        region = mmap.mmap(-1, max(nbytes, pages * _HUGE) + _HUGE, flags=flags)
        raw = np.frombuffer(region, np.uint8)
        skip = -raw.__array_interface__["data"][0] % _HUGE
        # Where all memory gets huge pages unasked, the last one would be one too.
        region.madvise(mmap.MADV_NOHUGEPAGE)
        region.madvise(mmap.MADV_HUGEPAGE, skip, pages * _HUGE)
    except (OSError, ValueError):
        return None
    return raw[skip : skip + nbytes]


def aligned_buffer(nbytes: int) -> NDArray[np.uint8]:
    """``nbytes`` bytes of memory aligned to 64 bytes, on huge pages where that helps.

    Raises:
        MemoryError: there is not that much.
    """
    try:
        pages = huge_pages(nbytes)
        if pages:
            huge = _huge_buffer(nbytes, pages)
            if huge is not None:
                return huge
        raw = np.empty(nbytes + _ALIGN, np.uint8)
    except (MemoryError, ValueError, OverflowError) as e:
        raise MemoryError(f"jitgemm: workspace: {nbytes} bytes could not be allocated") from e
    skip = -raw.__array_interface__["data"][0] % _ALIGN
    return raw[skip : skip + nbytes]


class Workspace:
    """Scratch memory for packing, owned by the caller and reused between calls.

    It grows by powers of two and never shrinks.  Pass it to calls as ``workspace=``; from the
    second call of a size on nothing is allocated.  A call that finds it in use (from another
    thread, or nested) brings scratch of its own, so sharing one is safe.

    Args:
        nbytes: capacity to begin with, in bytes.

    Raises:
        TypeError, ValueError: ``nbytes`` is not an int, or negative.
        MemoryError: there is not that much.
    """

    __slots__ = ("__weakref__", "_buffer", "_lock", "_owner", "_record")

    def __init__(self, nbytes: int = 0) -> None:
        if not isinstance(nbytes, int) or isinstance(nbytes, bool):
            raise TypeError(message("nbytes", "an int", type(nbytes).__name__))
        if nbytes < 0:
            raise ValueError(message("nbytes", "at least 0", nbytes))
        self._record = aligned_buffer(SCRATCH.size).view(np.int64)
        """What generated code reads of it: a :data:`SCRATCH`."""
        self._record[:] = 0
        self._buffer = aligned_buffer(0)
        self._place(nbytes)
        # Among calls that go through Python.  Never waited for.
        self._lock = threading.Lock()
        self._owner = 0
        _workspaces.add(self)

    def _place(self, nbytes: int) -> None:
        """Get another buffer; only while nobody is using the one there is."""
        self._buffer = buffer = aligned_buffer(nbytes)
        first = SCRATCH.slot("address")
        # One assignment: generated code, which holds the interpreter lock, sees both or neither.
        self._record[first : first + 2] = address(buffer), nbytes

    @property
    def nbytes(self) -> int:
        """Capacity in bytes."""
        return self._buffer.nbytes

    @property
    def where(self) -> int:
        """Address of its record."""
        return address(self._record.view(np.uint8))

    def __repr__(self) -> str:
        return f"Workspace(nbytes={self.nbytes})"

    @contextmanager
    def lend(self, nbytes: int) -> Iterator[int]:
        """The address of at least ``nbytes`` bytes, for the duration of a call."""
        if not self._lock.acquire(blocking=False):
            with self._another(nbytes) as found:
                yield found
            return
        try:
            self._owner = threading.get_ident()
            # Generated code leaves it alone from here on, unless it is using it already.
            self._record[_CLAIMED] = 1
            if self._record[_BUSY]:
                with self._another(nbytes) as found:
                    yield found
                return
            if nbytes > self.nbytes:
                self._place(1 << (nbytes - 1).bit_length())
            yield address(self._buffer)
        finally:
            self._record[_CLAIMED] = 0
            self._lock.release()

    @contextmanager
    def _another(self, nbytes: int) -> Iterator[int]:
        """Scratch of the thread's own, while this is in use."""
        mine = thread_workspace()
        if mine is not self:
            with mine.lend(nbytes) as found:
                yield found
            return
        spare = aligned_buffer(nbytes)
        yield address(spare)

    def reserve(self, nbytes: int) -> None:
        """Grow for calls to come, unless it is in use just now."""
        if nbytes > self.nbytes:
            with self.lend(nbytes):
                pass

    def __reduce__(self) -> tuple[type[Workspace], tuple[int]]:
        return Workspace, (self.nbytes,)

    def forked(self) -> None:
        """In a child: a call of another thread, which may have been inside, does not exist."""
        self._record[_BUSY] = 0
        if self._owner != threading.get_ident():
            self._lock = threading.Lock()
            self._record[_CLAIMED] = 0


_workspaces: weakref.WeakSet[Workspace] = weakref.WeakSet()


def _forked() -> None:
    for workspace in tuple(_workspaces):
        workspace.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def address(buffer: NDArray[np.uint8]) -> int:
    """The address of a buffer's first byte."""
    return int(buffer.__array_interface__["data"][0])


_local = threading.local()


def thread_workspace() -> Workspace:
    """This thread's own workspace, for calls that find another one in use."""
    found: Workspace | None = getattr(_local, "workspace", None)
    if found is None:
        found = _local.workspace = Workspace()
    return found
