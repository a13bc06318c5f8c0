"""Operands and judgement shared by the tests of grouped products."""

from __future__ import annotations

import numpy as np
from test_matmul import put, sample

import sparse24 as s24
from sparse24._arrays import to_numpy
from sparse24.kernels import reference_grouped


def offsets_of(counts) -> np.ndarray:
    """Where experts with so many tokens each begin and end."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


class Layer:
    """Random 2:4 matrices, tokens, and their exact products, on the CPU or the GPU.

    Attributes
    ----------
    experts : Sparse24Array, shape (e, m, k)
    x : array, shape (t, k)
    offsets : ndarray of int64, shape (e + 1,)
    exact : ndarray, shape (m, t)
    """

    def __init__(self, name: str, m: int, k: int, counts, xp, rng):
        self.name, self.offsets = name, offsets_of(counts)
        experts = s24.random((len(counts), m, k), dtype=name, rng=rng)
        x = sample((int(self.offsets[-1]), k), name, rng)
        self.exact = reference_grouped.grouped_matmul(experts.toarray(), x.T, self.offsets)
        self.experts = experts if xp is np else experts.to_device("cuda")
        self.x = put(x, xp)

    def multiply(self, out=None, **options):
        """The grouped product, tokens as columns."""
        options.setdefault("offsets", self.offsets)
        options.setdefault("b_dtype", self.name)
        return s24.grouped_matmul(self.experts, self.x.T, out, **options)

    def one_by_one(self, **options) -> np.ndarray:
        """The same by a product for each expert."""
        parts = [
            to_numpy(s24.matmul(a, self.x[start:stop].T, b_dtype=self.name, **options))
            for a, start, stop in zip(self.experts, self.offsets, self.offsets[1:])
        ]
        return np.concatenate(parts, axis=1)
