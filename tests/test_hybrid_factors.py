"""Factors for each row or column of a hybrid matrix on the CPU, of any kind of tile."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hybrid_cases import KINDS

import sparse24 as s24
from sparse24._dtypes import TABLE
from sparse24.formats import hybrid_build, hybrid_source
from sparse24.formats import hybrid_tiles as ht
from sparse24.formats.hybrid import HybridArray
from sparse24.kernels import hybrid_kinds


def of_kind(w, kind):
    """A matrix whose tiles are all of one kind, or empty."""

    def choose(held, spill):
        return np.where(held == 0, hybrid_kinds.EMPTY, kind)

    tiles, _ = hybrid_build.build(hybrid_source.Source(w), choose)
    assert isinstance(tiles, ht.Tiles)
    return HybridArray.from_tiles(tiles)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int8", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1])
def test_each_element_meets_the_factor_of_its_line(rng, kind, name, axis):
    w = rng.integers(1, 5, (150, 203)) * (rng.random((150, 203)) < 0.3)
    w[:64, 64:128] = 0
    w[:, 3], w[7] = 0, 0
    w = w.astype(TABLE[name].logical)
    factor = rng.integers(-3, 0, (150, 1) if axis else (1, 203)).astype(w.dtype)
    whole = of_kind(w, kind)
    for h, f, dense in ((whole, factor, w), (whole.T, factor.T, w.T)):
        made = h * f
        assert made.dtype == w.dtype
        assert made.nnz == h.nnz
        np.testing.assert_array_equal(made.toarray().astype(float), (dense * f).astype(float))


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_that_are_stored_stay_zeros_beside_infinity(kind):
    w = np.zeros((64, 64), np.float32)
    w[np.arange(64), np.arange(64)] = 2
    factor = np.full(64, np.inf, np.float32)
    h = of_kind(w, kind)
    for made in (h * factor, h * factor[:, None]):
        np.testing.assert_array_equal(made.toarray(), np.where(w, np.inf, 0))


@pytest.mark.parametrize("factor", [np.ones(2000), np.ones((2000, 1))], ids=["columns", "rows"])
def test_elements_are_not_numbered(rng, factor):
    w = rng.standard_normal((2000, 2000)).astype(np.float32) * (rng.random((2000, 2000)) < 0.1)
    h, factor = s24.hybrid(w), factor.astype(np.float32)
    stored = h.nbytes
    h * factor
    tracemalloc.start()
    h * factor
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * stored
