"""Rows sorted by their non-zeros: when, what strips become, and products that put rows back."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from strip_cases import CUT, REWRITES, assert_cut_tiles_are_exact, hopper, matrix, restored

from sparse24 import families
from sparse24._dtypes import TABLE
from sparse24.kernels import (
    hybrid_row_order,
    hybrid_wgmma,
    reference_evict,
    reference_regroup,
)
from sparse24.kernels import hybrid_wgmma_plan as plan

pytestmark = pytest.mark.stem("hybrid_wgmma")

SHAPE = (700, 512)
REWRITTEN = pytest.mark.parametrize("height", REWRITES, ids=lambda h: REWRITES[h].NAME)
REFERENCES = {128: reference_evict, 256: reference_regroup}


def on_the_host(height: int):
    """A rewrite whose plan is that of its reference."""

    def plan_of(bits):
        strips = REFERENCES[height].prepare(bits)
        return SimpleNamespace(tables=strips.tables, strips=strips)

    return SimpleNamespace(ROWS=height, plan=plan_of)


def skewed(m: int, k: int, rng, *, full: float = 0.05) -> np.ndarray:
    """Whole numbers: one row in twenty is full, and the others have a tenth."""
    density = np.where(rng.random((m, 1)) < full, 1.0, 0.1)
    keep = rng.random((m, k)) < density
    return rng.integers(1, 4, (m, k)) * rng.choice((-1, 1), (m, k)) * keep


def test_a_strip_has_twice_the_columns_of_its_fullest_row():
    counts = np.array([10, 60, 20, 30, 64, 1])
    assert hybrid_row_order.least_columns(counts, 64, 2) == 120 + 64 + 128
    assert hybrid_row_order.least_columns(counts, 64, 4) == 120 + 128


@REWRITTEN
@pytest.mark.parametrize("family", ["row_skewed", "power_law", "iid", "beta5"])
def test_no_strips_are_shorter_than_the_bound(family, height):
    w = matrix(family, 0.7, SHAPE)
    least = hybrid_row_order.least_columns((w != 0).sum(axis=1), SHAPE[1], height)
    assert REFERENCES[height].prepare(w).tables.lengths.sum() * 64 >= least


@pytest.mark.parametrize("height", REWRITES)
@pytest.mark.parametrize("family", families.FAMILIES)
@pytest.mark.parametrize("zeros", [0.7, 0.9])
def test_only_rows_that_differ_are_sorted(family, zeros, height):
    counts = (matrix(family, zeros, (2048, 1024)) != 0).sum(axis=1)
    order = hybrid_row_order.sorting(counts, 1024, height)
    if family not in ("row_skewed", "power_law"):
        assert order is None
        return
    assert (np.diff(counts[order]) <= 0).all()
    same = np.diff(counts[order]) == 0
    assert (np.diff(order)[same] > 0).all()


def test_empty_and_even_matrices_keep_their_order():
    assert hybrid_row_order.sorting(np.zeros(0, int), 64, 128) is None
    assert hybrid_row_order.sorting(np.full(300, 64), 64, 128) is None
    assert hybrid_row_order.sorting(np.array([64]), 64, 128) is None


@REWRITTEN
def test_sorted_strips_are_fewer_columns_and_mean_the_same(rng, height):
    w = skewed(*SHAPE, rng).astype(np.int16).view(np.uint16)
    made = hybrid_row_order.ordered(w, on_the_host(height))
    strips, natural = made.plan.strips, REFERENCES[height].prepare(w)
    lengths = strips.tables.lengths
    assert lengths.sum() < 0.8 * natural.tables.lengths.sum()
    assert len(made.rows) == len(lengths) * height
    assert (made.rows[SHAPE[0] :] >= SHAPE[0]).all()
    found = np.empty_like(w)
    found[made.rows[: SHAPE[0]]] = restored(strips, SHAPE)
    np.testing.assert_array_equal(found, w)


def test_rows_that_share_columns_stay_together(rng):
    """What two strips gain by sorting, others lose, whose columns are mostly empty."""
    m, k = 6 * 128, 6 * 128
    own = np.arange(k) // 128 == np.arange(m)[:, None] // 128
    keep = own & (rng.random((m, k)) < rng.uniform(0.1, 0.5, (m, 1)))
    keep[[0, 128]] = True
    w = keep.astype(np.uint16)
    assert hybrid_row_order.sorting(keep.sum(axis=1), k, 128) is not None
    made = hybrid_row_order.ordered(w, on_the_host(128))
    assert made.rows is None
    assert made.bits is w


# --- on a GPU ---------------------------------------------------------------------------------


def targets(cupy, m: int, n: int):
    """Results of many strides, full of NaN, by name."""
    nan = 0xFFFF  # of float16 and bfloat16
    wide = cupy.full((m, -(-n // 8) * 8 + 16), nan, np.uint16)
    yield "by row", cupy.full((m, n), nan, np.uint16)
    yield "aligned rows", wide[:, 8 : 8 + n]
    yield "off by one", cupy.full((m, n + 1), nan, np.uint16)[:, 1:]
    yield "by column", cupy.full((m, n), nan, np.uint16, order="F")
    yield "every other", cupy.full((2 * m, 2 * n), nan, np.uint16)[::2, ::2]
    yield "upside down", cupy.full((m, -(-n // 8) * 8), nan, np.uint16)[::-1, :n]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "config", [c for table in plan.TABLES.values() for c in table], ids=lambda c: c.name
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(700, 517, 128), (1001, 1000, 512), (301, 2048, 333)])
def test_rows_come_back_to_their_places(rng, shape, dtype, config):
    cupy, row, (m, k, n) = hopper(), TABLE[dtype], shape
    w = skewed(m, k, rng)
    b = rng.integers(-1, 2, (k, n)) * (rng.random((k, n)) < 0.05)
    bits = cupy.asarray(w.astype(row.logical)).view(np.uint16)
    layout = hybrid_wgmma.prepare(bits, row, REWRITES[config.block_m])
    assert layout.rows is not None
    right, want = cupy.asarray(b.astype(row.logical)), (w @ b).astype(row.logical)
    for name, out in targets(cupy, m, n):
        whole = out if out.base is None else out.base
        untouched = int((whole == 0xFFFF).sum()) - out.size
        hybrid_wgmma.product(layout, right, out.view(row.logical), config)
        np.testing.assert_array_equal(out.get().view(row.logical), want, err_msg=name)
        assert int((whole == 0xFFFF).sum()) == untouched, name


@pytest.mark.gpu
@pytest.mark.parametrize("sms", [7, 23])
@pytest.mark.parametrize("config", CUT, ids=lambda c: c.name)
def test_cut_tiles_of_sorted_rows_are_exact(rng, monkeypatch, config, sms):
    w = skewed(1100, 2048, rng)
    b = rng.integers(-1, 2, (2048, 900)) * (rng.random((2048, 900)) < 0.02)
    layout = assert_cut_tiles_are_exact(monkeypatch, config, sms, w, b)
    assert layout.rows is not None


@pytest.mark.gpu
@REWRITTEN
def test_the_survey_counts_what_is_prepared(rng, height):
    cupy = hopper()
    for family in ("row_skewed", "iid"):
        w = families.make(family, (1000, 1024), zeros=0.8, dtype="float16", rng=rng)
        bits = cupy.asarray(w).view(np.uint16)
        layout = hybrid_wgmma.prepare(bits, TABLE["float16"], REWRITES[height])
        work = hybrid_wgmma.survey(bits, REWRITES[height])
        assert (layout.rows is not None) == (family == "row_skewed")
        assert layout.work.by_number == work.by_number == (family == "row_skewed")
        np.testing.assert_array_equal(layout.work.lengths, work.lengths)
        assert layout.work.gathered == work.gathered


@pytest.mark.gpu
@REWRITTEN
@pytest.mark.parametrize("family", ["row_skewed", "power_law"])
def test_error_is_near_that_of_a_dense_product(rng, family, height):
    cupy = hopper()
    w = families.make(family, (1030, 2048), zeros=0.8, dtype="float16", rng=rng)
    b = rng.standard_normal((2048, 640)).astype(np.float16)
    want = w.astype(np.float64) @ b.astype(np.float64)
    layout = hybrid_wgmma.prepare(
        cupy.asarray(w).view(np.uint16), TABLE["float16"], REWRITES[height]
    )
    right, dense = cupy.asarray(b), cupy.matmul(cupy.asarray(w), cupy.asarray(b)).get()
    outs = [cupy.full((1030, 640), np.nan, np.float16) for _ in range(2)]
    for which, out in zip((layout, layout.copy()), outs):
        hybrid_wgmma.product(which, right, out)
    assert np.linalg.norm(outs[0].get() - want) <= 2 * np.linalg.norm(dense - want)
    cupy.testing.assert_array_equal(*outs)


@pytest.mark.gpu
@REWRITTEN
def test_not_a_number_stays_in_its_row_and_empty_rows_are_zero(rng, height):
    cupy, (m, k, n) = hopper(), (600, 512, 128)
    w = skewed(m, k, rng).astype(np.float16)
    w[7], w[9, 3], w[400] = 0, np.nan, np.nan
    layout = hybrid_wgmma.prepare(
        cupy.asarray(w).view(np.uint16), TABLE["float16"], REWRITES[height]
    )
    assert layout.rows is not None
    b = rng.integers(-1, 2, (k, n)).astype(np.float16)
    out = cupy.full((m, n), np.nan, np.float16)
    hybrid_wgmma.product(layout, cupy.asarray(b), out)
    got, want = out.get(), w.astype(np.float64) @ b
    assert (got[7] == 0).all()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    others = ~np.isnan(want)
    np.testing.assert_array_equal(got[others], want[others].astype(np.float16))


@pytest.mark.gpu
def test_a_hybrid_array_multiplies_skewed_rows(rng):
    cupy = hopper()
    from sparse24 import hybrid

    w = skewed(1000, 1024, rng).astype(np.float16)
    w[w == 3] = -0.0
    b = (rng.integers(-1, 2, (1024, 520)) * (rng.random((1024, 520)) < 0.05)).astype(np.float16)
    h, want = hybrid(cupy.asarray(w)), w.astype(np.float64) @ b
    for path in ("slots", "regrouped"):
        got = h.matmul(cupy.asarray(b), algorithm=path)
        np.testing.assert_array_equal(got.get(), want)
