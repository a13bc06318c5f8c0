"""Sparse float32 matrices on a GPU and their products in pieces, for tests."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24.kernels import split_skinny

KERNELS = [
    pytest.param(name, marks=[pytest.mark.gpu, pytest.mark.stem(name)])
    for name in ("sparse_split", "split_mma", "split_skinny")
]


def columns_of(kernel: str, n: int) -> int:
    """So many columns, or as many as the kernel takes: an odd number of them."""
    return min(n, split_skinny.MOST_COLUMNS - 5) if kernel == "split_skinny" else n


def prepared(rng, m, k, *, integers=False):
    x = rng.integers(-4, 5, (m, k)) if integers else rng.standard_normal((m, k))
    return s24.compress(x.astype(np.float32), on_excess="prune").to_device("cuda")


def split_product(kernel, a, b, out=None, **more):
    return s24.matmul(a, b, out, algorithm=kernel, **more)
