"""A plugin of pytest for sessions on an emulated machine.

Their code is compiled by :mod:`compiling`.  Of `conformance` they run what is about the set in use:
the interpreter's side of all others is the same everywhere.
"""

from __future__ import annotations

import os

import pytest
from compiling import emit_remotely, remember

from jitgemm.isa.tables import Isa
from jitgemm.jit import compiler

compiler.emit_object = emit_remotely
compiler.gemm_unit = remember(compiler.gemm_unit)


def _sets(item: pytest.Item) -> set[str]:
    """The names of the instruction sets that a test is about."""
    found = set()
    for value in getattr(item, "callspec").params.values() if hasattr(item, "callspec") else ():
        isa = getattr(getattr(value, "spec", value), "isa", value)
        if isinstance(isa, Isa):
            found.add(isa.name)
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = os.environ["JITGEMM_ISA"]
    items[:] = [
        item for item in items if item.path.parent.name != "conformance" or here in _sets(item)
    ]
