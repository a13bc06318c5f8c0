"""Patterns of blocks, channels and tiles."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from sparse24 import _check, _spec
from sparse24._errors import ArgumentError
from sparse24._schedule.arrays import (
    as_matrix,
    check_reachable,
    check_tiles,
    floor_count,
    join_groups,
    namespace,
    split_groups,
    split_tiles,
    spread_tiles,
    summable,
    tree_sum,
)
from sparse24._schedule.largest import fours_from_the_largest, on_host, ranks_in_groups, top
from sparse24._schedule.patterns import Pattern, Unstructured, check_axis, check_has_axis


@dataclass(frozen=True)
class Block(Pattern):
    """Whole blocks, scored by the sums of their elements' scores.

    Layers must be whole blocks; leading axes of a layer count as rows.

    Parameters
    ----------
    tile : (int, int), default (32, 32)
        Rows and columns of a block.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> scores = np.arange(8.0).reshape(2, 4)
    >>> schedule.Block((2, 2)).mask(scores, 0.5).astype(int)
    array([[0, 0, 1, 1],
           [0, 0, 1, 1]])
    """

    tile: tuple[int, int] = (32, 32)

    def __post_init__(self):
        _check_tile(self.tile, 1)

    def check_shape(self, shape):
        check_tiles(shape, self.tile, f"Block({self.tile})")

    def kept(self, shape, sparsity):
        blocks = math.prod(shape) // math.prod(self.tile)
        return (blocks - floor_count(sparsity, blocks)) * math.prod(self.tile)

    def pool(self, scores):
        return tree_sum(split_tiles(as_matrix(summable(scores)), self.tile))

    def units_of(self, mask):
        return as_matrix(mask)[:: self.tile[0], :: self.tile[1]]

    def choose(self, units, sparsity, turnover=None):
        return Unstructured().choose(units, sparsity, turnover)

    def expand(self, chosen, shape):
        return namespace(chosen).reshape(spread_tiles(chosen, self.tile), shape)


@dataclass(frozen=True)
class Channel(Pattern):
    """Whole channels (slices along an axis), scored by the sums of their elements' scores.

    Parameters
    ----------
    axis : int, default 0
        0 for the output channels of a matrix, 1 or -1 for its input channels.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> scores = np.arange(16.0).reshape(4, 4)
    >>> schedule.Channel().mask(scores, 0.5).astype(int)
    array([[0, 0, 0, 0],
           [0, 0, 0, 0],
           [1, 1, 1, 1],
           [1, 1, 1, 1]])
    """

    axis: int = 0

    def __post_init__(self):
        check_axis(self.axis)

    def check_shape(self, shape):
        check_has_axis(self, shape)

    def kept(self, shape, sparsity):
        count = shape[self.axis]
        return (count - floor_count(sparsity, count)) * (math.prod(shape) // max(1, count))

    def pool(self, scores):
        xp = namespace(scores)
        moved = xp.moveaxis(summable(scores), self.axis, 0)
        return tree_sum(xp.reshape(moved, (moved.shape[0], math.prod(moved.shape[1:]))))

    def units_of(self, mask):
        xp = namespace(mask)
        moved = xp.moveaxis(mask, self.axis, 0)
        return xp.reshape(moved, (moved.shape[0], -1))[:, 0]

    def choose(self, units, sparsity, turnover=None):
        return Unstructured().choose(units, sparsity, turnover)

    def expand(self, chosen, shape):
        xp = namespace(chosen)
        lines = [1] * len(shape)
        lines[self.axis] = shape[self.axis]
        return xp.asarray(xp.broadcast_to(xp.reshape(chosen, tuple(lines)), shape), copy=True)


def _check_tile(tile, width_multiple: int) -> None:
    pair = isinstance(tile, tuple | list) and len(tile) == 2 and all(map(_check.is_index, tile))
    if not pair or min(tile) < 1 or tile[1] % width_multiple:
        multiple = f", with columns a multiple of {width_multiple}" if width_multiple > 1 else ""
        raise ArgumentError(f"tile must be a pair (rows, columns){multiple}, got {tile!r}")


@dataclass(frozen=True)
class _Levels(Pattern):
    """Each tile keeps one of several numbers of every four; the tiles' levels meet the target.

    Going one level up in a tile gains the scores that it adds.  These gains fall from level
    to level, so taking the largest gains of the whole layer is optimal.
    """

    tile: tuple[int, int] | None = (4, 64)
    grows = False

    @property
    def levels(self) -> tuple[int, ...]:
        """Numbers of every four that a tile may keep, in equal steps."""
        raise NotImplementedError

    def __post_init__(self):
        if self.tile is not None:
            _check_tile(self.tile, _spec.GROUP)

    def pool(self, scores):
        return summable(scores)

    def _tile(self, shape) -> tuple[int, int]:
        return self.tile or (math.prod(shape[:-1]), shape[-1])

    @property
    def most(self):  # type: ignore[override]
        return 1 - self.levels[0] / _spec.GROUP

    def check(self, sparsity):
        check_reachable(sparsity, self.most, repr(self))

    def check_shape(self, shape):
        check_tiles(shape, self.tile or (1, _spec.GROUP), repr(self))

    def _zero_steps(self, shape, sparsity: float) -> tuple[int, int]:
        """Steps down from dense in all tiles together, and the elements of one step."""
        tile = math.prod(self._tile(shape))
        step = tile * (self.levels[1] - self.levels[0]) // _spec.GROUP
        return floor_count(sparsity, math.prod(shape)) // step, step

    def kept(self, shape, sparsity):
        steps, step = self._zero_steps(shape, sparsity)
        return math.prod(shape) - steps * step

    def choose(self, units, sparsity, turnover=None):
        return on_host(lambda scores: self._chosen(scores, sparsity), units)

    def _chosen(self, units, sparsity):
        xp = namespace(units)
        matrix, tile = as_matrix(units), self._tile(units.shape)
        ordered = fours_from_the_largest(split_groups(matrix, _spec.GROUP, 0.0))
        gains = []
        for low, high in itertools.pairwise(self.levels):
            gain = ordered[low]
            for place in range(low + 1, high):
                gain = gain + ordered[place]
            gains.append(tree_sum(split_tiles(gain, (tile[0], tile[1] // _spec.GROUP))))
        gains = xp.stack(gains, axis=-1)  # (tile rows, tiles in a row, steps)
        steps_down, _ = self._zero_steps(units.shape, sparsity)
        up = top(gains, math.prod(gains.shape) - steps_down)
        count = xp.zeros_like(up[..., 0], dtype=xp.int8)
        for step in range(up.shape[-1]):
            count = count + xp.astype(up[..., step], xp.int8)
        level = self.levels[0] + count * (self.levels[1] - self.levels[0])
        allowed = spread_tiles(level, (tile[0], tile[1] // _spec.GROUP))
        kept = ranks_in_groups(matrix, _spec.GROUP) < allowed[..., None]
        return xp.reshape(join_groups(kept, matrix.shape[-1]), units.shape)


@dataclass(frozen=True)
class Elastic(_Levels):
    """1:4, 2:4, 3:4 or 4:4 in each tile, so that the layer meets any sparsity up to 0.75.

    Layers must be whole tiles, by default multiples of 4 by 64.  For others name another `tile`,
    down to (1, 4), keep them dense by the rule None, or choose another pattern.

    Parameters
    ----------
    tile : (int, int) or None, default (4, 64)
        Rows and columns that share a pattern; None gives the whole layer one pattern.
    least : {1, 2, 3}
        Kept elements of four at the least.  2 makes a ramp from dense to 0.5 that ends as
        2:4 everywhere.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> weights = np.random.default_rng(0).standard_normal((8, 64))
    >>> ramp = schedule.Elastic(tile=(2, 32), least=2)
    >>> [int(ramp.mask(abs(weights), sparsity).sum()) for sparsity in (0, 0.25, 0.5)]
    [512, 384, 256]
    """

    least: int = 1

    def __post_init__(self):
        super().__post_init__()
        _check.one_of(self.least, (1, 2, 3), argument="least")

    @property
    def levels(self):
        return tuple(range(self.least, _spec.GROUP + 1))


@dataclass(frozen=True)
class TileHybrid(_Levels):
    """Tiles that are empty, 2:4 or dense: any sparsity, in a form that suits `sparse24.hybrid`.

    Layers must be whole tiles, by default multiples of 64 by 64; keep others dense by the rule
    None, or choose another pattern.

    Parameters
    ----------
    tile : (int, int), default (64, 64)
    empty : bool, default True
        False leaves 2:4 and dense; a ramp to 0.5 then ends as 2:4 everywhere.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> scores = np.repeat([[4.0, 2.0], [1.0, 0.0]], 4, 0).repeat(4, 1)  # four tiles of 4 x 4
    >>> mask = schedule.TileHybrid(tile=(4, 4)).mask(scores, 0.625)
    >>> mask.reshape(2, 4, 2, 4).sum((1, 3))  # kept in each: all, half, none
    array([[16,  8],
           [ 0,  0]])
    """

    tile: tuple[int, int] | None = (64, 64)
    empty: bool = True

    @property
    def levels(self):
        return (0, 2, 4) if self.empty else (2, 4)
