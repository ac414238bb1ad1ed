"""What the planner needs to know of a machine: caches, page size, usable processors."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable
from pathlib import Path

from jitgemm.isa import sysctl
from jitgemm.planner import cores
from jitgemm.planner.caches import Cache, Machine

__all__ = [
    "Cache", "Machine", "caches_from_cpuid", "caches_from_sysctl", "caches_from_sysfs", "detect",
    "usable_cpus",
]  # fmt: skip

Cpuid = Callable[[int, int], tuple[int, int, int, int]]


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


def _listed(file: Path) -> int:
    """How many processors a list as ``0-11,24`` names; 1 where there is none."""
    try:
        ranges = [part.split("-") for part in file.read_text().strip().split(",")]
        return max(1, sum(int(x[-1]) - int(x[0]) + 1 for x in ranges))
    except (OSError, ValueError):
        return 1


def caches_from_sysfs(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> Machine | None:
    """Read Linux's description of the caches of one core.

    Of an L2 cache that several cores share it is each one's share.
    """
    found: dict[int, Cache] = {}
    # Processors of one core share all of its caches, and are not used at once.
    siblings = _listed(root.parent / "topology" / "thread_siblings_list")
    try:
        for folder in sorted(root.glob("index*")):
            if (folder / "type").read_text().strip() == "Instruction":
                continue
            level = int((folder / "level").read_text())
            cache = Cache(
                _size((folder / "size").read_text()),
                int((folder / "coherency_line_size").read_text()),
                max(1, int((folder / "ways_of_associativity").read_text())),
            )
            cores = max(1, _listed(folder / "shared_cpu_list") // siblings) if level == 2 else 1
            if cores > 1:
                found.setdefault(3, cache)
            found[level] = cache.share(cores)
    except (OSError, ValueError):
        return None
    return _machine(found, "sysfs")


def caches_from_sysctl(ask: Callable[[str], int | None] = sysctl.number) -> Machine | None:
    """Ask macOS for the caches of its fastest cores.  Never run on a Mac.

    Args:
        ask: a number by its name, ``None`` where there is none.
    """

    def size(level: str) -> int:
        return ask(f"hw.perflevel0.{level}cachesize") or 0

    l1, l2, l3 = size("l1d"), size("l2"), size("l3")
    if not (l1 and l2):
        return None
    # Ways are not told.  Those of L1 follow from pages: a set is found without translation.
    line, ways = ask("hw.cachelinesize") or _ASSUMED.l1.line, max(1, l1 // mmap.PAGESIZE)
    last = Cache(l3 or l2, line, _ASSUMED.l3.ways)
    sharing = ask("hw.perflevel0.cpusperl2") or 1
    own = Cache(l2, line, _ASSUMED.l2.ways).share(sharing)
    return Machine(Cache(l1, line, ways), own, last, "sysctl")


def detect(cpuid: Cpuid | None = None) -> Machine:
    """Caches of this machine: asked of the processor, of the system, of what the core is called.

    CPUID where there is one, then sysfs, sysctl, the described core of that number, and at last
    assumed constants.
    """
    if cpuid is not None:
        machine = caches_from_cpuid(cpuid)
        if machine is not None:
            return machine
    return caches_from_sysfs() or caches_from_sysctl() or cores.here() or _ASSUMED


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
