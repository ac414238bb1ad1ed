"""What elementary functions and activations mean, on NumPy arrays.

Those with a polynomial are for arrays of doubles, whatever the type of a result; ``leaky_relu`` and
``clip`` are exact in the type of their operands.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = [
    "clip", "complex_sigmoid", "erf", "exp", "gelu", "gelu_tanh", "hardswish", "leaky_relu", "log",
    "sigmoid", "silu", "tanh",
]  # fmt: skip

exp, log, tanh = np.exp, np.log, np.tanh
erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def sigmoid(x: Any) -> Any:
    """``1 / (1 + exp(-x))``."""
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1.0 + e)


def complex_sigmoid(x: Any) -> Any:
    """Without overflow on either side, as for reals."""
    left = x.real < 0
    with np.errstate(invalid="ignore"):  # of NaN, which gives NaN
        e = np.exp(np.where(left, x, -x))
        return np.where(left, e, 1.0) / (1.0 + e)


def _gated(v: Any, sigmoidal: Any) -> Any:
    """``v * s(v)``, and its limit where that is infinity times zero."""
    return np.where(v == -np.inf, -0.0, v * sigmoidal)


def gelu(v: Any) -> Any:
    """``v * (1 + erf(v / sqrt(2))) / 2``."""
    return _gated(v, _erfc(-v / math.sqrt(2)) / 2)


def gelu_tanh(v: Any) -> Any:
    """``v * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 * v**3))) / 2``."""
    return _gated(v, sigmoid(2 * math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))


def silu(v: Any) -> Any:
    """``v * sigmoid(v)``."""
    return _gated(v, sigmoid(v))


def hardswish(v: Any) -> Any:
    """``v * clip(v + 3, 0, 6) / 6``."""
    return _gated(v, np.clip(v + 3, 0, 6) / 6)


def leaky_relu(v: Any, slope: Any) -> Any:
    """``slope * v`` below zero, else ``v``."""
    return np.where(v < 0, slope * v, v)


def clip(v: Any, low: Any, high: Any) -> Any:
    """``v`` between two bounds; NaN stays."""
    above = np.where(v < low, low, v)
    return np.where(high < above, high, above)
