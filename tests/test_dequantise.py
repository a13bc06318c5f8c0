"""Dequantised matrices on a GPU: bit for bit those of the reference."""

from __future__ import annotations

import numpy as np
import pytest
from quantised_cases import on_device, random_parts

import sparse24 as s24
from sparse24 import _storage
from sparse24._dtypes import OF_16_BITS, TABLE, numpy_dtype
from sparse24.kernels import bricks, dequantise, reference_quantised

pytestmark = [pytest.mark.gpu, pytest.mark.stem("dequantise")]
SHAPES = [(1, 4), (16, 128), (50, 300), (130, 1001), (64, 256), (4096, 14336), (0, 8), (3, 0)]


@pytest.mark.parametrize("bits", bricks.BITS)
@pytest.mark.parametrize("dtype", OF_16_BITS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_elements_are_rounded_once(cupy, rng, bits, dtype, shape):
    parts = random_parts(rng, shape, bits)
    found = dequantise.launch(on_device(parts, shape, bits, dtype), TABLE[dtype])
    exact = reference_quantised.dequantise(parts.integers, parts.factors)
    wanted = exact.astype(np.float32).astype(numpy_dtype(dtype))
    np.testing.assert_array_equal(found.values.get(), wanted)
    np.testing.assert_array_equal(_storage.canonical(found).get(), parts.metadata)
    assert (found.shape, found.dtype, found.quantised) == (shape, TABLE[dtype], 0)
    assert found.packed.shape == (-(-shape[1] // 128), -(-shape[0] // 64), 1024)


@pytest.mark.parametrize("bits", bricks.BITS)
@pytest.mark.parametrize("shape", [(3, 64, 256), (2, 2, 128, 300), (5, 50, 1001), (0, 64, 128)])
def test_stacks_in_one_launch(cupy, rng, bits, shape):
    q = s24.quantise(s24.random(shape, dtype="float16", rng=rng, device="cuda"), bits=bits)
    found = dequantise.launch(q._operand.stored, TABLE["float16"])
    for at in np.ndindex(*shape[:-2]):
        one = dequantise.launch(q[at]._operand.stored, TABLE["float16"])
        np.testing.assert_array_equal(found.values[at].get(), one.values.get())
        np.testing.assert_array_equal(found.packed[at].get(), one.packed.get())
    assert found.values.shape == (*shape[:-1], 2 * -(-shape[-1] // 4))


@pytest.mark.parametrize("bits", bricks.BITS)
def test_products_with_many_tokens(cupy, rng, bits):
    a = s24.random((256, 512), dtype="float16", rng=rng, device="cuda")
    q, x = s24.quantise(a, bits=bits), cupy.asarray(rng.standard_normal((2000, 512))).astype("f2")
    y = s24.matmul(x, q.T, algorithm="sparse_wgmma")
    whole = s24.matmul(x, q.dequantise().T, algorithm="sparse_wgmma")
    np.testing.assert_array_equal(y.get(), whole.get())
    again = s24.matmul(x, q.T, algorithm="sparse_wgmma")
    np.testing.assert_array_equal(again.get(), whole.get())
    dense = s24.matmul(cupy.ones((3, 256), np.float16), q)  # across the groups
    wanted = q.toarray().get().astype(np.float32).sum(0)
    np.testing.assert_allclose(dense.get(), [wanted] * 3, rtol=2e-3, atol=2e-2)
