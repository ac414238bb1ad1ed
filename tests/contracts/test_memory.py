"""Contract, "Memory": sentences 12 to 16."""

# ruff: noqa: FBT001  # parameters of a test are named by its decorator

from __future__ import annotations

import itertools
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import jitgemm
from oracle import (
    KINDS,
    LAYOUTS,
    NESTED,
    TINY,
    Guarded,
    another_machine,
    equal,
    exact_gemm,
    integers,
    is_complex,
    native,
    pairwise,
    run_python,
    unaligned,
)  # fmt: skip

Array = np.ndarray[Any, Any]
posix = pytest.mark.skipif(sys.platform == "win32", reason="uses mprotect")
once = pytest.mark.skipif(NESTED in os.environ, reason="the same on all instruction sets")
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

RELU = {"activation": "relu"}
# Edges of tiles are met with the tiles that are released.  Layouts and overlaps come with every
# kind of bias and C, each a kernel; low tiles compile in a third of the time.
LOW = ("test_c12", "test_c13_every_route", "test_c13_maps", "test_c14")
SIZES = (
    (1, 1, 1),
    (1, 1, 70),
    (1, 40, 9),
    (5, 7, 3),
    (6, 1, 30),
    (14, 33, 20),
    (35, 70, 17),
    (3, 9, 530),
)


@pytest.fixture(autouse=True)
def _tiles(request: pytest.FixtureRequest) -> None:
    if request.node.name.startswith(LOW):
        request.getfixturevalue("low")


# -- 12: any strides ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout, operand, kind",
    pairwise(LAYOUTS, ["a", "b", "c", "out", "bias"], KINDS),
    ids=lambda x: getattr(x, "__name__", x),
)
@pytest.mark.usefixtures("pieces")
def test_c12_any_layout_of_any_operand(
    layout: str, operand: str, kind: Any, rng: np.random.Generator
) -> None:
    if operand == "out" and layout == "odd strides of single axes":
        pytest.skip("covered by the test of single axes")
    place = LAYOUTS[layout]
    options: dict[str, Any] = {"beta": 2, **({"conj_a": True} if is_complex(kind) else RELU)}
    for m, n, k in SIZES:
        x = {
            "a": integers(rng, (m, k), kind),
            "b": integers(rng, (k, n), kind),
            "c": integers(rng, (m, n), kind),
            "bias": integers(rng, (1, n), kind),
        }
        want = exact_gemm(x["a"], x["b"], c=x["c"], bias=x["bias"], **options)
        x["out"] = np.full((m, n), 77, kind)
        x[operand] = place(x[operand])
        a, b = x.pop("a"), x.pop("b")
        for bias in (x["bias"], x["bias"][0]):
            x["bias"] = bias
            x["out"][...] = 77
            got = jitgemm.gemm(a, b, **options, **x)
            assert got is x["out"]
            equal(got, want, (m, n, k))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("pieces")
def test_c12_any_layout_of_every_bias(layout: str, kind: Any, rng: np.random.Generator) -> None:
    place = LAYOUTS[layout]
    for (m, n, k), shape in itertools.product(SIZES, ("n", "m1", "mn", "1n")):
        a, b = integers(rng, (m, k), kind), integers(rng, (k, n), kind)
        bias = integers(rng, {"m1": (m, 1), "mn": (m, n)}.get(shape, (1, n)), kind)
        want = exact_gemm(a, b, bias=bias)
        stored = place(bias)[0] if shape == "n" else place(bias)
        equal(jitgemm.gemm(a, b, bias=stored), want, (m, n, k, shape))
        equal(jitgemm.gemm(jitgemm.prepack_lhs(a), b, bias=stored), want, (m, n, k, shape))
        out = np.full((n, m), 77, kind).T
        equal(jitgemm.gemm(a, b, bias=stored, out=out), want, (m, n, k, shape))
        mine = stored[()]
        p = jitgemm.plan(a, b, bias=mine)
        equal(p(a, b), want, (m, n, k, shape))
        if mine.flags.writeable and 0 not in mine.strides:
            mine[...] = -mine  # a plan reads it at each call
            equal(p(a, b), exact_gemm(a, b, bias=mine), (m, n, k, shape))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_c12_layouts_combine(layout: str, rng: np.random.Generator) -> None:
    for (m, n, k), other in itertools.product(((1, 9, 7), (5, 1, 40), (31, 35, 9)), LAYOUTS):
        a, b = integers(rng, (m, k), np.float32), integers(rng, (k, n), np.float32)
        x, y, want = LAYOUTS[layout](a), LAYOUTS[other](b), exact_gemm(a, b)
        equal(jitgemm.gemm(x, y), want)
        equal(jitgemm.matmul(x, y), want)
        equal(jitgemm.matmul(y.T, x.T), want.T)
        if x.dtype.isnative:  # otherwise: the next test
            equal(jitgemm.gemm(x, jitgemm.prepack_rhs(y)), want)


def test_c12_foreign_byte_order_again_and_again(kind: Any, rng: np.random.Generator) -> None:
    a, b = integers(rng, (5, 7), kind), integers(rng, (7, 9), kind)
    packed, want = jitgemm.prepack_rhs(b), exact_gemm(a, b)
    for turn in range(20):
        foreign = a.astype(a.dtype.newbyteorder("S"))
        equal(jitgemm.gemm(foreign, packed), want, turn)
        equal(jitgemm.gemm(foreign, b.astype(foreign.dtype)), want, turn)
        equal(jitgemm.plan(foreign, packed)(foreign, packed), want, turn)


@pytest.mark.parametrize("rows, cols", [(0, 0), (0, 4), (4, 0), (0, -4), (-4, 0)])
def test_c12_zero_strides(rows: int, cols: int, dtype: Any) -> None:
    m, k, n = 9, 33, 21
    one = np.arange(1, 40).astype(dtype)

    def view(shape: tuple[int, int]) -> Array:
        step = one.itemsize // 4
        return np.lib.stride_tricks.as_strided(one[38:] if min(rows, cols) < 0 else one, shape,
                                               (rows * step, cols * step))  # fmt: skip

    full = integers(np.random.default_rng(1), (m, k), dtype)
    for a, b in ((view((m, k)), full.T[:, :9]), (full, view((k, n))), (view((m, k)), view((k, n)))):
        equal(jitgemm.gemm(a, b), exact_gemm(a, b))
        equal(jitgemm.matmul(a, b), exact_gemm(a, b))
    c = view((m, n))
    equal(jitgemm.gemm(full, full.T[:, :1] * np.ones((1, n), dtype), beta=1, c=c),
          exact_gemm(full, full.T[:, :1] * np.ones((1, n), dtype), beta=1, c=c))  # fmt: skip


@pytest.mark.parametrize("stride", [0, 1, 3, -8, 12_345_677, -(2**40), 2**62])
def test_c12_an_axis_of_length_1_may_carry_any_stride(
    stride: int, kind: Any, rng: np.random.Generator
) -> None:
    dtype = kind
    for m, n, k in ((1, 9, 5), (9, 1, 5), (9, 5, 1), (1, 1, 40), (1, 1, 1), (1, 600, 1)):
        a, b, c = (integers(rng, s, dtype) for s in ((m, k), (k, n), (m, n)))
        want = exact_gemm(a, b, beta=1, c=c, bias=c[0])

        def odd(x: Array) -> Array:
            strides = [s if l > 1 else stride for l, s in zip(x.shape, x.strides, strict=True)]
            return np.lib.stride_tricks.as_strided(x, x.shape, strides)

        out = np.full((m, n), 77, dtype)
        result = jitgemm.gemm(odd(a), odd(b), c=odd(c), beta=1, bias=c[0], out=odd(out))
        assert result.base is not None
        equal(out, want, (m, n, k))
        equal(jitgemm.matmul(odd(a), odd(b)), exact_gemm(a, b))
        equal(jitgemm.gemm(odd(a), jitgemm.prepack_rhs(odd(b))), exact_gemm(a, b))
        equal(jitgemm.gemm(jitgemm.prepack_lhs(odd(a)), odd(b)), exact_gemm(a, b))
        for bias in (c, c[:, :1], c[:1]):
            equal(jitgemm.gemm(a, b, bias=odd(bias)), exact_gemm(a, b, bias=bias))
        p = jitgemm.plan(odd(a), odd(b), out=odd(out))
        equal(p(odd(a), odd(b), odd(out)), exact_gemm(a, b))


def test_c12_strides_that_are_no_multiple_of_the_item(dtype: Any, rng: np.random.Generator) -> None:
    # A field of packed records: the columns are 4 or 8 bytes in records of 11.
    record = np.dtype(
        [("tag", "u1"), ("value", dtype), ("rest", f"V{10 - np.dtype(dtype).itemsize}")]
    )
    assert record.itemsize == 11
    for m, n, k in SIZES:
        stored = [np.zeros(s, record) for s in ((m, k), (k, n), (m, n))]
        a, b, out = (x["value"] for x in stored)
        a[...], b[...] = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
        assert jitgemm.gemm(a, b, out=out) is out
        equal(out, exact_gemm(a, b))
        assert not stored[2]["tag"].any()
        assert jitgemm.matmul(a, b, out) is out


def test_c12_read_only_operands(dtype: Any, rng: np.random.Generator) -> None:
    a, b, c = (integers(rng, s, dtype) for s in ((5, 7), (7, 9), (5, 9)))
    for x in (a, b, c):
        x.flags.writeable = False
    equal(jitgemm.gemm(a, b, beta=1, c=c, bias=c[0]), exact_gemm(a, b, beta=1, c=c, bias=c[0]))
    equal(jitgemm.matmul(a, b), exact_gemm(a, b))
    equal(jitgemm.gemm(a, jitgemm.prepack_rhs(b)), exact_gemm(a, b))


def test_c12_memory_mapped_files(tmp_path: Any, dtype: Any, rng: np.random.Generator) -> None:
    shapes = {"a": (31, 40), "b": (40, 33), "out": (31, 33)}
    maps = {name: np.memmap(tmp_path / name, dtype, "w+", shape=s) for name, s in shapes.items()}
    for name in ("a", "b"):
        maps[name][...] = integers(rng, shapes[name], dtype)
        maps[name].flush()
    a, b = (np.memmap(tmp_path / name, dtype, "r", shape=shapes[name]) for name in ("a", "b"))
    assert jitgemm.gemm(a, b, out=maps["out"]) is maps["out"]
    equal(maps["out"], exact_gemm(a, b))
    equal(jitgemm.matmul(a, b), exact_gemm(a, b))
    with pytest.raises(ValueError, match=r"^jitgemm: out: .*writable"):
        jitgemm.gemm(b.T, a.T, out=np.memmap(tmp_path / "out", dtype, "r", shape=(33, 31)))


class _Mine(np.ndarray[Any, Any]):
    pass


def test_c12_subclasses(dtype: Any, rng: np.random.Generator) -> None:
    a, b, c = (integers(rng, s, dtype) for s in ((5, 7), (7, 9), (5, 9)))
    out = np.empty((5, 9), dtype).view(_Mine)
    mine = [x.view(_Mine) for x in (a, b, c)]
    got = jitgemm.gemm(mine[0], mine[1], beta=1, c=mine[2], bias=mine[2][0], out=out)
    assert got is out
    equal(got, exact_gemm(a, b, beta=1, c=c, bias=c[0]))
    equal(jitgemm.matmul(mine[0], b, out), exact_gemm(a, b))
    assert type(jitgemm.gemm(*mine[:2])) is np.ndarray


def test_c12_lists_and_scalars_of_numpy() -> None:
    equal(jitgemm.gemm([[1.0, 2.0]], [[3.0], [4.0]]), np.array([[11.0]]))
    equal(jitgemm.matmul([[1.0, 2.0]], [[3.0], [4.0]]), np.array([[11.0]]))
    a = np.ones((2, 2), np.float32)
    equal(
        jitgemm.gemm(a, a, alpha=np.float32(2), beta=np.int8(1), c=a),
        np.full((2, 2), 5, np.float32),
    )
    equal(jitgemm.gemm(a, a, alpha=np.array(2.0)), np.full((2, 2), 4, np.float32))


def _huge_view(shape: tuple[int, int], step: int, dtype: Any, keep: list[Any]) -> Array:
    """A matrix whose rows (or columns, transposed) lie ``step`` bytes apart in reserved memory."""
    size = step * (shape[0] - 1) + shape[1] * np.dtype(dtype).itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    region = mmap.mmap(-1, size, flags)
    keep.append(region)
    return np.ndarray(shape, dtype, buffer=region, strides=(step, np.dtype(dtype).itemsize))


@linux
@pytest.mark.parametrize("operand", ["a", "a^T", "b", "b^T", "c", "out", "out^T"])
def test_c12_offsets_beyond_2_to_the_31(operand: str, dtype: Any, rng: np.random.Generator) -> None:
    step, keep = 2**31 + 4096 + 3, []
    name, transposed = operand.removesuffix("^T"), operand.endswith("^T")
    shapes = {"a": (4, 3), "b": (3, 4), "c": (4, 4), "out": (4, 4)}
    for repeat in (1, 12):  # few rows, and enough of them to be packed
        shapes["a"] = (4 * repeat, 3)
        shapes["c"] = shapes["out"] = (4 * repeat, 4)
        if name != "b" and repeat > 1 and not transposed:
            continue  # as many gigabytes of reserved addresses as rows
        x = {key: integers(rng, s, dtype) for key, s in shapes.items()}
        want = exact_gemm(x["a"], x["b"], beta=1, c=x["c"])
        shape = shapes[name][::-1] if transposed else shapes[name]
        try:
            far = _huge_view(shape, step, dtype, keep)
        except (OSError, ValueError, MemoryError):
            pytest.skip("no address space for it")
        far = far.T if transposed else far
        far[...] = x[name]
        for backwards in (False, True):
            x[name] = far[::-1, ::-1] if backwards else far
            if backwards:
                far[...] = far[::-1, ::-1].copy()
            got = jitgemm.gemm(x["a"], x["b"], beta=1, c=x["c"], out=x["out"])
            equal(got, want)


# -- 13: nothing outside an operand ---------------------------------------------------------------

NAMES = ("a", "b", "c", "bias", "out")
MEMORY_ROWS = tuple(range(1, 21))
MEMORY_COLUMNS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40)


@pytest.fixture(scope="module")
def guarded() -> dict[str, Guarded]:
    return {name: Guarded(64 * 80 * 16) for name in NAMES}


Place = Callable[[Array], Array]
ORDERS: dict[str, Place] = {"c": np.ascontiguousarray, "f": np.asfortranarray,
                            "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1]}  # fmt: skip


def _surrounded(
    guarded: dict[str, Guarded], where: str, x: dict[str, Array], options: dict[str, Any]
) -> tuple[Array, dict[str, Array]]:
    """Run a product on operands placed against forbidden pages; the result and the operands."""
    y = {name: guarded[name].place(z, where) for name, z in x.items()}
    a, b = y["a"], y["b"]
    rest = {name: z for name, z in y.items() if name not in ("a", "b")}
    return jitgemm.gemm(a, b, **rest, **options), y


@posix
@pytest.mark.parametrize("where", ["start", "end"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.usefixtures("pieces")
def test_c13_every_edge_tile_between_forbidden_pages(
    where: str, packed: bool, kind: Any, guarded: dict[str, Guarded], rng: np.random.Generator
) -> None:
    dtype = kind
    # Like the fields of a chessboard, packed ones of one colour: every tail of rows meets every
    # tail of columns, in place or packed.
    sizes = itertools.product(enumerate(MEMORY_ROWS), enumerate(MEMORY_COLUMNS), (1, 9))
    for (i, m), (j, n), k in sizes:
        if (i + j) % 2 != packed:
            continue
        a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
        left, right = guarded["a"].place(a, where), guarded["b"].place(b, where)
        out = guarded["out"].place(np.zeros((m, n), dtype), where)
        b_used = jitgemm.prepack_rhs(right) if packed else right
        assert jitgemm.gemm(left, b_used, out=out) is out
        equal(out, exact_gemm(a, b), f"m={m} n={n} k={k}")
        assert guarded["out"].intact(out), f"written outside out: m={m} n={n} k={k}"


@posix
@pytest.mark.parametrize("where", ["start", "end"])
def test_c13_the_entry_for_small_products(
    where: str, dtype: Any, guarded: dict[str, Guarded], rng: np.random.Generator
) -> None:
    for m, n, k in itertools.product(MEMORY_ROWS, MEMORY_COLUMNS, (1, 3, 40)):
        a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
        left, right = guarded["a"].place(a, where), guarded["b"].place(b, where)
        out = guarded["out"].place(np.zeros((m, n), dtype), where)
        assert jitgemm.matmul(left, right, out) is out
        equal(out, exact_gemm(a, b), f"m={m} n={n} k={k}")
        assert guarded["out"].intact(out), f"written outside out: m={m} n={n} k={k}"


@posix
@pytest.mark.parametrize("where", ["start", "end"])
def test_c13_the_entry_for_small_vectors(
    where: str, dtype: Any, guarded: dict[str, Guarded], rng: np.random.Generator
) -> None:
    calls: list[tuple[Any, tuple[int, ...], tuple[int, ...]]] = []
    for m, k in itertools.product((1, 2, 7, 33), (1, 3, 40, 63)):
        calls += [
            (jitgemm.matvec, (m, k), (k,)), (jitgemm.vecmat, (k,), (k, m)),
            (jitgemm.vecdot, (m, k), (m, k)), (jitgemm.vecdot, (k,), (m, k)),
            (jitgemm.matmul, (k,), (k,)), (jitgemm.matmul, (m, k), (k, 1)),
        ]  # fmt: skip
    for function, s1, s2 in calls:
        x1, x2 = integers(rng, s1, dtype), integers(rng, s2, dtype)
        want = function(x1, x2)
        left, right = guarded["a"].place(x1, where), guarded["b"].place(x2, where)
        out = guarded["out"].place(np.zeros(np.shape(want), dtype), where)
        assert function(left, right, out) is out
        equal(out, want, f"{function.__name__} {s1} {s2}")
        assert guarded["out"].intact(out), f"written outside out: {function.__name__} {s1} {s2}"


@posix
@pytest.mark.parametrize("where", ["start", "end"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("pieces", "eager_threads")
def test_c13_every_operand_between_forbidden_pages(
    where: str, order: str, threads: int, dtype: Any, guarded: dict[str, Guarded],
    rng: np.random.Generator,
) -> None:  # fmt: skip
    place = ORDERS[order]
    sizes = (
        (1, 9, 5),
        (1, 40, 40),
        (5, 1, 33),
        (7, 17, 2),
        (15, 33, 21),
        (29, 40, 9),
        (44, 37, 12),
    )
    for m, n, k in sizes:
        x = {
            "a": integers(rng, (m, k), dtype),
            "b": integers(rng, (k, n), dtype),
            "c": integers(rng, (m, n), dtype),
            "bias": integers(rng, (n,), dtype),
            "out": np.full((m, n), 77, dtype),
        }
        want = exact_gemm(x["a"], x["b"], alpha=2, beta=-1, c=x["c"], bias=x["bias"],
                          activation="relu")  # fmt: skip
        options = {"alpha": 2, "beta": -1, "activation": "relu", "threads": threads}
        for some in (("a",), ("b",), ("c",), ("out",), NAMES[:3] + NAMES[4:]):
            y = {name: place(z) if name in some else z for name, z in x.items()}
            got, placed = _surrounded(guarded, where, y, options)
            equal(got, want, f"m={m} n={n} k={k} {some}")
            for name, z in placed.items():
                assert guarded[name].intact(z), f"written outside {name}"
                if name != "out":
                    equal(z, x[name], f"{name} was changed")


def _spread(x: Array, columns: bool) -> Array:
    """Rows (or columns) 4 KiB apart, nothing after the last one."""
    x = x.T if columns else x
    step = -(-x.shape[1] * x.itemsize // 4096) * 4096
    raw = np.zeros((x.shape[0] - 1) * step + x.shape[1] * x.itemsize, np.uint8)
    y = np.ndarray(x.shape, x.dtype, raw, strides=(step, x.itemsize))
    y[...] = x
    return y.T if columns else y


# Name: how B is stored, and the knobs that send a product this way.
GUARDED_ROUTES: dict[str, tuple[Place, dict[str, int]]] = {
    "columns": (np.asfortranarray, {"rhs_transpose_rows": 9}),
    "columns apart": (
        lambda b: _spread(b, True),
        {"rhs_transpose_rows": 9, "stagger_column_bytes": 1},
    ),
    "shared depth": (np.ascontiguousarray, {"split_depth": 1}),
    "shared depth, columns": (np.asfortranarray, {"split_depth": 1, "rhs_transpose_rows": 9}),
    "shared depth, packed": (np.asfortranarray, {"split_depth": 1, "rhs_transpose_rows": 0}),
    "tile buffer": (lambda b: b.astype(b.dtype.newbyteorder("S")), {}),
}


@posix
@pytest.mark.parametrize("where", ["start", "end"])
@pytest.mark.parametrize("route", GUARDED_ROUTES)
def test_c13_every_route_between_forbidden_pages(
    where: str, route: str, kind: Any, rng: np.random.Generator
) -> None:
    place, knobs = GUARDED_ROUTES[route]
    sizes = ((1, 1, 5), (1, 1, 70), (1, 9, 70), (2, 33, 65), (3, 17, 130), (9, 7, 33), (5, 1, 40))
    memory = {name: Guarded(40 * 4096 + 4096) for name in NAMES}
    # Columns go apart only where B is large beside the caches.
    machine = TINY if route == "columns apart" else None
    with another_machine(machine, **knobs), jitgemm.threads(2):
        for m, n, k in sizes:
            x = {
                "a": integers(rng, (m, k), kind), "b": place(integers(rng, (k, n), kind)),
                "c": integers(rng, (m, n), kind), "bias": integers(rng, (n,), kind),
                "out": np.full((m, n), 77, kind),
            }  # fmt: skip
            if route == "tile buffer":
                x["out"] = place(x["out"])
            for shape in ((), (n,), (m, 1), (m, n)):
                x["bias"] = integers(rng, shape, kind)
                options: dict[str, Any] = {"alpha": 2, "beta": -1}
                options |= {"conj_b": True} if is_complex(kind) else {}
                want = exact_gemm(x["a"], x["b"], c=x["c"], bias=x["bias"], **options)
                got, placed = _surrounded(memory, where, x, options)
                equal(native(got), want, (m, n, k, shape))
                for name, z in placed.items():
                    assert memory[name].intact(z), f"written outside {name}"
            left = memory["a"].place(x["a"], where)
            handle = jitgemm.prepack_lhs(left)
            right = memory["b"].place(x["b"], where)
            equal(jitgemm.gemm(handle, right), exact_gemm(x["a"], x["b"]), (m, n, k))


STACKS = ((3, 1, 1, 1), (2, 9, 9, 9), (17, 4, 4, 4), (2, 29, 5, 3), (2, 17, 16, 2), (9, 2, 3, 8))


@posix
@pytest.mark.parametrize("where", ["start", "end"])
@pytest.mark.parametrize("shared", ["", "a", "b", "c", "bias"])
def test_c13_stacks_of_small_products_between_forbidden_pages(
    where: str, shared: str, kind: Any, guarded: dict[str, Guarded], rng: np.random.Generator
) -> None:
    for count, m, n, k in STACKS:
        shapes = {"a": (m, k), "b": (k, n), "c": (m, n), "bias": (1, n)}
        x = {
            name: integers(rng, shape if name == shared else (count, *shape), kind)
            for name, shape in shapes.items()
        }
        whole = {name: np.broadcast_to(z, (count, *z.shape[-2:])) for name, z in x.items()}
        want = [
            exact_gemm(
                whole["a"][i], whole["b"][i], alpha=2, beta=-1, c=whole["c"][i],
                bias=whole["bias"][i],
            )
            for i in range(count)
        ]  # fmt: skip
        x["out"] = np.full((count, m, n), 77, kind)
        got, placed = _surrounded(guarded, where, x, {"alpha": 2, "beta": -1})
        equal(got, np.stack(want), (count, m, n, k))
        for name, z in placed.items():
            assert guarded[name].intact(z), f"written outside {name}"


@posix
@pytest.mark.parametrize("where", ["start", "end"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_c13_maps_between_forbidden_pages(
    where: str, activation: str, dtype: Any, guarded: dict[str, Guarded], rng: np.random.Generator
) -> None:
    for m, n in itertools.product((1, 3, 15), MEMORY_COLUMNS):
        a, b = integers(rng, (m, 3), dtype), integers(rng, (3, n), dtype)
        out = guarded["out"].place(np.zeros((m, n), dtype), where)
        jitgemm.gemm(a, b, out=out, activation=activation)
        want = exact_gemm(a, b, activation=activation)
        np.testing.assert_allclose(out, want, 1e-5, 1e-30)
        assert guarded["out"].intact(out), f"written outside out: m={m} n={n}"


@posix
@pytest.mark.parametrize("where", ["start", "end"])
def test_c13_packed_rows_of_a_between_forbidden_pages(
    where: str, dtype: Any, rng: np.random.Generator
) -> None:
    # Depth steps and rows so far apart that A is packed or copied.
    big = Guarded(40 * 8192 + 8 * 4096)
    for m, n, k, step in ((37, 140, 20, 4096), (37, 140, 20, 8192), (15, 130, 33, 2048)):
        a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
        size = a.itemsize
        for strides in ((size, step), (step, size), (-size, step), (step, -size)):
            shape = np.lib.stride_tricks.as_strided(a, a.shape, strides)
            span = sum((l - 1) * abs(s) for l, s in zip(a.shape, strides, strict=True)) + size
            if span > big.size:
                continue
            offset = 0 if where == "start" else big.size - span
            first = offset - sum(min(0, (l - 1) * s) for l, s in zip(a.shape, strides, strict=True))
            placed = np.ndarray(shape.shape, dtype, big.bytes, first, strides)
            placed[...] = a
            equal(jitgemm.gemm(placed, b), exact_gemm(a, b), (m, n, k, strides))


class _Scratch(jitgemm.Workspace):
    """Lends exactly what was asked for, between canaries."""

    MARGIN = 1 << 16

    def __init__(self) -> None:
        super().__init__()
        self.lent = 0

    @contextmanager
    def lend(self, nbytes: int) -> Iterator[int]:
        memory = np.full(nbytes + 2 * self.MARGIN + 64, 0xA5, np.uint8)
        at = memory.__array_interface__["data"][0]
        start = self.MARGIN + -(at + self.MARGIN) % 64
        yield at + start
        self.lent += 1
        outside = np.delete(memory, slice(start, start + nbytes))
        assert (outside == 0xA5).all(), f"{nbytes} bytes of scratch were not enough"


@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("packing", ["nothing forced", "all forced"])
def test_c13_scratch_is_not_overrun(
    order: str, packing: str, kind: Any, rng: np.random.Generator, knobs: Any
) -> None:
    dtype = kind
    if packing == "all forced":
        knobs(
            parallel_flops=1, rhs_pack_rows=1, lhs_pack_stride=8, lhs_pack_pages=1, lhs_pack_reuse=1
        )
    else:
        knobs(parallel_flops=1)
    scratch = _Scratch()
    for m, (n, k) in itertools.product(
        (5, 15, 29, 31, 43, 57, 99), ((1, 8), (5, 33), (40, 40), (150, 20), (33, 1030))
    ):
        a, b = (np.asarray(integers(rng, s, dtype), order=order) for s in ((m, k), (k, n)))
        far = _far_steps(a)
        packed = jitgemm.prepack_rhs(b)
        want = exact_gemm(a, b)
        for left, right, threads in itertools.product((a, far), (b, packed), (1, 2)):
            got = jitgemm.gemm(left, right, threads=threads, workspace=scratch)
            equal(got, want, (m, n, k))
    # The block sums of shared depth, with more rows than one tile has.
    knobs(parallel_flops=1, rhs_transpose_rows=9, stagger_column_bytes=1, split_depth=10**9)
    for split in (10**9, 1):
        knobs(parallel_flops=1, rhs_transpose_rows=9, stagger_column_bytes=1, split_depth=split)
        for m, n, k in ((1, 33, 65), (3, 40, 530), (9, 17, 1100)):
            a, b = integers(rng, (m, k), kind), _spread(integers(rng, (k, n), kind), True)
            for threads in (1, 2, 3):
                got = jitgemm.gemm(a, b, threads=threads, workspace=scratch)
                equal(got, exact_gemm(a, b), (m, n, k))
    assert scratch.lent > 10


def _far_steps(a: Array) -> Array:
    """A copy with 4 KiB from one depth step to the next."""
    wide = np.full((a.shape[1], 4096 // a.itemsize), np.nan, a.dtype)
    wide[:, : a.shape[0]] = a.T
    return wide[:, : a.shape[0]].T


@posix
@pytest.mark.usefixtures("pieces")
def test_c13_canaries_around_rows_of_out(dtype: Any, rng: np.random.Generator) -> None:
    for m, n, k in ((1, 5, 3), (6, 17, 530), (15, 33, 9), (35, 70, 530)):
        a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
        for threads, (left, right) in itertools.product((1, 2), ((1, 3), (5, 0), (0, 31))):
            wide = np.full((m + 2, left + n + right), np.nan, dtype)
            for out in (wide[1:-1, left : left + n], wide[1:-1, left : left + n][::-1]):
                wide[...] = np.nan
                jitgemm.gemm(a, b, out=out, threads=threads)
                equal(out, exact_gemm(a, b))
                outside = np.ones(wide.shape, bool)
                outside[1:-1, left : left + n] = False
                assert np.isnan(wide[outside]).all()


# -- 14: results over operands --------------------------------------------------------------------


def test_c14_the_table_of_right_answers(dtype: Any) -> None:
    want = np.array([[20, 23, 26], [68, 83, 98], [116, 143, 170]], dtype)
    for call in (jitgemm.matmul, lambda a, b, out: jitgemm.gemm(a, b, out=out)):
        buffer = np.arange(12, dtype=dtype).reshape(3, 4)
        w, out = buffer[:, :3], buffer[:, 1:]
        assert call(w, w, out=out) is out
        equal(out, want)
        equal(buffer[:, 0], np.array([0, 4, 8], dtype))


def _overlaps(n: int, dtype: Any) -> dict[str, Callable[[Array], tuple[Array, Array, Array]]]:
    """By name: operands ``a b out`` within one buffer of ``(n + 2, 2 n + 2)`` elements."""
    return {
        "out is a": lambda w: (w[:n, :n], w[:n, n : 2 * n], w[:n, :n]),
        "out is b": lambda w: (w[:n, :n], w[:n, n : 2 * n], w[:n, n : 2 * n]),
        "all are one": lambda w: (w[:n, :n], w[:n, :n], w[:n, :n]),
        "out is a transposed": lambda w: (w[:n, :n], w[:n, n : 2 * n], w[:n, :n].T),
        "out is b backwards": lambda w: (w[:n, :n], w[:n, n : 2 * n], w[:n, n : 2 * n][::-1]),
        "out is shifted by a row": lambda w: (w[:n, :n], w[:n, n : 2 * n], w[1 : n + 1, :n]),
        "out is shifted by a column": lambda w: (w[:n, :n], w[:n, n : 2 * n], w[:n, 1 : n + 1]),
        "out shares a corner": lambda w: (w[:n, :n], w[2:, :n], w[2 : n + 2, n - 1 : 2 * n - 1]),
        "interleaved, nothing shared": lambda w: (
            w[:n, 0 : 2 * n : 2], w[:n, 0 : 2 * n : 2], w[:n, 1 : 2 * n : 2],
        ),
        "shifted by bytes": lambda w: (
            w[:n, :n], w[:n, n : 2 * n],
            np.ndarray((n, n), dtype, w.base if w.base is not None else w, 2 * w.itemsize + 1,
                       (w.strides[0], w.itemsize)),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("case", _overlaps(1, np.float32))
@pytest.mark.parametrize("n", [3, 12, 40])
def test_c14_out_over_an_input(case: str, n: int, kind: Any, rng: np.random.Generator) -> None:
    dtype = kind
    for gemm in (True, False):
        buffer = integers(rng, (n + 2, 2 * n + 2), dtype)
        a, b, out = _overlaps(n, dtype)[case](buffer)
        want = exact_gemm(a.copy(), b.copy())
        expected = buffer.copy()
        # The same bytes, written through an equal view of a copy.
        shift = out.__array_interface__["data"][0] - buffer.__array_interface__["data"][0]
        np.ndarray(out.shape, dtype, expected, shift, out.strides)[...] = want
        got = jitgemm.gemm(a, b, out=out) if gemm else jitgemm.matmul(a, b, out)
        assert got is out
        equal(out, want)
        equal(buffer.view(np.uint8), expected.view(np.uint8), "bytes outside out")


@pytest.mark.parametrize("k", [3, 600])
def test_c14_out_over_c_and_bias(k: int, kind: Any, rng: np.random.Generator) -> None:
    dtype = kind
    m, n = 9, 20
    a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
    packed = jitgemm.prepack_rhs(b)
    for right in (b, packed, np.asfortranarray(b)):
        for case in ("same", "equal view", "shifted", "transposed", "backwards", "rows apart"):
            buffer = integers(rng, (40, 40), dtype)
            out = buffer[1 : m + 1, 2 : n + 2]
            c = {
                "same": out,
                "equal view": buffer[1:, 2:][:m, :n],
                "shifted": buffer[:m, 3 : n + 3],
                "transposed": buffer[1 : n + 1, 2 : m + 2].T,
                "backwards": out[::-1, ::-1],
                "rows apart": buffer[1 : 2 * m + 1 : 2, 2 : n + 2],
            }[case]
            want = exact_gemm(a, b, beta=-2, c=c.copy())
            assert jitgemm.gemm(a, right, beta=-2, c=c, out=out) is out
            equal(out, want, case)
        for row, step in itertools.product((0, 4, 8), (1, -1)):
            out = integers(rng, (m, n), dtype)
            bias = out[row][::step]
            want = exact_gemm(a, b, bias=bias.copy())
            equal(jitgemm.gemm(a, right, bias=bias, out=out), want, "bias")
        for shape in ("column", "matrix", "turned", "number"):
            out = integers(rng, (m, n), dtype)
            bias = {"column": out[:, 3:4], "matrix": out, "turned": out[::-1, ::-1],
                    "number": out[2, 5]}[shape]  # fmt: skip
            want = exact_gemm(a, b, bias=np.array(bias))
            assert jitgemm.gemm(a, right, bias=bias, out=out) is out
            equal(out, want, shape)
        if is_complex(kind):
            out = integers(rng, (m, n), dtype)
            want = exact_gemm(a, b, beta=1j, c=out.copy(), conj_a=True, conj_b=True)
            jitgemm.gemm(a, right, beta=1j, c=out, out=out, conj_a=True, conj_b=True)
            equal(out, want, "conjugated")
    square = integers(rng, (n, n), dtype)
    want = exact_gemm(square, square, beta=1, c=square, bias=square[3])
    equal(jitgemm.gemm(square, square, beta=1, c=square, bias=square[3], out=square), want)


def test_c14_out_over_a_conjugated_operand(rng: np.random.Generator) -> None:
    for kind, n in itertools.product((np.complex64, np.complex128), (1, 4, 40)):
        for flags in ({"conj_a": True}, {"conj_b": True}, {"conj_a": True, "conj_b": True}):
            for place in (lambda x: x, lambda x: x.T, lambda x: x[::-1]):
                a, b = integers(rng, (n, n), kind), integers(rng, (n, n), kind)
                want = exact_gemm(a, b, **flags)
                mine = a.copy()
                equal(jitgemm.gemm(mine, b, out=place(mine), **flags), want)
                mine = b.copy()
                equal(jitgemm.gemm(a, mine, out=place(mine), **flags), want)
                mine = b.copy()
                want = exact_gemm(mine.T, mine, **flags)
                equal(jitgemm.gemm(mine.T, mine, out=place(mine), **flags), want)


def test_c14_the_second_call_is_checked_like_the_first(
    dtype: Any, rng: np.random.Generator
) -> None:
    """What a call leaves behind for later ones must not hide an overlap."""
    m = n = k = 40
    a, b, c = (integers(rng, s, dtype) for s in ((m, k), (k, n), (m, n)))
    options = {"beta": 1, "bias": c[0].copy()}
    for _ in range(2):
        out = np.empty((m, n), dtype)
        want = exact_gemm(a, b, c=c, **options)
        equal(jitgemm.gemm(a, b, c=c, out=out, **options), want)
        for name in ("a", "b", "c", "bias"):
            x: dict[str, Any] = {"a": a, "b": b, "c": c, "bias": options["bias"]}
            buffer = np.zeros((m + 1, n), dtype)
            out = buffer[:m]
            x[name] = buffer[1:] if name != "bias" else buffer[7]
            x[name][...] = {"a": a, "b": b, "c": c, "bias": options["bias"]}[name]
            equal(
                jitgemm.gemm(x["a"], x["b"], beta=1, c=x["c"], bias=x["bias"], out=out), want, name
            )


@pytest.mark.parametrize("name", ["a", "b"])
def test_c14_plans_check_overlaps_too(name: str, dtype: Any, rng: np.random.Generator) -> None:
    n = 40
    a, b = integers(rng, (n, n), dtype), integers(rng, (n, n), dtype)
    p, want = jitgemm.plan(a, b), exact_gemm(a, b)
    for shift in (0, 1):
        buffer = np.zeros((n + 1, n), dtype)
        x = {"a": a, "b": b, name: buffer[shift : n + shift]}
        x[name][...] = {"a": a, "b": b}[name]
        equal(p(x["a"], x["b"], buffer[:n]), want)


@pytest.mark.parametrize("case", ["c itself", "c shifted", "bias"])
def test_c14_plans_check_what_they_are_bound_to(
    case: str, dtype: Any, rng: np.random.Generator
) -> None:
    m, n, k = 9, 20, 600  # more than one block: sums rest in out
    a, b, buffer = (integers(rng, s, dtype) for s in ((m, k), (k, n), (m + 1, n)))
    out = buffer[:m]
    bound: dict[str, Any] = {
        "c itself": {"beta": 1, "c": out},
        "c shifted": {"beta": 1, "c": buffer[1:]},
        "bias": {"bias": buffer[3]},
    }[case]
    want = exact_gemm(
        a, b, **{x: y.copy() if isinstance(y, np.ndarray) else y for x, y in bound.items()}
    )
    equal(jitgemm.plan(a, b, **bound)(a, b, out), want)


def _refusals(dtype: Any) -> dict[str, tuple[Array, str]]:
    other = np.float64 if dtype == np.float32 else np.float32
    frozen = np.full((5, 9), 7, dtype)
    frozen.flags.writeable = False
    flat = np.full(60, 7, dtype)
    size = flat.itemsize

    def windows(rows: int, cols: int) -> Array:
        return np.lib.stride_tricks.as_strided(flat, (5, 9), (rows, cols))

    return {
        "read-only": (frozen, "writable"),
        "broadcast": (np.lib.stride_tricks.as_strided(flat, (5, 9), (0, size)), "overlap"),
        "one element": (windows(0, 0), "overlap"),
        "sliding rows": (windows(size, size), "overlap"),
        "rows too near": (windows(8 * size, size), "overlap"),
        "columns too near": (windows(9 * size, size - 1), "overlap"),
        "interleaved, meeting": (windows(6 * size, 2 * size), "overlap"),
        "wrong rows": (np.full((6, 9), 7, dtype), "shape"),
        "wrong columns": (np.full((5, 8), 7, dtype), "shape"),
        "transposed": (np.full((9, 5), 7, dtype), "shape"),
        "one axis": (np.full(45, 7, dtype), "shape"),
        "three axes": (np.full((1, 5, 9), 7, dtype), "shape"),
        "other float": (np.full((5, 9), 7, other), "elements"),
        "integers": (np.full((5, 9), 7, np.int64), "elements"),
        "complex": (np.full((5, 9), 7, np.complex64), "elements"),
    }


# What NumPy's rules allow for ``matmul``: a cast of the same kind, more leading axes.
_TAKEN = {(call, case) for call in ("matmul", "stack") for case in ("other float", "complex")}
_TAKEN.add(("matmul", "three axes"))
_REFUSED = [
    (call, case)
    for call in ("gemm", "gemm again", "matmul", "prepacked", "plan", "stack")
    for case in _refusals(np.float32)
    if (call, case) not in _TAKEN
]


@once
@pytest.mark.parametrize(("call", "case"), _REFUSED)
def test_c14_what_cannot_hold_the_result_is_refused_untouched(
    case: str, call: str, dtype: Any, rng: np.random.Generator
) -> None:
    a, b = integers(rng, (5, 7), dtype), integers(rng, (7, 9), dtype)
    out, word = _refusals(dtype)[case]
    before = out.tobytes()
    error = TypeError if word == "elements" else ValueError
    if call == "gemm again":
        jitgemm.gemm(a, b, out=np.empty((5, 9), dtype))
    stack = np.lib.stride_tricks.as_strided(
        out, (2, *out.shape), (10**6, *out.strides), writeable=out.flags.writeable
    )
    calls: dict[str, Callable[[], Any]] = {
        "gemm": lambda: jitgemm.gemm(a, b, out=out),
        "gemm again": lambda: jitgemm.gemm(a, b, out=out),
        "matmul": lambda: jitgemm.matmul(a, b, out),
        "prepacked": lambda: jitgemm.gemm(a, jitgemm.prepack_rhs(b), out=out),
        "plan": lambda: jitgemm.plan(a, b)(a, b, out),
        "stack": lambda: jitgemm.matmul(np.stack([a, a]), b, stack),
    }
    # What NumPy's rules say of types it says in its own words.
    by_numpy = call in ("matmul", "stack") and word == "elements"
    with pytest.raises(error, match="Cannot cast" if by_numpy else rf"^jitgemm: out: .*{word}"):
        calls[call]()
    assert out.tobytes() == before


def test_c14_odd_results_that_can_hold_it_are_taken(dtype: Any, rng: np.random.Generator) -> None:
    a, b = integers(rng, (5, 7), dtype), integers(rng, (7, 3), dtype)
    size, want = np.dtype(dtype).itemsize, exact_gemm(a, b)
    flat = np.zeros(200, dtype)
    # (rows, columns): columns further apart than a row is long, in both directions; byte steps.
    for strides in ((size, 5 * size), (2 * size, 11 * size), (5 * size, 2 * size),
                    (3 * size + 1, size), (size, 5 * size + 3)):  # fmt: skip
        out = np.lib.stride_tricks.as_strided(flat, (5, 3), strides)
        assert jitgemm.gemm(a, b, out=out) is out
        equal(out, want, strides)


# -- 15: memory used besides the operands ---------------------------------------------------------

_PEAK = """
    import sys
    import numpy as np
    import jitgemm

    def kib(name):
        for line in open("/proc/self/status"):
            if line.startswith(name):
                return int(line.split()[1])

    def view(x, shape):
        return np.broadcast_to(x, shape)

    m, k, n = 200_000, 512, 4
    dtype = np.dtype(sys.argv[2])
    kind = dtype.newbyteorder("=").type
    row = (np.arange(k) % 3).astype(kind)[None, :]
    column = (np.arange(m) % 3).astype(kind)[:, None]
    small = np.ones((k, n), kind)
    a, b, out = {
        "rows of a": lambda: (view(row, (m, k)), small, np.empty((m, n), kind)),
        "columns of a": lambda: (view(column, (m, k)), small, np.empty((m, n), kind)),
        "all of a": lambda: (view(kind(1), (m, k)), small, np.empty((m, n), kind)),
        "columns of b": lambda: (small.T, view(row.T, (k, m)), np.empty((n, m), kind)),
        "rows of b": lambda: (small.T, view(column.T, (k, m)), np.empty((n, m), kind)),
        "rows of b, many": lambda: (np.ones((40, m), kind), view(row, (m, k)),
                                    np.empty((40, k), kind)),
        "strided out": lambda: (np.ones((40, m), kind), view(row, (m, k)),
                                np.empty((40, 2 * k), kind)[:, ::2]),
        "strided out, few": lambda: (np.ones((4, m), kind), view(row, (m, k)),
                                     np.empty((4, 2 * k), kind)[:, ::2]),
        "foreign and strided": lambda: (np.ones((m, 128), kind)[:, ::2], np.ones((n, 64), kind).T,
                                        np.empty((m, n), kind)),
        "foreign columns": lambda: (np.ones((n, 64), kind), np.ones((m, 64), kind).T,
                                    np.empty((n, m), kind)),
    }[sys.argv[1]]()
    a, b = a.astype(a.dtype) if 0 not in a.strides else a, b
    if dtype.byteorder == ">":
        def swap(x):
            once = x[tuple(slice(0, 1) if s == 0 else slice(None) for s in x.strides)]
            return view(once.astype(dtype), x.shape)
        a, b = swap(a), swap(b)
    out[...] = 0
    jitgemm.gemm(a[:, :3], b[:3], out=out, threads=2)  # compile
    if dtype.byteorder == ">" and sys.argv[1].startswith("foreign"):
        out = out.astype(dtype)
    p = jitgemm.plan(a, b, out=out)
    scratch = p.executable.plan.workspace_bytes
    open("/proc/self/clear_refs", "w").write("5")  # start a new high-water mark
    before = kib("VmRSS")
    jitgemm.gemm(a, b, out=out, threads=2)
    grown = kib("VmHWM") - before
    print(scratch, grown * 1024)
"""


EXPANDABLE = (
    "rows of a", "columns of a", "all of a", "columns of b", "rows of b", "rows of b, many",
    "strided out", "strided out, few", "foreign and strided", "foreign columns",
)  # fmt: skip


@once
@linux
@pytest.mark.parametrize(
    "case, dtype",
    # Both byte orders of each, of reals and of complex numbers in turn.
    [(case, order + ("f4", "c8")[(i + j) % 2]) for i, case in enumerate(EXPANDABLE)
     for j, order in enumerate("<>")],
)  # fmt: skip
def test_c15_broadcast_operands_are_not_expanded(case: str, dtype: str) -> None:
    scratch, grown = map(int, run_python(_PEAK, case, dtype).stdout.split())
    # A logical operand has 400 MB or more, one that is really there 50.  Documented scratch,
    # rounded up to a power of two, for one of the two holders; slack for the allocator.
    assert scratch < (48 << 20) * np.dtype(dtype).itemsize // 4
    assert grown < 2 * scratch + ((16 if case.startswith("foreign") else 40) << 20)


def test_c15_scratch_is_what_the_formula_says(
    kind: Any, rng: np.random.Generator, eager_threads: None
) -> None:
    dtype = kind
    for m, n, k, order in (
        (1, 40, 70, "C"),
        (60, 70, 700, "C"),
        (60, 70, 700, "F"),
        (5, 70, 30, "F"),
        (3, 5, 20_000, "C"),
        (3, 5, 20_000, "F"),
    ):
        a = integers(rng, (m, k), dtype)
        b = np.asarray(integers(rng, (k, n), dtype), order=order)
        for threads in (1, 2):
            p = jitgemm.plan(a, b, threads=threads)
            assert p.executable is not None
            plan = p.executable.plan
            need = plan.workspace_bytes
            assert need == plan.workspace_b + plan.threads * plan.workspace_a_stride
            space = jitgemm.Workspace()
            equal(jitgemm.gemm(a, b, threads=threads, workspace=space), exact_gemm(a, b))
            assert space.nbytes == (1 << (need - 1).bit_length() if need else 0)
            # From the second call on nothing is allocated.
            before = space.nbytes, space._buffer.__array_interface__["data"]
            jitgemm.gemm(a, b, threads=threads, workspace=space)
            assert before == (space.nbytes, space._buffer.__array_interface__["data"])


def test_c15_a_given_workspace_is_enough(dtype: Any, rng: np.random.Generator) -> None:
    a, b = integers(rng, (60, 700), dtype), integers(rng, (700, 70), dtype)
    space = jitgemm.Workspace(1 << 20)
    before = space._buffer.__array_interface__["data"]
    equal(jitgemm.gemm(a, b, workspace=space), exact_gemm(a, b))
    assert space.nbytes == 1 << 20
    assert space._buffer.__array_interface__["data"] == before


# -- 16: sizes ------------------------------------------------------------------------------------


def _endless(shape: tuple[int, int]) -> Array:
    return np.broadcast_to(np.float32(1), shape)


@once
@pytest.mark.parametrize(
    "m, k, n, error",
    [
        (2**40, 1, 2**40, (MemoryError, ValueError)),
        (2**58, 1, 2, (MemoryError, ValueError)),
        (2**60, 1, 1, (MemoryError, ValueError)),
        (2**31, 1, 2**31, (MemoryError, ValueError)),
    ],
)
@pytest.mark.parametrize("call", [jitgemm.gemm, jitgemm.matmul])
def test_c16_impossible_results_raise_before_work_starts(
    m: int, k: int, n: int, error: Any, call: Any
) -> None:
    with pytest.raises(error):
        call(_endless((m, k)), _endless((k, n)))


@once
@pytest.mark.parametrize("call", [jitgemm.gemm, jitgemm.matmul])
@pytest.mark.parametrize("m, n", [(2**58, 2), (2**40, 2**40)])
def test_c16_impossible_results_are_memory_errors_of_jitgemm(call: Any, m: int, n: int) -> None:
    with pytest.raises(MemoryError, match=r"^jitgemm: "):
        call(_endless((m, 1)), _endless((1, n)))


@once
@pytest.mark.parametrize("k", [2**50, 2**56, 2**60])
def test_c16_impossible_scratch_raises_before_work_starts(k: int) -> None:
    # A result without unit stride needs all of a packed B at once.
    for m, n in ((40, 3), (3, 3)):
        out = np.full((m, 2 * n), 7, np.float32)[:, ::2]
        k_fits = min(k, 2**60 // max(m, n))
        with pytest.raises(MemoryError, match=r"^jitgemm: workspace: "):
            jitgemm.gemm(_endless((m, k_fits)), _endless((k_fits, n)), out=out)
        with pytest.raises(MemoryError, match=r"^jitgemm: workspace: "):
            jitgemm.plan(_endless((m, k_fits)), _endless((k_fits, n)), out=out)(
                _endless((m, k_fits)), _endless((k_fits, n)), out
            )
        assert (out == 7).all()
    equal(jitgemm.gemm(np.ones((2, 2)), np.ones((2, 2))), np.full((2, 2), 2.0))


@once
@pytest.mark.parametrize("k, n", [(2**56, 3), (2**50, 1), (3, 2**56), (2**60, 1)])
def test_c16_impossible_packed_operands_raise_before_work_starts(k: int, n: int) -> None:
    with pytest.raises(MemoryError, match=r"^jitgemm: workspace: "):
        jitgemm.prepack_rhs(_endless((k, n)))


@once
@pytest.mark.parametrize("nbytes", [2**63, 2**62, 2**70])
def test_c16_impossible_workspaces(nbytes: int) -> None:
    with pytest.raises(MemoryError, match=r"^jitgemm: workspace: "):
        jitgemm.Workspace(nbytes)


@once
def test_c16_huge_empty_products() -> None:
    assert jitgemm.gemm(_endless((0, 2**60)), _endless((2**60, 1))).shape == (0, 1)
    assert jitgemm.matmul(_endless((0, 2**60)), _endless((2**60, 1))).shape == (0, 1)
    # alpha = 0: the sum is not formed, whatever its length.
    out = jitgemm.gemm(
        _endless((3, 2**58)), _endless((2**58, 2)), alpha=0, bias=np.ones(2, np.float32)
    )
    equal(out, np.ones((3, 2), np.float32))


_STACK = """
    import threading
    import numpy as np
    import jitgemm
    results = []

    def work(counts):
        for m, n, k in ((3, 5, 3), (300, 400, 1030), (1, 3000, 2000), (2000, 1, 600)):
            a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
            for right in (b, np.asfortranarray(b), jitgemm.prepack_rhs(b)):
                out = np.empty((n, m), np.float32).T
                strided = np.empty((m, 2 * n), np.float32)[:, ::2]
                for threads in counts:
                    for target in (None, out, strided):
                        got = jitgemm.gemm(a, right, out=target, threads=threads)
                        results.append(bool((got == k).all()))

    work([1])  # compiles
    threading.stack_size(64 << 10)
    # The pool's workers, which start now, get small stacks as well.
    threads = [threading.Thread(target=work, args=([1, 2],))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 3 * 4 * 3 * 3 and all(results)
"""


@once
@linux
def test_c16_stack_use_is_small_whatever_the_size() -> None:
    run_python(_STACK)


@once
def test_c16_unaligned_huge_strides_in_every_place(dtype: Any, rng: np.random.Generator) -> None:
    # Offsets are products of 64-bit strides and sizes: here they wrap in 32 bits many times over.
    a = unaligned(integers(rng, (3, 2), dtype))
    far = np.lib.stride_tricks.as_strided(a, (3, 1), (a.strides[0], 2**61 + 1))
    b = np.lib.stride_tricks.as_strided(a, (1, 2), (-(2**61) + 1, a.strides[1]))
    equal(jitgemm.gemm(far, b), exact_gemm(a[:, :1], a[:1]))
