"""Pages of machine code: who keeps them, and when they are freed.

Whoever holds a :class:`Pages` may run the code.  When the last holder is gone, finalisers run: in
any thread, in a signal handler, in a collection, in a forked child or at exit, while another thread
is inside LLVM or will never run again.  So they only note that the pages may go; :func:`free` frees
them when code is built next, under the lock of building.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

__all__ = ["Pages", "free", "linked"]


@dataclass(frozen=True, slots=True)
class _Linked:
    """What LLVM has in memory."""

    tracker: Any
    nbytes: int


# The trackers are held here and nowhere else: one that is collected as garbage enters LLVM at once.
_linked: dict[int, _Linked] = {}
_released: list[int] = []
_numbers = itertools.count(1)


class Pages(int):
    """Holds the pages of one linked object; as a number, it names them.

    The garbage collector calls the finalisers of a dead circle before it knows whether one of them
    brings the rest back to life, or still runs the code.  Objects without fields it does not track:
    this one is finalised when nothing refers to it any more, and never before.
    """

    __slots__ = ()

    @staticmethod
    def of(tracker: Any, nbytes: int) -> Pages:
        """Take over what LLVM's linker returned for an object of ``nbytes``."""
        pages = Pages(next(_numbers))
        _linked[pages.__index__()] = _Linked(tracker, nbytes)
        return pages

    # Bound here: at exit this may run when the module's names are gone.
    def __del__(self, *, release: Any = _released.append) -> None:
        release(self.__index__())

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise TypeError("machine code cannot be copied or pickled")


def free() -> None:
    """Unmap what nobody holds.  Only while the lock of building is held."""
    while True:
        try:
            number = _released.pop()
        except IndexError:
            return
        # Nothing but memory is lost if LLVM refuses.
        with suppress(RuntimeError):
            _linked.pop(number).tracker.close()


def linked() -> tuple[int, int]:
    """How many objects are in memory and may be run, and the bytes of their images."""
    known = _linked.copy()
    for number in _released.copy():
        known.pop(number, None)
    return len(known), sum(x.nbytes for x in known.values())
