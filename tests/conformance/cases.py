"""What conformance tests share: specs from the registry, operands, and the written contract.

The generator is the registry: a new row (element type, instruction set, tile) is tested by being
there (of rows whose code is the same, one: `rows.py`).  Each case runs three ways on the same
operands:

* machine code, compiled from the kernel source;
* the interpreter on the same source, which also refuses any access a kernel has no business with
  (operands are registered with exactly the elements they have);
* :func:`expected`, the rounding contract in a few lines of NumPy, which knows nothing of tiles.

Rows for instruction sets this machine lacks, and the interpreter's own, run without machine code.

Plain products keep the depth block they are released with.  Those with an epilogue have a short
one, so that sums of several blocks are a matter of a few dozen steps for the interpreter too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from jitgemm.isa.lengths import streaming_bits, sve_bits
from jitgemm.isa.outer import OuterUnit
from jitgemm.isa.tables import Isa
from jitgemm.jit import compiler
from jitgemm.jit.target import available
from jitgemm.kernels.arithmetic import Arithmetic
from jitgemm.kernels.exports import gemm_functions
from jitgemm.kernels.expression import ACTIVATIONS, Program, emit
from jitgemm.kernels.matrix import matrix_microkernel
from jitgemm.kernels.micro import microkernel
from jitgemm.kernels.registry import columns_tile
from jitgemm.kernels.spec import Bias, BSource, Epilogue, GemmSpec, Tile
from jitgemm.lang.core import Function, Vec
from jitgemm.lang.interp import InterpKernel, Memory, dtype_of, run
from jitgemm.lang.record import Record
from order import ascending, chain_sums, combined
from rows import distinct_rows

Array = np.ndarray[Any, np.dtype[Any]]

NOTHING_DONE = dict.fromkeys(("cursor", "done", "sleepers"), 0)
"""Counters of a product that nobody has begun."""

PLAIN = Epilogue()
CLIPPED = Epilogue(True, Bias.COLUMN, ACTIVATIONS["clip"])
# v - row * constant + col: written out for every vector of a tile.
PLACED = Epilogue(
    False, Bias.ROW,
    Program((("v", ()), ("row", ()), ("const", (0,)), ("mul", (1, 2)), ("sub", (0, 3)),
             ("col", ()), ("add", (4, 5)))),
)  # fmt: skip
# A function with a polynomial: a map of the stored tile.
MAPPED = Epilogue(
    True, Bias.FULL,
    Program((("v", ()), ("silu", (0,)), ("col", ()), ("const", (1,)), ("mul", (2, 3)),
             ("add", (1, 4)), ("row", ()), ("sub", (5, 6)))),
)  # fmt: skip
REAL = (CLIPPED, PLACED, MAPPED)
COMPLEX = tuple(replace(e, program=None) for e in REAL)
INTEGER = (CLIPPED, *COMPLEX[1:])  # other programs are those of floats

# None is a float of either width, so multiplying by them rounds.
ALPHA, BETA, CONSTANTS = 1.1, -0.7, (-0.9, 2.3)
TURNED_ALPHA, TURNED_BETA = 1.1 - 0.3j, -0.7 + 0.6j
# Odd, so that no bit of a sum is lost, and of both signs.
WHOLE_ALPHA, WHOLE_BETA = -3, 0x6B5A4F39
WHOLE_CONSTANTS = -1234, 0x3FFF_FFF5


def short_block(spec: GemmSpec) -> GemmSpec:
    """The same spec with a short depth block."""
    element = replace(spec.element, depth_block=32)
    how = Arithmetic.plain_of(element) if spec.arithmetic.plain else spec.arithmetic
    return replace(spec, element=element, arithmetic=how)


def specs(sources: Iterable[BSource] = BSource, *, every: bool = False) -> list[Any]:
    """Test parameters: every row plain and with an epilogue (``every``: with each of them)."""
    found = []
    for number, (element, isa, components, tile) in enumerate(distinct_rows()):
        for source in sources:
            fits = columns_tile(tile, isa, components) if source is BSource.COLUMNS else tile
            plain = GemmSpec(element, isa, fits, source, PLAIN, components)
            kinds = INTEGER if element.integral else REAL if components == 1 else COMPLEX
            turn = (number + list(BSource).index(source)) % len(kinds)
            some = kinds if every else kinds[turn : turn + 1]
            rich = [short_block(replace(plain, epilogue=e)) for e in some]
            found += [pytest.param(s, id=s.symbol) for s in (plain, *rich)]
    return found


def rich(params: list[Any]) -> list[Any]:
    """Those with an epilogue, whose depth block is short."""
    return [p for p in params if p.values[0].epilogue != PLAIN]


def by_lane(params: list[Any]) -> list[Any]:
    """The same with A read by vectors of its rows, where a tile has as many as fill one.

    With tiles of one row more than that: others differ in nothing, and take longer to compile.
    """
    found = []
    for spec in (p.values[0] for p in params):
        least = max(1, spec.lanes // spec.components)
        fills = spec.tile.mr >= least and spec.lanes > 1
        if fills and spec.arithmetic.plain and spec.b is not BSource.COLUMNS:
            rows = min(spec.tile.mr, least + 1)
            more = tuple((p, min(r, rows)) for p, r in spec.tile.groups if 1 < p <= 2)
            tile = Tile(rows, spec.tile.nr_regs, ((1, rows), *more))
            found.append(replace(spec, tile=tile, a_vectors=True))
    return [pytest.param(s, id=s.symbol) for s in found]


def compiles(spec: GemmSpec) -> bool:
    """Whether this machine runs the spec's machine code."""
    return not spec.isa.interpreted and available(spec.isa) and as_long_here(spec.isa)


def as_long_here(isa: Isa) -> bool:
    """Whether vectors are as long as those of this process, where that is the machine's matter."""
    if isinstance(isa.unit, OuterUnit):
        return 8 * isa.unit.row_bytes == streaming_bits()
    return not isa.scalable or isa.vector_bits == sve_bits()


def backends(spec: GemmSpec) -> tuple[bool, ...]:
    """Compiled or not; the interpreter first, because it explains what would crash."""
    return (False, True) if compiles(spec) else (False,)


@cache
def unit(spec: GemmSpec) -> compiler.Unit:
    """The spec's own unit, with its microkernels exported too."""

    def functions() -> list[Function]:
        if spec.outer is not None:
            micros = []  # they run inside the unit's mode only
        elif spec.tiles:
            micros = [matrix_microkernel(spec, panels) for panels, _ in spec.tile.groups]
        elif spec.b is BSource.COLUMNS and not spec.arithmetic.plain:
            micros = []  # their walks have no microkernel
        else:
            micros = [microkernel(spec, panels, rows) for panels, rows in spec.tile.variants()]
        return [*gemm_functions(spec), *micros]

    return compiler.Unit(f"conformance_{spec.symbol}", spec.isa, functions)


def native(spec: GemmSpec, function: Function, alone: compiler.Unit | None = None) -> Any:
    """The compiled form of a function of the spec's unit, or of ``alone``."""
    return compiler.get(alone or unit(spec)).entry(function)


def bits(x: Array) -> Array:
    """The bytes of an array of any strides."""
    return np.frombuffer(x.tobytes(), np.uint8)


def real_of(spec: GemmSpec) -> np.dtype[Any]:
    """The type of a part of a number."""
    return dtype_of(spec.element)


def number_of(spec: GemmSpec) -> np.dtype[Any]:
    """The type of a number: complex if it has two parts."""
    return np.dtype(f"c{2 * spec.element.bytes}") if spec.components == 2 else real_of(spec)


class Operands:
    """Random operands, the same for everyone who asks with the same seed."""

    def __init__(self, spec: GemmSpec, seed: int) -> None:
        self.real, self.number = real_of(spec), number_of(spec)
        self.rng = np.random.default_rng(seed)
        self.memory = Memory()
        self.written: dict[str, Array] = {}
        self.kept: list[Array] = []
        """What a region's bytes belong to, where it is not the region's own array."""

    def values(self, *shape: int) -> Array:
        """Numbers of different magnitude whose products and sums all round; some are zeros.

        Integers are any there are: products and sums wrap.
        """
        if self.real.kind in "iu":
            info = np.iinfo(self.real)
            x = self.rng.integers(info.min, info.max, shape, self.real, endpoint=True)
            x[self.rng.random(shape) < 0.05] = self.rng.choice(
                np.array([0, info.min, info.max], self.real)
            )
            return x
        components = self.number.itemsize // self.real.itemsize
        shape = (*shape[:-1], shape[-1] * components)
        mantissa = self.rng.uniform(-1, 1, shape)
        mantissa[self.rng.random(shape) < 0.05] = -0.0
        x = (mantissa * 2.0 ** self.rng.integers(-3, 4, shape)).astype(self.real)
        return x.view(self.number)

    def matrix(self, rows: int, cols: int, layout: str = "rows", *, swap: bool = False) -> Array:
        """A random matrix: ``rows`` or ``cols`` contiguous, with a pitch, or neither.

        ``swap``: in the byte order this machine does not have.
        """
        if layout == "cols":
            return self.matrix(cols, rows, "rows", swap=swap).T
        if layout == "rows":
            x, part = self.values(rows + 2, cols + 3), np.s_[1 : 1 + rows, 2 : 2 + cols]
        elif layout == "reversed":
            x, part = self.values(rows, cols + 1), np.s_[::-1, :cols]
        else:
            x, part = self.values(rows, 2 * cols + 1), np.s_[:, 1::2]
        return (x.astype(x.dtype.newbyteorder("S")) if swap else x)[part]

    def add(self, name: str, array: Array, *, initialised: bool = True, out: bool = False) -> int:
        """Register an operand; ``out``: it will be written and compared."""
        if out:
            owner = array
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            self.written[name] = owner
        return self.memory.add(name, array, writable=out, initialised=initialised)

    def record(
        self, record: Record, values: dict[str, Any], *, out: bool = False, whole: bool = False
    ) -> int:
        """Register a record; only the given fields, or the whole with -1 in the other ones."""
        slots = np.full(record.slots, -1, np.int64)
        spans = {}
        for name, value in values.items():
            first, numbers = record.slot(name), np.atleast_1d(value)
            size = 1
            if isinstance(value, int | np.integer):
                slots[first] = value
            else:
                size = -(-numbers.size * self.real.itemsize // 8)
                slots[first : first + size].view(self.real)[: numbers.size] = numbers
            spans[name] = slots[first : first + size]
        if whole:
            self.add(record.name, slots)
        # Each given field a region of its own: a kernel that reads any other one is found.
        for name in () if whole else values:
            self.add(f"{record.name}.{name}", spans[name], out=out)
        if out:
            self.written[record.name] = slots
        return int(slots.__array_interface__["data"][0])


class Factors:
    """Scalars of a product, as the contract names them and as a job holds them."""

    def __init__(
        self, spec: GemmSpec, alpha: complex | None = None, beta: complex | None = None,
        conj: str = "",
    ) -> None:  # fmt: skip
        known = (WHOLE_ALPHA, WHOLE_BETA) if spec.element.integral else (ALPHA, BETA)
        self.spec = spec
        self.alpha: Any = known[0] if alpha is None else alpha
        self.beta: Any = known[1] if beta is None else beta
        self.conj_a, self.conj_b = "a" in conj, "b" in conj
        numbers = WHOLE_CONSTANTS if spec.element.integral else CONSTANTS
        self.constants = np.array(numbers, real_of(spec))

    def fields(self, x: Operands) -> dict[str, Any]:
        """Fields of the job; those that a kernel of this spec may not read are left out."""
        spec, job = self.spec, {}
        program = spec.epilogue.program
        if program is not None and program.constants:
            job["constants"] = x.add("constants", self.constants[: program.constants])
        names = ["alpha", *(["beta"] if spec.epilogue.beta else [])]
        for name in names:
            value = getattr(self, name)
            if spec.element.integral:
                # Modulo 2**bits, and a whole slot.
                job[name] = np.uint64(value % (1 << spec.element.bits)).view(np.int64)
                continue
            if spec.components == 1:
                job[name] = float(value.real)
                continue
            value = complex(value)
            job[name] = (value.real, value.real)
            job[f"complex_{name}"] = int(value.imag != 0)
            if value.imag:
                job[f"{name}_imag"] = (-value.imag, value.imag)
        return job | self.signs()

    def signs(self) -> dict[str, Any]:
        """Signs of the four products of parts."""
        if self.spec.components == 1:
            return {}
        a, b = (-1.0 if x else 1.0 for x in (self.conj_a, self.conj_b))
        return {"sign_real": (1.0, b), "sign_imag": (-a * b, a)}


# -- the contract ---------------------------------------------------------------------------------


def meanings(spec: GemmSpec) -> dict[str, Callable[..., Any]]:
    """What the operations of the spec's instruction set mean, lane by lane."""
    return {name: op.meaning for name, op in spec.isa.table(spec.element).items()}


def reals(x: Array) -> Array:
    """Complex numbers as pairs of reals, side by side; reals as they are."""
    x = np.ascontiguousarray(x, x.dtype.newbyteorder("="))
    return x.view(np.dtype(f"f{x.itemsize // 2}")) if x.dtype.kind == "c" else x


def turned(x: Array) -> Array:
    """Real and imaginary parts exchanged."""
    return x.reshape(*x.shape[:-1], -1, 2)[..., ::-1].reshape(x.shape)


def madd_of(spec: GemmSpec) -> Callable[[Array, Array, Array], Array]:
    """The multiply-add of the spec's instruction set."""
    madd = meanings(spec)["madd"]
    return lambda x, y, z: np.asarray(madd(*np.broadcast_arrays(x, y), z))


def combine(f: Factors, chains: Array) -> Array:
    """Four sums ``rr, ii, ri, ir`` as complex numbers in reals, or the one of reals."""
    components = combined(chains, (-1 if f.conj_a else 1, -1 if f.conj_b else 1))
    return np.stack(list(components), axis=-1).reshape(*components.shape[1:-1], -1)


def pairs_of(spec: GemmSpec, a: Array, b: Array) -> list[tuple[Array, Array]]:
    """The matrices of reals whose products make up that of two matrices: ``rr, ii, ri, ir``."""
    x, y = reals(a), reals(b)
    if spec.components == 1:
        return [(x, y)]
    return [(x[:, i::2], y[:, j::2]) for i, j in ((0, 0), (1, 1), (0, 1), (1, 0))]


def block_sums(spec: GemmSpec, f: Factors, a: Array, b: Array) -> list[Array]:
    """The sums of each depth block, in reals."""
    with np.errstate(all="ignore"):
        sums = chain_sums(pairs_of(spec, a, b), spec.element.depth_block, madd_of(spec))
        return [combine(f, sums[:, i]) for i in range(sums.shape[1])]


def concluded(
    spec: GemmSpec, f: Factors, total: Array, *, c: Array | None, bias: Array | None,
    at: tuple[int, int] = (0, 0),
) -> Array:  # fmt: skip
    """A finished sum, in reals, through the epilogue; ``at``: indices of its first element."""
    ops, real = meanings(spec), real_of(spec)

    def turn(factor: complex, x: Array, value: Array) -> Array:
        pattern = np.tile(np.array([-factor.imag, factor.imag], real), x.shape[1] // 2)
        return np.asarray(ops["madd"](np.broadcast_to(pattern, x.shape), turned(x), value))

    with np.errstate(all="ignore"):
        value = ops["mul"](np.full_like(total, f.alpha.real), total)
        if f.alpha.imag:
            value = turn(complex(f.alpha), total, value)
        if spec.epilogue.beta:
            assert c is not None
            source = reals(c)
            value = ops["madd"](np.full_like(total, f.beta.real), source, value)
            if f.beta.imag:
                value = turn(complex(f.beta), source, value)
        if spec.epilogue.bias is not Bias.NONE:
            assert bias is not None
            wide = np.broadcast_to(bias, (total.shape[0], total.shape[1] // spec.components))
            value = ops["add"](value, reals(wide))
    return mapped(spec, f, np.asarray(value), at)


def mapped(spec: GemmSpec, f: Factors, value: Array, at: tuple[int, int]) -> Array:
    """The epilogue's program on every element, by the meanings of the operations."""
    program, k = spec.epilogue.program, InterpKernel(spec.isa, Memory())
    if program is None:
        return value
    row, col = np.indices(value.shape)

    def vector(x: Any) -> Vec:
        flat = np.broadcast_to(x, value.shape).astype(value.dtype).ravel()
        return Vec(k, flat, spec.element, value.size)

    def inputs(what: str, index: int) -> Vec:
        known = {"v": value, "row": row + at[0], "col": col + at[1]}
        return vector(known[what] if what in known else f.constants[index])

    return np.asarray(emit(program, k, inputs).handle).reshape(value.shape)


def summed(blocks: list[Array]) -> Array:
    """Block sums added in ascending order."""
    return ascending(np.stack(blocks)[np.newaxis])[0]


def expected(
    spec: GemmSpec, f: Factors, a: Array, b: Array, *, c: Array | None, bias: Array | None
) -> Array:
    """The whole product by the rounding contract, as numbers."""
    total = summed(block_sums(spec, f, a, b))
    return concluded(spec, f, total, c=c, bias=bias).view(number_of(spec))


def pack(spec: GemmSpec, b: Array) -> Array:
    """Micropanels of ``b``: ``[panel, depth, columns]``; the last repeats its first column."""
    b = np.asarray(b, b.dtype.newbyteorder("="))
    (depth, n), width = b.shape, spec.nr // spec.components
    panels = np.empty((-(-n // width), depth, width), b.dtype)
    panels[...] = b[:, ::width].T[:, :, np.newaxis]
    for j in range(n):
        panels[j // width, :, j % width] = b[:, j]
    return panels


def bias_of(x: Operands, spec: GemmSpec, shape: tuple[int, int], layout: str, *,
            swap: bool = False) -> Array | None:  # fmt: skip
    """A bias of the spec's kind: one row, one column, or a matrix, of any layout."""
    rows, cols = shape
    kinds = {Bias.COLUMN: (1, cols), Bias.ROW: (rows, 1), Bias.FULL: shape}
    if spec.epilogue.bias is Bias.NONE:
        return None
    return x.matrix(*kinds[spec.epilogue.bias], layout, swap=swap)


# -- running --------------------------------------------------------------------------------------


def execute(
    spec: GemmSpec, function: Function, x: Operands, arguments: list[int], *, compiled: bool,
    alone: compiler.Unit | None = None,
) -> None:  # fmt: skip
    """Call a function of the spec's unit on one backend."""
    if compiled:
        native(spec, function, alone)(*arguments)
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
