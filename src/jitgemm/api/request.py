"""What the options of a call ask for, with every one of them checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jitgemm.api.keywords import Options
from jitgemm.api.kinds import Number, as_type, dequantised_type, number_of, result_type
from jitgemm.api.operands import Array, check_type, factor, flag, stack_shape
from jitgemm.api.postops import Steps, has_operands, steps_of
from jitgemm.api.quantise import BOUNDS, NARROW, Requantize, zero_points
from jitgemm.errors import message
from jitgemm.kernels.spec import Scale
from jitgemm.planner.callspec import CallOptions
from jitgemm.runtime.data import Scalars
from jitgemm.runtime.memory import Workspace
from jitgemm.runtime.packed import Packed

__all__ = ["Request", "request_of"]


@dataclass(slots=True, eq=False)
class Request:
    """What the options of a call ask for, with every one of them checked."""

    scalars: Scalars
    """The data."""
    dtype: np.dtype
    """The result's type."""
    steps: Steps
    """What the epilogue does."""
    scale: Scale
    many: bool
    """There are zero points or scales per row, column or product of a stack."""
    requantize: Requantize | None
    workspace: Workspace | None
    strict: bool
    blas: bool
    """A BLAS is asked for by name."""
    bf16_dot: bool

    def decided(self, axes: int, *, beta: bool) -> CallOptions:
        """What of it decides a plan.

        Args:
            axes: batch axes of the result.
            beta: whether C is read.
        """
        scalars = self.scalars
        return CallOptions(
            scalars.alpha != 0, beta, self.steps.program,
            scalars.zero_a is not None, scalars.zero_b is not None, self.scale,
            tuple(scalars.strides(axes).items()), self.many, self.strict, self.bf16_dot,
            self.steps.scaling, self.steps.axes,
        )  # fmt: skip


def request_of(options: Options, a: Array | Packed, b: Array | Packed) -> Request:
    """What is asked for with operands of supported types.

    Raises:
        TypeError, ValueError: an option of another kind, or that does not go with the operands.
    """
    x, y = a.dtype, b.dtype
    m, n = a.shape[-2] if a.ndim > 1 else 1, b.shape[-1] if b.ndim > 1 else 1
    requantize = _requantize(options.requantize)
    scaled = options.a_scale is not None or options.b_scale is not None
    dtype, number = _result(x, y, options.out_dtype, requantize, scaled=scaled)
    element, components = number
    alpha = factor("alpha", options.alpha, components, integral=element.integral)
    beta = factor("beta", options.beta, components, integral=element.integral)
    conj_a, conj_b = flag("conj_a", options.conj_a), flag("conj_b", options.conj_b)
    if options.workspace is not None and not isinstance(options.workspace, Workspace):
        raise TypeError(message("workspace", "a Workspace", type(options.workspace).__name__))
    strict = _choice("reproducible", options.reproducible, ("default", "strict")) == 1
    blas = _choice("backend", options.backend, ("jit", "blas")) == 1
    batch = _batch(options, a, b)
    steps = steps_of(options, number, (*batch, m, n), narrowed=requantize is not None)
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
        alpha, beta, conj_a ^ turn_a, conj_b ^ turn_b, steps.constants, zero_a, zero_b, scales,
        rounding, steps.operands,
    )  # fmt: skip
    many = any(x is not None and x.size > 1 for x in (zero_a, zero_b, scales, *steps.operands))
    return Request(
        scalars, dtype, steps, scale, many, requantize, options.workspace, strict, blas, bf16_dot
    )


def _batch(options: Options, a: Array | Packed, b: Array | Packed) -> tuple[int, ...]:
    """Leading axes of a stack's result, if there are numbers that may differ along them."""
    numbers = options.a_zero_point, options.b_zero_point, options.requantize
    none = all(x is None for x in numbers) and not has_operands(options)
    if (a.ndim < 3 and b.ndim < 3) or none:
        return ()
    stack_shape(a, b)
    return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])


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
    a: np.dtype, b: np.dtype, wanted: object, requantize: Requantize | None, *, scaled: bool
) -> tuple[np.dtype, Number]:
    """The result's type, for NumPy and for the planner."""
    numbers = number_of(a), number_of(b)
    assert numbers[0] is not None
    assert numbers[1] is not None
    if 2 in (numbers[0][1], numbers[1][1]):
        check_type("b", b, a)
    if requantize is None and scaled and a in NARROW and b in NARROW:
        dtype = dequantised_type(wanted)
    elif requantize is None:
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
