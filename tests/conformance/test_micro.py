"""Microkernels: every variant of every tile, with every epilogue, on packed B and B in place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from cases import (
    PLAIN,
    TURNED_ALPHA,
    TURNED_BETA,
    Array,
    Factors,
    Operands,
    backends,
    bias_of,
    bits,
    block_sums,
    by_lane,
    combine,
    concluded,
    execute,
    meanings,
    number_of,
    pack,
    rich,
    same_bytes,
    specs,
)

from jitgemm.isa.tables import BY_NAME
from jitgemm.jit import compiler
from jitgemm.jit.target import available
from jitgemm.kernels import registry
from jitgemm.kernels.job import JOB, TILE
from jitgemm.kernels.micro import microkernel
from jitgemm.kernels.spec import Bias, BSource, GemmSpec
from oracle import same_bits
from rows import distinct_rows, floats_of, integers_of

STRAIGHT = [BSource.PACKED, BSource.INPLACE]
SPECS = specs(STRAIGHT)
EVERY = rich(specs(every=True))
PLACE = (7, 40)


@dataclass
class MicroCase:
    """One microtile and all its operands."""

    spec: GemmSpec
    panels: int
    rows: int
    cols: int
    """In numbers."""
    first: int = 1
    last: int = 1
    depth: int = 3
    factors: Any = None

    def build(self) -> tuple[Operands, list[int], Array, Array]:
        """Operands, the arguments of the call, the target, and what must be in it."""
        spec, rows, cols, depth = self.spec, self.rows, self.cols, self.depth
        f = self.factors or Factors(spec)
        x = Operands(spec, seed=rows * 1000 + cols)
        a = x.matrix(rows, depth, "cols" if spec.a_vectors else "rows")
        b = x.matrix(depth, cols, "rows")
        c, d = x.matrix(rows, cols), x.matrix(rows, cols)
        # Numbers per column lie side by side, those per row need not.
        bias = bias_of(x, spec, (rows, cols), "both" if spec.epilogue.bias is Bias.ROW else "rows")
        # What counts for one source of B only must not be read for another.
        job: dict[str, Any] = {"a_row": a.strides[0], "a_col": a.strides[1], **f.signs()}
        source = b
        if spec.b is BSource.PACKED:
            # A gap after each micropanel tells its stride from its size.
            width = spec.nr // spec.components
            source = np.zeros((self.panels, depth + 1, width), a.dtype)
            source[: -(-cols // width), :depth] = pack(spec, b)
            source = source[:, :depth]
            job["panel_stride"] = source.strides[0]
        else:
            job |= {"b_row": b.strides[0], "panel_stride": spec.panel_row}
        at = x.add("d", d, out=True, initialised=not self.first)
        tile: dict[str, Any] = {
            "target": at, "target_row": d.strides[0], "cols": cols * spec.components,
            "first": self.first, "last": self.last,
        }  # fmt: skip
        tile["ahead"] = 1 << 40  # no memory: only a hint
        if spec.b is BSource.INPLACE:
            tile["count"] = 1
        if not self.first:
            tile |= {"partial": at, "partial_row": d.strides[0]}
        if self.last:
            job |= f.fields(x)
            if spec.epilogue.beta:
                tile |= {"c": x.add("c", c), "c_row": c.strides[0]}
            if bias is not None:
                tile["bias"] = x.add("bias", bias)
                if spec.epilogue.bias is not Bias.COLUMN:
                    tile["bias_row"] = bias.strides[0]
            if spec.epilogue.program is not None:
                tile |= {"row": PLACE[0], "col": PLACE[1]}
        (total,) = block_sums(spec, f, a, b)
        if not self.first:
            total = meanings(spec)["add"](np.ascontiguousarray(d).view(total.dtype), total)
        want = concluded(spec, f, total, c=c, bias=bias, at=PLACE) if self.last else total
        arguments = [
            x.record(JOB, job), x.record(TILE, tile), x.add("a", a), x.add("b", source), depth,
        ]  # fmt: skip
        return x, arguments, d, want.view(number_of(spec))

    def check(self, alone: compiler.Unit | None = None) -> None:
        """Run all three."""
        function, sides = microkernel(self.spec, self.panels, self.rows), []
        for compiled in backends(self.spec):
            x, arguments, d, want = self.build()
            execute(self.spec, function, x, arguments, compiled=compiled, alone=alone)
            same_bits(d, want, f"{compiled=} {self}")
            sides.append(x)
        same_bytes(sides, str(self))


def _edges(spec: GemmSpec, panels: int) -> list[int]:
    """Widths of the last micropanel: one column, inside and at the end of a vector, all but one."""
    width, lanes = spec.nr // spec.components, spec.lanes // spec.components
    before = (panels - 1) * width
    inside = min(lanes + lanes // 2 + 1, width)
    return [before + 1, before + lanes, before + inside, before + max(1, width - 1)]


def test_every_row_is_tested() -> None:
    """Machine code of at least one instruction set ran; no two specs share a symbol."""
    found = specs()
    assert [p for p in found if len(backends(p.values[0])) == 2]
    assert len({p.id for p in found}) == len(found) == 2 * 3 * len(distinct_rows())
    tested = {p.values[0].isa for p in found}
    codes = {code(i) for i in tested for code in (floats_of, integers_of)}
    sets = [i for i in BY_NAME.values() if available(i)]
    assert {code(i) for i in sets for code in (floats_of, integers_of)} <= codes
    rows = {(p.values[0].element.name, p.values[0].components) for p in found}
    assert rows == {(element.name, components) for element, _, components, _ in registry.rows()}
    kinds = {(p.values[0].element.integral, p.values[0].components, p.values[0].epilogue)
             for p in found}  # fmt: skip
    assert len(kinds) == 12, "each epilogue somewhere, for reals, complex numbers and integers"


@pytest.mark.parametrize("spec", SPECS)
def test_every_variant(spec: GemmSpec) -> None:
    """Full and partial columns, all places in a sum of blocks."""
    width = spec.nr // spec.components
    places = [(1, 1), (1, 0), (0, 0), (0, 1)]
    for number, (panels, rows) in enumerate(spec.tile.variants()):
        full = MicroCase(spec, panels, rows, panels * width, depth=2)
        most = (panels, rows) == (1, spec.tile.mr) and spec.epilogue != PLAIN
        for first, last in places if most else (places[number % 4],):
            replace(full, first=first, last=last).check()
        # What follows the loop is met with an epilogue; without one every other edge will do.
        skipped = spec.epilogue == PLAIN and number % 2
        if skipped or (panels > 1 and not spec.partial_groups):
            continue
        # One edge per variant with each flag combination somewhere; together they meet all.
        edge = _edges(spec, panels)[number % 4]
        first, last = places[(number + number // 4) % 4]
        replace(full, cols=edge, first=first, last=last).check()


@pytest.mark.parametrize("spec", [p for p in by_lane(SPECS) if p.values[0].epilogue == PLAIN])
def test_rows_of_a_by_vectors(spec: GemmSpec) -> None:
    """Rows that lie side by side: whole vectors, one that overlaps the last, and none."""
    width = spec.nr // spec.components
    for panels, rows in spec.tile.variants():
        alone = [microkernel(spec, panels, rows)]
        unit = compiler.Unit(alone[0].name, spec.isa, lambda functions=alone: functions)
        for cols in (panels * width, panels * width - 1):
            if panels == 1 or cols == panels * width or spec.partial_groups:
                MicroCase(spec, panels, rows, cols).check(unit)


@pytest.mark.parametrize("spec", SPECS)
def test_narrow_edges(spec: GemmSpec) -> None:
    """All widths of an edge tile, down to whole vectors that do not exist."""
    panels = spec.tile.groups[-1][0] if spec.partial_groups else 1
    width = spec.nr // spec.components
    for cols in sorted({*range(1, width + 1), *_edges(spec, panels), panels * width - 1}):
        MicroCase(spec, panels, 1, cols, depth=1).check()


@pytest.mark.parametrize("spec", EVERY)
def test_every_epilogue(spec: GemmSpec) -> None:
    """Each with each row, source of B, and kind of scalars; also of a sum without depth."""
    rows, width = min(2, spec.tile.mr), spec.nr // spec.components
    micro = microkernel(spec, 1, rows)
    alone = compiler.Unit(f"micro_{spec.symbol}", spec.isa, lambda: [micro])
    case = MicroCase(spec, 1, rows, width - 1)
    case.check(alone)
    replace(case, cols=width, depth=0).check(alone)
    replace(case, cols=1, depth=1, first=0).check(alone)
    if spec.components == 2:
        for alpha, beta, conj in (
            (TURNED_ALPHA, TURNED_BETA, "ab"), (TURNED_ALPHA, 0.5, "a"), (1, TURNED_BETA, "b"),
        ):  # fmt: skip
            factors = Factors(spec, alpha, beta, conj)
            replace(case, factors=factors).check(alone)
            replace(case, factors=factors, cols=width, first=0).check(alone)


@pytest.mark.parametrize("spec", SPECS)
def test_without_depth(spec: GemmSpec) -> None:
    """No depth at all: the epilogue of zero sums, which are positive zeros."""
    case = MicroCase(spec, 1, spec.tile.mr, spec.nr // spec.components, depth=0)
    case.check()
    if spec.epilogue == PLAIN:
        assert not bits(case.build()[3]).any()


def test_the_oracle_is_complex_multiplication() -> None:
    """Signs of conjugation and of the parts, against NumPy's own numbers."""
    rng = np.random.default_rng(5)
    for spec in (p.values[0] for p in SPECS if p.values[0].components == 2):
        a, b = (
            (rng.integers(-4, 5, s) + 1j * rng.integers(-4, 5, s)).astype(number_of(spec))
            for s in ((3, 5), (5, 4))
        )
        for conj in ("", "a", "b", "ab"):
            f = Factors(spec, conj=conj)
            (total,) = block_sums(spec, f, a, b)
            left = a.conj() if f.conj_a else a
            right = b.conj() if f.conj_b else b
            np.testing.assert_array_equal(total.view(a.dtype), left @ right)
    assert not bits(combine(Factors(spec), np.zeros((4, 1, 1), total.dtype))).any()
