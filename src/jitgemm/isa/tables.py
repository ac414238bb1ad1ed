"""Instruction sets as tables: registers, vector width, operations, and the LLVM target to ask for.

To add one: write a row here (or call :func:`register` from outside), and tiles for it in
``kernels.registry``.  Nothing else names an instruction set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jitgemm.isa.integers import DOT_INTEGERS, GENERIC_INTEGERS, x86_integers
from jitgemm.isa.matrix import AMX, MatrixOp
from jitgemm.isa.ops import BF16_DOT, FUSED_OPS, TWO_ROUNDING_OPS, Op
from jitgemm.isa.types import ElementType

__all__ = [
    "AVX2", "AVX2_VNNI", "AVX512", "AVX512_AMX", "AVX512_BF16", "AVX512_VNNI", "BY_NAME",
    "INTERPRETER", "PORTABLE", "Isa", "register",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Isa:
    """One instruction set: what a kernel may use and how to ask LLVM for it."""

    name: str
    vector_bits: int
    """Width of a vector; where the machine decides about it, a row states what it is in this
    process."""
    vector_registers: int
    ops: Mapping[str, Op] = field(repr=False, hash=False)
    fused: bool
    """Whether ``madd`` rounds once; results agree bit for bit among all such sets."""
    requires: frozenset[str] = frozenset()
    """LLVM feature names the machine must have."""
    arch: str = ""
    """Prefix of the LLVM triple it belongs to; empty: any."""
    cpu: str = ""
    """LLVM CPU to compile for; empty: the host itself, with its own tuning."""
    features: str = ""
    """What to ask for beyond ``cpu``, as LLVM spells it."""
    integers: Mapping[str, Op] = field(
        default_factory=lambda: GENERIC_INTEGERS, repr=False, hash=False
    )
    """Operations on integers; ``ops`` are those on floats."""
    tiles: Mapping[str, MatrixOp] = field(
        default_factory=dict, repr=False, hash=False, compare=False
    )
    """Operations of a matrix unit."""
    half: bool = False
    """Whether there are instructions that convert ``f16``."""
    mask_registers: bool = False
    """Whether masks live in registers of their own; else they compete with the vectors."""
    gathers: bool = False
    """Whether one instruction loads elements from several places."""
    interpreted: bool = False

    def lanes(self, element: ElementType) -> int:
        """Elements in one vector register."""
        return self.vector_bits // element.bits

    def table(self, element: ElementType) -> Mapping[str, Op]:
        """The operations on numbers of this type."""
        return self.integers if element.integral else self.ops


AVX512 = Isa(
    "avx512",
    512,
    32,
    FUSED_OPS,
    fused=True,
    requires=frozenset({"avx512f", "avx512vl", "avx512bw", "avx512dq", "fma"}),
    arch="x86_64",
    integers=x86_integers(512, vnni=False),
    half=True,
    gathers=True,
    mask_registers=True,
)
AVX512_VNNI = replace(
    AVX512,
    name="avx512_vnni",
    requires=AVX512.requires | {"avx512vnni"},
    integers=x86_integers(512, vnni=True),
)
AVX512_BF16 = replace(
    AVX512_VNNI,
    name="avx512_bf16",
    requires=AVX512_VNNI.requires | {"avx512bf16"},
    ops={**FUSED_OPS, BF16_DOT.name: BF16_DOT},
)
AVX512_AMX = replace(
    AVX512_BF16,
    name="avx512_amx",
    requires=AVX512_BF16.requires | {"amx-tile", "amx-int8", "amx-bf16"},
    tiles=AMX,
)
AVX2 = Isa(
    "avx2",
    256,
    16,
    FUSED_OPS,
    fused=True,
    requires=frozenset({"avx2", "fma", "f16c"}),
    arch="x86_64",
    cpu="x86-64-v3",
    integers=x86_integers(256, vnni=False),
    half=True,
    gathers=True,
)
AVX2_VNNI = replace(
    AVX2,
    name="avx2_vnni",
    requires=AVX2.requires | {"avxvnni"},
    features="+avxvnni",
    integers=x86_integers(256, vnni=True),
)
PORTABLE = Isa("portable", 128, 16, TWO_ROUNDING_OPS, fused=False, cpu="generic")
# The checking interpreter, pinned like any other set: slow, but every access is checked.
INTERPRETER = Isa(
    "interpreter", 256, 16, {**FUSED_OPS, BF16_DOT.name: BF16_DOT}, fused=True,
    integers=DOT_INTEGERS, half=True, interpreted=True,
)  # fmt: skip

BY_NAME: dict[str, Isa] = {
    i.name: i
    for i in (
        AVX512_AMX,
        AVX512_BF16,
        AVX512_VNNI,
        AVX512,
        AVX2_VNNI,
        AVX2,
        PORTABLE,
        INTERPRETER,
    )
}
"""In order of preference: the first one the machine has is used."""


def register(isa: Isa) -> None:
    """Make an instruction set known by name (used by plug-ins and tests)."""
    BY_NAME[isa.name] = isa
