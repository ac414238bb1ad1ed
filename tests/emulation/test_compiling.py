"""The service that compiles for emulated machines, asked from a process that is not emulated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from emulation import compiling
from emulation.compiling import SOCKET, Service, emit_remotely
from jitgemm.isa import tables
from jitgemm.isa.types import F32
from jitgemm.jit import compiler
from jitgemm.kernels import registry
from jitgemm.kernels.spec import BSource, Epilogue, GemmSpec
from oracle import NESTED

pytestmark = pytest.mark.skipif(NESTED in os.environ, reason="the same on every set")

_AARCH64 = 183
"""What an object file calls it."""


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    made = Service(workers=1)
    with made as path, pytest.MonkeyPatch.context() as patch:
        patch.setenv(SOCKET, path)
        yield made


def _spec(isa: tables.Isa) -> GemmSpec:
    tile = registry.tile_for(F32, isa)
    return GemmSpec(F32, isa, tile, BSource.INPLACE, Epilogue())


def _unit(spec: GemmSpec, monkeypatch: pytest.MonkeyPatch) -> compiler.Unit:
    """The unit of a spec, in a process whose code is compiled by the service."""
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "emit_object", compiler.emit_object)
        patch.setattr(compiler, "gemm_unit", compiler.gemm_unit)
        compiling.install()
        return compiler.gemm_unit(spec)


def _machine(image: bytes) -> int:
    assert image.startswith(b"\x7fELF")
    return int.from_bytes(image[18:20], "little")


@pytest.mark.parametrize("bits", [128, 512])
def test_a_spec_is_written_out_there(
    bits: int, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with vectors of another length than the service's own process has."""
    spec = _spec(tables.sve(bits))
    image = emit_remotely(_unit(spec, monkeypatch))
    assert service.answered[-1] == "spec object"
    assert _machine(image) == _AARCH64
    assert image == compiler.emit_object(compiler.gemm_unit(spec))


def test_other_units_are_sent_as_text(service: Service) -> None:
    spec = _spec(tables.NEON)
    image = emit_remotely(replace(compiler.gemm_unit(spec), identity=None))
    assert service.answered[-1] == "text object"
    assert _machine(image) == _AARCH64


def test_a_row_the_service_does_not_know_is_sent_as_text(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so is one that means something else there."""
    ops = {
        **tables.NEON.ops,
        "add": replace(tables.NEON.ops["add"], text=("{r} = fsub {v} {a}, {b}",)),
    }
    for isa in (replace(tables.NEON, name="mine"), replace(tables.NEON, ops=ops)):
        spec = replace(_spec(tables.NEON), isa=isa)
        assert _machine(emit_remotely(_unit(spec, monkeypatch))) == _AARCH64
        assert service.answered[-2:] == ["spec unknown", "text object"]


_WRONG = {
    # An error inside LLVM, which ends the worker.
    "LLVM ended its process": """
        define void @f() {
            call void asm sideeffect "nop", ""()
            ret void
        }
    """,
    "parsing": "define void @f() { ret i32 }",
}


@pytest.mark.parametrize("why", _WRONG)
def test_what_cannot_be_compiled_is_an_error_that_names_it(
    why: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = compiler.Unit("the_wrong_one", tables.NEON, list)
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "text", lambda _: _WRONG[why])
        with pytest.raises(RuntimeError, match=f"(?s)the_wrong_one .*aarch64.*{why}") as failed:
            emit_remotely(unit)
    if "ended" in why:
        assert "Inline asm" in str(failed.value)
    # And it goes on.
    assert _machine(emit_remotely(replace(unit, exports=list))) == _AARCH64
