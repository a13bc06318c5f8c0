"""Launcher of ``cuda/sparse_quantised.cu``: products with quantised 2:4 matrices, few columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sparse24._dtypes import OF_16_BITS, TABLE
from sparse24._records import PLAIN, Compressed24, Fused, Problem
from sparse24.kernels import bricks, loader, sparse_tile, tensor_map
from sparse24.kernels import epilogue as epilogues
from sparse24.kernels import sparse_quantised_plan as plan
from sparse24.kernels.launch import Launch, Launcher, pointer
from sparse24.kernels.sparse_quantised_plan import Config

NAME = "sparse_quantised"
configs, predict = plan.configs, plan.predict
LINE = 128  # bytes of a column of b in a box of the TMA
ROWS_OF_B = 16, 32  # bytes of rows of b that are multiplied as they lie; of 64 they meet in banks


def refuses(problem: Problem) -> str | None:
    """Why the kernel cannot take a problem, or None."""
    p = problem
    if not p.quantised:
        return "A is not quantised"
    if p.compute_capability < 90:
        return f"the TMA needs compute capability 9.0, the device has {p.compute_capability}"
    if p.dtype != p.b_dtype or p.b_dtype not in OF_16_BITS:
        return f"the kernel multiplies by {', '.join(OF_16_BITS)}, not by {p.b_dtype} as {p.dtype}"
    if 0 in (p.m, p.n, p.k, p.batch):
        return "an empty product needs no kernel"
    if p.a_batched:
        return "the kernel multiplies by one matrix"
    if not (p.aligned or p.b_aligned) or not (p.b_order == "column" or _rows_fit(p)):
        return "b needs columns that are contiguous and begin on 16 bytes; copy it"
    if not plan.fitting(p):
        return f"shared memory has no room for {plan.LEAST_STAGES} stages of {p.n} columns"
    return None


def _rows_fit(problem: Problem) -> bool:
    """Whether the rows of b have the columns of a tile, and follow one another."""
    row = problem.n * TABLE[problem.b_dtype].itemsize
    return problem.b_order == "row" and problem.b_packed and row in ROWS_OF_B


def prepare(problem: Problem, config: Config, epilogue: Fused) -> Callable:
    """Compile, and return the callable ``(a, b, out, epilogue)`` that only launches."""
    return _Launcher(problem, config, epilogue)


def defines(problem: Problem, config: Config, epilogue: Fused) -> loader.Defines:
    """The macros of one specialisation."""
    p = problem
    regular_out = (p.aligned or p.out_aligned) and p.out_order != "strided"
    macros = dict(sparse_tile.defines(p, config.tile, epilogue))
    macros |= {"B_ASYNC": 1, "OUT_ALIGNED": int(regular_out), "SUMS_AT": config.sums_at(p)}
    macros |= {"BITS": p.quantised}
    return tuple(macros.items())


class _Launcher(Launcher):
    """A compiled specialisation."""

    reads_early = True  # what is settled, while the kernel before it ends

    def __init__(self, problem: Problem, config: Config, epilogue: Fused):
        from sparse24._arrays import cupy_module

        super().__init__()
        self._problem, self._config = problem, config
        self._ahead = plan.stages_ahead(problem, config)
        size = config.shared_memory(problem)
        kernel = loader.function(NAME, NAME, defines(problem, config, epilogue), shared_memory=size)
        sms = cupy_module().cuda.Device().attributes["MultiProcessorCount"]
        grid = min(plan.tiles(problem, config), sms * config.blocks)
        self._sizes = kernel, grid, config.threads, size

    def bind(self, a: Compressed24, b, out, stream: int) -> Launch:
        shape = sparse_tile.shape_block(a, b, out)  # of A only its m and k count
        dense = pointer(b) if self._config.by_rows else self._b_map(b)
        ahead = np.array([self._ahead if a.settled else 0], np.int32)
        others = pointer(out), ahead, shape, epilogues.NO_PARAMS
        return Launch(*self._sizes, (pointer(a.values), dense, *others), early=True)

    def _b_map(self, b) -> np.ndarray:
        """The map of b, or a batch of them, by boxes of columns of 128 bytes."""
        item, columns = b.dtype.itemsize, b.shape[-1]
        pitch, box = b.strides[-1], (LINE // item, min(columns, self._config.n))
        if columns == 1:  # its stride may be anything
            pitch = -(-b.shape[-2] * item // 16) * 16
        batch = b.shape[0] if b.ndim > 2 else 1
        apart = b.strides[0] if batch > 1 else pitch * columns
        return tensor_map.tiled(
            b.data.ptr, (b.shape[-2], columns, batch), (pitch, apart), box, item
        )


def _compile_checks():
    """Every tile with bfloat16 and 4 bits, and one of each kind and width with the others."""
    one_of_each = {(tile.n, tile.wgmma): tile for tile in plan.TILES}.values()
    for bits in bricks.BITS:
        for dtype in OF_16_BITS:
            for tile in plan.TILES if (bits, dtype) == (4, "bfloat16") else one_of_each:
                yield from _checks_of(tile, bits, dtype)


def _checks_of(tile: plan.Tile, bits: int, dtype: str):
    p = Problem(4096, tile.n, 4096, 1, dtype, dtype, dtype, "column", "column", quantised=bits)
    for order in ("column", "row"):
        ordered = replace(p, b_order=order)
        config = plan.placed(tile, ordered)
        if config.stages >= plan.LEAST_STAGES and (order == "column" or _rows_fit(ordered)):
            instruction = "HGMMA.SP" if tile.wgmma else "HMMA.SP"
            yield defines(ordered, config, PLAIN), "sm_90a", instruction


COMPILE_CHECKS = tuple(_compile_checks())
