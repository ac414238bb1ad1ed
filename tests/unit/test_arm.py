"""Detection on Arm, from words of fake systems."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jitgemm
from emulation.machines import missing, python
from jitgemm.isa import lengths, sysctl
from jitgemm.jit import arm
from jitgemm.planner.cores import BY_NAME
from oracle import MACHINE

HWCAP, HWCAP2 = 16, 26
ON_ARM = platform.machine() == "aarch64" and sys.platform == "linux"

# Words of Linux in /proc/cpuinfo: the same bits by other names (Documentation/arch/arm64/
# elf_hwcaps.rst).
CPUINFO = {
    "fp": "fp-armv8", "asimd": "neon", "atomics": "lse", "asimdhp": "fullfp16",
    "asimdrdm": "rdm", "asimddp": "dotprod", "sve": "sve", "asimdfhm": "fp16fml", "sve2": "sve2",
    "svef64mm": "f64mm", "i8mm": "i8mm", "bf16": "bf16", "sme": "sme", "smei16i64": "sme-i16i64",
    "smef64f64": "sme-f64f64", "smefa64": "sme-fa64", "sve2p1": "sve2p1", "sme2": "sme2",
    "sme2p1": "sme2p1", "smeb16b16": "sme-b16b16", "smef16f16": "sme-f16f16",
}  # fmt: skip


def _words(*names: str) -> tuple[int, int]:
    """Both words of a system that has these extensions."""
    rows = {x.name: x for x in arm.FEATURES}
    words = {HWCAP: 0, HWCAP2: 0}
    for name in names:
        words[rows[name].word] |= 1 << rows[name].bit
    return words[HWCAP], words[HWCAP2]


# -- the table ------------------------------------------------------------------------------------


def test_every_extension_is_a_bit_of_its_own() -> None:
    assert len({x.name for x in arm.FEATURES}) == len(arm.FEATURES)
    assert len({(x.word, x.bit) for x in arm.FEATURES}) == len(arm.FEATURES)
    named = [x.sysctl for x in arm.FEATURES if x.sysctl]
    assert len(set(named)) == len(named)
    assert {x.word for x in arm.FEATURES} == {HWCAP, HWCAP2}
    assert set(CPUINFO.values()) == {x.name for x in arm.FEATURES}


@pytest.mark.parametrize("name", [x.name for x in arm.FEATURES])
def test_one_bit_is_one_extension(name: str) -> None:
    assert arm.linux_features(*_words(name), (256, 512)) == {name}


def test_bits_of_other_extensions_mean_nothing() -> None:
    every = arm.linux_features((1 << 64) - 1, (1 << 64) - 1, (128, 128))
    assert every == {x.name for x in arm.FEATURES}
    known, known2 = _words(*every)
    assert arm.linux_features(~known & (1 << 64) - 1, ~known2 & (1 << 64) - 1, (128, 128)) == set()


def test_llvm_knows_every_name(capfd: pytest.CaptureFixture[str]) -> None:
    """It ignores what it does not know, and says so on the standard error stream."""
    binding = pytest.importorskip("llvmlite.binding")
    binding.initialize_all_targets()
    target = binding.Target.from_triple("aarch64-unknown-linux-gnu")
    for name in ("no-such-thing", *(x.name for x in arm.FEATURES)):
        target.create_target_machine(cpu="generic", features=f"+{name}")
    complaints = capfd.readouterr().err.splitlines()
    assert complaints
    assert all("no-such-thing" in line for line in complaints)


# -- lengths --------------------------------------------------------------------------------------


def _prctl(sve: int, sme: int) -> Any:
    return {51: sve, 64: sme}.__getitem__


def test_lengths_are_the_low_bits_of_an_answer() -> None:
    inherited, on_exec = 1 << 17, 1 << 18
    answers = _prctl(inherited | 32, on_exec | 256)
    assert lengths.linux_bits(answers) == (256, 2048)
    assert lengths.linux_bits(_prctl(16, -1)) == (128, 0)
    assert lengths.linux_bits(_prctl(-1, 64)) == (0, 512)


# The architecture once had all multiples of 16 bytes; kernels halve vectors.
@pytest.mark.parametrize("answer", [-1, 0, 8, 24, 48, 272, 512, 0xFFFF])
def test_what_is_no_length_is_none(answer: int) -> None:
    assert lengths.linux_bits(_prctl(answer, answer)) == (0, 0)
    assert lengths.darwin_bits(lambda _: answer) == (0, 0)


def test_vectors_without_a_length_are_not_used() -> None:
    words = _words("neon", "i8mm", "sve", "sve2", "f64mm", "sme", "sme2", "sme-f64f64")
    assert arm.linux_features(*words, (0, 0)) == {"neon", "i8mm"}
    assert arm.linux_features(*words, (128, 0)) == {"neon", "i8mm", "sve", "sve2", "f64mm"}
    assert arm.linux_features(*words, (0, 512)) == {"neon", "i8mm", "sme", "sme2", "sme-f64f64"}


# -- macOS ----------------------------------------------------------------------------------------

M4 = {
    "hw.optional.floatingpoint": 1, "hw.optional.AdvSIMD": 1, "hw.optional.arm.FEAT_LSE": 1,
    "hw.optional.arm.FEAT_FP16": 1, "hw.optional.arm.FEAT_FHM": 1, "hw.optional.arm.FEAT_RDM": 1,
    "hw.optional.arm.FEAT_DotProd": 1, "hw.optional.arm.FEAT_I8MM": 1,
    "hw.optional.arm.FEAT_BF16": 1, "hw.optional.arm.FEAT_SME": 1, "hw.optional.arm.FEAT_SME2": 1,
    "hw.optional.arm.FEAT_SME2p1": 0, "hw.optional.arm.FEAT_SME_F64F64": 1,
    "hw.optional.arm.FEAT_SME_I16I64": 1, "hw.optional.arm.sme_max_svl_b": 64,
}  # fmt: skip


def test_a_mac_with_sme() -> None:
    assert lengths.darwin_bits(M4.get) == (0, 512)
    assert arm.darwin_features(M4.get) == {
        "fp-armv8", "neon", "lse", "fullfp16", "fp16fml", "rdm", "dotprod", "i8mm", "bf16", "sme",
        "sme2", "sme-f64f64", "sme-i16i64",
    }  # fmt: skip


def test_a_mac_without_sme() -> None:
    older = {name: 0 if "SME" in name else value for name, value in M4.items()}
    assert not {x for x in arm.darwin_features(older.get) if x.startswith("sme")}
    del older["hw.optional.arm.sme_max_svl_b"]
    assert lengths.darwin_bits(older.get) == (0, 0)
    silent = M4 | {"hw.optional.arm.sme_max_svl_b": 0}
    assert not {x for x in arm.darwin_features(silent.get) if x.startswith("sme")}
    # Names that a system does not know are those of extensions it does not offer.
    assert arm.darwin_features({}.get) == {"fp-armv8", "neon"}


class _SystemLibrary:
    """A C library with ``sysctlbyname``."""

    def __init__(self, values: dict[bytes, bytes]) -> None:
        def ask(name: bytes, old: int, size: int, new: object, length: int) -> int:
            room = ctypes.c_size_t.from_address(size)
            if name not in values or room.value < len(values[name]) or new is not None or length:
                return -1
            ctypes.memmove(old, values[name], len(values[name]))
            room.value = len(values[name])
            return 0

        self.sysctlbyname = ask


def test_numbers_of_either_size(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {b"small": (64, 4), b"none": (0, 4), b"large": (1 << 40, 8)}
    stored = {name: value.to_bytes(size, "little") for name, (value, size) in numbers.items()}
    system = _SystemLibrary({**stored, b"text": b"Apple M4 Max"})
    monkeypatch.setattr(sysctl.ctypes, "CDLL", lambda _: system)
    assert [sysctl.number(x) for x in ("small", "none", "large")] == [64, 0, 1 << 40]
    assert sysctl.number("text") is None
    assert sysctl.number("unknown") is None
    monkeypatch.setattr(sysctl.ctypes, "CDLL", lambda _: SimpleNamespace())
    assert sysctl.number("small") is None


# -- this process ---------------------------------------------------------------------------------


@pytest.fixture
def process() -> Iterator[Callable[[], None]]:
    """Ends what a process knows of its vectors, as a new one begins."""
    yield lengths._here.cache_clear
    lengths._here.cache_clear()


def test_every_system_is_asked_in_its_own_way(
    monkeypatch: pytest.MonkeyPatch, process: Callable[[], None]
) -> None:
    process()
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(sysctl, "number", M4.get)
    assert (arm.vector_bytes(), "sme2" in arm.features()) == ((0, 64), True)
    process()
    monkeypatch.setattr(sys, "platform", "linux")
    words = dict(zip((HWCAP, HWCAP2), _words("neon", "sve", "sme"), strict=True))
    answers = _prctl(32, 16)
    library = SimpleNamespace(getauxval=words.get, prctl=lambda option, *_: answers(option.value))
    monkeypatch.setattr(lengths.ctypes, "CDLL", lambda _: _Settable(library))
    assert (arm.vector_bytes(), arm.features()) == ((32, 16), {"neon", "sve", "sme"})
    answers = _prctl(64, -1)
    assert (arm.vector_bytes(), arm.features()) == ((32, 16), {"neon", "sve", "sme"})
    # Asked anew: a program may start others with other lengths.
    process()
    assert (arm.vector_bytes(), arm.features()) == ((64, 0), {"neon", "sve"})
    process()
    monkeypatch.setattr(sys, "platform", "win32")
    assert (arm.vector_bytes(), arm.features()) == ((0, 0), {"fp-armv8", "neon"})


class _Settable:
    """A library whose functions take the attributes that ctypes' have."""

    def __init__(self, library: SimpleNamespace) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)

        def call(*args: Any) -> Any:
            return found(*args)

        return call


@pytest.mark.parametrize("machine, size", [("x86_64", sys.maxsize), ("riscv64", sys.maxsize),
                                           ("aarch64", (1 << 31) - 1)])  # fmt: skip
def test_other_machines_are_not_asked(
    machine: str, size: int, monkeypatch: pytest.MonkeyPatch, process: Callable[[], None]
) -> None:
    """The same bits are other extensions there."""
    process()
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(sys, "maxsize", size)
    monkeypatch.setattr(arm, "ctypes", None)
    monkeypatch.setattr(lengths, "ctypes", None)
    assert (arm.features(), arm.vector_bytes()) == (frozenset(), (0, 0))


@pytest.mark.skipif(not ON_ARM, reason="asks Linux on AArch64")
def test_both_ways_to_ask_linux_agree() -> None:
    lines = Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines()
    words = next(line.split(":")[1].split() for line in lines if line.startswith("Features"))
    assert arm.features() == {CPUINFO[word] for word in words if word in CPUINFO}
    assert [x > 0 for x in arm.vector_bytes()] == ["sve" in words, "sme" in words]


# -- emulated processors --------------------------------------------------------------------------

# The modules that ask, without the package: of it an emulated process would import for seconds.
_ASK = """
import json, sys, types
for name in ("jitgemm", "jitgemm.isa", "jitgemm.jit", "jitgemm.planner"):
    package = types.ModuleType(name)
    package.__path__ = [sys.argv[1] + name.removeprefix("jitgemm").replace(".", "/")]
    sys.modules[name] = package
from jitgemm.jit import arm
from jitgemm.planner import cores
machine = cores.here(cores.Path("/nowhere"))
print(json.dumps([sorted(arm.features()), arm.vector_bytes(), machine and machine.source]))
"""


def _told(model: str) -> tuple[set[str], tuple[int, int], str | None]:
    """What a process on this model of processor finds."""
    why = missing()
    if why is not None:
        pytest.skip(why)
    done = subprocess.run(
        [python(), "-S", "-c", _ASK, str(Path(jitgemm.__file__).parent)],
        capture_output=True, text=True, timeout=120, env={**os.environ, MACHINE: model},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    features, lengths_found, source = json.loads(done.stdout)
    return set(features), tuple(lengths_found), source


@pytest.mark.parametrize("name", ["neoverse-n1", "neoverse-n2", "neoverse-v1", "a64fx"])
def test_described_cores_are_what_the_emulator_takes_them_for(name: str) -> None:
    core = BY_NAME[name]
    features, nbytes, source = _told(name)
    # QEMU's model of the Neoverse V1 leaves out an extension that its manual has.
    lacking = {"bf16"} if name == "neoverse-v1" else set()
    assert features == core.features - lacking
    assert nbytes == (core.sve_bits // 8, 0)
    assert source == f"{name}, described"


def test_extensions_that_an_emulator_takes_away() -> None:
    """One bit goes where one extension does, and what depends on it."""
    every = {x.name for x in arm.FEATURES}
    sve, sme = ({x.name for x in arm.FEATURES if x.vectors == kind} for kind in ("sve", "sme"))
    lengths_asked = "sve-default-vector-length=128,sme-default-vector-length=16"
    for model, features, nbytes in (
        (f"max,{lengths_asked}", every, (128, 16)),
        (f"max,sme_fa64=off,{lengths_asked}", every - {"sme-fa64"}, (128, 16)),
        ("max,sve=off,sme_fa64=off", every - sve - {"sme-fa64"}, (0, 32)),
        ("max,sme=off", every - sme, (64, 0)),
        ("max,sve=off,sme=off", every - sve - sme, (0, 0)),
        ("cortex-a72", {"neon", "fp-armv8"}, (0, 0)),
    ):
        assert _told(model) == (features, nbytes, None), model
