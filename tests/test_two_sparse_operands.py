"""Products of two sparse operands, of which one is made dense."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import sparse24 as s24
from sparse24 import _dtypes
from sparse24.formats import convert
from sparse24.formats.base import densified
from sparse24.formats.refusals import Refusals


@pytest.fixture
def large(rng):
    """A matrix that stays sparse beside a smaller one."""
    n = 2100
    places = rng.integers(0, n, n), rng.integers(0, n, n)
    return scipy.sparse.csr_array((np.ones(n, np.float32), places), (n, n))


@pytest.mark.parametrize("wrap", [lambda m: m, s24.hybrid])
@pytest.mark.parametrize("side", ["left", "right"])
def test_options_of_two_four_products_are_taken_as_well(rng, large, wrap, side):
    w = rng.integers(-9, 10, (8, large.shape[0])).astype(np.float32)
    few, m = s24.compress(w, on_excess="prune"), wrap(large)
    if side == "left":
        pair, want, named = (few, m), few.toarray() @ large, "b_dtype"
    else:
        pair, want, named = (m, few.T), large @ few.toarray().T, "a_dtype"
    for option in ({named: "float32"}, {"fast_accumulation": False}):
        np.testing.assert_array_equal(s24.matmul(*pair, **option), want)
    assert s24.explain(*pair).chosen == "cpu"
    assert s24.explain(*pair, fast_accumulation=False).chosen.startswith("cpu_")


class OnAGpu(Refusals):
    """A sparse array of fp8 as on a GPU, where its dense form is bits."""

    device, _dtype = "cuda:0", _dtypes.TABLE["float8_e4m3fn"]

    def __init__(self, array):
        object.__setattr__(self, "array", array)

    def astype(self, name):
        return self.array.astype(name)

    def toarray(self):
        return self.array.toarray().view(np.uint8)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8"])
def test_fp8_on_a_gpu_is_not_multiplied_as_bits(rng, large, dtype):
    w = rng.integers(-4, 5, (8, large.shape[0])).astype(np.float32)
    few, h = s24.compress(w, on_excess="prune"), s24.hybrid(large, dtype=dtype)
    few = few.astype("float8_e4m3fn")
    want = few.toarray().astype("f4") @ large
    for dense in (convert.dense_beside(OnAGpu(few), h), densified(OnAGpu(few), h)):
        got = dense @ h
        assert got.dtype == (few @ h).dtype
        np.testing.assert_array_equal(got.astype("f4"), want)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8"])
@pytest.mark.parametrize("pattern", [(2, 4), (3, 7)])
def test_fp8_beside_a_large_matrix_on_a_gpu(rng, cupy, large, dtype, pattern):
    w = rng.integers(-4, 5, (8, large.shape[0])).astype(np.float32)
    few = s24.compress(w, pattern=pattern, on_excess="prune").astype("float8_e4m3fn")
    here, there = s24.hybrid(large, dtype=dtype), s24.hybrid(large, dtype=dtype).to_device("cuda")
    moved = few.to_device("cuda")
    for got, want in ((moved @ there, few @ here), (there @ moved.T, here @ few.T)):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got.get().astype("f4"), want.astype("f4"))


def by_three(w):
    return s24.compress(w, pattern=(3, 7), on_excess="prune")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8"])
@pytest.mark.parametrize("make", [s24.hybrid, by_three])
def test_fp8_that_does_not_multiply_is_no_bits_on_a_gpu(rng, cupy, dtype, make):
    v, w = (rng.integers(-4, 5, (21, 21)).astype(np.float32) for _ in range(2))
    a, few = make(v).astype(dtype), s24.compress(w, on_excess="prune").astype("float8_e4m3fn")
    there, moved = a.to_device("cuda"), few.to_device("cuda")
    for got, want in ((there @ moved, a @ few), (there @ moved.T, a @ few.T)):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got.get().astype("f4"), want.astype("f4"))
