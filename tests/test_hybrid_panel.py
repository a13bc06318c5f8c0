"""The panel kernel: its layout on the CPU, its products on the GPU."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hybrid_cases import lengths_of

from sparse24 import families
from sparse24._dtypes import lookup
from sparse24._hybrid import lines as hybrid_lines
from sparse24._hybrid import predict as hybrid_predict
from sparse24._hybrid.cublas import dense_time
from sparse24.kernels import hybrid_panel, hybrid_panel_mix, reference_panel
from sparse24.kernels.chip import H200, Chip
from sparse24.kernels.hybrid_panel_layout import BANKS, PADDING, STEP
from sparse24.kernels.hybrid_panel_mix import mix_rows
from sparse24.kernels.hybrid_panel_order import bank_order
from sparse24.kernels.hybrid_panel_plan import (
    Config,
    configure,
    effort,
    form_of,
    lines_of,
    most_columns,
    plan,
)

pytestmark = pytest.mark.stem("hybrid_panel")
A100, RTX_50 = Chip(108, 163 << 10, "80"), Chip(170, 99 << 10, "120")


TYPES = ("float16", "float32", "float64")


def turns_of(begin, end):
    """(step, turn of it) of a unit's part in a panel."""
    count = 4 * (end // 4 - begin // 4) - -begin % 4
    return [(begin // 4 + turn // 4, turn % 4) for turn in range(count)]


def plain(turn):
    """Row, and index of the element and of the place in a step, of all 32 of a turn."""
    return [(lane, (lane, turn), (lane, turn)) for lane in range(32)]


def fragment(turn):
    """The same of a fragment of mma.sp: 16 rows, of which a lane has elements of two.

    The codes say that a row's elements stand first and second of four lines, or third and fourth.
    """
    found = []
    for lane, second, upper in np.ndindex(32, 2, 2):
        row, four = lane // 4, lane % 4
        if row // 2 ^ four ^ 2 * second == turn:
            line = 16 * upper + 4 * four + 2 * (row % 2) + second
            found.append((row + 8 * upper, (lane, 2 * upper + second), (line, turn)))
    assert sorted(place for _, _, place in found) == [(line, turn) for line in range(32)]
    return found


TAKEN = {
    2: [tuple(map(np.array, zip(*fragment(turn)))) for turn in range(4)],
    4: [tuple(map(np.array, zip(*plain(turn)))) for turn in range(4)],
}
TAKEN[8] = TAKEN[4]


def walk(layout):
    """The dense matrix of bits, read as the kernel reads it."""
    m, k = layout.shape
    lines, panels, units = layout.lines, layout.panels, len(layout.units)
    values, places = (x.reshape(-1, 32, STEP) for x in layout.arrays[:2])
    begins, heights, rows = layout.arrays[2:]
    rows = rows.reshape(units, -1)
    dense = np.zeros((m, panels * lines), values.dtype)
    for panel in range(panels):
        for unit in range(units):
            for step, turn in turns_of(*begins[panel * units + unit :][:2]):
                line, at, place_at = TAKEN[values.itemsize][turn]
                element, place = values[step][tuple(at.T)], places[step][tuple(place_at.T)]
                real = place < lines
                assert not element[~real].any()
                assert (place[~real] < lines + 8).all()
                row = rows[unit, line[real] % heights[unit]]
                column = panel * lines + place[real]
                assert (row >= 0).all()
                assert not dense[row, column].any()
                dense[row, column] = element[real]
    return dense[:, :k]


def draw(family, shape, zeros, rng, dtype="float32"):
    return families.make(family, shape, zeros=zeros, dtype=dtype, rng=rng)


def lay_out(w, **how):
    dtype = lookup(w.dtype)
    return hybrid_panel.prepare(w.view(dtype.storage), dtype, **how)


@pytest.mark.parametrize("shape", [(1, 1), (33, 70), (70, 1500), (40, 9000)])
@pytest.mark.parametrize("zeros", [0.0, 0.7, 0.999, 1.0])
@pytest.mark.parametrize("family", ["iid", "row_skewed", "power_law"])
@pytest.mark.parametrize(
    ("dtype", "where"), [("float16", H200), ("float32", H200), ("float32", RTX_50)]
)
def test_layout_holds_every_element_once(rng, shape, zeros, family, dtype, where):
    w = draw(family, shape, zeros, rng, dtype)
    layout = lay_out(w, where=where)
    np.testing.assert_array_equal(walk(layout), w.view(lookup(dtype).storage))
    assert sorted(layout.arrays.rows[layout.arrays.rows >= 0]) == list(range(shape[0]))


@pytest.mark.parametrize("shape", [(1, 1), (33, 70), (300, 700), (70, 9000)])
@pytest.mark.parametrize("zeros", [0.0, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("dtype", TYPES)
def test_layout_is_that_of_the_reference(rng, monkeypatch, shape, zeros, dtype):
    monkeypatch.setattr(hybrid_panel_mix, "TRIES", 400)
    w = draw("row_skewed", shape, zeros, rng, dtype)
    layout = lay_out(w)
    want = reference_panel.lay_out(w.view(lookup(dtype).storage), layout.units, layout.lines)
    for got, expected in zip(layout.arrays, want, strict=True):
        np.testing.assert_array_equal(got, expected)
        assert got.dtype == expected.dtype


def servings(layout):
    """How often shared memory serves eight lanes of the layout, over the least there can be."""
    places = layout.arrays.places.reshape(-1, 32, STEP)
    turns = [turn for part in itertools.pairwise(layout.arrays.begins) for turn in turns_of(*part)]
    step, turn = np.array(turns).T
    eights = np.sort(places[step, :, turn].reshape(-1, 8).astype(int))
    other = np.diff(eights, axis=1, prepend=-1) != 0  # lanes that read the same are served at once
    banks = [np.count_nonzero(other & (eights % 8 == bank), axis=1) for bank in range(8)]
    return np.max(banks, axis=0).mean()


@pytest.mark.parametrize("zeros", [0.3, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("dtype", TYPES)
def test_neighbouring_lanes_read_different_banks(rng, zeros, dtype):
    """Units of 1 to 32 rows: by chance eight lanes would be served 2.7 times."""
    assert servings(lay_out(draw("iid", (256, 4096), zeros, rng, dtype))) < 1.12


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


def test_panels_take_the_room_there_is():
    most = [most_columns(chip.most_shared) for chip in (H200, A100, RTX_50)]
    assert most == [14336, 10240, 6144]
    assert [lines_of(k, H200, 2) for k in (1, 512, 513, 14336)] == [512, 512, 1024, 14336]
    assert [lines_of(4096, chip) for chip in (H200, A100, RTX_50)] == [4096, 2048, 2048]
    assert [lines_of(k, H200) for k in (1, 512, 513, 3000, 65536)] == [512, 512, 1024, 4096, 4096]


@pytest.mark.parametrize("chip", [H200, A100, RTX_50])
@pytest.mark.parametrize("family", ["iid", "row_skewed"])
@pytest.mark.parametrize("n", [64, 512, 4096])
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_the_plan_fills_the_chip(chip, family, n, itemsize):
    lengths = lengths_of(family, (4096, 4096), 0.9)
    units = plan(lengths, itemsize)
    config = configure(units, 4096, n, chip, itemsize)
    assert config.shared_memory(lines_of(4096, chip, itemsize)) <= chip.most_shared
    blocks = config.groups(n) * config.shares
    assert blocks > 0.85 * -(-blocks // chip.multiprocessors) * chip.multiprocessors
    multiply_adds, nbytes = effort(units, 4096, n, chip, itemsize)
    assert lengths.sum() * n <= multiply_adds < 1.3 * lengths.sum() * n
    assert nbytes > (2 + itemsize) * lengths.sum()


@pytest.mark.parametrize(
    ("shape", "zeros", "most"), [((768, 768), 0.9, 1024), ((2048, 2048), 0.9, 3300)]
)
def test_long_units_of_small_matrices_are_cut_until_there_are_enough(shape, zeros, most):
    lengths = lengths_of("iid", shape, zeros)
    units, fewer = plan(lengths), plan(lengths, multiprocessors=16)
    assert units.words.max() <= most
    assert len(units) >= min(132, lengths.sum() / most)
    assert len(fewer) <= len(units)
    few_words = lengths_of("iid", (768, 768), 0.99)
    np.testing.assert_array_equal(plan(few_words).heights, 32)
    assert plan(lengths_of("iid", (4096, 4096), 0.9)).words.max() > 3300


@pytest.mark.parametrize("zeros", [0.9, 0.99])
def test_few_columns_are_spread_over_the_chip(zeros):
    units = plan(lengths_of("iid", (4096, 4096), zeros))
    config = configure(units, 4096, 8, H200)
    assert config.groups(8) * config.shares > 60


@pytest.mark.parametrize("units", [1, 15, 64, 65, 200, 257])
def test_warps_take_as_many_units_each(units):
    for planes in (1, 2, 3):
        for shares in (1, 2, 7):
            config = Config(planes, shares, 2)
            warps, mine = config.warps(units), -(-units // shares)
            assert config.most_warps // 2 <= warps <= config.most_warps
            assert -(-mine // warps) == -(-mine // config.most_warps) == config.rounds(units)


def test_many_columns_take_wide_panels():
    units = plan(lengths_of("iid", (4096, 4096), 0.9))
    assert configure(units, 4096, 4096, H200).planes > 1


@pytest.mark.parametrize("itemsize", [2, 4])
def test_dear_units_come_first(itemsize):
    units = plan(lengths_of("power_law", (2048, 2048), 0.99), itemsize)
    assert (np.diff(units.words) <= 0).all()
    assert units.heights.max() == form_of(itemsize).height


def predicted(dtype, shape, zeros, n):
    """Seconds of the panel path, None if it is refused, and of the dense product on an H200."""
    lines, device = hybrid_lines.H200_LINES, H200
    dtype = lookup(dtype)
    units = plan(lengths_of("iid", shape, zeros), dtype.itemsize)
    h = SimpleNamespace(
        _dtype=dtype, shape=shape,
        prepared=lambda name, make: SimpleNamespace(value=units),
    )  # fmt: skip
    seconds = hybrid_predict._panel_time(h, n, lines, device).get("panel")
    return seconds, dense_time(shape, dtype, n, lines, device, 1 - zeros)


@pytest.mark.parametrize(
    ("dtype", "loses", "pays"),
    [("float32", 0.5, 0.97), ("float16", 0.95, 0.995), ("float64", 0.7, 0.98)],
)
@pytest.mark.parametrize("n", [64, 512, 4096])
def test_it_is_predicted_to_pay_where_zeros_are_many(dtype, loses, pays, n):
    for zeros in (loses, pays):
        seconds, dense = predicted(dtype, (4096, 4096), zeros, n)
        if dtype != "float16" or n > 64:
            assert (seconds < 0.95 * dense) == (zeros == pays)


def test_long_rows_of_16_bits_are_left_to_other_paths():
    assert predicted("float16", (64, 14336), 0.99, 512)[0] is not None
    assert predicted("float16", (64, 14848), 0.99, 512)[0] is None
    assert predicted("float32", (64, 14848), 0.99, 512)[0] is not None


def test_refuses_in_words():
    most = H200.most_shared
    assert hybrid_panel.refuses(10**6, lookup("float32"), most) is None
    assert hybrid_panel.refuses(14336, lookup("bfloat16"), most) is None
    assert "int8" in hybrid_panel.refuses(8, lookup("int8"), most)
    assert "up to 14336 columns of float16 here, not 14337" in hybrid_panel.refuses(
        14337, lookup("float16"), most
    )
