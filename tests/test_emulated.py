"""AArch64 is tested on x86-64: in an emulated Python, one session per machine.

Compiling is what takes long where LLVM is emulated too; that is done outside
(`emulation/compiling.py`).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from emulation.compiling import SOCKET, Service
from emulation.machines import MACHINES, Machine, chosen, everything, missing, python
from jitgemm.isa.tables import BY_NAME
from oracle import MACHINE, NESTED, ROOT
from sessions import DEPENDENT, SAME, TURN, end, passes, start

pytestmark = [
    pytest.mark.skipif(NESTED in os.environ, reason="already inside such a process"),
    pytest.mark.timeout(3600),
]

Done = subprocess.CompletedProcess[str]

# Conformance of what vectors and kernels do; the rest of it is about NumPy.
_CONFORMANCE = sorted(
    str(p.relative_to(ROOT))
    for p in Path(ROOT, "tests", "conformance").glob("test_*.py")
    if "numpy" not in p.name and p.name not in ("test_units.py", "test_vector_sets.py")
)
MODES = "tests/contracts/test_modes.py"
# Each machine runs one case of every eighth test; of every sixteenth where some are enough.
_TURNS_OF_ALL = 8
TURNS = _TURNS_OF_ALL if everything() else 16
_each = pytest.mark.parametrize("machine", [pytest.param(m, id=m.name) for m in chosen()])


@pytest.fixture(scope="session")
def emulated() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a session on a machine."""
    why = missing()
    if why is not None:
        pytest.skip(why)
    with Service() as socket:

        def session(machine: Machine, *arguments: str, turn: str = "0/1") -> subprocess.Popen[str]:
            path = os.pathsep.join(f"{ROOT}/{x}" for x in ("src", "tests", "tests/emulation"))
            environment = {MACHINE: machine.cpu, SOCKET: socket, TURN: turn, "PYTHONPATH": path}
            arguments = ("-p", "remote", *arguments)
            return start(machine.isa, *arguments, cases=1, python=python(), environment=environment)

        yield session


@pytest.fixture(scope="session")
def sessions(emulated: Callable[..., subprocess.Popen[str]]) -> Iterator[dict[str, Future[Done]]]:
    """One per machine, as many at a time as there are processors."""

    def run(machine: Machine) -> Done:
        turn = f"{MACHINES.index(machine) % TURNS}/{TURNS}"
        # Interpreted outer products take minutes where Python is emulated.
        some = everything() or BY_NAME[machine.isa].inside is None
        kernels = _CONFORMANCE if some else []
        return end(emulated(machine, *DEPENDENT, MODES, *kernels, *SAME, turn=turn))

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        started = {machine.name: pool.submit(run, machine) for machine in chosen()}
        yield started
        pool.shutdown(cancel_futures=True)


# Sorted before the sessions on this machine's own sets, which so run beside these.
def test_sessions_start(sessions: dict[str, Future[Done]]) -> None:
    assert sessions.keys() == {machine.name for machine in chosen()}


@_each
def test_on(machine: Machine, sessions: dict[str, Future[Done]]) -> None:
    passes(sessions[machine.name].result())


def test_every_set_has_its_turn() -> None:
    """Each set for AArch64, or one that has all that it has."""
    known = [BY_NAME[machine.isa] for machine in MACHINES]
    for isa in BY_NAME.values():
        if isa.arch == "aarch64":
            assert any(isa.requires <= other.requires for other in known), isa.name


def test_every_test_has_its_turn() -> None:
    """Where all machines are tested."""
    assert {i % _TURNS_OF_ALL for i in range(len(MACHINES))} == set(range(_TURNS_OF_ALL))
