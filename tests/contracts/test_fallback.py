"""Where no code can be generated the same calls work, through a BLAS and with one warning.

Each case is a process of its own: what it lacks cannot be given back.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from jitgemm.errors import IsaError
from oracle import run_python

# Linux 6.3, linux/prctl.h: from now on no page that was writable may become executable.
_REFUSE = """
import ctypes
assert ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0
"""
_HIDDEN = """
import importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "llvmlite":
            raise {error}
        return None

sys.meta_path.insert(0, Hidden())
"""
_BROKEN = """
import jitgemm.jit.compiler as compiler
import llvmlite.binding as llvm

def fail(*_, **__):
    raise {error}

llvm.{what} = fail
"""


def _mdwe() -> bool:
    """Whether the system can refuse executable memory to one process."""
    done = subprocess.run([sys.executable, "-c", _REFUSE], capture_output=True)
    return sys.platform == "linux" and done.returncode == 0


class Case:
    """How a process comes to be without generated code, and what the warning says of it."""

    def __init__(self, says: str, before: str = "", **variables: str | None) -> None:
        self.says, self.before = says, before
        self.variables = {"JITGEMM_ISA": None, **variables}

    def run(self, code: str, **variables: str) -> str:
        return run_python(self.before + code, **{**self.variables, **variables}).stdout


CASES = {
    "asked for": Case("JITGEMM_ISA=none", JITGEMM_ISA="none"),
    "asked for loudly": Case("JITGEMM_ISA=NONE", JITGEMM_ISA="NONE"),
    "no llvmlite": Case(
        "llvmlite cannot be imported",
        _HIDDEN.format(error='ModuleNotFoundError("gone", name=name)'),
    ),
    "llvmlite does not load": Case(
        "llvmlite cannot be imported (no such library)",
        _HIDDEN.format(error='OSError("no such library")'),
    ),
    "an unknown machine": Case(
        "LLVM does not know this machine (no target)",
        _BROKEN.format(what="initialize_native_target", error='RuntimeError("no target")'),
    ),
    "no target machine": Case(
        "no such triple",
        _BROKEN.format(what="Target.from_triple", error='RuntimeError("no such triple")'),
    ),
    "the linker fails": Case(
        "cannot link",
        _BROKEN.format(what="JITLibraryBuilder.link", error='RuntimeError("cannot link")'),
    ),
    "no executable memory": Case("memory cannot be made executable", _REFUSE),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    if request.param == "no executable memory" and not _mdwe():
        pytest.skip("needs prctl(PR_SET_MDWE)")
    return CASES[request.param]


def test_every_call_works_with_one_warning(case: Case) -> None:
    text = case.run("""
import pickle, warnings
import numpy as np
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import jitgemm
    assert not caught
    rng = np.random.default_rng(0)
    for kind in ("f4", "f8", "c8", "c16"):
        a, b, c = (rng.integers(-4, 5, s).astype(kind) for s in ((6, 5), (5, 7), (6, 7)))
        bias, out = c[0].copy(), np.empty_like(c)
        want = np.einsum("ik,kj->ij", a, b)
        real = np.dtype(kind).kind == "f"
        full = 2 * want + 3 * c + bias
        full = np.maximum(full, 0) if real else full
        options = {"alpha": 2, "beta": 3, "c": c, "bias": bias}
        options |= {"activation": "relu"} if real else {}
        for _ in range(2):
            assert (jitgemm.matmul(a, b) == want).all()
            assert jitgemm.matmul(a, b, out=out, threads=2) is out and (out == want).all()
            assert (jitgemm.matmul(np.stack([a, a]), b) == want).all()
            assert (jitgemm.matmul(a[0], b) == want[0]).all()
            assert jitgemm.matmul(a[0], b[:, 0]) == want[0, 0]
            assert (jitgemm.gemm(a, b) == want).all()
            assert (jitgemm.gemm(a, b, threads=2, workspace=jitgemm.Workspace()) == want).all()
            assert (jitgemm.gemm(a, b, backend="blas") == want).all()
            assert (jitgemm.gemm(a, b, **options) == full).all()
        for prepack, x in ((jitgemm.prepack_rhs, b), (jitgemm.prepack_lhs, a)):
            for stored in (x, np.asfortranarray(x), x.astype(x.dtype.newbyteorder("S"))):
                h = prepack(stored)
                assert (h.shape, h.dtype, h.nbytes, h.isa) == (x.shape, x.dtype, x.nbytes, "none")
            stored = x.copy()
            h = prepack(stored)
            stored[...] = 9
            for handle in (h, pickle.loads(pickle.dumps(h))):
                assert (handle.unpack() == x).all() and not handle.storage.flags.writeable
                left, right = (a, handle) if x is b else (handle, b)
                assert (jitgemm.gemm(left, right, **options) == full).all()
                p = jitgemm.plan(left, right, **options)
                assert p(left, right, out) is out and (out == full).all()
        p = jitgemm.plan(a, b, out=out, **options)
        assert p(a, b, out) is out and (out == full).all() and (p(a, b) == full).all()
        assert "backend blas" in p.explain()
        for show in (p.ir, p.asm):
            try:
                show()
            except ValueError as e:
                assert str(e).startswith("jitgemm: plan: expected one with a kernel")
            else:
                raise AssertionError("there is no kernel to show")
    jitgemm.set_num_threads(2)
    with jitgemm.threads(1):
        assert jitgemm.get_num_threads() == 1
    config = jitgemm.show_config()
    assert config["isa"] == "none" and not config["native_entry"] and config["jit_unavailable"]
    for kind in "?bBhHiIlLe":
        a, b = rng.integers(0, 4, (6, 5)).astype(kind), rng.integers(0, 4, (5, 7)).astype(kind)
        got, want = jitgemm.matmul(a, b), np.matmul(a, b)
        assert got.dtype == want.dtype and (got == want).all()
        packed = jitgemm.matmul(a, jitgemm.prepack_rhs(b))
        assert packed.dtype == want.dtype and (packed == want).all()
    narrow, wide = rng.integers(-128, 128, (6, 40)).astype("i1"), rng.integers(0, 256, (40, 7))
    zero, scale = np.arange(6) - 3, np.arange(1, 8) / 512
    rule = jitgemm.Requantize(scale, 5, np.uint8, bias=np.arange(7))
    sums = (narrow - zero[:, np.newaxis]) @ (wide - 9)
    full = np.clip(np.rint((sums + np.arange(7)) * scale) + 5, 0, 255)
    points = {"a_zero_point": zero, "b_zero_point": 9}
    wide = wide.astype("u1")
    assert (jitgemm.gemm(narrow, wide, **points) == sums).all()
    assert (jitgemm.gemm(narrow, wide, **points, requantize=rule) == full).all()
    assert (jitgemm.gemm(np.stack([narrow] * 2), wide, **points, requantize=rule) == full).all()
    p = jitgemm.plan(np.stack([narrow] * 2), wide, **points, requantize=rule)
    assert (p(np.stack([narrow] * 2), wide) == full).all() and "backend blas" in p.explain()
assert [w.category for w in caught] == [jitgemm.JitGemmWarning], caught
print(caught[0].filename)
print(caught[0].message)
""")
    where, what = text.splitlines()
    assert where == "<string>", "the warning does not point at the caller"
    assert what.startswith("jitgemm: ")
    assert case.says in what


def test_threads_that_find_out_at_once_warn_once(case: Case) -> None:
    case.run("""
import threading, warnings
import numpy as np
import jitgemm
a, results = np.ones((3, 3)), []
gate = threading.Barrier(8)

def work():
    gate.wait()
    results.append(jitgemm.gemm(a, a)[0, 0])

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    threads = [threading.Thread(target=work) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
assert results == [3.0] * 8
assert len(caught) == 1
""")


def test_info_says_why(case: Case) -> None:
    text = case.run("""
import sys, warnings
warnings.simplefilter("ignore")
from jitgemm.cli.main import main
sys.exit(main(["info", "--json"]))
""")
    facts: dict[str, Any] = json.loads(text)
    assert case.says in facts["jit_unavailable"]
    assert (facts["isa"], any(facts["isas"].values()), facts["compiled"]) == ("none", False, [])
    assert not any(row["available"] for row in facts["kernels"])
    plain = case.run("""
import sys, warnings
warnings.simplefilter("ignore")
from jitgemm.cli.main import main
sys.exit(main(["info"]))
""")
    assert "none" in plain


def test_errors_are_those_of_the_kernels(case: Case) -> None:
    code = """
import warnings
warnings.simplefilter("ignore")
import numpy as np
import jitgemm
a, frozen = np.ones((3, 4), "f4"), np.ones((3, 3), "f4")
frozen.flags.writeable = False
for call in (
    lambda: jitgemm.gemm(a, a), lambda: jitgemm.matmul(a, a), lambda: jitgemm.gemm(a, a.T, beta=1),
    lambda: jitgemm.gemm(a, a.T, out=frozen), lambda: jitgemm.matmul(a, a.T, out=frozen),
    lambda: jitgemm.gemm(a, a.T.astype("c8")), lambda: jitgemm.gemm(a, a.T, bias=a),
    lambda: jitgemm.gemm(a, a.T, activation="no"), lambda: jitgemm.gemm(a, a.T, threads=0),
    lambda: jitgemm.gemm(a, jitgemm.prepack_rhs(a)), lambda: jitgemm.prepack_rhs(a[0]),
    lambda: jitgemm.plan(a, a), lambda: jitgemm.gemm(a, a.T, backend="no"),
    lambda: jitgemm.gemm(a, a.T, workspace=3),
):
    try:
        call()
    except Exception as e:
        print(type(e).__name__, e)
    else:
        print("no error")
"""
    got = case.run(code)
    assert "no error" not in got
    assert got == run_python(code, JITGEMM_ISA=None).stdout


# -- loud failures stay loud ----------------------------------------------------------------------


@pytest.mark.parametrize("isa", ["avx2", "portable", "interpreter", "nonsense", "nones"])
def test_a_pinned_set_is_had_or_refused(case: Case, isa: str) -> None:
    if case.variables.get("JITGEMM_ISA"):
        pytest.skip("nothing is missing but the set")
    text = case.run(
        """
import numpy as np
import jitgemm
a = np.ones((3, 3))
for call in (lambda: jitgemm.gemm(a, a), lambda: jitgemm.matmul(a, a), jitgemm.show_config,
             lambda: jitgemm.plan(a, a), lambda: jitgemm.prepack_rhs(a)):
    for _ in range(2):
        try:
            call()
        except jitgemm.IsaError as e:
            print(e)
""",
        JITGEMM_ISA=isa,
    )
    lines = text.splitlines()
    assert len(lines) == 10
    assert all(line.startswith("jitgemm: JITGEMM_ISA: expected") for line in lines)
    assert issubclass(IsaError, RuntimeError)


def test_asking_for_a_blas_needs_no_warning() -> None:
    run_python(
        """
import warnings
warnings.simplefilter("error")
import numpy as np
import jitgemm
a = np.ones((3, 3))
assert (jitgemm.gemm(a, a, backend="blas") == 3).all()
assert (jitgemm.plan(a, a, backend="blas")(a, a) == 3).all()
""",
        JITGEMM_ISA="none",
    )


@pytest.mark.skipif(not _mdwe(), reason="needs prctl(PR_SET_MDWE)")
def test_giving_the_right_up_later_raises_and_does_not_end_the_process() -> None:
    run_python("""
import ctypes
import numpy as np
import jitgemm
a, b = np.ones((3, 3), "f4"), np.ones((3, 3), "f8")
jitgemm.gemm(a, a)
assert ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0
assert (jitgemm.gemm(a, a) == 3).all()
try:
    jitgemm.gemm(b, b)
except RuntimeError as e:
    assert str(e).startswith("jitgemm: no code can be generated: memory cannot"), e
else:
    raise AssertionError("it was linked")
assert (jitgemm.gemm(b, b, backend="blas") == 3).all()
""")
