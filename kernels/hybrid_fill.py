"""Launch ``cuda/hybrid_fill.cu``: make the tiles of block-hybrid matrices on the GPU."""

from __future__ import annotations

import numpy as np

from sparse24._dtypes import TABLE, DType
from sparse24.kernels import loader
from sparse24.kernels.csr import CsrRows
from sparse24.kernels.hybrid_tiles import THREADS, WORDS, blocks, matrix, pitch

NAME = "hybrid_fill"
DENSE_ROWS = np.dtype([("bits", "u8"), ("m", "i8"), ("k", "i8"), ("pitch", "i8")])
CSR_ROWS = np.dtype([("starts", "u8"), ("columns", "u8"), ("bits", "u8"), ("m", "i8")])


def _defines(dtype: DType, rows: str) -> loader.Defines:
    bits = 8 * dtype.itemsize
    mask = (1 << bits) - 1 if dtype.name == "int8" else (1 << (bits - 1)) - 1
    word = WORDS[dtype.itemsize]
    return (("WORD", word), ("MAGNITUDE", f"{mask:#x}ull"), ("ROWS", rows))


def _reader(rows) -> tuple[str, np.ndarray]:
    """How a kernel reads dense rows of bits, each contiguous, or those of a CSR matrix."""
    if isinstance(rows, CsrRows):
        addresses = tuple(array.data.ptr for array in rows)
        record = np.array([(*addresses, rows.starts.size - 1)], CSR_ROWS)
        return "CsrRows", loader.by_value(record)
    record = np.array([(rows.data.ptr, *rows.shape, pitch(rows))], DENSE_ROWS)
    return "DenseRows", loader.by_value(record)


def survey(rows, dtype: DType, nonzeros, overflow) -> None:
    """Count each tile's non-zeros, and those that break 2:4; the counts start as zeros.

    Parameters
    ----------
    rows : array of unsigned integers, shape (m, k), or CsrRows
        The matrix as bits; dense rows are contiguous, each by itself.
    dtype : DType
        Element type.
    nonzeros, overflow : array of int64, shape (bands, tiles across)
    """
    if nonzeros.size:
        reader, record = _reader(rows)
        kernel = loader.function(NAME, "survey", _defines(dtype, reader))
        kernel(nonzeros.shape[::-1], (THREADS,), (record, nonzeros, overflow))


def fill(rows, dtype: DType, tiles) -> None:
    """Write the values, codes and overflow of `tiles`, a record as in ``formats``."""
    if tiles.kinds.size:
        reader, record = _reader(rows)
        kernel = loader.function(NAME, "fill", _defines(dtype, reader))
        kernel(blocks(*tiles.shape), (THREADS,), (record, matrix(tiles)))


COMPILE_CHECKS = [
    (_defines(TABLE[name], rows), arch, None)
    for name, rows, arch in (
        ("bfloat16", "DenseRows", "sm_90a"), ("float32", "CsrRows", "sm_80"),
        ("float64", "CsrRows", "sm_90a"), ("int8", "DenseRows", "sm_120"),
    )
]  # fmt: skip
