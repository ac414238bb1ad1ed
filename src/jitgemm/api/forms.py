"""Calls whose options only Python can tell: functions, tables of zero points, new objects.

Such options are looked at in every call.  What of them decides the plan is their *form*, one object
for equal ones, by which generated code tells the call; everything else is data, which the call
brings along.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgemm.api.call import Call
from jitgemm.api.entries import remember_form
from jitgemm.api.keywords import Options
from jitgemm.api.operands import Array
from jitgemm.api.quantise import with_bias
from jitgemm.api.request import Request, request_of
from jitgemm.api.stubs import public
from jitgemm.planner.callspec import CallOptions
from jitgemm.runtime.calls import EntryTable
from jitgemm.runtime.keeping import BoundedCache
from jitgemm.runtime.packed import Packed

__all__ = ["Form", "by_form"]

_NUMBER = 6
_OPERANDS = ("out", "c", "bias", "threads", "form")


class Form:
    """What options decide: equal ones are one object."""


_forms: BoundedCache[tuple[CallOptions, np.dtype], Form] = BoundedCache(512)


def _itself(signature: bytes, *_: object, **__: object) -> bytes:
    return signature


def _declined(*_: object, **__: object) -> Any:
    return NotImplemented


# The entry of a call, its signature if there is none yet, or `NotImplemented` if it has none.
_find = public(_itself, _NUMBER, ("a", "b"), _OPERANDS, dry=True)(_declined)
# The result of a call of a known entry, or `NotImplemented`.
_run = public(
    _declined, _NUMBER, ("a", "b"), (*_OPERANDS, "workspace", "entry", "data")
)(_declined)  # fmt: skip


def _form_of(request: Request, axes: int) -> Form:
    """The form of options for products with so many batch axes."""
    key = request.decided(axes, beta=request.scalars.beta != 0), request.dtype
    found = _forms.get(key)
    if found is None:
        found = Form()
        _forms.put(key, found)
    return found


def by_form(a: Array | Packed, b: Array | Packed, options: Options, threads: int) -> Array:
    """A product of plain arrays and handles, through an entry for its form if there is one."""
    request = request_of(options, a, b)
    bias = with_bias(options.bias, request.requantize)
    form = _form_of(request, max(a.ndim, b.ndim) - 2)
    given = {"out": options.out, "c": options.c, "bias": bias, "threads": threads, "form": form}
    found = NotImplemented if request.blas else _find(a, b, **given)
    if type(found) is EntryTable:
        # What the data refer to lives until here.
        data, _tables = found.layout.record(request.scalars)
        result = _run(a, b, workspace=request.workspace, entry=found, data=data, **given)
        if result is not NotImplemented:
            return result  # type: ignore[no-any-return]
    call = Call(a, b, options, request=request)
    mine = call.run(threads)
    if type(found) is bytes:
        remember_form(found, call, (a, b), (options.out, options.c, bias), form, threads)
    return mine
