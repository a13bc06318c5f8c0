"""find_permutation never loses, finds the optimum of small cases, and folds away."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparse24 as s24
from sparse24 import _deals, _permutation


def kept(w, pattern=(2, 4)):
    return float(np.abs(s24.prune(w, pattern=pattern)).sum())


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 30), st.sampled_from([(2, 4), (1, 2), (2, 5), (4, 8)]),
       st.integers(0, 2**32 - 1))  # fmt: skip
def test_is_a_permutation_that_never_loses(rows, k, pattern, seed):
    w = np.random.default_rng(seed).standard_t(2, (rows, k)).astype(np.float32)
    order = s24.find_permutation(w, pattern=pattern, rounds=5, rng=seed)
    assert sorted(order) == list(range(k))
    assert kept(w[:, order], pattern) >= kept(w, pattern) * (1 - 1e-6)


def test_two_groups_are_dealt_optimally(xp, rng):
    w = rng.standard_normal((3, 8)).astype(np.float32)
    order = s24.find_permutation(xp.asarray(w), rounds=1)
    best = max(
        kept(w[:, [*first, *(i for i in range(8) if i not in first)]])
        for first in itertools.combinations(range(8), 4)
    )
    assert kept(w[:, order]) == pytest.approx(best)


def test_three_groups_reach_the_optimum(rng):
    """All 5775 ways to deal 12 columns to three groups."""
    w = rng.standard_normal((2, 12)).astype(np.float32)
    value = {group: kept(w[:, group]) for group in itertools.combinations(range(12), 4)}
    best = 0.0
    for first in itertools.combinations(range(12), 4):
        if first[0]:
            break
        rest = [i for i in range(12) if i not in first]
        for second in itertools.combinations(rest, 4):
            third = tuple(i for i in rest if i not in second)
            best = max(best, value[first] + value[second] + value[third])
    found = max(kept(w[:, s24.find_permutation(w, rng=seed)]) for seed in range(4))
    assert found >= 0.995 * best


def test_raises_what_is_kept_and_is_deterministic(xp, rng):
    w = xp.asarray(rng.standard_normal((48, 64)).astype(np.float32))
    first = s24.find_permutation(w, rounds=30)
    np.testing.assert_array_equal(first, s24.find_permutation(w, rounds=30))
    few = s24.find_permutation(w, rounds=3)
    w = w if xp is np else w.get()
    assert kept(w) < kept(w[:, few]) < kept(w[:, first])


def test_several_weights_share_one(rng):
    weights = [rng.standard_normal((rows, 32)) for rows in (8, 16)]
    order = s24.find_permutation(weights)
    stacked = np.concatenate(weights)
    np.testing.assert_array_equal(order, s24.find_permutation(stacked))


def test_scores_and_time_limit(rng):
    w = rng.standard_normal((8, 32)).astype(np.float32)
    scores = np.abs(w) * np.linspace(0, 3, 32, dtype=np.float32)
    order = s24.find_permutation(w, scores=scores)
    np.testing.assert_array_equal(order, s24.find_permutation(scores))
    np.testing.assert_array_equal(s24.find_permutation(w, seconds=0, rounds=10**9), np.arange(32))


def test_pairs_taken_in_parts_give_the_same(xp, rng, monkeypatch):
    w = xp.asarray(rng.standard_normal((24, 72)).astype(np.float32))
    whole = s24.find_permutation(w, rounds=5)
    for limit in ("CPU_AT_ONCE", "GPU_AT_ONCE"):
        monkeypatch.setattr(_deals, limit, 50)  # two pairs of 24 rows
    np.testing.assert_array_equal(whole, s24.find_permutation(w, rounds=5))


def test_time_runs_out_within_a_round(rng, monkeypatch):
    w = rng.standard_normal((24, 72)).astype(np.float32)
    times = itertools.chain(range(6), itertools.repeat(100))
    clock = SimpleNamespace(monotonic=lambda: next(times))
    monkeypatch.setattr(_permutation, "time", clock)
    monkeypatch.setattr(_deals, "time", clock)
    monkeypatch.setattr(_deals, "CPU_AT_ONCE", 24)  # one pair at a time
    order = s24.find_permutation(w, rounds=10, seconds=50)
    monkeypatch.undo()
    moved = (order.reshape(-1, 4) != np.arange(72).reshape(-1, 4)).any(1).sum()
    assert 0 < moved <= 8  # four of the nine pairs
    assert kept(w) < kept(w[:, order])


def test_folds_into_its_neighbours_exactly(rng):
    """Integers: the folded network gives the same bits."""
    up, down = rng.integers(-5, 6, (16, 8)), rng.integers(-5, 6, (4, 16))
    bias, x = rng.integers(-5, 6, 16), rng.integers(-5, 6, 8)
    order = s24.find_permutation(down)
    up2, down2, bias2 = s24.fold_permutation(order, up, down, bias=bias)
    relu = lambda v: np.maximum(v, 0)  # noqa: E731
    np.testing.assert_array_equal(down2 @ relu(up2 @ x + bias2), down @ relu(up @ x + bias))
    undone = s24.fold_permutation(np.argsort(order), up2, down2, bias=bias2)
    for got, want in zip(undone, (up, down, bias), strict=True):
        np.testing.assert_array_equal(got, want)
    assert len(s24.fold_permutation(order, up, down)) == 2


@pytest.mark.parametrize("size", [2.0**-1000, 2.0**-200, 2.0**200, 2.0**1000])
def test_columns_of_any_size_are_ordered_alike(xp, rng, size):
    w, other = rng.standard_normal((2, 8, 32))
    want = s24.find_permutation([w, other])
    for between in ([], [np.zeros((3, 32), np.float16)]):
        given = [w * size, *between, other * size]
        got = s24.find_permutation([xp.asarray(x) for x in given])
        np.testing.assert_array_equal(got, want)


def test_numbers_beyond_float32_are_not_lost():
    big = 1e300
    w = np.array([[big, big, big, 1.0, big, 1.0, 1.0, 1.0]])
    for seed in range(8):
        order = s24.find_permutation(w, pattern=(3, 4), rng=seed)
        assert s24.prune(w[:, order], pattern=(3, 4)).sum() == w.sum()


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, ">i8"])
def test_tensors_are_folded_by_any_order_of_numbers(dtype, rng):
    torch = pytest.importorskip("torch")
    order = np.arange(8, dtype=dtype)[::-1]
    up, down = torch.arange(16.0).reshape(8, 2), torch.arange(24.0).reshape(3, 8)
    up2, down2 = s24.fold_permutation(order, up, down)
    assert torch.equal(up2, up.flip(0))
    assert torch.equal(down2, down.flip(1))


def test_scores_are_those_of_the_weights(rng):
    w = rng.standard_normal((4, 16))
    with pytest.raises(s24.ShapeError, match=r"scores must have the shape of w, \(4, 16\)"):
        s24.find_permutation(w, scores=np.abs(w[:, :8]))
    for weight, scores in ((w * 1j, None), (w, w * 1j)):
        with pytest.raises(s24.DTypeError, match="must hold real numbers, got complex128"):
            s24.find_permutation(weight, scores=scores)


def test_refusals(rng):
    w = np.ones((4, 8))
    with pytest.raises(s24.ShapeError, match=r"matrices \(m, k\) of the same k"):
        s24.find_permutation([w, np.ones((4, 9))])
    for rounds in (-1, 1.5, "a"):
        with pytest.raises(s24.ArgumentError, match="rounds must be a whole number"):
            s24.find_permutation(w, rounds=rounds)
    with pytest.raises(s24.ArgumentError, match="seconds must be a number, got 'a'"):
        s24.find_permutation(w, seconds="a")
    for seconds in (np.nan, -1.0):  # of which no time would be searched
        with pytest.raises(s24.ArgumentError, match=f"seconds must be at least 0, .* {seconds}"):
            s24.find_permutation(w, seconds=seconds)
    with pytest.raises(s24.DTypeError, match="w holds uint8"):
        s24.find_permutation(w.astype(np.uint8))
    for scores in (w[:, :4], w[:1]):
        with pytest.raises(s24.ShapeError, match="scores must have the shape of w"):
            s24.find_permutation(w, scores=scores)
    with pytest.raises(s24.ArgumentError, match="scores as many arrays as w, got 2 and 1"):
        s24.find_permutation([w, w], scores=[w])
    for order in ([0, 0, 1], np.arange(8.0), np.arange(8).reshape(1, 8)):
        with pytest.raises(s24.ArgumentError, match="each of 0 to k - 1 once"):
            s24.fold_permutation(order, w.T, w)
    with pytest.raises(s24.ShapeError, match="producer must have 8 elements on axis 0"):
        s24.fold_permutation(np.arange(8), w, w)
    with pytest.raises(s24.ShapeError, match=r"bias must have shape \(8,\)"):
        s24.fold_permutation(np.arange(8), w.T, w, bias=np.ones(4))
    lists = [(w.T.tolist(), w, None), (w.T, w.tolist(), None), (w.T, w, [0.0] * 8)]
    for producer, consumer, bias in lists:
        with pytest.raises(s24.DTypeError, match="must be an array, got list"):
            s24.fold_permutation(np.arange(8), producer, consumer, bias=bias)
    with pytest.raises(s24.ShapeError, match="producer must have at least one axis"):
        s24.fold_permutation(np.arange(8), np.float32(1), w)


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16", "int8"])
def test_negative_scores_are_refused_with_a_way_out(xp, rng, name):
    """They were taken for their sizes, so that an order could keep less than none."""
    scores = np.round(4 * rng.normal(size=(8, 32)) - 8).astype(name)
    with pytest.raises(s24.ArgumentError, match=r"scores must not be negative, .* got -\d+"):
        s24.find_permutation(xp.asarray(scores), scores=xp.asarray(scores))
    with pytest.raises(s24.ArgumentError, match=r"scores - scores\.min"):
        s24.find_permutation([xp.asarray(scores)], scores=[xp.asarray(scores)])
    wide = scores.astype(np.float32)
    order = s24.find_permutation(xp.asarray(wide), scores=xp.asarray(wide - wide.min()))
    kept = [np.sort(x.reshape(8, 8, 4))[..., 2:].sum() for x in (wide, wide[:, order])]
    assert kept[1] > kept[0]
