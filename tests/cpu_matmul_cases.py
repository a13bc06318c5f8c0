"""Operands and results of the CPU products, and the kernels that make them."""

from __future__ import annotations

import numpy as np

from sparse24 import _dtypes
from sparse24.kernels import cpu_compress, cpu_matmul, reference

PRODUCTS = [cpu_matmul.matmul, cpu_matmul.decompress_matmul]


def operands(rng, m, k, n, name, lead_a=(), lead_b=()):
    dtype = _dtypes.TABLE[name].logical
    if name == "int8":
        a = rng.integers(-128, 128, (*lead_a, m, k)).astype(dtype)
        b = rng.integers(-128, 128, (*lead_b, k, n)).astype(dtype)
    else:
        a = rng.standard_normal((*lead_a, m, k)).astype(dtype)
        b = rng.standard_normal((*lead_b, k, n)).astype(dtype)
    a = reference.prune(a)
    values, metadata, _ = cpu_compress.compress(a, "check")
    return a, values, metadata, b


def result_like(shape, name):
    out = np.empty(shape, _dtypes.numpy_dtype(_dtypes.TABLE[name].result))
    out.view(np.uint8 if out.dtype.itemsize == 1 else f"u{out.dtype.itemsize}")[...] = 77
    return out
