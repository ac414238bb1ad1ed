"""Every registered kernel against the interpreter, bit for bit, and against the written contract.

The generator is the registry: a new row (element type, instruction set, tile) is tested by being
there.  Each case runs three ways on the same operands:

* machine code, compiled from the kernel source;
* the interpreter on the same source, which also refuses any access a kernel has no business with
  (operands are registered with exactly the elements they have);
* ``expected``, the rounding contract in a few lines of NumPy, which knows nothing of tiles.

Rows for instruction sets this machine lacks, and the interpreter's own, run without machine code.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from jitgemm.isa.types import ElementType
from jitgemm.jit import compiler
from jitgemm.jit.target import available
from jitgemm.kernels import registry
from jitgemm.kernels.job import COUNTERS, JOB, TILE
from jitgemm.kernels.micro import microkernel
from jitgemm.kernels.nest import gemm_functions, nest, pack_b, serial
from jitgemm.kernels.spec import Activation, BSource, Epilogue, GemmSpec
from jitgemm.kernels.sweep import SWEEP_ROWS
from jitgemm.lang.core import Function
from jitgemm.lang.interp import Memory, dtype_of, run
from jitgemm.lang.record import Record
from jitgemm.planner.route import PackA

Array = np.ndarray[Any, np.dtype[Any]]

PLAIN = Epilogue()
FULL = Epilogue(beta=True, bias=True, activation=Activation.RELU)
ALPHA, BETA = 1.1, -0.7  # neither is a float, so multiplying by them rounds
DEPTH = 4


@pytest.fixture(autouse=True, scope="module")
def _no_disk_cache() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JITGEMM_CACHE", "0")
        yield


def _specs() -> list[Any]:
    return [
        pytest.param(spec, id=spec.symbol)
        for element, isa, tile in registry.rows()
        for spec in (
            GemmSpec(element, isa, tile, b, epilogue)
            for b, epilogue in itertools.product(BSource, (PLAIN, FULL))
        )
    ]


def compiles(spec: GemmSpec) -> bool:
    """Whether this machine runs the spec's machine code."""
    return not spec.isa.interpreted and available(spec.isa)


def backends(spec: GemmSpec) -> tuple[bool, ...]:
    """Compiled or not; the interpreter first, because it explains what would crash."""
    return (False, True) if compiles(spec) else (False,)


SPECS = _specs()
PACKED_SPECS = [p for p in SPECS if p.values[0].b is BSource.PACKED]
COMPILED_SPECS = [p for p in SPECS if compiles(p.values[0])]


def unit(spec: GemmSpec) -> compiler.Unit:
    """The spec's own unit, with its microkernels exported too."""

    def functions() -> list[Function]:
        micros = [microkernel(spec, panels, rows) for panels, rows in spec.tile.variants()]
        return [*gemm_functions(spec), *micros]

    return compiler.Unit(f"conformance_{spec.symbol}", spec.isa, functions)


def native(spec: GemmSpec, function: Function) -> Any:
    """The compiled form of a function of the spec's unit."""
    kinds = [ctypes.c_void_p if k == "ptr" else ctypes.c_int64 for _, k in function.params]
    prototype = ctypes.CFUNCTYPE(None, *kinds)
    return prototype(compiler.get(unit(spec)).addresses[function.name])


def bits(x: Array) -> Array:
    """The bytes of an array of any strides."""
    return np.frombuffer(x.tobytes(), np.uint8)


class Operands:
    """Random operands, the same for everyone who asks with the same seed."""

    def __init__(self, element: ElementType, seed: int) -> None:
        self.element, self.dtype = element, dtype_of(element)
        self.rng = np.random.default_rng(seed)
        self.memory = Memory()
        self.written: dict[str, Array] = {}

    def values(self, *shape: int) -> Array:
        """Numbers of different magnitude whose products and sums all round."""
        mantissa = self.rng.uniform(-1, 1, shape)
        return (mantissa * 2.0 ** self.rng.integers(-3, 4, shape)).astype(self.dtype)

    def matrix(self, rows: int, cols: int, layout: str) -> Array:
        """A random matrix: ``rows`` or ``cols`` contiguous, with a pitch, or neither."""
        if layout == "cols":
            return self.matrix(cols, rows, "rows").T
        if layout == "rows":
            return self.values(rows + 2, cols + 3)[1 : 1 + rows, 2 : 2 + cols]
        if layout == "reversed":
            return self.values(rows, cols + 1)[::-1, :cols]
        return self.values(rows, 2 * cols + 1)[:, 1::2]

    def add(self, name: str, array: Array, *, initialised: bool = True, out: bool = False) -> int:
        """Register an operand; ``out``: it will be written and compared."""
        if out:
            self.written[name] = array if array.base is None else array.base
        return self.memory.add(name, array, writable=out, initialised=initialised)

    def record(
        self, record: Record, values: dict[str, float], *, out: bool = False, whole: bool = False
    ) -> int:
        """Register a record; only the given fields, or the whole with -1 in the other ones."""
        slots = np.full(record.slots, -1, np.int64)
        for name, value in values.items():
            if isinstance(value, int):
                slots[record.slot(name)] = value
            else:
                slots[record.slot(name) :][:1].view(self.dtype)[0] = value
        if whole:
            self.add(record.name, slots)
        # Each given field a region of its own: a kernel that reads any other one is found.
        for name in () if whole else values:
            self.add(f"{record.name}.{name}", slots[record.slot(name) :][:1], out=out)
        if out:
            self.written[record.name] = slots
        return int(slots.__array_interface__["data"][0])


def expected(
    spec: GemmSpec,
    a: Array,
    b: Array,
    *,
    earlier: Array | None = None,
    last: bool = True,
    c: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """The product by the rounding contract: blocks of ascending chains, then the epilogue."""
    ops = {name: op.meaning for name, op in spec.isa.ops.items()}
    scalar = dtype_of(spec.element).type
    total, block = earlier, spec.element.depth_block
    with np.errstate(all="ignore"):
        for start in range(0, max(a.shape[1], 1), block):
            sums = np.zeros((a.shape[0], b.shape[1]), scalar)
            for p in range(start, min(start + block, a.shape[1])):
                sums = ops["madd"](a[:, p : p + 1], b[p : p + 1], sums)
            total = sums if total is None else ops["add"](total, sums)
        assert total is not None
        if not last:
            return total
        value = ops["mul"](np.full_like(total, ALPHA), total)
        if c is not None:
            value = ops["madd"](np.full_like(total, BETA), c, value)
        if bias is not None:
            value = ops["add"](value, np.broadcast_to(bias, value.shape))
        if spec.epilogue.activation is Activation.RELU:
            value = ops["relu"](value)
    return np.asarray(value)


def pack(spec: GemmSpec, b: Array) -> Array:
    """Micropanels of ``b``: ``[panel, depth, nr]``; the last repeats its first column."""
    depth, n = b.shape
    panels = np.empty((-(-n // spec.nr), depth, spec.nr), b.dtype)
    panels[...] = b[:, :: spec.nr].T[:, :, np.newaxis]
    for j in range(n):
        panels[j // spec.nr, :, j % spec.nr] = b[:, j]
    return panels


# -- microkernels --------------------------------------------------------------------------------


@dataclass
class MicroCase:
    """One microtile and all its operands."""

    spec: GemmSpec
    panels: int
    rows: int
    cols: int
    first: int
    last: int

    def build(self) -> tuple[Operands, list[int], Array, Array]:
        """Operands, the arguments of the call, the target, and what must be in it."""
        spec, rows, cols = self.spec, self.rows, self.cols
        x = Operands(spec.element, seed=rows * 1000 + cols)
        a = x.matrix(rows, DEPTH, "rows")
        b = x.matrix(DEPTH, cols, "rows")
        c = x.matrix(rows, cols, "rows")
        d = x.matrix(rows, cols, "rows")
        bias = x.values(cols)
        # b_row counts only in place, panel_stride only packed; the other one must not be read.
        job: dict[str, float] = {"a_row": a.strides[0], "a_col": a.strides[1]}
        if spec.b is BSource.PACKED:
            # A gap after each micropanel tells its stride from its size.
            source = np.zeros((self.panels, DEPTH + 1, spec.nr), a.dtype)
            source[: -(-cols // spec.nr), :DEPTH] = pack(spec, b)
            source = source[:, :DEPTH]
            job["panel_stride"] = source.strides[0]
        else:
            source = b
            job["b_row"] = b.strides[0]
            job["panel_stride"] = spec.panel_row
        at = x.add("d", d, out=True, initialised=not self.first)
        tile: dict[str, float] = {
            "target": at, "target_row": d.strides[0], "cols": cols,
            "first": self.first, "last": self.last, "ahead": 1 << 40,  # no memory: only a hint
        }  # fmt: skip
        if not self.first:
            tile |= {"partial": at, "partial_row": d.strides[0]}
        if self.last:
            job["alpha"] = ALPHA
            if spec.epilogue.beta:
                job["beta"] = BETA
                tile |= {"c": x.add("c", c), "c_row": c.strides[0]}
            if spec.epilogue.bias:
                tile["bias"] = x.add("bias", bias)
        want = expected(
            spec, a, b,
            earlier=None if self.first else d.copy(), last=bool(self.last),
            c=c if spec.epilogue.beta else None, bias=bias if spec.epilogue.bias else None,
        )  # fmt: skip
        arguments = [
            x.record(JOB, job), x.record(TILE, tile), x.add("a", a), x.add("b", source), DEPTH,
        ]  # fmt: skip
        return x, arguments, d, want

    def check(self) -> None:
        """Run all three."""
        function, sides = microkernel(self.spec, self.panels, self.rows), []
        for compiled in backends(self.spec):
            x, arguments, d, want = self.build()
            execute(self.spec, function, x, arguments, compiled=compiled)
            np.testing.assert_array_equal(bits(d), bits(want), err_msg=f"{compiled=} {self}")
            sides.append(x)
        same_bytes(sides, str(self))


def execute(
    spec: GemmSpec, function: Function, x: Operands, arguments: list[int], *, compiled: bool
) -> None:
    """Call a function of the spec's unit on one backend."""
    if compiled:
        native(spec, function)(*arguments)
    else:
        run(function, x.memory, spec.isa, *arguments)


def same_bytes(sides: list[Operands], what: str) -> None:
    """All memory that may be written holds the same bytes, also around the elements."""
    first, *others = sides
    for other in others:
        assert first.written.keys() == other.written.keys()
        for name, array in first.written.items():
            np.testing.assert_array_equal(
                bits(array), bits(other.written[name]), err_msg=f"{name} differs: {what}"
            )


def _edges(spec: GemmSpec, panels: int) -> list[int]:
    """Widths of the last micropanel: one column, inside and at the end of a vector, all but one."""
    before, lanes = (panels - 1) * spec.nr, spec.lanes
    return [before + 1, before + lanes, before + lanes + lanes // 2 + 1, before + spec.nr - 1]


@pytest.mark.parametrize("spec", SPECS)
def test_microkernel(spec: GemmSpec) -> None:
    """Every variant of the tile: full and partial columns, all places in a sum of blocks."""
    for number, (panels, rows) in enumerate(spec.tile.variants()):
        case = MicroCase(spec, panels, rows, panels * spec.nr, first=1, last=1)
        case.check()
        for first, last in ((1, 0), (0, 0), (0, 1)):
            replace(case, first=first, last=last).check()
        if panels > 1 and not spec.partial_groups:
            continue
        # One edge per variant with each flag combination somewhere; together they meet all.
        edge = _edges(spec, panels)[number % 4]
        replace(case, cols=edge).check()
        replace(case, cols=edge, first=0, last=number % 2).check()


@pytest.mark.parametrize("spec", SPECS)
def test_microkernel_narrow_edges(spec: GemmSpec) -> None:
    """All widths of an edge tile, down to whole vectors that do not exist."""
    panels, rows = spec.tile.groups[-1][0] if spec.partial_groups else 1, 1
    for cols in sorted({*range(1, spec.nr + 1), *_edges(spec, panels), panels * spec.nr - 1}):
        MicroCase(spec, panels, rows, cols, first=1, last=1).check()


@pytest.mark.parametrize("spec", SPECS)
def test_microkernel_without_depth(spec: GemmSpec) -> None:
    """No depth at all: the epilogue of zero sums."""
    function = microkernel(spec, 1, spec.tile.mr)
    outputs = []
    for compiled in backends(spec):
        case = MicroCase(spec, 1, spec.tile.mr, spec.nr, first=1, last=1)
        x, arguments, d, _ = case.build()
        arguments[-1] = 0
        execute(spec, function, x, arguments, compiled=compiled)
        outputs.append(x)
        if not spec.epilogue.beta:
            assert not bits(d).any()
    same_bytes(outputs, "no depth")


# -- packing -------------------------------------------------------------------------------------


def _pack_b(spec: GemmSpec, layout: str, span: tuple[int, int, int, int]) -> Array:
    """Pack part of a B that has this layout, on both backends; the bytes they agree on."""
    j0, j1, p0, p1 = span
    function = pack_b(spec)
    sides = []
    for compiled in backends(spec):
        x = Operands(spec.element, seed=7)
        b = x.matrix(p1 + 2, j1 + 1, "rows")
        if layout != "rows":
            moved = x.matrix(*b.shape, layout)
            moved[...] = b
            b = moved
        inside = b[p0:p1, j0:j1]
        x.add("b", inside)
        depth = p1 - p0 + 1  # one step more than needed: the stride is not the size
        packed = np.full((-(-(j1 - j0) // spec.nr), depth, spec.nr), np.nan, b.dtype)
        job: dict[str, float] = {
            "b": int(b.__array_interface__["data"][0]), "b_row": b.strides[0],
            "b_col": b.strides[1], "panel_stride": packed.strides[0],
        }  # fmt: skip
        x.written["packed"] = packed
        at = x.add("packed", packed[:, : p1 - p0], out=True, initialised=False)
        arguments = [x.record(JOB, job), at, j0, j1, p0, p1]
        execute(spec, function, x, arguments, compiled=compiled)
        np.testing.assert_array_equal(bits(packed[:, : p1 - p0]), bits(pack(spec, inside)))
        assert np.isnan(packed[:, p1 - p0 :]).all()
        sides.append(x)
    same_bytes(sides, f"pack_b of {layout} {span}")
    return bits(sides[0].written["packed"])


@pytest.mark.parametrize("spec", PACKED_SPECS)
def test_pack_b(spec: GemmSpec) -> None:
    """Contiguous and strided sources give the same bytes, tails repeat their first column."""
    strip = 64 // spec.element.bytes
    for span in (
        (0, 2 * spec.nr, 0, 3),
        (spec.nr, 2 * spec.nr + 1, 1, strip + 2),
        (3, 2 + spec.nr, 0, 1),
    ):
        results = [_pack_b(spec, layout, span) for layout in ("rows", "cols", "both", "reversed")]
        for other in results[1:]:
            np.testing.assert_array_equal(results[0], other)


# -- nests ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NestCase:
    """A whole product with its blocking; sizes in tiles keep every case small."""

    spec: GemmSpec
    m: int
    n: int
    k: int
    tile_rows: int
    layout_a: str = "rows"
    layout_b: str = "rows"
    layout_d: str = "rows"
    pack_a: PackA = PackA.INPLACE
    sweep: bool = False
    prepacked: bool = False
    in_place: bool = False  # C is D
    direct: bool = True
    row_tiles: int = 1  # microtiles per chunk
    panels: int = 0  # micropanels per chunk; 0: all
    block_panels: int = 0  # micropanels packed at a time; 0: all
    pack_panels: int = 1  # micropanels per packing ticket
    slice_depth: int = 0  # 0: all
    threads: int = 1
    seed: int = field(default=3)

    def build(self) -> tuple[Operands, int, Array, Array]:
        """Operands, the address of the job, D, and what must be in D."""
        spec, m, n, depth, size = self.spec, self.m, self.n, self.k, self.spec.element.bytes
        x = Operands(spec.element, self.seed)
        a, b = x.matrix(m, depth, self.layout_a), x.matrix(depth, n, self.layout_b)
        d, c = x.matrix(m, n, self.layout_d), x.matrix(m, n, self.layout_d)
        c = d if self.in_place else c
        bias = x.values(n)
        beta, has_bias = spec.epilogue.beta, spec.epilogue.bias
        want = expected(spec, a, b, c=c.copy() if beta else None, bias=bias if has_bias else None)
        rows = self.row_tiles * self.tile_rows
        all_panels = max(1, -(-n // spec.nr))
        block = min(self.block_panels or all_panels, all_panels)
        per_chunk = min(self.panels or block, block)
        kc = self.slice_depth or max(depth, 1)
        per_call = spec.b is BSource.PACKED and not self.prepacked
        job: dict[str, float] = {
            "a": x.add("a", a), "source_row": a.strides[0], "source_col": a.strides[1],
            "a_row": a.strides[0], "a_col": a.strides[1], "a_tile": self.tile_rows * a.strides[0],
            "rows_ahead": rows,
            "d": x.add("d", d, out=True, initialised=self.in_place),
            "d_row": d.strides[0], "d_col": d.strides[1],
            "counters": x.record(COUNTERS, {"cursor": 0, "done": 0}, out=True),
            "m": m, "n": n, "k": depth, "alpha": ALPHA,
            "tile_rows": self.tile_rows, "group": spec.tile.group_for(self.tile_rows),
            "rows_per_chunk": rows, "row_chunks": -(-m // rows),
            "cols_per_chunk": per_chunk * spec.nr, "col_chunks": -(-block // per_chunk),
            "depth_per_slice": kc, "slices": max(1, -(-depth // kc)), "depth_step": kc,
            "sweep": int(self.sweep),
            "cols_per_block": block * spec.nr, "blocks": -(-all_panels // block),
            "pack_chunks": -(-block // self.pack_panels) if per_call else 0,
            "pack_cols": self.pack_panels * spec.nr,
            "pack_a": self.pack_a.value, "direct": int(self.direct),
        }  # fmt: skip
        if beta:
            at = job["d"] if self.in_place else x.add("c", c)
            job |= {"c": at, "c_row": c.strides[0], "c_col": c.strides[1], "beta": BETA}
        if has_bias:
            job["bias"] = x.add("bias", bias)
        if self.pack_a is not PackA.INPLACE:
            panels = self.pack_a is PackA.PANELS
            # Copied rows are padded to a whole number of vectors and a bit.
            width = self.tile_rows if panels else kc + spec.lanes + 1
            job |= {"pack_a_width": width, "a_row": size if panels else width * size}
            job |= {"a_col": width * size if panels else size}
            job["a_tile"] = self.tile_rows * (kc * size if panels else width * size)
            region = -(-self.row_tiles * int(job["a_tile"]) // 64) * 64
            job |= {"workspace_a_stride": region}
            job["workspace_a"] = self._workspace(x, region * self.threads)
        if spec.b is BSource.INPLACE:
            job |= {"b": x.add("b", b), "b_row": b.strides[0], "panel_stride": spec.panel_row}
        elif self.prepacked:
            packed = pack(spec, b)
            job |= {"packed": x.add("packed", packed), "panel_stride": packed.strides[0]}
            job["slice_stride"] = spec.panel_row
        else:
            job |= {"b": x.add("b", b), "b_row": b.strides[0], "b_col": b.strides[1]}
            job |= {"panel_stride": kc * spec.panel_row, "slice_stride": 0}
            job["packed"] = self._workspace(x, block * kc * spec.panel_row)
        return x, x.record(JOB, job, whole=True), d, want

    @staticmethod
    def _workspace(x: Operands, size: int) -> int:
        return x.add("workspace", np.full(size, 0xA5, np.uint8), out=True, initialised=False)

    def check(self, function: Function) -> None:
        """Run all three, on one thread."""
        sides = []
        for compiled in backends(self.spec):
            x, job, d, want = self.build()
            execute(self.spec, function, x, [job, 0], compiled=compiled)
            np.testing.assert_array_equal(bits(d), bits(want), err_msg=f"{compiled=} {self}")
            sides.append(x)
        same_bytes(sides, str(self))

    def check_threads(self, function: Function) -> None:
        """Run machine code on several threads."""
        x, job, d, want = self.build()
        call = native(self.spec, function)
        workers = [threading.Thread(target=call, args=(job, i)) for i in range(1, self.threads)]
        for worker in workers:
            worker.start()
        call(job, 0)
        for worker in workers:
            worker.join()
        np.testing.assert_array_equal(bits(d), bits(want), err_msg=str(self))
        assert x.written["counters"][COUNTERS.slot("done")] > 0


def _cases(spec: GemmSpec) -> Iterator[NestCase]:
    """Small products with several tiles, edges, chunks, blocks of columns and layouts."""
    mr, nr = spec.tile.mr, spec.nr
    edge = NestCase(spec, mr + 2, 2 * nr + 3, 3, (mr + 3) // 2)
    yield edge
    yield replace(edge, layout_a="cols", row_tiles=2, panels=1)
    # Few rows: groups of micropanels, whole and broken ones.
    widest = spec.tile.groups[-1]
    yield NestCase(spec, widest[1], (widest[0] + 1) * nr + 1, 2, widest[1], layout_a="both")
    yield NestCase(spec, 1, 2 * widest[0] * nr - 1, 5, 1)
    yield replace(edge, pack_a=PackA.PANELS, layout_a="both", row_tiles=2)
    yield replace(edge, pack_a=PackA.PANELS, layout_a="cols", k=17, n=nr - 1)
    yield replace(edge, pack_a=PackA.ROWS, k=2 * spec.lanes + 3, row_tiles=2, n=nr - 1)
    yield replace(edge, pack_a=PackA.ROWS, layout_a="both", n=nr - 1)
    # Results without unit stride, and results that are their own C.
    yield replace(edge, direct=False, layout_d="cols", n=nr + 1)
    yield replace(edge, direct=False, layout_d="reversed", in_place=True, n=nr + 1, panels=1)
    yield replace(edge, in_place=True, n=nr + 1)
    yield replace(edge, k=0, n=nr + 1)
    if spec.b is BSource.PACKED:
        yield replace(edge, prepacked=True, panels=2)
        yield replace(edge, layout_b="cols", block_panels=2, pack_panels=2)
        yield replace(edge, layout_b="reversed", block_panels=1, n=2 * nr - 1)


def _deep_cases(spec: GemmSpec) -> Iterator[NestCase]:
    """More than one depth block: sums rest between blocks, and between slices."""
    block = spec.element.depth_block
    deep = NestCase(spec, 2, spec.nr + 1, block + 3, 2)
    yield replace(deep, slice_depth=block)
    yield replace(deep, direct=False, layout_d="cols", in_place=True, n=3)
    if spec.b is BSource.PACKED:
        yield replace(deep, prepacked=True, slice_depth=block, n=3, pack_a=PackA.PANELS)


@pytest.mark.parametrize("spec", SPECS)
def test_nest(spec: GemmSpec) -> None:
    """The five loops, with every way to read, pack and write."""
    for case in _cases(spec):
        case.check(nest(spec))


@pytest.mark.parametrize("spec", SPECS)
def test_nest_deep(spec: GemmSpec) -> None:
    """Sums over more than one depth block."""
    for case in _deep_cases(spec):
        case.check(nest(spec))


@pytest.mark.parametrize("spec", SPECS)
def test_serial(spec: GemmSpec) -> None:
    """The form for small products equals the nest: it is held to the same contract."""
    mr, nr = spec.tile.mr, spec.nr
    ready = spec.b is BSource.PACKED
    for m, n, depth in ((mr + 1, nr + 1, 3), (1, 3, 1)):
        NestCase(spec, m, n, depth, min(m, mr), prepacked=ready).check(serial(spec))


@pytest.mark.parametrize("spec", [p for p in SPECS if p.values[0].b is BSource.INPLACE])
def test_sweeps(spec: GemmSpec) -> None:
    """Few rows sweep along the rows of B: the same sums, whatever the number of columns."""
    lanes = spec.lanes
    for m in range(1, SWEEP_ROWS + 1):
        for n, depth in ((1, 3), (lanes, 9), (2 * lanes + 1, 8), (5 * lanes - 1, 19)):
            NestCase(spec, m, n, depth, m, sweep=True).check(nest(spec))


@pytest.mark.parametrize("spec", COMPILED_SPECS)
def test_two_threads(spec: GemmSpec) -> None:
    """Tickets drawn by two threads cover the product once, whoever draws which."""
    mr, nr = spec.tile.mr, spec.nr
    case = NestCase(spec, 5 * mr, 5 * nr + 1, 7, mr, panels=1, block_panels=3, threads=2)
    case.check_threads(nest(spec))
    replace(case, pack_a=PackA.PANELS).check_threads(nest(spec))
    replace(case, pack_a=PackA.ROWS, panels=0).check_threads(nest(spec))


def test_every_row_is_tested() -> None:
    """Machine code of at least one instruction set ran; no two rows share a symbol."""
    assert COMPILED_SPECS
    assert len({p.id for p in SPECS}) == len(SPECS) == 4 * len(registry.rows())
