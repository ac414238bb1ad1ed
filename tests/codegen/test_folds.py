"""Hot loops of words and halves: the instructions that are there for them, and no others."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import pytest
from assembly import (
    Loop,
    assembly_of,
    compiled_here,
    functions_of,
    loops_of,
    microkernels,
    tile_loops_of,
)
from syntax import AARCH64, X86, syntax_of

from jitgemm.isa import tables
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import BF16, F16, F32, F64, I8, I16, I32, U8, ElementType
from jitgemm.jit import compiler
from jitgemm.kernels.arithmetic import OperandTypes
from jitgemm.kernels.columndots import column_dots
from jitgemm.kernels.columns import column_tile
from jitgemm.kernels.expression import ACTIVATIONS
from jitgemm.kernels.spec import Bias, BSource, Epilogue, GemmSpec, Scale
from rows import typed_spec

EVERY = [compiled_here(i) for i in tables.BY_NAME.values() if not i.interpreted]
# Matrix units have tests of their own; what is beside them is another set's.
SETS = [i for i in EVERY if i.arch == "x86_64" and i.unit is None]
ARM = [i for i in EVERY if i.arch == "aarch64" and i.unit is None]
FOURS = [i for i in SETS if "dot4" in i.integers]
FUSED = [i for i in SETS if i.fused]
REQUANTISED = Epilogue(zero_a=True, zero_b=True, bias=Bias.COLUMN, scale=Scale.COLUMN)
DOT = OperandTypes(BF16, BF16, F32, F32, F32, bf16_dot=True)
ACTIVE = Epilogue(beta=True, bias=Bias.FULL, program=ACTIVATIONS["relu"])

named = {"ids": lambda x: x.name if isinstance(x, Isa) else str(x)}


def _microkernels(spec: GemmSpec) -> dict[tuple[int, int], Loop]:
    """The one hot loop of each by (rows, columns in vectors)."""
    found = {}
    for size, loops in microkernels(spec).items():
        (found[size],) = loops
    return found


def _is_clean(loop: Loop, what: str) -> None:
    assert not loop.stack, f"{what} spills: {loop.stack}"
    assert not loop.masked, what
    assert not loop.slow, what


@pytest.mark.parametrize("a, b", list(product((I8, U8), repeat=2)), **named)
@pytest.mark.parametrize("isa", FOURS, **named)
@pytest.mark.parametrize("epilogue", [Epilogue(), REQUANTISED], **named)
def test_bytes_are_folded_four_at_a_time(
    isa: Isa, a: ElementType, b: ElementType, epilogue: Epilogue
) -> None:
    out = I32 if epilogue.scale is Scale.NONE else I8
    spec = typed_spec(isa, OperandTypes(a, b, I32, I32, out), epilogue, vectors=True)
    for (rows, columns), loop in _microkernels(spec).items():
        what = f"{rows}x{columns}"
        assert loop.count(r"\bvpdpbusd\b") == loop.folds == rows * columns, what
        _is_clean(loop, what)
        # One load per vector of B, one broadcast per row of A: nothing is read twice.
        assert loop.loads <= 2 * rows + columns + 3, what
        assert not loop.shuffles, what


@pytest.mark.parametrize("epilogue", [Epilogue(), REQUANTISED], **named)
@pytest.mark.parametrize("types", [OperandTypes(U8, I8, I32, I32, I32), DOT], ids=["bytes", "bf16"])
def test_tiles_are_loaded_once_for_four_products(types: OperandTypes, epilogue: Epilogue) -> None:
    if types is DOT and epilogue.zero_a:
        epilogue = ACTIVE
    narrow = replace(types, out=I8) if epilogue.scale is not Scale.NONE else types
    spec = typed_spec(compiled_here(tables.AVX512_AMX), narrow, epilogue)
    functions = functions_of(compiler.assembly(compiler.gemm_unit(spec)), X86)
    for panels, wanted in ((1, {(4, 4), (2, 3)}), (2, {(4, 5)})):
        lines, found = functions[f"{spec.symbol}_tiles_{panels * spec.nr}"], set()
        for loop in tile_loops_of(lines, X86):
            products, loads = loop.products, loop.count(X86.tile_load)
            found.add((products, loads))
            assert not loop.stack, loop.stack
            # Pointers to two or three operands, and the depth.
            assert len(loop.lines) <= products + loads + 12, loop.lines
        assert found == wanted
        assert not any(re.search(r"\ttilerelease", line) for line in lines)
    (macro,) = (x for name, x in functions.items() if name.endswith("_macro"))
    assert sum(line == "\ttilerelease" for line in macro) == 1


# By name of a fold: Arm's instruction for it.
_DOTS = {"dot4": "usdot", "dot4_signed": "sdot", "dot4_unsigned": "udot"}


@pytest.mark.parametrize("a, b", list(product((I8, U8), repeat=2)), **named)
@pytest.mark.parametrize("isa", ARM, **named)
def test_bytes_are_folded_by_arms_dot_products(isa: Isa, a: ElementType, b: ElementType) -> None:
    spec = typed_spec(isa, OperandTypes(a, b, I32, I32, I32), vectors=True)
    instruction = _DOTS.get(spec.arithmetic.accumulate)
    if instruction is None:
        pytest.skip("the set has none for them")
    for (rows, columns), loop in _microkernels(spec).items():
        what = f"{rows}x{columns}"
        assert loop.count(rf"\t{instruction}\t") == loop.folds == rows * columns, what
        _is_clean(loop, what)
        assert loop.loads <= rows + columns + 3, what
        assert not loop.shuffles, what


@pytest.mark.parametrize("isa", [i for i in ARM if i.by_lane], **named)
@pytest.mark.parametrize("element", [F32, F64], **named)
def test_a_vector_of_rows_serves_as_many_multiply_adds_as_it_has_lanes(
    isa: Isa, element: ElementType
) -> None:
    spec = replace(typed_spec(isa, OperandTypes.of(element)), a_vectors=True)
    for (rows, columns), loop in _microkernels(spec).items():
        if rows < spec.lanes:
            continue
        what = f"{rows}x{columns}"
        by_lane = loop.count(r"\tfmla\t[vz]\d+\.\S+ [vz]\d+\.\S+ [vz]\d+\.\w\[\d\]")
        assert by_lane == loop.multiplications == rows * columns, what
        assert loop.loads <= -(-rows // spec.lanes) + columns, what
        assert not loop.shuffles, what
        _is_clean(loop, what)


@pytest.mark.parametrize("element", [F32, F64], **named)
def test_outer_products_use_every_sum_and_change_no_mode(element: ElementType) -> None:
    """One load of A serves all tiles beside each other, and one of B all below each other."""
    spec = typed_spec(tables.BY_NAME["sme_wide"], OperandTypes.of(element))
    functions = functions_of(compiler.assembly(compiler.gemm_unit(spec)), AARCH64)
    found = set()
    for panels, _ in spec.tile.groups:
        for loop in tile_loops_of(functions[f"{spec.symbol}_outer_{panels * spec.nr}"], AARCH64):
            columns = panels * spec.tile.nr_regs
            below = loop.products // columns
            assert loop.products == below * columns
            assert loop.loads == below + columns, loop.lines
            assert not loop.stack, loop.stack
            assert not loop.slow, loop.slow
            assert loop.instructions <= loop.products + loop.loads + 8, loop.lines
            found.add(loop.products)
    assert max(found) == element.bytes
    # The mode is entered where the unit is called, once for many tiles.
    switching = [n for n, lines in functions.items() if any("\tsmstart" in x for x in lines)]
    assert switching
    assert not any("_outer_" in name for name in switching)


# Bytes too, where they are not folded four at a time.
PAIRS = [
    pytest.param(isa, a, b, id=f"{isa.name}-{a}-{b}")
    for isa in FUSED
    for a, b in ((I16, I16), (I16, U8), *[(I8, I8), (U8, I8)][: 2 * (isa not in FOURS)])
]


@pytest.mark.parametrize("isa, a, b", PAIRS)
def test_pairs_are_folded_by_one_instruction(isa: Isa, a: ElementType, b: ElementType) -> None:
    spec = typed_spec(isa, OperandTypes(a, b, I32, I32, I32), vectors=True)
    assert spec.arithmetic.group == 2
    for (rows, columns), loop in _microkernels(spec).items():
        what = f"{rows}x{columns}"
        # LLVM makes one instruction of product and sum where the machine at hand has it.
        pairs, fused = loop.count(r"\bv?pmaddwd\b"), loop.count(r"\bvpdpwssd\b")
        assert pairs + fused == loop.folds == rows * columns, what
        assert loop.count(r"\bv?paddd\b") == pairs, what
        assert not pairs or isa not in FOURS, what
        _is_clean(loop, what)


COLUMNS = [
    pytest.param(isa, a, b, id=f"{isa.name}-{a}-{b}")
    for isa in FUSED
    for a, b in ((I16, I16), *[(I8, I8), (U8, I8), (I8, U8)][: 3 * (isa in FOURS)])
]


@pytest.mark.parametrize("isa, a, b", COLUMNS)
def test_columns_of_k_groups_are_multiplied_by_the_vector(
    isa: Isa, a: ElementType, b: ElementType
) -> None:
    """A load and an instruction per row for each column; one more for the column's own sum."""
    spec = typed_spec(isa, OperandTypes(a, b, I32, I32, I32), source=BSource.COLUMNS)
    every = {rows: column_dots(spec, rows) for rows in range(1, spec.tile.mr + 1)}
    code = assembly_of(spec, list(every.values()))
    for rows, function in every.items():
        sums = rows + spec.epilogue.zero_a
        (loop,) = loops_of(code[function.name], syntax_of(isa))
        columns, rest = divmod(loop.folds, sums)
        assert rest == 0
        assert 2 <= columns <= 8, rows
        assert loop.loads <= rows + columns * sums, rows
        assert not loop.shuffles, rows
        _is_clean(loop, str(rows))


@pytest.mark.parametrize("half", [BF16, F16], **named)
@pytest.mark.parametrize("isa", FUSED, **named)
def test_halves_in_columns_are_transposed_two_at_a_time(isa: Isa, half: ElementType) -> None:
    """As many shuffles as for floats serve twice the depth; a column's line is loaded once."""
    spec = typed_spec(isa, OperandTypes(*[half] * 5), source=BSource.COLUMNS)
    floats = typed_spec(isa, OperandTypes.of(F32), source=BSource.COLUMNS)
    moves = r"\tv?p?(unpck|shuf|perm2|insert)"
    counts = []
    for each in (spec, floats):
        function = column_tile(each, 1, staggered=False)
        code = Loop(tuple(assembly_of(each, [function])[function.name]), syntax_of(isa))
        counts.append((code.count(moves), code.multiplications))
    (narrow, steps), (wide, half_as_many) = counts
    assert narrow <= 1.1 * wide
    assert steps >= 1.5 * half_as_many


@pytest.mark.parametrize("half", [BF16, F16], **named)
@pytest.mark.parametrize("isa", FUSED, **named)
@pytest.mark.parametrize("epilogue", [Epilogue(), ACTIVE], **named)
def test_halves_are_widened_once_per_vector(
    isa: Isa, half: ElementType, epilogue: Epilogue
) -> None:
    spec = typed_spec(isa, OperandTypes(*[half] * 5), epilogue)
    widening = r"\bvpmovzxwd\b" if half is BF16 else r"\bvcvtph2psx?\b"
    for (rows, columns), loop in _microkernels(spec).items():
        what = f"{rows}x{columns}"
        assert loop.count(widening) == columns, what
        assert loop.count(r"\bvpslld\b") == (columns if half is BF16 else 0), what
        assert loop.multiplications == loop.count(r"\tvfmadd\w+ps\b") == rows * columns, what
        _is_clean(loop, what)


# They read and write subnormal numbers as zeros, or round their sums in an order of their own.
_UNWANTED = {
    X86: r"\bv(dpbf16ps|cvtne2?ps2bf16|dpphps|fmadd\w+ph|fmadd\w+bf16)\b",
    # Arm's conversion to bfloat16 keeps subnormal numbers; sums of halves and dot products do not.
    AARCH64: r"\t(bf(dot|mmla|ml[as]l[bt]?|mop[as])|f(ml[as]l[2bt]?|add|mul|ml[as]|mad)"
    r"\t[vz]\d+\.\d?h)\b",
}


@pytest.mark.parametrize("half", [BF16, F16], **named)
@pytest.mark.parametrize("isa", [*SETS, *ARM], **named)
def test_no_instruction_of_halves_flushes_subnormal_numbers(isa: Isa, half: ElementType) -> None:
    # Each way to read and each way to write once: neither knows of the other.
    mixed, same = OperandTypes(half, F32, half, half, F32), OperandTypes(*[half] * 5)
    for types, epilogue in ((mixed, Epilogue()), (same, ACTIVE)):
        text = compiler.assembly(compiler.gemm_unit(typed_spec(isa, types, epilogue)))
        assert len(text) > 10_000
        assert not re.search(_UNWANTED[syntax_of(isa)], text)
    for line in ("\tvdpbf16ps\t%zmm0, %zmm1, %zmm2", "\tvcvtneps2bf16\t%zmm0, %ymm1"):
        assert re.search(_UNWANTED[X86], line)
    for line in (
        "\tbfdot\tv0.4s, v1.8h, v2.8h",
        "\tfmla\tv0.8h, v1.8h, v2.h[0]",
        "\tfadd\tz0.h, z1.h",
    ):
        assert re.search(_UNWANTED[AARCH64], line)


def test_the_loop_finder_sees_folds() -> None:
    lines = [
        ".LBB0_1:", "\tvpbroadcastd\t(%rax), %ymm1", "\t{vex}\tvpdpbusd\t%ymm2, %ymm1, %ymm0",
        "\tvpdpwssd\t(%rcx), %zmm1, %zmm4", "\tjne\t.LBB0_1",
        ".LBB0_2:", "\tpmaddwd\t%xmm1, %xmm0", "\tvpmulld\t%ymm1, %ymm2, %ymm3", "\tjne\t.LBB0_2",
        ".LBB0_3:", "\tvpaddd\t%ymm1, %ymm2, %ymm3", "\tjne\t.LBB0_3",
    ]  # fmt: skip
    assert [loop.folds for loop in loops_of(lines, X86)] == [2, 2]
