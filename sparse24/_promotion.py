"""The types in which operands meet and results are: NumPy's rules, with bfloat16 and fp8 added."""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _dtypes
from sparse24._dtypes import DType
from sparse24._errors import DTypeError


def promote(a: DType, b: DType) -> tuple[DType, DType]:
    """The types to which the operands are converted; nothing is narrowed."""
    if a is b or (a.is_float8 and b.is_float8):
        return a, b
    for narrow, wide in ((a, b), (b, a)):
        if narrow.is_float8 and wide.name in _dtypes.OF_16_BITS:  # which holds all of its values
            return wide, wide
    try:
        common = np.promote_types(a.logical, b.logical)
    except TypeError:
        common = np.dtype(np.float32)  # float16 with bfloat16
    if common.itemsize == 1:  # int8 with fp8, which ml_dtypes calls wide enough
        common = np.dtype(np.float32)
    dtype = _dtypes.lookup(common, argument="the common dtype of the operands")
    return dtype, dtype


def as_read(own: DType, common: DType) -> DType:
    """The type in which kernels on the CPU take an operand that meets another in type `common`.

    They convert elements to the type of the sums as they read them, from any that sums in it.
    """
    return own if own.accumulator == common.accumulator else _dtypes.lookup(common.accumulator)


def promoted_integers(x, dtype: DType, named=None, *, argument: str):
    """Integers and booleans converted to NumPy's common type with `dtype`; other arrays unchanged.

    Unchanged are also ``uint8``, which may be the bits of fp8, and an array whose type is `named`.
    Integers wider than int8 are refused beside an int8 matrix.
    """
    if named is not None or x.dtype.kind not in "biu" or x.dtype in (np.int8, np.uint8):
        return x
    of_numpy = dtype.logical.isbuiltin == 1  # NumPy knows no common type with ml_dtypes
    if x.dtype == bool and not of_numpy:
        return x.astype(np.int8)
    if x.dtype != bool and dtype.name == "int8":
        raise DTypeError(
            f"{argument} must not hold integers wider than int8 with an int8 matrix, got dtype "
            f"{x.dtype}; use .astype('int8') if its values fit, or .astype('float32')"
        )
    common = np.promote_types(dtype.logical if of_numpy else np.float32, x.dtype)
    return x.astype(common) if common in _dtypes.LOGICAL else x


def result_of(own: DType, dtype: np.dtype, *, argument: str) -> str:
    """The type of a product with a dense array of a type, which may be integers or booleans."""
    if dtype == own.logical:
        return own.result
    other = promoted_integers(np.empty(0, dtype), own, argument=argument)
    return promote(own, _arrays.logical_dtype(other, argument=argument))[0].result
