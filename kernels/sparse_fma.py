"""Launcher of `cuda/sparse_fma.cu`: the product that takes every type, shape and stride."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sparse24 import _dtypes
from sparse24._records import Compressed24, Epilogue, Problem
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels import loader

NAME = "sparse_fma"
TILE_M, TILE_N = 64, 64
THREADS = 256
MAX_GRID_Y = MAX_GRID_Z = 65535

# Multiply-adds a second and multiprocessor that the kernel sustains, by accumulator size:
# four of them wait for one 16-byte read of shared memory, a quarter of the FP32 rate.
SUSTAINED_FMA_PER_CLOCK = {4: 32, 8: 16}

COMPILE_CHECKS = [
    (
        (
            *(("ELEMENT", t), ("B_ELEMENT", t), ("OUTPUT", out)),
            *(("B_ROW_MAJOR", 1), ("EPILOGUE", 0), ("ACTIVATION", 0)),
        ),
        arch,
        instruction,
    )
    for t, out, instruction in (
        ("float32", "float32", "FFMA"),
        ("float64", "float64", "DFMA"),
        ("float16", "float16", "FFMA"),
        ("int8", "int32", "IMAD"),
        ("float8_e4m3fn", "bfloat16", "FFMA"),
    )
    for arch in ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")
]


@dataclass(frozen=True)
class Config:
    """There is one configuration."""

    name: str = "64x64x32"


def refuses(problem: Problem) -> str | None:
    if -(-problem.n // TILE_N) > MAX_GRID_Y:
        return f"n = {problem.n} exceeds {MAX_GRID_Y * TILE_N} columns"
    return None


def configs(problem: Problem) -> list[Config]:
    return [Config()]


def predict(problem: Problem, config: Config, chip: dict) -> float:
    """Seconds: whole tiles at the sustained multiply-add rate."""
    tiles = -(-problem.m // TILE_M) * -(-problem.n // TILE_N) * problem.batch
    waves = -(-tiles // (4 * chip["sms"]))  # four blocks live on a multiprocessor
    accumulator = _dtypes.TABLE[problem.dtype].accumulator.itemsize
    fma = 4 * TILE_M * TILE_N * problem.k / 2
    return 3e-6 + waves * fma / (SUSTAINED_FMA_PER_CLOCK[accumulator] * chip["clock_hz"])


def prepare(
    problem: Problem, config: Config, epilogue: Epilogue
) -> Callable[[Compressed24, object, object, Epilogue], None]:
    """Compile for this problem; the callable launches on the current stream."""
    defines = (
        ("ELEMENT", problem.dtype),
        ("B_ELEMENT", problem.b_dtype),
        ("OUTPUT", problem.out_dtype),
        ("B_ROW_MAJOR", int(problem.b_order != "column")),
        *_epilogue.defines(epilogue),
    )
    kernel = loader.function(NAME, NAME, defines)
    grid = (-(-problem.m // TILE_M), -(-problem.n // TILE_N), min(problem.batch, MAX_GRID_Z))
    sizes = tuple(np.int32(x) for x in (problem.m, problem.n, problem.k, problem.batch))

    def launch(a: Compressed24, b, out, epilogue: Epilogue) -> None:
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
