"""Which tile of the Hopper kernel suits a product, from waves of tiles and measured rates."""

from __future__ import annotations

from sparse24 import _spec
from sparse24._dtypes import numpy_dtype
from sparse24._records import Problem
from sparse24.kernels import sparse_tile
from sparse24.kernels.sparse_wgmma_configs import TABLE, WIDE, Config, layout

MOST_PROMOTED = 64 * 192  # sums of a warpgroup for which twice the registers are there
# Share of the tensor cores' rate at the highest clock that the best tile keeps up: the power limit
# holds the clock near 1.4 of 1.98 GHz.  Measured, docs/benchmarks/log_gemm.rst.
SUSTAINED = 0.51
MOST_SHARED_B = 40e6  # bytes of b
MOST_WAVES = 4
LEAST_SHARE = 4  # atoms of k that a block must get when tiles are shared
EXCHANGE = 18e-6  # seconds that sharing tiles costs, measured
LAUNCH = 2e-6

# With few columns the bytes are the time.  Fitted to 600 timings on an H200 (bfloat16, 1 to 256
# columns, five weights): 9 % root mean square, and the tile put first takes 1 % longer than the
# fastest.
FEW_COLUMNS = 256
USABLE = {1: 1.0, 2: 1.0, 3: 117 / 132, 4: 120 / 132}  # of the chip, by clusters of this size
READING = 1.18  # bandwidth, of that of a copy
L2_PER_SM = 1.08e11  # bytes a second
MOST_INTO_SM = 1.6e11
LATENCY = 1.13e-6  # seconds from a stage's copy to its arrival
FEW_SUSTAINED = 1.04  # as SUSTAINED, while the tensor cores mostly wait
FILL = 2.8e-6  # seconds to start and finish a block
STORE = 147e-12  # seconds for a sum of the tile
PARTS_EXCHANGE = 0.1e-6
NOT_HIDDEN = 0.63  # share of the second longest of three times that the longest does not hide


def configs(problem: Problem) -> list[Config]:
    """Every config that suits, the one with the least predicted time first."""
    chip = {"sms": 132, "clock_hz": 1.98e9, "bandwidth": 4.2e12}
    suits = [config for config in TABLE if _suits(problem, config)]
    return sorted(suits, key=lambda config: predict(problem, config, chip))


def _suits(problem: Problem, config: Config) -> bool:
    sharers = 1 if config.pingpong else config.consumers
    if promotes(problem) and config.block_m * config.block_n > MOST_PROMOTED * sharers:
        return False
    wide = numpy_dtype(problem.dtype).itemsize == 2 and problem.b_order == "column"
    if (config.spans == 2 and not wide) or (config in WIDE and wide):
        return False
    out_itemsize = numpy_dtype(problem.out_dtype).itemsize
    if config.block_n == 32 and (problem.b_order == "row" or out_itemsize == 1):
        return False  # lines of 64 columns of b, or of 64 bytes of the result
    if problem.tensor_float and config.parts * config.blocks > 1:
        return False  # not measured
    if config.parts > 1 and problem.n > (2 if config.block_n == 256 else 1) * FEW_COLUMNS:
        return False  # not measured
    if config.parts > 1 and atoms_k(problem) < LEAST_SHARE * config.parts:
        return False
    return not config.split or shared_tiles(problem, config, 132) > 0


def promotes(problem: Problem) -> bool:
    """True if fp8 sums are added up in float32, which doubles the accumulators."""
    return problem.dtype.startswith("float8") and not problem.fast_accumulation


def predict(problem: Problem, config: Config, chip: dict[str, float]) -> float:
    """Seconds: with many columns the tensor cores', with few those of the bytes."""
    if problem.n > FEW_COLUMNS:
        return _multiplying(problem, config, chip)
    return _moving(problem, config, chip)


def _multiplying(p: Problem, config: Config, chip: dict[str, float]) -> float:
    """Waves of tiles at the tile's measured rate, or the bytes if they take longer."""
    sms = int(chip["sms"])
    shared = shared_tiles(p, config, sms) if config.split else 0
    waves = tiles_of(p, config) / sms if shared else _waves(p, config, sms)
    clocks = _instructions(p, config) * config.block_n / 2 / (SUSTAINED * config.rate)
    clocks += _store_clocks(config)
    exchange = EXCHANGE if shared else FILL if config.parts > 1 else 0.0
    busy = waves * config.blocks * clocks / chip["clock_hz"]
    return LAUNCH + exchange + max(busy, sparse_tile.bytes_moved(p) / chip["bandwidth"])


def _instructions(p: Problem, config: Config) -> float:
    """Of 64 rows by 64 bytes of k by block_n, for one tile; each takes block_n / 2 clocks."""
    columns = atoms_k(p) * (_spec.ATOM_K_TF32 if p.tensor_float else _spec.ATOM_K)
    return config.block_m // 64 * columns * numpy_dtype(p.dtype).itemsize // 64 / config.parts


def _usable(config: Config, sms: int) -> int:
    """Multiprocessors that clusters of this size can fill."""
    return int(sms * USABLE.get(config.parts * config.cluster, 0.8))


def _waves(p: Problem, config: Config, sms: int) -> int:
    blocks = tiles_of(p, config) * config.parts
    return -(-blocks // (_usable(config, sms) * config.blocks))


def _moving(p: Problem, config: Config, chip: dict[str, float]) -> float:
    """The longest of memory, L2, and blocks that wait for stage after stage."""
    itemsize, sms = numpy_dtype(p.dtype).itemsize, int(chip["sms"])
    blocks = tiles_of(p, config) * config.parts
    beside = max(1, min(config.blocks, -(-blocks // _usable(config, sms))))
    columns = min(config.block_n, -(-p.n // 8) * 8) / config.cluster
    stage = (config.block_m * (64 + 16 / itemsize) + 128 * columns) * config.spans
    stages = _instructions(p, config) / (config.block_m // 64) / 2 / config.spans
    ring = layout(config, itemsize, 2).stages * stage
    rate = min(ring / LATENCY, MOST_INTO_SM / beside)
    clocks = config.block_m // 64 * config.block_n * config.spans * beside
    multiply = clocks / (FEW_SUSTAINED * config.rate * chip["clock_hz"])
    block = stages * max(stage / rate, multiply) + FILL + STORE * config.block_m * config.block_n
    shared = shared_tiles(p, config, sms) if config.split else 0
    waves = blocks / sms if shared else _waves(p, config, sms)
    times = sorted(
        (
            sparse_tile.bytes_moved(p) / (READING * chip["bandwidth"]),
            blocks * stages * stage / (L2_PER_SM * sms),
            waves * block,
        )
    )
    exchange = EXCHANGE if shared else PARTS_EXCHANGE if config.parts > 1 else 0.0
    return exchange + times[-1] + NOT_HIDDEN * times[-2]


def _store_clocks(config: Config) -> int:
    """What a tile's result adds: little where another warpgroup multiplies meanwhile."""
    if config.pingpong:
        return 1500
    return 3000 if config.block_m * config.block_n < 40_000 else 4500


def atoms_k(problem: Problem) -> int:
    """Atoms of metadata along k."""
    return -(-problem.k // (_spec.ATOM_K_TF32 if problem.tensor_float else _spec.ATOM_K))


def clusters_m(problem: Problem, config: Config) -> int:
    return -(-problem.m // (config.block_m * config.cluster))


def tiles_of(problem: Problem, config: Config) -> int:
    """Tiles of the result, those that only fill up a cluster included."""
    tiles_n = -(-problem.n // config.block_n)
    return clusters_m(problem, config) * config.cluster * tiles_n * problem.batch


def shared_tiles(problem: Problem, config: Config, sms: int) -> int:
    """How many tiles blocks share along k: those beyond whole waves, and one wave with them.

    None where little is gained, or where b does not stay in L2: blocks that are at
    different places of k read it apart from each other.
    """
    tiles = tiles_of(problem, config)
    shared = tiles if tiles < sms else tiles % sms + sms
    enough = shared * atoms_k(problem) >= LEAST_SHARE * sms
    b_bytes = problem.k * problem.n * numpy_dtype(problem.b_dtype).itemsize
    near = b_bytes <= MOST_SHARED_B and tiles <= MOST_WAVES * sms
    return shared if tiles % sms and enough and near else 0


def band(config: Config) -> int:
    """Clusters along m of a band, so that 132 concurrent tiles read the fewest bytes of A and b.

    A costs 1.125 bytes and b 2 for an element of 16 bits, so rows h of tiles want
    1.125 h block_m = 2 (132 / h) block_n.
    """
    rows = (132 * 2 * config.block_n / (1.125 * config.block_m)) ** 0.5
    return max(1, round(rows / config.cluster))
