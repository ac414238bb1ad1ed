"""The emulated machines, and where their Python is."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["HINT", "MACHINES", "Machine", "chosen", "everything", "missing", "python"]


@dataclass(frozen=True)
class Machine:
    """A model of processor."""

    name: str
    cpu: str
    """As QEMU is told (its ``-cpu``)."""
    isa: str
    """The instruction set that is tested on it."""
    always: bool = False
    """Whether every session tests it; all are tested where ``JITGEMM_TEST_MACHINES`` is ``all``."""


# Where QEMU has a core with just the set's features it is the model: what is not among them is
# refused (its Neoverse V1 lacks the bfloat16 of the real one).  Without `sme_fa64` instructions of
# NEON are refused in streaming mode, as on real machines.
_SME = "max,sme_fa64=off,sve-default-vector-length=32,sme-default-vector-length"
MACHINES = (
    Machine("NEON alone", "cortex-a72", "neon", always=True),
    Machine("NEON with its extensions", "max,sve=off,sme=off", "neon_bf16"),
    Machine("SVE2 of 128 bits", "neoverse-n2", "sve2_bf16", always=True),
    Machine("SVE of 256 bits", "max,sme=off,sve-default-vector-length=32", "sve_bf16"),
    Machine("SVE of 512 bits", "a64fx", "sve", always=True),
    Machine("SME of 128 bits", f"{_SME}=16", "sve_sme"),
    Machine("SME of 512 bits", f"{_SME}=64", "sve_sme2"),
    Machine(
        "SME without SVE", "max,sve=off,sme_fa64=off,sme-default-vector-length=64", "sme2",
        always=True,
    ),
)  # fmt: skip


def everything() -> bool:
    """Whether all machines are tested, which takes twice as long."""
    return os.environ.get("JITGEMM_TEST_MACHINES") == "all"


def chosen() -> list[Machine]:
    """The machines that this session tests."""
    return [m for m in MACHINES if m.always or everything()]


_SETUP = Path(__file__).with_name("setup.sh")
HINT = "run `bash tests/emulation/setup.sh`"


def _home() -> Path:
    return Path(os.environ.get("JITGEMM_AARCH64") or Path.home() / ".cache" / "jitgemm-aarch64")


def python() -> str:
    """The program that runs the emulated Python."""
    return str(_home() / "python")


def missing() -> str | None:
    """Why nothing can be emulated here; ``None``: it can."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return "AArch64 is emulated on x86-64 Linux only"
    try:
        made_by = (_home() / "recipe").read_text().strip()
    except OSError:
        return f"there is no emulated Python in {_home()}: {HINT}"
    if made_by != hashlib.sha256(_SETUP.read_bytes()).hexdigest():
        return f"the emulated Python in {_home()} is an old one: {HINT}"
    return None
