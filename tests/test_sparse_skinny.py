"""The few-column product against the reference, and its configurations without a GPU."""

import dataclasses

import numpy as np
import pytest
from product_cases import check, problem_of, random_24, random_dense

from sparse24._records import Fused, Problem
from sparse24.kernels import sparse_skinny
from sparse24.kernels.sparse_tile import DTYPES, TileConfig

gpu = pytest.mark.gpu
stem = pytest.mark.stem("sparse_skinny")


def problem(**fields) -> Problem:
    base = Problem(4096, 16, 4096, 1, "bfloat16", "bfloat16", "bfloat16", "column", "column")
    return dataclasses.replace(base, **fields)


def test_refuses():
    assert sparse_skinny.refuses(problem()) is None
    assert "n <= 256" in sparse_skinny.refuses(problem(n=257))
    assert "9.0" in sparse_skinny.refuses(problem(compute_capability=89))
    assert "no float32" in sparse_skinny.refuses(problem(dtype="float32", b_dtype="float32"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["row", "column", "strided"])
def test_every_size_has_a_configuration(dtype, order):
    for n in (1, 8, 9, 64, 256):
        for k in (1, 100, 4096):
            wanted = problem(dtype=dtype, b_dtype=dtype, n=n, k=k, b_order=order)
            found = sparse_skinny.configs(wanted)
            assert found
            assert all(config.suits(wanted) for config in found)
            assert all(config.m % config.split == 0 for config in found)


@gpu
@stem
@pytest.mark.parametrize("n", [1, 7, 8, 9, 24, 100, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_columns(rng, dtype, n):
    a, b = random_24(rng, (200, 1030), dtype), random_dense(rng, (1030, n), dtype)
    check(sparse_skinny, a, b, b_order="column", out_order="column")
    check(sparse_skinny, a, b, aligned=False)


@gpu
@stem
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float8_e5m2"])
@pytest.mark.parametrize("b_order", ["row", "column", "strided"])
@pytest.mark.parametrize("aligned", [True, False])
def test_orders(rng, dtype, b_order, aligned):
    a, b = random_24(rng, (150, 2600), dtype), random_dense(rng, (2600, 40), dtype)
    for out_order in ("row", "column", "strided"):
        check(
            sparse_skinny, a, b, b_order=b_order, out_order=out_order,
            aligned=aligned, b_pad=0 if aligned else 3,
        )  # fmt: skip


@gpu
@stem
@pytest.mark.parametrize("dtype", ["float16", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("n", [3, 32, 72, 200])
def test_every_configuration(rng, dtype, n):
    a, b = random_24(rng, (300, 8704), dtype), random_dense(rng, (8704, n), dtype)
    for b_order, out_order in (("row", "column"), ("column", "row")):
        wanted = problem_of(a, b, "float32", b_order=b_order, out_order=out_order)
        tried = sparse_skinny.configs(wanted)
        assert max(config.split for config in tried) > 1
        for config in tried:
            check(
                sparse_skinny, a, b, "float32", config=config, b_order=b_order, out_order=out_order
            )


@gpu
@stem
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("n", [5, 60, 128])
def test_promoted_sums(rng, dtype, n):
    a, b = random_24(rng, (200, 8704), dtype), random_dense(rng, (8704, n), dtype)
    wanted = problem_of(a, b, "float32", b_order="column", fast_accumulation=False)
    tried = [c for c in sparse_skinny.configs(wanted) if c.wgmma and c.split == 1]
    assert all(config.k == sparse_skinny.PROMOTED for config in tried)
    for config in tried:
        check(
            sparse_skinny, a, b, "float32", config=config, b_order="column",
            fast_accumulation=False,
        )  # fmt: skip


@gpu
@stem
@pytest.mark.parametrize("split", [1, 4])
def test_epilogues_and_batches(rng, split):
    a, b = random_24(rng, (130, 4096), "float16"), random_dense(rng, (3, 4096, 12), "float16")
    config = TileConfig(64, 16, 256, (2, 1, 2), 4, split, 2)
    f32 = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    for e in (
        Fused(alpha=0.5, row_bias=f32(130), activation="relu", upper=6.0),
        Fused(beta=2.0, c=np.float16(f32(3, 130, 12)), activation="gelu_tanh"),
        Fused(row_scale=f32(130), column_bias=f32(12), activation="relu2", out_scale=0.25),
    ):
        check(sparse_skinny, a, b, config=config, epilogue=e, b_order="column", out_order="column")


@gpu
@stem
def test_same_bits_each_time_and_empty(rng):
    a, b = random_24(rng, (64, 8192), "float16"), random_dense(rng, (8192, 8), "float16")
    config = TileConfig(64, 8, 256, (2, 1, 2), 4, 8, 2)
    first, *others = (check(sparse_skinny, a, b, config=config).get() for _ in range(5))
    for other in others:
        np.testing.assert_array_equal(first, other)
    for m, n, k in [(0, 4, 8), (4, 0, 8), (4, 4, 0)]:
        empty = random_24(rng, (m, k), "float16"), random_dense(rng, (k, n), "float16")
        check(sparse_skinny, *empty, aligned=False)
