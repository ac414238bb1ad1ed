"""NumPy's own tests of its products, as they are installed with it, run against jitgemm's.

Nothing is copied.  The tests are inherited or borrowed from NumPy's test modules, and for the time
of one test the names through which its module reaches ``numpy.matmul`` and its like lead here
instead: the module's ``np`` or ``umt``, a name it imported, the class attribute ``matmul``.  NumPy
itself is left as it is, so what is passed on to ``numpy.matmul`` still arrives there.

What is different on purpose is listed in ``DIFFERENT``, test by test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import jitgemm

Array = np.ndarray[Any, Any]

_CORE = "numpy._core" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else "numpy.core"


def _theirs(name: str) -> Any:
    """A module of NumPy's test-suite; some distributions leave the suite out."""
    reason = f"{name} is not installed with this NumPy"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMPY_EXPERIMENTAL_DTYPE_API", "1")  # NumPy 1 asks for it
        return pytest.importorskip(name, reason=reason, exc_type=ImportError)


multiarray = _theirs(f"{_CORE}.tests.test_multiarray")
ufunc = _theirs(f"{_CORE}.tests.test_ufunc")
linalg = _theirs("numpy.linalg.tests.test_linalg")
mixins = _theirs("numpy.lib.tests.test_mixins")
functions = _theirs("numpy.lib.tests.test_function_base")

DIFFERENT: dict[str, tuple[type[BaseException], str]] = {
    "TestMatmulOperator::test_array_priority_override": (
        ValueError,
        "__array_priority__ speaks to operators; numpy.matmul, a function, raises this too",
    ),
    "TestMatmulOperator::test_matmul_raises": (
        ValueError,
        "a TypeError of the operator of scalars; numpy.matmul raises ValueError too",
    ),
}


FUNCTIONS = ("matmul", "matvec", "vecmat", "vecdot")

VECTORS = (
    "test_vecdot", "test_matvec", "test_vecmatvec_identity", "test_matvec_vecmat_out",
    "test_vecdot_subclass", "test_vecdot_object_no_conjugate",
    "test_vecdot_object_breaks_outer_loop_on_error", "test_broadcast", "test_out_broadcasts",
    "test_type_cast", "test_endian", "test_incontiguous_array", "test_output_argument",
    "test_axes_argument", "test_axis_argument", "test_keepdims_argument",
)  # fmt: skip
"""NumPy's tests of products of vectors, as far as the installed one has them."""


class _Instead:
    """A module with some names replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Operand(np.ndarray[Any, Any]):
    """An array whose ``@`` and ``@=`` are :func:`jitgemm.matmul`."""

    product: Callable[..., Any]

    def __matmul__(self, other: Any) -> Any:
        return type(self).product(np.asarray(self), np.asarray(other))

    def __imatmul__(self, other: Any) -> Any:
        plain = np.asarray(self)
        # As NumPy's operator: what it computes is not broadcast to its first operand.
        matrix = (-2, -1)
        axes = [(-1,), matrix, (-1,)] if plain.ndim == 1 else [matrix, matrix, matrix]
        type(self).product(plain, np.asarray(other), plain, axes=axes)
        return self


@pytest.fixture(autouse=True)
def calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Lead NumPy's tests here, and make sure that they came."""
    name = f"{request.cls.__name__}::{request.node.originalname}"
    if name in DIFFERENT:
        raises, reason = DIFFERENT[name]
        request.applymarker(pytest.mark.xfail(raises=raises, reason=reason, strict=True))
    seen = 0

    def leads(name: str) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            seen += 1
            return getattr(jitgemm, name)(*args, **kwargs)

        return function

    ours = {name: leads(name) for name in FUNCTIONS}
    matmul: Any = ours["matmul"]

    def doubles(*args: Any, dtype: Any = np.float64) -> Array:
        """Integers would all be passed on; doubles are multiplied here."""
        return np.arange(*args, dtype=dtype)

    names: dict[str, Any] = dict(ours)
    if request.cls in (TestUfunc, TestMethods):
        names["arange"] = doubles
    elif request.cls is TestMatmulInplace:
        operand = type("Operand", (_Operand,), {"product": staticmethod(matmul)})
        names["arange"] = lambda *args: doubles(*args).view(operand)
    for module in (multiarray, ufunc, linalg, mixins, functions):
        monkeypatch.setattr(module, "np", _Instead(np, **names))
    monkeypatch.setattr(linalg, "matmul", matmul)
    # What NumPy calls ``vecdot`` since 2.0 its tests called ``inner1d`` before.
    instead = _Instead(ufunc.umt, matmul=matmul, inner1d=ours["vecdot"])
    monkeypatch.setattr(ufunc, "umt", instead)
    monkeypatch.setattr(request.cls, "matmul", staticmethod(matmul), raising=False)
    matmul.others = ours
    yield matmul
    assert seen, "NumPy's test did not call the product"


# -- numpy._core.tests ----------------------------------------------------------------------------


class TestMatmul(multiarray.TestMatmul):  # type: ignore[misc, name-defined]
    pass


class TestMatmulOperator(multiarray.TestMatmulOperator):  # type: ignore[misc, name-defined]
    pass


class TestMatmulInplace(multiarray.TestMatmulInplace):  # type: ignore[misc, name-defined]
    pass


class TestMethods:
    test_dot_matmul_out = multiarray.TestMethods.test_dot_matmul_out
    test_dot_matmul_inner_array_casting_fails = (
        multiarray.TestMethods.test_dot_matmul_inner_array_casting_fails
    )
    test_matmul_out = multiarray.TestMethods.test_matmul_out

    def test_arr_mult(self, calls: Any) -> None:
        multiarray.TestMethods().test_arr_mult(calls)

    @pytest.mark.parametrize("dtype", "ifdFD")
    def test_no_dgemv(self, calls: Any, dtype: str) -> None:
        multiarray.TestMethods().test_no_dgemv(calls, dtype)


class TestFunctions:
    test_matmul_axes = staticmethod(multiarray.test_matmul_axes)


class TestUfunc:
    test_can_ignore_signature = ufunc.TestUfunc.test_can_ignore_signature

    @pytest.mark.parametrize("test", ["test_ufunc_types", "test_ufunc_noncontiguous"])
    def test_every_type(self, calls: Any, test: str) -> None:
        calls.types = np.matmul.types
        getattr(ufunc, test)(calls)


class TestVectors:
    for _name in VECTORS:
        if hasattr(ufunc.TestUfunc, _name):
            locals()[_name] = getattr(ufunc.TestUfunc, _name)

    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_complex(self, calls: Any, name: str) -> None:
        test = getattr(ufunc.TestUfunc, "test_vecdot_matvec_vecmat_complex", None)
        if test is None:
            pytest.skip("this NumPy has no such test")
        shapes = {"vecdot": ((3,), (3,)), "vecmat": ((3,), (3, 1)), "matvec": ((1, 3), (3,)),
                  "matmul": ((1, 3), (3, 1))}  # fmt: skip
        conj = name in ("vecdot", "vecmat")
        test(ufunc.TestUfunc(), calls.others[name], *shapes[name], conj)


# -- numpy.lib.tests ------------------------------------------------------------------------------


class TestLib:
    test_protocol = mixins.TestNDArrayOperatorsMixin.test_matmul
    test_vectorize = functions.TestVectorize.test_subclasses


# -- numpy.linalg.tests: factors of many layouts, stacked and empty, multiplied back --------------


multiplied_back = pytest.mark.skipif(
    hasattr(linalg, "dot_generalized"), reason="NumPy 1 multiplies back with dot"
)


@multiplied_back
class TestSolve(linalg.SolveCases):  # type: ignore[misc, name-defined]
    pass


@multiplied_back
class TestInv(linalg.InvCases):  # type: ignore[misc, name-defined]
    pass


@multiplied_back
class TestEig(linalg.EigCases):  # type: ignore[misc, name-defined]
    pass


@multiplied_back
class TestEigh(linalg.TestEighCases):  # type: ignore[misc, name-defined]
    pass


@multiplied_back
class TestSVD(linalg.SVDCases):  # type: ignore[misc, name-defined]
    pass


@multiplied_back
class TestSVDHermitian(linalg.SVDHermitianCases):  # type: ignore[misc, name-defined]
    pass


@multiplied_back
class TestPinv(linalg.PinvCases):  # type: ignore[misc, name-defined]
    pass


@multiplied_back
class TestPinvHermitian(linalg.PinvHermitianCases):  # type: ignore[misc, name-defined]
    pass


class TestFactors:
    array = np.array
    check_qr_stacked = linalg.TestQR.check_qr_stacked
    test_qr = linalg.TestQR.test_stacked_inputs
    test_cholesky = linalg.TestCholesky.test_basic_property
