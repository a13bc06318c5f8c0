"""Products of formats other than `Sparse24Array`, and of element types that only NumPy knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparse24 import (
    _arrays,
    _check,
    _dispatch,
    _dtypes,
    _finish,
    _foreign,
    _product,
    _storage,
    _target,
)
from sparse24._errors import ArgumentError, DeviceError, DTypeError
from sparse24._fuse import PLAIN, Call
from sparse24.formats.base import SparseArray, densified
from sparse24.formats.n_m import NMArray
from sparse24.formats.windows import Windows24

_OF_16_BITS = ("float16", "bfloat16")


def multiply(a, b, out, call: Call):
    """``a @ b`` where one operand is of such a format."""
    if call is PLAIN and out is None and np.ndarray in (type(a), type(b)):
        return a @ b
    with _foreign.stream_of(a), _foreign.stream_of(b):  # one of them is ours
        left, right = in_sums(a, b, call.dtype)
        return _asked(lambda: left @ right, a, b, out, call)


def in_tf32(precision: str, a, b, out, call: Call):
    """The product of an n:m array in TF32; other formats multiply in full precision only."""
    _check.one_of(precision, ("full", "tf32"), argument="precision")
    left = isinstance(a, SparseArray)
    sparse, other = (a, b) if left else (b, a)
    if not isinstance(sparse, NMArray):
        raise ArgumentError(
            "precision='tf32' needs a float32 NMArray of pattern (1, 2), got "
            f"{type(sparse).__name__}; compress it with pattern=(1, 2)"
        )
    product = lambda: sparse.multiply_tf32(other, left=left)  # noqa: E731
    with _foreign.stream_of(other):
        return _asked(product, a, b, out, call)


def by_library(a, b, out, call: Call):
    """Types that sparse24 does not know, such as int64 and complex: NumPy's or CuPy's product."""
    if not call.is_plain:
        raise DTypeError(
            f"plain operands of {a.dtype} and {b.dtype} have only the plain product; convert "
            f"them to one of {', '.join(_dtypes.NAMES)}"
        )
    for argument, array in (("a", a), ("b", b)):
        _check.at_least_1d(array.shape, argument=argument)
    _product.check_inner(a.shape, b.shape)
    return _asked(lambda: _arrays.namespace(a).matmul(a, b), a, b, out, call)


def _refuse_overlap(target, a, b) -> None:
    """Refuse a result over an operand, as every format does, though here nothing would be lost."""
    for argument, x in (("a", a), ("b", b)):
        if isinstance(x, SparseArray | Windows24) or _arrays.is_sparse_matrix(x):
            continue
        if _arrays.shares_memory(_foreign.take(x, argument=argument)[0], target):
            raise ArgumentError(_dispatch.OVERLAP.format("out"))


def in_sums(a, b, dtype) -> tuple[Any, Any]:
    """The operands in the type of the sums, where the result would be rounded to 16 bits first.

    These formats round their products to a type of 16 bits themselves; in another float type
    a result would show both roundings, and infinities of the first.
    """
    name = None if dtype is None else _target.result_name(dtype)
    if name not in (*_OF_16_BITS, "float32", "float64"):
        return a, b
    left = isinstance(a, SparseArray | Windows24)
    ours, other = (a, b) if left else (b, a)
    other = densified(other) if _arrays.is_sparse_matrix(other) else other
    if isinstance(other, SparseArray):
        row, wide = other._dtype, lambda: other.astype("float32")
    else:
        array, restore = _foreign.take(other, argument="b" if left else "a")
        array = _product.promoted_integers(array, _dtypes.lookup(ours.dtype))
        row = _arrays.logical_dtype(array, argument="b" if left else "a")
        wide = lambda: restore(_storage.converted(array, row, _dtypes.lookup("float32")))  # noqa: E731
    result = _product.promote(_dtypes.lookup(ours.dtype), row)[0].result
    if result not in _OF_16_BITS or result == name:
        return a, b
    with _foreign.stream_of(other):
        return (a, wide()) if left else (wide(), b)


def _asked(product: Callable[[], Any], a, b, out, call: Call):
    """What a call with such operands asks of a product: what is fused elsewhere takes a pass."""
    finish, target = checked(call), _target.given(out)
    if target is not None:
        _refuse_overlap(target, a, b)
    result, restore = _foreign.take(product(), argument="the product")
    if not finish.is_plain:
        product = _finish.finished(result, out, finish, _shape(a), _shape(b))
        return restore(product) if out is None else out
    if target is None:
        return restore(result)
    if _arrays.device_of(target) != _arrays.device_of(result):
        raise DeviceError(
            f"out is on {_arrays.device_of(target)}, the product on {_arrays.device_of(result)}; "
            "pass an array on the device of the operands"
        )
    _check.same_shape(target.shape, result.shape, argument="out", other="the product")
    if target.dtype != result.dtype:
        raise DTypeError(f"out must have dtype {result.dtype}, got {target.dtype}")
    _check.writable(target, argument="out")
    target[...] = result
    return out


def checked(call: Call) -> Call:
    """A call of these formats; refuses options that only the kernels of 2:4 have."""
    finish = call._replace(algorithm="auto", other_dtype=None, fast_accumulation=True)
    if finish != call:
        raise ArgumentError(
            "algorithm=, operand types and fast_accumulation= are for Sparse24Array operands; "
            "HybridArray.matmul takes algorithm="
        )
    return finish


def _shape(x) -> tuple[int, ...]:
    return tuple(x.shape if hasattr(x, "shape") else np.shape(x))
