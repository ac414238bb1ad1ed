"""What the planner knows of a core's memory: its caches, and the size of a page."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass

__all__ = ["Cache", "Machine"]

# Zen 2 to 5 have 0.5 to 1 MiB and 16 to 96 MiB; Ice Lake to Emerald Rapids 1.25 to 2 MiB and more
# than 32 MiB.
_CLUSTER_L2, _CLUSTER_L3 = 1 << 20, 32 << 20


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

    def share(self, cores: int) -> Cache:
        """What each of ``cores`` that use this cache has of it: a power of two, at least a line.

        Args:
            cores: 1: the cache is a core's own, and stays as it is.
        """
        if cores == 1:
            return self
        each = max(self.line, self.size // cores)
        return Cache(1 << each.bit_length() - 1, self.line, self.ways)


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
