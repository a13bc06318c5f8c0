"""Dense int8 products by cuBLAS, summed exactly in int32.

Its tensor-core kernels want both operands stored along k and every axis in a multiple of
`MULTIPLE`, so operands that lie otherwise are copied first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24.kernels import cublas

# https://docs.nvidia.com/cuda/cublas (cublasLtMatmul, "to use IMMA kernels"): of 4, for speed 16.
MULTIPLE = 16
_SCALARS = np.array([1, 0], np.int32)


def accumulators(a: Any, b: Any) -> Any:
    """``a @ b`` of int8 CuPy arrays as int32, shape (batch, m, n), stored by rows.

    Each has two axes, or three with the batch in front.  Enqueued on CuPy's current stream.
    """
    import cupy as cp

    (m, k), n = a.shape[-2:], b.shape[-1]
    batch = max(x.shape[0] if x.ndim == 3 else 1 for x in (a, b))
    if not m * n * k:
        return cp.zeros((batch, m, n), np.int32)
    left, right = _along_k(a), _along_k(b.swapaxes(-1, -2))
    sums = cp.empty((batch, left.shape[-2], right.shape[-2]), np.int32)
    _multiply(left, right, sums)
    return cp.ascontiguousarray(sums[:, :m, :n])


def _along_k(x: Any) -> Any:
    """The matrices (..., rows, k) stored by rows, with zeros up to multiples behind both axes."""
    import cupy as cp

    rows, k = x.shape[-2:]
    even = (*x.shape[:-2], *(-(-size // MULTIPLE) * MULTIPLE for size in (rows, k)))
    if even == x.shape and x.flags.c_contiguous and x.data.ptr % MULTIPLE == 0:
        return x
    copy = cp.empty(even, np.int8) if even == x.shape else cp.zeros(even, np.int8)
    copy[..., :rows, :k] = x
    return copy


def _multiply(left: Any, right: Any, sums: Any) -> None:
    """``sums = left @ right.T``; BLAS writes by columns, so it multiplies ``right @ left.T``."""
    batch, rows, columns = sums.shape
    k, alpha = left.shape[-1], _SCALARS.ctypes.data
    operands = [(x.data.ptr, cublas.DATA_TYPE["int8"], k, _apart(x)) for x in (right, left)]
    launch, handle = cublas.gemm()
    launch(
        handle(), cublas.TRANSPOSED, cublas.NOT_TRANSPOSED, columns, rows, k,
        alpha, *operands[0], *operands[1], alpha + _SCALARS.itemsize,
        sums.data.ptr, cublas.DATA_TYPE["int32"], columns, rows * columns, batch,
        cublas.COMPUTE_32I, cublas.GEMM_DEFAULT,
    )  # fmt: skip


def _apart(x: Any) -> int:
    """Elements from a matrix of a stack to the next; none for one that serves all."""
    return x.shape[-2] * x.shape[-1] if x.ndim == 3 and x.shape[0] > 1 else 0
