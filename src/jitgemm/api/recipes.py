"""What a plan was made from, without its operands' memory: enough to plan it anew."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgemm.api.keywords import Options
from jitgemm.api.operands import Array, plain
from jitgemm.errors import message
from jitgemm.runtime.packed import Packed

__all__ = ["Recipe"]

_OUT_IS_C = "c"


@dataclass(frozen=True, slots=True)
class _Like:
    """Shape, strides and type of an array."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype

    @staticmethod
    def of(name: str, x: object) -> _Like:
        array = plain(name, x)
        return _Like(array.shape, array.strides, array.dtype)

    def array(self) -> Array:
        """Such an array, of memory nobody has touched."""
        reach = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        if 0 in self.shape:
            reach = []
        low = sum(min(0, r) for r in reach)
        raw = np.empty(sum(map(abs, reach)) + self.dtype.itemsize, np.uint8)
        return np.ndarray(self.shape, self.dtype, raw, -low, self.strides)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Operands as they are planned for, and the arguments that are bound."""

    a: _Like | Packed
    b: _Like | Packed
    out: _Like | str | None
    options: dict[str, Any]
    """Those that are not the default."""

    @staticmethod
    def of(a: object, b: object, options: Options) -> Recipe:
        """What these arguments of :func:`plan` say."""
        left, right = (
            x if isinstance(x, Packed) else _Like.of(name, x) for name, x in (("a", a), ("b", b))
        )
        given = options.changed()
        out = given.pop("out", None)
        target: _Like | str | None = None if out is None else _Like.of("out", out)
        if out is not None and out is options.c:
            target = _OUT_IS_C
        return Recipe(left, right, target, given)

    def arguments(self) -> tuple[tuple[Any, Any], dict[str, Any]]:
        """Arguments of :func:`plan` that say the same."""
        a, b = (x if isinstance(x, Packed) else x.array() for x in (self.a, self.b))
        out: Any = self.out
        if isinstance(out, _Like):
            out = out.array()
        elif out is not None:
            out = self.options[_OUT_IS_C]
        return (a, b), {"out": out, **self.options}

    def check(self) -> None:
        """Make sure it can be pickled.

        Raises:
            TypeError: the epilogue cannot be.
        """
        epilogue = self.options.get("epilogue")
        if epilogue is None:
            return
        try:
            pickle.dumps(epilogue)
        except (pickle.PicklingError, AttributeError, TypeError) as e:
            expected = "a function that can be pickled, as those at the top of a module"
            raise TypeError(message("epilogue", expected, repr(epilogue))) from e
