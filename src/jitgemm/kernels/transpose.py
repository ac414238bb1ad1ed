"""Transposing a block in registers: ``n`` vectors of ``n`` units each, in ``log2(n)`` stages.

A stage takes two vectors and gives two, by two shuffles.  Think of the binary digits that say
where a unit is: those of its vector, and those of its place in the vector.  A stage exchanges one
of the former for one of the latter; after all stages the two numbers have changed places.

Which digits a shuffle may move is where instruction sets differ.  Two kinds are one instruction of
the cheapest sort everywhere, so the stages are made of them: interleaving inside 16 bytes
(``unpcklps`` and ``unpcklpd``, ``zip``), and collecting every other 16 bytes of both operands
(``vshuff32x4``, ``vperm2f128``).  Neither needs an index register.  Both also rotate the digits
they do not exchange, which only says in which order the vectors come out.

Scalable vectors know no 16 bytes: there every stage interleaves whole vectors (``zip1``, ``zip2``),
which rotates all digits by one place.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgemm.isa.types import ElementType
from jitgemm.lang.core import Function, Int, Kernel, Ptr, Vec, parameters

__all__ = ["POINTER", "transpose", "transposed_copy"]

POINTER = 8
# Within this many bytes x86 interleaves and between them it moves whole ones.
_CHUNK_BYTES = 16


def transpose(k: Kernel, rows: list[Vec], unit: int = 1) -> list[Vec]:
    """Column ``j`` of ``rows`` as vector ``j``.

    ``unit`` consecutive elements stay together (2 for complex numbers); there are as many rows as
    units in each, a power of two.
    """
    count = len(rows)
    if k.isa.scalable:
        return _zipped(k, rows, unit)
    chunk = max(1, min(count, _CHUNK_BYTES // (unit * rows[0].element.bytes)))
    vectors, stages = list(rows), count.bit_length() - 1
    for stage in range(stages):
        inside = 1 << stage < chunk
        low, high = _interleave(count, chunk, 1 << stage) if inside else _collect(count, chunk)
        for i in range(count):
            j = i | 1 << stage
            if i != j:
                a, b = vectors[i], vectors[j]
                vectors[i], vectors[j] = (
                    k.shuffle(a, b, _elements(order, unit)) for order in (low, high)
                )
    return [vectors[_reversed_inside(j, chunk)] for j in range(count)]


def _zipped(k: Kernel, rows: list[Vec], unit: int) -> list[Vec]:
    count, vectors = len(rows), list(rows)
    orders = [_elements(order, unit) for order in _interleave(count, count, 1)]
    for _ in range(count.bit_length() - 1):
        pairs = zip(vectors[: count // 2], vectors[count // 2 :], strict=True)
        vectors = [k.shuffle(a, b, order) for a, b in pairs for order in orders]
    return vectors


def _interleave(count: int, chunk: int, granule: int) -> tuple[list[int], list[int]]:
    """Granules of both operands in turn: of the lower and of the upper half of each chunk."""

    def half(upper: int) -> list[int]:
        return [
            start + upper * chunk // 2 + at + operand * count + i
            for start in range(0, count, chunk)
            for at in range(0, chunk // 2, granule)
            for operand in (0, 1)
            for i in range(granule)
        ]

    return half(0), half(1)


def _collect(count: int, chunk: int) -> tuple[list[int], list[int]]:
    """The even and the odd chunks of both operands, one after the other."""

    def every_other(odd: int) -> list[int]:
        return [
            start + i for start in range(odd * chunk, 2 * count, 2 * chunk) for i in range(chunk)
        ]

    return every_other(0), every_other(1)


def _elements(units: Sequence[int], unit: int) -> list[int]:
    return [i * unit + part for i in units for part in range(unit)]


def _reversed_inside(j: int, chunk: int) -> int:
    """``j`` with its digits below ``chunk`` in the opposite order: interleaving turns them."""
    inside = j % chunk
    turned = 0
    for _ in range(chunk.bit_length() - 1):
        turned, inside = turned << 1 | inside & 1, inside >> 1
    return j - j % chunk + turned


def transposed_copy(element: ElementType, lanes: int, unit: int = 1) -> Function:
    """Copy ``n = lanes / unit`` contiguous lines so that they lie side by side.

    ``table`` holds the addresses of the lines.  Unit ``q`` of each becomes one of ``n`` consecutive
    units at ``target + q * step``, for ``q`` from ``first`` up to ``last``, in ascending order.
    ``last`` is at least ``n``: blocks are whole, so the last one ends there and starts amid the one
    before it, or before ``first``.

    A table rather than a stride, because lines may repeat.  A function rather than code in place:
    it is compiled once per unit (9 ms for 16 floats), for a call per kilobyte.
    """
    n, size = lanes // unit, unit * element.bytes

    def body(k: Kernel, table: Ptr, first: Int, last: Int, target: Ptr, step: Int) -> None:
        for p in k.range(first, last, n):
            q = k.min(p, last - n)
            lines = [k.load_ptr(table + i * POINTER) for i in range(n)]
            rows = [k.load(line + q * size, element, lanes) for line in lines]
            for i, column in enumerate(transpose(k, rows, unit)):
                k.store(target + (q + i) * step, column)

    params = parameters("table* first last target* step")
    return Function(f"{element}_transposed_{n}x{unit}", params, body)
