"""What a weight is worth, by magnitude, gradients and the like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparse24 import _arrays, _check
from sparse24._errors import ArgumentError
from sparse24._schedule.arrays import (
    check_part,
    copied,
    level,
    namespace,
    uniform,
    unless_overflowed,
    without_overflow,
    working,
)
from sparse24._schedule.criterion import Criterion


def _abs(x):
    return namespace(x).abs(x)


@dataclass(frozen=True)
class Magnitude(Criterion):
    """The magnitude of the weight, ``|w|``.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> recipe = schedule.Recipe(schedule.ConstantScheduler(0.5), schedule.Magnitude())
    >>> weights = {"w": np.array([[1.0, -4.0, 2.0, 3.0]])}
    >>> schedule.MaskScheduler(recipe).step(weights=weights)["w"]
    array([[False,  True, False,  True]])
    """

    def score(self, memory, seen):
        return _abs(seen.need("weight", "Magnitude"))


@dataclass(frozen=True)
class GradientMagnitude(Criterion):
    """The magnitude of the current gradient, ``|g|``; needs no weights.

    Where a gradient of the layer overflowed, the mask stays as it was.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> recipe = schedule.Recipe(schedule.ConstantScheduler(0.5), schedule.GradientMagnitude())
    >>> gradients = {"w": np.array([[0.1, 0.2, 0.9, -0.8]])}
    >>> schedule.MaskScheduler(recipe).step(gradients=gradients)["w"]
    array([[False, False,  True,  True]])
    """

    needs = ("gradient",)

    def score(self, memory, seen):
        gradient = seen.need("gradient", "GradientMagnitude")
        as_it_was = namespace(gradient).astype(seen.mask, gradient.dtype)
        return unless_overflowed(gradient, _abs(gradient), as_it_was)


@dataclass(frozen=True)
class Taylor(Criterion):
    """``|w g|``, the first-order change of the loss (Molchanov et al., 2019).

    Where a gradient of the layer overflowed, the mask stays, and more is pruned by ``|w|``.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> recipe = schedule.Recipe(schedule.ConstantScheduler(0.5), schedule.Taylor())
    >>> weights = {"w": np.array([[1.0, -4.0, 2.0, 3.0]])}
    >>> gradients = {"w": np.array([[0.1, 0.2, 0.9, -0.8]])}
    >>> schedule.MaskScheduler(recipe).step(weights=weights, gradients=gradients)["w"]
    array([[False, False,  True,  True]])
    """

    needs = ("weight", "gradient")

    def score(self, memory, seen):
        weight, gradient = seen.need("weight", "Taylor"), seen.need("gradient", "Taylor")
        kept = namespace(weight).where(seen.mask, _abs(weight), level(weight, -1.0))
        return unless_overflowed(gradient, _abs(weight * gradient), kept)


@dataclass(frozen=True)
class Movement(Criterion):
    """``-sum of w g`` over all steps (Sanh et al., 2020): weights that move away from zero.

    A gradient that overflowed counts as 0.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> recipe = schedule.Recipe(schedule.ConstantScheduler(0.5), schedule.Movement())
    >>> weights = {"w": np.array([[1.0, -4.0, 2.0, 3.0]])}
    >>> gradients = {"w": np.array([[0.1, 0.2, 0.9, -0.8]])}
    >>> schedule.MaskScheduler(recipe).step(weights=weights, gradients=gradients)["w"]
    array([[False,  True, False,  True]])
    """

    needs = ("weight", "gradient")
    remembers = True

    def observe(self, memory, seen):
        gradient = without_overflow(seen.need("gradient", "Movement"))
        product = seen.need("weight", "Movement") * gradient
        past = memory.get("movement")
        return {**memory, "movement": -product if past is None else past - product}

    def score(self, memory, seen):
        return memory["movement"]


@dataclass(frozen=True)
class RandomScores(Criterion):
    """Uniform scores of a counter-based generator: the same on every rank and after resuming.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> recipe = schedule.Recipe(schedule.ConstantScheduler(0.5), schedule.RandomScores())
    >>> weights = {"w": np.array([[1.0, -4.0, 2.0, 3.0]])}
    >>> masks = [schedule.MaskScheduler(recipe, seed=7).step(weights=weights)["w"] for _ in "ab"]
    >>> bool((masks[0] == masks[1]).all()), int(masks[0].sum())
    (True, 2)
    """

    needs = ()

    def score(self, memory, seen):
        return uniform(seen.like, seen.seed, seen.step, seen.name, "criterion")


@dataclass(frozen=True)
class GivenScores(Criterion):
    """Scores that you compute elsewhere, such as from a Hessian.

    Parameters
    ----------
    scores : mapping of str to array
        For each layer an array of the shape of its weight; higher is better.  Integers count as
        float64, in JAX as float32.  Those of an `AsyncScheduler`, read later, must not change.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> scores = {"w": np.array([[1, 2, 3, 4]])}
    >>> recipe = schedule.Recipe(schedule.ConstantScheduler(0.5), schedule.GivenScores(scores))
    >>> weights = {"w": np.array([[1.0, -4.0, 2.0, 3.0]])}
    >>> schedule.MaskScheduler(recipe).step(weights=weights)["w"]
    array([[False, False,  True,  True]])
    """

    scores: Mapping[str, Any]
    needs = ()

    def __post_init__(self):
        _check.by_name(self.scores, argument="scores")
        for name, scores in self.scores.items():
            _check.is_array(scores, argument=f"scores[{name!r}]")

    def score(self, memory, seen):
        if seen.name not in self.scores:
            known = f"{seen.name!r}, but for {sorted(self.scores)}; give those of all layers"
            raise ArgumentError(f"GivenScores has no scores for layer {known} of the recipe")
        scores = self.scores[seen.name]
        if "int" not in str(scores.dtype) or _arrays.is_jax(scores):
            return scores
        return namespace(scores).astype(scores, namespace(scores).float64)


@dataclass(frozen=True)
class Accumulated(Criterion):
    """The sum of another criterion's scores since the last update, micro-batches included.

    A gradient that overflowed counts as 0.

    Parameters
    ----------
    inner : Criterion, default Taylor()

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> recipe = schedule.Recipe(
    ...     schedule.ConstantScheduler(0.5, every=2), schedule.Accumulated(schedule.Taylor())
    ... )
    >>> scheduler = schedule.MaskScheduler(recipe)
    >>> weights = {"w": np.ones((1, 4))}
    >>> for gradient in ([1, 0, 0, 2], [1, 0, 0, 2], [9, 8, 0, 0]):
    ...     gradients = {"w": np.array([gradient], float)}
    ...     mask = scheduler.step(weights=weights, gradients=gradients)["w"]
    ...
    >>> mask  # by the second and third gradient, the sum since the update before
    array([[ True,  True, False, False]])
    """

    inner: Criterion = Taylor()
    remembers = True

    def __post_init__(self):
        check_part(self.inner, Criterion, "inner", "Taylor()")

    @property
    def needs(self):  # type: ignore[override]
        return self.inner.needs

    def observe(self, memory, seen):
        if seen.gradient is not None:
            seen = replace(seen, gradient=without_overflow(working(seen.gradient)))
        memory = self.inner.observe(memory, seen)
        scores = working(self.inner.score(memory, seen))
        past = memory.get("accumulated")
        # Scores may be an array of the caller's, such as a weight, which is written to later.
        return {**memory, "accumulated": copied(scores) if past is None else past + scores}

    def score(self, memory, seen):
        return memory["accumulated"]

    def forget(self, memory):
        kept = self.inner.forget(memory).items()
        return {key: value for key, value in kept if key != "accumulated"}
