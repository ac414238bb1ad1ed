"""Packing into words: every kind of word, every layout, byte for byte, and nothing around it.

Machine code and interpreter write the same bytes; what must be in them is said in NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from cases import Array, Operands, backends, execute, same_bytes
from language import converted
from typed import add_span, pairs_of_types, typed_matrix

from jitgemm.isa import tables
from jitgemm.isa.types import ElementType
from jitgemm.jit import compiler
from jitgemm.jit.target import available
from jitgemm.kernels.groups import copy_rows, pack_groups
from jitgemm.kernels.job import JOB
from jitgemm.kernels.spec import GemmSpec
from rows import distinct_sets, typed_spec

LAYOUTS = (
    ("rows", False), ("cols", False), ("both", False), ("reversed", False),
    ("cols reversed", False), ("rows", True), ("cols", True), ("both", True),
)  # fmt: skip
GUARD = 0xA5


def _kinds(side: str) -> Iterator[Any]:
    """A spec of each (stored, piece, group) there is of an operand.

    Words of several numbers on every set, others once for sets that are alike.
    """
    alike = distinct_sets(integral=True)
    for isa in tables.BY_NAME.values():
        seen = set()
        if not available(isa):
            continue
        for types in pairs_of_types():
            spec = typed_spec(isa, types)
            how = spec.arithmetic
            stored, piece = (types.a, how.a_element) if side == "a" else (types.b, how.b_element)
            key = stored, piece, how.group, how.flip and side == "a", spec.sums_columns
            if key in seen or (how.group == 1 and isa not in alike):
                continue
            seen.add(key)
            name = f"{stored}-{how.group}x{piece}-{isa.name}{'-flip' * key[3]}{'-sums' * key[4]}"
            yield pytest.param(spec, id=name)


def _pieces(stored: ElementType, piece: ElementType, x: Array) -> Array:
    """Numbers as pieces of words, unsigned as they lie in memory."""
    x = np.ascontiguousarray(x, x.dtype.newbyteorder("="))
    if stored is not piece:
        x = converted(stored, piece, x)
    return x.view(f"u{piece.bytes}")


@cache
def _unit(spec: GemmSpec) -> compiler.Unit:
    """Both ways of packing, and nothing else."""
    functions = [pack_groups(spec), copy_rows(spec)]
    return compiler.Unit(f"words_{spec.symbol}", spec.isa, lambda: functions)


def _depths(group: int) -> list[int]:
    """None, one number, around a word, more than a strip, and blocks of a transpose."""
    return sorted(
        {0, 1, group - 1, group, group + 1, 5 * group + group // 2, 17 * group + 1} - {-1}
    )


# -- B ---------------------------------------------------------------------------------------------


def _panels(spec: GemmSpec, b: Array) -> Array:
    """Micropanels of words: ``[panel, word, column, piece]``; columns beyond the last are zero."""
    how = spec.arithmetic
    pieces = _pieces(how.types.b, how.b_element, b)
    (depth, n), words = b.shape, -(-b.shape[0] // how.group)
    panels = -(-n // spec.nr)
    wide = np.zeros((words * how.group, panels * spec.nr), pieces.dtype)
    wide[:depth, :n] = pieces
    return wide.reshape(words, how.group, panels, spec.nr).transpose(2, 0, 3, 1)


def _check_b(spec: GemmSpec, shape: tuple[int, int], layout: str, *, swap: bool) -> None:
    how, (depth, n), sides = spec.arithmetic, shape, []
    words = -(-depth // how.group)
    why = f"{spec.symbol} {shape} {layout} {swap=}"
    for compiled in backends(spec):
        x = Operands(spec, seed=depth + n)
        b = typed_matrix(x, how.types.b, depth, n, layout, swap=swap)
        want = _panels(spec, b)
        # A guard behind each panel, and before the first.
        size = spec.panel_bytes(words)
        out = np.full((want.shape[0] + 1, size + 64), GUARD, np.uint8)
        job: dict[str, Any] = {
            "b": add_span(x, "b", b), "b_row": b.strides[0], "b_col": b.strides[1],
            "k_numbers": depth, "panel_stride": out.strides[0], "swap_b": int(swap),
        }  # fmt: skip
        at = x.add("packed", out[1:, :size], out=True, initialised=False)
        execute(spec, pack_groups(spec), x, [x.record(JOB, job), at, 0, n, 0, words],
                compiled=compiled, alone=_unit(spec))  # fmt: skip
        assert (out[1:, size:] == GUARD).all(), why
        assert (out[0] == GUARD).all(), why
        kind = want.dtype
        body = np.ascontiguousarray(out[1:, : words * spec.panel_row]).view(kind)
        got = body.reshape(want.shape)
        live = np.arange(want.shape[0] * spec.nr).reshape(-1, 1, spec.nr, 1) < n
        # Columns beyond the last may hold anything, but what an existing one does not raise.
        np.testing.assert_array_equal(np.where(live, got, 0), want, err_msg=why)
        if not how.b_element.integral:
            first = np.broadcast_to(got[:, :, :1], got.shape)
            np.testing.assert_array_equal(np.where(live, 0, got), np.where(live, 0, first), why)
        if spec.sums_columns:
            sums = np.ascontiguousarray(out[1:, size - spec.tile_row : size]).view(np.int32)
            exact = np.ascontiguousarray(b, b.dtype.newbyteorder("=")).astype(np.int64).sum(axis=0)
            np.testing.assert_array_equal(sums.ravel()[:n], exact, err_msg=why)
        sides.append(x)
    same_bytes(sides, why)


@pytest.mark.parametrize("spec", _kinds("b"))
def test_pack_words(spec: GemmSpec) -> None:
    """B by every layout; depths that are no whole words; panels that are not full."""
    assert spec.arithmetic is not None
    depths, nr = _depths(spec.arithmetic.group), spec.nr
    columns = (1, spec.lanes + 1, nr, nr + 1, 2 * nr)
    for number, (layout, swap) in enumerate(LAYOUTS):
        for place, depth in enumerate(depths):
            # A third of all: each depth meets each layout or its neighbour, and other columns.
            if (place + number) % 3 == 0:
                n = columns[(place + 2 * number) % len(columns)]
                _check_b(spec, (depth, n), layout, swap=swap)
    # Blocks of words turned in registers.
    _check_b(spec, (spec.arithmetic.group * (spec.lanes + 1) + 1, nr + 1), "cols", swap=False)


# -- A ---------------------------------------------------------------------------------------------


def _check_a(spec: GemmSpec, shape: tuple[int, int], layout: str, *, swap: bool) -> None:
    how, (m, depth), sides = spec.arithmetic, shape, []
    words = -(-depth // how.group)
    size = words * how.group_bytes + (spec.element.bytes if spec.sums_columns else 0)
    why = f"{spec.symbol} {shape} {layout} {swap=}"
    for compiled in backends(spec):
        x = Operands(spec, seed=depth + m)
        a = typed_matrix(x, how.types.a, m, depth, layout, swap=swap)
        out = np.full((m + 1, -(-size // 8) * 8 + 64), GUARD, np.uint8)
        job: dict[str, Any] = {
            "source_row": a.strides[0], "source_col": a.strides[1], "a_row": out.strides[0],
            "k_numbers": depth, "swap_a": int(swap),
        }  # fmt: skip
        at = x.add("copied", out[1:, :size], out=True, initialised=False)
        arguments = [x.record(JOB, job), x.add("a", a), at, m, words]
        execute(spec, copy_rows(spec), x, arguments, compiled=compiled, alone=_unit(spec))
        assert (out[1:, size:] == GUARD).all(), why
        assert (out[0] == GUARD).all(), why
        pieces = _pieces(how.types.a, how.a_element, a)
        if how.flip:
            pieces = pieces ^ pieces.dtype.type(1 << (how.a_element.bits - 1))
        want = np.zeros((m, words * how.group), pieces.dtype)
        want[:, :depth] = pieces
        got = np.ascontiguousarray(out[1:, : words * how.group_bytes]).view(want.dtype)
        np.testing.assert_array_equal(got, want, err_msg=why)
        if spec.sums_columns:
            signed = how.a_element.signed != how.flip
            numbers = want[:, :depth].view(f"{'i' if signed else 'u'}{how.a_element.bytes}")
            sums = np.ascontiguousarray(out[1:, size - 4 : size]).view(np.int32)[:, 0]
            exact = numbers.astype(np.int64).sum(axis=1)
            np.testing.assert_array_equal(sums, exact, err_msg=why)
        sides.append(x)
    same_bytes(sides, why)


@pytest.mark.parametrize("spec", _kinds("a"))
def test_copy_rows(spec: GemmSpec) -> None:
    """A by every layout, its sums behind each row."""
    how = spec.arithmetic
    vector = spec.isa.lanes(how.a_element)
    depths = sorted({*_depths(how.group)[:-1], vector, vector + 1, 2 * vector - 1})
    for number, (layout, swap) in enumerate(LAYOUTS):
        for place, depth in enumerate(depths):
            if (place + number) % 3 == 0:
                _check_a(spec, (1 + (place + number) % 2, depth), layout, swap=swap)
    _check_a(spec, (2, 3 * vector + how.group + 1), "rows", swap=False)


def test_every_word_is_met() -> None:
    """Words of one, two and four numbers, flipped and not; each type is stored somewhere."""
    kinds = {side: [p.values[0] for p in _kinds(side)] for side in "ab"}
    for side, specs in kinds.items():
        assert {getattr(s.types, side) for s in specs} >= {
            getattr(t, side) for t in pairs_of_types()
        }
        assert {s.arithmetic.group for s in specs} == {1, 2, 4}
    assert {s.arithmetic.flip for s in kinds["a"]} == {True, False}
