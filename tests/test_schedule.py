"""Schedules, patterns, distributions, core: exact targets and counts; frozen is frozen."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparse24 as s24
from sparse24 import schedule as S
from sparse24._errors import ArgumentError, PatternError, ShapeError
from sparse24._sched_patterns import _TRANSPOSABLE
from sparse24._spec import PAIRS
from sparse24.kernels import reference

RAMPS = (S.LinearScheduler, S.CubicScheduler, S.CosineScheduler)
share = st.floats(0, 1, allow_nan=False)


def layers(rng, **shapes):
    return {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}


def run(recipe, weights, steps, grads=None, seed=0):
    state = S.init(recipe, weights, seed=seed)
    for _ in range(steps):
        state, masks, events = S.step(state, weights, grads)
        yield state, masks, events


# schedules


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(RAMPS), share, share, st.integers(0, 50), st.integers(0, 50), st.integers(1, 60)
)
def test_ramps_are_exact_at_both_ends(kind, first, target, start, length, every):
    stop = start + length
    ramp = kind(target, first, start=start, stop=stop, every=every)
    assert ramp.updates(0)
    assert ramp.updates(stop)
    assert ramp.sparsity(stop) == target
    assert ramp.sparsity(stop + 1000) == target
    assert not any(ramp.updates(t) for t in range(stop + 1, stop + 2 * every) if t > 0)
    if length:
        assert ramp.sparsity(0) == ramp.sparsity(start) == first
    values = [ramp.sparsity(t) for t in range(stop + 2)]
    assert min(values) >= min(first, target) - 1e-12
    assert max(values) <= max(first, target) + 1e-12


def test_cubic_is_zhu_and_gupta():
    ramp = S.CubicScheduler(0.9, 0.1, start=10, stop=110, every=10)
    for t in range(10, 111, 10):
        want = 0.9 + (0.1 - 0.9) * (1 - (t - 10) / 100) ** 3
        assert ramp.sparsity(t) == pytest.approx(want, abs=1e-15)
        assert ramp.updates(t)


def test_phases_count_from_their_own_beginning():
    phases = S.dense_sparse_dense(0.5, start=10, stop=90, every=5)
    assert [phases.sparsity(t) for t in (0, 9, 10, 89, 90, 500)] == [0, 0, 0.5, 0.5, 0, 0]
    assert [t for t in range(30) if phases.updates(t)] == [0, 10, 15, 20, 25]
    assert phases.updates(90)
    with pytest.raises(ArgumentError, match="start < stop must hold"):
        S.dense_sparse_dense(0.5, start=10, stop=10)


def test_one_shot_and_steps():
    assert [S.OneShot(0.5, at=3).sparsity(t) for t in (0, 2, 3, 9)] == [0, 0, 0.5, 0.5]
    assert [t for t in range(9) if S.OneShot(0.5, at=3).updates(t)] == [0, 3]


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan, "x"])
def test_sparsity_out_of_range_is_named(bad):
    with pytest.raises(ArgumentError, match=r"target_sparsity must be .* \[0, 1\]"):
        S.CosineScheduler(bad)


@pytest.mark.parametrize("kind", [S.ConstantScheduler, S.LinearScheduler])
@pytest.mark.parametrize("every", [0, -1])
def test_updates_lie_at_least_a_step_apart(kind, every):
    with pytest.raises(ArgumentError, match=f"every must be at least 1, got {every}"):
        kind(0.5, every=every)


# patterns

PATTERNS = {
    "unstructured": S.Unstructured(),
    "elastic": S.Elastic((4, 16)),
    "tile-hybrid": S.TileHybrid((8, 8)),
    "block": S.Block((4, 4)),
    "rows": S.Channel(0),
    "columns": S.Channel(1),
}


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


@pytest.mark.parametrize(
    ("name", "part", "words"),
    [
        ("schedule", 0.5, r"schedule must be a Schedule .* such as OneShot\(0\.5\), got 0\.5"),
        ("criterion", "magnitude", r"such as Magnitude\(\), got 'magnitude'"),
        ("pattern", (2, 4), r"such as NM\(2, 4\), got \(2, 4\)"),
        ("distribution", S.ERK, "distribution must be a Distribution"),
        ("grower", None, "grower must be a Grower"),
        ("initial", "random", "initial must be a Criterion"),
    ],
)
def test_parts_of_another_kind_are_refused(name, part, words):
    with pytest.raises(ArgumentError, match=words):
        S.Recipe(**{name: part})


@pytest.mark.parametrize("rules", [None, "rigl", S.Recipe, {"*": "rigl"}, [S.Recipe()]])
def test_rules_are_recipes(rules):
    for make in (S.MaskScheduler, lambda rules: S.AsyncScheduler(rules, {"w": np.ones((4, 8))})):
        with pytest.raises(ArgumentError, match="rules must be a Recipe, or a mapping"):
            make(rules)


def test_a_name_pattern_fits_some_weight():
    weights = {"decoder.w": np.ones((4, 8)), "b": np.ones(4)}
    words = r"'encoder\.\*' fits none of the 2 .* 'decoder\.w', 'b'"
    with pytest.raises(ArgumentError, match=words):
        S.init({"encoder.*": S.Recipe()}, weights)
    assert not S.init({"encoder.*": None, "b": S.Recipe()}, weights).names


def test_a_block_has_two_sides_and_a_delay_is_whole():
    with pytest.raises(ArgumentError, match=r"tile must be \(rows, columns\).*got 4"):
        S.Block(4)
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


def test_transposable_is_optimal(rng):
    tiles = np.zeros((len(_TRANSPOSABLE), 4, 4))
    for t, rows in enumerate(_TRANSPOSABLE):
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
    with pytest.raises(PatternError, match=r"NM\(n=2, m=4\) has one sparsity, and ERK\(\) gives"):
        S.Recipe(S.OneShot(0.5), pattern=S.NM(2, 4), distribution=S.ERK())
    weight = np.arange(16.0).reshape(2, 8)
    masks = S.DynamicScheduler(0.5, S.OneShot(0.5), pattern=S.NM(2, 4)).step({"w": weight})
    assert masks["w"].sum() == 8
    with pytest.raises(PatternError, match=r"sparsity 0.8 is beyond Elastic"):
        S.Recipe(S.OneShot(0.8), pattern=S.Elastic())
    with pytest.raises(ShapeError, match=r"multiples of 32 by 32, got \(30, 32\)"):
        S.init(S.Recipe(pattern=S.Block()), {"w": np.zeros((30, 32))})


# distributions


@settings(deadline=None, max_examples=60)
@given(share, st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=6))
def test_erk_meets_the_total_exactly(sparsity, shapes):
    shapes = {str(i): s for i, s in enumerate(shapes)}
    sizes = {n: math.prod(s) for n, s in shapes.items()}
    shares = S.ERK().shares(sparsity, shapes, {})
    zeros = {n: round(shares[n] * sizes[n]) for n in shapes}
    assert sum(zeros.values()) == math.floor(round(sparsity * sum(sizes.values()), 6))
    assert all(0 <= shares[n] <= 1 for n in shapes)


def test_erk_follows_the_papers_density():
    shapes = {"a": (64, 64), "b": (64, 256)}
    shares = S.ERK().shares(0.9, shapes, {})
    ratio = (1 - shares["a"]) / (1 - shares["b"])
    assert ratio == pytest.approx((128 / 4096) / (320 / 16384), rel=2e-3)


def test_by_speedup_fills_the_best_layer_first():
    seconds = {"a": {0.0: 1.0, 0.5: 0.5, 0.9: 0.45}, "b": {0.0: 1.0, 0.5: 0.9}}
    shapes = {"a": (10, 10), "b": (10, 10)}
    assert S.BySpeedup(seconds).shares(0.25, shapes, {}) == {"a": 0.5, "b": 0.0}
    assert S.BySpeedup(seconds).shares(0.5, shapes, {}) == {"a": 0.5, "b": 0.5}


def test_custom_and_hierarchical():
    shapes = {"enc.a": (8, 8), "enc.b": (8, 24), "dec.a": (16, 16)}
    halved = S.Custom({"dec.*": 0.5}).shares(0.5, shapes, {})
    assert halved == {"enc.a": 0.5, "enc.b": 0.5, "dec.a": 0.25}
    outer = S.Custom(lambda s, blocks: {"enc": 0.25, "dec": 0.75})
    shares = S.Hierarchical(outer, S.ERK()).shares(0.5, shapes, {})
    assert shares["enc.a"] * 64 + shares["enc.b"] * 192 == pytest.approx(64)
    assert shares["dec.a"] == 0.75
    with pytest.raises(ArgumentError, match="rule must name the layers"):
        S.Custom(lambda s, shapes: {}).shares(0.5, shapes, {})


def test_adapters_keep_more_where_gradients_are_large(rng):
    weights = layers(rng, busy=(32, 32), calm=(32, 32))
    grads = {"busy": 10 * weights["busy"], "calm": 0.1 * weights["calm"]}
    scheduler = S.DynamicScheduler(0.3, S.CosineScheduler(0.6, stop=4))
    for t in range(6):
        masks = scheduler.step(grads, weights)
        zeros = {n: int((~m).sum()) for n, m in masks.items()}
        assert sum(zeros.values()) == math.floor(round(scheduler.scheduler.sparsity(t) * 2048, 6))
        assert zeros["busy"] < zeros["calm"]
        assert abs(zeros["busy"] / 1024 - scheduler.sparsity) <= 0.2 + 1e-3


@pytest.mark.parametrize("distribution", [S.Adaptive(), S.ERK(), S.Hierarchical(S.Uniform())])
@pytest.mark.parametrize(
    ("pattern", "target"),
    [(S.Elastic((4, 16)), 0.7), (S.Elastic((4, 16), least=2), 0.45), (S.TileHybrid((8, 16)), 0.9)],
)
def test_layers_stay_within_what_the_pattern_reaches(distribution, pattern, target, rng):
    """Gradients of very different size pull the layers apart, but not beyond the pattern."""
    weights = layers(rng, **{"x.a": (16, 64), "x.b": (16, 64), "x.c": (64, 128)})
    grads = {n: w * (100.0 if n == "x.a" else 1e-3) for n, w in weights.items()}
    ramp = S.CosineScheduler(target, stop=4)
    scheduler = S.MaskScheduler(S.Recipe(ramp, pattern=pattern, distribution=distribution))
    for t in range(6):
        masks = scheduler.step(grads, weights)
        zeros = sum(int((~m).sum()) for m in masks.values())
        size = sum(m.size for m in masks.values())
        unit = math.prod(pattern.tile) // 2  # a layer rounds down by less than a unit
        assert ramp.sparsity(t) * size - 3 * unit - 1 < zeros <= ramp.sparsity(t) * size + 1e-9
        assert all((~m).mean() <= pattern.most for m in masks.values())


def test_by_speedup_stays_within_what_the_pattern_reaches():
    seconds = {name: {0.0: 1.0, 1.0: 0.1} for name in "ab"}
    shares = S.BySpeedup(seconds).shares(0.5, {"a": (8, 8), "b": (8, 8)}, {}, 0.75)
    assert shares == {"a": 0.75, "b": 0.25}


def test_budgets_of_blocks_do_not_look_at_gradients():
    with pytest.raises(ArgumentError, match="Adaptive does; use it as inner"):
        S.Hierarchical(outer=S.Adaptive())


# core


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_events_tell_the_exact_count_at_every_update(pattern, rng):
    weights = layers(rng, a=(32, 64), b=(64, 32))
    recipe = S.Recipe(S.CubicScheduler(0.7, 0.1, start=2, stop=9, every=3), pattern=pattern)
    steps = []
    for _, masks, events in run(recipe, weights, 12):
        for event in events:
            steps.append(event.step)
            assert masks[event.name].sum() == event.nnz
            assert event.nnz == pattern.kept(
                (32, 64) if event.name == "a" else (64, 32), event.sparsity
            )
    assert sorted(set(steps)) == [0, 2, 5, 8, 9]


def test_dynamic_scheduler_from_gradients_alone(rng):
    scheduler = S.DynamicScheduler(init_sparsity=0.3)
    masks = scheduler.step([rng.normal(size=(10, 10)), rng.normal(size=(20, 5))])
    assert set(masks) == {"0", "1"}
    assert sum((~m).sum() for m in masks.values()) == 60
    weights = [np.ones((10, 10)), np.ones((20, 5))]
    sparse = S.apply_masks(weights, masks)
    assert sum(w.sum() for w in sparse) == 140


def test_rules_by_name_and_dense_layers(rng):
    weights = layers(rng, **{"enc.w": (8, 8), "enc.b": (8,), "head.w": (8, 8), "dec.w": (8, 8)})
    rules = {"head.*": None, "enc.*": S.Recipe(S.OneShot(0.5)), "*": S.Recipe(S.OneShot(0.25))}
    masks = S.MaskScheduler(rules).step(weights=weights)
    assert {n: int(m.sum()) for n, m in masks.items()} == {"enc.w": 32, "dec.w": 48}
    applied = S.apply_masks(weights, masks)
    assert applied["head.w"] is weights["head.w"]


def test_shared_and_coupled_masks(rng):
    weights = layers(rng, a=(8, 16), b=(8, 16), fc1=(12, 8), fc2=(6, 12))
    shared = S.Recipe(S.OneShot(0.5), pattern=S.NM(), shared=(("a", "b"),))
    coupled = S.Recipe(S.OneShot(0.5), pattern=S.Channel(), coupled=((("fc1", 0), ("fc2", 1)),))
    masks = S.MaskScheduler({"fc*": coupled, "*": shared}).step(weights=weights)
    np.testing.assert_array_equal(masks["a"], masks["b"])
    want = S.NM().mask(np.abs(weights["a"]) + np.abs(weights["b"]), 0.5)
    np.testing.assert_array_equal(masks["a"], want)
    np.testing.assert_array_equal(masks["fc1"][:, 0], masks["fc2"][0])
    assert masks["fc1"].any(1).sum() == 6


def test_frozen_means_frozen(rng):
    weights = layers(rng, w=(16, 16))
    scheduler = S.DynamicScheduler(0.3, S.CosineScheduler(0.6, stop=10), adapter=None)
    before = scheduler.step(weights=weights)["w"]
    scheduler.freeze()
    for _ in range(5):
        weights["w"] = rng.normal(size=(16, 16))
        np.testing.assert_array_equal(scheduler.step(weights=weights)["w"], before)
        assert not scheduler.events
    scheduler.thaw()
    after = scheduler.step(weights=weights)["w"]
    assert (~after).sum() == math.floor(scheduler.scheduler.sparsity(6) * 256)


def test_a_ramp_that_ends_while_frozen_arrives_after_it(rng):
    weights = layers(rng, w=(16, 16))
    scheduler = S.DynamicScheduler(0.3, S.CosineScheduler(0.6, stop=6), adapter=None)
    for t in range(12):
        if t == 3:
            scheduler.freeze()
        if t == 9:
            scheduler.thaw()
            other = S.DynamicScheduler(0.3, S.CosineScheduler(0.6, stop=6), adapter=None)
            other.load_state_dict(scheduler.state_dict())
            resumed = other.step(weights=weights)["w"]
        mask = scheduler.step(weights=weights)["w"]
        assert bool(scheduler.events) == (t < 3 or t == 9)
        if t == 9:
            assert (~mask).sum() == math.floor(0.6 * 256)
            np.testing.assert_array_equal(mask, resumed)


def test_step_is_pure(rng):
    weights = layers(rng, w=(16, 16))
    grads = layers(rng, w=(16, 16))
    kept = weights["w"].copy()
    recipe = S.Recipe(S.CosineScheduler(0.5, stop=5), criterion=S.Accumulated(S.Movement()))
    state = S.init(recipe, weights)
    first, _, _ = S.step(state, weights, grads)
    again, _, _ = S.step(state, weights, grads)
    assert state.step == 0
    assert state.masks["w"].all()
    np.testing.assert_array_equal(weights["w"], kept)
    np.testing.assert_array_equal(first.masks["w"], again.masks["w"])


def test_micro_batches_add_up(rng):
    weights = layers(rng, w=(8, 8))
    parts = [layers(rng, w=(8, 8)) for _ in range(3)]
    scheduler = S.MaskScheduler(S.Recipe(S.OneShot(0.5), S.Accumulated(S.GradientMagnitude())))
    scheduler.observe(parts[0], weights)
    scheduler.observe(parts[1], weights)
    mask = scheduler.step(parts[2], weights)["w"]
    want = S.Unstructured().mask(sum(np.abs(p["w"]) for p in parts), 0.5)
    np.testing.assert_array_equal(mask, want)


def test_criteria_and_given_scores(rng):
    weights, grads = layers(rng, w=(4, 8)), layers(rng, w=(4, 8))
    given_scores = rng.normal(size=(4, 8))
    for criterion, scores in [
        (S.Magnitude(), np.abs(weights["w"])),
        (S.GradientMagnitude(), np.abs(grads["w"])),
        (S.Taylor(), np.abs(weights["w"] * grads["w"])),
        (S.Movement(), -weights["w"] * grads["w"]),
        (S.GivenScores({"w": given_scores}), given_scores),
    ]:
        recipe = S.Recipe(S.OneShot(0.5), criterion)
        mask = S.MaskScheduler(recipe).step(grads, weights)["w"]
        np.testing.assert_array_equal(mask, S.Unstructured().mask(scores, 0.5))
    with pytest.raises(ArgumentError, match="Magnitude needs the weight of layer 'w'"):
        S.MaskScheduler(S.Recipe(S.OneShot(0.5))).step(grads)


def test_reduce_makes_ranks_agree(rng):
    total = rng.normal(size=(2, 8, 8))
    recipe = S.Recipe(S.OneShot(0.5), S.GradientMagnitude())
    ranks = [S.MaskScheduler(recipe, reduce=lambda _: np.abs(total).sum(0)) for _ in total]
    masks = [r.step({"w": g}) for r, g in zip(ranks, total, strict=True)]
    np.testing.assert_array_equal(masks[0]["w"], masks[1]["w"])


def test_apply_masks_refuses_other_shapes():
    with pytest.raises(ShapeError, match="a mask must have its weight's shape"):
        S.apply_masks(np.zeros((2, 3)), np.ones((3, 2), bool))
    with pytest.raises(ArgumentError, match="masks must be as many as weights"):
        S.apply_masks([np.zeros(2)], [])


def test_tile_hybrid_masks_feed_the_hybrid_format(rng):
    weight = rng.normal(size=(128, 256)).astype(np.float32)
    recipe = S.Recipe(S.OneShot(0.6), pattern=S.TileHybrid((64, 64)))
    masked = S.apply_masks({"w": weight}, S.MaskScheduler(recipe).step(weights={"w": weight}))["w"]
    stored = s24.hybrid(masked)
    np.testing.assert_array_equal(stored.toarray(), masked)
    x = rng.normal(size=(256, 3)).astype(np.float32)
    np.testing.assert_allclose(stored @ x, masked @ x, rtol=1e-4, atol=1e-4)
