"""Products of a hybrid matrix: operands and results are checked, and stacks folded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _foreign, _hybrid_dispatch, _replay
from sparse24._errors import ArgumentError, DeviceError, DTypeError, ShapeError
from sparse24._product import given, promote
from sparse24.formats.base import densified

FOLD_BELOW = 64  # columns under which a stack becomes one product


def matmul(h, b, out, algorithm: str, balance: bool, plans: dict[tuple, Any]):
    """``h @ b``; see `HybridArray.matmul`.  `plans` remembers what calls have launched."""
    key = _signature(b, out, algorithm, balance)
    ready = None if key is None else plans.get(key)
    if ready is not None and (ready.captured or not _replay.capturing(b)):
        return ready(b, out)
    b = densified(b)
    with _foreign.stream_of(b):
        array, restore = _foreign.take(b, argument="b")
        same, operand = _in_one_type(h, array)
        result, run = _product(same, operand, given(out), algorithm, balance)
        product = restore(result) if out is None else out
    if key is not None and run is not None and same is h and operand is array:
        _replay.make_room(plans)
        b, c = (x[:, None] if x.ndim == 1 else x for x in (operand, result))
        allocate = _replay.allocator(product)
        plans[key] = _replay.Ready(run.bind, b, c, allocate, captured=run.captured)
    return product


def _signature(b, out, algorithm: str, balance: bool) -> tuple | None:
    """What decides how a product of a matrix is launched; None for one that is not remembered."""
    layout = _replay.layout_of(b)
    if layout is None or len(layout[0]) > 2:
        return None
    if out is None:
        return layout, algorithm, balance
    target = _replay.layout_of(out)
    if target is None or type(out) is not type(b):
        return None
    return layout, algorithm, balance, target


def multiply_rows(h, x):
    """``x @ h.T`` for `x` of shape (k,) or (..., n, k), all of its rows in one product."""
    x = densified(x)
    with _foreign.stream_of(x):
        array, restore = _foreign.take(x, argument="x")
        if array.ndim < 2:
            return restore(_product(*_in_one_type(h, array))[0])
        *tokens, k = array.shape
        columns = array.reshape(math.prod(tokens), k).T
        product, _ = _product(*_in_one_type(h, columns))
        return restore(product.T.reshape(*tokens, h.shape[0]))


def _product(h, b, out=None, algorithm: str = "auto", balance: bool = True):
    """The product, and what multiplied the very arrays that it was given, if one launch did."""
    vector = b.ndim == 1
    matrix = b[:, None] if vector else b
    shape = (*matrix.shape[:-2], h.shape[0], matrix.shape[-1])
    shape = shape[:-1] if vector else shape
    result = _hybrid_dispatch.result_dtype(h.tiles.dtype)
    if out is None:
        out = _arrays.namespace(b).empty(shape, result)
    else:
        _check_out(out, shape, result, b)
    target = out[:, None] if vector else out
    if matrix.ndim == 2:
        return out, _hybrid_dispatch.multiply(h, matrix, target, algorithm, balance)
    if balance and matrix.shape[-1] < FOLD_BELOW:
        _multiply_folded(h, matrix, target, algorithm)
    else:
        for index in np.ndindex(matrix.shape[:-2]):
            _hybrid_dispatch.multiply(h, matrix[index], target[index], algorithm, balance)
    return out, None


def _multiply_folded(h, stack, out, algorithm: str) -> None:
    """A stack of products with few columns as one: the matrix is read once."""
    xp = _arrays.namespace(stack)
    batch, (k, n) = stack.shape[:-2], stack.shape[-2:]
    wide = xp.moveaxis(stack, -2, 0).reshape(k, n * math.prod(batch))
    result = xp.empty((h.shape[0], wide.shape[1]), out.dtype)
    _hybrid_dispatch.multiply(h, wide, result, algorithm)
    out[...] = xp.moveaxis(result.reshape(h.shape[0], *batch, n), 0, -2)


def _in_one_type(h, b) -> tuple[Any, Any]:
    """The matrix and `b`, after its checks, in the type in which they meet.

    A matrix that is made anew for an operand of a wider type is kept with this one.
    """
    if b.ndim < 1 or b.shape[0 if b.ndim == 1 else -2] != h.shape[1]:
        raise ShapeError(
            f"b must have shape (k,), (k, n) or (..., k, n) with k = {h.shape[1]}, got {b.shape}"
        )
    _hybrid_dispatch.same_device(h.device, b)
    if b.dtype == h.dtype:
        return h, b
    row, _ = promote(h.tiles.dtype, _arrays.logical_dtype(b, argument="b"))
    if row is not h.tiles.dtype:
        h = h.prepared(f"as {row.name}", lambda: h.astype(row))
    return h, b.astype(h.dtype, copy=False)


def _check_out(out, shape: tuple[int, ...], dtype: np.dtype, b) -> None:
    if _arrays.is_cupy(out) != _arrays.is_cupy(b):
        raise DeviceError(f"out is on {_arrays.device_of(out)}, b on {_arrays.device_of(b)}")
    if out.shape != shape:
        raise ShapeError(f"out must have shape {shape}, got {out.shape}")
    if out.dtype != dtype:
        raise DTypeError(f"out must have dtype {dtype}, got {out.dtype}")
    _check.writable(out, argument="out")
    if _arrays.shares_memory(out, b):
        raise ArgumentError("out shares memory with b; pass another array")
