"""The planner without a compiler: caches, processors, orientation, routes, loop bounds, scratch."""

# ruff: noqa: FBT001  # parameters of a test are named by its decorator

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitgemm.isa.tables import AVX2, AVX512, PORTABLE, Isa
from jitgemm.isa.types import F32, F64, ElementType
from jitgemm.kernels.spec import Activation, BSource, Epilogue
from jitgemm.planner.explain import explain
from jitgemm.planner.machine import (
    Cache,
    Machine,
    caches_from_cpuid,
    caches_from_sysfs,
    detect,
    usable_cpus,
)
from jitgemm.planner.problem import Operand, Problem
from jitgemm.planner.route import Context, GemmPlan, PackA, make_plan, threads_for
from jitgemm.tuning import KNOBS

SERVER = Machine(Cache(48 << 10, 64, 12), Cache(2 << 20, 64, 16), Cache(32 << 20, 64, 16), "test")
TINY = Machine(Cache(2 << 10, 64, 2), Cache(16 << 10, 64, 4), Cache(64 << 10, 64, 8), "test")


def context(
    threads: int = 1, isa: Isa = AVX512, machine: Machine = SERVER, **knobs: int
) -> Context:
    return Context(isa, machine, threads, lambda name: knobs.get(name, KNOBS[name].default))


def problem(
    m: int, n: int, k: int, *, element: ElementType = F32, orders: str = "CCC", **fields: Any
) -> Problem:
    """A dense problem; ``orders``: C or F for A, B, D, P for a prepacked B."""

    def operand(order: str, rows: int, cols: int) -> Operand:
        e = element.bytes
        return Operand(cols * e, e) if order == "C" else Operand(e, rows * e)

    a, b, d = orders
    return Problem(
        element, m, n, k, operand(a, m, k), None if b == "P" else operand(b, k, n),
        operand(d, m, n), **fields,
    )  # fmt: skip


# -- caches ---------------------------------------------------------------------------------------


class FakeCpuid:
    """Answers CPUID for a list of caches ``(type, level, ways, partitions, line, sets)``."""

    def __init__(self, vendor: int, leaf: int, caches: list[tuple[int, ...]], most: int) -> None:
        self.vendor, self.leaf, self.caches, self.most = vendor, leaf, caches, most

    def __call__(self, leaf: int, subleaf: int) -> tuple[int, int, int, int]:
        if leaf == self.leaf:
            if subleaf >= len(self.caches):
                return 0, 0, 0, 0
            kind, level, ways, partitions, line, sets = self.caches[subleaf]
            ebx = (ways - 1) << 22 | (partitions - 1) << 12 | (line - 1)
            return kind | level << 5 | 0x1C000100, ebx, sets - 1, 0
        if leaf in (0, 0x80000000):
            most = self.most if (self.most ^ leaf) < 1 << 31 else leaf
            return most, self.vendor, 0, 0
        raise AssertionError(f"leaf {leaf:#x} was not to be asked for")


GENUINE, AUTHENTIC = 0x756E6547, 0x68747541
INTEL = [
    (1, 1, 12, 1, 64, 64),
    (2, 1, 8, 1, 64, 64),
    (3, 2, 16, 1, 64, 2048),
    (3, 3, 20, 2, 64, 98304),
]
AMD = [(1, 1, 8, 1, 64, 64), (2, 1, 8, 1, 64, 64), (3, 2, 8, 1, 64, 2048), (3, 3, 16, 1, 64, 32768)]


def test_caches_of_intel() -> None:
    found = caches_from_cpuid(FakeCpuid(GENUINE, 4, INTEL, 0x20))
    l3 = Cache(20 * 2 * 64 * 98304, 64, 20)
    assert found == Machine(Cache(48 << 10, 64, 12), Cache(2 << 20, 64, 16), l3, "cpuid")


def test_caches_of_amd() -> None:
    found = caches_from_cpuid(FakeCpuid(AUTHENTIC, 0x8000001D, AMD, 0x80000028))
    assert found is not None
    assert (found.l1, found.l2) == (Cache(32 << 10, 64, 8), Cache(1 << 20, 64, 8))
    assert found.l3 == Cache(32 << 20, 64, 16)


def test_caches_that_a_hypervisor_hides() -> None:
    assert caches_from_cpuid(FakeCpuid(GENUINE, 4, [], 0x20)) is None
    assert caches_from_cpuid(FakeCpuid(GENUINE, 4, INTEL, 3)) is None  # no such leaf
    assert caches_from_cpuid(FakeCpuid(AUTHENTIC, 0x8000001D, AMD, 0x80000008)) is None
    assert caches_from_cpuid(FakeCpuid(GENUINE, 4, INTEL[1:], 0x20)) is None  # no data cache
    only_l1 = caches_from_cpuid(FakeCpuid(GENUINE, 4, INTEL[:1], 0x20))
    assert only_l1 is not None
    assert only_l1.l2.size > only_l1.l1.size
    assert only_l1.l3.size == 4 * only_l1.l2.size


def test_endless_lists_of_caches_end() -> None:
    found = caches_from_cpuid(FakeCpuid(GENUINE, 4, INTEL * 100, 0x20))
    assert found is not None
    assert found.l1.size == 48 << 10


def _sysfs(root: Path, *caches: tuple[str, int, str, int, int]) -> Path:
    for i, (kind, level, size, line, ways) in enumerate(caches):
        folder = root / f"index{i}"
        folder.mkdir()
        files = {"type": kind, "level": level, "size": size, "coherency_line_size": line,
                 "ways_of_associativity": ways}  # fmt: skip
        for name, value in files.items():
            (folder / name).write_text(f"{value}\n")
    return root


def test_caches_from_sysfs(tmp_path: Path) -> None:
    root = _sysfs(
        tmp_path, ("Data", 1, "48K", 64, 12), ("Instruction", 1, "64K", 64, 8),
        ("Unified", 2, "2048K", 64, 16), ("Unified", 3, "1G", 128, 0),
    )  # fmt: skip
    want = Machine(Cache(48 << 10, 64, 12), Cache(2 << 20, 64, 16), Cache(1 << 30, 128, 1), "sysfs")
    assert caches_from_sysfs(root) == want


def test_caches_from_a_broken_sysfs(tmp_path: Path) -> None:
    assert caches_from_sysfs(tmp_path / "nowhere") is None
    root = _sysfs(tmp_path, ("Data", 1, "32K", 64, 8), ("Unified", 2, "unknown", 64, 8))
    assert caches_from_sysfs(root) is None
    (root / "index1" / "size").unlink()
    assert caches_from_sysfs(root) is None


def test_detection_goes_from_cpuid_to_sysfs_to_assumptions(monkeypatch: pytest.MonkeyPatch) -> None:
    from jitgemm.planner import machine

    good, hidden = FakeCpuid(GENUINE, 4, INTEL, 0x20), FakeCpuid(GENUINE, 4, [], 0x20)
    assert detect(good).source == "cpuid"
    monkeypatch.setattr(machine, "caches_from_sysfs", lambda: TINY)
    assert detect(hidden) is TINY
    assert detect() is TINY
    monkeypatch.setattr(machine, "caches_from_sysfs", lambda: None)
    assumed = detect(hidden)
    assert assumed.source == "assumed"
    assert 0 < assumed.l1.size < assumed.l2.size < assumed.l3.size


# -- processors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, cpus",
    [
        ("max 100000", 8), ("100000 100000", 1), ("150000 100000", 2), ("50000 100000", 1),
        ("1000 100000", 1), ("1600000 100000", 8), ("400001 100000", 5), ("", 8), ("junk", 8),
        ("100000", 8), ("x y", 8),
    ],
)  # fmt: skip
def test_quota_of_cgroups(
    text: str, cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    (tmp_path / "cpu.max").write_text(text + "\n")
    assert usable_cpus(tmp_path) == cpus


@pytest.mark.parametrize(
    "quota, period, cpus",
    [("-1", "100000", 8), ("250000", "100000", 3), ("10", "100000", 1), ("x", "1", 8)],
)  # fmt: skip
def test_quota_of_old_cgroups(
    quota: str, period: str, cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text(period)
    assert usable_cpus(tmp_path) == cpus


@pytest.mark.parametrize(
    "outer, inner, cpus",
    [("max 100000", "200000 100000", 2), ("300000 100000", "max 100000", 3),
     ("100000 100000", "400000 100000", 1), ("max 100000", "max 100000", 8)],
)  # fmt: skip
def test_quota_of_nested_cgroups(
    outer: str, inner: str, cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    own, listing = tmp_path / "system.slice" / "job.service", tmp_path / "listing"
    own.mkdir(parents=True)
    (own.parent / "cpu.max").write_text(outer)
    (own / "cpu.max").write_text(inner)
    listing.write_text("0::/system.slice/job.service\n")
    assert usable_cpus(tmp_path, listing) == cpus


def test_affinity_and_platforms_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert usable_cpus(tmp_path) == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cpus(tmp_path) == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cpus(tmp_path) == 1


# -- problems -------------------------------------------------------------------------------------


def test_axes_of_length_1_have_no_stride_of_their_own() -> None:
    odd = Operand(12_345, -9)
    p = Problem(F32, 1, 1, 1, odd, odd, odd, c=odd).normalized()
    assert {p.a, p.b, p.c, p.d} == {Operand(4, 4)}
    p = Problem(F64, 1, 5, 3, Operand(99, 16), Operand(40, 8), Operand(77, 8)).normalized()
    assert (p.a, p.b, p.d) == (Operand(24, 16), Operand(40, 8), Operand(40, 8))
    p = Problem(F64, 5, 1, 3, Operand(24, 8), Operand(16, 77), Operand(64, -7)).normalized()
    assert (p.a, p.b, p.d) == (Operand(24, 8), Operand(16, 8), Operand(64, 8))


def test_a_problem_transposed_twice_is_itself() -> None:
    p = problem(5, 7, 3, orders="CFC", c=Operand(28, 4), in_place=True,
                epilogue=Epilogue(beta=True, activation=Activation.RELU))  # fmt: skip
    turned = p.transposed()
    assert (turned.m, turned.n, turned.k) == (7, 5, 3)
    assert turned.d == Operand(4, 28)
    assert turned.c == Operand(4, 28)
    assert turned.operations == p.operations == 2 * 5 * 7 * 3
    assert turned.transposed() == p.normalized()
    for tied in (replace(p, b=None), replace(p, epilogue=Epilogue(bias=True))):
        with pytest.raises(ValueError, match="orientation"):
            tied.transposed()


# -- routes ---------------------------------------------------------------------------------------


def _because(plan: GemmPlan, words: str) -> None:
    assert any(words in reason for reason in plan.reasons), plan.reasons


def test_orientation() -> None:
    plan = make_plan(problem(50, 60, 70), context())
    assert not plan.swapped
    _because(plan, "D is row-major")
    plan = make_plan(problem(50, 60, 70, orders="CCF"), context())
    assert plan.swapped
    assert (plan.problem.m, plan.problem.n) == (60, 50)
    _because(plan, "D^T = B^T A^T")
    plan = make_plan(problem(1, 60, 70, orders="CFC"), context())
    assert plan.swapped
    _because(plan, "one row and a column-major B")
    for tied in (problem(50, 60, 70, orders="CPF"),
                 problem(50, 60, 70, orders="CCF", epilogue=Epilogue(bias=True))):  # fmt: skip
        plan = make_plan(tied, context())
        assert not plan.swapped
        assert not plan.direct
        _because(plan, "ties the orientation")
        _because(plan, "no unit stride")


def test_source_of_b() -> None:
    for p, source, words in (
        (problem(1, 60, 70), BSource.INPLACE, "in place"),
        (problem(9, 60, 70, orders="CFC"), BSource.PACKED, "not contiguous"),
        (problem(9, 60, 70, orders="CPC"), BSource.PACKED, "prepacked"),
        (problem(3000, 4000, 3000), BSource.PACKED, "packed per call"),
    ):
        plan = make_plan(p, context())
        assert plan.spec.b is source
        _because(plan, words)
        assert (plan.workspace_b > 0) == (
            "P" not in str(p.b) and source is BSource.PACKED and p.b is not None
        )


def test_the_threshold_of_packing_b_is_a_knob() -> None:
    # Rows of B a whole number of pages apart: the knob itself is the limit.
    for limit in (1, 7, 32):
        for rows in (limit, limit + 1):
            plan = make_plan(problem(rows, 1024, 50), context(rhs_pack_rows=limit))
            assert (plan.spec.b is BSource.INPLACE) == (rows <= limit)


def test_packing_of_a() -> None:
    wide = context(lhs_pack_stride=2048, lhs_pack_reuse=4)
    assert make_plan(problem(100, 300, 70), wide).pack_a is PackA.INPLACE
    plan = make_plan(problem(1000, 300, 70, orders="FCC"), wide)
    assert plan.pack_a is PackA.PANELS
    _because(plan, "TLB")
    assert plan.workspace_a_stride > 0
    few = make_plan(problem(1000, 40, 70, orders="FCC"), wide)
    assert few.pack_a is PackA.INPLACE
    _because(few, "micropanels reuse it")
    # Rows a multiple of the way size apart share sets of L1.
    apart = replace(problem(100, 300, 70), a=Operand(4 << 10, 4))
    for ways, packing in ((4, PackA.ROWS), (12, PackA.INPLACE), (64, PackA.INPLACE)):
        l1 = Cache(4096 * ways, 64, ways)
        plan = make_plan(apart, context(machine=replace(SERVER, l1=l1)))
        assert plan.pack_a is packing
        if ways == 12:
            assert plan.blocking.tile_rows <= 10
            _because(plan, "share L1 sets")


def test_where_sums_rest() -> None:
    beta = Epilogue(beta=True)

    def direct(
        k: int, *, in_place: bool = False, c: Operand | None = None, orders: str = "CCC"
    ) -> bool:
        p = problem(
            50, 60, k, orders=orders, epilogue=beta, in_place=in_place, c=c or Operand(240, 4)
        )
        plan = make_plan(p, context())
        assert plan.direct or plan.blocking.slices == 1
        return plan.direct

    assert direct(700)
    assert direct(512, in_place=True)
    assert not direct(513, in_place=True)
    assert not direct(3, c=Operand(4, 200))
    plan = make_plan(replace(problem(50, 60, 3), d=Operand(480, 8)), context())
    assert not plan.direct


def test_threads_follow_the_work() -> None:
    for threads in (1, 2, 64):
        c = context(threads, parallel_flops=1000)
        assert threads_for(0, c) == 1
        assert threads_for(1999, c) == 1
        assert threads_for(2000, c) == min(2, threads)
        assert threads_for(10**9, c) == threads
        assert threads_for(10**9, context(threads, parallel_flops=0)) == threads
    assert make_plan(problem(3, 3, 3), context(8)).threads == 1
    assert make_plan(problem(2000, 2000, 2000), context(8)).threads == 8


def test_impossible_scratch() -> None:
    for p in (problem(40, 3, 2**55, orders="CFC"), problem(3, 3, 2**56), problem(40, 3, 2**60)):
        with pytest.raises(MemoryError, match=r"^jitgemm: workspace: m=.*bytes of scratch"):
            make_plan(p, context())


@pytest.mark.parametrize("orders", ["CCC", "CFC", "CPC", "FCF"])
def test_explanations_name_everything(orders: str) -> None:
    plan = make_plan(problem(300, 400, 1100, orders=orders), context(4, parallel_flops=1))
    text = explain(plan, SERVER)
    for part in (plan.spec.symbol, "threads   4", "3 chain(s) of at most 512", "bound     ",
                 "300 x 1100 @ 1100 x 400" if orders != "FCF" else "400 x 1100 @ 1100 x 300",
                 *plan.reasons):  # fmt: skip
        assert part in text
    assert ("operands exchanged" in text) == plan.swapped
    assert "memory:" in explain(make_plan(problem(1, 4000, 4000), context()), SERVER)
    assert "compute:" in explain(make_plan(problem(1000, 1000, 1000), context()), SERVER)
    assert "fit in L2" in explain(make_plan(problem(9, 9, 9), context()), SERVER)


# -- loop bounds: everything is done once ---------------------------------------------------------


@dataclass(frozen=True)
class Ticket:
    """One unit of work as the nest derives it from a ticket's number."""

    packing: bool
    rows: tuple[int, int]
    cols: tuple[int, int]
    depth: tuple[int, int]
    block: tuple[int, int]


def _span(index: int, length: int, total: int) -> tuple[int, int]:
    return index * length, min(index * length + length, total)


def _tickets(plan: GemmPlan) -> Iterator[Ticket]:
    """What `kernels.nest` computes, in Python."""
    p, b = plan.problem, plan.blocking
    per_slice = b.pack_chunks + b.row_chunks * b.col_chunks
    for t in range(per_slice * b.slices * b.blocks):
        index, within = divmod(t, per_slice)
        block = _span(index // b.slices, b.cols_per_block, p.n)
        depth = _span(index % b.slices, b.depth_per_slice, p.k)
        if within < b.pack_chunks:
            j0 = block[0] + within * b.pack_cols
            yield Ticket(True, (0, 0), (j0, min(j0 + b.pack_cols, block[1])), depth, block)
            continue
        row, col = divmod(within - b.pack_chunks, b.col_chunks)
        j0 = block[0] + col * b.cols_per_chunk
        cols = (j0, min(j0 + b.cols_per_chunk, block[1]))
        yield Ticket(False, _span(row, b.rows_per_chunk, p.m), cols, depth, block)


def _tiles_exactly(spans: list[tuple[int, int]], total: int) -> None:
    """Distinct non-empty spans follow one another from 0 to ``total``."""
    ordered = sorted({s for s in spans if s[0] < s[1]})
    assert [s[0] for s in ordered] == [0, *(s[1] for s in ordered[:-1])][: len(ordered)]
    assert (ordered[-1][1] if ordered else 0) == total


def check_plan(plan: GemmPlan) -> None:
    """Every element is computed once per slice of depth, from operands packed once."""
    p, b, spec = plan.problem, plan.blocking, plan.spec
    nr, block = spec.nr, spec.element.depth_block
    work, packing = [], []
    for t in _tickets(plan):
        (packing if t.packing else work).append(t)

    # Each (rows, cols, depth) cell once; cells are grids, so one axis at a time will do.
    cells = Counter(
        (t.rows, t.cols, t.depth) for t in work if t.rows[0] < t.rows[1] and t.cols[0] < t.cols[1]
    )
    assert all(count == 1 for count in cells.values())
    area = sum((r1 - r0) * (c1 - c0) for (r0, r1), (c0, c1), _ in cells)
    assert area == p.m * p.n * b.slices
    _tiles_exactly([t.rows for t in work], p.m)
    _tiles_exactly([t.cols for t in work], p.n)
    if p.k:
        _tiles_exactly([t.depth for t in work], p.k)
    assert b.slices == 1 or plan.direct
    for t in work:
        assert t.depth[0] < t.depth[1] or p.k == 0
        assert t.depth[0] % block == 0, "a slice must begin with a block of the documented order"
        assert (t.cols[0] - t.block[0]) % nr == 0, "a chunk must begin with a micropanel"

    # Chunks are whole tiles, tiles are within the register file.
    assert 1 <= b.tile_rows <= spec.tile.mr
    assert b.row_chunks == 1 or b.rows_per_chunk % b.tile_rows == 0
    assert b.col_chunks == 1 or b.cols_per_chunk % nr == 0
    assert (b.group, b.tile_rows) in spec.tile.variants()
    assert b.depth_step % block == 0 or b.depth_step >= p.k
    assert b.depth_step <= max(b.depth_per_slice, 1)

    # Packed B: every column of a block once, inside the scratch.
    per_call = spec.b is BSource.PACKED and p.b is not None
    assert bool(packing) == (b.pack_chunks > 0) == per_call
    assert plan.workspace_b % 64 == 0
    if per_call:
        assert b.cols_per_block % nr == 0
        assert b.pack_cols % nr == 0
        _tiles_exactly([t.cols for t in packing], p.n)
        assert plan.panel_stride == spec.panel_row * b.depth_per_slice
        for t in packing:
            panels = -(-(t.cols[1] - t.block[0]) // nr)
            assert panels * plan.panel_stride <= plan.workspace_b or t.cols[0] >= t.cols[1]
    else:
        assert plan.workspace_b == 0

    # Packed A: a chunk's rows, over a slice's depth, inside a thread's share.
    size = spec.element.bytes
    if plan.pack_a is PackA.INPLACE:
        assert plan.workspace_a_stride == 0
        assert (plan.a_row, plan.a_col) == (p.a.row, p.a.col)
    else:
        tiles = -(-min(b.rows_per_chunk, p.m) // b.tile_rows)
        rows = tiles * b.tile_rows if plan.pack_a is PackA.PANELS else min(b.rows_per_chunk, p.m)
        per_row = b.depth_per_slice * size if plan.pack_a is PackA.PANELS else plan.a_row
        assert rows * per_row <= plan.workspace_a_stride
        assert plan.a_tile == b.tile_rows * per_row
        assert plan.workspace_a_stride % 64 == 0
    assert plan.workspace_bytes == plan.workspace_b + plan.threads * plan.workspace_a_stride


sizes = st.one_of(
    st.integers(1, 80), st.integers(81, 2500), st.sampled_from([512, 513, 1024, 1025])
)


@settings(deadline=None, max_examples=400, database=None)
@given(
    sizes, sizes, st.one_of(st.just(0), sizes), st.sampled_from([F32, F64]),
    st.sampled_from([AVX512, AVX2, PORTABLE]), st.sampled_from([SERVER, TINY]),
    st.sampled_from([1, 2, 3, 8, 64]), st.sampled_from(["".join(x) for x in
     (a + b + d for a in "CF" for b in "CFP" for d in "CF")]), st.booleans(), st.booleans(),
    st.sampled_from([1, 32, 10**6]), st.sampled_from([4, 2048]),
)  # fmt: skip
def test_every_plan_does_everything_once(
    m: int, n: int, k: int, element: ElementType, isa: Isa, machine: Machine, threads: int,
    orders: str, beta: bool, in_place: bool, pack_rows: int, pack_stride: int,
) -> None:  # fmt: skip
    p = problem(m, n, k, element=element, orders=orders, epilogue=Epilogue(beta=beta))
    if beta:
        p = replace(p, c=p.d, in_place=in_place)
    made = context(threads, isa, machine, parallel_flops=1000, rhs_pack_rows=pack_rows,
                   lhs_pack_stride=pack_stride, lhs_pack_reuse=1)  # fmt: skip
    check_plan(make_plan(p, made))


@pytest.mark.parametrize("isa", [AVX512, AVX2, PORTABLE], ids=lambda isa: isa.name)
@pytest.mark.parametrize("orders", ["FCC", "FPC", "FFC", "CCC"])
def test_packed_rows_of_a_fit_into_their_scratch(isa: Isa, orders: str) -> None:
    for m in range(1, 130):
        for threads in (1, 3):
            made = context(threads, isa, lhs_pack_stride=4, lhs_pack_reuse=1, parallel_flops=1)
            check_plan(make_plan(problem(m, 50, 40, orders=orders), made))


@pytest.mark.parametrize(
    "field, change",
    [
        ("row_chunks", -1), ("rows_per_chunk", -1), ("rows_per_chunk", 1), ("col_chunks", -1),
        ("cols_per_chunk", -1), ("cols_per_chunk", -32), ("slices", -1), ("slices", 1),
        ("depth_per_slice", 1), ("depth_per_slice", -512), ("cols_per_block", -32),
        ("pack_chunks", -1), ("pack_cols", -32), ("pack_cols", 1), ("tile_rows", 1),
        ("depth_step", 7),
    ],
)  # fmt: skip
def test_the_checker_sees_gaps_and_overlaps(field: str, change: int) -> None:
    plan = make_plan(problem(1000, 400, 1100, orders="CFC"), context(4, parallel_flops=1))
    assert (plan.spec.nr, plan.blocking.cols_per_block, plan.blocking.slices) == (32, 416, 2)
    plan = replace(plan, blocking=replace(plan.blocking, cols_per_chunk=128, col_chunks=4))
    check_plan(plan)
    bad = replace(plan.blocking, **{field: getattr(plan.blocking, field) + change})
    with pytest.raises((AssertionError, ZeroDivisionError)):
        check_plan(replace(plan, blocking=bad))


def test_same_problem_same_plan() -> None:
    assert make_plan(problem(300, 400, 1100), context(4)) == make_plan(
        problem(300, 400, 1100), context(4)
    )
