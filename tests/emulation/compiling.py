"""Compiles for emulated processes, on the machine that emulates them.

LLVM is slow where it is emulated itself: some 15 times.  A session with the plugin ``remote`` has
:func:`emit_remotely` in place of ``jitgemm.jit.compiler.emit_object``; a :class:`Service` of the
machine's own Python answers through a Unix socket, from worker processes, because an error inside
LLVM ends a process.

A unit is sent as its spec where it has one, and written out here by the same source: text takes ten
times as long to write where it is emulated.  The digest of the spec says whether both mean the same
kernel; all other units are sent as text.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import queue
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Client, Connection, Listener
from operator import attrgetter
from pathlib import Path
from typing import Any

from jitgemm.isa.outer import OuterUnit
from jitgemm.isa.tables import BY_NAME, Isa, of_lengths
from jitgemm.isa.types import BY_NAME as ELEMENTS
from jitgemm.isa.types import ElementType
from jitgemm.jit import compiler, target
from jitgemm.kernels.spec import GemmSpec

__all__ = ["SOCKET", "Service", "emit_remotely", "install"]

SOCKET = "JITGEMM_TEST_COMPILER"
"""Where the service listens, in the environment of emulated processes."""

_PATIENCE_S = 300.0


# -- specs as bytes -------------------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    """Rows of tables by what finds them: their operations are functions."""

    def persistent_id(self, x: object) -> tuple[str, ...] | None:
        if isinstance(x, Isa):
            inside = 8 * x.unit.row_bytes if isinstance(x.unit, OuterUnit) else 0
            return "isa", x.name, str(x.vector_bits), str(inside)
        if isinstance(x, ElementType) and ELEMENTS.get(x.name) is x:
            return "element", x.name
        return None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, key: tuple[str, ...]) -> object:
        kind, name, *more = key
        if kind == "element":
            return ELEMENTS[name]
        bits, inside = map(int, more)
        known = BY_NAME.get(name)
        scaled = known is None or known.scalable or isinstance(known.unit, OuterUnit)
        return of_lengths(name, bits, inside) if scaled else known


def _pickled(spec: GemmSpec) -> bytes:
    out = io.BytesIO()
    _Pickler(out).dump(spec)
    return out.getvalue()


# -- the emulated side ----------------------------------------------------------------------------


_specs: dict[str, GemmSpec] = {}
"""By the keys of their units."""


def install() -> None:
    """Have this process's code compiled by the service."""
    compiler.emit_object = emit_remotely
    compiler.gemm_unit = _remembering(compiler.gemm_unit)


def _remembering(make: Callable[[GemmSpec], compiler.Unit]) -> Callable[[GemmSpec], compiler.Unit]:
    """``jitgemm.jit.compiler.gemm_unit``, such that specs of units are known."""

    @functools.wraps(make)
    def gemm_unit(spec: GemmSpec) -> compiler.Unit:
        unit = make(spec)
        if unit.identity is not None:
            _specs[unit.key] = spec
        return unit

    return gemm_unit


def _ask(request: tuple[Any, ...]) -> tuple[str, Any]:
    """The service's answer.  A connection each: a forked child has its own."""
    with Client(os.environ[SOCKET], "AF_UNIX") as service:
        service.send(request)
        if not service.poll(_PATIENCE_S):
            return "failed", f"no answer in {_PATIENCE_S:.0f} s"
        answer: tuple[str, Any] = service.recv()
    return answer


def emit_remotely(unit: compiler.Unit) -> bytes:
    """The unit's machine code as an object file, compiled by the service.

    Raises:
        RuntimeError: LLVM refused it, or died of it.
    """
    kind, answer = "unknown", b""
    asked = target.target_of(unit.isa)
    where = asked.triple, asked.cpu, asked.features
    spec = None if unit.identity is None else _specs.get(unit.key)
    if spec is not None:
        kind, answer = _ask(("spec", where, _pickled(spec), spec.digest))
    if kind == "unknown":
        kind, answer = _ask(("text", where, compiler.text(unit), ""))
    if kind != "object":
        raise RuntimeError(f"{unit.name} cannot be compiled for {' '.join(where)}: {answer}")
    return bytes(answer)


# -- the machine's side ---------------------------------------------------------------------------


def _answer(kind: str, where: tuple[str, str, str], what: Any, digest: str) -> tuple[str, Any]:
    if kind == "spec":
        try:
            spec = _Unpickler(io.BytesIO(what)).load()
        except (KeyError, AttributeError) as e:  # a row of a test's own
            return "unknown", str(e)
        if spec.digest != digest:
            return "unknown", "it is another kernel here"
        what = _write(compiler.gemm_unit(spec))
    return "object", compiler.emit_object(_Text(target.Target(*where), what))  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Text:
    """What the compiler needs of a unit here: a machine in place of an instruction set."""

    isa: target.Target
    text: str


_write = compiler.text


def _work(requests: Connection, errors: str) -> None:
    """A worker process: answers until nobody asks any more."""
    compiler.text = attrgetter("text")
    compiler.target_machine = target._machine_of
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND), 2)
    with suppress(EOFError):
        while True:
            request = requests.recv()
            try:
                answer = _answer(*request)
            except Exception as e:
                answer = "failed", f"{type(e).__name__}: {e}"
            requests.send(answer)


class _Worker:
    """A worker process, replaced when it dies."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        self._start()

    def _start(self) -> None:
        self._errors.write_text("")
        context = get_context("spawn")
        self._pipe, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, str(self._errors)), daemon=True)
        self.process.start()
        other.close()

    def answer(self, request: Any) -> tuple[str, Any]:
        try:
            self._pipe.send(request)
            answer: tuple[str, Any] = self._pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            said = self._errors.read_text().strip() or "without a word"
            answer = "failed", f"LLVM ended its process ({self.process.exitcode}): {said}"
            self._pipe.close()
            self._start()
        return answer

    def end(self) -> None:
        self._pipe.close()
        self.process.join()


class Service:
    """``with Service(workers) as path``: answers at a socket until the block ends."""

    def __init__(self, workers: int = 2) -> None:
        self._count = workers
        self.answered: list[str] = []
        """What came: ``spec`` or ``text``, and what became of it."""

    def __enter__(self) -> str:
        self._folder = tempfile.TemporaryDirectory(prefix="jitgemm-compiler-")
        folder = Path(self._folder.name)
        path = str(folder / "socket")
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._workers = [_Worker(folder / f"errors {i}") for i in range(self._count)]
        for worker in self._workers:
            self._idle.put(worker)
        self._listener = Listener(path, "AF_UNIX", backlog=64)
        threading.Thread(target=self._listen, daemon=True).start()
        return path

    def _listen(self) -> None:
        # Closing the listener is how it ends.
        with suppress(OSError):
            while True:
                client = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: Connection) -> None:
        # An emulated process may be gone by now.
        with client, suppress(EOFError, OSError):
            request = client.recv()
            worker = self._idle.get()
            try:
                answer = worker.answer(request)
            finally:
                self._idle.put(worker)
            self.answered.append(f"{request[0]} {answer[0]}")
            client.send(answer)

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for worker in self._workers:
            worker.end()
        self._folder.cleanup()
