"""Arrays as a kernel sees them: an address, a shape and strides that exist at run time."""

from __future__ import annotations

from collections.abc import Iterator

from jitgemm.errors import LanguageError
from jitgemm.isa.types import F32, I64, ElementType
from jitgemm.lang.core import Int, IntLike, Kernel, Mask, Ptr, Vec
from jitgemm.lang.values import Number

__all__ = ["ArrayView", "Index"]

Index = IntLike | tuple[IntLike, ...]


class ArrayView:
    """An array, or a part of one, inside a kernel.

    ``view[i]`` and ``view[i, j]`` are views with as many axes less.  Indices count from 0 and are
    not checked in machine code: the checking interpreter refuses those beyond an array.

    Attributes:
        name: the operand's.
        base: address of the first element.
        element: the type of elements in memory.
        shape, strides: an :class:`Int` per axis; strides are bytes, of either sign.
        dense: elements of the last axis are side by side; known while generating.
        writable: it is an output.
    """

    __slots__ = ("base", "dense", "element", "name", "shape", "strides", "writable")

    def __init__(
        self,
        name: str,
        base: Ptr,
        element: ElementType,
        shape: tuple[Int, ...],
        strides: tuple[Int, ...],
        *,
        dense: bool,
        writable: bool,
    ) -> None:
        self.name, self.base, self.element = name, base, element
        self.shape, self.strides = shape, strides
        self.dense, self.writable = dense, writable

    @property
    def k(self) -> Kernel:
        """The kernel it belongs to."""
        return self.base.k

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def number(self) -> ElementType:
        """The type of elements in registers: ``f32`` for formats that have no arithmetic."""
        return F32 if self.element.format else self.element

    @property
    def lanes(self) -> int:
        """Elements that fill a vector register."""
        return self.k.isa.lanes(self.number)

    def at(self, *index: IntLike) -> Ptr:
        """The address of an element, or of the first one of a part."""
        if len(index) > self.ndim:
            raise LanguageError(f"{self.name}: {len(index)} indices of {self.ndim} axes")
        where = self.base
        for i, (place, stride) in enumerate(zip(index, self.strides, strict=False)):
            last = self.dense and i == self.ndim - 1
            by = self.k.const(place) * (self.element.bytes if last else stride)
            where = where + by
        return where

    def __getitem__(self, index: Index) -> ArrayView:
        places = index if isinstance(index, tuple) else (index,)
        if not all(isinstance(p, Int | int) for p in places):
            raise LanguageError(f"{self.name}: an index is an integer, and not one of {places}")
        n = len(places)
        return ArrayView(
            self.name, self.at(*places), self.element, self.shape[n:], self.strides[n:],
            dense=self.dense and n < self.ndim, writable=self.writable,
        )  # fmt: skip

    def _whole(self, index: Index) -> Ptr:
        """The address of an element."""
        places = index if isinstance(index, tuple) else (index,)
        if len(places) != self.ndim:
            raise LanguageError(f"{self.name}: {len(places)} indices of {self.ndim} axes")
        return self.at(*places)

    def get(self, *index: IntLike) -> Vec:
        """One element, as a scalar."""
        return self._wide(self.k.load(self._whole(index), self.element))

    def put(self, value: Number, *index: IntLike) -> None:
        """Write one element."""
        one = self._vector(value, 1)
        if one.lanes != 1:
            raise LanguageError(f"{self.name}: {one.lanes} lanes are no single element")
        self.store(index, one)

    def _vector(self, value: Number, lanes: int) -> Vec:
        """What may stand for a vector of this type, as one."""
        k = self.k
        if isinstance(value, Int):
            value = k.number(value, self.number)
        elif not isinstance(value, Vec):
            return k.literal(value, self.number, lanes)
        return k.splat(value, lanes) if value.lanes == 1 else value

    def _wide(self, x: Vec) -> Vec:
        return self.k.convert(x, self.number)

    def load(
        self,
        index: Index,
        mask: Mask | None = None,
        *,
        other: Number | None = None,
        lanes: int | None = None,
    ) -> Vec:
        """Consecutive elements of the last axis.

        Args:
            index: of the first one.
            mask: lanes outside are not read; they are those of ``other``, or zero.
            other: a vector or a number.
            lanes: how many, by default those that fill a register.
        """
        k, count = self.k, lanes or self.lanes
        where, rest = self._whole(index), None
        if other is not None:
            rest = k.convert(self._vector(other, count), self.element)
        if self.dense or count == 1:
            return self._wide(k.load(where, self.element, count, mask, rest))
        return self._wide(k.gather(where, self._steps(count), self.element, mask, rest))

    def _steps(self, lanes: int) -> Vec:
        """Bytes from the first of consecutive elements to each of them."""
        k = self.k
        stride = k.splat(k.number(self.strides[-1], I64), lanes)
        return k.op("mul", k.steps(I64, lanes), stride)

    def store(self, index: Index, value: Vec, mask: Mask | None = None) -> None:
        """Write consecutive elements of the last axis, as the array's type.

        Args:
            index: of the first one.
            value: a vector, whose lanes are rounded or wrapped as conversions do.
            mask: lanes outside are not written.
        """
        k, where = self.k, self._whole(index)
        if not self.writable:
            raise LanguageError(f"{self.name}: written, but it is no output of the kernel")
        x = k.convert(value, self.element)
        if self.dense or x.lanes == 1:
            k.store(where, x, mask)
            return
        for lane in range(x.lanes):
            to = where + self.strides[-1] * lane
            if mask is None:
                k.store(to, k.extract(x, lane))
                continue
            for _ in k.when(k.lane(mask, lane)):
                k.store(to, k.extract(x, lane))

    def strips(self, chains: int = 1) -> Iterator[tuple[Int, Mask | None, int]]:
        """The last axis in vectors: the body is written for each ``start, mask, chain``.

        See :meth:`~jitgemm.lang.core.Kernel.strips`.
        """
        return self.k.strips(self.shape[-1], self.number, self.lanes, chains)
