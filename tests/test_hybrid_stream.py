"""The stream kernel: exact on whole numbers, close on random ones, the same bits every time."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hybrid_cases import assert_exact_on_whole_numbers

from sparse24 import _arrays, families
from sparse24._dtypes import lookup
from sparse24._to_hybrid import hybrid
from sparse24.kernels import hybrid_stream
from sparse24.kernels.chip import chip

pytestmark = pytest.mark.stem("hybrid_stream")


def test_schedule_deals_every_strip_and_chunk_once(rng):
    cost = rng.integers(1, 100, (37, 9))
    for balance in (True, False):
        for splits in (1, 3, 8):
            order, cuts = hybrid_stream.schedule(cost, 8, splits, balance)
            assert order.size == 40
            assert sorted(order[order >= 0]) == list(range(37))
            assert (cuts[:, 0] == 0).all()
            assert (cuts[:, -1] == 9).all()
            assert (np.diff(cuts, axis=1) >= 0).all()


def test_balance_evens_the_parts(rng):
    cost = np.ones((64, 32), np.int64)
    cost[:, :8] = 50  # the first quarter of k is dear
    cost[::2] *= 4  # and so is every second strip

    def worst(balance):
        order, cuts = hybrid_stream.schedule(cost, 8, 4, balance)
        parts = [
            cost[order[8 * i : 8 * i + 8], cut:end].sum()
            for i, row in enumerate(cuts)
            for cut, end in itertools.pairwise(row)
        ]
        return max(parts)

    assert worst(True) < 0.75 * worst(False)


def test_every_warp_knows_its_chunks(rng):
    cost = rng.integers(1, 100, (37, 9))
    config = hybrid_stream.Config(2, 2, 1, 2, 512)
    order, cuts = hybrid_stream.schedule(cost, config.height, 4, True)
    starts = hybrid_stream.warp_starts(cost, order, cuts, config)
    offsets = np.concatenate([[0], np.cumsum(cost)])
    covered = np.zeros(cost.size, np.int64)
    assert len(starts) == len(cuts) * 4 * config.height
    for row in starts:
        for begin, end in itertools.pairwise(row):
            if end > begin:
                covered[np.searchsorted(offsets, begin)] += 1
                assert end - begin == cost.ravel()[np.searchsorted(offsets, begin)]
    assert (covered == 1).all()


@pytest.mark.parametrize("n", [8, 16, 32, 64])
@pytest.mark.parametrize("shape", [(100, 300), (4096, 4096), (14336, 4096), (70000, 1000)])
@pytest.mark.parametrize("most_shared", [227 << 10, 99 << 10])
@pytest.mark.parametrize("most_waiting", [8, 4])
def test_what_is_tried_fits(n, shape, most_shared, most_waiting):
    layout = SimpleNamespace(
        shape=shape, strips=-(-shape[0] // 16), chunks=-(-shape[1] // 128), span=128,
        stage_bytes=2304, nbytes=shape[0] * shape[1],
    )  # fmt: skip
    sizes = {"most_shared": most_shared, "most_waiting": most_waiting}
    found = hybrid_stream.configs(layout, n, 132, **sizes)
    for config in found:
        assert config.shared_memory(layout.stage_bytes) <= most_shared
        assert config.warps <= 32
        assert 8 * config.tiles >= n
        blocks = -(-layout.strips // config.height) * config.splits
        assert config.splits == 1 or blocks <= 132  # they wait for one another
        assert config.splits <= most_waiting
        parts = config.splits * config.parts
        assert config.buffers > 1 or config.panel * parts >= shape[1]
    if shape[0] < 20000:
        assert -(-layout.strips // found[0].height) * found[0].splits <= 132


@pytest.mark.parametrize("tiles", [1, 2, 4, 8])
def test_the_smallest_way_fits_every_chip(tiles):
    """Chunks of the least width, full of non-zeros: 16 rows of words of 128 columns."""
    full = 384 + 32 * 128
    smallest = hybrid_stream.smallest(hybrid_stream.LEAST_SPAN, tiles)
    assert smallest.shared_memory(full) <= 99 << 10  # of compute capabilities 8.6, 8.9 and 12.0


def test_refuses_in_words():
    assert hybrid_stream.refuses(lookup("float16"), 64) is None
    assert "float32" in hybrid_stream.refuses(lookup("float32"), 4)
    assert "65" in hybrid_stream.refuses(lookup("bfloat16"), 65)


def product(h, b, **options):
    import cupy

    got = h.matmul(cupy.asarray(b), algorithm="stream", **options)
    return got.get()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.7, 0.85, 0.95, 0.998])
@pytest.mark.parametrize("n", [1, 8, 9, 16, 24, 32, 50, 64])
def test_exact_on_whole_numbers(rng, dtype, zeros, n):
    assert_exact_on_whole_numbers(product, rng, 1111, dtype, zeros, n)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 8, 9, 16, 24, 32, 50, 64])
def test_a_matrix_without_elements(n):
    """Which is offered other paths alone."""
    cupy = _arrays.cupy_module()
    empty = cupy.zeros((333, 1111), np.float16)
    layout = hybrid_stream.prepare(empty, lookup("float16"), 0.0)
    out = cupy.full((333, n), cupy.nan, np.float16)
    hybrid_stream.product(layout, cupy.ones((1111, n), np.float16), out)
    assert not out.any()


@pytest.mark.gpu
@pytest.mark.parametrize("n", [8, 64])
def test_a_full_row_fits_chips_with_little_shared_memory(rng, monkeypatch, n):
    """By its density alone the matrix would get chunks of 256 columns, 139 KB by 64."""
    cupy = _arrays.cupy_module()
    small = chip()._replace(most_shared=99 << 10, compute_capability="86")
    monkeypatch.setattr(hybrid_stream, "chip", lambda device: small)
    w = np.zeros((1000, 1100), np.float16)
    w[32:48] = rng.integers(1, 4, (16, 1100))
    b = rng.integers(-2, 3, (1100, n)).astype(np.float16)
    layout = hybrid_stream.prepare(cupy.asarray(w), lookup("float16"), 0.016)
    assert layout.span == hybrid_stream.LEAST_SPAN
    out = cupy.full((1000, n), cupy.nan, np.float16)
    hybrid_stream.product(layout, cupy.asarray(b), out)
    np.testing.assert_array_equal(out.get(), (w.astype(np.int64) @ b).astype(np.float16))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["iid", "beta2", "row_skewed", "dead_columns", "banded", "block"])
def test_error_is_that_of_a_dense_product(rng, name):
    cupy = pytest.importorskip("cupy")
    w = families.make(name, (1024, 2048), zeros=0.7, dtype="float16", rng=rng)
    b = rng.standard_normal((2048, 16)).astype(np.float16)
    want = w.astype(np.float64) @ b.astype(np.float64)
    h = hybrid(cupy.asarray(w))
    dense = cupy.matmul(cupy.asarray(w), cupy.asarray(b)).get()
    error = np.abs(product(h, b).astype(np.float64) - want).max()
    assert error <= 2 * np.abs(dense.astype(np.float64) - want).max()


@pytest.mark.gpu
def test_strides_special_values_and_repeats(rng):
    cupy = pytest.importorskip("cupy")
    w = families.make("iid", (200, 600), zeros=0.6, dtype="float16", rng=rng)
    w[0, 0], w[1, 5], w[2, 3] = np.nan, np.inf, -0.0
    h = hybrid(cupy.asarray(w))
    wide = cupy.asarray(rng.standard_normal((40, 1200)).astype(np.float16))
    for b in (wide[:, :600].T, wide[:, 1:1201:2][:, :600].T[:, :40], wide[:24, :600].T.copy()):
        got = h.matmul(b, algorithm="stream")
        assert cupy.isnan(got[0]).all()
        assert not cupy.isfinite(got[1]).any()
        dense = w[2:].astype(np.float32) @ b.get().astype(np.float32)
        np.testing.assert_allclose(got[2:].get(), dense, rtol=2e-2, atol=6e-2)
        again = h.matmul(b, algorithm="stream")
        np.testing.assert_array_equal(got.get().view(np.uint16), again.get().view(np.uint16))
    out = cupy.full((400, 40), np.nan, np.float16)[::2]
    h.matmul(wide[:, :600].T, out=out, algorithm="stream")
    assert cupy.isfinite(out[2:]).all()


@pytest.mark.gpu
def test_layout_is_smaller_than_dense(rng):
    cupy = pytest.importorskip("cupy")
    for zeros in (0.6, 0.7, 0.8, 0.9, 0.95):
        w = families.make("iid", (512, 4096), zeros=zeros, dtype="float16", rng=rng)
        layout = hybrid_stream.prepare(cupy.asarray(w), lookup("float16"), 1 - zeros)
        assert layout.nbytes < 0.8 * w.nbytes
        expected = hybrid_stream.expected_bytes(w.shape, 1 - zeros)
        np.testing.assert_allclose(layout.nbytes, expected, rtol=0.05)
    assert _arrays.is_cupy(layout.blob)


CONFIGS = [
    hybrid_stream.Config(1, 2, 1, 1, 640, 1, 3),
    hybrid_stream.Config(2, 3, 1, 2, 256, 1, 2),
    hybrid_stream.Config(1, 3, 2, 2, 128, 2, 3),
    hybrid_stream.Config(1, 4, 4, 1, 128, 2, 2),
    hybrid_stream.Config(3, 1, 8, 2, 256, 2, 2),
    hybrid_stream.Config(2, 2, 1, 2, 384, 1, 2, wgmma=False),
    hybrid_stream.Config(1, 2, 8, 1, 128, 2, 3, wgmma=False),
    hybrid_stream.Config(2, 1, 2, 4, 384, 1, 3),
    hybrid_stream.Config(4, 1, 2, 8, 256, 1, 2),
    hybrid_stream.Config(1, 1, 4, 3, 128, 3, 4),
    hybrid_stream.Config(1, 1, 8, 2, 128, 4, 4),
    hybrid_stream.Config(2, 1, 1, 3, 384, 1, 2, wgmma=False),
]


@pytest.mark.gpu
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
@pytest.mark.parametrize("family", ["iid", "row_skewed", "banded"])
def test_every_way_of_cutting_up_is_exact(rng, config, family):
    cupy = pytest.importorskip("cupy")
    keep = families.make(family, (700, 1130), zeros=0.8, rng=rng) != 0
    w = (keep * rng.integers(1, 4, keep.shape)).astype(np.float16)
    b = rng.integers(-2, 3, (1130, 8 * config.tiles)).astype(np.float16)
    layout = hybrid_stream.prepare(cupy.asarray(w), lookup("float16"), 0.2)
    for balance in (True, False, False):  # the third time follows another without a pause
        out = cupy.full((700, b.shape[1]), np.nan, np.float16)
        hybrid_stream.product(layout, cupy.asarray(b), out, balance=balance, config=config)
        np.testing.assert_array_equal(out.get(), (w.astype(np.int64) @ b).astype(np.float16))


@pytest.mark.gpu
def test_streams_do_not_meet(rng):
    cupy = pytest.importorskip("cupy")
    w = rng.integers(-3, 4, (1500, 2000)) * (rng.random((1500, 2000)) >= 0.8)
    layout = hybrid_stream.prepare(cupy.asarray(w.astype(np.float16)), lookup("float16"), 0.2)
    config = hybrid_stream.Config(2, 1, 2, 4, 512, 1, 3)
    right = [rng.integers(-1, 2, (2000, 16)) * (rng.random((2000, 16)) < 0.1) for _ in range(8)]
    b = [cupy.asarray(x.astype(np.float16)) for x in right]
    out = [cupy.full((1500, 16), np.nan, np.float16) for _ in b]
    cupy.cuda.Device().synchronize()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
    for i, (x, y) in enumerate(zip(b, out)):
        with streams[i % 4]:
            hybrid_stream.product(layout, x, y, config=config)
    cupy.cuda.Device().synchronize()
    for x, y in zip(right, out):
        np.testing.assert_array_equal(y.get(), (w @ x).astype(np.float16))
