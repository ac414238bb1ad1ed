"""Machines that are described: their rows, and how one is recognised."""

from __future__ import annotations

import mmap
import re
from dataclasses import replace
from pathlib import Path

import pytest

from jitgemm.isa.tables import BY_NAME as SETS
from jitgemm.jit import arm
from jitgemm.planner import cores
from jitgemm.planner.caches import Cache
from jitgemm.planner.cores import BY_NAME, Core

CORES = list(BY_NAME.values())
ON_ARM = [core for core in CORES if core.midr]


def _named(core: Core) -> str:
    return core.name


# -- rows -----------------------------------------------------------------------------------------


def test_there_are_cores_of_every_kind() -> None:
    """NEON only, SVE of each length that was built, SVE2, and SME without SVE."""
    assert {x.sve_bits for x in ON_ARM} == {0, 128, 256, 512}
    assert any("sve2" in x.features for x in ON_ARM)
    assert any(x.streaming_bits and not x.sve_bits for x in ON_ARM)
    assert any(not x.streaming_bits and not x.sve_bits for x in ON_ARM)
    assert len(ON_ARM) >= 5
    assert len({x.midr for x in ON_ARM}) == len(ON_ARM)


@pytest.mark.parametrize("core", CORES, ids=_named)
def test_rows_are_consistent(core: Core) -> None:
    known = {x.name for x in arm.FEATURES} if core.midr else {f for x in SETS.values()
                                                              for f in x.requires}  # fmt: skip
    assert not core.midr or core.features <= known
    assert ("sve" in core.features) == (core.sve_bits > 0)
    assert ("sme" in core.features) == (core.streaming_bits > 0)
    for bits in (core.sve_bits, core.streaming_bits):
        assert bits % 128 == 0
        assert bits <= 2048
    for cache in (core.l1, core.l2, *([core.l3] if core.l3 else [])):
        assert cache.size % (cache.line * cache.ways) == 0
    assert core.page in (4096, 16384, 65536)
    assert core.cores % core.l2_cores == 0
    # A document, and a word about what it does not say.
    assert re.search(r"Manual|Guide|arXiv|Learning Path", core.source)


@pytest.mark.parametrize("core", CORES, ids=_named)
def test_machines_of_rows(core: Core) -> None:
    machine = core.machine
    assert machine.l1.size < machine.l2.size < machine.l3.size
    # All cores at once find room.
    assert machine.l2.size * core.l2_cores <= core.l2.size
    assert machine.l2.size * core.l2_cores > core.l2.size // 2
    assert (machine.page, machine.source) == (core.page, f"{core.name}, described")
    assert machine.l3 == (core.l3 or core.l2)


def test_llvm_knows_every_core(capfd: pytest.CaptureFixture[str]) -> None:
    """It takes a name it does not know for a general processor, and says so."""
    binding = pytest.importorskip("llvmlite.binding")
    binding.initialize_all_targets()
    for core in CORES:
        features = ",".join(f"+{x}" for x in sorted(core.features))
        target = binding.Target.from_triple(f"{core.arch}-unknown-linux-gnu")
        target.create_target_machine(cpu=core.name, features=features)
    assert not capfd.readouterr().err


# -- which one is this ----------------------------------------------------------------------------

CPUINFO = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd evtstrm
CPU implementer\t: 0x{:02x}
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0x{:03x}
CPU revision\t: 1

processor\t: 1
CPU implementer\t: 0x7f
CPU part\t: 0xfff
"""


def _files(folder: Path, core: Core, *, words: bool) -> tuple[Path, Path]:
    assert core.midr is not None
    implementer, part = core.midr
    register, cpuinfo = folder / "midr_el1", folder / "cpuinfo"
    if words:
        cpuinfo.write_text(CPUINFO.format(implementer, part))
    else:
        register.write_text(f"0x00000000{implementer:02x}1f{part:03x}1\n")
    return register, cpuinfo


@pytest.mark.parametrize("words", [False, True], ids=["register", "words"])
@pytest.mark.parametrize("core", ON_ARM, ids=_named)
def test_a_core_is_recognised(core: Core, tmp_path: Path, *, words: bool) -> None:
    found = cores.here(*_files(tmp_path, core, words=words))
    assert found == replace(core.machine, page=mmap.PAGESIZE)


def test_the_register_is_asked_first(tmp_path: Path) -> None:
    n1, v1 = BY_NAME["neoverse-n1"], BY_NAME["neoverse-v1"]
    register, _ = _files(tmp_path, n1, words=False)
    _, cpuinfo = _files(tmp_path, v1, words=True)
    assert cores.here(register, cpuinfo) == replace(n1.machine, page=mmap.PAGESIZE)
    for unreadable in ("", "zero", "0x"):
        register.write_text(unreadable)
        assert cores.here(register, cpuinfo) == replace(v1.machine, page=mmap.PAGESIZE)


def test_cores_that_are_not_described(tmp_path: Path) -> None:
    register, cpuinfo = tmp_path / "midr_el1", tmp_path / "cpuinfo"
    assert cores.here(register, cpuinfo) is None
    register.write_text("0x00000000410fd034\n")  # a Cortex-A53
    assert cores.here(register, cpuinfo) is None
    # x86 has neither the register nor these words.
    register.unlink()
    cpuinfo.write_text(
        "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R)\n"
    )
    assert cores.here(register, cpuinfo) is None
    cpuinfo.write_text("CPU implementer\t: 0x41\n")
    assert cores.here(register, cpuinfo) is None


def test_shares_are_of_l2() -> None:
    core = BY_NAME["a64fx"]
    assert core.machine.l2 == Cache(512 << 10, 256, 16)
    assert core.machine.l3 == Cache(8 << 20, 256, 16)
