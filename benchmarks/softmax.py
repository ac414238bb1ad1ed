"""A softmax over rows written with ``jitgemm.kernel``, beside what memory allows.

    python benchmarks/softmax.py [--threads N] [--megabytes M]

A row that fits L1 is read from memory once and written once: ``copy`` does just that, by a kernel
of its own and by NumPy.  ``page`` is the kernel of docs/KERNELS.md; ``tuned`` keeps four sums apart
and fetches the next row while this one is computed.  PyTorch's is timed where it is installed.
Arrays are walked in slices, each far from what caches hold, by all in turns; figures are those of
the least time of a slice, which a busy machine disturbs least, in GB/s of one read and one write.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import jitgemm
from jitgemm import math as jm
from jitgemm.kernels.mathlib import exp_nonpositive

_PAGE = Path(__file__).parents[1] / "docs" / "KERNELS.md"
_CHAINS = 4
_ROUNDS = 10
_SLICE = 4 << 20
_NAMES = ("copy", "page", "tuned", "numpy copy", "torch")


@jitgemm.kernel
def copy(k, x, out, row):
    x, out = x[row], out[row]
    for i, mask, _ in x.strips(_CHAINS):
        out.store(i, x.load(i, mask), mask)


def together(parts: list[Any], combine: Callable[[Any, Any], Any]) -> Any:
    """The chains' values as one vector."""
    first, *others = (part.value for part in parts)
    for other in others:
        first = combine(first, other)
    return first


@jitgemm.kernel
def tuned(k, x, out, row):
    following, x, out = x[row + 1].base, x[row], out[row]
    lowest, none = k.literal(-math.inf, x.number, x.lanes), k.zero(x.number, x.lanes)
    highest = [k.var(lowest) for _ in range(_CHAINS)]
    for i, mask, chain in x.strips(_CHAINS):
        v, old = x.load(i, mask, other=-math.inf), highest[chain].value
        highest[chain].value = jm.where(v > old, v, old)
    top = k.reduce("maximum", together(highest, jm.maximum))
    sums = [k.var(none) for _ in range(_CHAINS)]
    for i, mask, chain in x.strips(_CHAINS):
        k.prefetch(following + i * x.element.bytes)
        e = exp_nonpositive(k, x.load(i, mask, other=-math.inf) - top)
        sums[chain].value = sums[chain].value + e
        out.store(i, e, mask)
    share = 1 / k.reduce("add", together(sums, lambda a, b: a + b))
    for i, mask, _ in out.strips(_CHAINS):
        out.store(i, out.load(i, mask) * share, mask)


def page_kernel() -> Any:
    """The kernel of the page."""
    found: dict[str, Any] = {}
    source = re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL)[0]
    exec(compile(source, _PAGE.name, "exec"), found)  # noqa: S102
    return found["softmax"]


_page = page_kernel()


def contenders(x: np.ndarray, out: np.ndarray, threads: int) -> dict[str, Callable[[], object]]:
    given: dict[str, Any] = {"grid": len(x), "x": x, "out": out, "threads": threads}
    kernels = {"copy": copy, "page": _page, "tuned": tuned}
    found: dict[str, Callable[[], object]] = {
        name: lambda f=f: f(**given) for name, f in kernels.items()
    }
    found["numpy copy"] = lambda: np.copyto(out, x)
    try:
        import torch
    except ImportError:
        return found
    torch.set_num_threads(threads)
    source, target = torch.from_numpy(x), torch.from_numpy(out)
    found["torch"] = lambda: torch.softmax(source, 1, out=target)
    return found


def check(x: np.ndarray, out: np.ndarray) -> float:
    """The greatest relative error of some rows."""
    some = x[:8].astype(np.float64)
    e = np.exp(some - some.max(1, keepdims=True))
    want = e / e.sum(1, keepdims=True)
    return float(np.abs(out[:8] / want - 1).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--megabytes", type=int, default=64)
    options = parser.parse_args()
    heads = (*_NAMES, "tuned/copy", "error")
    print(f"{'columns':>8}", *(f"{name:>11}" for name in heads))
    for columns in (128, 256, 1024, 4096):
        rows = (options.megabytes << 20) // 4 // columns
        x = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
        out = np.empty_like(x)
        step = _SLICE // 4 // columns
        slices = [np.s_[at : at + step] for at in range(0, rows - step + 1, step)]
        turns = [contenders(x[part], out[part], options.threads) for part in slices]
        best = dict.fromkeys(turns[0], math.inf)
        for name in [*best] * _ROUNDS:
            for functions in turns:
                start = time.perf_counter()
                functions[name]()
                best[name] = min(best[name], time.perf_counter() - start)
        turns[0]["tuned"]()
        rates = (
            f"{2 * _SLICE / best[n] / 1e9:11.1f}" if n in best else f"{'-':>11}" for n in _NAMES
        )
        print(f"{columns:>8}", *rates, f"{best['tuned'] / best['copy']:11.2f}",
              f"{check(x, out):11.1e}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
