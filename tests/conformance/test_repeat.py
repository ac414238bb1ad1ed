"""Many small products in one call, against the written contract and the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from cases import (
    Array,
    Factors,
    Operands,
    backends,
    execute,
    expected,
    same_bytes,
    specs,
)

from jitgemm.jit import compiler
from jitgemm.kernels import registry
from jitgemm.kernels.job import AHEAD, JOB, STEPS
from jitgemm.kernels.repeat import TOGETHER, repeat
from jitgemm.kernels.spec import Bias, BSource, GemmSpec
from oracle import same_bits

SPECS = specs([BSource.INPLACE])


@dataclass(frozen=True)
class Stack:
    """A stack of products, in numbers; gaps everywhere but between columns."""

    spec: GemmSpec
    count: int
    m: int
    n: int
    k: int
    tile_rows: int
    shared: str = ""
    """Operands that are the same for all products: letters of ``abcv``, ``v`` for the bias."""
    turned_a: bool = False
    backwards: bool = False
    """Products follow each other towards lower addresses."""

    def _values(self, x: Operands, name: str, rows: int, cols: int) -> Array:
        count = 1 if name in self.shared else self.count
        stack = x.values(count, rows + 1, cols + 3)[:, :rows, 1 : 1 + cols]
        if self.backwards:
            stack = stack[::-1]
        return np.broadcast_to(stack, (self.count, rows, cols)) if count == 1 else stack

    def build(self) -> tuple[Operands, list[int], Array, Array]:
        """Operands, the arguments of the call, D, and what must be in it."""
        spec, m, n, k = self.spec, self.m, self.n, self.k
        x, f = Operands(spec, seed=5), Factors(spec)
        a, b = self._values(x, "a", m, k), self._values(x, "b", k, n)
        if self.turned_a:
            a = self._values(x, "a", k, m).transpose(0, 2, 1)
        c, d = self._values(x, "c", m, n), self._values(x, "d", m, n)
        job: dict[str, Any] = {
            "m": m, "n": n * spec.components, "k_groups": k, "tile_rows": self.tile_rows,
            **f.fields(x),
        }  # fmt: skip
        given = {"a": a, "b": b, "d": d} | ({"c": c} if spec.epilogue.beta else {})
        bias = None
        if spec.epilogue.bias is not Bias.NONE:
            rows = 1 if spec.epilogue.bias is Bias.COLUMN else m
            cols = 1 if spec.epilogue.bias is Bias.ROW else n
            given["bias"] = bias = self._values(x, "v", rows, cols)
        steps: dict[str, Any] = {}
        for name, array in given.items():
            job[name] = x.add(name, array, out=name == "d", initialised=name != "d")
            steps[name], job[f"{name}_row"], job[f"{name}_col"] = array.strides
        if spec.epilogue.bias is Bias.ROW:
            job["bias_col"] = 0
        # Only hints, also where there is nothing.
        steps |= {f"ahead_{name}": 100 for name in AHEAD}
        want = np.stack([
            expected(spec, f, a[i], b[i], c=c[i], bias=None if bias is None else bias[i])
            for i in range(self.count)
        ])  # fmt: skip
        return x, [x.record(JOB, job), x.record(STEPS, steps), self.count], d, want

    def check(self, alone: compiler.Unit | None = None) -> None:
        """Run all three."""
        sides = []
        for compiled in backends(self.spec):
            x, arguments, d, want = self.build()
            execute(self.spec, repeat(self.spec), x, arguments, compiled=compiled, alone=alone)
            same_bits(d, want, f"{compiled=} {self}")
            sides.append(x)
        same_bytes(sides, str(self))


def _stacks(spec: GemmSpec) -> Iterator[Stack]:
    """One tile and several, whole and partial ones, and every way to go down a stack."""
    mr, width = spec.tile.mr, spec.nr // spec.components
    few = min(3, mr)
    yield Stack(spec, TOGETHER + 1, few, width - 1, 2, few)
    yield Stack(spec, 3, 1, width, 3, 1, shared="b")
    yield Stack(spec, 2, mr + 1, width + 1, 2, (mr + 2) // 2, backwards=True)
    yield Stack(spec, 2, few, 1, 2, few, shared="acv", turned_a=True)
    yield Stack(spec, 2, 1, 2, 0, 1)


@pytest.mark.parametrize("spec", SPECS)
def test_stacks(spec: GemmSpec) -> None:
    """Each product by the contract, and not a byte beside it."""
    for stack in _stacks(spec):
        stack.check()


@pytest.mark.parametrize("spec", SPECS)
def test_stacks_of_narrow_products(spec: GemmSpec) -> None:
    """The tile of a B no wider than one vector."""
    slim = replace(spec, tile=registry.slim_tile(spec.tile))
    rows = slim.tile.mr
    alone = compiler.Unit(f"repeat_{slim.symbol}", slim.isa, lambda: [repeat(slim)])
    Stack(slim, 2, rows, max(1, slim.nr // slim.components - 1), 2, rows).check(alone)
    Stack(slim, TOGETHER + 2, 1, 1, 1, 1, shared="v").check(alone)
