"""What an AArch64 machine has, as its operating system says it.

LLVM's list of a host's features is read from ``/proc/cpuinfo`` and knows a part of them: neither
SME nor ``i8mm``, ``bf16``, ``dotprod`` and ``fullfp16``.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass

from jitgemm.isa import sysctl

__all__ = [
    "FEATURES", "Feature", "darwin_features", "darwin_vector_bytes", "features", "linux_features",
    "linux_vector_bytes", "vector_bytes",
]  # fmt: skip

# getauxval's keys, and prctl's options with what of their answers is a length
# (Linux, include/uapi/linux/auxvec.h and prctl.h).
_HWCAP, _HWCAP2 = 16, 26
_SVE_GET_VL, _SME_GET_VL, _LENGTH = 51, 64, 0xFFFF
# A length is a whole number of 128 bits, up to 2048.
_STEP, _MOST = 16, 256


@dataclass(frozen=True, slots=True)
class Feature:
    """An extension of the architecture, and how one asks for it."""

    name: str
    """What LLVM calls it."""
    word: int
    """The key of ``getauxval`` under which Linux reports it."""
    bit: int
    """The number of its bit there (Linux, ``arch/arm64/include/uapi/asm/hwcap.h``)."""
    sysctl: str = ""
    """What macOS calls it, below ``hw.optional.``; empty: that system has no name for it."""
    vectors: str = ""
    """The extension whose vector length it goes by, ``sve`` or ``sme``; empty: neither."""


FEATURES = (
    Feature("fp-armv8", _HWCAP, 0, "floatingpoint"),
    Feature("neon", _HWCAP, 1, "AdvSIMD"),
    Feature("lse", _HWCAP, 8, "arm.FEAT_LSE"),
    Feature("fullfp16", _HWCAP, 10, "arm.FEAT_FP16"),
    Feature("rdm", _HWCAP, 12, "arm.FEAT_RDM"),
    Feature("dotprod", _HWCAP, 20, "arm.FEAT_DotProd"),
    Feature("sve", _HWCAP, 22, vectors="sve"),
    Feature("fp16fml", _HWCAP, 23, "arm.FEAT_FHM"),
    Feature("sve2", _HWCAP2, 1, vectors="sve"),
    Feature("f64mm", _HWCAP2, 11, vectors="sve"),
    Feature("i8mm", _HWCAP2, 13, "arm.FEAT_I8MM"),
    Feature("bf16", _HWCAP2, 14, "arm.FEAT_BF16"),
    Feature("sme", _HWCAP2, 23, "arm.FEAT_SME", "sme"),
    Feature("sme-i16i64", _HWCAP2, 24, "arm.FEAT_SME_I16I64", "sme"),
    Feature("sme-f64f64", _HWCAP2, 25, "arm.FEAT_SME_F64F64", "sme"),
    Feature("sme-fa64", _HWCAP2, 30, vectors="sme"),
    Feature("sve2p1", _HWCAP2, 36, vectors="sve"),
    Feature("sme2", _HWCAP2, 37, "arm.FEAT_SME2", "sme"),
    Feature("sme2p1", _HWCAP2, 38, "arm.FEAT_SME2p1", "sme"),
    Feature("sme-b16b16", _HWCAP2, 41, "arm.FEAT_SME_B16B16", "sme"),
    Feature("sme-f16f16", _HWCAP2, 42, "arm.FEAT_SME_F16F16", "sme"),
)
"""Every extension a kernel may want."""

# The procedure call standard passes numbers in these registers.
_ALWAYS = frozenset({"fp-armv8", "neon"})


def _of_length(found: Feature, lengths: tuple[int, int]) -> bool:
    """Whether vectors of this extension have a length: without one no code can be generated."""
    return not found.vectors or lengths[found.vectors == "sme"] > 0


def linux_features(hwcap: int, hwcap2: int, lengths: tuple[int, int]) -> frozenset[str]:
    """The extensions that two words of Linux name, as LLVM calls them.

    Args:
        hwcap: ``AT_HWCAP``.
        hwcap2: ``AT_HWCAP2``.
        lengths: bytes of a vector, of a streaming one; 0: the system does not tell, as sandboxes
            do that know no ``prctl``.  Extensions whose vectors have no length are left out.
    """
    words = {_HWCAP: hwcap, _HWCAP2: hwcap2}
    return frozenset(
        x.name for x in FEATURES if words[x.word] >> x.bit & 1 and _of_length(x, lengths)
    )


def linux_vector_bytes(ask: Callable[[int], int]) -> tuple[int, int]:
    """Bytes of a vector and of a streaming vector; 0 of what is not there.

    Args:
        ask: ``prctl`` with one argument; negative where it refuses.
    """

    def length(option: int) -> int:
        answer = ask(option)
        found = answer & _LENGTH if answer >= 0 else 0
        return found if found <= _MOST and found % _STEP == 0 else 0

    return length(_SVE_GET_VL), length(_SME_GET_VL)


def darwin_vector_bytes(ask: Callable[[str], int | None]) -> tuple[int, int]:
    """As :func:`linux_vector_bytes` on macOS, whose processors have streaming vectors only.

    Never run on a Mac.
    """
    found = ask("hw.optional.arm.sme_max_svl_b") or 0
    return 0, found if 0 <= found <= _MOST and found % _STEP == 0 else 0


def darwin_features(ask: Callable[[str], int | None]) -> frozenset[str]:
    """The extensions that macOS names, as LLVM calls them.  Never run on a Mac.

    Args:
        ask: a number by its name, ``None`` where there is none (:func:`jitgemm.isa.sysctl.number`).
    """
    lengths = darwin_vector_bytes(ask)
    named = frozenset(
        x.name
        for x in FEATURES
        if x.sysctl and ask(f"hw.optional.{x.sysctl}") and _of_length(x, lengths)
    )
    return named | _ALWAYS


def _here() -> bool:
    """Whether this is a process of AArch64: elsewhere the same words mean something else."""
    # A process of 64 bits with the personality of 32 ones is told "armv8l".
    return platform.machine().lower().startswith(("aarch64", "arm")) and sys.maxsize > 1 << 32


def _prctl(option: int) -> int:
    call = ctypes.CDLL(None).prctl
    call.restype = ctypes.c_int
    return int(call(ctypes.c_int(option), *(ctypes.c_ulong(0) for _ in range(4))))


def vector_bytes() -> tuple[int, int]:
    """Bytes of an SVE vector and of a streaming one, as this process has them; 0: there are none.

    They are an attribute of threads, which new ones inherit: a fork keeps them, a program that is
    executed may have others.  So nothing may keep them longer than a process lasts.
    """
    if not _here():
        return 0, 0
    if sys.platform == "darwin":
        return darwin_vector_bytes(sysctl.number)
    if sys.platform.startswith("linux"):
        return linux_vector_bytes(_prctl)
    return 0, 0


def features() -> frozenset[str]:
    """The extensions this process may use, as LLVM calls them; empty on other architectures.

    Systems that cannot be asked are taken to have what the procedure call standard demands.
    """
    if not _here():
        return frozenset()
    if sys.platform == "darwin":
        return darwin_features(sysctl.number)
    if sys.platform.startswith("linux"):
        word = ctypes.CDLL(None).getauxval
        word.restype, word.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
        return linux_features(word(_HWCAP), word(_HWCAP2), vector_bytes())
    return _ALWAYS
