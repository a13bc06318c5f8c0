"""Choose a tile of the Hopper kernel: predicted times of a stage, a block and the whole chip."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparse24 import _spec
from sparse24._dtypes import numpy_dtype
from sparse24._records import Problem
from sparse24.kernels import sparse_tile
from sparse24.kernels.sparse_wgmma_configs import LEAST_STAGES, TABLE, Config, layout

MOST_PROMOTED = 64 * 192  # sums of a warpgroup for which twice the registers are there
LEAST_ATOMS = 4  # along k, for each block of a cluster that shares a tile
LEAST_STAGES_OF_PIECES = 2  # which are three times as large
CHIP = {"sms": 132, "clock_hz": 1.98e9, "bandwidth": 4.2e12}  # orders configs; H200
# Multiprocessors that clusters of so many blocks can occupy, as `clusters.most_clusters` counts.
USABLE = {1: 132, 2: 132, 3: 117, 4: 120, 5: 110, 6: 102, 8: 120}
ASTRIDE_SECTORS = 5 / 4


@dataclass(frozen=True)
class Model:
    """What predictions know of the kernel; the numbers are those of plain operands.

    Fitted to 23000 timings on an H200: of 1090 random products with 64 to 14000 columns, each
    with the tiles that suit it, and those of gemm.json and few_tokens.json.  The root mean
    square error is 12 %; the tile that is predicted to be the fastest takes 3 % longer than the
    one that is.  docs/benchmarks/log_gemm.rst, "Wide stages for all".  To fit again:
    tests/bench/bench_tiles.py and fit_tiles.py.

    Lines of the L2 cache have 128 bytes, so half lines of A cost more (`half_line`).  Blocks
    along m ask for the same lines of b at about the same time, so these cost less (`whole_b`);
    more if they begin within lines of memory (`astride_b`), when each takes two requests, for
    five sectors of 32 bytes instead of four.

    Attributes
    ----------
    pieces, products : int
        In how many pieces an element comes, and products of pieces for one of elements.
    launch : float
        Seconds.
    instruction_clocks : float
        Of an instruction, and half a clock for each column.
    stage_seconds : float
        From one stage to the next, whatever is in it.
    latency : float
        Seconds from a stage's copy to its arrival.
    into_sm, l2_per_sm : float
        Bytes a second into a multiprocessor: of one alone, and from the L2 cache into each.
    reading : float
        Bandwidth of reading, relative to that of a copy.
    store, shared_sum : float
        Seconds for a sum of the tile, and for one that the blocks which share it exchange.
    tile, of_part : float
        Seconds of a multiprocessor for a tile, or a block's part of one, and for each of these.
    power : float
        Seconds of a multiprocessor for a multiply-add of 16 bits, at 700 W in all.
    half_line, whole_b, astride_b : float
        How much such lines cost, of what whole lines of A do.
    rows_of_b : float
        How much longer b takes to arrive by rows than by columns.
    """

    pieces: int = 1
    products: int = 1
    launch: float = 1.36e-6
    instruction_clocks: float = 23.1
    stage_seconds: float = 49.6e-9
    latency: float = 0.837e-6
    into_sm: float = 1.64e11
    l2_per_sm: float = 6.76e10
    reading: float = 1.22
    store: float = 61.3e-12
    tile: float = 0.484e-6
    of_part: float = 0.317e-6
    shared_sum: float = 61.4e-12
    power: float = 1.95e-15 * 132
    half_line: float = 1.23
    whole_b: float = 0.33
    astride_b: float = 0.93
    rows_of_b: float = 1.47


PLAIN_OPERANDS = Model()


def configs(problem: Problem) -> list[Config]:
    """Every config that suits, the one with the least predicted time first."""
    found = [config for config in TABLE if suits(problem, config)]
    return sorted(found, key=lambda config: predict(problem, config, CHIP))


def suits(problem: Problem, config: Config, pieces: int = 1) -> bool:
    """Whether a tile takes such a product, and enough stages fit."""
    sharers = 1 if config.pingpong else config.consumers
    twice = promotes(problem) or pieces > 1
    if twice and config.block_m * config.block_n > MOST_PROMOTED * sharers:
        return False
    out_itemsize = numpy_dtype(problem.out_dtype).itemsize
    stages = layout(config, numpy_dtype(problem.dtype).itemsize, out_itemsize, pieces).stages
    if stages < (LEAST_STAGES if pieces == 1 else LEAST_STAGES_OF_PIECES):
        return False  # bytes have twice the metadata
    if config.block_n == 32 and (problem.b_order == "row" or out_itemsize == 1):
        return False  # lines of 64 columns of b, or of 64 bytes of the result
    if problem.tensor_float and config.parts * config.blocks > 1:
        return False  # not measured
    return config.parts == 1 or atoms_k(problem) >= LEAST_ATOMS * config.parts


def promotes(problem: Problem) -> bool:
    """True if fp8 sums are added up in float32, which doubles the accumulators."""
    return problem.dtype.startswith("float8") and not problem.fast_accumulation


def predict(
    problem: Problem, config: Config, chip: dict[str, float], model: Model = PLAIN_OPERANDS
) -> float:
    """Seconds: those of the busiest multiprocessor, of the L2 cache and of memory together.

    None of the three hides wholly behind another one; the root of the sum of their squares is as
    close to what is measured as any power.  Long products take what the power limit leaves them.
    """
    itemsize, sms = numpy_dtype(problem.dtype).itemsize, int(chip["sms"])
    blocks = tiles_of(problem, config) * config.parts
    usable = sms * USABLE[config.parts * config.cluster] // USABLE[1]
    beside = max(1, min(config.blocks, -(-blocks // usable)))
    waves = -(-blocks // (usable * config.blocks))
    moved = model.pieces * sparse_tile.bytes_moved(problem)
    together = math.hypot(
        waves * _block(problem, config, beside, chip["clock_hz"], model),
        model.pieces * _from_l2(problem, config, model) / (model.l2_per_sm * sms),
        moved / (model.reading * chip["bandwidth"]),
    )
    elements = problem.m * problem.n * problem.k * problem.batch * itemsize / 2
    power = model.products * elements * model.power / sms
    return model.launch + max(together + model.tile * blocks / sms, power)


def _block(p: Problem, config: Config, beside: int, clock_hz: float, model: Model) -> float:
    """Seconds of a block for its part of a tile, with others on its multiprocessor."""
    itemsize, spans = numpy_dtype(p.dtype).itemsize, config.spans * model.pieces
    of_a = min(config.block_m, _rounded(p.m)) * _bytes_of_row(itemsize) * spans
    of_b = min(config.block_n, _rounded(p.n)) * 128 * spans
    stages = layout(config, itemsize, 2, model.pieces).stages
    asked_for = stages * (of_a + of_b / config.cluster)
    rate = min(asked_for / model.latency, model.into_sm / beside)
    arriving = of_a + of_b * (1 + (_slower(p, model) - 1) / config.cluster)
    instructions = config.block_m // 64 * 2 * config.spans * model.products
    clocks = instructions * (config.block_n / 2 + model.instruction_clocks) * beside
    stage = model.stage_seconds + max(arriving / rate, clocks / clock_hz)
    sums = config.block_m * config.block_n
    exchange = model.of_part * config.parts + model.shared_sum * sums if config.parts > 1 else 0.0
    return _stages(p, config) * stage + model.store * sums * beside + exchange


def _slower(p: Problem, model: Model) -> float:
    """How much longer what a block asks for of b takes to arrive than whole lines by columns."""
    return (1 if p.b_in_lines else ASTRIDE_SECTORS) * (model.rows_of_b if p.b_order == "row" else 1)


def _from_l2(p: Problem, config: Config, model: Model) -> float:
    """Bytes that all blocks ask the L2 cache for: A for each tile along n, b for each along m."""
    line = model.half_line if config.spans == 1 else 1
    of_a = p.m * -(-p.n // config.block_n) * _bytes_of_row(numpy_dtype(p.dtype).itemsize) * line
    share = model.whole_b if p.b_in_lines else model.astride_b
    of_b = clusters_m(p, config) * _rounded(p.n) * 128 * share
    stages = -(-p.k * numpy_dtype(p.dtype).itemsize // 128)
    return (of_a + of_b) * p.batch * stages


def _bytes_of_row(itemsize: int) -> float:
    """Bytes that a row of A and of its metadata takes in a stage."""
    return 64 + 16 / itemsize


def _rounded(extent: int) -> int:
    """Rows of A or columns of b that are read."""
    return -(-extent // 8) * 8


def _stages(p: Problem, config: Config) -> float:
    """Stages along k for a tile, or for its longest part if k is split.

    A stage is 128 bytes of b along k, or 256 with two spans.
    """
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
