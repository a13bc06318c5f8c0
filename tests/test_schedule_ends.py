"""Where masks never change again, schedulers look at nothing any more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from schedule_cases import assert_same, data

from sparse24 import schedule as S

SCHEDULES = {
    "constant": (S.ConstantScheduler(0.5), 0),
    "until": (S.ConstantScheduler(0.5, every=3, stop=7), 7),
    "for ever": (S.ConstantScheduler(0.5, every=3), None),
    "ramp": (S.CubicScheduler(0.6, start=2, stop=9, every=4), 9),
    "milestones": (S.StepScheduler({4: 0.25, 8: 0.5}), 8),
    "phases": (S.dense_sparse_dense(0.5, 3, 8, every=2), 8),
    "endless phase": (S.Phases([(3, S.OneShot(0.5)), (4, S.LinearScheduler(stop=2))]), 5),
    "no last phase": (S.Phases([(3, S.OneShot(0.5)), (None, S.ConstantScheduler(0.5, 1))]), None),
}


@pytest.mark.parametrize("case", SCHEDULES.values(), ids=SCHEDULES)
def test_there_is_no_update_after_the_last_change(case):
    schedule, last = case
    assert schedule.last_change() == last
    assert last is None or not any(map(schedule.updates, range(last + 1, 50)))


@pytest.mark.parametrize("case", SCHEDULES.values(), ids=SCHEDULES)
def test_gradients_are_needed_until_the_last_change(case, monkeypatch):
    schedule, last = case
    recipe = S.Recipe(schedule, S.Accumulated(), grower=S.MomentumGrowth())
    parts = recipe, S.Recipe(schedule, S.Accumulated(), grower=S.MomentumGrowth())
    short, whole = (S.MaskScheduler(part) for part in parts)
    for t in range(12):
        now = {} if last is not None and t > last else data(t)
        masks = short.step(**now)
        with monkeypatch.context() as always:
            always.setattr(type(schedule), "last_change", lambda _: None)
            assert_same(masks, whole.step(**data(t)))
    with S.AsyncScheduler(recipe, data(0)["weights"], delay=2) as later:
        for t in range(14):
            now = later.step(**({} if last is not None and t > last else data(t)))
        assert_same(now, masks)


def test_an_update_missed_while_frozen_looks_at_its_step():
    scheduler = S.MaskScheduler(S.Recipe(S.OneShot(0.5, at=2), S.Accumulated()))
    scheduler.step(**data(0))
    scheduler.freeze()
    for t in range(1, 6):
        scheduler.step(**data(t))
    scheduler.thaw()
    masks = scheduler.step(**data(6))
    assert sum(int(mask.sum()) for mask in masks.values()) == 320
    assert_same(scheduler.step(), masks)


@dataclass(frozen=True)
class Twice(S.ConstantScheduler):
    """A constant sparsity with updates of its own, of which its parent knows nothing."""

    def updates(self, step):
        return step in (0, 5)


def test_a_schedule_with_updates_of_its_own_has_no_known_end():
    recipe = S.Recipe(Twice(0.5), S.Movement())
    scheduler, totals = S.MaskScheduler(recipe), {}
    for t in range(6):
        arrays = data(t)
        masks = scheduler.step(**arrays)
        for name, weight in arrays["weights"].items():
            totals[name] = totals.get(name, 0) - weight * arrays["gradients"][name]
    for name, total in totals.items():
        np.testing.assert_array_equal(masks[name], S.Unstructured().mask(total, 0.5))


class Rarely:
    """Updates for a schedule beside it among the bases, and an option for subclasses."""

    def __init_subclass__(cls, every=5, **options):
        super().__init_subclass__(**options)
        cls.after = every

    def updates(self, step):
        return step % self.after == 0


def test_updates_of_another_base_have_no_known_end():
    class First(Rarely, S.ConstantScheduler, every=3):
        pass

    class Last(S.ConstantScheduler, Rarely, every=3):
        pass

    class Ended(First):
        def last_change(self):
            return 9

    class Later(Ended):
        pass

    schedules = First(0.5), Last(0.5), Ended(0.5), Later(0.5)
    assert [schedule.last_change() for schedule in schedules] == [None, 0, 9, 9]
    assert [schedule.after for schedule in schedules] == [3, 3, 5, 5]
    assert First(0.5).updates(3)
    assert not Last(0.5).updates(3)
