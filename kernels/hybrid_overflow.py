"""Launch ``cuda/hybrid_overflow.cu``: add what a 2:4 product left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24._dtypes import DType
from sparse24.kernels import loader

NAME = "hybrid_overflow"
THREADS = 128


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
    n = b.shape[1]
    if not overflow.rows.size:
        return
    kernel = loader.function(NAME, "add", _defines(overflow.dtype.name))
    strides = (*(s // 2 for s in b.strides), out, *(s // 2 for s in out.strides))
    kernel(
        (overflow.rows.size, -(-n // (2 * THREADS))), (THREADS,),
        (overflow.rows, overflow.starts, overflow.columns, overflow.values, b, n, *strides),
    )  # fmt: skip


def _defines(name: str) -> loader.Defines:
    return (("ELEMENT", name), ("THREADS", THREADS))


COMPILE_CHECKS = [
    (_defines("bfloat16"), "sm_90a", "FFMA"),
    (_defines("float16"), "sm_80", "FFMA"),
]
