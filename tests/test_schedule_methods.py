"""Methods against the rules of their papers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sparse24 import schedule as S
from sparse24._errors import ArgumentError, ShapeError
from sparse24._schedule.largest import top, top_in_rows


def test_gradual_magnitude_keeps_the_largest(rng):
    weights = {"w": rng.normal(size=(20, 30))}
    scheduler = S.MaskScheduler(S.gradual_magnitude(0.8, start=10, stop=50, every=10))
    for t in range(60):
        mask = scheduler.step(weights=weights)["w"]
        if t < 10:
            assert mask.all()
    kept, dropped = np.abs(weights["w"][mask]), np.abs(weights["w"][~mask])
    assert mask.sum() == 120
    assert kept.min() > dropped.max()


def test_rigl_drops_small_weights_and_grows_large_gradients(rng):
    weights = {"w": rng.normal(size=(30, 40))}
    recipe = S.rigl(0.8, total_steps=100, every=10)
    scheduler = S.MaskScheduler(recipe)
    old = scheduler.step(weights=weights, gradients={"w": np.ones((30, 40))})["w"]
    for t in range(1, 101):
        slopes = {"w": rng.normal(size=(30, 40))}
        new = scheduler.step(weights=weights, gradients=slopes)["w"]
        assert new.sum() == 240
        if t % 10 or t > 75:
            np.testing.assert_array_equal(new, old)
        else:
            count = math.floor(round(0.15 * (1 + math.cos(math.pi * t / 75)) * 240, 6))
            magnitude = np.where(old, np.abs(weights["w"]), -1)
            survivors = S.Unstructured().mask(magnitude, 1 - (240 - count) / 1200)
            growth = np.where(survivors, -1, np.abs(slopes["w"]))
            grown = S.Unstructured().mask(growth, 1 - count / 1200) if count else survivors & False
            np.testing.assert_array_equal(new, survivors | grown)
        old = new


def test_rigl_starts_at_random_with_erk(rng):
    weights = {"a": rng.normal(size=(16, 16)), "b": rng.normal(size=(64, 64))}
    grads = {n: np.ones_like(w) for n, w in weights.items()}
    masks = [
        S.MaskScheduler(S.rigl(0.9, total_steps=10), seed=seed).step(
            weights=weights, gradients=grads
        )
        for seed in (1, 1, 2)
    ]
    assert sum(int(m.sum()) for m in masks[0].values()) == 4352 - math.floor(0.9 * 4352)
    np.testing.assert_array_equal(masks[0]["b"], masks[1]["b"])
    assert (masks[0]["b"] != masks[2]["b"]).any()


def test_rigl_with_a_fixed_pattern_stays_in_it(rng):
    weights = {"w": rng.normal(size=(8, 32))}
    scheduler = S.MaskScheduler(S.rigl(0.5, total_steps=8, every=1, pattern=S.NM()))
    masks = [
        scheduler.step(weights=weights, gradients={"w": rng.normal(size=(8, 32))})["w"]
        for _ in range(5)
    ]
    assert all((mask.reshape(8, 8, 4).sum(-1) == 2).all() for mask in masks)
    assert (masks[0] != masks[1]).any()


def test_growing_from_dense_keeps_the_largest_of_each_group(rng):
    weights = {"w": rng.normal(size=(4, 32))}
    recipe = S.Recipe(S.OneShot(0.5, at=1), pattern=S.NM(), grower=S.GradientGrowth(0.0))
    scheduler = S.MaskScheduler(recipe)
    for _ in range(2):
        mask = scheduler.step(weights=weights, gradients={"w": rng.normal(size=(4, 32))})["w"]
    np.testing.assert_array_equal(mask, S.NM().mask(np.abs(weights["w"]), 0.5))


def test_where_sparsity_falls_the_largest_gradients_come_back(rng):
    weights, gradients = {"w": rng.normal(size=(4, 16))}, {"w": np.arange(64.0).reshape(4, 16)}
    falling = S.StepScheduler({0: 0.75, 1: 0.5})
    scheduler = S.MaskScheduler(S.Recipe(falling, grower=S.GradientGrowth(0.0)))
    old, new = (scheduler.step(weights=weights, gradients=gradients)["w"] for _ in range(2))
    rest = np.where(old, -1, gradients["w"])
    np.testing.assert_array_equal(new, old | (rest >= np.sort(rest, axis=None)[-16]))


def test_set_turns_over_a_fixed_share(rng):
    weights = {"w": rng.normal(size=(20, 50))}
    scheduler = S.MaskScheduler(S.sparse_evolutionary(0.5, every=1, fraction=0.2))
    old = scheduler.step(weights=weights)["w"]
    for _ in range(5):
        new = scheduler.step(weights=weights)["w"]
        assert new.sum() == 500
        survivors = old & (np.abs(weights["w"]) >= np.sort(np.abs(weights["w"][old]))[100])
        assert (new & survivors).sum() == survivors.sum() == 400
        old = new


def test_sr_ste_gradient_is_equation_5(rng):
    w, g = rng.normal(size=(4, 8)), rng.normal(size=(4, 8))
    mask = S.MaskScheduler(S.sr_ste()).step(weights={"w": w})["w"]
    assert (mask.reshape(4, 2, 4).sum(-1) == 2).all()
    got = S.sr_ste_gradient(w, g, mask, decay=0.1)
    np.testing.assert_allclose(got, g + 0.1 * (1 - mask) * w)
    narrow, nothing = w.astype(np.float16), np.zeros((4, 8), np.float32)
    got = S.sr_ste_gradient(narrow, nothing, mask, decay=2e-4)  # in the wider type throughout
    want = np.float32(2e-4) * ~mask * narrow.astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    for gradient, of in ((g[:1], mask), (g, mask[:, :1])):
        with pytest.raises(ShapeError, match="must have the shape of weight"):
            S.sr_ste_gradient(w, gradient, of)


def test_iterative_pruning_and_the_rewound_rate(rng):
    recipe = S.iterative_magnitude(share=0.2, rounds=3, steps_per_round=5)
    weights = {"w": rng.normal(size=(10, 100))}
    counts = []
    scheduler = S.MaskScheduler(recipe)
    for _ in range(20):
        counts.append(int(scheduler.step(weights=weights)["w"].sum()))
    assert counts == [1000] * 5 + [800] * 5 + [640] * 5 + [512] * 5
    rate = S.RewoundRate(lambda t: 10 - t, train_steps=10, rewind_steps=3)
    assert [rate(t) for t in range(16)] == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1] + [3, 2, 1] * 2


def test_the_rate_goes_back_where_weights_are_pruned():
    recipe = S.iterative_magnitude(share=0.5, rounds=3, steps_per_round=3, train_steps=10)
    rate = S.RewoundRate(lambda t: 10 - t, train_steps=10, rewind_steps=3)
    pruned = [t for t in range(1, 19) if recipe.schedule.updates(t)]
    assert pruned == [t for t in range(1, 19) if rate(t) > rate(t - 1)] == [10, 13, 16]
    assert [recipe.schedule.sparsity(t) for t in (9, 10, 13, 16)] == [0.0, 0.5, 0.75, 0.875]
    with pytest.raises(ArgumentError, match="train_steps must be a whole number from 1 on"):
        S.iterative_magnitude(rounds=1, steps_per_round=1, train_steps=0)


@pytest.mark.parametrize("keep", [0, 1, 5, 8])
def test_top_of_each_row_is_the_top_of_a_row(rng, keep):
    scores = np.round(rng.normal(size=(20, 8)), 1)  # with ties
    scores[0, :2] = np.inf
    places = np.argsort(-scores, axis=-1, kind="stable")[:, :keep]
    want = np.zeros(scores.shape, bool)
    np.put_along_axis(want, places, True, axis=-1)
    np.testing.assert_array_equal(top_in_rows(scores, keep), want)
    np.testing.assert_array_equal([top(row, keep) for row in scores], want)


def test_targeted_dropout_only_drops_candidates(rng):
    w = rng.normal(size=(50, 64))
    candidates = np.abs(w) < np.sort(np.abs(w), axis=1)[:, 32:33]
    masks = [S.targeted_dropout(w, share=0.5, rate=0.3, step=t) for t in range(20)]
    assert all(m[~candidates].all() for m in masks)
    assert 1 - np.mean([m[candidates].mean() for m in masks]) == pytest.approx(0.3, abs=0.01)
    full = S.targeted_dropout(w, share=0.5, rate=1.0, step=0, pattern=S.NM())
    np.testing.assert_array_equal(full, S.NM().mask(np.abs(w), 0.5))


def test_decay_factor_search_picks_the_window():
    search = S.DecayFactorSearch((1e-5, 1e-4, 1e-3), steps_each=3)
    trials = []
    while not search.done:
        trials.append(search.trial)
        search.feed({0.0: 0.2, 1e-5: 0.199, 1e-4: 0.15, 1e-3: 0.01}[search.trial])
    assert trials == [0.0] * 3 + [1e-5] * 3 + [1e-4] * 3 + [1e-3] * 3
    assert search.factor == search.trial == 1e-4
    assert search.ratios[1e-4] == pytest.approx(0.75)
    with pytest.raises(ArgumentError, match="flip_rate must be a number"):
        search.feed(math.nan)


def test_decay_factor_search_needs_masks_that_flip():
    search = S.DecayFactorSearch((1e-5, 1e-4), steps_each=1)
    for _ in range(3):
        search.feed(0.0)
    with pytest.raises(ArgumentError, match=r"without decay those were all 0; renew masks"):
        search.factor  # noqa: B018


def test_soft_threshold_is_continuous_and_two_four(rng):
    w = rng.normal(size=(8, 32))
    soft = S.soft_threshold_24(w)
    assert ((soft.reshape(8, 8, 4) != 0).sum(-1) <= 2).all()
    size = np.abs(w).reshape(8, 8, 4)
    second = np.sort(size, axis=-1)[..., 1:2]
    np.testing.assert_allclose(np.abs(soft).reshape(8, 8, 4), np.maximum(size - second, 0))
    # Swapping two elements' order by an epsilon moves the result by an epsilon.
    a, b = np.array([[1.0, 0.5, 0.5 + 1e-9, 0.1]]), np.array([[1.0, 0.5 + 1e-9, 0.5, 0.1]])
    assert np.abs(S.soft_threshold_24(a) - S.soft_threshold_24(b)).max() < 1e-8
    scale = float(S.soft_threshold_scale(w))
    errors = [np.sum((w - s * soft) ** 2) for s in (scale - 1e-3, scale, scale + 1e-3)]
    assert errors[1] == min(errors)
    assert float(S.soft_threshold_scale(np.zeros((1, 4)))) == 1.0


@pytest.mark.parametrize("wrong", [np.ones(3), np.ones((8, 1)), np.ones((1, 1))])
def test_a_factor_is_one_number(wrong, rng):
    """One for each row would be multiplied with whatever group it meets."""
    w = rng.normal(size=(8, 32))
    for one in (2.0, np.float32(2), np.array(2.0), np.array([2.0])):
        np.testing.assert_array_equal(S.soft_threshold_24(w, one), 2 * S.soft_threshold_24(w))
    with pytest.raises(ShapeError, match=r"scale must be a number, or an array of one, got shape"):
        S.soft_threshold_24(w, wrong)
    with pytest.raises(ShapeError, match=r"decay must be a number, or an array of one, got shape"):
        S.sr_ste_gradient(w, w, w > 0, decay=wrong)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0])
def test_a_decay_is_refused_as_in_the_layers(wrong, rng):
    w = rng.normal(size=(8, 32))
    with pytest.raises(ArgumentError, match=f"decay must be at least 0 and finite, got {wrong}"):
        S.sr_ste_gradient(w, w, w > 0, decay=wrong)
    assert S.sr_ste_gradient(w, w, w > 0, decay=np.array(wrong)).shape == w.shape  # is not read


def test_mvue_is_unbiased_two_four_and_of_least_variance(rng):
    g = rng.normal(size=(4, 16)).astype(np.float32)
    g[0, :4] = [3, 0, 0, 0]
    g[0, 4:8] = [10, 1, 1, 1]
    g[1, :4] = 0
    draws = np.stack([S.mvue_24(g, step=t) for t in range(4000)]).astype(np.float64)
    assert ((draws.reshape(4000, 4, 4, 4) != 0).sum(-1) <= 2).all()
    error = draws.std(0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(0) - g) <= 5 * error + 1e-6).all()
    np.testing.assert_array_equal(draws[:, 0, 0], 3)
    np.testing.assert_array_equal(draws[:, 0, 4], 10)  # capped: always kept
    # Without a cap the variance of the optimum is |g_i| (sum |g| / 2 - |g_i|).
    groups = np.abs(g.astype(np.float64)).reshape(4, 4, 4)
    free = 2 * groups.max(-1) < groups.sum(-1)
    want = groups * (groups.sum(-1, keepdims=True) / 2 - groups)
    got = draws.var(0).reshape(4, 4, 4)
    np.testing.assert_allclose(got[free], want[free], rtol=0.15, atol=0.02)


def test_transition_and_optimizer_slots():
    old, new = np.array([True, True, False, False]), np.array([True, False, True, False])
    weight = np.arange(1.0, 5.0)
    assert S.transition(weight, old, new, grown="zero").tolist() == [1, 2, 0, 4]
    assert S.transition(weight, old, new).tolist() == [1, 2, 3, 4]
    others = ("exp_avg_sq", "acc_delta", "sum_of_squares", "exp_inf", "exp_avg_var", "ax", "z")
    slots = {"exp_avg": np.ones(4), "step": 7} | {name: np.ones(4) for name in others}
    slots["state1"] = np.ones(4, np.uint8)  # codes
    for policy, want in {
        "keep": [1, 1, 1, 1],
        "zero_dropped": [1, 0, 1, 1],
        "zero_grown": [1, 1, 0, 1],
        "zero_changed": [1, 0, 0, 1],
    }.items():
        after = S.mask_slots(slots, old, new, policy=policy)
        assert after["exp_avg"].tolist() == want
        assert all(after[name].tolist() == [1, 1, 1, 1] for name in (*others, "state1"))
        assert after["step"] == 7


@pytest.mark.parametrize(
    "name", ["Adam", "Adamax", "NAdam", "RMSprop", "Adagrad", "Adadelta", "Rprop", "ASGD"]
)
def test_no_optimizer_stalls_weights_whose_mask_changed(name):
    torch = pytest.importorskip("torch")
    moved = []
    for policy in ("keep", "zero_changed"):
        weight = torch.nn.Parameter(torch.ones(8))
        optimizer = getattr(torch.optim, name)([weight])
        for _ in range(20):
            weight.grad = torch.ones(8)
            optimizer.step()
        old, new = torch.ones(8, dtype=torch.bool), torch.arange(8) < 4
        optimizer.state[weight] = S.mask_slots(optimizer.state[weight], old, new, policy=policy)
        before = weight.detach().clone()
        for _ in range(5):
            optimizer.step()
        moved.append((before - weight.detach()).abs())
    assert (moved[1] >= moved[0] / 5).all()
    assert (moved[1] <= moved[0] * 5).all()


def test_an_average_of_weights_is_none_of_what_is_cleared():
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.ASGD([weight])
    weight.grad = torch.ones(8)
    optimizer.step()
    old, new = torch.ones(8, dtype=torch.bool), torch.arange(8) < 4
    after = S.mask_slots(optimizer.state[weight], old, new)
    torch.testing.assert_close(after["ax"], weight.detach(), rtol=0.1, atol=0)


@pytest.mark.parametrize("shape", [(1, 8), (8, 1)])
def test_means_of_squares_of_rows_and_columns_stay(shape):
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.ones(shape))
    optimizer = torch.optim.Adafactor([weight])
    weight.grad = torch.arange(1.0, 9).reshape(shape)
    optimizer.step()
    old = torch.ones(shape, dtype=torch.bool)
    after = S.mask_slots(optimizer.state[weight], old, torch.arange(8).reshape(shape) < 4)
    for name in ("row_var", "col_var"):  # one of which has the shape of the mask
        assert (after[name] > 0).all()


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_given_integers_beyond_float32_are_told_apart(name):
    """As ranks of the weights of a large layer are."""
    xp = pytest.importorskip(name)
    ranks = 2**24 + np.array([[0, 1, 8, -8], [8, -8, 4, 5]])
    scheduler = S.MaskScheduler(
        S.Recipe(S.OneShot(0.5), S.GivenScores({"w": xp.asarray(ranks)}), S.NM(2, 4))
    )
    mask = scheduler.step(weights={"w": xp.ones((2, 4))})["w"]
    assert mask.tolist() == [[False, True, True, False], [True, False, False, True]]
