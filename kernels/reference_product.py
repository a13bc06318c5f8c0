"""Reference in NumPy for products and their epilogues: exact sums, and one rounding."""

from __future__ import annotations

import math

import numpy as np

from sparse24._dtypes import DType, numpy_dtype
from sparse24._records import Fused
from sparse24.kernels.reference_arrays import to_dtype


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The exact product of decompressed `a` and `b`, in float64 (int64 for integers)."""
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        return np.matmul(a.astype(np.int64), b.astype(np.int64))
    return np.matmul(a.astype(np.float64), b.astype(np.float64))


def activate(x: np.ndarray, name: str, lower: float = 0.0, upper: float = math.inf) -> np.ndarray:
    """The activation functions of the epilogue, in the precision of `x`."""
    if name == "relu":
        return np.where(x > lower, np.minimum(x, upper), np.where(np.isnan(x), x, 0))
    if name == "relu2":
        return np.where(x > 0, x * x, np.where(np.isnan(x), x, 0))
    if name == "gelu":
        erf = np.vectorize(math.erf, otypes=[float])
        return 0.5 * x * (1 + erf(x / math.sqrt(2)))
    if name == "gelu_tanh":
        cube = x * x * x  # by NumPy's power it takes a hundred times as long
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * cube)))
    if name == "silu":
        return x / (1 + np.exp(-x))
    return x


def apply_epilogue(acc: np.ndarray, e: Fused, out: DType | str) -> tuple[np.ndarray, np.ndarray]:
    """Result and pre-activation, both in the dtype of the result, for accumulators (..., m, n)."""
    dtype = numpy_dtype(out if isinstance(out, str) else out.name)
    if e.is_plain:
        stored = to_dtype(acc, dtype)
        return stored, stored
    x = e.alpha * acc.astype(np.float64)
    for vector, shape in ((e.row_scale, (-1, 1)), (e.column_scale, (1, -1))):
        if vector is not None:
            x = x * np.asarray(vector, np.float64).reshape(shape)
    if e.c is not None and e.beta != 0.0:
        x = x + e.beta * np.asarray(e.c).astype(np.float64)
    for vector, shape in ((e.row_bias, (-1, 1)), (e.column_bias, (1, -1))):
        if vector is not None:
            x = x + np.asarray(vector, np.float64).reshape(shape)
    result = e.out_scale * activate(x, e.activation, e.lower, e.upper)
    return to_dtype(result, dtype), to_dtype(x, dtype)


def split_bfloat16(x: np.ndarray) -> list[np.ndarray]:
    """Three float32 arrays of eight significant bits each that sum to float32 `x`, largest first.

    The first is cut off, so it never overflows; the second is rounded to nearest even.  The sum
    is exact down to 2**-110; below, bits under 2**-133 are lost.  An infinity is the third piece,
    behind a one of its sign and a zero; a NaN is the first and the third.
    """
    finite, nan = np.isfinite(x), np.isnan(x)
    kept = np.where(finite, x, np.float32(0))
    first = _upper_half(kept, nearest=False)
    rest = kept - first
    second = _upper_half(rest, nearest=True)
    third = _upper_half(rest - second, nearest=False)
    leading = np.where(nan, x, np.copysign(np.float32(1), x))
    return [np.where(finite, first, leading), second, np.where(finite, third, x)]


def _upper_half(x: np.ndarray, *, nearest: bool) -> np.ndarray:
    """float32 with the lower 16 bits rounded, or cut off."""
    bits = x.view(np.uint32)
    if nearest:
        bits = bits + np.uint32(0x7FFF) + (bits >> 16 & 1)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def split_sections(x: np.ndarray, *, dense: bool) -> list[np.ndarray]:
    """The pieces of one operand in the order of six sections, as ``split_mma`` multiplies them.

    Summed over the sections, the products of the sparse operand's pieces and the dense one's
    make ``p1 q3 + p3 q1 + p2 q2 + p1 q2 + p2 q1 + p1 q1``.
    """
    pieces = split_bfloat16(x)
    order = (2, 0, 1, 1, 0, 0) if dense else (0, 2, 1, 0, 1, 0)
    return [pieces[i] for i in order]
