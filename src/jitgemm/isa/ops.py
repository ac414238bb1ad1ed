"""Vector operations: how LLVM spells each one, and what it means lane by lane.

An operation is data.  ``text`` is LLVM assembly with holes: ``{r}`` the result, ``{a} {b} {c} {d}``
the operands, ``{t}`` and any other name that starts with ``t`` a fresh temporary, ``{v}`` the
vector type, ``{m}`` and ``{iv}`` the types of a mask and of integers of that shape, ``{s}`` and
``{is}`` the suffixes of intrinsics on ``{v}`` and ``{iv}``, ``{sign}`` the letter of integers'
signedness.  A hole in capitals is a constant of
the element type's format in every lane (:mod:`jitgemm.isa.bits`).  ``meaning`` is the definition:
the interpreter executes it and conformance tests compare the two bit for bit, NaNs by being NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgemm.isa import bits, exact

__all__ = ["BF16_DOT", "FUSED_OPS", "TWO_ROUNDING_OPS", "Op", "flushed"]


@dataclass(frozen=True, slots=True)
class Op:
    """One lane-wise operation: LLVM text and executable meaning."""

    name: str
    arity: int
    text: tuple[str, ...]
    meaning: Callable[..., Any]
    declares: str = ""
    """Intrinsic declaration with the same holes, or nothing."""


def _relu(a: Any) -> Any:
    return np.where(0 > a, a.dtype.type(0), a)


def _minimum(a: Any, b: Any) -> Any:
    return np.where((a < b) | np.isnan(a), a, b)


def _maximum(a: Any, b: Any) -> Any:
    return np.where((a > b) | np.isnan(a), a, b)


def _select(name: str, predicate: str, compare: Callable[..., Any]) -> Op:
    """``x`` where ``a`` and ``b`` compare, else ``y``; NaN compares with nothing.

    ``select_lt(a, b, a, b)`` is one ``minps`` on x86, and lets a NaN in ``b`` through.
    """
    text = (f"{{t}} = fcmp {predicate} {{v}} {{a}}, {{b}}",
            "{r} = select {m} {t}, {v} {c}, {v} {d}")  # fmt: skip
    return Op(name, 4, text, lambda a, b, x, y: np.where(compare(a, b), x, y))


def _extreme(name: str, predicate: str, meaning: Callable[..., Any]) -> Op:
    """One of two operands; NaN if one is; of two equal ones (zeros of two signs) the second."""
    text = (
        f"{{t}} = fcmp {predicate} {{v}} {{a}}, {{b}}",
        "{t1} = fcmp uno {v} {a}, {a}",
        "{t2} = or {m} {t}, {t1}",
        "{r} = select {m} {t2}, {v} {a}, {v} {b}",
    )
    return Op(name, 2, text, meaning)


def _intrinsic(name: str, intrinsic: str, meaning: Callable[..., Any], arity: int = 1) -> Op:
    """An LLVM intrinsic that every target has an instruction for."""
    operands = ", ".join(f"{{v}} {{{x}}}" for x in "abc"[:arity])
    types = ", ".join(["{v}"] * arity)
    return Op(
        name,
        arity,
        (f"{{r}} = call {{v}} @llvm.{intrinsic}.{{s}}({operands})",),
        meaning,
        f"declare {{v}} @llvm.{intrinsic}.{{s}}({types})",
    )


# A positive argument as normal number: subnormal ones times 2**p (p the stored significand bits).
_NORMALISE = (
    "{t} = fcmp olt {v} {a}, {TINY}",
    "{t1} = fmul {v} {a}, {GROW}",
    "{t2} = select {m} {t}, {v} {t1}, {v} {a}",
    "{t3} = bitcast {v} {t2} to {iv}",
    "{t4} = add {iv} {t3}, {BIAS}",
)

_BASE = (
    Op("add", 2, ("{r} = fadd {v} {a}, {b}",), np.add),
    Op("sub", 2, ("{r} = fsub {v} {a}, {b}",), np.subtract),
    Op("mul", 2, ("{r} = fmul {v} {a}, {b}",), np.multiply),
    Op("div", 2, ("{r} = fdiv {v} {a}, {b}",), np.divide),
    Op("neg", 1, ("{r} = fneg {v} {a}",), np.negative),
    _intrinsic("abs", "fabs", np.abs),
    _intrinsic("sqrt", "sqrt", np.sqrt),
    _intrinsic("copysign", "copysign", np.copysign, 2),
    # max(0, a) with the operands in the order that lets NaN and -0 through: one maxps on x86.
    Op(
        "relu",
        1,
        (
            "{t} = fcmp ogt {v} zeroinitializer, {a}",
            "{r} = select {m} {t}, {v} zeroinitializer, {v} {a}",
        ),
        _relu,
    ),
    _extreme("minimum", "olt", _minimum),
    _extreme("maximum", "ogt", _maximum),
    _select("select_lt", "olt", np.less),
    _select("select_le", "ole", np.less_equal),
    _select("select_eq", "oeq", np.equal),
    # The upper half of the significand, cut: products of two such numbers are exact.
    Op(
        "head",
        1,
        (
            "{t} = bitcast {v} {a} to {iv}",
            "{t1} = and {iv} {t}, {HEAD}",
            "{r} = bitcast {iv} {t1} to {v}",
        ),
        bits.head,
    ),
    # 2**a for integral a from one below the least normal exponent (0) to one above the greatest
    # (inf).  SHIFT's last bits are zero and its ulp is 1: the sum's last bits are those of a.
    Op(
        "pow2",
        1,
        (
            "{t} = fadd {v} {a}, {SHIFT}",
            "{t1} = bitcast {v} {t} to {iv}",
            "{t2} = shl {iv} {t1}, {P}",
            "{t3} = add {iv} {t2}, {ONE}",
            "{r} = bitcast {iv} {t3} to {v}",
        ),
        bits.pow2,
    ),
    # a * 2**b for integral b, |b| up to twice the greatest exponent: two products, because
    # 2**b itself may be out of range; only the second one rounds.
    Op(
        "scale",
        2,
        (
            "{t} = fadd {v} {b}, {SHIFT}",
            "{t1} = bitcast {v} {t} to {iv}",
            "{t2} = lshr {iv} {t1}, {I1}",
            "{t3} = sub {iv} {t1}, {t2}",
            "{t4} = shl {iv} {t2}, {P}",
            "{t5} = shl {iv} {t3}, {P}",
            "{t6} = add {iv} {t4}, {ONE}",
            "{t7} = add {iv} {t5}, {ONE}",
            "{t8} = bitcast {iv} {t6} to {v}",
            "{t9} = bitcast {iv} {t7} to {v}",
            "{ta} = fmul {v} {a}, {t8}",
            "{r} = fmul {v} {ta}, {t9}",
        ),
        bits.scale,
    ),
    # For positive finite a: mantissa(a) * 2**exponent(a) == a, the mantissa in [1/sqrt 2, sqrt 2).
    # Of other numbers both are whatever the bits give.
    Op(
        "exponent",
        1,
        (
            *_NORMALISE,
            "{t5} = lshr {iv} {t4}, {P}",
            "{t6} = add {iv} {t5}, {SHIFT_BITS}",
            "{t7} = bitcast {iv} {t6} to {v}",
            "{t8} = select {m} {t}, {v} {OFFSET_TINY}, {v} {OFFSET}",
            "{r} = fsub {v} {t7}, {t8}",
        ),
        bits.exponent,
    ),
    Op(
        "mantissa",
        1,
        (
            *_NORMALISE,
            "{t5} = and {iv} {t4}, {EXPONENT}",
            "{t6} = sub {iv} {t3}, {t5}",
            "{t7} = add {iv} {t6}, {ONE}",
            "{r} = bitcast {iv} {t7} to {v}",
        ),
        bits.mantissa,
    ),
    # The bytes of an element in reverse: numbers of the other byte order, as bit patterns.
    Op(
        "bswap",
        1,
        (
            "{t} = bitcast {v} {a} to {iv}",
            "{t1} = call {iv} @llvm.bswap.{is}({iv} {t})",
            "{r} = bitcast {iv} {t1} to {v}",
        ),
        lambda a: a.byteswap(),
        "declare {iv} @llvm.bswap.{is}({iv})",
    ),
)

# Instruction sets with FMA all round to integers in one instruction.
_FUSED = (
    _intrinsic("madd", "fma", exact.fma, 3),
    Op(
        "nmadd",
        3,
        ("{t} = fneg {v} {a}", "{r} = call {v} @llvm.fma.{s}({v} {t}, {v} {b}, {v} {c})"),
        lambda a, b, c: exact.fma(-a, b, c),
        "declare {v} @llvm.fma.{s}({v}, {v}, {v})",
    ),
    _intrinsic("rint", "roundeven", np.rint),
)

# For instruction sets without FMA: a library call per lane would be a hundred times slower.
_TWO_ROUNDING = (
    Op(
        "madd",
        3,
        ("{t} = fmul {v} {a}, {b}", "{r} = fadd {v} {t}, {c}"),
        lambda a, b, c: np.add(np.multiply(a, b), c),
    ),
    Op(
        "nmadd",
        3,
        ("{t} = fmul {v} {a}, {b}", "{r} = fsub {v} {c}, {t}"),
        lambda a, b, c: np.subtract(c, np.multiply(a, b)),
    ),
    # x86-64 itself cannot round to integers.  Above 2**p every number is one, so adding and
    # taking away 2**p rounds smaller ones.
    Op(
        "rint",
        1,
        (
            "{t} = call {v} @llvm.fabs.{s}({v} {a})",
            "{t1} = fadd {v} {t}, {WHOLE}",
            "{t2} = fsub {v} {t1}, {WHOLE}",
            "{t3} = fcmp olt {v} {t}, {WHOLE}",
            "{t4} = select {m} {t3}, {v} {t2}, {v} {t}",
            "{r} = call {v} @llvm.copysign.{s}({v} {t4}, {v} {a})",
        ),
        np.rint,
        "declare {v} @llvm.fabs.{s}({v})\ndeclare {v} @llvm.copysign.{s}({v}, {v})",
    ),
)


def flushed(a: Any) -> Any:
    """Subnormal numbers as zeros of their sign."""
    tiny = np.abs(a) < np.finfo(np.float32).tiny
    return np.where(tiny, np.copysign(np.float32(0), a), a)


def _bf16_dot(a: Any, b: Any, c: Any) -> Any:
    pairs = [x.view(np.uint16).astype(np.uint32) << np.uint32(16) for x in (a, b)]
    x, y = (flushed(p.view(np.float32)) for p in pairs)
    total = flushed(c)
    # The number of the higher depth first, as the instruction does.
    for part in (1, 0):
        total = flushed(exact.fma(x[part::2].copy(), y[part::2].copy(), total))
    return total


_BF16_DOT, _BF16 = "llvm.x86.avx512bf16.dpbf16ps.512", "<32 x bfloat>"

# Words of two bfloat16: two multiply-adds per lane that treat subnormal numbers as zeros, round to
# nearest even whatever the mode, and raise no flag.
BF16_DOT = Op(
    "bf16_dot",
    3,
    (
        f"{{t}} = bitcast {{v}} {{a}} to {_BF16}",
        f"{{t1}} = bitcast {{v}} {{b}} to {_BF16}",
        f"{{r}} = call {{v}} @{_BF16_DOT}({{v}} {{c}}, {_BF16} {{t}}, {_BF16} {{t1}})",
    ),
    _bf16_dot,
    f"declare {{v}} @{_BF16_DOT}({{v}}, {_BF16}, {_BF16})",
)

FUSED_OPS = {op.name: op for op in (*_BASE, *_FUSED)}
TWO_ROUNDING_OPS = {op.name: op for op in (*_BASE, *_TWO_ROUNDING)}
