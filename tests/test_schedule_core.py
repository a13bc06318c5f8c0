"""The core of the scheduler: exact counts at every update, and frozen is frozen."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from schedule_cases import PATTERNS, layers

import sparse24 as s24
from sparse24 import schedule as S
from sparse24._errors import ArgumentError, ShapeError


@pytest.mark.parametrize("frozen", [False, True])
def test_arrays_are_those_of_the_layers_at_every_step(frozen, rng):
    """Also where no mask is due, and nothing reads them."""
    given = layers(rng, a=(8, 16), b=(4, 8))
    recipe = S.Recipe(S.OneShot(0.5), pattern=S.NM(2, 4))
    with S.AsyncScheduler(recipe, given, background=False) as ahead:
        for scheduler in (S.MaskScheduler(recipe), ahead):
            masks = scheduler.step(weights=given)
            if frozen:
                scheduler.freeze()
                masks = scheduler.masks
            before = scheduler.state
            for wrong, error, words in (
                ({"c": given["a"]}, ArgumentError, r"no layer 'a', only \['c'\]; pass all of"),
                ({"a": given["a"]}, ArgumentError, "weights has no layer 'b'"),
                (given | {"b": given["b"][:2]}, ShapeError, r"weights\['b'\] must have the shape"),
                (given | {"b": given["b"][0]}, ShapeError, r"shape \(4, 8\), got \(8,\)"),
            ):
                with pytest.raises(error, match=words):
                    scheduler.step(weights=wrong)
            with pytest.raises(ShapeError, match=r"gradients\['a'\] must have the shape \(8, 16\)"):
                scheduler.step(gradients={"a": given["b"]}, weights=given)
            assert scheduler.state is before
            after = scheduler.step(
                gradients={"a": given["a"]}, weights=given | {"bias": np.ones(8)}
            )
            assert after.keys() == masks.keys()
            scheduler.step()


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_events_tell_the_exact_count_at_every_update(pattern, rng):
    weights = layers(rng, a=(32, 64), b=(64, 32))
    recipe = S.Recipe(S.CubicScheduler(0.7, 0.1, start=2, stop=9, every=3), pattern=pattern)
    state, steps = S.init(recipe, weights), []
    for _ in range(12):
        state, masks, events = S.step(state, weights=weights)
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


def test_a_named_tuple_of_weights_stays_one():
    class Layer(NamedTuple):
        weight: np.ndarray
        bias: np.ndarray

    weights = Layer(np.array([1.0, 2.0]), np.ones(2))
    sparse = S.apply_masks(weights, Layer(np.array([False, True]), None))
    assert type(sparse) is Layer
    assert sparse.weight.tolist() == [0, 2]
    assert sparse.bias is weights.bias


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


@pytest.mark.parametrize("own", [None, 0.0])
def test_a_first_phase_begins_where_the_dynamic_scheduler_says(own):
    ramp = S.CosineScheduler(0.6, init_sparsity=own, stop=4)
    phases = S.Phases([(4, ramp), (None, S.ConstantScheduler(0.6))])
    scheduler = S.DynamicScheduler(0.3, phases, adapter=None)
    masks = scheduler.step(weights={"w": np.arange(100.0).reshape(10, 10)})
    assert masks["w"].sum() == (70 if own is None else 100)


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
    first, _, _ = S.step(state, weights=weights, gradients=grads)
    again, _, _ = S.step(state, weights=weights, gradients=grads)
    assert state.step == 0
    assert state.masks["w"].all()
    np.testing.assert_array_equal(weights["w"], kept)
    np.testing.assert_array_equal(first.masks["w"], again.masks["w"])


def test_micro_batches_add_up(rng):
    weights = layers(rng, w=(8, 8))
    parts = [layers(rng, w=(8, 8)) for _ in range(3)]
    scheduler = S.MaskScheduler(S.Recipe(S.OneShot(0.5), S.Accumulated(S.GradientMagnitude())))
    scheduler.observe(weights=weights, gradients=parts[0])
    scheduler.observe(weights=weights, gradients=parts[1])
    mask = scheduler.step(weights=weights, gradients=parts[2])["w"]
    want = S.Unstructured().mask(sum(np.abs(p["w"]) for p in parts), 0.5)
    np.testing.assert_array_equal(mask, want)


@pytest.mark.parametrize("library", [np.asarray, "torch"])
def test_scores_add_up_that_are_written_to_in_place(rng, library):
    if library == "torch":
        library = pytest.importorskip("torch").from_numpy
    parts = [rng.normal(size=(8, 8)) for _ in range(3)]
    scores = {"w": library(parts[0].copy())}
    recipe = S.Recipe(S.OneShot(0.5), S.Accumulated(S.GivenScores(scores)))
    scheduler = S.MaskScheduler(recipe)
    for part in parts[:2]:
        scores["w"][:] = library(part)
        scheduler.observe(weights=scores)
    scores["w"][:] = library(parts[2])
    mask = scheduler.step(weights=scores)["w"]
    np.testing.assert_array_equal(mask, S.Unstructured().mask(sum(parts), 0.5))


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
        mask = S.MaskScheduler(recipe).step(weights=weights, gradients=grads)["w"]
        np.testing.assert_array_equal(mask, S.Unstructured().mask(scores, 0.5))
    with pytest.raises(ArgumentError, match="Magnitude needs the weight of layer 'w'"):
        S.MaskScheduler(S.Recipe(S.OneShot(0.5))).step(gradients=grads)


def test_reduce_makes_ranks_agree(rng):
    total = rng.normal(size=(2, 8, 8))
    recipe = S.Recipe(S.OneShot(0.5), S.GradientMagnitude())
    ranks = [S.MaskScheduler(recipe, reduce=lambda _: np.abs(total).sum(0)) for _ in total]
    masks = [r.step(gradients={"w": g}) for r, g in zip(ranks, total, strict=True)]
    np.testing.assert_array_equal(masks[0]["w"], masks[1]["w"])


def test_apply_masks_refuses_other_shapes():
    with pytest.raises(ShapeError, match="mask of layer 'w' must have its weight's shape"):
        S.apply_masks({"w": np.zeros((2, 3))}, {"w": np.ones((3, 2), bool)})
    with pytest.raises(ShapeError, match="mask of layer '0'"):
        S.apply_masks(np.zeros((2, 3)), np.ones((3, 2), bool))
    with pytest.raises(ArgumentError, match="masks must be as many as weights"):
        S.apply_masks([np.zeros(2)], [])
    with pytest.raises(ArgumentError, match=r"must be of these weights, 'w', got .* 'layer\.w'"):
        S.apply_masks({"w": np.zeros(2)}, {"layer.w": np.ones(2, bool)})
    assert S.apply_masks({"w": 1}, {}) == {"w": 1}


def test_weights_that_are_no_dense_arrays_are_refused():
    with pytest.raises(s24.DTypeError, match="must be dense arrays of one library: Sparse24Array"):
        S.MaskScheduler(S.Recipe()).step(weights={"w": s24.random((4, 8), rng=0)})
    for weights in ({"w": np.zeros(2)}, [np.zeros(2)]):
        with pytest.raises(ArgumentError, match=r"masks must be a .*, as weights, got None"):
            S.apply_masks(weights, None)


def test_a_layer_that_does_not_suit_the_pattern_is_named():
    recipe = S.Recipe(S.OneShot(0.5), pattern=S.Elastic(least=2))
    with pytest.raises(ShapeError, match=r"layer 'head': Elastic.*got \(10, 48\)"):
        S.MaskScheduler(recipe).start({"w": np.ones((8, 64)), "head": np.ones((10, 48))})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: S.DynamicScheduler(pattern="2:4"), "pattern must be a Pattern"),
        (lambda: S.DynamicScheduler(adapter=3), "adapter must be a LayerWiseAdapter"),
        (lambda: S.DynamicScheduler(adapter={"w": 3}), r"adapter\['w'\] must be a LayerWise"),
        (lambda: S.Hierarchical("uniform"), "outer must be a Distribution"),
        (lambda: S.Hierarchical(inner="erk"), "inner must be a Distribution"),
        (lambda: S.Accumulated("taylor"), "inner must be a Criterion"),
        (lambda: S.AsyncScheduler(S.sr_ste(), None), "weights must be given"),
        (lambda: S.Phases([(9, 0.5)]), "the schedule of a phase must be a Schedule"),
        (lambda: S.Phases([S.OneShot(0.5)]), r"parts must be \(length, schedule\) pairs"),
        (lambda: S.Phases(S.OneShot(0.5)), r"parts must be \(length, schedule\) pairs"),
    ],
)
def test_parts_of_another_kind_are_named(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_dense_layers_are_a_sequence_of_names():
    with pytest.raises(ArgumentError, match="dense must be a sequence of name patterns, got 'he"):
        S.DynamicScheduler(dense="head")


def test_schedulers_say_where_they_are():
    scheduler = S.MaskScheduler(S.sr_ste())
    assert repr(scheduler) == "<MaskScheduler: no layers yet>"
    scheduler.step(weights={"w": np.ones((4, 8))})
    assert repr(scheduler) == "<MaskScheduler: step 1, 1 layers>"
    scheduler.freeze()
    assert repr(scheduler) == "<MaskScheduler: step 1, 1 layers, frozen>"
    with S.AsyncScheduler(S.sr_ste(), {"w": np.ones((4, 8))}) as scheduler:
        assert repr(scheduler) == "<AsyncScheduler: step 0, 1 layers>"


def test_tile_hybrid_masks_feed_the_hybrid_format(rng):
    weight = rng.normal(size=(128, 256)).astype(np.float32)
    recipe = S.Recipe(S.OneShot(0.6), pattern=S.TileHybrid((64, 64)))
    masked = S.apply_masks({"w": weight}, S.MaskScheduler(recipe).step(weights={"w": weight}))["w"]
    stored = s24.hybrid(masked)
    np.testing.assert_array_equal(stored.toarray(), masked)
    x = rng.normal(size=(256, 3)).astype(np.float32)
    np.testing.assert_allclose(stored @ x, masked @ x, rtol=1e-4, atol=1e-4)


def test_a_sparsity_of_float32_is_counted_in_float64():
    """A product of float32 loses the last places of a large count."""
    weights, share = {"w": np.ones((8, 2**21 + 1), np.float32)}, np.float32(0.7)
    recipe = S.Recipe(S.ConstantScheduler(share))
    _, masks, (event,) = S.step(S.init(recipe, weights), weights=weights)
    zeros = int(float(share) * event.size)
    assert (event.nnz, int(masks["w"].sum())) == (event.size - zeros,) * 2
