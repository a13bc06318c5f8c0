"""Launch ``cuda/grouped_quantised.cu``: quantised 2:4 products of experts with few tokens each."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from sparse24._dtypes import OF_16_BITS, numpy_dtype
from sparse24._records import PLAIN, Compressed24, Problem
from sparse24.kernels import (
    bricks,
    decode_launch,
    grouped,
    loader,
    sparse_quantised,
    sparse_tile,
    tensor_map,
)
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels.chip import chip
from sparse24.kernels.decode_launch import LINE
from sparse24.kernels.decode_tiles import LEAST_STAGES
from sparse24.kernels.grouped import GATED, OFFSETS, REMEMBERED, Operands, Types
from sparse24.kernels.grouped_quantised_configs import choose, fitting, place, sized, table_of
from sparse24.kernels.launch import Launch
from sparse24.kernels.sparse_quantised import by_blocks
from sparse24.kernels.sparse_quantised_plan import Config

NAME = "grouped_quantised"
BAND = 8  # tiles along m that run together
ITEM = 2  # bytes of an element of b


def refuses(problem: Problem, *, gated: bool = False) -> str | None:
    """Why this kernel cannot run `problem`, as a sentence; None if it can.

    As `grouped_wgmma.refuses`, for quantised matrices.
    """
    p = problem
    refusal = sparse_quantised.refuses_types(p) or decode_launch.refuses_chip(p)
    refusal = refusal or grouped.refuses(problem, bricks.ROWS if gated else None)
    if refusal is None and not fitting(p.quantised, p.batch, p.compute_capability):
        return f"shared memory has no room for {LEAST_STAGES} stages beside {p.batch} groups"
    return refusal


def tile_of(groups: int, rows: int, columns: int, a: Compressed24) -> Config:
    """The tile that `bind` takes for matrices `a` on the current device."""
    of, bits = chip(), a.quantised
    capability = int(of.compute_capability)
    return choose(groups, rows, a.k, columns, bits, of.multiprocessors, capability)


def bind(
    a: Compressed24, b: Any, out: Any, types: Types, offsets: int, params: bytes,
    config: Config | None = None,
) -> Launch:  # fmt: skip
    """The launch that fills `out` on the current device; it does not wait.

    Parameters are those of `grouped.operands`, with bricks for `a`; `config` is by default the tile
    of `tile_of`.
    """
    of = grouped.operands(by_blocks(a), b, out, offsets, params)
    config = config or tile_of(of.groups, a.m, of.columns, a)
    return _launch(of, types, a.quantised, config, a.values.device.id)


@functools.lru_cache(maxsize=REMEMBERED)
def _launch(of: Operands, types: Types, bits: int, config: Config, device: int) -> Launch:
    """The launch for these operands; it keeps none of them alive."""
    tiles_m = -(-of.m // (config.m // types.halves))
    arguments = (
        np.array([of.values], np.uint64), _b_map(of, config), np.array([of.out], np.uint64),
        _shape(of, types), grouped.grouping(of, tiles_m, BAND), grouped.by_value(of.params),
    )  # fmt: skip
    shared_memory = config.shared_memory(sized(bits)) + table_of(of.groups)
    kernel = loader.function(NAME, NAME, defines(config, types, bits), shared_memory=shared_memory)
    most = grouped.most_tiles(of, tiles_m, config.n)
    grid = min(most, chip(device).multiprocessors * config.blocks)
    return Launch(kernel, grid, config.threads, shared_memory, arguments, early=True)


def _b_map(of: Operands, config: Config) -> np.ndarray:
    box = LINE // ITEM, min(of.columns, config.n)
    pitches = of.b_pitch, of.b_pitch * of.columns
    return tensor_map.tiled(of.b, (of.k, of.columns, 1), pitches, box, ITEM)


def _shape(of: Operands, types: Types) -> np.ndarray:
    """The `Shape` argument: columns lie one after the other in b and in the result."""
    block = np.zeros(1, sparse_tile.SHAPE)
    block["m"], block["n"], block["k"], block["batch"] = of.m, of.columns, of.k, 1
    block["a_batch"] = of.values_group
    block["out_row"], block["out_column"] = 1, of.out_pitch // numpy_dtype(types.out_dtype).itemsize
    return loader.by_value(block)


def defines(config: Config, types: Types, bits: int) -> loader.Defines:
    """The macros of one specialisation."""
    warps_m, warps_n, warps_k = config.warps
    return (
        ("ELEMENT", types.dtype), ("B_ELEMENT", types.b_dtype), ("OUTPUT", types.out_dtype),
        ("OFFSET", OFFSETS[types.offsets]), ("BITS", bits),
        ("TILE_M", config.m), ("TILE_N", config.n), ("TILE_K", config.k),
        ("WARPS_M", warps_m), ("WARPS_N", warps_n), ("WARPS_K", warps_k),
        ("STAGES", config.stages), ("BLOCKS", config.blocks), ("WGMMA", int(config.wgmma)),
        ("PROMOTE", 0), ("B_COLUMN", 1), ("B_ASYNC", 1), ("OUT_COLUMN", 1), ("OUT_ALIGNED", 1),
        ("SUMS_AT", config.sums_at(sized(bits))), ("GATED", int(types.gated)),
        *_epilogue.defines(types.epilogue),
    )  # fmt: skip


def _compile_checks():
    """Every tile with and without a gate, of each type and width."""
    for bits in bricks.BITS:
        for dtype in OF_16_BITS:
            for epilogue in (PLAIN, GATED):
                names = dtype, dtype, dtype, "int32", epilogue
                types = Types(*names, gated=epilogue is GATED, fast_accumulation=True)
                for tile in fitting(bits, 8, 90):
                    instruction = "HGMMA.SP" if tile.wgmma else "HMMA.SP"
                    yield defines(place(tile, bits, 8), types, bits), "sm_90a", instruction


COMPILE_CHECKS = tuple(_compile_checks())
