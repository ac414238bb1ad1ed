"""jitgemm and its peers in one interleaved run.

Each peer lives in a process of its own, stopped while another one is measured, so that thread pools
do not disturb each other.  A figure is the median over rounds of the median time of one turn;
a ratio is the median over rounds of the ratio within the round, which cancels drift of the machine.
"""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import signal
import statistics
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import narrow_peers
from cases import Call, Case, operands

__all__ = ["DOT", "PEERS", "Peer", "Row", "measure", "peak"]

# Seconds of one call beyond which a variant is hopeless and left out.
_SLOWEST = 1.0
# Needs the user's permission, so it is compared apart from the other variants.
DOT = "jitgemm prepacked, dot allowed"


@dataclass
class Row:
    """What was measured for a case: GFLOP/s by variant, and jitgemm's ratio to the best other."""

    case: Case
    gflops: dict[str, float] = field(default_factory=dict)
    peak: float = 0.0
    mine: str = ""
    ratio: float = 0.0
    """Of the best variant of jitgemm that needs no permission."""
    dot_ratio: float = 0.0
    """Of the one that does, if there is one."""
    best_other: str = ""


def numpy_calls(case: Case, threads: int) -> dict[str, Call]:
    import numpy as np

    if case.narrow:
        return narrow_peers.numpy_calls(case, threads)
    a, b, c, bias = operands(case)

    def fused() -> None:
        np.matmul(a, b, out=c)
        np.add(c, bias, out=c)
        np.maximum(c, 0, out=c)

    return {"NumPy": fused if case.relu else lambda: np.matmul(a, b, out=c)}


def mkl_calls(case: Case, threads: int) -> dict[str, Call]:
    library = min(Path(sysconfig.get_paths()["data"], "lib").glob("libmkl_rt.so*"))
    mkl = ctypes.CDLL(str(library))
    mkl.MKL_Set_Num_Threads(threads)
    if case.narrow:
        return narrow_peers.mkl_calls(mkl, case)
    if case.relu:
        return {}
    a, b, c, _ = operands(case)
    m, k, n = case.shape
    letter = {"f4": "s", "f8": "d", "c8": "c", "c16": "z"}[case.dtype]
    pa, pb, pc = (ctypes.c_void_p(x.ctypes.data) for x in (a, b, c))
    real = ctypes.c_float if letter in "sc" else ctypes.c_double
    # Complex routines take pointers to their factors.
    one, zero = ((real * 2)(1, 0), (real * 2)(0, 0)) if case.complex else (real(1), real(0))
    gemm, gemv = (getattr(mkl, f"cblas_{letter}{kind}") for kind in ("gemm", "gemv"))
    keep = (a, b, c)
    calls: dict[str, Call] = {
        "MKL": lambda: (keep, gemm(101, 111, 111, m, n, k, one, pa, k, pb, n, zero, pc, n))
    }
    if n == 1:
        calls["MKL gemv"] = lambda: (keep, gemv(101, 111, m, k, one, pa, k, pb, 1, zero, pc, 1))
    elif m == 1:
        calls["MKL gemv"] = lambda: (keep, gemv(101, 112, k, n, one, pb, n, pa, 1, zero, pc, 1))
    if case.prepacked and not case.complex:
        size = getattr(mkl, f"cblas_{letter}gemm_pack_get_size")
        size.restype = ctypes.c_size_t
        buffer = ctypes.create_string_buffer(size(162, m, n, k) + 128)
        at = ctypes.c_void_p(-(-ctypes.addressof(buffer) // 64) * 64)
        getattr(mkl, f"cblas_{letter}gemm_pack")(101, 162, 111, m, n, k, one, pb, n, at)
        compute = getattr(mkl, f"cblas_{letter}gemm_compute")
        calls["MKL packed"] = lambda: (
            buffer, compute(101, 111, 151, m, n, k, pa, k, at, n, zero, pc, n)
        )  # fmt: skip
    return calls


def torch_calls(case: Case, threads: int) -> dict[str, Call]:
    import torch

    if case.narrow:
        return narrow_peers.torch_calls(case, threads)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    a, b, c, bias = (torch.from_numpy(x) for x in operands(case))
    calls: dict[str, Call] = {}
    if not case.relu:
        calls["torch.mm"] = lambda: torch.mm(a, b, out=c)
    if case.dtype == "f4":
        weight = torch.ops.mkldnn._reorder_linear_weight(b.t().contiguous(), case.shape[0])
        kind, extra = ("relu", bias) if case.relu else ("none", None)
        linear = torch.ops.mkldnn._linear_pointwise
        calls["torch oneDNN packed"] = lambda: linear(a, weight, extra, kind, [], "")
    return calls


def jitgemm_calls(case: Case, threads: int) -> dict[str, Call]:
    import jitgemm

    jitgemm.set_num_threads(threads)
    a, b, c, bias = operands(case)
    options: dict[str, Any] = {"bias": bias, "activation": "relu"} if case.relu else {}
    calls: dict[str, Call] = {"jitgemm gemm": lambda: jitgemm.gemm(a, b, out=c, **options)}
    plan = jitgemm.plan(a, b, out=c, **options)
    calls["jitgemm plan"] = lambda: plan(a, b, c)
    if case.prepacked:
        w = jitgemm.prepack_rhs(b)
        packed = jitgemm.plan(a, w, out=c, **options)
        calls["jitgemm prepacked"] = lambda: packed(a, w, c)
        if case.relu:
            bare = jitgemm.plan(a, w, out=c)
            calls["jitgemm prepacked, no epilogue"] = lambda: bare(a, w, c)
    if case.prepacked and case.dtype == "bf16":
        fast = jitgemm.prepack_rhs(b, allow_bf16_dot=True)
        dot = jitgemm.plan(a, fast, out=c, allow_bf16_dot=True)
        calls[DOT] = lambda: dot(a, fast, c)
    return calls


PEERS: dict[str, Callable[[Case, int], dict[str, Call]]] = {
    "numpy": numpy_calls,
    "mkl": mkl_calls,
    "torch": torch_calls,
    "ort": narrow_peers.ort_calls,
    "jitgemm": jitgemm_calls,
}


def peak(dtype: str) -> float:
    """Speed of one thread's register-only loop, in thousand millions of operations per second.

    16-bit floats compare with the loop of float32, the type of their sums; 8-bit integers with
    that of the matrix unit, or of ``dot4``.  ``bf16_dot`` and names that start with ``tile`` are
    loops of those operations.  0 where there is none.
    """
    from jitgemm.errors import IsaError
    from jitgemm.isa.types import F32, F64, I32
    from jitgemm.runtime.peak import measure_peak

    loops = {
        "bytes": (I32, "dot4"), "bf16_dot": (F32, "bf16_dot"),
        "tile_us": (I32, "tile_us"), "tile_bf16": (F32, "tile_bf16"),
        "f8": (F64, "madd"), "c16": (F64, "madd"),
    }  # fmt: skip
    if dtype in ("s8", "u8"):
        return peak("tile_us") or peak("bytes")
    try:
        return measure_peak(*loops.get(dtype, (F32, "madd"))) * 1e-9
    except IsaError:
        return 0.0


def _turn(call: Call, seconds: float) -> float:
    start = time.perf_counter()
    call()
    repeat = max(1, int(4e-4 / max(1e-9, time.perf_counter() - start)))
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(repeat):
            call()
        times.append((time.perf_counter() - start) / repeat)
    return statistics.median(times)


def _usable(calls: dict[str, Call]) -> dict[str, Call]:
    """Those whose turns do not take most of a run; what cannot be computed raises here."""
    usable = {}
    for variant, call in calls.items():
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        if seconds < _SLOWEST or variant.startswith("jitgemm"):  # which may have compiled
            usable[variant] = call
        else:
            print(f"{variant}: left out ({seconds:.1f} s)", flush=True)
    return usable


def _serve(name: str, threads: int, pipe: Any) -> None:
    calls: dict[str, Call] = {}
    try:
        while True:
            order, argument = pipe.recv()
            if order == "build":
                try:
                    calls = _usable(PEERS[name](argument, threads))
                    pipe.send(list(calls))
                except Exception as e:  # noqa: BLE001  # reported to the parent
                    pipe.send(f"{type(e).__name__}: {e}")
            elif order == "peak":
                pipe.send(peak(argument))
            else:
                variant, seconds = argument
                pipe.send(_turn(calls[variant], seconds))
    except EOFError:
        return


class Peer:
    """A peer's process."""

    def __init__(self, name: str, threads: int) -> None:
        context = mp.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
            os.environ.pop(variable, None)
        for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[variable] = str(threads)
        self.process = context.Process(target=_serve, args=(name, threads, theirs), daemon=True)
        self.process.start()

    def ask(self, order: str, argument: object) -> Any:
        """Wake the process, have it do something, stop it again."""
        pid = self.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGCONT)
        self.pipe.send((order, argument))
        answer = self.pipe.recv()
        os.kill(pid, signal.SIGSTOP)
        return answer

    def close(self) -> None:
        """End the process."""
        self.process.kill()


def measure(
    cases: list[Case], threads: int, *, rounds: int = 9, seconds: float = 0.02,
    progress: Callable[[Row], None] = lambda _row: None,
) -> list[Row]:  # fmt: skip
    """Measure every case with every peer that is installed."""
    peers = {name: Peer(name, threads) for name in PEERS}
    rows = []
    for case in cases:
        row, variants = Row(case), []
        for name, peer in peers.items():
            built = peer.ask("build", case)
            if isinstance(built, str):
                print(f"{name}: left out ({built})")
                continue
            variants += [(name, variant) for variant in built]
        times: dict[str, list[float]] = {variant: [] for _, variant in variants}
        peaks = []
        for turn in range(rounds + 1):
            loop = peers["jitgemm"].ask("peak", case.dtype) * threads
            for name, variant in variants:
                t = peers[name].ask("turn", (variant, seconds))
                if turn:  # the first round warms up
                    times[variant].append(t)
            peaks.append(loop)
        row.peak = statistics.median(peaks)
        row.gflops = {v: 1e-9 * case.operations / statistics.median(t) for v, t in times.items()}
        free = [v for v in times if v.startswith("jitgemm") and v != DOT]
        row.mine = max(free, key=lambda v: row.gflops[v])
        others = [v for v in times if not v.startswith("jitgemm")]
        if others:
            row.best_other = max(others, key=lambda v: row.gflops[v])

            def ratio(mine: str) -> float:
                pairs = zip(times[row.best_other], times[mine], strict=True)
                return statistics.median(y / x for y, x in pairs)

            row.ratio = ratio(row.mine)
            row.dot_ratio = ratio(DOT) if DOT in times else 0.0
        rows.append(row)
        progress(row)
    for peer in peers.values():
        peer.close()
    return rows
