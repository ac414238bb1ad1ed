"""Properties of the generated code: deterministic text, and hot loops that are what was meant.

The loops are found in the assembly: a label, straight-line code, a jump back to it.  Sets that this
machine lacks are compiled for one that has them.
Register tiles over the budget compile and spill in silence, so the count of multiply-adds and the
absence of stack access are what keeps a tile honest.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from assembly import (
    Loop,
    assembly_of,
    compiled_here,
    functions_of,
    loops_of,
    microkernels,
)
from syntax import AARCH64, X86, syntax_of

import jitgemm
from jitgemm.errors import LanguageError
from jitgemm.isa.tables import BY_NAME, PORTABLE
from jitgemm.isa.types import F16, F32, F64, I32, ElementType
from jitgemm.jit import compiler
from jitgemm.kernels import registry
from jitgemm.kernels.arithmetic import Arithmetic, OperandTypes
from jitgemm.kernels.columns import column_tile
from jitgemm.kernels.expression import ACTIVATIONS
from jitgemm.kernels.micro import microkernel
from jitgemm.kernels.peak import chains, peak_function
from jitgemm.kernels.registry import tile_for
from jitgemm.kernels.spec import Bias, BSource, Epilogue, GemmSpec, Scale
from jitgemm.lang.core import Function
from jitgemm.runtime.engine import engine
from oracle import run_python
from rows import distinct_rows

MIXED = OperandTypes(F32, F16, F32, F32, F32)
FULL = Epilogue(beta=True, bias=Bias.FULL, program=ACTIVATIONS["relu"])


def _specs(
    *epilogues: Epilogue, sources: Iterable[BSource] = BSource, kinds: str = "floats"
) -> list[Any]:
    """Those of rows with code of their own; ``kinds``: floats, integers or both."""
    found = []
    for element, isa, components, tile in distinct_rows():
        if isa.interpreted:
            continue
        if kinds not in ("both", "integers" if element.integral else "floats"):
            continue
        here = compiled_here(isa)
        for b in sources:
            fits = registry.columns_tile(tile, isa, components) if b is BSource.COLUMNS else tile
            for e in epilogues:
                plain = components == 2 or element.integral
                known = replace(e, program=None) if plain else e
                found.append(GemmSpec(element, here, fits, b, known, components))
    return [pytest.param(spec, id=spec.symbol) for spec in found]


STRAIGHT = (BSource.PACKED, BSource.INPLACE)


@cache
def _text(spec: GemmSpec) -> str:
    return compiler.text(compiler.gemm_unit(spec))


# -- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", _specs(Epilogue(), FULL, kinds="both"))
def test_the_same_spec_gives_the_same_text(spec: GemmSpec) -> None:
    again = replace(spec, tile=replace(spec.tile), epilogue=replace(spec.epilogue))
    assert again == spec
    assert compiler.text(compiler.gemm_unit(again)) == _text(spec)


_DIGESTS = """
import hashlib
from jitgemm.jit import compiler
from jitgemm.jit.target import available
from jitgemm.kernels.spec import *
from jitgemm.runtime.engine import system_unit
from rows import distinct_rows
units = [system_unit()] + [
    compiler.gemm_unit(GemmSpec(element, isa, tile, b, Epilogue(bias=Bias.ROW), parts))
    for element, isa, parts, tile in distinct_rows() for b in (BSource.PACKED, BSource.INPLACE)
    if available(isa) and not isa.interpreted and element.bytes == 4
]
for unit in units:
    text = compiler.text(unit)
    print(unit.name, hashlib.sha256(text.encode()).hexdigest(), compiler._key(unit))
"""


def test_the_same_spec_gives_the_same_text_in_every_process() -> None:
    first, second = (run_python(_DIGESTS, PYTHONHASHSEED=seed).stdout for seed in ("1", "2"))
    assert first == second
    assert len(first.splitlines()) >= 3


@pytest.mark.parametrize("spec", _specs(Epilogue(), FULL, kinds="both"))
def test_no_fast_math_and_no_made_up_pointers(spec: GemmSpec) -> None:
    text = _text(spec)
    assert "inttoptr" not in text
    flags = r"\b(?:fast|nnan|ninf|nsz|arcp|contract|afn|reassoc)\b"
    operations = [
        line for line in text.splitlines() if re.search(r"= *(?:f\w+|call|select|phi)\b", line)
    ]
    assert len(operations) > 10
    assert not [line for line in operations if re.search(flags, line)]
    assert "unsafe-fp-math" not in text


@pytest.mark.parametrize("spec", _specs(Epilogue(), FULL))
def test_the_multiply_add_is_the_sets_own(spec: GemmSpec) -> None:
    text = _text(spec)
    fused = f"@llvm.fma.v{spec.lanes}{spec.element.suffix}"
    assert (fused in text) == spec.isa.fused
    assert ("fmul" in text and "fadd" in text) or spec.isa.fused


def test_different_specs_have_different_names_and_units() -> None:
    specs = [
        p.values[0]
        for p in _specs(
            *(replace(FULL, bias=b) for b in Bias), Epilogue(), Epilogue(beta=True), kinds="both"
        )
    ]
    # Without a program products with `beta` alone come twice.
    specs = list(dict.fromkeys(specs))
    assert len({s.symbol for s in specs}) == len(specs)
    assert len({compiler.gemm_unit(s).key for s in specs}) == len(specs)
    for spec in specs:
        assert re.fullmatch(
            r"[fci]\d+_gemm_(packed|inplace|columns)_beta0?(_(row|full)?bias)?(_relu)?_\d+x\d+__\w+",
            spec.symbol,
        )
    # What the readable part of the name does not say, its digest does.
    spec = next(s for s in specs if len(s.tile.groups) > 1)
    deeper = replace(spec.element, depth_block=256)
    narrower = replace(spec.tile, groups=spec.tile.groups[:1])
    table = {**spec.isa.ops, "add": replace(spec.isa.ops["add"], text=("{r} = fadd {v} {b}, {a}",))}
    others = (
        replace(spec, element=deeper, arithmetic=Arithmetic.plain_of(deeper)),
        replace(spec, tile=narrower),
        replace(spec, isa=replace(spec.isa, ops=table)),
    )
    assert len({compiler.gemm_unit(x).key for x in (spec, *others)}) == 4
    assert len({x.symbol for x in (spec, *others)}) == 4


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"components": 3}, "one or two reals"),
        ({"components": 2, "element": I32, "arithmetic": Arithmetic.plain_of(I32)}, "are floats"),
        ({"epilogue": Epilogue(zero_a=True)}, "32-bit sums"),
        ({"epilogue": Epilogue(scale=Scale.ROW)}, "32-bit sums"),
        (
            {"arithmetic": Arithmetic(MIXED, F32, F32)},
            "read in place",
        ),
        (
            {
                "b": BSource.COLUMNS,
                "arithmetic": Arithmetic(MIXED, F32, F32),
            },
            "columns whose numbers",
        ),
        ({"arithmetic": replace(Arithmetic.plain_of(F32), tiles=True)}, "micropanels"),
    ],
)
def test_a_kernel_that_cannot_exist_is_refused(change: dict[str, Any], rule: str) -> None:
    isa = PORTABLE
    spec = GemmSpec(F32, isa, tile_for(F32, isa), BSource.INPLACE, Epilogue())
    assert spec.arithmetic.plain
    with pytest.raises(LanguageError, match=rule):
        replace(spec, **change)


# -- loops ----------------------------------------------------------------------------------------


def _same_code(alone: list[str], whole: list[str]) -> bool:
    """But for the numbers of functions in labels."""
    one, other = ([re.sub(r"(\.L[A-Z]+)\d+_", r"\1_", x) for x in y] for y in (alone, whole))
    return one == other


@pytest.mark.parametrize("source", BSource)
def test_functions_are_the_same_code_alone_and_in_their_unit(source: BSource) -> None:
    # The other tests look at them alone: a whole unit takes three times as long.
    for param in _specs(FULL, sources=[source], kinds="both")[::7]:
        spec = param.values[0]
        whole = functions_of(compiler.assembly(compiler.gemm_unit(spec)), syntax_of(spec.isa))
        some = _turned(spec) if source is BSource.COLUMNS else _micros(spec)
        alone = assembly_of(spec, some)
        assert some
        for function in some:
            assert _same_code(alone[function.name], whole[function.name]), function.name


def _micros(spec: GemmSpec) -> list[Function]:
    return [microkernel(spec, panels, rows) for panels, rows in spec.tile.variants()]


def _turned(spec: GemmSpec) -> list[Function]:
    rows = range(1, spec.tile.mr + 1)
    return [column_tile(spec, i, staggered=staggered) for i in rows for staggered in (False, True)]


@pytest.mark.parametrize("spec", _specs(Epilogue(), FULL, sources=STRAIGHT))
def test_hot_loops_multiply_once_per_element_and_leave_the_stack_alone(spec: GemmSpec) -> None:
    for (rows, columns), loops in microkernels(spec).items():
        full = [loop for loop in loops if not loop.masked]
        assert len(full) == 1, f"{rows}x{columns}: {len(full)} loops without masks"
        (loop,) = full
        reals = rows * spec.components
        assert loop.multiplications == reals * columns, f"{rows}x{columns}"
        assert not loop.stack, f"{rows}x{columns} spills: {loop.stack}"
        assert not loop.slow, f"{rows}x{columns}: {loop.slow}"
        # One load per vector of B, one broadcast per real of A; nothing is read twice.
        assert loop.loads <= reals + columns + rows * spec.isa.fused + 3
        # Complex numbers are put together after it; a shuffle stands in where broadcasts lack.
        assert loop.shuffles <= (0 if spec.isa.fused else reals)
        for each in loops:
            _is_the_sets_own(spec, each)


def _is_the_sets_own(spec: GemmSpec, loop: Loop) -> None:
    """Fused sets use fused instructions of their width, others a product and a sum."""
    fused = loop.count(loop.syntax.fused(spec.isa, spec.element))
    assert fused == (loop.multiplications if spec.isa.fused else 0)
    assert spec.isa.fused or loop.count(loop.syntax.sum) == loop.multiplications


@pytest.mark.parametrize("spec", _specs(Epilogue(), FULL, sources=STRAIGHT, kinds="integers"))
def test_hot_loops_of_integers_are_products_and_sums(spec: GemmSpec) -> None:
    # A product before its sum needs a register of its own, and is several instructions on some
    # sets: with 16 registers the fullest tiles may keep a vector or two on the stack.
    most, full = 0 if spec.isa.vector_registers == 32 else 4, spec.tile.mr * spec.tile.nr_regs
    for (rows, columns), loops in microkernels(spec).items():
        (loop,) = [loop for loop in loops if not loop.masked]
        assert loop.folds >= rows * columns, f"{rows}x{columns}"
        if spec.isa.mask_registers or (spec.isa.fused and spec.element.bytes == 4):
            assert loop.folds == rows * columns, f"{rows}x{columns}: one instruction each"
        assert len(loop.stack) <= (most if rows * columns == full else 0), f"{rows}: {loop.stack}"
        assert not loop.slow, f"{rows}x{columns}: {loop.slow}"


@pytest.mark.parametrize("spec", _specs(Epilogue(), FULL, sources=STRAIGHT))
def test_masked_loops_reload_masks_at_most(spec: GemmSpec) -> None:
    if not (spec.isa.mask_registers or spec.isa.gathers):
        pytest.skip("lane by lane there")
    for (rows, columns), loops in microkernels(spec).items():
        masked = [loop for loop in loops if loop.masked]
        panels = columns // spec.tile.nr_regs
        wanted = spec.b is BSource.INPLACE and (panels == 1 or spec.partial_groups)
        assert len(masked) == wanted, f"{rows}x{columns}"
        for loop in masked:
            assert loop.multiplications == rows * spec.components * columns, f"{rows}x{columns}"
            # Where masks are vectors, a full complex tile of them leaves none for B's first column.
            # Of scalable vectors LLVM keeps what a mask is compared of, in two vectors.
            spilled = spec.components == 2 and not spec.isa.mask_registers
            spilled = 2 if spec.isa.scalable else spilled
            assert len(loop.stack_stores) <= spilled, f"{rows}x{columns}: {loop.stack_stores}"
            assert len(loop.stack) <= columns + 2 * spilled, f"{rows}x{columns}: {loop.stack}"


@pytest.mark.parametrize("spec", _specs(Epilogue(), FULL, sources=[BSource.COLUMNS]))
def test_columns_are_turned_by_the_fewest_shuffles(spec: GemmSpec) -> None:
    functions = assembly_of(spec, _turned(spec))
    for rows in range(1, spec.tile.mr + 1):
        for staggered in (False, True):
            name = f"{spec.symbol}_columns_{'staggered_' * staggered}{rows}"
            lanes = spec.lanes
            least = max(2 * spec.components, 16 // spec.element.bytes)
            while staggered and spec.nr // lanes < 4 and lanes > least:
                lanes //= 2
            per, groups = lanes // spec.components, spec.nr // lanes
            code = Loop(tuple(functions[name]), syntax_of(spec.isa))
            turning = per * (per.bit_length() - 1)
            # Of every group a whole block, and three in parts: at both ends, and where chains end.
            blocks = 4 * groups
            if spec.isa.fused:
                # Arm's loads of one lane, and stores of two vectors in turns, do some on the way;
                # half a scalable vector is moved to and fro.
                arm = code.syntax is AARCH64
                assert code.shuffles >= blocks * turning * (3 if arm else 4) // 4, name
                # Besides: complex sums combined, signs and broadcasts.
                more = blocks * 2 * rows * spec.components + (128 if arm else 64)
                assert code.shuffles <= blocks * turning + more, name
            assert not code.slow, name


@pytest.mark.parametrize(
    "element, fold, isa",
    [pytest.param(e, f, compiled_here(i), id=f"{e}-{f}-{i.name}") for i in BY_NAME.values()
     for e, f in ((F32, "madd"), (F64, "madd"), (F32, "bf16_dot"), (I32, "dot4"))
     if not i.interpreted and i.fused and f in i.table(e)],
)  # fmt: skip
def test_the_loop_that_measures_the_peak_is_arithmetic_only(
    element: ElementType, fold: str, isa: Any
) -> None:
    function = peak_function(element, isa, fold)
    unit, syntax = compiler.Unit(function.name, isa, lambda: [function]), syntax_of(isa)
    (loop,) = loops_of(functions_of(compiler.assembly(unit), syntax)[function.name], syntax)
    assert loop.multiplications + loop.folds == chains(isa)
    assert not loop.count(syntax.memory)


def test_the_loop_finder_sees_spills_and_masks() -> None:
    lines = [
        "\tmovq\t%rax, 8(%rsp)", ".LBB0_1:", "\tvmovups\t(%rax), %ymm1",
        "\tvfmadd231ps\t(%rsp), %ymm1, %ymm0", "\tvmovups\t%ymm0, 32(%rsp)", "\tjne\t.LBB0_1",
        ".LBB0_2:", "\tvmovups\t(%rax), %zmm1 {%k1} {z}", "\tvfmadd231pd\t%zmm1, %zmm2, %zmm3",
        "\tjl\t.LBB0_2", ".LBB0_3:", "\tmulps\t%xmm1, %xmm0", ".LBB0_4:", "\tjl\t.LBB0_3",
    ]  # fmt: skip
    first, second = loops_of(lines, X86)
    assert first.multiplications == second.multiplications == 1
    assert first.vectors_on_the_stack == first.stack
    assert len(first.stack) == 2
    assert first.stack_stores == ["vmovups\t%ymm0, 32(%rsp)"]
    assert (first.masked, second.masked) == (False, True)
    # %rbp is the stack only where it was made so.
    lines[3] = lines[3].replace("%rsp", "%rbp")
    assert len(loops_of(lines, X86)[0].stack) == 1
    assert len(loops_of(["\tmovq\t%rsp, %rbp", *lines], X86)[0].stack) == 2


# -- memory ---------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_no_memory_is_writable_and_executable() -> None:
    run_python("""
        import llvmlite.binding
        import numpy as np
        import jitgemm
        from jitgemm.jit import compiler

        def both():
            lines = [line.split() for line in open("/proc/self/maps")]
            return {m[0] for m in lines if "w" in m[1] and "x" in m[1]}

        # llvmlite's callbacks are closures of ctypes, which have such a page where SELinux is off.
        before = both()
        for dtype in (np.float32, np.float64):
            a = np.ones((70, 70), dtype)
            jitgemm.gemm(a, np.asfortranarray(a), bias=a[0], activation="relu", threads=2)
            jitgemm.gemm(a, jitgemm.prepack_rhs(a), beta=1, c=a)
            jitgemm.matmul(a[:5, :5], a[:5, :5])
        assert both() <= before
        maps = [line.split() for line in open("/proc/self/maps")]
        where = {}
        for unit in compiler.compiled():
            for name, address in unit.addresses.items():
                for span, rights, *_ in maps:
                    low, high = (int(x, 16) for x in span.split("-"))
                    if low <= address < high:
                        where[unit.name, name] = rights
        assert len(where) == sum(len(u.addresses) for u in compiler.compiled()) > 10
        assert set(where.values()) == {"r-xp"}, where
    """)


# -- kernels of one's own -------------------------------------------------------------------------


def test_loops_of_a_launched_kernel_leave_the_stack_alone() -> None:
    """Variables of a user's kernel are registers, and a reduction is outside of the loops."""

    @jitgemm.kernel
    def variance(k: Any, x: Any, out: Any, row: Any) -> None:
        x = x[row]
        sums = [k.var(k.zero(x.number, x.lanes)) for _ in range(4)]
        for i, mask, chain in x.strips(chains=4):
            v = x.load(i, mask)
            sums[chain].value = k.op("madd", v, v, sums[chain].value)
        (a, b, c, d) = (s.value for s in sums)
        out.put(k.reduce("add", a + b + (c + d)) / x.shape[0], row)

    if engine().isa.interpreted:
        pytest.skip("no machine code")
    assembly = variance.asm(np.ones((2, 9), np.float32), np.ones(2, np.float32), grid=2)
    syntax = syntax_of(engine().isa)
    (items,) = (f for n, f in functions_of(assembly, syntax).items() if n.endswith("items"))
    loops = loops_of(items, syntax)
    assert max(loop.multiplications for loop in loops) == 4
    for loop in loops:
        assert not loop.stack
        assert not loop.shuffles
