"""Which arguments are plain memory, and which mean more than the numbers they hold.

A mask, labels, units, gradients: whoever multiplies only the numbers of such an object gives a
wrong answer without a word.  They are refused by name, with what to do instead.  They are told by
what their classes offer, so no package is imported to know its own:

* a subclass of an array is plain unless it has arithmetic or a protocol of its own;
* another object is plain unless it takes part in NumPy's dispatch (``__array_ufunc__``,
  ``__array_function__``), or offers what only sparse, labelled or measured things do;
* memory is plain only on the CPU, and a tensor only without a gradient to keep track of.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from jitgemm.errors import message

__all__ = ["DEEPEST", "check_plain", "means_more"]

_PLAIN = "plain numbers"
_DISPATCH = ("__array_ufunc__", "__array_function__")
_ARITHMETIC = (
    *_DISPATCH, "__array_wrap__", "__matmul__", "__rmatmul__", "__mul__", "__rmul__", "__add__",
    "__radd__",
)  # fmt: skip
# Attributes of a class that tell what it means, and what gives its numbers.
_KINDS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("a mask", ("mask", "filled"), ("filled(value)",)),
    ("units", ("magnitude", "units"), ("magnitude",)),
    ("units", ("unit", "to_value"), ("to_value(unit)",)),
    ("units", ("units", "to_value"), ("to_value(units)",)),
    ("sparse storage", ("nnz",), ("toarray()", "todense()")),
    ("sparse storage", ("tocoo",), ("toarray()", "todense()")),
    ("labels", ("iloc",), ("to_numpy()",)),
    ("labels", ("dims", "coords"), ("to_numpy()",)),
    ("labels", ("__dataframe__",), ("to_numpy()",)),
)  # fmt: skip
# Devices of DLPack whose memory this process can read, and names of others.
_HOST = (1, 3, 11)
_DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA (managed)",
            14: "oneAPI"}  # fmt: skip
_NUMBERS = (int, float, complex, str, bytes, np.generic)
DEEPEST = 64
"""Dimensions an array may have: deeper lists are none."""


def _named(x: object) -> str:
    kind = type(x)
    package = kind.__module__.partition(".")[0]
    return kind.__qualname__ if package in ("builtins", "__main__") else (
        f"{package}.{kind.__qualname__}"
    )  # fmt: skip


def _refuse(name: str, x: object, what: str, instead: str) -> NoReturn:
    raise TypeError(message(name, f"{_PLAIN}: pass {instead}", f"{_named(x)}, which has {what}"))


def means_more(x: object) -> str:
    """What an object means besides its numbers, in words; empty if nothing."""
    kind = type(x)
    if kind is np.ndarray or issubclass(kind, _NUMBERS):
        return ""
    for what, tells, _ in _KINDS:
        if all(hasattr(kind, tell) for tell in tells):
            return what
    if issubclass(kind, np.ndarray):
        # A memory map has a protocol of its own, but no meaning.
        own = (
            getattr(kind, a) not in (getattr(np.ndarray, a), getattr(np.memmap, a))
            for a in _ARITHMETIC
            if hasattr(np.ndarray, a)
        )
        return "arithmetic of its own" if any(own) else ""
    if any(hasattr(kind, a) for a in _DISPATCH):
        return "arithmetic of its own"
    return ""


def _instead(x: object) -> str:
    """How to get at the numbers of an object that means more."""
    kind = type(x)
    ways = [way for _, tells, found in _KINDS if all(hasattr(kind, t) for t in tells)
            for way in found]  # fmt: skip
    for way in ways:
        if hasattr(kind, way.partition("(")[0]):
            return f"x.{way}"
    if hasattr(kind, "to_numpy"):
        return "x.to_numpy()"
    return "numpy.asarray(x), if its numbers alone are meant"


def _device(x: Any) -> str:
    """The name of the device an object's memory is on; empty if that is the CPU."""
    if not hasattr(x, "__dlpack_device__"):
        return "CUDA" if hasattr(x, "__cuda_array_interface__") else ""
    try:
        kind = int(x.__dlpack_device__()[0])
    except (TypeError, ValueError, RuntimeError, BufferError):
        return ""  # on several, or none: its conversion says so
    return "" if kind in _HOST else _DEVICES.get(kind, f"device {kind}")


def check_plain(name: str, x: object, depth: int = 0) -> None:
    """Make sure that an argument means no more than its numbers.

    Raises:
        TypeError: it does, or its memory is not the CPU's.
    """
    kind = type(x)
    if kind is np.ndarray or kind is np.memmap or issubclass(kind, _NUMBERS) or x is None:
        return
    if kind is list or kind is tuple:
        for y in x if depth < DEEPEST else ():  # type: ignore[attr-defined]
            check_plain(name, y, depth + 1)
        return
    if not issubclass(kind, np.ndarray):
        if hasattr(kind, "requires_grad") and x.requires_grad:  # type: ignore[attr-defined]
            _refuse(name, x, "a gradient", "x.detach()")
        device = _device(x)
        if device:
            _refuse(name, x, f"its memory on {device}", "a copy in the CPU's memory")
    what = means_more(x)
    if what:
        _refuse(name, x, what, _instead(x))
