"""Packing and tile copies: every layout, unit, byte order and tail, byte for byte.

Machine code and the interpreter run the same source; the interpreter also refuses any access
outside the operands, which are registered with exactly the elements they have.  What must come out
is said by a few lines of NumPy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from jitgemm.isa.tables import Isa
from jitgemm.isa.types import BF16, F32, F64, I8, I16, I32, I64, ElementType
from jitgemm.jit import compiler
from jitgemm.jit.target import available
from jitgemm.kernels.pack import Source, pack_panels
from jitgemm.kernels.tilecopy import copy_tile
from jitgemm.kernels.transpose import transpose
from jitgemm.lang.core import Function, Int, Kernel, Ptr, parameters
from jitgemm.lang.interp import Memory, run
from rows import distinct_sets

Array = np.ndarray[Any, np.dtype[Any]]
LAYOUTS = ("rows", "cols", "both", "reversed", "cols reversed", "packed rows", "packed cols")


@pytest.fixture(autouse=True, scope="module")
def _no_disk_cache() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JITGEMM_CACHE", "0")
        yield


every_isa = pytest.mark.parametrize("isa", [pytest.param(i, id=i.name) for i in distinct_sets()])
every_element = pytest.mark.parametrize("element", [pytest.param(e, id=e.name) for e in (F32, F64)])
# What results, C and biases may be besides: integers of every width, and bits of a format.
# Complex numbers are made of floats only.
every_number = pytest.mark.parametrize(
    "element, unit",
    [pytest.param(e, u, id=f"{e}-{u}") for e in (F32, F64, I8, I16, I32, I64, BF16)
     for u in (1, 2)[: 1 if e.integral or e.format else 2]],
)  # fmt: skip
every_unit = pytest.mark.parametrize("unit", [1, 2])


def numbers(element: ElementType, unit: int, *shape: int) -> Array:
    """Units all of whose bytes are random: any bit pattern, NaNs of all sorts among them."""
    rng = np.random.default_rng(sum(shape))
    size = unit * element.bytes
    return rng.integers(0, 256, (*shape, size), np.uint8).view(np.dtype((np.void, size)))[..., 0]


def matrix(element: ElementType, unit: int, rows: int, cols: int, layout: str) -> Array:
    """A matrix of units with these strides."""
    if layout.endswith("cols") or layout.startswith("cols"):
        other = {"cols": "rows", "packed cols": "packed rows", "cols reversed": "reversed"}
        return matrix(element, unit, cols, rows, other[layout]).T
    if layout == "rows":
        return numbers(element, unit, rows + 1, cols + 3)[1:, 2:-1]
    if layout == "packed rows":  # nothing before, between or behind
        return numbers(element, unit, rows, cols)
    if layout == "reversed":
        return numbers(element, unit, rows, cols + 1)[::-1, :cols]
    return numbers(element, unit, rows, 2 * cols + 1)[:, 1::2]


def swapped(x: Array, element: ElementType) -> Array:
    """The same units with the bytes of each element reversed."""
    components = raw(x).reshape(-1, element.bytes)[:, ::-1]
    return np.frombuffer(components.tobytes(), x.dtype).reshape(x.shape)


def raw(x: Array) -> Array:
    """The bytes of an array of any strides."""
    return np.frombuffer(x.tobytes(), np.uint8)


_compiled: dict[str, Any] = {}


def call(isa: Isa, function: Function, memory: Memory, compiled: object, *arguments: int) -> None:
    """Run on one backend."""
    if not compiled:
        run(function, memory, isa, *arguments)
        return
    name = f"{function.name}__{isa.name}"
    if name not in _compiled:
        kinds = [ctypes.c_void_p if k == "ptr" else ctypes.c_int64 for _, k in function.params]
        code = compiler.get(compiler.Unit(name, isa, lambda: [function], identity=name))
        _compiled[name] = code.function(function.name, *kinds)
    _compiled[name](*arguments)


def backends(isa: Isa) -> tuple[bool, ...]:
    """Compiled or not; the interpreter first, because it explains what would crash."""
    return (False, True) if not isa.interpreted and available(isa) else (False,)


# -- transpose -----------------------------------------------------------------------------------


@every_unit
@every_element
@every_isa
def test_transpose(isa: Isa, element: ElementType, unit: int) -> None:
    """Whole and half vectors; whatever the bits, they arrive."""
    for lanes in {isa.lanes(element), isa.lanes(element) // 2} - {1}:
        count = lanes // unit

        def body(k: Kernel, out: Ptr, x: Ptr) -> None:
            size = lanes * element.bytes
            rows = [k.load(x + i * size, element, lanes) for i in range(count)]
            for i, column in enumerate(transpose(k, rows, unit)):
                k.store(out + i * size, column)

        function = Function(f"transpose_{element}_{lanes}_{unit}", parameters("out* x*"), body)
        for compiled in backends(isa):
            x, memory = numbers(element, unit, count, count), Memory()
            out = np.zeros_like(x)
            arguments = [
                memory.add("out", out, writable=True, initialised=False),
                memory.add("x", x, writable=False),
            ]
            call(isa, function, memory, compiled, *arguments)
            np.testing.assert_array_equal(raw(out), raw(x.T), err_msg=f"{compiled=} {lanes=}")


# -- packing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackCase:
    """One operand to pack; sizes in units."""

    isa: Isa
    element: ElementType
    unit: int
    layout: str
    lead: int
    depth: int
    width: int
    fixed: bool = True  # whether the width is known when the code is generated
    swap: bool | None = False  # None: the code knows of no other byte order

    def function(self) -> Function:
        """The packing; what a case does not name is a run-time argument."""
        unit, known, fixed = self.unit, self.swap is not None, self.fixed

        def body(
            k: Kernel, x: Ptr, ls: Int, ds: Int, lead: Int, depth: Int,
            out: Ptr, stride: Int, width: Int, swap: Int,
        ) -> None:  # fmt: skip
            wanted = swap.differs(0) if known else None
            source = Source(x, ls, ds, lead, depth, unit, wanted)
            across = self.width * unit if fixed else width
            pack_panels(k, self.element, source, (out, stride), across)

        name = f"pack_{self.element}_{unit}_{self.width if fixed else 'any'}_{known}"
        declaration = "x* lead_stride depth_stride lead depth out* stride width swap"
        return Function(name, parameters(declaration), body)

    def expected(self, x: Array) -> Array:
        """Panels of ``x``, leading axis first: ``[panel, depth, width]``."""
        panels = np.empty((-(-self.lead // self.width), self.depth, self.width), x.dtype)
        for (panel, _, i), _ in np.ndenumerate(panels[:, :1]):
            j = panel * self.width + i
            panels[panel, :, i] = x[j if j < self.lead else panel * self.width]
        return swapped(panels, self.element) if self.swap else panels

    def check(self) -> None:
        """Both backends write these bytes and no others."""
        for compiled in backends(self.isa):
            x = matrix(self.element, self.unit, self.lead, self.depth, self.layout)
            want, memory = self.expected(x), Memory()
            # A gap behind each panel, which also tells its stride from its size.
            out = np.zeros((want.shape[0], self.depth + 1, self.width), x.dtype)
            before = raw(out[:, self.depth :])
            at = memory.add("out", out[:, : self.depth], writable=True, initialised=False)
            arguments = [
                memory.add("x", x, writable=False), *x.strides, self.lead, self.depth,
                at, out.strides[0], self.width * self.unit, int(bool(self.swap)),
            ]  # fmt: skip
            call(self.isa, self.function(), memory, compiled, *arguments)
            np.testing.assert_array_equal(
                raw(out[:, : self.depth]), raw(want), err_msg=f"{compiled=} {self}"
            )
            np.testing.assert_array_equal(raw(out[:, self.depth :]), before, err_msg=f"{self}")


@every_unit
@every_element
@every_isa
def test_pack_panels_of_known_width(isa: Isa, element: ElementType, unit: int) -> None:
    """Micropanels of B, two vectors wide: whole blocks, tails of both axes, less than a block."""
    block = isa.lanes(element) // unit
    case = PackCase(isa, element, unit, "rows", 2 * block + 1, block + 1, 2 * block)
    shapes = ((4 * block, 2 * block), (2 * block + 1, block + 1), (block + 1, 3 * block - 1))
    for layout in LAYOUTS:
        for lead, depth in shapes:
            replace(case, layout=layout, lead=lead, depth=depth).check()
    for lead, depth in ((1, block), (2 * block - 1, block - 1), (3, 1), (1, 1), (3, 0), (0, 3)):
        replace(case, layout="packed rows", lead=lead, depth=depth).check()
        replace(case, layout="packed cols", lead=lead, depth=depth).check()
    for layout in LAYOUTS:
        replace(case, layout=layout, swap=True).check()
    replace(case, swap=None).check()
    replace(case, swap=None, layout="packed rows").check()


@every_unit
@every_element
@every_isa
def test_pack_panels_longer_than_a_strip(isa: Isa, element: ElementType, unit: int) -> None:
    """Several strips of blocks, the last one broken."""
    block, strip = isa.lanes(element) // unit, 512 // (unit * element.bytes)
    case = PackCase(isa, element, unit, "packed rows", block + 1, strip + block + 1, 2 * block)
    case.check()
    replace(case, depth=2 * strip, width=block + 2, fixed=False).check()


@every_unit
@every_element
@every_isa
def test_pack_panels_of_any_width(isa: Isa, element: ElementType, unit: int) -> None:
    """Micropanels of A: as wide as a tile is high, narrower and wider than a block."""
    block = isa.lanes(element) // unit
    case = PackCase(isa, element, unit, "packed rows", 1, 2 * block + 1, 1, fixed=False)
    for width in sorted({1, 2, 3, block - 1, block, block + 1, 2 * block - 1, 14} - {0}):
        for lead in {width, 2 * width + 1, max(1, width - 1)}:
            replace(case, width=width, lead=lead).check()
        replace(case, width=width, lead=width, depth=block + 2).check()
    wide = replace(case, width=5, lead=8, depth=block + 2)
    for layout in LAYOUTS:
        replace(wide, layout=layout).check()
        replace(wide, layout=layout, swap=True).check()
    # Wider than any tile: rows of A side by side.
    for layout in ("packed rows", "packed cols", "both"):
        replace(wide, layout=layout, width=67, lead=66).check()


# -- tiles ---------------------------------------------------------------------------------------


def _tile_function(element: ElementType, unit: int, *, known: bool) -> Function:
    def body(
        k: Kernel, x: Ptr, row: Int, col: Int, out: Ptr, out_row: Int, out_col: Int,
        rows: Int, cols: Int, swap: Int,
    ) -> None:  # fmt: skip
        wanted = swap.differs(0) if known else None
        source, target = (x, row, col), (out, out_row, out_col)
        copy_tile(k, element, source, target, (rows, cols), unit, wanted)

    declaration = "x* row col out* out_row out_col rows cols swap"
    return Function(f"copy_tile_{element}_{unit}_{known}", parameters(declaration), body)


def check_tile(
    isa: Isa, element: ElementType, unit: int, layouts: tuple[str, str], shape: tuple[int, int],
    *, swap: bool | None = False,
) -> None:  # fmt: skip
    """A tile arrives, and nothing else changes."""
    function = _tile_function(element, unit, known=swap is not None)
    for compiled in backends(isa):
        memory = Memory()
        x = matrix(element, unit, *shape, layouts[0])
        out = matrix(element, unit, *shape, layouts[1])
        owner = out if out.base is None else out.base
        arguments = [
            memory.add("x", x, writable=False), *x.strides,
            memory.add("out", out, writable=True, initialised=False), *out.strides,
            *shape, int(bool(swap)),
        ]  # fmt: skip
        around = surroundings(owner, out)
        call(isa, function, memory, compiled, *arguments)
        message = f"{compiled=} {isa.name} {element}x{unit} {layouts} {shape} {swap=}"
        np.testing.assert_array_equal(
            raw(out), raw(swapped(x, element) if swap else x), err_msg=message
        )
        np.testing.assert_array_equal(surroundings(owner, out), around, err_msg=message)


def surroundings(owner: Array, inside: Array) -> Array:
    """The bytes of ``owner`` that do not belong to the elements of a view of it."""
    kept = inside.copy()
    inside[...] = np.zeros((), inside.dtype)
    around = raw(owner).copy()
    inside[...] = kept
    return around


@every_number
@every_isa
def test_copy_tile(isa: Isa, element: ElementType, unit: int) -> None:
    """Between all layouts; tiles smaller than a block, a block and more, and broken rows."""
    lanes = isa.lanes(element) // unit
    shapes = ((lanes, 2 * lanes), (lanes + 1, lanes + 3), (max(1, lanes - 2), 2 * lanes + 1))
    for one in LAYOUTS:
        # Vectors of bytes are long, and so are the interpreter's blocks of them.
        for other in ("rows", "packed rows", "packed cols")[: 3 if element.bytes > 2 else 1]:
            for shape in (*shapes, (1, 1), (1, 2 * lanes), (2 * lanes, 1)):
                check_tile(isa, element, unit, (one, other), shape)
            check_tile(isa, element, unit, (other, one), shapes[1])
        check_tile(isa, element, unit, (one, "cols"), shapes[1], swap=True)
    check_tile(isa, element, unit, ("rows", "cols"), shapes[1], swap=None)
