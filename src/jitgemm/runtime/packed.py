"""Prepacked operands: handles on one matrix or a stack of them, packed for many products.

A handle is tied to its :class:`Layout`, not to the instruction set it was made with: a kernel reads
every layout that serves it, and a BLAS, for which it is unpacked, any.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count
from math import prod
from operator import index as as_int
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from jitgemm.errors import message
from jitgemm.runtime.layout import ALIGN, Layout, element_dtype, layout_for, plain_layout
from jitgemm.runtime.memory import address, aligned_buffer

__all__ = [
    "FORMAT",
    "MOST_DIMENSIONS",
    "Layout",
    "Packed",
    "PackedLhs",
    "PackedRhs",
    "element_dtype",
    "layout_for",
    "layout_number",
    "plain_layout",
]

FORMAT = 4
"""Version of the packed layout; stored in pickles and checked when they are loaded."""

MOST_DIMENSIONS = 8
"""Dimensions of a handle: as many as its ``words`` have room for."""

_numbers: dict[tuple[type[Packed], Layout], int] = {}
_next_number = count(1)


def layout_number(layout: Layout, kind: type[Packed]) -> int:
    """A small positive number that is this layout's, in handles of this kind, while Python runs.

    Generated code compares it instead of a layout's fields.  Equal layouts of equal size have the
    same one; no two others share any.  It means nothing in another process.
    """
    # No lock (ADR 27): whoever is first settles it, and a number nobody gets is no loss.
    found = _numbers.get((kind, layout))
    return found or _numbers.setdefault((kind, layout), next(_next_number))


class Packed:
    """What prepacked operands have in common.

    A snapshot: later writes to the source do not show.  It is read-only, so threads share it
    without locks, and it is always read back with the layout it was packed with.

    A stack of operands, ``batch`` before the two axes of a matrix, is one buffer with one packed
    matrix after the other, ``item_bytes`` apart, in C order.  ``handle[i]`` is a handle on a part
    of the same storage.
    """

    __slots__ = (
        "__weakref__", "_buffer", "_dtype", "_layout", "batch", "conj", "isa", "words",
    )  # fmt: skip

    _buffer: NDArray[np.uint8]
    _dtype: np.dtype
    _layout: Layout
    batch: tuple[int, ...]
    """Shape of the stack; empty for one matrix."""
    conj: bool
    """Whether the operand is the conjugate of what is stored."""
    isa: str
    """The instruction set it was packed with: for information, it decides nothing."""
    words: NDArray[np.int64]
    """For generated code, read-only: address of the first packed byte, bytes from item to item,
    number of items, :func:`layout_number`, conjugated (0 or 1), ``ndim``, then ``shape`` filled up
    with zeros to :data:`MOST_DIMENSIONS`."""

    # Arrays leave ``@`` to the handle.
    __array_ufunc__ = None
    product: ClassVar[Callable[[Any, Any], Any]]
    """:func:`jitgemm.matmul`, put here by its module, of which this layer knows nothing."""

    def __init__(
        self,
        layout: Layout,
        isa: str,
        dtype: np.dtype,
        *,
        batch: tuple[int, ...] = (),
        conj: bool = False,
    ) -> None:
        nbytes = prod(batch) * layout.item_bytes
        buffer = aligned_buffer(max(nbytes, ALIGN))[:nbytes]
        if nbytes:
            # What lies between items is never read, but shows in ``storage``.
            buffer.reshape(-1, layout.item_bytes)[:, layout.nbytes :] = 0
        buffer.flags.writeable = False
        self._set(layout, isa, dtype, buffer, batch, conj=conj)

    def _set(
        self,
        layout: Layout,
        isa: str,
        dtype: np.dtype,
        buffer: NDArray[np.uint8],
        batch: tuple[int, ...],
        *,
        conj: bool,
    ) -> None:
        values = {
            "_buffer": buffer, "_dtype": dtype, "_layout": layout,
            "batch": batch, "conj": conj, "isa": isa,
        }  # fmt: skip
        for name, value in values.items():
            object.__setattr__(self, name, value)
        assert self.ndim <= MOST_DIMENSIONS
        words = np.zeros(6 + MOST_DIMENSIONS, np.int64)
        number = layout_number(layout, type(self))
        words[:6] = self.address, layout.item_bytes, prod(batch), number, conj, self.ndim
        words[6 : 6 + self.ndim] = self.shape
        # Bytes cannot be made writable again: generated code trusts these.
        object.__setattr__(self, "words", np.frombuffer(words.tobytes(), np.int64))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(message(name, "no assignment: a handle is read-only", repr(value)))

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(message(name, "no deletion: a handle is read-only", "one"))

    def _rows(self) -> NDArray[np.uint8]:
        """The packed bytes of each item, without what lies between them."""
        layout = self._layout
        return self._buffer.reshape(prod(self.batch), layout.item_bytes)[:, : layout.nbytes]

    def fill(self, packed: bytes) -> None:
        """Put packed bytes in, item after item; only for a handle nobody has seen yet."""
        self._buffer.flags.writeable = True
        rows = self._rows()
        rows[...] = np.frombuffer(packed, np.uint8).reshape(rows.shape)
        self._buffer.flags.writeable = False

    def _sharing(self, buffer: NDArray[np.uint8], batch: tuple[int, ...], *, conj: bool) -> Self:
        """A handle on a part of this one's storage, which stays alive with it."""
        twin = object.__new__(type(self))
        twin._set(self._layout, self.isa, self._dtype, buffer, batch, conj=conj)
        return twin

    def conjugated(self) -> Self:
        """The same storage as the conjugate operand."""
        return self._sharing(self._buffer, self.batch, conj=not self.conj)

    def __copy__(self) -> Self:
        return self._sharing(self._buffer, self.batch, conj=self.conj)

    def __getitem__(self, index: object) -> Self:
        """A handle on one item of a stack or, with fewer ints than leading axes, on some.

        Raises:
            TypeError: something else than ints.
            IndexError: beyond an axis, or more than there are leading axes.
        """
        given = [_checked(i) for i in (index if isinstance(index, tuple) else (index,))]
        if len(given) > len(self.batch):
            expected = f"at most {len(self.batch)} ints for the leading axes of {self.shape}"
            raise IndexError(message("index", expected, len(given)))
        first, items = 0, prod(self.batch)
        for axis, (i, size) in enumerate(zip(given, self.batch, strict=False)):
            if not -size <= i < size:
                raise IndexError(message("index", f"one within {size} along axis {axis}", i))
            items //= size
            first += i % size * items
        step = self._layout.item_bytes
        part = self._buffer[first * step : (first + items) * step]
        return self._sharing(part, self.batch[len(given) :], conj=self.conj)

    def __len__(self) -> int:
        if not self.batch:
            raise TypeError(message("len", "a stack of operands", f"one, of shape {self.shape}"))
        return self.batch[0]

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        """A handle is something, however many items it has."""
        return True

    @property
    def shape(self) -> tuple[Any, ...]:
        """Shape of the operand: ``(*batch, rows, columns)``."""
        return (*self.batch, self._layout.k, self._layout.n)

    @property
    def ndim(self) -> int:
        """Number of axes: 2, and those of a stack."""
        return len(self.batch) + 2

    @property
    def dtype(self) -> np.dtype:
        """Element type."""
        return self._dtype

    @property
    def layout(self) -> Layout:
        """How each item is stored."""
        return self._layout

    @property
    def item_bytes(self) -> int:
        """Bytes from one item of a stack to the next."""
        return self._layout.item_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of packed storage, from the first to the last of them."""
        layout, items = self._layout, prod(self.batch)
        return (items - 1) * layout.item_bytes + layout.nbytes if items else 0

    @property
    def nr(self) -> int:
        """Reals per depth step of a micropanel."""
        return self._layout.nr

    @property
    def storage(self) -> NDArray[np.uint8]:
        """The packed bytes, read-only: ``(*batch, item_bytes)``."""
        return self._buffer.reshape(*self.batch, self.item_bytes) if self.batch else self._buffer

    @property
    def address(self) -> int:
        """Where the first micropanel begins: at a multiple of 64."""
        return address(self._buffer)

    def stored(self) -> NDArray[np.generic]:
        """The operand without its conjugation: read-only, no copy if items are one micropanel."""
        found = self._layout.matrices(self._rows(), self._dtype)
        found = found.reshape(*self.batch, *found.shape[1:])
        found.flags.writeable = False
        return found

    def unpack(self, dtype: DTypeLike | None = None) -> NDArray[np.generic]:
        """The operand as an ordinary array (a copy) of its shape."""
        matrix = self.stored()
        return np.array(matrix.conj() if self.conj else matrix, dtype or self._dtype, order="C")

    def unfit(self, name: str, wanted: Layout, other: np.dtype) -> str:
        """Word the error about a layout that does not serve.

        Args:
            name: the operand's.
            wanted: what the kernel reads.
            other: type of the operand it is multiplied with.
        """
        expected = f"an array, or an operand packed for sums with {other} here ({wanted})"
        return message(name, expected, f"prepacked {self.dtype} from {self.isa} ({self._layout})")

    def __matmul__(self, other: object) -> Any:
        return Packed.product(self, other)

    def __rmatmul__(self, other: object) -> Any:
        return Packed.product(other, self)

    def __repr__(self) -> str:
        conj = ", conj=True" if self.conj else ""
        return (
            f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype}, nr={self.nr}, "
            f"isa={self.isa!r}{conj})"
        )

    def __reduce__(self) -> tuple[Callable[..., Packed], tuple[object, ...]]:
        how = type(self), self._dtype, self.conj, self.batch
        header = FORMAT, self.isa, sys.byteorder
        return _load, (header, self._layout, self._rows().tobytes(), how)


def _checked(index: object) -> int:
    """One index into a stack."""
    # A truth value would choose all or nothing of an array.
    found = None if isinstance(index, bool) else index
    try:
        return as_int(found)  # type: ignore[arg-type]
    except TypeError:
        expected, kind = "ints, one for each leading axis", type(index).__name__
        text = message("index", expected, f"{kind}; prepack what is to be one handle")
        raise TypeError(text) from None


class PackedRhs(Packed):
    """A right operand packed once, for many products.  Made by :func:`jitgemm.prepack_rhs`."""

    __slots__ = ()


class PackedLhs(Packed):
    """A left operand packed once, for many products.  Made by :func:`jitgemm.prepack_lhs`.

    It is stored as its transpose would be on the right, and multiplied as ``D^T = B^T A^T``.
    """

    __slots__ = ()

    @property
    def shape(self) -> tuple[Any, ...]:
        """Shape of the operand: ``(*batch, rows, columns)``."""
        return (*self.batch, self._layout.n, self._layout.k)

    def stored(self) -> NDArray[np.generic]:
        """The operand without its conjugation, as for a right one."""
        return super().stored().swapaxes(-1, -2)


def _load(header: tuple[Any, ...], layout: Layout, packed: bytes, how: tuple[Any, ...]) -> Packed:
    """Rebuild a pickled handle, in a process of any instruction set.

    Raises:
        ValueError: written in another format of packed operands or byte order, or cut short.
    """
    if header[0] != FORMAT:
        raise ValueError(message("pickle", f"packed format {FORMAT}", header[0]))
    _, isa, order = header
    if order != sys.byteorder:
        raise ValueError(message("pickle", f"{sys.byteorder}-endian numbers", f"{order}-endian"))
    kind, dtype, conj, batch = how
    size = prod(batch) * layout.nbytes
    if len(packed) != size:
        raise ValueError(message("pickle", f"{size} packed bytes", len(packed)))
    handle: Packed = kind(layout, isa, dtype, batch=batch, conj=conj)
    handle.fill(packed)
    return handle
