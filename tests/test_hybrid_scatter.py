"""The scatter kernel: its layout to the bit, and how units are dealt to blocks."""

from __future__ import annotations

import numpy as np
import pytest
from scatter_cases import all_alike

from sparse24 import families
from sparse24._dtypes import lookup
from sparse24.kernels import hybrid_scatter, reference_compress, reference_scatter
from sparse24.kernels.hybrid_scatter_plan import WRITERS, cycles_of, deal, effort
from sparse24.kernels.hybrid_scatter_schedule import leads, schedule
from sparse24.kernels.hybrid_scatter_units import TILE_COLUMNS, Units

pytestmark = pytest.mark.stem("hybrid_scatter")

BLOCKS = [1, 5, 7, 16, 132]


def matrix(family: str, shape, zeros: float) -> np.ndarray:
    return families.make(family, shape, zeros=zeros, dtype="float16", rng=3).view(np.uint16)


FORMS = [
    {"base": True, "rows": 128}, {"rows": 128}, {"rows": 112}, {"rows": 96},
    {"base": True, "rows": 64, "columns": 128}, {"rows": 64, "columns": 128},
    {"rows": 56, "columns": 128},
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("shape", [(1, 1), (128, 64), (300, 517), (129, 1000)])
def test_the_bytes_mean_the_matrix(shape, zeros, form):
    bits = matrix("iid", shape, zeros)
    data, units = reference_scatter.pack(bits, **form)
    assert len(data) == 128 * units.lines.sum()
    np.testing.assert_array_equal(reference_scatter.unpack(data, units, shape), bits)


def test_metadata_are_those_of_a_packed_matrix(rng):
    w = rng.integers(1, 9, (128, 64)) * (rng.random((128, 64)) < 0.3)
    unit = np.where(reference_scatter._spills(w), 0, w).astype(np.uint16)
    words = np.frombuffer(reference_scatter._pack_base(unit)[8192:], np.uint32).reshape(2, 4, 8, 4)
    metadata = reference_compress.compress(unit.view(np.float16))[1]
    atoms = reference_compress.pack_metadata(metadata, 64, 2).view(np.uint32).reshape(2, 4, 2, 8, 4)
    for lane in range(4):  # the atom's words: (warp, half of 32 columns, row, 32 columns)
        np.testing.assert_array_equal(words[..., lane], atoms[:, :, lane % 2, :, lane // 2])


@pytest.mark.parametrize(("zeros", "most"), [(0.6, 3.25), (0.8, 3.35), (0.9, 3.55), (0.95, 3.8)])
def test_little_is_stored_but_elements_and_rows(zeros, most):
    bits = matrix("iid", (1024, 1024), zeros)
    data, _ = reference_scatter.pack(bits)
    assert len(data) < most * np.count_nonzero(bits)


@pytest.mark.parametrize("base", [False, True])
@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.parametrize("blocks", BLOCKS)
def test_every_unit_that_holds_anything_is_dealt_once(blocks, balance, base, rng):
    sizes = rng.integers(0, 9, (7, 40, 2)) * (rng.random((7, 40, 1)) < 0.6)
    sizes[3] = 0
    units = Units(sizes, base)
    steps, parts, counts = schedule(units, deal(units, blocks, 2, balance=balance))
    assert len(steps) == len(parts) == len(counts) <= blocks
    lines = units.lines
    first = (np.cumsum(lines) - lines.ravel()).reshape(lines.shape)
    seen, bands = np.zeros_like(lines), []
    for own, of_bands, (count, number) in zip(steps, parts, counts):
        assert not (own["groups"] + own["lines"])[count:].any()
        assert len(own) - count >= 2 * WRITERS  # units are read ahead
        assert len(of_bands) > number  # and parts
        assert of_bands["steps"][:number].sum() == count
        assert of_bands["steps"][:number].min() > 0
        bands.extend(of_bands["band"][:number])
        for band, unit in zip(np.repeat(of_bands["band"], of_bands["steps"]), own):
            at = band, unit["column"] // TILE_COLUMNS
            assert (unit["groups"], unit["lines"]) == tuple(sizes[at])
            assert unit["first"] == first[at] or not lines[at]
            seen[at] += 1
    lines[3, 0] = 1  # rows without non-zeros are written, too
    np.testing.assert_array_equal(seen, lines > 0)
    np.testing.assert_array_equal(np.unique(bands), range(7))


@pytest.mark.parametrize("blocks", BLOCKS)
def test_blocks_of_a_band_know_of_one_another(blocks, rng):
    units = Units(rng.integers(1, 9, (9, 30, 2)))
    _, parts, counts = schedule(units, deal(units, blocks, 2))
    members = {band: [] for band in range(9)}
    for block, (of_block, (_, number)) in enumerate(zip(parts, counts)):
        for index, part in enumerate(of_block[:number]):
            members[part["band"]].append((block, index, part))
    for band in members.values():
        owner, begins, _ = band[0]
        assert [block for block, _, _ in band] == list(range(owner, owner + len(band)))
        assert all(index == 0 for _, index, _ in band[1:])
        for _, _, part in band:
            assert part["blocks"] == len(band)
            assert part["slot"] == 2 * owner + (begins > 0)


@pytest.mark.parametrize("turn", [1, 8])
@pytest.mark.parametrize("blocks", BLOCKS)
def test_what_is_fetched_ahead_are_the_first_units(blocks, turn, rng):
    units = Units(rng.integers(0, 9, (7, 40, 2)) * (rng.random((7, 40, 1)) < 0.6))
    dealt = deal(units, blocks, 2)
    steps, _, counts = schedule(units, dealt)
    ahead = leads(units, dealt, turn)[0]
    lines = dict(zip(np.cumsum(units.lines) - units.lines.ravel(), units.lines.ravel()))
    for own, (count, _), first, fetched in zip(steps, counts, ahead["first"], ahead["lines"]):
        held = [at for at in own["first"][: min(turn, count)] if lines[at]]
        assert first == own["first"][0]
        assert fetched == sum(lines[at] for at in held)
    assert not ahead["lines"][len(steps) :].any()


def cost(units, dealt):
    return np.add.reduceat(cycles_of(units, 2).ravel()[dealt.units], dealt.cuts[:-1])


def test_balance_evens_the_shares():
    units = all_alike(2, 64)
    units.sizes[:, :16, 0] = 32
    even, plain = (cost(units, deal(units, 8, 2, balance=balance)) for balance in (True, False))
    assert even.max() < 0.75 * plain.max()


def test_units_that_cost_about_the_same_come_in_even_numbers(rng):
    units = Units(rng.integers(11, 14, (64, 32, 2)))
    for tiles in (1, 4):
        dealt = deal(units, 132, tiles)
        np.testing.assert_array_equal(np.diff(dealt.cuts), 16)


def test_bands_of_two_blocks_are_not_given_up_for_four_idle_multiprocessors():
    units = Units(np.full((64, 32, 2), 6), rows=64, columns=128)
    units.sizes[0] = 7
    assert len(deal(units, 132, 1).cuts) - 1 == 128
    long = Units(np.repeat(units.sizes, 16, axis=1), rows=64, columns=128)
    assert len(deal(long, 132, 1).cuts) - 1 == 132


def test_shares_pass_from_band_to_band_where_bands_do_not_divide_the_chip():
    some = Units(np.full((80, 128, 2), 6))  # 80 bands, one for each block, would leave 52 idle
    dealt = deal(some, 132, 2)
    assert len(dealt.cuts) - 1 == 132
    assert cost(some, dealt).max() < 0.63 * cycles_of(some, 2).sum(1).max()
    few = Units(np.full((112, 128, 2), 6))  # coming late to a band costs more than 20 idle blocks
    assert len(deal(few, 132, 2).cuts) - 1 == 112
    whole = all_alike(64, 128)  # two blocks a band leave four idle, and hand over less
    np.testing.assert_array_equal(deal(whole, 132, 2).cuts, np.arange(129) * 64)
    many = all_alike(200, 8)  # more bands than blocks
    assert cost(many, deal(many, 132, 2)).max() <= 13 * cycles_of(many, 2)[0, 0]


def test_a_small_product_shares_no_sums_where_that_takes_longer_than_it_spares():
    small = all_alike(12, 12)
    assert len(deal(small, 132, 2, clusters=False).cuts) - 1 == 48
    assert len(deal(small, 132, 8, clusters=False).cuts) - 1 == 12


@pytest.mark.parametrize(("across", "blocks"), [(12, 52), (36, 104)])
def test_blocks_leave_room_for_those_of_the_next_product_unless_that_takes_longer(across, blocks):
    assert len(deal(all_alike(26, across), 132, 4).cuts) - 1 == blocks


def test_effort_is_that_of_the_busiest_block():
    even = all_alike(66, 64)
    cycles, nbytes = effort(even, 16, 132)
    assert nbytes == 128 * even.lines.sum()
    few, _ = effort(Units(even.sizes[:62]), 16, 132)
    assert 0.94 < few / cycles <= 1
    uneven = even.sizes.copy()
    uneven[:, 0] = 31
    more, read = effort(Units(uneven), 16, 132)
    assert more > cycles
    assert read > nbytes
    nothing = Units(np.zeros((66, 64, 2), int))
    empty, _ = effort(nothing, 16, 132)
    assert empty == cycles_of(nothing, 2)[0, 0]  # a step that writes the zeros


@pytest.mark.gpu
@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.9, 0.97, 1.0])
@pytest.mark.parametrize("family", ["iid", "beta2", "dead_columns"])
@pytest.mark.parametrize("form", FORMS)
def test_packs_to_the_bit(family, zeros, form):
    cupy = pytest.importorskip("cupy")
    bits = matrix(family, (300, 1111), zeros)
    bits[0, 0] = 0x7E00  # a NaN
    want, units = reference_scatter.pack(bits, **form)
    form = {"base": False} | form
    layout = hybrid_scatter.prepare(cupy.asarray(bits), lookup("float16"), **form)
    np.testing.assert_array_equal(layout.units.sizes, units.sizes)
    np.testing.assert_array_equal(layout.data.get(), want)
