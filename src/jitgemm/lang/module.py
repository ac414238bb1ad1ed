"""A module of LLVM text: functions that call each other, and what they declare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from jitgemm.isa.tables import Isa
from jitgemm.lang.core import Function

__all__ = ["LlvmModule"]


class FunctionText(Protocol):
    """A function about to be written."""

    def define(self, *, external: bool) -> str:
        """Its text."""
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
    _done: dict[str, Function] = field(default_factory=dict)
    _queue: list[Function] = field(default_factory=list)

    def need(self, function: Function) -> str:
        """Make sure ``function`` ends up in the module; its symbol."""
        known = self._done.get(function.name)
        if known is None:
            self._done[function.name] = function
            self._queue.append(function)
        return function.name

    def declare(self, line: str) -> None:
        """Add a declaration once."""
        self.declarations[line] = None

    def emit(self, exports: list[Function]) -> str:
        """Generate the exported functions and all they call; the module's text."""
        names = {self.need(f) for f in exports}
        while self._queue:
            function = self._queue.pop(0)
            self._texts.append(self.writer(self, function).define(external=function.name in names))
        parts = [f"; {self.name}", *self._texts, *self.declarations, self._attributes()]
        return "\n\n".join(parts) + "\n"

    def _attributes(self) -> str:
        """What holds for every function."""
        words = ["nounwind", '"no-builtins"']
        if self.isa.arch == "aarch64":
            if self.isa.vscale:
                words.append(f"vscale_range({self.isa.vscale},{self.isa.vscale})")
        else:
            words += ['"prefer-vector-width"="512"', '"min-legal-vector-width"="512"']
        return f"attributes #0 = {{ {' '.join(words)} }}"
