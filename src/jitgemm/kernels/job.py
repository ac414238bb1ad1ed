"""Records passed to generated code.  All strides and offsets are bytes.

``JOB`` describes one whole product to every thread that works on it, ``DATA`` the part of it that
may differ between calls of one plan.  Python fills it in ``runtime.jobs``, from the parts of a plan
(``planner.records``).  ``BLOCK`` and ``TILE`` are private to one thread: the block of the product
that a macrokernel does, and the microtile at hand.  ``STEPS`` says how far the next product of a
stack is.
"""

from __future__ import annotations

from jitgemm.lang.record import Record

__all__ = [
    "AHEAD", "BLOCK", "COUNTERS", "DATA", "EPILOGUE_OPERANDS", "JOB", "OPERANDS", "POINTERS",
    "STEPS", "TABLES", "TILE",
]  # fmt: skip

OPERANDS = ("a", "b", "c", "d", "bias")
"""Matrices of a product, as the job names them."""

POINTERS = (*OPERANDS, "packed", "workspace_a", "counters")
"""What a job points to, besides the numbers of a call."""

EPILOGUE_OPERANDS = tuple(f"operand_{i}" for i in range(4))
"""What programs of an epilogue read besides sums: numbers per row, column or element, or one."""

TABLES = ("zero_a", "zero_b", "scales", *EPILOGUE_OPERANDS)
"""Numbers per row, column or element, likewise: each product of a stack may have its own."""

# One cache line each, so that threads drawing work do not disturb those reporting it.
COUNTERS = Record(
    "counters",
    "cursor",  # next ticket to hand out
    *(f"_pad{i}" for i in range(7)),
    "done",  # tickets finished
    "sleepers",  # threads that sleep until there are more
)

# What a call brings besides its operands.  None of it is part of a plan, and no entry is looked up
# by it: a call fills these slots, side by side, and they are copied into its job as one.
DATA = (
    # scalars: the first bytes of their slots; for complex types pairs, which take two slots
    "alpha",  # complex: its real part, twice
    "alpha_1",
    "alpha_imag",  # complex: minus its imaginary part, and that part
    "alpha_imag_1",
    "beta",
    "beta_1",
    "beta_imag",
    "beta_imag_1",
    "sign_real",  # complex: signs of the products with real parts of A, for conjugation
    "sign_real_1",
    "sign_imag",  # complex: signs of the products with imaginary parts of A
    "sign_imag_1",
    "constants",  # of the epilogue's program
    "zero_a",  # of integers: zero points of A, as the microkernel sees A
    "zero_a_row",  # 0: one for all
    "zero_b",  # one per column
    "scales",  # of a requantisation
    "scale_row",  # 0: one for all rows
    "wide_scales",  # 1: scaled sums may be beyond 32 bits
    "rounding",  # of a requantisation: zero point, and the bounds of the result without it
    *EPILOGUE_OPERANDS,
    *(f"{x}_row" for x in EPILOGUE_OPERANDS),  # 0 where it does not vary
    "complex_alpha",  # 1: alpha has an imaginary part
    "complex_beta",
)

JOB = Record(
    "job",
    # operands
    "a",
    "b",  # the operand itself (read in place, or source of packing)
    "packed",  # micropanels of B: a prepacked operand or this call's workspace
    "c",  # read when the epilogue has beta
    "d",  # the result
    "bias",
    "workspace_a",  # packed rows of A, one region per thread; or the block sums of a split
    "counters",
    # sizes
    "m",
    "n",  # in reals: twice the columns if complex
    "k_groups",  # depth in packed k-groups: what one instruction multiplies and accumulates
    "k_numbers",  # depth in numbers: what a packed k-group holds beyond is zero
    # strides
    "a_row",  # as the microkernel walks A: its own strides, or those of packed rows
    "a_col",
    "source_row",  # A's own strides
    "source_col",
    "b_row",
    "b_col",
    "c_row",
    "c_col",
    "d_row",
    "d_col",
    "bias_row",  # 0 where it does not vary
    "bias_col",
    "panel_stride",  # from one micropanel of `packed` to the next
    "slice_stride",  # from one depth slice of `packed` to the next (0: every slice starts over)
    *DATA,
    # operands that are byte-swapped
    "swap_a",
    "swap_b",
    "swap_c",
    "swap_d",
    "swap_bias",
    # blocking; depth is in packed k-groups
    "tile_rows",  # rows of a full microtile of this product, at most mr
    "group",  # micropanels covered at once
    "rows_per_chunk",
    "row_chunks",
    "cols_per_chunk",
    "col_chunks",
    "depth_per_slice",  # a multiple of the depth block, or k
    "slices",
    "depth_step",  # depth that all rows of a chunk go down before any goes deeper
    "cols_per_block",  # the columns packed at a time
    "blocks",
    "pack_chunks",  # tickets per (block, slice) that pack B; 0: B needs no packing
    "pack_cols",  # columns per such ticket, a multiple of nr
    "pack_a",  # 0: A is read in place; 1: packed as micropanels; 2: its rows are copied together
    "pack_a_width",  # elements per depth step (1) or per row (2) of the copy
    "upconverted_at",  # where a micropanel is upconverted, from the thread's copied rows on
    "rows_ahead",  # from a chunk's rows to those this thread will probably draw next; 0: none
    "a_tile",  # from one microtile's rows of A to the next, as the microkernel walks A
    "workspace_a_stride",
    "workspace_b_stride",  # of a split: each thread packs B for itself
    "round_blocks",  # of a split: depth blocks whose sums are kept at a time; 0: no split
    "ranges",  # tickets per round that form sums
    "range_blocks",  # depth blocks per such ticket
    "copied_rows",  # of a split: rows of A copied at a time, behind packed B; 0: none
    "sums_row",
    "sums_stride",  # from the sums of one block to the next
    "row_streaming",  # 1: few rows stream the rows of B (in place only)
    "staggered",  # 1: columns of B, transposed in registers, are walked behind each other
    "direct",  # 1: d, c, bias have unit column stride, and partial sums may spill to d
    "copied_row",  # bytes from row to row of what is copied before it is packed as micropanels
)

BLOCK = Record(
    "block",
    "a",  # of its first row, at its first depth step
    "b",  # of its first column, likewise
    *("i0", "i1", "j0", "j1", "p0", "p1"),  # columns in reals, depth in packed k-groups
)

TILE = Record(
    "tile",
    "partial",  # sums of earlier depth blocks, row stride `partial_row`
    "partial_row",
    "c",
    "c_row",
    "target",
    "target_row",
    "bias",
    "bias_row",
    "zero_a",
    "zero_b",
    "row_sums",  # of A, where it has been copied
    "col_sums",  # of B, at the end of each micropanel
    "scales",
    *EPILOGUE_OPERANDS,
    "row",  # indices of the tile's first element in the result, for programs that use them
    "col",
    "cols",  # columns of this tile that exist, in reals
    "first",  # 1: no earlier depth block
    "ahead",  # part of the micropanel that comes next, to be fetched early
    "last",  # 1: no later depth block: finish the elements
    "shape",  # rows of the registers of a matrix unit, a byte each; 0: not configured
    "count",  # microtiles in a row that differ in nothing but their place (B in place only)
    # bytes from one of them to the next
    *(f"next_{x}" for x in (*OPERANDS, *EPILOGUE_OPERANDS)),
    "next_row",
)

# Operands of products to come that may be fetched early.
AHEAD = ("a", "b", "d")

STEPS = Record(
    "steps",
    *OPERANDS,  # bytes from one product of a stack to the next
    *(f"ahead_{x}" for x in AHEAD),  # bytes of a product to fetch early; 0: none
)
