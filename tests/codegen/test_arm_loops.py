"""Hot loops of AArch64, compiled for it on whatever machine this is."""

from __future__ import annotations

import re
from itertools import product

import pytest
from assembly import assembly_of, loops_of
from syntax import AARCH64

from jitgemm.isa.tables import NEON, NEON_BF16, NEON_DOT, Isa, sve, sve2_bf16, sve_bf16
from jitgemm.isa.types import BF16, F32, F64, I8, I16, I32, U8, ElementType
from jitgemm.kernels.arithmetic import OperandTypes
from jitgemm.kernels.micro import microkernel
from jitgemm.kernels.registry import tile_for
from jitgemm.kernels.spec import BSource, Epilogue, GemmSpec
from rows import typed_spec

SETS = [NEON_DOT, NEON_BF16, sve(256), sve_bf16(256), sve_bf16(512), sve2_bf16(128)]
named = {"ids": lambda x: f"{x.name}-{x.vector_bits}" if isinstance(x, Isa) else str(x)}

MULTIPLY = r"\t(f?mla|mul|mad|fmadd?|[su]+dot|bfdot|smlal\w*|smull\w*)\b"


def hot_loop(spec: GemmSpec, rows: int | None = None) -> list[str]:
    """Instructions of the innermost loop that multiplies, of the full microkernel."""
    micro = microkernel(spec, 1, rows or spec.tile.mr)
    (loop,) = loops_of(assembly_of(spec, [micro])[micro.name], AARCH64)
    return [line for line in loop.lines if re.match(r"\t[^.\s]", line)]


def count(loop: list[str], pattern: str) -> int:
    """Instructions that match."""
    return sum(bool(re.match(pattern, line)) for line in loop)


def vectors_loaded(loop: list[str]) -> int:
    """Whole vectors that are loaded."""
    return count(loop, r"\tldu?r\t[qz]") + 2 * count(loop, r"\tldp\tq")


def on_stack(loop: list[str]) -> list[str]:
    """Instructions that touch the stack, or call."""
    return [x for x in loop if re.search(r"\[sp|\tbl\b", x)]


@pytest.mark.parametrize("a, b", list(product((I8, U8), repeat=2)), **named)
@pytest.mark.parametrize("isa", SETS, **named)
def test_bytes_are_folded_four_at_a_time(isa: Isa, a: ElementType, b: ElementType) -> None:
    spec = typed_spec(isa, OperandTypes(a, b, I32, I32, I32))
    loop, sums = hot_loop(spec), spec.tile.mr * spec.tile.nr_regs
    instruction = {"dot4": "usdot", "dot4_signed": "sdot", "dot4_unsigned": "udot"}
    assert count(loop, rf"\t{instruction[spec.arithmetic.accumulate]}\b") == sums
    assert count(loop, MULTIPLY) == sums
    assert vectors_loaded(loop) == spec.tile.nr_regs
    assert count(loop, r"\tld1rw?\b") == spec.tile.mr
    assert not on_stack(loop)
    assert len(loop) <= 2 * sums + spec.tile.mr, "a fixed vector costs nothing to make scalable"


@pytest.mark.parametrize("isa", [i for i in SETS if "bf16_dot" in i.ops], **named)
def test_bfloat16_is_folded_two_at_a_time(isa: Isa) -> None:
    spec = typed_spec(isa, OperandTypes(BF16, BF16, F32, F32, F32, bf16_dot=True))
    loop, sums = hot_loop(spec), spec.tile.mr * spec.tile.nr_regs
    assert count(loop, r"\tbfdot\b") == count(loop, MULTIPLY) == sums
    assert not on_stack(loop)


@pytest.mark.parametrize(
    "isa, instructions", [(sve2_bf16(256), r"\tsmlal[bt]\b"), (NEON, r"\tsmlal2?\b")], **named
)
@pytest.mark.parametrize("a, b", [(I16, I16), (U8, I16)], **named)
def test_words_of_two_are_two_multiply_adds(
    isa: Isa, instructions: str, a: ElementType, b: ElementType
) -> None:
    spec = typed_spec(isa, OperandTypes(a, b, I32, I32, I32))
    loop = hot_loop(spec)
    assert (
        count(loop, instructions) == count(loop, MULTIPLY) == 2 * spec.tile.mr * spec.tile.nr_regs
    )
    assert not on_stack(loop)


@pytest.mark.parametrize("source", [BSource.PACKED, BSource.INPLACE], **named)
@pytest.mark.parametrize("element, components", [(F32, 1), (F64, 1), (F32, 2), (F64, 2)], **named)
def test_one_load_of_a_serves_several_rows(
    element: ElementType, components: int, source: BSource
) -> None:
    """Five vectors for 24 multiply-adds of f32, each by a lane."""
    tile = tile_for(element, NEON, components)
    spec = GemmSpec(element, NEON, tile, source, Epilogue(), components, a_vectors=True)
    loop, reals = hot_loop(spec), tile.mr * components
    assert count(loop, r"\tfmla\tv.*\.[sd]\[\d\]$") == count(loop, MULTIPLY) == reals * tile.nr_regs
    assert vectors_loaded(loop) == reals // spec.lanes + tile.nr_regs
    assert not count(loop, r"\t(ld1r|dup|ldr\t[sdwx])"), "nothing is broadcast"
    assert not on_stack(loop)
    # The last vector of seven rows ends with the last row.
    odd = (7 if element is F32 else 5) // components
    loop = hot_loop(spec, odd)
    assert vectors_loaded(loop) == -(-odd * components // spec.lanes) + tile.nr_regs
    assert not on_stack(loop)


def test_the_same_on_the_shortest_vectors_of_sve() -> None:
    isa = sve(128)
    spec = GemmSpec(F32, isa, tile_for(F32, NEON), BSource.PACKED, Epilogue(), a_vectors=True)
    loop = hot_loop(spec)
    assert count(loop, r"\tfmla\tv.*\.s\[\d\]$") == 24
    assert vectors_loaded(loop) == 5
    assert not on_stack(loop)
