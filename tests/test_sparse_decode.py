"""The product of a decoding step against the reference, and its configurations without a GPU."""

import dataclasses

import numpy as np
import pytest
from product_cases import (
    check,
    compressed,
    empty_result,
    problem_of,
    random_24,
    random_dense,
    to_device,
)

from sparse24._records import PLAIN, Fused, Problem
from sparse24.kernels import sparse_decode, sparse_tile
from sparse24.kernels.sparse_decode import DTYPES
from sparse24.kernels.sparse_decode_plan import tiles

gpu = pytest.mark.gpu
pytestmark = pytest.mark.stem("sparse_decode")


def problem(**fields) -> Problem:
    base = Problem(4096, 8, 4096, 1, "bfloat16", "bfloat16", "bfloat16", "column", "column")
    return dataclasses.replace(base, **fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n": 49}, "n <= 48"),
        ({"compute_capability": 89}, "9.0"),
        ({"dtype": "float32", "b_dtype": "float32"}, "no float32"),
        ({"dtype": "float8_e4m3fn", "b_dtype": "float8_e4m3fn"}, "not float8_e4m3fn"),
        ({"b_order": "strided"}, "copy it"),
        ({"aligned": False}, "copy it"),
        ({"b_order": "row", "n": 9}, "copy it"),
        ({"b_order": "row", "aligned": False}, "copy it"),
        ({"b_order": "row", "b_packed": False}, "copy it"),
        ({"b_order": "row", "n": 32}, "copy it"),
        ({"k": 0}, "empty"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refuses(fields, words):
    assert sparse_decode.refuses(problem()) is None
    assert words in sparse_decode.refuses(problem(**fields))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 8, 9, 16, 17, 32, 33, 48])
@pytest.mark.parametrize("capability", [90, 100, 120])
@pytest.mark.parametrize("order", ["column", "row"])
def test_blocks_fit_a_multiprocessor(dtype, n, capability, order):
    fields = {"dtype": dtype, "b_dtype": dtype, "n": n, "b_order": order}
    wanted = problem(**fields, compute_capability=capability)
    if order == "row" and n * sparse_tile.TABLE[dtype].itemsize not in (16, 32):
        assert "copy it" in sparse_decode.refuses(wanted)
        return
    if capability == 120 and n == 33:  # 99 KB of shared memory
        assert "no room" in sparse_decode.refuses(wanted)
        return
    assert sparse_decode.refuses(wanted) is None
    found = sparse_decode.configs(wanted)
    assert found
    for config in found:
        assert config.n >= n
        assert config.stages >= 2
        size = config.shared_memory(wanted) + 1024
        assert config.blocks * size <= (sparse_tile.SHARED_MEMORY.get(capability, 99) + 1) << 10
        assert tiles(wanted, config) == 4096 // config.m


@pytest.mark.parametrize(
    "weight", [(14336, 4096), (4096, 14336), (28672, 8192), (768, 768)], ids=str
)
def test_no_prediction_is_below_the_bytes(weight):
    m, k = weight
    chip = {"sms": 132, "clock_hz": 1.98e9, "bandwidth": 4.2e12}
    for n in (1, 8, 16, 24, 32, 48):
        configs = sparse_decode.configs(problem(m=m, k=k, n=n))
        assert configs
        for config in configs:
            assert (
                sparse_decode.predict(problem(m=m, k=k, n=n), config, chip) > 1.125 * m * k / 5e12
            )


@gpu
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 13, 16, 17, 24, 31, 32, 40, 41, 48])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(200, 1030), (1, 4096), (16, 8), (77, 4100)], ids=str)
def test_columns(rng, shape, dtype, n):
    a, b = random_24(rng, shape, dtype), random_dense(rng, (shape[1], n), dtype)
    for out_order in ("column", "row"):
        check(sparse_decode, a, b, b_order="column", out_order=out_order)


ROWS = [("float16", 8), ("bfloat16", 16), ("int8", 16), ("int8", 32)]


@gpu
@pytest.mark.parametrize(("dtype", "n"), ROWS)
@pytest.mark.parametrize("shape", [(200, 1030), (17, 4096), (16, 8), (77, 4100)], ids=str)
def test_rows(rng, shape, dtype, n):
    a, b = random_24(rng, shape, dtype), random_dense(rng, (shape[1], n), dtype)
    for out_order in ("column", "row"):
        check(sparse_decode, a, b, b_order="row", out_order=out_order)


@gpu
@pytest.mark.parametrize(("dtype", "n"), ROWS)
def test_every_configuration_by_rows(rng, dtype, n):
    a, b = random_24(rng, (5000, 3500), dtype), random_dense(rng, (3500, n), dtype)
    out = "int32" if dtype == "int8" else "float32"
    for config in sparse_decode.configs(problem_of(a, b, out, b_order="row")):
        check(sparse_decode, a, b, out, config=config, b_order="row", out_order="row")
    many = random_dense(rng, (3, 3500, n), dtype)
    check(sparse_decode, a[:70], many, out, b_order="row", out_order="row")


@gpu
@pytest.mark.parametrize("n", [8, 16])
def test_rows_behind_the_last_one_are_zeros(rng, n):
    """Codes there are those of the last atom, rows those that the stage had before."""
    k, stage, place = 3272, np.arange(3272) % 512, np.arange(3272) % 4
    a, b = np.zeros((40, k), np.float16), rng.integers(-2, 3, (k, n)).astype(np.float16)
    a[:, 3200:] = np.where(place >= 2, 1, 0)[3200:]
    a[:, place == 0] = 1
    a[:, 3200:][:, place[3200:] == 0] = 0
    a[:, (stage >= 256) & (np.arange(k) < 3072)] = 0
    b[(stage >= 256) & (np.arange(k) < 3072) & (place >= 2)] = np.inf
    wanted = problem_of(a, b, "float32", b_order="row", out_order="row")
    for config in sparse_decode.configs(wanted):
        out = empty_result(wanted)
        launch = sparse_decode.prepare(wanted, config, PLAIN)
        launch(compressed(a), to_device(b), out, PLAIN)
        finite = np.where(np.isinf(b), 0, b).astype(np.float32)
        np.testing.assert_array_equal(out.get()[0], a.astype(np.float32) @ finite)


@gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("n", [2, 8, 11, 16, 21, 40, 48])
def test_any_result(rng, dtype, n):
    a, b = random_24(rng, (150, 2600), dtype), random_dense(rng, (2600, n), dtype)
    for out_order in ("row", "column", "strided"):
        check(sparse_decode, a, b, "float32", b_order="column", out_order=out_order)
        check(
            sparse_decode, a, b, b_order="column", out_order=out_order, aligned=False,
            b_aligned=True,
        )  # fmt: skip


@gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [3, 12, 20, 32, 35, 44])
def test_every_configuration(rng, dtype, n):
    """More tiles than blocks, and rings that end in the middle."""
    a, b = random_24(rng, (5000, 3500), dtype), random_dense(rng, (3500, n), dtype)
    out = "int32" if dtype == "int8" else "float32"
    for config in sparse_decode.configs(problem_of(a, b, out, b_order="column")):
        check(sparse_decode, a, b, out, config=config, b_order="column", out_order="column")


@gpu
@pytest.mark.parametrize("n", [1, 8, 12, 20, 48])
def test_epilogues_and_batches(rng, n):
    a, b = random_24(rng, (130, 4096), "float16"), random_dense(rng, (3, 4096, n), "float16")
    f32 = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    for e in (
        Fused(alpha=0.5, row_bias=f32(130), activation="relu", upper=6.0),
        Fused(beta=2.0, c=np.float16(f32(3, 130, n)), activation="gelu_tanh"),
        Fused(row_scale=f32(130), column_bias=f32(n), activation="relu2", out_scale=1 / 64),
    ):
        check(sparse_decode, a, b, epilogue=e, b_order="column", out_order="column")
    many = random_24(rng, (3, 130, 4096), "float16")
    check(sparse_decode, many, b, b_order="column")


@gpu
@pytest.mark.parametrize("special", [np.nan, np.inf, -0.0])
def test_special_values_stay_where_they_are(rng, special):
    """Rows of other tiles and columns of b that are not there see nothing of them."""
    a, b = random_24(rng, (100, 2000), "float16"), random_dense(rng, (2000, 3), "float16")
    a[17, 40:44] = special, 0, 0, 0
    others = np.arange(100) != 17
    got = product_of(a, b)
    clean = product_of(np.where(np.arange(100)[:, None] == 17, np.float16(0), a), b)
    np.testing.assert_array_equal(got[others], clean[others])
    assert np.isfinite(got[17]).all() == (special == 0)


def product_of(a, b) -> np.ndarray:
    import cupy as cp

    wanted = problem_of(a, b, "float32", b_order="column", out_order="column")
    out = empty_result(wanted)
    launch = sparse_decode.prepare(wanted, sparse_decode.configs(wanted)[0], PLAIN)
    launch(compressed(a), to_device(b, order="column", rows_aligned=True), out, PLAIN)
    return cp.asnumpy(out)[0]


@gpu
def test_same_bits_each_time(rng):
    a, b = random_24(rng, (640, 8192), "float16"), random_dense(rng, (8192, 8), "float16")
    first, *others = (check(sparse_decode, a, b, b_order="column").get() for _ in range(5))
    for other in others:
        np.testing.assert_array_equal(first, other)


@gpu
@pytest.mark.parametrize("n", [1, 16])
def test_reads_what_the_kernel_before_wrote(rng, n):
    """Blocks fetch A before that kernel has ended, but only as far as the L2 cache."""
    import cupy as cp

    b = random_dense(rng, (2048, n), "float16")
    wanted = problem_of(random_24(rng, (1024, 2048), "float16"), b, "float32", b_order="column")
    launch = sparse_decode.prepare(wanted, sparse_decode.configs(wanted)[0], PLAIN)
    device_b = to_device(b, order="column", rows_aligned=True)
    weights = [compressed(random_24(rng, (1024, 2048), "float16")) for _ in range(2)]
    alone, results = ([empty_result(wanted) for _ in range(count)] for count in (2, 100))
    for weight, out in zip(weights, alone, strict=True):
        launch(weight, device_b, out, PLAIN)
        cp.cuda.get_current_stream().synchronize()
    changing = compressed(np.zeros((1024, 2048), np.float16))
    for turn, out in enumerate(results):
        cp.copyto(changing.packed, weights[turn % 2].packed)
        cp.copyto(changing.values, weights[turn % 2].values)
        launch(changing, device_b, out, PLAIN)
    for turn, out in enumerate(results):
        assert (out == alone[turn % 2]).all()
