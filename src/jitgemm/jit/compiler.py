"""Compiles units to machine code: in memory once per process, on disk once per machine.

LLJIT links position-independent objects and makes their pages executable only after it has written
them (never both at once); symbols that cannot be resolved are errors.

The units used last are kept, up to the knobs ``code_units`` and ``code_bytes``.  Others live as
long as somebody holds their :class:`Compiled`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn
from weakref import ref

from jitgemm import tuning
from jitgemm.isa.tables import Isa
from jitgemm.isa.types import BY_NAME
from jitgemm.jit import cache, pages
from jitgemm.jit.building import building
from jitgemm.jit.target import check_executable_memory, host, llvm, target_machine
from jitgemm.kernels.exports import gemm_functions
from jitgemm.kernels.spec import GemmSpec
from jitgemm.lang.core import Function
from jitgemm.lang.llvm import LlvmKernel
from jitgemm.lang.module import LlvmModule

__all__ = [
    "Compiled", "Unit", "assembly", "compiled", "emit_object", "gemm_unit", "get", "text",
    "when_full",
]  # fmt: skip

# Objects one linker links.  Of one that is freed LLVM keeps 10 KiB until its linker goes, with the
# last of its objects.  A linker itself takes 130 KiB.
_PER_LINKER = 32


@dataclass(frozen=True)
class Unit:
    """One translation unit: exported functions and what identifies the code.

    ``identity`` says, together with the package's own source, all about the code.  A unit without
    one is identified by its text, which must be generated first.
    """

    name: str
    isa: Isa
    exports: Callable[[], list[Function]]
    kernel_class: type[LlvmKernel] = LlvmKernel
    identity: str | None = None

    _key: list[str] = field(init=False, default_factory=list, repr=False, compare=False)

    @property
    def key(self) -> str:
        """Identifies the unit in memory and, with the machine, on disk."""
        # Kept by hand: a cached property of the standard library holds a lock while it is computed.
        if not self._key:
            identity = self.identity
            if identity is None:
                identity = hashlib.sha256(text(self).encode()).hexdigest()
            self._key.append(f"{self.name}\0{identity}")
        return self._key[0]


@dataclass(eq=False)
class Compiled:
    """Machine code in memory.

    Its pages stay as long as this object: whoever keeps an address keeps the object too.
    """

    name: str
    addresses: dict[str, int]
    source: str
    """``compiled`` or ``disk cache``."""
    nbytes: int
    """Of the object it was linked from."""
    _token: object = field(repr=False)

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise TypeError("machine code cannot be copied or pickled")

    def function(self, name: str, *kinds: Any) -> Callable[..., None]:
        """An exported function that keeps its pages, to be called from Python.

        Args:
            name: of the function.
            kinds: ctypes of its arguments.
        """
        call = ctypes.CFUNCTYPE(None, *kinds)(self.addresses[name])
        call.code = self  # type: ignore[attr-defined]
        return call

    def entry(self, function: Function) -> Callable[..., Any]:
        """An exported function, called with plain numbers: as :meth:`function`, by declaration."""
        kinds = [_ctype(kind) for _, kind in function.params]
        call = ctypes.CFUNCTYPE(_ctype(function.result), *kinds)(self.addresses[function.name])
        call.code = self  # type: ignore[attr-defined]
        return call


_CTYPES = {"void": None, "int": ctypes.c_int64, "ptr": ctypes.c_void_p}
_FLOATS = {4: ctypes.c_float, 8: ctypes.c_double}


def _ctype(kind: str) -> Any:
    """What ctypes calls a kind of parameter or result; formats of bits are unsigned integers."""
    if kind in _CTYPES:
        return _CTYPES[kind]
    element = BY_NAME[kind]
    if not element.integral and not element.format:
        return _FLOATS[element.bytes]
    sign = "" if element.signed and not element.format else "u"
    return getattr(ctypes, f"c_{sign}int{element.bits}")


class _Store:
    """Process-wide state: the linker and what it has linked.

    A unit is looked for without a lock, so whatever runs Python in between may do the same.
    """

    def __init__(self) -> None:
        # Least recently used first.
        self.units: dict[str, Compiled] = {}
        self.alive: dict[str, ref[Compiled]] = {}
        self.lljit: Any = None
        self.links = itertools.count(1)
        self.names = itertools.count(1)
        self.holders: list[Callable[[], bool]] = []

    def find(self, key: str) -> Compiled | None:
        """A unit that is in memory, which thereby is the one used last."""
        found = self.units.pop(key, None)
        if found is not None:
            self.units[key] = found
            return found
        known = self.alive.get(key)
        found = None if known is None else known()
        if found is not None:
            self.units[key] = found
            self.evict()
        return found

    def keep(self, key: str, made: Compiled) -> Compiled:
        """Keep a unit just linked; the one to be used, which may be another call's."""
        kept = self.units.setdefault(key, made)
        self.alive[key] = ref(kept)
        self.evict()
        return kept

    def kept(self) -> tuple[int, int]:
        """How many units are kept, and their bytes."""
        sizes = [x.nbytes for x in list(self.units.values())]
        return len(sizes), sum(sizes)

    def evict(self) -> None:
        """Let go of the units used least recently, but for the last one."""
        while len(self.units) > 1 and _beyond(*self.kept()):
            for oldest in list(self.units)[:1]:
                self.units.pop(oldest, None)

    def make_room(self) -> None:
        """Free what nobody holds, and have plans forgotten while they hold too much besides.

        Only while the lock of building is held.
        """
        pages.free()
        while self._crowded() and sum(forget() for forget in self.holders):
            pages.free()
        for key in list(self.alive):
            known = self.alive.get(key)
            if known is not None and known() is None:
                self.alive.pop(key, None)

    def _crowded(self) -> bool:
        (count, nbytes), (kept, kept_bytes) = pages.linked(), self.kept()
        return _beyond(count - kept, nbytes - kept_bytes)


_store = _Store()


@functools.cache
def limits() -> tuple[int, int]:
    """How many units are kept, and how many bytes of objects they may have together."""
    return tuning.environment("code_units"), tuning.environment("code_bytes")


def _beyond(count: int, nbytes: int) -> bool:
    most, most_bytes = limits()
    return count > most or nbytes > most_bytes


def when_full(forget: Callable[[], bool]) -> None:
    """Have ``forget`` called while more code is held elsewhere than is kept here at most.

    It runs under the lock of building, forgets what was used least recently of what may hold code,
    and says whether there was anything.
    """
    _store.holders.append(forget)


def gemm_unit(spec: GemmSpec) -> Unit:
    """The unit of a GEMM spec."""
    unit = spec.isa.unit
    outside = not all(x.builtin for x in spec.epilogue.programs)
    if outside or (spec.tiles and unit is not None and unit.emulated):
        # What functions from outside write is known only once it is written.
        return Unit(spec.symbol, spec.isa, lambda: gemm_functions(spec))
    return Unit(spec.symbol, spec.isa, lambda: gemm_functions(spec), identity=spec.digest)


def text(unit: Unit) -> str:
    """The unit's LLVM IR as generated (same unit, same text)."""
    return LlvmModule(unit.name, unit.isa, unit.kernel_class or LlvmKernel).emit(unit.exports())


def _optimized(unit: Unit) -> Any:
    machine, module = target_machine(unit.isa), llvm().parse_assembly(text(unit))
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    # The generator already unrolls and schedules; these passes turn variables into registers and
    # fold the rest.  The full -O2 pipeline takes 300 ms longer per unit and gains nothing.
    tuning_options = llvm().create_pipeline_tuning_options(speed_level=2)
    builder = llvm().create_pass_builder(machine, tuning_options)
    passes = llvm().create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.add_new_gvn_pass()
    passes.run(module, builder)
    return module


def assembly(unit: Unit) -> str:
    """The unit's assembly."""
    with building:
        return str(target_machine(unit.isa).emit_assembly(_optimized(unit)))


def emit_object(unit: Unit) -> bytes:
    """The unit's machine code as an object file, for whatever machine its set is one of."""
    return bytes(target_machine(unit.isa).emit_object(_optimized(unit)))


def _key(unit: Unit) -> str | None:
    """What the unit is called on disk; ``None`` if it cannot be told from another version's."""
    machine, source = host(), cache.source_digest()
    if source is None:
        return None
    parts = (
        unit.key,
        source,
        machine.llvm,
        machine.triple,
        machine.cpu,
        ",".join(sorted(machine.features)),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def get(unit: Unit) -> Compiled:
    """Machine code of ``unit``: from memory, from disk, or compiled now (once, whoever asks).

    Raises:
        JitUnavailableError: this process may not, or cannot, make code executable.
    """
    key = unit.key
    known = _store.find(key)
    if known is not None:
        return known
    with cache.WarningsLater(), building:
        known = _store.find(key)
        if known is None:
            # A call in the middle of building, as a signal handler's, may build the same: one is
            # kept.
            known = _store.keep(key, _build(unit))
            _store.make_room()
    return known


def _linker(unit: Unit) -> Any:
    linker = _store.lljit
    if linker is None or next(_store.links) % _PER_LINKER == 0:
        # JITLink lays an object's sections out side by side.  The older linker maps each where the
        # system likes, and aborts the process when that is more than 2 GiB apart.
        linker = llvm().create_lljit_compiler(target_machine(unit.isa), use_jit_link=True)
        _store.lljit = linker
    return linker


def _build(unit: Unit) -> Compiled:
    host()
    # Each time: a process may give the right up after its first product.
    check_executable_memory()
    linker, key = _linker(unit), _key(unit)
    names = [f.name for f in unit.exports()]
    image, source = None if key is None else cache.load(key), "disk cache"
    if image is None:
        image, source = emit_object(unit), "compiled"
        if key is not None:
            cache.store(key, image)
    library = llvm().JITLibraryBuilder().add_object_img(image).add_current_process()
    for name in names:
        library.export_symbol(name)
    # Names only need to differ.
    tracker = library.link(linker, f"{unit.name}#{next(_store.names)}")
    addresses = {name: tracker[name] for name in names}
    size = len(image)
    return Compiled(unit.name, addresses, source, size, pages.token_for(tracker, size))


def compiled() -> list[Compiled]:
    """Every unit in this process's memory."""
    found = [known() for known in list(_store.alive.values())]
    return [x for x in found if x is not None]
