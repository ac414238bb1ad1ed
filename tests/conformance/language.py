"""Small kernels for tests of the language: run by machine code and interpreter, then compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jitgemm.isa.conversions import dtype_of
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import BF16, BOOL, F16, ElementType
from jitgemm.jit import compiler
from jitgemm.jit.target import available
from jitgemm.lang.core import Function, Kernel, Ptr, parameters
from jitgemm.lang.interp import Memory, run
from rows import distinct_sets

__all__ = [
    "Array", "assert_same", "compiled_form", "converted", "execute", "function", "machine_sets",
    "numbers_of", "op_function",
]  # fmt: skip

Array = np.ndarray[Any, np.dtype[Any]]
Body = Callable[..., Any]


def compiled_form(function: Function, isa: Isa) -> Callable[..., Any]:
    """Machine code of a function, called with plain numbers."""
    name = f"{function.name}__{isa.name}"
    return compiler.get(compiler.Unit(name, isa, lambda: [function])).entry(function)


def machine_sets() -> list[Any]:
    """Test parameters: one of each sets that spell all but dot products alike."""
    return [
        pytest.param(
            isa,
            id=isa.name,
            marks=pytest.mark.skipif(not available(isa), reason=f"machine without {isa.name}"),
        )
        for isa in distinct_sets()
        if not isa.interpreted
    ]


def execute(
    function: Function,
    isa: Isa,
    arrays: dict[str, Array],
    *numbers: float,
    interpreted: bool = True,
) -> dict[str, Array]:
    """Run on both backends; arguments are the arrays' addresses, then numbers.

    Arrays whose names start with ``out`` may be written; ``out`` itself may not be read before.
    Their contents must agree, NaNs by being NaN; the machine's are returned.  Without
    ``interpreted`` only the machine runs, for what is too long for anything else.
    """
    results = []
    for compiled in (
        (False, True) if interpreted else (True,)
    ):  # the interpreter explains what machine code would crash on
        memory, sides = Memory(), {name: _copy(x) for name, x in arrays.items()}
        addresses = [
            memory.add(name, x, writable=name.startswith("out"), initialised=name != "out")
            for name, x in sides.items()
        ]
        if compiled:
            compiled_form(function, isa)(*addresses, *numbers)
        else:
            run(function, memory, isa, *addresses, *numbers)
        results.append(sides)
    *checked, machine = results
    for side in checked:
        for name, x in machine.items():
            assert_same(x, side[name], name)
    return machine


def _copy(x: Array) -> Array:
    """A copy that keeps the alignment of its source: an odd address stays odd."""
    owner = np.empty(x.nbytes + 128, np.uint8)
    skip = -owner.__array_interface__["data"][0] % 64 + x.__array_interface__["data"][0] % 64
    owner[skip : skip + x.nbytes] = np.frombuffer(x.tobytes(), np.uint8)
    return owner[skip : skip + x.nbytes].view(x.dtype).reshape(x.shape)


def assert_same(got: Array, want: Array, what: str) -> None:
    """Bit for bit; any NaN equals any other."""
    number = got == got  # noqa: PLR0124 - false for NaN
    np.testing.assert_array_equal(number, want == want, err_msg=f"NaN: {what}")  # noqa: PLR0124
    assert got.dtype == want.dtype
    kind = np.dtype(f"u{got.itemsize}")
    np.testing.assert_array_equal(got[number].view(kind), want[number].view(kind), err_msg=what)


def function(name: str, declaration: str, body: Body) -> Function:
    """A function; pointers are declared with a star."""
    return Function(name, parameters(declaration), body)


def op_function(name: str, arity: int, element: ElementType, lanes: int) -> Function:
    """Apply an operation to whole arrays: ``out[i] = name(x0[i], ...)``."""

    def body(k: Kernel, out: Ptr, *rest: Any) -> None:
        *inputs, count = rest
        for i in k.range(0, count, lanes):
            at = i * element.bytes
            loaded = [k.load(p + at, element, lanes) for p in inputs]
            k.store(out + at, k.op(name, *loaded))

    params = "out* " + " ".join(f"x{i}*" for i in range(arity)) + " count"
    return function(f"op_{name}_{element}x{lanes}", params, body)


def numbers_of(element: ElementType, stored: Array) -> Array:
    """Stored numbers as NumPy knows them."""
    known = {BF16: ml_dtypes.bfloat16, F16: np.float16}
    return stored.view(known[element]) if element in known else stored


def converted(source: ElementType, target: ElementType, stored: Array) -> Array:
    """What must come out, as it is stored."""
    x = numbers_of(source, stored)
    with np.errstate(all="ignore"):
        if source.format or target.format:
            # By way of f32, from where there is one step.
            x = x.astype(np.float32)
        if target is BF16:
            return x.astype(ml_dtypes.bfloat16).view(np.uint16)
        if target is F16:
            return x.astype(np.float16).view(np.uint16)
        if target is BOOL:
            return np.asarray(x != 0).astype(np.uint8)
        return np.asarray(x.astype(dtype_of(target)))
