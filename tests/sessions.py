"""Sessions of pytest inside a session, on another instruction set or another machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from oracle import NESTED, ROOT

__all__ = ["APART", "DEPENDENT", "SAME", "TURN", "end", "passes", "start"]

APART = pytest.StashKey[str]()
"""Of a case that is not sampled together with all others of its test: with which."""
TURN = "JITGEMM_TEST_TURN"
"""Set in sessions that share tests among them: ``0/3`` for the first of three."""

# What compiles and computes through the public functions on the set in use.  Processes, threads,
# errors and the planner are the same on all of them; conformance covers all of them by itself.
DEPENDENT = (
    "tests/bits", "tests/contracts/test_values.py", "tests/contracts/test_memory.py",
    "tests/correctness", "tests/properties",
)  # fmt: skip
# A BLAS is the same on all of them, and so is what decides about types.
SAME = [
    f"--ignore=tests/correctness/{name}"
    for name in ("test_blas.py", "test_type_matrix.py", "test_onnx.py")
]


def start(
    isa: str, *arguments: str, cases: int = 16, python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:  # fmt: skip
    """A session on a pinned set, which runs at most so many cases of each test."""
    return subprocess.Popen(
        [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        # A session of its own, even where this one is a worker of several.
        env={**{k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")},
             "JITGEMM_ISA": isa, NESTED: str(cases), **(environment or {})},
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """What became of a session."""
    try:
        output, _ = process.communicate(timeout=3000)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, output, "")


def passes(done: subprocess.CompletedProcess[str]) -> None:
    """Fail unless a session did what it was started for."""
    if done.returncode:
        pytest.fail(f"{done.stdout}\n{done.stderr}", pytrace=False)
    assert " passed" in done.stdout
