"""Where the thresholds of ``jitgemm.tuning`` lie on this machine.

python benchmarks/knobs.py
"""

from __future__ import annotations

from direct import Setting, medians, runner

from jitgemm.isa.types import F32, F64


def parallel_flops() -> None:
    """Two threads against one, by the amount of work."""
    print("parallel_flops: time of one thread over time of two\n")
    print("| n | million operations | one / two |\n|---|---|---|")
    for n in (48, 64, 80, 96, 112, 128, 160, 192, 256):
        runs = {
            str(t): runner(
                Setting(F32, (n, n, n), threads=t, prepacked=True, knobs={"parallel_flops": 1})
            )
            for t in (1, 2)
        }
        times = medians(runs)
        print(f"| {n} | {2e-6 * n**3:.2f} | {times['1'] / times['2']:.2f} |", flush=True)


def rhs_pack_rows() -> None:
    """Reading a row-major B in place against packing it, by the rows that reuse it."""
    print("\nrhs_pack_rows: time packed per call over time in place\n")
    shapes = (
        (256, 256), (256, 512), (512, 256), (64, 2048), (200, 600), (512, 512), (500, 500),
        (1024, 1024), (1000, 1000), (768, 3072), (1024, 4096), (4096, 4096),
    )  # fmt: skip
    head = " | ".join(f"k={k} n={n}" for k, n in shapes)
    print(f"| m | {head} |\n" + "|---" * (len(shapes) + 1) + "|")
    for m in (7, 14, 28, 42, 56, 84, 112, 256, 512):
        cells = []
        for k, n in shapes:
            runs = {
                name: runner(Setting(F32, (m, k, n), knobs={"rhs_pack_rows": rows}))
                for name, rows in (("in place", 10**6), ("packed", 1))
            }
            times = medians(runs, rounds=7)
            cells.append(f"{times['packed'] / times['in place']:.2f}")
        print(f"| {m} | " + " | ".join(cells) + " |", flush=True)


def rhs_transpose_rows() -> None:
    """Turning a column-major B in registers against packing it, by the rows that meet it."""
    print("\nrhs_turn_rows: time packed per call over time turned in registers\n")
    shapes = ((64, 64), (256, 256), (512, 512), (1000, 1000), (1024, 1024), (4096, 4096))
    head = " | ".join(f"k={k} n={n}" for k, n in shapes)
    print(f"| m | {head} |\n" + "|---" * (len(shapes) + 1) + "|")
    for m in (1, 2, 3, 4):
        cells = []
        for k, n in shapes:
            runs = {
                name: runner(
                    Setting(F32, (m, k, n), columns=True, knobs={"rhs_transpose_rows": rows})
                )
                for name, rows in (("turned", 10), ("packed", 0))
            }
            times = medians(runs, rounds=7)
            cells.append(f"{times['packed'] / times['turned']:.2f}")
        print(f"| {m} | " + " | ".join(cells) + " |", flush=True)


def split_depth() -> None:
    """Sharing the depth of ``X.T @ X`` against walking it whole, by rows of X."""
    print("\nsplit_depth: time walked whole over time by ranges of depth\n")
    depths = (2048, 4096, 8192, 16384, 32768, 131072)
    print("| columns, threads | " + " | ".join(map(str, depths)) + " |")
    print("|---" * (len(depths) + 1) + "|")
    for n in (4, 16, 64, 128):
        for threads in (1, 2):
            cells = []
            for k in depths:
                runs = {
                    name: runner(
                        Setting(F32, (n, k, n), threads, rows=False, knobs={"split_depth": depth})
                    )
                    for name, depth in (("split", 1), ("whole", 1 << 40))
                }
                times = medians(runs, rounds=7)
                cells.append(f"{times['whole'] / times['split']:.2f}")
            print(f"| {n}, {threads} | " + " | ".join(cells) + " |", flush=True)


def lhs_packing() -> None:
    """Packing a column-major A against reading it in place, by depth step and reuse."""
    for element in (F32, F64):
        print(f"\nlhs_pack_stride, {element.name}: time in place over time packed per chunk\n")
        shapes = ((128, 64), (256, 128), (512, 64), (512, 256), (2048, 64), (2048, 512))
        head = " | ".join(f"k={k} n={n}" for k, n in shapes)
        print(f"| m, bytes per step | {head} |\n" + "|---" * (len(shapes) + 1) + "|")
        for m in (24, 60, 120, 224, 500):
            cells = []
            for k, n in shapes:
                runs = {
                    name: runner(
                        Setting(
                            element,
                            (m, k, n),
                            rows=False,
                            knobs={"lhs_pack_stride": stride, "lhs_pack_pages": 1},
                        )
                    )
                    for name, stride in (("in place", 1 << 40), ("packed", 1))
                }
                times = medians(runs, rounds=7)
                cells.append(f"{times['in place'] / times['packed']:.2f}")
            print(f"| {m}, {m * element.bytes} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parallel_flops()
    rhs_pack_rows()
    rhs_transpose_rows()
    split_depth()
    lhs_packing()


if __name__ == "__main__":
    main()
