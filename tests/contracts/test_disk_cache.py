"""The folder of the disk cache: what of it is removed, and by whom (sentence 21).

``test_processes.py`` has what is stored in it and how it is found again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jitgemm import JitGemmWarning, tuning
from jitgemm.jit import cache
from oracle import NESTED, run_python

pytestmark = pytest.mark.skipif(NESTED in os.environ, reason="the same on all instruction sets")

BODY = b"x" * 1000
SIZE = len(cache._MAGIC) + cache._DIGEST + len(BODY)
DAY_S = 86_400


def key(i: int) -> str:
    """The name of an object."""
    return f"{i:040x}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder for ten objects."""
    monkeypatch.setenv("JITGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("JITGEMM_CACHE_BYTES", str(10 * SIZE))
    cache.limit.cache_clear()
    yield tmp_path
    cache.limit.cache_clear()


def aged(folder: Path, i: int, seconds: float) -> None:
    """Store an object that was used so long ago."""
    cache.store(key(i), BODY)
    then = time.time() - seconds
    os.utime(folder / f"{key(i)}.o", (then, then))


def numbers(folder: Path) -> list[int]:
    """The objects that are there."""
    return sorted(int(x.stem, 16) for x in folder.glob("*.o"))


def test_c21_the_folder_is_bounded_and_forgets_what_was_used_least_recently(folder: Path) -> None:
    for i in range(10):
        aged(folder, i, (10 - i) * DAY_S)
    assert numbers(folder) == list(range(10))
    # Used: no longer the first to go.
    for i in (0, 3):
        assert cache.load(key(i)) == BODY
    for i in range(10, 14):
        cache.store(key(i), BODY)
    assert numbers(folder) == [0, 3, *range(6, 14)]
    assert sum(x.stat().st_size for x in folder.iterdir()) == 10 * SIZE
    # A large one takes the place of several.
    cache.store(key(99), BODY * 4)
    assert sum(x.stat().st_size for x in folder.iterdir()) <= 10 * SIZE
    assert cache.load(key(99)) == BODY * 4
    assert cache.load(key(0)) == BODY
    assert cache.load(key(6)) is None


@pytest.mark.parametrize("bound, left", [("0", []), ("1", []), (str(SIZE), [7])])
def test_c21_a_small_bound(
    folder: Path, bound: str, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITGEMM_CACHE_BYTES", bound)
    cache.limit.cache_clear()
    for i in range(8):
        cache.store(key(i), BODY)
        for x in folder.iterdir():
            os.utime(x, (1, 1))
    assert numbers(folder) == left


def test_c21_loading_records_its_time_to_the_hour(folder: Path) -> None:
    for age, renewed in ((30, False), (3000, False), (4000, True), (30 * DAY_S, True)):
        aged(folder, 1, age)
        before = (folder / f"{key(1)}.o").stat().st_mtime
        assert cache.load(key(1)) == BODY
        after = (folder / f"{key(1)}.o").stat().st_mtime
        assert (after > before + 1) == renewed
        if renewed:
            assert time.time() - after < 60


def test_c21_what_is_damaged_is_not_used(folder: Path) -> None:
    aged(folder, 1, DAY_S)
    file = folder / f"{key(1)}.o"
    file.write_bytes(file.read_bytes()[:-1])
    os.utime(file, (1, 1))
    with pytest.warns(JitGemmWarning, match="damaged"):
        assert cache.load(key(1)) is None
    assert file.stat().st_mtime == 1


def foreign(folder: Path) -> dict[str, Any]:
    """Fill a folder with what is not this package's, all of it old; what must still be there."""
    (folder / "notes.txt").write_text("mine")
    (folder / "module.o").write_bytes(cache._MAGIC + b"y" * 5000)
    (folder / f"{key(50)}.o").write_bytes(b"\x7fELF" + b"z" * 5000)
    (folder / f"{key(51)}.o").write_bytes(b"")
    (folder / f"{key(52)}.o.bak").write_bytes(cache._MAGIC)
    (folder / f"{key(53)}.tmp").write_bytes(b"")
    (folder / f"{key(54)}.abc.tmp").write_bytes(b"foreign")
    (folder / f"{key(0xABC)[:-3]}ABC.o").write_bytes(cache._MAGIC)  # capitals
    for path in list(folder.iterdir()):
        os.utime(path, (1, 1))
    (folder / f"{key(55)}.o").mkdir()
    target = folder / "target"
    target.write_bytes(cache._MAGIC + b"t" * 5000)
    (folder / f"{key(56)}.o").symlink_to(target)
    os.utime(target, (1, 1))
    return {x.name: x.read_bytes() if x.is_file() else None for x in folder.iterdir()}


def test_c21_only_files_of_its_own_are_removed(folder: Path) -> None:
    there = foreign(folder)
    for i in range(30):
        aged(folder, i, 100 - i)
    assert {x: v for x, v in foreign_now(folder).items() if x in there} == there
    # Others' files of such names count, so fewer of its own stay; never none.
    assert 3 <= len([i for i in numbers_of_objects(folder) if i < 30]) <= 10
    assert cache.load(key(29)) == BODY


def foreign_now(folder: Path) -> dict[str, Any]:
    return {x.name: x.read_bytes() if x.is_file() else None for x in folder.iterdir()}


def numbers_of_objects(folder: Path) -> list[int]:
    return [int(x.path.stem, 16) for x in cache.stored(folder) if x.finished]


def test_c21_unfinished_files_are_removed_when_nobody_can_be_writing_them(folder: Path) -> None:
    names = [f"{key(i)}.a1b_2c3d.tmp" for i in range(4)]
    for name in names:
        (folder / name).write_bytes(cache._MAGIC + b"part")
    (folder / names[3]).write_bytes(b"")
    for name in names[1::2]:
        os.utime(folder / name, (time.time() - 2 * 3600,) * 2)
    cache.store(key(9), BODY)
    assert sorted(x.name for x in folder.glob("*.tmp")) == names[::2]


def test_c21_what_a_dying_process_leaves_is_known_as_unfinished(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cache.os, "replace", dies)
        patch.setattr(cache.os, "unlink", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            cache.store(key(1), BODY)
    (left,) = folder.iterdir()
    os.utime(left, (1, 1))
    assert [x.finished for x in cache.stored(folder)] == [False]
    cache.store(key(2), BODY)
    assert numbers(folder) == [2]
    assert len(list(folder.iterdir())) == 1


def test_c21_a_folder_that_cannot_be_written_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(3):
        aged(folder, i, DAY_S)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    for name in ("utime", "unlink", "replace", "open"):
        monkeypatch.setattr(cache.os, name, refuse)
    monkeypatch.setattr(cache, "limit", lambda: 0)
    assert cache.load(key(1)) == BODY
    cache.store(key(7), BODY)
    monkeypatch.undo()
    assert numbers(folder) == [0, 1, 2]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_c21_a_read_only_folder_is_read(folder: Path) -> None:
    for i in range(12):
        aged(folder, i, DAY_S)
    there = numbers(folder)
    folder.chmod(0o500)
    try:
        assert cache.load(key(there[0])) == BODY
        cache.store(key(77), BODY)
    finally:
        folder.chmod(0o700)
    assert numbers(folder) == there


def test_c21_processes_at_once_load_store_and_remove(folder: Path) -> None:
    code = """
import sys, warnings
from jitgemm.jit import cache

warnings.simplefilter("error")
mine, found = int(sys.argv[1]), 0
for turn in range(300):
    i = (turn * 7 + mine) % 25
    body = cache.load(f"{i:040x}")
    if body is None:
        cache.store(f"{i:040x}", bytes([i]) * 1000)
    else:
        assert body == bytes([i]) * 1000
        found += 1
print(found)
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(i)], stdout=-1, stderr=-1, text=True)
        for i in range(4)
    ]
    for process in processes:
        out, err = process.communicate(timeout=100)
        assert (process.returncode, err) == (0, ""), err
        assert int(out) > 0
    assert 1 <= len(numbers(folder)) <= 10 + len(processes)
    assert not list(folder.glob("*.tmp"))


def test_c21_a_bad_bound_warns_once(tmp_path: Path) -> None:
    code = """
        import warnings
        import numpy as np
        import jitgemm

        a = np.ones((5, 5), np.float32)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for activation in ("relu", None):
                jitgemm.gemm(a, a, activation=activation)
        print(*(w.message for w in caught), sep="\\n")
    """
    for name in ("cache_bytes", "code_units", "code_bytes"):
        knob = tuning.KNOBS[name]
        variables = {knob.variable: "many"}
        if name == "cache_bytes":  # needed when something is stored
            variables["JITGEMM_CACHE_DIR"] = str(tmp_path)
        said = run_python(code, **variables).stdout.splitlines()
        assert len(said) == 1, said
        assert said[0].startswith(f"jitgemm: {knob.variable}: expected an integer"), said
        assert said[0].endswith(f"{knob.default} is used"), said
