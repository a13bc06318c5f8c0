"""Launch ``cuda/hybrid_overflow.cu``: add the products of elements that a 2:4 product left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24._dtypes import DType, numpy_dtype
from sparse24.kernels import loader

NAME = "hybrid_overflow"
THREADS = 128
WARP, VECTOR = 32, 16  # lanes, and bytes of a row of the result that each of them takes


def columns(dtype: DType) -> int:
    """That a warp takes of its row."""
    return WARP * _of_lane(dtype)


def _of_lane(dtype: DType) -> int:
    return VECTOR // numpy_dtype(dtype.result).itemsize


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
    """out += A @ b, for CuPy matrices (k, n) and (m, n) of any strides.

    Of 16 bits, float32, or int8 with results in int32.  It is slow unless rows of b are contiguous.
    """
    (n, count), dtype = (b.shape[1], overflow.rows.size), overflow.dtype
    if not count:
        return
    own = _of_lane(dtype)
    b_vector = n % own == 0 and _in_vectors(b, own)
    out_vector = b_vector and _in_vectors(out, own)
    defines = _defines(dtype.name, dtype.result, b_vector=b_vector, out_vector=out_vector)
    of_b, of_out = ([stride // x.itemsize for stride in x.strides] for x in (b, out))
    loader.function(NAME, "add", defines)(
        (-(-n // columns(dtype)), -(-count // (THREADS // WARP))), (THREADS,),
        (overflow.rows, overflow.starts, np.int32(count), overflow.columns, overflow.values,
         b, n, *of_b, out, *of_out),
    )  # fmt: skip


def _in_vectors(x, elements: int) -> bool:
    """Whether so many neighbours in a row can be read at once."""
    nbytes = elements * x.itemsize
    return x.strides[1] == x.itemsize and not (x.strides[0] | x.data.ptr) % nbytes


def _defines(name: str, result: str, *, b_vector: bool, out_vector: bool) -> loader.Defines:
    return (
        ("ELEMENT", name), ("OUTPUT", result), ("THREADS", THREADS),
        ("B_VECTOR", int(b_vector)), ("OUT_VECTOR", int(out_vector)),
    )  # fmt: skip


COMPILE_CHECKS = [
    (_defines(name, result, b_vector=b_vector, out_vector=out_vector), arch, instruction)
    for name, result, instruction in (
        ("bfloat16", "bfloat16", "FFMA"), ("float16", "float16", "FFMA"),
        ("float32", "float32", "FFMA"), ("int8", "int32", "IMAD"),
    )
    for arch, b_vector, out_vector in (
        ("sm_90a", True, True), ("sm_90a", True, False), ("sm_80", False, False),
    )
]  # fmt: skip
