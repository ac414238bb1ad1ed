"""Whole products for conformance tests: operands, blocking and job records, run on all backends."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from cases import (
    NOTHING_DONE,
    Array,
    Factors,
    Operands,
    backends,
    bias_of,
    bits,
    execute,
    expected,
    native,
    pack,
    same_bytes,
)

from jitgemm.kernels.job import COUNTERS, JOB
from jitgemm.kernels.spec import Bias, BSource, GemmSpec
from jitgemm.lang.core import Function
from jitgemm.planner.route import PackA
from oracle import same_bits

__all__ = ["Case"]


@dataclass(frozen=True)
class Case:
    """A product; sizes are counted in numbers, blocking in tiles keeps every case small."""

    spec: GemmSpec
    m: int
    n: int
    k: int
    tile_rows: int
    layout_a: str = "rows"
    layout_b: str = "rows"
    layout_c: str = "rows"
    layout_d: str = "rows"
    layout_bias: str = "rows"
    swap: str = ""
    """Operands in foreign byte order: letters of ``abcd``, and ``v`` for the bias."""
    pack_a: PackA = PackA.INPLACE
    sweep: bool = False
    staggered: bool = False
    """Columns turned in registers lag behind each other."""
    prepacked: bool = False
    in_place: bool = False
    """C is D."""
    direct: bool = True
    row_tiles: int = 1
    """Microtiles per chunk."""
    panels: int = 0
    """Micropanels per chunk; 0: all."""
    block_panels: int = 0
    """Micropanels packed at a time; 0: all."""
    pack_panels: int = 1
    """Micropanels per packing ticket."""
    slice_depth: int = 0
    """0: all."""
    depth_step: int = 0
    """0: a whole slice."""
    round_blocks: int = 0
    """Of a split: depth blocks per round; 0: no split."""
    range_blocks: int = 1
    threads: int = 1
    alpha: complex | None = None
    beta: complex | None = None
    conj: str = ""
    zeros: bool = False
    """All products are negative zeros."""

    @property
    def factors(self) -> Factors:
        """Scalars of the job."""
        return Factors(self.spec, self.alpha, self.beta, self.conj)

    def _operands(self, x: Operands) -> tuple[Array, Array, Array, Array, Array | None]:
        spec, m, n, k, swap = self.spec, self.m, self.n, self.k, self.swap
        layout = "cols" if spec.b is BSource.COLUMNS else self.layout_b
        a = x.matrix(m, k, self.layout_a, swap="a" in swap)
        b = x.matrix(k, n, layout, swap="b" in swap)
        if self.zeros:
            a[...], b[...] = 0, -1
        d = x.matrix(m, n, self.layout_d, swap="d" in swap)
        c = d if self.in_place else x.matrix(m, n, self.layout_c, swap="c" in swap)
        bias = bias_of(x, spec, (m, n), self.layout_bias, swap="v" in swap)
        return a, b, c, d, bias

    def wanted(self, a: Array, b: Array, c: Array, bias: Array | None) -> Array:
        """What must be in D."""
        return expected(self.spec, self.factors, a, b, c=c, bias=bias)

    def build(self) -> tuple[Operands, int, Array, Array]:
        """Operands, the address of the job, D, and what must be in D."""
        spec, m, n, k, unit = self.spec, self.m, self.n, self.k, self.spec.unit
        x = Operands(spec, seed=3)
        a, b, c, d, bias = self._operands(x)
        want = self.wanted(a, b, c.copy(), bias)
        width = spec.nr // spec.components
        rows, all_panels = self.row_tiles * self.tile_rows, max(1, -(-n // width))
        block = min(self.block_panels or all_panels, all_panels)
        per_chunk = min(self.panels or block, block)
        kc = self.slice_depth or max(k, 1)
        per_call = spec.b is BSource.PACKED and not self.prepacked
        job: dict[str, Any] = {
            "a": x.add("a", a), "source_row": a.strides[0], "source_col": a.strides[1],
            "a_row": a.strides[0], "a_col": a.strides[1], "a_tile": self.tile_rows * a.strides[0],
            "rows_ahead": rows,
            "d": x.add("d", d, out=True, initialised=self.in_place),
            "d_row": d.strides[0], "d_col": d.strides[1],
            "counters": x.record(COUNTERS, NOTHING_DONE, out=True),
            "m": m, "n": n * spec.components, "k_groups": k, **self.factors.fields(x),
            "tile_rows": self.tile_rows, "group": spec.tile.group_for(self.tile_rows),
            "rows_per_chunk": rows, "row_chunks": -(-m // rows),
            "cols_per_chunk": per_chunk * spec.nr, "col_chunks": -(-block // per_chunk),
            "depth_per_slice": kc, "slices": max(1, -(-k // kc)),
            "depth_step": self.depth_step or kc, "row_streaming": int(self.sweep),
            "cols_per_block": block * spec.nr, "blocks": -(-all_panels // block),
            "pack_chunks": -(-block // self.pack_panels) if per_call else 0,
            "pack_cols": self.pack_panels * spec.nr,
            "pack_a": self.pack_a.value, "direct": int(self.direct),
            "staggered": int(self.staggered), "round_blocks": 0,
            **{f"swap_{name}": int(letter in self.swap) for name, letter in
               (("a", "a"), ("b", "b"), ("c", "c"), ("d", "d"), ("bias", "v"))},
        }  # fmt: skip
        if spec.epilogue.beta:
            at = job["d"] if self.in_place else x.add("c", c)
            job |= {"c": at, "c_row": c.strides[0], "c_col": c.strides[1]}
        if bias is not None:
            job |= {"bias": x.add("bias", bias), "bias_row": bias.strides[0]}
            job |= {"bias_col": bias.strides[1]}
            if spec.epilogue.bias is not Bias.FULL:
                job["bias_row" if spec.epilogue.bias is Bias.COLUMN else "bias_col"] = 0
        self._pack_rows(x, job, kc)
        if spec.b is not BSource.PACKED:
            job |= {"b": x.add("b", b), "b_row": b.strides[0], "b_col": b.strides[1]}
            job["panel_stride"] = width * b.strides[1]
        elif self.prepacked:
            packed = pack(spec, b)
            job |= {"packed": x.add("packed", packed), "panel_stride": packed.strides[0]}
            job["slice_stride"] = spec.panel_row
        else:
            job |= {"b": x.add("b", b), "b_row": b.strides[0], "b_col": b.strides[1]}
            job |= {"panel_stride": kc * spec.panel_row, "slice_stride": 0}
            size = block * kc * spec.panel_row
            if self.round_blocks:
                job["panel_stride"] = spec.element.depth_block * spec.panel_row
                job["workspace_b_stride"] = all_panels * job["panel_stride"]
                size = self.threads * job["workspace_b_stride"]
            job["packed"] = self._workspace(x, "packed", size)
        if self.round_blocks:
            row = n * unit
            stride = -(-m * row // 64) * 64
            sums = self._workspace(x, "sums", (self.round_blocks + 1) * stride)
            job |= {
                "workspace_a": sums, "sums_row": row, "sums_stride": stride,
                "round_blocks": self.round_blocks, "range_blocks": self.range_blocks,
                "ranges": -(-self.round_blocks // self.range_blocks),
            }  # fmt: skip
        return x, x.record(JOB, job, whole=True), d, want

    def _pack_rows(self, x: Operands, job: dict[str, Any], kc: int) -> None:
        """Where rows of A are copied, and how the microkernel walks the copy."""
        spec, unit, tile_rows = self.spec, self.spec.unit, self.tile_rows
        if self.pack_a is PackA.INPLACE:
            return
        panels = self.pack_a is PackA.PANELS
        # Copied rows are padded to a whole number of vectors and a bit.
        width = (tile_rows if panels else kc + spec.lanes + 1) * spec.components
        row = width * spec.element.bytes
        job |= {"pack_a_width": width, "a_row": unit if panels else row}
        job |= {"a_col": row if panels else unit}
        job["a_tile"] = tile_rows * (kc * unit if panels else row)
        region = self.row_tiles * job["a_tile"]
        region = -(-max(region, 1) // 64) * 64
        job["workspace_a_stride"] = region
        job["workspace_a"] = self._workspace(x, "workspace", region * self.threads)

    @staticmethod
    def _workspace(x: Operands, name: str, size: int) -> int:
        return x.add(name, np.full(max(size, 8), 0xA5, np.uint8), out=True, initialised=False)

    def check(self, function: Function, *, machine_only: bool = False) -> None:
        """Run all three, on one thread."""
        sides = []
        for compiled in backends(self.spec):
            if machine_only and not compiled:
                continue
            x, job, d, want = self.build()
            execute(self.spec, function, x, [job, 0], compiled=compiled)
            same_bits(d, want, f"{compiled=} {self}")
            sides.append(x)
        if sides:
            same_bytes(sides, str(self))

    def check_threads(self, function: Function) -> None:
        """Run machine code on several threads."""
        x, job, d, want = self.build()
        call = native(self.spec, function)
        workers = [threading.Thread(target=call, args=(job, i)) for i in range(1, self.threads)]
        for worker in workers:
            worker.start()
        call(job, 0)
        for worker in workers:
            worker.join()
        same_bits(d, want, str(self))
        assert x.written["counters"][COUNTERS.slot("done")] > 0
        assert bits(d).size
