"""``jitgemm asm``: the machine code of a product, for any instruction set and machine."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from jitgemm.cli.elsewhere import Where, add_options, context_of, problem_of, where_of
from jitgemm.errors import IsaError, message
from jitgemm.isa.tables import BY_NAME
from jitgemm.jit import compiler
from jitgemm.jit.target import host, target_of
from jitgemm.planner.nest import Columns, RowStreaming
from jitgemm.planner.route import Dot, GemmPlan, make_plan

__all__ = ["add_parser"]

_SHAPE = (512, 512, 512)
# ELF has names as they are, Mach-O with an underscore in front.  Labels of blocks begin with L.
_LABEL = re.compile(r"^_?([A-Za-z_][\w$]*):")
_END = re.compile(r"^\s*(\.size\b|\.cfi_endproc\b|\.?Lfunc_end)")


def add_parser(commands: Any) -> None:
    """Add the command to argparse's ``commands``."""
    text = "the machine code of a product, for any instruction set and machine"
    parser = commands.add_parser("asm", help=text)
    add_options(parser, _SHAPE)
    parser.add_argument("--whole", action="store_true",
                        help="the whole unit: nest, packing, edges, constants; else what computes "
                        "whole tiles")  # fmt: skip
    parser.set_defaults(run=run)


def _functions(assembly: str) -> Iterator[tuple[str, list[str]]]:
    """Every function's name and lines."""
    name = ""
    lines: list[str] = []
    for line in assembly.splitlines():
        label = _LABEL.match(line)
        if label is not None and not name:
            name, lines = label[1], []
        if not name:
            continue
        if _END.match(line):
            yield name, lines
            name = ""
        else:
            lines.append(line)


def _innermost(plan: GemmPlan) -> re.Pattern[str]:
    """The name of the function that computes whole tiles of a plan."""
    symbol, route = re.escape(plan.spec.symbol), plan.route
    if isinstance(route, Dot):
        return re.compile(re.escape(plan.kernel.name))
    rows, width = plan.blocking.tile_rows, plan.blocking.group * plan.spec.nr
    if isinstance(route, RowStreaming):
        return re.compile(f"{symbol}_streaming_{rows}")
    if isinstance(route, Columns):
        return re.compile(f"{symbol}_(columns_{'staggered_' * route.staggered}|dots_){rows}")
    return re.compile(f"{symbol}_(micro_{rows}x{width}|(tiles|outer)_{width})")


def _anywhere(options: argparse.Namespace) -> Where:
    """The machine that is named; else this one, or any of the architecture of the set."""
    wanted = None if options.isa is None else BY_NAME[options.isa]
    if options.machine is None and wanted is not None and wanted.arch not in ("", host().arch):
        # Blocking decides which code runs, not what it is.
        own = argparse.Namespace(**{**vars(options), "isa": None})
        return replace(where_of(own), isa=wanted)
    return where_of(options)


def run(options: argparse.Namespace) -> int:
    """Print it, below comments that say what it is.

    Raises:
        IsaError: the set has no machine code, or the machine lacks it.
    """
    where = _anywhere(options)
    if where.isa.interpreted:
        raise IsaError(message("--isa", "one with machine code", repr(where.isa.name)))
    plan = make_plan(problem_of(options), context_of(where))
    assembly = compiler.assembly(compiler.gemm_unit(plan.spec))
    made = target_of(plan.spec.isa)
    print(f"# {plan.spec.symbol}")
    print(f"# for {made.cpu} {made.features} ({made.triple})")
    if options.whole:
        print(assembly)
        return 0
    wanted = _innermost(plan)
    found = [lines for name, lines in _functions(assembly) if wanted.fullmatch(name)]
    assert found, f"no function is called {wanted.pattern}"
    for lines in found:
        print("\n".join(lines))
    return 0
