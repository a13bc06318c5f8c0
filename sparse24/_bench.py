"""``python -m sparse24 bench``: a quick look at the product on this machine."""

from __future__ import annotations

import numpy as np

import sparse24 as s24
from sparse24 import _arrays, _demo, _dtypes, _timing
from sparse24._table import duration, sides, table

CPU_SHAPES = ((2048, 2048, 2048), (2048, 2048, 64), (4096, 4096, 1))
GPU_SHAPES = ((8192, 8192, 8192), (4096, 4096, 4096), (4096, 4096, 64), (8192, 8192, 1))


def run(shapes: list[tuple[int, int, int]] | None, *, device: str, dtype: str | None) -> None:
    """Time 2:4 and dense products and print a row for each shape (m, k, n)."""
    device = _demo.choose_device(device)
    wanted = _dtypes.lookup(dtype or ("float32" if device == "cpu" else "float16"))
    rows = []
    for shape in shapes or (CPU_SHAPES if device == "cpu" else GPU_SHAPES):
        dense, ours, kernel = measure(shape, device, wanted)
        flops = 2 * shape[0] * shape[1] * shape[2]
        rows.append([
            sides(shape), duration(dense), duration(ours), f"{dense / ours:.2f}x",
            f"{flops / ours / 1e12:.3g}", kernel,
        ])  # fmt: skip
    print(f"{wanted.name} on {_demo.device_in_words(device)}; rates count the zeros\n")
    print(table(["m×k×n", "dense", "2:4", "speed-up", "Tflop/s", "kernel"], rows))


def measure(shape: tuple[int, int, int], device: str, dtype: _dtypes.DType):
    """Seconds of the dense product, of ours, and the kernel's name."""
    m, k, n = shape
    for pair in ((m, k), (k, n), (m, n)):
        _demo.check_size(*pair)
    xp = np if device == "cpu" else _arrays.cupy_module()
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((m, k), np.float32).astype(dtype.logical)
    array = s24.compress(weight, on_excess="prune")
    array = array if device == "cpu" else array.to_device(device)
    weight = xp.asarray(weight)
    x = xp.asarray(rng.standard_normal((k, n), np.float32).astype(dtype.logical))
    out = xp.empty((m, n), dtype.logical)
    calls = [lambda: xp.matmul(weight, x, out=out), lambda: s24.matmul(array, x, out)]
    dense, ours = _timing.seconds_each(calls, on_gpu=device != "cpu")
    return dense, ours, s24.explain(array, x).chosen
