"""Pages of machine code: who keeps them, and when they are freed.

Freeing enters LLVM, which no finaliser may do: it runs in any thread, in a signal handler, in a
collection, in a forked child or at exit, while another thread is inside LLVM or will never run
again.  Nor does a finaliser say that its object is gone: those of a dead circle are called before
it is known whether one of them brings the rest back to life, or still runs the code.

So there is none.  Who may run the code keeps a token.  When code is built next, under the lock of
building, the pages of tokens that nobody refers to any more are freed.
"""

from __future__ import annotations

import itertools
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

__all__ = ["free", "linked", "token_for"]


@dataclass(frozen=True, slots=True)
class _Linked:
    """What LLVM has in memory."""

    tracker: Any
    nbytes: int
    token: object


# The trackers are held here and nowhere else: one that is collected as garbage enters LLVM at once.
_linked: dict[int, _Linked] = {}
_numbers = itertools.count(1)


def _references(x: _Linked) -> int:
    """To a token; where references are not counted, as many as never are free."""
    return sys.getrefcount(x.token) if hasattr(sys, "getrefcount") else sys.maxsize


_ALONE = min(_references(_Linked(None, 0, object())), sys.maxsize - 1)


def token_for(tracker: Any, nbytes: int) -> object:
    """Take over what LLVM's linker returned for an object of ``nbytes``.

    Returns:
        What keeps its pages: a reference to this very object.
    """
    token = object()
    _linked[next(_numbers)] = _Linked(tracker, nbytes, token)
    return token


def free() -> None:
    """Unmap what nobody keeps.  Only while the lock of building is held."""
    for number in list(_linked):
        found = _linked.get(number)
        if found is None or _references(found) > _ALONE:
            continue
        # A call in the middle of this, as a signal handler's, may free as well: one takes it.
        if _linked.pop(number, None) is not None:
            # Nothing but memory is lost if LLVM refuses.
            with suppress(RuntimeError):
                found.tracker.close()


def linked() -> tuple[int, int]:
    """How many objects are in memory, and the bytes of their images."""
    sizes = [x.nbytes for x in list(_linked.values())]
    return len(sizes), sum(sizes)
