"""Activations by name and with parameters, and new ones from outside."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jitgemm.api.reference import map_array
from jitgemm.api.stubs import forget_entries
from jitgemm.api.tracing import Condition, Value, apply
from jitgemm.errors import LanguageError, message
from jitgemm.isa.conversions import dtype_of
from jitgemm.isa.tables import INTERPRETER
from jitgemm.isa.types import F32, F64, I32, I64, ElementType
from jitgemm.kernels import operations
from jitgemm.kernels.expression import Program, program_of
from jitgemm.kernels.operations import OPERATIONS, Operation, Parameter
from jitgemm.lang.core import Vec
from jitgemm.lang.interp import InterpKernel, Memory
from jitgemm.runtime.keeping import BoundedCache

__all__ = [
    "Activation", "activation", "check_identifier", "clip", "leaky_relu", "register_activation",
    "resolve_activation", "try_row", "unregister_activation",
]  # fmt: skip

Constructor = Callable[..., "Activation"]
_OWN = ("row", "values")
"""Attributes that are no parameters."""


@dataclass(frozen=True, slots=True, repr=False)
class Activation:
    """An activation and its parameters.  Made by :func:`activation`, :func:`leaky_relu` and so on.

    Equal ones are equal; parameters are attributes.  Called with an array of real numbers, or with
    a value of a traced epilogue, it maps that.
    """

    row: Operation
    values: tuple[float, ...] = ()
    """The parameters, in order."""

    def __post_init__(self) -> None:
        row, last = self.row, -math.inf
        numbers: list[float] = []
        values = _bound(row, tuple(self.values), {})
        for parameter, given in zip(row.parameters, values, strict=True):
            x = _number(given, parameter)
            if row.ascending and x < last:
                # Worded by the one before, as one says a range.
                expected = f"at most {parameter.name}, {x}"
                raise ValueError(message(row.parameters[len(numbers) - 1].name, expected, last))
            last = x
            numbers.append(x)
        object.__setattr__(self, "values", tuple(numbers))

    def __call__(self, x: Any) -> Any:
        """``x`` mapped element by element.

        Raises:
            TypeError: neither real numbers nor a value of an epilogue.
        """
        _check_known(self.row, "activation")
        if isinstance(x, Value | Condition):
            return apply(self.row.step, x, *self.values)
        return map_array(self.row, self.values, x)

    def __getattr__(self, name: str) -> float:
        if name in _OWN:  # of one that was made without its constructor
            raise AttributeError(name)
        for parameter, x in zip(self.row.parameters, self.values, strict=True):
            if parameter.name == name:
                return x
        raise AttributeError(f"{self!r} has no {name!r}")

    def __repr__(self) -> str:
        numbers = [f"{p.name}={x}" for p, x in zip(self.row.parameters, self.values, strict=True)]
        name = self.row.name
        return f"jitgemm.activation({', '.join([repr(name), *numbers])})"

    def __reduce__(self) -> tuple[Constructor, tuple[Any, ...]]:
        return activation, (self.row.name, *self.values)


def _number(x: Any, parameter: Parameter) -> float:
    operand = parameter.name
    if isinstance(x, np.ndarray) and x.ndim == 0:
        x = x[()]
    if isinstance(x, bool | np.bool_) or not isinstance(x, int | float | np.integer | np.floating):
        raise TypeError(message(operand, "a real number", type(x).__name__))
    try:
        number = float(x)
    except OverflowError:
        raise ValueError(message(operand, "a number a float can hold", "a greater one")) from None
    if math.isnan(number):
        raise ValueError(message(operand, "a number", "NaN"))
    if parameter.finite and math.isinf(number):
        raise ValueError(message(operand, "a finite number", number))
    # A double does not hold every bound of 64-bit integers.
    return int(x) if isinstance(x, int | np.integer) and int(x) != number else number


# Equal ones are one object, by which calls are told apart: they are often made anew for each call.
_made: BoundedCache[tuple[Any, ...], Activation] = BoundedCache(256)


def _same(row: Operation, *parameters: Any) -> Activation:
    """The one object of a row and its parameters."""
    # Zeros of either sign are equal, and so are numbers of different types.
    key = (row, *((type(x), x or str(x)) for x in parameters if type(x) in (float, int)))
    found = _made.get(key) if len(key) > len(parameters) else None
    if found is None:
        found = Activation(row, parameters)
        if len(key) > len(parameters):
            _made.put(key, found)
    return found


def _bound(row: Operation, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """The parameters of a row in order, from those passed by place and by name."""
    names = [x.name for x in row.parameters]
    expected = ", ".join(names) or "no parameters"
    if len(given) > len(names):
        raise TypeError(message(row.name, expected, f"{len(given)} numbers"))
    values = dict(zip(names, given, strict=False))
    for name, x in named.items():
        if name not in names or name in values:
            raise TypeError(message(row.name, expected, f"another {name}"))
        values[name] = x
    for parameter in row.parameters:
        if parameter.name not in values and parameter.default is None:
            raise TypeError(message(parameter.name, f"a number, for {row.name}", "none"))
        values.setdefault(parameter.name, parameter.default)
    return tuple(values[name] for name in names)


def _constructor(row: Operation) -> Constructor:
    """The function that makes the activations of a row."""
    count = len(row.parameters)

    def make(*parameters: Any, **named: Any) -> Activation:
        if named or len(parameters) != count:
            parameters = _bound(row, parameters, named)
        return _same(row, *parameters)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    empty = inspect.Parameter.empty
    make.__name__ = make.__qualname__ = row.name
    make.__doc__ = (
        f"The activation {row.doc or row.name}.\n\n"
        "Raises:\n"
        "    TypeError, ValueError: a parameter is no real number, NaN, missing"
        f"{', or less than the one before' * row.ascending}.\n"
    )
    make.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        inspect.Parameter(
            x.name, kind, default=empty if x.default is None else x.default, annotation="float"
        )
        for x in row.parameters
    ])  # fmt: skip
    return make


leaky_relu = _constructor(OPERATIONS["leaky_relu"])
clip = _constructor(OPERATIONS["clip"])
_MADE = tuple(x.__name__ for x in (leaky_relu, clip))


def _known() -> list[Operation]:
    return [row for row in list(OPERATIONS.values()) if row.activation]


def _named(text: str) -> Operation | None:
    """The activation of that name."""
    # The text itself: a class of one's own may compare as it likes.
    row = OPERATIONS.get(str.__str__(text))
    return row if row is not None and row.activation else None


def _check_known(row: Operation, name: str) -> None:
    if OPERATIONS.get(row.name) is not row:
        raise ValueError(message(name, "an activation that is registered", repr(row.name)))


def activation(name: str, /, *parameters: float, **named: float) -> Activation:
    """The activation of that name, with parameters by place or by name.

    Equal ones are the same object.  It is passed as ``activation=``, and maps arrays when it is
    called.

    Raises:
        ValueError: there is none of that name, or a parameter is beyond what it may be.
        TypeError: a parameter too many or too few, or no real number.
    """
    row = _named(name) if isinstance(name, str) else None
    if row is None:
        names = ", ".join(x.name for x in _known())
        raise ValueError(message("activation", f"one of {names}", repr(name)))
    return _same(row, *_bound(row, parameters, named))


def resolve_activation(x: Any) -> tuple[Program | None, tuple[float, ...]]:
    """The program of an activation and its constants; ``None`` for none.

    Raises:
        ValueError: neither ``None``, a name, nor an :class:`Activation` of a row that is known.
    """
    if x is None:
        return None, ()
    if isinstance(x, Activation):
        _check_known(x.row, "activation")
        return program_of(x.row), x.values
    row = _named(x) if isinstance(x, str) else None
    if row is not None and not row.parameters:
        return program_of(row), ()
    known = [x.name for x in _known() if not x.parameters]
    known += [
        f"jitgemm.{x.name}(...)" if x.name in _MADE else f"jitgemm.activation({x.name!r}, ...)"
        for x in _known()
        if x.parameters
    ]
    expected = f"None, one of {', '.join(known[:-1])} or {known[-1]}"
    raise ValueError(message("activation", expected, repr(x)))


# -- from outside ----------------------------------------------------------------------------------

_FLOATS, _INTEGERS = (F32, F64), (I32, I64)
# What a row is tried on: both signs, zero, and what lies beyond usual bounds.
_TRIED = (-700.0, -3.0, -1.0, -0.25, 0.0, 0.5, 2.0, 90.0)
# How far results may be from those of the meaning, as a share of them or at all.
_NEAR = 1e-3


def register_activation(
    name: str,
    emit: Callable[..., Vec],
    meaning: Callable[..., Any],
    *,
    parameters: Iterable[Parameter | str] = (),
    ascending: bool = False,
    integers: bool = False,
    cheap: bool = False,
    doc: str = "",
) -> Constructor:
    """Let products end with an activation of one's own, on every route and instruction set.

    ``emit(k, v, *parameters)`` writes it in the kernel language: ``k`` is a
    :class:`jitgemm.lang.core.Kernel`, the others are vectors of one type and length, and so is what
    it returns.  ``k.op("mul", x, y)`` and the like are operations of :mod:`jitgemm.isa.ops` (of
    :mod:`jitgemm.isa.integers`, if ``v.element.integral``), ``k.literal(0.5, v.element, v.lanes)``
    is a constant, and :mod:`jitgemm.kernels.mathlib` has functions.  It must write the same each
    time.  ``meaning(v, *parameters)`` says the same on NumPy arrays of one type; the BLAS route,
    and calls of an :class:`Activation` with an array, use it.

    Args:
        name: an identifier, under which it is asked for: by ``activation=name``, or with
            parameters by ``activation=jitgemm.activation(name, ...)``.
        emit: as above.
        meaning: as above.
        parameters: real numbers that each product brings along and that are compiled in nowhere: a
            :class:`Parameter`, or its name.
        ascending: whether no parameter may be less than the one before.
        integers: whether it is also one of 32- and 64-bit integers; then it must be cheap.
        cheap: whether it is a handful of instructions, to be repeated in each register tile's code.
            Others are applied to the tile just stored.
        doc: what it is, in a phrase.

    Returns:
        The function that makes it with its parameters, as :func:`leaky_relu` does.

    Raises:
        TypeError: something of another kind.
        ValueError: the name is known already as something else, or ``emit`` and ``meaning``, tried
            on a few numbers, fail, give another type or length, or do not agree.
    """
    given = _declared(name, parameters)
    for what, f in (("emit", emit), ("meaning", meaning)):
        if not callable(f):
            raise TypeError(message(what, "a function", repr(f)))
    if integers and not cheap:
        raise ValueError(message("cheap", "True, because it is one of integers", cheap))
    row = Operation(
        name, 1 + len(given), emit, meaning, cheap=cheap, integers=integers, activation=True,
        parameters=given, ascending=ascending, doc=doc, builtin=False,
    )  # fmt: skip
    for element in (*_FLOATS, *(_INTEGERS if integers else ())):
        try_row(row, element)
    try:
        return _constructor(operations.register(row))
    except ValueError:
        expected = "a name that is not known yet"
        raise ValueError(message("name", expected, repr(name))) from None


def check_identifier(name: object) -> None:
    """Refuse what is no name.

    Raises:
        TypeError: it is no identifier.
    """
    if not isinstance(name, str) or not (name.isidentifier() and name.isascii()):
        raise TypeError(message("name", "an identifier", repr(name)))


def _declared(name: str, parameters: Iterable[Parameter | str]) -> tuple[Parameter, ...]:
    """Parameters of an activation, with names and defaults that may be."""
    given = tuple(Parameter(x) if isinstance(x, str) else x for x in parameters)
    names = [x.name for x in given if isinstance(x, Parameter)]
    if len(names) < len(given) or len({*names}) < len(names):
        raise TypeError(message("parameters", "a Parameter or a name each, all different", given))
    for x in (name, *names):
        check_identifier(x)
    taken = [x for x in names if x in _OWN]
    if taken:
        raise TypeError(message("parameters", f"other names than {' and '.join(_OWN)}", taken[0]))
    for parameter in given:
        if parameter.default is not None:
            _number(parameter.default, replace(parameter, name=f"default of {parameter.name}"))
    return given


def try_row(row: Operation, element: ElementType) -> None:
    """Whether what a row writes, as the interpreter runs it, is what it means."""
    k, kind = InterpKernel(INTERPRETER, Memory()), dtype_of(element)
    v = np.array(_TRIED).astype(kind)
    step = 1 if element.integral else 0.375
    defaults = [
        step * i if x.default is None else x.default for i, x in enumerate(row.parameters, 1)
    ]
    with np.errstate(all="ignore"):
        given = [np.full(v.size, x).astype(kind) for x in defaults]
    try:
        vectors = [Vec(k, x.copy(), element, v.size) for x in (v, *given)]
        got = row.emit(k, *vectors)
    except (LanguageError, TypeError, AttributeError, ValueError) as e:
        expected = "a function emit(k, v, *parameters) of the kernel language"
        raise ValueError(message("emit", expected, f"{type(e).__name__}: {e}")) from e
    if not isinstance(got, Vec) or (got.element, got.lanes) != (element, v.size):
        raise ValueError(message("emit", f"a vector of {element} as long as v", got))
    try:
        with np.errstate(all="ignore"):
            want = np.asarray(row.meaning(v.copy(), *(x[0] for x in given))).astype(kind)
    except (TypeError, AttributeError, ValueError) as e:
        expected = "a function meaning(v, *parameters) of NumPy arrays"
        raise ValueError(message("meaning", expected, f"{type(e).__name__}: {e}")) from e
    near = 0 if element.integral else _NEAR
    if want.shape != v.shape or not np.allclose(got.handle, want, near, near, equal_nan=True):
        raise ValueError(message("meaning", f"{got.handle} of {v}, as emit gives", want))


def unregister_activation(name: str) -> None:
    """Forget an activation that :func:`register_activation` has made known.

    No other thread may multiply with it meanwhile.  Plans go on.

    Raises:
        ValueError: it has not been registered.
    """
    row = _named(name) if isinstance(name, str) else None
    if row is None or row.builtin:
        expected = "the name of an activation that has been registered"
        raise ValueError(message("name", expected, repr(name)))
    operations.unregister(row.name)
    forget_entries()
