"""Launch ``cuda/hybrid_overflow.cu``: add the products of elements that a 2:4 product left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24._dtypes import DType
from sparse24.kernels import loader

NAME = "hybrid_overflow"
THREADS = 128
COLUMNS = 256  # that a warp takes of its row


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
    """out += A @ b, for 16-bit CuPy matrices (k, n) and (m, n) of any strides."""
    n, count = b.shape[1], overflow.rows.size
    if not count:
        return
    vector = n % 8 == 0 and all(
        x.strides[1] == 2 and x.strides[0] % 16 == 0 and x.data.ptr % 16 == 0 for x in (b, out)
    )
    kernel = loader.function(NAME, "add", _defines(overflow.dtype.name, vector))
    strides = (*(s // 2 for s in b.strides), out, *(s // 2 for s in out.strides))
    kernel(
        (-(-n // COLUMNS), -(-count // (THREADS // 32))), (THREADS,),
        (overflow.rows, overflow.starts, np.int32(count), overflow.columns, overflow.values,
         b, n, *strides),
    )  # fmt: skip


def _defines(name: str, vector: bool) -> loader.Defines:
    return (("ELEMENT", name), ("THREADS", THREADS), ("VECTOR", int(vector)))


COMPILE_CHECKS = [
    (_defines("bfloat16", True), "sm_90a", "FFMA"),
    (_defines("float16", False), "sm_80", "FFMA"),
]
