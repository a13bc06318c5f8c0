"""Strips of an unstructured matrix as 2:4 matrices: legal, complete, and no wider than must be."""

from __future__ import annotations

import numpy as np
import pytest
from strip_cases import assert_restores, assert_same_strips, matrix

from sparse24.kernels import hybrid_evict, reference_evict

pytestmark = pytest.mark.stem("hybrid_evict")

CASES = [
    ("iid", 0.5, (130, 517)),
    ("iid", 0.8, (300, 517)),
    ("iid", 0.95, (128, 300)),
    ("beta5", 0.9, (300, 517)),
    ("block", 0.8, (200, 260)),
    ("iid", 0.0, (129, 68)),
    ("iid", 1.0, (200, 64)),
    ("power_law", 0.9, (1, 1000)),
]


@pytest.mark.parametrize(("family", "zeros", "shape"), CASES)
def test_everything_is_kept_once_and_two_of_four(family, zeros, shape):
    w = matrix(family, zeros, shape)
    strips = reference_evict.prepare(w)
    assert_restores(strips, w)


def test_no_more_columns_than_by_taking_the_last_of_every_group(rng):
    held = rng.random((128, 256)) < 0.2
    groups = held.reshape(128, -1, 4)
    naive = (groups & (np.cumsum(groups, axis=2) > 2)).reshape(held.shape)
    evicted = reference_evict.evict(held)
    assert evicted.sum() == naive.sum()
    assert evicted.any(0).sum() < naive.any(0).sum()
    assert ((held & ~evicted).reshape(128, -1, 4).sum(2) <= 2).all()
    assert (evicted.any(0).reshape(-1, 4).sum(1) <= 2).all()


def test_one_column_is_evicted_where_one_suffices():
    held = np.array([[1, 1, 1, 0], [0, 1, 1, 1], [1, 1, 0, 1], [1, 0, 0, 1]], bool)
    evicted = reference_evict.evict(held)
    np.testing.assert_array_equal(evicted.sum(0), [0, 3, 0, 0])


def test_light_columns_fill_their_groups(rng):
    evicted = rng.random((128, 400)) < 0.02
    slots = reference_evict.pack(evicted, 400)
    live = np.flatnonzero(evicted.any(0))
    assert len(slots) <= len(live) + 8
    np.testing.assert_array_equal(np.sort(slots[slots < 400]), live)


@pytest.mark.gpu
@pytest.mark.parametrize(("family", "zeros", "shape"), CASES)
def test_the_kernel_equals_the_reference(family, zeros, shape):
    cupy = pytest.importorskip("cupy")
    w = matrix(family, zeros, shape)
    assert_same_strips(hybrid_evict.prepare(cupy.asarray(w)), reference_evict.prepare(w))
