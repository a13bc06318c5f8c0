"""Masks that are 2:4 along both axes: the best ones, by magnitude and by scores."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _arrays, _select
from sparse24.kernels import reference

pytestmark = pytest.mark.stem("n_m", "transposable")


def test_tile_masks_are_the_90():
    masks = _select.tile_masks()
    bits = (masks.reshape(-1, 16) << np.arange(16)).sum(1)
    assert len(bits) == 90
    assert bits[0] == 0x33CC
    assert bits[-1] == 0xCC33
    assert zlib.crc32(bits.astype("<u2").tobytes()) == 0xCAD794FC


@pytest.mark.parametrize("shape", [(8, 12), (4, 4), (6, 9), (2, 5, 7), (0, 4)])
def test_transposable_is_the_optimum(xp, rng, shape):
    x = rng.standard_normal(shape).astype(np.float32)
    kept = _arrays.to_numpy(s24.mask(xp.asarray(x), transposable=True))
    assert s24.is_24(np.where(kept, 1.0, 0.0), axis=-1)
    assert s24.is_24(np.where(kept, 1.0, 0.0), axis=-2)
    for tile, mask in tiles_of(np.abs(x), kept):
        assert (tile * mask).sum() == pytest.approx(brute_force(tile), rel=1e-6)


def tiles_of(x, kept):
    for place in np.ndindex(x.shape[:-2]):
        for i in range(0, x.shape[-2], 4):
            for j in range(0, x.shape[-1], 4):
                at = (*place, slice(i, i + 4), slice(j, j + 4))
                yield x[at].astype(np.float64), kept[at]


def brute_force(tile):
    """Best sum over all choices of two columns in each row, at most two a column."""
    tile = np.pad(tile, [(0, 4 - s) for s in tile.shape])
    pairs = list(itertools.combinations(range(4), 2))
    sums = []
    for choice in itertools.product(pairs, repeat=4):
        if all(sum(j in pair for pair in choice) == 2 for j in range(4)):
            sums.append(sum(tile[i, list(pair)].sum() for i, pair in enumerate(choice)))
    return max(sums)


def test_transposable_equals_the_reference(xp, rng):
    x = rng.standard_normal((40, 52)).astype(np.float16)
    x[rng.random(x.shape) < 0.3] = 1  # ties
    x[3, 5], x[17, 20], x[30, 30:34] = np.nan, np.inf, -0.0
    got = s24.mask(xp.asarray(x), transposable=True)
    np.testing.assert_array_equal(_arrays.to_numpy(got), reference.transposable_mask(x))


def test_a_transposable_mask_does_not_depend_on_the_axis(xp, rng):
    x = rng.integers(-2, 3, (2, 21, 38)).astype(np.float32)  # full of ties
    given = xp.asarray(x)
    want = reference.transposable_mask(x)
    for axis in (-1, -2):
        kept = s24.mask(given, transposable=True, axis=axis)
        np.testing.assert_array_equal(_arrays.to_numpy(kept), want)
        pruned = s24.prune(given, transposable=True, axis=axis)
        np.testing.assert_array_equal(_arrays.to_numpy(pruned), np.where(want, x, 0))
        ranked = s24.mask(given, scores=abs(given), transposable=True, axis=axis)
        np.testing.assert_array_equal(_arrays.to_numpy(ranked), want)
    packed = s24.compress(given, on_excess="prune", transposable=True)
    np.testing.assert_array_equal(_arrays.to_numpy(packed.toarray()), np.where(want, x, 0))


def test_transposable_takes_negative_scores(xp, rng):
    scores = -np.abs(rng.standard_normal((8, 8))).astype(np.float32)
    x = xp.asarray(np.ones_like(scores))
    got = s24.mask(x, scores=xp.asarray(scores), transposable=True)
    for tile, mask in tiles_of(scores, _arrays.to_numpy(got)):
        assert (tile * mask).sum() == pytest.approx(brute_force(tile + 9) - 72)


@pytest.mark.parametrize("beside", [np.nan, np.inf])
def test_a_nan_or_an_infinity_is_kept_and_others_of_its_tile_vanish_beside_it(xp, beside):
    x = np.ones((4, 4), np.float32)
    x[0] = 2, 9, 3, beside
    kept = _arrays.to_numpy(s24.mask(xp.asarray(x), transposable=True))
    np.testing.assert_array_equal(kept, reference.transposable_mask(x))
    assert kept[0].tolist() == [False, False, True, True]  # not the 9: of equal sums the first
    x[0, 1] = np.inf
    kept = _arrays.to_numpy(s24.mask(xp.asarray(x), transposable=True))
    assert kept[0, 1] or (beside == np.inf and kept[0, 3])  # several infinities count as one


@pytest.mark.filterwarnings("error")
def test_transposable_takes_scores_beyond_float32():
    scores = np.full((4, 4), -1e300)
    scores[[0, 0, 1, 1, 2, 2, 3, 3], [0, 2, 1, 3, 0, 2, 1, 3]] = 1
    kept = s24.mask(np.ones((4, 4)), scores=scores, transposable=True)
    np.testing.assert_array_equal(kept, scores == 1)


def test_transposable_matches_a_flow_solver(rng):
    """The optimum as a linear programme, whose corners are integral."""
    from scipy.optimize import linprog

    for _ in range(20):
        tile = rng.integers(-50, 51, (4, 4)).astype(np.float32)
        rows = np.kron(np.eye(4), np.ones(4))
        columns = np.kron(np.ones(4), np.eye(4))
        sums = np.r_[rows, columns]
        solved = linprog(-np.abs(tile).ravel(), A_eq=sums, b_eq=[2] * 8, bounds=(0, 1))
        kept = s24.mask(tile, transposable=True)
        assert np.abs(tile)[kept].sum() == pytest.approx(-solved.fun)
