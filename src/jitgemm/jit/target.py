"""What this machine is to LLVM, and which instruction set to use on it."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from jitgemm import tuning
from jitgemm.errors import IsaError, JitUnavailableError, message
from jitgemm.isa.tables import BY_NAME, Isa
from jitgemm.jit import arm
from jitgemm.jit.building import building

__all__ = [
    "NO_ISA", "Host", "Target", "available", "check_executable_memory", "choose_isa", "host",
    "llvm", "pick", "runs", "target_machine", "target_of",
]  # fmt: skip

NO_ISA = "none"
"""``JITGEMM_ISA`` of a process that generates no code; what its packed operands are made for."""


@dataclass(frozen=True, slots=True)
class Host:
    """The machine as LLVM sees it."""

    triple: str
    cpu: str
    features: frozenset[str]
    llvm: str

    @property
    def arch(self) -> str:
        """First part of the triple; macOS calls ``arm64`` what others call ``aarch64``."""
        first = self.triple.split("-", 1)[0]
        return "aarch64" if first == "arm64" else first


@cache
def llvm() -> Any:
    """LLVM's binding.  Loaded once: nothing can be imported any more when modules are torn down."""
    # Imported here, and first of all: without it everything but generating code must work.
    import llvmlite.binding

    return llvmlite.binding


@cache
def host() -> Host:
    """Detect the machine once.

    Raises:
        JitUnavailableError: llvmlite is not installed or does not load, or its LLVM has no code
            generator for this architecture.
    """
    with building:
        try:
            llvm()
        except (ImportError, OSError) as e:
            raise JitUnavailableError(f"llvmlite cannot be imported ({e})") from e
        try:
            return _detect()
        except RuntimeError as e:
            raise JitUnavailableError(f"LLVM does not know this machine ({e})") from e


def _detect() -> Host:
    binding = llvm()
    # Since llvmlite 0.45 the library initialises itself and the old call is an error.
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    # Empty inline assembly still goes through the parser.
    binding.initialize_native_asmparser()
    version = ".".join(str(part) for part in binding.llvm_version_info)
    found = binding.get_host_cpu_features()
    features = arm.features() or frozenset(name for name, on in found.items() if on)
    return Host(binding.get_process_triple(), binding.get_host_cpu_name(), features, version)


@dataclass(frozen=True, slots=True)
class Target:
    """What LLVM is told about the machine that code is made for: all but its operating system.

    It may be of another architecture than this process's.
    """

    triple: str
    cpu: str
    features: str


def available(isa: Isa) -> bool:
    """Whether this machine can run ``isa``."""
    if isa.interpreted:
        return True
    return runs(isa, host()) and _permitted(isa)


def runs(isa: Isa, machine: Host) -> bool:
    """Whether the processor of a machine has all that ``isa`` asks for."""
    return (not isa.arch or isa.arch == machine.arch) and isa.requires <= machine.features


def _permitted(isa: Isa) -> bool:
    """Whether the operating system lets this process use the matrix unit of ``isa``, if any.

    It is asked on processors that have the unit only.
    """
    return isa.unit is None or isa.unit.permit is None or isa.unit.permit()


def choose_isa() -> Isa:
    """The pinned instruction set (``JITGEMM_ISA``), else the first one the machine has.

    Raises:
        IsaError: the pinned one is unknown, or this machine lacks it.
        JitUnavailableError: it is ``none``, or LLVM is not to be had.
    """
    pinned = tuning.text("isa")
    if pinned is not None and pinned.lower() == NO_ISA:
        raise JitUnavailableError(f"JITGEMM_ISA={pinned} asks for no generated code")
    others = (NO_ISA,)
    return pick("JITGEMM_ISA", pinned, host(), permitted=_permitted, others=others)


def pick(
    operand: str,
    name: str | None,
    machine: Host,
    *,
    permitted: Callable[[Isa], bool] = lambda _: True,
    others: tuple[str, ...] = (),
) -> Isa:
    """The instruction set of a name, else the first one that a machine has.

    Args:
        operand: where the name comes from.
        name: of a set, in any case of letters; ``None``: none is asked for.
        machine: this machine, or one that is described.
        permitted: whether its operating system lets a process use the matrix unit of a set.
        others: what may stand for a name besides those of sets.

    Raises:
        IsaError: no set has that name, or the machine lacks it.
    """
    if name is None:
        able = (i for i in BY_NAME.values() if not i.interpreted and runs(i, machine))
        return next(i for i in able if permitted(i))
    isa = BY_NAME.get(name.lower())
    if isa is None:
        raise IsaError(message(operand, f"one of {', '.join([*BY_NAME, *others])}", repr(name)))
    here = isa.interpreted or runs(isa, machine)
    if here and (isa.interpreted or permitted(isa)):
        return isa
    missing = ", ".join(sorted(isa.requires - machine.features)) or isa.arch
    if here:
        missing = "the operating system's permission"
    expected = f"an instruction set of this machine ({machine.cpu})"
    raise IsaError(message(operand, expected, f"{isa.name!r}, which also needs {missing}"))


def _foreign(isa: Isa) -> bool:
    return bool(isa.arch) and isa.arch != host().arch


def target_of(isa: Isa) -> Target:
    """What code of ``isa`` is made for: this machine, or any of the set's own architecture."""
    if _foreign(isa):
        features = isa.features or ",".join(f"+{x}" for x in sorted(isa.requires))
        return Target(f"{isa.arch}-unknown-linux-gnu", isa.cpu or "generic", features)
    if not isa.cpu:
        found = [f"+{f}" for f in sorted(host().features)]
        features = ",".join([*found, *([isa.features] if isa.features else [])])
        return Target(host().triple, host().cpu, features)
    generic = isa.cpu == "generic" and host().arch == "x86_64"
    return Target(host().triple, "x86-64" if generic else isa.cpu, isa.features)


@cache
def _every_target() -> None:
    """Have LLVM know the architectures that are not this machine's."""
    llvm().initialize_all_targets()
    llvm().initialize_all_asmprinters()


@cache
def _machine_of(target: Target) -> Any:
    if target.triple.split("-", 1)[0] != host().arch:
        _every_target()
    return (
        llvm()
        .Target.from_triple(target.triple)
        .create_target_machine(
            cpu=target.cpu, features=target.features, opt=2, reloc="pic", codemodel="default"
        )
    )


def target_machine(isa: Isa) -> Any:
    """LLVM's target machine for code of ``isa``."""
    return _machine_of(target_of(isa))


def check_executable_memory() -> None:
    """Do what LLVM's linker will do: fill a page, then make it executable.

    The linker itself ends the process where that is refused (an assertion in LLVM 22's
    ``JITLinkMemoryManager``), as it is by SELinux without ``execmem`` or after
    ``prctl(PR_SET_MDWE)``.

    Raises:
        JitUnavailableError: it is refused.
    """
    if os.name != "posix":
        return
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, mmap.PAGESIZE, flags, mmap.PROT_READ | mmap.PROT_WRITE) as page:
        page[0] = 0
        where = ctypes.addressof(ctypes.c_char.from_buffer(page))
        failed = protect(where, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC)
    if failed:
        why = os.strerror(ctypes.get_errno())
        raise JitUnavailableError(f"memory cannot be made executable ({why})")
