"""The panel kernel: its layout on the CPU, its products on the GPU."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sparse24 import _hybrid_cost, _hybrid_predict, families
from sparse24._dtypes import lookup
from sparse24._hybrid import hybrid
from sparse24.kernels import hybrid_panel, reference_panel
from sparse24.kernels.hybrid_gather_plan import H200, Chip
from sparse24.kernels.hybrid_panel_layout import BANKS, PADDING, STEP
from sparse24.kernels.hybrid_panel_order import bank_order, mix_rows
from sparse24.kernels.hybrid_panel_plan import (
    Config,
    configure,
    effort,
    lines_of,
    plan,
)

pytestmark = pytest.mark.stem("hybrid_panel")
A100, RTX_50 = Chip(108, 163 << 10), Chip(170, 99 << 10)


def walk(layout):
    """The dense matrix of bits, read as the kernel reads it."""
    m, k = layout.shape
    lines, panels, units = layout.lines, layout.panels, len(layout.units)
    values, places = (x.reshape(-1, 32, STEP) for x in layout.arrays[:2])
    begins, heights, rows = layout.arrays[2:]
    dense = np.zeros((m, panels * lines), np.uint32)
    for panel in range(panels):
        for unit in range(units):
            first, last = begins[panel * units + unit :][:2]
            held, place = values[first:last], places[first:last]
            _, lane, _ = np.indices(held.shape)
            real = place < lines
            assert not held[~real].any()
            assert (place[~real] < lines + 8).all()
            row = rows[unit * 32 + lane[real] % heights[unit]]
            column = panel * lines + place[real]
            assert (row >= 0).all()
            assert not dense[row, column].any()
            dense[row, column] = held[real]
    return dense[:, :k]


def draw(family, shape, zeros, rng):
    return families.make(family, shape, zeros=zeros, dtype="float32", rng=rng)


@pytest.mark.parametrize("shape", [(1, 1), (33, 70), (70, 1500), (40, 9000)])
@pytest.mark.parametrize("zeros", [0.0, 0.7, 0.999, 1.0])
@pytest.mark.parametrize("family", ["iid", "row_skewed", "power_law"])
@pytest.mark.parametrize("where", [H200, RTX_50])
def test_layout_holds_every_element_once(rng, shape, zeros, family, where):
    w = draw(family, shape, zeros, rng).view(np.uint32)
    layout = hybrid_panel.prepare(w, where=where)
    np.testing.assert_array_equal(walk(layout), w)
    assert sorted(layout.arrays.rows[layout.arrays.rows >= 0]) == list(range(shape[0]))


@pytest.mark.parametrize("shape", [(1, 1), (33, 70), (300, 700), (70, 9000)])
@pytest.mark.parametrize("zeros", [0.0, 0.7, 0.95, 1.0])
def test_layout_is_that_of_the_reference(rng, shape, zeros):
    w = draw("row_skewed", shape, zeros, rng).view(np.uint32)
    layout = hybrid_panel.prepare(w)
    want = reference_panel.lay_out(w, layout.units, layout.lines)
    for got, expected in zip(layout.arrays, want, strict=True):
        np.testing.assert_array_equal(got, expected)
        assert got.dtype == expected.dtype


def turns(places):
    """How often shared memory serves eight lanes of the layout, over the least there can be."""
    eights = np.moveaxis(places.reshape(-1, 4, 8, STEP), 2, 3).reshape(-1, 8)
    banks = [np.bincount(np.unique(eight) % 8).max() for eight in eights]
    return np.sum(banks) * 8 / places.size


@pytest.mark.parametrize("zeros", [0.3, 0.6, 0.9, 0.99])
def test_neighbouring_lanes_read_different_banks(rng, zeros):
    """Units of 1 to 32 rows: by chance eight lanes would take 2.7 turns."""
    w = draw("iid", (256, 4096), zeros, rng).view(np.uint32)
    assert turns(hybrid_panel.prepare(w).arrays.places) < 1.12


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_every_lane_reads_what_it_has(rng, share):
    """Also where one bank has most of the elements."""
    counts = rng.binomial(40, np.where(np.arange(BANKS) == 3, share, 0.1), (30, BANKS, BANKS))
    for group in counts:
        turn = int(group.sum(1).max() + rng.integers(0, 3))
        here = np.empty((turn, BANKS), np.uint8)
        bank_order(group.copy(), turn, here)
        for lane, wanted in enumerate(group):
            real = here[:, lane][here[:, lane] < PADDING]
            np.testing.assert_array_equal(np.bincount(real, minlength=BANKS), wanted)
        idle = here - PADDING * (here >= PADDING)
        for eight, bank in zip(here, idle):
            assert not set(bank[eight >= PADDING]) & set(eight[eight < PADDING])


def test_rows_that_need_the_same_bank_are_parted():
    counts = np.zeros((128, 1, BANKS), int)
    counts[np.arange(128), 0, np.arange(128) // 16] = 10  # neighbours are alike
    sets = np.arange(128) // 8
    order = mix_rows(counts, sets, np.full(128, 32))
    assert sorted(order) == list(range(128))
    fullest = counts[order].reshape(16, 8, BANKS).sum(1).max(1)
    assert fullest.mean() < 35  # of 80
    alone = mix_rows(counts, sets, np.repeat([32, 16], 64))
    assert (alone[:64] < 64).all()  # taller sets keep to themselves
    long = counts * (1 + np.arange(128)[:, None, None] % 2)
    assert (mix_rows(long, sets, np.full(128, 32)) % 2 == np.arange(128) % 2).all()


def lengths_of(family, shape, zeros):
    return -np.sort(-np.count_nonzero(draw(family, shape, zeros, 5), axis=1))


def test_panels_take_the_room_there_is():
    assert [lines_of(4096, chip) for chip in (H200, A100, RTX_50)] == [4096, 2048, 2048]
    assert [lines_of(k, H200) for k in (1, 512, 513, 3000, 65536)] == [512, 512, 1024, 4096, 4096]


@pytest.mark.parametrize("chip", [H200, A100, RTX_50])
@pytest.mark.parametrize("family", ["iid", "row_skewed"])
@pytest.mark.parametrize("n", [64, 512, 4096])
def test_the_plan_fills_the_chip(chip, family, n):
    lengths = lengths_of(family, (4096, 4096), 0.9)
    units = plan(lengths)
    config = configure(units, 4096, n, chip)
    assert config.shared_memory(lines_of(4096, chip)) <= chip.most_shared
    blocks = config.groups(n) * config.shares
    assert blocks > 0.85 * -(-blocks // chip.multiprocessors) * chip.multiprocessors
    multiply_adds, nbytes = effort(units, 4096, n, chip)
    assert lengths.sum() * n <= multiply_adds < 1.3 * lengths.sum() * n
    assert nbytes > 6 * lengths.sum()


@pytest.mark.parametrize("zeros", [0.9, 0.99])
def test_few_columns_are_spread_over_the_chip(zeros):
    units = plan(lengths_of("iid", (4096, 4096), zeros))
    config = configure(units, 4096, 8, H200)
    assert config.groups(8) * config.shares > 60


def test_many_columns_take_wide_panels():
    units = plan(lengths_of("iid", (4096, 4096), 0.9))
    assert configure(units, 4096, 4096, H200).planes > 1


def test_dear_units_come_first():
    words = plan(lengths_of("power_law", (2048, 2048), 0.95)).words
    assert (np.diff(words) <= 0).all()


def test_it_is_predicted_to_pay_where_zeros_are_many():
    lines, device = _hybrid_cost.H200_LINES, _hybrid_predict.Device("90", 227 << 10, 132)
    for zeros, pays in ((0.5, False), (0.97, True)):
        units = plan(lengths_of("iid", (4096, 4096), zeros))
        h = SimpleNamespace(
            tiles=SimpleNamespace(dtype=lookup("float32")), shape=(4096, 4096),
            prepared=lambda name, make, units=units: SimpleNamespace(value=units),
        )  # fmt: skip
        for n in (64, 512, 4096):
            seconds = _hybrid_predict._panel_time(h, n, lines, device)["panel"]
            dense = _hybrid_predict.dense_time(h.shape, h.tiles.dtype, n, lines)
            assert (seconds < dense) == pays
        h.tiles.dtype = lookup("float16")
        assert _hybrid_predict._panel_time(h, 64, lines, device) == {}


def test_refuses_in_words():
    assert hybrid_panel.refuses(lookup("float32")) is None
    assert "float16" in hybrid_panel.refuses(lookup("float16"))


def strided(cupy, x, order):
    """The same CuPy matrix by rows, by columns, or as every second element of a larger one."""
    if order == "rows":
        return cupy.asarray(x)
    if order == "columns":
        return cupy.asarray(np.ascontiguousarray(x.T)).T
    wide = cupy.full((x.shape[0], 2 * x.shape[1] + 3), cupy.nan, x.dtype)
    wide[:, 1::2][:, : x.shape[1]] = cupy.asarray(x)
    return wide[:, 1::2][:, : x.shape[1]]


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 5, 8, 12, 13, 64, 100, 513])
@pytest.mark.parametrize("shape", [(500, 70), (301, 4096), (77, 9001), (3000, 4097)])
@pytest.mark.parametrize("order", ["rows", "columns", "strided"])
def test_product(rng, n, shape, order):
    cupy = pytest.importorskip("cupy")
    w = draw("row_skewed", shape, 0.93, rng)
    w[3:40] = 0
    b = rng.standard_normal((shape[1], n)).astype(np.float32)
    want = w.astype(np.float64) @ b.astype(np.float64)
    layout = hybrid_panel.prepare(cupy.asarray(w).view(np.uint32), cupy)
    out = strided(cupy, np.full(want.shape, np.nan, np.float32), order)
    right = strided(cupy, b, order)
    hybrid_panel.product(layout, right, out)
    dense = cupy.asarray(w) @ cupy.asarray(b)
    error, usual = (np.linalg.norm(x.get() - want) for x in (out, dense))
    assert error <= 2 * usual
    assert not out[3:40].any()
    again = cupy.full_like(out, cupy.nan)
    hybrid_panel.product(layout, right, again)
    assert (out == again).all()


@pytest.mark.gpu
@pytest.mark.parametrize("planes", [1, 2, 3])
@pytest.mark.parametrize("shares", [1, 2, 7])
@pytest.mark.parametrize("n", [4, 24, 29])
def test_every_way_of_cutting_up_gives_the_same_bits(rng, planes, shares, n):
    cupy = pytest.importorskip("cupy")
    w = cupy.asarray(draw("row_skewed", (400, 5000), 0.9, rng))
    b = cupy.asarray(rng.standard_normal((5000, n)).astype(np.float32))
    layout = hybrid_panel.prepare(w.view(np.uint32), cupy)
    want, out = (cupy.full((400, n), cupy.nan, np.float32) for _ in range(2))
    hybrid_panel.product(layout, b, want)
    hybrid_panel.product(layout, b, out, config=Config(planes, shares))
    assert (out == want).all()


@pytest.mark.gpu
def test_what_is_not_finite_stays_where_it_counts(rng):
    cupy = pytest.importorskip("cupy")
    w = draw("iid", (200, 5000), 0.9, rng)
    w[11, 70], w[150, 4500] = np.nan, np.inf
    b = rng.standard_normal((5000, 16)).astype(np.float32)
    b[[0, 4096, 4999], [1, 2, 3]] = np.nan, np.inf, np.nan
    layout = hybrid_panel.prepare(cupy.asarray(w).view(np.uint32), cupy)
    out = cupy.empty((200, 16), np.float32)
    hybrid_panel.product(layout, cupy.asarray(b), out)
    touched = np.zeros((200, 16), bool)
    touched[[11, 150]] = True
    for row, column in ((0, 1), (4096, 2), (4999, 3)):
        touched[w[:, row] != 0, column] = True
    np.testing.assert_array_equal(~np.isfinite(out.get()), touched)


@pytest.mark.gpu
def test_a_product_can_be_captured(rng):
    cupy = pytest.importorskip("cupy")
    h = hybrid(cupy.asarray(draw("iid", (512, 1024), 0.95, rng)))
    b = cupy.asarray(rng.standard_normal((1024, 40)).astype(np.float32))
    want = h.matmul(b, algorithm="panel")
    out = cupy.zeros_like(want)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        h.matmul(b, out=out, algorithm="panel")
        stream.end_capture().launch(stream)
        stream.synchronize()
    assert (out == want).all()


@pytest.mark.gpu
def test_empty_matrix():
    cupy = pytest.importorskip("cupy")
    layout = hybrid_panel.prepare(cupy.zeros((70, 90), np.uint32), cupy)
    out = cupy.full((70, 9), cupy.nan, np.float32)
    hybrid_panel.product(layout, cupy.ones((90, 9), np.float32), out)
    assert not out.any()
