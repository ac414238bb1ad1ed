"""Tables and progress on a terminal: by ``rich`` if it is installed, plain text if not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from textwrap import wrap
from typing import Any

from jitgemm.cli.extras import optional

__all__ = ["Table", "byte_size", "progress", "show"]

# Columns where the output is no terminal, so that files and pipes get whole tables.
_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a title; ``numbers`` aligns all columns but the first to the right."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    caption: str = ""
    numbers: bool = False

    def plain(self) -> str:
        """The table as text, columns two spaces apart."""
        lines = [self.columns, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

        def line(cells: tuple[str, ...]) -> str:
            padded = [
                cell.rjust(width) if self.numbers and i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ]
            return "  ".join(padded).rstrip()

        rule = "  ".join("-" * width for width in widths)
        body = [line(self.columns), rule, *map(line, self.rows)]
        return "\n".join([self.title, *body, *wrap(self.caption, _WIDTH)])


def _console(**options: Any) -> Any:
    # What is printed is data: brackets in it are no markup.
    console = optional("rich.console").Console(markup=False, highlight=False, **options)
    if not console.is_terminal:
        console.width = _WIDTH
    return console


def show(table: Table) -> None:
    """Print a table on standard output, and an empty line."""
    module = optional("rich.table")
    if module is None:
        print(table.plain() + "\n")
        return
    shown = module.Table(
        title=table.title, caption=table.caption or None, title_justify="left",
        caption_justify="left",
    )  # fmt: skip
    for i, column in enumerate(table.columns):
        # Headings may wrap between words on a narrow terminal; numbers are never cut.
        whole = [*column.split(), *(row[i] for row in table.rows if table.numbers)]
        shown.add_column(
            column, justify="right" if table.numbers and i else "left",
            min_width=max(map(len, whole), default=0),
        )  # fmt: skip
    for row in table.rows:
        shown.add_row(*row)
    console = _console()
    console.print(shown)
    console.print()


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar on standard error inside a ``with`` block; call what it yields ``total`` times.

    It is redrawn by those calls only: a thread that redraws it would disturb measurements.
    """
    module = optional("rich.progress")
    if module is None:
        yield lambda: None
        return
    columns = (
        module.TextColumn("{task.description}"),
        module.BarColumn(),
        module.MofNCompleteColumn(),
        module.TimeElapsedColumn(),
    )
    with module.Progress(*columns, console=_console(stderr=True), auto_refresh=False) as bar:
        task = bar.add_task(description, total=total)
        yield partial(bar.update, task, advance=1, refresh=True)


def byte_size(size: int) -> str:
    """Bytes for people: ``48.0 KiB``."""
    for unit, bytes_in_unit in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= bytes_in_unit:
            return f"{size / bytes_in_unit:.1f} {unit}"
    return f"{size} bytes"
