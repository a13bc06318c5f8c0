"""Launcher of ``cuda/sparse_quantised.cu``: products with quantised 2:4 matrices, few columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sparse24._dtypes import OF_16_BITS
from sparse24._records import PLAIN, Compressed24, Fused, Problem
from sparse24._views import View
from sparse24.kernels import bricks, decode_launch, loader, sparse_tile
from sparse24.kernels import sparse_quantised_plan as plan
from sparse24.kernels.decode_launch import DecodeLauncher, rows_fit
from sparse24.kernels.decode_tiles import LEAST_STAGES, Tile
from sparse24.kernels.launch import pointer
from sparse24.kernels.sparse_quantised_plan import Config

NAME = "sparse_quantised"
configs, predict = plan.configs, plan.predict


def refuses(problem: Problem) -> str | None:
    """Why the kernel cannot take a problem, or None."""
    reason = refuses_types(problem) or decode_launch.refuses(problem)
    if reason is not None:
        return reason
    return None if plan.fitting(problem) else decode_launch.no_room(problem)


def refuses_types(problem: Problem) -> str | None:
    """Why products of bricks cannot take the types of a problem, or None."""
    p = problem
    if not p.quantised:
        return "A is not quantised"
    if p.dtype != p.b_dtype or p.b_dtype not in OF_16_BITS:
        return f"the kernel multiplies by {', '.join(OF_16_BITS)}, not by {p.b_dtype} as {p.dtype}"
    return None


def prepare(problem: Problem, config: Config, epilogue: Fused) -> Callable:
    """Compile, and return the callable ``(a, b, out, epilogue)`` that only launches."""
    return _Launcher(problem, config, epilogue)


def defines(problem: Problem, config: Config, epilogue: Fused) -> loader.Defines:
    """The macros of one specialisation."""
    macros = decode_launch.defines(problem, config, epilogue, config.sums_at(problem))
    return tuple((macros | {"BITS": problem.quantised}).items())


class _Launcher(DecodeLauncher):
    """Launches with the address of bricks."""

    def __init__(self, problem: Problem, config: Config, epilogue: Fused):
        macros, ahead = defines(problem, config, epilogue), plan.stages_ahead(problem, config)
        super().__init__(NAME, macros, problem, config, ahead)

    def arguments_of(self, a: Compressed24) -> tuple:
        return (pointer(a.values),)

    def shape(self, a: Compressed24, b, out):
        return sparse_tile.shape_block(by_blocks(a), b, out)


def by_blocks(a: Compressed24) -> Compressed24:
    """The record with the bricks of 16 rows as a row of bytes, as which a launch addresses them."""
    *lead, atoms, size = a.values.shape
    shape, strides = (*lead, atoms * size), (*a.values.strides[:-2], 1)
    return replace(a, values=View.of(a.values.data.ptr, shape, strides, np.uint8))


def _compile_checks():
    """Every tile with bfloat16 and 4 bits, and one of each kind and width with the others."""
    one_of_each = {(tile.n, tile.wgmma): tile for tile in plan.TILES}.values()
    for bits in bricks.BITS:
        for dtype in OF_16_BITS:
            for tile in plan.TILES if (bits, dtype) == (4, "bfloat16") else one_of_each:
                yield from _checks_of(tile, bits, dtype)


def _checks_of(tile: Tile, bits: int, dtype: str):
    p = Problem(4096, tile.n, 4096, 1, dtype, dtype, dtype, "column", "column", quantised=bits)
    for order in ("column", "row"):
        ordered = replace(p, b_order=order)
        config = plan.placed(tile, ordered)
        if config.stages >= LEAST_STAGES and (order == "column" or rows_fit(ordered)):
            instruction = "HGMMA.SP" if tile.wgmma else "HMMA.SP"
            yield defines(ordered, config, PLAIN), "sm_90a", instruction


COMPILE_CHECKS = tuple(_compile_checks())
