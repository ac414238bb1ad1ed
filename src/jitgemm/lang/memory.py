"""The memory of the checking interpreter: named regions of real memory, and what may be touched."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitgemm.errors import LanguageError

__all__ = ["Memory"]

Bytes = NDArray[np.uint8]

_LINE = 64


class _Region:
    """Bytes a kernel may touch: real memory, and a shadow that knows which bytes were written."""

    __slots__ = ("data", "end", "initialised", "inside", "keep", "name", "start", "writable")

    def __init__(self, name: str, start: int, size: int, keep: object, *, writable: bool) -> None:
        self.name, self.start, self.end, self.writable = name, start, start + size, writable
        self.data: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))
        # None stands for "all of them", the common case for operands.
        self.initialised: NDArray[np.bool_] | None = None
        self.inside: NDArray[np.bool_] | None = None
        self.keep = keep  # the owner of the memory

    def refusal(self, at: int, size: int, *, write: bool) -> str | None:
        """Why ``size`` bytes from offset ``at`` may not be accessed; ``None`` if they may."""
        if self.inside is not None and not self.inside[at : at + size].all():
            return "between the elements of"
        if write:
            return None if self.writable else "in read-only"
        if self.initialised is not None and not self.initialised[at : at + size].all():
            return "uninitialised in"
        return None

    def __str__(self) -> str:
        return f"{self.name!r} [{self.start:#x}, {self.end:#x})"


class Memory:
    """All the memory a kernel may touch, as named regions at real addresses.

    Regions may overlap (``a @ a.T``, ``c is d``): an access is good if one region allows all of it.
    """

    def __init__(self) -> None:
        self._regions: list[_Region] = []

    def add(
        self, name: str, array: NDArray[Any], *, writable: bool, initialised: bool = True
    ) -> int:
        """Register the elements of ``array``, of any strides; the address of the first one.

        The gaps a strided array leaves between its elements are not part of the region.
        """
        address = int(array.__array_interface__["data"][0])
        if array.size == 0:
            return address
        reach = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
        start = address + sum(r for r in reach if r < 0)
        size = sum(map(abs, reach)) + array.itemsize
        region = _Region(name, start, size, array, writable=writable)
        if size != array.nbytes:
            region.inside = np.zeros(size, np.bool_)
            first = region.inside[address - start :]
            shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
            np.lib.stride_tricks.as_strided(first, shape, strides)[...] = True
        if not initialised:
            region.initialised = np.zeros(size, np.bool_)
        self._regions.append(region)
        return address

    def scratch(self, size: int, name: str = "scratch") -> int:
        """Register ``size`` fresh, uninitialised bytes; their address, a multiple of 64."""
        owner = np.full(size + _LINE, 0xA5, np.uint8)  # never zeros by luck
        start = -(-int(owner.__array_interface__["data"][0]) // _LINE) * _LINE
        region = _Region(name, start, size, owner, writable=True)
        region.initialised = np.zeros(size, np.bool_)
        self._regions.append(region)
        return start

    def release(self, address: int) -> None:
        """Forget the region that starts at ``address``, the youngest if there are several."""
        index = max(i for i, r in enumerate(self._regions) if r.start == address)
        del self._regions[index]

    def read(self, address: int, size: int) -> Bytes:
        """Copy ``size`` bytes.

        Raises:
            LanguageError: no region holds them all, or one was never written.
        """
        region = self._resolve(address, size, write=False)
        at = address - region.start
        return region.data[at : at + size].copy()

    def write(self, address: int, data: Bytes) -> None:
        """Write bytes.

        Raises:
            LanguageError: no writable region holds them all.
        """
        region = self._resolve(address, data.size, write=True)
        at = address - region.start
        region.data[at : at + data.size] = data
        if region.initialised is not None:
            region.initialised[at : at + data.size] = True

    def _resolve(self, address: int, size: int, *, write: bool) -> _Region:
        end, why = address + size, ""
        for region in reversed(self._regions):
            if region.start <= address and end <= region.end:
                refusal = region.refusal(address - region.start, size, write=write)
                if refusal is None:
                    return region
                why = why or f"{refusal} region {region}"
            elif region.start < end and address < region.end:
                why = why or f"across the bounds of region {region}"
        if not why:
            near = sorted(self._regions, key=lambda r: max(r.start - address, address - r.end))
            why = f"in no region, nearest {near[0] if near else 'none'}"
        raise LanguageError(
            f"{'store' if write else 'load'} of {size} bytes at {address:#x}: {why}"
        )
