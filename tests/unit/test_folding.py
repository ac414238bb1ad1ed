"""Folding of batch axes: what becomes one axis, rows or columns, and what must not."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from jitgemm.kernels.job import TABLES
from jitgemm.planner.folding import FIELDS, Axis, Stack, fold


def stack(m: int, n: int, k: int, batch: tuple[tuple[int, str], ...], packed: str = "") -> Stack:
    """A stack of C-contiguous operands of 4 bytes; the letters name who varies along an axis."""
    sizes = {"a": m * k, "b": k * n, "d": m * n, "c": m * n, "bias": n}
    axes = []
    for count, who in reversed(batch):
        operands = {*("a", "b", "bias"), "d"} & {*who.split(), "d"}
        axes.append(Axis(count, **{x: 4 * sizes[x] for x in operands}))
        for x in operands:
            sizes[x] *= count
    rows = Axis(m, a=0 if packed == "a" else 4 * k, d=4 * n)
    cols = Axis(n, b=0 if packed == "b" else 4, d=4)
    return Stack(rows, cols, tuple(reversed(axes)), packed)


def sizes(x: Stack) -> tuple[int, int, tuple[int, ...]]:
    return x.rows.count, x.cols.count, tuple(a.count for a in x.axes)


def offsets(x: Stack) -> list[tuple[int, ...]]:
    """Where every element of every operand lies, by (row, column, item), in no order."""
    axes = (x.rows, x.cols, *x.axes)
    found = []
    for index in itertools.product(*(range(a.count) for a in axes)):
        at = [sum(i * getattr(a, f) for i, a in zip(index, axes, strict=True)) for f in FIELDS]
        found.append(tuple(at))
    return sorted(found)


CASES = {
    "rows": (stack(9, 9, 9, ((10, "a"),)), (90, 9, ())),
    "two axes become rows": (stack(3, 4, 5, ((6, "a"), (7, "a"))), (126, 4, ())),
    "one row, any stride": (stack(1, 8, 8, ((6, "a"), (5, "a b"))), (6, 8, (5,))),
    "one row, the longest axis": (stack(1, 8, 8, ((3, "a"), (2, "a b"), (7, "a"))),
                                  (7, 8, (3, 2))),
    "columns, one of them": (stack(8, 1, 8, ((6, "b"),)), (8, 6, ())),
    "columns of several do not continue": (stack(8, 2, 8, ((6, "b"),)), (8, 2, (6,))),
    "neighbours merge": (stack(3, 4, 5, ((6, "a b"), (7, "a b"))), (3, 4, (42,))),
    "what lies apart does not": (stack(3, 4, 5, ((6, "a"), (7, "a b"))), (3, 4, (6, 7))),
    "an axis of one is dropped": (stack(3, 4, 5, ((1, "a b"), (7, "a b"), (1, "a"))),
                                  (3, 4, (7,))),
    "outer and inner of a row and a column": (stack(1, 1, 5, ((6, "a"), (7, "b"))), (6, 7, ())),
    "a bias that varies with the rows": (stack(3, 4, 5, ((6, "a bias"),)), (3, 4, (6,))),
    "a bias of one row": (stack(1, 4, 5, ((6, "a bias"),)), (6, 4, ())),
    "a packed B keeps its columns": (stack(1, 1, 5, ((6, "a"),), packed="b"), (6, 1, ())),
    "a packed A keeps its rows": (stack(3, 1, 5, ((6, "b"),), packed="a"), (3, 6, ())),
    "neither of a packed operand's": (
        replace(stack(1, 1, 5, ((6, "a"),), packed="b"), packed="a"), (1, 1, (6,))),
    "nothing": (stack(3, 4, 5, ()), (3, 4, ())),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_sizes_and_every_element(case: str) -> None:
    given, want = CASES[case]
    got = fold(given)
    assert sizes(got) == want
    assert offsets(got) == offsets(given)
    assert got.items == len(offsets(got)) // (got.rows.count * got.cols.count)
    assert got.notes


def test_rows_that_lie_within_the_batch() -> None:
    # (m, batch, k) seen as (batch, m, k): the batch axis continues the rows from inside.
    given = Stack(Axis(5, a=60, d=60), Axis(3, b=4, d=4), (Axis(4, a=15, d=15),))
    got = fold(given)
    assert sizes(got) == (20, 3, ())
    assert offsets(got) == offsets(given)


def test_axes_backwards() -> None:
    given = Stack(Axis(5, a=-20, d=-12), Axis(3, b=4, d=4), (Axis(4, a=-100, d=-60),))
    got = fold(given)
    assert sizes(got) == (20, 3, ())
    assert offsets(got) == offsets(given)


def test_strides_of_single_rows_mean_nothing() -> None:
    x = stack(1, 4, 5, ((6, "a b"),))
    odd = replace(x, rows=replace(x.rows, a=12_345, d=777))
    assert fold(odd) == fold(x)


def test_numbers_of_their_own_keep_products_apart() -> None:
    plain = Stack(Axis(3, a=20, d=16), Axis(4, b=4, d=4), (Axis(6, a=420, d=336),
                                                           Axis(7, a=60, d=48)))  # fmt: skip
    assert sizes(fold(plain)) == (126, 4, ())
    for field in TABLES:
        outer, inner = plain.axes
        for given, want in (
            ((replace(outer, **{field: 28}), replace(inner, **{field: 4})), (42,)),
            ((replace(outer, **{field: 4}), inner), (6, 7)),
            ((outer, replace(inner, **{field: 4})), (6, 7)),
        ):
            got = fold(replace(plain, axes=given, unfolded="rc"))
            assert sizes(got) == (3, 4, want)
            assert offsets(got) == offsets(replace(plain, axes=given))


def test_exchanged_axes_exchange_zero_points() -> None:
    x = Axis(3, a=1, b=2, c=3, d=4, bias=5, zero_a=6, zero_b=7, scales=8)
    assert x.transposed == Axis(3, a=2, b=1, c=3, d=4, bias=5, zero_a=7, zero_b=6, scales=8)
    assert x.transposed.transposed == x
