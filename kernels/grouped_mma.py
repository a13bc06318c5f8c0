"""Launch ``cuda/grouped_mma.cu``: 2:4 products of experts with their tokens, since sm_80."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from sparse24._dtypes import numpy_dtype
from sparse24._records import PLAIN, Compressed24, Fused, Problem
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels import grouped, loader, rings, sparse_tile
from sparse24.kernels.chip import chip
from sparse24.kernels.grouped import GATED, OFFSETS, REMEMBERED, Operands, Types, table_bytes
from sparse24.kernels.launch import Launch

NAME = "grouped_mma"
GATE_ROWS = 16  # whose metadata are contiguous
BAND = 8  # tiles along m that run together, as in ``sparse_mma.cu``


class Config(NamedTuple):
    """One specialisation.

    Attributes
    ----------
    m, n, k : int
        Tile of a block, and the K extent of a stage (a multiple of 128).
    warps : tuple of int
        Warps along M, n and K.
    blocks : int
        Blocks that run on one multiprocessor at a time.
    stages : int
        Depth of the ring of asynchronous copies.
    """

    m: int
    n: int
    k: int
    warps: tuple[int, int, int]
    blocks: int = 2
    stages: int = 2

    @property
    def name(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def threads(self) -> int:
        return 32 * self.warps[0] * self.warps[1] * self.warps[2]

    def shared_memory(self, itemsize: int, groups: int) -> int:
        """Bytes of the ring, or of the sums that take its place, and of the table of groups."""
        stage = (self.m * self.k // 2 + self.n * self.k) * itemsize + self.m * self.k // 8
        sums = 4 * self.warps[2] * self.m * (self.n + 1)
        return grouped.rounded(max(self.stages * stage, sums), 16) + table_bytes(groups)


# For few columns a group, for some, and for many.  Raced on an H100 against wider and narrower
# ones: docs/benchmarks/log_grouped.rst.
FEW, SOME, MANY = (
    Config(64, 16, 256, (2, 1, 2)), Config(64, 32, 256, (2, 1, 2)), Config(128, 64, 128, (2, 2, 1)),
)  # fmt: skip
FEW_COLUMNS, SOME_COLUMNS = 2, 16  # a group, on average


def refuses(problem: Problem, *, gated: bool = False) -> str | None:
    """Why this kernel cannot run `problem`, as a sentence; None if it can.

    As `grouped_wgmma.refuses`, for other chips.
    """
    refusal = grouped.refuses(problem, GATE_ROWS if gated else None)
    return refusal or sparse_tile.refuses(problem)


def choose(groups: int, columns: int, itemsize: int, most_shared: int) -> Config:
    """The tile for that many columns of all groups together, and its ring."""
    each = columns / groups
    tile = FEW if each <= FEW_COLUMNS else SOME if each <= SOME_COLUMNS else MANY
    size = lambda stages: tile._replace(stages=stages).shared_memory(itemsize, groups)  # noqa: E731
    ring = rings.deepest(size, tile.blocks, most_shared)
    assert ring is not None  # 99 KiB are enough, and sm_80 and later have them
    return tile._replace(stages=ring[0], blocks=ring[1])


def tile_of(groups: int, rows: int, columns: int, types: Types) -> Config:
    """The tile that `bind` takes on the current device."""
    return choose(groups, columns, numpy_dtype(types.dtype).itemsize, chip().most_shared)


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
    tiles_m = -(-of.m // (config.m // types.halves))
    addresses = (np.array([x], np.uint64) for x in (of.values, of.packed, of.b, of.out))
    arguments = (
        *addresses, _shape(of, types), grouped.grouping(of, tiles_m, BAND),
        grouped.by_value(of.params),
    )  # fmt: skip
    shared_memory = config.shared_memory(numpy_dtype(types.dtype).itemsize, of.groups)
    kernel = loader.function(NAME, NAME, defines(config, types), shared_memory=shared_memory)
    most = grouped.most_tiles(of, tiles_m, config.n)
    grid = min(most, chip(device).multiprocessors * config.blocks)
    return Launch(kernel, grid, config.threads, shared_memory, arguments)


def _shape(of: Operands, types: Types) -> np.ndarray:
    """The `Shape` argument: columns lie one after the other in b and in the result."""
    block = np.zeros(1, sparse_tile.SHAPE)
    block["m"], block["n"], block["k"], block["batch"] = of.m, of.columns, of.k, 1
    block["values_per_row"], block["meta_atoms_m"] = of.stored, of.atoms_m
    block["a_pitch"], block["a_batch"] = of.values_pitch, of.values_group
    block["meta_batch"] = of.packed_group
    block["b_row"], block["b_column"] = 1, of.b_pitch // numpy_dtype(types.b_dtype).itemsize
    block["out_row"], block["out_column"] = 1, of.out_pitch // numpy_dtype(types.out_dtype).itemsize
    return loader.by_value(block)


def defines(config: Config, types: Types) -> loader.Defines:
    """The macros of one specialisation."""
    warps_m, warps_n, warps_k = config.warps
    return (
        ("ELEMENT", types.dtype), ("B_ELEMENT", types.b_dtype), ("OUTPUT", types.out_dtype),
        ("OFFSET", OFFSETS[types.offsets]),
        ("TILE_M", config.m), ("TILE_N", config.n), ("TILE_K", config.k),
        ("WARPS_M", warps_m), ("WARPS_N", warps_n), ("WARPS_K", warps_k),
        ("STAGES", config.stages), ("BLOCKS", config.blocks), ("WGMMA", 0), ("PROMOTE", 0),
        ("B_COLUMN", 1), ("B_ASYNC", 1), ("OUT_COLUMN", 1), ("OUT_ALIGNED", 1),
        ("GATED", int(types.gated)), *_epilogue.defines(types.epilogue),
    )  # fmt: skip


def _compile_checks() -> list[tuple[loader.Defines, str, str]]:
    """Every tile with bfloat16, with and without a gate; every type and chip with a gate."""
    everywhere = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")
    types = (
        (("bfloat16", "bfloat16", "float32"), "HMMA.SP", everywhere),
        (("float16", "float16", "float16"), "HMMA.SP", everywhere),
        (("int8", "int8", "int32"), "IMMA.SP", everywhere),
        (("float8_e4m3fn", "float8_e5m2", "bfloat16"), "QMMA.SP", ("sm_89", "sm_120")),
    )
    whole = Fused(2.0, row_scale=True, column_scale=True, row_bias=True, activation="silu")
    gated = [
        (defines(MANY, Types(*names, "int64", whole, True, True)), arch, instruction)
        for names, instruction, archs in types
        for arch in archs
    ]
    bfloat16 = ("bfloat16", "bfloat16", "bfloat16")
    every = [
        (defines(tile, Types(*bfloat16, "int32", of, of is GATED, True)), arch, "HMMA.SP")
        for tile in (FEW, SOME, MANY)
        for of in (PLAIN, GATED)
        for arch in ("sm_80", "sm_90a")
    ]
    return gated + every


COMPILE_CHECKS = _compile_checks()
