"""The emulated machines, and where their Python is."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["HINT", "MACHINES", "Machine", "missing", "python"]


@dataclass(frozen=True)
class Machine:
    """A model of processor."""

    name: str
    cpu: str
    """As QEMU is told (its ``-cpu``)."""
    isa: str
    """The instruction set that is tested on it."""


def _scalable(bits: int) -> str:
    return f"sve-default-vector-length={bits // 8}"


# Without `sme_fa64` instructions of NEON are refused in streaming mode, as on real machines.
MACHINES = (
    Machine("NEON alone", "cortex-a72", "neon"),
    Machine("NEON with its extensions", "max,sve=off,sme=off", "neon"),
    Machine("SVE of 128 bits", f"max,sme=off,{_scalable(128)}", "sve"),
    Machine("SVE of 256 bits", f"max,sme=off,{_scalable(256)}", "sve"),
    Machine("SVE of 512 bits", f"max,sme=off,{_scalable(512)}", "sve"),
)

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
