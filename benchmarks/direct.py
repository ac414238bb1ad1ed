"""Time plans made with other knobs, tiles or element types than the registered ones."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable

import numpy as np

from jitgemm.isa.types import ElementType
from jitgemm.kernels.spec import BSource, Tile
from jitgemm.planner import choices, route
from jitgemm.planner.problem import Operand, Problem
from jitgemm.runtime.data import Scalars
from jitgemm.runtime.driver import Executable, Span, run_pack
from jitgemm.runtime.engine import engine, knob

Run = Callable[[], float]


@dataclasses.dataclass(frozen=True)
class Setting:
    """What may differ from the registered choice."""

    element: ElementType
    shape: tuple[int, int, int]  # m, k, n
    threads: int = 1
    prepacked: bool = False
    columns: bool = False  # B column-major
    rows: bool = True  # A row-major
    tile: Tile | None = None
    knobs: dict[str, int] = dataclasses.field(default_factory=dict)


def runner(setting: Setting) -> Run:
    """A function that does the product once and returns its seconds."""
    m, k, n = setting.shape
    element = setting.element
    dtype = f"f{element.bytes}"
    rng = np.random.default_rng(1)
    a = (rng.random((m, k)) - 0.5).astype(dtype)
    b = (rng.random((k, n)) - 0.5).astype(dtype)
    a, b = (
        (a if setting.rows else np.asfortranarray(a)),
        (np.asfortranarray(b) if setting.columns else b),
    )
    c = np.empty((m, n), dtype)

    def operand(x: np.ndarray) -> Operand:
        return Operand(x.strides[0], x.strides[1])

    problem = Problem(
        element, m, n, k, operand(a), None if setting.prepacked else operand(b), operand(c)
    )
    context = dataclasses.replace(
        engine().context(setting.threads), knob=lambda name: setting.knobs.get(name, knob(name))
    )
    tile_for = choices.tile_for
    if setting.tile is not None:
        choices.tile_for = lambda *_: setting.tile
    try:
        plan = route.make_plan(problem, context)
    finally:
        choices.tile_for = tile_for
    executable = Executable(plan)
    where = {"a": a, "d": c} if setting.prepacked else {"a": a, "b": b, "d": c}
    spans = {
        name: Span.of(x.ctypes.data, x.shape, x.strides, element.bytes) for name, x in where.items()
    }
    panel = plan.spec.panel_bytes(plan.k_groups)
    packed = np.zeros(panel * -(-n // plan.spec.nr) + 64, np.uint8)
    if setting.prepacked:
        assert plan.spec.b is BSource.PACKED
        start = packed.ctypes.data + -packed.ctypes.data % 64
        target = Span(start, 0, packed.nbytes - 64)
        source = Span.of(b.ctypes.data, (k, n), (b.strides[0], b.strides[1]), element.bytes)
        run_pack(plan.spec, operand(b), source, target, (k, n, panel))
        spans["packed"] = target
    keep = (a, b, c, packed)

    def run() -> float:
        start = time.perf_counter()
        executable.run(spans, Scalars(), None)
        return time.perf_counter() - start if keep else 0.0

    run()
    return run


def medians(runs: dict[str, Run], *, rounds: int = 15, seconds: float = 0.01) -> dict[str, float]:
    """Median seconds per product, interleaved."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            end, turn = time.perf_counter() + seconds, []
            while not turn or time.perf_counter() < end:
                turn.append(run())
            times[name].append(statistics.median(turn))
    return {name: statistics.median(t) for name, t in times.items()}


def gflops(setting: Setting, seconds: float) -> float:
    """Speed of a setting."""
    m, k, n = setting.shape
    return 2e-9 * m * k * n / seconds
