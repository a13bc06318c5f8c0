"""Strips whose columns are grouped anew: legal, complete, and hardly wider than the matrix."""

from __future__ import annotations

import numpy as np
import pytest
from strip_cases import assert_restores, assert_same_strips, matrix

from sparse24.kernels import hybrid_regroup, reference_regroup

pytestmark = pytest.mark.stem("hybrid_regroup")

CASES = [
    ("iid", 0.5, (130, 517)),
    ("iid", 0.8, (300, 517)),
    ("iid", 0.95, (256, 300)),
    ("beta5", 0.9, (300, 1100)),
    ("block", 0.8, (520, 260)),
    ("iid", 0.0, (257, 68)),
    ("iid", 1.0, (300, 64)),
    ("power_law", 0.9, (1, 2500)),
    ("dead_columns", 0.7, (256, 1024)),
]


@pytest.mark.parametrize(("family", "zeros", "shape"), CASES)
def test_everything_is_kept_once_and_two_of_four(family, zeros, shape):
    w = matrix(family, zeros, shape)
    strips = reference_regroup.prepare(w)
    assert_restores(strips, w)
    assert not strips.tables.table[:, 2].any()


@pytest.mark.parametrize("k", [1, 31, 32, 33, 1024, 1025, 2500, 14336])
def test_every_column_is_in_one_pool(k):
    pools = [reference_regroup.columns_of(i, k) for i in range(hybrid_regroup.pools(k))]
    assert max(map(len, pools)) <= hybrid_regroup.POOL
    columns = np.sort(np.concatenate(pools))
    np.testing.assert_array_equal(columns[columns < k], np.arange(k))


@pytest.mark.parametrize(("zeros", "most"), [(0.8, 1.03), (0.9, 1.01), (0.7, 1.3)])
def test_few_columns_are_added_where_zeros_fall_by_chance(rng, zeros, most):
    held = rng.random((256, 512)) >= zeros
    slots, taken = reference_regroup.regroup(held)
    assert slots.size <= most * 512
    assert taken.sum() == held.sum()
    assert taken.sum(1).max() <= 2


def test_columns_with_the_same_empty_rows_are_together():
    w = matrix("beta5", 0.95, (512, 2048))
    strips = reference_regroup.prepare(w)
    held = (w != 0).reshape(2, 4, 64, 2048).any(axis=2)
    share = float(np.average(strips.tables.shares, weights=strips.tables.lengths))
    columns = strips.tables.lengths.sum() / (2 * 2048 / 64)
    assert share * columns <= 1.15 * held.mean()
    full = np.bitwise_count(strips.tables.live[: 4 * (len(strips.tables.live) // 4)])
    assert full.reshape(-1, 4).mean(axis=1).std() < 0.6 * full.std()  # in no place of a strip more


def test_ranks_of_neighbours_differ_by_one_block():
    order = np.argsort(hybrid_regroup.gray_ranks())
    assert order[-1] == 0
    assert set(order) == set(range(16))
    np.testing.assert_array_equal(np.bitwise_count(order[1:] ^ order[:-1]), 1)


def test_full_columns_meet_empty_ones():
    held = np.zeros((256, 64), bool)
    held[:, :32] = True
    slots, _ = reference_regroup.regroup(held)
    assert len(slots) == 16
    assert set(slots.ravel()) == {-1, *range(32)}


def test_what_overflows_is_a_column_again():
    held = np.zeros((4, 3), bool)
    held[:, :2] = True
    held[:3, 2] = True
    held[3] = [True, False, True]
    slots, taken = reference_regroup.regroup(held)
    assert (taken.sum(1) <= 2).all()
    assert taken.sum() == held.sum()
    assert len(slots) == 2


@pytest.mark.gpu
@pytest.mark.parametrize(("family", "zeros", "shape"), CASES)
def test_the_kernel_equals_the_reference(family, zeros, shape):
    cupy = pytest.importorskip("cupy")
    w = matrix(family, zeros, shape)
    assert_same_strips(hybrid_regroup.prepare(cupy.asarray(w)), reference_regroup.prepare(w))
