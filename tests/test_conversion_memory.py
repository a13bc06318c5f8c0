"""Conversions of dense arrays on the CPU: what they take beside what they return."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.sparse

import sparse24 as s24
from sparse24.formats import convert
from sparse24.formats.windows import Windows24


def peak_of(make):
    make()
    tracemalloc.start()
    made = make()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return made, peak


def test_csr_of_other_patterns_takes_little_memory_beside_itself_and_the_dense_array(rng):
    w = rng.standard_normal((1024, 2048)).astype(np.float32)
    array = s24.compress(w, pattern=(6, 8), on_excess="prune")
    made, peak = peak_of(array.tocsr)
    assert peak < 1.6 * (w.nbytes + made.data.nbytes + made.indices.nbytes)


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("shape", [(300, 90), (1, 9), (9, 1), (0, 7), (7, 0)])
def test_csr_in_pieces_is_scipys(rng, shape, order, monkeypatch):
    monkeypatch.setattr(convert, "_AT_A_TIME", 1000)
    dense = np.asarray(rng.integers(-2, 3, shape) * np.float32(0.5), order=order)
    dense[:1, :1], dense[-1:, -1:] = -0.0, np.nan
    got, want = convert.to_csr(dense), scipy.sparse.csr_array(dense)
    assert got.has_canonical_format
    assert got.shape == want.shape
    for name in ("data", "indices", "indptr"):
        a, b = getattr(got, name), getattr(want, name)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_windows_are_made_without_counts_of_eight_bytes(rng):
    w = rng.standard_normal((512, 2048)).astype(np.float32)
    w = s24.prune(w, pattern=(6, 8))
    made, peak = peak_of(lambda: Windows24.from_dense(w, (6, 8)))
    assert peak < 1.6 * (w.nbytes + made.nbytes)
