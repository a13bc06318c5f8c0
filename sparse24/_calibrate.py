"""Fit the planner's cost model to the GPU at hand."""

from __future__ import annotations

import dataclasses
import statistics

import numpy as np

from sparse24 import _autotune, _dispatch, _fuse, _planner, _product, _tuning_cache
from sparse24._records import PLAIN

COPY_BYTES = 1 << 29
# Weights (m, k) and tokens: of a 7B model with one token, few and many.
CASES = (
    ("bfloat16", (4096, 4096), (1, 8, 32, 128, 512, 2048)),
    ("bfloat16", (4096, 14336), (1, 32, 256)),
    ("float32", (4096, 4096), (1, 8, 512)),
)
MOST_CONFIGS = 2  # of a kernel


def fit(device: int) -> dict[str, float]:
    """Copy bandwidth, and measured over predicted time of every kernel."""
    import cupy as cp

    from sparse24._compress import random

    bandwidth = copy_bandwidth()
    _tuning_cache.record_model(device, bandwidth=bandwidth, scales={})
    _planner.chip.cache_clear()
    ratios: dict[str, list[float]] = {}
    for dtype, (m, k), counts in CASES:
        weight = random((m, k), dtype=dtype, rng=0, device="cuda")
        operand = dataclasses.replace(weight._operand, dense=weight.toarray())
        for n in counts:
            tokens = cp.random.standard_normal((n, k), np.float32).astype(weight.dtype)
            for kernel, ratio in _ratios(operand, tokens, device):
                ratios.setdefault(kernel, []).append(ratio)
    fitted = {kernel: statistics.median(values) for kernel, values in ratios.items()}
    return {"bandwidth": bandwidth, **fitted}


def _ratios(operand, tokens, device: int):
    """Kernel, and measured over predicted time, of its likeliest configurations."""
    import cupy as cp

    shape = (operand.shape[-2], tokens.shape[0])
    b, out = tokens.T, cp.empty(shape[::-1], tokens.dtype).T
    types = _product.Result.plan(operand, b, None, _fuse.PLAIN, shape)
    problem = _dispatch.problem_of(operand, b, out, PLAIN, types)
    times = _autotune.measure(operand, b, out, PLAIN, problem, device, most=MOST_CONFIGS)
    for candidate in _planner.candidates(problem, device, dense=True):
        if candidate.name in times:
            scale = _tuning_cache.scale(device, candidate.kernel)
            yield candidate.kernel, times[candidate.name] / candidate.seconds * scale


def copy_bandwidth() -> float:
    """Bytes read and written a second by a device copy."""
    import cupy as cp

    source, target = cp.ones(COPY_BYTES // 4, np.float32), cp.empty(COPY_BYTES // 4, np.float32)
    seconds = _autotune.time_all({"copy": lambda: cp.copyto(target, source)})["copy"]
    return 2 * COPY_BYTES / seconds
