"""Saving and resuming a scheduler."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
from schedule_cases import RECIPES, assert_same, converted, data

from sparse24 import schedule as S
from sparse24._errors import FormatError


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("stop", [1, 4, 7])
def test_resume_equals_no_interruption(recipe, stop):
    first = S.MaskScheduler(recipe, seed=5)
    for t in range(stop):
        first.step(**data(t))
    first.observe(**data(100))
    saved = pickle.loads(pickle.dumps(first.state_dict()))
    second = S.MaskScheduler(recipe, seed=99)
    second.load_state_dict(saved)
    fresh = S.MaskScheduler(recipe, seed=5)
    for t in range(stop):
        fresh.step(**data(t))
    fresh.observe(**data(100))
    for t in range(stop, 12):
        assert_same(second.step(**data(t)), fresh.step(**data(t)))


@pytest.mark.parametrize("recipe", RECIPES)
def test_torch_loads_the_state_of_its_layers_by_default(recipe, tmp_path):
    torch = pytest.importorskip("torch")
    tensors = partial(converted, torch.from_numpy)
    through, resumed = (S.MaskScheduler(RECIPES[recipe]) for _ in range(2))
    under_way = S.AsyncScheduler(RECIPES[recipe], tensors(0)["weights"], delay=2)
    for t in range(5):
        through.step(**tensors(t))
        under_way.step(**tensors(t))
    states = {"scheduler": through.state_dict(), "under_way": under_way.state_dict()}
    under_way.close()
    torch.save(states, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt")
    resumed.load_state_dict(loaded["scheduler"])
    on_host = S.MaskScheduler(RECIPES[recipe])  # and one of NumPy takes it, too
    on_host.load_state_dict(loaded["scheduler"])
    with S.AsyncScheduler(RECIPES[recipe], tensors(0)["weights"], delay=2) as again:
        again.load_state_dict(loaded["under_way"])
        assert_same(again.masks, under_way.masks)
    for t in range(5, 12):
        masks = through.step(**tensors(t))
        assert_same(masks, resumed.step(**tensors(t)))
        assert_same(masks, on_host.step(**data(t)))


def test_torch_loads_the_state_of_other_layers_by_pickle_alone(tmp_path):
    torch = pytest.importorskip("torch")
    first, second = (S.MaskScheduler(RECIPES["rigl"]) for _ in range(2))
    first.step(**data(0))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    with pytest.raises(pickle.UnpicklingError, match="weights_only"):
        torch.load(tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=False))
    assert_same(first.step(**data(1)), second.step(**data(1)))


def test_a_state_that_is_loaded_can_be_saved_before_the_first_step():
    first, second, third = (S.MaskScheduler(RECIPES["rigl"], seed=s) for s in (5, 6, 7))
    for t in range(3):
        first.step(**data(t))
    second.load_state_dict(first.state_dict())
    third.load_state_dict(second.state_dict())
    assert_same(third.step(**data(3)), first.step(**data(3)))


def test_parts_within_parts_of_a_recipe_tell_states_apart():
    def scheduler(length, names):
        phases = S.Phases([(length, S.ConstantScheduler(0.5)), (None, S.ConstantScheduler(0.0))])
        made = S.MaskScheduler(S.Recipe(phases, distribution=S.Custom(names)))
        made.step(**data(0))
        return made

    saved = scheduler(3, {"a": 1.0}).state_dict()
    scheduler(3, {"a": 1.0}).load_state_dict(saved)
    for other in (scheduler(4, {"a": 1.0}), scheduler(3, {"a": 0.5})):
        with pytest.raises(FormatError, match="other recipes or layers"):
            other.load_state_dict(saved)


def test_state_is_small_and_versioned():
    scheduler = S.MaskScheduler(S.Recipe(S.OneShot(0.5)))
    scheduler.step(weights=data(0)["weights"])
    saved = scheduler.state_dict()
    assert saved["version"] == 1
    assert saved["masks"]["a"]["bits"].nbytes == 16 * 32 // 8
    other = S.MaskScheduler(S.Recipe(S.OneShot(0.25)))
    other.step(weights=data(0)["weights"])
    with pytest.raises(FormatError, match="other recipes or layers"):
        other.load_state_dict(saved)
    taylor, movement = (
        S.MaskScheduler(S.Recipe(criterion=S.Accumulated(c))) for c in (S.Taylor(), S.Movement())
    )
    taylor.step(**data(0))
    movement.step(**data(0))
    with pytest.raises(FormatError, match="other recipes or layers"):
        taylor.load_state_dict(movement.state_dict())
    with pytest.raises(FormatError, match="has version 2, this library reads 1; load it"):
        scheduler.load_state_dict({**saved, "version": 2})
    with pytest.raises(FormatError, match="this is not a sparse24"):
        scheduler.load_state_dict({})
    saved["masks"]["a"]["bits"] = saved["masks"]["a"]["bits"][:-1]
    with pytest.raises(FormatError, match="does not fit a layer of shape"):
        scheduler.load_state_dict(saved)


@pytest.mark.parametrize("saved", [None, "text", [1], {}, {"format": "sparse24.schedule"}])
def test_what_is_no_state_is_refused_at_once(saved):
    weights = {"w": np.ones((4, 8))}
    with S.AsyncScheduler(S.sr_ste(), weights) as scheduler:
        for fresh in (S.MaskScheduler(S.sr_ste()), scheduler):
            with pytest.raises(FormatError, match="state"):
                fresh.load_state_dict(saved)


def test_a_state_of_other_layers_never_starts_a_training():
    other = S.MaskScheduler(S.sr_ste())
    other.step(weights={"w": np.ones((4, 16))})
    scheduler = S.MaskScheduler(S.sr_ste())
    scheduler.load_state_dict(other.state_dict())
    for _ in range(2):
        with pytest.raises(FormatError, match="other recipes or layers"):
            scheduler.step(weights={"w": np.ones((4, 8))})


DAMAGE = {
    ("step",): "x",
    ("seed",): None,
    ("missed",): 3,
    ("updated",): [],
    ("updated", "w"): float("nan"),
    ("masks", "w"): None,
    ("masks", "w", "shape"): 1.5,
    ("masks", "w", "bits"): [],
    ("memory",): {},
    ("memory", "w"): 0,
    ("format",): np.ones(3),
    ("version",): np.ones(3),
    ("in_use",): {},
    ("in_use", "w", "bits"): None,
    ("in_use_updated", "w"): None,
    ("waiting",): 2,
    ("waiting", 0, "w"): None,
    ("events", 0): [{"step": 1}],
}


@pytest.mark.parametrize("place", DAMAGE, ids=lambda place: ".".join(map(str, place)))
@pytest.mark.parametrize("kind", ["MaskScheduler", "AsyncScheduler"])
def test_a_damaged_state_is_refused_and_changes_nothing(rng, kind, place):
    weights, recipe = {"w": rng.normal(size=(4, 8))}, S.rigl(0.5, total_steps=9, every=1)

    def started(steps):
        late = kind == "AsyncScheduler"
        new = (
            S.AsyncScheduler(recipe, weights, background=False) if late else S.MaskScheduler(recipe)
        )
        for _ in range(steps):
            new.step(weights=weights, gradients=weights)
        return new

    saved, scheduler = started(3).state_dict(), started(2)
    if place[0] not in saved:
        return
    part = saved
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = DAMAGE[place]
    before = scheduler.state_dict()
    words = r"damaged|format is|has version|delay 1 or less|does not fit"
    with pytest.raises(FormatError, match=words):
        scheduler.load_state_dict(saved)
    assert repr(scheduler.state_dict()) == repr(before)


@pytest.mark.parametrize("wrong", [np.ones((1, 8)), np.ones(()), np.array("x"), None])
@pytest.mark.parametrize(
    "part",
    [
        {"criterion": S.Movement()},
        {"criterion": S.Accumulated(S.Movement())},
        {"grower": S.MomentumGrowth()},
        {"distribution": S.Hierarchical(inner=S.Adaptive())},
        {"initial": S.Movement()},
    ],
    ids=["movement", "accumulated", "momentum", "adaptive", "initial"],
)
def test_what_a_damaged_state_remembers_is_looked_at(rng, part, wrong):
    weights = {"w": rng.normal(size=(4, 8))}
    schedule = S.OneShot(0.5, at=9) if "initial" in part else S.ConstantScheduler(0.5, every=5)
    scheduler = S.MaskScheduler(S.Recipe(schedule, **part))
    if "initial" in part:
        scheduler.observe(weights=weights, gradients=weights)
    else:
        for _ in range(2):
            scheduler.step(weights=weights, gradients=weights)
    saved = scheduler.state_dict()
    for key in saved["memory"]["w"]:
        if key == "grad_square" and np.shape(wrong) == () and np.asarray(wrong).dtype == float:
            continue  # a mean, which this may be
        broken = {**saved, "memory": {"w": {**saved["memory"]["w"], key: wrong}}}
        with pytest.raises(FormatError, match="the saved state is damaged"):
            scheduler.load_state_dict(broken)
    assert saved["memory"]["w"]


DAMAGED = {"masks": None, "fingerprint": np.zeros(3), "memory": {"w": {"grad_square": -1.0}}}


@pytest.mark.parametrize("key", DAMAGED)
def test_a_damaged_state_that_waits_for_layers_is_refused_at_the_first_step(key):
    weights = {"w": np.ones((4, 8))}
    scheduler = S.DynamicScheduler()
    scheduler.step(weights=weights, gradients=weights)
    resumed = S.DynamicScheduler()
    resumed.load_state_dict({**scheduler.state_dict(), key: DAMAGED[key]})
    with pytest.raises(FormatError, match="the saved state is damaged"):
        resumed.step(weights=weights, gradients=weights)


@pytest.mark.parametrize("key", ["step", "seed"])
@pytest.mark.parametrize("wrong", [-1, 1.5, "2"])
def test_numbers_of_a_damaged_state_are_whole(key, wrong):
    scheduler = S.MaskScheduler(S.sr_ste())
    scheduler.step(weights={"w": np.ones((4, 8))})
    with pytest.raises(FormatError, match=r"damaged .*not a whole number from 0 on"):
        scheduler.load_state_dict({**scheduler.state_dict(), key: wrong})
    scheduler.load_state_dict({**scheduler.state_dict(), key: np.array(2)})
    assert getattr(scheduler.state, key) == 2


NUMBERS = {
    "every": (lambda x: S.ConstantScheduler(0.5, every=x), 10, np.int64(10), np.int64(20)),
    "every in an array": (lambda x: S.ConstantScheduler(0.5, every=x), 10, np.array(10), 20),
    "target": (S.ConstantScheduler, 0.75, np.float32(0.75), np.float32(0.5)),
    "target in an array": (S.ConstantScheduler, 0.75, np.array(0.75), np.array(0.5)),
    "milestones": (lambda x: S.StepScheduler({x: 0.5}), 3, np.int64(3), np.int64(4)),
}


@pytest.mark.parametrize("case", NUMBERS.values(), ids=NUMBERS)
def test_a_state_tells_recipes_apart_by_numbers_of_any_type(case):
    """Those of NumPy were known by their type alone."""
    made, number, same, other = case
    first, again, wrong = (S.MaskScheduler(S.Recipe(made(x))) for x in (number, same, other))
    for scheduler in (first, again, wrong):
        scheduler.step(**data(0))
    assert_same(first.masks, again.masks)
    first.load_state_dict(again.state_dict())
    again.load_state_dict(first.state_dict())
    with pytest.raises(FormatError, match="other recipes"):
        wrong.load_state_dict(again.state_dict())
