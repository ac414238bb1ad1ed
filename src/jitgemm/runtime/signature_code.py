"""Generated code that says what decides the plan of a call, as a row of words: its signature.

Two calls of equal signatures differ in addresses and factors only, so one plan serves both.  The
words are shapes, strides and types of operands, and what the options are; objects stand for
themselves, by their address, so whoever keeps a signature keeps those objects too.

Nobody but the functions of this module knows the order of the words.  Python gets a signature as
bytes, which it hands back unread.
"""

from __future__ import annotations

from jitgemm.isa.types import F32, F64
from jitgemm.lang.core import Cond, Int, Ptr, Var, parameters
from jitgemm.lang.record import Record, View
from jitgemm.runtime.numpy_abi import FLOAT
from jitgemm.runtime.numpy_abi import OFFSETS as ARRAY
from jitgemm.runtime.system import NativeFunction, SystemKernel

__all__ = [
    "ARGUMENTS",
    "CALLS",
    "DIMENSIONS",
    "FACTORS",
    "HANDLE",
    "KEYWORDS",
    "OPERANDS",
    "OPTIONS",
    "SIGNATURE",
    "ArrayAt",
    "describe",
    "factor",
    "number_of_threads",
    "signature",
]  # fmt: skip

DIMENSIONS = 8
"""Calls with operands of more dimensions are not kept."""

OPERANDS = ("a", "b", "c", "bias", "out")
FACTORS = ("alpha", "beta")
OPTIONS = (
    "activation", "epilogue", "post_ops", "a_scale", "b_scale", "a_zero_point", "b_zero_point",
    "requantize", "out_dtype",
    "form",  # what options decide that only Python can tell
    "conj_a", "conj_b", "allow_bf16_dot",
    "reproducible", "backend",
)  # fmt: skip
"""Options that are part of a signature as they are: integers by value, others by identity."""
KEYWORDS = tuple(x for x in OPTIONS if x != "form")
"""Those that callers may give."""
# None is the usual value of the first, False of those from here on, a text of the last: what is
# usual for one is wrong for another.
_FLAGS, _TEXTS = OPTIONS.index("conj_a"), OPTIONS.index("reproducible")

HANDLE = Record(
    "handle",
    "address",  # of the first packed byte
    "item_bytes",  # from one item of a stack to the next
    "items",
    "layout",  # a number that stands for the layout and the kind of handle
    "conj",
    "ndim",
    *(f"shape_{i}" for i in range(DIMENSIONS)),
)
"""The words of a prepacked operand."""

ARGUMENTS = Record(
    "arguments",
    *OPERANDS,
    *FACTORS,
    "threads",
    "workspace",
    *OPTIONS,
    "entry",  # the only one that will do
    "data",  # bytes for its job, in place of those it has
    # A factor as a pair of doubles and as an integer.
    *(f"{name}_{part}" for name in FACTORS for part in ("real", "imag", "integer")),
)
"""The arguments of a call, null where there is none; and what its factors are."""

CALLS = Record(
    "calls",
    "array_type", "list_type", "tuple_type", "none", "true", "false", "one",
    "float_type", "float64_type", "float32_type", "int_type", "complex_type",
    "rhs_type", "lhs_type", "packed_words",  # where a handle has its words
    "workspace_type", "workspace_record",  # where a workspace has its record
    "new_from_descr", "new_scalar",
    "threads",  # of calls that do not say; 0: not known yet
    "parallel_flops", "split_flops", "release_flops",  # knobs
    "scoped",  # 1: a context may say
    "context",  # the variable that does
    "scratch",  # record of the scratch for calls that bring none
    "pool_cell",
    "signature_code", "find_code", "prepare_code",  # functions that lists call
    "clock",  # ticks with every call that is found
    "slots",  # address of the table: pairs of a hash and the address of an entry
    "shift",  # hash >> shift: the first slot to look at
)  # fmt: skip
"""What all calls need, and the table of entries."""

SIGNATURE = 8 * (3 + len(OPERANDS) * (2 + 2 * DIMENSIONS) + len(OPTIONS))
"""Bytes of the longest signature: its hash, a word of flags, operands, options; one to spare."""

_HANDLE = 256
_MOST_THREADS = 1024
# Where the parts of the word of flags begin.
_THREADS, _PRESENT, _IN_PLACE, _FACTOR, _OPTION = 8, 24, 27, 28, 36
_FACTOR_BITS = 4
# Classes of factors.
_ABSENT, _INTEGER, _REAL, _COMPLEX = range(4)
_ZERO = 4
# The bits of a double but for its sign.
_MAGNITUDE = (1 << 63) - 1


class ArrayAt:
    """Fields of an object already known to be a plain ndarray."""

    def __init__(self, k: SystemKernel, at: Ptr) -> None:
        self.k, self.at = k, at

    def pointer(self, name: str) -> Ptr:
        """A field that is a pointer."""
        return self.k.load_ptr(self.at + ARRAY[name])

    def small(self, name: str) -> Int:
        """A 32-bit field."""
        return self.k.load_i32(self.at + ARRAY[name])

    def pair(self, name: str) -> tuple[Int, Int]:
        """The first two numbers a field points to."""
        p = self.pointer(name)
        return self.k.load_int(p), self.k.load_int(p + 8)


def type_of(k: SystemKernel, x: Ptr) -> Ptr:
    """The type of an object."""
    return k.load_ptr(x + ARRAY["type"])


def packed_words(k: SystemKernel, calls: View, handle: Ptr) -> Ptr:
    """The words of a prepacked operand, which is known to have them."""
    return k.load_ptr(k.load_ptr(handle + calls.int("packed_words")) + ARRAY["data"])


class _Writer:
    """Writes the words of an operand."""

    def __init__(self, k: SystemKernel) -> None:
        self.k = k

    def say(self, at: Ptr, word: Int) -> None:
        """A word."""
        self.k.store_int(at, word)

    def end(self, at: Ptr) -> None:
        """Where the words end."""
        self.k.ret(at)


class _Comparer(_Writer):
    """Compares the words of an operand with those that are there."""

    def __init__(self, k: SystemKernel) -> None:
        super().__init__(k)
        self.differs: Var[Int] = k.var(k.const(0))

    def say(self, at: Ptr, word: Int) -> None:
        """A word."""
        self.differs.value = self.differs.value | self.k.difference(self.k.load_int(at), word)

    def end(self, at: Ptr) -> None:
        """Where the words end."""
        self.k.ret(self.k.select(self.differs.value.equals(0), at, self.k.null()))


def _walk_words(k: SystemKernel, places: tuple[Ptr, Ptr, Ptr], words: _Writer) -> None:
    """The words of an operand, in their order; null if there are none for it."""
    calls_at, x, at = places
    calls, kind = CALLS.view(k, calls_at), type_of(k, x)
    for _ in k.when(k.same(kind, calls.pointer("array_type"))):
        it = ArrayAt(k, x)
        nd = it.small("nd")
        k.leave_when(nd > DIMENSIONS, k.null)
        words.say(at, nd)
        words.say(at + 8, k.address(it.pointer("descr")))
        dims, strides = it.pointer("dims"), it.pointer("strides")
        first = at + 16
        for i in k.range(0, nd):
            words.say(first + i * 16, k.load_int(dims + i * 8))
            words.say(first + (i * 16 + 8), k.load_int(strides + i * 8))
        words.end(first + nd * 16)
    handle = k.same(kind, calls.pointer("rhs_type")) | k.same(kind, calls.pointer("lhs_type"))
    k.leave_when(~handle, k.null)
    # One that was made without its constructor has none.
    k.leave_when(k.is_null(k.load_ptr(x + calls.int("packed_words"))), k.null)
    of = HANDLE.view(k, packed_words(k, calls, x))
    nd = of.int("ndim")
    words.say(at, nd + _HANDLE)
    words.say(at + 8, of.int("layout") * 2 + of.int("conj"))
    dims, first = of.at("shape_0"), at + 16
    for i in k.range(0, nd):
        words.say(first + i * 8, k.load_int(dims + i * 8))
    words.end(first + nd * 8)


def describe() -> NativeFunction:
    """``describe(calls, object, words)``: write an operand's words; where they end, or null.

    Null: the object is no plain array of at most so many dimensions, and no handle.
    """

    def body(k: SystemKernel, calls_at: Ptr, x: Ptr, words: Ptr) -> None:
        _walk_words(k, (calls_at, x, words), _Writer(k))

    params = parameters("calls* object* words*")
    return NativeFunction("jitgemm_describe", params, body, returns="ptr")


def recognise() -> NativeFunction:
    """``recognise(calls, object, words)``: where the words end if they are an operand's, or null.

    ``words`` must have room for those of any operand.
    """

    def body(k: SystemKernel, calls_at: Ptr, x: Ptr, words: Ptr) -> None:
        _walk_words(k, (calls_at, x, words), _Comparer(k))

    params = parameters("calls* object* words*")
    return NativeFunction("jitgemm_recognise", params, body, returns="ptr")


def factor() -> NativeFunction:
    """``factor(calls, object, target)``: write a factor's parts; its class, or -1 if unknown.

    The class of a zero has :data:`_ZERO` in it.
    """

    def body(k: SystemKernel, calls_at: Ptr, x: Ptr, target: Ptr) -> None:
        calls, kind = CALLS.view(k, calls_at), type_of(k, x)

        def is_a(*names: str) -> Cond:
            found = k.same(kind, calls.pointer(f"{names[0]}_type"))
            for name in names[1:]:
                found = found | k.same(kind, calls.pointer(f"{name}_type"))
            return found

        def written(what: int, parts: list[Int]) -> None:
            """Store the parts of a number that is no integer; no zero has a sign."""
            zero = None
            for i, bits in enumerate(parts):
                nothing = (bits & _MAGNITUDE).equals(0)
                k.store_int(target + 8 * i, k.select(nothing, k.const(0), bits))
                zero = nothing if zero is None else zero & nothing
            assert zero is not None
            k.ret(k.select(zero, k.const(what + _ZERO), k.const(what)))

        for _ in k.when(is_a("int")):
            overflow = k.scratch(8)
            value = k.external("PyLong_AsLongLongAndOverflow", "int", x, overflow)
            k.leave_when(k.load_i32(overflow).differs(0), lambda: k.const(-1))
            k.store_int(target + 16, value)
            k.store(target, k.number(value, F64))
            k.ret(k.select(value.equals(0), k.const(_INTEGER + _ZERO), k.const(_INTEGER)))
        for _ in k.when(is_a("float", "float64")):
            written(_REAL, [k.load_int(x + FLOAT)])
        for _ in k.when(is_a("float32")):
            k.store(target, k.convert(k.load(x + FLOAT, F32), F64))
            written(_REAL, [k.load_int(target)])
        for _ in k.when(is_a("complex")):
            written(_COMPLEX, [k.load_int(x + FLOAT), k.load_int(x + FLOAT + 8)])
        k.ret(k.const(-1))

    params = parameters("calls* object* target*")
    return NativeFunction("jitgemm_factor", params, body, returns="int")


def number_of_threads() -> NativeFunction:
    """``threads(calls, object)``: how many a call may use; 0: Python must find out."""

    def body(k: SystemKernel, calls_at: Ptr, given: Ptr) -> None:
        calls, found = CALLS.view(k, calls_at), k.var(given)
        overflow = k.scratch(8)

        def number(x: Ptr) -> Int:
            return k.external("PyLong_AsLongLongAndOverflow", "int", x, overflow)

        def checked(value: Int) -> Int:
            return k.select((value > 0) & (value <= _MOST_THREADS), value, k.const(0))

        for _ in k.when(k.is_null(given)):
            for _ in k.when(calls.int("scoped").differs(0)):
                cell = k.scratch(8)
                context = calls.pointer("context")
                failed = k.external("PyContextVar_Get", "i32", context, k.null(), cell)
                for _ in k.when(failed.differs(0)):
                    k.external("PyErr_Clear", "void")
                    k.ret(k.const(0))
                value = k.load_ptr(cell)
                for _ in k.when(~k.is_null(value)):
                    for said in k.branches(~k.same(value, calls.pointer("none"))):
                        if said:
                            count = number(value)
                            k.external("Py_DecRef", "void", value)
                            k.ret(checked(count))
                        else:
                            k.external("Py_DecRef", "void", value)
            k.ret(calls.int("threads"))
        k.leave_when(
            ~k.same(type_of(k, found.value), calls.pointer("int_type")), lambda: k.const(0)
        )
        k.ret(checked(number(given)))

    return NativeFunction("jitgemm_threads", parameters("calls* given*"), body, returns="int")


def _take_factors(k: SystemKernel, calls: View, args: View, flags: Var[Int]) -> None:
    """What the factors are, into the arguments and the flags."""
    parse = factor()
    for i, name in enumerate(FACTORS):
        given, usual = args.pointer(name), 1 - i
        for there in k.branches(~k.is_null(given)):
            if there:
                kind = k.integer_from(parse, calls.ptr, given, args.at(f"{name}_real"))
                k.leave_when(kind < 0, k.null)
                flags.value = flags.value + kind * (1 << _FACTOR + _FACTOR_BITS * i)
            else:
                args.set(f"{name}_integer", usual)
                args.set(f"{name}_real", 0x3FF0000000000000 if usual else 0)


def _take_options(
    k: SystemKernel, calls: View, args: View, cursor: Var[Ptr], flags: Var[Int]
) -> None:
    """The words of options that are not as usual."""
    none, false = calls.pointer("none"), calls.pointer("false")
    bit, overflow = k.var(k.const(1 << _OPTION)), k.scratch(8)
    for i in k.range(0, len(OPTIONS)):
        given = k.load_ptr(args.at(OPTIONS[0]) + i * 8)
        usual = k.select(i < _FLAGS, none, k.select(i < _TEXTS, false, k.null()))
        for _ in k.when(~(k.is_null(given) | k.same(given, usual))):
            word = k.var(k.address(given))
            for _ in k.when(k.same(type_of(k, given), calls.pointer("int_type"))):
                value = k.external("PyLong_AsLongLongAndOverflow", "int", given, overflow)
                small = (value < 1 << 31) & (value > -(1 << 31))
                k.leave_when(k.load_i32(overflow).differs(0) | ~small, k.null)
                # Odd, as no address is.
                word.value = value * 2 + 1
            k.store_int(cursor.value, word.value)
            cursor.value = cursor.value + 8
            flags.value = flags.value + bit.value
        bit.value = bit.value + bit.value


def signature() -> NativeFunction:
    """``signature(calls, arguments, words, number, optional)``: where the words end, or null.

    ``number`` is that of the function, ``optional`` whether there are other arguments than
    operands.  Null: something of the call is beyond what signatures can say.
    """
    threads, operand = number_of_threads(), describe()

    def body(
        k: SystemKernel, calls_at: Ptr, args_at: Ptr, words: Ptr, number: Int, optional: Int
    ) -> None:
        calls, args = CALLS.view(k, calls_at), ARGUMENTS.view(k, args_at)
        count = k.integer_from(threads, calls_at, args.pointer("threads"))
        k.leave_when(count.equals(0), k.null)
        flags, cursor = k.var(number + count * (1 << _THREADS)), k.var(words + 16)
        for i, name in enumerate(OPERANDS):
            x = args.pointer(name)
            for _ in k.when(~k.is_null(x)):
                end = k.pointer_from(operand, calls_at, x, cursor.value)
                k.leave_when(k.is_null(end), k.null)
                cursor.value = end
                if i > 1:
                    flags.value = flags.value + (1 << _PRESENT + i - 2)
        for more in k.branches(optional.differs(0)):
            if more:
                _take_factors(k, calls, args, flags)
                _take_options(k, calls, args, cursor, flags)
                c, d = args.pointer("c"), args.pointer("out")
                for _ in k.when(~(k.is_null(c) | k.is_null(d))):
                    at_c, at_d = ArrayAt(k, c).pointer("data"), ArrayAt(k, d).pointer("data")
                    for _ in k.when(k.same(at_c, at_d)):
                        flags.value = flags.value + (1 << _IN_PLACE)
            else:
                args.set("alpha_integer", 1)
                args.set("alpha_real", 0x3FF0000000000000)
        k.store_int(words + 8, flags.value)
        k.ret(cursor.value)

    params = parameters("calls* arguments* words* number optional")
    return NativeFunction("jitgemm_signature", params, body, returns="ptr")
