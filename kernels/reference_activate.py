"""Reference in NumPy for activations that are pruned, compressed and quantised in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24._dtypes import numpy_dtype
from sparse24.kernels.reference_arrays import to_dtype
from sparse24.kernels.reference_compress import compress
from sparse24.kernels.reference_product import activate
from sparse24.kernels.reference_prune import prune


def activate_compress(
    x: np.ndarray, activation: str, gate: np.ndarray | None = None, *, quantise: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Values and metadata of relu(x), relu2 or silu(x) * gate, pruned to 2:4; scales of rows.

    The activation is computed in float32 and rounded to the type of `x` before elements are
    chosen.  Scales are None, or those of `quantise_rows`.
    """
    y = activated(x, activation, gate)
    values, metadata = compress(prune(y))
    if not quantise:
        return values, metadata, None
    eighth, scales = quantise_rows(y, values)
    return eighth, metadata, scales


def activated(x: np.ndarray, activation: str, gate: np.ndarray | None = None) -> np.ndarray:
    """The activation, times the gate, in float32 (float64 of float64) and the type of `x`."""
    real: Any = np.float64 if x.dtype == np.float64 else np.float32
    with np.errstate(invalid="ignore", over="ignore"):
        y = activate(x.astype(real), activation)
        return (y if gate is None else y * gate.astype(real)).astype(x.dtype)


def quantise_rows(y: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`values`, some elements of the rows of `y`, as float8_e4m3fn, and the rows' scales.

    They are values * (448 / amax) and amax / 448 for the largest magnitude amax of a row, NaN
    left out; both factors are 1 below 2**-100.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(y.astype(np.float32))
        amax = np.where(np.isnan(size), 0, size).max(-1, initial=0)
        tiny = amax < np.float32(2.0**-100)
        safe = np.where(tiny, np.float32(1), amax)
        factor = np.where(tiny, np.float32(1), np.float32(448) / safe)
        scales = np.where(tiny, np.float32(1), safe / np.float32(448))
        scaled = values.astype(np.float32) * factor[..., None]
        eighth = to_dtype(scaled, numpy_dtype("float8_e4m3fn"))
    eighth[eighth == 0] = 0
    return eighth, scales
