"""Results are the same bits on every set with fused multiply-add, on x86 and on Arm.

``digests.txt`` was written on one of them (``digests.py``); each set computes the same products.
Left out is what has an order or a rounding of its own by contract: ``allow_bf16_dot``, and
reductions of kernels of one's own, whose lanes are those of the set.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from digests import FILE, digest, digests_of, read
from inputs import numbers, words
from products import GROUPS, Result

from jitgemm.runtime.engine import engine
from oracle import BF16, documented


@pytest.mark.everywhere
@pytest.mark.parametrize("group", GROUPS)
def test_results_have_the_bits_of_every_fused_set(group: str, fused: bool) -> None:  # noqa: FBT001
    if not fused:
        pytest.skip(f"{engine().isa.name} rounds products and sums apart: it has bits of its own")
    if engine().isa.interpreted:
        pytest.skip("too slow there: conformance compares it with every set")
    wanted, found = read(), digests_of(GROUPS[group]())
    assert found
    different = [name for name, value in found.items() if wanted.get(name) != value]
    assert not different, f"{engine().isa.name}: other bits in {different}"


def test_the_file_is_read_whole() -> None:
    lines = FILE.read_text("utf-8").splitlines()
    assert all(re.fullmatch(r"[0-9a-f]{64} [ -~]+", line) for line in lines)
    assert len(read()) == len(lines) > 150


def test_the_file_holds_the_documented_order(kind: Any) -> None:
    """Whatever set wrote it: a model in NumPy gives the same, and another rounding does not."""
    name = f"{np.dtype(kind).name} 5x600x9"
    a, b = numbers(f"{name} a", (5, 600), kind), numbers(f"{name} b", (600, 9), kind)
    assert digest(documented(a, b, fused=True)) == read()[name]
    assert digest(documented(a, b, fused=False)) != read()[name]
    assert (
        read()[f"{np.dtype(kind).name} 1x513x1"] != read()[f"{np.dtype(kind).name} 1x513x1 strict"]
    )


def test_the_inputs_are_these_numbers() -> None:
    # splitmix64 of seed 0 begins so in its authors' own code.
    assert words("", 2).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    for dtype in (np.float16, BF16, np.float32, np.float64, np.int8, np.uint64, np.complex64):
        x = numbers("x", (3, 50), dtype)
        assert x.dtype == dtype
        assert len(np.unique(x)) > (40 if x.itemsize == 1 else 70)
        assert (x[0] != numbers("y", (3, 50), dtype)[0]).any()
    x = numbers("x", (999,), np.float32).astype(np.float64)
    assert -8 <= x.min() < -3
    assert 3 < x.max() <= 8


def test_a_digest_is_of_bits_types_and_shapes_but_of_any_nan() -> None:
    x = np.array([[1.0, np.nan, 0.0]], np.float32)
    same = x.copy()
    same.view(np.uint32)[0, 1] |= 0x8000_0123
    assert np.isnan(same[0, 1])
    assert digest(same) == digest(x) == digest(np.asfortranarray(x))
    others = (x[0], x.astype(np.float64), np.array([[1, np.nan, -0.0]], np.float32), x[:, ::-1])
    assert len({digest(y) for y in (x, *others)}) == 5
    assert digest(x.astype(np.complex64)) == digest(same.astype(np.complex64))


def test_ways_that_differ_are_told() -> None:
    one = np.ones((2, 2))
    with pytest.raises(ValueError, match="p: 'first' and 'third' give different bits"):
        digests_of(
            [Result("p", "first", one), Result("p", "second", one), Result("p", "third", -one)]
        )
