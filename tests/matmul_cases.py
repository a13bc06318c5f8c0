"""Operands of products on every backend, and how close results must be, for tests."""

from __future__ import annotations

import numpy as np

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._arrays import to_numpy
from sparse24.kernels import reference

STEMS = (
    "sparse_wgmma", "sparse_mma", "sparse_skinny", "sparse_decode", "sparse_matvec", "split_skinny",
    "sparse_split", "sparse_fma",
)  # fmt: skip
# Unit roundoff of the result's type, and of the accumulation, per dtype of the operands.
ROUNDOFF = {
    "float16": 2**-11,
    "bfloat16": 2**-8,
    "float32": 2**-24,
    "float64": 2**-53,
    "float8_e4m3fn": 2**-8,
    "float8_e5m2": 2**-8,
}


def sample(shape, name: str, rng) -> np.ndarray:
    row = _dtypes.TABLE[name]
    if name == "int8":
        return rng.integers(-20, 21, shape).astype(np.int8)
    return rng.standard_normal(shape).astype(np.float32).astype(row.logical)


def put(x: np.ndarray, xp):
    """The array in the library xp; fp8 as bits on the GPU."""
    if xp is np:
        return x
    return xp.asarray(x.view(np.uint8) if x.dtype.name.startswith("float8") else x)


def logical(x, name: str) -> np.ndarray:
    x = to_numpy(x)
    return x.view(_dtypes.numpy_dtype(name)) if x.dtype == np.uint8 else x


def assert_close(got, want, name: str, k: int) -> None:
    """Rounding of the result plus that of a sum of k products in float32."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    if name == "int8":
        np.testing.assert_array_equal(got, want)
        return
    accumulate = 2**-53 if name == "float64" else 2**-24
    accumulate = 2**-13 if name.startswith("float8") else accumulate
    # Root mean square of the sums, or what it is on average: a few may all be small.
    scale = max(np.sqrt((want**2).mean()) if want.size else 0.0, np.sqrt(k / 2))
    bound = 2 * ROUNDOFF[name] * np.abs(want) + (k + 8) * accumulate * scale + 1e-30
    assert (np.abs(got - want) <= bound).all(), np.max(np.abs(got - want) / bound)


def operands(name: str, m: int, k: int, n: int, xp, rng):
    a = s24.random((m, k), dtype=name, rng=rng)
    x = sample((k, n), name, rng)
    exact = reference.matmul(a.toarray(), x)
    a = a if xp is np else a.to_device("cuda")
    return a, put(x, xp), exact
