"""Which sets of weights may be kept together.

A pattern pools scores into units, chooses units with an exact count, and expands the choice
to a mask.  Counts of zeros round down, in units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _foreign_streams
from sparse24._errors import ArgumentError, PatternError, ShapeError
from sparse24._prune import mask as choose_mask
from sparse24._schedule.arrays import (
    bounded,
    floor_count,
    join_groups,
    level,
    namespace,
    plain,
    ranked,
    select,
)
from sparse24._schedule.largest import ranks_in_groups, top

Array = Any


@dataclass(frozen=True)
class Turnover:
    """What a grower adds to a choice: the units in use, growth scores, the share to replace."""

    active: Array
    growth: Array
    share: float


class Pattern:
    """Base of all patterns.

    A subclass has `kept` and `choose`; `pool`, `units_of` and `expand` only if its units are not
    single elements.

    Attributes
    ----------
    grows : bool
        Whether it can follow a grower, so that `choose` gets a turnover.
    fixed : bool
        Whether it has only one sparsity, besides 0.
    most : float
        The highest sparsity that a layer can have.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> @dataclass(frozen=True)
    ... class Chessboard(schedule.Pattern):
    ...     grows, fixed = False, True
    ...     def kept(self, shape, sparsity):
    ...         return int(self.mask(np.empty(shape), sparsity).sum())
    ...     def choose(self, units, sparsity, turnover=None):
    ...         return np.indices(units.shape).sum(0) % 2 == 0
    ...
    >>> recipe = schedule.Recipe(schedule.ConstantScheduler(0.5), pattern=Chessboard())
    >>> schedule.MaskScheduler(recipe).step(weights={"w": np.ones((2, 4))})["w"].astype(int)
    array([[1, 0, 1, 0],
           [0, 1, 0, 1]])
    """

    grows = True
    fixed = False
    most = 1.0

    def check(self, sparsity: float) -> None:
        """Raise `PatternError` if the pattern cannot have this `sparsity`."""

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise `ShapeError` if matrices of this `shape` cannot have the pattern."""

    def kept(self, shape: tuple[int, ...], sparsity: float) -> int:
        """Exact number of elements that a mask of this `shape` and `sparsity` keeps."""
        raise NotImplementedError

    def pool(self, scores: Array) -> Array:
        """Scores of the units, by the `scores` of the elements."""
        return ranked(scores)

    def units_of(self, mask: Array) -> Array:
        """The units that a `mask` of this pattern keeps."""
        return mask

    def choose(self, units: Array, sparsity: float, turnover: Turnover | None = None) -> Array:
        """Boolean choice among the units.

        Parameters
        ----------
        units : array
            Their scores, as `pool` gives them.
        sparsity : float
            The share of zeros.
        turnover : optional
            Of a grower: ``active``, the units in use; ``growth``, the scores by which others come
            back; ``share``, the share of the units in use to replace.
        """
        raise NotImplementedError

    def expand(self, chosen: Array, shape: tuple[int, ...]) -> Array:
        """Mask of the elements of a layer of this `shape`, of which the units are `chosen`."""
        return chosen

    def of_magnitudes(self, weight: Array) -> Array | None:
        """The mask of the largest magnitudes of `weight` in one fused pass, where there is one."""
        return None

    def mask(self, scores: Array, sparsity: float) -> Array:
        """The best mask of these `scores` with this `sparsity`, without a grower."""
        self.check(sparsity)
        self.check_shape(scores.shape)
        if sparsity == 0:
            return namespace(scores).ones_like(scores, dtype=namespace(scores).bool)
        return self.expand(self.choose(self.pool(scores), sparsity), scores.shape)


def check_axis(axis: Any) -> None:
    """Refuse what cannot number an axis."""
    if not _check.is_index(axis):
        raise ArgumentError(f"axis must be a whole number, got {_check.shown(axis)}")


def check_has_axis(pattern: Any, shape: tuple[int, ...]) -> None:
    """Refuse a shape without the axis of a pattern."""
    if not -len(shape) <= pattern.axis < len(shape):
        name = f"{type(pattern).__name__}(axis={pattern.axis})"
        raise ShapeError(f"{name} needs that axis, got shape {shape}")


def by_kernel(weight: Array, **options) -> Array | None:
    """The mask by `sparse24.mask`, whose kernels obey the same rules, where it knows the array."""
    known = isinstance(weight, np.ndarray) or _arrays.is_cupy(weight) or _arrays.is_torch(weight)
    if not known or str(weight.dtype).removeprefix("torch.") not in _dtypes.TABLE:
        return None
    with _foreign_streams.stream_of(weight):
        return choose_mask(plain(weight), **options)


def _survivors(units: Array, keep: int, grown: int, active: Array) -> Array:
    """The best `keep - grown` of the active units."""
    return top(select(active, units, level(units, -math.inf)), keep - grown)


def _choose_exactly(units: Array, keep: int, turnover: Turnover | None) -> Array:
    if turnover is None:
        return top(units, keep)
    xp = namespace(units)
    active = int(xp.sum(xp.astype(turnover.active, xp.int32)))
    grown = max(keep - active, floor_count(turnover.share, min(keep, active)))
    survivors = _survivors(units, keep, grown, turnover.active)
    growth = select(survivors, level(turnover.growth, -math.inf), turnover.growth)
    return survivors | top(growth, grown)


@dataclass(frozen=True)
class Unstructured(Pattern):
    """Every element by itself: meets any sparsity, to one element.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> scores = np.array([[1.0, 9.0, 2.0, 8.0], [3.0, 4.0, 5.0, 7.0]])
    >>> schedule.Unstructured().mask(scores, 0.5).astype(int)
    array([[0, 1, 0, 1],
           [0, 0, 1, 1]])
    """

    def kept(self, shape, sparsity):
        return math.prod(shape) - floor_count(sparsity, math.prod(shape))

    def choose(self, units, sparsity, turnover=None):
        return _choose_exactly(units, self.kept(units.shape, sparsity), turnover)


@dataclass(frozen=True)
class NM(Pattern):
    """`n` kept of every `m` along an axis, as the sparse Tensor Cores take at 2:4 along the last.

    The sparsity is fixed at ``1 - n/m``; 0 means dense.

    Parameters
    ----------
    n, m : int, default 2 and 4
    axis : int, default -1
        1 for the input channels of a convolution, whose last axes are those of its kernel.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> scores = np.arange(8.0).reshape(2, 4)
    >>> schedule.NM(2, 4).mask(scores, 0.5).astype(int)
    array([[0, 0, 1, 1],
           [0, 0, 1, 1]])
    """

    n: int = 2
    m: int = 4
    axis: int = -1
    fixed = True

    def __post_init__(self):
        _check.pattern((self.n, self.m))
        check_axis(self.axis)

    def check(self, sparsity):
        fixed = 1 - self.n / self.m
        if sparsity != 0 and abs(sparsity - fixed) > 1e-9:
            raise PatternError(
                f"a fixed {self.n}:{self.m} pattern has sparsity {fixed:g} (or 0, dense), the "
                f"schedule asks for {sparsity:g}; use OneShot({fixed:g}), or a pattern that "
                "meets any target: Elastic(), TileHybrid(), Unstructured()"
            )

    def check_shape(self, shape):
        check_has_axis(self, shape)
        if len(shape) > 2 and 0 < shape[self.axis] < self.m:
            raise ShapeError(
                f"NM({self.n}, {self.m}) has groups of {self.m} along axis {self.axis}, of which "
                f"shape {shape} has {shape[self.axis]}; name another axis, such as "
                f"NM({self.n}, {self.m}, axis=1) for the input channels of a convolution, or leave "
                "the layer out"
            )

    def kept(self, shape, sparsity):
        if sparsity == 0:
            return math.prod(shape)
        count = shape[self.axis]
        whole, rest = divmod(count, self.m)
        return math.prod(shape) // max(1, count) * (whole * self.n + min(self.n, rest))

    def pool(self, scores):
        return self.units_of(ranked(scores))

    def units_of(self, mask):
        return mask if self.axis == -1 else namespace(mask).moveaxis(mask, self.axis, -1)

    def expand(self, chosen, shape):
        return chosen if self.axis == -1 else namespace(chosen).moveaxis(chosen, -1, self.axis)

    def choose(self, units, sparsity, turnover=None):
        if turnover is not None:
            units = self._composite(units, turnover)
        return join_groups(ranks_in_groups(units, self.m) < self.n, units.shape[-1])

    def _composite(self, units: Array, turnover: Turnover) -> Array:
        """Survivors, the best of at most n in a group, beat the rest; other slots go by growth."""
        xp = namespace(units)
        lowest = level(units, -math.inf)
        best = ranks_in_groups(select(turnover.active, units, lowest), self.m) < self.n
        alive = turnover.active & join_groups(best, units.shape[-1])  # of a dense mask, n a group
        keep = int(xp.sum(xp.astype(alive, xp.int32)))
        grown = floor_count(turnover.share, keep)
        survivors = _survivors(units, keep, grown, alive)
        growth = bounded(turnover.growth, float(xp.finfo(turnover.growth.dtype).max))
        return select(survivors, level(growth, math.inf), growth)

    def of_magnitudes(self, weight):
        return by_kernel(weight, pattern=(self.n, self.m), axis=self.axis)
