"""One row times one column: an order of its own, the same on every instruction set that fuses."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from cases import (
    CLIPPED,
    MAPPED,
    PLACED,
    PLAIN,
    TURNED_ALPHA,
    TURNED_BETA,
    Array,
    Factors,
    backends,
    combine,
    concluded,
    execute,
    madd_of,
    number_of,
    pairs_of,
    rich,
    specs,
)
from products import Case
from typed import TypedCase

from jitgemm.isa.types import BF16, F16, F32, F64
from jitgemm.jit.target import available
from jitgemm.kernels import registry
from jitgemm.kernels.arithmetic import OperandTypes
from jitgemm.kernels.dot import dot
from jitgemm.kernels.spec import BSource, Epilogue, GemmSpec
from order import ascending, lane_sums
from rows import distinct_sets, typed_spec

FLOATS = [i for i in distinct_sets() if available(i)]
HALVES = [
    pytest.param(s, id=s.symbol)
    for isa in FLOATS
    for a, b, out, epilogue in (
        (F16, F16, F16, MAPPED), (BF16, BF16, BF16, CLIPPED), (F32, F16, F32, PLAIN),
        (BF16, F16, F32, PLACED), (F16, F64, F64, PLAIN), (F32, F32, BF16, MAPPED),
    )
    for s in [typed_spec(isa, OperandTypes(a, b, out, out, out), epilogue, source=BSource.INPLACE)]
]  # fmt: skip
SPECS = specs([BSource.PACKED, BSource.INPLACE])
RICH = rich(SPECS)
LANE_BYTES = 256


def _lanes(spec: GemmSpec) -> int:
    """Elements of depth per round of the lanes."""
    return LANE_BYTES // spec.components // spec.unit


def dot_sum(spec: GemmSpec, f: Factors, a: Array, b: Array) -> Array:
    """The sum of a row times a column, in reals."""
    pairs, lanes = pairs_of(spec, a, b), _lanes(spec)
    return combine(f, ascending(lane_sums(pairs, lanes, spec.element.depth_block, madd_of(spec))))


@dataclass(frozen=True)
class DotCase(Case):
    """A product of one element, with the oracle of its own order."""

    def wanted(self, a: Array, b: Array, c: Array, bias: Array | None) -> Array:
        """What must be in D."""
        spec, f = self.spec, self.factors
        with np.errstate(all="ignore"):
            total = dot_sum(spec, f, a, b)
        return concluded(spec, f, total, c=c, bias=bias).view(number_of(spec))


def _dot(spec: GemmSpec, depth: int) -> DotCase:
    # A packed column is one that was packed beforehand.
    return DotCase(spec, 1, 1, depth, 1, prepacked=spec.b is BSource.PACKED)


@pytest.mark.parametrize("spec", SPECS)
def test_depths(spec: GemmSpec) -> None:
    """Around a round of the lanes: tails of every kind.  The planner asks for no sum of nothing."""
    lanes = _lanes(spec)
    for depth in (1, 2, lanes - 1, lanes, lanes + 1, 3 * lanes + lanes // 2 + 1):
        _dot(spec, depth).check(dot(spec))


@pytest.mark.parametrize("spec", RICH)
def test_layouts(spec: GemmSpec) -> None:
    """Strides and foreign byte order of every operand; packed columns."""
    case = _dot(spec, 2 * _lanes(spec) + 3)
    for layout_a, layout_b, swap in (
        ("rows", "cols", ""), ("both", "cols", ""), ("cols", "both", ""), ("rows", "cols", "a"),
        ("rows", "cols", "b"), ("both", "both", "abcdv"), ("rows", "reversed", "cdv"),
    ):  # fmt: skip
        if spec.b is BSource.PACKED and "b" in swap:
            continue
        replace(case, layout_a=layout_a, layout_b=layout_b, swap=swap).check(dot(spec))


@pytest.mark.parametrize("spec", RICH)
def test_several_blocks(spec: GemmSpec) -> None:
    """Totals of blocks are added in ascending order."""
    depth = spec.element.depth_block * _lanes(spec)
    for k in (depth, depth + 1, 2 * depth + 5):
        replace(_dot(spec, k), layout_b="cols").check(dot(spec))


@pytest.mark.parametrize("spec", [p for p in SPECS if p.values[0].components == 2])
def test_complex_scalars_and_conjugation(spec: GemmSpec) -> None:
    """Every sign, and factors with an imaginary part."""
    case = replace(_dot(spec, 2 * _lanes(spec) + 1), alpha=TURNED_ALPHA, beta=TURNED_BETA)
    for conj in ("", "a", "b", "ab"):
        replace(case, conj=conj).check(dot(spec))


@pytest.mark.parametrize("components", [1, 2])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["f32", "f64"])
def test_every_set_gives_the_same_bits(name: str, fused: bool, components: int) -> None:  # noqa: FBT001
    """The lanes are virtual: how many a vector has does not show."""
    results: dict[str, bytes] = {}
    for element, isa, count, tile in registry.rows():
        if (element.name, isa.fused, count) != (name, fused, components):
            continue
        spec = GemmSpec(element, isa, tile, BSource.INPLACE, Epilogue(), components)
        for compiled in backends(spec):
            x, job, d, _ = replace(_dot(spec, 3000), layout_b="cols").build()
            execute(spec, dot(spec), x, [job, 0], compiled=compiled)
            results[f"{isa.name} {compiled=}"] = d.tobytes()
    assert len(results) >= 2
    assert len(set(results.values())) == 1, results


@dataclass(frozen=True)
class TypedDotCase(TypedCase):
    """A product of one element of halves, or with some."""

    strided: bool = True

    def total(self, f: Factors, a: Array, b: Array) -> Array:
        """In the order of lanes."""
        with np.errstate(all="ignore"):
            return dot_sum(self.spec, f, a, b)


@pytest.mark.parametrize("spec", HALVES)
def test_halves_are_summed_as_what_they_become(spec: GemmSpec) -> None:
    """Around a round of the lanes, by strides, in foreign byte order, over several blocks."""
    lanes = _lanes(spec)
    case = TypedDotCase(spec, 1, 1, 1, layout_b="cols")
    for depth in (1, 2, lanes - 1, lanes, lanes + 1, 3 * lanes + lanes // 2 + 1):
        replace(case, depth=depth).check(dot(spec))
    odd = replace(case, depth=2 * lanes + 3)
    for layout_a, layout_b, swap in (
        ("both", "cols", ""), ("cols", "both", ""), ("rows", "cols", "ab"),
        ("both", "both", "abcdv"),
    ):  # fmt: skip
        replace(odd, layout_a=layout_a, layout_b=layout_b, swap=swap).check(dot(spec))
    deep = spec.element.depth_block * lanes
    for depth in (deep, 2 * deep + 5):
        replace(case, depth=depth).check(dot(spec), machine_only=True)


@pytest.mark.parametrize("spec", SPECS)
def test_zeros(spec: GemmSpec) -> None:
    """Chains begin with +0, which a sum of negative zeros does not change."""
    for depth in (1, _lanes(spec) + 1):
        replace(_dot(spec, depth), zeros=True).check(dot(spec))
