"""Storage types from outside: numbers that are stored in a few bits and multiplied as float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from jitgemm.api.kinds import forget_stored, number_of
from jitgemm.api.stubs import forget_entries
from jitgemm.errors import LanguageError, message
from jitgemm.isa import types
from jitgemm.isa.conversions import dtype_of
from jitgemm.isa.formats import Format
from jitgemm.isa.ops import Op
from jitgemm.isa.types import F32, ElementType
from jitgemm.lang.template import Holes, conversion_holes

__all__ = ["register_storage_type", "unregister_storage_type"]

Spelling = tuple[str, Callable[[Any], Any]]
"""LLVM text of a conversion, and what it means on NumPy arrays."""

_BITS = (8, 16)


def register_storage_type(
    dtype: DTypeLike,
    *,
    widen: Spelling,
    narrow: Spelling,
    half: tuple[str, str] | None = None,
    product: DTypeLike | None = None,
    out_dtypes: Iterable[DTypeLike] = (),
    dlpack: int | None = None,
) -> None:
    """Let products have operands and results of a type that is stored and converted only.

    Sums are float32, as those of float16.  Operands of any strides, prepacked ones, stacks, a C,
    a bias and ``out`` may be of the type, on every instruction set.

    A conversion is ``(text, meaning)``.  The text is LLVM assembly, an instruction per line, with
    holes: ``{a}`` the operand, ``{r}`` the result, ``{t}`` and other names that begin with ``t``
    temporaries, ``{v}`` and ``{w}`` the types of operand and result, ``{m}``, ``{half}`` and
    ``{i8}`` to ``{i64}`` others of that shape, ``{i32:7}`` and the like a constant in every lane.
    The bits are of type ``{i8}`` or ``{i16}``.  The meaning takes and gives NumPy arrays, the bits
    as ``uint8`` or ``uint16``; the interpreter and the BLAS route use it, so both must agree.

    Args:
        dtype: NumPy's type, of 8 or 16 bits, as ``ml_dtypes`` has some.
        widen: from the bits to float32, exactly.
        narrow: from float32 to the bits, with whatever rounding the type has.
        half: texts of both for sets with instructions for float16 (AVX2 with F16C, AVX-512).
        product: type of a product of two such numbers, or of one and an 8-bit integer: float32,
            float64 or a storage type; the type itself if it is not said.
        out_dtypes: what else ``out_dtype`` may be for a product of two of them: storage types that
            lose something.  Wider floats always may.
        dlpack: DLPack's code of the type, for tensors that NumPy cannot convert.

    Raises:
        TypeError: no such types, or no conversions.
        ValueError: the type is known already as something else; a text has a hole that is none of
            the above or makes no result; a meaning gives another type or shape, or a number that
            does not survive ``widen`` of ``narrow``.
    """
    known, bits = _checked_type(dtype)
    found = number_of(known)
    if found is not None and (found[0].format is None or found[0].format.builtin):
        raise ValueError(message("dtype", "a type that is not known yet", known))
    row = Format(
        known.name,
        lambda: known,
        _operation("widen", widen),
        _operation("narrow", narrow),
        half=_spelled_half(half, widen, narrow),
        product=None if product is None else _result("product", product, known),
        results=tuple(_result("out_dtypes", x, known) for x in out_dtypes),
        dlpack=dlpack,
        builtin=False,
    )
    element = types.storage(known.name, bits, row)
    _check_conversions(element, row)
    if found is None:
        types.register(element)
    elif found[0].format is None or not _same(found[0].format, row):
        raise ValueError(message("dtype", "a type that is not known yet", known))


def unregister_storage_type(dtype: DTypeLike) -> None:
    """Forget a type that :func:`register_storage_type` has made known.

    No other thread may multiply with it meanwhile.  Plans go on; handles that were packed of it do
    not fit later products.

    Raises:
        ValueError: it has not been registered.
    """
    known, _ = _checked_type(dtype)
    number = number_of(known)
    if number is None or number[0].format is None or number[0].format.builtin:
        raise ValueError(message("dtype", "a type that has been registered", known))
    types.unregister(number[0].name)
    forget_stored(number[0])
    forget_entries()


def _checked_type(dtype: DTypeLike) -> tuple[np.dtype, int]:
    """NumPy's own object for a type that may be one of storage, and its width in bits."""
    try:
        known = np.dtype(dtype)
    except TypeError:
        raise TypeError(message("dtype", "a NumPy type", repr(dtype))) from None
    bits = known.itemsize * 8
    own = np.dtype(known.type)
    plain = own == known.newbyteorder("=") and known.name.isidentifier() and known.kind != "O"
    if bits not in _BITS or not plain:
        raise TypeError(message("dtype", "a type of numbers of 8 or 16 bits", known))
    return own, bits


def _result(name: str, dtype: DTypeLike, own: np.dtype) -> np.dtype:
    """A type that a product may be stored as."""
    try:
        wanted = np.dtype(dtype)
    except TypeError:
        raise TypeError(message(name, "NumPy types", repr(dtype))) from None
    number = number_of(wanted)
    real = number is not None and number[1] == 1 and not number[0].integral
    if wanted != own and not real:
        raise TypeError(message(name, "float32, float64 or storage types", wanted))
    return np.dtype(wanted.type)


def _operation(name: str, given: object) -> Op:
    match given:
        case (str(text), meaning) if callable(meaning):
            lines = (line.strip() for line in text.splitlines())
            return Op(name, 1, tuple(line for line in lines if line), meaning)
    raise TypeError(message(name, "a pair of LLVM text and a function", repr(given)))


def _spelled_half(half: object, widen: Spelling, narrow: Spelling) -> tuple[Op, Op] | None:
    match half:
        case None:
            return None
        case (str(first), str(second)):
            return _operation("half", (first, widen[1])), _operation("half", (second, narrow[1]))
    raise TypeError(message("half", "None or two LLVM texts", repr(half)))


def _same(x: Format, y: Format) -> bool:
    names = ("name", "widen", "narrow", "half", "product", "results", "dlpack", "builtin")
    return all(getattr(x, name) == getattr(y, name) for name in names)


def _check_conversions(element: ElementType, row: Format) -> None:
    """Texts have holes that are known; meanings fit each other on every number there is."""
    for ops in ((row.widen, row.narrow), row.half or ()):
        for op, pair in zip(ops, ((element, F32), (F32, element)), strict=False):
            _check_text(op, *pair)
    codes = np.arange(1 << element.bits, dtype=dtype_of(element))
    with np.errstate(all="ignore"):
        wide = _meant(row.widen, codes, np.dtype(np.float32))
        again = _meant(row.widen, _meant(row.narrow, wide, codes.dtype), wide.dtype)
    lost = (wide.view(np.uint32) != again.view(np.uint32)) & ~(np.isnan(wide) & np.isnan(again))
    if lost.any():
        code = int(codes[lost][0])
        got = f"{wide[code]} of code {code:#x}, which becomes {again[code]}"
        raise ValueError(message("narrow", "what gives back the numbers of widen", got))


def _check_text(op: Op, source: ElementType, target: ElementType) -> None:
    holes = Holes(lambda: "%t", conversion_holes(source, target, 4), [("a", "%a")])
    try:
        for line in op.text:
            line.format_map(holes)
    except (LanguageError, ValueError, LookupError, AttributeError) as e:
        raise ValueError(message(op.name, "text with the holes of a conversion", e)) from None
    if "r" not in holes:
        raise ValueError(message(op.name, "a text that makes {r}", repr("\n".join(op.text))))


def _meant(op: Op, values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    result = op.meaning(values.copy())
    got = getattr(result, "dtype", type(result).__name__), getattr(result, "shape", ())
    if got != (dtype, values.shape):
        expected = f"a meaning that gives {dtype} of the same shape"
        raise ValueError(message(op.name, expected, f"{got[0]} of shape {got[1]}"))
    return np.asarray(result)
