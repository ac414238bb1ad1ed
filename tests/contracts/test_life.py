"""No call hangs or crashes, whatever Python is doing at that moment; objects outlive processes.

Exits, forks, signal handlers, finalisers, trace functions and operands that multiply while another
product is being planned, compiled or computed.  Each test is a process of its own with a watchdog.
"""

from __future__ import annotations

import compileall
import copy
import json
import os
import pickle
import py_compile
import shutil
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm.errors import JitGemmWarning, JitUnavailableError
from oracle import NESTED, run_python

pytestmark = pytest.mark.skipif(NESTED in os.environ, reason="the same on all instruction sets")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
linux = pytest.mark.skipif(sys.platform != "linux", reason="the C library's exit handlers")
WATCHDOG_S = 25
_dedent = textwrap.dedent

# Every route of a product.  ``multiply`` takes all of them and raises if one is wrong; ``fresh``
# is a shape nobody has asked for, which is planned.
_ROUTES = f"""
import faulthandler, sys
faulthandler.dump_traceback_later({WATCHDOG_S}, exit=True)
import atexit, gc, itertools, os, random, signal, threading, time, warnings, weakref
import numpy as np

a = np.arange(40 * 60, dtype=np.float32).reshape(40, 60) % 5 - 2
b = np.arange(60 * 50, dtype=np.float32).reshape(60, 50) % 7 - 3
want = (a.astype(int) @ b.astype(int)).astype(np.float32)
columns, doubled, sizes, made = np.asfortranarray(b), np.stack([a, a]), itertools.count(1), {{}}

def fresh(threads):
    m = 1 + next(sizes) % 3000
    got = jitgemm.gemm(np.ones((m, 3), np.float32), b[:3], threads=threads)
    return want if (got == b[:3].sum(0)).all() else got

def out_of_plan(threads):
    out = np.zeros_like(want)
    if threads not in made:
        made[threads] = jitgemm.plan(a, b, threads=threads)
    return made[threads](a, b, out)

def own(threads):
    if "space" not in made:
        made["space"] = jitgemm.Workspace()
    return jitgemm.gemm(a, columns, threads=threads, workspace=made["space"])

def packed(threads):
    if "handle" not in made:
        made["handle"] = jitgemm.prepack_rhs(b)
    return jitgemm.gemm(a, made["handle"], threads=threads)

ROUTES = {{
    "plain": lambda threads: jitgemm.gemm(a, b, threads=threads),
    "scratch": lambda threads: jitgemm.gemm(a, columns, threads=threads),
    "workspace": own,
    "packed": packed,
    "plan": out_of_plan,
    "stack": lambda threads: jitgemm.gemm(doubled, columns, threads=threads)[1],
    "list": lambda threads: jitgemm.gemm_batched([a, a], columns, threads=threads)[1],
    "matmul": lambda threads: jitgemm.matmul(a, b, threads=threads),
    "fresh": fresh,
}}

def multiply(*names):
    for name in names or ROUTES:
        for threads in (1, 2):
            got = ROUTES[name](threads)
            if not np.array_equal(got, want):
                say(f"wrong {{name}} {{threads}}")
                os._exit(3)

def say(text):
    os.write(1, f"{{text}}\\n".encode())

def alive():
    "Whether a worker takes part in a job: each of two threads waits for the other."
    import ctypes
    from jitgemm.runtime.engine import engine
    pool, meet = engine().pool, threading.Barrier(2, timeout=10)
    if pool.workers != 1:
        return False
    seen = []
    def job(_, slot):
        seen.append((slot, threading.get_native_id()))
        meet.wait()
    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(job)
    engine().run(int(pool.words[0]), ctypes.cast(body, ctypes.c_void_p).value, 0, 2)
    return len({{x for _, x in seen}}) == 2
"""
_IMPORT = _ROUTES + "import jitgemm\n"
_READY = _IMPORT + "multiply()\nassert alive()\n"
# Everything is worth two threads, and leaves the interpreter lock.
_EAGER = {"JITGEMM_PARALLEL_FLOPS": "1", "JITGEMM_GIL_FLOPS": "0"}


def _live(code: str, *args: str, status: int = 0, **variables: str | None) -> list[str]:
    """What a process says that ends by itself, with this status and without complaints."""
    variables = {**_EAGER, **variables}
    done = run_python(code, *args, timeout=WATCHDOG_S + 5, status=status, **variables)
    assert not done.stderr, done.stderr
    return done.stdout.split()


# -- the process ends -----------------------------------------------------------------------------


@linux
@pytest.mark.parametrize("moment", ["first use", "0", "0.1", "0.3", "no on_exit"])
def test_main_ends_while_a_daemon_thread_compiles(moment: str) -> None:
    code = """
    inside, optimized = threading.Event(), compiler._optimized

    def signalled(unit):
        inside.set()
        return optimized(unit)

    compiler._optimized = signalled

    def work():
        if sys.argv[1] == "no on_exit":
            # Another C library: the exit waits until LLVM is free.
            building._skip_destructors = lambda: False
            made[1].asm()
            time.sleep(1000)
        if sys.argv[1] == "first use":
            def epilogue(v, row, col):
                return jitgemm.math.erf(jitgemm.math.tanh(v) - jitgemm.math.erf(v))
            jitgemm.gemm(a, b, epilogue=epilogue)
        while True:
            made[1].asm()

    threading.Thread(target=work, daemon=True).start()
    assert inside.wait(10)
    time.sleep(float(sys.argv[1]) if sys.argv[1][0] == "0" else 0.2)
    sys.exit(7)
    """
    setup = _IMPORT + "from jitgemm.jit import building, compiler\nout_of_plan(1)\n"
    _live(setup + _dedent(code), moment, status=7)


@linux
def test_a_finaliser_does_not_wait_for_a_thread_that_no_longer_runs() -> None:
    code = """
    def square(v, row, col):
        return v * v * v * v

    class Thing:
        def __del__(self):
            multiply("plain", "scratch")
            try:
                jitgemm.gemm(a, b, epilogue=square)
            except RuntimeError as e:
                say("refused" if "a thread was compiling when" in str(e) else e)
            else:
                say("computed")

    def work():
        inside.set()
        while True:
            made[1].asm()

    # A daemon thread keeps the globals alive; a module is not.
    inside, module = threading.Event(), type(sys)("module")
    module.thing, sys.modules["module"] = Thing(), module
    del module
    threading.Thread(target=work, daemon=True).start()
    assert inside.wait(10)
    time.sleep(0.1)
    sys.exit(7)
    """
    said = _live(_READY + _dedent(code), status=7)
    # Nearly always the former: the thread spends its life in LLVM.
    assert said in (["refused"], ["computed"]), said


def test_main_ends_while_daemon_threads_are_in_every_route() -> None:
    code = """
    big, started = np.ones((700, 700), np.float32), threading.Semaphore(0)
    space, handle = jitgemm.Workspace(), jitgemm.prepack_rhs(big)
    turned = np.asfortranarray(big)
    calls = [
        lambda: jitgemm.gemm(big, big, threads=1), lambda: jitgemm.gemm(big, turned, threads=2),
        lambda: jitgemm.gemm(big, turned, threads=2, workspace=space),
        lambda: jitgemm.gemm(big, handle, threads=2), multiply,
        lambda: jitgemm.gemm_batched([big] * 3, turned, threads=2),
    ]

    def work(call):
        call()
        started.release()
        while True:
            call()

    for call in calls:
        threading.Thread(target=work, args=(call,), daemon=True).start()
    for _ in calls:
        assert started.acquire(timeout=20)
    sys.exit(7)
    """
    _live(_READY + _dedent(code), status=7)


_AT_THE_END = r"""
def late(name):
    multiply()
    say(name)

atexit.register(late, "registered-before")
import jitgemm
atexit.register(late, "registered-after")

class Thing:
    def __init__(self, name):
        self.name, self.plan = name, jitgemm.plan(a, b, threads=2) if started else None

    def __del__(self):
        late(self.name)
        if self.plan is not None:
            assert (self.plan(a, b) == want).all()

started = sys.argv[1] != "never"
if started:
    multiply()
    assert alive()
    atexit.register(late, "registered-last")

thing = Thing("global")
circle = Thing("circle")
circle.self = circle
finalised = Thing("finalised")
weakref.finalize(finalised, late, "finalize")

class Kept:
    # Uses nothing but what it holds: it dies when modules have been torn down.

    def __init__(self):
        self.own, self.say, self.calls = (a, b, want), os.write, [jitgemm.gemm, jitgemm.matmul]
        if started:
            self.calls.append(jitgemm.plan(a, b, threads=2))

    def __del__(self):
        a, b, want = self.own
        self.say(1, b"of-a-module\n")
        for call in self.calls:
            try:
                got = call(a, b)
            except Exception:  # what functions refer to is gone by now
                self.say(1, b"refused\n")
            else:
                assert got.tobytes() == want.tobytes()

if sys.argv[1] == "kept":
    threading.kept = Kept()
def ended():
    multiply()
    sys.exit()
ends = threading.Thread(target=ended)
ends.start()
sys.exit(5)
"""


@pytest.mark.parametrize("first", ["started", "never", "kept"])
def test_products_at_exit_are_right(first: str) -> None:
    # At exit callbacks, finalisers and __del__ of what lives until the interpreter ends; also when
    # the first product of all is one of them.
    said = _live(_ROUTES + _AT_THE_END, first, status=5)
    names = {"registered-before", "registered-after", "finalize"}
    names |= {"registered-last"} if first != "never" else set()
    # What a module holds keeps the globals of its class alive until nothing works any more.
    names |= {"of-a-module"} if first == "kept" else {"finalised", "global", "circle"}
    assert set(said) - {"refused"} == names, said


# -- Python runs in the middle of a call ----------------------------------------------------------

_SIGNALS = """
calls, names = [0], list(ROUTES)

def handler(*_):
    calls[0] += 1
    multiply(names[calls[0] % len(names)], "fresh")
    signal.setitimer(signal.ITIMER_REAL, 0.001)

signal.signal(signal.SIGALRM, handler)
end = time.monotonic() + 1.5
signal.setitimer(signal.ITIMER_REAL, 0.001)
while time.monotonic() < end or calls[0] < 50:
    multiply()
signal.signal(signal.SIGALRM, signal.SIG_IGN)
assert alive()
"""


def test_signal_handlers_multiply() -> None:
    _live(_READY + _SIGNALS)


_FINALISERS = """
calls, names, nested = [0], list(ROUTES), [False]

def between(*_):
    if not nested[0] and threading.current_thread() is threading.main_thread():
        nested[0] = True
        calls[0] += 1
        multiply(names[calls[0] % len(names)], "fresh")
        nested[0] = False

class Thing:
    def __del__(self):
        between()

gc.callbacks.append(between)
gc.set_threshold(60, 2, 2)
end = time.monotonic() + 1.5
while time.monotonic() < end or calls[0] < 50:
    thing = Thing()
    thing.self = thing
    multiply()
gc.callbacks.clear()
assert alive()
"""


def test_finalisers_and_collections_multiply() -> None:
    _live(_READY + _FINALISERS)


# Line by line through the modules that keep state, a product in the middle of one that is built
# from nothing: engine, kernel, plan, pool, caches.
_TRACED = """
from jitgemm.jit import building, cache, compiler, pages
from jitgemm.runtime import calls, engine as engines, executables, keeping, memory, pool
from jitgemm.api import entries, stubs
from oracle import forget_plans

# What an entry of an engine still refers to stays.
kept = []

def forget():
    kept.append((engines._engine, dict(compiler._store.units)))
    if engines._engine is not None:
        engines._engine.pool.stop()
    engines._engine = engines._usable = None
    compiler._store.units.clear()
    compiler._store.alive.clear()
    compiler._store.lljit = None
    made.clear()
    forget_plans()

modules = (
    building, cache, compiler, pages, engines, memory, pool, calls, entries, stubs, keeping,
    executables,
)
files = {m.__file__ for m in modules}

def lines(call, at=None):
    "Run it; at one line of those files, or none, multiply.  Returns how many lines there were."
    seen = [0]

    def local(frame, event, _):
        if event == "line":
            seen[0] += 1
            if seen[0] == at:
                multiply(*sys.argv[1].split())
                found.append((engines._engine, dict(compiler._store.units)))
        return local

    def enter(frame, *_):
        return local if frame.f_code.co_filename in files else None

    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(None)
    return seen[0]

def product():
    multiply(*sys.argv[1].split())

found, met = [], 0
for _ in range(2):  # some lines run once in a process
    forget()
    count, turns = lines(product), int(sys.argv[2])
for at in random.Random(int(sys.argv[3])).sample(range(1, count), turns):
    forget()
    lines(product, at)
    multiply("plain", "scratch")
    # What the call in between found or made, it keeps using: that is what stays.
    engine, units = found.pop() if found else (engines.engine(), {})
    met += bool(units)
    assert engine is engines.engine() and alive(), at
    assert all(compiler._store.units[key] is unit for key, unit in units.items()), at
    assert building.building._lock.acquire(blocking=False)
    building.building._lock.release()
assert met > turns // 2, met
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_trace_functions_multiply_at_any_line(seed: int) -> None:
    _live(_IMPORT + _TRACED, "scratch workspace", "15", str(seed))


_OPERANDS = """
class Array:
    def __init__(self, x):
        self.x = x

    def __array__(self, dtype=None, copy=None):
        multiply("plain", "fresh")
        return self.x

class Interface:
    def __init__(self, x):
        self.x = x

    @property
    def __array_interface__(self):
        multiply("scratch", "fresh")
        return self.x.__array_interface__

class Index(int):
    def __index__(self):
        multiply("packed")
        return 2

def epilogue(v, row, col):
    multiply("plain", "fresh")
    return v * 2

for kind in (Array, Interface):
    for call in (jitgemm.gemm, jitgemm.matmul):
        assert (call(kind(a), kind(b)) == want).all()
    assert (jitgemm.plan(kind(a), kind(b))(a, b) == want).all()
    assert (jitgemm.gemm(a, b, bias=kind(b[0])) == want + b[0]).all()
    assert (jitgemm.prepack_rhs(kind(b)).unpack() == b).all()
assert (jitgemm.gemm(a, b, threads=Index(2)) == want).all()
assert (jitgemm.gemm(a, b, epilogue=epilogue) == 2 * want).all()

# What ends a thread in the middle of a call leaves nothing behind.
class Ends:
    ndim = 2

    def __array__(self, dtype=None, copy=None):
        sys.exit(3)

def ends(*_):
    sys.exit(4)

def work():
    multiply()
    for call in (lambda: jitgemm.gemm(a, Ends()), lambda: jitgemm.gemm(a, b, epilogue=ends),
                 lambda: jitgemm.gemm(a, b, bias=Ends(), workspace=made["space"])):
        try:
            call()
        except SystemExit:
            ended.append(1)
    sys.exit(5)

ended = []
threads = [threading.Thread(target=work) for _ in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert len(ended) == 12
multiply()
assert alive()
"""


def test_operands_and_epilogues_multiply_or_exit() -> None:
    _live(_READY + _OPERANDS)


_WARNED = """
def show(*args, **_):
    shown.append(str(args[0]))
    multiply()

shown = []
warnings.simplefilter("always")
warnings.showwarning = show
multiply()
assert len(shown) == int(sys.argv[1]), shown
"""


def test_warnings_multiply(tmp_path: Path) -> None:
    _live(_IMPORT + _WARNED, "1", JITGEMM_ISA="none")
    _live(_IMPORT + "multiply('plain')", JITGEMM_CACHE_DIR=str(tmp_path))
    files = list(tmp_path.iterdir())
    for file in files:
        file.write_bytes(b"damaged")
    _live(_IMPORT + _WARNED, str(len(files)), JITGEMM_CACHE_DIR=str(tmp_path))


# -- forks ----------------------------------------------------------------------------------------

_FORK = """
warnings.simplefilter("ignore", DeprecationWarning)  # of forks while there are threads

def fork(*_):
    "A child in which everything works, with a worker of its own; the parent waits for it."
    child = os.fork()
    if child == 0:
        multiply()
        os._exit(0 if alive() else 4)
    assert os.waitpid(child, 0)[1] == 0
    multiply()
    say("forked")
"""

_FORKS = """
from jitgemm.jit import compiler
from jitgemm.runtime import pool

def at(module, name, threads=False):
    "Fork in the middle of a function's next call."
    real = getattr(module, name)

    def forking(*args):
        setattr(module, name, real)
        fork()
        result = real(*args)
        return result

    setattr(module, name, forking)

at(compiler, "_key")
at(pool, "start_new_thread")
multiply()
assert alive()

class Thing:
    def __del__(self):
        fork()

thing = Thing()
del thing
signal.signal(signal.SIGALRM, fork)
for delay in (0.001, 0.004, 0.01):
    signal.setitimer(signal.ITIMER_REAL, delay)
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        multiply()

# While another thread is inside.
big, space = np.ones((500, 500), np.float32), jitgemm.Workspace()
turned, stop = np.asfortranarray(big), []

def work():
    while not stop:
        jitgemm.gemm(big, turned, threads=2, workspace=space)

thread = threading.Thread(target=work)
thread.start()
for _ in range(3):
    fork()
    child = os.fork()
    if child == 0:
        jitgemm.gemm(big, turned, workspace=space)
        taken = space._lock.locked()
        with space.lend(1):
            ours = space._lock.locked()
        os._exit(ours - 1 or taken)
    assert os.waitpid(child, 0)[1] == 0, "the child never gets its workspace back"
stop.append(1)
thread.join()
if sys.version_info < (3, 12):  # which refuses to
    atexit.register(lambda: os.fork() or (multiply(), os._exit(0)))
"""


@forks
def test_forks_at_any_moment_leave_children_with_live_workers() -> None:
    said = _live(_IMPORT + _FORK + _FORKS)
    # One of the children forks too, when it starts its worker.
    assert said.count("forked") == 10, said


# -- the disk cache follows the code that generates -----------------------------------------------


def _tree(root: Path, *changed: str) -> Path:
    """A copy of the package whose modules ``changed`` are others."""
    package = Path(jitgemm.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "cli")
    shutil.copytree(package, root / "jitgemm", ignore=ignored)
    for name in changed:
        with (root / "jitgemm" / name).open("a") as file:
            file.write("_CHANGED = 1\n")
    return root


def _byte_code(root: Path, target: Path, *, keep: bool) -> Path:
    """A tree with byte code that is not checked against sources, beside them or in their place."""
    shutil.copytree(root, target)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(target, quiet=1, legacy=not keep, invalidation_mode=mode)
    for file in target.rglob("*.py"):
        if not keep:
            file.unlink()
    return target


def _zipped(root: Path) -> Path:
    target = root.with_suffix(".zip")
    with zipfile.ZipFile(target, "w") as archive:
        for file in sorted(root.rglob("*.py*")):
            archive.write(file, file.relative_to(root))
    return target


_DIGESTS = """
import importlib, json, os, sys
import numpy, ml_dtypes

found = {}
for path in sys.argv[1:]:
    for name in [x for x in sys.modules if x.split(".")[0] == "jitgemm"]:
        del sys.modules[name]
    sys.path.insert(0, path)
    cache = importlib.import_module("jitgemm.jit.cache")
    assert cache.__spec__.origin.startswith(path)
    found[path] = cache.source_digest()
    del sys.path[0]
print(json.dumps(found))
"""


def test_keys_follow_the_code_that_generates_wherever_it_is(tmp_path: Path) -> None:
    trees = {
        "first": _tree(tmp_path / "first"),
        "same": _tree(tmp_path / "same"),
        "second": _tree(tmp_path / "second", "kernels/nest.py"),
        "lazy": _tree(tmp_path / "lazy", "lang/interp.py"),  # not imported by products
        "version": _tree(tmp_path / "version", "__init__.py"),
    }
    for name in ("first", "second", "lazy"):
        trees[f"{name} bare"] = _byte_code(trees[name], tmp_path / f"{name}-bare", keep=False)
        trees[f"{name} zip"] = _zipped(trees[name])
        trees[f"{name} bare zip"] = _zipped(trees[f"{name} bare"])
    # The source of the first, the byte code, which is what runs, of the second.
    trees["unchecked"] = _byte_code(trees["first"], tmp_path / "unchecked", keep=True)
    trees["stale"] = _byte_code(trees["second"], tmp_path / "stale", keep=True)
    shutil.copy(tmp_path / "first/jitgemm/kernels/nest.py", tmp_path / "stale/jitgemm/kernels")
    places = {str(path): name for name, path in trees.items()}
    found = json.loads(run_python(_DIGESTS, *places).stdout)
    digests = {places[path]: digest for path, digest in found.items()}
    assert all(digests.values())
    assert digests["first"] == digests.pop("same") == digests.pop("first zip")
    assert digests["second"] == digests.pop("second zip")
    assert digests["lazy"] == digests.pop("lazy zip")
    for name in ("first", "second", "lazy"):
        assert digests[f"{name} bare"] == digests.pop(f"{name} bare zip")
    assert len(set(digests.values())) == len(digests), digests


_ENGINE = """
import sys
sys.path.insert(0, sys.argv[1])
from jitgemm.runtime.engine import engine
from jitgemm.jit import compiler
assert compiler.__file__.startswith(sys.argv[1])
print(engine()._parts["system"].source)
"""


def test_an_upgrade_in_a_zip_does_not_run_the_code_of_the_version_before(tmp_path: Path) -> None:
    old = _zipped(_tree(tmp_path / "old"))
    new = _zipped(_tree(tmp_path / "new", "runtime/pool_code.py"))
    folder = str(tmp_path / "cache")
    said = [
        run_python(_ENGINE, str(path), JITGEMM_CACHE_DIR=folder).stdout.strip()
        for path in (old, new, old)
    ]
    assert said == ["compiled", "compiled", "disk cache"]


_UNREADABLE = """
import os, sys, warnings
import jitgemm
from jitgemm.jit import cache, compiler

module = sys.modules["jitgemm.kernels.nest"]
if sys.argv[1] == "loader":
    module.__spec__.loader = object()
elif sys.argv[1] == "hidden":
    sys.modules["jitgemm.kernels.elsewhere"] = module
else:
    os.utime(sys.argv[2])  # as an upgrade in the middle of the process
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        assert cache.source_digest() is None
    assert jitgemm.gemm([[3.0]], [[4.0]])[0, 0] == 12
assert [str(w.message)[:40] for w in caught] == ["jitgemm: the package's own code cannot b"]
assert {x.source for x in compiler.compiled()} == {"compiled"}
assert not os.path.exists(os.environ["JITGEMM_CACHE_DIR"])
"""


@pytest.mark.parametrize("why", ["loader", "hidden", "changed"])
def test_without_its_content_nothing_is_cached_on_disk(why: str, tmp_path: Path) -> None:
    root = _tree(tmp_path / "tree")
    file = root / "jitgemm/kernels/nest.py"
    code = f"import sys; sys.path.insert(0, {str(root)!r})\n" + _UNREADABLE
    run_python(code, why, str(file), JITGEMM_CACHE_DIR=str(tmp_path / "none"))


# -- copies and pickles ---------------------------------------------------------------------------


def scaled(v: Any, row: Any, col: Any) -> Any:
    return v * 2 + col


A = np.arange(30, dtype=np.float32).reshape(5, 6) % 7 - 3
B = np.asfortranarray(np.arange(42, dtype=np.float32).reshape(6, 7) % 5 - 2)
BIAS, C, OUT = np.arange(7, dtype=np.float32), np.ones((5, 7), np.float32), np.ones((5, 7), "f4")
NARROW = np.arange(30, dtype=np.int8).reshape(5, 6), np.arange(42, dtype=np.int8).reshape(6, 7)
_SCALED = jitgemm.Requantize(np.full((5, 1), 0.25), 3, np.int8, np.arange(7))
PLANS: dict[str, Any] = {
    "plain": lambda: (jitgemm.plan(A, B), A, B),
    "bias": lambda: (jitgemm.plan(A, B, bias=BIAS, activation=jitgemm.clip(-1, 3)), A, B),
    "c": lambda: (jitgemm.plan(A, B, c=C, beta=2, alpha=-1, threads=2), A, B),
    "in place": lambda: (jitgemm.plan(A, B, c=OUT, beta=0.5, out=OUT), A, B),
    "epilogue": lambda: (jitgemm.plan(A, B, epilogue=scaled), A, B),
    "workspace": lambda: (jitgemm.plan(A, B, workspace=jitgemm.Workspace(100)), A, B),
    "strided": lambda: (jitgemm.plan(A[::-1, ::-2], B[::2], out=OUT.T.copy().T),
                        A[::-1, ::-2], B[::2]),
    "swapped": lambda: (jitgemm.plan(A.astype(">f4"), B), A.astype(">f4"), B),
    "stack": lambda: (jitgemm.plan(np.stack([A, A]), B, bias=BIAS), np.stack([A, A]), B),
    "vector": lambda: (jitgemm.plan(A[0], B), A[0], B),
    "blas": lambda: (jitgemm.plan(A, B, backend="blas", bias=BIAS), A, B),
    "empty": lambda: (jitgemm.plan(A[:0], B), A[:0], B),
    "delegated": lambda: (jitgemm.plan(A.astype("g"), B.astype("g")),
                          A.astype("g"), B.astype("g")),
    "requantize": lambda: (jitgemm.plan(*NARROW, requantize=_SCALED, a_zero_point=2), *NARROW),
}  # fmt: skip


def _again(x: Any) -> list[Any]:
    protocols = range(pickle.HIGHEST_PROTOCOL + 1)
    return [copy.copy(x), copy.deepcopy(x), *(pickle.loads(pickle.dumps(x, i)) for i in protocols)]


@pytest.mark.parametrize("name", PLANS)
def test_plans_are_copied_and_pickled(name: str) -> None:
    made, a, b = PLANS[name]()
    want, notes = made(a, b).copy(), made.explain()
    for again in _again(made):
        assert type(again) is jitgemm.Plan
        assert again.explain() == notes
        for _ in range(2):
            assert again(a, b).tobytes() == want.tobytes()
        # A plan of a plan that came from a pickle.
        assert copy.deepcopy(again).explain() == notes
    assert copy.copy(made) is made


@pytest.mark.parametrize("side", ["a", "b"])
def test_plans_of_prepacked_operands_are_copied_and_pickled(side: str) -> None:
    a = jitgemm.prepack_lhs(A) if side == "a" else A
    b = jitgemm.prepack_rhs(B) if side == "b" else B
    made = jitgemm.plan(a, b, bias=BIAS)
    want, notes = made(a, b), made.explain()
    for model in _again({"plan": made, "a": a, "b": b}):
        # The handle of the model is that which its plan is bound to.
        again = model["plan"]
        assert getattr(again.recipe, side) is model[side]
        assert again.explain() == notes
        assert again(model["a"], model["b"]).tobytes() == want.tobytes()


def test_a_copied_model_shares_what_its_plan_is_bound_to() -> None:
    bias = BIAS.copy()
    model = {"bias": bias, "plan": jitgemm.plan(A, B, bias=bias)}
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        before = again["plan"](A, B)
        again["bias"] += 1
        assert (again["plan"](A, B) == before + 1).all()
        assert (bias == BIAS).all()
        assert (model["plan"](A, B) == before).all()


def test_a_plan_whose_epilogue_cannot_be_pickled_says_so() -> None:
    made = jitgemm.plan(A, B, epilogue=lambda v, row, col: v * 2 + col)
    assert (copy.deepcopy(made)(A, B) == made(A, B)).all()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match=r"^jitgemm: epilogue: expected a function that can be"):
            pickle.dumps(made, protocol)


def test_other_public_objects_are_copied_and_pickled() -> None:
    for activation in (jitgemm.clip(-1, 3), jitgemm.leaky_relu(0.1)):
        assert _again(activation) == [activation] * len(_again(activation))
    for space in _again(jitgemm.Workspace(5000)):
        assert space.nbytes == 5000
        assert (jitgemm.gemm(A, B, workspace=space) == A @ B).all()
    for handle in (jitgemm.prepack_lhs(A), jitgemm.prepack_rhs(B)):
        for again in _again(handle):
            assert type(again) is type(handle)
            assert (again.unpack() == handle.unpack()).all()
    for again in _again(_SCALED):
        assert again.dtype == np.int8
        for name in ("scale", "bias"):
            mine, its = getattr(_SCALED, name), getattr(again, name)
            assert (mine == its).all()
            assert not its.flags.writeable
    for error in (jitgemm.IsaError("text"), JitUnavailableError("why"), JitGemmWarning("text")):
        for again in _again(error):
            assert type(again) is type(error)
            assert str(again) == str(error)
