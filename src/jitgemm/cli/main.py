"""The command line's one door."""

from __future__ import annotations

import argparse
import sys

from jitgemm import __version__
from jitgemm.cli import asm, bench, clear_cache, demo, explain, info
from jitgemm.cli.extras import MissingExtraError
from jitgemm.errors import IsaError, JitUnavailableError

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jitgemm", description="Matrix multiplication that generates its own machine code."
    )
    parser.add_argument("--version", action="version", version=f"jitgemm {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for module in (info, explain, asm, demo, bench, clear_cache):
        module.add_parser(commands)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; ``None``: those of this process, which is then
            the command's own (``demo`` and ``bench`` may restart it with a better environment).

    Returns:
        The exit status: 0; 1 if the command could not do what it was asked.

    Raises:
        SystemExit: with status 2 for wrong usage, 0 after ``--help`` and ``--version``.
    """
    options = _parser().parse_args(argv)
    options.own_process = argv is None
    try:
        return int(options.run(options))
    except (MissingExtraError, IsaError, JitUnavailableError, MemoryError, OSError) as e:
        print(e, file=sys.stderr)
        return 1
