"""Launch ``cuda/hybrid_overflow.cu``: add the products of elements that a 2:4 product left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24._dtypes import DType
from sparse24.kernels import loader

NAME = "hybrid_overflow"
THREADS = 128
WARP, VECTOR = 32, 16  # lanes, and bytes of a row that each of them takes


def columns(dtype: DType) -> int:
    """That a warp takes of its row."""
    return WARP * VECTOR // dtype.itemsize


class Overflow:
    """A very sparse (m, k) matrix as sorted rows; arrays as in the kernel's header."""

    def __init__(self, dtype: DType, rows, starts, columns, values):
        self.dtype, self.rows, self.starts = dtype, rows, starts
        self.columns, self.values = columns, values

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (self.rows, self.starts, self.columns, self.values))


def prepare(bits: Any, dtype: DType, xp=np) -> Overflow:
    """Take the non-zeros of a dense (m, k) matrix of bits; `xp` is its array library."""
    row, column = xp.nonzero(bits)
    rows, starts = xp.unique(row, return_index=True)
    starts = xp.concatenate([starts, xp.full(1, row.size, starts.dtype)])
    return Overflow(
        dtype, rows.astype(np.int32), starts.astype(np.int32), column.astype(np.int32),
        bits[row, column],
    )  # fmt: skip


def add(overflow: Overflow, b, out) -> None:
    """out += A @ b, for CuPy matrices (k, n) and (m, n) of any strides, in 16 bits or float32."""
    n, count, itemsize = b.shape[1], overflow.rows.size, overflow.dtype.itemsize
    if not count:
        return
    vector = n * itemsize % VECTOR == 0 and all(
        x.strides[1] == itemsize and x.strides[0] % VECTOR == 0 and x.data.ptr % VECTOR == 0
        for x in (b, out)
    )
    kernel = loader.function(NAME, "add", _defines(overflow.dtype.name, vector))
    of_b, of_out = ([s // itemsize for s in x.strides] for x in (b, out))
    kernel(
        (-(-n // columns(overflow.dtype)), -(-count // (THREADS // WARP))), (THREADS,),
        (overflow.rows, overflow.starts, np.int32(count), overflow.columns, overflow.values,
         b, n, *of_b, out, *of_out),
    )  # fmt: skip


def _defines(name: str, vector: bool) -> loader.Defines:
    return (("ELEMENT", name), ("THREADS", THREADS), ("VECTOR", int(vector)))


COMPILE_CHECKS = [
    (_defines("bfloat16", True), "sm_90a", "FFMA"),
    (_defines("float16", False), "sm_80", "FFMA"),
    (_defines("float32", True), "sm_90a", "FFMA"),
    (_defines("float32", False), "sm_80", "FFMA"),
]
