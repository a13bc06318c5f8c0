"""The epilogue of the CPU products: from a block of sums to the stored result."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from sparse24._records import Epilogue
from sparse24.kernels import reference
from sparse24.kernels._numba import njit

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@njit
def _float_to_bfloat(words, out):
    """Round to nearest even on the bits; NaNs become quiet."""
    for row in range(words.shape[0]):
        for column in range(words.shape[1]):
            x = words[row, column]
            rounded = np.uint32(x + 0x7FFF + (x >> 16 & 1)) >> 16
            quiet = x >> 16 | 0x40
            out[row, column] = quiet if x & 0x7FFFFFFF > 0x7F800000 else rounded


def _store(x: np.ndarray, out: np.ndarray) -> None:
    """Convert as the kernels do: integers round and saturate, fp8 saturates."""
    if out.dtype == _BFLOAT16 and x.dtype == np.float32 and out.flags.aligned:
        _float_to_bfloat(x.view(np.uint32), out.view(np.uint16))
    elif out.dtype.kind == "i" and x.dtype != out.dtype:
        out[...] = reference.to_dtype(x, out.dtype)
    elif out.dtype.name.startswith("float8"):
        limit = np.float32(ml_dtypes.finfo(out.dtype).max)
        out[...] = np.clip(x, -limit, limit)
    else:
        out[...] = x


def _activate(x: np.ndarray, e: Epilogue) -> np.ndarray:
    if e.activation == "gelu":
        from scipy.special import erf

        return 0.5 * x * (1 + erf(x / np.sqrt(x.dtype.type(2))))
    return reference.activate(x, e.activation, e.lower, e.upper)


def finish(sums: np.ndarray, out: np.ndarray, e: Epilogue, rows: slice, columns: slice) -> None:
    """Store a block of sums, (rows, columns) of the (m, n) result, through the epilogue.

    It works in float32, or in float64 where the sums are float64 or int32.
    """
    target = out[rows, columns]
    with np.errstate(over="ignore", invalid="ignore"):
        if e.is_plain:
            _store(sums, target)
            return
        work = np.float32 if sums.dtype == np.float32 else np.float64
        x = sums.astype(work) * work(e.alpha)
        if e.row_scale is not None:
            x *= np.asarray(e.row_scale, work)[rows, None]
        if e.column_scale is not None:
            x *= np.asarray(e.column_scale, work)[columns]
        if e.c is not None and e.beta != 0.0:
            x += work(e.beta) * e.c[rows, columns].astype(work)
        if e.row_bias is not None:
            x += np.asarray(e.row_bias, work)[rows, None]
        if e.column_bias is not None:
            x += np.asarray(e.column_bias, work)[columns]
        if e.aux is not None:
            _store(x, e.aux[rows, columns])
        _store(work(e.out_scale) * _activate(x, e), target)
