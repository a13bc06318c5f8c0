"""Which of the CPU products is taken."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _dtypes
from sparse24.kernels import cpu_matmul


@pytest.mark.parametrize(
    ("shape", "dtype", "chosen"),
    [
        ((1, 4096, 16), "float32", "sparse"),
        ((4, 4096, 64), "float32", "dense"),
        ((8, 4096, 64), "float32", "sparse"),
        ((16, 4096, 17), "float32", "dense"),
        ((16, 384, 1024), "float64", "dense"),
        ((4, 4096, 64), "int8", "sparse"),
        ((384, 384, 1024), "float32", "sparse"),
    ],
)
def test_few_rows_go_to_blas(shape, dtype, chosen):
    assert cpu_matmul.choose(*shape, dtype) == chosen


def test_stacks_of_small_matrices_with_options_go_to_blas_together(monkeypatch):
    assert cpu_matmul.choose(64, 64, 64, "int8", stacked=True) == "dense"
    assert cpu_matmul.choose(64, 64, 128, "int8", stacked=True) == "sparse"
    monkeypatch.setattr(cpu_matmul, "over_batch", None)
    stack, x = s24.random((30, 16, 16), rng=0), np.ones((16, 3), np.float32)
    twice = s24.matmul(stack, x, alpha=2.0)
    np.testing.assert_allclose(twice, 2 * stack.toarray() @ x, rtol=1e-5, atol=1e-5)
    assert s24.explain(stack, x, alpha=2.0).chosen == "cpu_dense"
    assert s24.explain(stack[:1], x, alpha=2.0).chosen == "cpu_sparse"
    assert s24.explain(stack, x).chosen == "cpu_sparse"  # repeated matrix by matrix


@pytest.mark.parametrize(
    ("shape", "dtype", "chosen"),
    [
        ((64, 64, 8), "float32", "dense"),
        ((128, 128, 64), "float32", "dense"),
        ((128, 128, 64), "float64", "sparse"),
        ((4096, 64, 32), "float32", "dense"),
        ((4096, 64, 32), "float64", "sparse"),
        ((256, 256, 32), "float32", "sparse"),
        ((1024, 2048, 32), "float32", "sparse"),
        ((4096, 4096, 1), "float32", "sparse"),
        ((64, 64, 8), "float16", "sparse"),
    ],
)
def test_small_products_of_a_kept_matrix_go_to_blas(shape, dtype, chosen):
    assert cpu_matmul.choose(*shape, dtype, kept=True) == chosen


@pytest.mark.parametrize(
    ("vector_bytes", "dtype", "rows", "most"),
    [
        (64, "float32", 4096, 16), (64, "float64", 4096, 16), (32, "float32", 4096, 12),
        (32, "int8", 256, 12), (32, "float64", 4096, 4), (32, "float64", 255, 16),
        (16, "float32", 256, 4), (16, "float64", 256, 2),
    ],
)  # fmt: skip
def test_panels_take_over_earlier_where_vectors_are_short(
    monkeypatch, vector_bytes, dtype, rows, most
):
    monkeypatch.setattr(cpu_matmul, "VECTOR_BYTES", vector_bytes)
    assert cpu_matmul.few_columns(_dtypes.TABLE[dtype], rows) == most
