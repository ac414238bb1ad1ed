"""Every instruction set this machine has is tested by a plain ``pytest``.

A process uses one set, the best.  For each of the others the tests that depend on it run in a
process of their own with the set pinned.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jitgemm.isa.tables import BY_NAME, Isa
from jitgemm.jit.target import available, choose_isa
from oracle import NESTED, ROOT
from rows import floats_of
from sessions import DEPENDENT, SAME, end, passes, start

pytestmark = [
    pytest.mark.skipif(NESTED in os.environ, reason="already inside such a process"),
    # A session of its own each.
    pytest.mark.timeout(3600),
]

# What depends on how integers are folded: all that sets which are otherwise alike differ in.
TYPED = ("test_integers.py",)


def _typed() -> list[str]:
    found = [p for p in (Path(ROOT) / "tests").glob("*/*.py") if p.name in TYPED]
    return sorted(str(p.relative_to(ROOT)) for p in found)


def _like(isa: Isa, used: Isa) -> bool:
    """Whether two sets make the same code of floats and fold integers alike."""
    alike = isa.integers == used.integers and isa.unit == used.unit
    return floats_of(isa) == floats_of(used) and alike


def _others() -> dict[str, tuple[str, ...]]:
    """The other sets of this machine, and what is tested on each.

    Of sets that make the same code of floats one is enough for them: the one in use, else the last.
    """
    sets = [i for i in BY_NAME.values() if available(i) and not i.interpreted]
    used, seen, found = choose_isa(), {floats_of(choose_isa())}, {}
    for isa in reversed(sets):
        code = floats_of(isa)
        if isa != used and not _like(isa, used):
            found[isa.name] = tuple(_typed()) if code in seen else DEPENDENT
        seen.add(code)
    return {name: paths for name, paths in found.items() if paths}


def _session(isa: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return end(start(isa, *arguments))


@pytest.fixture(scope="module")
def sessions() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """One per other set, all at once: each is one busy processor."""
    started = {isa: start(isa, *paths, *SAME) for isa, paths in _others().items()}
    yield started
    for process in started.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize("isa", _others())
def test_on(isa: str, sessions: dict[str, subprocess.Popen[str]]) -> None:
    passes(end(sessions[isa]))


def test_every_set_has_its_turn() -> None:
    """Each set runs what is typed; each code of floats runs everything."""
    others = _others()
    if _typed():
        compiled = [i for i in BY_NAME.values() if available(i) and not i.interpreted]
        wanted = {i.name for i in compiled if not _like(i, choose_isa())}
        assert others.keys() == wanted
    whole = {name for name, paths in others.items() if paths == DEPENDENT} | {choose_isa().name}
    here = [i for i in BY_NAME.values() if available(i) and not i.interpreted]
    assert {floats_of(BY_NAME[name]) for name in whole} == set(map(floats_of, here))


def test_on_the_interpreter() -> None:
    passes(_session("interpreter", "tests/correctness/test_interpreted.py"))


def test_a_set_that_was_promised_but_not_used_fails_the_session() -> None:
    # A test of a computing folder that computes nothing: nothing shows that the set works.
    done = _session(choose_isa().name, "tests/contracts/test_processes.py", "-k", "c21_the_folder")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 passed" in done.stdout
    assert f"JITGEMM_ISA={choose_isa().name} was promised, none was used" in done.stdout


def test_an_unknown_set_fails_the_session() -> None:
    done = _session("sse9", "tests/correctness/test_interpreted.py")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "JITGEMM_ISA" in done.stdout
