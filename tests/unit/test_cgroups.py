"""Quotas of nested control groups: the least of all levels, from the root to the process's own."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from jitgemm.planner.machine import usable_cpus

LEVELS = ("", "user.slice", "user.slice/app.slice", "user.slice/app.slice/job.scope")


@pytest.fixture(autouse=True)
def _sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16), raising=False)


def _groups(root: Path, own: str) -> Path:
    (root / LEVELS[-1]).mkdir(parents=True, exist_ok=True)
    listing = root / "listing"
    listing.write_text(f"12:cpu:/elsewhere\n0::/{own}\n")
    return listing


def _quota(group: Path, cpus: int, old: bool) -> None:  # noqa: FBT001
    if not old:
        (group / "cpu.max").write_text(f"{cpus * 100000} 100000\n")
        return
    (group / "cpu").mkdir(exist_ok=True)
    (group / "cpu" / "cpu.cfs_quota_us").write_text(f"{cpus * 100000}\n")
    (group / "cpu" / "cpu.cfs_period_us").write_text("100000\n")


@pytest.mark.parametrize("old", [False, True], ids=["v2", "v1"])
@pytest.mark.parametrize("own", LEVELS)
@pytest.mark.parametrize("limited", LEVELS)
def test_one_limited_group(limited: str, own: str, old: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """The root's too.  A group below the process's own, or beside it, is not its limit."""
    listing = _groups(tmp_path, own)
    _quota(tmp_path / limited, 3, old)
    beside = tmp_path / "system.slice"
    beside.mkdir()
    _quota(beside, 1, old)
    assert usable_cpus(tmp_path, listing) == (3 if own.startswith(limited) else 16)


@pytest.mark.parametrize("quotas", list(itertools.permutations((2, 5, 7, 9))))
def test_the_least_of_all_levels(quotas: tuple[int, ...], tmp_path: Path) -> None:
    listing = _groups(tmp_path, LEVELS[-1])
    for level, cpus in zip(LEVELS, quotas, strict=True):
        _quota(tmp_path / level, cpus, old=False)
    assert usable_cpus(tmp_path, listing) == 2


@pytest.mark.parametrize("without", LEVELS)
def test_levels_without_a_limit_are_passed_over(without: str, tmp_path: Path) -> None:
    listing = _groups(tmp_path, LEVELS[-1])
    for level in LEVELS:
        if level != without:
            _quota(tmp_path / level, 4 if level == "" else 6, old=False)
    (tmp_path / without / "cpu.max").write_text("max 100000\n")
    assert usable_cpus(tmp_path, listing) == (6 if without == "" else 4)


@pytest.mark.parametrize("text", ["", "0::\n", "0::/\n", "3:cpu,cpuacct:/job\n"])
def test_the_root_where_no_group_is_named(text: str, tmp_path: Path) -> None:
    listing = tmp_path / "listing"
    listing.write_text(text)
    _quota(tmp_path, 5, old=False)
    assert usable_cpus(tmp_path, listing) == 5
    assert usable_cpus(tmp_path, tmp_path / "nowhere") == 5
