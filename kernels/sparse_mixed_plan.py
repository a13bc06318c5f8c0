"""Tiles of ``sparse_mixed``, the shared memory that each takes, and how long it will take."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from sparse24 import _spec
from sparse24._dtypes import numpy_dtype
from sparse24._records import Problem
from sparse24.kernels import bricks
from sparse24.kernels.sparse_decode_plan import _bytes_moved as bytes_of_values
from sparse24.kernels.sparse_quantised_plan import PERIOD
from sparse24.kernels.sparse_quantised_plan import bytes_moved as bytes_of_bricks
from sparse24.kernels.sparse_wgmma_configs import MOST_STAGES, SHARED_MEMORY, Config, Layout
from sparse24.kernels.sparse_wgmma_plan import (
    CHIP,
    LEAST_ATOMS,
    LEAST_STAGES,
    USABLE,
    Model,
    _rounded,
    _slower,
    atoms_k,
    clusters_m,
    tiles_of,
)

BLOCK_K = 64  # of a stage
ROW_BYTES = _spec.ATOM_K // 2 + 16  # of 8-bit elements and codes, in a slice
LEAST_BY_ROWS = 64  # columns of a tile with b by rows, whose boxes have as many
PARTS = _spec.ATOM_K // BLOCK_K  # stages of a slice, which is an atom of metadata

# (rows, columns) of a tile, and the numbers of blocks that may share it along k: those that are the
# fastest of 33 somewhere, or close (docs/benchmarks/log_few_tokens.rst, "Any number of tokens").
SHAPES = {
    (128, 32): (1, 2, 3, 4),
    (128, 64): (1, 2, 3, 4, 6, 8),
    (128, 128): (1, 2, 3, 4),
    (128, 192): (1, 2),
    (128, 256): (1, 2),
    (256, 32): (1, 2),
    (256, 64): (1,),
    (256, 128): (1,),
}
STORING = (128, 256)  # of which two output buffers a warpgroup have room beside the ring


def _table() -> Iterator[Config]:
    for shape, several in SHAPES.items():
        for parts in several:
            yield Config(*shape, staging=2 if shape == STORING and parts == 1 else 1, parts=parts)


TABLE = tuple(_table())

# Fitted to 1280 timings on an H200, of six matrices by 16 to 4096 columns: 6 % root mean square.
# What is predicted to be the fastest, other kernels included, takes 0.2 to 0.8 % more than what is.
MODEL = Model(
    instruction_clocks=47.1,
    stage_seconds=51.4e-9,
    l2_per_sm=1.02e11,
    reading=2.62,
    store=38.2e-12,
    tile=0.896e-6,
    of_part=0.399e-6,
    shared_sum=55.7e-12,
    whole_b=0.631,
)
# By bits of a quantised A: seconds until a warpgroup has made the fragments of 64 rows for a stage,
# and how long it takes at the limit of power, of what `sparse_wgmma` takes with 16 bits.
MAKING = {0: 0.14e-6, 4: 0.19e-6, 8: 0.19e-6}
POWER = {0: 1.07, 4: 0.96, 8: 1.01}
# Tiles of other than `STORING` take 1.2 to 1.36 times as long there, in products of so many
# seconds, which are not over before the clock has fallen.  And blocks that share tiles along k take
# longer if not all of them run at once: by a tenth.
POWER_OF_OTHER_TILES, LONG, SHARED_IN_TURN = 1.25, 1e-4, 0.1


def layout_of(problem: Problem, config: Config) -> Layout:
    """As many stages as fit beside the slots of A; none, if that is so."""
    return layout(config, numpy_dtype(problem.out_dtype).itemsize, problem.quantised)


@functools.cache
def layout(config: Config, out_itemsize: int, bits: int = 0, beside: int = 0) -> Layout:
    """`layout_of` by what it depends on, beside so many other bytes."""
    stage, slot = 128 * config.block_n, slot_bytes(config.block_m, bits)
    staging = config.consumers * config.staging * (4096 if out_itemsize == 1 else 8192)

    def total(stages: int) -> int:
        barriers = 16 * stages + 8 * (config.parts > 1)
        return stages * stage + (stages // PARTS + 1) * slot + staging + barriers

    room = SHARED_MEMORY[config.blocks] - beside
    stages = max(s for s in range(MOST_STAGES + 1) if total(s) <= room)
    return Layout(stages, total(stages) + beside)


def slot_bytes(rows: int, bits: int) -> int:
    """Of a slice of A: elements and codes, or bricks, up to where a swizzle may begin."""
    if not bits:
        return rows * ROW_BYTES
    return -(-rows // bricks.ROWS * bricks.size(bits) // PERIOD) * PERIOD


def configs(problem: Problem) -> list[Config]:
    """Every config that suits, the one with the least predicted time first."""
    found = [config for config in TABLE if suits(problem, config)]
    return sorted(found, key=lambda config: predict(problem, config, CHIP))


def suits(problem: Problem, config: Config) -> bool:
    """Whether a tile takes such a product, and enough stages fit."""
    if layout_of(problem, config).stages < LEAST_STAGES:
        return False
    if problem.b_order == "row" and config.block_n < LEAST_BY_ROWS:
        return False
    return config.parts == 1 or atoms_k(problem) >= LEAST_ATOMS * config.parts


def predict(problem: Problem, config: Config, chip: dict[str, float]) -> float:
    """Seconds: those of the busiest multiprocessor, of the L2 cache and of memory together.

    As of `sparse_wgmma_plan.predict`, but for the bytes of A.
    """
    sms = int(chip["sms"])
    blocks = tiles_of(problem, config) * config.parts
    waves = -(-blocks // (sms * USABLE[config.parts] // USABLE[1]))
    together = math.hypot(
        waves * _block(problem, config, chip["clock_hz"]),
        _from_l2(problem, config) / (MODEL.l2_per_sm * sms),
        _memory(problem) / (MODEL.reading * chip["bandwidth"]),
    )
    of_blocks = MODEL.launch + together + MODEL.tile * blocks / sms
    seconds = max(of_blocks, MODEL.launch + _at_limit_of_power(problem, config, sms))
    in_turn = config.parts > 1 and blocks > sms
    return seconds * (1 + SHARED_IN_TURN) if in_turn else seconds


def _at_limit_of_power(problem: Problem, config: Config, sms: int) -> float:
    """Seconds of the products at the clock that power allows."""
    products = problem.m * problem.n * problem.k * problem.batch
    seconds = products * POWER[problem.quantised] * MODEL.power / sms
    best = (config.block_m, config.block_n) == STORING
    return seconds if best or seconds <= LONG else POWER_OF_OTHER_TILES * seconds


def _memory(problem: Problem) -> int:
    """Bytes that a product must move at least once."""
    return bytes_of_bricks(problem) if problem.quantised else bytes_of_values(problem)


def _of_row(problem: Problem) -> float:
    """Bytes of a row of A and its codes, in a stage."""
    bits = problem.quantised
    return (bricks.size(bits) / bricks.ROWS if bits else ROW_BYTES) / PARTS


def _block(p: Problem, config: Config, clock_hz: float) -> float:
    """Seconds of a block for its part of a tile."""
    stages = layout_of(p, config).stages
    of_a = min(config.block_m, _rounded(p.m)) * _of_row(p)
    of_b = min(config.block_n, _rounded(p.n)) * 128
    rate = min(stages * (of_a + of_b) / MODEL.latency, MODEL.into_sm)
    arriving = of_a + of_b * _slower(p, MODEL)
    instructions = config.block_m // 64 * 2
    clocks = instructions * (config.block_n / 2 + MODEL.instruction_clocks)
    making = config.block_m // 64 // config.consumers * MAKING[p.quantised]
    stage = MODEL.stage_seconds + max(arriving / rate, clocks / clock_hz, making)
    sums = config.block_m * config.block_n
    exchange = MODEL.of_part * config.parts + MODEL.shared_sum * sums if config.parts > 1 else 0.0
    return PARTS * -(-atoms_k(p) // config.parts) * stage + MODEL.store * sums + exchange


def _from_l2(p: Problem, config: Config) -> float:
    """Bytes that all blocks ask the L2 cache for: A for each tile along n, b for each along m."""
    of_a = p.m * -(-p.n // config.block_n) * _of_row(p)
    share = MODEL.whole_b if p.b_in_lines else MODEL.astride_b
    of_b = clusters_m(p, config) * _rounded(p.n) * 128 * share
    return (of_a + of_b) * p.batch * PARTS * atoms_k(p)
