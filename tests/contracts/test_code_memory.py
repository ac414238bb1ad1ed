"""Machine code in memory: as much as the knobs say and plans hold, and never less than is run.

Where nothing but a crash would tell of freed pages, processes of their own run them.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import os
import pickle
import sys
from textwrap import dedent
from typing import Any

import pytest

from jitgemm.isa.tables import PORTABLE
from jitgemm.jit import compiler, pages
from jitgemm.jit.building import building
from jitgemm.lang.core import Function, Int, Kernel, Ptr, parameters
from oracle import NESTED, run_python

pytestmark = pytest.mark.skipif(NESTED in os.environ, reason="the same on all instruction sets")
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Functions whose code differs, and what they make of a product.  Kernels have few rows, to compile
# sooner.
_FUNCTIONS = """
import gc, os, signal, sys, threading, time
import numpy as np
import jitgemm
from jitgemm.jit import compiler, pages
from jitgemm.runtime import executables
from jitgemm.runtime.engine import engine
from oracle import forget_plans, low_tiles

a = np.arange(64, dtype=np.float32).reshape(8, 8) % 5
tiles = low_tiles()
tiles.__enter__()

def function(i):
    def epilogue(v, row, col):
        for bit in range(8):
            v = v * 2.0 if i >> bit & 1 else v + 1.0
        return v
    return epilogue

def wanted(i):
    return function(i)(a @ a, 0, 0)

def check(i):
    assert (jitgemm.gemm(a, a, epilogue=function(i)) == wanted(i)).all(), i

def spans():
    "Executable mappings that belong to no file."
    lines = [line.split() for line in open("/proc/self/maps")]
    return sum("x" in m[1] and m[4] == "0" for m in lines)

def resident():
    gc.collect()
    with open("/proc/self/smaps_rollup") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("Rss:"))
"""


def _run(code: str, *args: str, **knobs: str) -> str:
    return run_python(_FUNCTIONS + dedent(code), *args, **knobs).stdout


@linux
def test_c20_many_functions_leave_as_much_code_as_the_knobs_say() -> None:
    code = """
    before = spans()
    for turn in range(5):
        for i in range(40):
            check(i)
            units, nbytes = pages.linked()
            assert units == len(compiler.compiled()) <= 2 * int(sys.argv[1]) + 1, units
            assert nbytes <= 2 * int(sys.argv[2]) + (1 << 20), nbytes
            assert spans() - before <= units
        if turn == 0:
            after_all = resident()
    # All were seen in the first turn; the others link 160 objects more.
    assert resident() - after_all < 2 << 20, resident() - after_all
    print(units)
    """
    for units, nbytes in ((6, 1 << 30), (1, 1 << 30), (1000, 300_000)):
        knobs = {"JITGEMM_CODE_UNITS": str(units), "JITGEMM_CODE_BYTES": str(nbytes)}
        found = _run(code, str(units), str(nbytes), **knobs)
        assert int(found) < 40


@linux
def test_c20_plans_keep_their_code_and_give_it_back() -> None:
    code = """
    before = spans()
    plans = [jitgemm.plan(a, a, epilogue=function(i)) for i in range(20)]
    held = spans() - before
    assert held >= 20
    forget_plans()
    for _ in range(2):
        for i, plan in enumerate(plans):
            assert (plan(a, a) == wanted(i)).all(), i
    # One that is planned again uses the code that is there.
    units = len(compiler.compiled())
    again = jitgemm.plan(a, a, epilogue=function(3))
    assert again.executable.code is plans[3].executable.code
    assert len(compiler.compiled()) == units
    del plans, plan, again
    gc.collect()
    assert spans() - before == held, "freed by a finaliser"
    forget_plans()
    check(99)
    assert spans() - before <= 6, spans() - before
    """
    _run(code, JITGEMM_CODE_UNITS="2")


@linux
def test_c20_what_llvm_knows_of_freed_code_goes_too() -> None:
    code = """
    from jitgemm.isa.tables import PORTABLE
    from jitgemm.lang.core import Function, parameters

    def unit(i):
        def body(k, x, to):
            k.store_int(to, x + i)
        function = Function(f"add_{i}", parameters("x to*"), body)
        return compiler.Unit(function.name, PORTABLE, lambda: [function])

    units = [unit(i) for i in range(40)]
    for turn in range(40):
        for x in units:
            compiler.get(x)
        if turn == 2:
            before = resident()
    # A library per link, 10 KB of it after its pages, would be 15 MB.
    assert resident() - before < 3 << 20, resident() - before
    assert pages.linked()[0] < 8
    """
    _run(code, JITGEMM_CODE_UNITS="2")


def test_c20_code_that_addresses_lead_to_is_held() -> None:
    # Each route that keeps an address: it runs after everything else has been let go of.
    code = """
    import ml_dtypes
    bf16 = ml_dtypes.bfloat16
    types = ["f4", "f8", "c8", "c16", "i1", "f2", bf16]
    executables._known.most = 1
    if engine().calls is not None:
        engine().calls._most = 1

    def small():
        x = a[:4, :4].copy()
        assert (jitgemm.matmul(x, x) == x @ x).all()
        assert (jitgemm.matmul(x, x[:, 0].copy()) == x @ x[:, 0]).all()
        assert jitgemm.vecdot(x, x).tolist() == (x * x).sum(1).tolist()

    def lists():
        # Products of the list are planned one after the other, each with code of its own.
        given = [a.astype(t) for t in types]
        for x, r in zip(given, jitgemm.gemm_batched(given, given), strict=True):
            assert (r.astype("c16") == a @ a).all(), x.dtype

    def packed():
        assert (a @ jitgemm.prepack_rhs(a) == a @ a).all()
        assert (jitgemm.gemm(jitgemm.prepack_lhs(a), a) == a @ a).all()

    def stack():
        x = np.stack([a] * 5)
        assert (jitgemm.gemm(x, x, epilogue=function(7)) == wanted(7)).all()

    calls = [small, lists, packed, stack, lambda: check(1)]
    for turn in range(3):
        for i, call in enumerate(calls):
            call()
            check(8 * turn + i)
            call()
            forget_plans()
    """
    _run(code, JITGEMM_CODE_UNITS="1")


def test_c20_finalisers_of_a_circle_may_run_its_code() -> None:
    # When a dead circle is collected, finalisers run in any order, and one may bring all of it
    # back to life.
    code = """
    class Thing:
        def __init__(self, i):
            self.number, self.circle = i, self
            self.plan = jitgemm.plan(a, a, epilogue=function(i))

        def __del__(self):
            # Links and frees.
            for i in range(30, 36):
                check(i)
            assert (self.plan(a, a) == wanted(self.number)).all()
            if self.number % 2:
                back.append(self)
            seen.append(self.number)

    for i in range(30, 36):
        check(i)
    seen, back = [], []
    for i in range(6):
        Thing(i)
        forget_plans()
        gc.collect()
    assert seen == list(range(6))
    for i in range(36, 40):
        check(i)
    for thing in back:
        assert (thing.plan(a, a) == wanted(thing.number)).all()
    """
    _run(code, JITGEMM_CODE_UNITS="1")


@pytest.mark.parametrize("threads", [1, 2])
def test_c20_code_is_not_freed_under_a_thread_that_runs_it(threads: int) -> None:
    code = """
    big = np.ones((300, 300), np.float32)
    for i in range(12):
        check(i)
    count = int(sys.argv[1])
    end, failed, turns = time.monotonic() + 3, [], [0, 0, 0]

    def work(j):
        try:
            want = function(j)(big @ big, 0, 0)
            while time.monotonic() < end:
                f = function(j)
                assert (jitgemm.gemm(big, big, epilogue=f, threads=count) == want).all()
                plan = jitgemm.plan(big, big, epilogue=f, threads=count)
                assert (plan(big, big) == want).all()
                del plan
                turns[j] += 1
        except BaseException as e:
            failed.append(e)

    workers = [threading.Thread(target=work, args=(j,)) for j in range(3)]
    for w in workers:
        w.start()
    i = 0
    while time.monotonic() < end:
        check(i % 12)
        forget_plans()
        i += 1
    for w in workers:
        w.join()
    assert not failed, failed
    assert min(turns) > 2 and i > 24, (turns, i)
    """
    knobs = {"JITGEMM_CODE_UNITS": "1", "JITGEMM_GIL_FLOPS": "0", "JITGEMM_PARALLEL_FLOPS": "1"}
    _run(code, str(threads), **knobs)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="interval timers and forks")
def test_c20_signal_handlers_and_children_link_and_free() -> None:
    code = """
    for i in range(8):
        check(i)
    calls, children = [0], []

    def handler(*_):
        calls[0] += 1
        check(calls[0] % 8)
        if calls[0] % 10 == 0 and len(children) < 4:
            pid = os.fork()
            if not pid:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    for i in range(8):
                        check(i)
                    assert len(compiler.compiled()) <= 4
                    os._exit(0)
                finally:
                    os._exit(1)
            children.append(pid)
        signal.setitimer(signal.ITIMER_REAL, 0.002)

    signal.signal(signal.SIGALRM, handler)
    end = time.monotonic() + 2
    signal.setitimer(signal.ITIMER_REAL, 0.002)
    i = 0
    while time.monotonic() < end or calls[0] < 60:
        check(i % 8)
        i += 1
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    assert len(children) == 4
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    check(200)
    assert len(compiler.compiled()) <= 4
    """
    _run(code, JITGEMM_CODE_UNITS="1")


# -- in this process ------------------------------------------------------------------------------


def _unit(number: int) -> compiler.Unit:
    """Code that stores its argument plus a number."""

    def body(k: Kernel, x: Int, to: Ptr) -> None:
        k.store_int(to, x + number)

    function = Function(f"test_pages_{number}", parameters("x to*"), body)
    return compiler.Unit(function.name, PORTABLE, lambda: [function])


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> compiler._Store:
    """An empty store that keeps two units."""
    made = compiler._Store()
    monkeypatch.setattr(compiler, "_store", made)
    monkeypatch.setattr(compiler, "limits", lambda: (2, 1 << 30))
    return made


def test_the_units_used_last_are_kept(store: Any) -> None:
    units = [_unit(i) for i in range(4)]
    names = [x.name for x in units]
    for x in units[:3]:
        compiler.get(x)
    assert [x.name for x in store.units.values()] == names[1:3]
    compiler.get(units[1])  # used: the other one goes next
    compiler.get(units[3])
    assert [x.name for x in store.units.values()] == [names[1], names[3]]
    assert {x.name for x in compiler.compiled()} == {names[1], names[3]}


def test_bytes_count_too_but_the_last_one_stays(store: Any, monkeypatch: Any) -> None:
    size = compiler.get(_unit(0)).nbytes
    monkeypatch.setattr(compiler, "limits", lambda: (100, 3 * size + size // 2))
    for i in range(1, 6):
        compiler.get(_unit(i))
    assert len(store.units) == 3
    monkeypatch.setattr(compiler, "limits", lambda: (100, 1))
    last = compiler.get(_unit(9))
    assert list(store.units.values()) == [last]


def test_a_unit_that_is_held_is_found_again(store: Any) -> None:
    held = compiler.get(_unit(0))
    for i in range(1, 5):
        compiler.get(_unit(i))
    assert held not in store.units.values()
    assert held in compiler.compiled()
    assert compiler.get(_unit(0)) is held
    assert list(store.units.values())[-1] is held
    assert len(store.units) == 2


def test_what_others_hold_is_asked_back_as_long_as_it_helps(store: Any) -> None:
    holding = [compiler.get(_unit(i)) for i in range(2)]
    asked = []

    def forget() -> bool:
        asked.append(len(holding))
        if holding:
            holding.pop(0)
        return bool(holding)

    compiler.when_full(forget)
    before = pages.linked()[0] - 2  # of the other tests' stores
    for i in range(2, 12):
        holding.append(compiler.get(_unit(i)))
        # As many held elsewhere as are kept here, and those of the other stores, which nobody asks.
        assert len(holding) <= max(2, 4 - before)
    assert asked
    assert all(compiler.get(_unit(i)).name == f"test_pages_{i}" for i in range(12))


def test_pages_are_freed_when_they_are_asked_for_only(store: Any) -> None:
    code = compiler.get(_unit(0))
    (tracker,) = [x.tracker for x in pages._linked.values() if x.token is code._token]
    size = code.nbytes
    store.units.clear()
    gc.collect()  # of other tests
    with building:
        pages.free()
    count, nbytes = pages.linked()
    assert not tracker.closed
    for again in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="machine code cannot be copied"):
            again(code)
    del code
    gc.collect()
    assert not tracker.closed
    with building:
        pages.free()
    assert tracker.closed
    assert pages.linked() == (count - 1, nbytes - size)
    compiler.get(_unit(0))
    assert pages.linked() == (count, nbytes)


def test_a_function_keeps_its_pages(store: Any) -> None:
    call = compiler.get(_unit(5)).function("test_pages_5", ctypes.c_int64, ctypes.c_void_p)
    for i in range(6, 12):
        compiler.get(_unit(i))
    to = ctypes.c_int64()
    call(37, ctypes.addressof(to))
    assert to.value == 42


def test_pages_of_a_circle_stay_until_it_is_really_gone() -> None:
    class Tracker:
        closed = False

        def close(self) -> None:
            self.closed = True

    class Holder:
        def __init__(self) -> None:
            self.token, self.circle = pages.token_for(tracker, 100), self

        def __del__(self) -> None:
            with building:
                pages.free()
            seen.append(tracker.closed)
            if len(seen) == 1:
                back.append(self)

    tracker, seen, back = Tracker(), [], []
    Holder()
    gc.collect()
    assert seen == [False], "freed before the finaliser had run"
    with building:
        pages.free()
    assert not tracker.closed, "freed though the finaliser had brought it back"
    back.clear()
    gc.collect()
    with building:
        pages.free()
    assert tracker.closed


def test_pages_are_freed_once_whoever_frees() -> None:
    # A call in the middle of freeing, as a signal handler's, frees as well.
    class Tracker:
        def close(self) -> None:
            closed.append(self)
            pages.free()

    closed: list[Tracker] = []
    trackers = [Tracker() for _ in range(5)]
    with building:
        pages.free()
        for tracker in trackers:
            pages.token_for(tracker, 1)
        pages.free()
    assert len(closed) == len(set(closed)) == 5
