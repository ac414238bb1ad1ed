"""Peers for numbers narrower than their sums: 8-bit integers, bfloat16, float16.

They do not all return the same type: of 8-bit integers the product is int32 everywhere; of 16-bit
floats it is float32 from MKL, and of the operands' type from jitgemm, torch and NumPy.
"""

from __future__ import annotations

import ctypes
from typing import Any

from cases import Call, Case, operands

# Operations beyond which NumPy, which has no BLAS for these types, would take most of the run.
_NUMPY_LIMIT = {"s8": 2e8, "u8": 2e8, "f2": 2e7}
# CBLAS: row-major, not transposed, packed, the operand B; and MKL's "one offset for all of C".
_ROWS, _PLAIN, _PACKED, _B, _ONE_OFFSET = 101, 111, 151, 162, 173


def numpy_calls(case: Case, threads: int) -> dict[str, Call]:
    import numpy as np

    if case.operations > _NUMPY_LIMIT.get(case.dtype, 0):
        return {}
    a, b, c, _ = operands(case)
    # Without a type NumPy's sums of 8-bit numbers would wrap at 8 bits.
    return {"NumPy": lambda: np.matmul(a, b, out=c, dtype=c.dtype)}


def _pointer(x: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


def _packed_by_mkl(mkl: Any, name: str, case: Case, b: Any) -> tuple[Any, ctypes.c_void_p]:
    """B as MKL packs it: what keeps the memory alive, and where it is."""
    m, k, n = case.shape
    size = getattr(mkl, f"{name}_pack_get_size")
    size.restype = ctypes.c_size_t
    buffer = ctypes.create_string_buffer(size(_B, m, n, k) + 128)
    at = ctypes.c_void_p(-(-ctypes.addressof(buffer) // 64) * 64)
    getattr(mkl, f"{name}_pack")(_ROWS, _B, _PLAIN, m, n, k, _pointer(b), n, at)
    return buffer, at


def mkl_calls(mkl: Any, case: Case) -> dict[str, Call]:
    """Of integers MKL multiplies uint8 by int8 only."""
    import numpy as np

    if case.dtype == "s8":
        return {}
    m, k, n = case.shape
    a, b, c, _ = operands(case)
    if not case.integral:
        c = np.empty((m, n), np.float32)
    offset = np.zeros(1, np.int32)
    keep: list[Any] = [a, b, c, offset]
    pa, pb, pc = map(_pointer, (a, b, c))
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    name = {"u8": "gemm_s8u8s32", "bf16": "gemm_bf16bf16f32", "f2": "gemm_f16f16f32"}[case.dtype]
    name = f"cblas_{name}"

    def call(routine: Any, kind: int, at: ctypes.c_void_p) -> Call:
        sizes = m, n, k, one
        if not case.integral:
            arguments = (_ROWS, _PLAIN, kind, *sizes, pa, k, at, n, zero, pc, n)
        else:
            # With an offset of each operand, which is zero.
            none, shift = ctypes.c_int8(0), _pointer(offset)
            sides = pa, k, none, at, n, none
            arguments = (_ROWS, _PLAIN, kind, _ONE_OFFSET, *sizes, *sides, zero, pc, n, shift)
        return lambda: (keep, routine(*arguments))

    calls = {"MKL": call(getattr(mkl, name), _PLAIN, pb)}
    if case.prepacked:
        buffer, at = _packed_by_mkl(mkl, name, case, b)
        keep.append(buffer)
        calls["MKL packed"] = call(getattr(mkl, f"{name}_compute"), _PACKED, at)
    return calls


def torch_calls(case: Case, threads: int) -> dict[str, Call]:
    """torch multiplies int8 by int8 only."""
    import numpy as np
    import torch

    if case.dtype == "u8":
        return {}
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)

    def tensor(x: Any) -> Any:
        if case.dtype == "bf16":
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(x)

    a, b, c, _ = map(tensor, operands(case))
    if case.integral:
        return {"torch._int_mm": lambda: torch._int_mm(a, b, out=c)}
    calls: dict[str, Call] = {"torch.mm": lambda: torch.mm(a, b, out=c)}
    if case.dtype == "bf16" and case.prepacked:
        weight = torch.ops.mkldnn._reorder_linear_weight(b.t().contiguous(), case.shape[0])
        linear = torch.ops.mkldnn._linear_pointwise
        calls["torch oneDNN packed"] = lambda: linear(a, weight, None, "none", [], "")
    return calls


def ort_calls(case: Case, threads: int) -> dict[str, Call]:
    """onnxruntime's MatMulInteger with B a constant of the graph, which it prepacks."""
    if not (case.integral and case.prepacked):
        return {}
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    a, b, c, _ = operands(case)
    kind = helper.np_dtype_to_tensor_dtype(a.dtype)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b"], ["c"])],
        "product",
        [helper.make_tensor_value_info("a", kind, a.shape)],
        [helper.make_tensor_value_info("c", TensorProto.INT32, c.shape)],
        [numpy_helper.from_array(b, "b")],
    )
    # Versions that every onnxruntime of the last years reads.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    value = ort.OrtValue.ortvalue_from_numpy(a)
    binding.bind_ortvalue_input("a", value)
    binding.bind_output("c", "cpu", 0, c.dtype.type, c.shape, c.ctypes.data)
    keep = value, c
    return {"onnxruntime": lambda: (keep, session.run_with_iobinding(binding))}
