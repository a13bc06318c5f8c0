"""Products of a 2:4 matrix with a dense one, on the CPU.

The sparse kernels multiply only what is stored.  `b` is first copied into the layout that
they read: *panels*, a few machine vectors wide and k high, for the many-column kernel, which
is in `cpu_panels`; whole columns for the few-column kernel, which is in `cpu_few`.  Then the
threads share blocks of rows, whose sums pass the epilogue and go to `out`.  The inner loops are
in `_simd`.

`decompress_matmul` expands A and calls BLAS instead; `choose` says which is faster.
"""

from __future__ import annotations

import math

import numpy as np

from sparse24 import _dtypes, _spec
from sparse24._records import PLAIN, Fused
from sparse24.kernels import cpu_compress
from sparse24.kernels._simd import VECTOR_BYTES
from sparse24.kernels.cpu_batch import at_place, checked, fold, folds, over_batch
from sparse24.kernels.cpu_decode import decoded
from sparse24.kernels.cpu_epilogue import finish
from sparse24.kernels.cpu_few import multiply_few
from sparse24.kernels.cpu_operand import Operand
from sparse24.kernels.cpu_panels import multiply_many

_FEW_COLUMNS = 16
_FEW_OF_AVX2 = {4: 12, 8: 4}  # by the bytes of a sum
_WORTH_PANELS = 256  # rows of A
# Rows of A below which BLAS wins over `tile`: copying b into panels is most of the work.
_FEW_ROWS = {"float64": 24, "int8": 1}
_FEW_ROWS_OF_OTHERS = 8
_EXACT_IN_FLOAT32 = 1024  # products of two int8 whose sum float32 holds: 2**24 / 2**14
# Kept dense matrices of so many bytes, or with so short rows, win over the sparse kernels, by one
# thread with AVX-512: the time of BLAS is 0.2 to 1.0 of theirs, and that of larger ones mostly 1.2
# to 2.9.  Short rows were measured up to these sizes of a matrix, and of m * n rows.
_SMALL_KEPT_BYTES = 1 << 16
_SHORT_ROW_BYTES = 1 << 8
_CACHED_BYTES = 1 << 23
_SMALL_DENSE_BYTES = 1 << 28
# m * n * k of a product, such as one of a stack, for which a call takes longer than BLAS
# (measured on two cores: 60 us a call; 1000 products 64x64x8 took 58 ms in turn, 12 ms as one).
_SMALL_PRODUCT = 1 << 18


def few_columns(dtype: _dtypes.DType, m: int) -> int:
    """Up to how many columns `dots` wins over panels, by m rows.

    AVX2 looks up elements of b by two permutations and a blend, and others one by one, so panels
    win there earlier, if they have enough rows to be copied for (measured on both).
    """
    if VECTOR_BYTES == 64 or m < _WORTH_PANELS:
        return _FEW_COLUMNS
    itemsize = np.dtype(dtype.accumulator).itemsize
    return _FEW_OF_AVX2[itemsize] if VECTOR_BYTES == 32 else VECTOR_BYTES // itemsize


def _multiply(values, metadata, dtypes, b, out, epilogue: Fused) -> None:
    """One product of matrices."""
    few = out.shape[1] <= few_columns(dtypes[0], out.shape[0])
    a = Operand(values, metadata, 2 * values.shape[1], dtypes[0], work_type(dtypes[0], few))
    multiply(a, b, dtypes[1], out, epilogue, multiply_few if few else multiply_many)


def work_type(dtype: _dtypes.DType, few: bool) -> np.dtype:
    """What the inner loop computes in.

    Sums of `cpu_operand.STEP` products of int8 are exact in float32, whose products are faster.
    """
    return np.dtype(np.float32 if dtype.name == "int8" and not few else dtype.accumulator)


def multiply(a: Operand, b, b_dtype: _dtypes.DType, out, epilogue: Fused, kernel) -> None:
    """``out = epilogue(a @ b)`` by one of the two kernels."""
    m, n = out.shape
    if not (m and n):
        return
    if not b.shape[0]:
        zeros = np.zeros(out.shape, a.dtype.accumulator)
        finish(zeros, out, epilogue, slice(0, m), slice(0, n))
        return
    kernel(a, decoded(b, b_dtype, a.work), out, epilogue)


def matmul(
    values: np.ndarray,
    metadata: np.ndarray,
    k: int,
    b: np.ndarray,
    out: np.ndarray,
    epilogue: Fused = PLAIN,
) -> None:
    """Write ``epilogue(A @ b)`` into `out` with the sparse kernels.

    Parameters
    ----------
    values : ndarray, shape (..., m, values_per_row(k))
    metadata : ndarray of uint8, shape (..., m, metadata_bytes_per_row(k))
    k : int
        Columns of A.
    b : ndarray, shape (..., k, n), any strides
        Of a type that sums in the same type as `values`.  Leading axes broadcast.
    out : ndarray, shape (..., m, n), any strides and result type
    epilogue : Fused
        Its `c` and `aux` have the shape of `out`.

    Raises
    ------
    DTypeError, ShapeError, ArgumentError
        For operands that do not fit together, and a read-only `out`.
    """
    dtypes = checked(values, _spec.values_per_row(k), k, b, out)

    def one(values, metadata, b, out, epilogue):
        _multiply(values, metadata, dtypes, b, out, epilogue)

    if folds(values, b, epilogue):
        fold(b, out, epilogue, lambda *whole: one(values, metadata, *whole))
    else:
        over_batch(values, metadata, b, out, epilogue, one)


def decompress_matmul(
    values: np.ndarray,
    metadata: np.ndarray,
    k: int,
    b: np.ndarray,
    out: np.ndarray,
    epilogue: Fused = PLAIN,
) -> None:
    """As `matmul`, with the same parameters, by expanding A and calling BLAS."""
    dtype, b_dtype = checked(values, _spec.values_per_row(k), k, b, out)
    if values.ndim == 2 or is_small(out.shape, k):
        dense = cpu_compress.decompress(values, metadata, k)
        dense_matmul(dense, b, out, epilogue)
        return

    def one(values, metadata, b, out, epilogue):
        dense = cpu_compress.decompress(values, metadata, k)
        _multiply_dense(dense, dtype, b, b_dtype, out, epilogue)

    over_batch(values, metadata, b, out, epilogue, one)


def dense_matmul(a: np.ndarray, b: np.ndarray, out: np.ndarray, epilogue: Fused = PLAIN) -> None:
    """Write ``epilogue(a @ b)`` of two dense arrays into `out`, by BLAS in the sums' type."""
    dtype, b_dtype = checked(a, a.shape[-1], a.shape[-1], b, out)

    def one(a, _, b, out, epilogue):
        _multiply_dense(a, dtype, b, b_dtype, out, epilogue)

    if is_small(out.shape, a.shape[-1]):
        one(a, None, b, out, epilogue)
    else:
        over_batch(a, a, b, out, epilogue, one)


def is_small(shape: tuple[int, ...], k: int) -> bool:
    """True for products with a result of this shape of which a call takes longer than BLAS."""
    return shape[-2] * shape[-1] * k <= _SMALL_PRODUCT


def _multiply_dense(a, dtype, b, b_dtype, out, epilogue: Fused) -> None:
    """One product, or a stack of small ones, by BLAS.

    It has no integers: floats that hold every sum take their place.
    """
    work = dtype.accumulator
    if dtype.name == "int8":
        work = np.float32 if a.shape[-1] <= _EXACT_IN_FLOAT32 else np.float64
    left, right = decoded(a, dtype, work), decoded(b, b_dtype, work)
    contiguous = out.flags.c_contiguous or out.flags.f_contiguous  # NumPy calls no BLAS for others
    if epilogue.is_plain and out.dtype == work and contiguous and out.flags.aligned:
        np.matmul(left, right, out=out)
        return
    sums = (left @ right).astype(dtype.accumulator, copy=False)
    alike = epilogue.treats_rows_alike and out.flags.c_contiguous
    if out.ndim > 2 and alike:  # all rows of the stack as one matrix
        sums, out = (x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) for x in (sums, out))
    every = slice(0, out.shape[-2]), slice(0, out.shape[-1])
    for place in np.ndindex(out.shape[:-2]):
        finish(sums[place], out[place], at_place(epilogue, place), *every)


def choose(m: int, k: int, n: int, dtype: str, *, kept: bool = False, stacked: bool = False) -> str:
    """Which product is faster: ``"sparse"`` for `matmul`, ``"dense"`` for `decompress_matmul`.

    `kept` says that the dense matrix is there already, for `dense_matmul`; `stacked` that A is
    a stack, of which small matrices are multiplied by one call of NumPy.

    By the processor time of one thread with AVX-512: the sparse kernels win from one column
    to thousands, in every type; `decompress_matmul` also has to write the dense matrix.  It
    wins where A has so few rows that copying b into panels is most of the work, three times
    as many where the columns fill a narrow panel only.  Both ways share their work evenly
    among threads, so their number does not matter.

    A kept matrix that BLAS takes as it is wins where it is so small, or its rows are so short,
    that the call and the decoding of A show.
    """
    if kept and dtype in ("float32", "float64"):
        row = k * np.dtype(dtype).itemsize
        small = m * row <= _SMALL_KEPT_BYTES or row <= _SHORT_ROW_BYTES
        if small and m * row <= _CACHED_BYTES and m * row * n <= _SMALL_DENSE_BYTES:
            return "dense"
    if stacked and is_small((m, n), k):
        return "dense"
    few = few_columns(_dtypes.TABLE[dtype], m)
    rows = _FEW_ROWS.get(dtype, _FEW_ROWS_OF_OTHERS) * (3 if n < 2 * few else 1)
    return "dense" if n > few and m < rows else "sparse"
