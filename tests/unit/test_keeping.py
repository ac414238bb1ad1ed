"""Caches of bounded size: what is forgotten, and that nobody has to wait for anybody."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from jitgemm.runtime import keeping
from jitgemm.runtime.keeping import BoundedCache, keep


def _known(cache: BoundedCache[Any, Any]) -> list[Any]:
    return [slot.value for slot in cache._slots.values()]


def test_the_least_recently_used_is_forgotten() -> None:
    cache: BoundedCache[str, int] = BoundedCache(3)
    for i, key in enumerate("abc"):
        cache.put(key, i)
    assert [cache.get(key) for key in "abca"] == [0, 1, 2, 0]
    cache.put("d", 3)
    assert cache.get("b") is None
    assert [cache.get(key) for key in "acd"] == [0, 2, 3]
    cache.put("a", 9)  # put again: used
    cache.put("e", 4)
    assert cache.get("c") is None
    assert (cache.get("a"), len(cache)) == (9, 3)


def test_each_is_the_one_to_go_when_all_others_were_used() -> None:
    for unused in range(5):
        cache: BoundedCache[int, int] = BoundedCache(5)
        for i in range(5):
            cache.put(i, i)
        for i in range(5):
            if i != unused:
                assert cache.get(i) == i
        cache.put(5, 5)
        assert sorted(_known(cache)) == sorted({*range(6)} - {unused})


def test_values_may_be_false() -> None:
    cache: BoundedCache[int, Any] = BoundedCache(2)
    cache.put(0, None)
    cache.put(1, 0)
    assert cache.get(0) is None
    assert cache.get(1) == 0
    cache.put(2, [])
    assert len(cache) == 2
    assert cache.get(2) == []


def test_all_of_it_may_be_forgotten() -> None:
    cache: BoundedCache[int, int] = BoundedCache(4)
    for i in range(4):
        cache.put(i, i)
    cache.get(0)
    assert cache.forget()
    assert sorted(_known(cache)) == [0, 2, 3]
    assert [cache.forget() for _ in range(4)] == [True, True, True, False]
    cache.put(1, 1)
    cache.clear()
    assert len(cache) == 0
    assert not cache.forget()


def test_none_may_be_kept() -> None:
    cache: BoundedCache[int, int] = BoundedCache(0)
    cache.put(1, 1)
    assert len(cache) == 0


def test_what_is_forgotten_is_let_go_of() -> None:
    class Value:
        pass

    cache: BoundedCache[int, Value] = BoundedCache(1)
    first = Value()
    gone = weakref.ref(first)
    cache.put(1, first)
    del first
    assert gone() is not None
    cache.put(2, Value())
    assert gone() is None


def test_a_dictionary_forgets_what_was_kept_least_recently() -> None:
    cache: dict[str, int] = {}
    for i, key in enumerate("abc"):
        keep(cache, key, i, 3)
    keep(cache, "a", 0, 3)
    keep(cache, "d", 3, 3)
    assert cache == {"c": 2, "a": 0, "d": 3}
    keep(cache, "e", 4, 1)
    assert cache == {"e": 4}


def test_caches_are_asked_to_forget_while_they_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_caches", [])
    monkeypatch.setattr(keeping, "_dictionaries", [])
    assert not keeping._forget()
    cache: BoundedCache[int, int] = BoundedCache(9)
    other: BoundedCache[int, int] = BoundedCache(9)
    plain: dict[int, int] = {}
    for i in range(3):
        cache.put(i, i)
        keep(plain, i, i, 9)
    cache.get(0)
    other.put(7, 7)
    assert keeping._forget()
    assert (sorted(_known(cache)), len(other), plain) == ([0, 2], 0, {1: 1, 2: 2})
    assert [keeping._forget() for _ in range(3)] == [True, True, False]
    assert (len(cache), plain) == (0, {})
    assert len(keeping._dictionaries) == 1
    del cache, other
    gc.collect()
    assert keeping._caches == []


def _at_once(count: int, work: Callable[[int], None]) -> None:
    failed: list[BaseException] = []

    def guarded(i: int) -> None:
        try:
            work(i)
        except BaseException as e:
            failed.append(e)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failed


def test_whoever_keeps_and_forgets_at_once() -> None:
    cache: BoundedCache[int, int] = BoundedCache(5)

    def work(i: int) -> None:
        for turn in range(8_000):
            key = (turn * 7 + i) % 11
            if turn % 3 == 0:
                cache.put(key, key)
            elif turn % 50 == 1:
                cache.forget()
            elif turn % 1000 == 2:
                cache.clear()
            else:
                assert cache.get(key) in (key, None)

    _at_once(6, work)
    assert len(cache) <= 5 + 6
    cache.put(99, 99)
    assert len(cache) <= 5


def test_finalisers_keep_and_forget_too() -> None:
    # In 3.11 a collection may begin at any allocation, and finalisers run any Python.
    cache: BoundedCache[int, Any] = BoundedCache(4)

    class Thing:
        def __init__(self, i: int) -> None:
            self.number, self.circle = i, self

        def __del__(self) -> None:
            cache.put(self.number + 1000, self.number)
            cache.get(self.number)
            cache.forget()
            finalised.append(self.number)

    finalised: list[int] = []
    before = gc.get_threshold()
    gc.set_threshold(5, 2, 2)
    try:
        for i in range(2_000):
            cache.put(i, Thing(i))
            assert len(cache) <= 4
    finally:
        gc.set_threshold(*before)
    assert len(finalised) > 300
