"""Measure, and write RESULTS.md.  Takes about a quarter of an hour on a quiet machine,
with ``--rounds 5`` about ten minutes.

python benchmarks/results.py [--rounds 9] [--quick] [--output benchmarks/RESULTS.md]
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from cases import Case
from peers import DOT, Row, measure, peak

SQUARES = (256, 512, 1024, 2048)
WEIGHTS = (
    (1, 512, 512), (1, 4096, 4096), (4, 1024, 1024), (8, 768, 3072), (16, 512, 256),
    (32, 1024, 4096), (128, 768, 768), (512, 768, 3072),
)  # fmt: skip
VECTORS = ((1, 1024, 1024), (1024, 1024, 1), (1, 4096, 4096), (4096, 4096, 1))
# Of narrow types: a row for each kind of shape.
NARROW = (
    (1, 512, 512), (1, 4096, 4096), (8, 768, 3072), (32, 1024, 4096), (128, 768, 768),
    (512, 768, 3072), (256, 256, 256), (1024, 1024, 1024),
)  # fmt: skip
FUSED = ((8, 768, 3072), (128, 768, 768), (512, 768, 3072))

_STARTUP = """
import json, sys, time
t0 = time.perf_counter()
import numpy as np
t1 = time.perf_counter()
import jitgemm
t2 = time.perf_counter()
a = np.ones((64, 300), np.float32); b = np.ones((300, 70), np.float32)
t3 = time.perf_counter()
jitgemm.gemm(a, b)
t4 = time.perf_counter()
print(json.dumps([1e3 * (t2 - t1), 1e3 * (t4 - t3)]))
"""
_CALLS = """
import json, timeit
import numpy as np
import jitgemm
rows = []
with jitgemm.threads(1):
    for n in (4, 8, 16, 32):
        a = np.ones((n, n), np.float32); b = np.ones((n, n), np.float32)
        c = np.empty((n, n), np.float32)
        p = jitgemm.plan(a, b, out=c)
        statements = {
            "plan": "p(a, b, c)", "matmul": "jitgemm.matmul(a, b)",
            "gemm": "jitgemm.gemm(a, b, out=c)",
            "np.matmul": "np.matmul(a, b)", "np.matmul, out": "np.matmul(a, b, out=c)",
        }
        best = {k: [] for k in statements}
        for _ in range(9):
            for k, s in statements.items():
                best[k].append(timeit.timeit(s, globals=globals(), number=20000) / 20000 * 1e9)
        rows.append({"n": n, **{k: sorted(v)[4] for k, v in best.items()}})
print(json.dumps(rows))
"""
_SHAPES = """
import json, os
import numpy as np
import jitgemm
from jitgemm.jit.compiler import compiled
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
rng = np.random.default_rng(3)
pool = rng.random(1 << 20).astype(np.float32)
out = np.empty(1 << 18, np.float32)
def product():
    m, n, k = (int(x) for x in rng.integers(1, 400, 3))
    a, b = pool[: m * k].reshape(m, k), pool[: k * n].reshape(k, n)
    jitgemm.gemm(a, b, out=out[: m * n].reshape(m, n))
for _ in range(200):
    product()
units, before = len(compiled()), rss()
for _ in range(5000):
    product()
print(json.dumps([len(compiled()) - units, (rss() - before) / 2**20]))
"""


def snippet(code: str, **variables: str) -> object:
    """Run a snippet in a fresh interpreter without this machine's BLAS overrides."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS")} | variables
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def startup() -> list[str]:
    """Import, first product with an empty and with a warm disk cache: medians of 9."""
    cold, warm, imports = [], [], []
    for _ in range(9):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(snippet(_STARTUP, JITGEMM_CACHE_DIR=folder)[1])
            taken, first = snippet(_STARTUP, JITGEMM_CACHE_DIR=folder)
            warm.append(first)
            imports.append(taken)
    imported, grown = statistics.median(imports), snippet(_SHAPES)
    return [
        "| what | measured | floor |", "|---|---|---|",
        f"| `import jitgemm` beyond `import numpy` | {imported:.0f} ms | 120 ms |",
        f"| first product, empty disk cache | {statistics.median(cold):.0f} ms | 500 ms |",
        f"| first product, warm disk cache | {statistics.median(warm):.0f} ms | 40 ms |",
        f"| 5,000 random shapes: kernels compiled | {grown[0]} | 0 |",
        f"| 5,000 random shapes: growth of resident memory | {grown[1]:.1f} MiB | 16 MiB |",
    ]  # fmt: skip


def calls() -> list[str]:
    """Nanoseconds per call of small products, everything included."""
    rows = snippet(_CALLS)
    names = [k for k in rows[0] if k != "n"]
    lines = [
        "| n | " + " | ".join(names) + " | matmul over NumPy |",
        "|---" * (len(names) + 2) + "|",
    ]
    for row in rows:
        cells = " | ".join(f"{row[k]:.0f} ns" for k in names)
        lines.append(f"| {row['n']} | {cells} | {row['np.matmul'] / row['matmul']:.1f}x |")
    return lines


def table(rows: list[Row]) -> list[str]:
    """GFLOP/s by variant, the ratio to the best peer, the share of the register-only loop."""
    names: list[str] = []
    for row in rows:
        names += [v for v in row.gflops if v not in names]
    head = ["m x k x n", *names, "jitgemm / best peer", "of the loop"]
    allowed = DOT in names
    if allowed:
        head.append("dot allowed / best peer")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [f"{row.gflops[v]:.1f}" if v in row.gflops else "" for v in names]
        cells.append(f"**{row.ratio:.2f}** ({row.best_other})" if row.best_other else "")
        cells.append(f"{100 * row.gflops[row.mine] / row.peak:.0f} %" if row.peak else "")
        if allowed:
            cells.append(f"{row.dot_ratio:.2f}" if row.dot_ratio else "")
        lines.append("| " + " | ".join([str(row.case), *cells]) + " |")
    return lines


def pinned(isa: str) -> list[str]:
    """Square products of a narrower instruction set against its own register-only loop."""
    lines = [
        "| | gemm | plan | prepacked plan | loop | best of the loop |",
        "|---|---|---|---|---|---|",
    ]
    for dtype in ("f32", "f64"):
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "bench.json"
            command = [sys.executable, "-m", "jitgemm", "bench", "--dtype", dtype, "--threads", "1"]
            command += ["--shapes", "512x512x512,1024x1024x1024,2048x2048x2048", "--prepacked"]
            env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS")}
            subprocess.run(
                [*command, "--json", str(output)],
                env=env | {"JITGEMM_ISA": isa}, check=True, capture_output=True,
            )  # fmt: skip
            measured = json.loads(output.read_text())
        names = ("gemm", "plan", "plan_prepacked")
        for row in measured["results"]:
            speeds = [row["variants"][name]["gflops"] for name in names]
            loop, shape = row["loop_gflops"], f"{row['m']}x{row['k']}x{row['n']}"
            cells = " | ".join(f"{x:.1f}" for x in speeds)
            share = f"{100 * max(speeds) / loop:.0f} %"
            lines.append(f"| {dtype} {shape} | {cells} | {loop:.1f} | {share} |")
    return lines


def script(name: str) -> list[str]:
    """The output of another benchmark of this folder."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS")}
    path = Path(__file__).with_name(name)
    done = subprocess.run(
        [sys.executable, str(path)], env=env, check=True, capture_output=True, text=True
    )
    return [f"From `benchmarks/{name}`.", "", *done.stdout.rstrip().splitlines()]


def loops() -> str:
    """One line of the speeds of the register-only loops."""
    kinds = {
        "f4": "f32", "f8": "f64", "bytes": "four bytes", "bf16_dot": "pairs of bfloat16",
        "tile_us": "tiles of bytes", "tile_bf16": "tiles of bfloat16",
    }  # fmt: skip
    speeds = {name: peak(kind) for kind, name in kinds.items()}
    found = ", ".join(f"{name} {speed:.0f}" for name, speed in speeds.items() if speed)
    return f"One thread: {found} Gop/s."


def machine() -> str:
    """One line about where this was measured."""
    model = platform.processor()
    try:
        text = Path("/proc/cpuinfo").read_text()
        fields = dict(
            line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line
        )
        fields = {k.strip(): v.strip() for k, v in fields.items()}
        model = f"{fields['model name']} (family {fields['cpu family']}, model {fields['model']})"
    except (OSError, KeyError):
        pass
    import jitgemm

    config = jitgemm.show_config()
    versions = []
    for name in ("numpy", "llvmlite", "mkl", "torch", "onnxruntime"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{name} not installed")
    caches = config["caches"]
    return (
        f"{model}, LLVM name {config['cpu']}, {os.cpu_count()} processors (virtual machine), "
        f"caches {caches['l1d'] >> 10} KiB / {caches['l2'] >> 10} KiB / {caches['l3'] >> 20} MiB; "
        f"ISA {config['isa']}; Python {platform.python_version()}; " + ", ".join(versions)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="one thread, few shapes")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "RESULTS.md")
    options = parser.parse_args()
    squares = SQUARES[:2] if options.quick else SQUARES
    weights = WEIGHTS[:3] if options.quick else WEIGHTS
    narrow = NARROW[:3] if options.quick else NARROW
    eighths = narrow if options.quick else (*narrow, (2048, 2048, 2048))
    suites = [
        ("Square, f32", [Case("f4", (n, n, n), prepacked=True) for n in squares]),
        ("Square, f64", [Case("f8", (n, n, n), prepacked=True) for n in squares]),
        ("Fixed weights (B prepacked), f32", [Case("f4", s, prepacked=True) for s in weights]),
        ("Fixed weights with bias and relu, f32",
         [Case("f4", s, prepacked=True, relu=True) for s in FUSED]),
        ("Matrix times vector and vector times matrix, f32", [Case("f4", s) for s in VECTORS]),
        ("Matrix times vector and vector times matrix, f64", [Case("f8", s) for s in VECTORS]),
        ("Square, c64", [Case("c8", (n, n, n), prepacked=True) for n in squares[:3]]),
        ("Square, c128", [Case("c16", (n, n, n), prepacked=True) for n in squares[:3]]),
        ("uint8 @ int8", [Case("u8", s, prepacked=True) for s in eighths]),
        ("int8 @ int8", [Case("s8", s, prepacked=True) for s in eighths]),
        ("bfloat16", [Case("bf16", s, prepacked=True) for s in narrow]),
        ("float16", [Case("f2", s, prepacked=True) for s in narrow]),
    ]  # fmt: skip
    parts = [
        "# Measured results", "",
        "Written by `benchmarks/results.py`; do not edit.", "",
        f"* Machine: {machine()}",
        f"* Date: {dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC",
        f"* Method: one process per peer, stopped while another runs; {options.rounds} interleaved "
        "rounds of 20 ms per variant; GFLOP/s are medians over rounds, ratios medians of the "
        "ratios within a round; `OPENBLAS_CORETYPE` and `OPENBLAS_L2_SIZE` unset.",
        "* The loop: the best of several runs of a register-only loop of 512-bit (or the ISA's "
        "widest) multiply-adds, generated by jitgemm, times the thread count.  16-bit floats "
        "compare with the loop of f32, 8-bit integers with that of the matrix unit, if there is "
        "one, or of dot products of four bytes.  "
        f"{loops()}",
        "* Narrow types: B prepacked or a constant where a peer can; the product of 8-bit integers "
        "is int32, that of 16-bit floats has their type but is float32 from MKL; a peer is left "
        "out where it would take most of the run.  The column of `allow_bf16_dot=True` is in "
        "neither of the two after it: it is compared in the last one.",
        "", "## Start-up and memory", "", *startup(), "", "## Cost of a call, f32, one thread", "",
        *calls(), "",
    ]  # fmt: skip
    for threads in (1,) if options.quick else (1, 2):
        print(f"== {threads} thread(s)", flush=True)
        # In one go: processes of peers take seconds to start.
        rows = iter(measure(
            [case for _, cases in suites for case in cases], threads, rounds=options.rounds,
            progress=lambda row: print(
                row.case.dtype, row.case, row.gflops, f"{row.ratio:.2f}", flush=True
            ),
        ))  # fmt: skip
        for title, cases in suites:
            unit = "Gop/s" if cases[0].integral else "GFLOP/s"
            lines = table([next(rows) for _ in cases])
            parts += [f"## {title}, {threads} thread(s), {unit}", "", *lines, ""]
    if not options.quick:
        parts += ["## Pinned AVX2, one thread, GFLOP/s", "", *pinned("avx2"), ""]
        parts += ["## Integers, requantisation and small types", "", *script("integers.py"), ""]
        parts += ["## Routes, layouts and epilogues", "", *script("routes.py"), ""]
        parts += ["## Depth block", "", *script("depth_block.py"), ""]
        parts += ["## Register tiles", "", *script("tiles.py"), ""]
        parts += ["## Thresholds", "", *script("knobs.py"), ""]
    options.output.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
