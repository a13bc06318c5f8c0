"""Masks off the critical path: computed from a snapshot, in use a fixed number of steps later.

The delay is the same whether the work runs beside the training or within it, so the two modes
give the same masks.  NumPy work runs on a thread; on a GPU the thread enqueues on a stream of
its own, ordered with the training stream by events.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from sparse24 import _check
from sparse24._errors import ArgumentError, FormatError, UnsupportedError
from sparse24._schedule import core
from sparse24._schedule import state as schedule_state
from sparse24._schedule.arrays import copied
from sparse24._schedule.decide import check_given
from sparse24._schedule.initial import init
from sparse24._schedule.lanes import lane_of
from sparse24._schedule.masks import MaskScheduler, named, named_gradients
from sparse24._schedule.records import Rules, State, Update
from sparse24._schedule.telemetry import Telemetry, check_telemetry


class AsyncScheduler:
    """A scheduler that computes masks in the background, for use exactly `delay` steps later.

    Parameters
    ----------
    rules : Recipe, or mapping of str to Recipe or None
    weights : mapping of str to array
        Arrays with the names and shapes of the layers.
    delay : int, default 1
        The exact delay in steps: the masks of step t are in use at step ``t + delay``, and
        masks that are all true before step `delay`.
    background : bool, default True
        Whether a thread computes the masks; with False `step` does, with the same results.
    seed : int, default 0
        Of all that is drawn at random; the same on every rank.
    telemetry : Telemetry, optional
        Records the events of the masks as they come into use, which waits for their counts.

    Notes
    -----
    Use it as a context manager, or call `close`.  An error in the computation of a thread is raised
    by the step that was to use its masks, or by `close`; after it a state must be loaded to
    continue.  Without a thread, be it that `delay` is 0, the step itself raises it, and was not
    made; nor was one that an interrupt ended.
    There is no ``observe`` and no ``reduce=``: where micro-batches are accumulated, or scores
    differ between ranks, use `MaskScheduler`.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> weights = {"w": np.arange(8.0).reshape(1, 8)}
    >>> recipe = schedule.Recipe(schedule.OneShot(0.5), pattern=schedule.NM())
    >>> with schedule.AsyncScheduler(recipe, weights, delay=2) as scheduler:
    ...     counts = [int(scheduler.step(weights=weights)["w"].sum()) for _ in range(4)]
    >>> counts
    [8, 8, 4, 4]
    """

    def __init__(
        self, rules: Rules, weights, *, delay: int = 1, background: bool = True, seed: int = 0,
        telemetry: Telemetry | None = None,
    ):  # fmt: skip
        delay = _check.whole(delay, argument="delay", least=0)
        weights = named(weights)
        if weights is None:
            raise ArgumentError("weights must be given, to learn the layers, got None")
        self.delay = delay
        self._closed = self._failed = False
        self.telemetry = check_telemetry(telemetry)
        self.events: tuple[Update, ...] = ()
        self._state: State = init(rules, weights, seed=seed)  # owned by the worker
        self._ahead = self._state  # the state's schedule, known without waiting
        self._masks = dict(self._state.masks)
        self._updated: dict[str, int] = {}  # the step that each of these masks is of
        self._queue: deque[tuple[Future, Any]] = deque()  # results and the snapshots they read
        # Memory pools reuse a freed block in the order of the stream that it came from, so
        # what the other stream may still read is kept until its work is certainly over.
        self._retired: deque = deque(maxlen=delay + 2)
        beside = background and delay > 0  # else each step would wait for its own work
        self._pool = ThreadPoolExecutor(1, "sparse24-masks") if beside else None
        self._lane = lane_of(next(iter(weights.values()), None)) if beside else None

    __repr__ = MaskScheduler.__repr__

    def __reduce__(self):
        raise UnsupportedError(
            "an AsyncScheduler has work under way, so it is neither pickled nor copied; save its "
            "state_dict(), and load it into a scheduler that is built alike"
        )

    def __enter__(self) -> AsyncScheduler:
        return self

    def __exit__(self, raised, *_) -> None:
        if raised is None:
            self.close()
        else:
            self._stop()

    def close(self) -> None:
        """Finish the pending work and stop the thread; raises what that work raised."""
        self._stop()
        for future, _ in () if self._failed else self._queue:
            future.result()

    def _stop(self) -> None:
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown()

    def freeze(self) -> None:
        """Keep the masks in use until `thaw`, which computes pending ones anew.

        Waits for the pending work.  If the last change of the masks is pending, it is made by what
        is observed from then on: between that change and `freeze` nothing was.
        """
        self._settle()
        dropped = {event.name for future, _ in self._queue for event in future.result()[1]}
        state = core.undone(self._state, self.masks, dict(self._updated), dropped)
        self._state = self._ahead = core.freeze(state)
        for place in range(len(self._queue)):
            self._queue[place] = (_done(self.masks), None)

    def thaw(self) -> None:
        """Let the masks follow the schedule again, `delay` steps later.  Waits for pending work."""
        self._settle()
        self._state = self._ahead = core.thaw(self._state)

    def _check_sound(self) -> None:
        """Refuse to go on, or to save, after an error in the computation."""
        if self._failed:
            raise ArgumentError(
                "the work of an earlier step failed, so later masks would belong to other steps; "
                "load a state_dict, or make another scheduler"
            )

    def _settle(self) -> None:
        """Wait until nothing is under way, so that the state may be looked at."""
        self._check_sound()
        for future, _ in self._queue:
            self._take(future)

    @property
    def frozen(self) -> bool:
        """Whether the masks stay as they are, after `freeze`."""
        return self._ahead.frozen

    @property
    def state(self) -> State:
        """The schedule's state at the latest step; its masks may still be pending."""
        return self._ahead

    @property
    def masks(self) -> dict[str, Any]:
        """The masks in use."""
        return dict(self._masks)

    def step(self, gradients=None, *, weights=None) -> dict[str, Any]:
        """Hand over a snapshot and return the masks to use at this step.

        Takes `weights` and `gradients` as `MaskScheduler.step` does.
        """
        if self._closed:
            raise ArgumentError(
                "the scheduler is closed; make another, and load this one's state_dict into it"
            )
        self._check_sound()
        weights, gradients = named(weights), named_gradients(gradients, missing=True)
        check_given(self._ahead, weights, gradients)
        if self._ahead.needs_arrays():
            weights, gradients = _snapshot(weights), _snapshot(gradients)
        else:
            weights = gradients = None
        # What is waited for comes before any change: an interrupted step was not made.
        due = self._take(self._queue[0][0]) if 0 < self.delay == len(self._queue) else None
        self._queue.append((self._submit(weights, gradients), (weights, gradients)))
        self._ahead = core.advance(self._ahead)
        self.events = ()
        if len(self._queue) > self.delay:
            future, snapshot = self._queue.popleft()
            self._retired.append((self._masks, snapshot))
            self._masks, self.events = self._take(future) if due is None else due
            self._updated |= {event.name: event.step for event in self.events}
        if self.telemetry is not None:
            self.telemetry.record(self.events)
        return self.masks

    def _submit(self, weights, gradients) -> Future:
        if self._pool is None:
            masks, events, _ = self._work(weights, gradients, None)
            return _done(masks, events)
        begin = self._lane.mark() if self._lane else None
        return self._pool.submit(self._work, weights, gradients, begin)

    def _work(self, weights, gradients, begin):
        with self._lane.use() if self._lane else contextlib.nullcontext():
            if self._lane is not None:
                self._lane.wait(begin)
            self._state, masks, events = core.step(
                self._state,
                weights=weights,
                gradients=gradients,
                measure=self.telemetry is not None,
            )
            return masks, events, self._lane.mark() if self._lane else None

    def _take(self, future: Future):
        self._failed = self._failed or future.exception() is not None
        masks, events, end = future.result()
        if self._lane is not None and end is not None:
            self._lane.wait(end)
        return dict(masks), events

    def state_dict(self) -> dict[str, Any]:
        """Everything, the masks that are not in use yet included; waits for the work."""
        self._check_sound()
        results = [self._take(future) for future, _ in self._queue]
        saved = schedule_state.to_dict(self._state)
        pack = schedule_state.pack_mask
        saved["in_use"] = {name: pack(mask) for name, mask in self._masks.items()}
        saved["in_use_updated"] = dict(self._updated)
        saved["waiting"] = [{name: pack(m) for name, m in masks.items()} for masks, _ in results]
        saved["events"] = [[schedule_state.pack_event(e) for e in events] for _, events in results]
        return saved

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on where `saved` was taken, by `state_dict`."""
        schedule_state.check(saved)
        whole = {"in_use", "in_use_updated", "waiting", "events"} <= saved.keys()
        waiting = saved["waiting"] if whole else ()
        if not whole or not isinstance(waiting, list | tuple) or len(waiting) > self.delay:
            raise FormatError(
                f"the saved state must be of an AsyncScheduler with delay {self.delay} or less; "
                "make the scheduler as it was made when the state was saved"
            )
        wait(future for future, _ in self._queue)
        state = schedule_state.from_dict(self._state, dict(saved))
        with schedule_state.reading():  # all of it, before anything changes
            masks = _unpacked(saved["in_use"], state.masks)
            updated = schedule_state.unpack_steps(saved["in_use_updated"])
            events = [tuple(Update(**event) for event in past) for past in saved["events"]]
            waits = [_unpacked(packed, state.masks) for packed in waiting]
            queue = [(_done(*pair), None) for pair in zip(waits, events, strict=True)]
        self._state = self._ahead = state
        self._masks, self._updated, self._failed = masks, updated, False
        self._queue = deque(queue)


def _unpacked(packed, like: Mapping[str, Any]) -> dict[str, Any]:
    return {name: schedule_state.unpack_mask(packed[name], like[name]) for name in like}


def _done(masks: Mapping[str, Any], events: tuple[Update, ...] = ()) -> Future:
    """Masks that need no work any more."""
    future: Future = Future()
    future.set_result((masks, events, None))
    return future


def _snapshot(arrays: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if arrays is None:
        return None
    return {name: copied(array) for name, array in arrays.items()}
