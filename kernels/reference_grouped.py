"""Reference in NumPy for the products of experts (``grouped_*``): exact sums."""

from __future__ import annotations

import numpy as np

from sparse24.kernels.reference_product import matmul


def grouped_matmul(a: np.ndarray, b: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """``out[:, i0:i1] = a[i] @ b[:, i0:i1]``, where offsets i and i + 1 are i0 and i1.

    Parameters
    ----------
    a : ndarray, shape (e, m, k)
        Decompressed.
    b : ndarray, shape (k, t)
    offsets : ndarray of int, shape (e + 1,)
        As they are given; the kernels clamp them to [0, t].

    Returns
    -------
    ndarray of float64 (int64 for integers), shape (m, t)
        Columns of no expert are zero; the kernels leave them as they are.
    """
    tokens = b.shape[1]
    whole = np.int64 if a.dtype.kind in "iu" else np.float64
    out = np.zeros((a.shape[1], tokens), whole)
    ends = np.clip(offsets, 0, tokens)
    for i, matrix in enumerate(a):
        columns = slice(ends[i], ends[i + 1])
        out[:, columns] = matmul(matrix, b[:, columns])
    return out
