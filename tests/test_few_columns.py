"""The Hopper kernel with few columns: tiles that the blocks of a cluster share."""

import dataclasses

import numpy as np
import pytest
from product_cases import check, problem_of, random_24, random_dense

from sparse24._records import Fused, Problem
from sparse24.kernels import sparse_skinny, sparse_wgmma
from sparse24.kernels.sparse_wgmma_configs import TABLE

gpu = pytest.mark.gpu
stem = pytest.mark.stem("sparse_wgmma")
FEW = [config for config in TABLE if config.parts > 1 or config.blocks > 1 or config.block_n == 32]
CHIP = {"sms": 132, "clock_hz": 1.98e9, "bandwidth": 4.2e12}
WEIGHTS = ((14336, 4096), (4096, 14336), (28672, 8192), (8192, 8192), (4096, 4096))


def problem(m=4096, k=14336, n=32, **fields) -> Problem:
    base = Problem(m, n, k, 1, "bfloat16", "bfloat16", "bfloat16", "column", "column")
    return dataclasses.replace(base, **fields)


def test_few_rows_are_shared_and_many_columns_are_not():
    assert sparse_wgmma.configs(problem(n=128))[0].name == "128x128x128k3"
    assert sparse_wgmma.configs(problem(28672, 8192, 16))[0].parts == 1
    assert sparse_wgmma.configs(problem(n=4096))[0].parts == 1
    assert all(config.parts == 1 for config in sparse_wgmma.configs(problem(k=512)))
    assert sparse_wgmma.configs(problem(n=16))[0].spans == 2
    assert sparse_wgmma.configs(problem(n=64, b_order="row"))[0].spans == 2


def test_narrow_tiles_need_long_lines():
    assert all(config.block_n > 32 for config in sparse_wgmma.configs(problem(b_order="row")))
    eight = problem(dtype="float8_e4m3fn", b_dtype="float8_e4m3fn", out_dtype="float8_e4m3fn")
    assert all(config.block_n > 32 for config in sparse_wgmma.configs(eight))


@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
def test_no_prediction_is_below_the_bytes(weight):
    m, k = weight
    for n in (1, 8, 32, 128, 256):
        for kernel in (sparse_wgmma, sparse_skinny):
            configs = kernel.configs(problem(m, k, n))
            assert configs
            for config in configs:
                seconds = kernel.predict(problem(m, k, n), config, CHIP)
                assert seconds > 1.125 * m * k / 5e12


@gpu
@stem
@pytest.mark.parametrize("config", FEW, ids=lambda config: config.name)
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float8_e4m3fn"])
def test_every_configuration(rng, config, dtype):
    a = random_24(rng, (300, 4200), dtype)  # long enough for eight blocks a tile
    for n, out_order in ((5, "column"), (40, "row"), (150, "column")):
        b = random_dense(rng, (4200, n), dtype)
        orders = {"b_order": "column", "out_order": out_order}
        out = "int32" if dtype == "int8" else "bfloat16"
        if config in sparse_wgmma.configs(problem_of(a, b, out, **orders)):
            check(sparse_wgmma, a, b, out, config=config, **orders)


@gpu
@stem
@pytest.mark.parametrize("config", FEW[::3], ids=lambda config: config.name)
def test_epilogues_batches_and_orders(rng, config):
    f32 = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    a, b = random_24(rng, (200, 1600), "float16"), random_dense(rng, (3, 1600, 24), "float16")
    for e in (
        Fused(alpha=0.5, row_bias=f32(200), activation="relu", upper=6.0),
        Fused(beta=2.0, c=np.float16(f32(3, 200, 24)), activation="gelu_tanh"),
    ):
        orders = {"b_order": "column", "out_order": "column"}
        check(sparse_wgmma, a, b, config=config, epilogue=e, **orders)
    if config.block_n > 32 and config.spans == 1:
        check(sparse_wgmma, a, b, config=config, b_order="row", out_order="row")


@gpu
@stem
def test_promoted_sums_of_shared_tiles(rng):
    dtype = "float8_e4m3fn"
    a, b = random_24(rng, (200, 8704), dtype), random_dense(rng, (8704, 24), dtype)
    for fast in (True, False):
        wanted = problem_of(a, b, "float32", b_order="column", fast_accumulation=fast)
        shared = [c for c in sparse_wgmma.configs(wanted) if c.parts > 1]
        for config in shared[::4]:
            check(
                sparse_wgmma, a, b, "float32", config=config, b_order="column",
                fast_accumulation=fast,
            )  # fmt: skip


@gpu
@stem
def test_same_bits_each_time(rng):
    a, b = random_24(rng, (520, 8192), "bfloat16"), random_dense(rng, (8192, 30), "bfloat16")
    for config in [c for c in FEW if c.parts > 1][::2]:
        first, *others = (
            check(sparse_wgmma, a, b, config=config, b_order="column").get().view(np.uint16)
            for _ in range(4)
        )
        for other in others:
            np.testing.assert_array_equal(first, other)
