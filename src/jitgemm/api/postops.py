"""What an epilogue does with operands of its own: scales of A and B, and post-ops."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jitgemm.api.activations import check_identifier, resolve_activation, try_row
from jitgemm.api.keywords import Options
from jitgemm.api.kinds import Number, number_of
from jitgemm.api.operands import Array, shares, weakly
from jitgemm.api.tracing import trace
from jitgemm.errors import message
from jitgemm.isa.types import F32, F64, I32, I64, ElementType
from jitgemm.kernels import operations
from jitgemm.kernels.expression import Program, binary
from jitgemm.kernels.job import EPILOGUE_OPERANDS
from jitgemm.kernels.operations import OPERATIONS, Operation, Parameter
from jitgemm.kernels.spec import Axes
from jitgemm.lang.core import Kernel, Vec

__all__ = [
    "Steps", "has_operands", "register_post_op", "snapshot", "steps_of", "unregister_post_op",
]  # fmt: skip

_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_FEW = 2


@dataclass(slots=True, eq=False)
class Steps:
    """An epilogue's programs, and what they read."""

    scaling: Program | None = None
    program: Program | None = None
    """Activation, traced function and post-ops as one."""
    constants: tuple[float, ...] = ()
    axes: tuple[Axes, ...] = ()
    operands: tuple[Array, ...] = ()

    def add(self, program: Program, constants: tuple[float, ...] = ()) -> None:
        """Do one thing more."""
        self.program = program if self.program is None else self.program.then(program)
        self.constants += constants

    def scale(self, program: Program) -> None:
        """Do one thing more to sums before all else."""
        self.scaling = program if self.scaling is None else self.scaling.then(program)

    def read(self, operand: tuple[Array, Axes]) -> int:
        """Read an operand; its number.

        Raises:
            ValueError: there are too many.
        """
        if len(self.operands) == len(EPILOGUE_OPERANDS):
            expected = f"at most {len(EPILOGUE_OPERANDS)} operands, a_scale and b_scale included"
            raise ValueError(message("post_ops", expected, "more"))
        self.operands, self.axes = (*self.operands, operand[0]), (*self.axes, operand[1])
        return len(self.operands) - 1


def steps_of(
    options: Options, number: Number, full: tuple[int, ...], *, narrowed: bool = False
) -> Steps:
    """What options ask of an epilogue.

    Args:
        options: the arguments of a call, as given.
        number: the result's type.
        full: shape of the result, two axes at least.
        narrowed: whether it is a requantised sum.

    Raises:
        TypeError, ValueError: an operand of another kind or shape, an unknown post-op, an epilogue
            for numbers that have none.
    """
    steps, (m, n) = Steps(), full[-2:]
    kind = _DOUBLE if number[0] is F64 else _SINGLE
    for name, item in (("a_scale", (m, 1)), ("b_scale", (1, n))):
        given = getattr(options, name)
        if given is not None:
            _refuse_other_than_reals(name, number)
            x = _apart(_numbers(name, given, kind), options.out)
            if x.shape == (item[0] * item[1],):
                x = x.reshape(item)
            steps.scale(
                binary(OPERATIONS["mul"], steps.read(_placed(name, x, (*full[:-2], *item))))
            )
    activation, constants = resolve_activation(options.activation)
    if activation is not None:
        if number[0].integral:
            constants = _whole(activation, constants, I32 if narrowed else number[0])
        else:
            _refuse_other_than_reals("activation", number)
        steps.add(activation, constants)
    if options.epilogue is not None:
        traced, more = trace(options.epilogue)
        _refuse_other_than_reals("epilogue", number)
        steps.add(traced, more)
    for i, what in enumerate(_listed(options.post_ops)):
        _refuse_other_than_reals("post_ops", number)
        _add_post_op(steps, f"post_ops[{i}]", what, (kind, full, options.out))
    used = 0 if steps.program is None else steps.program.constants
    steps.constants = steps.constants[:used]
    return steps


def _whole(program: Program, constants: tuple[float, ...], sums: ElementType) -> tuple[int, ...]:
    """The constants of an activation of integers; what lies beyond the sums is their end."""
    if not all(row.integers for row in program.rows):
        names = ", ".join(x.name for x in list(OPERATIONS.values()) if x.activation and x.integers)
        expected = f"None or one of {names}, because elements are integers"
        raise TypeError(message("activation", expected, program.name))
    if sums not in (I32, I64):
        # Other results are the last bits of sums: what those are modulo 2**bits says nothing of
        # what is less than what.
        expected = "None, because elements are neither int32 nor int64"
        raise TypeError(message("activation", expected, program.name))
    most = (1 << (sums.bits - 1)) - 1
    for x in constants:
        if math.isfinite(x) and x != int(x):
            expected = f"whole numbers for {program.name}, because elements are integers"
            raise TypeError(message("activation", expected, x))
    return tuple(int(min(max(x, -most - 1), most)) for x in constants)


def _listed(post_ops: object) -> Sequence[object]:
    if post_ops is None:
        return ()
    if not isinstance(post_ops, list | tuple):
        expected = "a list of activations and pairs (name, operand)"
        raise TypeError(message("post_ops", expected, type(post_ops).__name__))
    return post_ops


def _refuse_other_than_reals(name: str, number: Number) -> None:
    if number[1] == _FEW or number[0].integral:
        kind = "complex" if number[1] == _FEW else "integers"
        raise TypeError(message(name, f"None, because elements are {kind}", "one for reals"))


def _add_post_op(
    steps: Steps, name: str, what: object, where: tuple[np.dtype, tuple[int, ...], object]
) -> None:
    kind, full, out = where
    if not isinstance(what, tuple):
        if what is None:
            raise ValueError(message(name, "an activation or a pair (name, operand)", "None"))
        program, constants = resolve_activation(what)
        assert program is not None
        steps.add(program, constants)
        return
    if len(what) != _FEW or not isinstance(what[0], str):
        raise TypeError(message(name, "a pair (name, operand)", repr(what)[:80]))
    operation = str.__str__(what[0])
    row = OPERATIONS.get(operation)
    if row is None or not row.post_op:
        names = ", ".join(x.name for x in list(OPERATIONS.values()) if x.post_op)
        raise ValueError(message(name, f"one of {names}", repr(operation)))
    x = _apart(_numbers(name, what[1], kind), out)
    steps.add(binary(row, steps.read(_placed(name, x, full))))


def _numbers(name: str, x: object, kind: np.dtype) -> Array:
    """Real numbers of the type that the epilogue computes in, in this machine's byte order."""
    if type(x) is np.ndarray and x.dtype is kind and x.flags.c_contiguous:
        return x
    given = weakly(name, x, kind)
    number = number_of(given.dtype)
    if number is None or number[1] == _FEW:
        raise TypeError(message(name, "real numbers", given.dtype))
    # A number beyond the type is infinite, as a factor is.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(given, kind).reshape(given.shape)


def _apart(x: Array, out: object) -> Array:
    """``x``, copied if the result is written to its memory."""
    outs = out if isinstance(out, list | tuple) else (out,)
    return x.copy() if any(isinstance(y, np.ndarray) and shares(y, x) for y in outs) else x


def _placed(name: str, x: Array, wide: tuple[int, ...]) -> tuple[Array, Axes]:
    """Numbers of a shape that broadcasts to ``wide``, those of a product side by side.

    With batch axes from the first on along which they differ.
    """
    shape = (1,) * (2 - x.ndim) + x.shape
    lead, (rows, cols) = shape[:-2], shape[-2:]
    if not _fits(shape, wide):
        given = "()" if x.shape == () else str(x.shape)
        raise ValueError(message(name, f"a shape that broadcasts to {wide}", f"shape {given}"))
    first = next((i for i, count in enumerate(lead) if count != 1), len(lead))
    return x.reshape(*lead[first:], rows * cols), _AXES[rows > 1, cols > 1]


_AXES = {
    (False, False): Axes.ONE, (True, False): Axes.ROW,
    (False, True): Axes.COLUMN, (True, True): Axes.FULL,
}  # fmt: skip


def _fits(shape: tuple[int, ...], wide: tuple[int, ...]) -> bool:
    """Whether a shape broadcasts to another one."""
    pairs = zip(reversed(shape), reversed(wide), strict=False)
    return len(shape) <= len(wide) and all(x in (1, y) for x, y in pairs)


def has_operands(options: Options) -> bool:
    """Whether options have operands of an epilogue."""
    return any(x is not None for x in (options.a_scale, options.b_scale, options.post_ops))


def snapshot(options: Options) -> Options:
    """The same options with operands of the epilogue that nobody else can change."""
    if not has_operands(options):
        return options
    ops = options.post_ops
    if isinstance(ops, list | tuple):
        ops = [tuple(copy.copy(x) for x in op) if isinstance(op, tuple) else op for op in ops]
    scales = {name: copy.copy(getattr(options, name)) for name in ("a_scale", "b_scale")}
    return replace(options, post_ops=ops, **scales)


# -- from outside ----------------------------------------------------------------------------------


def register_post_op(
    name: str,
    emit: Callable[[Kernel, Vec, Vec], Vec],
    meaning: Callable[[Any, Any], Any],
    *,
    cheap: bool = True,
    doc: str = "",
) -> None:
    """Let products end with an operation of one's own that has an operand.

    Args:
        name: an identifier, under which it is asked for: ``post_ops=[(name, operand)]``.
        emit: ``emit(k, v, x)`` writes it in the kernel language, as for
            :func:`jitgemm.register_activation`: ``v`` are elements, ``x`` their numbers of the
            operand, both float32 or both float64.
        meaning: ``meaning(v, x)`` says the same on NumPy arrays; the BLAS route uses it.
        cheap: whether it is a handful of instructions, to be repeated in each register tile's code.
        doc: what it is, in a phrase.

    Raises:
        TypeError: something of another kind.
        ValueError: the name is known already as something else, or ``emit`` and ``meaning``, tried
            on a few numbers, fail, give another type or length, or do not agree.
    """
    check_identifier(name)
    for what, f in (("emit", emit), ("meaning", meaning)):
        if not callable(f):
            raise TypeError(message(what, "a function", repr(f)))
    row = Operation(name, 2, emit, meaning, cheap=cheap, post_op=True, doc=doc, builtin=False)
    for element in (F32, F64):
        try_row(replace(row, parameters=(Parameter("operand"),)), element)
    try:
        operations.register(row)
    except ValueError:
        raise ValueError(message("name", "a name that is not known yet", repr(name))) from None


def unregister_post_op(name: str) -> None:
    """Forget an operation that :func:`register_post_op` has made known.

    No other thread may multiply with it meanwhile.  Plans go on, but for those of a BLAS.

    Raises:
        ValueError: it has not been registered.
    """
    row = OPERATIONS.get(name) if isinstance(name, str) else None
    if row is None or row.builtin or not row.post_op:
        expected = "the name of a post-op that has been registered"
        raise ValueError(message("name", expected, repr(name)))
    operations.unregister(row.name)
