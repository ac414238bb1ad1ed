"""Caches and processors, from fake CPUID, fake /sys and fake cgroups."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jitgemm.errors import IsaError
from jitgemm.isa.matrix import AMX
from jitgemm.isa.permission import linux_tile_data
from jitgemm.isa.tables import AVX512_AMX, AVX512_BF16, BY_NAME
from jitgemm.jit import target
from jitgemm.jit.arm import FEATURES
from jitgemm.planner.machine import (
    Cache,
    Machine,
    caches_from_cpuid,
    caches_from_sysctl,
    caches_from_sysfs,
    detect,
    usable_cpus,
)

TINY = Machine(Cache(2 << 10, 64, 2), Cache(16 << 10, 64, 4), Cache(64 << 10, 64, 8), "test")


# -- caches ---------------------------------------------------------------------------------------


class FakeCpuid:
    """Answers CPUID for a list of caches ``(type, level, ways, partitions, line, sets)``."""

    def __init__(self, vendor: int, leaf: int, caches: list[tuple[int, ...]], most: int) -> None:
        self.vendor, self.leaf, self.caches, self.most = vendor, leaf, caches, most

    def __call__(self, leaf: int, subleaf: int) -> tuple[int, int, int, int]:
        if leaf == self.leaf:
            if subleaf >= len(self.caches):
                return 0, 0, 0, 0
            kind, level, ways, partitions, line, sets = self.caches[subleaf]
            ebx = (ways - 1) << 22 | (partitions - 1) << 12 | (line - 1)
            return kind | level << 5 | 0x1C000100, ebx, sets - 1, 0
        if leaf in (0, 0x80000000):
            most = self.most if (self.most ^ leaf) < 1 << 31 else leaf
            return most, self.vendor, 0, 0
        raise AssertionError(f"leaf {leaf:#x} was not to be asked for")


GENUINE, AUTHENTIC = 0x756E6547, 0x68747541
INTEL = [
    (1, 1, 12, 1, 64, 64),
    (2, 1, 8, 1, 64, 64),
    (3, 2, 16, 1, 64, 2048),
    (3, 3, 20, 2, 64, 98304),
]
AMD = [(1, 1, 8, 1, 64, 64), (2, 1, 8, 1, 64, 64), (3, 2, 8, 1, 64, 2048), (3, 3, 16, 1, 64, 32768)]


def test_caches_of_intel() -> None:
    found = caches_from_cpuid(FakeCpuid(GENUINE, 4, INTEL, 0x20))
    l3 = Cache(20 * 2 * 64 * 98304, 64, 20)
    assert found == Machine(Cache(48 << 10, 64, 12), Cache(2 << 20, 64, 16), l3, "cpuid")


def test_caches_of_amd() -> None:
    found = caches_from_cpuid(FakeCpuid(AUTHENTIC, 0x8000001D, AMD, 0x80000028))
    assert found is not None
    assert (found.l1, found.l2) == (Cache(32 << 10, 64, 8), Cache(1 << 20, 64, 8))
    assert found.l3 == Cache(32 << 20, 64, 16)


def test_caches_that_a_hypervisor_hides() -> None:
    assert caches_from_cpuid(FakeCpuid(GENUINE, 4, [], 0x20)) is None
    assert caches_from_cpuid(FakeCpuid(GENUINE, 4, INTEL, 3)) is None  # no such leaf
    assert caches_from_cpuid(FakeCpuid(AUTHENTIC, 0x8000001D, AMD, 0x80000008)) is None
    assert caches_from_cpuid(FakeCpuid(GENUINE, 4, INTEL[1:], 0x20)) is None  # no data cache
    only_l1 = caches_from_cpuid(FakeCpuid(GENUINE, 4, INTEL[:1], 0x20))
    assert only_l1 is not None
    assert only_l1.l2.size > only_l1.l1.size
    assert only_l1.l3.size == 4 * only_l1.l2.size


def test_endless_lists_of_caches_end() -> None:
    found = caches_from_cpuid(FakeCpuid(GENUINE, 4, INTEL * 100, 0x20))
    assert found is not None
    assert found.l1.size == 48 << 10


def _sysfs(root: Path, *caches: tuple[str, int, str, int, int]) -> Path:
    for i, (kind, level, size, line, ways) in enumerate(caches):
        folder = root / f"index{i}"
        folder.mkdir()
        files = {"type": kind, "level": level, "size": size, "coherency_line_size": line,
                 "ways_of_associativity": ways}  # fmt: skip
        for name, value in files.items():
            (folder / name).write_text(f"{value}\n")
    return root


def test_caches_from_sysfs(tmp_path: Path) -> None:
    root = _sysfs(
        tmp_path, ("Data", 1, "48K", 64, 12), ("Instruction", 1, "64K", 64, 8),
        ("Unified", 2, "2048K", 64, 16), ("Unified", 3, "1G", 128, 0),
    )  # fmt: skip
    want = Machine(Cache(48 << 10, 64, 12), Cache(2 << 20, 64, 16), Cache(1 << 30, 128, 1), "sysfs")
    assert caches_from_sysfs(root) == want


@pytest.mark.parametrize(
    "shared, siblings, levels, l2, l3",
    [
        ("0-11", "0", 2, 512 << 10, 8 << 20),  # an A64FX: no L3, a group of 12 cores
        ("0-11", "0", 3, 512 << 10, 64 << 20),
        ("0,64", "0,64", 3, 8 << 20, 64 << 20),  # two processors of one core
        ("0-3,64-67", "0,64", 3, 2 << 20, 64 << 20),
        ("0", "0", 2, 8 << 20, 32 << 20),
        (None, None, 2, 8 << 20, 32 << 20),
        ("", "x", 2, 8 << 20, 32 << 20),
    ],
)  # fmt: skip
def test_l2_caches_that_cores_share(
    shared: str | None, siblings: str | None, levels: int, l2: int, l3: int, tmp_path: Path
) -> None:
    caches = [("Data", 1, "64K", 256, 4), ("Unified", 2, "8192K", 256, 16),
              ("Unified", 3, "64M", 64, 16)]  # fmt: skip
    root = tmp_path / "cache"
    root.mkdir()
    _sysfs(root, *caches[:levels])
    if shared is not None and siblings is not None:
        (root / "index1" / "shared_cpu_list").write_text(f"{shared}\n")
        (tmp_path / "topology").mkdir()
        (tmp_path / "topology" / "thread_siblings_list").write_text(f"{siblings}\n")
    found = caches_from_sysfs(root)
    assert found is not None
    assert (found.l1.size, found.l2.size, found.l3.size) == (64 << 10, l2, l3)


def test_caches_from_a_broken_sysfs(tmp_path: Path) -> None:
    assert caches_from_sysfs(tmp_path / "nowhere") is None
    root = _sysfs(tmp_path, ("Data", 1, "32K", 64, 8), ("Unified", 2, "unknown", 64, 8))
    assert caches_from_sysfs(root) is None
    (root / "index1" / "size").unlink()
    assert caches_from_sysfs(root) is None


def test_detection_asks_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from jitgemm.planner import machine

    good, hidden = FakeCpuid(GENUINE, 4, INTEL, 0x20), FakeCpuid(GENUINE, 4, [], 0x20)
    ways = ("caches_from_sysfs", "caches_from_sysctl", "cores.here")
    found = {way: replace(TINY, source=way) for way in ways}
    for way in ways:
        monkeypatch.setattr(f"jitgemm.planner.machine.{way}", lambda way=way: found[way])
    assert detect(good).source == "cpuid"
    for way in ways:
        assert detect(hidden) is detect() is found[way]
        found[way] = None  # type: ignore[assignment]
    assumed = detect(hidden)
    assert assumed.source == "assumed"
    assert assumed is machine._ASSUMED
    assert 0 < assumed.l1.size < assumed.l2.size < assumed.l3.size


# -- macOS ----------------------------------------------------------------------------------------

M4 = {
    "hw.perflevel0.l1dcachesize": 128 << 10, "hw.perflevel0.l2cachesize": 16 << 20,
    "hw.perflevel0.cpusperl2": 4, "hw.cachelinesize": 128, "hw.l1dcachesize": 64 << 10,
}  # fmt: skip


def test_caches_of_the_fast_cores_of_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitgemm.planner.machine.mmap.PAGESIZE", 16384)
    found = caches_from_sysctl(M4.get)
    assert found is not None
    assert found.l1 == Cache(128 << 10, 128, 8)
    # Four cores share an L2, and there is none behind it.
    assert (found.l2.size, found.l3.size, found.source) == (4 << 20, 16 << 20, "sysctl")
    large = caches_from_sysctl({**M4, "hw.perflevel0.l3cachesize": 32 << 20}.get)
    assert large is not None
    assert (large.l2.size, large.l3.size) == (4 << 20, 32 << 20)


@pytest.mark.parametrize("missing", ["l1dcachesize", "l2cachesize"])
def test_a_mac_that_does_not_say(missing: str) -> None:
    assert caches_from_sysctl({k: v for k, v in M4.items() if not k.endswith(missing)}.get) is None
    assert caches_from_sysctl({**M4, f"hw.perflevel0.{missing}": 0}.get) is None


def test_the_share_of_a_cache() -> None:
    shared = Cache(8 << 20, 256, 16)
    assert shared.share(1) is shared
    assert shared.share(12) == Cache(512 << 10, 256, 16)
    assert shared.share(4) == Cache(2 << 20, 256, 16)
    assert shared.share(1 << 30) == Cache(256, 256, 16)


# -- processors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, cpus",
    [
        ("max 100000", 8), ("100000 100000", 1), ("150000 100000", 2), ("50000 100000", 1),
        ("1000 100000", 1), ("1600000 100000", 8), ("400001 100000", 5), ("", 8), ("junk", 8),
        ("100000", 8), ("x y", 8),
    ],
)  # fmt: skip
def test_quota_of_cgroups(
    text: str, cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    (tmp_path / "cpu.max").write_text(text + "\n")
    assert usable_cpus(tmp_path) == cpus


@pytest.mark.parametrize(
    "quota, period, cpus",
    [("-1", "100000", 8), ("250000", "100000", 3), ("10", "100000", 1), ("x", "1", 8)],
)  # fmt: skip
def test_quota_of_old_cgroups(
    quota: str, period: str, cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text(period)
    assert usable_cpus(tmp_path) == cpus


@pytest.mark.parametrize(
    "outer, inner, cpus",
    [("max 100000", "200000 100000", 2), ("300000 100000", "max 100000", 3),
     ("100000 100000", "400000 100000", 1), ("max 100000", "max 100000", 8)],
)  # fmt: skip
def test_quota_of_nested_cgroups(
    outer: str, inner: str, cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    own, listing = tmp_path / "system.slice" / "job.service", tmp_path / "listing"
    own.mkdir(parents=True)
    (own.parent / "cpu.max").write_text(outer)
    (own / "cpu.max").write_text(inner)
    listing.write_text("0::/system.slice/job.service\n")
    assert usable_cpus(tmp_path, listing) == cpus


def test_affinity_and_platforms_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert usable_cpus(tmp_path) == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cpus(tmp_path) == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cpus(tmp_path) == 1


# -- permissions ----------------------------------------------------------------------------------


def test_without_permission_for_tiles_the_next_set_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for only where the processor has them; a pinned set says what is missing."""
    server = target.Host("x86_64-unknown-linux-gnu", "server", AVX512_AMX.requires, "22")
    asked, answers = [], [True, False, False]

    def permitted() -> bool:
        asked.append(True)
        return answers.pop(0)

    monkeypatch.setattr(target, "host", lambda: server)
    asking = replace(AVX512_AMX, unit=replace(AMX, permit=permitted))
    monkeypatch.setitem(BY_NAME, asking.name, asking)
    monkeypatch.delenv("JITGEMM_ISA", raising=False)
    assert [target.choose_isa() for _ in range(2)] == [asking, AVX512_BF16]
    monkeypatch.setenv("JITGEMM_ISA", "avx512_amx")
    with pytest.raises(IsaError, match="operating system's permission"):
        target.choose_isa()
    asked.clear()
    older = target.Host(server.triple, "older", AVX512_BF16.requires, "22")
    monkeypatch.setattr(target, "host", lambda: older)
    monkeypatch.delenv("JITGEMM_ISA")
    assert target.choose_isa() is AVX512_BF16
    assert not asked


def test_features_beyond_the_host_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a set for the host itself as of one for a named processor."""
    here = target.Host("x86_64-unknown-linux-gnu", "server", frozenset({"b", "a"}), "22")
    monkeypatch.setattr(target, "host", lambda: here)
    asked = []
    for cpu, features in (("", ""), ("", "+c"), ("x86-64-v3", "+c"), ("generic", "")):
        made = target.target_of(replace(AVX512_BF16, cpu=cpu, features=features))
        asked.append((made.cpu, made.features))
    assert asked == [("server", "+a,+b"), ("server", "+a,+b,+c"), ("x86-64-v3", "+c"),
                     ("x86-64", "")]  # fmt: skip


EVERY = frozenset(x.name for x in FEATURES)
VECTORS = frozenset(x for x in EVERY if x.startswith(("sve", "f64mm")))
OUTER = frozenset(x for x in EVERY if x.startswith("sme"))


@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "arm64-apple-darwin24.5.0"])
@pytest.mark.parametrize(
    "features, chosen, lacking",
    [
        (EVERY, "sve_sme2", {"avx2": "avx2, f16c, fma"}),
        (EVERY - {"sme2"}, "sve_sme_wide", {"sve_sme2": "sme2"}),
        (EVERY - {"sme2", "sme-f64f64"}, "sve_sme", {"sve_sme_wide": "sme-f64f64"}),
        (EVERY - OUTER, "sve", {"sme": "sme", "sme_wide": "sme, sme-f64f64, sme-i16i64"}),
        (EVERY - VECTORS, "sme2", {"sve": "sve"}),
        (EVERY - VECTORS - {"sme2"}, "sme_wide", {"sve": "sve"}),
        (EVERY - VECTORS - {"sme2", "sme-i16i64"}, "sme", {"sme_wide": "sme-i16i64"}),
        (EVERY - VECTORS - OUTER, "neon", {"sve": "sve", "sme": "sme"}),
        (frozenset({"neon", "fp-armv8"}), "neon", {"sve": "sve"}),
        (frozenset(), "portable", {"neon": "neon"}),
    ],
)  # fmt: skip
def test_sets_of_arm_machines(
    triple: str, features: frozenset[str], chosen: str, lacking: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The first one they have; another one only if it is there, or it is named what is not."""
    monkeypatch.setattr(target, "host", lambda: target.Host(triple, "server", features, "22"))
    monkeypatch.delenv("JITGEMM_ISA", raising=False)
    found = target.choose_isa()
    # Of a family: with dot products and the like as the processor has them.
    assert (found.name == chosen) if "sme" in chosen else found.name.startswith(chosen)
    assert (found.unit is not None) == ("sme" in chosen)
    expected = "jitgemm: JITGEMM_ISA: expected an instruction set of this machine (server), got "
    for name, missing in lacking.items():
        monkeypatch.setenv("JITGEMM_ISA", name.upper())
        with pytest.raises(IsaError) as refused:
            target.choose_isa()
        assert str(refused.value) == f"{expected}{name!r}, which also needs {missing}"
    for name in (found.name, "portable", "interpreter"):
        monkeypatch.setenv("JITGEMM_ISA", name)
        assert target.choose_isa() is BY_NAME[name]


def test_features_of_arm_come_from_its_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM's list knows a part of them."""

    class _Llvm:
        llvm_version_info = (22, 1, 0)

        def __getattr__(self, _: str) -> Any:
            return lambda: None

        def get_host_cpu_features(self) -> dict[str, bool]:
            return {"neon": True, "sve": True, "aes": False}

        def get_process_triple(self) -> str:
            return "arm64-apple-darwin24.5.0"

    monkeypatch.setattr(target, "llvm", _Llvm)
    for told, features in (({"neon", "sme"}, {"neon", "sme"}), ((), {"neon", "sve"})):
        monkeypatch.setattr(target.arm, "features", lambda told=told: frozenset(told))
        found = target._detect()
        assert (found.arch, found.features) == ("aarch64", features)


def test_a_unit_nobody_must_be_asked_for_is_simply_used(monkeypatch: pytest.MonkeyPatch) -> None:
    server = target.Host("x86_64-unknown-linux-gnu", "server", AVX512_AMX.requires, "22")
    monkeypatch.setattr(target, "host", lambda: server)
    free = replace(AVX512_AMX, unit=replace(AMX, permit=None))
    assert target.available(free)
    elsewhere = replace(free, arch="riscv64", unit=replace(AMX, permit=lambda: 1 / 0))
    assert not target.available(elsewhere)  # and nobody was asked
    monkeypatch.setitem(BY_NAME, elsewhere.name, elsewhere)
    monkeypatch.setenv("JITGEMM_ISA", elsewhere.name)
    with pytest.raises(IsaError, match="also needs riscv64"):
        target.choose_isa()


@pytest.mark.parametrize("change", [("sys.platform", "darwin"), ("sys.maxsize", (1 << 31) - 1),
                                    ("platform.machine", lambda: "aarch64")])  # fmt: skip
def test_other_systems_are_not_asked_for_tiles(
    change: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of the call is that of another one there."""
    monkeypatch.setattr(f"jitgemm.isa.permission.{change[0]}", change[1])
    monkeypatch.setattr("jitgemm.isa.permission.ctypes", None)
    assert linux_tile_data.__wrapped__() is False
