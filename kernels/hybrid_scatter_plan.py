"""How a product of the scatter kernel is cut up: configurations, their choice, balance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

UNIT_ROWS, UNIT_COLUMNS = 128, 64
LINE_BYTES = 128
GROUP_BYTES = 6 * LINE_BYTES
GROUP_ELEMENTS = 4  # of each list of a lane
MOST_LINES = 7  # of a unit
BATCH_GROUPS = 7  # that a warp which writes holds at once, twice
STAGES = 8  # as many warps write; with those that multiply 12, which leaves 168 registers a thread
THREADS = 32 * (4 + STAGES)
MOST_SPLITS = 16
UNIT = np.dtype([("column", "i4"), ("first", "i4"), ("groups", "i4"), ("lines", "i4")])


@dataclass(frozen=True)
class Config:
    """How a product is cut up.

    Attributes
    ----------
    tiles : int
        Tiles of 8 columns of the result.
    splits : int
        Blocks that share k.
    erase : bool
        Clear tiles element by element; no unit may have more than `BATCH_GROUPS`.
    """

    tiles: int
    splits: int
    erase: bool

    @property
    def name(self) -> str:
        return f"{UNIT_ROWS}x{8 * self.tiles}k{self.splits}" + "e" * self.erase

    @property
    def width(self) -> int:
        """Columns of an instruction's result: those of b, or rows of the matrix in their place."""
        return UNIT_ROWS if self.tiles == 8 else 8 * self.tiles

    @property
    def shared_memory(self) -> int:
        return STAGES * (UNIT_COLUMNS * (2 * UNIT_ROWS + 16 * self.tiles) + 16)


def lines_of(sizes: np.ndarray) -> np.ndarray:
    """Bytes of units, in lines, from their groups and lines, shape (..., 2)."""
    return sizes[..., 0] * (GROUP_BYTES // LINE_BYTES) + sizes[..., 1]


def configs(sizes: np.ndarray, n: int, sms: int) -> list[Config]:
    """Ways to multiply a matrix by `n` columns, best guess first.

    `sizes` are the groups and lines of each unit, shape (down, across, 2).
    """
    tiles = 2 if n <= 16 else 4 if n <= 32 else 8
    erase = bool((sizes[..., 0] <= BATCH_GROUPS).all())
    found = []
    for splits in range(1, MOST_SPLITS + 1):
        if splits == 1 or (len(sizes) * splits <= sms and splits <= sizes.shape[1]):
            config = Config(tiles, splits, erase)
            found.append((_microseconds(sizes, config, sms), config))
    return [config for _, config in sorted(found, key=lambda pair: pair[0])]


LATENCY = 1.5  # µs, of the first bytes, and of the sharing of sums
MEMORY = 4300.0  # bytes a nanosecond, all multiprocessors together; one alone gets
ONE = 50.0  # from memory or the L2 cache
CLOCK = 1.7  # cycles a nanosecond
GROUP_STORES, LINE_STORES = 6, 6  # cycles, with conflicts of banks
TILE = 2 * UNIT_ROWS * UNIT_COLUMNS // 128  # cycles to read or clear a tile


def effort(sizes: np.ndarray, config: Config, sms: int) -> tuple[float, float]:
    """Cycles for which the busiest SM uses its shared memory, and bytes that it reads."""
    stores = GROUP_STORES * sizes[..., 0] + LINE_STORES * sizes[..., 1]
    of_b = 64 if config.tiles == 8 else 16 * config.tiles
    rest = TILE + of_b + 8 * config.tiles
    cycles = rest + (2 * stores if config.erase else TILE + stores)
    lines = lines_of(sizes)
    cycles = np.where(lines > 0, cycles, 0)
    nbytes = LINE_BYTES * lines
    return _busiest(cycles.sum(1), config, sms), _busiest(nbytes.sum(1), config, sms)


def _busiest(of_rows: np.ndarray, config: Config, sms: int) -> float:
    """Of an SM, where rows of units need so much each."""
    waves = _waves(of_rows, config, sms)
    return float(max(waves * of_rows.mean(), of_rows.max())) / config.splits


def _waves(rows: np.ndarray, config: Config, sms: int) -> int:
    return -(-len(rows) * config.splits // sms)


def _microseconds(sizes: np.ndarray, config: Config, sms: int) -> float:
    """About how long the product takes; the constants are round figures of an H200."""
    cycles, nbytes = effort(sizes, config, sms)
    work = cycles / CLOCK
    memory = nbytes / min(ONE, MEMORY / min(sms, len(sizes) * config.splits))
    body = (max(work, memory) + 0.2 * min(work, memory)) * 1e-3
    sums = UNIT_ROWS * 32 * config.tiles
    shared = LATENCY + 2 * sums / ONE * 1e-3 if config.splits > 1 else 0.0
    return body + _waves(sizes, config, sms) * (LATENCY + shared)


STEP_COST = 100  # lines that cost as much as the rest of a step


def schedule(
    sizes: np.ndarray, config: Config, *, balance: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """The units of every block.

    One that has no non-zero is left out.  Balanced, the parts of k cost about the
    same; else they are as long as one another.

    Returns
    -------
    units : ndarray of UNIT, shape (blocks, steps)
        Blocks that share rows are neighbours.  Steps that hold nothing follow the last.
    counts : ndarray of int32, shape (blocks,)
        At least 1.
    """
    lines = lines_of(sizes)
    whole = np.zeros(lines.shape, UNIT)
    whole["column"] = np.arange(lines.shape[1]) * UNIT_COLUMNS
    whole["first"] = (np.cumsum(lines, dtype=np.int64) - lines.ravel()).reshape(lines.shape)
    whole["groups"], whole["lines"] = sizes[..., 0], sizes[..., 1]
    parts = [part for row in whole for part in _parts(row, config.splits, balance)]
    counts = np.array([max(1, len(part)) for part in parts], np.int32)
    units = np.zeros((len(parts), counts.max() + 2 * STAGES), UNIT)
    for to, part in zip(units, parts):
        to[: len(part)] = part
    return units, counts


def _parts(units: np.ndarray, splits: int, balance: bool) -> list[np.ndarray]:
    """The units of 128 rows that hold anything, dealt to blocks in order."""
    cost = lines_of(np.stack([units["groups"], units["lines"]], axis=-1))
    if not balance:
        edges = np.arange(1, splits) * len(units) // splits
        parts = zip(np.split(units, edges), np.split(cost, edges))
        return [part[own > 0] for part, own in parts]
    live = units[cost > 0]
    running = np.cumsum(cost[cost > 0] + STEP_COST)
    wanted = (running[-1] if len(live) else 0) * np.arange(1, splits) / splits
    return np.split(live, np.searchsorted(running, wanted, side="right"))
