"""How a product of the scatter kernel is cut up: specialisations, and which block takes what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparse24.kernels.block_sums import Sharing, most_of, sharing
from sparse24.kernels.chip import H200
from sparse24.kernels.hybrid_scatter_units import (
    BASE_LINES,
    LINE_BYTES,
    TILE_COLUMNS,
    TILE_ROWS,
    Units,
)

WRITERS = 8  # warps
SPAN = 64  # columns of b that lie together in shared memory


@dataclass(frozen=True)
class Config:
    """One specialisation.

    Attributes
    ----------
    tiles : int
        Tiles of 8 columns of the result.
    base : bool
        Units are 2:4 tiles, and what spills over; see `Units`.
    cluster : int
        Blocks of a cluster, which work on one band and send one another their sums; 1: see `Deal`.
    columns : int
        Columns of a unit, as in `Units`.
    by_warps : bool
        Writer warps load b, of any strides and up to 8 columns, instead of the TMA.
    sharing : Sharing
        How blocks that share a band add up their sums.
    """

    tiles: int
    base: bool = False
    cluster: int = 1
    columns: int = TILE_COLUMNS
    by_warps: bool = False
    sharing: Sharing = Sharing.FEW

    @property
    def name(self) -> str:
        cluster = f"c{self.cluster}" if self.cluster > 1 else ""
        return f"{self.rows}x{8 * self.tiles}" + "b" * self.base + cluster

    @property
    def rows(self) -> int:
        """Rows of a unit, at most."""
        return TILE_ROWS * TILE_COLUMNS // self.columns

    @property
    def pieces(self) -> int:
        """Pieces of the sums, which the blocks of a cluster divide among themselves."""
        return self.tiles * self.rows // (64 * self.groups)

    @property
    def groups(self) -> int:
        """Warpgroups that multiply; if there are two, each has 64 rows."""
        return 2 if self.tiles > 8 and self.rows == TILE_ROWS else 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (4 * self.groups + WRITERS)

    @property
    def batch(self) -> int:
        """Groups of a batch.  A writer warp holds two; larger ones would spill registers."""
        return 9 if self.groups == 1 else 7

    @property
    def width(self) -> int:
        """Columns of a dense instruction's result: those of b, or rows of the matrix instead."""
        return self.rows if self.tiles == 8 and not self.base else 8 * self.tiles

    @property
    def stages(self) -> int:
        """Stages of the ring: as many as fit, but no more than there are warps that write."""
        return max(s for s in range(1, WRITERS + 1) if self._bytes(s) <= H200.most_shared)

    @property
    def early(self) -> int:
        """Stages whose first elements are asked for before b; b would wait behind more of them.

        By up to 16 columns a line of b is short enough, and a 2:4 tile is most of what is read.
        """
        return self.stages if self.base or self.tiles <= 2 else self.stages // 2

    @property
    def shared_memory(self) -> int:
        return self._bytes(self.stages)

    def _bytes(self, stages: int) -> int:
        spans = -(-8 * self.tiles // SPAN)
        b = 2 * spans * min(8 * self.tiles, SPAN) * self.columns
        tile = 2 * TILE_ROWS * TILE_COLUMNS
        stage = tile // 2 + LINE_BYTES * BASE_LINES + b + b // 2 if self.base else tile + b
        of_others = 32 * self.rows * self.tiles * (self.cluster - 1) // self.cluster  # sums
        return stages * (stage + 16) + of_others + 8


def tiles_of(n: int) -> int:
    """Tiles of 8 columns of a product with `n` columns."""
    return next(tiles for tiles in (1, 2, 4, 8, 12, 16) if n <= 8 * tiles)


# Cycles of shared memory, which set the time.  TILE: to read or clear a tile; GROUP_STORES and
# LINE_STORES: for the stores of a group and of a line, with bank conflicts; SECOND_BATCH: for a
# unit of several batches.
TILE = 2 * TILE_ROWS * TILE_COLUMNS // 128
GROUP_STORES, LINE_STORES, SECOND_BATCH = 12, 6, 190
# Cycles until the sums of blocks that share a band have met: once, and for 128 rows by 8 columns.
# IN_CLUSTER takes PEER more for every other block.  These and CROWDED are from 2151 products, dealt
# in every way (docs/benchmarks/log_hybrid.rst).
HAND_OVER = {Sharing.FEW: (950, 600), Sharing.MANY: (2100, 300), Sharing.APART: (4000, 600)}
IN_CLUSTER, PEER = (50, 150), 100
CROWDED = 2050  # more with so many blocks that those of the next product do not start beside them
PRIORITIES = 6  # of a device's streams; where there are others, the plan is only less good
CLUSTERS = (2, 4)  # sizes
LEFT_OVER = 11  # clusters of four leave one of 11 multiprocessors idle: an H200 with 132 runs 30
NEAR = 50  # a cut moves to the edge of a band over at most 1 / NEAR of a block's share
# Cycles that a product takes longer where blocks work on two bands, because they come late to the
# second one; from 140 products, docs/benchmarks/log_hybrid.rst.
PASSING = 5000


def cycles_of(units: Units, tiles: int) -> np.ndarray:
    """Cycles that each unit keeps shared memory busy, in a product with so many tiles of 8 columns.

    The tile of a unit that is a single batch is cleared by as many stores as have filled it.
    """
    stores = units.sizes @ (GROUP_STORES, LINE_STORES)
    tile, halves = TILE // 2 if units.base else TILE, units.columns // TILE_COLUMNS
    batch = Config(tiles, units.base, columns=units.columns).batch
    clear = np.where(units.sizes[..., 0] <= batch, stores, tile + SECOND_BATCH)
    if units.base:  # two blocks of 64 rows read 64 rows of b, and half of them again
        return BASE_LINES + TILE // 2 + tile + (12 * halves + 24) * tiles + stores + clear
    of_b = 64 * halves if tiles == 8 else 16 * tiles
    return tile + of_b + 8 * tiles * halves + stores + clear


class Deal(NamedTuple):
    """Which block takes which units.

    Attributes
    ----------
    units : ndarray of int
        Flat indices of the units, band by band.  Empty units are left out, but for one in a band
        that has no others.
    bands, cuts : ndarray of int
        Where each band, and each block's share, begins in `units`, and the end.
    cluster : int
        Blocks of a cluster, which has one whole band and nothing else; or 1.
    """

    units: np.ndarray
    bands: np.ndarray
    cuts: np.ndarray
    cluster: int = 1


def deal(
    units: Units, sms: int, tiles: int, *, balance: bool = True, clusters: bool = True
) -> Deal:
    """Deal units to at most `sms` blocks, about even in cost, or in number if not `balance`.

    Either every band is cut into the same number of parts, which may be the blocks of a cluster
    (with `clusters`); or all units are cut into as many shares as there are SMs.  The way that is
    cheapest with so many `tiles` of 8 columns is taken.
    """
    live = units.lines > 0
    live[~live.any(1), 0] = True
    band, _ = np.nonzero(live)
    bands = np.searchsorted(band, np.arange(len(live) + 1))
    cost = cycles_of(units, tiles)[live]
    if not balance:
        cost = np.full(len(cost), cost.mean())
    running = np.concatenate([[0], np.cumsum(cost)])
    config = Config(tiles, units.base, columns=units.columns)
    most = min(sms // len(live), live.shape[1])
    ways = [_even(running, bands, splits) for splits in range(1, most + 1)]
    ways.append(_through(running, bands, sms))
    found = [Deal(np.flatnonzero(live), bands, cuts) for cuts in ways]
    found += [
        way._replace(cluster=splits)
        for splits, way in enumerate(found[:-1], 1)
        if clusters and splits in CLUSTERS
        and config.pieces % splits == 0  # the same number for each block
        and len(live) * splits <= sms - (splits > 2) * (sms // LEFT_OVER)
        and len(way.cuts) == len(live) * splits + 1  # no part is empty
    ]  # fmt: skip
    return min(
        found, key=lambda way: _most(running, way, config, sms) + PASSING * _passes(way).any()
    )


def _passes(dealt: Deal) -> np.ndarray:
    """Which shares end in another band than they begin in."""
    bands, cuts = dealt.bands, dealt.cuts
    return np.searchsorted(bands, cuts[:-1], "right") < np.searchsorted(bands, cuts[1:])


def _most(running: np.ndarray, dealt: Deal, config: Config, sms: int) -> float:
    """Cycles of the block that has most to do, with those in which it hands over sums."""
    bands, cuts = dealt.bands, dealt.cuts
    begins_within, ends_within = ~np.isin(cuts[:-1], bands), ~np.isin(cuts[1:], bands)
    both = begins_within * 1 + ends_within
    shared = np.where(_passes(dealt), both, begins_within | ends_within)
    each = _meeting(dealt, config, sms)
    crowded = CROWDED * (2 * (len(cuts) - 1) > sms)
    return float((np.diff(running[cuts]) + each * shared).max()) + crowded


def _meeting(dealt: Deal, config: Config, sms: int) -> float:
    """Cycles in which a block hands over its sums of a band that it shares."""
    tiles = config.tiles * config.rows / TILE_ROWS
    if dealt.cluster > 1:
        once, each = IN_CLUSTER
        return once + PEER * (dealt.cluster - 1) + each * tiles
    edges = np.searchsorted(dealt.cuts, dealt.bands)
    first = np.searchsorted(dealt.cuts, dealt.bands[:-1], "right")
    most = int((edges[1:] - first).max()) + 1  # blocks of a band
    once, each = HAND_OVER[sharing(most, most_of(sms, PRIORITIES))]
    return once + each * tiles


def _even(running: np.ndarray, bands: np.ndarray, splits: int) -> np.ndarray:
    """Cuts of every band into parts of about the same cost."""
    first, size = running[bands[:-1], None], np.diff(running[bands])[:, None]
    wanted = first + size * np.arange(splits) / splits
    return np.unique(np.append(_nearest(running, wanted.ravel()), bands[-1]))


def _through(running: np.ndarray, bands: np.ndarray, blocks: int) -> np.ndarray:
    """Cuts into shares of about the same cost, at the edge of a band where one is near."""
    share = running[-1] / blocks
    cuts = _nearest(running, share * np.arange(1, blocks))
    after = np.minimum(np.searchsorted(bands, cuts), len(bands) - 1)
    for edge in (bands[after], bands[np.maximum(after - 1, 0)]):
        near = np.abs(running[edge] - running[cuts]) < share / NEAR
        cuts = np.where(near, edge, cuts)
    return np.unique(np.concatenate([[0], cuts, bands[-1:]]))


def _nearest(running: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where the running cost is nearest, so that units of about the same cost are dealt evenly."""
    after = np.searchsorted(running, wanted)
    before = np.maximum(after - 1, 0)
    return np.where(wanted - running[before] < running[after] - wanted, before, after)


def effort(units: Units, n: int, sms: int) -> tuple[float, float]:
    """Cycles of shared memory of the busiest block, and the most bytes of a block times all SMs."""
    tiles = tiles_of(n)
    dealt = deal(units, sms, tiles)
    held = np.append(0, np.cumsum(units.lines.ravel()[dealt.units]))
    cost = np.append(0, np.cumsum(cycles_of(units, tiles).ravel()[dealt.units]))
    most = LINE_BYTES * float(np.diff(held[dealt.cuts]).max())
    config = Config(tiles, units.base, columns=units.columns)
    return _most(cost, dealt, config, sms), most * sms
