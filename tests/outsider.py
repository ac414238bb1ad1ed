"""What somebody outside the package writes who adds vector sets and matrix units of his own.

Nothing here touches anything inside: records are made, and registered.  The sets are generic LLVM
code, so that they run on any machine; the units are emulated, their tiles in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from jitgemm.isa import tables
from jitgemm.isa.integers import GENERIC_INTEGERS
from jitgemm.isa.matrix import MatrixUnit, Text, TileProduct
from jitgemm.isa.ops import Op
from jitgemm.isa.tables import PORTABLE, Isa
from jitgemm.isa.types import BF16, F32, F64, I8, I16, I32, I64, U8, ElementType
from jitgemm.kernels import registry
from jitgemm.kernels.spec import Tile
from jitgemm.lang.core import Int, Kernel, Ptr

__all__ = ["add_unit", "add_vectors", "emulated", "unit_set", "vector_set", "zeroed_by_text"]

# -- vectors --------------------------------------------------------------------------------------


def _dot4(lanes: int) -> Op:
    """Four products per lane, of unsigned and signed bytes, in instructions every machine has."""
    narrow, wide, v = f"<{4 * lanes} x i8>", f"<{4 * lanes} x i32>", f"<{lanes} x i32>"
    components, total, lines = "4567", "{c}", []
    for part in range(4):
        picks = ", ".join(f"i32 {4 * i + part}" for i in range(lanes))
        picked, result = f"{{t{components[part]}}}", f"{{tt{part}}}" if part < 3 else "{r}"
        order = f"<{lanes} x i32> <{picks}>"
        lines += [f"{picked} = shufflevector {wide} {{t3}}, {wide} {{t3}}, {order}",
                  f"{result} = add {v} {total}, {picked}"]  # fmt: skip
        total = result

    def meaning(a: Any, b: Any, c: Any) -> Any:
        x, y = a.view(np.uint8).astype(np.int64), b.view(np.int8).astype(np.int64)
        return ((x * y).reshape(a.size, 4).sum(axis=1) + c).astype(np.int32)

    text = (
        f"{{t}} = bitcast {{v}} {{a}} to {narrow}", f"{{t0}} = bitcast {{v}} {{b}} to {narrow}",
        f"{{t1}} = zext {narrow} {{t}} to {wide}", f"{{t2}} = sext {narrow} {{t0}} to {wide}",
        f"{{t3}} = mul {wide} {{t1}}, {{t2}}", *lines,
    )  # fmt: skip
    return Op("dot4", 3, text, meaning)


def _halves(words: Any) -> list[Any]:
    """Both bfloat16 of each word, as floats."""
    bits = words.view(np.uint32)
    return [x.view(np.float32) for x in (bits << np.uint32(16), bits & np.uint32(0xFFFF0000))]


def _bf16_dot(lanes: int) -> Op:
    """Two products per lane, one after the other, each rounded and added with another rounding."""
    v = f"<{lanes} x i32>"
    low, high = (f"<{', '.join([f'i32 {x}'] * lanes)}>" for x in (16, -65536))

    def meaning(a: Any, b: Any, c: Any) -> Any:
        for x, y in zip(_halves(a), _halves(b), strict=True):
            c = c + x * y
        return c

    text = (
        f"{{t}} = bitcast {{v}} {{a}} to {v}", f"{{t1}} = bitcast {{v}} {{b}} to {v}",
        f"{{t2}} = shl {v} {{t}}, {low}", f"{{t3}} = shl {v} {{t1}}, {low}",
        f"{{t4}} = and {v} {{t}}, {high}", f"{{t5}} = and {v} {{t1}}, {high}",
        *(f"{{tb{i}}} = bitcast {v} {{t{i}}} to {{v}}" for i in range(2, 6)),
        "{t6} = fmul {v} {tb2}, {tb3}", "{t7} = fadd {v} {c}, {t6}",
        "{t8} = fmul {v} {tb4}, {tb5}", "{r} = fadd {v} {t7}, {t8}",
    )  # fmt: skip
    return Op("bf16_dot", 3, text, meaning)


def vector_set(name: str, registers: int, bits: int = 256, **fields: Any) -> Isa:
    """A set of so many vector registers, of the portable operations."""
    return replace(PORTABLE, **{
        "name": name, "vector_registers": registers, "vector_bits": bits, **fields,
    })  # fmt: skip


def add_vectors(isa: Isa, most: int = 3) -> None:
    """Register a vector set, with tiles that fill its registers or have ``most`` rows."""
    tables.register(isa)
    for element in (F32, F64, I32, I64):
        for components in (1, 2) if element in (F32, F64) else (1,):
            # Two vectors of B and a broadcast, and some for what is no single instruction.
            rows = max(1, min(most, (isa.vector_registers - 5) // (2 * components)))
            few = (isa.vector_registers - 3) // (4 * components)
            more = ((2, min(rows, few)),) if few else ()
            registry.register(element, isa, Tile(rows, 2, ((1, rows), *more)), components)


# -- matrix units ---------------------------------------------------------------------------------

_FIRST = 64  # where tiles begin in the state; heights are before


def emulated(registers: int, rows: int, row_bytes: int, **fields: Any) -> MatrixUnit:
    """A unit whose tiles are kept in memory, and whose words are functions or text."""
    words, size = row_bytes // 4, rows * row_bytes

    def register(state: Ptr, tile: int) -> Ptr:
        return state + (_FIRST + tile * size)

    def height(k: Kernel, state: Ptr, tile: int) -> Int:
        return k.load_int(state) // (1 << (8 * tile)) & 255

    def configure(k: Kernel, state: Ptr, heights: Int) -> None:
        k.store_int(state, heights)

    def release(k: Kernel, state: Ptr) -> None:
        k.store_int(state, 0)

    def zero(k: Kernel, state: Ptr, tile: int) -> None:
        for i in range(rows):
            k.store(register(state, tile) + i * row_bytes, k.zero(I32, words))

    def load(k: Kernel, state: Ptr, tile: int, p: Ptr, stride: Int) -> None:
        for i in k.range(0, height(k, state, tile)):
            k.store(register(state, tile) + i * row_bytes, k.load(p + i * stride, I32, words))

    def store(k: Kernel, state: Ptr, tile: int, p: Ptr, stride: Int) -> None:
        for i in k.range(0, height(k, state, tile)):
            k.store(p + i * stride, k.load(register(state, tile) + i * row_bytes, I32, words))

    def product(a: ElementType, b: ElementType, sums: ElementType, order: str = "") -> TileProduct:
        group = sums.bytes // a.bytes

        def fold(k: Kernel, state: Ptr, total: int, left: int, right: int) -> None:
            for i in k.range(0, height(k, state, total)):
                here = register(state, total) + i * row_bytes
                value = k.load(here, sums, words)
                for w in range(words):
                    row = k.load(register(state, right) + w * row_bytes, b, words * group)
                    for g in range(group):
                        at = register(state, left) + i * row_bytes + (w * group + g) * a.bytes
                        x = k.splat(k.convert(k.load(at, a), sums), words)
                        y = k.convert(k.shuffle(row, row, range(g, words * group, group)), sums)
                        value = k.op("madd", x, y, value)
                k.store(here, value)

        return TileProduct(f"toy_{a}_{b}", a, b, sums, fold, _meaning(a, b, group), order)

    every = (
        product(I8, I8, I32), product(I8, U8, I32), product(U8, I8, I32), product(U8, U8, I32),
        product(I16, I16, I32), product(BF16, BF16, F32, "two chains of nobody's business"),
    )  # fmt: skip
    return MatrixUnit(**{
        "name": "toy", "registers": registers, "rows": rows, "row_bytes": row_bytes,
        "products": every, "configure": configure, "release": release, "zero": zero,
        "load": load, "store": store, "state": _FIRST + registers * size, **fields,
    })  # fmt: skip


def zeroed_by_text(rows: int, row_bytes: int) -> Text:
    """The word that zeroes a tile, as LLVM writes it."""
    size = rows * row_bytes
    return Text(
        (f"{{t}} = getelementptr [{size} x i8], ptr {{state}}, i64 0, i64 {_FIRST}",
         f"{{t1}} = getelementptr [{size} x i8], ptr {{t}}, i64 {{tile}}",
         f"call void @llvm.memset.p0.i64(ptr {{t1}}, i8 0, i64 {size}, i1 false)"),
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1 immarg)",
    )  # fmt: skip


_NUMPY = {I8: np.int8, U8: np.uint8, I16: np.int16}


def _meaning(a: ElementType, b: ElementType, group: int) -> Callable[[Any, Any, Any], Any]:
    def numbers(words: Any, element: ElementType) -> Any:
        """``(rows, words, group)`` numbers in which products are exact, or floats."""
        if element is BF16:
            return np.stack(_halves(np.ascontiguousarray(words)), axis=-1)
        narrow = np.ascontiguousarray(words).view(_NUMPY[element])
        return narrow.reshape(*words.shape, group).astype(np.int64)

    def meaning(sums: Any, left: Any, right: Any) -> Any:
        x, y = numbers(left, a), numbers(right, b)
        if a is BF16:
            for w in range(x.shape[1]):
                for g in range(group):
                    sums = sums + x[:, w : w + 1, g] * y[w, :, g]
            return sums
        total = np.einsum("rwg,wcg->rc", x, y) + sums
        return total.astype(np.uint64).astype(np.uint32).view(np.int32)

    return meaning


def unit_set(name: str, unit: MatrixUnit, **fields: Any) -> Isa:
    """A set of 256-bit vectors with a unit; the vectors fold the same words, for few rows."""
    return replace(PORTABLE, **{
        "name": name, "vector_bits": 256, "unit": unit,
        "ops": {**PORTABLE.ops, "bf16_dot": _bf16_dot(8)},
        "integers": {**GENERIC_INTEGERS, "dot4": _dot4(8)}, **fields,
    })  # fmt: skip


def add_unit(isa: Isa, vectors: int) -> None:
    """Register a set with a unit; micropanels are so many vectors wide."""
    tables.register(isa)
    tile = Tile(2, vectors, ((1, 2), (2, 1)))
    for element in (F32, F64, I32, I64):
        registry.register(element, isa, tile)
