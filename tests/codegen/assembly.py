"""Functions and their innermost loops, found in the assembly of any set on any machine."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

from syntax import Syntax, syntax_of

from jitgemm.isa.tables import Isa
from jitgemm.jit import compiler
from jitgemm.jit.target import available
from jitgemm.kernels.micro import microkernel
from jitgemm.kernels.spec import GemmSpec
from jitgemm.lang.core import Function

__all__ = [
    "Loop", "assembly_of", "compiled_here", "functions_of", "loops_of", "microkernels",
    "tile_loops_of", "typical",
]  # fmt: skip

_TYPICAL = {
    "avx512": "skylake-avx512", "avx512_vnni": "icelake-server", "avx512_bf16": "znver4",
    "avx512_amx": "sapphirerapids",
}  # fmt: skip
"""A processor of each set that is otherwise compiled for the machine at hand."""


@dataclass(frozen=True)
class Loop:
    """One innermost loop: the lines between its label and the jump back."""

    lines: tuple[str, ...]
    syntax: Syntax
    frame: bool = False
    """Whether the frame pointer points to the stack; else it is a register like any other."""

    def _matching(self, pattern: str) -> list[str]:
        return [line for line in self.lines if re.search(pattern, line)]

    def count(self, pattern: str) -> int:
        return len(self._matching(pattern))

    @property
    def instructions(self) -> int:
        return self.count(r"^\t[^.\s]")

    @property
    def masked(self) -> bool:
        return self.count(self.syntax.masked) > 0

    @property
    def multiplications(self) -> int:
        return self.count(self.syntax.multiplication)

    @property
    def folds(self) -> int:
        """Multiplications of integers."""
        return self.count(self.syntax.fold)

    @property
    def products(self) -> int:
        """Products on tiles."""
        return self.count(self.syntax.product)

    @property
    def stack(self) -> list[str]:
        pattern = self.syntax.frame if self.frame else self.syntax.stack
        return [line.strip() for line in self._matching(pattern)]

    @property
    def stack_stores(self) -> list[str]:
        return [line for line in self.stack if re.search(self.syntax.store, f"\t{line}")]

    @property
    def vectors_on_the_stack(self) -> list[str]:
        return [line for line in self.stack if re.search(self.syntax.vector, line)]

    @property
    def loads(self) -> int:
        """Registers, or operands, that come from memory."""
        found = self._matching(self.syntax.memory)
        return sum(self.syntax.width(x) for x in found if not re.search(self.syntax.store, x))

    @property
    def shuffles(self) -> int:
        return self.count(self.syntax.shuffle)

    @property
    def slow(self) -> list[str]:
        """Calls, divisions, gathers and changes of mode."""
        return self._matching(f"{self.syntax.slow}|{self.syntax.switch}")


def typical(isa: Isa) -> Isa:
    """A set as it is compiled for one processor that has it, whatever machine this is."""
    if not isa.arch and not isa.interpreted:
        return replace(isa, arch="x86_64", cpu="x86-64")
    return replace(isa, cpu=_TYPICAL[isa.name]) if isa.name in _TYPICAL else isa


def compiled_here(isa: Isa) -> Isa:
    """A set as it is compiled for this machine, if it has it, else for one that does."""
    return isa if available(isa) else typical(isa)


def functions_of(assembly: str, syntax: Syntax) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in assembly.splitlines():
        start = re.match(r"([A-Za-z_]\w*):", line)
        if start:
            lines = found[start[1]] = []
        elif line.startswith(".Lfunc_end"):
            lines = []
        else:
            lines.append(line.split(syntax.comment)[0].rstrip())
    return found


def loops_of(lines: list[str], syntax: Syntax) -> list[Loop]:
    """Innermost loops that multiply."""
    return [loop for loop in _innermost(lines, syntax) if loop.multiplications or loop.folds]


def tile_loops_of(lines: list[str], syntax: Syntax) -> list[Loop]:
    """Innermost loops that multiply tiles."""
    return [loop for loop in _innermost(lines, syntax) if loop.products]


def _innermost(lines: list[str], syntax: Syntax) -> list[Loop]:
    loops, label, start = [], "", 0
    frame = any(re.match(syntax.framed, line) for line in lines)
    for i, line in enumerate(lines):
        here = re.match(syntax.label, line)
        if here:
            label, start = here[1], i
        jump = re.match(syntax.jump, line)
        if jump and jump[1] == label:
            loops.append(Loop(tuple(lines[start + 1 : i + 1]), syntax, frame))
    return loops


def assembly_of(spec: GemmSpec, functions: list[Function]) -> dict[str, list[str]]:
    """Some functions of a spec by themselves: no pass looks beyond one, and most take a second."""
    unit = compiler.Unit(f"some_{spec.symbol}", spec.isa, lambda: functions)
    return functions_of(compiler.assembly(unit), syntax_of(spec.isa))


@cache
def microkernels(spec: GemmSpec) -> dict[tuple[int, int], list[Loop]]:
    """Loops with arithmetic of each microkernel by (rows, columns in vectors)."""
    tile, names = spec.tile, {}
    for panels, rows in tile.variants():
        names[rows, panels * tile.nr_regs] = microkernel(spec, panels, rows)
    assert len(names) == len(tile.variants())
    code = assembly_of(spec, list(names.values()))
    syntax = syntax_of(spec.isa)
    return {size: loops_of(code[function.name], syntax) for size, function in names.items()}
