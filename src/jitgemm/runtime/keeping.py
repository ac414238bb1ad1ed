"""Keeping what earlier calls have found out, up to a number: the least recently used is forgotten.

There is no lock: whatever runs Python while another call is in the middle of this, a thread or the
handler of a signal, may keep and forget as well.  So each operation on a dictionary is atomic, and
none relies on what an earlier one has found.

What is kept may hold machine code.  While too much of that is in memory the compiler has all caches
forget, the least recently used first.
"""

from __future__ import annotations

import itertools
from operator import attrgetter
from typing import Any, Generic, TypeVar
from weakref import ref

from jitgemm.jit import compiler

__all__ = ["BoundedCache", "keep"]

K = TypeVar("K")
V = TypeVar("V")

_clock = itertools.count()
_USED = attrgetter("used")


class _Slot(Generic[K, V]):
    """A value, its key, and when it was used."""

    __slots__ = ("key", "used", "value")

    def __init__(self, key: K, value: V) -> None:
        self.key, self.value, self.used = key, value, next(_clock)


class BoundedCache(Generic[K, V]):
    """A dictionary of at most ``most`` values, which forgets those used least recently.

    A use is a number written to the value's slot, so that finding one takes a single look-up.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._slots: dict[K, _Slot[K, V]] = {}
        _caches.append(ref(self, _caches.remove))

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, key: K) -> V | None:
        """The value of a key, which is thereby used; ``None`` if there is none."""
        slot = self._slots.get(key)
        if slot is None:
            return None
        slot.used = next(_clock)
        return slot.value

    def put(self, key: K, value: V) -> None:
        """Keep a value, in place of any other of that key."""
        self._slots[key] = _Slot(key, value)
        while len(self._slots) > self.most:
            self.forget()

    def forget(self) -> bool:
        """Forget the value used least recently; whether there was one."""
        slots = list(self._slots.values())
        if slots:
            self._slots.pop(min(slots, key=_USED).key, None)
        return bool(slots)

    def clear(self) -> None:
        """Forget everything."""
        self._slots.clear()


def keep(cache: dict[K, V], key: K, value: V, most: int) -> None:
    """Keep ``value`` in a dictionary that lives as long as the process.

    What was kept least recently is forgotten if there are more than ``most``: who finds a value and
    keeps it again, uses it.
    """
    if not any(known is cache for known in list(_dictionaries)):
        _dictionaries.append(cache)
    cache.pop(key, None)
    cache[key] = value
    while len(cache) > most:
        _forget_first(cache)


def _forget_first(cache: dict[Any, Any]) -> bool:
    """Forget what was kept least recently; whether there was anything."""
    first = list(cache)[:1]
    for key in first:
        cache.pop(key, None)
    return bool(first)


_caches: list[ref[BoundedCache[Any, Any]]] = []
_dictionaries: list[dict[Any, Any]] = []


def _forget() -> bool:
    """Have every cache forget one value; whether there was any."""
    known = [cache() for cache in list(_caches)]
    done = [cache.forget() for cache in known if cache is not None]
    return any([*done, *(_forget_first(cache) for cache in list(_dictionaries))])


compiler.when_full(_forget)
