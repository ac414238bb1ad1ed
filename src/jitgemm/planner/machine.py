"""What the planner needs to know of a machine: caches, page size, usable processors."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cache", "Machine", "caches_from_cpuid", "caches_from_sysfs", "detect", "usable_cpus"]

# Zen 2 to 5 have 0.5 to 1 MiB and 16 to 96 MiB; Ice Lake to Emerald Rapids 1.25 to 2 MiB and more
# than 32 MiB.
_CLUSTER_L2, _CLUSTER_L3 = 1 << 20, 32 << 20

Cpuid = Callable[[int, int], tuple[int, int, int, int]]


@dataclass(frozen=True, slots=True)
class Cache:
    """One data cache as a core sees it."""

    size: int
    line: int = 64
    ways: int = 8

    @property
    def way(self) -> int:
        """Bytes after which addresses share a set again: 4096 of most L1 caches, on any page."""
        return max(self.line, self.size // self.ways)

    def sets(self, stride: int) -> int:
        """How many sets lines that are ``stride`` bytes apart can lie in."""
        return max(1, self.way // max(self.line, math.gcd(stride, self.way)))


@dataclass(frozen=True, slots=True)
class Machine:
    """Caches of one core (``l3`` shared), where their numbers come from, and the page size."""

    l1: Cache
    l2: Cache
    l3: Cache
    source: str
    page: int = mmap.PAGESIZE
    """Bytes of a page of memory: 4096, on Arm also 16384 and 65536."""

    @property
    def far_l3(self) -> bool:
        """Whether L3 is spread over the mesh of a server, and L2 the last cache that is near.

        Such cores have large L2 caches; their L3 takes two to three times as many cycles as one
        that a cluster of eight cores shares, however large it is.
        """
        return self.l2.size > _CLUSTER_L2 and self.l3.size > _CLUSTER_L3


# A small core of the last ten years; used where nothing can be detected.
_ASSUMED = Machine(
    Cache(32 << 10, 64, 8), Cache(512 << 10, 64, 8), Cache(8 << 20, 64, 16), "assumed"
)


def _machine(found: dict[int, Cache], source: str) -> Machine | None:
    if 1 not in found:
        return None
    l1 = found[1]
    l2 = found.get(2, _ASSUMED.l2)
    return Machine(l1, l2, found.get(3, Cache(4 * l2.size, l2.line, l2.ways)), source)


def caches_from_cpuid(cpuid: Cpuid) -> Machine | None:
    """Read leaf 4 (Intel) or 0x8000001D (AMD): one subleaf per cache, type 0 ends the list."""
    vendor = cpuid(0, 0)
    leaf = 4 if vendor[1] == 0x756E6547 else 0x8000001D  # "Genu"ineIntel
    if cpuid(leaf & 0x80000000, 0)[0] < leaf:
        return None
    found: dict[int, Cache] = {}
    for index in range(16):
        eax, ebx, ecx, _ = cpuid(leaf, index)
        kind, level = eax & 31, (eax >> 5) & 7
        if kind == 0:
            break
        if kind in (1, 3):  # data, unified
            ways, partitions, line = (ebx >> 22) + 1, ((ebx >> 12) & 1023) + 1, (ebx & 4095) + 1
            found[level] = Cache(ways * partitions * line * (ecx + 1), line, ways)
    return _machine(found, "cpuid")


def _size(text: str) -> int:
    text = text.strip()
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * unit


def caches_from_sysfs(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> Machine | None:
    """Read Linux's description of the caches of one core."""
    found: dict[int, Cache] = {}
    try:
        for folder in sorted(root.glob("index*")):
            if (folder / "type").read_text().strip() == "Instruction":
                continue
            level = int((folder / "level").read_text())
            found[level] = Cache(
                _size((folder / "size").read_text()),
                int((folder / "coherency_line_size").read_text()),
                max(1, int((folder / "ways_of_associativity").read_text())),
            )
    except (OSError, ValueError):
        return None
    return _machine(found, "sysfs")


def detect(cpuid: Cpuid | None = None) -> Machine:
    """Caches of this machine: CPUID where there is one, then sysfs, then assumed constants."""
    if cpuid is not None:
        machine = caches_from_cpuid(cpuid)
        if machine is not None:
            return machine
    return caches_from_sysfs() or _ASSUMED


def _own_groups(root: Path, listing: Path) -> list[Path]:
    """This process's control group and all above it, innermost first; the root where unknown."""
    try:
        lines = listing.read_text().splitlines()
    except OSError:
        return [root]
    own = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    group = root / own
    return [group, *group.parents[: len(Path(own).parts)]]


def _cgroup_quota(root: Path) -> int | None:
    """Processors one control group allows, rounded up; ``None`` where it sets no limit."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        if quota != "max":
            return max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        pass
    try:
        quota_us = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        period_us = int((root / "cpu" / "cpu.cfs_period_us").read_text())
        if quota_us > 0:
            return max(1, math.ceil(quota_us / period_us))
    except (OSError, ValueError):
        pass
    return None


def usable_cpus(
    cgroup: Path = Path("/sys/fs/cgroup"), listing: Path = Path("/proc/self/cgroup")
) -> int:
    """Processors this process may use: affinity, then the quotas of its control groups."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [_cgroup_quota(group) for group in _own_groups(cgroup, listing)]
    return max(1, min([cpus, *(q for q in quotas if q is not None)]))
