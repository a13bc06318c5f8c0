"""How a product of the stream kernel is cut up: configurations, their choice, balance."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

STRIP = 16  # rows
MOST_SHARED = 227 * 1024
MANY = (1, 2, 3, 4, 5, 6, 7, 8)  # teams, parts and splits that are tried
MOST_TILES = 8  # of a block: 64 columns
MOST_TEAMS = {1: 8, 2: 8, 4: 5, 8: 4}  # of a block, all parts, by tiles: registers set them
WORTH_UNEVEN = 1.08  # gain from which parts of unlike length are taken


@dataclass(frozen=True)
class Config:
    """How a product is cut up.

    Attributes
    ----------
    teams, parts : int
        Teams of four warps of a block: so many 64 rows, and so many parts of k.
    tiles : int
        Tiles of 8 columns of the result in a block.
    splits : int
        Blocks that share k.
    panel, buffers : int
        Lines of b that are staged at a time for each part, and how many times over.
    stages : int
        Chunks of a warp in shared memory.
    wgmma : bool
        Multiply by warpgroup instructions.
    """

    teams: int
    parts: int
    tiles: int
    splits: int
    panel: int
    buffers: int = 1
    stages: int = 2
    wgmma: bool = True

    @property
    def name(self) -> str:
        shape = f"{self.teams}x{self.parts}x{self.splits}"
        return f"{shape}t{self.tiles}p{self.panel}b{self.buffers}s{self.stages}w{int(self.wgmma)}"

    @property
    def warps(self) -> int:
        return 4 * self.teams * self.parts

    @property
    def height(self) -> int:
        """Strips of a block."""
        return 4 * self.teams

    def shared_memory(self, stage_bytes: int) -> int:
        b_bytes = self.buffers * self.parts * self.panel * 16 * self.tiles
        sums = (self.parts - 1) * self.teams * 64 * 8 * self.tiles * 4
        return 2048 + max(b_bytes + self.stages * self.warps * stage_bytes, sums)


def configs(
    layout, n: int, sms: int, hopper: bool = True, most_shared: int = MOST_SHARED,
    most_waiting: int = MANY[-1],
) -> list[Config]:  # fmt: skip
    """Ways to cut up the product with `n` columns, best guess first.

    `most_waiting`: how many blocks may wait for one another's sums, as in `block_sums`.
    """
    tiles = 1 if n <= 8 else 2 if n <= 16 else 4 if n <= 32 else MOST_TILES
    found = []
    for stages, splits, teams, parts in itertools.product((4, 3, 2), MANY, MANY, MANY):
        blocks = -(-layout.strips // (4 * teams)) * splits
        if teams * parts > MOST_TEAMS[tiles] or splits > most_waiting:
            continue
        if splits > 1 and blocks > sms:
            continue
        for panel, buffers in _panels(layout, splits * parts):
            shape = (teams, parts, tiles, splits, panel, buffers, stages, hopper)
            config = Config(*shape)  # type: ignore[arg-type]
            if config.shared_memory(layout.stage_bytes) <= most_shared:
                found.append((_microseconds(layout, config, sms), config))
    if not found:  # very full chunks
        found.append((0.0, smallest(layout.span, tiles, hopper)))
    return [config for _, config in sorted(found, key=lambda pair: pair[0])]


def smallest(span: int, tiles: int = MOST_TILES, hopper: bool = True) -> Config:
    """The configuration that needs the least shared memory."""
    return Config(1, 1, tiles, 1, span, 2, 2, hopper)


def _panels(layout, parts: int):
    """Lines and buffers of a panel: all lines of a part with some to spare, or several buffers."""
    chunks = max(1, -(-layout.chunks // parts))
    sizes = [(chunks + -(-chunks // 8), 1), (chunks, 1)]
    sizes += [(size, buffers) for size in (1, 2, 4) for buffers in (2, 3, 4) if size < chunks]
    return [(size * layout.span, buffers) for size, buffers in sizes]


LATENCY = 1.0  # µs, of memory and of the sharing of sums
MEMORY = 4300.0  # bytes a nanosecond, of all multiprocessors together
ONE = 45.0  # bytes a nanosecond, of one alone, from memory or the L2 cache
CLOCK = 1.7  # cycles a nanosecond
SLAB = (50, 330)  # cycles a 16x32 slab takes to issue, and from begin to end


def _microseconds(layout, config: Config, sms: int) -> float:
    """About how long the product takes; the constants are round figures of an H200."""
    row_blocks = -(-layout.strips // config.height)
    chunks = -(-layout.chunks // (config.splits * config.parts)) * config.parts  # the longest share
    columns = chunks * layout.span
    a_bytes = layout.nbytes / max(row_blocks, 1) * chunks / max(layout.chunks, 1)
    b_bytes = columns * 16 * config.tiles
    ahead = config.stages * config.warps * layout.nbytes / max(layout.strips * layout.chunks, 1)
    rate = min(ONE, ahead / LATENCY * 1e-3, max(MEMORY / min(sms, row_blocks * config.splits), 1))
    memory = (a_bytes / rate + b_bytes / ONE) * 1e-3
    slabs = config.teams * columns / 32
    warps = config.teams * config.parts  # of each scheduler
    slab = max(SLAB[0], 8 * config.tiles, SLAB[1] / warps)
    work = slabs * slab / CLOCK * 1e-3
    body = max(memory, work) + 0.3 * min(memory, work)
    if config.buffers > 1:
        phases = columns / config.parts / config.panel
        late = LATENCY - (config.buffers - 1) * body / phases
        body += phases * (0.1 + max(0.0, late))
    sums = config.teams * 64 * 8 * config.tiles * 4
    shared = 1.5 * LATENCY + 2 * sums / ONE * 1e-3 if config.splits > 1 else 0.0
    added = 0.2 + config.parts * sums / 100 * 1e-3 if config.parts > 1 else 0.0
    waves = -(-row_blocks * config.splits // sms)
    return waves * (LATENCY + body + added + shared)


def schedule(cost: np.ndarray, height: int, parts: int, balance: bool, most: int | None = None):
    """Deal strips to blocks of `height` strips and cut each block's chunks into parts.

    Balanced, four strips of like cost make a team, blocks get dear and cheap teams in turn,
    and the parts of a block cost about the same where that matters; else strips stay in
    order and parts have the same number of chunks.

    Parameters
    ----------
    cost : ndarray, shape (strips, chunks)
    height, parts : int
    balance : bool
    most : int, optional
        Chunks that a part may have at most.

    Returns
    -------
    order : ndarray of int32, shape (blocks * height,)
        Strip numbers; -1 where there is none.
    cuts : ndarray of int32, shape (blocks, parts + 1)
    """
    strips, chunks = cost.shape
    order = np.argsort(-cost.sum(1), kind="stable") if balance else np.arange(strips)
    order = np.pad(order, (0, -strips % height), constant_values=-1).astype(np.int32)
    blocks = order.size // height
    even = np.tile(np.arange(parts + 1) * chunks // parts, (blocks, 1)).astype(np.int32)
    if not balance:
        return order, even
    if height % 4 == 0:
        teams = order.reshape(height // 4, blocks, 4)
        teams[1::2] = teams[1::2, ::-1].copy()
        order = teams.swapaxes(0, 1).ravel().copy()
    dealt = np.where(order[:, None] >= 0, cost[order], 0).reshape(blocks, height, chunks).sum(1)
    cuts = _cuts(dealt, parts)
    fits = most is None or np.diff(cuts, axis=1).max(initial=0) <= most
    gain = _dearest(dealt, even) / max(_dearest(dealt, cuts), 1)
    return order, cuts if fits and gain > WORTH_UNEVEN else even


def warp_starts(cost: np.ndarray, order: np.ndarray, cuts: np.ndarray, config: Config):
    """Where the chunks of every warp begin, and the last one ends, in units of 16 bytes.

    Returns
    -------
    ndarray of uint32, shape (warps of all blocks, most chunks + 1)
        Warps by row block, block of those that share it (`splits`), part and strip; zeros where
        there is no strip.
    """
    chunks = cost.shape[1]
    offsets = np.concatenate([[0], np.cumsum(cost, dtype=np.int64)])
    blocks = len(cuts)
    first, last = cuts[:, :-1], cuts[:, 1:]
    pitch = int((last - first).max(initial=0)) + 1
    chunk = np.minimum(first[:, :, None] + np.arange(pitch), last[:, :, None])
    strip = order.reshape(blocks, 1, config.height, 1)
    at = np.maximum(strip, 0) * chunks + chunk[:, :, None]
    return np.where(strip >= 0, offsets[at], 0).astype(np.uint32).reshape(-1, pitch)


def _cuts(dealt: np.ndarray, parts: int) -> np.ndarray:
    """Chunks at which parts of equal cost begin, for every block's costs by chunk."""
    blocks, chunks = dealt.shape
    running = np.cumsum(dealt, axis=1)
    wanted = running[:, -1:] * np.arange(1, parts) / parts
    found = [np.searchsorted(run - run[0] / 2, want) for run, want in zip(running, wanted)]
    inner = np.reshape(np.asarray(found, np.int32), (blocks, parts - 1))
    edges = np.zeros((blocks, 1), np.int32)
    return np.concatenate([edges, inner, edges + chunks], axis=1).astype(np.int32)


def _dearest(dealt: np.ndarray, cuts: np.ndarray) -> int:
    """Cost of the dearest part."""
    running = np.pad(np.cumsum(dealt, axis=1), ((0, 0), (1, 0)))
    return int(np.diff(np.take_along_axis(running, cuts.astype(np.int64), 1), axis=1).max())
