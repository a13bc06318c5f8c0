"""How a model's budget of zeros is shared among its layers.

A distribution turns one sparsity into one for each layer; where the layers differ, the shares
are whole numbers of zeros over the layer's size and their total is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from sparse24 import _check
from sparse24._errors import ArgumentError
from sparse24._schedule.arrays import check_part, check_share, floor_count
from sparse24._schedule.criterion import Memory, Observation

Shapes = Mapping[str, tuple[int, ...]]
Reduce = Callable[[Any], Any]


def sizes_of(shapes: Shapes) -> dict[str, int]:
    return {name: math.prod(shape) for name, shape in shapes.items()}


def round_to_total(
    wanted: Mapping[str, float], sizes: Mapping[str, int], total: int, most: float
) -> dict[str, float]:
    """Shares of whole zeros near `wanted` that sum to `total`: largest remainders round up."""
    room = {name: floor_count(most, size) for name, size in sizes.items()}
    zeros = {name: min(room[name], math.floor(x + 1e-6)) for name, x in wanted.items()}
    order = sorted(
        wanted, key=lambda name: zeros[name] - wanted[name]
    )  # stable: first name wins ties
    missing = min(total, sum(room.values())) - sum(zeros.values())
    while missing > 0:
        for name in order:
            if missing and zeros[name] < room[name]:
                zeros[name] += 1
                missing -= 1
    for name in reversed(order):
        excess = min(zeros[name], max(0, -missing))
        zeros[name] -= excess
        missing += excess
    return {name: zeros[name] / max(1, sizes[name]) for name in wanted}


def fill(weights: Mapping[str, float], sizes, total: float, low, high) -> dict[str, float]:
    """Densities ``clip(c * weight, low, high)`` with the one c that keeps `total` elements."""

    def densities(c):
        return {n: min(high[n], max(low[n], c * weights[n])) for n in weights}

    def kept(c):
        return sum(sizes[n] * d for n, d in densities(c).items())

    small, large = 0.0, 1.0
    while kept(large) < total and large < 2.0**60:
        large *= 2.0
    for _ in range(100):
        middle = (small + large) / 2
        small, large = (middle, large) if kept(middle) < total else (small, middle)
    return densities(large)


class Distribution:
    """Base of all distributions.

    A subclass has `shares`; ``needs``, ``remembers``, `memory` and `seen` are those of a
    `Criterion`, but ``needs`` is empty by default.

    Attributes
    ----------
    even : bool
        Whether all layers that it makes sparse can have the sparsity of the schedule, as patterns
        of one sparsity need.
    patterns : tuple of str
        Patterns for names of layers that it treats otherwise; each must match one.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from sparse24.schedule import Distribution, Recipe
    >>> @dataclass(frozen=True)
    ... class OnlyMatrices(Distribution):
    ...     def shares(self, sparsity, shapes, memory, most=1.0):
    ...         return {name: sparsity * (len(shape) == 2) for name, shape in shapes.items()}
    ...
    >>> Recipe(distribution=OnlyMatrices()).distribution.shares(0.5, {"w": (8, 8), "b": (8,)}, {})
    {'w': 0.5, 'b': 0.0}
    """

    needs: tuple[str, ...] = ()
    remembers = False
    even = False
    patterns: tuple[str, ...] = ()

    def observe(self, memory: Memory, seen: Observation) -> Memory:
        """The `memory` of a layer after a step or a micro-batch, of which `seen` tells."""
        return memory

    def agreed(self, memory: Memory, reduce: Reduce) -> Memory:
        """What `shares` reads of a layer's `memory`, made equal on all ranks by `reduce`."""
        return memory

    def shares(
        self, sparsity: float, shapes: Shapes, memory: Mapping[str, Memory], most: float = 1.0
    ) -> dict[str, float]:
        """The sparsity of each layer, `most` at the most, for one of all together.

        Parameters
        ----------
        sparsity : float
            What the schedule asks for.
        shapes : mapping of str to tuple of int
            The layers.
        memory : mapping of str to dict
            What is remembered of each.
        most : float, default 1
            The highest that the pattern can have.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Uniform(Distribution):
    """The same sparsity in every layer.

    Examples
    --------
    >>> from sparse24.schedule import Uniform
    >>> Uniform().shares(0.5, {"up": (64, 16), "head": (4, 16)}, {})
    {'up': 0.5, 'head': 0.5}
    """

    even = True

    def shares(self, sparsity, shapes, memory, most=1.0):
        return dict.fromkeys(shapes, sparsity)


@dataclass(frozen=True)
class ERK(Distribution):
    """Density in proportion to ``sum(shape) / prod(shape)`` (Evci et al., 2020); at most 1.

    Examples
    --------
    >>> from sparse24.schedule import ERK
    >>> ERK().shares(0.5, {"up": (64, 16), "head": (4, 16)}, {})
    {'up': 0.53125, 'head': 0.0}
    """

    def shares(self, sparsity, shapes, memory, most=1.0):
        sizes = sizes_of(shapes)
        weights = {name: sum(shape) / max(1, sizes[name]) for name, shape in shapes.items()}
        total = floor_count(sparsity, sum(sizes.values()))
        bounds = dict.fromkeys(sizes, 1 - most), dict.fromkeys(sizes, 1.0)
        density = fill(weights, sizes, sum(sizes.values()) - total, *bounds)
        return round_to_total({n: (1 - density[n]) * sizes[n] for n in sizes}, sizes, total, most)


@dataclass(frozen=True)
class Custom(Distribution):
    """Sparsities by a rule of your own.

    Parameters
    ----------
    rule : callable or mapping
        ``rule(sparsity, shapes) -> {name: sparsity}``, or a mapping from name patterns
        such as ``"decoder.*"`` to a factor on the schedule's sparsity (1 elsewhere).

    Examples
    --------
    >>> from sparse24.schedule import Custom
    >>> Custom({"head": 0.0}).shares(0.5, {"up": (64, 16), "head": (4, 16)}, {})
    {'up': 0.5, 'head': 0.0}
    """

    rule: Callable[[float, Shapes], Mapping[str, float]] | Mapping[str, float]
    even = True  # if the rule says so; the pattern checks each layer

    def __post_init__(self):
        if not callable(self.rule):
            _check.by_name(self.rule, argument="rule", of="factors")
            for pattern, factor in self.rule.items():
                if not 0 <= _check.number(factor, argument=f"rule[{pattern!r}]") < math.inf:
                    raise ArgumentError(f"rule[{pattern!r}] must be 0 or more, got {factor!r}")

    @property
    def patterns(self):  # type: ignore[override]
        return () if callable(self.rule) else tuple(self.rule)

    def shares(self, sparsity, shapes, memory, most=1.0):
        if callable(self.rule):
            wanted = self.rule(sparsity, shapes)
            _check.by_name(wanted, argument="what rule returns", of="sparsities")
        else:
            wanted = {name: min(most, sparsity * self._factor(name)) for name in shapes}
        if set(wanted) != set(shapes):
            raise ArgumentError(
                f"rule must name the layers {sorted(shapes)}, it names {sorted(wanted)}"
            )
        return {n: check_share(wanted[n], f"rule for {n!r}") for n in shapes}

    def _factor(self, name: str) -> float:
        assert not callable(self.rule)
        matches = (f for pattern, f in self.rule.items() if fnmatchcase(name, pattern))
        return next(matches, 1.0)


@dataclass(frozen=True)
class Hierarchical(Distribution):
    """Divide the model's zeros among blocks by `outer`, and each block's among layers by `inner`.

    Parameters
    ----------
    outer, inner : Distribution
    depth : int, default 1
        How many leading, dot-separated parts of a layer's name are the name of its block.

    Examples
    --------
    >>> from sparse24.schedule import Hierarchical
    >>> shapes = {"a.up": (64, 16), "a.head": (4, 16), "b.up": (64, 16)}
    >>> Hierarchical().shares(0.5, shapes, {})
    {'a.up': 0.53125, 'a.head': 0.0, 'b.up': 0.5}
    """

    outer: Distribution = field(default_factory=Uniform)
    inner: Distribution = field(default_factory=ERK)
    depth: int = 1

    def __post_init__(self):
        check_part(self.outer, Distribution, "outer", "Uniform()")
        check_part(self.inner, Distribution, "inner", "ERK()")
        _check.whole(self.depth, argument="depth", least=1)
        if self.outer.remembers:
            raise ArgumentError(
                f"outer must not look at gradients, which belong to layers, and "
                f"{type(self.outer).__name__} does; use it as inner"
            )

    @property
    def needs(self):  # type: ignore[override]
        return tuple({*self.outer.needs, *self.inner.needs})

    @property
    def remembers(self):  # type: ignore[override]
        return self.inner.remembers

    @property
    def patterns(self):  # type: ignore[override]
        return self.inner.patterns

    def observe(self, memory, seen):
        return self.inner.observe(memory, seen)

    def agreed(self, memory, reduce):
        return self.inner.agreed(memory, reduce)

    def shares(self, sparsity, shapes, memory, most=1.0):
        blocks: dict[str, dict] = {}
        for name, shape in shapes.items():
            blocks.setdefault(".".join(name.split(".")[: self.depth]), {})[name] = shape
        sizes = {block: sum(sizes_of(inside).values()) for block, inside in blocks.items()}
        whole = {block: (size,) for block, size in sizes.items()}
        budget = self.outer.shares(sparsity, whole, {}, most)
        zeros = {block: budget[block] * sizes[block] for block in blocks}
        size = sum(sizes.values())
        total = floor_count(sum(zeros.values()) / max(1, size), size)
        budget = round_to_total(zeros, sizes, total, most)  # whole zeros, of which none is lost
        shares: dict[str, float] = {}
        for block, inside in blocks.items():
            shares |= self.inner.shares(budget[block], inside, memory, most)
        return shares
