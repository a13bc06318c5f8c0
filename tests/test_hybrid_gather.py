"""The gather kernel: its layout on the CPU, its products on the GPU."""

from __future__ import annotations

import numpy as np
import pytest
from hybrid_cases import lengths_of

from sparse24 import families
from sparse24._dtypes import lookup
from sparse24.kernels import hybrid_gather
from sparse24.kernels.chip import H200
from sparse24.kernels.hybrid_gather_order import STEP
from sparse24.kernels.hybrid_gather_plan import (
    PANEL,
    configure,
    effort,
    plan,
    warps_of,
)
from sparse24.kernels.hybrid_units import deal, units_of

pytestmark = pytest.mark.stem("hybrid_gather")


def walk(layout):
    """The dense matrix of bits, read as the kernel reads it."""
    m, k = layout.shape
    panels, units, most = layout.panels, len(layout.units), layout.height
    words, begins, heights, rows = layout.arrays
    words = words.reshape(-1, 32, STEP)
    dense = np.zeros((m, panels * PANEL), np.uint16)
    for panel in range(panels):
        for unit in range(units):
            first, last = begins[panel * units + unit :][:2]
            _, lane, _ = np.indices(words[first:last].shape)
            held = words[first:last]
            real = held >> 16 != 0
            row = rows[unit * most + lane[real] % heights[unit]]
            column = panel * PANEL + (held[real] & 0xFFFF) // 16
            assert not dense[row, column].any()
            dense[row, column] = held[real] >> 16
    return dense[:, :k]


@pytest.mark.parametrize("shape", [(1, 1), (33, 70), (70, 1500), (40, 9000)])
@pytest.mark.parametrize("zeros", [0.0, 0.7, 0.999, 1.0])
@pytest.mark.parametrize("family", ["iid", "row_skewed", "power_law"])
@pytest.mark.parametrize("most_words", [1, 3000, 1 << 20, None])
def test_layout_holds_every_element_once(rng, shape, zeros, family, most_words):
    w = families.make(family, shape, zeros=zeros, dtype="float16", rng=rng).view(np.uint16)
    layout = hybrid_gather.prepare(w, lookup("float16"), most_words=most_words)
    np.testing.assert_array_equal(walk(layout), w)
    assert sorted(layout.arrays.rows[layout.arrays.rows >= 0]) == list(range(shape[0]))


def test_long_rows_come_few_to_a_unit():
    units = units_of(np.array([4000, 900, 800, 500, 490, 480, 100, 90, 80, 70, 1, 0]), 2000)
    np.testing.assert_array_equal(units.heights, [1, 2, 4, 16, 32])
    np.testing.assert_array_equal(units.firsts, [0, 1, 3, 6, 10])
    np.testing.assert_array_equal(units.words, [4000, 1800, 2000, 1600, 32])
    unit, line = units.places()
    np.testing.assert_array_equal(unit, [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4])
    np.testing.assert_array_equal(line, [0, 0, 1, 0, 1, 2, 0, 1, 2, 3, 0, 1])


@pytest.mark.parametrize("of_block", [1, 2, 3, 7])
def test_blocks_get_even_shares(of_block):
    units = units_of(lengths_of("row_skewed", (4096, 4096), 0.9), 4096)
    shares = deal(units, of_block)
    assert len(shares) % of_block == 0
    assert len(shares) - len(units) < of_block
    of_blocks = shares.words.reshape(-1, of_block).sum(1)
    if of_block > 1:
        assert of_blocks.max() < 1.25 * of_blocks.mean()
    for mine, theirs in zip(shares.places(), units.places()):
        assert mine.shape == theirs.shape
    np.testing.assert_array_equal(shares.places()[1], units.places()[1])


@pytest.mark.parametrize("family", ["iid", "row_skewed", "power_law", "banded"])
@pytest.mark.parametrize("zeros", [0.7, 0.95])
def test_units_take_about_the_same_time_whatever_the_rows(family, zeros):
    lengths = lengths_of(family, (4096, 4096), zeros)
    units = plan(lengths, 1)
    words, _ = effort(units, 4096, 1, H200)
    assert words < 1.5 * lengths.sum()


def test_rows_that_are_alike_make_units_that_are_alike():
    heights = plan(lengths_of("iid", (4096, 4096), 0.9), 1).heights
    assert np.bincount(heights).max() > 0.95 * len(heights)


@pytest.mark.parametrize("n", [1, 4, 8, 16])
@pytest.mark.parametrize("m", [1, 500, 4096, 14336])
def test_blocks_are_full(m, n):
    units = plan(np.full(m, 800), 2)
    config = configure(units, 2, n)
    assert config.columns == n
    assert config.group % config.held == 0
    least, most = warps_of(units, n, H200)
    assert 0.75 * least <= config.units * config.group <= most
    assert config.shared_memory <= 227 << 10


def test_blocks_with_few_words_have_few_warps():
    units = [units_of(np.full(528, length), 8 * length) for length in (100, 800, 8000)]
    assert [warps_of(u, 1, H200)[0] for u in units] == [8, 20, 32]
    assert [warps_of(u, 8, H200)[0] for u in units] == [24, 24, 24]


@pytest.mark.parametrize(("n", "alone"), [(4, 25), (8, 24)])
@pytest.mark.parametrize("family", ["iid", "beta5", "power_law", "row_skewed"])
def test_no_second_block_has_room_beside_one(family, n, alone):
    for zeros in (0.8, 0.9, 0.95):
        config = configure(plan(lengths_of(family, (4096, 4096), zeros), 1), 1, n)
        assert config.units * config.group >= alone


@pytest.mark.parametrize("n", [8, 16])
@pytest.mark.parametrize("shape", [(4096, 4096), (14336, 4096), (8192, 8192), (4096, 14336)])
def test_blocks_run_at_once(shape, n):
    panels = -(-shape[1] // PANEL)
    units = plan(np.full(shape[0], 800), panels)
    config = configure(units, panels, n)
    shares = -(-panels // config.held) * -(-n // config.columns)
    assert -(-len(units) // config.units) * shares <= 132


def test_refuses_in_words():
    assert hybrid_gather.refuses(65536, lookup("float16")) is None
    assert "float32" in hybrid_gather.refuses(64, lookup("float32"))
    assert "65537" in hybrid_gather.refuses(65537, lookup("bfloat16"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 13, 16, 40])
@pytest.mark.parametrize("shape", [(500, 1300), (77, 9001), (3000, 4097)])
def test_product(rng, dtype, n, shape):
    cupy = pytest.importorskip("cupy")
    w = families.make("row_skewed", shape, zeros=0.93, dtype=dtype, rng=rng)
    w[3:40] = 0
    b = families.make("iid", (shape[1], n), zeros=0.0, dtype=dtype, rng=rng)
    want = w.astype(np.float64) @ b.astype(np.float64)
    layout = hybrid_gather.prepare(cupy.asarray(w).view(np.uint16), lookup(dtype), cupy)
    out = cupy.full(want.shape, np.nan, w.dtype)
    hybrid_gather.product(layout, cupy.asarray(b), out)
    again = cupy.full(want.shape[::-1], np.nan, w.dtype).T
    hybrid_gather.product(layout, cupy.asarray(b.T.copy()).T, again)
    assert (out.view(np.uint16) == again.view(np.uint16)).all()
    rounding = {"float16": 1e-3, "bfloat16": 8e-3}[dtype]
    assert np.abs(out.get().astype(np.float64) - want).max() <= rounding * np.abs(want).max()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(77, 9000), (3000, 4096), (40, 8200), (500, 1304), (33, 20000)])
def test_vector_that_is_read_by_fours(rng, dtype, shape):
    cupy = pytest.importorskip("cupy")
    w = families.make("iid", shape, zeros=0.9, dtype=dtype, rng=rng)
    b = families.make("iid", (shape[1], 1), zeros=0.0, dtype=dtype, rng=rng)
    want = w.astype(np.float64) @ b.astype(np.float64)
    layout = hybrid_gather.prepare(cupy.asarray(w).view(np.uint16), lookup(dtype), cupy)
    out = cupy.full(want.shape, np.nan, w.dtype)
    hybrid_gather.product(layout, cupy.asarray(b), out)
    every_second = cupy.zeros((shape[1], 2), b.dtype)
    every_second[:, :1] = cupy.asarray(b)
    again = cupy.full(want.shape, np.nan, w.dtype)
    hybrid_gather.product(layout, every_second[:, :1], again)  # element by element
    assert (out.view(np.uint16) == again.view(np.uint16)).all()
    rounding = {"float16": 1e-3, "bfloat16": 8e-3}[dtype]
    assert np.abs(out.get().astype(np.float64) - want).max() <= rounding * np.abs(want).max()


@pytest.mark.gpu
def test_empty_matrix():
    cupy = pytest.importorskip("cupy")
    layout = hybrid_gather.prepare(cupy.zeros((70, 90), np.uint16), lookup("float16"), cupy)
    out = cupy.full((70, 3), np.nan, np.float16)
    hybrid_gather.product(layout, cupy.ones((90, 3), np.float16), out)
    assert not out.any()
