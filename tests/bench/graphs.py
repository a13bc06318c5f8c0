"""Nearly empty matrices whose rows are as long as those of graphs and meshes, as SciPy CSR.

They are too large to be drawn dense, as those of ``sparse24.families`` are.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse

HUBS = 0.8  # power of the rank: the longest of 40000 rows of 20 has half of the columns


def lognormal(rng, size: int, mean: float) -> scipy.sparse.csr_matrix:
    """Rows whose lengths follow a log-normal law of sigma 1."""
    return _of_lengths(rng, rng.lognormal(0, 1, size), mean)


def power_law(rng, size: int, mean: float) -> scipy.sparse.csr_matrix:
    """A few rows are hubs: the lengths fall with a power of the rank, in no order."""
    return _of_lengths(rng, rng.permutation(np.arange(1, size + 1)) ** -HUBS, mean)


def _of_lengths(rng, weights: np.ndarray, mean: float) -> scipy.sparse.csr_matrix:
    """Rows in proportion to the weights, but for elements that fall on the same place."""
    size = len(weights)
    lengths = np.minimum(np.rint(weights * (mean / weights.mean())), size).astype(np.int64)
    places = np.repeat(np.arange(size), lengths), rng.integers(0, size, lengths.sum())
    return _with_values(
        rng, scipy.sparse.coo_matrix((np.ones(len(places[0])), places), (size,) * 2)
    )


def stencil(rng, size: int, mean: float) -> scipy.sparse.csr_matrix:
    """The five points around each of a square grid, which are `mean` but at its border."""
    side = math.isqrt(size)
    near = scipy.sparse.diags([np.ones(side)] * 3, [-1, 0, 1], (side, side))
    return _with_values(rng, scipy.sparse.kronsum(near, near))


def _with_values(rng, places) -> scipy.sparse.csr_matrix:
    """Random normal values at the places of the matrix."""
    matrix = scipy.sparse.csr_matrix(places)
    matrix.sum_duplicates()
    matrix.data = rng.standard_normal(matrix.nnz, np.float32)
    return matrix


FAMILIES = {"graph_lognormal": lognormal, "graph_power_law": power_law, "stencil": stencil}


def make(family: str, shape: tuple[int, int], zeros: float) -> scipy.sparse.csr_matrix:
    """A square matrix of float32 with about this share of zeros, the same at every call."""
    size = shape[0]
    return FAMILIES[family](np.random.default_rng(1), size, (1 - zeros) * size)
