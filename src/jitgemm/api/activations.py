"""Activations by name and with parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgemm.errors import message
from jitgemm.kernels.expression import ACTIVATIONS, Program
from jitgemm.runtime.keeping import BoundedCache

__all__ = ["NAMED", "Clip", "LeakyRelu", "clip", "leaky_relu", "resolve_activation"]

_NEEDS_PARAMETERS = ("leaky_relu", "clip")
NAMED = {name: program for name, program in ACTIVATIONS.items() if name not in _NEEDS_PARAMETERS}
"""Activations that a name alone asks for."""


def _number(x: Any, operand: str) -> float:
    if isinstance(x, np.ndarray) and x.ndim == 0:
        x = x[()]
    if isinstance(x, bool | np.bool_) or not isinstance(x, int | float | np.integer | np.floating):
        raise TypeError(message(operand, "a real number", type(x).__name__))
    try:
        number = float(x)
    except OverflowError:
        raise ValueError(message(operand, "a number a float can hold", "a greater one")) from None
    if math.isnan(number):
        raise ValueError(message(operand, "a number", "NaN"))
    return number


@dataclass(frozen=True, slots=True)
class LeakyRelu:
    """``v`` from zero on, ``slope * v`` below."""

    slope: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "slope", _number(self.slope, "slope"))


@dataclass(frozen=True, slots=True)
class Clip:
    """``v`` between two bounds; NaN stays."""

    lo: float
    hi: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "lo", _number(self.lo, "lo"))
        object.__setattr__(self, "hi", _number(self.hi, "hi"))
        if self.lo > self.hi:
            raise ValueError(message("lo", f"at most hi, {self.hi}", self.lo))


# Equal ones are one object, by which calls are told apart: they are often made anew for each call.
_made: BoundedCache[tuple[Any, ...], LeakyRelu | Clip] = BoundedCache(256)


def _same(kind: type[LeakyRelu | Clip], *parameters: Any) -> Any:
    """The one object of a kind and its parameters."""
    # Zeros of either sign are equal, and so are numbers of different types.
    key = (kind, *((type(x), x or str(x)) for x in parameters if type(x) in (float, int)))
    found = _made.get(key) if len(key) > len(parameters) else None
    if found is None:
        found = kind(*parameters)
        if len(key) > len(parameters):
            _made.put(key, found)
    return found


def leaky_relu(slope: float = 0.01) -> LeakyRelu:
    """The activation ``v if v >= 0 else slope * v``; NaN and -0 stay.

    Raises:
        TypeError, ValueError: ``slope`` is no real number, or NaN.
    """
    return _same(LeakyRelu, slope)  # type: ignore[no-any-return]


def clip(lo: float, hi: float) -> Clip:
    """The activation ``min(max(v, lo), hi)``; NaN stays.  Bounds may be infinite.

    Raises:
        TypeError, ValueError: a bound is no real number or NaN, or ``lo > hi``.
    """
    return _same(Clip, lo, hi)  # type: ignore[no-any-return]


def resolve_activation(x: Any) -> tuple[Program | None, tuple[float, ...]]:
    """The program of an activation and its constants; ``None`` for none.

    Raises:
        ValueError: neither ``None``, a name, nor made by :func:`leaky_relu` or :func:`clip`.
    """
    if x is None:
        return None, ()
    if isinstance(x, LeakyRelu):
        return ACTIVATIONS["leaky_relu"], (x.slope,)
    if isinstance(x, Clip):
        return ACTIVATIONS["clip"], (x.lo, x.hi)
    # The text itself: a class of one's own may compare as it likes.
    if isinstance(x, str) and (program := NAMED.get(str.__str__(x))) is not None:
        return program, ()
    expected = f"None, one of {', '.join(NAMED)}, jitgemm.leaky_relu(...) or jitgemm.clip(...)"
    raise ValueError(message("activation", expected, repr(x)))
