"""Launch ``cuda/grouped_wgmma.cu``: 2:4 products of experts with their tokens, on Hopper."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from sparse24 import _spec
from sparse24._dtypes import numpy_dtype
from sparse24._records import Compressed24, Problem
from sparse24.kernels import loader, tensor_map
from sparse24.kernels import sparse_wgmma_plan as plan
from sparse24.kernels.chip import chip
from sparse24.kernels.launch import Launch, current_stream, pointer
from sparse24.kernels.sparse_wgmma_configs import SHARED_MEMORY, Config

NAME = "grouped_wgmma"

OUTPUTS = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float8_e4m3fn": ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"),
    "float8_e5m2": ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"),
    "int8": ("int32", "int8", "bfloat16", "float16", "float32"),
}
MOST_GROUPS = 1024
TABLE_BYTES = 2 * (MOST_GROUPS + 1) * 4
MOST_STAGES = 12
OFFSETS = {"int32": "int", "int64": "long"}  # of 64 bits in CUDA on Linux

# Tiles, and up to how many columns a group, on average, each is used.
BY_COLUMNS = (
    (16, Config(128, 32, spans=2)),
    (48, Config(128, 64, spans=2)),
    (160, Config(128, 128, spans=2)),
    (1 << 31, Config(128, 256)),
)
PROMOTED = Config(128, 128, spans=2)  # whose sums fit into the registers twice
CONFIGS = tuple(config for _, config in BY_COLUMNS)

_SHAPE = np.dtype(
    [("m", "i4"), ("atoms_m", "i4"), ("atoms_k", "i4"), ("tail", "i4"), ("packed_batch", "i8")]
)
_GROUPING = np.dtype(
    [("offsets", "u8"), ("groups", "i4"), ("columns", "i4"), ("tiles_m", "i4"), ("band", "i4")]
)
_OUT = np.dtype([("data", "u8"), ("pitch", "i8"), ("bias", "u8"), ("m", "i4"), ("unused", "i4")])


class Types(NamedTuple):
    """What a specialisation is compiled for, beside its tile."""

    dtype: str
    b_dtype: str
    out_dtype: str
    offsets: str
    bias: bool
    fast_accumulation: bool

    @property
    def promotes(self) -> bool:
        return self.dtype.startswith("float8") and not self.fast_accumulation


def refuses(problem: Problem) -> str | None:
    """Why this kernel cannot run `problem`, as a sentence; None if it can.

    `problem` has the columns of all groups together, and as many matrices as groups.
    """
    p = problem
    if p.compute_capability != 90:
        return f"wgmma needs compute capability 9.0, the device has {p.compute_capability}"
    if p.dtype not in OUTPUTS:
        return f"the kernel multiplies {', '.join(OUTPUTS)}, not {p.dtype}"
    if p.dtype[:6] != p.b_dtype[:6]:  # both types of fp8 go together
        return f"{p.dtype} and {p.b_dtype} cannot be multiplied by one instruction; convert b"
    if p.out_dtype not in OUTPUTS[p.dtype]:
        return f"{p.dtype} results are stored as {', '.join(OUTPUTS[p.dtype])}, not {p.out_dtype}"
    if 0 in (p.m, p.n, p.k, p.batch):
        return "an empty product needs no kernel"
    if p.batch > MOST_GROUPS:
        return f"there are {p.batch} groups; the kernel's table has room for {MOST_GROUPS}"
    if p.b_order != "column" or p.out_order != "column" or not p.aligned:
        return "columns of b and of the result must be contiguous, on 16-byte boundaries; copy them"
    return None


def choose(groups: int, columns: int, types: Types) -> Config:
    """The tile for so many columns of all groups together."""
    if types.promotes:
        return PROMOTED
    return next(config for most, config in BY_COLUMNS if columns <= most * groups)


def multiply(
    a: Compressed24, b: Any, offsets: Any, out: Any, bias: Any = None, *,
    b_dtype: str | None = None, out_dtype: str | None = None, fast_accumulation: bool = True,
    config: Config | None = None,
) -> None:  # fmt: skip
    """Enqueue ``out[:, g] = a[g] @ b[:, g]`` for the columns of each group; does not wait.

    Parameters
    ----------
    a : Compressed24, shape (groups, m, k)
        With `packed`.
    b : cupy.ndarray, shape (k, n)
        k contiguous, columns on 16-byte boundaries.
    offsets : cupy.ndarray of int32 or int64, shape (groups + 1,)
        Columns ``offsets[g]`` to ``offsets[g + 1]`` belong to group g.
    out : cupy.ndarray, shape (m, n)
        m contiguous, columns on 16-byte boundaries.
    bias : cupy.ndarray of float32, shape (groups, m), optional
        C-contiguous.
    b_dtype, out_dtype : str, optional
        Logical types, where the arrays carry fp8 as bytes.
    fast_accumulation : bool
        fp8 only: see `sparse24.matmul`.
    config : Config, optional
        The tile; by default the one that `choose` takes.
    """
    types = Types(
        a.dtype.name, b_dtype or b.dtype.name, out_dtype or out.dtype.name, offsets.dtype.name,
        bias is not None, fast_accumulation,
    )  # fmt: skip
    groups, m, _ = a.shape
    columns = b.shape[1]
    config = config or choose(groups, columns, types)
    maps = _values_maps(a, config), _b_map(b, config)
    arguments = (
        *maps, pointer(a.packed), _out_view(out, bias), _shape(a, config),
        _grouping(offsets, groups, columns, m, config),
    )  # fmt: skip
    _, shared_memory = layout(config, types)
    kernel = loader.function(NAME, NAME, defines(config, types), shared_memory=shared_memory)
    grid = min(_most_tiles(groups, m, columns, config), chip().multiprocessors * config.blocks)
    block = (config.consumers + 1) * 128
    Launch(kernel, grid, block, shared_memory, arguments, early=True)(current_stream())


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
        ("PROMOTE", int(types.promotes)), ("BIAS", int(types.bias)), ("MOST_GROUPS", MOST_GROUPS),
    )  # fmt: skip


@functools.cache
def layout(config: Config, types: Types) -> tuple[int, int]:
    """As many stages as fit, and the bytes of shared memory that they take with all else."""
    itemsize, out_itemsize = (numpy_dtype(x).itemsize for x in (types.dtype, types.out_dtype))
    stage = (64 * config.block_m + 128 * config.block_n) * config.spans
    of_atom = _spec.ATOM_K * itemsize  # bytes of b along k
    parts, atoms = max(1, of_atom // (128 * config.spans)), max(1, 128 * config.spans // of_atom)
    slot = atoms * config.block_m // _spec.ATOM_M * _spec.ATOM_BYTES
    chunk = 32 if out_itemsize == 4 else min(64, config.block_n)
    staging = config.consumers * chunk * 64 * out_itemsize

    def total(stages: int) -> int:
        return stages * (stage + 16) + -(-stages // parts) * slot + staging + TABLE_BYTES

    most = SHARED_MEMORY[config.blocks]
    stages = max(s for s in range(1, MOST_STAGES + 1) if total(s) <= most)
    return stages, total(stages)


def _most_tiles(groups: int, m: int, columns: int, config: Config) -> int:
    """Every group may have one tile that is not full."""
    return -(-m // config.block_m) * (columns // config.block_n + min(groups, columns))


def _tail(m: int, config: Config) -> int:
    """Rows of A that the last tile along m has, as whole swizzled groups of eight."""
    return -(-(m % config.block_m or config.block_m) // 8) * 8


def _values_maps(a: Compressed24, config: Config) -> np.ndarray:
    values, size = a.values, a.values.itemsize
    groups, m, columns = values.shape
    pitch = values.strides[-2] if m > 1 else -(-columns * size // 16) * 16
    batch_pitch = values.strides[0] if groups > 1 else pitch * m
    inner = 64 * config.spans // size
    return tensor_map.several(
        tensor_map.tiled(
            values.data.ptr, (columns, m, groups), (pitch, batch_pitch), (inner, rows), size
        )
        for rows in (config.block_m, _tail(m, config))
    )


def _b_map(b: Any, config: Config) -> np.ndarray:
    k, n = b.shape
    pitch = b.strides[1] if n > 1 else -(-k * b.itemsize // 16) * 16
    box = (128 // b.itemsize, config.block_n)
    return tensor_map.tiled(b.data.ptr, (k, n, 1), (pitch, pitch * n), box, b.itemsize)


def _out_view(out: Any, bias: Any) -> np.ndarray:
    m, n = out.shape
    pitch = out.strides[1] // out.itemsize if n > 1 else m
    view = (out.data.ptr, pitch, 0 if bias is None else bias.data.ptr, m, 0)
    return loader.by_value(np.array([view], _OUT))


def _shape(a: Compressed24, config: Config) -> np.ndarray:
    atoms_k, atoms_m, _ = a.packed.shape[-3:]
    extents = (a.m, atoms_m, atoms_k, _tail(a.m, config), a.packed.strides[-4])
    return loader.by_value(np.array([extents], _SHAPE))


def _grouping(offsets: Any, groups: int, columns: int, m: int, config: Config) -> np.ndarray:
    tiles_m = -(-m // config.block_m)
    block = (offsets.data.ptr, groups, columns, tiles_m, plan.band(config))
    return loader.by_value(np.array([block], _GROUPING))


def _compile_checks() -> list[tuple[loader.Defines, str, str]]:
    """Every tile with bfloat16, and every type with a narrow and a wide tile."""
    types = {
        ("float16", "float16", "float16"): "HGMMA.SP.64x{}x32.F32",
        ("float8_e4m3fn", "float8_e5m2", "bfloat16"): "QGMMA.SP.64x{}x64.F32.E4M3.E5M2",
        ("int8", "int8", "int32"): "IGMMA.SP.64x{}x64.S8.S8",
    }

    def check(config: Config, of: Types, instruction: str):
        return defines(config, of), "sm_90a", instruction.format(config.block_n)

    promoted = Types("float8_e4m3fn", "float8_e4m3fn", "bfloat16", "int32", False, False)
    return [
        *(
            check(tile, Types(*names, "int64", True, True), instruction)
            for tile in (CONFIGS[1], CONFIGS[-1])
            for names, instruction in types.items()
        ),
        *(
            check(
                tile, Types(*("bfloat16",) * 3, "int32", False, True), "HGMMA.SP.64x{}x32.F32.BF16"
            )
            for tile in CONFIGS
        ),
        check(PROMOTED, promoted, "QGMMA.SP.64x{}x64.F32.E4M3.E4M3"),
    ]


COMPILE_CHECKS = _compile_checks()
