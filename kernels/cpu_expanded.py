"""Products of a 2:4 matrix with few columns on the CPU, by spreading what is stored.

The kernels of other patterns serve 2:4, too, where they are faster (one thread with AVX-512,
4096 x 4096 and 1024 x 1024 by 1 to 16 columns; see the log of the CPU):

- Along the groups in int8: they add up pairs of products of 16 bits in one instruction, while
  `cpu_few.multiply_columns` looks up elements of b as 32 bits.  1.3 to 2.3 times as fast.
- Across the groups: they add up rows, while `cpu_across` makes them dense for BLAS.  1 to 5.5
  times as fast.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _spec
from sparse24._records import MASKS, Compressed24, Fused, Multiply
from sparse24.kernels import _simd_expand
from sparse24.kernels._numba import njit, parallel, slices
from sparse24.kernels.cpu_n_m_few import WORD, FewColumns, pays
from sparse24.kernels.cpu_n_m_rows import FewRows

PATTERN = (2, _spec.GROUP)
_LEAST_ROWS = 16  # of a task


def along(a: Compressed24, b: np.ndarray) -> Multiply | None:
    """What repeats a product ``out = epilogue(a @ b)``; None where this is not faster."""
    dtype = _arrays.logical_dtype(a.values, argument="values")
    both = dtype.name == "int8" and b.dtype == np.int8
    if not both or _simd_expand.INTEGERS != "int16" or not _stays(a):
        return None
    if not b.size or not pays(*PATTERN, b.shape[1], dtype):
        return None
    return FewColumns(a.values, _masks(a), 2 * a.values.shape[1], b)


def across(a: Compressed24, b: np.ndarray) -> Multiply | None:
    """What repeats `add_rows`."""
    return FewRows(a.values, _masks(a), PATTERN, a.k, b) if _stays(a) else None


def add_rows(a: Compressed24, b: np.ndarray, out: np.ndarray, epilogue: Fused) -> None:
    """Write ``epilogue(a.T @ b)`` into `out`, where `cpu_n_m_rows.pays`; none is empty."""
    FewRows(a.values, _masks(a), PATTERN, a.k, b)(b, out, epilogue)


def _stays(a: Compressed24) -> bool:
    """Whether kernels read the matrix where it is, and so see when its elements change."""
    values = a.values
    return values.ndim == 2 and values.size > 0 and a.metadata is not None and values.flags.carray


def _masks(a: Compressed24) -> np.ndarray:
    """The columns of stored elements as bits, made by the first product and then kept."""
    if MASKS not in a.derived:
        a.derived[MASKS] = masks_of_codes(a.metadata, a.values.shape[1] // 2)
    return a.derived[MASKS]


def masks_of_codes(metadata: np.ndarray, groups: int) -> np.ndarray:
    """The columns of the stored elements as bits, as `cpu_n_m_few.masks_of` gives them.

    Parameters
    ----------
    metadata : ndarray of uint8, shape (m, ceil(groups / 2))
        Canonical codes, of two groups in a byte.
    groups : int
        Of a row; behind an odd number there is padding.

    Returns
    -------
    ndarray of uint8, shape (m, bytes)
    """
    wide = -(-_spec.GROUP * groups // WORD) * (WORD // 8)
    masks = np.zeros((len(metadata), wide), np.uint8)
    parts = slices(len(metadata), _LEAST_ROWS, work=metadata.size)
    parallel(lambda i: _set_masks(metadata[parts[i]], masks[parts[i]]), len(parts), metadata.size)
    if groups % 2:
        masks[:, groups // 2] &= 0x0F
    return masks


@njit
def _set_masks(metadata, masks):
    one = np.uint32(1)
    for row in range(metadata.shape[0]):
        for i in range(metadata.shape[1]):
            codes = np.uint32(metadata[row, i])
            low = one << (codes & 3) | one << (codes >> 2 & 3)
            high = one << (codes >> 4 & 3) | one << (codes >> 6)
            masks[row, i] = np.uint8(low | high << 4)
