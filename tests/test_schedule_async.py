"""Asynchronous updates of masks: the same as synchronous ones, later."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import Future

import numpy as np
import pytest
from schedule_cases import RECIPES, assert_same, converted, data

from sparse24 import _arrays
from sparse24 import schedule as S
from sparse24._errors import ArgumentError, UnsupportedError
from sparse24._schedule import core


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
    before = set(threading.enumerate())

    def train(error=None):
        with S.AsyncScheduler(recipe, weights, delay=2) as scheduler:
            scheduler.step(weights=weights)  # without the gradients that Taylor() needs
            if error is not None:
                raise error

    with pytest.raises(ArgumentError, match="Taylor needs the gradient of layer 'a'"):
        train()
    with pytest.raises(ZeroDivisionError):
        train(ZeroDivisionError())
    assert not set(threading.enumerate()) - before


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


def interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("delay", [0, 1, 3])
@pytest.mark.parametrize("saved", [False, True])
def test_a_step_that_an_interrupt_ended_is_made_again(delay, saved, monkeypatch):
    recipe, weights = RECIPES["rigl"], data(0)["weights"]
    plain, scheduler = (S.AsyncScheduler(recipe, weights, delay=delay) for _ in range(2))
    for t in range(12):
        if t in (5, 6):
            place = (Future, "exception") if delay else (core, "step")  # where it waits, or works
            with monkeypatch.context() as patch:
                patch.setattr(*place, interrupt)
                with pytest.raises(KeyboardInterrupt):
                    scheduler.step(**data(t))
            if saved:
                state = scheduler.state_dict()
                scheduler.close()
                scheduler = S.AsyncScheduler(recipe, weights, delay=delay)
                scheduler.load_state_dict(state)
        assert_same(scheduler.step(**data(t)), plain.step(**data(t)))
        assert [(e.name, e.step) for e in scheduler.events] == [
            (e.name, e.step) for e in plain.events
        ]
        assert scheduler.state.step == t + 1
    scheduler.close()
    plain.close()


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_copies_name_the_state_instead(duplicate):
    with (
        S.AsyncScheduler(RECIPES["rigl"], data(0)["weights"]) as scheduler,
        pytest.raises(UnsupportedError, match=r"neither pickled nor copied; save its state_dict"),
    ):
        duplicate(scheduler)


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


def test_only_the_dropped_layers_are_made_anew():
    weights = data(0)["weights"]
    first, *others = weights
    rules = {first: S.Recipe(S.OneShot(0.5)), "*": S.Recipe(S.OneShot(0.5, at=3))}
    with S.AsyncScheduler(rules, weights, delay=1) as scheduler:
        for t in range(4):
            scheduler.step(**data(t))
        scheduler.freeze()  # drops the updates of step 3
        scheduler.thaw()
        scheduler.step(**data(4))
        scheduler.step(**data(5))
        assert {event.name for event in scheduler.events} == set(others)
