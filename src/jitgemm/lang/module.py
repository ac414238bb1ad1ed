"""A module of LLVM text: functions that call each other, and what they declare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from jitgemm.isa.outer import OuterUnit
from jitgemm.isa.tables import Isa
from jitgemm.lang.core import Function

__all__ = ["LlvmModule", "RunsIn"]


class RunsIn(Enum):
    """In which mode of the processor a function runs; the number of its attributes."""

    NORMAL = 0
    ENTERED = 1
    """It is called into the mode of a unit of outer products, and leaves it."""
    INSIDE = 2
    """It is called there and stays there."""


class FunctionText(Protocol):
    """A function about to be written."""

    def define(self, symbol: str, mode: RunsIn, *, external: bool) -> str:
        """Its text, under a symbol and for a mode."""
        ...


@dataclass
class LlvmModule:
    """One translation unit: functions, and the declarations they need."""

    name: str
    isa: Isa
    writer: Callable[[LlvmModule, Function], FunctionText]
    """What writes one function."""
    declarations: dict[str, None] = field(default_factory=dict)
    _texts: list[str] = field(default_factory=list)
    _symbols: dict[tuple[str, RunsIn], str] = field(default_factory=dict)
    _queue: list[tuple[Function, RunsIn]] = field(default_factory=list)

    def need(self, function: Function, mode: RunsIn = RunsIn.NORMAL) -> str:
        """Make sure ``function`` ends up in the module; its symbol.

        What runs in several modes is there several times.
        """
        symbol = self._symbols.get((function.name, mode))
        if symbol is None:
            taken = any((function.name, other) in self._symbols for other in RunsIn)
            symbol = f"{function.name}_{mode.name.lower()}" if taken else function.name
            self._symbols[function.name, mode] = symbol
            self._queue.append((function, mode))
        return symbol

    def declare(self, line: str) -> None:
        """Add a declaration once."""
        self.declarations[line] = None

    def emit(self, exports: list[Function]) -> str:
        """Generate the exported functions and all they call; the module's text."""
        names = {self.need(f) for f in exports}
        while self._queue:
            function, mode = self._queue.pop(0)
            symbol = self._symbols[function.name, mode]
            writer = self.writer(self, function)
            self._texts.append(writer.define(symbol, mode, external=symbol in names))
        unit = self.isa.unit
        support, modes = [], [RunsIn.NORMAL]
        if isinstance(unit, OuterUnit) and RunsIn.ENTERED in {mode for _, mode in self._symbols}:
            support, modes = [unit.mode.support], list(RunsIn)
        known = "\n".join(support).splitlines()
        declared = [x for x in self.declarations if x not in known]
        attributes = [self._attributes(mode) for mode in modes]
        parts = [f"; {self.name}", *self._texts, *support, *declared, *attributes]
        return "\n\n".join(parts) + "\n"

    def _attributes(self, mode: RunsIn) -> str:
        """What holds for every function of a mode."""
        words, unit = ["nounwind", '"no-builtins"'], self.isa.unit
        if self.isa.arch != "aarch64":
            words += ['"prefer-vector-width"="512"', '"min-legal-vector-width"="512"']
        # Vectors of a mode exist in it only; a set beside it has vectors of its own outside.
        of_mode = isinstance(unit, OuterUnit) and self.isa.inside is None
        if self.isa.vscale and of_mode == (mode is not RunsIn.NORMAL):
            words.append(f"vscale_range({self.isa.vscale},{self.isa.vscale})")
        if isinstance(unit, OuterUnit) and mode is not RunsIn.NORMAL:
            entered = mode is RunsIn.ENTERED
            words.append(unit.mode.attributes if entered else unit.mode.attributes_inside)
        return f"attributes #{mode.value} = {{ {' '.join(words)} }}"
