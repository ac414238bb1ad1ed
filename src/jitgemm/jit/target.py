"""What this machine is to LLVM, and which instruction set to use on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from jitgemm import tuning
from jitgemm.errors import IsaError, message
from jitgemm.isa.tables import BY_NAME, PORTABLE, Isa

__all__ = ["Host", "available", "choose_isa", "host", "target_machine"]


@dataclass(frozen=True, slots=True)
class Host:
    """The machine as LLVM sees it."""

    triple: str
    cpu: str
    features: frozenset[str]
    llvm: str

    @property
    def arch(self) -> str:
        """First part of the triple."""
        return self.triple.split("-", 1)[0]


@cache
def host() -> Host:
    """Detect the machine once."""
    # Since llvmlite 0.45 the library initialises itself and the old call is an error.
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # Empty inline assembly still goes through the parser.
    llvm.initialize_native_asmparser()
    features = frozenset(name for name, on in llvm.get_host_cpu_features().items() if on)
    version = ".".join(str(part) for part in llvm.llvm_version_info)
    return Host(llvm.get_process_triple(), llvm.get_host_cpu_name(), features, version)


def available(isa: Isa) -> bool:
    """Whether this machine can run ``isa``."""
    if isa.interpreted:
        return True
    return (not isa.arch or isa.arch == host().arch) and isa.requires <= host().features


def choose_isa() -> Isa:
    """The pinned instruction set (``JITGEMM_ISA``), else the first one the machine has.

    Raises:
        IsaError: the pinned one is unknown, or this machine lacks it.
    """
    pinned = tuning.text("isa")
    if pinned is None:
        return next(i for i in BY_NAME.values() if not i.interpreted and available(i))
    isa = BY_NAME.get(pinned.lower())
    if isa is None:
        raise IsaError(message("JITGEMM_ISA", f"one of {', '.join(BY_NAME)}", repr(pinned)))
    if not available(isa):
        missing = ", ".join(sorted(isa.requires - host().features)) or isa.arch
        raise IsaError(
            message("JITGEMM_ISA", f"an instruction set of this machine ({host().cpu})",
                    f"{isa.name!r}, which also needs {missing}")
        )  # fmt: skip
    return isa


@cache
def target_machine(isa: Isa) -> Any:
    """LLVM's target machine for code of ``isa``."""
    if isa.cpu:
        cpu, features = isa.cpu, ""
        if isa is PORTABLE or isa.cpu == "generic":
            cpu = "x86-64" if host().arch == "x86_64" else "generic"
    else:
        cpu, features = host().cpu, ",".join(f"+{f}" for f in sorted(host().features))
    target = llvm.Target.from_triple(host().triple)
    return target.create_target_machine(
        cpu=cpu, features=features, opt=2, reloc="pic", codemodel="default"
    )
