"""Every word of the kernel language means the same on both backends.

Two parts: each operation of each instruction set's table against its executable meaning, on values
chosen to break it; and a small kernel for every other word, run by machine code and interpreter.
Sources are written once; what they leave in memory is compared byte for byte.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from language import Array, assert_same, execute, function, machine_sets, op_function

from jitgemm.errors import LanguageError
from jitgemm.isa import types
from jitgemm.isa.tables import BY_NAME, Isa
from jitgemm.isa.types import ElementType
from jitgemm.lang.core import Int, Kernel, Ptr
from jitgemm.lang.interp import Memory, dtype_of, run
from rows import FOLDS


@pytest.fixture(autouse=True, scope="module")
def _no_disk_cache() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JITGEMM_CACHE", "0")
        yield


every_isa = pytest.mark.parametrize("isa", machine_sets())
every_float = pytest.mark.parametrize("element", [types.F32, types.F64], ids=str)
# One of each width, arithmetic and format; signs do not matter where nothing is computed.
every_element = pytest.mark.parametrize(
    "element", [types.F32, types.F64, types.U8, types.I16, types.I32, types.U64, types.BF16],
    ids=str,
)  # fmt: skip


# -- operations ------------------------------------------------------------------------------------


def specials(element: ElementType) -> Array:
    """Values at the borders of the format."""
    dtype = dtype_of(element)
    info = np.finfo(dtype)
    one = dtype.type(1)
    positive = [
        0.0, info.smallest_subnormal, 3 * info.smallest_subnormal,
        info.smallest_normal - info.smallest_subnormal, info.smallest_normal,
        info.eps, np.nextafter(one, dtype.type(0)), 1.0, np.nextafter(one, dtype.type(2)),
        1.5, 3.0, np.sqrt(info.smallest_normal), np.sqrt(info.max), info.max / 2, info.max, np.inf,
    ]  # fmt: skip
    values = np.array([*positive, *np.negative(positive), np.nan], dtype)
    assert np.unique(values[:-1].view(f"u{dtype.itemsize}")).size == values.size - 1
    return values


def operands(element: ElementType, arity: int, lanes: int) -> list[Array]:
    """Columns of operands: all tuples of special values, then random and cancelling ones."""
    rng, dtype = np.random.default_rng(arity), dtype_of(element)
    special = specials(element)
    # Of more operands than two a part of all tuples, still every pair of values in each two places:
    # the strides share no divisor with the number of values.
    stride = {3: 4, 4: 97}.get(arity, 1)
    assert np.gcd(stride, special.size) == 1
    tuples = np.array(list(itertools.product(special, repeat=arity))[::stride], dtype)
    exponents = rng.integers(-20, 20, (arity, 512))
    random = (rng.standard_normal((arity, 512)) * 2.0**exponents).astype(dtype)
    close = rng.uniform(1, 2, (arity, 512)).astype(dtype)
    # The last operand nearly cancels the result of the other ones, exactly, by one or by few bits.
    with np.errstate(all="ignore"):
        last = -close[0] * close[1] if arity == 3 else -close[0]
        close[-1] = last + rng.integers(-2, 3, 512) * np.spacing(last)
    table = np.concatenate([tuples, random.T, close.T])
    table = table[: len(table) // lanes * lanes] if lanes > 1 else table[:: len(table) // 2000 + 1]
    return [np.ascontiguousarray(column) for column in table.T]


BITS = {"exponent", "mantissa", "pow2", "bswap"}
"""Operations on bit patterns: what they make of a NaN is no NaN."""


def op_rows() -> list[Any]:
    return [
        pytest.param(*p.values, name, id=f"{p.id}-{name}", marks=p.marks)
        for p in machine_sets()
        for name in p.values[0].ops
        if name not in FOLDS
    ]


@pytest.mark.parametrize("scalar", [False, True], ids=["vector", "scalar"])
@every_float
@pytest.mark.parametrize("isa, name", op_rows())
def test_op(isa: Isa, name: str, element: ElementType, scalar: bool) -> None:  # noqa: FBT001
    """The machine's operation is the table's meaning, in a vector and in a single lane."""
    lanes, op = (1 if scalar else isa.lanes(element)), isa.ops[name]
    columns = operands(element, op.arity, lanes)
    arrays = {"out": np.zeros_like(columns[0])} | {f"x{i}": c for i, c in enumerate(columns)}
    f = op_function(name, op.arity, element, lanes)
    out = execute(f, isa, arrays, columns[0].size)["out"]
    with np.errstate(all="ignore"):
        assert_same(out, np.asarray(op.meaning(*columns)), name)
    if name not in BITS:
        assert np.isnan(out).any()  # the special values got through
        assert np.isinf(out).any()


# -- integers and control --------------------------------------------------------------------------


def run_numbers(name: str, isa: Isa, body: Callable[[Kernel, Ptr, Int, Int], None], slots: int,
                inputs: list[tuple[int, int]]) -> list[list[int]]:  # fmt: skip
    """Run an integer kernel ``f(out, a, b)`` for each pair of inputs."""
    f = function(name, "out* a b", body)
    return [
        execute(f, isa, {"out_numbers": np.full(slots, -77, np.int64)}, a, b)[
            "out_numbers"
        ].tolist()
        for a, b in inputs
    ]


@every_isa
def test_integers(isa: Isa) -> None:
    """Arithmetic, comparisons and selections of 64-bit integers."""

    def body(k: Kernel, out: Ptr, a: Int, b: Int) -> None:
        values = [
            a + b, 5 + a, a - b, 7 - a, a * b, 3 * a, a // b, a % b, a & b, a | b, a // 1, a * 0,
            k.min(a, b), k.min(a, 3), k.ceil_div(a, b), k.const(7) // 2 + k.const(7) % 4,
        ]  # fmt: skip
        conditions = [
            a < b, a <= b, a > b, a >= b, a.equals(b), a.differs(b), ~(a < b),
            (a < b) & (a < 3), (a < b) | (a < 3),
        ]  # fmt: skip
        for slot, value in enumerate(values):
            k.store_int(out + 8 * slot, value)
        for slot, condition in enumerate(conditions, len(values)):
            k.store_int(out + 8 * slot, k.select(condition, k.const(1), k.const(0)))

    pairs = [(0, 1), (1, 1), (2, 9), (9, 2), (9, 3), (1 << 40, 3), (12345678901, 1 << 29)]
    for (a, b), got in zip(pairs, run_numbers("integers", isa, body, 25, pairs), strict=True):
        assert got[:3] == [a + b, 5 + a, a - b]
        assert got[4:8] == [a * b, 3 * a, a // b, a % b]
        assert got[12:16] == [min(a, b), min(a, 3), -(-a // b), 6]
        assert got[16:20] == [a < b, a <= b, a > b, a >= b]
        assert got[23:] == [a < b and a < 3, a < b or a < 3]


@every_isa
def test_negative_integers(isa: Isa) -> None:
    """Sums, products and comparisons are signed."""

    def body(k: Kernel, out: Ptr, a: Int, b: Int) -> None:
        for slot, value in enumerate((a + b, a - b, a * b, k.min(a, b), a & b, a | b)):
            k.store_int(out + 8 * slot, value)

    pairs = [(-3, 5), (5, -3), (-4, -9), (-(1 << 62), 1)]
    for (a, b), got in zip(pairs, run_numbers("negatives", isa, body, 6, pairs), strict=True):
        assert got == [a + b, a - b, a * b, min(a, b), a & b, a | b]


@every_isa
def test_range(isa: Isa) -> None:
    """Loops run for every counter below the bound, or not at all; variables carry state."""

    def body(k: Kernel, out: Ptr, a: Int, b: Int) -> None:
        total, rounds = k.var(k.const(0)), k.var(k.const(0))
        for i in k.range(a, b, 3):
            total.value = total.value * 10 + i
            for _ in k.range(i, b):
                rounds.value = rounds.value + 1
        k.store_int(out, total.value)
        k.store_int(out + 8, rounds.value)
        for i in k.range(0, 3):
            k.store_int(out + 16 + i * 8, i * i)

    pairs = [(0, 10), (0, 9), (3, 4), (4, 4), (5, 4), (2, 8)]
    for (a, b), got in zip(pairs, run_numbers("ranges", isa, body, 6, pairs), strict=True):
        total = 0
        for i in range(a, b, 3):
            total = total * 10 + i
        assert got == [total, sum(b - i for i in range(a, b, 3)), 0, 1, 4, -77]


@every_isa
def test_branches_and_cases(isa: Isa) -> None:
    """Exactly one arm runs; an arm may contain loops and further arms."""

    def body(k: Kernel, out: Ptr, a: Int, b: Int) -> None:
        x = k.var(a)
        for yes in k.branches(a < b):
            if yes:
                for inner in k.branches(b < 10):
                    x.value = x.value + (1 if inner else 2)
            else:
                for i in k.range(0, b):
                    x.value = x.value + i
        for _ in k.when(a.equals(b)):
            x.value = x.value + 1000
        k.store_int(out, x.value)
        for label in k.cases(b, [2, 3, 70]):
            for _ in k.range(0, label):
                x.value = x.value + 1
            k.store_int(out + 8, x.value)

    pairs = [(1, 2), (1, 70), (5, 3), (3, 3), (2, 3)]
    for (a, b), got in zip(pairs, run_numbers("arms", isa, body, 2, pairs), strict=True):
        x = a + ((1 if b < 10 else 2) if a < b else b * (b - 1) // 2) + 1000 * (a == b)
        assert got == [x, x + b]


@every_isa
def test_repeat_while(isa: Isa) -> None:
    """The condition is evaluated before each round, also before the first."""

    def body(k: Kernel, out: Ptr, a: Int, b: Int) -> None:
        x, rounds = k.var(a), k.var(k.const(0))
        for _ in k.repeat_while(lambda: x.value > b):
            for odd in k.branches((x.value % 2).equals(1)):
                x.value = x.value - 1 if odd else x.value // 2
            rounds.value = rounds.value + 1
        k.store_int(out, x.value)
        k.store_int(out + 8, rounds.value)

    pairs = [(100, 7), (7, 7), (0, 0), (1 << 40, 1)]
    for (x, least), got in zip(pairs, run_numbers("repeats", isa, body, 2, pairs), strict=True):
        rounds = 0
        while x > least:
            x, rounds = x - 1 if x % 2 else x // 2, rounds + 1  # noqa: PLW2901
        assert got == [x, rounds]


@every_isa
def test_shared_memory(isa: Isa) -> None:
    """Counters that threads share: a draw returns what was there before."""

    def body(k: Kernel, out: Ptr, a: Int, b: Int) -> None:
        k.store_int(out, a)
        k.store_int(out + 8, k.fetch_add(out, b))
        k.store_int(out + 16, k.fetch_add(out, 3))
        k.store_int(out + 24, k.load_shared(out))
        one, other = k.const(1), k.const(0)
        for at, expected in ((32, b), (40, a)):
            # Only the second one finds what it expects there.
            k.store_int(out + at, a)
            k.store_int(out + 48, k.load_int(out + at))
            met = k.compare_exchange(out + 48, expected, expected + 9)
            k.store_int(out + at, k.select(met, one, other) * 1000 + k.load_int(out + 48))
        k.pause()
        k.yield_core()
        k.wake(out, 1)
        # Nobody sleeps: the value is another.
        k.sleep_while(out, k.load_int(out) + 1)

    pairs = [(0, 1), (5, -2)]
    for (a, b), got in zip(pairs, run_numbers("shared", isa, body, 7, pairs), strict=True):
        assert got == [a + b + 3, a, a + b, a + b + 3, a, 1000 + a + 9, a + 9]


def test_sleeping_alone_is_refused_by_the_interpreter() -> None:
    """It would not end."""
    body = function("alone", "out*", lambda k, out: k.sleep_while(out, k.load_int(out)))
    memory = Memory()
    at = memory.add("out", np.zeros(8, np.uint8), writable=True)
    with pytest.raises(LanguageError, match="no other thread"):
        run(body, memory, BY_NAME["portable"], at)


@every_isa
def test_call_scratch_and_pointers(isa: Isa) -> None:
    """Functions see their own scratch memory; pointers survive memory, variables, selection."""

    def fill(k: Kernel, at: Ptr, value: Int) -> None:
        own = k.scratch(64)
        k.store_int(own + 8, value * 2)
        k.store_int(at, k.load_int(own + 8))

    callee = function("fill", "at* value", fill)

    def body(k: Kernel, out: Ptr, a: Int, b: Int) -> None:
        table = k.scratch(16)
        k.store_ptr(table, out + 8)
        k.store_ptr(table + 8, out + a * 8)
        cursor = k.var(k.load_ptr(table))
        k.call(callee, cursor.value, 5)
        cursor.value = k.opaque(cursor.value) + 8
        k.call(callee, cursor.value, k.opaque(b))
        k.call(callee, k.select(a < b, k.load_ptr(table + 8), out), a)
        for write, near in itertools.product((False, True), repeat=2):
            k.prefetch(out + 1_000_000, write=write, near=near)

    pairs = [(3, 9), (4, 1)]
    got = run_numbers("pointers", isa, body, 5, pairs)
    assert got == [[-77, 10, 18, 6, -77], [8, 10, 2, -77, -77]]


# -- vectors and memory ----------------------------------------------------------------------------


def filled(element: ElementType, count: int, *, shift: int = 0) -> Array:
    """Distinct numbers, ``shift`` bytes off their alignment."""
    values = np.arange(1, count + 1).astype(dtype_of(element))
    if not element.integral and not element.format:
        values *= values.dtype.type(1.1)
    owner = np.empty(values.nbytes + 128, np.uint8)
    skip = -owner.__array_interface__["data"][0] % 64 + shift
    owner[skip : skip + values.nbytes] = values.view(np.uint8)
    return owner[skip : skip + values.nbytes].view(values.dtype)


@pytest.mark.parametrize("shift", [0, 1, 3])
@every_element
@every_isa
def test_load_store(isa: Isa, element: ElementType, shift: int) -> None:
    """Vectors and scalars at any address, splats and zeros."""
    lanes = isa.lanes(element)

    def body(k: Kernel, out: Ptr, x: Ptr) -> None:
        size = element.bytes
        k.store(out, k.load(x + size, element, lanes))
        k.store(out + lanes * size, k.splat(k.load(x + 2 * size, element), lanes))
        k.store(out + 2 * lanes * size, k.zero(element, lanes))
        k.store(out + 3 * lanes * size, k.load(x, element))
        k.store(out + (3 * lanes + 1) * size, k.zero(element, 1))
        k.store(out + (3 * lanes + 2) * size, k.splat(k.load(x, element), 1))

    f = function(f"load_store_{element}", "out* x*", body)
    x, before = filled(element, lanes + 1), filled(element, 3 * lanes + 4, shift=shift)
    arrays = {"out": before, "x": filled(element, lanes + 1, shift=shift)}
    out = execute(f, isa, arrays)["out"]
    want = [*x[1:], *[x[2]] * lanes, *[0] * lanes, x[0], 0, x[0], before[-1]]
    assert_same(out, np.array(want, x.dtype), "load and store")


@every_element
@every_isa
def test_masks(isa: Isa, element: ElementType) -> None:
    """Lanes outside a mask are read as zero, and neither read nor written in memory."""
    lanes = isa.lanes(element)

    def body(k: Kernel, out: Ptr, x: Ptr, read: Int, written: Int) -> None:
        v = k.load(x, element, lanes, k.mask(read, element, lanes))
        k.store(out, v, k.mask(written, element, lanes))

    f = function(f"masks_{element}", "out* x* read written", body)
    some = range(lanes + 2)
    if lanes > 16:  # each end and the middle: all pairs would take minutes
        half = lanes // 2
        some = [*range(3), *range(half - 1, half + 2), *range(lanes - 1, lanes + 2)]
    counts = [-(1 << 40), -1, *some, 1 << 33]
    for read, written in itertools.product(counts, counts):
        live, stored = (max(0, min(n, lanes)) for n in (read, written))
        # No element beyond the mask exists: the interpreter refuses to touch it.
        x, before = filled(element, live), filled(element, stored)
        out = execute(f, isa, {"out": before, "x": x}, read, written)["out"]
        want = np.zeros(lanes, x.dtype)
        want[:live] = x
        assert_same(out, want[:stored], f"mask of {read} and {written}")


@every_element
@every_isa
def test_masked_store_leaves_memory_alone(isa: Isa, element: ElementType) -> None:
    """What lies beyond a mask keeps its bytes."""
    lanes = isa.lanes(element)

    def body(k: Kernel, out: Ptr, x: Ptr, count: Int) -> None:
        k.store(out, k.load(x, element, lanes), k.mask(count, element, lanes))

    f = function(f"masked_store_{element}", "out* x* count", body)
    for count in range(lanes + 1):
        x, before = filled(element, lanes), -filled(element, lanes)
        out = execute(f, isa, {"out": before, "x": x}, count)["out"]
        assert_same(out, np.where(np.arange(lanes) < count, x, before), f"mask of {count}")


@every_element
@every_isa
def test_scalar_mask(isa: Isa, element: ElementType) -> None:
    """A mask of one lane is a condition on one element."""

    def body(k: Kernel, out: Ptr, x: Ptr, count: Int) -> None:
        mask = k.mask(count, element, 1)
        k.store(out, k.load(x, element, 1, mask), mask)

    f = function(f"scalar_mask_{element}", "out* x* count", body)
    for count in (-1, 0, 1, 5):
        x, before = filled(element, 1), -filled(element, 1)
        out = execute(f, isa, {"out": before, "x": x}, count)["out"]
        assert_same(out, x if count > 0 else before, f"mask of {count}")


@every_element
@every_isa
def test_vector_variables(isa: Isa, element: ElementType) -> None:
    """Vectors rebound in loops and branches."""
    if element.format:
        element = types.U16  # a format has no arithmetic
    lanes = isa.lanes(element)

    def body(k: Kernel, out: Ptr, x: Ptr, count: Int) -> None:
        total = k.var(k.zero(element, lanes))
        first = k.var(k.zero(element, 1))
        for i in k.range(0, count):
            v = k.load(x + i * element.bytes, element, lanes)
            for even in k.branches((i % 2).equals(0)):
                if even:
                    total.value = k.op("add", total.value, v)
                else:
                    total.value = k.op("mul", total.value, v)
                    first.value = k.load(x + i * element.bytes, element)
        k.store(out, total.value)
        k.store(out + lanes * element.bytes, first.value)

    f = function(f"vector_variables_{element}", "out* x* count", body)
    for count in (0, 1, 5):
        x = filled(element, lanes + 5)
        out = execute(f, isa, {"out": filled(element, lanes + 1), "x": x}, count)["out"]
        want = np.zeros(lanes, x.dtype)
        for i in range(count):
            want = want * x[i : i + lanes] if i % 2 else want + x[i : i + lanes]
        assert_same(out[:lanes], want, f"{count} rounds")
        assert out[-1] == (x[3] if count > 3 else 0)
