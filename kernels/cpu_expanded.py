"""Products of a 2:4 matrix of int8 by few columns on the CPU, by spreading what is stored.

The kernel of other patterns (`cpu_n_m_few`) adds up pairs of products of 16 bits in one
instruction; that for 2:4 (`cpu_matmul.multiply_columns`) looks up elements of b as 32 bits.
4096 x 4096 by 1 to 16 columns takes 1.3 to 2.3 times as long there (one thread with AVX-512).
"""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _spec
from sparse24._records import Compressed24
from sparse24.kernels import _simd_expand
from sparse24.kernels.cpu_again import Again
from sparse24.kernels.cpu_n_m_few import WORD, FewColumns, pays

MASKS = "masks"  # of `Compressed24.derived`


def again(a: Compressed24, b: np.ndarray) -> Again | None:
    """What repeats a product ``out = epilogue(a @ b)``; None where this is not faster.

    The masks of its first product are kept with the record.
    """
    values, n = a.values, b.shape[1]
    if values.ndim > 2 or a.metadata is None or not (values.size and n):
        return None
    dtype = _arrays.logical_dtype(values, argument="values")
    if dtype.name != "int8" or _simd_expand.INTEGERS != "int16":
        return None
    if not pays(2, _spec.GROUP, n, dtype):
        return None
    stored = values.shape[1]
    if MASKS not in a.derived:
        a.derived[MASKS] = masks_of_codes(a.metadata, stored // 2)
    return FewColumns(values, a.derived[MASKS], 2 * stored, b)


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
    masks[:, : metadata.shape[1]] = _MASK_OF_BYTE[metadata]
    if groups % 2:
        masks[:, groups // 2] &= 0x0F
    return masks


def _mask_of_group(code: int) -> int:
    return 1 << (code & 3) | 1 << (code >> 2)


_MASK_OF_BYTE = np.array(
    [_mask_of_group(byte & 15) | _mask_of_group(byte >> 4) << 4 for byte in range(256)], np.uint8
)
