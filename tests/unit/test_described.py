"""Plans for machines that are described: the set each uses, and blocking by its caches."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from test_planner import check_plan, check_split

from jitgemm.cli.elsewhere import of_core
from jitgemm.errors import IsaError
from jitgemm.isa.tables import BY_NAME as SETS
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import BF16, F16, F32, F64, I8, I16, I32, I64, U8, ElementType
from jitgemm.jit.compiler import gemm_unit, text
from jitgemm.kernels.arithmetic import OperandTypes, sum_type
from jitgemm.kernels.registry import matrix_tile, tile_for
from jitgemm.kernels.spec import BSource
from jitgemm.lang.module import RunsIn
from jitgemm.planner.caches import Machine
from jitgemm.planner.cores import BY_NAME, Core
from jitgemm.planner.explain import explain
from jitgemm.planner.problem import Operand, Problem
from jitgemm.planner.route import Context, Dot, GemmPlan, PackA, SplitDepth, make_plan
from jitgemm.tuning import KNOBS

CORES = list(BY_NAME.values())
TYPES = [
    OperandTypes.of(F32), OperandTypes.of(F64), OperandTypes.of(I32),
    OperandTypes(F16, F16, F32, F32, F16), OperandTypes(BF16, BF16, F32, F32, BF16),
    OperandTypes(BF16, BF16, F32, F32, F32, bf16_dot=True),
    OperandTypes(U8, I8, I32, I32, I32), OperandTypes(I16, I16, I64, I64, I64),
]  # fmt: skip
# Square, tall, wide, deep, thin, and a shape of a language model.
SHAPES = [
    (1, 1, 5000), (1, 4096, 4096), (4096, 4096, 1), (8, 768, 3072), (100, 100, 100),
    (37, 129, 1001), (512, 768, 3072), (2048, 2048, 2048), (16, 200_000, 24), (3000, 64, 40),
]  # fmt: skip


def _named(x: object) -> str:
    if isinstance(x, OperandTypes):
        return f"{x.a}@{x.b}:{x.out}"
    return x.name if isinstance(x, Core) else str(x)


def _context(core: Core, threads: int, isa: Isa | None = None) -> Context:
    return Context(
        isa or of_core(core, None), core.machine, threads, lambda name: KNOBS[name].default
    )


def _problem(shape: tuple[int, int, int], types: OperandTypes, orders: str) -> Problem:
    m, k, n = shape

    def operand(order: str, rows: int, cols: int, element: ElementType) -> Operand:
        e = element.bytes
        return Operand(cols * e, e) if order == "C" else Operand(e, rows * e)

    a, b, d = orders
    return Problem(
        sum_type(types), m, n, k, operand(a, m, k, types.a),
        None if b == "P" else operand(b, k, n, types.b), operand(d, m, n, types.out), types=types,
    )  # fmt: skip


# -- sets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("core", CORES, ids=_named)
def test_a_core_uses_the_first_set_it_has(core: Core) -> None:
    isa = of_core(core, None)
    able = [x.name for x in SETS.values() if not x.interpreted and x.requires <= core.features
            and x.arch in ("", core.arch)]  # fmt: skip
    assert isa.name == able[0]
    for name, known in SETS.items():
        if name in able or known.interpreted:
            assert of_core(core, name).name == name
        else:
            with pytest.raises(IsaError, match=f"^jitgemm: --isa: .*{core.name}.*'{name}', which"):
                of_core(core, name)


def test_sets_of_cores() -> None:
    found = {core.name: of_core(core, None).name for core in CORES}
    assert found["neoverse-n1"].startswith("neon")
    assert found["emeraldrapids"] == "avx512_amx"
    assert found["znver5"] == "avx512_bf16"
    assert found["apple-m4"] == "sme2"
    for name in ("neoverse-v1", "neoverse-n2", "neoverse-v2", "a64fx"):
        assert of_core(BY_NAME[name], None).vector_bits == BY_NAME[name].sve_bits
        assert of_core(BY_NAME[name], "neon").vector_bits == 128
    with pytest.raises(IsaError, match="which also needs sve"):
        of_core(BY_NAME["apple-m4"], "sve")
    with pytest.raises(IsaError, match=f"expected one of {', '.join(SETS)}, got 'sve3'"):
        of_core(BY_NAME["a64fx"], "sve3")


@pytest.mark.parametrize("bits", [128, 256, 512, 1024, 2048])
def test_streaming_vectors_are_as_long_as_the_machines(bits: int) -> None:
    """Whatever those of this process are: unit, tiles and plans follow."""
    core = replace(BY_NAME["apple-m4"], streaming_bits=bits)
    isa = of_core(core, None)
    assert isa.vector_bits == 128
    assert isa.inside is not None
    assert isa.inside.vector_bits == bits
    for types in TYPES:
        for shape in SHAPES[4:8]:
            plan = make_plan(_problem(shape, types, "CCC"), _context(core, 2, isa))
            check_plan(plan)
            _check_blocking(plan, core.machine)
            if plan.spec.tiles:
                assert plan.spec.lanes == bits // plan.spec.element.bits


@pytest.mark.parametrize("sve_bits, streaming_bits", [(512, 256), (512, 128), (128, 2048)])
def test_vectors_of_both_kinds_have_lengths_of_their_own(
    sve_bits: int, streaming_bits: int
) -> None:
    """Also where the streaming ones are the shorter ones."""
    core = replace(
        BY_NAME["neoverse-v2"], sve_bits=sve_bits, streaming_bits=streaming_bits,
        features=BY_NAME["neoverse-v2"].features | BY_NAME["apple-m4"].features,
    )  # fmt: skip
    isa = of_core(core, "sve_sme_wide")
    for types in TYPES:
        for shape in SHAPES[4:8]:
            plan = make_plan(_problem(shape, types, "CCC"), _context(core, 2, isa))
            check_plan(plan)
            assert plan.spec.nr % (streaming_bits // plan.spec.element.bits) == 0


def test_streaming_vectors_may_be_as_long_as_the_others() -> None:
    """Then functions of vectors are called alike in both modes, and each mode has its own."""
    core = replace(BY_NAME["apple-m4"], streaming_bits=128)
    plan = make_plan(_problem((99, 99, 99), TYPES[0], "CCC"), _context(core, 1))
    assert plan.spec.tiles
    code = text(gemm_unit(plan.spec))
    names = re.findall(r"^define .*@(\w+)\(.*#(\d)", code, re.MULTILINE)
    assert len(dict(names)) == len(names)
    modes = {name: int(mode) for name, mode in names}
    twice = [x for x in modes if f"{x}_inside" in modes or f"{x}_normal" in modes]
    assert twice
    for name in twice:
        pair = modes[name], modes.get(f"{name}_inside", modes.get(f"{name}_normal"))
        assert set(pair) == {RunsIn.NORMAL.value, RunsIn.INSIDE.value}


def test_code_for_vectors_of_another_length_is_other_code() -> None:
    """In memory and in the cache folder, which machines may share."""
    cores = [BY_NAME[x] for x in ("neoverse-n2", "neoverse-v1", "a64fx")]
    specs = [
        make_plan(_problem((99, 99, 99), TYPES[0], "CCC"), _context(x, 1, of_core(x, "sve"))).spec
        for x in cores
    ]
    assert all(x.isa.scalable for x in specs)
    m4 = BY_NAME["apple-m4"]
    specs += [
        make_plan(_problem((99, 99, 99), TYPES[0], "CCC"), _context(core, 1)).spec
        for core in (m4, replace(m4, streaming_bits=128))
    ]
    assert len({gemm_unit(x).key for x in specs}) == len({x.symbol for x in specs}) == 5


# -- blocking -------------------------------------------------------------------------------------


def _check_blocking(plan: GemmPlan, machine: Machine) -> None:
    """What a loop goes over again and again stays in the cache it is meant for."""
    b, spec, p = plan.blocking, plan.spec, plan.problem
    if spec.b is BSource.PACKED and p.b is not None:
        # Half of what all cores share, or a single micropanel; sums of columns come on top.
        panel = spec.in_memory.panel_row * b.depth_per_slice
        packed = -(-b.cols_per_block // spec.nr) * panel
        assert packed <= max(machine.l3.size // 2, panel)
        assert packed <= plan.workspace_b
    few = p.m <= 4 * spec.tile.mr and not plan.workspace_b
    if not few:
        rows = b.rows_per_chunk * b.depth_per_slice * spec.unit
        assert rows <= machine.l2.size // 4 or b.rows_per_chunk == b.tile_rows
    if plan.route.a.pack_a is not PackA.INPLACE and b.rows_per_chunk > b.tile_rows and not few:
        # A tile more than a chunk, and what widened micropanels take.
        assert plan.workspace_a_stride <= machine.l2.size


@pytest.mark.parametrize("types", TYPES, ids=_named)
@pytest.mark.parametrize("core", CORES, ids=_named)
def test_plans_for_described_machines(core: Core, types: OperandTypes) -> None:
    met: Counter[str] = Counter()
    for shape in SHAPES:
        for orders in ("CCC", "CFC", "FCC", "CPC", "CCF"):
            for threads in (1, core.cores):
                plan = make_plan(_problem(shape, types, orders), _context(core, threads))
                met[type(plan.route).__name__] += 1
                assert plan.spec.symbol in explain(plan, core.machine)
                assert plan.threads <= threads
                if isinstance(plan.route, SplitDepth):
                    check_split(plan)
                elif not isinstance(plan.route, Dot):
                    check_plan(plan)
                    _check_blocking(plan, core.machine)
    assert met["Blocked"]
    # Dots of bfloat16 have one order, and one route.
    assert len(met) > 1 or types.bf16_dot


@pytest.mark.parametrize("core", CORES, ids=_named)
def test_tiles_are_of_the_machines_set(core: Core) -> None:
    for name in (x for x in SETS if not SETS[x].interpreted):
        try:
            isa = of_core(core, name)
        except IsaError:
            continue
        for element in (F32, F64, I32, I64):
            made = _context(core, 1, isa)
            types = OperandTypes.of(element)
            spec = make_plan(_problem((512, 512, 512), types, "CPC"), made).spec
            tile = tile_for(element, isa)
            assert tile.mr * tile.nr_regs < isa.vector_registers
            assert spec.tile == (matrix_tile(element, tile, isa) if spec.tiles else tile)
            # Micropanels are those of vectors, whoever multiplies.
            assert spec.nr == tile.nr_regs * isa.vector_bits // element.bits


def test_caches_of_a_machine_decide() -> None:
    """The same problem on the same set: more rows of A where L2 is larger."""
    small, large = BY_NAME["neoverse-n2"], BY_NAME["neoverse-v2"]
    assert of_core(small, None).vector_bits == of_core(large, None).vector_bits
    p = _problem((4096, 512, 4096), TYPES[0], "CPC")
    rows = [make_plan(p, _context(x, 1)).blocking.rows_per_chunk for x in (small, large)]
    assert rows[1] > rows[0]
    # Pages are those of the machine that is described, not of this one.
    tall = _problem((1001, 500, 4000), TYPES[0], "FCC")
    pages = [make_plan(tall, Context(of_core(small, None), replace(small.machine, page=x), 1,
                                     lambda name: KNOBS[name].default)).route.a.pack_a
             for x in (4096, 65536)]  # fmt: skip
    assert pages[0] is PackA.PANELS
    assert pages[1] is not PackA.PANELS
