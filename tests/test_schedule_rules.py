"""Which layers a scheduler takes, which of them belong together, and what chooses first."""

from __future__ import annotations

import numpy as np
import pytest
from schedule_cases import layers

from sparse24 import schedule as S
from sparse24._errors import ArgumentError, DTypeError, ShapeError


@pytest.mark.parametrize(
    ("ties", "message"),
    [
        ({"coupled": ((("a", 0), ("b", 1)), (("b", 0), ("c", 1)))}, r"\['b'\] are in more"),
        ({"shared": (("a", "b"), ("c", "a"))}, r"\['a'\] are in more"),
        ({"shared": ("a", "b")}, r"sequence of groups such as \(\"fc1\", \"fc2\"\), got 'a'"),
        ({"coupled": (("a", 0), ("b", 1))}, "coupled must be a sequence of groups"),
    ],
)
def test_a_layer_is_in_one_group_of_tied_layers(ties, message):
    with pytest.raises(ArgumentError, match=message):
        S.Recipe(S.OneShot(0.5), pattern=S.Channel(), **ties)


def test_a_coupled_axis_that_is_not_there_is_named(rng):
    recipe = S.Recipe(pattern=S.Channel(), coupled=((("a", 0), ("b", 2)),))
    with pytest.raises(ShapeError, match=r"layer 'b': Channel\(axis=2\) needs that axis"):
        S.init(recipe, layers(rng, a=(8, 4), b=(4, 8)))


def test_tied_layers_have_the_mean_sparsity(rng):
    weights = layers(rng, a=(8, 16), b=(8, 16), c=(8, 16))
    recipe = S.Recipe(
        S.ConstantScheduler(0.5, every=1), shared=(("a", "b"),),
        distribution=S.Adaptive(S.LayerWiseAdapter(strength=1.0, reach=0.4)),
    )  # fmt: skip
    gradients = {name: scale * np.ones((8, 16)) for name, scale in zip("abc", (9, 1, 5))}
    scheduler = S.MaskScheduler(recipe)
    for _ in range(2):
        masks = scheduler.step(weights=weights, gradients=gradients)
    zeros = {name: int((~mask).sum()) for name, mask in masks.items()}
    assert zeros["a"] == zeros["b"] == 64
    assert sum(zeros.values()) == 192
    assert {event.sparsity for event in scheduler.events} == {0.5}


@pytest.mark.parametrize("later", [S.Magnitude(), S.Accumulated(S.GradientMagnitude())])
def test_the_initial_criterion_may_look_back(rng, later):
    first = S.Accumulated(S.Taylor())
    weights, grads = layers(rng, a=(8, 16)), [layers(rng, a=(8, 16)) for _ in range(4)]
    recipe = S.Recipe(S.ConstantScheduler(0.5, every=2), later, initial=first)
    scheduler = S.MaskScheduler(recipe)
    for grad in grads[:2]:
        scheduler.observe(weights=weights, gradients=grad)
    masks = scheduler.step(weights=weights, gradients=grads[2])
    sums = sum(np.abs(weights["a"] * grad["a"]) for grad in grads[:3])
    assert (masks["a"] == S.Unstructured().mask(sums, 0.5)).all()
    assert not scheduler.state.memory["a"]
    plain = S.MaskScheduler(S.Recipe(S.ConstantScheduler(0.5, every=2), later))
    plain.step(weights=weights, gradients=grads[2])
    for grad in grads:
        masks, want = (
            scheduler.step(weights=weights, gradients=grad),
            plain.step(weights=weights, gradients=grad),
        )
    assert (masks["a"] == want["a"]).all()


def test_layers_that_are_fixed_before_the_first_step_stay_dense(rng):
    weights = layers(rng, body=(8, 16), head=(8, 16))
    scheduler = S.DynamicScheduler(0.5, S.ConstantScheduler(0.5), adapter=None, dense=("head",))
    scheduler.start(weights)
    assert list(scheduler.step(weights=weights)) == ["body"]


def test_what_has_begun_is_not_started_anew(rng):
    weights = layers(rng, a=(8, 16))
    scheduler, resumed = (S.MaskScheduler(S.rigl(0.5, total_steps=9)) for _ in range(2))
    scheduler.start(weights)
    scheduler.start(weights)
    scheduler.step(weights=weights, gradients=weights)
    resumed.load_state_dict(scheduler.state_dict())
    resumed.start(weights)
    for one in (scheduler, resumed):
        with pytest.raises(ArgumentError, match=r"start must come before the first step.*step 1"):
            one.start(weights)
        assert one.state.step == 1
    shown = S.MaskScheduler(S.Recipe(criterion=S.Movement()))
    shown.observe(weights, weights=weights)
    with pytest.raises(ArgumentError, match="make another scheduler to begin anew"):
        shown.start(weights)


@pytest.mark.parametrize("distribution", [S.Adaptive(), S.Hierarchical(inner=S.Adaptive())])
def test_ranks_agree_on_the_layers_shares(rng, distribution):
    weights = layers(rng, **{"block.a": (8, 16), "block.b": (16, 8)})
    seen = [{n: i * rng.normal(size=w.shape) for n, w in weights.items()} for i in (1, 3)]
    seen[1]["block.b"] /= 100
    recipe = S.Recipe(S.ConstantScheduler(0.5), distribution=distribution)

    def all_reduce(x):
        if x.shape != (1,):
            return x  # the magnitudes are equal already
        name, own = next((n, i) for n in weights for i in (0, 1) if squares(n, i) == x[0])
        return x + squares(name, 1 - own)

    def squares(name, rank):
        state = S.observe(S.init(recipe, weights), weights=weights, gradients=seen[rank])
        return state.memory[name]["grad_square"]

    apart = [S.MaskScheduler(recipe).step(weights=weights, gradients=grads) for grads in seen]
    assert (apart[0]["block.a"] != apart[1]["block.a"]).any()
    masks = [
        S.MaskScheduler(recipe, reduce=all_reduce).step(weights=weights, gradients=grads)
        for grads in seen
    ]
    for name in weights:
        np.testing.assert_array_equal(masks[0][name], masks[1][name])


@pytest.mark.parametrize("library", [np.asarray, "torch"])
@pytest.mark.parametrize("criterion", [S.Movement(), S.Accumulated(), "given", S.Taylor()])
@pytest.mark.parametrize("distribution", [S.Uniform(), S.Adaptive()])
def test_a_reduction_may_write_to_what_it_gets(rng, library, criterion, distribution):
    if library == "torch":
        library = pytest.importorskip("torch").from_numpy
    before = rng.normal(size=(8, 8))
    given = {"w": library(before.copy())}
    criterion = S.GivenScores(given) if criterion == "given" else criterion
    recipe = S.Recipe(S.ConstantScheduler(0.5), criterion, distribution=distribution)

    def in_place(x):  # as an all-reduce of two ranks with the same data
        x *= 2
        return x

    schedulers = [S.MaskScheduler(recipe, reduce=r) for r in (in_place, lambda x: 2 * x)]
    for _ in range(3):
        arrays = [{"w": library(rng.normal(size=(8, 8)))} for _ in "wg"]
        masks = [s.step(weights=arrays[0], gradients=arrays[1])["w"] for s in schedulers]
        np.testing.assert_array_equal(*masks)
    np.testing.assert_array_equal(given["w"], before)
    for key, kept in schedulers[0].state.memory["w"].items():
        np.testing.assert_array_equal(kept, schedulers[1].state.memory["w"][key])


@pytest.mark.parametrize("seed", [None, 1.5, -1, np.random.default_rng(0)])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(ArgumentError, match="seed must be a whole number from 0 on"):
        S.MaskScheduler(S.sr_ste(), seed=seed)
    with pytest.raises(ArgumentError, match="seed must be a whole number from 0 on"):
        S.AsyncScheduler(S.sr_ste(), {"w": np.ones((4, 8))}, seed=seed)


def test_a_name_pattern_does_not_come_after_a_wider_one():
    weights = {"body.w": np.ones((4, 8)), "head.w": np.ones((4, 8))}
    for late in (None, S.Recipe()):
        with pytest.raises(ArgumentError, match=r"'head\.\*' comes after '\*', .* put it before"):
            S.init({"*": S.sr_ste(), "head.*": late}, weights)
    assert S.init({"body.*": S.sr_ste(), "*.w": None}, weights).names == ("body.w",)
    assert S.init({"*.w": S.sr_ste(), "*": None}, weights).names == tuple(weights)


@pytest.mark.parametrize("part", [{"criterion": S.Movement()}, {"grower": S.MomentumGrowth(0.3)}])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_an_overflow_is_not_remembered_for_good(rng, part, bad):
    weights, grads = layers(rng, a=(8, 16)), [layers(rng, a=(8, 16)) for _ in range(6)]
    runs = [S.MaskScheduler(S.Recipe(S.ConstantScheduler(0.5, every=1), **part)) for _ in range(2)]
    for step, grad in enumerate(grads):
        skipped = np.zeros((8, 16)) if step == 2 else grad["a"]
        masks = [
            run.step(
                weights=weights,
                gradients={"a": np.full((8, 16), bad) if step == 2 and number else skipped},
            )
            for number, run in enumerate(runs)
        ]
    np.testing.assert_array_equal(masks[0]["a"], masks[1]["a"])


@pytest.mark.parametrize("criterion", [S.Taylor(), S.GradientMagnitude()])
@pytest.mark.parametrize("pattern", [S.Unstructured(), S.NM(), S.Transposable24()], ids=repr)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("everywhere", [True, False])
def test_a_mask_stays_where_a_gradient_overflowed(rng, criterion, pattern, bad, everywhere):
    """Scores of NaN, all alike, would keep the first weights of the layer or of each group."""
    weights, gradients = layers(rng, a=(8, 16)), layers(rng, a=(8, 16))
    overflowed = gradients["a"].copy()
    overflowed[... if everywhere else (3, 5)] = bad
    recipe = S.Recipe(S.ConstantScheduler(0.5, every=1), criterion, pattern)
    scheduler = S.MaskScheduler(recipe)
    before = scheduler.step(weights=weights, gradients=gradients)["a"]
    weights["a"] = weights["a"][::-1]
    after = scheduler.step(weights=weights, gradients={"a": overflowed})["a"]
    np.testing.assert_array_equal(after, before)
    assert (scheduler.step(weights=weights, gradients=gradients)["a"] != before).any() == (
        type(criterion) is S.Taylor
    )


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_taylor_prunes_by_magnitude_where_a_gradient_overflowed(rng, bad):
    weights = layers(rng, a=(8, 16))
    overflowed = {"a": np.full((8, 16), bad, np.float32)}
    ramp = S.LinearScheduler(0.75, init_sparsity=0.25, stop=2)
    scheduler = S.MaskScheduler(S.Recipe(ramp, S.Taylor()))
    for sparsity in (0.25, 0.5, 0.75):
        mask = scheduler.step(weights=weights, gradients=overflowed)["a"]
        want = S.Unstructured().mask(np.abs(weights["a"]), sparsity)
        np.testing.assert_array_equal(mask, want)


@pytest.mark.parametrize("inner", [S.Taylor(), S.GradientMagnitude(), S.Movement()])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_an_overflow_adds_nothing_to_scores(rng, inner, bad):
    weights, gradients = layers(rng, a=(8, 16)), layers(rng, a=(8, 16))
    recipe = S.Recipe(S.ConstantScheduler(0.5), S.Accumulated(inner))
    scheduler = S.MaskScheduler(recipe)
    scheduler.observe(weights=weights, gradients={"a": np.full((8, 16), bad, np.float32)})
    masks = scheduler.step(weights=weights, gradients=gradients)
    clean = S.MaskScheduler(recipe).step(weights=weights, gradients=gradients)
    np.testing.assert_array_equal(masks["a"], clean["a"])


@pytest.mark.parametrize(
    "spread",
    [
        S.Custom({"bdoy.*": 0.5}),
        S.Adaptive(overrides={"bdoy.*": S.LayerWiseAdapter()}),
        S.Hierarchical(inner=S.Custom({"bdoy.*": 0.5})),
    ],
)
def test_name_patterns_within_recipes_fit_weights(rng, spread):
    weights = {"body.w": rng.normal(size=(8, 16)), "head.w": rng.normal(size=(8, 16))}
    with pytest.raises(ArgumentError, match=r"name pattern 'bdoy\.\*' fits none of the 2 weights"):
        S.init(S.Recipe(distribution=spread), weights)
    right = S.Recipe(distribution=S.Custom({"body.*": 0.5}))
    assert S.init(right, weights).names == tuple(weights)


@pytest.mark.parametrize("recipe", [S.Recipe(), S.sr_ste()])
def test_complex_layers_are_refused(recipe):
    with pytest.raises(DTypeError, match="layer 'w' must hold real numbers, got complex128"):
        S.init(recipe, {"w": np.ones((4, 8), complex)})
