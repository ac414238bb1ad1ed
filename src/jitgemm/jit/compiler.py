"""Compiles units to machine code: in memory once per process, on disk once per machine.

LLJIT links position-independent objects and makes their pages executable only after it has written
them (never both at once); symbols that cannot be resolved are errors.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jitgemm.isa.tables import Isa
from jitgemm.jit import cache
from jitgemm.jit.building import building
from jitgemm.jit.target import check_executable_memory, host, llvm, target_machine
from jitgemm.kernels.spec import GemmSpec
from jitgemm.kernels.unit import gemm_functions
from jitgemm.lang.core import Function
from jitgemm.lang.llvm import LlvmKernel
from jitgemm.lang.module import LlvmModule

__all__ = ["Compiled", "Unit", "assembly", "compiled", "gemm_unit", "get", "text"]


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
            self._key.append(
                f"{self.name}\0{text(self) if self.identity is None else self.identity}"
            )
        return self._key[0]


@dataclass
class Compiled:
    """Machine code in memory.  Keeps its pages alive."""

    name: str
    addresses: dict[str, int]
    source: str
    """``compiled`` or ``disk cache``."""
    _tracker: Any = field(repr=False)


class _Store:
    """Process-wide state: the linker and what it has linked."""

    def __init__(self) -> None:
        self.units: dict[str, Compiled] = {}
        self.lljit: Any = None
        self.names = itertools.count(1)


_store = _Store()


def gemm_unit(spec: GemmSpec) -> Unit:
    """The unit of a GEMM spec."""
    # The symbol names what differs among built-in specs; the rest may differ in registered ones.
    isa = spec.isa
    parts = (
        spec.symbol,
        str(spec.tile),
        str(spec.epilogue.program),
        str(spec.element),
        str(spec.element.depth_block),
        *(str(x) for x in (isa.vector_bits, isa.arch, isa.cpu, isa.features, isa.half)),
        *sorted(isa.requires),
        *(f"{name}={op.text}" for name, op in sorted(isa.table(spec.element).items())),
    )
    return Unit(spec.symbol, isa, lambda: gemm_functions(spec), identity="\0".join(parts))


def text(unit: Unit) -> str:
    """The unit's LLVM IR as generated (same unit, same text)."""
    return LlvmModule(unit.name, unit.isa, unit.kernel_class or LlvmKernel).emit(unit.exports())


def _optimized(unit: Unit) -> Any:
    module = llvm().parse_assembly(text(unit))
    module.triple = host().triple
    machine = target_machine(unit.isa)
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
    known = _store.units.get(key)
    if known is not None:
        return known
    with cache.WarningsLater(), building:
        known = _store.units.get(key)
        # A call in the middle of building, as a signal handler's, may build the same: one is kept.
        return known or _store.units.setdefault(key, _build(unit))


def _linker(unit: Unit) -> Any:
    if _store.lljit is None:
        # JITLink lays an object's sections out side by side.  The older linker maps each where the
        # system likes, and aborts the process when that is more than 2 GiB apart.
        made = llvm().create_lljit_compiler(target_machine(unit.isa), use_jit_link=True)
        _store.lljit = _store.lljit or made
    return _store.lljit


def _build(unit: Unit) -> Compiled:
    host()
    # Each time: a process may give the right up after its first product.
    check_executable_memory()
    linker, key = _linker(unit), _key(unit)
    names = [f.name for f in unit.exports()]
    image, source = None if key is None else cache.load(key), "disk cache"
    if image is None:
        image, source = target_machine(unit.isa).emit_object(_optimized(unit)), "compiled"
        if key is not None:
            cache.store(key, image)
    library = llvm().JITLibraryBuilder().add_object_img(image).add_current_process()
    for name in names:
        library.export_symbol(name)
    # Names only need to differ.
    tracker = library.link(linker, f"{unit.name}#{next(_store.names)}")
    return Compiled(unit.name, {n: tracker[n] for n in names}, source, tracker)


def compiled() -> list[Compiled]:
    """Everything linked in this process so far."""
    return list(_store.units.values())
