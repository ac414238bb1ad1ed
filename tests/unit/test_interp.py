"""The checking interpreter refuses what machine code would do in silence."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jitgemm.errors import LanguageError
from jitgemm.isa.ops import Op
from jitgemm.isa.tables import AVX2, INTERPRETER, Isa
from jitgemm.isa.types import F32, F64
from jitgemm.kernels.job import JOB, TILE
from jitgemm.kernels.micro import microkernel
from jitgemm.kernels.spec import BSource, Epilogue, GemmSpec, Tile
from jitgemm.lang.core import Function, Kernel, Ptr, Vec, parameters
from jitgemm.lang.interp import InterpKernel, Memory, run

LANES = INTERPRETER.lanes(F32)


def execute(body: Callable[..., None], memory: Memory, *args: int, isa: Isa = INTERPRETER) -> None:
    """Run a body whose arguments are all pointers."""
    params = parameters(" ".join(f"p{i}*" for i in range(len(args))))
    run(Function("probe", params, body), memory, isa, *args)


def floats(*shape: int) -> Any:
    return np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)


# -- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [-4, 4, 4 * LANES, 1 << 40])
def test_out_of_bounds(offset: int) -> None:
    x = floats(LANES)
    memory = Memory()
    at = memory.add("x", x, writable=True)

    def load(k: Kernel, p: Ptr) -> None:
        k.load(p + offset, F32, LANES)

    def store(k: Kernel, p: Ptr) -> None:
        k.store(p + offset, k.zero(F32, LANES))

    for body, word in ((load, "load"), (store, "store")):
        with pytest.raises(LanguageError, match=rf"{word} of {4 * LANES} bytes at 0x.*'x'") as e:
            execute(body, memory, at)
        assert e.value.__notes__ == ["in probe"]
    np.testing.assert_array_equal(x, floats(LANES))


def test_the_last_byte_counts() -> None:
    """The last element may be read, one byte further may not; unaligned addresses are fine."""
    owner = np.zeros(4 * LANES + 1, np.uint8)
    x = owner[1:].view(np.float32)
    x[:] = floats(LANES)
    memory, read = Memory(), []
    at = memory.add("x", x, writable=False)

    def body(k: Kernel, p: Ptr) -> None:
        read.append(k.load(p, F32, LANES).handle.copy())
        read.append(k.load(p + 4 * (LANES - 1), F32).handle.copy())
        k.load(p + 1, F32, LANES)

    with pytest.raises(LanguageError, match="across the bounds of region 'x'"):
        execute(body, memory, at)
    np.testing.assert_array_equal(read[0], x)
    np.testing.assert_array_equal(read[1], x[-1:])


def test_adjacent_regions_are_not_one() -> None:
    """An access may not run from one operand into its neighbour."""
    both = floats(2 * LANES)
    memory = Memory()
    at = memory.add("left", both[:LANES], writable=False)
    memory.add("right", both[LANES:], writable=False)
    execute(lambda k, p: k.load(p + 4 * LANES, F32, LANES), memory, at)
    with pytest.raises(LanguageError, match="across the bounds"):
        execute(lambda k, p: k.load(p + 4, F32, LANES), memory, at)


def test_overlapping_regions() -> None:
    """Operands may share memory: what one of them allows is allowed."""
    x = floats(2, LANES)
    memory = Memory()
    at = memory.add("x", x, writable=False)
    out = memory.add("row", x[1], writable=True, initialised=False)

    def body(k: Kernel, p: Ptr, q: Ptr) -> None:
        k.load(p, F32, 2 * LANES)
        k.store(q, k.zero(F32, LANES))
        k.load(p, F32, 2 * LANES)

    execute(body, memory, at, out)
    with pytest.raises(LanguageError, match="in read-only region 'x'"):
        execute(lambda k, p: k.store(p, k.zero(F32, LANES)), memory, at)


def test_read_only() -> None:
    x = floats(LANES)
    memory = Memory()
    at = memory.add("x", x, writable=False)
    with pytest.raises(LanguageError, match=r"store of 32 bytes .* in read-only region 'x'"):
        execute(lambda k, p: k.store(p, k.zero(F32, LANES)), memory, at)
    with pytest.raises(LanguageError, match="in read-only"):
        execute(lambda k, p: k.store_int(p, 1), memory, at)
    np.testing.assert_array_equal(x, floats(LANES))


def test_uninitialised() -> None:
    """What was not written may not be read; each byte counts for itself."""
    x = floats(2 * LANES)
    memory = Memory()
    at = memory.add("x", x, writable=True, initialised=False)

    def write(k: Kernel, p: Ptr) -> None:
        k.store(p, k.zero(F32, LANES))
        k.load(p, F32, LANES)

    with pytest.raises(LanguageError, match="uninitialised in region 'x'"):
        execute(lambda k, p: k.load(p, F32), memory, at)
    execute(write, memory, at)
    with pytest.raises(LanguageError, match="uninitialised"):
        execute(lambda k, p: k.load(p + 4, F32, LANES), memory, at)


def test_gaps_of_a_strided_array() -> None:
    """What lies between the elements of an operand is not the operand."""
    base = floats(4, 2 * LANES)
    part = base[::-2, 1 : LANES + 1]
    memory = Memory()
    at = memory.add("part", part, writable=True)
    read: list[Vec] = []

    def body(k: Kernel, p: Ptr) -> None:
        read.append(k.load(p + part.strides[0], F32, LANES))
        k.store(p, k.zero(F32, LANES))

    execute(body, memory, at)
    np.testing.assert_array_equal(read[0].handle, part[1])
    want = floats(4, 2 * LANES)
    want[3, 1 : LANES + 1] = 0
    np.testing.assert_array_equal(base, want)
    # From the second row on one column too far; the row of `base` between the two.
    for shift in (part.strides[0] + 4, part.strides[0] // 2):
        with pytest.raises(LanguageError, match="between the elements of region 'part'"):
            execute(lambda k, p, s=shift: k.load(p + s, F32, LANES), memory, at)
        with pytest.raises(LanguageError, match=r"store .* between the elements of"):
            execute(lambda k, p, s=shift: k.store(p + s, k.zero(F32, LANES)), memory, at)


@pytest.mark.parametrize("count", [-1, 0, 3])
def test_masked_lanes_are_not_touched(count: int) -> None:
    live = max(count, 0)
    x, y = floats(live), -floats(live)
    memory, read = Memory(), []
    ax, ay = memory.add("x", x, writable=False), memory.add("y", y, writable=True)

    def body(k: Kernel, p: Ptr, q: Ptr) -> None:
        mask = k.mask(count, F32, LANES)
        v = k.load(p, F32, LANES, mask)
        read.append(v.handle)
        k.store(q, v, mask)

    execute(body, memory, ax, ay)
    np.testing.assert_array_equal(read[0], np.pad(x, (0, LANES - live)))
    np.testing.assert_array_equal(y, x)
    if live:
        with pytest.raises(LanguageError, match="bounds"):
            execute(lambda k, p: k.load(p, F32, LANES, k.mask(live + 1, F32, LANES)), memory, ax)


def test_misaligned_words() -> None:
    """Integers and pointers are promised to be aligned."""
    memory = Memory()
    at = memory.add("words", np.zeros(4, np.int64), writable=True)
    for body in (
        lambda k, p: k.load_int(p + 4),
        lambda k, p: k.store_int(p + 4, 1),
        lambda k, p: k.load_ptr(p + 1),
        lambda k, p: k.store_ptr(p + 1, p),
        lambda k, p: k.fetch_add(p + 4, 1),
    ):
        with pytest.raises(LanguageError, match="no multiple of 8"):
            execute(body, memory, at)


def test_scratch_is_uninitialised_and_ends_with_the_function() -> None:
    memory = Memory()
    kept: list[int] = []

    def callee(k: Kernel) -> None:
        p = k.scratch(100)
        assert p.handle % 64 == 0
        kept.append(p.handle)
        k.store_int(p + 88, 7)
        assert k.load_int(p + 88).handle == 7
        with pytest.raises(LanguageError, match="uninitialised in region 'scratch of callee'"):
            k.load_int(p + 80)
        with pytest.raises(LanguageError, match="across the bounds"):
            k.store_int(p + 96, 7)

    def body(k: Kernel) -> None:
        k.call(Function("callee", (), callee))
        k.load_int(Ptr(k, kept[0] + 88))

    with pytest.raises(LanguageError, match="in no region"):
        execute(body, memory)


def test_scratch_ends_with_a_failed_function() -> None:
    memory = Memory()
    before = list(memory._regions)

    def body(k: Kernel) -> None:
        k.scratch(64)
        k.load_int(k.scratch(64))

    with pytest.raises(LanguageError, match="uninitialised"):
        execute(body, memory)
    assert memory._regions == before


def test_real_memory() -> None:
    """Reads and writes go to the arrays themselves, also through pointers stored in memory."""
    x = floats(LANES)
    table = np.zeros(2, np.int64)
    memory = Memory()
    table[0] = memory.add("x", x, writable=True)
    at = memory.add("table", table, writable=False)
    x[1] = 77.0

    def body(k: Kernel, p: Ptr) -> None:
        q = k.load_ptr(p)
        k.store(q, k.load(q + 4, F32))
        k.prefetch(q + (1 << 50))

    execute(body, memory, at)
    np.testing.assert_array_equal(x, [77, 77, *range(3, LANES + 1)])


# -- registers ------------------------------------------------------------------------------------


def gemm_spec(tile: Tile, isa: Isa = INTERPRETER) -> GemmSpec:
    return GemmSpec(F32, isa, tile, BSource.INPLACE, Epilogue())


def micro(spec: GemmSpec, rows: int) -> tuple[Any, Any, Any]:
    """Run a microkernel of one micropanel on ones; ``a``, ``b`` and ``d``."""
    a, b = np.ones((rows, 2), np.float32), np.ones((2, spec.nr), np.float32)
    d = np.zeros((rows, spec.nr), np.float32)
    job, tile = np.zeros(JOB.slots, np.int64), np.zeros(TILE.slots, np.int64)
    memory = Memory()
    at = memory.add("d", d, writable=True, initialised=False)
    for name, value in {
        "a_row": a.strides[0], "a_col": 4, "b_row": b.strides[0], "panel_stride": spec.panel_row
    }.items():  # fmt: skip
        job[JOB.slot(name)] = value
    for name, value in {
        "target": at, "target_row": d.strides[0], "cols": spec.nr, "first": 1, "count": 1
    }.items():  # fmt: skip
        tile[TILE.slot(name)] = value
    run(
        microkernel(spec, 1, rows), memory, spec.isa,
        memory.add("job", job, writable=False), memory.add("tile", tile, writable=False),
        memory.add("a", a, writable=False), memory.add("b", b, writable=False), 2,
    )  # fmt: skip
    return a, b, d


def test_out_of_budget_tile() -> None:
    """17 sums in 16 registers: machine code would spill and be right; here it is an error."""
    fits, spills = (Tile(mr=rows, nr_regs=2, groups=((1, rows),)) for rows in (6, 9))
    fits.check(INTERPRETER.vector_registers, 1)
    a, b, d = micro(gemm_spec(fits), 6)
    np.testing.assert_array_equal(d, a @ b)
    with pytest.raises(LanguageError, match=r"out-of-budget tile: 17 .* has 16 registers"):
        micro(gemm_spec(spills), 9)
    with pytest.raises(ValueError, match="one that fits 16 registers"):
        spills.check(INTERPRETER.vector_registers, 1)
    with pytest.raises(ValueError, match="one that fits 16 registers"):
        fits.check(INTERPRETER.vector_registers, 2)  # a complex row is two of reals


def test_only_live_vectors_of_one_function_count() -> None:
    """Variables of a loop body are made anew each round, and callees save registers."""
    registers = INTERPRETER.vector_registers

    def callee(k: Kernel) -> None:
        cells = [k.var(k.zero(F32, LANES)) for _ in range(registers)]
        assert all(not c.value.handle.any() for c in cells)

    def body(k: Kernel) -> None:
        kept = k.var(k.zero(F32, LANES))
        counters = [k.var(k.const(0)) for _ in range(100)]
        for i in k.range(0, 3 * registers):
            cell = k.var(k.op("add", kept.value, kept.value))
            counters[0].value = counters[0].value + i
            kept.value = cell.value
        k.call(Function("callee", (), callee))
        assert counters[0].value.handle == sum(range(3 * registers))

    gc.disable()  # the count must not depend on the collector
    try:
        execute(body, Memory())
    finally:
        gc.enable()


def test_wide_vectors_take_several_registers() -> None:
    def body(k: Kernel, *, count: int) -> None:
        cells = [k.var(k.zero(F64, LANES)) for _ in range(count)]
        assert cells

    execute(lambda k: body(k, count=8), Memory())
    with pytest.raises(LanguageError, match="18 vector variables"):
        execute(lambda k: body(k, count=9), Memory())


# -- integers and control -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "compute",
    [
        lambda k: k.const((1 << 63) - 1) + 1,
        lambda k: k.const(-(1 << 63)) - 1,
        lambda k: k.const(1 << 32) * (1 << 31),
        lambda k: k.const(1 << 63),
    ],
)
def test_overflow(compute: Callable[[Kernel], object]) -> None:
    with pytest.raises(LanguageError, match="overflows a 64-bit integer"):
        execute(compute, Memory())
    execute(lambda k: k.const(-(1 << 31)) * (1 << 32), Memory())


@pytest.mark.parametrize("a, b", [(-1, 3), (3, -1), (3, 0)])
def test_division_is_unsigned(a: int, b: int) -> None:
    for compute in (lambda k: k.const(a) // b, lambda k: k.const(a) % b):
        with pytest.raises(LanguageError, match=f"of {a} by {b}"):
            execute(compute, Memory())


def test_unmatched_case() -> None:
    def body(k: Kernel, value: int) -> list[int]:
        return list(k.cases(k.const(value), [1, 2, 5]))

    k = InterpKernel(INTERPRETER, Memory())
    assert body(k, 5) == [5]
    for value in (0, 3, -1):
        with pytest.raises(LanguageError, match=rf"{value} is no case of \[1, 2, 5\]"):
            body(k, value)


@pytest.mark.parametrize("bounds", [(0, 3, 0), (0, 3, -1), (-2, 3, 1)])
def test_loops_count_up_from_zero_or_more(bounds: tuple[int, int, int]) -> None:
    k = InterpKernel(INTERPRETER, Memory())
    with pytest.raises(LanguageError, match="loop from"):
        list(k.range(*bounds))
    assert [i.handle for i in k.range(1, 8, 3)] == [1, 4, 7]
    assert list(k.range(-2, -5)) == []


def test_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InterpKernel, "max_rounds", 50)
    k = InterpKernel(INTERPRETER, Memory())
    left = k.var(k.const(50))
    for _ in k.repeat_while(lambda: left.value > 0):
        left.value = left.value - 1
    assert left.value.handle == 0
    with pytest.raises(LanguageError, match="did not end"):
        list(k.repeat_while(lambda: k.const(0) < 1))


def test_calls_check_their_arguments() -> None:
    k = InterpKernel(INTERPRETER, Memory())
    f = Function("callee", parameters("p* n"), lambda *_: None)
    p = Ptr(k, 64)
    k.call(f, p, 3)
    for args in ((p,), (p, 1, 2)):
        with pytest.raises(LanguageError, match="callee takes 2 arguments"):
            k.call(f, *args)
    for args in ((p, p), (1, 2)):
        with pytest.raises(LanguageError, match=r"callee: . must be"):
            k.call(f, *args)


# -- vectors --------------------------------------------------------------------------------------


def test_shapes_must_agree() -> None:
    memory = Memory()
    at = memory.add("x", floats(2 * LANES), writable=True)

    def rebind(k: Kernel, p: Ptr) -> None:
        k.var(k.zero(F32, LANES)).value = k.load(p, F32, 1)

    for body, text in (
        (lambda k, _: k.op("add", k.zero(F32, LANES), k.zero(F32, 1)), "different shapes"),
        (lambda k, _: k.op("add", k.zero(F32, 4), k.zero(F64, 4)), "different shapes"),
        (lambda k, _: k.op("add", k.zero(F32, 4)), "no 'add' of 1 operands"),
        (lambda k, _: k.op("tan", k.zero(F32, 4)), "no 'tan' of 1 operands"),
        (lambda k, _: k.splat(k.zero(F32, 2), 4), "splat of 2 lanes"),
        (lambda k, p: k.load(p, F32, LANES, k.mask(1, F32, 2)), "mask of 2 lanes"),
        (lambda k, p: k.store(p, k.zero(F32, LANES), k.mask(1, F32, 2)), "mask of 2 lanes"),
        (rebind, "rebound"),
    ):
        with pytest.raises(LanguageError, match=text):
            execute(body, memory, at)


def test_a_meaning_keeps_the_type() -> None:
    """A table whose meaning computes in another precision defines nothing."""
    wide = Op("half", 1, (), lambda a: a / np.float64(2) + np.zeros(a.shape))
    isa = Isa("toy", 256, 16, {"half": wide}, fused=True)
    with pytest.raises(LanguageError, match="meaning changes"):
        execute(lambda k: k.op("half", k.zero(F32, 8)), Memory(), isa=isa)


def test_operations_of_the_set_it_runs() -> None:
    """Another set's sources run with that set's meanings, whatever this machine has."""
    one, tiny = np.float32(1 + 2**-12), np.float32(2**-30)
    results = []
    for fused in (True, False):
        isa = AVX2 if fused else Isa("plain", 128, 16, {**_plain_ops()}, fused=False)
        k = InterpKernel(isa, Memory())
        a, c = (Vec(k, np.full(4, x, np.float32), F32, 4) for x in (one, tiny))
        results.append(k.op("madd", a, a, c).handle[0])
    assert results[0] != results[1]


def _plain_ops() -> dict[str, Op]:
    return {"madd": Op("madd", 3, (), lambda a, b, c: a * b + c)}
