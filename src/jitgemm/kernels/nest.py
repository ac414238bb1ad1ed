"""The loop nest: five loops around the microkernel, compiled as one function per spec.

The loops are those of BLIS (F. Van Zee and R. van de Geijn, ACM TOMS 41:3, 2015), counted from the
outermost, fifth one:

    for jc in blocks of columns            (loop 5; what is packed at a time)
      for pc in slices of depth            (loop 4)
        [pack B]                           tickets of the packing phase
        for ic, jc' in blocks              (loop 3; tickets of the product phase)
          [pack rows of A]           unless this thread's region holds them
          macrokernel                      (loops 2 and 1: kernels.macro)

Threads share loops 5 to 3 by tickets (``kernels.tickets``): a ticket's number says which rounds of
the loops it is.  All phases of a slice are done before the next slice begins.
"""

from __future__ import annotations

from dataclasses import dataclass

from jitgemm.kernels.job import JOB
from jitgemm.kernels.macro import call_block, macrokernel
from jitgemm.kernels.operands import pack_a, pack_b
from jitgemm.kernels.spec import BSource, GemmSpec
from jitgemm.kernels.tickets import drain, span
from jitgemm.lang.core import Function, Int, Kernel, Ptr, Var, parameters
from jitgemm.lang.record import View

__all__ = ["nest", "serial"]


@dataclass(frozen=True, slots=True)
class _Slice:
    """One round of loops 5 and 4: columns ``jc0 .. jc1`` over the depth ``pc0 .. pc1``."""

    jc0: Int
    jc1: Int
    pc0: Int
    pc1: Int
    pc: Int
    """The number of the slice."""

    def packed(self, k: Kernel, spec: GemmSpec, job: View, j: Int) -> Ptr:
        """Where the micropanel of column ``j`` begins in packed B, at this slice's depth."""
        # Of a B that the call packs, each block of columns starts over; a handle has them all.
        first = k.select(job.int("pack_chunks") > 0, self.jc0, k.const(0))
        at = job.pointer("packed") + self.pc0 * job.int("slice_stride")
        return at + (j - first) // spec.nr * job.int("panel_stride")


def nest(spec: GemmSpec) -> Function:
    """The whole product, drained by any number of threads: ``nest(job, thread)``."""

    def body(k: Kernel, job_at: Ptr, thread: Int) -> None:
        job = JOB.view(k, job_at)
        slices, packing = job.int("slices"), job.int("pack_chunks")
        per_slice = packing + job.int("row_chunks") * job.int("col_chunks")

        def ready(ticket: Int) -> Int:
            """Packing waits for the slices before, a product also for its own slice's packing."""
            within = ticket % per_slice
            return ticket - within + k.select(within < packing, k.const(0), packing)

        # The rows of A that this thread's region holds, as the number of their chunk and slice:
        # tickets of the same rows follow each other, and only the first packs them.
        held = k.var(k.const(-1))

        def work(ticket: Int) -> None:
            index, within = ticket // per_slice, ticket % per_slice
            jc = span(k, index // slices, job.int("cols_per_block"), job.int("n"))
            pc = span(k, index % slices, job.int("depth_per_slice"), job.int("k_groups"))
            here = _Slice(*jc, *pc, index % slices)
            if spec.b is not BSource.PACKED:
                _product(k, spec, job, here, (thread, within, held))
                return
            for packs in k.branches(within < packing):
                if packs:
                    _pack(k, spec, job, here, within)
                else:
                    _product(k, spec, job, here, (thread, within - packing, held))

        total = per_slice * slices * job.int("blocks")
        drain(k, job.pointer("counters"), total, ready, work)

    return Function(spec.symbol, parameters("job* thread"), body)


def _pack(k: Kernel, spec: GemmSpec, job: View, here: _Slice, ticket: Int) -> None:
    """Pack some micropanels of a slice of B."""
    j0 = here.jc0 + ticket * job.int("pack_cols")
    j1 = k.min(j0 + job.int("pack_cols"), here.jc1)
    for _ in k.when(j0 < j1):
        target = here.packed(k, spec, job, j0)
        k.call(pack_b(spec), job.ptr, target, j0, j1, here.pc0, here.pc1)


def _product(
    k: Kernel, spec: GemmSpec, job: View, here: _Slice, who: tuple[Int, Int, Var[Int]]
) -> None:
    """Loop 3: one block of rows by some columns of a slice.

    ``who`` is the thread, the ticket, and the rows that the thread's region holds.
    """
    (thread, ticket, held), across = who, job.int("col_chunks")
    i0, i1 = span(k, ticket // across, job.int("rows_per_chunk"), job.int("m"))
    j0 = here.jc0 + ticket % across * job.int("cols_per_chunk")
    j1 = k.min(j0 + job.int("cols_per_chunk"), here.jc1)
    if spec.b is BSource.PACKED:
        b = here.packed(k, spec, job, j0)
    else:
        b = (
            job.pointer("b")
            + j0 // spec.components * job.int("b_col")
            + here.pc0 * job.int("b_row")
        )
    own = job.pointer("a") + i0 * job.int("source_row") + here.pc0 * job.int("source_col")
    for _ in k.when((i0 < i1) & (j0 < j1)):
        a = k.var(own)
        for _ in k.when(job.int("pack_a") > 0):
            a.value = job.pointer("workspace_a") + thread * job.int("workspace_a_stride")
            rows = here.pc * job.int("row_chunks") + ticket // across
            for _ in k.when(held.value.differs(rows)):
                k.call(pack_a(spec), job.ptr, own, a.value, i1 - i0, here.pc1 - here.pc0)
                held.value = rows
        bounds = i0, i1, j0, j1, here.pc0, here.pc1
        call_block(k, macrokernel(spec), job, (a.value, b), bounds)


def serial(spec: GemmSpec) -> Function:
    """The whole product as one block, for small products: same arguments as the nest."""

    def body(k: Kernel, job_at: Ptr, thread: Int) -> None:  # noqa: ARG001  # nest's ABI
        job, zero = JOB.view(k, job_at), k.const(0)
        b = job.pointer("packed" if spec.b is BSource.PACKED else "b")
        bounds = zero, job.int("m"), zero, job.int("n"), zero, job.int("k_groups")
        call_block(k, macrokernel(spec), job, (job.pointer("a"), b), bounds)

    return Function(f"{spec.symbol}_serial", parameters("job* thread"), body)
