"""Lists of products whose shapes may differ: ``gemm_batched``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from jitgemm.api.call import Call
from jitgemm.api.config import resolve_threads
from jitgemm.api.entries import remember
from jitgemm.api.functions import NAMED, NUMBER
from jitgemm.api.keywords import ListKeywords, Options
from jitgemm.api.kinds import number_of
from jitgemm.api.operands import (
    Array,
    in_place,
    is_weak,
    new_result,
    plain,
    plain_or_packed,
    shares,
)
from jitgemm.api.quantise import with_bias
from jitgemm.api.request import Request, request_of
from jitgemm.api.stubs import public, with_keywords
from jitgemm.errors import message
from jitgemm.planner.batching import alone_in_list
from jitgemm.planner.context import aligned, threads_for
from jitgemm.runtime import numpy_abi
from jitgemm.runtime.engine import engine, started
from jitgemm.runtime.executables import executable_for
from jitgemm.runtime.list_code import list_scratch
from jitgemm.runtime.lists import Listed, listed, run_list
from jitgemm.runtime.memory import Workspace
from jitgemm.runtime.packed import Packed

__all__ = ["gemm_batched"]

_OPERANDS = ("a", "b", "c", "bias", "out")


class _Requests:
    """What the options all products of a list share mean for each: found out once per kind."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._known: dict[tuple[Any, ...], Request] = {}

    def of(self, a: Any, b: Any) -> Request | None:
        """For two operands; ``None`` where whoever validates them finds it out."""
        if not (_is_operand(a) and _is_operand(b) and a.ndim == b.ndim == 2):
            return None
        if number_of(a.dtype) is None or number_of(b.dtype) is None:
            return None
        conj = (isinstance(x, Packed) and x.conj for x in (a, b))
        key = (a.dtype, b.dtype, a.shape[0], b.shape[1], *conj)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = request_of(self.options, a, b)
        return found


def _is_operand(x: object) -> bool:
    return type(x) is np.ndarray or isinstance(x, Packed)


def _listed(name: str, value: object, count: int) -> list[Any]:
    """One entry per product."""
    if value is None:
        return [None] * count
    if not isinstance(value, (list, tuple)):
        raise TypeError(message(name, "None or a list", type(value).__name__))
    if len(value) != count:
        raise ValueError(message(name, f"{count} entries", len(value)))
    return list(value)


def _operands(a: Any, b: Any) -> tuple[list[Any], list[Any]]:
    """Both as lists; one array or handle stands for as many."""
    lists = [x if isinstance(x, (list, tuple)) else None for x in (a, b)]
    count = next((len(x) for x in lists if x is not None), None)
    if count is None:
        raise TypeError(message("a", "a list, or b one", type(a).__name__))
    left, right = (
        _listed(name, x, count)
        if x is None or isinstance(x, (list, tuple))
        else [plain_or_packed(name, x)] * count
        for name, x in (("a", a), ("b", b))
    )
    return left, right


def _at(x: Any) -> int:
    """Where an operand begins."""
    if isinstance(x, Packed):
        return int(x.address)
    return numpy_abi.data_address(x)


def _taken(name: str, x: Any) -> Any:
    """An operand as an array, if it is not to take the type of its product's."""
    if type(x) is np.ndarray or x is None or isinstance(x, Packed):
        return x
    if name == "out":
        return in_place(name, x)
    return x if name in ("c", "bias") and is_weak(x) else plain(name, x)


class _Problem:
    """One product of the list, checked."""

    __slots__ = ("alone", "call", "copied", "given", "returned", "target")

    def __init__(self, given: dict[str, Any], requests: _Requests) -> None:
        self.given: dict[str, Any] = {name: _taken(name, x) for name, x in given.items()}
        self.returned = given["out"]
        a, b, c, bias, out = (self.given[name] for name in _OPERANDS)
        options = replace(requests.options, c=c, bias=bias, out=out)
        for name, x in (("a", a), ("b", b)):
            if x.ndim > 2:
                got = f"{x.ndim} dimensions"
                raise ValueError(message(name, "a matrix (2 dimensions)", got))
        self.call = Call(a, b, options, request=requests.of(a, b))
        self.copied = False
        # It has all threads.
        self.alone = False
        self.target: Array | None = None

    @property
    def inputs(self) -> list[Array]:
        """Arrays it reads, but for a C that is its own result."""
        arrays = [x for x in (self.given[n] for n in ("a", "b", "bias")) if x is not None]
        c = self.given["c"]
        if c is not None and not self.in_place:
            arrays.append(c)
        return [x for x in arrays if isinstance(x, np.ndarray)]

    @property
    def in_place(self) -> bool:
        """Whether C is the result's own memory."""
        c, out = self.given["c"], self.given["out"]
        if c is None or out is None or not isinstance(c, np.ndarray):
            return False
        same = c.strides == out.strides and c.dtype == out.dtype and c.shape == out.shape
        return bool(same) and _at(c) == _at(out)

    def prepare(self) -> None:
        """Find the memory its result is computed in."""
        out = self.given["out"]
        if out is None or self.copied:
            out = new_result(self.call.shape, self.call.dtype)
        self.target = out

    @property
    def operations(self) -> int:
        """Arithmetic operations, 0 for an empty result."""
        return self.call.operations

    def listed(self) -> Listed:
        """Its job for a list, planned for one thread."""
        assert self.target is not None
        return listed(self.call.spec(self.target, 1), self.call.operands(self.target))

    def run(self, threads: int) -> None:
        """Do it now, with all threads."""
        assert self.target is not None
        self.call.compute(self.target, threads)

    def finish(self) -> Any:
        """The result."""
        assert self.target is not None
        if self.returned is None:
            return self.target
        if self.copied:
            self.given["out"][...] = self.target
        return self.returned


def _bounds(arrays: list[Array]) -> np.ndarray:
    """First byte and end of each array."""
    found = np.zeros((2, len(arrays)), np.int64)
    for i, x in enumerate(arrays):
        at = _at(x)
        if x.flags.c_contiguous:
            found[:, i] = at, at + x.nbytes
        elif x.size:
            reach = [(n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)]
            found[0, i] = at + sum(min(0, r) for r in reach)
            found[1, i] = at + sum(max(0, r) for r in reach) + x.itemsize
    return found


def _meeting(outs: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Which outs may share bytes with anything, by sorting all ranges."""
    low, high = np.concatenate([outs, inputs], axis=1)
    order = np.argsort(low, kind="stable")
    low, high = low[order], high[order]
    before, after = np.zeros(len(order), bool), np.zeros(len(order), bool)
    before[1:] = np.maximum.accumulate(high)[:-1] > low[1:]
    after[:-1] = low[1:] < high[:-1]
    met = order[before | after]
    return np.asarray(met[met < outs.shape[1]])


def _check_apart(problems: list[_Problem]) -> None:
    """Make sure results do not share memory, and find those that must be computed aside.

    Raises:
        ValueError: two ``out`` share memory.
    """
    mine = [(i, p.given["out"]) for i, p in enumerate(problems) if p.given["out"] is not None]
    if not mine:
        return
    # A C in place is read by its own problem only, whose result it is.
    inputs: dict[int, Array] = {id(x): x for p in problems for x in p.inputs}
    arrays = list(inputs.values())
    outs, read = _bounds([x for _, x in mine]), _bounds(arrays)
    for at in _meeting(outs, read):
        (i, out), (low, high) = mine[at], outs[:, at]
        for j in np.flatnonzero((outs[0] < high) & (low < outs[1])):
            other, x = mine[j]
            if j != at and shares(out, x):
                first, second = sorted((i, other))
                got = f"out[{first}] and out[{second}], which share memory"
                raise ValueError(message("out", "arrays apart from one another", got))
        met = np.flatnonzero((read[0] < high) & (low < read[1]))
        problems[i].copied = any(shares(out, arrays[j]) for j in met)


def _no_matter(*_: object, **__: object) -> None:
    """What of a list's products no signature can tell is found out each time."""


def _met(signature: bytes, a: Any, b: Any, **keywords: Any) -> None:
    """Leave an entry for a product of a list, which is one of a single call on one thread."""
    options = Options.of("gemm_batched", keywords)
    remember(signature, Call(a, b, options), (a, b), options, 1)


_learn = public(_met, NUMBER, ("a", "b"), NAMED, dry=True)(_no_matter)


def _remember(problems: list[_Problem], options: Options, threads: int) -> None:
    """Let the next list like this one stay in generated code."""
    e = started()
    if e is None or e.calls is None:
        return
    keywords = {
        x: y for x, y in options.changed().items() if x not in ("workspace", "out", "c", "bias")
    }
    stride = most = 0
    for p in problems:
        if p.copied or p.call.empty or p.call.blas:
            return
        own = {x: p.given[x] for x in ("out", "c", "bias") if p.given[x] is not None}
        if options.requantize is not None:
            own.pop("bias", None)
        operands, others = (p.given["a"], p.given["b"]), {**keywords, **own}
        _learn(*operands, **{**others, "threads": 1})
        assert p.target is not None
        plan = executable_for(p.call.spec(p.target, 1)).one.plan
        stride = max(stride, aligned(plan.workspace_bytes))
        if p.alone:
            _learn(*operands, **{**others, "threads": threads, "out": p.target})
            plan = executable_for(p.call.spec(p.target, threads)).one.plan
            most = max(most, plan.workspace_bytes)
    scratch = options.workspace or e.scratch
    scratch.reserve(list_scratch(len(problems), max(threads * stride, most)))


@public(None, NUMBER, ("a", "b"), NAMED, code="jitgemm_call_list")
@with_keywords(ListKeywords)
def gemm_batched(a: Any, b: Any, **keywords: Unpack[ListKeywords]) -> list[Array]:
    """Many independent products of matrices, of any shapes and types, in one call.

    Small ones are drawn on demand by the threads, the largest first, each computed whole by one
    thread; products worth several threads come before them, one after the other, each by all
    threads.  Results have the bits of single calls of :func:`gemm`.

    Args:
        a: a list of matrices or of handles from :func:`prepack_lhs`; or one, for all products.
        b: likewise, with :func:`prepack_rhs`.
        **keywords: those of :func:`gemm`, for all products; ``threads`` and ``workspace`` are for
            all of them together.  ``c``, ``out`` and ``bias`` are ``None`` or lists as long, whose
            entries are as for :func:`gemm`.  Arrays of ``out`` must not share memory with one
            another; one that shares memory with an operand of any product is computed aside and
            copied.

    Returns:
        The results: the arrays of ``out``, new ones where there is none.

    Raises:
        TypeError, ValueError, MemoryError, IsaError: as :func:`gemm`, before anything is written;
            a note says which product is meant.
    """
    options = Options.of("gemm_batched", keywords)
    count = resolve_threads(options.threads)
    left, right = _operands(a, b)
    number = len(left)
    lists = {name: _listed(name, getattr(options, name), number) for name in ("c", "bias", "out")}
    lists |= {"a": left, "b": right}
    problems: list[_Problem] = []
    requests = _Requests(options)
    for i in range(number):
        given = {name: entries[i] for name, entries in lists.items()}
        try:
            given["bias"] = with_bias(given["bias"], options.requantize)
            problems.append(_Problem(given, requests))
        except (TypeError, ValueError) as e:
            e.add_note(f"in product {i} of the list")
            raise
    _check_apart(problems)
    for p in problems:
        p.prepare()
    _run_all(problems, count, options.workspace)
    _remember(problems, options, count)
    return [p.finish() for p in problems]


def _run_all(problems: list[_Problem], threads: int, workspace: Workspace | None) -> None:
    """Run what has anything to compute: large products alone, the others as a list."""
    work = [(p.operations, i) for i, p in enumerate(problems) if p.operations]
    if any(p.call.blas for p in problems):
        for _, i in work:
            problems[i].run(threads)
        return
    context, total = engine().context(threads), sum(x for x, _ in work)
    work.sort(key=lambda x: -x[0])
    small = []
    for operations, i in work:
        if not engine().isa.interpreted and not alone_in_list(operations, total, context):
            small.append(problems[i])
            continue
        problems[i].alone = True
        problems[i].run(threads)
        total -= operations
    if small:
        workers = min(len(small), threads_for(total, context))
        run_list([p.listed() for p in small], workers, workspace)
