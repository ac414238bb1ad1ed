"""Contract sentences 15, 17 and 18 where products come in stacks and lists."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm.runtime import engine as engines
from oracle import equal, integers, run_python

pytestmark = pytest.mark.timeout(300)
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
native = pytest.mark.skipif(
    os.environ.get("JITGEMM_ISA", "").lower() == "interpreter",
    reason="the interpreter holds the lock, and takes hours",
)

_PEAK = """
    import sys
    import numpy as np
    import jitgemm

    def kib(name):
        for line in open("/proc/self/status"):
            if line.startswith(name):
                return int(line.split()[1])

    def ones(*shape):
        return np.ones(shape, np.float32)

    def view(x, *shape):
        return np.broadcast_to(x, shape)

    a, b, out = {
        "a": lambda: (view(ones(512, 128), 2000, 512, 128), ones(128, 4), ones(2000, 512, 4)),
        "b": lambda: (ones(2000, 4, 512), view(ones(512, 128), 2000, 512, 128),
                      ones(2000, 4, 128)),
        "both": lambda: (view(ones(64, 512), 50, 20, 64, 512), view(ones(512, 64), 50, 20, 512, 64),
                         ones(50, 20, 64, 64)),
        "rows that are items": lambda: (ones(64, 16, 1, 128), ones(16, 128, 128),
                                        ones(64, 16, 1, 128)),
        "b with contiguous columns": lambda: (ones(4000, 64, 128)[:, :40], ones(64, 128).T,
                                              ones(4000, 40, 64)),
        "strided out": lambda: (ones(4000, 40, 64), ones(64, 64), ones(4000, 40, 128)[..., ::2]),
    }[sys.argv[1]]()
    if sys.argv[2] == "list":
        a, b = (view(x, *out.shape[:-2], *x.shape[-2:]) for x in (a, b))
        items = list(np.ndindex(out.shape[:-2]))
        given = [[x[i] for i in items] for x in (a, b, out)]
        run = lambda: jitgemm.gemm_batched(given[0], given[1], out=given[2], threads=2)
        jitgemm.gemm_batched(*(x[:3] for x in given[:2]), out=given[2][:3], threads=2)
    else:
        run = lambda: jitgemm.gemm(a, b, out=out, threads=2)
    # Compile what will be needed: few rows, and many.
    jitgemm.gemm(ones(700, a.shape[-1]), b[(0,) * (b.ndim - 2)])
    jitgemm.matmul(a[:3], b[:3] if b.ndim == a.ndim else b, out[:3], threads=2)
    open("/proc/self/clear_refs", "w").write("5")  # start a new high-water mark
    before = kib("VmRSS")
    run()
    print((kib("VmHWM") - before) * 1024)
"""


@native
@linux
@pytest.mark.parametrize(
    "case",
    ["a", "b", "both", "rows that are items", "b with contiguous columns", "strided out"],
)
def test_c15_stacks_are_not_expanded(case: str) -> None:
    # Expanded, operands have 100 to 500 MB; the results have up to 40.
    assert int(run_python(_PEAK, case, "stack").stdout) < 12 << 20


@native
@linux
@pytest.mark.parametrize("case", ["a", "both"])
def test_c15_lists_are_not_expanded(case: str) -> None:
    # Two thousand jobs and Python's own objects for them.
    assert int(run_python(_PEAK, case, "list").stdout) < 24 << 20


def test_c15_scratch_of_a_stack_is_what_the_formula_says(
    rng: np.random.Generator, eager_threads: None
) -> None:
    a = integers(rng, (6, 40, 70), np.float32)
    b = np.asarray(integers(rng, (6, 50, 70), np.float32)).swapaxes(1, 2)
    for threads in (1, 2):
        p = jitgemm.plan(a, b, threads=threads)
        assert p.executable is not None
        item = p.executable.plan.workspace_bytes
        need = threads * -(-item // 64) * 64
        assert f"scratch   {need} bytes in all" in p.explain()
        space = jitgemm.Workspace()
        equal(jitgemm.gemm(a, b, threads=threads, workspace=space), np.matmul(a, b))
        assert space.nbytes == 1 << (need - 1).bit_length()


@native
def test_c17_the_lock_is_released_during_a_stack(rng: np.random.Generator) -> None:
    a, b = integers(rng, (600, 128, 128), np.float32), integers(rng, (600, 128, 128), np.float32)
    out = np.empty_like(a)
    for _ in range(2):
        jitgemm.matmul(a, b, out, threads=1)
    running, seen = threading.Event(), []

    def work() -> None:
        running.set()
        for _ in range(20):
            jitgemm.matmul(a, b, out, threads=1)
        running.clear()

    # Another thread would get the lock 20 times, between the calls.
    thread = threading.Thread(target=work)
    thread.start()
    running.wait()
    while running.is_set():
        seen.append(None)
    thread.join()
    assert len(seen) > 1000


def test_c17_concurrent_stacks_and_lists(rng: np.random.Generator, eager_threads: None) -> None:
    a = integers(rng, (12, 30, 70), np.float32)
    b = np.asarray(integers(rng, (12, 50, 70), np.float32)).swapaxes(1, 2)
    want, failed = np.matmul(a, b), []

    def work() -> None:
        try:
            for _ in range(30):
                equal(jitgemm.matmul(a, b, threads=2), want)
                for x, y in zip(jitgemm.gemm_batched(list(a), list(b), threads=2), want,
                                strict=True):  # fmt: skip
                    equal(x, y)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
def test_c18_stacks_after_a_fork() -> None:
    code = """
        import os
        import numpy as np
        import jitgemm

        os.environ["JITGEMM_PARALLEL_FLOPS"] = "1"
        a, b = np.ones((8, 30, 40), "f4"), np.ones((8, 40, 30), "f4")

        def check():
            for _ in range(3):
                assert (jitgemm.matmul(a, b, threads=2) == 40).all()
                for x in jitgemm.gemm_batched(list(a), list(b), threads=2):
                    assert (x == 40).all()

        check()
        child = os.fork()
        check()
        if not child:
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    run_python(code)


def test_c20_shapes_of_stacks_compile_nothing_new(rng: np.random.Generator) -> None:
    def run(m: int, n: int, k: int, batch: int) -> None:
        a = np.ones((batch, m, k), np.float32)
        b: Any = np.ones((batch, k, n), np.float32)
        jitgemm.matmul(a, b)
        jitgemm.matmul(a, b[0])

    known = ((2, 40, 3, 2), (40, 2, 3, 2), (600, 40, 30, 2), (600, 3, 30, 2), (4, 1, 59, 6))
    for m, n, k, batch in known:
        run(m, n, k, batch)
    before = {x.name for x in engines.compiler.compiled()}
    for i in range(2, 60):
        run(i % 7 + 1, 60 - i, i, i % 5 + 2)
    assert {x.name for x in engines.compiler.compiled()} == before
