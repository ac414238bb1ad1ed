"""Handles on one prepacked matrix or on a stack of them: what they say, share, keep and refuse."""

from __future__ import annotations

import base64
import copy
import gc
import itertools
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import jitgemm
from jitgemm.isa.types import F32, I8
from jitgemm.runtime import packed as packed_module
from jitgemm.runtime.packed import (
    MOST_DIMENSIONS,
    Layout,
    Packed,
    PackedLhs,
    PackedRhs,
    layout_number,
    plain_layout,
)
from oracle import equal, exact_gemm, integers, reals, same_bits, unaligned

Array = np.ndarray[Any, Any]
TYPES = [np.dtype(t) for t in ("f4", "f8", "c8", "c16", "f2", ml_dtypes.bfloat16,
                               "i1", "u1", "i2", "i4", "i8", "?")]  # fmt: skip
PACKS: list[Callable[..., Packed]] = [jitgemm.prepack_rhs, jitgemm.prepack_lhs]
BATCHES = [(), (1,), (3,), (2, 3), (2, 1, 2), (0,), (2, 0)]


@pytest.fixture(params=PACKS, ids=["rhs", "lhs"])
def prepack(request: pytest.FixtureRequest) -> Any:
    """One of the two functions that make handles."""
    return request.param


def _line(nbytes: int) -> int:
    """Rounded up to whole cache lines."""
    return -(-nbytes // 64) * 64


def _words(handle: Packed) -> list[int]:
    return [int(x) for x in handle.words]


# -- stacks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_stacks_describe_and_unpack_themselves(
    kind: np.dtype, prepack: Any, rng: np.random.Generator
) -> None:
    for batch, (k, n), conj in itertools.product(
        BATCHES, ((1, 1), (7, 33), (20, 70), (0, 5), (5, 0)), (False, True)
    ):
        x = integers(rng, (*batch, k, n), kind)
        handle = prepack(x, conj=conj)
        why = (batch, k, n, conj)
        assert (handle.shape, handle.ndim, handle.batch) == (x.shape, x.ndim, batch), why
        assert (handle.dtype, handle.conj) == (kind, conj), why
        items, one = int(np.prod(batch)), prepack(np.zeros((k, n), kind))
        assert handle.layout == one.layout, why
        assert handle.item_bytes == one.item_bytes == _line(one.nbytes), why
        extent = (items - 1) * one.item_bytes + one.nbytes if items else 0
        assert handle.nbytes == extent, why
        assert handle.storage.shape == (*batch, handle.item_bytes), why
        assert not handle.storage.flags.writeable
        assert handle.address % 64 == 0
        same_bits(handle.stored(), x, why)
        assert not handle.stored().flags.writeable
        same_bits(handle.unpack(), x.conj() if conj else x, why)
        if batch:
            assert len(handle) == batch[0]
        for part in (str(x.shape), str(kind), handle.isa, f"nr={handle.nr}"):
            assert part in repr(handle)
        assert ("conj=True" in repr(handle)) == conj


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_each_item_is_packed_as_it_would_be_alone(
    kind: np.dtype, prepack: Any, rng: np.random.Generator
) -> None:
    x = integers(rng, (2, 3, 9, 37), kind)
    handle = prepack(x)
    for i, j in np.ndindex(2, 3):
        alone = prepack(x[i, j])
        assert (handle[i, j].storage == alone.storage).all(), (i, j)
        assert (handle.storage[i, j] == alone.storage).all(), (i, j)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_items_multiply_as_handles_of_their_own(kind: np.dtype, rng: np.random.Generator) -> None:
    a, b = integers(rng, (3, 5, 40), kind), integers(rng, (3, 40, 35), kind)
    left, right = jitgemm.prepack_lhs(a), jitgemm.prepack_rhs(b)
    for _ in range(2):
        for i in range(3):
            want = jitgemm.gemm(a[i], b[i])
            same_bits(jitgemm.gemm(a[i], right[i]), want, i)
            same_bits(jitgemm.gemm(left[i], b[i]), want, i)
            plan = jitgemm.plan(a[i], right[i])
            same_bits(plan(a[i], right[i]), want, i)
    if kind.kind == "c":
        equal(jitgemm.gemm(a[1], right.conjugated()[1]), exact_gemm(a[1], b[1].conj()))


SOURCES: dict[str, Callable[[Array], Array]] = {
    "turned axes": lambda x: np.ascontiguousarray(x.transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0),
    "backwards": lambda x: x[::-1, :, ::-1, ::-1].copy()[::-1, :, ::-1, ::-1],
    "gaps": lambda x: np.repeat(np.repeat(x, 2, 0), 3, 3)[::2, :, :, ::3],
    "foreign": lambda x: x.astype(x.dtype.newbyteorder("S")),
    "unaligned": unaligned,
    "broadcast": lambda x: np.broadcast_to(x[:1, :, :, :1], x.shape),
    "broadcast whole": lambda x: np.broadcast_to(x[0, 0], x.shape),
    "lists": lambda x: x,
}


@pytest.mark.parametrize("place", SOURCES)
def test_stacks_are_taken_from_any_memory(
    place: str, kind: Any, prepack: Any, rng: np.random.Generator
) -> None:
    source = SOURCES[place](reals(rng, (2, 3, 5, 38), kind))
    want = np.array(source, kind)
    handle = prepack(want.tolist() if place == "lists" else source)
    same_bits(handle.unpack(kind), want)
    if place == "broadcast whole":
        # Items that are one in the source have places of their own, in which they are equal.
        assert (handle.storage == handle.storage[:1, :1]).all()


def test_packing_a_handle_gives_it_back(prepack: Any, rng: np.random.Generator) -> None:
    handle = prepack(integers(rng, (2, 4, 5), np.complex64))
    assert prepack(handle) is handle
    turned = prepack(handle, conj=True)
    assert (turned.conj, turned.shape, turned.address) == (True, handle.shape, handle.address)


# -- items ----------------------------------------------------------------------------------------


def test_items_are_views(prepack: Any, rng: np.random.Generator) -> None:
    x = reals(rng, (3, 2, 6, 35), np.complex64)
    handle = prepack(x, conj=True)
    for index in (0, 2, -1, np.int8(1), (1,), (-2,), (), (0, 1), (-3, -2), (2, np.uint64(0))):
        part = handle[index]
        assert type(part) is type(handle)
        want = x[index].conj()
        same_bits(part.unpack(), want, index)
        assert (part.shape, part.conj, part.isa) == (want.shape, True, handle.isa)
        assert np.shares_memory(part.storage, handle.storage)
        assert not part.storage.flags.writeable
        given = index if isinstance(index, tuple) else (index,)
        full = [int(i) % s for i, s in zip(given, (3, 2), strict=False)]
        offset = np.ravel_multi_index((*full, *[0] * (2 - len(full))), (3, 2))
        assert part.address == handle.address + offset * handle.item_bytes
        assert part.storage.nbytes == part.item_bytes * int(np.prod(part.batch))
        same_bits(part.conjugated().unpack(), x[index], index)
    assert [h.shape for h in handle] == [(2, 6, 35)] * 3
    for want, part in zip(x, handle, strict=True):
        for inner, item in zip(want, part, strict=True):
            same_bits(item.unpack(), inner.conj())
    same_bits(handle[1][1].unpack(), x[1, 1].conj())
    same_bits(next(reversed(handle)).unpack(), x[2].conj())


def test_items_keep_the_storage_alive(rng: np.random.Generator) -> None:
    a, b = integers(rng, (4, 30), np.float32), integers(rng, (5, 30, 40), np.float32)
    handle = jitgemm.prepack_rhs(b)
    item, gone = handle[3], weakref.ref(handle)
    storage = weakref.ref(handle.storage.base)
    del handle
    gc.collect()
    assert gone() is None, "an item needs the storage only"
    rubbish = [np.full(b.size, np.nan, b.dtype) for _ in range(8)]
    equal(jitgemm.gemm(a, item), exact_gemm(a, b[3]))
    assert storage() is not None
    del item, rubbish
    gc.collect()
    assert storage() is None, "nothing else does"


@pytest.mark.parametrize(
    "index, error",
    [
        (2, IndexError), (-3, IndexError), (2**70, IndexError), ((0, 3), IndexError),
        ((0, -4), IndexError), ((0, 0, 0), IndexError), ((0, 0, 0, 0), IndexError),
        (slice(None), TypeError), (slice(0, 1), TypeError), ((0, slice(None)), TypeError),
        (..., TypeError), (None, TypeError), (True, TypeError), ((0, False), TypeError),
        (np.True_, TypeError), (0.0, TypeError), ("0", TypeError), ([0], TypeError),
        (np.array([0, 1]), TypeError), ((0, (1,)), TypeError),
    ],
)  # fmt: skip
def test_other_indices_are_refused(index: Any, error: type[Exception], prepack: Any) -> None:
    handle = prepack(np.ones((2, 3, 4, 5)))
    with pytest.raises(error, match=r"^jitgemm: index: expected .*, got "):
        handle[index]
    if isinstance(index, slice):
        with pytest.raises(error, match="got slice"):
            handle[index]


def test_what_is_no_stack_has_no_items(prepack: Any) -> None:
    for handle in (prepack(np.ones((4, 5))), prepack(np.ones((2, 4, 5)))[0]):
        for call in (len, iter, list):
            with pytest.raises(TypeError, match=r"^jitgemm: len: expected a stack of operands"):
                call(handle)
        with pytest.raises(IndexError, match=r"^jitgemm: index: expected at most 0 ints"):
            handle[0]
        with pytest.raises(TypeError, match=r"^jitgemm: index: expected ints"):
            handle[:]
        assert handle[()].address == handle.address
    for empty in (prepack(np.ones((0, 4, 5))), prepack(np.ones((0, 2, 4, 5)))):
        assert len(empty) == 0
        assert not list(empty)
        assert empty, "a handle is something, however many items it has"
        with pytest.raises(IndexError):
            empty[0]


def test_there_is_a_most_of_dimensions(prepack: Any) -> None:
    x = np.arange(6.0).reshape(*[1] * (MOST_DIMENSIONS - 2), 2, 3)
    handle = prepack(x)
    same_bits(handle.unpack(), x)
    assert _words(handle)[5:] == [MOST_DIMENSIONS, *x.shape]
    name = "b" if prepack is jitgemm.prepack_rhs else "a"
    words = rf"^jitgemm: {name}: expected at most {MOST_DIMENSIONS} dimensions, got 9"
    with pytest.raises(ValueError, match=words):
        prepack(x[None])
    with pytest.raises(MemoryError, match=r"^jitgemm: workspace: "):
        prepack(np.broadcast_to(np.ones((1, 5)), (2**40, 2**17, 1, 5)))


# -- copies and pickles ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_copies_and_pickles(kind: np.dtype, prepack: Any, rng: np.random.Generator) -> None:
    for batch in ((), (3,), (2, 2), (0,)):
        for conj, (k, n) in itertools.product((False, True), ((6, 35), (0, 3))):
            x = integers(rng, (*batch, k, n), kind)
            handle = prepack(x, conj=conj)
            again = [copy.copy(handle), copy.deepcopy(handle)]
            again += [pickle.loads(pickle.dumps(handle, p))
                      for p in range(pickle.HIGHEST_PROTOCOL + 1)]  # fmt: skip
            for i, h in enumerate(again):
                same_bits(h.unpack(), x.conj() if conj else x, i)
                assert (h.storage == handle.storage).all()
                assert (h.address == handle.address) == (i == 0), "only a copy shares the storage"
                assert h.layout == handle.layout
                assert h.layout.stored is handle.layout.stored
                assert h.layout.packed is handle.layout.packed
                assert _words(h)[1:] == _words(handle)[1:]
                assert _words(h)[0] == h.address
                assert repr(h) == repr(handle)


def test_a_pickle_of_an_item_holds_only_that(prepack: Any, rng: np.random.Generator) -> None:
    x = reals(rng, (50, 2, 16, 64), np.float32)
    handle = prepack(x)
    for part, want in ((handle[7], x[7]), (handle[7, 1], x[7, 1])):
        data = pickle.dumps(part)
        assert len(data) < part.nbytes + 1000 < handle.nbytes
        again = pickle.loads(data)
        same_bits(again.unpack(), want)
        assert again.storage.nbytes == part.storage.nbytes
        own = copy.deepcopy(part)
        assert not np.shares_memory(own.storage, handle.storage)
        same_bits(own.unpack(), want)


# ``pickle.dumps(prepack_rhs(numpy.ones((1, 1))), 2)`` of format 3, cut to one number.
FORMAT_3 = base64.b64decode(
    "gAJjaml0Z2VtbS5ydW50aW1lLnBhY2tlZApfbG9hZApxAChLA1gEAAAAdG95M3EBhnECY2ppdGdlbW0ucnVudGltZS5w"
    "YWNrZWQKTGF5b3V0CnEDKYFxBF1xBShjaml0Z2VtbS5pc2EudHlwZXMKRWxlbWVudFR5cGUKcQYpgXEHXXEIKFgDAAAA"
    "ZjY0cQlLCFgGAAAAZG91YmxlcQpoCU0AAomIWAAAAABxC2ViSwFLAUsBSwFOSwFLAGViY19jb2RlY3MKZW5jb2RlCnEM"
    "WAkAAAAAAAAAAADDsD9xDVgGAAAAbGF0aW4xcQ6GcQ9ScRBjaml0Z2VtbS5ydW50aW1lLnBhY2tlZApQYWNrZWRSaHMK"
    "cRFjbnVtcHkKZHR5cGUKcRJYAgAAAGY4cROJiIdxFFJxFShLA1gBAAAAPHEWTk5OSv////9K/////0sAdHEXYomHcRh0"
    "cRlScRou"
)


def test_pickles_of_older_formats_are_refused() -> None:
    words = r"^jitgemm: pickle: expected packed format 4, got 3$"
    with pytest.raises(ValueError, match=words):
        pickle.loads(FORMAT_3)


def test_broken_pickles_are_refused(prepack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = prepack(np.ones((3, 4, 5), np.float32))
    rebuild, (header, layout, data, how) = handle.__reduce__()
    same_bits(rebuild(header, layout, data, how).unpack(), handle.unpack())
    for cut in (data[:-4], data + bytes(4), data[: len(data) // 3], b""):
        with pytest.raises(ValueError, match=r"^jitgemm: pickle: expected .* packed bytes, got"):
            rebuild(header, layout, cut, how)
    other = {"little": "big", "big": "little"}[sys.byteorder]
    with pytest.raises(ValueError, match=rf"^jitgemm: pickle: expected .*, got {other}-endian"):
        rebuild((*header[:2], other), layout, data, how)
    make, values = layout.__reduce__()
    assert make(*values) == layout
    with pytest.raises(ValueError, match=r"^jitgemm: pickle: expected a known element type"):
        make("f24", *values[1:])
    saved = pickle.dumps(handle)
    monkeypatch.setattr(packed_module, "FORMAT", packed_module.FORMAT + 1)
    with pytest.raises(ValueError, match=r"^jitgemm: pickle: expected packed format"):
        pickle.loads(saved)


# -- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_words_say_all_there_is(kind: np.dtype, prepack: Any, rng: np.random.Generator) -> None:
    for batch, (k, n) in itertools.product(BATCHES, ((7, 33), (0, 5), (5, 0))):
        top = prepack(integers(rng, (*batch, k, n), kind))
        handles = [top, top.conjugated(), copy.copy(top), pickle.loads(pickle.dumps(top))]
        if batch and 0 not in batch:
            handles += [top[0], top[-1].conjugated()]
        for h in handles:
            words = h.words
            assert type(words) is np.ndarray
            assert (words.dtype, words.shape, words.strides) == (np.int64, (14,), (8,))
            assert words.flags.c_contiguous
            assert words.flags.aligned
            assert words is h.words, "made once"
            with pytest.raises(ValueError, match="read-only"):
                words[0] = 1
            with pytest.raises(ValueError, match="WRITEABLE"):
                words.flags.writeable = True
            items = int(np.prod(h.batch))
            number = layout_number(h.layout, type(h))
            shape = [*h.shape, *[0] * (8 - h.ndim)]
            assert _words(h) == [
                h.address, h.item_bytes, items, number, int(h.conj), h.ndim, *shape
            ]  # fmt: skip
        assert [bool(h.words[4]) for h in handles[:2]] == [False, True]
        assert top.words[4] == 0, "the twin has words of its own"


def test_the_words_lead_to_the_numbers(rng: np.random.Generator) -> None:
    # Read as generated code does: one plain panel per item, whose numbers lie row by row.
    x = reals(rng, (4, 5, 6), np.float64)
    layout = plain_layout(jitgemm.prepack_rhs(x).layout.stored, 5, 6, 1)
    handle = PackedRhs(layout, "none", x.dtype, batch=(4,))
    handle.fill(x.tobytes())
    at, step, items = _words(handle)[:3]
    buffer = handle.storage.reshape(-1)
    assert (items, buffer.__array_interface__["data"][0]) == (4, at)
    for i in range(items):
        found = buffer[i * step : i * step + x[i].nbytes].view(x.dtype).reshape(5, 6)
        same_bits(found, x[i])
    assert np.shares_memory(handle.stored(), handle.storage), "one plain panel needs no copy"
    same_bits(handle.stored(), x)


def test_handles_cannot_be_changed(prepack: Any) -> None:
    handle = prepack(np.ones((2, 4, 5), np.complex64))
    before = _words(handle)
    for name in ("words", "conj", "isa", "batch", "_buffer", "_layout", "shape", "other"):
        with pytest.raises(AttributeError, match=rf"^jitgemm: {name}: .* a handle is read-only"):
            setattr(handle, name, True)
        with pytest.raises(AttributeError, match=rf"^jitgemm: {name}: .* a handle is read-only"):
            delattr(handle, name)
    assert _words(handle) == before
    assert not hasattr(handle, "__dict__")


# -- numbers of layouts ---------------------------------------------------------------------------


def test_equal_layouts_have_one_number() -> None:
    layout = Layout(F32, 40, 50, 16)
    others = [replace(layout, **{name: value}) for name, value in (
        ("stored", I8), ("k", 41), ("n", 51), ("nr", 8), ("components", 2), ("packed", I8),
        ("group", 2), ("sums", 64),
    )]  # fmt: skip
    kinds: tuple[type[Packed], ...] = (PackedRhs, PackedLhs)
    numbers = [layout_number(x, kind) for x in (layout, *others) for kind in kinds]
    assert len(set(numbers)) == len(numbers) == 18
    assert all(type(x) is int and 0 < x < 2**31 for x in numbers)
    gc.collect()
    again = [layout_number(replace(x), kind) for x in (layout, *others) for kind in kinds]
    assert again == numbers
    travelled = pickle.loads(pickle.dumps([layout, *others]))
    assert [layout_number(x, kind) for x in travelled for kind in kinds] == numbers


def test_threads_agree_on_numbers() -> None:
    found: list[list[int]] = []
    gate = threading.Barrier(8)

    def work() -> None:
        gate.wait()
        found.append([layout_number(Layout(F32, 7, n, 3), PackedRhs) for n in range(200)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 8
    assert all(x == found[0] for x in found)
    assert len(set(found[0])) == 200


def test_handles_on_equal_layouts_share_the_number(rng: np.random.Generator) -> None:
    x = integers(rng, (3, 20, 33), np.float32)
    right, left = jitgemm.prepack_rhs(x), jitgemm.prepack_lhs(x.swapaxes(1, 2))
    assert right.layout == left.layout
    assert right.words[3] == right[1].words[3] == jitgemm.prepack_rhs(x[0]).words[3]
    assert left.words[3] == left[1].words[3]
    assert right.words[3] != left.words[3], "the kind of handle counts"
    assert right.words[3] != jitgemm.prepack_rhs(x[..., :-1]).words[3]
