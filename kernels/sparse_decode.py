"""Launcher of ``cuda/sparse_decode.cu``: the 2:4 product with the few columns of a decoding step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sparse24._dtypes import TABLE
from sparse24._records import PLAIN, Compressed24, Fused, Problem
from sparse24.kernels import epilogue as epilogues
from sparse24.kernels import loader, sparse_tile, tensor_map
from sparse24.kernels.launch import Launch, Launcher, pointer
from sparse24.kernels.sparse_tile import TileConfig

NAME = "sparse_decode"
DTYPES = ("float16", "bfloat16", "int8")  # those that mma.sp takes on every chip with a TMA
MOST_COLUMNS = 16
RESIDENT = 2  # blocks for which a multiprocessor has room
LINE = 128  # bytes of a row, or rows of b with n contiguous, in a box of the TMA


@dataclass(frozen=True, slots=True)
class Config:
    """One specialisation, and how many of its blocks a launch has.

    Attributes
    ----------
    m, n, k : int
        Tile of a block, and the K extent of a stage.
    warps : int
        Those that share the K atoms of a stage.
    stages : int
        Of the ring.
    blocks : int
        Of a launch, for each multiprocessor.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    blocks: int

    @property
    def name(self) -> str:
        return f"{self.m}x{self.n}x{self.k}_w{self.warps}_s{self.stages}_b{self.blocks}"

    @property
    def tile(self) -> TileConfig:
        warps = 1, 1, self.warps
        return TileConfig(self.m, self.n, self.k, warps, self.stages, blocks=RESIDENT)

    @property
    def threads(self) -> int:
        return 32 * (self.warps + 1)

    def sums_at(self, itemsize: int) -> int:
        """Where sums lie in shared memory: behind the stages."""
        return self.stages * self.tile.stage_bytes(itemsize)

    def shared_memory(self, itemsize: int) -> int:
        """Bytes of stages, sums and barriers."""
        return self.sums_at(itemsize) + self.warps * self.m * (self.n + 8) * 4 + 16 * self.stages


# K of a stage is in 16-bit elements; 8-bit types take twice as many.
_CONFIGS = (
    Config(32, 8, 512, 4, 4, 1),
    Config(32, 8, 512, 4, 4, 2),
    Config(16, 8, 512, 4, 6, 1),
    Config(16, 8, 512, 4, 6, 2),
    Config(32, 16, 256, 2, 6, 1),
    Config(32, 16, 256, 2, 6, 2),
    Config(64, 16, 256, 2, 3, 2),
)


def refuses(problem: Problem) -> str | None:
    """Why the kernel cannot take a problem, or None."""
    p = problem
    reason = sparse_tile.refuses(p)
    if reason is not None:
        return reason
    if p.compute_capability < 90:
        return f"the TMA needs compute capability 9.0, the device has {p.compute_capability}"
    if p.dtype not in DTYPES:
        return f"the kernel multiplies {', '.join(DTYPES)}, not {p.dtype}"
    if p.n > MOST_COLUMNS:
        return f"{NAME} is for n <= {MOST_COLUMNS}, got {p.n}"
    if 0 in (p.m, p.n, p.k, p.batch):
        return "an empty product needs no kernel"
    if p.b_order == "strided" or not (p.aligned or p.b_aligned):
        return "b has no contiguous axis whose lines begin on 16 bytes; copy it"
    if p.b_order == "row" and TABLE[p.dtype].itemsize == 1:
        return f"{p.dtype} needs b with k contiguous; transpose its storage first"
    return None


def configs(problem: Problem) -> list[Config]:
    """Candidates, best guess first."""
    itemsize = TABLE[problem.dtype].itemsize
    room = sparse_tile.SHARED_MEMORY.get(problem.compute_capability, 99) << 10
    each = (room + 1024) // RESIDENT - 1024  # a block has 1024 bytes beside its own
    wide = 8 if problem.n <= 8 else 16
    found = [
        config
        for config in (replace(c, k=c.k * 2 // itemsize) for c in _CONFIGS if c.n == wide)
        if config.shared_memory(itemsize) <= each
    ]
    chip = {"sms": 132, "bandwidth": 4.2e12}
    return sorted(found, key=lambda config: predict(problem, config, chip))


def tiles(problem: Problem, config: Config) -> int:
    """Of the result."""
    return -(-problem.m // config.m) * -(-problem.n // config.n) * problem.batch


def predict(problem: Problem, config: Config, chip: dict) -> float:
    """Seconds: a launch, and the longer of memory's time and that of a multiprocessor."""
    return 2e-6 + sparse_tile.bytes_moved(problem) / chip["bandwidth"]


def prepare(problem: Problem, config: Config, epilogue: Fused) -> Callable:
    """Compile, and return the callable ``(a, b, out, epilogue)`` that only launches."""
    return _Launcher(problem, config, epilogue)


def defines(problem: Problem, config: Config, epilogue: Fused) -> loader.Defines:
    """The macros of one specialisation."""
    p = problem
    regular_out = (p.aligned or p.out_aligned) and p.out_order != "strided"
    macros = dict(sparse_tile.defines(p, config.tile, epilogue))
    macros |= {"B_ASYNC": 1, "OUT_ALIGNED": int(regular_out)}
    macros["SUMS_AT"] = config.sums_at(TABLE[p.dtype].itemsize)
    return tuple(macros.items())


class _Launcher(Launcher):
    """A compiled specialisation."""

    def __init__(self, problem: Problem, config: Config, epilogue: Fused):
        from sparse24._arrays import cupy_module

        super().__init__()
        self._problem, self._config = problem, config
        self._itemsize = TABLE[problem.dtype].itemsize
        size = config.shared_memory(self._itemsize)
        kernel = loader.function(NAME, NAME, defines(problem, config, epilogue), shared_memory=size)
        sms = cupy_module().cuda.Device().attributes["MultiProcessorCount"]
        grid = min(tiles(problem, config), sms * config.blocks)
        self._sizes = kernel, grid, config.threads, size

    def bind(self, a: Compressed24, b, out, stream: int) -> Launch:
        shape = sparse_tile.shape_block(a, b, out)
        maps = self._values_map(a.values), self._b_map(b)
        pointers = pointer(a.packed), pointer(out)
        return Launch(*self._sizes, (*maps, *pointers, shape, epilogues.NO_PARAMS), early=True)

    def _values_map(self, values) -> np.ndarray:
        return self._map(values, -1, -2, (LINE // self._itemsize, self._config.m))

    def _b_map(self, b) -> np.ndarray:
        columns = self._config.n
        if self._problem.b_order == "row":
            return self._map(b, -1, -2, (columns, LINE))
        return self._map(b, -2, -1, (LINE // self._itemsize, min(columns, self._problem.n)))

    def _map(self, x, inner: int, outer: int, box: tuple[int, int]) -> np.ndarray:
        """The map of a matrix, or a batch of them; an axis of one may have any stride."""
        pitch = x.strides[outer]
        if x.shape[outer] == 1:
            pitch = -(-x.shape[inner] * self._itemsize // 16) * 16
        batch = x.shape[0] if x.ndim > 2 else 1
        apart = x.strides[0] if batch > 1 else pitch * x.shape[outer]
        extents = x.shape[inner], x.shape[outer], batch
        return tensor_map.tiled(x.data.ptr, extents, (pitch, apart), box, self._itemsize)


def _compile_checks():
    for config in _CONFIGS:
        for dtype, out, order in (
            ("float16", "float16", "column"), ("bfloat16", "float32", "row"),
            ("int8", "int32", "column"),
        ):  # fmt: skip
            scaled = replace(config, k=config.k * 2 // TABLE[dtype].itemsize)
            problem = Problem(4096, config.n, 4096, 1, dtype, dtype, out, order, "column")
            instruction = "IMMA.SP" if dtype == "int8" else "HMMA.SP"
            yield defines(problem, scaled, PLAIN), "sm_90a", instruction


COMPILE_CHECKS = tuple(_compile_checks())
