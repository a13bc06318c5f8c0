"""Schedules in pieces: sparsity that jumps, one schedule after another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sparse24 import _check
from sparse24._errors import ArgumentError
from sparse24._schedule.arrays import check_part, check_share
from sparse24._schedule.schedules import ConstantScheduler, Schedule, check_steps


@dataclass(frozen=True)
class StepScheduler(Schedule):
    """Sparsity that jumps at milestones, e.g. ``StepScheduler({0: 0.0, 100: 0.5})``.

    Parameters
    ----------
    milestones : mapping of int to float
        The sparsity from each of these steps on; before the first it is 0.

    Examples
    --------
    >>> from sparse24.schedule import StepScheduler
    >>> scheduler = StepScheduler({100: 0.25, 200: 0.5})
    >>> [scheduler.sparsity(t) for t in (0, 100, 300)]
    [0.0, 0.25, 0.5]
    """

    milestones: Mapping[int, float]
    _order: tuple[tuple[int, float], ...] = field(init=False, repr=False)

    def __post_init__(self):
        if not isinstance(self.milestones, Mapping) or not self.milestones:
            raise ArgumentError(
                f"milestones must map steps to sparsities, got {_check.shown(self.milestones)}"
            )
        order = tuple(sorted(
            (_check.whole(t, argument="a milestone", least=0), check_share(s, "milestones"))
            for t, s in self.milestones.items()
        ))  # fmt: skip
        object.__setattr__(self, "_order", order)

    def sparsity(self, step):
        reached = [s for t, s in self._order if t <= step]
        return reached[-1] if reached else 0.0

    def updates(self, step):
        return step == 0 or step in self.milestones

    def values(self):
        return (self.sparsity(0), *(s for _, s in self._order))

    def last_change(self):
        return self._order[-1][0]


def OneShot(target_sparsity: float = 0.5, at: int = 0) -> StepScheduler:
    """One pruning step: dense before step `at`, `target_sparsity` from then on.

    Parameters
    ----------
    target_sparsity : float
        In [0, 1].
    at : int
        The step of the pruning, from 0 on.

    Returns
    -------
    StepScheduler

    Raises
    ------
    ArgumentError
        If a number is out of range.

    Examples
    --------
    >>> from sparse24.schedule import OneShot
    >>> [OneShot(0.5, at=3).sparsity(step) for step in (2, 3)]
    [0.0, 0.5]
    """
    share = check_share(target_sparsity, "target_sparsity")
    return StepScheduler({_check.whole(at, argument="at", least=0): share})


@dataclass(frozen=True)
class Phases(Schedule):
    """A sequence of schedules, each of which counts steps from its own beginning.

    Parameters
    ----------
    parts : sequence of (int or None, Schedule)
        The length of each phase in steps, and its schedule; the last length may be None, for no
        end.

    Examples
    --------
    Dense for 100 steps, 2:4 for 800, then dense again:

    >>> from sparse24.schedule import ConstantScheduler, Phases
    >>> dense, sparse = ConstantScheduler(0.0), ConstantScheduler(0.5, every=10)
    >>> phases = Phases([(100, dense), (800, sparse), (None, dense)])
    >>> [phases.sparsity(t) for t in (99, 100, 899, 900)]
    [0.0, 0.5, 0.5, 0.0]
    """

    parts: tuple[tuple[int | None, Schedule], ...]

    def __post_init__(self):
        given = self.parts if isinstance(self.parts, tuple | list) else ()
        pairs = all(isinstance(part, tuple | list) and len(part) == 2 for part in given)
        if not given or not pairs or any(length is None for length, _ in given[:-1]):
            raise ArgumentError(
                "parts must be (length, schedule) pairs, only the last length of them None, "
                f"such as [(100, ConstantScheduler(0.0)), (None, OneShot(0.5))], got {self.parts!r}"
            )
        parts = tuple((length, part) for length, part in given)
        for length, part in parts:
            check_part(part, Schedule, "the schedule of a phase", "ConstantScheduler(0.5)")
            _check.whole(1 if length is None else length, argument="the length of a phase", least=1)
        object.__setattr__(self, "parts", parts)

    def _locate(self, step: int) -> tuple[Schedule, int]:
        for length, part in self.parts[:-1]:
            assert length is not None  # only the last may be
            if step < length:
                return part, step
            step -= length
        return self.parts[-1][1], step

    def sparsity(self, step):
        part, local = self._locate(step)
        return part.sparsity(local)

    def updates(self, step):
        part, local = self._locate(step)
        return part.updates(local)

    def values(self):
        return tuple(value for _, part in self.parts for value in part.values())

    def last_change(self):
        last = self.parts[-1][1].last_change()
        return None if last is None else last + sum(length or 0 for length, _ in self.parts[:-1])

    def with_init(self, init_sparsity: float):
        """The phases from `init_sparsity`, if the first one is a ramp that names no start."""
        length, first = self.parts[0]
        if not hasattr(first, "with_init"):
            return self
        return replace(self, parts=((length, first.with_init(init_sparsity)), *self.parts[1:]))


def dense_sparse_dense(target_sparsity: float, start: int, stop: int, *, every: int = 1) -> Phases:
    """Dense until `start`, sparse from it until `stop`, dense afterwards.

    Parameters
    ----------
    target_sparsity : float
    start, stop : int
    every : int
        Steps between updates while sparse.

    Returns
    -------
    Phases

    Raises
    ------
    ArgumentError
        If there is no step between `start` and `stop`.

    Examples
    --------
    >>> from sparse24.schedule import dense_sparse_dense
    >>> [dense_sparse_dense(0.5, 2, 4).sparsity(step) for step in (1, 2, 3, 4)]
    [0.0, 0.5, 0.5, 0.0]
    """
    check_steps(start, stop, every)
    if start == stop:
        raise ArgumentError(f"start < stop must hold for a sparse phase, got {start} and {stop}")
    sparse = ConstantScheduler(target_sparsity, every=every)
    dense = ConstantScheduler(0.0)
    before = [(start, dense)] if start else []
    return Phases((*before, (stop - start, sparse), (None, dense)))
