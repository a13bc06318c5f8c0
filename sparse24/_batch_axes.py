"""The batch axes of a product as kernels take them: one, or none where a matrix serves all."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from sparse24 import _arrays, _memory_order
from sparse24._records import Compressed24, Fused, Operand24


def flatten(a: Operand24, b, out, epilogue: Fused, batch: tuple[int, ...]):
    """The operands, result and epilogue with at most one batch axis, of those of the result.

    An operand with a single matrix loses its axes.
    """
    if not batch:
        return a, b, out, epilogue
    if len(a.shape) > 2:
        a = operand(a, batch)
    b = _dense(b, batch)
    one = math.prod(batch) == 1  # then no operand has a batch axis, and the result none either
    out = out.reshape(out.shape[-2:] if one else (-1, *out.shape[-2:]))
    c, aux = (_dense(x, batch) for x in (epilogue.c, epilogue.aux))
    if c is not epilogue.c or aux is not epilogue.aux:
        epilogue = dataclasses.replace(epilogue, c=c, aux=aux)
    return a, b, out, epilogue


def operand(a: Operand24, batch: tuple[int, ...]) -> Operand24:
    """A sparse operand (..., m, k) with one batch axis, or none if one matrix serves all."""
    own = a.shape[:-2]
    lead = () if math.prod(own) == 1 else (math.prod(batch),)
    rows, columns = (_record(record, own, batch) for record in (a.rows, a.columns))
    return Operand24(rows, columns, _dense(a.dense, batch), (*lead, *a.shape[-2:]), a.dtype)


def _record(
    record: Compressed24 | None, own: tuple[int, ...], batch: tuple[int, ...]
) -> Compressed24 | None:
    """A record, whose batch axes are `own`, with one batch axis, or none if it is one matrix."""
    if record is None:
        return None
    single = math.prod(own) == 1

    def flat(x: Any, core: int) -> Any:
        if x is None:
            return None
        return x.reshape(x.shape[-core:]) if single else _spread(x, batch, core)

    of_values = 3 if record.quantised else 2  # whose bricks are the packed codes, too
    values, metadata = flat(record.values, of_values), flat(record.metadata, 2)
    packed = values if record.quantised else flat(record.packed, 3)
    lead = () if single else (math.prod(batch),)
    if single or own == batch:
        return record.viewed(values, metadata, packed, lead)
    shape = (*lead, *record.shape[-2:])
    return Compressed24(values, metadata, packed, shape, record.dtype, quantised=record.quantised)


def _spread(x: Any, batch: tuple[int, ...], core: int) -> Any:
    """(..., core) as (prod(batch), core).

    A broadcast, and a part of two batch axes, copies: kernels want rows that are 16-byte aligned,
    which those of `reshape` need not be.
    """
    if x.shape[:-core] != batch or not _memory_order.is_even(x, core):
        copy = _arrays.empty_rows(_arrays.namespace(x), (*batch, *x.shape[-core:]), x.dtype)
        copy[...] = x
        x = copy
    return x.reshape(math.prod(batch), *x.shape[-core:])


def _dense(x: Any, batch: tuple[int, ...]) -> Any:
    """(..., r, c) as (r, c) if it serves the whole batch, else as (prod(batch), r, c)."""
    if x is None or x.ndim == 2:
        return x
    if math.prod(x.shape[:-2]) == 1:
        return x.reshape(x.shape[-2:])
    xp = _arrays.namespace(x)
    full = x if x.shape[:-2] == batch else xp.broadcast_to(x, (*batch, *x.shape[-2:]))
    return full.reshape(math.prod(batch), *x.shape[-2:])
