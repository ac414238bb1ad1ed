"""Knobs: numbers and names a user may set, each with a default that says where it comes from.

Resolution: call argument, then setter or context (``set_num_threads``, ``threads``), then the
``JITGEMM_*`` environment, then the default.  A bad value warns once and is ignored.  Environment
variables are read here and nowhere below.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

from jitgemm.errors import JitGemmWarning

__all__ = ["KNOBS", "Knob", "environment", "integer", "text"]

_PREFIX = "JITGEMM_"


@dataclass(frozen=True, slots=True)
class Knob:
    """One tunable integer."""

    name: str
    default: int
    minimum: int
    meaning: str
    provenance: str

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return _PREFIX + self.name.upper()


def _knob(name: str, default: int, minimum: int, meaning: str, provenance: str) -> Knob:
    return Knob(name, default, minimum, meaning, provenance)


KNOBS = {
    knob.name: knob
    for knob in (
        _knob(
            "parallel_flops",
            500_000,
            0,
            "operations (2 m n k) per thread below which fewer threads are used",
            "benchmarks/knobs.py, Zen 5 VM, 2 cores, 2026-11-30: two threads are 1.2 times as fast "
            "at 1.0e6 operations, 1.1 at 0.5e6",
        ),
        _knob(
            "batch_split_flops",
            1_000_000_000,
            0,
            "operations of one product of a batch above which all threads share each product, "
            "instead of taking whole ones",
            "estimate (800^3): two threads, f32, 64^3 to 1024^3, both schedules within 10 %, on a "
            "busy Zen 5 VM; above it a second packed B costs more scratch than it saves waiting",
        ),
        _knob(
            "gil_flops",
            400_000,
            0,
            "operations above which the interpreter lock is released during the product",
            "estimate, not swept: releasing takes tens of ns uncontended, 400,000 operations 2 us",
        ),
        _knob(
            "spin_us",
            100,
            0,
            "how long an idle worker spins before it sleeps, in microseconds",
            "estimate, not swept: about what waking a sleeper costs on a virtual machine",
        ),
        _knob(
            "rhs_pack_rows",
            32,
            1,
            "rows of A up to which a row-major B with page-strided rows is read in place; other "
            "strides get 2 to 16 times as many (planner.route)",
            "benchmarks/knobs.py, Zen 5 VM, 2026-11-30: k=1024 n=4096 packs faster from 42 rows",
        ),
        _knob(
            "sweep_row_bytes",
            2048,
            1,
            "bytes per row of an unpacked B from which few rows of A sweep along its rows",
            "half a page: shorter rows end before a prefetcher has caught on",
        ),
        _knob(
            "rhs_turn_rows",
            4,
            0,
            "rows of A up to which a B with contiguous columns is turned in registers, not packed",
            "benchmarks/knobs.py, Zen 5 VM, 2026-11-30: 4 rows, as many as a tile has, 1.3 to 2.3 "
            "times as fast as packing from 64 x 64 to 4096 x 4096",
        ),
        _knob(
            "apart_column_bytes",
            16384,
            1,
            "bytes of a column of B from which columns turned in registers lag behind each other, "
            "if B is larger than half of L3",
            "the lag is a page: four pages; f32 columns of 1024 (one page) are slower apart (53 "
            "against 62 GB/s), of 4096 (four) faster (42 against 30; Zen 5, 2026-11-30)",
        ),
        _knob(
            "split_depth",
            32768,
            1,
            "depth from which a small result is computed by ranges of depth",
            "benchmarks/knobs.py, Zen 5 VM, 2026-11-30: with two threads 1.1 to 1.7 times as fast "
            "from there on, with one 0.9 to 1.05, from 131072 0.95 to 1.2",
        ),
        _knob(
            "matrix_rows",
            4,
            1,
            "rows of A from which a matrix unit multiplies 8-bit integers",
            "prepacked 512 x 512 to 1024 x 1024, Emerald Rapids VM, 2026-11-30: 0.95 to 1.1 times "
            "as fast as vectors with 3 rows, 1.1 to 1.4 with 4, 1.9 to 2.4 with 8",
        ),
        _knob(
            "lhs_pack_stride",
            2048,
            1,
            "bytes per depth step of A from which packing A is considered (half a page)",
            "a walk of half-page steps needs one TLB entry per two steps",
        ),
        _knob(
            "lhs_pack_reuse",
            4,
            1,
            "micropanels of B that must reuse a packed row of A",
            "estimate, not swept: copying an element costs about what using it in four panels does",
        ),
    )
}

_warned: set[str] = set()


def _warn_once(variable: str, why: str) -> None:
    if variable not in _warned:
        _warned.add(variable)
        warnings.warn(f"jitgemm: {variable}: {why}; ignored", JitGemmWarning, stacklevel=3)


def text(name: str) -> str | None:
    """The value of ``JITGEMM_<NAME>``, or ``None`` if unset or empty."""
    return os.environ.get(_PREFIX + name.upper()) or None


def integer(name: str, minimum: int, *, maximum: int | None = None) -> int | None:
    """``JITGEMM_<NAME>`` as an integer; a bad value warns once and counts as unset."""
    raw = text(name)
    if raw is None:
        return None
    try:
        value = int(raw)
    except ValueError:
        _warn_once(_PREFIX + name.upper(), f"{raw!r} is not an integer")
        return None
    if value < minimum or (maximum is not None and value > maximum):
        _warn_once(_PREFIX + name.upper(), f"{value} is out of range (at least {minimum})")
        return None
    return value


def environment(name: str) -> int:
    """A knob's value: the environment's if it is good, else the default."""
    knob = KNOBS[name]
    value = integer(knob.name, knob.minimum)
    return knob.default if value is None else value
