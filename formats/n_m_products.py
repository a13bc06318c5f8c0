"""Products of n:m arrays whose pattern does not embed into 2:4."""

from __future__ import annotations

import math
from typing import Any

from sparse24 import _arrays, _check, _foreign, _product
from sparse24._errors import DeviceError
from sparse24.formats import n_m_parts
from sparse24.formats.base import densified

FEW_COLUMNS = 16  # up to which a sparse product on the CPU wins whatever the pattern


def product(array: Any, other, *, left: bool):
    """``array @ other``, or ``other @ array``, with NumPy's rules for shapes."""
    other = densified(other)
    with _foreign.stream_of(other):
        other, restore = _foreign.take(other, argument="b" if left else "a")
        other, its, result_type = fitted(array, other, left=left)
        if why_dense(array, other, left=left) is None:
            return restore(_direct(array, other, left))
        dense = n_m_parts.widened(array.toarray(), array._dtype)
        pair = (dense, n_m_parts.widened(other, its))
        result = _arrays.namespace(dense).matmul(*(pair if left else pair[::-1]))
        return restore(n_m_parts.narrowed(result, result_type))


def fitted(array: Any, other, *, left: bool):
    """The dense operand as it is multiplied, its type, and the name of the result's.

    Refuses what does not fit.
    """
    _check.at_least_1d(other.shape, argument="b" if left else "a")
    if _arrays.device_of(other) != array.device:
        raise DeviceError(
            f"the array is on {array.device}, the other operand on "
            f"{_arrays.device_of(other)}; move one: A.to_device(...) or cupy.asarray(x)"
        )
    pair = (array, other) if left else (other, array)
    _product.check_inner(*(x.shape for x in pair))
    _product.batch_of(*pair)
    other = _product.promoted_integers(other, array._dtype)
    its = _arrays.logical_dtype(other, argument="b" if left else "a")
    common, _ = _product.promote(array._dtype, its)
    return other, its, common.result


def why_dense(array: Any, other, *, left: bool) -> str | None:
    """Why the dense matrix is multiplied, and not the stored elements, on the CPU; else None.

    Dense patterns with many columns are quicker by BLAS.
    """
    if array.axis != (-1 if left else -2):
        return "the groups do not run along the contracted axis, so the product is dense"
    n, m = array.pattern
    many = 2 * n > m and _columns(other, left) > FEW_COLUMNS
    if array.device != "cpu" or array.ndim != 2 or (left and other.ndim > 2) or many:
        way_out = "; .windows() makes an exact 2:4 product over a longer k"
        has_windows = m % 2 == 0 and n <= m - 2
        return f"{n}:{m} does not embed into 2:4, so the product is dense" + has_windows * way_out
    its = _arrays.logical_dtype(other, argument="b")
    if its is not array._dtype:
        common, same = _product.promote(array._dtype, its)
        return (
            f"operands of {array._dtype.name} and {its.name} meet in the dense matrix; convert "
            f"both to {common.name if common is same else 'float32'} first"
        )
    return None


def _columns(other, left: bool) -> int:
    """How many columns the dense operand has for the kernel, on whichever side it stands."""
    if left:
        return 1 if other.ndim == 1 else other.shape[1]
    return math.prod(other.shape[:-1])


def _direct(array: Any, other, left: bool):
    """The product of the stored elements on the CPU."""
    k = array.shape[1] if array.axis == -1 else array.shape[0]
    if not left and other.ndim > 2:
        rows = _direct(array, other.reshape(math.prod(other.shape[:-1]), k), left)
        return rows.reshape(*other.shape[:-1], rows.shape[-1])
    b = other if left else other.T
    matrix = b[:, None] if b.ndim == 1 else b
    result = n_m_parts.multiply_on_cpu(
        array._values, array._indices, array.pattern, k, matrix, array._dtype.result
    )
    result = result[:, 0] if b.ndim == 1 else result
    return result if left else result.T
