"""How layers share the zeros by their own gradients: one adapter a layer, one exact total."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from sparse24 import _check
from sparse24._errors import ArgumentError
from sparse24._schedule.arrays import (
    check_part,
    check_share,
    copied,
    floor_count,
    namespace,
    tree_sum,
    working,
)
from sparse24._schedule.criterion import Memory
from sparse24._schedule.distributions import Distribution, fill, round_to_total, sizes_of


@dataclass(frozen=True)
class LayerWiseAdapter:
    """How the sparsity of one layer follows its own gradients.

    The layer's density is ``(g / mean g) ** strength`` times the common one, where g is the
    smoothed root mean square of its gradients: a layer that still learns keeps more weights.

    Parameters
    ----------
    strength : float, default 0.5
        0 follows the global schedule unchanged.
    beta : float, default 0.9
        Smoothing of the statistics.
    reach : float, default 0.2
        The layer's sparsity stays within this distance of the global one.

    Examples
    --------
    >>> from sparse24 import schedule
    >>> still = schedule.LayerWiseAdapter(strength=0.0)  # follows the global schedule
    >>> schedule.Adaptive(overrides={"head": still}).of("head").strength
    0.0
    """

    strength: float = 0.5
    beta: float = 0.9
    reach: float = 0.2

    def __post_init__(self):
        if not math.isfinite(_check.number(self.strength, argument="strength")):
            raise ArgumentError(f"strength must be finite, got {self.strength!r}")
        check_share(self.beta, "beta")
        check_share(self.reach, "reach")

    def observe(self, memory: Memory, gradient) -> Memory:
        """The `memory` with a gradient in its mean square, a 0-d array, unless it overflowed."""
        xp = namespace(gradient)
        square = working(gradient) * working(gradient)
        mean = tree_sum(xp.reshape(square, (-1,))) / max(1, math.prod(gradient.shape))
        past = memory.get("grad_square")
        if past is not None:  # an overflow, such as of a loss scaler, is no statistic
            both = xp.isfinite(past) & xp.isfinite(mean)
            either = xp.where(xp.isfinite(mean), mean, past)
            mean = xp.where(both, self.beta * past + (1 - self.beta) * mean, either)
        return {**memory, "grad_square": mean}


@dataclass(frozen=True)
class Adaptive(Distribution):
    """One global sparsity, moved between layers by a `LayerWiseAdapter` each; the total is exact.

    Parameters
    ----------
    adapter : LayerWiseAdapter
    overrides : mapping of str to LayerWiseAdapter
        Adapters of their own for layers whose names match.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> recipe = schedule.Recipe(schedule.ConstantScheduler(0.5), distribution=schedule.Adaptive())
    >>> weights = {"a": np.arange(64.0).reshape(8, 8), "b": np.arange(64.0).reshape(8, 8)}
    >>> gradients = {"a": np.full((8, 8), 0.1), "b": np.full((8, 8), 0.2)}
    >>> masks = schedule.MaskScheduler(recipe).step(weights=weights, gradients=gradients)
    >>> {name: int(mask.sum()) for name, mask in masks.items()}  # half of 128 in all
    {'a': 27, 'b': 37}
    """

    adapter: LayerWiseAdapter = LayerWiseAdapter()
    overrides: Mapping[str, LayerWiseAdapter] = field(default_factory=dict)
    needs = ("gradient",)
    remembers = True

    def __post_init__(self):
        check_part(self.adapter, LayerWiseAdapter, "adapter", "LayerWiseAdapter()")
        _check.by_name(self.overrides, argument="overrides", of="adapters")
        for name, one in self.overrides.items():
            check_part(one, LayerWiseAdapter, f"overrides[{name!r}]", "LayerWiseAdapter()")

    @property
    def patterns(self):  # type: ignore[override]
        return tuple(self.overrides)

    def of(self, name: str) -> LayerWiseAdapter:
        """The adapter of a layer."""
        found = (a for pattern, a in self.overrides.items() if fnmatchcase(name, pattern))
        return next(found, self.adapter)

    def observe(self, memory, seen):
        return self.of(seen.name).observe(memory, seen.need("gradient", "LayerWiseAdapter"))

    def agreed(self, memory, reduce):
        square = copied(memory["grad_square"])  # which `reduce` may write to
        one = namespace(square).reshape(square, (1,))  # as a library that reduces takes it
        return {**memory, "grad_square": reduce(one)[0]}

    def shares(self, sparsity, shapes, memory, most=1.0):
        sizes = sizes_of(shapes)
        total = floor_count(sparsity, sum(sizes.values()))
        roots = {n: self._root_mean_square(memory[n]) for n in shapes}
        known = [root for root in roots.values() if root is not None]
        mean = sum(known) / max(1, len(known))
        weights = {n: self._weight(n, roots[n], mean) for n in shapes}
        low = {n: max(1 - most, 1 - sparsity - self.of(n).reach) for n in shapes}
        high = {n: min(1.0, 1 - sparsity + self.of(n).reach) for n in shapes}
        density = fill(weights, sizes, sum(sizes.values()) - total, low, high)
        return round_to_total({n: (1 - density[n]) * sizes[n] for n in sizes}, sizes, total, most)

    def _root_mean_square(self, memory: Memory) -> float | None:
        """None of a layer of which all gradients so far have overflowed."""
        square = float(memory["grad_square"])
        return math.sqrt(square) if math.isfinite(square) else None

    def _weight(self, name: str, root: float | None, mean: float) -> float:
        """The layer's density relative to the common one, which it has while nothing is known."""
        if root is None or not mean > 0:
            return 1.0
        return max(root / mean, 1e-3) ** self.of(name).strength
