"""Zero points and scales that differ between the products of a stack."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm import Requantize
from oracle import MANY_PIECES, TINY, another_machine, anything, exact_gemm, pairwise, same_bits

Array = np.ndarray[Any, Any]
I1, U1 = np.dtype(np.int8), np.dtype(np.uint8)

# Batch axes of A and of B.
STACKS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "both": ((3,), (3,)),
    "one B": ((3,), ()),
    "one A": ((), (3,)),
    "two axes": ((2, 3), (3,)),
    "crosswise": ((2, 1), (1, 3)),
    "apart": ((2, 1, 3), (2, 1)),
    "more axes than code runs over": ((2, 1, 2, 1, 2, 1), (1, 2, 1, 2, 1, 2)),
}
# Of the batch axes, those along which the numbers differ.
ALONG = {
    "all": lambda batch: batch,
    "the first": lambda batch: (*batch[:1], *(1 for _ in batch[1:])),
    "the last": lambda batch: batch[-1:],
    "all but the last": lambda batch: (*batch[:-1], 1),
}
# Shapes of zero points of A and B, and of the scale; "" is none, "m" one per row, "n" per column.
NUMBERS = {
    "rows": ("m", "", ""),
    "columns": ("", "n", ""),
    "rows and scales of rows": ("m", "n", "m"),
    "one each and scales of columns": ("1", "1", "n"),
    "a scale each": ("", "n", "1"),
    "one of A for all": ("all", "n", ""),
}
SIZES = ((1, 1, 3), (5, 33, 7), (1, 9, 4), (6, 1, 5))


def _numbers(
    rng: np.random.Generator, numbers: str, lead: tuple[int, ...], m: int, n: int
) -> dict[str, Any]:
    shapes = {"m": (m, 1), "n": (1, n), "1": (1, 1)}
    zero_a, zero_b, scale = NUMBERS[numbers]
    given: dict[str, Any] = {}
    for name, shape, kind in (("a_zero_point", zero_a, I1), ("b_zero_point", zero_b, U1)):
        if shape:
            given[name] = 7 if shape == "all" else anything(rng, (*lead, *shapes[shape]), kind)
    if scale:
        scales = rng.random((*lead, *shapes[scale])) / 200 + 1e-5
        given["requantize"] = Requantize(scales, -3, I1, bias=rng.integers(-999, 999, n))
    return given


def _of_item(given: dict[str, Any], full: tuple[int, ...], index: tuple[int, ...]) -> Any:
    """The same numbers for one product."""
    (*batch, m, n), result = full, dict(given)

    def own(x: Any, shape: tuple[int, int]) -> Array:
        return np.broadcast_to(x, (*batch, *shape))[index]

    for name, shape in (("a_zero_point", (m, 1)), ("b_zero_point", (1, n))):
        if name in given:
            result[name] = own(given[name], shape).reshape(-1)
    if "requantize" in given:
        rule = given["requantize"]
        scale = own(
            rule.scale, (m if np.shape(rule.scale)[-2] > 1 else 1, np.shape(rule.scale)[-1])
        )
        result["requantize"] = Requantize(scale, rule.zero_point, rule.type, rule.bias)
    return result


def _want(a: Array, b: Array, given: dict[str, Any]) -> Array:
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    full = (*batch, a.shape[-2], b.shape[-1])
    left, right = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    want = np.empty(full, I1 if "requantize" in given else np.int32)
    for index in np.ndindex(*batch):
        want[index] = exact_gemm(left[index], right[index], **_of_item(given, full, index))
    return want


CASES = [
    *pairwise(STACKS, ALONG, NUMBERS, range(len(SIZES)), ("as planned", "in pieces", "split")),
]


@pytest.mark.usefixtures("low")
@pytest.mark.parametrize("numbers", NUMBERS)
def test_products_have_numbers_of_their_own(numbers: str, rng: np.random.Generator) -> None:
    for stack, along, which, size, how in CASES:
        if which != numbers:
            continue
        (m, n, k), batches = SIZES[size], STACKS[stack]
        a = anything(rng, (*batches[0], m, k), I1)
        b = anything(rng, (*batches[1], k, n), U1)
        lead = ALONG[along](np.broadcast_shapes(*batches))
        given = _numbers(rng, numbers, lead, m, n)
        want, why = _want(a, b, given), (stack, along, size, how)
        knobs = {"batch_split_flops": 0} if how == "split" else {}
        threads = 1 if how == "as planned" else 2
        with nullcontext() if threads == 1 else another_machine(TINY, **MANY_PIECES, **knobs):
            for _ in range(2):
                same_bits(jitgemm.gemm(a, b, threads=threads, **given), want, why)
            # Rows and columns of the kernel are those of the result, or exchanged.
            for out in (np.zeros_like(want), np.zeros_like(want.swapaxes(-1, -2)).swapaxes(-1, -2)):
                assert jitgemm.gemm(a, b, threads=threads, out=out, **given) is out
                same_bits(out, want, why)
            same_bits(jitgemm.plan(a, b, threads=threads, **given)(a, b), want, why)
            if not batches[1]:
                packed = jitgemm.prepack_rhs(b)
                same_bits(jitgemm.gemm(a, packed, threads=threads, **given), want, why)
            if not batches[0]:
                left = jitgemm.prepack_lhs(a)
                same_bits(jitgemm.gemm(left, b, threads=threads, **given), want, why)
        same_bits(jitgemm.gemm(a, b, backend="blas", **given), want, why)


def test_every_design_is_met() -> None:
    for i, axis in enumerate((STACKS, ALONG, NUMBERS)):
        assert {case[i] for case in CASES} == set(axis)


def test_numbers_of_the_first_product_say_nothing_of_the_others(rng: np.random.Generator) -> None:
    a, b = anything(rng, (3, 4, 6), I1), anything(rng, (3, 6, 5), U1)
    for where in range(3):
        # Zero points but in one product; a scale beyond one in one product.
        zeros, scales = np.zeros((3, 4, 1), int), np.full((3, 1, 1), 0.001)
        zeros[where], scales[where] = 5, 1e6
        for given in (
            {"a_zero_point": zeros},
            {"a_zero_point": zeros, "b_zero_point": zeros[:, :1]},
            {"requantize": Requantize(scales, 1, I1)},
        ):
            same_bits(jitgemm.gemm(a, b, **given), _want(a, b, given), where)


def test_numbers_for_one_axis_of_one_are_for_all(rng: np.random.Generator) -> None:
    a, b = anything(rng, (3, 4, 6), I1), anything(rng, (6, 5), U1)
    points = anything(rng, (1, 4, 1), I1)
    want = jitgemm.gemm(a, b, a_zero_point=points[0])
    same_bits(jitgemm.gemm(a, b, a_zero_point=points), want)
    same_bits(jitgemm.gemm(a, b, a_zero_point=points.tolist()), want)


def test_stacks_of_nothing() -> None:
    for batch, m, k in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        a, b = np.ones((batch, m, k), I1), np.ones((batch, k, 5), U1)
        rule = Requantize(np.ones((batch, 1, 5)), 1, I1)
        points = np.ones((batch, m, 1), int)
        got = jitgemm.gemm(a, b, a_zero_point=points, requantize=rule)
        same_bits(got, np.ones((batch, m, 5), I1))


def test_an_out_that_overlaps(rng: np.random.Generator) -> None:
    a, b = anything(rng, (3, 5, 5), I1), anything(rng, (3, 5, 5), U1)
    rule = Requantize(rng.random((3, 5, 1)) / 99 + 1e-4, 0, I1)
    points = anything(rng, (3, 1, 5), U1)
    want = _want(a, b, {"b_zero_point": points, "requantize": rule})
    assert jitgemm.gemm(a, b, out=a, b_zero_point=points, requantize=rule) is a
    same_bits(a, want)


@pytest.mark.parametrize(
    "name, shape",
    [
        ("a_zero_point", (2, 3, 1)), ("a_zero_point", (3, 1, 5)), ("a_zero_point", (1, 3, 4, 1)),
        ("a_zero_point", (3,)), ("b_zero_point", (3, 4, 1)), ("b_zero_point", (2, 1, 5)),
        ("scale", (3, 4, 5)), ("scale", (2, 1, 1)), ("scale", (3, 5)),
    ],
)  # fmt: skip
def test_c23_numbers_that_fit_no_stack(name: str, shape: tuple[int, ...]) -> None:
    a, b, out = np.ones((3, 4, 6), I1), np.ones((3, 6, 5), U1), np.full((3, 4, 5), 7, I1)
    x, rule = np.ones(shape, int), Requantize(1.0)
    given: dict[str, Any] = {name: x, "requantize": rule}
    if name == "scale":
        given = {"requantize": Requantize(x)}
    words = rf"^jitgemm: (requantize\.)?{name}: expected .*broadcasts to \(3, .*got shape \("
    for call in (jitgemm.gemm, jitgemm.plan):
        with pytest.raises(ValueError, match=words):
            call(a, b, out=out, **given)
    assert (out == 7).all()
