"""Matrix units that add outer products of vectors to tiles of sums, as SME's.

Where a unit of :mod:`jitgemm.isa.matrix` multiplies tiles by tiles, this kind takes a vector of A
and one of B: row ``i``, column ``j`` of a tile of sums gains the product of A's k-group ``i`` and
B's k-group ``j``.  The tiles are one array of ``row_bytes`` squared bytes, seen in elements of any
width: there are as many tiles of sums as a sum has bytes, each a square of ``row_bytes`` divided by
that.

Code that touches the array runs in a mode of its own, with vectors of its own
(:attr:`jitgemm.isa.tables.Isa.inside`).  A function is called into that mode, and all that it
calls stays there.

Sources: Arm Architecture Reference Manual for A-profile (FMOPA, SMOPA, ...; PSTATE.SM and
PSTATE.ZA); Procedure Call Standard for the Arm 64-bit Architecture (the lazy saving scheme of ZA,
TPIDR2_EL0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jitgemm.errors import message
from jitgemm.isa import exact
from jitgemm.isa.arm import bf16_pairs
from jitgemm.isa.matrix import Products, Text, TileProduct
from jitgemm.isa.types import BF16, F32, F64, I8, I16, I32, I64, U8, ElementType

__all__ = ["Mode", "OuterUnit", "sme"]


@dataclass(frozen=True, slots=True)
class Mode:
    """How LLVM is told to run a function in the mode of a unit, and its callees to stay there.

    Lines have the hole ``{kept}``: eight bytes of memory of the call.
    """

    attributes: str
    """Of the function that is called into the mode."""
    attributes_inside: str
    """Of functions that it calls."""
    enter: Text
    """Before the call."""
    arrive: Text
    """First of all in the function."""
    depart: Text
    """Last of all there."""
    leave: Text
    """After the call."""
    support: str = ""
    """Functions that these lines call."""


@dataclass(frozen=True, slots=True)
class OuterUnit(Products):
    """A unit that adds outer products to tiles: everything that anybody needs to know of it.

    Raises:
        ValueError: a product is none of k-groups as wide as its sums.
    """

    name: str
    row_bytes: int
    """Of a vector, and of a row of a tile."""
    products: tuple[TileProduct, ...]
    """Holes of their words: ``total``, the number of a tile; ``a``, ``b``, vectors of k-groups."""
    zero: Text
    """``bits``: clear the tiles whose bytes, modulo eight, have a bit each there."""
    row: Mapping[str, Text] = field(hash=False)
    """By type of sums: ``tile``, ``index``; the result is a row of a tile."""
    mode: Mode
    several: Mapping[str, Text] = field(default_factory=dict, hash=False)
    """By type and number, as ``f32x2``: ``p``; the results ``tr0``, ``tr1``, ... are vectors that
    lie side by side in memory, loaded by one instruction."""
    permit: Callable[[], bool] | None = None
    """As :attr:`jitgemm.isa.matrix.MatrixUnit.permit`."""

    def __post_init__(self) -> None:
        for p in self.products:
            whole = p.a.bytes == p.b.bytes and p.sums.bytes % p.a.bytes == 0
            if not whole or self.row_bytes % p.sums.bytes:
                expected = "operands as wide as each other, whole k-groups as wide as sums"
                raise ValueError(message(f"{self.name}.products[{p.name!r}]", expected, p.a))

    def words(self, sums: ElementType) -> int:
        """Rows, and columns, of a tile of these sums."""
        return self.row_bytes // sums.bytes

    def accumulators(self, sums: ElementType) -> int:
        """How many tiles of these sums there are."""
        return sums.bytes

    def bytes_of(self, tile: int, sums: ElementType) -> int:
        """A bit for each eighth of the array that a tile has."""
        return sum(1 << i for i in range(tile, 8, sums.bytes))

    @property
    def emulated(self) -> bool:
        """Never: all is text."""
        return False

    @property
    def spelled(self) -> str:
        """All that the code of the unit depends on."""
        words = [(p.name, p.group, p.word) for p in self.products]
        more = [sorted(x.items()) for x in (self.row, self.several)]
        return f"{self.row_bytes} {words} {self.zero} {more} {self.mode}"


# -- SME -----------------------------------------------------------------------------------------


def _fused(sums: Any, a: Any, b: Any) -> Any:
    """One fused multiply-add for each element."""
    left, right = (x.copy() for x in (a.repeat(b.shape[1], axis=1), b.repeat(a.shape[0], axis=0)))
    return exact.fma(left, right, sums.copy())


def _integers(a_type: type, b_type: type) -> Callable[[Any, Any, Any], Any]:
    """Sums of the products of the numbers in k-groups, modulo two to the width of a sum."""

    def meaning(sums: Any, a: Any, b: Any) -> Any:
        x = a.view(a_type).astype(np.int64)
        y = b.T.copy().view(b_type).astype(np.int64)
        return (sums.astype(np.int64) + x @ y.T).astype(sums.dtype)

    return meaning


def _bf16(sums: Any, a: Any, b: Any) -> Any:
    """BFDOT of each k-group of A and each of B."""
    left, right = a.repeat(b.shape[1], axis=1).ravel(), b.repeat(a.shape[0], axis=0).ravel()
    return bf16_pairs(left, right, sums.ravel()).reshape(sums.shape)


def _scalable(bits: int, llvm: str) -> str:
    """LLVM's type of a vector of whatever length."""
    return f"<vscale x {128 // bits} x {llvm}>"


# What LLVM calls numbers, and how it spells them in the names of intrinsics.
_NUMBERS = {BF16.name: ("bfloat", "bf16")}


def _number(element: ElementType) -> tuple[str, str]:
    return _NUMBERS.get(element.name, (element.llvm, element.suffix))


def _product(
    name: str, types: tuple[ElementType, ElementType, ElementType], intrinsic: str, bits: int,
    meaning: Callable[[Any, Any, Any], Any], order: str = "",
) -> TileProduct:  # fmt: skip
    """A product that is one intrinsic on whole vectors."""
    a, b, sums = types
    (llvm, suffix), lanes, each = _number(a), bits // a.bits, 128 // a.bits
    words, fixed = f"<{bits // sums.bits} x {sums.llvm}>", f"<{lanes} x {llvm}>"
    v, p = _scalable(a.bits, llvm), f"<vscale x {each} x i1>"
    insert = f"@llvm.vector.insert.nxv{each}{suffix}.v{lanes}{suffix}"
    call = f"@llvm.aarch64.sme.{intrinsic}.nxv{each}{suffix}"
    lines: list[str] = []
    for i, x in enumerate("ab"):
        lines += [
            f"{{t{i}}} = bitcast {words} {{{x}}} to {fixed}",
            f"{{tv{i}}} = call {v} {insert}({v} poison, {fixed} {{t{i}}}, i64 0)",
        ]
    every = f"{p} splat (i1 true)"
    lines.append(f"call void {call}(i32 {{total}}, {every}, {every}, {v} {{tv0}}, {v} {{tv1}})")
    declares = (
        f"declare {v} {insert}({v}, {fixed}, i64)\n"
        f"declare void {call}(i32 immarg, {p}, {p}, {v}, {v})"
    )
    return TileProduct(name, a, b, sums, Text(tuple(lines), declares), meaning, order)


def _row(sums: ElementType, bits: int) -> Text:
    lanes, each = bits // sums.bits, 128 // sums.bits
    v, fixed = _scalable(sums.bits, sums.llvm), f"<{lanes} x {sums.llvm}>"
    p = f"<vscale x {each} x i1>"
    read = f"@llvm.aarch64.sme.read.horiz.nxv{each}{sums.suffix}"
    extract = f"@llvm.vector.extract.v{lanes}{sums.suffix}.nxv{each}{sums.suffix}"
    return Text(
        (
            "{t} = trunc i64 {index} to i32",
            f"{{t1}} = call {v} {read}({v} poison, {p} splat (i1 true), i32 {{tile}}, i32 {{t}})",
            f"{{r}} = call {fixed} {extract}({v} {{t1}}, i64 0)",
        ),
        f"declare {v} {read}({v}, {p}, i32 immarg, i32)\n"
        f"declare {fixed} {extract}({v}, i64)",
    )  # fmt: skip


# Who is called with a lazy save pending, which TPIDR2_EL0 points to, must save the array before
# using it.  Bytes 0 to 7 of what it points to are the buffer's address, 8 and 9 the rows to save.
_SAVE = """define internal void @jitgemm_save_za(i64 %block) noinline nounwind {{
entry:
  %none = icmp eq i64 %block, 0
  br i1 %none, label %done, label %pending
pending:
  %at = inttoptr i64 %block to ptr
  %buffer = load ptr, ptr %at, align 8
  %rows_at = getelementptr i8, ptr %at, i64 8
  %few = load i16, ptr %rows_at, align 8
  %rows = zext i16 %few to i32
  %nowhere = icmp eq ptr %buffer, null
  %nothing = icmp eq i32 %rows, 0
  %skip = or i1 %nowhere, %nothing
  br i1 %skip, label %saved, label %row
row:
  %i = phi i32 [ 0, %pending ], [ %next, %row ]
  %to = phi ptr [ %buffer, %pending ], [ %after, %row ]
  call void @llvm.aarch64.sme.str(i32 %i, ptr %to, i32 0)
  %after = getelementptr i8, ptr %to, i64 {row_bytes}
  %next = add nuw nsw i32 %i, 1
  %more = icmp ult i32 %next, %rows
  br i1 %more, label %row, label %saved
saved:
  call void @llvm.aarch64.sme.set.tpidr2(i64 0)
  br label %done
done:
  ret void
}}

declare void @llvm.aarch64.sme.str(i32, ptr, i32 immarg)
declare void @llvm.aarch64.sme.set.tpidr2(i64)"""

_GET = "declare i64 @llvm.aarch64.get.fpsr()"
_SET = "declare void @llvm.aarch64.set.fpsr(i64)"


def _streaming(row_bytes: int) -> Mode:
    """Streaming mode with the array in use.

    Both changes of mode set all exception flags, so they are carried over by hand.
    """
    return Mode(
        attributes='"aarch64_pstate_sm_body" "aarch64_inout_za" "frame-pointer"="all"',
        attributes_inside='"aarch64_pstate_sm_enabled" "aarch64_inout_za"',
        enter=Text(
            (
                "{t} = call i64 @llvm.aarch64.sme.get.tpidr2()",
                "call void @jitgemm_save_za(i64 {t})",
                "{t1} = call i64 @llvm.aarch64.get.fpsr()",
                "store i64 {t1}, ptr {kept}, align 8",
                "call void @llvm.aarch64.sme.za.enable()",
            ),
            f"declare i64 @llvm.aarch64.sme.get.tpidr2()\n{_GET}\n"
            "declare void @llvm.aarch64.sme.za.enable()",
        ),
        arrive=Text(
            (
                "{t} = load i64, ptr {kept}, align 8",
                "call void @llvm.aarch64.set.fpsr(i64 {t})",
            ),
            _SET,
        ),
        depart=Text(
            (
                "{t} = call i64 @llvm.aarch64.get.fpsr()",
                "store i64 {t}, ptr {kept}, align 8",
            ),
            _GET,
        ),
        leave=Text(
            (
                "call void @llvm.aarch64.sme.za.disable()",
                "{t} = load i64, ptr {kept}, align 8",
                "call void @llvm.aarch64.set.fpsr(i64 {t})",
            ),
            f"declare void @llvm.aarch64.sme.za.disable()\n{_SET}",
        ),
        support=_SAVE.format(row_bytes=row_bytes),
    )


def _several(element: ElementType, bits: int, count: int) -> Text:
    """Vectors side by side in memory, as SME2 loads them."""
    lanes, each = bits // element.bits, 128 // element.bits
    v, fixed = _scalable(element.bits, element.llvm), f"<{lanes} x {element.llvm}>"
    every, mark = f"{{ {', '.join([v] * count)} }}", 'target("aarch64.svcount")'
    # Braces are holes of the text.
    written = every.replace("{", "{{").replace("}", "}}")
    load = f"@llvm.aarch64.sve.ld1.pn.x{count}.nxv{each}{element.suffix}"
    extract = f"@llvm.vector.extract.v{lanes}{element.suffix}.nxv{each}{element.suffix}"
    true = f"@llvm.aarch64.sve.ptrue.c{element.bits}"
    lines = [
        f"{{t}} = call {mark} {true}()",
        f"{{t1}} = call {written} {load}({mark} {{t}}, ptr {{p}})",
    ]
    for i in range(count):
        lines += [
            f"{{tv{i}}} = extractvalue {written} {{t1}}, {i}",
            f"{{tr{i}}} = call {fixed} {extract}({v} {{tv{i}}}, i64 0)",
        ]
    declares = (
        f"declare {mark} {true}()\ndeclare {every} {load}({mark}, ptr)\n"
        f"declare {fixed} {extract}({v}, i64)"
    )
    return Text(tuple(lines), declares)


def sme(bits: int, *, wide: bool, several: bool = False) -> OuterUnit:
    """The unit of SME with vectors of ``bits``.

    Args:
        bits: of a vector.
        wide: it has sums of 64 bits.
        several: it loads several vectors at once, as SME2 does.
    """
    products = [
        _product("mopa_f32", (F32, F32, F32), "mopa", bits, _fused),
        _product("mopa_ss", (I8, I8, I32), "smopa.wide", bits, _integers(np.int8, np.int8)),
        _product("mopa_su", (I8, U8, I32), "sumopa.wide", bits, _integers(np.int8, np.uint8)),
        _product("mopa_us", (U8, I8, I32), "usmopa.wide", bits, _integers(np.uint8, np.int8)),
        _product("mopa_uu", (U8, U8, I32), "umopa.wide", bits, _integers(np.uint8, np.uint8)),
        _product("mopa_bf16", (BF16, BF16, F32), "mopa.wide", bits, _bf16, "pairs, as by BFDOT"),
    ]
    if wide:
        shorts = _integers(np.int16, np.int16)
        products += [
            _product("mopa_f64", (F64, F64, F64), "mopa", bits, _fused),
            _product("mopa_i16", (I16, I16, I64), "smopa.wide", bits, shorts),
        ]
    sums = (F32, F64, I32, I64)
    return OuterUnit(
        name="sme",
        row_bytes=bits // 8,
        products=tuple(products),
        zero=Text(
            ("call void @llvm.aarch64.sme.zero(i32 {bits})",),
            "declare void @llvm.aarch64.sme.zero(i32 immarg)",
        ),
        row={x.name: _row(x, bits) for x in sums},
        mode=_streaming(bits // 8),
        several={
            f"{x.name}x{count}": _several(x, bits, count)
            for x in sums
            if several
            for count in (2, 4)
        },
    )
