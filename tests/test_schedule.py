"""Schedules and recipes: exact targets at every step, and what they refuse."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_cases import SHARE

from sparse24 import schedule as S
from sparse24._errors import ArgumentError, ShapeError

RAMPS = (S.LinearScheduler, S.CubicScheduler, S.CosineScheduler)


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(RAMPS), SHARE, SHARE, st.integers(0, 50), st.integers(0, 50), st.integers(1, 60)
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


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan, "x", "0.5"])
def test_sparsity_out_of_range_is_named(bad):
    with pytest.raises(ArgumentError, match=r"target_sparsity must be .* \[0, 1\]"):
        S.CosineScheduler(bad)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (S.OneShot, "target_sparsity"),
        (S.sparse_evolutionary, "sparsity"),
        (lambda sparsity: S.rigl(sparsity, total_steps=10), "sparsity"),
    ],
)
def test_a_sparsity_is_named_as_the_caller_did(make, name):
    with pytest.raises(ArgumentError, match=rf"^{name} must be in \[0, 1\], got 1\.1"):
        make(1.1)


@pytest.mark.parametrize("kind", [S.ConstantScheduler, S.LinearScheduler])
@pytest.mark.parametrize("every", [0, -1])
def test_updates_lie_at_least_a_step_apart(kind, every):
    with pytest.raises(ArgumentError, match=f"every must be a whole number from 1 on, got {every}"):
        kind(0.5, every=every)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda t: S.OneShot(0.5, at=t), "at"),
        (lambda t: S.StepScheduler({t: 0.5}), "a milestone"),
        (lambda t: S.CubicScheduler(0.5, stop=t), "stop"),
        (lambda t: S.CubicScheduler(0.5, start=t), "start"),
        (lambda t: S.ConstantScheduler(0.5, every=t), "every"),
        (lambda t: S.ConstantScheduler(0.5, every=1, stop=t), "stop"),
        (lambda t: S.Phases([(t, S.ConstantScheduler(0.5))]), "the length of a phase"),
        (lambda t: S.dense_sparse_dense(0.5, 2, t), "stop"),
        (lambda t: S.iterative_magnitude(rounds=t, steps_per_round=2), "rounds"),
        (lambda t: S.iterative_magnitude(rounds=2, steps_per_round=t), "steps_per_round"),
        (lambda t: S.GradientGrowth(0.3, stop=t), "stop"),
    ],
)
def test_a_step_that_training_never_meets_is_refused(make, words):
    make(np.int64(9))
    with pytest.raises(ArgumentError, match=rf"{words} must be a whole number .* got 9\.5"):
        make(9.5)


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


@pytest.mark.parametrize(
    "rules", [None, "rigl", S.Recipe, {"*": "rigl"}, [S.Recipe()], S.OneShot(0.5)]
)
def test_rules_are_recipes(rules):
    for make in (S.MaskScheduler, lambda rules: S.AsyncScheduler(rules, {"w": np.ones((4, 8))})):
        with pytest.raises(ArgumentError, match=r"rules must be a Recipe, or .*; of a schedule"):
            make(rules)


def test_a_name_pattern_fits_some_weight():
    weights = {"decoder.w": np.ones((4, 8)), "b": np.ones(4)}
    words = r"'encoder\.\*' fits none of the 2 .* 'decoder\.w', 'b'"
    with pytest.raises(ArgumentError, match=words):
        S.init({"encoder.*": S.Recipe()}, weights)
    assert S.init({"encoder.*": None, "*": S.Recipe()}, weights).names == ("decoder.w",)
    assert not S.init({"*": None}, weights).names


def test_a_recipe_has_a_layer_to_mask():
    for weights in ({"b": np.ones(4)}, {"b": np.ones(4), "empty": np.ones((0, 8))}):
        with pytest.raises(
            ShapeError, match=r"two axes or more .* got ndarray of shape \(4,\) for '"
        ):
            S.MaskScheduler(S.Recipe()).step(weights=weights)
    assert not S.init(S.Recipe(), {"empty": np.ones((0, 8))}).names


def test_a_warning_that_a_filter_raises_leaves_all_rows_recorded():
    telemetry = S.Telemetry(flip_limit=0.1)
    recipe = S.Recipe(S.ConstantScheduler(0.5, every=1))
    scheduler = S.MaskScheduler(recipe, telemetry=telemetry)
    rising = np.arange(16.0).reshape(4, 4)
    scheduler.step(weights={"a": rising, "b": rising})
    with pytest.warns(S.MaskWarning, match=r"100.0% of the mask flipped at step 1") as told:
        scheduler.step(weights={"a": -rising + 16, "b": rising})
    assert [warning.filename for warning in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(S.MaskWarning, match=r"a: 100.0% of the mask flipped at step 2"):
            scheduler.step(weights={"a": rising, "b": -rising + 16})
    assert telemetry.column("step", "a") == telemetry.column("step", "b") == [0, 1, 2]
    assert telemetry.column("flip_rate", "b") == [0.5, 0.0, 1.0]
