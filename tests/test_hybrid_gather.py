"""The gather kernel: its layout on the CPU, its products on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

from sparse24 import families
from sparse24._dtypes import lookup
from sparse24.kernels import hybrid_gather
from sparse24.kernels.hybrid_gather_layout import PANEL, STEP

pytestmark = pytest.mark.stem("hybrid_gather")


def walk(layout):
    """The dense matrix of bits, read as the kernel reads it."""
    m, k = layout.shape
    height, panels, units = layout.height, layout.panels, layout.units
    words = layout.words.reshape(-1, 32, STEP)
    dense = np.zeros((m, panels * PANEL), np.uint16)
    for panel in range(panels):
        for unit in range(units):
            first, last = layout.begins[panel * units + unit :][:2]
            _, lane, _ = np.indices(words[first:last].shape)
            held = words[first:last]
            real = held != 0
            row = layout.rows[unit * height + lane[real] % height]
            column = panel * PANEL + (held[real] & 0xFFFF) // 16
            assert not dense[row, column].any()
            dense[row, column] = held[real] >> 16
    return dense[:, :k]


@pytest.mark.parametrize("shape", [(1, 1), (33, 70), (70, 1500), (40, 9000)])
@pytest.mark.parametrize("zeros", [0.0, 0.7, 0.999, 1.0])
@pytest.mark.parametrize("height", [8, 16, 32])
def test_layout_holds_every_element_once(rng, shape, zeros, height):
    w = families.make("iid", shape, zeros=zeros, dtype="float16", rng=rng).view(np.uint16)
    layout = hybrid_gather.prepare(w, lookup("float16"), height=height)
    np.testing.assert_array_equal(walk(layout), w)


def test_neighbouring_lanes_read_different_banks(rng):
    w = families.make("iid", (32, 4096), zeros=0.9, dtype="float16", rng=rng).view(np.uint16)
    layout = hybrid_gather.prepare(w, lookup("float16"), height=32)
    lines = np.moveaxis((layout.words & 0xFFFF).reshape(-1, 4, 8, 4) // 16, 2, 3).reshape(-1, 8)
    fullest = [np.bincount(np.unique(eight) % 8).max() for eight in lines]
    assert np.mean(fullest) < 1.5  # by chance it would be 2.7


@pytest.mark.parametrize("n", [1, 4, 8, 16])
@pytest.mark.parametrize("m", [1, 500, 4096, 14336])
def test_blocks_are_full(m, n):
    height = hybrid_gather.height_for(m, 2)
    units = -(-m // height)
    config = hybrid_gather.configure(units, 2, n, 132, height)
    assert config.width == n
    assert config.group % config.held == 0
    most = 24 if config.planes > 1 else 32
    assert 0.75 * most <= config.units * config.group <= most
    assert config.shared_memory <= 227 << 10


@pytest.mark.parametrize("n", [8, 16])
@pytest.mark.parametrize("shape", [(4096, 4096), (14336, 4096), (8192, 8192), (4096, 14336)])
def test_blocks_run_at_once(shape, n):
    panels = -(-shape[1] // PANEL)
    height = hybrid_gather.height_for(shape[0], panels)
    units = -(-shape[0] // height)
    config = hybrid_gather.configure(units, panels, n, 132, height)
    shares = -(-panels // config.held) * -(-n // config.width)
    assert -(-units // config.units) * shares <= 132


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
def test_empty_matrix():
    cupy = pytest.importorskip("cupy")
    layout = hybrid_gather.prepare(cupy.zeros((70, 90), np.uint16), lookup("float16"), cupy)
    out = cupy.full((70, 3), np.nan, np.float16)
    hybrid_gather.product(layout, cupy.ones((90, 3), np.float16), out)
    assert not out.any()
