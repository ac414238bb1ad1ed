"""NumPy's products: ``matmul``, ``matvec``, ``vecmat`` and ``vecdot``, with NumPy's rules.

A call without keywords goes into generated code if its operands are small, contiguous and of one
native type, else through the entries of ``functions`` and ``batched``.  Whatever those refuse (an
``out`` of another type or shape) and every call with NumPy's keywords is settled here in full: what
NumPy's rules say of types it is asked on stand-ins of one element, so that its errors are its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import DTypeLike

from jitgemm.api.batched import stack_shape, stacked
from jitgemm.api.config import resolve_threads
from jitgemm.api.functions import _PLAIN, _gemm
from jitgemm.api.kinds import NUMPY, TYPES, number_of, result_type
from jitgemm.api.operands import Array, check_output, describe, misplaced, overlaps_itself
from jitgemm.errors import message
from jitgemm.isa.types import BF16, F32, F64, ElementType
from jitgemm.jit import compiler
from jitgemm.kernels.registry import columns_tile, tile_for
from jitgemm.kernels.spec import BSource, Epilogue, GemmSpec
from jitgemm.runtime import numpy_abi
from jitgemm.runtime.driver import scalar_slot
from jitgemm.runtime.engine import engine, record_array, usable
from jitgemm.runtime.entry_code import SMALL
from jitgemm.runtime.packed import Packed, PackedLhs, PackedRhs, element_dtype

__all__ = ["NumpyKeywords", "covers", "matmul", "matvec", "vecdot", "vecmat"]

# Up to this size a product needs no plan: one chunk, both operands read in place.  At 64^3 the work
# (2 us) begins to pay for planning.
_SMALL_LIMIT = 64
# Elements of all rows of a small dot product: far fewer operations than those for which others
# release the interpreter lock.
_DOT_LIMIT = 1 << 14
# Multiplications of integers up to which NumPy's matmul ends before an entry is found (0.75 us at
# 4^3, 1 to 4 us at 8^3 by type, 8 us at 16^3, against 2.3 us; Zen 5, 2026-11-30).
_FEW = 512

_NAMES = ("x1", "x2")
_CONJUGATED = (*_PLAIN[:3], True, *_PLAIN[4:])


class NumpyKeywords(TypedDict, total=False):
    """Keyword arguments that NumPy's products have besides ``out``, with NumPy's meaning."""

    axes: list[Any]
    axis: int
    keepdims: bool
    casting: Literal["no", "equiv", "safe", "same_kind", "unsafe"]
    order: Literal["K", "A", "C", "F"]
    dtype: DTypeLike
    subok: bool
    signature: str | tuple[Any, ...]
    sig: str | tuple[Any, ...]


_PLACES = ("axes", "axis", "keepdims")
_TYPES = ("dtype", "signature", "sig")
_RULES = ("casting", "order", "subok", *_TYPES)
"""What NumPy is asked about."""


def covers(x1: Array, x2: Array) -> bool:
    """Whether there is a kernel for this product."""
    left, right = number_of(x1.dtype), number_of(x2.dtype)
    if left is None or right is None:
        return False
    if 2 in (left[1], right[1]):
        return left == right
    return True


def _has_say(x: object) -> bool:
    """Whether NumPy asks ``x`` what becomes of a product: a subclass, or a type with a protocol."""
    kind = type(x)
    if kind is np.ndarray or x is None or kind is np.memmap or issubclass(kind, np.generic):
        return False
    return hasattr(kind, "__array_ufunc__") or hasattr(kind, "__array_wrap__")


def _multiply(left: Any, right: Any, out: Any, count: int, *, conj: bool = False) -> Any:
    """``left @ right`` by the kernels."""
    options = _CONJUGATED if conj else _PLAIN
    if left.ndim == 2 and right.ndim == 2:
        return _gemm(left, right, out, (None, None), options, count)
    return stacked(left, right, out, (None, None), options, count, _NAMES)


def _only(out: object) -> Any:
    """``out`` itself, if it is a tuple of one.

    Raises:
        ValueError: a tuple of another length.
    """
    if not isinstance(out, tuple):
        return out
    if len(out) != 1:
        raise ValueError(message("out", "an array or a tuple of one", f"one of {len(out)}"))
    return out[0]


def _cast(x: Array, dtype: np.dtype) -> Array:
    """``x`` in another type, quietly; what is broadcast stays broadcast (contract 15)."""
    if x.dtype == dtype:
        return x
    if x.dtype.kind == "c" and dtype.kind in "iuf":
        # NumPy has warned of this when it was asked.
        x = x.real
    once = x[tuple(slice(0, 1) if s == 0 else slice(None) for s in x.strides)]
    return np.broadcast_to(once.astype(dtype), x.shape)


@dataclass(frozen=True, slots=True)
class _Loop:
    """In what a product is computed."""

    dtype: np.dtype
    """The result's type, before it is cast to that of ``out``."""
    natural: bool
    """The operands' own types decide; otherwise operands are cast to ``dtype``."""
    ours: bool
    """There is a kernel."""


class _Places:
    """Where the axes of each operand are: those of the stack, and those of one product."""

    def __init__(
        self, cores: tuple[int, int, int], keywords: dict[str, Any], *, omitted: bool
    ) -> None:
        self.cores = cores
        self._items: list[Any] = []
        self._argument = "axes"
        if "axis" in keywords:
            self._items = self._of_axis(keywords)
        elif "axes" in keywords:
            self._items = self._of_axes(keywords["axes"], omitted=omitted)

    def _of_axis(self, keywords: dict[str, Any]) -> list[Any]:
        self._argument = "axis"
        if "axes" in keywords:
            raise TypeError(message("axis", "no such argument beside axes", "both"))
        axis = (operator.index(keywords["axis"]),)
        return [axis, axis, axis[: self.cores[2]]]

    @staticmethod
    def _of_axes(axes: object, *, omitted: bool) -> list[Any]:
        if not isinstance(axes, list):
            raise TypeError(message("axes", "a list", type(axes).__name__))
        if len(axes) == 2 and omitted:
            return axes
        if len(axes) != 3:
            raise ValueError(message("axes", "an entry for x1, x2 and the result", len(axes)))
        return axes

    def of(self, operand: int, ndim: int) -> tuple[int, ...]:
        """The axes of one product in an operand (2: the result) of ``ndim`` dimensions.

        Raises:
            TypeError, ValueError, AxisError: as NumPy.
        """
        core = self.cores[operand]
        named = operand < len(self._items)
        item: Any = self._items[operand] if named else range(-core, 0)
        whose = (*_NAMES, "the result")[operand]
        if not isinstance(item, (tuple, range)):
            if core != 1:
                operator.index(item)
                raise np.exceptions.AxisError(
                    message(self._argument, f"a tuple of {core} axes of {whose}", repr(item))
                )
            item = (item,)
        if len(item) != core:
            expected = f"{core} axes of {whose}"
            raise np.exceptions.AxisError(message(self._argument, expected, repr(item)))
        found = []
        for x in map(operator.index, item):
            if not -ndim <= x < ndim:
                raise np.exceptions.AxisError(x, ndim, f"jitgemm: {self._argument}: {whose}")
            found.append(x % ndim)
        if len(set(found)) < core:
            expected = f"different axes of {whose}"
            raise ValueError(message(self._argument, expected, repr(tuple(item))))
        return tuple(found)

    def order(self, operand: int, ndim: int) -> list[int]:
        """All axes of an operand, those of one product last."""
        core = self.of(operand, ndim)
        return [i for i in range(ndim) if i not in core] + list(core)


class _Function:
    """One of the four: what its operands are, and its generated entry, made at the first call."""

    def __init__(self, name: str, cores: tuple[int, int, int], *, conj: bool = False) -> None:
        self.name, self._cores, self.conj = name, cores, conj
        # ``axis`` and ``keepdims`` are for products of vectors.
        self._keywords = ("axes", *_RULES) if cores[2] else (*_PLACES, *_RULES)
        self._table: Any = None
        # Its address is in the table: it must live as long.
        self._slow = self.slow
        self.call: Callable[[Any, Any, Any, Any], Any] = self._first

    # -- the generated entry ----------------------------------------------------------------------

    def _first(self, x1: Any, x2: Any, out: Any, threads: Any) -> Any:
        self.call = self._build() if usable() and engine().native else self._slow
        return self.call(x1, x2, out, threads)

    def _build(self) -> Callable[[Any, Any, Any, Any], Any]:
        e = engine()
        table = record_array(SMALL.slots)
        tile = tile_for(F32, e.isa)
        dots = self._cores[2] == 0
        values: dict[str, int] = {
            "array_type": id(np.ndarray),
            "slow": id(self._slow),
            "none": id(None),
            "new_from_descr": numpy_abi.new_from_descr(),
            "new_scalar": numpy_abi.new_scalar(),
            "limit": _SMALL_LIMIT,
            "depth_limit": _SMALL_LIMIT,
            "dot_limit": _DOT_LIMIT,
            "dots": int(dots),
            "mr": tile.mr,
        }
        for name, core in zip("ab", self._cores, strict=False):
            # ``matmul`` takes vectors too, and ``vecdot`` rows of them.
            values[f"{name}_least"] = 1 if self.name == "matmul" else core
            values[f"{name}_most"] = 2 if dots else core
        for i, element in enumerate(_SMALL_TYPES):
            spec = GemmSpec(element, e.isa, tile_for(element, e.isa), BSource.INPLACE, Epilogue())
            values[f"descr_{i}"] = id(element_dtype(element))
            values[f"size_{i}"] = element.bytes
            values[f"panel_{i}"] = spec.panel_row
            values[f"one_{i}"] = scalar_slot(1.0, element.bytes)
            compiled = compiler.get(compiler.gemm_unit(spec))
            values[f"nest_{i}"] = compiled.addresses[f"{spec.symbol}_serial"]
            values[f"dot_{i}"] = compiled.addresses[f"{spec.symbol}_dot"]
        for rows in range(1, tile.mr + 1):
            values[f"group_{rows}"] = tile.group_for(rows)
        for name, value in values.items():
            table[SMALL.slot(name)] = value
        self._table = table
        return e.builtin("jitgemm_call_small", table)

    def _learn_columns(self, left: Array, right: Array) -> None:
        """Let small matrices times one column enter, after the first that came this way.

        That one has compiled the kernel.
        """
        column = right.shape in ((left.shape[-1],), (left.shape[-1], 1))
        if self._table is None or left.ndim != 2 or not column or max(left.shape) > _SMALL_LIMIT:
            return
        isa = engine().isa
        for i, element in enumerate(_SMALL_TYPES):
            nest = SMALL.slot(f"column_nest_{i}")
            if element_dtype(element) != left.dtype or self._table[nest]:
                continue
            tile = columns_tile(tile_for(element, isa), isa, 1)
            spec = GemmSpec(element, isa, tile, BSource.COLUMNS, Epilogue())
            compiled = compiler.get(compiler.gemm_unit(spec))
            self._table[SMALL.slot(f"column_nr_{i}")] = spec.nr
            # Last: from here on it is used.
            self._table[nest] = compiled.addresses[f"{spec.symbol}_serial"]

    # -- calls without keywords -------------------------------------------------------------------

    def slow(self, x1: Any, x2: Any, out: Any = None, threads: object = None) -> Any:
        """Everything the generated entry does not do: planning, stacks, delegation."""
        if isinstance(x1, Packed) or isinstance(x2, Packed):
            return self._prepacked(x1, x2, _only(out), threads)
        if isinstance(out, tuple) or out is ... or _has_say(x1) or _has_say(x2) or _has_say(out):
            return self.in_full(x1, x2, out, threads, {})
        left, right = np.asarray(x1), np.asarray(x2)
        if not covers(left, right):
            return self.in_full(x1, x2, out, threads, {})
        count = resolve_threads(threads)
        if out is None and self._is_tiny(left, right):
            # Integers have one result: where NumPy's loops end sooner they may compute it.
            return getattr(np, self.name)(left, right)
        result = NotImplemented
        if self.name == "matmul" or (left.ndim >= self._cores[0] and right.ndim >= self._cores[1]):
            # NumPy may take an ``out`` that is refused; if not, it is said why below.
            with suppress(IndexError, TypeError, ValueError):
                result = self._product(left, right, out, count)
        if result is NotImplemented:
            return self.in_full(left, right, out, threads, {})
        if self._cores[0] == 2 and left.dtype == right.dtype:
            self._learn_columns(left, right)
        return result

    def _is_tiny(self, left: Array, right: Array) -> bool:
        """Whether a product is one of few integers."""
        if not (
            left.dtype.kind in "iub" and right.dtype.kind in "iub" and left.ndim and right.ndim
        ):
            return False
        few = left.size * right.shape[-1] <= _FEW and left.shape[-1] == right.shape[0]
        return few and left.ndim == right.ndim == 2 and self.name == "matmul"

    def _as_matrices(self, left: Any, right: Any) -> tuple[Any, Any, tuple[Any, ...]]:
        """Operands of vectors as those of ``matmul``, and what its result has more than ours.

        Returns:
            The operands, and an index that gives ``out`` the axes of matmul's result.
        """
        rows: tuple[Any, ...] = ()
        cols: tuple[Any, ...] = ()
        if self._cores[0] == 1 and left.ndim > 1:
            left, rows = left[..., np.newaxis, :], (np.newaxis,)
        if self._cores[1] == 1 and right.ndim > 1:
            right, cols = right[..., np.newaxis], (np.newaxis,)
        elif rows and self._cores[1] == 2:
            cols = (slice(None),)
        return left, right, (..., *rows, *cols) if rows or cols else ()

    def _product(self, left: Any, right: Any, out: Any, count: int, *, ours: bool = True) -> Any:
        """The product of operands whose axes are in their places, by our kernels or NumPy's."""
        left, right, place = self._as_matrices(left, right)
        target = out
        if out is not None and place:
            if not isinstance(out, np.ndarray):
                raise TypeError(message("out", "a numpy array", type(out).__name__))
            target = out[place]
        if ours:
            conj = self.conj and left.dtype.kind == "c"
            result = _multiply(left, right, target, count, conj=conj)
        else:
            left = np.conjugate(left) if self.conj and left.dtype.kind in "cO" else left
            result = np.matmul(left, right, out=target)
        if out is not None:
            return out
        if place:
            result = result[tuple(0 if x is np.newaxis else x for x in place)]
        return result if getattr(result, "ndim", 0) else result[()]

    def _prepacked(self, x1: Any, x2: Any, out: Any, threads: object) -> Any:
        """A product with a handle: on its own side, and where this function takes a matrix."""
        left, right = (x if isinstance(x, Packed) else np.asarray(x) for x in (x1, x2))
        sides = zip(_NAMES, (left, right), (PackedLhs, PackedRhs), self._cores, strict=False)
        for name, x, kind, core in sides:
            if isinstance(x, Packed) and (core == 1 or not isinstance(x, kind)):
                raise TypeError(misplaced(name, x, side=core == 2))
            if not isinstance(x, Packed) and number_of(x.dtype) is None:
                raise TypeError(message(name, TYPES, x.dtype))
        if isinstance(left, Packed) and isinstance(right, Packed):
            expected = "an array, because x1 is prepacked"
            raise TypeError(message("x2", expected, f"a {type(right).__name__}"))
        self._check_dimensions(left, right)
        shape = self._check_shapes(left, right)
        if out is not None:
            check_output("out", out, shape, result_type(left.dtype, right.dtype, NUMPY))
        return self._product(left, right, out, resolve_threads(threads))

    # -- calls with keywords ----------------------------------------------------------------------

    def in_full(self, x1: Any, x2: Any, out: Any, threads: object, keywords: dict[str, Any]) -> Any:
        """A call with any of NumPy's keywords, and any ``out`` that NumPy takes."""
        out = _only(out)
        for name in keywords:
            if name not in self._keywords:
                raise TypeError(message(name, f"no such argument of {self.name}", "one"))
        for name, x in zip(_NAMES, (x1, x2), strict=True):
            if isinstance(x, Packed) and keywords:
                expected = f"an array, because of the argument {next(iter(keywords))}"
                raise TypeError(message(name, expected, f"a {type(x).__name__}"))
        if isinstance(x1, Packed) or isinstance(x2, Packed):
            return self._prepacked(x1, x2, out, threads)
        ufunc = getattr(np, self.name, None)
        asked = any(map(_has_say, (x1, x2, out)))
        if asked and ufunc is not None:
            return ufunc(x1, x2, out=out, **keywords)
        convert = np.asanyarray if asked else np.asarray
        left, right = convert(x1), convert(x2)
        # With ``...`` NumPy's results are arrays, never scalars.
        array, out = out is ..., None if out is ... else out
        if out is not None and not isinstance(out, np.ndarray):
            raise TypeError(message("out", "a numpy array", type(out).__name__))
        loop = self._loop(left, right, out, keywords)
        if asked or not loop.ours:
            if ufunc is not None:
                result = ufunc(x1, x2, out=out, **keywords)
                return np.asanyarray(result) if array else result
            loop = replace(loop, ours=False)
        result = self._settled((left, right), out, loop, keywords, resolve_threads(threads))
        return np.asanyarray(result) if array else result

    def _settled(
        self,
        operands: tuple[Array, Array],
        out: Array | None,
        loop: _Loop,
        keywords: dict[str, Any],
        count: int,
    ) -> Any:
        """A call whose types are settled: axes into their places, the result out of its own."""
        cores = self._count_axes(operands, keywords)
        places = _Places(cores, keywords, omitted=self._cores[2] == 0)
        left, right = (x.transpose(places.order(i, x.ndim)) for i, x in enumerate(operands))
        shape = self._check_shapes(left, right)
        if not loop.natural:
            left, right = _cast(left, loop.dtype), _cast(right, loop.dtype)
        if out is None and not keywords.keys() & {"order", *_PLACES}:
            return self._product(left, right, None, count, ours=loop.ours)
        keeps = bool(keywords.get("keepdims", False))
        full = (*shape, 1) if keeps else shape
        result = out
        if result is None:
            order = keywords.get("order") or "K"
            result = _new_result(operands, places, full, loop.dtype, order)
        target = result
        if result.ndim >= cores[2]:
            target = result.transpose(places.order(2, result.ndim))
        elif self.name == "matmul" and "axes" not in keywords:
            # The rows of such a result are those of a stack, of which there may be one.
            target = result[(np.newaxis,) * (cores[2] - result.ndim)]
        _check_target(target, full, cores[2])
        self._write((left, right), target[..., 0] if keeps else target, loop, count)
        return result if out is not None or result.ndim else result[()]

    def _count_axes(
        self, operands: tuple[Array, Array], keywords: dict[str, Any]
    ) -> tuple[int, int, int]:
        """How many axes of one product the operands and the result have.

        Raises:
            TypeError: ``keepdims`` is no truth value.
            ValueError: an operand lacks axes.
        """
        keeps = keywords.get("keepdims", False)
        if not isinstance(keeps, bool):
            raise TypeError(message("keepdims", "True or False", type(keeps).__name__))
        self._check_dimensions(*operands)
        first, second, result = self._cores
        if self.name == "matmul":
            first, second = (min(2, x.ndim) for x in operands)
            result = first + second - 2
        return first, second, result + keeps

    def _loop(self, left: Array, right: Array, out: Any, keywords: dict[str, Any]) -> _Loop:
        """The type that NumPy computes in.

        Raises:
            TypeError, ValueError: NumPy's own, about types, casting, order and the like.
        """
        natural = all(keywords.get(x) is None for x in _TYPES)
        ufunc: Any = getattr(np, self.name, np.matmul)
        # Without a ufunc of that name its rules are those of ``matmul``.
        cores = (2, 2, 2) if ufunc is np.matmul else self._cores
        rules = {x: keywords[x] for x in _RULES if x in keywords}
        # NumPy has no loop for bfloat16.
        narrow = _is_bfloat16(left) or _is_bfloat16(right)
        types = [np.dtype(np.float32) if _is_bfloat16(x) else x.dtype for x in (left, right)]
        # Of a stack: the result is never a scalar, which may have no dtype.
        stand_ins = [np.zeros((1,) * (n + 1), x) for n, x in zip(cores, types, strict=False)]
        dtype: np.dtype = ufunc(*stand_ins, **rules).dtype
        ours = number_of(dtype) is not None
        if natural:
            ours = covers(left, right)
            dtype = result_type(left.dtype, right.dtype, NUMPY) if ours else dtype
        if out is not None and natural and narrow:
            casting = keywords.get("casting", "same_kind")
            same = number_of(out.dtype) == number_of(dtype)
            if not (same or np.can_cast(dtype, out.dtype, casting)):
                raise TypeError(message("out", f"a type that {dtype} is cast to", out.dtype))
        elif out is not None:
            ufunc(*stand_ins, out=np.zeros((1,) * (cores[2] + 1), out.dtype), **rules)
        return _Loop(dtype, natural, ours)

    def _check_dimensions(self, left: Any, right: Any) -> None:
        """Refuse operands that lack axes of one product.

        Raises:
            ValueError: one does.
        """
        for name, x, core in zip(_NAMES, (left, right), self._cores, strict=False):
            least = 1 if self.name == "matmul" else core
            if x.ndim < least:
                expected = f"at least {least} dimension{'s' * (least > 1)}"
                got = f"shape {tuple(x.shape)}" if x.ndim else "a scalar"
                raise ValueError(message(name, expected, got))

    def _check_shapes(self, left: Any, right: Any) -> tuple[int, ...]:
        """The shape of the result of operands whose axes are in their places.

        Raises:
            ValueError: they do not fit.
        """
        if self.name == "matmul":
            return stack_shape(left, right, _NAMES)
        first, second = self._cores[:2]
        k, depth = left.shape[-1], right.shape[-second]
        if k != depth:
            what = "rows" if second == 2 else "numbers"
            expected = f"{k} {what}, because x1 has shape {tuple(left.shape)}"
            raise ValueError(message("x2", expected, describe(right)))
        try:
            batch = np.broadcast_shapes(left.shape[:-first], right.shape[:-second])
        except ValueError:
            expected = f"leading axes that broadcast with {tuple(left.shape)}"
            raise ValueError(message("x2", expected, f"shape {tuple(right.shape)}")) from None
        rows = left.shape[-2:-1] if first == 2 else ()
        cols = right.shape[-1:] if second == 2 else ()
        return (*batch, *rows, *cols)

    def _write(self, operands: tuple[Array, Array], target: Array, loop: _Loop, count: int) -> None:
        """Compute and put it where it belongs, in the type it has there."""
        plain = loop.ours and number_of(target.dtype) == number_of(loop.dtype)
        left, right = operands
        if plain and target.shape == self._check_shapes(left, right):
            self._product(left, right, target, count)
            return
        result = np.asarray(self._product(left, right, None, count, ours=loop.ours))
        if result.dtype.kind == "c" and target.dtype.kind in "iuf":
            result = result.real
        np.copyto(target, result, casting="unsafe")


def _check_target(target: Array, shape: tuple[int, ...], core: int) -> None:
    """Whether a result of ``shape`` can be written, broadcast along leading axes.

    Raises:
        ValueError: it cannot.
    """
    stack, own = shape[: len(shape) - core], target.shape[: max(0, target.ndim - core)]
    while len(stack) > len(own) and stack[0] == 1:
        stack = stack[1:]
    try:
        fits = target.ndim >= core and np.broadcast_shapes(stack, own) == own
    except ValueError:
        fits = False
    if not fits or target.shape[len(own) :] != shape[len(shape) - core :]:
        expected = f"shape {shape}, or one to which it is broadcast along leading axes"
        raise ValueError(message("out", expected, f"the non-broadcastable {target.shape}"))
    if not target.flags.writeable:
        raise ValueError(message("out", "a writable array", "a read-only one"))
    if overlaps_itself(target):
        raise ValueError(message("out", "elements of its own memory", "elements that overlap"))


def _is_bfloat16(x: Array) -> bool:
    number = number_of(x.dtype)
    return number is not None and number[0] is BF16


def _new_result(
    operands: tuple[Array, Array],
    places: _Places,
    shape: tuple[int, ...],
    dtype: np.dtype,
    order: Any,
) -> Array:
    """A new result whose axes lie in memory as those of NumPy's would.

    NumPy's iterator decides: it walks the axes of the stack, then those of one product, which the
    operands do not have.
    """
    core = places.cores[2]
    stack = len(shape) - core
    axes = []
    for i, x in enumerate(operands):
        own = places.order(i, x.ndim)[: x.ndim - places.cores[i]]
        axes.append([-1] * (stack - len(own)) + own + [-1] * core)
    axes.append(places.order(2, len(shape)))
    iterator: Any = np.nditer(
        [*operands, None],
        flags=["zerosize_ok", "refs_ok"],
        op_flags=[["readonly"], ["readonly"], ["writeonly", "allocate"]],
        op_dtypes=[None, None, dtype],
        order=order,
        casting="unsafe",
        op_axes=axes,
        itershape=shape,
    )
    result: Array = iterator.operands[2]
    return result


_SMALL_TYPES: tuple[ElementType, ...] = (F32, F64)
_MATMUL = _Function("matmul", (2, 2, 2))
_MATVEC = _Function("matvec", (2, 1, 1))
_VECMAT = _Function("vecmat", (1, 2, 1), conj=True)
_VECDOT = _Function("vecdot", (1, 1, 0), conj=True)


def matmul(
    x1: object,
    x2: object,
    /,
    out: Any = None,
    *,
    threads: int | None = None,
    **numpy_keywords: Unpack[NumpyKeywords],
) -> Any:
    """``x1 @ x2`` with NumPy's rules: vectors, matrices, stacks that broadcast.

    Boolean, integer and float types run here in every pair, and two operands of one complex type;
    others are passed on to :func:`numpy.matmul`, and so are operands that have a say in the result:
    subclasses of arrays (but not :class:`numpy.memmap`), objects with ``__array_ufunc__`` or
    ``__array_wrap__``.  Integers wrap as NumPy's do.

    Args:
        x1: ``(..., m, k)`` or ``(k,)``, an array of one or more dimensions; or a handle from
            :func:`prepack_lhs`.
        x2: ``(..., k, n)`` or ``(k,)``, an array of one or more dimensions; or a handle from
            :func:`prepack_rhs`.
        out: array for the result, or a tuple of one: of its shape or one that has more leading
            axes, of its type or one that ``casting`` allows.  If it shares memory with an operand
            the result is computed aside and copied.
        threads: at most this many threads.
        **numpy_keywords: those of :func:`numpy.matmul`, with its meaning: ``casting``, ``order``,
            ``dtype``, ``subok``, ``axes``, ``signature`` (or ``sig``).  Not for handles.

    Returns:
        ``out``, a new array (C-contiguous if no ``order`` is given), or a scalar for two vectors.

    Raises:
        ValueError: shapes that do not fit, or an ``out`` that cannot hold the result.
        TypeError: an ``out`` of a type that the result is not cast to; types, or a handle, for
            which there is no product; what NumPy refuses of its keywords.
        AxisError: ``axes`` that are not there.
        MemoryError, IsaError: as :func:`gemm`.
    """
    if numpy_keywords:
        return _MATMUL.in_full(x1, x2, out, threads, {**numpy_keywords})
    return _MATMUL.call(x1, x2, out, threads)


def matvec(
    x1: object,
    x2: object,
    /,
    out: Any = None,
    *,
    threads: int | None = None,
    **numpy_keywords: Unpack[NumpyKeywords],
) -> Any:
    """Matrices times vectors, as :func:`numpy.matvec` of NumPy 2.2; with any NumPy.

    The same bits as :func:`matmul` with each vector as a matrix of one column.

    Args:
        x1: ``(..., m, n)``; or a handle from :func:`prepack_lhs`.
        x2: ``(..., n)``; leading axes broadcast.
        out: as for :func:`matmul`.
        threads: at most this many threads.
        **numpy_keywords: as for :func:`matmul`.

    Returns:
        ``out``, or a new array ``(..., m)``.

    Raises:
        ValueError, TypeError, AxisError, MemoryError, IsaError: as :func:`matmul`.
    """
    if numpy_keywords:
        return _MATVEC.in_full(x1, x2, out, threads, {**numpy_keywords})
    return _MATVEC.call(x1, x2, out, threads)


def vecmat(
    x1: object,
    x2: object,
    /,
    out: Any = None,
    *,
    threads: int | None = None,
    **numpy_keywords: Unpack[NumpyKeywords],
) -> Any:
    """Conjugates of vectors times matrices, as :func:`numpy.vecmat` of NumPy 2.2; with any NumPy.

    The same bits as :func:`matmul` with the conjugate of each vector as a matrix of one row.

    Args:
        x1: ``(..., n)``.
        x2: ``(..., n, m)``; leading axes broadcast; or a handle from :func:`prepack_rhs`.
        out: as for :func:`matmul`.
        threads: at most this many threads.
        **numpy_keywords: as for :func:`matmul`.

    Returns:
        ``out``, or a new array ``(..., m)``.

    Raises:
        ValueError, TypeError, AxisError, MemoryError, IsaError: as :func:`matmul`.
    """
    if numpy_keywords:
        return _VECMAT.in_full(x1, x2, out, threads, {**numpy_keywords})
    return _VECMAT.call(x1, x2, out, threads)


def vecdot(
    x1: object,
    x2: object,
    /,
    out: Any = None,
    *,
    threads: int | None = None,
    **numpy_keywords: Unpack[NumpyKeywords],
) -> Any:
    """Conjugates of vectors times vectors, as :func:`numpy.vecdot` of NumPy 2; with any NumPy.

    The same bits as :func:`matmul` of one row and one column, whatever the layout.

    Args:
        x1: ``(..., n)``.
        x2: ``(..., n)``; leading axes broadcast.
        out: as for :func:`matmul`.
        threads: at most this many threads.
        **numpy_keywords: as for :func:`matmul`, and ``axis`` and ``keepdims``.

    Returns:
        ``out``, a new array ``(...)``, or a scalar for two vectors.

    Raises:
        ValueError, TypeError, AxisError, MemoryError, IsaError: as :func:`matmul`.
    """
    if numpy_keywords:
        return _VECDOT.in_full(x1, x2, out, threads, {**numpy_keywords})
    return _VECDOT.call(x1, x2, out, threads)


# Operators of handles: ``x @ packed`` and ``packed @ x``.
Packed.product = staticmethod(matmul)
