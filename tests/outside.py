"""Rows that tests add from outside, by public functions only: a type, an activation, a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

import jitgemm
from jitgemm.lang.core import Kernel, Vec

Array = np.ndarray[Any, Any]

F8 = np.dtype(ml_dtypes.float8_e4m3fn)
"""A sign, four bits of exponent, three of significand; no infinities, one NaN of each sign."""

# The bits as those of an f32 are the number times 2**-120.
WIDEN = """
    {t} = zext {v} {a} to {i32}
    {t1} = and {i32} {t}, {i32:127}
    {t2} = shl {i32} {t1}, {i32:20}
    {t3} = bitcast {i32} {t2} to {w}
    {t4} = fmul {w} {t3}, {w:0x4770000000000000}
    {t5} = bitcast {w} {t4} to {i32}
    {t6} = icmp eq {i32} {t1}, {i32:127}
    {t7} = select {m} {t6}, {i32} {i32:2143289344}, {i32} {t5}
    {t8} = and {i32} {t}, {i32:128}
    {t9} = shl {i32} {t8}, {i32:24}
    {ta} = or {i32} {t7}, {t9}
    {r} = bitcast {i32} {ta} to {w}
"""
# Subnormal results by adding 2**14, whose last bit is worth 2**-9; beyond 464 there is only NaN.
NARROW = """
    {t} = bitcast {v} {a} to {i32}
    {t1} = and {i32} {t}, {i32:2147483647}
    {t2} = bitcast {i32} {t1} to {v}
    {t3} = fadd {v} {t2}, {v:0x40D0000000000000}
    {t4} = bitcast {v} {t3} to {i32}
    {t5} = sub {i32} {t4}, {i32:1182793728}
    {t6} = lshr {i32} {t1}, {i32:20}
    {t7} = and {i32} {t6}, {i32:1}
    {t8} = sub {i32} {t1}, {i32:1006108673}
    {t9} = add {i32} {t8}, {t7}
    {ta} = lshr {i32} {t9}, {i32:20}
    {tb} = icmp ult {i32} {ta}, {i32:127}
    {tc} = select {m} {tb}, {i32} {ta}, {i32} {i32:127}
    {td} = icmp ult {i32} {t1}, {i32:1015021568}
    {te} = select {m} {td}, {i32} {t5}, {i32} {tc}
    {tf} = lshr {i32} {t}, {i32:24}
    {tg} = and {i32} {tf}, {i32:128}
    {th} = or {i32} {te}, {tg}
    {r} = trunc {i32} {th} to {i8}
"""


def widened(codes: Array) -> Array:
    """What the bits mean."""
    return codes.view(F8).astype(np.float32)


def narrowed(x: Array) -> Array:
    """The bits of numbers rounded to nearest even."""
    return x.astype(F8).view(np.uint8)


ROW: dict[str, Any] = {
    "widen": (WIDEN, widened),
    "narrow": (NARROW, narrowed),
    "product": np.float32,
    "out_dtypes": (F8, ml_dtypes.bfloat16),
    "dlpack": 10,
}


@contextmanager
def storage_type(**other: Any) -> Iterator[None]:
    """Products know :data:`F8`."""
    jitgemm.register_storage_type(F8, **{**ROW, **other})
    try:
        yield
    finally:
        jitgemm.unregister_storage_type(F8)


# -- an activation ---------------------------------------------------------------------------------


def emit_bent(k: Kernel, v: Vec, slope: Vec, most: Vec) -> Vec:
    """In the kernel language: ``slope * v`` below zero, and at most ``most``."""
    zero = k.literal(0.0, v.element, v.lanes)
    bent = k.op("select_lt", v, zero, k.op("mul", slope, v), v)
    return k.op("select_lt", most, bent, most, bent)


def bent(v: Array, slope: Any, most: Any) -> Array:
    """In NumPy."""
    below = np.where(v < 0, slope * v, v)
    return np.where(most < below, most, below)


BENT: dict[str, Any] = {
    "emit": emit_bent,
    "meaning": bent,
    "parameters": ("slope", jitgemm.Parameter("most", np.inf)),
    "doc": "``min(v, most)``, bent at zero",
}


@contextmanager
def activation(name: str = "bent", **other: Any) -> Iterator[Any]:
    """Products know an activation; gives the function that makes it."""
    make = jitgemm.register_activation(name, **{**BENT, **other})
    try:
        yield make
    finally:
        jitgemm.unregister_activation(name)


# -- a step of an epilogue with an operand of its own ----------------------------------------------


def emit_gate(k: Kernel, v: Vec, x: Vec) -> Vec:
    """In the kernel language: ``v * x`` where ``x`` is positive, else 0."""
    zero = k.literal(0.0, v.element, v.lanes)
    return k.op("select_lt", zero, x, k.op("mul", v, x), zero)


def gated(v: Array, x: Any) -> Array:
    """In NumPy."""
    return np.where(0 < x, v * x, np.zeros_like(v))


@contextmanager
def post_op(name: str = "gate", **other: Any) -> Iterator[None]:
    """Products know an operation with an operand."""
    jitgemm.register_post_op(name, **{"emit": emit_gate, "meaning": gated, **other})
    try:
        yield
    finally:
        jitgemm.unregister_post_op(name)
