"""Deep sums shared by ranges of depth: the bits of every other route, whoever forms which sums."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import TURNED_ALPHA, TURNED_BETA, compiles, rich, specs
from products import Case

from jitgemm.kernels.spec import Bias, BSource, GemmSpec
from jitgemm.kernels.split import split

SPECS = rich(specs())
SHORT = 32
"""Longer blocks are left to machine code."""


def _case(spec: GemmSpec, blocks: int, rest: int = 0) -> Case:
    """Few rows and columns, ``blocks`` depth blocks and ``rest`` steps more."""
    bias = "cols" if spec.epilogue.bias is Bias.ROW else "rows"
    rows = min(2, spec.tile.mr)
    depth = blocks * spec.element.depth_block + rest
    return Case(spec, 2, 3, depth, rows, layout_bias=bias, round_blocks=blocks or 1)


@pytest.mark.parametrize("spec", SPECS)
def test_one_round(spec: GemmSpec) -> None:
    """A single block, several in one range, a range each; a last block that is short."""
    slow = spec.element.depth_block > SHORT
    block = spec.element.depth_block
    for case in (
        replace(_case(spec, 1), k=block - 1, n=1),
        replace(_case(spec, 1), m=1, tile_rows=1),
        replace(_case(spec, 1, 1), m=1, n=1, tile_rows=1, round_blocks=2, zeros=True),
        replace(_case(spec, 2, 1), range_blocks=3, round_blocks=3),
        replace(_case(spec, 2, 1), round_blocks=3, layout_a="cols"),
    ):
        case.check(split(spec), machine_only=slow)


@pytest.mark.parametrize("spec", SPECS)
def test_several_rounds(spec: GemmSpec) -> None:
    """The sum of the rounds before rests; a last round is shorter, even than its ranges."""
    slow = spec.element.depth_block > SHORT
    rounds = ((3, 2, 2), (3, 1, 1), (5, 3, 2))
    for blocks, per_round, per_range in rounds[: 1 if slow else 3]:
        case = replace(_case(spec, blocks), round_blocks=per_round, range_blocks=per_range)
        case.check(split(spec), machine_only=slow)
    wide = spec.nr // spec.components + 1
    case = replace(_case(spec, 2, 1), round_blocks=1, n=wide, m=spec.tile.mr + 1)
    case.check(split(spec), machine_only=True)
    # Reducers take rows of their own.
    replace(case, m=5, n=2, tile_rows=1, row_tiles=2).check(split(spec), machine_only=True)


@pytest.mark.parametrize("spec", [p for p in SPECS if p.values[0].components == 2])
def test_complex_scalars_and_conjugation(spec: GemmSpec) -> None:
    """Block sums are combined with the signs of the whole product."""
    for conj in ("a", "b", "ab"):
        case = replace(_case(spec, 2, 3), round_blocks=2, alpha=TURNED_ALPHA, beta=TURNED_BETA)
        replace(case, conj=conj).check(split(spec), machine_only=True)


@pytest.mark.parametrize("spec", [p for p in SPECS if compiles(p.values[0])])
def test_two_threads(spec: GemmSpec) -> None:
    """Each packs B for itself; rounds wait for each other."""
    blocks = 4 if spec.element.depth_block > SHORT else 11
    case = replace(_case(spec, blocks, 5), threads=2, m=5, n=spec.nr // spec.components + 1)
    for per_round, per_range in ((12, 1), (4, 2), (1, 1)):
        replace(case, round_blocks=per_round, range_blocks=per_range).check_threads(split(spec))


def test_every_source_is_met() -> None:
    sources = {p.values[0].b for p in SPECS if p.values[0].element.depth_block <= SHORT}
    assert sources == set(BSource)
