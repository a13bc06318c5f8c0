"""What the demo and `bench` say of the time of a call."""

from __future__ import annotations

import itertools

import pytest

from sparse24 import _timing


class Clock:
    """Time that passes only in calls and pauses."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(_timing, "time", clock)
    return clock


def test_what_else_runs_on_the_machine_does_not_count(clock):
    """Three of four calls meet another process, whose turn lasts 16 ms."""
    waits = itertools.cycle([0.016, 0.016, 0.016, 0.0])
    disturbed, quiet = _timing.seconds_each(
        [lambda: clock.sleep(1e-3 + next(waits)), lambda: clock.sleep(2e-3)], on_gpu=False
    )
    assert disturbed == pytest.approx(1e-3)
    assert quiet == pytest.approx(2e-3)


def test_a_call_begins_after_a_pause_and_awake(clock):
    """Threads of another library have gone to sleep, its own have been woken."""
    pauses, calls = [], []
    sleep = clock.sleep
    clock.sleep = lambda seconds: (pauses.append(len(calls)), sleep(seconds))

    def call(name):
        return lambda: (calls.append(name), sleep(1.0))

    _timing.seconds_each([call("a"), call("b")], on_gpu=False)
    assert len(pauses) == _timing.ROUNDS + 1  # one for each change of turns
    assert all(calls[at] == calls[at + 1] != calls[at - 1] for at in pauses[1:])
