"""How sparse at which step, constant or along a ramp: pure functions of the step number.

Step 0 always updates, and a ramp is exactly at its initial value up to ``start`` and
exactly at its target from ``stop`` on, whatever ``every`` is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sparse24 import _check
from sparse24._errors import ArgumentError
from sparse24._schedule.arrays import check_share


def check_steps(start: int, stop: int, every: int) -> None:
    """Refuse steps that training never meets, such as 0.9 * 1001, and an empty order of them."""
    for argument, value, least in (("start", start, 0), ("stop", stop, 0), ("every", every, 1)):
        _check.whole(value, argument=argument, least=least)
    if stop < start:
        raise ArgumentError(f"start <= stop must hold, got start={start}, stop={stop}")


class Schedule:
    """Base of all schedules: `sparsity` at a step, and whether masks change at it.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from sparse24.schedule import Recipe, Schedule
    >>> @dataclass(frozen=True)
    ... class Late(Schedule):
    ...     at: int
    ...     def sparsity(self, step):
    ...         return 0.5 if step >= self.at else 0.0
    ...     def updates(self, step):
    ...         return step in (0, self.at)
    ...     def values(self):
    ...         return (0.0, 0.5)
    ...
    >>> [Recipe(Late(100)).schedule.sparsity(t) for t in (99, 100)]
    [0.0, 0.5]
    """

    def __init_subclass__(cls, **options):
        """A schedule whose updates are not those of the class that names their end has no end."""
        super().__init_subclass__(**options)
        names = {"updates", "last_change"}
        first = next(base for base in cls.__mro__ if names & vars(base).keys())
        if "last_change" not in vars(first):
            cls.last_change = Schedule.last_change  # type: ignore[method-assign]

    def sparsity(self, step: int) -> float:
        """Share of zeros that the masks of `step` have."""
        raise NotImplementedError

    def updates(self, step: int) -> bool:
        """True if masks are computed anew at `step`."""
        raise NotImplementedError

    def values(self) -> tuple[float, ...]:
        """A sample of the sparsities that the schedule takes, both ends included."""
        raise NotImplementedError

    def last_change(self) -> int | None:
        """A step after which masks never change, so that nothing need be remembered; or None."""
        return None


@dataclass(frozen=True)
class ConstantScheduler(Schedule):
    """A constant sparsity; masks are chosen anew every `every` steps until `stop`.

    Parameters
    ----------
    target_sparsity : float
    every : int, optional
        Steps from one update of the masks to the next; by default the masks of step 0 stay.
    stop : int, optional
        Last step at which masks may change.

    Examples
    --------
    >>> from sparse24.schedule import ConstantScheduler
    >>> scheduler = ConstantScheduler(0.5, every=10, stop=30)
    >>> [t for t in range(100) if scheduler.updates(t)]
    [0, 10, 20, 30]
    """

    target_sparsity: float
    every: int | None = None
    stop: int | None = None

    def __post_init__(self):
        check_share(self.target_sparsity, "target_sparsity")
        every = 1 if self.every is None else self.every
        check_steps(0, 0 if self.stop is None else self.stop, every)

    def sparsity(self, step):
        return self.target_sparsity

    def updates(self, step):
        if step == 0:
            return True
        alive = self.stop is None or step <= self.stop
        return self.every is not None and alive and step % self.every == 0

    def values(self):
        return (self.target_sparsity,)

    def last_change(self):
        return 0 if self.every is None else self.stop


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
        check_steps(self.start, self.stop, self.every)

    @property
    def _first(self) -> float:
        return 0.0 if self.init_sparsity is None else self.init_sparsity

    @staticmethod
    def curve(progress: float) -> float:
        """The share of the ramp that is climbed after this share of its steps, `progress`."""
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

    def last_change(self):
        return self.stop

    def with_init(self, init_sparsity: float):
        """The same ramp from `init_sparsity`, unless it already names a start."""
        if self.init_sparsity is not None:
            return self
        return replace(self, init_sparsity=init_sparsity)


@dataclass(frozen=True)
class LinearScheduler(_Ramp):
    """A straight ramp from `init_sparsity` at `start` to `target_sparsity` at `stop`.

    Parameters
    ----------
    target_sparsity : float, default 0.5
        The share of zeros at the end, in [0, 1].
    init_sparsity : float, optional
        By default that of the `DynamicScheduler`, or 0.
    start, stop : int
        First and last step of the ramp.
    every : int, default 1
        Steps from one update of the masks to the next.

    Examples
    --------
    >>> from sparse24.schedule import LinearScheduler
    >>> ramp = LinearScheduler(0.6, start=100, stop=200, every=50)
    >>> [(t, ramp.sparsity(t)) for t in range(300) if ramp.updates(t)]
    [(0, 0.0), (100, 0.0), (150, 0.3), (200, 0.6)]
    """


@dataclass(frozen=True)
class CubicScheduler(_Ramp):
    """A cubic ramp, fast first: ``target + (init - target) * (1 - progress) ** 3`` [1]_.

    Parameters
    ----------
    target_sparsity : float, default 0.5
        The share of zeros at the end, in [0, 1].
    init_sparsity : float, optional
        By default that of the `DynamicScheduler`, or 0.
    start, stop : int
        First and last step of the ramp.
    every : int, default 1
        Steps from one update of the masks to the next.

    References
    ----------
    .. [1] M. Zhu and S. Gupta, *To prune, or not to prune*, 2017, equation 1.

    Examples
    --------
    >>> from sparse24.schedule import CubicScheduler
    >>> ramp = CubicScheduler(0.8, stop=100)
    >>> [round(ramp.sparsity(t), 3) for t in (0, 50, 100)]
    [0.0, 0.7, 0.8]
    """

    @staticmethod
    def curve(progress):
        return 1.0 - (1.0 - progress) ** 3


@dataclass(frozen=True)
class CosineScheduler(_Ramp):
    """A cosine ramp from `init_sparsity` at `start` to `target_sparsity` at `stop`.

    Parameters
    ----------
    target_sparsity : float, default 0.6
    init_sparsity : float, optional
        By default that of the `DynamicScheduler`, or 0.
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
