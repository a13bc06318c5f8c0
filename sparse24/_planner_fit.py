"""Fit the planner's cost model to the GPU at hand."""

from __future__ import annotations

import dataclasses
import statistics

import numpy as np

from sparse24 import _autotune, _dispatch, _planner, _tuning_cache
from sparse24._options import NO_OPTIONS
from sparse24._records import PLAIN
from sparse24._target import Result

COPY_BYTES = 1 << 29
# Weights (m, k) and tokens: of a 7B model with one token, few and many.
CASES = (
    ("bfloat16", (4096, 4096), (1, 8, 32, 128, 512, 2048)),
    ("bfloat16", (4096, 14336), (1, 32, 256)),
    ("float32", (4096, 4096), (1, 8, 128, 1024)),
)
# For kernels that no prediction brings within reach of the fastest one above.
SLOW_CASE = "float32", (4096, 4096), 128
MOST_CONFIGS = 2  # of a kernel


def fit(device: int) -> dict[str, float]:
    """Copy bandwidth, and measured over predicted time of every kernel."""
    bandwidth = copy_bandwidth()
    _tuning_cache.record_model(device, bandwidth=bandwidth, scales={})
    ratios: dict[str, list[float]] = {}
    for dtype, shape, counts in CASES:
        operand = _operand(dtype, shape)
        for n in counts:
            _add_ratios(ratios, operand, n, device)
    dtype, shape, n = SLOW_CASE
    for kernel in (*_planner.SPARSE_KERNELS, _planner.DENSE_KERNEL):
        if kernel not in ratios:
            _add_ratios(ratios, _operand(dtype, shape), n, device, kernel)
    fitted = {kernel: statistics.median(values) for kernel, values in ratios.items()}
    return {"bandwidth": bandwidth, **fitted}


def _operand(dtype: str, shape: tuple[int, int]):
    """A random sparse matrix, with the dense one beside it."""
    from sparse24._make import random

    weight = random(shape, dtype=dtype, rng=0, device="cuda")
    return dataclasses.replace(weight._operand, dense=weight.toarray())


def _add_ratios(ratios: dict, operand, n: int, device: int, *kernels: str) -> None:
    """Add measured over predicted times of the likeliest configurations of each kernel."""
    import cupy as cp

    dtype = operand.dtype.logical
    tokens = cp.random.standard_normal((n, operand.shape[-1]), np.float32).astype(dtype)
    shape = (operand.shape[-2], tokens.shape[0])
    b, out = tokens.T, cp.empty(shape[::-1], tokens.dtype).T
    types = Result.of(operand, b, None, NO_OPTIONS, shape)
    problem = _dispatch.problem_of(operand, b, out, PLAIN, types)
    times = _autotune.measure(
        operand, b, out, PLAIN, problem, device, most=MOST_CONFIGS, kernels=kernels
    )
    for candidate in _planner.candidates(problem, device, dense=True):
        if candidate.name in times:
            ratio = times[candidate.name] / candidate.seconds
            ratio *= _tuning_cache.scale(device, candidate.kernel)
            ratios.setdefault(candidate.kernel, []).append(ratio)


def copy_bandwidth() -> float:
    """Bytes read and written a second by a device copy."""
    import cupy as cp

    source, target = cp.ones(COPY_BYTES // 4, np.float32), cp.empty(COPY_BYTES // 4, np.float32)
    seconds = _autotune.time_all({"copy": [lambda: cp.copyto(target, source)]})["copy"]
    return 2 * COPY_BYTES / seconds
