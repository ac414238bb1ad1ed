"""Matrix multiplication for CPUs from a pure-Python wheel that generates its own machine code.

``matmul``, ``matvec``, ``vecmat`` and ``vecdot`` are NumPy's, faster.  ``gemm`` computes
``act(alpha * a @ b + beta * c + bias)`` in one pass.  ``prepack_rhs`` packs fixed weights once;
``plan`` prepares a product for calls of tens of nanoseconds of overhead.  ``kernel`` and ``launch``
run kernels of your own on arrays.
"""

from jitgemm.api import math
from jitgemm.api.activations import (
    Activation,
    activation,
    clip,
    leaky_relu,
    register_activation,
    unregister_activation,
)
from jitgemm.api.batched import gemm_batched
from jitgemm.api.config import get_num_threads, set_num_threads, show_config, threads
from jitgemm.api.functions import gemm
from jitgemm.api.launch import kernel, launch
from jitgemm.api.plans import Plan, plan
from jitgemm.api.postops import register_post_op, unregister_post_op
from jitgemm.api.prepack import prepack_lhs, prepack_rhs
from jitgemm.api.quantise import Requantize
from jitgemm.api.storage import register_storage_type, unregister_storage_type
from jitgemm.api.ufuncs import matmul, matvec, vecdot, vecmat
from jitgemm.errors import IsaError, JitGemmWarning, LanguageError
from jitgemm.kernels.operations import Parameter
from jitgemm.runtime.memory import Workspace
from jitgemm.runtime.packed import PackedLhs, PackedRhs

__version__ = "0.1.0"

__all__ = [
    "Activation",
    "IsaError",
    "JitGemmWarning",
    "LanguageError",
    "PackedLhs",
    "PackedRhs",
    "Parameter",
    "Plan",
    "Requantize",
    "Workspace",
    "activation",
    "clip",
    "gemm",
    "gemm_batched",
    "get_num_threads",
    "kernel",
    "launch",
    "leaky_relu",
    "math",
    "matmul",
    "matvec",
    "plan",
    "prepack_lhs",
    "prepack_rhs",
    "register_activation",
    "register_post_op",
    "register_storage_type",
    "set_num_threads",
    "show_config",
    "threads",
    "unregister_activation",
    "unregister_post_op",
    "unregister_storage_type",
    "vecdot",
    "vecmat",
]
