"""A plan in words."""

from __future__ import annotations

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
    p, size = plan.problem, plan.spec.element.bytes
    moved = (p.m * p.k + p.k * p.n + p.m * p.n) * size
    intensity = p.operations / max(1, moved)
    if moved <= machine.l2.size:
        return f"compute: {_bytes(moved)} of operands fit in L2"
    # A core does about 64 f32 operations per cycle and reads about 4 bytes per cycle from memory.
    balance = 16 * 4 / size
    kind = "compute" if intensity >= balance else "memory"
    return f"{kind}: {intensity:.1f} operations per byte over {_bytes(moved)} of operands"


def explain(plan: GemmPlan, machine: Machine) -> str:
    """Say what a plan does and why."""
    p, b, spec = plan.problem, plan.blocking, plan.spec
    blocks = -(-p.k // spec.element.depth_block)
    lines = [
        f"product   {spec.element} {p.m} x {p.k} @ {p.k} x {p.n}"
        + (" (operands exchanged)" if plan.swapped else "")
        + f", epilogue {p.epilogue}",
        f"kernel    {spec.symbol}",
        (
            f"tile      {b.tile_rows} x {b.group * spec.nr} of at most {spec.tile.mr} x {spec.nr}"
            f" ({spec.tile.nr_regs} vectors of {spec.lanes}, {b.group} micropanel(s) at once)"
        ),
        (
            f"blocking  rows {min(b.rows_per_chunk, p.m)}, columns {min(b.cols_per_chunk, p.n)},"
            f" depth {b.depth_per_slice};"
            f" {b.blocks} column block(s), {b.slices} depth slice(s),"
            f" {b.row_chunks * b.col_chunks} chunk(s) each"
        ),
        (
            f"sum       {max(1, blocks)} chain(s) of at most {spec.element.depth_block} over k,"
            " added in ascending order"
        ),
        *(f"because   {reason}" for reason in plan.reasons),
        f"threads   {plan.threads}",
        f"scratch   {_bytes(plan.workspace_bytes)}",
        f"bound     {_bound(plan, machine)}",
    ]
    return "\n".join(lines)
