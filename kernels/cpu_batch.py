"""The first steps of every CPU product: check that operands fit, and loop over a batch."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np

from sparse24 import _arrays, _check, _dtypes
from sparse24._errors import DTypeError, ShapeError
from sparse24._records import Fused
from sparse24.kernels._numba import parallel, threads

_SMALL = 1 << 24  # m * n * k of a product of a batch that one thread computes alone
FOLD_UP_TO = 64  # columns of products with one matrix that become one product
MOST_FOLDED = 1 << 14  # columns of that one, as they are copied


@functools.cache
def beside(dtype: _dtypes.DType, other: _dtypes.DType) -> _dtypes.DType:
    """The type of an operand beside another one: int8 sums with floats as they do.

    It has a name of its own, since kernels for int8 have integer sums.
    """
    if dtype.name != "int8" or other.name == "int8":
        return dtype
    name = f"int8 in {other.accumulator.name}"
    return replace(dtype, name=name, accumulator=other.accumulator)


def types_of(values, b) -> tuple[_dtypes.DType, _dtypes.DType]:
    """The types in which both operands of a product are read."""
    dtype = _arrays.logical_dtype(values, argument="values")
    b_dtype = _arrays.logical_dtype(b, argument="b")
    return beside(dtype, b_dtype), beside(b_dtype, dtype)


def checked(values, stored: int, k: int, b, out) -> tuple[_dtypes.DType, _dtypes.DType]:
    """The types of both operands, if they fit together; A stores `stored` elements a row."""
    dtype, b_dtype = types_of(values, b)
    if dtype.accumulator != b_dtype.accumulator:
        raise DTypeError(
            f"b must have a type that sums in {dtype.accumulator} like {dtype.name}, "
            f"got {b_dtype.name}; convert one of the two"
        )
    for argument, array in (("b", b), ("out", out)):
        _check.at_least_2d(array.shape, argument=argument)
    if b.shape[-2] != k or values.shape[-1] != stored:
        raise ShapeError(
            f"b must have k = {k} rows, got shape {b.shape}; check the inner dimensions"
        )
    lead = np.broadcast_shapes(values.shape[:-2], b.shape[:-2])
    want = (*lead, values.shape[-2], b.shape[-1])
    _check.same_shape(out.shape, want, argument="out", other="the product")
    _check.writable(out, argument="out")
    return dtype, b_dtype


def over_batch(values, metadata, b, out, epilogue: Fused, one) -> None:
    """Call ``one(values, metadata, b, out, epilogue)`` for every product of a batch.

    Of many small products each runs on one thread; others share all threads.
    """
    lead = out.shape[:-2]
    if not lead:
        one(values, metadata, b, out, epilogue)
        return
    values, metadata, b = (
        np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (values, metadata, b)
    )
    places = list(np.ndindex(*lead))

    def task(number: int):
        at = places[number]
        one(values[at], metadata[at], b[at], out[at], at_place(epilogue, at))

    size = out.shape[-2] * out.shape[-1] * b.shape[-2]
    if len(places) >= 2 * threads() and size < _SMALL:
        parallel(task, len(places))
    else:
        for number in range(len(places)):
            task(number)


def folds(values, b, epilogue: Fused) -> bool:
    """True if a stack of products with one matrix is better done as one, by `fold`."""
    whole = epilogue.c is None and epilogue.aux is None
    return whole and values.ndim == 2 < b.ndim and b.shape[-1] <= FOLD_UP_TO


def fold(b, out, epilogue: Fused, one) -> None:
    """Call ``one(b, out, epilogue)`` for the columns of many products beside one another."""
    *lead, m, n = out.shape
    rest = math.prod(lead[1:])
    step = max(1, MOST_FOLDED // max(1, n * rest))
    for start in range(0, lead[0], step):
        part = b[start : start + step]
        count = len(part) * rest
        wide = np.moveaxis(part, -2, 0).reshape(b.shape[-2], count * n)
        result = np.empty((m, count * n), out.dtype)
        scale, bias = (
            None if x is None else np.tile(x, count)
            for x in (epilogue.column_scale, epilogue.column_bias)
        )  # fmt: skip
        one(wide, result, replace(epilogue, column_scale=scale, column_bias=bias))
        columns = result.reshape(m, len(part), *lead[1:], n)
        out[start : start + step] = np.moveaxis(columns, 0, -2)


def at_place(epilogue: Fused, place: tuple[int, ...]) -> Fused:
    """The epilogue of one product of a batch."""
    if not place or (epilogue.c is None and epilogue.aux is None):
        return epilogue
    pick = lambda x: None if x is None else x[place]  # noqa: E731
    return replace(epilogue, c=pick(epilogue.c), aux=pick(epilogue.aux))
