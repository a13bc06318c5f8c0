"""Launch ``cuda/hybrid_wgmma.cu``: unstructured matrices on the sparse tensor cores of Hopper."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24 import _arrays
from sparse24._dtypes import DType
from sparse24._records import PLAIN
from sparse24.kernels import compress, hybrid_evict, loader, tensor_map
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels.hybrid_launch import matrix_map, rows_contiguous
from sparse24.kernels.launch import Launch, Launcher, pointer
from sparse24.kernels.sparse_wgmma_configs import SHARED_MEMORY

NAME = "hybrid_wgmma"
DTYPES = ("float16", "bfloat16")
LEAST_COLUMNS = 128
BLOCK_K = hybrid_evict.BLOCK
THREADS = 384
_TILING = np.dtype([(name, "i4") for name in (
    "clusters_m", "tiles_n", "batch", "band", "split_tiles", "range", "longer",
)])  # fmt: skip
_OUT_VIEW = np.dtype([("data", "u8"), ("row", "i8"), ("column", "i8"), ("batch", "i8")])
_OPERANDS = np.dtype(
    [
        ("packed", "u8"), ("sources", "u8"), ("strips", "u8"), ("b", "u8"),
        ("b_pitch", "i4"), ("m", "i4"), ("n", "i4"), ("k", "i4"),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Config:
    """One specialisation.

    Attributes
    ----------
    block_n : int
        Columns of a tile; its rows are those of a strip.
    parts : int
        Blocks of a cluster that share every tile along k.
    rate : float
        Speed relative to the first config, waves being full.
    """

    block_n: int
    parts: int = 1
    rate: float = 1.0

    @property
    def name(self) -> str:
        return f"128x{self.block_n}" + (f"k{self.parts}" if self.parts > 1 else "")

    @property
    def band(self) -> int:
        """Tiles along m that are walked together; see `sparse_wgmma_plan.band`."""
        return 22 if self.block_n == 256 else 15

    @property
    def staging(self) -> int:
        """Output buffers of a warpgroup."""
        return 2 if self.parts == 1 else 1

    def _bytes(self, stages: int) -> int:
        stage = hybrid_evict.ROWS * BLOCK_K + 2 * self.block_n * BLOCK_K
        metadata = -(-stages // 2) * 2048
        return stages * (stage + 16) + metadata + 2 * self.staging * 8192 + 8

    @property
    def stages(self) -> int:
        """As many as fit."""
        return max(s for s in range(1, 9) if self._bytes(s) <= SHARED_MEMORY[1])

    @property
    def shared_memory(self) -> int:
        return self._bytes(self.stages)


TABLE = (Config(256), Config(128, rate=0.7), Config(256, 2), Config(128, 2, rate=0.7))
# To choose among them: multiply-adds and gathered bytes a second, seconds of an exchange of sums.
MULTIPLY_ADDS, GATHERED, EXCHANGE = 5.5e14, 2.6e13, 5e-6

LOW_BAND = 8  # strips of about the same length, which all blocks then have at the same time
WORTH_WALKING = 1.02  # a less even deal that leaves the usual bands as they are
UNEVEN = 0.5  # blocks whose strips differ do not ask the L2 cache for the same rows of b at once


def _walk(strips: int, tiles_n: int, height: int) -> np.ndarray:
    """The strip of every tile in the order of ``TileScheduler::place``."""
    index = np.arange(strips * tiles_n)
    first = index // (height * tiles_n) * height
    return first + index % (height * tiles_n) % np.minimum(height, strips - first)


@dataclass(frozen=True, eq=False)
class Work:
    """How much there is to multiply.

    Attributes
    ----------
    lengths : ndarray of int, shape (strips,)
        Stages of every strip, the longest first.
    gathered : int
        Those of them that gather rows of b.
    """

    lengths: np.ndarray
    gathered: int

    @property
    def stages(self) -> int:
        return int(self.lengths.sum())

    def effort(self, config: Config, n: int) -> tuple[float, float]:
        """Multiply-adds and gathered bytes that the whole chip could do in the time it takes.

        More than there are, where tiles do not fill whole waves of blocks or strips differ.
        """
        sms = _multiprocessors()
        if config.parts == 1:
            busiest = self.deal(config, n)[1]
        else:  # the chip deals clusters to idle multiprocessors
            blocks = len(self.lengths) * -(-n // config.block_n) * config.parts
            waves = -(-blocks // sms)
            busiest = max(waves * self.lengths.mean(), self.lengths[0]) / config.parts
        busiest *= 1 + UNEVEN * (self.lengths[0] / self.lengths.mean() - 1)
        rows = busiest * sms * BLOCK_K * config.block_n / config.rate
        return hybrid_evict.ROWS * rows, 2 * rows * self.gathered / max(self.stages, 1)

    def deal(self, config: Config, n: int) -> tuple[int, int]:
        """The height of the bands in which tiles are walked, and the stages of the busiest block.

        Tile i goes to block i modulo the blocks.  The usual height divides those of an H200, so a
        block always meets the same strips; if they differ, lower bands are walked.
        """
        strips, tiles_n = len(self.lengths), -(-n // config.block_n)
        usual = min(config.band, strips)

        def busiest(height: int) -> int:
            strip = _walk(strips, tiles_n, height)
            blocks = np.arange(strip.size) % min(strip.size, _multiprocessors())
            return int(np.bincount(blocks, self.lengths[strip]).max())

        low = min(LOW_BAND, strips)
        plain, mixed = busiest(usual), busiest(low)
        return (usual, plain) if plain <= WORTH_WALKING * mixed else (low, mixed)

    def choose(self, n: int) -> Config:
        """The config that takes the least time."""

        def seconds(config: Config) -> float:
            multiply_adds, gathered = self.effort(config, n)
            exchange = EXCHANGE if config.parts > 1 else 0.0
            return multiply_adds / MULTIPLY_ADDS + gathered / GATHERED + exchange

        return min(TABLE, key=seconds)


class Layout:
    """A matrix as 2:4 strips with compressed values; arrays as in the kernel's header."""

    def __init__(self, shape, dtype: DType, values, packed, sources, table, work: Work):
        self.shape, self.dtype, self.work = shape, dtype, work
        self.values, self.packed, self.sources, self.table = values, packed, sources, table
        self.configs: dict[int, Config] = {}  # chosen, by the number of columns
        self.products: dict[tuple, Any] = {}

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self._arrays())

    def _arrays(self) -> tuple:
        return self.values, self.packed, self.sources, self.table

    @property
    def share(self) -> float:
        """Columns of the strips, relative to those of the matrix."""
        return self.work.stages * BLOCK_K / (len(self.work.lengths) * self.shape[1])

    def copy(self) -> Layout:
        """The same layout elsewhere in memory."""
        values, packed, sources, table = (x.copy() for x in self._arrays())
        return Layout(self.shape, self.dtype, values, packed, sources, table, self.work)


def refuses(dtype: DType, n: int, compute_capability: str) -> str | None:
    """Why this kernel cannot multiply, as a sentence; None if it can."""
    if compute_capability != "90":
        return f"wgmma needs compute capability 9.0, the device has {compute_capability}"
    if dtype.name not in DTYPES:
        return f"the kernel multiplies {', '.join(DTYPES)}, not {dtype.name}"
    if n < LEAST_COLUMNS:
        return f"below {LEAST_COLUMNS} columns the tiles would mostly be empty"
    return None


def survey(bits: Any) -> Work:
    """What a product with the matrix will cost; waits once."""
    made = hybrid_evict.plan(bits)
    return Work(made.lengths, made.gathered)


def prepare(bits: Any, dtype: DType) -> Layout:
    """Build from a CuPy matrix (m, k) of uint16 whose rows are contiguous; waits once."""
    strips = hybrid_evict.prepare(bits)
    record, _ = compress.launch(strips.dense.view(dtype.logical), dtype, rule="check")
    work = Work(strips.lengths, strips.gathered)
    arrays = record.values, record.packed, strips.sources, strips.table
    return Layout(bits.shape, dtype, *arrays, work)


def product(layout: Layout, b: Any, out: Any, config: Config | None = None) -> None:
    """out = A @ b, for CuPy matrices (k, n) and (m, n) of any strides, without waiting."""
    b, n = rows_contiguous(b), b.shape[1]
    if config is None:
        config = layout.configs.get(n)
        if config is None:
            config = layout.configs[n] = layout.work.choose(n)
    column = out.strides[0] == 2 != out.strides[1] and out.shape[0] > 1
    key = (n, column, config)
    found: Any = layout.products.get(key)
    if found is None:
        found = layout.products[key] = _Product(layout, *key)
    found(layout, b, out, PLAIN)


@functools.cache
def _multiprocessors() -> int:
    return _arrays.cupy_module().cuda.Device().attributes["MultiProcessorCount"]


def defines(name: str, config: Config, *, column: bool, bulk: bool) -> loader.Defines:
    """The macros of one specialisation; `bulk`: the TMA writes the result."""
    return (
        ("ELEMENT", name), ("OUTPUT", name), ("BLOCK_N", config.block_n),
        ("STAGES", config.stages), ("K_PARTS", config.parts), ("OUT_ROW_MAJOR", int(not column)),
        ("OUT_BULK", int(bulk)), ("STAGING", config.staging),
    )  # fmt: skip


class _Product(Launcher):
    """A compiled specialisation for a layout and a number of columns."""

    def __init__(self, layout: Layout, n: int, column: bool, config: Config):
        super().__init__()
        self.n, self.column, self.config = n, column, config
        strips, tiles_n = len(layout.work.lengths), -(-n // config.block_n)
        band = layout.work.deal(config, n)[0] if config.parts == 1 else config.band
        tiling = (strips, tiles_n, 1, band, 0, 0, 0)
        self.tiling = loader.by_value(np.array([tiling], _TILING))
        blocks = strips * tiles_n * config.parts
        self.grid = blocks if config.parts > 1 else min(blocks, _multiprocessors())

    def bind(self, a: Any, b: Any, out: Any, stream: int) -> Launch:
        inner, outer = (0, 1) if self.column else (1, 0)
        bulk = out.strides[inner] == 2 and tensor_map.addressable(
            out.data.ptr, (out.strides[outer],)
        )
        macros = defines(a.dtype.name, self.config, column=self.column, bulk=bulk)
        size = self.config.shared_memory
        kernel = loader.function(NAME, NAME, macros, shared_memory=size)
        atoms = a.values.shape[0]
        values = tensor_map.tiled(
            a.values.data.ptr, (BLOCK_K, hybrid_evict.ROWS, atoms), a.values.strides[1::-1],
            (BLOCK_K // 2, hybrid_evict.ROWS), 2,
        )  # fmt: skip
        view = (out.data.ptr, out.strides[0] // 2, out.strides[1] // 2, 0)
        arguments = (
            values, matrix_map(b, 1, 0, (64, BLOCK_K)),
            matrix_map(out, inner, outer, (64, 64)) if bulk else tensor_map.empty(),
            loader.by_value(np.array([view], _OUT_VIEW)), _operands(a, b), self.tiling,
            _epilogue.NO_PARAMS,
        )  # fmt: skip
        return Launch(kernel, self.grid, THREADS, size, arguments, early=True)


def _operands(a: Layout, b: Any) -> np.ndarray:
    addresses = (pointer(x)[0] for x in (a.packed, a.sources, a.table, b))
    record = (*addresses, b.strides[0], a.shape[0], b.shape[1], b.shape[0])
    return loader.by_value(np.array([record], _OPERANDS))


COMPILE_CHECKS = [
    (defines(name, config, column=column, bulk=bulk), "sm_90a", f"HGMMA.SP.64x{config.block_n}x32")
    for name, config, column, bulk in (
        *(("bfloat16", config, False, True) for config in TABLE),
        ("float16", TABLE[0], True, False),
    )
]
