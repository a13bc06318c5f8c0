"""Problems, operands and judgement shared by the tests of the Hopper kernel."""

from __future__ import annotations

import dataclasses

import numpy as np

from sparse24 import _arrays, _dtypes
from sparse24._records import PLAIN, Compressed24, Problem
from sparse24.kernels import reference, sparse_wgmma, sparse_wgmma_configs, sparse_wgmma_plan

DEFAULT = sparse_wgmma_configs.TABLE[0]


def make_problem(m=256, n=256, k=512, dtype="bfloat16", **changes):
    default = Problem(m, n, k, 1, dtype, dtype, _dtypes.TABLE[dtype].result, "column", "row")
    return dataclasses.replace(default, **changes)


def random_matrix(rng, shape, name, *, integers=False):
    if name == "int8":
        return rng.integers(-100, 101, shape).astype(np.int8)
    x = rng.integers(-4, 5, shape) if integers else rng.standard_normal(shape)
    return x.astype(_dtypes.TABLE[name].logical)


def storage(name):
    return np.dtype(np.uint8) if name.startswith("float8") else _dtypes.numpy_dtype(name)


def compressed(x, name):
    """The record of a pruned NumPy matrix, on the GPU."""
    import cupy

    values, metadata = reference.compress(x)
    on_device = _arrays.empty_rows(cupy, values.shape, storage(name))
    on_device[...] = cupy.asarray(values.view(storage(name)))
    packed = cupy.asarray(reference.pack_metadata(metadata, x.shape[-1], values.itemsize))
    return Compressed24(on_device, None, packed, x.shape, _dtypes.TABLE[name])


def device_matrix(x, name, order):
    """A copy of `x` on the GPU with 16-byte aligned rows (or columns)."""
    import cupy

    turned = x.swapaxes(-1, -2) if order == "column" else x
    y = _arrays.empty_rows(cupy, turned.shape, storage(name))
    y[...] = cupy.asarray(np.ascontiguousarray(turned).view(storage(name)))
    return y.swapaxes(-1, -2) if order == "column" else y


def poisoned(shape, name, order):
    dtype = _dtypes.numpy_dtype(name)
    poison = np.full(shape, -77 if dtype.kind == "i" else np.nan).astype(dtype)
    return device_matrix(poison, name, order)


def _slices(problem, config):
    """Of k, of which each block that shares a tile needs one: atoms, or pairs of atoms of bytes."""
    of_slice = config.spans if storage(problem.dtype).itemsize == 1 else 1
    return -(-sparse_wgmma_plan.atoms_k(problem) // of_slice)


def run(problem, config, a, b, *, epilogue=PLAIN, out=None):
    """The product of NumPy operands on the GPU, as a NumPy array."""
    shape = (
        (*b.shape[:-2], problem.m, problem.n) if b.ndim >= a.ndim else (*a.shape[:-1], problem.n)
    )
    if out is None:
        out = poisoned(shape, problem.out_dtype, problem.out_order)
    assert _slices(problem, config) >= config.parts, "a block would wait for stages that never come"
    launch = sparse_wgmma.prepare(problem, config, epilogue)
    launch(
        compressed(a, problem.dtype),
        device_matrix(b, problem.b_dtype, problem.b_order),
        out,
        epilogue,
    )
    return out.get().view(_dtypes.numpy_dtype(problem.out_dtype))


def assert_as_good_as_dense(got, a, b, *, slack=1e-6):
    """Error against float64 at most twice that of rounding the exact product once."""
    exact = reference.matmul(a, b)
    if got.dtype.kind == "i":
        np.testing.assert_array_equal(got, reference.to_dtype(exact, got.dtype))
        return
    scale = np.linalg.norm(exact)
    rounded = exact.astype(got.dtype).astype(np.float64)
    error = np.linalg.norm(got.astype(np.float64) - exact)
    assert error <= 2 * np.linalg.norm(rounded - exact) + slack * scale
