"""The CPU's choice of a deal is the first of those of which the mask keeps most."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _deals

PATTERNS = [(1, 2), (1, 3), (2, 3), (1, 4), (2, 4), (3, 4), (2, 5), (4, 5), (1, 8), (4, 8), (7, 8)]
BIG = float(np.finfo(np.float32).max)


def chosen(scores, pairs, pattern):
    n, m = pattern
    return _deals.Search(scores, n, m).dealt_anew(pairs, np.inf)


def by_sums(scores, pairs, pattern):
    n, m = pattern
    deals = _deals.ways(m)
    best = _deals.best_by_sums(scores, deals, n, pairs)
    return np.take_along_axis(pairs, deals[best], axis=1)


@pytest.mark.parametrize("rows", [0, 1, 16, 70, 333])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_exact_sums_give_the_same_choice(pattern, rows, rng):
    """Also among the many deals of equal sums that small integers have."""
    width = 2 * pattern[1]
    scores = rng.integers(0, 4, (11 * width, rows)).astype(np.float32)
    pairs = rng.permutation(11 * width).reshape(-1, width)
    want = by_sums(scores, pairs, pattern)
    np.testing.assert_array_equal(chosen(scores, pairs, pattern), want)
    assert rows == 0 or (want != pairs).any()


@pytest.mark.parametrize("pattern", [(2, 4), (4, 8)])
def test_columns_of_equal_scores_stay_where_they_are(pattern, rng):
    """Sums in another order would differ in their last bits, and columns wander for nothing."""
    width = 2 * pattern[1]
    scores = np.repeat(rng.random((1, 1000)).astype(np.float32), width, axis=0)
    pairs = rng.permutation(width)[None]
    np.testing.assert_array_equal(chosen(scores, pairs, pattern), pairs)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("pattern", [(2, 4), (3, 4), (4, 8)])
def test_pairs_with_numbers_beyond_float32_stay_as_they_are(pattern, bad, rng):
    width = 2 * pattern[1]
    w = rng.standard_normal((20, 2 * width)).astype(np.float32)
    w[3, 5] = bad
    scores = np.abs(w.T)
    pairs = np.arange(2 * width).reshape(2, width)
    got = chosen(np.ascontiguousarray(scores), pairs, pattern)
    np.testing.assert_array_equal(got[0], pairs[0])
    assert (got[1] != pairs[1]).any()


@pytest.mark.parametrize("pattern", [(2, 4), (4, 8)])
@pytest.mark.parametrize("size", [BIG / 8, 2.0**-120])
def test_sums_of_large_numbers_do_not_overflow(pattern, size, rng):
    w = rng.uniform(-8, 8, (40, 64)).astype(np.float32)
    got = s24.find_permutation(w * np.float32(2.0 ** np.floor(np.log2(size))), pattern=pattern)
    np.testing.assert_array_equal(got, s24.find_permutation(w, pattern=pattern))


@pytest.mark.parametrize("pattern", [(2, 4), (4, 8)])
def test_the_number_of_threads_changes_nothing(pattern, rng, monkeypatch):
    w = rng.standard_normal((300, 512)).astype(np.float32)
    from sparse24.kernels import _numba

    orders = []
    for count in (1, 4):
        monkeypatch.setattr(_numba, "threads", lambda count=count: count)
        orders.append(s24.find_permutation(w, pattern=pattern, rounds=8))
    np.testing.assert_array_equal(*orders)
