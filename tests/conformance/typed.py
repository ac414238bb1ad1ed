"""Products of operands of several types: words, zero points, narrower results.

What must come out is computed in exact integers modulo ``2**bits``, or by the rounding contract of
floats on converted numbers; neither knows of words, panels or flipped numbers.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
from cases import (
    NOTHING_DONE,
    Array,
    Factors,
    Operands,
    backends,
    block_sums,
    concluded,
    execute,
    mapped,
    native,
    same_bytes,
    summed,
)
from language import converted, numbers_of

from jitgemm.api.kinds import NUMPY, number_of, result_type
from jitgemm.isa.conversions import dtype_of
from jitgemm.isa.types import BF16, BOOL, BY_NAME, F16, F32, F64, I32, ElementType
from jitgemm.kernels.arithmetic import OperandTypes, sum_type
from jitgemm.kernels.job import COUNTERS, JOB
from jitgemm.kernels.spec import Bias, BSource, GemmSpec, Scale
from jitgemm.lang.core import Function
from jitgemm.planner.records import PackA
from oracle import same_bits

__all__ = ["TypedCase", "WholeCase", "add_span", "pairs_of_types", "typed_matrix"]


def _numpy_type(element: ElementType) -> np.dtype[Any]:
    if element in (BF16, F16):
        return np.dtype(ml_dtypes.bfloat16 if element is BF16 else np.float16)
    return np.dtype(np.bool_) if element is BOOL else dtype_of(element)


def _element(dtype: np.dtype[Any]) -> ElementType:
    found = number_of(dtype)
    assert found is not None
    return found[0]


@cache
def pairs_of_types() -> list[OperandTypes]:
    """Types of A, B and the result of every product the library takes that needs words."""
    found: dict[OperandTypes, None] = {}
    for a, b in product(BY_NAME.values(), repeat=2):
        x, y = _numpy_type(a), _numpy_type(b)
        for wanted in (None, NUMPY):
            out = _element(result_type(x, y, wanted))
            types = OperandTypes(a, b, out, out, out)
            if not types.plain(sum_type(types)):
                found[types] = None
    return list(found)


def typed_matrix(
    x: Operands, element: ElementType, rows: int, cols: int, layout: str = "rows", *,
    swap: bool = False,
) -> Array:  # fmt: skip
    """A random matrix of this type: integers any there are, formats as bits."""
    if layout == "cols reversed":
        return typed_matrix(x, element, cols, rows, "reversed", swap=swap).T
    kind = F32 if element.format else element
    x.real = x.number = dtype_of(kind)
    m = x.matrix(rows, cols, layout, swap=swap and kind is element)
    if element is BOOL:
        m &= 1
    if not element.format:
        return m
    # The same strides in units of elements.
    stored = converted(F32, element, np.ascontiguousarray(m))
    if swap:
        stored = stored.astype(stored.dtype.newbyteorder("S"))
    x.real = x.number = np.dtype(np.uint16)
    result = x.matrix(rows, cols, layout, swap=swap)
    result[...] = stored.astype(result.dtype)
    return result


def add_span(x: Operands, name: str, array: Array) -> int:
    """Register an operand with what lies between its elements: shuffles pick from whole vectors."""
    address = int(array.__array_interface__["data"][0])
    if array.size:
        reach = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
        size = sum(map(abs, reach)) + array.itemsize
        low = address + sum(min(0, r) for r in reach)
        around = (ctypes.c_uint8 * size).from_address(low)
        x.memory.add(name, np.frombuffer(around, np.uint8), writable=False)
        x.kept.append(array)
    return address


def _native(x: Array) -> Array:
    return np.ascontiguousarray(x, x.dtype.newbyteorder("="))


@dataclass(frozen=True)
class TypedCase:
    """A product; blocking in tiles and panels as in ``products``."""

    spec: GemmSpec
    m: int
    n: int
    depth: int
    layout_a: str = "rows"
    layout_b: str = "rows"
    layout_d: str = "rows"
    swap: str = ""
    """Operands in foreign byte order: letters of ``abcd``, and ``v`` for the bias."""
    in_place: bool = False
    """A is made of words, and read where it lies."""
    direct: bool = True
    row_tiles: int = 1
    panels: int = 0
    block_panels: int = 0
    one_zero: bool = False
    """One zero point for all rows; else one each."""
    one_scale: bool = False
    staggered: bool = False
    """Columns transposed in registers lag behind each other."""
    strided: bool = False
    """A is read where it lies, by its own strides: a unit of outer products reads its columns."""
    sweep: bool = False
    """Few rows stream the rows of B."""
    round_blocks: int = 0
    """Of a split: depth blocks per round; 0: no split.  Chunks of rows are those copied."""
    range_blocks: int = 1
    adding_rows: int = 1
    """Of a split: rows whose block sums a ticket adds."""
    threads: int = 1

    def _operands(self, x: Operands) -> dict[str, Array]:
        types, epilogue, swap = self.spec.types, self.spec.epilogue, self.swap
        m, n, k = self.m, self.n, self.depth
        found = {
            "a": typed_matrix(x, types.a, m, k, self.layout_a, swap="a" in swap),
            "b": typed_matrix(x, types.b, k, n, self.layout_b, swap="b" in swap),
            "d": typed_matrix(x, types.out, m, n, self.layout_d, swap="d" in swap),
        }
        if epilogue.beta:
            found["c"] = typed_matrix(x, types.c, m, n, self.layout_d, swap="c" in swap)
        shapes = {Bias.COLUMN: (1, n), Bias.ROW: (m, 1), Bias.FULL: (m, n)}
        if epilogue.bias is not Bias.NONE:
            shape = shapes[epilogue.bias]
            found["bias"] = typed_matrix(x, types.bias, *shape, swap="v" in swap)
        for name, rows, one in (("a", m, self.one_zero), ("b", n, False)):
            if getattr(epilogue, f"zero_{name}"):
                kind = dtype_of(getattr(types, name))
                info = np.iinfo(kind)
                points = x.rng.integers(info.min, info.max, 1 if one else rows, endpoint=True)
                found[f"zero_{name}"] = points.astype(np.int32)
        if epilogue.scale is not Scale.NONE:
            rows = 1 if self.one_scale else m
            count = rows if epilogue.scale is Scale.ROW else n
            # Results on both sides of the bounds, and ties.
            found["scales"] = x.rng.choice([2.0**-13, 2.0**-9, 0.00123, 1e-5], count)
        return found

    # -- what must be -----------------------------------------------------------------------------
    def wanted(self, given: dict[str, Array], f: Factors) -> Array:
        """What must be in D."""
        spec, types = self.spec, self.spec.types
        named = zip(("a", "b", "c", "bias"), (types.a, types.b, types.c, types.bias), strict=True)
        native = {name: _native(given[name]) for name in ("a", "b", "c", "bias") if name in given}
        kinds = dict(named)
        if spec.element.integral:
            return self._exact(native, given, f)
        wide = {n: converted(kinds[n], spec.element, x) if kinds[n] is not spec.element else x
                for n, x in native.items()}  # fmt: skip
        total = self.total(f, wide["a"], wide["b"])
        value = concluded(spec, f, total, c=wide.get("c"), bias=wide.get("bias"))
        return value if types.out is spec.element else converted(spec.element, types.out, value)

    def total(self, f: Factors, a: Array, b: Array) -> Array:
        """The sums of floats in the order of the contract."""
        return summed(block_sums(self.spec, f, a, b))

    def _exact(self, native: dict[str, Array], given: dict[str, Array], f: Factors) -> Array:
        spec, epilogue, out = self.spec, self.spec.epilogue, self.spec.types.out

        def modular(x: Array) -> Array:
            return x.astype(np.int64).view(np.uint64)

        a, b = modular(native["a"]), modular(native["b"])
        if "zero_a" in given:
            a = a - modular(given["zero_a"])[:, np.newaxis]
        if "zero_b" in given:
            b = b - modular(given["zero_b"])
        total = a @ b * np.uint64(f.alpha % (1 << 64))
        if epilogue.beta:
            total = total + np.uint64(f.beta % (1 << 64)) * modular(native["c"])
        if epilogue.bias is not Bias.NONE:
            total = total + modular(native["bias"])
        if out is BOOL:
            bits = np.uint64((1 << spec.element.bits) - 1)
            return np.asarray(total & bits != 0).astype(np.uint8)
        kind = dtype_of(out)
        if epilogue.program is not None:
            sums = total.astype(f"u{spec.element.bytes}").view(dtype_of(spec.element))
            total = modular(mapped(spec, f, sums, (0, 0)))
        if epilogue.scale is Scale.NONE:
            return total.astype(f"u{out.bytes}").view(kind)
        scales, info = given["scales"], np.iinfo(kind)
        real = total.astype(np.uint32).view(np.int32).astype(np.float64)
        scaled = real * (scales[:, np.newaxis] if epilogue.scale is Scale.ROW else scales)
        return np.clip(np.rint(scaled) + _ZERO, info.min, info.max).astype(kind)

    # -- running ----------------------------------------------------------------------------------
    def _reads_in_place(self) -> bool:
        how = self.spec.arithmetic
        whole = self.depth % how.group == 0 and "a" not in self.swap
        dense = self.layout_a in ("rows", "reversed")
        needs = how.copies_a or self.spec.epilogue.zero_b
        return self.in_place and whole and dense and not needs

    def build(self) -> tuple[Operands, int, Array, Array]:
        """Operands, the address of the job, D, and what must be in D."""
        spec, m, n = self.spec, self.m, self.n
        how = spec.arithmetic
        x = Operands(spec, seed=11)
        given = self._operands(x)
        x.real = x.number = dtype_of(spec.element)
        f = Factors(spec)
        want = self.wanted(given, f)
        a, b, d = given["a"], given["b"], given["d"]
        packs = spec.b is BSource.PACKED
        words, tile_rows = -(-self.depth // how.group), min(spec.tile.mr, m)
        rows, all_panels = self.row_tiles * tile_rows, max(1, -(-n // spec.nr))
        block = min(self.block_panels or all_panels, all_panels)
        per_chunk = min(self.panels or block, block)
        panel = spec.panel_bytes(max(words, 1)) if packs else spec.nr * b.strides[1]
        job: dict[str, Any] = {
            "a": x.add("a", a), "source_row": a.strides[0], "source_col": a.strides[1],
            "a_row": a.strides[0], "a_tile": tile_rows * a.strides[0],
            "a_col": a.strides[1] if self.strided else how.group_bytes,
            "rows_ahead": rows, "pack_a": 0,
            # Shuffles of packing pick from whole vectors; whoever reads in place does not.
            "b": add_span(x, "b", b) if packs else x.add("b", b),
            "b_row": b.strides[0], "b_col": b.strides[1],
            "packed": _workspace(x, "packed", block * panel if packs else 0),
            "panel_stride": panel, "slice_stride": 0,
            "d": x.add("d", d, out=True, initialised=False),
            "d_row": d.strides[0], "d_col": d.strides[1],
            "counters": x.record(COUNTERS, NOTHING_DONE, out=True),
            "m": m, "n": n, "k_groups": words, "k_numbers": self.depth, **f.fields(x),
            "tile_rows": tile_rows, "group": spec.tile.group_for(tile_rows),
            "rows_per_chunk": rows, "row_chunks": -(-m // rows),
            "cols_per_chunk": per_chunk * spec.nr, "col_chunks": -(-block // per_chunk),
            "depth_per_slice": max(words, 1), "slices": 1, "depth_step": max(words, 1),
            "cols_per_block": block * spec.nr, "blocks": -(-all_panels // block),
            "pack_chunks": block if packs else 0, "pack_cols": spec.nr, "direct": int(self.direct),
            "row_streaming": int(self.sweep), "staggered": int(self.staggered),
            "round_blocks": 0, "copied_rows": 0,
            **{f"swap_{name}": int(letter in self.swap) for name, letter in
               (("a", "a"), ("b", "b"), ("c", "c"), ("d", "d"), ("bias", "v"))},
        }  # fmt: skip
        if self.round_blocks:
            self._split(x, job, all_panels)
        elif spec.outer is not None and not self.strided:
            self._panels_of_a(x, job, words)
        elif not self.strided and not self._reads_in_place():
            # A word for the row's sum, and some more.
            row = -(-(words + 3) * how.group_bytes // 8) * 8
            region = -(-self.row_tiles * tile_rows * row // 64) * 64
            if spec.upconverts_panels:
                job["upconverted_at"] = region
                region += max(words, 1) * spec.panel_row
            job |= {"pack_a": 2, "a_row": row, "a_tile": tile_rows * row}
            job |= {"workspace_a_stride": region, "pack_a_width": row // spec.element.bytes}
            job["workspace_a"] = _workspace(x, "workspace", region)
        if "c" in given:
            c = given["c"]
            job |= {"c": x.add("c", c), "c_row": c.strides[0], "c_col": c.strides[1]}
        if "bias" in given:
            bias, kind = given["bias"], spec.epilogue.bias
            job |= {"bias": x.add("bias", bias)}
            job["bias_row"] = 0 if kind is Bias.COLUMN else bias.strides[0]
            job["bias_col"] = 0 if kind is Bias.ROW else bias.strides[1]
        self._points(x, job, given)
        return x, x.record(JOB, job, whole=True), d, want

    def _panels_of_a(self, x: Operands, job: dict[str, Any], words: int) -> None:
        """Where micropanels of A are packed for a unit of outer products."""
        spec, rows = self.spec, job["tile_rows"]
        steps = words + int(spec.sums_columns)
        tile = rows * steps * spec.unit
        job |= {"pack_a": PackA.PANELS.value, "pack_a_width": rows, "a_row": spec.unit}
        job |= {"a_col": rows * spec.unit, "a_tile": tile}
        region = -(-self.row_tiles * tile // 64) * 64
        if not spec.arithmetic.plain:
            # Rows as k-groups first, with some bytes between them, behind all micropanels.
            job["copied_row"] = -(-(steps + 3) * spec.unit // 8) * 8
            region += rows * job["copied_row"]
        job["upconverted_at"] = job["workspace_a_stride"] = region
        job["workspace_a"] = _workspace(x, "workspace", region * self.threads)

    def _split(self, x: Operands, job: dict[str, Any], panels: int) -> None:
        """Where each thread packs a depth block, and where block sums rest."""
        spec, block = self.spec, self.spec.element.depth_block
        region = 0
        if spec.b is BSource.PACKED:
            job["panel_stride"] = spec.panel_bytes(block)
            region = panels * job["panel_stride"]
        if not self._reads_in_place():
            row = -(-(block + 3) * spec.arithmetic.group_bytes // 8) * 8
            job |= {"a_row": row, "a_tile": job["tile_rows"] * row}
            job["copied_rows"] = job["rows_per_chunk"]
            region += job["copied_rows"] * row
        region = -(-region // 64) * 64
        job["workspace_b_stride"] = region
        job["packed"] = _workspace(x, "packed", self.threads * region)
        stride = -(-self.m * self.n * spec.element.bytes // 64) * 64
        job["workspace_a"] = _workspace(x, "sums", (self.round_blocks + 1) * stride)
        rows = self.adding_rows
        job |= {
            "sums_row": self.n * spec.element.bytes, "sums_stride": stride,
            "round_blocks": self.round_blocks, "range_blocks": self.range_blocks,
            "ranges": -(-self.round_blocks // self.range_blocks),
            "rows_per_chunk": rows, "row_chunks": -(-self.m // rows),
        }  # fmt: skip

    def _points(self, x: Operands, job: dict[str, Any], given: dict[str, Array]) -> None:
        """Zero points as the microkernel sees A and B, scales, and the bounds of the result."""
        spec, how = self.spec, self.spec.arithmetic
        if spec.epilogue.zero_a:
            move = (128 if how.types.a.signed else -128) if how.flip else 0
            points = given["zero_a"] + np.int32(move)
            job["zero_a"] = x.add("zero_a", points)
            job["zero_a_row"] = 0 if points.size == 1 else I32.bytes
        if spec.epilogue.zero_b:
            job["zero_b"] = x.add("zero_b", given["zero_b"])
        if spec.epilogue.scale is not Scale.NONE:
            scales, info = given["scales"], np.iinfo(dtype_of(spec.types.out))
            job["scales"] = x.add("scales", scales)
            job["scale_row"] = 0 if scales.size == 1 else F64.bytes
            table = np.array([_ZERO, info.min - _ZERO, info.max - _ZERO], np.float64)
            job["rounding"] = x.add("rounding", table)

    def check(self, function: Function, *, machine_only: bool = False) -> None:
        """Run all three, on one thread."""
        sides = []
        for compiled in backends(self.spec):
            if machine_only and not compiled:
                continue
            x, job, d, want = self.build()
            execute(self.spec, function, x, [job, 0], compiled=compiled)
            self._compare(d, want, f"{compiled=} {self}")
            # Lanes without a column hold what they will.
            x.written = {k: v for k, v in x.written.items() if k not in ("packed", "workspace")}
            sides.append(x)
        if sides:
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
        self._compare(d, want, str(self))
        assert x.written["counters"][COUNTERS.slot("done")] > 0

    def _compare(self, got: Array, want: Array, why: str) -> None:
        out = self.spec.types.out
        if not out.format:
            same_bits(got, want, why)
            return
        x, y = (numbers_of(out, _native(v)).astype(np.float32) for v in (got, want))
        assert not np.isnan(y).any(), why
        same_bits(x, y, why)


class WholeCase(TypedCase):
    """Small whole numbers, of which every order gives the same sum."""

    def _operands(self, x: Any) -> dict[str, Any]:
        found = super()._operands(x)
        for name in ("a", "b"):
            numbers = x.rng.integers(-4, 5, found[name].shape).astype(np.float32)
            found[name][...] = (numbers.view(np.uint32) >> 16).astype(np.uint16)
        return found


_ZERO = 3
"""The zero point of requantised results."""


def _workspace(x: Operands, name: str, size: int) -> int:
    return x.add(name, np.full(max(size, 8), 0xA5, np.uint8), out=True, initialised=False)
