"""What the functions and parts of the scheduler say to arguments of another kind."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest

from sparse24 import functional
from sparse24 import schedule as S
from sparse24._errors import ArgumentError, DTypeError, ShapeError

W = {"up": np.arange(32.0).reshape(4, 8) - 15, "down": np.arange(64.0).reshape(8, 8)}
MASK = np.eye(4, 8, dtype=bool)


def started(recipe=None):
    return S.init(recipe or S.sr_ste(), W)


@pytest.mark.parametrize("given", [None, 5, {"up": MASK}, S.step(started(), weights=W)])
def test_what_is_no_state_is_named(given):
    for call in (
        lambda: S.step(given, weights=W),
        lambda: S.observe(given, weights=W),
        lambda: S.freeze(given),
        lambda: S.thaw(given),
        lambda: S.to_dict(given),
        lambda: S.from_dict(given, S.to_dict(started())),
    ):
        with pytest.raises(ArgumentError, match=r"state must be a State, as init .* step ret"):
            call()


def test_layers_have_names_and_arrays():
    for given, error, words in (
        ({1: W["up"]}, ArgumentError, "layers must have names that are strings, got 1"),
        ({"up": None}, DTypeError, "the array of layer 'up' must be an array, got NoneType"),
        ({"layer": W}, DTypeError, r"layer 'layer' must be an array, got dict; .*flatten_dict"),
    ):
        with pytest.raises(error, match=words):
            S.init(S.sr_ste(), given)
    for given in ({"weights": W | {"up": 1}}, {"weights": W, "gradients": {"up": 1}}):
        with pytest.raises(DTypeError, match="the array of layer 'up' must be an array, got int"):
            S.step(started(), **given)
    with pytest.raises(ArgumentError, match="weights must be given, to learn the layers, got None"):
        S.MaskScheduler(S.sr_ste()).start(None)
    with pytest.raises(ArgumentError, match=r"rules must be a Recipe, or .* got \{1: Recipe"):
        S.MaskScheduler({1: S.sr_ste()})


@pytest.mark.parametrize("measure", [False, True])
def test_arrays_of_another_library_than_the_state_are_refused(measure):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(w) for name, w in W.items()}
    movement = started(S.Recipe(criterion=S.Movement()))
    for call in (
        lambda: S.step(started(), weights=tensors, measure=measure),
        lambda: S.observe(movement, weights=W, gradients=tensors),
    ):
        with pytest.raises(DTypeError, match="must be dense arrays of one library"):
            call()


def test_scores_are_arrays_of_the_weights_library():
    """Else the masks would be of the other library."""
    torch = pytest.importorskip("torch")
    given = S.Recipe(criterion=S.GivenScores({n: torch.from_numpy(w) for n, w in W.items()}))
    for call, words in (
        (lambda: S.step(started(given), weights=W), "must be dense arrays of one library"),
        (lambda: S.step(started(), weights=W, reduce=torch.from_numpy), "arrays of one library"),
        (lambda: S.step(started(), weights=W, reduce=list), "the scores of layer 'up' must be an "),
    ):
        with pytest.raises(DTypeError, match=words):
            call()


def test_a_layer_without_scores_and_tied_layers_of_two_shapes_are_named():
    given = S.Recipe(criterion=S.GivenScores({"other": W["up"]}))
    with pytest.raises(ArgumentError, match=r"no scores for layer 'up', but for \['other'\]; give"):
        S.step(started(given), weights=W)
    weights = {"a": np.ones((4, 8)), "b": np.ones((4, 4))}
    tied = S.init(S.Recipe(shared=(("a", "b"),)), weights)
    with pytest.raises(ShapeError, match=r"differ in shape, \(4, 8\) and \(4, 4\); tie layers"):
        S.step(tied, weights=weights)


def test_a_rule_of_ones_own_returns_a_mapping():
    recipe = S.Recipe(distribution=S.Custom(lambda *_: None))
    with pytest.raises(ArgumentError, match=r"what rule returns must be a mapping .* got None"):
        S.step(started(recipe), weights=W)


@pytest.mark.parametrize(
    "make",
    [
        lambda: S.MaskScheduler(S.Recipe(criterion=S.Movement())),
        lambda: S.DynamicScheduler(criterion=S.Movement()),
        S.DynamicScheduler,
    ],
)
def test_a_first_step_that_fails_leaves_the_scheduler_without_layers(make):
    steady, shaken = make(), make()
    for call in (shaken.step, shaken.observe):
        with pytest.raises(ArgumentError, match="needs the gradient of layer 'down'"):
            call(weights={"down": W["down"]})  # which would have been its only layer
        assert shaken.state is None
    want = steady.step(weights=W, gradients=W)
    got = shaken.step(weights=W, gradients=W)
    assert list(got) == list(W)
    assert all((got[name] == want[name]).all() for name in W)


def test_a_saved_state_waits_until_a_step_succeeds():
    first, second = (S.MaskScheduler(S.rigl(0.5, total_steps=9, every=1)) for _ in range(2))
    first.step(weights=W, gradients=W)
    second.load_state_dict(first.state_dict())
    with pytest.raises(ArgumentError, match="GradientGrowth needs the gradient of layer 'up'"):
        second.step(weights=W)
    assert second.state_dict()["step"] == 1
    want, got = (s.step(weights=W, gradients=W) for s in (first, second))
    assert all((got[name] == want[name]).all() for name in W)


def test_weights_of_torch_are_no_gradients():
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    weights = {n: p for n, p in model.named_parameters() if p.ndim == 2}
    plain = {n: p.detach().clone().requires_grad_() for n, p in weights.items()}
    schedulers = (S.DynamicScheduler(), S.AsyncScheduler(S.sr_ste(), weights, background=False))
    for scheduler in schedulers:
        for given in (weights, list(weights.values()), plain):
            with pytest.raises(ArgumentError, match=r"gradient itself; call step\(weights=\.\.\."):
                scheduler.step(given)
            with pytest.raises(ArgumentError, match=r"layer '0(\.weight)?' must not be a weight"):
                scheduler.step(weights=weights, gradients=given)
    assert schedulers[0].state is None
    with pytest.raises(ArgumentError, match="got a Parameter that requires a gradient"):
        schedulers[0].observe(weights)
    loss = model(torch.ones(2, 8)).square().sum()
    found = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
    assert schedulers[0].step(found).keys() == {"0", "1"}  # gradients may belong to a graph


def test_masks_of_other_weights_are_named():
    with pytest.raises(ArgumentError, match=r"masks must be of these weights, '0', got .*'up'"):
        S.apply_masks([W["up"]], {"up": MASK})
    assert S.apply_masks([W["up"]], {})[0] is W["up"]


def test_a_transition_takes_boolean_masks_of_the_weights_shape():
    w = W["up"]
    for grown in ("keep", "zero"):
        for given, error, words in (
            ((w, 5, MASK), DTypeError, "old must be an array, got int"),
            ((w, MASK, MASK * 1), DTypeError, "new must be boolean, got int64; use new != 0"),
            ((w[0], MASK, MASK), ShapeError, r"weight must have the shape of new, \(4, 8\), got"),
            (([1.0], MASK, MASK), DTypeError, "weight must be an array, got list"),
        ):
            with pytest.raises(error, match=words):
                S.transition(*given, grown=grown)
    with pytest.raises(ArgumentError, match="slots must be a mapping of names to arrays"):
        S.mask_slots([w], MASK, MASK)
    torch = pytest.importorskip("torch")
    with pytest.raises(DTypeError, match="arrays of one library"):
        S.mask_slots({"momentum": torch.ones(4, 8)}, MASK, MASK)


def test_gradients_and_projections_take_arrays_of_floats():
    w = W["up"]
    for call, words in (
        (lambda: S.mvue_24(np.ones((4, 8), int), step=0), "gradient must hold floating-point n"),
        (lambda: S.mvue_24([[1.0]], step=0), "gradient must be an array, got list"),
        (lambda: S.soft_threshold_24(w * 1j), "weight must hold floating-point .* complex128"),
        (lambda: S.targeted_dropout(MASK, share=0.5, rate=1, step=0), "weight must hold .* bool"),
        (
            lambda: S.sr_ste_gradient(w, None, MASK),
            r"gradient must be an array, got NoneType; call this after backward\(\) and before",
        ),
    ):
        with pytest.raises(DTypeError, match=words):
            call()
    for call in (S.soft_threshold_24, S.soft_threshold_scale, lambda x: S.mvue_24(x, step=0)):
        with pytest.raises(ShapeError, match=r"must have shape \(\.\.\., k\), got a scalar"):
            call(np.float32(1))


@pytest.mark.parametrize("wrong", [None, -1, 1.0, "1"])
def test_samples_are_of_whole_steps_and_seeds(wrong):
    y, saved = functional.linear(np.ones((4, 8)), W["up"])
    for call in (
        lambda **key: S.mvue_24(W["up"], **key),
        lambda **key: S.targeted_dropout(W["up"], share=0.5, rate=0.5, **key),
        lambda **key: functional.linear_backward(y, saved, gradient="24sparse", **key),
    ):
        for key in ({"step": wrong}, {"step": 0, "seed": wrong}):
            with pytest.raises(ArgumentError, match=r"(step|seed) must be a whole number from 0"):
                call(**key)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_decay_of_weights_of_8_bits(name):
    weight = np.ones((8, 16), getattr(ml_dtypes, name))
    y, saved = functional.linear(np.ones((4, 16), weight.dtype), weight)
    for decay in (0.5, np.array(0.5)):
        _, dweight, _ = functional.linear_backward(np.ones_like(y), saved, decay=decay)
        kept = np.asarray(saved.packed[0].mask())
        np.testing.assert_array_equal(dweight.astype(np.float32), 4 + 0.5 * ~kept)


@pytest.mark.parametrize("saved", [None, (1, 2), W])
def test_backward_names_what_is_no_result_of_forward(saved):
    with pytest.raises(ArgumentError, match="saved must be the second result of linear, a Saved"):
        functional.linear_backward(np.ones((4, 4)), saved)


CASES = {
    "reduce must be a function, got 5": [
        lambda: S.MaskScheduler(S.sr_ste(), reduce=5),
        lambda: S.DynamicScheduler(reduce=5),
        lambda: S.step(started(), weights=W, reduce=5),
    ],
    r"pattern must be a Pattern .* got (0|\[\])": [
        lambda: S.DynamicScheduler(pattern=0),
        lambda: S.gradual_magnitude(0.5, start=0, stop=9, pattern=[]),
        lambda: S.iterative_magnitude(rounds=1, steps_per_round=1, pattern=0),
        lambda: S.rigl(0.5, total_steps=9, pattern=0),
        lambda: S.targeted_dropout(W["up"], share=0.5, rate=0.5, step=0, pattern=0),
    ],
    "grower must be a Grower .* got ''": [lambda: S.DynamicScheduler(grower="")],
    "criterion must be a Criterion .* got 0": [lambda: S.DynamicScheduler(criterion=0)],
    "distribution must be a Distribution .* got 0": [
        lambda: S.DynamicScheduler(distribution=0),
        lambda: S.rigl(0.5, total_steps=9, distribution=0),
        lambda: S.sparse_evolutionary(0.5, distribution=0),
    ],
    "dense must be a sequence of name patterns, got": [
        lambda: S.DynamicScheduler(dense=None),
        lambda: S.DynamicScheduler(dense=("head", 5)),
    ],
    "shared must be a sequence of groups such as": [
        lambda: S.Recipe(shared=None),
        lambda: S.Recipe(shared=(5,)),
        lambda: S.Recipe(shared=((5,),)),
    ],
    "coupled must be a sequence of groups such as": [
        lambda: S.Recipe(coupled=None),
        lambda: S.Recipe(coupled=W["up"], pattern=S.Channel()),
        lambda: S.Recipe(coupled=((("fc1", "0"),),), pattern=S.Channel()),
    ],
    "axis must be a whole number, got None": [lambda: S.Channel(None)],
    "beta must be a number in": [lambda: S.MomentumGrowth(beta="x")],
    "depth must be a whole number from 1 on, got -1": [lambda: S.Hierarchical(depth=-1)],
    r"seconds\['up'\] must map sparsities to times": [lambda: S.BySpeedup({"up": 1.0})],
    r"rule\['up'\] must be 0 or more, got -1": [lambda: S.Custom({"up": -1})],
    r"rule\['up'\] must be 0 or more, got inf": [lambda: S.Custom({"up": float("inf")})],
    "adapter must be a LayerWiseAdapter .* got 5": [lambda: S.Adaptive(5)],
    r"overrides\['up'\] must be a LayerWiseAdapter": [lambda: S.Adaptive(overrides={"up": 5})],
    "strength must be finite, got nan": [lambda: S.LayerWiseAdapter(strength=float("nan"))],
    "least must be one of 1, 2, 3, got ndarray": [lambda: S.Elastic(least=W["up"])],
    "flip_limit must be a number in": [lambda: S.Telemetry(flip_limit="x")],
    "stop must be a whole number": [lambda: S.ConstantScheduler(0.5, stop="")],
    "rate must be a function, got 0.1": [lambda: S.RewoundRate(0.1, 10, 3)],
    "rewind_steps must be a whole number from 0 on, got 2.5": [
        lambda: S.RewoundRate(float, 10, 2.5),
    ],
    "candidates must be a sequence of positive factors": [
        lambda: S.DecayFactorSearch(1e-4),
        lambda: S.DecayFactorSearch((1e-4, float("nan"))),
    ],
    "steps_each must be a whole number from 1 on, got nan": [
        lambda: S.DecayFactorSearch(steps_each=float("nan")),
    ],
    r"window must be a pair of ratios \(low, high\)": [
        lambda: S.DecayFactorSearch(window=0.5),
        lambda: S.DecayFactorSearch(window=(0.9, 0.6)),
    ],
    "flip_rate must be a number": [
        lambda: S.DecayFactorSearch().feed(None),
        lambda: S.DecayFactorSearch().feed(float("nan")),
    ],
    "(decay|scale) must be a number, got 'x'": [
        lambda: S.sr_ste_gradient(W["up"], W["up"], MASK, "x"),
        lambda: S.soft_threshold_24(W["up"], "x"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("message", CASES)
def test_parts_of_another_kind_are_named(message):
    with warnings.catch_warnings(action="error"):
        for call in CASES[message]:
            with pytest.raises(ArgumentError, match=message):
                call()
    with pytest.raises(DTypeError, match=r"scores\['up'\] must be an array, got int"):
        S.GivenScores({"up": 1})
