"""What environment variables do to a process: sentences 19 and 21.

``unit/test_tuning.py`` has every spelling; here are the processes they are set for.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import jitgemm
from jitgemm.cli.main import main
from jitgemm.errors import JitGemmWarning
from jitgemm.jit import cache
from jitgemm.planner.machine import usable_cpus
from oracle import NESTED, run_python

pytestmark = pytest.mark.skipif(NESTED in os.environ, reason="the same on all instruction sets")

USABLE = usable_cpus()

# -- 19: how many threads -------------------------------------------------------------------------

# What a process plans with, and who decided.  Nothing runs: the machine may have fewer processors.
_PLANNED = """
import json, os, warnings
import numpy as np
import jitgemm

def planned():
    a = np.ones((512, 512), np.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        count, executable = jitgemm.get_num_threads(), jitgemm.plan(a, a).executable
    config = jitgemm.show_config()
    threads = executable.plan.threads if executable else None
    return [count, threads, config["threads"], config["threads_source"],
            [str(w.message) for w in caught]]
"""


def _planned(**variables: str | None) -> tuple[int, str]:
    unset = dict.fromkeys(("JITGEMM_NUM_THREADS", "OMP_NUM_THREADS", "OMP_THREAD_LIMIT"))
    code = _PLANNED + "print(json.dumps(planned()))"
    found = json.loads(run_python(code, **{**unset, **variables}).stdout)
    count, threads, config, source, messages = found
    assert threads in (count, None)  # None: this machine generates no code
    assert (config, messages) == (count, [])
    return count, source


@pytest.mark.parametrize(
    "variables, want",
    [
        ({}, (USABLE, "usable processors")),
        ({"OMP_NUM_THREADS": "1"}, (1, "OMP_NUM_THREADS")),
        ({"OMP_NUM_THREADS": "1,8"}, (1, "OMP_NUM_THREADS")),
        ({"OMP_NUM_THREADS": "9999"}, (USABLE, "usable processors")),
        ({"OMP_NUM_THREADS": "many"}, (USABLE, "usable processors")),
        ({"OMP_THREAD_LIMIT": "1"}, (1, "OMP_THREAD_LIMIT")),
        ({"OMP_THREAD_LIMIT": "1", "OMP_NUM_THREADS": "9999"}, (1, "OMP_THREAD_LIMIT")),
        ({"JITGEMM_NUM_THREADS": "1", "OMP_NUM_THREADS": "9999"}, (1, "JITGEMM_NUM_THREADS")),
        ({"JITGEMM_NUM_THREADS": "999", "OMP_NUM_THREADS": "1"}, (USABLE, "usable processors")),
    ],
)
def test_c19_openmps_number_counts_where_there_is_none_of_ones_own(
    variables: dict[str, str], want: tuple[int, str]
) -> None:
    if USABLE == 1 and want[0] == 1:
        want = (1, "usable processors")  # nothing to lower
    assert _planned(**variables) == want


def test_c19_the_environment_is_read_at_the_first_use() -> None:
    code = _PLANNED + """
os.environ["OMP_NUM_THREADS"] = "1"
first = planned()[0]
os.environ["OMP_NUM_THREADS"] = "9999"
assert [first, planned()[0]] == [1, 1]
"""  # fmt: skip
    run_python(code, JITGEMM_NUM_THREADS=None, OMP_THREAD_LIMIT=None, OMP_NUM_THREADS=None)


def test_c19_what_decides_about_the_number_of_threads(capsys: pytest.CaptureFixture[str]) -> None:
    with jitgemm.threads(3):
        assert jitgemm.show_config()["threads_source"] == "threads()"
        assert main(["info"]) == 0
    assert "threads()" in capsys.readouterr().out
    before = jitgemm.get_num_threads()
    code = "import jitgemm; jitgemm.set_num_threads({}); print(jitgemm.show_config())"
    assert "'threads_source': 'set_num_threads()'" in run_python(code.format(before)).stdout


@pytest.mark.parametrize("inner", [None, 1])
def test_c19_workers_of_joblib_use_the_number_loky_sets(inner: int | None, tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    (tmp_path / "work.py").write_text(
        _PLANNED + "\n\ndef work(_):\n    return os.environ['OMP_NUM_THREADS'], planned()\n"
    )
    code = f"""
        import json, sys
        sys.path.insert(0, sys.argv[1])
        import joblib, work
        with joblib.parallel_config("loky", inner_max_num_threads={inner}):
            print(json.dumps(joblib.Parallel(n_jobs=2)(
                joblib.delayed(work.work)(i) for i in range(4))))
    """
    unset = dict.fromkeys(("JITGEMM_NUM_THREADS", "OMP_NUM_THREADS", "OMP_THREAD_LIMIT"))
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    found = json.loads(run_python(code, str(tmp_path), **{**unset, "PYTHONPATH": paths}).stdout)
    assert len(found) == 4
    for said, (count, threads, _, _, messages) in found:
        assert inner is None or said == str(inner)
        assert count == min(int(said), USABLE)
        assert threads in (count, None)
        assert not messages


# -- 21: the disk cache ---------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["0", "off", "OFF", " No ", "False"])
def test_c21_the_cache_is_off(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITGEMM_CACHE_DIR", str(tmp_path / "deep"))
    monkeypatch.setenv("JITGEMM_CACHE", word)
    cache.store("key", b"body")
    assert cache.directory() is None
    assert cache.load("key") is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("word", ["1", "on", "Yes", " TRUE", "", " "])
def test_c21_the_cache_is_on(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITGEMM_CACHE_DIR", str(tmp_path / "deep"))
    monkeypatch.setenv("JITGEMM_CACHE", word)
    cache.store("key", b"body")
    assert cache.load("key") == b"body"
    assert cache.directory() == tmp_path / "deep"


def test_c21_another_word_leaves_the_cache_on_and_warns_once(tmp_path: Path) -> None:
    code = """
        import sys, warnings
        from jitgemm.jit import cache
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                cache.store("key", b"body")
                assert cache.load("key") == b"body"
        (warning,) = caught
        print(warning.message)
    """
    done = run_python(code, JITGEMM_CACHE="never", JITGEMM_CACHE_DIR=str(tmp_path))
    assert done.stdout == (
        "jitgemm: JITGEMM_CACHE: expected one of on, yes, true, 1, off, no, false, 0, "
        "got 'never'; ignored, on is used\n"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="HOME")
@pytest.mark.parametrize("named", ["~/of/mine", "$HOME/of/mine", "${HOME}/of/mine"])
def test_c21_the_folder_may_be_named_from_home(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JITGEMM_CACHE_DIR", named)
    monkeypatch.chdir(tmp_path)
    cache.store("key", b"body")
    assert cache.directory() == tmp_path / "of/mine"
    assert [x.name for x in tmp_path.iterdir()] == ["of"]


@pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME")
@pytest.mark.parametrize("base", ["", "here", "./here", "../here"])
def test_c21_a_relative_cache_home_is_ignored_as_its_specification_says(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JITGEMM_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", base)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert cache.directory() == tmp_path / "home/.cache/jitgemm"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.directory() == tmp_path / "xdg/jitgemm"


def test_c21_a_named_folder_that_cannot_be_used_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    for named in (tmp_path / "file", tmp_path / "file/deeper"):
        monkeypatch.setenv("JITGEMM_CACHE_DIR", str(named))
        words = r"^jitgemm: cache folder .* cannot be used \(.+\); machine code is not kept$"
        with pytest.warns(JitGemmWarning, match=words):
            assert cache.directory() is None
    code = "import numpy, jitgemm; x = numpy.ones((3, 3)); assert (jitgemm.gemm(x, x) == 3).all()"
    run_python(code, JITGEMM_CACHE_DIR=str(tmp_path / "file"))
    # No variable named it: no home is no fault of anybody.
    monkeypatch.delenv("JITGEMM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cache.directory() is None
