"""Generated ``METH_FASTCALL | METH_KEYWORDS`` functions: how a call from Python reaches a kernel.

:func:`call` is the whole of a call: arguments by their places and names, small products at once,
everything else by its signature in the table of entries.  What is not found there, and whatever is
unexpected, goes to a Python function with the same arguments, which words the errors; if an entry
may be left for the next time, with the signature as well.  No reference is created before that
decision, so leaving is free.
"""

from __future__ import annotations

from jitgemm.lang.core import Cond, Function, Int, Ptr, Var, parameters
from jitgemm.lang.record import Record, View
from jitgemm.runtime.entry_code import DECLINED, ENTRY, SERVED, find, serve
from jitgemm.runtime.numpy_abi import ITEMS, OFFSETS, SIZE
from jitgemm.runtime.signature_code import (
    ARGUMENTS,
    CALLS,
    SIGNATURE,
    describe,
    recognise,
    signature,
)
from jitgemm.runtime.small_code import small
from jitgemm.runtime.system import NativeFunction, SystemKernel

__all__ = ["FUNCTION", "NAMES", "PLAN", "Call", "call", "call_plan", "described"]

NAMES = 24
"""Keywords of a function, at most."""
# Arguments passed on with a signature, at most; no valid call has more.
_ARGUMENTS = 40

FUNCTION = Record(
    "function",
    "calls",
    "number",  # tells its signatures from those of others
    "missed",  # takes a call and its signature
    "python",  # takes a call
    "dry",  # 1: what is known is not run, but returned
    "small",  # the table of small products; 0: there are none
    "positional",  # arguments without a name, at most
    *(f"position_{i}" for i in range(3)),  # which field of ARGUMENTS they are
    "names",  # keywords
    *(f"name_{i}" for i in range(NAMES)),
    *(f"field_{i}" for i in range(NAMES)),
)
"""One function of the public surface: offsets of fields are those in ARGUMENTS."""

PLAN = Record(
    "plan",
    "calls", "python",
    "entry",  # the only one, whose signature are the words of A and B
    "d_words",  # those of the result
)  # fmt: skip


def _to_python(k: SystemKernel, view: View, args: Ptr, count: Int, names: Ptr) -> Ptr:
    """Pass the call on as it is."""
    target = view.pointer("python")
    return k.external("PyObject_Vectorcall", "ptr", target, args, count, names)


def _missed() -> NativeFunction:
    """``missed(function, words, end, args, count, names)``: a call and its signature to Python."""

    def body(
        k: SystemKernel, function_at: Ptr, words: Ptr, end: Ptr, args: Ptr, count: Int, names: Ptr
    ) -> None:
        function, total = FUNCTION.view(k, function_at), k.var(count)
        for _ in k.when(~k.is_null(names)):
            total.value = total.value + k.load_int(names + SIZE)
        k.leave_when(total.value >= _ARGUMENTS, lambda: _to_python(k, function, args, count, names))
        size = k.address(end) - k.address(words)
        said = k.external("PyBytes_FromStringAndSize", "ptr", words, size)
        k.leave_when(k.is_null(said), k.null)
        all_ = k.scratch(8 * _ARGUMENTS)
        k.store_ptr(all_, said)
        for i in k.range(0, total.value):
            k.store_ptr(all_ + (i * 8 + 8), k.load_ptr(args + i * 8))
        target = function.pointer("missed")
        result = k.external("PyObject_Vectorcall", "ptr", target, all_, count + 1, names)
        k.external("Py_DecRef", "void", said)
        k.ret(result)

    params = parameters("function* words* end* args* count names*")
    return NativeFunction("jitgemm_missed", params, body, returns="ptr")


class Call:
    """A call of a public function while it is generated."""

    def __init__(self, k: SystemKernel, owner: Ptr, args: Ptr, count: Int, names: Ptr) -> None:
        self.k = k
        self.given = args, count, names
        self.function = FUNCTION.view(k, k.load_ptr(owner + OFFSETS["data"]))
        self.calls = CALLS.view(k, self.function.pointer("calls"))
        self.args = ARGUMENTS.view(k, k.scratch(ARGUMENTS.size))
        for at in range(0, ARGUMENTS.size, 8):
            k.store_int(self.args.ptr + at, 0)
        self.named: Var[Int] = k.var(k.const(0))

    def leave(self, cond: Cond) -> None:
        """Leave the call to Python if ``cond`` holds."""
        for _ in self.k.when(cond):
            self.pass_on()

    def pass_on(self) -> None:
        """Leave the call to Python."""
        self.k.ret(_to_python(self.k, self.function, *self.given))

    def take_arguments(self) -> None:
        """Arguments into their fields."""
        k, function = self.k, self.function
        args, count, names = self.given
        self.leave(count > function.int("positional"))
        for i in k.range(0, count):
            field = k.load_int(function.at("position_0") + i * 8)
            k.store_ptr(self.args.ptr + field, k.load_ptr(args + i * 8))
        for _ in k.when(~k.is_null(names)):
            self.named.value = k.load_int(names + SIZE)
            known = function.int("names")
            for i in k.range(0, self.named.value):
                name = k.load_ptr(names + ITEMS + i * 8)
                at = k.var(k.const(0))
                first = function.at("name_0")

                def other(name: Ptr = name, at: Var[Int] = at, first: Ptr = first) -> Cond:
                    return ~k.same(k.load_ptr(first + at.value * 8), name)

                # The last name is null, which none of the caller's is: the search ends there.
                for _ in k.repeat_while(lambda: (at.value < known) & other()):
                    at.value = at.value + 1
                self.leave(at.value >= known)
                place = self.args.ptr + k.load_int(function.at("field_0") + at.value * 8)
                # Twice the same: an error.
                self.leave(~k.is_null(k.load_ptr(place)))
                k.store_ptr(place, k.load_ptr(args + (count + i) * 8))

    def check_arguments(self) -> None:
        """Whether there are operands, and a workspace is one."""
        k, args, none = self.k, self.args, self.calls.pointer("none")
        self.leave(k.is_null(args.pointer("a")) | k.is_null(args.pointer("b")))
        for name in ("out", "c", "bias", "threads", "workspace"):
            for _ in k.when(k.same(args.pointer(name), none)):
                args.set(name, k.null())
        given = args.pointer("workspace")
        for _ in k.when(~k.is_null(given)):
            kind = k.load_ptr(given + OFFSETS["type"])
            self.leave(~k.same(kind, self.calls.pointer("workspace_type")))
            # One that was made without its constructor has no record.
            self.leave(k.is_null(k.load_ptr(given + self.calls.int("workspace_record"))))

    def try_small(self) -> None:
        """Answer at once if it is a small product without options."""
        k, args, table = self.k, self.args, self.function.pointer("small")
        out = args.pointer("out")
        bare = self.named.value.equals(0) | (self.named.value.equals(1) & ~k.is_null(out))
        for _ in k.when(bare & ~k.is_null(table) & k.is_null(args.pointer("threads"))):
            end = k.scratch(8)
            answer = k.integer_from(small(), table, args.pointer("a"), args.pointer("b"), out, end)
            k.leave_when(answer.equals(SERVED), lambda: k.load_ptr(end))


def call() -> Function:
    """``function(a, b, ...)``: a function of the public surface."""
    name, look_up, run, pass_on = signature(), find(), serve(), _missed()

    def body(k: SystemKernel, owner: Ptr, args: Ptr, count: Int, names: Ptr) -> None:
        it = Call(k, owner, args, count, names)
        it.take_arguments()
        it.check_arguments()
        it.try_small()
        words, result = k.scratch(SIGNATURE), k.scratch(8)
        end = k.pointer_from(
            name, it.calls.ptr, it.args.ptr, words, it.function.int("number"), it.named.value
        )
        it.leave(k.is_null(end))
        entry = k.pointer_from(look_up, it.calls.ptr, words, end)
        for _ in k.when(k.is_null(entry)):
            passed = k.pointer_from(pass_on, it.function.ptr, words, end, args, count, names)
            k.ret(passed)
        owner_of = ENTRY.view(k, entry).pointer("owner")
        for _ in k.when(it.function.int("dry").differs(0)):
            k.external("Py_IncRef", "void", owner_of)
            k.ret(owner_of)
        wanted = it.args.pointer("entry")
        it.leave(~(k.is_null(wanted) | k.same(wanted, owner_of)))
        answer = k.integer_from(run, it.calls.ptr, entry, it.args.ptr, result)
        it.leave(answer.equals(DECLINED))
        k.ret(k.load_ptr(result))

    params = parameters("owner* args* count names*")
    return NativeFunction("jitgemm_call", params, body, returns="ptr")


def call_plan() -> Function:
    """``plan(a, b[, out])``: the entry of a plan, if the operands are those planned for."""
    known, run = recognise(), serve()

    def body(k: SystemKernel, owner: Ptr, args: Ptr, count: Int, names: Ptr) -> None:
        plan = PLAN.view(k, k.load_ptr(owner + OFFSETS["data"]))
        calls = CALLS.view(k, plan.pointer("calls"))

        def leave(cond: Cond) -> None:
            k.leave_when(cond, lambda: _to_python(k, plan, args, count, names))

        def check(x: Ptr, words: Ptr) -> Ptr:
            end = k.pointer_from(known, calls.ptr, x, words)
            leave(k.is_null(end))
            return end

        leave(~k.is_null(names) | (count < 2) | (count > 3))
        given = ARGUMENTS.view(k, k.scratch(ARGUMENTS.size))
        # None of the others is read: C, the bias and the factors are bound.
        for name in ("c", "bias", "out", "workspace", "data"):
            given.set(name, 0)
        entry = ENTRY.view(k, plan.pointer("entry"))
        words = entry.pointer("signature")
        for i, name in enumerate("ab"):
            x = k.load_ptr(args + 8 * i)
            given.set(name, x)
            words = check(x, words)
        for _ in k.when(count.equals(3)):
            d = k.load_ptr(args + 16)
            for _ in k.when(~k.same(d, calls.pointer("none"))):
                given.set("out", d)
                check(d, plan.pointer("d_words"))
        result = k.scratch(8)
        answer = k.integer_from(run, calls.ptr, entry.ptr, given.ptr, result)
        leave(answer.equals(DECLINED))
        k.ret(k.load_ptr(result))

    params = parameters("owner* args* count names*")
    return NativeFunction("jitgemm_call_plan", params, body, returns="ptr")


def described() -> Function:
    """``described(x, ...)``: the words of operands as bytes, or None; three at most."""
    describe_ = describe()

    def body(k: SystemKernel, owner: Ptr, args: Ptr, count: Int, names: Ptr) -> None:
        plan = PLAN.view(k, k.load_ptr(owner + OFFSETS["data"]))
        calls = CALLS.view(k, plan.pointer("calls"))
        words = k.scratch(SIGNATURE)
        end, none = k.var(words), calls.pointer("none")
        for i in k.range(0, k.min(count, 3)):
            x = k.load_ptr(args + i * 8)
            found = k.pointer_from(describe_, calls.ptr, x, end.value)
            for _ in k.when(k.is_null(found)):
                k.external("Py_IncRef", "void", none)
                k.ret(none)
            end.value = found
        size = k.address(end.value) - k.address(words)
        said = k.external("PyBytes_FromStringAndSize", "ptr", words, size)
        k.ret(said)

    params = parameters("owner* args* count names*")
    return NativeFunction("jitgemm_described", params, body, returns="ptr")
