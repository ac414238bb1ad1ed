"""Instruction sets as tables: registers, vector width, operations, and the LLVM target to ask for.

To add one: write a row here (or call :func:`register` from outside), and tiles for it in
``kernels.registry``.  Nothing else names an instruction set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from jitgemm.errors import message
from jitgemm.isa.arm import NEON_BF16_DOT, neon_integers, sve_bf16_dot, sve_integers
from jitgemm.isa.integers import DOT_INTEGERS, GENERIC_FOLDS, GENERIC_INTEGERS, x86_integers
from jitgemm.isa.lengths import SMALLEST, streaming_bits, sve_bits
from jitgemm.isa.matrix import AMX, MatrixUnit
from jitgemm.isa.ops import BF16_DOT, FUSED_OPS, TWO_ROUNDING_OPS, Op
from jitgemm.isa.outer import OuterUnit, sme
from jitgemm.isa.types import ElementType

__all__ = [
    "AVX2", "AVX2_VNNI", "AVX512", "AVX512_AMX", "AVX512_BF16", "AVX512_VNNI", "BY_NAME",
    "INTERPRETER", "NEON", "NEON_BF16", "NEON_DOT", "PORTABLE", "SME_SETS", "SVE", "SVE2_BF16",
    "SVE_BF16", "Isa", "of_lengths", "register",
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
    unit: MatrixUnit | OuterUnit | None = field(default=None, repr=False, hash=False)
    """Its matrix unit, if it has one."""
    inside: Isa | None = field(default=None, repr=False, hash=False)
    """What kernels on the matrix unit are written in, where that has a mode with vectors of its
    own."""
    half: bool = False
    """Whether there are instructions that convert ``f16``."""
    mask_registers: bool = False
    """Whether masks live in registers of their own; else they compete with the vectors."""
    gathers: bool = False
    """Whether one instruction loads elements from several places."""
    scalable: bool = False
    """Whether the machine decides how wide vectors are.  Code is made for one width."""
    by_lane: bool = False
    """Whether a multiply-add takes one lane of a vector for all lanes: one load of A serves as many
    rows as it has lanes."""
    interpreted: bool = False

    @property
    def vscale(self) -> int:
        """By how much vectors are wider than the shortest; 0 if the set itself says how wide."""
        return self.vector_bits // SMALLEST if self.scalable else 0

    def lanes(self, element: ElementType) -> int:
        """Elements in one vector register."""
        return self.vector_bits // element.bits

    def refuse_another(self, known: Isa) -> None:
        """Refuse a set of the same name that differs from ``known`` in anything.

        Raises:
            ValueError: it does.
        """
        different = [f.name for f in fields(Isa) if getattr(self, f.name) != getattr(known, f.name)]
        if different:
            got = f"{self.name!r}, which is known with other {', '.join(different)}"
            raise ValueError(message("isa", "an instruction set with a name of its own", got))

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
    unit=AMX,
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
NEON = Isa(
    "neon",
    128,
    32,
    FUSED_OPS,
    fused=True,
    requires=frozenset({"neon"}),
    arch="aarch64",
    cpu="generic",
    features="+neon",
    integers=neon_integers(),
    half=True,
    by_lane=True,
)
# What cores have beside it: dot products from Armv8.4 on (Cortex-A76, Neoverse N1, Apple M1), those
# of mixed signs and of bfloat16, which came together, from Armv8.6 on (Apple M2).
NEON_DOT = replace(
    NEON,
    name="neon_dot",
    requires=NEON.requires | {"dotprod"},
    features="+neon,+dotprod",
    integers=neon_integers(dotprod=True),
)
NEON_BF16 = replace(
    NEON_DOT,
    name="neon_bf16",
    requires=NEON_DOT.requires | {"i8mm", "bf16"},
    features="+neon,+dotprod,+i8mm,+bf16",
    ops={**FUSED_OPS, NEON_BF16_DOT.name: NEON_BF16_DOT},
    integers=neon_integers(dotprod=True, i8mm=True),
)


def sve(bits: int) -> Isa:
    """SVE with vectors of ``bits``: 128 to 2048, a power of two."""
    return Isa(
        "sve",
        bits,
        32,
        FUSED_OPS,
        fused=True,
        requires=frozenset({"neon", "sve"}),
        arch="aarch64",
        cpu="generic",
        features="+neon,+sve",
        integers=sve_integers(bits),
        half=True,
        mask_registers=True,
        gathers=True,
        scalable=True,
        # The shortest vectors are those of NEON, and so are most instructions on them.
        by_lane=bits == SMALLEST,
    )


def sve_bf16(bits: int) -> Isa:
    """SVE with dot products of mixed signs and of bfloat16 (Neoverse V1)."""
    plain, dot = sve(bits), sve_bf16_dot(bits)
    return replace(
        plain,
        name="sve_bf16",
        requires=plain.requires | {"i8mm", "bf16"},
        features="+neon,+sve,+i8mm,+bf16",
        ops={**FUSED_OPS, dot.name: dot},
        integers=sve_integers(bits, i8mm=True),
    )


def sve2_bf16(bits: int) -> Isa:
    """The same with SVE2 (Neoverse N2, V2), which has products of 16 bits added to 32."""
    first = sve_bf16(bits)
    return replace(
        first,
        name="sve2_bf16",
        requires=first.requires | {"sve2"},
        features="+neon,+sve2,+i8mm,+bf16",
        integers=sve_integers(bits, i8mm=True, sve2=True),
    )


# What a set asks for beside its vectors.  Sums of 64 bits are extensions of their own; SME2 loads
# several vectors at once.
_WIDE = frozenset({"sme", "sme-f64f64", "sme-i16i64"})
_SME = {"sme": frozenset({"sme"}), "sme_wide": _WIDE, "sme2": _WIDE | {"sme2"}}


def _streaming(bits: int, level: str) -> Isa:
    """Streaming SVE with vectors of ``bits``, and the outer products of a level of SME."""
    own = _SME[level]
    return Isa(
        level.replace("sme", "streaming"),
        bits,
        32,
        FUSED_OPS,
        fused=True,
        requires=own,
        arch="aarch64",
        cpu="generic",
        features=",".join(["+neon", *(f"+{x}" for x in sorted(own))]),
        integers=GENERIC_FOLDS,
        unit=sme(bits, wide=own >= _WIDE, several="sme2" in own),
        half=True,
        mask_registers=True,
        scalable=True,
    )


def _with_sme(beside: Isa, bits: int, name: str) -> Isa:
    """A set of vectors with SME's outer products, whose vectors have ``bits``."""
    level = name.removeprefix("sve_")
    inside, own = _streaming(bits, level), _SME[level]
    return replace(
        beside, name=name, requires=beside.requires | own, unit=inside.unit, inside=inside
    )


def of_lengths(name: str, bits: int, inside: int) -> Isa:
    """A set of AArch64 as machines have it whose vectors are of these lengths.

    Args:
        name: of the set, or of what kernels on its matrix unit are written in.
        bits: of a vector of SVE.
        inside: of a vector in streaming mode.
    """
    neon = {x.name: x for x in (NEON, NEON_DOT, NEON_BF16)}
    scalable = {"sve": sve, "sve_bf16": sve_bf16, "sve2_bf16": sve2_bf16}
    if name in neon:
        return neon[name]
    if name in scalable:
        return scalable[name](bits)
    if name.startswith("streaming"):
        return _streaming(inside, name.replace("streaming", "sme"))
    # Some machines have no vectors of SVE outside that mode.  A micropanel is at least a vector,
    # and at most as wide as all of the unit's tiles of f32.
    scaled = name.startswith("sve_") and bits <= 4 * inside
    return _with_sme(sve2_bf16(bits) if scaled else NEON_BF16, inside, name)


_ELSEWHERE = 256
"""Bits of vectors where the length is the machine's and this machine has none."""
_LENGTHS = sve_bits() or _ELSEWHERE, streaming_bits() or 2 * _ELSEWHERE
SVE, SVE_BF16, SVE2_BF16 = (of_lengths(x, *_LENGTHS) for x in ("sve", "sve_bf16", "sve2_bf16"))
SME_SETS = tuple(
    of_lengths(f"{beside}{level}", *_LENGTHS)
    for beside in ("sve_", "")
    for level in ("sme2", "sme_wide", "sme")
)
PORTABLE = Isa("portable", 128, 16, TWO_ROUNDING_OPS, fused=False, cpu="generic")
# The checking interpreter, pinned like any other set: slow, but every access is checked.
INTERPRETER = Isa(
    "interpreter", 256, 16, {**FUSED_OPS, BF16_DOT.name: BF16_DOT}, fused=True,
    integers=DOT_INTEGERS, half=True, interpreted=True,
)  # fmt: skip

# Part of what LLVM and the environment call things.
_NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)

BY_NAME: dict[str, Isa] = {
    i.name: i
    for i in (
        AVX512_AMX,
        AVX512_BF16,
        AVX512_VNNI,
        AVX512,
        AVX2_VNNI,
        AVX2,
        *SME_SETS,
        # With vectors as short as NEON's too: its instructions, and predicates for edges.
        SVE2_BF16,
        SVE_BF16,
        SVE,
        NEON_BF16,
        NEON_DOT,
        NEON,
        PORTABLE,
        INTERPRETER,
    )
}
"""In order of preference: the first one the machine has is used."""


def register(isa: Isa, before: str | None = None) -> None:
    """Make an instruction set known, before the first product of the process.

    Its register tiles are registered afterwards (``jitgemm.kernels.registry.register``).  The same
    set may be registered again, which changes nothing.

    Args:
        isa: the set; its name is what ``JITGEMM_ISA`` calls it.
        before: the name of a known set to which this one is preferred on machines that have both.
            Nothing: it is used only where ``JITGEMM_ISA`` names it.

    Raises:
        ValueError: another set has this name, it is no name, or ``before`` names no set.
    """
    if not _NAME.fullmatch(isa.name) or isa.name == "none":
        expected = "a name of lower-case letters, digits and underscores, other than 'none'"
        raise ValueError(message("isa.name", expected, repr(isa.name)))
    known = BY_NAME.get(isa.name)
    if known is not None:
        isa.refuse_another(known)
        return
    order = list(BY_NAME.values())
    if before is not None and before not in BY_NAME:
        raise ValueError(message("before", f"one of {', '.join(BY_NAME)}", repr(before)))
    place = len(order) if before is None else list(BY_NAME).index(before)
    order.insert(place, isa)
    BY_NAME.clear()
    BY_NAME.update((i.name, i) for i in order)
