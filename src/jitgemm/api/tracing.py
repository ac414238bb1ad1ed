"""From a Python function of one element to a program: the function is called once, with symbols."""

from __future__ import annotations

import inspect
import math
import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from jitgemm.errors import message
from jitgemm.kernels.expression import Program, Step
from jitgemm.kernels.operations import INPUTS, Operation, row_of

__all__ = ["Condition", "Value", "apply", "trace", "where_traced"]

_ALLOWED = (
    "arithmetic (+ - * / **), comparisons, & | ~, numbers and the functions of jitgemm.math "
    "(jitgemm.math.where chooses between values)"
)
_MOST = 16
"""The greatest exponent that becomes products."""


def _refuse(got: str) -> NoReturn:
    raise TypeError(message("epilogue", _ALLOWED, got))


class _Trace:
    """The steps written so far; equal ones are one."""

    def __init__(self) -> None:
        self.steps: dict[Step, int] = {}
        self.constants: dict[bytes, int] = {}
        self.numbers: list[float] = []

    def step(self, what: str | Operation, operands: tuple[int, ...] = ()) -> Value:
        index = self.steps.setdefault((what, operands), len(self.steps))
        return Value(self, index)

    def number(self, x: float) -> Value:
        # By its bits: the two zeros differ, a NaN equals itself.
        index = self.constants.setdefault(struct.pack("d", x), len(self.numbers))
        if index == len(self.numbers):
            self.numbers.append(x)
        return self.step("const", (index,))

    def value(self, x: Any) -> Value:
        """A traced value, or a real number as one."""
        if isinstance(x, Value):
            if x._trace is not self:  # noqa: SLF001
                _refuse("a value of another epilogue")
            return x
        if isinstance(x, Condition):
            _refuse("a condition used as a number")
        return self.number(_real(x))

    def finish(self, result: Value) -> tuple[Program, tuple[float, ...]]:
        """The steps the result needs, renumbered, and the constants they use."""
        steps, needed = list(self.steps), {result._index}  # noqa: SLF001
        for index in range(len(steps) - 1, -1, -1):
            what, operands = steps[index]
            if index in needed and row_of(what) is not None:
                needed.update(operands)
        place: dict[int, int] = {}
        table: dict[int, int] = {}
        kept: list[Step] = []
        for index in sorted(needed):
            what, operands = steps[index]
            if what == "const":
                kept.append((what, (table.setdefault(operands[0], len(table)),)))
            else:
                kept.append((what, tuple(place[i] for i in operands)))
            place[index] = len(kept) - 1
        return Program(tuple(kept)), tuple(self.numbers[i] for i in table)


def _real(x: Any) -> float:
    """A Python or NumPy real scalar."""
    if isinstance(x, np.ndarray) and x.ndim == 0:
        x = x[()]
    if isinstance(x, bool | int | float | np.bool_ | np.integer | np.floating):
        try:
            return float(x)
        except OverflowError:
            _refuse("an integer beyond the greatest number")
    _refuse(f"a {type(x).__name__}" + (f" of shape {x.shape}" if hasattr(x, "shape") else ""))


@dataclass(frozen=True, eq=False, slots=True)
class Condition:
    """A comparison of traced values, or some of them combined."""

    choose: Callable[[Any, Any], Value]
    """The value for where it holds and where it does not."""

    def __and__(self, other: Any) -> Condition:
        both = _condition(other)
        return Condition(lambda x, y: self.choose(both.choose(x, y), y))

    def __or__(self, other: Any) -> Condition:
        either = _condition(other)
        return Condition(lambda x, y: self.choose(x, either.choose(x, y)))

    def __invert__(self) -> Condition:
        return Condition(lambda x, y: self.choose(y, x))

    def __array_ufunc__(self, ufunc: Any, *_: Any, **__: Any) -> NoReturn:
        _refuse(f"numpy.{ufunc.__name__} of a condition")


def _condition(x: Any) -> Condition:
    if not isinstance(x, Condition):
        _refuse(f"a condition combined with a {type(x).__name__}")
    return x


def _trace_of(operands: tuple[Any, ...]) -> _Trace:
    for x in operands:
        if isinstance(x, Value):
            return x._trace  # noqa: SLF001
    _refuse("a condition used as a number")


def apply(what: str | Operation, *operands: Any) -> Value:
    """A step on operands of which one is traced."""
    trace = _trace_of(operands)
    values = [trace.value(x) for x in operands]
    return trace.step(what, tuple(x._index for x in values))  # noqa: SLF001


def _compare(name: str, a: Any, b: Any) -> Condition:
    trace = _trace_of((a, b))
    # Now, so that an operand that is no number is refused where it stands.
    left, right = trace.value(a), trace.value(b)
    return Condition(lambda x, y: apply(f"select_{name}", left, right, x, y))


def where_traced(condition: Any, x: Any, y: Any) -> Value:
    """``jitgemm.math.where`` with a traced operand."""
    if isinstance(condition, bool | np.bool_):
        _refuse(f"the constant condition {condition}: an if does that")
    if not isinstance(condition, Condition):
        _refuse(f"where on a {type(condition).__name__} instead of a condition")
    return condition.choose(x, y)


_UFUNCS: dict[Any, Callable[..., Any]] = {
    np.add: operator.add, np.subtract: operator.sub, np.multiply: operator.mul,
    np.divide: operator.truediv, np.less: operator.lt, np.less_equal: operator.le,
    np.greater: operator.gt, np.greater_equal: operator.ge, np.equal: operator.eq,
    np.not_equal: operator.ne, np.power: operator.pow,
}  # fmt: skip


class Value:
    """One element that is not known yet."""

    __slots__ = ("_index", "_trace")

    def __init__(self, trace: _Trace, index: int) -> None:
        self._trace, self._index = trace, index

    def __add__(self, other: Any) -> Value:
        return apply("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return apply("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return apply("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return apply("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return apply("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return apply("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return apply("div", other, self)

    def __neg__(self) -> Value:
        return apply("neg", self)

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        return apply("abs", self)

    def __pow__(self, exponent: Any) -> Value:
        """Integers up to 16 as products, and 0.5 as square root."""
        if isinstance(exponent, Value):
            _refuse("a power whose exponent is no constant")
        n = _real(exponent)
        if n == 0.5:
            return apply("sqrt", self)
        if not (math.isfinite(n) and n == int(n) and 0 <= n <= _MOST):
            _refuse(f"the exponent {exponent}; integers from 0 to {_MOST} and 0.5 are possible")
        result, factor = self._trace.number(1.0), self
        for digit in range(int(n).bit_length()):
            if digit:
                factor = factor * factor
            if int(n) >> digit & 1:
                result = factor if not int(n) & ((1 << digit) - 1) else result * factor
        return result

    def __lt__(self, other: Any) -> Condition:
        return _compare("lt", self, other)

    def __le__(self, other: Any) -> Condition:
        return _compare("le", self, other)

    def __gt__(self, other: Any) -> Condition:
        return _compare("lt", other, self)

    def __ge__(self, other: Any) -> Condition:
        return _compare("le", other, self)

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return _compare("eq", self, other)

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return ~_compare("eq", self, other)

    __hash__ = None  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """NumPy scalars on the left of an operator come through here; functions are refused."""
        function = _UFUNCS.get(ufunc)
        if function is None or method != "__call__" or options:
            _refuse(f"numpy.{ufunc.__name__}")
        # A NumPy scalar would ask here again; a float asks the right operand.
        return function(*(x if isinstance(x, Value) else _real(x) for x in inputs))

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        _refuse(f"numpy.{function.__name__}")

    def __getattr__(self, name: str) -> NoReturn:
        # Protocols are probed for: an attribute with underscores is merely absent.
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(f"the attribute .{name}")


def _refusing(what: str) -> Callable[..., NoReturn]:
    def method(self: Any, *_: Any, **__: Any) -> NoReturn:
        _refuse(f"{what} on a {'condition' if isinstance(self, Condition) else 'value'} "
                "that is not known yet")  # fmt: skip

    return method


_REFUSED = {
    "bool": "an if, and, or, not, min, max or chained comparison",
    "float": "float() or a function of the math module",
    "int": "int()", "index": "an index", "complex": "complex()", "round": "round()",
    "trunc": "math.trunc", "floor": "math.floor", "ceil": "math.ceil", "iter": "iteration",
    "len": "len()", "getitem": "indexing", "setitem": "assignment to an index",
    "contains": "in", "call": "a call", "array": "conversion to an array", "divmod": "divmod()",
    "rdivmod": "divmod()", "floordiv": "//", "rfloordiv": "//", "mod": "%", "rmod": "%",
    "matmul": "@", "rmatmul": "@", "lshift": "<<", "rlshift": "<<", "rshift": ">>",
    "rrshift": ">>", "xor": "^", "rxor": "^", "rpow": "a power with a variable exponent",
}  # fmt: skip
_NUMBERS_ONLY = {"and": "&", "rand": "&", "or": "|", "ror": "|", "invert": "~"}
_CONDITIONS_ONLY = {
    **dict.fromkeys(("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow",
                     "neg", "pos", "abs", "lt", "le", "gt", "ge", "eq", "ne"), "arithmetic"),
    "rand": "&", "ror": "|",
}  # fmt: skip
for _name, _what in (_REFUSED | _NUMBERS_ONLY).items():
    setattr(Value, f"__{_name}__", _refusing(_what))
for _name, _what in (_REFUSED | _CONDITIONS_ONLY).items():
    setattr(Condition, f"__{_name}__", _refusing(_what))


def _takes_three(f: Any) -> bool:
    try:
        inspect.signature(f).bind(*INPUTS)
    except TypeError:
        return False
    except ValueError:  # a builtin that does not say
        return True
    return True


def trace(f: Any) -> tuple[Program, tuple[float, ...]]:
    """Call ``f(v, row, col)`` once with symbols; its program and the program's constants.

    ``v`` is the element, ``row`` and ``col`` its indices in the result as numbers of its type.

    Raises:
        TypeError: ``f`` does what a program cannot, or returns something else than a number.
    """
    if not callable(f):
        _refuse(f"a {type(f).__name__} instead of a function")
    if not _takes_three(f):
        _refuse("a function that cannot be called as f(v, row, col)")
    state = _Trace()
    result = f(*(state.step(name) for name in INPUTS))
    if result is None or isinstance(result, tuple | list):
        _refuse(f"a function that returns {'nothing' if result is None else 'several values'}")
    return state.finish(state.value(result))
