"""How assembly of each architecture spells what tests and tables count: one record each.

Patterns are searched in lines without comments, which begin with a tab if they are instructions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from jitgemm.isa.tables import Isa
from jitgemm.isa.types import ElementType
from jitgemm.jit.target import host

__all__ = ["NEVER", "SYNTAX", "Syntax", "syntax_of"]

NEVER = r"(?!)"
"""Matches nothing."""


@dataclass(frozen=True)
class Syntax:
    """What LLVM writes for one architecture."""

    comment: str
    """What a comment starts with, up to the end of its line."""
    label: str
    """A label within a function; its name is group 1."""
    jump: str
    """A jump; where to is group 1."""
    memory: str
    """An access of memory: no fetch, which asks for nothing, and no address that is computed."""
    store: str
    """An access that writes."""
    stack: str
    """A use of the stack where no register but its own points there."""
    frame: str
    """Likewise where the frame pointer does."""
    framed: str
    """How a frame pointer is set; else that register is one like any other."""
    vector: str
    """A register of vectors."""
    masked: str
    """What only loops with parts of vectors do."""
    multiplication: str
    """A multiplication of floats, with a sum or without."""
    sum: str
    """A sum of vectors."""
    fold: str
    """A multiplication of integers."""
    product: str
    """A product on tiles: a matrix multiplication or an outer product."""
    tile_load: str
    """A load of a tile."""
    shuffle: str
    """What moves numbers between lanes, or from one to all."""
    slow: str
    """Calls, divisions and gathers."""
    switch: str
    """A change of the processor's mode."""
    fused: Callable[[Isa, ElementType], str] = field(repr=False)
    """A fused multiply-add of vectors of a set."""
    width: Callable[[str], int] = field(repr=False, default=lambda _: 1)
    """How many registers one load fills."""


def _x86_fused(isa: Isa, element: ElementType) -> str:
    register = {512: "zmm", 256: "ymm", 128: "xmm"}[isa.vector_bits]
    kind = "ps" if element.bytes == 4 else "pd"
    return rf"\tvfmadd\w+{kind}\b.*%{register}"


X86 = Syntax(
    comment="#",
    label=r"(\.LBB\w+):",
    jump=r"\tj\w+\t(\.LBB\w+)$",
    memory=r"^\t(?!lea|prefetch).*\(%r",
    store=r"^\t(?!cmp|test).*\(%r[^)]*\)(?: \{%k\d\})?$",
    stack=r"\(%rsp[,)]",
    frame=r"\(%r[sb]p[,)]",
    framed=r"\tmovq\t%rsp, %rbp$",
    vector=r"%[xyz]mm",
    masked=r"\{%k|vp?maskmov",
    multiplication=r"\tv?f(?:n?m(?:add|sub)\w*|mul)p[sd]\b|\tvfn?m\w+p[sd]\b|\tv?mulp[sd]\b",
    sum=r"\tv?addp[sd]\b|\tv?padd[dq]\b",
    fold=r"\tv?pm(?:ull[wdq]|ulhu?w|ulu?dq|addwd)\b|\t(?:\{\w+\} ?\t?)?vp?dp\w+",
    product=r"\ttdp",
    tile_load=r"\ttileload",
    shuffle=r"\tv?p?(?:unpck|shuf|perm|insert|extract|mov[lh][hl]ps|blend)",
    slow=r"\tcall|\tv?div|\tidiv|\tv?gather",
    switch=NEVER,
    fused=_x86_fused,
)


def _aarch64_fused(isa: Isa, element: ElementType) -> str:
    kind = "s" if element.bytes == 4 else "d"
    if isa.scalable:
        return rf"\tf(?:mla|mad)\tz\d+\.{kind}, "
    return rf"\tfmla\tv\d+\.{16 // element.bytes}{kind}, "


def _aarch64_width(line: str) -> int:
    """Registers named before the address, ``{ z0.s - z3.s }`` being four."""
    names = line[: line.rindex("[")]
    span = re.search(r"[vz](\d+)\.\w+ - [vz](\d+)\.", names)
    if span:
        return (int(span[2]) - int(span[1])) % 32 + 1
    return max(1, len(re.findall(r"\b[bhsdqvzwx]\d+\b", names.split("/")[0])))


AARCH64 = Syntax(
    comment="//",
    label=r"(\.LBB\w+):",
    jump=r"\t(?:b(?:\.\w+)?|cbn?z\t\w+,|tbn?z\t\w+, #\d+,)\s(\.LBB\w+)$",
    memory=r"^\t(?!prf).*\[(?:x\d+|sp)",
    store=r"\tst\w*\t",
    # Spilled vectors without a length of their own are reached from a copy of the pointer.
    stack=r"\[sp[\],]|\t(?:add|sub|addvl|mov)\t\w+, sp\b",
    frame=r"\[(?:sp|x29)[\],]|\t(?:add|sub|addvl|mov)\t\w+, (?:sp|x29)\b",
    framed=r"\t(?:mov\tx29, sp|add\tx29, sp, #\d+)$",
    vector=r"\b[vzq]\d+\b",
    masked=r"\tsel\t|\tmov\tz\d+\.\w, p\d+/m|\twhile\w+\t|\tcmp\w\w\tp\d",
    multiplication=r"\tfn?m(?:la|ls|ad|sb|ul)\t[vz]\d",
    sum=r"\tf?add\t[vz]\d",
    # NEON has no product of 64 bits: LLVM multiplies them one by one.
    fold=r"\t(?:ml[as]|mul|mad|msb|[su]ml[as]l[2bt]?|[su]mull[2bt]?|(?:[su]|us|su)dot|"
    r"(?:[su]|us)mmla|bfdot|bfml\w+|bfmmla)\t[vz]\d|\tmul\tx\d",
    product=r"\t(?:bf|f|s|u|su|us)mop[as]\t",
    tile_load=r"\tld\w+\t\{?\s*za",
    shuffle=r"\t(?:zip[12]|uzp[12]|trn[12]|tbl|tbx|ext|rev\d*|splice|dup|ins)\t[vz]\d"
    r"|\t(?:ld|st)[2-4]\w?\t"
    r"|\tmov\t(?:v\d+\.\w+\[|[vz]\d+\.\w+, [vz]\d+\.\w+\[|z\d+\.\w, [wxbhsdq]\d+)",
    slow=r"\tblr?\t|\t[fsu]divr?\t|\[(?:x\d+, )?z\d+",
    switch=r"\tsm(?:start|stop)\b|\tmsr\t(?:svcr|SVCR)",
    fused=_aarch64_fused,
    width=_aarch64_width,
)

SYNTAX = {"x86_64": X86, "aarch64": AARCH64}
"""By the first part of LLVM's triple."""


def syntax_of(isa: Isa) -> Syntax:
    """How code of a set is written here."""
    return SYNTAX[isa.arch or host().arch]
