"""How sparse at which step: pure functions of the step number.

Step 0 always updates, and a ramp is exactly at its initial value up to ``start`` and
exactly at its target from ``stop`` on, whatever ``every`` is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sparse24._errors import ArgumentError
from sparse24._sched_arrays import check_share


def _check_steps(start: int, stop: int, every: int) -> None:
    if start < 0 or stop < start:
        raise ArgumentError(f"0 <= start <= stop must hold, got start={start}, stop={stop}")
    if every < 1:
        raise ArgumentError(f"every must be at least 1, got {every}")


class Schedule:
    """Base of all schedules: `sparsity` at a step, and whether masks change at it."""

    def sparsity(self, step: int) -> float:
        """Share of zeros that the masks of `step` have."""
        raise NotImplementedError

    def updates(self, step: int) -> bool:
        """True if masks are computed anew at `step`."""
        raise NotImplementedError

    def values(self) -> tuple[float, ...]:
        """A sample of the sparsities that the schedule takes, both ends included."""
        raise NotImplementedError


@dataclass(frozen=True)
class ConstantScheduler(Schedule):
    """The same sparsity always; masks are chosen anew every `every` steps until `stop`.

    Parameters
    ----------
    target_sparsity : float
    every : int, optional
        Without it the masks of step 0 stay.
    stop : int, optional
        Last step at which masks may change.
    """

    target_sparsity: float
    every: int | None = None
    stop: int | None = None

    def __post_init__(self):
        check_share(self.target_sparsity, "target_sparsity")
        _check_steps(0, self.stop or 0, 1 if self.every is None else self.every)

    def sparsity(self, step):
        return self.target_sparsity

    def updates(self, step):
        if step == 0:
            return True
        alive = self.stop is None or step <= self.stop
        return self.every is not None and alive and step % self.every == 0

    def values(self):
        return (self.target_sparsity,)


@dataclass(frozen=True)
class _Ramp(Schedule):
    target_sparsity: float = 0.5
    init_sparsity: float | None = None
    start: int = 0
    stop: int = 1000
    every: int = 1

    def __post_init__(self):
        check_share(self.target_sparsity, "target_sparsity")
        check_share(self._first, "init_sparsity")
        _check_steps(self.start, self.stop, self.every)

    @property
    def _first(self) -> float:
        return 0.0 if self.init_sparsity is None else self.init_sparsity

    @staticmethod
    def curve(progress: float) -> float:
        """From (0, 0) to (1, 1)."""
        return progress

    def sparsity(self, step):
        if step >= self.stop:
            return self.target_sparsity
        if step <= self.start:
            return self._first
        share = self.curve((step - self.start) / (self.stop - self.start))
        return self._first + (self.target_sparsity - self._first) * share

    def updates(self, step):
        on_grid = self.start <= step < self.stop and (step - self.start) % self.every == 0
        return step in (0, self.stop) or on_grid

    def values(self):
        middle = (self.start + self.stop) // 2
        inside = (self.sparsity(middle),) if self.start < middle < self.stop else ()
        return (self.sparsity(0), *inside, self.target_sparsity)

    def with_init(self, init_sparsity: float):
        """The same ramp from another start, unless it already names one."""
        if self.init_sparsity is not None:
            return self
        return replace(self, init_sparsity=init_sparsity)


@dataclass(frozen=True)
class LinearScheduler(_Ramp):
    """A straight ramp from `init_sparsity` at `start` to `target_sparsity` at `stop`.

    Parameters
    ----------
    target_sparsity : float, default 0.5
    init_sparsity : float, optional
        Without it, that of the `DynamicScheduler`, or 0.
    start, stop : int
        First and last step of the ramp.
    every : int, default 1
        Steps from one update of the masks to the next.
    """


@dataclass(frozen=True)
class CubicScheduler(_Ramp):
    """Fast first, slow at the end: ``target + (init - target) * (1 - p) ** 3`` [1]_.

    Parameters
    ----------
    target_sparsity : float, default 0.5
    init_sparsity : float, optional
        Without it, that of the `DynamicScheduler`, or 0.
    start, stop : int
        First and last step of the ramp.
    every : int, default 1
        Steps from one update of the masks to the next.

    References
    ----------
    .. [1] M. Zhu and S. Gupta, *To prune, or not to prune*, 2017, equation 1.
    """

    @staticmethod
    def curve(progress):
        return 1.0 - (1.0 - progress) ** 3


@dataclass(frozen=True)
class CosineScheduler(_Ramp):
    """Half a cosine from `init_sparsity` at `start` to `target_sparsity` at `stop`.

    Parameters
    ----------
    target_sparsity : float, default 0.6
    init_sparsity : float, optional
        Without it, that of the `DynamicScheduler`, or 0.
    start, stop : int
        First and last step of the ramp.
    every : int, default 1
        Steps from one update of the masks to the next.

    Examples
    --------
    >>> from sparse24.schedule import CosineScheduler
    >>> ramp = CosineScheduler(target_sparsity=0.6, init_sparsity=0.3, stop=100)
    >>> [round(ramp.sparsity(t), 3) for t in (0, 50, 100, 200)]
    [0.3, 0.45, 0.6, 0.6]
    """

    target_sparsity: float = 0.6

    @staticmethod
    def curve(progress):
        return 0.5 - 0.5 * math.cos(math.pi * progress)


@dataclass(frozen=True)
class StepScheduler(Schedule):
    """Sparsity that jumps at milestones, e.g. ``StepScheduler({0: 0.0, 100: 0.5})``.

    Parameters
    ----------
    milestones : mapping of int to float
        The sparsity from each of these steps on; before the first it is 0.
    """

    milestones: Mapping[int, float]
    _order: tuple[tuple[int, float], ...] = field(init=False, repr=False)

    def __post_init__(self):
        order = tuple(
            sorted((int(t), check_share(s, "milestones")) for t, s in self.milestones.items())
        )
        if not order or order[0][0] < 0:
            raise ArgumentError(
                f"milestones must map steps >= 0 to sparsities, got {self.milestones!r}"
            )
        object.__setattr__(self, "_order", order)

    def sparsity(self, step):
        reached = [s for t, s in self._order if t <= step]
        return reached[-1] if reached else 0.0

    def updates(self, step):
        return step == 0 or step in self.milestones

    def values(self):
        return (self.sparsity(0), *(s for _, s in self._order))


def OneShot(target_sparsity: float = 0.5, at: int = 0) -> StepScheduler:
    """Dense before step `at`, `target_sparsity` from it on; one update.

    Parameters
    ----------
    target_sparsity : float
    at : int

    Returns
    -------
    StepScheduler

    Examples
    --------
    >>> from sparse24.schedule import OneShot
    >>> [OneShot(0.5, at=3).sparsity(step) for step in (2, 3)]
    [0.0, 0.5]
    """
    return StepScheduler({at: target_sparsity})


@dataclass(frozen=True)
class Phases(Schedule):
    """One schedule after another; each counts its steps from its own beginning.

    Parameters
    ----------
    parts : sequence of (int or None, Schedule)
        Length of each phase in steps; the last may be None, without end.

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
        parts = tuple((length, part) for length, part in self.parts)
        if not parts or any(length is None or length < 1 for length, _ in parts[:-1]):
            raise ArgumentError(
                "parts must be (length >= 1, schedule) pairs; only the last length may be None"
            )
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
    _check_steps(start, stop, every)
    if start == stop:
        raise ArgumentError(f"start < stop must hold for a sparse phase, got {start} and {stop}")
    sparse = ConstantScheduler(target_sparsity, every=every)
    dense = ConstantScheduler(0.0)
    before = [(start, dense)] if start else []
    return Phases((*before, (stop - start, sparse), (None, dense)))
