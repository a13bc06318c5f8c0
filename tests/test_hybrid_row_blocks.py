"""Strips of blocks of 64 rows that are empty in the same columns: when, and their products."""

from __future__ import annotations

import numpy as np
import pytest
from strip_cases import (
    CUT,
    REWRITES,
    assert_cut_tiles_are_exact,
    hopper,
    layout_for,
    matrix,
    restored,
)

from sparse24 import families
from sparse24._dtypes import TABLE
from sparse24.kernels import (
    hybrid_row_blocks,
    hybrid_row_order,
    hybrid_wgmma,
    reference_evict,
    reference_regroup,
)
from sparse24.kernels.hybrid_wgmma_configs import SPECIALISATIONS

pytestmark = pytest.mark.stem("hybrid_wgmma")

REFERENCES = {128: reference_evict, 256: reference_regroup}


def in_turns(m: int, k: int, rng, *, kinds: int = 5) -> np.ndarray:
    """Whole numbers: each 64 rows have elements in one of some parts of the columns, in turn."""
    part = np.arange(m)[:, None] // 64 % kinds == np.arange(k) * kinds // k
    keep = part & (rng.random((m, k)) < 0.2)
    return rng.integers(1, 4, (m, k)) * rng.choice((-1, 1), (m, k)) * keep


def test_columns_in_which_blocks_have_elements(rng):
    w = in_turns(150, 70, rng).astype(np.uint16)
    want = [w[first : first + 64].any(axis=0) for first in (0, 64, 128)]
    np.testing.assert_array_equal(hybrid_row_blocks.held_columns(w), want)
    assert hybrid_row_blocks.held_columns(w[:0]).shape == (0, 70)


def test_blocks_with_the_same_columns_share_a_strip():
    held = np.array([[1, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 1, 1], [1, 1, 0, 0]], bool)
    assert hybrid_row_blocks.grouping(held, 2) == [0, 2, 3, 1, 4, 5]
    assert hybrid_row_blocks.columns_of_strips(held[[0, 2, 3, 1]], 2) == 4


@pytest.mark.parametrize("size", [2, 4])
def test_every_block_has_one_place(rng, size):
    held = rng.random((23, 500)) < rng.random((23, 8)).repeat(63, axis=1)[:, :500] ** 3
    order = hybrid_row_blocks.grouping(held, size)
    assert sorted(order) == list(range(24))
    wide = np.pad(held, ((0, 1), (0, 0)))
    natural = hybrid_row_blocks.columns_of_strips(wide, size)
    assert hybrid_row_blocks.columns_of_strips(wide[order], size) < natural


@pytest.mark.parametrize("held", [np.ones((8, 64)), np.zeros((8, 64)), np.zeros((0, 64))])
def test_blocks_that_are_alike_keep_their_order(held):
    assert hybrid_row_blocks.grouping(held.astype(bool), 4) is None


@pytest.mark.parametrize("height", REWRITES)
def test_zeros_that_fall_by_chance_leave_blocks_where_they_are(height):
    held = hybrid_row_blocks.held_columns(matrix("iid", 0.9, (1024, 512)))
    assert hybrid_row_blocks.grouping(held, height // 64) is None


@pytest.mark.parametrize("m", [640, 700])
def test_arranged_rows_mean_the_same(rng, m):
    w = in_turns(m, 512, rng).astype(np.int16).view(np.uint16)
    order = hybrid_row_blocks.grouping(hybrid_row_blocks.held_columns(w), 4)
    arranged = hybrid_row_blocks.arranged(w, order)
    strips = reference_regroup.prepare(arranged)
    assert strips.tables.lengths.sum() < reference_regroup.prepare(w).tables.lengths.sum()
    placed = hybrid_row_blocks.placed(strips.tables, order)
    made = type(strips)(strips.dense, strips.sources, placed)
    np.testing.assert_array_equal(restored(made, w.shape), w)


# --- on a GPU ---------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("height", REWRITES)
@pytest.mark.parametrize("shape", [(1280, 1024), (1301, 517)])
def test_the_order_is_that_of_the_host(rng, shape, height):
    cupy = hopper()
    w = in_turns(*shape, rng).astype(np.float16).view(np.uint16)
    held = hybrid_row_blocks.held_columns(w)
    order = hybrid_row_blocks.grouping(held, height // 64)
    assert order is not None
    assert hybrid_row_blocks.grouping(cupy.asarray(held), height // 64) == order
    made = hybrid_row_order.ordered(cupy.asarray(w), REWRITES[height])
    assert made.rows is None
    cupy.testing.assert_array_equal(made.bits, hybrid_row_blocks.arranged(w, order))
    want = REFERENCES[height].prepare(made.bits.get()).tables
    np.testing.assert_array_equal(made.tables.table, hybrid_row_blocks.placed(want, order).table)


@pytest.mark.gpu
@pytest.mark.parametrize("config", SPECIALISATIONS, ids=lambda c: c.name)
@pytest.mark.parametrize("shape", [(1280, 517, 128), (1301, 1000, 512), (703, 2048, 333)])
def test_blocks_come_back_to_their_places(rng, monkeypatch, shape, config):
    cupy, row, (m, k, n) = hopper(), TABLE["float16"], shape
    w = in_turns(m, k, rng)
    b = rng.integers(-1, 2, (k, n)) * (rng.random((k, n)) < 0.1)
    bits = cupy.asarray(w.astype(np.float16)).view(np.uint16)
    layout = layout_for(monkeypatch, config, bits, row)
    assert layout.rows is None
    assert (np.diff(layout.table[:, 3:], axis=1) != 64).any()
    right, want = cupy.asarray(b.astype(np.float16)), w @ b
    wide = cupy.full((2 * m, -(-n // 8) * 16), np.nan, np.float16)
    for out in (
        cupy.full((m, n), np.nan, np.float16), wide[:m, :n], wide[::2, ::2][:, :n],
        cupy.full((m, n), np.nan, np.float16, order="F"),
    ):  # fmt: skip
        hybrid_wgmma.product(layout, right, out, config)
        np.testing.assert_array_equal(out.get(), want)


@pytest.mark.gpu
@pytest.mark.parametrize("sms", [7, 23])
@pytest.mark.parametrize("config", CUT, ids=lambda c: c.name)
def test_cut_tiles_of_such_strips_are_exact(rng, monkeypatch, config, sms):
    w = in_turns(1301, 2048, rng)
    b = rng.integers(-1, 2, (2048, 900)) * (rng.random((2048, 900)) < 0.05)
    assert_cut_tiles_are_exact(monkeypatch, config, sms, w, b)


@pytest.mark.gpu
def test_not_a_number_stays_in_its_row(rng):
    cupy, row = hopper(), TABLE["float16"]
    w = in_turns(1301, 512, rng).astype(np.float16)
    w[77, np.flatnonzero(w[77])[0]] = np.nan
    layout = hybrid_wgmma.prepare(cupy.asarray(w).view(np.uint16), row, REWRITES[256])
    out = cupy.full((1301, 256), np.inf, np.float16)
    hybrid_wgmma.product(layout, cupy.ones((512, 256), np.float16), out)
    found = cupy.isnan(out).get()
    assert found[77].all()
    assert found.sum() == 256


@pytest.mark.gpu
def test_error_is_near_that_of_a_dense_product(rng):
    cupy, row = hopper(), TABLE["float16"]
    w = families.make("beta2", (4096, 1024), zeros=0.95, dtype="float16", rng=rng)
    b = rng.standard_normal((1024, 640)).astype(np.float16)
    want = w.astype(np.float64) @ b.astype(np.float64)
    layout = hybrid_wgmma.prepare(cupy.asarray(w).view(np.uint16), row, REWRITES[256])
    assert (np.diff(layout.table[:, 3:], axis=1) != 64).any()
    out = cupy.full((4096, 640), np.nan, np.float16)
    hybrid_wgmma.product(layout, cupy.asarray(b), out)
    dense = cupy.matmul(cupy.asarray(w), cupy.asarray(b)).get()
    assert np.linalg.norm(out.get() - want) <= 2 * np.linalg.norm(dense - want)
