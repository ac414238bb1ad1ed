"""The keyword arguments of products, declared once.

They are those of :func:`gemm`, :func:`plan` and :func:`gemm_batched`; what they mean is said at
:func:`jitgemm.gemm`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from numpy.typing import DTypeLike

from jitgemm.api.quantise import Requantize
from jitgemm.errors import message
from jitgemm.runtime.memory import Workspace

__all__ = ["Common", "GemmKeywords", "ListKeywords", "Options", "defaults"]


class Common(TypedDict, total=False):
    """Keyword arguments of one product or many."""

    alpha: object
    beta: object
    activation: object
    epilogue: Callable[[Any, Any, Any], Any] | None
    post_ops: Sequence[object] | None
    a_scale: object
    b_scale: object
    conj_a: bool
    conj_b: bool
    threads: int | None
    workspace: Workspace | None
    reproducible: str
    backend: str
    a_zero_point: object
    b_zero_point: object
    requantize: Requantize | None
    out_dtype: DTypeLike | None
    allow_bf16_dot: bool


class GemmKeywords(Common, total=False):
    """Those of one product."""

    out: Any
    c: object
    bias: object


class ListKeywords(Common, total=False):
    """Those of a list of products: an entry for each."""

    out: Sequence[Any] | None
    c: Sequence[Any] | None
    bias: Sequence[Any] | None


@dataclass(slots=True, eq=False)
class Options:
    """Arguments of a product besides its operands A and B, as given."""

    out: Any = None
    c: Any = None
    bias: Any = None
    alpha: Any = 1
    beta: Any = 0
    activation: Any = None
    epilogue: Any = None
    post_ops: Any = None
    a_scale: Any = None
    b_scale: Any = None
    conj_a: Any = False
    conj_b: Any = False
    threads: Any = None
    workspace: Any = None
    reproducible: Any = "default"
    backend: Any = "jit"
    a_zero_point: Any = None
    b_zero_point: Any = None
    requantize: Any = None
    out_dtype: Any = None
    allow_bf16_dot: Any = False

    @staticmethod
    def of(function: str, keywords: Any) -> Options:
        """The options that some keyword arguments of a function say.

        Raises:
            TypeError: there is no such argument.
        """
        unknown = [x for x in keywords if x not in _NAMES]
        if unknown:
            raise TypeError(message(unknown[0], f"no such argument of {function}", "one"))
        return Options(**keywords)

    @property
    def plain(self) -> bool:
        """Whether they ask for nothing but the product."""
        return all(
            type(value) is type(usual) and value == usual
            for name, usual in _DEFAULTS.items()
            if name not in ("out", "threads")
            for value in (getattr(self, name),)
        )

    def changed(self) -> dict[str, Any]:
        """Those that are not the default, which is meant by identity."""
        values = {name: getattr(self, name) for name in _NAMES}
        return {name: x for name, x in values.items() if x is not _DEFAULTS[name]}


def defaults() -> dict[str, Any]:
    """The usual value of every keyword argument."""
    return dict(_DEFAULTS)


_DEFAULTS: dict[str, Any] = {x.name: x.default for x in fields(Options)}
_NAMES = tuple(_DEFAULTS)
