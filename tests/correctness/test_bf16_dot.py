"""``allow_bf16_dot``: bfloat16 may be multiplied by the instruction that flushes subnormals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgemm
from jitgemm.isa.types import BF16, F32
from jitgemm.runtime.engine import engine, usable

ml_dtypes = pytest.importorskip("ml_dtypes")
bfloat16 = np.dtype(ml_dtypes.bfloat16)

SHAPES = [(1, 1, 1), (3, 7, 5), (14, 40, 33), (15, 101, 40), (2, 1030, 3), (2, 0, 3)]


def _dots() -> bool:
    return usable() and "bf16_dot" in engine().isa.ops


def _whole(rng: np.random.Generator, *shape: int) -> Any:
    return rng.integers(-4, 5, shape).astype(bfloat16)


@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
@pytest.mark.parametrize("place", [np.ascontiguousarray, np.asfortranarray])
def test_whole_numbers_are_exact(
    m: int, k: int, n: int, place: Any, rng: np.random.Generator
) -> None:
    a, b = place(_whole(rng, m, k)), place(_whole(rng, k, n))
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    wide = jitgemm.gemm(a, b, allow_bf16_dot=True, out_dtype=np.float32)
    assert wide.tobytes() == wanted.tobytes()
    got = jitgemm.gemm(a, b, allow_bf16_dot=True)
    assert got.tobytes() == wanted.astype(bfloat16).tobytes()
    if usable():
        w = jitgemm.prepack_rhs(b, allow_bf16_dot=True)
        assert jitgemm.gemm(a, w, allow_bf16_dot=True).tobytes() == got.tobytes()
        assert w.unpack().tobytes() == np.ascontiguousarray(b).tobytes()
        left = jitgemm.prepack_lhs(a, allow_bf16_dot=True)
        assert jitgemm.gemm(left, b, allow_bf16_dot=True).tobytes() == got.tobytes()


def test_subnormal_numbers_are_lost_only_where_that_is_allowed() -> None:
    tiny = np.full((4, 32), 2.0**-130, np.float32).astype(bfloat16)
    large = np.full((32, 4), 2.0**120, np.float32).astype(bfloat16)
    exact = np.full((4, 4), 2.0**-5, np.float32)
    assert (jitgemm.gemm(tiny, large, out_dtype=np.float32) == exact).all()
    allowed = jitgemm.gemm(tiny, large, out_dtype=np.float32, allow_bf16_dot=True)
    assert (allowed == (0 if _dots() else exact)).all()


def test_the_order_is_that_of_the_operations_meaning(rng: np.random.Generator) -> None:
    if not _dots() or engine().isa.unit:
        pytest.skip("this set has no such instruction, or another one for it")
    a, b = (rng.standard_normal(s).astype(np.float32).astype(bfloat16) for s in ((3, 40), (40, 5)))
    fold = engine().isa.ops["bf16_dot"].meaning
    got = jitgemm.gemm(a, b, out_dtype=np.float32, allow_bf16_dot=True)
    for i, j in np.ndindex(3, 5):
        total = np.zeros(1, np.float32)
        for p in range(0, 40, 2):
            pairs = a[i, p : p + 2], b[p : p + 2, j]
            total = fold(*(np.ascontiguousarray(x).view(np.float32) for x in pairs), total)
        assert got[i, j] == total[0]


@pytest.mark.parametrize(("m", "k", "n"), [(1, 40, 5), (3, 1100, 40), (33, 7, 2)])
def test_the_order_of_a_matrix_unit_is_that_of_its_meaning(
    m: int, k: int, n: int, rng: np.random.Generator
) -> None:
    """However many rows there are; sums of two depth blocks are added once each is complete."""
    unit = engine().isa.unit if usable() else None
    product = None if unit is None else unit.product_of(BF16, BF16, F32)
    if product is None:
        pytest.skip("this set has no matrix unit")
    a, b = (rng.standard_normal(s).astype(np.float32).astype(bfloat16) for s in ((m, k), (k, n)))
    fold, block = product.meaning, 2 * F32.depth_block
    padded = -(-k // 32) * 32
    left, right = np.zeros((m, padded), bfloat16), np.zeros((padded, n), bfloat16)
    left[:, :k], right[:k] = a, b
    wanted = None
    for start in range(0, padded, block):
        total = np.zeros((m, n), np.float32)
        for p in range(start, min(start + block, padded), 32):
            x = np.ascontiguousarray(left[:, p : p + 32]).view(np.float32)
            pairs = right[p : p + 32].reshape(16, 2, n).transpose(0, 2, 1)
            total = fold(total, x, np.ascontiguousarray(pairs).view(np.float32)[..., 0])
        wanted = total if wanted is None else wanted + total
    assert wanted is not None
    got = jitgemm.gemm(a, b, out_dtype=np.float32, allow_bf16_dot=True)
    assert got.tobytes() == wanted.tobytes()


def test_a_handle_serves_the_products_it_was_packed_for(rng: np.random.Generator) -> None:
    if not _dots():
        pytest.skip("packed alike where there is no such instruction")
    a, b = _whole(rng, 3, 8), _whole(rng, 8, 5)
    with pytest.raises(TypeError, match="jitgemm: b: "):
        jitgemm.gemm(a, jitgemm.prepack_rhs(b, allow_bf16_dot=True))
    with pytest.raises(TypeError, match="jitgemm: b: "):
        jitgemm.gemm(a, jitgemm.prepack_rhs(b), allow_bf16_dot=True)


def test_it_is_a_flag(rng: np.random.Generator) -> None:
    a = _whole(rng, 2, 2)
    with pytest.raises(TypeError, match="jitgemm: allow_bf16_dot: "):
        jitgemm.gemm(a, a, allow_bf16_dot=1)
    with pytest.raises(TypeError, match="jitgemm: allow_bf16_dot: "):
        jitgemm.prepack_rhs(a, allow_bf16_dot=None)


def test_it_changes_nothing_for_other_types(rng: np.random.Generator) -> None:
    for dtype in (np.float16, np.float32, np.int8):
        a = rng.integers(-4, 5, (5, 20)).astype(dtype)
        b = rng.integers(-4, 5, (20, 6)).astype(dtype)
        assert (jitgemm.gemm(a, b, allow_bf16_dot=True) == jitgemm.gemm(a, b)).all()
