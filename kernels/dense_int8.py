"""Dense int8 products by cuBLAS, summed exactly in int32.

Its tensor-core kernels want both operands stored along k and every axis in a multiple of
`MULTIPLE`, so operands that lie otherwise are copied first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24.kernels import cublas, transpose

# https://docs.nvidia.com/cuda/cublas (cublasLtMatmul, "to use IMMA kernels"): of 4, for speed 16.
MULTIPLE = 16
_SCALARS = np.array([1, 0], np.int32)


def accumulators(a: Any, b: Any, out: Any = None) -> Any:
    """``a @ b`` of int8 CuPy arrays as int32, shape (batch, m, n).

    Each has two axes, or three with the batch in front.  It is `out`, an array of this shape or
    (m, n), if one is given that cuBLAS can write as it lies; else a new array, stored by rows.
    Enqueued on CuPy's current stream.
    """
    import cupy as cp

    (m, k), n = a.shape[-2:], b.shape[-1]
    batch = max(x.shape[0] if x.ndim == 3 else 1 for x in (a, b))
    if not m * n * k:
        return cp.zeros((batch, m, n), np.int32)
    left, right = _along_k(a), _along_k(b.swapaxes(-1, -2))
    rows, columns = left.shape[-2], right.shape[-2]
    if out is not None and (rows, columns) == (m, n):
        turned = out.swapaxes(-1, -2)
        if _takes(out):
            _multiply(left, right, out, batch)
            return out
        if _takes(turned):
            _multiply(right, left, turned, batch)
            return out
    sums = cp.empty((batch, rows, columns), np.int32)
    _multiply(left, right, sums, batch)
    return cp.ascontiguousarray(sums[:, :m, :n])


def _takes(x: Any) -> bool:
    """Whether cuBLAS reads or writes these rows, which begin on multiples of elements and bytes."""
    row, column = x.strides[-2:]
    least, most = x.shape[-1], cublas.MOST_APART
    whole = least <= row // x.itemsize <= most and not row % (MULTIPLE * x.itemsize)
    forward = x.ndim == 2 or (x.strides[0] >= 0 and not x.strides[0] % MULTIPLE)
    return column == x.itemsize and whole and forward and x.data.ptr % MULTIPLE == 0


def _along_k(x: Any) -> Any:
    """The matrices (..., rows, k) stored by rows, with zeros up to multiples behind both axes."""
    import cupy as cp

    rows, k = x.shape[-2:]
    even = (*x.shape[:-2], *(-(-size // MULTIPLE) * MULTIPLE for size in (rows, k)))
    if even == x.shape:
        if _takes(x):
            return x
        turned = x.swapaxes(-1, -2)
        if transpose.takes(turned):
            return transpose.launch(turned).swapaxes(-1, -2)
    copy = cp.empty(even, np.int8) if even == x.shape else cp.zeros(even, np.int8)
    copy[..., :rows, :k] = x
    return copy


def _multiply(left: Any, right: Any, sums: Any, batch: int) -> None:
    """``sums = left @ right.T``; BLAS writes by columns, so it multiplies ``right @ left.T``."""
    rows, columns = sums.shape[-2:]
    k, alpha = left.shape[-1], _SCALARS.ctypes.data
    operands = [(x.data.ptr, cublas.DATA_TYPE["int8"], *_steps(x)) for x in (right, left)]
    launch, handle = cublas.gemm()
    launch(
        handle(), cublas.TRANSPOSED, cublas.NOT_TRANSPOSED, columns, rows, k,
        alpha, *operands[0], *operands[1], alpha + _SCALARS.itemsize,
        sums.data.ptr, cublas.DATA_TYPE["int32"], *_steps(sums), batch,
        cublas.COMPUTE_32I, cublas.GEMM_DEFAULT,
    )  # fmt: skip


def _steps(x: Any) -> tuple[int, int]:
    """Elements from row to row, and from matrix to matrix: none for one that serves all."""
    apart = x.strides[0] if x.ndim == 3 and x.shape[0] > 1 else 0
    return x.strides[-2] // x.itemsize, apart // x.itemsize
