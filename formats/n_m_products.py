"""Products of n:m arrays whose pattern does not embed into 2:4."""

from __future__ import annotations

from typing import Any

from sparse24 import _arrays, _check, _foreign, _product
from sparse24._errors import DeviceError
from sparse24.formats import n_m_parts
from sparse24.formats.base import densified


def product(array: Any, other, *, left: bool):
    """``array @ other``, or ``other @ array``, with NumPy's rules for shapes."""
    other = densified(other)
    with _foreign.stream_of(other):
        other, restore = _foreign.take(other, argument="b" if left else "a")
        if _arrays.device_of(other) != array.device:
            raise DeviceError(
                f"the array is on {array.device}, the other operand on "
                f"{_arrays.device_of(other)}; move one: A.to_device(...) or cupy.asarray(x)"
            )
        _check.at_least_1d(other.shape, argument="b" if left else "a")
        _product.check_inner(*((array.shape, other.shape) if left else (other.shape, array.shape)))
        own, its = _product.promote(array._dtype, _arrays.logical_dtype(other, argument="b"))
        direct = _direct(array, other, left) if own is its is array._dtype else None
        if direct is not None:
            return restore(direct)
        dense = n_m_parts.widened(array.toarray(), array._dtype)
        pair = (dense, n_m_parts.widened(other, its))
        result = _arrays.namespace(dense).matmul(*(pair if left else pair[::-1]))
        return restore(n_m_parts.narrowed(result, own.result))


def _direct(array: Any, other, left: bool):
    """The product of the stored elements on the CPU, where there is one; else None."""
    along = array.axis == (-1 if left else -2)  # groups run along the contracted axis
    if array.device != "cpu" or array.ndim != 2 or other.ndim > 2 or not along:
        return None
    b = other if left else other.T
    matrix = b[:, None] if b.ndim == 1 else b
    k = array.shape[1] if array.axis == -1 else array.shape[0]
    result = n_m_parts.multiply_on_cpu(
        array.values, array.indices, array.pattern, k, matrix, array._dtype.result
    )
    if result is None:
        return None
    result = result[:, 0] if b.ndim == 1 else result
    return result if left else result.T
