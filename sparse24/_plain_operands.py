"""Products of two plain arrays: one that obeys 2:4 is compressed, or the product is dense."""

from __future__ import annotations

import numpy as np

from sparse24 import (
    _arrays,
    _check,
    _dtypes,
    _foreign,
    _foreign_streams,
    _other_formats,
    _product,
    _target,
)
from sparse24._compress import compress
from sparse24._is_24 import is_24
from sparse24._options import Call
from sparse24._records import Operand24


def one_sparse(a, b, a_dtype, b_dtype):
    """Compress the first operand that obeys 2:4 along the contracted axis."""
    if _capturing(a) or _capturing(b):
        return a, b  # a check would wait for the device, which a capture forbids
    left, right = _foreign.take(a, argument="a")[0], _foreign.take(b, argument="b")[0]
    if left.dtype not in _known_dtypes(a_dtype) or right.dtype not in _known_dtypes(b_dtype):
        return a, b
    for argument, dtype in (("a_dtype", a_dtype), ("b_dtype", b_dtype)):
        if dtype is not None:
            _dtypes.lookup(dtype, argument=argument)
    for x, array, axis, dtype, other in (
        (a, left, -1, a_dtype, b), (b, right, -2, b_dtype, a)
    ):  # fmt: skip
        wide_enough = array.ndim >= 2 and min(array.shape[-2:]) > 1
        with _foreign_streams.stream_of(x):  # `array` does not tell that it is torch's
            if wide_enough and is_24(array, axis=axis):
                packed = compress(array, axis=axis, dtype=dtype, check=False)
                return (packed, other) if x is a else (other, packed)
    return a, b


def _known_dtypes(named) -> frozenset[np.dtype]:
    return _dtypes.LOGICAL if named is None else _dtypes.LOGICAL | {np.dtype(np.uint8)}


def _capturing(x) -> bool:
    return (_arrays.is_cupy(x) or _arrays.is_torch(x)) and _arrays.captures_work_on(x)


def product(a, b, a_dtype, out, call: Call):
    """Neither operand obeys 2:4: the dense product, by the same rules for types and errors."""
    left, restore = _foreign.take(a, argument="a")
    right, _ = _foreign.take(b, argument="b")
    for argument, array in (("a", left), ("b", right)):
        _check.not_scalar(array.shape, argument=argument)
    b_dtype = call.other_dtype
    if left.dtype not in _known_dtypes(a_dtype) or right.dtype not in _known_dtypes(b_dtype):
        with _foreign_streams.stream_of(a):
            product = _other_formats.by_library(left, right, out, call)
            return restore(product) if out is None else out
    if left.ndim == 1 and right.ndim > 1:
        call = call._replace(other_dtype=a_dtype)
        return _product.multiply(_operand(right, b_dtype, "b"), a, out, call, from_left=True)
    if left.ndim == right.ndim == 1:
        row = _operand(left[None], a_dtype, "a")
        product = _product.multiply(row, b, None if out is None else _one_element(out), call)
        return product[0] if out is None else out
    return _product.multiply(_operand(left, a_dtype, "a"), b, out, call)


def _one_element(out):
    """The array without axes behind `out` as a vector."""
    target = _target.given(out)
    _check.same_shape(target.shape, (), argument="out", other="the product of two vectors")
    return target[None]


def _operand(x, named, argument: str) -> Operand24:
    """A plain array as a product takes it."""
    _check.at_least_2d(x.shape, argument=argument)
    dtype = _arrays.logical_dtype(x, named, argument=argument)
    return Operand24(None, None, _arrays.as_storage(x, dtype), tuple(x.shape), dtype)
