"""Operations on integers, modulo ``2**bits``: text and meaning as in :mod:`jitgemm.isa.ops`.

``dot2`` and ``dot4`` fold a *word* of two or four steps of depth into a 32-bit sum: a word is a
32-bit lane that holds two 16-bit or four 8-bit numbers, the one of the lowest depth in its lowest
bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jitgemm.errors import LanguageError
from jitgemm.isa.ops import Op

__all__ = ["DOT_INTEGERS", "GENERIC_INTEGERS", "Op", "x86_integers"]


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


def _dot2(a: Any, b: Any, c: Any) -> Any:
    return _dot(a, b, c, (np.int16, np.int16))


def _dot4(a: Any, b: Any, c: Any) -> Any:
    return _dot(a, b, c, (np.uint8, np.int8))


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
    Op(
        "dot2",
        3,
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
        ),
        _dot2,
    ),
)


def _multiply_add_pairs(instruction: str, lanes: int) -> Op:
    """``vpmaddwd`` and an addition: the product of two pairs never saturates, it wraps."""
    halves, words = f"<{2 * lanes} x i16>", f"<{lanes} x i32>"
    return Op(
        "dot2",
        3,
        (
            f"{{t}} = bitcast {{v}} {{a}} to {halves}",
            f"{{t1}} = bitcast {{v}} {{b}} to {halves}",
            f"{{t2}} = call {words} @llvm.x86.{instruction}({halves} {{t}}, {halves} {{t1}})",
            "{r} = add {v} {t2}, {c}",
        ),
        _dot2,
        f"declare {words} @llvm.x86.{instruction}({halves}, {halves})",
    )


def _vnni(name: str, instruction: str, bits: int, meaning: Callable[..., Any]) -> Op:
    v = f"<{bits // 32} x i32>"
    call = f"@llvm.x86.avx512.{instruction}.{bits}"
    return Op(
        name,
        3,
        (f"{{r}} = call {v} {call}({v} {{c}}, {v} {{a}}, {v} {{b}})",),
        meaning,
        f"declare {v} {call}({v}, {v}, {v})",
    )


def _table(*ops: Op) -> Mapping[str, Op]:
    return {op.name: op for op in (*_BASE, *ops)}


GENERIC_INTEGERS = _table()
# With `dot4`, which has a meaning but no text that every machine understands.
DOT_INTEGERS = _table(Op("dot4", 3, (), _dot4))

_PAIRS = {512: "avx512.pmaddw.d.512", 256: "avx2.pmadd.wd"}


def x86_integers(bits: int, *, vnni: bool) -> Mapping[str, Op]:
    """The operations of x86 vectors of 256 or 512 bits, with or without dot products."""
    if vnni:
        return _table(
            _vnni("dot2", "vpdpwssd", bits, _dot2), _vnni("dot4", "vpdpbusd", bits, _dot4)
        )
    return _table(_multiply_add_pairs(_PAIRS[bits], bits // 32))
