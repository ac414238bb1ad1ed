"""Plans: a problem, its kernel, and the route that runs it.

``make_plan`` is the planner's one door.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitgemm.kernels.spec import BSource, GemmSpec
from jitgemm.lang.core import Function
from jitgemm.planner.blocking import Blocking
from jitgemm.planner.choices import (
    b_source,
    is_direct,
    is_dot,
    orientation,
    spec_for,
    splits,
    streams_rows,
)
from jitgemm.planner.context import Context, Draft, k_groups, threads_for
from jitgemm.planner.dot import Dot
from jitgemm.planner.lhs import reads_vectors
from jitgemm.planner.nest import Blocked, Columns, RowStreaming
from jitgemm.planner.problem import Problem
from jitgemm.planner.records import ByteOrder, PackA, Part, Sizes, Strides
from jitgemm.planner.splitting import SplitDepth

__all__ = [
    "Blocked", "Columns", "Context", "Dot", "GemmPlan", "PackA", "Route", "RowStreaming",
    "SplitDepth", "make_plan", "threads_for",
]  # fmt: skip

# No machine addresses more than 2**47 bytes of its own.
_MAX_BYTES = 1 << 47

Route = Blocked | RowStreaming | Columns | Dot | SplitDepth
"""How a product is computed.  Each plans itself (``plan``), says why (``reasons``), names the
kernel that runs it (``kernel``), and has its own part of the job record (``records``)."""


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """A finished plan: the kernel, the route, and the scratch it needs."""

    problem: Problem
    """As the kernel sees it: normalised and perhaps transposed."""
    spec: GemmSpec
    threads: int
    route: Route
    choices: tuple[str, ...]
    """Why this orientation, this way to read B, and this kernel."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why everything is as it is, in words."""
        return self.choices + self.route.reasons

    @property
    def exchanged(self) -> bool:
        """The kernel computes ``D^T = B^T A^T``."""
        return self.problem.exchanged

    @property
    def operations(self) -> int:
        """Arithmetic operations."""
        return self.problem.operations

    @property
    def k_groups(self) -> int:
        """Depth in packed k-groups, as the kernel counts it."""
        return k_groups(self.problem.k, self.spec)

    @property
    def kernel(self) -> Function:
        """The export of the spec's unit that does the whole product."""
        return self.route.kernel(self.spec, self.threads)

    @property
    def blocking(self) -> Blocking:
        """Loop bounds."""
        return self.route.blocking

    @property
    def uniform(self) -> bool:
        """All microtiles are of one depth block and read and write operands where they are."""
        route = self.route
        return isinstance(route, Blocked) and route.uniform(self.problem, self.spec)

    @property
    def workspace_a_stride(self) -> int:
        """Bytes of scratch per thread."""
        return self.route.workspace_a_stride

    @property
    def workspace_b(self) -> int:
        """Bytes of packed B, shared; they come first."""
        return self.route.workspace_b

    @property
    def workspace_bytes(self) -> int:
        """All scratch of one call: ``workspace_b + threads * workspace_a_stride``."""
        return self.workspace_b + self.threads * self.workspace_a_stride

    @property
    def records(self) -> tuple[Part, ...]:
        """All parts of a job record that a plan fills (``planner.records``)."""
        p = self.problem
        sizes = Sizes(p.m, p.n * p.components, self.k_groups, p.k)
        return sizes, Strides.of(p), ByteOrder.of(p), *self.route.records


def _route(draft: Draft) -> Route:
    problem, source, context = draft.problem, draft.spec.b, draft.context
    # Sums of columns that are read in place are those of whole columns.
    whole = source is BSource.COLUMNS and draft.spec.epilogue.zero_a
    if splits(problem, context) and not whole:
        return SplitDepth.plan(draft)
    if is_dot(problem):
        return Dot.plan(draft)
    if source is BSource.COLUMNS:
        return Columns.plan(draft)
    direct, _ = is_direct(problem, draft.k_groups)
    if source is BSource.INPLACE and direct and streams_rows(problem, context):
        return RowStreaming.plan(draft)
    return Blocked.plan(draft)


def _check(plan: GemmPlan) -> None:
    # Judged by the size of one micropanel even where nothing is packed: operands that only strides
    # of zero make so deep would otherwise be multiplied for days.
    p, needed = plan.problem, max(plan.workspace_bytes, plan.spec.panel_row * plan.k_groups)
    if needed > _MAX_BYTES:
        raise MemoryError(
            f"jitgemm: workspace: m={p.m}, n={p.n}, k={p.k} would need {needed} bytes of scratch"
        )


def make_plan(problem: Problem, context: Context) -> GemmPlan:
    """Plan a product.

    Raises:
        MemoryError: the scratch of this shape is beyond any address space.
    """
    oriented, why = orientation(problem.normalized(), context)
    deep = splits(oriented, context)
    # By ranges of depth B comes one depth block at a time.
    depth = min(oriented.k, oriented.element.depth_block) if deep else oriented.k
    source, how_b = b_source(replace(oriented, k=depth), context)
    spec = spec_for(oriented, source, context)
    how = () if spec.arithmetic.plain else (str(spec.arithmetic),)
    threads = 1 if is_dot(oriented) else threads_for(oriented.operations, context)
    route = _route(Draft(oriented, spec, context, threads))
    if isinstance(route, Blocked) and reads_vectors(oriented, spec, route.a):
        spec, how = replace(spec, a_vectors=True), (*how, "A: by vectors of its rows, lane by lane")
    plan = GemmPlan(oriented, spec, threads, route, (why, how_b, *how))
    _check(plan)
    return plan
