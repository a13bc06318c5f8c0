"""Sample a gradient to 2:4 without bias and compress it: launcher of ``cuda/sample.cu``.

Nothing here waits for the device.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _spec
from sparse24._dtypes import DType
from sparse24._records import Compressed24
from sparse24.kernels import compress, loader
from sparse24.kernels.call import KernelCall

NAME = "sample"
DTYPES = ("float16", "bfloat16", "float32")


def launch(x, row: DType, key: int) -> Compressed24:
    """Compress a sample of (..., m, k), a CuPy array of one of `DTYPES` and of any strides.

    A matrix whose columns are contiguous, as a gradient of (tokens, features) is when it is
    turned, takes a little more than twice the time of its bytes.  Rows on 16-byte boundaries are
    read sixteen bytes at a time.  The draw is a pure function of the 128 bits of `key`.
    """
    xp = _arrays.cupy_module()
    *batch, m, k = x.shape
    values = _arrays.empty_rows(xp, (*batch, m, _spec.values_per_row(k)), x.dtype)
    packed = xp.empty((*batch, *_spec.packed_shape(m, k)), np.uint8)
    if x.size:
        call_of(x.reshape(-1, m, k), row, key, values, packed).enqueue()
    return Compressed24(values, None, packed, tuple(x.shape), row)


def call_of(dense, row: DType, key: int, values, packed) -> KernelCall:
    """What `launch` enqueues, for (batch, m, k); addresses and layouts of the arrays suffice."""
    batch, m, k = dense.shape
    kernel = loader.function(NAME, "sample_columns", defines(row.name, _alignment(dense, row)))
    arguments = (
        dense, *dense.strides, values, values.strides[-2], packed,
        np.uint64(key & (1 << 64) - 1), np.uint64(key >> 64), m, k,
    )  # fmt: skip
    return KernelCall(kernel, batch * compress.blocks(m, k, row.itemsize, True), 256, arguments)


def _alignment(dense, row: DType) -> int:
    """How elements are read: columns in words, rows in sixteen bytes, or each alone."""
    if compress.runs_by_columns(dense, row.itemsize):
        parts = (dense.data.ptr, dense.strides[0], dense.strides[2])
        return 4 if all(part % 4 == 0 for part in parts) else 0
    return 16 if compress.row_alignment(dense, row.itemsize) == 16 else 0


def defines(name: str, alignment: int = 4) -> loader.Defines:
    """The macros of ``sample.cu``."""
    return (("ELEMENT", name), ("ALIGNMENT", alignment))


COMPILE_CHECKS = (
    *((defines(name, alignment), "sm_90a", None) for name in DTYPES for alignment in (4, 16)),
    *((defines("bfloat16", 0), f"sm_{arch}", None) for arch in ("80", "86", "89", "100a", "120")),
)
