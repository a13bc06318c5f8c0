"""What the launchers of ``cuda/include/decode_producer.cuh`` share: their b, and arguments."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from sparse24._dtypes import TABLE
from sparse24._records import Compressed24, Fused, Problem
from sparse24.kernels import decode_tiles, loader, sparse_tile, tensor_map
from sparse24.kernels import epilogue as epilogues
from sparse24.kernels.decode_tiles import Config
from sparse24.kernels.launch import Launch, Launcher, pointer

LINE = 128  # bytes of a row of A, or of a column of b, in a box of the TMA
ROWS_OF_B = 16, 32  # bytes of rows of b that are multiplied as they lie; of 64 they meet in banks


def refuses(problem: Problem) -> str | None:
    """Why no kernel of a decoding step can take a problem, or None."""
    p = problem
    if 0 in (p.m, p.n, p.k, p.batch):
        return "an empty product needs no kernel"
    if not (p.aligned or p.b_aligned) or not (p.b_order == "column" or rows_fit(p)):
        return "b needs columns that are contiguous and begin on 16 bytes; copy it"
    return refuses_chip(p)


def refuses_chip(problem: Problem) -> str | None:
    """Why the device cannot run such a kernel, or None."""
    capability = problem.compute_capability
    if capability < 90:
        return f"the TMA needs compute capability 9.0, the device has {capability}"
    return None


def no_room(problem: Problem) -> str:
    """Why a kernel cannot take a problem for which no tile is fitting."""
    least = decode_tiles.LEAST_STAGES
    return f"shared memory has no room for {least} stages of {problem.n} columns"


def rows_fit(problem: Problem) -> bool:
    """Whether the rows of b have the columns of a tile, and follow one another."""
    row = problem.n * TABLE[problem.b_dtype].itemsize
    return problem.b_order == "row" and problem.b_packed and row in ROWS_OF_B


def defines(problem: Problem, config: Config, epilogue: Fused, sums_at: int) -> dict[str, Any]:
    """The macros that all of these kernels have."""
    p = problem
    regular_out = (p.aligned or p.out_aligned) and p.out_order != "strided"
    macros = dict(sparse_tile.defines(p, config.tile, epilogue))
    return macros | {"B_ASYNC": 1, "OUT_ALIGNED": int(regular_out), "SUMS_AT": sums_at}


class DecodeLauncher(Launcher):
    """A compiled specialisation; of a settled A, `ahead` stages are asked for before b."""

    reads_early = True  # what is settled, while the kernel before it ends

    def __init__(
        self, name: str, macros: loader.Defines, problem: Problem, config: Config, ahead: int
    ):
        from sparse24._arrays import cupy_module

        super().__init__()
        self._config, self._ahead = config, ahead
        self._columns = min(problem.n, config.n)
        size = config.shared_memory(problem)
        kernel = loader.function(name, name, macros, shared_memory=size)
        sms = cupy_module().cuda.Device().attributes["MultiProcessorCount"]
        grid = min(decode_tiles.tiles(problem, config), sms * config.blocks)
        self._sizes = kernel, grid, config.threads, size

    @abstractmethod
    def arguments_of(self, a: Compressed24) -> tuple:
        """The arguments that tell where A lies."""

    def shape(self, a: Compressed24, b, out) -> np.ndarray:
        """The `Shape` argument."""
        return sparse_tile.shape_block(a, b, out)

    def bind(self, a: Compressed24, b, out, stream: int) -> Launch:
        dense = pointer(b) if self._config.by_rows else boxes(b, -2, -1, self._columns)
        ahead = np.array([self._ahead if a.settled else 0], np.int32)
        others = dense, pointer(out), ahead, self.shape(a, b, out), epilogues.NO_PARAMS
        return Launch(*self._sizes, (*self.arguments_of(a), *others), early=True)


def boxes(x, inner: int, outer: int, lines: int) -> np.ndarray:
    """The map of a matrix, or a batch of them, by boxes of so many lines of 128 bytes."""
    itemsize = x.dtype.itemsize
    pitch, box = x.strides[outer], (LINE // itemsize, lines)
    if x.shape[outer] == 1:  # its stride may be anything
        pitch = -(-x.shape[inner] * itemsize // 16) * 16
    batch = x.shape[0] if x.ndim > 2 else 1
    apart = x.strides[0] if batch > 1 else pitch * x.shape[outer]
    extents = x.shape[inner], x.shape[outer], batch
    return tensor_map.tiled(x.data.ptr, extents, (pitch, apart), box, itemsize)
