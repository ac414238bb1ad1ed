"""Sentence 15 for what stays: handles and workspaces take the memory they say, and little more.

Counted in processes of their own, by the kernel's exact sums over all mappings.
"""

from __future__ import annotations

import os
import sys

import pytest

from jitgemm.runtime.memory import aligned_buffer, huge_pages
from oracle import NESTED, run_python

pytestmark = [
    pytest.mark.skipif(NESTED in os.environ, reason="the same on all instruction sets"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

MIB, HUGE = 1 << 20, 2 << 20
# Around every bound: no huge page, part of one, one and a little, nearly two, many.
SIZES = sorted(
    size
    for pages in (0, 1, 2, 3, 16, 31, 32, 33)
    for size in (
        pages * HUGE + 1, pages * HUGE + 4097, pages * HUGE + HUGE // 8, pages * HUGE + MIB,
        pages * HUGE + MIB + 1, pages * HUGE + HUGE - 40_000, pages * HUGE + HUGE - 1,
        pages * HUGE + HUGE,
    )
)  # fmt: skip
_RESIDENT = """
import gc, sys
import numpy as np
import jitgemm
from jitgemm.runtime.memory import aligned_buffer

def resident():
    gc.collect()
    with open("/proc/self/smaps_rollup") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("Rss:"))
"""


@pytest.mark.parametrize("size", SIZES)
def test_huge_pages_are_asked_for_where_they_are_filled(size: int) -> None:
    pages = huge_pages(size)
    assert pages * HUGE <= size + size / 64, "wastes more than a sixty-fourth"
    assert (pages + 1) * HUGE > size, "a whole huge page goes without"
    if size >= 64 * HUGE:
        assert pages * HUGE >= size, "large buffers have nothing else"


def _flags(address: int) -> set[str]:
    """What the kernel was told about the mapping an address is in."""
    here = False
    with open("/proc/self/smaps") as file:
        for line in file:
            first, *rest = line.split()
            if "-" in first and ":" not in first:
                low, high = (int(x, 16) for x in first.split("-"))
                here = low <= address < high
            elif here and first == "VmFlags:":
                return set(rest)
    raise AssertionError("no such mapping")


@pytest.mark.skipif(
    not os.path.exists("/sys/kernel/mm/transparent_hugepage"), reason="no transparent huge pages"
)
@pytest.mark.parametrize("size", [HUGE, HUGE + 1, 2 * HUGE - 1, 5 * HUGE + MIB, 64 * HUGE + 1])
def test_the_kernel_is_asked_for_these_and_no_others(size: int) -> None:
    buffer = aligned_buffer(size)
    assert buffer.nbytes == size
    address, pages = buffer.__array_interface__["data"][0], huge_pages(size)
    assert address % HUGE == 0
    for page in range(0, size, HUGE):
        last = min(page + HUGE, size) - 1
        for place in (page, last):
            huge = "hg" in _flags(address + place)
            assert huge == (place < pages * HUGE), (page, place)
    behind = address + max(size - 1, pages * HUGE - 1)
    assert behind // HUGE == address // HUGE + (size - 1) // HUGE, "the mapping holds all of it"


def test_c15_many_handles_take_what_they_say() -> None:
    run_python(
        _RESIDENT
        + """
rhs, lhs = jitgemm.prepack_rhs, jitgemm.prepack_lhs
for prepack, shape, dtype, count in (
    (rhs, (768, 768), "f4", 48), (lhs, (768, 768), "f4", 10), (rhs, (500, 530), "f4", 20),
    (rhs, (700, 700), "f4", 20), (lhs, (1000, 1500), "f4", 5), (rhs, (515, 1025), "f4", 20),
    (rhs, (2100, 3000), "f4", 2), (rhs, (5000, 5243), "f4", 1), (rhs, (768, 768), "f8", 8),
    (rhs, (1100, 2000), "i1", 20), (rhs, (300, 300), "f4", 90),
):
    w = np.ones(shape, dtype)
    prepack(w[:8, :8])
    before = resident()
    handles = [prepack(w) for _ in range(count)]
    said = sum(handle.nbytes for handle in handles)
    took = resident() - before
    assert took < 1.03 * said + (1 << 20), (prepack, shape, dtype, took / said)
    # Small ones may find memory that was taken before.
    assert took > 0.9 * said or said / count < 1 << 20, (prepack, shape, dtype, took / said)
    del handles
"""
    )


def test_c15_buffers_of_any_size_take_what_they_hold() -> None:
    run_python(
        _RESIDENT
        + """
for size in map(int, sys.argv[1:]):
    count = max(1, (16 << 20) // size) if size < 1 << 20 else 3 if size < 8 << 20 else 1
    before = resident()
    buffers = [aligned_buffer(size) for _ in range(count)]
    untouched = resident() - before
    for buffer in buffers:
        buffer.fill(1)
    took, held = resident() - before, size * count
    assert untouched < (1 << 20), (size, untouched)
    assert took < 1.03 * held + (1 << 20), (size, took / held)
    del buffers, buffer
""",
        *map(str, [size for size in SIZES if size >= 100_000]),
    )


def test_c15_what_a_workspace_does_not_use_costs_nothing() -> None:
    # It grows by powers of two; a huge page that is used in part counts as a whole one.
    run_python(
        _RESIDENT
        + """
spaces = []
for need in (5 << 10, 1 << 20, (1 << 20) + 1, (2 << 20) + 1, 5 << 20, (8 << 20) + 1, 33 << 20):
    space = jitgemm.Workspace()
    spaces.append(space)
    before = resident()
    with space.lend(need):
        space._buffer[:need] = 1
        took = resident() - before
    assert space.nbytes == 1 << (need - 1).bit_length()
    assert took < need + (2 << 20) + (1 << 18), (need, took)
    if need < 1 << 20:
        assert took < 1 << 20
"""
    )
