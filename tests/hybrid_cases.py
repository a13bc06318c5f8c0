"""What tests of several paths of hybrid products share."""

from __future__ import annotations

import numpy as np
import pytest

from sparse24._dtypes import lookup
from sparse24._hybrid import hybrid


def assert_exact_on_whole_numbers(product, rng, k: int, dtype: str, zeros: float, n: int) -> None:
    """``product(h, b, balance=...)`` of 333 rows on the GPU, whose sums are small enough."""
    cupy = pytest.importorskip("cupy")
    kind = lookup(dtype).logical
    w = rng.integers(-3, 4, (333, k)) * (rng.random((333, k)) >= zeros)
    b = rng.integers(-1, 2, (k, n)) * (rng.random((k, n)) < 0.1)
    h = hybrid(cupy.asarray(w.astype(kind)))
    want = (w @ b).astype(kind)
    for balance in (True, False):
        np.testing.assert_array_equal(product(h, b.astype(kind), balance=balance), want)
