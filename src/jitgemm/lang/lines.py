"""Writing lines of LLVM text: what the parts of that backend share."""

from __future__ import annotations

from jitgemm.isa.types import ElementType
from jitgemm.lang.core import Function, Int, Kernel, Ptr, Vec
from jitgemm.lang.module import LlvmModule
from jitgemm.lang.values import T

__all__ = ["Lines"]


class Lines(Kernel):
    """The text of one function while it is written."""

    def __init__(self, module: LlvmModule, function: Function) -> None:
        self.module, self.isa, self.function = module, module.isa, function
        self._lines: list[str] = []
        self._allocas: list[str] = []
        self._count = 0
        self._block = "entry"
        # Loops and branches whose bodies are being written.
        self._open = 0

    def _emit(self, line: str) -> int:
        self._lines.append("  " + line)
        return len(self._lines) - 1

    def _name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def _let(self, text: str) -> str:
        name = self._name()
        self._emit(f"{name} = {text}")
        return name

    def _label(self) -> str:
        self._count += 1
        return f"b{self._count}"

    def _start(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._block = label

    # -- types ----------------------------------------------------------------------------------
    @staticmethod
    def vector_type(element: ElementType, lanes: int) -> str:
        """LLVM's spelling of ``lanes`` elements."""
        return element.llvm if lanes == 1 else f"<{lanes} x {element.llvm}>"

    def _type_of(self, x: Int | Ptr | Vec) -> str:
        if isinstance(x, Vec):
            return self.vector_type(x.element, x.lanes)
        return "i64" if isinstance(x, Int) else "ptr"

    def _like(self, x: T, handle: str) -> T:
        if isinstance(x, Vec):
            return Vec(self, handle, x.element, x.lanes)
        return Int(self, handle) if isinstance(x, Int) else Ptr(self, handle)
