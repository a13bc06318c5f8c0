"""Launch ``cuda/hybrid_overflow.cu``: add the products of elements that a 2:4 product left out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sparse24._dtypes import TABLE, DType, numpy_dtype
from sparse24.kernels import loader

NAME = "hybrid_overflow"
THREADS, TURNED_THREADS = 128, 1024  # of a block; of one that stores by columns
WARP, VECTOR = 32, 16  # lanes, and bytes of a row of the result that each of them takes


def columns(dtype: DType) -> int:
    """Columns of its row that a warp takes at a time."""
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
    form = form_of(dtype, b, out)
    of_b, of_out = ([stride // x.itemsize for stride in x.strides] for x in (b, out))
    loader.function(NAME, "add", form.defines(dtype))(
        (-(-n // columns(dtype)), -(-count // (form.threads // WARP))), (form.threads,),
        (overflow.rows, overflow.starts, np.int32(count), overflow.columns, overflow.values,
         b, n, *of_b, out, *of_out),
    )  # fmt: skip


class Form(NamedTuple):
    """What the kernel is compiled for, as its macros."""

    b_vector: bool
    out_vector: bool
    turned: bool

    @property
    def threads(self) -> int:
        """Threads of a block, each of whose warps multiplies a row."""
        return TURNED_THREADS if self.turned else THREADS

    def defines(self, dtype: DType) -> loader.Defines:
        names = (("ELEMENT", dtype.name), ("OUTPUT", dtype.result), ("THREADS", self.threads))
        return (*names, *((name.upper(), int(value)) for name, value in self._asdict().items()))


def form_of(dtype: DType, b, out) -> Form:
    """How elements are read and stored, as both matrices lie in memory."""
    own = _of_lane(dtype)
    b_vector = b.shape[1] % own == 0 and _in_vectors(b, own)
    turned = out.strides[0] == out.itemsize != out.strides[1]
    return Form(b_vector, b_vector and not turned and _in_vectors(out, own), turned)


def _in_vectors(x, elements: int) -> bool:
    """Whether so many neighbours in a row can be read at once."""
    nbytes = elements * x.itemsize
    return x.strides[1] == x.itemsize and not (x.strides[0] | x.data.ptr) % nbytes


COMPILE_CHECKS = [
    (form.defines(TABLE[name]), arch, "IMAD" if name == "int8" else "FFMA")
    for name in ("bfloat16", "float16", "float32", "int8")
    for arch, form in (
        ("sm_90a", Form(True, True, False)), ("sm_90a", Form(True, False, True)),
        ("sm_80", Form(False, False, False)), ("sm_80", Form(False, False, True)),
    )
]  # fmt: skip
