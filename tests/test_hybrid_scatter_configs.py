"""How the scatter path is cut for a chip: blocks that share bands, clusters and columns."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scatter_cases import all_alike

from sparse24._dtypes import lookup
from sparse24.kernels import hybrid_scatter, tensor_map
from sparse24.kernels.hybrid_scatter_plan import WRITERS, Config, deal, tiles_of
from sparse24.kernels.hybrid_scatter_units import Units, columns_of_units, rows_of_bands

pytestmark = pytest.mark.stem("hybrid_scatter")


def test_so_many_blocks_share_a_band_that_they_add_up_in_a_second_launch_only_where_it_pays():
    short, long = all_alike(3, 24), all_alike(1, 1024)
    assert (len(deal(short, 132, 1).cuts) - 1) / 3 <= 22  # may wait for one another
    assert len(deal(long, 132, 1).cuts) - 1 > 120


@pytest.mark.parametrize(
    ("bands", "cluster"), [(64, 2), (66, 2), (67, 1), (30, 4), (32, 1), (112, 1), (40, 1)]
)
def test_clusters_where_they_fill_the_chip(bands, cluster):
    dealt = deal(all_alike(bands, 64), 132, 4)
    assert dealt.cluster == cluster
    if cluster > 1:
        assert len(dealt.cuts) - 1 == cluster * bands
        assert np.isin(dealt.bands, dealt.cuts).all()
    assert deal(all_alike(bands, 64), 132, 4, clusters=False).cluster == 1


@pytest.mark.parametrize(("bands", "cluster"), [(64, 2), (30, 1)])
def test_sums_of_eight_columns_are_too_few_to_share_by_four(bands, cluster):
    dealt = deal(all_alike(bands, 64), 132, 1)
    assert dealt.cluster == cluster
    assert len(dealt.cuts) - 1 >= 2 * bands


def test_no_cluster_where_a_block_would_have_nothing():
    sizes = np.zeros((33, 64, 2), int)
    sizes[:, :1] = 4
    assert deal(Units(sizes), 132, 4).cluster == 1


@pytest.mark.parametrize("base", [False, True])
@pytest.mark.parametrize("n", [1, 3, 8, 9, 16, 17, 32, 64, 65, 128])
@pytest.mark.parametrize("cluster", [1, 2, 4])
@pytest.mark.parametrize("columns", [64, 128])
def test_the_config_fits(n, base, cluster, columns):
    config = Config(tiles_of(n), base, cluster, columns)
    assert config.shared_memory <= 227 << 10
    assert 8 * config.tiles >= n
    assert (4 if n <= 64 or columns == 64 else 3) <= config.stages <= WRITERS


def test_no_more_tiles_than_the_columns_take():
    found = [tiles_of(n) for n in (1, 8, 9, 16, 17, 32, 33, 64, 65, 96, 97, 128)]
    assert found == [1, 1, 2, 2, 4, 4, 8, 8, 12, 12, 16, 16]


@pytest.mark.parametrize(
    ("m", "rows"), [(4096, 128), (8192, 128), (14336, 112), (11008, 88), (100000, 128), (100, 104)]
)
def test_bands_are_as_many_as_keep_the_chip_busy(m, rows):
    assert rows_of_bands(m, 132) == rows


@pytest.mark.parametrize(
    ("m", "k", "columns"),
    [
        (4096, 4096, 128), (4224, 4096, 128), (4225, 4096, 64), (3700, 4096, 64), (2048, 4096, 64),
        (4096, 14336, 64), (8192, 8192, 64), (14336, 4096, 64),
    ],
)  # fmt: skip
def test_units_are_flat_where_two_blocks_then_have_a_band(m, k, columns):
    assert columns_of_units(m, k, 132) == columns


def test_flat_units_let_clusters_of_two_have_the_bands():
    flat = Units(np.full((64, 32, 2), 3), rows=64, columns=128)
    assert deal(flat, 132, 4).cluster == 2
    assert deal(Units(np.full((32, 64, 2), 3)), 132, 4).cluster == 1
    assert deal(flat, 132, 1).cluster == 1  # a single piece


@pytest.mark.parametrize(
    ("k", "pitch", "columns", "as_lines"),
    [(192, 8, 8, True), (200, 8, 8, False), (192, 16, 8, False), (192, 16, 16, False)],
)
def test_rows_of_sixteen_bytes_come_as_lines(monkeypatch, k, pitch, columns, as_lines):
    maps = []
    monkeypatch.setattr(tensor_map, "tiled", lambda *how, **_: maps.append(how))
    storage = np.zeros((k, pitch), np.uint16)
    data = SimpleNamespace(ptr=0)
    b = SimpleNamespace(shape=(k, columns), strides=storage.strides, data=data)
    hybrid_scatter._b_map(b, columns)
    boxes = (columns, k, 1), (2 * pitch, 2 * pitch * k), (columns, 64), 2
    lines = (256, k - 63, 1), (16, 16 * (k - 63)), (256, 1), 4
    assert maps == [(0, *(lines if as_lines else boxes))]


def test_up_to_eight_columns_may_have_any_strides():
    assert [hybrid_scatter.takes_any(n) for n in (1, 8, 9, 128)] == [True, True, False, False]


def test_refuses_in_words():
    half = lookup("float16")
    assert hybrid_scatter.refuses(half, 64, "90") is None
    assert "8.0" not in hybrid_scatter.refuses(half, 64, "80")
    assert "80" in hybrid_scatter.refuses(half, 64, "80")
    assert "float32" in hybrid_scatter.refuses(lookup("float32"), 4, "90")
    assert hybrid_scatter.refuses(half, 128, "90") is None
    assert "129" in hybrid_scatter.refuses(half, 129, "90")
