"""The file of digests: one line for each product, ``sha256 name``.

    PYTHONPATH=src:tests python tests/bits/digests.py            # writes digests.txt
    PYTHONPATH=src:tests python tests/bits/digests.py --values FILE.npz

The second writes the results themselves, of the set in use, to compare two sets number by number.

A digest is of the type, the shape and the bits of a result, signs of zero included.  All NaNs count
as one: which of two NaNs an operation passes on, and the sign of one it makes, is the processor's.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np
from products import GROUPS, Result

from oracle import Array, bits

__all__ = ["FILE", "digest", "digests_of", "read"]

FILE = Path(__file__).with_name("digests.txt")


def digest(x: Array) -> str:
    """The sha256 of a result, in the byte order of x86."""
    x = np.ascontiguousarray(x).copy()
    parts = x.view(x.real.dtype) if x.dtype.kind == "c" else x
    if x.dtype.kind not in "iub":
        parts[np.isnan(parts)] = np.nan
    raw = bits(x)
    raw = raw.astype(raw.dtype.newbyteorder("<"))
    return hashlib.sha256(f"{x.dtype.name} {x.shape} ".encode() + raw.tobytes()).hexdigest()


def digests_of(results: list[Result]) -> dict[str, str]:
    """By name.

    Raises:
        ValueError: results of one name, which are one product computed in several ways, differ.
    """
    found: dict[str, str] = {}
    first: dict[str, str] = {}
    for result in results:
        new = digest(result.value)
        if found.setdefault(result.name, new) != new:
            how = f"{first[result.name]!r} and {result.how!r}"
            raise ValueError(f"{result.name}: {how} give different bits")
        first.setdefault(result.name, result.how)
    return found


def read() -> dict[str, str]:
    """The file: digests by name."""
    lines = FILE.read_text("utf-8").splitlines()
    return {name: value for value, name in (line.split(" ", 1) for line in lines)}


def _main() -> None:
    parser = argparse.ArgumentParser(description="Write digests.txt, or results themselves.")
    parser.add_argument("--values", type=Path, help="write results to this file instead")
    values = parser.parse_args().values
    results = {group: make() for group, make in GROUPS.items()}
    if values is not None:
        each = (result for group in results.values() for result in group)
        np.savez(values, **{f"{x.name} | {x.how}": bits(x.value) for x in each})
        return
    found = {k: v for group in results.values() for k, v in digests_of(group).items()}
    FILE.write_text("".join(f"{v} {k}\n" for k, v in found.items()), "utf-8")


if __name__ == "__main__":
    _main()
