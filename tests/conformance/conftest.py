"""Marks that NumPy's own tests use; its modules cannot be imported without them."""

from __future__ import annotations

import pytest

_MARKS = (
    "iterations", "leaks_references", "parallel_threads", "parallel_threads_limit", "slow",
    "slow_pypy", "thread_unsafe", "valgrind_error",
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    for mark in _MARKS:
        config.addinivalue_line("markers", f"{mark}: a mark of NumPy's test-suite; unused here")
