"""Launch ``cuda/split_mma.cu``: float32 at 2:4 in bfloat16 pieces, since sm_80.

What `sparse_split` is on Hopper, for other chips: the same pieces, in six sections along k,
multiplied by ``mma.sp``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sparse24 import _arrays
from sparse24._records import PLAIN, Compressed24, Fused, Problem
from sparse24.kernels import chip_rates, loader, mma_ring, pieces, rings, sparse_split, sparse_tile
from sparse24.kernels.sparse_tile import TileConfig, TileLauncher
from sparse24.kernels.sparse_wgmma_plan import CHIP

NAME = "split_mma"
ITEMSIZE = sparse_split.BYTES
LAUNCH = 4e-6  # seconds, as in the model of `sparse_mma`

# Tiles whose sums fit into the registers twice, from large ones for many columns to small ones for
# few, whose warps share k, and the share of the tensor cores' rate that each reaches on an H100,
# taken to be that of other chips: docs/benchmarks/log_gemm.rst.
SHARES = {
    TileConfig(128, 128, 128, (4, 2, 1), 2): 0.34,
    TileConfig(128, 64, 128, (2, 2, 1), 2, blocks=2): 0.33,
    TileConfig(64, 64, 128, (2, 2, 1), 2, blocks=2): 0.30,
    TileConfig(64, 32, 256, (2, 1, 2), 2, blocks=2): 0.21,
    TileConfig(64, 16, 256, (2, 1, 2), 2, blocks=2): 0.13,
    TileConfig(32, 16, 512, (1, 1, 4), 2, blocks=2): 0.09,
}


def refuses(problem: Problem) -> str | None:
    """Why this kernel cannot run `problem`, as a sentence; None if it can."""
    p = problem
    if {p.dtype, p.b_dtype, p.out_dtype} != {"float32"} or p.tensor_float:
        return f"the kernel splits float32, not {p.dtype} and {p.b_dtype} to {p.out_dtype}"
    if 0 in (p.m, p.n, p.k, p.batch):
        return "an empty product needs no kernel"
    return sparse_tile.refuses(widened(p))


def widened(problem: Problem) -> Problem:
    """The bfloat16 problem that the tensor cores see, whose `aligned` tells of the result alone."""
    wide, k = sparse_split.widened(problem), pieces.SECTIONS * pieces.padded(problem.k)
    return replace(wide, k=k, aligned=problem.aligned or problem.out_aligned)


def configs(problem: Problem) -> list[TileConfig]:
    """Candidates, best guess first."""
    room = sparse_tile.SHARED_MEMORY.get(problem.compute_capability, 99) << 10
    found = [config for tile in SHARES if (config := _with_ring(tile, room)) is not None]
    return sorted(found, key=lambda config: predict(problem, config, CHIP))


def _with_ring(tile: TileConfig, room: int) -> TileConfig | None:
    """A tile with the deepest ring for so many bytes of shared memory."""
    size = lambda stages: mma_ring.shared_memory(replace(tile, stages=stages), ITEMSIZE)  # noqa: E731
    ring = rings.deepest(size, tile.blocks, room)
    return None if ring is None else replace(tile, stages=ring[0], blocks=ring[1])


def predict(problem: Problem, config: TileConfig, chip: dict[str, float]) -> float:
    """Seconds: the pieces of b, and whole waves of tiles at a share of the tensor cores' rate."""
    p, wide = problem, widened(problem)
    elements = p.k * p.n * (p.batch if p.b_batched else 1)
    moved = elements * (4 + ITEMSIZE * pieces.SECTIONS)
    made = LAUNCH + moved / (sparse_split.PIECES_SHARE * chip["bandwidth"])
    blocks = sparse_tile.tiles(wide, config)
    beside = min(config.blocks, math.ceil(blocks / chip["sms"]))
    waves = math.ceil(blocks / (chip["sms"] * beside))
    rate = _share(config) * 2 * chip_rates.bfloat16(p.compute_capability) * chip["clock_hz"]
    work = waves * beside * config.m * config.n * wide.k / rate
    return LAUNCH + made + max(work, sparse_tile.bytes_moved(wide) / chip["bandwidth"])


def _share(config: TileConfig) -> float:
    size = config.m, config.n
    return next(share for tile, share in SHARES.items() if (tile.m, tile.n) == size)


def prepare(
    problem: Problem, config: TileConfig, epilogue: Fused
) -> Callable[[Compressed24, Any, Any, Fused], None]:
    """Compile `config` for `problem`; the callable enqueues on CuPy's current stream.

    Pieces are made and kept as by `sparse_split.prepare`.
    """
    wide, step = widened(problem), sparse_split.columns_at_a_time(problem, pieces.SECTIONS)
    by_columns = wide.b_order == "column"
    widths = {min(step, problem.n - start) for start in range(0, problem.n, step)}
    products = {n: _launcher(replace(wide, n=n), config, epilogue) for n in widths}

    def launch(a: Compressed24, b, out, epilogue: Fused) -> None:
        capturing = _arrays.cupy_module().cuda.get_current_stream().is_capturing()
        pieces_of_a = pieces.of_sparse(a, pieces.SECTIONS)
        for start in range(0, problem.n, step):
            part = slice(start, start + step)
            pieces_of_b = pieces.of_dense(b[..., part], pieces.SECTIONS, by_columns=by_columns)
            if capturing:
                pieces.keep_for_graph(a, pieces_of_b)
            of_part = sparse_split._columns(epilogue, part)
            products[pieces_of_b.shape[-1]](pieces_of_a, pieces_of_b, out[..., part], of_part)
            del pieces_of_b  # before the next ones are made

    return launch


def _launcher(problem: Problem, config: TileConfig, epilogue: Fused) -> TileLauncher:
    memory = mma_ring.shared_memory(config, ITEMSIZE)
    kernel = loader.function(NAME, NAME, defines(problem, config, epilogue), shared_memory=memory)
    grid = sparse_tile.tiles(problem, config)
    return TileLauncher(kernel, grid, config.threads, memory, early=False)


def defines(problem: Problem, config: TileConfig, epilogue: Fused) -> loader.Defines:
    """The macros of one specialisation for a widened problem; pieces of b are always aligned."""
    macros = sparse_tile.defines(problem, config, epilogue)
    return tuple((name, 1 if name == "B_ASYNC" else value) for name, value in macros)


def _compile_checks() -> list[tuple[loader.Defines, str, str]]:
    """Every tile, and a large one for every chip, with columns and with rows of b."""
    product = Problem(256, 256, 1536, 1, "bfloat16", "bfloat16", "float32", "column", "row")
    chips = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")
    large = next(iter(SHARES))
    return [
        (defines(replace(product, b_order=order), tile, PLAIN), arch, "HMMA.SP")
        for tile in SHARES
        for arch in (chips if tile == large else chips[:1])
        for order in ("column", "row")
    ]


COMPILE_CHECKS = _compile_checks()
