"""``explain`` and ``asm``: plans and code, for this machine and for described ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest

import jitgemm
from jitgemm.cli.main import main
from jitgemm.isa.tables import BY_NAME as SETS
from jitgemm.jit.target import host
from jitgemm.planner.cores import BY_NAME
from jitgemm.runtime.engine import engine

SMALL = ["--shape", "40", "50", "60"]
ON_ARM = [name for name, core in BY_NAME.items() if core.arch == "aarch64"]


def _printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(list(args)) == 0
    return capsys.readouterr().out


# -- plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, options, keywords",
    [("f32", {}, {}), ("f64", {}, {}), ("c64", {}, {}), ("f16", {}, {}), ("i8", {}, {}),
     ("i16", {}, {}), ("u8@i8", {}, {}), ("f32", {"--threads": "1"}, {"threads": 1}),
     ("bf16", {"--allow-bf16-dot": ""}, {"allow_bf16_dot": True}),
     ("f32", {"--prepacked": ""}, {})],
)  # fmt: skip
def test_a_plan_for_this_machine_is_that_of_a_call(
    name: str, options: dict[str, str], keywords: dict[str, object],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    import ml_dtypes

    if engine().isa.interpreted:
        pytest.skip("plans of machine code")
    types = {"f32": "f4", "f64": "f8", "c64": "c8", "f16": "f2", "i8": "i1", "u8": "u1",
             "i16": "i2", "bf16": ml_dtypes.bfloat16}  # fmt: skip
    left, _, right = name.partition("@")
    a, b = np.ones((70, 80), types[left]), np.ones((80, 90), types[right or left])
    out = _printed(capsys, "explain", "--dtype", name, "--shape", "70", "80", "90",
                   *[x for pair in options.items() for x in pair if x])  # fmt: skip
    lines = out.splitlines()
    assert lines[0] == f"machine   this one ({host().cpu})"
    assert engine().machine.source in lines[1]
    operand = jitgemm.prepack_rhs(b) if "--prepacked" in options else b
    assert lines[2:] == jitgemm.plan(a, operand, **keywords).explain().splitlines()


@pytest.mark.parametrize("name", BY_NAME)
def test_a_plan_for_a_described_machine(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    core = BY_NAME[name]
    out = _printed(capsys, "explain", "--shape", "2048", "2048", "2048", "--machine", name)
    assert f"machine   {name}, {core.cores} cores" in out
    assert f"source    {core.source}" in out
    assert f"({name}, described)" in out
    assert f"threads   {core.cores}" in out
    assert "product   f32 2048 x 2048 @ 2048 x 2048" in out
    for bits in filter(None, (core.sve_bits, core.streaming_bits)):
        assert f"of {bits} bits" in out
    few = _printed(capsys, "explain", "--shape", "2048", "2048", "2048", "--machine", name,
                   "--threads", "1", "--dtype", "f64", "--isa", "portable")  # fmt: skip
    assert "threads   1\n" in few
    assert re.search(r"^kernel +f64_gemm_\w+__portable_", few, re.MULTILINE)


def test_vectors_are_as_long_as_the_machines(capsys: pytest.CaptureFixture[str]) -> None:
    for name, lanes in (("neoverse-n2", 4), ("neoverse-v1", 8), ("a64fx", 16)):
        out = _printed(capsys, "explain", *SMALL, "--machine", name)
        assert re.search(r"__sve\w*_", out)
        assert f"vectors of {lanes}," in out


def test_a_described_machine_needs_no_code_here() -> None:
    """Nor LLVM: planning is arithmetic."""
    code = (
        "import sys; sys.modules['llvmlite'] = None; sys.modules['llvmlite.binding'] = None\n"
        "from jitgemm.cli.main import main\n"
        "sys.exit(main(['explain', '--shape', '512', '512', '512', '--machine', 'a64fx']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "JITGEMM_ISA": "none"}, timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "sve" in done.stdout
    here = subprocess.run([sys.executable, "-m", "jitgemm", "explain", *SMALL], text=True,
                          capture_output=True, env={**os.environ, "JITGEMM_ISA": "none"},
                          timeout=120)  # fmt: skip
    assert here.returncode == 1
    assert "JITGEMM_ISA=none" in here.stderr
    assert "Traceback" not in here.stderr


# -- code -----------------------------------------------------------------------------------------

# What multiplies and adds a vector of f32.  Of 128 bits LLVM takes that of NEON, which has no mask.
FUSED = {
    "neon": r"\tfmla\tv\d+\.4s", "sve": r"\tfm(la|ad)\t(z\d+\.s|v\d+\.4s)",
    "avx512": r"\tvfm\w+ps\t.*zmm", "portable": r"\t(mulps|fmul)\t",
    "streaming": r"\tfmopa\tza\d\.s",
}  # fmt: skip


@pytest.mark.parametrize(
    "isa, machine",
    [("neon", None), ("sve", None), ("neon", "a64fx"), ("sve", "neoverse-n2"),
     ("sve", "a64fx"), ("avx512", "emeraldrapids"), ("portable", "neoverse-n1"),
     ("sme", "apple-m4")],
)  # fmt: skip
def test_code_of_any_set_for_any_machine(
    isa: str, machine: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    where = [] if machine is None else ["--machine", machine]
    out = _printed(capsys, "asm", "--isa", isa, "--dtype", "f32", *where)
    first, second, *code = out.splitlines()
    symbol = first.removeprefix("# ")
    # Code for a matrix unit is of the vectors inside its mode.
    inside = SETS[isa].inside
    used = isa if inside is None else inside.name
    assert f"__{used}_" in symbol
    assert "for " in second
    arch = BY_NAME[machine].arch if machine else "aarch64"
    assert f"({arch}-" in second
    tile = re.search(r"_(\d+x\d+)__", symbol)
    assert tile is not None
    # One function, of whole tiles: the loop over the depth is in it, the nest is not.
    labels = [line for line in code if re.match(r"\w", line)]
    assert len(labels) == 1
    ends = r"_micro_\d+x" if inside is None else "_outer_"
    assert re.fullmatch(f"{symbol}{ends}{tile[1].split('x')[1]}:", labels[0])
    assert len(re.findall(FUSED[used], "\n".join(code))) >= 4


def test_the_whole_unit(capsys: pytest.CaptureFixture[str]) -> None:
    out = _printed(capsys, "asm", "--machine", "neoverse-n1", "--whole", "--prepacked")
    symbol = out.splitlines()[0].removeprefix("# ")
    labels = set(re.findall(r"^(\w+):", out, re.MULTILINE))
    assert {symbol, f"{symbol}_serial", f"{symbol}_tile"} <= labels
    assert sum(label.startswith(f"{symbol}_micro_") for label in labels) > 3


@pytest.mark.parametrize(
    "args, ends",
    [(["--shape", "1", "900", "1"], "_dot"),
     (["--shape", "1", "4096", "4096"], "_streaming_1"),
     (["--shape", "2", "70000", "6"], r"_micro_2x\d+"),
     (["--shape", "3", "64", "40", "--prepacked"], r"_micro_3x\d+"),
     (["--dtype", "u8@i8", "--machine", "emeraldrapids"], r"_tiles_\d+"),
     (["--dtype", "bf16", "--machine", "apple-m4"], r"_outer_\d+"),
     (["--shape", "900", "800", "1"], r"_columns_1")],
)  # fmt: skip
def test_every_route_has_a_function_of_whole_tiles(
    args: list[str], ends: str, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = [] if "--machine" in args else ["--machine", "neoverse-v1", "--threads", "1"]
    out = _printed(capsys, "asm", *args, *machine)
    labels = re.findall(r"^(\w+):", out, re.MULTILINE)
    assert len(labels) == 1
    assert re.search(f"{ends}$", labels[0]), labels


def test_the_set_of_this_machine_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    if engine().isa.interpreted:
        pytest.skip("machine code")
    out = _printed(capsys, "asm", *SMALL)
    assert f"__{engine().isa.name}_" in out.splitlines()[0]
    assert f"({host().triple})" in out.splitlines()[1]


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args, word",
    [
        (["explain"], "--shape"),
        (["explain", "--shape", "1", "2"], "expected 3 arguments"),
        (["explain", "--shape", "0", "2", "3"], "positive integer"),
        (["explain", *SMALL, "--machine", "vax"], "'neoverse-v2'"),
        (["explain", *SMALL, "--isa", "mmx"], "'neon'"),
        (["explain", *SMALL, "--threads", "-1"], "positive integer"),
        (["explain", *SMALL, "--dtype", "bool"], "expected one of f32, f64"),
        (["explain", *SMALL, "--dtype", "f32@i8"], "two integers as in u8@i8, got 'f32@i8'"),
        (["asm", "--dtype", "u8@i8@i8"], "got 'u8@i8@i8'"),
        (["asm", "--dtype", "u8@"], "got 'u8@'"),
        (["asm", "--dtype", ""], "got ''"),
    ],
)
def test_wrong_usage_exits_with_2(
    args: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(args)
    assert stopped.value.code == 2
    assert word in capsys.readouterr().err


@pytest.mark.parametrize("command", ["explain", "asm"])
def test_what_a_machine_lacks(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for machine, isa, missing in (
        ("neoverse-n1", "sve", "sve"), ("a64fx", "avx2", "avx2, f16c, fma"),
        ("znver5", "neon", "neon"), ("znver5", "avx512_amx", "amx-bf16, amx-int8, amx-tile"),
        ("apple-m4", "sve", "sve"),
    ):  # fmt: skip
        assert main([command, *SMALL, "--machine", machine, "--isa", isa]) == 1
        captured = capsys.readouterr()
        assert captured.err == (
            f"jitgemm: --isa: expected an instruction set of this machine ({machine}), got "
            f"'{isa}', which also needs {missing}\n"
        )
        assert not captured.out


def test_sets_this_machine_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    """Plans are for machines that have them; code of this architecture too, as LLVM would lower
    it to what there is."""
    lacking = [x for x in SETS.values() if x.arch and not x.requires <= host().features]
    for isa in lacking:
        assert main(["explain", *SMALL, "--isa", isa.name]) == 1
        assert "which also needs" in capsys.readouterr().err
        if isa.arch == host().arch:
            assert main(["asm", *SMALL, "--isa", isa.name]) == 1
            assert "which also needs" in capsys.readouterr().err


def test_the_interpreter_has_no_machine_code(capsys: pytest.CaptureFixture[str]) -> None:
    for where in ([], ["--machine", "a64fx"]):
        assert main(["asm", *SMALL, *where, "--isa", "interpreter"]) == 1
        assert "one with machine code, got 'interpreter'" in capsys.readouterr().err
        assert main(["explain", *SMALL, *where, "--isa", "interpreter"]) == 0
        assert "__interpreter_" in capsys.readouterr().out


def test_a_shape_beyond_memory(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--shape", "40", str(2**60), "3"]
    assert main(["explain", *shape, "--machine", "neoverse-v2"]) == 1
    assert "bytes of scratch" in capsys.readouterr().err
