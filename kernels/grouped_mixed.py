"""Launch ``cuda/grouped_mixed.cu``: experts of 8 or 4 bits, and tokens of 16, on Hopper."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from sparse24 import _spec
from sparse24._dtypes import OF_16_BITS, numpy_dtype
from sparse24._records import PLAIN, Compressed24, Problem
from sparse24.kernels import bricks, grouped, grouped_wgmma, loader, sparse_mixed, tensor_map
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels import sparse_mixed_plan as plan
from sparse24.kernels import sparse_wgmma_plan as wgmma_plan
from sparse24.kernels.chip import chip
from sparse24.kernels.grouped import GATED, OFFSETS, REMEMBERED, Operands, Types
from sparse24.kernels.grouped_mixed_configs import MANY, TILES, choose, layout
from sparse24.kernels.launch import Launch
from sparse24.kernels.sparse_decode_plan import WIDENED, multiplied
from sparse24.kernels.sparse_quantised import by_blocks
from sparse24.kernels.sparse_wgmma_configs import Config

NAME = "grouped_mixed"

_SHAPE = np.dtype(
    [("m", "i4"), ("atoms_m", "i4"), ("atoms_k", "i4"), ("", "i4"), ("packed_batch", "i8")]
)


class Stored(NamedTuple):
    """How elements of A lie in memory: their type, and the bits of quantised ones or 0."""

    dtype: str
    bits: int


def refuses(problem: Problem, *, gated: bool = False) -> str | None:
    """Why this kernel cannot run `problem`, as a sentence; None if it can.

    As `grouped_wgmma.refuses`, for matrices of 8 bits and quantised ones.
    """
    if problem.compute_capability != 90:
        return f"wgmma needs compute capability 9.0, the device has {problem.compute_capability}"
    rows = bricks.ROWS if problem.quantised else _spec.ATOM_M
    refusal = sparse_mixed.refuses_types(problem)
    return refusal or grouped.refuses(multiplied(problem), rows if gated else None)


def tile_of(groups: int, rows: int, columns: int, a: Compressed24) -> Config:
    """The tile that `bind` takes for matrices `a` on the current device."""
    return choose(groups, rows, columns, a.quantised, chip().multiprocessors)


def bind(
    a: Compressed24, b: Any, out: Any, types: Types, offsets: int, params: bytes,
    config: Config | None = None,
) -> Launch:  # fmt: skip
    """The launch that fills `out` on the current device; it does not wait.

    Parameters are those of `grouped.operands`, `types` those of the product, with A in the type of
    `b`; `config` is by default the tile of `tile_of`.
    """
    of = grouped.operands(by_blocks(a) if a.quantised else a, b, out, offsets, params)
    config = config or tile_of(of.groups, a.m, of.columns, a)
    stored = Stored(a.dtype.name, a.quantised)
    return _launch(of, types, stored, config, a.values.device.id)


@functools.lru_cache(maxsize=REMEMBERED)
def _launch(of: Operands, types: Types, stored: Stored, config: Config, device: int) -> Launch:
    """The launch for these operands; it keeps none of them alive."""
    tiles_m = -(-of.m // _tile_m(types, config))
    arguments = (
        _values_maps(of, types, stored, config), grouped_wgmma._b_map(of, types, config),
        np.array([of.packed], np.uint64), grouped_wgmma._out_view(of, types), _shape(of, stored),
        grouped.grouping(of, tiles_m, wgmma_plan.band(config)), grouped.by_value(of.params),
    )  # fmt: skip
    shared_memory = _layout(config, types, stored).shared_memory
    kernel = loader.function(
        NAME, NAME, defines(config, types, stored), shared_memory=shared_memory
    )
    most = grouped.most_tiles(of, tiles_m, config.block_n)
    grid = min(most, chip(device).multiprocessors * config.blocks)
    return Launch(kernel, grid, (config.consumers + 1) * 128, shared_memory, arguments, early=True)


def defines(config: Config, types: Types, stored: Stored) -> loader.Defines:
    """The macros of one specialisation."""
    return (
        ("STORED", stored.dtype), ("BITS", stored.bits),
        ("ELEMENT", types.b_dtype), ("B_ELEMENT", types.b_dtype), ("OUTPUT", types.out_dtype),
        ("OFFSET", OFFSETS[types.offsets]),
        ("BLOCK_M", config.block_m), ("BLOCK_N", config.block_n), ("BLOCK_K", plan.BLOCK_K),
        ("STAGES", _layout(config, types, stored).stages), ("CONSUMERS", config.consumers),
        ("BLOCKS", config.blocks), ("GATED", int(types.gated)),
        *_epilogue.defines(types.epilogue),
    )  # fmt: skip


def _layout(config: Config, types: Types, stored: Stored):
    return layout(config, numpy_dtype(types.out_dtype).itemsize, stored.bits)


def _tile_m(types: Types, config: Config) -> int:
    """Rows of the result that a tile has."""
    return config.block_m // types.halves


def _values_maps(of: Operands, types: Types, stored: Stored, config: Config) -> np.ndarray:
    """For whole tiles, and for the last ones along m; bricks come without."""
    if stored.bits:
        return tensor_map.several([tensor_map.empty()] * 2)
    whole = _tile_m(types, config)
    extents = of.stored, of.rows, of.groups
    pitches = of.values_pitch, of.values_group if of.groups > 1 else of.values_pitch * of.rows
    return tensor_map.several(
        tensor_map.tiled(of.values, extents, pitches, (sparse_mixed.UNIT, rows), 1)
        for rows in (whole, grouped.rounded(of.m % whole or whole, 8))
    )


def _shape(of: Operands, stored: Stored) -> np.ndarray:
    """Bricks lie in the order of rows, atoms in that of k."""
    atoms_m, atoms_k = (of.atoms_k, of.atoms_m) if stored.bits else (of.atoms_m, of.atoms_k)
    return loader.by_value(np.array([(of.m, atoms_m, atoms_k, 0, of.packed_group)], _SHAPE))


def _compile_checks():
    """Every tile with int8 and with bricks of 4 bits, with and without a gate; others with one."""

    def check(config: Config, stored: Stored, dtype: str, *, gated: bool):
        epilogue = GATED if gated else PLAIN
        types = Types(dtype, dtype, dtype, "int32", epilogue, gated, fast_accumulation=True)
        name = {"float16": "F32", "bfloat16": "F32.BF16"}[dtype]
        macros = defines(config, types, stored)
        return macros, "sm_90a", f"HGMMA.SP.64x{config.block_n}x32.{name}"

    kinds = [Stored("int8", 0), Stored("bfloat16", 4)]
    others = [Stored(name, 0) for name in WIDENED] + [
        Stored("bfloat16", bits) for bits in bricks.BITS
    ]
    return [
        *(check(t, of, "bfloat16", gated=g) for t in TILES for of in kinds for g in (False, True)),
        *(check(MANY, of, dtype, gated=True) for of in others for dtype in OF_16_BITS),
    ]


COMPILE_CHECKS = _compile_checks()
