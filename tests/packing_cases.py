"""Matrices, memory layouts and comparisons shared by the tests of the packing kernels."""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays
from sparse24._dtypes import DType
from sparse24._records import Compressed24
from sparse24.kernels import reference

SHAPES = ((64, 256), (70, 300), (3, 17), (2, 5, 37), (2, 3, 8, 64), (1, 1), (130, 16), (257, 520))
FEW_SHAPES = ((64, 256), (2, 35, 112), (129, 528))  # one alignment, so few kernels to compile
EMPTY_SHAPES = ((0, 8), (3, 0), (0, 5, 4))
KINDS = ("normal", "odd", "sparse")
LAYOUTS = ("rows", "columns", "strided", "unaligned")


def matrix(rng, shape, row: DType, kind: str = "normal") -> np.ndarray:
    """Random numbers; "odd" mixes in zeros of both signs, ties, infinities and several NaNs."""
    if row.name == "int8":
        x = rng.integers(-128, 128, shape).astype(np.int8)
    else:
        x = rng.standard_normal(shape).astype(row.logical)
    if kind == "sparse":
        return np.where(rng.random(shape) < 0.25, x, np.zeros((), x.dtype))
    return _odd(rng, x, row) if kind == "odd" else x


def _odd(rng, x, row):
    draw = rng.integers(0, 8, x.shape)
    x[draw == 0] = 0
    x[draw == 1] = 1
    if row.name == "int8":
        return x
    x[draw == 2] = -0.0
    x[draw == 3] = np.nan
    x[draw == 4] = -np.nan
    if row.name != "float8_e4m3fn":
        x[draw == 5] = np.inf
        nan = bits(np.array(np.nan, row.logical))
        bits(x)[draw == 6] = nan | 1  # a NaN of another payload
    return x


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.dtype.itemsize}")


def place(x: np.ndarray, layout: str = "rows"):
    """A CuPy array equal to `x`, in storage dtype, laid out as named."""
    import cupy as cp

    if x.dtype.name.startswith("float8"):
        x = x.view(np.uint8)
    if layout == "columns":
        return cp.asarray(np.ascontiguousarray(x.swapaxes(-1, -2))).swapaxes(-1, -2)
    if layout == "strided":
        big = cp.zeros((*x.shape[:-2], 2 * x.shape[-2], 3 * x.shape[-1] + 1), x.dtype)
        out = big[..., ::2, 1::3]
    elif layout == "unaligned":
        out = cp.zeros((*x.shape[:-1], x.shape[-1] + 1), x.dtype)[..., 1:]
    else:
        out = cp.empty(x.shape, x.dtype)
    out[...] = cp.asarray(np.ascontiguousarray(x))
    return out


def assert_same_bits(got, want: np.ndarray) -> None:
    """Equal in shape and in every bit; `got` may carry fp8 as bytes."""
    got = np.ascontiguousarray(_arrays.to_numpy(got))
    want = np.ascontiguousarray(want)
    assert got.shape == want.shape
    if want.dtype != bool:
        assert got.dtype.itemsize == want.dtype.itemsize
        got, want = bits(got), bits(want)
    np.testing.assert_array_equal(got, want)


def poison(*arrays) -> None:
    """Fill memory that the next allocations will reuse, so that unwritten results show."""
    import cupy as cp

    for size in arrays or (1 << 12, 1 << 16, 1 << 20):
        cp.full(size, 0xA5, np.uint8)


def record_of(values, metadata, shape, row: DType, *, packed: bool):
    """The GPU record of canonical NumPy parts, with one form of metadata."""
    import cupy as cp

    stored = values.view(np.uint8) if row.is_float8 else values
    on_gpu = _arrays.empty_rows(cp, stored.shape, stored.dtype)
    on_gpu[...] = cp.asarray(stored)
    order = reference.pack_metadata(metadata, shape[-1], row.itemsize) if packed else metadata
    codes = cp.asarray(order)
    return Compressed24(on_gpu, None if packed else codes, codes if packed else None, shape, row)
