"""How a product of the scatter kernel is cut up: configurations, their choice, balance."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

UNIT_ROWS, UNIT_COLUMNS, ROW_WORDS = 128, 64, 128  # of a unit; words of a row
MOST_SHARED = 227 * 1024
MOST_WRITERS = 12  # warps: more would leave too few registers
MOST_SPLITS = 16
HELD_WHOLE, HELD_PART = 8, 6  # rows of words that a writer holds, twice
UNIT = np.dtype([("column", "i4"), ("first", "i4"), ("rows", "i4"), ("unused", "i4")])


@dataclass(frozen=True)
class Config:
    """How a product is cut up.

    Attributes
    ----------
    tall : int
        Units of 128 rows of a block.
    tiles : int
        Tiles of 8 columns of the result.
    splits : int
        Blocks that share k.
    erase : bool
        Clear tiles element by element; no unit may have more than `HELD_WHOLE` rows of words.
    """

    tall: int
    tiles: int
    splits: int
    erase: bool

    @property
    def name(self) -> str:
        return f"{UNIT_ROWS * self.tall}x{8 * self.tiles}k{self.splits}" + "e" * self.erase

    @property
    def _stage(self) -> int:
        return UNIT_COLUMNS * (2 * UNIT_ROWS * self.tall + 16 * self.tiles)

    @property
    def stages(self) -> int:
        """As many as fit, each with its own warps."""
        return min((MOST_SHARED - 1024) // (self._stage + 16), MOST_WRITERS // self.tall)

    @property
    def threads(self) -> int:
        return 32 * self.tall * (4 + self.stages)

    @property
    def shared_memory(self) -> int:
        return self.stages * (self._stage + 16)

    @property
    def held(self) -> int:
        return HELD_WHOLE if self.erase else HELD_PART


def configs(rows: np.ndarray, n: int, sms: int) -> list[Config]:
    """Ways to multiply a matrix by `n` columns, best guess first.

    `rows` are the rows of words of each unit, shape (down, across).
    """
    tiles = 2 if n <= 16 else 4 if n <= 32 else 8
    erase = bool(rows.max(initial=0) <= HELD_WHOLE)
    found = []
    for tall, splits in itertools.product((1, 2), range(1, MOST_SPLITS + 1)):
        blocks = -(-len(rows) // tall) * splits
        if splits == 1 or (blocks <= sms and splits <= rows.shape[1]):
            config = Config(tall, tiles, splits, erase)
            found.append((_microseconds(rows, config, sms), config))
    return [config for _, config in sorted(found, key=lambda pair: pair[0])]


LATENCY = 1.5  # µs, of the first bytes, and of the sharing of sums
MEMORY = 4300.0  # bytes a nanosecond, all multiprocessors together; one alone gets
ONE = 50.0  # from memory or the L2 cache
CLOCK = 1.7  # cycles a nanosecond
BANK_CONFLICTS = 1.4  # cycles of a store of 32 elements
TILE = 2 * UNIT_ROWS * UNIT_COLUMNS // 128  # cycles to read or clear a tile


def _microseconds(rows: np.ndarray, config: Config, sms: int) -> float:
    """About how long the product takes; the constants are round figures of an H200."""
    live = _by_block(rows, config.tall)
    blocks = len(live) * config.splits
    steps = -(-int((live > 0).sum(1).max(initial=0)) // config.splits)
    of_step = rows.sum() / max(1, np.count_nonzero(live))  # rows of words
    stores = 4 * BANK_CONFLICTS * of_step
    clear = stores if config.erase else TILE * config.tall
    reads = config.tall * (TILE + 16 * config.tiles)
    tensor = 8 * config.tall * max(16, 4 * config.tiles)
    work = steps * max(reads + stores + clear + 8 * config.tiles, tensor) / CLOCK
    rate = min(ONE, MEMORY / min(sms, blocks))
    memory = steps * (of_step * 4 * ROW_WORDS / rate + 16 * config.tiles * UNIT_COLUMNS / ONE)
    body = (max(work, memory) + 0.2 * min(work, memory)) * 1e-3
    sums = config.tall * UNIT_ROWS * 32 * config.tiles
    shared = LATENCY + 2 * sums / ONE * 1e-3 if config.splits > 1 else 0.0
    return -(-blocks // sms) * (LATENCY + body + shared)


def _by_block(rows: np.ndarray, tall: int) -> np.ndarray:
    """Rows of words of every step: those of the units that lie above one another."""
    padded = np.pad(rows, ((0, -len(rows) % tall), (0, 0)))
    return padded.reshape(-1, tall, rows.shape[1]).sum(1)


STEP_COST = 30  # rows of words that cost as much as the rest of a step


def schedule(
    rows: np.ndarray, config: Config, *, balance: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """The units of every block, step by step.

    A step in which no unit has a non-zero is left out.  Balanced, the parts of k cost about the
    same; else they are as long as one another.

    Returns
    -------
    units : ndarray of UNIT, shape (blocks, steps, tall)
        Blocks that share rows are neighbours.  Steps of no words follow the last.
    counts : ndarray of int32, shape (blocks,)
        At least 1.
    """
    down, across = rows.shape
    tall, splits = config.tall, config.splits
    first = (np.cumsum(rows, dtype=np.int64) - rows.ravel()).reshape(rows.shape)
    whole = np.zeros((-(-down // tall) * tall, across), UNIT)
    whole["column"] = np.arange(across) * UNIT_COLUMNS
    whole["first"][:down], whole["rows"][:down] = first, rows
    whole = whole.reshape(-1, tall, across).swapaxes(1, 2)
    parts = [part for block in whole for part in _parts(block, splits, balance)]
    counts = np.array([max(1, len(part)) for part in parts], np.int32)
    units = np.zeros((len(parts), counts.max() + 2 * config.stages, tall), UNIT)
    for to, part in zip(units, parts):
        to[: len(part)] = part
    return units, counts


def _parts(units: np.ndarray, splits: int, balance: bool) -> list[np.ndarray]:
    """The steps of a block's rows that hold anything, dealt to blocks in order."""
    cost = units["rows"].sum(1)
    if not balance:
        edges = np.arange(1, splits) * len(units) // splits
        return [part[part["rows"].any(1)] for part in np.split(units, edges)]
    live = units[cost > 0]
    running = np.cumsum(cost[cost > 0] + STEP_COST)
    wanted = (running[-1] if len(live) else 0) * np.arange(1, splits) / splits
    return np.split(live, np.searchsorted(running, wanted, side="right"))
