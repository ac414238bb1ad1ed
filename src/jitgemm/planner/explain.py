"""A plan in words."""

from __future__ import annotations

from jitgemm.isa.matrix import TILE_WORDS
from jitgemm.kernels.dot import lane_count
from jitgemm.planner.machine import Machine
from jitgemm.planner.route import GemmPlan

__all__ = ["explain"]


def _bytes(n: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} bytes"


def _bound(plan: GemmPlan, machine: Machine) -> str:
    """Compute or memory: compare the arithmetic with the bytes that must come from beyond L2."""
    p, size = plan.problem, plan.spec.unit
    moved = (p.m * p.k + p.k * p.n + p.m * p.n) * size
    intensity = p.operations / max(1, moved)
    if moved <= machine.l2.size:
        return f"compute: {_bytes(moved)} of operands fit in L2"
    # A core does about 64 f32 operations per cycle and reads about 4 bytes per cycle from memory.
    balance = 16 * 4 / plan.spec.element.bytes
    kind = "compute" if intensity >= balance else "memory"
    return f"{kind}: {intensity:.1f} operations per byte over {_bytes(moved)} of operands"


def _sum(plan: GemmPlan) -> str:
    """The order of the sum."""
    k, block = plan.problem.k, plan.spec.element.depth_block
    if plan.dot:
        lanes = lane_count(plan.spec)
        blocks = -(-k // (lanes * block))
        return f"{lanes} lanes of at most {block} per block, added in halves; {blocks} block(s)"
    chains = max(1, -(-k // block))
    if plan.spec.tiles and not plan.spec.element.integral:
        tiles = f"tiles of {TILE_WORDS} words, each an even and an odd chain"
        return f"{chains} block(s) of at most {block // TILE_WORDS} {tiles}, in ascending order"
    return f"{chains} chain(s) of at most {block} over k, added in ascending order"


def explain(plan: GemmPlan, machine: Machine) -> str:
    """Say what a plan does and why."""
    p, b, spec = plan.problem, plan.blocking, plan.spec
    depth = p.depth or p.k  # numbers, where k counts words
    lines = [
        f"product   {spec.type_name} {p.m} x {depth} @ {depth} x {p.n}"
        + (" (operands exchanged)" if plan.swapped else "")
        + f", epilogue {p.epilogue}",
        f"kernel    {spec.symbol}",
        (
            f"tile      {b.tile_rows} x {b.group * spec.nr} of at most {spec.tile.mr} x {spec.nr}"
            f" ({spec.tile.nr_regs} vectors of {spec.lanes}, {b.group} micropanel(s) at once)"
        ),
        (
            f"blocking  rows {min(b.rows_per_chunk, p.m)},"
            f" columns {min(b.cols_per_chunk // spec.parts, p.n)},"
            f" depth {b.depth_per_slice};"
            f" {b.blocks} column block(s), {b.slices} depth slice(s),"
            f" {b.row_chunks * b.col_chunks} chunk(s) each"
        ),
        f"sum       {_sum(plan)}",
        *(f"because   {reason}" for reason in plan.reasons),
        f"threads   {plan.threads}",
        f"scratch   {_bytes(plan.workspace_bytes)}",
        f"bound     {_bound(plan, machine)}",
    ]
    return "\n".join(lines)
