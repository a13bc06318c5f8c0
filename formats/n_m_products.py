"""Products of n:m arrays whose pattern does not embed into 2:4."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparse24 import (
    _arrays,
    _check,
    _devices,
    _foreign,
    _foreign_streams,
    _product,
    _promotion,
    _replay,
    _storage,
)
from sparse24._options import NO_OPTIONS
from sparse24.formats import n_m_on_cpu, n_m_on_gpu, n_m_parts
from sparse24.formats.base import SparseArray, densified

# Columns up to which a product on the CPU skips zeros whatever the pattern, and the share of stored
# elements up to which it does with more (measured at 5:8 and 7:8).
_SOME_COLUMNS, _SHARE = 128, 0.75


def in_sums(array: Any, other, *, left: bool):
    """`product` in float32, not rounded, where the result would have 16 bits."""
    if isinstance(other, SparseArray) and other._dtype.is_float8 and other.device != "cpu":
        other = other.astype("float32")  # its dense form would be bits
    return product(array, other, left=left, result="float32")


def product(array: Any, other, *, left: bool, result: str | None = None):
    """``array @ other``, or ``other @ array``, with NumPy's rules for shapes.

    `result` names its type; by default it is that of the operands.
    """
    key = _replay.signature(other, None, NO_OPTIONS, from_left=not left)
    key = (*key, result) if key and result else key
    known = _replay.find(array._plans, key, other)
    if known is not None:
        return known(other, None)
    argument, on_cpu = "b" if left else "a", type(array._values) is np.ndarray
    if on_cpu and key is None and _foreign.goes_by_view(other):  # remembered as a NumPy array
        view, restore = _foreign.take(other, argument=argument)
        return restore(product(array, view, left=left, result=result))
    other = densified(other, array)
    with _foreign_streams.stream_of(other):
        given, restore = _foreign.take(other, argument=argument)
        x, its, own = fitted(array, given, left=left)
        name, prepared = result or own, None
        read = _as_read(array, its) if on_cpu else None
        if read is not None and read is not its:
            x = _storage.converted(x, its, read)
        if on_cpu and x is not given:
            return restore(product(array, x, left=left, result=name))
        key = key if x is given else None
        if not on_cpu:
            made = restore(n_m_on_gpu.multiply(array, x, name, left=left))
            if key is not None and _is_plain(array, x, its):
                prepared = n_m_on_gpu.prepared(array, x, made, name, left=left)
        elif not _is_remembered(array, x, its, left=left):
            made = restore(_dense(array, x, its, name, left))
        elif x.ndim > 2:
            made = restore(_of_rows(array, x, result))
        else:
            prepared = n_m_on_cpu.PreparedProduct(array, x, name, left=left)
            made = restore(prepared(x))
        if key is not None and prepared is not None:
            _replay.keep(array._plans, key, prepared)
    return made


def _of_rows(array: Any, stack: np.ndarray, result: str | None) -> np.ndarray:
    """``stack @ array`` as the product of one matrix, which is remembered, as stacks are not."""
    rows = stack.reshape(math.prod(stack.shape[:-1]), stack.shape[-1])
    made = product(array, rows, left=False, result=result)
    return made.reshape(*stack.shape[:-1], array.shape[1])


def _is_plain(array: Any, other, its) -> bool:
    """Whether a matrix is multiplied with a matrix or a vector of its type, neither empty."""
    matrices = array.ndim == 2 and other.ndim <= 2 and its is array._dtype
    return matrices and array.size > 0 and other.size > 0


def _is_remembered(array: Any, other, its, *, left: bool) -> bool:
    """Whether a product on the CPU is one of `n_m_on_cpu`, and not that of the dense matrix."""
    if array.ndim > 2 or (left and other.ndim > 2) or _as_read(array, its) is not its:
        return False
    across = array.axis != (-1 if left else -2) and array._values.size and other.size
    return bool(across) or why_dense(array, other, left=left) is None


def _dense(array: Any, other, its, result_type: str, left: bool):
    """The product of the dense matrix, on the CPU."""
    dense = n_m_parts.widened(array.toarray(), array._dtype)
    pair = (dense, n_m_parts.widened(other, its))
    result = _arrays.namespace(dense).matmul(*(pair if left else pair[::-1]))
    return n_m_parts.narrowed(result, result_type)


def fitted(array: Any, other, *, left: bool):
    """The dense operand as it is multiplied, its type, and the name of the result's.

    Refuses what does not fit.
    """
    argument = "b" if left else "a"
    _check.not_scalar(other.shape, argument=argument)
    _devices.refuse_apart(other, array.device, argument=argument)
    pair = (array, other) if left else (other, array)
    _product.check_inner(*(x.shape for x in pair))
    _product.batch_of(*pair)
    other = _promotion.promoted_integers(other, array._dtype, argument=argument)
    its = _arrays.logical_dtype(other, argument=argument)
    common, _ = _promotion.promote(array._dtype, its)
    return other, its, common.result


def _as_read(array: Any, its):
    """The type in which kernels on the CPU read a dense operand of this type beside the array.

    None if the array itself would have to be converted, as int8 is not.
    """
    common, _ = _promotion.promote(array._dtype, its)
    own = array._dtype
    known = own.name == "int8" or _promotion.as_read(own, common) is own
    return _promotion.as_read(its, common) if known else None


def why_dense(array: Any, other, *, left: bool) -> str | None:
    """Why the dense matrix is multiplied, and not the stored elements, on the CPU; else None."""
    known = array.device == "cpu" and array.ndim == 2 and not (left and other.ndim > 2)
    columns, its = _columns(other, left), _arrays.logical_dtype(other, argument="b")
    meets = _as_read(array, its) is not None
    if array.axis != (-1 if left else -2):
        if known and meets and n_m_on_cpu.adds_rows(columns, array, its):
            return None
        return "the groups do not run along the contracted axis, so the product is dense"
    n, m = array.pattern
    if array.device != "cpu":
        way_out = "; .windows() makes an exact 2:4 product over a longer k"
        has_windows = m % 2 == 0 and n <= m - 2
        return f"{n}:{m} does not embed into 2:4, so the product is dense" + has_windows * way_out
    if not known:
        return (
            "on the CPU stacks of matrices are multiplied densely; the Numba kernel for "
            f"{n}:{m} takes one matrix at a time"
        )
    if _is_quicker_dense(array, columns, its, left):
        return f"multiplying the dense matrix by BLAS wins at this size of {n}:{m}"
    if not meets:
        common, same = _promotion.promote(array._dtype, its)
        return (
            f"operands of {array._dtype.name} and {its.name} meet in the dense matrix; convert "
            f"both to {common.name if common is same else 'float32'} first"
        )
    return None


def _is_quicker_dense(array: Any, columns: int, its, left: bool) -> bool:
    """Whether BLAS wins with that many columns; it has no integers, but takes few rows directly."""
    from sparse24.kernels import cpu

    (n, m), dtype = array.pattern, cpu.beside(array._dtype, its)
    rows, k = array.shape if left else array.shape[::-1]
    if cpu.few_columns_pay(n, m, columns, dtype):
        return False
    full = n > _SHARE * m and columns > _SOME_COLUMNS and dtype.name != "int8"
    name = dtype.name if dtype is array._dtype else dtype.accumulator.name
    return full or cpu.choose(rows, k, columns, name) == "dense"


def _columns(other, left: bool) -> int:
    """How many columns the dense operand has for the kernel, on whichever side it stands."""
    if left:
        return 1 if other.ndim == 1 else other.shape[1]
    return math.prod(other.shape[:-1])
