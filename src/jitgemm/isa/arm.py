"""Operations that AArch64 has instructions of its own for: dot products of narrow numbers.

Vectors are of a fixed length while kernels are generated.  SVE's instructions are intrinsics on
scalable vectors only: a fixed one is put into one of those, and taken out again, which is no
instruction where the length is known (``vscale_range``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jitgemm.isa.exact import to_odd, two_sum
from jitgemm.isa.integers import (
    DOT2,
    DOT4,
    DOT4_SIGNED,
    DOT4_UNSIGNED,
    Fold,
    Op,
    apart,
    table_with,
)
from jitgemm.isa.ops import flushed

__all__ = ["NEON_BF16_DOT", "bf16_pairs", "neon_integers", "sve_bf16_dot", "sve_integers"]

# -- NEON -----------------------------------------------------------------------------------------

_HALVES, _SMULL = "<4 x i16>", "@llvm.aarch64.neon.smull.v4i32"
_SIXTEEN = "<i32 16, i32 16, i32 16, i32 16>"

# The lower numbers of four words side by side, and the upper ones: two multiply-adds that lengthen
# (smlal).  Taking words apart is done once per vector of A or B, however many it meets.
_NEON_DOT2 = DOT2.op(
    (
        f"{{t}} = lshr {{v}} {{a}}, {_SIXTEEN}",
        f"{{t1}} = lshr {{v}} {{b}}, {_SIXTEEN}",
        f"{{t2}} = trunc {{v}} {{a}} to {_HALVES}",
        f"{{t3}} = trunc {{v}} {{b}} to {_HALVES}",
        f"{{t4}} = trunc {{v}} {{t}} to {_HALVES}",
        f"{{t5}} = trunc {{v}} {{t1}} to {_HALVES}",
        f"{{t6}} = call {{v}} {_SMULL}({_HALVES} {{t2}}, {_HALVES} {{t3}})",
        "{t7} = add {v} {t6}, {c}",
        f"{{t8}} = call {{v}} {_SMULL}({_HALVES} {{t4}}, {_HALVES} {{t5}})",
        "{r} = add {v} {t7}, {t8}",
    ),
    f"declare {{v}} {_SMULL}({_HALVES}, {_HALVES})",
)


def _neon_fold(fold: Fold, instruction: str) -> Op:
    """One instruction on four words."""
    narrow = "<16 x i8>"
    call = f"@llvm.aarch64.neon.{instruction}.v4i32.v16i8"
    return fold.op(
        (
            f"{{t}} = bitcast {{v}} {{a}} to {narrow}",
            f"{{t1}} = bitcast {{v}} {{b}} to {narrow}",
            f"{{r}} = call {{v}} {call}({{v}} {{c}}, {narrow} {{t}}, {narrow} {{t1}})",
        ),
        f"declare {{v}} {call}({{v}}, {narrow}, {narrow})",
    )


def neon_integers(*, dotprod: bool = False, i8mm: bool = False) -> Mapping[str, Op]:
    """The operations of NEON on integers, with the instructions of these extensions."""
    folds = [_NEON_DOT2]
    if i8mm:
        folds.append(_neon_fold(DOT4, "usdot"))
    if dotprod:
        folds += [_neon_fold(DOT4_SIGNED, "sdot"), _neon_fold(DOT4_UNSIGNED, "udot")]
    return table_with(*folds)


# -- SVE ------------------------------------------------------------------------------------------


def _scalable(bits: int, element: str, operands: str) -> tuple[list[str], str]:
    """Fixed vectors of 32-bit ``element`` as scalable ones ``{ta}``, ..., and the declarations."""
    fixed, wide, letter = f"<{bits // 32} x {element}>", f"<vscale x 4 x {element}>", element[0]
    suffix = f"{letter}32"
    into = f"@llvm.vector.insert.nxv4{suffix}.v{bits // 32}{suffix}"
    lines = [
        f"{{t{x}}} = call {wide} {into}({wide} poison, {fixed} {{{x}}}, i64 0)" for x in operands
    ]
    return lines, f"declare {wide} {into}({wide}, {fixed}, i64)"


def _fixed(bits: int, element: str, scalable: str) -> tuple[str, str]:
    """The result from a scalable vector, and the declaration."""
    fixed, wide, letter = f"<{bits // 32} x {element}>", f"<vscale x 4 x {element}>", element[0]
    out = f"@llvm.vector.extract.v{bits // 32}{letter}32.nxv4{letter}32"
    return (
        f"{{r}} = call {fixed} {out}({wide} {scalable}, i64 0)",
        f"declare {fixed} {out}({wide}, i64)",
    )


def _sve_text(
    bits: int, element: str, narrow: str, calls: tuple[str, ...]
) -> tuple[tuple[str, ...], str]:
    """Text and declarations of intrinsics that add to a sum, one after the other.

    Args:
        bits: of a vector.
        element: the LLVM type of a sum.
        narrow: that of a scalable vector of the numbers multiplied.
        calls: names of the intrinsics.
    """
    wide = f"<vscale x 4 x {element}>"
    lines, into = _scalable(bits, element, "abc")
    lines += [f"{{tn{x}}} = bitcast {wide} {{t{x}}} to {narrow}" for x in "ab"]
    total = "{tc}"
    for i, call in enumerate(calls):
        result = f"{{ts{i}}}"
        lines.append(
            f"{result} = call {wide} {call}({wide} {total}, {narrow} {{tna}}, {narrow} {{tnb}})"
        )
        total = result
    last, out = _fixed(bits, element, total)
    declares = [f"declare {wide} {call}({wide}, {narrow}, {narrow})" for call in calls]
    return (*lines, last), "\n".join([into, out, *declares])


# Two multiply-adds of numbers taken apart.
_SVE_DOT2 = apart(DOT2)


def _sve_fold(fold: Fold, bits: int, *instructions: str) -> Op:
    narrow = f"<vscale x {128 // fold.bits} x i{fold.bits}>"
    calls = tuple(f"@llvm.aarch64.sve.{x}.nxv4i32" for x in instructions)
    return fold.op(*_sve_text(bits, "i32", narrow, calls))


def sve_integers(bits: int, *, i8mm: bool = False, sve2: bool = False) -> Mapping[str, Op]:
    """The operations of SVE on integers, with the instructions of these extensions."""
    folds = [_sve_fold(DOT4_SIGNED, bits, "sdot"), _sve_fold(DOT4_UNSIGNED, bits, "udot")]
    if i8mm:
        folds.append(_sve_fold(DOT4, bits, "usdot"))
    # Products of the even numbers, then those of the odd ones.
    folds.append(_sve_fold(DOT2, bits, "smlalb", "smlalt") if sve2 else _SVE_DOT2)
    return table_with(*folds)


# -- bfloat16 -------------------------------------------------------------------------------------


def _add_to_odd(a: Any, b: Any) -> Any:
    """The sum of float32 rounded to odd; subnormal numbers are zeros before and after."""
    x, y = (flushed(v).astype(np.float64) for v in (a, b))
    near, error = two_sum(x, y)
    bits = to_odd(near, error).view(np.uint64)
    # Cut to 24 bits; what is cut off shows in the last one.
    cut = bits & np.uint64((1 << 29) - 1)
    kept = (bits - cut) | np.where(cut != 0, np.uint64(1 << 29), np.uint64(0))
    total = np.where(np.isfinite(near), kept.view(np.float64), near)
    # Before it becomes a float32, which might round it to the least normal one.
    tiny = np.abs(total) < np.finfo(np.float32).tiny
    return np.where(tiny, np.copysign(0.0, total), total).astype(np.float32)


def bf16_pairs(a: Any, b: Any, c: Any) -> Any:
    """What BFDOT does to words of two numbers ``a`` and ``b`` and to sums ``c``."""
    x, y = (
        flushed((v.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32))
        for v in (a, b)
    )
    # A product has 16 bits: it is rounded only where it is no normal number.
    products = flushed(x * y)
    return _add_to_odd(c, _add_to_odd(products[::2].copy(), products[1::2].copy()))


_BFLOATS = "<8 x bfloat>"
_NEON_BFDOT = "@llvm.aarch64.neon.bfdot.v4f32.v8bf16"

# Two products to each sum, added to each other and then to it.  Each addition rounds to odd: what
# is cut off shows in the last bit.  Subnormal numbers are zeros, on the way too, and no flag is
# raised (Arm Architecture Reference Manual, BFDOT with FPCR.EBF = 0, which it is unless a process
# sets it).
NEON_BF16_DOT = Op(
    "bf16_dot",
    3,
    (
        f"{{t}} = bitcast {{v}} {{a}} to {_BFLOATS}",
        f"{{t1}} = bitcast {{v}} {{b}} to {_BFLOATS}",
        f"{{r}} = call {{v}} {_NEON_BFDOT}({{v}} {{c}}, {_BFLOATS} {{t}}, {_BFLOATS} {{t1}})",
    ),
    bf16_pairs,
    f"declare {{v}} {_NEON_BFDOT}({{v}}, {_BFLOATS}, {_BFLOATS})",
)


def sve_bf16_dot(bits: int) -> Op:
    """:data:`NEON_BF16_DOT` on SVE."""
    text, declares = _sve_text(bits, "float", "<vscale x 8 x bfloat>", ("@llvm.aarch64.sve.bfdot",))
    return Op("bf16_dot", 3, text, bf16_pairs, declares)
