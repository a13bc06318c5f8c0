"""Launch ``cuda/sparse_mixed.cu``: A of 8 bits, or quantised, and b of 16 bits, on Hopper."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sparse24._dtypes import OF_16_BITS, numpy_dtype
from sparse24._records import PLAIN, Compressed24, Fused, Problem
from sparse24.kernels import bricks, loader, sparse_quantised, sparse_wgmma, tensor_map
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels import sparse_mixed_plan as plan
from sparse24.kernels.launch import Launcher
from sparse24.kernels.sparse_decode_plan import WIDENED, multiplied, widens
from sparse24.kernels.sparse_wgmma_configs import Config

NAME = "sparse_mixed"
configs, predict = plan.configs, plan.predict
UNIT = 64  # bytes of a row of A in a box: those of a slice
NOT_WIDENED = f"it multiplies {', '.join(WIDENED)} with types of 16 bits, not {{}}"


def refuses(problem: Problem) -> str | None:
    """Why this kernel cannot run `problem`, as a sentence; None if it can."""
    return refuses_types(problem) or sparse_wgmma.refuses(multiplied(problem))


def refuses_types(problem: Problem) -> str | None:
    """Why A is not widened to the type of b, as a sentence, or None."""
    if problem.quantised:
        return sparse_quantised.refuses_types(problem)
    return None if widens(problem) else NOT_WIDENED.format(problem.dtype)


def prepare(
    problem: Problem, config: Config, epilogue: Fused
) -> Callable[[Compressed24, Any, Any, Fused], None]:
    """Compile `config` for `problem` and return what launches it, as `sparse_wgmma.prepare`."""
    return _Launcher(problem, config, epilogue)


def defines(problem: Problem, config: Config, epilogue: Fused, *, bulk: bool) -> loader.Defines:
    """The macros of one specialisation; `bulk`: the TMA writes the result."""
    stages = plan.layout_of(problem, config).stages
    return (
        ("STORED", problem.dtype), ("BITS", problem.quantised),
        ("ELEMENT", problem.b_dtype), ("B_ELEMENT", problem.b_dtype),
        ("OUTPUT", problem.out_dtype), ("BLOCK_M", config.block_m), ("BLOCK_N", config.block_n),
        ("BLOCK_K", plan.BLOCK_K), ("STAGES", stages), ("CONSUMERS", config.consumers),
        ("BLOCKS", config.blocks), ("CLUSTER", config.cluster), ("K_PARTS", config.parts),
        ("PIECES", 1), ("B_ROW_MAJOR", int(problem.b_order == "row")),
        ("OUT_ROW_MAJOR", int(problem.out_order != "column")),
        ("OUT_BULK", int(bulk)), ("STAGING", config.staging),
        *_epilogue.defines(epilogue),
    )  # fmt: skip


class _Launcher(sparse_wgmma._Launcher):
    """A compiled specialisation, which takes b and the result as that of 16 bits does."""

    def __init__(self, problem: Problem, config: Config, epilogue: Fused):
        from sparse24._arrays import cupy_module

        Launcher.__init__(self)
        self.problem, self.config, self.epilogue = problem, config, epilogue
        self.itemsize = numpy_dtype(problem.b_dtype).itemsize
        self.out_itemsize = numpy_dtype(problem.out_dtype).itemsize
        self.shared_memory = plan.layout_of(problem, config).shared_memory
        self.block = (config.consumers + 1) * 128
        sms = cupy_module().cuda.Device().attributes["MultiProcessorCount"]
        self.tiling = loader.by_value(sparse_wgmma._tiling(problem, config))
        self.grid = sparse_wgmma._grid(problem, config, sms)
        self._ahead = sparse_wgmma.stages_ahead(problem.n)
        self.reads_early = self._ahead > 0
        self._kernel(bulk=True)

    def _kernel(self, *, bulk: bool):
        macros = defines(self.problem, self.config, self.epilogue, bulk=bulk)
        return loader.function(NAME, NAME, macros, shared_memory=self.shared_memory)

    def _shape(self, a: Compressed24, b) -> np.ndarray:
        if not self.problem.quantised:
            return super()._shape(a, b)
        p, (*stack, blocks, atoms, _) = self.problem, a.values.shape
        a_batched = int(math.prod(stack) > 1)
        stride = a.values.strides[0] if a_batched else 0
        b_batched, tail = int(b.ndim > 2 and b.shape[0] > 1), self._b_tail()
        extents = (p.m, p.n, blocks, atoms, a_batched, b_batched, p.m, tail, stride)
        return loader.by_value(np.array([extents], sparse_wgmma._SHAPE))

    def _values_maps(self, a: Compressed24) -> np.ndarray:
        if self.problem.quantised:
            return tensor_map.several([tensor_map.empty()] * 2)
        values, m = a.values, self.problem.m
        pitch, batch_pitch = sparse_wgmma._outer_strides(values, -1, -2)
        extents = (values.shape[-1], m, values.shape[0] if values.ndim > 2 else 1)
        return tensor_map.several(
            tensor_map.tiled(values.data.ptr, extents, (pitch, batch_pitch), (UNIT, rows), 1)
            for rows in (self.config.block_m, self._a_tail())
        )


def _compile_checks() -> list[tuple[loader.Defines, str, str]]:
    """Every tile with int8 and bfloat16, and some with each pair of types, order and bits."""

    def check(config: Config, stored: str, dtype: str, order: str = "column", bits: int = 0):
        problem = Problem(256, 256, 256, 1, stored, dtype, dtype, order, "column", quantised=bits)
        name = {"float16": "F32", "bfloat16": "F32.BF16"}[dtype]
        macros = defines(problem, config, PLAIN, bulk=True)
        return macros, "sm_90a", f"HGMMA.SP.64x{config.block_n}x32.{name}"

    whole = [config for config in plan.TABLE if config.parts == 1]
    by_rows = [config for config in whole if config.block_n >= plan.LEAST_BY_ROWS]
    pairs = [(stored, dtype) for stored in WIDENED for dtype in OF_16_BITS]
    return [
        *(check(config, "int8", "bfloat16") for config in plan.TABLE),
        *(check(whole[0], *pair) for pair in pairs),
        *(check(config, "float8_e4m3fn", "bfloat16", "row") for config in by_rows),
        *(check(c, d, d, bits=bits) for c in whole for d in OF_16_BITS for bits in bricks.BITS),
        *(check(c, "bfloat16", "bfloat16", bits=4) for c in plan.TABLE if c.parts > 1),
    ]


COMPILE_CHECKS = _compile_checks()
