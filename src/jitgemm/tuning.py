"""Knobs: numbers and names a user may set, each with a default that says where it comes from.

Resolution: call argument, then setter or context (``set_num_threads``, ``threads``), then the
``JITGEMM_*`` environment, then the default.  Environment variables are read here and nowhere below.

A variable that is empty or blank counts as unset.  Numbers are decimal digits with an optional
sign.  A bad value warns once, with what was expected and what is used instead, and is ignored.
"""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

from jitgemm.errors import JitGemmWarning, message

__all__ = [
    "KNOBS", "Knob", "environment", "folder", "integer", "switch", "text", "threads_asked",
]  # fmt: skip

_PREFIX = "JITGEMM_"
# More than any size or time, and still a 64-bit number when it is counted in smaller units.
_ENDLESS = 10**15
# ``int`` would take more: underscores, digits of other scripts.
_NUMBER = re.compile(r"[+-]?[0-9]{1,100}")
_EXPANDED = re.compile(r"\$(\w+|\{[^}]*\})", re.ASCII)
_SWITCH = {"on": True, "yes": True, "true": True, "1": True,
           "off": False, "no": False, "false": False, "0": False}  # fmt: skip
# How much of a bad value a warning repeats.
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Knob:
    """One tunable integer."""

    name: str
    default: int
    minimum: int
    meaning: str
    provenance: str
    maximum: int = _ENDLESS

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
            "move_workers",
            1,
            0,
            "0: threads never touch their processor affinity, which some sandboxes forbid; else a "
            "worker that wakes up on its caller's processor moves to another",
            "a choice: moving costs nothing where it is not needed (docs/adr/0023)",
        ),
        _knob(
            "rhs_pack_rows",
            32,
            1,
            "rows of A up to which a row-major B whose rows share L1 sets is read in place; other "
            "strides get 2 to 16 times as many (planner.route)",
            "benchmarks/knobs.py, Zen 5 VM, 2026-11-30: k=1024 n=4096 packs faster from 42 rows",
        ),
        _knob(
            "streaming_row_bytes",
            2048,
            1,
            "bytes per row of an unpacked B from which few rows of A sweep along its rows",
            "half of what a prefetcher stays within: shorter rows end before it has caught on",
        ),
        _knob(
            "rhs_transpose_rows",
            4,
            0,
            "rows of A up to which a B with contiguous columns is transposed in registers, not "
            "packed; one of halves up to 4 times as many, of 8- and 16-bit integers 3 times",
            "benchmarks/knobs.py, Zen 5 VM, 2026-11-30: 4 rows, as many as a tile has, 1.3 to 2.3 "
            "times as fast as packing from 64 x 64 to 4096 x 4096",
        ),
        _knob(
            "stagger_column_bytes",
            16384,
            1,
            "bytes of a column of B from which columns transposed in registers lag behind each "
            "other, if B is larger than half of L3",
            "four times the lag of 4 KiB; f32 columns of 1024 (4 KiB) are slower staggered (53 "
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
            "call_entries",
            2048,
            1,
            "kinds of calls (shapes, strides, types, options) that are remembered, those used last",
            "a choice: an entry takes 2 KiB besides small tables; less than half of the table's "
            "8192 slots, so that a search ends at its first or second slot",
        ),
        _knob(
            "lhs_pack_stride",
            2048,
            1,
            "bytes per depth step of A from which packing A is considered (half of 4 KiB)",
            "a walk of such steps needs one TLB entry per two steps, or per 32 of pages of 64 KiB: "
            "what it needs in all is counted (lhs_pack_pages)",
        ),
        _knob(
            "lhs_pack_pages",
            64,
            1,
            "pages a microtile's walk of A meets in a depth block from which packing A pays",
            "entries of an L1 TLB: 64 of Zen 3 and Ice Lake, 72 of Zen 4, 96 of Zen 5 and Golden "
            "Cove.  Time in place over time packed, f32, A column-major on pages of 4 KiB, steps "
            "of 4000 and 12000 bytes, prepacked B of 1024 columns: 16 steps 0.90, 0.85; 32 0.98, "
            "0.98; 48 0.98, 0.99; 64 1.00, 1.02; 96 1.00, 1.02 (Zen 5 VM, one thread, lowest of 30 "
            "interleaved rounds, 2026-12-01)",
        ),
        _knob(
            "lhs_pack_reuse",
            4,
            1,
            "micropanels of B that must reuse a packed row of A",
            "estimate, not swept: copying an element costs about what using it in four panels does",
        ),
        _knob(
            "code_units",
            128,
            1,
            "kernels, those used last, whose machine code stays in memory though no plan holds "
            "them; as many again may be held by plans that calls have left behind",
            "estimate: 31 kernels cover nine element types with the usual operands, bias and "
            "activations; one that is needed again is read from disk in 1 to 3 ms",
        ),
        _knob(
            "code_bytes",
            16 << 20,
            1,
            "bytes of those kernels' object files; as many again may be held by such plans",
            "as code_units, of the largest: 13 to 126 KB with AVX-512 (mean 85), half of that with "
            "AVX2; 79 KB take 99 KB of resident memory (Zen 4 VM, 2026-12-01)",
        ),
        _knob(
            "cache_bytes",
            256 << 20,
            0,
            "bytes of the cache folder, above which objects used least recently are removed",
            "estimate: 3000 kernels of 85 KB, each of which takes 0.3 to 0.9 s to compile anew",
        ),
    )
}

_warned: set[str] = set()


def _refuse(variable: str, expected: str, raw: str, instead: str) -> None:
    """Warn, once per variable, that its value is not used."""
    if variable not in _warned:
        _warned.add(variable)
        got = repr(raw if len(raw) <= _SHOWN else raw[:_SHOWN] + "...")
        text = f"{message(variable, expected, got)}; ignored, {instead}"
        warnings.warn(text, JitGemmWarning, stacklevel=4)


def _variable(name: str) -> str:
    return _PREFIX + name.upper()


def _number(raw: str) -> int | None:
    return int(raw) if _NUMBER.fullmatch(raw) else None


def text(name: str) -> str | None:
    """The value of ``JITGEMM_<NAME>`` without blanks around it, ``None`` if nothing is left."""
    return os.environ.get(_variable(name), "").strip() or None


def integer(name: str, minimum: int, maximum: int, instead: str) -> int | None:
    """``JITGEMM_<NAME>`` as an integer; ``None`` if it is unset or bad.

    Args:
        name: of the variable, in lower case and without its prefix.
        minimum: the least good value.
        maximum: the greatest.
        instead: what a warning says is done instead of using a bad value.
    """
    raw = text(name)
    if raw is None:
        return None
    value = _number(raw)
    if value is None or not minimum <= value <= maximum:
        _refuse(_variable(name), f"an integer from {minimum} to {maximum}", raw, instead)
        return None
    return value


def environment(name: str) -> int:
    """A knob's value: the environment's if it is good, else the default."""
    knob = KNOBS[name]
    value = integer(knob.name, knob.minimum, knob.maximum, f"{knob.default} is used")
    return knob.default if value is None else value


def switch(name: str, *, default: bool) -> bool:
    """``JITGEMM_<NAME>`` as on or off, in words or digits of any case."""
    raw = text(name)
    if raw is None:
        return default
    value = _SWITCH.get(raw.lower())
    if value is None:
        instead = f"{'on' if default else 'off'} is used"
        _refuse(_variable(name), f"one of {', '.join(_SWITCH)}", raw, instead)
        return default
    return value


def folder(name: str) -> Path | None:
    """``JITGEMM_<NAME>`` as a folder, with ``~``, ``$NAME`` and ``${NAME}`` expanded.

    Not only shells set variables, and the others do not expand them.  A user or variable that is
    not there must not become a folder of that name.
    """
    raw = os.environ.get(_variable(name), "")
    if not raw.strip():
        return None
    instead = "the default folder is used"
    for named in _EXPANDED.findall(raw):
        if not os.environ.get(named.strip("{}")):
            _refuse(_variable(name), f"a folder, and ${named} to be set", raw, instead)
            return None
    try:
        return Path(os.path.expandvars(raw)).expanduser()
    except RuntimeError:
        _refuse(_variable(name), "a folder, and a home where ~ stands", raw, instead)
        return None


def _openmp(variable: str) -> int | None:
    """The first number of an OpenMP variable, a list of positive ones; ``None`` if it is none.

    What other values mean is left to each OpenMP.  As the variables are not this package's, they
    are ignored without a warning, and as a whole, as GCC's does it.
    """
    numbers = [_number(x.strip()) for x in os.environ.get(variable, "").split(",")]
    return numbers[0] if all(x is not None and x > 0 for x in numbers) else None


def threads_asked(most: int) -> tuple[int, str] | None:
    """How many threads the environment allows by default, and the variable that says so.

    ``JITGEMM_NUM_THREADS``, else the lesser of ``OMP_NUM_THREADS`` and ``OMP_THREAD_LIMIT``, by
    which joblib, dask and batch systems keep the threads of their workers from crowding a machine.
    """
    instead = "as if it were not set"
    own = integer("num_threads", 1, most, instead)
    if own is not None:
        return own, _variable("num_threads")
    found = [(_openmp(name), name) for name in ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT")]
    return min(((n, name) for n, name in found if n is not None), default=None)
