"""The float32 product with few columns against the reference."""

import dataclasses

import numpy as np
import pytest
from product_cases import check, compressed, problem_of, random_24, random_dense, to_device

from sparse24._records import PLAIN, Fused, Problem
from sparse24.kernels import reference, sparse_matvec, sparse_tile

gpu = pytest.mark.gpu
stem = pytest.mark.stem("sparse_matvec")
CHIP = {"sms": 132, "clock_hz": 1.98e9, "bandwidth": 4.2e12}


def problem(**fields) -> Problem:
    base = Problem(4096, 1, 4096, 1, "float32", "float32", "float32", "column", "column")
    return dataclasses.replace(base, **fields)


def test_refuses():
    assert sparse_matvec.refuses(problem()) is None
    assert sparse_matvec.refuses(problem(compute_capability=80, n=256)) is None
    assert "n <= 256" in sparse_matvec.refuses(problem(n=257))
    assert "not float64" in sparse_matvec.refuses(problem(dtype="float64", b_dtype="float64"))
    assert "float32 by float16" in sparse_matvec.refuses(problem(b_dtype="float16"))


@pytest.mark.parametrize(("n", "columns"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (40, 8)])
def test_a_block_takes_all_columns_if_it_can(n, columns):
    assert {config.columns for config in sparse_matvec.configs(problem(n=n))} == {columns}


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
def test_every_configuration_has_room_on_the_chip(capability):
    room = sparse_tile.SHARED_MEMORY.get(capability, 99) << 10
    for n in (1, 2, 4, 8, 256):
        found = sparse_matvec.configs(problem(n=n, compute_capability=capability))
        assert found
        assert max(config.shared_memory for config in found) <= room


def test_few_rows_share_k_and_time_grows_with_the_matrix():
    assert sparse_matvec.configs(problem(m=64))[0].parts > 1
    assert sparse_matvec.configs(problem(m=64, n=8))[0].parts == 4
    assert sparse_matvec.configs(problem(m=28672, n=8))[0].parts == 1
    times = []
    for m in (4096, 8192, 28672):
        case = problem(m=m)
        times.append(sparse_matvec.predict(case, sparse_matvec.configs(case)[0], CHIP))
    assert times == sorted(times)


@gpu
@stem
@pytest.mark.parametrize("shape", [(1, 4), (10, 7), (37, 130), (200, 1030), (64, 2052)], ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 13])
def test_shapes(rng, shape, n):
    m, k = shape
    a, b = random_24(rng, (m, k), "float32"), random_dense(rng, (k, n), "float32")
    for config in sparse_matvec.configs(problem_of(a, b, "float32")):
        check(sparse_matvec, a, b, config=config, b_order="column", out_order="column")
        check(sparse_matvec, a, b, config=config, aligned=False, b_pad=1)


@gpu
@stem
@pytest.mark.parametrize("b_order", ["row", "column", "strided"])
@pytest.mark.parametrize("out_order", ["row", "column"])
def test_orders_batches_and_epilogues(rng, b_order, out_order):
    f32 = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    orders = {"b_order": b_order, "out_order": out_order, "b_pad": 3 * (b_order == "strided")}
    for a_batch in ((), (3,)):
        a, b = random_24(rng, (*a_batch, 70, 516), "float32"), f32(3, 516, 5)
        check(sparse_matvec, a, b, **orders)
        for e in (
            Fused(alpha=0.5, row_bias=f32(70), activation="gelu"),
            Fused(beta=2.0, c=f32(3, 70, 5), column_scale=f32(5), out_scale=0.25),
        ):
            check(sparse_matvec, a, b, epilogue=e, **orders)


@gpu
@stem
def test_exact_special_and_the_same_again(rng):
    import cupy as cp

    integers = rng.integers(-9, 10, (96, 4096)).astype(np.float32)
    a, b = reference.prune(integers), rng.integers(-9, 10, (4096, 4)).astype(np.float32)
    a[:4] = 0
    a[5, 0] = -0.0
    b[:, 3] = np.nan
    for config in sparse_matvec.configs(problem_of(a, b, "float32")):
        outs = []
        run = sparse_matvec.prepare(problem_of(a, b, "float32"), config, PLAIN)
        for _ in range(3):
            out = cp.full((96, 4), 77, np.float32)
            run(compressed(a), to_device(b), out, PLAIN)
            outs.append(out.get())
        np.testing.assert_array_equal(outs[0][:, :3], reference.matmul(a, b[:, :3]))
        assert np.isnan(outs[0][:, 3]).all()
        np.testing.assert_array_equal(outs[0], outs[1])
        np.testing.assert_array_equal(outs[0], outs[2])


@gpu
@stem
def test_empty(rng):
    for m, n, k in [(0, 4, 8), (4, 0, 8), (4, 4, 0)]:
        a, b = random_24(rng, (m, k), "float32"), random_dense(rng, (k, n), "float32")
        check(sparse_matvec, a, b, aligned=False)
