"""Optional packages: used if they are there, named with what to install if they are needed."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["MissingExtraError", "optional", "require"]


class MissingExtraError(Exception):
    """A command needs a package that is not installed; the text says what to install."""


def optional(module: str) -> Any:
    """The module, or ``None`` if it cannot be imported."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def require(module: str, *, package: str, extra: str) -> Any:
    """The module.

    Raises:
        MissingExtraError: it cannot be imported; ``package`` is what it belongs to.
    """
    found = optional(module)
    if found is None:
        raise MissingExtraError(
            f"jitgemm {extra}: {package} is not installed: pip install 'jitgemm[{extra}]'"
        )
    return found
