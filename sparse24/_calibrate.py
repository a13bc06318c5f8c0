"""Fit the planner's cost model to the GPU at hand."""

from __future__ import annotations

import statistics

import numpy as np

from sparse24 import _autotune, _dispatch, _fuse, _planner, _product, _tuning_cache
from sparse24._records import PLAIN

COPY_BYTES = 1 << 29
# (m, k, n): weights of a 7B model with one token, few tokens and many.
SHAPES = ((4096, 4096, n) for n in (1, 8, 32, 128, 512, 2048))
DTYPE = "bfloat16"


def fit(device: int) -> dict[str, float]:
    """Copy bandwidth, and measured over predicted time of every kernel."""
    import cupy as cp

    from sparse24._compress import random

    bandwidth = copy_bandwidth()
    _tuning_cache.record_model(device, bandwidth=bandwidth, scales={})
    _planner.chip.cache_clear()
    ratios: dict[str, list[float]] = {}
    weight = random((4096, 4096), dtype=DTYPE, rng=0, device="cuda")
    for m, k, n in tuple(SHAPES):
        tokens = cp.random.standard_normal((n, k), np.float32).astype(weight.dtype)
        operand, b = weight._operand, tokens.T
        types = _product.Result.plan(operand, b, None, _fuse.PLAIN, (m, n))
        out = cp.empty((n, m), weight.dtype).T
        problem = _dispatch.problem_of(operand, b, out, PLAIN, types)
        times = _autotune.measure(operand, b, out, PLAIN, problem, device)
        predicted = {c.name: c for c in _planner.candidates(problem, device, dense=False)}
        for name, seconds in times.items():
            if name in predicted:
                kernel = predicted[name].kernel
                scale = _tuning_cache.scale(device, kernel)
                ratio = seconds / predicted[name].seconds * scale
                ratios.setdefault(kernel, []).append(ratio)
    fitted = {kernel: statistics.median(values) for kernel, values in ratios.items()}
    return {"bandwidth": bandwidth, **fitted}


def copy_bandwidth() -> float:
    """Bytes read and written a second by a device copy."""
    import cupy as cp

    source, target = cp.ones(COPY_BYTES // 4, np.float32), cp.empty(COPY_BYTES // 4, np.float32)
    seconds = _autotune.time_all({"copy": lambda: cp.copyto(target, source)})["copy"]
    return 2 * COPY_BYTES / seconds
