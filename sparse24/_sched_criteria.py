"""What a weight is worth: scores, higher is better.

A criterion is a frozen description.  What it remembers lives in a plain dictionary that
the core carries, so that a step stays a pure function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparse24._errors import ArgumentError
from sparse24._sched_arrays import check_part, namespace, uniform, without_overflow, working

Memory = dict[str, Any]


@dataclass(frozen=True)
class Observation:
    """What is known of one layer at one step."""

    name: str
    step: int
    seed: int
    weight: Any = None
    grad: Any = None

    def need(self, what: str, who: str) -> Any:
        """The weight or gradient, in a type to compute in."""
        return working(self.given(what, who))

    def given(self, what: str, who: str) -> Any:
        """The weight or gradient as it came."""
        value = getattr(self, what)
        if value is None:
            keyword = "gradients" if what == "grad" else "weights"
            raise ArgumentError(
                f"{who} needs the {what} of layer {self.name!r}; pass step({keyword}=...)"
            )
        return value

    @property
    def like(self) -> Any:
        return self.weight if self.weight is not None else self.grad


class Criterion:
    """Base of all criteria."""

    needs: tuple[str, ...] = ("weight",)
    remembers = False  # True: `observe` must see every step, not only those that update

    def observe(self, memory: Memory, seen: Observation) -> Memory:
        """What to remember after a step or a micro-batch."""
        return memory

    def score(self, memory: Memory, seen: Observation) -> Any:
        """Scores of the shape of the weight."""
        raise NotImplementedError

    def forget(self, memory: Memory) -> Memory:
        """What is left of the memory after an update of the masks."""
        return memory


def _abs(x):
    return namespace(x).abs(x)


@dataclass(frozen=True)
class Magnitude(Criterion):
    """``|w|``."""

    def score(self, memory, seen):
        return _abs(seen.need("weight", "Magnitude"))


@dataclass(frozen=True)
class GradientMagnitude(Criterion):
    """``|g|`` of the present step; needs no weights."""

    needs = ("grad",)

    def score(self, memory, seen):
        return _abs(seen.need("grad", "GradientMagnitude"))


@dataclass(frozen=True)
class Taylor(Criterion):
    """``|w g|``, the first-order change of the loss (Molchanov et al., 2019)."""

    needs = ("weight", "grad")

    def score(self, memory, seen):
        return _abs(seen.need("weight", "Taylor") * seen.need("grad", "Taylor"))


@dataclass(frozen=True)
class Movement(Criterion):
    """``-sum of w g`` over all steps (Sanh et al., 2020): weights that move away from zero.

    A gradient that overflowed counts as 0.
    """

    needs = ("weight", "grad")
    remembers = True

    def observe(self, memory, seen):
        grad = without_overflow(seen.need("grad", "Movement"))
        product = seen.need("weight", "Movement") * grad
        past = memory.get("movement")
        return {**memory, "movement": -product if past is None else past - product}

    def score(self, memory, seen):
        return memory["movement"]


@dataclass(frozen=True)
class RandomScores(Criterion):
    """Uniform scores of a counter-based generator: the same on every rank and after resuming."""

    needs = ()

    def score(self, memory, seen):
        return uniform(seen.like, seen.seed, seen.step, seen.name, "criterion")


@dataclass(frozen=True)
class GivenScores(Criterion):
    """Scores from outside; from a Hessian, say.

    Parameters
    ----------
    scores : mapping of str to array
        For each layer an array of the shape of its weight; higher is better.
    """

    scores: Mapping[str, Any]
    needs = ()

    def score(self, memory, seen):
        if seen.name not in self.scores:
            raise ArgumentError(f"GivenScores has no scores for layer {seen.name!r}")
        return self.scores[seen.name]


@dataclass(frozen=True)
class Accumulated(Criterion):
    """The sum of another criterion's scores since the last update, micro-batches included.

    Parameters
    ----------
    inner : Criterion, default Taylor()
    """

    inner: Criterion = Taylor()
    remembers = True

    def __post_init__(self):
        check_part(self.inner, Criterion, "inner", "Taylor()")

    @property
    def needs(self):  # type: ignore[override]
        return self.inner.needs

    def observe(self, memory, seen):
        memory = self.inner.observe(memory, seen)
        scores = working(self.inner.score(memory, seen))
        past = memory.get("accumulated")
        return {**memory, "accumulated": scores if past is None else past + scores}

    def score(self, memory, seen):
        return memory["accumulated"]

    def forget(self, memory):
        memory = self.inner.forget(memory)
        return {key: value for key, value in memory.items() if key != "accumulated"}
