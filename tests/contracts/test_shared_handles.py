"""Handles in processes of other instruction sets: their layout decides, not the set's name."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import jitgemm
from jitgemm.isa.tables import BY_NAME
from jitgemm.jit.target import NO_ISA, available
from jitgemm.runtime.engine import engine
from jitgemm.runtime.packed import Layout, Packed
from oracle import integers, run_python, same_bits
from rows import floats_of

Array = np.ndarray[Any, Any]
TYPES = {str(np.dtype(t)): np.dtype(t) for t in ("f4", "c16", "i1", "i4", ml_dtypes.bfloat16)}
SETS = [NO_ISA, *(isa.name for isa in BY_NAME.values() if available(isa))]
M, K, N = 5, 21, 35

WRITER = """
    import pathlib, pickle, sys, warnings
    warnings.simplefilter("ignore")
    import jitgemm
    source, target = map(pathlib.Path, sys.argv[1:])
    made = {
        name: (jitgemm.prepack_lhs(a), jitgemm.prepack_rhs(b), jitgemm.prepack_rhs(b[1]))
        for name, (a, b) in pickle.loads(source.read_bytes()).items()
    }
    target.write_bytes(pickle.dumps(made))
"""

READER = """
    import pathlib, pickle, sys, warnings
    warnings.simplefilter("ignore")
    import numpy as np
    import jitgemm
    from jitgemm.runtime.engine import usable
    source, *files = map(pathlib.Path, sys.argv[1:])
    assert not usable()
    count = 0
    for file in files:
        made = pickle.loads(file.read_bytes())
        for name, (a, b) in pickle.loads(source.read_bytes()).items():
            left, right, alone = made[name]
            assert (left.unpack() == a).all() and (right.unpack() == b).all()
            for x, y, i in ((a[1], alone, 1), (a[0], right[0], 0), (left[2], b[2], 2)):
                planned = lambda x, y: jitgemm.plan(x, y)(x, y)
                for call in (jitgemm.gemm, jitgemm.matmul, planned):
                    got, want = call(x, y), call(a[i], b[i])
                    assert got.dtype == want.dtype and (got == want).all(), (file, name)
                    count += 1
    print(count)
"""


class Travelled(NamedTuple):
    """Operands, and the handles on them that processes of all sets have written."""

    source: Path
    operands: dict[str, tuple[Array, Array]]
    files: dict[str, Path]

    def handles(self, writer: str) -> dict[str, tuple[Packed, Packed, Packed]]:
        """By type: on the stack of A, on that of B, on the second matrix of B."""
        loaded: dict[str, tuple[Packed, Packed, Packed]]
        loaded = pickle.loads(self.files[writer].read_bytes())
        return loaded


@pytest.fixture(scope="module")
def travelled(tmp_path_factory: pytest.TempPathFactory) -> Travelled:
    """One process per instruction set packs the same operands."""
    rng, where = np.random.default_rng(31), tmp_path_factory.mktemp("handles")
    operands = {name: (integers(rng, (3, M, K), t), integers(rng, (3, K, N), t))
                for name, t in TYPES.items()}  # fmt: skip
    source = where / "operands"
    source.write_bytes(pickle.dumps(operands))
    files = {name: where / name for name in SETS}
    for name, file in files.items():
        run_python(WRITER, str(source), str(file), JITGEMM_ISA=name)
    return Travelled(source, operands, files)


def _planned(a: Any, b: Any) -> Any:
    return jitgemm.plan(a, b)(a, b)


def _told(layout: Layout) -> str:
    """What a message must say of a layout."""
    return f"micropanels {layout.nr // layout.components} "


def _outcome(call: Any, a: Any, b: Any, want: Array, own: Packed, name: str) -> bool:
    """Whether a handle was taken; right if it was, and refused in plain words if not."""
    handle = a if name == "a" else b
    try:
        got = call(a, b)
    except TypeError as e:
        text = str(e)
        expected, _, found = text.partition(", got ")
        assert re.match(r"jitgemm: (a|b|x1|x2): expected an array, or an operand packed for ", text)
        assert str(own.layout) in expected
        assert str(handle.layout) in found
        for part, layout in ((expected, own.layout), (found, handle.layout)):
            assert _told(layout) in part
            assert ("of depth side by side" in part) == (layout.group > 1)
        assert f"prepacked {handle.dtype} from {handle.isa} " in found
        return False
    same_bits(got, want)
    return True


@pytest.mark.parametrize("writer", SETS)
def test_c23_a_layout_that_serves_is_taken_and_no_other(writer: str, travelled: Travelled) -> None:
    made = travelled.handles(writer)
    for kind, (a, b) in travelled.operands.items():
        left, right, alone = made[kind]
        for handle, x in ((left, a), (right, b), (alone, b[1])):
            assert handle.isa == writer
            assert handle.shape == x.shape
            same_bits(handle.unpack(), x)
        taken = set()
        for given_a, given_b, i, name in (
            (a[1], alone, 1, "b"), (a[0], right[0], 0, "b"), (left[2], b[2], 2, "a"),
        ):  # fmt: skip
            own = jitgemm.prepack_rhs(b[i]) if name == "b" else jitgemm.prepack_lhs(a[i])
            handle = given_b if name == "b" else given_a
            for call in (jitgemm.gemm, jitgemm.matmul, _planned, jitgemm.gemm):
                got = _outcome(call, given_a, given_b, call(a[i], b[i]), own, name)
                assert got == handle.layout.serves(own.layout), (kind, name)
                taken.add(got)
            # A BLAS takes it unpacked, whatever its layout is.
            by_blas = jitgemm.gemm(given_a, given_b, backend="blas")
            assert (by_blas == jitgemm.gemm(a[i], b[i])).all()
        assert len(taken) == 1
        mine = engine().isa
        if writer == NO_ISA:
            assert taken == {False}, "what no kernel has packed is another layout"
        elif writer == mine.name:
            assert taken == {True}
        elif kind == "float32" and floats_of(BY_NAME[writer]) == floats_of(mine):
            assert taken == {True}, "sets that pack alike share operands"


def test_c23_one_plain_panel_of_the_kernels_own_width_is_a_micropanel(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    own = jitgemm.prepack_rhs(np.ones((K, N), np.float32))
    a, b = (integers(rng, s, np.float32) for s in ((3, M, K), (3, K, own.nr)))
    source, target = tmp_path / "operands", tmp_path / "handles"
    source.write_bytes(pickle.dumps({"float32": (a, b)}))
    run_python(WRITER, str(source), str(target), JITGEMM_ISA=NO_ISA)
    _, right, alone = pickle.loads(target.read_bytes())["float32"]
    assert alone.layout == jitgemm.prepack_rhs(b[1]).layout
    same_bits(jitgemm.gemm(a[1], alone), jitgemm.gemm(a[1], b[1]))
    same_bits(jitgemm.gemm(a[2], right[2]), jitgemm.gemm(a[2], b[2]))


def test_c23_where_no_code_can_be_generated_every_layout_is_unpacked(travelled: Travelled) -> None:
    files = [str(file) for file in travelled.files.values()]
    done = run_python(READER, str(travelled.source), *files, JITGEMM_ISA=NO_ISA)
    assert int(done.stdout) == len(files) * len(TYPES) * 9
