"""What a criterion is: scores of weights, higher is better, by what is known of a layer.

A criterion is a frozen description.  What it remembers lives in a plain dictionary that
the core carries, so that a step stays a pure function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparse24._errors import ArgumentError
from sparse24._schedule.arrays import working

Memory = dict[str, Any]


@dataclass(frozen=True)
class Observation:
    """What is known of one layer at one step."""

    name: str
    step: int
    seed: int
    weight: Any = None
    gradient: Any = None
    mask: Any = None

    def need(self, what: str, who: str) -> Any:
        """The weight or gradient, in a type to compute in."""
        return working(self.given(what, who))

    def given(self, what: str, who: str) -> Any:
        """The weight or gradient as it came."""
        value = getattr(self, what)
        if value is None:
            raise ArgumentError(f"{who} needs the {what} of layer {self.name!r}; {self._way(what)}")
        return value

    def _way(self, what: str) -> str:
        """Whence the array comes that is missing."""
        if what != "gradient":
            return f"pass step({what}s=...)"
        return (
            "pass step(gradients=...), or call update_masks after backward() and before "
            "zero_grad(); a layer that gets none, as a frozen one, needs another recipe, or None "
            "in the rules"
        )

    @property
    def like(self) -> Any:
        """An array of the layer's shape, library and device, be it its mask."""
        return next((x for x in (self.weight, self.gradient) if x is not None), self.mask)


class Criterion:
    """Base of all criteria.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> @dataclass(frozen=True)
    ... class Smallest(schedule.Criterion):
    ...     def score(self, memory, seen):
    ...         return -abs(seen.weight)
    ...
    >>> recipe = schedule.Recipe(schedule.ConstantScheduler(0.5), Smallest())
    >>> schedule.MaskScheduler(recipe).step(weights={"w": np.array([[1.0, -4.0, 2.0, 3.0]])})["w"]
    array([[ True, False,  True, False]])
    """

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
