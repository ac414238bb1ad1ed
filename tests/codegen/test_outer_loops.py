"""Kernels on a unit of outer products: hot loops, and where the mode begins and ends.

They are compiled for AArch64 on any machine.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from assembly import functions_of, tile_loops_of
from syntax import AARCH64

from jitgemm.isa.tables import of_lengths
from jitgemm.isa.types import BF16, F16, F32, F64, I8, I16, I32, I64, U8
from jitgemm.jit import compiler
from jitgemm.kernels.arithmetic import OperandTypes
from jitgemm.kernels.expression import ACTIVATIONS
from jitgemm.kernels.outer import outer_microkernel
from jitgemm.kernels.spec import Bias, BSource, Epilogue, GemmSpec, Scale
from rows import typed_spec

_FULL = Epilogue(beta=True, bias=Bias.FULL, program=ACTIVATIONS["relu"])
_POINTS = Epilogue(zero_a=True, zero_b=True, scale=Scale.ROW)
_SILU = Epilogue(bias=Bias.COLUMN, program=ACTIVATIONS["silu"])
# Types, the product, epilogues, and whether B is read in place too.
_PRODUCTS = {
    "f32": (OperandTypes.of(F32), "fmopa", _SILU, True),
    "f64": (OperandTypes.of(F64), "fmopa", _FULL, True),
    "i8": (OperandTypes(I8, U8, I32, I32, I8), "sumopa", _POINTS, False),
    "i16": (OperandTypes(I16, I16, I64, I64, I64), "smopa", Epilogue(beta=True), False),
    "f16": (OperandTypes(F16, F16, F16, F16, F16), "fmopa", _FULL, True),
    "bf16": (OperandTypes(BF16, BF16, F32, F32, F32, bf16_dot=True), "bfmopa", _FULL, False),
}
_SETS = (("sme_wide", 128, 512), ("sme2", 128, 128), ("sve_sme2", 512, 256))


def _specs() -> list[Any]:
    found = []
    for name, (types, _, epilogue, in_place) in _PRODUCTS.items():
        for lengths in _SETS:
            for source in (BSource.PACKED, BSource.INPLACE)[: 1 + in_place]:
                spec = typed_spec(of_lengths(*lengths), types, epilogue, source=source)
                assert spec.outer is not None
                word = _PRODUCTS[name][1]
                label = f"{name}-{lengths[0]}-{lengths[2]}-{source.value}"
                found.append(pytest.param(spec, word, id=label))
    return found


every = pytest.mark.parametrize("spec, word", _specs())

Code = dict[str, list[str]]


@cache
def _code(spec: GemmSpec) -> Code:
    """Lines of each function of the spec's unit, without comments."""
    return functions_of(compiler.assembly(compiler.gemm_unit(spec)), AARCH64)


def _count(lines: list[str], pattern: str) -> int:
    return sum(bool(re.search(pattern, line)) for line in lines)


def _called(lines: list[str]) -> set[str]:
    """What a function calls or jumps to, ``?`` for an address in a register."""
    calls = [re.match(r"\t(?:bl|b)\t([A-Za-z_]\w*)$", line) for line in lines]
    return {c[1] for c in calls if c} | ({"?"} if _count(lines, r"\tblr\t") else set())


@every
def test_each_depth_step_is_one_load_per_vector_and_one_product_per_tile(
    spec: GemmSpec, word: str
) -> None:
    """Nothing else is in memory, and nobody is called."""
    code, lanes = _code(spec), spec.lanes
    for panels, rows in spec.tile.groups:
        columns, heights = panels * spec.tile.nr_regs, set()
        for loop in tile_loops_of(code[outer_microkernel(spec, panels).name], AARCH64):
            found = [re.match(rf"\t{word}\tza(\d+)", x) for x in loop.lines]
            tiles = {x[1] for x in found if x}
            assert sum(x is not None for x in found) == loop.products
            steps, left = divmod(loop.products, len(tiles))
            height, over = divmod(len(tiles), columns)
            assert (left, over) == (0, 0), loop
            heights.add(height)
            assert loop.loads - len(loop.stack) == steps * (height + columns), loop
            assert not loop.slow, loop
            assert not loop.count(loop.syntax.store), loop
            # Loads take the first eight predicates only: of more masks some are on the stack.
            assert all(x.startswith("ldr\tp") for x in loop.stack), loop
            assert len(loop.stack) <= max(0, height + columns - 7), loop
        assert heights == set(range(1, rows // lanes + 1))


@every
def test_the_mode_is_entered_once_for_a_block(spec: GemmSpec, word: str) -> None:
    code = _code(spec)
    assert sum(_count(x, rf"\t{word}\t") for x in code.values()) > 0
    streaming = [name for name, x in code.items() if _count(x, r"\tsmstart\tsm$")]
    (entered,) = streaming
    assert _count(code[entered], r"\tsmstart\tsm$") == 1
    arrays = [name for name, x in code.items() if _count(x, r"\tsmstart\tza$")]
    (outside,) = arrays
    for name, lines in code.items():
        changes = _count(lines, r"\tsm(start|stop)\b|\tmsr\tsvcr|\tmsr\tSVCR")
        assert changes == (2 if name in (entered, outside) else 0), name
    assert _called(code[outside]) == {entered, "jitgemm_save_za"}
    # The array is turned on for a block as often as the mode is entered: no loop is around it.
    assert not _count(code[outside], r"\tb\.|\tcb")


@every
def test_code_in_the_mode_stays_among_itself(spec: GemmSpec, word: str) -> None:
    """It calls nothing outside, and has no arithmetic of NEON, which is refused there."""
    code = _code(spec)
    (entered,) = (name for name, x in code.items() if _count(x, r"\tsmstart\tsm$"))
    inside, more = set(), {entered}
    while more:
        inside |= more
        more = set().union(*(_called(code[name]) for name in more)) - inside
        assert more <= code.keys(), more - code.keys()
    others = code.keys() - inside
    assert not any(_called(code[name]) & (inside - {entered}) for name in others)
    assert any(_count(code[name], rf"\t{word}\t") for name in inside)
    for name in inside:
        # The first number of a vector may be taken out of it.
        wrong = [x for x in code[name] if re.search(r"\bv\d+\.", x)
                 and not re.match(r"\t(?:umov|smov|mov)\t[wx]\d+, v\d+\.\w\[0\]", x)]  # fmt: skip
        assert not wrong, (name, wrong)
    for name in others:
        assert not _count(code[name], r"\bz\d+\.|\bza\d|mopa\t"), name
