"""Launch ``cuda/grouped_wgmma.cu``: 2:4 products of experts with their tokens, on Hopper."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from sparse24 import _spec
from sparse24._dtypes import numpy_dtype
from sparse24._records import PLAIN, Compressed24, Fused, Problem
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels import loader, tensor_map
from sparse24.kernels import sparse_wgmma_plan as plan
from sparse24.kernels.chip import chip
from sparse24.kernels.grouped_wgmma_configs import (
    FEW,
    MANY,
    MOST,
    MOST_GROUPS,
    PROMOTED,
    SOME,
    Config,
    Types,
    choose,
    layout,
)
from sparse24.kernels.launch import Launch, current_stream

NAME = "grouped_wgmma"

OUTPUTS = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float8_e4m3fn": ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"),
    "float8_e5m2": ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"),
    "int8": ("int32", "int8", "bfloat16", "float16", "float32"),
}
GATED = Fused(activation="silu")  # the epilogue of most gated layers
REMEMBERED = 1024  # launches, by the addresses of their operands
OFFSETS = {"int32": "int", "int64": "long"}  # of 64 bits in CUDA on Linux

_SHAPE = np.dtype(
    [("m", "i4"), ("atoms_m", "i4"), ("atoms_k", "i4"), ("tail", "i4"), ("packed_batch", "i8")]
)
_GROUPING = np.dtype(
    [("offsets", "u8"), ("groups", "i4"), ("columns", "i4"), ("tiles_m", "i4"), ("band", "i4")]
)
_OUT = np.dtype([("data", "u8"), ("pitch", "i8"), ("m", "i4"), ("unused", "i4")])


def refuses(problem: Problem, *, gated: bool = False) -> str | None:
    """Why this kernel cannot run `problem`, as a sentence; None if it can.

    `problem` has the columns of all groups together, and as many matrices as groups.  If it is
    gated, the matrices have twice as many rows as the result.
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
    if gated and p.m % _spec.ATOM_M:
        return f"a gate must have a multiple of {_spec.ATOM_M} rows, not {p.m}"
    if p.batch > MOST_GROUPS:
        return f"there are {p.batch} groups; the kernel's table has room for {MOST_GROUPS}"
    if p.b_order != "column" or p.out_order != "column" or not p.aligned:
        return "columns of b and of the result must be contiguous, on 16-byte boundaries; copy them"
    return None


def multiply(
    a: Compressed24, b: Any, offsets: Any, out: Any, epilogue: Fused = PLAIN, *,
    gated: bool = False, b_dtype: str | None = None, out_dtype: str | None = None,
    fast_accumulation: bool = True, config: Config | None = None,
) -> None:  # fmt: skip
    """Enqueue ``out[:, g] = epilogue(a[g] @ b[:, g])`` for each group's columns; does not wait.

    Parameters
    ----------
    a : Compressed24, shape (groups, m, k), or (groups, 2 m, k) if gated
        With `packed`.
    b : cupy.ndarray, shape (k, n)
        k contiguous, columns on 16-byte boundaries.
    offsets : cupy.ndarray of int32 or int64, shape (groups + 1,)
        Columns ``offsets[g]`` to ``offsets[g + 1]`` belong to group g.
    out : cupy.ndarray, shape (m, n)
        m contiguous, columns on 16-byte boundaries.
    epilogue : Fused
        Its vectors of rows are C-contiguous, with a row for each group: `row_scale` and `row_bias`
        (groups, m), or (groups, 2 m) if gated; `column_scale` (n,).  Has no `c`, `aux`,
        `column_bias` or `out_scale`.
    gated : bool
        The first half of the rows of each matrix is a gate: its activation multiplies the other.
    b_dtype, out_dtype : str, optional
        Logical types, where the arrays carry fp8 as bytes.
    fast_accumulation : bool
        fp8 only: see `sparse24.matmul`.
    config : Config, optional
        The tile; by default the one that `choose` takes.
    """
    types = types_of(
        a.dtype.name, b_dtype or b.dtype.name, out_dtype or out.dtype.name, offsets.dtype.name,
        epilogue, gated=gated, fast_accumulation=fast_accumulation,
    )  # fmt: skip
    bind(a, b, out, types, offsets.data.ptr, params_of(epilogue), config)(current_stream())


def types_of(
    dtype: str, b_dtype: str, out_dtype: str, offsets: str, epilogue: Fused, *, gated: bool,
    fast_accumulation: bool,
) -> Types:  # fmt: skip
    """What a kernel is compiled for that serves such operands and such an epilogue."""
    skeleton = _epilogue.skeleton(epilogue)
    return Types(dtype, b_dtype, out_dtype, offsets, skeleton, gated, fast_accumulation)


def tile_of(groups: int, rows: int, columns: int, types: Types) -> Config:
    """The tile that `multiply` takes on the current device."""
    return choose(groups, rows, columns, types, chip().multiprocessors)


def params_of(epilogue: Fused) -> bytes:
    """The parameters of an epilogue as the kernel takes them."""
    return _epilogue.params(epilogue).tobytes()


def bind(
    a: Compressed24, b: Any, out: Any, types: Types, offsets: int, params: bytes,
    config: Config | None = None,
) -> Launch:  # fmt: skip
    """The launch of `multiply` on the current device, for offsets at this address.

    Of `b` and `out` only the layouts and addresses count; `params` is that of `params_of`.
    """
    values, packed = a.values, a.packed
    groups, rows, stored = values.shape
    columns = b.shape[1]
    config = config or tile_of(groups, rows, columns, types)
    operands = Operands(  # type: ignore[call-arg]
        groups, rows, stored, columns, *packed.shape[-3:-1],
        values.data.ptr, values.strides[-2] if rows > 1 else _rounded(stored * values.itemsize, 16),
        values.strides[0], packed.data.ptr, packed.strides[-4],
        b.data.ptr, b.shape[0], _pitch(b), offsets, out.data.ptr, out.shape[0], _pitch(out), params,
    )  # fmt: skip
    return _launch(operands, types, config, values.device.id)


def _pitch(x: Any) -> int:
    """Bytes from one column to the next; of a single column, any that is legal."""
    return x.strides[1] if x.shape[1] > 1 else _rounded(x.shape[0] * x.itemsize, 16)


def _rounded(size: int, step: int) -> int:
    """Up to a multiple."""
    return -(-size // step) * step


class Operands(NamedTuple):
    """Sizes, and where everything lies: addresses, and pitches in bytes."""

    groups: int
    rows: int  # of A
    stored: int  # elements of a row of A
    columns: int
    atoms_k: int
    atoms_m: int
    values: int
    values_pitch: int
    values_group: int
    packed: int
    packed_group: int
    b: int
    k: int
    b_pitch: int
    offsets: int
    out: int
    m: int  # rows of the result
    out_pitch: int
    params: bytes


@functools.lru_cache(maxsize=REMEMBERED)
def _launch(of: Operands, types: Types, config: Config, device: int) -> Launch:
    """The launch for these operands; it keeps none of them alive."""
    arguments = (
        _values_maps(of, types, config), _b_map(of, types, config),
        np.array([of.packed], np.uint64), _out_view(of, types), _shape(of, types, config),
        _grouping(of, types, config), np.frombuffer(of.params, f"V{len(of.params)}"),
    )  # fmt: skip
    _, shared_memory = layout(config, types)
    kernel = loader.function(NAME, NAME, defines(config, types), shared_memory=shared_memory)
    grid = min(_most_tiles(of, types, config), chip(device).multiprocessors * config.blocks)
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
        *_epilogue.defines(types.epilogue), ("MOST_GROUPS", MOST_GROUPS),
    )  # fmt: skip


def _tile_m(types: Types, config: Config) -> int:
    """Rows of the result that a tile has."""
    return config.block_m // (2 if types.gated else 1)


def _tiles_m(of: Operands, types: Types, config: Config) -> int:
    return -(-of.m // _tile_m(types, config))


def _most_tiles(of: Operands, types: Types, config: Config) -> int:
    """Every group may have one tile that is not full."""
    tiles_n = of.columns // config.block_n + min(of.groups, of.columns)
    return _tiles_m(of, types, config) * tiles_n


def _tail(of: Operands, types: Types, config: Config) -> int:
    """Rows of A in a box of the last tile along m, as whole swizzled groups of eight."""
    tile = _tile_m(types, config)
    return _rounded(of.m % tile or tile, 8)


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


def _grouping(of: Operands, types: Types, config: Config) -> np.ndarray:
    tiles_m = _tiles_m(of, types, config)
    block = (of.offsets, of.groups, of.columns, tiles_m, plan.band(config))
    return loader.by_value(np.array([block], _GROUPING))


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
