"""cuBLAS by its own names: the product that CuPy wraps, and the numbers of its types."""

from __future__ import annotations

import functools
from typing import Any

# cudaDataType_t, cublasComputeType_t and cublasOperation_t (library_types.h, cublas_api.h)
DATA_TYPE = {"float16": 2, "bfloat16": 14, "float32": 0, "float64": 1, "int8": 3, "int32": 10}
COMPUTE_32F, COMPUTE_64F, COMPUTE_32I = 68, 70, 72
NOT_TRANSPOSED, TRANSPOSED = 0, 1
GEMM_DEFAULT = -1
MOST_APART = 2**31 - 1  # elements from row to row, an int


@functools.cache
def gemm() -> tuple[Any, Any]:
    """cublasGemmStridedBatchedEx, and what finds the handle of the device in use."""
    from cupy.cuda.device import get_cublas_handle
    from cupy_backends.cuda.libs import cublas

    return cublas.gemmStridedBatchedEx, get_cublas_handle
