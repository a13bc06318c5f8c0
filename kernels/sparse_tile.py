"""Host side of ``cuda/include/sparse_tile.cuh``, shared by the launchers of the tiled products."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparse24._dtypes import TABLE
from sparse24._records import Compressed24, Problem
from sparse24.kernels import epilogue as epilogues
from sparse24.kernels import loader
from sparse24.kernels.launch import Launch, Launcher, pointer

SHAPE = np.dtype(
    [
        ("m", "i4"), ("n", "i4"), ("k", "i4"), ("values_per_row", "i4"),
        ("meta_atoms_m", "i4"), ("batch", "i4"),
        ("a_pitch", "i8"), ("a_batch", "i8"), ("meta_batch", "i8"),
        ("b_row", "i8"), ("b_column", "i8"), ("b_batch", "i8"),
        ("out_row", "i8"), ("out_column", "i8"), ("out_batch", "i8"),
    ]
)  # fmt: skip
DTYPES = ("float16", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
# KiB of shared memory of a block by compute capability, else 99: CUDA C++ Programming Guide.
SHARED_MEMORY = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 103: 227}


@dataclass(frozen=True, slots=True)
class TileConfig:
    """One specialisation of the tile.

    Attributes
    ----------
    m, n, k : int
        Tile of a block, and the K extent of one pipeline stage (a multiple of 128).
    warps : tuple of int
        Warps along M, n and K.
    stages : int
        Depth of the ring of asynchronous copies.
    split : int
        Blocks that share one tile, each with a part of K.
    blocks : int
        Blocks that are meant to run on one multiprocessor at a time.
    wgmma : bool
        Multiply by warpgroup instructions of sm_90a, four warps along M to 64 rows.
    """

    m: int
    n: int
    k: int
    warps: tuple[int, int, int]
    stages: int
    split: int = 1
    blocks: int = 1
    wgmma: bool = False

    @property
    def name(self) -> str:
        warps = "x".join(map(str, self.warps))
        kind = "g" if self.wgmma else "w"
        return f"{self.m}x{self.n}x{self.k}_{kind}{warps}_s{self.stages}_p{self.split}"

    @property
    def threads(self) -> int:
        return 32 * self.warps[0] * self.warps[1] * self.warps[2]

    def stage_bytes(self, itemsize: int) -> int:
        """Shared memory of a stage: A and b, of elements of so many bytes, and metadata."""
        return (self.m * self.k // 2 + self.n * self.k) * itemsize + self.m * self.k // 8

    def shared_memory(self, itemsize: int) -> int:
        """Bytes of the ring, or of the partial sums that take its place at the end."""
        pitch = self.n + 8
        return max(self.stages * self.stage_bytes(itemsize), self.warps[2] * self.m * pitch * 4)

    def suits(self, problem: Problem) -> bool:
        """Whether this specialisation can be compiled for the problem's types and chip."""
        itemsize = TABLE[problem.dtype].itemsize
        if self.wgmma:
            bytes_in_rows = itemsize == 1 and problem.b_order == "row"
            if problem.compute_capability != 90 or bytes_in_rows:
                return False
        columns = self.n // self.warps[1]
        needed = 16 if itemsize == 1 and not b_in_columns(problem) else 8
        room = SHARED_MEMORY.get(problem.compute_capability, 99) << 10
        return columns % needed == 0 and self.shared_memory(itemsize) <= room


def refuses(problem: Problem) -> str | None:
    """Why the tiled products cannot take a problem, or None."""
    pair = (problem.dtype, problem.b_dtype)
    if problem.dtype not in DTYPES:
        return f"the sparse tensor cores have no {problem.dtype} at 2:4"
    if pair[0] != pair[1] and not (pair[0] in FLOAT8 and pair[1] in FLOAT8):
        return f"operands of {pair[0]} and {pair[1]} cannot be mixed; convert one of them"
    if problem.compute_capability < 80:
        return f"mma.sp needs compute capability 8.0, the device has {problem.compute_capability}"
    if pair[0] in FLOAT8 and problem.compute_capability < 89:
        return "float8 mma.sp needs compute capability 8.9"
    return None


def emulates(problem: Problem) -> bool:
    """Whether ``mma.sp`` of float8 becomes products of float16 on this chip."""
    return problem.dtype in FLOAT8 and problem.compute_capability in (90, 100, 103)


def b_in_columns(problem: Problem) -> bool:
    """Whether the staged tile of b has K contiguous (else n)."""
    return problem.b_order != "row"


def defines(problem: Problem, config: TileConfig, epilogue) -> tuple[tuple[str, object], ...]:
    """The macros of one specialisation."""
    tile_m, tile_n, tile_k = config.m, config.n, config.k
    regular_b = problem.aligned and problem.b_order != "strided"
    regular_out = problem.aligned and problem.out_order != "strided"
    return (
        ("ELEMENT", problem.dtype), ("B_ELEMENT", problem.b_dtype), ("OUTPUT", problem.out_dtype),
        ("TILE_M", tile_m), ("TILE_N", tile_n), ("TILE_K", tile_k),
        ("WARPS_M", config.warps[0]), ("WARPS_N", config.warps[1]), ("WARPS_K", config.warps[2]),
        ("STAGES", config.stages), ("SPLIT", config.split), ("BLOCKS", config.blocks),
        ("WGMMA", int(config.wgmma)), ("PROMOTE", int(config.wgmma and problem.dtype in FLOAT8)),
        ("B_COLUMN", int(b_in_columns(problem))), ("B_ASYNC", int(regular_b)),
        ("OUT_COLUMN", int(problem.out_order == "column")), ("OUT_ALIGNED", int(regular_out)),
        *epilogues.defines(epilogue),
    )  # fmt: skip


def _batch_stride(array, batch: int, trailing: int) -> int:
    """Bytes from one product to the next; 0 where one operand serves all."""
    return array.strides[0] if array.ndim > trailing and array.shape[0] == batch > 1 else 0


def shape_block(a: Compressed24, b, out) -> np.ndarray:
    """The `Shape` argument: extents and strides, passed by value."""
    batch = out.shape[0] if out.ndim == 3 else 1
    item = b.dtype.itemsize
    block = np.zeros(1, SHAPE)
    block["m"], block["n"], block["k"], block["batch"] = a.m, out.shape[-1], a.k, batch
    block["values_per_row"] = a.values.shape[-1]
    block["meta_atoms_m"] = a.packed.shape[-2]
    block["a_pitch"] = a.values.strides[-2]
    block["a_batch"] = _batch_stride(a.values, batch, 2)
    block["meta_batch"] = _batch_stride(a.packed, batch, 3)
    block["b_row"], block["b_column"] = b.strides[-2] // item, b.strides[-1] // item
    block["b_batch"] = _batch_stride(b, batch, 2) // item
    item = out.dtype.itemsize
    block["out_row"], block["out_column"] = out.strides[-2] // item, out.strides[-1] // item
    block["out_batch"] = _batch_stride(out, batch, 2) // item
    return loader.by_value(block)


class Shapes:
    """Argument blocks by the strides of the arrays: building one costs more than a launch."""

    def __init__(self):
        self._blocks: dict[tuple, np.ndarray] = {}

    def __call__(self, a: Compressed24, b, out) -> np.ndarray:
        key = (a.values.strides, a.values.shape, b.strides, out.strides, out.shape, a.shape)
        block = self._blocks.get(key)
        if block is None:
            if len(self._blocks) >= 64:  # a stream of ever new strides must not fill the memory
                self._blocks = {}
            block = self._blocks[key] = shape_block(a, b, out)
        return block


class TileLauncher(Launcher):
    """Launches a kernel whose arguments are values, codes, b, out, `Shape` and epilogue."""

    def __init__(self, kernel, grid: int, block: int, shared_memory: int, *, early: bool):
        super().__init__()
        self._sizes, self._early = (kernel, grid, block, shared_memory), early

    def bind(self, a: Compressed24, b, out, stream: int) -> Launch:
        operands = (pointer(a.values), pointer(a.packed), pointer(b), pointer(out))
        arguments = (*operands, shape_block(a, b, out), epilogues.NO_PARAMS)
        return Launch(*self._sizes, arguments, early=self._early)


def tiles(problem: Problem, config: TileConfig) -> int:
    """Blocks of one launch."""
    per_product = -(-problem.m // config.m) * -(-problem.n // config.n)
    return per_product * problem.batch * config.split


def bytes_moved(problem: Problem) -> int:
    """Bytes that a product must move at least once."""
    item = TABLE[problem.dtype].itemsize
    products = problem.batch if problem.a_batched else 1
    a_bytes = products * problem.m * problem.k * (item / 2 + 1 / 8)
    b_bytes = (problem.batch if problem.b_batched else 1) * problem.k * problem.n * item
    out_item = 4 if problem.out_dtype == "int32" else TABLE[problem.out_dtype].itemsize
    return int(a_bytes + b_bytes + problem.batch * problem.m * problem.n * out_item)
