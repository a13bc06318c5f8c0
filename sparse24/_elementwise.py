"""Arithmetic that keeps zeros: factors, signs, and functions that are zero at zero.

Only what is stored is computed.  A zero of the matrix stays one, also beside an infinite factor,
so the result has the places of the elements, which are not looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from sparse24 import (
    _arrays,
    _check,
    _devices,
    _dtypes,
    _foreign,
    _gradients,
    _record_parts,
    _row_blocks,
    _storage,
)
from sparse24._dtypes import DType
from sparse24._errors import ArgumentError, DTypeError, ShapeError
from sparse24._records import Compressed24

WORK = _dtypes.TABLE["float32"]  # for types in which NumPy or CuPy do not compute
_OF_SIGNS = (np.negative, np.absolute)
_BY_FLOAT32 = (np.multiply, np.divide)  # what NumPy computes of float16 in float32, and rounds


def factor_of(x: Any, shape: tuple[int, ...], *, device: str) -> Any:
    """A factor as a number, or as an array of this shape (a view) on `device`, after its checks."""
    _gradients.refuse(x, "the factor")
    if isinstance(x, np.generic):
        return x
    for kind in (bool, int, float):
        if isinstance(x, kind):
            _check.number(x, argument="the factor")
            return kind(x)  # a member of an enumeration, say
    array, _ = _foreign.take(x, argument="the factor")
    if type(array) is np.ndarray and not array.ndim and array.dtype != object:
        return array[()]
    _devices.refuse_apart(array, device, argument="the factor")
    try:
        return _arrays.namespace(array).broadcast_to(array, shape)
    except ValueError:
        raise ShapeError(
            f"a factor of shape {tuple(array.shape)} does not broadcast to {tuple(shape)}, the "
            "shape of the sparse array"
        ) from None


def result_type(ufunc: np.ufunc, dtype: DType, factor: Any) -> DType:
    """The element type of the result: NumPy's for a dense array, if the library stores it.

    Numbers of Python leave bfloat16 and fp8 as they are, as they do NumPy's own floats.
    """
    weak = type(factor) in (bool, int, float)
    if weak and not is_native(dtype):
        return dtype
    other = factor if weak else np.empty(0, factor.dtype)
    try:
        found = ufunc(np.empty(0, dtype.logical), other).dtype
    except TypeError:
        found = None
    except OverflowError as error:
        raise ArgumentError(
            f"the factor {_check.shown(factor)} does not fit {dtype.name}; convert the array with "
            ".astype(...)"
        ) from error
    if found not in _dtypes.LOGICAL:
        made = "have no common type" if found is None else f"give {found}, which is not stored"
        named = type(factor).__name__ if weak else factor.dtype
        raise DTypeError(
            f"elements of {dtype.name} and a factor of {named} {made}; convert one of them with "
            ".astype(...)"
        )
    return _dtypes.lookup(found)


def type_of_each(ufunc: np.ufunc, dtype: DType) -> DType:
    """The element type of a function of single elements: NumPy's, as float16 for int8."""
    return _dtypes.lookup(ufunc(np.empty(0, dtype.logical)).dtype) if is_native(dtype) else dtype


def is_native(dtype: DType) -> bool:
    """Whether NumPy and CuPy compute in this type by themselves."""
    return dtype.logical.isbuiltin == 1


def of_record(ufunc: np.ufunc, record: Compressed24, factor: Any, result: DType) -> Compressed24:
    """`ufunc` of the elements of a 2:4 record; a factor that is an array has the record's shape."""
    taken = functools.partial(_at_places, record)
    values = of_stored(ufunc, record.values, record.dtype, factor, result, taken)
    return _storage.with_values(record, values, result)


def _at_places(record: Compressed24, factor: Any) -> Any:
    """The factor of each stored element of a record, from one that has its shape."""
    codes = _storage.canonical(record)
    if _arrays.is_cupy(codes):
        return at_columns(factor, _record_parts.columns_of(codes, record.values.shape[-1]))
    from sparse24.kernels import cpu

    return cpu.at_places(codes, factor)


def of_stored(
    ufunc: np.ufunc, values: Any, dtype: DType, factor: Any, result: DType,
    taken: Callable[[Any], Any],
) -> Any:  # fmt: skip
    """`ufunc` of stored elements and of a factor of the shape of the whole array.

    ``taken(factor)`` picks the factor of each stored element.  It is called only for a factor that
    varies within rows; one that does not is broadcast along them.
    """
    factor = taken(factor) if _varies(factor) else _by_row(factor)
    return of_values(ufunc, values, dtype, factor, result)


def _varies(factor: Any) -> bool:
    """Whether a factor varies within the rows of the array to which it was broadcast."""
    return np.ndim(factor) > 0 and factor.shape[-1] > 1 and factor.strides[-1] != 0


def _by_row(factor: Any) -> Any:
    """A factor that does not vary within rows, as one column; a number as it is."""
    return factor if np.ndim(factor) == 0 else factor[..., :1]


def at_columns(factor: Any, columns: Any) -> Any:
    """The factor of each stored element, from one that has the shape of the whole array."""
    xp = _arrays.namespace(columns)
    return xp.take_along_axis(factor, xp.minimum(columns, factor.shape[-1] - 1), axis=-1)


def of_values(ufunc: np.ufunc, values: Any, dtype: DType, factor: Any, result: DType) -> Any:
    """`ufunc` of stored elements and a factor that broadcasts to them; zeros, as filler, stay."""
    if ufunc in _OF_SIGNS and _keeps_bits(values, dtype):
        return _with_sign(ufunc, values, dtype)
    if np.ndim(factor) == 0 and _is_looked_up(values, dtype):
        of_each = of_values(ufunc, _storage.every(dtype), dtype, factor, result)
        return of_each.take(values.view(dtype.storage))
    made = _as_halves(ufunc, values, dtype, factor, result)
    if made is None:
        made = _computed(ufunc, values, dtype, factor, result)
    xp = _arrays.namespace(values)
    kept = _arrays.not_zero(values, dtype) & _arrays.not_zero(made, result)
    bits = made.view(result.storage)
    made = xp.where(kept, bits, bits.dtype.type(0)).view(made.dtype)  # nor is -0.0 stored
    return _storage.in_rows(made)


def _computed(ufunc: np.ufunc, values: Any, dtype: DType, factor: Any, result: DType) -> Any:
    """`ufunc` of values, in the type of the result where NumPy computes in it."""
    work = result if is_native(result) else WORK
    wide = values if work is dtype else _storage.converted(values, dtype, work)
    operands = (wide,) if factor is None else (wide, _in_work(factor, work))
    with _without_news(dtype, factor):
        made = getattr(_arrays.namespace(values), ufunc.__name__)(*operands)
    return made if work is result else _storage.converted(made, work, result)


def _as_halves(
    ufunc: np.ufunc, values: Any, dtype: DType, factor: Any, result: DType
) -> np.ndarray | None:
    """The same in float16 on the CPU, sooner than by NumPy's loops.

    None of other types and functions, of few values, and where NumPy may have to warn.
    """
    if result.name != "float16" or ufunc not in _BY_FLOAT32 or _arrays.is_cupy(values):
        return None
    if values.size <= _storage.WORTH_DECODING:
        return None
    factor = _in_work(factor, result)
    if np.ndim(factor):
        by = _storage.converted(np.ascontiguousarray(factor), result, WORK)
    else:
        by = factor.astype(np.float32)
    by, made = np.broadcast_to(by, values.shape), np.empty(values.shape, result.logical)
    for rows in _row_blocks.blocks_of_rows(values.shape):
        wide = _storage.converted(values[rows], dtype, WORK)
        with np.errstate(all="ignore"):
            ufunc(wide, by[rows], out=wide)
        if not _storage.fit_halves(wide):
            return None
        _storage.store_halves(wide, made[rows])
    return made


def _without_news(dtype: DType, factor: Any) -> np.errstate:
    """Silence warnings that tell nothing: all of fp8, which saturates, and 0 times infinity."""
    if dtype.is_float8:
        return np.errstate(all="ignore")
    return np.errstate() if factor is None else np.errstate(invalid="ignore")


def _keeps_bits(values: Any, dtype: DType) -> bool:
    """Whether only the sign bit may be touched.

    In float32 and back, infinities of fp8 would saturate, and CuPy takes subnormal float32 for
    zeros.
    """
    return dtype.is_float8 or (_arrays.is_cupy(values) and dtype.name != "int8")


def _with_sign(ufunc: np.ufunc, values: Any, dtype: DType) -> Any:
    """Floats with another sign, in their bits."""
    bits = values.view(dtype.storage)
    sign = bits.dtype.type(1 << 8 * dtype.itemsize - 1)
    turned = bits ^ sign if ufunc is np.negative else bits & ~sign
    kept = _arrays.not_zero(values, dtype)
    turned = _arrays.namespace(values).where(kept, turned, bits.dtype.type(0))
    return _storage.in_rows(turned.view(values.dtype))


def _is_looked_up(values: Any, dtype: DType) -> bool:
    """Whether it is faster to compute of all values of fp8, and to look the result up."""
    return dtype.is_float8 and not _arrays.is_cupy(values) and values.size > 1 << 8


def _in_work(factor: Any, work: DType) -> Any:
    """A factor in the type of the computation; one of Python's numbers is not rounded further."""
    if np.ndim(factor) == 0:
        return np.asarray(factor).astype(work.logical)[()]
    if factor.dtype in _dtypes.LOGICAL and not is_native(_dtypes.lookup(factor.dtype)):
        dense = _arrays.namespace(factor).ascontiguousarray(factor)  # it may be broadcast
        return _storage.converted(dense, _dtypes.lookup(factor.dtype), work)
    return factor.astype(work.logical, copy=False)
