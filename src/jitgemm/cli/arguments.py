"""Types of command-line arguments; each turns text into a value or says what is wrong with it."""

from __future__ import annotations

from argparse import ArgumentTypeError

__all__ = ["count", "positive", "sizes"]


def count(text: str) -> int:
    """A positive integer."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def positive(text: str) -> float:
    """A positive, finite number."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"expected a positive number, got {text!r}")
    return value


def sizes(text: str) -> tuple[int, ...]:
    """Positive integers separated by commas."""
    return tuple(count(part) for part in text.split(","))
