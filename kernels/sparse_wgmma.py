"""Launch ``cuda/sparse_wgmma.cu``: 2:4 products on the sparse tensor cores of Hopper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparse24._dtypes import numpy_dtype
from sparse24._records import PLAIN, Compressed24, Fused, Problem
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels import loader, tensor_map
from sparse24.kernels import sparse_wgmma_plan as plan
from sparse24.kernels.launch import Launch, Launcher, pointer
from sparse24.kernels.sparse_wgmma_configs import TABLE, Config, layout

NAME = "sparse_wgmma"
configs, predict = plan.configs, plan.predict

OUTPUTS = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float8_e4m3fn": ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"),
    "float8_e5m2": ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"),
    "int8": ("int32", "int8", "bfloat16", "float16", "float32"),
    "float32": ("float32",),
}

_TILING = np.dtype([("clusters_m", "i4"), ("tiles_n", "i4"), ("batch", "i4"), ("band", "i4")])
_OUT_VIEW = np.dtype([("data", "u8"), ("row", "i8"), ("column", "i8"), ("batch", "i8")])
_SHAPE = np.dtype(
    [
        ("m", "i4"), ("n", "i4"), ("atoms_m", "i4"), ("atoms_k", "i4"),
        ("a_batched", "i4"), ("b_batched", "i4"), ("a_tail", "i4"), ("b_tail", "i4"),
        ("packed_batch", "i8"),
    ]
)  # fmt: skip


# Stages of a settled A that are asked for before b may be read, by the most columns; beyond them
# it gains nothing (docs/benchmarks/log_few_tokens.rst, "Settled weights by 49 to 256 columns").
AHEAD = ((64, 4), (256, 2))


def stages_ahead(n: int) -> int:
    """Stages of a settled A that are asked for before b may be read, for n columns."""
    return next((stages for columns, stages in AHEAD if n <= columns), 0)


def refuses(problem: Problem) -> str | None:
    """Why this kernel cannot run `problem`, as a sentence; None if it can."""
    p = problem
    if p.compute_capability != 90:
        return f"wgmma needs compute capability 9.0, the device has {p.compute_capability}"
    if p.dtype not in OUTPUTS:
        return f"the kernel multiplies {', '.join(OUTPUTS)}, not {p.dtype}"
    if p.dtype == "float32" and not p.tensor_float:
        return "float32 keeps its precision; TF32 is for pattern 1:2, with precision='tf32'"
    if _family(p.dtype) != _family(p.b_dtype):
        return f"{p.dtype} and {p.b_dtype} cannot be multiplied by one instruction; convert b"
    if p.out_dtype not in OUTPUTS[p.dtype]:
        return f"{p.dtype} results are stored as {', '.join(OUTPUTS[p.dtype])}, not {p.out_dtype}"
    if 0 in (p.m, p.n, p.k, p.batch):
        return "an empty product needs no kernel"
    if p.b_order == "strided":
        return "neither axis of b is contiguous; copy it"
    if p.b_order == "row" and numpy_dtype(p.dtype).itemsize != 2:
        return f"{p.dtype} needs b with k contiguous; transpose its storage first"
    if not p.aligned:
        return "b does not start on, or advance by, multiples of 16 bytes; copy it"
    return None


def _family(dtype: str) -> str:
    return "float8" if dtype.startswith("float8") else dtype


def prepare(
    problem: Problem, config: Config, epilogue: Fused
) -> Callable[[Compressed24, Any, Any, Fused], None]:
    """Compile `config` for `problem` and return what launches it.

    The callable enqueues ``out = epilogue(a @ b)`` on CuPy's current stream and does
    not wait.  Its operands have the shapes and orders of `problem`; `epilogue` may
    have other numbers and arrays than the one given here, but the same parts.
    """
    return _Launcher(problem, config, epilogue)


def defines(
    problem: Problem, config: Config, epilogue: Fused, *, bulk: bool, pieces: int = 1
) -> loader.Defines:
    """The macros of one specialisation; `bulk`: the TMA writes the result."""
    itemsize = numpy_dtype(problem.dtype).itemsize
    stages = layout(config, itemsize, numpy_dtype(problem.out_dtype).itemsize, pieces).stages
    promotes = plan.promotes(problem)
    return (
        ("ELEMENT", problem.dtype), ("B_ELEMENT", problem.b_dtype), ("OUTPUT", problem.out_dtype),
        ("BLOCK_M", config.block_m), ("BLOCK_N", config.block_n),
        ("BLOCK_K", 128 * config.spans // itemsize), ("STAGES", stages),
        ("CONSUMERS", config.consumers), ("BLOCKS", config.blocks),
        ("CLUSTER", config.cluster), ("K_PARTS", config.parts),
        ("IN_FLIGHT", int(config.in_flight and not promotes and pieces == 1)),
        ("PROMOTE", int(promotes)), ("PIECES", pieces), ("PINGPONG", int(config.pingpong)),
        ("B_ROW_MAJOR", int(problem.b_order == "row")),
        ("OUT_ROW_MAJOR", int(problem.out_order != "column")),
        ("OUT_BULK", int(bulk)), ("STAGING", config.staging),
        *_epilogue.defines(epilogue),
    )  # fmt: skip


class _Launcher(Launcher):
    """A compiled specialisation."""

    pieces = 1  # sections of the operands along k

    def __init__(self, problem: Problem, config: Config, epilogue: Fused):
        from sparse24._arrays import cupy_module

        super().__init__()
        self.problem, self.config, self.epilogue = problem, config, epilogue
        self.itemsize = numpy_dtype(problem.dtype).itemsize
        self.out_itemsize = numpy_dtype(problem.out_dtype).itemsize
        sizes = self.itemsize, self.out_itemsize, self.pieces
        self.shared_memory = layout(config, *sizes).shared_memory
        self.block = (config.consumers + 1) * 128
        sms = cupy_module().cuda.Device().attributes["MultiProcessorCount"]
        self.tiling = loader.by_value(_tiling(problem, config))
        self.grid = _grid(problem, config, sms)
        self._ahead = stages_ahead(problem.n)
        self.reads_early = self._ahead > 0  # what is settled, while the kernel before it ends
        self._kernel(bulk=True)

    def _kernel(self, *, bulk: bool):
        problem, config, pieces = self.problem, self.config, self.pieces
        macros = defines(problem, config, self.epilogue, bulk=bulk, pieces=pieces)
        return loader.function(NAME, NAME, macros, shared_memory=self.shared_memory)

    def bind(self, a: Compressed24, b, out, stream: int) -> Launch:
        bulk = self._out_addressable(out)
        arguments: tuple[Any, ...] = (
            self._values_maps(a), self._b_maps(b),
            self._out_map(out) if bulk else tensor_map.empty(),
            pointer(a.packed), np.array([self._ahead if a.settled else 0], np.int32),
            _out_view(out), self._shape(a, b), self.tiling, _epilogue.NO_PARAMS,
        )  # fmt: skip
        kernel = self._kernel(bulk=bulk)
        sizes = (self.grid, self.block, self.shared_memory)
        return Launch(kernel, *sizes, arguments, early=True)

    def _shape(self, a: Compressed24, b) -> np.ndarray:
        p = self.problem
        atoms_k, atoms_m, _ = a.packed.shape[-3:]
        a_batched = int(a.values.ndim > 2 and a.values.shape[0] > 1)
        b_batched = int(b.ndim > 2 and b.shape[0] > 1)
        stride = a.packed.strides[-4] if a_batched else 0
        tails = self._a_tail(), self._b_tail()
        extents = (p.m, p.n, atoms_m, atoms_k, a_batched, b_batched, *tails, stride)
        return loader.by_value(np.array([extents], _SHAPE))

    def _values_maps(self, a: Compressed24) -> np.ndarray:
        values, size = a.values, self.itemsize
        columns = values.shape[-1]
        pitch = values.strides[-2] if self.problem.m > 1 else _rounded(columns * size, 16)
        batch = values.shape[0] if values.ndim > 2 else 1
        batch_pitch = values.strides[0] if batch > 1 else pitch * self.problem.m
        extents, inner = (columns, self.problem.m, batch), 64 * self.config.spans // size
        return tensor_map.several(
            tensor_map.tiled(values.data.ptr, extents, (pitch, batch_pitch), (inner, rows), size)
            for rows in (self.config.block_m, self._a_tail())
        )

    def _a_tail(self) -> int:
        """Rows of A that the last tile along m has, as whole swizzled groups of eight."""
        return _rounded(self.problem.m % self.config.block_m or self.config.block_m, 8)

    def _b_tail(self) -> int:
        """Columns of b that the last tile along n gets, as whole boxes."""
        tail = self.problem.n % self.config.block_n or self.config.block_n
        return _rounded(tail, 64 if self.problem.b_order == "row" else 8 * self.config.cluster)

    def _b_maps(self, b) -> np.ndarray:
        p, config, size = self.problem, self.config, self.itemsize
        if p.b_order == "row":
            box = (128 // size, 128 * config.spans // size // config.cluster)
            return tensor_map.several([_matrix_map(b, -1, -2, box, size)] * 2)
        return tensor_map.several(
            _matrix_map(b, -2, -1, (128 // size, columns // config.cluster), size)
            for columns in (config.block_n, self._b_tail())
        )

    def _out_map(self, out) -> np.ndarray:
        size = self.out_itemsize
        chunk = 32 if size == 4 else min(64, self.config.block_n)
        if self.problem.out_order == "column":
            return _matrix_map(out, -2, -1, (min(128 // size, 64), chunk), size)
        return _matrix_map(out, -1, -2, (chunk, 64), size)

    def _out_addressable(self, out) -> bool:
        inner, outer = (-2, -1) if self.problem.out_order == "column" else (-1, -2)
        if out.shape[inner] > 1 and out.strides[inner] != self.out_itemsize:
            return False
        return tensor_map.addressable(out.data.ptr, _outer_strides(out, inner, outer))


def _rounded(size: int, step: int) -> int:
    """Up to a multiple."""
    return -(-size // step) * step


def _outer_strides(x, inner: int, outer: int) -> tuple[int, int]:
    """Strides in bytes of the outer axis and of the batch; of an axis of one, any that is legal."""
    pitch = x.strides[outer] if x.shape[outer] > 1 else _rounded(x.shape[inner] * x.itemsize, 16)
    if x.ndim > 2 and x.shape[0] > 1:
        return pitch, x.strides[0]
    return pitch, _rounded(pitch * x.shape[outer], 16)


def _matrix_map(x, inner: int, outer: int, box: tuple[int, int], size: int) -> np.ndarray:
    batch = x.shape[0] if x.ndim > 2 else 1
    extents = (x.shape[inner], x.shape[outer], batch)
    return tensor_map.tiled(x.data.ptr, extents, _outer_strides(x, inner, outer), box, size)


def _out_view(out) -> np.ndarray:
    *batch, row, column = (stride // out.itemsize for stride in out.strides)
    view = (out.data.ptr, row, column, batch[0] if batch else 0)
    return loader.by_value(np.array([view], _OUT_VIEW))


def _tiling(problem: Problem, config: Config) -> np.ndarray:
    tiles_n = -(-problem.n // config.block_n)
    grid = (plan.clusters_m(problem, config), tiles_n, problem.batch, plan.band(config))
    return np.array([grid], _TILING)


def _grid(problem: Problem, config: Config, sms: int) -> int:
    """Blocks of a launch: persistent ones, unless the blocks of a cluster share each tile."""
    tiles = plan.tiles_of(problem, config)
    if config.parts > 1:
        return tiles * config.parts
    return min(tiles, sms * config.blocks) // config.cluster * config.cluster


def _compile_checks() -> list[tuple[loader.Defines, str, str]]:
    """Every type with the first tile and a wide one, every tile with bfloat16, and pieces."""

    def check(config: Config, dtype: str, b_dtype: str, out_dtype: str, instruction: str):
        orders = ("column", "row") if dtype == "float16" else ("row", "column")
        if numpy_dtype(dtype).itemsize != 2 or config.block_n == 32:
            orders = ("column", "column")
        problem = Problem(256, 256, 256, 1, dtype, b_dtype, out_dtype, *orders)
        return defines(problem, config, PLAIN, bulk=True), "sm_90a", instruction

    def of_pieces(order: str):
        problem = Problem(256, 256, 256, 1, "bfloat16", "bfloat16", "float32", order)
        macros = defines(problem, Config(128, 64, staging=1), PLAIN, bulk=True, pieces=3)
        return macros, "sm_90a", "HGMMA.SP.64x64x32.F32.BF16"

    types = {
        ("float16", "float16", "float16"): "HGMMA.SP.64x{}x32.F32",
        ("float8_e4m3fn", "float8_e5m2", "bfloat16"): "QGMMA.SP.64x{}x64.F32.E4M3.E5M2",
        ("int8", "int8", "int32"): "IGMMA.SP.64x{}x64.S8.S8",
        ("float32", "float32", "float32"): "HGMMA.SP.64x{}x16.F32.TF32",
    }
    wide = next(tile for tile in TABLE if tile.spans == 2 and tile.block_n == 64)
    return [
        *(
            check(tile, *names, instruction.format(tile.block_n))
            for tile in (TABLE[0], wide)
            for names, instruction in types.items()
        ),
        *(
            check(tile, *("bfloat16",) * 3, f"HGMMA.SP.64x{tile.block_n}x32.F32.BF16")
            for tile in TABLE
        ),
        *(of_pieces(order) for order in ("column", "row")),
    ]


COMPILE_CHECKS = _compile_checks()
