"""Launch ``cuda/hybrid_list.cu``: the elements of block-hybrid matrices row by row, on the GPU."""

from __future__ import annotations

import numpy as np

from sparse24.kernels import loader
from sparse24.kernels.csr import CsrRows
from sparse24.kernels.hybrid_tiles import THREADS, TILE, WORDS, blocks, matrix

NAME = "hybrid_list"


def _defines(itemsize: int) -> loader.Defines:
    return (("WORD", WORDS[itemsize]),)


def row_starts(tiles):
    """Where the non-zeros of each row begin once they stand together, and their number: int64."""
    import cupy

    (m, k), across = tiles.shape, np.int32(blocks(*tiles.shape)[0])
    starts = cupy.zeros(m + 1, np.int64)
    if m and k:
        kernel = loader.function(NAME, "count_rows", _defines(tiles.dtype.itemsize))
        kernel((-(-m // TILE),), (THREADS,), (starts[1:], m, across, matrix(tiles)))
        cupy.cumsum(starts, out=starts)
    return starts


def rows(tiles) -> CsrRows:
    """The non-zeros row by row, for fewer than 2**31 columns; waits for their number."""
    import cupy

    m, across, starts = tiles.shape[0], np.int32(blocks(*tiles.shape)[0]), row_starts(tiles)
    held = int(starts[-1])
    made = CsrRows(starts, cupy.empty(held, np.int32), cupy.empty(held, tiles.dtype.storage))
    if held:
        kernel = loader.function(NAME, "list_rows", _defines(tiles.dtype.itemsize))
        kernel((-(-m // TILE),), (THREADS,), (*made, m, across, matrix(tiles)))
    return made


COMPILE_CHECKS = [
    (_defines(itemsize), arch, None)
    for itemsize, arch in ((1, "sm_120"), (2, "sm_90a"), (4, "sm_80"), (8, "sm_90a"))
]
