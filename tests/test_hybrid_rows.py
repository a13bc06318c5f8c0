"""The rows kernel: its layout on the CPU, its products on the GPU."""

from __future__ import annotations

import numpy as np
import pytest
from hybrid_cases import lengths_of

from sparse24 import families
from sparse24._dtypes import lookup, numpy_dtype
from sparse24.kernels import hybrid_rows
from sparse24.kernels.hybrid_rows_plan import (
    FEW_WARPS,
    MOST_COLUMNS,
    WARPS,
    _seconds,
    _ways,
    dealt,
    effort,
    plan,
)
from sparse24.kernels.hybrid_units import units_of

pytestmark = pytest.mark.stem("hybrid_rows")

PER_BLOCK = range(1, WARPS // MOST_COLUMNS + 1)


def walk(layout):
    """The dense matrix, read as the kernel reads it, warp by warp."""
    deltas, values, parts, begins, starts, heights, rows = layout.arrays
    deltas, values = (x.reshape(-1, 32, 4) for x in (deltas, values))
    dense = np.zeros(layout.shape, values.dtype)
    for slice_, height in enumerate(heights):
        row = np.repeat(rows[32 * slice_ :][: 32 : 32 // height], 32 // height)
        for warp in range(starts[slice_], starts[slice_ + 1]):
            column = begins[warp].astype(np.int64)
            for step in range(parts[warp], parts[warp + 1]):
                for i in range(4):
                    column = column + deltas[step, :, i]
                    real = values[step, :, i] != 0
                    assert not dense[row[real], column[real]].any()
                    dense[row[real], column[real]] = values[step, real, i]
    return dense


def cut_to(most_words, per_block, warps):
    """Slices of at most so many entries."""
    return lambda lengths, *_: dealt(units_of(lengths, most_words), per_block, warps)


def whole_slices(lengths, *_):
    return dealt(units_of(lengths, 32 * max(int(lengths[0]), 1)), 1, 3)


CUTS = {
    "default": plan,
    "whole": whole_slices,
    "single rows": cut_to(1, 1, 3),
    "shared blocks": cut_to(500, 3, 7),
    "full blocks": cut_to(2000, 8, 32),
}


def check_layout(w, cut):
    layout = hybrid_rows.prepare(w, lookup("float32"), cut=cut)
    np.testing.assert_array_equal(walk(layout), w)
    arrays, blocks = layout.arrays, len(layout.plan.units) // layout.plan.per_block
    assert sorted(arrays.rows[arrays.rows >= 0]) == list(range(w.shape[0]))
    block_starts = np.arange(blocks + 1) * layout.plan.warps
    np.testing.assert_array_equal(arrays.starts[:: layout.plan.per_block], block_starts)
    assert arrays.begins.shape == (blocks * layout.plan.warps, 32)


@pytest.mark.parametrize("shape", [(1, 1), (1, 3000), (33, 70), (70, 1500), (40, 3000)])
@pytest.mark.parametrize("zeros", [0.0, 0.7, 0.999, 1.0])
@pytest.mark.parametrize("family", ["iid", "row_skewed", "power_law"])
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_layout_holds_every_element_once(rng, shape, zeros, family, cut):
    check_layout(families.make(family, shape, zeros=zeros, rng=rng), cut)


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_layout_of_a_full_row_and_of_long_gaps(cut):
    w = np.zeros((100, 9000), np.float32)
    w[50] = np.arange(1, 9001)
    check_layout(w, cut)
    w[50] = 0
    w[5, [0, 255, 256, 4000, 8999]] = [1, 2, 3, 4, 5]
    w[99, 8000] = 6
    check_layout(w, cut)


def test_a_line_begins_where_the_one_before_it_ends():
    w = np.ones((2, 256), np.float32)
    layout = hybrid_rows.prepare(w, lookup("float32"), cut=cut_to(512, 1, 1))
    (begins,), lane = layout.arrays.begins, np.arange(32)
    np.testing.assert_array_equal(layout.arrays.heights, [2])
    np.testing.assert_array_equal(begins, np.maximum(lane % 16 * 16 - 1, 0))
    np.testing.assert_array_equal(layout.arrays.rows, np.where(lane % 16, -1, lane // 16))


def test_warps_of_a_block_get_even_shares():
    made = dealt(units_of(np.array([40 * 128, 30 * 128, 10 * 128, 9 * 128]), 1), 3, 8)
    np.testing.assert_array_equal(made.steps, [40, 9, 0, 30, 10, 0])
    np.testing.assert_array_equal(made.most_steps(), [7, 5])
    starts, of, begins = made.parts()
    np.testing.assert_array_equal(starts, [0, 6, 8, 8, 14, 16, 16])
    np.testing.assert_array_equal(of[:8], [0, 0, 0, 0, 0, 0, 1, 1])
    assert np.diff(begins).max() <= 7
    assert begins[-1] == 89


@pytest.mark.parametrize("family", ["row_skewed", "power_law", "beta5", "block"])
@pytest.mark.parametrize("zeros", [0.8, 0.95])
@pytest.mark.parametrize("shape", [(4096, 4096), (14336, 4096)])
def test_multiprocessors_take_about_the_same_time_whatever_the_rows(family, shape, zeros):
    lengths = lengths_of(family, shape, zeros)
    made = plan(lengths, shape[1])
    entries, nbytes = effort(made, lookup("float16"), 132)
    assert entries < 1.8 * lengths.sum()
    assert nbytes == 3 * entries
    assert (np.diff(made.of_blocks) <= 0).all()
    assert made.per_block in PER_BLOCK


@pytest.mark.parametrize("shape", [(4096, 4096), (14336, 4096), (8192, 8192), (1024, 4096)])
def test_one_block_for_each_multiprocessor_where_rows_are_alike(shape):
    """So each copies b once."""
    made = plan(lengths_of("iid", shape, 0.9), shape[1])
    assert 112 <= made.of_blocks.size <= 132
    assert made.most_steps().max() <= 1.15 * made.of_blocks.sum() / (132 * made.warps) + 1


def test_the_plan_is_the_best_of_all_ways():
    lengths = lengths_of("row_skewed", (2048, 4096), 0.9)
    ways = [dealt(units, per_block) for _, units, per_block in _ways(lengths, 4096, 132, 32)]
    assert _seconds(plan(lengths, 4096), 4096, 132) == min(_seconds(w, 4096, 132) for w in ways)


def test_small_products_have_blocks_of_few_warps():
    made = plan(lengths_of("iid", (1024, 1024), 0.9), 1024)
    assert made.warps == FEW_WARPS
    assert made.per_block * MOST_COLUMNS <= FEW_WARPS
    assert plan(lengths_of("iid", (1024, 1024), 0.8), 1024).warps == WARPS
    assert plan(lengths_of("iid", (1024, 2048), 0.97), 2048).warps == WARPS


@pytest.mark.parametrize("rows", [1, 31, 33, 500])
def test_any_number_of_rows_has_a_plan(rows):
    made = plan(lengths_of("iid", (rows, 4096), 0.9), 4096)
    assert made.units.matrix_rows == rows
    assert made.of_blocks.sum() > 0


def test_refuses_in_words():
    assert hybrid_rows.refuses(4096, lookup("float16"), 4) is None
    assert "4 columns, not 5" in hybrid_rows.refuses(4096, lookup("float16"), 5)
    assert "shared memory" in hybrid_rows.refuses(1 << 20, lookup("float16"), 1)


ROUNDING = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-5, "float64": 1e-13, "int8": 0}


def check_product(w, b, dtype, **how):
    """A @ b into memory that holds something else, twice, against the product of wide numbers."""
    cupy = pytest.importorskip("cupy")
    row = lookup(dtype)
    wide = np.int64 if dtype == "int8" else np.float64
    want = w.astype(wide) @ b.astype(wide)
    layout = hybrid_rows.prepare(cupy.asarray(w).view(row.storage), row, cupy, **how)
    kind = numpy_dtype(row.result)
    poison = 77 if dtype == "int8" else np.nan
    got = cupy.full(want.shape, poison, kind)
    hybrid_rows.product(layout, cupy.asarray(b), got)
    again = cupy.full(want.shape[::-1], poison, kind).T
    hybrid_rows.product(layout.copy(), cupy.asarray(b.T.copy()).T, again)
    bits = f"u{got.itemsize}"
    assert (got.view(bits) == again.T.copy().T.view(bits)).all()
    error = np.abs(got.get().astype(wide) - want).max()
    assert error <= ROUNDING[dtype] * np.abs(want).max()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["iid", "row_skewed", "power_law", "banded"])
def test_product(rng, dtype, n, name):
    w = families.make(name, (500, 1300), zeros=0.8, dtype=dtype, rng=rng)
    w[3:40] = 0
    b = families.make("iid", (1300, n), zeros=0.0, dtype=dtype, rng=rng)
    check_product(w, b, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float64", "int8"])
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("per_block", PER_BLOCK)
@pytest.mark.parametrize("most_words", [1, 3000, 1 << 20])
def test_product_of_every_cut(rng, dtype, n, per_block, most_words):
    w = families.make("row_skewed", (300, 2000), zeros=0.9, dtype=dtype, rng=rng)
    w[7], w[8:200:3] = w[7] + (w[7] == 0), 0
    b = families.make("iid", (2000, n), zeros=0.0, dtype=dtype, rng=rng)
    check_product(w, b, dtype, cut=cut_to(most_words, per_block, 32))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["iid", "row_skewed"])
def test_product_of_many_rows(rng, name):
    w = families.make(name, (9000, 600), zeros=0.9, rng=rng)
    check_product(w, families.make("iid", (600, 2), zeros=0.0, rng=rng), "float32")


@pytest.mark.gpu
def test_long_gaps():
    w = np.zeros((70, 9000), np.float32)
    w[5, [0, 255, 256, 4000, 8999]] = [1, 2, 3, 4, 5]
    check_product(w, np.arange(9000, dtype=np.float32)[:, None], "float32")


@pytest.mark.gpu
def test_a_matrix_without_elements():
    check_product(np.zeros((70, 90), np.float32), np.ones((90, 1), np.float32), "float32")
