"""Which tile of the Hopper kernel suits a product, from waves of tiles and measured rates."""

from __future__ import annotations

from sparse24 import _spec
from sparse24._dtypes import numpy_dtype
from sparse24._records import Problem
from sparse24.kernels.sparse_wgmma_configs import TABLE, Config

MOST_PROMOTED = 64 * 192  # sums of a warpgroup for which twice the registers are there
# Share of the tensor cores' rate at the highest clock that the best tile keeps up: the power limit
# holds the clock near 1.4 of 1.98 GHz.  Measured, docs/benchmarks/log_gemm.rst.
SUSTAINED = 0.51
MOST_SHARED_B = 40e6  # bytes of b
MOST_WAVES = 4
LEAST_SHARE = 4  # atoms of k that a block must get when tiles are shared
EXCHANGE = 18e-6  # seconds that sharing tiles costs, measured


def configs(problem: Problem) -> list[Config]:
    """Every config that suits, the one with the least predicted time first."""
    chip = {"sms": 132, "clock_hz": 1.98e9, "bandwidth": 4.2e12}
    suits = [config for config in TABLE if _suits(problem, config)]
    return sorted(suits, key=lambda config: predict(problem, config, chip))


def _suits(problem: Problem, config: Config) -> bool:
    if promotes(problem) and config.block_m * config.block_n > MOST_PROMOTED * config.consumers:
        return False
    return not config.split or shared_tiles(problem, config, 132) > 0


def promotes(problem: Problem) -> bool:
    """True if fp8 sums are added up in float32, which doubles the accumulators."""
    return problem.dtype.startswith("float8") and not problem.fast_accumulation


def predict(problem: Problem, config: Config, chip: dict[str, float]) -> float:
    """Seconds: waves of tiles at the tile's measured rate, or the bytes if they take longer."""
    p, itemsize, sms = problem, numpy_dtype(problem.dtype).itemsize, int(chip["sms"])
    tiles = tiles_of(p, config)
    shared = shared_tiles(p, config, sms) if config.split else 0
    waves = tiles / sms if shared else -(-tiles // sms)
    atoms_k = -(-p.k // _spec.ATOM_K)
    # A warpgroup instruction of 64 x n takes n / 2 clocks for 64 bytes of k.
    instructions = config.block_m // 64 * atoms_k * _spec.ATOM_K * itemsize // 64
    clocks = instructions * config.block_n / 2 / (SUSTAINED * config.rate)
    clocks += 3000 if config.block_m * config.block_n < 40_000 else 4500  # the store
    traffic = p.m * p.k * itemsize * 0.5625 + p.k * p.n * itemsize + p.m * p.n * 2
    exchange = EXCHANGE if shared else 0.0
    busy = waves * clocks / chip["clock_hz"]
    return 2e-6 + exchange + max(busy, p.batch * traffic / chip["bandwidth"])


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
    tiles, k = tiles_of(problem, config), problem.k
    shared = tiles if tiles < sms else tiles % sms + sms
    enough = shared * -(-k // _spec.ATOM_K) >= LEAST_SHARE * sms
    b_bytes = k * problem.n * numpy_dtype(problem.b_dtype).itemsize
    near = b_bytes <= MOST_SHARED_B and tiles <= MOST_WAVES * sms
    return shared if tiles % sms and enough and near else 0


def band(config: Config) -> int:
    """Clusters along m of a band, so that 132 concurrent tiles read the fewest bytes of A and b.

    A costs 1.125 bytes and b 2 for an element of 16 bits, so rows h of tiles want
    1.125 h block_m = 2 (132 / h) block_n.
    """
    rows = (132 * 2 * config.block_n / (1.125 * config.block_m)) ** 0.5
    return max(1, round(rows / config.cluster))
