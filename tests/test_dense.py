"""The dense product behind ``algorithm="dense"`` and the epilogue of foreign accumulators."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._arrays import to_numpy
from sparse24._records import Fused
from sparse24.kernels import dense, dense_int8, reference


@pytest.mark.gpu
@pytest.mark.stem("apply_epilogue")
@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_dense_products_are_exact_on_small_integers(name, order, rng):
    import cupy

    row = _dtypes.TABLE[name]
    a = s24.compress(rng.integers(-3, 4, (40, 52)).astype(row.logical), on_excess="prune")
    x = np.asarray(rng.integers(-3, 4, (52, 24)).astype(row.logical), order=order)
    exact = reference.matmul(a.toarray(), x)
    bits = x.view(np.uint8) if row.is_float8 else x
    out_name = "float64" if name == "float64" else "float32"
    out = cupy.full((40, 24), 99, out_name, order=order)
    s24.matmul(
        a.to_device("cuda"), cupy.asarray(bits, order=order), out, dtype=out_name,
        b_dtype=name, algorithm="dense",
    )  # fmt: skip
    np.testing.assert_array_equal(to_numpy(out), exact)


@pytest.mark.gpu
@pytest.mark.stem("apply_epilogue")
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "int8"])
@pytest.mark.parametrize("backwards", ["operand", "result", "both"])
@pytest.mark.parametrize("inner", ["C", "F"])
def test_stacks_that_run_backwards(name, backwards, inner, rng):
    import cupy

    row = _dtypes.TABLE[name]
    a = s24.compress(rng.integers(-3, 4, (40, 52)).astype(row.logical), on_excess="prune")
    x = rng.integers(-3, 4, (3, 52, 24)).astype(row.logical)
    b, out = cupy.asarray(x), cupy.full((3, 40, 24), 99, row.result)
    if inner == "F":
        b, out = (y.swapaxes(1, 2).copy().swapaxes(1, 2) for y in (b, out))
    b = b[::-1] if backwards != "result" else b
    out = out[::-1] if backwards != "operand" else out
    s24.matmul(a.to_device("cuda"), b, out, algorithm="dense")
    want = reference.matmul(a.toarray(), x[::-1] if backwards != "result" else x)
    np.testing.assert_array_equal(to_numpy(out).astype(np.float64), want.astype(np.float64))


@pytest.mark.gpu
@pytest.mark.stem("apply_epilogue")
def test_epilogue_of_an_array_without_sparse_kernel(rng):
    import cupy

    a = s24.random((16, 32), rng=rng).to_device("cuda")
    x = rng.standard_normal((16, 5)).astype(np.float32)
    bias = rng.standard_normal((32, 1)).astype(np.float32)
    e = s24.Epilogue(bias=cupy.asarray(bias), activation="silu")
    got = s24.matmul(a.T, cupy.asarray(x), epilogue=e)
    exact = reference.matmul(to_numpy(a.toarray()).T, x)
    fused = Fused(row_bias=bias[:, 0], activation="silu")
    want, _ = reference.apply_epilogue(exact, fused, "float32")
    np.testing.assert_allclose(to_numpy(got), want, rtol=1e-5, atol=1e-5)


def test_leading_dimensions_as_blas_sees_them():
    x = np.zeros((4, 6), np.float32)
    assert dense._leading(x) == (False, 6)
    assert dense._leading(x.T) == (True, 6)
    assert dense._leading(x[:, :3]) == (False, 6)
    assert dense._leading(x[:, ::2]) is None
    assert dense._leading(x[:1, :1]) is not None
    stack = np.zeros((3, 4, 6), np.float32)
    assert dense._leading(stack) == dense._leading(stack[::2]) == (False, 6)
    assert dense._leading(stack[::-1]) is None
    assert dense._leading(stack[:1][::-1]) == (False, 6)


@pytest.mark.parametrize("more", [0, 1])
def test_strides_that_cublas_cannot_count_are_copied_first(more):
    def int8(shape, strides):  # with no memory: only its layout is looked at
        place = SimpleNamespace(ptr=0)
        kind = {"dtype": np.dtype(np.int8), "itemsize": 1, "data": place}
        return SimpleNamespace(ndim=2, shape=shape, strides=strides, **kind)

    most = 2**31 - 1
    apart = most + more
    assert dense._leading(int8((2, 4), (apart, 1))) == (None if more else (False, most))
    assert dense._leading(int8((4, 2), (1, apart))) == (None if more else (True, most))
    assert dense._leading(int8((1, 4), (apart, 1))) == (False, 4)  # there is no next row
    assert dense_int8._takes(int8((2, 16), (2**31 - 16 + 16 * more, 1))) != bool(more)
