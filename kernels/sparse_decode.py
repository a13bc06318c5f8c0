"""Launcher of ``cuda/sparse_decode.cu``: the 2:4 product with the columns of a decoding step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sparse24._dtypes import OF_16_BITS
from sparse24._records import PLAIN, Compressed24, Fused, Problem
from sparse24.kernels import decode_launch, loader, sparse_tile
from sparse24.kernels import sparse_decode_plan as plan
from sparse24.kernels.decode_launch import DecodeLauncher, boxes, rows_fit
from sparse24.kernels.decode_tiles import Tile
from sparse24.kernels.launch import pointer
from sparse24.kernels.sparse_decode_plan import Config, widens

NAME = "sparse_decode"
configs, predict = plan.configs, plan.predict
DTYPES = ("float16", "bfloat16", "int8")  # those that mma.sp takes on every chip with a TMA


def refuses(problem: Problem) -> str | None:
    """Why the kernel cannot take a problem, or None."""
    p = problem
    reason = sparse_tile.refuses(plan.multiplied(p)) or decode_launch.refuses(p)
    if reason is not None:
        return reason
    if p.dtype not in DTYPES and not widens(p):
        return f"the kernel multiplies {', '.join(DTYPES)}, not {p.dtype}"
    if p.n > plan.MOST_COLUMNS and not widens(p):
        return f"{NAME} is for n <= {plan.MOST_COLUMNS}, got {p.n}"
    return None if plan.fitting(p) else decode_launch.no_room(p)


def prepare(problem: Problem, config: Config, epilogue: Fused) -> Callable:
    """Compile, and return the callable ``(a, b, out, epilogue)`` that only launches."""
    return _Launcher(problem, config, epilogue)


def defines(problem: Problem, config: Config, epilogue: Fused) -> loader.Defines:
    """The macros of one specialisation."""
    sums_at = config.sums_at(problem)
    macros = decode_launch.defines(plan.multiplied(problem), config, epilogue, sums_at)
    macros |= {"STORED": problem.dtype, "MIXED": int(widens(problem))}
    return tuple(macros.items())


class _Launcher(DecodeLauncher):
    """Launches with the values of A by boxes, and its codes."""

    def __init__(self, problem: Problem, config: Config, epilogue: Fused):
        macros, ahead = defines(problem, config, epilogue), plan.stages_ahead(problem, config)
        super().__init__(NAME, macros, problem, config, ahead)

    def arguments_of(self, a: Compressed24) -> tuple:
        return boxes(a.values, -1, -2, self._config.m), pointer(a.packed)


def _compile_checks():
    """Every tile with float16, and one of each kind and width with the other types."""
    for dtype, out, instruction in (
        ("float16", "float16", "HMMA.SP"), ("bfloat16", "float32", "HMMA.SP"),
        ("int8", "int32", "IMMA.SP"),
    ):  # fmt: skip
        yield from _checks_of(plan.TILES, dtype, dtype, out, instruction)
    for stored in plan.WIDENED:
        for dtype in OF_16_BITS:
            yield from _checks_of(plan.WIDENING_TILES, stored, dtype, dtype, "HMMA.SP")


def _checks_of(listed: tuple[Tile, ...], stored: str, dtype: str, out: str, instruction: str):
    all_of_them = stored == "float16" or (stored, dtype) == ("int8", "float16")
    one_of_each = {(tile.n, tile.wgmma): tile for tile in listed}.values()
    for tile in listed if all_of_them else one_of_each:
        problem = Problem(4096, tile.n, 4096, 1, stored, dtype, out, "column", "column")
        executed = "HGMMA.SP" if tile.wgmma else instruction
        yield defines(problem, plan.placed(tile, problem), PLAIN), "sm_90a", executed
        rows = replace(problem, b_order="row")
        if rows_fit(rows):
            yield defines(rows, plan.placed(tile, rows), PLAIN), "sm_90a", instruction


COMPILE_CHECKS = tuple(_compile_checks())
