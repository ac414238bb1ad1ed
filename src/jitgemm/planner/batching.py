"""Plans of stacks of products: whole products to each worker, or each product split among all.

*Whole*: a worker draws a range of products and computes each alone, with scratch of its own.  No
worker ever waits for another, and a B that stays the same from one product to the next is packed
once per worker.  *Split*: one product after the other, each by all threads, as a single call would.

Splitting costs a start and a finish per product and pays in two cases: too few products to keep
the threads evenly busy, and products so large that each thread's own packed B would crowd the
shared cache.  :func:`_whole` weighs the first by counting operations (``parallel_flops`` is what a
start is worth), and leaves the second to the knob ``batch_split_flops``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jitgemm.kernels.job import TABLES
from jitgemm.kernels.repeat import TOGETHER
from jitgemm.kernels.spec import BSource
from jitgemm.planner.callspec import CallSpec
from jitgemm.planner.context import Context, aligned, threads_for
from jitgemm.planner.explain import explain
from jitgemm.planner.folding import FIELDS, Axis, Stack
from jitgemm.planner.machine import Machine
from jitgemm.planner.problem import Problem
from jitgemm.planner.route import GemmPlan, make_plan

__all__ = [
    "AXES",
    "BatchPlan",
    "aligned",
    "alone_in_list",
    "explain_batch",
    "make_batch_plan",
    "plan_call",
]

AXES = 4
"""Batch axes that generated code runs over; more are looped over outside."""

# What drawing a ticket and setting up a product cost, as operations (20 ns and 80 ns): a ticket
# should hold about 8 us of work, and there should be eight per thread to even out disturbances.
_PER_ITEM, _PER_TICKET, _TICKETS_PER_THREAD = 20_000, 2_000_000, 8


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A finished plan of a stack."""

    stack: Stack
    item: GemmPlan
    outer: tuple[Axis, ...]
    """Axes beyond what generated code runs over, in the kernel's orientation."""
    axes: tuple[Axis, ...]
    """The other axes, outermost first, likewise."""
    whole: bool
    threads: int
    per_ticket: int
    repeats: bool
    """A worker runs many products as one."""
    ahead: tuple[tuple[str, int], ...]
    """Operands whose coming products are fetched early, and how many bytes one product is."""
    reason: str

    @property
    def items(self) -> int:
        """Products per run of generated code."""
        return math.prod(x.count for x in self.axes)

    @property
    def tables(self) -> bool:
        """Products have zero points or scales of their own."""
        return any(getattr(axis, field) for axis in self.stack.axes for field in TABLES)

    @property
    def packs(self) -> bool:
        """Each product packs its B."""
        return self.item.blocking.pack_chunks > 0

    @property
    def keeps(self) -> bool:
        """Whether a packed B is still there for the next product: all of it, in its only slice."""
        return self.packs and self.item.blocking.slices == self.item.blocking.blocks == 1

    @property
    def scratch_stride(self) -> int:
        """Bytes of scratch of one worker: packed B and A of one product."""
        return aligned(self.item.workspace_bytes)

    @property
    def workspace_bytes(self) -> int:
        """All scratch: ``threads`` times that of one product if whole, once if split."""
        return self.scratch_stride * (self.threads if self.whole else 1)

    @property
    def operations(self) -> int:
        """Arithmetic operations of the whole stack."""
        return self.stack.items * self.item.problem.operations

    def offsets(self) -> Iterator[dict[str, int]]:
        """Bytes to add to each operand for each round over the outer axes."""
        for index in itertools.product(*(range(x.count) for x in self.outer)):
            sums = [
                sum(i * s for i, s in zip(index, strides, strict=True))
                for strides in zip(*(x.strides for x in self.outer), strict=True)
            ] or [0] * len(FIELDS)
            yield dict(zip(FIELDS, sums, strict=True))


def _whole(problem: Problem, items: int, context: Context) -> tuple[bool, str]:
    """Whether workers take whole products, and why."""
    if items == 1:
        return False, "one product"
    each = problem.operations
    workers = min(items, threads_for(items * each, context))
    splits = threads_for(each, context)
    if splits == 1:
        return True, f"whole: {each} operations are not worth splitting"
    limit = context.knob("batch_split_flops")
    if each > limit:
        return False, f"split: {each} operations each, whole products end at {limit}"
    alone = -(-items // workers) * each
    together = items * (each // splits + context.knob("parallel_flops"))
    if together < alone:
        return False, f"split: {items} products do not fill {workers} workers evenly"
    return True, f"whole: {items} products fill {workers} workers"


def alone_in_list(operations: int, total: int, context: Context) -> bool:
    """Whether a product of a list should have all threads, rather than one.

    It should if it is worth several, and is so large that it would keep one thread busy for longer
    than half a fair share of the ``total`` still to do.
    """
    if threads_for(operations, context) == 1:
        return False
    unfair = 2 * operations * context.threads > total
    return unfair or operations > context.knob("batch_split_flops")


# Products up to this size, side by side, are fetched two ahead if the stack is larger than L2: they
# end before a prefetcher has caught on.  16 x 16 from memory (10,000 of them, one thread): f32 128
# to 84 ns, f64 245 to 172; 32 x 32 f32 410 to 340; but 100 of those, from L2: 324 to 375 ns (Zen 5,
# 2026-11-30).
_AHEAD = 8192
# Run as one, small products read fast enough for the prefetcher; only a stack that does not stay in
# L3 gains, and from fetching either what is written or what is read: nothing, D, A and B, all three
# took 28, 19, 30, 25 ns (9 x 9, 40,000), 47, 34, 54, 54 (12 x 12, 30,000), 117, 146, 112, 119
# (16 x 16, 40,000), but 17.5, 18.5, 19.8, 19.7 (9 x 9, 10,000, in L3; f32, one thread, Zen 5,
# lowest of interleaved runs, 2026-11-30).
_READ_AHEAD = 1024
# Eight products of several tiles take turns, tile by tile, and must stay in L1 meanwhile; one after
# the other and so: f32 16 x 16 86 and 72 ns, 20 x 20 165 and 150, 32 x 32 394 and 384; f64
# 16 x 16 138 and 133, 20 x 20 326 and 347, 32 x 32 798 and 831 (48 KiB of L1, Zen 5, medians of
# interleaved runs, 2026-11-30).


def _repeats(item: GemmPlan, context: Context) -> bool:
    """Whether products are so small, and so much alike, that many are run as one."""
    p, b = item.problem, item.blocking
    single = p.m <= b.tile_rows and p.n * p.components <= item.spec.nr
    size = (p.m * p.k + p.k * p.n + p.m * p.n) * p.unit
    return item.uniform and (single or TOGETHER * size <= context.machine.l1.size)


def _ahead(
    item: GemmPlan, axes: tuple[Axis, ...], context: Context, *, repeats: bool
) -> tuple[tuple[str, int], ...]:
    """Operands to fetch for the products to come, and the bytes of one product."""
    p, machine, depth = item.problem, context.machine, item.k_groups
    # As the kernel reads them: a k-group is as long as a sum.
    shapes = (("a", p.m, depth, p.a), ("b", depth, p.n, p.b), ("d", p.m, p.n, p.d))
    found, whole = [], 0
    for field, rows, cols, x in shapes:
        size = rows * cols * p.unit
        moves = bool(axes) and getattr(axes[-1], field) == size
        if x is None or not moves or not 0 < size <= _AHEAD:
            continue
        if (x.row, x.col) in ((cols * p.unit, p.unit), (p.unit, rows * p.unit)):
            found.append((field, size))
            whole += size * math.prod(axis.count for axis in axes)
    if not repeats:
        return tuple(found) if whole > 2 * machine.l2.size else ()
    wanted = "ab" if max((size for _, size in found), default=0) >= _READ_AHEAD else "d"
    return tuple(x for x in found if x[0] in wanted) if 4 * whole > 3 * machine.l3.size else ()


def make_batch_plan(problem: Problem, stack: Stack, context: Context) -> BatchPlan:
    """Plan a folded stack.

    Args:
        problem: one of its products.
        stack: the folded stack.
        context: the machine and the most threads.

    Raises:
        MemoryError: scratch beyond any address space.
    """
    items = stack.items
    whole, reason = _whole(problem, items, context)
    operations = problem.operations
    threads = threads_for(items * operations, context)
    if whole:
        threads = min(threads, items)
        item = make_plan(problem, replace(context, threads=1))
    else:
        item = make_plan(problem, context)
        threads = item.threads
    axes = tuple(x.transposed for x in stack.axes) if item.exchanged else stack.axes
    if item.spec.b is BSource.PACKED:
        # Products that share their B come after one another, and so find it packed.
        axes = tuple(sorted(axes, key=lambda x: x.b == 0))
    # Rounds of the outer axes cost a call each: the shortest axes are the outer ones.
    short = sorted(range(len(axes)), key=lambda i: axes[i].count)[: max(0, len(axes) - AXES)]
    outer = tuple(axes[i] for i in sorted(short))
    inner = tuple(x for i, x in enumerate(axes) if i not in short)
    count = math.prod(x.count for x in inner)
    most = max(1, min(_PER_TICKET // (operations + _PER_ITEM), count))
    fair = max(1, count // (_TICKETS_PER_THREAD * threads))
    per_ticket = count if threads == 1 else min(most, fair)
    tables = any(getattr(axis, field) for axis in axes for field in TABLES)
    repeats = whole and not tables and _repeats(item, context)
    ahead = _ahead(item, inner, context, repeats=repeats)
    return BatchPlan(stack, item, outer, inner, whole, threads, per_ticket, repeats, ahead, reason)


def plan_call(spec: CallSpec, context: Context) -> GemmPlan | BatchPlan:
    """Plan a call: the planner's one door.

    Raises:
        MemoryError: scratch beyond any address space.
    """
    problem, stack = spec.folded()
    if not spec.batch:
        return make_plan(problem, context)
    return make_batch_plan(problem, stack, context)


def explain_batch(plan: BatchPlan, machine: Machine) -> str:
    """Say what a plan of a stack does and why."""
    items, threads = plan.stack.items, plan.threads
    how = "whole products per worker" if plan.whole else "each product by all threads"
    drawn = f", {plan.per_ticket} item(s) per ticket" if plan.whole and threads > 1 else ""
    lines = [
        f"batch     {items} product(s)",
        *(f"folded    {note}" for note in plan.stack.notes),
        f"schedule  {how}, {threads} thread(s){drawn}",
        f"because   {plan.reason}",
    ]
    if plan.outer:
        rounds = math.prod(x.count for x in plan.outer)
        lines.append(f"rounds    {rounds} calls: more than {AXES} batch axes remain")
    if plan.keeps and any(x.b == 0 for x in plan.axes):
        lines.append("packing   a B that does not change is packed once per worker")
    if plan.repeats:
        lines.append("calls     one for many products, which are alike but for their place")
    if plan.ahead:
        names = ", ".join(name.upper() for name, _ in plan.ahead)
        cache = "most of L3" if plan.repeats else "L2"
        lines.append(f"fetching  {names} of products to come: the stack is larger than {cache}")
    lines.append(f"scratch   {plan.workspace_bytes} bytes in all")
    lines.append("each product:")
    return "\n".join([*lines, explain(plan.item, machine)])
