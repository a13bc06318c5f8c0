"""Launch ``cuda/grouped_wgmma.cu``: 2:4 products of experts with their tokens, on Hopper."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from sparse24 import _spec
from sparse24._dtypes import numpy_dtype
from sparse24._records import PLAIN, Compressed24, Fused, Problem
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels import grouped, loader, tensor_map
from sparse24.kernels import sparse_wgmma_plan as plan
from sparse24.kernels.chip import chip
from sparse24.kernels.grouped import GATED, OFFSETS, REMEMBERED, Operands, Types
from sparse24.kernels.grouped_wgmma_configs import (
    FEW,
    MANY,
    MOST,
    PROMOTED,
    SOME,
    Config,
    choose,
    layout,
)
from sparse24.kernels.launch import Launch

NAME = "grouped_wgmma"

_SHAPE = np.dtype(
    [("m", "i4"), ("atoms_m", "i4"), ("atoms_k", "i4"), ("tail", "i4"), ("packed_batch", "i8")]
)
_OUT = np.dtype([("data", "u8"), ("pitch", "i8"), ("m", "i4"), ("unused", "i4")])


def refuses(problem: Problem, *, gated: bool = False) -> str | None:
    """Why this kernel cannot run `problem`, as a sentence; None if it can.

    `problem` has the columns of all groups together, and as many matrices as groups.  If it is
    gated, the matrices have twice as many rows as the result.
    """
    if problem.compute_capability != 90:
        return f"wgmma needs compute capability 9.0, the device has {problem.compute_capability}"
    return grouped.refuses(problem, _spec.ATOM_M if gated else None)


def tile_of(groups: int, rows: int, columns: int, types: Types) -> Config:
    """The tile that `bind` takes on the current device."""
    return choose(groups, rows, columns, types, chip().multiprocessors)


def bind(
    a: Compressed24, b: Any, out: Any, types: Types, offsets: int, params: bytes,
    config: Config | None = None,
) -> Launch:  # fmt: skip
    """The launch that fills `out` on the current device; it does not wait.

    Parameters are those of `grouped.operands`; `config` is by default the tile of `tile_of`.
    """
    of = grouped.operands(a, b, out, offsets, params)
    config = config or tile_of(of.groups, of.rows, of.columns, types)
    return _launch(of, types, config, a.values.device.id)


@functools.lru_cache(maxsize=REMEMBERED)
def _launch(of: Operands, types: Types, config: Config, device: int) -> Launch:
    """The launch for these operands; it keeps none of them alive."""
    tiles_m = -(-of.m // _tile_m(types, config))
    arguments = (
        _values_maps(of, types, config), _b_map(of, types, config),
        np.array([of.packed], np.uint64), _out_view(of, types), _shape(of, types, config),
        grouped.grouping(of, tiles_m, plan.band(config)), grouped.by_value(of.params),
    )  # fmt: skip
    _, shared_memory = layout(config, types)
    kernel = loader.function(NAME, NAME, defines(config, types), shared_memory=shared_memory)
    most = grouped.most_tiles(of, tiles_m, config.block_n)
    grid = min(most, chip(device).multiprocessors * config.blocks)
    return Launch(kernel, grid, (config.consumers + 1) * 128, shared_memory, arguments, early=True)


def defines(config: Config, types: Types) -> loader.Defines:
    """The macros of one specialisation."""
    itemsize = numpy_dtype(types.dtype).itemsize
    return (
        ("ELEMENT", types.dtype), ("B_ELEMENT", types.b_dtype), ("OUTPUT", types.out_dtype),
        ("OFFSET", OFFSETS[types.offsets]),
        ("BLOCK_M", config.block_m), ("BLOCK_N", config.block_n),
        ("BLOCK_K", 128 * config.spans // itemsize), ("STAGES", layout(config, types)[0]),
        ("CONSUMERS", config.consumers), ("BLOCKS", config.blocks),
        ("IN_FLIGHT", int(config.in_flight and not types.promotes)),
        ("PROMOTE", int(types.promotes)), ("GATED", int(types.gated)),
        *_epilogue.defines(types.epilogue),
    )  # fmt: skip


def _tile_m(types: Types, config: Config) -> int:
    """Rows of the result that a tile has."""
    return config.block_m // types.halves


def _tail(of: Operands, types: Types, config: Config) -> int:
    """Rows of A in a box of the last tile along m, as whole swizzled groups of eight."""
    tile = _tile_m(types, config)
    return grouped.rounded(of.m % tile or tile, 8)


def _values_maps(of: Operands, types: Types, config: Config) -> np.ndarray:
    size = numpy_dtype(types.dtype).itemsize
    extents, inner = (of.stored, of.rows, of.groups), 64 * config.spans // size
    pitches = of.values_pitch, of.values_group if of.groups > 1 else of.values_pitch * of.rows
    return tensor_map.several(
        tensor_map.tiled(of.values, extents, pitches, (inner, rows), size)
        for rows in (_tile_m(types, config), _tail(of, types, config))
    )


def _b_map(of: Operands, types: Types, config: Config) -> np.ndarray:
    size = numpy_dtype(types.b_dtype).itemsize
    pitches, box = (of.b_pitch, of.b_pitch * of.columns), (128 // size, config.block_n)
    return tensor_map.tiled(of.b, (of.k, of.columns, 1), pitches, box, size)


def _out_view(of: Operands, types: Types) -> np.ndarray:
    pitch = of.out_pitch // numpy_dtype(types.out_dtype).itemsize
    return loader.by_value(np.array([(of.out, pitch, of.m, 0)], _OUT))


def _shape(of: Operands, types: Types, config: Config) -> np.ndarray:
    extents = (of.m, of.atoms_m, of.atoms_k, _tail(of, types, config), of.packed_group)
    return loader.by_value(np.array([extents], _SHAPE))


def _compile_checks() -> list[tuple[loader.Defines, str, str]]:
    """Every tile with bfloat16, every type with a narrow and a wide tile; the same if gated."""
    types = {
        ("float16", "float16", "float16"): "HGMMA.SP.64x{}x32.F32",
        ("float8_e4m3fn", "float8_e5m2", "bfloat16"): "QGMMA.SP.64x{}x64.F32.E4M3.E5M2",
        ("int8", "int8", "int32"): "IGMMA.SP.64x{}x64.S8.S8",
    }
    bfloat16 = ("bfloat16", "bfloat16", "bfloat16"), "HGMMA.SP.64x{}x32.F32.BF16"
    whole = Fused(2.0, row_scale=True, column_scale=True, row_bias=True, activation="silu")

    def check(
        config: Config, names: tuple[str, str, str], instruction: str, offsets: str, e: Fused,
        gated: bool, fast: bool,
    ):  # fmt: skip
        of = Types(*names, offsets, e, gated, fast)
        return defines(config, of), "sm_90a", instruction.format(config.block_n)

    promoted = ("float8_e4m3fn", "float8_e4m3fn", "bfloat16"), "QGMMA.SP.64x{}x64.F32.E4M3.E4M3"
    return [
        *(
            check(tile, *of, "int64", whole, tile is MOST, True)
            for tile in (SOME, MOST)
            for of in types.items()
        ),
        *(check(tile, *bfloat16, "int32", PLAIN, False, True) for tile in (FEW, SOME, MANY, MOST)),
        *(check(tile, *bfloat16, "int32", GATED, True, True) for tile in (FEW, SOME, MANY, MOST)),
        *(check(PROMOTED, *promoted, "int32", of, of is GATED, False) for of in (PLAIN, GATED)),
    ]


COMPILE_CHECKS = _compile_checks()
