"""The options of a call, told apart: what decides its plan, and what is data.

The *form* of a call is what of its options a plan depends on.  It is made of objects of this
package's own and of Python's, in one way for each meaning, so it can be part of a key: nothing of
the caller's is kept, compared or hashed.  Everything else is *data*, which each call brings along
(:mod:`jitgemm.runtime.data`).  A form exists only for options that are valid, by their exact types:
that something equals what an earlier call has passed proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgemm.api.activations import NAMED, resolve_activation
from jitgemm.api.kinds import NUMPY, Number, as_type, number_of, result_type
from jitgemm.api.operands import Array, check_type, factor, flag, stack_shape
from jitgemm.api.quantise import BOUNDS, NARROW, Requantize, zero_points
from jitgemm.api.tracing import trace
from jitgemm.errors import message
from jitgemm.kernels.expression import Program
from jitgemm.kernels.spec import Scale
from jitgemm.runtime.data import DataLayout, Factors, Scalars, Tables
from jitgemm.runtime.memory import Workspace
from jitgemm.runtime.packed import Packed

__all__ = ["PLAIN", "Form", "Options", "Request", "Told", "data_of", "request_of", "told"]

Form = tuple[Any, ...]
"""``(alpha != 0, beta != 0, steps of the program, type of the result or None, others or None)``."""


@dataclass(slots=True, eq=False)
class Options:
    """Keyword arguments of :func:`jitgemm.gemm`, as given."""

    alpha: object = 1
    beta: object = 0
    activation: object = None
    conj_a: object = False
    conj_b: object = False
    epilogue: object = None
    workspace: object = None
    reproducible: object = "default"
    backend: object = "jit"
    a_zero_point: object = None
    b_zero_point: object = None
    requantize: object = None
    out_dtype: object = None
    allow_bf16_dot: object = False
    c: object = None
    bias: object = None

    @property
    def plain(self) -> bool:
        """Whether they ask for nothing but the product."""
        others = (
            self.c, self.bias, self.activation, self.epilogue, self.workspace, self.a_zero_point,
            self.b_zero_point, self.requantize, self.out_dtype,
        )  # fmt: skip
        names = (self.reproducible, "default"), (self.backend, "jit")
        same = all(type(x) is str and x == y for x, y in names)
        scalars = type(self.alpha) is int and type(self.beta) is int
        numbers = scalars and (self.alpha, self.beta) == (1, 0)
        flags = self.conj_a is self.conj_b is self.allow_bf16_dot is False
        return numbers and flags and same and all(x is None for x in others)


# The options of :class:`Options`, but for C and the bias, of the two commonest calls.
_USUAL = (1, 0, None, False, False, None, None, "default", "jit", None, None, None, None, False)
PLAIN = (*_USUAL[:12], NUMPY, False)
_ONE, _ZERO, _DEFAULT, _JIT = (_USUAL[i] for i in (0, 1, 7, 8))


@dataclass(slots=True, eq=False)
class Request:
    """What the options of a call ask for, with every one of them checked."""

    form: Form
    scalars: Scalars
    """The data."""
    dtype: np.dtype
    """The result's type."""
    program: Program | None
    """Activation and traced function as one."""
    scale: Scale
    many: bool
    """There are zero points or scales per row, column or product of a stack."""
    requantize: Requantize | None
    workspace: Workspace | None
    strict: bool
    blas: bool
    """A BLAS is asked for by name."""
    bf16_dot: bool


def request_of(options: Options, a: Array | Packed, b: Array | Packed) -> Request:
    """What is asked for with operands of supported types.

    Raises:
        TypeError, ValueError: an option of another kind, or that does not go with the operands.
    """
    x, y = a.dtype, b.dtype
    m, n = a.shape[-2] if a.ndim > 1 else 1, b.shape[-1] if b.ndim > 1 else 1
    requantize = _requantize(options.requantize)
    dtype, number = _result(x, y, options.out_dtype, requantize)
    element, parts = number
    alpha = factor("alpha", options.alpha, parts, integral=element.integral)
    beta = factor("beta", options.beta, parts, integral=element.integral)
    conj_a, conj_b = flag("conj_a", options.conj_a), flag("conj_b", options.conj_b)
    program, constants = _program(options, number)
    if options.workspace is not None and not isinstance(options.workspace, Workspace):
        raise TypeError(message("workspace", "a Workspace", type(options.workspace).__name__))
    strict = _choice("reproducible", options.reproducible, ("default", "strict")) == 1
    blas = _choice("backend", options.backend, ("jit", "blas")) == 1
    batch = _batch(options, a, b)
    zero_a = zero_points("a_zero_point", options.a_zero_point, x, (m, 1), batch)
    zero_b = zero_points("b_zero_point", options.b_zero_point, y, (1, n), batch)
    for name, points, other in (("a", zero_a, y), ("b", zero_b, x)):
        if points is not None and other not in NARROW:
            expected = "None, because operands are not both 8-bit"
            raise TypeError(message(f"{name}_zero_point", expected, "zero points"))
    scale, scales, rounding = Scale.NONE, None, (0.0, 0.0, 0.0)
    if requantize is not None:
        scales, scale = requantize.along(m, n, batch)
        (low, high), zero = BOUNDS[requantize.type], requantize.zero_point
        rounding = float(zero), float(low - zero), float(high - zero)
    bf16_dot = flag("allow_bf16_dot", options.allow_bf16_dot)
    # A handle carries its own conjugation.
    turn_a, turn_b = (isinstance(z, Packed) and z.conj for z in (a, b))
    scalars = Scalars(
        alpha, beta, conj_a ^ turn_a, conj_b ^ turn_b, constants, zero_a, zero_b, scales, rounding
    )
    sizes = tuple(0 if z is None else min(z.size, 2) for z in (zero_a, zero_b, scales))
    wanted = NUMPY if options.out_dtype is NUMPY else None
    if requantize is not None or (wanted is None and options.out_dtype is not None):
        wanted = dtype
    steps = None if program is None else program.steps
    tables = tuple(scalars.strides(len(batch)).items())
    others = _others(conj_a, conj_b, strict, blas, bf16_dot, scale.value, *sizes, tables)
    form = alpha != 0, beta != 0, steps, wanted, others
    return Request(
        form, scalars, dtype, program, scale, 2 in sizes, requantize, options.workspace, strict,
        blas, bf16_dot,
    )  # fmt: skip


def _batch(options: Options, a: Array | Packed, b: Array | Packed) -> tuple[int, ...]:
    """Leading axes of a stack's result, if there are numbers that may differ along them."""
    numbers = options.a_zero_point, options.b_zero_point, options.requantize
    if (a.ndim < 3 and b.ndim < 3) or all(x is None for x in numbers):
        return ()
    stack_shape(a, b)
    return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])


def _others(*rest: Any) -> tuple[Any, ...] | None:
    """The rest of a form: nothing if it is as usual."""
    return rest if any(rest) else None


def _requantize(x: object) -> Requantize | None:
    if x is not None and not isinstance(x, Requantize):
        raise TypeError(message("requantize", "None or a Requantize", type(x).__name__))
    return x


def _choice(name: str, value: object, known: tuple[str, ...]) -> int:
    if not isinstance(value, str):
        raise TypeError(message(name, " or ".join(map(repr, known)), type(value).__name__))
    # The text itself: a class of one's own may compare as it likes.
    text = str.__str__(value)
    if text not in known:
        raise ValueError(message(name, " or ".join(map(repr, known)), repr(text)))
    return known.index(text)


def _result(
    a: np.dtype, b: np.dtype, wanted: object, requantize: Requantize | None
) -> tuple[np.dtype, Number]:
    """The result's type, for NumPy and for the planner."""
    numbers = number_of(a), number_of(b)
    assert numbers[0] is not None
    assert numbers[1] is not None
    if 2 in (numbers[0][1], numbers[1][1]):
        check_type("b", b, a)
    if requantize is None:
        dtype = result_type(a, b, wanted)
    else:
        if a not in NARROW or b not in NARROW:
            expected = "None, because operands are not 8-bit integers"
            raise TypeError(message("requantize", expected, "a Requantize"))
        dtype = requantize.type
        if wanted is not None and as_type(wanted) != dtype:
            raise TypeError(message("out_dtype", str(dtype), repr(wanted)))
    number = number_of(dtype)
    assert number is not None
    return dtype, number


def _program(options: Options, number: Number) -> tuple[Program | None, tuple[float, ...]]:
    """Activation and traced function as one program, and its constants."""
    program, constants = resolve_activation(options.activation)
    if options.epilogue is not None:
        traced, more = trace(options.epilogue)
        program = traced if program is None else program.then(traced)
        constants += more
    if program is not None and (number[1] == 2 or number[0].integral):
        name = "epilogue" if options.activation is None else "activation"
        kind = "complex" if number[1] == 2 else "integers"
        raise TypeError(message(name, f"None, because elements are {kind}", "one for reals"))
    return program, constants[: 0 if program is None else program.constants]


# -- without looking at everything ----------------------------------------------------------------

Told = tuple[Form, Request | Factors | None, np.dtype]
"""The form of a call, its data (``None``: alpha is 1, there are no others), the result's type."""

_STEPS = {name: program.steps for name, program in NAMED.items()}
_REALS = frozenset((float, int, np.float64, np.float32))
_USUAL_FORM: Form = (True, False, None, None, None)
_NOTHING_FORM: Form = (False, *_USUAL_FORM[1:])
_NONE: Tables = {}
_ODD = ("odd",)
"""What takes more to see whether it is valid."""


def told(options: tuple[Any, ...], a: Array | Packed, b: Array | Packed) -> Told | None:
    """What decides the plan of a call, and what is data.

    The commonest options are taken as they are, where their types alone show that they are valid.

    Args:
        options: those of :class:`Options`, but for C and the bias.
        a: an array or a handle.
        b: likewise.

    Returns:
        ``None`` for what is planned each time, or refused by whoever validates it: scratch of the
        caller's, element types that are not supported.

    Raises:
        TypeError, ValueError: as :func:`request_of`.
    """
    if options is PLAIN:
        dtype = a.dtype
        if dtype is b.dtype and dtype.kind in "fc":
            # NumPy's result is the usual one.
            return _USUAL_FORM, None, dtype
    (alpha, beta, activation, conj_a, conj_b, epilogue, workspace, reproducible, backend,
     zero_a, zero_b, requantize, wanted, bf16_dot) = options  # fmt: skip
    if (
        epilogue is workspace is zero_a is zero_b is requantize is wanted is None
        and conj_a is conj_b is bf16_dot is False
        and reproducible is _DEFAULT
        and backend is _JIT
        and beta is _ZERO
    ):
        dtype = a.dtype
        if dtype is b.dtype and dtype.kind in "fc":
            if alpha is _ONE:
                if activation is None:
                    return _USUAL_FORM, None, dtype
                steps = _STEPS.get(activation) if type(activation) is str else None
                if steps is not None:
                    return (True, False, steps, None, None), None, dtype
            elif activation is None and type(alpha) is float and dtype.kind == "f":
                # Adding 0 turns -0 into +0.
                form = _USUAL_FORM if alpha else _NOTHING_FORM
                return form, (alpha + 0.0, 0.0, False, False), dtype
    return _told(options, a, b)


def _told(options: tuple[Any, ...], a: Array | Packed, b: Array | Packed) -> Told | None:
    """The same for less common options."""
    (alpha, beta, activation, conj_a, conj_b, epilogue, workspace, reproducible, backend,
     zero_a, zero_b, requantize, wanted, bf16_dot) = options  # fmt: skip
    if not (epilogue is workspace is zero_a is zero_b is requantize is None):
        return _asked(options, a, b)
    dtype, others, steps = a.dtype, None, None
    if not (dtype is b.dtype and wanted is None and dtype.kind in "fc"):
        dtype, wanted = _result_of(dtype, b.dtype, wanted)
    if not (conj_a is conj_b is bf16_dot is False and reproducible is _DEFAULT and backend is _JIT):
        others = _chosen((conj_a, conj_b, bf16_dot), (reproducible, backend))
    if activation is not None:
        steps = _STEPS.get(activation, _ODD) if type(activation) is str else _ODD
    if others is _ODD or steps is _ODD or wanted is _ODD:
        return _asked(options, a, b)
    if alpha is _ONE and beta is _ZERO:
        return (True, False, steps, wanted, others), None, dtype
    kind = dtype.kind
    if kind == "f" and type(alpha) in _REALS and type(beta) in _REALS:
        try:
            alpha, beta = float(alpha) + 0.0, float(beta) + 0.0
        except OverflowError:
            return _asked(options, a, b)
    elif kind == "c" and all(type(x) in (complex, float) for x in (alpha, beta)):
        alpha, beta = complex(alpha) + 0j, complex(beta) + 0j
        conj_a ^= isinstance(a, Packed) and a.conj
        conj_b ^= isinstance(b, Packed) and b.conj
    else:
        return _asked(options, a, b)
    return (alpha != 0, beta != 0, steps, wanted, others), (alpha, beta, conj_a, conj_b), dtype


def _result_of(a: np.dtype, b: np.dtype, wanted: Any) -> tuple[np.dtype, Any]:
    """The result's type, and what of it was asked for."""
    try:
        dtype = result_type(a, b, wanted)
    except TypeError:
        return a, _ODD
    return dtype, wanted if wanted is None or wanted is NUMPY else dtype


def _chosen(flags: tuple[Any, ...], names: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The rest of a form without zero points and requantisation."""
    if not (all(type(x) is bool for x in flags) and all(type(x) is str for x in names)):
        return _ODD
    if names[0] not in ("default", "strict") or names[1] not in ("jit", "blas"):
        return _ODD
    strict, blas = names[0] == "strict", names[1] == "blas"
    return _others(flags[0], flags[1], strict, blas, flags[2], Scale.NONE.value, 0, 0, 0, ())


def _asked(options: tuple[Any, ...], a: Array | Packed, b: Array | Packed) -> Told | None:
    unknown = number_of(a.dtype) is None or number_of(b.dtype) is None
    if unknown or options[6] is not None:
        return None
    request = request_of(Options(*options), a, b)
    return request.form, request, request.dtype


def data_of(layout: DataLayout, given: Request | Factors | None) -> tuple[bytes | None, Tables]:
    """The record of a call for an entry, and the arrays it refers to."""
    if type(given) is tuple:
        return layout.factors(given), _NONE
    if given is None:
        return None, _NONE
    assert isinstance(given, Request)
    return layout.record(given.scalars)
