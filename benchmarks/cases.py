"""One product to be measured, and its operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Call = Callable[[], object]
Shape = tuple[int, int, int]  # m, k, n

# Types of A, of B and of what jitgemm returns, where they are not NumPy's names of one type.
_TYPES = {
    "s8": ("int8", "int8", "int32"),
    "u8": ("uint8", "int8", "int32"),
    "bf16": ("bfloat16",) * 3,
}


@dataclass(frozen=True)
class Case:
    """One product: element types, shape, and whether B may be prepacked.

    ``dtype`` is one of NumPy's ``f2 f4 f8 c8 c16``; ``bf16``; ``s8`` (int8 @ int8) or ``u8``
    (uint8 @ int8), of which the result is int32.
    """

    dtype: str
    shape: Shape
    prepacked: bool = False
    relu: bool = False

    @property
    def complex(self) -> bool:
        return self.dtype.startswith("c")

    @property
    def integral(self) -> bool:
        return self.dtype in ("s8", "u8")

    @property
    def narrow(self) -> bool:
        """Whether elements are narrower than the sums of their products."""
        return self.dtype in ("s8", "u8", "bf16", "f2")

    @property
    def operations(self) -> int:
        """Arithmetic operations; a complex product is four real ones."""
        m, k, n = self.shape
        return 2 * m * k * n * (4 if self.complex else 1)

    def __str__(self) -> str:
        return "x".join(map(str, self.shape))


def operands(case: Case) -> tuple[Any, Any, Any, Any]:
    """A, B, space for the result, and a bias."""
    import ml_dtypes
    import numpy as np

    m, k, n = case.shape
    rng = np.random.default_rng(1)
    names = _TYPES.get(case.dtype, (case.dtype,) * 3)
    ta, tb, tc = (np.dtype(ml_dtypes.bfloat16 if t == "bfloat16" else t) for t in names)

    def fill(dtype: Any, *shape: int) -> Any:
        if case.integral:
            info = np.iinfo(dtype)
            return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        x = rng.random(shape) - 0.5
        return (x + 1j * (rng.random(shape) - 0.5) if case.complex else x).astype(dtype)

    a, b = fill(ta, m, k), fill(tb, k, n)
    return a, b, np.empty((m, n), tc), np.linspace(-1, 1, n).astype(tc)
