"""Published methods, as recipes made of the parts, and what they need besides masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparse24._errors import ArgumentError
from sparse24._sched_arrays import (
    Array,
    check_share,
    floor_count,
    namespace,
    plain,
    ranked,
    top_in_rows,
    uniform,
)
from sparse24._sched_criteria import RandomScores
from sparse24._sched_distributions import ERK, Distribution, Uniform
from sparse24._sched_growers import GradientGrowth, RandomGrowth
from sparse24._sched_patterns import NM, Pattern, Unstructured
from sparse24._sched_records import Recipe
from sparse24._sched_schedules import ConstantScheduler, CubicScheduler, StepScheduler


def gradual_magnitude(
    target_sparsity: float,
    *,
    start: int,
    stop: int,
    every: int = 100,
    pattern: Pattern | None = None,
) -> Recipe:
    """Gradual magnitude pruning on a cubic ramp [1]_.

    Parameters
    ----------
    target_sparsity : float
        From step `stop` on.
    start, stop : int
        First step of the ramp, and the step at which it arrives.
    every : int
        Steps between updates.
    pattern : Pattern, optional
        By default `Unstructured`.

    Returns
    -------
    Recipe

    References
    ----------
    .. [1] M. Zhu, S. Gupta, *To prune, or not to prune*, 2017.

    Examples
    --------
    >>> from sparse24 import schedule
    >>> recipe = schedule.gradual_magnitude(0.8, start=0, stop=1000)
    >>> [round(recipe.schedule.sparsity(step), 2) for step in (0, 500, 1000)]
    [0.0, 0.7, 0.8]
    """
    ramp = CubicScheduler(target_sparsity, start=start, stop=stop, every=every)
    return Recipe(ramp, pattern=pattern or Unstructured())


def rigl(
    sparsity: float,
    *,
    total_steps: int,
    every: int = 100,
    fraction: float = 0.3,
    stop: float = 0.75,
    distribution: Distribution | None = None,
    pattern: Pattern | None = None,
) -> Recipe:
    """RigL: drop the smallest weights, grow the largest gradients [1]_.

    Parameters
    ----------
    sparsity : float
    total_steps : int
    every : int
        Steps between updates.
    fraction : float
        Share that is replaced at first; it falls by a cosine to 0 at ``stop * total_steps``.
    stop : float
        Share of the steps after which masks stay.
    distribution : Distribution, optional
        By default `ERK`, or `Uniform` with a pattern of one sparsity.
    pattern : Pattern, optional
        By default `Unstructured`.

    Returns
    -------
    Recipe

    References
    ----------
    .. [1] U. Evci et al., *Rigging the Lottery: Making All Tickets Winners*, 2020.

    Examples
    --------
    >>> from sparse24 import schedule as S
    >>> recipe = S.rigl(0.9, total_steps=1000)
    >>> type(recipe.grower).__name__
    'GradientGrowth'
    """
    last = floor_count(check_share(stop, "stop"), total_steps)
    pattern = pattern or Unstructured()
    return Recipe(
        ConstantScheduler(sparsity, every=every, stop=last),
        pattern=pattern,
        distribution=distribution or (Uniform() if pattern.fixed else ERK()),
        grower=GradientGrowth(fraction, stop=max(1, last)),
        initial=RandomScores(),
    )


def sparse_evolutionary(
    sparsity: float,
    *,
    every: int = 100,
    fraction: float = 0.3,
    distribution: Distribution | None = None,
) -> Recipe:
    """SET: drop the smallest weights, grow at random [1]_.

    Parameters
    ----------
    sparsity : float
    every : int
        Steps between updates.
    fraction : float
        Share that is replaced at each.
    distribution : Distribution, optional
        By default `ERK`.

    Returns
    -------
    Recipe

    References
    ----------
    .. [1] D. Mocanu et al., *Scalable training of artificial neural networks with adaptive
       sparse connectivity*, 2018.

    Examples
    --------
    >>> from sparse24 import schedule as S
    >>> type(S.sparse_evolutionary(0.9).grower).__name__
    'RandomGrowth'
    """
    return Recipe(
        ConstantScheduler(sparsity, every=every),
        distribution=distribution or ERK(),
        grower=RandomGrowth(fraction),
        initial=RandomScores(),
    )


def sr_ste(n: int = 2, m: int = 4, *, every: int = 1) -> Recipe:
    """Masks for SR-STE [1]_: n:m by magnitude.

    The gradient's other half is `sr_ste_gradient`.

    Parameters
    ----------
    n, m : int
        Keep n of every m.
    every : int
        Steps between updates.

    Returns
    -------
    Recipe

    References
    ----------
    .. [1] A. Zhou et al., *Learning N:M Fine-grained Structured Sparse Neural Networks From
       Scratch*, 2021.

    Examples
    --------
    >>> from sparse24 import schedule
    >>> schedule.sr_ste().schedule.sparsity(0)
    0.5
    """
    return Recipe(ConstantScheduler(1 - n / m, every=every), pattern=NM(n, m))


def iterative_magnitude(
    *,
    share: float = 0.2,
    rounds: int,
    steps_per_round: int,
    train_steps: int | None = None,
    pattern: Pattern | None = None,
) -> Recipe:
    """Iterative pruning: after each round, drop `share` of what is left [1]_.

    Round r, from 0, has sparsity ``1 - (1 - share) ** r``.  Train with the learning rate of
    ``RewoundRate(rate, train_steps, rewind_steps=steps_per_round)``, which goes back where this
    prunes.

    Parameters
    ----------
    share : float
    rounds, steps_per_round : int
        Rounds after the dense training, and the length of each.
    train_steps : int, optional
        Length of the dense training, round 0; by default that of the others.
    pattern : Pattern, optional
        By default `Unstructured`.

    Returns
    -------
    Recipe

    Raises
    ------
    ArgumentError
        If a number is out of range.

    References
    ----------
    .. [1] A. Renda et al., *Comparing Rewinding and Fine-tuning in Neural Network Pruning*, 2020.

    Examples
    --------
    >>> from sparse24 import schedule
    >>> recipe = schedule.iterative_magnitude(share=0.5, rounds=2, steps_per_round=10)
    >>> [recipe.schedule.sparsity(step) for step in (0, 10, 20)]
    [0.0, 0.5, 0.75]
    """
    check_share(share, "share")
    first = steps_per_round if train_steps is None else train_steps
    if min(rounds, steps_per_round, first) < 1:
        raise ArgumentError(
            "rounds, steps_per_round and train_steps must be at least 1, got "
            f"{rounds}, {steps_per_round} and {first}"
        )
    ends = [first + r * steps_per_round for r in range(rounds)]
    milestones = {0: 0.0} | {end: 1 - (1 - share) ** r for r, end in enumerate(ends, start=1)}
    return Recipe(
        StepScheduler(milestones), distribution=Uniform(), pattern=pattern or Unstructured()
    )


@dataclass(frozen=True)
class RewoundRate:
    """Learning-rate rewinding: every round replays the last steps of the schedule.

    Weights are kept; only the rate goes back (Renda et al., 2020).

    Parameters
    ----------
    rate : callable
        ``rate(step)``, the schedule of the dense training.
    train_steps : int
        Length of the dense training, round 0.
    rewind_steps : int
        How many of its last steps each later round replays.

    Examples
    --------
    >>> from sparse24.schedule import RewoundRate
    >>> rate = RewoundRate(lambda t: 1.0 - t / 10, train_steps=10, rewind_steps=4)
    >>> [round(rate(t), 1) for t in (0, 9, 10, 13, 14)]
    [1.0, 0.1, 0.4, 0.1, 0.4]
    """

    rate: Callable[[int], float]
    train_steps: int
    rewind_steps: int

    def __post_init__(self):
        if not 0 < self.rewind_steps <= self.train_steps:
            raise ArgumentError(
                f"0 < rewind_steps <= train_steps must hold, got {self.rewind_steps} "
                f"and {self.train_steps}"
            )

    def __call__(self, step: int) -> float:
        if step < self.train_steps:
            return self.rate(step)
        into = (step - self.train_steps) % self.rewind_steps
        return self.rate(self.train_steps - self.rewind_steps + into)


def targeted_dropout(
    weight: Array,
    *,
    share: float,
    rate: float,
    step: int,
    seed: int = 0,
    name: str = "",
    pattern: Pattern | None = None,
) -> Array:
    """Mask of targeted dropout: of the least important weights, drop each with some chance.

    Parameters
    ----------
    weight : array, shape (m, k)
    share : float
        Of the weights, those of least magnitude are candidates; with a pattern, the
        candidates are what it would prune.  Per row, as in the paper's per-unit selection.
    rate : float
        Chance of a candidate to be dropped; 1 prunes them all.
    step, seed, name
        The draw is a pure function of these.
    pattern : Pattern, optional
        Without it any weight may be a candidate.

    Returns
    -------
    array of bool, shape (m, k)
        For one forward pass; the gradient passes where it is true.

    References
    ----------
    .. [1] A. Gomez et al., *Learning Sparse Networks Using Targeted Dropout*, 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule as S
    >>> weight = np.array([[1.0, 2, 3, 4]])
    >>> S.targeted_dropout(weight, share=0.5, rate=1.0, step=0)
    array([[False, False,  True,  True]])
    """
    check_share(share, "share")
    check_share(rate, "rate")
    scores = namespace(weight).abs(ranked(plain(weight)))
    if pattern is not None:
        kept = pattern.mask(scores, share)
    else:
        k = scores.shape[-1]
        kept = top_in_rows(scores, k - floor_count(share, k))
    return kept | (uniform(scores, seed, step, name, "dropout") >= rate)


@dataclass
class DecayFactorSearch:
    """Find the factor of masked decay in warm-up, from flip rates (Hu et al., 2024).

    Train a short while with each candidate, each time from the same weights (0 first: the flip
    rate of masks that nothing holds), and feed the flip rates, but for that of the first step,
    which prunes.  Taken is the candidate whose rate over that of 0 lies in `window`: masks that
    settle faster than without decay, but do not freeze.

    Parameters
    ----------
    candidates : sequence of float
        Positive factors to try.
    steps_each : int
        Flip rates to average for each.
    window : (float, float)
        The paper's feasible range of the ratio.

    Examples
    --------
    >>> from sparse24.schedule import DecayFactorSearch
    >>> search = DecayFactorSearch((1e-5, 1e-4, 1e-3), steps_each=1)
    >>> for rate in (0.10, 0.099, 0.08, 0.02):
    ...     search.feed(rate)
    >>> search.factor
    0.0001
    """

    candidates: tuple[float, ...] = (1e-6, 1e-5, 1e-4, 1e-3)
    steps_each: int = 10
    window: tuple[float, float] = (0.60, 0.95)

    def __post_init__(self):
        if not self.candidates or min(self.candidates) <= 0 or self.steps_each < 1:
            raise ArgumentError("candidates must be positive and steps_each at least 1")
        self._order = (0.0, *sorted(self.candidates))
        self._rates: list[float] = []

    @property
    def done(self) -> bool:
        return len(self._rates) >= len(self._order) * self.steps_each

    @property
    def trial(self) -> float:
        """The factor to train with now; after the search, the factor found."""
        return self.factor if self.done else self._order[len(self._rates) // self.steps_each]

    def feed(self, flip_rate: float) -> None:
        """The flip rate of one step trained with `trial`."""
        if not math.isfinite(flip_rate) or flip_rate < 0:
            raise ArgumentError(f"flip_rate must be a number >= 0, got {flip_rate!r}")
        if not self.done:
            self._rates.append(float(flip_rate))

    @property
    def ratios(self) -> dict[float, float]:
        """Flip rate of each finished candidate over that without decay."""
        means = [
            sum(self._rates[i : i + self.steps_each]) / self.steps_each
            for i in range(0, len(self._rates) - self.steps_each + 1, self.steps_each)
        ]
        base = means[0] if means and means[0] > 0 else math.nan
        return {f: mean / base for f, mean in zip(self._order[1:], means[1:], strict=False)}

    @property
    def factor(self) -> float:
        """The candidate in the window nearest its middle, else the nearest to the window."""
        if not self.done:
            raise ArgumentError(f"the search has seen {len(self._rates)} flip rates; feed more")
        middle = sum(self.window) / 2
        ratios: dict[float, Any] = self.ratios
        return min(ratios, key=lambda f: abs(ratios[f] - middle))
