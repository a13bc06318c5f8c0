"""Launcher of `cuda/sparse_fma.cu`: the product that takes every type, shape and stride."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sparse24 import _dtypes
from sparse24._records import Compressed24, Fused, Problem
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels import loader

NAME = "sparse_fma"
TILE_M, TILE_K = 64, 32
LANES = 32
THREADS = 256
BLOCKS = 2  # that live on a multiprocessor; one if sums have 8 bytes
MAX_GRID_Y = MAX_GRID_Z = 65535  # CUDA C++ Programming Guide, compute capabilities

# Multiply-adds a clock and multiprocessor that the kernel sustains, by columns of a lane.  Every
# group of a row costs about eleven instructions beside its two multiply-adds a column.
SUSTAINED_FMA_PER_CLOCK = {2: 28, 4: 45}
SUSTAINED_DOUBLE = 16

COMPILE_CHECKS = [
    (
        (
            *(("ELEMENT", t), ("B_ELEMENT", t), ("OUTPUT", out)),
            *(("B_ROW_MAJOR", 1), ("COLUMNS", columns), ("EPILOGUE", 0), ("ACTIVATION", 0)),
        ),
        arch,
        instruction,
    )
    for t, out, columns, instruction in (
        ("float32", "float32", 4, "FFMA"),
        ("float64", "float64", 2, "DFMA"),
        ("float16", "float16", 2, "FFMA"),
        ("int8", "int32", 4, "IMAD"),
        ("float8_e4m3fn", "bfloat16", 4, "FFMA"),
    )
    for arch in ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")
]


@dataclass(frozen=True, slots=True)
class Config:
    """One specialisation: how many columns of the result a lane makes."""

    columns: int

    @property
    def tile_n(self) -> int:
        return LANES * self.columns

    @property
    def name(self) -> str:
        return f"{TILE_M}x{self.tile_n}x{TILE_K}"


NARROW, WIDE = Config(2), Config(4)


def refuses(problem: Problem) -> str | None:
    """Why the kernel cannot take a problem, or None."""
    if -(-problem.n // NARROW.tile_n) > MAX_GRID_Y:
        return f"n = {problem.n} exceeds {MAX_GRID_Y * NARROW.tile_n} columns"
    return None


def configs(problem: Problem) -> list[Config]:
    """The wide tile first where there are columns for it."""
    if problem.dtype == "float64" or problem.n <= NARROW.tile_n:
        return [NARROW]
    return [WIDE, NARROW]


def predict(problem: Problem, config: Config, chip: dict) -> float:
    """Seconds: a launch of 3 µs, and waves of tiles at the sustained multiply-add rate."""
    double = _dtypes.TABLE[problem.dtype].accumulator.itemsize == 8
    tiles = -(-problem.m // TILE_M) * -(-problem.n // config.tile_n) * problem.batch
    waves = -(-tiles // (BLOCKS * chip["sms"]))
    fma = BLOCKS * TILE_M * config.tile_n * problem.k / 2
    rate = SUSTAINED_DOUBLE if double else SUSTAINED_FMA_PER_CLOCK[config.columns]
    return 3e-6 + waves * fma / (rate * chip["clock_hz"])


def prepare(
    problem: Problem, config: Config, epilogue: Fused
) -> Callable[[Compressed24, object, object, Fused], None]:
    """Compile for this problem; the callable launches on the current stream."""
    defines = (
        ("ELEMENT", problem.dtype),
        ("B_ELEMENT", problem.b_dtype),
        ("OUTPUT", problem.out_dtype),
        ("B_ROW_MAJOR", int(problem.b_order != "column")),
        ("COLUMNS", config.columns),
        *_epilogue.defines(epilogue),
    )
    kernel = loader.function(NAME, NAME, defines)
    grid = (-(-problem.m // TILE_M), -(-problem.n // config.tile_n), min(problem.batch, MAX_GRID_Z))
    sizes = tuple(np.int32(x) for x in (problem.m, problem.n, problem.k, problem.batch))

    def launch(a: Compressed24, b, out, epilogue: Fused) -> None:
        values, packed = a.values, a.packed
        arguments = (
            values, _pitch(values, -2), _batch_stride(values, 3),
            packed, _batch_stride(packed, 4),
            b, _pitch(b, -2), _pitch(b, -1), _batch_stride(b, 3),
            out, _pitch(out, -2), _pitch(out, -1), _batch_stride(out, 3),
            *sizes, _epilogue.params(epilogue),
        )  # fmt: skip
        kernel(grid, (THREADS,), arguments)

    return launch


def _pitch(x, axis: int) -> int:
    return x.strides[axis] // x.dtype.itemsize


def _batch_stride(x, ndim: int) -> int:
    """Elements between products; 0 where one operand serves the whole batch."""
    return x.strides[0] // x.dtype.itemsize if x.ndim == ndim and x.shape[0] > 1 else 0
