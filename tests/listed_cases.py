"""Sparse matrices with hardly any elements, of which rows are stored, for tests."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from sparse24 import _dtypes


def graph(rng, shape=(700, 900), elements=400, dtype="float32"):
    """A CSR matrix of SciPy; of types that SciPy does not know, as float32 that they hold."""
    rows, columns = rng.integers(0, shape[0], elements), rng.integers(0, shape[1], elements)
    values = rng.integers(1, 9, elements) * rng.choice([-1, 1], elements)
    given = np.float32 if dtype in ("float16", "bfloat16", "int8") else dtype
    m = scipy.sparse.coo_matrix((values.astype(given), (rows, columns)), shape).tocsr()
    m.data = m.data.clip(-9, 9)
    m.eliminate_zeros()
    return m


def on(xp, m):
    """The SciPy matrix, or cupyx's."""
    if xp is np:
        return m
    from cupyx.scipy.sparse import csr_matrix

    return csr_matrix(m)


def dense(m, dtype):
    return m.toarray().astype(_dtypes.lookup(dtype).logical)
