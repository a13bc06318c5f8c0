"""Unstructured matrices times many columns on Hopper: exact on whole numbers, as good as dense."""

from __future__ import annotations

import numpy as np
import pytest
from strip_cases import CUT, REWRITES, hopper, layout_for

from sparse24 import families
from sparse24._dtypes import TABLE
from sparse24.kernels import hybrid_wgmma
from sparse24.kernels import hybrid_wgmma_plan as plan
from sparse24.kernels.hybrid_strips import FIXED_SHARE, interleaved, tables
from sparse24.kernels.hybrid_wgmma_configs import SPECIALISATIONS
from sparse24.kernels.hybrid_wgmma_pieces import pieces

pytestmark = pytest.mark.stem("hybrid_wgmma")

SHAPES = [(300, 517, 128), (128, 128, 256), (1000, 2000, 520), (130, 4096, 301)]
CONFIGS = pytest.mark.parametrize("config", SPECIALISATIONS, ids=lambda c: c.name)
FIRST = plan.TABLES[128][0]


def test_refusals():
    refuses = hybrid_wgmma.refuses
    assert "9.0" in refuses(TABLE["float16"], 512, "80")
    assert "float32" in refuses(TABLE["float32"], 512, "90")
    assert "columns" in refuses(TABLE["float16"], 8, "90")
    assert refuses(TABLE["bfloat16"], 128, "90") is None


def test_the_choice_fills_the_chip(monkeypatch):
    monkeypatch.setattr(plan, "multiprocessors", lambda: 132)
    few = plan.Work(np.full(32, 66), 32 * 2)
    assert few.choose(4096) == FIRST
    assert few.choose(512) != FIRST
    macs, gathered = few.effort(FIRST, 132 * 256)  # whole waves
    assert macs == 66 * 64 * 4096 * 132 * 256
    assert gathered == 2 * 64 * 2 * 132 * 256 * 32
    uneven = plan.Work(np.repeat([132, 62], [2, 30]), 32 * 2)
    more, _ = uneven.effort(FIRST, 512)
    assert more > 2 * few.effort(FIRST, 512)[0]


@pytest.mark.parametrize("strips", [1, 5, 22, 32, 112])
@pytest.mark.parametrize("n", [1, 512, 4096])
def test_every_tile_is_walked_once(strips, n):
    tiles_n = -(-n // 256)
    for height in {1, min(22, strips), strips}:
        walked = plan.walk(strips, tiles_n, height)
        index = walked.strip * tiles_n + walked.column
        np.testing.assert_array_equal(np.sort(index), np.arange(strips * tiles_n))


def laid_out(atoms, rows: int, by_number: bool = False):
    """Tables and work of strips of so many atoms, of which half the stages are plain."""
    atoms = np.asarray(atoms)
    where = tables(atoms, 64 * atoms, rows)
    return where.table, plan.Work(where.lengths, where.gathered, rows, by_number)


STRIPS = {
    "alike": np.full(32, 65), "few": np.full(16, 33), "one": np.full(1, 600),
    "short": np.full(9, 2), "many": np.full(56, 33),
    "power": np.maximum(2, 300 // np.arange(1, 41)),
}  # fmt: skip


@CONFIGS
@pytest.mark.parametrize("name", STRIPS)
@pytest.mark.parametrize("n", [100, 512, 4096])
@pytest.mark.parametrize("by_number", [False, True])
def test_every_atom_is_multiplied_once_and_sums_meet(monkeypatch, config, name, n, by_number):
    monkeypatch.setattr(plan, "multiprocessors", lambda: 132)
    table, work = laid_out(STRIPS[name], config.block_m, by_number)
    dealt = pieces(table, work, config, n)
    assert (dealt["first"] == dealt["end"])[:, -1].all()
    assert len(dealt) <= 132 or config.parts > 1
    by_tile: dict[tuple, list] = {}
    for block, row in enumerate(dealt):
        used = int((row["first"] < row["end"]).sum())
        assert (row["first"] < row["end"])[:used].all()
        assert (row["helpers"] < 0).sum() <= 1
        for turn, piece in enumerate(row[:used]):
            by_tile.setdefault((piece["row"], piece["column"]), []).append((piece, block, turn))
    assert len(by_tile) == len(table) * -(-n // config.block_n)
    strips = {row: (at, at + stages, at + plain) for at, stages, plain, row, *_ in table}
    for (row, _), found in by_tile.items():
        found.sort(key=lambda item: item[0]["first"])
        first, end, plain = strips[row]
        edges = [first, *(piece["end"] for piece, _, _ in found)]
        assert edges == [*(piece["first"] for piece, _, _ in found), end]
        assert all(piece["first"] % 2 == piece["end"] % 2 == 0 for piece, _, _ in found)
        for piece, _, _ in found:
            assert piece["plain"] == np.clip(plain, piece["first"], piece["end"])
        blocks = [block for _, block, _ in found]
        np.testing.assert_array_equal(np.diff(blocks), 1)
        if config.parts == 1:
            helpers = [piece["helpers"] for piece, _, _ in found]
            assert helpers == [-1] * (len(found) - 1) + [len(found) - 1]
            assert all(turn == 0 for piece, _, turn in found if piece["helpers"] < 0)


@pytest.mark.parametrize("count", [4, 6, 34, 62, 128, 130])
def test_interleaved_stages_are_all_there_and_far_apart(count):
    order = interleaved(count)
    np.testing.assert_array_equal(np.sort(order), np.arange(count))
    share = [(order[i : i + 8] < count // 2).mean() for i in range(0, count - 7, 8)]
    assert all(0.25 <= x <= 0.75 for x in share)


def test_cut_tiles_fill_the_last_wave(monkeypatch):
    monkeypatch.setattr(plan, "multiprocessors", lambda: 132)
    config = plan.TABLES[256][0]
    table, work = laid_out(np.full(32, 65), 256)
    dealt = pieces(table, work, config, 4096)  # 704 tiles: 5 waves and a third
    stages = (dealt["end"] - dealt["first"]).sum(axis=1)
    assert stages.max() <= 1.02 * stages.mean()
    assert work.deal(config, 4096).busiest < 0.92 * 6 * 130
    assert work.deal(config, 33 * 192).cut == 0  # 8 waves
    table, work = laid_out(np.maximum(2, 300 // np.arange(1, 41)), 256)
    dealt = pieces(table, work, config, 4096)
    stages = (dealt["end"] - dealt["first"]).sum(axis=1)
    assert stages.max() <= 1.3 * stages.mean()


def test_strips_cost_what_they_multiply(monkeypatch):
    monkeypatch.setattr(plan, "multiprocessors", lambda: 132)
    lengths = np.full(32, 66)
    full = plan.Work(lengths, 66, 256, shares=np.ones(32))
    assert not full.skips
    assert full.choose(4096) == plan.Work(lengths, 66, 256).choose(4096) == plan.TABLES[256][0]
    half = plan.Work(lengths, 66, 256, shares=np.full(32, 0.5))
    assert half.skips
    assert half.choose(4096) in plan.SKIPPING
    np.testing.assert_allclose(half.costs, 66 * (0.5 + FIXED_SHARE / 2))
    macs, whole = (work.effort(work.choose(4096), 4096)[0] for work in (half, full))
    assert 0.6 * whole < macs < 0.85 * whole


def test_strips_that_differ_are_mixed(monkeypatch):
    monkeypatch.setattr(plan, "multiprocessors", lambda: 132)
    alike = plan.Work(np.full(32, 60), 0)
    assert alike.deal(FIRST, 4096).busiest == 4 * 60
    uneven = plan.Work(np.sort(np.arange(32) * 4 + 2)[::-1], 0)
    strip = plan.walk(32, 16, FIRST.band).strip[::132]  # 22 divides 132
    assert len(set(strip[:3])) == 1
    deal = uneven.deal(FIRST, 4096)
    assert len(set(deal.walk.strip[::132][:3])) > 1
    assert deal.busiest < 0.7 * 4 * uneven.lengths[0]  # four tiles of the longest strip


def test_sorted_rows_leave_tiles_of_long_strips_to_few_blocks(monkeypatch):
    monkeypatch.setattr(plan, "multiprocessors", lambda: 132)
    lengths = np.repeat([128, 66], [1, 31])
    table, work = laid_out(lengths // 2, 128, by_number=True)
    stages = pieces(table, work, FIRST, 4096)  # 3.9 waves, of which the first has 16 long tiles
    stages = (stages["end"] - stages["first"]).sum(axis=1)
    assert stages.max() == work.deal(FIRST, 4096).busiest <= 1.01 * 4 * 66
    assert plan.Work(lengths, 0).deal(FIRST, 4096).busiest == 3 * 66 + 128
    alike = plan.Work(np.full(32, 66), 0, by_number=True).deal(FIRST, 4096)
    np.testing.assert_array_equal(alike.owner, np.arange(512) % 132)


@pytest.mark.parametrize("rows", plan.TABLES)
def test_rows_stored_by_number_take_longer(monkeypatch, rows):
    monkeypatch.setattr(plan, "multiprocessors", lambda: 132)
    natural, by_number = (plan.Work(np.full(32, 66), 66, rows, x) for x in (False, True))
    for config in plan.TABLES[rows]:
        usual, more = (np.array(work.effort(config, 4096)) for work in (natural, by_number))
        np.testing.assert_allclose(more, plan.BY_NUMBER[rows] * usual)
    assert natural.choose(128).parts == 2
    assert by_number.choose(128).parts == 1


@CONFIGS
def test_shared_memory_fits(config):
    assert 4 <= config.stages <= 8
    assert config.shared_memory <= 232_448


@pytest.mark.gpu
@CONFIGS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_whole_numbers_are_exact(rng, monkeypatch, shape, dtype, config):
    cupy, row, (m, k, n) = hopper(), TABLE[dtype], shape
    tiles = rng.random((-(-m // 64), -(-k // 64))) < 0.4
    uneven = 0.3 * np.kron(tiles, np.ones((64, 64)))[:m, :k]
    for density in (0.0, 0.05, 0.3, uneven):
        w = rng.integers(-3, 4, (m, k)) * (rng.random((m, k)) < density)
        b = rng.integers(-1, 2, (k, n)) * (rng.random((k, n)) < 0.2)
        want = (w @ b).astype(row.logical).astype(np.float64)
        bits = cupy.asarray(w.astype(row.logical)).view(np.uint16)
        layout = layout_for(monkeypatch, config, bits, row)
        by_row = cupy.asarray(b.astype(row.logical))
        by_column = cupy.asarray(b.T.astype(row.logical)).T
        apart = cupy.zeros((k, 2 * n), np.uint16)[:, ::2]
        apart[...] = by_row.view(np.uint16)
        apart = apart.view(row.logical)
        for right in (by_row, by_column, apart):
            for order in "CF":
                out = cupy.full((m, n), 7, np.uint16, order=order).view(row.logical)
                hybrid_wgmma.product(layout, right, out, config)
                np.testing.assert_array_equal(out.get().astype(np.float64), want)


@pytest.mark.gpu
@pytest.mark.parametrize("sms", [7, 11, 23])
@pytest.mark.parametrize("config", CUT, ids=lambda c: c.name)
def test_sums_of_cut_tiles_are_exact(rng, monkeypatch, config, sms):
    cupy, row, (m, k, n) = hopper(), TABLE["bfloat16"], (700, 2048, 900)
    monkeypatch.setattr(plan, "multiprocessors", lambda: sms)
    monkeypatch.setattr(plan, "SHARING", dict.fromkeys(plan.SHARING, 0))
    w = rng.integers(-3, 4, (m, k)) * (rng.random((m, k)) < 0.2)
    b = rng.integers(-1, 2, (k, n)) * (rng.random((k, n)) < 0.1)
    bits = cupy.asarray(w.astype(row.logical)).view(np.uint16)
    layout = layout_for(monkeypatch, config, bits, row)
    assert pieces(layout.table, layout.work, config, n)["helpers"].min() < 0
    right, want = cupy.asarray(b.astype(row.logical)), (w @ b).astype(row.logical)
    for order in "CF":
        for _ in range(3):
            out = cupy.full((m, n), 0xFFFF, np.uint16, order=order).view(row.logical)
            hybrid_wgmma.product(layout, right, out, config)
            np.testing.assert_array_equal(out.get(), want)


@pytest.mark.gpu
@pytest.mark.parametrize("config", plan.SKIPPING, ids=lambda c: c.name)
def test_rows_without_elements_for_longer_than_the_ring(rng, monkeypatch, config):
    """A warpgroup that has nothing to do gives its stages back, however many they are."""
    cupy, row, (m, k, n) = hopper(), TABLE["float16"], (512, 8192, 256)
    w = rng.integers(1, 4, (m, k)) * (rng.random((m, k)) < 0.2)
    w[:64, 300:], w[64:128, :-300], w[128:192], w[320:448] = 0, 0, 0, 0
    b = rng.integers(-1, 2, (k, n)) * (rng.random((k, n)) < 0.1)
    bits = cupy.asarray(w.astype(np.float16)).view(np.uint16)
    layout = layout_for(monkeypatch, config, bits, row)
    assert layout.work.skips
    right, want = cupy.asarray(b.astype(np.float16)), (w @ b).astype(np.float16)
    for _ in range(3):
        out = cupy.full((m, n), cupy.nan, np.float16)
        hybrid_wgmma.product(layout, right, out, config)
        np.testing.assert_array_equal(out.get(), want)


REWRITTEN = pytest.mark.parametrize("rewrite", REWRITES.values(), ids=lambda r: r.NAME)


@pytest.mark.gpu
@REWRITTEN
@pytest.mark.parametrize("family", ["iid", "beta5", "block", "row_skewed"])
def test_error_is_near_that_of_a_dense_product(rng, family, rewrite):
    cupy = hopper()
    w = families.make(family, (520, 1024), zeros=0.8, dtype="float16", rng=rng)
    b = rng.standard_normal((1024, 512)).astype(np.float16)
    want = w.astype(np.float64) @ b.astype(np.float64)
    layout = hybrid_wgmma.prepare(cupy.asarray(w).view(np.uint16), TABLE["float16"], rewrite)
    out = cupy.full((520, 512), np.nan, np.float16)
    right = cupy.asarray(b)
    hybrid_wgmma.product(layout, right, out)
    dense = cupy.matmul(cupy.asarray(w), right).get()
    assert np.linalg.norm(out.get() - want) <= 2 * np.linalg.norm(dense - want)


@pytest.mark.gpu
@REWRITTEN
def test_the_same_inputs_give_the_same_bits(rng, rewrite):
    cupy = hopper()
    w = families.make("beta2", (700, 3000), zeros=0.8, dtype="float16", rng=rng)
    layout = hybrid_wgmma.prepare(cupy.asarray(w).view(np.uint16), TABLE["float16"], rewrite)
    b = cupy.asarray(rng.standard_normal((3000, 640)).astype(np.float16))
    outs = [cupy.empty((700, 640), np.float16) for _ in range(3)]
    for out in outs:
        hybrid_wgmma.product(layout, b, out)
    for out in outs[1:]:
        cupy.testing.assert_array_equal(out, outs[0])
