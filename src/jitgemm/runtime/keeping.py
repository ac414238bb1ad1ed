"""Keeping what earlier calls have found out, up to a number, in dictionaries.

There is no lock: whatever runs Python while another call is in the middle of this, a thread or the
handler of a signal, may keep and forget as well.
"""

from __future__ import annotations

from typing import TypeVar

__all__ = ["keep"]

K = TypeVar("K")
V = TypeVar("V")


def keep(cache: dict[K, V], key: K, value: V, most: int) -> None:
    """Keep ``value``, and forget the oldest if there are too many.

    Each operation on the dictionary is atomic, and none relies on what an earlier one has found.
    """
    cache[key] = value
    while len(cache) > most:
        try:
            oldest = next(iter(cache))
        except (RuntimeError, StopIteration):
            continue  # changed by somebody else in between
        cache.pop(oldest, None)
