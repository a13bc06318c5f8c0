"""`numpy.concatenate`, `vstack` and `hstack` of hybrid matrices: their non-zeros, row by row."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparse24 import _arrays, _check
from sparse24._errors import ArgumentError, DeviceError, DTypeError, ShapeError
from sparse24.formats.hybrid_listed import row_numbers
from sparse24.formats.hybrid_stored import HybridStored
from sparse24.kernels.csr import CsrRows


def concatenate(matrices: Any, /, axis: int = 0, out=None, dtype=None, casting=None) -> Any:
    """What `numpy.concatenate` gives for hybrid matrices; on a GPU this waits for their sizes."""
    given = {"out": out, "dtype": dtype, "casting": casting}
    named = ", ".join(f"{option}=" for option, value in given.items() if value is not None)
    if named:
        raise ArgumentError(
            f"numpy.concatenate takes no {named} with hybrid matrices; leave it out, and convert "
            "the result with .astype(...)"
        )
    matrices = list(matrices)
    first: Any = next(x for x in matrices if isinstance(x, HybridStored))
    axis = _check.axis(axis, 2)
    for matrix in matrices:
        _check_alike(first, matrix, 1 - axis)
    return first._joined(matrices, axis)


def _check_alike(first: HybridStored, matrix: Any, kept: int) -> None:
    if not isinstance(matrix, HybridStored):
        raise DTypeError(
            "numpy.concatenate joins hybrid matrices with one another, got "
            f"{type(matrix).__name__}; make one of it with sparse24.hybrid(...)"
        )
    if matrix.dtype != first.dtype:
        raise DTypeError(
            f"numpy.concatenate joins hybrid matrices of one type, got {first.dtype} and "
            f"{matrix.dtype}; convert with .astype(...)"
        )
    if matrix.device != first.device:
        raise DeviceError(
            f"numpy.concatenate joins matrices of one device, got {first.device} and "
            f"{matrix.device}; move one with .to_device(...)"
        )
    if matrix.shape[kept] != first.shape[kept]:
        raise ShapeError(
            f"numpy.concatenate joins matrices that differ in axis {1 - kept} only, got shapes "
            f"{first.shape} and {matrix.shape}"
        )


def joined_rows(parts: Sequence[Any], shape: tuple[int, int], axis: int) -> CsrRows:
    """The non-zeros of matrices that are joined to one of this shape, as `HybridStored.held`
    gives theirs; new arrays on their device.
    """
    return _below_one_another(parts, shape) if axis == 0 else _side_by_side(parts, shape)


def _below_one_another(parts: Sequence[Any], shape: tuple[int, int]) -> CsrRows:
    rows = [part.held() for part in parts]
    xp = _arrays.namespace(rows[0][2])
    counts = [xp.diff(starts) for starts, _, _ in rows]
    starts = xp.zeros(shape[0] + 1, np.int64)
    starts[1:] = xp.cumsum(xp.concatenate(counts))
    columns = [columns.astype(_column_type(shape)) for _, columns, _ in rows]
    return CsrRows(starts, xp.concatenate(columns), xp.concatenate([bits for _, _, bits in rows]))


def _side_by_side(parts: Sequence[Any], shape: tuple[int, int]) -> CsrRows:
    rows = [part.held() for part in parts]
    xp, storage = _arrays.namespace(rows[0][2]), rows[0][2].dtype
    counts = [xp.diff(starts).astype(np.int64) for starts, _, _ in rows]
    starts = xp.zeros(shape[0] + 1, np.int64)
    starts[1:] = xp.cumsum(sum(counts))
    size, before = sum(bits.size for _, _, bits in rows), 0
    columns, bits = xp.empty(size, _column_type(shape)), xp.empty(size, storage)
    here = starts[:-1].copy()  # where the elements of the next part begin in each row
    for part, (from_, part_columns, part_bits), count in zip(parts, rows, counts, strict=True):
        row = row_numbers(from_, part_bits.size)
        place = (here - from_[:-1])[row] + xp.arange(part_bits.size)
        columns[place] = part_columns.astype(columns.dtype) + before
        bits[place] = part_bits
        here += count
        before += part.shape[1]
    return CsrRows(starts, columns, bits)


def _column_type(shape: tuple[int, int]) -> Any:
    return np.int32 if shape[1] <= np.iinfo(np.int32).max else np.int64


JOINS: dict[Any, Callable[..., Any]] = {
    np.concatenate: concatenate,
    np.vstack: functools.partial(concatenate, axis=0),
    np.hstack: functools.partial(concatenate, axis=1),
}
