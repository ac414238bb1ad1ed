"""Machines described rather than found: cores, their caches and extensions, one row each.

A row is what plans and code for a machine that is not at hand go by, and what is assumed of one
that is, where its system does not tell its caches.  To add one: a row here.  Nothing else names a
core.
"""

from __future__ import annotations

import mmap
import re
from dataclasses import dataclass, field
from pathlib import Path

from jitgemm.planner.caches import Cache, Machine

__all__ = ["BY_NAME", "Core", "here"]

KIB, MIB = 1 << 10, 1 << 20

_MIDR = Path("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1")
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Core:
    """A core in the product it is described by."""

    name: str
    """What LLVM calls it."""
    arch: str
    """First part of LLVM's triples of programs for it."""
    features: frozenset[str] = field(repr=False)
    """Of its extensions those that instruction sets ask for, as LLVM calls them."""
    cores: int
    """How many the product has."""
    l1: Cache
    """Of data."""
    l2: Cache
    l3: Cache | None
    """Of all cores; ``None``: L2 is the last cache."""
    source: str
    """Where the numbers come from; which of them are uncertain."""
    l2_cores: int = 1
    """How many cores share an L2 cache."""
    page: int = 4096
    """Bytes of a page of memory as it is usually set up."""
    sve_bits: int = 0
    streaming_bits: int = 0
    midr: tuple[int, int] | None = None
    """Implementer and part number of Arm's ``MIDR_EL1``; ``None`` on other architectures."""

    @property
    def machine(self) -> Machine:
        """What plans go by.

        L2 caches count by each core's share, and where they are the last caches as L3 too.
        """
        source = f"{self.name}, described"
        return Machine(self.l1, self.l2.share(self.l2_cores), self.l3 or self.l2, source, self.page)


_ARM, _X86 = "aarch64", "x86_64"
_V8 = frozenset({"fp-armv8", "neon", "lse", "rdm", "fullfp16"})
_DOTS = _V8 | {"dotprod"}
_MATRICES = _DOTS | {"fp16fml", "i8mm", "bf16"}
_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512vnni", "avx512bf16"}
_TRM = "Core Technical Reference Manual"
_ARM_PATH = "Arm Learning Path 'servers-and-cloud-computing/memory-subsystem'"

BY_NAME: dict[str, Core] = {
    core.name: core
    for core in (
        Core(
            "neoverse-n1", _ARM, _DOTS, 64,
            Cache(64 * KIB, 64, 4), Cache(MIB, 64, 8), Cache(32 * MIB, 64, 16),
            f"Arm Neoverse N1 {_TRM} (100616): L1, L2 of up to 1 MiB; AWS Graviton2: cores, L2 "
            f"and L3 ({_ARM_PATH}); uncertain: ways of L3",
            midr=(0x41, 0xD0C),
        ),
        Core(
            "neoverse-v1", _ARM, _MATRICES | {"sve"}, 64,
            Cache(64 * KIB, 64, 4), Cache(MIB, 64, 8), Cache(32 * MIB, 64, 16),
            f"Arm Neoverse V1 {_TRM} (101427): L1, L2 of up to 1 MiB, two units of 256 bits; AWS "
            "Graviton3: cores, L2 and L3 (Arm Learning Path "
            "'servers-and-cloud-computing/performix-memory-access')",
            sve_bits=256, midr=(0x41, 0xD40),
        ),
        Core(
            "neoverse-n2", _ARM, _MATRICES | {"sve", "sve2"}, 128,
            Cache(64 * KIB, 64, 4), Cache(MIB, 64, 8), Cache(64 * MIB, 64, 16),
            f"Arm Neoverse N2 {_TRM} (102099): L1, L2 of up to 1 MiB, units of 128 bits; Alibaba "
            "Yitian 710: 128 cores (chipsandcheese.com, 'ARM's Neoverse N2: Cortex A710 for "
            "Servers'); uncertain: size and ways of L3",
            sve_bits=128, midr=(0x41, 0xD49),
        ),
        Core(
            "neoverse-v2", _ARM, _MATRICES | {"sve", "sve2"}, 96,
            Cache(64 * KIB, 64, 4), Cache(2 * MIB, 64, 8), Cache(36 * MIB, 64, 12),
            f"Arm Neoverse V2 {_TRM} (102375): L1, L2 of 1 or 2 MiB, four units of 128 bits; AWS "
            f"Graviton4: L2 and L3 ({_ARM_PATH}), 96 cores (chipsandcheese.com, 'Arm's Neoverse "
            "V2, in AWS's Graviton 4'); uncertain: ways of L3",
            sve_bits=128, midr=(0x41, 0xD4F),
        ),
        Core(
            "a64fx", _ARM, _V8 | {"sve"}, 48,
            Cache(64 * KIB, 256, 4), Cache(8 * MIB, 256, 16), None,
            "Fujitsu A64FX Microarchitecture Manual 1.3 and A64FX product catalogue: four groups "
            "of 12 cores, each with its L2; no L3",
            l2_cores=12, page=65536, sve_bits=512, midr=(0x46, 0x001),
        ),
        Core(
            "apple-m4", _ARM,
            _MATRICES | {"sme", "sme2", "sme-f64f64", "sme-i16i64"}, 4,
            Cache(128 * KIB, 64, 8), Cache(16 * MIB, 128, 16), None,
            "Performance cores.  'Hello SME! Generating Fast Matrix Multiplication Kernels Using "
            "the Scalable Matrix Extension' (arXiv 2409.18779): 4 cores, streaming vectors of 512 "
            "bits, no SVE outside; extensions as its sysctl lists them; L1 and L2 of the cluster "
            "as measured in 'Measuring Cache Hierarchy on Apple M4 with Pointer Chasing' "
            "(soohamurai.com); uncertain: lines of L1, ways of both",
            l2_cores=4, page=16384, streaming_bits=512, midr=(0x61, 0x053),
        ),
        Core(
            "znver5", _X86, _AVX512 | {"avxvnni"}, 2,
            Cache(48 * KIB, 64, 12), Cache(MIB, 64, 16), Cache(32 * MIB, 64, 16),
            "benchmarks/RESULTS-zen5.md: a virtual machine of 2 cores; Software Optimization "
            "Guide for the AMD Zen5 Microarchitecture: ways",
        ),
        Core(
            "emeraldrapids", _X86,
            _AVX512 | {"avxvnni", "amx-tile", "amx-int8", "amx-bf16"}, 2,
            Cache(48 * KIB, 64, 12), Cache(2 * MIB, 64, 16), Cache(300 * MIB, 64, 20),
            "benchmarks/RESULTS.md: a virtual machine of 2 cores; Intel 64 and IA-32 "
            "Architectures Optimization Reference Manual: ways of L1 and L2; uncertain: of L3",
        ),
    )
}  # fmt: skip
"""Described cores by their names."""


def _of(midr: tuple[int, int]) -> Core | None:
    return next((core for core in BY_NAME.values() if core.midr == midr), None)


def _from_register(file: Path) -> tuple[int, int] | None:
    """Implementer and part number from the kernel's copy of ``MIDR_EL1``."""
    try:
        value = int(file.read_text(encoding="ascii"), 16)
    except (OSError, ValueError):
        return None
    return value >> 24 & 0xFF, value >> 4 & 0xFFF


def _from_cpuinfo(file: Path) -> tuple[int, int] | None:
    """The same of the first processor in ``/proc/cpuinfo``."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = [re.search(rf"^CPU {name}\s*:\s*0x([0-9a-fA-F]+)$", text, re.MULTILINE)
             for name in ("implementer", "part")]  # fmt: skip
    numbers = [int(x[1], 16) for x in found if x is not None]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None


def here(register: Path = _MIDR, cpuinfo: Path = _CPUINFO) -> Machine | None:
    """Caches of the core this process runs on, if it is described here; its own page size.

    Args:
        register: where Linux on AArch64 shows ``MIDR_EL1``.
        cpuinfo: where it says the same in words.
    """
    midr = _from_register(register) or _from_cpuinfo(cpuinfo)
    core = None if midr is None else _of(midr)
    if core is None:
        return None
    found = core.machine
    return Machine(found.l1, found.l2, found.l3, found.source, mmap.PAGESIZE)
