"""Hybrid matrices on the CPU are built of SciPy's in little time for each non-zero."""

from __future__ import annotations

import timeit

import numba
import numpy as np
import pytest
import scipy.sparse

import sparse24 as s24
from sparse24.kernels import _numba, cpu_hybrid_csr


def seconds(call):
    return min(timeit.repeat(call, number=1, repeat=40))


def sparse(rng, shape, density):
    return scipy.sparse.random_array(shape, density=density, rng=rng, dtype=np.float32).tocsr()


def test_tall_matrices_are_built_in_a_few_conversions_of_scipy(rng):
    w = sparse(rng, (40000, 64), 0.03)
    assert seconds(lambda: s24.hybrid(w)) < 6.5 * seconds(w.tocsc)


def test_bands_of_tiles_are_surveyed_in_a_few_calls(rng, monkeypatch):
    calls = []
    survey = cpu_hybrid_csr._survey
    monkeypatch.setattr(cpu_hybrid_csr, "_survey", lambda *x: calls.append(x) or survey(*x))
    w = sparse(rng, (9000, 64), 0.03)
    np.testing.assert_array_equal(s24.hybrid(w).toarray(), w.toarray())
    assert len(calls) <= 4 * _numba.threads()


@pytest.mark.parametrize("work", [1, 1 << 40])
def test_each_band_is_surveyed_once_on_any_threads(rng, work, monkeypatch):
    monkeypatch.setattr(_numba, "WAKING", work)
    w = sparse(rng, (1000, 300), 0.1)
    np.testing.assert_array_equal(s24.hybrid(w).toarray(), w.toarray())


def test_threads_are_woken_for_much_work_alone(rng, monkeypatch):
    woken = []
    workers = _numba._workers
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 2)
    monkeypatch.setattr(_numba, "_workers", lambda: woken.append(1) or workers())
    s24.hybrid(sparse(rng, (1000, 1000), 0.01)).tocsr()
    assert not woken
    large = s24.hybrid(sparse(rng, (1000, 1000), 0.2))
    assert len(woken) == 2  # to count elements, and to place them
    large.tocsr()
    assert len(woken) == 4
