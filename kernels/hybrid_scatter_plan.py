"""How a product of the scatter kernel is cut up: configurations, their choice, balance."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

UNIT_ROWS, UNIT_COLUMNS = 128, 64
LINE_BYTES = 128
GROUP_BYTES = 6 * LINE_BYTES
GROUP_ELEMENTS = 4  # of each list of a lane
MOST_LINES = 7  # of a unit
MOST_SHARED = 227 * 1024
MOST_WRITERS = 8  # warps; with those that multiply 12, which leaves 168 registers a thread
MOST_SPLITS = 16
WHOLE, PART = (
    (7, MOST_LINES),
    (4, MOST_LINES),
)  # groups and lines of a batch, of which a writer holds two
UNIT = np.dtype([("column", "i4"), ("first", "i4"), ("groups", "i4"), ("lines", "i4")])


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
        Clear tiles element by element; no unit may be larger than the batch `WHOLE`.
    """

    tall: int
    tiles: int
    splits: int
    erase: bool

    @property
    def name(self) -> str:
        return f"{UNIT_ROWS * self.tall}x{8 * self.tiles}k{self.splits}" + "e" * self.erase

    @property
    def width(self) -> int:
        """Columns of an instruction's result: those of b, or rows of the matrix in their place."""
        return UNIT_ROWS * self.tall if self.tiles == 8 else 8 * self.tiles

    @property
    def _stage(self) -> int:
        return UNIT_COLUMNS * (2 * UNIT_ROWS * self.tall + 16 * self.tiles)

    @property
    def stages(self) -> int:
        """As many as fit, each with its own warps."""
        return min((MOST_SHARED - 1024) // (self._stage + 16), MOST_WRITERS // self.tall)

    @property
    def threads(self) -> int:
        return 32 * (4 + self.tall * self.stages)

    @property
    def shared_memory(self) -> int:
        return self.stages * (self._stage + 16)

    @property
    def batch(self) -> tuple[int, int]:
        """Groups and lines."""
        return WHOLE if self.erase else PART


def lines_of(sizes: np.ndarray) -> np.ndarray:
    """Bytes of units, in lines, from their groups and lines, shape (..., 2)."""
    return sizes[..., 0] * (GROUP_BYTES // LINE_BYTES) + sizes[..., 1]


def configs(sizes: np.ndarray, n: int, sms: int) -> list[Config]:
    """Ways to multiply a matrix by `n` columns, best guess first.

    `sizes` are the groups and lines of each unit, shape (down, across, 2).
    """
    tiles = 2 if n <= 16 else 4 if n <= 32 else 8
    erase = bool((sizes <= WHOLE).all())
    found = []
    for tall, splits in itertools.product((1, 2), range(1, MOST_SPLITS + 1)):
        blocks = -(-len(sizes) // tall) * splits
        if splits == 1 or (blocks <= sms and splits <= sizes.shape[1]):
            config = Config(tall, tiles, splits, erase)
            found.append((_microseconds(sizes, config, sms), config))
    return [config for _, config in sorted(found, key=lambda pair: pair[0])]


LATENCY = 1.5  # µs, of the first bytes, and of the sharing of sums
MEMORY = 4300.0  # bytes a nanosecond, all multiprocessors together; one alone gets
ONE = 50.0  # from memory or the L2 cache
CLOCK = 1.7  # cycles a nanosecond
GROUP_STORES, LINE_STORES = 8, 3.2  # cycles, with conflicts of banks
TILE = 2 * UNIT_ROWS * UNIT_COLUMNS // 128  # cycles to read or clear a tile


def _microseconds(sizes: np.ndarray, config: Config, sms: int) -> float:
    """About how long the product takes; the constants are round figures of an H200."""
    live = _by_block(lines_of(sizes), config.tall)
    blocks = len(live) * config.splits
    steps = -(-int((live > 0).sum(1).max(initial=0)) // config.splits)
    groups, lines = sizes.sum((0, 1)) / max(1, np.count_nonzero(live))  # of a step
    stores = GROUP_STORES * groups + LINE_STORES * lines
    clear = stores if config.erase else TILE * config.tall
    of_b = 64 if config.tiles == 8 else 16 * config.tiles * config.tall
    tensor = 8 * config.tall * max(16, 4 * config.tiles)
    work = (
        steps * max(TILE * config.tall + of_b + stores + clear + 8 * config.tiles, tensor) / CLOCK
    )
    rate = min(ONE, MEMORY / min(sms, blocks))
    nbytes = groups * GROUP_BYTES + lines * LINE_BYTES
    memory = steps * (nbytes / rate + 16 * config.tiles * UNIT_COLUMNS / ONE)
    body = (max(work, memory) + 0.2 * min(work, memory)) * 1e-3
    sums = config.tall * UNIT_ROWS * 32 * config.tiles
    shared = LATENCY + 2 * sums / ONE * 1e-3 if config.splits > 1 else 0.0
    return -(-blocks // sms) * (LATENCY + body + shared)


def _by_block(lines: np.ndarray, tall: int) -> np.ndarray:
    """Lines of every step: those of the units that lie above one another."""
    padded = np.pad(lines, ((0, -len(lines) % tall), (0, 0)))
    return padded.reshape(-1, tall, lines.shape[1]).sum(1)


STEP_COST = 100  # lines that cost as much as the rest of a step


def schedule(
    sizes: np.ndarray, config: Config, *, balance: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """The units of every block, step by step.

    A step in which no unit has a non-zero is left out.  Balanced, the parts of k cost about the
    same; else they are as long as one another.

    Returns
    -------
    units : ndarray of UNIT, shape (blocks, steps, tall)
        Blocks that share rows are neighbours.  Steps that hold nothing follow the last.
    counts : ndarray of int32, shape (blocks,)
        At least 1.
    """
    down, across, _ = sizes.shape
    tall, splits = config.tall, config.splits
    lines = lines_of(sizes)
    first = (np.cumsum(lines, dtype=np.int64) - lines.ravel()).reshape(lines.shape)
    whole = np.zeros((-(-down // tall) * tall, across), UNIT)
    whole["column"] = np.arange(across) * UNIT_COLUMNS
    whole["first"][:down] = first
    whole["groups"][:down], whole["lines"][:down] = sizes[..., 0], sizes[..., 1]
    whole = whole.reshape(-1, tall, across).swapaxes(1, 2)
    parts = [part for block in whole for part in _parts(block, splits, balance)]
    counts = np.array([max(1, len(part)) for part in parts], np.int32)
    units = np.zeros((len(parts), counts.max() + 2 * config.stages, tall), UNIT)
    for to, part in zip(units, parts):
        to[: len(part)] = part
    return units, counts


def _parts(units: np.ndarray, splits: int, balance: bool) -> list[np.ndarray]:
    """The steps of a block's rows that hold anything, dealt to blocks in order."""
    cost = lines_of(np.stack([units["groups"], units["lines"]], axis=-1)).sum(1)
    if not balance:
        edges = np.arange(1, splits) * len(units) // splits
        parts = zip(np.split(units, edges), np.split(cost, edges))
        return [part[own > 0] for part, own in parts]
    live = units[cost > 0]
    running = np.cumsum(cost[cost > 0] + STEP_COST)
    wanted = (running[-1] if len(live) else 0) * np.arange(1, splits) / splits
    return np.split(live, np.searchsorted(running, wanted, side="right"))
