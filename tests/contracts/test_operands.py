"""Contract 12 and 23: what an operand may be made of, and what must not be taken for its numbers.

Every kind of object goes through every argument of every function that takes operands.  Packages
are stood in for by classes with the same attributes; where one is installed, so is the original.
"""

from __future__ import annotations

import array
import ctypes
import pickle
import re
import struct
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import jitgemm
import outside
from jitgemm.api import operands
from oracle import equal, exact_gemm, integers, run_python, same_bits

Array = np.ndarray[Any, Any]

F4, BF16 = np.float32, np.dtype(ml_dtypes.bfloat16)
SLOTS = {"a": (3, 4), "b": (4, 5), "c": (3, 5), "bias": (5,)}


def _given(rng: np.random.Generator, dtype: Any = F4) -> dict[str, Array]:
    return {name: integers(rng, shape, dtype) for name, shape in SLOTS.items()}


def _want(given: dict[str, Array]) -> Array:
    a, b, c, bias = given.values()
    return exact_gemm(a, b, beta=1, c=c, bias=bias)


# -- stand-ins ------------------------------------------------------------------------------------


class Interface:
    """``__array_interface__`` alone."""

    def __init__(self, x: Array) -> None:
        self.x, self.__array_interface__ = x, x.__array_interface__


class Converts:
    """``__array__`` alone: a view of its memory."""

    def __init__(self, x: Array) -> None:
        self.x = x

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.x if dtype is None else self.x.astype(dtype)


class Copies(Converts):
    """``__array__`` that copies: what is written to the copy is lost."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return self.x.copy()


class Exchanged:
    """DLPack alone."""

    device = 1

    def __init__(self, x: Array) -> None:
        self.x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


class Tensor(Exchanged, Converts):
    """What tensors of PyTorch offer."""

    __array_priority__ = 1000
    requires_grad = False

    def __array_wrap__(self, x: Array, *_: Any) -> Any:
        return Tensor(x)


class Learning(Tensor):
    requires_grad = True

    def __array__(self, *_: Any, **__: Any) -> Array:
        raise AssertionError("converted")


class Elsewhere(Learning):
    requires_grad = False
    device = 2


class OnGpu:
    __cuda_array_interface__: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, x: Array) -> None:
        self.x = x


class Mine(np.ndarray[Any, Any]):
    """A subclass with something to remember, but no arithmetic."""

    note = ""

    def __array_finalize__(self, other: Any) -> None:
        self.note = getattr(other, "note", "")


class MyMap(np.memmap):  # type: ignore[type-arg]
    pass


class Opaque(np.ndarray[Any, Any]):
    __array_ufunc__ = None


class Multiplies(np.ndarray[Any, Any]):
    def __matmul__(self, other: Any) -> str:
        return "a product of its own"


class Metres(np.ndarray[Any, Any]):
    """An array with units."""

    unit = "m"

    def to_value(self, unit: str) -> Array:
        raise NotImplementedError

    def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
        return NotImplemented


class Quantity(Converts):
    """A wrapper with units."""

    units = "m"

    @property
    def magnitude(self) -> Array:
        return self.x


class Sparse:
    """Neither an array nor a sequence."""

    nnz = 0
    __array_priority__ = 10

    def __init__(self, x: Array) -> None:
        self.x = x

    def toarray(self) -> Array:
        return self.x


class Frame(Converts):
    """A table with labels."""

    iloc = None
    __array_ufunc__ = Metres.__array_ufunc__

    def to_numpy(self) -> Array:
        return self.x


class Labelled(Converts):
    dims, coords = ("x", "y"), {}
    to_numpy = Frame.to_numpy


class Table(Converts):
    """A table of the interchange protocol."""

    def __dataframe__(self) -> Any:
        raise NotImplementedError

    to_numpy = Frame.to_numpy


class Dispatched(Converts):
    def __array_function__(self, *_: Any, **__: Any) -> Any:
        return NotImplemented


class Sealed:
    """It has ``__array__``, and refuses."""

    def __init__(self, x: Array) -> None:
        self.x = x

    def __array__(self, *_: Any, **__: Any) -> Array:
        raise RuntimeError("only on Sundays\nand never twice")


_NAMES = (b"dltensor", b"dltensor_versioned")


class Halves:
    """A tensor of bfloat16, or another ``code``, that describes its memory itself."""

    device, code, major, flags, versioned = 1, 4, 1, 0, True

    def __init__(self, x: Array, **given: int) -> None:
        # Some way into its memory, with strides of its own.
        self.x, self.keep = x, []
        self.__dict__ |= given

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, *, max_version: Any = None) -> Any:
        if not self.versioned and max_version is not None:
            raise TypeError("no such argument")
        n, size = self.x.ndim, self.x.itemsize
        axes = (ctypes.c_int64 * (2 * n))(*self.x.shape, *(s // size for s in self.x.strides))
        where = ctypes.addressof(axes)
        at = self.x.view(f"u{size}").__array_interface__["data"][0]
        raw = struct.pack("PiiiBBHPPQ", at - 6, self.device, 0, n, self.code, 8 * size, 1, where,
                          where + 8 * n, 6)  # fmt: skip
        if self.versioned:
            raw = struct.pack("IIPPQ", self.major, 3, 0, 0, self.flags) + raw
        self.keep += [axes, ctypes.create_string_buffer(raw, len(raw))]
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p,
                                                       ctypes.c_void_p)  # fmt: skip
        return new(ctypes.addressof(self.keep[-1]), _NAMES[self.versioned], None)


def _mapped(kind: type[Any], x: Array, folder: Any) -> Any:
    path = folder / f"{kind.__name__}{x.ndim}{x.size}"
    made = np.memmap(path, x.dtype, "w+", shape=x.shape).view(kind)
    made[...] = x
    return made


def _ctypes(x: Array) -> Any:
    kind: Any = np.ctypeslib.as_ctypes_type(x.dtype)
    for n in reversed(x.shape):
        kind = kind * n
    return kind.from_buffer_copy(x.tobytes())


def _view(x: Array) -> memoryview:
    """Of memory that belongs to no array."""
    flat = memoryview(bytearray(x.tobytes())).cast("B")
    return flat.cast(np.dtype(x.dtype).char, list(x.shape))  # type: ignore[call-overload]


# What is plain memory.
MEMORY: dict[str, Callable[[Array, Any], Any]] = {
    "array": lambda x, _: x,
    "read-only": lambda x, _: np.broadcast_to(x, x.shape),
    "subclass": lambda x, _: x.view(Mine),
    "memory map": lambda x, path: _mapped(np.memmap, x, path),
    "subclass of a map": lambda x, path: _mapped(MyMap, x, path),
    "memoryview": lambda x, _: _view(x),
    "ctypes": lambda x, _: _ctypes(x),
    "interface": lambda x, _: Interface(x),
    "converts": lambda x, _: Converts(x),
    "copies": lambda x, _: Copies(x),
    "dlpack": lambda x, _: Exchanged(x),
    "tensor": lambda x, _: Tensor(x),
    "array.array": lambda x, _: array.array("f", x) if x.ndim == 1 else x,
}
# What it can be written to.
WRITABLE = [x for x in MEMORY if x not in ("read-only", "copies", "array.array")]

# What means more than its numbers, and the words that say so.
MEANING: dict[str, tuple[Callable[[Array], Any], tuple[str, ...]]] = {
    "masked": (lambda x: np.ma.array(x, mask=x > 0), ("numpy.MaskedArray", "mask", "filled")),
    "matrix": (lambda x: x.view(np.matrix), ("numpy.matrix", "numpy.asarray(x)")),
    "opaque": (lambda x: x.view(Opaque), ("Opaque", "arithmetic of its own")),
    "multiplies": (lambda x: x.view(Multiplies), ("Multiplies", "arithmetic of its own")),
    "metres": (lambda x: x.view(Metres), ("Metres", "units", "x.to_value(unit)")),
    "quantity": (Quantity, ("Quantity", "units", "x.magnitude")),
    "sparse": (Sparse, ("Sparse", "sparse", "x.toarray()")),
    "frame": (Frame, ("Frame", "labels", "x.to_numpy()")),
    "labelled": (Labelled, ("Labelled", "labels", "x.to_numpy()")),
    "table": (Table, ("Table", "labels", "x.to_numpy()")),
    "dispatched": (Dispatched, ("Dispatched", "arithmetic of its own")),
    "gradient": (Learning, ("Learning", "a gradient", "x.detach()")),
    "elsewhere": (Elsewhere, ("Elsewhere", "memory on CUDA")),
    "on a GPU": (OnGpu, ("OnGpu", "memory on CUDA")),
    "converts to masked": (
        lambda x: Converts(np.ma.array(x, mask=x > 0)), ("numpy.MaskedArray", "filled")),
    "sealed": (Sealed, ("an array", "Sealed: only on Sundays")),
    "list of masked": (lambda x: [np.ma.array(x[0], mask=False)], ("MaskedArray", "filled")),
    "list of tensors": (lambda x: [[Learning(x[0])]], ("x.detach()",)),
}  # fmt: skip


# -- functions ------------------------------------------------------------------------------------


def _gemm(a: Any, b: Any, **options: Any) -> Any:
    return jitgemm.gemm(a, b, **options)


def _planned(a: Any, b: Any, *, out: Any = None, **options: Any) -> Any:
    return jitgemm.plan(a, b, out=out, **options)(a, b, out)


def _prepacked(a: Any, b: Any, **options: Any) -> Any:
    """Both in turn: one of them at a time may be packed."""
    jitgemm.gemm(jitgemm.prepack_lhs(a), b, **options)
    return jitgemm.gemm(a, jitgemm.prepack_rhs(b), **options)


def _listed(a: Any, b: Any, **options: Any) -> Any:
    """One left operand for all, and a list of right ones."""
    lists = {name: [options[name]] for name in ("c", "bias", "out") if name in options}
    return jitgemm.gemm_batched(a, [b], **{**options, **lists})[0]


WAYS: dict[str, Callable[..., Any]] = {
    "gemm": _gemm, "plan": _planned, "prepacked": _prepacked, "list": _listed,
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", MEMORY)
def test_c12_plain_memory_of_every_kind_is_an_operand(
    kind: str, way: str, rng: np.random.Generator, tmp_path: Any
) -> None:
    given = _given(rng)
    want = _want(given)
    for slot in SLOTS:
        x = MEMORY[kind](given[slot], tmp_path)
        if way == "list" and slot == "a" and isinstance(x, (list, tuple)):
            continue
        for _ in range(2):
            equal(WAYS[way](**{**given, slot: x}, beta=1), want, slot)


@pytest.mark.parametrize("kind", [x for x in MEMORY if x != "array.array"])
def test_c12_plain_memory_of_every_kind_is_a_stack(
    kind: str, rng: np.random.Generator, tmp_path: Any
) -> None:
    shapes = {"a": (2, 3, 4), "b": (2, 4, 5), "c": (2, 3, 5), "bias": (2, 1, 5)}
    given = {name: integers(rng, shape, F4) for name, shape in shapes.items()}
    want = np.array([_want(dict(zip(given, x, strict=True))) for x in zip(*given.values())])  # noqa: B905
    for slot in SLOTS:
        x = MEMORY[kind](given[slot], tmp_path)
        for call in (_gemm, _planned):
            equal(call(**{**given, slot: x}, beta=1), want, slot)


@pytest.mark.parametrize("kind", MEMORY)
def test_c12_plans_of_plain_memory_can_be_pickled(
    kind: str, rng: np.random.Generator, tmp_path: Any
) -> None:
    given = _given(rng)
    pair = {"a": given["a"], "b": given["b"]}
    want = pair["a"] @ pair["b"]
    for slot, x in pair.items():
        operands = {**pair, slot: MEMORY[kind](x, tmp_path)}
        again = pickle.loads(pickle.dumps(jitgemm.plan(**operands)))
        equal(again(operands["a"], operands["b"]), want, slot)


def test_c12_tensors_of_bfloat16_are_operands(rng: np.random.Generator) -> None:
    given = _given(rng, BF16)
    want = _want(given)
    for versioned in (True, False):
        for layout in (np.ascontiguousarray, np.asfortranarray, lambda x: x[..., ::-1]):
            for slot in SLOTS:
                x = layout(given[slot])
                same = {**given, slot: x}
                result = _want(same)
                made = {**same, slot: Halves(x, versioned=versioned)}
                same_bits(jitgemm.gemm(**made, beta=1), result, slot)
            out = Halves(layout(np.zeros((3, 5), BF16)), versioned=versioned)
            if versioned:
                assert jitgemm.gemm(**given, beta=1, out=out) is out
                same_bits(np.ascontiguousarray(out.x), want)
            else:  # it does not say that it may be written
                with pytest.raises(ValueError, match=r"^jitgemm: out: .*writable"):
                    jitgemm.gemm(**given, beta=1, out=out)
                assert not out.x.any()
    frozen = Halves(np.zeros((3, 5), BF16), flags=1)
    with pytest.raises(ValueError, match=r"^jitgemm: out: .*writable"):
        jitgemm.gemm(**given, beta=1, out=frozen)
    for wrong in ({"code": 3}, {"major": 2}):
        with pytest.raises(TypeError, match=r"^jitgemm: a: expected an array, got Halves: "):
            jitgemm.gemm(Halves(given["a"], **wrong), given["b"])
    planned = jitgemm.plan(Halves(given["a"]), given["b"])
    same_bits(pickle.loads(pickle.dumps(planned))(given["a"], given["b"]),
              jitgemm.gemm(given["a"], given["b"]))  # fmt: skip
    empty = jitgemm.gemm(Halves(np.zeros((0, 4), BF16)), given["b"])
    assert empty.shape == (0, 5)


def test_c12_tensors_of_a_type_from_outside_are_operands(rng: np.random.Generator) -> None:
    a, b = (integers(rng, s, np.float32) for s in ((3, 4), (4, 5)))
    x, y = (z.astype(outside.F8) for z in (a, b))
    with pytest.raises(TypeError, match=r"^jitgemm: a: expected an array, got Halves: "):
        jitgemm.gemm(Halves(x, code=outside.ROW["dlpack"]), y)
    with outside.storage_type():
        tensors = (Halves(z, code=outside.ROW["dlpack"]) for z in (x, np.asfortranarray(y)))
        same_bits(jitgemm.gemm(*tensors), a @ b)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", WRITABLE)
def test_c14_memory_that_can_be_written_where_it_is_is_an_out(
    kind: str, way: str, rng: np.random.Generator, tmp_path: Any
) -> None:
    given = _given(rng)
    for overlapping in (False, True):
        # The second is its own C, and A lies in it as well.
        out = MEMORY[kind](given["c"].copy(), tmp_path)
        memory = operands.plain("out", out)
        options = {**given, "beta": 1}
        if overlapping:
            options |= {"c": out, "a": memory[:, :4]}
        want = _want({**given, "a": np.array(options["a"])})
        assert WAYS[way](**options, out=out) is out if way != "prepacked" else True
        if way == "prepacked":
            memory[...] = given["c"]
            if not overlapping:
                assert jitgemm.gemm(given["a"], jitgemm.prepack_rhs(given["b"]), beta=1,
                                    c=given["c"], bias=given["bias"], out=out) is out  # fmt: skip
                equal(memory, want)
            continue
        equal(memory, want, overlapping)
        equal(operands.plain("out", out), want, overlapping)


def test_c14_memory_that_cannot_be_written_is_no_out() -> None:
    a, b = np.ones((3, 4), F4), np.ones((4, 5), F4)
    frozen = np.zeros((3, 5), F4)
    frozen.flags.writeable = False
    bad: list[tuple[type[Exception], Any]] = [
        (ValueError, memoryview(bytes(60)).cast("f", [3, 5])),
        (ValueError, Interface(frozen)), (ValueError, Converts(frozen)),
        (TypeError, Copies(np.zeros((3, 5), F4))), (TypeError, [[0.0] * 5] * 3),
        (TypeError, 0.0), (TypeError, {}), (TypeError, Sealed(frozen)),
        (TypeError, memoryview(bytearray(120)).cast("d", [3, 5])),
        (ValueError, memoryview(bytearray(60)).cast("f", [5, 3])),
        (ValueError, bytearray(60)), (ValueError, array.array("f", [0] * 15)),
    ]  # fmt: skip
    for error, out in bad:
        for call in (_gemm, _planned, _listed):
            if isinstance(out, bytearray):
                error = TypeError  # noqa: PLW2901  # bytes
            with pytest.raises(error, match=r"^jitgemm: out: expected .+, got "):
                call(a, b, out=out)
            x = getattr(out, "x", None)
            assert x is None or not x.any()


@pytest.mark.parametrize("kind", MEANING)
@pytest.mark.parametrize("way", WAYS)
def test_c23_what_means_more_than_its_numbers_is_refused(
    kind: str, way: str, rng: np.random.Generator
) -> None:
    given, (make, words) = _given(rng), MEANING[kind]
    given["bias"] = given["bias"].reshape(1, 5)
    out = np.full((3, 5), 7, F4)
    jitgemm.gemm(**given, beta=1, out=out.copy())  # a plan for such operands is there
    for slot in (*SLOTS, "out"):
        if kind.startswith("list") and (slot == "out" or (slot == "a" and way == "list")):
            continue
        options = {**given, "beta": 1, "out": out, slot: make({**given, "out": out}[slot])}
        if way == "prepacked" and slot == "out":
            continue
        with pytest.raises(TypeError) as raised:
            WAYS[way](**options)
        text = str(raised.value)
        assert re.match(rf"^jitgemm: {slot}: expected .+, got .+", text), text
        for word in words:
            assert word in text, text
        assert (out == 7).all()


@pytest.mark.parametrize("kind", MEANING)
def test_c23_what_means_more_is_refused_in_stacks_and_tables(
    kind: str, rng: np.random.Generator
) -> None:
    make, words = MEANING[kind]
    a, b = integers(rng, (2, 3, 4), np.int8), integers(rng, (2, 4, 5), np.int8)
    points = integers(rng, (3, 1), np.int64)
    calls: dict[str, Callable[[], Any]] = {
        "a": lambda: jitgemm.gemm(make(a), b),
        "b": lambda: jitgemm.gemm(a, make(b)),
        "c": lambda: jitgemm.gemm(a, b, c=make(np.zeros((2, 3, 5), np.int32)), beta=1),
        "bias": lambda: jitgemm.gemm(a, b, bias=make(np.ones((1, 5), np.int32))),
        "a_zero_point": lambda: jitgemm.gemm(a, b, a_zero_point=make(points)),
        "b_zero_point": lambda: jitgemm.gemm(a, b, b_zero_point=make(points)),
        "scale": lambda: jitgemm.Requantize(make(np.ones((3, 1)))),
        "x1": lambda: jitgemm.matmul(make(a[0]), jitgemm.prepack_rhs(b[0])),
        "x": lambda: jitgemm.math.erf(make(np.ones((3, 1)))),
    }
    matrices = kind in ("matrix", "list of masked", "list of tensors")
    for name, call in calls.items():
        if matrices and name in ("a", "b", "c"):
            continue  # no stacks of them
        with pytest.raises(TypeError, match=rf"^jitgemm: {name}: expected .+, got .+") as raised:
            call()
        assert words[-1] in str(raised.value)
    with pytest.raises(TypeError, match=r"^jitgemm: bias: expected "):
        jitgemm.Requantize(1.0, bias=make(np.ones((1, 5), np.int32)))
    jitgemm.Requantize(1.0, bias=np.ones((1, 5), np.int32))


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "lil", "dok", "dia"])
@pytest.mark.parametrize("which", ["matrix", "array"])
def test_c23_sparse_matrices_of_scipy_are_refused(kind: str, which: str) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    x = np.eye(3, dtype=F4)
    made = getattr(sparse, f"{kind}_{which}")(x)
    for call in (lambda: jitgemm.gemm(made, x), lambda: jitgemm.plan(x, made),
                 lambda: jitgemm.prepack_rhs(made)):  # fmt: skip
        with pytest.raises(TypeError, match=r"sparse storage") as raised:
            call()
        assert "pass x.toarray()" in str(raised.value)


@pytest.mark.filterwarnings("ignore")
def test_c23_frames_of_pandas_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    x = np.eye(3, dtype=F4)
    for made in (pandas.DataFrame(x), pandas.Series(x[0]), pandas.Index(x[0])):
        for options in ({"a": made, "b": x}, {"a": x, "b": x, "bias": made}):
            with pytest.raises(TypeError, match=r"pass x\.to_numpy\(\)"):
                jitgemm.gemm(**options)
        with pytest.raises(TypeError, match=r"pass x\.to_numpy\(\)"):
            jitgemm.math.where(True, made, 0.0)


@pytest.mark.filterwarnings("ignore")
def test_c12_tensors_of_torch_are_operands(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    given = _given(rng)
    want = _want(given)
    tensors = {name: torch.from_numpy(x) for name, x in given.items()}
    for way in (_gemm, _planned, _listed):
        out = torch.zeros(3, 5)
        assert way(**tensors, beta=1, out=out) is out
        equal(out.numpy(), want)
    halves = {name: x.bfloat16() for name, x in tensors.items()}
    out = torch.zeros(3, 5).bfloat16()
    assert jitgemm.gemm(**halves, beta=1, out=out) is out
    bf16 = {name: x.astype(BF16) for name, x in given.items()}
    equal(out.float().numpy(), _want(bf16).astype(F4))
    with pytest.raises(TypeError, match=r"pass x\.detach\(\)"):
        jitgemm.gemm(tensors["a"].requires_grad_(), tensors["b"])
    with pytest.raises(TypeError, match=r"^jitgemm: a: expected an array, got .*meta"):
        jitgemm.gemm(torch.empty(3, 4, device="meta"), tensors["b"])


def test_c12_arrays_are_taken_without_a_look_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((2, 2), F4)

    def asked(*_: Any) -> None:
        raise AssertionError("an array was asked what it means")

    monkeypatch.setattr(operands, "check_plain", asked)
    assert operands.plain("a", x) is x
    equal(jitgemm.gemm(x, x, bias=x[0]), np.full((2, 2), 3, F4))


def test_c23_no_package_is_imported_to_know_its_objects() -> None:
    run_python(
        """
        import sys
        import numpy as np
        import jitgemm
        class Sparse:
            nnz, shape, dtype, ndim = 0, (2, 2), np.dtype("f4"), 2
        for x in (Sparse(), np.ma.ones((2, 2)), memoryview(np.ones((2, 2)))):
            try:
                jitgemm.gemm(x, np.ones((2, 2)))
            except TypeError:
                pass
        assert not {"scipy", "pandas", "torch", "xarray"} & set(sys.modules)
        """
    )


# -- numbers of Python ----------------------------------------------------------------------------

# Types of operands, of the sums, numbers of Python that fit, numbers that do not.
WEAK: dict[str, tuple[Any, Any, tuple[Any, ...], dict[Any, type[Exception]]]] = {
    "f4": (F4, F4, (0.5, 3, -0.0, 2**60), {1j: TypeError, 10**400: ValueError}),
    "f8": (np.float64, np.float64, (0.1, 3, 2**60, 10**300), {1j: TypeError}),
    "f2": (np.float16, F4, (0.1, 3), {1j: TypeError}),
    "bf16": (BF16, F4, (0.1, 3), {0.5j: TypeError}),
    "c8": ("c8", "c8", (0.5, 3, 1 + 2j), {10**400: ValueError}),
    "i1": (np.int8, np.int32, (3, -(2**31), 2**31 - 1),
           {0.5: TypeError, 2.0: TypeError, 1j: TypeError, 2**31: ValueError,
            -(2**31) - 1: ValueError, 2**70: ValueError}),
    "i2": (np.int16, np.int32, (3, 100_000, -(2**31)), {0.5: TypeError, 2**31: ValueError}),
    "i8": (np.int64, np.int64, (2**62, -(2**63)), {0.5: TypeError, 2**63: ValueError}),
    "u8": (np.uint64, np.uint64, (2**64 - 1, 0), {0.5: TypeError, 2**64: ValueError}),
}  # fmt: skip


FORMS = ("list", "tuple", "number", "rows", "full")


def _wrapped(x: Any, form: str) -> Any:
    return {"number": x, "list": [x] * 5, "rows": [[x], [x], [x]], "tuple": (x,) * 5,
            "full": [[x] * 5 for _ in range(3)]}[form]  # fmt: skip


@pytest.mark.parametrize("name", WEAK)
def test_c12_numbers_of_python_take_the_type_of_the_product(
    name: str, rng: np.random.Generator
) -> None:
    kind, sums, good, bad = WEAK[name]
    a, b = (integers(rng, shape, np.int8).astype(kind) for shape in ((3, 4), (4, 5)))
    stack = np.stack([a, a])
    for value in good:
        strong = np.array(value, sums)
        # Each form of a bias is a kernel of its own.
        for form in FORMS if name in ("f4", "i1") else FORMS[:2]:
            bias = _wrapped(value, form)
            array_ = np.array(bias, sums)
            want = jitgemm.gemm(a, b, bias=array_)
            for _ in range(2):
                same_bits(jitgemm.gemm(a, b, bias=bias), want, (value, form))
            if form == "full":
                same_bits(jitgemm.gemm(a, b, beta=1, c=bias), want, value)
                same_bits(jitgemm.gemm(stack, b, beta=1, c=bias)[1], want, value)
            same_bits(jitgemm.gemm(stack, b, bias=bias)[1], want, (value, form))
            same_bits(jitgemm.plan(a, b, bias=bias)(a, b), want, (value, form))
            for got in jitgemm.gemm_batched([a, a], b, bias=[bias, bias]):
                same_bits(got, want, (value, form))
        if name in ("f4", "i1"):
            same_bits(jitgemm.gemm(a, b, bias=strong), jitgemm.gemm(a, b, bias=value))
    for value, error in bad.items():
        for form in ("number", "list", "full"):
            given = {"bias": _wrapped(value, form)}
            also = {"beta": 1, "c": given["bias"]} if form == "full" else given
            for call in (
                lambda x=given: jitgemm.gemm(a, b, **x),
                lambda x=also: jitgemm.gemm(a, b, **x),
                lambda x=also: jitgemm.gemm(stack, b, **x),
                lambda x=also: jitgemm.plan(a, b, **x),
                lambda x=given: jitgemm.gemm_batched([a], [b], bias=[x["bias"]]),
            ):
                with pytest.raises(error, match=r"^jitgemm: (bias|c): expected .+, got .+"):
                    call()


def test_c12_numbers_beyond_a_float_are_infinite_as_factors_are() -> None:
    a = np.ones((2, 2), F4)
    with np.errstate(all="raise"):
        equal(jitgemm.gemm(a, a, bias=1e300), np.full((2, 2), np.inf, F4))
        equal(jitgemm.gemm(a, a, bias=[0, -1e300]), np.array([[2, -np.inf]] * 2, F4))


def test_c12_numbers_of_numpy_keep_their_type() -> None:
    a, i = np.ones((2, 2), F4), np.ones((2, 2), np.int8)
    for x, bias in (
        (a, np.float64(0.5)), (a, [np.float64(0.5), 1.0]), (a, np.int8(1)), (a, np.array(1)),
        (a, [np.array(1.0), 2]), (i, np.int8(1)), (i, np.int64(1)), (i, [np.int64(1), 2]),
        (a, True), (a, [True, False]), (i, True), (a, "1"), (a, ["1", "2"]),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=r"^jitgemm: bias: expected .*(float|int)32 elements"):
            jitgemm.gemm(x, x, bias=bias)
        with pytest.raises(TypeError, match=r"^jitgemm: bias: "):
            jitgemm.gemm_batched([x], [x], bias=[bias])
    equal(jitgemm.gemm(a, a, bias=[F4(0.5), F4(1)]), np.array([[2.5, 3]] * 2, F4))


def test_c23_lists_of_unequal_parts_are_values() -> None:
    a = np.ones((2, 2), F4)
    for options in ({"bias": [1, [2]]}, {"beta": 1, "c": [[1, 2], [3]]}, {"a": [[1.0], [2.0, 3]]}):
        with pytest.raises(ValueError, match=r"^jitgemm: (bias|c|a): expected an array, got "):
            jitgemm.gemm(**{"a": a, "b": a, **options})
    deep: list[Any] = []
    deep.append(deep)
    for options in ({"bias": deep}, {"a": deep}):
        with pytest.raises((TypeError, ValueError), match=r"^jitgemm: "):
            jitgemm.gemm(**{"a": a, "b": a, **options})


def test_c07_numbers_of_python_beside_8_bits() -> None:
    a, b = np.full((2, 3), 5, np.int8), np.full((3, 4), 2, np.uint8)
    points, rule = [1, 2], jitgemm.Requantize([1, 2, 3, 4], bias=[1, -1, 10, 0])
    got = jitgemm.gemm(a, b, a_zero_point=points, b_zero_point=(1, 1, 1, 1), requantize=rule)
    strong = jitgemm.Requantize(np.array([1.0, 2, 3, 4]), bias=np.array([1, -1, 10, 0], np.int32))
    same_bits(got, exact_gemm(a, b, a_zero_point=np.array(points), b_zero_point=1,
                              requantize=strong))  # fmt: skip
    for bad, error in (([0.5], TypeError), (2**31, ValueError), (1j, TypeError), (True, TypeError)):
        with pytest.raises(error, match=r"^jitgemm: bias: "):
            jitgemm.Requantize(1.0, bias=bad)


def test_ctypes_are_known() -> None:
    x = np.ones((2, 3), F4)
    assert isinstance(_ctypes(x), ctypes.Array)
    same_bits(operands.plain("a", _ctypes(x)), x)
