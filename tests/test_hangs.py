"""A hang fails its test and nothing else, with the stacks of all threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oracle import NESTED, ROOT

pytestmark = [
    pytest.mark.skipif(NESTED in os.environ, reason="the same on every set"),
    pytest.mark.skipif(os.name != "posix", reason="signals"),
    pytest.mark.timeout(200),
]

_TESTS = """
    import ctypes
    import threading

    import pytest

    def test_before():
        pass

    @pytest.mark.timeout(2)
    def test_hang():
        where_it_hangs()

    def where_it_hangs():
        {how}

    def test_after():
        pass
"""
_HOW = {
    "Python": "threading.Event().wait()",
    # Taken twice, and the interpreter lock is held: nothing in Python runs any more.
    "native": "lock = ctypes.PyDLL(None).pthread_mutex_lock; b = bytes(256); lock(b); lock(b)",
}


def _session(folder: Path, how: str, *arguments: str) -> tuple[int, str]:
    source = "\n".join(x[4:] for x in _TESTS.format(how=_HOW[how]).splitlines())
    (folder / "test_it.py").write_text(source)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
    environment |= {
        "PYTHONPATH": os.pathsep.join((f"{ROOT}/tests", environment.get("PYTHONPATH", ""))),
        "JITGEMM_TEST_GRACE": "2",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider",
         "-c", f"{ROOT}/pyproject.toml", "--rootdir", folder, *arguments, folder],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, timeout=150,
        cwd=folder,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_a_hang_in_python_fails_its_test(tmp_path: Path) -> None:
    status, output = _session(tmp_path, "Python")
    assert status == pytest.ExitCode.TESTS_FAILED, output
    assert "1 failed, 2 passed" in output
    assert "where_it_hangs" in output


def test_a_hang_in_native_code_fails_its_test_in_a_parallel_session(tmp_path: Path) -> None:
    status, output = _session(tmp_path, "native", "-n", "1")
    assert status == pytest.ExitCode.TESTS_FAILED, output
    assert "1 failed, 2 passed" in output
    assert "test_hang" in output.split("FAILED")[-1]
    assert "in where_it_hangs" in output
