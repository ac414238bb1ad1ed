"""``jitgemm bench``: products against NumPy's and against a loop of multiply-adds."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import jitgemm
from jitgemm.cli import numpy_side
from jitgemm.cli.arguments import count, positive
from jitgemm.cli.tables import Table, progress, show
from jitgemm.cli.timing import busy, ratio, take_turns
from jitgemm.isa.types import F32, F64
from jitgemm.runtime.engine import engine
from jitgemm.runtime.packed import element_dtype
from jitgemm.runtime.peak import measure_peak

__all__ = ["add_parser", "disagreement"]

Shape = tuple[int, int, int]
_ELEMENTS = {e.name: e for e in (F32, F64)}
_NUMPY, _PACKED = "numpy", "plan_prepacked"
_SHAPES = "256x256x256,1024x1024x1024,1x4096x4096"


def _shapes(text: str) -> list[Shape]:
    shapes = []
    for part in text.split(","):
        found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", part.strip(), re.ASCII)
        if found is None:
            raise argparse.ArgumentTypeError(
                "expected shapes like 64x128x32,1x4096x4096 (m x k x n, each at least 1), "
                f"got {part!r}"
            )
        m, k, n = (int(number) for number in found.groups())
        shapes.append((m, k, n))
    return shapes


def _new_file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in an existing folder, got {text!r}")
    return path


def add_parser(commands: Any) -> None:
    """Add the command to argparse's ``commands``."""
    parser = commands.add_parser("bench", help="compare products with NumPy's on this machine")
    parser.add_argument("--shapes", type=_shapes, default=_shapes(_SHAPES), metavar="MxKxN,...",
                        help=f"A is m x k, B is k x n (default {_SHAPES})")  # fmt: skip
    parser.add_argument("--dtype", choices=list(_ELEMENTS), default="f32", help="default f32")
    parser.add_argument("--threads", type=count, default=1, help="for both sides (default 1)")
    parser.add_argument("--prepacked", action="store_true",
                        help="let the plan with prepacked B compete for the best")  # fmt: skip
    parser.add_argument("--rounds", type=count, default=7, help="turns of each (default 7)")
    parser.add_argument("--ms", type=positive, default=20.0,
                        help="milliseconds of one turn (default 20)")  # fmt: skip
    parser.add_argument("--json", type=_new_file, metavar="FILE", help="write all numbers there")
    parser.set_defaults(run=run)


def disagreement(result: Any, reference: Any, a: Any, b: Any) -> float:
    """The largest difference of two results of ``a @ b``, as a multiple of what rounding allows.

    Two sums of ``k`` products, in whatever order, differ by at most ``2 (k + 1) eps |a| @ |b|``.
    """
    allowed = 2 * (a.shape[1] + 1) * np.finfo(a.dtype).eps * (np.abs(a) @ np.abs(b))
    with np.errstate(invalid="ignore"):
        excess = np.abs(result - reference) / np.maximum(allowed, np.finfo(a.dtype).tiny)
    return float(np.nan_to_num(excess, nan=np.inf).max())


def _contestants(a: Any, b: Any, c: Any) -> dict[str, Callable[[], Any]]:
    packed = jitgemm.prepack_rhs(b)
    return {
        "gemm": partial(jitgemm.gemm, a, b, out=c),
        "plan": partial(jitgemm.plan(a, b, out=c), a, b, c),
        _PACKED: partial(jitgemm.plan(a, packed, out=c), a, packed, c),
        _NUMPY: partial(np.matmul, a, b, out=c),
    }


def _measure(shape: Shape, options: argparse.Namespace) -> dict[str, Any] | str:
    """One row of numbers, or why there is none."""
    m, k, n = shape
    element = _ELEMENTS[options.dtype]
    dtype = element_dtype(element)
    rng = np.random.default_rng(0)
    try:
        a = rng.standard_normal((m, k), dtype)
        b = rng.standard_normal((k, n), dtype)
        c = np.empty((m, n), dtype)
    except ValueError as e:  # NumPy's word for more bytes than can be addressed
        raise MemoryError(f"jitgemm: {m}x{k}x{n}: {e}") from e
    peak = measure_peak(element)
    contestants = _contestants(a, b, c)
    reference = np.matmul(a, b)
    for name, call in contestants.items():
        c.fill(np.nan)
        call()
        if disagreement(c, reference, a, b) > 1:
            return f"{m}x{k}x{n}: {name} and NumPy disagree beyond rounding; not compared"
    turns = options.rounds * len(contestants)
    with progress(f"{m}x{k}x{n} {element}", turns) as advance:
        times = take_turns(contestants, options.rounds, options.ms / 1e3, advance)
    # Twice, because the clock may have changed in the meantime.
    peak = max(peak, measure_peak(element)) * options.threads
    operations = 2 * m * k * n
    variants = {
        name: {
            "seconds": median(rounds),
            "rounds": rounds,
            "gflops": operations / median(rounds) / 1e9,
            "percent_of_loop": 100 * operations / median(rounds) / peak,
            "over_numpy": ratio(times[_NUMPY], rounds),
        }
        for name, rounds in times.items()
    }
    eligible = [v for v in variants if v != _NUMPY and (options.prepacked or v != _PACKED)]
    best = min(eligible, key=lambda name: variants[name]["seconds"])
    return {"m": m, "k": k, "n": n, "loop_gflops": peak / 1e9, "best": best,
            "variants": variants}  # fmt: skip


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    variants, best = result["variants"], result["variants"][result["best"]]
    return (
        f"{result['m']}x{result['k']}x{result['n']}",
        *(f"{variants[v]['gflops']:.1f}" for v in ("gemm", "plan", _PACKED, _NUMPY)),
        f"{best['over_numpy']:.2f}",
        f"{best['percent_of_loop']:.1f}%",
        f"{variants[_NUMPY]['percent_of_loop']:.1f}%",
    )


def _table(
    results: list[dict[str, Any]], options: argparse.Namespace, words: tuple[str, str]
) -> Table:
    opponent, note = words
    columns = ("m x k x n", "gemm", "plan", "prepacked", "NumPy", "best / NumPy", "best of loop",
               "NumPy of loop")  # fmt: skip
    loops = [result["loop_gflops"] for result in results]
    rounds = f"{options.rounds} interleaved rounds of {options.ms:g} ms"
    who = "any of jitgemm's" if options.prepacked else "gemm or plan, which pack B in each call"
    caption = (
        f"{opponent}. Medians of {rounds}. prepacked: a plan with prepacked B. best: {who}. "
        f"loop: {options.threads} x one thread's loop of {engine().isa.name} multiply-adds in "
        f"registers, {min(loops):.0f} to {max(loops):.0f} GFLOP/s.{note}"
    )
    title = f"GFLOP/s, {options.dtype}, {options.threads} thread(s)"
    return Table(title, columns, [_row(result) for result in results], caption, numbers=True)


def run(options: argparse.Namespace) -> int:
    """Measure and print; 1 if a result was wrong, and then without its numbers."""
    numpy_side.restart(options.threads, own_process=options.own_process)
    note = busy(options.threads)
    with numpy_side.limited(options.threads) as opponent, jitgemm.threads(options.threads):
        measured = [_measure(shape, options) for shape in options.shapes]
    results = [x for x in measured if not isinstance(x, str)]
    wrong = [x for x in measured if isinstance(x, str)]
    if results:
        show(_table(results, options, (opponent, note)))
    for text in wrong:
        print(text, file=sys.stderr)
    if options.json is not None:
        facts = {"dtype": options.dtype, "threads": options.threads, "isa": engine().isa.name,
                 "opponent": opponent, "results": results, "refused": wrong}  # fmt: skip
        options.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return 1 if wrong else 0
