"""Functions and their innermost loops, found in the assembly (AT&T syntax)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from jitgemm.jit import compiler
from jitgemm.kernels.micro import microkernel
from jitgemm.kernels.spec import GemmSpec
from jitgemm.lang.core import Function

__all__ = ["Loop", "assembly_of", "functions_of", "loops_of", "microkernels", "tile_loops_of"]


@dataclass(frozen=True)
class Loop:
    """One innermost loop: the lines between its label and the jump back."""

    lines: tuple[str, ...]
    frame: bool = False
    """Whether %rbp points to the stack; else it is a register like any other."""

    def count(self, pattern: str) -> int:
        return sum(bool(re.search(pattern, line)) for line in self.lines)

    @property
    def masked(self) -> bool:
        return self.count(r"\{%k|vp?maskmov") > 0

    @property
    def multiplications(self) -> int:
        return self.count(r"\tv?f(?:n?m(?:add|sub)\w*|mul)p[sd]\b|\tvfn?m\w+p[sd]\b|\tv?mulp[sd]\b")

    @property
    def folds(self) -> int:
        """Multiplications of integers."""
        return self.count(r"\tv?pm(ulld|ullq|uludq|addwd)\b|\t(\{\w+\} )?vp?dp\w+")

    @property
    def stack(self) -> list[str]:
        pointer = r"\(%r[sb]p[,)]" if self.frame else r"\(%rsp[,)]"
        return [line.strip() for line in self.lines if re.search(pointer, line)]

    @property
    def stack_stores(self) -> list[str]:
        return [line for line in self.stack if re.search(r"\(%r[sb]p[^)]*\)$", line)]

    @property
    def vectors_on_the_stack(self) -> list[str]:
        return [line for line in self.stack if re.search(r"%[xyz]mm", line)]

    @property
    def loads(self) -> int:
        """Accesses of memory but for fetches, which ask for nothing."""
        return self.count(r"\(%r") - self.count(r"\tprefetch")

    @property
    def shuffles(self) -> int:
        return self.count(r"\tv?p?(unpck|shuf|perm|insert|extract|mov[lh][hl]ps|blend)")


def functions_of(assembly: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in assembly.splitlines():
        start = re.match(r"([A-Za-z_]\w*):", line)
        if start:
            lines = found[start[1]] = []
        elif line.startswith(".Lfunc_end"):
            lines = []
        else:
            lines.append(line.split("#")[0].rstrip())
    return found


def loops_of(lines: list[str]) -> list[Loop]:
    """Innermost loops that multiply."""
    return [loop for loop in _innermost(lines) if loop.multiplications or loop.folds]


def tile_loops_of(lines: list[str]) -> list[Loop]:
    """Innermost loops that multiply tiles."""
    return [loop for loop in _innermost(lines) if loop.count(r"\ttdpb")]


def _innermost(lines: list[str]) -> list[Loop]:
    loops, label, start = [], "", 0
    frame = any(re.match(r"\tmovq\t%rsp, %rbp$", line) for line in lines)
    for i, line in enumerate(lines):
        here = re.match(r"(\.LBB\w+):", line)
        if here:
            label, start = here[1], i
        jump = re.match(r"\tj\w+\t(\.LBB\w+)$", line)
        if jump and jump[1] == label:
            loops.append(Loop(tuple(lines[start + 1 : i + 1]), frame))
    return loops


def assembly_of(spec: GemmSpec, functions: list[Function]) -> dict[str, list[str]]:
    """Some functions of a spec by themselves: no pass looks beyond one, and most take a second."""
    unit = compiler.Unit(f"some_{spec.symbol}", spec.isa, lambda: functions)
    return functions_of(compiler.assembly(unit))


@cache
def microkernels(spec: GemmSpec) -> dict[tuple[int, int], list[Loop]]:
    """Loops with arithmetic of each microkernel by (rows, columns in vectors)."""
    tile, names = spec.tile, {}
    for panels, rows in tile.variants():
        names[rows, panels * tile.nr_regs] = microkernel(spec, panels, rows)
    assert len(names) == len(tile.variants())
    code = assembly_of(spec, list(names.values()))
    return {size: loops_of(code[function.name]) for size, function in names.items()}
