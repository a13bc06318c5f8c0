"""Published pruning methods, as recipes."""

from __future__ import annotations

from sparse24 import _check
from sparse24._schedule.arrays import check_part, check_share, floor_count
from sparse24._schedule.criteria import RandomScores
from sparse24._schedule.distributions import ERK, Distribution, Uniform
from sparse24._schedule.growers import GradientGrowth, RandomGrowth
from sparse24._schedule.patterns import NM, Pattern, Unstructured
from sparse24._schedule.phases import StepScheduler
from sparse24._schedule.records import Recipe
from sparse24._schedule.schedules import ConstantScheduler, CubicScheduler


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

    Raises
    ------
    ArgumentError
        If an argument is out of range or of another kind.
    PatternError
        If the pattern cannot have the sparsities of the ramp.

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
    return Recipe(ramp, pattern=Unstructured() if pattern is None else pattern)


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
        In [0, 1], throughout.
    total_steps : int
        Length of the training.
    every : int
        Steps between updates.
    fraction : float
        Share of the kept weights replaced at the first update; it falls to 0 on a cosine, which
        ends at ``stop * total_steps``.
    stop : float
        Share of the steps after which masks stay.
    distribution : Distribution, optional
        By default `ERK`, or `Uniform` with a pattern of one sparsity.
    pattern : Pattern, optional
        By default `Unstructured`.

    Returns
    -------
    Recipe

    Raises
    ------
    ArgumentError
        If an argument is out of range or of another kind.
    PatternError
        If the pattern has another sparsity.

    References
    ----------
    .. [1] U. Evci et al., *Rigging the Lottery: Making All Tickets Winners*, 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule as S
    >>> scheduler = S.MaskScheduler(S.rigl(0.75, total_steps=1000))
    >>> weights = {"w": np.arange(1.0, 17.0).reshape(4, 4)}
    >>> masks = scheduler.step(weights=weights, gradients=weights)  # the first at random
    >>> int(masks["w"].sum())
    4
    """
    check_share(sparsity, "sparsity")
    total_steps = _check.whole(total_steps, argument="total_steps", least=0)
    last = floor_count(check_share(stop, "stop"), total_steps)
    pattern = Unstructured() if pattern is None else pattern
    check_part(pattern, Pattern, "pattern", "Unstructured()")
    if distribution is None:
        distribution = Uniform() if pattern.fixed else ERK()
    return Recipe(
        ConstantScheduler(sparsity, every=every, stop=last),
        pattern=pattern,
        distribution=distribution,
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
        In [0, 1], throughout.
    every : int
        Steps between updates.
    fraction : float
        Share of the kept weights replaced at each update.
    distribution : Distribution, optional
        By default `ERK`.

    Returns
    -------
    Recipe

    Raises
    ------
    ArgumentError
        If an argument is out of range or of another kind.

    References
    ----------
    .. [1] D. Mocanu et al., *Scalable training of artificial neural networks with adaptive
       sparse connectivity*, 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule as S
    >>> scheduler = S.MaskScheduler(S.sparse_evolutionary(0.75))
    >>> int(scheduler.step(weights={"w": np.arange(1.0, 17.0).reshape(4, 4)})["w"].sum())
    4
    """
    check_share(sparsity, "sparsity")
    return Recipe(
        ConstantScheduler(sparsity, every=every),
        distribution=ERK() if distribution is None else distribution,
        grower=RandomGrowth(fraction),
        initial=RandomScores(),
    )


def sr_ste(n: int = 2, m: int = 4, *, every: int = 1) -> Recipe:
    """Masks for SR-STE [1]_: n:m by magnitude, chosen anew every few steps.

    `sr_ste_gradient` is the other half of the method.

    Parameters
    ----------
    n, m : int
        Keep n of every m.
    every : int
        Steps between updates.

    Returns
    -------
    Recipe

    Raises
    ------
    PatternError
        Unless 0 < n < m <= 32.
    ArgumentError
        If `every` is not a positive integer.

    References
    ----------
    .. [1] A. Zhou et al., *Learning N:M Fine-grained Structured Sparse Neural Networks From
       Scratch*, 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> scheduler = schedule.MaskScheduler(schedule.sr_ste())
    >>> scheduler.step(weights={"w": np.array([[1.0, -3.0, 2.0, 0.5]])})["w"]
    array([[False,  True,  True, False]])
    """
    pattern = NM(n, m)
    return Recipe(ConstantScheduler(1 - n / m, every=every), pattern=pattern)


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
    ``RewoundRate(rate, train_steps, rewind_steps=steps_per_round)``, which rewinds at each round.
    A pruned weight that still receives gradients competes again at each round; to keep it pruned,
    pass masked weights, or let gradients reach kept weights only (torch: ``gradient="24dense"``).

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
    for argument, value in (
        ("rounds", rounds), ("steps_per_round", steps_per_round), ("train_steps", first),
    ):  # fmt: skip
        _check.whole(value, argument=argument, least=1)
    ends = [first + r * steps_per_round for r in range(rounds)]
    milestones = {0: 0.0} | {end: 1 - (1 - share) ** r for r, end in enumerate(ends, start=1)}
    return Recipe(
        StepScheduler(milestones),
        distribution=Uniform(),
        pattern=Unstructured() if pattern is None else pattern,
    )
