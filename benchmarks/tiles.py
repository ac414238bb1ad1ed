"""Register tiles against each other, one thread, prepacked B.

python benchmarks/tiles.py
"""

from __future__ import annotations

from direct import Setting, gflops, medians, runner

from jitgemm.isa.types import F32, F64
from jitgemm.kernels.registry import tile_for
from jitgemm.kernels.spec import Tile
from jitgemm.runtime.engine import engine

WIDE = {"14x2": (14, 2), "12x2": (12, 2), "8x3": (8, 3), "6x4": (6, 4)}
NARROW = {"6x2": (6, 2), "5x2": (5, 2), "4x3": (4, 3)}
SHAPES = ((140, 512, 192), (1024, 1024, 1024), (2048, 2048, 2048), (8, 768, 3072))


def main() -> None:
    isa = engine().isa
    candidates = WIDE if isa.vector_registers == 32 else NARROW
    print(f"{isa.name}, GFLOP/s\n")
    print("| product | " + " | ".join(candidates) + " |\n" + "|---" * (len(candidates) + 1) + "|")
    for element in (F32, F64):
        registered = tile_for(element, isa)
        for shape in SHAPES:
            settings = {}
            for name, (mr, regs) in candidates.items():
                tile = Tile(mr, regs, ((1, mr),))
                if (mr, regs) == (registered.mr, registered.nr_regs):
                    tile = registered
                tile.check(isa.vector_registers, 1)
                settings[name] = Setting(element, shape, prepacked=True, tile=tile)
            times = medians({name: runner(s) for name, s in settings.items()})
            cells = " | ".join(f"{gflops(s, times[n]):.1f}" for n, s in settings.items())
            print(f"| {element} {'x'.join(map(str, shape))} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
