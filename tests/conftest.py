"""A cache folder of the session's own, a guard over pinned instruction sets, shared fixtures."""

from __future__ import annotations

import atexit
import faulthandler
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Before jitgemm is imported: nobody's own cache is read or written.  Processes started by tests
# share the folder, as do the workers of a session that runs in parallel.
_OWNER = "JITGEMM_TEST_CACHE"
if os.environ.get(_OWNER) is None:
    _folder = tempfile.mkdtemp(prefix="jitgemm-tests-")
    os.environ[_OWNER] = os.environ["JITGEMM_CACHE_DIR"] = _folder
    _pid = os.getpid()
    # A forked child leaves through os._exit, but must not take the folder along in any case.
    atexit.register(lambda: os.getpid() == _pid and shutil.rmtree(_folder, ignore_errors=True))

import numpy as np  # noqa: E402

import jitgemm  # noqa: E402
from emulation.machines import HINT  # noqa: E402
from jitgemm.runtime import engine as engines  # noqa: E402
from oracle import (  # noqa: E402
    KINDS,
    MACHINE,
    MANY_PIECES,
    NESTED,
    TINY,
    another_machine,
    forget_plans,
    low_tiles,
)
from sessions import APART  # noqa: E402

# Folders whose tests compute through the public functions, on the instruction set in use.
_COMPUTING = {"bits", "correctness", "properties", "contracts"}
_ran: set[str] = set()
_promise = pytest.StashKey[str]()


# -- hangs ----------------------------------------------------------------------------------------

# pytest-timeout raises in the test when its time is up.  No signal is heeded inside native code,
# nor does any Python thread run while that holds the interpreter lock: after as many seconds more,
# a thread of the C library writes the stacks of all threads and ends the process.  Of a parallel
# session that is one worker, which is replaced, and the test has failed.
_GRACE = float(os.environ.get("JITGEMM_TEST_GRACE", "30"))
_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    # The descriptor as it is while nothing is captured.
    config.stash[_stderr] = os.dup(2)


def _limit(item: pytest.Item) -> float:
    """Seconds a test may take; 0: any number."""
    marker, given = item.get_closest_marker("timeout"), item.config.getoption("timeout")
    if marker is not None:
        given = marker.args[0] if marker.args else marker.kwargs["timeout"]
    return float(item.config.getini("timeout") or 0 if given is None else given)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    limit = _limit(item)
    if limit:
        faulthandler.dump_traceback_later(
            limit + _GRACE, exit=True, file=item.config.stash[_stderr]
        )
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


# -- instruction sets -----------------------------------------------------------------------------


def _broken_promise() -> str | None:
    """Why a pinned instruction set was not really tested."""
    promised = os.environ.get("JITGEMM_ISA")
    if not promised or not _ran:
        return None
    built = engines._engine
    used = "none" if built is None else built.isa.name
    return (
        None
        if used == promised.lower()
        else f"JITGEMM_ISA={promised} was promised, {used} was used"
    )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed and "PYTEST_XDIST_WORKER" not in os.environ:
        _ran.update(_COMPUTING & set(Path(report.nodeid.split("::")[0]).parts))


def _sample(items: list[pytest.Item]) -> list[pytest.Item]:
    """Some cases of each test, others for every set and machine."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        name = item.nodeid.split("[")[0] + item.stash.get(APART, "")
        if item.get_closest_marker("everywhere"):
            name = item.nodeid
        cases.setdefault(name, []).append(item)
    kept: list[pytest.Item] = []
    machine = f"{os.environ['JITGEMM_ISA']} {os.environ.get(MACHINE, '')}".strip()
    for name, found in cases.items():
        chance = random.Random(f"{machine} {name}")  # noqa: S311
        kept += chance.sample(found, min(len(found), int(os.environ[NESTED])))
    chosen = set(kept)
    return [item for item in items if item in chosen]


# Emulated ones are started, the others started and waited for, then the emulated ones.
_FIRST = ("test_emulated.py::test_sessions_start", "test_every_isa.py", "test_emulated.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if NESTED in os.environ:
        items[:] = _sample(items)
    # Sessions on other sets and machines take longest.  First of all they are one worker's, which
    # the other workers make up for; last of all they would be waited for.
    items.sort(key=lambda item: next((i for i, x in enumerate(_FIRST) if x in item.nodeid), 9))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if getattr(session.config.option, "numprocesses", None):
        return  # the workers compute, not this process
    broken = _broken_promise()
    if broken is not None:
        session.config.stash[_promise] = broken
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _not_emulated(terminalreporter: Any) -> set[str]:
    """Why emulated machines were skipped, if they were."""
    skipped = terminalreporter.stats.get("skipped", [])
    return {
        str(x.longrepr[-1]).removeprefix("Skipped: ")
        for x in skipped
        if HINT in str(x.longrepr) and "test_emulated.py" in x.nodeid
    }


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for why in _not_emulated(terminalreporter):
        terminalreporter.section("NOT TESTED: AArch64", red=True, bold=True)
        terminalreporter.line(why, red=True)
    broken = config.stash.get(_promise, None)
    if broken is not None:
        terminalreporter.section("promised instruction set", red=True)
        terminalreporter.line(broken)


@pytest.fixture
def knobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Set knobs by name for one test; plans made before are forgotten."""

    def set_knobs(**values: int) -> None:
        for name, value in values.items():
            monkeypatch.setenv(f"JITGEMM_{name.upper()}", str(value))
        forget_plans()

    yield set_knobs
    monkeypatch.undo()
    forget_plans()


@pytest.fixture
def eager_threads(knobs: Callable[..., None]) -> None:
    """Use all the threads a call asks for, however little there is to do."""
    knobs(parallel_flops=1)


# Sessions on other instruction sets leave out the plans whose parts the pieces are.
_PIECES = ["as planned here", "in many pieces"][NESTED in os.environ :]


@pytest.fixture(params=_PIECES)
def pieces(request: pytest.FixtureRequest) -> Iterator[None]:
    """Once as planned here, once in many pieces: tiny caches, low thresholds, threads."""
    if request.param == "as planned here":
        yield
        return
    with another_machine(TINY, **MANY_PIECES), jitgemm.threads(2):
        yield


@pytest.fixture
def low() -> Iterator[None]:
    """Tiles of few rows, where nothing depends on them."""
    with low_tiles():
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20_261_130)


@pytest.fixture
def fused() -> bool:
    """Whether the instruction set in use rounds a multiply-add once."""
    return engines.engine().isa.fused


@pytest.fixture(params=[np.float32, np.float64], ids=["f32", "f64"])
def dtype(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=KINDS, ids=["f32", "f64", "c64", "c128"])
def kind(request: pytest.FixtureRequest) -> Any:
    """Every type a product may have; ``dtype`` is the real ones."""
    return request.param


@pytest.fixture(autouse=True)
def _threads_as_found() -> Iterator[None]:
    before = jitgemm.get_num_threads()
    yield
    assert jitgemm.get_num_threads() == before, "a test changed the number of threads"
