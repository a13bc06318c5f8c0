"""Which pruned weights come back, and how many.

A grower turns over a share of the kept weights at every update: the share falls by a cosine
from `fraction` at step 0 to nothing at `stop`, or stays if `stop` is None.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparse24 import _check
from sparse24._schedule.arrays import (
    check_share,
    namespace,
    uniform,
    unless_overflowed,
    without_overflow,
)
from sparse24._schedule.criterion import Memory, Observation


class Grower:
    """Base of all growers.

    A subclass has a `share` and a `score`; ``needs``, ``remembers``, `memory` and `seen` are those
    of a `Criterion`, but ``needs`` is empty by default.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> @dataclass(frozen=True)
    ... class FirstComeBack(schedule.Grower):
    ...     def share(self, step):
    ...         return 0.5
    ...     def score(self, memory, seen):
    ...         return -np.arange(seen.like.size, dtype=float).reshape(seen.like.shape)
    ...
    >>> recipe = schedule.Recipe(schedule.ConstantScheduler(0.5, every=1), grower=FirstComeBack())
    >>> scheduler = schedule.MaskScheduler(recipe)
    >>> weights = {"w": np.array([[1.0, 2.0, 3.0, 4.0]])}
    >>> [scheduler.step(weights=weights)["w"].astype(int).tolist() for _ in range(2)]
    [[[0, 0, 1, 1]], [[1, 0, 0, 1]]]
    """

    needs: tuple[str, ...] = ()
    remembers = False

    def share(self, step: int) -> float:
        """Share of the kept weights that is replaced at `step`."""
        raise NotImplementedError

    def observe(self, memory: Memory, seen: Observation) -> Memory:
        """The `memory` of a layer after a step or a micro-batch, of which `seen` tells."""
        return memory

    def score(self, memory: Memory, seen: Observation):
        """Scores of the shape of the weight, by `memory` and `seen`; the highest come back."""
        raise NotImplementedError


@dataclass(frozen=True)
class NoGrowth(Grower):
    """No growth: at every update all weights compete by the criterion alone.

    Examples
    --------
    >>> from sparse24 import schedule
    >>> schedule.Recipe(grower=schedule.NoGrowth()) == schedule.Recipe()
    True
    """

    def share(self, step):
        return 0.0


@dataclass(frozen=True)
class _Turnover(Grower):
    """A share that falls by a cosine.  Its subclasses document both parameters."""

    fraction: float = 0.3
    stop: int | None = None

    def __post_init__(self):
        check_share(self.fraction, "fraction")
        if self.stop is not None:
            _check.whole(self.stop, argument="stop", least=1)

    def share(self, step):
        if self.stop is None:
            return self.fraction
        if step >= self.stop:
            return 0.0
        return self.fraction / 2 * (1 + math.cos(math.pi * step / self.stop))


@dataclass(frozen=True)
class GradientGrowth(_Turnover):
    """Grow the weights with the largest dense gradient ``|g|``, as in RigL (Evci et al., 2020).

    Where a gradient of the layer overflowed, the weights that were just pruned come back.

    Parameters
    ----------
    fraction : float, default 0.3
        Share of the kept weights that is replaced at step 0.
    stop : int, optional
        Step at which the share has fallen to 0, on a cosine; by default it stays constant.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> recipe = schedule.Recipe(
    ...     schedule.ConstantScheduler(0.5, every=1), grower=schedule.GradientGrowth(0.5)
    ... )
    >>> scheduler = schedule.MaskScheduler(recipe)
    >>> weights = {"w": np.array([[1.0, 2.0, 3.0, 4.0]])}
    >>> gradients = {"w": np.array([[9.0, 0.0, 0.0, 0.0]])}
    >>> for _ in range(2):
    ...     print(scheduler.step(weights=weights, gradients=gradients)["w"].astype(int))
    ...
    [[0 0 1 1]]
    [[1 0 0 1]]
    """

    needs = ("gradient",)

    def score(self, memory, seen):
        gradient = seen.need("gradient", "GradientGrowth")
        xp = namespace(gradient)
        as_it_was = xp.astype(seen.mask, gradient.dtype)
        return unless_overflowed(gradient, xp.abs(gradient), as_it_was)


@dataclass(frozen=True)
class MomentumGrowth(_Turnover):
    """Grow by the largest smoothed gradient, as in sparse momentum (Dettmers, Zettlemoyer, 2019).

    A gradient that overflowed counts as 0.

    Parameters
    ----------
    fraction : float, default 0.3
        Share of the kept weights that is replaced at step 0.
    stop : int, optional
        Step at which the share has fallen to 0, on a cosine; by default it stays constant.
    beta : float, default 0.9
        Smoothing factor: the weight of the past mean at each step.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> recipe = schedule.Recipe(
    ...     schedule.ConstantScheduler(0.5, every=1), grower=schedule.MomentumGrowth(0.5)
    ... )
    >>> scheduler = schedule.MaskScheduler(recipe)
    >>> weights = {"w": np.array([[1.0, 2.0, 3.0, 4.0]])}
    >>> gradients = {"w": np.array([[9.0, 0.0, 0.0, 0.0]])}
    >>> for _ in range(2):
    ...     print(scheduler.step(weights=weights, gradients=gradients)["w"].astype(int))
    ...
    [[0 0 1 1]]
    [[1 0 0 1]]
    """

    beta: float = 0.9

    def __post_init__(self):
        super().__post_init__()
        check_share(self.beta, "beta")

    needs = ("gradient",)
    remembers = True

    def observe(self, memory, seen):
        gradient = without_overflow(seen.need("gradient", "MomentumGrowth"))
        past = memory.get("momentum")
        new = (1 - self.beta) * gradient
        mean = new if past is None else self.beta * past + new
        return {**memory, "momentum": mean}

    def score(self, memory, seen):
        mean = memory["momentum"]
        return namespace(mean).abs(mean)


@dataclass(frozen=True)
class RandomGrowth(_Turnover):
    """Grow random weights, as in SET (Mocanu et al., 2018); the same ones on every rank.

    Parameters
    ----------
    fraction : float, default 0.3
        Share of the kept weights that is replaced at step 0.
    stop : int, optional
        Step at which the share has fallen to 0, on a cosine; by default it stays constant.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> recipe = schedule.Recipe(
    ...     schedule.ConstantScheduler(0.5, every=1), grower=schedule.RandomGrowth(0.5)
    ... )
    >>> scheduler = schedule.MaskScheduler(recipe)
    >>> weights = {"w": np.arange(64.0).reshape(8, 8)}
    >>> first, second = (scheduler.step(weights=weights)["w"] for _ in range(2))
    >>> int(first.sum()), int(second.sum()), bool((first != second).any())
    (32, 32, True)
    """

    def score(self, memory, seen):
        return uniform(seen.like, seen.seed, seen.step, seen.name, "grower")
