"""The shape of the package: layers, public surface, cheap imports, sets added from outside."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm.api import stubs
from jitgemm.api.functions import NAMED
from jitgemm.api.keywords import GemmKeywords, ListKeywords, defaults
from jitgemm.isa import tables
from jitgemm.isa.tables import INTERPRETER, PORTABLE, Isa
from jitgemm.isa.types import F32, F64
from jitgemm.jit import compiler
from jitgemm.jit.target import available
from jitgemm.kernels import registry
from jitgemm.kernels.spec import BSource, Epilogue, GemmSpec, Tile
from jitgemm.runtime import engine as engines
from jitgemm.runtime import executables
from jitgemm.runtime.signature_code import KEYWORDS
from oracle import ROOT, documented, equal, exact_gemm, integers, reals, run_python, same_bits

PACKAGE = Path(jitgemm.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


# -- layers ---------------------------------------------------------------------------------------


def test_arrows_point_down_only() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    kept, broken = re.findall(r"Contracts: (\d+) kept, (\d+) broken", done.stdout)[0]
    assert (int(kept) >= 3, int(broken)) == (True, 0)


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_the_environment_is_read_in_one_place() -> None:
    readers = {
        str(p.relative_to(PACKAGE)) for p in MODULES
        if re.search(r"os\.environ|getenv", p.read_text()) and "cli" not in p.parts
    }  # fmt: skip
    # The cache folder follows the platform's own variables (XDG_CACHE_HOME, LOCALAPPDATA).
    assert readers <= {"tuning.py", "jit/cache.py"}


def test_jobs_have_one_writer() -> None:
    writers = {
        str(p.relative_to(PACKAGE)) for p in MODULES
        if re.search(r"\bJOB\.(slot|fields)\b", p.read_text())
    }  # fmt: skip
    assert writers == {"runtime/jobs.py"}


def test_only_the_compiler_knows_llvmlite_and_nobody_its_ir_builder() -> None:
    users = {str(p.relative_to(PACKAGE)) for p in MODULES
             if any(i.split(".")[0] == "llvmlite" for i in _imports(p))}  # fmt: skip
    assert users <= {"jit/compiler.py", "jit/target.py", "cli/info.py"}
    assert not any("llvmlite.ir" in _imports(p) for p in MODULES)


def test_modules_are_small_and_typed() -> None:
    for path in MODULES:
        text = path.read_text()
        assert len(text.splitlines()) <= 450, path
        assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"
        if path.name not in ("__init__.py", "__main__.py"):
            assert "from __future__ import annotations" in text, path


def test_nothing_generated_is_checked_in() -> None:
    suffixes = {".o", ".so", ".ll", ".s", ".bc", ".pyd", ".c", ".h"}
    assert not [p for p in PACKAGE.rglob("*") if p.suffix in suffixes]


# -- public surface -------------------------------------------------------------------------------

PUBLIC = [
    "Activation", "IsaError", "JitGemmWarning", "LanguageError", "PackedLhs", "PackedRhs",
    "Parameter", "Plan", "Requantize", "Workspace", "activation", "clip", "gemm",
    "gemm_batched", "get_num_threads", "kernel", "launch", "leaky_relu", "math", "matmul", "matvec",
    "plan", "prepack_lhs", "prepack_rhs", "register_activation", "register_post_op",
    "register_storage_type", "set_num_threads", "show_config", "threads",
    "unregister_activation", "unregister_post_op", "unregister_storage_type", "vecdot", "vecmat",
]  # fmt: skip


def test_the_public_surface_is_what_it_was() -> None:
    assert sorted(jitgemm.__all__) == PUBLIC
    assert re.fullmatch(r"\d+\.\d+\.\d+", jitgemm.__version__)
    for name in PUBLIC:
        thing = getattr(jitgemm, name)
        assert thing.__doc__, name


def test_all_modules_list_what_they_offer() -> None:
    for path in MODULES:
        tree = ast.parse(path.read_text())
        lists = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        ]
        kinds = (ast.FunctionDef, ast.ClassDef)
        public = [n for n in tree.body if isinstance(n, kinds) and n.name[0] != "_"]
        if public:
            assert lists, f"{path} has no __all__"
            assert set(ast.literal_eval(lists[0])) <= _defined(tree), path


def _defined(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
    return found


def test_importing_is_cheap_and_touches_nothing(tmp_path: Path) -> None:
    code = """
        import json, os, sys, threading
        before = set(sys.modules)
        import jitgemm
        from jitgemm.jit import compiler
        from jitgemm.runtime import engine
        print(json.dumps({
            "modules": sorted(m.split(".")[0] for m in set(sys.modules) - before),
            "units": len(compiler.compiled()),
            "engine": engine._engine is not None,
            "threads": threading.active_count(),
            "files": os.listdir(os.environ["JITGEMM_CACHE_DIR"]),
        }))
    """
    found = json.loads(run_python(code, JITGEMM_CACHE_DIR=str(tmp_path)).stdout)
    unwanted = {
        "sklearn",
        "rich",
        "torch",
        "scipy",
        "ml_dtypes",
        "numba",
        "pytest",
        "threadpoolctl",
    }
    assert not unwanted & set(found.pop("modules"))
    assert found == {"units": 0, "engine": False, "threads": 1, "files": []}


def test_importing_survives_a_foreign_environment(tmp_path: Path) -> None:
    # Nothing is read before it is used: even nonsense does not stop the import.
    nonsense = dict.fromkeys(("JITGEMM_ISA", "JITGEMM_NUM_THREADS", "JITGEMM_SPIN_US"), "nonsense")
    run_python("import jitgemm", JITGEMM_CACHE_DIR="/proc/no", **nonsense)


def test_show_config_describes_this_process() -> None:
    a = np.ones((3, 3), np.float32)
    jitgemm.gemm(a, a)
    config = jitgemm.show_config()
    assert config["isa"] == engines.engine().isa.name
    assert config["threads"] == jitgemm.get_num_threads()
    assert 0 < config["caches"]["l1d"] < config["caches"]["l2"] <= config["caches"]["l3"]
    assert config["kernels"]
    assert Path(config["cache_dir"]).is_dir()
    json.dumps(config)  # plain values only


# -- from outside ---------------------------------------------------------------------------------


@pytest.fixture
def outsiders() -> Iterator[None]:
    """Rows added by a test are gone afterwards, and so is every plan made with them."""
    engine = engines.engine()
    sets, rows, units = dict(tables.BY_NAME), dict(registry._ROWS), set(compiler._store.units)
    isa = engine.isa
    yield
    engine.isa = isa
    tables.BY_NAME.clear()
    tables.BY_NAME.update(sets)
    registry._ROWS.clear()
    registry._ROWS.update(rows)
    for key in set(compiler._store.units) - units:
        del compiler._store.units[key]
    stubs.forget()
    executables.forget()


TOY_TILE = Tile(mr=3, nr_regs=3, groups=((1, 3), (2, 1)))


def _toy(**fields: Any) -> Isa:
    """A 256-bit set: the portable operations under another name and width."""
    return replace(PORTABLE, **{"name": "toy", "vector_bits": 256, **fields})


def _use(isa: Isa) -> None:
    engines.engine().isa = isa
    stubs.forget()
    executables.forget()


@pytest.mark.parametrize(
    "isa, dtype",
    [
        pytest.param(_toy(), np.float32, id="toy-f32"),
        pytest.param(_toy(name="toy_wide", vector_bits=512), np.float32, id="toy_wide-f32"),
        pytest.param(_toy(name="toy_thin", vector_bits=64), np.float64, id="toy_thin-f64"),
    ],
)
def test_an_instruction_set_and_its_tiles_can_be_added_from_outside(
    isa: Isa, outsiders: None, dtype: Any, rng: np.random.Generator, eager_threads: None
) -> None:
    if engines.engine().isa.interpreted:
        pytest.skip("the engine was built without native entries")
    tables.register(isa)
    for element in (F32, F64):
        registry.register(element, isa, TOY_TILE)
    assert tables.BY_NAME[isa.name] is isa
    assert available(isa)
    _use(isa)
    for m, n, k in ((1, 1, 1), (2, 7, 5), (3, 24, 9), (4, 25, 9), (40, 70, 33), (5, 3, 520)):
        a, b, c = (integers(rng, s, dtype) for s in ((m, k), (k, n), (m, n)))
        options: dict[str, Any] = {"beta": 2, "c": c, "bias": c[0].copy(), "activation": "relu"}
        packed = jitgemm.prepack_rhs(b)
        assert packed.isa == isa.name
        assert packed.nr == 3 * isa.vector_bits // (8 * b.itemsize)
        for right in (b, np.asfortranarray(b), packed):
            equal(jitgemm.gemm(a, right, **options), exact_gemm(a, b, **options))
            equal(jitgemm.gemm(a, right, threads=2, **options), exact_gemm(a, b, **options))
        equal(jitgemm.gemm(a, b, threads=2), exact_gemm(a, b))
        x, y = reals(rng, (m, k), dtype), reals(rng, (k, n), dtype)
        same_bits(jitgemm.gemm(x, y), documented(x, y, fused=False))
    p = jitgemm.plan(a.T, a)
    assert f"_3x{packed.nr}__{isa.name}" in p.explain()
    # A B no wider than a vector: three times the rows on a third of the vectors.
    slim = jitgemm.plan(np.ascontiguousarray(a.T), a[:, :2]).explain()
    assert (f"_9x{packed.nr // 3}__{isa.name}" in slim) == (packed.nr >= 6)
    assert f"__{isa.name}" in p.asm()


def test_a_tile_can_be_exchanged_from_outside(
    outsiders: None, dtype: Any, rng: np.random.Generator
) -> None:
    isa = engines.engine().isa
    a, b = integers(rng, (31, 20), dtype), integers(rng, (20, 70), dtype)
    old = jitgemm.prepack_rhs(b)
    for tile in (Tile(1, 1, ((1, 1),)), Tile(2, 3, ((1, 2),)), Tile(5, 1, ((1, 5), (3, 1)))):
        for element in (F32, F64):
            registry.register(element, isa, tile)
        _use(isa)
        equal(jitgemm.gemm(a, b), exact_gemm(a, b))
        packed = jitgemm.prepack_rhs(b)
        assert packed.nr != old.nr or tile.nr_regs == 2
        equal(jitgemm.gemm(a, packed), exact_gemm(a, b))


def test_a_tile_beyond_the_registers_is_refused(outsiders: None) -> None:
    before = registry.rows()
    for tile in (Tile(6, 3, ((1, 6),)), Tile(14, 1, ((1, 14), (2, 14))), Tile(16, 1, ((1, 16),))):
        with pytest.raises(ValueError, match="registers"):
            registry.register(F32, _toy(), tile)
    assert registry.rows() == before


def test_a_set_of_the_future_is_not_chosen(outsiders: None) -> None:
    for isa in (_toy(requires=frozenset({"avx9000"})), _toy(arch="mips")):
        assert not available(isa)
        assert available(INTERPRETER)


def test_units_of_the_same_name_but_another_set_are_not_confused(outsiders: None) -> None:
    narrow, wide = _toy(vector_bits=128), _toy(vector_bits=256)
    units = []
    for isa in (narrow, wide):
        # The same columns per micropanel: for a reader they are the same kernel.
        tile = Tile(2, 512 // isa.vector_bits, ((1, 2),))
        units.append(compiler.gemm_unit(GemmSpec(F32, isa, tile, BSource.PACKED, Epilogue())))
    assert units[0].name.rsplit("_", 1)[0] == units[1].name.rsplit("_", 1)[0]
    assert units[0].name != units[1].name
    assert units[0].key != units[1].key
    first, second = (compiler.get(u).addresses for u in units)
    assert not set(first.values()) & set(second.values())


def test_keywords_are_declared_once() -> None:
    """What type checkers, Python and generated code know of a call is the same."""
    declared = set(GemmKeywords.__annotations__)
    assert declared == set(ListKeywords.__annotations__) == set(defaults())
    others = {"out", "c", "bias", "alpha", "beta", "threads", "workspace"}
    assert declared == set(KEYWORDS) | others
    assert set(NAMED) == declared
    for function in (jitgemm.gemm, jitgemm.plan, jitgemm.gemm_batched):
        assert set(inspect.signature(function).parameters) == {"a", "b", *declared}
