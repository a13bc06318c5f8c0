"""The product on multiply-add units: every type against float64."""

from __future__ import annotations

import numpy as np
import pytest
from product_cases import check, random_24, random_dense

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._arrays import to_numpy
from sparse24._records import Problem
from sparse24.kernels import reference, sparse_fma


def test_refuses_only_more_columns_than_the_grid_holds():
    problem = Problem(8, 1 << 23, 8, 1, "float32", "float32", "float32")
    assert "columns" in sparse_fma.refuses(problem)
    assert sparse_fma.refuses(Problem(8, 1 << 20, 8, 1, "float32", "float32", "float32")) is None


@pytest.mark.gpu
@pytest.mark.stem("sparse_fma")
@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("size", [(64, 32, 64), (1, 3, 1), (130, 77, 67)], ids=str)
def test_small_integers_are_exact(name, size, rng):
    import cupy

    m, k, n = size
    row = _dtypes.TABLE[name]
    a = s24.compress(rng.integers(-3, 4, (m, k)).astype(row.logical), on_excess="prune")
    x = rng.integers(-3, 4, (k, n)).astype(row.logical)
    bits = x.view(np.uint8) if row.is_float8 else x
    exact = reference.matmul(a.toarray(), x)
    out_name = "float64" if name == "float64" else "float32"
    got = s24.matmul(
        a.to_device("cuda"), cupy.asarray(bits), dtype=out_name, b_dtype=name,
        algorithm="sparse_fma",
    )  # fmt: skip
    np.testing.assert_array_equal(to_numpy(got), exact)


@pytest.mark.gpu
@pytest.mark.stem("sparse_fma")
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_error_is_at_most_twice_that_of_the_dense_product(name, rng):
    import cupy

    a = s24.random((256, 4096), dtype=name, rng=rng)
    x = rng.standard_normal((4096, 64)).astype(name)
    exact = reference.matmul(a.toarray().astype(np.longdouble), x.astype(np.longdouble))
    there = a.to_device("cuda")
    ours = to_numpy(s24.matmul(there, cupy.asarray(x), algorithm="sparse_fma"))
    dense = to_numpy(cupy.matmul(there.toarray(), cupy.asarray(x)))
    distance = lambda y: np.linalg.norm(y - np.float64(exact))  # noqa: E731
    assert distance(ours) <= 2 * distance(dense) + 1e-300


@pytest.mark.gpu
@pytest.mark.stem("sparse_fma")
@pytest.mark.parametrize("stored", ["int8", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("name", _dtypes.OF_16_BITS)
@pytest.mark.parametrize("size", [(64, 32, 64), (1, 3, 1), (130, 77, 67)], ids=str)
def test_8_bit_elements_with_16_bit_ones(rng, stored, name, size):
    """Sums are of the products, not of what an integer could hold of the right operand."""
    m, k, n = size
    a, b = random_24(rng, (m, k), stored), random_dense(rng, (k, n), name)
    for order in ("row", "column"):
        check(sparse_fma, a, b, "float32", b_order=order)
