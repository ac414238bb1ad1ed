"""Public functions as builtins that stay in generated code for calls they know.

A function is written in Python, which is what it means.  What users call is a CPython builtin in
front of it: before anything is compiled it passes every call on, and from the first call on it runs
:mod:`jitgemm.runtime.call_code`, which calls Python only for what it has not seen before.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from jitgemm.api.config import publish, resolve_threads
from jitgemm.api.keywords import defaults
from jitgemm.api.smallentry import SmallTable
from jitgemm.runtime.call_code import FUNCTION
from jitgemm.runtime.calls import record_array
from jitgemm.runtime.engine import FASTCALL, MethodDef, builtin, engine, knob, started, usable
from jitgemm.runtime.signature_code import ARGUMENTS

__all__ = ["CallStub", "forget", "forget_entries", "public", "with_keywords"]

F = TypeVar("F", bound=Callable[..., Any])
_PACKAGE = "jitgemm"
_stubs: list[CallStub] = []


class CallStub(np.ndarray):
    """The record of a public function, which is the ``self`` of its builtin."""

    python: Callable[..., Any]
    """Takes a call."""
    missed: Callable[..., Any] | None
    """Takes a call after its signature."""
    small: SmallTable | None
    function: Any
    """The builtin."""
    definition: MethodDef
    code: str
    """The generated function that takes calls."""
    begun: bool

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """What the builtin does until there is generated code, and for ever if there is none."""
        # Who asks for a BLAS needs no generated code, and is not told that there is none.
        if not self.begun and keywords.get("backend") != "blas":
            self.begun = True
            if usable() and engine().native:
                self._begin()
                return self.function(*args, **keywords)
        return self.python(*args, **keywords)

    def _begin(self) -> None:
        """From here on the builtin is generated code."""
        e = engine()
        assert e.calls is not None
        resolve_threads()
        publish()
        e.calls.set_knobs(knob)
        self[FUNCTION.slot("calls")] = e.calls.where
        if self.small is not None:
            self.small.begin()
            self[FUNCTION.slot("small")] = self.small.where
        # Last: from here on it is used.
        self.definition.method = e.address_of(self.code)

    def forget(self) -> None:
        """Be as before the first call."""
        self.definition.method = _forward()
        self.begun = False
        if self.small is not None:
            self.small.forget()

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The builtin is an attribute of the package, by which it is pickled and copied.
        return importlib.import_module, (_PACKAGE,)


def _forward() -> int:
    """A C function that passes arguments on to the callable object before them."""
    return ctypes.cast(ctypes.pythonapi.PyObject_Vectorcall, ctypes.c_void_p).value or 0


def forget() -> None:
    """Forget all calls: from here on they are planned anew, and by another engine if there is."""
    for stub in _stubs:
        stub.forget()
    forget_entries()


def forget_entries() -> None:
    """Forget all calls."""
    e = started()
    if e is not None and e.calls is not None:
        e.calls.clear()


def _signature(function: Callable[..., Any]) -> str:
    """The signature of a function in the form in which builtins have one."""
    said = inspect.signature(function)
    parameters = [x.replace(annotation=inspect.Parameter.empty) for x in said.parameters.values()]
    return str(said.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def with_keywords(declared: type) -> Callable[[F], F]:
    """Give a function that declares its keyword arguments by a ``TypedDict`` a full signature."""

    def decorate(function: F) -> F:
        said, usual = inspect.signature(function), defaults()
        *others, _ = said.parameters.values()
        kind = inspect.Parameter.KEYWORD_ONLY
        named = [
            inspect.Parameter(name, kind, default=usual[name], annotation=annotation)
            for name, annotation in declared.__annotations__.items()
        ]
        function.__signature__ = said.replace(parameters=[*others, *named])  # type: ignore[attr-defined]
        return function

    return decorate


def public(
    missed: Callable[..., Any] | None,
    number: int,
    positional: tuple[str, ...],
    named: tuple[str, ...],
    small: SmallTable | None = None,
    *,
    code: str = "jitgemm_call",
    dry: bool = False,
) -> Callable[[F], F]:
    """Put a builtin before a function.

    Args:
        missed: what takes a call that no entry is known for; its first argument is the signature.
            ``None``: calls have none.
        number: of the function, at most 255, which tells its signatures from those of others.
        positional: fields of a call by the places of arguments.
        named: those that may be given by name; others go to Python.
        small: what is computed without a plan.
        code: the generated function that takes calls.
        dry: what is known is not run.
    """

    def decorate(function: F) -> F:
        stub = record_array(FUNCTION.slots).view(CallStub)
        stub.python, stub.missed, stub.small, stub.begun = function, missed, small, False
        stub.code = code
        values = {"number": number, "dry": int(dry), "missed": id(missed), "python": id(function)}
        values |= {"positional": len(positional), "names": len(named)}
        values |= {f"position_{i}": ARGUMENTS.offset(x) for i, x in enumerate(positional)}
        for i, name in enumerate(named):
            # Keywords are interned when code is compiled; other strings of that text go to Python.
            values |= {f"name_{i}": id(sys.intern(name)), f"field_{i}": ARGUMENTS.offset(name)}
        for name, value in values.items():
            stub[FUNCTION.slot(name)] = value
        doc = f"{function.__name__}{_signature(function)}\n--\n\n{inspect.getdoc(function)}"
        definition = MethodDef(function.__name__.encode(), _forward(), FASTCALL, doc.encode())
        stub.definition = definition
        _stubs.append(stub)
        # Never freed: a builtin may outlive the modules at exit.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(stub))
        stub.function = builtin(definition, stub, _PACKAGE)
        return stub.function  # type: ignore[no-any-return]

    return decorate
