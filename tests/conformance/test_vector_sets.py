"""Vector sets with other numbers of registers than this machine's, added from outside.

Every route of the vector kernels on both backends: tables and kernels may assume neither 16 nor 32
registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from cases import COMPLEX, INTEGER, PLAIN, REAL, short_block
from products import Case
from test_dot import DotCase
from typed import TypedCase

from jitgemm.errors import IsaError
from jitgemm.isa import tables
from jitgemm.isa.tables import PORTABLE, Isa
from jitgemm.isa.types import BF16, F16, F32, F64, I8, I16, I32, I64, U8, ElementType
from jitgemm.kernels import registry
from jitgemm.kernels.arithmetic import OperandTypes
from jitgemm.kernels.dot import dot
from jitgemm.kernels.nest import nest, serial
from jitgemm.kernels.peak import chains
from jitgemm.kernels.spec import MOST_ROWS, Bias, BSource, Epilogue, GemmSpec, Tile
from jitgemm.kernels.split import split
from jitgemm.kernels.streaming import STREAMED_ROWS, _streams
from jitgemm.planner.machine import Cache, Machine
from jitgemm.planner.problem import Operand, Problem
from jitgemm.planner.route import Context, PackA, RowStreaming, make_plan
from jitgemm.tuning import KNOBS
from oracle import run_python
from outsider import add_vectors, vector_set
from rows import typed_spec

REGISTERS = (9, 24, 64)
MACHINE = Machine(Cache(32 << 10), Cache(1 << 20), Cache(32 << 20), "test")


@pytest.fixture
def registered() -> Iterator[None]:
    """What a test registers is gone afterwards."""
    sets, rows = dict(tables.BY_NAME), dict(registry._ROWS)
    yield
    tables.BY_NAME.clear()
    tables.BY_NAME.update(sets)
    registry._ROWS.clear()
    registry._ROWS.update(rows)


@pytest.fixture(params=REGISTERS, ids=lambda n: f"{n}-registers")
def isa(request: pytest.FixtureRequest, registered: None) -> Isa:
    """A set from outside."""
    found = vector_set(f"toy_{request.param}", request.param)
    add_vectors(found)
    return found


@pytest.fixture(params=[(F32, 1), (F64, 2), (I64, 1)], ids=["f32", "c128", "i64"])
def number(request: pytest.FixtureRequest) -> Any:
    return request.param


def _specs(isa: Isa, number: tuple[ElementType, int], source: BSource) -> list[GemmSpec]:
    """Plain, and with an epilogue and short depth blocks."""
    element, components = number
    tile = registry.tile_for(element, isa, components)
    if source is BSource.COLUMNS:
        tile = registry.columns_tile(tile, isa, components)
    plain = GemmSpec(element, isa, tile, source, PLAIN, components)
    kinds = INTEGER if element.integral else REAL if components == 1 else COMPLEX
    return [plain, short_block(replace(plain, epilogue=kinds[list(BSource).index(source)]))]


@pytest.mark.parametrize("source", BSource, ids=lambda s: s.value)
def test_nests(isa: Isa, number: Any, source: BSource) -> None:
    """Full tiles and their edges, groups of micropanels, copied rows, several depth blocks."""
    for spec in _specs(isa, number, source):
        mr, width = spec.tile.mr, spec.nr // spec.components
        edge = Case(spec, mr + 1, width + 1, 2, (mr + 2) // 2)
        cases = [edge, Case(spec, 1, 3 * width - 1, 3, 1, layout_a="both"),
                 replace(edge, pack_a=PackA.ROWS, m=2, tile_rows=min(2, mr), k=spec.lanes + 3),
                 Case(spec, mr, 1, 2 * spec.lanes, mr, pack_a=PackA.PANELS)]  # fmt: skip
        if spec.epilogue != PLAIN:
            cases.append(replace(edge, k=spec.element.depth_block + 1, m=1, tile_rows=1, n=3))
        for case in cases:
            case.check(nest(spec))
        Case(spec, 2, 3, 2, min(2, mr), prepacked=source is BSource.PACKED).check(serial(spec))


def test_rows_are_streamed(isa: Isa, number: Any) -> None:
    for spec in _specs(isa, number, BSource.INPLACE):
        lanes, bias = (
            spec.lanes // spec.components,
            "cols" if spec.epilogue.bias is Bias.ROW else "rows",
        )
        for m in range(1, min(STREAMED_ROWS, spec.tile.mr) + 1):
            for n, depth in ((1, 3), (5 * lanes - 1, 19)):
                case = Case(spec, m, n, depth, m, sweep=True, layout_bias=bias)
                case.check(nest(spec))


def test_rows_that_are_no_tile_are_not_streamed(isa: Isa) -> None:
    """Rows are streamed together: those of several tiles could be several threads'."""
    for element, components, m, threads in product((F32, F64), (1, 2), (1, 2), (1, 2)):
        unit = element.bytes * components
        row = Operand(1000 * unit, unit)
        wide = Problem(element, m, 1000, 1000, row, row, row, components=components)
        context = Context(isa, MACHINE, threads, lambda name: KNOBS[name].default)
        plan = make_plan(wide, context)
        mr = registry.tile_for(element, isa, components).mr
        assert isinstance(plan.route, RowStreaming) == (m <= mr)
        assert not isinstance(plan.route, RowStreaming) or plan.blocking.row_chunks == 1


def test_columns_walk_apart(isa: Isa, number: Any) -> None:
    for spec in _specs(isa, number, BSource.COLUMNS):
        width = spec.nr // spec.components
        Case(spec, spec.tile.mr, width - 1, 3 * spec.lanes, spec.tile.mr, staggered=True).check(
            nest(spec)
        )


def test_deep_sums_are_split(isa: Isa, number: Any) -> None:
    for source in BSource:
        spec = _specs(isa, number, source)[1]
        bias = "cols" if spec.epilogue.bias is Bias.ROW else "rows"
        depth, rows = 2 * spec.element.depth_block + 1, min(2, spec.tile.mr)
        case = Case(spec, 2, 3, depth, rows, layout_bias=bias, round_blocks=3, range_blocks=2)
        case.check(split(spec))


def test_dots(isa: Isa, number: Any) -> None:
    for spec in _specs(isa, number, BSource.INPLACE):
        DotCase(spec, 1, 1, 300, 1).check(dot(spec))


def test_slim_tiles(isa: Isa, number: Any) -> None:
    """A B no wider than a vector: more rows, but no more than a nest can tell apart."""
    for spec in _specs(isa, number, BSource.PACKED):
        tile = registry.slim_tile(spec.tile)
        assert tile.mr == 2 * spec.tile.mr
        slim = replace(spec, tile=tile)
        Case(slim, tile.mr + 1, 2, 3, tile.mr).check(nest(slim))


@pytest.mark.parametrize(
    "types", [OperandTypes(I8, U8, I32, I32, I32), OperandTypes(*[I16] * 5),
              OperandTypes(*[BF16] * 5), OperandTypes(F16, F32, F32, F32, F32),
              OperandTypes(I8, I32, I64, I64, I64)],
    ids=lambda t: f"{t.a}-{t.b}-{t.out}",
)  # fmt: skip
def test_other_types(isa: Isa, types: OperandTypes) -> None:
    for epilogue in (PLAIN, Epilogue(beta=True, bias=Bias.COLUMN)):
        spec = typed_spec(isa, types, epilogue)
        case = TypedCase(spec, min(3, spec.tile.mr), spec.lanes + 1, 9, row_tiles=2)
        for other in (case, replace(case, m=spec.tile.mr + 1, n=2 * spec.nr + 1, layout_b="cols")):
            other.check(nest(spec))


def test_slim_tiles_are_no_higher_than_a_nest_can_tell() -> None:
    for rows, vectors in ((29, 2), (31, 2), (33, 2), (60, 2), (20, 4)):
        tile = registry.slim_tile(Tile(rows, vectors, ((1, rows),)))
        tile.check(256, 1)
        assert tile.mr == min(rows * vectors, MOST_ROWS)


def test_streams_fit_the_registers() -> None:
    """As measured for 16 and 32 registers, and one at least."""
    tile = Tile(1, 1, ((1, 1),))
    found = {}
    for registers in (2, 4, 8, 9, 16, 24, 32, 48, 64):
        isa = replace(PORTABLE, vector_registers=registers)
        spec = GemmSpec(F32, isa, tile, BSource.INPLACE, PLAIN)
        found[registers] = _streams(spec, 1)
        for components, rows in ((1, 1), (1, 2), (2, 1), (2, 2)):
            some = _streams(replace(spec, components=components), rows)
            assert some >= 1
            assert some == 1 or rows * components * (some + 1) + 1 <= registers
    assert found == {2: 1, 4: 1, 8: 2, 9: 2, 16: 4, 24: 6, 32: 8, 48: 8, 64: 8}


def test_the_register_loop_has_a_sum_at_least() -> None:
    found = {n: chains(replace(PORTABLE, vector_registers=n)) for n in (2, 4, 5, 16, 24, 32, 64)}
    assert found == {2: 1, 4: 1, 5: 1, 16: 12, 24: 20, 32: 20, 64: 20}


# -- registering ----------------------------------------------------------------------------------


def test_a_name_stands_for_one_set(registered: None) -> None:
    isa = vector_set("toy", 24)
    for _ in range(2):  # the same again changes nothing
        add_vectors(isa)
    assert list(tables.BY_NAME)[-1] == "toy"
    with pytest.raises(ValueError, match=r"jitgemm: isa: .* known with other vector_registers"):
        tables.register(replace(isa, vector_registers=64))
    with pytest.raises(ValueError, match="known with other ops"):
        tables.register(replace(isa, ops={}))
    with pytest.raises(ValueError, match="known with other vector_bits"):
        registry.register(F32, replace(isa, vector_bits=512), Tile(1, 1, ((1, 1),)))
    with pytest.raises(ValueError, match="known with other"):
        tables.register(replace(isa, name="portable"))
    assert tables.BY_NAME["portable"] is PORTABLE


@pytest.mark.parametrize("name", ["", "Toy", "toy-set", "none", "2d", "t\u00f6y"])
def test_names_that_cannot_be_asked_for_are_refused(name: str, registered: None) -> None:
    before = list(tables.BY_NAME)
    with pytest.raises(ValueError, match=r"jitgemm: isa\.name: expected a name of lower-case"):
        tables.register(vector_set(name, 24))
    assert list(tables.BY_NAME) == before


def test_a_set_is_preferred_where_it_is_told_to_be(registered: None) -> None:
    tables.register(vector_set("toy", 24), before="avx2")
    names = list(tables.BY_NAME)
    assert names.index("toy") == names.index("avx2") - 1
    with pytest.raises(ValueError, match="jitgemm: before: expected one of "):
        tables.register(vector_set("toy_other", 24), before="avx9000")
    assert "toy_other" not in tables.BY_NAME


def test_a_set_without_a_tile_for_a_product_says_so(registered: None) -> None:
    isa = vector_set("toy", 24)
    registry.register(F32, isa, Tile(4, 2, ((1, 4),)))
    with pytest.raises(IsaError, match="one with a register tile for sums of i32, got 'toy'"):
        registry.tile_for(I32, isa)
    with pytest.raises(IsaError, match="for complex sums of f32"):
        registry.tile_for(F32, isa, 2)


@pytest.mark.parametrize(
    "tile", [Tile(0, 1, ((1, 0),)), Tile(64, 1, ((1, 64),)), Tile(3, 0, ((1, 3),)),
             Tile(3, 2, ((2, 3),)), Tile(3, 2, ()), Tile(3, 2, ((1, 3), (2, 4))),
             Tile(3, 2, ((1, 3), (0, 1))), Tile(31, 2, ((1, 31),))],
    ids=str,
)  # fmt: skip
def test_tiles_no_nest_can_walk_are_refused(tile: Tile, registered: None) -> None:
    before = registry.rows()
    with pytest.raises(ValueError, match="jitgemm: tile: expected"):
        registry.register(F32, vector_set("toy", 64), tile)
    assert registry.rows() == before


# -- through the front door -----------------------------------------------------------------------

PROGRAM = """
    import sys
    import numpy as np
    import jitgemm
    from outsider import add_vectors, vector_set
    from oracle import MANY_PIECES, TINY, another_machine, equal, exact_gemm, integers
    name, registers, checked = sys.argv[1], int(sys.argv[2]), sys.argv[1].endswith("checked")
    add_vectors(vector_set(name, registers, interpreted=checked))
    rng = np.random.default_rng(1)
    met = set()

    def check(dtype, m, n, k, turn=False, **knobs):
        with another_machine(TINY, **{**MANY_PIECES, **knobs}):
            a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
            b = np.asfortranarray(b) if turn else b
            for right in (b, jitgemm.prepack_rhs(b)):
                equal(jitgemm.gemm(a, right), exact_gemm(a, b))
                plan = jitgemm.plan(a, right).explain()
                assert f"__{name}" in plan
                met.update(w for w in sys.argv[3].split(";") if w in plan)

    for dtype in (np.float32, np.complex128, np.int64):
        check(dtype, 5, 40, 11)
        check(dtype, 2, 9, 9, turn=True)
        check(dtype, 1, 90, 40)
        check(dtype, 1, 1, 70)
        check(dtype, 3, 4, 1100, split_depth=1000)
    for dtype in (np.float64, np.complex64, np.int8, np.uint16, np.float16, np.bool_):
        check(dtype, 5, 40, 11)
    print(jitgemm.show_config()["isa"], sorted(met))
"""


@pytest.mark.parametrize("registers", [24, 64])
@pytest.mark.parametrize("checked", [False, True], ids=["machine code", "interpreter"])
def test_a_process_that_adds_a_set_and_pins_it(registers: int, *, checked: bool) -> None:
    """Whole products of all kinds of types, by every route, from Python."""
    name = f"toy_{registers}{'_checked' * checked}"
    routes = ("stream the rows", "lanes of", "blocks at a time", "transposed in registers",
              "packed per call", "prepacked", "read in place")  # fmt: skip
    arguments = name, str(registers), ";".join(routes)
    said = run_python(PROGRAM, *arguments, JITGEMM_ISA=name, timeout=400).stdout
    assert said.startswith(f"{name} [")
    for route in routes:
        assert route in said
