"""Saving, resuming, asynchronous updates and telemetry."""

from __future__ import annotations

import csv
import pickle
import sys
import warnings
from functools import partial

import numpy as np
import pytest

from sparse24 import _arrays
from sparse24 import schedule as S
from sparse24._errors import ArgumentError, FormatError, UnsupportedError

RECIPES = {
    "rigl": S.rigl(0.6, total_steps=12, every=2),
    "accumulated": S.Recipe(
        S.CosineScheduler(0.6, 0.2, stop=10, every=3),
        S.Accumulated(S.Taylor()),
        distribution=S.Adaptive(),
    ),
    "set-2:4": S.Recipe(
        S.ConstantScheduler(0.5, every=2), pattern=S.NM(), grower=S.RandomGrowth(0.2)
    ),
    "momentum": S.Recipe(
        S.CubicScheduler(0.7, stop=9, every=2), S.Movement(), grower=S.MomentumGrowth(0.3, 9)
    ),
}
SHAPES = {"a": (16, 32), "b": (8, 16)}


def data(t):
    rng = np.random.default_rng(t)
    gradients, weights = (
        {n: rng.normal(size=s).astype(np.float32) for n, s in SHAPES.items()} for _ in range(2)
    )
    return {"weights": weights, "gradients": gradients}


def converted(convert, t):
    """`data` in another library."""
    return {k: {n: convert(x) for n, x in arrays.items()} for k, arrays in data(t).items()}


def assert_same(a, b):
    assert set(a) == set(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


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
    with pytest.raises(FormatError, match="this is no sparse24"):
        scheduler.load_state_dict({})
    saved["masks"]["a"]["bits"] = saved["masks"]["a"]["bits"][:-1]
    with pytest.raises(FormatError, match="does not fit a layer of shape"):
        scheduler.load_state_dict(saved)


@pytest.mark.parametrize("delay", [0, 1, 3])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_background_equals_synchronous_with_the_same_delay(recipe, delay):
    plain = S.MaskScheduler(recipe, seed=5)
    at_once = [plain.step(**data(t)) for t in range(12)]
    with S.AsyncScheduler(recipe, data(0)["weights"], delay=delay, seed=5) as beside:
        slow = S.AsyncScheduler(recipe, data(0)["weights"], delay=delay, background=False, seed=5)
        for t in range(12):
            a, b = beside.step(**data(t)), slow.step(**data(t))
            assert_same(a, b)
            if t >= delay:
                assert_same(a, at_once[t - delay])
            else:
                assert all(m.all() for m in a.values())


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_side_stream_equals_the_cpu(recipe, library):
    module = pytest.importorskip(library)
    move = module.asarray if library == "cupy" else lambda x: module.as_tensor(x, device="cuda")
    with S.AsyncScheduler(recipe, converted(move, 0)["weights"], delay=2, seed=5) as beside:
        plain = S.AsyncScheduler(recipe, data(0)["weights"], delay=2, background=False, seed=5)
        for t in range(12):
            got = beside.step(**converted(move, t))
            assert_same({n: _arrays.to_numpy(m) for n, m in got.items()}, plain.step(**data(t)))


def test_background_reads_a_snapshot():
    arrays = data(0)
    weights, recipe = arrays["weights"], S.Recipe(S.OneShot(0.5))
    with S.AsyncScheduler(recipe, weights, delay=1) as scheduler:
        want = S.MaskScheduler(recipe).step(weights=weights)
        scheduler.step(**arrays)
        weights["a"][:] = 0  # the training goes on in place
        assert_same(scheduler.step(**arrays), want)


def test_what_fails_beside_the_training_is_raised_at_the_end():
    weights, recipe = data(0)["weights"], S.Recipe(S.OneShot(0.5), S.Taylor())

    def train(error=None):
        with S.AsyncScheduler(recipe, weights, delay=2) as scheduler:
            scheduler.step(weights=weights)  # without the gradients that Taylor() needs
            if error is not None:
                raise error

    with pytest.raises(ArgumentError, match="Taylor needs the gradient of layer 'a'"):
        train()
    with pytest.raises(ZeroDivisionError):
        train(ZeroDivisionError())


@pytest.mark.parametrize("background", [False, True])
def test_a_scheduler_that_is_closed_says_so(background):
    scheduler = S.AsyncScheduler(RECIPES["rigl"], data(0)["weights"], background=background)
    scheduler.step(**data(0))
    scheduler.close()
    with pytest.raises(ArgumentError, match="the scheduler is closed; make another"):
        scheduler.step(**data(1))
    assert scheduler.state_dict()["step"] == 1


def test_resume_with_masks_under_way():
    recipe = RECIPES["rigl"]
    with (
        S.AsyncScheduler(recipe, data(0)["weights"], delay=2, seed=5) as through,
        S.AsyncScheduler(recipe, data(0)["weights"], delay=2, seed=7) as resumed,
    ):
        for t in range(5):
            through.step(**data(t))
        resumed.load_state_dict(pickle.loads(pickle.dumps(through.state_dict())))
        for t in range(5, 12):
            assert_same(through.step(**data(t)), resumed.step(**data(t)))
            assert [e.step for e in through.events] == [e.step for e in resumed.events]


@pytest.mark.parametrize("background", [False, True])
def test_frozen_masks_under_way_are_dropped(background):
    recipe = RECIPES["set-2:4"]
    with S.AsyncScheduler(recipe, data(0)["weights"], delay=2, background=background) as scheduler:
        for t in range(5):
            masks = scheduler.step(**data(t))
        scheduler.freeze()
        assert scheduler.frozen
        for t in range(5, 9):
            assert_same(scheduler.step(**data(t)), masks)
            assert not scheduler.events
        scheduler.thaw()
        later = [scheduler.step(**data(t)) for t in range(9, 12)]
    assert_same(later[1], masks)
    assert (later[2]["a"] != masks["a"]).any()  # of step 9, for those of 6 and 8 were missed
    assert scheduler.state.step == 12


def test_the_latest_update_of_a_layer_is_that_of_the_masks_in_use():
    recipe = S.Recipe(S.ConstantScheduler(0.5, every=1), pattern=S.NM())
    with S.AsyncScheduler(recipe, data(0)["weights"], delay=3) as scheduler:
        for t in range(6):
            scheduler.step(**data(t))
        assert scheduler.events[0].step == 2
        scheduler.freeze()  # drops three updates
        assert set(scheduler.state.updated.values()) == {2}


@pytest.mark.parametrize("resumes", [False, True])
def test_a_first_update_that_was_dropped_was_not_made(resumes):
    recipe, weights = S.rigl(0.5, total_steps=100, every=50), data(0)["weights"]
    scheduler = S.AsyncScheduler(recipe, weights, delay=2, background=False)
    scheduler.freeze()
    scheduler.step(**data(0))
    scheduler.thaw()
    scheduler.step(**data(1))  # makes up for the update that was missed
    if resumes:
        saved = scheduler.state_dict()
        scheduler = S.AsyncScheduler(recipe, weights, delay=2, background=False)
        scheduler.load_state_dict(saved)
    scheduler.freeze()
    assert not scheduler.state.updated
    scheduler.thaw()
    got = [scheduler.step(**data(t)) for t in range(2, 5)][-1]
    plain = S.MaskScheduler(recipe)
    plain.start(weights)
    plain.freeze()
    for t in range(2):
        plain.step(**data(t))
    plain.thaw()
    assert_same(got, plain.step(**data(2)))


@pytest.mark.parametrize("at", [0, 3])
def test_masks_that_were_dropped_are_made_anew(at):
    recipe = S.Recipe(S.OneShot(0.5, at=at), initial=S.RandomScores())
    with S.AsyncScheduler(recipe, data(0)["weights"], delay=2) as scheduler:
        for t in range(at + 1):
            scheduler.step(**data(t))
        scheduler.freeze()
        scheduler.step(**data(7))
        scheduler.thaw()
        masks = [scheduler.step(**data(8 + t)) for t in range(3)]
    assert masks[1]["a"].all()
    assert masks[2]["a"].mean() == 0.5
    by_size = S.Unstructured().mask(np.abs(data(8)["weights"]["a"]), 0.5)
    assert (masks[2]["a"] == by_size).all() == (at > 0)  # the first mask is at random


def test_telemetry(tmp_path):
    telemetry = S.Telemetry(flip_limit=0.01)
    scheduler = S.MaskScheduler(RECIPES["rigl"], telemetry=telemetry)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for t in range(5):
            scheduler.step(**data(t))
    assert all(w.category is S.MaskWarning for w in caught)
    assert "of the mask flipped at step 2, more than flip_limit=1.0%" in str(caught[0].message)
    assert telemetry.column("step", "a") == [0, 2, 4]
    assert telemetry.column("age", "a") == [0, 2, 2]
    assert telemetry.rows[-1]["flip_rate"] > 0
    weight = data(4)["weights"]["b"]
    norm = np.sqrt((weight[scheduler.masks["b"]] ** 2).sum())
    assert telemetry.rows[-1]["kept_norm"] == pytest.approx(norm, rel=1e-5)
    telemetry.to_csv(tmp_path / "masks.csv")
    with open(tmp_path / "masks.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(telemetry.rows) == 6
    assert int(rows[0]["nnz"]) == telemetry.rows[0]["nnz"]


def test_telemetry_plots():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    telemetry = S.Telemetry(live=True)
    scheduler = S.MaskScheduler(RECIPES["rigl"], telemetry=telemetry)
    for t in range(3):
        scheduler.step(**data(t))
    axes = telemetry.plot()
    assert len(axes[0].lines) == 2


def test_telemetry_without_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'sparse24\[plot\]'"):
        S.Telemetry().plot()


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


@pytest.mark.parametrize("key", ["step", "seed"])
@pytest.mark.parametrize("wrong", [-1, 1.5, "2"])
def test_numbers_of_a_damaged_state_are_whole(key, wrong):
    scheduler = S.MaskScheduler(S.sr_ste())
    scheduler.step(weights={"w": np.ones((4, 8))})
    with pytest.raises(FormatError, match=r"damaged .*no whole number from 0 on"):
        scheduler.load_state_dict({**scheduler.state_dict(), key: wrong})
    scheduler.load_state_dict({**scheduler.state_dict(), key: np.array(2)})
    assert getattr(scheduler.state, key) == 2
