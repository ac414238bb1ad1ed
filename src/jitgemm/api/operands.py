"""Validation: from what the user passed to matrices the planner understands, or a clear error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitgemm.api.kinds import Number, number_of, types_text
from jitgemm.api.meaning import DEEPEST, check_plain
from jitgemm.errors import message
from jitgemm.runtime.dlpack import stored_bits
from jitgemm.runtime.packed import Packed, PackedRhs

__all__ = [
    "Array", "Number", "check_output", "check_type", "describe", "factor", "flag",
    "in_place", "is_weak", "misplaced", "native", "new_result", "number_of", "operand",
    "overlaps_itself", "plain", "plain_or_packed", "same_place", "scalar", "shares",
    "stack_shape", "weakly",
]  # fmt: skip

Array = NDArray[Any]


def describe(x: Array | Packed) -> str:
    """Shape and type, for messages."""
    return f"shape {tuple(x.shape)} {x.dtype}"


def misplaced(name: str, handle: Packed, *, side: bool) -> str:
    """Word an error about a handle on the wrong side, or (``side=False``) where none can be."""
    mine, other = ("right", "lhs") if isinstance(handle, PackedRhs) else ("left", "rhs")
    wanted = f"an array or a handle from prepack_{other}" if side else "an array"
    return message(name, wanted, f"a {type(handle).__name__}, which is a {mine} operand")


# What arrays are made from without asking for elements one by one.
_OFFERS = ("__array__", "__array_interface__", "__array_struct__", "__buffer__")


# How hard to look whether interleaved arrays share an element.
_WORK_ON_OVERLAP = 100

_FAILURES = (TypeError, ValueError, RuntimeError, BufferError)


def _stored(x: Any) -> Array | None:
    """A tensor of a storage type that NumPy cannot convert; ``None`` for anything else."""
    if not hasattr(x, "__dlpack__"):
        return None
    try:
        found = stored_bits(x)
    except _FAILURES:
        return None  # its conversion has said why
    return None if found is None else found[0].view(found[1].find())


def plain(name: str, x: object) -> Array:
    """Any argument as an array: the one way in, for every function.

    Memory is used where it is: arrays, memory maps, buffers, what speaks DLPack on the CPU or one
    of NumPy's protocols.  Lists and numbers become arrays.

    Raises:
        TypeError: it means more than its numbers (see :mod:`jitgemm.api.meaning`), or refuses.
        ValueError: a list of unequal parts.
    """
    if type(x) is np.ndarray:
        return x
    check_plain(name, x)
    try:
        if hasattr(x, "__dlpack__") and not any(hasattr(x, offer) for offer in _OFFERS):
            array = np.from_dlpack(x)
        else:
            array = np.asanyarray(x)
    except _FAILURES as e:
        stored = _stored(x)
        if stored is not None:
            return stored
        # A list of unequal parts is a wrong value; what an object says of itself is about its type.
        error = ValueError if isinstance(x, (list, tuple)) else TypeError
        reason = (str(e) or type(e).__name__).splitlines()[0]
        raise error(message(name, "an array", f"{type(x).__name__}: {reason}")) from e
    if type(array) is not np.ndarray and array is not x:
        # What a conversion has made may mean something as well.
        check_plain(name, array)
    return np.asarray(array)


def plain_or_packed(name: str, x: object) -> Any:
    """As :func:`plain`, but for prepacked operands, which stay what they are."""
    return x if isinstance(x, Packed) else plain(name, x)


def _leaves(x: object, depth: int = 0) -> Iterator[object]:
    """The elements of lists in lists; deeper ones than arrays can be are elements themselves."""
    if isinstance(x, (list, tuple)) and depth < DEEPEST:
        for y in x:
            yield from _leaves(y, depth + 1)
    else:
        yield x


def _is_python(x: object) -> bool:
    number = isinstance(x, (int, float, complex))
    return number and not isinstance(x, (bool, np.generic))


def is_weak(x: object) -> bool:
    """Whether ``x`` is a number of Python or a list of them, whose type is its neighbours'."""
    kind = type(x)
    if kind is np.ndarray or x is None:
        return False
    if kind is list or kind is tuple:
        return all(_is_python(y) for y in _leaves(x))
    return _is_python(x)


def weakly(name: str, x: object, *types: np.dtype) -> Array:
    """As :func:`plain`; numbers of Python in the first of ``types`` that holds them.

    They promote as in NumPy 2: an ``int`` fits every type that reaches as far, a ``float`` every
    float, a ``complex`` complex types.  Numbers and arrays of NumPy keep their type.

    Raises:
        TypeError: a fraction for integers, a complex number for reals.
        ValueError: an integer beyond all types.
    """
    if not is_weak(x):
        return plain(name, x)
    leaves, first = list(_leaves(x)), types[0]
    for kind, allowed in ((complex, "c"), (float, "fc")):
        found = next((y for y in leaves if isinstance(y, kind)), None)
        if found is not None and first.kind not in allowed:
            raise TypeError(message(name, f"{first} elements", f"{np.dtype(kind)} ({found!r})"))
    dtype = first
    if first.kind in "iu":
        dtype = _first_that_holds(name, leaves, types)
    try:
        # A float beyond its type is infinite, as a factor of the product is.
        with np.errstate(over="ignore"):
            return np.array(x, dtype)
    except OverflowError:
        raise ValueError(message(name, "numbers a double can hold", "a larger one")) from None
    except ValueError as e:
        raise ValueError(message(name, "an array", "a list of unequal parts")) from e


def _first_that_holds(name: str, numbers: list[Any], types: tuple[np.dtype, ...]) -> np.dtype:
    """The first integer type that reaches as far as some numbers of Python."""
    least, most = min(numbers, default=0), max(numbers, default=0)
    for dtype in types:
        if np.iinfo(dtype).min <= least and most <= np.iinfo(dtype).max:
            return dtype
    worst = most if most > np.iinfo(types[0]).max else least
    raise ValueError(message(name, f"numbers of {types[0]}", worst))


def operand(name: str, x: object, *types: np.dtype) -> Array:
    """``x`` as an array of a supported type (no copy of an array).

    Numbers of Python become ``types``, if there are any.

    Raises:
        TypeError: another element type, a handle that belongs elsewhere, or as :func:`plain`.
        ValueError: fewer than two dimensions.
    """
    if isinstance(x, Packed):
        raise TypeError(misplaced(name, x, side=name in ("a", "b")))
    array = weakly(name, x, *types) if types else plain(name, x)
    if number_of(array.dtype) is None:
        alone = array.ndim == 0 and array.dtype == object
        got = f"object ({type(array.item()).__name__})" if alone else array.dtype
        raise TypeError(message(name, types_text(), got))
    if array.ndim < 2:
        raise ValueError(
            message(name, "a matrix (2 or more dimensions)", f"{array.ndim} dimensions")
        )
    return array


def stack_shape(
    a: Array | Packed, b: Array | Packed, names: tuple[str, str] = ("a", "b")
) -> tuple[int, ...]:
    """The shape of ``a @ b`` under NumPy's rules.

    Raises:
        ValueError: the shapes do not fit.
    """
    first, second = names
    for name, x in ((first, a), (second, b)):
        if x.ndim == 0:
            raise ValueError(message(name, "at least 1 dimension", "a scalar"))
    k, depth = a.shape[-1], b.shape[-2 if b.ndim > 1 else 0]
    if k != depth:
        expected = f"{k} rows, because {first} has shape {tuple(a.shape)}"
        raise ValueError(message(second, expected, describe(b)))
    batch: tuple[int, ...] = ()
    try:
        if a.ndim > 2 or b.ndim > 2:
            batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        expected = f"leading axes that broadcast with {tuple(a.shape)}"
        raise ValueError(message(second, expected, f"shape {tuple(b.shape)}")) from None
    return (*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ()))


def check_type(name: str, dtype: np.dtype, like: np.dtype) -> None:
    """Make sure an operand has the element type of ``a``.

    Raises:
        TypeError: it has another.
    """
    if number_of(dtype) != number_of(like):
        raise TypeError(message(name, f"{like} elements like a", dtype))


def native(x: Array) -> Array:
    """``x`` in this machine's byte order; what is broadcast stays broadcast (contract 15)."""
    if x.dtype.isnative:
        return x
    once = x[tuple(slice(0, 1) if s == 0 else slice(None) for s in x.strides)]
    return np.broadcast_to(once.astype(x.dtype.newbyteorder("=")), x.shape)


def scalar(name: str, value: object) -> float:
    """A real number.

    Raises:
        TypeError: anything else.
        ValueError: an integer beyond every double.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, (int, float, np.integer, np.floating)):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(message(name, "a number a double can hold", "a larger one")) from None
    raise TypeError(message(name, "a real number", type(value).__name__))


def factor(name: str, value: object, components: int, *, integral: bool = False) -> complex:
    """A factor of a product: real, complex or an integer, if the product is.

    Raises:
        TypeError, ValueError: as :func:`scalar`; a fraction where the product is of integers.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if integral:
        if isinstance(value, (int, np.integer)):
            return int(value)
        if isinstance(value, (float, np.floating)) and float(value).is_integer():
            return int(value)
        raise TypeError(message(name, "an integer, because elements are", repr(value)))
    # Adding 0 turns -0 into +0: no product has no sign.
    if components == 2 and isinstance(value, (complex, np.complexfloating)):
        return complex(value.real + 0.0, value.imag + 0.0)
    return complex(scalar(name, value) + 0.0)


def flag(name: str, value: object) -> bool:
    """A truth value.

    Raises:
        TypeError: anything else.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(message(name, "True or False", type(value).__name__))
    return bool(value)


def overlaps_itself(x: Array) -> bool:
    """Whether two elements of ``x`` share a byte."""
    axes = sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1)
    if 0 in x.shape:
        return False
    reach = x.itemsize
    for stride, n in axes:
        if stride < reach:
            break
        reach += stride * (n - 1)
    else:
        return False
    if axes[0][0] < x.itemsize:
        return True
    # Interleaved strides: rare enough to look at every offset.
    offsets = np.zeros((), np.int64)
    for stride, n in axes:
        offsets = np.add.outer(offsets, np.arange(n, dtype=np.int64) * stride)
    return bool(np.diff(np.sort(offsets, axis=None)).min() < x.itemsize)


def shares(x: Array, y: Array) -> bool:
    """Whether two arrays may share memory; exact for interleaved ones where that is cheap."""
    if not np.may_share_memory(x, y):
        return False
    try:
        return np.shares_memory(x, y, max_work=_WORK_ON_OVERLAP)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def same_place(x: Array, y: Array) -> bool:
    """Whether two arrays are the same elements at the same addresses."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.__array_interface__["data"][0] != y.__array_interface__["data"][0]:
        return False
    return all(n == 1 or s == t for n, s, t in zip(x.shape, x.strides, y.strides, strict=True))


def new_result(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """An uninitialised array.

    Raises:
        MemoryError: there is not that much memory, or address space.
    """
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as e:
        raise MemoryError(
            message("out", "a result that fits in memory", f"shape {shape} {dtype}")
        ) from e


def in_place(name: str, out: object) -> Array:
    """The memory of ``out`` itself as an array.

    Raises:
        TypeError: there is none, or it cannot be known that it is.
    """
    if isinstance(out, np.ndarray):
        return plain(name, out)
    expected = "a numpy array, or other memory that can be written where it is"
    if isinstance(out, (list, tuple)):
        raise TypeError(message(name, expected, type(out).__name__))
    # Two conversions in one place are views of the object's memory; a copy lies elsewhere.
    first, second = plain(name, out), plain(name, out)
    if (
        first.dtype != object
        and first.__array_interface__["data"] == (second.__array_interface__["data"])
    ):
        return first
    raise TypeError(message(name, expected, type(out).__name__))


def check_output(name: str, out: object, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Make sure a result of ``shape`` and ``dtype`` can be written to ``out``.

    Raises:
        TypeError: no memory that can be written in place, or another element type.
        ValueError: wrong shape, read-only, or overlapping itself.
    """
    out = in_place(name, out)
    if number_of(out.dtype) != number_of(dtype):
        raise TypeError(message(name, f"{dtype} elements", out.dtype))
    if out.shape != shape:
        raise ValueError(message(name, f"shape {shape}", f"shape {out.shape}"))
    if not out.flags.writeable:
        raise ValueError(message(name, "a writable array", "a read-only one"))
    if overlaps_itself(out):
        raise ValueError(message(name, "elements of its own memory", "elements that overlap"))
    return out
