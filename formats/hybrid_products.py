"""Products of a hybrid matrix: operands and results are checked, and stacks folded."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from sparse24 import (
    _arrays,
    _check,
    _devices,
    _dtypes,
    _finish,
    _foreign,
    _foreign_streams,
    _overlap,
    _replay,
    _storage,
)
from sparse24._cuda_graphs import keeping_with_hybrid
from sparse24._errors import ArgumentError, ShapeError
from sparse24._hybrid import choice as hybrid_choice
from sparse24._hybrid import dispatch as hybrid_dispatch
from sparse24._hybrid import finish as hybrid_finish
from sparse24._hybrid import on_cpu as hybrid_on_cpu
from sparse24._hybrid.predict import copied_by
from sparse24._hybrid.staged import by_rows
from sparse24._options import NO_OPTIONS, Call
from sparse24._product import if_transposed
from sparse24._promotion import promote, promoted_integers, result_of
from sparse24._target import check_out, given
from sparse24.formats import hybrid_stacks
from sparse24.formats.base import SparseArray, densified


def matmul(h, b, out, algorithm: str, balance: bool, *, sums: bool = False):
    """``h @ b``; see `HybridArray.matmul`.  With `sums`, on the CPU, as `in_sums`."""
    call = NO_OPTIONS if algorithm == "auto" else NO_OPTIONS._replace(algorithm=algorithm)
    key = _replay.signature(b, out, call, from_left=False)
    key = key and (*key, balance, sums)
    ready = _replay.find(h._plans, key, b)
    if ready is not None:
        return ready(b, out)
    if key is None and _foreign.goes_by_view(b):  # which is remembered
        view, restore = _foreign.take(b, argument="b")
        made = matmul(h, view, given(out), algorithm, balance, sums=sums)
        return restore(made) if out is None else out
    b = densified(b, h)
    with _foreign_streams.stream_of(b), keeping_with_hybrid(h, b):
        array, restore = _foreign.take(b, argument="b")
        _check_inner(h, array, "b")
        same, operand = _in_one_type(h, array, "b")
        if h.device == "cpu" and (same is not h or operand is not b):  # remembered in one type
            result = matmul(same, operand, given(out), algorithm, balance, sums=sums)
            return restore(result) if out is None else out
        result, run = _product(same, operand, given(out), algorithm, balance, sums=sums)
        product = restore(result) if out is None else out
    if key is None or same is not h or operand is not array:
        return product
    if type(array) is np.ndarray:
        hybrid_on_cpu.remember(h, key, array, result, algorithm)
    elif run is not None:
        _replay.keep(h._plans, key, _replay.of_run(run, _matrices, array, result, product))
    return product


def multiply_rows(h, x, *, sums: bool = False):
    """``x @ h.T`` for `x` of shape (k,) or (..., n, k), all of its rows in one product.

    With `sums`, on the CPU, as `in_sums`.
    """
    key = _replay.signature(x, None, NO_OPTIONS, from_left=True)
    key = (*key, sums) if key and sums else key
    ready = _replay.find(h._plans, key, x)
    if ready is not None:
        return ready(x, None)
    if key is None and _foreign.goes_by_view(x):
        view, restore = _foreign.take(x, argument="x")
        return restore(multiply_rows(h, view, sums=sums))
    x = densified(x, h)
    with _foreign_streams.stream_of(x), keeping_with_hybrid(h, x):
        array, restore = _foreign.take(x, argument="x")
        _check_inner(h, array, "x", rows=True)
        same, operand = _in_one_type(h, array, "x")
        if h.device == "cpu":
            if same is not h or operand is not x:  # remembered in one type
                return restore(multiply_rows(same, operand, sums=sums))
            result = _rows_on_cpu(h, operand, sums=sums)
            if key is not None:
                hybrid_on_cpu.remember(h, key, array, result, rows=True)
            return restore(result)
        shape = (*operand.shape[:-1], h.shape[0])
        dtype = hybrid_dispatch.result_dtype(same._dtype)
        result = _arrays.namespace(operand).empty(shape, dtype)
        run = hybrid_dispatch.multiply(same, *_tokens(operand, result))
        product = restore(result)
    if key is not None and run is not None and same is h and operand is array:
        _replay.keep(h._plans, key, _replay.of_run(run, _tokens, array, result, product))
    return product


def linear(h, x, call: Call):
    """``x @ h.T``, then the epilogue of a call in a second pass over the result."""
    if call.epilogue is None:
        return multiply_rows(h, x)
    if h.device == "cpu":  # where the product alone is remembered
        return _linear_on_cpu(h, x, call)
    key = _replay.signature(x, None, call, from_left=True)
    ready = _replay.find(h._plans, key, x)
    if ready is not None:
        return ready(x, call.epilogue.bias)
    with keeping_with_hybrid(h, x):
        product = multiply_rows(h, x)
    first = h._plans.get(_replay.signature(x, None, NO_OPTIONS, from_left=True))
    with _foreign_streams.stream_of(product), keeping_with_hybrid(h, product):
        array, restore = _foreign.take(product, argument="the product")
        shapes = (*array.shape[:-1], h.shape[1]), h.shape[::-1]
        finished = restore(_finish.finished(array, None, call, *shapes))
        if key is not None and first is not None and key not in h._plans:
            prepared = hybrid_finish.prepared(first, product, array, finished, call, h.shape[1])
            if prepared is not None:
                _replay.keep(h._plans, key, prepared)
    return finished


def _linear_on_cpu(h, x, call: Call):
    array, restore = _foreign.take(densified(x, h), argument="x")
    product = multiply_rows(h, array, sums=True)
    name = result_of(h._dtype, array.dtype, argument="x")
    finish = call._replace(dtype=name)
    return restore(_finish.finished(product, None, finish, array.shape, h.shape[::-1]))


def in_sums(h, other, *, left: bool):
    """``h @ other``, or ``other @ h``, in float32 where the result would have 16 bits.

    Most GPU kernels store only the type of the operands, so on a GPU a float32 copy of the matrix
    is multiplied, and kept.
    """
    sums, h = h.device == "cpu", h if left else h.T
    if not sums:
        other = _widened(h, other, "b" if left else "a")
        h = _as_type(h, _dtypes.lookup("float32"))  # which remembers its products
    if left:
        return matmul(h, other, None, "auto", True, sums=sums)
    return multiply_rows(h, other, sums=sums)


class Expected(NamedTuple):
    """What a product would be, without making it."""

    h: Any  # the matrix that multiplies: transposed, and in the type of the product
    b: Any  # the operand in that type
    order: str  # of the operand's memory, by rows or by columns
    told: dict | None  # as `HybridArray.explain` tells of it; None if an operand has no elements


def expected(h, other, *, left: bool, sums: bool = False) -> Expected:
    """What ``h @ other``, or ``other @ h``, would be, after its checks; `sums` as in `in_sums`."""
    h, argument = (h, "b") if left else (h.T, "a")
    if sums and h.device != "cpu":
        other, h = _widened(h, other, argument), _as_type(h, _dtypes.lookup("float32"))
    array, _ = _foreign.take(densified(other, h), argument=argument)
    _check_inner(h, array, argument, rows=not left)
    same, operand = _in_one_type(h, array, argument)
    if not (operand.size and same.shape[0]):
        return Expected(same, operand, "row", None)
    if left and operand.ndim > 2:
        b = hybrid_stacks.chosen_by(operand)
    else:
        b, _ = (_matrices if left else _tokens)(operand, operand)
    order = "row" if by_rows(b) else "column"
    told = hybrid_choice.explain(same, b.shape[1], copied=copied_by(b.shape[1], order))
    return Expected(same, operand, order, told)


def _widened(h, other, argument: str):
    """The other operand of a float32 product, which holds all types of 16 bits and fewer."""
    if isinstance(other, SparseArray):
        return other.astype("float32")
    array, restore = _foreign.take(other, argument=argument)
    _devices.refuse_apart(array, h.device, argument=argument)
    array = promoted_integers(array, h._dtype, argument=argument)
    dtype = _arrays.logical_dtype(array, argument=argument)
    return restore(_storage.converted(array, dtype, _dtypes.lookup("float32")))


def _rows_on_cpu(h, x, *, sums: bool = False):
    """The kernel of the CPU writes rows of ``h @ b``: the result is a view of those."""
    columns = x if x.ndim == 1 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1]).T
    product, _ = _product(h, columns, sums=sums)
    return product if x.ndim == 1 else product.T.reshape(*x.shape[:-1], h.shape[0])


def _matrices(b, out):
    """Operand and result of ``h @ b`` as they are, a vector as a column."""
    return (b[:, None], out[:, None]) if b.ndim == 1 else (b, out)


def _tokens(x, out):
    """Operand and result of the product ``h @ x.T`` that is the transpose of ``x @ h.T``."""
    rows = math.prod(x.shape[:-1])
    return x.reshape(rows, x.shape[-1]).T, out.reshape(rows, out.shape[-1]).T


def _product(h, b, out=None, algorithm="auto", balance: bool = True, *, sums: bool = False):
    """The product, and what multiplied, if it can again with arrays like these."""
    shape = (h.shape[0],) if b.ndim == 1 else (*b.shape[:-2], h.shape[0], b.shape[-1])
    is_sum = sums and h._dtype.result in _dtypes.OF_16_BITS
    result = np.dtype(np.float32) if is_sum else hybrid_dispatch.result_dtype(h._dtype)
    if out is None:
        out = _arrays.namespace(b).empty(shape, result)
    else:
        check_out(out, shape, result, _arrays.device_of(b))
        if _overlap.shares_memory(out, b):
            raise ArgumentError(hybrid_on_cpu.OVERLAP)
    if b.ndim > 2:
        return out, hybrid_stacks.multiply(h, b, out, algorithm, balance)
    matrix, target = _matrices(b, out)
    return out, hybrid_dispatch.multiply(h, matrix, target, algorithm, balance)


def _check_inner(h, x, argument: str, *, rows: bool = False) -> None:
    """Refuse an operand that does not fit; of ``x @ h.T`` with `rows`, else of ``h @ b``."""
    _check.not_scalar(x.shape, argument=argument)
    if x.shape[-1 if rows or x.ndim == 1 else -2] != h.shape[1]:
        shapes = "(k,) or (..., n, k)" if rows else "(k,), (k, n) or (..., k, n)"
        way_out = if_transposed(x.shape, h.shape[::-1]) if rows else if_transposed(h.shape, x.shape)
        raise ShapeError(
            f"{argument} must have shape {shapes} with k = {h.shape[1]}, got {x.shape}{way_out}"
        )


def _in_one_type(h, b, argument: str) -> tuple[Any, Any]:
    """The matrix and an operand on its device, in the type in which they meet."""
    _devices.refuse_apart(b, h.device, argument=argument)
    if b.dtype == h.dtype:
        return h, b
    b = promoted_integers(b, h._dtype, argument=argument)
    dtype, _ = promote(h._dtype, _arrays.logical_dtype(b, argument=argument))
    h = _as_type(h, dtype)
    return h, b.astype(h.dtype, copy=False)


def _as_type(h, dtype: _dtypes.DType):
    """The matrix in a type; one that is made anew is kept with this one."""
    return h if dtype is h._dtype else h.prepared(f"as {dtype.name}", lambda: h.astype(dtype))
