"""What a product on a unit with a mode of its own leaves behind: for its caller, nothing.

Python's caller may have the unit's array in use.  Code of the test's own turns it on, fills it and
calls Python, as any function may that keeps state in ZA (AAPCS64): TPIDR2_EL0 points to a block
that says where to save the array, and who needs it saves it there and clears the register.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import gc
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm.isa.outer import OuterUnit
from jitgemm.runtime.engine import engine
from oracle import another_machine

_UNIT = engine().isa.unit
pytestmark = pytest.mark.skipif(
    not isinstance(_UNIT, OuterUnit) or engine().isa.interpreted,
    reason="the set in use has no unit of outer products",
)
_ROWS = _UNIT.row_bytes if isinstance(_UNIT, OuterUnit) else 0

# The array is read back only where nobody has saved it: who does turns it off.
_CODE = """
define void @with_array(ptr %source, ptr %left, ptr %kept, ptr %block, ptr %call, i64 %rows) #0 {
entry:
  call void @llvm.aarch64.sme.za.enable()
  br label %fill
fill:
  %i = phi i64 [ 0, %entry ], [ %i1, %fill ]
  %row = trunc i64 %i to i32
  %by = mul i64 %i, %rows
  %from = getelementptr i8, ptr %source, i64 %by
  call void @llvm.aarch64.sme.ldr(i32 %row, ptr %from, i32 0)
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %rows
  br i1 %more, label %fill, label %filled
filled:
  %mine = ptrtoint ptr %block to i64
  call void @llvm.aarch64.sme.set.tpidr2(i64 %mine)
  call void %call()
  %found = call i64 @llvm.aarch64.sme.get.tpidr2()
  store i64 %found, ptr %left, align 8
  call void @llvm.aarch64.sme.set.tpidr2(i64 0)
  %same = icmp eq i64 %found, %mine
  br i1 %same, label %read, label %done
read:
  %j = phi i64 [ 0, %filled ], [ %j1, %read ]
  %line = trunc i64 %j to i32
  %down = mul i64 %j, %rows
  %to = getelementptr i8, ptr %kept, i64 %down
  call void @llvm.aarch64.sme.str(i32 %line, ptr %to, i32 0)
  %j1 = add i64 %j, 1
  %again = icmp ult i64 %j1, %rows
  br i1 %again, label %read, label %done
done:
  call void @llvm.aarch64.sme.za.disable()
  ret void
}

define void @holding(ptr %numbers, ptr %after, ptr %call) #0 {
  %x = load <8 x double>, ptr %numbers, align 8
  %x0 = extractelement <8 x double> %x, i64 0
  %x1 = extractelement <8 x double> %x, i64 1
  %x2 = extractelement <8 x double> %x, i64 2
  %x3 = extractelement <8 x double> %x, i64 3
  %x4 = extractelement <8 x double> %x, i64 4
  %x5 = extractelement <8 x double> %x, i64 5
  %x6 = extractelement <8 x double> %x, i64 6
  %x7 = extractelement <8 x double> %x, i64 7
  call void %call()
  %y0 = insertelement <8 x double> poison, double %x0, i64 0
  %y1 = insertelement <8 x double> %y0, double %x1, i64 1
  %y2 = insertelement <8 x double> %y1, double %x2, i64 2
  %y3 = insertelement <8 x double> %y2, double %x3, i64 3
  %y4 = insertelement <8 x double> %y3, double %x4, i64 4
  %y5 = insertelement <8 x double> %y4, double %x5, i64 5
  %y6 = insertelement <8 x double> %y5, double %x6, i64 6
  %y7 = insertelement <8 x double> %y6, double %x7, i64 7
  store <8 x double> %y7, ptr %after, align 8
  ret void
}

define i64 @modes() #0 {
  %svcr = call i64 asm sideeffect "mrs $0, S3_3_C4_C2_2", "=r"()
  ret i64 %svcr
}

define i64 @status() #0 {
  %fpsr = call i64 @llvm.aarch64.get.fpsr()
  ret i64 %fpsr
}

define void @set_status(i64 %fpsr) #0 {
  call void @llvm.aarch64.set.fpsr(i64 %fpsr)
  ret void
}

define i64 @control() #0 {
  %fpcr = call i64 @llvm.aarch64.get.fpcr()
  ret i64 %fpcr
}

define void @set_control(i64 %fpcr) #0 {
  call void @llvm.aarch64.set.fpcr(i64 %fpcr)
  ret void
}

declare i64 @llvm.aarch64.get.fpsr()
declare void @llvm.aarch64.set.fpsr(i64)
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
declare void @llvm.aarch64.sme.za.enable()
declare void @llvm.aarch64.sme.za.disable()
declare void @llvm.aarch64.sme.ldr(i32, ptr, i32 immarg)
declare void @llvm.aarch64.sme.str(i32, ptr, i32 immarg)
declare void @llvm.aarch64.sme.set.tpidr2(i64)
declare i64 @llvm.aarch64.sme.get.tpidr2()
attributes #0 = { nounwind noinline "frame-pointer"="all" }
"""
_KINDS: dict[str, tuple[Any, ...]] = {
    "with_array": (None, *[ctypes.c_void_p] * 5, ctypes.c_uint64),
    "holding": (None, *[ctypes.c_void_p] * 3),
    "modes": (ctypes.c_uint64,), "status": (ctypes.c_uint64,),
    "set_status": (None, ctypes.c_uint64), "control": (ctypes.c_uint64,),
    "set_control": (None, ctypes.c_uint64),
}  # fmt: skip
_CALLBACK = ctypes.CFUNCTYPE(None)
_EVERY_FLAG = 0x0800009F


@cache
def _native() -> dict[str, Callable[..., int]]:
    """The functions of the code above."""
    import llvmlite.binding as llvm

    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(cpu="generic", features="+neon,+sme", opt=1)
    module = llvm.parse_assembly(_CODE)
    module.data_layout = str(machine.target_data)
    module.triple = llvm.get_process_triple()
    linked = llvm.create_mcjit_compiler(module, machine)
    linked.finalize_object()
    found = {}
    for name, kinds in _KINDS.items():
        found[name] = ctypes.CFUNCTYPE(*kinds)(linked.get_function_address(name))
        found[name].code = linked
    return found


# -- the caller's array ---------------------------------------------------------------------------


class _Caller:
    """A caller of Python whose array is full, and the block it offers for saving it."""

    def __init__(self, *, rows: int = _ROWS, buffer: bool = True) -> None:
        self.held = np.random.default_rng(5).integers(0, 256, (_ROWS, _ROWS), np.uint8)
        self.saved, self.kept = (np.full_like(self.held, x) for x in (0xA5, 0x5A))
        # What lies beside the block belongs to others.
        self.block = np.zeros(4, np.uint64)
        self.block[0], self.block[1] = self.saved.ctypes.data if buffer else 0, rows
        self.before = self.block.copy()
        self.left = np.full(1, 1, np.uint64)

    def calls(self, work: Callable[[], object]) -> None:
        """Fill the array, and call Python."""
        results: list[object] = []
        back = _CALLBACK(lambda: results.append(work()))
        arrays = (self.held, self.left, self.kept, self.block)
        _native()["with_array"](*(x.ctypes.data for x in arrays),
                                ctypes.cast(back, ctypes.c_void_p), _ROWS)  # fmt: skip
        assert len(results) == 1, "it raised an exception"
        assert _native()["modes"]() == 0
        np.testing.assert_array_equal(self.block, self.before)

    @property
    def untouched(self) -> bool:
        """Whether nobody has saved the array, nor touched it."""
        if int(self.left[0]) != self.block.ctypes.data:
            return False
        np.testing.assert_array_equal(self.kept, self.held)
        assert (self.saved == 0xA5).all()
        return True

    def saves(self, rows: int = _ROWS) -> None:
        """Check that so many rows have been saved."""
        assert self.left[0] == 0
        np.testing.assert_array_equal(self.saved[:rows], self.held[:rows])
        assert (self.saved[rows:] == 0xA5).all()


def _products() -> dict[str, Callable[..., Any]]:
    """Products on the unit: each checks its result."""
    m, n, k = 40, 70, 33

    def whole(a: Any, b: Any, **options: Any) -> Callable[..., Any]:
        exact = a.astype(np.int64) @ b.astype(np.int64)
        right = jitgemm.prepack_rhs(b) if options.pop("prepacked", False) else b
        assert "__streaming" in jitgemm.plan(a, right).explain()

        def work(**more: Any) -> None:
            assert (jitgemm.gemm(a, right, **more) == exact).all()

        return work

    rng = np.random.default_rng(1)
    f = [rng.integers(-4, 5, s).astype(np.float32) for s in ((m, k), (k, n))]
    i = [x.astype(np.int8) for x in f]
    return {
        "f32": whole(*f), "i8": whole(*i), "prepacked": whole(*f, prepacked=True),
        "columns of a": whole(np.asfortranarray(f[0]), f[1]),
    }  # fmt: skip


PRODUCTS = ("f32", "i8", "prepacked", "columns of a")


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_callers_array_is_saved(name: str) -> None:
    work = _products()[name]
    work(threads=1)
    for _ in range(2):
        caller = _Caller()
        caller.calls(lambda: work(threads=1))
        assert not caller.untouched
        caller.saves()


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_callers_array_is_saved_or_left_alone_by_several_threads(name: str) -> None:
    """Whether the caller's thread finds something left to do is chance."""
    work = _products()[name]
    with another_machine(parallel_flops=1):
        work(threads=2)
        for _ in range(6):
            caller = _Caller()
            caller.calls(lambda: work(threads=2))
            if not caller.untouched:
                caller.saves()


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_no_more_is_saved_than_the_caller_wants(rows: int) -> None:
    work = _products()["f32"]
    caller = _Caller(rows=rows)
    caller.calls(lambda: work(threads=1))
    caller.saves(rows)


def test_a_caller_without_a_buffer_wants_nothing_saved() -> None:
    work = _products()["f32"]
    caller = _Caller(buffer=False)
    caller.calls(lambda: work(threads=1))
    caller.saves(0)


def test_the_callers_array_is_left_alone_where_nothing_needs_it() -> None:
    a, b = (np.ones(s, np.float32) for s in ((2, 9), (9, 70)))
    x, y = (np.ones(s, np.complex64) for s in ((20, 9), (9, 30)))
    calls: list[Callable[[], object]] = [
        lambda: None,
        lambda: jitgemm.gemm(a, b),
        lambda: jitgemm.gemm(x, y),
        lambda: jitgemm.prepack_rhs(b),
        lambda: jitgemm.prepack_lhs(b),
        lambda: jitgemm.plan(b, b.T),
    ]
    for call in calls:
        call()
        caller = _Caller()
        caller.calls(call)
        assert caller.untouched


def test_a_second_product_finds_nothing_to_save() -> None:
    """Who has saved the array clears the register; what is there then is nobody's."""
    work = _products()["f32"]
    caller = _Caller()

    def twice() -> None:
        work(threads=1)
        caller.saved[...] = 0x33
        work(threads=1)

    caller.calls(twice)
    assert caller.left[0] == 0
    assert (caller.saved == 0x33).all()


# -- registers and modes --------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRODUCTS)
def test_modes_are_left_and_registers_kept(name: str) -> None:
    """Entering and leaving the mode clears vector registers, of which callers keep eight halves."""
    work, found = _products()[name], []
    numbers = np.arange(1.0, 9.0) * np.pi
    after = np.zeros(8)

    def call() -> None:
        for threads in (1, 2):
            work(threads=threads)
            found.append(_native()["modes"]())

    back = _CALLBACK(call)
    address = ctypes.cast(back, ctypes.c_void_p)
    _native()["holding"](numbers.ctypes.data, after.ctypes.data, address)
    assert found == [0, 0]
    np.testing.assert_array_equal(after, numbers)


def _flags_after(before: int, call: Callable[[], object]) -> int:
    """FPSR after a call that found ``before`` there."""
    status, set_status = _native()["status"], _native()["set_status"]
    call()  # plan and compile first
    # A collection in between may call what others have registered, which may compute.
    gc.disable()
    kept = status()
    try:
        set_status(before)
        call()
        return status()
    finally:
        set_status(kept)
        gc.enable()


@pytest.mark.parametrize("before", [0, 0x01, 0x10, 0x0E, 0x80, 0x08000000, _EVERY_FLAG])
@pytest.mark.parametrize("name", [x for x in PRODUCTS if x != "i8"])
def test_c09_flags_before_an_exact_product_are_those_after_it(name: str, before: int) -> None:
    """Both changes of mode set all of them."""
    a, b = np.ones((40, 33), np.float32), np.full((33, 70), 2, np.float32)
    left = np.asfortranarray(a) if name == "columns of a" else a
    right: Any = jitgemm.prepack_rhs(b) if name == "prepacked" else b
    out = np.empty((40, 70), np.float32)
    assert "__streaming" in jitgemm.plan(left, right).explain()
    assert _flags_after(before, lambda: jitgemm.gemm(left, right, out=out)) == before
    assert (out == 66).all()


@pytest.mark.parametrize("before", [0, 0x02, 0x08000000])
def test_c09_products_add_flags_of_their_own_only(before: int) -> None:
    """One that rounds is inexact, or the unit does not tell; no more than that."""
    a, b = (np.full(s, 0.1, np.float32) for s in ((40, 33), (33, 70)))
    c = np.full((40, 70), 0.3, np.float32)
    for options in ({}, {"alpha": 0.7}, {"beta": 1, "c": c}, {"activation": "relu"}):
        after = _flags_after(before, lambda o=options: jitgemm.gemm(a, b, **o))  # type: ignore[misc]
        assert after & ~0x10 == before, (options, hex(after))
    # The epilogue is of vectors, which tell: the sum of 1 and the least number is inexact.
    one = np.ones((40, 1), np.float32)
    tiny = np.full((40, 70), np.finfo(np.float32).eps / 4, np.float32)
    after = _flags_after(before, lambda: jitgemm.gemm(one, np.ones((1, 70), np.float32), beta=1,
                                                      c=tiny))  # fmt: skip
    assert after == before | 0x10


@pytest.mark.parametrize("bits", [0, 1 << 24, 2 << 22, 3 << 22, 1 << 25])
@pytest.mark.parametrize("name", PRODUCTS)
def test_c09_the_control_register_is_never_changed(name: str, bits: int) -> None:
    """As found, then with subnormal numbers flushed, rounding down and to zero, default NaNs."""
    work = _products()[name]
    control, set_control = _native()["control"], _native()["set_control"]
    before = control()
    for threads in (1, 2):
        set_control(before | bits)
        try:
            work(threads=threads)
            after = control()
        finally:
            set_control(before)
        assert after == before | bits
