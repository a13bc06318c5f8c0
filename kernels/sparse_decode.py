"""Launcher of ``cuda/sparse_decode.cu``: the 2:4 product with the columns of a decoding step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sparse24._dtypes import OF_16_BITS, TABLE
from sparse24._records import PLAIN, Compressed24, Fused, Problem
from sparse24.kernels import epilogue as epilogues
from sparse24.kernels import loader, sparse_tile, tensor_map
from sparse24.kernels import sparse_decode_plan as plan
from sparse24.kernels.launch import Launch, Launcher, pointer
from sparse24.kernels.sparse_decode_plan import Config, widens

NAME = "sparse_decode"
configs, predict = plan.configs, plan.predict
DTYPES = ("float16", "bfloat16", "int8")  # those that mma.sp takes on every chip with a TMA
LINE = 128  # bytes of a row of A, or of a column of b, in a box of the TMA
ROWS_OF_B = 16, 32  # bytes of rows of b that are multiplied as they lie; of 64 they meet in banks


def refuses(problem: Problem) -> str | None:
    """Why the kernel cannot take a problem, or None."""
    p = problem
    reason = sparse_tile.refuses(plan.multiplied(p))
    if reason is not None:
        return reason
    if p.compute_capability < 90:
        return f"the TMA needs compute capability 9.0, the device has {p.compute_capability}"
    if p.dtype not in DTYPES and not widens(p):
        return f"the kernel multiplies {', '.join(DTYPES)}, not {p.dtype}"
    if p.n > plan.MOST_COLUMNS and not widens(p):
        return f"{NAME} is for n <= {plan.MOST_COLUMNS}, got {p.n}"
    if 0 in (p.m, p.n, p.k, p.batch):
        return "an empty product needs no kernel"
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
    macros = dict(sparse_tile.defines(plan.multiplied(p), config.tile, epilogue))
    macros |= {"B_ASYNC": 1, "OUT_ALIGNED": int(regular_out), "SUMS_AT": config.sums_at(p)}
    macros |= {"STORED": p.dtype, "MIXED": int(widens(p))}
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
        shape = sparse_tile.shape_block(a, b, out)
        maps = self._values_map(a.values), pointer(b) if self._config.by_rows else self._b_map(b)
        ahead = np.array([self._ahead if a.settled else 0], np.int32)
        others = pointer(a.packed), pointer(out), ahead, shape, epilogues.NO_PARAMS
        return Launch(*self._sizes, (*maps, *others), early=True)

    def _values_map(self, values) -> np.ndarray:
        return self._map(values, -1, -2, self._config.m)

    def _b_map(self, b) -> np.ndarray:
        return self._map(b, -2, -1, min(self._problem.n, self._config.n))

    def _map(self, x, inner: int, outer: int, lines: int) -> np.ndarray:
        """The map of a matrix, or a batch of them, by boxes of so many lines of 128 bytes."""
        itemsize = x.dtype.itemsize
        pitch, box = x.strides[outer], (LINE // itemsize, lines)
        if x.shape[outer] == 1:  # its stride may be anything
            pitch = -(-x.shape[inner] * itemsize // 16) * 16
        batch = x.shape[0] if x.ndim > 2 else 1
        apart = x.strides[0] if batch > 1 else pitch * x.shape[outer]
        extents = x.shape[inner], x.shape[outer], batch
        return tensor_map.tiled(x.data.ptr, extents, (pitch, apart), box, itemsize)


def _compile_checks():
    """Every tile with float16, and one for each number of columns with the other types."""
    for dtype, out, instruction in (
        ("float16", "float16", "HMMA.SP"), ("bfloat16", "float32", "HMMA.SP"),
        ("int8", "int32", "IMMA.SP"),
    ):  # fmt: skip
        yield from _checks_of(plan.TILES, dtype, dtype, out, instruction)
    for stored in plan.WIDENED:
        for dtype in OF_16_BITS:
            yield from _checks_of(plan.WIDENING_TILES, stored, dtype, dtype, "HMMA.SP")


def _checks_of(listed: tuple[plan.Tile, ...], stored: str, dtype: str, out: str, instruction: str):
    all_of_them = stored == "float16" or (stored, dtype) == ("int8", "float16")
    one_of_each = {tile[1]: tile for tile in listed}.values()
    for tile in listed if all_of_them else one_of_each:
        problem = Problem(4096, tile[1], 4096, 1, stored, dtype, out, "column", "column")
        yield defines(problem, plan.placed(tile, problem), PLAIN), "sm_90a", instruction
        rows = replace(problem, b_order="row")
        if _rows_fit(rows):
            yield defines(rows, plan.placed(tile, rows), PLAIN), "sm_90a", instruction


COMPILE_CHECKS = tuple(_compile_checks())
