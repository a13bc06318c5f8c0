"""What the models of the kernels do not tell of their times, and a survey of products found.

635 products of seven sizes from 768 x 768 to 4096 x 14336 by 1 to 2048 columns on an H100, of four
types and both memory orders of b, each by the candidates within 2.2 times the best prediction.
Relative to the fastest of them, the choice took 1.067 times as long before, and 1.028 times with
these corrections: docs/benchmarks/log_gemm.rst, "Every size, type and order".  The models
themselves are bound to the records of their kernels, which those products do not touch.
"""

from __future__ import annotations

from typing import Any

from sparse24._dtypes import TABLE
from sparse24._hybrid.lines import SMALL
from sparse24._records import Problem
from sparse24.kernels import (
    sparse_decode,
    sparse_tile,
    sparse_wgmma_plan,
    split_skinny,
)

# Seconds that a product takes beside its model, which counts a launch as if none came before it.
BESIDE = {"sparse_mma": -2.7e-6, "sparse_skinny": -0.3e-6}

# `sparse_skinny` counts more than it takes blocks to meet, up to four of them.
MEETING = {1: 0.0, 2: -0.9e-6, 4: -0.5e-6, 8: 0.0}
# mma.sp of float8 becomes products of float16 in registers: seconds for each multiply-add of a
# block.  From 32 columns on the registers do not suffice.
EMULATED, SPILLED, MOST_EMULATED = 3.2e-12, 1.6e-11, 16

# `sparse_decode` is modelled for a matrix that may just have been written.  Of a settled one it
# takes so much of that, by columns of a tile; and more by rows of 32 bytes, which meet in banks of
# shared memory: docs/benchmarks/log_few_tokens.rst, "Weights that are settled" and "b by rows".
SETTLED = {8: 0.90, 16: 0.95, 24: 0.98, 32: 1.0, 40: 1.03, 48: 1.06}
NARROW_ROW, WIDE_ROWS = 16, 1.04

# Three blocks that share a tile along k leave a tenth of the multiprocessors without a cluster.
THIRDS = 0.3e-6
# The TMA takes boxes of b by rows as long as those of this many columns, though they are
# narrower: seconds for each row, by how many such boxes would fill a wide one.
WIDE, NARROW = 64, 0.15e-9

# A matrix that does not stay in the L2 cache is read at about this share of the speed of a copy.
# The model of `sparse_wgmma` hides a part of that behind the rest, and lets it read faster than
# memory can where that is slow: 28672 x 8192 by 1 column at 0.93 of it on an H100, at 1.0 on an
# H200 (few_tokens.json of both).
READING = {"sparse_wgmma": 0.96, "sparse_skinny": 1.05}
READING_LAUNCH = 2e-6  # seconds beside it, as in the model of `sparse_skinny`
# And a block reads no more than so many bytes a second, which decides wherever there are fewer
# blocks: 80 of `sparse_wgmma` read 5120 x 5120 of float16 on an H200 in 12.3 µs, 160 in 11.6.
MOST_OF_ONE = {"sparse_wgmma": 3.7e10, "sparse_skinny": 2.9e10}
# Unless a launch leaves room for all blocks of the next one, whose first reads it then hides: 64 of
# them read 4096 x 4096 in 7.5 µs, 96 in 8.1.
ROOM_FOR_TWO = "sparse_wgmma"
READ_AT_ONCE = 64  # columns up to which a product mostly reads
STAYS = 2 << 20  # bytes of a matrix that the L2 cache may hold from one product to the next

# cuBLAS multiplies a `SMALL` matrix of 16 bits by blocks that walk along all of k.  It takes a
# launch, a time for each element of k, and some of the time in which a copy moves the operands: 90
# products of 384 x 384 to 2048 x 2048 by 1 to 2048 columns, on an H100, differ from that by 9 %.
# It is the line "small" of `H100_LINES`, told by the facts of a chip.
WALK_LAUNCH, WALK_CLOCKS, WALK_READING = 2.7e-6, 2.3, 0.67


def beside(kernel: str, problem: Problem, config: Any, facts: dict[str, float]) -> float:
    """Seconds to add to what the model of a kernel predicts."""
    own = _OWN.get(kernel)
    return BESIDE.get(kernel, 0.0) + (own(problem, config, facts) if own else 0.0)


def _skinny(problem: Problem, config: Any, facts: dict[str, float]) -> float:
    seconds = MEETING[config.split]
    if not config.wgmma and sparse_tile.emulates(problem):
        waves = -(-sparse_tile.tiles(problem, config) // int(facts["sms"] * config.blocks))
        each = EMULATED if config.n <= MOST_EMULATED else SPILLED
        seconds += waves * config.m * config.n * problem.k / config.split * each
    return seconds


def _decode(problem: Problem, config: Any, facts: dict[str, float]) -> float:
    if sparse_decode.widens(problem):  # its model is of settled matrices
        return 0.0
    wide = config.by_rows and config.n * TABLE[problem.dtype].itemsize > NARROW_ROW
    share = SETTLED[config.n] * (WIDE_ROWS if wide else 1.0)
    return (share - 1) * sparse_decode.predict(problem, config, facts)


def _wgmma(problem: Problem, config: Any, facts: dict[str, float]) -> float:
    return (THIRDS if config.parts == 3 else 0.0) + _narrow_boxes(problem, config)


def _mixed(problem: Problem, config: Any, facts: dict[str, float]) -> float:
    return _narrow_boxes(problem, config)


def _narrow_boxes(problem: Problem, config: Any) -> float:
    """What boxes of few columns of b by rows cost."""
    if problem.b_order != "row" or problem.n >= WIDE:
        return 0.0
    boxes = WIDE / max(8, 1 << (problem.n - 1).bit_length())
    return NARROW * (boxes - 1) * problem.k / config.parts


def _split_skinny(problem: Problem, config: Any, facts: dict[str, float]) -> float:
    """Its model counts a part of a wave; the last blocks take longer, but fewer run at a time."""
    sms, stages = int(facts["sms"]), -(-problem.k // (split_skinny.STEP * config.warps))
    blocks = split_skinny._blocks(problem, config)
    whole, left = divmod(blocks, sms * config.blocks)
    if not whole or not left:
        return 0.0
    stage = lambda blocks: split_skinny._stage(problem, config, -(-blocks // sms))  # noqa: E731
    counted = min(blocks / (sms * config.blocks) + split_skinny._UNEVEN, whole + 1)
    return stages * ((whole - counted) * stage(blocks) + stage(left))


_OWN = {
    "sparse_skinny": _skinny, "sparse_decode": _decode, "sparse_wgmma": _wgmma,
    "sparse_mixed": _mixed, "split_skinny": _split_skinny,
}  # fmt: skip


def least(kernel: str, problem: Problem, config: Any, facts: dict[str, float]) -> float:
    """Seconds that a product takes at least, whatever its model says."""
    if kernel == "dense":
        return walking(problem, facts)
    if kernel not in READING:
        return 0.0
    rate = READING[kernel] * facts["bandwidth"]
    matrix = sparse_tile.bytes_moved(problem)
    if problem.n <= READ_AT_ONCE and matrix > STAYS:
        blocks = _blocks(kernel, problem, config)
        at_once = 2 if kernel == ROOM_FOR_TWO and 2 * blocks <= facts["sms"] else 1
        rate = min(rate, at_once * blocks * MOST_OF_ONE[kernel])
    return READING_LAUNCH + matrix / rate


def _blocks(kernel: str, problem: Problem, config: Any) -> int:
    if kernel == "sparse_wgmma":
        return sparse_wgmma_plan.tiles_of(problem, config) * config.parts
    return sparse_tile.tiles(problem, config)


def walking(problem: Problem, facts: dict[str, float]) -> float:
    """Seconds of a small dense product, at least; 0 if the matrix is large, or not of 16 bits."""
    m, n, k = problem.m, problem.n, problem.k
    if problem.dtype not in ("float16", "bfloat16") or problem.batch > 1 or m * k >= SMALL:
        return 0.0
    reading = 2 * (m * k + k * n + m * n) / facts["bandwidth"]
    return WALK_LAUNCH + WALK_CLOCKS * k / facts["clock_hz"] + WALK_READING * reading
