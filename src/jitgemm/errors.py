"""Exceptions and the one place that words an error message.

The contract: ``ValueError`` for shapes and values, ``TypeError`` for types, ``MemoryError`` for
sizes, ``RuntimeError`` for an instruction set the machine lacks.  Every message starts with
``jitgemm:`` and names the operand, what was expected and what came.
"""

from __future__ import annotations

import inspect
import warnings

__all__ = ["IsaError", "JitGemmWarning", "JitUnavailableError", "LanguageError", "message", "warn"]


class JitGemmWarning(UserWarning):
    """Something was ignored or rebuilt; the results are right all the same."""


class IsaError(RuntimeError):
    """An instruction set was asked for that this machine, or this build of LLVM, does not have."""


class JitUnavailableError(RuntimeError):
    """No machine code can be generated in this process; products go through a BLAS instead.

    Raised to users only where a process gives up the right to after its first product.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"jitgemm: no code can be generated: {reason}")
        self.reason = reason

    def __reduce__(self) -> tuple[type[JitUnavailableError], tuple[str]]:
        return JitUnavailableError, (self.reason,)


class LanguageError(Exception):
    """A kernel broke a rule of the kernel language, or touched memory outside its operands.

    The package's own kernels never do: it is raised to who writes some.
    """


def message(operand: str, expected: str, got: object) -> str:
    """Word an error about ``operand``: what was expected and what came."""
    return f"jitgemm: {operand}: expected {expected}, got {got}"


def warn(text: str) -> None:
    """Warn the caller of the package, however deep inside it this is."""
    package, level, frame = __name__.split(".", 1)[0], 1, inspect.currentframe()
    while frame and frame.f_globals.get("__name__", "").split(".", 1)[0] == package:
        frame, level = frame.f_back, level + 1
    warnings.warn(f"jitgemm: {text}", JitGemmWarning, stacklevel=level)
