"""`numpy.concatenate`, `vstack` and `hstack` of hybrid matrices: their non-zeros, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparse24 import _arrays, _check
from sparse24._errors import DTypeError, ShapeError, UnsupportedError
from sparse24.formats import convert
from sparse24.formats.hybrid_listed import of_each
from sparse24.formats.hybrid_stored import HybridStored
from sparse24.formats.joining import check_type_and_device, names_of, refuse_options
from sparse24.formats.refusals import Refusals
from sparse24.kernels.csr import CsrRows


def concatenate(matrices: Any, /, axis: int = 0, out=None, dtype=None, casting=None) -> Any:
    """What `numpy.concatenate` gives for hybrid matrices; on a GPU this waits for their sizes."""
    refuse_options("concatenate", out=out, dtype=dtype, casting=casting)
    matrices = list(matrices)
    first: Any = next(x for x in matrices if isinstance(x, HybridStored))
    axis = _check.axis(axis, 2)
    for matrix in matrices:
        _check_alike(first, matrix, 1 - axis)
    return first._joined(matrices, axis)


def stack(matrices: Any, /, axis: int = 0, **options: Any) -> Any:
    """Refuse `numpy.stack`: no hybrid array has three axes."""
    raise UnsupportedError(
        "numpy.stack would make an array of three axes, and a HybridArray has two; keep a list of "
        "the matrices, or join them with numpy.concatenate, vstack or hstack"
    )


def _check_alike(first: HybridStored, matrix: Any, kept: int) -> None:
    if not isinstance(matrix, HybridStored):
        dense = ".toarray()" if isinstance(matrix, Refusals) else ""  # of a format of sparse24
        raise DTypeError(
            "numpy.concatenate joins hybrid matrices with one another, got "
            f"{type(matrix).__name__}; make one of it with sparse24.hybrid(x{dense})"
        )
    check_type_and_device(first, matrix, "numpy.concatenate")
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
    wanted = convert.column_type(shape[1])  # no uint32, which NumPy casts so only if it is told to
    columns = xp.concatenate([x for _, x, _ in rows], dtype=wanted, casting="unsafe")
    return CsrRows(starts, columns, xp.concatenate([bits for _, _, bits in rows]))


def _side_by_side(parts: Sequence[Any], shape: tuple[int, int]) -> CsrRows:
    rows = [part.held() for part in parts]
    xp, storage = _arrays.namespace(rows[0][2]), rows[0][2].dtype
    counts = [xp.diff(starts).astype(np.int64) for starts, _, _ in rows]
    starts = xp.zeros(shape[0] + 1, np.int64)
    starts[1:] = xp.cumsum(sum(counts))
    size, before = sum(bits.size for _, _, bits in rows), 0
    columns, bits = xp.empty(size, convert.column_type(shape[1])), xp.empty(size, storage)
    here = starts[:-1].copy()  # where the elements of the next part begin in each row
    for part, (from_, part_columns, part_bits), count in zip(parts, rows, counts, strict=True):
        place = of_each(here - from_[:-1], from_, part_bits.size)
        place += xp.arange(part_bits.size)
        columns[place] = part_columns.astype(columns.dtype) + before
        bits[place] = part_bits
        here += count
        before += part.shape[1]
    return CsrRows(starts, columns, bits)


JOINS = names_of(concatenate) | {np.stack: stack}
