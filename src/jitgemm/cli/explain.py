"""``jitgemm explain``: how a product would be computed, here or on a described machine."""

from __future__ import annotations

import argparse
from typing import Any

from jitgemm.cli.elsewhere import add_options, context_of, problem_of, where_of
from jitgemm.cli.tables import byte_size
from jitgemm.planner.caches import Machine
from jitgemm.planner.explain import explain
from jitgemm.planner.route import make_plan

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add the command to argparse's ``commands``."""
    text = "how a product is computed here, or on a described machine"
    parser = commands.add_parser("explain", help=text)
    add_options(parser, None)
    parser.set_defaults(run=run)


def _caches(machine: Machine) -> str:
    levels = (("L1", machine.l1), ("L2", machine.l2), ("L3", machine.l3))
    sizes = ", ".join(f"{level} {byte_size(cache.size)}" for level, cache in levels)
    return f"{sizes}, pages of {byte_size(machine.page)} ({machine.source})"


def run(options: argparse.Namespace) -> int:
    """Print the plan in words."""
    where = where_of(options)
    plan = make_plan(problem_of(options), context_of(where))
    name, *sources = where.words
    print(f"machine   {name}")
    for source in sources:
        print(f"source    {source}")
    print(f"caches    {_caches(where.machine)}")
    print(explain(plan, where.machine))
    return 0
