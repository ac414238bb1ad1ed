"""Lists of products whose shapes may differ: ``gemm_batched``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from jitgemm.api import blas
from jitgemm.api.batched import shares
from jitgemm.api.config import resolve_threads
from jitgemm.api.dispatch import key_of, lasting_key, table_scalars
from jitgemm.api.keeping import keep
from jitgemm.api.operands import (
    Array,
    in_place,
    is_weak,
    new_result,
    plain,
    plain_or_packed,
)
from jitgemm.api.product import Options, Product, executable_for
from jitgemm.api.quantise import Requantize, with_bias
from jitgemm.api.request import Request, Told, data_of, told
from jitgemm.errors import message
from jitgemm.kernels.job import JOB
from jitgemm.planner.batching import alone_in_list
from jitgemm.planner.choices import threads_for
from jitgemm.runtime import numpy_abi
from jitgemm.runtime.data import Factors, Tables, put
from jitgemm.runtime.driver import Executable
from jitgemm.runtime.engine import engine
from jitgemm.runtime.lists import Listed, run_list
from jitgemm.runtime.memory import Workspace
from jitgemm.runtime.packed import Packed

__all__ = ["gemm_batched"]

_KEPT = 1024
_OPERANDS = ("a", "b", "c", "bias", "out")


@dataclass(frozen=True, slots=True)
class _Ready:
    """What is known of a product from an earlier one like it: all but addresses and data."""

    executable: Executable
    job: np.ndarray
    """With the data of a call that brings none."""
    tables: Tables
    """What those refer to."""
    fields: dict[str, str]
    """Job fields by operand."""
    shape: tuple[int, int]
    dtype: np.dtype
    operations: int


_ready: dict[tuple[Any, ...], _Ready] = {}


class _Call:
    """The options all products of a list share, and what they mean for each."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values
        # Requests made in this call, which take a while; a function is traced once per type.
        self._requests: dict[tuple[Any, ...], Told] = {}

    def told(self, a: Any, b: Any) -> Told | None:
        """The form and the data of a product; ``None`` if it must be found out."""
        if not (_is_operand(a) and _is_operand(b) and a.ndim == b.ndim == 2):
            return None
        known = self._requests.get(self._key(a, b)) if self._requests else None
        if known is not None:
            return known
        found = told(self.values, a, b)
        if found is not None and isinstance(found[1], Request):
            self._requests[self._key(a, b)] = found
        return found

    @staticmethod
    def _key(a: Any, b: Any) -> tuple[Any, ...]:
        conj = (isinstance(x, Packed) and x.conj for x in (a, b))
        return (a.dtype, b.dtype, a.shape[0], b.shape[1], *conj)


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

    __slots__ = ("call", "copied", "data", "given", "key", "product", "ready", "request",
                 "returned", "target")  # fmt: skip

    def __init__(self, given: dict[str, Any], call: _Call) -> None:
        self.call = call
        self.given: dict[str, Any] = {
            name: x if x is None or type(x) is np.ndarray else _taken(name, x)
            for name, x in given.items()
        }
        self.returned = given["out"]
        self.request: Request | None = None
        self.product: Product | None = None
        self.data: Request | Factors | None = None
        self.key = self._key()
        self.ready = _ready.get(self.key) if self.key else None
        self.copied = False
        self.target: Array | None = None
        if self.ready is None:
            self.product = self._product()

    def _key(self) -> tuple[Any, ...]:
        """What decides its plan; empty if that must be found out."""
        a, b, c, bias, out = (self.given[name] for name in _OPERANDS)
        found = self.call.told(a, b)
        if found is None:
            return ()
        form, self.data, _ = found
        if isinstance(self.data, Request):
            self.request = self.data
        if out is not None and not (isinstance(out, np.ndarray) and out.flags.writeable):
            return ()
        try:
            # Sums of deep products must not rest in a D that is C, whichever array says so.
            return *key_of(a, b, out, c, bias, form, 1), c is not None and self.in_place
        except TypeError:  # no arrays
            return ()

    def _product(self) -> Product:
        given = Options(*self.call.values)
        given.c, given.bias = self.given["c"], self.given["bias"]
        return Product(self.given["a"], self.given["b"], self.given["out"], given, self.request)

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
        if self.copied and self.product is None:
            self.product = self._product()
        if out is not None and not self.copied:
            self.target = out
            return
        if self.product is not None:
            self.target = new_result((self.product.m, self.product.n), self.product.dtype)
        else:
            assert self.ready is not None
            self.target = new_result(self.ready.shape, self.ready.dtype)

    @property
    def operations(self) -> int:
        """Arithmetic operations, 0 for an empty result."""
        if self.product is not None:
            p = self.product
            return int(2 * p.m * p.n * max(p.k, 1) * p.parts**2)
        assert self.ready is not None
        return self.ready.operations

    def listed(self) -> Listed:
        """Its job for a list, planned for one thread."""
        if self.product is None:
            ready = self.ready
            assert ready is not None
            job = ready.job.copy()
            for name, field in ready.fields.items():
                x = self.target if name == "out" else self.given[name]
                job[JOB.slot(field)] = _at(x)
            executable = ready.executable
            record, tables = data_of(executable.data, self.data)
            if record is None:
                tables = ready.tables
            else:
                put(job, record)
            return Listed(executable.plan, executable.address, job, tables, executable)
        product, target = self.product, self.target
        assert target is not None
        executable = executable_for(product.problem(target), 1)
        job = executable.template.copy()
        for field, span in product.spans(target, executable).items():
            job[JOB.slot(field)] = span.address
        tables = executable.data.write(job, product.scalars)
        if self.key and not self.copied and self._native():
            self._keep(product, executable)
        return Listed(executable.plan, executable.address, job, tables, executable)

    def _native(self) -> bool:
        """Whether no operand has another byte order, which may have made a copy of it."""
        return all(x.dtype.isnative for x in self.given.values() if type(x) is np.ndarray)

    def _keep(self, product: Product, executable: Executable) -> None:
        swapped = executable.plan.swapped
        fields = {"a": "b" if swapped else "a", "b": "a" if swapped else "b", "out": "d"}
        for name in ("a", "b"):
            if isinstance(self.given[name], Packed):
                fields[name] = "packed"
        if product.c is not None:
            fields["c"] = "c"
        if product.bias is not None:
            fields["bias"] = "bias"
        shape = product.m, product.n
        scalars, _ = table_scalars(product.scalars)
        job = executable.template.copy()
        tables = {} if scalars is None else executable.data.write(job, scalars)
        ready = _Ready(executable, job, tables, fields, shape, product.dtype, self.operations)
        keep(_ready, lasting_key(self.key), ready, _KEPT)

    def run(self, threads: int) -> None:
        """Do it now, with all threads."""
        product, target = self.product or self._product(), self.target
        assert target is not None
        if product.blas:
            blas.run(product, target)
            return
        executable = executable_for(product.problem(target), threads)
        spans = product.spans(target, executable)
        executable.run(spans, product.scalars, product.workspace)

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


def gemm_batched(
    a: Any,
    b: Any,
    *,
    alpha: object = 1,
    beta: object = 0,
    c: Sequence[Any] | None = None,
    out: Sequence[Any] | None = None,
    bias: Sequence[Any] | None = None,
    activation: object = None,
    epilogue: Callable[[Any, Any, Any], Any] | None = None,
    conj_a: bool = False,
    conj_b: bool = False,
    threads: int | None = None,
    workspace: Workspace | None = None,
    reproducible: str = "default",
    backend: str = "jit",
    a_zero_point: object = None,
    b_zero_point: object = None,
    requantize: Requantize | None = None,
    out_dtype: DTypeLike | None = None,
    allow_bf16_dot: bool = False,
) -> list[Array]:
    """Many independent products of matrices, of any shapes and types, in one call.

    Small ones are drawn on demand by the threads, the largest first, each computed whole by one
    thread; products worth several threads come before them, one after the other, each by all
    threads.  Results have the bits of single calls of :func:`gemm`.

    Args:
        a: a list of matrices or of handles from :func:`prepack_lhs`; or one, for all products.
        b: likewise, with :func:`prepack_rhs`.
        alpha: as for :func:`gemm`, for all products.
        beta: as for :func:`gemm`, for all products.
        c: ``None``, or a list as long, whose entries are as for :func:`gemm`.
        out: ``None``, or a list as long, whose entries are ``None`` or as for :func:`gemm`; they
            must not share memory with one another.  One that shares memory with an operand of any
            product is computed aside and copied.
        bias: ``None``, or a list as long, whose entries are as for :func:`gemm`.
        activation: as for :func:`gemm`.
        epilogue: as for :func:`gemm`.
        conj_a: as for :func:`gemm`.
        conj_b: as for :func:`gemm`.
        threads: at most this many threads.
        workspace: scratch to reuse between calls.
        reproducible: as for :func:`gemm`.
        backend: as for :func:`gemm`.
        a_zero_point: as for :func:`gemm`.
        b_zero_point: as for :func:`gemm`.
        requantize: as for :func:`gemm`.
        out_dtype: as for :func:`gemm`.
        allow_bf16_dot: as for :func:`gemm`.

    Returns:
        The results: the arrays of ``out``, new ones where there is none.

    Raises:
        TypeError, ValueError, MemoryError, IsaError: as :func:`gemm`, before anything is written;
            a note says which product is meant.
    """
    count = resolve_threads(threads)
    left, right = _operands(a, b)
    number = len(left)
    lists = {"c": _listed("c", c, number), "bias": _listed("bias", bias, number),
             "out": _listed("out", out, number), "a": left, "b": right}  # fmt: skip
    values = (
        alpha, beta, activation, conj_a, conj_b, epilogue, workspace, reproducible, backend,
        a_zero_point, b_zero_point, requantize, out_dtype, allow_bf16_dot,
    )  # fmt: skip
    problems: list[_Problem] = []
    call = _Call(values)
    for i in range(number):
        given = {name: entries[i] for name, entries in lists.items()}
        given["bias"] = with_bias(given["bias"], requantize)
        try:
            problems.append(_Problem(given, call))
        except (TypeError, ValueError) as e:
            e.add_note(f"in product {i} of the list")
            raise
    _check_apart(problems)
    for p in problems:
        p.prepare()
    _run_all(problems, count, workspace)
    return [p.finish() for p in problems]


def _run_all(problems: list[_Problem], threads: int, workspace: Workspace | None) -> None:
    """Run what has anything to compute: large products alone, the others as a list."""
    work = [(p.operations, i) for i, p in enumerate(problems) if p.operations]
    if any(p.product is not None and p.product.blas for p in problems):
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
        problems[i].run(threads)
        total -= operations
    if small:
        workers = min(len(small), threads_for(total, context))
        run_list([p.listed() for p in small], workers, workspace)
