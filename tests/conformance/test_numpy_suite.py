"""NumPy's own tests of ``matmul``, as they are installed with it, run against ``jitgemm.matmul``.

Nothing is copied.  The tests are inherited or borrowed from NumPy's test modules, and for the time
of one test the names through which its module reaches ``numpy.matmul`` lead here instead: the
module's ``np`` or ``umt``, a name it imported, the class attribute ``matmul``.  NumPy itself is
left as it is, so what is passed on to ``numpy.matmul`` still arrives there.

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
    "TestMatmul::test_out_arg": (
        AssertionError,
        "an out of another type is refused, never cast to, and in this package's words",
    ),
    "TestMatmul::test_empty_out": (
        AssertionError,
        "refused with a ValueError as by NumPy, but in this package's words",
    ),
    "TestMatmulOperator::test_array_priority_override": (
        ValueError,
        "__array_priority__ speaks to operators; numpy.matmul, a function, raises this too",
    ),
    "TestMatmulOperator::test_matmul_raises": (
        ValueError,
        "a TypeError of the operator of scalars; numpy.matmul raises ValueError too",
    ),
    "TestFunctions::test_matmul_axes": (TypeError, "axes= is not offered: move the axes before"),
    "TestUfunc::test_can_ignore_signature": (
        ValueError,
        "out has exactly the shape of the result, which is not broadcast to it",
    ),
}


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
        type(self).product(plain, np.asarray(other), plain)
        return self


@pytest.fixture(autouse=True)
def calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Lead NumPy's tests here, and make sure that they came."""
    name = f"{request.cls.__name__}::{request.node.originalname}"
    if name in DIFFERENT:
        raises, reason = DIFFERENT[name]
        request.applymarker(pytest.mark.xfail(raises=raises, reason=reason, strict=True))
    seen = 0

    def matmul(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        seen += 1
        return jitgemm.matmul(*args, **kwargs)

    def doubles(*args: Any, dtype: Any = np.float64) -> Array:
        """Integers would all be passed on; doubles are multiplied here."""
        return np.arange(*args, dtype=dtype)

    names: dict[str, Any] = {"matmul": matmul}
    if request.cls in (TestUfunc, TestMethods):
        names["arange"] = doubles
    elif request.cls is TestMatmulInplace:
        operand = type("Operand", (_Operand,), {"product": staticmethod(matmul)})
        names["arange"] = lambda *args: doubles(*args).view(operand)
    for module in (multiarray, ufunc, linalg, mixins, functions):
        monkeypatch.setattr(module, "np", _Instead(np, **names))
    monkeypatch.setattr(linalg, "matmul", matmul)
    monkeypatch.setattr(ufunc, "umt", _Instead(ufunc.umt, matmul=matmul))
    monkeypatch.setattr(request.cls, "matmul", staticmethod(matmul), raising=False)
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
