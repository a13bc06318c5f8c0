"""Choose a tile of the Hopper kernel: predicted times of a stage, a block and the whole chip."""

from __future__ import annotations

import math

from sparse24 import _spec
from sparse24._dtypes import numpy_dtype
from sparse24._records import Problem
from sparse24.kernels import sparse_tile
from sparse24.kernels.sparse_wgmma_configs import LEAST_STAGES, TABLE, Config, layout

MOST_PROMOTED = 64 * 192  # sums of a warpgroup for which twice the registers are there
LEAST_ATOMS = 4  # along k, for each block of a cluster that shares a tile
CHIP = {"sms": 132, "clock_hz": 1.98e9, "bandwidth": 4.2e12}  # orders configs; H200

# Fitted to 23000 timings on an H200: of 1090 random products with 64 to 14000 columns, each with
# the tiles that suit it, and those of gemm.json and few_tokens.json.  The root mean square error is
# 12 %; the tile that is predicted to be the fastest takes 3 % longer than the one that is.
# docs/benchmarks/log_gemm.rst, "Wide stages for all".  To fit again: tests/bench/bench_tiles.py and
# fit_tiles.py.
LAUNCH = 1.36e-6  # seconds
INSTRUCTION_CLOCKS = 23.1  # of an instruction, and half a clock for each column
STAGE_SECONDS = 49.6e-9  # from one stage to the next, whatever is in it
LATENCY = 0.837e-6  # seconds from a stage's copy to its arrival
INTO_SM = 1.64e11  # bytes a second
READING = 1.22  # bandwidth of reading, relative to that of a copy
STORE = 61.3e-12  # seconds for a sum of the tile
TILE = 0.484e-6  # seconds of a multiprocessor for a tile, or a block's part of one
OF_PART = 0.317e-6  # seconds for each of the blocks that share a tile
SHARED_SUM = 61.4e-12  # seconds for a sum that they exchange
POWER = 1.95e-15 * 132  # seconds of a multiprocessor for a multiply-add of 16 bits, at 700 W in all
# Multiprocessors that clusters of so many blocks can occupy, as `clusters.most_clusters` counts.
USABLE = {1: 132, 2: 132, 3: 117, 4: 120, 5: 110, 6: 102, 8: 120}
# L2_PER_SM: bytes a second from the L2 cache to each multiprocessor.  It is asked for lines of 128
# bytes, so half lines of A cost more (HALF_LINE).  Blocks along m ask for the same lines of b at
# about the same time, so these cost less (WHOLE_B); more if they begin within lines of memory
# (ASTRIDE_B), when each takes two requests, for five sectors of 32 bytes instead of four.
L2_PER_SM = 6.76e10
HALF_LINE, WHOLE_B, ASTRIDE_B = 1.23, 0.33, 0.93
ASTRIDE_SECTORS = 5 / 4
ROWS_OF_B = 1.47  # how much longer b takes to arrive by rows than by columns


def configs(problem: Problem) -> list[Config]:
    """Every config that suits, the one with the least predicted time first."""
    suits = [config for config in TABLE if _suits(problem, config)]
    return sorted(suits, key=lambda config: predict(problem, config, CHIP))


def _suits(problem: Problem, config: Config) -> bool:
    sharers = 1 if config.pingpong else config.consumers
    if promotes(problem) and config.block_m * config.block_n > MOST_PROMOTED * sharers:
        return False
    out_itemsize = numpy_dtype(problem.out_dtype).itemsize
    if layout(config, numpy_dtype(problem.dtype).itemsize, out_itemsize).stages < LEAST_STAGES:
        return False  # bytes have twice the metadata
    if config.block_n == 32 and (problem.b_order == "row" or out_itemsize == 1):
        return False  # lines of 64 columns of b, or of 64 bytes of the result
    if problem.tensor_float and config.parts * config.blocks > 1:
        return False  # not measured
    return config.parts == 1 or atoms_k(problem) >= LEAST_ATOMS * config.parts


def promotes(problem: Problem) -> bool:
    """True if fp8 sums are added up in float32, which doubles the accumulators."""
    return problem.dtype.startswith("float8") and not problem.fast_accumulation


def predict(problem: Problem, config: Config, chip: dict[str, float]) -> float:
    """Seconds: those of the busiest multiprocessor, of the L2 cache and of memory together.

    None of the three hides wholly behind another one; the root of the sum of their squares is as
    close to what is measured as any power.  Long products take what the power limit leaves them.
    """
    itemsize, sms = numpy_dtype(problem.dtype).itemsize, int(chip["sms"])
    blocks = tiles_of(problem, config) * config.parts
    usable = sms * USABLE[config.parts * config.cluster] // USABLE[1]
    beside = max(1, min(config.blocks, -(-blocks // usable)))
    waves = -(-blocks // (usable * config.blocks))
    together = math.hypot(
        waves * _block(problem, config, beside, chip["clock_hz"]),
        _from_l2(problem, config) / (L2_PER_SM * sms),
        sparse_tile.bytes_moved(problem) / (READING * chip["bandwidth"]),
    )
    products = problem.m * problem.n * problem.k * problem.batch * itemsize / 2
    return LAUNCH + max(together + TILE * blocks / sms, products * POWER / sms)


def _block(p: Problem, config: Config, beside: int, clock_hz: float) -> float:
    """Seconds of a block for its part of a tile, with others on its multiprocessor."""
    itemsize = numpy_dtype(p.dtype).itemsize
    of_a = min(config.block_m, _rounded(p.m)) * _bytes_of_row(itemsize) * config.spans
    of_b = min(config.block_n, _rounded(p.n)) * 128 * config.spans
    asked_for = layout(config, itemsize, 2).stages * (of_a + of_b / config.cluster)
    rate = min(asked_for / LATENCY, INTO_SM / beside)
    arriving = of_a + of_b * (1 + (_slower(p) - 1) / config.cluster)
    instructions = config.block_m // 64 * 2 * config.spans
    clocks = instructions * (config.block_n / 2 + INSTRUCTION_CLOCKS) * beside
    stage = STAGE_SECONDS + max(arriving / rate, clocks / clock_hz)
    sums = config.block_m * config.block_n
    exchange = OF_PART * config.parts + SHARED_SUM * sums if config.parts > 1 else 0.0
    return _stages(p, config) * stage + STORE * sums * beside + exchange


def _slower(p: Problem) -> float:
    """How much longer what a block asks for of b takes to arrive than whole lines by columns."""
    return (1 if p.b_in_lines else ASTRIDE_SECTORS) * (ROWS_OF_B if p.b_order == "row" else 1)


def _from_l2(p: Problem, config: Config) -> float:
    """Bytes that all blocks ask the L2 cache for: A for each tile along n, b for each along m."""
    line = HALF_LINE if config.spans == 1 else 1
    of_a = p.m * -(-p.n // config.block_n) * _bytes_of_row(numpy_dtype(p.dtype).itemsize) * line
    of_b = clusters_m(p, config) * _rounded(p.n) * 128 * (WHOLE_B if p.b_in_lines else ASTRIDE_B)
    stages = -(-p.k * numpy_dtype(p.dtype).itemsize // 128)
    return (of_a + of_b) * p.batch * stages


def _bytes_of_row(itemsize: int) -> float:
    """Of A and its metadata in a stage."""
    return 64 + 16 / itemsize


def _rounded(extent: int) -> int:
    """Rows of A or columns of b that are read."""
    return -(-extent // 8) * 8


def _stages(p: Problem, config: Config) -> float:
    """Of 128 bytes of b along k, or twice that, for one tile, or the longest part of one."""
    atom = _spec.ATOM_K_TF32 if p.tensor_float else _spec.ATOM_K
    of_atom = atom * numpy_dtype(p.dtype).itemsize / (128 * config.spans)
    return -(-atoms_k(p) // config.parts) * of_atom


def atoms_k(problem: Problem) -> int:
    """Atoms of metadata along k."""
    return -(-problem.k // (_spec.ATOM_K_TF32 if problem.tensor_float else _spec.ATOM_K))


def clusters_m(problem: Problem, config: Config) -> int:
    """Clusters of tiles along m."""
    return -(-problem.m // (config.block_m * config.cluster))


def tiles_of(problem: Problem, config: Config) -> int:
    """Tiles of the result, those that only fill up a cluster included."""
    tiles_n = -(-problem.n // config.block_n)
    return clusters_m(problem, config) * config.cluster * tiles_n * problem.batch


def band(config: Config) -> int:
    """Clusters along m of a band, so that 132 concurrent tiles read the fewest bytes of A and b.

    A costs 1.125 bytes and b 2 for an element of 16 bits, so rows h of tiles want
    1.125 h block_m = 2 (132 / h) block_n.
    """
    rows = (132 * 2 * config.block_n / (1.125 * config.block_m)) ** 0.5
    return max(1, round(rows / config.cluster))
