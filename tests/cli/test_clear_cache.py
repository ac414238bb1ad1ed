"""``jitgemm clear-cache``: what it removes, says and returns."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jitgemm
from jitgemm.cli.main import main
from jitgemm.jit import cache
from oracle import run_python


def _key(i: int) -> str:
    return f"{i:040x}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with three objects of 1024 bytes, one file left unfinished, and notes."""
    monkeypatch.setenv("JITGEMM_CACHE_DIR", str(tmp_path))
    header = len(cache._MAGIC) + cache._DIGEST
    for i in range(3):
        cache.store(_key(i), bytes(1024 - header))
    (tmp_path / f"{_key(8)}.abcd1234.tmp").write_bytes(b"")
    os.utime(tmp_path / f"{_key(8)}.abcd1234.tmp", (1, 1))
    (tmp_path / "notes.o").write_text("mine")
    (tmp_path / f"{_key(9)}.o").write_text("mine, by that name")
    return tmp_path


FOREIGN = ["notes.o", f"{_key(9)}.o"]


def _names(folder: Path) -> list[str]:
    return sorted(x.name for x in folder.iterdir())


def test_it_removes_its_own_files_and_says_what(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clear-cache"]) == 0
    said = capsys.readouterr()
    assert said.out == f"removed 4 objects, 3.0 KiB, from {folder}\n"
    assert said.err == ""
    assert _names(folder) == sorted(FOREIGN)
    assert main(["clear-cache"]) == 0
    assert capsys.readouterr().out == f"removed 0 objects, 0 bytes, from {folder}\n"


def test_a_dry_run_removes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = _names(folder)
    assert main(["clear-cache", "--dry-run"]) == 0
    assert capsys.readouterr().out == f"would remove 4 objects, 3.0 KiB, from {folder}\n"
    assert _names(folder) == before


def test_what_products_have_left_is_cleared_and_made_again(tmp_path: Path) -> None:
    code = """
        import numpy as np
        import jitgemm
        from jitgemm.jit import compiler
        a = np.ones((5, 5), np.float32)
        assert (jitgemm.gemm(a, a) == 5).all()
        print(*{u.source for u in compiler.compiled()})
    """
    variables = {"JITGEMM_CACHE_DIR": str(tmp_path)}
    assert run_python(code, **variables).stdout == "compiled\n"
    count = len(list(tmp_path.iterdir()))
    size = sum(x.stat().st_size for x in tmp_path.iterdir()) / 1024
    assert run_python(code, **variables).stdout == "disk cache\n"
    # Also where the cache is switched off, and no code can be generated.
    done = subprocess.run(
        [sys.executable, "-m", "jitgemm", "clear-cache"], capture_output=True, text=True,
        env={**os.environ, **variables, "JITGEMM_CACHE": "off", "JITGEMM_ISA": "none"}, timeout=60,
    )  # fmt: skip
    want = f"removed {count} objects, {size:.1f} KiB, from {tmp_path}\n"
    assert (done.returncode, done.stderr, done.stdout) == (0, "", want)
    assert not list(tmp_path.iterdir())
    assert run_python(code, **variables).stdout == "compiled\n"


def test_a_process_whose_files_are_gone_goes_on(folder: Path) -> None:
    a = np.ones((5, 5), np.float32)
    for activation in ("relu", "sigmoid"):
        jitgemm.gemm(a, a, activation=activation)
        assert main(["clear-cache"]) == 0
        assert (jitgemm.gemm(a, a, activation="relu") == 5).all()


def test_a_folder_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JITGEMM_CACHE_DIR", str(tmp_path / "not" / "there"))
    for options in ([], ["--dry-run"]):
        assert main(["clear-cache", *options]) == 0
        said = capsys.readouterr()
        assert said.out == f"nothing to remove: {tmp_path / 'not' / 'there'} does not exist\n"
        assert said.err == ""
    assert not list(tmp_path.iterdir()), "it was made"


def test_no_home_at_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("JITGEMM_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cache.Path, "home", homeless)
    assert main(["clear-cache"]) == 0
    assert capsys.readouterr().out == "nothing to remove: there is no home for a cache folder\n"


def test_something_else_in_place_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("JITGEMM_CACHE_DIR", str(tmp_path / "file"))
    assert main(["clear-cache"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"jitgemm: cache folder {tmp_path / 'file'} cannot be read (")
    assert (tmp_path / "file").read_text() == "mine"


def _check_refusal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clear-cache"]) == 1
    said = capsys.readouterr()
    assert said.out == f"removed 0 objects, 0 bytes, from {folder}\n"
    why = "4 objects in {} cannot be removed (Permission denied)"
    assert said.err == f"jitgemm: {why.format(folder)}\n"


def test_what_cannot_be_removed_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _names(folder)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache.os, "unlink", refuse)
    _check_refusal(folder, capsys)
    assert _names(folder) == before


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = _names(folder)
    folder.chmod(0o500)
    try:
        _check_refusal(folder, capsys)
    finally:
        folder.chmod(0o700)
    assert _names(folder) == before


def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["clear-cache", "everything"])
    assert caught.value.code == 2
    assert "usage: jitgemm" in capsys.readouterr().err
