"""The command line: what it prints, writes and refuses.  No speed is asserted anywhere."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm.cli import numpy_side, timing
from jitgemm.cli.bench import disagreement
from jitgemm.cli.main import main
from jitgemm.cli.tables import Table, byte_size
from jitgemm.errors import IsaError
from jitgemm.isa.types import F32, F64, I32
from jitgemm.jit import compiler
from jitgemm.kernels import registry
from jitgemm.kernels.peak import FOLDS, chains, operations_per_round
from jitgemm.runtime.engine import engine
from jitgemm.runtime.memory import address, aligned_buffer
from jitgemm.runtime.packed import element_dtype
from jitgemm.runtime.peak import measure_peak, peak_unit

TINY = ["--rounds", "1", "--ms", "1"]
RICH = ("rich", "rich.console", "rich.progress", "rich.table")


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Hide modules from imports."""

    def hide(*modules: str) -> None:
        for module in modules:
            monkeypatch.setitem(sys.modules, module, None)

    return hide


@pytest.fixture(autouse=True)
def _never_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a process that is not the command's own must not be replaced")

    monkeypatch.setattr(os, "execve", refuse)


def _command(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, "-m", "jitgemm", *args],
        capture_output=True, text=True, env=environment, timeout=120,
    )  # fmt: skip


# -- info -----------------------------------------------------------------------------------------


def test_info_prints_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for word in (engine().isa.name, "usable processors", "JITGEMM_PARALLEL_FLOPS", "cache folder"):
        assert word in out


def test_info_needs_no_rich(capsys: pytest.CaptureFixture[str], without: Any) -> None:
    without(*RICH)
    assert main(["info"]) == 0
    assert "instruction set" in capsys.readouterr().out


def test_info_as_a_module_and_as_json(tmp_path: Path) -> None:
    done = _command("info", "--json", JITGEMM_CACHE_DIR=str(tmp_path), JITGEMM_SPIN_US="7")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["jitgemm"] == jitgemm.__version__
    assert facts["isas"][facts["isa"]] is True
    assert facts["threads"] <= facts["usable_processors"]
    assert len(facts["kernels"]) == len(registry.rows())
    # The runtime's own unit has just been compiled into an empty folder.
    assert facts["cache"]["folder"] == str(tmp_path)
    assert facts["cache"]["objects"] == len(list(tmp_path.glob("*.o"))) > 0
    assert facts["cache"]["bytes"] > 0
    assert facts["knobs"]["spin_us"]["value"] == 7
    assert all(knob["provenance"] for knob in facts["knobs"].values())


def test_info_without_a_cache_folder() -> None:
    done = _command("info", "--json", JITGEMM_CACHE="0")
    assert json.loads(done.stdout)["cache"] == {"folder": None, "objects": 0, "bytes": 0}


# -- bench ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_bench_prints_percentages_and_writes_json(
    dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.json"
    shapes = "8x16x4,1x33x7"
    assert main(["bench", "--shapes", shapes, "--dtype", dtype, "--json", str(file), *TINY]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"\d+\.\d%", out)) == 4
    facts = json.loads(file.read_text())
    assert facts["dtype"] == dtype
    assert not facts["refused"]
    assert [(r["m"], r["k"], r["n"]) for r in facts["results"]] == [(8, 16, 4), (1, 33, 7)]
    for result in facts["results"]:
        assert set(result["variants"]) == {"gemm", "plan", "plan_prepacked", "numpy"}
        assert result["best"] in ("gemm", "plan")
        assert result["loop_gflops"] > 0
        assert all(len(v["rounds"]) == 1 for v in result["variants"].values())


def test_bench_lets_prepacked_compete_only_if_asked(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    args = ["bench", "--shapes", "4x64x64", "--prepacked", "--json", str(file), *TINY]
    assert main(args) == 0
    (result,) = json.loads(file.read_text())["results"]
    variants = result["variants"]
    del variants["numpy"]
    assert result["best"] == min(variants, key=lambda name: variants[name]["seconds"])


def test_bench_needs_neither_rich_nor_threadpoolctl(
    capsys: pytest.CaptureFixture[str], without: Any
) -> None:
    without(*RICH, "threadpoolctl")
    assert main(["bench", "--shapes", "4x4x4", *TINY]) == 0
    assert "best / NumPy" in capsys.readouterr().out


def test_bench_does_not_compare_wrong_results(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jitgemm, "gemm", lambda *_, out: out.fill(0))
    assert main(["bench", "--shapes", "8x8x8", *TINY]) == 1
    captured = capsys.readouterr()
    assert "8x8x8: gemm and NumPy disagree" in captured.err
    assert "%" not in captured.out


def test_disagreement_is_measured_in_units_of_rounding() -> None:
    a, b = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    exact = a @ b
    assert disagreement(exact, exact, a, b) == 0
    assert disagreement(np.nextafter(exact, 9), exact, a, b) < 1
    assert disagreement(exact * 1.001, exact, a, b) > 1
    assert disagreement(exact * np.nan, exact, a, b) == np.inf


@pytest.mark.parametrize(
    "args, word",
    [
        (["bench", "--shapes", "2x3"], "m x k x n"),
        (["bench", "--shapes", "0x2x3"], "at least 1"),
        (["bench", "--shapes", "2x3x4,"], "m x k x n"),
        (["bench", "--shapes", "axbxc"], "'axbxc'"),
        (["bench", "--dtype", "int8"], "f32"),
        (["bench", "--threads", "0"], "positive integer"),
        (["bench", "--rounds", "1.5"], "positive integer"),
        (["bench", "--ms", "nan"], "positive number"),
        (["bench", "--json", "/no/such/folder/x.json"], "existing folder"),
        (["demo", "--hidden", "8,,8"], "positive integer"),
        (["demo", "--seconds", "-1"], "positive number"),
        (["polish"], "polish"),
        ([], "command"),
    ],
)
def test_wrong_usage_exits_with_2(
    args: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(args)
    assert stopped.value.code == 2
    assert word in capsys.readouterr().err


def test_a_shape_beyond_memory_is_a_plain_message(capsys: pytest.CaptureFixture[str]) -> None:
    side = 10**11
    assert main(["bench", "--shapes", f"{side}x{side}x1", *TINY]) == 1
    assert f"{side}x{side}x1" in capsys.readouterr().err


# -- a fair opponent ------------------------------------------------------------------------------


def test_fair_environment_frees_numpy_and_sets_threads() -> None:
    given = {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_L2_SIZE": "512", "HOME": "/", "X": ""}
    assert numpy_side.fair_environment(given, 3) == {
        "HOME": "/", "X": "", "OPENBLAS_NUM_THREADS": "3", "OMP_NUM_THREADS": "3",
    }  # fmt: skip


def test_the_command_restarts_itself_once() -> None:
    args = ("bench", "--shapes", "4x4x4", "--threads", "2", *TINY)
    done = _command(*args, OPENBLAS_CORETYPE="Haswell", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Restarted without OPENBLAS_CORETYPE") == 1
    assert "OMP_NUM_THREADS=2" in done.stdout
    assert done.stdout.count("4x4x4") == 1


def test_somebody_elses_process_gets_a_note(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    numpy_side.restart(1, own_process=False)
    assert "OPENBLAS_CORETYPE" in capsys.readouterr().out


def test_turns_are_interleaved() -> None:
    calls: list[str] = []
    order: list[str] = []
    times = timing.take_turns(
        {name: lambda name=name: calls.append(name) for name in "ab"},
        rounds=2, seconds=1e-9, advance=lambda: order.append(calls[-1]),
    )  # fmt: skip
    assert order == ["a", "b", "b", "a"]
    assert {name: len(rounds) for name, rounds in times.items()} == {"a": 2, "b": 2}
    assert timing.ratio([2.0, 9.0, 4.0], [1.0, 3.0, 1.0]) == 3.0


def test_a_busy_machine_is_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "usable_cpus", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (2.6, 0.0, 0.0), raising=False)
    assert not timing.busy(1)
    assert "load average was 2.6 on 4" in timing.busy(2)


# -- the register-only loop -----------------------------------------------------------------------


LOOPS = [(F32, "madd"), (F64, "madd"), (F32, "bf16_dot"), (I32, "dot4")]


@pytest.mark.parametrize("element, fold", LOOPS)
def test_peak_function_computes_what_it_says(element: Any, fold: str) -> None:
    isa, dtype = engine().isa, element_dtype(element)
    if isa.interpreted or fold not in isa.table(element):
        pytest.skip("machine code of this operation only")
    lanes, count, reps = isa.lanes(element), chains(isa), 5
    io = aligned_buffer((1 + count) * lanes * element.bytes).view(dtype).reshape(1 + count, lanes)
    if element.integral:
        io.view(np.uint8)[:] = np.arange(io.nbytes).reshape(1 + count, -1) * 37
    else:
        # Quarters: every step is exact, so the order of the total does not matter.
        io[:] = np.arange(io.size, dtype=dtype).reshape(io.shape) % 16 / 4
        io[0] = 0.5
    x, sums = io[0].copy(), io[1:].copy()
    meaning = isa.table(element)[fold].meaning
    one = fold != "madd" or isa.fused
    for _ in range(reps):
        sums = np.array([meaning(x, x, s) for s in sums]) if one else sums * x + x
    unit = peak_unit(element, fold)
    run = compiler.get(unit).function(unit.name, ctypes.c_int64, ctypes.c_void_p)
    run(reps, address(io))
    np.testing.assert_array_equal(io[0], sums.sum(axis=0, dtype=dtype))


@pytest.mark.parametrize("element, fold", LOOPS)
def test_peak_loop_is_multiply_adds_and_a_counter(element: Any, fold: str) -> None:
    isa = engine().isa
    if isa.arch != "x86_64" or not isa.fused or fold not in isa.table(element):
        pytest.skip("reads x86 assembly of a fused instruction set")
    unit = peak_unit(element, fold)
    lines = [line.strip() for line in compiler.assembly(unit).splitlines()]
    (last,) = (i for i, line in enumerate(lines) if line.startswith("jl\t"))
    first = lines.index(lines[last].split()[1] + ":")
    loop = lines[first + 1 : last + 1]
    names = {"madd": "vfmadd", "bf16_dot": "vdpbf16ps", "dot4": "vpdpbusd"}
    fused = [line for line in loop if re.sub(r"\{\w+\}\s*", "", line).startswith(names[fold])]
    assert len(fused) == chains(isa)
    assert len({line.split()[-1] for line in fused}) == chains(isa)
    assert not any("(" in line for line in loop), "nothing is read from memory"
    assert len(loop) - len(fused) <= 3


def test_chains_fit_the_registers() -> None:
    for element, isa, *_ in registry.rows():
        assert 8 <= chains(isa) <= isa.vector_registers - 4
        for fold, each in FOLDS.items():
            wanted = each * isa.lanes(element) * chains(isa)
            assert operations_per_round(element, isa, fold) == wanted


def test_peak_of_an_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from jitgemm.isa.tables import INTERPRETER

    monkeypatch.setattr(engine(), "isa", INTERPRETER)
    with pytest.raises(IsaError, match="machine code"):
        measure_peak(F32)


def test_peak_of_an_operation_the_set_lacks_is_refused() -> None:
    if engine().isa.interpreted:
        pytest.skip("machine code only")
    with pytest.raises(IsaError, match="dot4 on f64"):
        measure_peak(F64, "dot4")


# -- demo -----------------------------------------------------------------------------------------


def test_demo_names_what_to_install(capsys: pytest.CaptureFixture[str], without: Any) -> None:
    without("sklearn")
    assert main(["demo"]) == 1
    assert "pip install 'jitgemm[demo]'" in capsys.readouterr().err


def test_demo_end_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("rich")
    tiny = ["--epochs", "2", "--hidden", "24", "--seconds", "0.1", "--threads", "1"]
    assert main(["demo", *tiny]) == 0
    out = capsys.readouterr().out
    assert "64x24 + 24x10" in out
    # jitgemm sums in another order than NumPy: a tie may break differently, a mistake would show.
    same = [int(count) for count in re.findall(r"(\d+) of 719", out)]
    assert len(same) == 3
    assert min(same) >= 715
    assert re.search(r"^kernel +f32_gemm_packed_.*bias_relu", out, re.MULTILINE)


# -- tables ---------------------------------------------------------------------------------------


def test_plain_tables() -> None:
    table = Table("Title", ("name", "n"), [("a", "1"), ("bc", "20")], "Caption", numbers=True)
    assert table.plain().splitlines() == [
        "Title", "name   n", "----  --", "a      1", "bc    20", "Caption",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "size, text", [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB")]
)
def test_byte_sizes(size: int, text: str) -> None:
    assert byte_size(size) == text
