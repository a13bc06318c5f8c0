"""Growers: how much they replace, and by which scores."""

from __future__ import annotations

import numpy as np
import pytest

from sparse24 import schedule as S
from sparse24._errors import ArgumentError
from sparse24._schedule.patterns import Turnover


@pytest.mark.parametrize(
    "pattern",
    [S.Unstructured(), S.NM(2, 4, 0), S.Block((2, 4)), S.Block((1, 3)), S.Channel(0), S.Channel(1)],
)
def test_a_grower_sees_the_units_that_a_mask_was_made_of(pattern, rng):
    scores = rng.normal(size=(8, 12))
    chosen = pattern.choose(pattern.pool(scores), 0.5)
    np.testing.assert_array_equal(pattern.units_of(pattern.expand(chosen, (8, 12))), chosen)


def test_growth_replaces_a_share_of_what_is_kept():
    """Of fewer than were in use, half; of more, at least those that were not in use before."""
    best_last, best_first = np.arange(10.0), -np.arange(10.0)
    for active, kept in ((best_last < 8, [0, 1, 6, 7]), (best_last > 7, [0, 1, 8, 9])):
        turnover = Turnover(active, best_first, 0.5)
        chosen = S.Unstructured().choose(best_last, 0.6, turnover)
        assert np.flatnonzero(chosen).tolist() == kept


def test_the_share_falls_on_a_cosine_to_nothing():
    grower = S.GradientGrowth(0.3, stop=12)
    assert [grower.share(step) for step in (0, 4, 6)] == pytest.approx([0.3, 0.225, 0.15])
    assert [grower.share(step) for step in (12, 13, 100)] == [0, 0, 0]
    assert S.GradientGrowth(0.3).share(100) == 0.3


def test_a_share_falls_from_the_first_step_on():
    assert S.RandomGrowth(0.3, stop=1).share(0) == 0.3
    with pytest.raises(ArgumentError, match="stop must be a whole number from 1 on, got 0"):
        S.RandomGrowth(0.3, stop=0)
    for fraction in (-0.1, 1.1):
        with pytest.raises(ArgumentError, match=f"fraction .*got {fraction}"):
            S.RandomGrowth(fraction)


@pytest.mark.parametrize(("beta", "grown"), [(0.5, 6), (0.9, 4), (0.0, 5)])
def test_momentum_is_a_running_mean_of_signed_gradients(beta, grown):
    """The last four weights are pruned, of which one grows by both gradients."""
    recipe = S.Recipe(
        S.ConstantScheduler(0.5, every=1), grower=S.MomentumGrowth(0.25, beta=beta),
    )  # fmt: skip
    scheduler = S.MaskScheduler(recipe)
    weights = {"w": np.array([[8.0, 7, 6, 5, 4, 3, 2, 1]])}
    for gradient in ([0, 0, 0, 0, 8, 0, -2.5, 0], [0, 0, 0, 0, -2, 2.6, -2.5, 0]):
        masks = scheduler.step(weights=weights, gradients={"w": np.array([gradient])})
    assert np.flatnonzero(masks["w"]).tolist() == [0, 1, 2, grown]


def assert_same_masks(first, second):
    for name, mask in first.items():
        np.testing.assert_array_equal(np.asarray(mask), np.asarray(second[name]))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_draws_need_no_arrays(rng, library):
    """Those who read neither weights nor gradients need not be given any."""
    convert = np.asarray if library == "numpy" else pytest.importorskip("torch").as_tensor
    weights = {name: convert(rng.normal(size=(8, 16))) for name in ("a", "b")}
    every_step = S.ConstantScheduler(0.5, every=1)
    for recipe in (
        S.Recipe(every_step, S.RandomScores()),
        S.Recipe(every_step, S.Accumulated(S.RandomScores())),
        S.Recipe(every_step, S.GivenScores(weights), grower=S.RandomGrowth(0.5)),
    ):
        given, bare = S.MaskScheduler(recipe), S.MaskScheduler(recipe)
        bare.start(weights)
        background = S.AsyncScheduler(recipe, weights, delay=0, background=False)
        for _ in range(3):
            masks = given.step(weights=weights)
            assert_same_masks(masks, bare.step())
            assert_same_masks(masks, background.step())


@pytest.mark.parametrize("pattern", [S.Unstructured(), S.NM(), S.Block((2, 2))], ids=repr)
@pytest.mark.parametrize("overflow", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("everywhere", [True, False])
def test_a_gradient_that_overflowed_grows_nothing(pattern, overflow, everywhere, rng):
    """A loss scaler skips such a step; growth by NaN would choose the first weights."""
    recipe = S.Recipe(
        S.ConstantScheduler(0.5, every=1), pattern=pattern, grower=S.GradientGrowth(0.5)
    )
    weights, gradients = ({"w": rng.normal(size=(8, 16)).astype(np.float32)} for _ in range(2))
    bad = gradients["w"].copy()
    bad[... if everywhere else (3, 5)] = overflow
    scheduler = S.MaskScheduler(recipe)
    before = scheduler.step(weights=weights, gradients=gradients)["w"]
    np.testing.assert_array_equal(
        scheduler.step(weights=weights, gradients={"w": bad})["w"], before
    )
    after = scheduler.step(weights=weights, gradients=gradients)["w"]
    assert (after != before).any()
    assert after.sum() == before.sum()
