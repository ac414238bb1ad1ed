"""The planner without a compiler: orientation, routes, loop bounds, scratch."""

# ruff: noqa: FBT001  # parameters of a test are named by its decorator

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitgemm.isa.tables import AVX2, AVX512, AVX512_AMX, AVX512_BF16, PORTABLE, Isa
from jitgemm.isa.types import BF16, F16, F32, F64, I8, I16, I32, I64, U8, ElementType
from jitgemm.kernels.arithmetic import OperandTypes, sum_type
from jitgemm.kernels.exports import gemm_functions
from jitgemm.kernels.expression import ACTIVATIONS
from jitgemm.kernels.job import DATA, JOB, POINTERS
from jitgemm.kernels.registry import columns_tile, tile_for
from jitgemm.kernels.spec import Bias, BSource, Epilogue
from jitgemm.planner.batching import make_batch_plan
from jitgemm.planner.blocking import Blocking
from jitgemm.planner.explain import explain
from jitgemm.planner.folding import Axis, Stack
from jitgemm.planner.machine import Cache, Machine
from jitgemm.planner.problem import Operand, Problem
from jitgemm.planner.records import ByteOrder, Modes, Panels, Sizes, Strides, WalkA
from jitgemm.planner.route import (
    Blocked,
    Columns,
    Context,
    Dot,
    GemmPlan,
    PackA,
    RowStreaming,
    SplitDepth,
    make_plan,
    threads_for,
)
from jitgemm.planner.splitting import Split
from jitgemm.tuning import KNOBS

SERVER = Machine(Cache(48 << 10, 64, 12), Cache(2 << 20, 64, 16), Cache(32 << 20, 64, 16), "test")
MESH = replace(SERVER, l3=Cache(300 << 20, 64, 20))
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
        e = element.bytes * fields.get("components", 1)
        return Operand(cols * e, e) if order == "C" else Operand(e, rows * e)

    a, b, d = orders
    return Problem(
        element, m, n, k, operand(a, m, k), None if b == "P" else operand(b, k, n),
        operand(d, m, n), **fields,
    )  # fmt: skip


# -- problems -------------------------------------------------------------------------------------


def test_axes_of_length_1_have_no_stride_of_their_own() -> None:
    odd = Operand(12_345, -9)
    p = Problem(F32, 1, 1, 1, odd, odd, odd, c=odd).normalized()
    assert {p.a, p.b, p.c, p.d} == {Operand(4, 4)}
    p = Problem(F64, 1, 5, 3, Operand(99, 16), Operand(40, 8), Operand(77, 8)).normalized()
    assert (p.a, p.b, p.d) == (Operand(24, 16), Operand(40, 8), Operand(40, 8))
    p = Problem(F64, 5, 1, 3, Operand(24, 8), Operand(16, 77), Operand(64, -7)).normalized()
    assert (p.a, p.b, p.d) == (Operand(24, 8), Operand(16, 8), Operand(64, 8))


def test_axes_of_length_1_of_complex_matrices() -> None:
    odd = Operand(12_345, -9)
    p = Problem(F32, 1, 1, 1, odd, odd, odd, c=odd, components=2).normalized()
    assert {p.a, p.b, p.c, p.d} == {Operand(8, 8)}
    assert p.operations == 8


def test_a_problem_transposed_twice_is_itself() -> None:
    relu = ACTIVATIONS["relu"]
    p = problem(5, 7, 3, orders="CFC", c=Operand(28, 4), in_place=True, bias=Operand(0, 12),
                epilogue=Epilogue(True, Bias.COLUMN, relu))  # fmt: skip
    turned = p.transposed()
    assert (turned.m, turned.n, turned.k) == (7, 5, 3)
    assert turned.exchanged
    assert turned.d == Operand(4, 28)
    assert turned.c == Operand(4, 28)
    assert turned.bias == Operand(12, 0)
    assert turned.epilogue == Epilogue(True, Bias.ROW, relu)
    assert turned.operations == p.operations == 2 * 5 * 7 * 3
    assert turned.transposed() == p.normalized()
    swapped = replace(p, a=replace(p.a, swapped=True), bias=Operand(0, 12, swapped=True))
    turned = swapped.transposed()
    assert turned.b is not None
    assert turned.bias is not None
    assert (turned.b.swapped, turned.a.swapped, turned.bias.swapped) == (True, False, True)
    full = replace(p, epilogue=Epilogue(bias=Bias.FULL)).transposed()
    assert full.epilogue.bias is Bias.FULL
    with pytest.raises(ValueError, match="orientation"):
        replace(p, b=None).transposed()


# -- routes ---------------------------------------------------------------------------------------


def _because(plan: GemmPlan, words: str) -> None:
    assert any(words in reason for reason in plan.reasons), plan.reasons


def test_orientation() -> None:
    plan = make_plan(problem(50, 60, 70), context())
    assert not plan.exchanged
    _because(plan, "D is row-major")
    plan = make_plan(problem(50, 60, 70, orders="CCF"), context())
    assert plan.exchanged
    assert (plan.problem.m, plan.problem.n) == (60, 50)
    _because(plan, "D^T = B^T A^T")
    biased = problem(50, 60, 70, orders="CCF", bias=Operand(0, 4),
                     epilogue=Epilogue(bias=Bias.COLUMN))  # fmt: skip
    plan = make_plan(biased, context())
    assert plan.exchanged
    assert plan.spec.epilogue.bias is Bias.ROW
    plan = make_plan(problem(50, 60, 70, orders="CPF"), context())
    assert not plan.exchanged
    assert not plan.route.modes.direct
    _because(plan, "ties the orientation")
    _because(plan, "no unit stride")


def test_one_column_is_computed_as_one_row() -> None:
    # Along the rows of A, whatever the layout of D, which has no stride of its own there.
    for orders, source in (("CCC", BSource.COLUMNS), ("FCC", BSource.INPLACE)):
        plan = make_plan(problem(50, 1, 70, orders=orders), context())
        assert plan.exchanged
        assert (plan.problem.m, plan.problem.n) == (1, 50)
        assert plan.spec.b is source
        _because(plan, "D is one column")
    assert not make_plan(problem(50, 1, 70, orders="CPC"), context()).exchanged
    assert not make_plan(problem(1, 1, 70), context()).exchanged


def test_few_rows_beside_one_column_are_computed_as_given() -> None:
    for m in (2, 3, 4):
        assert not make_plan(problem(m, 1, 70), context()).exchanged
    assert make_plan(problem(5, 1, 70), context()).exchanged


def test_what_fills_vectors_better_takes_the_place_of_b() -> None:
    # The rows of A^T are contiguous; those of D would fill less of their vectors.
    for m, n, k, orders in (
        (500, 3, 70, "FCC"), (500, 20, 100, "FCC"), (16, 4, 500, "FFC"), (64, 64, 2000, "FFC"),
    ):  # fmt: skip
        plan = make_plan(problem(m, n, k, orders=orders), context())
        assert plan.exchanged
        assert (plan.problem.m, plan.problem.n) == (n, m)
        _because(plan, "fills vectors better")
    for m, n, k, orders in (
        (500, 3, 70, "CCC"), (500, 64, 70, "FCC"), (3, 3, 70, "FCC"), (500, 3, 2, "FCC"),
        (500, 3, 100_000, "FCC"), (9000, 20, 9000, "FCC"), (300, 64, 70, "FFC"),
    ):  # fmt: skip
        assert not make_plan(problem(m, n, k, orders=orders), context()).exchanged, (m, n, k)


def test_source_of_b() -> None:
    for p, source, words in (
        (problem(1, 60, 70), BSource.INPLACE, "in place"),
        (problem(1, 60, 70, orders="CFC"), BSource.COLUMNS, "transposed in registers"),
        (problem(9, 60, 70, orders="CFC"), BSource.PACKED, "not contiguous"),
        (problem(1, 60, 0, orders="CFC"), BSource.PACKED, "not contiguous"),
        (problem(9, 60, 70, orders="CPC"), BSource.PACKED, "prepacked"),
        (problem(3000, 4000, 3000), BSource.PACKED, "packed per call"),
    ):
        plan = make_plan(p, context())
        assert plan.spec.b is source
        _because(plan, words)
        per_call = source is BSource.PACKED and p.b is not None
        assert (plan.workspace_b > 0) == per_call


@pytest.mark.parametrize("isa", [AVX512, AVX2, PORTABLE], ids=lambda isa: isa.name)
@pytest.mark.parametrize("components", [1, 2])
def test_the_rows_up_to_which_columns_are_turned_are_a_knob(isa: Isa, components: int) -> None:
    most = columns_tile(tile_for(F32, isa, components), isa, components).mr
    for knob in (0, 1, 4, 9):
        # More rows than a tile has would turn B once more for each.
        limit = min(knob, most)
        for rows in {1, limit, limit + 1} - {0}:
            p = problem(rows, 60, 70, orders="CFC", components=components)
            plan = make_plan(p, context(isa=isa, rhs_transpose_rows=knob))
            turned = rows <= limit
            assert (plan.spec.b is BSource.COLUMNS) == turned
            if not turned:
                continue
            _because(plan, f"transposed in registers up to {limit} rows")
            # Blocks of B and sums share the register file; columns are a column stride apart.
            assert plan.spec.tile == columns_tile(tile_for(F32, isa, components), isa, components)
            assert plan.blocking.tile_rows <= plan.spec.tile.mr
            assert plan.route.b.panel_stride == plan.spec.nr // components * 70 * 4 * components
            assert (plan.workspace_b, plan.workspace_bytes) == (0, 0)
            assert plan.spec.symbol in explain(plan, SERVER)
            assert "_gemm_columns_" in plan.spec.symbol


def test_a_foreign_b_is_packed() -> None:
    for orders in ("CCC", "CFC"):
        p = problem(2, 60, 70, orders=orders)
        assert p.b is not None
        plan = make_plan(replace(p, b=replace(p.b, swapped=True)), context())
        assert plan.spec.b is BSource.PACKED
        _because(plan, "puts its bytes in order")
        assert "B: packed per call, which puts its bytes in order" in explain(plan, SERVER)


def test_a_foreign_a_is_packed() -> None:
    p = problem(2, 5, 3)
    plan = make_plan(replace(p, a=replace(p.a, swapped=True)), context())
    assert plan.route.a.pack_a is PackA.PANELS
    _because(plan, "A: packed per chunk, which puts its bytes in order")
    check_plan(plan)


def test_foreign_results_go_through_a_buffer() -> None:
    p = problem(20, 30, 40, c=Operand(120, 4), bias=Operand(120, 4),
                epilogue=Epilogue(True, Bias.FULL))  # fmt: skip
    assert make_plan(p, context()).route.modes.direct
    for field in ("c", "d", "bias"):
        plan = make_plan(replace(p, **{field: Operand(120, 4, swapped=True)}), context())
        assert not plan.route.modes.direct
        _because(plan, "an operand is byte-swapped")
    # A bias per column or row is put in order apart.
    row = replace(p, bias=Operand(0, 4, swapped=True), epilogue=Epilogue(True, Bias.COLUMN))
    assert make_plan(row, context()).route.modes.direct
    assert not make_plan(replace(p, bias=Operand(4, 80)), context()).route.modes.direct


def test_streamed_rows_read_their_bias_along_with_the_columns() -> None:
    p = problem(1, 4000, 4000)
    for kind, bias, streams in (
        (Bias.NONE, None, True), (Bias.COLUMN, Operand(0, 4), True),
        (Bias.COLUMN, Operand(0, 0), False), (Bias.COLUMN, Operand(0, 8), False),
        (Bias.COLUMN, Operand(0, 4, swapped=True), False), (Bias.ROW, Operand(4, 0), True),
        (Bias.FULL, Operand(16_000, 4), True),
    ):  # fmt: skip
        plan = make_plan(replace(p, bias=bias, epilogue=Epilogue(bias=kind)), context())
        assert isinstance(plan.route, RowStreaming) == streams


# -- columns transposed in registers ---------------------------------------------------------------


def _columns(n: int, k: int, rows: int = 2, **fields: Any) -> Problem:
    """A B whose columns are contiguous."""
    return problem(rows, n, k, orders="CFC", **fields)


def test_columns_from_beyond_the_caches_are_staggered() -> None:
    half, page = SERVER.l3.size // 2, 4096
    k = 4 * page // 4
    n = half // (4 * k)
    for p, expected in (
        (_columns(n + 1, k), True),
        (_columns(n, k), False),
        (_columns(2 * n, k - 1), False),
        (_columns(n + 1, k, rows=40), False),
    ):
        plan = make_plan(p, context())
        assert (isinstance(plan.route, Columns) and plan.route.staggered) == expected
        check_plan(plan)
    plan = make_plan(_columns(n + 1, k), context())
    _because(plan, "columns: staggered")


def test_columns_are_walked_from_end_to_end() -> None:
    plan = make_plan(_columns(100, 5000), context(2, parallel_flops=1))
    assert plan.spec.b is BSource.COLUMNS
    assert plan.blocking.slices == 1
    assert plan.blocking.depth_step == 5000


def test_a_foreign_a_is_packed_for_turned_columns() -> None:
    p = _columns(256, 1024)
    plan = make_plan(replace(p, a=replace(p.a, swapped=True)), context())
    assert plan.route.a.pack_a is PackA.PANELS


def _typed(
    m: int, n: int, k: int, types: OperandTypes, orders: str = "CFC", made: Context | None = None
) -> GemmPlan:
    """A dense product of these types, with AVX-512 and the usual machine if nothing is said."""

    def operand(order: str, rows: int, cols: int, size: int) -> Operand:
        return Operand(cols * size, size) if order == "C" else Operand(size, rows * size)

    a, b, d = orders
    operands = (operand(a, m, k, types.a.bytes), operand(b, k, n, types.b.bytes),
                operand(d, m, n, types.out.bytes))  # fmt: skip
    return make_plan(Problem(sum_type(types), m, n, k, *operands, types=types), made or context())


def _name(x: object) -> str:
    """Of a parameter of a test."""
    if isinstance(x, OperandTypes):
        return f"{x.a}@{x.b}:{x.out}" + "dot" * x.bf16_dot
    return x.name if isinstance(x, Isa) else str(x)


def _of(
    a: ElementType, b: ElementType, out: ElementType, *, bf16_dot: bool = False
) -> OperandTypes:
    return OperandTypes(a, b, out, out, out, bf16_dot)


@pytest.mark.parametrize(
    "types, isa, read",
    [
        (_of(F16, F16, F16), AVX512, "transposed in registers"),
        (_of(BF16, BF16, F32), AVX2, "transposed in registers"),
        (_of(F32, BF16, F32), PORTABLE, "transposed in registers"),
        (_of(F16, F32, F32), AVX512, "transposed in registers"),
        (_of(I8, I8, I32), AVX512_BF16, "multiplied in lanes"),
        (_of(U8, I8, I8), AVX512_AMX, "multiplied in lanes"),
        (_of(I16, I16, I32), AVX2, "multiplied in lanes"),
        # Numbers that are widened while they are packed; an order of its own.
        (_of(I8, I8, I32), AVX2, ""),
        (_of(F32, I8, F32), AVX512, ""),
        (_of(BF16, BF16, F32, bf16_dot=True), AVX512_BF16, ""),
        (_of(BF16, BF16, F32, bf16_dot=True), AVX512_AMX, ""),
    ],
    ids=_name,
)
def test_columns_of_narrow_numbers(types: OperandTypes, isa: Isa, read: str) -> None:
    limit = min(4, columns_tile(tile_for(sum_type(types), isa), isa, 1).mr)
    # Narrow numbers are walked again and again before packing them pays.
    walks = 1 if types.b is F32 else 3 if "lanes" in read else 4
    for rows in (1, walks * limit, walks * limit + 1):
        plan = _typed(rows, 300, 1000, types, made=context(2, isa, parallel_flops=1))
        check_plan(plan)
        assert (plan.spec.b is BSource.COLUMNS) == (bool(read) and rows <= walks * limit)
        if plan.spec.b is BSource.COLUMNS:
            _because(plan, f"{read} up to {walks * limit} rows")
            assert isinstance(plan.route, Columns)
            assert plan.blocking.row_chunks == 1
            assert plan.route.b.panel_stride == plan.spec.nr * 1000 * types.b.bytes
    plan = _typed(1, 300, 1000, types, "CCC", context(isa=isa))
    assert plan.spec.b is not BSource.COLUMNS


def test_columns_of_narrow_numbers_are_staggered_by_their_own_bytes() -> None:
    half, k = SERVER.l3.size // 2, 16384 // F16.bytes
    n = half // (k * F16.bytes)
    for types, cols, depth, expected in (
        (_of(F16, F16, F16), n + 1, k, True),
        (_of(F16, F16, F16), n, k, False),
        (_of(F16, F16, F16), 4 * n, k - 1, False),
        (_of(F16, F32, F32), n, k, True),
        (_of(I8, I8, I32), 4 * n, 2 * k, False),
    ):
        made = context(isa=AVX512_BF16)
        plan = _typed(1, cols, depth, types, made=made)
        assert isinstance(plan.route, Columns)
        assert plan.route.staggered == expected


# -- dot ------------------------------------------------------------------------------------------


def _is_dot(p: Problem) -> bool:
    return isinstance(make_plan(p, context()).route, Dot)


def test_one_row_and_one_column() -> None:
    plan = make_plan(problem(1, 1, 100_000), context(8, parallel_flops=1))
    assert isinstance(plan.route, Dot)
    assert (plan.threads, plan.workspace_bytes) == (1, 0)
    _because(plan, "a sum in lanes")
    assert "sum       64 lanes of at most 512 per block" in explain(plan, SERVER)
    assert "in halves; 4 block(s)" in explain(plan, SERVER)
    assert not _is_dot(problem(1, 1, 100_000, strict=True))
    for m, n, k in ((1, 1, 0), (1, 1, 1), (2, 1, 9), (1, 2, 9)):
        assert not _is_dot(problem(m, n, k))


def test_a_dot_product_is_one_whatever_its_operands() -> None:
    """The rule is about shapes alone, or strides and packing would show in the bits."""
    p = problem(1, 1, 70)
    for other in (
        replace(p, a=Operand(280, -12)), replace(p, b=Operand(1 << 20, 4)), replace(p, b=None),
        replace(p, a=Operand(280, -4, swapped=True)), replace(p, b=Operand(4, 4, swapped=True)),
        replace(p, d=Operand(4, 4, swapped=True)), replace(p, k=1 << 20),
        replace(p, components=2),
    ):  # fmt: skip
        made = context(
            4,
            parallel_flops=1,
            split_depth=1,
            lhs_pack_stride=4,
            lhs_pack_pages=1,
            lhs_pack_reuse=1,
        )
        plan = make_plan(other, made)
        assert isinstance(plan.route, Dot)
        # The sum reads A by its own strides.
        assert (plan.route.a.pack_a, plan.workspace_bytes) == (PackA.INPLACE, 0)
        assert plan.route.a.a_col == other.a.col
        assert plan.spec.b is (BSource.PACKED if other.b is None else BSource.INPLACE)


def test_a_dot_product_of_halves() -> None:
    """A rule about types as well: floats of the sums' type and halves, whatever the result."""
    for types, expected in (
        (_of(F16, F16, F16), True), (_of(BF16, F16, F32), True), (_of(F32, BF16, F32), True),
        (_of(F16, F64, F64), True), (_of(F32, F32, F16), True), (_of(BF16, BF16, F32), True),
        (_of(F32, F64, F64), False), (_of(I16, F32, F32), False), (_of(I8, I8, I32), False),
        (_of(I32, I32, I32), True), (_of(I32, I32, I16), False),
        (_of(BF16, BF16, F32, bf16_dot=True), False),
    ):  # fmt: skip
        plan = _typed(1, 1, 1000, types)
        assert isinstance(plan.route, Dot) == expected, types
        for other in (
            replace(plan.problem, b=None), replace(plan.problem, k=1 << 20),
            replace(plan.problem, a=replace(plan.problem.a, swapped=True, col=-12)),
        ):  # fmt: skip
            assert _is_dot(other) == expected, types
        assert not _is_dot(replace(plan.problem, strict=True))
        names = {f.name for f in gemm_functions(plan.spec)}
        assert any(name.endswith("_dot") for name in names) == expected


# -- split ----------------------------------------------------------------------------------------


def _deep(m: int = 8, n: int = 10, k: int = 100_000, **fields: Any) -> Problem:
    return problem(m, n, k, **fields)


def _splits(p: Problem, made: Context) -> bool:
    return isinstance(make_plan(p, made).route, SplitDepth)


def test_a_small_result_with_a_deep_sum_is_split() -> None:
    plan = make_plan(_deep(), context(4))
    assert isinstance(plan.route, SplitDepth)
    assert plan.route.a.pack_a is PackA.INPLACE
    _because(plan, "added in ascending order")
    assert "depth: 8 x 10 sums of 196 blocks at a time" in explain(plan, SERVER)
    for p, made in (
        (_deep(), context(4, split_depth=100_001)),
        (_deep(orders="CPC"), context(4)),
        (_deep(m=1, n=1), context(4)),
        (_deep(m=1000, n=1000), context(4)),
        (replace(_deep(), a=Operand(400_000, 4, swapped=True)), context(4)),
        (replace(_deep(), d=Operand(80, 8)), context(4)),
        (replace(_deep(), d=Operand(40, 4, swapped=True)), context(4)),
        (replace(_deep(), bias=Operand(0, 8), epilogue=Epilogue(bias=Bias.COLUMN)), context(4)),
        # One number for all columns is not a row of them.
        (replace(_deep(), bias=Operand(0, 0), epilogue=Epilogue(bias=Bias.COLUMN)), context(4)),
        (
            replace(_deep(), bias=Operand(0, 4, swapped=True), epilogue=Epilogue(bias=Bias.COLUMN)),
            context(4),
        ),
    ):
        assert not _splits(p, made)
    one = replace(_deep(), bias=Operand(4, 0), epilogue=Epilogue(bias=Bias.ROW))
    assert _splits(one, context(4))
    # C may be D: sums rest elsewhere.
    p = replace(_deep(), c=_deep().d, in_place=True, epilogue=Epilogue(beta=True))
    assert _splits(p, context(4))
    assert _splits(replace(_deep(), strict=True), context(4))


@pytest.mark.parametrize(
    "types, isa, source, copies",
    [
        (_of(F16, F16, F16), AVX512, BSource.INPLACE, True),
        (_of(F32, BF16, F32), AVX2, BSource.INPLACE, False),
        (_of(I8, I8, I32), AVX512_BF16, BSource.PACKED, True),
        (_of(U8, I8, I8), AVX512_AMX, BSource.PACKED, False),
        (_of(I16, I16, I16), AVX2, BSource.PACKED, False),
        (_of(I32, F64, F64), PORTABLE, BSource.INPLACE, True),
    ],
    ids=_name,
)
def test_a_deep_sum_of_narrow_numbers_is_split(
    types: OperandTypes, isa: Isa, source: BSource, *, copies: bool
) -> None:
    made = context(4, isa)
    for m, n, k in ((8, 10, 100_000), (700, 9, 40_000), (1, 40, 32_768)):
        plan = _typed(m, n, k, types, "CCC", made)
        check_split(plan)
        assert isinstance(plan.route, SplitDepth)
        # Sums of integers have no order: vectors take the place of a matrix unit.
        assert plan.spec.b is source or m > 8
        assert not plan.spec.tiles
        assert (plan.route.bounds.copied_rows > 0) == copies
        assert "added in ascending order" in explain(plan, SERVER)
    odd = _typed(8, 10, 100_001, types, "CCC", made)
    assert isinstance(odd.route, SplitDepth)
    assert (odd.route.bounds.copied_rows > 0) == (copies or odd.spec.arithmetic.group > 1)
    assert _typed(8, 10, 1000, types, "CCC", made).problem.k == 1000


def test_deep_sums_that_stay_on_one_thread() -> None:
    """An order of its own; bytes that only a copy would turn; a bias read side by side only."""
    dots = _of(BF16, BF16, F32, bf16_dot=True)
    for isa in (AVX512_BF16, AVX512_AMX, AVX2):
        assert not isinstance(
            _typed(8, 10, 100_000, dots, "CCC", context(4, isa)).route, SplitDepth
        )
    halves = _typed(8, 10, 100_000, _of(F16, F16, F16), "CCC", context(4)).problem
    narrow = _typed(8, 10, 100_000, _of(F32, F32, F16), "CCC", context(4)).problem
    column = Epilogue(bias=Bias.COLUMN)
    for p, expected in (
        (replace(halves, a=replace(halves.a, swapped=True)), True),
        (narrow, True),
        (replace(narrow, a=replace(narrow.a, swapped=True)), False),
        (replace(halves, bias=Operand(0, 2), epilogue=column), True),
        (replace(halves, bias=Operand(0, 4), epilogue=column), False),
    ):
        assert _splits(p, context(4)) == expected


def test_deep_columns_whose_sums_are_wanted_are_walked_whole() -> None:
    made = context(4, AVX512_BF16)
    for types, split in (
        (_of(I8, I8, I32), False), (_of(U8, I8, I32), True), (_of(I16, I16, I32), True),
    ):  # fmt: skip
        for n in (1, 10):
            plan = _typed(2, n, 100_000, types, "CFC", made)
            assert plan.spec.b is BSource.COLUMNS
            if split:
                check_split(plan)
            else:
                assert isinstance(plan.route, Columns)
                check_plan(plan)


def test_one_column_of_k_groups_is_not_packed() -> None:
    for m, n, types, source in (
        (1, 1, _of(I8, I8, I32), BSource.COLUMNS), (4, 1, _of(I16, I16, I32), BSource.COLUMNS),
        (1, 2, _of(I8, I8, I32), BSource.PACKED), (3, 1, _of(F16, F16, F16), BSource.INPLACE),
    ):  # fmt: skip
        assert _typed(m, n, 1000, types, "CCC", context(isa=AVX512_BF16)).spec.b is source
    # Many rows and one column are one row and many columns.
    plan = _typed(50, 1, 1000, _of(I8, I8, I32), "CCC", context(isa=AVX512_BF16))
    assert plan.exchanged
    assert plan.spec.b is BSource.COLUMNS


def check_split(plan: GemmPlan) -> None:
    """Every depth block is summed once, in a place of its own; every row is added by one ticket."""
    assert isinstance(plan.route, SplitDepth)
    p, bounds, b = plan.problem, plan.route.bounds, plan.blocking
    blocks = -(-plan.k_groups // plan.spec.element.depth_block)
    assert 1 <= bounds.round_blocks <= blocks
    rounds = -(-blocks // bounds.round_blocks)
    summed: Counter[int] = Counter()
    for index in range(rounds):
        low, high = _span(index, bounds.round_blocks, blocks)
        for r in range(bounds.ranges):
            first = low + r * bounds.range_blocks
            for q in range(first, min(first + bounds.range_blocks, high)):
                summed[q] += 1
                assert 0 <= q - low < bounds.round_blocks
    assert summed == Counter(range(blocks))
    _tiles_exactly([_span(i, b.rows_per_chunk, p.m) for i in range(b.row_chunks)], p.m)
    assert bounds.sums_row >= p.n * p.unit
    assert bounds.sums_stride >= p.m * bounds.sums_row
    assert bounds.sums_stride % 64 == 0
    # Block sums come after packed B, one region per thread of each.
    assert plan.workspace_bytes - plan.workspace_b >= bounds.sums_bytes
    assert bounds.sums_bytes == (bounds.round_blocks + 1) * bounds.sums_stride
    assert plan.workspace_b >= plan.threads * bounds.workspace_b_stride
    spec, panels = plan.spec, -(-p.n * p.components // plan.spec.nr)
    if spec.b is BSource.PACKED:
        assert plan.route.b.panel_stride == spec.panel_bytes(spec.element.depth_block)
        packed = panels * plan.route.b.panel_stride
    else:
        packed = 0
    assert bounds.workspace_b_stride >= packed + bounds.copied_rows * plan.route.a.a_row
    assert bounds.workspace_b_stride > 0 or spec.b is not BSource.PACKED
    assert (b.group, b.tile_rows) in spec.tile.variants()
    assert plan.route.a.a_tile == b.tile_rows * plan.route.a.a_row
    if bounds.copied_rows:
        assert not spec.arithmetic.plain
        assert bounds.copied_rows % b.tile_rows == 0 or bounds.copied_rows == p.m
        steps = spec.element.depth_block + int(spec.sums_columns)
        assert plan.route.a.a_row >= steps * spec.unit
    else:
        assert plan.route.a.a_row == p.a.row


@settings(deadline=None, max_examples=200, database=None)
@given(
    st.integers(1, 60), st.integers(1, 60), st.integers(1, 60_000), st.sampled_from([F32, F64]),
    st.sampled_from([AVX512, AVX2, PORTABLE]), st.sampled_from([SERVER, TINY]),
    st.sampled_from([1, 2, 3, 8]), st.sampled_from(["CCC", "CFC", "FCC", "CFF"]),
    st.sampled_from([1, 2]),
)  # fmt: skip
def test_every_split_sums_every_block_once(
    m: int, n: int, k: int, element: ElementType, isa: Isa, machine: Machine, threads: int,
    orders: str, components: int,
) -> None:  # fmt: skip
    p = problem(m, n, k, element=element, orders=orders, components=components)
    plan = make_plan(p, context(threads, isa, machine, parallel_flops=1000, split_depth=1))
    if isinstance(plan.route, SplitDepth):
        check_split(plan)
    elif not isinstance(plan.route, Dot):
        check_plan(plan)


def test_the_threshold_of_packing_b_is_a_knob() -> None:
    # Rows of B a whole number of pages apart: the knob itself is the limit.
    for limit in (1, 7, 32):
        for rows in (limit, limit + 1):
            plan = make_plan(problem(rows, 1024, 50), context(rhs_pack_rows=limit))
            assert (plan.spec.b is BSource.INPLACE) == (rows <= limit)


def test_packing_of_a() -> None:
    wide = context(lhs_pack_stride=2048, lhs_pack_reuse=4)
    assert make_plan(problem(100, 300, 70), wide).route.a.pack_a is PackA.INPLACE
    plan = make_plan(problem(1000, 300, 70, orders="FCC"), wide)
    assert plan.route.a.pack_a is PackA.PANELS
    _because(plan, "TLB")
    assert plan.workspace_a_stride > 0
    few = make_plan(problem(1000, 64, 70, orders="FCC"), wide)
    assert few.route.a.pack_a is PackA.INPLACE
    _because(few, "micropanels reuse it")
    # Rows a multiple of the way size apart share sets of L1.
    apart = replace(problem(100, 300, 70), a=Operand(4 << 10, 4))
    for ways, packing in ((4, PackA.ROWS), (12, PackA.INPLACE), (64, PackA.INPLACE)):
        l1 = Cache(4096 * ways, 64, ways)
        plan = make_plan(apart, context(machine=replace(SERVER, l1=l1)))
        assert plan.route.a.pack_a is packing
        if ways == 12:
            assert plan.blocking.tile_rows <= 10
            _because(plan, "share L1 sets")


def test_few_rows_take_b_in_blocks_that_stay_in_l2() -> None:
    """Where the rows of A stay there; blocks are wider where each is paid for by a copy of A."""
    size = SERVER.l2.size
    for threads in (1, 2):
        plan = make_plan(problem(64, 8192, 1024, orders="CFC"), context(threads))
        b = plan.blocking
        assert b.blocks > 4
        assert b.cols_per_block % plan.spec.nr == 0
        assert b.depth_per_slice * b.cols_per_block * 4 <= threads * size // 4
        assert plan.workspace_b <= threads * size // 4
    copied = make_plan(problem(64, 8192, 1024, orders="CFC"), context(machine=MESH))
    assert copied.route.a.pack_a is PackA.ROWS
    assert copied.blocking.cols_per_block == 16 * copied.spec.nr
    many = make_plan(problem(4096, 8192, 1024, orders="CFC"), context())
    assert many.blocking.cols_per_block * 1024 * 4 > size
    assert make_plan(problem(64, 100, 1024, orders="CFC"), context()).blocking.blocks <= 2


def test_where_l3_is_far_b_is_packed_earlier_and_colliding_rows_are_copied() -> None:
    def packs(m: int, n: int, k: int, machine: Machine) -> bool:
        return make_plan(problem(m, n, k), context(machine=machine)).spec.b is BSource.PACKED

    for n, k, rows in ((500, 500, 64), (4000, 1000, 10), (9000, 4000, 5)):
        assert [packs(m, n, k, MESH) for m in (rows, rows + 1)] == [False, True]
        assert not packs(rows + 1, n, k, SERVER)
    apart = problem(100, 300, 1024)
    assert make_plan(apart, context(machine=SERVER)).route.a.pack_a is PackA.INPLACE
    plan = make_plan(apart, context(machine=MESH))
    assert plan.route.a.pack_a is PackA.ROWS
    _because(plan, "collides in L1")


def test_a_matrix_unit_multiplies_what_it_can() -> None:
    """8-bit integers from a number of rows on; bfloat16 where allowed, whatever their number."""
    bytes_of = replace(OperandTypes.of(I32), a=I8, b=U8)
    halves = replace(OperandTypes.of(BF16), out=F32, bf16_dot=True)

    def unit(m: int, types: OperandTypes, isa: Isa = AVX512_AMX, n: int = 40, **knobs: int) -> bool:
        operands = Operand(64 * types.a.bytes, types.a.bytes), None, Operand(4 * n, 4)
        p = Problem(sum_type(types), m, n, 64, *operands, types=types)
        plan = make_plan(p, context(isa=isa, **knobs))
        assert plan.spec.tiles == ("; tile_" in explain(plan, SERVER))
        return plan.spec.tiles

    least = KNOBS["matrix_rows"].default
    assert [unit(m, bytes_of) for m in (least - 1, least)] == [False, True]
    assert not unit(8, bytes_of, matrix_rows=9)
    assert unit(9, bytes_of, matrix_rows=9)
    assert not unit(100, bytes_of, isa=AVX512_BF16)
    # Orders of sums do not depend on how many rows or columns there are.
    assert unit(1, halves)
    assert unit(1, halves, n=1)
    assert not unit(100, replace(halves, bf16_dot=False))
    assert not unit(100, halves, isa=AVX512_BF16)
    for other in (replace(bytes_of, a=I16), replace(bytes_of, out=I64), replace(halves, a=F32)):
        assert not unit(100, other)


def test_halves_of_b_are_widened_once_for_many_rows() -> None:
    halves = replace(OperandTypes.of(F16), out=F32)

    def plan(m: int, types: OperandTypes, packed: bool, k: int = 64) -> GemmPlan:
        a, b = types.a.bytes, types.b.bytes
        right = None if packed else Operand(b, k * b)
        p = Problem(F32, m, 40, k, Operand(k * a, a), right, Operand(160, 4), types=types)
        return make_plan(p, context())

    mr = tile_for(F32, AVX512).mr
    few, many = (plan(m, halves, True).spec.upconverts_panels for m in (4 * mr - 1, 4 * mr))
    assert (few, many) == (False, True)
    wide = plan(4 * mr, halves, True, k=3000)
    # A thread's scratch: copied rows, then a micropanel as deep as a chunk goes at a time.
    rows = wide.blocking.rows_per_chunk * wide.route.a.a_row
    assert wide.route.a.upconverted_at >= rows
    panel = wide.blocking.depth_step * wide.spec.panel_row
    assert wide.workspace_a_stride >= wide.route.a.upconverted_at + panel
    assert wide.route.b.panel_stride == 3000 * wide.spec.nr * F16.bytes
    assert "B's once for all rows" in explain(wide, SERVER)
    # Packed in this call, B is widened while that is done; rows read in place leave no scratch.
    per_call = plan(4 * mr, halves, False)
    assert not per_call.spec.upconverts_panels
    assert per_call.spec.panel_element is F32
    # Code is found by its symbol.
    kinds = [plan(m, halves, packed).spec for m in (17, 4 * mr) for packed in (True, False)]
    assert len({spec.symbol for spec in kinds}) == len(set(kinds)) == 3
    assert plan(4 * mr, replace(halves, a=F32), True).spec.panel_element is F16


def test_where_sums_rest() -> None:
    beta = Epilogue(beta=True)

    def direct(
        k: int, *, in_place: bool = False, c: Operand | None = None, orders: str = "CCC"
    ) -> bool:
        p = problem(
            50, 60, k, orders=orders, epilogue=beta, in_place=in_place, c=c or Operand(240, 4)
        )
        plan = make_plan(p, context())
        assert plan.route.modes.direct or plan.blocking.slices == 1
        return plan.route.modes.direct

    assert direct(700)
    assert direct(512, in_place=True)
    assert not direct(513, in_place=True)
    assert not direct(3, c=Operand(4, 200))
    plan = make_plan(replace(problem(50, 60, 3), d=Operand(480, 8)), context())
    assert not plan.route.modes.direct


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


# -- numbers, and what an instruction takes of them ------------------------------------------------


BYTES = replace(OperandTypes.of(I32), a=I8, b=U8)


def _bytes(m: int, n: int, k: int, types: OperandTypes = BYTES, isa: Isa = AVX512_AMX) -> GemmPlan:
    """A dense product of narrow numbers."""
    a, b, d = types.a.bytes, types.b.bytes, types.out.bytes
    operands = Operand(k * a, a), Operand(n * b, b), Operand(n * d, d)
    return make_plan(Problem(sum_type(types), m, n, k, *operands, types=types), context(isa=isa))


@pytest.mark.parametrize("k, groups", [(1, 1), (1200, 300), (1201, 301)])
def test_a_plan_counts_numbers_its_kernel_k_groups(k: int, groups: int) -> None:
    for isa in (AVX512_AMX, AVX512_BF16):
        plan = _bytes(30, 50, k, isa=isa)
        assert (plan.problem.k, plan.k_groups) == (k, groups)
        assert plan.problem.operations == 2 * 30 * 50 * k
        assert f"i32 30 x {k} @ {k} x 50" in explain(plan, SERVER)
        assert f"depth {k};" in explain(plan, SERVER)
        sizes = next(x for x in plan.records if isinstance(x, Sizes))
        assert sizes == Sizes(30, 50, groups, k)
        check_plan(plan)
    plan = _bytes(30, 50, k, isa=AVX2)  # pairs
    assert (plan.problem.k, plan.k_groups) == (k, -(-k // 2))
    assert make_plan(problem(30, 50, k), context()).k_groups == k


def test_threads_are_worth_waking_for_numbers() -> None:
    plan, stack = _bytes(4, 4, 4096), Stack(Axis(4), Axis(4), (Axis(3, a=1 << 14, d=64),), "")
    each = 2 * 4 * 4 * 4096
    assert make_batch_plan(plan.problem, stack, context()).operations == 3 * each
    for flops, threads in ((each // 2, 2), (each // 2 + 1, 1)):
        assert make_plan(plan.problem, context(2, parallel_flops=flops)).threads == threads


def test_the_bound_of_narrow_numbers_counts_numbers_and_their_own_bytes() -> None:
    """Two operations per number; a byte of A and of B each, and four of D."""
    m, n, k = 2000, 3000, 4000
    moved, operations = m * k + k * n + 4 * m * n, 2 * m * n * k
    line = f"{operations / moved:.1f} operations per byte over {moved / (1 << 20):.1f} MiB"
    assert f"bound     compute: {line}" in explain(_bytes(m, n, k), SERVER)
    # One row reads all of B once, by whatever unit.
    moved, operations = k + k * n + 4 * n, 2 * n * k
    line = f"{operations / moved:.1f} operations per byte over {moved / (1 << 20):.1f} MiB"
    assert f"bound     memory: {line}" in explain(_bytes(1, n, k), SERVER)
    # 100 rows: 200 operations per byte of B.  Enough for vectors, not for a matrix unit.
    for isa, kind in ((AVX512_AMX, "memory"), (AVX512_BF16, "compute")):
        assert f"bound     {kind}: 1" in explain(_bytes(100, 4096, 4096, isa=isa), SERVER)


def test_the_scratch_that_is_refused_is_named_by_numbers() -> None:
    with pytest.raises(MemoryError, match=f"k={2**46} would need"):
        _bytes(3, 3, 2**46)


# -- the parts of a job ---------------------------------------------------------------------------


def test_every_slot_of_a_job_belongs_to_one_part() -> None:
    components = (Sizes, Strides, ByteOrder, WalkA, Panels, Modes, Blocking, Split)
    slots = [field.name for part in components for field in fields(part)]
    assert Counter(JOB.fields) == Counter([*slots, *POINTERS, *DATA])


@pytest.mark.parametrize(
    "route, made",
    [
        (Blocked, make_plan(problem(50, 60, 70), context())),
        (RowStreaming, make_plan(problem(1, 4000, 4000), context())),
        (Columns, make_plan(problem(1, 60, 70, orders="CFC"), context())),
        (Dot, make_plan(problem(1, 1, 70), context())),
        (SplitDepth, make_plan(problem(8, 10, 100_000), context(4))),
    ],
)
def test_a_route_fills_its_part_and_names_its_kernel(route: type, made: GemmPlan) -> None:
    assert type(made.route) is route
    components = [type(x) for x in made.records]
    assert len(components) == len(set(components))
    assert components[:3] == [Sizes, Strides, ByteOrder]
    assert (Split in components) == (route is SplitDepth)
    assert (Modes in components) == (Blocking in components) == (route is not Dot)
    assert made.kernel.name in {f.name for f in gemm_functions(made.spec)}
    assert made.reasons[-len(made.route.reasons) :] == made.route.reasons
    ends = {Dot: "_dot", SplitDepth: "_split"}
    assert made.kernel.name.endswith(ends.get(route, "_serial"))
    if route is Blocked:
        many = make_plan(problem(2000, 60, 70), context())
        assert many.kernel.name == many.spec.symbol


@pytest.mark.parametrize("orders", ["CCC", "CFC", "CPC", "FCF"])
def test_explanations_name_everything(orders: str) -> None:
    plan = make_plan(problem(300, 400, 1100, orders=orders), context(4, parallel_flops=1))
    text = explain(plan, SERVER)
    for part in (plan.spec.symbol, "threads   4", "3 chain(s) of at most 512", "bound     ",
                 "300 x 1100 @ 1100 x 400" if orders != "FCF" else "400 x 1100 @ 1100 x 300",
                 *plan.reasons):  # fmt: skip
        assert part in text
    assert ("operands exchanged" in text) == plan.exchanged
    assert "product   c128 " in explain(
        make_plan(problem(3, 4, 5, element=F64, components=2), context()), SERVER
    )
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
        block = _span(index // b.slices, b.cols_per_block, p.n * p.components)
        depth = _span(index % b.slices, b.depth_per_slice, plan.k_groups)
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
    route = plan.route
    assert isinstance(route, Blocked | RowStreaming | Columns)
    p, b, spec = plan.problem, plan.blocking, plan.spec
    a, panel_stride = route.a, route.b.panel_stride
    nr, block, reals = spec.nr, spec.element.depth_block, p.n * p.components
    work, packing = [], []
    for t in _tickets(plan):
        (packing if t.packing else work).append(t)

    # Each (rows, cols, depth) cell once; cells are grids, so one axis at a time will do.
    cells = Counter(
        (t.rows, t.cols, t.depth) for t in work if t.rows[0] < t.rows[1] and t.cols[0] < t.cols[1]
    )
    assert all(count == 1 for count in cells.values())
    area = sum((r1 - r0) * (c1 - c0) for (r0, r1), (c0, c1), _ in cells)
    assert area == p.m * reals * b.slices
    _tiles_exactly([t.rows for t in work], p.m)
    _tiles_exactly([t.cols for t in work], reals)
    if p.k:
        _tiles_exactly([t.depth for t in work], plan.k_groups)
    assert b.slices == 1 or route.modes.direct
    for t in work:
        assert t.depth[0] < t.depth[1] or p.k == 0
        assert t.depth[0] % block == 0, "a slice must begin with a block of the documented order"
        assert (t.cols[0] - t.block[0]) % nr == 0, "a chunk must begin with a micropanel"

    # Chunks are whole tiles, tiles are within the register file.
    assert 1 <= b.tile_rows <= spec.tile.mr
    assert b.row_chunks == 1 or b.rows_per_chunk % b.tile_rows == 0
    assert b.col_chunks == 1 or b.cols_per_chunk % nr == 0
    assert (b.group, b.tile_rows) in spec.tile.variants()
    assert b.depth_step % block == 0 or b.depth_step >= plan.k_groups
    assert b.depth_step <= max(b.depth_per_slice, 1)

    # Packed B: every column of a block once, inside the scratch.
    per_call = spec.b is BSource.PACKED and p.b is not None
    assert bool(packing) == (b.pack_chunks > 0) == per_call
    assert plan.workspace_b % 64 == 0
    if per_call:
        assert b.cols_per_block % nr == 0
        assert b.pack_cols % nr == 0
        _tiles_exactly([t.cols for t in packing], reals)
        sums = spec.tile_row if spec.sums_columns else 0
        assert panel_stride == spec.in_memory.panel_row * b.depth_per_slice + sums
        for t in packing:
            panels = -(-(t.cols[1] - t.block[0]) // nr)
            assert panels * panel_stride <= plan.workspace_b or t.cols[0] >= t.cols[1]
    else:
        assert plan.workspace_b == 0

    # Packed A: a chunk's rows, over a slice's depth, inside a thread's share.
    size = spec.unit
    if a.pack_a is PackA.INPLACE:
        assert plan.workspace_a_stride == 0
        # Steps of depth are numbers, or k-groups of them side by side.
        step = p.a.col if spec.arithmetic.plain else size
        assert (a.a_row, a.a_col) == (p.a.row, step)
    else:
        tiles = -(-min(b.rows_per_chunk, p.m) // b.tile_rows)
        rows = tiles * b.tile_rows if a.pack_a is PackA.PANELS else min(b.rows_per_chunk, p.m)
        assert a.pack_a_width * spec.element.bytes == max(a.a_row, a.a_col)
        # The sums of rows lie behind them.
        steps = b.depth_per_slice + spec.sums_columns
        per_row = steps * size if a.pack_a is PackA.PANELS else a.a_row
        assert rows * per_row <= plan.workspace_a_stride
        assert a.a_tile == b.tile_rows * per_row
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
    st.sampled_from([1, 32, 10**6]), st.sampled_from([4, 2048]), st.sampled_from([1, 2]),
)  # fmt: skip
def test_every_plan_does_everything_once(
    m: int, n: int, k: int, element: ElementType, isa: Isa, machine: Machine, threads: int,
    orders: str, beta: bool, in_place: bool, pack_rows: int, pack_stride: int, components: int,
) -> None:  # fmt: skip
    epilogue = Epilogue(beta=beta)
    p = problem(m, n, k, element=element, orders=orders, epilogue=epilogue, components=components)
    if beta:
        p = replace(p, c=p.d, in_place=in_place)
    made = context(threads, isa, machine, parallel_flops=1000, rhs_pack_rows=pack_rows,
                   lhs_pack_stride=pack_stride, lhs_pack_pages=1, lhs_pack_reuse=1)  # fmt: skip
    plan = make_plan(p, made)
    if not isinstance(plan.route, Dot):
        check_plan(plan)


@pytest.mark.parametrize("isa", [AVX512, AVX2, PORTABLE], ids=lambda isa: isa.name)
@pytest.mark.parametrize("orders", ["FCC", "FPC", "FFC", "CCC"])
def test_packed_rows_of_a_fit_into_their_scratch(isa: Isa, orders: str) -> None:
    for m in range(1, 130):
        for threads in (1, 3):
            made = context(
                threads,
                isa,
                lhs_pack_stride=4,
                lhs_pack_pages=1,
                lhs_pack_reuse=1,
                parallel_flops=1,
            )
            check_plan(make_plan(problem(m, 50, 40, orders=orders), made))


def _changed(plan: GemmPlan, **bounds: int) -> GemmPlan:
    """The plan with other loop bounds."""
    assert isinstance(plan.route, Blocked)
    loops = plan.route.loops
    loops = replace(loops, blocking=replace(loops.blocking, **bounds))
    return replace(plan, route=replace(plan.route, loops=loops))


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
    plan = _changed(plan, cols_per_chunk=128, col_chunks=4)
    check_plan(plan)
    bad = _changed(plan, **{field: getattr(plan.blocking, field) + change})
    with pytest.raises((AssertionError, ZeroDivisionError)):
        check_plan(bad)


def test_same_problem_same_plan() -> None:
    assert make_plan(problem(300, 400, 1100), context(4)) == make_plan(
        problem(300, 400, 1100), context(4)
    )
