"""What ``asm`` and ``explain`` share: a product, and a machine that is found or described."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from jitgemm.api.config import resolve_threads
from jitgemm.api.kinds import number_of, result_type
from jitgemm.cli.arguments import count
from jitgemm.isa.tables import BY_NAME, Isa, of_lengths
from jitgemm.isa.types import BOOL, ElementType
from jitgemm.isa.types import BY_NAME as ELEMENTS
from jitgemm.jit.target import Host, choose_isa, host, pick
from jitgemm.kernels.arithmetic import OperandTypes, sum_type
from jitgemm.planner.caches import Machine
from jitgemm.planner.context import Context
from jitgemm.planner.cores import BY_NAME as CORES
from jitgemm.planner.cores import Core
from jitgemm.planner.problem import Operand, Problem
from jitgemm.runtime.engine import engine, knob
from jitgemm.runtime.layout import element_dtype

__all__ = ["Where", "add_options", "context_of", "of_core", "problem_of", "where_of"]

_COMPLEX = {f"c{2 * x.bits}": x for x in ELEMENTS.values() if not (x.integral or x.format)}
_REAL = {x.name: x for x in ELEMENTS.values() if x is not BOOL}


@dataclass(frozen=True, slots=True)
class _Types:
    """What is multiplied."""

    types: OperandTypes
    components: int


@dataclass(frozen=True, slots=True)
class Where:
    """A machine to plan for."""

    isa: Isa
    machine: Machine
    threads: int
    words: tuple[str, ...]
    """What is known of it, line by line."""


def _types(text: str) -> _Types:
    """Types of A and B by their names, as in ``f32`` or ``u8@i8``."""
    if text in _COMPLEX:
        return _Types(OperandTypes.of(_COMPLEX[text]), 2)
    names = text.split("@") if "@" in text else [text, text]
    known = [_REAL[x] for x in names if x in _REAL]
    alike = len(set(names)) == 1 or all(x.integral for x in known)
    if len(names) != 2 or len(known) != 2 or not alike:
        raise argparse.ArgumentTypeError(
            f"expected one of {', '.join([*_REAL, *_COMPLEX])}, or two integers as in u8@i8, "
            f"got {text!r}"
        )
    a, b = known
    out = _result(a, b)
    sums = sum_type(OperandTypes(a, b, out, out, out))
    return _Types(OperandTypes(a, b, sums, sums, out), 1)


def _result(a: ElementType, b: ElementType) -> ElementType:
    """The type of a product: that of a storage type is as narrow."""
    if a.format is not None:
        return a
    number = number_of(result_type(element_dtype(a), element_dtype(b), None))
    assert number is not None
    return number[0]


def add_options(parser: argparse.ArgumentParser, shape: tuple[int, int, int] | None) -> None:
    """Add what names a product and a machine.

    Args:
        parser: of the command.
        shape: of the product where none is given; ``None``: one must be.
    """
    default = "" if shape is None else f" (default {' '.join(map(str, shape))})"
    types = "of both operands: f32, f64, f16, bf16, c64, i8, ...; two integers as u8@i8"
    parser.add_argument(
        "--dtype", type=_types, default="f32", metavar="TYPE", help=f"{types} (default f32)"
    )
    parser.add_argument(
        "--shape", type=count, nargs=3, metavar=("M", "K", "N"), default=shape,
        required=shape is None, help=f"A is M x K, B is K x N{default}",
    )  # fmt: skip
    text = "one that is described (default this one)"
    parser.add_argument("--machine", choices=list(CORES), help=text)
    text = "instruction set (default the first one the machine has)"
    parser.add_argument("--isa", choices=list(BY_NAME), help=text)
    text = "default all cores of a described machine, here what calls use"
    parser.add_argument("--threads", type=count, help=text)
    parser.add_argument("--prepacked", action="store_true", help="B is a handle")
    parser.add_argument("--allow-bf16-dot", action="store_true", help="as of gemm")


def problem_of(options: argparse.Namespace) -> Problem:
    """The product that :func:`add_options` names, of dense row-major operands."""
    (m, k, n), types, components = options.shape, options.dtype.types, options.dtype.components
    if options.allow_bf16_dot:
        types = replace(types, bf16_dot=True)

    def operand(cols: int, nbytes: int) -> Operand:
        return Operand(cols * components * nbytes, components * nbytes)

    return Problem(
        sum_type(types), m, n, k,
        operand(k, types.a.bytes), None if options.prepacked else operand(n, types.b.bytes),
        operand(n, types.out.bytes), components=components, types=types,
    )  # fmt: skip


def of_core(core: Core, name: str | None) -> Isa:
    """The instruction set of a name as a described core has it, else the first one it has.

    Raises:
        IsaError: the core lacks it.
    """
    isa = pick("--isa", name, Host(f"{core.arch}-unknown-linux-gnu", core.name, core.features, ""))
    if isa.interpreted:
        return isa
    if isa.arch == "aarch64":
        return of_lengths(isa.name, core.sve_bits, core.streaming_bits)
    return replace(isa, arch=core.arch, cpu=isa.cpu or core.name)


def _described(core: Core, options: argparse.Namespace) -> Where:
    isa = of_core(core, options.isa)
    lengths = {"SVE": core.sve_bits, "streaming vectors": core.streaming_bits}
    vectors = [f"{kind} of {bits} bits" for kind, bits in lengths.items() if bits]
    shared = f" (each L2 shared by {core.l2_cores})" if core.l2_cores > 1 else ""
    words = ", ".join([f"{core.name}, {core.cores} cores{shared}", *vectors])
    return Where(isa, core.machine, options.threads or core.cores, (words, core.source))


def where_of(options: argparse.Namespace) -> Where:
    """The machine that is named, or this one.

    Raises:
        IsaError: it lacks the set that is named.
        JitUnavailableError: no machine is named, and this process cannot generate code.
    """
    if options.machine is not None:
        return _described(CORES[options.machine], options)
    isa = choose_isa() if options.isa is None else pick("--isa", options.isa, host())
    machine = engine().machine
    return Where(isa, machine, resolve_threads(options.threads), (f"this one ({host().cpu})",))


def context_of(where: Where) -> Context:
    """What plans for it depend on; knobs are this process's."""
    return Context(where.isa, where.machine, where.threads, knob)
