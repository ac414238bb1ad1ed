"""``jitgemm clear-cache``: remove the machine code kept on disk."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from jitgemm.cli.tables import byte_size
from jitgemm.jit import cache

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add the command to argparse's ``commands``."""
    text = "remove the machine code kept on disk"
    parser = commands.add_parser("clear-cache", help=text)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.set_defaults(run=run)


def _count(number: int) -> str:
    return f"{number} object{'' if number == 1 else 's'}"


def _clear(folder: Path, *, dry_run: bool) -> int:
    """Remove all files of this package; the exit status.

    Raises:
        OSError: the folder cannot be listed.
    """
    removed, reasons = [], []
    for file in cache.stored(folder):
        try:
            if cache.remove(file, dry_run=dry_run):
                removed.append(file.nbytes)
        except OSError as e:
            reasons.append(e.strerror or str(e))
    verb = "would remove" if dry_run else "removed"
    print(f"{verb} {_count(len(removed))}, {byte_size(sum(removed))}, from {folder}")
    if not reasons:
        return 0
    why = ", ".join(sorted(set(reasons)))
    print(f"jitgemm: {_count(len(reasons))} in {folder} cannot be removed ({why})", file=sys.stderr)
    return 1


def run(options: argparse.Namespace) -> int:
    """Clear the folder, also one that is not used; 1 if something of it could not be removed."""
    folder = cache.location()
    if folder is None:
        print("nothing to remove: there is no home for a cache folder")
        return 0
    try:
        return _clear(folder, dry_run=options.dry_run)
    except FileNotFoundError:
        print(f"nothing to remove: {folder} does not exist")
        return 0
    except OSError as e:
        print(f"jitgemm: cache folder {folder} cannot be read ({e.strerror})", file=sys.stderr)
        return 1
