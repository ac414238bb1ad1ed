"""Matrix units: one record each, with its geometry, its words and what its products mean.

A unit of this kind has registers that hold *tiles*: up to ``rows`` rows of ``row_bytes`` bytes.
One product adds a tile of A times a tile of B to a tile of sums: row ``i``, column ``j`` gains the
product of A's words of row ``i`` and B's words of column ``j``.  A word is as wide as a sum and
holds one or more narrow numbers, steps of depth in ascending order, as those of ``dot4`` and
``bf16_dot`` do; so both kinds of kernel read the same micropanels.

How a unit is told what to do is data too: lines of LLVM text, or functions in the kernel language,
which emulate it.  The interpreter executes meanings, never spellings.

Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2 (TDPBSSD and its
kin, TDPBF16PS); volume 1, chapter 18 (tile configuration).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgemm.errors import message
from jitgemm.isa import exact
from jitgemm.isa.ops import flushed
from jitgemm.isa.permission import linux_tile_data
from jitgemm.isa.types import BF16, F32, I8, I32, U8, ElementType

__all__ = ["AMX", "MatrixUnit", "Products", "Text", "TileProduct", "Word"]

_MOST_REGISTERS = 8
"""Heights of registers are bytes of one 64-bit integer."""
_FEWEST_REGISTERS = 3
"""One of sums, one of A, one of B."""
_LINE = 64


@dataclass(frozen=True, slots=True)
class Text:
    """A word of a unit as LLVM writes it.

    ``lines`` have holes as those of :class:`jitgemm.isa.ops.Op`: the word's operands by name
    (numbers of registers as plain numbers), and any name that starts with ``t`` for a temporary.
    """

    lines: tuple[str, ...]
    declares: str = ""
    """Declarations the lines need, one per line."""


Word = Text | Callable[..., None]
"""How a unit is told one thing: text, or a function in the kernel language that emulates it.

Such a function gets the kernel ``k``, the pointer to the unit's state, then the word's operands in
the order in which :class:`MatrixUnit` names them.
"""


@dataclass(frozen=True, slots=True)
class TileProduct:
    """One product a unit can do: three tiles, of sums, A and B."""

    name: str
    a: ElementType
    """A number in a word of A; integers of the same width and signedness are the same numbers."""
    b: ElementType
    sums: ElementType
    word: Word
    """``total a b``: numbers of registers."""
    meaning: Callable[[Any, Any, Any], Any]
    """The new sums from arrays of words: sums ``(r, c)``, A ``(r, w)``, B ``(w, c)``, each of the
    NumPy type of ``sums``, to arrays of that type and the shape of the sums."""
    order: str = ""
    """In which order one product adds up, in words; empty if it is exact.  One that is not rounds
    as it likes, and is used only where a caller allows that (``allow_bf16_dot``)."""

    @property
    def group(self) -> int:
        """Steps of depth per word."""
        return self.sums.bytes // self.a.bytes

    def multiplies(self, a: ElementType, b: ElementType, sums: ElementType) -> bool:
        """Whether these are the types of its operands and sums."""
        return _same(a, self.a) and _same(b, self.b) and sums is self.sums


def _same(x: ElementType, y: ElementType) -> bool:
    """Whether two types are the same numbers in the same bits, as ``bool`` and ``u8`` are."""
    both = x.integral and y.integral
    return x is y or (both and (x.bits, x.signed) == (y.bits, y.signed))


class Products:
    """What a unit of any kind can multiply."""

    __slots__ = ()
    products: tuple[TileProduct, ...]

    def product(self, name: str) -> TileProduct | None:
        """The product of this name, if the unit has it."""
        return next((p for p in self.products if p.name == name), None)

    def product_of(self, a: ElementType, b: ElementType, sums: ElementType) -> TileProduct | None:
        """The product of operands of these types into such sums, if the unit has one."""
        return next((p for p in self.products if p.multiplies(a, b, sums)), None)


@dataclass(frozen=True, slots=True)
class MatrixUnit(Products):
    """A unit that multiplies tiles: everything that anybody needs to know of it.

    Raises:
        ValueError: no kernel can use such a unit.
    """

    name: str
    registers: int
    """Numbered from 0; each holds a tile of sums, of A or of B."""
    rows: int
    """Of a tile, at most."""
    row_bytes: int
    """Bytes of a row of a tile: all rows are whole."""
    products: tuple[TileProduct, ...]
    configure: Word
    """``heights``, or for text ``p``, the address of a palette: give every register its number of
    rows, a byte each, that of register 0 lowest.  All lose their contents."""
    release: Word
    """No operands: leave what :attr:`configure` entered.  It comes before a call returns."""
    zero: Word
    """``tile``: all words zero."""
    load: Word
    """``tile p stride``: rows ``stride`` bytes apart, from memory of any alignment."""
    store: Word
    """``tile p stride``: the rows a register has, likewise."""
    palette: tuple[int | None, ...] = ()
    """What :attr:`configure` reads from memory, as 64-bit words: ``None`` stands for heights."""
    state: int = 0
    """Bytes of memory a thread needs while the unit is configured, which is on its stack, of a
    unit that is emulated.  They hold anything at first."""
    permit: Callable[[], bool] | None = None
    """Asks the operating system for the unit, and says whether this process may use it; ``None``:
    there is nothing to ask.  It may be called often."""

    def __post_init__(self) -> None:
        for field, expected, good in (
            ("registers", f"{_FEWEST_REGISTERS} to {_MOST_REGISTERS}",
             _FEWEST_REGISTERS <= self.registers <= _MOST_REGISTERS),
            ("rows", "1 to 127, a byte", 1 <= self.rows <= 127),
            ("products", "some, each with a name of its own",
             0 < len({p.name for p in self.products}) == len(self.products)),
            ("state", "a size", self.state >= 0),
        ):  # fmt: skip
            if not good:
                raise ValueError(message(f"{self.name}.{field}", expected, getattr(self, field)))
        for p in self.products:
            self._check(p)

    def _check(self, p: TileProduct) -> None:
        name = f"{self.name}.products[{p.name!r}]"
        if p.sums.bytes != self.group_bytes:
            raise ValueError(message(name, f"sums of {self.group_bytes} bytes", p.sums))
        if p.a.bytes != p.b.bytes or p.group < 2:
            got = f"{p.a} and {p.b} for sums of {p.sums}"
            raise ValueError(message(name, "operands as wide as each other, not as sums", got))
        if self.row_bytes % self.group_bytes or not 0 < self.words <= self.rows:
            # A tile of B has a row for each word in a row of A.
            expected = f"whole words of {self.group_bytes} bytes in a row, no more than rows"
            raise ValueError(message(f"{self.name}.row_bytes", expected, self.row_bytes))

    @property
    def group_bytes(self) -> int:
        """Bytes of a word, and of a sum."""
        return self.products[0].sums.bytes

    @property
    def words(self) -> int:
        """Words in a row: columns of sums, and steps of depth of one product."""
        return self.row_bytes // self.group_bytes

    @property
    def tile_bytes(self) -> int:
        """Bytes of a register."""
        return self.rows * self.row_bytes

    def _words(self) -> tuple[Word, ...]:
        own = (self.configure, self.release, self.zero, self.load, self.store)
        return (*own, *(p.word for p in self.products))

    @property
    def emulated(self) -> bool:
        """Whether any word is a function, of which nobody can tell what it generates."""
        return not all(isinstance(w, Text) for w in self._words())

    @property
    def spelled(self) -> str:
        """All that the code of a unit depends on, unless it is emulated."""
        names = [(p.name, p.group) for p in self.products]
        size = (self.registers, self.rows, self.row_bytes, self.state)
        return f"{size} {names} {self.palette} {self._words()}"


# -- AMX -----------------------------------------------------------------------------------------


def _integers(a_type: type, b_type: type) -> Callable[[Any, Any, Any], Any]:
    def meaning(sums: Any, a: Any, b: Any) -> Any:
        x = a.view(a_type).reshape(a.shape[0], -1).astype(np.int64)
        y = b.T.copy().view(b_type).reshape(b.shape[1], -1).astype(np.int64)
        total = sums.astype(np.int64) + x @ y.T
        return total.astype(np.uint64).astype(np.uint32).view(np.int32)

    return meaning


def _bf16(sums: Any, a: Any, b: Any) -> Any:
    """Even and odd steps of depth in a chain each, from zero; their sum is added to the sums.

    Subnormal numbers count as zeros, all is rounded to nearest even, and no flag is raised.
    """

    def numbers(words: Any, part: int) -> Any:
        halves = words.view(np.uint16).reshape(*words.shape, 2)[..., part].astype(np.uint32)
        return flushed((halves << np.uint32(16)).view(np.float32))

    total = np.zeros((2, *sums.shape), np.float32)
    for part in range(2):
        x, y = numbers(a, part), numbers(b, part)
        for w in range(x.shape[1]):
            left, right = np.broadcast_arrays(x[:, w : w + 1], y[w : w + 1])
            total[part] = flushed(exact.fma(left.copy(), right.copy(), total[part]))
    return flushed(np.add(flushed(np.add(total[0], total[1])), flushed(sums)))


def _amx(intrinsic: str, *operands: str) -> Text:
    """A word that is one intrinsic, on numbers of registers, ``p`` and ``stride``."""
    kinds = {"p": "ptr", "stride": "i64"}
    types = [kinds.get(x, "i8") for x in operands]
    values = ", ".join(f"{t} {{{x}}}" for t, x in zip(types, operands, strict=True))
    marks = ", ".join("i8 immarg" if t == "i8" else t for t in types)
    name = f"@llvm.x86.{intrinsic}"
    return Text((f"call void {name}({values})",), f"declare void {name}({marks})")


def _amx_product(
    name: str, types: tuple[ElementType, ElementType, ElementType], intrinsic: str,
    meaning: Callable[[Any, Any, Any], Any], order: str = "",
) -> TileProduct:  # fmt: skip
    return TileProduct(name, *types, _amx(intrinsic, "total", "a", "b"), meaning, order)


# Bytes per row of four registers.
_WIDTHS = sum(_LINE << (16 * i) for i in range(4))

AMX = MatrixUnit(
    name="amx",
    registers=8,
    rows=16,
    row_bytes=_LINE,
    products=(
        _amx_product("tile_ss", (I8, I8, I32), "tdpbssd", _integers(np.int8, np.int8)),
        _amx_product("tile_su", (I8, U8, I32), "tdpbsud", _integers(np.int8, np.uint8)),
        _amx_product("tile_us", (U8, I8, I32), "tdpbusd", _integers(np.uint8, np.int8)),
        _amx_product("tile_uu", (U8, U8, I32), "tdpbuud", _integers(np.uint8, np.uint8)),
        _amx_product(
            "tile_bf16", (BF16, BF16, F32), "tdpbf16ps", _bf16, "an even and an odd chain"
        ),
    ),
    configure=_amx("ldtilecfg", "p"),
    release=_amx("tilerelease"),
    zero=_amx("tilezero", "tile"),
    load=_amx("tileloadd64", "tile", "p", "stride"),
    store=_amx("tilestored64", "tile", "p", "stride"),
    # The first palette, from row 0; bytes per row of each register; rows of each register.
    palette=(1, 0, _WIDTHS, _WIDTHS, 0, 0, None, 0),
    permit=linux_tile_data,
)
