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

    A subclass has a `score`.  If it learns from steps between updates, ``remembers`` is True and
    `observe` keeps what it learns.

    Attributes
    ----------
    needs : tuple of str
        What it reads: ``"weight"`` (the default), ``"gradient"`` or both.
    remembers : bool
        Whether `observe` sees every step and micro-batch.

    Notes
    -----
    `memory` is a dictionary of arrays, what all parts of the recipe remember of one layer.  Return
    a new one with the keys of the other parts; a saved state holds it.

    `seen` is what is known of the layer at a step: its ``name``, ``weight`` and ``gradient``, each
    None if it was not given, its ``mask`` so far, the ``step``, and the ``seed`` of the scheduler.
    ``seen.like`` is one of these arrays, for its shape, library and device.

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

    With a memory, of the magnitudes since the last update:

    >>> @dataclass(frozen=True)
    ... class Summed(schedule.Criterion):
    ...     remembers = True
    ...     def observe(self, memory, seen):
    ...         return {**memory, "summed": memory.get("summed", 0) + abs(seen.weight)}
    ...     def score(self, memory, seen):
    ...         return memory["summed"]
    ...     def forget(self, memory):
    ...         return {key: value for key, value in memory.items() if key != "summed"}
    ...
    >>> scheduler = schedule.MaskScheduler(schedule.Recipe(schedule.OneShot(0.5, at=2), Summed()))
    >>> early, late = np.array([[9.0, 0.0, 0.0, 1.0]]), np.array([[0.0, 2.0, 3.0, 1.0]])
    >>> for weight in (early, early, late):
    ...     mask = scheduler.step(weights={"w": weight})["w"]
    ...
    >>> mask
    array([[ True, False,  True, False]])
    """

    needs: tuple[str, ...] = ("weight",)
    remembers = False

    def observe(self, memory: Memory, seen: Observation) -> Memory:
        """The `memory` after a step or a micro-batch, of which `seen` tells."""
        return memory

    def score(self, memory: Memory, seen: Observation) -> Any:
        """Scores of the shape of the weight, by `memory` and `seen`; the highest are kept."""
        raise NotImplementedError

    def forget(self, memory: Memory) -> Memory:
        """What is left of `memory` after an update of the masks."""
        return memory
