"""Activations that are pruned, compressed and quantised on the CPU, bit for bit as `reference`.

Threads share runs of rows, and a run goes through all steps before the next one.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _spec
from sparse24._dtypes import TABLE, DType
from sparse24.kernels import cpu_epilogue
from sparse24.kernels._numba import parallel
from sparse24.kernels.cpu_compress import compress, runs_of
from sparse24.kernels.cpu_decode import decoded, encode_e4m3

_EIGHTH = TABLE["float8_e4m3fn"]
_LARGEST, _TINY = np.float32(448), np.float32(2.0**-100)  # of fp8; of rows that are scaled
_MINUS_ZERO = 0x80
_RUN_BYTES = 1 << 20  # of x: with shorter runs threads wait for one another between the steps


def activate_compress(
    x: np.ndarray, activation: str, gate: np.ndarray | None = None, *, quantise: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Values and metadata of relu(x), relu2 or silu(x) * gate, pruned to 2:4; scales of rows.

    Parameters
    ----------
    x : ndarray, shape (m, k)
        float16, bfloat16, float32 or float64, any strides.
    activation : {"relu", "relu2", "silu"}
    gate : ndarray, like `x`
        For silu.
    quantise : bool
        Give values in float8_e4m3fn, and the scales of their rows; else the scales are None.

    Returns
    -------
    values : ndarray, shape (m, values_per_row(k))
    metadata : ndarray of uint8, shape (m, metadata_bytes_per_row(k))
    scales : ndarray of float32, shape (m,), or None
    """
    dtype, (m, k) = _arrays.logical_dtype(x), x.shape
    values = np.empty((m, _spec.values_per_row(k)), _EIGHTH.logical if quantise else dtype.logical)
    metadata = np.empty((m, _spec.metadata_bytes_per_row(k)), np.uint8)
    scales = np.ones(m, np.float32) if quantise else None
    runs = runs_of(x, _RUN_BYTES)

    def run(number: int):
        rows = runs[number]
        y = _activated(x[rows], activation, None if gate is None else gate[rows], dtype)
        kept, metadata[rows], _ = compress(y)
        if scales is None:
            values[rows] = kept
        else:
            scales[rows] = _quantise(y, kept, dtype, values[rows])

    if x.size:
        parallel(run, len(runs), 4 * x.nbytes)
    return values, metadata, scales


def _activated(x: np.ndarray, activation: str, gate: np.ndarray | None, dtype: DType) -> np.ndarray:
    """`reference.activated` in the type of `x`."""
    work = np.float64 if dtype.name == "float64" else np.float32
    wide = decoded(x, dtype, work)
    with np.errstate(invalid="ignore", over="ignore"):
        if activation == "silu":
            assert gate is not None
            y = np.exp(-wide)
            y += 1
            np.divide(wide, y, out=y)
            y *= decoded(gate, dtype, work)
        else:
            y = np.maximum(wide, 0)
            if activation == "relu2":
                y *= y
    if dtype.logical == y.dtype:
        return y
    rounded = np.empty_like(y, dtype.logical)
    cpu_epilogue.store(y, rounded)
    return rounded


def _quantise(y: np.ndarray, kept: np.ndarray, dtype: DType, out: np.ndarray) -> np.ndarray:
    """`reference.quantise_rows`: store `kept`, some elements of the rows of `y`; the scales."""
    with np.errstate(invalid="ignore", over="ignore"):
        amax = np.fmax.reduce(np.abs(decoded(y, dtype, np.float32)), axis=1, initial=0)
        tiny = amax < _TINY
        safe = np.where(tiny, np.float32(1), amax)
        factor = np.where(tiny, np.float32(1), _LARGEST / safe)
        scaled = decoded(kept, dtype, np.float32) * factor[:, None]
    bits = out.view(np.uint8)
    encode_e4m3(scaled.reshape(-1), scaled.view(np.uint32).reshape(-1), bits.reshape(-1))
    bits[bits == _MINUS_ZERO] = 0
    return np.where(tiny, np.float32(1), safe / _LARGEST)
