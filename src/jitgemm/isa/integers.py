"""Operations on integers, modulo ``2**bits``: text and meaning as in :mod:`jitgemm.isa.ops`.

``dot2`` and ``dot4`` with its like fold a *word* of two or four steps of depth into a 32-bit sum: a
word is a 32-bit lane that holds two 16-bit or four 8-bit numbers, the one of the lowest depth in
its lowest bits.  :data:`FOLDS` has all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgemm.errors import LanguageError
from jitgemm.isa.ops import Op

__all__ = [
    "DOT_INTEGERS", "FOLDS", "GENERIC_FOLDS", "GENERIC_INTEGERS", "Fold", "Op", "apart",
    "fold_of", "fold_of_ones", "table_with", "x86_integers",
]  # fmt: skip


def _wrapping(operation: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy wraps arrays of integers, but of one element only if it is not told to warn."""

    def meaning(*operands: Any) -> Any:
        with np.errstate(all="ignore"):
            return operation(*operands)

    return meaning


def _dot(a: Any, b: Any, c: Any, pieces: tuple[type, type]) -> Any:
    """Products of the numbers in each lane of ``a`` and ``b``, added to ``c``."""
    x, y = (v.view(t).astype(np.int64) for v, t in zip((a, b), pieces, strict=True))
    sums = (x * y).reshape(a.size, -1).sum(axis=1)
    return (sums + c).astype(np.uint64).astype(np.uint32).view(np.int32)


@dataclass(frozen=True, slots=True)
class Fold:
    """An operation that multiplies the numbers of two words, and adds up in 32 bits."""

    name: str
    bits: int
    """Of a number in a word."""
    signed: tuple[bool, bool]
    """Whether the numbers of the first operand are signed, and those of the second."""

    @property
    def group(self) -> int:
        """Numbers in a word."""
        return 32 // self.bits

    def meaning(self, a: Any, b: Any, c: Any) -> Any:
        """What it does to arrays of words ``a`` and ``b`` and of sums ``c``."""
        kinds = [np.dtype(f"{'i' if s else 'u'}{self.bits // 8}").type for s in self.signed]
        return _dot(a, b, c, (kinds[0], kinds[1]))

    def op(self, text: tuple[str, ...], declares: str = "") -> Op:
        """The operation as a set spells it."""
        return Op(self.name, 3, text, self.meaning, declares)


DOT4 = Fold("dot4", 8, (False, True))
DOT4_SIGNED = Fold("dot4_signed", 8, (True, True))
DOT4_UNSIGNED = Fold("dot4_unsigned", 8, (False, False))
DOT2 = Fold("dot2", 16, (True, True))

FOLDS = (DOT4, DOT4_SIGNED, DOT4_UNSIGNED, DOT2)
"""Every fold of integers; a set has those that its table names."""


def fold_of(
    table: Mapping[str, Op], bits: int, signed: tuple[bool, bool]
) -> tuple[Fold, bool] | None:
    """The fold of a table that multiplies numbers of these signednesses as they are, if any.

    Returns:
        The fold, and whether its operands are those of the product in the other order.
    """
    for fold in FOLDS:
        if fold.name in table and fold.bits == bits and signed in (fold.signed, fold.signed[::-1]):
            return fold, signed != fold.signed
    return None


def fold_of_ones(table: Mapping[str, Op], bits: int, *, signed: bool) -> tuple[Fold, bool]:
    """The fold that multiplies such numbers by ones, which are of either signedness.

    Args:
        table: of a set's operations.
        bits: of a number in a word.
        signed: whether the numbers are; of those that were widened for the word, whether they were.

    Returns:
        The fold, and whether the ones are its second operand.

    Raises:
        LanguageError: the table has none.
    """
    for fold in FOLDS:
        # Those that were widened are signed ones now.
        fits = signed in fold.signed or fold is DOT2
        if fold.name in table and fold.bits == bits and fits:
            return fold, not signed
    raise LanguageError(f"no fold of {'signed' if signed else 'unsigned'} numbers of {bits} bits")


def _bswap(a: Any) -> Any:
    return a.byteswap()


def _flip(a: Any) -> Any:
    size = a.dtype.itemsize
    return a ^ np.array(1 << (size * 8 - 1), f"u{size}").view(a.dtype)


def _as(kind: str, a: Any) -> Any:
    """The same bits as signed (``i``) or unsigned (``u``) numbers."""
    return a.view(f"{kind}{a.dtype.itemsize}")


def _logical_right(a: Any, n: Any) -> Any:
    return (_as("u", a) >> _as("u", n)).view(a.dtype)


def _arithmetic_right(a: Any, n: Any) -> Any:
    return (_as("i", a) >> _as("i", n)).view(a.dtype)


def _shift(operation: Callable[..., Any]) -> Callable[..., Any]:
    """A shift by less than the width: others have no meaning."""

    def meaning(a: Any, n: Any) -> Any:
        bits = a.dtype.itemsize * 8
        if (_as("u", n) >= bits).any():
            raise LanguageError(f"shift of {bits} bits by {n}")
        return operation(a, n)

    return meaning


_BASE = (
    Op("add", 2, ("{r} = add {v} {a}, {b}",), _wrapping(np.add)),
    Op("sub", 2, ("{r} = sub {v} {a}, {b}",), _wrapping(np.subtract)),
    Op("mul", 2, ("{r} = mul {v} {a}, {b}",), _wrapping(np.multiply)),
    Op(
        "madd",
        3,
        ("{t} = mul {v} {a}, {b}", "{r} = add {v} {t}, {c}"),
        _wrapping(lambda a, b, c: a * b + c),
    ),
    *(
        Op(
            name,
            2,
            (f"{{r}} = call {{v}} @llvm.{{sign}}{word}.{{s}}({{v}} {{a}}, {{v}} {{b}})",),
            meaning,
            f"declare {{v}} @llvm.{{sign}}{word}.{{s}}({{v}}, {{v}})",
        )
        for name, word, meaning in (
            ("minimum", "min", np.minimum),
            ("maximum", "max", np.maximum),
        )
    ),
    *(
        Op(name, 2, (f"{{r}} = {name} {{v}} {{a}}, {{b}}",), meaning)
        for name, meaning in (
            ("and", np.bitwise_and),
            ("or", np.bitwise_or),
            ("xor", np.bitwise_xor),
            ("shl", _shift(np.left_shift)),
            ("lshr", _shift(_logical_right)),
            ("ashr", _shift(_arithmetic_right)),
        )
    ),
    Op("neg", 1, ("{r} = sub {v} zeroinitializer, {a}",), _wrapping(np.negative)),
    Op(
        "relu",
        1,
        (
            "{t} = icmp {sign}gt {v} {a}, zeroinitializer",
            "{r} = select {m} {t}, {v} {a}, {v} zeroinitializer",
        ),
        lambda a: np.maximum(a, a.dtype.type(0)),
    ),
    # The other signedness of the same number, moved by half the range.
    Op("flip", 1, ("{r} = xor {v} {a}, {SIGN}",), _flip),
    Op(
        "bswap",
        1,
        ("{r} = call {v} @llvm.bswap.{s}({v} {a})",),
        _bswap,
        "declare {v} @llvm.bswap.{s}({v})",
    ),
    # For sets that name no instruction of their own: both halves of a word, sign-extended.
    DOT2.op(
        (
            "{t} = shl {v} {a}, {HALF}",
            "{t1} = shl {v} {b}, {HALF}",
            "{t2} = ashr {v} {t}, {HALF}",
            "{t3} = ashr {v} {t1}, {HALF}",
            "{t4} = ashr {v} {a}, {HALF}",
            "{t5} = ashr {v} {b}, {HALF}",
            "{t6} = mul {v} {t2}, {t3}",
            "{t7} = mul {v} {t4}, {t5}",
            "{t8} = add {v} {t6}, {t7}",
            "{r} = add {v} {t8}, {c}",
        )
    ),
)


def _multiply_add_pairs(instruction: str, lanes: int) -> Op:
    """``vpmaddwd`` and an addition: the product of two pairs never saturates, it wraps."""
    halves, words = f"<{2 * lanes} x i16>", f"<{lanes} x i32>"
    return DOT2.op(
        (
            f"{{t}} = bitcast {{v}} {{a}} to {halves}",
            f"{{t1}} = bitcast {{v}} {{b}} to {halves}",
            f"{{t2}} = call {words} @llvm.x86.{instruction}({halves} {{t}}, {halves} {{t1}})",
            "{r} = add {v} {t2}, {c}",
        ),
        f"declare {words} @llvm.x86.{instruction}({halves}, {halves})",
    )


def _vnni(fold: Fold, instruction: str, bits: int) -> Op:
    v = f"<{bits // 32} x i32>"
    call = f"@llvm.x86.avx512.{instruction}.{bits}"
    return fold.op(
        (f"{{r}} = call {v} {call}({v} {{c}}, {v} {{a}}, {v} {{b}})",),
        f"declare {v} {call}({v}, {v}, {v})",
    )


def table_with(*ops: Op) -> Mapping[str, Op]:
    """The operations that every machine has, and these, in place of those of the same names."""
    return {op.name: op for op in (*_BASE, *ops)}


GENERIC_INTEGERS = table_with()


def apart(fold: Fold) -> Op:
    """A fold by shifts, multiplications and additions, which every machine has."""
    # First all shifts: products in between would need vectors of their own.
    shifts, sums, total = list[str](), list[str](), "{c}"
    for part in range(fold.group):
        up = 32 - fold.bits * (part + 1)
        for x, signed in zip("ab", fold.signed, strict=True):
            raised, kind = f"{{{x}}}", "ashr" if signed else "lshr"
            if up:
                raised = f"{{tu{x}{part}}}"
                shifts.append(f"{raised} = shl {{v}} {{{x}}}, splat (i32 {up})")
            down = f"splat (i32 {32 - fold.bits})"
            shifts.append(f"{{t{x}{part}}} = {kind} {{v}} {raised}, {down}")
        result = "{r}" if part + 1 == fold.group else f"{{ts{part}}}"
        sums += [
            f"{{tm{part}}} = mul {{v}} {{ta{part}}}, {{tb{part}}}",
            f"{result} = add {{v}} {total}, {{tm{part}}}",
        ]
        total = result
    return fold.op((*shifts, *sums))


# On whole vectors, where no instruction folds: what is packed for a unit that does.
GENERIC_FOLDS = table_with(*(apart(x) for x in FOLDS))
# With `dot4`, which has a meaning but no text that every machine understands.
DOT_INTEGERS = table_with(DOT4.op(()))

_PAIRS = {512: "avx512.pmaddw.d.512", 256: "avx2.pmadd.wd"}


def x86_integers(bits: int, *, vnni: bool) -> Mapping[str, Op]:
    """The operations of x86 vectors of 256 or 512 bits, with or without dot products."""
    if vnni:
        return table_with(_vnni(DOT2, "vpdpwssd", bits), _vnni(DOT4, "vpdpbusd", bits))
    return table_with(_multiply_add_pairs(_PAIRS[bits], bits // 32))
