"""The epilogue of the CPU products: from a block of sums to the stored result."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from sparse24._records import Fused
from sparse24.kernels import reference
from sparse24.kernels.cpu_decode import encode_bfloat, encode_half
from sparse24.kernels.reference_arrays import to_odd

_HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def store(x: np.ndarray, out: np.ndarray) -> None:
    """Convert as the kernels do: integers round and saturate, fp8 saturates."""
    if out.flags.f_contiguous:
        x, out = x.T, out.T  # in the order of `out`
    if x.dtype == np.float64 and out.dtype.isbuiltin != 1:  # which is made of float32
        x = to_odd(x)
    if x.dtype == np.float32 and out.dtype in _HALVES:
        _store_halves(x, out)
        return
    if x.dtype == out.dtype:
        out[...] = x
        return
    with np.errstate(over="ignore", invalid="ignore"):
        _store_others(x, out)


def _store_halves(x: np.ndarray, out: np.ndarray) -> None:
    flat, in_place = np.ascontiguousarray(x).reshape(-1), out.flags.carray
    bits = out.view(np.uint16).reshape(-1) if in_place else np.empty(flat.size, np.uint16)
    if out.dtype == np.float16:
        encode_half(flat, flat.view(np.uint32), bits)
    else:
        encode_bfloat(flat.view(np.uint32), bits)
    if not in_place:
        out[...] = bits.view(out.dtype).reshape(out.shape)


def _store_others(x: np.ndarray, out: np.ndarray) -> None:
    if out.dtype.kind == "i":
        out[...] = reference.to_dtype(x, out.dtype)
    elif out.dtype.name.startswith("float8"):
        limit = np.float32(ml_dtypes.finfo(out.dtype).max)
        out[...] = np.clip(x, -limit, limit)
    else:
        out[...] = x


def _activate(x: np.ndarray, e: Fused) -> np.ndarray:
    if e.activation == "relu" and e.lower == 0.0 and e.upper == np.inf:
        return np.maximum(x, 0) + 0  # the sum makes 0 of -0.0
    if e.activation == "gelu":
        from scipy.special import erf

        return 0.5 * x * (1 + erf(x / np.sqrt(x.dtype.type(2))))
    return reference.activate(x, e.activation, e.lower, e.upper)


def finish(sums: np.ndarray, out: np.ndarray, e: Fused, rows: slice, columns: slice) -> None:
    """Store a block of sums, (rows, columns) of the (m, n) result, through the epilogue.

    It works in float32, or in float64 where the sums are float64 or int32.
    """
    target = out[rows, columns]
    if sums.base is out:  # added up in place
        return
    if e.is_plain:
        store(sums, target)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        work = np.float32 if sums.dtype == np.float32 else np.float64
        x = sums.astype(work, copy=False) * work(e.alpha)
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
            store(x, e.aux[rows, columns])
        x = _activate(x, e)
        store(x if e.out_scale == 1.0 else work(e.out_scale) * x, target)
