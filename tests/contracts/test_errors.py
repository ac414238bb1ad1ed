"""Contract, "Errors": sentence 23, for every argument of every public function.

Every refusal is checked three times: the class of the error, its words (``jitgemm:``, the operand,
what was expected and what came), and that nothing was written.
"""

# ruff: noqa: FBT001  # parameters of a test are named by its decorator

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import jitgemm
from jitgemm.isa.tables import BY_NAME
from jitgemm.jit.target import available
from oracle import BF16, equal, exact_gemm, run_python

Array = np.ndarray[Any, Any]

F4 = np.float32
A, B, C = np.ones((3, 4), F4), np.ones((4, 5), F4), np.ones((3, 5), F4)
TYPES = "elements of a boolean, integer, float (and bfloat16, float16"
FLOAT8, INT4 = (np.dtype(x) for x in (ml_dtypes.float8_e4m3fn, ml_dtypes.int4))
SHAPES = ("() or (5,)", "(3, 1)", "or (3, 5)")

# name: (error, operand, words that must appear, call with the keyword arguments of gemm)
GEMM: dict[str, tuple[type[Exception], str, tuple[str, ...], dict[str, Any]]] = {
    "a of 8-bit floats": (TypeError, "a", (TYPES, "float8_e4m3fn"), {"a": A.astype(FLOAT8)}),
    "a of 4-bit integers": (TypeError, "a", (TYPES, "int4"), {"a": A.astype(INT4)}),
    "a of complex long double": (TypeError, "a", (TYPES, "complex"), {"a": A.astype("G")}),
    "a of long double": (TypeError, "a", (TYPES,), {"a": A.astype("g")}),
    "a of objects": (TypeError, "a", ("object",), {"a": A.astype(object)}),
    "a of text": (TypeError, "a", (TYPES,), {"a": "text"}),
    "a of dates": (TypeError, "a", ("datetime64",), {"a": A.astype("M8[s]")}),
    "a is None": (TypeError, "a", ("object",), {"a": None}),
    "a is a packed operand": (
        TypeError, "a", ("from prepack_lhs", "PackedRhs", "right operand"),
        {"a": jitgemm.prepack_rhs(A)}),
    "a with one axis": (ValueError, "a", ("a matrix (2", "1 dimensions"), {"a": A[0]}),
    "a is a number": (ValueError, "a", ("a matrix (2", "0 dimensions"), {"a": 1.5}),
    "b of 8-bit floats": (TypeError, "b", (TYPES, "float8_e4m3fn"), {"b": B.astype(FLOAT8)}),
    "packed b of a narrower float": (
        TypeError, "b", ("packed for sums with float64", "prepacked float32"),
        {"a": A.astype("f8"), "b": jitgemm.prepack_rhs(B)}),
    "b complex": (TypeError, "b", ("float32 elements like a", "complex64"), {"b": B.astype("c8")}),
    "b real": (TypeError, "b", ("complex64 elements like a", "float32"), {"a": A.astype("c8")}),
    "b is packed from the left": (
        TypeError, "b", ("from prepack_rhs", "PackedLhs", "left operand"),
        {"b": jitgemm.prepack_lhs(B)}),
    "c is packed": (
        TypeError, "c", ("an array", "PackedRhs"), {"beta": 1, "c": jitgemm.prepack_rhs(C)}),
    "packed a of a narrower float": (
        TypeError, "a", ("packed for sums with float64", "prepacked float32"),
        {"a": jitgemm.prepack_lhs(A), "b": B.astype("f8"), "out": np.full((3, 5), 7.0)}),
    "packed a too long": (
        ValueError, "b", ("5 rows", "(3, 5)", "(4, 5)"), {"a": jitgemm.prepack_lhs(C)}),
    "b with one axis": (ValueError, "b", ("a matrix (2",), {"b": B[:, 0]}),
    "b too long": (ValueError, "b", ("4 rows", "(3, 4)", "(5, 5)"), {"b": np.ones((5, 5), F4)}),
    "b too short": (ValueError, "b", ("4 rows", "(3, 5)"), {"b": B[:3]}),
    "b transposed": (ValueError, "b", ("4 rows", "(5, 4)"), {"b": B.T}),
    "packed b too long": (
        ValueError, "b", ("4 rows", "(5, 5)"), {"b": jitgemm.prepack_rhs(np.ones((5, 5), F4))}),
    "beta without c": (ValueError, "c", ("beta",), {"beta": 1}),
    "c of the other float": (
        TypeError, "c", ("float32", "float64"), {"beta": 1, "c": C.astype("f8")}),
    "c of another shape": (ValueError, "c", ("(3, 5)", "(3, 4)"), {"beta": 1, "c": A}),
    "c to be broadcast": (ValueError, "c", ("(3, 5)", "(1, 5)"), {"beta": 1, "c": C[:1]}),
    "c complex": (TypeError, "c", ("float32", "complex64"), {"beta": 1, "c": C.astype("c8")}),
    "c with one axis": (ValueError, "c", ("a matrix (2",), {"beta": 1, "c": C[0]}),
    "c of another shape, not read": (ValueError, "c", ("(3, 5)", "(3, 4)"), {"c": A}),
    "c of another type, not read": (TypeError, "c", ("float32",), {"c": C.astype("i4")}),
    "bias too long": (ValueError, "bias", (*SHAPES, "(6,)"), {"bias": np.ones(6, F4)}),
    "bias per row without its axis": (ValueError, "bias", (*SHAPES, "(3,)"), {"bias": C[:, 0]}),
    "bias of other rows": (ValueError, "bias", (*SHAPES, "(4, 1)"), {"bias": B[:, :1]}),
    "bias of another matrix": (ValueError, "bias", (*SHAPES, "(3, 4)"), {"bias": A}),
    "bias transposed": (ValueError, "bias", (*SHAPES, "(5, 3)"), {"bias": C.T}),
    "bias with three axes": (ValueError, "bias", (*SHAPES, "(1, 3, 5)"), {"bias": C[None]}),
    "bias empty": (ValueError, "bias", (*SHAPES, "(0,)"), {"bias": C[0, :0]}),
    "bias complex": (TypeError, "bias", ("float32", "complex64"), {"bias": C.astype("c8")}),
    "bias a number of NumPy": (
        TypeError, "bias", ("float32", "float64"), {"bias": np.float64(1.0)}),
    "bias a complex number": (TypeError, "bias", ("float32", "complex128"), {"bias": 1j}),
    "bias of the other float": (TypeError, "bias", ("float32", "float64"), {"bias": np.ones(5)}),
    "bias of integers": (TypeError, "bias", ("float32", "int64"), {"bias": np.arange(5)}),
    "alpha complex": (TypeError, "alpha", ("real number", "complex"), {"alpha": 1j}),
    "alpha text": (TypeError, "alpha", ("real number", "str"), {"alpha": "1"}),
    "alpha None": (TypeError, "alpha", ("real number", "NoneType"), {"alpha": None}),
    "alpha an array": (TypeError, "alpha", ("real number",), {"alpha": np.ones(2)}),
    "beta complex": (TypeError, "beta", ("real number", "complex"), {"beta": 1j, "c": C}),
    "beta a list": (TypeError, "beta", ("real number", "list"), {"beta": [1], "c": C}),
    "activation unknown": (
        ValueError, "activation", ("relu", "'tanhh'"), {"activation": "tanhh"}),
    "activation of another case": (ValueError, "activation", ("'ReLU'",), {"activation": "ReLU"}),
    "activation empty": (ValueError, "activation", ("''",), {"activation": ""}),
    "activation none": (ValueError, "activation", ("'none'",), {"activation": "none"}),
    "activation without its numbers": (
        ValueError, "activation", ("jitgemm.clip(...)", "'clip'"), {"activation": "clip"}),
    "activation not called": (
        ValueError, "activation", ("jitgemm.leaky_relu(...)",), {"activation": jitgemm.leaky_relu}),
    "activation a number": (ValueError, "activation", ("relu", "3"), {"activation": 3}),
    "epilogue text": (TypeError, "epilogue", ("str",), {"epilogue": "relu"}),
    "epilogue of one argument": (
        TypeError, "epilogue", ("f(v, row, col)",), {"epilogue": lambda v: v}),
    "epilogue with a branch": (
        TypeError, "epilogue", ("jitgemm.math",),
        {"epilogue": lambda v, row, col: v if v > 0 else row}),
    "epilogue of NumPy's": (
        TypeError, "epilogue", ("jitgemm.math",), {"epilogue": lambda v, row, col: np.sinh(v)}),
    "epilogue of an array": (
        TypeError, "epilogue", ("jitgemm.math", "ndarray"), {"epilogue": lambda v, r, c: v + C}),
    "epilogue without a result": (
        TypeError, "epilogue", ("returns nothing",), {"epilogue": lambda v, row, col: None}),
    "conj_a a number": (TypeError, "conj_a", ("True or False", "int"), {"conj_a": 1}),
    "conj_b None": (TypeError, "conj_b", ("True or False", "NoneType"), {"conj_b": None}),
    "conj_b an array": (TypeError, "conj_b", ("ndarray",), {"conj_b": np.ones(1, bool)}),
    "reproducible unknown": (
        ValueError, "reproducible", ("'default' or 'strict'", "'Strict'"),
        {"reproducible": "Strict"}),
    "reproducible a flag": (
        TypeError, "reproducible", ("'default' or 'strict'", "bool"), {"reproducible": True}),
    "reproducible None": (TypeError, "reproducible", ("NoneType",), {"reproducible": None}),
    "reproducible through a BLAS": (
        ValueError, "reproducible", ("'default', because a BLAS", "'strict'"),
        {"reproducible": "strict", "backend": "blas"}),
    "backend unknown": (ValueError, "backend", ("'jit' or 'blas'", "'mkl'"), {"backend": "mkl"}),
    "backend a number": (TypeError, "backend", ("'jit' or 'blas'", "int"), {"backend": 0}),
    "threads 0": (ValueError, "threads", ("between 1 and", "0"), {"threads": 0}),
    "threads a float": (TypeError, "threads", ("an int", "float"), {"threads": 2.0}),
    "workspace a number": (TypeError, "workspace", ("Workspace", "int"), {"workspace": 4096}),
    "out a list": (TypeError, "out", ("numpy array", "list"), {"out": [[0.0] * 5] * 3}),
    "out of another shape": (ValueError, "out", ("(3, 5)", "(5, 3)"), {"out": C.T.copy()}),
    "out of the other float": (
        TypeError, "out", ("float32", "float64"), {"out": C.astype(np.float64)}),
    "out narrower than a product with the other float": (
        TypeError, "out", ("float64 elements", "float32"), {"b": B.astype("f8")}),
    "out narrower than a product with integers": (
        TypeError, "out", ("float64 elements", "float32"), {"a": A.astype(np.int64)}),
}  # fmt: skip


def _refuses(
    call: Callable[[], object], error: type[Exception], operand: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(error) as raised:
        call()
    text = str(raised.value)
    assert re.match(rf"^jitgemm: {re.escape(operand)}: expected .+, got .+", text, re.DOTALL), text
    for word in words:
        assert word in text, f"{word!r} is not in {text!r}"


@pytest.mark.parametrize("case", GEMM)
@pytest.mark.parametrize("again", [False, True])
def test_c23_gemm(case: str, again: bool) -> None:
    error, operand, words, given = GEMM[case]
    options = {"a": A, "b": B, **given}
    out = options.setdefault("out", np.full((3, 5), 7, F4))
    before = pickle.dumps(out)
    if again:  # after a good call with the same shapes
        jitgemm.gemm(A, B, out=np.empty((3, 5), F4))
        jitgemm.gemm(A, B, beta=1, c=C, bias=C[0], out=np.empty((3, 5), F4))
    _refuses(
        lambda: jitgemm.gemm(options.pop("a"), options.pop("b"), **options), error, operand, words
    )
    assert pickle.dumps(out) == before


@pytest.mark.parametrize("case", [c for c in GEMM if not c.startswith("out ")])
def test_c23_plan(case: str) -> None:
    error, operand, words, given = GEMM[case]
    options = {"a": A, "b": B, **given}
    kinds = ("of ", "with ", "is ", "complex", "real")
    if operand in ("a", "b") and case.split(" ", 1)[1].startswith(kinds):
        # Without options other types and shapes are passed on to NumPy; with them they cannot be.
        options["alpha"] = 2
    _refuses(
        lambda: jitgemm.plan(options.pop("a"), options.pop("b"), **options), error, operand, words
    )


def test_c23_c_that_is_not_read_is_checked_every_time() -> None:
    # The second call has the strides of the first, and is planned already.
    for good, bad, error in (
        (C, C.astype(np.int32), TypeError),
        (C, np.ones((7, 5), F4), ValueError),
        (np.asfortranarray(C), np.asfortranarray(np.ones((3, 9), F4)), ValueError),
    ):
        for _ in range(2):
            jitgemm.gemm(A, B, c=good)
        with pytest.raises(error, match=r"^jitgemm: c: "):
            jitgemm.gemm(A, B, c=bad)


def test_c23_numbers_of_refused_types_are_refused_every_time() -> None:
    for good, bad in ((1, 1 + 0j), (0.5, Fraction(1, 2)), (2, Decimal(2))):
        for name in ("alpha", "beta"):
            for _ in range(2):
                jitgemm.gemm(A, B, c=C, **{name: good})  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=f"^jitgemm: {name}: "):
                jitgemm.gemm(A, B, c=C, **{name: bad})  # type: ignore[arg-type]


def test_c23_activation_of_a_wrong_type() -> None:
    for bad in (3, ["relu"], b"relu", max):
        with pytest.raises((TypeError, ValueError), match=r"^jitgemm: activation: "):
            jitgemm.gemm(A, B, activation=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_c23_numbers_beyond_a_double(name: str) -> None:
    with pytest.raises(ValueError, match=f"^jitgemm: {name}: "):
        jitgemm.gemm(A, B, c=C, **{name: 10**400})  # type: ignore[arg-type]


def test_c23_numbers_beyond_the_type_are_infinite_without_warnings() -> None:
    with np.errstate(all="raise"):
        assert np.isinf(jitgemm.gemm(A, B, alpha=1e300)).all()
        equal(jitgemm.gemm(A, B, alpha=1e-300), np.zeros((3, 5), F4))


MATMUL: dict[str, tuple[type[Exception], str, tuple[str, ...], tuple[Any, ...]]] = {
    "depths": (ValueError, "x2", ("4 rows", "(5, 4)"), (A, B.T)),
    "depths of vectors": (ValueError, "x2", ("4 rows", "(5,)"), (A[0], C[0])),
    "depths of a stack": (ValueError, "x2", ("4 rows", "(2, 5, 4)"), (A, np.ones((2, 5, 4), F4))),
    "x1 is a number": (ValueError, "x1", ("1 dimension", "scalar"), (F4(1), B)),
    "x2 is a number": (ValueError, "x2", ("1 dimension", "scalar"), (A, F4(1))),
    "stacks": (
        ValueError, "x2", ("broadcast", "(3, 4, 5)"),
        (np.ones((2, 3, 4), F4), np.ones((3, 4, 5), F4))),
    "out of a stack": (
        ValueError, "out", ("(2, 3, 5)", "(3, 5)"), (np.ones((2, 3, 4), F4), B, C.copy())),
    "out of a vector": (ValueError, "out", ("(5,)", "(1, 3)"), (A[0], B, np.ones((1, 3), F4))),
    "out a list": (TypeError, "out", ("numpy array",), (A, B, [C])),
    "out two of them": (ValueError, "out", ("a tuple of one",), (A, B, (C, C))),
    "out of bfloat16": (
        TypeError, "out", ("bfloat16", "int8"),
        (A.astype(BF16), B.astype(BF16), np.full((3, 5), 7, np.int8))),
    "x1 is packed from the right": (
        TypeError, "x1", ("from prepack_lhs", "right operand"), (jitgemm.prepack_rhs(A), B)),
    "x2 is packed from the left": (
        TypeError, "x2", ("from prepack_rhs", "left operand"), (A, jitgemm.prepack_lhs(B))),
    "x1 of text beside a handle": (TypeError, "x1", (TYPES,), ("text", jitgemm.prepack_rhs(B))),
    "depths beside a handle": (
        ValueError, "x2", ("5 rows", "(4, 5)"), (C, jitgemm.prepack_rhs(B))),
    "out beside a handle": (
        ValueError, "out", ("(3, 5)", "(3, 4)"), (A, jitgemm.prepack_rhs(B), A.copy())),
}  # fmt: skip


@pytest.mark.parametrize("case", MATMUL)
def test_c23_matmul(case: str) -> None:
    error, operand, words, given = MATMUL[case]
    before = pickle.dumps(given[2:])
    _refuses(lambda: jitgemm.matmul(*given), error, operand, words)
    assert pickle.dumps(given[2:]) == before


@pytest.mark.parametrize("threads, error", [(0, ValueError), ("2", TypeError), (1.0, TypeError)])
def test_c23_matmul_threads(threads: Any, error: type[Exception]) -> None:
    for x1, x2 in ((A, B), (A[0], B), (np.ones((2, 3, 4), F4), B)):
        with pytest.raises(error, match=r"^jitgemm: threads: "):
            jitgemm.matmul(x1, x2, threads=threads)


@pytest.mark.parametrize(
    "x, error",
    [
        (B.astype(FLOAT8), TypeError), (None, TypeError), ("text", TypeError),
        (B.astype("G"), TypeError), (B.astype("M8[s]"), TypeError),
        (B[0], ValueError), (np.ones((1,) * 9, F4), ValueError), (1.5, ValueError),
    ],
)  # fmt: skip
@pytest.mark.parametrize("side", ["a", "b"])
def test_c23_prepacking(x: Any, error: type[Exception], side: str) -> None:
    prepack = jitgemm.prepack_lhs if side == "a" else jitgemm.prepack_rhs
    with pytest.raises(error, match=rf"^jitgemm: {side}: expected .*, got "):
        prepack(x)
    for flag in (1, None, "yes"):
        with pytest.raises(TypeError, match=r"^jitgemm: conj: expected True or False, got "):
            prepack(B, conj=flag)


def test_c23_what_is_packed_for_one_side_is_refused_on_the_other() -> None:
    left, right = jitgemm.prepack_lhs(A), jitgemm.prepack_rhs(B)
    for prepack, x, name in ((jitgemm.prepack_rhs, left, "b"), (jitgemm.prepack_lhs, right, "a")):
        with pytest.raises(TypeError, match=f"^jitgemm: {name}: expected .*, got a Packed"):
            prepack(x)
    for call in (jitgemm.gemm, jitgemm.plan):
        with pytest.raises(TypeError, match=r"^jitgemm: [ab]: expected "):
            call(right, B)
        with pytest.raises(TypeError, match=r"^jitgemm: b: expected "):
            call(A, left)
    for args in (([right], [B]), (right, [B]), ([A], [left]), ([A], left)):
        with pytest.raises(TypeError, match=r"^jitgemm: [ab]: expected .*, got a Packed"):
            jitgemm.gemm_batched(*args)


@pytest.mark.parametrize("name", ["matvec", "vecmat", "vecdot"])
def test_c23_products_of_vectors(name: str) -> None:
    left, right = jitgemm.prepack_lhs(A), jitgemm.prepack_rhs(B)
    function, cases = getattr(jitgemm, name), [
        (ValueError, "x2", ("numbers" if name != "vecmat" else "rows", "(3, 5)"), (A, C)),
        (ValueError, "x2", ("broadcast", "(3, 4, 4)"), (np.ones((2, 4, 4)), np.ones((3, 4, 4)))),
        (ValueError, "x1", ("dimension", "scalar"), (F4(1), B)),
        (TypeError, "x1", ("array", "PackedRhs"), (right, A)),
        (TypeError, "x2", ("array", "PackedLhs"), (A, left)),
        (TypeError, "out", ("numpy array", "list"), (np.eye(4), np.eye(4), [C])),
        (ValueError, "out", ("broadcast", "(7,)"), (np.eye(4), np.eye(4), np.zeros(7))),
    ]  # fmt: skip
    if name != "matvec":
        cases.append((TypeError, "x1", ("array", "PackedLhs"), (left, B)))
    if name != "vecmat":
        cases.append((TypeError, "x2", ("array", "PackedRhs"), (A, right)))
    for error, operand, words, args in cases:
        _refuses(lambda args=args: function(*args), error, operand, words)


def test_c23_operators_of_handles_name_the_operand() -> None:
    left, right = jitgemm.prepack_lhs(A), jitgemm.prepack_rhs(B)
    for call, operand in (
        (lambda: right @ A, "x1"), (lambda: A @ left, "x2"),
        (lambda: right @ left, "x1"), (lambda: [[1.0]] @ left, "x2"),
    ):  # fmt: skip
        _refuses(call, TypeError, operand, ("an array",))
    with pytest.raises(TypeError, match=r"^jitgemm: x2: expected an array, because of .* dtype"):
        jitgemm.matmul(A, right, dtype="d")


COMPLEX: dict[str, tuple[type[Exception], str, tuple[str, ...], dict[str, Any]]] = {
    "activation": (TypeError, "activation", ("None", "complex"), {"activation": "relu"}),
    "activation with numbers": (
        TypeError, "activation", ("complex",), {"activation": jitgemm.clip(0, 1)}),
    "epilogue": (TypeError, "epilogue", ("complex",), {"epilogue": lambda v, row, col: v}),
    "real bias": (TypeError, "bias", ("complex64", "float32"), {"bias": C}),
    "wider bias": (TypeError, "bias", ("complex64", "complex128"), {"bias": C.astype("c16")}),
    "real c": (TypeError, "c", ("complex64", "float32"), {"beta": 1, "c": C}),
    "real out": (TypeError, "out", ("complex64", "float32"), {"out": C.copy()}),
    "alpha text": (TypeError, "alpha", ("number", "str"), {"alpha": "1j"}),
}  # fmt: skip


@pytest.mark.parametrize("case", COMPLEX)
def test_c23_complex(case: str) -> None:
    error, operand, words, given = COMPLEX[case]
    a, b, out = A.astype("c8"), B.astype("c8"), np.full((3, 5), 7, "c8")
    options = {"out": out, **given}
    for call in (jitgemm.gemm, jitgemm.plan):
        _refuses(lambda call=call: call(a, b, **options), error, operand, words)
    assert (out == 7).all()


@pytest.mark.parametrize("call", [jitgemm.leaky_relu, lambda x: jitgemm.clip(x, 1)])
def test_c23_activations_with_numbers(call: Any) -> None:
    values = [np.nan, 10**400]
    for bad in (*values, "1", 1j, None, True, np.ones(2)):
        error = ValueError if any(bad is x for x in values) else TypeError
        with pytest.raises(error, match=r"^jitgemm: (slope|lo): expected .*, got "):
            call(bad)
    with pytest.raises(ValueError, match=r"^jitgemm: lo: expected at most hi, 1.0, got 2.0"):
        jitgemm.clip(2, 1)


@pytest.mark.parametrize(
    "nbytes, error",
    [(-1, ValueError), (1.5, TypeError), ("9", TypeError), (True, TypeError), (None, TypeError)],
)  # fmt: skip
def test_c23_workspace(nbytes: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^jitgemm: nbytes: expected .*, got "):
        jitgemm.Workspace(nbytes)


PLANNED: dict[str, tuple[type[Exception], str, tuple[Any, ...]]] = {
    "a of another shape": (ValueError, "a", (np.ones((2, 4), F4), B)),
    "a transposed": (ValueError, "a", (np.ones((4, 3), F4), B)),
    "a of another type": (TypeError, "a", (A.astype("f8"), B)),
    "both of another type": (TypeError, "a", (A.astype("f8"), B.astype("f8"))),
    "a of integers": (TypeError, "a", (A.astype(int), B)),
    "b of another shape": (ValueError, "b", (A, np.ones((4, 6), F4))),
    "b of another type": (TypeError, "b", (A, B.astype("f8"))),
    "packed b of another shape": (ValueError, "b", (A, jitgemm.prepack_rhs(np.ones((4, 6), F4)))),
    "out of another shape": (ValueError, "out", (A, B, np.full((3, 6), 7, F4))),
    "out of another type": (TypeError, "out", (A, B, np.full((3, 5), 7.0))),
}


@pytest.mark.parametrize("case", PLANNED)
@pytest.mark.parametrize("options", [{}, {"bias": C[0], "beta": 2, "c": C}], ids=["plain", "bound"])
def test_c23_calls_of_plans(case: str, options: dict[str, Any]) -> None:
    error, operand, given = PLANNED[case]
    p = jitgemm.plan(A, B, **options)
    before = pickle.dumps(given[2:])
    _refuses(lambda: p(*given), error, operand, ())
    assert pickle.dumps(given[2:]) == before
    equal(p(A, B), exact_gemm(A, B, **options))


def test_c23_pinning_an_unknown_set() -> None:
    run_python(
        """
        import numpy as np
        import pytest
        import jitgemm
        a = np.ones((2, 2), np.float32)
        for call in (lambda: jitgemm.gemm(a, a), lambda: jitgemm.matmul(a, a), jitgemm.show_config,
                     lambda: jitgemm.plan(a, a), lambda: jitgemm.prepack_rhs(a)):
            with pytest.raises(jitgemm.IsaError, match="^jitgemm: JITGEMM_ISA: expected one of"
                               " .*avx2.*portable.*, got 'sse9'"):
                call()
            assert issubclass(jitgemm.IsaError, RuntimeError)
        """,
        JITGEMM_ISA="sse9",
    )


def test_c23_pinning_a_set_the_machine_lacks() -> None:
    # A set nobody has: the AVX-512 one with a feature from the future.
    run_python(
        """
        from dataclasses import replace
        import numpy as np
        import pytest
        import jitgemm
        from jitgemm.isa import tables
        tables.register(replace(tables.PORTABLE, name="future",
                                requires=frozenset({"avx9000", "sse-unlikely"})))
        a = np.ones((2, 2), np.float32)
        for _ in range(2):
            words = "^jitgemm: JITGEMM_ISA: .*'future'.*avx9000"
            with pytest.raises(RuntimeError, match=words) as e:
                jitgemm.gemm(a, a)
            assert type(e.value) is jitgemm.IsaError and "sse-unlikely" in str(e.value)
        """,
        JITGEMM_ISA="future",
    )
    for isa in BY_NAME.values():
        if not available(isa):
            with pytest.raises(AssertionError, match=f"jitgemm: JITGEMM_ISA: .*{isa.name}"):
                run_python("import jitgemm; jitgemm.show_config()", JITGEMM_ISA=isa.name)


@pytest.mark.parametrize("name", [i.name for i in BY_NAME.values() if available(i)])
def test_c23_pinning_works_in_any_case(name: str) -> None:
    for spelled in (name, name.upper()):
        code = "import jitgemm; print(jitgemm.show_config()['isa'])"
        assert run_python(code, JITGEMM_ISA=spelled).stdout == f"{name}\n"


def test_c23_out_may_be_named_in_calls_of_plans() -> None:
    out = np.empty((3, 5), F4)
    for p in (jitgemm.plan(A, B, workspace=jitgemm.Workspace()), jitgemm.plan(A, B)):
        assert p(A, B, out=out) is out
        equal(out, exact_gemm(A, B))
