"""A plugin of pytest for sessions on an emulated machine.

Their code is compiled by :mod:`compiling`.  Of `conformance` they run what is about the set in use:
the interpreter's side of all others is the same everywhere.
"""

from __future__ import annotations

import os
import zlib
from types import CodeType
from typing import Any

import pytest
from compiling import install

from jitgemm.isa.tables import BY_NAME, Isa
from jitgemm.kernels import registry
from jitgemm.kernels.spec import GemmSpec
from sessions import APART, TURN

install()

# Tests are made from the tables: without these rows collecting them takes a third of the time.
_HERE = {os.environ["JITGEMM_ISA"], "portable", "interpreter"}
for _name in BY_NAME.keys() - _HERE:
    del BY_NAME[_name]
for _key in [key for key, row in registry._ROWS.items() if row[1].name not in _HERE]:
    del registry._ROWS[_key]


# Of these every registered row is tested, of others one case.
_BY_ROW = ("test_every_variant", "test_nest")
# One case of each of their tests is met on every machine that has what they are about.
_EVERY_TURN = ("test_modes.py",)
# What is computed in the interpreter is the same everywhere.
_ELSEWHERE = ("test_interpreted.py",)
# Units that only their text identifies, written where that takes ten times as long: half a minute.
_LONG = ("test_one_from_outside",)


def _specs(item: pytest.Item) -> list[Any]:
    """What a test is about: sets and specs of kernels among its parameters."""
    case = getattr(item, "callspec", None)
    values = [] if case is None else case.params.values()
    found = [getattr(x, "spec", x) for x in values]
    return [x for x in found if isinstance(getattr(x, "isa", x), Isa)]


def _names(code: CodeType) -> set[str]:
    """What a function calls by name, also in comprehensions."""
    inner = (_names(x) for x in code.co_consts if isinstance(x, CodeType))
    return set(code.co_names).union(*inner)


def _here(item: pytest.Item) -> bool:
    """Whether a test may find something on this machine that others do not.

    Processes of tests' own take too long to start.
    """
    code = getattr(getattr(item, "function", None), "__code__", None)
    if (
        item.path.name in _ELSEWHERE
        or item.name.split("[")[0] in _LONG
        or (code is not None and "run_python" in _names(code))
    ):
        return False
    names = {getattr(x, "isa", x).name for x in _specs(item)}
    # Not that of kernels in a mode of their own: its cases lay out no A by columns, as outer
    # products take it.
    return item.path.parent.name != "conformance" or os.environ["JITGEMM_ISA"] in names


def _turn(name: str) -> bool:
    """Whether it is this machine's turn to run a test."""
    turn, turns = map(int, os.environ[TURN].split("/"))
    return zlib.crc32(name.encode()) % turns == turn


def _row(item: pytest.Item) -> str:
    """Which row of the registry a test is about: the type of its sums."""
    spec = next(x for x in _specs(item) if isinstance(x, GemmSpec))
    return f"{spec.element} {spec.components}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    kept = []
    for item in filter(_here, items):
        name = item.nodeid.split("[")[0]
        if name.rpartition("::")[2] in _BY_ROW:
            item.stash[APART] = _row(item)
            kept.append(item)
        elif item.get_closest_marker("everywhere") or item.path.name in _EVERY_TURN or _turn(name):
            kept.append(item)
    items[:] = kept
