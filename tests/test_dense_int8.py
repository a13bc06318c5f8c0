"""Dense int8 products by cuBLAS: what it is given, and that it sums exactly."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import fake_device
import numpy as np
import pytest
from fake_device import array

import sparse24 as s24
from sparse24._arrays import to_numpy
from sparse24.kernels import cublas, dense_int8, transpose

SIZES = [(16, 32, 48), (128, 64, 16), (1, 1, 1), (17, 33, 5), (40, 16, 1), (1, 100, 64)]  # m, k, n


def signed(rng, *shape):
    return rng.integers(-128, 128, shape).astype(np.int8)


def lie_otherwise(x):
    """The same elements by rows, by columns, strided, backwards and off a boundary."""
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    wide[..., ::2] = x
    off = np.zeros(x.size + 1, x.dtype)[1:].reshape(x.shape)
    off[...] = x
    by_columns = np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    return x, by_columns, wide[..., ::2], x[..., ::-1].copy()[..., ::-1], off


def blas(handle, ta, tb, m, n, k, alpha, a, type_a, lda, of_a, b, type_b, ldb, of_b, beta, c,
         type_c, ldc, of_c, batch, compute, algorithm):  # fmt: skip
    """cublasGemmStridedBatchedEx for what its kernels of tensor cores take."""
    assert (type_a, type_b, type_c, compute) == (3, 3, 10, cublas.COMPUTE_32I)
    assert (ta, tb) == (1, 0)
    assert not any(x % 16 for x in (m, n, k, lda, ldb, ldc, a, b))
    factors = [fake_device.at_address(view(x, np.int32, (1,), (4,)))[0] for x in (alpha, beta)]
    assert factors == [1, 0]
    for i in range(batch):
        left = fake_device.at_address(view(a + i * of_a, np.int8, (m, k), (lda, 1)))
        right = fake_device.at_address(view(b + i * of_b, np.int8, (k, n), (1, ldb)))
        out = fake_device.at_address(view(c + 4 * i * of_c, np.int32, (m, n), (4, 4 * ldc)))
        out[...] = left.astype(np.int32) @ right.astype(np.int32)


def view(address, dtype, shape, strides):
    dtype, data = np.dtype(dtype), SimpleNamespace(ptr=address)
    return SimpleNamespace(
        shape=shape, strides=strides, dtype=dtype, itemsize=dtype.itemsize, data=data
    )


@pytest.mark.parametrize("size", SIZES)
def test_the_arguments_of_cublas(rng, monkeypatch, size):
    def made(make):
        def on_boundary(shape, dtype):
            room = array(np.full(np.prod(shape, dtype=int) + 16, -1, dtype))
            start = -room.ctypes.data % 16 // room.itemsize
            laid = room[start : start + np.prod(shape, dtype=int)].reshape(shape)
            laid[...] = make(shape, dtype)
            return laid

        return on_boundary

    stand_in = SimpleNamespace(
        zeros=made(np.zeros), empty=made(lambda shape, dtype: np.full(shape, -7, dtype)),
        ascontiguousarray=np.ascontiguousarray,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    monkeypatch.setattr(cublas, "gemm", lambda: (blas, lambda: None))
    monkeypatch.setattr(transpose, "launch", turned)
    m, k, n = size
    for lead_a, lead_b in (((), ()), ((3,), (3,)), ((3,), ()), ((), (3,)), ((1,), (3,))):
        left, right = signed(rng, *lead_a, m, k), signed(rng, *lead_b, k, n)
        want = left.astype(np.int32) @ right.astype(np.int32)
        for a, b in zip(lie_otherwise(left), lie_otherwise(right)):
            got = dense_int8.accumulators(array_as_it_lies(a), array_as_it_lies(b))
            assert got.dtype == np.int32
            np.testing.assert_array_equal(got.reshape(want.shape), want)
            for out in lie_otherwise(np.full(want.shape, -7, np.int32)):
                out = array_as_it_lies(on_a_boundary(out))
                got = dense_int8.accumulators(array_as_it_lies(a), array_as_it_lies(b), out)
                assert (got is out) == (size in SIZES[:2] and 4 in out.strides[-2:])
                np.testing.assert_array_equal(got.reshape(want.shape), want)


def turned(x):
    rows = on_a_boundary(np.ascontiguousarray(x.swapaxes(-1, -2)))
    return array_as_it_lies(rows).swapaxes(-1, -2)


def on_a_boundary(x):
    """A copy with the same order of axes that begins on 16 bytes, where strided or not."""
    if x.strides[-1] != x.itemsize and x.strides[-2] == x.itemsize:
        return on_a_boundary(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    wide = x.strides[-1] // x.itemsize if x.strides[-1] > 0 else 1
    room = np.zeros(x.nbytes * wide + 16, np.uint8)
    start = -room.ctypes.data % 16
    copy = room[start : start + x.nbytes * wide].view(x.dtype)
    copy = copy.reshape(*x.shape[:-1], wide * x.shape[-1])[..., ::wide]
    copy[...] = x
    return copy


def array_as_it_lies(x):
    return x.view(fake_device.Array)


def test_empty_sums_are_zeros(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", np)
    for m, k, n in ((0, 4, 4), (4, 0, 4), (4, 4, 0)):
        got = dense_int8.accumulators(np.ones((m, k), np.int8), np.ones((2, k, n), np.int8))
        np.testing.assert_array_equal(got, np.zeros((2, m, n)))


@pytest.mark.gpu
@pytest.mark.stem("apply_epilogue")
@pytest.mark.parametrize("size", [*SIZES, (300, 1000, 260)])
def test_sums_are_exact_on_the_gpu(rng, size):
    cupy = pytest.importorskip("cupy")
    m, k, n = size
    for lead_a, lead_b in (((), ()), ((3,), (3,)), ((3,), ()), ((), (3,))):
        left, right = signed(rng, *lead_a, m, k), signed(rng, *lead_b, k, n)
        want = left.astype(np.int32) @ right.astype(np.int32)
        for order in "CF":
            a, b = (cupy.asarray(x, order=order) for x in (left, right))
            got = to_numpy(dense_int8.accumulators(a, b))
            np.testing.assert_array_equal(got.reshape(want.shape), want)
            out = cupy.full(want.shape, -7, np.int32, order=order)
            got = to_numpy(dense_int8.accumulators(a, b, out))
            np.testing.assert_array_equal(got.reshape(want.shape), want)


@pytest.mark.gpu
@pytest.mark.stem("apply_epilogue")
def test_products_of_arrays_on_the_gpu(rng):
    cupy = pytest.importorskip("cupy")
    weight = s24.prune(signed(rng, 70, 132))
    a = s24.compress(cupy.asarray(weight))
    wide = weight.astype(np.int32)
    for shape in ((5, 70), (70,), (2, 3, 70)):
        for _ in range(3):
            x = signed(rng, *shape)
            np.testing.assert_array_equal(to_numpy(cupy.asarray(x) @ a), x.astype(np.int32) @ wide)
    h = s24.hybrid(cupy.asarray(weight))
    for n in (2, 9, 64):
        b = signed(rng, 132, n)
        got = h.matmul(cupy.asarray(b), algorithm="cublas")
        np.testing.assert_array_equal(to_numpy(got), wide @ b.astype(np.int32))
