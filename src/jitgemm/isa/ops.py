"""Vector operations: how LLVM spells each one, and what it means lane by lane.

An operation is data.  ``text`` is LLVM assembly with holes: ``{r}`` the result, ``{a} {b} {c}`` the
operands, ``{t}`` a fresh temporary, ``{v}`` the vector type, ``{m}`` the type of a mask of that
shape and ``{s}`` the intrinsic suffix.  ``meaning`` is the definition: the interpreter executes
it and conformance tests compare the two bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgemm.isa import exact

__all__ = ["FUSED_OPS", "TWO_ROUNDING_OPS", "Op"]


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


_BASE = (
    Op("add", 2, ("{r} = fadd {v} {a}, {b}",), np.add),
    Op("mul", 2, ("{r} = fmul {v} {a}, {b}",), np.multiply),
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
)

_BSWAP = Op(
    "bswap",
    1,
    (
        "{t}i = bitcast {v} {a} to {i}",
        "{t} = call {i} @llvm.bswap.{si}({i} {t}i)",
        "{r} = bitcast {i} {t} to {v}",
    ),
    lambda a: a.byteswap(),
    "declare {i} @llvm.bswap.{si}({i})",
)

_FUSED_MADD = Op(
    "madd",
    3,
    ("{r} = call {v} @llvm.fma.{s}({v} {a}, {v} {b}, {v} {c})",),
    exact.fma,
    "declare {v} @llvm.fma.{s}({v}, {v}, {v})",
)

# For instruction sets without FMA: a library call per lane would be a hundred times slower.
_TWO_ROUNDING_MADD = Op(
    "madd",
    3,
    ("{t} = fmul {v} {a}, {b}", "{r} = fadd {v} {t}, {c}"),
    lambda a, b, c: np.add(np.multiply(a, b), c),
)

FUSED_OPS = {op.name: op for op in (*_BASE, _BSWAP, _FUSED_MADD)}
TWO_ROUNDING_OPS = {op.name: op for op in (*_BASE, _BSWAP, _TWO_ROUNDING_MADD)}
