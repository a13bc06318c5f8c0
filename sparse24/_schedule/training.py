"""What published methods need of training besides a recipe: a rate, a dropout, a decay."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparse24 import _check
from sparse24._errors import ArgumentError
from sparse24._schedule.arrays import (
    Array,
    check_floats,
    check_part,
    check_share,
    floor_count,
    namespace,
    plain,
    ranked,
    uniform,
)
from sparse24._schedule.largest import top_in_rows
from sparse24._schedule.patterns import Pattern


@dataclass(frozen=True)
class RewoundRate:
    """Learning-rate rewinding: every round repeats the last steps of the rate's schedule.

    Weights are kept; only the learning rate goes back (Renda et al., 2020).

    Parameters
    ----------
    rate : callable
        ``rate(step)``, the learning rate of the dense training.
    train_steps : int
        Length of the dense training, round 0.
    rewind_steps : int
        How many of its last steps each later round repeats.

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
        _check.function(self.rate, argument="rate")
        for name in ("train_steps", "rewind_steps"):
            _check.whole(getattr(self, name), argument=name, least=0)
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
    """Mask of targeted dropout: drop each of the least important weights with some probability.

    Parameters
    ----------
    weight : array, shape (m, k)
    share : float
        Share of the weights of each row, those of least magnitude, that are candidates; with a
        pattern, the candidates are what it would prune.
    rate : float
        Probability that a candidate is dropped; 1 drops them all.
    step, seed, name
        The draw is a pure function of these.
    pattern : Pattern, optional
        Without it any weight may be a candidate.

    Returns
    -------
    array of bool, shape (m, k)
        For one forward pass; the gradient passes where it is true.

    Raises
    ------
    ArgumentError
        If a share, a rate, a step or a seed is out of range, or `pattern` is not a `Pattern`.
    DTypeError, ShapeError
        If `weight` is not an array of floating-point numbers with at least one axis.

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
    check_floats(weight, "weight")
    check_share(share, "share")
    check_share(rate, "rate")
    step = _check.whole(step, argument="step", least=0)
    seed = _check.whole(seed, argument="seed", least=0)
    if pattern is not None:
        check_part(pattern, Pattern, "pattern", "NM(2, 4)")
    scores = namespace(weight).abs(ranked(plain(weight)))
    if pattern is not None:
        kept = pattern.mask(scores, share)
    else:
        k = scores.shape[-1]
        kept = top_in_rows(scores, k - floor_count(share, k))
    return kept | (uniform(scores, seed, step, name, "dropout") >= rate)


def _is_window(pair) -> bool:
    """True for two numbers in order."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        return False
    low, high = (_check.number(edge, argument="an edge of window") for edge in pair)
    return low <= high


@dataclass
class DecayFactorSearch:
    """Find the factor of masked decay in warm-up, from flip rates (Hu et al., 2024).

    Train for a few steps with each candidate, each time from the same weights, and feed the flip
    rates, except that of the first step, which prunes.  The factor 0 comes first: its flip rate is
    the reference.  The candidate is chosen whose rate, relative to that of 0, lies in `window`:
    masks then settle faster than without decay, but do not freeze.

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
        given = self.candidates if isinstance(self.candidates, tuple | list) else ()
        found = [_check.number(factor, argument="a candidate") for factor in given]
        if not found or not all(0 < factor < math.inf for factor in found):
            raise ArgumentError(
                "candidates must be a sequence of positive factors, such as (1e-5, 1e-4), got "
                f"{_check.shown(self.candidates)}"
            )
        _check.whole(self.steps_each, argument="steps_each", least=1)
        if not _is_window(self.window):
            raise ArgumentError(
                "window must be a pair of ratios (low, high), such as (0.6, 0.95), got "
                f"{_check.shown(self.window)}"
            )
        self._order = (0.0, *sorted(found))
        self._rates: list[float] = []

    @property
    def done(self) -> bool:
        """Whether the search has seen all the flip rates that it needs."""
        return len(self._rates) >= len(self._order) * self.steps_each

    @property
    def trial(self) -> float:
        """The factor to train with now; after the search, the factor found."""
        return self.factor if self.done else self._order[len(self._rates) // self.steps_each]

    def feed(self, flip_rate: float) -> None:
        """Take the `flip_rate` of one step that was trained with `trial`."""
        rate = _check.number(flip_rate, argument="flip_rate")
        if not 0 <= rate < math.inf:
            raise ArgumentError(f"flip_rate must be a number >= 0, got {flip_rate!r}")
        if not self.done:
            self._rates.append(rate)

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
        """The candidate in the window nearest its middle, else the nearest to the window.

        Raises `ArgumentError` if no mask flipped without decay: there is nothing to compare with.
        """
        if not self.done:
            raise ArgumentError(f"the search has seen {len(self._rates)} flip rates; feed more")
        if not sum(self._rates[: self.steps_each]):
            raise ArgumentError(
                "candidates are compared by flip rates, and without decay those were all 0; renew "
                "masks more often, or train longer or at a higher rate in warm-up"
            )
        middle = sum(self.window) / 2
        ratios: dict[float, Any] = self.ratios
        return min(ratios, key=lambda f: abs(ratios[f] - middle))
