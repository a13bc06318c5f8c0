"""Schedulers as training scripts call them: frozen parameters, micro-batches, files, errors."""

from __future__ import annotations

import numpy as np
import pytest

from sparse24 import schedule as S
from sparse24._errors import ArgumentError, DTypeError, FormatError, ShapeError


def layers(rng, count=3):
    return {f"l{i}": rng.normal(size=(8, 16)) for i in range(count)}


def equal(first, second):
    return all((first[name] == second[name]).all() for name in first)


def test_frozen_parameters_have_no_gradient(rng):
    weights = layers(rng)
    gradients = {"l0": weights["l0"], "l1": None, "l2": None}
    rules = {"l0": S.rigl(0.5, total_steps=10, every=1), "l1": S.sr_ste(), "*": None}
    scheduler = S.MaskScheduler(rules)
    background = S.AsyncScheduler(rules, weights, delay=0, background=False)
    for _ in range(3):
        masks = scheduler.step(weights=weights, gradients=gradients)
        assert equal(background.step(weights=weights, gradients=gradients), masks)
    assert list(masks) == ["l0", "l1"]
    with pytest.raises(ArgumentError, match="GradientGrowth needs the gradient of layer 'l0'"):
        scheduler.step(weights=weights, gradients=dict.fromkeys(weights))
    with pytest.raises(DTypeError, match="layer 'l1' must be an array, got NoneType"):
        S.DynamicScheduler().step(gradients=gradients)  # from which the layers would be learnt


@pytest.mark.parametrize("call", ["step", "observe"])
def test_weights_and_gradients_cannot_be_swapped(rng, call):
    weights, gradients = layers(rng), layers(rng)
    schedulers = [S.MaskScheduler(S.sr_ste()), S.DynamicScheduler()]
    if call == "step":
        schedulers.append(S.AsyncScheduler(S.sr_ste(), weights, background=False))
    for scheduler in schedulers:
        for first, second in ((weights, gradients), (gradients, weights)):
            with pytest.raises(TypeError, match="positional argument"):
                getattr(scheduler, call)(first, second)
    state = S.init(S.sr_ste(), weights)
    for arrays in ((weights,), (weights, gradients)):
        with pytest.raises(TypeError, match="positional argument"):
            getattr(S, call)(state, *arrays)


def test_gradients_alone_may_go_by_place(rng):
    gradients = layers(rng)
    first, second = S.DynamicScheduler(), S.DynamicScheduler()
    assert equal(first.step(gradients), second.step(gradients=gradients))
    with pytest.raises(ArgumentError, match=r"Magnitude needs the weight .*; pass step\(weights="):
        S.MaskScheduler(S.sr_ste()).step(gradients)


def test_layers_come_by_name_by_place_or_alone(rng):
    """Optimizers take what ``named_parameters()`` gives; a scheduler would read it only once."""
    weights, scheduler = layers(rng), S.MaskScheduler(S.sr_ste())
    for given, kind in (
        (iter(weights.items()), "dict_itemiterator"), (weights.values(), "dict_v"),
        (list(weights.items()), "list"),
    ):  # fmt: skip
        words = f"of names to arrays, .* got {kind}.*; write .* dict\\(model.named_parameters"
        for call in (
            lambda given=given: scheduler.step(weights=given),
            lambda given=given: scheduler.step(weights=weights, gradients=given),
            lambda given=given: S.AsyncScheduler(S.sr_ste(), given),
        ):
            with pytest.raises(DTypeError, match=words):
                call()
    for none in ({}, []):
        with pytest.raises(ArgumentError, match="weights must hold at least one layer, got none"):
            scheduler.step(weights=none)


def test_micro_batches_do_not_decide_the_criterion(rng):
    weights, gradients = layers(rng), layers(rng)
    ours, plain = S.DynamicScheduler(0.5), S.DynamicScheduler(0.5)
    ours.observe(gradients=gradients)
    masks = ours.step(weights=weights, gradients=gradients)
    plain.start(weights)
    plain.observe(gradients=gradients)
    assert equal(masks, plain.step(weights=weights, gradients=gradients))
    kept = {n: np.abs(w)[masks[n]].min() > np.abs(w)[~masks[n]].max() for n, w in weights.items()}
    assert all(kept.values())


def test_the_first_step_decides_the_criterion(rng):
    weights, gradients = layers(rng), layers(rng)
    want = S.DynamicScheduler(0.5).step(gradients)
    started, shown, resumed = (S.DynamicScheduler(0.5) for _ in range(3))
    started.start(weights)
    assert equal(started.step(gradients), want)
    shown.observe(gradients, weights=weights)
    shown.step(gradients)
    assert type(shown.state.groups[0][0].criterion) is S.GradientMagnitude
    resumed.start(weights)
    resumed.load_state_dict(started.state_dict())
    assert equal(resumed.step(gradients), started.step(gradients))
    resumed.load_state_dict(S.to_dict(shown.state))
    with pytest.raises(FormatError, match="belongs to other recipes or layers"):
        resumed.load_state_dict(_saved_otherwise(weights))


def _saved_otherwise(weights):
    """The state of a scheduler with a criterion of its own."""
    other = S.DynamicScheduler(0.5, criterion=S.RandomScores())
    other.start(weights)
    return other.state_dict()


@pytest.mark.parametrize("has_weights", [False, True])
def test_training_resumes_with_a_micro_batch(rng, has_weights):
    steps = [(layers(rng), layers(rng)) for _ in range(4)]

    def train(scheduler, some):
        for gradients, weights in some:
            scheduler.observe(gradients=gradients)
            masks = scheduler.step(weights=weights if has_weights else None, gradients=gradients)
        return masks

    through, first, second = (S.DynamicScheduler(0.4) for _ in range(3))
    want = train(through, steps)
    train(first, steps[:2])
    second.load_state_dict(first.state_dict())
    assert equal(train(second, steps[2:]), want)


def test_states_come_from_tensors_on_other_devices():
    """`torch.load(..., map_location=...)` puts the whole state on a GPU."""
    torch = pytest.importorskip("torch")

    class Far(torch.Tensor):
        def __array__(self, *args, **kwargs):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

        def to(self, *args, **kwargs):
            return self.as_subclass(torch.Tensor)

    def far(value):
        if isinstance(value, dict):
            return {key: far(inside) for key, inside in value.items()}
        if isinstance(value, list):
            return [far(inside) for inside in value]
        return value.as_subclass(Far) if isinstance(value, torch.Tensor) else value

    recipe = S.Recipe(S.ConstantScheduler(0.5, every=2), criterion=S.Movement())
    weights = {"w": torch.randn(8, 16)}
    first, second = (S.MaskScheduler(recipe) for _ in range(2))
    third, fourth = (S.AsyncScheduler(recipe, weights, background=False) for _ in range(2))
    for old, new in ((first, second), (third, fourth)):
        old.step(weights=weights, gradients=weights)
        new.load_state_dict(far(old.state_dict()))
        assert equal(
            old.step(weights=weights, gradients=weights),
            new.step(weights=weights, gradients=weights),
        )


def test_an_error_within_the_step_leaves_an_async_scheduler_as_it_was(rng):
    weights, recipe = layers(rng), S.rigl(0.5, total_steps=10, every=1)
    steady, shaken = (S.AsyncScheduler(recipe, weights, background=False) for _ in range(2))
    for _ in range(3):
        want = steady.step(weights=weights, gradients=weights)
        shaken.step(weights=weights, gradients=weights)
        with pytest.raises(ArgumentError, match="needs the gradient"):
            shaken.step(weights=weights)
    assert equal(shaken.masks, want)
    assert shaken.state.step == 3


def test_an_error_beside_the_training_stops_an_async_scheduler(rng):
    weights, recipe = layers(rng), S.rigl(0.5, total_steps=10, every=1)
    with S.AsyncScheduler(recipe, weights, delay=1) as scheduler:
        scheduler.step(weights=weights, gradients=weights)
        scheduler.step(weights=weights, gradients=weights)
        saved = scheduler.state_dict()
        want = scheduler.step(weights=weights, gradients=weights)
        scheduler.step(weights=weights)
        with pytest.raises(ArgumentError, match="needs the gradient"):
            scheduler.step(weights=weights, gradients=weights)
        for call in (scheduler.state_dict, scheduler.freeze, scheduler.thaw):
            with pytest.raises(ArgumentError, match="the work of an earlier step failed"):
                call()  # a step is missing in what it would keep
        with pytest.raises(ArgumentError, match=r"work of an earlier step failed.*load a state"):
            scheduler.step(weights=weights, gradients=weights)
        scheduler.load_state_dict(saved)
        assert equal(scheduler.step(weights=weights, gradients=weights), want)


def test_masks_are_booleans_or_numbers_of_the_weights_library():
    torch = pytest.importorskip("torch")
    numbers, weight = np.array([[1, 0, 0, 2]]), np.arange(1.0, 5)[None]
    want = [[1.0, 0.0, 0.0, 4.0]]
    assert S.apply_masks(weight, numbers).tolist() == want
    assert S.apply_masks(torch.from_numpy(weight), torch.from_numpy(numbers)).tolist() == want
    with pytest.raises(DTypeError, match="mask of layer '0' must be an array of its weight's lib"):
        S.apply_masks(torch.from_numpy(weight), numbers)
    with pytest.raises(DTypeError, match="mask of layer 'w' must be an array, got list"):
        S.apply_masks({"w": weight}, {"w": [[1, 0, 0, 1]]})
    with pytest.raises(DTypeError, match="mask of layer 'w' must not be a MaskedArray"):
        S.apply_masks({"w": weight}, {"w": np.ma.array(numbers > 0, mask=numbers > 1)})


def test_a_matrix_whose_products_are_of_matrices_is_refused():
    """The scale of one was that of its matrix product, and Taylor ranked by such a product."""
    weight = np.arange(16.0).reshape(4, 4)
    state = S.init(S.Recipe(S.ConstantScheduler(0.5), S.Taylor()), {"w": weight})
    for call in (
        S.soft_threshold_scale, S.soft_threshold_24, lambda w: S.apply_masks(w, weight > 0),
        lambda w: S.step(state, weights={"w": w}, gradients={"w": w}),
    ):  # fmt: skip
        with pytest.raises(DTypeError, match=r"must not be a numpy\.matrix, .*numpy\.asarray"):
            call(weight.view(np.matrix))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_gradients_and_projections_keep_the_type(rng, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    weight = rng.normal(size=(4, 8)).astype(dtype)
    assert S.soft_threshold_24(weight, S.soft_threshold_scale(weight)).dtype == dtype
    assert S.sr_ste_gradient(weight, weight, weight > 0).dtype == dtype
    wide = weight.astype(np.float64)
    assert S.sr_ste_gradient(wide, weight, weight > 0).dtype == np.float64


def test_the_projection_looks_at_no_element():
    """It is operations alone: nothing waits for a device, and transforms follow it."""
    torch = pytest.importorskip("torch")
    weight = torch.randn(3, 4, 10)
    batched = torch.vmap(S.soft_threshold_24)(weight)
    assert torch.equal(batched, torch.stack([S.soft_threshold_24(w) for w in weight]))
    whole = np.array([[-np.inf, 2.0, -3.0, 1.0, 5.0, np.nan, -1.0, 2.0]])
    with np.errstate(invalid="ignore"):
        got = S.soft_threshold_24(whole)
    np.testing.assert_array_equal(got, [[-np.inf, 0, -1, 0, 0, np.nan, 0, 0]])


def rigl_scheduler():
    return S.MaskScheduler(S.rigl(0.5, total_steps=10))


@pytest.mark.parametrize("kind", [S.DynamicScheduler, rigl_scheduler])
def test_states_fit_layers_in_another_order(rng, kind):
    """JAX sorts the dictionaries that pass through it."""
    weights = {name: rng.normal(size=(8, 16)) for name in ("up", "down", "a")}
    weights |= {"bias": rng.normal(size=4)}
    first, second = kind(), kind()
    first.step(weights=weights, gradients=weights)
    second.load_state_dict(first.state_dict())
    ordered = dict(sorted(weights.items()))
    masks = second.step(weights=ordered, gradients=ordered)
    assert list(masks) == ["up", "down", "a"]
    assert equal(masks, first.step(weights=weights, gradients=weights))
    assert second.state_dict()["fingerprint"] == first.state_dict()["fingerprint"]


def test_parts_of_another_kind_are_named(rng):
    weights, recipe = layers(rng, 1), S.Recipe(S.OneShot(0.5))
    state, places = S.init(recipe, weights), list(weights.values())
    cases = {
        "weights must be a mapping of names to arrays, such as .* got": [
            lambda: S.init(recipe, places),
            lambda: S.step(state, weights=places),
            lambda: S.observe(S.init(S.Recipe(criterion=S.Movement()), weights), weights=places[0]),
        ],
        "gradients must be a mapping of names to arrays": [
            lambda: S.step(state, weights=weights, gradients=places[0]),
        ],
        "rule must be a mapping of names to factors, .* got 0.5": [lambda: S.Custom(0.5)],
        "scores must be a mapping .* got ndarray of shape": [lambda: S.GivenScores(places[0])],
        "seconds must be a mapping of names to times": [lambda: S.BySpeedup([1.0])],
        r"telemetry must be a Telemetry\(\) or None, got True": [
            lambda: S.MaskScheduler(recipe, telemetry=True),
            lambda: S.AsyncScheduler(recipe, weights, telemetry=True),
        ],
        "total_steps must be a whole number from 0 on, got 1000.0": [
            lambda: S.rigl(0.5, total_steps=1e3),
        ],
    }
    for message, calls in cases.items():
        for call in calls:
            with pytest.raises(ArgumentError, match=message):
                call()


def test_slots_take_boolean_masks_of_one_shape():
    slots, mask = {"momentum": np.ones((4, 8))}, np.ones((4, 8), bool)
    with pytest.raises(DTypeError, match="old must be boolean, got float64; use old != 0"):
        S.mask_slots(slots, mask.astype(float), mask)
    with pytest.raises(DTypeError, match="new must be an array, got NoneType"):
        S.mask_slots(slots, mask, None)
    with pytest.raises(ShapeError, match=r"old must have the shape of new, \(4, 8\), got \(1, 8\)"):
        S.mask_slots(slots, mask[:1], mask)
