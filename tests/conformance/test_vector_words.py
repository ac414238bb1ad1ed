"""Masks, reductions, shifts, gathers, scalars and results: on both backends alike.

As in ``test_ops.py`` sources are written once, run by machine code and interpreter, and compared
byte for byte; then with what NumPy says.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from language import Array, assert_same, compiled_form, execute, function, machine_sets
from test_ops import specials

from jitgemm.errors import LanguageError
from jitgemm.isa import types
from jitgemm.isa.comparisons import COMPARISONS
from jitgemm.isa.tables import BY_NAME, Isa
from jitgemm.isa.types import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, ElementType
from jitgemm.jit import compiler
from jitgemm.lang.core import Cond, Function, Int, Kernel, Mask, Ptr, Vec, parameters
from jitgemm.lang.interp import Memory, dtype_of, run

every_isa = pytest.mark.parametrize("isa", machine_sets())
INTEGERS = [types.BY_NAME[f"{sign}{bits}"] for sign in "iu" for bits in (8, 16, 32, 64)]
NUMBERS = [F32, F64, *INTEGERS]
every_integer = pytest.mark.parametrize("element", INTEGERS, ids=str)
every_number = pytest.mark.parametrize("element", NUMBERS, ids=str)
both_widths = pytest.mark.parametrize("scalar", [False, True], ids=["vector", "scalar"])


@pytest.fixture(autouse=True, scope="module")
def _no_disk_cache() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JITGEMM_CACHE", "0")
        yield


def borders(element: ElementType) -> Array:
    """Values at the borders of a type."""
    if not element.integral:
        return specials(element)
    info = np.iinfo(dtype_of(element))
    near = [0, 1, 2, 3, 5, info.max // 2, info.max // 2 + 1, info.max - 1, info.max]
    return np.array(sorted({*near, *(info.min + x for x in near[:4])}), info.dtype)


def pairs(element: ElementType, lanes: int) -> tuple[Array, Array]:
    """All pairs of border values, a whole number of vectors."""
    table = np.array(list(product(borders(element), repeat=2)), dtype_of(element))
    table = np.resize(table, (-(-len(table) // lanes) * lanes, 2))
    return np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])


def lane_counts(isa: Isa, element: ElementType) -> list[int]:
    return [1 << n for n in range((2 * isa.lanes(element)).bit_length())]


def flags(k: Kernel, mask: Mask, element: ElementType) -> Vec:
    """1 in the lanes that are set."""
    one, none = (k.literal(x, element, mask.lanes) for x in (1, 0))
    return k.choose(mask, one, none)


def truth(k: Kernel, condition: Cond) -> Int:
    return k.select(condition, k.const(1), k.const(0))


# -- scalars and results ---------------------------------------------------------------------------


@every_isa
def test_scalars_of_every_type(isa: Isa) -> None:
    """A function takes scalars from Python and from another function, as they are."""
    names = list(types.BY_NAME)

    def fill(k: Kernel, out: Ptr, *scalars: Vec) -> None:
        for i, x in enumerate(scalars):
            assert (x.element.name, x.lanes) == (names[i], 1)
            k.store(out + 8 * i, x)

    declaration = "out* " + " ".join(f"x{i}:{name}" for i, name in enumerate(names))
    inner = function("fill_scalars", declaration, fill)

    def body(k: Kernel, out: Ptr, *scalars: Any) -> None:
        k.call(inner, out, *scalars)
        # Numbers known when generating stand for scalars as well.
        k.call(inner, out + 8 * len(names), *(1.0 if i < 2 else 1 for i in range(len(names))))

    f = function("pass_scalars", declaration, body)
    values = [-3 if e.signed and not e.format else 200 for e in types.BY_NAME.values()]
    values[names.index("f32")], values[names.index("f64")] = 0.1, -1e300
    values[names.index("bool")] = 1
    out = execute(f, isa, {"out_scalars": np.zeros(2 * len(names), np.int64)}, *values)
    got = out["out_scalars"]
    for i, element in enumerate(types.BY_NAME.values()):
        kind = dtype_of(element)
        assert got[i : i + 1].view(kind)[0] == kind.type(values[i]), element
        one = {BF16: 0x3F80, F16: 0x3C00}.get(element, 1)
        assert got[len(names) + i :].view(kind)[0] == one, element


@pytest.mark.parametrize("kind", ["int", *(e.name for e in NUMBERS)])
@every_isa
def test_results(isa: Isa, kind: str) -> None:
    """A function gives one value to its caller, in generated code and in Python."""
    declaration = "x y" if kind == "int" else f"x:{kind} y:{kind}"
    inner = Function(f"difference_{kind}", parameters(declaration), lambda k, x, y: x - y, kind)

    def body(k: Kernel, x: Any, y: Any) -> Any:
        return k.call(inner, k.call(inner, x, y), y)

    f = Function(f"result_{kind}", parameters(declaration), body, kind)
    x, y = (9.75, 1.5) if kind.startswith("f") else (100, 7)
    want = x - y - y
    for result in (compiled_form(f, isa)(x, y), run(f, Memory(), isa, x, y)):
        assert type(result) is type(want)
        assert result == want


@every_isa
def test_pointers_are_results(isa: Isa) -> None:
    inner = Function("second_word", parameters("p*"), lambda k, p: p + 8, "ptr")

    def body(k: Kernel, out: Ptr) -> None:
        k.store_int(k.call(inner, out), 5)

    out = execute(function("store_second", "out*", body), isa, {"out_p": np.zeros(2, np.int64)})
    assert out["out_p"].tolist() == [0, 5]


def refused(f: Function, isa: Isa, *args: float) -> None:
    for attempt in (lambda: run(f, Memory(), isa, *args), lambda: compiled_form(f, isa)):
        with pytest.raises(LanguageError):
            attempt()


def test_calls_are_checked() -> None:
    """Both backends refuse arguments and results of other types than are declared."""
    isa = BY_NAME["portable"]
    takes = {
        kind: function(f"takes_{kind}", f"x{'*' if kind == 'ptr' else ''}"
                       + (f":{kind}" if kind in types.BY_NAME else ""), lambda k, x: None)
        for kind in ("int", "ptr", "f32", "i32")
    }  # fmt: skip
    # A number known when generating may be any type of number, and never an address.
    gives: dict[str, Callable[[Kernel], Any]] = {
        "int": lambda k: k.const(1),
        "ptr": lambda k: k.scratch(8),
        "f32": lambda k: k.literal(1.5, F32, 1),
        "i32": lambda k: k.literal(2, I32, 1),
        "f32x4": lambda k: k.literal(1.5, F32, 4),
    }
    for (want, callee), (kind, give) in product(takes.items(), gives.items()):
        f = function(f"gives_{kind}", "", lambda k, c=callee, g=give: k.call(c, g(k)))
        if want == kind:
            run(f, Memory(), isa)
            compiled_form(f, isa)
        else:
            refused(f, isa)
    for want, (kind, give) in product((*takes, "f64"), gives.items()):
        if want != kind:
            refused(Function(f"returns_{kind}_{want}", (), give, want), isa)
    refused(Function("returns_nothing", (), lambda k: None, "f32"), isa)
    with pytest.raises(LanguageError, match="no element type 'f31'"):
        parameters("x* alpha:f31")


def test_returning_from_the_middle_is_refused() -> None:
    """Generated code would go on behind the loop."""

    def early(k: Kernel, n: Int) -> Any:
        for i in k.range(0, n):
            return i
        return n

    f = Function("early", parameters("n"), early, "int")
    with pytest.raises(LanguageError, match="returns inside a loop or branch"):
        compiled_form(f, BY_NAME["portable"])


# -- integers --------------------------------------------------------------------------------------


@every_isa
def test_shifts_and_xor_of_integers(isa: Isa) -> None:
    def body(k: Kernel, out: Ptr, a: Int, b: Int) -> None:
        values = [a << b, a >> b, a ^ b, a ^ -1, a >> 63, k.const(-40) >> 3, k.const(5) << 2]
        for slot, value in enumerate(values):
            k.store_int(out + 8 * slot, value)

    f = function("int_shifts", "out* a b", body)
    for a, b in ((0, 0), (1, 62), (-1, 62), (-5, 1), (12345, 7), (-(1 << 62), 1), (7, 0)):
        got = execute(f, isa, {"out_numbers": np.zeros(7, np.int64)}, a, b)["out_numbers"]
        assert got.tolist() == [a << b, a >> b, a ^ b, ~a, -(a < 0), -5, 20]


def test_impossible_shifts_are_refused() -> None:
    """What has no meaning, the interpreter says; amounts of vectors likewise."""
    isa = BY_NAME["portable"]
    f = function("shift", "a b", lambda k, a, b: [a << b, a >> b])
    run(f, Memory(), isa, 1, 62)
    for a, b in ((1, 64), (1, -1), (1, 63), (3, 62)):
        with pytest.raises(LanguageError):
            run(f, Memory(), isa, a, b)
    for name in ("shl", "lshr", "ashr"):
        v = function("shift_vector", "n:i32", lambda k, n, name=name: k.op(
            name, k.literal(1, I32, 4), k.splat(n, 4)))  # fmt: skip
        run(v, Memory(), isa, 31)
        for amount in (32, -1):
            with pytest.raises(LanguageError, match="shift"):
                run(v, Memory(), isa, amount)


@pytest.mark.parametrize("target", INTEGERS, ids=str)
@every_integer
@every_isa
def test_narrow(isa: Isa, element: ElementType, target: ElementType) -> None:
    """Numbers beyond the range of the target become its nearest one."""
    lanes = min(isa.lanes(element), isa.lanes(target))
    info = np.iinfo(dtype_of(target))
    edges = [e + d for e in (info.min, info.max) for d in (-1, 0, 1)]
    own = np.iinfo(dtype_of(element))
    values = [*borders(element).tolist(), *(e for e in edges if own.min <= e <= own.max)]
    x = np.resize(np.array(values, own.dtype), -(-len(values) // lanes) * lanes)

    def body(k: Kernel, out: Ptr, x: Ptr, count: Int) -> None:
        for i in k.range(0, count, lanes):
            v = k.load(x + i * element.bytes, element, lanes)
            k.store(out + i * target.bytes, k.narrow(v, target))

    f = function(f"narrow_{element}_{target}", "out* x* count", body)
    out = np.zeros(x.size, dtype_of(target))
    got = execute(f, isa, {"out": out, "x": x}, x.size)["out"]
    assert got.tolist() == [min(max(int(v), info.min), info.max) for v in x]


def test_narrow_to_truth_values() -> None:
    f = function("narrow_bool", "out* x*", lambda k, out, x: k.store(
        out, k.narrow(k.load(x, I32, 4), BOOL)))  # fmt: skip
    x = np.array([-7, 0, 1, 9], np.int32)
    out = execute(f, BY_NAME["portable"], {"out": np.zeros(4, np.uint8), "x": x})["out"]
    assert out.tolist() == [0, 0, 1, 1]


# -- masks -----------------------------------------------------------------------------------------


@both_widths
@every_number
@every_isa
def test_compare_lanes(isa: Isa, element: ElementType, scalar: bool) -> None:  # noqa: FBT001
    """A NaN compares with nothing and differs from all; integers by their signedness."""
    lanes = 1 if scalar else isa.lanes(element)
    a, b = pairs(element, lanes)

    def body(k: Kernel, out: Ptr, a: Ptr, b: Ptr, count: Int) -> None:
        for i in k.range(0, count, lanes):
            x, y = (k.load(p + i * element.bytes, element, lanes) for p in (a, b))
            said = [x < y, x <= y, x.equals(y), x.differs(y), x > y, x >= y]
            for number, mask in enumerate(said):
                where = out + (count * number + i) * element.bytes
                k.store(where, flags(k, mask, element))

    f = function(f"compare_{element}x{lanes}", "out* a* b* count", body)
    arrays = {"out": np.zeros(6 * a.size, a.dtype), "a": a, "b": b}
    got = execute(f, isa, arrays, a.size)["out"].reshape(6, -1)
    compare = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)
    assert list(COMPARISONS) == [f.__name__ for f in compare]
    for row, model in zip(got, compare, strict=True):
        assert row.astype(bool).tolist() == model(a, b).tolist(), model


@pytest.mark.parametrize("element", [F32, F64, U8, I16], ids=str)
@every_isa
def test_mask_operations(isa: Isa, element: ElementType) -> None:
    """Masks combine with each other wherever they come from, and tell about their lanes."""
    for lanes in {1, 2, isa.lanes(element), 2 * isa.lanes(element)}:

        def body(k: Kernel, out: Ptr, told: Ptr, x: Ptr, count: Int, lanes: int = lanes) -> None:
            v = k.load(x, element, lanes)
            some, first = v > 2, k.mask(count, element, lanes)
            masks = [some, first, ~some, ~first, some & first, some | first, some ^ first,
                     ~first | some, ~first & first, first ^ first]  # fmt: skip
            for i, mask in enumerate(masks):
                k.store(out + i * lanes * element.bytes, flags(k, mask, element))
                said = [truth(k, k.any(mask)), truth(k, k.all(mask)), k.count(mask)]
                said += [truth(k, k.lane(mask, lane)) for lane in (0, lanes - 1)]
                for j, value in enumerate(said):
                    k.store_int(told + 8 * (i * 5 + j), value)

        f = function(f"masks_{element}x{lanes}", "out* out_told* x* count", body)
        for count, values in product({0, 1, lanes - 1, lanes}, ("none", "all", "some")):
            x = np.full(lanes, {"none": 0, "all": 3}.get(values, 0), dtype_of(element))
            if values == "some":
                x[:] = np.random.default_rng(lanes).integers(0, 6, lanes)
            arrays = {"out": np.zeros(10 * lanes, x.dtype), "out_told": np.zeros(50, np.int64),
                      "x": x}  # fmt: skip
            result = execute(f, isa, arrays, count)
            s, m = x > 2, np.arange(lanes) < count
            want = [s, m, ~s, ~m, s & m, s | m, s ^ m, ~m | s, ~m & m, m ^ m]
            got = result["out"].reshape(10, -1).astype(bool)
            np.testing.assert_array_equal(got, want)
            told = [[w.any(), w.all(), w.sum(), w[0], w[-1]] for w in want]
            np.testing.assert_array_equal(result["out_told"].reshape(10, 5), told)


@pytest.mark.parametrize("element", [F32, F64, U8, I16, BF16], ids=str)
@every_isa
def test_any_mask_loads_and_stores(isa: Isa, element: ElementType) -> None:
    """Lanes that are not set are neither read nor written, wherever they lie."""
    lanes = isa.lanes(element)

    def body(k: Kernel, out: Ptr, x: Ptr, chosen: Ptr) -> None:
        mask = k.load(chosen, I8, lanes).differs(0)
        rest = k.literal(7, element, lanes)
        k.store(out, k.load(x, element, lanes, mask), mask)
        k.store(out + lanes * element.bytes, k.load(x, element, lanes, mask, rest))

    f = function(f"any_mask_{element}", "out_x* x* chosen*", body)
    rng = np.random.default_rng(1)
    x = np.arange(1, lanes + 1).astype(dtype_of(element))
    for number in range(12):
        chosen = rng.random(lanes) < (0, 0.5, 1, 0.2)[number % 4]
        before = np.full(2 * lanes, 99, x.dtype)
        arrays = {"out_x": before, "x": x, "chosen": chosen.astype(np.int8)}
        got = execute(f, isa, arrays)["out_x"]
        seven = x.dtype.type(0x40E0 if element.format else 7)
        assert_same(got[:lanes], np.where(chosen, x, before[:lanes]), "store")
        assert_same(got[lanes:], np.where(chosen, x, seven), "load")


def test_only_lanes_of_a_mask_are_checked() -> None:
    """The interpreter refuses lanes outside of the operand, if they are set."""
    base = np.arange(8, dtype=np.float32)
    memory, isa = Memory(), BY_NAME["interpreter"]
    at = memory.add("x", base[::2], writable=True)

    def body(k: Kernel, p: Ptr, wanted: int) -> None:
        mask = (k.steps(I32, 8) & 3).equals(wanted)
        x = k.load(p, F32, 8, mask)
        k.store(p, x + 1, mask)

    for wanted in (0, 2):
        run(function("even", "p*", lambda k, p, w=wanted: body(k, p, w)), memory, isa, at)
    assert base.tolist() == [1, 1, 3, 3, 5, 5, 7, 7]
    for wanted in (1, 3):
        odd = function("odd", "p*", lambda k, p, w=wanted: body(k, p, w))
        with pytest.raises(LanguageError, match="between the elements"):
            run(odd, memory, isa, at)


def test_masks_have_no_truth_value() -> None:
    f = function("truth", "x:f32", lambda k, x: bool(x > 0))
    refused(f, BY_NAME["portable"], 1.0)


# -- lanes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["add", "mul", "maximum", "minimum"])
@every_number
@every_isa
def test_reduce(isa: Isa, element: ElementType, name: str) -> None:
    """Halves are combined, in that order: sums of floats show it."""
    rng, op = np.random.default_rng(3), isa.table(element)[name]
    for lanes in lane_counts(isa, element):
        counts = [n for n in (1, 2, 4) if n <= lanes]

        def body(
            k: Kernel, out: Ptr, x: Ptr, lanes: int = lanes, counts: list[int] = counts
        ) -> None:
            v = k.load(x, element, lanes)
            for i, left in enumerate(counts):
                k.store(out + 4 * i * element.bytes, k.reduce(name, v, left))

        f = function(f"reduce_{name}_{element}x{lanes}", "out_x* x*", body)
        for _ in range(4):
            if element.integral:
                x = rng.choice(borders(element), lanes)
            else:
                x = (rng.standard_normal(lanes) * 10.0 ** rng.integers(-3, 4, lanes)).astype(
                    dtype_of(element)
                )
            got = execute(f, isa, {"out_x": np.zeros(12, x.dtype), "x": x})["out_x"]
            want = np.zeros(12, x.dtype)
            for i, left in enumerate(counts):
                v = x
                while v.size > left:
                    with np.errstate(all="ignore"):
                        v = op.meaning(v[: v.size // 2], v[v.size // 2 :])
                want[4 * i : 4 * i + left] = v
            assert_same(got, want, f"{lanes} lanes")


@pytest.mark.parametrize(
    "element, wide", [(F32, None), (F32, F64), (I8, I32), (U8, I32), (I16, I64), (I32, None)]
)
@every_isa
def test_reduce_groups(isa: Isa, element: ElementType, wide: ElementType | None) -> None:
    """Neighbours are combined, in a wider type if wanted."""
    result = wide or element
    lanes = isa.lanes(element)
    rng = np.random.default_rng(4)
    for group in [1 << n for n in range(lanes.bit_length())]:

        def body(k: Kernel, out: Ptr, x: Ptr, group: int = group) -> None:
            k.store(out, k.reduce_groups("add", k.load(x, element, lanes), group, wide))

        f = function(f"groups_{element}_{wide}_{group}", "out* x*", body)
        x = rng.integers(-100, 100, lanes).astype(dtype_of(element))
        if not element.integral:
            x *= x.dtype.type(1.1)
        out = np.zeros(lanes // group, dtype_of(result))
        want = x.astype(out.dtype)
        for _ in range(group.bit_length() - 1):
            want = want[::2] + want[1::2]
        assert_same(execute(f, isa, {"out": out, "x": x})["out"], want, f"groups of {group}")


def test_lanes_that_cannot_be_reduced_are_refused() -> None:
    isa = BY_NAME["portable"]
    bodies: list[Callable[[Kernel], Any]] = [
        lambda k: k.reduce("add", k.zero(F32, 6)),
        lambda k: k.reduce("add", k.zero(F32, 8), 3),
        lambda k: k.reduce("add", k.zero(F32, 2), 4),
        lambda k: k.reduce_groups("add", k.zero(F32, 8), 3),
        lambda k: k.reduce_groups("add", k.zero(F32, 4), 8),
        lambda k: k.extract(k.zero(F32, 4), 4),
        lambda k: k.insert(k.zero(F32, 4), 0, k.zero(F64, 1)),
        lambda k: k.load(k.scratch(16), F32, 4, k.mask(0, F32, 2)),
        lambda k: k.store(k.scratch(16), k.zero(F32, 4), k.mask(0, F32, 2)),
        lambda k: k.choose(k.mask(1, F32, 2), k.zero(F32, 4), k.zero(F32, 4)),
        lambda k: k.compare_lanes("lt", k.zero(F32, 4), k.zero(F32, 2)),
        lambda k: k.compare_lanes("lt", k.zero(BF16, 4), k.zero(BF16, 4)),
        lambda k: k.narrow(k.zero(F32, 4), I8),
        lambda k: k.integer(k.zero(F32, 1)),
        lambda k: k.integer(k.zero(I32, 2)),
        lambda k: k.gather(k.scratch(8), k.zero(types.U32, 4), F32),
        lambda k: k.gather(k.scratch(8), k.zero(I32, 4), F32, k.mask(1, F32, 2)),
        lambda k: k.zero(F32, 4) + k.zero(F64, 4),
        lambda k: k.zero(I32, 4) / 2,
        lambda k: list(k.when(k.zero(F32, 1) < 1)),
    ]
    for i, body in enumerate(bodies):
        refused(function(f"refused_{i}", "", body), isa)


@every_number
@every_isa
def test_extract_insert_and_integer(isa: Isa, element: ElementType) -> None:
    lanes = isa.lanes(element)

    def body(k: Kernel, out: Ptr, numbers: Ptr, x: Ptr) -> None:
        v = k.load(x, element, lanes)
        for lane in range(lanes):
            one = k.extract(v, lane)
            v = k.insert(v, lanes - 1 - lane, one)
            if element.integral:
                k.store_int(numbers + 8 * lane, k.integer(one))
        k.store(out, k.insert(k.extract(v, 0), 0, k.literal(3, element, 1)))
        k.store(out + element.bytes, v)

    f = function(f"extract_{element}", "out* out_numbers* x*", body)
    info = borders(element)
    x = np.resize(info[(info >= 0) | (np.dtype(info.dtype).kind != "u")], lanes)
    if element is types.U64:
        x = x >> np.uint64(1)
    arrays = {"out": np.zeros(lanes + 1, x.dtype), "out_numbers": np.zeros(lanes, np.int64), "x": x}
    result = execute(f, isa, arrays)
    want, numbers = x.copy(), []
    for lane in range(lanes):
        numbers.append(want[lane])
        want[lanes - 1 - lane] = want[lane]
    assert_same(result["out"][1:], want, "insert")
    assert result["out"][0] == 3
    if element.integral:
        assert result["out_numbers"].tolist() == [int(n) for n in numbers]


@every_isa
def test_operators_of_vectors(isa: Isa) -> None:
    """Operators are words; numbers and scalars stand in every lane."""
    lanes = isa.lanes(F32)

    def floats(k: Kernel, out: Ptr, x: Ptr, y: Ptr, s: Vec) -> None:
        a, b = (k.load(p, F32, lanes) for p in (x, y))
        n = k.const(5)
        values = [a + b, a - b, a * b, a / b, -a, a + s, s - a, 2 - a, 2 / a, a * 0.1, n * a, n + a]
        for i, v in enumerate(values):
            k.store(out + i * lanes * 4, v)

    f = function("float_operators", "out* x* y* s:f32", floats)
    rng = np.random.default_rng(5)
    x, y = rng.uniform(1, 2, (2, lanes)).astype(np.float32)
    s = np.float32(0.3)
    got = execute(f, isa, {"out": np.zeros(12 * lanes, np.float32), "x": x, "y": y}, float(s))
    want = [x + y, x - y, x * y, x / y, -x, x + s, s - x, 2 - x, 2 / x, x * np.float32(0.1), 5 * x,
            5 + x]  # fmt: skip
    assert_same(got["out"], np.concatenate(want), "floats")

    def whole(k: Kernel, out: Ptr, x: Ptr, y: Ptr) -> None:
        a = k.load(x, I32, lanes)
        u = k.bits(k.load(y, I32, lanes), types.U32)
        values = [a & 12, a | 12, a ^ -1, a << 3, a >> 3, k.op("lshr", a, k.literal(3, I32, lanes))]
        for i, v in enumerate([*values, k.bits(u >> 3, I32)]):
            k.store(out + i * lanes * 4, v)

    f = function("integer_operators", "out* x* y*", whole)
    x, y = rng.integers(-(1 << 31), 1 << 31, (2, lanes)).astype(np.int32)
    got = execute(f, isa, {"out": np.zeros(7 * lanes, np.int32), "x": x, "y": y})["out"]
    u, w = x.view(np.uint32), y.view(np.uint32)
    want = [x & 12, x | 12, ~x, x << 3, x >> 3, (u >> 3).view(np.int32), (w >> 3).view(np.int32)]
    assert_same(got, np.concatenate(want), "integers")


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [I32, I64], ids=str)
@pytest.mark.parametrize("element", [F32, F64, U8, I16, I32, I64, BF16], ids=str)
@every_isa
def test_gather(isa: Isa, element: ElementType, offset: ElementType) -> None:
    """Elements from anywhere, before the base too; lanes outside the mask are not touched."""
    for lanes in {1, 2, isa.lanes(element), 2 * isa.lanes(F64)}:

        def body(k: Kernel, out: Ptr, x: Ptr, at: Ptr, chosen: Ptr, lanes: int = lanes) -> None:
            size = lanes * element.bytes
            where = k.load(at, offset, lanes)
            mask = k.load(chosen, I8, lanes).differs(0)
            safe = k.choose(mask, where, k.zero(offset, lanes))
            rest = k.literal(7, element, lanes)
            middle = x + 50 * element.bytes
            k.store(out, k.gather(middle, safe, element))
            k.store(out + size, k.gather(middle, where, element, mask))
            k.store(out + 2 * size, k.gather(middle, where, element, mask, rest))

        f = function(f"gather_{element}_{offset}x{lanes}", "out* x* at* chosen*", body)
        rng = np.random.default_rng(lanes)
        x = np.arange(1, 101).astype(dtype_of(element))
        for share in (0, 0.5, 1):
            chosen = rng.random(lanes) < share
            index = rng.integers(-50, 50, lanes)
            at = (index * element.bytes).astype(dtype_of(offset))
            at[~chosen] = 1 << 30  # nobody may look there
            arrays = {"out": np.zeros(3 * lanes, x.dtype), "x": x, "at": at,
                      "chosen": chosen.astype(np.int8)}  # fmt: skip
            got = execute(f, isa, arrays)["out"].reshape(3, -1)
            seven = x.dtype.type(0x40E0 if element.format else 7)
            assert_same(got[0], x[50 + np.where(chosen, index, 0)], "all")
            some = x[50 + index]
            assert_same(got[1], np.where(chosen, some, x.dtype.type(0)), "some")
            assert_same(got[2], np.where(chosen, some, seven), "others")


@pytest.mark.parametrize("element", [U8, I16, F32, F64, I64], ids=str)
@every_isa
def test_gathers_use_the_instruction_where_there_is_one(isa: Isa, element: ElementType) -> None:
    def body(k: Kernel, out: Ptr, x: Ptr, at: Ptr) -> None:
        k.store(out, k.gather(x, k.load(at, I32, 4), element))

    f = function(f"gather_text_{element}", "out* x* at*", body)
    text = compiler.text(compiler.Unit("gather", isa, lambda: [f]))
    assert ("llvm.masked.gather" in text) == (isa.gathers and element.bytes >= 4)
    assert isa.gathers == isa.name.startswith("avx")


def test_gathers_are_checked() -> None:
    """The interpreter looks at each lane that is set."""
    x = np.zeros(4, np.float32)
    memory, isa = Memory(), BY_NAME["interpreter"]
    at = memory.add("x", x, writable=False)

    def body(k: Kernel, p: Ptr, live: Int) -> None:
        k.gather(p, k.steps(I32, 8) << 2, F32, k.mask(live, F32, 8))

    f = function("gather_some", "p* live", body)
    run(f, memory, isa, at, 4)
    with pytest.raises(LanguageError, match="load of 4 bytes"):
        run(f, memory, isa, at, 5)


@pytest.mark.parametrize("chains", [1, 3])
@every_isa
def test_strips(isa: Isa, chains: int) -> None:
    """Every element once and in order, the rest under a mask; chains take turns."""
    lanes = isa.lanes(F32)

    def body(k: Kernel, out: Ptr, order: Ptr, count: Int) -> None:
        sums = [k.var(k.zero(I32, lanes)) for _ in range(chains)]
        number = k.var(k.const(0))
        for start, mask, chain in k.strips(count, F32, lanes, chains):
            old = k.load(out + start * 4, I32, lanes, mask)
            k.store(out + start * 4, old + 1, mask)
            sums[chain].value = sums[chain].value + 1
            k.store_int(order + number.value * 8, start * 8 + chain)
            number.value = number.value + 1
        for chain, total in enumerate(sums):
            k.store_int(order + 8 * (20 + chain), k.integer(k.extract(total.value, 0)))

    f = function(f"strips_{chains}", "out_x* out_order* count", body)
    for count in (0, 1, lanes - 1, lanes, lanes + 1, 3 * lanes, 7 * lanes + 2, 9 * lanes):
        arrays = {"out_x": np.zeros(count + 1, np.int32), "out_order": np.zeros(23, np.int64)}
        got = execute(f, isa, arrays, count)
        assert got["out_x"].tolist() == [1] * count + [0]
        whole = count // (lanes * chains) * chains
        strips = -(-count // lanes)
        want = [i * lanes * 8 + (i % chains if i < whole else 0) for i in range(strips)]
        assert got["out_order"][:strips].tolist() == want
        turns = [sum(w % 8 == c for w in want) for c in range(chains)]
        assert got["out_order"][20 : 20 + chains].tolist() == turns
