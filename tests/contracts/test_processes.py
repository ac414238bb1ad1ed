"""Contract, "Processes and threads": sentences 17 to 22.

Whatever changes a process for good (forks, signals, affinity, first use) happens in one of its own.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import stat
import sys
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm import JitGemmWarning
from jitgemm.isa.types import F32
from jitgemm.jit import cache, compiler
from jitgemm.jit.target import host
from jitgemm.kernels.registry import tile_for
from jitgemm.kernels.spec import Bias, BSource, Epilogue, GemmSpec
from jitgemm.planner.machine import usable_cpus
from jitgemm.runtime import memory, pool
from jitgemm.runtime.engine import engine
from oracle import equal, exact_gemm, forget_plans, integers, run_python

pytestmark = pytest.mark.timeout(300)
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, sets affinity")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

# What every snippet needs: a product with one right answer, on several routes.
_CHECK = """
import os, signal, sys, threading, time
import numpy as np
import numpy.random  # lazily imported: its import lock would not survive a fork
from oracle import exact_gemm, integers
import jitgemm

def check(seed, m=40, n=100, k=520, threads=2, turns=1):
    rng = np.random.default_rng(seed)
    a, b = integers(rng, (m, k), np.float32), integers(rng, (k, n), np.float32)
    want, wrong = exact_gemm(a, b), 0
    packed_per_call = np.asfortranarray(b)
    tall, few = integers(rng, (2, 20_000), np.complex64), integers(rng, (20_000, 3), np.complex64)
    deep = exact_gemm(tall, few, conj_a=True)
    for _ in range(turns):
        for right in (b, packed_per_call):
            wrong += not np.array_equal(jitgemm.gemm(a, right, threads=threads), want)
        shared = jitgemm.gemm(tall, few, conj_a=True, threads=threads)
        wrong += not np.array_equal(shared, deep)
    return wrong
"""


# -- 17: callers at once --------------------------------------------------------------------------


def _at_once(count: int, work: Any) -> None:
    """Run ``work(i)`` in ``count`` threads that start together; re-raise what they raised."""
    start, failures = threading.Barrier(count), []

    def body(i: int) -> None:
        start.wait()
        try:
            work(i)
        except BaseException as e:
            failures.append(e)

    crew = [threading.Thread(target=body, args=(i,)) for i in range(count)]
    for t in crew:
        t.start()
    for t in crew:
        t.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("threads", [1, 2])
def test_c17_eight_callers_at_once(threads: int, dtype: Any, knobs: Any) -> None:
    # Release the lock always, so that callers really meet inside.
    knobs(parallel_flops=1, gil_flops=0)
    shared = np.random.default_rng(7)
    b = integers(shared, (600, 150), dtype)
    packed, column_major = jitgemm.prepack_rhs(b), np.asfortranarray(b)
    space = jitgemm.Workspace()
    p = jitgemm.plan(np.empty((40, 600), dtype), b, threads=threads)

    def work(i: int) -> None:
        rng = np.random.default_rng(i)
        a, out = integers(rng, (40, 600), dtype), np.empty((40, 150), dtype)
        want = exact_gemm(a, b)
        small = integers(rng, (9, 9), dtype)
        for turn in range(12):
            why = f"caller {i}, turn {turn}"
            equal(jitgemm.gemm(a, b, threads=threads), want, why)
            equal(jitgemm.gemm(a, column_major, threads=threads), want, why)
            equal(jitgemm.gemm(a, packed, threads=threads, out=out), want, why)
            equal(jitgemm.gemm(a, b, threads=threads, workspace=space), want, why)
            equal(p(a, b, out), want, why)
            equal(jitgemm.matmul(small, small), exact_gemm(small, small), why)

    _at_once(8, work)


@pytest.mark.parametrize("threads", [1, 2])
def test_c17_twelve_callers_share_prepacked_operands(threads: int, kind: Any, knobs: Any) -> None:
    knobs(parallel_flops=1, gil_flops=0, split_depth=600)
    shared = np.random.default_rng(8)
    a, b = integers(shared, (40, 600), kind), integers(shared, (600, 33), kind)
    left, right = jitgemm.prepack_lhs(a), jitgemm.prepack_rhs(b, conj=True)
    p = jitgemm.plan(left, b, threads=threads)

    def work(i: int) -> None:
        rng = np.random.default_rng(i)
        m = 1 + i % 5
        x, y, out = (
            integers(rng, (m, 600), kind),
            integers(rng, (600, m), kind),
            np.empty((40, 33), kind),
        )
        rows, columns = exact_gemm(x, b, conj_b=True), exact_gemm(a, y, conj_a=True)
        few, whole = exact_gemm(x, y), exact_gemm(a, b)
        for turn in range(8):
            why = f"caller {i}, turn {turn}"
            equal(jitgemm.gemm(x, right, threads=threads), rows, why)
            equal(jitgemm.gemm(left, y, conj_a=True, threads=threads), columns, why)
            equal(jitgemm.gemm(x, y, threads=threads), few, why)
            equal(p(left, b, out), whole, why)

    _at_once(12, work)


def test_c17_threads_that_share_a_new_shape_each_time(dtype: Any) -> None:
    shapes = [(m, n, k) for m in range(1, 9) for n in range(1, 9) for k in (65, 70)]

    def work(i: int) -> None:
        rng = np.random.default_rng(i)
        for m, n, k in shapes:
            a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
            equal(jitgemm.gemm(a, b), exact_gemm(a, b))

    _at_once(8, work)


def test_c17_threads_that_forget_old_shapes() -> None:
    """Entries are left, found and forgotten by all threads at once, and each is whole."""
    calls = engine().calls
    if calls is None:
        pytest.skip("nothing is kept")
    a, b = (np.arange(n * 64, dtype=np.float32).reshape(64, n) % 7 for n in (40, 40))
    wants = {n: exact_gemm(a[:, :n].T, b[:, :n]) for n in range(1, 41)}

    def work(i: int) -> None:
        for turn in range(60):
            for n in range(1, 41):
                m = (n * (i + 1) + turn) % 40 + 1
                equal(jitgemm.gemm(a[:, :m].T, b[:, :m]), wants[m])

    interval, most = sys.getswitchinterval(), calls._most
    sys.setswitchinterval(1e-6)
    calls._most = 5
    try:
        _at_once(8, work)
    finally:
        sys.setswitchinterval(interval)
        calls._most = most
    assert len(calls) <= 5 + 8


_FIRST_USE = (
    _CHECK
    + """
from collections import Counter
from jitgemm.jit import compiler
built, compile = Counter(), compiler._optimized

def counting(unit):
    built[unit.name] += 1
    return compile(unit)

compiler._optimized = counting
start, wrong = threading.Barrier(8), []

def work(i):
    start.wait()
    wrong.append(check(i, threads=1 + i % 2) + check(i, m=5, k=40) + check(i, k=30, m=3, n=3))
    x = np.full((3, 9), i, np.float64)
    handle = jitgemm.prepack_lhs(x)
    got = jitgemm.gemm(handle, np.ones((9, 2)), bias=x[:, :1], activation=jitgemm.clip(0, 70))
    wrong[-1] += not (got == min(10 * i, 70)).all()
    got = jitgemm.gemm(x, np.ones((9, 2)), epilogue=lambda v, row, col: v + row - col)
    wrong[-1] += not (got == 9 * i + np.arange(3)[:, None] - np.arange(2)).all()

crew = [threading.Thread(target=work, args=(i,)) for i in range(8)]
for t in crew: t.start()
for t in crew: t.join()
assert wrong == [0] * 8, wrong
assert set(built.values()) == {1}, built
names = [u.name for u in compiler.compiled()]
assert sorted(names) == sorted(built), (names, built)
assert {u.source for u in compiler.compiled()} == {"compiled"}
print(len(names))
"""
)


def test_c17_first_use_in_many_threads_compiles_once(tmp_path: Path) -> None:
    count = int(run_python(_FIRST_USE, JITGEMM_CACHE_DIR=str(tmp_path)).stdout)
    assert count >= 2  # the runtime's own unit and a kernel's
    assert len(list(tmp_path.iterdir())) == count


def test_c17_other_python_threads_run_during_a_product(dtype: Any) -> None:
    a = np.ones((600, 600), dtype)
    p, out = jitgemm.plan(a, a, threads=1), np.empty((600, 600), dtype)
    p(a, a, out)
    ticks, stop = 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            time.sleep(0)

    other = threading.Thread(target=tick)
    other.start()
    interval = sys.getswitchinterval()
    during = []
    try:
        # A thread that holds the lock is asked to yield only now; products that kept it would
        # leave the counter where it was.
        sys.setswitchinterval(100)
        for call in (lambda: p(a, a, out), lambda: jitgemm.gemm(a, a, out=out, threads=1)):
            for _ in range(50):
                before = ticks
                call()
                during.append(ticks - before)
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        other.join()
    assert sum(during[:50]) > 50
    assert sum(during[50:]) > 50


# -- 18: fork -------------------------------------------------------------------------------------

_BOTH = """
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            signal.alarm(10)
            code = child()
        finally:
            os._exit(code)
    mine = parent()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert (mine, status) == (0, 0), f"parent: {mine} wrong results; child: exit status {status}"
"""


def _forked(before: str, child: str, parent: str) -> None:
    code = "\n".join(
        (_CHECK, before, f"child = lambda: {child}", f"parent = lambda: {parent}",
         "if True:", _BOTH)
    )  # fmt: skip
    run_python(code)


@forks
def test_c18_child_and_parent_both_compute_with_threads() -> None:
    _forked("assert check(1) == 0", "check(2, turns=50)", "check(3, turns=50)")


@forks
def test_c18_only_the_child_computes() -> None:
    _forked("", "check(2, turns=5)", "0")
    _forked("", "check(2, turns=5)", "check(3, turns=5)")


@forks
def test_c18_parent_and_child_share_no_scratch() -> None:
    # Scratch of several megabytes, already there before the fork.
    size = "m=64, n=1500"
    _forked(f"assert check(1, {size}) == 0",
            f"min(99, check(2, {size}, turns=100))", f"check(3, {size}, turns=100)")  # fmt: skip


@forks
def test_c18_a_workspace_of_the_child_is_not_the_parents() -> None:
    run_python("""
        import os
        from jitgemm.runtime.memory import aligned_buffer
        for size in (100, 2 << 20):
            x = aligned_buffer(size)
            x[:] = 1
            pid = os.fork()
            if pid == 0:
                x[:] = 2
                os._exit(0)
            os.waitpid(pid, 0)
            assert (x == 1).all(), size
    """)


@forks
def test_c18_prepacked_operands_and_plans_come_along() -> None:
    before = """
rng = np.random.default_rng(1)
a, b = integers(rng, (40, 700), np.float32), integers(rng, (700, 800), np.float32)
packed, want, out = jitgemm.prepack_rhs(b), exact_gemm(a, b), np.empty((40, 800), np.float32)
plans = [jitgemm.plan(a, b, threads=2), jitgemm.plan(a, packed, threads=2)]
for p, x in zip(plans, (b, packed)):
    p(a, x, out)

def work():
    wrong = 0
    for _ in range(20):
        for p, x in zip(plans, (b, packed)):
            out[...] = 0
            wrong += not np.array_equal(p(a, x, out), want)
    return wrong
"""
    _forked(before, "work()", "work()")


@forks
def test_c18_during_a_call_in_another_thread() -> None:
    before = """
assert check(1) == 0
stop, wrong = threading.Event(), []

def busy(i):
    while not stop.is_set():
        wrong.append(check(10 + i, m=200, n=100, k=600))

crew = [threading.Thread(target=busy, args=(i,)) for i in range(2)]
for t in crew: t.start()
time.sleep(0.02)

def work():
    result = check(3, turns=20)
    stop.set()
    for t in crew: t.join()
    return result + sum(wrong)
"""
    for _ in range(3):
        _forked(before, "check(2, turns=20)", "work()")


@forks
def test_c18_during_first_use_in_another_thread(tmp_path: Path) -> None:
    before = """
t = threading.Thread(target=check, args=(5,))
t.start()
time.sleep(float(os.environ["TEST_DELAY"]))

def work():
    t.join()
    return check(3)
"""
    for delay in ("0", "0.02", "0.1"):
        code = f"{_CHECK}{before}\nchild = lambda: check(2)\nparent = work\nif True:{_BOTH}"
        run_python(code, TEST_DELAY=delay, JITGEMM_CACHE_DIR=str(tmp_path / delay))


@forks
def test_c18_while_another_thread_builds_the_engine() -> None:
    before = """
from jitgemm.runtime import engine as engines
inside, detect = threading.Event(), engines.machines.detect

def slowly(*args):
    inside.set()
    time.sleep(0.3)
    return detect(*args)

engines.machines.detect = slowly
t = threading.Thread(target=check, args=(5,))
t.start()
inside.wait()
signal.alarm = (lambda alarm: lambda s: alarm(min(s, 5)))(signal.alarm)

def work():
    t.join()
    return check(3)
"""
    _forked(before, "check(2)", "work()")


@forks
def test_c18_grandchildren() -> None:
    before = """
assert check(1) == 0

def child_work():
    wrong = check(2)
    pid = os.fork()
    if pid == 0:
        os._exit(check(4, turns=5))
    return wrong + check(5) + os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
    _forked(before, "child_work()", "check(3)")


@forks
def test_c18_multiprocessing() -> None:
    run_python(
        _CHECK
        + """
import multiprocessing
assert check(1) == 0
with multiprocessing.get_context("fork").Pool(3) as pool:
    assert pool.map(check, range(12)) == [0] * 12
"""
    )


# -- 19: how many threads -------------------------------------------------------------------------


def _threads(code: str = "", **variables: str | None) -> dict[str, Any]:
    snippet = f"""
import json, os, warnings
{code}
import jitgemm
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    counts = [jitgemm.get_num_threads() for _ in range(3)]
    with jitgemm.threads(2): pass
    config = jitgemm.show_config()["threads"]
messages = [str(w.message) for w in caught]
print(json.dumps([counts[0], len(set(counts)), config, messages]))
"""
    variables = {"OMP_NUM_THREADS": None, "OMP_THREAD_LIMIT": None, **variables}
    count, distinct, config, messages = json.loads(run_python(snippet, **variables).stdout)
    assert distinct == 1
    assert config == count
    return {"threads": count, "warnings": messages}


def test_c19_default_is_what_the_machine_allows() -> None:
    found = _threads(JITGEMM_NUM_THREADS=None)
    assert found == {"threads": usable_cpus(), "warnings": []}
    assert _threads(JITGEMM_NUM_THREADS="")["threads"] == usable_cpus()


@linux
def test_c19_affinity() -> None:
    one = "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])"
    assert _threads(one, JITGEMM_NUM_THREADS=None)["threads"] == 1
    assert _threads(one, JITGEMM_NUM_THREADS="64") == {"threads": 1, "warnings": []}


def test_c19_the_environment_may_only_lower_it() -> None:
    assert _threads(JITGEMM_NUM_THREADS="1") == {"threads": 1, "warnings": []}
    assert _threads(JITGEMM_NUM_THREADS="1000") == {"threads": usable_cpus(), "warnings": []}


@pytest.mark.parametrize("bad", ["0", "-3", "two", "1.5", "99999", "0x2"])
def test_c19_a_bad_environment_warns_once_and_is_ignored(bad: str) -> None:
    found = _threads(JITGEMM_NUM_THREADS=bad)
    assert found["threads"] == usable_cpus()
    (message,) = found["warnings"]
    assert message.startswith("jitgemm: JITGEMM_NUM_THREADS: ")
    assert bad in message


@pytest.mark.parametrize("bad", ["-1", "many", "2.5"])
def test_c19_a_bad_knob_warns_once_and_is_ignored(bad: str) -> None:
    found = _threads(JITGEMM_PARALLEL_FLOPS=bad)
    (message,) = found["warnings"]
    assert message.startswith("jitgemm: JITGEMM_PARALLEL_FLOPS: ")


def test_c19_setter_context_and_argument() -> None:
    before = jitgemm.get_num_threads()
    try:
        jitgemm.set_num_threads(5)
        assert jitgemm.get_num_threads() == 5
        with jitgemm.threads(3):
            assert jitgemm.get_num_threads() == 3
            with jitgemm.threads(np.int64(7)):
                assert jitgemm.get_num_threads() == 7
                elsewhere = []
                t = threading.Thread(target=lambda: elsewhere.append(jitgemm.get_num_threads()))
                t.start()
                t.join()
                assert elsewhere == [5]
            with pytest.raises(ZeroDivisionError), jitgemm.threads(9):
                raise ZeroDivisionError
            assert jitgemm.get_num_threads() == 3
            jitgemm.set_num_threads(6)
            assert jitgemm.get_num_threads() == 3
        assert jitgemm.get_num_threads() == 6
    finally:
        jitgemm.set_num_threads(before)


def test_c19_the_plan_follows_argument_then_context_then_setter(eager_threads: None) -> None:
    a, before = np.ones((64, 64), np.float32), jitgemm.get_num_threads()

    def planned(**options: Any) -> int:
        executable = jitgemm.plan(a, a, **options).executable
        assert executable is not None
        return executable.plan.threads

    try:
        jitgemm.set_num_threads(3)
        assert planned() == 3
        with jitgemm.threads(2):
            assert planned() == 2
            assert planned(threads=4) == 4
    finally:
        jitgemm.set_num_threads(before)


@pytest.mark.parametrize("bad", [0, -1, 1025, 2**70])
def test_c19_bad_counts(bad: int) -> None:
    a = np.ones((2, 2), np.float32)
    for call, operand in (
        (lambda: jitgemm.set_num_threads(bad), "count"),
        (lambda: jitgemm.threads(bad).__enter__(), "count"),
        (lambda: jitgemm.gemm(a, a, threads=bad), "threads"),
        (lambda: jitgemm.matmul(a, a, threads=bad), "threads"),
        (lambda: jitgemm.plan(a, a, threads=bad), "threads"),
    ):
        with pytest.raises(ValueError, match=f"^jitgemm: {operand}: expected between 1 and"):
            call()


@pytest.mark.parametrize("bad", [1.0, "2", True, [1], np.float32(1)])
def test_c19_counts_of_a_wrong_type(bad: object) -> None:
    a = np.ones((2, 2), np.float32)
    for call in (
        lambda: jitgemm.set_num_threads(bad),  # type: ignore[arg-type]
        lambda: jitgemm.gemm(a, a, threads=bad),  # type: ignore[arg-type]
        lambda: jitgemm.matmul(a, a, threads=bad),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=r"^jitgemm: (count|threads): expected an int"):
            call()


@linux
def test_c19_workers_start_when_wanted_and_sleep_when_idle() -> None:
    run_python(
        _CHECK
        + """
def tasks():
    return len(os.listdir("/proc/self/task"))

before = tasks()
assert check(1, m=3, n=3, k=3, threads=8) == 0
assert tasks() == before, "threads for a product of 27 multiplications"
assert check(1, m=200, n=300, k=600, threads=3) == 0
assert tasks() == before + 2
assert check(1, m=200, n=300, k=600, threads=2) == 0
assert tasks() == before + 2
time.sleep(0.05)
cpu = time.process_time()
time.sleep(0.4)
used = time.process_time() - cpu
assert used < 0.15, f"{used} s of processor time while idle"
"""
    )


@linux
def test_c19_a_process_ends_promptly_with_sleeping_workers() -> None:
    # Workers are stopped at exit, also when the last thing that ran was a product.
    run_python(_CHECK + "assert check(1, m=200, n=300, k=600, threads=4) == 0", timeout=60)
    late = """
import atexit
atexit.register(lambda: print(check(2, m=200, n=300, k=600, threads=2)))
assert check(1, m=200, n=300, k=600, threads=2) == 0
"""
    assert run_python(_CHECK + late, timeout=60).stdout == "0\n"


# -- 20: kernels are few --------------------------------------------------------------------------

_SHAPES = """
import numpy as np
from jitgemm.jit import compiler
import jitgemm

def rss():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096

rng = np.random.default_rng(3)
kinds = (np.float32, np.float64, np.complex64)
big = {t: np.ones((1100, 1100), t) for t in kinds}
far = {t: np.ones((40, 2048), t).T for t in kinds}
routes = set()

def turn():
    m, n, k = (int(x) for x in rng.integers(1, 120, 3))
    kind = kinds[int(rng.integers(3))]
    x, form = big[kind], int(rng.integers(8))
    step = int(rng.integers(1, 4))
    a = x[:m, : k * step : step] if rng.integers(2) else x[:k, :m].T
    b = x[:k, :n] if rng.integers(2) else x[:n, :k].T
    if form == 0:
        k = int(rng.integers(513, 1100))
        m, n = 1 + m % 5, 1 + n % 40
        a, b = x[:m, :k], far[kind][:k, :n]  # columns collide
    elif form == 1:
        k = int(rng.integers(600, 1100))
        m, n = 1 + m % 5, 1 + n % 5
        a, b = x[:m, :k], x[:k, :n]  # the depth is shared
    elif form == 2:
        m = n = 1
        a, b = a[:1], b[:, :1]
    left, right = a, b
    if form == 3:
        right = jitgemm.prepack_rhs(b)
    elif form == 4:
        left = jitgemm.prepack_lhs(a)
    if form != 5:
        got = jitgemm.gemm(left, right, threads=1 + m % 2,
                           reproducible=("default", "strict")[m % 2])
    else:
        got = jitgemm.gemm(a, b, bias=x[0, :n], beta=1, c=x[:m, :n]) - 2
    assert (got == k).all(), (m, n, k)

for _ in range(8000):  # more than are remembered, and rare kernels too
    turn()
units, before = len(compiler.compiled()), rss()
for _ in range(5000):
    turn()
assert len(compiler.compiled()) == units
print(units, rss() - before)
"""


@linux
def test_c20_new_shapes_compile_nothing_and_memory_stays_flat() -> None:
    units, grown = map(int, run_python(_SHAPES, JITGEMM_SPLIT_DEPTH="600").stdout.split())
    # The runtime's unit; per type: B in place, in columns or packed, with and without the epilogue,
    # whose bias is one per column or, in products computed as their transpose, one per row; and
    # B in place or in columns on slim tiles.
    assert units <= 1 + 3 * 5 * 3
    assert grown < 16 << 20


def test_c20_kernels_are_keyed_on_the_spec_only(kind: Any, rng: np.random.Generator) -> None:
    dtype = kind
    for m, n in itertools.product((1, 40), (3, 80)):
        for place in (np.ascontiguousarray, np.asfortranarray):
            # With the number of threads it is planned, however small it is.
            jitgemm.gemm(np.ones((m, 40), dtype), place(np.ones((40, n), dtype)), threads=2)
    known = {u.name for u in compiler.compiled()}
    for m, n, k in ((1, 1, 1), (1, 77, 600), (90, 3, 2), (33, 66, 99)):
        a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
        for alpha in (1, 2, -3):
            for right in (b, np.asfortranarray(b), b[:, ::-1]):
                got = jitgemm.gemm(a[::-1], right, alpha=alpha, threads=2, conj_a=True)
                equal(got, exact_gemm(a[::-1], right, alpha=alpha, conj_a=True))
    assert {u.name for u in compiler.compiled()} == known


def test_c20_numbers_of_activations_are_not_compiled_in(dtype: Any) -> None:
    a = np.arange(-6, 6).astype(dtype)[:, None]
    one = np.ones((1, 3), dtype)

    def turn(slope: float) -> None:
        for activation in (jitgemm.leaky_relu(slope), jitgemm.clip(-slope, 3 * slope)):
            want = exact_gemm(a, one, activation=activation)
            equal(jitgemm.gemm(a, one, activation=activation), want)
        got = jitgemm.gemm(a, one, epilogue=lambda v, row, col: slope * v + col)
        equal(got, slope * a * one + np.arange(3, dtype=dtype))

    turn(0.5)
    known = {u.name for u in compiler.compiled()}
    for slope in (0.25, 2, 4, 8):
        turn(slope)
    assert {u.name for u in compiler.compiled()} == known


# -- 21: the disk cache ---------------------------------------------------------------------------

_CACHED = (
    _CHECK
    + """
import json, warnings
from jitgemm.jit import compiler
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    wrong = check(1, threads=1) + check(1, m=3, k=30)
print(json.dumps({
    "wrong": wrong,
    "sources": sorted({u.source for u in compiler.compiled()}),
    "units": len(compiler.compiled()),
    "warnings": [[w.category.__name__, str(w.message)] for w in caught],
}))
"""
)


def _with_cache(folder: Path | str | None, **variables: str | None) -> dict[str, Any]:
    variables.setdefault("JITGEMM_CACHE_DIR", None if folder is None else str(folder))
    found = json.loads(run_python(_CACHED, **variables).stdout)
    assert found.pop("wrong") == 0
    assert isinstance(found, dict)
    return found


def test_c21_objects_are_stored_and_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "er"
    first = _with_cache(folder)
    assert first["sources"] == ["compiled"]
    assert not first["warnings"]
    files = sorted(folder.iterdir())
    assert len(files) == first["units"]
    assert all(f.suffix == ".o" for f in files), "something besides objects was left behind"
    again = _with_cache(folder)
    assert again == {**first, "sources": ["disk cache"]}
    assert sorted(folder.iterdir()) == files


def test_c21_damaged_files_are_rebuilt_with_a_warning(tmp_path: Path) -> None:
    whole = _with_cache(tmp_path)
    for file in tmp_path.iterdir():
        content = file.read_bytes()
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    rebuilt = _with_cache(tmp_path)
    assert rebuilt["sources"] == ["compiled"]
    assert len(rebuilt["warnings"]) == whole["units"]
    for category, message in rebuilt["warnings"]:
        assert category == "JitGemmWarning"
        assert message.startswith("jitgemm: cache file ")
        assert message.endswith(" is damaged or foreign; rebuilt")
    assert _with_cache(tmp_path) == {**whole, "sources": ["disk cache"]}


@pytest.mark.parametrize(
    "damage",
    [
        lambda *_: b"",
        lambda x, _: x[:10],
        lambda x, _: x[:-1],
        lambda x, _: x + b"\0",
        lambda x, _: b"\x7fELF" + x[4:],
        lambda x, _: x[:20] + bytes([x[20] ^ 1]) + x[21:],
        lambda x, _: x[:-1] + bytes([x[-1] ^ 0x80]),
        lambda _, other: other,  # a good file under another's name
    ],
)
def test_c21_no_damage_goes_unnoticed(
    damage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITGEMM_CACHE_DIR", str(tmp_path))
    cache.store("key", b"body" * 100)
    cache.store("other", b"body" * 100)
    file = tmp_path / "key.o"
    file.write_bytes(damage(file.read_bytes(), (tmp_path / "other.o").read_bytes()))
    with pytest.warns(JitGemmWarning, match="^jitgemm: cache file .* damaged or foreign; rebuilt"):
        assert cache.load("key") is None
    cache.store("key", b"new")
    assert cache.load("key") == b"new"


def test_c21_a_folder_in_place_of_a_file_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITGEMM_CACHE_DIR", str(tmp_path))
    (tmp_path / "key.o").mkdir()
    assert cache.load("key") is None
    cache.store("key", b"body")
    assert [f.name for f in tmp_path.iterdir()] == ["key.o"]


def test_c21_the_cache_can_be_switched_off(tmp_path: Path) -> None:
    found = _with_cache(tmp_path, JITGEMM_CACHE="0")
    assert found["sources"] == ["compiled"]
    assert not found["warnings"]
    assert not list(tmp_path.iterdir())


@linux
@pytest.mark.parametrize("home", ["/proc", "/nowhere/at/all", "/dev/null", ""])
def test_c21_a_home_that_cannot_be_written_is_no_error(home: str) -> None:
    if home == "/nowhere/at/all" and os.geteuid() == 0:
        home = "/proc/nowhere"  # root could create the other one
    variables = {"HOME": home, "XDG_CACHE_HOME": None}
    if not home:
        variables = {"HOME": "/root-of-nobody", "XDG_CACHE_HOME": "/proc/none"}
    found = _with_cache(None, **variables)
    assert found["sources"] == ["compiled"]
    assert not found["warnings"]


def test_c21_no_home_at_all_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("JITGEMM_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cache.Path, "home", homeless)
    assert cache.directory() is None
    assert cache.load("some") is None
    cache.store("some", b"thing")


def test_c21_the_folder_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("JITGEMM_CACHE_DIR", str(folder))
    before = os.umask(0)
    try:
        cache.store("key", b"body")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (file,) = folder.iterdir()
    assert not stat.S_IMODE(file.stat().st_mode) & 0o077
    assert cache.load("key") == b"body"
    assert cache.load("other") is None


@pytest.mark.skipif(os.name != "posix", reason="permission bits")
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_c21_a_folder_others_can_write_is_not_used(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITGEMM_CACHE_DIR", str(tmp_path))
    cache.store("key", b"body")
    tmp_path.chmod(mode)
    with pytest.warns(JitGemmWarning, match="^jitgemm: cache folder .* can be written by others"):
        assert cache.load("key") is None
    with pytest.warns(JitGemmWarning, match="can be written by others"):
        cache.store("new", b"body")
    assert [f.name for f in tmp_path.iterdir()] == ["key.o"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
def test_c21_a_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITGEMM_CACHE_DIR", str(tmp_path))
    os.chown(tmp_path, 12_345, -1)
    with pytest.warns(JitGemmWarning, match="can be written by others"):
        assert cache.directory() is None


def test_c21_a_file_in_place_of_the_folder_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("JITGEMM_CACHE_DIR", str(tmp_path / "file"))
    words = "^jitgemm: cache folder .*file cannot be used .*; machine code is not kept$"
    with pytest.warns(JitGemmWarning, match=words):
        cache.store("key", b"body")
    with pytest.warns(JitGemmWarning, match=words):
        assert cache.load("key") is None
    assert (tmp_path / "file").read_text() == "mine"


def test_c21_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITGEMM_CACHE_DIR", str(tmp_path))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(cache.os, "replace", full)
        cache.store("key", b"body")
    assert not list(tmp_path.iterdir())
    # A write that is interrupted for another reason is not swallowed, but cleaned up.
    with monkeypatch.context() as patch:
        patch.setattr(cache.os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            cache.store("key", b"body")
    assert not list(tmp_path.iterdir())


def test_c21_writers_at_once_leave_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITGEMM_CACHE_DIR", str(tmp_path))
    bodies = [bytes([i]) * 100_000 for i in range(8)]

    def work(i: int) -> None:
        for _ in range(20):
            cache.store("key", bodies[i])
            assert cache.load("key") in bodies

    _at_once(8, work)
    assert [f.name for f in tmp_path.iterdir()] == ["key.o"]


def test_c21_the_key_names_source_llvm_cpu_and_features(monkeypatch: pytest.MonkeyPatch) -> None:
    isa = engine().isa
    specs = [
        GemmSpec(F32, isa, tile_for(F32, isa), b, Epilogue(bias=bias))
        for b in BSource for bias in Bias
    ]  # fmt: skip
    keys = {compiler._key(compiler.gemm_unit(s)) for s in specs}
    unit, here = compiler.gemm_unit(specs[0]), host()
    others = [
        replace(here, cpu="other"), replace(here, llvm="1.2.3"), replace(here, triple="x-y-z"),
        replace(here, features=here.features | {"one-more"}),
        replace(here, features=here.features - {min(here.features)}),
    ]  # fmt: skip
    for other in others:
        monkeypatch.setattr(compiler, "host", lambda other=other: other)
        keys.add(compiler._key(unit))
    monkeypatch.setattr(compiler, "host", lambda: here)
    monkeypatch.setattr(cache, "source_digest", lambda: "other source")
    keys.add(compiler._key(unit))
    assert len(keys) == len(specs) + len(others) + 1


def test_c21_the_source_digest_covers_every_module_that_generates() -> None:
    package = Path(jitgemm.__file__).parent
    covered = {p.parent.name for f in cache._GENERATORS for p in (package / f).glob("*.py")}
    assert covered >= {"isa", "lang", "kernels", "jit", "runtime"}
    assert len(cache.source_digest()) == 64


# -- 22: interrupts and failures ------------------------------------------------------------------

_INTERRUPTED = (
    _CHECK
    + """
rng = np.random.default_rng(0)
a, b = integers(rng, (700, 700), np.float32), integers(rng, (700, 700), np.float32)
want, out = exact_gemm(a, b), np.zeros((700, 700), np.float32)
p = jitgemm.plan(a, b, threads=2)
calls = [
    lambda: jitgemm.gemm(a, b, out=out, threads=2),
    lambda: jitgemm.gemm(a, b, out=out, threads=1),
    lambda: p(a, b, out),
    lambda: jitgemm.gemm(a, b, out=out, threads=2, workspace=jitgemm.Workspace()),
    lambda: jitgemm.matmul(a, b, out),
]

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
caught = 0
for delay in (0.003, 0.01, 0.017):
    for call in calls:
        out[...] = 0
        signal.setitimer(signal.ITIMER_REAL, delay)
        try:
            while True:
                out[0, 0] = 0.5  # no product has it
                call()
        except KeyboardInterrupt:
            caught += 1
        # Raised before a call or after it: never is a result half written.
        whole = np.array_equal(out, want)
        out[0, 0] = want[0, 0]
        assert whole or np.array_equal(out, want) or not out[1:].any()
        assert np.array_equal(jitgemm.gemm(a, b, threads=2), want)
        assert check(1) == 0
assert caught == 15
"""
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="interval timers")
def test_c22_an_interrupt_is_honoured_after_the_call() -> None:
    run_python(_INTERRUPTED)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="interval timers")
@pytest.mark.parametrize("delay", ["0.01", "0.06", "0.15", "0.3"])
def test_c22_an_interrupt_during_first_use(delay: str) -> None:
    run_python(
        _CHECK
        + """
def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
try:
    check(1)
    time.sleep(5)
except KeyboardInterrupt:
    assert check(2) + check(3, m=3, k=3) == 0
else:
    raise AssertionError("no interrupt")
""",
        delay,
        JITGEMM_CACHE="0",
    )


def test_c22_a_failed_call_leaves_the_library_usable(kind: Any, rng: np.random.Generator) -> None:
    dtype = kind
    a, b = integers(rng, (40, 30), dtype), integers(rng, (30, 50), dtype)
    want, out = exact_gemm(a, b), np.empty((40, 50), dtype)
    space = jitgemm.Workspace()
    for wrong in (
        lambda: jitgemm.gemm(a, b.T, out=out),
        lambda: jitgemm.gemm(a, b, out=out.T),
        lambda: jitgemm.gemm(a, b, beta=1, workspace=space),
        lambda: jitgemm.gemm(a, b, bias=a),
        lambda: jitgemm.matmul(a, a),
        lambda: jitgemm.gemm(a, b, out=out, activation="no"),
        lambda: jitgemm.gemm(a, b, out=out, reproducible="no"),
        lambda: jitgemm.gemm(jitgemm.prepack_rhs(a), b, out=out),
        lambda: jitgemm.gemm(a, b, out=out, epilogue=lambda v, row, col: v if v > 0 else row),
        lambda: jitgemm.gemm(a, b, out=out, epilogue=lambda v, row, col: 1 / 0),
    ):
        with pytest.raises((ValueError, TypeError, ZeroDivisionError), match=r"^(jitgemm: |divi)"):
            wrong()
        equal(jitgemm.gemm(a, b, out=out, workspace=space), want)
        equal(jitgemm.matmul(a, b, out), want)


def test_c22_scratch_that_cannot_be_had_is_given_back(
    dtype: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = integers(rng, (40, 30), dtype), integers(rng, (50, 30), dtype).T  # packed per call
    space = jitgemm.Workspace()

    def refuse(nbytes: int) -> Any:
        raise MemoryError(f"jitgemm: workspace: {nbytes} bytes could not be allocated")

    with monkeypatch.context() as patch:
        patch.setattr(memory, "aligned_buffer", refuse)
        with pytest.raises(MemoryError, match=r"^jitgemm: workspace: "):
            jitgemm.gemm(a, b, workspace=space)
    equal(jitgemm.gemm(a, b, workspace=space), exact_gemm(a, b))
    assert space.nbytes > 0, "the workspace was never given back after the failure"


def test_c22_a_worker_that_cannot_start(
    rng: np.random.Generator, eager_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = integers(rng, (40, 30), np.float32), integers(rng, (30, 50), np.float32)
    threads = engine().pool.workers + 3  # more than there are already

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    before = engine().pool.workers
    with monkeypatch.context() as patch:
        patch.setattr(pool, "start_new_thread", refuse)
        # Fewer threads, the same bits.
        equal(jitgemm.gemm(a, b, threads=threads), exact_gemm(a, b))
        assert engine().pool.workers == before
    forget_plans()
    equal(jitgemm.gemm(a, b, threads=threads), exact_gemm(a, b))
    assert engine().pool.workers == threads - 1


def test_c22_warnings_turned_into_errors_leave_the_library_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("JITGEMM_CACHE_DIR", str(tmp_path))
    isa = engine().isa
    spec = GemmSpec(F32, isa, tile_for(F32, isa), BSource.INPLACE, Epilogue())
    unit = replace(compiler.gemm_unit(spec), name="test_unit_with_a_warning")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(JitGemmWarning):
            compiler.get(unit)
    tmp_path.chmod(0o700)
    try:
        assert compiler.get(unit).addresses
    finally:
        compiler._store.units.pop(unit.name, None)
        gc.collect()
