"""Kernels of one's own on NumPy arrays: ``kernel`` and ``launch``."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any, overload

import numpy as np

from jitgemm.api.config import resolve_threads
from jitgemm.api.kinds import number_of, types_text
from jitgemm.api.operands import Array, in_place, overlaps_itself, plain, same_place, shares
from jitgemm.errors import message
from jitgemm.isa.types import F64
from jitgemm.jit import compiler
from jitgemm.kernels.launch import ArrayType, Constant, LaunchSpec
from jitgemm.runtime.engine import engine
from jitgemm.runtime.launch import Operand, launcher_for

__all__ = ["KernelSource", "kernel", "launch"]

Source = Callable[..., None]

_OPTIONS = ("grid", "grain", "threads", "check")
_CONSTANTS = (int, float, str, type(None))
# Beyond this many items a cursor of 64 bits might wrap.
_MOST = 1 << 60
# Threads are used unasked from this many bytes of operands on: waking one takes as long as one
# thread takes for some.
_ALONE = 1 << 18


class KernelSource:
    """A kernel of one's own: what :func:`kernel` makes of a Python function.

    Calling it is :func:`launch`.
    """

    def __init__(self, source: Source, writes: tuple[str, ...] | None) -> None:
        found = inspect.signature(source).parameters.values()
        plain_kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
        constants = [p for p in found if p.kind is inspect.Parameter.KEYWORD_ONLY]
        names = [p.name for p in found if p.kind in plain_kinds]
        if len(names) + len(constants) != len(found) or not names:
            raise TypeError(message("kernel", "a function of k, operands and indices",
                                    f"{source.__name__}{inspect.signature(source)}"))  # fmt: skip
        self.source, self.names = source, tuple(names[1:])
        self.constants = {p.name: p.default for p in constants}
        for name in (*self.names, *self.constants):
            if name in _OPTIONS:
                raise TypeError(message(name, "another name, because it is an option", "this one"))
        self.writes = ("out",) if writes is None and "out" in self.names else writes or ()
        for name in self.writes:
            if name not in self.names:
                raise ValueError(message("writes", f"names among {self.names}", repr(name)))
        functools.update_wrapper(self, source)

    def __call__(self, *values: Any, **arguments: Any) -> None:
        """Launch it: see :func:`launch`."""
        launch(self, *values, **arguments)

    def ir(self, *values: Any, grid: int | tuple[int, ...], **operands: Any) -> str:
        """The LLVM IR of a launch with such operands, as generated: see :func:`launch`."""
        return compiler.text(launcher_for(_prepare(self, values, grid, operands)[0]).unit)

    def asm(self, *values: Any, grid: int | tuple[int, ...], **operands: Any) -> str:
        """The assembly of a launch with such operands, for this machine: see :func:`launch`.

        Raises:
            ValueError: the instruction set is the interpreter, which has none.
        """
        spec = _prepare(self, values, grid, operands)[0]
        if spec.isa.interpreted:
            raise ValueError(message("JITGEMM_ISA", "a set with machine code", spec.isa.name))
        return compiler.assembly(launcher_for(spec).unit)

    def __repr__(self) -> str:
        return f"<jitgemm kernel {self.source.__qualname__}>"


@overload
def kernel(source: Source, /) -> KernelSource: ...
@overload
def kernel(*, writes: Iterable[str]) -> Callable[[Source], KernelSource]: ...


def kernel(
    source: Source | None = None, /, *, writes: Iterable[str] | None = None
) -> KernelSource | Callable[[Source], KernelSource]:
    """Make a kernel of a Python function, to be launched on arrays.

    It writes what is done for one item of a grid, in the kernel language (``docs/KERNELS.md``)::

        @jitgemm.kernel
        def axpy(k, x, out, alpha, row):
            for i, mask, _ in out[row].strips():
                y = out[row].load(i, mask) + alpha * x[row].load(i, mask)
                out[row].store(i, y, mask)

        axpy(x, y, 0.5, grid=len(x))

    Args:
        source: ``source(k, *operands, *indices, *, constants)``.  The last parameters are the
            indices of the item, one per axis of the grid; parameters that are keyword-only are
            known while generating.
        writes: names of the operands that are written; by default ``out``, if there is one.

    Raises:
        TypeError: parameters that no launch can give.
        ValueError: ``writes`` names no operand.
    """

    def make(function: Source) -> KernelSource:
        if not callable(function):
            raise TypeError(message("kernel", "a function", type(function).__name__))
        return KernelSource(function, None if writes is None else tuple(writes))

    return make if source is None else make(source)


def launch(
    source: KernelSource,
    /,
    *values: Any,
    grid: int | tuple[int, ...],
    grain: int | None = None,
    threads: int | None = None,
    check: bool = False,
    **operands: Any,
) -> None:
    """Run a kernel once for every item of a grid.

    Code is generated once for operands of the same types: element type, number of axes, whether
    elements of the last axis are side by side.  Items run in any order, and at the same time.

    Args:
        source: made by :func:`kernel`.
        *values: operands by place; others by name.
        grid: how many items; several numbers for several indices, the last one running fastest.
        grain: items a thread takes at a time; by default as many as share the work evenly.
        threads: at most this many threads; by default as in :func:`~jitgemm.gemm`, and one if
            operands are small.
        check: run in the checking interpreter, slowly: it refuses every access outside an operand,
            and every write to one that is no output.  So do all launches with
            ``JITGEMM_ISA=interpreter``.
        **operands: arrays with any strides; integers, which are 64-bit ones in the kernel; floats,
            which are float32 if all arrays of floats are, or narrower, and float64 else (those of
            NumPy keep their type); and constants.

    Raises:
        TypeError: an operand that is missing, unknown, or of another type.
        ValueError: an output that is read-only, overlaps itself, or shares memory with another
            operand (an input may be the very same elements); a grid or grain out of range.
        LanguageError: the kernel broke a rule of the language.
        JitUnavailableError: no code can be generated in this process.
    """
    if not isinstance(source, KernelSource):
        raise TypeError(message("kernel", "a kernel made by jitgemm.kernel", type(source).__name__))
    spec, bound, lengths = _prepare(source, values, grid, operands)
    if grain is not None:
        grain = _whole("grain", grain, 1)
    if not isinstance(check, bool):
        raise TypeError(message("check", "True or False", type(check).__name__))
    small = sum(x.nbytes for x in bound.values() if isinstance(x, np.ndarray)) < _ALONE
    wanted = resolve_threads(threads) if threads is not None or not small else 1
    if math.prod(lengths) == 0:
        return
    checked = check or spec.isa.interpreted
    launcher_for(spec).run(bound, lengths, grain, wanted, checked=checked)


def _prepare(
    source: KernelSource, values: tuple[Any, ...], grid: object, operands: dict[str, Any]
) -> tuple[LaunchSpec, dict[str, Operand], tuple[int, ...]]:
    """What code a launch needs, its operands, and the lengths of its grid."""
    lengths = _grid(grid)
    for name, value in zip(source.names, values, strict=False):
        if name in operands:
            raise TypeError(message(name, "one operand", "two, by place and by name"))
        operands[name] = value
    if len(values) > len(source.names):
        raise TypeError(message("launch", f"at most {len(source.names)} operands", len(values)))
    names = _operand_names(source, lengths, operands)
    bound, kinds = _bind(source, {name: operands[name] for name in names})
    constants = tuple(
        _constant(name, operands.get(name, default)) for name, default in source.constants.items()
    )
    return (
        LaunchSpec(
            source.source.__name__, source.source, tuple(kinds.items()), len(lengths), constants,
            engine().isa,
        ),
        bound,
        lengths,
    )  # fmt: skip


def _whole(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(message(name, "an int", type(value).__name__))
    number = int(value.__index__())
    if not least <= number < _MOST:
        raise ValueError(message(name, f"at least {least} and below 2**60", number))
    return number


def _grid(grid: object) -> tuple[int, ...]:
    axes = grid if isinstance(grid, tuple) else (grid,)
    if not axes:
        raise ValueError(message("grid", "an int, or a tuple of some", "an empty tuple"))
    lengths = tuple(_whole("grid", x, 0) for x in axes)
    if math.prod(lengths) >= _MOST:
        raise ValueError(message("grid", "less than 2**60 items", lengths))
    return lengths


def _operand_names(
    source: KernelSource, grid: tuple[int, ...], given: dict[str, Any]
) -> tuple[str, ...]:
    """The operands a launch must give, and does."""
    if len(source.names) < len(grid):
        expected = f"at most {len(source.names)} axes, the indices of {source.source.__name__}"
        raise ValueError(message("grid", expected, grid))
    names = source.names[: len(source.names) - len(grid)]
    for name in given:
        if name not in names and name not in source.constants:
            known = ", ".join((*names, *source.constants)) or "none"
            raise TypeError(message(name, f"one of the kernel's operands ({known})", "this name"))
    for name in names:
        if name not in given:
            indices = ", ".join(source.names[len(names) :])
            expected = f"an array or a number (the grid gives {indices})"
            raise TypeError(message(name, expected, "nothing"))
    for name, default in source.constants.items():
        if default is inspect.Parameter.empty and name not in given:
            raise TypeError(message(name, "a constant", "nothing"))
    return names


def _constant(name: str, value: object) -> Constant:
    if not isinstance(value, _CONSTANTS):
        raise TypeError(message(name, "an int, a float, a bool, a str or None, as a constant",
                                type(value).__name__))  # fmt: skip
    return Constant.of(name, value)


def _bind(
    source: KernelSource, given: dict[str, Any]
) -> tuple[dict[str, Operand], dict[str, ArrayType | str]]:
    """Operands as arrays and numbers, and their types, both in the order of parameters."""
    values: dict[str, Operand] = {}
    kinds: dict[str, ArrayType | str] = {}
    weak = []
    for name, x in given.items():
        written = name in source.writes
        if isinstance(x, (bool, np.bool_)):
            raise TypeError(message(name, "an array or a number", f"{x} (a constant?)"))
        if isinstance(x, (int, float, np.number)) and not written:
            values[name], kinds[name] = _scalar(name, x)
            if type(x) is float:
                weak.append(name)
            continue
        array = in_place(name, x) if written else plain(name, x)
        values[name], kinds[name] = array, _array_type(name, array, written=written)
    arrays = [x for x in kinds.values() if isinstance(x, ArrayType)]
    floats = [x.element for x in arrays if not x.element.integral]
    if floats and F64 not in floats:
        kinds |= dict.fromkeys(weak, "f32")
    _check_overlap(source, {n: x for n, x in values.items() if isinstance(x, np.ndarray)})
    return values, kinds


def _scalar(name: str, x: Any) -> tuple[float, str]:
    if isinstance(x, (int, np.integer)):
        number = int(x)
        if not -(1 << 63) <= number < 1 << 63:
            raise ValueError(message(name, "an integer of 64 bits", number))
        return number, "int"
    if isinstance(x, (float, np.float32)):
        return float(x), "f32" if isinstance(x, np.float32) else "f64"
    raise TypeError(message(name, "an int, a float, a float32 or a float64", type(x).__name__))


def _array_type(name: str, x: Array, *, written: bool) -> ArrayType:
    """What the code depends on in an array; an output must be one."""
    found = number_of(x.dtype)
    if found is None or found[1] != 1:
        raise TypeError(message(name, types_text().replace(" or complex", ""), x.dtype))
    if not x.dtype.isnative:
        raise TypeError(message(name, "elements in this machine's byte order", x.dtype))
    if written:
        if not x.flags.writeable:
            raise ValueError(message(name, "a writable array", "a read-only one"))
        if overlaps_itself(x):
            raise ValueError(message(name, "elements of its own memory", "elements that overlap"))
    dense = x.ndim > 0 and (x.strides[-1] == x.itemsize or x.shape[-1] <= 1)
    return ArrayType(found[0], x.ndim, dense, written)


def _check_overlap(source: KernelSource, arrays: dict[str, Array]) -> None:
    for out in source.writes:
        for name, x in arrays.items():
            if name == out or out not in arrays or not shares(arrays[out], x):
                continue
            # An item that reads only what it writes may work in place: nobody else can tell.
            if name in source.writes or not same_place(arrays[out], x):
                raise ValueError(message(out, "memory of its own", f"memory shared with {name}"))
