"""Contract 14 as a property: all operands of a call lie somewhere in one buffer.

Every operand has strides of its own (negative, transposed, with gaps, zero) and a place of its own:
anywhere over ``out``, beginning where it begins, meeting it in one number at either end, or just
beside it.  The answer is that of operands copied apart; of the buffer only ``out`` changes; a
refusal changes nothing.  Each example calls several times, with ``out`` apart from the rest and
over it, in either order: what the first call leaves behind must not hide what the next one is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import jitgemm
from oracle import (
    MANY_PIECES,
    TINY,
    another_machine,
    equal,
    exact_gemm,
    examples,
    forget_plans,
    integers,
)
from oracle import low_tiles as few_rows

Array = np.ndarray[Any, Any]

EXAMPLES = examples(100)
# Examples are small as they are; making them smaller would take minutes.
relaxed = settings(
    phases=(Phase.explicit, Phase.generate), deadline=None, max_examples=EXAMPLES,
    database=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module", params=["eager threads", "many pieces"])
def _machine(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tiles of few rows, so that small products have several; and once tiny caches as well."""
    pieces = request.param == "many pieces"
    knobs = MANY_PIECES if pieces else {"parallel_flops": 1}
    with few_rows(), another_machine(TINY if pieces else None, **knobs):
        yield


# -- one buffer -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """An array without an address."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype

    @property
    def reach(self) -> tuple[int, int]:
        """Its first byte and the end of its last, from where its data pointer points."""
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low, high = (sum(f(0, x) for x in steps) for f in (min, max))
        return low, high + self.dtype.itemsize

    def bytes_at(self, at: int) -> Array:
        """Every byte of every element; one of two elements is there twice."""
        offsets = np.array(at)
        for n, s in zip(self.shape, self.strides, strict=True):
            offsets = np.add.outer(offsets, s * np.arange(n))
        return np.add.outer(offsets, np.arange(self.dtype.itemsize)).ravel()


@dataclass(frozen=True)
class Kind:
    """Types of operands and of the result, and the step between places."""

    operands: np.dtype
    result: np.dtype
    unit: int


FLOATS = Kind(np.dtype("f4"), np.dtype("f4"), 4)
COMPLEX = Kind(np.dtype("c8"), np.dtype("c8"), 4)
INTEGERS = Kind(np.dtype("i1"), np.dtype("i4"), 1)
kinds = st.sampled_from([FLOATS] * 6 + [COMPLEX, INTEGERS])


class Buffer:
    """The memory, from byte ``low`` to ``high`` and a little more on both sides."""

    def __init__(self, kind: Kind, low: int, high: int, seed: int) -> None:
        self.kind, self.first = kind, -low // 64 * 64 + 128
        self.raw = np.zeros(self.first + high // 64 * 64 + 128, np.uint8)
        self.rng = np.random.default_rng(seed)

    def fill(self) -> None:
        """New numbers: any integers, or small ones as floats."""
        if self.kind is INTEGERS:
            self.raw[:] = self.rng.integers(0, 256, self.raw.size, np.uint8)
        else:
            self.raw.view(np.float32)[:] = self.rng.integers(-4, 5, self.raw.size // 4)

    def view(self, form: Form, at: int) -> Array:
        where = self.first + at
        return np.ndarray(form.shape, form.dtype, self.raw, where, form.strides)

    def differs(self, before: Array, but: Array) -> bool:
        """Whether any byte has changed besides those (counted from where places are)."""
        changed = self.raw != before
        changed[self.first + but] = False
        return bool(changed.any())


def _strides(draw: st.DrawFn, shape: tuple[int, ...], item: int, *, zeros: bool) -> list[int]:
    """Any order of axes, gaps, directions; perhaps axes along which nothing moves."""
    strides, step = [0] * len(shape), item * draw(st.sampled_from([1, 1, 1, 2]))
    axes = list(range(len(shape)))[::-1]
    for axis in draw(st.sampled_from([axes, axes, axes[::-1], axes[1:] + axes[:1]])):
        if zeros and draw(st.integers(0, 11)) == 11:
            continue
        strides[axis] = step * draw(st.sampled_from([1, 1, 1, -1]))
        step = step * shape[axis] + item * draw(st.sampled_from([0, 0, 0, 1, 5]))
    return strides


@st.composite
def forms(draw: st.DrawFn, shape: tuple[int, ...], dtype: np.dtype, *, out: bool = False) -> Form:
    strides = _strides(draw, shape, dtype.itemsize, zeros=not out)
    if out and draw(st.integers(0, 15)) == 15:
        # Over itself, unless the axis is a single element.
        axis = draw(st.integers(0, len(shape) - 1))
        # By half a number too, unless that would make other numbers of the halves.
        half = dtype.itemsize // (1 if dtype.kind == "f" else 2)
        strides[axis] = draw(st.sampled_from([0, dtype.itemsize, half]))
    return Form(shape, tuple(strides), dtype)


def _place(draw: st.DrawFn, form: Form, around: tuple[Form, int], unit: int) -> int:
    """Somewhere over or just beside another array."""
    other, at = around
    (low, high), (first, end) = form.reach, other.reach
    least, most = at + first - high, at + end - low
    how = draw(st.sampled_from(
        [*["anywhere"] * 5, "same", "last of it", "first of it", "before", "behind"]
    ))  # fmt: skip
    if how == "anywhere":
        return least + unit * draw(st.integers(1, max(1, (most - least) // unit - 1)))
    known = {"same": at, "last of it": most - unit, "first of it": least + unit,
             "before": least, "behind": most}  # fmt: skip
    return known[how]


def _apart(draw: st.DrawFn, form: Form, spans: list[tuple[int, int]], unit: int) -> int:
    """Below or above all of them, perhaps without a gap."""
    gap = unit * draw(st.sampled_from([0, 0, 16]))
    if draw(st.booleans()):
        return max(high for _, high in spans) - form.reach[0] + gap
    return min(low for low, _ in spans) - form.reach[1] - gap


# -- products -------------------------------------------------------------------------------------


@dataclass
class Product:
    """Operands with their places, and the places where ``out`` will be, one per call."""

    forms: dict[str, Form]
    places: dict[str, int]
    out: Form
    outs: list[int]
    cs: list[str]
    """What C is in each call: ``placed``, ``out`` itself or a ``view`` of it."""
    new: bool = False
    """Without ``out``."""
    options: dict[str, Any] = field(default_factory=dict)

    def spans(self) -> list[tuple[int, int]]:
        found = [(self.forms[n], at) for n, at in self.places.items()]
        found += [(self.out, at) for at in self.outs]
        return [(at + f.reach[0], at + f.reach[1]) for f, at in found]

    def arrays(self, memory: Buffer, call: int) -> dict[str, Array]:
        found = {n: memory.view(f, self.places[n]) for n, f in self.forms.items()}
        found["out"] = memory.view(self.out, self.outs[call])
        if "c" in found and self.cs[call] != "placed" and not self.new:
            found["c"] = found["out"] if self.cs[call] == "out" else found["out"][...]
        return found

    def answer(self, arrays: dict[str, Array]) -> Array:
        """From operands copied apart."""
        given = {n: x.copy() for n, x in arrays.items() if n != "out"}
        if self.options.get("numpy"):
            return np.asarray(np.matmul(given["a"], given["b"]))
        flags = {n: v for n, v in self.options.items() if n in ("beta", "conj_a", "conj_b")}
        return exact_gemm(given.pop("a"), given.pop("b"), **given, **flags)


sizes = st.one_of(st.integers(1, 9), st.integers(1, 9), st.integers(10, 16))
orders = st.sampled_from([["apart", "over", "over", "apart", "over", "over"],
                          ["over", "over", "apart", "over", "over", "over"]])  # fmt: skip
# What C is in the calls: itself, or the result's memory as this array or as another.
SAME = [[*("placed", "placed", "view", "out", "view", "placed")],
        [*("view", "placed", "placed", "out", "placed", "view")],
        ["placed"] * 6, ["out"] * 6]  # fmt: skip


@st.composite
def shapes(draw: st.DrawFn, kind: Kind, *, stacked: bool) -> dict[str, tuple[int, ...]]:
    """Of all operands: small ones; a few more columns or two blocks of depth now and then."""
    m, n, k = draw(sizes), draw(sizes), draw(sizes)
    if draw(st.integers(0, 7)) == 7:
        n = draw(st.sampled_from([18, 33]))
    if kind is FLOATS and draw(st.integers(0, 4)) == 4:
        k = 520
    cores = {"a": (m, k), "b": (k, n), "c": (m, n), "out": (m, n)}
    biases = [None, None, (n,), (n,), (1, n), (m, 1), (m, n)]
    bias = draw(st.sampled_from(biases if kind is FLOATS else biases[:3]))
    if bias is not None:
        cores["bias"] = bias
    if not stacked:
        return cores
    batch = draw(st.sampled_from([(2,), (3,), (5,), (2, 3), (3, 1)]))

    def some(core: tuple[int, ...]) -> tuple[int, ...]:
        ones = tuple(x if draw(st.integers(0, 3)) else 1 for x in batch)
        return (*ones[draw(st.sampled_from([0, 0, 0, 1])) :], *core)

    found = {name: some(core) for name, core in cores.items() if name != "out"}
    full = np.broadcast_shapes(found["a"][:-2], found["b"][:-2])
    if len(full) < 1:
        found["a"] = (*batch, m, k)
        full = batch
    for name in ("c", "bias"):
        # They may not have more products than A and B.
        if name in found:
            x = found[name]
            core = cores[name]
            lead = x[: len(x) - len(core)][-len(full) :]
            fits = tuple(min(i, j) for i, j in zip(lead[::-1], full[::-1], strict=False))[::-1]
            found[name] = (*fits, *core)
            if len(core) < 2 and fits:
                # One number per column, with axes in front, has one row.
                found[name] = (*fits, 1, *core)
    return {**found, "out": (*full, m, n)}


@st.composite
def products(
    draw: st.DrawFn, kind: Kind, order: list[str], *, stacked: bool = False, numpy: bool = False
) -> Product:
    found = draw(shapes(kind, stacked=stacked))
    dtypes = {"a": kind.operands, "b": kind.operands}
    result = kind.operands if numpy else kind.result
    out = draw(forms(found["out"], result, out=True))
    names = ["a", "b"]
    if not numpy:
        names += [n for n in ("c", "bias") if n in found and (n != "c" or draw(st.booleans()))]
    given = {n: draw(forms(found[n], dtypes.get(n, result))) for n in names}
    cs = ["placed"] * len(order)
    if "c" in given and draw(st.integers(0, 3)):
        if given["c"].shape == out.shape and draw(st.integers(0, 2)):
            given["c"] = out
        cs = draw(st.sampled_from(SAME))[: len(order)]
    places = {n: _place(draw, f, (out, 0), kind.unit) for n, f in given.items()}
    made = Product(given, places, out, [0], cs)
    over = [_over(draw, out, given, places, kind.unit) for _ in order]
    made.outs = over
    apart = _apart(draw, out, made.spans(), kind.unit)
    made.outs = [apart if x == "apart" else at for x, at in zip(order, over, strict=True)]
    if "c" in given:
        made.options["beta"] = -2
    if kind is COMPLEX:
        made.options |= {f"conj_{x}": draw(st.booleans()) for x in "ab"}
    if numpy:
        made.options["numpy"] = True
    return made


def _over(
    draw: st.DrawFn, out: Form, given: dict[str, Form], places: dict[str, int], unit: int
) -> int:
    """Where ``out`` meets one of the operands."""
    # The smallest operand is the one that is easily forgotten.
    names = [*sorted(given), *(["bias"] if "bias" in given else [])]
    name = draw(st.sampled_from(names))
    return _place(draw, out, (given[name], places[name]), unit)


def _memory(kind: Kind, found: list[Product], seed: int) -> Buffer:
    spans = [s for p in found for s in p.spans()]
    return Buffer(kind, min(low for low, _ in spans), max(high for _, high in spans), seed)


Call = Callable[[list[dict[str, Array]], int], list[Array]]


def _check(memory: Buffer, found: list[Product], index: int, call: Call) -> None:
    """One call: the right numbers in ``out`` and nowhere else, or a refusal and nothing at all."""
    memory.fill()
    arrays = [p.arrays(memory, index) for p in found]
    wants = [p.answer(x) for p, x in zip(found, arrays, strict=True)]
    outs = [(p.out, p.outs[index]) for p in found if not p.new]
    mine = [form.bytes_at(at) for form, at in outs]
    used = np.concatenate([*mine, np.zeros(0, int)])
    refused = len(np.unique(used)) < len(used)
    before = memory.raw.copy()
    try:
        got = call(arrays, index)
    except ValueError:
        # Whether interleaved results meet may be too hard to say; one that meets itself is not.
        ranges = sorted((x.min(), x.max()) for x in mine)
        near = any(x[1] >= y[0] for x, y in itertools.pairwise(ranges))
        assert refused or near, "refused without a reason"
        assert not memory.differs(before, used[:0]), "a refusal wrote something"
        return
    assert not refused, "an out that shares memory with itself or with another was taken"
    for p, x, y, want in zip(found, arrays, got, wants, strict=True):
        assert p.new or y is x["out"]
        equal(y, want)
    assert not memory.differs(before, used), "bytes outside out have changed"


def _given(arrays: dict[str, Array], p: Product) -> dict[str, Any]:
    others = {n: arrays[n] for n in ("c", "bias") if n in arrays}
    return {**others, **{n: v for n, v in p.options.items() if n != "numpy"}}


seeds = st.integers(0, 2**32)
counts = st.sampled_from([1, 2])
workspaces = st.sampled_from([None, None, "given"])


def _workspace(how: str | None) -> jitgemm.Workspace | None:
    return jitgemm.Workspace() if how else None


@relaxed
@given(st.data(), kinds, orders, counts, st.booleans(), workspaces)
def test_c14_gemm_in_one_buffer(
    data: st.DataObject, kind: Kind, order: list[str], threads: int, stacked: bool,  # noqa: FBT001
    workspace: str | None,
) -> None:  # fmt: skip
    p = data.draw(products(kind, order, stacked=stacked))
    memory, space = _memory(kind, [p], data.draw(seeds)), _workspace(workspace)
    forget_plans()

    def call(arrays: list[dict[str, Array]], index: int) -> list[Array]:
        x = arrays[0]
        options = {"out": x["out"], "threads": threads, "workspace": space, **_given(x, p)}
        return [jitgemm.gemm(x["a"], x["b"], **options)]

    for i in range(len(order)):
        _check(memory, [p], i, call)


@relaxed
@given(st.data(), kinds, orders, counts, st.booleans())
def test_c14_matmul_in_one_buffer(
    data: st.DataObject, kind: Kind, order: list[str], threads: int, stacked: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    p = data.draw(products(kind, order, stacked=stacked, numpy=True))
    p.options = {"numpy": True}
    memory, keyword = _memory(kind, [p], data.draw(seeds)), data.draw(st.booleans())
    forget_plans()

    def call(arrays: list[dict[str, Array]], index: int) -> list[Array]:
        x = arrays[0]
        count = {"threads": threads} if keyword or threads > 1 else {}
        return [jitgemm.matmul(x["a"], x["b"], x["out"], **count)]

    for i in range(len(order)):
        _check(memory, [p], i, call)


@relaxed
@given(st.data(), kinds, orders, counts, st.booleans(), workspaces, st.booleans())
def test_c14_plans_in_one_buffer(
    data: st.DataObject, kind: Kind, order: list[str], threads: int, stacked: bool,  # noqa: FBT001
    workspace: str | None, told: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    """Made where ``out`` is at first, and called wherever it is; C and the bias stay bound."""
    p = data.draw(products(kind, order, stacked=stacked))
    # C is bound: it is where it was when the plan was made.
    p.cs = ["placed"] * len(order)
    if "c" in p.forms and p.forms["c"] == p.out and data.draw(st.booleans()):
        p.places["c"] = p.outs[0]
    memory, space = _memory(kind, [p], data.draw(seeds)), _workspace(workspace)
    forget_plans()
    made: list[Any] = []

    def call(arrays: list[dict[str, Array]], index: int) -> list[Array]:
        x = arrays[0]
        if not made:
            like = x["out"] if told else None
            if told and p.forms.get("c") == p.out and p.places["c"] == p.outs[index]:
                x["c"] = x["out"]
            made.append(jitgemm.plan(x["a"], x["b"], out=like, threads=threads, workspace=space,
                                     **_given(x, p)))  # fmt: skip
        return [made[0](x["a"], x["b"], x["out"])]

    for i in range(len(order)):
        _check(memory, [p], i, call)


@st.composite
def lists(draw: st.DrawFn, kind: Kind, order: list[str]) -> list[Product]:
    """Several products whose operands lie over each other's results."""
    found: list[Product] = []
    count, shared = draw(st.integers(1, 5)), draw(st.booleans())
    # Of two blocks of depth, sums rest in a result, unless that is C.
    deep = kind is FLOATS and draw(st.integers(0, 2)) == 2
    for _ in range(count):
        if found and (shared or deep):
            # Of the same shapes and strides, so that they share what is remembered.
            first = found[0]
            p = Product(first.forms, {}, first.out, [], [], options=first.options)
            p.cs = draw(st.sampled_from(SAME))[: len(order)]
        else:
            p = draw(products(kind, order))
            p.options.pop("beta", None)
            if deep:
                m, n = p.out.shape
                deeper = {"a": (m, 520), "b": (520, n)}
                p.forms |= {x: draw(forms(y, kind.operands)) for x, y in deeper.items()}
                p.forms["c"] = p.out
                p.cs = draw(st.sampled_from(SAME[:2]))
        p.outs, p.new = [0], draw(st.integers(0, 7)) == 7
        found.append(p)
    beta = any("c" in p.forms for p in found)
    for p in found:
        p.options = {**found[0].options, **({"beta": -2} if beta else {})}
        if beta and "c" not in p.forms:
            p.forms = {**p.forms, "c": p.out}
            p.cs = draw(st.sampled_from(SAME))[: len(order)]
    _place_lists(draw, found, order, kind.unit)
    return found


def _place_lists(draw: st.DrawFn, found: list[Product], order: list[str], unit: int) -> None:
    """Results side by side, now and then over each other; operands over any of them."""
    over, end = [], 0
    for i, p in enumerate(found):
        at = end - p.out.reach[0] + unit * draw(st.sampled_from([0, 0, 1, 9]))
        if i and draw(st.integers(0, 9)) == 9:
            at = _place(draw, p.out, (found[i - 1].out, over[-1]), unit)
        over.append(at)
        end = max(end, at + p.out.reach[1])
    for i, p in enumerate(found):
        for name, form in p.forms.items():
            target = draw(st.integers(0, len(found) - 1))
            p.places[name] = _place(draw, form, (found[target].out, over[target]), unit)
        if "c" in p.forms and draw(st.integers(0, 3)) == 3:
            # Where the result begins, with other strides or the same.
            p.places["c"] = over[i]
    # All of them move together, so that they stay beside one another.
    shifts = [unit * draw(st.integers(-20, 20)) for _ in order]
    spans = [s for p in found for s in p.spans()]
    spans = [(low + x, high + x) for low, high in spans for x in (min(shifts), 0, max(shifts))]
    end += max(0, *shifts)
    spans.append((min(low for low, _ in spans), max(end, *(high for _, high in spans))))
    for p, at in zip(found, over, strict=True):
        apart = _apart(draw, p.out, spans, unit)
        spans.append((apart + p.out.reach[0], apart + p.out.reach[1]))
        # Some results stay apart in every call.
        always = draw(st.integers(0, 5)) == 5
        p.outs = [
            at + shift if x == "over" and not always else apart
            for x, shift in zip(order, shifts, strict=True)
        ]


@relaxed
@given(st.data(), kinds, orders, counts, workspaces)
def test_c14_lists_in_one_buffer(
    data: st.DataObject, kind: Kind, order: list[str], threads: int, workspace: str | None
) -> None:
    found = data.draw(lists(kind, order))
    memory, space = _memory(kind, found, data.draw(seeds)), _workspace(workspace)
    forget_plans()
    options = {**found[0].options, "threads": threads, "workspace": space}

    def call(arrays: list[dict[str, Array]], index: int) -> list[Array]:
        given: dict[str, Any] = {
            name: [x.get(name) for x in arrays] for name in ("a", "b", "c", "bias", "out")
        }
        given["out"] = [None if p.new else x for p, x in zip(found, given["out"], strict=True)]
        return jitgemm.gemm_batched(given.pop("a"), given.pop("b"), **given, **options)

    for i in range(len(order)):
        _check(memory, found, i, call)


@pytest.mark.parametrize("met", range(7))
@pytest.mark.parametrize("whose", [0, 1])
def test_c14_a_bias_of_a_list_that_meets_a_result_in_some_numbers(whose: int, met: int) -> None:
    """At its end, however few: of the own result, whose first rows are done first, or another's."""
    (m, n), rng = (12, 6), np.random.default_rng(7)
    a, b = integers(rng, (2, m, 5), np.float32), integers(rng, (5, n), np.float32)
    flat = np.zeros(2 * m * n + n, np.float32)
    outs = flat[n:].reshape(2, m, n)
    start = whose * m * n
    for _ in range(2):
        flat[:] = rng.integers(-4, 5, flat.size)
        bias = flat[start + met : start + met + n]
        wants = [exact_gemm(x, b, bias=bias.copy()) for x in a]
        got = jitgemm.gemm_batched(list(a), b, bias=[bias] * 2, out=list(outs), threads=1)
        for x, want in zip(got, wants, strict=True):
            equal(x, want)


@pytest.mark.parametrize("first", ["apart", "in place", "turned"])
def test_c14_a_list_whose_c_is_the_memory_of_out(first: str) -> None:
    """Through another array, as it is or turned, before and after one elsewhere; deep sums."""
    rng, count = np.random.default_rng(8), 6
    a, b = integers(rng, (20, 1100), np.float32), integers(rng, (1100, 20), np.float32)
    outs = np.zeros((count, 20, 20), np.float32)
    kinds = {
        "apart": integers(rng, outs.shape, np.float32),
        "in place": outs[:],
        "turned": outs.swapaxes(1, 2),
    }
    order = [first, *(kind for kind in kinds if kind != first)]
    for kind in order * 2:
        outs[...] = integers(rng, outs.shape, np.float32)
        wants = [exact_gemm(a, b, beta=2, c=c.copy()) for c in kinds[kind]]
        got = jitgemm.gemm_batched([a] * count, b, beta=2, c=list(kinds[kind]), out=list(outs))
        for x, want in zip(got, wants, strict=True):
            equal(x, want, kind)
