"""A plan in words."""

from __future__ import annotations

from jitgemm.isa.matrix import MatrixUnit
from jitgemm.kernels.dot import lane_count
from jitgemm.planner.machine import Machine
from jitgemm.planner.problem import Problem
from jitgemm.planner.route import Dot, GemmPlan

__all__ = ["explain"]


def _bytes(n: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} bytes"


def _moved(p: Problem) -> int:
    """Bytes of A, B and D."""
    a, b, d = (x.bytes * p.components for x in (p.types.a, p.types.b, p.types.out))
    return p.m * p.k * a + p.k * p.n * b + p.m * p.n * d


def _balance(plan: GemmPlan) -> float:
    """Operations of a core per byte it reads from memory: estimates."""
    # About 64 f32 operations per cycle, for each number of a k-group, and 4 bytes.  A matrix unit
    # does about eight times as many.
    how = plan.spec.arithmetic
    numbers = how.group * (8 if how.tiles else 1)
    return 16 * 4 / plan.spec.element.bytes * numbers


def _bound(plan: GemmPlan, machine: Machine) -> str:
    """Compute or memory: compare the arithmetic with the bytes that must come from beyond L2."""
    moved = _moved(plan.problem)
    intensity = plan.problem.operations / max(1, moved)
    if moved <= machine.l2.size:
        return f"compute: {_bytes(moved)} of operands fit in L2"
    kind = "compute" if intensity >= _balance(plan) else "memory"
    return f"{kind}: {intensity:.1f} operations per byte over {_bytes(moved)} of operands"


def _sum(plan: GemmPlan) -> str:
    """The order of the sum."""
    block, groups = plan.spec.element.depth_block, plan.k_groups
    if isinstance(plan.route, Dot):
        lanes = lane_count(plan.spec)
        blocks = -(-groups // (lanes * block))
        return f"{lanes} lanes of at most {block} per block, added in halves; {blocks} block(s)"
    chains = max(1, -(-groups // block))
    how, unit = plan.spec.arithmetic, plan.spec.isa.unit
    product = unit.product(how.accumulate) if plan.spec.tiles and unit else None
    if isinstance(unit, MatrixUnit) and product is not None and product.order:
        tiles = f"tiles of {unit.words} k-groups, each {product.order}"
        return f"{chains} block(s) of at most {-(-block // unit.words)} {tiles}, in ascending order"
    steps = "" if how.group == 1 else f" k-groups of {how.group}"
    return f"{chains} chain(s) of at most {block}{steps} over k, added in ascending order"


def _loops(plan: GemmPlan) -> list[str]:
    """The register tile and the blocking, of routes that have them."""
    p, b, spec = plan.problem, plan.blocking, plan.spec
    if isinstance(plan.route, Dot):
        return []
    group = spec.arithmetic.group
    return [
        (
            f"tile      {b.tile_rows} x {b.group * spec.nr} of at most {spec.tile.mr} x {spec.nr}"
            f" ({spec.tile.nr_regs} vectors of {spec.lanes}, {b.group} micropanel(s) at once)"
        ),
        (
            f"blocking  rows {min(b.rows_per_chunk, p.m)},"
            f" columns {min(b.cols_per_chunk // spec.components, p.n)},"
            f" depth {min(b.depth_per_slice * group, p.k)};"
            f" {b.blocks} column block(s), {b.slices} depth slice(s),"
            f" {b.row_chunks * b.col_chunks} chunk(s) each"
        ),
    ]


def explain(plan: GemmPlan, machine: Machine) -> str:
    """Say what a plan does and why."""
    p, spec = plan.problem, plan.spec
    lines = [
        f"product   {spec.type_name} {p.m} x {p.k} @ {p.k} x {p.n}"
        + (" (operands exchanged)" if plan.exchanged else "")
        + f", epilogue {p.epilogue}",
        f"kernel    {spec.symbol}",
        *_loops(plan),
        f"sum       {_sum(plan)}",
        *(f"because   {reason}" for reason in plan.reasons),
        f"threads   {plan.threads}",
        f"scratch   {_bytes(plan.workspace_bytes)}",
        f"bound     {_bound(plan, machine)}",
    ]
    return "\n".join(lines)
