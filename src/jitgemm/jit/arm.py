"""What an AArch64 machine has, as its operating system says it.

LLVM's list of a host's features is read from ``/proc/cpuinfo`` and knows a part of them: neither
SME nor ``i8mm``, ``bf16``, ``dotprod`` and ``fullfp16``.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass

from jitgemm.isa import lengths, sysctl

__all__ = ["FEATURES", "Feature", "darwin_features", "features", "linux_features", "vector_bytes"]

# getauxval's keys (Linux, include/uapi/linux/auxvec.h).
_HWCAP, _HWCAP2 = 16, 26


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


def _of_length(found: Feature, bits: tuple[int, int]) -> bool:
    """Whether vectors of this extension have a length: without one no code can be generated."""
    return not found.vectors or bits[found.vectors == "sme"] > 0


def linux_features(hwcap: int, hwcap2: int, bits: tuple[int, int]) -> frozenset[str]:
    """The extensions that two words of Linux name, as LLVM calls them.

    Args:
        hwcap: ``AT_HWCAP``.
        hwcap2: ``AT_HWCAP2``.
        bits: of a vector and of a streaming one (``isa.lengths``); 0: the system does not tell, as
            sandboxes do not that know no ``prctl``.  Extensions whose vectors have no length are
            left out.
    """
    words = {_HWCAP: hwcap, _HWCAP2: hwcap2}
    return frozenset(x.name for x in FEATURES if words[x.word] >> x.bit & 1 and _of_length(x, bits))


def darwin_features(ask: Callable[[str], int | None]) -> frozenset[str]:
    """The extensions that macOS names, as LLVM calls them.  Never run on a Mac.

    Args:
        ask: a number by its name, ``None`` where there is none (:func:`jitgemm.isa.sysctl.number`).
    """
    bits = lengths.darwin_bits(ask)
    named = frozenset(
        x.name
        for x in FEATURES
        if x.sysctl and ask(f"hw.optional.{x.sysctl}") and _of_length(x, bits)
    )
    return named | _ALWAYS


def vector_bytes() -> tuple[int, int]:
    """Bytes of an SVE vector and of a streaming one, as this process has them; 0: there are none.

    ``isa.lengths`` asks for them.
    """
    return lengths.sve_bits() // 8, lengths.streaming_bits() // 8


def features() -> frozenset[str]:
    """The extensions this process may use, as LLVM calls them; empty on other architectures.

    Systems that cannot be asked are taken to have what the procedure call standard demands.
    """
    if not lengths.on_arm():
        return frozenset()
    if sys.platform == "darwin":
        return darwin_features(sysctl.number)
    if sys.platform.startswith("linux"):
        word = ctypes.CDLL(None).getauxval
        word.restype, word.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
        bits = lengths.sve_bits(), lengths.streaming_bits()
        return linux_features(word(_HWCAP), word(_HWCAP2), bits)
    return _ALWAYS
