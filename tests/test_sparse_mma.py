"""The mma.sp product against the reference, and its configurations without a GPU."""

import dataclasses

import numpy as np
import pytest
from product_cases import check, problem_of, random_24, random_dense

from sparse24._records import Fused, Problem
from sparse24.kernels import mma_ring, sparse_mma
from sparse24.kernels.sparse_tile import DTYPES, TileConfig

gpu = pytest.mark.gpu
stem = pytest.mark.stem("sparse_mma")
SHAPES = [(64, 64, 128), (1, 1, 4), (3, 5, 7), (130, 33, 260), (257, 200, 1030), (100, 8, 4096)]


def problem(**fields) -> Problem:
    base = Problem(256, 64, 512, 1, "float16", "float16", "float16")
    return dataclasses.replace(base, **fields)


def test_refuses_what_the_tensor_cores_lack():
    assert sparse_mma.refuses(problem()) is None
    assert "no float32" in sparse_mma.refuses(problem(dtype="float32", b_dtype="float32"))
    assert "cannot be mixed" in sparse_mma.refuses(problem(b_dtype="bfloat16"))
    assert "8.0" in sparse_mma.refuses(problem(compute_capability=75))
    eight = problem(dtype="float8_e4m3fn", b_dtype="float8_e5m2", out_dtype="bfloat16")
    assert sparse_mma.refuses(eight) is None
    old = dataclasses.replace(eight, compute_capability=80)
    assert "8.9" in sparse_mma.refuses(old)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chip", [80, 86, 89, 90, 120])
@pytest.mark.parametrize("n", [1, 32, 256, 4096])
def test_configs_fit_the_chip(dtype, chip, n):
    wanted = problem(dtype=dtype, b_dtype=dtype, n=n, compute_capability=chip)
    found = sparse_mma.configs(wanted)
    assert found
    assert len({config.name for config in found}) == len(found)
    assert all(mma_ring.suits(config, wanted) for config in found)
    times = [sparse_mma.predict(wanted, c, sparse_mma.CHIP) for c in found]
    assert times == sorted(times)
    assert times[0] > 0


@pytest.mark.parametrize("empty", [{"m": 0}, {"n": 0}, {"k": 0}])
def test_an_empty_product_has_configs_too(empty):
    assert sparse_mma.configs(problem(**empty))


@gpu
@stem
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes(rng, dtype, shape):
    m, n, k = shape
    a, b = random_24(rng, (m, k), dtype), random_dense(rng, (k, n), dtype)
    check(sparse_mma, a, b, aligned=False)
    check(sparse_mma, a, b, aligned=True, b_order="column", out_order="column")


@gpu
@stem
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float8_e5m2"])
@pytest.mark.parametrize("out_order", ["row", "column", "strided"])
@pytest.mark.parametrize("b_order", ["row", "column", "strided"])
@pytest.mark.parametrize("aligned", [True, False])
def test_orders(rng, dtype, b_order, out_order, aligned):
    a, b = random_24(rng, (150, 520), dtype), random_dense(rng, (520, 77), dtype)
    pad = 0 if aligned else 3
    check(
        sparse_mma, a, b, b_order=b_order, out_order=out_order,
        aligned=aligned, b_pad=pad,
    )  # fmt: skip


@gpu
@stem
@pytest.mark.parametrize("b_order", ["row", "column"])
@pytest.mark.parametrize("tile", sparse_mma._TILES, ids=lambda tile: tile.name)
@pytest.mark.parametrize("dtype", ["float16", "int8", "float8_e4m3fn"])
def test_every_configuration(rng, dtype, tile, b_order):
    a, b = random_24(rng, (300, 2176), dtype), random_dense(rng, (2176, 136), dtype)
    wanted = problem_of(a, b, "float32", b_order=b_order)
    tried = [c for c in sparse_mma.configs(wanted) if dataclasses.replace(c, split=1) == tile]
    assert {config.split for config in tried} >= ({1, 2, 4} if tile.k < 256 else {1, 2})
    for config in tried:
        check(sparse_mma, a, b, "float32", config=config, b_order=b_order)


LARGE = [tile for tile in sparse_mma._TILES if tile.n >= 64 and tile.stages > 2]


@gpu
@stem
@pytest.mark.parametrize("tile", LARGE, ids=lambda tile: tile.name)
@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize(
    ("b_order", "aligned"), [("row", True), ("column", True), ("strided", False)]
)
def test_the_ring_of_large_tiles_at_every_edge(rng, tile, dtype, b_order, aligned):
    """Fewer stages than its places, one more, a part of one, rows and columns that are cut."""
    for m, n, k in [(257, 130, 1032), (256, 128, 128), (3, 8, 64), (300, 72, 392), (270, 136, 520)]:
        a, b = random_24(rng, (m, k), dtype), random_dense(rng, (k, n), dtype)
        for split in (1, 2):
            config = dataclasses.replace(tile, split=split)
            check(sparse_mma, a, b, config=config, b_order=b_order, aligned=aligned)


@gpu
@stem
@pytest.mark.parametrize("tile", LARGE, ids=lambda tile: tile.name)
def test_large_tiles_give_the_same_bits_each_time(rng, tile):
    a, b = random_24(rng, (2048, 2048), "float16"), random_dense(rng, (2048, 1024), "float16")
    first, *others = (check(sparse_mma, a, b, config=tile).get() for _ in range(8))
    for other in others:
        np.testing.assert_array_equal(first, other)


@gpu
@stem
@pytest.mark.parametrize("out_order", ["row", "column"])
@pytest.mark.parametrize("split", [1, 3])
def test_epilogues(rng, out_order, split):
    a, b = random_24(rng, (130, 1536), "float16"), random_dense(rng, (1536, 40), "float16")
    config = TileConfig(64, 32, 256, (2, 1, 2), 4, split)
    f32 = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    for e in (
        Fused(alpha=0.5, row_bias=f32(130), activation="relu", upper=6.0),
        Fused(beta=2.0, c=np.float16(f32(130, 40)), column_scale=f32(40), activation="silu"),
        Fused(row_scale=f32(130), column_bias=f32(40), activation="gelu", out_scale=0.25),
    ):
        check(sparse_mma, a, b, config=config, epilogue=e, out_order=out_order)


@gpu
@stem
@pytest.mark.parametrize("batched", [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("split", [1, 2])
def test_batches(rng, batched, split):
    a = random_24(rng, (3, 70, 1024) if batched[0] else (70, 1024), "bfloat16")
    b = random_dense(rng, (3, 1024, 20) if batched[1] else (1024, 20), "bfloat16")
    config = TileConfig(64, 16, 256, (2, 1, 2), 4, split)
    check(sparse_mma, a, b, config=config, b_order="column")


@gpu
@stem
def test_empty_and_special(rng):
    for m, n, k in [(0, 4, 8), (4, 0, 8), (4, 4, 0)]:
        check(sparse_mma, random_24(rng, (m, k), "float16"), random_dense(rng, (k, n), "float16"),
              aligned=False)  # fmt: skip
    a, b = random_24(rng, (64, 256), "float16"), random_dense(rng, (256, 16), "float16")
    a[3, 8:12] = (np.nan, 0, 0, 1)
    a[5] = -0.0
    out = check_nan(a, b)
    assert np.isnan(out[3]).all()
    assert not out[5].any()
    assert np.isfinite(np.delete(out, 3, axis=0)).all()


def check_nan(a, b):
    """The result alone: NaN cannot be judged by a difference."""
    from product_cases import compressed, empty_result, to_device

    from sparse24._records import PLAIN

    wanted = problem_of(a, b, "float16")
    out = empty_result(wanted)
    launch = sparse_mma.prepare(wanted, sparse_mma.configs(wanted)[0], PLAIN)
    launch(compressed(a), to_device(b), out, PLAIN)
    return out.get()[0]


@gpu
@stem
def test_same_bits_each_time(rng):
    a, b = random_24(rng, (64, 8192), "float16"), random_dense(rng, (8192, 8), "float16")
    config = TileConfig(64, 16, 256, (2, 1, 2), 4, 8)
    first, *others = (check(sparse_mma, a, b, config=config).get() for _ in range(5))
    for other in others:
        np.testing.assert_array_equal(first, other)
