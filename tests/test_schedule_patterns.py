"""Patterns of the scheduler: exact counts, and the best masks that they allow."""

from __future__ import annotations

import itertools

import array_api_compat.numpy
import numpy as np
import pytest
from schedule_cases import PATTERNS

from sparse24 import schedule as S
from sparse24._errors import ArgumentError, PatternError, ShapeError
from sparse24._schedule import largest
from sparse24._schedule.transposable import MASKS
from sparse24._spec import PAIRS
from sparse24.kernels import reference


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.5, 0.6, 0.75])
def test_counts_are_exact_and_round_down(pattern, sparsity, rng):
    scores = np.abs(rng.normal(size=(32, 64)))
    scores[:8] = 1.0  # ties
    scores[9, 3] = np.nan
    mask = pattern.mask(scores, sparsity)
    assert mask.sum() == pattern.kept(scores.shape, sparsity)
    assert (~mask).mean() <= sparsity + 1e-12
    assert (~mask).mean() > sparsity - 0.035  # one unit


@pytest.mark.parametrize("shape", [(8, 16), (1, 8), (8, 3), (5, 1), (0, 8), (2, 6, 8)])
@pytest.mark.parametrize(
    "pattern", [S.NM(), S.NM(1, 4), S.NM(2, 4, 0), S.Transposable24(), S.Channel(0), S.Channel(-1)]
)
def test_counts_of_any_shape(pattern, shape, rng):
    try:
        pattern.check_shape(shape)
    except ShapeError:
        pytest.skip("of which there are no such masks")
    for sparsity in (0.0, 1 - pattern.n / pattern.m if isinstance(pattern, S.NM) else 0.5):
        mask = pattern.mask(rng.normal(size=shape), sparsity)
        assert mask.sum() == pattern.kept(shape, sparsity)
        assert mask.all() or sparsity


@pytest.mark.parametrize("tile", [
    4, (4,), (4, 4, 4), (0, 4), (4, 0), (4, None), ("4", 4), (4.0, 4.0), (True, 4)
])  # fmt: skip
def test_a_block_has_two_sides(tile):
    for pattern in (S.Block, S.Elastic, S.TileHybrid):
        with pytest.raises(ArgumentError, match=r"a pair \(rows, columns\).*, got .*[04]"):
            pattern(tile)
    with pytest.raises(ArgumentError, match=r"must be a pair \(rows, columns\), got 4$"):
        S.Block(4)
    with pytest.raises(ArgumentError, match=r"columns a multiple of 4, got \(4, 6\)"):
        S.Elastic((4, 6))


def test_a_delay_is_whole():
    with pytest.raises(ArgumentError, match="delay must be a whole number from 0 on, got -1"):
        S.AsyncScheduler(S.Recipe(), {"w": np.ones((4, 8))}, delay=-1)


@pytest.mark.parametrize("axis", [2, -3])
def test_channels_of_an_axis_that_is_not_there(axis):
    with pytest.raises(ShapeError, match=rf"Channel\(axis={axis}\) needs that axis, got shape"):
        S.init(S.Recipe(pattern=S.Channel(axis)), {"w": np.ones((4, 8))})


def test_ties_keep_the_lower_index_and_nan_ranks_first():
    assert S.Unstructured().mask(np.ones((1, 6)), 0.5).tolist() == [[True] * 3 + [False] * 3]
    assert S.NM().mask(np.ones((1, 8)), 0.5).tolist() == [[True, True, False, False] * 2]
    scores = np.array([[np.inf, 1.0, np.nan, np.nan]])
    assert S.NM(1, 4).mask(scores, 0.75).tolist() == [[False, False, True, False]]
    assert S.Unstructured().mask(scores, 0.25).tolist() == [[True, False, True, True]]


@pytest.mark.parametrize("shape", [(60,), (1, 60), (4, 60)])
def test_the_largest_among_what_is_ruled_out(rng, shape):
    """As by a stable sort, with ties, and where -inf leaves fewer than there is room for."""
    scores = np.round(rng.normal(size=shape), 1)
    scores[rng.random(shape) < 0.6] = -np.inf
    order = np.argsort(-scores, axis=-1, kind="stable")
    for keep in (0, 1, 7, 20, 40, 59, 60):
        want = np.zeros(shape, bool)
        np.put_along_axis(want, order[..., :keep], True, axis=-1)
        np.testing.assert_array_equal(largest.top_in_rows(scores, keep), want)


@pytest.mark.parametrize(("n", "m"), [(1, 2), (2, 4), (1, 4), (3, 4), (4, 8), (8, 32)])
def test_n_m_keeps_the_largest(n, m, rng):
    scores = rng.normal(size=(7, 2 * m + 1)).astype(np.float32)
    mask = S.NM(n, m).mask(scores, 1 - n / m)
    padded = np.pad(scores, [(0, 0), (0, m - 1)], constant_values=-np.inf).reshape(7, 3, m)
    order = np.argsort(-padded, axis=-1, kind="stable")
    want = np.zeros(padded.shape, bool)
    np.put_along_axis(want, order[..., :n], True, axis=-1)
    np.testing.assert_array_equal(mask, want.reshape(7, -1)[:, : 2 * m + 1])
    assert mask.sum() == S.NM(n, m).kept(scores.shape, 1 - n / m)


@pytest.mark.parametrize("axis", [1, -3, -2, 0])
@pytest.mark.parametrize("grower", [None, S.GradientGrowth(0.5)])
def test_n_m_along_an_axis_is_that_along_the_last_of_the_turned_weights(axis, grower, rng):
    shape = (8, 12, 4, 3)
    weights, gradients = rng.normal(size=(2, *shape)).astype(np.float32)
    found = []
    for turn, pattern in ((False, S.NM(2, 4, axis)), (True, S.NM(2, 4))):
        w, g = (np.moveaxis(x, axis, -1) if turn else x for x in (weights, gradients))
        how = {} if grower is None else {"grower": grower}
        recipe = S.Recipe(S.ConstantScheduler(0.5, every=1), pattern=pattern, **how)
        scheduler = S.MaskScheduler(recipe)
        for scale in (1.0, -0.1):  # the second choice follows the grower, if there is one
            masks = scheduler.step(weights={"w": w * scale}, gradients={"w": g})
        found.append(masks["w"])
    np.testing.assert_array_equal(np.moveaxis(found[0], axis, -1), found[1])
    assert found[0].sum() == S.NM(2, 4, axis).kept(shape, 0.5) == weights.size // 2
    assert found[0].shape == shape


@pytest.mark.parametrize(
    ("pattern", "shape", "words"),
    [
        (S.NM(2, 4), (64, 32, 3, 3), r"along axis -1, of which shape .* has 3; .* axis=1\) for"),
        (S.NM(2, 4), (64, 32, 1, 1), "has 1; name another axis"),
        (S.NM(2, 4, axis=1), (64, 3, 7, 7), "has 3; name another axis"),
        (S.NM(2, 4, axis=2), (8, 8), r"NM\(axis=2\) needs that axis"),
        (S.Transposable24(), (6, 8), r"Transposable24\(\).*multiples of 4 by 4"),
    ],
)
def test_kernels_of_convolutions_are_no_groups(pattern, shape, words):
    with pytest.raises(ShapeError, match=f"layer 'conv': .*{words}"):
        S.init(S.Recipe(S.OneShot(0.5), pattern=pattern), {"conv": np.ones(shape)})


def test_one_group_is_enough():
    """Of the channels of a convolution; in a matrix, and without elements, fewer will do."""
    for axis, shape in ((1, (8, 4, 3, 3)), (-1, (8, 3)), (-1, (2, 3, 0))):
        S.NM(2, 4, axis).check_shape(shape)


def test_an_axis_is_a_number():
    with pytest.raises(ArgumentError, match=r"axis must be a whole number, got 1\.0"):
        S.NM(2, 4, axis=1.0)


@pytest.mark.parametrize("pattern", [S.NM(), S.NM(1, 4), S.NM(4, 8), S.Transposable24()])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_kernels_and_array_api_choose_the_same(pattern, dtype, rng):
    weight = np.round(rng.normal(size=(16, 32)), 1).astype(dtype)  # with ties
    weight[0, :3] = np.nan, np.inf, -np.inf
    weight[1, ::2] = -0.0
    np.testing.assert_array_equal(
        pattern.of_magnitudes(weight),
        pattern.mask(np.abs(weight), 1 - pattern.n / pattern.m if hasattr(pattern, "n") else 0.5),
    )


@pytest.mark.parametrize("shape", [(2, 2, 8), (4, 1, 4), (2, 6, 4), (2, 4, 8)])
def test_transposable_layers_of_more_axes_are_one_matrix(shape, rng):
    weight = rng.normal(size=shape).astype(np.float32)
    flat = S.Transposable24().of_magnitudes(weight.reshape(-1, shape[-1]))
    np.testing.assert_array_equal(S.Transposable24().of_magnitudes(weight), flat.reshape(shape))
    np.testing.assert_array_equal(S.Transposable24().mask(abs(weight), 0.5), flat.reshape(shape))


def test_transposable_is_optimal(rng):
    tiles = np.zeros((len(MASKS), 4, 4))
    for t, rows in enumerate(MASKS):
        for r, pair in enumerate(rows):
            tiles[t, r, list(PAIRS[pair])] = 1
    assert len(tiles) == 90
    weight = np.round(rng.normal(size=(16, 24)), 1).astype(np.float32)  # with ties
    ours = S.Transposable24().mask(np.abs(weight), 0.5)
    np.testing.assert_array_equal(ours, reference.transposable_mask(weight))
    scores = np.abs(rng.normal(size=(12, 8)))
    mask = S.Transposable24().mask(scores, 0.5)
    for i in range(0, 12, 4):
        for j in range(0, 8, 4):
            tile, kept = scores[i : i + 4, j : j + 4], mask[i : i + 4, j : j + 4]
            assert (kept.sum(0) == 2).all()
            assert (kept.sum(1) == 2).all()
            best = (tiles * tile).sum((1, 2)).max()
            assert (tile * kept).sum() == pytest.approx(best)


def test_levels_are_optimal_among_tiles(rng):
    """Two tiles, five steps down of eight: every split is tried."""
    scores = np.abs(rng.normal(size=(4, 16)))
    mask = S.Elastic((4, 8)).mask(scores, 3 / 8)
    ordered = np.sort(scores.reshape(4, 2, 2, 4), axis=-1)[..., ::-1]
    value = {
        (a, b): ordered[:, 0, :, :a].sum() + ordered[:, 1, :, :b].sum()
        for a in range(1, 5)
        for b in range(1, 5)
        if a + b == 5
    }
    assert (scores * mask).sum() == pytest.approx(max(value.values()))


def fours(rng):
    """All orders of four, ties, zeros of both signs, infinities and other numbers, in rows."""
    orders = list(itertools.product([0.0, 1.0, 2.0, np.inf], repeat=4))
    rows = [*orders, *itertools.permutations([0.0, -0.0, -1.0, 3.0]), *rng.normal(size=(40, 4))]
    return np.array(rows, np.float32)


def test_fours_in_order(rng):
    rows = fours(rng)
    found = np.stack(largest.fours_from_the_largest(rows), axis=-1)
    np.testing.assert_array_equal(found, np.sort(rows, axis=-1)[:, ::-1])


@pytest.mark.parametrize("pattern", [S.Elastic((4, 8)), S.TileHybrid((4, 8))])
def test_levels_sort_no_rows_of_four(pattern, rng, monkeypatch):
    """NumPy takes longer for that than for all else."""
    scores = fours(rng).reshape(40, 32)
    want = pattern.mask(scores, 0.6)
    monkeypatch.setattr(np, "sort", None)
    monkeypatch.setattr(array_api_compat.numpy, "sort", None)
    np.testing.assert_array_equal(pattern.mask(scores, 0.6), want)


@pytest.mark.parametrize("pattern", [S.Elastic((4, 8), least=2), S.TileHybrid((4, 8), empty=False)])
def test_ramps_to_two_four_end_as_two_four(pattern, rng):
    scores = np.abs(rng.normal(size=(8, 32)))
    np.testing.assert_array_equal(pattern.mask(scores, 0.5), S.NM().mask(scores, 0.5))
    assert pattern.mask(scores, 0.25).sum() == 192


def test_fixed_pattern_with_another_target_says_so():
    with pytest.raises(PatternError, match=r"fixed 2:4 pattern has sparsity 0.5 .* asks for 0.6"):
        S.Recipe(S.OneShot(0.6), pattern=S.NM(2, 4))
    with pytest.raises(PatternError, match=r"Elastic\(\), TileHybrid\(\), Unstructured\(\)"):
        S.DynamicScheduler(0.3, pattern=S.NM(2, 4))
    with pytest.raises(
        PatternError, match=r"NM\(n=2, m=4, axis=-1\) has one sparsity, and ERK\(\) gives"
    ):
        S.Recipe(S.OneShot(0.5), pattern=S.NM(2, 4), distribution=S.ERK())
    weight = np.arange(16.0).reshape(2, 8)
    masks = S.DynamicScheduler(0.5, S.OneShot(0.5), pattern=S.NM(2, 4)).step(
        gradients={"w": weight}
    )
    assert masks["w"].sum() == 8
    with pytest.raises(PatternError, match=r"sparsity 0.8 is beyond Elastic"):
        S.Recipe(S.OneShot(0.8), pattern=S.Elastic())
    with pytest.raises(ShapeError, match=r"multiples of 32 by 32, got \(30, 32\)"):
        S.init(S.Recipe(pattern=S.Block()), {"w": np.zeros((30, 32))})
    with pytest.raises(ShapeError, match=r"multiples of 4 by 64, got \(30, 50\)"):
        S.init(S.Recipe(pattern=S.Elastic()), {"w": np.zeros((30, 50))})
    with pytest.raises(ShapeError, match=r"multiples of 1 by 4, got \(3, 6\)"):
        S.init(S.Recipe(pattern=S.Elastic(tile=None)), {"w": np.zeros((3, 6))})


class HalfByGradient(S.Grower):
    def share(self, step):
        return 0.5

    def score(self, memory, seen):
        return seen.gradient


def test_gradients_narrower_than_the_weights_take_no_place_of_survivors():
    """A score of NaN ranks first among what grows, never before what stays."""
    weights = {"w": np.array([[4.0, 3.0, 2.0, 1.0]])}
    gradients = {"w": np.array([[np.nan, np.nan, 0, 0]], np.float32)}
    recipe = S.Recipe(
        S.ConstantScheduler(0.5, every=1), pattern=S.NM(2, 4), grower=HalfByGradient(),
        initial=S.GivenScores({"w": np.arange(4.0)[None]}),
    )  # fmt: skip
    scheduler = S.MaskScheduler(recipe)
    scheduler.step(weights=weights, gradients=gradients)
    masks = scheduler.step(weights=weights, gradients=gradients)
    np.testing.assert_array_equal(masks["w"], [[True, False, True, False]])


@pytest.mark.parametrize("pattern", [S.Unstructured(), S.Elastic(), S.Block((4, 4)), S.Channel()])
@pytest.mark.parametrize("distribution", [S.Uniform(), S.ERK(), S.Adaptive()])
def test_layers_without_elements_have_no_mask(pattern, distribution):
    weights = {"a": np.ones((0, 64)), "b": np.ones((8, 64)), "c": np.ones((8, 0))}
    recipe = S.Recipe(S.OneShot(0.5), pattern=pattern, distribution=distribution)
    assert set(S.MaskScheduler(recipe).step(weights=weights, gradients=weights)) == {"b"}
    assert float(S.soft_threshold_scale(weights["c"])) == 1.0


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        (S.Unstructured(), [4, 5, 6, 7]),
        (S.NM(2, 4), [2, 3, 6, 7]),
        (S.Elastic((1, 8), least=2), [2, 3, 6, 7]),
    ],
)
def test_scores_in_float64_are_not_rounded(pattern, kept):
    mask = pattern.mask(1 + 1e-12 * np.arange(8.0)[None], 0.5)
    assert np.flatnonzero(mask).tolist() == kept


@pytest.mark.parametrize(("first", "kept"), [([10, 1, 0, 0], "second"), ([10, 3, 0, 0], "first")])
def test_a_tile_is_worth_what_all_elements_that_it_keeps_are_worth(first, kept):
    scores = np.tile([*first, 6.0, 6, 0, 0], (4, 1))  # two tiles of 4 x 4
    mask = S.TileHybrid((4, 4)).mask(scores, 0.75)
    want = scores == 6 if kept == "second" else (scores > 0) & (scores != 6)
    np.testing.assert_array_equal(mask, want)


@pytest.mark.parametrize("empty", [True, False])
def test_a_dense_tile_is_worth_its_smaller_half_too(empty):
    scores = np.tile([20, 9, 3, 1, 9, 9, 2.5, 2.5], (4, 1))
    mask = S.TileHybrid((4, 4), empty=empty).mask(scores, 0.25)
    assert mask[0].tolist() == [True, True, False, False, True, True, True, True]


@pytest.mark.parametrize("shape", [(8, 16), (2, 3, 16)])
def test_a_layer_of_one_tile_has_one_level(shape, rng):
    pattern, scores = S.Elastic(tile=None), np.abs(rng.normal(size=shape))
    for sparsity, n in ((0.3, 3), (0.5, 2), (0.7, 2), (0.75, 1)):
        mask = pattern.mask(scores, sparsity)
        np.testing.assert_array_equal(mask, S.NM(n, 4).mask(scores, 1 - n / 4))
        assert mask.sum() == pattern.kept(shape, sparsity)
